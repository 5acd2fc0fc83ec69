//! What is measured: a workload against a target.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The commands of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verb {
    /// `SET key value`
    Set,
    /// `GET key`, where every key exists.
    Get,
    /// A transaction as one request: MULTI, SET key value, GET key, EXEC.
    Multi,
    /// `MGET key ...` with so many different keys, all of which exist.
    Mget(u32),
    /// `MSET key value ...` with so many different keys.
    Mset(u32),
}

/// What the generator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Workload {
    /// What is asked.
    pub verb: Verb,
    /// Requests that a connection sends at once.
    pub pipeline: usize,
    /// Connections.
    pub connections: usize,
    /// Open loop, at so many percent of what [`crate::window`] found to be the most; `None`: as the whole run is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_percent: Option<u8>,
}

/// Whom the generator talks to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Target {
    /// The server, with nothing in between.
    Direct,
    /// respool, with so many workers, before the server.
    Respool {
        /// Workers.
        threads: u16,
    },
    /// respool, with so many workers and options of its own, before the server.
    Variant {
        /// What to call it.
        name: String,
        /// Workers.
        threads: u16,
        /// As on its command line.
        options: Vec<String>,
    },
    /// Another build of respool, with so many workers, before the server: see [`crate::against`].
    Base {
        /// Workers.
        threads: u16,
        /// The program.
        binary: PathBuf,
    },
    /// twemproxy (`nutcracker`) before the server.
    Twemproxy,
    /// Envoy's Redis proxy before the server, with one worker.
    Envoy,
    /// A proxy before a pool of several servers: see [`crate::cluster`].
    Pool {
        /// Which proxy, and before what kind of pool.
        way: Way,
        /// Servers of the pool.
        servers: u16,
        /// Workers of respool; Envoy has one.
        threads: u16,
    },
    /// A proxy that somebody else started before the server.
    Other {
        /// What to call it.
        name: String,
        /// HOST:PORT
        address: String,
        /// Whose CPU to count.
        pid: u32,
    },
    /// The lab's own echo server, which does nothing but receive and send: see [`crate::floor`].
    Floor,
}

/// How requests reach several servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// respool, before plain servers among which it divides the keys.
    Sharded,
    /// respool, before a Cluster.
    Cluster,
    /// Envoy's Redis proxy, before the same Cluster.
    Envoy,
}

/// What stands behind a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// The one server of the run.
    Server,
    /// Servers of its own that know nothing of each other.
    Shards(u16),
    /// A Cluster of so many primaries.
    Cluster(u16),
}

/// One row of a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Case {
    /// What the generator does ...
    pub workload: Workload,
    /// ... to whom.
    pub target: Target,
}

impl Verb {
    /// Both, in the order of the original tables.
    pub const ALL: [Verb; 2] = [Verb::Set, Verb::Get];

    /// Keys of one request.
    pub fn keys(self) -> u32 {
        match self {
            Verb::Mget(keys) | Verb::Mset(keys) => keys,
            Verb::Set | Verb::Get | Verb::Multi => 1,
        }
    }

    /// Its name, without how many keys it has.
    pub fn command(self) -> &'static str {
        match self {
            Verb::Set => "SET",
            Verb::Get => "GET",
            Verb::Multi => "MULTI",
            Verb::Mget(_) => "MGET",
            Verb::Mset(_) => "MSET",
        }
    }

    /// Whether every request is one of SET and GET: what the floor can answer and `redis-benchmark` can ask.
    pub fn is_simple(self) -> bool {
        matches!(self, Verb::Set | Verb::Get)
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

impl Target {
    /// How a table calls it.
    pub fn name(&self) -> String {
        match self {
            Target::Direct => "direct".to_owned(),
            Target::Respool { .. } => "respool".to_owned(),
            Target::Variant { name, .. } => name.clone(),
            Target::Base { .. } => "base".to_owned(),
            Target::Twemproxy => "twemproxy".to_owned(),
            Target::Envoy => "envoy".to_owned(),
            Target::Pool { way, servers, .. } => format!("{}-{servers}", way.name()),
            Target::Other { name, .. } => name.clone(),
            Target::Floor => "floor".to_owned(),
        }
    }

    /// Its threads that do the work, where we know.
    pub fn threads(&self) -> Option<u16> {
        match self {
            Target::Respool { threads }
            | Target::Variant { threads, .. }
            | Target::Base { threads, .. }
            | Target::Pool { threads, .. } => Some(*threads),
            Target::Twemproxy | Target::Envoy | Target::Floor => Some(1),
            Target::Direct | Target::Other { .. } => None,
        }
    }

    /// Whether it is a respool, of whatever build and with whatever options.
    pub fn is_respool(&self) -> bool {
        matches!(
            self,
            Target::Respool { .. }
                | Target::Variant { .. }
                | Target::Base { .. }
                | Target::Pool {
                    way: Way::Sharded | Way::Cluster,
                    ..
                }
        )
    }

    /// What its requests end at.
    pub fn behind(&self) -> Behind {
        match *self {
            // One plain server is the one that is asked directly: what several cost is compared with it.
            Target::Pool {
                way: Way::Sharded,
                servers: 2..,
                ..
            } => Behind::Shards(self.servers()),
            Target::Pool {
                way: Way::Cluster | Way::Envoy,
                servers,
                ..
            } => Behind::Cluster(servers),
            _ => Behind::Server,
        }
    }

    /// Servers among which its keys are divided.
    pub fn servers(&self) -> u16 {
        match self {
            Target::Pool { servers, .. } => *servers,
            _ => 1,
        }
    }

    /// Whether requests end at a Redis or Valkey.
    pub fn has_server(&self) -> bool {
        *self != Target::Floor
    }

    /// Whether something stands in front of the server.
    pub fn is_proxy(&self) -> bool {
        !matches!(self, Target::Direct | Target::Floor)
    }
}

impl Case {
    /// A name for files and anchors: `get-p20-c50-respool-t1`.
    pub fn id(&self) -> String {
        let Workload {
            verb,
            pipeline,
            connections,
            load_percent,
        } = self.workload;
        let load = load_percent.map_or(String::new(), |percent| format!("-o{percent}"));
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
        match self.load_percent {
            Some(percent) => write!(f, " at {percent} %"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Target {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_fit_for_a_file_and_tells_cases_apart() {
        let workload = Workload {
            verb: Verb::Get,
            pipeline: 20,
            connections: 50,
            load_percent: None,
        };
        let id = |target| Case { workload, target }.id();
        assert_eq!(id(Target::Respool { threads: 3 }), "get-p20-c50-respool-t3");
        let base = Target::Base {
            threads: 1,
            binary: "/old/respool".into(),
        };
        assert_eq!(id(base), "get-p20-c50-base-t1");
        let variant = Target::Variant {
            name: "hold off".into(),
            threads: 3,
            options: vec!["--hold=false".into()],
        };
        assert_eq!(variant.to_string(), "hold off, 3 threads");
        assert_eq!(id(variant), "get-p20-c50-hold_off-t3");
        assert_eq!(id(Target::Direct), "get-p20-c50-direct");
        let other = Target::Other {
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
            target: Target::Direct,
        };
        assert_eq!(mget.id(), "mget-100-p20-c50-direct");
        let pool = |way, servers| Target::Pool {
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
                load_percent: Some(60),
                ..workload
            },
            target: Target::Direct,
        };
        assert_eq!(open.id(), "get-p20-c50-o60-direct");
        assert_eq!(open.to_string(), "GET P20 × 50 at 60 %, direct");
    }
}
