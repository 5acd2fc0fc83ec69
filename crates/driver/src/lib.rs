//! The worker loop: sockets, epoll, time.
//!
//! [`start`] makes one thread per worker. Each has its own engine, its own listening socket on
//! every address, its own sessions and links; workers share a count of sessions, and what they
//! report.

mod allocator;
mod child;
mod left_out;
mod listen;
mod mailbox;
mod names;
mod refusals;
mod sockets;
mod worker;

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use respool_engine::settings::{Address, PasswordSource, Settings};
use respool_engine::{Counters, Worker as WorkerId};

pub use child::spawn_tied;

use crate::listen::{Listener, SocketFile};
use crate::mailbox::{Mailbox, NewPassword, Order};
use crate::worker::{Shared, Worker};

/// What [`start`] needs.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where clients reach us, each with the index of its pool in [`Settings::pools`].
    pub listeners: Vec<(Address, usize)>,
    /// Mode, owner and group of the listeners in the file system.
    pub socket_access: SocketAccess,
    /// Workers; each is one thread with its own engine, sessions and links.
    pub workers: usize,
    /// The same for every worker.
    pub settings: Arc<Settings>,
}

/// Mode, owner and group of listening sockets in the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketAccess {
    /// Permission bits; `None`: as the umask of the process says.
    pub mode: Option<u32>,
    /// User id; `None`: the user of the process.
    pub owner: Option<u32>,
    /// Group id; `None`: as the directory or the process says.
    pub group: Option<u32>,
}

/// What happened in a worker that an operator wants to know, once per event.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Notice {
    /// A link is up.
    LinkUp {
        /// Whose.
        worker: usize,
        /// The server's address.
        server: String,
        /// Its pool's name.
        pool: String,
        /// What it says it is.
        version: String,
    },
    /// A link was lost, or an attempt to connect failed.
    LinkDown {
        /// Whose.
        worker: usize,
        /// The server's address.
        server: String,
        /// Its pool's name.
        pool: String,
        /// Why.
        reason: String,
    },
    /// We closed a session for breaking a rule or a bound.
    SessionClosed {
        /// Whose.
        worker: usize,
        /// The client's address.
        peer: String,
        /// Which rule or bound.
        reason: String,
    },
    /// Which servers of a pool own what has changed, or cannot be had.
    Topology {
        /// Who has learned it.
        worker: usize,
        /// The pool's name.
        pool: String,
        /// What has.
        text: String,
    },
    /// Requests wait, or are refused, because a bound is reached; said once a minute of each bound.
    BoundReached {
        /// Whose.
        worker: usize,
        /// The option that sets the bound.
        name: &'static str,
        /// What becomes of these requests.
        effect: String,
    },
    /// Logins of clients were refused; said once a minute of each address.
    LoginsRefused {
        /// The address, or the network of an IPv6 address.
        from: String,
        /// How many, since this was last said.
        count: u64,
    },
    /// A server refuses a password that has a source, which may have another one by now. Told of
    /// each refusal.
    PasswordRefused {
        /// Where the password comes from.
        source: PasswordSource,
    },
    /// A client has set options of ours, for all workers.
    OptionsSet {
        /// The client's address.
        peer: String,
        /// The pool that they are for, by name.
        pool: String,
        /// By which listener the client came: those of a listener are for that one.
        listener: String,
        /// Each with its value.
        options: String,
    },
    /// Clients could not be accepted. A worker tells it once a second at the most, for each reason.
    AcceptFailed {
        /// The worker that refused them.
        worker: usize,
        /// The reason: `sessions-max`, `file descriptors`, or a call that failed.
        reason: &'static str,
        /// The newest of the clients, and what to do.
        detail: String,
        /// Clients that were refused since the notice before, at least 1.
        clients: u64,
    },
    /// A worker ended because of an error: a defect of ours, or of the machine.
    WorkerFailed {
        /// Which.
        worker: usize,
        /// Why.
        reason: String,
    },
}

/// Called on a worker's thread for every [`Notice`]: it must be quick.
pub type Notify = Arc<dyn Fn(Notice) + Send + Sync>;

/// Finds the addresses of a host with this port. Called on a thread of its own at every attempt to
/// connect, so it may take its time, and what it says may change.
pub type Resolve = Arc<dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync>;

/// Why the workers could not be started.
#[derive(Debug)]
pub enum StartError {
    /// An address cannot be bound.
    Listen {
        /// The address.
        address: Address,
        /// The system's reason.
        error: io::Error,
    },
    /// The kernel does not give what each worker needs.
    Kernel {
        /// The system call.
        call: &'static str,
        /// The system's reason.
        error: io::Error,
    },
    /// The thread of a worker cannot be started.
    Thread {
        /// How many threads were asked for.
        workers: usize,
        /// How many of them run.
        started: usize,
        /// The system's reason.
        error: io::Error,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Listen { address, error } => {
                write!(f, "cannot listen on {address}: {error}")
            }
            StartError::Kernel { call, error } => {
                write!(f, "the system call {call} failed: {error}")
            }
            StartError::Thread {
                workers,
                started,
                error,
            } => write!(
                f,
                "{started} of {workers} worker threads could be started: {error}"
            ),
        }
    }
}

impl std::error::Error for StartError {}

/// For errors of one system call.
pub(crate) fn of_call<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> StartError {
    move |error| StartError::Kernel {
        call,
        error: error.into(),
    }
}

/// Running workers.
pub struct Running {
    addresses: Vec<Address>,
    /// Removed when this is dropped.
    files: Vec<SocketFile>,
    workers: Vec<(Arc<Mailbox>, JoinHandle<usize>)>,
    shared: Arc<Shared>,
}

/// Binds the listeners and starts the workers. Host names are the system's.
///
/// # Errors
/// When an address cannot be bound (the message names it), or a thread cannot be started.
pub fn start(setup: Setup, notify: Notify) -> Result<Running, StartError> {
    let by_the_system = |host: &str, port| (host, port).to_socket_addrs().map(Iterator::collect);
    start_with(setup, notify, Arc::new(by_the_system))
}

/// The same where somebody else knows the addresses of hosts.
///
/// # Errors
/// As [`start`].
pub fn start_with(setup: Setup, notify: Notify, resolve: Resolve) -> Result<Running, StartError> {
    allocator::set_up();
    let count = setup.workers.max(1);
    let (mut addresses, mut files) = (Vec::new(), Vec::new());
    let mut listeners: Vec<Vec<Listener>> = (0..count).map(|_| Vec::new()).collect();
    for (address, pool) in &setup.listeners {
        let bound = listen::bind(address, count, setup.socket_access).map_err(|error| {
            StartError::Listen {
                address: address.clone(),
                error,
            }
        })?;
        addresses.push(bound.address);
        files.extend(bound.file);
        let path = match address {
            Address::Tcp { .. } => None,
            Address::Unix(path) => Some(Arc::from(path.to_string_lossy())),
        };
        for (worker, socket) in listeners.iter_mut().zip(bound.sockets) {
            worker.push(Listener {
                socket,
                pool: *pool,
                path: path.clone(),
            });
        }
    }
    let tcp_port = addresses
        .iter()
        .find_map(|address| match address {
            Address::Tcp { port, .. } => Some(*port),
            Address::Unix(_) => None,
        })
        .unwrap_or(0);
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let mailboxes = (0..count)
        .map(|_| Mailbox::new().map(Arc::new))
        .collect::<io::Result<Vec<_>>>()
        .map_err(of_call("eventfd2"))?;
    let shared = Arc::new(Shared {
        started: Instant::now(),
        sessions: AtomicUsize::new(0),
        look_ups: Default::default(),
        resolve,
        reports: (0..count).map(|_| Default::default()).collect(),
        mailboxes,
        directory: Arc::default(),
        notify,
    });
    // All of them are made before one runs: until then, an error leaves nothing behind.
    let mut made = Vec::new();
    for (index, listeners) in listeners.into_iter().enumerate() {
        let mailbox = shared.mailboxes[index].clone();
        let id = WorkerId {
            index,
            count,
            seed: (now.as_nanos() as u64).wrapping_mul(index as u64 * 2 + 1),
            process_id: std::process::id(),
            tcp_port,
            started_at: now.as_secs(),
        };
        let worker = Worker::new(
            id,
            setup.settings.clone(),
            listeners,
            mailbox.clone(),
            shared.clone(),
        )?;
        made.push((mailbox, worker));
    }
    let mut workers: Vec<(Arc<Mailbox>, JoinHandle<usize>)> = Vec::new();
    for (index, (mailbox, worker)) in made.into_iter().enumerate() {
        let thread = std::thread::Builder::new().name(format!("worker-{index}"));
        match thread.spawn(move || worker.run()) {
            Ok(thread) => workers.push((mailbox, thread)),
            Err(error) => {
                let started = workers.len();
                for (mailbox, thread) in workers {
                    mailbox.send(Order::Stop);
                    let _ = thread.join();
                }
                return Err(StartError::Thread {
                    workers: count,
                    started,
                    error,
                });
            }
        }
    }
    Ok(Running {
        addresses,
        files,
        workers,
        shared,
    })
}

/// Tells the workers new passwords.
#[derive(Clone)]
pub struct Passwords(Arc<Shared>);

impl Passwords {
    /// A source has this password now. Links that are up stay.
    pub fn tell(&self, source: PasswordSource, password: &str) {
        let password = password.into();
        let new = NewPassword { source, password };
        for mailbox in &self.0.mailboxes {
            mailbox.send(Order::Password(new.clone()));
        }
    }
}

impl Running {
    /// The addresses in the order of [`Setup::listeners`], with the ports the kernel chose.
    pub fn addresses(&self) -> Vec<Address> {
        self.addresses.clone()
    }

    /// The counters of each worker, as of a moment ago.
    pub fn counters(&self) -> Vec<Counters> {
        self.shared
            .reports
            .iter()
            .map(worker::read_report)
            .collect()
    }

    /// By which new passwords reach the workers, as long as they run.
    pub fn passwords(&self) -> Passwords {
        Passwords(self.shared.clone())
    }

    /// Stops accepting, lets every request that has arrived be answered, closes. Returns at once;
    /// see [`Running::join`]. A session that is not read because of a bound loses what it sent
    /// beyond it.
    pub fn drain(&self) {
        for (mailbox, _) in &self.workers {
            mailbox.send(Order::Drain);
        }
    }

    /// Waits until every worker has ended: after [`Running::drain`], for `limit` at the most, then
    /// what is left is cut. Returns the number of sessions that were cut.
    pub fn join(self, limit: Duration) -> usize {
        let end = Instant::now() + limit;
        while Instant::now() < end && self.workers.iter().any(|(_, thread)| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        for (mailbox, _) in &self.workers {
            mailbox.send(Order::Stop);
        }
        drop(self.files);
        self.workers
            .into_iter()
            .map(|(_, thread)| thread.join().unwrap_or(0))
            .sum()
    }
}
