//! Structured logs to standard error, and the workers' notices among them.
//!
//! A worker writes its notices itself: [`log_lines`](crate::log_lines) never makes it wait. Each
//! line that a client can cause has a rate ([`line_rates`](crate::line_rates)), which all workers
//! share.

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use respool_driver::{Notice, Notify};
use tracing::level_filters::LevelFilter;
use tracing::{debug, error, info, warn};

use crate::line_rates::{Kind, LeftOut, LineRates, subject_of};
use crate::log_lines::LogLines;
use crate::options::{LogFormat, LogLevel};
use crate::plain::plain;

/// Reasons why a server is away, until it is back. At it, further ones are no news.
const REASONS_MAX: usize = 16;

/// Servers of which it is known what was said. At it, all of that is forgotten, and may be said
/// once more: nodes that come and go at ever new addresses are never back.
const SERVERS_MAX: usize = 4_096;

/// How long after one worker another one may find out the same: one that nobody asks anything asks
/// seldom.
const SAME_EVENT: Duration = Duration::from_secs(60);

/// What was told of the topology lately. At it, the oldest is forgotten, and may be told once more.
const TALES_MAX: usize = 256;

/// The log of the process.
pub(crate) struct Logs {
    lines: LogLines,
    notices: Arc<Mutex<Notices>>,
}

impl Logs {
    /// Starts to log. Called once.
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
            // It would tell of a failed write to standard error on standard error, and panic there.
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

    /// Where workers put their notices.
    pub(crate) fn notify(&self) -> Notify {
        let notices = Arc::clone(&self.notices);
        Arc::new(move |notice| lock(&notices).log(notice, Instant::now()))
    }

    /// Writes what is left, but waits for nothing that standard error does not take.
    pub(crate) fn finish(&self) {
        lock(&self.notices).report_all();
        self.lines.finish();
    }
}

fn lock(notices: &Mutex<Notices>) -> std::sync::MutexGuard<'_, Notices> {
    notices.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A panic of any thread becomes a line of the log, and ends the process in every build. The
/// standard hook writes to standard error itself, and would wait for a reader before the process
/// could end.
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

/// What workers notice, on its way into the log.
#[derive(Default)]
struct Notices {
    down: Down,
    told: Told,
    rates: LineRates,
}

/// What the log has said of servers that are away.
#[derive(Default)]
struct Down {
    /// Every reason since it was last there, for each worker, pool and server: the same server may
    /// be in two pools, with other credentials.
    said: HashMap<(usize, String, String), Vec<String>>,
}

impl Down {
    /// Every attempt to connect that fails is a notice, for as long as a server is away. Only
    /// another reason is news, and that once, so that a night without a server does not fill the
    /// disk.
    fn is_news(&mut self, worker: usize, (pool, server): (&str, &str), reason: &str) -> bool {
        let whose = (worker, pool.to_owned(), server.to_owned());
        if self.said.len() >= SERVERS_MAX && !self.said.contains_key(&whose) {
            self.said.clear();
        }
        let said = self.said.entry(whose).or_default();
        let is_news = said.len() < REASONS_MAX && said.iter().all(|other| other != reason);
        if is_news {
            said.push(reason.to_owned());
        }
        is_news
    }
}

/// What workers have said of the topology lately. Each finds out for itself, so one event comes
/// from each of them.
#[derive(Default)]
struct Told(Vec<Tale>);

struct Tale {
    pool: String,
    text: String,
    since: Instant,
    /// Who has said it since.
    workers: Vec<usize>,
}

impl Told {
    /// Whether this is another event than what a worker said shortly before. Who says something
    /// twice speaks of two.
    fn is_news(&mut self, worker: usize, (pool, text): (&str, &str), now: Instant) -> bool {
        self.0
            .retain(|tale| now.duration_since(tale.since) < SAME_EVENT);
        let same = |tale: &&mut Tale| tale.pool == pool && tale.text == text;
        let mut tales = self.0.iter_mut().filter(same);
        if let Some(tale) = tales.find(|tale| !tale.workers.contains(&worker)) {
            tale.workers.push(worker);
            return false;
        }
        if self.0.len() >= TALES_MAX {
            self.0.remove(0);
        }
        self.0.push(Tale {
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
                    .said
                    .remove(&(worker, pool.clone(), server.clone()));
                if self.admits_link(Kind::LinkUp, worker, (&pool, &server), now) {
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
                } else if self.admits_link(Kind::LinkDown, worker, (&pool, &server), now) {
                    warn!(worker, server = %at, pool, reason = &*why, "link down");
                }
            }
            Notice::SessionClosed {
                worker,
                peer,
                reason,
            } => {
                let reason = &*plain(&reason);
                if self.admits(Kind::SessionClosed, &subject_of(reason), now) {
                    warn!(worker, peer, reason, "session closed");
                }
            }
            Notice::Topology { worker, pool, text } => {
                let is_news = self.told.is_news(worker, (&pool, &text), now);
                let text = &*plain(&text);
                if !is_news {
                    debug!(
                        worker,
                        pool, text, "topology, as another worker has found, too"
                    );
                } else if self.admits(Kind::Topology, &pool, now) {
                    info!(worker, pool, text, "topology");
                }
            }
            Notice::BoundReached {
                worker,
                name,
                effect,
            } => {
                if self.admits(Kind::Other, name, now) {
                    warn!(worker, bound = name, effect, "bound reached");
                }
            }
            Notice::LoginsRefused { from, count } => {
                if self.admits(Kind::LoginsRefused, "", now) {
                    warn!(from, count, "logins refused");
                }
            }
            Notice::OptionsSet {
                peer,
                pool,
                listener,
                options,
            } => {
                if self.admits(Kind::OptionsSet, &pool, now) {
                    let options = &*plain(&options);
                    info!(peer, pool, listener, options, "options set");
                }
            }
            Notice::AcceptFailed {
                worker,
                reason,
                detail,
                clients,
            } => {
                if self.admits_many(Kind::Refused, reason, clients, now) {
                    warn!(worker, reason, detail, clients, "clients were refused");
                }
            }
            Notice::WorkerFailed { worker, reason } => {
                error!(worker, reason, "a worker has failed");
            }
            other => {
                if self.admits(Kind::Other, "", now) {
                    info!(notice = ?other, "notice");
                }
            }
        }
    }

    /// Every kind of line that a client can cause asks here before it is written.
    fn admits(&mut self, kind: Kind, subject: &str, now: Instant) -> bool {
        self.admits_many(kind, subject, 1, now)
    }

    /// The same for a line that stands for many events.
    fn admits_many(&mut self, kind: Kind, subject: &str, events: u64, now: Instant) -> bool {
        while let Some(left_out) = self.rates.poll_left_out(now) {
            say_left_out(&left_out);
        }
        self.rates.admits_many(kind, subject, events, now)
    }

    fn admits_link(
        &mut self,
        kind: Kind,
        worker: usize,
        (pool, server): (&str, &str),
        now: Instant,
    ) -> bool {
        let subject = format!("server {}, pool {pool}, worker {worker}", plain(server));
        self.admits(kind, &subject, now)
    }

    /// Says what was left out in the minutes that are over. Returns when to call it again.
    fn report(&mut self, now: Instant) -> Option<Instant> {
        while let Some(left_out) = self.rates.poll_left_out(now) {
            say_left_out(&left_out);
        }
        self.rates.due()
    }

    /// The same, for all minutes.
    fn report_all(&mut self) {
        self.rates.take_all().iter().for_each(say_left_out);
    }
}

/// Says how many lines were left out, and what they were about.
pub(crate) fn say_left_out(left_out: &LeftOut) {
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

    /// A worker that panics ends the process. The last line says which worker it was, where and
    /// why.
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

    #[test]
    fn what_was_said_of_servers_that_never_come_back_is_forgotten_at_a_bound() {
        let mut down = Down::default();
        for port in 0..3 * SERVERS_MAX {
            let server = format!("a:{port}");
            assert!(down.is_news(0, ("p", &server), "refused"));
            assert!(!down.is_news(0, ("p", &server), "refused"));
            assert!(down.said.len() <= SERVERS_MAX);
        }
    }

    #[test]
    fn a_server_that_stays_away_is_news_once_for_each_reason_until_it_is_back() {
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

    #[test]
    fn what_every_worker_finds_out_is_told_once_and_what_happens_again_once_more() {
        let (mut told, begun) = (Told::default(), Instant::now());
        let mut says = |worker, text, ms| {
            let now = begun + Duration::from_millis(ms);
            told.is_news(worker, ("p", text), now)
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
    fn what_was_told_of_the_topology_is_forgotten_at_a_bound() {
        let (mut told, now) = (Told::default(), Instant::now());
        for number in 0..3 * TALES_MAX {
            assert!(told.is_news(0, ("p", &number.to_string()), now));
            assert!(told.0.len() <= TALES_MAX);
        }
    }
}
