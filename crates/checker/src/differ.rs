//! The differential tester: it sends the same requests to a server directly, and through respool to
//! a second, equal server. All replies must be equal, and so must be the data of both servers in
//! the end.
//!
//! ```text
//! generate ── rounds ──┬─> side: direct ──> server 1 ┐
//!  (seed,              │   (decides which replies     ├─ compare ─> shrink ─> a script that
//!   templates)         │    are due)                  │  (rules)              a person can replay
//!                      └─> side: respool ─> server 2 ┘
//! ```
//!
//! A case is a script: rounds in which one or several connections each write a pipeline, cut
//! anywhere. A round ends when both sides have got all its replies. Requests of two connections in
//! one round never touch the same data (see `generate`). So both sides must come to the same
//! result, and a difference is a defect of respool. As a proof, a failed script also runs against
//! both servers without respool: a difference that shows there does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use respool_testkit::servers::{self, Flavour, Proxy, ServerProcess};

mod compare;
mod fault;
mod generate;
mod pair;
mod script;
mod session;
mod shrink;
mod side;
mod state;
mod templates;

use compare::{Difference, Forgiven};
use fault::{Fault, FaultPlanter};
use generate::{CaseRecipe, RoundGenerator};
use pair::{ScriptOutcome, SidePair};
use script::DifferScript;
use shrink::Shrink;
use side::{Control, Side};

/// What to compare, and how much of it.
#[derive(Clone, Debug)]
pub struct DifferSettings {
    /// Case `n` of seed `s` is case 0 of seed `s + n`.
    pub seed: u64,
    /// The number of cases.
    pub cases: u64,
    /// No case begins after this time; `None`: no limit.
    pub time_max: Option<Duration>,
    /// Requests of a case, about.
    pub steps: usize,
    /// Connections of a case.
    pub connections: usize,
    /// Names of classes to use; empty for all.
    pub classes: Vec<String>,
    /// Names of classes to leave out.
    pub without: Vec<String>,
    /// Commands that are never sent, with their subcommand: `CLIENT LIST`; or options of a command:
    /// `EXPIRE NX`.
    pub omitted: Vec<String>,
    /// The server version.
    pub flavour: Flavour,
    /// respool's binary.
    pub respool: PathBuf,
    /// Arguments of `respool serve`, beside the listener and the backend.
    pub respool_args: Vec<String>,
    /// How long a reply may take.
    pub patience: Duration,
    /// Whether a refusal in respool's own words ends its case and is counted by its text, instead
    /// of being a difference.
    pub accepts_refusals: bool,
    /// Whether all keys have a prefix, on both sides, that respool takes off before its server.
    pub strips: bool,
}

impl Default for DifferSettings {
    fn default() -> DifferSettings {
        DifferSettings {
            seed: 1,
            cases: 100,
            time_max: None,
            steps: 60,
            connections: 4,
            classes: Vec::new(),
            without: Vec::new(),
            omitted: Vec::new(),
            flavour: Flavour::Redis70,
            respool: PathBuf::new(),
            respool_args: Vec::new(),
            patience: Duration::from_secs(5),
            accepts_refusals: false,
            strips: false,
        }
    }
}

/// The prefix of all keys where respool takes it off. No other argument of a case contains it.
pub(crate) const PREFIX: &[u8] = b"p:";

/// The result.
#[derive(Clone, Debug, Default)]
pub struct DifferReport {
    /// Cases that ran.
    pub cases: u64,
    /// Requests of these cases.
    pub requests: usize,
    /// Differences, each kind once.
    pub found: Vec<FoundDifference>,
    /// Cases without a result, with the reason.
    pub unsound: Vec<String>,
    /// Refusals in respool's own words, with their number, where those are accepted.
    pub refusals: BTreeMap<String, u64>,
    /// respool's counters of fused, collapsed and retried requests: a counter of 0 was not tested.
    pub coalesced: BTreeMap<&'static str, u64>,
    /// Forgiven differences, with their number.
    forgiven: Forgiven,
}

/// A kind of difference.
#[derive(Clone, Debug)]
pub struct FoundDifference {
    /// The seed of the first case with it.
    pub seed: u64,
    /// The number of cases that ended with it.
    pub times: u64,
    /// Its subject, and the result of each side.
    pub text: String,
    /// The shortest script that shows it.
    pub script: String,
    /// Requests of that script.
    pub requests: usize,
}

impl FoundDifference {
    /// The difference, and the script that shows it.
    fn text(&self) -> String {
        format!(
            "  --seed {} --cases 1: {}\n{}",
            self.seed, self.text, self.script
        )
    }
}

impl DifferReport {
    /// Whether both sides were equal in all cases, and all cases had a result.
    pub fn is_clean(&self) -> bool {
        self.found.is_empty() && self.unsound.is_empty()
    }

    fn forgive(&mut self, more: &mut Forgiven) {
        for (why, times) in std::mem::take(more) {
            *self.forgiven.entry(why).or_default() += times;
        }
    }

    /// The whole report as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for found in &self.found {
            let _ = writeln!(
                text,
                "DIFFERENCE in {} of {} cases\n{}",
                found.times,
                self.cases,
                found.text()
            );
        }
        for unsound in self.unsound.iter().take(UNSOUND_SHOWN) {
            let _ = writeln!(text, "NOT COUNTED: {unsound}");
        }
        for (refusal, times) in &self.refusals {
            let _ = writeln!(text, "{times} cases ended at the refusal {refusal}");
        }
        if !self.forgiven.is_empty() {
            let _ = writeln!(text, "forgiven, each by a rule of compare.rs:");
            for (why, times) in &self.forgiven {
                let _ = writeln!(text, "  {times:>6} times: {why}");
            }
        }
        if !self.coalesced.is_empty() {
            let counted = self.coalesced.iter();
            let counted: Vec<String> = counted.map(|(name, n)| format!("{name} {n}")).collect();
            let _ = writeln!(text, "respool counted: {}", counted.join(", "));
        }
        let verdict = match (self.found.len(), self.unsound.len()) {
            (0, 0) => "no difference".to_owned(),
            (found, unsound) => format!("{found} kinds of difference, {unsound} cases not counted"),
        };
        let _ = writeln!(
            text,
            "{} cases, {} requests: {verdict}",
            self.cases, self.requests
        );
        text
    }
}

/// Counters of respool that the report shows.
const COUNTED: [&str; 4] = [
    "joined_requests_resent",
    "reads_collapsed",
    "fused_gets",
    "fused_sets",
];

/// Enough differences to see their common cause.
const UNSOUND_SHOWN: usize = 3;

/// Two equal servers, and the program before the second one.
struct DifferStage {
    servers: [ServerProcess; 2],
    before: Before,
    /// The prefix of all keys.
    prefix: &'static [u8],
}

enum Before {
    Nothing,
    Respool {
        proxy: Proxy,
        binary: PathBuf,
        args: Vec<String>,
        beside: Option<Box<Beside>>,
    },
    Fault(FaultPlanter),
}

/// With a prefix: the server of keys without one, and the server of all others.
struct Beside {
    rest: ServerProcess,
    at: SocketAddr,
}

impl DifferStage {
    fn start(settings: &DifferSettings) -> Result<DifferStage, String> {
        let servers = start_servers(settings.flavour, &[&[], &[]])?;
        let mut args = settings.respool_args.clone();
        let rest = match settings.strips {
            true => Some(start_server(settings.flavour, &[])?),
            false => None,
        };
        let at = servers[1].address();
        let beside = rest.map(|rest| Box::new(Beside { rest, at }));
        if beside.is_none() {
            args.push(format!("--backend=redis://{at}"));
        }
        let binary = settings.respool.clone();
        let proxy = start_respool(&binary, &args, beside.as_deref())?;
        Ok(DifferStage {
            servers,
            prefix: if settings.strips { PREFIX } else { b"" },
            before: Before::Respool {
                proxy,
                binary,
                args,
                beside,
            },
        })
    }

    /// Adds respool's counters since its start.
    fn count(&self, report: &mut DifferReport) {
        let Before::Respool { proxy, .. } = &self.before else {
            return;
        };
        // A respool that has ended has no counters.
        let asked = Control::connect(proxy.address());
        let Ok(info) = asked.and_then(|mut control| control.call(&["INFO", "respool"])) else {
            return;
        };
        let text = String::from_utf8_lossy(info.text().unwrap_or_default()).into_owned();
        for name in COUNTED {
            let field = format!("respool_{name}:");
            let count = text.lines().find_map(|line| line.strip_prefix(&field));
            let count: u64 = count.and_then(|count| count.parse().ok()).unwrap_or(0);
            *report.coalesced.entry(name).or_default() += count;
        }
    }

    /// Starts a new respool if this one has ended, or if its clients have left something behind.
    fn renew(&mut self) -> Result<(), String> {
        if let Before::Respool {
            proxy,
            binary,
            args,
            beside,
        } = &mut self.before
        {
            *proxy = start_respool(binary, args, beside.as_deref())?;
        }
        Ok(())
    }

    fn address(&self) -> SocketAddr {
        match &self.before {
            Before::Nothing => self.servers[1].address(),
            Before::Respool { proxy, .. } => proxy.address(),
            Before::Fault(planter) => planter.address(),
        }
    }

    fn pair(&self, patience: Duration) -> Result<SidePair, String> {
        let [one, two] = &self.servers;
        Ok(SidePair::new(
            Side::new(one.address(), one, self.prefix)?,
            Side::new(self.address(), two, self.prefix)?,
            patience,
        ))
    }

    /// The two servers without respool.
    fn bare_pair(&self, patience: Duration) -> Result<SidePair, String> {
        let [one, two] = &self.servers;
        Ok(SidePair::new(
            Side::new(one.address(), one, self.prefix)?,
            Side::new(two.address(), two, self.prefix)?,
            patience,
        ))
    }

    /// respool's log, if it has ended or panicked.
    fn complaint(&self) -> Option<String> {
        let Before::Respool { proxy, .. } = &self.before else {
            return None;
        };
        let log = proxy.log();
        let has_failed = !proxy.is_running() || log.contains("panicked at");
        has_failed.then(|| {
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(20)..].join("\n")
        })
    }
}

fn start_respool(binary: &Path, args: &[String], beside: Option<&Beside>) -> Result<Proxy, String> {
    let started = match beside {
        None => Proxy::start(binary, args),
        // Only the file has options for prefixes, and there a pool names its listener itself.
        Some(Beside { rest, at }) => Proxy::start_with(binary, |port| {
            let file = rest.dir().join("respool.toml");
            let text = format!(
                "[pool.all]\nlisten = '127.0.0.1:{port}'\nbackend = 'redis://{}'\n\
                 [pool.all.prefixes]\n'{}' = {{ backend = 'redis://{at}', strip = true }}\n",
                rest.address(),
                PREFIX.escape_ascii()
            );
            let written = std::fs::write(&file, text);
            // respool reports a missing file and ends.
            drop(written);
            let own = ["--config".to_owned(), file.display().to_string()];
            own.into_iter().chain(args.iter().cloned()).collect()
        }),
    };
    started.map_err(|error| format!("respool: {error}"))
}

/// The second argument list may have a setting that a test plants.
fn start_servers(flavour: Flavour, args: &[&[&str]; 2]) -> Result<[ServerProcess; 2], String> {
    Ok([
        start_server(flavour, args[0])?,
        start_server(flavour, args[1])?,
    ])
}

fn start_server(flavour: Flavour, args: &[&str]) -> Result<ServerProcess, String> {
    let binary = servers::find(flavour)?;
    // DEBUG DIGEST needs it. 6.2 lacks the setting and allows the command.
    let debug: &[&str] = if flavour == Flavour::Redis62 {
        &[]
    } else {
        &["--enable-debug-command", "yes"]
    };
    // A subscriber of every channel gets every change of a key, on a channel of the key. Channels
    // by event would mix the changes of different connections.
    let events = ["--notify-keyspace-events", "KA"];
    // A blocked client gets its timeout at the next tick: with ten ticks a second the tester would
    // wait.
    let ticks = ["--hz", "250"];
    let all = debug.iter().chain(&events).chain(&ticks).chain(args);
    let args: Vec<OsString> = all.map(OsString::from).collect();
    ServerProcess::start(&binary, &args).map_err(|error| error.to_string())
}

/// Runs cases and returns the differences. `say` gets a line now and then.
///
/// # Errors
/// When servers or respool do not start, or a server has ended.
pub fn run(settings: &DifferSettings, say: &mut dyn FnMut(&str)) -> Result<DifferReport, String> {
    let recipe = recipe(settings)?;
    run_on(&mut DifferStage::start(settings)?, settings, &recipe, say)
}

/// Runs a script that was printed or written by hand.
///
/// # Errors
/// When it cannot be read, or servers or respool do not start.
pub fn replay(settings: &DifferSettings, script: &str) -> Result<DifferReport, String> {
    let script = DifferScript::read(script)?;
    let stage = DifferStage::start(settings)?;
    let mut pair = stage.pair(settings.patience)?;
    let mut report = DifferReport {
        cases: 1,
        requests: script.requests(),
        ..DifferReport::default()
    };
    match pair.play(&script)? {
        ScriptOutcome::Same => {}
        ScriptOutcome::Different(difference) => {
            report
                .found
                .push(found(settings.seed, &difference, &script))
        }
        ScriptOutcome::Unsound(problem) => report.unsound.push(problem),
    }
    report.forgiven = pair.forgiven;
    Ok(report)
}

/// Shows that the tester finds no difference where there is none, and every planted one.
///
/// # Errors
/// When it found a difference that no fault made, or did not find a planted fault.
pub fn self_check(settings: &DifferSettings, say: &mut dyn FnMut(&str)) -> Result<(), String> {
    check_bare(settings, say)?;
    check_planted(settings, say)
}

/// Two servers with nothing before them, or with relays that do nothing wrong, are equal.
///
/// # Errors
/// When it found a difference.
pub fn check_bare(settings: &DifferSettings, say: &mut dyn FnMut(&str)) -> Result<(), String> {
    let recipe = recipe(settings)?;
    let servers = start_servers(settings.flavour, &[&[], &[]])?;
    let address = servers[1].address();
    let mut befores = vec![("nothing".to_owned(), Before::Nothing)];
    for fault in Fault::HARMLESS {
        let planter = FaultPlanter::start(address, fault).map_err(|error| error.to_string())?;
        befores.push((
            format!("a planter of faults ({fault:?})"),
            Before::Fault(planter),
        ));
    }
    let mut stage = DifferStage {
        servers,
        prefix: b"",
        before: Before::Nothing,
    };
    for (between, before) in befores {
        stage.before = before;
        let report = run_on(&mut stage, settings, &recipe, &mut |_| {})?;
        if !report.is_clean() {
            return Err(format!("with {between} between:\n{}", report.text()));
        }
        say(&format!(
            "with {between} between: {} cases, {} requests, no difference",
            report.cases, report.requests
        ));
    }
    Ok(())
}

/// Every planted fault is found, and a different setting of the second server. Their scripts are
/// short.
///
/// # Errors
/// When a fault was not found, or its script is not short.
pub fn check_planted(settings: &DifferSettings, say: &mut dyn FnMut(&str)) -> Result<(), String> {
    for fault in Fault::ALL {
        check_fault(settings, fault, say)?;
    }
    check_configuration(settings, say)
}

fn check_fault(
    settings: &DifferSettings,
    fault: Fault,
    say: &mut dyn FnMut(&str),
) -> Result<(), String> {
    let servers = start_servers(settings.flavour, &[&[], &[]])?;
    let planter =
        FaultPlanter::start(servers[1].address(), fault).map_err(|error| error.to_string())?;
    let mut stage = DifferStage {
        servers,
        prefix: b"",
        before: Before::Fault(planter),
    };
    check_one(
        &mut stage,
        &format!("{fault:?}"),
        settings,
        fault.classes(),
        say,
    )
}

/// The second server has another number of databases.
fn check_configuration(settings: &DifferSettings, say: &mut dyn FnMut(&str)) -> Result<(), String> {
    let servers = start_servers(settings.flavour, &[&[], &["--databases", "4"]])?;
    let mut stage = DifferStage {
        servers,
        prefix: b"",
        before: Before::Nothing,
    };
    check_one(
        &mut stage,
        "fewer databases",
        settings,
        &["strings", "databases"],
        say,
    )
}

/// A planted difference is found, and its script is short.
fn check_one(
    stage: &mut DifferStage,
    name: &str,
    settings: &DifferSettings,
    classes: &[&'static str],
    say: &mut dyn FnMut(&str),
) -> Result<(), String> {
    let settings = DifferSettings {
        cases: PLANTED_CASES,
        // Many planted faults are replies that never come.
        patience: Duration::from_millis(250),
        ..settings.clone()
    };
    let recipe = CaseRecipe {
        connections: 3,
        steps: 60,
        classes: classes.iter().copied().chain(["cuts"]).collect(),
        omitted: Vec::new(),
    };
    let mut report = DifferReport::default();
    for case in 0..settings.cases {
        let settings = DifferSettings {
            seed: settings.seed + case,
            cases: 1,
            ..settings.clone()
        };
        report = run_on(stage, &settings, &recipe, &mut |_| {})?;
        if !report.found.is_empty() {
            break;
        }
    }
    let Some(found) = report.found.first() else {
        return Err(format!("{name}: planted and not found\n{}", report.text()));
    };
    if found.requests > PLANTED_REQUESTS_MAX {
        return Err(format!(
            "{name}: found, but its script is long\n{}",
            report.text()
        ));
    }
    say(&format!(
        "{name}: found in the case of seed {}, {} requests show it",
        found.seed, found.requests
    ));
    Ok(())
}

/// A planted difference shows in one of so many cases.
const PLANTED_CASES: u64 = 20;
/// No planted fault needs more than a few requests.
const PLANTED_REQUESTS_MAX: usize = 6;

fn recipe(settings: &DifferSettings) -> Result<CaseRecipe, String> {
    let all = generate::class_names();
    let find = |name: &String| {
        let found = all.iter().copied().find(|known| known == name);
        found.ok_or_else(|| format!("there is no class {name:?}; there are {}", all.join(", ")))
    };
    let mut classes: BTreeSet<&'static str> = settings
        .classes
        .iter()
        .map(find)
        .collect::<Result<_, _>>()?;
    if classes.is_empty() {
        classes.extend(&all);
    }
    for name in &settings.without {
        classes.remove(find(name)?);
    }
    Ok(CaseRecipe {
        connections: settings.connections,
        steps: settings.steps,
        classes,
        omitted: settings.omitted.clone(),
    })
}

fn run_on(
    stage: &mut DifferStage,
    settings: &DifferSettings,
    recipe: &CaseRecipe,
    say: &mut dyn FnMut(&str),
) -> Result<DifferReport, String> {
    let mut report = DifferReport::default();
    let mut by_signature: BTreeMap<String, usize> = BTreeMap::new();
    let mut given_up: BTreeMap<String, u32> = BTreeMap::new();
    let mut pair = stage.pair(settings.patience)?;
    let started = Instant::now();
    for case in 0..settings.cases {
        if settings
            .time_max
            .is_some_and(|limit| started.elapsed() > limit)
        {
            break;
        }
        let seed = settings.seed + case;
        let scripts = generate::scripts(seed, &mut pair.direct.control)
            .map_err(|error| format!("the server: {error}"))?;
        let mut generator = RoundGenerator::new(recipe, seed, scripts);
        let (script, outcome) =
            pair.run(recipe.connections, &mut |direct| generator.round(direct))?;
        report.cases += 1;
        report.requests += script.requests();
        let difference = match outcome {
            ScriptOutcome::Same => match stage.complaint() {
                None => continue,
                Some(log) => Difference {
                    about: "respool itself".to_owned(),
                    direct: "no complaint".to_owned(),
                    other: log,
                    signature: "respool has failed".to_owned(),
                },
            },
            ScriptOutcome::Unsound(problem) => {
                report
                    .unsound
                    .push(format!("--seed {seed}: {problem}\n{}", script.write()));
                continue;
            }
            ScriptOutcome::Different(difference) => difference,
        };
        if settings.accepts_refusals && difference.is_refusal() {
            *report.refusals.entry(difference.other).or_default() += 1;
            pair = clean_pair(stage, pair, settings.patience)?;
            continue;
        }
        let attempts = given_up.entry(difference.signature.clone()).or_default();
        if let Some(&at) = by_signature.get(&difference.signature) {
            report.found[at].times += 1;
        } else if *attempts < ATTEMPTS_MAX {
            say(&format!(
                "seed {seed}: {}; making its script short",
                difference.signature
            ));
            match make_short(stage, &mut pair, script, &difference)? {
                Ok((script, difference)) => {
                    by_signature.insert(difference.signature.clone(), report.found.len());
                    let found = found(seed, &difference, &script);
                    say(&found.text());
                    report.found.push(found);
                }
                Err(problem) => {
                    *attempts += 1;
                    let problem = format!("--seed {seed}: {problem}");
                    say(&format!(
                        "not counted: {}",
                        problem.lines().next().unwrap_or_default()
                    ));
                    report.unsound.push(problem);
                }
            }
        }
        report.forgive(&mut pair.forgiven);
        // The next case must not meet the remains of this one.
        pair = clean_pair(stage, pair, settings.patience)?;
    }
    report.forgive(&mut pair.forgiven);
    stage.count(&mut report);
    Ok(report)
}

/// A new pair, unless this pair and the program before its second server are as new.
fn clean_pair(
    stage: &mut DifferStage,
    pair: SidePair,
    patience: Duration,
) -> Result<SidePair, String> {
    if pair.has_left_something || stage.complaint().is_some() {
        stage.renew()?;
    }
    stage.pair(patience)
}

/// The shortest script that fails in the same way with respool, and never without it; or why there
/// is none.
fn make_short(
    stage: &mut DifferStage,
    pair: &mut SidePair,
    script: DifferScript,
    difference: &Difference,
) -> Result<Result<(DifferScript, Difference), String>, String> {
    let patience = pair.patience;
    // Without respool, the two servers differ.
    let sound_runs = if matches!(stage.before, Before::Nothing) {
        0
    } else {
        SOUND_RUNS
    };
    for _ in 0..sound_runs {
        if pair.has_left_something {
            stage.renew()?;
            *pair = stage.pair(patience)?;
        }
        match stage.bare_pair(patience)?.play(&script)? {
            ScriptOutcome::Same => {}
            ScriptOutcome::Unsound(problem) => {
                return Ok(Err(format!("{problem}\n{}", script.write())));
            }
            ScriptOutcome::Different(difference) => {
                let text = format!(
                    "two servers with nothing between differ, too: {}\n  {}\n  {}\n{}",
                    difference.about,
                    difference.direct,
                    difference.other,
                    script.write()
                );
                return Ok(Err(text));
            }
        }
    }
    // Enough on this machine for every reply that comes, and there are many scripts to try.
    let shorter = patience.min(SHRINK_PATIENCE);
    let mut last = difference.clone();
    let mut fails = |script: &DifferScript| {
        // A pair that ran the scripts of an earlier attempt is not as new.
        if pair.has_left_something || stage.complaint().is_some() || script.asks("EVALSHA") {
            stage.renew()?;
            *pair = stage.pair(shorter)?;
        }
        pair.patience = shorter;
        let outcome = pair.play(script)?;
        let has_failed = stage.complaint().is_some();
        match outcome {
            ScriptOutcome::Different(difference) if difference.signature == last.signature => {
                last = difference;
                Ok(true)
            }
            _ => Ok(has_failed && last.signature == "respool has failed"),
        }
    };
    if !fails(&script)? {
        return Ok(Err(format!(
            "seen once and not again: {}\n  {}\n  {}\n{}",
            difference.about,
            difference.direct,
            difference.other,
            script.write()
        )));
    }
    let short = Shrink::new(script, &mut fails).run()?;
    if pair.has_left_something {
        stage.renew()?;
        *pair = stage.pair(patience)?;
    }
    pair.patience = patience;
    // A shorter script may have lost the requests that kept its connections apart.
    if sound_runs > 0
        && !matches!(
            stage.bare_pair(patience)?.play(&short)?,
            ScriptOutcome::Same
        )
    {
        return Ok(Err(format!(
            "the shortened script differs without respool, too\n{}",
            short.write()
        )));
    }
    Ok(Ok((short, last)))
}

/// A script must be equal without respool so often.
const SOUND_RUNS: usize = 2;
/// Cases of one kind to try when each of them may be chance.
const ATTEMPTS_MAX: u32 = 3;
const SHRINK_PATIENCE: Duration = Duration::from_millis(700);

fn found(seed: u64, difference: &Difference, script: &DifferScript) -> FoundDifference {
    FoundDifference {
        seed,
        times: 1,
        text: format!(
            "{}\n    direct:  {}\n    respool: {}",
            difference.about, difference.direct, difference.other
        ),
        script: script.write(),
        requests: script.requests(),
    }
}

/// The flavour of this name.
///
/// # Errors
/// When there is none.
pub fn flavour(name: &str) -> Result<Flavour, String> {
    let known = Flavour::ALL
        .into_iter()
        .find(|flavour| flavour.name() == name);
    known.ok_or_else(|| {
        let names: Vec<&str> = Flavour::ALL.iter().map(|flavour| flavour.name()).collect();
        format!("one of {} is expected", names.join(", "))
    })
}

/// The names of all classes, for the help.
pub fn classes() -> String {
    generate::class_names().join(", ")
}
