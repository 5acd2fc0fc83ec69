//! Topologies in which one server fails. They know the server that fails and its successor, and
//! tell a test when the successor has taken over.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::client::{Reply, RespClient};
use serde::{Deserialize, Serialize};

use crate::topologies::{
    ClusterSettings, Node, Sentinels, SentinelsSettings, Shards, TestCluster, cluster_url,
    sentinel_url, sharded_url,
};

/// A topology of several servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TopologyKind {
    /// A Cluster of three primaries with a replica each.
    Cluster,
    /// A primary with a replica that three Sentinels watch.
    Sentinel,
    /// Three plain servers. No server replaces a failed one, but it may come back.
    Sharded,
}

impl TopologyKind {
    /// All kinds.
    pub const ALL: [TopologyKind; 3] = [
        TopologyKind::Cluster,
        TopologyKind::Sentinel,
        TopologyKind::Sharded,
    ];

    /// A word for options and tables.
    pub fn name(self) -> &'static str {
        match self {
            TopologyKind::Cluster => "cluster",
            TopologyKind::Sentinel => "sentinel",
            TopologyKind::Sharded => "sharded",
        }
    }
}

/// How the server fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// SIGKILL.
    Kill,
    /// SIGSTOP: its connections stay open, and it answers none of them.
    Freeze,
    /// CLUSTER FAILOVER or SENTINEL FAILOVER, while it runs.
    Command,
}

impl By {
    /// All ways.
    pub const ALL: [By; 3] = [By::Kill, By::Freeze, By::Command];

    /// A word for options and tables.
    pub fn name(self) -> &'static str {
        match self {
            By::Kill => "kill",
            By::Freeze => "freeze",
            By::Command => "command",
        }
    }
}

/// The settings of a [`Scene`].
#[derive(Clone, Copy, Debug)]
pub struct SceneSettings {
    /// The topology.
    pub kind: TopologyKind,
    /// Whether a Cluster serves its other slots while those of the failed primary have no owner.
    pub is_partial: bool,
    /// The silence after which other nodes or Sentinels take a server for failed.
    pub silence: Duration,
}

/// Groups of servers, each with the owner of its keys and the replicas that may replace it. The
/// owner of group 0 fails.
#[derive(Debug)]
pub enum Scene {
    /// Three primaries with a replica each.
    Cluster(TestCluster),
    /// One primary with one replica.
    Sentinel(Sentinels),
    /// Three independent servers.
    Sharded(Shards),
}

/// The name under which Sentinels watch the primary.
pub const WATCHED: &str = "m0";
/// Primaries, or plain servers.
const GROUPS: usize = 3;
/// Keys to try until one belongs to group 0.
const PROBE_KEYS: usize = 64;
const PARTIAL: [&str; 2] = ["--cluster-require-full-coverage", "no"];
/// The time in which a killed process is gone.
const DEATH: Duration = Duration::from_secs(5);
const ASK: Duration = Duration::from_secs(10);

/// respool's URL for these servers. For Sentinels, with the name of the primary.
pub fn url(kind: TopologyKind, addresses: &[SocketAddr]) -> String {
    match kind {
        TopologyKind::Cluster => cluster_url(addresses),
        TopologyKind::Sentinel => sentinel_url(addresses, WATCHED),
        TopologyKind::Sharded => sharded_url(addresses),
    }
}

impl Scene {
    /// Starts the servers and waits until they have formed the topology.
    ///
    /// # Errors
    /// When they do not.
    pub fn start(settings: &SceneSettings, binary: &Path) -> io::Result<Scene> {
        Ok(match settings.kind {
            TopologyKind::Cluster => Scene::Cluster(TestCluster::start(
                binary,
                ClusterSettings {
                    primaries: GROUPS,
                    node_timeout: settings.silence,
                    args: match settings.is_partial {
                        true => PARTIAL.map(str::to_owned).to_vec(),
                        false => Vec::new(),
                    },
                    ..ClusterSettings::default()
                },
            )?),
            TopologyKind::Sentinel => {
                let settings = SentinelsSettings {
                    watched: 1,
                    down_after: settings.silence,
                    ..SentinelsSettings::default()
                };
                Scene::Sentinel(Sentinels::start(binary, &settings)?)
            }
            TopologyKind::Sharded => Scene::Sharded(Shards::start::<&str>(binary, GROUPS, &[])?),
        })
    }

    /// respool's URL for it.
    pub fn url(&self) -> String {
        let kind = match self {
            Scene::Cluster(_) => TopologyKind::Cluster,
            Scene::Sentinel(_) => TopologyKind::Sentinel,
            Scene::Sharded(_) => TopologyKind::Sharded,
        };
        url(kind, &self.addresses())
    }

    /// The addresses that a proxy is given.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        match self {
            Scene::Cluster(cluster) => cluster.addresses(),
            Scene::Sentinel(sentinels) => sentinels.addresses(),
            Scene::Sharded(shards) => shards.addresses(),
        }
    }

    /// The number of groups.
    pub fn groups(&self) -> usize {
        match self {
            Scene::Cluster(_) | Scene::Sharded(_) => GROUPS,
            Scene::Sentinel(_) => 1,
        }
    }

    /// The server that has the keys of a group now.
    ///
    /// # Errors
    /// When no server says so.
    pub fn holder(&self, group: usize) -> io::Result<&Node> {
        Ok(match self {
            Scene::Cluster(cluster) => cluster.node(cluster.owner(*cluster.share(group).start())?),
            Scene::Sentinel(sentinels) => sentinels.watched(0).server(sentinels.primary(0)?),
            Scene::Sharded(shards) => shards.node(group),
        })
    }

    /// The group that has the key, before a server has failed.
    ///
    /// # Errors
    /// When no group has it.
    pub fn group_of(&self, key: &str) -> io::Result<usize> {
        for group in 0..self.groups() {
            // A Cluster node answers with an error for keys that are not its own.
            if self.first(group).ask(&["EXISTS", key])? == Reply::Integer(1) {
                return Ok(group);
            }
        }
        Err(io::Error::other("no server has it"))
    }

    /// A key of group 0 that no other test uses.
    ///
    /// # Errors
    /// When no key was found.
    pub fn own_key(&self, proxy: SocketAddr) -> io::Result<String> {
        let mut connection = RespClient::open(proxy, ASK)?;
        for number in 0..PROBE_KEYS {
            let key = format!("failover:probe:{number}");
            connection.ask_ok(&["SET", &key, "0"])?;
            if self.group_of(&key)? == 0 {
                return Ok(key);
            }
        }
        Err(io::Error::other("none is the failing server's"))
    }

    /// Returns when the replica of group 0 has all data of its primary; `key` is one of its keys.
    ///
    /// # Errors
    /// When that takes too long.
    pub fn wait_for_replicas(&self, key: &str) -> io::Result<()> {
        if let Scene::Sharded(_) = self {
            return Ok(());
        }
        // WAIT is about the writes of its own connection, and those follow all earlier ones.
        let mut connection = self.first(0).connect()?;
        connection.ask_ok(&["SET", key, "0"])?;
        match connection.ask_ok(&["WAIT", "1", "9000"])? {
            Reply::Integer(1..) => Ok(()),
            other => Err(io::Error::other(format!("WAIT gives {other:?}"))),
        }
    }

    /// Makes the owner of group 0 fail, or another server take over from it. A killed server is
    /// gone when this returns.
    ///
    /// # Errors
    /// When a command is refused.
    pub fn fail(&self, by: By) -> io::Result<()> {
        let failing = self.first(0);
        match (self, by) {
            (_, By::Kill) => {
                failing.kill9();
                let deadline = Instant::now() + DEATH;
                while failing.is_running() && Instant::now() < deadline {
                    std::thread::yield_now();
                }
                match failing.is_running() {
                    true => Err(io::Error::other("it was killed and is still there")),
                    false => Ok(()),
                }
            }
            (Scene::Cluster(_) | Scene::Sentinel(_), By::Freeze) => {
                failing.stop();
                Ok(())
            }
            (Scene::Cluster(cluster), By::Command) => cluster.begin_failover(GROUPS),
            (Scene::Sentinel(sentinels), By::Command) => sentinels.begin_failover(0, 0),
            (Scene::Sharded(_), By::Freeze | By::Command) => {
                Err(io::Error::other("no server takes over"))
            }
        }
    }

    /// The servers that may replace the owner of group 0.
    pub fn candidates(&self) -> Vec<SocketAddr> {
        match self {
            // Nodes are in the order of Cluster::start: the primaries, then one replica of each.
            Scene::Cluster(cluster) => vec![cluster.node(GROUPS).address()],
            Scene::Sentinel(sentinels) => {
                let others = sentinels.watched(0).servers()[1..].iter();
                others.map(|server| server.address()).collect()
            }
            Scene::Sharded(shards) => vec![shards.node(0).address()],
        }
    }

    /// The servers that name the primary: only Sentinels do.
    pub fn witnesses(&self) -> Vec<SocketAddr> {
        match self {
            Scene::Sentinel(sentinels) => sentinels.addresses(),
            Scene::Cluster(_) | Scene::Sharded(_) => Vec::new(),
        }
    }

    /// Restarts a killed plain server, and writes the keys that clients read there: it comes back
    /// empty.
    ///
    /// # Errors
    /// When it does not start.
    pub fn bring_back<'a>(&mut self, read: impl Iterator<Item = &'a str>) -> io::Result<()> {
        let Scene::Sharded(shards) = self else {
            return Ok(());
        };
        shards.node_mut(0).restart()?;
        let mut connection = shards.node(0).connect()?;
        for key in read {
            connection.ask_ok(&["SET", key, key])?;
        }
        Ok(())
    }

    /// Returns when another server has taken over and all servers agree on that.
    ///
    /// # Errors
    /// When that takes too long.
    pub fn rest(&self, limit: Duration) -> io::Result<()> {
        match self {
            Scene::Cluster(cluster) => {
                let slot = *cluster.share(0).start();
                cluster.wait_for_other_owner(slot, 0, limit).map(drop)
            }
            Scene::Sentinel(sentinels) => sentinels.wait_for_other_primary(0, 0, limit).map(drop),
            Scene::Sharded(_) => Ok(()),
        }
    }

    /// The first owner of the keys of a group.
    fn first(&self, group: usize) -> &Node {
        match self {
            Scene::Cluster(cluster) => cluster.node(group),
            Scene::Sentinel(sentinels) => sentinels.watched(0).server(0),
            Scene::Sharded(shards) => shards.node(group),
        }
    }
}
