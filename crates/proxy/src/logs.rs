//! The log: structured lines on standard error, among them the notices of workers.
//!
//! A worker logs its notices on its own thread and never waits: [`log_lines`](crate::log_lines) has
//! a queue. [`line_rates`](crate::line_rates) limits each kind of line that a client can cause,
//! over all workers.

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use respool_config::options::{LogFormat, LogLevel};
use respool_config::plain::plain;
use respool_driver::{Notice, Notify};
use tracing::level_filters::LevelFilter;
use tracing::{debug, error, info, warn};

use crate::line_rates::{LeftOutLines, LineKind, LineRates, subject_of};
use crate::log_lines::LogLines;

/// The most reasons for one lost link that are logged, until it is up again.
const REASONS_MAX: usize = 16;

/// The most servers with logged reasons. At it, all of them are forgotten, and a reason may be
/// logged again: nodes that come and go under new addresses never come back.
const SERVERS_MAX: usize = 4_096;

/// The time in which the same news from another worker is the same event. A worker without requests
/// checks the topology seldom.
const SAME_EVENT: Duration = Duration::from_secs(60);

/// The most such events that are remembered. At it, the oldest is forgotten, and may be logged
/// again.
const NEWS_MAX: usize = 256;

/// The log of the process.
pub(crate) struct Logs {
    lines: LogLines,
    notices: Arc<Mutex<Notices>>,
}

impl Logs {
    /// Starts the log. To be called once.
    ///
    /// # Errors
    /// When the thread that writes the log cannot be started.
    pub(crate) fn start(format: LogFormat, level: LogLevel) -> io::Result<Logs> {
        let level = match level {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        };
        let (lines, notices) = (LogLines::default(), Arc::default());
        let ticking: Arc<Mutex<Notices>> = Arc::clone(&notices);
        lines.start(Box::new(move |now| lock(&ticking).report(now)))?;
        let logs = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(lines.clone())
            // This would report a failed write to standard error on standard error, and panic.
            .log_internal_errors(false);
        match format {
            LogFormat::Text => logs
                .with_ansi(io::stderr().is_terminal())
                .with_target(false)
                .init(),
            LogFormat::Json => logs.json().flatten_event(true).with_target(false).init(),
        }
        log_panics(lines.clone());
        Ok(Logs { lines, notices })
    }

    /// The function to which workers pass their notices.
    pub(crate) fn notify(&self) -> Notify {
        let notices = Arc::clone(&self.notices);
        Arc::new(move |notice| lock(&notices).log(notice, Instant::now()))
    }

    /// Writes the lines that are left, as far as standard error takes them.
    pub(crate) fn finish(&self) {
        lock(&self.notices).report_all();
        self.lines.finish();
    }
}

fn lock(notices: &Mutex<Notices>) -> std::sync::MutexGuard<'_, Notices> {
    notices.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a panic of any thread a line of the log and the end of the process. The standard hook
/// writes to standard error itself, so a slow reader would delay the end.
fn log_panics(lines: LogLines) {
    std::panic::set_hook(Box::new(move |panic| {
        let backtrace = std::backtrace::Backtrace::capture();
        let backtrace = match backtrace.status() {
            std::backtrace::BacktraceStatus::Captured => Some(backtrace.to_string()),
            _ => None,
        };
        let (thread, reason) = (std::thread::current(), panic.to_string());
        error!(
            thread = thread.name(),
            reason, backtrace, "panicked: a defect of respool"
        );
        lines.finish();
        std::process::abort();
    }));
}

/// Decides which notices of workers are logged.
#[derive(Default)]
struct Notices {
    down: DownServers,
    /// Events of topologies and logins.
    shared: SharedNews,
    rates: LineRates,
}

/// The logged reasons for links that are down.
#[derive(Default)]
struct DownServers {
    /// The reasons since the last link, for each worker, pool and server. The same server may be in
    /// two pools, with other credentials.
    reasons: HashMap<(usize, String, String), Vec<String>>,
}

impl DownServers {
    /// Whether the reason was not logged yet for this link. Each failed attempt to connect is a
    /// notice, so without this a night without a server would fill the disk.
    fn is_news(&mut self, worker: usize, (pool, server): (&str, &str), reason: &str) -> bool {
        let whose = (worker, pool.to_owned(), server.to_owned());
        if self.reasons.len() >= SERVERS_MAX && !self.reasons.contains_key(&whose) {
            self.reasons.clear();
        }
        let reasons = self.reasons.entry(whose).or_default();
        let is_news = reasons.len() < REASONS_MAX && reasons.iter().all(|other| other != reason);
        if is_news {
            reasons.push(reason.to_owned());
        }
        is_news
    }
}

/// The events of topologies and logins of the last [`SAME_EVENT`]. Each worker finds an event by
/// itself, so one event comes from each of them.
#[derive(Default)]
struct SharedNews(Vec<NewsItem>);

/// An event of a topology or a login.
struct NewsItem {
    pool: String,
    text: String,
    /// When the first worker reported it.
    since: Instant,
    /// The workers that have reported it.
    workers: Vec<usize>,
}

impl SharedNews {
    /// Whether this is a new event. The same text from another worker is the same event; the same
    /// text from the same worker is a new one.
    fn is_news(&mut self, worker: usize, (pool, text): (&str, &str), now: Instant) -> bool {
        self.0
            .retain(|tale| now.duration_since(tale.since) < SAME_EVENT);
        let same = |tale: &&mut NewsItem| tale.pool == pool && tale.text == text;
        let mut tales = self.0.iter_mut().filter(same);
        if let Some(tale) = tales.find(|tale| !tale.workers.contains(&worker)) {
            tale.workers.push(worker);
            return false;
        }
        if self.0.len() >= NEWS_MAX {
            self.0.remove(0);
        }
        self.0.push(NewsItem {
            pool: pool.to_owned(),
            text: text.to_owned(),
            since: now,
            workers: vec![worker],
        });
        true
    }
}

impl Notices {
    fn log(&mut self, notice: Notice, now: Instant) {
        match notice {
            Notice::LinkUp {
                worker,
                server,
                pool,
                version,
            } => {
                self.down
                    .reasons
                    .remove(&(worker, pool.clone(), server.clone()));
                if self.admits_link(LineKind::LinkUp, worker, (&pool, &server), now) {
                    let (at, version) = (plain(&server), &*plain(&version));
                    info!(worker, server = %at, pool, version, "link up");
                }
            }
            Notice::LinkDown {
                worker,
                server,
                pool,
                reason,
            } => {
                let is_news = self.down.is_news(worker, (&pool, &server), &reason);
                let (at, why) = (plain(&server), plain(&reason));
                if !is_news {
                    debug!(worker, server = %at, pool, reason = &*why, "link still down");
                } else if self.admits_link(LineKind::LinkDown, worker, (&pool, &server), now) {
                    warn!(worker, server = %at, pool, reason = &*why, "link down");
                }
            }
            Notice::SessionClosed {
                worker,
                peer,
                reason,
            } => {
                let reason = &*plain(&reason);
                if self.admits(LineKind::SessionClosed, &subject_of(reason), now) {
                    warn!(worker, peer, reason, "session closed");
                }
            }
            Notice::Topology { worker, pool, text } => {
                let is_news = self.shared.is_news(worker, (&pool, &text), now);
                let text = &*plain(&text);
                if !is_news {
                    debug!(
                        worker,
                        pool, text, "topology, as another worker has found before"
                    );
                } else if self.admits(LineKind::Topology, &pool, now) {
                    info!(worker, pool, text, "topology");
                }
            }
            login @ (Notice::LoginWithdrawn { .. } | Notice::LoginAccepted { .. }) => {
                self.log_login(login, now);
            }
            Notice::BoundReached {
                worker,
                name,
                effect,
            } => {
                if self.admits(LineKind::Other, name, now) {
                    warn!(worker, limit = name, effect, "limit reached");
                }
            }
            Notice::LoginsRefused { from, count } => {
                if self.admits(LineKind::LoginsRefused, "", now) {
                    warn!(from, count, "logins refused");
                }
            }
            Notice::OptionsSet {
                peer,
                pool,
                listener,
                options,
                old_names,
            } => {
                if self.admits(LineKind::OptionsSet, &pool, now) {
                    say_options_set(&peer, &pool, &listener, &plain(&options), &old_names);
                }
            }
            Notice::AcceptFailed {
                worker,
                reason,
                detail,
                clients,
            } => {
                if self.admits_many(LineKind::Refused, reason, clients, now) {
                    warn!(worker, reason, detail, clients, "clients were refused");
                }
            }
            Notice::WorkerFailed { worker, reason } => {
                error!(worker, reason, "a worker has failed");
            }
            other => {
                if self.admits(LineKind::Other, "", now) {
                    info!(notice = ?other, "notice");
                }
            }
        }
    }

    /// Logs that a server refuses the configured login, or accepts it again.
    fn log_login(&mut self, notice: Notice, now: Instant) {
        match notice {
            Notice::LoginWithdrawn {
                worker,
                server,
                pool,
                reason,
            } => {
                let kind = LineKind::LoginWithdrawn;
                if self.admits_shared(kind, worker, (&pool, &server), now) {
                    let (server, reason) = (&*plain(&server), &*plain(&reason));
                    let effect = "new sessions must authenticate, older ones keep their links";
                    warn!(worker, server, pool, reason, effect, "login withdrawn");
                }
            }
            Notice::LoginAccepted {
                worker,
                server,
                pool,
            } => {
                let kind = LineKind::LoginAccepted;
                if self.admits_shared(kind, worker, (&pool, &server), now) {
                    let server = &*plain(&server);
                    info!(worker, server, pool, "login accepted again");
                }
            }
            _ => {}
        }
    }

    /// Whether a line may be written. Every line that a client can cause asks here.
    fn admits(&mut self, kind: LineKind, subject: &str, now: Instant) -> bool {
        self.admits_many(kind, subject, 1, now)
    }

    /// The same for a line about `events` events.
    fn admits_many(&mut self, kind: LineKind, subject: &str, events: u64, now: Instant) -> bool {
        while let Some(left_out) = self.rates.poll_left_out(now) {
            say_left_out(&left_out);
        }
        self.rates.admits_many(kind, subject, events, now)
    }

    /// The same for a line about a link.
    fn admits_link(
        &mut self,
        kind: LineKind,
        worker: usize,
        (pool, server): (&str, &str),
        now: Instant,
    ) -> bool {
        let subject = format!("server {}, pool {pool}, worker {worker}", plain(server));
        self.admits(kind, &subject, now)
    }

    /// The same for a line about a server, if no other worker has reported the event before.
    fn admits_shared(
        &mut self,
        kind: LineKind,
        worker: usize,
        (pool, server): (&str, &str),
        now: Instant,
    ) -> bool {
        let text = format!("{} {server}", kind.name());
        let subject = format!("server {}, pool {pool}", plain(server));
        self.shared.is_news(worker, (pool, &text), now) && self.admits(kind, &subject, now)
    }

    /// Logs how many lines were left out in the minutes that are over. Returns when to call it
    /// again.
    fn report(&mut self, now: Instant) -> Option<Instant> {
        while let Some(left_out) = self.rates.poll_left_out(now) {
            say_left_out(&left_out);
        }
        self.rates.due()
    }

    /// The same, also for minutes that are not over.
    fn report_all(&mut self) {
        self.rates.take_all().iter().for_each(say_left_out);
    }
}

/// An old name is a warning: it works until the next version only.
fn say_options_set(peer: &str, pool: &str, listener: &str, options: &str, old_names: &str) {
    match old_names.is_empty() {
        true => info!(peer, pool, listener, options, "options set"),
        false => warn!(peer, pool, listener, options, old_names, "options set"),
    }
}

/// Logs how many lines of a kind and subject were left out.
pub(crate) fn say_left_out(left_out: &LeftOutLines) {
    let (line, count) = (left_out.kind.name(), left_out.count);
    if count == 0 {
        return;
    }
    let about = Some(left_out.subject.as_str()).filter(|subject| !subject.is_empty());
    match left_out.kind.is_info() {
        true => info!(line, count, about, "lines like these were left out"),
        false => warn!(line, count, about, "lines like these were left out"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    /// A panic of a worker ends the process. The last line of the log names the worker, the place
    /// and the reason.
    #[test]
    fn panic_of_a_worker_ends_the_process_with_a_line() {
        const IS_CHILD: &str = "PANICS_IN_A_TEST";
        if std::env::var_os(IS_CHILD).is_some() {
            let _logs = Logs::start(LogFormat::Text, LogLevel::Info).expect("a thread");
            let worker = std::thread::Builder::new().name("worker-3".to_owned());
            let worker = worker.spawn(|| panic!("a broken invariant"));
            let _ = worker.expect("a thread").join();
            return;
        }
        let name = "logs::tests::panic_of_a_worker_ends_the_process_with_a_line";
        let child = Command::new(std::env::current_exe().expect("a test program"))
            .args(["--exact", name, "--nocapture"])
            .env(IS_CHILD, "1")
            .env_remove("RUST_BACKTRACE")
            .output()
            .expect("it runs again");
        assert_eq!(child.status.signal(), Some(signal_hook::consts::SIGABRT));
        let log = String::from_utf8_lossy(&child.stderr);
        let last = log.lines().last().unwrap_or_default();
        for part in ["ERROR", "worker-3", file!(), "a broken invariant"] {
            assert!(last.contains(part), "{part}: {log}");
        }
    }

    /// Reasons for servers that never come back are forgotten at the bound.
    #[test]
    fn logged_reasons_are_bounded() {
        let mut down = DownServers::default();
        for port in 0..3 * SERVERS_MAX {
            let server = format!("a:{port}");
            assert!(down.is_news(0, ("p", &server), "refused"));
            assert!(!down.is_news(0, ("p", &server), "refused"));
            assert!(down.reasons.len() <= SERVERS_MAX);
        }
    }

    /// Each reason for a lost link is logged once, until the link is up again.
    #[test]
    fn reason_is_logged_once_until_the_link_is_up() {
        let mut notices = Notices::default();
        let down = &mut notices.down;
        assert!(down.is_news(0, ("p", "a:1"), "refused"));
        assert!(!down.is_news(0, ("p", "a:1"), "refused"));
        assert!(down.is_news(1, ("p", "a:1"), "refused"));
        assert!(down.is_news(0, ("p", "a:2"), "refused"));
        assert!(down.is_news(0, ("p", "a:1"), "timed out"));
        for _ in 0..2 {
            assert!(!down.is_news(0, ("p", "a:1"), "refused"));
            assert!(!down.is_news(0, ("p", "a:1"), "timed out"));
        }
        assert!(down.is_news(0, ("q", "a:1"), "timed out"));
        let up = Notice::LinkUp {
            worker: 0,
            server: "a:1".into(),
            pool: "p".into(),
            version: "redis".into(),
        };
        notices.log(up, Instant::now());
        let down = &mut notices.down;
        assert!(down.is_news(0, ("p", "a:1"), "timed out"));
        assert!(!down.is_news(1, ("p", "a:1"), "refused"));
        assert!(!down.is_news(0, ("q", "a:1"), "timed out"));
        let always_another = (0..100).filter(|reason| {
            let reason = reason.to_string();
            down.is_news(2, ("p", "a:1"), &reason)
        });
        assert_eq!(always_another.count(), REASONS_MAX);
    }

    /// An event that all workers report is logged once. When it happens again, it is logged again.
    #[test]
    fn topology_event_is_logged_once() {
        let (mut topology, begun) = (SharedNews::default(), Instant::now());
        let mut says = |worker, text, ms| {
            let now = begun + Duration::from_millis(ms);
            topology.is_news(worker, ("p", text), now)
        };
        assert!(says(0, "moved", 0));
        assert!(!says(2, "moved", 5));
        assert!(says(2, "moved", 6), "it has moved again");
        assert!(!says(1, "moved", 7), "that was the first time");
        assert!(!says(0, "moved", 8), "and this is the second");
        assert!(!says(1, "moved", 9));
        assert!(says(0, "moved back", 10));
        assert!(says(1, "moved back", 70_000), "much later");
    }

    #[test]
    fn topology_events_are_bounded() {
        let (mut topology, now) = (SharedNews::default(), Instant::now());
        for number in 0..3 * NEWS_MAX {
            assert!(topology.is_news(0, ("p", &number.to_string()), now));
            assert!(topology.0.len() <= NEWS_MAX);
        }
    }
}
