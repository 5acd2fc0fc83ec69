//! The state of the configured login at a server: its answer to the last handshake or check.
//!
//! A server keeps a connection that it has accepted, though its password changes or its user is
//! switched off. So an old link does not show whether the server would accept the same login now.
//! Handshakes show it, and checks in between.
//!
//! ```text
//!   Unknown ──accepts──► Accepted ──NOAUTH, WRONGPASS──► Withdrawn
//!                            ▲                               │
//!                            └────────────accepts────────────┘
//! ```
//!
//! While a login is withdrawn, new sessions must authenticate. Sessions that existed when the last
//! accepted check was sent keep their links. Later ones must authenticate, too.
//!
//! The operator may give the login back at any moment, and then no new client may be refused. So a
//! new session is refused only after a check that was sent after it came. If that check is lost,
//! or is not answered in half a second, the last answer counts. Before a server without RESET
//! (Redis before 6.2), the one session for which that check was sent is refused.

use crate::base::error::refuses_login;
use crate::base::handle::LinkId;
use crate::base::time::Time;

/// The answers of one server to the configured login. The caller reports handshakes and checks in
/// the order in which they are answered.
#[derive(Debug, Default)]
pub(crate) struct LoginState {
    state: LoginPhase,
    /// When the server last accepted or refused the login.
    heard_at: Time,
    /// When the last check that accepted the login was sent. Sessions that came before were
    /// accepted rightly.
    vouched_at: Time,
    /// When the last check was sent.
    checked_at: Time,
    /// When the last check that ended, answered or lost, was sent.
    ended_at: Time,
    /// The link on which that check waits for its answer.
    checking: Option<LinkId>,
    /// Whether new sessions wait for that answer: the one before was old.
    holding: bool,
    /// Since when a new password is sought, after the login was withdrawn.
    sought_at: Option<Time>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LoginPhase {
    /// The server has never accepted the login.
    #[default]
    Unknown,
    /// The server accepted it last time.
    Accepted,
    /// The server accepted it once, and refused it last time.
    Withdrawn,
}

/// Getters.
impl LoginState {
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.state == LoginPhase::Withdrawn
    }

    /// Whether the login is withdrawn, and no new password is sought.
    pub(crate) fn is_withdrawn_for_long(&self, now: Time) -> bool {
        self.is_withdrawn() && !self.is_sought(now)
    }

    /// Whether a check may be sent: the last one is answered and at least this old.
    pub(crate) fn is_check_due(&self, now: Time, every_ms: u32) -> bool {
        self.checking.is_none() && now.since_ms(self.checked_at) >= u64::from(every_ms)
    }

    /// Whether the last answer is too old to let a new session in by it. Without sessions, respool
    /// does not ask the server.
    pub(crate) fn is_stale(&self, now: Time, every_ms: u32) -> bool {
        let most_ms = u64::from(every_ms) + ANSWER_MS;
        self.checking.is_none() && now.since_ms(self.heard_at) >= most_ms
    }

    /// Whether a session that came at this time waits for the answer to a check, or for a new
    /// password. Both take at most [`NEWCOMER_WAIT_MS`].
    pub(crate) fn holds_newcomer(&self, came: Time, now: Time) -> bool {
        let awaits_check =
            self.holding && is_young(self.checked_at, now) || self.is_refused_early(came, now);
        is_young(came, now) && (self.checking.is_some() && awaits_check || self.is_sought(now))
    }

    /// Whether a new password is sought, and not for long.
    fn is_sought(&self, now: Time) -> bool {
        self.sought_at.is_some_and(|since| is_young(since, now))
    }

    /// Whether the login is withdrawn by a check that was sent before this time. While a new
    /// password is sought, another check would tell nothing new.
    pub(crate) fn is_refused_early(&self, came: Time, now: Time) -> bool {
        self.is_withdrawn() && self.ended_at < came && !self.is_sought(now)
    }

    /// Whether no check that was sent after this time has ended, and no answer has vouched for a
    /// session that came then. A withdrawn login is vouched for by nothing.
    pub(crate) fn is_unchecked_since(&self, came: Time) -> bool {
        !self.is_withdrawn() && self.vouched_at < came && self.ended_at < came
    }

    /// Whether a session that came at this time waits for a check before it changes logins. It does
    /// not wait for a check that takes longer than [`NEWCOMER_WAIT_MS`].
    pub(crate) fn awaits_check(&self, came: Time, now: Time) -> bool {
        self.checking.is_some() && self.is_unchecked_since(came) && is_young(self.checked_at, now)
    }

    /// The word for INFO.
    pub(crate) fn word(&self) -> &'static str {
        match self.state {
            LoginPhase::Unknown => "unknown",
            LoginPhase::Accepted => "accepted",
            LoginPhase::Withdrawn => "withdrawn",
        }
    }
}

/// Events.
impl LoginState {
    /// A handshake was accepted. Whether the login was withdrawn before.
    pub(crate) fn handle_accepted(&mut self, now: Time) -> bool {
        self.heard_at = now;
        self.vouched_at = now;
        self.sought_at = None;
        std::mem::replace(&mut self.state, LoginPhase::Accepted) == LoginPhase::Withdrawn
    }

    /// The check was accepted. Whether the login was withdrawn before.
    pub(crate) fn handle_check_accepted(&mut self, now: Time) -> bool {
        let was_withdrawn = self.handle_accepted(now);
        self.vouched_at = self.checked_at;
        was_withdrawn
    }

    /// A handshake or a check was refused with this error. If that withdraws the login, returns the
    /// time since which sessions may have been accepted wrongly.
    pub(crate) fn handle_refused(&mut self, error: &[u8], now: Time) -> Option<Time> {
        if !refuses_login(error) {
            return None;
        }
        self.heard_at = now;
        let withdraws = self.state == LoginPhase::Accepted;
        if withdraws {
            self.state = LoginPhase::Withdrawn;
        }
        withdraws.then_some(self.vouched_at)
    }

    /// The login was withdrawn, and a new password is sought.
    pub(crate) fn handle_sought(&mut self, now: Time) {
        self.sought_at = Some(now);
    }

    /// A check was sent on this link.
    pub(crate) fn handle_check(&mut self, link: LinkId, now: Time, every_ms: u32) {
        self.holding = self.is_stale(now, every_ms);
        self.checked_at = now;
        self.checking = Some(link);
    }

    /// The check on this link is answered, or lost with it. Whether there was one.
    pub(crate) fn handle_check_end(&mut self, link: LinkId) -> bool {
        let ends = self.checking == Some(link);
        if ends {
            self.checking = None;
            self.ended_at = self.checked_at;
        }
        ends
    }
}

/// How long an answer to a check usually takes, with the tick that asks for it, milliseconds.
const ANSWER_MS: u64 = 100;
/// How long a new session waits for a check at most, milliseconds. A server that is slower than
/// that serves no session just then.
pub(crate) const NEWCOMER_WAIT_MS: u64 = 500;

/// Whether a wait that began then may go on.
fn is_young(since: Time, now: Time) -> bool {
    now.since_ms(since) < NEWCOMER_WAIT_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOAUTH: &[u8] = b"NOAUTH Authentication required.";
    const LINK: LinkId = LinkId {
        index: 1,
        generation: 1,
    };

    /// A login that was never accepted has no old links, so its refusal withdraws nothing.
    #[test]
    fn refusal_withdraws_only_an_accepted_login() {
        let mut trust = LoginState::default();
        let now = Time(0);
        assert_eq!(trust.handle_refused(NOAUTH, now), None);
        assert!(!trust.is_withdrawn());
        assert!(!trust.handle_accepted(now));
        assert_eq!(trust.handle_refused(b"LOADING", now), None);
        assert!(!trust.is_withdrawn());
        assert_eq!(trust.handle_refused(b"WRONGPASS", now), Some(now));
        assert!(trust.is_withdrawn());
        assert_eq!(
            trust.handle_refused(NOAUTH, now),
            None,
            "a withdrawal is reported once"
        );
        assert!(trust.handle_accepted(now));
        assert!(!trust.is_withdrawn());
    }

    /// A server that does not answer gets no second check.
    #[test]
    fn check_waits_for_the_answer_to_the_last_one() {
        let mut trust = LoginState::default();
        let at = |ms| Time(0).plus_ms(ms);
        assert!(!trust.is_check_due(at(499), 500));
        assert!(trust.is_check_due(at(500), 500));
        trust.handle_check(LINK, at(500), 500);
        assert!(!trust.is_check_due(at(5_000), 500));
        trust.handle_check_end(LINK);
        assert!(!trust.is_check_due(at(999), 500));
        assert!(trust.is_check_due(at(1_000), 500));
    }

    /// An answer that is old lets no new session in; one that does not come holds none up for long.
    #[test]
    fn newcomers_wait_for_a_check_only_if_the_last_answer_is_old() {
        let mut trust = LoginState::default();
        let at = |ms| Time(0).plus_ms(ms);
        trust.handle_accepted(at(100));
        trust.handle_check(LINK, at(600), 500);
        assert!(!trust.holds_newcomer(at(0), at(601)));
        trust.handle_check_end(LINK);
        trust.handle_accepted(at(602));
        assert!(!trust.is_stale(at(1_201), 500));
        assert!(trust.is_stale(at(1_202), 500));
        trust.handle_check(LINK, at(1_202), 500);
        assert!(trust.holds_newcomer(at(1_202), at(1_202)));
        assert!(trust.holds_newcomer(at(1_202), at(1_701)));
        assert!(!trust.holds_newcomer(at(1_202), at(1_702)));
        assert!(
            !trust.holds_newcomer(at(1_300), at(1_702)),
            "the check is old"
        );
        trust.handle_check_end(LINK);
        assert!(!trust.holds_newcomer(at(1_202), at(1_203)));
        // Another check begins, and the session has waited long enough.
        trust.handle_check(LINK, at(1_600), 100);
        assert!(trust.holds_newcomer(at(1_202), at(1_701)));
        assert!(!trust.holds_newcomer(at(1_202), at(1_702)));
    }

    /// A new password is sought for a moment, then new sessions must authenticate.
    #[test]
    fn newcomers_wait_for_a_new_password_for_a_while() {
        let mut trust = LoginState::default();
        let at = |ms| Time(0).plus_ms(ms);
        trust.handle_accepted(at(0));
        trust.handle_refused(NOAUTH, at(100));
        trust.handle_sought(at(100));
        assert!(trust.holds_newcomer(at(100), at(599)));
        assert!(!trust.holds_newcomer(at(100), at(600)));
        trust.handle_accepted(at(200));
        assert!(!trust.holds_newcomer(at(100), at(201)));
    }

    /// Sessions that came after the last accepted check was sent were accepted wrongly if the
    /// next answer withdraws the login. An error about another subject is no answer.
    #[test]
    fn withdrawal_tells_since_when_sessions_came_in_wrongly() {
        let mut trust = LoginState::default();
        let at = |ms| Time(0).plus_ms(ms);
        trust.handle_accepted(at(100));
        trust.handle_check(LINK, at(600), 500);
        trust.handle_check_end(LINK);
        trust.handle_check_accepted(at(640));
        assert_eq!(
            trust.handle_refused(b"ERR max number of clients reached", at(1_100)),
            None
        );
        assert!(trust.is_stale(at(1_240), 500), "it was no answer");
        assert_eq!(trust.handle_refused(NOAUTH, at(1_700)), Some(at(600)));
    }

    /// A link that is lost ends the check on it, and no check on another link.
    #[test]
    fn check_ends_with_its_own_link() {
        let mut trust = LoginState::default();
        let other = LinkId { index: 2, ..LINK };
        trust.handle_check(LINK, Time(0), 500);
        assert!(!trust.handle_check_end(other));
        assert!(!trust.is_check_due(Time(0).plus_ms(5_000), 500));
        assert!(trust.handle_check_end(LINK));
        assert!(trust.is_check_due(Time(0).plus_ms(5_000), 500));
    }
}
