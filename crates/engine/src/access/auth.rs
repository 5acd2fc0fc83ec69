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
use crate::data_plane::hello::HelloArgs;
use crate::data_plane::ingress::{Blocked, Dispatched, KeptRequest, Request, excess_reply};
use crate::data_plane::ledger::Entry;
use crate::data_plane::link::{Link, LinkKind, LinkRole, LinkState};
use crate::data_plane::logins::{auth_args, credentials};
use crate::data_plane::session::{Flags, Session};
use crate::routing::pool::ServerId;

/// A login that a session may ask its server about now.
struct LoginRequest {
    credentials: Credentials,
    claim: LoginClaim,
    /// AUTH, and a HELLO after it.
    request: Vec<u8>,
    /// Whether the session has a link of its own.
    pinned: bool,
}

/// The effects of a login on the rest of the engine.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct LoginEffect {
    /// Numbers of users that may be given to others.
    pub(crate) freed: Vec<u16>,
    /// The user that has authenticated again.
    pub(crate) renewed: Option<u16>,
}

/// The outcome of a login within EXEC.
#[derive(Debug)]
#[must_use]
pub(crate) enum ExecLogin {
    /// The server has refused it.
    Refused,
    /// The session is this user now.
    Accepted { user: u16 },
    /// The table of logins is full, so the session is closed.
    NoPlace,
}

impl Access {
    /// AUTH: as a configured user of respool or, without any, as a user of the server.
    pub(crate) fn auth(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        let Some(credentials) = auth_args(request) else {
            return plane.answer_error(id, b"ERR syntax error");
        };
        match plane.settings.users.is_empty() {
            true => self.log_in(plane, id, credentials, None),
            false => self.auth_here(plane, id, credentials),
        }
    }

    /// The login of a HELLO, if it has one. `version`: that of its reply. `Err`: the server is
    /// asked, the session waits, or is refused.
    pub(crate) fn log_in_by_hello(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        hello: &HelloArgs<'_>,
        version: Version,
    ) -> Result<(), Dispatched> {
        let Some((user, password)) = hello.credentials else {
            return Ok(());
        };
        if !plane.settings.users.is_empty() {
            return self.authenticate(plane, id, user, password);
        }
        let rest = (version, hello.without_credentials());
        Err(self.log_in(plane, id, (Some(user), password), Some(rest)))
    }

    /// AUTH as a configured user.
    fn auth_here(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        (name, password): (Option<&[u8]>, &[u8]),
    ) -> Dispatched {
        match self.authenticate(plane, id, name.unwrap_or(b"default"), password) {
            Ok(()) => plane.answer_reply(id, b"+OK\r\n"),
            Err(dispatched) => dispatched,
        }
    }

    /// Logs a session in as a configured user of respool. `Err`: it waits, or is refused.
    fn authenticate(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        name: &[u8],
        password: &[u8],
    ) -> Result<(), Dispatched> {
        let user = plane.own_user(name, password);
        let is_same = |session: &Session| {
            !session.state.any(Flags::UNAUTHENTICATED) && user == Some(session.user)
        };
        if plane.sessions.get(id).is_some_and(is_same) {
            return Ok(());
        }
        // A right password is answered at once, so it is not charged beforehand.
        let claim = match self.login_gate(plane, id, true) {
            LoginGate::Open(claim) => claim,
            LoginGate::Wait => return Err(Dispatched::Wait),
            LoginGate::Shut => return Err(self.refuse_untried(plane, id)),
        };
        self.end_attempt(id);
        let Some(user) = user else {
            self.login_was_wrong(plane, id, claim);
            return Err(plane.answer_error(id, WRONG));
        };
        if let Some(session) = plane.sessions.get_mut(id) {
            session.state.remove(Flags::UNAUTHENTICATED);
            session.user = user;
        }
        Ok(())
    }

    /// Asks the server about a user name and password. `hello`: the rest of a HELLO with AUTH, and
    /// the protocol version of its reply.
    fn log_in(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        credentials: (Option<&[u8]>, &[u8]),
        hello: Option<(Version, KeptRequest)>,
    ) -> Dispatched {
        match self.begin_login(plane, id, credentials) {
            Ok(login) => self.ask_login(plane, id, login, hello),
            Err(dispatched) => dispatched,
        }
    }

    /// Begins to ask the server about a user name and password. `Err`: the session waits, or is
    /// refused.
    fn begin_login(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        (name, password): (Option<&[u8]>, &[u8]),
    ) -> Result<LoginRequest, Dispatched> {
        if plane.hold_until_caught_up(id) {
            return Err(Dispatched::Wait);
        }
        let Some(session) = plane.sessions.get(id) else {
            return Err(Dispatched::Done);
        };
        let Some(credentials) = credentials(name, password) else {
            return Err(plane.answer_error(id, WRONG));
        };
        if name.map_or(0, <[u8]>::len) + password.len() > CREDENTIALS_BYTES_MAX {
            return Err(plane.answer_reply(id, &excess_reply("too long a user name and password")));
        }
        let (pinned, pool) = (session.pins.bind(), usize::from(session.pool));
        let claim = match self.server_login_gate(plane, id, &credentials) {
            LoginGate::Open(claim) => claim,
            LoginGate::Wait => return Err(Dispatched::Wait),
            LoginGate::Shut => return Err(self.refuse_untried(plane, id)),
        };
        if !pinned && plane.is_routed(id) && plane.queued_group(id).is_none() {
            // Any server will do, and the server of the last request may be away.
            let up = plane.first_up(pool);
            plane.switch_server(id, up);
        }
        let mut request = Vec::new();
        match name {
            Some(name) => encode::request(&mut request, &[b"AUTH".as_slice(), name, password]),
            None => encode::request(&mut request, &[b"AUTH".as_slice(), password]),
        }
        // See `Login::is_answered_by`.
        encode::request(&mut request, &["HELLO"]);
        Ok(LoginRequest {
            credentials,
            claim,
            request,
            pinned,
        })
    }

    fn ask_login(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        attempt: LoginRequest,
        hello: Option<(Version, KeptRequest)>,
    ) -> Dispatched {
        let own = attempt.pinned.then(|| plane.usable_link(id));
        let Some(session) = plane.sessions.get(id) else {
            return Dispatched::Done;
        };
        let old = plane.kind_of(session);
        let (server, pool, db) = (old.server, session.pool, session.db);
        let former = session.user;
        let known = plane.logins.find(pool, &attempt.credentials);
        let known = known.filter(|user| !self.is_login_refused(plane, *user, server));
        let version = hello.as_ref().map_or(old.version, |(version, _)| *version);
        let is_hello = hello.is_some();
        let login = Login {
            credentials: attempt.credentials,
            hello: hello.map(|(_, rest)| rest),
            auth_reply: None,
            claim: attempt.claim,
        };
        let link = match (own, known) {
            (Some(own), _) => own,
            (None, Some(user)) => {
                // The link may finish its handshake before the server answers this AUTH.
                plane.logins.note_database(db, former, user);
                let kind = LinkKind {
                    user,
                    version,
                    ..old
                };
                self.login_link(plane, id, kind)
            }
            // Only a login that the server has accepted gets a link of its own.
            (None, None) => {
                self.end_attempt(id);
                return self.probe_login(plane, id, server, attempt.request, login);
            }
        };
        if !matches!(link, Err(Blocked::Wait)) {
            self.end_login_wait(id);
        }
        let link = match link {
            Ok(link) => link,
            Err(Blocked::Wait) => return Dispatched::Wait,
            Err(blocked) => {
                self.login_was_right(plane, login.claim);
                return match blocked {
                    Blocked::Refused(reply) if is_hello && is_servers_fault(&reply) => {
                        plane.close_at_hello(id)
                    }
                    blocked => plane.blocked(id, blocked),
                };
            }
        };
        // The session keeps its link until the server has agreed, so a refusal undoes nothing. A
        // pinned link may have another user from now on, whether or not the answer comes in time.
        if let Some(state) = plane.links.get_mut(link) {
            state.tainted |= attempt.pinned;
        }
        let completion = Completion::Access(AccessCompletion::Login(Box::new(login)));
        plane.put_on(link, id, &attempt.request, completion);
        plane.hold_until_caught_up(id);
        Dispatched::Done
    }

    /// Lets a session in MULTI queue a login, if it may try it. `Err`: the session waits, or the
    /// login is refused, which aborts the transaction.
    pub(crate) fn admit_in_multi(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        login: &Credentials,
    ) -> Result<LoginClaim, Dispatched> {
        match self.server_login_gate(plane, id, login) {
            LoginGate::Open(claim) => {
                self.end_attempt(id);
                Ok(claim)
            }
            LoginGate::Wait => Err(Dispatched::Wait),
            LoginGate::Shut => {
                plane.abort_transaction(id);
                Err(self.refuse_untried(plane, id))
            }
        }
    }

    /// Whether a session may ask its server about a login now. A login that a server has accepted
    /// before, or is being asked about, is charged to its address only when it is refused. A
    /// session that repeats its own login does not wait.
    fn server_login_gate(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        login: &Credentials,
    ) -> LoginGate {
        let session = plane.sessions.get(id);
        if let Some(session) = session
            && !session.state.any(Flags::UNAUTHENTICATED)
            && plane.logins.get(session.user) == Some(login)
        {
            return LoginGate::Open(LoginClaim::free(session.peer));
        }
        let was_right =
            session.is_some_and(|session| plane.logins.find(session.pool, login).is_some());
        let presumed_right = was_right || self.is_being_asked(plane, login);
        self.login_gate(plane, id, presumed_right)
    }

    /// The entry of a login that a server has accepted. `None`: the table is full. `in_hubs`: users
    /// of subscriptions. The numbers of freed entries are appended to `freed`.
    ///
    /// A user without a password accepts every password, and each entry has links of its own. So a
    /// user has few entries. A further password replaces the newest one: links send the password
    /// that the server has accepted last.
    fn place_of_login(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        login: Credentials,
        in_hubs: &[u16],
        freed: &mut Vec<u16>,
    ) -> Option<u16> {
        let pool = plane.sessions.get(id)?.pool;
        if let Some(known) = plane.logins.find(pool, &login) {
            return Some(known);
        }
        if plane.logins.of_name(pool, &login).1 >= PASSWORDS_OF_USER_MAX {
            freed.extend(forget_unused_logins(plane, in_hubs));
            let (newest, count) = plane.logins.of_name(pool, &login);
            if count >= PASSWORDS_OF_USER_MAX {
                let place = newest?;
                plane.logins.renew(place, login);
                return Some(place);
            }
        }
        if plane.logins.is_full() {
            freed.extend(forget_unused_logins(plane, in_hubs));
        }
        plane.logins.add(pool, login)
    }

    /// Handles the server's reply to an AUTH, or to the check of a login. `in_hubs`: users of
    /// subscriptions.
    pub(crate) fn settle(
        &mut self,
        plane: &mut DataPlane,
        (link, entry): (LinkId, Entry),
        completion: AccessCompletion,
        reply: &[u8],
        in_hubs: &[u16],
    ) -> LoginEffect {
        match completion {
            AccessCompletion::Check(check) => {
                self.settle_check(plane, link, *check, reply);
                LoginEffect::default()
            }
            AccessCompletion::Renewal(login) => {
                self.settle_renewal(plane, link, *login, reply);
                LoginEffect::default()
            }
            AccessCompletion::Login(login) => {
                let effect = self.settle_login(plane, link, entry, *login, in_hubs);
                self.pump_logins(plane, link);
                effect
            }
        }
    }

    fn settle_login(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        entry: Entry,
        login: Login,
        in_hubs: &[u16],
    ) -> LoginEffect {
        let mut effect = LoginEffect::default();
        let reply = login.auth_reply.unwrap_or_else(|| {
            let mut wrong = Vec::new();
            encode::error(&mut wrong, WRONG);
            wrong
        });
        if !reply.starts_with(b"+") {
            self.login_was_wrong(plane, entry.session, login.claim);
            plane.deliver_to(entry, &reply);
            return effect;
        }
        self.login_was_right(plane, login.claim);
        let Some(db) = plane.sessions.get(entry.session).map(|session| session.db) else {
            return effect;
        };
        let credentials = login.credentials;
        let freed = &mut effect.freed;
        let user = self.place_of_login(plane, entry.session, credentials, in_hubs, freed);
        let Some(user) = user else {
            plane.deliver_to(
                entry,
                &excess_reply("too many users are logged in at this worker: try again"),
            );
            return effect;
        };
        let probed = self.is_probe(plane, link);
        let Some(state) = plane.links.get_mut(link) else {
            return effect;
        };
        let pinned = state.role == LinkRole::Pinned { by: entry.session };
        let version = state.kind.version;
        effect.renewed = self.become_user(plane, entry.session, link, (user, db));
        if let Some(session) = plane.sessions.get_mut(entry.session)
            && !pinned
            && !probed
        {
            session.version = version;
        }
        match login.hello {
            Some(hello) => {
                let steps = [ReplyStep::request(hello)].into();
                plane.begin_steps(entry.session, steps, (entry.is_silent(), entry.read_at));
                plane.deliver_to(entry, b"");
            }
            None => plane.deliver_to(entry, &reply),
        }
        let is_caught_up = |session: &Session| session.is_caught_up();
        if !pinned && plane.sessions.get(entry.session).is_some_and(is_caught_up) {
            match probed {
                true => self.attach_accepted(plane, entry.session),
                false => plane.attach(entry.session, link),
            }
        }
        effect
    }

    /// Handles the result of a login within EXEC. `agreed`: the server has accepted it. `db`: the
    /// database that the session has selected. `in_hubs`: users of subscriptions.
    pub(crate) fn settle_exec_login(
        &mut self,
        plane: &mut DataPlane,
        (id, link): (SessionId, LinkId),
        (login, claim): (Credentials, LoginClaim),
        (agreed, db): (bool, u32),
        in_hubs: &[u16],
    ) -> (ExecLogin, LoginEffect) {
        let mut effect = LoginEffect::default();
        if !agreed {
            self.login_was_wrong(plane, id, claim);
            return (ExecLogin::Refused, effect);
        }
        self.login_was_right(plane, claim);
        // A user gets a place only after the right password: any client may name any user.
        let Some(user) = self.place_of_login(plane, id, login, in_hubs, &mut effect.freed) else {
            let reason = "too many users are logged in at this worker";
            plane.close_for(id, reason.to_owned());
            return (ExecLogin::NoPlace, effect);
        };
        effect.renewed = self.become_user(plane, id, link, (user, db));
        (ExecLogin::Accepted { user }, effect)
    }

    /// The server has agreed, on this link, that a session is this user: by AUTH, or within EXEC.
    /// `db`: the database that the session has selected. Returns the user if the link is still
    /// there: its rights may be others now.
    fn become_user(
        &mut self,
        plane: &mut DataPlane,
        session_id: SessionId,
        link: LinkId,
        (user, db): (u16, u32),
    ) -> Option<u16> {
        let link = plane.links.get_mut(link)?;
        if link.role == (LinkRole::Pinned { by: session_id }) {
            link.kind.user = user;
        }
        if let Some(session) = plane.sessions.get_mut(session_id) {
            let former = std::mem::replace(&mut session.user, user);
            session.state.remove(Flags::UNAUTHENTICATED);
            plane.logins.note_database(db, former, user);
        }
        let session = plane.sessions.get(session_id);
        let kind = session.map(|session| plane.kind_with_lane(session));
        let own = kind.and_then(|kind| plane.link_index.shared(&kind));
        self.connect_links_of(plane, user, own);
        Some(user)
    }
}

/// Frees the entries of users that no link, no session and no hub has. Returns their numbers.
fn forget_unused_logins(plane: &mut DataPlane, in_hubs: &[u16]) -> Vec<u16> {
    let mut used = vec![false; LOGINS_MAX + 1];
    let links = plane.links.iter().map(|(_, link)| link.kind.user);
    let sessions = plane.sessions.iter().map(|(_, session)| session.user);
    for user in links.chain(sessions).chain(in_hubs.iter().copied()) {
        used[usize::from(user)] = true;
    }
    plane.logins.forget_unused(used)
}

/// Redis's error to a wrong AUTH.
const WRONG: &[u8] = b"WRONGPASS invalid username-password pair or user is disabled.";

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
        // An attempt that failed before this login was sent does not tell about it.
        let tried = state.attempted_at >= asked_at;
        match &state.state {
            LinkState::Up => return Ok(link),
            LinkState::Backoff { .. } if !tried => {}
            LinkState::Backoff { .. } => {
                return Err(Blocked::Refused(match &state.handshake_error {
                    Some(text) => {
                        let mut reply = Vec::new();
                        encode::error(&mut reply, text);
                        reply
                    }
                    None => plane.no_link_reply(link, plane.server_down_error(id)),
                }));
            }
            LinkState::Down
            | LinkState::Lost
            | LinkState::Retrying { .. }
            | LinkState::Connecting { .. }
            | LinkState::Handshaking { .. } => {}
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
                && link.role == LinkRole::Shared
                && matches!(link.state, LinkState::Backoff { .. })
        };
        let resting: Vec<(LinkId, ServerId, bool)> = plane
            .links
            .iter()
            .filter(rests)
            .map(|(id, link)| (id, link.kind.server, link.handshake_error.is_some()))
            .collect();
        for (id, server, was_refused) in resting {
            if !was_refused || own == Some(id) || plane.may_connect_refused(server) {
                plane.connect(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use respool_protocol::request::RequestScanner;

    use super::*;
    use crate::base::settings::{Settings, User};
    use crate::base::time::Time;
    use crate::data_plane::session_state::Holds;
    use crate::data_plane::test_plane::{plane_of, pool_at, replies_of, request_of, session_of};

    /// A data plane with two configured users.
    fn plane_with_users() -> DataPlane {
        let user = |name: &str, password: &str| User {
            name: name.to_owned(),
            password: password.to_owned(),
            source: None,
        };
        plane_of(Settings {
            pools: vec![pool_at(1)],
            users: vec![user("default", "one"), user("app", "two")],
            ..Settings::default()
        })
    }

    /// Sends an AUTH of a session. Returns the new replies.
    fn auth(
        access: &mut Access,
        plane: &mut DataPlane,
        id: SessionId,
        line: &str,
    ) -> (Dispatched, String) {
        let before = replies_of(plane, id).len();
        let kept = request_of(line);
        let mut scanner = RequestScanner::default();
        let request = kept.read(&mut scanner);
        let dispatched = access.auth(plane, id, &request);
        (dispatched, replies_of(plane, id)[before..].to_owned())
    }

    /// Whether a session has authenticated, and as which user.
    fn user_of(plane: &DataPlane, id: SessionId) -> Option<u16> {
        let session = plane.sessions.get(id).expect("it is open");
        let is_trusted = !session.state.any(Flags::UNAUTHENTICATED);
        is_trusted.then_some(session.user)
    }

    /// A configured user is its name and password; AUTH with a password alone means `default`.
    #[test]
    fn configured_user_logs_in_by_name_and_password() {
        let wrong = format!("-{}\r\n", String::from_utf8_lossy(WRONG));
        for (line, reply, user) in [
            ("AUTH one", "+OK\r\n", Some(0)),
            ("AUTH default one", "+OK\r\n", Some(0)),
            ("AUTH app two", "+OK\r\n", Some(1)),
            ("AUTH two", &*wrong, None),
            ("AUTH app one", &*wrong, None),
            ("AUTH nobody one", &*wrong, None),
            ("AUTH app two more", "-ERR syntax error\r\n", None),
        ] {
            let (mut access, mut plane) = (Access::default(), plane_with_users());
            let id = session_of(&mut plane);
            assert_eq!(user_of(&plane, id), None);
            let answered = auth(&mut access, &mut plane, id, line);
            assert_eq!(answered, (Dispatched::Done, reply.to_owned()), "{line}");
            assert_eq!(user_of(&plane, id), user, "{line}");
            let refused = u64::from(reply == wrong);
            assert_eq!(plane.counters.logins_refused, refused, "{line}");
        }
    }

    /// A wrong password leaves a session that is logged in as it is.
    #[test]
    fn wrong_password_leaves_the_user() {
        let (mut access, mut plane) = (Access::default(), plane_with_users());
        let id = session_of(&mut plane);
        auth(&mut access, &mut plane, id, "AUTH app two");
        let (_, reply) = auth(&mut access, &mut plane, id, "AUTH app wrong");
        assert!(reply.starts_with("-WRONGPASS"), "{reply}");
        assert_eq!(user_of(&plane, id), Some(1));
    }

    /// After many wrong passwords a login waits, with its session held, and is tried in time.
    #[test]
    fn login_waits_after_many_wrong_passwords() {
        let (mut access, mut plane) = (Access::default(), plane_with_users());
        let id = session_of(&mut plane);
        let mut wrong = 0;
        while auth(&mut access, &mut plane, id, "AUTH wrong").0 == Dispatched::Done {
            wrong += 1;
            assert!(wrong < 1_000, "no login waits");
        }
        let is_held = |plane: &DataPlane| {
            let session = plane.sessions.get(id).expect("it is open");
            session.state.holds().any(Holds::LINK)
        };
        assert!(wrong > 1 && is_held(&plane));
        // The session that waits repeats its request, which takes no second place.
        assert_eq!(
            auth(&mut access, &mut plane, id, "AUTH wrong").0,
            Dispatched::Wait
        );
        let next = access.attempts.get(id).and_then(|attempts| attempts.next);
        let at = next.expect("it waits").at;
        access.tick_guesses(&mut plane);
        assert!(is_held(&plane), "its time has not come");
        plane.begin_turn(at);
        access.tick_guesses(&mut plane);
        assert!(!is_held(&plane));
        // A right password that comes then is accepted.
        let (_, reply) = auth(&mut access, &mut plane, id, "AUTH one");
        assert_eq!((reply.as_str(), user_of(&plane, id)), ("+OK\r\n", Some(0)));
    }

    /// A session that repeats its own login never waits.
    #[test]
    fn repeated_login_passes_the_queue() {
        let (mut access, mut plane) = (Access::default(), plane_with_users());
        let [own, guesser] = [session_of(&mut plane), session_of(&mut plane)];
        auth(&mut access, &mut plane, own, "AUTH app two");
        while auth(&mut access, &mut plane, guesser, "AUTH wrong").0 == Dispatched::Done {}
        let again = auth(&mut access, &mut plane, own, "AUTH app two");
        assert_eq!(again, (Dispatched::Done, String::from("+OK\r\n")));
        assert!(plane.now == Time(0));
    }
}
