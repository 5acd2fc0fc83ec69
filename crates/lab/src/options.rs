//! The settings of a run, and the command line of every experiment.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::case::{Case, LoadGenerator, LoadTarget, TlsBy, Verb, Way, Workload};
use crate::flags::{self, ValueList, list, positive, seconds, value_bytes};
use crate::targets::ServerChoice;

/// All settings of a run. A report without one of them is older than it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct RunOptions {
    /// Commands.
    pub verbs: Vec<Verb>,
    /// Requests at once on a connection.
    pub pipelines: Vec<usize>,
    /// Numbers of connections.
    pub connections: Vec<usize>,
    /// Workers of respool. All cases run with the first number, the most pipelined ones with the
    /// others, too.
    pub threads: Vec<u16>,
    /// Different keys.
    pub keys: u32,
    /// Exponent of Zipf's law; `None`: keys are chosen evenly.
    pub zipf: Option<f64>,
    /// Size of each value.
    pub value_bytes: usize,
    /// Seconds of each measured window; `None`: 5, or fewer in a quick run.
    pub seconds: Option<f64>,
    /// Seconds of load before each window; `None`: 2, or 0.3 in a quick run.
    pub warmup_s: Option<f64>,
    /// How often each case is measured; `None`: 5, or 3 in a quick run.
    pub rounds: Option<u32>,
    /// Whether the run takes a minute in all.
    pub is_quick: bool,
    /// Seconds in all, which set the length of the windows unless that is given.
    pub budget_s: Option<f64>,
    /// Requests a second; `None`: closed loop.
    pub rate: Option<f64>,
    /// The load generator.
    pub generator: LoadGenerator,
    /// Threads of the generator.
    pub generator_threads: usize,
    /// The server.
    pub server: ServerChoice,
    /// respool's binary; `None`: next to the lab, or in PATH.
    pub respool: Option<PathBuf>,
    /// Whether to leave out respool.
    pub is_without_respool: bool,
    /// Whether to leave out the direct server.
    pub is_without_direct: bool,
    /// Rates of open loops besides the closed one, requests a second.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<u32>,
    /// respool with other options, in the same rounds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<Variant>,
    /// Another build of respool, to compare with instead of the direct server.
    pub base: Option<PathBuf>,
    /// Percent of CPU per request that respool may cost above that build.
    pub allow_percent: f64,
    /// Other proxies, in the same rounds.
    pub peers: Vec<LoadTarget>,
    /// Ways to several servers, in the same rounds: see [`crate::cluster`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ways: Vec<Way>,
    /// Numbers of servers for each of these ways.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<u16>,
    /// Whether the echo server is measured in the same rounds.
    pub has_floor: bool,
    /// Cores that a hypervisor may take in a measurement before it is repeated. `None`: any number.
    pub stolen_cores_max: Option<f64>,
    /// Folder of the files; `None`: a new one in `lab-out`.
    pub out: Option<PathBuf>,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        RunOptions {
            verbs: Verb::ALL.to_vec(),
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
            generator: LoadGenerator::Own,
            generator_threads: 1,
            server: ServerChoice::Found,
            respool: None,
            is_without_respool: false,
            is_without_direct: false,
            rates: Vec::new(),
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

/// respool with other options.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// Its name in tables.
    pub name: String,
    /// Options of its command line.
    pub options: Vec<String>,
}

impl Variant {
    /// With these options, which have a blank between them.
    pub fn new(name: &str, options: &str) -> Variant {
        Variant {
            name: name.to_owned(),
            options: options.split_whitespace().map(str::to_owned).collect(),
        }
    }

    /// The target with so many workers.
    pub fn target(&self, threads: u16) -> LoadTarget {
        LoadTarget::Variant {
            name: self.name.clone(),
            threads,
            options: self.options.clone(),
        }
    }
}

/// Seconds of the same load after which `balanced` has settled.
pub const SETTLE_S: f64 = 2.0;
/// Seconds of a quick run.
const QUICK_S: f64 = 60.0;
/// Time of a measurement beside warm-up and window: starting the generator, connecting, the last
/// replies.
const OVERHEAD_S: f64 = 0.15;
impl RunOptions {
    /// The cases, in the order of the tables.
    pub fn cases(&self) -> Vec<Case> {
        let first = self.threads.first().copied().unwrap_or(1);
        let mut targets = Vec::new();
        if self.base.is_none() && !self.is_without_direct {
            targets.push(LoadTarget::Direct);
        }
        targets.extend(self.builds(first));
        targets.extend(self.peers.iter().cloned());
        targets.extend(self.pools(&[Way::Envoy], 1));
        if self.has_floor {
            targets.push(LoadTarget::Floor);
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

    /// respool with so many workers, its variants, and the other build.
    fn builds(&self, threads: u16) -> Vec<LoadTarget> {
        let respool = (!self.is_without_respool).then_some(LoadTarget::Respool { threads });
        let base = self.base.clone();
        let base = base.map(|binary| LoadTarget::Base { threads, binary });
        let mut builds: Vec<LoadTarget> = respool.into_iter().collect();
        builds.extend(self.variants.iter().map(|variant| variant.target(threads)));
        builds.extend(base);
        builds.extend(self.pools(&[Way::Sharded, Way::Cluster], threads));
        builds
    }

    /// The chosen ones of these ways, over each number of servers.
    fn pools(&self, ways: &[Way], threads: u16) -> Vec<LoadTarget> {
        let chosen = self.ways.iter().filter(|way| ways.contains(way));
        let pool = |way: Way| {
            self.servers.iter().map(move |&servers| LoadTarget::Pool {
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
                    // Many keys in a request are like many requests at once: beside a pipeline, one
                    // such request at a time is enough.
                    let is_many = !self.ways.is_empty() && verb.keys() > 1;
                    if is_many && self.pipelines.iter().any(|&other| other < pipeline) {
                        continue;
                    }
                    let rates = self.rates.iter().copied().map(Some).chain([None]);
                    workloads.extend(rates.map(|rate| Workload {
                        verb,
                        pipeline,
                        connections,
                        rate,
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
        self.warmup_s
            .unwrap_or(if is_short { 0.3 } else { SETTLE_S })
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

/// Connections, workers, programs and files: for every command that measures.
#[derive(Args, Debug)]
pub struct PlaceArgs {
    /// Connections, several numbers with commas.
    #[arg(long, value_name = "LIST", value_parser = list::<usize>)]
    connections: Option<ValueList<usize>>,
    /// Workers of respool. Every case runs with the first number, the most pipelined ones with the
    /// others as well.
    #[arg(long, value_name = "LIST", value_parser = thread_counts)]
    threads: Option<ValueList<u16>>,
    /// A server's binary, started and ended by the lab [redis-server or valkey-server from PATH];
    /// or one that runs already, whose keys key:… are overwritten.
    #[arg(long, value_name = "PATH|HOST:PORT,PID", value_parser = server_choice)]
    server: Option<ServerChoice>,
    /// The proxy's binary [next to respool-lab, or in PATH].
    #[arg(long, value_name = "PATH")]
    respool: Option<PathBuf>,
    /// Where the files go [a new folder in lab-out].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The load: for every experiment.
#[derive(Args, Debug)]
pub struct LoadArgs {
    /// Seconds of the same load before each window [2; with --quick or --minutes 0.3, but window
    /// 2]. A balanced flush rule takes that long to settle.
    #[arg(long, value_name = "S", value_parser = seconds)]
    warmup: Option<f64>,
    /// Requests that a connection sends at once, several numbers with commas.
    #[arg(long, value_name = "LIST", value_parser = list::<usize>)]
    pipeline: Option<ValueList<usize>>,
    /// Different keys, chosen evenly [3000; mget: 20000; skew: 1000000].
    #[arg(long, value_name = "N", value_parser = positive::<u32>)]
    keys: Option<u32>,
    /// Size of each value [2; mget and skew: 4].
    #[arg(long, value_name = "N", value_parser = value_bytes)]
    value_bytes: Option<usize>,
    /// Threads that make the load [1].
    #[arg(long, value_name = "N", value_parser = positive::<usize>)]
    generator_threads: Option<usize>,
}

/// How long and how often: for the experiments that measure in windows.
#[derive(Args, Debug)]
pub struct TimeArgs {
    /// Length of each measured window [5].
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<f64>,
    /// How often each case is measured, all cases in turn [5]. Tables show medians.
    #[arg(long, value_name = "N", value_parser = positive::<u32>)]
    rounds: Option<u32>,
}

/// The generator and its pace.
#[derive(Args, Debug)]
pub struct PaceArgs {
    /// So many requests a second, due at fixed times; latency from when each was due. Without it
    /// each connection waits for its replies before it asks again.
    #[arg(long, value_name = "RATE", value_parser = positive::<f64>)]
    open_loop: Option<f64>,
    /// The generator of the load [own].
    #[arg(long, value_name = "own|redis-benchmark", value_parser = generator)]
    generator: Option<LoadGenerator>,
}

/// The options of `eight`, `lone`, `connections`, `mget` and `skew`.
#[derive(Args, Debug)]
pub struct ExperimentArgs {
    /// A minute in all: three rounds, windows as short as that needs.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    time: TimeArgs,
    #[command(flatten)]
    load: LoadArgs,
    /// Of set, get and multi (a transaction of both).
    #[arg(long, value_name = "LIST", value_parser = verbs)]
    verbs: Option<ValueList<Verb>>,
    /// Instead of --verbs: MGET of so many different keys, several numbers with commas.
    #[arg(long, value_name = "LIST", value_parser = list::<u32>)]
    mget: Option<ValueList<u32>>,
    /// Keys chosen by Zipf's law with this exponent: the first one most often [skew: 0.99].
    #[arg(long, value_name = "THETA", value_parser = theta)]
    zipf: Option<f64>,
    #[command(flatten)]
    pace: PaceArgs,
    #[command(flatten)]
    place: PlaceArgs,
    /// Measure without respool.
    #[arg(long)]
    no_respool: bool,
    /// respool once more in the same rounds, with other options, a blank between them: --variant
    /// 'patient=--max-delay-us=500 --flush-rule=server-cpu'. May be given several times.
    #[arg(long = "variant", value_name = "NAME=OPTIONS", value_parser = variant)]
    variants: Vec<Variant>,
    /// Four variants in place of respool as it is: nothing joined, equal reads collapsed, GETs and
    /// SETs fused, and both.
    #[arg(long)]
    levels: bool,
    /// Another target in the same rounds: twemproxy, envoy, direct-tls, respool-tls, haproxy-tls,
    /// stunnel-tls, or NAME=HOST:PORT,PID for a proxy that already runs before the same server. May
    /// be given several times.
    #[arg(long = "peer", value_name = "PEER", value_parser = peer)]
    peers: Vec<LoadTarget>,
    /// An echo server in the same rounds: the cost of the kernel alone for a proxy.
    #[arg(long)]
    floor: bool,
    /// Short for --peer twemproxy --peer envoy --floor.
    #[arg(long)]
    all: bool,
}

/// Replaces the value that an experiment starts from, if another one was given.
pub(crate) fn put<T>(given: Option<T>, into: &mut T) {
    if let Some(value) = given {
        *into = value;
    }
}

impl PlaceArgs {
    /// Puts them into the options.
    pub fn apply(self, options: &mut RunOptions) {
        put(self.connections, &mut options.connections);
        put(self.threads, &mut options.threads);
        put(self.server, &mut options.server);
        put(self.respool.map(Some), &mut options.respool);
        put(self.out.map(Some), &mut options.out);
    }
}

impl LoadArgs {
    /// Puts them into the options.
    pub fn apply(self, options: &mut RunOptions) {
        put(self.warmup.map(Some), &mut options.warmup_s);
        put(self.pipeline, &mut options.pipelines);
        put(self.keys, &mut options.keys);
        put(self.value_bytes, &mut options.value_bytes);
        put(self.generator_threads, &mut options.generator_threads);
    }
}

impl TimeArgs {
    /// Puts them into the options.
    pub fn apply(self, options: &mut RunOptions) {
        put(self.seconds.map(Some), &mut options.seconds);
        put(self.rounds.map(Some), &mut options.rounds);
    }
}

impl PaceArgs {
    /// Puts them into the options.
    pub fn apply(self, options: &mut RunOptions) {
        put(self.open_loop.map(Some), &mut options.rate);
        put(self.generator, &mut options.generator);
    }
}

impl ExperimentArgs {
    /// Puts them into the options.
    ///
    /// # Errors
    /// When two of them exclude each other.
    pub fn apply(self, options: &mut RunOptions) -> Result<(), String> {
        options.is_quick = self.quick;
        self.time.apply(options);
        self.load.apply(options);
        self.pace.apply(options);
        self.place.apply(options);
        if self.verbs.is_some() && self.mget.is_some() {
            return Err("of --verbs and --mget, one can be given".to_owned());
        }
        let mget = |counts: ValueList<u32>| counts.into_iter().map(Verb::Mget).collect();
        put(self.verbs.or(self.mget.map(mget)), &mut options.verbs);
        put(self.zipf.map(Some), &mut options.zipf);
        if self.no_respool || self.levels {
            options.is_without_respool = true;
        }
        // An experiment may have the levels anyway.
        let is_level = |variant: &Variant| levels().any(|level| level == *variant);
        if self.no_respool && !self.levels {
            options.variants.retain(|variant| !is_level(variant));
        } else if self.levels && !options.variants.iter().any(is_level) {
            options.variants.extend(levels());
        }
        options.add_variants(self.variants)?;
        options.add_peers(self.peers)?;
        if self.all {
            for peer in [LoadTarget::Twemproxy, LoadTarget::Envoy] {
                if !options.peers.contains(&peer) {
                    options.peers.push(peer);
                }
            }
        }
        options.has_floor = self.floor || self.all;
        Ok(())
    }
}

impl RunOptions {
    /// Adds respool with other options.
    ///
    /// # Errors
    /// When two have the same name.
    pub fn add_variants(&mut self, variants: Vec<Variant>) -> Result<(), String> {
        for variant in variants {
            if self.variants.iter().any(|other| other.name == variant.name) {
                return Err(format!("--variant {}: named twice", variant.name));
            }
            self.variants.push(variant);
        }
        Ok(())
    }

    /// Adds other proxies.
    ///
    /// # Errors
    /// When two have the same name, or that of a variant.
    pub fn add_peers(&mut self, peers: Vec<LoadTarget>) -> Result<(), String> {
        for peer in peers {
            let name = peer.name();
            let others = self.peers.iter().map(LoadTarget::name);
            let variants = self.variants.iter().map(|variant| variant.name.clone());
            if others.chain(variants).any(|other| other == name) {
                return Err(format!("--peer {name}: named twice"));
            }
            self.peers.push(peer);
        }
        Ok(())
    }
}

/// Of set, get and multi.
pub(crate) fn verbs(value: &str) -> Result<ValueList<Verb>, String> {
    let verb = |word: &str| match word.trim().to_lowercase().as_str() {
        "set" => Ok(Verb::Set),
        "get" => Ok(Verb::Get),
        "multi" => Ok(Verb::Multi),
        other => Err(format!("{other:?} is none of set, get and multi")),
    };
    value.split(',').map(verb).collect()
}

fn thread_counts(value: &str) -> Result<ValueList<u16>, String> {
    let numbers: Vec<u32> = list(value)?;
    let number = |n: u32| u16::try_from(n).map_err(|_| "too many".to_owned());
    numbers.into_iter().map(number).collect()
}

fn generator(value: &str) -> Result<LoadGenerator, &'static str> {
    match value {
        "own" => Ok(LoadGenerator::Own),
        "redis-benchmark" => Ok(LoadGenerator::RedisBenchmark),
        _ => Err("own or redis-benchmark is expected"),
    }
}

/// The largest exponent of Zipf's law: far more than any traffic has.
const THETA_MAX: f64 = 4.0;

/// An exponent of Zipf's law.
///
/// # Errors
/// When it is out of range.
pub fn theta(text: &str) -> Result<f64, String> {
    let most = THETA_MAX;
    match text.parse::<f64>() {
        Ok(theta) if (0.0..=most).contains(&theta) => Ok(theta),
        _ => Err(format!("a number from 0 to {most} is expected")),
    }
}

/// The levels of coalescing: the variants of `--levels`.
const LEVELS: [(&str, &str); 4] = [
    ("none", "--collapse=false --fuse=false"),
    ("collapse", "--collapse=true --fuse=false"),
    ("fuse", "--collapse=false --fuse=true"),
    ("both", "--collapse=true --fuse=true"),
];

pub(crate) fn levels() -> impl Iterator<Item = Variant> {
    LEVELS.iter().map(|(name, words)| Variant::new(name, words))
}

/// Names that no variant and no other proxy may have.
const RESERVED: [&str; 10] = [
    "direct",
    "respool",
    "base",
    "twemproxy",
    "envoy",
    "floor",
    "direct-tls",
    "respool-tls",
    "haproxy-tls",
    "stunnel-tls",
];

/// respool with other options: `NAME=--OPTION...`.
pub(crate) fn variant(text: &str) -> Result<Variant, String> {
    let (name, words) = text
        .split_once('=')
        .filter(|(name, words)| !name.is_empty() && words.starts_with("--"))
        .ok_or("NAME=--OPTION... is expected")?;
    if RESERVED.contains(&name) {
        return Err(format!("{name:?} is the name of something else"));
    }
    Ok(Variant::new(name, words))
}

/// Another target: `twemproxy`, `envoy`, one with TLS, or `NAME=HOST:PORT,PID`.
pub(crate) fn peer(text: &str) -> Result<LoadTarget, String> {
    if let Some(by) = TlsBy::ALL.into_iter().find(|by| by.name() == text) {
        return Ok(LoadTarget::Tls { by });
    }
    match (text, text.split_once('=')) {
        ("twemproxy" | "nutcracker", _) => Ok(LoadTarget::Twemproxy),
        ("envoy", _) => Ok(LoadTarget::Envoy),
        (_, Some((name, rest))) if !name.is_empty() => {
            let (address, pid) = rest
                .rsplit_once(',')
                .ok_or("NAME=HOST:PORT,PID is expected")?;
            if RESERVED.contains(&name) {
                return Err(format!("{name:?} is the name of something else"));
            }
            Ok(LoadTarget::Other {
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
    let address = flags::address(address)?;
    Ok(ServerChoice::Running {
        address,
        pid: positive(pid)?,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::experiment::{CONNECTIONS, EIGHT, Experiment, LONE, MGET, SKEW};
    use crate::flags::parse;
    use std::ffi::OsString;

    pub(crate) fn options(experiment: &Experiment, words: &[&str]) -> Result<RunOptions, String> {
        let mut options = RunOptions::default();
        (experiment.adapt)(&mut options);
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let given: ExperimentArgs = parse("", &words)?.expect("no help is asked for");
        given.apply(&mut options)?;
        Ok(options)
    }

    fn ids(options: &RunOptions) -> Vec<String> {
        options.cases().iter().map(Case::id).collect()
    }

    /// An option that a report does not name has its default.
    #[test]
    fn options_missing_in_a_report_have_defaults() {
        let options: RunOptions = serde_json::from_str(r#"{"keys": 7}"#).unwrap();
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
    fn lone_and_connections_have_the_named_cases() {
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
    fn mget_and_skew_have_the_named_cases() {
        let mget = options(&MGET, &[]).unwrap();
        let found = ids(&mget);
        assert_eq!(found.len(), 13 * 2);
        assert_eq!(found[0], "mget-1-p1-c1-direct");
        assert_eq!(found[25], "mget-10000-p1-c1-respool-t1");
        assert!(mget.verbs.iter().all(|verb| verb.keys() <= mget.keys));
        let skew = options(&SKEW, &[]).unwrap();
        assert_eq!((skew.keys, skew.zipf), (1_000_000, Some(0.99)));
        // No two keys of an experiment have the same value.
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
    fn quick_run_takes_a_minute_with_any_participants() {
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
        let other = LoadTarget::Other {
            name: "predixy".into(),
            address: "127.0.0.1:7617".into(),
            pid: 42,
        };
        assert_eq!(options.peers, [LoadTarget::Twemproxy, other]);
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
            "slow=--max-delay-us=900 --fuse=true",
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
            ["--max-delay-us=900", "--fuse=true"]
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
        for wrong in ["slow", "=--fuse=true", "slow=fuse", "base=--fuse=true"] {
            assert!(options(&LONE, &["--variant", wrong]).is_err(), "{wrong}");
        }
        let twice = ["--variant", "a=--fuse=true", "--variant", "a=--fuse=false"];
        assert!(options(&LONE, &twice).is_err());
        let peer = ["--variant", "a=--fuse=true", "--peer", "a=127.0.0.1:1,2"];
        assert!(options(&LONE, &peer).is_err());
    }
}
