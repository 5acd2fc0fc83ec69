//! Lines of at most 100 columns for generated text.

const COLUMNS_MAX: usize = 100;

/// `text` as one paragraph: `first` stands in front of its first line, `rest` in front of the
/// others. Code between backticks is not divided.
pub(crate) fn wrapped(first: &str, rest: &str, text: &str) -> String {
    let mut lines = String::from(first);
    let mut column = first.chars().count();
    let mut is_line_empty = true;
    for word in words(text) {
        let length = word.chars().count();
        if !is_line_empty && column + 1 + length > COLUMNS_MAX {
            lines.push('\n');
            lines.push_str(rest);
            column = rest.chars().count();
            is_line_empty = true;
        }
        if !is_line_empty {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(&word);
        column += length;
        is_line_empty = false;
    }
    lines.push('\n');
    lines
}

/// The words of `text`. A span of code is one word with the characters that touch it.
fn words(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut is_in_code = false;
    for word in text.split_whitespace() {
        match found.last_mut() {
            Some(last) if is_in_code => {
                last.push(' ');
                last.push_str(word);
            }
            _ => found.push(word.into()),
        }
        if word.matches('`').count() % 2 == 1 {
            is_in_code = !is_in_code;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No line is wider than the limit, and no word is lost.
    #[test]
    fn paragraph_is_wrapped_at_100_columns() {
        let text = "word ".repeat(60);
        let made = wrapped("- ", "  ", &text);
        assert!(made.lines().all(|line| line.chars().count() <= COLUMNS_MAX));
        assert!(made.starts_with("- word") && made.contains("\n  word"));
        assert_eq!(made.matches("word").count(), 60);
    }

    /// A span of code stays on one line, where Markdown shows it as written.
    #[test]
    fn code_is_not_divided() {
        let text = format!("{} `a b c`, d", "x".repeat(96));
        let made = wrapped("", "", &text);
        assert_eq!(made.lines().nth(1), Some("`a b c`, d"));
    }
}
