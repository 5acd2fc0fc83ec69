//! `respool-lab window`

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

use super::{experiment, fail, read};
use crate::case::{LoadTarget, Verb};
use crate::flags::{ValueList, WIDTH, list, positive, wrap};
use crate::options::{
    LoadArgs, PlaceArgs, RunOptions, TimeArgs, Variant, peer, put, variant, verbs,
};
use crate::window::WINDOW;

#[derive(Args)]
struct WindowArgs {
    /// Open loops, requests per second, several numbers with commas [2000,10000,30000,60000]. The
    /// closed loop is always measured.
    #[arg(long, value_name = "LIST", value_parser = list::<u32>)]
    rates: Option<ValueList<u32>>,
    /// Measure again, up to twice, where a hypervisor took more than so many cores away [0.05]; a
    /// fifth more measurements at most.
    #[arg(long, value_name = "CORES", value_parser = cores)]
    stolen_max: Option<f64>,
    /// About so long in all, windows as long as that allows [10].
    #[arg(long, value_name = "N", value_parser = positive::<f64>)]
    minutes: Option<f64>,
    #[command(flatten)]
    time: TimeArgs,
    #[command(flatten)]
    load: LoadArgs,
    /// Of set, get and multi (a transaction of both).
    #[arg(long, value_name = "LIST", value_parser = verbs)]
    verbs: Option<ValueList<Verb>>,
    #[command(flatten)]
    place: PlaceArgs,
    /// respool once more in the same rounds, with options of its own, a blank between them. May be
    /// given several times.
    #[arg(long = "variant", value_name = "NAME=OPTIONS", value_parser = variant)]
    variants: Vec<Variant>,
    /// Another proxy in the same rounds: twemproxy, envoy, or NAME=HOST:PORT,PID for one that
    /// already runs before the same server. May be given several times.
    #[arg(long = "peer", value_name = "PEER", value_parser = peer)]
    peers: Vec<LoadTarget>,
}

impl WindowArgs {
    fn apply(self, options: &mut RunOptions) -> Result<(), String> {
        put(self.rates, &mut options.rates);
        put(self.stolen_max.map(Some), &mut options.stolen_cores_max);
        put(
            self.minutes.map(|minutes| Some(minutes * 60.0)),
            &mut options.budget_s,
        );
        self.time.apply(options);
        self.load.apply(options);
        put(self.verbs, &mut options.verbs);
        self.place.apply(options);
        options.add_variants(self.variants)?;
        options.add_peers(self.peers)
    }
}

fn cores(value: &str) -> Result<f64, &'static str> {
    match value.parse::<f64>() {
        Ok(cores) if cores.is_finite() && cores >= 0.0 => Ok(cores),
        _ => Err("a number of cores is expected"),
    }
}

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let mut options = RunOptions::default();
    (WINDOW.adapt)(&mut options);
    let given: WindowArgs = match read(WINDOW.name, &about(&options), args) {
        Ok(given) => given,
        Err(code) => return code,
    };
    let applied = given.apply(&mut options);
    match applied.and_then(|()| experiment::measured(&WINDOW, &options)) {
        Ok(_) => ExitCode::SUCCESS,
        Err(problem) => fail(WINDOW.name, &problem),
    }
}

fn about(options: &RunOptions) -> String {
    let ends = format!(
        "For each load and target: the part of the due requests that were done, requests per batch, p50 and p99, their ratios to \
         latency in the same round, and CPU per request of server and proxy. Every reply is checked. All {} cases take \
         turns, round by round; tables show medians. Exits with 1 when a reply was wrong or missing.",
        options.cases().len()
    );
    let [about, ends] = [WINDOW.about, &ends].map(|text| wrap(text, WIDTH).join("\n"));
    format!(
        "respool-lab window: {}\n\n{about}\n\n{ends}\n\nUsage: respool-lab window [OPTIONS]\nExamples:\n  \
         respool-lab window\n  \
         respool-lab window --rates 1000,5000,20000 --minutes 5\n  \
         respool-lab window --server 127.0.0.1:6379,PID --peer predixy=127.0.0.1:7617,PID",
        WINDOW.title
    )
}
