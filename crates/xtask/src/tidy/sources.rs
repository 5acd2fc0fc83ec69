//! The files that are checked, and the tokens of those in Rust.

use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Directories whose files are not ours.
const FOREIGN: [&str; 8] = [
    ".git",
    ".cache",
    ".venv",
    "target",
    "lab-out",
    "corpus",
    "artifacts",
    "node_modules",
];

/// The crates that ship.
pub(super) const SHIPPED: [&str; 7] = [
    "protocol", "engine", "driver", "config", "client", "ffi", "proxy",
];

/// All files that the checks read, sorted by path.
pub(super) struct Sources {
    pub(super) files: Vec<File>,
}

/// One file.
pub(super) struct File {
    /// From the root of the repository, with `/` between the parts.
    pub(super) path: String,
    pub(super) text: String,
    /// The tokens of a Rust file; empty for others.
    pub(super) tokens: Vec<TokenTree>,
}

impl Sources {
    /// Reads the Rust, Python, shell, TOML and Markdown files below `root`.
    ///
    /// # Errors
    /// When a file cannot be read or a Rust file has no valid tokens.
    pub(super) fn read(root: &Path) -> Result<Sources, String> {
        let mut files = Vec::new();
        walk(root, "", &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Sources { files })
    }

    /// Rust files of the shipped crates, without tests.
    pub(super) fn shipped(&self) -> impl Iterator<Item = &File> {
        let src = SHIPPED.map(|name| format!("crates/{name}/src/"));
        self.files
            .iter()
            .filter(move |file| src.iter().any(|src| file.path.starts_with(src)) && !file.is_test())
    }

    /// Rust files of all crates, without tests and benchmarks.
    pub(super) fn crates(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| {
            let path = file.path.strip_prefix("crates/");
            let inside = path.and_then(|path| path.split_once('/'));
            inside.is_some_and(|(_, inside)| inside.starts_with("src/"))
                && file.is_rust()
                && !file.is_test()
        })
    }
}

impl File {
    /// A Rust file with this text.
    ///
    /// # Errors
    /// When the text has no valid tokens.
    pub(super) fn rust(path: &str, text: String) -> Result<File, String> {
        let tokens: TokenStream = text
            .parse()
            .map_err(|error| format!("{path}: cannot be read as Rust: {error}"))?;
        Ok(File {
            path: path.into(),
            text,
            tokens: tokens.into_iter().collect(),
        })
    }

    /// Whether the file is in Rust.
    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs") || self.path.contains("/tests/")
    }
}

fn walk(root: &Path, below: &str, files: &mut Vec<File>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{below}: {error}");
    for entry in fs::read_dir(root.join(below)).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = match below {
            "" => name.clone(),
            _ => format!("{below}/{name}"),
        };
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() && !FOREIGN.contains(&name.as_str()) {
            walk(root, &path, files)?;
        } else if kind.is_file() {
            let Ok(text) = fs::read_to_string(entry.path()) else {
                // Not text.
                continue;
            };
            if name.ends_with(".rs") {
                files.push(File::rust(&path, text)?);
            } else if [".md", ".py", ".sh", ".toml"]
                .iter()
                .any(|end| name.ends_with(end))
                || name == "Makefile"
                || text.starts_with("#!")
            {
                let tokens = Vec::new();
                files.push(File { path, text, tokens });
            }
        }
    }
    Ok(())
}

/// `tokens` without the items that are compiled for tests alone.
pub(super) fn without_tests(tokens: &[TokenTree]) -> Vec<TokenTree> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_test = matches!(&tokens[at], TokenTree::Punct(punct) if punct.as_char() == '#')
            && matches!(tokens.get(at + 1), Some(TokenTree::Group(group))
                if group.delimiter() == Delimiter::Bracket
                    && group.stream().to_string().replace(' ', "") == "cfg(test)");
        if !is_test {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        // The item ends with its body, or with a semicolon where it has none.
        while at < tokens.len() && !ends_item(&tokens[at]) {
            at += 1;
        }
        at += 1;
    }
    kept
}

/// Whether an item ends with this token.
pub(super) fn ends_item(token: &TokenTree) -> bool {
    match token {
        TokenTree::Punct(punct) => punct.as_char() == ';',
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        _ => false,
    }
}

/// The identifier that `token` is, if it is one.
pub(super) fn ident(token: Option<&TokenTree>) -> Option<String> {
    match token {
        Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
        _ => None,
    }
}

/// The tokens between the braces, brackets or parentheses of `token`, if it is such a group.
pub(super) fn inside(token: Option<&TokenTree>, delimiter: Delimiter) -> Option<Vec<TokenTree>> {
    match token {
        Some(TokenTree::Group(group)) if group.delimiter() == delimiter => {
            Some(group.stream().into_iter().collect())
        }
        _ => None,
    }
}
