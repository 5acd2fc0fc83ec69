//! A plain server that takes no writes any more. Its name, its proxy or its moving address may lead
//! to another server by now, and only a new connection gets there.
//!
//! ```text
//!   -READONLY on a link ──► the client gets the reply
//!                      └──► a new link is connected ──► it is up: new requests go there, and the
//!                                                       old link answers those it has
//! ```
//!
//! In a Cluster the nodes know the primary, and behind Sentinels the Sentinels do: respool asks
//! them instead (`elsewhere`).

use respool_protocol::encode;
use respool_protocol::value::Value;

use crate::belief;
use crate::duty::Duty;
use crate::elsewhere::{as_asked, id_of};
use crate::emergency;
use crate::engine::Engine;
use crate::link::{Link, Role};
use crate::pool::ServerId;
use crate::slots::Key;
use crate::time::Time;

/// The first pause between two renewals of the links to a server, milliseconds. A name may follow
/// its primary by seconds.
const RENEWAL_MIN_MS: u32 = 1_000;
/// The longest such pause, milliseconds. Clients may send writes for days to a server that is meant
/// to take none.
const RENEWAL_MAX_MS: u32 = 60_000;

/// The pause between two questions for a server's role that scripts cause, milliseconds.
const ROLE_MS: u32 = 1_000;

/// When a server that takes no writes was connected anew.
#[derive(Debug, Default)]
pub(crate) struct Renewal {
    /// The links are not renewed again before this time.
    due: Time,
    /// The pause from the last renewal until `due`, milliseconds.
    pause_ms: u32,
    /// The server is not asked for its role again before this time.
    role_due: Time,
}

impl Renewal {
    /// Whether a server may be asked for its role.
    fn may_ask(&mut self, now: Time) -> bool {
        let may = now >= self.role_due;
        if may {
            self.role_due = now.plus_ms(ROLE_MS);
        }
        may
    }

    /// Whether the links may be renewed now. Each renewal doubles the pause; a long time without
    /// one resets it.
    fn is_due(&mut self, now: Time) -> bool {
        if now < self.due {
            return false;
        }
        let is_old = now.since_ms(self.due) >= u64::from(RENEWAL_MAX_MS);
        self.pause_ms = match is_old {
            true => RENEWAL_MIN_MS,
            false => (self.pause_ms * 2).clamp(RENEWAL_MIN_MS, RENEWAL_MAX_MS),
        };
        self.due = now.plus_ms(self.pause_ms);
        true
    }
}

/// The error of a server that takes no writes. Before Redis 7.0, an error of a script has other
/// words in front of it.
const READONLY: &[u8] = b"-READONLY ";
/// So many bytes of an error are searched for it.
const BEGINNING_BYTES: usize = 512;

impl Engine {
    /// The next reply of a link is an error. Returns whether respool acts on it, and does not pass
    /// it on.
    #[cold]
    pub(crate) fn is_heeded(&mut self, key: Key, reply: &[u8]) -> bool {
        match self.links.get(key).is_some_and(|link| link.heeds) {
            true => self.goes_elsewhere(key, reply),
            false => {
                let beginning = &reply[..reply.len().min(BEGINNING_BYTES)];
                if beginning
                    .windows(READONLY.len())
                    .any(|words| words == READONLY)
                {
                    self.note_readonly(key, reply.starts_with(READONLY));
                }
                false
            }
        }
    }

    /// An error has [`READONLY`] in it. `says_it`: the error begins with it.
    fn note_readonly(&mut self, key: Key, says_it: bool) {
        let Some(link) = self.links.get(key) else {
            return;
        };
        let server = link.key.server;
        // A replica never takes writes.
        if self.server(server).replica_of.is_some() {
            return;
        }
        match self.may_be_a_clients(link) {
            true => self.ask_role(server),
            false if says_it => self.renew_if_due(server),
            false => {}
        }
    }

    /// Whether the error text that answers the request in front may be its client's own.
    pub(crate) fn may_be_a_clients(&self, link: &Link) -> bool {
        let Some(front) = link.first_in_flight() else {
            return true;
        };
        match link.duties.front().filter(|_| front.duty) {
            Some(Duty::Code { .. }) => true,
            // An error of a real block is the server's own. Requests without MULTI ran one by one,
            // and may run code.
            Some(Duty::Block { opens, .. }) => !opens,
            _ => front.len > 0 && belief::runs_code(id_of(as_asked(link.first_bytes()))),
        }
    }

    /// A script says that its server takes no writes, but a script may write any error text. Asks
    /// the server for its role.
    pub(crate) fn ask_role(&mut self, server: ServerId) {
        let now = self.now;
        if self.server(server).replica_of.is_some() {
            return;
        }
        let Some(link) = self.link_that_answers(server) else {
            return;
        };
        if !self.servers[usize::from(server.0)].renewal.may_ask(now) {
            return;
        }
        let version = self.links.get(link).map(|link| link.key.version);
        let version = version.unwrap_or_default().number().to_string();
        let mut question = Vec::new();
        // Every user may send HELLO, and this one does not change the link.
        encode::request(&mut question, &["HELLO", &version]);
        self.put_ours(link, &question, Duty::Role);
    }

    /// The server has answered the question for its role.
    pub(crate) fn take_role(&mut self, link: Key, reply: &[u8]) {
        let Some(link) = self.links.get(link) else {
            return;
        };
        let (server, heeds) = (link.key.server, link.heeds);
        let said = Value::read(reply);
        let role = said.as_ref().and_then(|said| said.field("role")?.text());
        match role {
            Some(b"replica" | b"slave") if heeds => {
                self.doubt_primary(server);
                self.doubt_lost_owner(server);
            }
            Some(b"replica" | b"slave") => self.renew_if_due(server),
            _ => {}
        }
    }

    fn renew_if_due(&mut self, server: ServerId) {
        let now = self.now;
        if self.servers[usize::from(server.0)].renewal.is_due(now) {
            self.renew(server);
        }
    }

    /// Connects a new link for each shared link. The new link takes its place once it is up. Until
    /// then sessions go on with the old link, and also if the new link never comes up.
    fn renew(&mut self, server: ServerId) {
        let state = self.server(server);
        let (pool, label) = (usize::from(state.pool), &state.label);
        let text = format!(
            "{label} takes no writes: it is connected anew, for another one may stand there now"
        );
        self.tell_event(pool, text);
        for key in self.links.keys() {
            let its = |link: &&mut Link| link.key.server == server && link.is_up();
            let Some(link) = self.links.get_mut(key).filter(its) else {
                continue;
            };
            let kind = link.key;
            match link.role {
                Role::Spare | emergency::IDLE => self.close_link(key),
                Role::Shared => {
                    // No session waits for a spare link: if it cannot be connected, no client gets
                    // an error.
                    if let Some(successor) = self.add_link(kind, Role::Spare) {
                        self.connect(successor);
                    }
                }
                Role::Probe => self.lose_link(key, "its server is connected anew"),
                // A session keeps its own link, and no other session gets the link afterwards.
                // Subscriptions keep their link until it has a successor.
                _ => link.tainted = true,
            }
        }
    }

    /// A link is up. If it is a spare one that no session uses, it takes the place of the link that
    /// it was connected for.
    pub(crate) fn succeed(&mut self, key: Key) {
        let Some(link) = self.links.get(key).filter(|link| link.role == Role::Spare) else {
            return;
        };
        let kind = link.key;
        let is_successor = self.is_successor(key, link);
        if is_successor && !self.takes_over(key) {
            return self.close_link(key);
        }
        let old = self.shared.get(&kind).copied();
        let is_up = |old: Key| self.links.get(old).is_some_and(Link::is_up);
        let Some(old) = old.filter(|old| is_up(*old)) else {
            // The old link was lost meanwhile, and reconnects by itself.
            return self.close_link(key);
        };
        // Another server may be there now, so facts learned about the old one are in doubt.
        if !is_successor {
            self.learned.doubt_server(kind.server);
            self.note_scripts_lost(kind.server);
        }
        let moved = match is_successor {
            true => self.take_requests_behind(old),
            false => Vec::new(),
        };
        self.leave_to(old, Key::NOBODY);
        if let Some(link) = self.links.get_mut(key) {
            link.role = Role::Shared;
        }
        self.shared.insert(kind, key);
        self.limit_link(key);
        self.put_moved(key, moved);
        self.reopen(key);
        if self
            .links
            .get(old)
            .is_some_and(|link| link.ledger.is_empty())
        {
            self.close_link(old);
        }
        for hub in self.links.keys() {
            let stays_behind = |link: &Link| {
                link.key.server == kind.server && link.tainted && matches!(link.role, Role::Hub(_))
            };
            if self.links.get(hub).is_some_and(stays_behind) {
                self.lose_link(hub, "its server takes no writes, and is connected anew");
            }
        }
    }
}
