//! The name of a test has at most 60 characters.

use std::fmt::Write as _;

use proc_macro2::{Delimiter, TokenTree};

use super::sources::{Sources, ident, inside};

const NAME_CHARS_MAX: usize = 60;

/// The report on tests with long names. It is empty if there are none.
pub(super) fn report(sources: &Sources) -> String {
    let mut report = String::new();
    for file in sources.files.iter().filter(|file| file.is_rust()) {
        for (name, line) in tests_in(&file.tokens) {
            let chars = name.chars().count();
            if chars > NAME_CHARS_MAX {
                let _ = writeln!(
                    report,
                    "{}:{line}: the name of the test `{name}` has {chars} characters, at most \
                     {NAME_CHARS_MAX}: shorten it, and say the claim in the line above",
                    file.path
                );
            }
        }
    }
    report
}

/// The functions with `#[test]`, those in modules and macros included: name and line.
fn tests_in(tokens: &[TokenTree]) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let mut is_test = false;
    for (at, token) in tokens.iter().enumerate() {
        if let Some(attribute) = inside(Some(token), Delimiter::Bracket) {
            is_test |= attribute.len() == 1 && ident(attribute.first()).as_deref() == Some("test");
        }
        if let Some(body) = inside(Some(token), Delimiter::Brace) {
            found.extend(tests_in(&body));
        }
        if ident(Some(token)).as_deref() == Some("fn") {
            let name = ident(tokens.get(at + 1)).filter(|_| is_test);
            found.extend(name.map(|name| (name, token.span().start().line)));
            is_test = false;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::sources::File;

    fn report_on(text: String) -> String {
        let files = vec![File::rust("a.rs", text).unwrap()];
        report(&Sources { files })
    }

    /// A name of 61 characters is found, in modules and macros, below other attributes too.
    #[test]
    fn test_with_a_long_name_is_an_offence() {
        let name = "n".repeat(61);
        for text in [
            format!("#[test] fn {name}() {{}}"),
            format!("mod tests {{ #[test] #[ignore = \"b\"] async fn {name}() {{}} }}"),
            format!("proptest! {{ #[cfg(unix)] #[test] fn {name}(a in 0..1) {{}} }}"),
        ] {
            let head = format!("a.rs:1: the name of the test `{name}` has 61 characters");
            assert!(report_on(text).starts_with(&head));
        }
    }

    /// A name of 60 characters passes. Other functions are not meant.
    #[test]
    fn test_with_a_short_name_is_clean() {
        let (short, long) = ("n".repeat(60), "n".repeat(61));
        let text = format!("#[test] fn {short}() {{ }} #[cfg(test)] fn {long}() {{}}");
        assert_eq!(report_on(text), "");
    }
}
