//! The life of the process: start, wait, drain.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use respool_driver::{Notice, Notify, Running, Setup, StartError};
use respool_engine::settings::Address;
use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2,
    SIGVTALRM, SIGXFSZ,
};
use signal_hook::iterator::Signals;
use tracing::field::display;
use tracing::{error, info, warn};

use crate::address::BackendUrl;
use crate::config::{Backend, Config};
use crate::descriptors::{self, Granted, Need, Room};
use crate::line_rates::{Kind, LineRates};
use crate::logs::{Logs, say_left_out};
use crate::passwords::Rereader;
use crate::spawn::SpawnedServer;

/// How long a repeated signal is taken for the same wish.
const SAME_WISH: Duration = Duration::from_millis(500);

/// Signals that would end the process by default, and here do not.
const NOTED: [(i32, &str); 7] = [
    (SIGHUP, "SIGHUP"),
    (SIGUSR1, "SIGUSR1"),
    (SIGUSR2, "SIGUSR2"),
    (SIGALRM, "SIGALRM"),
    (SIGVTALRM, "SIGVTALRM"),
    (SIGPROF, "SIGPROF"),
    (SIGIO, "SIGIO"),
];

/// Signals that the main thread waits for. SIGPIPE is not among them: the runtime ignores it from
/// the start, so that a write to a closed socket is an error. SIGXFSZ is among them, so that a log
/// file that may not grow is an error, too.
fn waited_for() -> impl Iterator<Item = i32> {
    let noted = NOTED.iter().map(|(signal, _)| *signal);
    [SIGTERM, SIGINT, SIGQUIT, SIGCHLD, SIGXFSZ]
        .into_iter()
        .chain(noted)
}

fn is_stop(signal: i32) -> bool {
    matches!(signal, SIGTERM | SIGINT | SIGQUIT)
}

/// A signal of [`NOTED`]. SIGHUP has the password files read again; others have no effect. The log
/// says so, at most as often as `rates` admits.
fn note(signal: i32, rates: &mut LineRates, passwords: &Rereader) {
    let Some((_, name)) = NOTED.iter().find(|(noted, _)| *noted == signal) else {
        return;
    };
    let now = Instant::now();
    while let Some(left_out) = rates.poll_left_out(now) {
        say_left_out(&left_out);
    }
    let is_told = rates.admits(Kind::Signal, name, now);
    if signal == SIGHUP && passwords.has_files() {
        return passwords.ask_all(is_told);
    }
    if !is_told {
        return;
    }
    if signal == SIGHUP {
        warn!(
            signal = name,
            "nothing was reloaded: there is no password file, and all other options are read at \
             the start only; to change them, start respool anew and stop this process by SIGTERM"
        );
    } else {
        warn!(
            signal = name,
            "the signal has no effect; SIGTERM stops respool"
        );
    }
}

/// Runs until a signal ends it, or what it depends on has ended. Called on the main thread, which
/// then does nothing but wait for signals.
pub(crate) fn serve(config: &Config) -> ExitCode {
    let logs = match Logs::start(config.log_format, config.log_level) {
        Ok(logs) => logs,
        Err(error) => {
            let remedy = thread_remedy(&error);
            eprintln!("error: cannot start the thread that writes the log: {error}{remedy}");
            return ExitCode::FAILURE;
        }
    };
    for warning in &config.warnings {
        warn!("{warning}");
    }
    let code = conclude(run(config, &logs));
    logs.finish();
    code
}

/// Says how it ended.
fn conclude(ended: Result<Ending, String>) -> ExitCode {
    match ended {
        Ok(Ending::Clean) => {
            info!("stopped");
            ExitCode::SUCCESS
        }
        Ok(Ending::Cut(sessions)) => {
            error!(
                sessions,
                "stopped; sessions that were not done in time were cut: see drain-timeout-ms"
            );
            ExitCode::FAILURE
        }
        Ok(Ending::AtOnce) => {
            error!("stopped at once by a second signal: every session was cut");
            ExitCode::FAILURE
        }
        Ok(Ending::ServerGone) => {
            error!(
                "stopped: the server that was started by --spawn has ended, and what it held with \
                 it"
            );
            ExitCode::FAILURE
        }
        Ok(Ending::WorkerFailed) => {
            error!("stopped: a worker has failed, and some clients would have been left alone");
            ExitCode::FAILURE
        }
        Err(reason) => {
            error!("cannot start: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// How it ended.
enum Ending {
    /// Everybody was answered.
    Clean,
    /// So many sessions were not done in time.
    Cut(usize),
    /// A second signal came.
    AtOnce,
    /// The server of our own ended before us.
    ServerGone,
    /// A worker ended by itself.
    WorkerFailed,
}

/// Why a wait ended.
enum Event {
    /// SIGTERM, SIGINT or SIGQUIT.
    Stop(&'static str),
    /// The server of our own has ended.
    ServerEnded,
    /// A worker has ended by itself.
    WorkerFailed,
}

fn run(config: &Config, logs: &Logs) -> Result<Ending, String> {
    // First of all, so that a signal that comes while we start is kept.
    let mut signals = Signals::new(waited_for()).map_err(|error| {
        let remedy = kernel_remedy(&error);
        format!("cannot wait for signals: {error}{remedy}")
    })?;
    let mut rates = LineRates::default();
    let passwords = Rereader::new(&config.password_files);
    let (room, fewer) = room(config)?;

    let (mut servers, mut spawned) = (Vec::with_capacity(config.pools.len()), None);
    for pool in &config.pools {
        servers.push(match &pool.backend {
            Backend::Server(url) => (**url).clone(),
            Backend::Spawn(plan) => {
                let mut asked = || {
                    signals
                        .pending()
                        .inspect(|signal| note(*signal, &mut rates, &passwords))
                        .any(is_stop)
                };
                let Some(server) = SpawnedServer::start(plan, &mut asked)? else {
                    return Ok(Ending::Clean);
                };
                info!(program = %server.program().display(), pid = server.pid(), "server started");
                spawned.insert(server).backend()
            }
        });
    }
    warn_if_open(config);

    let setup = Setup {
        listeners: config
            .listeners()
            .map(|(address, pool)| (address.clone(), pool))
            .collect(),
        socket_access: config.socket_access,
        workers: config.workers,
        settings: Arc::new(config.settings(&servers, room)),
    };
    let failed = Arc::new(AtomicBool::new(false));
    let notify = watching(logs.notify(), Arc::clone(&failed), passwords.clone());
    let running = respool_driver::start(setup, notify).map_err(|error| explain(&error))?;
    let reads = passwords.start(&config.password_files, running.passwords());
    reads.map_err(|error| {
        let remedy = thread_remedy(&error);
        format!("cannot start the thread that reads password files: {error}{remedy}")
    })?;
    // Not before: it would stand in front of an error that has another cause.
    if let Some(text) = fewer {
        warn!("{text}");
    }
    log_ready(config, &running, &servers, room.sessions_max);

    let event = wait(
        &mut signals,
        &mut spawned,
        &failed,
        (&mut rates, &passwords),
    );
    // Whatever ends us, answers may still be on their way, and every request that can have none
    // gets an error that says what became of it.
    running.drain();
    if let Event::Stop(signal) = event {
        info!(
            signal,
            "stopping: requests that have arrived are answered first"
        );
    }
    let asked = match event {
        Event::Stop(signal) => signal,
        Event::ServerEnded | Event::WorkerFailed => "",
    };
    let drained = drain(
        running,
        config,
        asked,
        (&mut signals, &mut rates, &passwords),
        &mut spawned,
    );
    rates.take_all().iter().for_each(say_left_out);
    let ending = match (drained, event) {
        (Ending::AtOnce, _) => Ending::AtOnce,
        _ if failed.load(Ordering::Acquire) => Ending::WorkerFailed,
        (_, Event::ServerEnded) => Ending::ServerGone,
        (drained, _) => drained,
    };
    if matches!(ending, Ending::AtOnce)
        && let Some(server) = &mut spawned
    {
        server.kill();
    }
    Ok(ending)
}

/// We serve: where, and what is behind. Of pools with names, each in the words of `--pool`.
fn log_ready(config: &Config, running: &Running, servers: &[BackendUrl], sessions_max: u32) {
    let (mut listen, mut pools) = (Vec::new(), Vec::new());
    let mut addresses = running.addresses().into_iter();
    for (pool, server) in config.pools.iter().zip(servers) {
        let its = addresses.by_ref().take(pool.listen.len());
        let its: Vec<_> = its.map(|address| address.to_string()).collect();
        let its = its.join(",");
        if let Some(name) = &pool.name {
            let mut text = format!("{name}={its}={server}");
            for part in &pool.prefixes {
                text.push_str(&format!(",{}={}", part.prefix, part.url));
            }
            pools.push(text);
        }
        listen.push(its);
    }
    let backend = match servers {
        [server] if pools.is_empty() => Some(display(server.to_string())),
        _ => None,
    };
    info!(
        version = env!("CARGO_PKG_VERSION"),
        listen = %listen.join(","),
        backend,
        pools = Some(pools).filter(|pools| !pools.is_empty()).map(|pools| display(pools.join(" "))),
        workers = config.workers,
        sessions_max,
        pid = std::process::id(),
        "ready"
    );
}

/// A notice of a worker that has failed also wakes the main thread, by the signal at which it looks
/// whether anything that it depends on has ended.
///
/// A password that a server refuses is no line of the log: the link that is down is one.
fn watching(notify: Notify, failed: Arc<AtomicBool>, passwords: Rereader) -> Notify {
    Arc::new(move |notice| {
        if let Notice::PasswordRefused { source } = notice {
            return passwords.ask(source);
        }
        let is_failure = matches!(notice, Notice::WorkerFailed { .. });
        notify(notice);
        if is_failure {
            failed.store(true, Ordering::Release);
            signal_hook::low_level::raise(SIGCHLD).expect("a signal that exists");
        }
    })
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        SIGINT => "SIGINT",
        SIGQUIT => "SIGQUIT",
        _ => "SIGTERM",
    }
}

/// Blocks until something happens that ends us.
fn wait(
    signals: &mut Signals,
    spawned: &mut Option<SpawnedServer>,
    failed: &AtomicBool,
    (rates, passwords): (&mut LineRates, &Rereader),
) -> Event {
    for signal in signals.forever() {
        if is_stop(signal) {
            return Event::Stop(signal_name(signal));
        }
        note(signal, rates, passwords);
        if failed.load(Ordering::Acquire) {
            return Event::WorkerFailed;
        }
        if server_ended(spawned) {
            return Event::ServerEnded;
        }
    }
    unreachable!("nobody closes the signals before the drain")
}

/// Waits until what has arrived is answered, for as long as the configuration allows. The workers
/// are waited for on another thread, which closes `signals` when they have ended: so this one can
/// see a second signal.
fn drain(
    running: Running,
    config: &Config,
    asked: &str,
    (signals, rates, passwords): (&mut Signals, &mut LineRates, &Rereader),
    spawned: &mut Option<SpawnedServer>,
) -> Ending {
    let began = Instant::now();
    let (limit, closer) = (config.drain_timeout, signals.handle());
    let joiner = thread::Builder::new().name("drain".into()).spawn(move || {
        let cut = running.join(limit);
        closer.close();
        cut
    });
    let joiner = match joiner {
        Ok(joiner) => joiner,
        Err(error) => {
            let remedy = thread_remedy(&error);
            error!("cannot start a thread to drain with: {error}{remedy}");
            return Ending::AtOnce;
        }
    };
    for signal in signals.forever() {
        match signal {
            SIGCHLD => {
                server_ended(spawned);
            }
            _ if !is_stop(signal) => note(signal, rates, passwords),
            // `timeout`, and some supervisors, signal the process and then its group: the same wish
            // twice.
            _ if signal_name(signal) == asked && began.elapsed() < SAME_WISH => {}
            _ => return Ending::AtOnce,
        }
    }
    match joiner.join().expect("a panic would have ended the process") {
        0 => Ending::Clean,
        sessions => Ending::Cut(sessions),
    }
}

/// Whether there was a server of our own that has ended; says so in the log.
fn server_ended(spawned: &mut Option<SpawnedServer>) -> bool {
    let Some(server) = spawned else { return false };
    let Some(status) = server.ended() else {
        return false;
    };
    let last_words = server.last_words();
    error!(pid = server.pid(), %status, last_words, "the server that we started has ended");
    // Dropped here: it removes the directory, and is not reported again.
    *spawned = None;
    true
}

/// What the descriptors are enough for, and what to warn of.
fn room(config: &Config) -> Result<(Room, Option<String>), String> {
    let limits = config.limits();
    let granted = descriptors::raise(Need {
        sessions_max: limits.sessions_max,
        workers: config.workers,
        links_max: limits.links_max,
        pinned_links_max: limits.pinned_links_max,
        servers: config.servers(),
        listeners: config.listeners().count(),
    });
    let all = Room {
        sessions_max: limits.sessions_max,
        pinned_links_max: limits.pinned_links_max,
    };
    match granted {
        Granted::Enough => Ok((all, None)),
        Granted::Fewer(room, text) => Ok((room, Some(text))),
        Granted::TooFew(text) => Err(text),
    }
}

/// As a server without a password does, we serve everybody who reaches us; but not silently.
fn warn_if_open(config: &Config) {
    let mut listeners = config.listeners().map(|(address, _)| address);
    let open = listeners.find(|address| match address {
        Address::Tcp { host, .. } => {
            !(host == "localhost" || host == "::1" || host.starts_with("127."))
        }
        Address::Unix(_) => false,
    });
    if let Some(address) = open
        && config.is_open()
    {
        warn!(
            listen = %address,
            "everybody who reaches this address may use the server: set a password, or listen on \
             127.0.0.1"
        );
    }
}

/// What failed, the system's reason, and what to do about it.
fn explain(failure: &StartError) -> String {
    let remedy = match failure {
        StartError::Listen { address, error } => listen_remedy(address, error),
        StartError::Kernel { error, .. } => kernel_remedy(error),
        StartError::Thread { error, .. } => match thread_remedy(error) {
            remedy if is_short_of_threads(error) => format!("{remedy}, or lower --threads"),
            remedy => remedy,
        },
    };
    format!("{failure}{remedy}")
}

fn listen_remedy(address: &Address, error: &io::Error) -> String {
    let remedy = match (error.kind(), address) {
        (io::ErrorKind::AddrInUse, _) => {
            "; stop the program that listens there, or choose another by --listen"
        }
        (io::ErrorKind::AddrNotAvailable, _) => "; --listen must name an address of this machine",
        (io::ErrorKind::PermissionDenied, Address::Tcp { port: 1..1024, .. }) => {
            "; choose a port above 1023, or give respool the capability CAP_NET_BIND_SERVICE \
             (AmbientCapabilities= of a systemd unit, --cap-add of a container)"
        }
        (io::ErrorKind::PermissionDenied, Address::Unix(_)) => {
            "; the user that respool runs as must be allowed to write the directory, and a socket \
             that is already there"
        }
        (io::ErrorKind::NotFound, Address::Unix(_)) => {
            "; make the directory first, or choose another by --listen"
        }
        (io::ErrorKind::AlreadyExists, Address::Unix(_)) => {
            "; respool replaces only sockets: remove the file, or choose another path by --listen"
        }
        (io::ErrorKind::ReadOnlyFilesystem, Address::Unix(_)) => {
            "; choose a directory that can be written by --listen"
        }
        // An error of the look-up has no number of the system.
        (_, Address::Tcp { host, .. })
            if error.raw_os_error().is_none() && host.parse::<std::net::IpAddr>().is_err() =>
        {
            "; is the name right? An IP address in --listen needs no look-up"
        }
        _ => return kernel_remedy(error),
    };
    remedy.into()
}

/// For an error that no option of ours causes.
fn kernel_remedy(error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported => {
            "; a seccomp filter, SELinux, AppArmor or the container's policy forbids it: allow it for \
             respool (SystemCallFilter= of a systemd unit, --security-opt of a container)"
        }
        io::ErrorKind::OutOfMemory => {
            "; memory is short: raise the limit (MemoryMax= of a systemd unit, --memory of a \
             container, ulimit -v), or lower --threads"
        }
        _ if is_short_of_descriptors(error) => {
            "; no file descriptor is left: raise the limit (LimitNOFILE= of a systemd unit, --ulimit \
             nofile= of a container, ulimit -n)"
        }
        _ => "",
    };
    remedy.into()
}

/// For a thread, or a process, that cannot be started.
pub(crate) fn thread_remedy(error: &io::Error) -> String {
    if !is_short_of_threads(error) {
        return kernel_remedy(error);
    }
    "; the limit of threads and processes, or of memory, is reached: raise it (TasksMax= and LimitNPROC= of a systemd \
     unit, --pids-limit of a container, ulimit -u and -v)"
        .into()
}

fn is_short_of_threads(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::AGAIN.raw_os_error())
}

fn is_short_of_descriptors(error: &io::Error) -> bool {
    let short = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE];
    short
        .map(|errno| Some(errno.raw_os_error()))
        .contains(&error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_fails_wakes_the_main_thread_and_nothing_else_does() {
        let mut signals = Signals::new([SIGCHLD]).unwrap();
        let (failed, written) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let seen = Arc::clone(&written);
        let notify: Notify = Arc::new(move |_| seen.store(true, Ordering::Release));
        let passwords = Rereader::default();
        let notify = watching(notify, Arc::clone(&failed), passwords.clone());
        let (worker, reason) = (0, "test".to_owned());
        notify(Notice::AcceptFailed {
            worker,
            reason: "test",
            detail: reason.clone(),
            clients: 1,
        });
        assert!(written.load(Ordering::Acquire) && !failed.load(Ordering::Acquire));
        notify(Notice::WorkerFailed { worker, reason });
        let rates = &mut LineRates::default();
        let event = wait(&mut signals, &mut None, &failed, (rates, &passwords));
        assert!(matches!(event, Event::WorkerFailed));
    }

    fn os(errno: rustix::io::Errno) -> io::Error {
        io::Error::from_raw_os_error(errno.raw_os_error())
    }

    /// A start error names what failed, the system's reason, and a remedy that belongs to that.
    #[test]
    fn start_error_says_what_to_do() {
        use rustix::io::Errno;
        let tcp = |host: &str, port| Address::Tcp {
            host: host.into(),
            port,
        };
        let unix = || Address::Unix("/run/x.sock".into());
        let listen = |address, errno| StartError::Listen {
            address,
            error: os(errno),
        };
        let kernel = |errno| StartError::Kernel {
            call: "epoll_create1",
            error: os(errno),
        };
        let thread = |errno| StartError::Thread {
            workers: 4,
            started: 1,
            error: os(errno),
        };
        for (failure, what, remedy) in [
            (
                listen(tcp("127.0.0.1", 1), Errno::ADDRINUSE),
                "cannot listen on 127.0.0.1:1: Address already in use",
                "choose another by --listen",
            ),
            (
                listen(tcp("1.2.3.4", 1), Errno::ADDRNOTAVAIL),
                "cannot listen on 1.2.3.4:1: ",
                "an address of this machine",
            ),
            (
                listen(tcp("127.0.0.1", 80), Errno::ACCESS),
                "Permission denied",
                "above 1023",
            ),
            (
                listen(tcp("127.0.0.1", 6380), Errno::ACCESS),
                "Permission denied",
                "seccomp",
            ),
            (
                listen(unix(), Errno::ACCESS),
                "Permission denied",
                "write the directory",
            ),
            (
                listen(unix(), Errno::NOENT),
                "cannot listen on unix:/run/x.sock: No such file",
                "make the directory",
            ),
            (
                kernel(Errno::PERM),
                "the system call epoll_create1 failed: Operation not permitted",
                "seccomp",
            ),
            (kernel(Errno::NOSYS), "epoll_create1", "seccomp"),
            (kernel(Errno::MFILE), "epoll_create1", "LimitNOFILE="),
            (
                thread(Errno::AGAIN),
                "1 of 4 worker threads could be started: Resource temporarily unavailable",
                "ulimit -u and -v), or lower --threads",
            ),
            (thread(Errno::PERM), "1 of 4 worker threads", "seccomp"),
        ] {
            let text = explain(&failure);
            assert!(text.contains(what), "{text}");
            assert!(text.contains(remedy), "{text}");
            assert!(
                !text.contains("above 1023") || remedy == "above 1023",
                "{text}"
            );
        }
    }
}
