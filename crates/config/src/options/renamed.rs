//! Old names of options.
//!
//! An old name works on the command line and in the file until the next version, also below
//! `[pool.NAME]` if the option may stand there. respool warns of it at the start and names the new
//! one. No renamed option has an environment variable. CONFIG SET has old names of its own.

use super::{Opt, find, switch};

/// An option that had another name before.
pub struct Renamed {
    /// The old name.
    pub old: &'static str,
    /// The name in the table of options.
    pub(crate) new: &'static str,
    /// The new values for `false` and `true`, if the old option was a switch and the new one is
    /// not.
    pub switch_values: Option<[&'static str; 2]>,
}

/// Every old name that works.
pub(crate) static RENAMED: [Renamed; 5] = [
    Renamed {
        old: "hold",
        new: "flush-rule",
        switch_values: Some(["latency", "server-cpu"]),
    },
    Renamed {
        old: "link-ledger-max",
        new: "link-unanswered-requests-max",
        switch_values: None,
    },
    Renamed {
        old: "server-away-error",
        new: "server-down-error",
        switch_values: None,
    },
    Renamed {
        old: "session-depth-max",
        new: "session-pipeline-max",
        switch_values: None,
    },
    Renamed {
        old: "stranger-stall-ms",
        new: "head-of-line-stall-ms",
        switch_values: None,
    },
];

/// The option of that new or old name, and the name itself.
pub fn find_by_any_name(name: &str) -> Option<(&'static Opt, &'static str)> {
    let renamed = RENAMED.iter().find(|renamed| renamed.old == name);
    match renamed {
        Some(renamed) => find(renamed.new).map(|option| (option, renamed.old)),
        None => find(name).map(|option| (option, option.name)),
    }
}

/// The values of the new option for `false` and `true` of the old one, if `name` is the old name of
/// a switch.
pub fn switch_values(name: &str) -> Option<[&'static str; 2]> {
    let renamed = RENAMED.iter().find(|renamed| renamed.old == name)?;
    renamed.switch_values
}

/// The value of the option for `text`, which is given under `name`.
///
/// # Errors
/// An old switch has another text than `true` or `false`, or `yes` or `no`.
pub fn value_by_name(name: &str, text: String) -> Result<String, &'static str> {
    match switch_values(name) {
        Some([for_false, for_true]) => match switch(&text) {
            Some(true) => Ok(for_true.into()),
            Some(false) => Ok(for_false.into()),
            None => Err("must be `true` or `false`, or `yes` or `no`"),
        },
        None => Ok(text),
    }
}

/// The notice for an option that is given by its old name.
pub(crate) fn renamed_notice(option: &Opt, old: &str) -> String {
    let values = match switch_values(old) {
        Some([for_false, for_true]) => {
            format!(", with `{for_true}` in place of `true` and `{for_false}` in place of `false`")
        }
        None => String::new(),
    };
    format!(
        "the option has a new name, `{}`{values}; the old one works until the next version",
        option.name
    )
}

/// The problem of an option that one layer gives by its old and its new name.
pub(crate) fn both_names(option: &Opt, old: &str) -> String {
    let new = option.name;
    format!("`{old}` is the old name of `{new}`, and both are given: remove `{old}`")
}
