//! The configuration is read again while respool runs: at SIGHUP and by `respool reload`.
//!
//! ```text
//!   read ──► differences ──► prepare ──► apply ──► the new configuration is the current one
//!    │            │             │
//!    └────────────┴─────────────┴──► a problem: nothing changes, the log and INFO say so
//! ```
//!
//! [`Reloads`] does one reload at a time. At a signal it runs on a thread of its own, since a file
//! system or a resolver may be slow. The design is in docs/design/reload.md.

mod control;
mod difference;
mod host_names;
mod set_values;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use respool_config::backend::BackendUrl;
use respool_config::config::{Backend, Config, PoolConfig, Resolved, WrongConfig};
use respool_config::passwords::{
    RenewablePasswords, RenewablesInEffect, RenewalFailures, RenewedPassword, Rereader,
};
use respool_config::plain::plain;
use respool_config::problem::{ConfigPlace, Problem};
use respool_config::tls_files::CertificateExpiry;
use respool_driver::{Notice, Passwords, Reload, Reloader, TlsUpdates};
use respool_engine::ReloadReport;
use tracing::{error, info, warn};

use crate::arguments::{self, Invocation};
use crate::descriptors;
use crate::remedy::{explain_at_places, thread_remedy};

pub(crate) use control::{ControlSocket, ask as ask_process, listen as listen_for_control};
use difference::{ConfigDifference, differences};
use host_names::{CheckedNames, check_names};
use set_values::SetValues;

/// The pause between two reloads by signals. A storm of signals is one reload for each pause.
const PAUSE: Duration = Duration::from_millis(100);

/// The most lines of one reload in the log. One more line counts the rest.
const LINES_MAX: usize = 32;

/// The beginning of the line about a reload that changes nothing.
const NOTHING_CHANGED: &str = "nothing has changed";

const STOPPING: &str = "nothing was reloaded: respool is stopping";

/// A configuration with the values of its options.
pub(crate) struct Loaded {
    pub(crate) config: Config,
    pub(crate) resolved: Resolved,
}

/// The reloads of this process. Clones share them.
#[derive(Clone)]
pub(crate) struct Reloads(Arc<SharedReloads>);

struct SharedReloads {
    /// `None` until the workers run.
    state: Mutex<Option<ReloadState>>,
    signals: Mutex<SignalState>,
    /// Values that clients have set by CONFIG SET.
    set_values: Mutex<SetValues>,
    /// The outcome of all reloads so far.
    report: Mutex<ReloadReport>,
    /// The names of the pools without which respool is not ready.
    required_pools: Mutex<Vec<String>>,
    /// How long a stop waits for replies, in milliseconds. It is not in `state`, which a reload
    /// locks for seconds if a resolver or a file system is slow.
    drain_timeout_ms: AtomicU64,
    passwords: Rereader,
}

/// The state between reloads.
struct ReloadState {
    current: Loaded,
    /// The URL of each pool's servers. That of `--spawn` is not in the configuration.
    servers: Vec<BackendUrl>,
    reloader: Reloader,
    to_workers: (Passwords, TlsUpdates),
    /// The last warning that there are too few file descriptors.
    fewer: Option<String>,
    /// The last problems, which are logged once.
    problems: Vec<String>,
}

/// Signals that ask for a reload.
#[derive(Default)]
struct SignalState {
    /// Whether a thread reloads now.
    is_running: bool,
    /// Whether a signal has come that no reload has seen.
    is_asked: bool,
    /// Whether to log a reload that changes nothing.
    is_logged: bool,
    /// Whether respool is about to end.
    is_stopping: bool,
}

/// The extent of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReloadMode {
    /// Reads, prepares and applies.
    Apply,
    /// Reads, checks that it could be prepared, and applies nothing.
    Check,
}

/// The outcome of a reload.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReloadOutcome {
    /// Whether there was no problem.
    pub(crate) is_good: bool,
    /// Whether the new configuration differs from the current one, or there was a problem.
    is_news: bool,
    /// The differences or the problems, for people.
    pub(crate) lines: Vec<String>,
    /// Facts that did not keep the configuration out, for people.
    pub(crate) warnings: Vec<String>,
}

impl ReloadOutcome {
    fn failed(mut lines: Vec<String>) -> ReloadOutcome {
        lines.push("nothing was reloaded: the configuration from before is in effect".into());
        ReloadOutcome {
            is_good: false,
            is_news: true,
            lines,
            warnings: Vec::new(),
        }
    }
}

impl Reloads {
    /// When the certificates in effect expire.
    pub(crate) fn expiries(&self) -> Vec<CertificateExpiry> {
        self.0.passwords.expiries()
    }

    /// How often passwords and certificates could not be renewed.
    pub(crate) fn renewal_failures(&self) -> RenewalFailures {
        self.0.passwords.failures()
    }

    pub(crate) fn new(passwords: Rereader) -> Reloads {
        Reloads(Arc::new(SharedReloads {
            state: Mutex::default(),
            signals: Mutex::default(),
            set_values: Mutex::default(),
            report: Mutex::default(),
            required_pools: Mutex::default(),
            drain_timeout_ms: AtomicU64::default(),
            passwords,
        }))
    }

    /// The workers run with this configuration. A signal that came before is handled now.
    pub(crate) fn start(
        &self,
        current: Loaded,
        servers: Vec<BackendUrl>,
        (reloader, to_workers): (Reloader, (Passwords, TlsUpdates)),
    ) {
        self.set_drain_timeout(current.config.drain_timeout);
        *lock(&self.0.state) = Some(ReloadState {
            current,
            servers,
            reloader,
            to_workers,
            fewer: None,
            problems: Vec::new(),
        });
        if lock(&self.0.signals).is_asked {
            self.run_asked();
        }
    }

    /// Asks for a reload after a signal, and returns at once. With `is_logged`, the log says it,
    /// too, if nothing changes.
    pub(crate) fn ask(&self, is_logged: bool) {
        let mut signals = lock(&self.0.signals);
        if signals.is_stopping {
            if is_logged {
                warn!("{STOPPING}");
            }
            return;
        }
        signals.is_asked = true;
        signals.is_logged |= is_logged;
        drop(signals);
        self.run_asked();
    }

    /// respool is about to end: no more reload begins.
    pub(crate) fn stop(&self) {
        let mut signals = lock(&self.0.signals);
        signals.is_stopping = true;
        if std::mem::take(&mut signals.is_asked) {
            warn!("{STOPPING}");
        }
    }

    /// How long a stop waits for replies, by the current configuration. It does not wait for a
    /// reload that runs. 0: the workers do not run yet.
    pub(crate) fn drain_timeout(&self) -> Duration {
        Duration::from_millis(self.0.drain_timeout_ms.load(Ordering::Acquire))
    }

    fn set_drain_timeout(&self, timeout: Duration) {
        let ms = timeout.as_millis() as u64;
        self.0.drain_timeout_ms.store(ms, Ordering::Release);
    }

    /// `Err`: respool is about to end. Workers that drain take no new listeners.
    fn check_not_stopping(&self) -> Result<(), String> {
        match lock(&self.0.signals).is_stopping {
            true => Err("respool is stopping".into()),
            false => Ok(()),
        }
    }

    /// The outcome of all reloads so far. It does not wait for a reload that runs.
    pub(crate) fn report(&self) -> ReloadReport {
        *lock(&self.0.report)
    }

    /// Takes note of the pools without which respool is not ready.
    pub(crate) fn require_pools_of(&self, config: &Config) {
        let required = config.pools.iter().filter(|pool| pool.is_required);
        *lock(&self.0.required_pools) = required.map(PoolConfig::shown_name).collect();
    }

    /// The names of the pools without which respool is not ready.
    pub(crate) fn required_pools(&self) -> Vec<String> {
        lock(&self.0.required_pools).clone()
    }

    /// Takes note of a notice of a worker: a client may have set values.
    pub(crate) fn note(&self, notice: &Notice) {
        if let Notice::OptionsSet {
            pool,
            listener,
            options,
            ..
        } = notice
        {
            lock(&self.0.set_values).note(pool, listener, options);
        }
    }

    /// Starts the thread that reloads, if the workers run and no such thread runs.
    fn run_asked(&self) {
        // The state is locked while a reload runs. Then `is_running` tells the same.
        let mut signals = lock(&self.0.signals);
        if signals.is_running {
            return;
        }
        if self
            .0
            .state
            .try_lock()
            .is_ok_and(|state| state.as_ref().is_none())
        {
            return;
        }
        let reloads = self.clone();
        let spawned = thread::Builder::new()
            .name("reload".into())
            .spawn(move || reloads.run());
        match spawned {
            Ok(_) => signals.is_running = true,
            Err(error) => {
                signals.is_asked = false;
                let remedy = thread_remedy(&error);
                error!("nothing was reloaded: no thread can be started: {error}{remedy}");
            }
        }
    }

    /// Reloads until no signal asks for it.
    fn run(&self) {
        loop {
            let mut signals = lock(&self.0.signals);
            if !signals.is_asked || signals.is_stopping {
                signals.is_running = false;
                return;
            }
            signals.is_asked = false;
            let is_logged = std::mem::take(&mut signals.is_logged);
            drop(signals);
            self.reload(ReloadMode::Apply, is_logged);
            thread::sleep(PAUSE);
        }
    }

    /// Reads the configuration again, and applies it if `mode` says so. With `is_logged`, the log
    /// says it, too, if nothing changes.
    pub(crate) fn reload(&self, mode: ReloadMode, is_logged: bool) -> ReloadOutcome {
        let mut state = lock(&self.0.state);
        if let Err(stopping) = self.check_not_stopping() {
            return ReloadOutcome::failed(vec![stopping]);
        }
        let Some(state) = &mut *state else {
            return ReloadOutcome::failed(vec!["respool is not ready yet: try again".into()]);
        };
        // No other thread reads a password until the new configuration is the current one.
        let mut in_effect = self.0.passwords.in_effect();
        let was_empty = state.current.resolved.is_file_empty;
        let outcome = match read(&in_effect.passwords, was_empty) {
            Ok((new, of_files)) => self.take(state, &mut in_effect, (new, of_files), mode),
            Err(wrong) => Err(with_addresses(&state.reloader, wrong)),
        };
        let outcome = outcome.map_err(|problems| problems.iter().map(Problem::to_string).collect());
        drop(in_effect);
        if mode == ReloadMode::Apply {
            self.wake_rereader(state);
        }
        let outcome = outcome.unwrap_or_else(ReloadOutcome::failed);
        if mode == ReloadMode::Apply {
            self.conclude(state, &outcome, is_logged);
        }
        outcome
    }

    /// Takes a configuration. `of_files`: the problems of its certificates; it has no others.
    /// `Err`: every reason for which it cannot be applied.
    fn take(
        &self,
        state: &mut ReloadState,
        in_effect: &mut RenewablesInEffect,
        (mut new, of_files): (Loaded, Vec<Problem>),
        mode: ReloadMode,
    ) -> Result<ReloadOutcome, Vec<Problem>> {
        let kept = new.config.keep_valid_certificates(&in_effect.tls);
        let differences = differences(&state.current, &new, in_effect);
        let mut problems = of_files;
        problems.extend(
            differences
                .iter()
                .filter_map(ConfigDifference::restart_problem),
        );
        new.config.keep_fixed(&state.current.config);
        new.config.tls_files.keep_same(&in_effect.tls);
        if new.config.control_socket != state.current.config.control_socket {
            // It needs a restart, which must not fail then.
            new.resolved.check_new_control_socket(&mut problems);
        }
        let names = check_names(&state.current, &new);
        problems.extend(names.problems.iter().cloned());
        if !problems.is_empty() {
            problems.extend(
                check_prepared(state, &new, &names)
                    .err()
                    .into_iter()
                    .flatten(),
            );
            return Err(problems);
        }
        let overwritten = lock(&self.0.set_values).overwritten(&new.resolved);
        let mut lines: Vec<String> = differences
            .iter()
            .map(ConfigDifference::to_string)
            .collect();
        lines.extend(overwritten.iter().cloned());
        let is_news = !lines.is_empty();
        if !is_news {
            lines.push(format!(
                "{NOTHING_CHANGED}: files and command line have the configuration in effect"
            ));
        }
        let mut warnings = names.warnings.clone();
        let known = &state.current.config.warnings;
        let of_new = new.config.warnings.iter();
        warnings.extend(of_new.filter(|text| !known.contains(text)).cloned());
        warnings.extend(kept);
        let is_good = ReloadOutcome {
            is_good: true,
            is_news,
            lines,
            warnings,
        };
        match mode {
            // A command that has run may have named another lifetime.
            ReloadMode::Apply if !is_news => in_effect.passwords = new.config.renewable_passwords,
            ReloadMode::Check if !is_news => {}
            ReloadMode::Check => check_prepared(state, &new, &names)?,
            ReloadMode::Apply => self.apply(state, in_effect, new)?,
        }
        Ok(is_good)
    }

    /// Prepares and applies a configuration. `Err`: why it cannot be prepared; nothing changed.
    fn apply(
        &self,
        state: &mut ReloadState,
        in_effect: &mut RenewablesInEffect,
        new: Loaded,
    ) -> Result<(), Vec<Problem>> {
        let config = &new.config;
        let renewed = config
            .renewable_passwords
            .changed_since(&in_effect.passwords);
        let servers = servers_of(config, &state.servers);
        let (reload, fewer) = reload_of(config, &servers, &renewed)?;
        let prepared = state.reloader.prepare(reload);
        let prepared = prepared.map_err(|errors| explain_at_places(&new.resolved, &errors))?;
        // A stop may have begun while names were looked up.
        self.check_not_stopping().map_err(without_place)?;
        let before = self.report();
        let report = ReloadReport {
            epoch: before.epoch + 1,
            last_failed: false,
            last_at: now(),
            ..before
        };
        let added = prepared.added();
        // Values that are set from now on stay, see `NewSettings::at`.
        lock(&self.0.set_values).clear();
        self.require_pools_of(config);
        let applied = prepared.apply(report);
        *lock(&self.0.report) = report;
        let (passwords, _) = &state.to_workers;
        for one in renewed.iter().filter(|one| one.renews_logins) {
            passwords.renew_logins(one.source);
        }
        in_effect.passwords.clone_from(&config.renewable_passwords);
        in_effect.tls.clone_from(&config.tls_files);
        let listen: Vec<String> = added.iter().map(ToString::to_string).collect();
        info!(
            epoch = report.epoch,
            took_us = applied.took.as_micros() as u64,
            listen = Some(listen.join(",")).filter(|listen| !listen.is_empty()),
            "configuration reloaded"
        );
        if applied.missing > 0 {
            warn!(
                workers = applied.missing,
                "workers have not taken the new configuration after {} ms: they take it with their \
                 next turn",
                applied.took.as_millis()
            );
        }
        let is_known = |text: &&String| state.fewer.as_ref() == Some(*text);
        for text in fewer.iter().filter(|text| !is_known(text)) {
            warn!("{}", plain(text));
        }
        state.fewer = fewer;
        state.servers = servers;
        self.set_drain_timeout(config.drain_timeout);
        state.current = new;
        Ok(())
    }

    /// Wakes the thread that reads passwords again, or starts it, if the first password to read has
    /// come with this reload.
    fn wake_rereader(&self, state: &ReloadState) {
        self.0.passwords.handle_reload();
        let (passwords, updates) = state.to_workers.clone();
        if let Err(error) = self.0.passwords.start(passwords, updates) {
            let remedy = thread_remedy(&error);
            error!("cannot start the thread that reads passwords: {error}{remedy}");
        }
    }

    /// Logs the outcome of a reload, and tells the workers of one that has changed nothing.
    fn conclude(&self, state: &mut ReloadState, outcome: &ReloadOutcome, is_logged: bool) {
        let is_repeated = !outcome.is_good && state.problems == outcome.lines;
        if is_logged || outcome.is_news && !is_repeated {
            log(outcome);
        }
        state.problems = match outcome.is_good {
            true => Vec::new(),
            false => outcome.lines.clone(),
        };
        if outcome.is_good && outcome.is_news {
            // The order to the workers had the report.
            return;
        }
        let mut report = self.report();
        report.last_failed = !outcome.is_good;
        report.failures += u64::from(!outcome.is_good);
        report.last_at = now();
        *lock(&self.0.report) = report;
        state.reloader.report(report);
    }
}

/// Finds out whether a configuration could be prepared: addresses are bound, and nothing listens.
/// Only a limit of open files that was raised stays. `Err`: why it cannot be prepared.
fn check_prepared(
    state: &mut ReloadState,
    new: &Loaded,
    names: &CheckedNames,
) -> Result<(), Vec<Problem>> {
    let servers = servers_of(&new.config, &state.servers);
    let (mut reload, _) = reload_of(&new.config, &servers, &[])?;
    let listeners = &mut reload.listeners;
    listeners.retain(|listener| names.may_be_bound(&listener.address));
    let checked = state.reloader.check(reload);
    checked.map_err(|errors| explain_at_places(&new.resolved, &errors))
}

/// The problems of a wrong configuration, and those of its addresses that cannot be bound.
fn with_addresses(reloader: &Reloader, wrong: WrongConfig) -> Vec<Problem> {
    let mut problems = wrong.problems;
    if let Some(resolved) = wrong.resolved {
        let errors = reloader.check_addresses(&resolved.listener_addresses());
        problems.extend(explain_at_places(&resolved, &errors));
    }
    problems
}

fn without_place(what: String) -> Vec<Problem> {
    vec![Problem::at(ConfigPlace::Default, what)]
}

/// The order to the workers for a configuration, and a warning about too few file descriptors.
/// `renewed`: the passwords that differ from those in effect.
fn reload_of(
    config: &Config,
    servers: &[BackendUrl],
    renewed: &[RenewedPassword],
) -> Result<(Reload, Option<String>), Vec<Problem>> {
    let (room, fewer) = descriptors::room(config).map_err(without_place)?;
    let mut settings = config.settings(servers);
    room.bound(&mut settings.limits);
    let in_order = |one: &RenewedPassword| (one.source, one.password.clone());
    let reload = Reload {
        listeners: config.listeners(),
        settings,
        drain_timeout: config.drain_timeout,
        passwords: renewed.iter().map(in_order).collect(),
        pool_tls: config.tls_files.of_pools(config.pools.len()),
    };
    Ok((reload, fewer))
}

/// Writes the lines of a reload to the log.
fn log(outcome: &ReloadOutcome) {
    let (shown, rest) = outcome.lines.split_at(outcome.lines.len().min(LINES_MAX));
    for line in shown {
        let line = &*plain(line);
        match outcome.is_good {
            true => info!("reload: {line}"),
            false => error!("reload: {line}"),
        }
    }
    if !rest.is_empty() {
        warn!("reload: {} more lines", rest.len());
    }
    for warning in outcome.warnings.iter().take(LINES_MAX) {
        warn!("reload: {}", plain(warning));
    }
}

/// Reads files, environment and command line of this process again, and runs its password commands.
/// Files with certificates may have problems. `was_empty`: the file in effect has no option. Else
/// an empty file is refused: a full disk or an interrupted copy has truncated it.
fn read(
    before: &RenewablePasswords,
    was_empty: bool,
) -> Result<(Loaded, Vec<Problem>), WrongConfig> {
    let without_values = |problem| WrongConfig {
        problems: vec![problem],
        resolved: None,
    };
    let given = match arguments::parse(std::env::args_os().skip(1)) {
        Ok(Invocation::Serve(given)) => given,
        Ok(_) => unreachable!("only `serve` reloads"),
        Err(problem) => return Err(without_values(problem)),
    };
    if let Some(problem) = given.file.as_deref().and_then(unreadable_again) {
        return Err(without_values(problem));
    }
    let file = given.file.clone().unwrap_or_default();
    let raw = crate::all_layers(given);
    if raw.is_file_empty() && !was_empty {
        let what = format!(
            "`{file}` is empty, and the file in effect was not: write it whole; to go back to the \
             defaults, write a comment into it, or restart respool"
        );
        let place = &ConfigPlace::Arguments;
        return Err(without_values(Problem::of_option("config", place, what)));
    }
    let (config, resolved, of_files) = Config::resolve_again(raw, before)?;
    Ok((Loaded { config, resolved }, of_files))
}

/// The absolute path of the configuration file of this process, if it has one.
fn own_file() -> Option<String> {
    let Ok(Invocation::Serve(given)) = arguments::parse(std::env::args_os().skip(1)) else {
        return None;
    };
    let path = std::path::absolute(given.file?).ok()?;
    Some(path.display().to_string())
}

/// The problem of a configuration file that can be read once only, such as a pipe.
fn unreadable_again(path: &str) -> Option<Problem> {
    let file = std::fs::metadata(path).ok()?;
    (!file.is_file()).then(|| {
        let what = format!(
            "`{path}` is no regular file, so it cannot be read again: write the configuration to a \
             file, and restart respool with it"
        );
        Problem::of_option("config", &ConfigPlace::Arguments, what)
    })
}

/// The URL of each pool's servers. The server of `--spawn` stays, and has the URL of before.
fn servers_of(config: &Config, before: &[BackendUrl]) -> Vec<BackendUrl> {
    let pools = config.pools.iter();
    let urls = pools.filter_map(|pool| match &pool.backend {
        Backend::Server(url) => Some((**url).clone()),
        Backend::Spawn(_) => before.first().cloned(),
    });
    urls.collect()
}

/// Seconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before the workers run, and when they are about to end, a reload is refused with the reason.
    #[test]
    fn reload_needs_running_workers() {
        let reloads = Reloads::new(Rereader::default());
        for mode in [ReloadMode::Check, ReloadMode::Apply] {
            let outcome = reloads.reload(mode, true);
            assert!(!outcome.is_good);
            assert!(outcome.lines[0].contains("not ready yet"), "{outcome:?}");
        }
        reloads.stop();
        let outcome = reloads.reload(ReloadMode::Apply, true);
        assert!(!outcome.is_good);
        assert!(outcome.lines[0].contains("stopping"), "{outcome:?}");
    }

    /// A stop reads the drain timeout while a reload runs, and is seen by that reload.
    #[test]
    fn stop_does_not_wait_for_a_running_reload() {
        let reloads = Reloads::new(Rereader::default());
        let timeout = Duration::from_millis(1234);
        reloads.set_drain_timeout(timeout);
        let _running = lock(&reloads.0.state);
        assert_eq!(reloads.check_not_stopping(), Ok(()));
        reloads.stop();
        assert_eq!(reloads.drain_timeout(), timeout);
        let stopping = reloads.check_not_stopping().expect_err("it stops");
        assert_eq!(stopping, "respool is stopping");
    }
}
