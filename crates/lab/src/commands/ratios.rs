//! `respool-lab ratios`

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use lexopt::Arg;

use super::{fail, say};
use crate::report::Report;
use crate::table;

const NAME: &str = "ratios";
const ABOUT: &str = "\
respool-lab ratios: what respool came to in several runs, in one table.

Reads the report.json that `respool-lab eight` and the like left in each folder. Throughput, median time
and the server's CPU per request are to the server asked directly, the proxy's CPU per request is to the
echo server: each ratio is taken within a round, and what is shown is the median over the rounds. Where
respool was measured with several numbers of workers, it is the first of them.

Usage: respool-lab ratios FOLDER...
";

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let mut reports = Vec::new();
    let mut parser = lexopt::Parser::from_args(args);
    loop {
        let read = match parser.next() {
            Ok(None) => break,
            Ok(Some(Arg::Value(folder))) => Report::read(Path::new(&folder)),
            Ok(Some(Arg::Short('h') | Arg::Long("help"))) => {
                say(ABOUT);
                return ExitCode::SUCCESS;
            }
            Ok(Some(other)) => Err(format!("{}; see --help", other.unexpected())),
            Err(error) => Err(error.to_string()),
        };
        match read {
            Ok(report) => reports.push(report),
            Err(problem) => return fail(NAME, &problem),
        }
    }
    if reports.is_empty() {
        return fail(NAME, "of which runs? FOLDER...");
    }
    say(&table::ratios(&reports).text());
    ExitCode::SUCCESS
}
