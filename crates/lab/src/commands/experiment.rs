//! `respool-lab eight`, `lone`, `connections`, `mget`, `skew`: one module for all of them.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{fail, read};
use crate::experiment::Experiment;
use crate::files;
use crate::flags::{WIDTH, wrap};
use crate::options::{ExperimentArgs, RunOptions};
use crate::report::Report;
use crate::run;
use crate::table;

/// Runs it.
pub fn run(experiment: &Experiment, args: &[OsString]) -> ExitCode {
    let mut options = RunOptions::default();
    (experiment.adapt)(&mut options);
    let given: ExperimentArgs = match read(experiment.name, &about(experiment, &options), args) {
        Ok(given) => given,
        Err(code) => return code,
    };
    let applied = given.apply(&mut options);
    match applied.and_then(|()| measured(experiment, &options)) {
        Ok(_) => ExitCode::SUCCESS,
        Err(problem) => fail(experiment.name, &problem),
    }
}

/// Runs it with these options, shows its tables and writes its files.
///
/// # Errors
/// One line: why it did not finish, which replies were wrong, or which file cannot be written.
pub fn measured(experiment: &Experiment, options: &RunOptions) -> Result<Report, String> {
    let report = run::run(experiment, options, &stop_flag()?)?;
    let folder = options.out.clone();
    let folder = folder.unwrap_or_else(|| new_folder(&report.experiment, &report.started));
    show(
        table::text(&report, style()),
        &folder,
        files::write(&report, &folder),
    )?;
    match failed(&report.failures) {
        None => Ok(report),
        Some(problem) => Err(problem),
    }
}

/// Why a run failed: the first failure in one line. The report has all of them.
pub(super) fn failed(failures: &[String]) -> Option<String> {
    let (first, others) = failures.split_first()?;
    Some(match others.len() {
        0 => format!("the run failed: {first}"),
        more => format!("the run failed: {first}; and {more} more"),
    })
}

/// A flag that SIGINT, SIGTERM and SIGHUP set.
///
/// # Errors
/// When signals cannot be handled.
pub(super) fn stop_flag() -> Result<Arc<AtomicBool>, String> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
    ] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| format!("signals: {error}"))?;
    }
    Ok(stop)
}

/// The style for standard output.
pub(super) fn style() -> table::Style {
    if io::stdout().is_terminal() {
        table::Style::Terminal
    } else {
        table::Style::Plain
    }
}

/// Shows the tables and the paths of the files, the page first.
///
/// # Errors
/// When they could not be written.
pub(super) fn show(
    mut text: String,
    folder: &Path,
    written: io::Result<Vec<PathBuf>>,
) -> Result<(), String> {
    if let Ok([html, others @ ..]) = written.as_deref() {
        let shown = std::fs::canonicalize(html).unwrap_or_else(|_| html.clone());
        let others = others.iter().filter_map(|file| file.file_name()?.to_str());
        let others: Vec<&str> = others.collect();
        text.push_str(&format!(
            "\nReport: {} (and {})\n",
            shown.display(),
            others.join(", ")
        ));
    }
    // A reader that has left does not change the result.
    let _ = io::stdout().lock().write_all(text.as_bytes());
    let written = written.map(drop);
    written.map_err(|error| format!("{}: {error}", folder.display()))
}

fn about(experiment: &Experiment, options: &RunOptions) -> String {
    let Experiment {
        name, title, about, ..
    } = experiment;
    // `--all` includes the floor, which answers SET and GET alone.
    let peers = if options.verbs.iter().all(|verb| verb.is_simple()) {
        "--all"
    } else {
        "--peer twemproxy"
    };
    let prose = |text: &str| wrap(text, WIDTH).join("\n");
    let cases: Vec<String> = options
        .cases()
        .iter()
        .map(|case| format!("  {case}"))
        .collect();
    format!(
        "respool-lab {name}: {title}\n\n{}\n\n{}\n{}\n\n{}\n\nUsage: respool-lab {name} [OPTIONS]\n\
         Examples:\n  respool-lab {name} --quick\n  respool-lab {name} {peers} --rounds 5 --seconds 10",
        prose(about),
        prose(
            "Cases (the number after P is how many requests a connection sends at once, the one after × how many \
             connections there are):"
        ),
        cases.join("\n"),
        prose(
            "For each case: throughput, p50, p99 and p99.9, and the CPU of server, proxy and generator, in cores and in \
             microseconds per request. Every reply is checked. All cases take turns, round by round; tables show \
             medians. Exits with 1 when a reply was wrong or missing."
        )
    )
}

/// A folder that does not overwrite an earlier run.
pub(super) fn new_folder(experiment: &str, started: &str) -> PathBuf {
    let when: String = started
        .chars()
        .filter(|c| c.is_ascii_alphanumeric())
        .collect();
    PathBuf::from("lab-out").join(format!("{experiment}-{when}"))
}
