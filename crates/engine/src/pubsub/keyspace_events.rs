//! Keyspace notifications: which servers send them, and when requests may go to a new one.
//!
//! The hub knows at which servers it has to listen ([`Hub::follow_owners`]). This module finds these
//! servers and connects links to them.
//!
//! A server that becomes an owner is connected to by two links: by one for requests, and by the
//! hub's. The first link waits a moment for the hub's. Without that, the notifications of the first
//! requests would be lost.

use std::sync::Arc;

use crate::cluster::Cluster;
use crate::engine::Engine;
use crate::limits::BRANCH_WAIT_MS;
use crate::link::{Role, State};
use crate::pool::{Pool, ServerId};
use crate::requests::Request;
use crate::slots::Key;
use crate::subscriptions::{HOME, Hub, HubId, Kind, LineId, Owner};

impl Engine {
    /// Whether a session waits until it is known which servers send keyspace notifications.
    pub(crate) fn waits_for_event_servers(&mut self, key: Key) -> bool {
        let Some(session) = self.sessions.get(key) else {
            return false;
        };
        let pool = usize::from(session.pool);
        match self.unknown_part(pool) {
            Some(part) => self.waits_for_nodes(key, part),
            None => self.waits_for_owners(key, pool),
        }
    }

    /// The servers that send the keyspace notifications of a pool. A Cluster that is not known has
    /// none yet.
    fn event_servers(&self, pool: u16) -> Vec<Owner> {
        let parts = self.pools.parts_of(usize::from(pool)).iter();
        let parts = parts.map(|part| &self.pools[usize::from(*part)]);
        let known = parts.filter(|part| part.cluster().is_none_or(Cluster::is_known));
        let owners = |part: &Pool| -> Vec<Owner> {
            let unseen: Arc<[u8]> = part.unseen[..].into();
            let owner = |server: &ServerId| Owner {
                server: *server,
                unseen: unseen.clone(),
            };
            part.servers().iter().map(owner).collect()
        };
        let mut all: Vec<Owner> = Vec::new();
        for owner in known.flat_map(owners) {
            // Several parts may have one server in common.
            let address = |owner: &Owner| &self.server(owner.server).settings.address;
            let is_it = |its: &Owner| address(its) == address(&owner) && its.unseen == owner.unseen;
            if !all.iter().any(is_it) {
                all.push(owner);
            }
        }
        all
    }

    /// Tells a hub which servers send keyspace notifications now. Returns them.
    pub(crate) fn tell_event_servers(&mut self, id: HubId) -> Vec<ServerId> {
        let now = self.now;
        let pool = self.hub(id).pool;
        let owners = self.event_servers(pool);
        let servers = owners.iter().map(|owner| owner.server).collect();
        self.hub(id).follow_owners(owners, now);
        servers
    }

    /// Has a hub subscribe at all servers that send keyspace notifications. False: there is no room
    /// for a link to one of them.
    pub(crate) fn follow_event_servers(&mut self, id: HubId) -> bool {
        let servers = self.tell_event_servers(id);
        let now = self.now;
        let hub = self.hub(id);
        let home = hub.line(HOME).server;
        let others = servers.into_iter().filter(|server| *server != home);
        others.into_iter().all(|server| {
            let line = self.hub(id).line_to(server, now);
            self.link_line(LineId { hub: id, line })
        })
    }

    /// Whether sessions of a pool, or of the pool of a part, listen to keyspace notifications.
    pub(crate) fn hears_events(&self, part: usize) -> bool {
        let whole = self.pools[part].whole;
        let mut hubs = self.hubs.iter().filter(|hub| hub.pool == whole);
        hubs.any(Hub::has_roots)
    }

    /// A link for requests was greeted. Whether it waits until the notifications of its server are
    /// subscribed to.
    pub(crate) fn waits_for_branches(&mut self, key: Key) -> bool {
        let Some(link) = self.links.get(key) else {
            return false;
        };
        let (server, is_asked) = (link.key.server, link.role == Role::Shared && link.heeds);
        let hubs = 0..self.hubs.len();
        let awaiting = hubs
            .filter(|_| is_asked)
            .find(|hub| self.awaits_branches(*hub, server));
        match awaiting {
            Some(hub) => {
                let now = self.now;
                self.hubs[hub].hold_link(key, now);
                true
            }
            None => false,
        }
    }

    /// Whether a hub is about to subscribe to the notifications of a server.
    fn awaits_branches(&self, hub: usize, server: ServerId) -> bool {
        let hub = &self.hubs[hub];
        let tries = |link| {
            let link = self.links.get(link);
            link.is_some_and(|link| {
                matches!(
                    link.state,
                    State::Up | State::Connecting { .. } | State::Greeting { .. }
                )
            })
        };
        hub.has_roots() && hub.pending_link(server).is_some_and(tries)
    }

    /// Links that have waited for the notifications of their servers wait no longer: those are
    /// subscribed to, or cannot be, or a moment has passed.
    pub(crate) fn open_links(&mut self) {
        for index in 0..self.hubs.len() {
            for (key, since) in self.hubs[index].take_held_links() {
                let Some(link) = self.links.get(key) else {
                    continue;
                };
                let server = link.key.server;
                // It may have been lost since, and be greeted again.
                let is_greeted =
                    matches!(&link.state, State::Greeting { greeting, .. } if greeting.is_done());
                if is_greeted
                    && self.now.since_ms(since) < BRANCH_WAIT_MS
                    && self.awaits_branches(index, server)
                {
                    self.hubs[index].hold_link(key, since);
                } else if is_greeted && !self.waits_for_scripts(key) {
                    self.link_is_up(key);
                }
            }
        }
    }
}

/// Whether a request to subscribe names what may bring keyspace notifications.
pub(crate) fn brings_events(kind: Kind, request: &Request<'_>) -> bool {
    let mut names = request.args().skip(1);
    names.any(|name| kind.brings_events(name))
}
