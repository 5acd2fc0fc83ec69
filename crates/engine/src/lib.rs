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

pub mod address_map;
mod arrivals;
mod auth;
mod belief;
mod bounds;
mod buffer;
mod burst;
mod clients;
mod cluster;
mod coalesce;
mod control;
mod counters;
mod directory;
mod duty;
mod elsewhere;
mod emergency;
mod engine;
mod entry;
mod events;
mod failure;
mod fleet;
mod gather;
mod greeting;
mod guess_delay;
mod health;
mod here;
mod holders;
mod introductions;
mod keeping;
mod lanes;
mod large;
pub mod limits;
mod link;
mod link_room;
mod listing;
mod login_check;
mod login_probe;
mod memory;
mod monitor;
mod node;
mod outage;
mod parking;
mod passwords;
mod pinned;
mod polling;
mod pool;
mod pubsub;
mod queue;
mod quick_code;
mod readers;
mod reconnects;
mod redirect;
mod relief;
mod renewal;
mod replies;
mod reply_room;
mod requests;
mod resume;
mod returns;
mod rights;
mod route;
mod scripts;
mod sentinels;
mod session;
pub mod settings;
mod slots;
mod slow_readers;
mod steps;
mod strip;
mod subscriptions;
mod takeover;
mod time;
mod tracking;
mod transaction;
mod trial;
mod trouble;
mod trust;
mod twins;
mod unknown;
mod untaken;
mod wait;
mod waiters;
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
