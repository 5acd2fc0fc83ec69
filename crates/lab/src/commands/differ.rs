//! `respool-lab differ`

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use respool_checker::differ::{self, DifferReport, DifferSettings};
use respool_testkit::servers::{self, Flavour};

use super::{fail, read, say};
use crate::flags::{ValueList, duration, positive};
use crate::targets::Programs;

const NAME: &str = "differ";
const ABOUT: &str = "\
respool-lab differ: asks a server directly, and a second, equal one through respool, the same random
requests over several connections. Every reply must be the same, and the data of the two servers
in the end. The forgiven differences, with the reasons, stand in a table in crates/checker/src/differ/compare.rs.

A case that differs is cut down to a short script, which is printed; --replay runs it again. In a script,
all requests of one connection in a round leave in one write; a round ends when all its replies have come.
Exits with 1 when anything differed.

Usage: respool-lab differ [OPTIONS]
Example: respool-lab differ --server valkey-9.1 --seed 7 --cases 500 --respool-arg --threads=3";

#[derive(Args)]
struct DifferArgs {
    /// Seed of the first case; the next case has the next seed.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Cases, each from an empty server, for each server.
    #[arg(long, value_name = "N", value_parser = positive::<u64>, default_value_t = 100)]
    cases: u64,
    /// Time for each server; no case begins later [no limit].
    #[arg(long, value_name = "S", value_parser = duration)]
    seconds: Option<Duration>,
    /// Approximate number of requests of a case.
    #[arg(long, value_name = "N", value_parser = positive::<usize>, default_value_t = 60)]
    steps: usize,
    /// Connections of a case.
    #[arg(long, value_name = "N", value_parser = positive::<usize>, default_value_t = 4)]
    connections: usize,
    /// Only these classes of requests; `--classes ?` names them [all].
    #[arg(long, value_name = "A,B,…", value_parser = names)]
    classes: Option<ValueList<String>>,
    /// All but these classes of requests.
    #[arg(long, value_name = "A,B,…", value_parser = names)]
    without: Option<ValueList<String>>,
    /// Never send these commands, for example "CLIENT LIST,READONLY"; may be repeated.
    #[arg(long, value_name = "A,B,…")]
    omit: Vec<String>,
    /// redis-6.2, redis-7.0, redis-8.2 or valkey-9.1; `all` is every installed one.
    #[arg(long, value_name = "NAME", value_parser = flavours, default_value = "redis-7.0")]
    server: ValueList<Flavour>,
    /// The respool to test [the one next to respool-lab, or from PATH].
    #[arg(long, value_name = "PATH")]
    respool: Option<PathBuf>,
    /// One more argument for respool serve; may be repeated.
    #[arg(long = "respool-arg", value_name = "ARG", allow_hyphen_values = true)]
    respool_args: Vec<String>,
    /// Give all keys a prefix, on both sides, that respool takes off before its server sees them.
    #[arg(long)]
    strip: bool,
    /// How long a reply may take.
    #[arg(long, value_name = "S", value_parser = duration, default_value = "5")]
    patience: Duration,
    /// Count refusals in respool's own words instead of taking them for differences; the case ends
    /// there.
    #[arg(long)]
    refusals: bool,
    /// Run this script instead of random ones.
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Test the tester: without respool nothing may differ, and planted differences must be found.
    #[arg(long)]
    self_check: bool,
}

impl DifferArgs {
    fn settings(&self) -> DifferSettings {
        let omitted = self.omit.iter().flat_map(|names| names.split(','));
        DifferSettings {
            seed: self.seed,
            cases: self.cases,
            time_max: self.seconds,
            steps: self.steps,
            connections: self.connections,
            classes: self.classes.clone().unwrap_or_default(),
            without: self.without.clone().unwrap_or_default(),
            omitted: omitted.map(|name| name.trim().to_uppercase()).collect(),
            respool_args: self.respool_args.clone(),
            patience: self.patience,
            accepts_refusals: self.refusals,
            strips: self.strip,
            ..DifferSettings::default()
        }
    }
}

fn flavours(value: &str) -> Result<ValueList<Flavour>, String> {
    match value {
        "all" => {
            let all = Flavour::ALL.into_iter();
            Ok(all
                .filter(|flavour| servers::find(*flavour).is_ok())
                .collect())
        }
        name => Ok(vec![differ::flavour(name)?]),
    }
}

fn names(value: &str) -> Result<ValueList<String>, String> {
    match value {
        "?" => Err(format!("the classes are {}", differ::classes())),
        names => Ok(names
            .split(',')
            .map(|name| name.trim().to_owned())
            .collect()),
    }
}

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let arguments: DifferArgs = match read(NAME, ABOUT, args) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match run_all(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => fail(NAME, &problem),
    }
}

/// Whether nothing differed on any server.
fn run_all(arguments: &DifferArgs) -> Result<bool, String> {
    let mut settings = arguments.settings();
    if !arguments.self_check {
        settings.respool = Programs::respool(arguments.respool.as_deref())?;
    }
    let script = match &arguments.replay {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            Some(text.map_err(|error| format!("--replay {}: {error}", path.display()))?)
        }
        None => None,
    };
    let mut is_clean = true;
    for flavour in &arguments.server {
        settings.flavour = *flavour;
        let version =
            servers::version(&servers::find(*flavour)?).map_err(|error| error.to_string())?;
        let mut tell = |text: &str| say(&format!("{text}\n"));
        tell(&format!("{version}: seed {}", settings.seed));
        if arguments.self_check {
            differ::self_check(&settings, &mut tell)?;
            continue;
        }
        let report: DifferReport = match &script {
            Some(script) => differ::replay(&settings, script)?,
            None => differ::run(&settings, &mut tell)?,
        };
        is_clean &= report.is_clean();
        say(&report.text());
    }
    Ok(is_clean)
}
