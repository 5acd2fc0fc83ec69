//! Limits the log lines of one kind in a minute.
//!
//! A client can cause some kinds of lines as often as it likes. Each kind has a rate for each
//! subject. The subject is chosen such that one flood does not hide other lines: a reason, a pool,
//! or one worker's link to a server. All workers share one [`LineRates`].

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The time over which a rate counts, from its first line on.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);

/// The most windows at once. At it, lines about new subjects share one window for each kind.
const WINDOWS_MAX: usize = 4_096;

/// The most windows at once of a kind whose subjects are reasons. A client may choose text or
/// addresses in a reason.
const REASONS_MAX: usize = 16;

/// A kind of log line that a client, or a server that flaps, can cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LineKind {
    /// `link up`.
    LinkUp,
    /// `link down`.
    LinkDown,
    /// `session closed`.
    SessionClosed,
    /// `topology`.
    Topology,
    /// `login withdrawn`.
    LoginWithdrawn,
    /// `login accepted again`.
    LoginAccepted,
    /// `logins refused`.
    LoginsRefused,
    /// `options set`.
    OptionsSet,
    /// `clients were refused`.
    Refused,
    /// A signal without effect.
    Signal,
    /// Every other notice of a worker.
    Other,
}

impl LineKind {
    /// The most lines about one subject in one window.
    pub(crate) fn lines_max(self) -> u32 {
        match self {
            LineKind::SessionClosed | LineKind::Refused | LineKind::Signal => 5,
            LineKind::LinkUp
            | LineKind::LinkDown
            | LineKind::LoginWithdrawn
            | LineKind::LoginAccepted
            | LineKind::LoginsRefused
            | LineKind::OptionsSet
            | LineKind::Other => 10,
            LineKind::Topology => 30,
        }
    }

    /// The message of its lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            LineKind::LinkUp => "link up",
            LineKind::LinkDown => "link down",
            LineKind::SessionClosed => "session closed",
            LineKind::Topology => "topology",
            LineKind::LoginWithdrawn => "login withdrawn",
            LineKind::LoginAccepted => "login accepted again",
            LineKind::LoginsRefused => "logins refused",
            LineKind::OptionsSet => "options set",
            LineKind::Refused => "clients were refused",
            LineKind::Signal => "signal",
            LineKind::Other => "notice",
        }
    }

    /// Whether the subjects of its lines are reasons.
    fn has_reasons(self) -> bool {
        matches!(self, LineKind::SessionClosed | LineKind::Refused)
    }

    /// Whether its lines have the level `info`; else they have `warn`.
    pub(crate) fn is_info(self) -> bool {
        matches!(
            self,
            LineKind::LinkUp
                | LineKind::Topology
                | LineKind::LoginAccepted
                | LineKind::OptionsSet
                | LineKind::Other
        )
    }
}

/// Lines that were left out in one window.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LeftOutLines {
    /// The kind of the lines.
    pub(crate) kind: LineKind,
    /// Their subject; empty: several subjects.
    pub(crate) subject: String,
    /// Their number.
    pub(crate) count: u64,
}

/// The rates of all kinds.
///
/// Call [`LineRates::admits`] for each line. Call [`LineRates::poll_left_out`] until it returns
/// `None` when [`LineRates::due`] has come. Time never runs back.
#[derive(Debug, Default)]
pub(crate) struct LineRates {
    windows: HashMap<(LineKind, String), RateWindow>,
    /// The earliest end of a window that admits no more lines.
    due: Option<Instant>,
}

#[derive(Debug)]
struct RateWindow {
    since: Instant,
    written: u32,
    left_out: u64,
}

impl LineRates {
    /// Whether a line may be written. If not, it is counted.
    pub(crate) fn admits(&mut self, kind: LineKind, subject: &str, now: Instant) -> bool {
        self.admits_many(kind, subject, 1, now)
    }

    /// The same for a line about `events` events. If it is left out, it counts as many.
    pub(crate) fn admits_many(
        &mut self,
        kind: LineKind,
        subject: &str,
        events: u64,
        now: Instant,
    ) -> bool {
        let mut key = (kind, subject.to_owned());
        if !self.windows.contains_key(&key) && self.is_full(kind, now) {
            key.1.clear();
        }
        let window = self.windows.entry(key).or_insert(RateWindow {
            since: now,
            written: 0,
            left_out: 0,
        });
        // A window that left lines out ends only when these are reported.
        if window.left_out == 0 && now.duration_since(window.since) >= WINDOW {
            window.since = now;
            window.written = 0;
        }
        let admitted = window.written < kind.lines_max();
        if admitted {
            window.written += 1;
        } else {
            window.left_out += events;
        }
        if window.written == kind.lines_max() {
            let end = window.since + WINDOW;
            self.due = Some(self.due.map_or(end, |due| due.min(end)));
        }
        admitted
    }

    /// The next time to poll.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The lines that a window has left out, once the window has ended.
    pub(crate) fn poll_left_out(&mut self, now: Instant) -> Option<LeftOutLines> {
        if self.due.is_none_or(|due| now < due) {
            return None;
        }
        self.forget_ended(now);
        let is_over = |window: &RateWindow| now.duration_since(window.since) >= WINDOW;
        let over = self.windows.iter().find(|(_, window)| is_over(window));
        let key = over.map(|(key, _)| key.clone());
        if let Some(key) = key {
            let window = self.windows.remove(&key)?;
            let (kind, subject) = key;
            return Some(LeftOutLines {
                kind,
                subject,
                count: window.left_out,
            });
        }
        let full = self
            .windows
            .iter()
            .filter(|((kind, _), window)| window.written == kind.lines_max());
        self.due = full.map(|(_, window)| window.since + WINDOW).min();
        None
    }

    /// All lines that were left out and not reported yet, for the end of the process.
    pub(crate) fn take_all(&mut self) -> Vec<LeftOutLines> {
        self.due = None;
        let all = self.windows.drain();
        let left_out = all.map(|((kind, subject), window)| LeftOutLines {
            kind,
            subject,
            count: window.left_out,
        });
        left_out.filter(|left_out| left_out.count > 0).collect()
    }

    /// Whether there is no room for a new subject of this kind.
    fn is_full(&mut self, kind: LineKind, now: Instant) -> bool {
        let is_full = |windows: &HashMap<(LineKind, String), RateWindow>| {
            let of_kind = || windows.keys().filter(|(other, _)| *other == kind).count();
            windows.len() >= WINDOWS_MAX || kind.has_reasons() && of_kind() >= REASONS_MAX
        };
        if is_full(&self.windows) {
            self.forget_ended(now);
        }
        is_full(&self.windows)
    }

    /// Forgets windows that have ended and have nothing to report.
    fn forget_ended(&mut self, now: Instant) {
        self.windows
            .retain(|_, window| window.left_out > 0 || now.duration_since(window.since) < WINDOW);
    }
}

/// The subject of a reason: its start, without numbers, so that two clients have the same.
pub(crate) fn subject_of(reason: &str) -> String {
    const CHARS_MAX: usize = 48;
    let mut subject = String::new();
    for letter in reason.chars().take(CHARS_MAX) {
        match letter {
            '0'..='9' if subject.ends_with('#') => {}
            '0'..='9' => subject.push('#'),
            other => subject.push(other),
        }
    }
    subject
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: LineKind = LineKind::SessionClosed;

    fn after(begun: Instant, ms: u64) -> Instant {
        begun + Duration::from_millis(ms)
    }

    /// A flood writes its first lines, and one count at the end of each minute.
    #[test]
    fn flood_writes_few_lines_and_a_count_a_minute() {
        let (mut rates, begun) = (LineRates::default(), Instant::now());
        let (mut written, mut counts, mut left_out) = (0, 0, 0);
        for ms in 0..180_000 {
            let now = after(begun, ms);
            while let Some(report) = rates.poll_left_out(now) {
                assert_eq!((report.kind, report.subject.as_str()), (KIND, "a"));
                counts += 1;
                left_out += report.count;
            }
            written += u64::from(rates.admits(KIND, "a", now));
        }
        assert_eq!((written, counts), (3 * u64::from(KIND.lines_max()), 2));
        let rest = rates.take_all();
        assert_eq!(rest.len(), 1);
        assert_eq!(written + left_out + rest[0].count, 180_000);
    }

    /// A count comes at the end of the minute although no further line comes.
    #[test]
    fn count_comes_when_the_flood_is_over() {
        let (mut rates, begun) = (LineRates::default(), Instant::now());
        for _ in 0..100 {
            rates.admits(KIND, "a", begun);
        }
        assert_eq!(rates.due(), Some(begun + WINDOW));
        assert_eq!(rates.poll_left_out(after(begun, 59_999)), None);
        let report = rates.poll_left_out(after(begun, 60_000)).unwrap();
        assert_eq!(report.count, 100 - u64::from(KIND.lines_max()));
        assert_eq!(rates.poll_left_out(after(begun, 60_000)), None);
        assert_eq!(rates.due(), None);
        assert!(rates.windows.is_empty());
    }

    /// One flood takes nothing from lines of another kind or about another subject.
    #[test]
    fn flood_leaves_other_lines_alone() {
        let (mut rates, now) = (LineRates::default(), Instant::now());
        while rates.admits(KIND, "a", now) {}
        assert!(rates.admits(KIND, "b", now));
        assert!(rates.admits(LineKind::LinkDown, "a", now));
    }

    /// A client that makes new reasons all the time gets no more lines than the bound of reasons
    /// allows.
    #[test]
    fn new_subjects_are_bounded() {
        let (mut rates, now) = (LineRates::default(), Instant::now());
        for kind in [KIND, LineKind::Refused] {
            let lines = (0..10_000).filter(|number| rates.admits(kind, &format!("r{number}"), now));
            let lines = lines.count();
            assert_eq!(lines, REASONS_MAX + kind.lines_max() as usize);
        }
        for number in 0..3 * WINDOWS_MAX {
            rates.admits(LineKind::LinkDown, &number.to_string(), now);
            assert!(rates.windows.len() <= WINDOWS_MAX + 2);
        }
        let later = now + WINDOW;
        while rates.poll_left_out(later).is_some() {}
        assert!(rates.windows.is_empty());
    }

    #[test]
    fn subject_has_no_numbers_and_is_short() {
        let subject = subject_of("client 17 asked for it: CLIENT KILL");
        assert_eq!(subject, "client # asked for it: CLIENT KILL");
        assert_eq!(subject_of(&"é".repeat(100)).chars().count(), 48);
    }
}
