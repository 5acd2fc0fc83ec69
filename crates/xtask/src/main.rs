//! `cargo xtask TASK`: the tasks that developers and CI run in this repository.
//!
//! - [`command_table`] generates the command table and its page;
//! - [`man`] and [`completions`] generate the manual page and the completions of the shells, by the
//!   model of the command line in [`cli`];
//! - [`header`] generates the header of the C ABI;
//! - [`mod@reference`] generates the pages about options, INFO and metrics in docs/reference;
//! - [`tidy`] checks rules for the sources beyond those of the compiler and rustfmt.

mod cli;
mod command_table;
mod completions;
mod generated;
mod header;
mod man;
mod reference;
mod tidy;
mod wrap;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use command_table::Mode;
use generated::Generated;

const HELP: &str = "\
cargo xtask TASK

  commands [--snapshot | --check]
                   write crates/protocol/src/commands/table.rs and docs/reference/commands.md from
                   the snapshots and the policy in crates/protocol/data.
                   --snapshot  first ask the live servers and write the snapshots
                   --check     write nothing; fail if a file is stale or a snapshot differs from
                               its live server
  completions [--check]
                   write completions/ for bash, zsh and fish from the option table
  header [--check] write crates/ffi/include/respool.h from the functions of the crate
  man [--check]    write docs/respool.1 from the option table
  reference [--check]
                   write options.md, info.md and metrics.md in docs/reference from the option table,
                   the counters, the fields of INFO and the table of metrics
  tidy [--accept]  check imports between the engine's modules, the width of comments and Markdown,
                   names of types, lengths of functions, methods that ask by their name, `impl
                   Engine`, files that the architecture pages name, lengths of pages, names of
                   tests, and commit subjects.
                   --accept  write the lists of known offenders anew; none may become longer
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["tidy"] => tidy::check(&root()),
        ["tidy", "--accept"] => tidy::accept(&root()),
        ["commands"] => command_table::run(&root(), Mode::Write),
        ["commands", "--snapshot"] => command_table::run(&root(), Mode::Snapshot),
        ["commands", "--check"] => command_table::run(&root(), Mode::Check),
        ["completions", ref flags @ ..] => generate("completions", flags, &completions::files()),
        ["header", ref flags @ ..] => {
            header::file(&root()).and_then(|file| generate("header", flags, &[file]))
        }
        ["man", ref flags @ ..] => generate("man", flags, &[man::file()]),
        ["reference", ref flags @ ..] => generate("reference", flags, &reference::files()),
        ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{}", reason.trim_end());
            ExitCode::FAILURE
        }
    }
}

/// Writes the files of `task`, or checks them.
fn generate(task: &str, flags: &[&str], files: &[Generated]) -> Result<(), String> {
    match flags {
        [] => generated::write(&root(), files),
        ["--check"] => generated::check(&root(), files, task),
        _ => Err(format!("{task}: the only option is --check")),
    }
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
