//! A commit subject is `area: imperative`, at most 72 characters.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// The commits after the commit that added this file are checked.
const FILE: &str = "crates/xtask/src/tidy/commits.rs";

const SUBJECT_CHARACTERS_MAX: usize = 72;

/// The short hash and the subject of a commit.
pub(super) struct CommitSubject {
    hash: String,
    text: String,
}

/// The subjects of the commits after the commit that added [`FILE`], without merges.
///
/// # Errors
/// Why they cannot be read: git is not there, or the history does not reach that commit.
pub(super) fn subjects(root: &Path) -> Result<Vec<CommitSubject>, String> {
    let added = git_log(root, &["--diff-filter=A", "--format=%H", "--", FILE])?;
    let base = added
        .lines()
        .last()
        .ok_or_else(|| format!("the history does not reach the commit that added {FILE}"))?;
    let text = git_log(
        root,
        &["--no-merges", "--format=%h %s", &format!("{base}..HEAD")],
    )?;
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    Ok(lines
        .map(|(hash, text)| CommitSubject {
            hash: hash.into(),
            text: text.into(),
        })
        .collect())
}

/// The output of `git log` with these arguments.
fn git_log(root: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(root)
        .arg("log")
        .args(arguments)
        .output()
        .map_err(|error| format!("git cannot be run: {error}"))?;
    if !output.status.success() {
        return Err("git finds no history here".into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The report on all subjects.
pub(super) fn report(subjects: &[CommitSubject]) -> String {
    let mut report = String::new();
    for CommitSubject { hash, text } in subjects {
        if let Err(problem) = check(text) {
            let _ = writeln!(report, "commit {hash}: the subject `{text}` {problem}");
        }
    }
    report
}

fn check(subject: &str) -> Result<(), String> {
    let length = subject.chars().count();
    if length > SUBJECT_CHARACTERS_MAX {
        return Err(format!(
            "has {length} characters, at most {SUBJECT_CHARACTERS_MAX} are allowed: move details \
             to the body"
        ));
    }
    let is_area = |area: &str| {
        !area.is_empty()
            && area
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_/., ".contains(c))
    };
    let Some((_, what)) = subject.split_once(": ").filter(|(area, _)| is_area(area)) else {
        return Err("has no area: write `area: imperative`, as in `redirect: follow MOVED`".into());
    };
    if !what.starts_with(|c: char| c.is_ascii_lowercase()) || what.ends_with('.') {
        return Err("is no imperative: write `area: verb object`, without a full stop".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Subjects without an area, without a verb in front, or too long are found.
    #[test]
    fn unclear_subjects_are_offences() {
        let long = format!("redirect: follow {}", "x".repeat(56));
        for (subject, problem) in [
            ("Follow MOVED", "has no area"),
            ("follow MOVED for subcommands", "has no area"),
            ("Redirect: follow MOVED", "has no area"),
            ("redirect: Follow MOVED", "is no imperative"),
            ("redirect: follow MOVED.", "is no imperative"),
            (long.as_str(), "has 73 characters"),
        ] {
            let told = check(subject).expect_err(subject);
            assert!(told.starts_with(problem), "{subject}: {told}");
        }
    }

    /// A subject of exactly 72 characters passes, and an area may be several words.
    #[test]
    fn area_and_imperative_are_clean() {
        let longest = format!("redirect: follow {}", "x".repeat(55));
        for subject in [
            longest.as_str(),
            "proxy, lab: name it",
            "docs/reference: generate info.md",
        ] {
            assert_eq!(check(subject), Ok(()), "{subject}");
        }
    }
}
