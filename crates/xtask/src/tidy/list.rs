//! A list of known offenders, which may only shrink.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// One place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Offence {
    /// The entry that excuses it. If it ends with a number, that number may only shrink.
    pub(super) entry: String,
    /// Its place, the fault, and the remedy.
    pub(super) text: String,
}

/// The entries of a list.
pub(super) struct ExceptionList {
    /// The file, from the root of the repository.
    path: PathBuf,
    /// `None` before the list is written for the first time.
    entries: Option<BTreeSet<String>>,
}

impl ExceptionList {
    /// Reads the list `name`.
    ///
    /// # Errors
    /// When the file exists and cannot be read.
    pub(super) fn read(root: &Path, name: &str) -> Result<ExceptionList, String> {
        let path = Path::new("crates/xtask/tidy").join(name);
        let entries = match fs::read_to_string(root.join(&path)) {
            Ok(text) => Some(parse(&text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        Ok(ExceptionList { path, entries })
    }

    /// The report on `offences`: those without an entry, and entries without an offence.
    pub(super) fn compare(&self, offences: &[Offence]) -> String {
        let empty = BTreeSet::new();
        let entries = self.entries.as_ref().unwrap_or(&empty);
        let path = self.path.display();
        let mut report = String::new();
        let numbers: BTreeMap<&str, usize> = entries.iter().map(|entry| number(entry)).collect();
        for offence in offences.iter().filter(|one| !entries.contains(&one.entry)) {
            let (name, needed) = number(&offence.entry);
            match numbers.get(name) {
                Some(allowed) if needed < *allowed => {
                    let _ = writeln!(
                        report,
                        "{path}: the entry `{name} {allowed}` is larger than needed: write \
                         `{name} {needed}`, or run `cargo xtask tidy --accept`"
                    );
                }
                Some(allowed) => {
                    let _ = writeln!(report, "{}; {path} allows {allowed}", offence.text);
                }
                None => {
                    let _ = writeln!(report, "{}", offence.text);
                }
            }
        }
        for entry in entries {
            let is_same = |offence: &Offence| number(&offence.entry).0 == number(entry).0;
            if !offences.iter().any(is_same) {
                let _ = writeln!(
                    report,
                    "{path}: the entry `{entry}` is no longer needed: remove it, or run \
                     `cargo xtask tidy --accept`"
                );
            }
        }
        report
    }

    /// Writes the entries that `offences` need, below `head`. If the list or a number in it would
    /// grow, the file stays as it is and the report has every offence without an entry.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn accept(
        &self,
        root: &Path,
        head: &str,
        offences: &[Offence],
    ) -> Result<String, String> {
        let needed: BTreeSet<&str> = offences.iter().map(|o| o.entry.as_str()).collect();
        if let Some(entries) = &self.entries {
            let allowed: BTreeMap<&str, usize> = entries.iter().map(|one| number(one)).collect();
            let has_grown = |entry: &&str| {
                let (name, needed) = number(entry);
                allowed.get(name).is_some_and(|allowed| needed > *allowed)
            };
            let sum: usize = needed.iter().map(|entry| number(entry).1).sum();
            if needed.len() > entries.len()
                || needed.iter().any(has_grown)
                || sum > allowed.values().sum()
            {
                return Ok(self.compare(offences));
            }
        }
        let mut text =
            format!("{head}\n# This list may only shrink: `cargo xtask tidy` checks it.\n");
        for entry in needed {
            let _ = writeln!(text, "{entry}");
        }
        fs::write(root.join(&self.path), text)
            .map_err(|error| format!("{}: {error}", self.path.display()))?;
        Ok(String::new())
    }
}

/// The name of an entry, and the number at its end: 0 if it has none.
fn number(entry: &str) -> (&str, usize) {
    let parts = entry.rsplit_once(' ');
    parts
        .and_then(|(name, number)| Some((name, number.parse().ok()?)))
        .unwrap_or((entry, 0))
}

fn parse(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[&str]) -> ExceptionList {
        ExceptionList {
            path: "list.txt".into(),
            entries: Some(entries.iter().map(|&entry| entry.into()).collect()),
        }
    }

    fn offence(entry: &str) -> Offence {
        Offence {
            entry: entry.into(),
            text: format!("{entry} is wrong"),
        }
    }

    /// An offence without an entry fails, and one with an entry does not.
    #[test]
    fn entry_excuses_its_offence_only() {
        let report = list(&["a"]).compare(&[offence("a"), offence("b")]);
        assert_eq!(report, "b is wrong\n");
    }

    /// A stale entry cannot stay in the list, where it would excuse a new offence.
    #[test]
    fn entry_without_offence_fails() {
        let report = list(&["a", "b"]).compare(&[offence("a")]);
        assert!(report.starts_with("list.txt: the entry `b` is no longer needed"));
    }

    /// A number may not grow, and has to shrink with its offence.
    #[test]
    fn entry_with_a_number_excuses_exactly_that() {
        let list = list(&["a.rs go 120"]);
        assert_eq!(list.compare(&[offence("a.rs go 120")]), "");
        let grown = list.compare(&[offence("a.rs go 121")]);
        assert_eq!(grown, "a.rs go 121 is wrong; list.txt allows 120\n");
        let shrunk = list.compare(&[offence("a.rs go 119")]);
        let head = "list.txt: the entry `a.rs go 120` is larger than needed: write `a.rs go 119`";
        assert!(shrunk.starts_with(head), "{shrunk}");
        let other = list.compare(&[offence("b.rs go 120")]);
        assert!(other.starts_with("b.rs go 120 is wrong\n"), "{other}");
        assert!(
            other.contains("`a.rs go 120` is no longer needed"),
            "{other}"
        );
    }

    /// `--accept` lowers numbers and follows renames. It raises no number, under no name.
    #[test]
    fn accept_never_raises_a_number() {
        let root = std::env::temp_dir().join(format!("tidy-number-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let list = list(&["a 120", "b 150"]);
        let accept = |entries: [&str; 2]| list.accept(&root, "# head", &entries.map(offence));
        for grown in [["a 121", "b 140"], ["c 121", "b 150"], ["a 120", "c 151"]] {
            assert!(accept(grown).unwrap().contains("is wrong"), "{grown:?}");
        }
        assert!(!root.join("list.txt").exists());
        assert_eq!(accept(["c 119", "b 150"]).unwrap(), "");
        let written = fs::read_to_string(root.join("list.txt")).unwrap();
        assert_eq!(
            parse(&written),
            ["b 150", "c 119"].map(str::to_owned).into()
        );
        fs::remove_dir_all(root).unwrap();
    }

    /// `--accept` cannot add offenders: it only follows renames and drops entries.
    #[test]
    fn accept_never_makes_a_list_longer() {
        let root = std::env::temp_dir().join(format!("tidy-list-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let list = list(&["a", "b"]);
        let kept = list.accept(&root, "# head", &[offence("a"), offence("c")]);
        assert_eq!(kept.unwrap(), "");
        let written = fs::read_to_string(root.join("list.txt")).unwrap();
        assert_eq!(parse(&written), ["a", "c"].map(str::to_owned).into());
        let offences = [offence("a"), offence("c"), offence("d")];
        let refused = list.accept(&root, "# head", &offences).unwrap();
        assert!(refused.starts_with("c is wrong\nd is wrong\n"));
        assert_eq!(fs::read_to_string(root.join("list.txt")).unwrap(), written);
        fs::remove_dir_all(root).unwrap();
    }
}
