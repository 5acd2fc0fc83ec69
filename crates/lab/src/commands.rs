//! What `respool-lab` can be asked to do, one module a command that is no experiment.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use crate::flags::{self, Asked, Flag};

pub mod against;
pub mod cluster;
pub mod differ;
pub mod experiment;
pub mod failover;
pub mod floor;
pub mod histories;
pub mod idle;
pub mod load;
pub mod ratios;
pub mod servers;
pub mod window;

/// Reads the command line of a command: `Ok` to go on, `Err` with how the process ends.
fn read<T>(
    name: &str,
    about: &str,
    flags: &[&Flag<T>],
    args: &[OsString],
    into: &mut T,
) -> Result<(), ExitCode> {
    match asked(about, flags, args, into) {
        Ok(Asked::Run) => Ok(()),
        Ok(Asked::Help) => Err(ExitCode::SUCCESS),
        Err(problem) => Err(fail(name, &problem)),
    }
}

/// Reads the command line of a command, and gives the help that it may ask for.
fn asked<T>(
    about: &str,
    flags: &[&Flag<T>],
    args: &[OsString],
    into: &mut T,
) -> Result<Asked, String> {
    let asked = flags::parse(args.iter().cloned(), flags, into)?;
    if asked == Asked::Help {
        say(&format!("{about}\n\nOptions:\n{}", flags::help(flags)));
    }
    Ok(asked)
}

/// Writes to standard output. A reader that has left, as `head` does, is no failure.
pub fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Says what went wrong, in one place and one form.
fn fail(name: &str, problem: &str) -> ExitCode {
    eprintln!("respool-lab {name}: {problem}");
    ExitCode::FAILURE
}

/// A child of the lab ends with the lab, however that ends.
fn end_with_parent() {
    // Without it the child would only live on until its time is over.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}
