//! The server that `--spawn` starts.

use std::fmt;
use std::path::PathBuf;

/// The programs to look for in PATH, in this order.
pub const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// The server to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// A path, or a name for PATH. `None`: the first of [`PROGRAMS`] in PATH.
    pub program: Option<PathBuf>,
    /// The most memory for its data, in bytes; 0: no limit.
    pub memory_bytes: u64,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.program {
            Some(path) => write!(f, "{}", path.display()),
            None => f.write_str(&PROGRAMS.join(" or ")),
        }
    }
}
