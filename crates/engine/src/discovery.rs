//! Discovery of servers: their addresses, roles and slots. It writes the routing tables.

pub(crate) mod cluster;
pub(crate) mod introductions;
pub(crate) mod next_server;
pub(crate) mod readonly;
pub(crate) mod replicas;
pub(crate) mod sentinel;
pub(crate) mod server_report;

use std::collections::HashMap;

use crate::base::handle::LinkId;
use crate::base::settings::PasswordSource;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::discovery::DiscoveryCompletion;
use crate::data_plane::link::LinkRole;
use crate::data_plane::link_up::LinkUp;
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
    /// What is believed about the Clusters, by pool; `None` for pools that are no Cluster.
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
    renewals: HashMap<ServerId, ReadonlyReconnect>,
}

impl Discovery {
    pub(crate) fn new(pools: &Pools, servers: &[Server]) -> Discovery {
        let groups = pools.iter().enumerate().filter_map(|(index, pool)| {
            let watched = pool.watched.as_deref()?;
            Some((index, SentinelGroup::new(watched)))
        });
        Discovery {
            clusters: ClusterBelief::of_pools(pools, servers),
            groups: groups.collect(),
            lost_slots: Vec::new(),
            reused: Vec::new(),
            renewals: HashMap::new(),
            readers: HashMap::new(),
        }
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
        asked: DiscoveryCompletion,
        reply: &[u8],
    ) -> TopologyReply {
        match asked {
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
        if up.heeds {
            self.request_refresh(plane, up.server);
            self.look_at(plane, up.server);
        }
        if up.role == LinkRole::Sentinel {
            self.sentinel_up(plane, up.link);
        }
    }
}
