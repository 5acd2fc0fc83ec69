//! Experiments: which cases, in which order, and what becomes of the measurements.
//!
//! An [`Experiment`] is a small description: a name, what it asks, and the options it starts from. The options make
//! the cases, and [`run`] does the rest, the same way for all of them: start every target, go round by round
//! over all cases, gather a [`Report`].

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use crate::against;
use crate::case::{Behind, Case, Target, Verb, Way, Workload};
use crate::cores::Cores;
use crate::flags::{Flag, list, positive, seconds, value_bytes};
use crate::load::{self, clock_ns};
use crate::machine::{self, Machine};
use crate::measure::{self, Generator, Manner, STOPPED};
use crate::progress::Progress;
use crate::report::{CaseReport, Report, Round};
use crate::servers;
use crate::targets::{Backend, Backends, Programs, Running, ServerChoice, first_line};
use crate::window;
use crate::zipf::Zipf;

/// A question and the options that answer it.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// The command that runs it.
    pub name: &'static str,
    /// The headline of its report.
    pub title: &'static str,
    /// What it asks, for the report and for `--help`.
    pub about: &'static str,
    /// What differs from [`Options::default`].
    pub adapt: fn(&mut Options),
    /// The order of the cases over so many rounds. [`in_turn`], if nothing speaks for another one.
    pub plan: fn(&[Case], u32) -> Plan,
    /// Whether every measurement gets a new proxy, on cores of its own; or all get the same, on any.
    pub is_isolated: bool,
}

/// What is measured when: the number of the round, and the place of the case.
pub type Plan = Vec<(u32, usize)>;

/// The experiment that the project comes from: does a proxy have to make things slower?
pub const EIGHT: Experiment = Experiment {
    name: "eight",
    title: "Eight cases: SET and GET, one by one and pipelined, direct and proxied",
    about: "\
Does something that stands between clients and a Redis have to make it slower? 50 connections, 3,000 keys and values
of 2 bytes; SET and GET; one request at a time (P1) and 20 at once (P20); asked directly and through a proxy
with one thread. Then the pipelined cases again through a proxy with three threads. A Redis that is asked one request
at a time spends most of its CPU in system calls; a proxy that gathers the requests of all clients takes that from
it, at the price of its own.",
    adapt: |_| {},
    plan: in_turn,
    is_isolated: false,
};

/// What a hop costs a caller who is alone.
pub const LONE: Experiment = Experiment {
    name: "lone",
    title: "A lone caller: one connection, one request at a time",
    about: "\
What does a hop cost a caller who is alone? One connection, one request at a time: there is nothing to gather, so each
request pays for two more system calls and one more wake-up on its way there, and as many on its way back. The
median is the figure to look at.",
    adapt: |options| {
        options.connections = vec![1];
        options.pipelines = vec![1];
        options.threads = vec![1];
    },
    plan: in_turn,
    is_isolated: false,
};

/// Whether many connections make each request dearer.
pub const CONNECTIONS: Experiment = Experiment {
    name: "connections",
    title: "Many connections: CPU per request at 50 and at 1,000",
    about: "\
Does a request become dearer when more clients are connected? One request at a time on each connection, 50
connections and 1,000. The figure to look at is the CPU per request of the proxy, at 1,000 against at 50: an event loop
that does per turn what it should do per event shows here.",
    adapt: |options| {
        options.connections = vec![50, 1000];
        options.pipelines = vec![1];
        options.threads = vec![1];
        options.verbs = vec![Verb::Get];
    },
    plan: in_turn,
    is_isolated: false,
};

/// What a key costs in an MGET of so many.
pub const MGET: Experiment = Experiment {
    name: "mget",
    title: "The decay of MGET: 1 to 10,000 keys in a request",
    about: "\
How does MGET decay with the number of its keys? One connection, one request at a time, from 1 key to 10,000, all
different, of 20,000 keys with values of 4 bytes. A request has a fixed cost, for system calls and wake-ups, and one
for each key: the more keys share the fixed one, the less a key costs, until it hardly matters any more. That is the sweet
spot: the fewest keys at which the server's CPU per key is within 10 % of its least. More of them only make a request
take longer, and everybody else wait for it.",
    adapt: |options| {
        options.connections = vec![1];
        options.pipelines = vec![1];
        options.threads = vec![1];
        options.keys = 20_000;
        options.value_bytes = 4;
        options.verbs = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000]
            .map(Verb::Mget)
            .to_vec();
    },
    plan: in_turn,
    is_isolated: false,
};

/// What joining identical reads saves when some keys are asked for far more often than others.
pub const SKEW: Experiment = Experiment {
    name: "skew",
    title: "Skewed keys: GETs by Zipf's law, and how many of them reach the server",
    about: "\
How much does it save to ask a server once for what several clients want at the same moment? 1,000,000 keys with values of
4 bytes; GETs by Zipf's law with the exponent 0.99, where the first key alone is one request in fifteen; 200 connections,
20 requests at once on each. The server counts the commands that it executes and the keys that it looks up for
them; clients count their requests. What is fewer was saved: commands by joining requests in whatever way (identical reads,
or several keys in one MGET), look-ups by joining identical reads alone. To tell the two apart each is measured by itself,
beside both and neither.",
    adapt: |options| {
        options.is_without_respool = true;
        options.variants = levels().collect();
        options.connections = vec![200];
        options.pipelines = vec![20];
        options.threads = vec![1];
        options.keys = 1_000_000;
        options.value_bytes = 4;
        options.verbs = vec![Verb::Get];
        options.zipf = Some(0.99);
    },
    plan: in_turn,
    is_isolated: false,
};

/// Everything that can be chosen about a run. Where a report says nothing of one, there was no choice yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// Commands.
    pub verbs: Vec<Verb>,
    /// The option that they were given by, where they were: of two, one would be left out.
    #[serde(skip)]
    pub verbs_by: Option<&'static str>,
    /// Requests at once on a connection.
    pub pipelines: Vec<usize>,
    /// Connections.
    pub connections: Vec<usize>,
    /// Workers of respool; all cases with the first number, the most pipelined ones with the others, too.
    pub threads: Vec<u16>,
    /// Different keys.
    pub keys: u32,
    /// Chosen by Zipf's law with this exponent; `None`: evenly.
    pub zipf: Option<f64>,
    /// Size of each value.
    pub value_bytes: usize,
    /// Seconds of each measured window; `None`: 5, or what a quick run has time for.
    pub seconds: Option<f64>,
    /// Seconds before each; `None`: 0.5, or 0.3 in a quick run.
    pub warmup_s: Option<f64>,
    /// How often each case is measured; `None`: 5, or 3 in a quick run.
    pub rounds: Option<u32>,
    /// A minute in all.
    pub is_quick: bool,
    /// Seconds in all, which decide how long the windows are unless that is given.
    pub budget_s: Option<f64>,
    /// Requests a second; `None`: closed loop.
    pub rate: Option<f64>,
    /// What makes the load.
    pub generator: Generator,
    /// Threads that make it.
    pub generator_threads: usize,
    /// What answers it.
    pub server: ServerChoice,
    /// Where respool is; `None`: next to the lab, or in PATH.
    pub respool: Option<PathBuf>,
    /// Measure without it.
    pub is_without_respool: bool,
    /// Measure without the server asked directly.
    pub is_without_direct: bool,
    /// Flush rules to compare, by the longest that a request may wait, microseconds: see [`crate::window`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules_us: Vec<u32>,
    /// Loads in open loop besides the closed one, percent of what that came to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loads_percent: Vec<u8>,
    /// It with other options, in the same rounds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<Variant>,
    /// Another build of it, to measure it against instead of the direct server.
    pub base: Option<PathBuf>,
    /// Percent of CPU per request that it may cost more than that.
    pub allow_percent: f64,
    /// Other proxies, in the same rounds.
    pub peers: Vec<Target>,
    /// Ways to several servers, in the same rounds: see [`crate::cluster`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ways: Vec<Way>,
    /// How many servers, for each of these ways.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<u16>,
    /// The echo server, in the same rounds.
    pub has_floor: bool,
    /// Cores that a hypervisor may take away in a measurement; where it took more, it is made again. `None`: whatever it took.
    pub stolen_cores_max: Option<f64>,
    /// Where the files go; `None`: a new folder in `lab-out`.
    pub out: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            verbs: Verb::ALL.to_vec(),
            verbs_by: None,
            pipelines: vec![1, 20],
            connections: vec![50],
            threads: vec![1, 3],
            keys: 3000,
            zipf: None,
            value_bytes: 2,
            seconds: None,
            warmup_s: None,
            rounds: None,
            is_quick: false,
            budget_s: None,
            rate: None,
            generator: Generator::Own,
            generator_threads: 1,
            server: ServerChoice::Found,
            respool: None,
            is_without_respool: false,
            is_without_direct: false,
            rules_us: Vec::new(),
            loads_percent: Vec::new(),
            variants: Vec::new(),
            base: None,
            allow_percent: 3.0,
            peers: Vec::new(),
            ways: Vec::new(),
            servers: Vec::new(),
            has_floor: false,
            stolen_cores_max: None,
            out: None,
        }
    }
}

/// respool with options of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// What tables call it.
    pub name: String,
    /// As on its command line.
    pub options: Vec<String>,
}

impl Variant {
    /// With such options, given with a blank between them.
    pub fn new(name: &str, options: &str) -> Variant {
        Variant {
            name: name.to_owned(),
            options: options.split_whitespace().map(str::to_owned).collect(),
        }
    }

    /// It as a target, with so many workers.
    pub fn target(&self, threads: u16) -> Target {
        Target::Variant {
            name: self.name.clone(),
            threads,
            options: self.options.clone(),
        }
    }
}

/// Seconds that a quick run may take.
const QUICK_S: f64 = 60.0;
/// What a measurement takes besides its warm-up and its window: starting the generator, connecting, the last replies.
const OVERHEAD_S: f64 = 0.15;
/// How often one measurement is made at most, where a hypervisor takes cores away.
const TRIES_MAX: u32 = 3;
/// One in so many measurements is made again at most.
const REPEATED_PART: usize = 5;

impl Options {
    /// The cases, in the order of the tables.
    pub fn cases(&self) -> Vec<Case> {
        let first = self.threads.first().copied().unwrap_or(1);
        let mut targets = Vec::new();
        if self.base.is_none() && !self.is_without_direct {
            targets.push(Target::Direct);
        }
        targets.extend(self.builds(first));
        targets.extend(self.peers.iter().cloned());
        targets.extend(self.pools(&[Way::Envoy], 1));
        if self.has_floor {
            targets.push(Target::Floor);
        }
        let mut cases = Vec::new();
        for workload in self.workloads() {
            cases.extend(targets.iter().map(|target| Case {
                workload,
                target: target.clone(),
            }));
        }
        let deepest = self.pipelines.iter().copied().max().unwrap_or(1);
        for &threads in self.threads.iter().skip(1) {
            let deep = self
                .workloads()
                .into_iter()
                .filter(|workload| workload.pipeline == deepest);
            cases.extend(deep.flat_map(|workload| {
                let builds = self.builds(threads).into_iter();
                builds.map(move |target| Case { workload, target })
            }));
        }
        cases
    }

    /// respool with so many workers, and behind it its flush rules, its variants and the other build, where there are any.
    fn builds(&self, threads: u16) -> Vec<Target> {
        let respool = (!self.is_without_respool).then_some(Target::Respool { threads });
        let base = self.base.clone();
        let base = base.map(|binary| Target::Base { threads, binary });
        let mut builds: Vec<Target> = respool.into_iter().collect();
        for variant in window::rules(&self.rules_us).iter().chain(&self.variants) {
            builds.push(variant.target(threads));
        }
        builds.extend(base);
        builds.extend(self.pools(&[Way::Sharded, Way::Cluster], threads));
        builds
    }

    /// Those of these ways that were chosen, over each number of servers.
    fn pools(&self, ways: &[Way], threads: u16) -> Vec<Target> {
        let chosen = self.ways.iter().filter(|way| ways.contains(way));
        let pool = |way: Way| {
            self.servers.iter().map(move |&servers| Target::Pool {
                way,
                servers,
                threads,
            })
        };
        chosen.flat_map(|&way| pool(way)).collect()
    }

    fn workloads(&self) -> Vec<Workload> {
        let mut workloads = Vec::new();
        for &pipeline in &self.pipelines {
            for &connections in &self.connections {
                for &verb in &self.verbs {
                    // Many keys in a request do what many requests at once do: beside them, one at a time says all.
                    let is_many = !self.ways.is_empty() && verb.keys() > 1;
                    if is_many && self.pipelines.iter().any(|&other| other < pipeline) {
                        continue;
                    }
                    let loads = self.loads_percent.iter().map(|&percent| Some(percent));
                    workloads.extend(std::iter::once(None).chain(loads).map(|load_percent| {
                        Workload {
                            verb,
                            pipeline,
                            connections,
                            load_percent,
                        }
                    }));
                }
            }
        }
        workloads
    }

    /// How often each case is measured.
    pub fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.is_quick { 3 } else { 5 })
    }

    /// Seconds of the same load before each window.
    pub fn warmup_s(&self) -> f64 {
        let is_short = self.is_quick || self.budget_s.is_some();
        self.warmup_s.unwrap_or(if is_short { 0.3 } else { 0.5 })
    }

    /// Seconds of each window.
    pub fn seconds(&self) -> f64 {
        let budget_s = self.is_quick.then_some(QUICK_S).or(self.budget_s);
        let share = budget_s.map(|budget_s| {
            let measurements = self.cases().len() as f64 * f64::from(self.rounds());
            let share = budget_s / measurements.max(1.0) - self.warmup_s() - OVERHEAD_S;
            share.max(0.2)
        });
        self.seconds.or(share).unwrap_or(5.0)
    }
}

/// For those experiments that are as long as they are told.
pub const MINUTES: Flag<Options> = Flag {
    name: "minutes",
    value: Some("N"),
    help: "About so long in all, windows as long as that allows [window: 4; cluster: 10].",
    set: |options, value| {
        positive::<f64>(value).map(|minutes| options.budget_s = Some(minutes * 60.0))
    },
};

/// The options of every experiment.
pub const FLAGS: [&Flag<Options>; 24] = [
    &Flag {
        name: "quick",
        value: None,
        help: "A minute in all: three rounds, windows as short as that needs.",
        set: |options, _| {
            options.is_quick = true;
            Ok(())
        },
    },
    &Flag {
        name: "seconds",
        value: Some("S"),
        help: "Length of each measured window [5].",
        set: |options, value| seconds(value).map(|s| options.seconds = Some(s)),
    },
    &Flag {
        name: "warmup",
        value: Some("S"),
        help: "Seconds of the same load before each window [0.5].",
        set: |options, value| seconds(value).map(|s| options.warmup_s = Some(s)),
    },
    &Flag {
        name: "rounds",
        value: Some("N"),
        help: "How often each case is measured, all cases in turn [5]. Tables show medians.",
        set: |options, value| positive(value).map(|n| options.rounds = Some(n)),
    },
    &Flag {
        name: "verbs",
        value: Some("LIST"),
        help: "Of set, get and multi (a transaction of both).",
        set: |options, value| {
            take_verbs(options, "verbs")?;
            options.verbs.clear();
            for word in value.split(',') {
                options
                    .verbs
                    .push(match word.trim().to_lowercase().as_str() {
                        "set" => Verb::Set,
                        "get" => Verb::Get,
                        "multi" => Verb::Multi,
                        other => return Err(format!("{other:?} is none of set, get and multi")),
                    });
            }
            Ok(())
        },
    },
    &Flag {
        name: "mget",
        value: Some("LIST"),
        help: "Instead of --verbs: MGET of so many different keys, several numbers with commas.",
        set: |options, value| {
            take_verbs(options, "mget")?;
            let counts: Vec<u32> = list(value)?;
            options.verbs = counts.into_iter().map(Verb::Mget).collect();
            Ok(())
        },
    },
    &Flag {
        name: "pipeline",
        value: Some("LIST"),
        help: "Requests that a connection sends at once, several numbers with commas.",
        set: |options, value| list(value).map(|numbers| options.pipelines = numbers),
    },
    &Flag {
        name: "connections",
        value: Some("LIST"),
        help: "Connections.",
        set: |options, value| list(value).map(|numbers| options.connections = numbers),
    },
    &Flag {
        name: "threads",
        value: Some("LIST"),
        help: "Workers of respool. Every case runs with the first number, the most pipelined ones\n\
               with the others as well.",
        set: |options, value| {
            let numbers: Vec<u32> = list(value)?;
            options.threads = numbers
                .into_iter()
                .map(|n| u16::try_from(n).map_err(|_| "too many".to_owned()))
                .collect::<Result<_, _>>()?;
            Ok(())
        },
    },
    &Flag {
        name: "keys",
        value: Some("N"),
        help: "Different keys, chosen evenly [3000; mget: 20000; skew: 1000000].",
        set: |options, value| positive(value).map(|n| options.keys = n),
    },
    &Flag {
        name: "zipf",
        value: Some("THETA"),
        help: "Keys chosen by Zipf's law with this exponent: the first one most often [skew: 0.99].",
        set: |options, value| theta(value).map(|theta| options.zipf = Some(theta)),
    },
    &Flag {
        name: "value-bytes",
        value: Some("N"),
        help: "Size of each value [2; mget and skew: 4].",
        set: |options, value| value_bytes(value).map(|n| options.value_bytes = n),
    },
    &Flag {
        name: "open-loop",
        value: Some("RATE"),
        help: "So many requests a second, due at fixed times; latency from when each was due.\n\
               Without it each connection waits for its replies before it asks again.",
        set: |options, value| positive::<f64>(value).map(|n| options.rate = Some(n)),
    },
    &Flag {
        name: "generator",
        value: Some("own|redis-benchmark"),
        help: "What makes the load [own].",
        set: |options, value| {
            options.generator = match value {
                "own" => Generator::Own,
                "redis-benchmark" => Generator::RedisBenchmark,
                _ => return Err("own or redis-benchmark is expected".to_owned()),
            };
            Ok(())
        },
    },
    &Flag {
        name: "generator-threads",
        value: Some("N"),
        help: "Threads that make the load [1].",
        set: |options, value| positive(value).map(|n| options.generator_threads = n),
    },
    &Flag {
        name: "server",
        value: Some("PATH|HOST:PORT,PID"),
        help: "A server's binary, started and ended by the lab [redis-server or valkey-server from\n\
               PATH]; or one that runs already, whose keys key:… are overwritten.",
        set: |options, value| {
            options.server = server_choice(value)?;
            Ok(())
        },
    },
    &Flag {
        name: "respool",
        value: Some("PATH"),
        help: "The proxy's binary [next to respool-lab, or in PATH].",
        set: |options, value| {
            options.respool = Some(PathBuf::from(value));
            Ok(())
        },
    },
    &Flag {
        name: "no-respool",
        value: None,
        help: "Measure without it.",
        set: |options, _| {
            options.is_without_respool = true;
            // Those that an experiment compares anyway.
            let is_level = |variant: &Variant| levels().any(|level| level == *variant);
            options.variants.retain(|variant| !is_level(variant));
            Ok(())
        },
    },
    &Flag {
        name: "variant",
        value: Some("NAME=OPTIONS"),
        help: "It once more in the same rounds, with options of its own, a blank between them:\n\
               --variant 'patient=--max-delay-us=500 --hold=true'. May be given several times.",
        set: |options, value| {
            let (name, words) = value
                .split_once('=')
                .filter(|(name, words)| !name.is_empty() && words.starts_with("--"))
                .ok_or("NAME=--OPTION... is expected")?;
            add_variant(options, Variant::new(name, words))
        },
    },
    &Flag {
        name: "levels",
        value: None,
        help: "Four variants in place of respool as it is: requests that nothing joins, reads that are the same \
               sent once, GETs and SETs fused, and both.",
        set: |options, _| {
            options.is_without_respool = true;
            // An experiment may compare them anyway.
            let missing: Vec<Variant> = levels()
                .filter(|level| !options.variants.contains(level))
                .collect();
            missing
                .into_iter()
                .try_for_each(|level| add_variant(options, level))
        },
    },
    &Flag {
        name: "peer",
        value: Some("PEER"),
        help: "Another proxy in the same rounds: twemproxy, envoy, or NAME=HOST:PORT,PID for one that\n\
               already runs before the same server. May be given several times.",
        set: |options, value| {
            let peer = peer(value)?;
            let peers = options.peers.iter().map(Target::name);
            let variants = options.variants.iter().map(|variant| variant.name.clone());
            if peers.chain(variants).any(|other| other == peer.name()) {
                return Err("named twice".to_owned());
            }
            options.peers.push(peer);
            Ok(())
        },
    },
    &Flag {
        name: "floor",
        value: None,
        help: "An echo server in the same rounds: what the kernel alone costs a proxy.",
        set: |options, _| {
            options.has_floor = true;
            Ok(())
        },
    },
    &Flag {
        name: "all",
        value: None,
        help: "Short for --peer twemproxy --peer envoy --floor.",
        set: |options, _| {
            for peer in [Target::Twemproxy, Target::Envoy] {
                if !options.peers.contains(&peer) {
                    options.peers.push(peer);
                }
            }
            options.has_floor = true;
            Ok(())
        },
    },
    &Flag {
        name: "out",
        value: Some("DIR"),
        help: "Where the files go [a new folder in lab-out].",
        set: |options, value| {
            options.out = Some(PathBuf::from(value));
            Ok(())
        },
    },
];

fn take_verbs(options: &mut Options, by: &'static str) -> Result<(), String> {
    match options.verbs_by.replace(by) {
        Some(other) if other != by => Err("of --verbs and --mget, one can be given".to_owned()),
        _ => Ok(()),
    }
}

/// An exponent of Zipf's law.
///
/// # Errors
/// When it is not one that the lab draws by.
pub fn theta(text: &str) -> Result<f64, String> {
    let most = Zipf::THETA_MAX;
    match text.parse::<f64>() {
        Ok(theta) if (0.0..=most).contains(&theta) => Ok(theta),
        _ => Err(format!("a number from 0 to {most} is expected")),
    }
}

/// What of the coalescing can be on and off: the variants of `--levels`.
const LEVELS: [(&str, &str); 4] = [
    ("none", "--collapse=false --fuse=false"),
    ("collapse", "--collapse=true --fuse=false"),
    ("fuse", "--collapse=false --fuse=true"),
    ("both", "--collapse=true --fuse=true"),
];

fn levels() -> impl Iterator<Item = Variant> {
    LEVELS.iter().map(|(name, words)| Variant::new(name, words))
}

/// Names that mean something else than a variant or a peer.
const RESERVED: [&str; 6] = ["direct", "respool", "base", "twemproxy", "envoy", "floor"];

fn add_variant(options: &mut Options, variant: Variant) -> Result<(), String> {
    let name = &variant.name;
    if RESERVED.contains(&name.as_str()) {
        return Err(format!("{name:?} is the name of something else"));
    }
    let peers = options.peers.iter().map(Target::name);
    let variants = options.variants.iter().map(|other| other.name.clone());
    if peers.chain(variants).any(|other| other == *name) {
        return Err(format!("{name:?} is named twice"));
    }
    options.variants.push(variant);
    Ok(())
}

fn peer(text: &str) -> Result<Target, String> {
    match (text, text.split_once('=')) {
        ("twemproxy" | "nutcracker", _) => Ok(Target::Twemproxy),
        ("envoy", _) => Ok(Target::Envoy),
        (_, Some((name, rest))) if !name.is_empty() => {
            let (address, pid) = rest
                .rsplit_once(',')
                .ok_or("NAME=HOST:PORT,PID is expected")?;
            if RESERVED.contains(&name) {
                return Err(format!("{name:?} is the name of something else"));
            }
            Ok(Target::Other {
                name: name.to_owned(),
                address: address.to_owned(),
                pid: positive(pid)?,
            })
        }
        _ => Err("twemproxy, envoy or NAME=HOST:PORT,PID is expected".to_owned()),
    }
}

fn server_choice(text: &str) -> Result<ServerChoice, String> {
    let path = Path::new(text);
    if path.is_file() {
        return Ok(ServerChoice::Binary {
            path: path.to_owned(),
        });
    }
    let (address, pid) = text
        .strip_prefix("redis://")
        .unwrap_or(text)
        .rsplit_once(',')
        .ok_or("there is no such file, and HOST:PORT,PID is expected otherwise")?;
    let address = crate::commands::load::address(address)?;
    Ok(ServerChoice::Running {
        address,
        pid: positive(pid)?,
    })
}

/// Runs an experiment to its end. `stop`, once set, ends it within moments.
///
/// # Errors
/// One line, when something that is needed is missing or does not start. What goes wrong later is in the report.
pub fn run(
    experiment: &Experiment,
    options: &Options,
    stop: &Arc<AtomicBool>,
) -> Result<Report, String> {
    let cases = options.cases();
    let is_simple = options.verbs.iter().all(|verb| verb.is_simple());
    if options.generator == Generator::RedisBenchmark {
        servers::find_program("redis-benchmark")?;
        if options.rate.is_some() {
            return Err("redis-benchmark has no open loop: use the lab's own generator".to_owned());
        }
        let is_asked = |verb: &Verb| verb.is_simple() || matches!(verb, Verb::Mget(_));
        if options.zipf.is_some() || !options.verbs.iter().all(is_asked) {
            return Err(
                "redis-benchmark asks SET, GET and MGET of keys chosen evenly: use the lab's own generator"
                    .to_owned(),
            );
        }
    }
    if options.has_floor && !is_simple {
        return Err(
            "the floor answers nothing but SET and GET: measure without --floor".to_owned(),
        );
    }
    let manner = Manner {
        generator: options.generator,
        generator_threads: options.generator_threads,
        warmup_s: options.warmup_s(),
        seconds: options.seconds(),
        keys: options.keys,
        zipf: options.zipf,
        value_bytes: options.value_bytes,
        rate: options.rate,
        origin_ns: clock_ns(),
    };
    for case in &cases {
        manner.recipe(case.workload, &case.target).check()?;
    }
    let most = options.connections.iter().max().copied().unwrap_or(0);
    // Children inherit the limit: the server and the peers need it as much as the generator.
    load::allow_descriptors(2 * most + 1000)?;
    let programs = Programs::find(options.respool.as_deref(), options.value_bytes)?;
    for case in &cases {
        programs.check(&case.target)?;
    }
    let default_rule = match &options.rules_us[..] {
        [] => None,
        _ => Some(window::default_rule(&programs.configuration()?)?),
    };
    let machine = Machine::look();
    let started = machine::now();
    let cores = if experiment.is_isolated {
        let most = options.threads.iter().max().copied().unwrap_or(1);
        Cores::split(usize::from(most))?
    } else {
        None
    };
    let backends = Backends::start(&options.server, cases.iter().map(|case| &case.target))?;
    let start = |target: &Target| {
        let start = || Running::start(target, backends.of(target), &programs);
        match &cores {
            Some(cores) => cores.start_proxy(start),
            None => start(),
        }
    };
    let mut running: Vec<Running> = Vec::new();
    for case in &cases {
        if !running.iter().any(|running| running.target == case.target) {
            running.push(start(&case.target)?);
        }
    }
    // The values never change: written once, they are there for every round. To the server directly; to a pool through
    // whoever is the first before it, and knows which key is whose.
    let mut written: Vec<Behind> = Vec::new();
    if let Some(case) = cases.first() {
        let recipe = manner.recipe(case.workload, &Target::Direct);
        for running in &running {
            let behind = running.target.behind();
            if written.contains(&behind) {
                continue;
            }
            let backend = backends.of(&running.target);
            let address = match behind {
                Behind::Server => backend.address(),
                Behind::Shards(_) | Behind::Cluster(_) => running.address,
            };
            load::preload(address, &recipe)?;
            written.push(behind);
        }
    }
    let mut rounds: Vec<Vec<Round>> = vec![Vec::new(); cases.len()];
    let mut failures = Vec::new();
    let plan = (experiment.plan)(&cases, options.rounds());
    let repeated_max = plan.len() / REPEATED_PART;
    let mut repeated = 0;
    let mut progress = Progress::new(plan.len());
    for (number, place) in plan {
        let case = &cases[place];
        progress.begin(&format!("round {number}: {case}"));
        let target = running
            .iter_mut()
            .find(|running| running.target == case.target)
            .expect("every case's target was started");
        if experiment.is_isolated {
            *target = start(&case.target)?;
        }
        let backend = backends.of(&case.target);
        let measured = window::rate(&cases, &rounds, case, number).and_then(|rate| {
            let manner = Manner {
                rate: rate.or(manner.rate),
                ..manner
            };
            let mut tries = 1;
            loop {
                let round =
                    measure::measure(case.workload, target, backend, &programs, &manner, stop)?;
                let is_robbed = options
                    .stolen_cores_max
                    .is_some_and(|most| round.stolen.is_some_and(|cores| cores > most));
                if !is_robbed || tries == TRIES_MAX || repeated == repeated_max {
                    return Ok(round);
                }
                tries += 1;
                repeated += 1;
            }
        });
        let problems = match measured {
            Ok(round) => {
                let found = complaints(&round, case, number);
                rounds[place].push(Round { number, ..round });
                found
            }
            Err(problem) if problem == STOPPED => return Err(problem),
            Err(problem) => vec![format!("{case}, round {number}: {problem}")],
        };
        progress.end_step();
        if problems.is_empty() {
            continue;
        }
        // A signal for the whole group ends the children, too: that they failed then is no finding.
        if stop.load(Ordering::Relaxed) {
            return Err(STOPPED.to_owned());
        }
        let gone = gone(target, backend);
        let is_over = gone.is_some();
        failures.extend(gone.map(|who| format!("{who} has ended, and the run with it")));
        failures.extend(problems);
        // Whatever else is measured would say so again.
        if is_over {
            break;
        }
    }
    drop(progress);
    let took_s = (clock_ns() - manner.origin_ns) as f64 / 1e9;
    let (server, pools) = backends.facts();
    let cases: Vec<CaseReport> = cases
        .into_iter()
        .zip(rounds)
        .map(|(case, rounds)| CaseReport::of(case, rounds))
        .collect();
    Ok(Report {
        format: Report::FORMAT,
        experiment: experiment.name.to_owned(),
        title: experiment.title.to_owned(),
        about: experiment.about.replace('\n', " "),
        started: machine::utc(started),
        took_s,
        command: command_line(),
        options: resolved(options),
        machine,
        generator: generator_version(options.generator),
        server,
        pools,
        targets: running
            .into_iter()
            .filter_map(|running| running.facts)
            .collect(),
        default_rule,
        repeated,
        comparisons: against::compare(&cases, options.allow_percent),
        cases,
        failures,
    })
}

/// Round by round, every case once in each.
pub fn in_turn(cases: &[Case], rounds: u32) -> Plan {
    let round = |number| {
        order(cases, number)
            .into_iter()
            .map(move |place| (number, place))
    };
    (1..=rounds).flat_map(round).collect()
}

/// The places of all cases in the order of a round. Workloads come in the order of the tables, all targets of one together,
/// since they are compared with each other; every round begins with the next target, so that none always runs after
/// the same other.
fn order(cases: &[Case], round: u32) -> Vec<usize> {
    let mut order = Vec::with_capacity(cases.len());
    for (place, case) in cases.iter().enumerate() {
        let is_same = |other: &Case| other.workload == case.workload;
        if cases[..place].iter().any(is_same) {
            continue;
        }
        let mut same: Vec<usize> = (place..cases.len())
            .filter(|&p| is_same(&cases[p]))
            .collect();
        let shift = (round as usize - 1) % same.len();
        same.rotate_left(shift);
        order.extend(same);
    }
    order
}

/// Who takes part in a measurement and is there no more.
fn gone(target: &Running, backend: &Backend) -> Option<String> {
    let proxy = target
        .pid
        .map(|pid| (target.target.to_string(), target.address, pid));
    let servers = backend.servers.iter();
    let servers = servers.map(|one| (backend.facts.name.clone(), one.address, one.pid));
    let mut all = proxy.into_iter().chain(servers);
    let gone = all.find(|(.., pid)| !servers::is_running(*pid));
    gone.map(|(name, address, _)| format!("{name} at {address}"))
}

fn complaints(round: &Round, case: &Case, number: u32) -> Vec<String> {
    let mut found = Vec::new();
    if round.wrong > 0 {
        let first = round.first_wrong.as_deref().unwrap_or("?");
        found.push(format!(
            "{case}, round {number}: {} wrong replies, the first: {first}",
            round.wrong
        ));
    }
    if round.stalled > 0 {
        found.push(format!(
            "{case}, round {number}: {} connections got no reply within a second of the end",
            round.stalled
        ));
    }
    if round.requests == 0 {
        found.push(format!("{case}, round {number}: no request was answered"));
    }
    found
}

/// What was left open is filled in, so that a reader of the report need not know the defaults.
fn resolved(options: &Options) -> Options {
    Options {
        seconds: Some(options.seconds()),
        warmup_s: Some(options.warmup_s()),
        rounds: Some(options.rounds()),
        ..options.clone()
    }
}

/// How this program was started.
pub(crate) fn command_line() -> Vec<String> {
    let mut words: Vec<String> = std::env::args_os()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    if let Some(program) = words.first_mut() {
        // Where it was built says nothing to a reader.
        let name = Path::new(program)
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        *program = name.unwrap_or_default();
    }
    words
}

fn generator_version(generator: Generator) -> String {
    match generator {
        Generator::Own => format!("respool-lab load {}", env!("CARGO_PKG_VERSION")),
        Generator::RedisBenchmark => servers::find_program("redis-benchmark").map_or_else(
            |missing| missing,
            |program| first_line(&program, "--version"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::parse;
    use std::ffi::OsString;

    fn options(experiment: &Experiment, words: &[&str]) -> Result<Options, String> {
        let mut options = Options::default();
        (experiment.adapt)(&mut options);
        parse(words.iter().map(OsString::from), &FLAGS, &mut options)?;
        Ok(options)
    }

    fn ids(options: &Options) -> Vec<String> {
        options.cases().iter().map(Case::id).collect()
    }

    #[test]
    fn what_a_report_does_not_name_has_its_default() {
        let options: Options = serde_json::from_str(r#"{"keys": 7}"#).unwrap();
        assert_eq!((options.keys, options.allow_percent), (7, 3.0));
        assert_eq!(options.pipelines, [1, 20]);
    }

    #[test]
    fn eight_are_the_original_eight_and_two_with_three_threads() {
        let options = options(&EIGHT, &[]).unwrap();
        assert_eq!(
            ids(&options),
            [
                "set-p1-c50-direct",
                "set-p1-c50-respool-t1",
                "get-p1-c50-direct",
                "get-p1-c50-respool-t1",
                "set-p20-c50-direct",
                "set-p20-c50-respool-t1",
                "get-p20-c50-direct",
                "get-p20-c50-respool-t1",
                "set-p20-c50-respool-t3",
                "get-p20-c50-respool-t3",
            ]
        );
        assert_eq!((options.keys, options.value_bytes), (3000, 2));
    }

    #[test]
    fn lone_and_connections_ask_what_they_say() {
        let lone = options(&LONE, &["--all"]).unwrap();
        assert!(
            lone.cases()
                .iter()
                .all(|c| c.workload.connections == 1 && c.workload.pipeline == 1)
        );
        assert_eq!(lone.cases().len(), 2 * 5);
        let connections = options(&CONNECTIONS, &["--floor"]).unwrap();
        assert_eq!(
            ids(&connections)[..4],
            [
                "get-p1-c50-direct",
                "get-p1-c50-respool-t1",
                "get-p1-c50-floor",
                "get-p1-c1000-direct"
            ]
        );
    }

    #[test]
    fn mget_and_skew_ask_what_they_say() {
        let mget = options(&MGET, &[]).unwrap();
        let found = ids(&mget);
        assert_eq!(found.len(), 13 * 2);
        assert_eq!(found[0], "mget-1-p1-c1-direct");
        assert_eq!(found[25], "mget-10000-p1-c1-respool-t1");
        assert!(mget.verbs.iter().all(|verb| verb.keys() <= mget.keys));
        let skew = options(&SKEW, &[]).unwrap();
        assert_eq!((skew.keys, skew.zipf), (1_000_000, Some(0.99)));
        // No two keys of either have the same value.
        for options in [mget, skew] {
            assert!(62u64.pow(options.value_bytes as u32) >= u64::from(options.keys));
        }
        for wrong in ["-1", "4.1", "nan", "x"] {
            assert!(
                super::tests::options(&SKEW, &["--zipf", wrong]).is_err(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_quick_run_takes_a_minute_whatever_takes_part() {
        for words in [
            &["--quick"][..],
            &["--quick", "--all"],
            &["--quick", "--no-respool"],
        ] {
            let options = options(&EIGHT, words).unwrap();
            let measurements = options.cases().len() as f64 * f64::from(options.rounds());
            let total = measurements * (options.seconds() + options.warmup_s() + OVERHEAD_S);
            assert!((59.0..=61.0).contains(&total), "{words:?}: {total}");
        }
        let chosen = options(&EIGHT, &["--quick", "--seconds", "0.2", "--rounds", "1"]).unwrap();
        assert_eq!((chosen.seconds(), chosen.rounds()), (0.2, 1));
    }

    #[test]
    fn peers_and_servers_are_named_in_every_way() {
        let words = ["--peer", "twemproxy", "--peer", "predixy=127.0.0.1:7617,42"];
        let options = options(&EIGHT, &words).unwrap();
        let other = Target::Other {
            name: "predixy".into(),
            address: "127.0.0.1:7617".into(),
            pid: 42,
        };
        assert_eq!(options.peers, [Target::Twemproxy, other]);
        let running = |address: &str| ServerChoice::Running {
            address: address.parse().unwrap(),
            pid: 7,
        };
        assert_eq!(
            server_choice("redis://127.0.0.1:6379,7"),
            Ok(running("127.0.0.1:6379"))
        );
        for wrong in ["mcrouter", "=1:2,3", "a=1:2", "floor=1:2,3", "a=1:2,0"] {
            assert!(peer(wrong).is_err(), "{wrong}");
        }
        for wrong in ["/no/such/file", "127.0.0.1:6379", "127.0.0.1,7"] {
            assert!(server_choice(wrong).is_err(), "{wrong}");
        }
        assert!(super::tests::options(&EIGHT, &["--peer", "envoy", "--peer", "envoy"]).is_err());
    }

    #[test]
    fn variants_stand_beside_respool_or_in_its_place() {
        let words = [
            "--variant",
            "slow=--max-delay-us=900 --hold=true",
            "--pipeline",
            "1",
        ];
        let given = options(&LONE, &words).unwrap();
        assert_eq!(
            ids(&given)[..3],
            [
                "set-p1-c1-direct",
                "set-p1-c1-respool-t1",
                "set-p1-c1-slow-t1"
            ]
        );
        assert_eq!(
            given.variants[0].options,
            ["--max-delay-us=900", "--hold=true"]
        );
        for words in [&[][..], &["--levels"]] {
            assert_eq!(
                ids(&options(&SKEW, words).unwrap()),
                ["direct", "none-t1", "collapse-t1", "fuse-t1", "both-t1"]
                    .map(|target| format!("get-p20-c200-{target}"))
            );
        }
        let lone = options(&LONE, &["--levels", "--verbs", "get"]).unwrap();
        assert_eq!(ids(&lone).len(), 5);
        for wrong in ["slow", "=--hold=true", "slow=hold", "base=--hold=true"] {
            assert!(options(&LONE, &["--variant", wrong]).is_err(), "{wrong}");
        }
        let twice = ["--variant", "a=--hold=true", "--variant", "a=--hold=false"];
        assert!(options(&LONE, &twice).is_err());
        let peer = ["--variant", "a=--hold=true", "--peer", "a=127.0.0.1:1,2"];
        assert!(options(&LONE, &peer).is_err());
    }

    #[test]
    fn every_round_has_every_case_once_and_begins_with_another_target() {
        let options = options(&EIGHT, &["--all"]).unwrap();
        let cases = options.cases();
        let mut firsts = Vec::new();
        for round in 1..=5 {
            let order = order(&cases, round);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..cases.len()));
            // All targets of a workload follow each other, those with three threads, too.
            let mut workloads: Vec<Workload> = order.iter().map(|&p| cases[p].workload).collect();
            workloads.dedup();
            assert_eq!(workloads.len(), 4);
            firsts.push(order[0]);
        }
        assert_eq!(firsts, [0, 1, 2, 3, 4]);
    }
}
