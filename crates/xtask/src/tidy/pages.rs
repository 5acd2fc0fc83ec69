//! A page of the manual and the architecture page stay short enough to read in one sitting.
//!
//! `tests/guarantees.py` checks the number of promises in `docs/guarantees.md`.

use std::fmt::Write as _;

use super::sources::Sources;

/// Pages for operators, one subject each.
const OPERATING: &str = "docs/operating/";
const OPERATING_LINES_MAX: usize = 150;

const ARCHITECTURE: &str = "ARCHITECTURE.md";
const ARCHITECTURE_BYTES_MAX: usize = 15_360;

/// The report on pages that are too long. It is empty if there are none.
pub(super) fn report(sources: &Sources) -> String {
    let mut report = String::new();
    for file in &sources.files {
        let lines = file.text.lines().count();
        let is_page = file.path.starts_with(OPERATING) && file.path.ends_with(".md");
        if is_page && lines > OPERATING_LINES_MAX {
            let _ = writeln!(
                report,
                "{} has {lines} lines, at most {OPERATING_LINES_MAX}: move a subject to a page of \
                 its own",
                file.path
            );
        }
        let bytes = file.text.len();
        if file.path == ARCHITECTURE && bytes > ARCHITECTURE_BYTES_MAX {
            let _ = writeln!(
                report,
                "{ARCHITECTURE} has {bytes} bytes, at most {ARCHITECTURE_BYTES_MAX}: move details \
                 to a page of docs/design"
            );
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::sources::File;

    fn report_on(path: &str, text: String) -> String {
        let file = File {
            path: path.into(),
            text,
            tokens: Vec::new(),
        };
        report(&Sources { files: vec![file] })
    }

    /// A page with one line more than allowed is found. Other pages may be longer.
    #[test]
    fn long_page_of_the_manual_is_an_offence() {
        assert_eq!(
            report_on("docs/operating/tls.md", "a\n".repeat(151)),
            "docs/operating/tls.md has 151 lines, at most 150: move a subject to a page of its \
             own\n"
        );
        assert_eq!(report_on("docs/operating/tls.md", "a\n".repeat(150)), "");
        assert_eq!(report_on("docs/design/tls.md", "a\n".repeat(151)), "");
    }

    /// The architecture page counts in bytes.
    #[test]
    fn long_architecture_page_is_an_offence() {
        let report = report_on("ARCHITECTURE.md", "é".repeat(7_681));
        assert!(report.starts_with("ARCHITECTURE.md has 15362 bytes, at most 15360: "));
        assert_eq!(report_on("ARCHITECTURE.md", "é".repeat(7_680)), "");
    }
}
