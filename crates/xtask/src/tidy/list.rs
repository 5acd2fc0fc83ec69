//! A list of known offenders, which may only shrink.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// One place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Offence {
    /// The entry that excuses it.
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
        let mut report = String::new();
        for offence in offences {
            if !entries.contains(&offence.entry) {
                let _ = writeln!(report, "{}", offence.text);
            }
        }
        for entry in entries {
            if !offences.iter().any(|offence| offence.entry == *entry) {
                let path = self.path.display();
                let _ = writeln!(
                    report,
                    "{path}: the entry `{entry}` is no longer needed: remove it, or run \
                     `cargo xtask tidy --accept`"
                );
            }
        }
        report
    }

    /// Writes the entries that `offences` need, below `head`. If the list would become longer, the
    /// file stays as it is and the report has every offence without an entry.
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
        if let Some(entries) = &self.entries
            && needed.len() > entries.len()
        {
            return Ok(self.compare(offences));
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
