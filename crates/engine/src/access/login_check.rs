//! Checks whether servers still accept the configured login, and handles a server that does not.
//!
//! A probing link carries the checks, beside the logins of clients (`login_probe`). With configured
//! credentials a check is AUTH and HELLO. Without, it is RESET and HELLO, since RESET makes the
//! connection an unauthenticated one. If a server does not know RESET (Redis before 6.2), a new
//! probing link is connected, and its handshake is the check.

use respool_protocol::commands::{CommandId, id};
use respool_protocol::encode;

use crate::Event;
use crate::access::Access;
use crate::base::error::refuses_login;
use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::base::settings::Credentials;
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::access::AccessCompletion;
use crate::data_plane::completion::access::LoginCheck;
use crate::data_plane::ingress::wants_password;
use crate::data_plane::link::{Link, LinkRole};
use crate::data_plane::link_loss::LinkDown;
use crate::data_plane::login_state::{LoginState, NEWCOMER_WAIT_MS};
use crate::data_plane::session::Flags;
use crate::data_plane::session_state::Holds;
use crate::routing::pool::ServerId;

/// The result of a check.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CheckResult {
    Accepted,
    /// The server's error, without the dash.
    Refused(Vec<u8>),
    /// The server does not know RESET, so the connection is still as its handshake left it.
    NotReset,
    /// An error that is not about the login.
    Nothing,
}

impl LoginCheck {
    /// The check, and its bytes.
    pub(super) fn new(credentials: Option<&Credentials>) -> (LoginCheck, Vec<u8>) {
        let mut bytes = Vec::new();
        match credentials {
            Some(own) => {
                let user = own.user.as_deref().unwrap_or("default");
                encode::request(&mut bytes, &["AUTH", user, &own.password]);
            }
            None => encode::request(&mut bytes, &["RESET"]),
        }
        // Its reply comes in any case; see `Login::is_answered_by`.
        encode::request(&mut bytes, &["HELLO"]);
        let check = LoginCheck {
            has_credentials: credentials.is_some(),
            first: None,
        };
        (check, bytes)
    }

    pub(super) fn found(self, hello: &[u8]) -> CheckResult {
        let error = |reply: &[u8]| {
            let text = reply.strip_prefix(b"-").unwrap_or_default();
            text.strip_suffix(b"\r\n").unwrap_or(text).to_vec()
        };
        match (self.has_credentials, self.first) {
            (true, Some(first)) if first.starts_with(b"+") => CheckResult::Accepted,
            (true, Some(first)) if refuses_login(&error(&first)) => {
                CheckResult::Refused(error(&first))
            }
            (true, Some(_)) => CheckResult::Nothing,
            // Redis 7.2 and newer does not answer an AUTH that fails after another reply.
            (true, None) => CheckResult::Refused(b"WRONGPASS".to_vec()),
            (false, _) if refuses_login(&error(hello)) => CheckResult::Refused(error(hello)),
            (false, Some(first)) if first.starts_with(b"+") && !hello.starts_with(b"-") => {
                CheckResult::Accepted
            }
            (false, Some(first)) if first.starts_with(b"-") => CheckResult::NotReset,
            (false, _) => CheckResult::Nothing,
        }
    }
}

impl Access {
    /// Starts the checks that are due.
    pub(crate) fn tick_login_checks(&mut self, plane: &mut DataPlane) {
        self.release_waiting(plane);
        let every_ms = plane.settings.timeouts.login_check_ms;
        if !plane.checks_logins() {
            return;
        }
        let has_sessions = plane.sessions.len() > 0;
        for index in 0..plane.servers.len() {
            let server = ServerId(index as u16);
            // While respool is not ready for want of a login, no client may come. Only a check
            // then finds that the server accepts the login again.
            if !has_sessions && !plane.refuses_newcomers(server) {
                continue;
            }
            let is_due = plane.server(server).trust.is_check_due(plane.now, every_ms);
            if is_due && self.is_checked(plane, server) {
                self.check_login(plane, server);
            }
        }
    }

    /// Checks whether a server accepts the login, even if the last check was a moment ago.
    pub(crate) fn check_login_now(&mut self, plane: &mut DataPlane, server: ServerId) {
        if plane.checks_logins()
            && plane.sessions.len() > 0
            && plane.server(server).trust.is_check_due(plane.now, 0)
            && self.is_checked(plane, server)
        {
            self.check_login(plane, server);
        }
    }

    fn check_login(&mut self, plane: &mut DataPlane, server: ServerId) {
        let Some(link) = self.probing_link(plane, server, true) else {
            return;
        };
        let (now, every_ms) = (plane.now, plane.settings.timeouts.login_check_ms);
        let state = &mut plane.servers[usize::from(server.0)];
        state.trust.handle_check(link, now, every_ms);
        let (check, bytes) = LoginCheck::new(state.settings.credentials.as_ref());
        plane.put_ours(
            link,
            &bytes,
            Completion::Access(AccessCompletion::Check(Box::new(check))),
        );
    }

    /// Holds a new session until its servers have been checked, if their last answers are old or
    /// refuse it.
    pub(crate) fn check_newcomer(&mut self, plane: &mut DataPlane, id: SessionId) {
        let every_ms = plane.settings.timeouts.login_check_ms;
        let Some(session) = plane.sessions.get(id) else {
            return;
        };
        if !plane.checks_logins() {
            return;
        }
        let (pool, came) = (usize::from(session.pool), session.accepted_at);
        let now = plane.now;
        self.check_where(plane, pool, |trust| {
            trust.is_stale(now, every_ms) || trust.is_refused_early(came, now)
        });
        if Self::holds_newcomer(plane, pool, came) {
            self.login_probes.newcomers.push(id);
            plane.hold(id, Holds::LINK);
        }
    }

    /// Holds a session before a change of logins, until its servers have been checked. The check
    /// has to be sent after the session came. Returns whether the session waits.
    ///
    /// If the login is withdrawn later, the session then counts as one that came before: a client
    /// that sets a password can remove it again on the same connection, as at a server. And a
    /// client that came after the login was withdrawn changes nothing.
    pub(crate) fn hold_until_checked(&mut self, plane: &mut DataPlane, id: SessionId) -> bool {
        let Some(session) = plane.sessions.get(id) else {
            return false;
        };
        if session.user != CONFIGURED || !plane.checks_logins() {
            return false;
        }
        let (pool, came, now) = (usize::from(session.pool), session.accepted_at, plane.now);
        self.check_where(plane, pool, |trust| trust.is_unchecked_since(came));
        let mut servers = plane.pools[pool].servers().iter();
        let waits = servers.any(|server| plane.server(*server).trust.awaits_check(came, now));
        if waits {
            self.login_probes.unchecked.push(id);
            plane.hold(id, Holds::LINK);
        }
        waits
    }

    /// Checks the servers of a pool of which `is_wanted` is true. A server that is being checked
    /// gets no second check.
    fn check_where(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        is_wanted: impl Fn(&LoginState) -> bool,
    ) {
        let now = plane.now;
        let is_wanted = |server: &&ServerId| {
            let trust = &plane.server(**server).trust;
            trust.is_check_due(now, 0) && is_wanted(trust)
        };
        let servers = plane.pools[pool].servers().iter();
        for server in servers.filter(is_wanted).copied().collect::<Vec<_>>() {
            if self.is_checked(plane, server) {
                self.check_login(plane, server);
            }
        }
    }

    fn holds_newcomer(plane: &DataPlane, pool: usize, came: Time) -> bool {
        let holds = |server: &ServerId| plane.server(*server).trust.holds_newcomer(came, plane.now);
        plane.pools[pool].servers().iter().any(holds)
    }

    /// Releases sessions that wait for checks, if their servers have answered or their time to wait
    /// is over.
    pub(crate) fn release_waiting(&mut self, plane: &mut DataPlane) {
        // The request that is held decides anew whether it waits.
        for id in std::mem::take(&mut self.login_probes.unchecked) {
            plane.release(id, Holds::LINK);
        }
        self.release_newcomers(plane);
    }

    fn release_newcomers(&mut self, plane: &mut DataPlane) {
        // Other settings may have ended the checks.
        let checks = plane.checks_logins();
        for id in std::mem::take(&mut self.login_probes.newcomers) {
            let Some(session) = plane.sessions.get(id) else {
                continue;
            };
            let (pool, came) = (usize::from(session.pool), session.accepted_at);
            // The end of a check that was sent after the session came makes this false, even if
            // the check failed. So a server that answers no check does not get one after the other.
            if checks && plane.now.since_ms(came) < NEWCOMER_WAIT_MS {
                let now = plane.now;
                self.check_where(plane, pool, |trust| trust.is_refused_early(came, now));
            }
            if Self::holds_newcomer(plane, pool, came) {
                self.login_probes.newcomers.push(id);
                continue;
            }
            // `must_log_in_first` clears the flag of a session that need not authenticate any
            // more.
            let must_log_in = plane.is_login_withdrawn(pool);
            if let Some(session) = plane.sessions.get_mut(id).filter(|_| must_log_in) {
                session.state |= Flags::UNAUTHENTICATED;
            }
            plane.release(id, Holds::LINK);
        }
    }

    /// Whether the login at a server is checked: a link with the configured login is up, so the
    /// server would serve new sessions.
    pub(crate) fn is_checked(&self, plane: &DataPlane, server: ServerId) -> bool {
        plane.decides_login(server)
            && !plane.server(server).unknown
            && self.serves_as_configured(plane, server)
    }

    /// Whether a shared link of the configured login is up.
    fn serves_as_configured(&self, plane: &DataPlane, server: ServerId) -> bool {
        plane.links.iter().any(|(_, link)| {
            link.kind.server == server
                && link.kind.user == CONFIGURED
                && link.role == LinkRole::Shared
                && link.is_up()
        })
    }

    /// A link is lost. If its handshake was refused, the configured login may be.
    pub(crate) fn link_down(&mut self, plane: &mut DataPlane, down: &LinkDown) {
        let wants_password = plane.links.get(down.link).is_some_and(wants_password);
        if down.handshake_error.is_some() && down.role != LinkRole::Probe {
            self.configured_login_answered(plane, down.link, down.handshake_error.as_deref());
        }
        // Clients cannot give the password of a Sentinel.
        let is_clients = !matches!(down.role, LinkRole::Sentinel | LinkRole::Probe);
        if wants_password && down.kind.user == CONFIGURED && is_clients {
            self.flag_unauthenticated(plane, down.link);
        }
    }

    /// A handshake on this link was refused for want of a password. Sessions that have lost their
    /// connection by that must authenticate. Sessions with a link that is up keep it.
    pub(crate) fn flag_unauthenticated(&mut self, plane: &mut DataPlane, id: LinkId) {
        let Some(link) = plane.links.get(id) else {
            return;
        };
        let server = link.kind.server;
        if !plane.settings.users.is_empty() || !plane.decides_login(server) {
            return;
        }
        let others_serve = self.serves_as_configured(plane, server);
        let pool = plane.pool_of(server).parent;
        for session in plane.sessions.ids() {
            let Some(session) = plane.sessions.get_mut(session) else {
                continue;
            };
            let is_concerned = session.pool == pool && (!others_serve || session.link == id);
            if session.user == CONFIGURED && is_concerned {
                session.state |= Flags::UNAUTHENTICATED;
            }
        }
    }

    /// Sessions need not authenticate any more once no server withdraws the login. A session that
    /// only listens sends no request that would clear its flag.
    fn trust_sessions(&mut self, plane: &mut DataPlane, server: ServerId) {
        let pool = plane.pool_of(server).parent;
        if !plane.settings.users.is_empty() || plane.is_login_withdrawn(usize::from(pool)) {
            return;
        }
        for id in plane.sessions.ids() {
            if let Some(session) = plane.sessions.get_mut(id)
                && session.pool == pool
                && session.user == CONFIGURED
            {
                session.state.remove(Flags::UNAUTHENTICATED);
            }
        }
    }

    /// Sessions on the configured login that came after `since` must authenticate. A session with a
    /// pinned link or subscriptions would never be asked, so it is closed.
    fn require_logins(&mut self, plane: &mut DataPlane, server: ServerId, since: Time) {
        // Without checks the last accepted answer may be that of a handshake days ago.
        if !plane.checks_logins() {
            return;
        }
        let pool = plane.pool_of(server).parent;
        for id in plane.sessions.ids() {
            let Some(session) = plane.sessions.get_mut(id) else {
                continue;
            };
            if session.pool != pool || session.user != CONFIGURED || session.accepted_at <= since {
                continue;
            }
            session.state |= Flags::UNAUTHENTICATED;
            if !session.pins.is_empty() || session.listens() {
                let reason = String::from("the server withdrew the login before the client came");
                plane.close_for(id, reason);
            }
        }
    }

    /// Handles the last reply of a check.
    pub(super) fn settle_check(
        &mut self,
        plane: &mut DataPlane,
        id: LinkId,
        check: LoginCheck,
        hello: &[u8],
    ) {
        let Some(server) = plane.links.get(id).map(|link| link.kind.server) else {
            return;
        };
        let now = plane.now;
        let trust = &mut plane.servers[usize::from(server.0)].trust;
        trust.handle_check_end(id);
        match check.found(hello) {
            CheckResult::Accepted => {
                let was_withdrawn = trust.handle_check_accepted(now);
                self.report_accepted(plane, server, was_withdrawn);
            }
            CheckResult::Refused(error) => self.login_refused(plane, server, &error),
            CheckResult::NotReset => {
                let is_idle = |link: &Link| link.ledger.is_empty();
                if plane.links.get(id).is_some_and(is_idle) {
                    plane.close_link(id);
                }
            }
            CheckResult::Nothing => {}
        }
        self.release_waiting(plane);
    }

    /// A server accepts the configured login in a handshake.
    pub(crate) fn login_accepted(&mut self, plane: &mut DataPlane, server: ServerId) {
        let now = plane.now;
        let trust = &mut plane.servers[usize::from(server.0)].trust;
        let was_withdrawn = trust.handle_accepted(now);
        self.report_accepted(plane, server, was_withdrawn);
    }

    fn report_accepted(&mut self, plane: &mut DataPlane, server: ServerId, was_withdrawn: bool) {
        let state = plane.server(server);
        if was_withdrawn && plane.decides_login(server) {
            let (server_label, pool) = (state.label.clone(), plane.pool_name(server).to_owned());
            plane.emit(Event::LoginAccepted {
                server: server_label,
                pool,
            });
            self.trust_sessions(plane, server);
        }
    }

    /// A server refuses the configured login.
    pub(crate) fn login_refused(&mut self, plane: &mut DataPlane, server: ServerId, error: &[u8]) {
        let is_sought = self.seek_password(plane, server, error);
        let now = plane.now;
        let trust = &mut plane.servers[usize::from(server.0)].trust;
        let withdrawn = trust.handle_refused(error, now);
        if withdrawn.is_some() && is_sought {
            trust.handle_sought(now);
        }
        if let Some(since) = withdrawn.filter(|_| plane.decides_login(server)) {
            let event = Event::LoginWithdrawn {
                server: plane.server(server).label.clone(),
                pool: plane.pool_name(server).to_owned(),
                reason: String::from_utf8_lossy(error).into_owned(),
            };
            plane.emit(event);
            self.require_logins(plane, server, since);
        }
    }
}

/// Whether a command may change the servers' users or their passwords.
pub(crate) fn may_change_logins(command: CommandId) -> bool {
    matches!(
        command,
        id::CONFIG_SET | id::ACL_SETUSER | id::ACL_DELUSER | id::ACL_LOAD
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::settings::Settings;
    use crate::data_plane::session::Pins;
    use crate::data_plane::test_plane::{plane_of, plane_with_link, pool_at, session_of};

    const HELLO: &[u8] = b"*2\r\n$6\r\nserver\r\n$5\r\nredis\r\n";
    const NOAUTH: &[u8] = b"-NOAUTH HELLO must be called\r\n";

    fn found(credentials: Option<&Credentials>, replies: &[&[u8]]) -> CheckResult {
        let (mut check, _) = LoginCheck::new(credentials);
        let (hello, in_front) = replies.split_last().expect("HELLO is answered");
        for reply in in_front {
            assert!(check.is_answered_by(reply));
        }
        assert!(!check.is_answered_by(hello));
        check.found(hello)
    }

    /// Each server release answers in its own way.
    #[test]
    fn check_reads_the_answers_of_every_release() {
        let refused = |text: &[u8]| CheckResult::Refused(text.to_vec());
        for (replies, expected) in [
            (vec![b"+RESET\r\n".as_slice(), HELLO], CheckResult::Accepted),
            (vec![b"+RESET\r\n", NOAUTH], refused(&NOAUTH[1..28])),
            // Redis 6.2, where RESET needs a login.
            (vec![b"-NOAUTH x\r\n", NOAUTH], refused(&NOAUTH[1..28])),
            (
                vec![b"-ERR unknown command\r\n", HELLO],
                CheckResult::NotReset,
            ),
            (vec![b"+RESET\r\n", b"-ERR x\r\n"], CheckResult::Nothing),
        ] {
            assert_eq!(found(None, &replies), expected, "{replies:?}");
        }
        let own = Credentials {
            user: None,
            password: "p".to_owned(),
            source: None,
        };
        for (replies, expected) in [
            (vec![b"+OK\r\n".as_slice(), HELLO], CheckResult::Accepted),
            (vec![b"-WRONGPASS x\r\n", HELLO], refused(b"WRONGPASS x")),
            (vec![b"-WRONGPASS x\r\n", NOAUTH], refused(b"WRONGPASS x")),
            (vec![HELLO], refused(b"WRONGPASS")),
            (vec![NOAUTH], refused(b"WRONGPASS")),
            (vec![b"-ERR busy\r\n", HELLO], CheckResult::Nothing),
        ] {
            assert_eq!(found(Some(&own), &replies), expected, "{replies:?}");
        }
    }

    /// Whether a session must authenticate.
    fn must_authenticate(plane: &DataPlane, id: SessionId) -> bool {
        let session = plane.sessions.get(id).expect("it is open");
        session.state.any(Flags::UNAUTHENTICATED)
    }

    /// A withdrawn login counts for sessions that came since a server last accepted it. Once a
    /// server accepts it again, no session must authenticate.
    #[test]
    fn withdrawn_login_counts_for_newer_sessions() {
        let ((mut plane, _), mut access) = (plane_with_link(), Access::default());
        let server = ServerId(0);
        access.login_accepted(&mut plane, server);
        let old = session_of(&mut plane);
        plane.begin_turn(Time(0).plus_ms(50));
        let new = session_of(&mut plane);
        access.login_refused(&mut plane, server, b"ERR busy");
        assert!(
            !must_authenticate(&plane, new),
            "the error is not about the login"
        );
        access.login_refused(&mut plane, server, &NOAUTH[1..]);
        assert!(!must_authenticate(&plane, old) && must_authenticate(&plane, new));
        let newest = session_of(&mut plane);
        assert!(must_authenticate(&plane, newest));
        access.login_accepted(&mut plane, server);
        for id in [old, new, newest] {
            assert!(!must_authenticate(&plane, id));
        }
    }

    /// A session that came under a withdrawn login and has a pinned link is never asked for a
    /// password, so it is closed.
    #[test]
    fn withdrawn_login_closes_newer_pinned_sessions() {
        let ((mut plane, _), mut access) = (plane_with_link(), Access::default());
        let server = ServerId(0);
        access.login_accepted(&mut plane, server);
        plane.begin_turn(Time(0).plus_ms(50));
        let id = session_of(&mut plane);
        assert!(plane.pin(id, Pins::WATCH).is_ok());
        access.login_refused(&mut plane, server, &NOAUTH[1..]);
        let session = plane.sessions.get(id);
        assert!(session.is_none_or(|session| session.state.is_closing()));
    }

    /// Without checks the last accepted answer may be old, so no session is asked afterwards.
    #[test]
    fn withdrawn_login_without_checks_leaves_sessions() {
        let mut settings = Settings::default();
        settings.timeouts.login_check_ms = 0;
        settings.pools = vec![pool_at(1)];
        let (mut plane, mut access) = (plane_of(settings), Access::default());
        let server = ServerId(0);
        access.login_accepted(&mut plane, server);
        plane.begin_turn(Time(0).plus_ms(50));
        let id = session_of(&mut plane);
        access.login_refused(&mut plane, server, &NOAUTH[1..]);
        assert!(!must_authenticate(&plane, id));
    }
}
