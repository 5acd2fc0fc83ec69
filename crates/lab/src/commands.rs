//! The commands of `respool-lab`, one module each; the experiments share one.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use crate::flags;

pub mod against;
pub mod client;
pub mod cluster;
pub mod differ;
pub mod experiment;
pub mod failover;
pub mod floor;
pub mod histories;
pub mod idle;
pub mod load;
pub mod ratios;
pub mod reload;
pub mod rotation;
pub mod scrape;
pub mod servers;
pub mod window;

/// Reads the command line of a command. `Err`: the exit code of the process.
fn read<T: Args>(name: &str, about: &str, args: &[OsString]) -> Result<T, ExitCode> {
    match flags::parse(about, args) {
        Ok(Some(given)) => Ok(given),
        Ok(None) => Err(ExitCode::SUCCESS),
        Err(problem) => Err(fail(name, &problem)),
    }
}

/// Writes to standard output. A reader that has left, such as `head`, is no failure.
pub fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Writes an error, in one form for all commands.
fn fail(name: &str, problem: &str) -> ExitCode {
    eprintln!("respool-lab {name}: {problem}");
    ExitCode::FAILURE
}

/// Asks one request after the other at fixed times, `every` apart, while `goes_on` says so of the
/// next time. Adds the milliseconds of each to `ms`. A late request counts from its time.
fn ask_at_fixed_times(
    every: Duration,
    goes_on: impl Fn(Instant) -> bool,
    mut ask: impl FnMut() -> io::Result<()>,
    ms: &mut Vec<f64>,
) -> io::Result<()> {
    let mut due = Instant::now();
    while goes_on(due) {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        ask()?;
        ms.push(due.elapsed().as_secs_f64() * 1e3);
        due += every;
    }
    Ok(())
}

/// Makes the kernel kill this process when its parent ends, however that ends.
fn end_with_parent() {
    // Without it the child would still end at the end of its load.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}
