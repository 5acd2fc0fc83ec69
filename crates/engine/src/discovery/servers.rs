//! Servers that come and go: their entries, and the addresses at which nodes name them.

use std::collections::HashSet;

use respool_protocol::cluster::Endpoint;
use respool_protocol::encode;

use crate::base::handle::LinkId;
use crate::base::limits::SERVERS_MAX;
use crate::base::settings::{Address, ServerSettings};
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::discovery::DiscoveryCompletion;
use crate::data_plane::server::Server;
use crate::discovery::Discovery;
use crate::discovery::cluster::ClusterBelief;
use crate::routing::pool::ServerId;

/// The servers to which other components still refer. Their entries are not used for others.
#[derive(Default)]
pub(crate) struct ServersInUse {
    /// Deferred requests may refer to any server.
    pub(crate) all: bool,
    /// The servers that hubs need.
    pub(crate) some: HashSet<ServerId>,
}

impl Discovery {
    /// The server at an address that a redirect has named. `None`: no topology answer has named the
    /// address. Then respool asks the node `by` that sent the redirect, and sends nothing to that
    /// address meanwhile. Nodes know the address as `named`. The address map has the address at
    /// which the server is reached.
    pub(crate) fn known_server_at(
        &mut self,
        plane: &mut DataPlane,
        by: ServerId,
        named: Endpoint,
        ask: bool,
        in_use: &ServersInUse,
    ) -> Option<ServerId> {
        let pool = usize::from(plane.server(by).pool);
        let now = plane.now;
        let at = plane.pools[pool].address_map.apply(&named);
        let seeds = self.clusters[pool].as_ref()?.seeds.as_slice();
        // The configuration names the seeds, whether the nodes name them or not.
        let is_known = |(index, server): &(ServerId, &Server)| {
            usize::from(server.pool) == pool
                && server.replica_of.is_none()
                && (!server.gone || seeds.contains(index))
                && is_at(&server.settings.address, &at)
        };
        let mut servers = (0..).map(ServerId).zip(&plane.servers);
        if let Some((known, _)) = servers.find(is_known) {
            plane.servers[usize::from(known.0)].gone = false;
            return Some(known);
        }
        let (belief, slots) = self.cluster_of(&mut plane.pools, pool)?;
        // The nodes refuse to list all nodes, so the redirect alone decides. The redirect of a
        // request that runs code was proven before.
        let is_sole_word = belief.introductions.is_refused(now) && (ask || !slots.is_known);
        if is_sole_word || belief.introductions.is_named(&named, now) {
            return self.server_at(plane, pool, &at, in_use);
        }
        belief.denied_by = Some(by);
        if belief.introductions.seek(named, now) {
            self.ask_for_nodes(plane, by);
        }
        None
    }

    fn ask_for_nodes(&mut self, plane: &mut DataPlane, server: ServerId) {
        let Some(link) = self.link_that_answers(plane, server) else {
            return;
        };
        let mut bytes = Vec::new();
        for request in [["CLUSTER", "SHARDS"], ["CLUSTER", "NODES"]] {
            encode::request(&mut bytes, &request);
        }
        plane.put_ours(
            link,
            &bytes,
            Completion::Discovery(DiscoveryCompletion::Nodes { shards: None }),
        );
    }

    /// A node has listed the nodes of its Cluster.
    pub(crate) fn take_nodes(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        shards: &[u8],
        nodes: &[u8],
    ) {
        let Some(server) = plane.links.get(link).map(|link| link.kind.server) else {
            return;
        };
        let (now, host) = (plane.now, self.host_of(plane, server));
        let pool = usize::from(plane.server(server).pool);
        if let Some(belief) = &mut self.clusters[pool] {
            belief.introductions.take(shards, nodes, &host, now);
        }
        plane.wake_deferred();
    }

    /// The server of a pool at this address; a new server if there is none. `None` at
    /// [`SERVERS_MAX`]. Pass only addresses that a node has given: respool sends a new server the
    /// credentials of the pool.
    pub(super) fn server_at(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        at: &Endpoint,
        in_use: &ServersInUse,
    ) -> Option<ServerId> {
        let address = Address::Tcp {
            host: at.host.clone(),
            port: at.port,
        };
        let is_it = |server: &Server| {
            usize::from(server.pool) == pool
                && server.replica_of.is_none()
                && server.settings.address == address
        };
        if let Some(index) = plane.servers.iter().position(is_it) {
            // The entry is in use again, so no other server gets it.
            plane.servers[index].gone = false;
            return Some(ServerId(index as u16));
        }
        let settings = ServerSettings {
            address,
            ..self.clusters[pool].as_ref()?.template.clone()
        };
        let server = Server::new(pool as u16, &settings);
        self.add_server(plane, server, in_use)
    }

    /// Adds a server. `None` at [`SERVERS_MAX`]. If it gets the entry of another server, the entry
    /// is listed in [`Discovery::reused`].
    pub(crate) fn add_server(
        &mut self,
        plane: &mut DataPlane,
        server: Server,
        in_use: &ServersInUse,
    ) -> Option<ServerId> {
        if let Some(index) = self.free_server(plane, in_use) {
            let entry = &mut plane.servers[usize::from(index.0)];
            let reuses = entry.reuses.wrapping_add(1);
            *entry = Server { reuses, ..server };
            self.reused.push(index);
            self.readonly_reconnects.remove(&index);
            for belief in self.clusters.iter_mut().flatten() {
                belief.foreign_nodes.remove(&index);
                belief.behind.remove(&index);
            }
            return Some(index);
        }
        if plane.servers.len() >= SERVERS_MAX {
            return None;
        }
        plane.servers.push(server);
        Some(ServerId((plane.servers.len() - 1) as u16))
    }

    /// Whether entries of servers are reused: there are many.
    pub(crate) fn reuses_servers(&self, plane: &DataPlane) -> bool {
        const MANY: usize = 256;
        plane.servers.len() >= MANY
    }

    /// The entry of a server that is gone and that nothing refers to.
    fn free_server(&self, plane: &DataPlane, in_use: &ServersInUse) -> Option<ServerId> {
        if !self.reuses_servers(plane) || in_use.all {
            return None;
        }
        let free = |id: &ServerId| {
            plane.server(*id).gone
                && !in_use.some.contains(id)
                && plane.links.iter().all(|(_, link)| link.kind.server != *id)
                && plane
                    .sessions
                    .iter()
                    .all(|(_, session)| session.server != *id)
                && !self.may_read_at(*id)
                && plane
                    .pools
                    .iter()
                    .zip(&self.clusters)
                    .all(|(pool, belief)| {
                        let owns = pool.cluster().is_some_and(|slots| slots.owns_slots(*id));
                        let names = |belief: &ClusterBelief| {
                            belief.seeds.contains(id) || belief.reported.contains(id)
                        };
                        !owns && !belief.as_deref().is_some_and(names)
                    })
        };
        (0..plane.servers.len() as u16).map(ServerId).find(free)
    }

    /// Makes sure that a server has a link, or an attempt to connect one.
    pub(crate) fn reach(&mut self, plane: &mut DataPlane, server: ServerId) {
        plane.servers[usize::from(server.0)].gone = false;
        let kind = plane.default_kind(server);
        let known = plane.link_index.shared(&kind).is_some();
        if let Some(link) = plane.shared_link(kind).filter(|_| !known) {
            plane.connect(link);
        }
    }

    /// A server has left the topology. Its sessions have to leave its links.
    pub(super) fn retire(&mut self, plane: &mut DataPlane, server: ServerId) {
        let state = &mut plane.servers[usize::from(server.0)];
        state.gone = true;
        let (pool, label) = (usize::from(state.pool), state.label.clone());
        self.report_topology(plane, pool, format!("no node speaks of {label} any more"));
    }

    pub(super) fn host_of(&self, plane: &DataPlane, server: ServerId) -> String {
        match &plane.server(server).settings.address {
            Address::Tcp { host, .. } => host.clone(),
            Address::Unix(_) => String::from("localhost"),
        }
    }
}

pub(super) fn is_at(address: &Address, at: &Endpoint) -> bool {
    matches!(address, Address::Tcp { host, port } if *host == at.host && *port == at.port)
}
