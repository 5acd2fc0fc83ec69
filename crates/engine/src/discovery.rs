//! Discovery of servers: their addresses, roles and slots. It writes the routing tables.

pub(crate) mod cluster;
pub(crate) mod introductions;
mod primary_election;
pub(crate) mod readonly;
mod refresh;
mod refusals;
pub(crate) mod replicas;
mod roster;
pub(crate) mod sentinel;
pub(crate) mod server_report;
pub(crate) mod servers;
#[cfg(test)]
mod test_answers;
mod view_election;

use std::collections::HashMap;

use crate::base::handle::LinkId;
use crate::base::settings::PasswordSource;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::discovery::DiscoveryCompletion;
use crate::data_plane::link::{Link, LinkRole};
use crate::data_plane::link_deadlines::LinkCheck;
use crate::data_plane::link_loss::LinkDown;
use crate::data_plane::link_up::LinkUp;
use crate::data_plane::reachability::SILENT_MS;
use crate::data_plane::server::Server;
use crate::discovery::cluster::ClusterBelief;
use crate::discovery::readonly::ReadonlyReconnect;
use crate::discovery::replicas::Readers;
use crate::discovery::sentinel::{SentinelGroup, SurveyAnswer};
use crate::routing::pool::{Pools, ServerId};

/// The consequence of a server's answer about the topology, as far as it concerns other components.
pub(crate) enum TopologyReply {
    /// There is none.
    Settled,
    /// It was the last answer to the refresh of this pool.
    RefreshIsOver { pool: usize },
    /// A Sentinel has named the address of a primary, and perhaps other servers.
    Surveyed(SurveyAnswer),
}

/// The servers' answers about the topology.
pub(crate) struct Discovery {
    /// The belief about each Cluster, by pool; `None` for pools that are no Cluster.
    clusters: Vec<Option<Box<ClusterBelief>>>,
    /// The Sentinels of each pool that has some, and their answers.
    groups: HashMap<usize, SentinelGroup>,
    /// Servers that lost slots, by redirects among the replies that are being taken.
    pub(crate) lost_slots: Vec<ServerId>,
    /// Entries of servers that a new server has got. Facts about the old server are void.
    pub(crate) reused: Vec<ServerId>,
    /// The servers that may be read, by pool. Each pool with replicas has an entry once servers
    /// are known.
    readers: HashMap<usize, Readers>,
    /// When links were connected anew because their server takes no writes.
    readonly_reconnects: HashMap<ServerId, ReadonlyReconnect>,
}

impl Discovery {
    pub(crate) fn new(pools: &Pools, servers: &[Server]) -> Discovery {
        let groups = pools.iter().enumerate().filter_map(|(index, pool)| {
            let watched = pool.watched.as_deref()?;
            Some((index, SentinelGroup::new(watched)))
        });
        Discovery {
            clusters: pools
                .iter()
                .map(|pool| ClusterBelief::of_pool(pool, servers))
                .collect(),
            groups: groups.collect(),
            lost_slots: Vec::new(),
            reused: Vec::new(),
            readonly_reconnects: HashMap::new(),
            readers: HashMap::new(),
        }
    }

    /// Adds the pools from this index on.
    pub(crate) fn add_pools(&mut self, pools: &Pools, servers: &[Server], first: usize) {
        for (index, pool) in pools.iter().enumerate().skip(first) {
            self.clusters.push(ClusterBelief::of_pool(pool, servers));
            if let Some(watched) = pool.watched.as_deref() {
                self.groups.insert(index, SentinelGroup::new(watched));
            }
        }
    }

    /// Forgets a pool without sessions, with its subpools: nothing is asked for it any more.
    pub(crate) fn forget_pool(&mut self, plane: &mut DataPlane, pool: u16) {
        for subpool in plane.pools.subpools_of(usize::from(pool)).to_vec() {
            self.forget_subpool(plane, usize::from(subpool));
        }
    }

    fn forget_subpool(&mut self, plane: &mut DataPlane, pool: usize) {
        self.clusters[pool] = None;
        self.leave_sentinels(plane, pool, &[]);
        self.groups.remove(&pool);
        self.readers.remove(&pool);
        let is_its = |server: &ServerId| usize::from(plane.server(*server).pool) == pool;
        self.readonly_reconnects.retain(|server, _| !is_its(server));
    }

    /// Takes the current password of a source, for servers that are found from now on.
    pub(crate) fn handle_password(&mut self, source: PasswordSource, password: &str) {
        for belief in self.clusters.iter_mut().flatten() {
            if let Some(credentials) = belief.credentials_mut() {
                credentials.renew(source, password);
            }
        }
        for sentinels in self.groups.values_mut() {
            if let Some(credentials) = sentinels.credentials_mut() {
                credentials.renew(source, password);
            }
        }
    }

    /// A server has answered a question about the topology.
    pub(crate) fn settle(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        completion: DiscoveryCompletion,
        reply: &[u8],
    ) -> TopologyReply {
        match completion {
            DiscoveryCompletion::Owners { ticket, listed } => {
                let listed = listed.unwrap_or_default();
                let ended = self.take_owners(plane, link, ticket, &listed, reply);
                if let Some(pool) = ended {
                    return TopologyReply::RefreshIsOver { pool };
                }
            }
            DiscoveryCompletion::Survey {
                primary,
                mut answers,
            } => {
                answers.push(reply.to_vec());
                if let Some(answer) = self.take_survey(plane, link, primary, &answers) {
                    return TopologyReply::Surveyed(answer);
                }
            }
            DiscoveryCompletion::Look { first } => {
                self.take_look(plane, link, &first.unwrap_or_default(), reply);
            }
            DiscoveryCompletion::Role => self.take_role(plane, link, reply),
            DiscoveryCompletion::Nodes { shards } => {
                self.take_nodes(plane, link, &shards.unwrap_or_default(), reply);
            }
        }
        TopologyReply::Settled
    }

    /// A link is up: asks its server about the other servers.
    pub(crate) fn link_up(&mut self, plane: &mut DataPlane, up: &LinkUp) {
        if up.handles_redirects {
            self.request_refresh(plane, up.server);
            self.look_at(plane, up.server);
        }
        if up.role == LinkRole::Sentinel {
            self.sentinel_up(plane, up.link);
        }
    }

    /// A link is lost: looks for another owner or other readers.
    pub(crate) fn link_down(&mut self, plane: &mut DataPlane, down: &LinkDown) {
        if !down.may_be_replaced {
            return;
        }
        let state = plane.server(down.server);
        let (pool, is_owner) = (usize::from(state.pool), state.replica_of.is_none());
        if is_owner {
            self.request_survey(plane, down.server);
            // A server that refuses a handshake is alive, and refuses every attempt.
            let is_lost = down.was_up || down.handshake_error.is_none();
            if is_lost || !plane.knows_all(pool) {
                self.request_refresh_after_loss(plane, down.server);
            }
        } else if down.was_up {
            self.request_refresh(plane, down.server);
        }
        self.forget_look(plane, down.link);
        self.rebalance_replicas(plane, pool);
    }

    /// A lost link has its new state, and stays. The count of failures tells now whether an owner
    /// is lost.
    pub(crate) fn link_stays_down(&mut self, plane: &mut DataPlane, down: &LinkDown) {
        if down.may_be_replaced {
            let pool = usize::from(plane.server(down.server).pool);
            self.rebalance_replicas(plane, pool);
        }
    }

    /// Checks the connection of a link in a tick, see [`DataPlane::check_link`]. An attempt also
    /// ends if every Sentinel refuses to name the address of its server.
    pub(crate) fn check_link(&self, plane: &mut DataPlane, id: LinkId) -> LinkCheck {
        let server = plane.links.get(id).map(|link| link.kind.server);
        if plane.is_connecting(id)
            && let Some(reason) = server.and_then(|server| self.why_refused(plane, server))
        {
            plane.lose_link(id, &reason);
            return LinkCheck::Ends;
        }
        plane.check_link(id, |plane, server| self.why_unknown(plane, server))
    }

    /// An owner that owes replies and is silent may be replaced soon: asks for a refresh.
    pub(crate) fn tick_silent_owner(&mut self, plane: &mut DataPlane, id: LinkId) {
        let is_silent = |link: &&Link| {
            plane.server(link.kind.server).replica_of.is_none() && plane.is_silent(link, SILENT_MS)
        };
        if let Some(link) = plane.links.get(id).filter(is_silent) {
            let server = link.kind.server;
            self.request_refresh_after_loss(plane, server);
        }
    }
}
