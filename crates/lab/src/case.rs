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
            Verb::Mget(keys) => keys,
            Verb::Set | Verb::Get | Verb::Multi => 1,
        }
    }

    /// Whether every request is one of SET and GET: what the floor can answer and `redis-benchmark` can ask.
    pub fn is_simple(self) -> bool {
        matches!(self, Verb::Set | Verb::Get)
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
            Target::Other { name, .. } => name.clone(),
            Target::Floor => "floor".to_owned(),
        }
    }

    /// Its threads that do the work, where we know.
    pub fn threads(&self) -> Option<u16> {
        match self {
            Target::Respool { threads }
            | Target::Variant { threads, .. }
            | Target::Base { threads, .. } => Some(*threads),
            Target::Twemproxy | Target::Envoy | Target::Floor => Some(1),
            Target::Direct | Target::Other { .. } => None,
        }
    }

    /// Whether it is a respool, of whatever build and with whatever options.
    pub fn is_respool(&self) -> bool {
        matches!(
            self,
            Target::Respool { .. } | Target::Variant { .. } | Target::Base { .. }
        )
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
        match self {
            Verb::Set => f.pad("SET"),
            Verb::Get => f.pad("GET"),
            Verb::Multi => f.pad("MULTI"),
            Verb::Mget(keys) => f.pad(&format!("MGET {keys}")),
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
