//! The servers of a failover: which of them fails, who takes its place, and how one knows.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use respool_protocol::value::Value;

use super::clients::Key;
use super::{By, Kind, Settings};
use crate::topologies::{
    Cluster, ClusterSettings, Connection, Node, Sentinels, SentinelsSettings, Shards, cluster_url,
    sentinel_url, sharded_url,
};

/// Servers among which keys are divided: groups of one that has the keys and those that may take its place. Group 0 is the one
/// whose server fails.
#[derive(Debug)]
pub enum Scene {
    /// Three primaries with a replica each.
    Cluster(Cluster),
    /// One primary with one replica.
    Sentinel(Sentinels),
    /// Three that stand alone.
    Sharded(Shards),
}

/// What Sentinels call what they watch.
pub const WATCHED: &str = "m0";
/// Primaries, or plain servers.
const GROUPS: usize = 3;
/// Keys that are tried to find one of group 0.
const PROBE_KEYS: usize = 64;
const PARTIAL: [&str; 2] = ["--cluster-require-full-coverage", "no"];
/// Within which a killed process is gone.
const DEATH: Duration = Duration::from_secs(5);
const ASK: Duration = Duration::from_secs(10);

/// How respool is told of such servers; of Sentinels, by the name of what they watch.
pub fn url(kind: Kind, addresses: &[SocketAddr]) -> String {
    match kind {
        Kind::Cluster => cluster_url(addresses),
        Kind::Sentinel => sentinel_url(addresses, WATCHED),
        Kind::Sharded => sharded_url(addresses),
    }
}

impl Scene {
    /// Starts the servers and waits until they are what they should be.
    ///
    /// # Errors
    /// When they do not.
    pub fn start(settings: &Settings, binary: &Path) -> io::Result<Scene> {
        Ok(match settings.kind {
            Kind::Cluster => Scene::Cluster(Cluster::start(
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
            Kind::Sentinel => {
                let settings = SentinelsSettings {
                    watched: 1,
                    down_after: settings.silence,
                    ..SentinelsSettings::default()
                };
                Scene::Sentinel(Sentinels::start(binary, &settings)?)
            }
            Kind::Sharded => Scene::Sharded(Shards::start::<&str>(binary, GROUPS, &[])?),
        })
    }

    /// How respool is told of it.
    pub fn url(&self) -> String {
        let kind = match self {
            Scene::Cluster(_) => Kind::Cluster,
            Scene::Sentinel(_) => Kind::Sentinel,
            Scene::Sharded(_) => Kind::Sharded,
        };
        url(kind, &self.addresses())
    }

    /// Where those listen of which a proxy is told.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        match self {
            Scene::Cluster(cluster) => cluster.addresses(),
            Scene::Sentinel(sentinels) => sentinels.addresses(),
            Scene::Sharded(shards) => shards.addresses(),
        }
    }

    /// How many groups there are.
    pub fn groups(&self) -> usize {
        match self {
            Scene::Cluster(_) | Scene::Sharded(_) => GROUPS,
            Scene::Sentinel(_) => 1,
        }
    }

    /// Who has the keys of a group now.
    ///
    /// # Errors
    /// When nobody says.
    pub fn holder(&self, group: usize) -> io::Result<&Node> {
        Ok(match self {
            Scene::Cluster(cluster) => cluster.node(cluster.owner(*cluster.share(group).start())?),
            Scene::Sentinel(sentinels) => sentinels.watched(0).server(sentinels.primary(0)?),
            Scene::Sharded(shards) => shards.node(group),
        })
    }

    /// The group whose holder has the key, before anything has failed.
    ///
    /// # Errors
    /// When none has it.
    pub fn group_of(&self, key: &str) -> io::Result<usize> {
        for group in 0..self.groups() {
            // A node of a Cluster that is not asked for its own says so.
            if self.first(group).ask(&["EXISTS", key])? == Value::Integer(1) {
                return Ok(group);
            }
        }
        Err(io::Error::other("no server has it"))
    }

    /// A key of group 0 that nobody else uses.
    ///
    /// # Errors
    /// When there is none.
    pub fn own_key(&self, proxy: SocketAddr) -> io::Result<String> {
        let mut connection = Connection::open(proxy, ASK)?;
        for number in 0..PROBE_KEYS {
            let key = format!("failover:probe:{number}");
            connection.order(&["SET", &key, "0"])?;
            if self.group_of(&key)? == 0 {
                return Ok(key);
            }
        }
        Err(io::Error::other("none is the failing server's"))
    }

    /// Returns when the replica of group 0 has all that its primary has; `key` is one of its keys.
    ///
    /// # Errors
    /// When it has not in time.
    pub fn wait_for_replicas(&self, key: &str) -> io::Result<()> {
        if let Scene::Sharded(_) = self {
            return Ok(());
        }
        // One connection: WAIT is about what was written on its own, and that is behind all before it.
        let mut connection = self.first(0).connect()?;
        connection.order(&["SET", key, "0"])?;
        match connection.order(&["WAIT", "1", "9000"])? {
            Value::Integer(1..) => Ok(()),
            other => Err(io::Error::other(format!("WAIT gives {other:?}"))),
        }
    }

    /// Has the server of group 0 fail, or another one take over from it. Killed, it is gone when this returns.
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
                Err(io::Error::other("nobody takes over"))
            }
        }
    }

    /// Who may take the place of the server of group 0.
    pub fn heirs(&self) -> Vec<SocketAddr> {
        match self {
            // Nodes stand in the order of Cluster::start: the primaries, then a replica of each.
            Scene::Cluster(cluster) => vec![cluster.node(GROUPS).address()],
            Scene::Sentinel(sentinels) => {
                let others = sentinels.watched(0).servers()[1..].iter();
                others.map(|server| server.address()).collect()
            }
            Scene::Sharded(shards) => vec![shards.node(0).address()],
        }
    }

    /// Who names the primary: nobody but Sentinels do.
    pub fn witnesses(&self) -> Vec<SocketAddr> {
        match self {
            Scene::Sentinel(sentinels) => sentinels.addresses(),
            Scene::Cluster(_) | Scene::Sharded(_) => Vec::new(),
        }
    }

    /// Starts a plain server again that was killed, where nobody takes its place, and gives it what was read there: it comes
    /// back with nothing.
    ///
    /// # Errors
    /// When it does not start.
    pub fn bring_back<'a>(&mut self, read: impl Iterator<Item = &'a Key>) -> io::Result<()> {
        let Scene::Sharded(shards) = self else {
            return Ok(());
        };
        shards.node_mut(0).restart()?;
        let mut connection = shards.node(0).connect()?;
        for key in read {
            connection.order(&["SET", &key.name, &key.name])?;
        }
        Ok(())
    }

    /// Returns when another server has taken the place and all are agreed on it.
    ///
    /// # Errors
    /// When it does not come to that in time.
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

    /// Who has the keys of a group at the beginning.
    fn first(&self, group: usize) -> &Node {
        match self {
            Scene::Cluster(cluster) => cluster.node(group),
            Scene::Sentinel(sentinels) => sentinels.watched(0).server(0),
            Scene::Sharded(shards) => shards.node(group),
        }
    }
}
