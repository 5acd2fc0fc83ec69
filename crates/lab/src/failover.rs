//! A server fails, another one takes over, and clients behind a proxy go on: the outcome and the
//! time of each request meanwhile.
//!
//! ```text
//! clients   write and read at a pace through a proxy ────────────────────────────────>  time
//! failure   the server is killed, or told to hand over ──┐
//! direct    a probe writes to its candidates             └─ x x x x x x x x ok
//! named     Sentinels are asked for the primary             old old old old old new
//! through   the first write to its keys, acknowledged after direct, that the new one has ─ ok
//! ```
//!
//! A candidate is a replica that may take over. Under Sentinels a primary that hands over still
//! takes writes when the candidate already does, and these are lost: their acknowledgement proves
//! nothing. So a write counts as through when it is there in the end.
//!
//! The time that servers take to choose a candidate is their own. The proxy, respool or another
//! one, adds the time from the candidate's first direct write to the first write that it
//! acknowledges through the proxy.
//!
//! Every write appends a unique number to a list. So the servers themselves tell in the end which
//! writes ran, and how often. An acknowledged number that is missing was lost. A number that is
//! there twice was sent twice. A number that is there although its client was told that it did not
//! run was denied wrongly.

pub mod clients;
pub mod page;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use respool_testkit::client::Reply;
use respool_testkit::scene::{self, By, Scene, SceneSettings, TopologyKind};
use respool_testkit::servers::{self, Flavour, Proxy};
use respool_testkit::time::clock_ns;
use serde::{Deserialize, Serialize};

use crate::machine::{self, Machine};
use crate::progress;
use crate::report::FigureSpread;
use crate::targets::{self, HeldChild, Programs, first_line};

use clients::{FailoverLoad, LoadKey, LoggedRequest, RequestOutcome};

/// Its command.
pub const NAME: &str = "failover";
/// The headline of its report.
pub const TITLE: &str =
    "A server fails: errors and delays of its clients until another one has taken its place";
/// Its question.
pub const ABOUT: &str = "\
What do clients meet while a server fails and another takes its place? Some write and some read at a pace, each request due at its time \
even if those before are late, through a proxy before a Cluster, before servers that Sentinels watch, or before plain \
servers of which one is killed and comes back empty. A probe asks the candidates directly until one of them takes a write. The \
proxy's own delay begins then, or when a Sentinel names the candidate. It ends with the first write to the candidate that the proxy has \
acknowledged. Every write is looked for in the servers at the end.";

/// respool's read policies. The first one is the default. With the last three, a read should always
/// find a server.
pub const READS: [&str; 5] = [
    "primary",
    "replica",
    "prefer-primary",
    "prefer-replica",
    "nearest",
];
/// Bound for the time from the candidate's first direct write to the first one through the proxy,
/// milliseconds.
pub const ADDED_MS_MAX: f64 = 300.0;
/// Milliseconds of one column of the picture, and of one line of timeline.csv.
pub const BUCKET_MS: f64 = 50.0;
/// Most requests of a round.
const ASKED_MAX: f64 = 2e6;
/// The time in which the servers agree after a failover.
const REST: Duration = Duration::from_secs(40);
/// How often the run looks whether it should stop.
const LOOK_UP: Duration = Duration::from_millis(50);

/// The proxy of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Through {
    /// respool.
    Respool,
    /// Envoy's Redis proxy, to compare with.
    Envoy,
}

impl Through {
    /// The word for options and tables.
    pub fn name(self) -> &'static str {
        match self {
            Through::Respool => "respool",
            Through::Envoy => "envoy",
        }
    }
}

/// All settings of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FailoverSettings {
    /// The topology behind the proxy.
    pub kind: TopologyKind,
    /// How the server fails.
    pub by: By,
    /// The proxy.
    pub through: Through,
    /// Whether a Cluster serves its other slots while those of the failed primary have no owner.
    pub is_partial: bool,
    /// The number of rounds, each with new servers.
    pub rounds: u32,
    /// Requests a second that are due, writes and reads together.
    pub rate: f64,
    /// Connections that write, at least one.
    pub writers: usize,
    /// Connections that read.
    pub readers: usize,
    /// Keys that are written, and as many that are read.
    pub keys: usize,
    /// Seconds of load before the failure.
    pub before_s: f64,
    /// Seconds of load after it.
    pub after_s: f64,
    /// Seconds after which a plain server comes back.
    pub down_s: f64,
    /// The silence after which other nodes or Sentinels take a server for failed.
    pub silence: Duration,
    /// respool's read policy: one of [`READS`].
    #[serde(default = "read_at_primaries")]
    pub reads: String,
    /// Workers of respool.
    pub threads: u16,
    /// More arguments for it.
    pub respool_args: Vec<String>,
    /// The name of the server's flavour.
    pub flavour: String,
}

fn read_at_primaries() -> String {
    READS[0].to_owned()
}

impl FailoverSettings {
    /// The servers behind the proxy.
    pub fn scene(&self) -> SceneSettings {
        SceneSettings {
            kind: self.kind,
            is_partial: self.is_partial,
            silence: self.silence,
        }
    }
}

impl Default for FailoverSettings {
    fn default() -> FailoverSettings {
        FailoverSettings {
            kind: TopologyKind::Cluster,
            by: By::Kill,
            through: Through::Respool,
            is_partial: false,
            rounds: 3,
            rate: 2000.0,
            writers: 8,
            readers: 8,
            keys: 240,
            before_s: 1.0,
            after_s: 6.0,
            down_s: 1.0,
            silence: Duration::from_millis(1500),
            reads: read_at_primaries(),
            threads: 1,
            respool_args: Vec::new(),
            flavour: Flavour::Redis70.name().to_owned(),
        }
    }
}

impl FailoverSettings {
    /// Whether a read always has a server.
    pub fn always_reads(&self) -> bool {
        READS[2..].contains(&self.reads.as_str())
    }

    /// Checks that these settings go together.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn check(&self) -> Result<(), String> {
        let requests = self.rate * (self.before_s + self.after_s);
        if requests > ASKED_MAX {
            return Err(format!(
                "{requests:.0} requests are too many to be kept one by one: {ASKED_MAX:.0} at most"
            ));
        }
        if self.through == Through::Envoy && self.kind != TopologyKind::Cluster {
            return Err(
                "Envoy has no Sentinel backend and uses its own hashing for shards: use --kind cluster"
                    .to_owned(),
            );
        }
        if self.is_partial && self.kind != TopologyKind::Cluster {
            return Err(
                "only a Cluster can have slots without an owner: use --kind cluster".to_owned(),
            );
        }
        let is_told = self.reads != READS[0];
        if is_told && (self.kind == TopologyKind::Sharded || self.through == Through::Envoy) {
            return Err(
                "only respool reads from replicas, and sharded servers have none".to_owned(),
            );
        }
        match (self.kind, self.by) {
            (TopologyKind::Sharded, By::Freeze | By::Command) => {
                Err("sharded servers have no replica that takes over: use --by kill".to_owned())
            }
            (TopologyKind::Sharded, By::Kill) if self.down_s >= self.after_s => {
                Err("the server has to come back before the end: --down below --after".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// A whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FailoverReport {
    /// Version of the format.
    pub format: u32,
    /// [`NAME`].
    pub experiment: String,
    /// When it began, UTC.
    pub started: String,
    /// Seconds from beginning to end.
    pub took_s: f64,
    /// The command line that ran it.
    pub command: Vec<String>,
    /// The settings.
    pub settings: FailoverSettings,
    /// The machine.
    pub machine: Machine,
    /// The version of the servers.
    pub server: String,
    /// The version of the proxy.
    pub proxy: String,
    /// The proxy's command line in the last round.
    pub proxy_command: String,
    /// In the order they ran.
    pub rounds: Vec<FailoverRound>,
    /// Violations, one line each.
    pub failures: Vec<String>,
}

/// One failover. Times are milliseconds from the failure; `None`: it did not happen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FailoverRound {
    /// From 1.
    pub number: u32,
    /// Requests with a reply or given up.
    pub requests: u64,
    /// The first error reply after the failure.
    pub first_error_ms: Option<f64>,
    /// The last error reply.
    pub last_error_ms: Option<f64>,
    /// When a candidate acknowledged the probe's write.
    pub direct_ms: Option<f64>,
    /// When a Sentinel named a candidate, where there are Sentinels. Before that a client cannot
    /// learn it.
    #[serde(default)]
    pub named_ms: Option<f64>,
    /// When the proxy acknowledged the first write to the failed server's keys that followed the
    /// probe's and is there in the end.
    pub through_ms: Option<f64>,
    /// The longest time without an acknowledged write to that server's keys.
    pub longest_gap_ms: Option<f64>,
    /// The same for keys of the other servers, where there are others.
    pub others_gap_ms: Option<f64>,
    /// Reads that failed after the failure.
    #[serde(default)]
    pub failed_reads: u64,
    /// Errors after the moment by their first word.
    pub errors: Vec<ErrorCount>,
    /// Acknowledged writes.
    pub acknowledged: u64,
    /// Acknowledged writes that no server has any more.
    pub lost: u64,
    /// Writes that ran more than once.
    pub doubled: u64,
    /// Writes that ran although their client was told that they did not.
    pub belied: u64,
    /// Requests by the time at which they were due.
    pub timeline: Vec<Bucket>,
}

/// Errors of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorCount {
    /// The first word of their text. `timeout` and `closed`: there was no reply. `nil`: the reply
    /// had no value.
    pub kind: String,
    /// Requests for keys of the failed server: writes and reads.
    pub failed: [u64; 2],
    /// Requests for keys of other servers.
    pub others: [u64; 2],
    /// The text of the first one.
    pub first: String,
}

/// Requests that were due within [`BUCKET_MS`]. The first of each pair is about keys of the failing
/// server, the second about other keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// Its beginning, milliseconds from the failure.
    pub at_ms: f64,
    /// Replies without an error.
    pub done: [u64; 2],
    /// Their median time, from when each was due.
    pub p50_us: [Option<f64>; 2],
    /// Their longest time.
    pub max_us: [Option<f64>; 2],
    /// Errors: NOTSENT, UNKNOWN, others.
    pub errors: [u64; 3],
}

impl FailoverRound {
    /// Milliseconds that the proxy added to the direct write.
    pub fn added_ms(&self) -> Option<f64> {
        Some(self.through_ms? - self.direct_ms?)
    }

    /// Whether it healed in time; `None`: it did not heal.
    pub fn is_kept(&self) -> Option<bool> {
        self.added_ms().map(|ms| ms <= ADDED_MS_MAX)
    }
}

impl FailoverReport {
    /// The version of `report.json` that this program writes.
    pub const FORMAT: u32 = 1;

    /// Whether all rounds healed in time; `None`: one of them did not heal.
    pub fn is_kept(&self) -> Option<bool> {
        let kept: Option<Vec<bool>> = self.rounds.iter().map(FailoverRound::is_kept).collect();
        let kept = kept.filter(|kept| !kept.is_empty())?;
        Some(kept.into_iter().all(|kept| kept))
    }
}

/// Runs it to its end. `stop`, once set, ends it soon.
///
/// # Errors
/// One line, when a program is missing or does not start, or the failover does not happen.
pub fn run(
    settings: &FailoverSettings,
    respool: Option<&Path>,
    command: Vec<String>,
    stop: &AtomicBool,
) -> Result<FailoverReport, String> {
    settings.check()?;
    let proxy = match settings.through {
        Through::Respool => Programs::respool(respool)?,
        Through::Envoy => servers::find_program("envoy")?,
    };
    let binary = servers::find(respool_checker::differ::flavour(&settings.flavour)?)?;
    // No server is contacted, so any address will do.
    let url = scene::url(
        settings.kind,
        &[([127, 0, 0, 1], 7000).into(), ([127, 0, 0, 1], 7001).into()],
    );
    if settings.through == Through::Respool {
        targets::check(&proxy, &["--backend", &url])?;
    }
    let server = servers::version(&binary).map_err(|error| error.to_string())?;
    let (begin_ns, started) = (clock_ns(), machine::utc(machine::now()));
    let mut report = FailoverReport {
        format: FailoverReport::FORMAT,
        experiment: NAME.to_owned(),
        started,
        took_s: 0.0,
        command,
        settings: settings.clone(),
        machine: Machine::look(),
        server,
        proxy: first_line(&proxy, "--version"),
        proxy_command: String::new(),
        rounds: Vec::new(),
        failures: Vec::new(),
    };
    let progress = progress::bar(settings.rounds as usize);
    for number in 1..=settings.rounds {
        progress.set_message(format!("round {number}"));
        let mut failed = |text: String| report.failures.push(format!("round {number}: {text}"));
        let (round, proxy_command) = RunningRound {
            settings,
            binary: &binary,
            proxy: &proxy,
            number,
            stop,
        }
        .run(&mut failed)
        .map_err(|problem| format!("round {number}: {problem}"))?;
        report.proxy_command = proxy_command;
        report.rounds.push(round);
        progress.inc(1);
    }
    drop(progress);
    report.took_s = (clock_ns() - begin_ns) as f64 / 1e9;
    Ok(report)
}

/// One failover from its beginning.
struct RunningRound<'a> {
    settings: &'a FailoverSettings,
    binary: &'a Path,
    proxy: &'a Path,
    number: u32,
    stop: &'a AtomicBool,
}

impl RunningRound<'_> {
    fn run(&self, failed: &mut dyn FnMut(String)) -> Result<(FailoverRound, String), String> {
        let settings = self.settings;
        let broken = |step: &str| {
            let step = step.to_owned();
            move |error: io::Error| format!("{step}: {error}")
        };
        let mut scene =
            Scene::start(&settings.scene(), self.binary).map_err(broken("the servers"))?;
        let proxy = self.start_proxy(&scene);
        let proxy = proxy.map_err(broken(settings.through.name()))?;
        let address = proxy.address();
        targets::wait_until_served(address).map_err(broken(settings.through.name()))?;
        let keys = self.write_keys(address, &scene)?;
        let probe_key = scene.own_key(address).map_err(broken("the probe's key"))?;
        scene
            .wait_for_replicas(&probe_key)
            .map_err(broken("the replicas"))?;
        let load = FailoverLoad {
            address,
            keys: &keys,
            settings,
            start_ns: clock_ns(),
            over: AtomicBool::new(false),
        };
        let (asked, times) = thread::scope(|scope| {
            let clients = load.begin(scope);
            let happened = self.happen(&mut scene, &probe_key, &load);
            load.over.store(true, Ordering::Relaxed);
            let mut asked: Vec<LoggedRequest> = Vec::new();
            for client in clients {
                asked.extend(client.join().map_err(|_| "a client panicked".to_owned())?);
            }
            Ok::<_, String>((asked, happened?))
        })?;
        if self.stop.load(Ordering::Relaxed) {
            return Err(crate::measure::STOPPED.to_owned());
        }
        scene.rest(REST).map_err(broken("the servers afterwards"))?;
        let there = self.read_back(&scene, &keys)?;
        let found = ExecutedWrites::of(&asked, &there);
        self.judge(&asked, &found, failed);
        let round = FailoverRound {
            number: self.number,
            acknowledged: found.acknowledged,
            lost: found.lost,
            doubled: found.doubled,
            belied: found.belied,
            ..summary(&asked, &keys, times, &there)
        };
        Ok((round, proxy.command_line()))
    }

    fn start_proxy(&self, scene: &Scene) -> io::Result<HeldChild> {
        let settings = self.settings;
        match settings.through {
            Through::Respool => {
                let mut url = scene.url();
                if settings.reads != READS[0] {
                    url += &format!("?reads={}", settings.reads);
                }
                let threads = settings.threads.to_string();
                let mut args = vec!["--backend", &url, "--threads", &threads];
                args.extend(settings.respool_args.iter().map(String::as_str));
                Proxy::start(self.proxy, &args).map(HeldChild::Proxy)
            }
            Through::Envoy => {
                let started = targets::start_envoy(self.proxy, true, &scene.addresses());
                started.map(|(process, _)| HeldChild::Process(process))
            }
        }
    }

    /// Writes every key once through the proxy, which knows where it belongs; then asks the servers
    /// where it is.
    fn write_keys(&self, address: SocketAddr, scene: &Scene) -> Result<Vec<LoadKey>, String> {
        let count = self.settings.keys;
        let mut keys: Vec<LoadKey> = (0..2 * count)
            .map(|number| LoadKey {
                name: format!("failover:{number}"),
                is_written: number < count,
                group: 0,
            })
            .collect();
        clients::write_first(address, &keys).map_err(|error| format!("keys: {error}"))?;
        for key in &mut keys {
            let group = scene.group_of(&key.name);
            key.group = group.map_err(|error| format!("{}: {error}", key.name))?;
        }
        let is_failed = |key: &&LoadKey| key.group == 0;
        for is_written in [true, false] {
            let mut own = keys.iter().filter(|key| key.is_written == is_written);
            if !own.any(|key| is_failed(&key)) {
                return Err("no key is the failing server's: --keys should be more".to_owned());
            }
        }
        Ok(keys)
    }

    /// Causes the failure while clients run. Returns when it did.
    fn happen(
        &self,
        scene: &mut Scene,
        probe_key: &str,
        load: &FailoverLoad<'_>,
    ) -> Result<FailoverTimes, String> {
        let settings = self.settings;
        let moment = load.start_ns + (settings.before_s * 1e9) as u64;
        let end = moment + (settings.after_s * 1e9) as u64;
        self.sleep_until(moment);
        let moment_ns = clock_ns();
        scene
            .fail(settings.by)
            .map_err(|error| format!("--by {}: {error}", settings.by.name()))?;
        let (candidates, witnesses) = (scene.candidates(), scene.witnesses());
        thread::scope(|scope| {
            let probe = scope.spawn(|| clients::probe(&candidates, probe_key, &load.over));
            let named = scope.spawn(|| clients::named(&witnesses, &candidates, &load.over));
            let down = moment_ns + (settings.down_s * 1e9) as u64;
            if settings.kind == TopologyKind::Sharded {
                self.sleep_until(down);
                let is_read = |key: &&LoadKey| !key.is_written && key.group == 0;
                let back = scene.bring_back(
                    load.keys
                        .iter()
                        .filter(is_read)
                        .map(|key| key.name.as_str()),
                );
                back.map_err(|error| format!("the server that comes back: {error}"))?;
            }
            self.sleep_until(end);
            load.over.store(true, Ordering::Relaxed);
            let panicked = |_| "a probe panicked".to_owned();
            Ok(FailoverTimes {
                moment_ns,
                direct_ns: probe.join().map_err(panicked)?,
                named_ns: named.join().map_err(panicked)?,
            })
        })
    }

    fn sleep_until(&self, at_ns: u64) {
        while !self.stop.load(Ordering::Relaxed) {
            match at_ns.checked_sub(clock_ns()) {
                None | Some(0) => return,
                Some(left) => thread::sleep(Duration::from_nanos(left).min(LOOK_UP)),
            }
        }
    }

    /// The content of every list.
    fn read_back(
        &self,
        scene: &Scene,
        keys: &[LoadKey],
    ) -> Result<BTreeMap<usize, Vec<u64>>, String> {
        let broken = |error: io::Error| format!("read the written lists back: {error}");
        let mut there = BTreeMap::new();
        for group in 0..scene.groups() {
            let holder = scene.holder(group).map_err(broken)?;
            let mut connection = holder.connect().map_err(broken)?;
            let own = |(_, key): &(usize, &LoadKey)| key.is_written && key.group == group;
            for (place, key) in keys.iter().enumerate().filter(own) {
                let list = connection.ask_ok(&["LRANGE", &key.name, "0", "-1"]);
                let Reply::Array(values) = list.map_err(broken)? else {
                    return Err(format!("{} is no list", key.name));
                };
                let number = |value: &Reply| {
                    let text = std::str::from_utf8(value.text()?).ok()?;
                    text.parse().ok()
                };
                there.insert(place, values.iter().filter_map(number).collect());
            }
        }
        Ok(there)
    }

    /// Violations that no failover may cause.
    fn judge(
        &self,
        asked: &[LoggedRequest],
        found: &ExecutedWrites,
        failed: &mut dyn FnMut(String),
    ) {
        if found.doubled > 0 {
            failed(format!("{} writes were executed twice", found.doubled));
        }
        if found.belied > 0 {
            failed(format!(
                "{} writes were executed that were said not to have been",
                found.belied
            ));
        }
        let is_coordinated =
            self.settings.kind == TopologyKind::Cluster && self.settings.by == By::Command;
        if is_coordinated && found.lost > 0 {
            failed(format!(
                "{} acknowledged writes were lost, though the primary handed over",
                found.lost
            ));
        }
        let failed_reads = asked.iter().filter(|asked| asked.is_failed_read()).count();
        if self.settings.always_reads() && failed_reads > 0 {
            failed(format!(
                "{failed_reads} reads failed, though a replica could be read"
            ));
        }
        let wrong = asked
            .iter()
            .filter(|asked| matches!(asked.outcome, RequestOutcome::Wrong(_)));
        let mut wrong = wrong.peekable();
        if let Some(LoggedRequest {
            outcome: RequestOutcome::Wrong(first),
            ..
        }) = wrong.peek()
        {
            let first = first.clone();
            failed(format!(
                "{} wrong replies, the first: {first}",
                wrong.count()
            ));
        }
    }
}

/// The times of the events, by our clock.
#[derive(Clone, Copy, Debug)]
struct FailoverTimes {
    moment_ns: u64,
    /// When a candidate took a write of the probe.
    direct_ns: Option<u64>,
    /// When a Sentinel named a candidate.
    named_ns: Option<u64>,
}

/// How often each write is there, by key and number.
fn counted(there: &BTreeMap<usize, Vec<u64>>) -> BTreeMap<(usize, u64), u64> {
    let mut counted: BTreeMap<(usize, u64), u64> = BTreeMap::new();
    for (&key, numbers) in there {
        for &number in numbers {
            *counted.entry((key, number)).or_default() += 1;
        }
    }
    counted
}

/// The outcomes of writes that the lists at the servers prove.
#[derive(Debug, Default, PartialEq, Eq)]
struct ExecutedWrites {
    acknowledged: u64,
    lost: u64,
    doubled: u64,
    belied: u64,
}

impl ExecutedWrites {
    /// Compares the requests with the numbers in each list.
    fn of(asked: &[LoggedRequest], there: &BTreeMap<usize, Vec<u64>>) -> ExecutedWrites {
        let times = counted(there);
        let mut found = ExecutedWrites {
            doubled: times.values().filter(|&&times| times > 1).count() as u64,
            ..ExecutedWrites::default()
        };
        for asked in asked {
            let Some(number) = asked.written else {
                continue;
            };
            let is_there = times.contains_key(&(asked.key, number));
            match &asked.outcome {
                RequestOutcome::Done => {
                    found.acknowledged += 1;
                    found.lost += u64::from(!is_there);
                }
                RequestOutcome::Failed { kind, .. } if clients::is_not_executed(kind) => {
                    found.belied += u64::from(is_there);
                }
                RequestOutcome::Failed { .. } | RequestOutcome::Wrong(_) => {}
            }
        }
        found
    }
}

/// All figures that follow from the replies and their times.
fn summary(
    asked: &[LoggedRequest],
    keys: &[LoadKey],
    times: FailoverTimes,
    there: &BTreeMap<usize, Vec<u64>>,
) -> FailoverRound {
    let FailoverTimes {
        moment_ns,
        direct_ns,
        named_ns,
    } = times;
    let counted = counted(there);
    let is_there = |asked: &LoggedRequest| {
        let written = asked.written.map(|number| (asked.key, number));
        written.is_some_and(|write| counted.contains_key(&write))
    };
    let ms = |at_ns: u64| (at_ns as f64 - moment_ns as f64) / 1e6;
    let is_failed = |asked: &LoggedRequest| keys[asked.key].group == 0;
    let is_done = |asked: &&LoggedRequest| asked.outcome == RequestOutcome::Done;
    let errors = asked
        .iter()
        .filter(|asked| !is_done(asked) && asked.end_ns >= moment_ns);
    let through = asked.iter().filter(|asked| {
        let is_later = direct_ns.is_some_and(|direct| asked.end_ns >= direct);
        is_there(asked) && is_failed(asked) && is_done(asked) && is_later
    });
    let end_ns = asked.iter().map(|asked| asked.end_ns).max();
    let gap = |of_failed: bool| {
        let own = asked
            .iter()
            .filter(|asked| asked.written.is_some() && is_failed(asked) == of_failed);
        let mut acknowledged: Vec<u64> = own.filter(is_done).map(|asked| asked.end_ns).collect();
        acknowledged.sort_unstable();
        let first = *acknowledged.first()?;
        // A reply that is missing at the end counts as a gap up to there.
        acknowledged.extend(end_ns);
        let ends = acknowledged.iter().copied();
        let longest = std::iter::once(first).chain(ends.clone()).zip(ends);
        let longest = longest.map(|(from, to)| to.saturating_sub(from)).max();
        longest.map(|ns| ns as f64 / 1e6)
    };
    FailoverRound {
        number: 0,
        requests: asked.len() as u64,
        first_error_ms: errors
            .clone()
            .map(|asked| ms(asked.end_ns))
            .reduce(f64::min),
        last_error_ms: errors
            .clone()
            .map(|asked| ms(asked.end_ns))
            .reduce(f64::max),
        direct_ms: direct_ns.map(ms),
        named_ms: named_ns.map(ms),
        through_ms: through.map(|asked| ms(asked.end_ns)).reduce(f64::min),
        longest_gap_ms: gap(true),
        others_gap_ms: gap(false),
        failed_reads: errors
            .clone()
            .filter(|asked| asked.is_failed_read())
            .count() as u64,
        errors: by_kind(errors, &is_failed),
        acknowledged: 0,
        lost: 0,
        doubled: 0,
        belied: 0,
        timeline: timeline(asked, moment_ns, &is_failed),
    }
}

/// Errors by kind, the most frequent first.
fn by_kind<'a>(
    errors: impl Iterator<Item = &'a LoggedRequest>,
    is_failed: &dyn Fn(&LoggedRequest) -> bool,
) -> Vec<ErrorCount> {
    let mut counts: Vec<ErrorCount> = Vec::new();
    for asked in errors {
        let (kind, text) = match &asked.outcome {
            RequestOutcome::Done => continue,
            RequestOutcome::Failed { kind, text } => (kind.as_str(), text),
            RequestOutcome::Wrong(text) => ("wrong", text),
        };
        let place = counts.iter().position(|count| count.kind == kind);
        let place = place.unwrap_or_else(|| {
            counts.push(ErrorCount {
                kind: kind.to_owned(),
                failed: [0; 2],
                others: [0; 2],
                first: text.clone(),
            });
            counts.len() - 1
        });
        let count = &mut counts[place];
        let of = match is_failed(asked) {
            true => &mut count.failed,
            false => &mut count.others,
        };
        of[usize::from(asked.written.is_none())] += 1;
    }
    let sum = |count: &ErrorCount| count.failed.iter().chain(&count.others).sum::<u64>();
    counts.sort_by_key(|count| std::cmp::Reverse(sum(count)));
    counts
}

fn timeline(
    asked: &[LoggedRequest],
    moment_ns: u64,
    is_failed: &dyn Fn(&LoggedRequest) -> bool,
) -> Vec<Bucket> {
    let mut by_time: BTreeMap<i64, Vec<&LoggedRequest>> = BTreeMap::new();
    for asked in asked {
        let ms = (asked.due_ns as f64 - moment_ns as f64) / 1e6;
        let bucket = (ms / BUCKET_MS).floor() as i64;
        by_time.entry(bucket).or_default().push(asked);
    }
    let bucket = |(place, asked): (i64, Vec<&LoggedRequest>)| {
        let mut bucket = Bucket {
            at_ms: place as f64 * BUCKET_MS,
            ..Bucket::default()
        };
        let mut us: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
        for asked in asked {
            match &asked.outcome {
                RequestOutcome::Done => us[usize::from(!is_failed(asked))]
                    .push(asked.end_ns.saturating_sub(asked.due_ns) as f64 / 1e3),
                RequestOutcome::Failed { kind, .. } if kind == "NOTSENT" => bucket.errors[0] += 1,
                RequestOutcome::Failed { kind, .. } if kind == "UNKNOWN" => bucket.errors[1] += 1,
                RequestOutcome::Failed { .. } | RequestOutcome::Wrong(_) => bucket.errors[2] += 1,
            }
        }
        for (place, us) in us.into_iter().enumerate() {
            bucket.done[place] = us.len() as u64;
            let spread = FigureSpread::of(us);
            bucket.p50_us[place] = spread.map(|spread| spread.median);
            bucket.max_us[place] = spread.map(|spread| spread.max);
        }
        bucket
    };
    by_time.into_iter().map(bucket).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A request that was due so many milliseconds after the failure and took one; the failure is
    /// at one second.
    fn asked(
        key: usize,
        written: Option<u64>,
        due_ms: i64,
        outcome: RequestOutcome,
    ) -> LoggedRequest {
        let at = |ms: i64| (1_000 + ms) as u64 * 1_000_000;
        LoggedRequest {
            key,
            written,
            due_ns: at(due_ms),
            end_ns: at(due_ms + 1),
            outcome,
        }
    }

    fn failed(kind: &str) -> RequestOutcome {
        RequestOutcome::Failed {
            kind: kind.to_owned(),
            text: format!("{kind} and why"),
        }
    }

    /// Keys 0 and 1 belong to the failing server, written and read; 2 and 3 to another one.
    fn keys() -> Vec<LoadKey> {
        let key = |number: usize| LoadKey {
            name: format!("k{number}"),
            is_written: number.is_multiple_of(2),
            group: number / 2,
        };
        (0..4).map(key).collect()
    }

    fn times(direct_ms: Option<u64>) -> FailoverTimes {
        let moment_ns = 1_000_000_000;
        FailoverTimes {
            moment_ns,
            direct_ns: direct_ms.map(|ms| moment_ns + ms * 1_000_000),
            named_ns: Some(moment_ns + 430_000_000),
        }
    }

    /// Acknowledged until the failure, then errors of all kinds. A candidate takes over at 400 ms,
    /// and the proxy is healed at 520 ms.
    pub(crate) fn example() -> FailoverReport {
        let log = [
            asked(0, Some(1), -300, RequestOutcome::Done),
            asked(2, Some(1), -200, RequestOutcome::Done),
            asked(0, Some(2), -10, failed("UNKNOWN")),
            asked(0, Some(3), 50, failed("NOTSENT")),
            asked(1, None, 60, failed("NOTSENT")),
            asked(3, None, 70, failed("timeout")),
            asked(2, Some(2), 100, RequestOutcome::Done),
            asked(0, Some(4), 380, RequestOutcome::Done),
            asked(1, None, 410, RequestOutcome::Done),
            asked(0, Some(7), 450, RequestOutcome::Done),
            asked(0, Some(5), 519, RequestOutcome::Done),
            asked(0, Some(6), 600, RequestOutcome::Done),
        ];
        // Acknowledged writes are there, except one that the old primary took after the candidate
        // did.
        let there = BTreeMap::from([(0, vec![0, 1, 4, 5, 6]), (2, vec![0, 1, 2])]);
        let mut round = summary(&log, &keys(), times(Some(400)), &there);
        round.number = 1;
        let another = FailoverRound {
            number: 2,
            through_ms: Some(740.0),
            ..round.clone()
        };
        FailoverReport {
            format: FailoverReport::FORMAT,
            experiment: NAME.to_owned(),
            started: "2026-11-23T02:30:00Z".to_owned(),
            took_s: 9.0,
            command: vec!["respool-lab".to_owned(), NAME.to_owned()],
            settings: FailoverSettings::default(),
            machine: Machine::look(),
            server: "redis 7.0.15".to_owned(),
            proxy: "respool <0>".to_owned(),
            proxy_command: "respool serve".to_owned(),
            rounds: vec![round, another],
            failures: Vec::new(),
        }
    }

    /// Times count from the failure. A group is healed when requests succeed after the new primary
    /// took over.
    #[test]
    fn failover_times_count_from_the_failure() {
        let report = example();
        let round = &report.rounds[0];
        // A request that was due and answered before the failure is no error of it.
        assert_eq!(
            (round.first_error_ms, round.last_error_ms),
            (Some(51.0), Some(71.0))
        );
        assert_eq!(
            (round.direct_ms, round.through_ms),
            (Some(400.0), Some(520.0))
        );
        assert_eq!((round.added_ms(), round.requests), (Some(120.0), 12));
        // From the write at -299 to the next acknowledged one, at 381; for the other keys from 101
        // to the end.
        assert_eq!(
            (round.longest_gap_ms, round.others_gap_ms),
            (Some(680.0), Some(500.0))
        );
        let kinds: Vec<_> = round
            .errors
            .iter()
            .map(|count| (count.kind.as_str(), count.failed, count.others))
            .collect();
        assert_eq!(
            kinds,
            [("NOTSENT", [1, 1], [0, 0]), ("timeout", [0, 0], [0, 1])]
        );
        assert_eq!(round.is_kept(), Some(true));
        let second = &report.rounds[1];
        assert_eq!(
            (second.added_ms(), second.is_kept()),
            (Some(340.0), Some(false))
        );
        assert_eq!(report.is_kept(), Some(false), "one round is enough");
        // Without a candidate nothing is healed, even if a write was acknowledged.
        let log = [asked(0, Some(1), 5, RequestOutcome::Done)];
        let there = BTreeMap::from([(0, vec![1])]);
        let never = summary(&log, &keys(), times(None), &there);
        assert_eq!((never.through_ms, never.added_ms()), (None, None));
    }

    #[test]
    fn the_timeline_has_every_request_where_it_was_due() {
        let report = example();
        let timeline = &report.rounds[0].timeline;
        let at: Vec<f64> = timeline.iter().map(|bucket| bucket.at_ms).collect();
        assert_eq!(
            at,
            [
                -300.0, -200.0, -50.0, 50.0, 100.0, 350.0, 400.0, 450.0, 500.0, 600.0
            ]
        );
        assert_eq!(
            (timeline[2].errors, timeline[3].errors),
            ([0, 1, 0], [2, 0, 1])
        );
        assert_eq!(
            (timeline[4].done, timeline[4].p50_us),
            ([0, 1], [None, Some(1000.0)])
        );
    }

    /// The lists at the servers tell which writes were lost, sent twice, or executed though denied.
    #[test]
    fn lost_doubled_and_denied_writes_are_counted() {
        let log = [
            asked(0, Some(1), 0, RequestOutcome::Done),
            asked(0, Some(2), 0, RequestOutcome::Done),
            asked(0, Some(3), 0, failed("NOTSENT")),
            asked(0, Some(4), 0, failed("NOTSENT")),
            asked(0, Some(5), 0, failed("UNKNOWN")),
            asked(0, Some(6), 0, failed("UNKNOWN")),
            asked(2, Some(1), 0, RequestOutcome::Done),
            asked(1, None, 0, RequestOutcome::Done),
        ];
        // The first list has its first zero, 1, 4, and 5 twice; the other one only its zero.
        let there = BTreeMap::from([(0, vec![0, 1, 4, 5, 5]), (2, vec![0])]);
        let expected = ExecutedWrites {
            acknowledged: 3,
            lost: 2,
            doubled: 1,
            belied: 1,
        };
        assert_eq!(ExecutedWrites::of(&log, &there), expected);
    }
}
