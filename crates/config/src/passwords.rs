//! Passwords in files and from commands: read at the start, and again while respool runs.
//!
//! ```text
//!   a server refuses a password ──► read its origin ──► new password ──► all workers
//!   its lifetime nears its end ───► run its command     no password ───► the old one stays
//!   5 seconds have passed ────────► read its file
//! ```
//!
//! A thread of its own reads files and runs commands: both may be slow, and no client waits for
//! them. Links that are up authenticate with a new password of a command, which may be a token with
//! a lifetime. The same thread looks at certificates ([`TlsFiles`]). A reload of the configuration
//! reads all origins (`reload`).

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use respool_driver::{Passwords, TlsUpdates};
use respool_engine::settings::PasswordSource;
use tracing::{info, warn};

use crate::options::parse_secret;
use crate::password_command::{PasswordCommand, PrintedPassword};
use crate::plain::plain;
use crate::raw::read_file;
use crate::tls_files::{CertificateExpiry, RefusedSets, TlsFiles};

/// The most bytes of a password file. A longer one is refused: a device may never end.
const SECRET_BYTES_MAX: u64 = 64 << 10;

/// The pause between two rounds of reading. Servers may refuse a password more often.
const PAUSE: Duration = Duration::from_millis(100);

/// The shortest time between two runs of a command.
const COMMAND_PAUSE: Duration = Duration::from_secs(1);

/// The time between two looks at a file.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The time after which a file with new content is looked at once more.
const SETTLE: Duration = Duration::from_secs(1);

/// The longest time between two attempts of a command that fails.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// The place that a password comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PasswordOrigin {
    /// A file that holds it.
    File(PathBuf),
    /// A command that prints it.
    Command(PasswordCommand),
}

/// The passwords that may change, each origin once. The index of a password is its
/// [`PasswordSource`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenewablePasswords(Vec<RenewablePassword>);

/// A password that may change.
#[derive(Clone)]
struct RenewablePassword {
    origin: PasswordOrigin,
    /// The option that names the origin, for warnings.
    option: String,
    /// The password that was read last.
    password: String,
    /// Whether the origin is a pipe, which can be read once.
    is_pipe: bool,
    /// Whether the configuration names it. A reload may have removed it.
    is_used: bool,
    /// The reason why the last attempt to read it failed, as the log has it.
    trouble: Option<String>,
    /// The times of a command.
    schedule: CommandSchedule,
    /// When the file is looked at next; `None`: it is a pipe or a command, or respool's clients
    /// have the password.
    next_look: Option<Instant>,
    /// The password or the problem that the last look at the file found, if it was new.
    seen: Option<Result<String, String>>,
}

impl fmt::Debug for RenewablePassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.origin.fmt(f)
    }
}

// Two configurations are equal if they have the same passwords, whenever these were read.
impl PartialEq for RenewablePassword {
    fn eq(&self, other: &Self) -> bool {
        let parts = |one: &Self| (one.origin.clone(), one.option.clone(), one.password.clone());
        parts(self) == parts(other)
    }
}

impl Eq for RenewablePassword {}

/// One reading of a password: of a file, or by a run of a command.
#[derive(Clone, Debug)]
struct OriginRead {
    /// When the file was read or the command ended.
    ended_at: Instant,
    result: Result<PrintedPassword, String>,
}

/// When a command runs. Times of files stay unset.
#[derive(Clone, Debug, Default)]
struct CommandSchedule {
    /// The last run. Clones share it: a check, or a reload that fails, drops its copy of the
    /// passwords, and the command has run nevertheless.
    last_read: Arc<Mutex<Option<OriginRead>>>,
    /// When it runs next, if no server refuses its password before.
    due: Option<Instant>,
    /// The pause behind the next failure.
    retry: Duration,
    /// Whether a server refuses the last password of the command.
    is_refused: bool,
    /// Whether the log has said so.
    is_refusal_logged: bool,
}

impl OriginRead {
    fn of_file(path: &Path) -> OriginRead {
        OriginRead {
            ended_at: Instant::now(),
            result: print_file(path),
        }
    }
}

impl CommandSchedule {
    /// Runs the command.
    fn run(&self, command: &PasswordCommand) -> OriginRead {
        let result = command.run();
        let run = OriginRead {
            ended_at: Instant::now(),
            result,
        };
        *lock(&self.last_read) = Some(run.clone());
        run
    }

    /// The last run, if it is so recent that the command does not run again.
    fn recent_read(&self, now: Instant) -> Option<OriginRead> {
        let run = lock(&self.last_read).clone();
        run.filter(|run| now < run.ended_at + COMMAND_PAUSE)
    }

    /// The command has printed a password. It runs again when three quarters of the lifetime are
    /// over: that leaves time for failures.
    fn succeed(&mut self, now: Instant, lifetime: Option<Duration>) {
        self.due = lifetime.map(|lifetime| now + (lifetime * 3 / 4).max(COMMAND_PAUSE));
        self.retry = COMMAND_PAUSE;
    }

    /// The command has failed. If its password has a lifetime, it runs again soon; else a server
    /// that refuses the password asks for that.
    fn fail(&mut self, now: Instant) {
        self.due = self.due.map(|_| now + self.retry);
        self.retry = (self.retry * 2).min(RETRY_MAX);
    }

    /// A recent run is used again, and a server has refused its password: the next run is due as
    /// before.
    fn keep_refusal(&mut self, due: Option<Instant>) {
        self.is_refused = true;
        self.due = [self.due, due].into_iter().flatten().min();
    }

    /// Whether the command runs now. If it is asked for too early, it becomes due. `is_refused`: a
    /// server refuses its password.
    fn starts(&mut self, is_asked: bool, is_refused: bool, now: Instant) -> bool {
        self.is_refused |= is_refused;
        let is_due = self.due.is_some_and(|due| due <= now);
        if !is_asked && !is_due {
            return false;
        }
        let Some(run) = self.recent_read(now) else {
            return true;
        };
        let earliest = run.ended_at + COMMAND_PAUSE;
        let later = self.due.filter(|due| *due > now);
        self.due = Some(later.map_or(earliest, |due| due.min(earliest)));
        false
    }
}

/// A password that a reload has found changed.
pub struct RenewedPassword {
    /// Its number in the settings.
    pub source: PasswordSource,
    /// Its text.
    pub password: String,
    /// Whether links that are up authenticate with it.
    pub renews_logins: bool,
}

impl RenewablePasswords {
    /// The same origins for a reload: each keeps its number, and is read again. A pipe keeps its
    /// password.
    pub(crate) fn again(&self) -> RenewablePasswords {
        let mut passwords = self.clone();
        for one in &mut passwords.0 {
            one.is_used = false;
            one.trouble = None;
        }
        passwords
    }

    /// A text for each password that has changed, which names its origin.
    pub fn changes_since(&self, before: &RenewablePasswords) -> Vec<String> {
        let changed = self.changed_indices(before);
        let shown = changed.map(|index| {
            let one = &self.0[index];
            match &one.origin {
                PasswordOrigin::File(path) => format!("{} `{}`", one.option, path.display()),
                PasswordOrigin::Command(command) => {
                    format!("{} `{}`", one.option, command.program())
                }
            }
        });
        shown.collect()
    }

    /// The passwords that have changed.
    pub fn changed_since(&self, before: &RenewablePasswords) -> Vec<RenewedPassword> {
        let changed = self.changed_indices(before);
        let renewed = changed.map(|index| RenewedPassword {
            source: PasswordSource(index as u16),
            password: self.0[index].password.clone(),
            renews_logins: self.0[index].renews_logins(),
        });
        renewed.collect()
    }

    /// The indices of origins that both have, with other passwords.
    fn changed_indices(&self, before: &RenewablePasswords) -> impl Iterator<Item = usize> {
        let both = self.0.iter().zip(&before.0).enumerate();
        both.filter(|(_, (one, old))| one.is_used && old.is_used && one.password != old.password)
            .map(|(index, _)| index)
    }

    /// Reads the password of the origin that an option names. An origin that was read before is not
    /// read again.
    ///
    /// # Errors
    /// Returns why the origin has no password.
    pub(crate) fn read(
        &mut self,
        option: &str,
        origin: &PasswordOrigin,
    ) -> Result<(String, PasswordSource), String> {
        let known = self.0.iter().position(|known| known.origin == *origin);
        let index = match known {
            Some(index) if self.0[index].is_used => index,
            Some(index) => {
                self.0[index].read_for_reload(option)?;
                index
            }
            None if self.0.len() > usize::from(u16::MAX) => {
                let what =
                    "is one password more than respool can have before a restart: restart it";
                return Err(what.into());
            }
            None => {
                let meta = match origin {
                    PasswordOrigin::File(path) => std::fs::metadata(path).ok(),
                    PasswordOrigin::Command(_) => None,
                };
                let is_pipe = meta.is_some_and(|meta| meta.file_type().is_fifo());
                let mut schedule = CommandSchedule::default();
                let printed = match origin {
                    PasswordOrigin::File(path) => print_file(path)?,
                    PasswordOrigin::Command(command) => {
                        let run = schedule.run(command);
                        let printed = run.result?;
                        schedule.succeed(run.ended_at, printed.lifetime);
                        printed
                    }
                };
                self.0.push(RenewablePassword {
                    password: printed.password,
                    origin: origin.clone(),
                    option: option.to_owned(),
                    is_pipe,
                    is_used: true,
                    trouble: None,
                    schedule,
                    next_look: None,
                    seen: None,
                });
                self.0.len() - 1
            }
        };
        let source = PasswordSource(index as u16);
        Ok((self.0[index].password.clone(), source))
    }

    /// As [`RenewablePasswords::read`], for a password that servers or Sentinels ask for: a file is
    /// looked at from now on. Clients get a new password of their own by a reload alone.
    ///
    /// # Errors
    /// Returns why the origin has no password.
    pub(crate) fn read_for_servers(
        &mut self,
        option: &str,
        origin: &PasswordOrigin,
    ) -> Result<(String, PasswordSource), String> {
        let read = self.read(option, origin)?;
        let one = &mut self.0[usize::from(read.1.0)];
        if matches!(origin, PasswordOrigin::File(_)) && !one.is_pipe {
            one.next_look
                .get_or_insert_with(|| Instant::now() + LOOK_EVERY);
        }
        Ok(read)
    }

    /// Warnings about files that other users of the machine may read.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> {
        let used = self.0.iter().filter(|password| password.is_used);
        used.filter_map(|password| {
            let PasswordOrigin::File(path) = &password.origin else {
                return None;
            };
            let warning = readable_by_others(path, "a password")?;
            Some(format!("{}: {warning}", password.option))
        })
    }

    /// When the next command or look is due.
    fn next_due(&self) -> Option<Instant> {
        let used = self.0.iter().filter(|one| one.is_used);
        used.filter_map(|one| one.schedule.due.or(one.next_look))
            .min()
    }
}

/// The passwords and certificates in effect.
#[derive(Debug, Default)]
pub struct RenewablesInEffect {
    /// Passwords of files and commands.
    pub passwords: RenewablePasswords,
    /// The files with certificates and keys.
    pub tls: TlsFiles,
}

impl RenewablesInEffect {
    fn is_empty(&self) -> bool {
        self.passwords.0.is_empty() && !self.tls.has_files()
    }

    /// The time until a command is due or files are looked at.
    fn pause(&self, now: Instant) -> Option<Duration> {
        let until_due = self.passwords.next_due();
        let until_due = until_due.map(|due| due.saturating_duration_since(now));
        until_due.into_iter().chain(self.tls.pause(now)).min()
    }
}

/// How often passwords and certificates could not be renewed while respool runs. The former
/// ones stay in effect. A reload is not counted: it fails as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenewalFailures {
    /// Runs of commands that printed no password.
    pub commands: u64,
    /// Readings of files that had no password.
    pub files: u64,
    /// Sets of certificates by their use.
    pub certificates: RefusedSets,
}

/// A handle to the thread that reads passwords again. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Rereader(Arc<SharedRereader>);

#[derive(Debug, Default)]
struct SharedRereader {
    /// The passwords in effect. Locked while a thread reads files or runs commands.
    in_effect: Mutex<RenewablesInEffect>,
    /// When the certificates in effect expire, for readers that do not wait for a command.
    expiries: Mutex<Vec<CertificateExpiry>>,
    failures: Mutex<RenewalFailures>,
    wanted: Mutex<Wanted>,
    is_wanted: Condvar,
    /// Whether the thread runs.
    is_started: Mutex<bool>,
}

/// The work of the thread.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    /// Passwords that servers refuse, by their index.
    refused: BTreeSet<usize>,
    /// Whether a reload has changed the passwords in effect, and with them the next time to wake.
    is_reloaded: bool,
    /// Whether the thread shall end.
    is_ended: bool,
}

impl Rereader {
    /// A handle for these passwords and certificates.
    pub fn new(passwords: &RenewablePasswords, tls: &TlsFiles) -> Rereader {
        Rereader(Arc::new(SharedRereader {
            in_effect: Mutex::new(RenewablesInEffect {
                passwords: passwords.clone(),
                tls: tls.clone(),
            }),
            expiries: Mutex::new(tls.expiries()),
            ..SharedRereader::default()
        }))
    }

    /// The passwords in effect. No other thread reads files or runs commands until this is dropped.
    pub fn in_effect(&self) -> MutexGuard<'_, RenewablesInEffect> {
        lock(&self.0.in_effect)
    }

    /// When the certificates in effect expire.
    pub fn expiries(&self) -> Vec<CertificateExpiry> {
        lock(&self.0.expiries).clone()
    }

    /// How often passwords and certificates could not be renewed.
    pub fn failures(&self) -> RenewalFailures {
        *lock(&self.0.failures)
    }

    /// Asks for this password to be read, since a server refuses it. Returns at once.
    pub fn ask(&self, source: PasswordSource) {
        lock(&self.0.wanted).refused.insert(source.0.into());
        self.0.is_wanted.notify_one();
    }

    /// A reload has changed the passwords in effect: the thread looks when it has to wake.
    pub fn handle_reload(&self) {
        lock(&self.0.wanted).is_reloaded = true;
        self.0.is_wanted.notify_one();
    }

    /// Ends the thread, once it does not read. Returns at once.
    pub fn stop(&self) {
        lock(&self.0.wanted).is_ended = true;
        self.0.is_wanted.notify_one();
    }

    /// Starts the thread, which sends each new password to `workers` and new certificates to
    /// `updates`. Without a file or command it is not needed, and a thread that runs already stays.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(&self, workers: Passwords, updates: TlsUpdates) -> io::Result<()> {
        let mut is_started = lock(&self.0.is_started);
        if *is_started || self.in_effect().is_empty() {
            return Ok(());
        }
        let rereader = self.clone();
        let thread = thread::Builder::new().name("passwords".into());
        thread.spawn(move || {
            loop {
                let limit = rereader.in_effect().pause(Instant::now());
                let wanted = rereader.wait(limit);
                if wanted.is_ended {
                    return;
                }
                let mut in_effect = rereader.in_effect();
                let mut failures = rereader.failures();
                let refused = in_effect.tls.look(&updates, Instant::now());
                failures.certificates.add(refused);
                *lock(&rereader.0.expiries) = in_effect.tls.expiries();
                let passwords = &mut in_effect.passwords;
                read_again(passwords, &wanted.refused, &mut failures, |source, new| {
                    workers.tell(source, new.password);
                    if new.renews_logins {
                        workers.renew_logins(source);
                    }
                });
                *lock(&rereader.0.failures) = failures;
                drop(in_effect);
                thread::sleep(PAUSE);
            }
        })?;
        *is_started = true;
        Ok(())
    }

    /// Waits until something is wanted, or for `limit`, and takes it.
    fn wait(&self, limit: Option<Duration>) -> Wanted {
        let is_idle = |wanted: &mut Wanted| *wanted == Wanted::default();
        let (wanted, condvar) = (lock(&self.0.wanted), &self.0.is_wanted);
        let mut woken = match limit {
            None => condvar
                .wait_while(wanted, is_idle)
                .unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                let woken = condvar.wait_timeout_while(wanted, limit, is_idle);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        std::mem::take(&mut *woken)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is one step, so the state is whole even after a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A new password.
struct ChangedPassword<'a> {
    password: &'a str,
    /// Whether links that are up authenticate with it.
    renews_logins: bool,
}

/// Reads the passwords that servers refuse and those that are due, passes each new one to `tell`,
/// counts the failures, and logs the results.
fn read_again(
    passwords: &mut RenewablePasswords,
    refused: &BTreeSet<usize>,
    failures: &mut RenewalFailures,
    mut tell: impl FnMut(PasswordSource, ChangedPassword<'_>),
) {
    let now = Instant::now();
    for (index, one) in passwords.0.iter_mut().enumerate() {
        let is_refused = refused.contains(&index);
        let starts = one.is_used
            && match one.origin {
                PasswordOrigin::File(_) => (is_refused && !one.is_pipe) || one.is_look_due(now),
                PasswordOrigin::Command(_) => one.schedule.starts(is_refused, is_refused, now),
            };
        if !starts {
            continue;
        }
        let run = match &one.origin {
            PasswordOrigin::File(path) => OriginRead::of_file(path),
            PasswordOrigin::Command(command) => one.schedule.run(command),
        };
        if one.next_look.is_some() && !one.settles(&run.result, is_refused, now) {
            continue;
        }
        match run.result {
            Ok(printed) => {
                if one.handle_password(printed, run.ended_at) {
                    let new = ChangedPassword {
                        password: one.password.as_str(),
                        renews_logins: one.renews_logins(),
                    };
                    tell(PasswordSource(index as u16), new);
                    one.log_new();
                }
            }
            Err(what) => {
                match one.origin {
                    PasswordOrigin::File(_) => failures.files += 1,
                    PasswordOrigin::Command(_) => failures.commands += 1,
                }
                one.handle_failure(what, run.ended_at);
            }
        }
    }
}

impl RenewablePassword {
    fn is_look_due(&self, now: Instant) -> bool {
        self.next_look.is_some_and(|at| at <= now)
    }

    /// Whether the result of a look counts now. A file that is being written has another password,
    /// or none, for a moment: only what two looks find counts, or what follows a refusal. A failure
    /// that was told already does not count again.
    fn settles(
        &mut self,
        result: &Result<PrintedPassword, String>,
        is_refused: bool,
        now: Instant,
    ) -> bool {
        let found = match result {
            Ok(printed) => Ok(printed.password.clone()),
            Err(what) => Err(what.clone()),
        };
        self.next_look = Some(now + LOOK_EVERY);
        let is_told = self.trouble.is_some() && self.trouble.as_ref() == found.as_ref().err();
        if is_refused || found.as_ref() == Ok(&self.password) {
            self.seen = None;
            return true;
        }
        if is_told {
            return false;
        }
        let is_settled = self.seen.as_ref() == Some(&found);
        self.seen = (!is_settled).then_some(found);
        if !is_settled {
            self.next_look = Some(now + SETTLE);
        }
        is_settled
    }

    /// Reads it again for a reload, in which this option names it first. A pipe keeps its password.
    /// The result of a command that has just run counts, even if it failed.
    fn read_for_reload(&mut self, option: &str) -> Result<(), String> {
        let (mut was_refused, due) = (false, self.schedule.due);
        let run = match &self.origin {
            PasswordOrigin::File(_) if self.is_pipe => None,
            PasswordOrigin::File(path) => Some(OriginRead::of_file(path)),
            PasswordOrigin::Command(command) => {
                let recent = self.schedule.recent_read(Instant::now());
                // The command has not run again since that refusal, so no warning is due.
                was_refused = recent.is_some() && std::mem::take(&mut self.schedule.is_refused);
                Some(recent.unwrap_or_else(|| self.schedule.run(command)))
            }
        };
        if let Some(run) = run {
            let is_new = self.handle_password(run.result?, run.ended_at);
            if was_refused && !is_new {
                self.schedule.keep_refusal(due);
            }
        }
        option.clone_into(&mut self.option);
        self.is_used = true;
        Ok(())
    }

    /// Whether links that are up authenticate with a new password of this origin.
    fn renews_logins(&self) -> bool {
        matches!(self.origin, PasswordOrigin::Command(_))
    }

    /// Takes the password that its origin had at this time. Returns whether it is a new one.
    fn handle_password(&mut self, printed: PrintedPassword, at: Instant) -> bool {
        self.trouble = None;
        let is_new = printed.password != self.password;
        if let PasswordOrigin::Command(command) = &self.origin {
            self.schedule.succeed(at, printed.lifetime);
            let is_refused = std::mem::take(&mut self.schedule.is_refused);
            let is_logged = is_refused && !is_new && !self.schedule.is_refusal_logged;
            if is_logged {
                warn!(
                    "{}: a server refuses the password that `{}` prints: look at the command, and \
                     at the server's user",
                    self.option,
                    plain(command.program())
                );
            }
            self.schedule.is_refusal_logged =
                !is_new && (self.schedule.is_refusal_logged || is_logged);
        }
        if is_new {
            self.password = printed.password;
        }
        is_new
    }

    /// Its origin had no password at this time: the one before stays.
    fn handle_failure(&mut self, what: String, at: Instant) {
        if matches!(self.origin, PasswordOrigin::Command(_)) {
            self.schedule.fail(at);
        }
        if self.trouble.as_ref() != Some(&what) {
            warn!(
                "{}: {}; the password from before stays",
                self.option,
                plain(&what)
            );
        }
        self.trouble = Some(what);
    }

    /// Logs that the password is a new one.
    fn log_new(&self) {
        match &self.origin {
            PasswordOrigin::File(path) => {
                info!(
                    file = &*plain(&path.display().to_string()),
                    "the password file has a new password: new connections use it, and open ones \
                     stay"
                );
                if let Some(warning) = readable_by_others(path, "a password") {
                    warn!("{}: {}", self.option, plain(&warning));
                }
            }
            PasswordOrigin::Command(command) => info!(
                program = &*plain(command.program()),
                "the password command has printed a new password: new connections use it, and open \
                 ones authenticate with it"
            ),
        }
    }
}

/// The password that a file has now. A file names no lifetime.
fn print_file(path: &Path) -> Result<PrintedPassword, String> {
    Ok(PrintedPassword {
        password: read_password(path)?,
        lifetime: None,
    })
}

/// The password in a file, without its line end.
fn read_password(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let bytes = read_file(path, SECRET_BYTES_MAX)
        .map_err(|error| format!("`{shown}` cannot be read: {error}"))?;
    let text = String::from_utf8(bytes).map_err(|_| format!("`{shown}` is not UTF-8"))?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.starts_with('\u{feff}') {
        return Err(format!(
            "`{shown}` begins with a byte order mark: save it as UTF-8 without one"
        ));
    }
    if text.contains(['\n', '\r', '\0']) {
        return Err(format!(
            "`{shown}` has more than one line, or a NUL: it must hold the password alone, with at \
             most one line end"
        ));
    }
    parse_secret(text).map_err(|_| format!("`{shown}` is empty: it must hold a password"))
}

/// A warning if other users of the machine may read or write a file with a secret, and the
/// remedy.
pub(crate) fn readable_by_others(path: &Path, secret: &str) -> Option<String> {
    let file = std::fs::metadata(path).ok().filter(|file| file.is_file())?;
    let mode = file.mode() & 0o7777;
    // If the file is another user's, respool may need its group to read it.
    let is_ours = file.uid() == rustix::process::geteuid().as_raw();
    let (group, others) = (is_ours && mode & 0o060 != 0, mode & 0o006 != 0);
    let readers = match (group, others) {
        (false, false) => return None,
        (true, false) => "its group",
        (false, true) => "every user",
        (true, true) => "its group and every user",
    };
    let path = path.display();
    let remedy = match is_ours {
        true => format!("say `chmod 600 {path}`"),
        // The group must come first, or respool could not read the file any more.
        false => format!(
            "say `chgrp GROUP {path}` and then `chmod 640 {path}`, with a group of respool's user"
        ),
    };
    Some(format!(
        "`{path}` holds {secret} and has the mode {mode:04o}: {readers} may read or change it; \
         {remedy}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The new passwords of a round of reading.
    fn new_passwords(passwords: &mut RenewablePasswords, refused: &[usize]) -> Vec<(u16, String)> {
        let mut new_passwords = Vec::new();
        let refused = refused.iter().copied().collect();
        let mut failures = RenewalFailures::default();
        read_again(passwords, &refused, &mut failures, |source, new| {
            new_passwords.push((source.0, new.password.to_owned()));
        });
        new_passwords
    }

    /// A file with more than a password is refused: its text would be a password that no server
    /// accepts.
    #[test]
    fn password_file_holds_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        let read = |content: &str| {
            std::fs::write(&path, content).unwrap();
            read_password(&path)
        };
        for content in ["secret", "secret\n", "secret\r\n"] {
            assert_eq!(read(content).unwrap(), "secret", "{content:?}");
        }
        assert_eq!(read(" two words \n").unwrap(), " two words ");
        for (content, problem) in [
            ("secret\n\n", "more than one line"),
            ("secret\nother\n", "more than one line"),
            ("\nsecret", "more than one line"),
            ("secret\0", "a NUL"),
            ("\u{feff}secret\n", "byte order mark"),
            ("\n", "is empty"),
        ] {
            let error = read(content).unwrap_err();
            assert!(error.contains(problem), "{content:?}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    /// A file that is replaced by rename behind a symbolic link is read again. An empty or missing
    /// file leaves the password as it was.
    #[test]
    fn each_new_password_is_passed_on_once() {
        let directory = tempfile::tempdir().unwrap();
        let (a, b) = (directory.path().join("a"), directory.path().join("b"));
        let target = directory.path().join("1");
        std::fs::write(&target, "one\n").unwrap();
        std::os::unix::fs::symlink(&target, &a).unwrap();
        std::fs::write(&b, "other").unwrap();
        let mut files = RenewablePasswords::default();
        let [of_a, of_b] = [&a, &b].map(|path| PasswordOrigin::File(path.clone()));
        let one = files.read("x", &of_a).unwrap();
        assert_eq!(one, ("one".to_owned(), PasswordSource(0)));
        assert_eq!(files.read("y", &of_b).unwrap().1, PasswordSource(1));
        assert_eq!(files.read("z", &of_a).unwrap(), one);
        assert!(!format!("{files:?}").contains("one"));
        assert_eq!(new_passwords(&mut files, &[0, 1]), []);

        let next = directory.path().join("2");
        std::fs::write(&next, "two\r\n").unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&next, &link).unwrap();
        std::fs::rename(&link, &a).unwrap();
        std::fs::write(&b, "").unwrap();
        assert_eq!(new_passwords(&mut files, &[1]), []);
        assert_eq!(new_passwords(&mut files, &[0]), [(0, "two".to_owned())]);
        assert_eq!(new_passwords(&mut files, &[0, 1]), []);
        std::fs::write(&next, "one").unwrap();
        std::fs::remove_file(&b).unwrap();
        assert_eq!(new_passwords(&mut files, &[0, 1]), [(0, "one".to_owned())]);
        std::fs::write(&b, "other").unwrap();
        assert_eq!(new_passwords(&mut files, &[0, 1]), []);
    }

    /// A file is looked at every few seconds. Only what two looks find counts: the file may be in
    /// the middle of a change.
    #[test]
    fn file_is_looked_at_while_no_server_refuses() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        std::fs::write(&path, "one").unwrap();
        let mut files = RenewablePasswords::default();
        let origin = PasswordOrigin::File(path.clone());
        files.read("x", &origin).unwrap();
        assert_eq!(
            files.next_due(),
            None,
            "the clients' password waits for a reload"
        );
        files.read_for_servers("x", &origin).unwrap();
        let is_later = |due: Option<Instant>| due.is_some_and(|due| due > Instant::now());
        std::fs::write(&path, "two").unwrap();
        assert!(is_later(files.next_due()));
        assert_eq!(new_passwords(&mut files, &[]), []);
        for (content, new, failed) in [
            ("two", None, 0),
            ("two", Some("two"), 0),
            ("thr", None, 0),
            ("three", None, 0),
            ("three", Some("three"), 0),
            ("", None, 0),
            ("", None, 1),
            ("", None, 0),
            ("three", None, 0),
        ] {
            std::fs::write(&path, content).unwrap();
            files.0[0].next_look = Some(Instant::now());
            let mut failures = RenewalFailures::default();
            let mut told = Vec::new();
            read_again(&mut files, &BTreeSet::new(), &mut failures, |_, new| {
                told.push(new.password.to_owned());
            });
            assert_eq!(told, Vec::from_iter(new), "{content:?}");
            assert_eq!(failures.files, failed, "{content:?}");
            assert!(is_later(files.next_due()));
        }
    }

    /// Each reading without a password is counted by its origin.
    #[test]
    fn failed_readings_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        let script = directory.path().join("command");
        let printing = |text: &str| std::fs::write(&path, text).unwrap();
        printing("one");
        std::fs::write(&script, format!("cat {}", path.display())).unwrap();
        let command = format!("/bin/sh {}", script.display());
        let command = PasswordCommand::parse(&command).unwrap();
        let mut passwords = RenewablePasswords::default();
        let file = PasswordOrigin::File(path.clone());
        passwords.read("a", &file).unwrap();
        passwords
            .read("b", &PasswordOrigin::Command(command))
            .unwrap();
        let mut failures = RenewalFailures::default();
        let mut reads = |passwords: &mut RenewablePasswords| {
            // The command may run again at once.
            *lock(&passwords.0[1].schedule.last_read) = None;
            read_again(passwords, &[0, 1].into(), &mut failures, |_, _| {});
            (failures.files, failures.commands)
        };
        assert_eq!(reads(&mut passwords), (0, 0));
        printing("");
        assert_eq!(reads(&mut passwords), (1, 1));
        assert_eq!(reads(&mut passwords), (2, 2));
        printing("two");
        assert_eq!(reads(&mut passwords), (2, 2));
    }

    /// Several requests for one file are one read.
    #[test]
    fn requests_to_read_are_joined() {
        let rereader = Rereader::default();
        for source in [3, 1, 3] {
            rereader.ask(PasswordSource(source));
        }
        assert_eq!(rereader.wait(None).refused, [1, 3].into());
        rereader.handle_reload();
        assert!(rereader.wait(None).is_reloaded);
        // A command that is due ends the wait.
        let wanted = rereader.wait(Some(Duration::from_millis(1)));
        assert_eq!(wanted, Wanted::default());
    }

    /// An origin keeps its number, is read once more, and is forgotten if no option names it.
    #[test]
    fn origin_keeps_its_number_at_a_reload() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for name in ["a", "b", "c"] {
            std::fs::write(path(name), "one").unwrap();
        }
        let [a, b, c] = ["a", "b", "c"].map(|name| PasswordOrigin::File(path(name)));
        let mut before = RenewablePasswords::default();
        before.read("a", &a).unwrap();
        before.read("b", &b).unwrap();
        std::fs::write(path("b"), "two").unwrap();
        let mut after = before.again();
        let (password, source) = after.read("new", &b).unwrap();
        assert_eq!((password.as_str(), source), ("two", PasswordSource(1)));
        assert_eq!(after.read("c", &c).unwrap().1, PasswordSource(2));
        let changed = after.changed_since(&before);
        let changed: Vec<_> = changed
            .iter()
            .map(|one| (one.source, &*one.password))
            .collect();
        assert_eq!(changed, [(PasswordSource(1), "two")]);
        let said = after.changes_since(&before);
        assert_eq!(said, [format!("new `{}`", path("b").display())]);
        std::fs::write(path("a"), "two").unwrap();
        assert_eq!(new_passwords(&mut after, &[0, 1, 2]), []);
    }

    /// Makes the last run of the command count as recent, however slow the test is.
    fn keep_recent(passwords: &RenewablePasswords) {
        let mut last = lock(&passwords.0[0].schedule.last_read);
        let read = last.as_mut().expect("the command has run");
        read.ended_at = Instant::now() + Duration::from_secs(600);
    }

    /// A command that prints a file.
    fn command_that_prints(file: &Path) -> PasswordOrigin {
        let text = format!("/bin/cat {}", file.display());
        PasswordOrigin::Command(PasswordCommand::parse(&text).unwrap())
    }

    /// A reload runs a command, unless it has just run. Links authenticate with the new password. A
    /// command that is no longer named is never due.
    #[test]
    fn reload_runs_a_command_once_a_second() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "one\n100").unwrap();
        let origin = command_that_prints(file.path());
        let mut before = RenewablePasswords::default();
        before.read("x", &origin).unwrap();
        keep_recent(&before);
        std::fs::write(file.path(), "two\n100").unwrap();
        let mut after = before.again();
        assert_eq!(after.next_due(), None);
        assert_eq!(after.read("x", &origin).unwrap().0, "one");
        assert!(after.next_due() > before.next_due(), "75 s after that run");
        *lock(&before.0[0].schedule.last_read) = None;
        let mut after = before.again();
        assert_eq!(after.read("x", &origin).unwrap().0, "two");
        let changed = after.changed_since(&before);
        assert!(changed.len() == 1 && changed[0].renews_logins);
        assert_eq!(after.changes_since(&before), ["x `/bin/cat`"]);
    }

    /// A reload soon after a run takes the password of that run. If a server has refused it since,
    /// the next run is due as before.
    #[test]
    fn reload_keeps_the_next_run_of_a_refused_command() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "one").unwrap();
        let origin = command_that_prints(file.path());
        let mut in_effect = RenewablePasswords::default();
        in_effect.read("x", &origin).unwrap();
        keep_recent(&in_effect);
        assert!(!in_effect.0[0].schedule.starts(true, true, Instant::now()));
        let due = in_effect.next_due();
        assert!(due.is_some());
        let mut after = in_effect.again();
        after.read("x", &origin).unwrap();
        assert_eq!(after.next_due(), due);
        assert!(after.0[0].schedule.is_refused);
        assert!(!after.0[0].schedule.is_refusal_logged);
    }

    /// A reload that is not applied, such as a check, has run the command. The next one within a
    /// second does not run it again, and has its result: the password or the failure.
    #[test]
    fn dropped_reload_counts_as_a_run_of_the_command() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "one").unwrap();
        let origin = command_that_prints(file.path());
        let mut in_effect = RenewablePasswords::default();
        in_effect.read("x", &origin).unwrap();
        *lock(&in_effect.0[0].schedule.last_read) = None;
        std::fs::write(file.path(), "two").unwrap();
        let mut check = in_effect.again();
        assert_eq!(check.read("x", &origin).unwrap().0, "two");
        drop(check);
        keep_recent(&in_effect);
        std::fs::write(file.path(), "three").unwrap();
        assert_eq!(in_effect.again().read("x", &origin).unwrap().0, "two");
        *lock(&in_effect.0[0].schedule.last_read) = None;
        std::fs::remove_file(file.path()).unwrap();
        let failure = in_effect.again().read("x", &origin).unwrap_err();
        keep_recent(&in_effect);
        std::fs::write(file.path(), "four").unwrap();
        let repeated = in_effect.again().read("x", &origin).unwrap_err();
        assert_eq!(repeated, failure);
    }

    /// A command runs again before the lifetime of its password ends. After a failure it runs again
    /// soon, and then less often.
    #[test]
    fn command_runs_again_before_the_lifetime_ends() {
        let begun = Instant::now();
        let at = |seconds: f64| begun + Duration::from_secs_f64(seconds);
        let mut schedule = CommandSchedule::default();
        schedule.succeed(begun, Some(Duration::from_secs(100)));
        assert!(!schedule.starts(false, false, at(74.0)));
        assert!(schedule.starts(false, false, at(75.0)));
        let mut now = 75.0;
        for pause in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0] {
            schedule.fail(at(now));
            assert_eq!(schedule.due, Some(at(now + pause)));
            now += pause;
        }
        schedule.succeed(at(now), Some(Duration::from_secs(1)));
        assert_eq!(schedule.due, Some(at(now + 1.0)));
        schedule.succeed(at(now), None);
        assert_eq!(schedule.due, None);
        schedule.fail(at(now));
        assert_eq!(schedule.due, None);
    }

    /// A command runs at most once a second, however often servers refuse its password.
    #[test]
    fn refused_command_runs_once_a_second() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut schedule = CommandSchedule::default();
        *lock(&schedule.last_read) = Some(OriginRead {
            ended_at: begun,
            result: Err("it failed".to_owned()),
        });
        assert!(!schedule.starts(true, true, at(100)));
        assert_eq!(schedule.due, Some(at(1_000)));
        assert!(!schedule.starts(true, true, at(900)));
        // A due command that may not run yet does not wake the thread before it may.
        schedule.due = Some(at(500));
        assert!(!schedule.starts(false, false, at(600)));
        assert_eq!(schedule.due, Some(at(1_000)));
        assert!(!schedule.starts(false, false, at(999)));
        assert!(schedule.starts(false, false, at(1_000)));
        assert!(schedule.is_refused, "the log may need it");
    }

    /// A new password of a command is passed on once, with the renewal of logins. A command that
    /// fails leaves the password as it was.
    #[test]
    fn new_password_of_a_command_is_passed_on() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "one\n1").unwrap();
        let origin = command_that_prints(file.path());
        let mut passwords = RenewablePasswords::default();
        let (password, source) = passwords.read("x", &origin).unwrap();
        assert_eq!((password.as_str(), source), ("one", PasswordSource(0)));
        assert!(!format!("{passwords:?}").contains("one"));
        let mut seen = Vec::new();
        for content in ["two\n1", "two\n1", "", "three"] {
            std::fs::write(file.path(), content).unwrap();
            *lock(&passwords.0[0].schedule.last_read) = None;
            passwords.0[0].schedule.due = Some(Instant::now());
            let (none, mut failures) = (BTreeSet::new(), RenewalFailures::default());
            read_again(&mut passwords, &none, &mut failures, |source, new| {
                seen.push((source.0, new.password.to_owned(), new.renews_logins));
            });
        }
        let expected = ["two", "three"].map(|word| (0, word.to_owned(), true));
        assert_eq!(seen, expected);
        assert_eq!(passwords.next_due(), None);
    }
}
