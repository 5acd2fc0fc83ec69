//! The users of sessions and links. A number stands for each: for a configured user of respool, or
//! for a login that a client has sent and a server has accepted.
//!
//! `access` fills the table. Links read the credentials of their user from it.

use std::collections::VecDeque;

use crate::base::handle::CONFIGURED;
use crate::base::limits::{DATABASES_OF_LOGIN_MAX, LOGINS_MAX};
use crate::base::settings::{Credentials, User};
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::Request;

/// The name, if it has one, and the password of an AUTH. `None`: it has other arguments.
pub(crate) fn auth_args<'a>(request: &Request<'a>) -> Option<(Option<&'a [u8]>, &'a [u8])> {
    match request.spans.len() {
        2 => Some((None, request.arg(1))),
        3 => Some((Some(request.arg(1)), request.arg(2))),
        _ => None,
    }
}

/// The credentials that a client names. `None`: they are not UTF-8, as all configured ones are.
pub(crate) fn credentials(name: Option<&[u8]>, password: &[u8]) -> Option<Credentials> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    Some(Credentials {
        user: Some(text(name.unwrap_or(b"default"))?),
        password: text(password)?,
        source: None,
    })
}

/// Users of servers with passwords that clients have given. Links send them in their handshake. An
/// entry is free when no link and no session has that user.
#[derive(Default)]
pub(crate) struct Logins {
    known: Vec<Option<KnownLogin>>,
    /// Number of entries made so far.
    taken: u64,
}

/// A login that a server of the pool has accepted.
struct KnownLogin {
    pool: u16,
    login: Credentials,
    /// The number of this entry in the order of all entries.
    number: u64,
    /// Databases that sessions had selected before they became this user, each with the entry of
    /// the login that selected it. The newest is last.
    selected: VecDeque<(u32, u16)>,
}

impl Logins {
    /// The credentials of a user other than the configured one.
    pub(crate) fn get(&self, user: u16) -> Option<&Credentials> {
        let index = usize::from(user).checked_sub(1)?;
        self.known.get(index)?.as_ref().map(|known| &known.login)
    }

    /// The name of a user other than the configured one, at its server. `None`: the entry is free.
    pub(crate) fn name_of(&self, user: u16) -> Option<&str> {
        self.get(user).map(name_of)
    }

    pub(crate) fn find(&self, pool: u16, login: &Credentials) -> Option<u16> {
        let same_as = |known: &KnownLogin| known.pool == pool && known.login == *login;
        let mut all = self.known.iter();
        let index = all.position(|known| known.as_ref().is_some_and(same_as))?;
        Some(index as u16 + 1)
    }

    /// The newest of a user's entries in a pool, and their number.
    pub(crate) fn of_name(&self, pool: u16, login: &Credentials) -> (Option<u16>, usize) {
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

    pub(crate) fn add(&mut self, pool: u16, login: Credentials) -> Option<u16> {
        let index = match self.known.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.known.len() < LOGINS_MAX => {
                self.known.push(None);
                self.known.len() - 1
            }
            None => return None,
        };
        self.taken += 1;
        self.known[index] = Some(KnownLogin {
            pool,
            login,
            number: self.taken,
            selected: VecDeque::new(),
        });
        Some(index as u16 + 1)
    }

    /// The links of this entry send another password of its user from now on.
    pub(crate) fn renew(&mut self, user: u16, login: Credentials) {
        if let Some(known) = self.known_mut(user) {
            known.login = login;
        }
    }

    fn known_mut(&mut self, user: u16) -> Option<&mut KnownLogin> {
        let index = usize::from(user).checked_sub(1)?;
        self.known.get_mut(index)?.as_mut()
    }

    /// Notes that a session becomes the user `new` and keeps the database `db`, which it has
    /// selected as `old`. A link of `new` to that database may need a login that may select it.
    pub(crate) fn note_database(&mut self, db: u32, old: u16, new: u16) {
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

    /// The login that selected `db` for sessions before they became this user.
    fn selected_by(&self, user: u16, db: u32) -> Option<u16> {
        let index = usize::from(user).checked_sub(1)?;
        let known = self.known.get(index)?.as_ref()?;
        let mut all = known.selected.iter();
        all.find_map(|(of, by)| (*of == db).then_some(*by))
    }

    /// The logins that may set up a connection to `db` if `user` has no right to select it. The
    /// best one is last.
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
            // Without a configured login the default user takes any password.
            password: String::new(),
            source: None,
        };
        let mut logins = vec![configured.cloned().unwrap_or_else(default)];
        let former = self.selected_by(user, db);
        logins.extend(former.and_then(|by| self.get(by)).cloned());
        logins
    }

    /// Whether each entry is taken, and no more can be made.
    pub(crate) fn is_full(&self) -> bool {
        self.known.len() >= LOGINS_MAX && self.known.iter().all(Option::is_some)
    }

    /// Frees the entries that are not `used`, by their users, and the logins that no database of a
    /// used entry needs. Returns the users of freed entries.
    pub(crate) fn forget_unused(&mut self, mut used: Vec<bool>) -> Vec<u16> {
        let users = (1..).zip(&self.known);
        let selected = users
            .filter(|(user, _)| used[*user])
            .filter_map(|(_, known)| known.as_ref());
        let of_databases = selected.flat_map(|known| known.selected.iter().map(|(_, by)| *by));
        for user in of_databases.collect::<Vec<u16>>() {
            used[usize::from(user)] = true;
        }
        let mut freed = Vec::new();
        for (user, known) in (1..).zip(&mut self.known) {
            if !used[usize::from(user)] && known.take().is_some() {
                freed.push(user);
            }
        }
        freed
    }
}

/// The user's name at its server.
fn name_of(login: &Credentials) -> &str {
    login.user.as_deref().unwrap_or("default")
}

impl DataPlane {
    /// The configured user with this name and password.
    pub(crate) fn own_user(&self, name: &[u8], password: &[u8]) -> Option<u16> {
        let is = |user: &User| {
            same(user.name.as_bytes(), name) & same(user.password.as_bytes(), password)
                && !user.is_removed()
        };
        let found = self.settings.users.iter().position(is);
        found.map(|index| index as u16)
    }

    /// The name of a session's user.
    pub(crate) fn user_name(&self, user: u16) -> &str {
        let name = if self.settings.users.is_empty() {
            self.logins
                .get(user)
                .and_then(|login| login.user.as_deref())
        } else {
            let user = self.settings.users.get(usize::from(user));
            user.filter(|user| !user.is_removed())
                .map(|user| user.name.as_str())
        };
        name.unwrap_or("default")
    }

    /// Whether a new session must authenticate first: to respool, or because a server demands it.
    pub(crate) fn must_authenticate(&self, pool: usize) -> bool {
        let first = self.default_kind(self.pools.default_server_of(pool));
        let error = self
            .link_index
            .shared(&first)
            .and_then(|link| self.links.get(link))
            .and_then(|link| link.handshake_error.as_deref());
        !self.settings.users.is_empty()
            || error.is_some_and(|text| text.starts_with(b"NOAUTH"))
            || self.is_login_withdrawn(pool)
    }
}

/// Compares without showing by its time where the difference lies.
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

    /// A free entry has no name, not even that of the default user.
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

    /// An entry stays while it is used, or while a used entry has selected a database by it.
    #[test]
    fn unused_logins_are_freed() {
        let mut logins = Logins::default();
        let mut add = |name: &str| {
            let login = Credentials {
                user: Some(name.to_owned()),
                password: "secret".to_owned(),
                source: None,
            };
            logins.add(0, login).expect("a free place")
        };
        let (ann, bob, eve) = (add("ann"), add("bob"), add("eve"));
        logins.note_database(3, ann, bob);
        let mut used = vec![false; LOGINS_MAX + 1];
        used[usize::from(bob)] = true;
        assert_eq!(logins.forget_unused(used.clone()), [eve]);
        assert_eq!(logins.name_of(ann), Some("ann"));
        assert_eq!(
            logins.forget_unused(vec![false; LOGINS_MAX + 1]),
            [ann, bob]
        );
    }
}
