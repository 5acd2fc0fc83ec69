//! A method of the engine whose name asks a question (`is_`, `has_`, `may_`) changes nothing.

use proc_macro2::{Delimiter, TokenTree};

use super::list::Offence;
use super::sources::{Sources, ident, inside, without_tests};

const SRC: &str = "crates/engine/src/";
const QUESTIONS: [&str; 3] = ["is_", "has_", "may_"];

pub(super) fn offences(sources: &Sources) -> Vec<Offence> {
    let files = sources.shipped();
    let engine = files.filter_map(|file| Some((file, file.path.strip_prefix(SRC)?)));
    let mut found = Vec::new();
    for (file, below) in engine {
        for (name, line) in mutating(&file.tokens) {
            found.push(Offence {
                entry: format!("{below} {name}"),
                text: format!(
                    "{}:{line}: `{name}` takes `&mut self`: name it after its effect, or take \
                     `&self`",
                    file.path
                ),
            });
        }
    }
    found
}

/// Methods with the name of a question that take `&mut self`: name and line.
fn mutating(tokens: &[TokenTree]) -> Vec<(String, usize)> {
    let tokens = without_tests(tokens);
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if let Some(body) = inside(Some(token), Delimiter::Brace) {
            found.extend(mutating(&body));
        }
        if ident(Some(token)).as_deref() != Some("fn") {
            continue;
        }
        let asks = |name: &String| QUESTIONS.iter().any(|start| name.starts_with(start));
        let Some(name) = ident(tokens.get(at + 1)).filter(asks) else {
            continue;
        };
        let mut rest = tokens[at..].iter();
        let arguments = rest.find_map(|token| inside(Some(token), Delimiter::Parenthesis));
        if arguments.is_some_and(|arguments| takes_mut_self(&arguments)) {
            found.push((name, token.span().start().line));
        }
    }
    found
}

fn takes_mut_self(arguments: &[TokenTree]) -> bool {
    let is =
        |token: &TokenTree, c| matches!(token, TokenTree::Punct(punct) if punct.as_char() == c);
    let first = arguments.split(|token| is(token, ',')).next();
    let first = first.unwrap_or_default();
    let words: Vec<String> = first
        .iter()
        .filter_map(|token| ident(Some(token)))
        .collect();
    first.first().is_some_and(|token| is(token, '&'))
        && words.ends_with(&["mut".into(), "self".into()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let tokens: proc_macro2::TokenStream = text.parse().unwrap();
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        mutating(&tokens)
            .into_iter()
            .map(|(name, _)| name)
            .collect()
    }

    /// A question that changes its object is found, generic or not.
    #[test]
    fn question_with_mut_self_is_an_offence() {
        assert_eq!(
            names("impl A { fn is_a(&mut self) {} fn may_b<T>(&'a mut self, b: T) {} }"),
            ["is_a", "may_b"]
        );
    }

    /// Questions that only read, other names and tests are clean.
    #[test]
    fn question_with_shared_self_is_clean() {
        let text = "impl A { fn is_a(&self, plane: &mut B) {} fn take(&mut self) {} \
                    fn has_c(mut self) {} } #[cfg(test)] mod tests { impl A { fn is_d(&mut self) {} } }";
        assert!(names(text).is_empty());
    }
}
