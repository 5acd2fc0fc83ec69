//! Checks whether servers still accept the configured login, and what follows when one does not.
//!
//! A probing link carries the checks, beside the logins of clients (`login_probe`). With configured
//! credentials a check is AUTH and HELLO. Without, it is RESET and HELLO, since RESET makes the
//! connection an unauthenticated one. If a server does not know RESET (Redis before 6.2), a new
//! probing link is connected, and its greeting is the check.

use respool_protocol::encode;

use crate::auth::CONFIGURED;
use crate::duty::Duty;
use crate::engine::Engine;
use crate::link::{Link, Role};
use crate::pool::ServerId;
use crate::session::Flags;
use crate::settings::Credentials;
use crate::slots::Key;
use crate::time::Time;
use crate::trust::refuses_login;

/// The two requests of a check, and what the server has said so far.
#[derive(Debug)]
pub(crate) struct Check {
    /// The first request is AUTH; else it is RESET.
    has_credentials: bool,
    /// The reply to the first request.
    first: Option<Vec<u8>>,
}

/// What a check has found.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Accepted,
    /// The server's error, without the dash.
    Refused(Vec<u8>),
    /// RESET is not known, so the connection is still what its greeting made of it.
    NotReset,
    /// An error that is not about the login.
    Nothing,
}

impl Check {
    /// The check, and its bytes.
    fn new(credentials: Option<&Credentials>) -> (Check, Vec<u8>) {
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
        let check = Check {
            has_credentials: credentials.is_some(),
            first: None,
        };
        (check, bytes)
    }

    /// Whether this reply answers the first request, so that the reply to HELLO is still to come.
    pub(crate) fn is_answered_by(&mut self, reply: &[u8]) -> bool {
        let is_hellos = !matches!(reply.first(), Some(b'+' | b'-'))
            || self.has_credentials && reply.starts_with(b"-NOAUTH");
        let is_first = self.first.is_none() && !is_hellos;
        if is_first {
            self.first = Some(reply.to_vec());
        }
        is_first
    }

    fn found(self, hello: &[u8]) -> Found {
        let error = |reply: &[u8]| {
            let text = reply.strip_prefix(b"-").unwrap_or_default();
            text.strip_suffix(b"\r\n").unwrap_or(text).to_vec()
        };
        match (self.has_credentials, self.first) {
            (true, Some(first)) if first.starts_with(b"+") => Found::Accepted,
            (true, Some(first)) if refuses_login(&error(&first)) => Found::Refused(error(&first)),
            (true, Some(_)) => Found::Nothing,
            // Redis 7.2 and newer says nothing to an AUTH that fails behind another reply.
            (true, None) => Found::Refused(b"WRONGPASS".to_vec()),
            (false, _) if refuses_login(&error(hello)) => Found::Refused(error(hello)),
            (false, Some(first)) if first.starts_with(b"+") && !hello.starts_with(b"-") => {
                Found::Accepted
            }
            (false, Some(first)) if first.starts_with(b"-") => Found::NotReset,
            (false, _) => Found::Nothing,
        }
    }
}

impl Engine {
    /// Asks for the checks that are due.
    pub(crate) fn tick_login_checks(&mut self) {
        let every_ms = self.settings.timeouts.login_check_ms;
        if every_ms == 0 || !self.settings.users.is_empty() || self.sessions.len() == 0 {
            return;
        }
        self.release_newcomers();
        for index in 0..self.servers.len() {
            let server = ServerId(index as u16);
            let is_due = self.server(server).trust.is_check_due(self.now, every_ms);
            if is_due && self.is_checked(server) {
                self.check_login(server);
            }
        }
    }

    /// Asks whether a server accepts the login, though the last check was a moment ago.
    pub(crate) fn check_login_now(&mut self, server: ServerId) {
        let every_ms = self.settings.timeouts.login_check_ms;
        let is_asked = every_ms > 0 && self.settings.users.is_empty() && self.sessions.len() > 0;
        if is_asked
            && self.server(server).trust.is_check_due(self.now, 0)
            && self.is_checked(server)
        {
            self.check_login(server);
        }
    }

    fn check_login(&mut self, server: ServerId) {
        let Some(link) = self.probing_link(server, true) else {
            return;
        };
        let (now, every_ms) = (self.now, self.settings.timeouts.login_check_ms);
        let state = &mut self.servers[usize::from(server.0)];
        state.trust.handle_check(link, now, every_ms);
        let (check, bytes) = Check::new(state.settings.credentials.as_ref());
        self.put_ours(link, &bytes, Duty::Check(Box::new(check)));
    }

    /// A check is answered.
    pub(crate) fn settle_check(&mut self, key: Key, check: Check, hello: &[u8]) {
        let Some(server) = self.links.get(key).map(|link| link.key.server) else {
            return;
        };
        let now = self.now;
        let trust = &mut self.servers[usize::from(server.0)].trust;
        trust.handle_check_end(key);
        match check.found(hello) {
            Found::Accepted => {
                let was_withdrawn = trust.handle_check_accepted(now);
                self.tell_accepted(server, was_withdrawn);
            }
            Found::Refused(error) => self.login_refused(server, &error),
            Found::NotReset => {
                let is_idle = |link: &Link| link.ledger.is_empty();
                if self.links.get(key).is_some_and(is_idle) {
                    self.close_link(key);
                }
            }
            Found::Nothing => {}
        }
        self.release_newcomers();
    }

    /// A new session waits until its servers have been asked, if they have not been for a while.
    pub(crate) fn check_newcomer(&mut self, key: Key) {
        let every_ms = self.settings.timeouts.login_check_ms;
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        if every_ms == 0 || !self.settings.users.is_empty() {
            return;
        }
        let pool = usize::from(session.pool);
        let now = self.now;
        let is_stale = |server: &&ServerId| self.server(**server).trust.is_stale(now, every_ms);
        let servers = self.pools[pool].servers().iter();
        for server in servers.filter(is_stale).copied().collect::<Vec<_>>() {
            if self.is_checked(server) {
                self.check_login(server);
            }
        }
        if self.holds_newcomers(pool) {
            self.login_probes.newcomers.push(key);
            self.hold(key, Flags::HOLD_LINK);
        }
    }

    fn holds_newcomers(&self, pool: usize) -> bool {
        let holds = |server: &ServerId| self.server(*server).trust.holds_newcomers(self.now);
        self.pools[pool].servers().iter().any(holds)
    }

    /// New sessions whose servers have answered go on; or the time to wait for that is over.
    pub(crate) fn release_newcomers(&mut self) {
        for key in std::mem::take(&mut self.login_probes.newcomers) {
            let Some(pool) = self.sessions.get(key).map(|session| session.pool) else {
                continue;
            };
            let pool = usize::from(pool);
            if self.holds_newcomers(pool) {
                self.login_probes.newcomers.push(key);
                continue;
            }
            // `is_unauthenticated` clears the flag of a session that need not authenticate any
            // more.
            let must_log_in = self.is_login_withdrawn(pool);
            if let Some(session) = self.sessions.get_mut(key).filter(|_| must_log_in) {
                session.flags |= Flags::UNAUTHENTICATED;
            }
            self.release(key, Flags::HOLD_LINK);
        }
    }

    /// Whether the login at a server is checked: a link with the configured login is up, so the
    /// server would serve new sessions.
    fn is_checked(&self, server: ServerId) -> bool {
        self.decides_login(server)
            && !self.server(server).unknown
            && self.serves_as_configured(server)
    }

    /// Whether sessions must authenticate where a server refuses the configured login. A replica
    /// does not decide that: its users may differ.
    fn decides_login(&self, server: ServerId) -> bool {
        let state = self.server(server);
        !state.gone && state.replica_of.is_none() && !self.owns_nothing(server)
    }

    /// Whether a shared link of the configured login is up.
    fn serves_as_configured(&self, server: ServerId) -> bool {
        self.links.iter().any(|(_, link)| {
            link.key.server == server
                && link.key.user == CONFIGURED
                && link.role == Role::Shared
                && link.is_up()
        })
    }

    /// A server accepts the configured login in a greeting.
    pub(crate) fn login_accepted(&mut self, server: ServerId) {
        let now = self.now;
        let trust = &mut self.servers[usize::from(server.0)].trust;
        let was_withdrawn = trust.handle_accepted(now);
        self.tell_accepted(server, was_withdrawn);
    }

    fn tell_accepted(&mut self, server: ServerId, was_withdrawn: bool) {
        let state = self.server(server);
        if was_withdrawn && self.decides_login(server) {
            let pool = usize::from(state.pool);
            let text = format!("{} accepts the configured login again", state.label);
            self.tell_event(pool, text);
            self.trust_sessions(server);
        }
    }

    /// A server refuses the configured login.
    pub(crate) fn login_refused(&mut self, server: ServerId, error: &[u8]) {
        let is_sought = self.seek_password(server, error);
        let now = self.now;
        let trust = &mut self.servers[usize::from(server.0)].trust;
        let withdrawn = trust.handle_refused(error, now);
        if withdrawn.is_some() && is_sought {
            trust.handle_sought(now);
        }
        if let Some(since) = withdrawn.filter(|_| self.decides_login(server)) {
            let state = self.server(server);
            let pool = usize::from(state.pool);
            let text = format!(
                "{} does not accept the configured login any more ({}): new sessions must authenticate, older sessions keep their links",
                state.label,
                String::from_utf8_lossy(error)
            );
            self.tell_event(pool, text);
            self.doubt_sessions(server, since);
        }
    }

    /// Sessions on the configured login that came in since then must authenticate. One that holds
    /// something without asking again, a link of its own or subscriptions, is closed.
    fn doubt_sessions(&mut self, server: ServerId, since: Time) {
        // Without checks the last accepted answer may be that of a greeting days ago.
        let is_checked = self.settings.timeouts.login_check_ms > 0;
        if !is_checked || !self.settings.users.is_empty() {
            return;
        }
        let pool = self.pool_of(server).whole;
        for key in self.sessions.keys() {
            let Some(session) = self.sessions.get_mut(key) else {
                continue;
            };
            if session.pool != pool || session.user != CONFIGURED || session.accepted_at <= since {
                continue;
            }
            session.flags |= Flags::UNAUTHENTICATED;
            if !session.pins.is_empty() || session.listens() {
                let reason = String::from("the server withdrew the login before the client came");
                self.close_for(key, reason);
            }
        }
    }

    /// Sessions need not authenticate any more, once no server withdraws the login. A session that
    /// only listens asks nothing, and so would not find that out itself.
    fn trust_sessions(&mut self, server: ServerId) {
        let pool = self.pool_of(server).whole;
        if !self.settings.users.is_empty() || self.is_login_withdrawn(usize::from(pool)) {
            return;
        }
        for key in self.sessions.keys() {
            if let Some(session) = self.sessions.get_mut(key)
                && session.pool == pool
                && session.user == CONFIGURED
            {
                session.flags.remove(Flags::UNAUTHENTICATED);
            }
        }
    }

    /// Whether a server of a pool has withdrawn the configured login.
    pub(crate) fn is_login_withdrawn(&self, pool: usize) -> bool {
        let withdrawn = |(index, server): (usize, &crate::pool::Server)| {
            server.trust.is_withdrawn()
                && usize::from(self.pools[usize::from(server.pool)].whole) == pool
                && self.decides_login(ServerId(index as u16))
        };
        self.servers.iter().enumerate().any(withdrawn)
    }

    /// A greeting on this link was refused for want of a password. Sessions that have lost their
    /// connection by that must authenticate. Sessions whose own link is up keep it.
    pub(crate) fn flag_unauthenticated(&mut self, key: Key) {
        let Some(link) = self.links.get(key) else {
            return;
        };
        let server = link.key.server;
        if !self.settings.users.is_empty() || !self.decides_login(server) {
            return;
        }
        let others_serve = self.serves_as_configured(server);
        let pool = self.pool_of(server).whole;
        for session in self.sessions.keys() {
            let Some(session) = self.sessions.get_mut(session) else {
                continue;
            };
            let is_concerned = session.pool == pool && (!others_serve || session.link == key);
            if session.user == CONFIGURED && is_concerned {
                session.flags |= Flags::UNAUTHENTICATED;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: &[u8] = b"*2\r\n$6\r\nserver\r\n$5\r\nredis\r\n";
    const NOAUTH: &[u8] = b"-NOAUTH HELLO must be called\r\n";

    fn found(credentials: Option<&Credentials>, replies: &[&[u8]]) -> Found {
        let (mut check, _) = Check::new(credentials);
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
        let refused = |text: &[u8]| Found::Refused(text.to_vec());
        for (replies, expected) in [
            (vec![b"+RESET\r\n".as_slice(), HELLO], Found::Accepted),
            (vec![b"+RESET\r\n", NOAUTH], refused(&NOAUTH[1..28])),
            // Redis 6.2, where RESET needs a login.
            (vec![b"-NOAUTH x\r\n", NOAUTH], refused(&NOAUTH[1..28])),
            (vec![b"-ERR unknown command\r\n", HELLO], Found::NotReset),
            (vec![b"+RESET\r\n", b"-ERR x\r\n"], Found::Nothing),
        ] {
            assert_eq!(found(None, &replies), expected, "{replies:?}");
        }
        let own = Credentials {
            user: None,
            password: "p".to_owned(),
            source: None,
        };
        for (replies, expected) in [
            (vec![b"+OK\r\n".as_slice(), HELLO], Found::Accepted),
            (vec![b"-WRONGPASS x\r\n", HELLO], refused(b"WRONGPASS x")),
            (vec![b"-WRONGPASS x\r\n", NOAUTH], refused(b"WRONGPASS x")),
            (vec![HELLO], refused(b"WRONGPASS")),
            (vec![NOAUTH], refused(b"WRONGPASS")),
            (vec![b"-ERR busy\r\n", HELLO], Found::Nothing),
        ] {
            assert_eq!(found(Some(&own), &replies), expected, "{replies:?}");
        }
    }
}
