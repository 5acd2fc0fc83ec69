//! Comments and Markdown have at most 100 columns. rustfmt wraps code and leaves comments alone.

use proc_macro2::{LineColumn, TokenTree};

use super::list::Offence;
use super::sources::{File, Sources};

const COLUMNS_MAX: usize = 100;

pub(super) fn offences(sources: &Sources) -> Vec<Offence> {
    let mut found = Vec::new();
    for file in &sources.files {
        let wide = wide_lines(file);
        let Some(first) = wide.first() else { continue };
        let more = match wide.len() - 1 {
            0 => String::new(),
            more => format!(" ({more} more in this file)"),
        };
        found.push(Offence {
            entry: file.path.clone(),
            text: format!(
                "{}:{first}: the line has over {COLUMNS_MAX} columns: wrap it{more}",
                file.path
            ),
        });
    }
    found
}

fn wide_lines(file: &File) -> Vec<usize> {
    if file.is_rust() {
        in_rust(&file.text, &file.tokens)
    } else if file.path.ends_with(".md") {
        in_markdown(&file.text)
    } else {
        let is_comment = |line: &str| line.trim_start().starts_with('#');
        let lines = file.text.lines().zip(1..);
        lines
            .filter(|(line, _)| is_comment(line) && is_wide(line))
            .map(|(_, nth)| nth)
            .collect()
    }
}

/// Whether the line is too wide even without its URLs, which cannot be wrapped.
fn is_wide(line: &str) -> bool {
    let columns = line.chars().count();
    let urls = line.split(' ').filter(|word| word.contains("://"));
    columns > COLUMNS_MAX
        && columns - urls.map(|url| url.chars().count()).sum::<usize>() > COLUMNS_MAX
}

/// Wide lines that have a comment: something behind their last token.
fn in_rust(text: &str, tokens: &[TokenTree]) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().collect();
    // For each line, the column where its code ends.
    let mut code_ends = vec![0; lines.len() + 1];
    mark_code(tokens, &lines, &mut code_ends);
    let has_comment = |nth: usize| {
        let behind: String = lines[nth].chars().skip(code_ends[nth]).collect();
        !behind.trim().is_empty()
    };
    (0..lines.len())
        .filter(|&nth| is_wide(lines[nth]) && has_comment(nth))
        .map(|nth| nth + 1)
        .collect()
}

fn mark_code(tokens: &[TokenTree], lines: &[&str], code_ends: &mut [usize]) {
    for token in tokens {
        let is_doc = {
            let LineColumn { line, column } = token.span().start();
            let behind = lines.get(line - 1).map(|line| line.chars().skip(column));
            // A doc comment is an attribute among the tokens.
            behind.is_some_and(|mut behind| {
                behind.next() == Some('/') && matches!(behind.next(), Some('/' | '*'))
            })
        };
        if is_doc {
            continue;
        }
        let spans = match token {
            TokenTree::Group(group) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                mark_code(&inner, lines, code_ends);
                vec![group.span_open(), group.span_close()]
            }
            _ => vec![token.span()],
        };
        for span in spans {
            let (start, end) = (span.start(), span.end());
            for line in start.line..end.line {
                code_ends[line - 1] = usize::MAX;
            }
            code_ends[end.line - 1] = code_ends[end.line - 1].max(end.column);
        }
    }
}

/// Wide lines outside tables and code blocks.
fn in_markdown(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut is_fenced = false;
    // An indented block is code where an empty line, or more code, stands above it.
    let mut may_be_code = true;
    for (line, nth) in text.lines().zip(1..) {
        let trimmed = line.trim_start();
        if trimmed.starts_with("```") {
            is_fenced = !is_fenced;
        }
        let is_indented = may_be_code && line.starts_with("    ");
        may_be_code = is_indented || trimmed.is_empty();
        if !is_fenced && !is_indented && !trimmed.starts_with('|') && is_wide(line) {
            found.push(nth);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rust(text: String) -> Vec<usize> {
        wide_lines(&File::rust("a.rs", text).unwrap())
    }

    fn markdown(text: &str) -> Vec<usize> {
        in_markdown(text)
    }

    /// Every kind of comment is measured, the last column included.
    #[test]
    fn wide_comment_is_an_offence() {
        let words = "word ".repeat(19);
        for line in [
            format!("    // {words}."),
            format!("   /// {words}\nstruct A;"),
            format!("let a = \"x\"; // {words}"),
            format!("/*\n    {words}  x */"),
        ] {
            assert_eq!(rust(line.clone()).len(), 1, "{line}");
        }
        assert_eq!(rust(format!("let a = \"\n\"; // {words} x\n")), [2]);
    }

    /// Code, strings that look like comments, URLs, and comments of 100 columns pass.
    #[test]
    fn code_and_narrow_comments_are_clean() {
        let long = "x".repeat(101);
        for text in [
            format!("// {}", "x".repeat(97)),
            format!("let a = \"// {long}\";"),
            format!("let a = r#\"\n// {long}\n/// {long}\n\"#;"),
            format!("// see https://example.org/{long}"),
        ] {
            assert!(rust(text.clone()).is_empty(), "{text}");
        }
    }

    /// Text in Markdown is measured, in lists and headings, too.
    #[test]
    fn wide_markdown_is_an_offence() {
        let words = "word ".repeat(21);
        assert_eq!(
            markdown(&format!("# A\n\n- {words}\n    {words}\n")),
            [3, 4]
        );
        assert_eq!(markdown(&format!("```\n```\n{words}")), [3]);
    }

    /// Tables, code blocks and URLs in Markdown pass.
    #[test]
    fn tables_and_code_blocks_are_clean() {
        let words = "word ".repeat(21);
        let text = format!(
            "| {words} |\n\n    {words}\n    {words}\n\n```text\n{words}\n```\n\
             [a](https://example.org/{words})\n",
            words = words.replace(' ', "-")
        );
        assert!(markdown(&text).is_empty());
    }
}
