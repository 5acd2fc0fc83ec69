//! Bytes as a person reads and types them: the words of a script.
//!
//! A word is plain, or quoted as by redis-cli (`"a\x00b"`), or repeated: `@300000"ab"` is `abab…`,
//! 300,000 bytes long.

use std::fmt::Write as _;

/// Longest text that a report shows whole.
const SHOWN_MAX: usize = 300;
/// Longest pattern to look for in a long argument.
const PERIOD_MAX: usize = 32;
/// From this length on, an argument is searched for a pattern.
const REPEATED_MIN: usize = 64;

/// The word for these bytes. Reading it gives the bytes back.
pub fn write(bytes: &[u8]) -> String {
    if bytes.len() >= REPEATED_MIN {
        let period = (1..=PERIOD_MAX)
            .find(|&period| (period..bytes.len()).all(|at| bytes[at] == bytes[at - period]));
        if let Some(period) = period {
            return format!("@{}{}", bytes.len(), quote(&bytes[..period]));
        }
    }
    let is_plain =
        |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\' | b'@' | b'#');
    if !bytes.is_empty() && bytes.iter().all(is_plain) {
        return bytes.escape_ascii().to_string();
    }
    quote(bytes)
}

/// As [`write()`], but with long words cut: to be read, not to be run.
pub fn show(bytes: &[u8]) -> String {
    let word = write(bytes);
    if word.len() <= SHOWN_MAX {
        return word;
    }
    format!("{}… {} bytes", quote(&bytes[..SHOWN_MAX / 4]), bytes.len())
}

/// The beginning of a line that is too long to show.
pub fn cut(line: &str) -> String {
    if line.chars().count() <= SHOWN_MAX {
        return line.to_owned();
    }
    let beginning: String = line.chars().take(SHOWN_MAX).collect();
    format!("{beginning}…")
}

/// The bytes in double quotes, as redis-cli reads them.
pub fn quote(bytes: &[u8]) -> String {
    format!("\"{}\"", escape(bytes).replace('"', "\\\""))
}

/// The bytes with unprintable ones escaped; quotes stay as they are.
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::new();
    for &byte in bytes {
        match byte {
            b'\\' => text.push_str("\\\\"),
            b'\r' => text.push_str("\\r"),
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "\\x{byte:02x}");
            }
        }
    }
    text
}

/// A word of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineWord {
    /// Its bytes, without quotes and escapes.
    pub bytes: Vec<u8>,
    /// Whether it had quotes, and so is no keyword.
    pub is_quoted: bool,
}

/// The words of a line; a plain `#` at the beginning of a word ends it.
///
/// # Errors
/// When a word cannot be read; the text says why.
pub fn split(line: &str) -> Result<Vec<LineWord>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() && !rest.starts_with('#') {
        let (word, after) = if let Some(repeated) = rest.strip_prefix('@') {
            let digits = repeated
                .find('"')
                .ok_or("@ is followed by a length and a quoted pattern")?;
            let length: usize = repeated[..digits]
                .parse()
                .map_err(|_| format!("@{}: no length", &repeated[..digits]))?;
            let (pattern, after) = unquote(&repeated[digits + 1..])?;
            if pattern.is_empty() {
                return Err("an empty pattern cannot be repeated".to_owned());
            }
            let bytes = pattern.iter().copied().cycle().take(length).collect();
            (
                LineWord {
                    bytes,
                    is_quoted: true,
                },
                after,
            )
        } else if let Some(quoted) = rest.strip_prefix('"') {
            let (bytes, after) = unquote(quoted)?;
            (
                LineWord {
                    bytes,
                    is_quoted: true,
                },
                after,
            )
        } else {
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            let bytes = rest.as_bytes()[..end].to_vec();
            (
                LineWord {
                    bytes,
                    is_quoted: false,
                },
                &rest[end..],
            )
        };
        if after.starts_with(|next: char| !next.is_whitespace()) {
            return Err(format!("a space is expected before {after:?}"));
        }
        words.push(word);
        rest = after.trim_start();
    }
    Ok(words)
}

/// The bytes up to the closing quote, and the rest behind it.
fn unquote(text: &str) -> Result<(Vec<u8>, &str), String> {
    let mut bytes = Vec::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Ok((bytes, &text[at + 1..])),
            '\\' => match chars.next() {
                Some((_, 'r')) => bytes.push(b'\r'),
                Some((_, 'n')) => bytes.push(b'\n'),
                Some((_, 't')) => bytes.push(b'\t'),
                Some((at, 'x')) => {
                    let digits = text.get(at + 1..at + 3).unwrap_or_default();
                    let byte = u8::from_str_radix(digits, 16);
                    bytes.push(
                        byte.map_err(|_| format!("\\x{digits}: two hex digits are expected"))?,
                    );
                    chars.nth(1);
                }
                Some((_, other)) => bytes.extend(other.to_string().as_bytes()),
                None => break,
            },
            other => bytes.extend(other.to_string().as_bytes()),
        }
    }
    Err("a quote is not closed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_survive_being_written_and_read(
            words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..6),
            pattern in prop::collection::vec(any::<u8>(), 1..5),
            length in 0usize..5000,
        ) {
            let mut words = words;
            words.push(pattern.into_iter().cycle().take(length).collect());
            let line: Vec<String> = words.iter().map(|word| write(word)).collect();
            let read = split(&line.join(" ")).expect("written words can be read");
            prop_assert_eq!(read.into_iter().map(|word| word.bytes).collect::<Vec<_>>(), words);
        }
    }

    #[test]
    fn a_long_pattern_is_short_to_read() {
        assert_eq!(write(&b"ab".repeat(150_000)), "@300000\"ab\"");
        assert_eq!(write(b"plain:1"), "plain:1");
        assert_eq!(write(b""), "\"\"");
        assert_eq!(write(b"a b\r\n\x00"), "\"a b\\r\\n\\x00\"");
    }

    /// A word that cannot be read gives the reason.
    #[test]
    fn unreadable_word_says_why() {
        for line in ["\"open", "@12", "@x\"a\"", "@3\"\"", "\"a\"b", "\"\\xg0\""] {
            assert!(split(line).is_err(), "{line}");
        }
        assert_eq!(split("a # b").map(|words| words.len()), Ok(1));
    }
}
