//! `respool-lab against`

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{experiment, fail};
use crate::against::AGAINST;
use crate::case::Verb;
use crate::flags::{self, ValueList, WIDTH, positive, seconds, wrap};
use crate::options::{LoadArgs, PaceArgs, PlaceArgs, RunOptions, put, verbs};
use crate::report::Verdict;

#[derive(Args)]
struct AgainstArgs {
    /// The other build of respool.
    #[arg(long, value_name = "PATH", value_parser = file)]
    base: PathBuf,
    /// How much more CPU per request than the base it may take [3].
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    allow: Option<f64>,
    /// Length of each measured window [0.5]. Many short ones tell more than few long ones.
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<f64>,
    /// How often each build is measured in each case, twice in a quadruple [40]. With fewer than 12
    /// there is no verdict.
    #[arg(long, value_name = "N", value_parser = even)]
    rounds: Option<u32>,
    #[command(flatten)]
    load: LoadArgs,
    /// Of set, get and multi (a transaction of both).
    #[arg(long, value_name = "LIST", value_parser = verbs)]
    verbs: Option<ValueList<Verb>>,
    #[command(flatten)]
    pace: PaceArgs,
    #[command(flatten)]
    place: PlaceArgs,
}

impl AgainstArgs {
    fn apply(self, options: &mut RunOptions) {
        options.base = Some(self.base);
        put(self.allow, &mut options.allow_percent);
        put(self.seconds.map(Some), &mut options.seconds);
        put(self.rounds.map(Some), &mut options.rounds);
        self.load.apply(options);
        put(self.verbs, &mut options.verbs);
        self.pace.apply(options);
        self.place.apply(options);
    }
}

fn file(value: &str) -> Result<PathBuf, &'static str> {
    let path = PathBuf::from(value);
    match path.is_file() {
        true => Ok(path),
        false => Err("there is no such file"),
    }
}

fn percent(value: &str) -> Result<f64, &'static str> {
    match value.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent),
        _ => Err("a number of percent, 0 or more, is expected"),
    }
}

fn even(value: &str) -> Result<u32, String> {
    match positive::<u32>(value)? {
        rounds if rounds % 2 == 0 => Ok(rounds),
        _ => Err("an even number is expected".to_owned()),
    }
}

/// The exit code without a result, to tell it from that of a higher cost.
const FAILED: u8 = 2;

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    judge(args).unwrap_or_else(|problem| {
        let _ = fail(AGAINST.name, &problem);
        ExitCode::from(FAILED)
    })
}

fn judge(args: &[OsString]) -> Result<ExitCode, String> {
    let mut options = RunOptions::default();
    (AGAINST.adapt)(&mut options);
    let Some(given) = flags::parse::<AgainstArgs>(&about(), args)? else {
        return Ok(ExitCode::SUCCESS);
    };
    given.apply(&mut options);
    let report = experiment::measured(&AGAINST, &options)?;
    let mut comparisons = report.comparisons.iter();
    if comparisons.any(|comparison| comparison.verdict == Verdict::More) {
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn about() -> String {
    let ends = "\
For each case: the ratio for the proxy's CPU, for its user time alone, and for the server's CPU. The verdict is about the first: \
at most so many percent more, when the whole interval is within --allow; more, when all of it is above; else it cannot tell, and \
--rounds should be more. Each case is judged by itself: a case at exactly the allowed cost is called more in one run of 40 at \
most. Exits with 0, with 1 when a verdict is that it costs more, and with 2 when it could not be measured \
or a reply was wrong.";
    let [about, ends] = [AGAINST.about, ends].map(|text| wrap(text, WIDTH).join("\n"));
    format!(
        "respool-lab against: {}\n\n{about}\n\n{ends}\n\nUsage: respool-lab against --base PATH [OPTIONS]\n\
         Example: respool-lab against --base ../before/target/release/respool --allow 2",
        AGAINST.title
    )
}
