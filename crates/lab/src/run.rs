//! Runs an experiment: starts every target, measures all cases round by round, gathers a
//! [`Report`].

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use respool_testkit::servers;
use respool_testkit::time::clock_ns;

use crate::against;
use crate::case::{Behind, Case, LoadGenerator, LoadTarget, Verb};
use crate::cores::Cores;
use crate::experiment::Experiment;
use crate::load;
use crate::machine::{self, Machine};
use crate::measure::{self, Manner, STOPPED};
use crate::options::RunOptions;
use crate::progress;
use crate::report::{CaseReport, Report, Round};
use crate::targets::{Backends, Programs, RunningTarget, TargetServers, first_line};

/// Most attempts at one measurement, where a hypervisor takes cores.
const TRIES_MAX: u32 = 3;
/// At most one in so many measurements is repeated.
const REPEATED_PART: usize = 5;

/// Runs an experiment to its end. `stop`, once set, ends it within moments.
///
/// # Errors
/// One line, when a program is missing or does not start. Later failures are in the report.
pub fn run(
    experiment: &Experiment,
    options: &RunOptions,
    stop: &Arc<AtomicBool>,
) -> Result<Report, String> {
    let cases = options.cases();
    let is_simple = options.verbs.iter().all(|verb| verb.is_simple());
    if options.generator == LoadGenerator::RedisBenchmark {
        servers::find_program("redis-benchmark")?;
        if options.rate.is_some() || !options.rates.is_empty() {
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
        return Err("the floor answers only SET and GET: measure without --floor".to_owned());
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
    // Children inherit the limit: server and proxies need it as much as the generator.
    load::allow_descriptors(2 * most + 1000)?;
    let programs = Programs::find(
        options.respool.as_deref(),
        options.value_bytes,
        cases.iter().map(|case| &case.target),
    )?;
    for case in &cases {
        programs.check(&case.target)?;
    }
    let machine = Machine::look();
    let started = machine::now();
    let cores = if experiment.is_isolated {
        let most = options.threads.iter().max().copied().unwrap_or(1);
        Cores::split(usize::from(most))?
    } else {
        None
    };
    let certificates = programs.certificates.as_deref();
    let targets = cases.iter().map(|case| &case.target);
    let backends = Backends::start(&options.server, targets, certificates)?;
    let start = |target: &LoadTarget| {
        let start = || RunningTarget::start(target, backends.of(target), &programs);
        match &cores {
            Some(cores) => cores.start_proxy(start),
            None => start(),
        }
    };
    let mut running: Vec<RunningTarget> = Vec::new();
    for case in &cases {
        if !running.iter().any(|running| running.target == case.target) {
            running.push(start(&case.target)?);
        }
    }
    // Values never change, so they are written once for all rounds: to the server directly, and to
    // a pool through its first proxy, which knows the owners of keys.
    let mut written: Vec<Behind> = Vec::new();
    if let Some(case) = cases.first() {
        let recipe = manner.recipe(case.workload, &LoadTarget::Direct);
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
            load::preload(address, None, &recipe)?;
            written.push(behind);
        }
    }
    let mut rounds: Vec<Vec<Round>> = vec![Vec::new(); cases.len()];
    let mut failures = Vec::new();
    let plan = (experiment.plan)(&cases, options.rounds());
    let repeated_max = plan.len() / REPEATED_PART;
    let mut repeated = 0;
    let progress = progress::bar(plan.len());
    for (number, place) in plan {
        let case = &cases[place];
        progress.set_message(format!("round {number}: {case}"));
        let target = running
            .iter_mut()
            .find(|running| running.target == case.target)
            .expect("every case's target was started");
        if experiment.is_isolated {
            *target = start(&case.target)?;
        }
        let backend = backends.of(&case.target);
        let manner = Manner {
            rate: case.workload.rate.map(f64::from).or(manner.rate),
            ..manner
        };
        let mut tries = 1;
        let measured = loop {
            let round = measure::measure(case.workload, target, backend, &programs, &manner, stop);
            let stolen = round.as_ref().ok().and_then(|round| round.stolen);
            let most = options.stolen_cores_max.unwrap_or(f64::INFINITY);
            let is_robbed = stolen.is_some_and(|cores| cores > most);
            if !is_robbed || tries == TRIES_MAX || repeated == repeated_max {
                break round;
            }
            tries += 1;
            repeated += 1;
        };
        let problems = match measured {
            Ok(round) => {
                let found = complaints(&round, case, number);
                rounds[place].push(Round { number, ..round });
                found
            }
            Err(problem) if problem == STOPPED => return Err(problem),
            Err(problem) => vec![format!("{case}, round {number}: {problem}")],
        };
        progress.inc(1);
        if problems.is_empty() {
            continue;
        }
        // A signal for the whole process group ends the children, too: their failure is then no
        // finding.
        if stop.load(Ordering::Relaxed) {
            return Err(STOPPED.to_owned());
        }
        let gone = ended_process(target, backend);
        let is_over = gone.is_some();
        failures.extend(gone.map(|program| format!("{program} has ended, and the run with it")));
        failures.extend(problems);
        // Every further measurement would fail in the same way.
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
        repeated,
        comparisons: against::compare(&cases, options.allow_percent),
        cases,
        failures,
    })
}

/// The first process of a measurement that has ended.
fn ended_process(target: &RunningTarget, backend: &TargetServers) -> Option<String> {
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

/// Fills in the defaults, so that readers of the report need not know them.
fn resolved(options: &RunOptions) -> RunOptions {
    RunOptions {
        seconds: Some(options.seconds()),
        warmup_s: Some(options.warmup_s()),
        rounds: Some(options.rounds()),
        ..options.clone()
    }
}

/// The command line of this program.
pub(crate) fn command_line() -> Vec<String> {
    let mut words: Vec<String> = std::env::args_os()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    if let Some(program) = words.first_mut() {
        // The folder of the program says nothing to a reader.
        let name = Path::new(program)
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        *program = name.unwrap_or_default();
    }
    words
}

fn generator_version(generator: LoadGenerator) -> String {
    match generator {
        LoadGenerator::Own => format!("respool-lab load {}", env!("CARGO_PKG_VERSION")),
        LoadGenerator::RedisBenchmark => servers::find_program("redis-benchmark").map_or_else(
            |missing| missing,
            |program| first_line(&program, "--version"),
        ),
    }
}
