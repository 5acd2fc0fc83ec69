//! The life of the process: start, wait for a signal, drain.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use respool_config::address::ListenAt;
use respool_config::backend::BackendUrl;
use respool_config::config::{Backend, Config};
use respool_config::options::{LogFormat, LogLevel};
use respool_config::passwords::Rereader;
use respool_config::problem::Problem;
use respool_driver::{Notice, Notify, OwnListener, Running, Setup};
use respool_engine::settings::Address;
use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2,
    SIGVTALRM, SIGXFSZ,
};
use signal_hook::iterator::Signals;
use tracing::field::display;
use tracing::{error, info, warn};

use crate::descriptors::{self, Room};
use crate::line_rates::{LineKind, LineRates};
use crate::logs::{Logs, say_left_out};
use crate::metrics;
use crate::reload::{ControlSocket, Loaded, Reloads, listen_for_control};
use crate::remedy::{explain_at_places, explain_metrics, kernel_remedy, thread_remedy};
use crate::spawn::SpawnedServer;

/// The time in which a repeated stop signal counts as the same one.
const REPEATED_SIGNAL: Duration = Duration::from_millis(500);

/// Signals that end a process by default. respool logs them and goes on.
const NOTED: [(i32, &str); 7] = [
    (SIGHUP, "SIGHUP"),
    (SIGUSR1, "SIGUSR1"),
    (SIGUSR2, "SIGUSR2"),
    (SIGALRM, "SIGALRM"),
    (SIGVTALRM, "SIGVTALRM"),
    (SIGPROF, "SIGPROF"),
    (SIGIO, "SIGIO"),
];

/// Signals that the main thread waits for. SIGXFSZ is one of them, so that a log file at its size
/// limit is an error and not the end. SIGPIPE is not one of them: the runtime ignores it from the
/// start, so that a write to a closed socket is an error.
fn waited_for() -> impl Iterator<Item = i32> {
    let noted = NOTED.iter().map(|(signal, _)| *signal);
    [SIGTERM, SIGINT, SIGQUIT, SIGCHLD, SIGXFSZ]
        .into_iter()
        .chain(noted)
}

fn is_stop(signal: i32) -> bool {
    matches!(signal, SIGTERM | SIGINT | SIGQUIT)
}

/// Handles a signal of [`NOTED`]. SIGHUP asks for a reload; others have no effect. The log says so,
/// as often as `rates` admits.
fn note(signal: i32, rates: &mut LineRates, reloads: &Reloads) {
    let Some((_, name)) = NOTED.iter().find(|(noted, _)| *noted == signal) else {
        return;
    };
    let now = Instant::now();
    while let Some(left_out) = rates.poll_left_out(now) {
        say_left_out(&left_out);
    }
    let is_logged = rates.admits(LineKind::Signal, name, now);
    if signal == SIGHUP {
        reloads.ask(is_logged);
    } else if is_logged {
        warn!(
            signal = name,
            "the signal has no effect; SIGTERM stops respool"
        );
    }
}

/// Runs until a stop signal, or until a worker or the server of `--spawn` has ended. To be called
/// on the main thread, which then only waits for signals.
pub(crate) fn serve(loaded: Loaded) -> ExitCode {
    let config = &loaded.config;
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
    let code = conclude(run(loaded, &logs));
    logs.finish();
    code
}

/// Writes the problems of the configuration as lines of the log in JSON.
pub(crate) fn log_problems(problems: &[Problem]) -> ExitCode {
    let Ok(logs) = Logs::start(LogFormat::Json, LogLevel::Error) else {
        return crate::refuse(problems);
    };
    for problem in problems {
        error!("cannot start: {problem}");
    }
    logs.finish();
    ExitCode::from(crate::EXIT_USAGE)
}

/// Logs how the process ended, and makes its exit code.
fn conclude(ended: Result<Ending, StartFailure>) -> ExitCode {
    match ended {
        Ok(Ending::Clean) => {
            info!("stopped");
            ExitCode::SUCCESS
        }
        Ok(Ending::Cut(sessions)) => {
            error!(
                sessions,
                "stopped; sessions with unanswered requests were closed: see drain-timeout-ms"
            );
            ExitCode::FAILURE
        }
        Ok(Ending::AtOnce) => {
            error!("stopped at once by a second signal: every session was closed");
            ExitCode::FAILURE
        }
        Ok(Ending::ServerGone) => {
            error!(
                "stopped: the server that was started by --spawn has ended, and its data is lost"
            );
            ExitCode::FAILURE
        }
        Ok(Ending::WorkerFailed) => {
            error!("stopped: a worker has failed, and its clients get no more replies");
            ExitCode::FAILURE
        }
        Err(StartFailure(reasons)) => {
            for reason in reasons {
                error!("cannot start: {reason}");
            }
            ExitCode::FAILURE
        }
    }
}

/// The reasons why the process cannot start, at least one.
struct StartFailure(Vec<String>);

impl From<String> for StartFailure {
    fn from(reason: String) -> StartFailure {
        StartFailure(vec![reason])
    }
}

impl From<Vec<Problem>> for StartFailure {
    fn from(problems: Vec<Problem>) -> StartFailure {
        StartFailure(problems.iter().map(Problem::to_string).collect())
    }
}

/// The end of the process.
enum Ending {
    /// Every request was answered.
    Clean,
    /// At the drain timeout, this many sessions were closed.
    Cut(usize),
    /// A second stop signal came.
    AtOnce,
    /// The server of `--spawn` ended before respool.
    ServerGone,
    /// A worker ended by itself.
    WorkerFailed,
}

/// The reason why the process stops.
enum StopCause {
    /// SIGTERM, SIGINT or SIGQUIT.
    Stop(&'static str),
    /// The server of `--spawn` has ended.
    ServerEnded,
    /// A worker has ended by itself.
    WorkerFailed,
}

/// Starts everything, waits for the end, and drains.
fn run(loaded: Loaded, logs: &Logs) -> Result<Ending, StartFailure> {
    let config = &loaded.config;
    // Before everything else, so that a signal during the start is kept.
    let mut signals = Signals::new(waited_for()).map_err(|error| {
        let remedy = kernel_remedy(&error);
        format!("cannot wait for signals: {error}{remedy}")
    })?;
    let mut rates = LineRates::default();
    let passwords = Rereader::new(&config.renewable_passwords, &config.tls_files);
    let reloads = Reloads::new(passwords.clone());
    let (room, fewer) = descriptors::room(config)?;

    let mut asked = || {
        signals
            .pending()
            .inspect(|signal| note(*signal, &mut rates, &reloads))
            .any(is_stop)
    };
    let Some((servers, mut spawned)) = start_servers(config, &mut asked)? else {
        return Ok(Ending::Clean);
    };

    let setup = setup(config, &servers, room);
    // The control socket is removed when this function ends.
    let (pages, _control) = listen_for_operators(&loaded, &reloads)?;
    let failed = Arc::new(AtomicBool::new(false));
    let notify = watching(
        logs.notify(),
        Arc::clone(&failed),
        (passwords.clone(), reloads.clone()),
    );
    let running = respool_driver::start(setup, notify)
        .map_err(|errors| explain_at_places(&loaded.resolved, &errors))?;
    let reads = passwords.start(running.passwords(), running.tls());
    reads.map_err(|error| {
        let remedy = thread_remedy(&error);
        format!("cannot start the thread that reads passwords: {error}{remedy}")
    })?;
    let draining = match &pages {
        Some(listener) => start_pages(listener, config, (&running, &reloads))?,
        None => Arc::default(),
    };
    // Only after the start: a failed start may have another cause, and its error comes first.
    if let Some(text) = fewer {
        warn!("{text}");
    }
    let metrics = pages.as_ref().map(|listener| &listener.address);
    log_ready(config, &running, &servers, (room.sessions_max, metrics));
    let updates = (running.passwords(), running.tls());
    reloads.start(loaded, servers, (running.reloader(), updates));

    let event = wait(&mut signals, &mut spawned, &failed, (&mut rates, &reloads));
    reloads.stop();
    // Drain in every case. Replies may be on their way, and a request that can have none gets an
    // error that says whether it was executed.
    draining.store(true, Ordering::Release);
    running.drain();
    if let StopCause::Stop(signal) = event {
        info!(
            signal,
            "stopping: requests that have arrived are answered first"
        );
    }
    let asked = match event {
        StopCause::Stop(signal) => signal,
        StopCause::ServerEnded | StopCause::WorkerFailed => "",
    };
    let limit = reloads.drain_timeout();
    let drained = drain(
        running,
        limit,
        asked,
        (&mut signals, &mut rates, &reloads),
        &mut spawned,
    );
    rates.take_all().iter().for_each(say_left_out);
    let ending = match (drained, event) {
        (Ending::AtOnce, _) => Ending::AtOnce,
        _ if failed.load(Ordering::Acquire) => Ending::WorkerFailed,
        (_, StopCause::ServerEnded) => Ending::ServerGone,
        (drained, _) => drained,
    };
    if matches!(ending, Ending::AtOnce)
        && let Some(server) = &mut spawned
    {
        server.kill();
    }
    Ok(ending)
}

/// The input of the driver. `servers` has the URL of each pool, and `room` the bounds for which
/// there are file descriptors.
fn setup(config: &Config, servers: &[BackendUrl], room: Room) -> Setup {
    let mut settings = config.settings(servers);
    room.bound(&mut settings.limits);
    Setup {
        listeners: config.listeners(),
        pool_tls: config.tls_files.of_pools(config.pools.len()),
        socket_access: config.socket_access,
        workers: config.workers,
        settings: Arc::new(settings),
        reports_servers: config.metrics_listen.is_some(),
        serves_callers: false,
    }
}

/// The listeners for operators: of the pages about the process, and of the control socket.
type OperatorListeners = (Option<OwnListener>, Option<ControlSocket>);

/// Binds the listeners for operators, before the workers start: a wrong address serves no client,
/// and a reload right after the start is answered.
///
/// # Errors
/// One for each address that cannot be bound. Those of clients are then checked, too.
fn listen_for_operators(
    Loaded { config, resolved }: &Loaded,
    reloads: &Reloads,
) -> Result<OperatorListeners, Vec<Problem>> {
    let problem = |name: &str, what: String| {
        let place = resolved.place_of_any(None, &[name]);
        Problem::of_option(name, &place, what)
    };
    let pages = config.metrics_listen.as_ref();
    let pages = pages.map(|address| OwnListener::bind(address, config.socket_access));
    let pages = pages
        .transpose()
        .map_err(|error| problem("metrics-listen", explain_metrics(&error)));
    let control = config.control_socket.as_deref();
    let control = control.map(|path| listen_for_control(path, reloads.clone()));
    let control = control
        .transpose()
        .map_err(|what| problem("control-socket", what));
    let own = match (pages, control) {
        (Ok(pages), Ok(control)) => return Ok((pages, control)),
        (pages, control) => pages.err().into_iter().chain(control.err()),
    };
    let errors = respool_driver::check_addresses(&resolved.listener_addresses());
    let of_clients = explain_at_places(resolved, &errors);
    Err(of_clients.into_iter().chain(own).collect())
}

/// Starts the pages about the process. The result says that they shall report a drain.
fn start_pages(
    listener: &OwnListener,
    config: &Config,
    (running, reloads): (&Running, &Reloads),
) -> Result<Arc<AtomicBool>, String> {
    reloads.require_pools_of(config);
    let started = metrics::start(listener, running.reports(), reloads.clone());
    started.map_err(|error| {
        let remedy = thread_remedy(&error);
        format!("cannot start the thread of metrics-listen: {error}{remedy}")
    })
}

/// The URL of each pool's servers, and the server of `--spawn`, if there is one.
type StartedServers = (Vec<BackendUrl>, Option<SpawnedServer>);

/// Starts the server of `--spawn`. `None`: `asked` says that a stop signal came meanwhile.
fn start_servers(
    config: &Config,
    asked: &mut dyn FnMut() -> bool,
) -> Result<Option<StartedServers>, String> {
    let (mut servers, mut spawned) = (Vec::with_capacity(config.pools.len()), None);
    for pool in &config.pools {
        servers.push(match &pool.backend {
            Backend::Server(url) => (**url).clone(),
            Backend::Spawn(plan) => {
                let Some(server) = SpawnedServer::start(plan, asked)? else {
                    return Ok(None);
                };
                info!(program = %server.program().display(), pid = server.pid(), "server started");
                spawned.insert(server).backend()
            }
        });
    }
    Ok(Some((servers, spawned)))
}

/// Logs the line `ready` with listeners and servers. A named pool is shown as `--pool` takes it.
fn log_ready(
    config: &Config,
    running: &Running,
    servers: &[BackendUrl],
    (sessions_max, metrics): (u32, Option<&Address>),
) {
    let (mut listen, mut pools) = (Vec::new(), Vec::new());
    let mut addresses = running.addresses().into_iter();
    for (pool, server) in config.pools.iter().zip(servers) {
        let bound = |at: &ListenAt| ListenAt {
            address: addresses.next().unwrap_or_else(|| at.address.clone()),
            tls: at.tls,
        };
        let its = pool.listen.iter().map(bound);
        let its: Vec<_> = its.map(|at| at.to_string()).collect();
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
        metrics = metrics.map(display),
        pid = std::process::id(),
        "ready"
    );
}

/// Passes notices of workers to `notify`, which logs them, with two exceptions.
///
/// A failed worker also wakes the main thread with SIGCHLD, at which that looks for ended workers.
/// A refused password goes to `passwords` alone: the log has a line about the link already.
/// `reloads` remembers the values that clients set.
fn watching(
    notify: Notify,
    failed: Arc<AtomicBool>,
    (passwords, reloads): (Rereader, Reloads),
) -> Notify {
    Arc::new(move |notice| {
        reloads.note(&notice);
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

/// Waits for the reason to stop.
fn wait(
    signals: &mut Signals,
    spawned: &mut Option<SpawnedServer>,
    failed: &AtomicBool,
    (rates, reloads): (&mut LineRates, &Reloads),
) -> StopCause {
    for signal in signals.forever() {
        if is_stop(signal) {
            return StopCause::Stop(signal_name(signal));
        }
        note(signal, rates, reloads);
        if failed.load(Ordering::Acquire) {
            return StopCause::WorkerFailed;
        }
        if server_ended(spawned) {
            return StopCause::ServerEnded;
        }
    }
    unreachable!("only the drain closes the signals")
}

/// Waits until the requests that have arrived are answered, or for the drain timeout. Another
/// thread waits for the workers and closes `signals` when they have ended, so that this one can see
/// a second stop signal. `asked` is the name of the first one.
fn drain(
    running: Running,
    limit: Duration,
    asked: &str,
    (signals, rates, reloads): (&mut Signals, &mut LineRates, &Reloads),
    spawned: &mut Option<SpawnedServer>,
) -> Ending {
    let began = Instant::now();
    let closer = signals.handle();
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
            _ if !is_stop(signal) => note(signal, rates, reloads),
            // `timeout` and some supervisors signal the process and then its group.
            _ if signal_name(signal) == asked && began.elapsed() < REPEATED_SIGNAL => {}
            _ => return Ending::AtOnce,
        }
    }
    match joiner.join().expect("a panic would have ended the process") {
        0 => Ending::Clean,
        sessions => Ending::Cut(sessions),
    }
}

/// Whether the server of `--spawn` has ended; logs that.
fn server_ended(spawned: &mut Option<SpawnedServer>) -> bool {
    let Some(server) = spawned else { return false };
    let Some(status) = server.ended() else {
        return false;
    };
    let last_lines = server.last_lines();
    error!(pid = server.pid(), %status, last_lines, "the server that respool started has ended");
    // This removes the directory, and the end is reported once.
    *spawned = None;
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No other notice wakes it.
    #[test]
    fn failed_worker_wakes_the_main_thread() {
        let mut signals = Signals::new([SIGCHLD]).unwrap();
        let (failed, written) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let seen = Arc::clone(&written);
        let notify: Notify = Arc::new(move |_| seen.store(true, Ordering::Release));
        let passwords = Rereader::default();
        let reloads = Reloads::new(passwords.clone());
        let notify = watching(notify, Arc::clone(&failed), (passwords, reloads.clone()));
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
        let event = wait(&mut signals, &mut None, &failed, (rates, &reloads));
        assert!(matches!(event, StopCause::WorkerFailed));
    }
}
