//! `respool-lab ratios`

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{fail, read, say};
use crate::report::Report;
use crate::table;

const NAME: &str = "ratios";
const ABOUT: &str = "\
respool-lab ratios: the results of respool in several runs, in one table.

Reads the report.json that `respool-lab eight` and the like left in each folder. Throughput, median time
and the server's CPU per request are to the server asked directly, the proxy's CPU per request is to the
echo server: each ratio is taken within a round, and the median over the rounds is shown. Where
respool was measured with several numbers of workers, it is the first of them.

Usage: respool-lab ratios FOLDER...
";

#[derive(Args)]
struct RatiosArgs {
    /// The --out folders of `respool-lab eight` and the like.
    #[arg(value_name = "FOLDER", required = true)]
    folders: Vec<PathBuf>,
}

/// Runs it.
pub fn run(args: &[OsString]) -> ExitCode {
    let arguments: RatiosArgs = match read(NAME, ABOUT, args) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let folders = arguments.folders.iter();
    let reports: Result<Vec<Report>, String> = folders.map(|folder| Report::read(folder)).collect();
    match reports {
        Ok(reports) => {
            say(&table::ratios(&reports).text());
            ExitCode::SUCCESS
        }
        Err(problem) => fail(NAME, &problem),
    }
}
