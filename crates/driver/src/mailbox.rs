//! How other threads reach a worker: a queue, and an eventfd that wakes it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use respool_engine::settings::PasswordSource;
use respool_engine::{Answer, LinkId, Question};
use rustix::event::{EventfdFlags, eventfd};

/// What a worker is told.
#[derive(Debug)]
pub(crate) enum Order {
    /// Take nothing new, answer what has come, end.
    Drain,
    /// End now.
    Stop,
    /// A source of passwords has this one now.
    Password(NewPassword),
    /// A host name was looked up for the `attempt`-th connection of a link.
    Resolved {
        link: LinkId,
        attempt: u64,
        addresses: Result<Vec<SocketAddr>, String>,
    },
    /// Another worker's session asks all workers.
    Question {
        from: usize,
        ticket: u64,
        question: Question,
    },
    /// What another worker answers to that.
    Answer { ticket: u64, answer: Answer },
}

/// A password with its source.
#[derive(Clone)]
pub(crate) struct NewPassword {
    pub(crate) source: PasswordSource,
    pub(crate) password: Arc<str>,
}

// Passwords never reach a log by way of a debug format.
impl fmt::Debug for NewPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

#[derive(Debug)]
pub(crate) struct Mailbox {
    orders: Mutex<Vec<Order>>,
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

    pub(crate) fn send(&self, order: Order) {
        self.orders
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(order);
        // Fails only when it is full, and then the worker is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(crate) fn take(&self) -> Vec<Order> {
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
