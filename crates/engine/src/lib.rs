//! What respool decides: sessions, routing, links, batching, failure.
//!
//! No socket, no clock, no thread: [`Engine`] is a function of its state, of bytes, and of the time
//! that its caller tells it. `respool-driver` calls it with real ones.

mod auth;
mod buffer;
mod counters;
mod duty;
mod engine;
mod failure;
mod here;
pub mod limits;
mod link;
mod pinned;
mod pool;
mod replies;
mod requests;
mod returns;
mod scripts;
mod session;
pub mod settings;
mod slots;
mod time;
mod transaction;
mod trouble;
mod unknown;

pub use counters::Counters;
pub use engine::{Action, Engine, Event, LinkId, SessionId, TICK_MS, Worker};
pub use failure::Fate;
pub use session::Peer;
pub use time::Time;
