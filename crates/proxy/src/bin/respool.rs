//! The program `respool`. The library of this package is its map.

use std::process::ExitCode;

fn main() -> ExitCode {
    respool_proxy::run()
}
