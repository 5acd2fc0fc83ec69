//! respool gathers the requests that many clients send at the same moment, sends them to a Redis or
//! Valkey server in one write, and gives every client its own replies, in order. This crate is the
//! program around the engine.
//!
//! From the command line to a running process:
//! - `arguments` parses the command line. The crate `respool-config` makes a checked configuration
//!   of file, environment and command line.
//! - `serve` runs the process: file descriptors (`descriptors`), the server of `--spawn`
//!   (`spawn`), the workers (crate `driver`), signals and the drain. `remedy` names the
//!   remedy for an error of the system.
//! - `metrics` serves the pages `/metrics`, `/live` and `/ready`.
//! - `reload` has the running process read its configuration again.
//! - `logs` writes the log. `line_rates` limits its lines, and `log_lines` writes them on a thread
//!   of its own.
//! - `help` makes the help texts of the table of options. [`mod@reference`] lends the table to the
//!   generators of manual page, completions and reference pages.

mod arguments;
mod descriptors;
mod help;
mod line_rates;
mod log_lines;
mod logs;
mod metrics;
pub mod reference;
mod reload;
mod remedy;
mod serve;
mod spawn;

use std::io::{self, Write};
use std::process::ExitCode;

use respool_config::config::Config;
use respool_config::options::LogFormat;
use respool_config::plain::plain;
use respool_config::problem::Problem;
use respool_config::raw::RawConfig;

use arguments::{ConfigArguments, Invocation};
use reload::{Loaded, ReloadMode};

/// Exit code for a wrong command line or configuration: trying again would not help. A start that
/// fails for another reason has the code 1, see [`Problem::may_pass`].
const EXIT_USAGE: u8 = 2;

/// Runs the program with the arguments and the environment of this process.
pub fn run() -> ExitCode {
    match arguments::parse(std::env::args_os().skip(1)) {
        Ok(Invocation::Serve(given)) => start(given),
        Ok(Invocation::Reload { given, check }) => reload(given, check),
        Ok(Invocation::Check { given, print }) => check(given, print),
        Ok(Invocation::Help { topic, long }) => say(&help::text(topic, long)),
        Ok(Invocation::Version) => say(concat!("respool ", env!("CARGO_PKG_VERSION"), "\n")),
        Err(problem) => refuse(&[problem]),
    }
}

/// `respool serve`.
fn start(given: ConfigArguments) -> ExitCode {
    let raw = all_layers(given);
    let log_format = raw.log_format();
    let problems = match Config::resolve(raw) {
        Ok((config, resolved)) => return serve::serve(Loaded { config, resolved }),
        Err(problems) => problems,
    };
    let refused = match log_format {
        Some(LogFormat::Json) => serve::log_problems(&problems),
        _ => refuse(&problems),
    };
    match problems.iter().all(Problem::may_pass) {
        true => ExitCode::FAILURE,
        false => refused,
    }
}

/// The texts of all layers, with a warning for each unknown variable of the environment.
fn all_layers(given: ConfigArguments) -> RawConfig {
    let mut raw = given.into_raw(|variable| std::env::var_os(variable));
    raw.warn_of_variables(std::env::vars_os().map(|(name, _)| name));
    raw
}

/// `respool check`: the same steps as `serve`, without their effects.
fn check(given: ConfigArguments, print: bool) -> ExitCode {
    match Config::check(all_layers(given)) {
        Ok((config, resolved)) => {
            let mut errors = io::stderr().lock();
            for warning in &config.warnings {
                // If nothing reads standard error, the exit code is enough.
                let _ = writeln!(errors, "warning: {}", plain(warning));
            }
            match print {
                true => say(&resolved.to_toml()),
                false => say(&format!("good: {}\n", plain(&config.summary()))),
            }
        }
        Err(problems) => refuse(&problems),
    }
}

/// `respool reload`: asks the process behind the control socket that the arguments name. A mistake
/// in the command line itself is a sign that another command was meant.
fn reload(given: ConfigArguments, check: bool) -> ExitCode {
    if !given.raw.problems.is_empty() {
        return refuse(&given.raw.problems);
    }
    let mode = match check {
        true => ReloadMode::Check,
        false => ReloadMode::Apply,
    };
    let file = given.file.clone();
    match Config::control_socket(all_layers(given)) {
        Ok(path) => reload::ask_process(&path, file.as_deref(), mode),
        Err(problems) => refuse(&problems),
    }
}

/// Writes problems to standard error.
fn refuse(problems: &[Problem]) -> ExitCode {
    let mut errors = io::stderr().lock();
    for problem in problems {
        // If nothing reads standard error, the exit code is enough.
        let _ = writeln!(errors, "error: {}", plain(&problem.to_string()));
    }
    ExitCode::from(EXIT_USAGE)
}

/// Writes to standard output. A closed pipe (`respool help | head`) is no failure.
fn say(text: &str) -> ExitCode {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("error: cannot write: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
