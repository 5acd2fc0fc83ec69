//! A worker's mailbox: a queue that other threads fill, and an eventfd that wakes the worker.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use respool_engine::settings::PasswordSource;
use respool_engine::{LinkId, WorkerQuery, WorkerReply};
use rustix::event::{EventfdFlags, eventfd};

/// An order to a worker.
#[derive(Debug)]
pub(crate) enum WorkerOrder {
    /// Accept no client, answer every request that has arrived, then end.
    Drain,
    /// End now.
    Stop,
    /// Use this password for its source.
    Password(NewPassword),
    /// The look-up of a host name ended, for this connection attempt of the link.
    Resolved {
        link: LinkId,
        attempt: u64,
        addresses: Result<Vec<SocketAddr>, String>,
    },
    /// A session of worker `from` asks all workers.
    Question {
        from: usize,
        ticket: u64,
        question: WorkerQuery,
    },
    /// Another worker's answer to the question with this ticket.
    Answer { ticket: u64, answer: WorkerReply },
}

/// A password with its source.
#[derive(Clone)]
pub(crate) struct NewPassword {
    pub(crate) source: PasswordSource,
    pub(crate) password: Arc<str>,
}

// The debug format shows the source alone, so that no password reaches a log.
impl fmt::Debug for NewPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

#[derive(Debug)]
pub(crate) struct Mailbox {
    orders: Mutex<Vec<WorkerOrder>>,
    wake: OwnedFd,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Mailbox {
            orders: Mutex::new(Vec::new()),
            wake,
        })
    }

    pub(crate) fn send(&self, order: WorkerOrder) {
        self.orders
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(order);
        // The write fails only when the counter is full, and then the worker is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(crate) fn take(&self) -> Vec<WorkerOrder> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
        std::mem::take(&mut self.orders.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
