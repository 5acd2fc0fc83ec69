//! A file or folder that the architecture pages name in a code span exists.

use std::fmt::Write as _;

use super::sources::Sources;

/// The kinds of files of which [`Sources`] has every path.
const KINDS: [&str; 3] = [".rs", ".md", ".toml"];

/// The report on paths of `ARCHITECTURE.md` and `docs/design` that lead to no file.
pub(super) fn report(sources: &Sources) -> String {
    let paths: Vec<&str> = sources
        .files
        .iter()
        .map(|file| file.path.as_str())
        .collect();
    let mut report = String::new();
    for file in &sources.files {
        let is_page = file.path == "ARCHITECTURE.md"
            || file.path.starts_with("docs/design/") && file.path.ends_with(".md");
        for (line, lost) in lost_paths(&file.text, &paths).filter(|_| is_page) {
            let _ = writeln!(
                report,
                "{}:{line}: `{lost}` is no file: name the place of its contents now, as a path \
                 from the root, `crates`, a crate's `src`, or a folder in that",
                file.path
            );
        }
    }
    report
}

/// Code spans of a page that are paths, and the end of none of `paths`; with their lines.
fn lost_paths<'a>(page: &'a str, paths: &[&str]) -> impl Iterator<Item = (usize, &'a str)> {
    let spans = page.lines().zip(1..).flat_map(|(line, nth)| {
        let spans = line.split('`').skip(1).step_by(2);
        spans.map(move |span| (nth, span))
    });
    spans.filter(|(_, span)| is_path(span) && !paths.iter().any(|path| leads_to(span, path)))
}

fn is_path(span: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let is_named = KINDS.iter().any(|kind| span.ends_with(kind)) || span.ends_with('/');
    is_named && span.chars().all(is_part)
}

/// Whether `span` is the end of `path`, or a folder in it.
fn leads_to(span: &str, path: &str) -> bool {
    match span.ends_with('/') {
        true => path.starts_with(span) || path.contains(&format!("/{span}")),
        false => path
            .strip_suffix(span)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('/')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: [&str; 2] = [
        "crates/engine/src/data_plane/link.rs",
        "docs/design/pubsub.md",
    ];

    fn lost(page: &str) -> Vec<(usize, &str)> {
        lost_paths(page, &PATHS).collect()
    }

    /// A path may begin at the root, a crate, its `src`, or a folder in that.
    #[test]
    fn path_that_leads_to_a_file_is_clean() {
        assert!(
            lost("`crates/engine/src/data_plane/link.rs`, `engine/src/`, `link.rs`").is_empty()
        );
        assert!(lost("in `data_plane/` and `docs/design/pubsub.md`").is_empty());
    }

    /// A moved file, a folder that is gone and a part of a name are found with their lines.
    #[test]
    fn path_without_a_file_is_an_offence() {
        let page = "a\n`routing/link.rs`\n`ink.rs` and `scatter/`";
        assert_eq!(
            lost(page),
            [(2, "routing/link.rs"), (3, "ink.rs"), (3, "scatter/")]
        );
    }

    /// Names of code, patterns and text outside of code spans are no paths.
    #[test]
    fn other_spans_are_not_paths() {
        assert!(lost("`Link::decide`, `data/commands-*.rs`, gone.rs, `-NOTSENT`").is_empty());
    }
}
