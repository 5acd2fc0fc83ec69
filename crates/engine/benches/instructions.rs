//! Instructions of a request on its way, counted by callgrind. They show a slowdown that no clock
//! on a busy machine would show. `make instructions` compares with the last accepted counts, and
//! fails if a scenario takes over 3 % more. `make instructions ACCEPT=1` writes the new counts.
//!
//! This program runs itself under valgrind, once with few and once with many rounds of each
//! scenario. Only the instructions of the counted part are collected. Their difference leaves out
//! all that both runs have in common: buffers that grow, an arrival wheel that fills.
//!
//! The libraries for this (iai-callgrind, now gungraun) need a second program of exactly their
//! version, installed by hand.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, thread};

use scenarios::{Part, Scenario};

mod scenarios;

/// A count that is higher by more than this fails.
const WORSE_PERCENT_MAX: f64 = 3.0;

/// Rounds before the counted ones, in which buffers grow.
const WARM_UP_ROUNDS: u32 = 50;

const COUNTS: &str = "docs/benchmarks/instructions.txt";
/// The page that shows the counts, between these lines.
const PAGE: &str = "docs/benchmarks/instructions.md";
const BEGIN: &str = "<!-- written by make instructions ACCEPT=1 -->\n```\n";
const END: &str = "```\n<!-- so far -->\n";

fn main() -> ExitCode {
    // Cargo adds --bench.
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["--run", name, part, rounds] => run(name, part, rounds),
        [] => compare(),
        ["--accept"] => accept(),
        _ => Err("usage: instructions [--accept]".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("instructions: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a scenario, under valgrind.
fn run(name: &str, part: &str, rounds: &str) -> Result<(), String> {
    let rounds: u32 = rounds.parse().map_err(|_| "no number of rounds")?;
    let mut all = scenarios::all().into_iter();
    let scenario = all.find(|scenario| scenario.name == name);
    let scenario = scenario.ok_or("no such scenario")?;
    let part = scenario.parts.iter().find(|one| name_of(**one) == part);
    let mut round = (scenario.prepare)(*part.ok_or("no such part")?);
    (0..rounds).for_each(|_| round());
    Ok(())
}

fn compare() -> Result<(), String> {
    let before = fs::read_to_string(at_root(COUNTS))
        .map_err(|error| format!("{COUNTS}: {error}"))
        .and_then(|text| Counts::parse(&text))?;
    let now = Counts::count()?;
    let mut worse = Vec::new();
    println!("instructions per request    before       now");
    for (name, count) in &now.counts {
        let old = before.counts.iter().find(|(old, _)| old == name);
        let Some((_, old)) = old else {
            println!("{name:NAME_WIDTH$} {:>9} {count:>9.1}", "");
            worse.push(format!("{name}: it was not counted before"));
            continue;
        };
        let percent = (count / old - 1.0) * 100.0;
        println!("{name:NAME_WIDTH$} {old:>9.1} {count:>9.1} {percent:>+6.1} %");
        if percent > WORSE_PERCENT_MAX {
            worse.push(format!("{name}: {percent:.1} % more"));
        }
    }
    println!(
        "The functions that took them: callgrind_annotate {}/*",
        kept().display()
    );
    if before.by != now.by {
        println!(
            "Not compared: the old counts were made with {}, the new ones with {}",
            before.by, now.by
        );
        return Ok(());
    }
    if !fs::read_to_string(at_root(PAGE)).is_ok_and(|page| page.contains(&before.to_string())) {
        worse.push(format!("{PAGE} shows other counts than {COUNTS}"));
    }
    if worse.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{}\nIf the increase is intended, run: make instructions ACCEPT=1",
        worse.join("\n")
    ))
}

fn accept() -> Result<(), String> {
    let page = fs::read_to_string(at_root(PAGE)).map_err(|error| format!("{PAGE}: {error}"))?;
    let parts = page.split_once(BEGIN).and_then(|(front, rest)| {
        let (_, behind) = rest.split_once(END)?;
        Some((front, behind))
    });
    let (front, behind) = parts.ok_or_else(|| format!("{PAGE} has no place for the counts"))?;
    let counts = Counts::count()?.to_string();
    fs::write(at_root(PAGE), [front, BEGIN, &counts, END, behind].concat())
        .and_then(|()| fs::write(at_root(COUNTS), &counts))
        .map_err(|error| format!("the counts cannot be written: {error}"))?;
    print!("{counts}");
    Ok(())
}

/// Counts, and the compiler and machine that they were made with.
struct Counts {
    /// The compiler and the machine: other compilers make other instructions, and other machines
    /// have other copies of `memcpy`.
    by: String,
    /// Per request, in the order of the scenarios.
    counts: Vec<(String, f64)>,
}

const TITLE: &str = "Instructions per request, ";
const NAME_WIDTH: usize = 42;

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{TITLE}{}", self.by)?;
        for (name, count) in &self.counts {
            writeln!(f, "{name:NAME_WIDTH$} {count:>8.1}")?;
        }
        Ok(())
    }
}

impl Counts {
    fn parse(text: &str) -> Result<Counts, String> {
        let mut lines = text.lines();
        let by = lines.next().and_then(|line| line.strip_prefix(TITLE));
        let line = |line: &str| {
            let (name, count) = line.trim_end().rsplit_once(' ')?;
            Some((name.trim_end().to_owned(), count.parse().ok()?))
        };
        let counts = lines.map(line).collect::<Option<Vec<_>>>();
        match (by, counts) {
            (Some(by), Some(counts)) => Ok(Counts {
                by: by.to_owned(),
                counts,
            }),
            _ => Err(format!(
                "{COUNTS} cannot be read; write it anew: make instructions ACCEPT=1"
            )),
        }
    }

    fn count() -> Result<Counts, String> {
        let by = format!(
            "{} · {} · {}",
            said_by(env::var("RUSTC").as_deref().unwrap_or("rustc"))?,
            env::consts::ARCH,
            said_by("valgrind")?
        );
        let scenarios = scenarios::all();
        let mut all: Vec<(&Scenario, Part)> = Vec::new();
        for scenario in &scenarios {
            all.extend(scenario.parts.iter().map(|part| (scenario, *part)));
        }
        let mut counted = side_by_side(&all, per_request)?.into_iter();
        let mut counts = Vec::new();
        for scenario in &scenarios {
            let of_parts: Vec<f64> = counted.by_ref().take(scenario.parts.len()).collect();
            counts.push((scenario.name.to_owned(), of_parts.iter().sum()));
            if scenario.parts.len() > 1 {
                for (part, count) in scenario.parts.iter().zip(of_parts) {
                    counts.push((format!("{}: {}", scenario.name, name_of(*part)), count));
                }
            }
        }
        Ok(Counts { by, counts })
    }
}

/// Instructions of a part of a scenario, per request.
fn per_request(scenario: &Scenario, part: Part) -> Result<f64, String> {
    let few = instructions(scenario, part, WARM_UP_ROUNDS)?;
    let many = instructions(scenario, part, WARM_UP_ROUNDS + scenario.rounds)?;
    let requests = u64::from(scenario.rounds) * u64::from(scenario.per_round);
    match many.checked_sub(few) {
        Some(more @ 1..) => Ok(more as f64 / requests as f64),
        _ => Err(format!(
            "{}: nothing was counted: is there no function {}?",
            scenario.name,
            scenarios::COUNTED
        )),
    }
}

/// All instructions that a part of a scenario executes in this many rounds.
fn instructions(scenario: &Scenario, part: Part, rounds: u32) -> Result<u64, String> {
    let program = env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let file = format!("{} {}.callgrind", scenario.name, name_of(part))
        .replace(|char: char| !char.is_alphanumeric() && char != '.', "-");
    fs::create_dir_all(kept()).map_err(|error| format!("{}: {error}", kept().display()))?;
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!(
            "--callgrind-out-file={}",
            kept().join(file).display()
        ))
        .arg("--collect-atstart=no")
        .arg(format!("--toggle-collect={}", scenarios::COUNTED))
        .arg(program)
        .args(["--run", scenario.name, name_of(part), &rounds.to_string()])
        // The size of the environment moves the stack and the alignment of data on it.
        .env_clear()
        .env("PATH", env::var_os("PATH").unwrap_or_default())
        .output()
        .map_err(|error| format!("valgrind cannot be run: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let collected = said
        .lines()
        .find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    match collected {
        Some(count) if output.status.success() => Ok(count),
        _ => Err(format!("{}: valgrind says:\n{said}", scenario.name)),
    }
}

/// Runs this for all scenarios, as many at once as there are cores. The results are in their order.
fn side_by_side(
    all: &[(&Scenario, Part)],
    each: impl Fn(&Scenario, Part) -> Result<f64, String> + Sync,
) -> Result<Vec<f64>, String> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((scenario, part)) = all.get(at) else {
                return done;
            };
            done.push((at, each(scenario, *part)));
        }
    };
    let mut done = thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined
            .flat_map(|done| done.expect("no worker panics"))
            .collect::<Vec<_>>()
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, count)| count).collect()
}

fn name_of(part: Part) -> &'static str {
    match part {
        Part::Whole => "whole",
        Part::Requests => "requests",
        Part::Replies => "replies",
    }
}

/// The first two words of a program's version.
fn said_by(program: &str) -> Result<String, String> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map_err(|error| format!("{program} cannot be run: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    Ok(said
        .split_whitespace()
        .take(2)
        .collect::<Vec<_>>()
        .join(" "))
}

fn at_root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// The folder with callgrind's last files.
fn kept() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("instructions")
}
