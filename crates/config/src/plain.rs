//! Escapes text from outside for terminals, logs and files that people read.
//!
//! Text from a configuration, the environment or a peer may have any characters. Characters that
//! control a terminal, end a line or change the direction of text are written as escapes.

use std::borrow::Cow;

/// The text with each control character as an escape.
pub fn plain(text: &str) -> Cow<'_, str> {
    if is_plain(text) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match is_control(letter) {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    Cow::Owned(shown)
}

/// The same for a line of the log, which ends with a line feed. ESC stays: the formatter colours
/// lines with it, and escapes any other ESC itself. The escapes are valid in JSON, too.
pub fn plain_line(line: &[u8]) -> Cow<'_, [u8]> {
    let end = line.len() - usize::from(line.ends_with(b"\n"));
    let shown = String::from_utf8_lossy(&line[..end]);
    let is_escaped = |letter: char| is_control(letter) && letter != '\u{1b}';
    if !shown.contains(is_escaped) {
        return Cow::Borrowed(line);
    }
    let mut out = String::with_capacity(line.len() + 16);
    for letter in shown.chars() {
        match is_escaped(letter) {
            true => out.push_str(&format!("\\u{:04x}", u32::from(letter))),
            false => out.push(letter),
        }
    }
    let mut out = out.into_bytes();
    out.extend_from_slice(&line[end..]);
    Cow::Owned(out)
}

/// The text as a TOML string in one line, for a value or a quoted key.
pub(crate) fn plain_toml(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if is_control(letter) => {
                quoted.push_str(&format!("\\u{:04x}", u32::from(letter)))
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// Whether a text has no control characters.
pub(crate) fn is_plain(text: &str) -> bool {
    !text.contains(is_control)
}

/// Whether a character controls a terminal, ends a line, or changes the direction of text.
fn is_control(letter: char) -> bool {
    let turns = matches!(
        letter,
        '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    letter.is_control() || turns
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text of a client cannot begin a line of its own, or control a terminal.
    #[test]
    fn control_characters_are_spelt_out() {
        assert_eq!(plain("GET / é"), "GET / é");
        let text = "a\n2026 ERROR\r\u{1b}[2J\u{7f}\u{9b}\u{2028}\u{202e}b";
        let shown = plain(text);
        assert_eq!(
            shown,
            r"a\n2026 ERROR\r\u{1b}[2J\u{7f}\u{9b}\u{2028}\u{202e}b"
        );
    }

    /// A text of a configuration is one TOML string of one line.
    #[test]
    fn text_becomes_a_toml_string_of_one_line() {
        let text = "a\n\u{1b}[2J\t\"\\\u{9b}\u{202e}é";
        let shown = plain_toml(text);
        assert!(is_plain(&shown));
        let file: toml_edit::DocumentMut = format!("{shown} = {shown}").parse().unwrap();
        assert_eq!(file[text].as_str(), Some(text));
    }

    /// A line of the log stays one line, and one object of JSON.
    #[test]
    fn line_of_the_log_stays_one_line() {
        let line = "\u{1b}[2mgood é\u{1b}[0m\n".as_bytes();
        assert!(matches!(plain_line(line), Cow::Borrowed(_)));
        let line = "{\"a\":\"b\u{9b}\u{202e}\"}\r\nERROR\t\n".as_bytes();
        assert_eq!(
            plain_line(line),
            &b"{\"a\":\"b\\u009b\\u202e\"}\\u000d\\u000aERROR\\u0009\n"[..]
        );
        assert_eq!(plain_line(b""), &b""[..]);
    }
}
