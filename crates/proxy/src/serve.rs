//! The life of the process: start, wait, drain.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use respool_driver::{Notice, Notify, Running, Setup};
use respool_engine::settings::Address;
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::field::display;
use tracing::{error, info, warn};

use crate::address::BackendUrl;
use crate::config::{Backend, Config};
use crate::descriptors::{self, Granted, Need};
use crate::logs::{self, NoticeWriter};
use crate::spawn::SpawnedServer;

/// How long a repeated signal is taken for the same wish.
const SAME_WISH: Duration = Duration::from_millis(500);

/// Runs until a signal ends it, or what it depends on has ended. Called on the main thread, which
/// then does nothing but wait for signals.
pub(crate) fn serve(config: &Config) -> ExitCode {
    logs::start(config.log_format, config.log_level);
    match run(config) {
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
    /// SIGTERM or SIGINT.
    Stop(&'static str),
    /// The server of our own has ended.
    ServerEnded,
    /// A worker has ended by itself.
    WorkerFailed,
}

fn run(config: &Config) -> Result<Ending, String> {
    // First of all, so that a signal that comes while we start is kept. SIGPIPE is not among them:
    // the runtime ignores it from the start, so that writing to a closed socket is an error.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGCHLD])
        .map_err(|error| format!("cannot wait for signals: {error}"))?;
    let sessions_max = sessions_max(config)?;

    let (mut servers, mut spawned) = (Vec::with_capacity(config.pools.len()), None);
    for pool in &config.pools {
        servers.push(match &pool.backend {
            Backend::Server(url) => (**url).clone(),
            Backend::Spawn(plan) => {
                let mut asked = || signals.pending().any(|signal| signal != SIGCHLD);
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
        workers: config.workers,
        settings: Arc::new(config.settings(&servers, sessions_max)),
    };
    let (notify, notices) =
        NoticeWriter::start().map_err(|error| format!("cannot start a thread: {error}"))?;
    let failed = Arc::new(AtomicBool::new(false));
    let notify = watching(notify, Arc::clone(&failed));
    let running = respool_driver::start(setup, notify).map_err(explain)?;
    log_ready(config, &running, &servers, sessions_max);

    let event = wait(&mut signals, &mut spawned, &failed);
    // Whatever ends us, answers may still be on their way, and every request that can have none
    // gets an error that says what became of it. Begun before we log: that may take long.
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
    let drained = drain(running, config, asked, &mut signals, &mut spawned);
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
    notices.finish();
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
fn watching(notify: Notify, failed: Arc<AtomicBool>) -> Notify {
    Arc::new(move |notice| {
        let is_failure = matches!(notice, Notice::WorkerFailed { .. });
        notify(notice);
        if is_failure {
            failed.store(true, Ordering::Release);
            signal_hook::low_level::raise(SIGCHLD).expect("a signal that exists");
        }
    })
}

fn signal_name(signal: i32) -> &'static str {
    if signal == SIGINT {
        "SIGINT"
    } else {
        "SIGTERM"
    }
}

/// Blocks until something happens that ends us.
fn wait(signals: &mut Signals, spawned: &mut Option<SpawnedServer>, failed: &AtomicBool) -> Event {
    for signal in signals.forever() {
        match signal {
            SIGTERM | SIGINT => return Event::Stop(signal_name(signal)),
            _ => {}
        }
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
/// are waited for on another thread, which closes `signals` when they have ended: so this one can see
/// a second signal.
fn drain(
    running: Running,
    config: &Config,
    asked: &str,
    signals: &mut Signals,
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
            error!(%error, "cannot start a thread to drain with");
            return Ending::AtOnce;
        }
    };
    for signal in signals.forever() {
        match signal {
            SIGCHLD => {
                server_ended(spawned);
            }
            // `timeout`, and some supervisors, signal the process and then its group: the same wish twice.
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

fn sessions_max(config: &Config) -> Result<u32, String> {
    let limits = config.limits();
    let granted = descriptors::raise(Need {
        sessions_max: limits.sessions_max,
        workers: config.workers,
        links_max: limits.links_max,
        pinned_links_max: limits.pinned_links_max,
        listeners: config.listeners().count(),
    });
    match granted {
        Granted::Enough => Ok(limits.sessions_max),
        Granted::Fewer(sessions, text) => {
            warn!("{text}");
            Ok(sessions)
        }
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

/// The driver names the address; what to do about it depends on the reason.
fn explain(error: io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::AddrInUse => "; stop who listens there, or choose another by --listen",
        io::ErrorKind::AddrNotAvailable => "; --listen must name an address of this machine",
        io::ErrorKind::PermissionDenied => {
            "; choose a port above 1023, or a directory that we may write"
        }
        io::ErrorKind::NotFound => "; make the directory first, or choose another by --listen",
        _ => "",
    };
    format!("{error}{remedy}")
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
        let notify = watching(notify, Arc::clone(&failed));
        let (worker, reason) = (0, "test".to_owned());
        notify(Notice::AcceptFailed {
            worker,
            reason: reason.clone(),
        });
        assert!(written.load(Ordering::Acquire) && !failed.load(Ordering::Acquire));
        notify(Notice::WorkerFailed { worker, reason });
        let event = wait(&mut signals, &mut None, &failed);
        assert!(matches!(event, Event::WorkerFailed));
    }

    #[test]
    fn an_error_at_the_start_says_what_to_do() {
        for (kind, remedy) in [
            (io::ErrorKind::AddrInUse, "choose another by --listen"),
            (
                io::ErrorKind::AddrNotAvailable,
                "an address of this machine",
            ),
            (io::ErrorKind::PermissionDenied, "above 1023"),
            (io::ErrorKind::NotFound, "make the directory"),
        ] {
            let text = explain(io::Error::new(kind, "127.0.0.1:1: no"));
            assert!(text.starts_with("127.0.0.1:1: no; "), "{text}");
            assert!(text.contains(remedy), "{text}");
        }
    }
}
