//! `respool-lab window`

use std::ffi::OsString;
use std::process::ExitCode;

use super::{experiment, fail, read};
use crate::experiment::{FLAGS, MINUTES, Options};
use crate::flags::{Flag, WIDTH, list, wrap};
use crate::window::WINDOW;

/// Options of the experiments that mean the same here.
const NAMES: [&str; 14] = [
    "quick",
    "seconds",
    "warmup",
    "rounds",
    "verbs",
    "pipeline",
    "connections",
    "threads",
    "keys",
    "value-bytes",
    "generator-threads",
    "server",
    "respool",
    "out",
];

/// Minutes of a whole run: with a fifth of it again, it is still below half an hour.
const WHOLE_MINUTES: f64 = 24.0;

const OWN: [&Flag<Options>; 6] = [
    &Flag {
        name: "rules",
        value: Some("LIST"),
        help: "The longest that a request may wait, microseconds, several numbers with commas [50,200,1000]. \
               Holding nothing back is always among the rules.",
        set: |options, value| list(value).map(|numbers| options.rules_us = numbers),
    },
    &Flag {
        name: "loads",
        value: Some("LIST"),
        help: "Open loops, percent of what the closed one came to, several numbers with commas, or none [60]. \
               The closed loop is always measured.",
        set: |options, value| {
            if value == "none" {
                options.loads_percent.clear();
                return Ok(());
            }
            let numbers: Vec<u32> = list(value)?;
            let percent = |n: u32| u8::try_from(n).ok().filter(|&n| n <= 100);
            let numbers: Option<Vec<u8>> = numbers.into_iter().map(percent).collect();
            options.loads_percent = numbers.ok_or("percent from 1 to 100 are expected")?;
            Ok(())
        },
    },
    &Flag {
        name: "direct",
        value: None,
        help: "Ask the server directly as well, under the same loads.",
        set: |options, _| {
            options.is_without_direct = false;
            Ok(())
        },
    },
    &Flag {
        name: "whole",
        value: None,
        help: "All of the picture in less than half an hour: --rules 50,100,200,500,1000 --loads 30,60,90 --threads 1,3 \
               --minutes 24. What is given behind it replaces that.",
        set: |options, _| {
            options.rules_us = vec![50, 100, 200, 500, 1000];
            options.loads_percent = vec![30, 60, 90];
            options.threads = vec![1, 3];
            options.budget_s = Some(WHOLE_MINUTES * 60.0);
            Ok(())
        },
    },
    &Flag {
        name: "stolen-max",
        value: Some("CORES"),
        help: "Measure again, up to twice, where a hypervisor took more than so many cores away [0.05]; a fifth more \
               measurements at most.",
        set: |options, value| match value.parse::<f64>() {
            Ok(cores) if cores.is_finite() && cores >= 0.0 => {
                options.stolen_cores_max = Some(cores);
                Ok(())
            }
            _ => Err("a number of cores is expected".to_owned()),
        },
    },
    &MINUTES,
];

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let mut options = Options::default();
    (WINDOW.adapt)(&mut options);
    let shared = FLAGS.into_iter().filter(|flag| NAMES.contains(&flag.name));
    let flags: Vec<&Flag<Options>> = OWN.into_iter().chain(shared).collect();
    if let Err(code) = read(WINDOW.name, &about(&options), &flags, args, &mut options) {
        return code;
    }
    match experiment::measured(&WINDOW, &options) {
        Ok(_) => ExitCode::SUCCESS,
        Err(problem) => fail(WINDOW.name, &problem),
    }
}

fn about(options: &Options) -> String {
    let ends = format!(
        "For each load and rule: requests in a batch, as respool counted them; p50, p99 and p99.9, and how much of them was not there \
         with nothing held back, in the same round; and the CPU per request of server and proxy. The rule that respool has by \
         default is marked. Every reply is checked. All {} cases take turns, round by round; tables show medians. Exits \
         with 1 when a reply was wrong or missing.",
        options.cases().len()
    );
    let [about, ends] = [WINDOW.about, &ends].map(|text| wrap(text, WIDTH).join("\n"));
    format!(
        "respool-lab window: {}\n\n{about}\n\n{ends}\n\nUsage: respool-lab window [OPTIONS]\nExamples:\n  \
         respool-lab window\n  respool-lab window --whole\n  \
         respool-lab window --connections 1,4 --rules 100,200,500 --loads 30,60,90 --minutes 10",
        WINDOW.title
    )
}
