//! Probing links: respool tries logins on them, those of clients and its own.
//!
//! A failed AUTH leaves the connection of a Redis server as it was. So one connection tries any
//! number of passwords.
//!
//! While requests wait for a server that is away, logins wait in their queue. A probing link is
//! connected once another link has reached the server, or where no other link tries it.

use std::collections::VecDeque;

use crate::auth::{CONFIGURED, Login};
use crate::duty::Duty;
use crate::engine::{Engine, Event};
use crate::entry::Entry;
use crate::failure::{Cause, Fate};
use crate::guess_delay::{Asked, Source, Turn};
use crate::limits::{LOGIN_PROBES_PER_SERVER, LOGIN_QUEUE_MAX, LOGINS_PER_PROBE};
use crate::link::{Link, LinkKey, Role, State};
use crate::pool::ServerId;
use crate::requests::{Placed, bound_reply};
use crate::session::{Flags, Peer};
use crate::settings::Credentials;
use crate::slots::Key;
use crate::time::Time;
use crate::trust::refuses_login;

/// The logins of one worker that wait for a server.
#[derive(Default)]
pub(crate) struct LoginProbes {
    /// New sessions that wait for a check of the configured login; at most as many as there are
    /// sessions.
    pub(crate) newcomers: Vec<Key>,
    /// Logins that wait for a place on a probing link, oldest first; at most [`LOGIN_QUEUE_MAX`].
    queue: VecDeque<Attempt>,
    /// Sessions whose logins wait because of wrong passwords of their addresses, and the ends of
    /// their waits; at most as many as there are sessions.
    delayed: Vec<(Time, Key)>,
    /// Servers that took no second probing link, and when; at most one item for each.
    refused: Vec<(ServerId, Time)>,
    /// When the log was last given refused logins to tell.
    reported_at: Time,
}

impl LoginProbes {
    /// Bytes of the logins that wait, in memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        let of_attempt = |attempt: &Attempt| {
            let credentials = &attempt.login.credentials;
            let name = credentials.user.as_ref().map_or(0, String::capacity);
            size_of::<Login>() + attempt.request.capacity() + name + credentials.password.capacity()
        };
        let attempts = self.queue.iter().map(of_attempt).sum::<usize>();
        self.queue.capacity() * size_of::<Attempt>() + attempts
    }

    /// Whether a server has refused a second probing link a moment ago.
    fn pauses(&mut self, server: ServerId, now: Time) -> bool {
        self.refused
            .retain(|(_, at)| now.since_ms(*at) < REFUSED_MS);
        self.refused.iter().any(|(its, _)| *its == server)
    }
}

/// How long a server that took no second probing link is not asked for one, milliseconds.
const REFUSED_MS: u64 = 1_000;

/// Whether a login is tried now.
pub(crate) enum Gate {
    /// It is. What it counts for its address is to be settled with the answer.
    Open(Claim),
    /// It waits; the session holds.
    Wait,
    /// It is refused, untried.
    Shut,
}

/// A login that is being tried, as its address is charged for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    source: Source,
    is_charged: bool,
}

impl Claim {
    /// Of a login that does not wait.
    pub(crate) fn free(peer: Peer) -> Claim {
        Claim {
            source: Source::of(peer),
            is_charged: false,
        }
    }
}

/// A login of a client that no server has been asked about yet.
struct Attempt {
    server: ServerId,
    entry: Entry,
    /// AUTH, and HELLO behind it.
    request: Vec<u8>,
    login: Box<Login>,
}

impl Engine {
    pub(crate) fn is_probe(&self, key: Key) -> bool {
        let role = self.links.get(key).map(|link| link.role);
        role == Some(Role::Probe)
    }

    /// The probing link of a server with the fewest unanswered logins. If no link is idle and the
    /// server may have one more, a new link is connected and returned. `any`: a busy link will do,
    /// so a new link is connected only if the server has none.
    pub(crate) fn probing_link(&mut self, server: ServerId, any: bool) -> Option<Key> {
        let probes =
            |(_, link): &(Key, &Link)| link.role == Role::Probe && link.key.server == server;
        let its = self.links.iter().filter(probes);
        let mut count = 0;
        let least = its
            .inspect(|_| count += 1)
            .min_by_key(|(_, link)| link.ledger.len())
            .map(|(key, link)| (key, link.is_up() && link.ledger.is_empty()));
        let is_full =
            count >= LOGIN_PROBES_PER_SERVER || self.login_probes.pauses(server, self.now);
        match least {
            Some((key, is_idle)) if is_idle || any || is_full => Some(key),
            _ => {
                let kind = LinkKey {
                    db: 0,
                    user: CONFIGURED,
                    ..self.first_link(server)
                };
                let link = self.add_link(kind, Role::Probe)?;
                self.connect(link);
                Some(link)
            }
        }
    }

    /// The probing link that is up and has room for a login.
    fn probe_with_room(&self, server: ServerId) -> Option<Key> {
        let has_room = |(_, link): &(Key, &Link)| {
            link.role == Role::Probe
                && link.key.server == server
                && link.is_up()
                && link.ledger.len() < LOGINS_PER_PROBE
        };
        let its = self.links.iter().filter(has_room);
        let least = its.min_by_key(|(_, link)| link.ledger.len());
        least.map(|(key, _)| key)
    }

    /// What a server said to a greeting with the configured login; `None`: it agreed.
    pub(crate) fn greeted_as_configured(&mut self, key: Key, refusal: Option<&[u8]>) {
        let Some(link) = self.links.get(key) else {
            return;
        };
        let server = link.key.server;
        let has_credentials = self.server(server).settings.credentials.is_some();
        let is_configured = match link.role {
            Role::Sentinel => false,
            // It brings no credentials.
            Role::Probe => !has_credentials,
            _ => link.key.user == CONFIGURED,
        };
        let is_sentinels = link.role == Role::Sentinel;
        match refusal {
            Some(error) if is_sentinels => {
                self.seek_password(server, error);
            }
            _ if !is_configured => {}
            None => self.login_accepted(server),
            Some(error) => self.login_refused(server, error),
        }
    }

    /// Whether a session may try a login now. A transaction does not wait: its login is refused
    /// instead.
    pub(crate) fn login_gate(&mut self, key: Key, is_presumed_right: bool) -> Gate {
        let Some(session) = self.sessions.get_mut(key) else {
            return Gate::Shut;
        };
        let source = Source::of(session.peer);
        let attempts = session.rare.as_deref().map(|rare| &rare.attempts);
        let is_new = attempts.is_none_or(|attempts| attempts.turn.is_none());
        let turn = match attempts.and_then(|attempts| attempts.turn) {
            Some(turn) => turn,
            None => {
                let within = session.rare.as_deref().and_then(|rare| rare.within);
                let asked = Asked {
                    is_presumed_right,
                    has_failed: attempts.is_some_and(|attempts| attempts.has_failed),
                    may_wait: !session.flags.any(Flags::IN_MULTI) && within.is_none(),
                };
                let mut guesses = self.directory.guesses();
                guesses.reserve(source, asked, self.now)
            }
        };
        if self.now >= turn.at {
            let Turn {
                is_tried,
                is_charged,
                ..
            } = turn;
            return match is_tried {
                true => Gate::Open(Claim { source, is_charged }),
                false => Gate::Shut,
            };
        }
        if is_new {
            session.rare().attempts.turn = Some(turn);
            self.login_probes.delayed.push((turn.at, key));
        }
        self.hold(key, Flags::HOLD_LINK);
        Gate::Wait
    }

    /// The login that a session waited with has been tried, or refused.
    pub(crate) fn end_login_turn(&mut self, key: Key) {
        let session = self.sessions.get_mut(key);
        if let Some(rare) = session.and_then(|session| session.rare.as_mut()) {
            rare.attempts.turn = None;
        }
    }

    /// A login was right, or was not tried in the end.
    pub(crate) fn login_was_right(&mut self, claim: Claim) {
        let mut guesses = self.directory.guesses();
        guesses.handle_accepted(claim.source, claim.is_charged, self.now);
    }

    /// A login was wrong.
    pub(crate) fn login_was_wrong(&mut self, key: Key, claim: Claim) {
        self.counters.logins_refused += 1;
        let mut guesses = self.directory.guesses();
        guesses.handle_refused(claim.source, claim.is_charged, self.now);
        drop(guesses);
        if let Some(session) = self.sessions.get_mut(key) {
            session.rare().attempts.has_failed = true;
        }
    }

    /// A login is refused because too many of its address wait already.
    pub(crate) fn refuse_untried(&mut self, key: Key) -> Placed {
        self.end_login_turn(key);
        self.counters.logins_refused += 1;
        self.answer_reply(key, UNTRIED)
    }

    /// Whether the same credentials are being tried now. Both logins will get the same answer.
    pub(crate) fn is_being_asked(&self, login: &Credentials) -> bool {
        let mut waiting = self.login_probes.queue.iter();
        waiting.any(|attempt| attempt.login.credentials == *login)
            || self.links.iter().any(|(_, link)| {
                let is_same = |duty: &Duty| match duty {
                    Duty::Login(asked) => asked.credentials == *login,
                    _ => false,
                };
                link.role == Role::Probe && link.duties.iter().any(is_same)
            })
    }

    /// Logins whose turn has come are tried, and the log is told of those that were refused.
    pub(crate) fn tick_guesses(&mut self) {
        let now = self.now;
        let mut due = Vec::new();
        self.login_probes.delayed.retain(|(at, key)| {
            let is_due = *at <= now;
            if is_due {
                due.push(*key);
            }
            !is_due
        });
        for key in due {
            self.release(key, Flags::HOLD_LINK);
        }
        if now.since_ms(self.login_probes.reported_at) < REPORTED_MS {
            return;
        }
        self.login_probes.reported_at = now;
        let mut reports = Vec::new();
        let mut guesses = self.directory.guesses();
        reports.extend(std::iter::from_fn(|| guesses.poll_report(now)));
        drop(guesses);
        for report in reports {
            let from = match report.source {
                Some(source) => source.to_string(),
                None => String::from("several addresses"),
            };
            let count = report.count;
            self.tell(Event::LoginsRefused { from, count });
        }
    }

    /// Asks a server about a login that it has not accepted before.
    pub(crate) fn probe_login(
        &mut self,
        key: Key,
        server: ServerId,
        request: Vec<u8>,
        login: Login,
    ) -> Placed {
        if self.login_probes.queue.len() >= LOGIN_QUEUE_MAX {
            let sessions = &self.sessions;
            let queue = &mut self.login_probes.queue;
            queue.retain(|attempt| sessions.get(attempt.entry.session).is_some());
            if queue.len() >= LOGIN_QUEUE_MAX {
                return self.answer_reply(key, &bound_reply("LOGIN_QUEUE_MAX"));
            }
        }
        let Some(session) = self.sessions.get_mut(key) else {
            return Placed::Done;
        };
        let entry = Entry {
            len: request.len() as u32,
            duty: true,
            silent: session.flags.any(Flags::SILENT | Flags::SILENT_ONCE),
            ..Entry::of(key, session.take_seq(), self.asked_ms)
        };
        self.login_probes.queue.push_back(Attempt {
            server,
            entry,
            request,
            login: Box::new(login),
        });
        self.hold_until_caught_up(key);
        self.pump(server);
        Placed::Done
    }

    /// This link is up, or a login was answered on it: the next logins of its server may be tried.
    pub(crate) fn pump_logins(&mut self, link: Key) {
        if let Some(link) = self.links.get(link).filter(|link| link.role == Role::Probe) {
            self.pump(link.key.server);
        }
    }

    pub(crate) fn pump(&mut self, server: ServerId) {
        if !self.has_probe(server) && self.holds_requests(server) {
            return;
        }
        loop {
            let mut queue = self.login_probes.queue.iter();
            let Some(index) = queue.position(|attempt| attempt.server == server) else {
                return;
            };
            // A link that is not up gets no login, since it may be refused while another one works.
            self.probing_link(server, false);
            let Some(key) = self.probe_with_room(server) else {
                return;
            };
            let Some(link) = self.links.get_mut(key) else {
                return;
            };
            let Some(attempt) = self.login_probes.queue.remove(index) else {
                return;
            };
            if self.sessions.get(attempt.entry.session).is_none() {
                continue;
            }
            link.push_with(attempt.entry, &attempt.request, Duty::Login(attempt.login));
            link.unused_since = self.now;
            self.counters.link_requests += 1;
            self.list_link(key);
        }
    }

    /// Connects probing links for logins that wait, and fails those that have waited for as long as
    /// a request may.
    pub(crate) fn tick_login_queue(&mut self) {
        let sessions = &self.sessions;
        let has_client = |attempt: &Attempt| sessions.get(attempt.entry.session).is_some();
        self.login_probes.queue.retain(has_client);
        let queue = self.login_probes.queue.iter();
        let mut servers: Vec<ServerId> = queue.map(|attempt| attempt.server).collect();
        servers.sort_unstable();
        servers.dedup();
        for server in servers {
            if !self.has_probe(server) && !self.is_tried(server) {
                self.probing_link(server, false);
            }
        }
        let limit_ms = self.settings.timeouts.request_ms;
        let now = self.now.stamp_ms();
        let is_late = |attempt: &Attempt| now.wrapping_sub(attempt.entry.at_ms) >= limit_ms;
        while limit_ms > 0 && self.login_probes.queue.front().is_some_and(is_late) {
            let Some(attempt) = self.login_probes.queue.pop_front() else {
                return;
            };
            self.counters.timeouts += 1;
            self.arrivals.count(attempt.entry.session);
            self.login_was_right(attempt.login.claim);
            let server = self.server(attempt.server).label.clone();
            let server = &server;
            self.fail(
                attempt.entry,
                Fate::NotSent,
                Cause::Deadline { server, limit_ms },
            );
        }
    }

    fn has_probe(&self, server: ServerId) -> bool {
        let is_its = |link: &Link| link.role == Role::Probe && link.key.server == server;
        self.links.iter().any(|(_, link)| is_its(link))
    }

    /// Whether a link that is not up tries to reach a server, or will do so in a moment.
    fn is_tried(&self, server: ServerId) -> bool {
        let tries = |link: &Link| link.key.server == server && link.tries();
        self.links.iter().any(|(_, link)| tries(link))
    }

    /// A probing link could not be connected. If the server has another one, no second one is
    /// connected for a while. If it has none, the waiting logins fail, unless requests wait for the
    /// server. `is_refused`: the server is there, and refuses the link.
    pub(crate) fn probe_failed(&mut self, server: ServerId, reason: &str, is_refused: bool) {
        if self.has_probe(server) {
            self.login_probes.refused.push((server, self.now));
        } else if is_refused || !self.holds_requests(server) {
            self.fail_logins(server, reason);
        }
    }

    /// A server cannot be reached: logins do not wait for it.
    fn fail_logins(&mut self, server: ServerId, reason: &str) {
        let queue = std::mem::take(&mut self.login_probes.queue);
        let label = self.server(server).label.clone();
        for attempt in queue {
            if attempt.server == server {
                self.login_was_right(attempt.login.claim);
                let mut entry = attempt.entry;
                if attempt.login.greets() {
                    // See `Engine::close_greeting`.
                    entry.silent = true;
                    self.close_when_answered(entry.session);
                }
                let server = &label;
                self.fail(entry, Fate::NotSent, Cause::NoLink { server, reason });
            } else {
                self.login_probes.queue.push_back(attempt);
            }
        }
    }

    /// Whether a server has refused the login of a user since it last accepted it.
    pub(crate) fn is_login_refused(&self, user: u16, server: ServerId) -> bool {
        self.links.iter().any(|(_, link)| {
            let is_its = link.key.user == user && link.key.server == server;
            is_its && link.refusal.as_deref().is_some_and(refuses_login)
        })
    }

    /// A session that a server has let in rides on the link of its user.
    pub(crate) fn ride_accepted(&mut self, key: Key) {
        self.ride_shared(key);
        let Some(link) = self.sessions.get(key).map(|session| session.link) else {
            return;
        };
        let rests = |link: &Link| matches!(link.state, State::Resting { .. } | State::Down);
        if self.links.get(link).is_some_and(rests) {
            self.connect(link);
        }
    }

    /// A probing link is gone.
    pub(crate) fn probe_lost(&mut self, server: ServerId, link: Key) {
        let trust = &mut self.servers[usize::from(server.0)].trust;
        if trust.handle_check_end(link) {
            self.release_newcomers();
        }
        self.pump(server);
    }
}

/// How often refused logins are looked for that the log is to tell, milliseconds.
const REPORTED_MS: u64 = 1_000;

const UNTRIED: &[u8] =
    b"-NOTSENT respool: the login was not tried: too many wrong passwords or unanswered logins from \
    this address; try again in a few seconds\r\n";
