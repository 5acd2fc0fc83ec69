//! The worker loop: sockets, epoll, time.
//!
//! [`start`] starts one thread per worker. Each worker has its own engine, a listening socket on
//! every address, and its own sessions and links. Workers share the count of sessions, their
//! reports, the look-ups of host names and the subscriber counts.

mod allocator;
mod byte_stream;
mod callers;
mod child;
mod errors_by_name;
mod forks;
mod handshakes;
mod helm;
mod hosted;
mod listen;
mod look_ups;
mod mailbox;
mod refusals;
mod reload;
mod round_robin;
mod sockets;
pub mod tls;
mod usage;
mod worker;

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use respool_engine::settings::{Address, PasswordSource, Settings};
use respool_engine::{
    Counters, LatencyReport, NoPlaceLeft, PoolPlaces, Unready, WorkerId, WorkerReport,
};

pub use callers::{CallerEnd, CallerSession, CallerSessions, EndReason};
pub use child::spawn_tied;
pub use errors_by_name::ErrorsByName;
pub use hosted::{HostedTurn, HostedWorker};
pub use listen::{ControlFile, check_socket_directory, check_socket_path, control_socket};
pub use reload::{Applied, PreparedReload, Reload, Reloader, check_addresses};

use crate::callers::CallerQueue;
use crate::listen::{Listener, SocketFile};
use crate::mailbox::{Mailbox, NewPassword, WorkerOrder};
use crate::reload::ListeningAddresses;
use crate::tls::{ListenerTls, ServerTls};
use crate::worker::{SharedState, WorkerLoop};

/// The input of [`start`].
#[derive(Clone, Debug)]
pub struct Setup {
    /// Addresses to listen on.
    pub listeners: Vec<ListenAddress>,
    /// TLS of the servers of each pool, by the index of the pool in [`Settings::pools`]. `None`, or
    /// no item: plain.
    pub pool_tls: Vec<Option<ServerTls>>,
    /// Mode, owner and group of the listeners in the file system.
    pub socket_access: SocketAccess,
    /// Number of worker threads, at least 1.
    pub workers: usize,
    /// Settings of all workers.
    pub settings: Arc<Settings>,
    /// Whether workers report on their servers, for [`Reports`].
    pub reports_servers: bool,
    /// Whether workers have sessions of callers in this process, for [`Running::callers`].
    pub serves_callers: bool,
}

/// An address to listen on.
#[derive(Clone, Debug)]
pub struct ListenAddress {
    /// The address.
    pub address: Address,
    /// The index of the pool of its sessions, in [`Settings::pools`].
    pub pool: usize,
    /// TLS of its sessions; `None`: plain.
    pub tls: Option<ListenerTls>,
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
    /// A server refuses the configured login, which it accepted before. Each worker sends it.
    LoginWithdrawn {
        /// Index of the worker that noticed it.
        worker: usize,
        /// The server's address.
        server: String,
        /// Name of the server's pool.
        pool: String,
        /// The server's error.
        reason: String,
    },
    /// A server accepts the configured login again. Each worker sends it.
    LoginAccepted {
        /// Index of the worker that noticed it.
        worker: usize,
        /// The server's address.
        server: String,
        /// Name of the server's pool.
        pool: String,
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
        /// The old names that the client used, each with its new name. Empty if there are none.
        old_names: String,
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

/// Handles a [`Notice`]. A worker's thread calls it, or that of a caller that takes a turn. So it
/// must be quick, and must not wait for a call.
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
    /// An address cannot be bound because respool itself listens on the same port.
    ListensAlready {
        /// The address.
        address: Address,
        /// The address on which respool listens.
        own: Address,
    },
    /// Pools have had too many servers since the start.
    Pools(NoPlaceLeft),
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
            StartError::ListensAlready { address, own } => write!(
                f,
                "cannot listen on {address}: respool itself listens on {own}"
            ),
            StartError::Pools(error) => error.fmt(f),
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

/// Locks a mutex. A thread that panicked while it held the lock is no reason to end another one.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maps the errors of one system call to [`StartError::Kernel`].
pub(crate) fn kernel_error<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> StartError {
    move |error| StartError::Kernel {
        call,
        error: error.into(),
    }
}

/// Running workers.
pub struct Running {
    /// Socket files of the listeners; removed on drop.
    files: OpenFiles,
    /// The threads of the workers. A hosted worker has none.
    workers: Vec<JoinHandle<usize>>,
    shared: Arc<SharedState>,
}

/// A listening socket that no worker serves. The caller accepts its clients.
#[derive(Debug)]
pub struct OwnListener {
    /// Its address, with the port that the kernel chose.
    pub address: Address,
    /// The socket; it does not block.
    pub socket: OwnedFd,
    /// Its file, which is removed on drop.
    _file: Option<SocketFile>,
}

impl OwnListener {
    /// Binds a socket to an address.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub fn bind(address: &Address, access: SocketAccess) -> Result<OwnListener, StartError> {
        let error = |error| StartError::Listen {
            address: address.clone(),
            error,
        };
        let mut bound = listen::bind(address, 1, access).map_err(error)?;
        let socket = bound.sockets.pop();
        let missing = || error(io::Error::other("there is no socket"));
        Ok(OwnListener {
            address: bound.address,
            socket: socket.ok_or_else(missing)?,
            _file: bound.file,
        })
    }
}

/// Removes the socket files of all listeners on drop.
struct OpenFiles(Arc<SharedState>);

impl Drop for OpenFiles {
    fn drop(&mut self) {
        lock(&self.0.listening).close();
    }
}

/// Binds the listeners and starts the workers. The system's resolver looks up host names.
///
/// # Errors
/// One for each address that cannot be bound, or one if a worker cannot be set up.
pub fn start(setup: Setup, notify: Notify) -> Result<Running, Vec<StartError>> {
    start_with(setup, notify, system_resolver())
}

fn system_resolver() -> Resolve {
    Arc::new(|host: &str, port| (host, port).to_socket_addrs().map(Iterator::collect))
}

/// As [`start`], with another resolver.
///
/// # Errors
/// As [`start`].
pub fn start_with(
    setup: Setup,
    notify: Notify,
    resolve: Resolve,
) -> Result<Running, Vec<StartError>> {
    allocator::set_up();
    let mut listening = ListeningAddresses::new(setup.socket_access);
    let listeners = listening.open_all(&setup.listeners, setup.workers.max(1))?;
    start_workers(setup, (listening, listeners), (notify, resolve)).map_err(|error| vec![error])
}

/// Makes one worker whose turns the caller takes: see [`HostedWorker`]. It has no listeners.
///
/// # Errors
/// The system refuses a descriptor.
pub fn start_hosted(setup: Setup, notify: Notify) -> Result<(Running, HostedWorker), StartError> {
    allocator::set_up();
    let listening = ListeningAddresses::new(setup.socket_access);
    let listeners = vec![Vec::new()];
    let (shared, made) = make_workers(setup, (listening, listeners), (notify, system_resolver()))?;
    let running = Running {
        files: OpenFiles(shared.clone()),
        workers: Vec::new(),
        shared,
    };
    let worker = made.into_iter().next().expect("there is one worker");
    Ok((running, HostedWorker::new(worker)))
}

/// Starts the workers. `listeners`: those of each worker.
fn start_workers(
    setup: Setup,
    listeners: (ListeningAddresses, Vec<Vec<Listener>>),
    handlers: (Notify, Resolve),
) -> Result<Running, StartError> {
    // All workers are made before one runs, so an error up to here leaves no thread behind.
    let (shared, made) = make_workers(setup, listeners, handlers)?;
    let count = made.len();
    let mut workers: Vec<JoinHandle<usize>> = Vec::new();
    for (index, worker) in made.into_iter().enumerate() {
        let thread = std::thread::Builder::new().name(format!("worker-{index}"));
        match thread.spawn(move || worker.run()) {
            Ok(thread) => workers.push(thread),
            Err(error) => {
                let started = workers.len();
                for (mailbox, thread) in shared.mailboxes.iter().zip(workers) {
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
        files: OpenFiles(shared.clone()),
        workers,
        shared,
    })
}

/// Makes the workers. `listeners`: those of each worker.
fn make_workers(
    setup: Setup,
    (listening, listeners): (ListeningAddresses, Vec<Vec<Listener>>),
    (notify, resolve): (Notify, Resolve),
) -> Result<(Arc<SharedState>, Vec<WorkerLoop>), StartError> {
    let count = listeners.len();
    let ports = listening.ports();
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let mailboxes = (0..count)
        .map(|_| Mailbox::new().map(Arc::new))
        .collect::<io::Result<Vec<_>>>()
        .map_err(kernel_error("eventfd2"))?;
    let reporting = if setup.reports_servers { count } else { 0 };
    let pools = PoolPlaces::new(&setup.settings.pools);
    let shared = Arc::new(SharedState {
        started: Instant::now(),
        listening: Mutex::new(listening),
        pools: Mutex::new(pools),
        sessions: AtomicUsize::new(0),
        look_ups: Default::default(),
        resolve,
        reports: (0..count).map(|_| Default::default()).collect(),
        server_reports: (0..reporting).map(|_| Default::default()).collect(),
        latencies: (0..reporting).map(|_| Default::default()).collect(),
        callers: match setup.serves_callers {
            true => mailboxes
                .iter()
                .map(|mailbox| Arc::new(CallerQueue::new(mailbox.clone())))
                .collect(),
            false => Vec::new(),
        },
        mailboxes,
        directory: Arc::default(),
        notify,
    });
    let make = |(index, listeners)| {
        let id = WorkerId {
            index,
            count,
            seed: (now.as_nanos() as u64).wrapping_mul(index as u64 * 2 + 1),
            process_id: std::process::id(),
            ports: ports.clone(),
            started_at: now.as_secs(),
        };
        WorkerLoop::new(
            id,
            setup.settings.clone(),
            listeners,
            setup.pool_tls.clone(),
            shared.mailboxes[index].clone(),
            shared.clone(),
        )
    };
    let made = listeners.into_iter().enumerate().map(make);
    let made = made.collect::<Result<Vec<_>, _>>()?;
    Ok((shared, made))
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

    /// Has links that are up log in with the current password of a source.
    pub fn renew_logins(&self, source: PasswordSource) {
        for mailbox in &self.0.mailboxes {
            mailbox.send(WorkerOrder::RenewLogins(source));
        }
    }
}

/// Sends new TLS settings to the workers.
#[derive(Clone)]
pub struct TlsUpdates(Arc<SharedState>);

impl TlsUpdates {
    /// Replaces the settings of all listeners with TLS. Sessions and handshakes that have begun
    /// keep the old ones. A listener without TLS stays plain.
    pub fn replace_listeners(&self, tls: &ListenerTls) {
        for mailbox in &self.0.mailboxes {
            mailbox.send(WorkerOrder::ListenerTls(tls.clone()));
        }
    }

    /// Replaces the settings of the servers of the pool with this index in the configuration. Links
    /// keep the old ones. A pool without TLS stays plain.
    pub fn replace_pool(&self, pool: usize, tls: &ServerTls) {
        let place = lock(&self.0.pools).of_config().get(pool).copied();
        let Some(pool) = place.map(usize::from) else {
            return;
        };
        for mailbox in &self.0.mailboxes {
            let tls = tls.clone();
            mailbox.send(WorkerOrder::PoolTls { pool, tls });
        }
    }
}

/// Reads the last reports of the workers, as long as it lives.
#[derive(Clone)]
pub struct Reports(Arc<SharedState>);

impl Reports {
    /// The counters of each worker.
    pub fn counters(&self) -> Vec<Counters> {
        let reports = self.0.reports.iter();
        reports.map(worker::read_report).collect()
    }

    /// The names of the pools of the configuration, and each worker's report on its thread, these
    /// pools and their servers, at most half a second old. Without reports unless
    /// [`Setup::reports_servers`] asks for them.
    pub fn pools_and_workers(&self) -> (Vec<String>, Vec<WorkerReport>) {
        let pools = lock(&self.0.pools).clone();
        let reports = self.0.server_reports.iter().map(worker::read_report);
        let reports = reports.map(|report| of_config(report, &pools)).collect();
        let name = |place: &u16| pools.pools()[usize::from(*place)].name.clone();
        (pools.of_config().iter().map(name).collect(), reports)
    }

    /// The times of requests by command and the error replies, over all workers, at most a second
    /// old. Empty unless [`Setup::reports_servers`] asks for them.
    pub fn latency(&self) -> LatencyReport {
        let mut all = LatencyReport::default();
        for report in &self.0.latencies {
            all.add(&lock(report));
        }
        all
    }

    /// The error replies in a report, by the name of the pool, the command and the outcome. A pool
    /// has those of all pools that had its name. Those of a removed pool are left out until a pool
    /// has its name again, so a count never falls.
    pub fn errors_by_name(&self, report: &LatencyReport) -> ErrorsByName {
        errors_by_name::errors_by_name(report.errors(), &lock(&self.0.pools))
    }
}

/// A worker's report about the pools of the configuration, in its order. Servers of a pool that has
/// ended serve on for a while, and count for its successor. Those of a removed pool are left out.
fn of_config(mut report: WorkerReport, pools: &PoolPlaces) -> WorkerReport {
    let places = pools.of_config();
    let reasons = |place: &u16| {
        let mut place = Some(*place);
        // A report that is older than the reload lacks the new pool. Then the pool counts that the
        // new one has replaced.
        while let Some(known) = place {
            match report.pools.get(usize::from(known)) {
                Some(reasons) => return reasons.clone(),
                None => place = pools.predecessor(known),
            }
        }
        vec![Unready::NoServer {
            prefix: None,
            cause: String::new(),
        }]
    };
    report.pools = places.iter().map(reasons).collect();
    report.servers.retain_mut(|server| {
        let in_effect = pools.in_effect(server.pool as u16);
        let index = places.iter().position(|place| Some(*place) == in_effect);
        server.pool = index.unwrap_or(server.pool);
        index.is_some()
    });
    report
}

impl Running {
    /// The addresses with the ports that the kernel chose, at first in the order of
    /// [`Setup::listeners`].
    pub fn addresses(&self) -> Vec<Address> {
        lock(&self.shared.listening).addresses()
    }

    /// The counters of each worker, from its last report.
    pub fn counters(&self) -> Vec<Counters> {
        self.reports().counters()
    }

    /// The handle that reads the reports of the workers.
    pub fn reports(&self) -> Reports {
        Reports(self.shared.clone())
    }

    /// The handle that sends new passwords to the workers.
    pub fn passwords(&self) -> Passwords {
        Passwords(self.shared.clone())
    }

    /// The handle that sends new TLS settings to the workers.
    pub fn tls(&self) -> TlsUpdates {
        TlsUpdates(self.shared.clone())
    }

    /// The handle that changes the configuration of the workers.
    pub fn reloader(&self) -> Reloader {
        Reloader(self.shared.clone())
    }

    /// The handle that opens sessions for callers in this process. `None` without
    /// [`Setup::serves_callers`].
    pub fn callers(&self) -> Option<CallerSessions> {
        let queues = self.shared.callers.clone();
        (!queues.is_empty()).then_some(CallerSessions(queues))
    }

    /// Stops accepting, answers every request that has arrived, and closes the sessions. Returns at
    /// once; see [`Running::join`]. A session that a bound keeps from being read loses its unread
    /// requests.
    pub fn drain(&self) {
        for mailbox in &self.shared.mailboxes {
            mailbox.send(WorkerOrder::Drain);
        }
    }

    /// Waits until every worker has ended, usually after [`Running::drain`]. After `limit` it
    /// closes the sessions that are left. Returns the number of these sessions.
    pub fn join(self, limit: Duration) -> usize {
        // A task that a worker wakes may drop the last owner: a worker does not wait for itself.
        let own = std::thread::current().id();
        let workers = self.workers.into_iter();
        let others: Vec<_> = workers
            .filter(|thread| thread.thread().id() != own)
            .collect();
        let end = Instant::now() + limit;
        while Instant::now() < end && others.iter().any(|thread| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        for mailbox in &self.shared.mailboxes {
            mailbox.send(WorkerOrder::Stop);
        }
        drop(self.files);
        others
            .into_iter()
            .map(|thread| thread.join().unwrap_or(0))
            .sum()
    }
}
