//! Scripts that the user of a session may not load, and sessions that have lost their scripts.
//!
//! A script is loaded in front of the request that names it, as the user of the session. That takes
//! the right to SCRIPT LOAD, which a user with the right to EVAL may lack. Then the link of the
//! configured user loads the script, and the request waits for the reply:
//!
//! ```text
//!   link of the configured user   SCRIPT LOAD body ─► its name
//!   link of the session's user                          └─► MULTI, EVALSHA sha, EXEC
//! ```
//!
//! A server keeps its scripts for all connections. So one reply counts for the links of all users,
//! until a connection to the server is lost or the server says NOSCRIPT. Each script is under way
//! once, so no more than `SCRIPT_BYTES_MAX` is.
//!
//! Requests that outlive the connection of their link name scripts, too. Such a link waits, once it is
//! connected, for a moment at the most.
//!
//! Only a script that this user has shown by EVAL is loaded so, or one that some user has shown by
//! SCRIPT LOAD: a server without a restart would have it. The server checks the right to EVALSHA as
//! ever. If the configured user may not load scripts, the request leaves as the session's user sent
//! it, behind a SCRIPT LOAD of that user.
//!
//! A script may be lost for good: respool has forgotten it, or no user may load it. A client that
//! names it in a transaction would get NOSCRIPT for ever, since it has shown the script on this
//! connection. So its connection is closed behind that reply, as the restart of the server would
//! have closed it.

use std::collections::HashMap;

use crate::auth::CONFIGURED;
use crate::duty::Duty;
use crate::engine::{Engine, Event};
use crate::limits::{SCRIPT_USERS_MAX, SCRIPTS_LOADED_MAX, SCRIPTS_REFUSED_MS, SCRIPTS_WAIT_MS};
use crate::link::{State, Streaming};
use crate::pool::ServerId;
use crate::scripts::{Name, Script, names_in};
use crate::session::Flags;
use crate::slots::Key;
use crate::time::Time;
use crate::transaction::elements_of;
use crate::unknown::Subject;

/// How a request shows a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Showing<'a> {
    /// By SCRIPT LOAD.
    Load,
    /// By EVAL of this user of the server. `None`: the configured one, which loads scripts itself.
    Run { user: Option<&'a str> },
}

/// The users that get a script restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShownBy {
    /// It was shown by SCRIPT LOAD: any user may name it.
    load: bool,
    /// Names of users that have shown it by EVAL, at most [`SCRIPT_USERS_MAX`]. Numbers of users are
    /// a worker's own.
    users: Vec<Box<str>>,
}

impl ShownBy {
    /// Whether such a showing is noted, or is none that counts.
    pub(crate) fn has(&self, showing: Showing<'_>) -> bool {
        match showing {
            Showing::Load => self.load,
            Showing::Run { user } => user.is_none_or(|user| self.has_run(user)),
        }
    }

    /// Notes a showing. Returns whether it is a new one.
    pub(crate) fn note(&mut self, showing: Showing<'_>) -> bool {
        match showing {
            Showing::Load => !std::mem::replace(&mut self.load, true),
            Showing::Run { user: Some(user) } => {
                let is_new = !self.has_run(user) && self.users.len() < SCRIPT_USERS_MAX;
                if is_new {
                    self.users.push(user.into());
                }
                is_new
            }
            Showing::Run { user: None } => false,
        }
    }

    /// Notes the showings that another worker has seen.
    pub(crate) fn merge(&mut self, other: &ShownBy) {
        if other.load {
            self.note(Showing::Load);
        }
        for user in &other.users {
            self.note(Showing::Run { user: Some(user) });
        }
    }

    /// Whether the script is restored for this user.
    fn admits(&self, user: &str) -> bool {
        self.load || self.has_run(user)
    }

    fn has_run(&self, user: &str) -> bool {
        self.users.iter().any(|name| **name == *user)
    }

    /// Bytes of memory, apart from its own place.
    pub(crate) fn memory_bytes(&self) -> usize {
        let names: usize = self.users.iter().map(|user| user.len()).sum();
        names + self.users.capacity() * size_of::<Box<str>>()
    }
}

/// The states of the scripts of one connection, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    scripts: HashMap<u32, Loading>,
    /// Scripts that requests on the link name. The configured user is to load them before the link
    /// is up.
    later: Vec<(u16, Name)>,
}

/// A link that is connected, and waits for the configured user to load scripts.
pub(super) struct HeldLink {
    link: Key,
    since: Time,
    scripts: Vec<(u16, Name)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loading {
    /// The configured user may not load it. The user of the link has not tried.
    Untried,
    /// It was sent.
    Sent,
    /// The user of the link may not load it.
    Denied,
}

impl Loaded {
    /// Whether the script was not sent yet, although its user may be allowed to.
    pub(crate) fn lacks(&self, number: u32) -> bool {
        matches!(self.scripts.get(&number), None | Some(Loading::Untried))
    }

    /// The script was sent on this connection, or its server has it.
    pub(crate) fn note_loaded(&mut self, number: u32) {
        self.note(number, Loading::Sent);
    }

    /// The server has refused the script with this error. After any error but NOPERM it gets the
    /// script again.
    pub(crate) fn note_refused(&mut self, number: u32, error: &[u8]) {
        match error.starts_with(b"-NOPERM") {
            true => self.note(number, Loading::Denied),
            false => {
                self.scripts.remove(&number);
            }
        }
    }

    /// The connection is another one, or the server has forgotten scripts.
    pub(crate) fn clear(&mut self) {
        self.scripts.clear();
        self.later.clear();
    }

    fn note(&mut self, number: u32, loading: Loading) {
        if self.scripts.len() >= SCRIPTS_LOADED_MAX && !self.scripts.contains_key(&number) {
            self.scripts.clear();
        }
        self.scripts.insert(number, loading);
    }
}

/// What servers said to the configured user that loads scripts, by their numbers. Call
/// [`Restored::note`] for each reply and [`Restored::forget`] when a server may have lost its
/// scripts. Time never runs back.
#[derive(Debug, Default)]
pub(super) struct Restored {
    servers: HashMap<ServerId, HashMap<u32, (Loading, Time)>>,
}

impl Restored {
    /// The server has replied to SCRIPT LOAD.
    pub(super) fn note(&mut self, server: ServerId, number: u32, reply: &[u8], now: Time) {
        let loading = match reply.starts_with(b"-") {
            true => Loading::Untried,
            false => Loading::Sent,
        };
        let scripts = self.servers.entry(server).or_default();
        if scripts.len() >= SCRIPTS_LOADED_MAX && !scripts.contains_key(&number) {
            scripts.clear();
        }
        scripts.insert(number, (loading, now));
    }

    /// Its scripts may be gone.
    pub(super) fn forget(&mut self, server: ServerId) {
        self.servers.remove(&server);
    }

    /// What the server has said. A refusal counts for [`SCRIPTS_REFUSED_MS`].
    fn said(&self, server: ServerId, number: u32, now: Time) -> Option<Loading> {
        let (loading, at) = *self.servers.get(&server)?.get(&number)?;
        let counts = loading == Loading::Sent || now.since_ms(at) < SCRIPTS_REFUSED_MS;
        counts.then_some(loading)
    }
}

impl Engine {
    /// Has the configured user load a script that a request on this link names, if the user of the
    /// link needs that. Returns the link on which the session waits for the reply.
    pub(crate) fn load_as_configured(&mut self, link: Key, pool: u16, name: Name) -> Option<Key> {
        let number = self.script_to_restore(link, pool, name)?.number;
        let state = self.links.get_mut(link)?;
        let server = state.key.server;
        if let Some(loading) = self.scripts.restored.said(server, number, self.now) {
            state.loaded.note(number, loading);
            return None;
        }
        let first = self.shared_link(self.first_link(server))?;
        match self.links.get(first)?.state {
            // Its requests fail: the server is away for long, or refuses the configured user.
            State::Resting { .. } => return None,
            State::Down => self.connect(first),
            State::Retrying { .. } | State::Connecting { .. } | State::Greeting { .. } => {}
            State::Up => {
                let subject = Subject::Script { number };
                if self.begin_question((server, CONFIGURED), subject.clone(), first) {
                    let loading = self.scripts.find(pool, name)?.loading();
                    self.put_ours(first, &loading, Duty::Learn(subject));
                    self.counters.scripts_sent_along += 1;
                }
            }
        }
        Some(first)
    }

    /// A script that the configured user is to load for requests on this link.
    fn script_to_restore(&self, link: Key, pool: u16, name: Name) -> Option<&Script> {
        let state = self.links.get(link)?;
        let user = Some(state.key.user).filter(|user| *user != CONFIGURED)?;
        let script = self.scripts.find(pool, name)?;
        // Behind SCRIPT FLUSH the client expects NOSCRIPT.
        let is_new = !state.loaded.scripts.contains_key(&script.number)
            && !state.duties.iter().any(Duty::flushes_scripts);
        let name = self.logins.name_of(user);
        let is_admitted = || name.is_some_and(|user| script.shown_by.admits(user));
        (is_new && is_admitted()).then_some(script)
    }

    /// Has the scripts loaded that a request of a session names, which stays on a link that is not
    /// up: now in front of the request, or later by the configured user.
    pub(super) fn load_named_later(&mut self, link: Key, session: Key, request: &[u8]) {
        let Some(pool) = self.sessions.get(session).map(|session| session.pool) else {
            return;
        };
        for name in names_in(request) {
            if self.script_to_restore(link, pool, name).is_none() {
                self.load_on(link, pool, name);
            } else if let Some(link) = self.links.get_mut(link) {
                link.loaded.later.push((pool, name));
            }
        }
    }

    /// A link was greeted. Whether it waits until the configured user has loaded scripts.
    pub(crate) fn waits_for_scripts(&mut self, link: Key) -> bool {
        let Some(state) = self.links.get_mut(link) else {
            return false;
        };
        let mut scripts = std::mem::take(&mut state.loaded.later);
        scripts.sort_unstable();
        scripts.dedup();
        scripts.truncate(SCRIPTS_LOADED_MAX / 2);
        let since = self.now;
        let held = HeldLink {
            link,
            since,
            scripts,
        };
        self.hold_for_scripts(held)
    }

    fn hold_for_scripts(&mut self, held: HeldLink) -> bool {
        let mut waits = false;
        for (pool, name) in &held.scripts {
            waits |= self.load_as_configured(held.link, *pool, *name).is_some();
        }
        let is_young = self.now.since_ms(held.since) < SCRIPTS_WAIT_MS;
        if waits && is_young {
            self.scripts.held.push(held);
            return true;
        }
        // The link's own user loads the scripts that the configured user has not loaded.
        let lacks = |(pool, name): &(u16, Name)| {
            let script = self.scripts.find(*pool, *name);
            let state = self.links.get(held.link);
            script.zip(state).is_some_and(|(script, link)| {
                // The first part of a large request is no request yet, and stays behind all others.
                link.streaming == Streaming::No && link.loaded.lacks(script.number)
            })
        };
        if held.scripts.iter().any(lacks) {
            self.put_in_front(held.link, |engine, _| {
                for (pool, name) in &held.scripts {
                    engine.load_on(held.link, *pool, *name);
                }
            });
        }
        false
    }

    /// Links that have waited for scripts wait no longer: the scripts are loaded, or cannot be, or a
    /// moment has passed.
    pub(crate) fn open_links_with_scripts(&mut self) {
        if self.scripts.held.is_empty() {
            return;
        }
        for held in std::mem::take(&mut self.scripts.held) {
            let link = held.link;
            // It may have been lost since, and be greeted again.
            let is_greeted = self.links.get(link).is_some_and(|link| {
                matches!(&link.state, State::Greeting { greeting, .. } if greeting.is_done())
            });
            if is_greeted && !self.hold_for_scripts(held) {
                self.link_is_up(link);
            }
        }
    }

    /// Whether the reply to a transaction says NOSCRIPT of a script that cannot be restored, in a
    /// session that is older than the loss of the scripts.
    pub(crate) fn has_lost_scripts(
        &self,
        link: Key,
        session: Key,
        request: &[u8],
        reply: &[u8],
    ) -> bool {
        let (Some(state), Some(session)) = (self.links.get(link), self.sessions.get(session))
        else {
            return false;
        };
        let is_older = |lost| session.accepted_at <= lost;
        if !self.scripts.lost_at(state.key.server).is_some_and(is_older) {
            return false;
        }
        let is_lost = |name: &Name| match self.scripts.find(session.pool, *name) {
            Some(script) => state.loaded.scripts.get(&script.number) == Some(&Loading::Denied),
            None => true,
        };
        let says_so = |elements: Vec<&[u8]>| {
            elements
                .iter()
                .any(|element| element.starts_with(b"-NOSCRIPT"))
        };
        elements_of(reply).is_some_and(says_so) && names_in(request).iter().any(is_lost)
    }

    /// Closes a session behind the reply that says NOSCRIPT of a lost script.
    pub(crate) fn close_for_lost_scripts(&mut self, link: Key, key: Key) {
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        if session.flags.any(Flags::STEPS | Flags::CLOSING) {
            // Requests of its transaction are executed here, and their replies are still to come.
            return;
        }
        let peer = session.peer.to_string();
        let server = self.label(link);
        let reason = format!(
            "scripts lost: {server} has lost a script since this session connected, and it cannot \
             be loaded again: the client has to show it anew"
        );
        self.counters.sessions_closed_by_us += 1;
        self.tell(Event::SessionClosed { peer, reason });
        self.close_when_answered(key);
    }

    /// A shared link to a server was lost: another process without scripts may be there next.
    pub(crate) fn note_scripts_lost(&mut self, server: ServerId) {
        let pool = self.pool_of(server).whole;
        self.scripts.note_lost(pool, server, self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_is_restored_for_users_that_have_shown_it() {
        let mut shown_by = ShownBy::default();
        assert!(!shown_by.note(Showing::Run { user: None }));
        assert!(shown_by.note(Showing::Run { user: Some("ann") }));
        assert!(!shown_by.note(Showing::Run { user: Some("ann") }));
        assert!(shown_by.admits("ann") && !shown_by.admits("bob"));
        let mut other = ShownBy::default();
        other.merge(&shown_by);
        assert_eq!(other, shown_by);
        assert!(other.note(Showing::Load));
        shown_by.merge(&other);
        assert!(shown_by.admits("bob"));
    }

    #[test]
    fn users_of_a_script_are_bounded() {
        let mut shown_by = ShownBy::default();
        for number in 0..2 * SCRIPT_USERS_MAX {
            let user = number.to_string();
            let is_new = shown_by.note(Showing::Run { user: Some(&user) });
            assert_eq!(is_new, number < SCRIPT_USERS_MAX);
        }
        assert!(shown_by.admits("0") && !shown_by.admits("16"));
    }

    /// A server that took a script has it until a connection is lost. A refusal counts for a while.
    #[test]
    fn reply_counts_for_all_links_of_a_server() {
        let (server, other) = (ServerId(0), ServerId(1));
        let (mut restored, now) = (Restored::default(), Time(0));
        restored.note(server, 1, b"$2\r\nid\r\n", now);
        restored.note(server, 2, b"-NOPERM no\r\n", now);
        let soon = now.plus_ms(SCRIPTS_REFUSED_MS as u32 - 1);
        assert_eq!(restored.said(server, 1, soon), Some(Loading::Sent));
        assert_eq!(restored.said(server, 2, soon), Some(Loading::Untried));
        assert_eq!(restored.said(other, 1, soon), None);
        let later = now.plus_ms(SCRIPTS_REFUSED_MS as u32);
        assert_eq!(restored.said(server, 1, later), Some(Loading::Sent));
        assert_eq!(restored.said(server, 2, later), None);
        restored.forget(server);
        assert_eq!(restored.said(server, 1, later), None);
        for number in 0..2 * SCRIPTS_LOADED_MAX as u32 {
            restored.note(server, number, b"+OK\r\n", now);
        }
        assert!(restored.servers[&server].len() <= SCRIPTS_LOADED_MAX);
    }

    #[test]
    fn refused_script_is_sent_again_unless_it_is_denied() {
        let mut loaded = Loaded::default();
        assert!(loaded.lacks(1));
        loaded.note_loaded(1);
        assert!(!loaded.lacks(1));
        loaded.note_refused(1, b"-BUSY a script runs\r\n");
        assert!(loaded.lacks(1));
        loaded.note_refused(1, b"-NOPERM no\r\n");
        assert!(!loaded.lacks(1));
        loaded.clear();
        assert!(loaded.lacks(1));
    }
}
