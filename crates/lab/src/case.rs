//! Cases: a workload against a target.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::figure;

/// The commands of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verb {
    /// `SET key value`
    Set,
    /// `GET key` of an existing key.
    Get,
    /// A transaction as one request: MULTI, SET key value, GET key, EXEC.
    Multi,
    /// `MGET key ...` of so many different existing keys.
    Mget(u32),
    /// `MSET key value ...` with so many different keys.
    Mset(u32),
}

/// The work of the generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Workload {
    /// The command.
    pub verb: Verb,
    /// Requests that a connection sends at once.
    pub pipeline: usize,
    /// The number of connections.
    pub connections: usize,
    /// Requests a second that are due in open loop; `None`: the setting of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
}

/// The process that the generator connects to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum LoadTarget {
    /// The server itself.
    Direct,
    /// respool before the server, with so many workers.
    Respool {
        /// Workers.
        threads: u16,
    },
    /// respool before the server, with so many workers and other options.
    Variant {
        /// Its name in tables.
        name: String,
        /// Workers.
        threads: u16,
        /// Options of its command line.
        options: Vec<String>,
    },
    /// Another build of respool before the server: see [`crate::against`].
    Base {
        /// Workers.
        threads: u16,
        /// Its binary.
        binary: PathBuf,
    },
    /// twemproxy (`nutcracker`) before the server.
    Twemproxy,
    /// Envoy's Redis proxy before the server, with one worker.
    Envoy,
    /// A proxy before a pool of several servers: see [`crate::cluster`].
    Pool {
        /// The proxy, and the kind of pool.
        way: Way,
        /// Servers of the pool.
        servers: u16,
        /// Workers of respool; Envoy has one.
        threads: u16,
    },
    /// A process that clients reach over TLS: see [`crate::tls`].
    Tls {
        /// The process.
        by: TlsBy,
    },
    /// A proxy before the server that was not started by the lab.
    Other {
        /// Its name in tables.
        name: String,
        /// HOST:PORT
        address: String,
        /// The process whose CPU counts.
        pid: u32,
    },
    /// The lab's echo server, which only receives and sends: see [`crate::floor`].
    Floor,
}

/// The process that ends the TLS of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsBy {
    /// The server itself.
    Server,
    /// respool with one worker before the server.
    Respool,
    /// HAProxy with one thread before the server.
    Haproxy,
    /// stunnel before the server.
    Stunnel,
}

/// How requests reach several servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// respool before plain servers among which it shards the keys.
    Sharded,
    /// respool before a Cluster.
    Cluster,
    /// Envoy's Redis proxy before the same Cluster.
    Envoy,
}

/// The servers behind a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// The one server of the run.
    Server,
    /// So many independent servers.
    Shards(u16),
    /// A Cluster of so many primaries.
    Cluster(u16),
}

/// One row of a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Case {
    /// The load ...
    pub workload: Workload,
    /// ... and its target.
    pub target: LoadTarget,
}

impl Verb {
    /// SET and GET, in the order of the original tables.
    pub const ALL: [Verb; 2] = [Verb::Set, Verb::Get];

    /// Keys of one request.
    pub fn keys(self) -> u32 {
        match self {
            Verb::Mget(keys) | Verb::Mset(keys) => keys,
            Verb::Set | Verb::Get | Verb::Multi => 1,
        }
    }

    /// The name of its command.
    pub fn command(self) -> &'static str {
        match self {
            Verb::Set => "SET",
            Verb::Get => "GET",
            Verb::Multi => "MULTI",
            Verb::Mget(_) => "MGET",
            Verb::Mset(_) => "MSET",
        }
    }

    /// Whether it is SET or GET: the floor answers no other one, and `redis-benchmark` has no other
    /// one.
    pub fn is_simple(self) -> bool {
        matches!(self, Verb::Set | Verb::Get)
    }
}

impl TlsBy {
    /// All of them, in the order of the tables.
    pub const ALL: [TlsBy; 4] = [
        TlsBy::Server,
        TlsBy::Respool,
        TlsBy::Haproxy,
        TlsBy::Stunnel,
    ];

    /// A word for options and tables.
    pub fn name(self) -> &'static str {
        match self {
            TlsBy::Server => "direct-tls",
            TlsBy::Respool => "respool-tls",
            TlsBy::Haproxy => "haproxy-tls",
            TlsBy::Stunnel => "stunnel-tls",
        }
    }
}

impl Way {
    /// All of them, in the order of the tables.
    pub const ALL: [Way; 3] = [Way::Sharded, Way::Cluster, Way::Envoy];

    /// A word for options and tables.
    pub fn name(self) -> &'static str {
        match self {
            Way::Sharded => "sharded",
            Way::Cluster => "cluster",
            Way::Envoy => "envoy",
        }
    }
}

impl LoadTarget {
    /// Its name in tables.
    pub fn name(&self) -> String {
        match self {
            LoadTarget::Direct => "direct".to_owned(),
            LoadTarget::Respool { .. } => "respool".to_owned(),
            LoadTarget::Variant { name, .. } => name.clone(),
            LoadTarget::Base { .. } => "base".to_owned(),
            LoadTarget::Twemproxy => "twemproxy".to_owned(),
            LoadTarget::Envoy => "envoy".to_owned(),
            LoadTarget::Pool { way, servers, .. } => format!("{}-{servers}", way.name()),
            LoadTarget::Tls { by } => by.name().to_owned(),
            LoadTarget::Other { name, .. } => name.clone(),
            LoadTarget::Floor => "floor".to_owned(),
        }
    }

    /// Its worker threads, where that is known.
    pub fn threads(&self) -> Option<u16> {
        match self {
            LoadTarget::Respool { threads }
            | LoadTarget::Variant { threads, .. }
            | LoadTarget::Base { threads, .. }
            | LoadTarget::Pool { threads, .. } => Some(*threads),
            LoadTarget::Twemproxy
            | LoadTarget::Envoy
            | LoadTarget::Tls {
                by: TlsBy::Respool | TlsBy::Haproxy,
            }
            | LoadTarget::Floor => Some(1),
            LoadTarget::Direct | LoadTarget::Tls { .. } | LoadTarget::Other { .. } => None,
        }
    }

    /// Whether it is respool, in any build and with any options.
    pub fn is_respool(&self) -> bool {
        matches!(
            self,
            LoadTarget::Respool { .. }
                | LoadTarget::Variant { .. }
                | LoadTarget::Base { .. }
                | LoadTarget::Pool {
                    way: Way::Sharded | Way::Cluster,
                    ..
                }
        )
    }

    /// The servers that its requests end at.
    pub fn behind(&self) -> Behind {
        match *self {
            // One plain server is the server asked directly: the costs of several are relative to
            // it.
            LoadTarget::Pool {
                way: Way::Sharded,
                servers: 2..,
                ..
            } => Behind::Shards(self.servers()),
            LoadTarget::Pool {
                way: Way::Cluster | Way::Envoy,
                servers,
                ..
            } => Behind::Cluster(servers),
            _ => Behind::Server,
        }
    }

    /// The number of servers that its keys are divided among.
    pub fn servers(&self) -> u16 {
        match self {
            LoadTarget::Pool { servers, .. } => *servers,
            _ => 1,
        }
    }

    /// Whether requests end at a Redis or Valkey.
    pub fn has_server(&self) -> bool {
        *self != LoadTarget::Floor
    }

    /// Whether a proxy stands before the server.
    pub fn is_proxy(&self) -> bool {
        !matches!(
            self,
            LoadTarget::Direct | LoadTarget::Tls { by: TlsBy::Server } | LoadTarget::Floor
        )
    }

    /// Whether clients reach it over TLS.
    pub fn has_tls(&self) -> bool {
        matches!(self, LoadTarget::Tls { .. })
    }
}

impl Case {
    /// A name for files and anchors: `get-p20-c50-respool-t1`.
    pub fn id(&self) -> String {
        let Workload {
            verb,
            pipeline,
            connections,
            rate,
        } = self.workload;
        let load = rate.map_or(String::new(), |rate| format!("-o{rate}"));
        let threads = self.target.threads();
        let threads = threads.filter(|_| self.target.is_respool());
        let threads = threads.map_or(String::new(), |threads| format!("-t{threads}"));
        let name: String = self
            .target
            .name()
            .to_lowercase()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
            .collect();
        format!(
            "{}-p{pipeline}-c{connections}{load}-{name}{threads}",
            verb.to_string().to_lowercase().replace(' ', "-")
        )
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let command = self.command();
        match self {
            Verb::Set | Verb::Get | Verb::Multi => f.pad(command),
            Verb::Mget(keys) | Verb::Mset(keys) => f.pad(&format!("{command} {keys}")),
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} P{} × {}", self.verb, self.pipeline, self.connections)?;
        match self.rate {
            Some(rate) => write!(f, " at {}/s", figure::count(rate.into())),
            None => Ok(()),
        }
    }
}

impl fmt::Display for LoadTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.threads() {
            Some(threads) if threads != 1 => write!(f, "{}, {threads} threads", self.name()),
            _ => f.write_str(&self.name()),
        }
    }
}

impl fmt::Display for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Behind::Server => f.write_str("server"),
            Behind::Shards(count) => write!(f, "{count} plain servers"),
            Behind::Cluster(1) => f.write_str("Cluster of 1 primary"),
            Behind::Cluster(count) => write!(f, "Cluster of {count} primaries"),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.workload, self.target)
    }
}

/// The program that makes the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadGenerator {
    /// `respool-lab load`, in a process of its own.
    #[default]
    Own,
    /// Redis's own tool. It does not check values, and reports times only at a few percentiles.
    RedisBenchmark,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_fit_for_a_file_and_tells_cases_apart() {
        let workload = Workload {
            verb: Verb::Get,
            pipeline: 20,
            connections: 50,
            rate: None,
        };
        let id = |target| Case { workload, target }.id();
        assert_eq!(
            id(LoadTarget::Respool { threads: 3 }),
            "get-p20-c50-respool-t3"
        );
        let base = LoadTarget::Base {
            threads: 1,
            binary: "/old/respool".into(),
        };
        assert_eq!(id(base), "get-p20-c50-base-t1");
        let variant = LoadTarget::Variant {
            name: "no wait".into(),
            threads: 3,
            options: vec!["--flush-rule=latency".into()],
        };
        assert_eq!(variant.to_string(), "no wait, 3 threads");
        assert_eq!(id(variant), "get-p20-c50-no_wait-t3");
        assert_eq!(id(LoadTarget::Direct), "get-p20-c50-direct");
        let other = LoadTarget::Other {
            name: "My Proxy/2".into(),
            address: "h:1".into(),
            pid: 1,
        };
        assert_eq!(id(other), "get-p20-c50-my_proxy_2");
        let mget = Case {
            workload: Workload {
                verb: Verb::Mget(100),
                ..workload
            },
            target: LoadTarget::Direct,
        };
        assert_eq!(mget.id(), "mget-100-p20-c50-direct");
        let pool = |way, servers| LoadTarget::Pool {
            way,
            servers,
            threads: 1,
        };
        assert_eq!(id(pool(Way::Cluster, 3)), "get-p20-c50-cluster_3-t1");
        assert_eq!(id(pool(Way::Envoy, 6)), "get-p20-c50-envoy_6");
        assert_eq!(pool(Way::Sharded, 1).behind(), Behind::Server);
        assert_eq!(pool(Way::Sharded, 3).behind(), Behind::Shards(3));
        assert_eq!(pool(Way::Envoy, 1).behind(), Behind::Cluster(1));
        let open = Case {
            workload: Workload {
                rate: Some(30_000),
                ..workload
            },
            target: LoadTarget::Direct,
        };
        assert_eq!(open.id(), "get-p20-c50-o30000-direct");
        assert_eq!(open.to_string(), "GET P20 × 50 at 30,000/s, direct");
    }
}
