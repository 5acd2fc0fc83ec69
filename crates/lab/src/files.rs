//! The files of a report.
//!
//! - `report.json`: every round and every sample. All other files are computed from it.
//! - `rounds.csv`: one line for each case and round.
//! - `report.html`: tables and charts in one file that loads nothing: see [`crate::html`].
//! - `window.svg`: the flush rules over the load, where they were measured.
//! - `table.txt`: the text on the terminal: see [`crate::table`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::report::Report;
use crate::{html, table};

/// Writes all files of a report into a folder, which it creates. Returns their paths.
///
/// # Errors
/// When the folder cannot be written.
pub fn write(report: &Report, folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::create_dir_all(folder)?;
    let json = serde_json::to_string(report)?;
    let files = [
        ("report.html", html::page(report)),
        ("report.json", json),
        ("rounds.csv", report.csv()),
        ("table.txt", table::text(report, table::Style::Plain)),
    ];
    let picture = html::picture(report).map(|picture| ("window.svg", picture));
    let mut paths = Vec::new();
    for (name, text) in files.into_iter().chain(picture) {
        let path = folder.join(name);
        fs::write(&path, text)?;
        paths.push(path);
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::example;

    /// All files of a report can be made from its JSON alone.
    #[test]
    fn files_can_be_made_from_the_json_alone() {
        let report = example();
        let text = serde_json::to_string(&report).unwrap();
        let back: Report = serde_json::from_str(&text).unwrap();
        assert_eq!(back.cases.len(), 6);
        assert_eq!(back.csv(), report.csv());
        assert!(html::page(&back) == html::page(&report), "the page differs");
    }
}
