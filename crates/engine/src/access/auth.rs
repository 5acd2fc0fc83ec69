//! The user of a session: one of respool's configured users or, without any, a user of the server.
//!
//! Without configured users, AUTH is the server's business. A session that the server has accepted
//! as a user is attached to links of that user, which send the same password in their handshake. So
//! the server's own rules hold for the session. The server answers every AUTH: a password is never
//! believed because it was right an hour ago.

use respool_protocol::encode::{self, Version};

use crate::access::Access;
use crate::access::login_probe::LoginGate;
use crate::base::error::is_servers_fault;
use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::{CREDENTIALS_BYTES_MAX, LOGINS_MAX, PASSWORDS_OF_USER_MAX};
use crate::base::settings::Credentials;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::access::{AccessCompletion, Login, LoginClaim};
use crate::data_plane::composite::ReplyStep;
use crate::data_plane::ingress::{Blocked, DeferredCheck, Dispatched, Request, bound_reply};
use crate::data_plane::ledger::Entry;
use crate::data_plane::link::{Link, LinkKind, LinkState, Role};
use crate::data_plane::session::{Flags, Session};
use crate::engine::Engine;
use crate::routing::pool::ServerId;

/// The name, if it has one, and the password of an AUTH. `None`: it has other arguments.
pub(crate) fn auth_asked<'a>(request: &Request<'a>) -> Option<(Option<&'a [u8]>, &'a [u8])> {
    match request.spans.len() {
        2 => Some((None, request.arg(1))),
        3 => Some((Some(request.arg(1)), request.arg(2))),
        _ => None,
    }
}

impl Engine {
    pub(crate) fn auth(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        let Some((name, password)) = auth_asked(request) else {
            return self.answer_error(id, b"ERR syntax error");
        };
        if self.plane.settings.users.is_empty() {
            return self.log_in(id, (name, password), None);
        }
        match self.authenticate(id, name.unwrap_or(b"default"), password) {
            Ok(()) => self.plane.answer_reply(id, b"+OK\r\n"),
            Err(placed) => placed,
        }
    }

    /// Logs a session in as a configured user of respool. `Err`: it waits, or is refused.
    pub(crate) fn authenticate(
        &mut self,
        id: SessionId,
        name: &[u8],
        password: &[u8],
    ) -> Result<(), Dispatched> {
        let user = self.plane.own_user(name, password);
        let is_same = |session: &Session| {
            !session.flags.any(Flags::UNAUTHENTICATED) && user == Some(session.user)
        };
        if self.plane.sessions.get(id).is_some_and(is_same) {
            return Ok(());
        }
        // A right password is answered at once, so it is not charged beforehand.
        let claim = match self.login_gate(id, true) {
            LoginGate::Open(claim) => claim,
            LoginGate::Wait => return Err(Dispatched::Wait),
            LoginGate::Shut => return Err(self.access.refuse_untried(&mut self.plane, id)),
        };
        self.access.end_login_turn(id);
        let Some(user) = user else {
            self.login_was_wrong(id, claim);
            return Err(self.answer_error(id, WRONG));
        };
        if let Some(session) = self.plane.sessions.get_mut(id) {
            session.flags.remove(Flags::UNAUTHENTICATED);
            session.user = user;
        }
        Ok(())
    }

    /// Asks the server about a user name and password. `hello`: the rest of a HELLO with AUTH, and
    /// the protocol version of its reply.
    pub(crate) fn log_in(
        &mut self,
        id: SessionId,
        (name, password): (Option<&[u8]>, &[u8]),
        hello: Option<(Version, DeferredCheck)>,
    ) -> Dispatched {
        if self.plane.hold_until_caught_up(id) {
            return Dispatched::Wait;
        }
        let Some(session) = self.plane.sessions.get(id) else {
            return Dispatched::Done;
        };
        let Some(login) = credentials(name, password) else {
            return self.answer_error(id, WRONG);
        };
        if name.map_or(0, <[u8]>::len) + password.len() > CREDENTIALS_BYTES_MAX {
            return self
                .plane
                .answer_reply(id, &bound_reply("CREDENTIALS_BYTES_MAX"));
        }
        let (pinned, pool) = (session.pins.bind(), usize::from(session.pool));
        let claim = match self.server_login_gate(id, &login) {
            LoginGate::Open(claim) => claim,
            LoginGate::Wait => return Dispatched::Wait,
            LoginGate::Shut => return self.access.refuse_untried(&mut self.plane, id),
        };
        if !pinned
            && self.plane.is_routed(id)
            && self.transactions.queued_group(&self.plane, id).is_none()
        {
            // Any server will do, and the server of the last request may be away.
            let up = self.plane.first_up(pool);
            self.plane.switch_server(id, up);
        }
        let Some(session) = self.plane.sessions.get(id) else {
            return Dispatched::Done;
        };
        let old = self.plane.kind_of(session);
        let mut request = Vec::new();
        match name {
            Some(name) => encode::request(&mut request, &[b"AUTH".as_slice(), name, password]),
            None => encode::request(&mut request, &[b"AUTH".as_slice(), password]),
        }
        // See `Login::is_answered_by`.
        encode::request(&mut request, &["HELLO"]);
        let (server, pool, db) = (old.server, session.pool, session.db);
        let former = session.user;
        let known = self.plane.logins.find(pool, &login);
        let known = known.filter(|user| !self.access.is_login_refused(&self.plane, *user, server));
        let version = hello.as_ref().map_or(old.version, |(version, _)| *version);
        let link = match known {
            _ if pinned => self.usable_link(id),
            Some(user) => {
                // The link may finish its handshake before the server answers this AUTH.
                self.plane.logins.note_database(db, former, user);
                let kind = LinkKind {
                    user,
                    version,
                    ..old
                };
                self.access.login_link(&mut self.plane, id, kind)
            }
            // Only a login that the server has accepted gets a link of its own.
            None => {
                self.access.end_login_turn(id);
                let login = Login {
                    credentials: login,
                    hello: hello.map(|(_, rest)| rest),
                    said: None,
                    claim,
                };
                return self
                    .access
                    .probe_login(&mut self.plane, id, server, request, login);
            }
        };
        if !matches!(link, Err(Blocked::Wait)) {
            self.access.end_login_wait(id);
        }
        let link = match link {
            Ok(link) => link,
            Err(Blocked::Wait) => return Dispatched::Wait,
            Err(blocked) => {
                self.login_was_right(claim);
                return match blocked {
                    Blocked::Refused(reply) if hello.is_some() && is_servers_fault(&reply) => {
                        self.plane.close_greeting(id)
                    }
                    blocked => self.plane.blocked(id, blocked),
                };
            }
        };
        let completion = Completion::Access(AccessCompletion::Login(Box::new(Login {
            credentials: login,
            hello: hello.map(|(_, rest)| rest),
            said: None,
            claim,
        })));
        // The session keeps its link until the server has agreed, so a refusal undoes nothing. A
        // pinned link may have another user from now on, whether or not the answer comes in time.
        if let Some(state) = self.plane.links.get_mut(link) {
            state.tainted |= pinned;
        }
        self.plane.put_on(link, id, &request, completion);
        self.plane.hold_until_caught_up(id);
        Dispatched::Done
    }

    /// Whether a session may ask its server about a login now. A login that a server has accepted
    /// before, or is being asked about, is charged to its address only when it is refused. A
    /// session that repeats its own login does not wait.
    pub(crate) fn server_login_gate(&mut self, id: SessionId, login: &Credentials) -> LoginGate {
        let session = self.plane.sessions.get(id);
        if let Some(session) = session
            && !session.flags.any(Flags::UNAUTHENTICATED)
            && self.plane.logins.get(session.user) == Some(login)
        {
            return LoginGate::Open(LoginClaim::free(session.peer));
        }
        let was_right =
            session.is_some_and(|session| self.plane.logins.find(session.pool, login).is_some());
        let presumed_right = was_right || self.access.is_being_asked(&self.plane, login);
        self.login_gate(id, presumed_right)
    }

    /// The entry of a login that a server has accepted. `None`: the table is full.
    ///
    /// A user without a password accepts every password, and each entry has links of its own. So a
    /// user has few entries. A further password replaces the newest one: links send the password
    /// that the server has accepted last.
    pub(crate) fn place_of_login(&mut self, id: SessionId, login: Credentials) -> Option<u16> {
        let pool = self.plane.sessions.get(id)?.pool;
        if let Some(known) = self.plane.logins.find(pool, &login) {
            return Some(known);
        }
        if self.plane.logins.of_name(pool, &login).1 >= PASSWORDS_OF_USER_MAX {
            self.forget_unused_logins();
            let (newest, count) = self.plane.logins.of_name(pool, &login);
            if count >= PASSWORDS_OF_USER_MAX {
                let place = newest?;
                self.plane.logins.renew(place, login);
                return Some(place);
            }
        }
        if self.plane.logins.is_full() {
            self.forget_unused_logins();
        }
        self.plane.logins.add(pool, login)
    }

    /// Frees the entries of users that no link and no session has.
    fn forget_unused_logins(&mut self) {
        let mut used = vec![false; LOGINS_MAX + 1];
        for (_, link) in self.plane.links.iter() {
            used[usize::from(link.kind.user)] = true;
        }
        for (_, session) in self.plane.sessions.iter() {
            used[usize::from(session.user)] = true;
        }
        for hub in &self.pubsub.hubs {
            used[usize::from(hub.user)] = true;
        }
        for user in self.plane.logins.forget_unused(used) {
            self.local
                .catalog
                .forget_user(&mut self.plane.learned_commands, user);
        }
    }

    /// Handles the server's reply to an AUTH.
    pub(crate) fn settle_login(&mut self, link: LinkId, entry: Entry, login: Login) {
        let said = login.said.unwrap_or_else(|| {
            let mut wrong = Vec::new();
            encode::error(&mut wrong, WRONG);
            wrong
        });
        if !said.starts_with(b"+") {
            self.login_was_wrong(entry.session, login.claim);
            return self.pass_on(entry, &said);
        }
        self.login_was_right(login.claim);
        if self.plane.sessions.get(entry.session).is_none() {
            return;
        }
        let Some(user) = self.place_of_login(entry.session, login.credentials) else {
            return self.pass_on(entry, &bound_reply("LOGINS_MAX"));
        };
        let probed = self.access.is_probe(&self.plane, link);
        let Some(state) = self.plane.links.get_mut(link) else {
            return;
        };
        let pinned = state.role == Role::Pinned { by: entry.session };
        let version = state.kind.version;
        let db = self
            .plane
            .sessions
            .get(entry.session)
            .map_or(0, |session| session.db);
        self.become_user(entry.session, link, (user, db));
        if let Some(session) = self.plane.sessions.get_mut(entry.session)
            && !pinned
            && !probed
        {
            session.version = version;
        }
        match login.hello {
            Some(hello) => {
                let steps = [ReplyStep::request(hello)].into();
                self.plane
                    .begin_steps(entry.session, steps, (entry.silent, entry.at_ms));
                self.pass_on(entry, b"");
            }
            None => self.pass_on(entry, &said),
        }
        if !pinned
            && self
                .plane
                .sessions
                .get(entry.session)
                .is_some_and(Session::is_caught_up)
        {
            match probed {
                true => self.access.attach_accepted(&mut self.plane, entry.session),
                false => self.plane.attach(entry.session, link),
            }
        }
    }

    /// The server has agreed, on this link, that a session is this user: by AUTH, or within EXEC.
    /// `db`: the database that the session has selected.
    pub(crate) fn become_user(
        &mut self,
        session_id: SessionId,
        link: LinkId,
        (user, db): (u16, u32),
    ) {
        let Some(link) = self.plane.links.get_mut(link) else {
            return;
        };
        if link.role == (Role::Pinned { by: session_id }) {
            link.kind.user = user;
        }
        self.local.catalog.doubt_user(user);
        if let Some(session) = self.plane.sessions.get_mut(session_id) {
            let former = std::mem::replace(&mut session.user, user);
            session.flags.remove(Flags::UNAUTHENTICATED);
            self.plane.logins.note_database(db, former, user);
        }
        let session = self.plane.sessions.get(session_id);
        let kind = session.map(|session| self.plane.shared_kind_of(session));
        let own = kind.and_then(|kind| self.plane.shared.get(&kind).copied());
        self.access.connect_links_of(&mut self.plane, user, own);
    }
}

/// Redis's error to a wrong AUTH.
const WRONG: &[u8] = b"WRONGPASS invalid username-password pair or user is disabled.";

/// The credentials that a client names. `None`: they are not UTF-8, as all configured ones are.
pub(crate) fn credentials(name: Option<&[u8]>, password: &[u8]) -> Option<Credentials> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    Some(Credentials {
        user: Some(text(name.unwrap_or(b"default"))?),
        password: text(password)?,
        source: None,
    })
}

impl Access {
    /// The shared link of a user. It is returned once it is up: then the server has agreed to the
    /// password already.
    fn login_link(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        kind: LinkKind,
    ) -> Result<LinkId, Blocked> {
        let link = plane.shared_link_for(id, kind)?;
        if plane.sessions.get(id).is_none() {
            return Err(Blocked::Wait);
        }
        let attempts = self.attempts.get_or_default(id);
        let asked_at = *attempts.asked_at.get_or_insert(plane.now);
        let Some(state) = plane.links.get_mut(link) else {
            return Err(Blocked::Wait);
        };
        // An attempt that failed before this login was asked does not tell about it.
        let tried = state.attempted_at >= asked_at;
        match &state.state {
            LinkState::Up => return Ok(link),
            LinkState::Backoff { .. } if !tried => {}
            LinkState::Backoff { .. } => {
                return Err(Blocked::Refused(match &state.refusal {
                    Some(text) => {
                        let mut reply = Vec::new();
                        encode::error(&mut reply, text);
                        reply
                    }
                    None => plane.no_link_reply(link, plane.away_error(id)),
                }));
            }
            LinkState::Down
            | LinkState::Lost
            | LinkState::Retrying { .. }
            | LinkState::Connecting { .. }
            | LinkState::Greeting { .. } => {}
        }
        plane.wait_until_up(id, link).map_err(Blocked::Refused)?;
        Err(Blocked::Wait)
    }

    /// A user has logged in. Connects its links that are in back-off after a refusal or after
    /// losses. A server may refuse the user for good, so a refused link takes tokens. The link of
    /// the session that has just logged in takes none.
    fn connect_links_of(&mut self, plane: &mut DataPlane, user: u16, own: Option<LinkId>) {
        let rests = |(_, link): &(LinkId, &Link)| {
            link.kind.user == user
                && link.role == Role::Shared
                && matches!(link.state, LinkState::Backoff { .. })
        };
        let resting: Vec<(LinkId, ServerId, bool)> = plane
            .links
            .iter()
            .filter(rests)
            .map(|(id, link)| (id, link.kind.server, link.refusal.is_some()))
            .collect();
        for (id, server, was_refused) in resting {
            if !was_refused || own == Some(id) || plane.may_connect_refused(server) {
                plane.connect(id);
            }
        }
    }
}
