//! The worker loop: sockets, epoll, time.
//!
//! [`start`] starts one thread per worker. Each worker has its own engine, a listening socket on
//! every address, and its own sessions and links. Workers share the count of sessions, their
//! reports, the look-ups of host names and the subscriber counts.

mod allocator;
mod byte_stream;
mod child;
mod listen;
mod look_ups;
mod mailbox;
mod refusals;
mod round_robin;
mod sockets;
mod usage;
mod worker;

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use respool_engine::settings::{Address, PasswordSource, Settings};
use respool_engine::{Counters, WorkerId};

pub use child::spawn_tied;

use crate::listen::{Listener, SocketFile};
use crate::mailbox::{Mailbox, NewPassword, WorkerOrder};
use crate::worker::{SharedState, WorkerLoop};

/// The input of [`start`].
#[derive(Clone, Debug)]
pub struct Setup {
    /// Addresses to listen on, each with the index of its pool in [`Settings::pools`].
    pub listeners: Vec<(Address, usize)>,
    /// Mode, owner and group of the listeners in the file system.
    pub socket_access: SocketAccess,
    /// Number of worker threads, at least 1.
    pub workers: usize,
    /// Settings of all workers.
    pub settings: Arc<Settings>,
}

/// Mode, owner and group of listening sockets in the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketAccess {
    /// Permission bits; `None`: the umask of the process decides.
    pub mode: Option<u32>,
    /// User id; `None`: the user of the process.
    pub owner: Option<u32>,
    /// Group id; `None`: the group of the directory or of the process.
    pub group: Option<u32>,
}

/// An event for the operator, sent once.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Notice {
    /// A link is up.
    LinkUp {
        /// Index of the worker.
        worker: usize,
        /// The server's address.
        server: String,
        /// Name of the server's pool.
        pool: String,
        /// Product and version of the server, from its HELLO reply.
        version: String,
    },
    /// A link was lost, or an attempt to connect failed.
    LinkDown {
        /// Index of the worker.
        worker: usize,
        /// The server's address.
        server: String,
        /// Name of the server's pool.
        pool: String,
        /// Cause of the loss or failure.
        reason: String,
    },
    /// The worker closed a session because it broke a rule or a bound.
    SessionClosed {
        /// Index of the worker.
        worker: usize,
        /// The client's address.
        peer: String,
        /// The rule or bound.
        reason: String,
    },
    /// The owners in a pool changed, or the worker cannot learn them.
    Topology {
        /// Index of the worker that noticed it.
        worker: usize,
        /// The pool's name.
        pool: String,
        /// Description of the change or failure.
        text: String,
    },
    /// A bound is reached, and requests wait or are refused. Sent once a minute for each bound.
    BoundReached {
        /// Index of the worker.
        worker: usize,
        /// The option that sets the bound.
        name: &'static str,
        /// Effect on the requests.
        effect: String,
    },
    /// Logins of clients were refused. Sent once a minute for each address.
    LoginsRefused {
        /// The address; for IPv6 the network of the address.
        from: String,
        /// Number of refusals since the last notice for this address.
        count: u64,
    },
    /// A server refused a password. Its source may hold a newer one. Sent for each refusal.
    PasswordRefused {
        /// Source of the password.
        source: PasswordSource,
    },
    /// A client set options of respool, for all workers.
    OptionsSet {
        /// The client's address.
        peer: String,
        /// Name of the pool that the options apply to.
        pool: String,
        /// The client's listener. Options of a listener apply to this one.
        listener: String,
        /// The options with their values.
        options: String,
    },
    /// Clients could not be accepted. A worker sends it at most once a second for each reason.
    AcceptFailed {
        /// Index of the worker that refused the clients.
        worker: usize,
        /// The reason: `sessions-max`, `file descriptors`, or a call that failed.
        reason: &'static str,
        /// The newest of the clients, and the remedy.
        detail: String,
        /// Number of refused clients since the last such notice, at least 1.
        clients: u64,
    },
    /// A worker ended because of an error: a defect of respool or of the machine.
    WorkerFailed {
        /// Index of the worker.
        worker: usize,
        /// The error.
        reason: String,
    },
}

/// Handles a [`Notice`]. A worker's thread calls it, so it must be quick.
pub type Notify = Arc<dyn Fn(Notice) + Send + Sync>;

/// Finds the addresses of a host, with this port. It runs on a resolver thread at every attempt to
/// connect, so it may block. Its result may differ from call to call.
pub type Resolve = Arc<dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync>;

/// The reason why [`start`] failed.
#[derive(Debug)]
pub enum StartError {
    /// An address cannot be bound.
    Listen {
        /// The address.
        address: Address,
        /// The system's reason.
        error: io::Error,
    },
    /// A system call failed while a worker was set up.
    Kernel {
        /// The system call.
        call: &'static str,
        /// The system's reason.
        error: io::Error,
    },
    /// The thread of a worker cannot be started.
    Thread {
        /// Number of threads to start.
        workers: usize,
        /// Number of threads that started.
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

/// Maps the errors of one system call to [`StartError::Kernel`].
pub(crate) fn kernel_error<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> StartError {
    move |error| StartError::Kernel {
        call,
        error: error.into(),
    }
}

/// Running workers.
pub struct Running {
    addresses: Vec<Address>,
    /// Socket files of the listeners; removed on drop.
    files: Vec<SocketFile>,
    workers: Vec<(Arc<Mailbox>, JoinHandle<usize>)>,
    shared: Arc<SharedState>,
}

/// Binds the listeners and starts the workers. The system's resolver looks up host names.
///
/// # Errors
/// When an address cannot be bound (the message names it), or a thread cannot be started.
pub fn start(setup: Setup, notify: Notify) -> Result<Running, StartError> {
    let system_resolver = |host: &str, port| (host, port).to_socket_addrs().map(Iterator::collect);
    start_with(setup, notify, Arc::new(system_resolver))
}

/// As [`start`], with another resolver.
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
        .map_err(kernel_error("eventfd2"))?;
    let shared = Arc::new(SharedState {
        started: Instant::now(),
        sessions: AtomicUsize::new(0),
        look_ups: Default::default(),
        resolve,
        reports: (0..count).map(|_| Default::default()).collect(),
        mailboxes,
        directory: Arc::default(),
        notify,
    });
    // All workers are made before one runs, so an error up to here leaves no thread behind.
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
        let worker = WorkerLoop::new(
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
                    mailbox.send(WorkerOrder::Stop);
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

/// Sends new passwords to the workers.
#[derive(Clone)]
pub struct Passwords(Arc<SharedState>);

impl Passwords {
    /// Replaces the password of a source. Links that are up stay.
    pub fn tell(&self, source: PasswordSource, password: &str) {
        let password = password.into();
        let new = NewPassword { source, password };
        for mailbox in &self.0.mailboxes {
            mailbox.send(WorkerOrder::Password(new.clone()));
        }
    }
}

impl Running {
    /// The addresses in the order of [`Setup::listeners`], with the ports that the kernel chose.
    pub fn addresses(&self) -> Vec<Address> {
        self.addresses.clone()
    }

    /// The counters of each worker, from its last report.
    pub fn counters(&self) -> Vec<Counters> {
        self.shared
            .reports
            .iter()
            .map(worker::read_report)
            .collect()
    }

    /// The handle that sends new passwords to the workers.
    pub fn passwords(&self) -> Passwords {
        Passwords(self.shared.clone())
    }

    /// Stops accepting, answers every request that has arrived, and closes the sessions. Returns at
    /// once; see [`Running::join`]. A session that a bound keeps from being read loses its unread
    /// requests.
    pub fn drain(&self) {
        for (mailbox, _) in &self.workers {
            mailbox.send(WorkerOrder::Drain);
        }
    }

    /// Waits until every worker has ended, usually after [`Running::drain`]. After `limit` it
    /// closes the sessions that are left. Returns the number of these sessions.
    pub fn join(self, limit: Duration) -> usize {
        let end = Instant::now() + limit;
        while Instant::now() < end && self.workers.iter().any(|(_, thread)| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        for (mailbox, _) in &self.workers {
            mailbox.send(WorkerOrder::Stop);
        }
        drop(self.files);
        self.workers
            .into_iter()
            .map(|(_, thread)| thread.join().unwrap_or(0))
            .sum()
    }
}
