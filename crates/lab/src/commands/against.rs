//! `respool-lab against`

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use super::{asked, experiment, fail};
use crate::against::{AGAINST, Verdict};
use crate::experiment::{FLAGS, Options};
use crate::flags::{Asked, Flag, WIDTH, positive, seconds, wrap};

/// Options of the experiments that mean the same here.
const NAMES: [&str; 13] = [
    "warmup",
    "verbs",
    "pipeline",
    "connections",
    "threads",
    "keys",
    "value-bytes",
    "open-loop",
    "generator",
    "generator-threads",
    "server",
    "respool",
    "out",
];

const OWN: [&Flag<Options>; 4] = [
    &Flag {
        name: "base",
        value: Some("PATH"),
        help: "The other build of respool. Has to be given.",
        set: |options, value| {
            let path = PathBuf::from(value);
            if !path.is_file() {
                return Err("there is no such file".to_owned());
            }
            options.base = Some(path);
            Ok(())
        },
    },
    &Flag {
        name: "allow",
        value: Some("PERCENT"),
        help: "How much more CPU per request than the base it may take [3].",
        set: |options, value| match value.trim_end_matches('%').parse::<f64>() {
            Ok(percent) if percent.is_finite() && percent >= 0.0 => {
                options.allow_percent = percent;
                Ok(())
            }
            _ => Err("a number of percent, 0 or more, is expected".to_owned()),
        },
    },
    &Flag {
        name: "seconds",
        value: Some("S"),
        help: "Length of each measured window [0.5]. Many short ones tell more than few long ones.",
        set: |options, value| seconds(value).map(|s| options.seconds = Some(s)),
    },
    &Flag {
        name: "rounds",
        value: Some("N"),
        help: "How often each build is measured in each case, twice in a quadruple [40]. With fewer than 12 \
               there is no verdict.",
        set: |options, value| match positive::<u32>(value)? {
            rounds if rounds % 2 == 0 => {
                options.rounds = Some(rounds);
                Ok(())
            }
            _ => Err("an even number is expected".to_owned()),
        },
    },
];

/// How it ends when it has found nothing out: not as it does when it has found a higher cost.
const FAILED: u8 = 2;

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    judge(args).unwrap_or_else(|problem| {
        let _ = fail(AGAINST.name, &problem);
        ExitCode::from(FAILED)
    })
}

fn judge(args: &[OsString]) -> Result<ExitCode, String> {
    let mut options = Options::default();
    (AGAINST.adapt)(&mut options);
    let shared = FLAGS.into_iter().filter(|flag| NAMES.contains(&flag.name));
    let flags: Vec<&Flag<Options>> = OWN.into_iter().chain(shared).collect();
    if asked(&about(), &flags, args, &mut options)? == Asked::Help {
        return Ok(ExitCode::SUCCESS);
    }
    if options.base.is_none() {
        return Err("which other build? --base PATH".to_owned());
    }
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
--rounds should be more. Each case is judged by itself: one that costs just what is allowed is called more in one run of 40 at \
most. Exits with 0, with 1 when a verdict is that it costs more, and with 2 when it could not be measured \
or a reply was wrong.";
    let [about, ends] = [AGAINST.about, ends].map(|text| wrap(text, WIDTH).join("\n"));
    format!(
        "respool-lab against: {}\n\n{about}\n\n{ends}\n\nUsage: respool-lab against --base PATH [OPTIONS]\n\
         Example: respool-lab against --base ../before/target/release/respool --allow 2",
        AGAINST.title
    )
}
