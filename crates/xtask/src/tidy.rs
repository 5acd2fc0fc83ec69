//! `cargo xtask tidy`: rules for the sources beyond those of the compiler and rustfmt.
//!
//! | check | rule | known offenders |
//! |---|---|---|
//! | [`folders`] | a module of the engine imports only modules on lower floors | `arrows.txt` |
//! | [`columns`] | a comment or a line of Markdown has at most 100 columns | `wide-files.txt` |
//! | [`names`] | a type name is declared once in all crates | `shared-names.txt` |
//! | [`functions`] | a function has at most 100 lines | `long-functions.txt` |
//! | [`predicates`] | `is_`, `has_` and `may_` take no `&mut self` | `mutating-predicates.txt` |
//! | [`engine`] | `impl Engine` is short, in its folder, and for several components | none |
//! | [`engine`] | `impl DataPlane` becomes no longer | none |
//! | [`paths`] | a file that the architecture pages name exists | none |
//! | [`pages`] | a page of the manual and the architecture page are short | none |
//! | [`test_names`] | the name of a test has at most 60 characters | none |
//! | [`commits`] | a commit subject is `area: imperative`, at most 72 characters | none |
//!
//! The known offenders are in lists under `crates/xtask/tidy`. A list may only shrink: an entry
//! that is no longer needed, or larger than needed, fails the check as an offender does.

mod columns;
mod commits;
mod engine;
mod folders;
mod functions;
mod list;
mod names;
mod pages;
mod paths;
mod predicates;
mod sources;
mod test_names;

use std::path::Path;

use list::{ExceptionList, Offence};
use sources::Sources;

/// A check with a list of known offenders.
struct Check {
    /// The file of the list in `crates/xtask/tidy`.
    list: &'static str,
    /// The first lines of that file.
    head: &'static str,
    find: fn(&Sources) -> Vec<Offence>,
}

const CHECKS: [Check; 5] = [
    Check {
        list: "arrows.txt",
        head: "# FROM TO: modules of crates/engine/src. FROM may still import TO. A module alone still has no\n\
               # floor.",
        find: folders::offences,
    },
    Check {
        list: "wide-files.txt",
        head: "# Files that still have comments or Markdown lines over 100 columns.",
        find: columns::offences,
    },
    Check {
        list: "shared-names.txt",
        head: "# Type names that the crates still declare more than once.",
        find: names::offences,
    },
    Check {
        list: "long-functions.txt",
        head: "# FILE FUNCTION LINES: functions that still have more than 100 lines.",
        find: functions::offences,
    },
    Check {
        list: "mutating-predicates.txt",
        head: "# FILE METHOD: methods of the engine that still ask by their name, and change something.",
        find: predicates::offences,
    },
];

/// Runs every check.
///
/// # Errors
/// The text of all offences and of all entries that are no longer needed.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let sources = Sources::read(root)?;
    let mut report = String::new();
    for check in &CHECKS {
        let list = ExceptionList::read(root, check.list)?;
        report.push_str(&list.compare(&(check.find)(&sources)));
    }
    report.push_str(&engine::report(&sources));
    report.push_str(&paths::report(&sources));
    report.push_str(&pages::report(&sources));
    report.push_str(&test_names::report(&sources));
    match commits::subjects(root) {
        Ok(subjects) => report.push_str(&commits::report(&subjects)),
        Err(reason) => println!("tidy: commit subjects are not checked: {reason}"),
    }
    match report.is_empty() {
        true => Ok(()),
        false => Err(report),
    }
}

/// Writes the lists anew: moved and mended code needs other entries.
///
/// # Errors
/// The text of the new offences, when a list would become longer. That list stays as it is.
pub(crate) fn accept(root: &Path) -> Result<(), String> {
    let sources = Sources::read(root)?;
    let mut report = String::new();
    for check in &CHECKS {
        let list = ExceptionList::read(root, check.list)?;
        report.push_str(&list.accept(root, check.head, &(check.find)(&sources))?);
    }
    match report.is_empty() {
        true => Ok(()),
        false => Err(report),
    }
}
