//! Old names of options.
//!
//! An old name works on the command line and in the file until the next version. respool warns of
//! it at the start and names the new one. No renamed option has an environment variable, a place
//! below `[pool.NAME]` or a name for CONFIG SET.

/// An option that had another name before.
pub(crate) struct Renamed {
    /// The old name.
    pub(crate) old: &'static str,
    /// The name in the table of options.
    pub(crate) new: &'static str,
}

/// Every old name that works.
pub(crate) static RENAMED: [Renamed; 4] = [
    Renamed {
        old: "link-ledger-max",
        new: "link-unanswered-requests-max",
    },
    Renamed {
        old: "server-away-error",
        new: "server-down-error",
    },
    Renamed {
        old: "session-depth-max",
        new: "session-pipeline-max",
    },
    Renamed {
        old: "stranger-stall-ms",
        new: "head-of-line-stall-ms",
    },
];

/// The remedy for an option that another one has replaced, with other values.
pub(crate) fn replaced(name: &str) -> Option<&'static str> {
    match name.trim_start_matches('-') {
        "hold" => Some(
            "`flush-rule` has replaced it: `latency` stands for `false`, `server-cpu` for `true`",
        ),
        _ => None,
    }
}
