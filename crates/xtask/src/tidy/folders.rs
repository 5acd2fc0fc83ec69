//! A module of the engine imports only modules on lower floors.
//!
//! A module is a file at the root of the crate, with the folder of its name if it has one. Each has
//! a floor, except `lib.rs`. Components do not import each other: a fact that one needs of another
//! goes through the engine. So no component sees a simple GET, and a component can be tested by
//! itself. Unit tests are not checked.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenTree};

use super::list::Offence;
use super::sources::{Sources, ident, inside, without_tests};

const SRC: &str = "crates/engine/src/";

/// The modules of the engine and their floors. An arrow goes to a lower number.
const FLOORS: [(&str, u8); 14] = [
    ("engine", 4),
    // Components.
    ("access", 3),
    ("discovery", 3),
    ("redirect", 3),
    ("scatter", 3),
    ("transaction", 3),
    ("pinned", 3),
    ("pubsub", 3),
    ("local", 3),
    ("admin", 3),
    // The hot path.
    ("data_plane", 2),
    ("routing", 1),
    ("base", 0),
    ("info_fields", 0),
];

fn floor(module: &str) -> Option<u8> {
    let mut floors = FLOORS.iter();
    floors
        .find(|(name, _)| *name == module)
        .map(|(_, floor)| *floor)
}

pub(super) fn offences(sources: &Sources) -> Vec<Offence> {
    let engine = || {
        let files = sources.shipped();
        files.filter_map(|file| Some((file, file.path.strip_prefix(SRC)?)))
    };
    let exports = engine()
        .find(|(_, below)| *below == "lib.rs")
        .map(|(file, _)| exports(&file.tokens))
        .unwrap_or_default();
    let mut found = Vec::new();
    let mut unknown = BTreeSet::new();
    for (file, below) in engine().filter(|(_, below)| *below != "lib.rs") {
        let module = module(below);
        let from = module[0].as_str();
        if floor(from).is_none() {
            unknown.insert(from.to_owned());
            continue;
        }
        for Import { path, line } in imports(&file.tokens, &module) {
            let to = exports.get(&path[0]).unwrap_or(&path[0]);
            if !is_allowed(from, to) {
                found.push(Offence {
                    entry: format!("{from} {to}"),
                    text: format!(
                        "{}:{line}: `{from}` must not import `{to}` (crate::{}): a module \
                         imports lower floors only; return an outcome to the engine, or move the \
                         item down",
                        file.path,
                        path.join("::")
                    ),
                });
            }
        }
    }
    found.extend(unknown.into_iter().map(|module| Offence {
        text: format!(
            "{SRC}{module} has no floor: move its code to a module of FLOORS in \
             crates/xtask/src/tidy/folders.rs, or add it there"
        ),
        entry: module,
    }));
    found
}

/// Whether `from` may import `to`. A `to` that is not in the table is an offence of its own, or an
/// item of `lib.rs`.
fn is_allowed(from: &str, to: &str) -> bool {
    match (floor(from), floor(to)) {
        (Some(upper), Some(lower)) => from == to || lower < upper,
        _ => true,
    }
}

/// The module of a file below `src`: `a/b.rs` and `a/b/mod.rs` are `a::b`.
fn module(below: &str) -> Vec<String> {
    let path = below.trim_end_matches(".rs").trim_end_matches("/mod");
    path.split('/').map(str::to_owned).collect()
}

/// The items that `lib.rs` re-exports: the name at the root, and the module of the item.
fn exports(tokens: &[TokenTree]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (at, token) in tokens.iter().enumerate() {
        if ident(Some(token)).as_deref() != Some("use") {
            continue;
        }
        let mut paths = Vec::new();
        use_tree(&tokens[at + 1..], &mut Vec::new(), &mut paths);
        for mut path in paths {
            path.retain(|segment| segment != "crate" && segment != "self");
            if path.len() > 1 {
                let name = path[path.len() - 1].clone();
                found.insert(name, path.swap_remove(0));
            }
        }
    }
    found
}

/// A path from the root of the crate, as an import or an expression names it.
#[derive(Debug, PartialEq, Eq)]
struct Import {
    /// Without `crate`, never empty.
    path: Vec<String>,
    line: usize,
}

/// All paths in `tokens`, which stand in `module`, that begin with `crate` or `super`.
fn imports(tokens: &[TokenTree], module: &[String]) -> Vec<Import> {
    let tokens = without_tests(tokens);
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let is_inner_segment = at > 0 && is_colon(&tokens[at - 1]);
        match ident(Some(token)).as_deref() {
            Some("crate" | "super") if !is_inner_segment => {
                let mut paths = Vec::new();
                use_tree(&tokens[at..], &mut Vec::new(), &mut paths);
                let line = token.span().start().line;
                let from_root = paths.into_iter().filter_map(|path| resolve(path, module));
                found.extend(from_root.map(|path| Import { path, line }));
            }
            Some("mod") => {
                if let (Some(name), Some(body)) = (
                    ident(tokens.get(at + 1)),
                    inside(tokens.get(at + 2), Delimiter::Brace),
                ) {
                    let mut inner = module.to_vec();
                    inner.push(name);
                    found.extend(imports(&body, &inner));
                }
            }
            _ => {
                let is_module = at > 1 && ident(tokens.get(at - 2)).as_deref() == Some("mod");
                if let TokenTree::Group(group) = token
                    && !is_module
                {
                    let body: Vec<TokenTree> = group.stream().into_iter().collect();
                    found.extend(imports(&body, module));
                }
            }
        }
    }
    found
}

/// `path` from the root of the crate; `None` where it names the root itself.
fn resolve(path: Vec<String>, module: &[String]) -> Option<Vec<String>> {
    let supers = path
        .iter()
        .take_while(|segment| *segment == "super")
        .count();
    let mut resolved = match supers {
        0 => Vec::new(),
        _ => module[..module.len().saturating_sub(supers)].to_vec(),
    };
    let rest = path.into_iter().skip(supers);
    resolved.extend(rest.filter(|segment| segment != "crate" && segment != "*"));
    (!resolved.is_empty()).then_some(resolved)
}

/// Adds every path of the use tree (or of the single path) that `tokens` begin with, behind
/// `prefix`.
fn use_tree(tokens: &[TokenTree], prefix: &mut Vec<String>, paths: &mut Vec<Vec<String>>) {
    let depth = prefix.len();
    let mut at = 0;
    loop {
        match tokens.get(at) {
            Some(TokenTree::Ident(word)) => prefix.push(word.to_string()),
            Some(TokenTree::Punct(punct)) if punct.as_char() == '*' => prefix.push("*".into()),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for branch in inner.split(is_comma) {
                    use_tree(branch, prefix, paths);
                }
                break;
            }
            _ => {
                // The path ends with generics.
                if prefix.len() > depth {
                    paths.push(prefix.clone());
                }
                break;
            }
        }
        at += 1;
        let goes_on =
            tokens.get(at).is_some_and(is_colon) && tokens.get(at + 1).is_some_and(is_colon);
        if !goes_on {
            paths.push(prefix.clone());
            break;
        }
        at += 2;
    }
    prefix.truncate(depth);
}

fn is_colon(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == ':')
}

fn is_comma(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::sources::File;

    /// Entries for `text` at `below`, beside a `lib.rs` that re-exports two names.
    fn entries(below: &str, text: &str) -> Vec<String> {
        let file = |below: &str, text: &str| {
            File::rust(&format!("{SRC}{below}"), text.to_owned()).unwrap()
        };
        let lib = "pub use engine::Engine; pub use self::pubsub::hub::{self, Hub};";
        let files = vec![file("lib.rs", lib), file(below, text)];
        let offences = offences(&Sources { files });
        offences.into_iter().map(|offence| offence.entry).collect()
    }

    /// An import of an upper floor or of another component is found, in every way to write it.
    #[test]
    fn upward_and_sideways_imports_are_offences() {
        for text in [
            "use crate::pubsub::Hub;",
            "use crate::{base::Slab, pubsub::{Hub, directory}};",
            "use super::super::pubsub::Hub;",
            "mod inner { use super::super::super::pubsub::*; }",
            "fn f() { assert!(crate::pubsub::is_empty()); }",
            "fn f(hub: &crate::Hub) {}",
        ] {
            let found = entries("redirect/deferred.rs", text);
            assert!(
                found.contains(&"redirect pubsub".to_owned()),
                "{text}: {found:?}"
            );
        }
        assert_eq!(
            entries("routing.rs", "use crate::data_plane::link;"),
            ["routing data_plane"]
        );
        assert_eq!(
            entries("base/slab.rs", "use crate::Engine;"),
            ["base engine"]
        );
    }

    /// A module without a folder imports and is imported as any other one.
    #[test]
    fn file_at_the_root_is_checked() {
        assert_eq!(
            entries("scatter.rs", "use crate::pubsub::Pubsub;"),
            ["scatter pubsub"]
        );
        assert_eq!(
            entries("redirect/deferred.rs", "use crate::scatter::Scatter;"),
            ["redirect scatter"]
        );
        assert_eq!(
            entries("info_fields.rs", "use crate::engine::Engine;"),
            ["info_fields engine"]
        );
    }

    /// Imports of lower floors, of the own module and of items of `lib.rs` pass.
    #[test]
    fn downward_imports_are_clean() {
        for text in [
            "use crate::{base::slab::Slab, data_plane::Session, routing};",
            "use super::conflicts::Conflict; use crate::redirect::deferred;",
            "use crate::{MADE, info_fields::FieldText}; use std::fmt; pub(crate) struct Hub;",
            "pub(in crate::redirect) fn f() {}",
            "#[cfg(test)] mod tests { use crate::engine::Engine; }",
        ] {
            let found = entries("redirect/deferred.rs", text);
            assert!(found.is_empty(), "{text}: {found:?}");
        }
        assert!(entries("lib.rs", "pub use engine::Engine; use crate::pubsub;").is_empty());
    }

    /// A folder or a file at the root that the table does not have is found.
    #[test]
    fn module_without_a_floor_is_an_offence() {
        assert_eq!(entries("helpers/a.rs", ""), ["helpers"]);
        assert_eq!(entries("new.rs", "use crate::engine::Engine;"), ["new"]);
    }
}
