//! CLIENT TRACKING with REDIRECT: what the server has to say to one session goes to another one.
//!
//! The server redirects to a connection, and a session that is redirected to has none. So we give it one,
//! a link on which nothing is ever asked; whatever comes on it goes to that session, be it another
//! worker's:
//!
//! ```text
//!   tracking session ── own link: CLIENT TRACKING ON REDIRECT 7 ──▶ server
//!                                                                     │ something has changed
//!   session that is told ◀── its worker ◀── the link that is client 7 ◀─┘
//! ```
//!
//! All sessions of a worker that redirect to the same one share that link.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use respool_protocol::encode::{self, Version};
use respool_protocol::number;

use crate::duty::Duty;
use crate::engine::Engine;
use crate::fleet::{Form, Question};
use crate::limits::REDIRECTS_QUEUED_MAX;
use crate::link::{Link, LinkKey, Role, State};
use crate::pinned::Switch;
use crate::requests::{Blocked, Placed, Request, bound_reply};
use crate::session::{Flags, Pins, Session};
use crate::slots::Key;

/// Where it goes what a server has to say to a session that tracks.
#[derive(Clone, Debug)]
pub(crate) struct Redirect {
    /// The id of the session that is told.
    pub(crate) to: u64,
    /// The link that stands for it at the server, and that stays as long as this is held: by who tracks, and by
    /// what has been asked or queued and not answered.
    link: Key,
    held: Arc<Stand>,
}

/// What a link knows of the session for which it stands; whoever needs that link holds this.
#[derive(Debug, Default)]
pub(crate) struct Stand {
    /// The session has left, and the link with it: the server will find that out. Otherwise, a link that is gone
    /// was lost.
    has_left: AtomicBool,
}

/// What was found out of a session that is to be told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) to: u64,
    pub(crate) is_here: bool,
}

/// The commands.
impl Engine {
    pub(crate) fn client_tracking(&mut self, key: Key, request: &Request<'_>) -> Placed {
        match redirect_asked(request) {
            Some((at, to)) => self.track_for(key, request, at, to),
            None => self.switch(key, request),
        }
    }

    /// `to`: the session that is to be told, by the argument at `at`.
    pub(crate) fn track_for(
        &mut self,
        key: Key,
        request: &Request<'_>,
        at: usize,
        to: u64,
    ) -> Placed {
        if self.hold_until_caught_up(key) {
            return Placed::Wait;
        }
        let found = |session: &Session| session.rare.as_ref()?.redirect_found;
        let found = self.sessions.get(key).and_then(found);
        let Some(found) = found.filter(|found| found.to == to) else {
            // Whichever worker has it; the request goes on once that is known.
            self.hold(key, Flags::HOLD_DRAIN);
            let request = request.keep();
            let form = Form::Target { to, request };
            let pool = self.pool_of_session(key);
            return self.ask(key, Question::Target { to, pool }, form, None);
        };
        let placed = match self.place_redirected(key, request, at, found) {
            Ok(placed) => placed,
            Err(blocked) => self.blocked(key, blocked),
        };
        if placed == Placed::Done
            && let Some(session) = self.sessions.get_mut(key)
        {
            // It may be gone when the next one names it.
            session.rare().redirect_found = None;
            self.unpin(key, Pins::ONCE);
        }
        placed
    }

    fn place_redirected(
        &mut self,
        key: Key,
        request: &Request<'_>,
        at: usize,
        found: Found,
    ) -> Result<Placed, Blocked> {
        let in_multi = self.is_in_multi(key);
        let link = match found.is_here {
            true if in_multi && self.redirects_queued(key, found.to) >= REDIRECTS_QUEUED_MAX => {
                return Err(Blocked::Refused(bound_reply("REDIRECTS_QUEUED_MAX")));
            }
            true => {
                if !in_multi {
                    // Its own link first. The two have a common bound: who has one of them does not wait for the
                    // other, since somebody else may do the same.
                    self.pin(key, Pins::ONCE)?;
                }
                Some(self.redirect_link(key, found.to)?)
            }
            false if !in_multi => {
                let text = b"ERR The client ID you want redirect to does not exist";
                return Ok(self.answer_error(key, text));
            }
            false => None,
        };
        let stands_for_it = link.and_then(|link| self.links.get(link));
        let client_id = stands_for_it.map_or(NO_CLIENT, |link| link.client_id);
        let redirect = stands_for_it.zip(link).map(|(state, link)| Redirect {
            to: found.to,
            link,
            held: state.held.clone(),
        });
        let client_id = client_id.to_string();
        let mut args: Vec<&[u8]> = request.args().collect();
        args[at] = client_id.as_bytes();
        let mut bytes = Vec::new();
        encode::request(&mut bytes, &args);
        let switch = Switch::of(request);
        if in_multi {
            return Ok(self.queue_switch(key, switch, redirect, &bytes));
        }
        self.place_switch(key, switch, redirect, &bytes)
    }

    /// The link that stands for the session that is told, once it is up.
    fn redirect_link(&mut self, key: Key, to: u64) -> Result<Key, Blocked> {
        let Some(session) = self.sessions.get(key) else {
            return Err(Blocked::Wait);
        };
        let kind = LinkKey {
            version: Version::Resp3,
            db: 0,
            ..self.kind_of(session)
        };
        let stands_for_it = |role, link_kind| role == Role::Redirect { to } && link_kind == kind;
        let found = self
            .links
            .iter()
            .find(|(_, link)| stands_for_it(link.role, link.key))
            .map(|(link, _)| link);
        let link = match found {
            Some(link) => link,
            None => {
                let has_one = self
                    .sessions
                    .get(key)
                    .is_some_and(|own| !own.pins.is_empty());
                if has_one && !self.may_have_own_link(key) {
                    return Err(Blocked::Refused(bound_reply("pinned-links-max")));
                }
                self.wait_for_room(key)?;
                let fresh = self.add_link(kind, Role::Redirect { to });
                let link = fresh.ok_or_else(|| Blocked::Refused(bound_reply("links-max")))?;
                self.connect(link);
                link
            }
        };
        match self.links.get(link).map(|link| &link.state) {
            Some(State::Up) => Ok(link),
            Some(State::Resting { .. }) => {
                let away = self.away_error(key);
                Err(Blocked::Refused(self.no_link_reply(link, away)))
            }
            _ => {
                self.wait_until_up(key, link).map_err(Blocked::Refused)?;
                Err(Blocked::Wait)
            }
        }
    }

    /// The server has agreed that what it has to say to a session goes to another one; or to none, any more.
    pub(crate) fn set_redirect(&mut self, key: Key, redirect: Option<Redirect>) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        if redirect.is_none() && session.rare.is_none() {
            return;
        }
        session.rare().redirect = redirect;
        let lost = |redirect: &Redirect| self.has_lost(redirect);
        if self.redirect_of(key).is_some_and(lost) {
            self.close_for(key, String::from(LOST));
        }
    }

    pub(crate) fn redirect_of(&self, key: Key) -> Option<&Redirect> {
        self.sessions.get(key)?.rare.as_ref()?.redirect.as_ref()
    }

    /// Whether the link that was to stand for a session was lost meanwhile: its number may be another's now.
    pub(crate) fn has_lost(&self, redirect: &Redirect) -> bool {
        !redirect.held.has_left.load(Ordering::Relaxed) && self.links.get(redirect.link).is_none()
    }

    /// The reply to CLIENT GETREDIR or TRACKINGINFO, with the session that is told instead of the link that
    /// stands for it.
    pub(crate) fn name_told(&self, key: Key, reply: &[u8]) -> Vec<u8> {
        const FIELD: &[u8] = b"$8\r\nredirect\r\n:";
        let field = || reply.windows(FIELD.len()).position(|field| field == FIELD);
        let at = match reply {
            [b':', ..] => Some(1),
            _ => field().map(|at| at + FIELD.len()),
        };
        let (Some(redirect), Some(at)) = (self.redirect_of(key), at) else {
            return reply.to_vec();
        };
        let (front, behind) = reply.split_at(at);
        let digits = behind.iter().position(|byte| *byte == b'\r');
        let behind = &behind[digits.unwrap_or_default()..];
        [front, redirect.to.to_string().as_bytes(), behind].concat()
    }
}

/// The session that is told.
impl Engine {
    /// Whether a session is here and of this pool; from now on it is known as one that is told.
    pub(crate) fn become_target(&mut self, to: u64, pool: u16) -> bool {
        let mut sessions = self.sessions.iter();
        let found = sessions.find(|(_, session)| session.id == to && session.pool == pool);
        let key = found.map(|(key, _)| key);
        self.targets.extend(key.map(|key| (to, key)));
        key.is_some()
    }

    /// Something came on a link that stands for a session.
    pub(crate) fn redirected(&mut self, to: u64, push: &[u8]) {
        if self.targets.contains_key(&to) {
            self.tell_target(to, push);
        } else if self.worker.count > 1 {
            let push = push.to_vec();
            self.tell_all(Question::Tell { to, push });
        }
    }

    /// As Redis has it (`sendTrackingMessage`): a push in RESP3, a message to a subscriber in RESP2, nothing
    /// to anybody else.
    pub(crate) fn tell_target(&mut self, to: u64, push: &[u8]) {
        let Some(&key) = self.targets.get(&to) else {
            return;
        };
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        if session.version == Version::Resp3 {
            return self.push_to(key, push);
        }
        let Some(what) = push.strip_prefix(INVALIDATE).filter(|_| session.listens()) else {
            return;
        };
        let mut message = Vec::new();
        encode::array(&mut message, 3);
        encode::bulk(&mut message, b"message");
        encode::bulk(&mut message, b"__redis__:invalidate");
        match what {
            b"_\r\n" => encode::null_array(&mut message, Version::Resp2),
            keys => message.extend_from_slice(keys),
        }
        self.push_to(key, &message);
    }

    /// A session is gone: if others redirect to it, every worker gives up the links that stand for it. So the server
    /// finds out as it would without us.
    pub(crate) fn forget_redirects(&mut self, gone: &Session) {
        if self.targets.remove(&gone.id).is_some() {
            self.tell_all(Question::TargetGone { to: gone.id });
        }
    }

    pub(crate) fn target_gone(&mut self, to: u64) {
        let links = self.links.iter();
        let stand_for_it = links.filter(|(_, link)| link.role == Role::Redirect { to });
        for key in stand_for_it.map(|(key, _)| key).collect::<Vec<_>>() {
            if let Some(link) = self.links.get(key) {
                link.held.has_left.store(true, Ordering::Relaxed);
            }
            self.close_link(key);
        }
        for key in self.sessions.keys() {
            let rare = self
                .sessions
                .get_mut(key)
                .and_then(|session| session.rare.as_mut());
            if let Some(rare) = rare {
                rare.redirect_found.take_if(|found| found.to == to);
            }
        }
    }

    /// Nothing is ever asked on a link that stands for a session: nobody would notice that its server is gone,
    /// and a server that closes idle clients would close it.
    pub(crate) fn tick_redirect(&mut self, key: Key) {
        let patience_ms = (self.settings.timeouts.link_stall_ms / 2).min(QUIET_MS);
        let quiet = |link: &Link| link.is_quiet(self.now, patience_ms);
        if self.links.get(key).is_some_and(quiet) {
            let mut request = Vec::new();
            encode::request(&mut request, &["PING"]);
            self.put_ours(key, &request, Duty::Pass);
        }
    }

    /// A link that stood for a session is lost: what its riders were to be told in between, nobody knows.
    pub(crate) fn lose_redirect(&mut self, link: Key) {
        let rides = |session: &Session| {
            let redirect = session
                .rare
                .as_ref()
                .and_then(|rare| rare.redirect.as_ref());
            redirect.is_some_and(|redirect| redirect.link == link)
        };
        let riders = self.sessions.iter().filter(|(_, session)| rides(session));
        for key in riders.map(|(key, _)| key).collect::<Vec<_>>() {
            self.close_for(key, String::from(LOST));
        }
    }

    /// A push on a session's own link. One that names our link is made to name the session for which it stands.
    pub(crate) fn take_own_push(&mut self, link: Key, by: Key, push: &[u8]) {
        // The server sent it before it read the session's HELLO 2, which is answered already.
        let is_resp3 = |session: &Session| session.version == Version::Resp3;
        if !self.sessions.get(by).is_some_and(is_resp3) {
            return;
        }
        if self.is_tracking_link(by, link) {
            return self.take_invalidation(link, by, push);
        }
        if push.starts_with(BROKEN)
            && let Some(redirect) = self.redirect_of(by)
        {
            let mut named = BROKEN.to_vec();
            encode::integer(&mut named, redirect.to as i64);
            return self.push_to(by, &named);
        }
        self.push_to(by, push);
    }
}

/// The argument of a CLIENT TRACKING that names the session to be told, and its number. `None` without one, or
/// when it is wrong: that the server says best.
pub(crate) fn redirect_asked(request: &Request<'_>) -> Option<(usize, u64)> {
    let argc = request.spans.len();
    let mut at = 3;
    while at + 1 < argc {
        if request.arg(at).eq_ignore_ascii_case(b"REDIRECT") {
            let id = number::parse(request.arg(at + 1))?;
            // Below 1 is nobody.
            return Some((at + 1, u64::try_from(id).unwrap_or(0)));
        }
        at += if request.arg(at).eq_ignore_ascii_case(b"PREFIX") {
            2
        } else {
            1
        };
    }
    None
}

/// No connection of a server has this id.
const NO_CLIENT: i64 = 0;
/// As long as nothing comes on a link that stands for a session, nobody asks whether anybody is there.
const QUIET_MS: u32 = 1_000;
const INVALIDATE: &[u8] = b">2\r\n$10\r\ninvalidate\r\n";
const BROKEN: &[u8] = b">2\r\n$21\r\ntracking-redir-broken\r\n";
const LOST: &str = "the connection on which the server told what it tracks was lost";
