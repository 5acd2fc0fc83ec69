//! A plain server that refuses writes. Its name, its proxy or its moving address may lead to
//! another server by now, and only a new connection gets there.
//!
//! ```text
//!   -READONLY on a link ──► the client gets the reply
//!                      └──► a new link is connected ──► it is up: new requests go there, and the
//!                                                       old link answers its earlier requests
//! ```
//!
//! In a Cluster the nodes know the primary, and behind Sentinels the Sentinels do. There, respool
//! asks them instead (`redirect/deferred.rs`).

use respool_protocol::encode;
use respool_protocol::value::Value;

use crate::base::handle::{LinkId, SessionId};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::discovery::DiscoveryCompletion;
use crate::data_plane::link::{Link, Role};
use crate::discovery::Discovery;
use crate::engine::Engine;
use crate::pinned::urgent;
use crate::routing::pool::ServerId;

/// The first pause between two renewals of the links to a server, milliseconds. A name may follow
/// its primary by seconds.
const RENEWAL_MIN_MS: u32 = 1_000;
/// The longest such pause, milliseconds. Clients may send writes for days to a server that is meant
/// to take none.
const RENEWAL_MAX_MS: u32 = 60_000;

/// The pause between two questions for a server's role that scripts cause, milliseconds.
const ROLE_MS: u32 = 1_000;

/// When a server that refuses writes was reconnected.
#[derive(Debug, Default)]
pub(crate) struct ReadonlyReconnect {
    /// The links are not renewed again before this time.
    due: Time,
    /// The pause from the last renewal until `due`, milliseconds.
    pause_ms: u32,
    /// The server is not asked for its role again before this time.
    role_due: Time,
}

impl ReadonlyReconnect {
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

/// The error of a server that refuses writes. Before Redis 7.0, other words stand in front of it in
/// an error of a script.
const READONLY: &[u8] = b"-READONLY ";
/// The bytes of an error that are searched for [`READONLY`].
const BEGINNING_BYTES: usize = 512;

impl Engine {
    /// The next reply of a link is an error. Returns whether respool acts on it, and does not pass
    /// it on.
    #[cold]
    pub(crate) fn is_refusal_handled(&mut self, id: LinkId, reply: &[u8]) -> bool {
        match self.plane.links.get(id).is_some_and(|link| link.heeds) {
            true => self.handle_refusal(id, reply),
            false => {
                let beginning = &reply[..reply.len().min(BEGINNING_BYTES)];
                if beginning
                    .windows(READONLY.len())
                    .any(|words| words == READONLY)
                {
                    self.note_readonly(id, reply.starts_with(READONLY));
                }
                false
            }
        }
    }

    /// An error contains [`READONLY`]. `says_it`: the error begins with it.
    fn note_readonly(&mut self, id: LinkId, says_it: bool) {
        let Some(link) = self.plane.links.get(id) else {
            return;
        };
        let server = link.kind.server;
        // A replica never takes writes.
        if self.plane.server(server).replica_of.is_some() {
            return;
        }
        match self.plane.may_be_a_clients(link) {
            true => self.discovery.ask_role(&mut self.plane, server),
            false if says_it => self.renew_if_due(server),
            false => {}
        }
    }

    /// The server has answered the question for its role.
    pub(crate) fn take_role(&mut self, link: LinkId, reply: &[u8]) {
        let Some(link) = self.plane.links.get(link) else {
            return;
        };
        let (server, heeds) = (link.kind.server, link.heeds);
        let said = Value::read(reply);
        let role = said.as_ref().and_then(|said| said.field("role")?.text());
        match role {
            Some(b"replica" | b"slave") if heeds => {
                self.discovery.request_survey(&mut self.plane, server);
                self.request_refresh_after_loss(server);
            }
            Some(b"replica" | b"slave") => self.renew_if_due(server),
            _ => {}
        }
    }

    fn renew_if_due(&mut self, server: ServerId) {
        let now = self.plane.now;
        if self.plane.servers[usize::from(server.0)]
            .renewal
            .is_due(now)
        {
            self.renew(server);
        }
    }

    /// Connects a new link for each shared link. The new link takes its place once it is up. Until
    /// then sessions go on with the old link, and also if the new link never comes up.
    fn renew(&mut self, server: ServerId) {
        let state = self.plane.server(server);
        let (pool, label) = (usize::from(state.pool), &state.label);
        let text = format!(
            "{label} refuses writes: respool reconnects, because its name may lead to another \
             server now"
        );
        self.plane.tell_event(pool, text);
        for id in self.plane.links.ids() {
            let is_affected = |link: &&mut Link| link.kind.server == server && link.is_up();
            let Some(link) = self.plane.links.get_mut(id).filter(is_affected) else {
                continue;
            };
            let kind = link.kind;
            match link.role {
                Role::Idle | urgent::IDLE => self.plane.close_link(id),
                Role::Shared => {
                    // No session waits for an idle link: if it cannot be connected, no client gets
                    // an error.
                    if let Some(successor) = self.plane.add_link(kind, Role::Idle) {
                        self.plane.connect(successor);
                    }
                }
                Role::Probe => self.plane.lose_link(id, "respool reconnects to its server"),
                // A session keeps its own link, and no other session gets the link afterwards.
                // Subscriptions keep their link until it has a successor.
                _ => link.tainted = true,
            }
        }
    }

    /// A link is up. An idle link that no session uses takes the place of the link for which it was
    /// connected.
    pub(crate) fn succeed(&mut self, id: LinkId) {
        let Some(link) = self
            .plane
            .links
            .get(id)
            .filter(|link| link.role == Role::Idle)
        else {
            return;
        };
        let kind = link.kind;
        let is_successor = self.plane.is_successor(id, link);
        if is_successor && !self.plane.takes_over(id) {
            return self.plane.close_link(id);
        }
        let old = self.plane.shared.get(&kind).copied();
        let is_up = |old: LinkId| self.plane.links.get(old).is_some_and(Link::is_up);
        let Some(old) = old.filter(|old| is_up(*old)) else {
            // The old link was lost meanwhile, and reconnects by itself.
            return self.plane.close_link(id);
        };
        // Another server may be there now, so facts learned about the old one are in doubt.
        if !is_successor {
            self.local
                .catalog
                .doubt_server(&mut self.plane.learned_commands, kind.server);
            self.local.note_scripts_lost(&mut self.plane, kind.server);
        }
        let moved = match is_successor {
            true => self.plane.take_requests_behind(old),
            false => Vec::new(),
        };
        self.plane.drain_to(old, SessionId::NONE);
        if let Some(link) = self.plane.links.get_mut(id) {
            link.role = Role::Shared;
        }
        self.plane.shared.insert(kind, id);
        self.plane.limit_link(id);
        self.local.put_moved(&mut self.plane, id, moved);
        self.plane.reopen(id);
        if self
            .plane
            .links
            .get(old)
            .is_some_and(|link| link.ledger.is_empty())
        {
            self.plane.close_link(old);
        }
        for hub in self.plane.links.ids() {
            let stays_behind = |link: &Link| {
                link.kind.server == kind.server && link.tainted && matches!(link.role, Role::Hub(_))
            };
            if self.plane.links.get(hub).is_some_and(stays_behind) {
                self.plane.lose_link(
                    hub,
                    "its server refuses writes, and respool reconnects to it",
                );
            }
        }
        // In the log, the loss of the old links stands before the new one.
        self.settle_losses();
    }
}

impl Discovery {
    /// A script reports that its server refuses writes, but a script may return any error text.
    /// Asks the server for its role.
    pub(crate) fn ask_role(&mut self, plane: &mut DataPlane, server: ServerId) {
        let now = plane.now;
        if plane.server(server).replica_of.is_some() {
            return;
        }
        let Some(link) = self.link_that_answers(plane, server) else {
            return;
        };
        if !plane.servers[usize::from(server.0)].renewal.may_ask(now) {
            return;
        }
        let version = plane.links.get(link).map(|link| link.kind.version);
        let version = version.unwrap_or_default().number().to_string();
        let mut question = Vec::new();
        // Every user may send HELLO, and this one does not change the link.
        encode::request(&mut question, &["HELLO", &version]);
        plane.put_ours(
            link,
            &question,
            Completion::Discovery(DiscoveryCompletion::Role),
        );
    }
}
