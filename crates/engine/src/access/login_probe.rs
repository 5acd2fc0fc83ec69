//! Probing links, on which respool tries logins: those of clients and its own.
//!
//! A failed AUTH leaves the connection of a Redis server as it was. So one connection tries any
//! number of passwords.
//!
//! While requests wait for a server that is away, logins wait in their queue. A probing link is
//! connected once another link has reached the server, or where no other link tries it.

use std::collections::VecDeque;

use crate::access::Access;
use crate::base::error::{Cause, Fate, refuses_login};
use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::base::limits::{LOGIN_PROBES_PER_SERVER, LOGIN_QUEUE_MAX, LOGINS_PER_PROBE};
use crate::base::settings::Credentials;
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::actions::Event;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::access::{AccessCompletion, Login, LoginClaim, Source};
use crate::data_plane::guess_delay::{AttemptTime, LoginAttempt};
use crate::data_plane::ingress::{Dispatched, excess_reply};
use crate::data_plane::ledger::Entry;
use crate::data_plane::link::{Link, LinkKind, LinkRole, LinkState};
use crate::data_plane::link_loss::LinkDown;
use crate::data_plane::session::Flags;
use crate::data_plane::session_state::Holds;
use crate::routing::pool::ServerId;

/// The logins of one worker that wait for a server.
#[derive(Default)]
pub(crate) struct LoginProbes {
    /// New sessions that wait for a check of the configured login; at most as many as there are
    /// sessions.
    pub(crate) newcomers: Vec<SessionId>,
    /// Sessions that wait for a check before they change logins; at most as many as there are
    /// sessions.
    pub(crate) unchecked: Vec<SessionId>,
    /// Logins that wait for a place on a probing link, oldest first; at most [`LOGIN_QUEUE_MAX`].
    queue: VecDeque<UnaskedLogin>,
    /// Sessions whose logins wait because of wrong passwords of their addresses, and the ends of
    /// their waits; at most as many as there are sessions.
    waiting: Vec<(Time, SessionId)>,
    /// Servers that took no second probing link, and when; at most one item for each.
    refused: Vec<(ServerId, Time)>,
    /// When the log was last given refused logins to tell.
    reported_at: Time,
}

impl LoginProbes {
    /// Bytes of the logins that wait, in memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        let of_attempt = |attempt: &UnaskedLogin| {
            let credentials = &attempt.login.credentials;
            let name = credentials.user.as_ref().map_or(0, String::capacity);
            size_of::<Login>() + attempt.request.capacity() + name + credentials.password.capacity()
        };
        let attempts = self.queue.iter().map(of_attempt).sum::<usize>();
        self.queue.capacity() * size_of::<UnaskedLogin>() + attempts
    }

    /// Whether a server has refused a second probing link in the last `REFUSED_MS`.
    fn pauses(&mut self, server: ServerId, now: Time) -> bool {
        self.refused
            .retain(|(_, at)| now.since_ms(*at) < REFUSED_MS);
        self.refused.iter().any(|(refused, _)| *refused == server)
    }
}

/// How long a server that took no second probing link is not asked for one, milliseconds.
const REFUSED_MS: u64 = 1_000;

/// Whether a login is tried now.
pub(crate) enum LoginGate {
    /// It is tried now. The charge on its address is settled with the answer.
    Open(LoginClaim),
    /// It waits; the session holds.
    Wait,
    /// It is refused without a try.
    Shut,
}

/// A login of a client that no server has been asked about yet.
struct UnaskedLogin {
    server: ServerId,
    entry: Entry,
    /// AUTH, and a HELLO after it.
    request: Vec<u8>,
    login: Box<Login>,
}

impl Access {
    /// Whether a session may try a login now. A transaction does not wait: its login is refused
    /// instead.
    pub(crate) fn login_gate(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        is_presumed_right: bool,
    ) -> LoginGate {
        let Some(session) = plane.sessions.get(id) else {
            return LoginGate::Shut;
        };
        let source = Source::of(session.peer);
        let attempts = self.attempts.get(id);
        let is_new = attempts.is_none_or(|attempts| attempts.next.is_none());
        let next = match attempts.and_then(|attempts| attempts.next) {
            Some(next) => next,
            None => {
                let within = session
                    .rare
                    .as_deref()
                    .and_then(|rare| rare.composite.within);
                let attempt = LoginAttempt {
                    is_presumed_right,
                    has_failed: attempts.is_some_and(|attempts| attempts.has_failed),
                    may_wait: !session.state.any(Flags::IN_MULTI) && within.is_none(),
                };
                let mut guesses = self.guesses();
                guesses.reserve(source, attempt, plane.now)
            }
        };
        if plane.now >= next.at {
            let AttemptTime {
                is_tried,
                is_charged,
                ..
            } = next;
            return match is_tried {
                true => LoginGate::Open(LoginClaim { source, is_charged }),
                false => LoginGate::Shut,
            };
        }
        if is_new {
            self.attempts.get_or_default(id).next = Some(next);
            self.login_probes.waiting.push((next.at, id));
        }
        plane.hold(id, Holds::LINK);
        LoginGate::Wait
    }

    /// A login was right, or was not tried in the end.
    pub(crate) fn login_was_right(&self, plane: &DataPlane, claim: LoginClaim) {
        let mut guesses = self.guesses();
        guesses.handle_accepted(claim.source, claim.is_charged, plane.now);
    }

    /// A login was wrong.
    pub(crate) fn login_was_wrong(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        claim: LoginClaim,
    ) {
        plane.counters.logins_refused += 1;
        let mut guesses = self.guesses();
        guesses.handle_refused(claim.source, claim.is_charged, plane.now);
        drop(guesses);
        if plane.sessions.get(id).is_some() {
            self.attempts.get_or_default(id).has_failed = true;
        }
    }

    /// Tries logins that are due, and emits reports of refused logins for the log.
    pub(crate) fn tick_guesses(&mut self, plane: &mut DataPlane) {
        let now = plane.now;
        let mut due = Vec::new();
        self.login_probes.waiting.retain(|(at, id)| {
            let is_due = *at <= now;
            if is_due {
                due.push(*id);
            }
            !is_due
        });
        for id in due {
            plane.release(id, Holds::LINK);
        }
        if now.since_ms(self.login_probes.reported_at) < REPORTED_MS {
            return;
        }
        self.login_probes.reported_at = now;
        let mut reports = Vec::new();
        let mut guesses = self.guesses();
        reports.extend(std::iter::from_fn(|| guesses.poll_report(now)));
        drop(guesses);
        for report in reports {
            let from = match report.source {
                Some(source) => source.to_string(),
                None => String::from("several addresses"),
            };
            let count = report.count;
            plane.emit(Event::LoginsRefused { from, count });
        }
    }

    /// Connects probing links for logins that wait, and fails those that have waited for as long as
    /// a request may.
    pub(crate) fn tick_login_queue(&mut self, plane: &mut DataPlane) {
        let sessions = &plane.sessions;
        let has_client = |attempt: &UnaskedLogin| sessions.get(attempt.entry.session).is_some();
        self.login_probes.queue.retain(has_client);
        let queue = self.login_probes.queue.iter();
        let mut servers: Vec<ServerId> = queue.map(|attempt| attempt.server).collect();
        servers.sort_unstable();
        servers.dedup();
        for server in servers {
            if !self.has_probe(plane, server) && !self.is_tried(plane, server) {
                self.probing_link(plane, server, false);
            }
        }
        let limit_ms = plane.settings.timeouts.request_ms;
        let now = plane.now_stamp;
        let is_late = |attempt: &UnaskedLogin| now.ms_since(attempt.entry.read_at) >= limit_ms;
        while limit_ms > 0 && self.login_probes.queue.front().is_some_and(is_late) {
            let Some(attempt) = self.login_probes.queue.pop_front() else {
                return;
            };
            plane.counters.requests_timed_out += 1;
            plane.deadlines.count(attempt.entry.session);
            self.login_was_right(plane, attempt.login.claim);
            let server = plane.server(attempt.server).label.clone();
            let server = &server;
            plane.fail(
                attempt.entry,
                Fate::NotSent,
                Cause::Deadline { server, limit_ms },
            );
        }
    }

    /// A probing link could not be connected. If the server has another one, no second one is
    /// connected for a while. If it has none, the waiting logins fail, unless requests wait for the
    /// server. `is_refused`: the server is reachable, and refuses the link.
    fn probe_failed(
        &mut self,
        plane: &mut DataPlane,
        server: ServerId,
        reason: &str,
        is_refused: bool,
    ) {
        if self.has_probe(plane, server) {
            self.login_probes.refused.push((server, plane.now));
        } else if is_refused || !plane.holds_requests(server) {
            self.fail_logins(plane, server, reason);
        }
    }

    /// Fails the logins that wait for a server that cannot be reached.
    fn fail_logins(&mut self, plane: &mut DataPlane, server: ServerId, reason: &str) {
        let queue = std::mem::take(&mut self.login_probes.queue);
        let label = plane.server(server).label.clone();
        for attempt in queue {
            if attempt.server == server {
                self.login_was_right(plane, attempt.login.claim);
                let mut entry = attempt.entry;
                if attempt.login.is_of_hello() {
                    // See `DataPlane::close_at_hello`.
                    entry = entry.silenced(true);
                    plane.close_when_answered(entry.session);
                    let cause = Cause::NoLink {
                        server: &label,
                        reason,
                    };
                    plane.note_close_reason(entry.session, Fate::NotSent, cause);
                }
                let server = &label;
                plane.fail(entry, Fate::NotSent, Cause::NoLink { server, reason });
            } else {
                self.login_probes.queue.push_back(attempt);
            }
        }
    }
}

/// How often refused logins are collected for the log, milliseconds.
const REPORTED_MS: u64 = 1_000;

const UNTRIED: &[u8] =
    b"-NOTSENT respool: the login was not tried: too many wrong passwords or unanswered logins from \
    this address; try again in a few seconds\r\n";

impl Access {
    pub(super) fn is_probe(&self, plane: &DataPlane, id: LinkId) -> bool {
        let role = plane.links.get(id).map(|link| link.role);
        role == Some(LinkRole::Probe)
    }

    /// The server has refused the handshake of a link with this error. Returns whether the link is
    /// a probe without a login: clients' logins are tried on it.
    pub(crate) fn opens_probe(&mut self, plane: &mut DataPlane, id: LinkId, error: &[u8]) -> bool {
        let opens = self.is_probe(plane, id) && error.starts_with(b"NOAUTH");
        if opens {
            self.configured_login_answered(plane, id, Some(error));
        }
        opens
    }

    /// Whether the same credentials are being tried now. Both logins will get the same answer.
    pub(crate) fn is_being_asked(&self, plane: &DataPlane, login: &Credentials) -> bool {
        let mut waiting = self.login_probes.queue.iter();
        waiting.any(|attempt| attempt.login.credentials == *login)
            || plane.links.iter().any(|(_, link)| {
                let is_same = |completion: &Completion| match completion {
                    Completion::Access(AccessCompletion::Login(other)) => {
                        other.credentials == *login
                    }
                    _ => false,
                };
                link.role == LinkRole::Probe && link.ledger.any_completion(is_same)
            })
    }

    fn has_probe(&self, plane: &DataPlane, server: ServerId) -> bool {
        let is_its = |link: &Link| link.role == LinkRole::Probe && link.kind.server == server;
        plane.links.iter().any(|(_, link)| is_its(link))
    }

    /// Whether a link that is not up tries to reach a server, or will do so in a moment.
    pub(crate) fn is_tried(&self, plane: &DataPlane, server: ServerId) -> bool {
        let tries = |link: &Link| link.kind.server == server && link.tries();
        plane.links.iter().any(|(_, link)| tries(link))
    }

    /// Whether a server has refused the login of a user since it last accepted it.
    pub(crate) fn is_login_refused(&self, plane: &DataPlane, user: u16, server: ServerId) -> bool {
        plane.links.iter().any(|(_, link)| {
            let is_its = link.kind.user == user && link.kind.server == server;
            is_its && link.handshake_error.as_deref().is_some_and(refuses_login)
        })
    }

    /// The probing link of a server with the fewest unanswered logins. If no link is idle and the
    /// server may have one more, a new link is connected and returned. `any`: a busy link will do,
    /// so a new link is connected only if the server has none.
    pub(crate) fn probing_link(
        &mut self,
        plane: &mut DataPlane,
        server: ServerId,
        any: bool,
    ) -> Option<LinkId> {
        let probes = |(_, link): &(LinkId, &Link)| {
            link.role == LinkRole::Probe && link.kind.server == server
        };
        let all = plane.links.iter().filter(probes);
        let mut count = 0;
        let least = all
            .inspect(|_| count += 1)
            .min_by_key(|(_, link)| link.ledger.len())
            .map(|(id, link)| (id, link.is_up() && link.ledger.is_empty()));
        let is_full =
            count >= LOGIN_PROBES_PER_SERVER || self.login_probes.pauses(server, plane.now);
        match least {
            Some((id, is_idle)) if is_idle || any || is_full => Some(id),
            _ => {
                let kind = LinkKind {
                    db: 0,
                    user: CONFIGURED,
                    ..plane.default_kind(server)
                };
                let link = plane.add_link(kind, LinkRole::Probe)?;
                plane.connect(link);
                Some(link)
            }
        }
    }

    /// The probing link that is up, has room for a login, and has the fewest.
    fn probe_with_room(&self, plane: &DataPlane, server: ServerId) -> Option<LinkId> {
        let has_room = |(_, link): &(LinkId, &Link)| {
            link.role == LinkRole::Probe
                && link.kind.server == server
                && link.is_up()
                && link.ledger.len() < LOGINS_PER_PROBE
        };
        let with_room = plane.links.iter().filter(has_room);
        let least = with_room.min_by_key(|(_, link)| link.ledger.len());
        least.map(|(id, _)| id)
    }

    /// The login for which a session has waited has been tried, or refused.
    pub(crate) fn end_attempt(&mut self, id: SessionId) {
        if let Some(attempts) = self.attempts.get_mut(id) {
            attempts.next = None;
        }
    }

    /// Refuses a login without a try because too many of its address wait already.
    pub(crate) fn refuse_untried(&mut self, plane: &mut DataPlane, id: SessionId) -> Dispatched {
        self.end_attempt(id);
        plane.counters.logins_refused += 1;
        plane.answer_reply(id, UNTRIED)
    }

    /// Asks a server about a login that it has not accepted before.
    pub(crate) fn probe_login(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        server: ServerId,
        request: Vec<u8>,
        login: Login,
    ) -> Dispatched {
        if self.login_probes.queue.len() >= LOGIN_QUEUE_MAX {
            let sessions = &plane.sessions;
            let queue = &mut self.login_probes.queue;
            queue.retain(|attempt| sessions.get(attempt.entry.session).is_some());
            if queue.len() >= LOGIN_QUEUE_MAX {
                return plane.answer_reply(
                    id,
                    &excess_reply("too many logins wait in this worker: try again"),
                );
            }
        }
        let Some(session) = plane.sessions.get_mut(id) else {
            return Dispatched::Done;
        };
        let entry = Entry {
            len: request.len() as u32,
            command: session.last_command.into(),
            ..Entry::of(id, session.take_seq(), plane.read_at)
                .with_completion(true)
                .silenced(session.state.is_silent())
        };
        self.login_probes.queue.push_back(UnaskedLogin {
            server,
            entry,
            request,
            login: Box::new(login),
        });
        plane.hold_until_caught_up(id);
        self.pump(plane, server);
        Dispatched::Done
    }

    /// This link is up, or a login was answered on it: the next logins of its server may be tried.
    pub(crate) fn pump_logins(&mut self, plane: &mut DataPlane, link: LinkId) {
        if let Some(link) = plane
            .links
            .get(link)
            .filter(|link| link.role == LinkRole::Probe)
        {
            self.pump(plane, link.kind.server);
        }
    }

    pub(crate) fn pump(&mut self, plane: &mut DataPlane, server: ServerId) {
        if !self.has_probe(plane, server) && plane.holds_requests(server) {
            return;
        }
        loop {
            let mut queue = self.login_probes.queue.iter();
            let Some(index) = queue.position(|attempt| attempt.server == server) else {
                return;
            };
            // A link that is not up gets no login, since it may be refused while another one works.
            self.probing_link(plane, server, false);
            let Some(id) = self.probe_with_room(plane, server) else {
                return;
            };
            let Some(link) = plane.links.get_mut(id) else {
                return;
            };
            let Some(attempt) = self.login_probes.queue.remove(index) else {
                return;
            };
            if plane.sessions.get(attempt.entry.session).is_none() {
                continue;
            }
            link.ledger.push_with(
                attempt.entry,
                &attempt.request,
                Completion::Access(AccessCompletion::Login(attempt.login)),
            );
            link.unused_since = plane.now;
            plane.counters.link_requests += 1;
            plane.list_link(id);
        }
    }

    /// Attaches a session that a server has accepted to the link of its user.
    pub(crate) fn attach_accepted(&mut self, plane: &mut DataPlane, id: SessionId) {
        plane.attach_shared(id);
        let Some(link) = plane.sessions.get(id).map(|session| session.link) else {
            return;
        };
        let rests = |link: &Link| matches!(link.state, LinkState::Backoff { .. } | LinkState::Down);
        if plane.links.get(link).is_some_and(rests) {
            plane.connect(link);
        }
    }

    /// A link is lost for good. Logins wait for any probing link, so a lost one is removed before
    /// they look for another.
    pub(crate) fn link_ends(&mut self, plane: &mut DataPlane, down: &LinkDown) {
        if down.role != LinkRole::Probe {
            return;
        }
        if !down.was_up {
            self.probe_failed(
                plane,
                down.server,
                &down.reason,
                down.handshake_error.is_some(),
            );
        }
        self.probe_lost(plane, down.server, down.link);
    }

    /// A probing link is gone.
    fn probe_lost(&mut self, plane: &mut DataPlane, server: ServerId, link: LinkId) {
        let trust = &mut plane.servers[usize::from(server.0)].trust;
        if trust.handle_check_end(link) {
            self.release_waiting(plane);
        }
        self.pump(plane, server);
    }

    /// Handles the server's answer to the configured login in a handshake. `None`: it agreed.
    pub(crate) fn configured_login_answered(
        &mut self,
        plane: &mut DataPlane,
        id: LinkId,
        error: Option<&[u8]>,
    ) {
        let Some(link) = plane.links.get(id) else {
            return;
        };
        let server = link.kind.server;
        let has_credentials = plane.server(server).settings.credentials.is_some();
        let is_configured = match link.role {
            LinkRole::Sentinel => false,
            // It sends no credentials.
            LinkRole::Probe => !has_credentials,
            _ => link.kind.user == CONFIGURED,
        };
        let is_sentinels = link.role == LinkRole::Sentinel;
        match error {
            Some(error) if is_sentinels => {
                self.seek_password(plane, server, error);
            }
            _ if !is_configured => {}
            None => self.login_accepted(plane, server),
            Some(error) => self.login_refused(plane, server, error),
        }
    }
}

#[cfg(test)]
mod tests {
    use respool_protocol::request::RequestScanner;

    use super::*;
    use crate::base::time::Time;
    use crate::data_plane::test_plane::{plane_with_link, replies_of, request_of, session_of};

    /// Sends an AUTH to the server, which has no configured users.
    fn auth(access: &mut Access, plane: &mut DataPlane, id: SessionId, line: &str) -> Dispatched {
        let kept = request_of(line);
        let mut scanner = RequestScanner::default();
        let request = kept.read(&mut scanner);
        access.auth(plane, id, &request)
    }

    /// The probing links, with the number of logins that each owes an answer to.
    fn probes(plane: &DataPlane) -> Vec<(LinkId, usize)> {
        let links = plane.links.iter();
        let probes = links.filter(|(_, link)| link.role == LinkRole::Probe);
        probes.map(|(id, link)| (id, link.ledger.len())).collect()
    }

    /// A login of a client waits for a probing link, and goes there once that is up.
    #[test]
    fn login_goes_to_a_probing_link_once_it_is_up() {
        let ((mut plane, _), mut access) = (plane_with_link(), Access::default());
        let id = session_of(&mut plane);
        assert_eq!(
            auth(&mut access, &mut plane, id, "AUTH app one"),
            Dispatched::Done
        );
        access.tick_login_queue(&mut plane);
        let [(link, 0)] = probes(&plane)[..] else {
            panic!("one probing link connects, and has no login yet");
        };
        let credentials = |password: &str| Credentials {
            user: Some(String::from("app")),
            password: password.to_owned(),
            source: None,
        };
        assert!(access.is_being_asked(&plane, &credentials("one")));
        assert!(!access.is_being_asked(&plane, &credentials("two")));
        plane.mark_up(link).expect("the link is there");
        access.pump_logins(&mut plane, link);
        assert!(probes(&plane)[0].1 > 0, "the login is on the link");
        assert!(access.is_being_asked(&plane, &credentials("one")));
        assert_eq!(replies_of(&plane, id), "");
    }

    /// A login that no server answers in time fails as not sent.
    #[test]
    fn login_that_waits_too_long_is_not_sent() {
        let ((mut plane, _), mut access) = (plane_with_link(), Access::default());
        let id = session_of(&mut plane);
        auth(&mut access, &mut plane, id, "AUTH app one");
        let limit_ms = plane.settings.timeouts.request_ms;
        plane.begin_turn(Time(0).plus_ms(limit_ms - 1));
        access.tick_login_queue(&mut plane);
        assert_eq!(replies_of(&plane, id), "");
        plane.begin_turn(Time(0).plus_ms(limit_ms));
        access.tick_login_queue(&mut plane);
        let error = replies_of(&plane, id);
        assert!(error.starts_with("-NOTSENT"), "{error}");
        assert_eq!(plane.counters.requests_timed_out, 1);
    }

    /// The login of a client that has left is forgotten.
    #[test]
    fn login_of_a_client_that_left_is_forgotten() {
        let ((mut plane, _), mut access) = (plane_with_link(), Access::default());
        let id = session_of(&mut plane);
        auth(&mut access, &mut plane, id, "AUTH app one");
        assert!(access.login_probes.memory_bytes() > 0);
        plane.sessions.remove(id);
        access.tick_login_queue(&mut plane);
        assert!(access.login_probes.queue.is_empty());
        let (link, _) = probes(&plane)[0];
        plane.mark_up(link).expect("the link is there");
        access.pump_logins(&mut plane, link);
        assert_eq!(probes(&plane), [(link, 0)]);
    }
}
