//! Structured logs to standard error, and the workers' notices among them.

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use respool_driver::{Notice, Notify};
use tracing::level_filters::LevelFilter;
use tracing::{debug, error, info, warn};

use crate::options::{LogFormat, LogLevel};

/// Notices that wait to be written. At it, further ones are counted and dropped: a worker never
/// waits for whoever reads our logs.
const NOTICES_MAX: usize = 1_024;

/// Reasons why a server is away, until it is back. At it, further ones are no news.
const REASONS_MAX: usize = 16;

/// Servers of which it is known what was said. At it, all of that is forgotten, and may be said once more: nodes that come and go at
/// ever new addresses are never back.
const SERVERS_MAX: usize = 4_096;

/// How long after one worker another one may find out the same: one that nobody asks anything asks seldom.
const SAME_EVENT: Duration = Duration::from_secs(60);

/// What was told of the topology lately. At it, the oldest is forgotten, and may be told once more.
const TALES_MAX: usize = 256;

/// Starts to log. Called once.
pub(crate) fn start(format: LogFormat, level: LogLevel) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let logs = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        // It would tell of a failed write to standard error on standard error, and panic there.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => logs
            .with_ansi(io::stderr().is_terminal())
            .with_target(false)
            .init(),
        LogFormat::Json => logs.json().flatten_event(true).with_target(false).init(),
    }
}

/// The thread that writes what workers notice.
pub(crate) struct NoticeWriter {
    sender: SyncSender<Option<Notice>>,
    thread: JoinHandle<()>,
}

impl NoticeWriter {
    /// Starts it.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start() -> io::Result<(Notify, NoticeWriter)> {
        let dropped = Arc::new(AtomicU64::new(0));
        let (sender, receiver) = sync_channel(NOTICES_MAX);
        let sink = sink(sender.clone(), Arc::clone(&dropped));
        let thread = thread::Builder::new()
            .name("notices".into())
            .spawn(move || write(&receiver, &dropped))?;
        Ok((sink, NoticeWriter { sender, thread }))
    }

    /// Waits until every notice that came before has been written.
    pub(crate) fn finish(self) {
        // Either fails only when that thread has ended by itself.
        let _ = self.sender.send(None);
        let _ = self.thread.join();
    }
}

fn sink(sender: SyncSender<Option<Notice>>, dropped: Arc<AtomicU64>) -> Notify {
    Arc::new(move |notice| {
        if sender.try_send(Some(notice)).is_err() {
            dropped.fetch_add(1, Ordering::Relaxed);
        }
    })
}

/// Writes until the first `None`.
fn write(receiver: &Receiver<Option<Notice>>, dropped: &AtomicU64) {
    let (mut down, mut told) = (Down::default(), Told::default());
    while let Ok(Some(notice)) = receiver.recv() {
        log(notice, &mut down, &mut told, Instant::now());
        let count = dropped.swap(0, Ordering::Relaxed);
        if count > 0 {
            warn!(count, "notices dropped: standard error is read too slowly");
        }
    }
}

/// What the log has said of servers that are away.
#[derive(Default)]
struct Down {
    /// Every reason since it was last there, for each worker, pool and server: the same server may be in two pools, with other
    /// credentials.
    said: HashMap<(usize, String, String), Vec<String>>,
}

impl Down {
    /// Every attempt to connect that fails is a notice, for as long as a server is away. Only another
    /// reason is news, and that once, so that a night without a server does not fill the disk.
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

/// What workers have said of the topology lately. Each finds out for itself, so one event comes from each of them.
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
    /// Whether this is another event than what a worker said shortly before. Who says something twice speaks of two.
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

fn log(notice: Notice, down: &mut Down, told: &mut Told, now: Instant) {
    match notice {
        Notice::LinkUp {
            worker,
            server,
            pool,
            version,
        } => {
            info!(worker, server = %server, pool, version, "link up");
            down.said.remove(&(worker, pool, server));
        }
        Notice::LinkDown {
            worker,
            server,
            pool,
            reason,
        } => {
            if down.is_news(worker, (&pool, &server), &reason) {
                warn!(worker, server = %server, pool, reason, "link down");
            } else {
                debug!(worker, server = %server, pool, reason, "link still down");
            }
        }
        Notice::SessionClosed {
            worker,
            peer,
            reason,
        } => {
            warn!(worker, peer, reason, "session closed");
        }
        Notice::Topology { worker, pool, text } => {
            if told.is_news(worker, (&pool, &text), now) {
                info!(worker, pool, text, "topology");
            } else {
                debug!(
                    worker,
                    pool, text, "topology, as another worker has found, too"
                );
            }
        }
        Notice::OptionsSet {
            peer,
            pool,
            listener,
            options,
        } => info!(peer, pool, listener, options, "options set"),
        Notice::AcceptFailed { worker, reason } => {
            warn!(worker, reason, "a newcomer could not be accepted");
        }
        Notice::WorkerFailed { worker, reason } => {
            error!(worker, reason, "a worker has failed");
        }
        other => info!(notice = ?other, "notice"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_notices_and_counts_them_instead_of_waiting() {
        let dropped = Arc::new(AtomicU64::new(0));
        let (sender, receiver) = sync_channel(2);
        let sink = sink(sender.clone(), Arc::clone(&dropped));
        for worker in 0..5 {
            sink(Notice::AcceptFailed {
                worker,
                reason: "test".into(),
            });
        }
        assert_eq!(dropped.load(Ordering::Relaxed), 3);
        assert_eq!(receiver.try_iter().count(), 2);
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
        let mut down = Down::default();
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
        log(up, &mut down, &mut Told::default(), Instant::now());
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
