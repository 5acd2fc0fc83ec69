//! Who a session is: one of our own users, or, if there are none, whoever the server says.
//!
//! Without users of our own, AUTH is the server's business: a session that has proved to the server
//! who it is rides on links of that user, which greet the server with the same password. So the
//! server's own rules hold for it, and a password is never believed because it was right an hour
//! ago: every AUTH is answered by the server.

use std::collections::VecDeque;

use respool_protocol::encode::{self, Version};

use crate::duty::Duty;
use crate::engine::Engine;
use crate::entry::Entry;
use crate::failure::is_servers_fault;
use crate::limits::{
    CREDENTIALS_BYTES_MAX, DATABASES_OF_LOGIN_MAX, LOGINS_MAX, PASSWORDS_OF_USER_MAX,
};
use crate::link::{Link, LinkKey, Role, State};
use crate::login_probe::{Claim, Gate};
use crate::pool::ServerId;
use crate::requests::{Blocked, Kept, Placed, Request, bound_reply};
use crate::session::{Flags, Session};
use crate::settings::{Credentials, User};
use crate::slots::Key;
use crate::slow_readers::EVERYBODYS;
use crate::steps::Step;

/// Users of servers whose passwords clients have given: links greet with them. A place is free when
/// no link and no session is that user.
#[derive(Default)]
pub(crate) struct Logins {
    known: Vec<Option<Known>>,
    /// Places that were taken so far.
    taken: u64,
}

/// A login that a server of the pool has accepted.
struct Known {
    pool: u16,
    login: Credentials,
    /// The place was taken as this one of all.
    number: u64,
    /// Databases that a session had selected before it became this user, each with the place of
    /// the login that selected it. The newest is last.
    selected: VecDeque<(u32, u16)>,
}

/// The user that the configuration names for a server.
pub(crate) const CONFIGURED: u16 = 0;

impl Logins {
    /// The credentials of a user other than the configured one.
    pub(crate) fn get(&self, user: u16) -> Option<&Credentials> {
        let index = usize::from(user).checked_sub(1)?;
        self.known.get(index)?.as_ref().map(|known| &known.login)
    }

    /// The name of a user other than the configured one, at its server. `None`: its place is free.
    pub(crate) fn name_of(&self, user: u16) -> Option<&str> {
        self.get(user).map(name_of)
    }

    fn find(&self, pool: u16, login: &Credentials) -> Option<u16> {
        let same_as = |known: &Known| known.pool == pool && known.login == *login;
        let mut all = self.known.iter();
        let index = all.position(|known| known.as_ref().is_some_and(same_as))?;
        Some(index as u16 + 1)
    }

    /// Of all places of a user in a pool the newest one, and how many there are.
    fn of_name(&self, pool: u16, login: &Credentials) -> (Option<u16>, usize) {
        let name = name_of(login);
        let places = || {
            let all = (1..).zip(&self.known);
            all.filter_map(move |(user, known)| {
                let known = known.as_ref()?;
                let same = known.pool == pool && name_of(&known.login) == name;
                same.then_some((known.number, user))
            })
        };
        (places().max().map(|(_, user)| user), places().count())
    }

    fn add(&mut self, pool: u16, login: Credentials) -> Option<u16> {
        let index = match self.known.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.known.len() < LOGINS_MAX => {
                self.known.push(None);
                self.known.len() - 1
            }
            None => return None,
        };
        self.taken += 1;
        self.known[index] = Some(Known {
            pool,
            login,
            number: self.taken,
            selected: VecDeque::new(),
        });
        Some(index as u16 + 1)
    }

    /// The links of a place greet with another password of its user from now on.
    fn renew(&mut self, user: u16, login: Credentials) {
        if let Some(known) = self.known_mut(user) {
            known.login = login;
        }
    }

    fn known_mut(&mut self, user: u16) -> Option<&mut Known> {
        let index = usize::from(user).checked_sub(1)?;
        self.known.get_mut(index)?.as_mut()
    }

    /// A session that has selected `db` as `old` becomes `new`. A link of `new` to that database
    /// may need a login that may select it.
    fn note_database(&mut self, db: u32, old: u16, new: u16) {
        let by = self.selected_by(old, db).unwrap_or(old);
        if db == 0 || by == new || by == CONFIGURED {
            return;
        }
        let Some(known) = self.known_mut(new) else {
            return;
        };
        known.selected.retain(|(of, _)| *of != db);
        if known.selected.len() >= DATABASES_OF_LOGIN_MAX {
            known.selected.pop_front();
        }
        known.selected.push_back((db, by));
    }

    /// The login by which sessions of a user had selected a database before they became that user.
    fn selected_by(&self, user: u16, db: u32) -> Option<u16> {
        let index = usize::from(user).checked_sub(1)?;
        let known = self.known.get(index)?.as_ref()?;
        let mut all = known.selected.iter();
        all.find_map(|(of, by)| (*of == db).then_some(*by))
    }

    /// The logins that may set up a connection to `db` where `user` has no right to, the best one
    /// last.
    pub(crate) fn beside(
        &self,
        user: u16,
        db: u32,
        configured: Option<&Credentials>,
    ) -> Vec<Credentials> {
        if user == CONFIGURED {
            return Vec::new();
        }
        let default = || Credentials {
            user: None,
            // Where no login is configured, the default user needs no password: any is right.
            password: String::new(),
            source: None,
        };
        let mut logins = vec![configured.cloned().unwrap_or_else(default)];
        let former = self.selected_by(user, db);
        logins.extend(former.and_then(|by| self.get(by)).cloned());
        logins
    }
}

/// The user's name at its server.
fn name_of(login: &Credentials) -> &str {
    login.user.as_deref().unwrap_or("default")
}

/// What an AUTH that the server is asked about was part of.
#[derive(Debug)]
pub(crate) struct Login {
    /// The user that the session becomes if the server agrees. The credentials get a place among
    /// [`Logins`] only then.
    pub(crate) credentials: Credentials,
    /// The rest of a HELLO: it is answered when the server has agreed.
    hello: Option<Kept>,
    /// What the server said to the AUTH.
    said: Option<Vec<u8>>,
    /// What the login counts for its client's address.
    pub(crate) claim: Claim,
}

impl Login {
    /// Whether it is a part of HELLO.
    pub(crate) fn greets(&self) -> bool {
        self.hello.is_some()
    }

    /// Whether that is the reply to the AUTH, and that to the HELLO behind it is still to come. A
    /// Redis 7.2 and newer says nothing to an AUTH that fails while other replies wait in front of
    /// it (`addAuthErrReply`): then the first reply is that to HELLO, which no server refuses who
    /// has it.
    pub(crate) fn is_answered_by(&mut self, reply: &[u8]) -> bool {
        let is_auths = self.said.is_none()
            && matches!(reply.first(), Some(b'+' | b'-'))
            // On a probing link HELLO may be refused.
            && !reply.starts_with(b"-NOAUTH");
        if is_auths {
            self.said = Some(reply.to_vec());
        }
        is_auths
    }
}

/// The name, if it has one, and the password of an AUTH. `None`: it has other arguments.
pub(crate) fn auth_asked<'a>(request: &Request<'a>) -> Option<(Option<&'a [u8]>, &'a [u8])> {
    match request.spans.len() {
        2 => Some((None, request.arg(1))),
        3 => Some((Some(request.arg(1)), request.arg(2))),
        _ => None,
    }
}

impl Engine {
    pub(crate) fn auth(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let Some((name, password)) = auth_asked(request) else {
            return self.answer_error(key, b"ERR syntax error");
        };
        if self.settings.users.is_empty() {
            return self.log_in(key, (name, password), None);
        }
        match self.authenticate(key, name.unwrap_or(b"default"), password) {
            Ok(()) => self.answer_reply(key, b"+OK\r\n"),
            Err(placed) => placed,
        }
    }

    /// One of our own users. `Err`: it waits, or is refused.
    pub(crate) fn authenticate(
        &mut self,
        key: Key,
        name: &[u8],
        password: &[u8],
    ) -> Result<(), Placed> {
        let user = self.own_user(name, password);
        let is_same = |session: &Session| {
            !session.flags.any(Flags::UNAUTHENTICATED) && user == Some(session.user)
        };
        if self.sessions.get(key).is_some_and(is_same) {
            return Ok(());
        }
        // It is answered at once, so it need not count beforehand.
        let claim = match self.login_gate(key, true) {
            Gate::Open(claim) => claim,
            Gate::Wait => return Err(Placed::Wait),
            Gate::Shut => return Err(self.refuse_untried(key)),
        };
        self.end_login_turn(key);
        let Some(user) = user else {
            self.login_was_wrong(key, claim);
            return Err(self.answer_error(key, WRONG));
        };
        if let Some(session) = self.sessions.get_mut(key) {
            session.flags.remove(Flags::UNAUTHENTICATED);
            session.user = user;
        }
        Ok(())
    }

    pub(crate) fn own_user(&self, name: &[u8], password: &[u8]) -> Option<u16> {
        let is = |user: &User| {
            same(user.name.as_bytes(), name) & same(user.password.as_bytes(), password)
        };
        let found = self.settings.users.iter().position(is);
        found.map(|index| index as u16)
    }

    /// Asks the server whether this is who it says. `hello`: what else the session asked for with
    /// it, and in which version of the protocol the answer is to come.
    pub(crate) fn log_in(
        &mut self,
        key: Key,
        (name, password): (Option<&[u8]>, &[u8]),
        hello: Option<(Version, Kept)>,
    ) -> Placed {
        if self.hold_until_caught_up(key) {
            return Placed::Wait;
        }
        let Some(session) = self.sessions.get(key) else {
            return Placed::Done;
        };
        let Some(login) = credentials(name, password) else {
            return self.answer_error(key, WRONG);
        };
        if name.map_or(0, <[u8]>::len) + password.len() > CREDENTIALS_BYTES_MAX {
            return self.answer_reply(key, &bound_reply("CREDENTIALS_BYTES_MAX"));
        }
        let (pinned, pool) = (session.pins.bind(), usize::from(session.pool));
        let claim = match self.server_login_gate(key, &login) {
            Gate::Open(claim) => claim,
            Gate::Wait => return Placed::Wait,
            Gate::Shut => return self.refuse_untried(key),
        };
        if !pinned && self.is_routed(key) && self.queued_group(key).is_none() {
            // Any server will do, and where the session asked last may be one that is not there.
            let up = self.first_up(pool);
            self.turn(key, up);
        }
        let Some(session) = self.sessions.get(key) else {
            return Placed::Done;
        };
        let old = self.kind_of(session);
        let mut request = Vec::new();
        match name {
            Some(name) => encode::request(&mut request, &[b"AUTH".as_slice(), name, password]),
            None => encode::request(&mut request, &[b"AUTH".as_slice(), password]),
        }
        // See `Login::is_answered_by`.
        encode::request(&mut request, &["HELLO"]);
        let (server, pool, db) = (old.server, session.pool, session.db);
        let former = session.user;
        let known = self.logins.find(pool, &login);
        let known = known.filter(|user| !self.is_login_refused(*user, server));
        let version = hello.as_ref().map_or(old.version, |(version, _)| *version);
        let link = match known {
            _ if pinned => self.usable_link(key),
            Some(user) => {
                // The link is greeted before the server answers this AUTH.
                self.logins.note_database(db, former, user);
                let kind = LinkKey {
                    user,
                    version,
                    ..old
                };
                self.login_link(key, kind)
            }
            // Only a login that the server has accepted gets a link of its own.
            None => {
                self.end_login_turn(key);
                let login = Login {
                    credentials: login,
                    hello: hello.map(|(_, rest)| rest),
                    said: None,
                    claim,
                };
                return self.probe_login(key, server, request, login);
            }
        };
        if !matches!(link, Err(Blocked::Wait))
            && let Some(rare) = self
                .sessions
                .get_mut(key)
                .and_then(|session| session.rare.as_mut())
        {
            rare.login_asked_at = None;
            rare.attempts.turn = None;
        }
        let link = match link {
            Ok(link) => link,
            Err(Blocked::Wait) => return Placed::Wait,
            Err(blocked) => {
                self.login_was_right(claim);
                return match blocked {
                    Blocked::Refused(reply) if hello.is_some() && is_servers_fault(&reply) => {
                        self.close_greeting(key)
                    }
                    blocked => self.blocked(key, blocked),
                };
            }
        };
        let duty = Duty::Login(Box::new(Login {
            credentials: login,
            hello: hello.map(|(_, rest)| rest),
            said: None,
            claim,
        }));
        // The session stays where it is until the server has agreed: nothing need be undone. Its
        // own link is somebody else's from now on, whether or not the answer comes in time.
        if let Some(state) = self.links.get_mut(link) {
            state.tainted |= pinned;
        }
        self.put_on(link, key, &request, duty);
        self.hold_until_caught_up(key);
        Placed::Done
    }

    /// Whether a session may ask its server about a login now. A login that a server has accepted
    /// before, or that it is being asked about, counts for its address only when it is refused. The
    /// login that the session has already does not wait.
    pub(crate) fn server_login_gate(&mut self, key: Key, login: &Credentials) -> Gate {
        let session = self.sessions.get(key);
        if let Some(session) = session
            && !session.flags.any(Flags::UNAUTHENTICATED)
            && self.logins.get(session.user) == Some(login)
        {
            return Gate::Open(Claim::free(session.peer));
        }
        let was_right =
            session.is_some_and(|session| self.logins.find(session.pool, login).is_some());
        let presumed_right = was_right || self.is_being_asked(login);
        self.login_gate(key, presumed_right)
    }

    /// The shared link of a user, once it is up: then the server has agreed to the password
    /// already.
    fn login_link(&mut self, key: Key, kind: LinkKey) -> Result<Key, Blocked> {
        let link = self.shared_link_for(key, kind)?;
        let now = self.now;
        let Some(session) = self.sessions.get_mut(key) else {
            return Err(Blocked::Wait);
        };
        let asked_at = *session.rare().login_asked_at.get_or_insert(now);
        let Some(state) = self.links.get_mut(link) else {
            return Err(Blocked::Wait);
        };
        // An attempt that failed before this was asked says nothing about it.
        let tried = state.attempted_at >= asked_at;
        match &state.state {
            State::Up => return Ok(link),
            State::Resting { .. } if !tried => {}
            State::Resting { .. } => {
                return Err(Blocked::Refused(match &state.refusal {
                    Some(text) => {
                        let mut reply = Vec::new();
                        encode::error(&mut reply, text);
                        reply
                    }
                    None => self.no_link_reply(link, self.away_error(key)),
                }));
            }
            State::Down
            | State::Retrying { .. }
            | State::Connecting { .. }
            | State::Greeting { .. } => {}
        }
        self.wait_until_up(key, link).map_err(Blocked::Refused)?;
        Err(Blocked::Wait)
    }

    /// The place of a login that a server has accepted, among those that links can be of. `None`:
    /// there is no room for another.
    ///
    /// A user without a password accepts every one, and each place has links of its own. So a user
    /// has few places. A further password takes the place of the newest one: its links greet with
    /// the password that the server has accepted last.
    pub(crate) fn place_of_login(&mut self, key: Key, login: Credentials) -> Option<u16> {
        let pool = self.sessions.get(key)?.pool;
        if let Some(known) = self.logins.find(pool, &login) {
            return Some(known);
        }
        if self.logins.of_name(pool, &login).1 >= PASSWORDS_OF_USER_MAX {
            self.forget_unused_logins();
            let (newest, count) = self.logins.of_name(pool, &login);
            if count >= PASSWORDS_OF_USER_MAX {
                let place = newest?;
                self.logins.renew(place, login);
                return Some(place);
            }
        }
        let logins = &self.logins.known;
        if logins.iter().all(Option::is_some) && logins.len() >= LOGINS_MAX {
            self.forget_unused_logins();
        }
        self.logins.add(pool, login)
    }

    /// Frees the places of users that no link and no session is.
    fn forget_unused_logins(&mut self) {
        let mut used = vec![false; LOGINS_MAX + 1];
        for (_, link) in self.links.iter() {
            used[usize::from(link.key.user)] = true;
        }
        for (_, session) in self.sessions.iter() {
            used[usize::from(session.user)] = true;
        }
        for hub in &self.hubs {
            used[usize::from(hub.user)] = true;
        }
        let users = (1..).zip(&self.logins.known);
        let selected = users
            .filter(|(user, _)| used[*user])
            .filter_map(|(_, known)| known.as_ref());
        let of_databases = selected.flat_map(|known| known.selected.iter().map(|(_, by)| *by));
        for user in of_databases.collect::<Vec<u16>>() {
            used[usize::from(user)] = true;
        }
        for (user, known) in (1..).zip(&mut self.logins.known) {
            if !used[usize::from(user)] && known.take().is_some() {
                self.learned.forget_user(user);
            }
        }
    }

    /// What the server says to an AUTH is known.
    pub(crate) fn settle_login(&mut self, link: Key, entry: Entry, login: Login) {
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
        if self.sessions.get(entry.session).is_none() {
            return;
        }
        let Some(user) = self.place_of_login(entry.session, login.credentials) else {
            return self.pass_on(entry, &bound_reply("LOGINS_MAX"));
        };
        let probed = self.is_probe(link);
        let Some(state) = self.links.get_mut(link) else {
            return;
        };
        let pinned = state.role == Role::Pinned { by: entry.session };
        let version = state.key.version;
        let db = self.sessions.get(entry.session).map_or(0, |its| its.db);
        self.become_user(entry.session, link, (user, db));
        if let Some(session) = self.sessions.get_mut(entry.session)
            && !pinned
            && !probed
        {
            session.version = version;
        }
        match login.hello {
            Some(hello) => {
                let steps = [Step::request(hello)].into();
                self.begin_steps(entry.session, steps, (entry.silent, entry.at_ms));
                self.pass_on(entry, b"");
            }
            None => self.pass_on(entry, &said),
        }
        if !pinned
            && self
                .sessions
                .get(entry.session)
                .is_some_and(Session::is_caught_up)
        {
            match probed {
                true => self.ride_accepted(entry.session),
                false => self.ride(entry.session, link),
            }
        }
    }

    /// A user has logged in. Its links that rest after a refusal or after losses connect now. A server may refuse the user for good, so a
    /// refused link takes tokens. The link of a session that was just let in does not.
    fn connect_links_of(&mut self, user: u16, own: Option<Key>) {
        let rests = |(_, link): &(Key, &Link)| {
            link.key.user == user
                && link.role == Role::Shared
                && matches!(link.state, State::Resting { .. })
        };
        let resting: Vec<(Key, ServerId, bool)> = self
            .links
            .iter()
            .filter(rests)
            .map(|(key, link)| (key, link.key.server, link.refusal.is_some()))
            .collect();
        for (key, server, was_refused) in resting {
            if !was_refused || own == Some(key) || self.may_connect_refused(server) {
                self.connect(key);
            }
        }
    }

    /// The server has agreed, on this link, that a session is this user: by AUTH, or within EXEC.
    /// `db`: the database that the session has selected.
    pub(crate) fn become_user(&mut self, key: Key, link: Key, (user, db): (u16, u32)) {
        let Some(link) = self.links.get_mut(link) else {
            return;
        };
        if link.role == (Role::Pinned { by: key }) {
            link.key.user = user;
        }
        self.learned.doubt_user(user);
        if let Some(session) = self.sessions.get_mut(key) {
            let former = std::mem::replace(&mut session.user, user);
            session.flags.remove(Flags::UNAUTHENTICATED);
            self.logins.note_database(db, former, user);
        }
        let session = self.sessions.get(key);
        let kind = session.map(|session| self.shared_kind_of(session));
        let own = kind.and_then(|kind| self.shared.get(&kind).copied());
        self.connect_links_of(user, own);
    }

    /// The kind of link that a session rides on.
    pub(crate) fn kind_of(&self, session: &Session) -> LinkKey {
        LinkKey {
            server: session.server,
            version: session.version,
            db: session.db,
            user: if self.settings.users.is_empty() {
                session.user
            } else {
                CONFIGURED
            },
            lane: EVERYBODYS,
        }
    }

    /// The name of a session's user.
    pub(crate) fn user_name(&self, user: u16) -> &str {
        let name = if self.settings.users.is_empty() {
            self.logins
                .get(user)
                .and_then(|login| login.user.as_deref())
        } else {
            let user = self.settings.users.get(usize::from(user));
            user.map(|user| user.name.as_str())
        };
        name.unwrap_or("default")
    }

    /// Whether a new session must authenticate first: to respool, or because a server demands it.
    pub(crate) fn must_authenticate(&self, pool: usize) -> bool {
        let first = self.first_link(self.pools.home_of(pool));
        let refusal = self
            .shared
            .get(&first)
            .and_then(|link| self.links.get(*link))
            .and_then(|link| link.refusal.as_deref());
        !self.settings.users.is_empty()
            || refusal.is_some_and(|text| text.starts_with(b"NOAUTH"))
            || self.is_login_withdrawn(pool)
    }
}

/// To AUTH, in Redis's words.
const WRONG: &[u8] = b"WRONGPASS invalid username-password pair or user is disabled.";

/// What a client says who it is. `None`: no name or password of ours has such bytes.
pub(crate) fn credentials(name: Option<&[u8]>, password: &[u8]) -> Option<Credentials> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    Some(Credentials {
        user: Some(text(name.unwrap_or(b"default"))?),
        password: text(password)?,
        source: None,
    })
}

/// Compares without telling by its time where the difference lies.
fn same(ours: &[u8], theirs: &[u8]) -> bool {
    let mut difference = ours.len() ^ theirs.len();
    for (index, byte) in theirs.iter().enumerate() {
        difference |= usize::from(byte ^ ours.get(index).copied().unwrap_or(0));
    }
    difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place that is free has no name, not even that of the default user.
    #[test]
    fn free_place_has_no_name() {
        let mut logins = Logins::default();
        let login = |user: Option<&str>| Credentials {
            user: user.map(str::to_owned),
            password: "secret".to_owned(),
            source: None,
        };
        assert_eq!(logins.name_of(CONFIGURED), None);
        assert_eq!(logins.name_of(1), None);
        let bob = logins.add(0, login(Some("bob"))).expect("a free place");
        let default = logins.add(0, login(None)).expect("a free place");
        assert_eq!(logins.name_of(bob), Some("bob"));
        assert_eq!(logins.name_of(default), Some("default"));
        assert_eq!(logins.name_of(default + 1), None);
    }
}
