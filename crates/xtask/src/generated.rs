//! Generated files that are checked in: written anew, or compared with a new version.

use std::fs;
use std::path::Path;

/// A generated file.
#[derive(Debug)]
pub(crate) struct Generated {
    /// From the root of the repository.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Writes the files below `root`.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn write(root: &Path, files: &[Generated]) -> Result<(), String> {
    for Generated { path, text } in files {
        let full = root.join(path);
        let made = full.parent().map_or(Ok(()), fs::create_dir_all);
        made.and_then(|()| fs::write(&full, text))
            .map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(())
}

/// Compares the files below `root`; `task` writes them.
///
/// # Errors
/// The paths of all files that differ, and the task to run.
pub(crate) fn check(root: &Path, files: &[Generated], task: &str) -> Result<(), String> {
    let is_fresh = |file: &&Generated| {
        fs::read_to_string(root.join(&file.path)).is_ok_and(|old| old == file.text)
    };
    let stale: Vec<String> = files
        .iter()
        .filter(|file| !is_fresh(file))
        .map(|file| format!("{} is stale: run `cargo xtask {task}`", file.path))
        .collect();
    match stale.is_empty() {
        true => Ok(()),
        false => Err(stale.join("\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A missing or changed file is named, with the task that writes it.
    #[test]
    fn stale_file_is_named_until_written() {
        let root = std::env::temp_dir().join(format!("generated-{}", std::process::id()));
        let files = [Generated {
            path: "docs/a.md".into(),
            text: "new\n".into(),
        }];
        let told = check(&root, &files, "man").unwrap_err();
        assert_eq!(told, "docs/a.md is stale: run `cargo xtask man`");
        write(&root, &files).unwrap();
        assert_eq!(check(&root, &files, "man"), Ok(()));
        fs::write(root.join("docs/a.md"), "edited\n").unwrap();
        assert!(check(&root, &files, "man").is_err());
        fs::remove_dir_all(root).unwrap();
    }
}
