//! What respool decides: sessions, routing, links, batching, failure.
//!
//! No socket, no clock, no thread: [`Engine`] is a function of its state, of bytes, and of the time
//! that its caller tells it. `respool-driver` calls it with real ones.

#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::panic,
        reason = "bytes of a peer must not end the process"
    )
)]

#[path = "base/address_map.rs"]
pub mod address_map;
#[path = "data_plane/deadlines.rs"]
mod arrivals;
#[path = "access/auth.rs"]
mod auth;
#[path = "redirect/refusals.rs"]
mod belief;
#[path = "data_plane/bounds_met.rs"]
mod bounds;
#[path = "base/buffer.rs"]
mod buffer;
#[path = "data_plane/burst.rs"]
mod burst;
#[path = "admin/clients.rs"]
mod clients;
#[path = "discovery/cluster.rs"]
mod cluster;
#[path = "data_plane/coalesce.rs"]
mod coalesce;
#[path = "admin/runtime_config.rs"]
mod control;
#[path = "base/counters.rs"]
mod counters;
#[path = "pubsub/subscriber_counts.rs"]
mod directory;
#[path = "data_plane/completion.rs"]
mod duty;
#[path = "redirect/deferred.rs"]
mod elsewhere;
#[path = "pinned/urgent.rs"]
mod emergency;
mod engine;
#[path = "data_plane/ledger.rs"]
mod entry;
#[path = "pubsub/keyspace_events.rs"]
mod events;
#[path = "base/error.rs"]
mod failure;
#[path = "admin/workers.rs"]
mod fleet;
#[path = "scatter.rs"]
mod gather;
#[path = "data_plane/handshake.rs"]
mod greeting;
#[path = "access/guess_delay.rs"]
mod guess_delay;
#[path = "data_plane/health.rs"]
mod health;
#[path = "local.rs"]
mod here;
#[path = "pinned/holders.rs"]
mod holders;
#[path = "discovery/introductions.rs"]
mod introductions;
#[path = "data_plane/cork.rs"]
mod keeping;
#[path = "admin/lanes.rs"]
mod lanes;
#[path = "pinned/streaming.rs"]
mod large;
#[path = "base/limits.rs"]
pub mod limits;
#[path = "data_plane/link.rs"]
mod link;
#[path = "data_plane/link_limit.rs"]
mod link_room;
#[path = "admin/listing.rs"]
mod listing;
#[path = "access/login_check.rs"]
mod login_check;
#[path = "access/login_probe.rs"]
mod login_probe;
#[path = "data_plane/memory.rs"]
mod memory;
#[path = "pinned/monitor.rs"]
mod monitor;
#[path = "local/cluster_facade.rs"]
mod node;
#[path = "data_plane/outage.rs"]
mod outage;
#[path = "data_plane/reorder.rs"]
mod parking;
#[path = "access/passwords.rs"]
mod passwords;
mod pinned;
#[path = "pinned/polling.rs"]
mod polling;
#[path = "routing/pool.rs"]
mod pool;
mod pubsub;
#[path = "pinned/checkout.rs"]
mod queue;
#[path = "data_plane/quick_code.rs"]
mod quick_code;
#[path = "discovery/replicas.rs"]
mod readers;
#[path = "data_plane/reconnects.rs"]
mod reconnects;
#[path = "pinned/tracking_redirect.rs"]
mod redirect;
#[path = "data_plane/relief.rs"]
mod relief;
#[path = "discovery/readonly.rs"]
mod renewal;
#[path = "data_plane/egress.rs"]
mod replies;
#[path = "data_plane/reply_limit.rs"]
mod reply_room;
#[path = "data_plane/ingress.rs"]
mod requests;
#[path = "data_plane/resume.rs"]
mod resume;
#[path = "data_plane/arrivals.rs"]
mod returns;
#[path = "access/acl.rs"]
mod rights;
#[path = "engine/router.rs"]
mod route;
#[path = "local/scripts.rs"]
mod scripts;
#[path = "discovery/sentinel.rs"]
mod sentinels;
#[path = "data_plane/session.rs"]
mod session;
#[path = "base/settings.rs"]
pub mod settings;
#[path = "base/slab.rs"]
mod slots;
#[path = "data_plane/slow_readers.rs"]
mod slow_readers;
#[path = "transaction/composite.rs"]
mod steps;
#[path = "scatter/key_prefix.rs"]
mod strip;
#[path = "pubsub/hub.rs"]
mod subscriptions;
#[path = "data_plane/takeover.rs"]
mod takeover;
#[path = "base/time.rs"]
mod time;
#[path = "pinned/tracking.rs"]
mod tracking;
mod transaction;
#[path = "data_plane/gate.rs"]
mod trial;
#[path = "engine/link_events.rs"]
mod trouble;
#[path = "access/login_state.rs"]
mod trust;
#[path = "data_plane/dedup.rs"]
mod twins;
#[path = "local/catalog.rs"]
mod unknown;
#[path = "data_plane/untaken.rs"]
mod untaken;
#[path = "pinned/wait_command.rs"]
mod wait;
#[path = "data_plane/waiters.rs"]
mod waiters;
#[path = "base/error_text.rs"]
mod words;

pub use clients::{Filter, Unblock};
pub use counters::{Counted, Counters, Sizes};
pub use directory::Directory;
pub use engine::{Action, Engine, Event, LinkId, SessionId, TICK_MS, Worker};
pub use failure::Fate;
pub use fleet::{Answer, Question};
pub use listing::Lines;
pub use scripts::ShownBy;
pub use session::{Local, Origin, Peer};
pub use time::Time;
