//! A worker's mailbox: a queue that other threads fill, and an eventfd that wakes the worker.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use respool_engine::settings::PasswordSource;
use respool_engine::{LinkId, NewSettings, ReloadReport, WorkerQuery, WorkerReply};
use rustix::event::{EventfdFlags, eventfd};

use crate::listen::Listener;
use crate::lock;
use crate::tls::{ListenerTls, ServerTls};

/// An order to a worker.
#[derive(Debug)]
pub(crate) enum WorkerOrder {
    /// Accept no client, answer every request that has arrived, then end.
    Drain,
    /// End now.
    Stop,
    /// Take other settings and listeners.
    Reload(Box<WorkerReload>),
    /// Take the outcome of a reload that has changed nothing.
    ReloadReport(ReloadReport),
    /// Use this password for its source.
    Password(NewPassword),
    /// Log in with the current password of this source on links that are up.
    RenewLogins(PasswordSource),
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
    /// Use these settings for new clients of all listeners with TLS.
    ListenerTls(ListenerTls),
    /// Use these settings for new connections to the servers of the pool with TLS at this place.
    PoolTls { pool: usize, tls: ServerTls },
}

/// The order of a reload to one worker.
#[derive(Debug)]
pub(crate) struct WorkerReload {
    /// The settings of the engine.
    pub(crate) settings: NewSettings,
    /// New passwords of sources.
    pub(crate) passwords: Vec<NewPassword>,
    /// TLS to the servers of each pool of the configuration, with the place of the pool; `None`:
    /// plain. Links keep the old one.
    pub(crate) pool_tls: Vec<(usize, Option<ServerTls>)>,
    /// The listeners that stay.
    pub(crate) kept: Vec<KeptListener>,
    /// New listeners with their indices, which are free.
    pub(crate) added: Vec<(usize, Listener)>,
    /// The indices of listeners that end.
    pub(crate) removed: Vec<usize>,
    /// For INFO.
    pub(crate) report: ReloadReport,
    /// Gets a message when the worker has done all this.
    pub(crate) done: Sender<()>,
}

/// A listener that stays at a reload, with the pool and the TLS of its new sessions.
#[derive(Clone, Debug)]
pub(crate) struct KeptListener {
    /// Its index.
    pub(crate) index: usize,
    /// The index of its pool.
    pub(crate) pool: usize,
    /// TLS of its sessions; `None`: plain.
    pub(crate) tls: Option<ListenerTls>,
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
        lock(&self.orders).push(order);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        // The write fails only when the counter is full, and then the worker is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Sends an order to each worker. No worker has its order before all have theirs. So a message
    /// that a worker sends behind its order arrives behind the order of the other worker.
    pub(crate) fn send_to_all(mailboxes: &[Arc<Mailbox>], orders: Vec<WorkerOrder>) {
        let queues = mailboxes.iter().map(|mailbox| lock(&mailbox.orders));
        let mut queues: Vec<_> = queues.collect();
        for (queue, order) in queues.iter_mut().zip(orders) {
            queue.push(order);
        }
        drop(queues);
        for mailbox in mailboxes {
            mailbox.wake();
        }
    }

    pub(crate) fn take(&self) -> Vec<WorkerOrder> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
        std::mem::take(&mut *lock(&self.orders))
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
