//! A type name is declared once in all crates, so that it means one thing everywhere.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, TokenTree};

use super::list::Offence;
use super::sources::{File, Sources, ident, inside, without_tests};

const KEYWORDS: [&str; 5] = ["struct", "enum", "union", "trait", "type"];

pub(super) fn offences(sources: &Sources) -> Vec<Offence> {
    of_files(sources.crates())
}

fn of_files<'a>(files: impl Iterator<Item = &'a File>) -> Vec<Offence> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files {
        for (name, line) in declared(&file.tokens) {
            places
                .entry(name)
                .or_default()
                .push(format!("{}:{line}", file.path));
        }
    }
    places.retain(|_, places| places.len() > 1);
    places
        .into_iter()
        .map(|(name, places)| Offence {
            text: format!(
                "{}: the type `{name}` is also declared at {}: give each its own name",
                places[0],
                places[1..].join(", ")
            ),
            entry: name,
        })
        .collect()
}

/// Types declared in modules: name and line. Associated types and types inside functions do not
/// count: their names are not seen elsewhere.
fn declared(tokens: &[TokenTree]) -> Vec<(String, usize)> {
    let tokens = without_tests(tokens);
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let Some(word) = ident(Some(token)) else {
            continue;
        };
        let Some(name) = ident(tokens.get(at + 1)) else {
            continue;
        };
        if KEYWORDS.contains(&word.as_str()) {
            found.push((name, token.span().start().line));
        } else if word == "mod"
            && let Some(body) = inside(tokens.get(at + 2), Delimiter::Brace)
        {
            found.extend(declared(&body));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(texts: &[&str]) -> Vec<String> {
        let files: Vec<File> = texts
            .iter()
            .map(|&text| File::rust("crates/engine/src/a.rs", text.into()).unwrap())
            .collect();
        of_files(files.iter())
            .into_iter()
            .map(|offence| offence.entry)
            .collect()
    }

    /// Two declarations of one name are found, in different files and in inline modules.
    #[test]
    fn second_declaration_is_an_offence() {
        assert_eq!(
            entries(&["pub struct Kind { a: u8 }", "pub(crate) enum Kind {}"]),
            ["Kind"]
        );
        assert_eq!(
            entries(&["trait A {}", "mod b { type A<T> = Vec<T>; }"]),
            ["A"]
        );
    }

    /// Tests, associated types, local types and generated names are not declarations of a module.
    #[test]
    fn single_declaration_is_clean() {
        assert!(
            entries(&[
                "struct Kind; #[cfg(test)] mod tests { struct Kind; }",
                "impl X for Y { type Kind = u8; } fn f() { struct Kind; }",
                "macro_rules! m { ($a:ident) => { struct Kind; } }",
            ])
            .is_empty()
        );
    }
}
