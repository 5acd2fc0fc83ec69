//! How long a login waits because its address has sent wrong passwords.
//!
//! Each address has a score: one for each wrong password, and one for each new login that no server
//! has answered yet. The score shrinks with time. From [`GUESSES_FREE`] on, every login of the
//! address waits before it is tried, right or wrong: otherwise the time of an answer would reveal
//! the answer. An address without a wrong password is an application that starts with many users:
//! its logins follow each other by [`LOGIN_SPACING_US`], for [`LOGIN_BURST_MS`] at the most.
//!
//! ```text
//!   score      0 .. 7    8      9      10     11     12     13 ..
//!   waits ms      0     50    100    200    400    800   1000
//!   and at least GUESS_SPACING_US behind the login in front
//! ```
//!
//! The wait is never longer than [`GUESS_WAIT_MS_MAX`]: a login that would have to wait longer is
//! refused at that time without a try. Sessions with a wrong password behind them queue apart from
//! the others of their address. So a client that shares an address with guessers waits about a
//! second, however many connections these have.

use std::collections::HashMap;

use crate::base::limits::{
    GUESS_DELAY_MS_MAX, GUESS_DELAY_MS_MIN, GUESS_FORGIVEN_MS, GUESS_REPORT_MS, GUESS_SCORE_MAX,
    GUESS_SPACING_US, GUESS_WAIT_MS_MAX, GUESSERS_MAX, GUESSES_FREE, LOGIN_BURST_MS,
    LOGIN_SPACING_US, SOCKET_GUESS_DELAY_MS_MAX,
};
use crate::base::time::Time;
use crate::data_plane::completion::access::Source;

/// The longest delay of the logins of a source.
fn delay_ms_max(source: Source) -> u32 {
    match source {
        Source::Address(_) => GUESS_DELAY_MS_MAX,
        // Its clients are on this host, and share the score.
        Source::Socket => SOCKET_GUESS_DELAY_MS_MAX,
    }
}

/// A login that is about to be tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoginAttempt {
    /// The score grows only when the answer is a refusal.
    pub(crate) is_presumed_right: bool,
    /// A login of its session was refused before.
    pub(crate) has_failed: bool,
    /// It may wait. Otherwise it is refused where it would have to wait.
    pub(crate) may_wait: bool,
}

/// When a login is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttemptTime {
    /// It waits until then.
    pub(crate) at: Time,
    /// Whether it is tried at that time. Otherwise it is refused.
    pub(crate) is_tried: bool,
    /// Whether it counts as wrong until the server has answered.
    pub(crate) is_charged: bool,
}

/// The state of a session with logins that had to wait or were wrong.
#[derive(Default)]
pub(crate) struct Attempts {
    /// When the session asked the server for its user, while it waits for a link to ask on.
    pub(crate) asked_at: Option<Time>,
    /// When the login for which the session waits is tried.
    pub(crate) next: Option<AttemptTime>,
    /// A login of the session was refused.
    pub(crate) has_failed: bool,
}

/// Refused logins of one source that are not in the log yet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GuessReport {
    /// `None`: several sources without an entry any more.
    pub(crate) source: Option<Source>,
    pub(crate) count: u64,
}

/// The sources of wrong passwords, at most [`GUESSERS_MAX`].
///
/// Call [`GuessDelay::reserve`] for a login, and [`GuessDelay::handle_accepted`] or
/// [`GuessDelay::handle_refused`] when its answer is known. Call [`GuessDelay::poll_report`] until
/// it returns `None`. Time may run back by a little: workers share one [`GuessDelay`].
#[derive(Debug, Default)]
pub(crate) struct GuessDelay {
    suspects: HashMap<Source, Suspect>,
    /// Refused logins of sources that lost their entries before a report.
    forgotten: UnreportedLogins,
}

#[derive(Debug)]
struct Suspect {
    score: u32,
    /// The part of the score for logins without an answer.
    unanswered: u32,
    /// When the score was last lowered, or last left 0.
    since: Time,
    /// When the last login of a session that has not failed is tried; the same of one that has.
    last: [Time; 2],
    unreported: UnreportedLogins,
}

#[derive(Debug, Default)]
struct UnreportedLogins {
    count: u64,
    /// When the first of them was refused.
    since: Time,
    reported_at: Option<Time>,
}

impl UnreportedLogins {
    fn add(&mut self, count: u64, now: Time) {
        if self.count == 0 {
            self.since = now;
        }
        self.count += count;
    }

    /// Takes the count for a report. The first report follows the first wrong password after a
    /// second, so that it counts the whole burst.
    fn take(&mut self, now: Time) -> Option<u64> {
        let is_due = match self.reported_at {
            Some(reported_at) => now.since_ms(reported_at) >= GUESS_REPORT_MS,
            None => now.since_ms(self.since) >= FIRST_REPORT_MS,
        };
        if self.count == 0 || !is_due {
            return None;
        }
        self.reported_at = Some(now);
        Some(std::mem::take(&mut self.count))
    }

    /// Whether the next wrong password is reported as if there had been none before.
    fn is_over(&self, now: Time) -> bool {
        let reported = self.reported_at;
        self.count == 0 && reported.is_none_or(|at| now.since_ms(at) >= GUESS_REPORT_MS)
    }
}

/// From the first wrong password of a source to its first report, milliseconds.
const FIRST_REPORT_MS: u64 = 1_000;

impl Suspect {
    fn forgive(&mut self, now: Time) {
        let steps = now.since_ms(self.since) / u64::from(GUESS_FORGIVEN_MS);
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        if steps >= self.score {
            self.score = 0;
            self.since = self.since.max(now);
        } else {
            self.score -= steps;
            self.since = self.since.plus_ms(steps * GUESS_FORGIVEN_MS);
        }
        self.unanswered = self.unanswered.min(self.score);
    }

    fn charge(&mut self) -> bool {
        let has_room = self.score < GUESS_SCORE_MAX;
        self.score += u32::from(has_room);
        has_room
    }

    /// A login was right, or could not be tried.
    fn excuse(&mut self) {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.score = self.score.saturating_sub(1);
    }

    /// A login was wrong: the address is a guesser, even if other logins have no answer. The logins
    /// of sessions that left never get one.
    fn blame(&mut self, is_charged: bool) {
        if !is_charged {
            self.charge();
        }
        self.unanswered = self.unanswered.saturating_sub(1);
        self.unanswered = self.unanswered.min(self.score.saturating_sub(1));
    }

    /// How long the next login waits, and its least distance from the login in front, which is
    /// tried at `last`.
    fn delay(&self, max_ms: u32, last: Time, now: Time) -> Option<(u32, u32)> {
        let above = self.score.checked_sub(GUESSES_FREE)?;
        let has_guessed = self.score > self.unanswered;
        Some(match has_guessed {
            true => {
                let delay_ms = (GUESS_DELAY_MS_MIN << above.min(10)).min(max_ms);
                (delay_ms, GUESS_SPACING_US)
            }
            false if last >= now.plus_ms(LOGIN_BURST_MS) => (0, GUESS_SPACING_US),
            false => (0, LOGIN_SPACING_US),
        })
    }

    fn is_forgiven(&self, now: Time) -> bool {
        self.score == 0 && self.unreported.is_over(now)
    }
}

impl GuessDelay {
    /// Reserves the time at which a login is tried.
    pub(crate) fn reserve(
        &mut self,
        source: Source,
        login: LoginAttempt,
        now: Time,
    ) -> AttemptTime {
        let mut attempt = AttemptTime {
            at: now,
            is_tried: true,
            is_charged: false,
        };
        if login.is_presumed_right && !self.suspects.contains_key(&source) {
            return attempt;
        }
        let suspect = self.suspect(source, now);
        let last = suspect.last[usize::from(login.has_failed)];
        let delay = suspect.delay(delay_ms_max(source), last, now);
        if delay.is_some() && !login.may_wait {
            attempt.is_tried = false;
            return attempt;
        }
        if let Some((delay_ms, spacing_us)) = delay {
            let last = &mut suspect.last[usize::from(login.has_failed)];
            attempt.at = now.plus_ms(delay_ms).max(*last + spacing_us);
            let latest = now.plus_ms(GUESS_WAIT_MS_MAX);
            attempt.is_tried = attempt.at <= latest;
            if !attempt.is_tried {
                attempt.at = latest;
                return attempt;
            }
            *last = attempt.at;
        }
        attempt.is_charged = !login.is_presumed_right && suspect.charge();
        suspect.unanswered += u32::from(attempt.is_charged);
        attempt
    }

    /// A login was right, or could not be tried.
    pub(crate) fn handle_accepted(&mut self, source: Source, is_charged: bool, now: Time) {
        let Some(suspect) = self.suspects.get_mut(&source).filter(|_| is_charged) else {
            return;
        };
        suspect.excuse();
        if suspect.is_forgiven(now) {
            self.suspects.remove(&source);
        }
    }

    /// A login was refused.
    pub(crate) fn handle_refused(&mut self, source: Source, is_charged: bool, now: Time) {
        let suspect = self.suspect(source, now);
        suspect.blame(is_charged);
        suspect.unreported.add(1, now);
    }

    /// Refused logins for the log: one report a minute for each source.
    pub(crate) fn poll_report(&mut self, now: Time) -> Option<GuessReport> {
        let mut due = self.suspects.iter_mut();
        let due = due.find_map(|(source, suspect)| Some((*source, suspect.unreported.take(now)?)));
        if let Some((source, count)) = due {
            let source = Some(source);
            return Some(GuessReport { source, count });
        }
        let count = self.forgotten.take(now)?;
        Some(GuessReport {
            source: None,
            count,
        })
    }

    /// The entry of a source, made if there is none. A full table drops forgiven entries, or else
    /// the entry with the least score.
    fn suspect(&mut self, source: Source, now: Time) -> &mut Suspect {
        if self.suspects.len() >= GUESSERS_MAX && !self.suspects.contains_key(&source) {
            self.make_room(now);
        }
        let suspect = self.suspects.entry(source).or_insert(Suspect {
            score: 0,
            unanswered: 0,
            since: now,
            last: [Time(0); 2],
            unreported: UnreportedLogins::default(),
        });
        suspect.forgive(now);
        suspect
    }

    fn make_room(&mut self, now: Time) {
        self.suspects.retain(|_, suspect| {
            suspect.forgive(now);
            !suspect.is_forgiven(now)
        });
        if self.suspects.len() < GUESSERS_MAX {
            return;
        }
        let least = |(_, suspect): &(&Source, &Suspect)| (suspect.score, suspect.since);
        let least = self.suspects.iter().min_by_key(least);
        let least = least.map(|(source, _)| *source);
        if let Some(suspect) = least.and_then(|source| self.suspects.remove(&source))
            && suspect.unreported.count > 0
        {
            self.forgotten.add(suspect.unreported.count, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::data_plane::session::Peer;

    fn source(number: u32) -> Source {
        Source::Address(IpAddr::from(number.to_be_bytes()))
    }

    fn login(is_presumed_right: bool, has_failed: bool) -> LoginAttempt {
        LoginAttempt {
            is_presumed_right,
            has_failed,
            may_wait: true,
        }
    }

    fn at_ms(ms: u64) -> Time {
        Time(ms * 1_000)
    }

    /// Sends one wrong login after the other. Returns when the last one was tried.
    fn guess(delays: &mut GuessDelay, from: Source, count: u32, mut now: Time) -> Time {
        for _ in 0..count {
            let attempt = delays.reserve(from, login(false, true), now);
            assert!(attempt.is_tried);
            now = attempt.at;
            delays.handle_refused(from, attempt.is_charged, now);
        }
        now
    }

    fn wait_ms(delays: &mut GuessDelay, from: Source, now: Time) -> u64 {
        delays
            .reserve(from, login(true, false), now)
            .at
            .since_ms(now)
    }

    /// The first wrong passwords cost nothing, the next ones more and more, up to the maximum.
    #[test]
    fn delay_grows_with_each_wrong_password() {
        let mut delays = GuessDelay::default();
        let mut now = guess(&mut delays, source(1), GUESSES_FREE, Time(0));
        assert_eq!(now, Time(0));
        for expected in [50, 100, 200, 400, 800, 1_000, 1_000, 1_000] {
            let then = guess(&mut delays, source(1), 1, now);
            assert_eq!(then.since_ms(now), expected);
            now = then;
        }
        assert_eq!(wait_ms(&mut delays, source(2), now), 0);
    }

    /// A thousand connections of one address get no more guesses than the spacing allows.
    #[test]
    fn parallel_guesses_share_the_rate_of_their_address() {
        for presumed in [false, true] {
            let mut delays = GuessDelay::default();
            let begun = guess(&mut delays, source(1), GUESSES_FREE, Time(0));
            let attempts: Vec<_> = (0..1_000)
                .map(|_| delays.reserve(source(1), login(presumed, false), begun))
                .collect();
            let tried = attempts.iter().filter(|attempt| attempt.is_tried).count() as u64;
            let room = u64::from(GUESS_WAIT_MS_MAX) * 1_000 / u64::from(GUESS_SPACING_US);
            assert!(tried <= room + 1, "{tried} tried");
            let latest = begun.plus_ms(GUESS_WAIT_MS_MAX);
            assert!(attempts.iter().all(|attempt| attempt.at <= latest));
        }
    }

    /// New logins that no server has answered count as wrong ones do, once one was wrong.
    #[test]
    fn unanswered_guesses_count_as_wrong() {
        let mut delays = GuessDelay::default();
        guess(&mut delays, source(1), 1, Time(0));
        let at_once = (0..1_000)
            .filter(|_| delays.reserve(source(1), login(false, false), Time(0)).at == Time(0))
            .count();
        assert_eq!(at_once, GUESSES_FREE as usize - 1);
    }

    /// An application that starts logs in hundreds of users at once. Each is tried, one soon after
    /// the other. The first wrong password makes the address a guesser.
    #[test]
    fn many_users_of_one_address_are_tried_at_once() {
        let mut delays = GuessDelay::default();
        let attempts: Vec<_> = (0..750)
            .map(|_| delays.reserve(source(1), login(false, false), Time(0)))
            .collect();
        assert!(attempts.iter().all(|attempt| attempt.is_tried));
        assert!(attempts[499].at <= at_ms(500));
        delays.handle_refused(source(1), attempts[0].is_charged, at_ms(1));
        let next = delays.reserve(source(1), login(false, true), at_ms(1));
        assert!(next.at >= at_ms(1 + u64::from(GUESS_DELAY_MS_MAX)));
        for attempt in &attempts[1..] {
            delays.handle_accepted(source(1), attempt.is_charged, at_ms(2));
        }
        let suspect = &delays.suspects[&source(1)];
        assert_eq!((suspect.score, suspect.unanswered), (1, 0));
    }

    /// A burst of wrong logins is bounded, and makes its address a guesser for more than a minute.
    #[test]
    fn burst_of_guesses_does_not_come_again() {
        let mut delays = GuessDelay::default();
        let burst = |delays: &mut GuessDelay, now: Time| {
            let attempts = (0..5_000).map(|_| delays.reserve(source(1), login(false, false), now));
            let attempts: Vec<_> = attempts.filter(|attempt| attempt.is_tried).collect();
            for attempt in &attempts {
                delays.handle_refused(source(1), attempt.is_charged, now.plus_ms(3_000));
            }
            attempts.len() as u32
        };
        let most = LOGIN_BURST_MS * 1_000 / LOGIN_SPACING_US
            + (GUESS_WAIT_MS_MAX - LOGIN_BURST_MS) * 1_000 / GUESS_SPACING_US;
        let first = burst(&mut delays, Time(0));
        assert!(first <= most + GUESSES_FREE + 1, "{first}");
        for second in [8, 16, 40] {
            let next = burst(&mut delays, at_ms(second * 1_000));
            let most = GUESS_WAIT_MS_MAX * 1_000 / GUESS_SPACING_US;
            assert!(next <= most + 1, "{next} after {second} s");
        }
    }

    /// Logins without an answer hide no wrong one, however many sessions leave before the answer.
    #[test]
    fn logins_of_sessions_that_left_hide_no_guess() {
        let mut delays = GuessDelay::default();
        for _ in 0..1_000 {
            delays.reserve(source(1), login(false, false), Time(0));
        }
        let mut now = at_ms(3_000);
        let mut tried = 0;
        while now < at_ms(63_000) {
            let attempt = delays.reserve(source(1), login(false, true), now);
            now = attempt.at.max(now + 1);
            delays.handle_refused(source(1), attempt.is_charged, now);
            tried += 1;
        }
        assert!(tried <= 60 + 60_000 / GUESS_FORGIVEN_MS, "{tried}");
    }

    /// Right logins leave no trace, even if many come at once.
    #[test]
    fn right_logins_cost_nothing() {
        let mut delays = GuessDelay::default();
        for _ in 0..10_000 {
            let attempt = delays.reserve(source(1), login(true, false), Time(0));
            assert_eq!((attempt.at, attempt.is_charged), (Time(0), false));
        }
        for _ in 0..10_000 {
            let attempt = delays.reserve(source(1), login(false, false), Time(0));
            assert_eq!((attempt.at, attempt.is_charged), (Time(0), true));
            delays.handle_accepted(source(1), attempt.is_charged, Time(0));
        }
        assert!(delays.suspects.is_empty());
    }

    /// A session that has not failed does not queue behind sessions of its address that have.
    #[test]
    fn newcomer_passes_the_queue_of_guessers() {
        let mut delays = GuessDelay::default();
        let now = guess(&mut delays, source(1), 30, Time(0));
        while delays.reserve(source(1), login(false, true), now).is_tried {}
        assert!(wait_ms(&mut delays, source(1), now) <= u64::from(GUESS_DELAY_MS_MAX));
    }

    /// A login that may not wait is refused if it would have to wait, and delays no other login.
    #[test]
    fn login_that_may_not_wait_is_refused() {
        let mut delays = GuessDelay::default();
        let hurried = LoginAttempt {
            may_wait: false,
            ..login(false, false)
        };
        assert!(delays.reserve(source(1), hurried, Time(0)).is_tried);
        let now = guess(&mut delays, source(1), GUESSES_FREE, Time(0));
        for _ in 0..1_000 {
            let attempt = delays.reserve(source(1), hurried, now);
            assert!(!attempt.is_tried && attempt.at == now);
        }
        assert!(delays.reserve(source(1), login(false, false), now).is_tried);
    }

    /// A quiet address is forgiven in less than a minute and a half.
    #[test]
    fn time_forgives_wrong_passwords() {
        let mut delays = GuessDelay::default();
        let now = guess(&mut delays, source(1), 100, Time(0));
        let all_ms = GUESS_FORGIVEN_MS * GUESS_SCORE_MAX;
        assert!(wait_ms(&mut delays, source(1), now.plus_ms(all_ms / 4)) > 0);
        assert_eq!(wait_ms(&mut delays, source(1), now.plus_ms(all_ms)), 0);
        assert_eq!(delays.suspects[&source(1)].score, 0);
    }

    /// Logins that are refused while an address guesses cannot lower its score.
    #[test]
    fn score_falls_by_no_more_than_it_grew() {
        let mut delays = GuessDelay::default();
        let now = guess(&mut delays, source(1), 100, Time(0));
        let score = delays.suspects[&source(1)].score;
        for _ in 0..20 {
            let attempt = delays.reserve(source(1), login(false, false), now);
            delays.handle_accepted(source(1), attempt.is_charged, now);
        }
        assert_eq!(delays.suspects[&source(1)].score, score);
    }

    /// A full table keeps the sources that guess most, and counts the others' wrong passwords.
    #[test]
    fn full_table_forgets_the_least_guilty() {
        let mut delays = GuessDelay::default();
        guess(&mut delays, source(0), GUESSES_FREE, Time(0));
        let others = 3 * GUESSERS_MAX as u32;
        for number in 1..=others {
            guess(&mut delays, source(number), 1, Time(1));
        }
        assert_eq!(delays.suspects.len(), GUESSERS_MAX);
        assert!(wait_ms(&mut delays, source(0), Time(1)) > 0);
        let mut reported = 0;
        while let Some(report) = delays.poll_report(at_ms(2_000)) {
            reported += report.count;
        }
        assert_eq!(reported, u64::from(GUESSES_FREE + others));
    }

    /// The log names an address a second after its first wrong password, then once a minute with
    /// the number.
    #[test]
    fn report_comes_once_a_minute_with_the_number() {
        let mut delays = GuessDelay::default();
        let mut reported = Vec::new();
        for second in 0..=121 {
            let now = at_ms(second * 1_000);
            delays.handle_refused(source(1), true, now);
            while let Some(report) = delays.poll_report(now) {
                assert_eq!(report.source, Some(source(1)));
                reported.push((second, report.count));
            }
        }
        assert_eq!(reported, [(1, 2), (61, 60), (121, 60)]);
    }

    /// The addresses of one IPv6 network share a score, as do the two ways to write an IPv4
    /// address.
    #[test]
    fn addresses_of_one_host_are_one_source() {
        let of = |text: &str| Source::of(Peer::Tcp(text.parse().unwrap()));
        assert_eq!(of("[2001:db8::1]:1"), of("[2001:db8::ffff:1:2:3]:2"));
        assert_ne!(of("[2001:db8::1]:1"), of("[2001:db8:0:1::1]:1"));
        assert_eq!(of("[::ffff:1.2.3.4]:1"), of("1.2.3.4:9"));
        assert_eq!(of("[2001:db8::1]:1").to_string(), "2001:db8::/64");
        assert_eq!(of("1.2.3.4:9").to_string(), "1.2.3.4");
        assert_eq!(Source::of(Peer::Unix).to_string(), "unix");
    }

    /// Clients of a Unix socket wait less, since they share one score.
    #[test]
    fn socket_waits_less_than_an_address() {
        let mut delays = GuessDelay::default();
        let now = guess(&mut delays, Source::Socket, 100, Time(0));
        let waits = wait_ms(&mut delays, Source::Socket, now);
        assert_eq!(waits, u64::from(SOCKET_GUESS_DELAY_MS_MAX));
    }
}
