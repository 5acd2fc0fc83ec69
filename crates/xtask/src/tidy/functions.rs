//! A function has at most 100 lines.
//!
//! The list of known offenders has the lines of each one, which may only become fewer.

use proc_macro2::{Delimiter, TokenTree};

use super::list::Offence;
use super::sources::{Sources, ident};

const LINES_MAX: usize = 100;

pub(super) fn offences(sources: &Sources) -> Vec<Offence> {
    let mut found = Vec::new();
    for file in sources.files.iter().filter(|file| file.is_rust()) {
        let long = long(&file.tokens);
        for Function { name, line, lines } in &long {
            // Functions of one name in one file have one entry.
            let same = long.iter().filter(|one| one.name == *name);
            let sum: usize = same.map(|one| one.lines).sum();
            found.push(Offence {
                entry: format!("{} {name} {sum}", file.path),
                text: format!(
                    "{}:{line}: `{name}` has {lines} lines, at most {LINES_MAX} are allowed: \
                     divide it into functions with one purpose each",
                    file.path
                ),
            });
        }
    }
    found
}

#[derive(Debug)]
struct Function {
    name: String,
    /// The line of `fn`.
    line: usize,
    /// From `fn` to the closing brace.
    lines: usize,
}

/// Functions of more than [`LINES_MAX`] lines, those in other functions and in macros included.
fn long(tokens: &[TokenTree]) -> Vec<Function> {
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if let TokenTree::Group(group) = token {
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            found.extend(long(&inner));
        }
        if ident(Some(token)).as_deref() != Some("fn") {
            continue;
        }
        let Some(name) = ident(tokens.get(at + 1)) else {
            continue;
        };
        let body = tokens[at..].iter().find_map(|token| match token {
            TokenTree::Punct(punct) if punct.as_char() == ';' => Some(None),
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(Some(group)),
            _ => None,
        });
        let Some(Some(body)) = body else {
            continue;
        };
        let line = token.span().start().line;
        let lines = body.span_close().end().line + 1 - line;
        if lines > LINES_MAX {
            found.push(Function { name, line, lines });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::sources::File;

    fn function(lines: usize) -> String {
        format!(
            "impl X {{\n    fn go(&self)\n    where\n        X: Y,\n    {{\n{}    }}\n}}\n",
            "        // line\n".repeat(lines - 5)
        )
    }

    fn found(text: String) -> Vec<Function> {
        long(&File::rust("a.rs", text).unwrap().tokens)
    }

    /// A function of 101 lines is found, with its name, its place and its length.
    #[test]
    fn function_over_the_limit_is_an_offence() {
        let found = found(function(101));
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].name.as_str(), found[0].line, found[0].lines),
            ("go", 2, 101)
        );
    }

    /// An entry excuses one function of one file and its length; two of one name count together.
    #[test]
    fn entry_has_the_path_the_name_and_the_lines() {
        let entries = |text: String| -> Vec<String> {
            let files = vec![File::rust("crates/engine/src/a.rs", text).unwrap()];
            let offences = offences(&Sources { files });
            offences.into_iter().map(|offence| offence.entry).collect()
        };
        assert_eq!(entries(function(101)), ["crates/engine/src/a.rs go 101"]);
        let two = entries(function(101) + &function(110));
        assert_eq!(two, ["crates/engine/src/a.rs go 211"; 2]);
    }

    /// A function of exactly 100 lines passes; so does a declaration without a body.
    #[test]
    fn function_at_the_limit_is_clean() {
        assert!(found(function(100)).is_empty());
        let text = format!(
            "trait T {{ fn a(); }}\n{}\nfn b() {{}}\n",
            "//\n".repeat(200)
        );
        assert!(found(text).is_empty());
    }
}
