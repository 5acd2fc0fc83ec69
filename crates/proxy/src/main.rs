//! respool gathers what many clients ask at the same moment, sends it to a Redis or Valkey server
//! as one, and hands every client its own answer, in order. This is the proxy around the engine.
//!
//! From the command line to a running process:
//! - [`arguments`] reads the command line, [`raw`] keeps what every layer gives, with its place;
//! - [`options`] is the one table of options, [`address`] reads listeners and URLs, [`pools`]
//!   what names several of them;
//! - [`config`] makes one checked configuration of it, or says every [`problem`]; [`passwords`]
//!   reads the files that hold passwords, then and later;
//! - [`serve`] runs it: open files ([`descriptors`]), a server of our own ([`spawn`]), the workers
//!   (crate `driver`), signals, the drain; [`logs`] says what happens, as often as
//!   [`line_rates`] lets it and as [`log_lines`] can write it, in the characters of [`mod@plain`];
//! - [`help`] and [`manual`] tell people about it, from the same table.

mod account;
mod address;
mod arguments;
mod config;
mod descriptors;
mod help;
mod line_rates;
mod log_lines;
mod logs;
mod manual;
mod options;
mod passwords;
mod plain;
mod pools;
mod problem;
mod raw;
mod reads;
mod serve;
mod sharded;
mod spawn;
mod watched;

use std::io::{self, Write};
use std::process::ExitCode;

use arguments::{Command, Told};
use config::Config;
use plain::plain;
use problem::Problem;

/// The command line or the configuration is wrong; trying again would not help.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    match arguments::parse(std::env::args_os().skip(1)) {
        Ok(Command::Serve(told)) => match Config::build(all_layers(told)) {
            Ok(config) => serve::serve(&config),
            Err(problems) => refuse(&problems),
        },
        Ok(Command::Check { told, print }) => check(told, print),
        Ok(Command::Help { topic, long }) => say(&help::text(topic, long)),
        Ok(Command::Version) => say(concat!("respool ", env!("CARGO_PKG_VERSION"), "\n")),
        Ok(Command::Docs { check }) => docs(check),
        Err(problem) => refuse(&[problem]),
    }
}

fn all_layers(told: Told) -> raw::RawConfig {
    let mut raw = told.into_raw(|variable| std::env::var_os(variable));
    raw.warn_of_variables(std::env::vars_os().map(|(name, _)| name));
    raw
}

/// `respool check`: the same steps as `serve`, up to where something would happen.
fn check(told: Told, print: bool) -> ExitCode {
    match Config::resolve(all_layers(told)) {
        Ok((config, resolved)) => {
            let mut errors = io::stderr().lock();
            for warning in &config.warnings {
                // Where nothing reads standard error, the exit code still tells.
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

/// `respool docs`: for whoever changes an option, and for CI.
fn docs(check: bool) -> ExitCode {
    match manual::update(check) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn refuse(problems: &[Problem]) -> ExitCode {
    let mut errors = io::stderr().lock();
    for problem in problems {
        // Where nobody reads standard error, the exit code still tells.
        let _ = writeln!(errors, "error: {}", plain(&problem.to_string()));
    }
    ExitCode::from(EXIT_USAGE)
}

/// Writes to standard output. That a reader has gone (`respool help | head`) is no failure of ours.
fn say(text: &str) -> ExitCode {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("error: cannot write: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
