//! Keyspace notifications: which servers send them, and when requests may go to a new server.
//!
//! The hub knows at which servers it has to listen ([`Hub::follow_owners`]). This module finds
//! these servers and connects links to them.
//!
//! Two links connect to a server that becomes an owner: one for requests, and the hub's. The first
//! waits a moment for the second. Without that, the notifications of the first requests would be
//! lost.

use std::sync::Arc;

use crate::base::handle::LinkId;
use crate::base::limits::BRANCH_WAIT_MS;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::pubsub::ChannelKind;
use crate::data_plane::ingress::Request;
use crate::data_plane::link::{HubId, LineId};
use crate::data_plane::link::{LinkRole, LinkState};
use crate::pubsub::Pubsub;
use crate::pubsub::hub::{HOME, Hub, KeyOwner};
use crate::routing::pool::{Pool, ServerId};

impl Pubsub {
    /// Takes the links that have waited for the notifications of their servers. The wait ends when
    /// the hub has subscribed, cannot subscribe, or a moment has passed.
    pub(crate) fn take_links_to_open(&mut self, plane: &DataPlane) -> Vec<LinkId> {
        let mut open = Vec::new();
        for index in 0..self.hubs.len() {
            for (id, since) in self.hubs[index].take_held_links() {
                let Some(link) = plane.links.get(id) else {
                    continue;
                };
                let server = link.kind.server;
                // The link may have been lost since, and be in a new handshake.
                let is_handshake_done = matches!(&link.state, LinkState::Handshaking { handshake, .. } if handshake.is_done());
                if is_handshake_done
                    && plane.now.since_ms(since) < BRANCH_WAIT_MS
                    && self.awaits_branches(plane, index, server)
                {
                    self.hubs[index].hold_link(id, since);
                } else if is_handshake_done {
                    open.push(id);
                }
            }
        }
        open
    }
}

/// Whether a subscribe request names a channel or pattern that may bring keyspace notifications.
pub(crate) fn brings_events(kind: ChannelKind, request: &Request<'_>) -> bool {
    let mut names = request.args().skip(1);
    names.any(|name| kind.brings_events(name))
}

impl Pubsub {
    /// The servers that send the keyspace notifications of a pool. A Cluster has none until its
    /// topology is known.
    fn event_servers(&self, plane: &DataPlane, pool: u16) -> Vec<KeyOwner> {
        let subpools = plane.pools.subpools_of(usize::from(pool)).iter();
        let subpools = subpools.map(|subpool| &plane.pools[usize::from(*subpool)]);
        let known = subpools.filter(|subpool| subpool.cluster().is_none_or(|slots| slots.is_known));
        let owners = |subpool: &Pool| -> Vec<KeyOwner> {
            let removed_prefix: Arc<[u8]> = subpool.removed_prefix[..].into();
            let owner = |server: &ServerId| KeyOwner {
                server: *server,
                removed_prefix: removed_prefix.clone(),
            };
            subpool.servers().iter().map(owner).collect()
        };
        let mut all: Vec<KeyOwner> = Vec::new();
        for owner in known.flat_map(owners) {
            // Several subpools may have a server in common.
            let address = |owner: &KeyOwner| &plane.server(owner.server).settings.address;
            let is_same = |other: &KeyOwner| {
                address(other) == address(&owner) && other.removed_prefix == owner.removed_prefix
            };
            if !all.iter().any(is_same) {
                all.push(owner);
            }
        }
        all
    }

    /// Tells a hub which servers send keyspace notifications now. Returns them.
    pub(crate) fn update_event_servers(
        &mut self,
        plane: &mut DataPlane,
        id: HubId,
    ) -> Vec<ServerId> {
        let now = plane.now;
        let pool = self.hub(id).pool;
        let owners = self.event_servers(plane, pool);
        let servers = owners.iter().map(|owner| owner.server).collect();
        self.hub(id).follow_owners(owners, now);
        servers
    }

    /// Whether sessions listen to the keyspace notifications of a pool, or of the pool of a
    /// subpool.
    pub(crate) fn hears_events(&self, plane: &DataPlane, subpool: usize) -> bool {
        let parent = plane.pools[subpool].parent;
        let mut hubs = self.hubs.iter().filter(|hub| hub.pool == parent);
        hubs.any(Hub::has_roots)
    }

    /// Handles the end of a link's handshake. Returns whether the link waits until the hub has
    /// subscribed to the notifications of its server.
    pub(crate) fn hold_for_branches(&mut self, plane: &mut DataPlane, id: LinkId) -> bool {
        let Some(link) = plane.links.get(id) else {
            return false;
        };
        let (server, is_asked) = (
            link.kind.server,
            link.role == LinkRole::Shared && link.handles_redirects,
        );
        let hubs = 0..self.hubs.len();
        let awaiting = hubs
            .filter(|_| is_asked)
            .find(|hub| self.awaits_branches(plane, *hub, server));
        match awaiting {
            Some(hub) => {
                let now = plane.now;
                self.hubs[hub].hold_link(id, now);
                true
            }
            None => false,
        }
    }

    /// Whether a hub is about to subscribe to the notifications of a server.
    fn awaits_branches(&self, plane: &DataPlane, hub: usize, server: ServerId) -> bool {
        let hub = &self.hubs[hub];
        let tries = |link| {
            let link = plane.links.get(link);
            link.is_some_and(|link| {
                matches!(
                    link.state,
                    LinkState::Up | LinkState::Connecting { .. } | LinkState::Handshaking { .. }
                )
            })
        };
        hub.has_roots() && hub.pending_link(server).is_some_and(tries)
    }
}

impl Pubsub {
    /// Subscribes a hub at all servers that send keyspace notifications. `false`: there is no room
    /// for a link to one of them.
    pub(crate) fn follow_event_servers(&mut self, plane: &mut DataPlane, id: HubId) -> bool {
        let servers = self.update_event_servers(plane, id);
        let now = plane.now;
        let hub = self.hub(id);
        let home = hub.line(HOME).server;
        let others = servers.into_iter().filter(|server| *server != home);
        others.into_iter().all(|server| {
            let line = self.hub(id).line_to(server, now);
            self.link_line(plane, LineId { hub: id, line })
        })
    }
}
