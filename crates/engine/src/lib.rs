//! The logic of respool: sessions, routing, links, batching, failures.
//!
//! [`Engine`] has no socket, no clock and no thread. It is a function of its state, of bytes, and
//! of the time that its caller gives. `respool-driver` connects it to real sockets and a real
//! clock.

#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::panic,
        reason = "bytes of a peer must not end the process"
    )
)]

mod access;
mod admin;
mod base;
mod data_plane;
mod discovery;
mod engine;
pub mod info_fields;
mod local;
mod pinned;
mod pubsub;
mod redirect;
mod routing;
mod scatter;
mod transaction;

pub use base::coarse_times::CoarseReport;
pub use base::counters::{Counted, Counters, DriverCounts, Sizes};
pub use base::error::{ErrorOutcome, Fate};
pub use base::handle::{LinkId, SessionId};
pub use base::latency::{CommandTimes, ErrorKind, LatencyHistogram, LatencyReport};
pub use base::pool_places::{NoPlaceLeft, PoolPlaces};
pub use base::reload_report::ReloadReport;
pub use base::time::{TICK_MS, Time};
pub use base::{address_map, limits, settings};
pub use data_plane::actions::{Action, CloseReason, Event, ListeningPort, WorkerId};
pub use data_plane::flush_rule::Usage;
pub use data_plane::scripts::ScriptSources;
pub use data_plane::session::{LocalAddress, Origin, Peer};
pub use data_plane::slow_log::SlowRequest;
pub use data_plane::worker_query::{
    AdminQuery, ClientLines, Filter, ScriptQuery, TargetQuery, Unblock, WorkerQuery, WorkerReply,
};
pub use data_plane::worker_report::{ServerCpu, ServerEntry, ServerReport, Unready, WorkerReport};
pub use engine::{Engine, NewSettings};
pub use pubsub::subscriber_counts::SubscriberCounts;
