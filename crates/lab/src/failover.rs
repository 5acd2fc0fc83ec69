//! A server fails, another takes its place, and clients behind a proxy go on: what each of their requests met meanwhile.
//!
//! ```text
//! clients   write and read at a pace through a proxy ───────────────────────────────────────>  time
//! moment    the server is killed, or told to hand over ──┐
//! direct    a probe writes to its heirs                  └─ x x x x x x x x ok
//! named     Sentinels are asked where the primary is        old old old old old old heir
//! through   the first write to its keys, acknowledged after direct, that an heir has ─── ok
//! ```
//!
//! Under Sentinels a primary that hands over goes on taking writes for a while when its heir already does. They are gone with what it was:
//! that one was acknowledged says nothing. So a write counts as through when it is there in the end.
//!
//! How long servers take to choose an heir is theirs. What the proxy, respool or another to compare with, adds is between the two:
//! from the moment at which the heir takes a write from whoever asks it, to that at which the proxy has one acknowledged by it.
//!
//! Every write appends a number of its own to a list. So at the end the servers themselves tell which writes were executed, and how
//! often: one that was acknowledged and is gone was lost; one that is there twice was sent twice; one that is there though its client
//! was told that it was not executed was told something wrong.

pub mod clients;
pub mod page;
pub mod scene;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use respool_protocol::value::Value;
use serde::{Deserialize, Serialize};

use crate::load::clock_ns;
use crate::machine::{self, Machine};
use crate::progress::Progress;
use crate::report::Spread;
use crate::servers::{self, Flavour, Proxy};
use crate::targets::{self, Held, Programs, first_line};

use clients::{Asked, Key, Load, Outcome};
use scene::Scene;

/// The command that runs it.
pub const NAME: &str = "failover";
/// The headline of its report.
pub const TITLE: &str =
    "A server fails: what its clients meet until another one has taken its place";
/// What it asks.
pub const ABOUT: &str = "\
What do clients meet while a server fails and another takes its place? Some write and some read at a pace, each request due at its time \
whatever becomes of those before, through a proxy that stands before a Cluster, before what Sentinels watch, or before plain \
servers of which one is killed and comes back empty. A probe asks the heirs directly until one of them takes a write. From \
then on, or from when a Sentinel names the heir, to the first write that the proxy has acknowledged by it is what the proxy adds to \
what the servers need themselves. Every write is looked for in the servers at the end.";

/// Where respool may be told to read: the first is what it does if it is told nothing, and for the last three it should always find somebody.
pub const READS: [&str; 5] = [
    "primary",
    "replica",
    "prefer-primary",
    "prefer-replica",
    "nearest",
];
/// Milliseconds from when the heir takes writes to when it is written to through the proxy.
pub const ADDED_MS_MAX: f64 = 300.0;
/// Milliseconds of one column of the picture, and of one line of timeline.csv.
pub const BUCKET_MS: f64 = 50.0;
/// Requests of one round that are kept.
const ASKED_MAX: f64 = 2e6;
/// Within which the servers have come to rest after a failover.
const REST: Duration = Duration::from_secs(40);
/// How often the run looks whether it should stop.
const LOOK_UP: Duration = Duration::from_millis(50);

/// What stands behind the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A Cluster of three primaries with a replica each.
    Cluster,
    /// A primary with a replica that three Sentinels watch.
    Sentinel,
    /// Three plain servers, of which nobody takes the place: the one that fails comes back.
    Sharded,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Cluster, Kind::Sentinel, Kind::Sharded];

    /// A word for options and tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Cluster => "cluster",
            Kind::Sentinel => "sentinel",
            Kind::Sharded => "sharded",
        }
    }
}

/// How the server goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// SIGKILL.
    Kill,
    /// SIGSTOP: its connections stay, and nobody answers on them.
    Freeze,
    /// CLUSTER FAILOVER or SENTINEL FAILOVER, while it runs.
    Command,
}

impl By {
    /// All of them.
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

/// What clients ask through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Through {
    /// respool.
    Respool,
    /// Envoy's Redis proxy, to compare with.
    Envoy,
}

impl Through {
    /// A word for options and tables.
    pub fn name(self) -> &'static str {
        match self {
            Through::Respool => "respool",
            Through::Envoy => "envoy",
        }
    }
}

/// Everything that can be chosen about a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// What stands behind the proxy.
    pub kind: Kind,
    /// How the server goes.
    pub by: By,
    /// What clients ask through.
    pub through: Through,
    /// Whether the other primaries of a Cluster answer while nobody has the slots of the one that failed.
    pub is_partial: bool,
    /// How often, each time from the beginning.
    pub rounds: u32,
    /// Requests a second that are due, writes and reads together.
    pub rate: f64,
    /// Connections that write, at least one.
    pub writers: usize,
    /// Connections that read.
    pub readers: usize,
    /// Keys that are written, and as many that are read.
    pub keys: usize,
    /// Seconds before the moment.
    pub before_s: f64,
    /// Seconds behind it.
    pub after_s: f64,
    /// Seconds after which a plain server comes back.
    pub down_s: f64,
    /// After so long a silence the others think that a server has failed.
    pub silence: Duration,
    /// Where respool reads, as its URL says it: one of [`READS`].
    #[serde(default = "read_at_primaries")]
    pub reads: String,
    /// Workers of respool.
    pub threads: u16,
    /// More arguments for it.
    pub respool_args: Vec<String>,
    /// What servers are made of, by its name.
    pub flavour: String,
}

fn read_at_primaries() -> String {
    READS[0].to_owned()
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            kind: Kind::Cluster,
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

impl Settings {
    /// Whether there is always somebody who can be read.
    pub fn always_reads(&self) -> bool {
        READS[2..].contains(&self.reads.as_str())
    }

    /// Whether a run of it can be.
    ///
    /// # Errors
    /// One line that says why not.
    pub fn check(&self) -> Result<(), String> {
        let requests = self.rate * (self.before_s + self.after_s);
        if requests > ASKED_MAX {
            return Err(format!(
                "{requests:.0} requests are too many to be kept one by one: {ASKED_MAX:.0} at most"
            ));
        }
        if self.through == Through::Envoy && self.kind != Kind::Cluster {
            return Err(
                "Envoy knows no Sentinel, and divides keys by a rule of its own: --kind cluster"
                    .to_owned(),
            );
        }
        if self.is_partial && self.kind != Kind::Cluster {
            return Err("only a Cluster has slots that nobody may have: --kind cluster".to_owned());
        }
        let is_told = self.reads != READS[0];
        if is_told && (self.kind == Kind::Sharded || self.through == Through::Envoy) {
            return Err("only respool reads from replicas, and plain servers have none".to_owned());
        }
        match (self.kind, self.by) {
            (Kind::Sharded, By::Freeze | By::Command) => {
                Err("plain servers have nobody who takes over: --by kill".to_owned())
            }
            (Kind::Sharded, By::Kill) if self.down_s >= self.after_s => {
                Err("the server has to come back before the end: --down below --after".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// A whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FailoverReport {
    /// Of this shape.
    pub format: u32,
    /// [`NAME`].
    pub experiment: String,
    /// When it began, UTC.
    pub started: String,
    /// Seconds from beginning to end.
    pub took_s: f64,
    /// The command line that ran it.
    pub command: Vec<String>,
    /// What was chosen.
    pub settings: Settings,
    /// Where it ran.
    pub machine: Machine,
    /// What the servers say of themselves.
    pub server: String,
    /// What the proxy says of itself.
    pub proxy: String,
    /// How the proxy was started in the last round.
    pub proxy_command: String,
    /// In the order they ran.
    pub rounds: Vec<FailoverRound>,
    /// What must not be, one line each.
    pub failures: Vec<String>,
}

/// One failover. Milliseconds from its moment on; `None`: it did not happen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FailoverRound {
    /// From 1.
    pub number: u32,
    /// Requests that were answered or given up.
    pub requests: u64,
    /// The first answer after the moment that was an error.
    pub first_error_ms: Option<f64>,
    /// The last one.
    pub last_error_ms: Option<f64>,
    /// When an heir acknowledged the probe's write.
    pub direct_ms: Option<f64>,
    /// When a Sentinel named an heir, where there are Sentinels: before that nobody tells a client that asks where to go.
    #[serde(default)]
    pub named_ms: Option<f64>,
    /// When the proxy had a write to the same server's keys acknowledged, the first after the probe's that is there in the end.
    pub through_ms: Option<f64>,
    /// The longest time in which no write to that server's keys was acknowledged.
    pub longest_gap_ms: Option<f64>,
    /// The same to the keys of the other servers, where there are others.
    pub others_gap_ms: Option<f64>,
    /// Reads that failed, after the moment.
    #[serde(default)]
    pub failed_reads: u64,
    /// Errors after the moment by their first word.
    pub errors: Vec<ErrorCount>,
    /// Writes that were acknowledged.
    pub acknowledged: u64,
    /// Those of them that no server has any more.
    pub lost: u64,
    /// Writes that were executed more than once.
    pub doubled: u64,
    /// Writes that were executed, though their client was told that they were not.
    pub belied: u64,
    /// What became of the requests by the time at which they were due.
    pub timeline: Vec<Bucket>,
}

/// Errors of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorCount {
    /// The first word of their text; `timeout`, `closed`: there was no answer; `nil`: there was, but no value in it.
    pub kind: String,
    /// About keys of the server that failed: writes and reads.
    pub failed: [u64; 2],
    /// About keys of other servers.
    pub others: [u64; 2],
    /// The text of the first of them.
    pub first: String,
}

/// Requests that were due within [`BUCKET_MS`]. First of each pair: keys of the server that fails; second: of others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// Milliseconds from the moment to its beginning.
    pub at_ms: f64,
    /// Answered without an error.
    pub done: [u64; 2],
    /// The median time of these, from when each was due.
    pub p50_us: [Option<f64>; 2],
    /// The longest.
    pub max_us: [Option<f64>; 2],
    /// Errors: NOTSENT, UNKNOWN, others.
    pub errors: [u64; 3],
}

impl FailoverRound {
    /// Milliseconds that the proxy took longer than whoever asks the heir.
    pub fn added_ms(&self) -> Option<f64> {
        Some(self.through_ms? - self.direct_ms?)
    }

    /// Whether it healed in time; `None`: it did not heal.
    pub fn is_kept(&self) -> Option<bool> {
        self.added_ms().map(|ms| ms <= ADDED_MS_MAX)
    }
}

impl FailoverReport {
    /// The shape of `report.json` that this program writes.
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
/// One line, when something that is needed is missing or does not start, or the failover does not come about.
pub fn run(
    settings: &Settings,
    respool: Option<&Path>,
    command: Vec<String>,
    stop: &AtomicBool,
) -> Result<FailoverReport, String> {
    settings.check()?;
    let proxy = match settings.through {
        Through::Respool => Programs::find(respool, 0)?.respool?,
        Through::Envoy => servers::find_program("envoy")?,
    };
    let binary = servers::find(crate::differ::flavour(&settings.flavour)?)?;
    // Nobody is asked: any address will do.
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
    let mut progress = Progress::new(settings.rounds as usize);
    for number in 1..=settings.rounds {
        progress.begin(&format!("round {number}"));
        let mut failed = |what: String| report.failures.push(format!("round {number}: {what}"));
        let (round, proxy_command) = Round {
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
        progress.end_step();
    }
    drop(progress);
    report.took_s = (clock_ns() - begin_ns) as f64 / 1e9;
    Ok(report)
}

/// One failover from its beginning.
struct Round<'a> {
    settings: &'a Settings,
    binary: &'a Path,
    proxy: &'a Path,
    number: u32,
    stop: &'a AtomicBool,
}

impl Round<'_> {
    fn run(&self, failed: &mut dyn FnMut(String)) -> Result<(FailoverRound, String), String> {
        let settings = self.settings;
        let broken = |what: &str| {
            let what = what.to_owned();
            move |error: io::Error| format!("{what}: {error}")
        };
        let mut scene = Scene::start(settings, self.binary).map_err(broken("the servers"))?;
        let proxy = self.start_proxy(&scene);
        let proxy = proxy.map_err(broken(settings.through.name()))?;
        let address = proxy.address();
        targets::wait_until_served(address).map_err(broken(settings.through.name()))?;
        let keys = self.write_keys(address, &scene)?;
        let probe_key = scene.own_key(address).map_err(broken("the probe's key"))?;
        scene
            .wait_for_replicas(&probe_key)
            .map_err(broken("the replicas"))?;
        let load = Load {
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
            let mut asked: Vec<Asked> = Vec::new();
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
        let found = Executed::of(&asked, &there);
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

    fn start_proxy(&self, scene: &Scene) -> io::Result<Held> {
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
                Proxy::start(self.proxy, &args).map(Held::Proxy)
            }
            Through::Envoy => {
                let started = targets::start_envoy(self.proxy, true, &scene.addresses());
                started.map(|(process, _)| Held::Process(process))
            }
        }
    }

    /// Every key once through the proxy, which knows where it belongs; then asks the servers where that was.
    fn write_keys(&self, address: SocketAddr, scene: &Scene) -> Result<Vec<Key>, String> {
        let count = self.settings.keys;
        let mut keys: Vec<Key> = (0..2 * count)
            .map(|number| Key {
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
        let is_failed = |key: &&Key| key.group == 0;
        for is_written in [true, false] {
            let mut own = keys.iter().filter(|key| key.is_written == is_written);
            if !own.any(|key| is_failed(&key)) {
                return Err("no key is the failing server's: --keys should be more".to_owned());
            }
        }
        Ok(keys)
    }

    /// What happens while the clients ask; returns when it did.
    fn happen(&self, scene: &mut Scene, probe_key: &str, load: &Load<'_>) -> Result<Times, String> {
        let settings = self.settings;
        let moment = load.start_ns + (settings.before_s * 1e9) as u64;
        let end = moment + (settings.after_s * 1e9) as u64;
        self.sleep_until(moment);
        let moment_ns = clock_ns();
        scene
            .fail(settings.by)
            .map_err(|error| format!("--by {}: {error}", settings.by.name()))?;
        let (heirs, witnesses) = (scene.heirs(), scene.witnesses());
        thread::scope(|scope| {
            let probe = scope.spawn(|| clients::probe(&heirs, probe_key, &load.over));
            let named = scope.spawn(|| clients::named(&witnesses, &heirs, &load.over));
            let down = moment_ns + (settings.down_s * 1e9) as u64;
            if settings.kind == Kind::Sharded {
                self.sleep_until(down);
                let is_read = |key: &&Key| !key.is_written && key.group == 0;
                let back = scene.bring_back(load.keys.iter().filter(is_read));
                back.map_err(|error| format!("the server that comes back: {error}"))?;
            }
            self.sleep_until(end);
            load.over.store(true, Ordering::Relaxed);
            let panicked = |_| "a probe panicked".to_owned();
            Ok(Times {
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

    /// What is in every list that was written to.
    fn read_back(&self, scene: &Scene, keys: &[Key]) -> Result<BTreeMap<usize, Vec<u64>>, String> {
        let broken = |error: io::Error| format!("what was written, read back: {error}");
        let mut there = BTreeMap::new();
        for group in 0..scene.groups() {
            let holder = scene.holder(group).map_err(broken)?;
            let mut connection = holder.connect().map_err(broken)?;
            let own = |(_, key): &(usize, &Key)| key.is_written && key.group == group;
            for (place, key) in keys.iter().enumerate().filter(own) {
                let list = connection.order(&["LRANGE", &key.name, "0", "-1"]);
                let Value::List(values) = list.map_err(broken)? else {
                    return Err(format!("{} is no list", key.name));
                };
                let number = |value: &Value| {
                    let text = std::str::from_utf8(value.text()?).ok()?;
                    text.parse().ok()
                };
                there.insert(place, values.iter().filter_map(number).collect());
            }
        }
        Ok(there)
    }

    /// What no failover may bring about.
    fn judge(&self, asked: &[Asked], found: &Executed, failed: &mut dyn FnMut(String)) {
        if found.doubled > 0 {
            failed(format!("{} writes were executed twice", found.doubled));
        }
        if found.belied > 0 {
            failed(format!(
                "{} writes were executed that were said not to have been",
                found.belied
            ));
        }
        let is_coordinated = self.settings.kind == Kind::Cluster && self.settings.by == By::Command;
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
            .filter(|asked| matches!(asked.outcome, Outcome::Wrong(_)));
        let mut wrong = wrong.peekable();
        if let Some(Asked {
            outcome: Outcome::Wrong(what),
            ..
        }) = wrong.peek()
        {
            let what = what.clone();
            failed(format!(
                "{} wrong replies, the first: {what}",
                wrong.count()
            ));
        }
    }
}

/// What happened when, by our clock.
#[derive(Clone, Copy, Debug)]
struct Times {
    moment_ns: u64,
    /// When an heir took a write of the probe.
    direct_ns: Option<u64>,
    /// When a Sentinel named one.
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

/// What the servers say of the writes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Executed {
    acknowledged: u64,
    lost: u64,
    doubled: u64,
    belied: u64,
}

impl Executed {
    /// From what was asked, and from the numbers that each list has.
    fn of(asked: &[Asked], there: &BTreeMap<usize, Vec<u64>>) -> Executed {
        let times = counted(there);
        let mut found = Executed {
            doubled: times.values().filter(|&&times| times > 1).count() as u64,
            ..Executed::default()
        };
        for asked in asked {
            let Some(number) = asked.written else {
                continue;
            };
            let is_there = times.contains_key(&(asked.key, number));
            match &asked.outcome {
                Outcome::Done => {
                    found.acknowledged += 1;
                    found.lost += u64::from(!is_there);
                }
                Outcome::Failed { kind, .. } if clients::is_not_executed(kind) => {
                    found.belied += u64::from(is_there);
                }
                Outcome::Failed { .. } | Outcome::Wrong(_) => {}
            }
        }
        found
    }
}

/// Everything that the answers and their times say.
fn summary(
    asked: &[Asked],
    keys: &[Key],
    times: Times,
    there: &BTreeMap<usize, Vec<u64>>,
) -> FailoverRound {
    let Times {
        moment_ns,
        direct_ns,
        named_ns,
    } = times;
    let counted = counted(there);
    let is_there = |asked: &Asked| {
        let written = asked.written.map(|number| (asked.key, number));
        written.is_some_and(|write| counted.contains_key(&write))
    };
    let ms = |at_ns: u64| (at_ns as f64 - moment_ns as f64) / 1e6;
    let is_failed = |asked: &Asked| keys[asked.key].group == 0;
    let is_done = |asked: &&Asked| asked.outcome == Outcome::Done;
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
        // What has not come by the end is a gap up to there.
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

/// Errors by their kind, the most frequent first.
fn by_kind<'a>(
    errors: impl Iterator<Item = &'a Asked>,
    is_failed: &dyn Fn(&Asked) -> bool,
) -> Vec<ErrorCount> {
    let mut counts: Vec<ErrorCount> = Vec::new();
    for asked in errors {
        let (kind, text) = match &asked.outcome {
            Outcome::Done => continue,
            Outcome::Failed { kind, text } => (kind.as_str(), text),
            Outcome::Wrong(text) => ("wrong", text),
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

fn timeline(asked: &[Asked], moment_ns: u64, is_failed: &dyn Fn(&Asked) -> bool) -> Vec<Bucket> {
    let mut by_time: BTreeMap<i64, Vec<&Asked>> = BTreeMap::new();
    for asked in asked {
        let ms = (asked.due_ns as f64 - moment_ns as f64) / 1e6;
        let bucket = (ms / BUCKET_MS).floor() as i64;
        by_time.entry(bucket).or_default().push(asked);
    }
    let bucket = |(place, asked): (i64, Vec<&Asked>)| {
        let mut bucket = Bucket {
            at_ms: place as f64 * BUCKET_MS,
            ..Bucket::default()
        };
        let mut us: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
        for asked in asked {
            match &asked.outcome {
                Outcome::Done => us[usize::from(!is_failed(asked))]
                    .push(asked.end_ns.saturating_sub(asked.due_ns) as f64 / 1e3),
                Outcome::Failed { kind, .. } if kind == "NOTSENT" => bucket.errors[0] += 1,
                Outcome::Failed { kind, .. } if kind == "UNKNOWN" => bucket.errors[1] += 1,
                Outcome::Failed { .. } | Outcome::Wrong(_) => bucket.errors[2] += 1,
            }
        }
        for (place, us) in us.into_iter().enumerate() {
            bucket.done[place] = us.len() as u64;
            let spread = Spread::of(us);
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

    /// A request that was due at so many milliseconds from the moment on and took one; the moment is at a second.
    fn asked(key: usize, written: Option<u64>, due_ms: i64, outcome: Outcome) -> Asked {
        let at = |ms: i64| (1_000 + ms) as u64 * 1_000_000;
        Asked {
            key,
            written,
            due_ns: at(due_ms),
            end_ns: at(due_ms + 1),
            outcome,
        }
    }

    fn failed(kind: &str) -> Outcome {
        Outcome::Failed {
            kind: kind.to_owned(),
            text: format!("{kind} and why"),
        }
    }

    /// Key 0 and 1 are the failing server's, written and read; 2 and 3 another one's.
    fn keys() -> Vec<Key> {
        let key = |number: usize| Key {
            name: format!("k{number}"),
            is_written: number.is_multiple_of(2),
            group: number / 2,
        };
        (0..4).map(key).collect()
    }

    fn times(direct_ms: Option<u64>) -> Times {
        let moment_ns = 1_000_000_000;
        Times {
            moment_ns,
            direct_ns: direct_ms.map(|ms| moment_ns + ms * 1_000_000),
            named_ns: Some(moment_ns + 430_000_000),
        }
    }

    /// Acknowledged until the moment, then errors of all kinds; an heir at 400 ms, healed at 520.
    pub(crate) fn example() -> FailoverReport {
        let log = [
            asked(0, Some(1), -300, Outcome::Done),
            asked(2, Some(1), -200, Outcome::Done),
            asked(0, Some(2), -10, failed("UNKNOWN")),
            asked(0, Some(3), 50, failed("NOTSENT")),
            asked(1, None, 60, failed("NOTSENT")),
            asked(3, None, 70, failed("timeout")),
            asked(2, Some(2), 100, Outcome::Done),
            asked(0, Some(4), 380, Outcome::Done),
            asked(1, None, 410, Outcome::Done),
            asked(0, Some(7), 450, Outcome::Done),
            asked(0, Some(5), 519, Outcome::Done),
            asked(0, Some(6), 600, Outcome::Done),
        ];
        // What was acknowledged is there, but for one that the old primary took after its heir did.
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
            settings: Settings::default(),
            machine: Machine::look(),
            server: "redis 7.0.15".to_owned(),
            proxy: "respool <0>".to_owned(),
            proxy_command: "respool serve".to_owned(),
            rounds: vec![round, another],
            failures: Vec::new(),
        }
    }

    #[test]
    fn times_count_from_the_moment_and_healed_is_what_comes_after_the_heir() {
        let report = example();
        let round = &report.rounds[0];
        // What was due before the moment and answered before it is no error of the failover.
        assert_eq!(
            (round.first_error_ms, round.last_error_ms),
            (Some(51.0), Some(71.0))
        );
        assert_eq!(
            (round.direct_ms, round.through_ms),
            (Some(400.0), Some(520.0))
        );
        assert_eq!((round.added_ms(), round.requests), (Some(120.0), 12));
        // From the write at -299 to the next that was acknowledged, at 381; of the other's keys from 101 to the end.
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
        // No heir: nothing is healed, whatever was acknowledged.
        let log = [asked(0, Some(1), 5, Outcome::Done)];
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

    #[test]
    fn the_servers_tell_what_was_lost_sent_twice_or_denied() {
        let log = [
            asked(0, Some(1), 0, Outcome::Done),
            asked(0, Some(2), 0, Outcome::Done),
            asked(0, Some(3), 0, failed("NOTSENT")),
            asked(0, Some(4), 0, failed("NOTSENT")),
            asked(0, Some(5), 0, failed("UNKNOWN")),
            asked(0, Some(6), 0, failed("UNKNOWN")),
            asked(2, Some(1), 0, Outcome::Done),
            asked(1, None, 0, Outcome::Done),
        ];
        // Of the first key the zero of the beginning, 1, 4 and 5 twice; of the other the zero alone.
        let there = BTreeMap::from([(0, vec![0, 1, 4, 5, 5]), (2, vec![0])]);
        let expected = Executed {
            acknowledged: 3,
            lost: 2,
            doubled: 1,
            belied: 1,
        };
        assert_eq!(Executed::of(&log, &there), expected);
    }
}
