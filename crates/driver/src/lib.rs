//! The worker loop: sockets, epoll, time.
//!
//! The interface below is fixed; the loop behind it is being written.

mod child;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use respool_engine::settings::{Address, Settings};

pub use child::spawn_tied;

/// What [`start`] needs.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where clients reach us, each with the index of its pool in [`Settings::pools`].
    pub listeners: Vec<(Address, usize)>,
    /// Workers; each is one thread with its own engine, sessions and links.
    pub workers: usize,
    /// The same for every worker.
    pub settings: Arc<Settings>,
}

/// What happened in a worker that an operator wants to know, once per event.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Notice {
    /// A link is up: worker, server, what the server says of itself.
    LinkUp { worker: usize, server: String, version: String },
    /// A link is down, and why.
    LinkDown { worker: usize, server: String, reason: String },
    /// We closed a session for breaking a rule or a bound.
    SessionClosed { worker: usize, peer: String, reason: String },
    /// Accepting failed (file descriptors, memory, ...).
    AcceptFailed { worker: usize, reason: String },
}

/// Running workers.
pub struct Running {
    _private: (),
}

/// Binds the listeners and starts the workers. `notice` is called on a worker's thread: it must be quick.
///
/// # Errors
/// When an address cannot be bound (the message names it) or a thread cannot be started.
pub fn start(_setup: Setup, _notice: Arc<dyn Fn(Notice) + Send + Sync>) -> io::Result<Running> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

impl Running {
    /// The addresses in the order of [`Setup::listeners`], with the ports the kernel chose.
    pub fn addresses(&self) -> Vec<Address> {
        Vec::new()
    }

    /// Stops accepting, lets every request that has arrived be answered, closes. Returns at once; see [`Running::join`].
    pub fn drain(&self) {}

    /// Waits until every worker has ended. After [`Running::drain`], for `limit` at the most; then what is left is cut.
    /// Returns the number of sessions that were cut.
    pub fn join(self, _limit: Duration) -> usize {
        0
    }
}
