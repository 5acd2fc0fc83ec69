//! Finding where a server's reply ends, whatever is in it.
//!
//! One counter does it: how many values must still come before the reply is whole. A simple value
//! takes one away, an aggregate of n elements adds n, a map of n pairs 2n. Depth does not matter, no
//! tree is built, and a reply may end anywhere in the bytes.
//!
//! ```text
//!    *2\r\n    $1\r\na\r\n    *1\r\n    :5\r\n
//! 1    2           1            1         0      <- values still to come
//! ```

use crate::number;

/// Longest header line (`*123\r\n`) that can be a number.
const HEADER_BYTES_MAX: usize = 24;

/// The server's bytes are not RESP: nothing after them can be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramingError {
    /// No value starts with this byte.
    Type(u8),
    /// A length that is no number, or none that can be.
    Length,
    /// A line does not end as a line must.
    LineEnd,
}

impl std::fmt::Display for FramingError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FramingError::Type(byte) => write!(f, "no reply starts with byte {byte:#04x}"),
            FramingError::Length => f.write_str("a length is not a number"),
            FramingError::LineEnd => f.write_str("a line does not end with CR LF"),
        }
    }
}

/// What a scan came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scanned {
    /// The reply ends after this many of the bytes given.
    Whole(usize),
    /// All the bytes given belong to the reply, and it does not end in them.
    Part,
}

/// Scans one reply after another; keeps its place between calls.
#[derive(Clone, Debug, Default)]
pub struct Scanner {
    /// Values still to come; 0 between two replies.
    left: u64,
    /// What the present value needs.
    inside: Inside,
    /// Its first byte, for who wants to know what kind of reply it is.
    kind: u8,
}

#[derive(Clone, Debug, Default)]
enum Inside {
    /// The type byte of a value.
    #[default]
    Start,
    /// The end of a line whose content does not matter.
    Line { carriage_return: bool },
    /// The end of a line that is a length.
    Header {
        kind: u8,
        text: [u8; HEADER_BYTES_MAX],
        len: u8,
    },
    /// This many bytes, the last two of which end the value.
    Bytes(u64),
}

impl Scanner {
    /// Whether a reply has begun and not ended.
    #[inline]
    pub fn is_inside(&self) -> bool {
        self.left > 0
    }

    /// The first byte of the reply scanned last.
    #[inline]
    pub fn kind(&self) -> u8 {
        self.kind
    }

    /// Continues the reply that is being scanned, or starts the next one, at the first of `bytes`.
    #[inline]
    pub fn scan(&mut self, bytes: &[u8]) -> Result<Scanned, FramingError> {
        if self.left == 0 {
            // Most replies are one short line or one short value that came whole.
            if let Some(end) = short(bytes) {
                self.kind = bytes[0];
                return Ok(Scanned::Whole(end));
            }
            let Some(&kind) = bytes.first() else {
                return Ok(Scanned::Part);
            };
            self.kind = kind;
            self.left = 1;
            self.inside = Inside::Start;
        }
        self.scan_slow(bytes)
    }

    fn scan_slow(&mut self, bytes: &[u8]) -> Result<Scanned, FramingError> {
        let mut at = 0;
        while at < bytes.len() {
            match &mut self.inside {
                Inside::Start => {
                    // Elements of an array are mostly short and whole, too.
                    if let Some(end) = short(&bytes[at..]) {
                        at += end;
                        self.left -= 1;
                    } else {
                        let kind = bytes[at];
                        at += 1;
                        self.inside = match kind {
                            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => Inside::Line {
                                carriage_return: false,
                            },
                            b'$' | b'=' | b'!' | b'*' | b'~' | b'>' | b'%' | b'|' => {
                                Inside::Header {
                                    kind,
                                    text: [0; HEADER_BYTES_MAX],
                                    len: 0,
                                }
                            }
                            other => return Err(FramingError::Type(other)),
                        };
                    }
                }
                Inside::Line { carriage_return } => {
                    let rest = &bytes[at..];
                    if *carriage_return {
                        if rest[0] != b'\n' {
                            return Err(FramingError::LineEnd);
                        }
                        at += 1;
                        self.value_ends();
                    } else if let Some(end) =
                        rest.iter().position(|&byte| byte == b'\r' || byte == b'\n')
                    {
                        if rest[end] == b'\n' {
                            return Err(FramingError::LineEnd);
                        }
                        at += end + 1;
                        *carriage_return = true;
                    } else {
                        at = bytes.len();
                    }
                }
                Inside::Header { kind, text, len } => {
                    let byte = bytes[at];
                    at += 1;
                    let used = *len as usize;
                    if byte == b'\n' {
                        let digits = text[..used]
                            .strip_suffix(b"\r")
                            .ok_or(FramingError::LineEnd)?;
                        let number = number::parse(digits).ok_or(FramingError::Length)?;
                        let kind = *kind;
                        self.header_ends(kind, number)?;
                    } else if used == HEADER_BYTES_MAX {
                        return Err(FramingError::Length);
                    } else {
                        text[used] = byte;
                        *len += 1;
                    }
                }
                Inside::Bytes(left) => {
                    let rest = (bytes.len() - at) as u64;
                    if *left > rest {
                        *left -= rest;
                        at = bytes.len();
                    } else {
                        at += *left as usize;
                        self.value_ends();
                    }
                }
            }
            if self.left == 0 {
                return Ok(Scanned::Whole(at));
            }
        }
        Ok(Scanned::Part)
    }

    fn value_ends(&mut self) {
        self.left -= 1;
        self.inside = Inside::Start;
    }

    fn header_ends(&mut self, kind: u8, number: i64) -> Result<(), FramingError> {
        match (kind, number) {
            // The nulls of RESP2.
            (b'$' | b'*', -1) => self.value_ends(),
            (_, ..0) => return Err(FramingError::Length),
            (b'$' | b'=' | b'!', len) => {
                self.inside =
                    Inside::Bytes((len as u64).checked_add(2).ok_or(FramingError::Length)?);
            }
            (_, len) => {
                let values = match kind {
                    b'%' => (len as u64).checked_mul(2),
                    // Attributes stand before the value they are about, and are none themselves.
                    b'|' => (len as u64)
                        .checked_mul(2)
                        .and_then(|values| values.checked_add(1)),
                    _ => Some(len as u64),
                };
                self.left = values
                    .and_then(|values| values.checked_add(self.left - 1))
                    .ok_or(FramingError::Length)?;
                self.inside = Inside::Start;
            }
        }
        Ok(())
    }
}

/// The end of a reply that is one line or one bulk string and lies whole in `bytes`; anything else,
/// and anything odd, is `None` and left to the long way.
#[inline]
fn short(bytes: &[u8]) -> Option<usize> {
    // What most requests are answered with, by one comparison each.
    match *bytes {
        [b'$', ones @ b'0'..=b'9', b'\r', b'\n', ..] => {
            let end = 4 + usize::from(ones - b'0') + 2;
            return (end <= bytes.len()).then_some(end);
        }
        [b'+', b'O', b'K', b'\r', b'\n', ..] => return Some(5),
        [b'$', b'-', b'1', b'\r', b'\n', ..] => return Some(5),
        _ => {}
    }
    match bytes.first()? {
        b'$' => {
            let mut len = 0usize;
            let mut at = 1;
            loop {
                let byte = *bytes.get(at)?;
                let digit = byte.wrapping_sub(b'0');
                if digit > 9 {
                    break;
                }
                // Nine digits are more than any value; also keeps a leading zero from mattering.
                if at == 10 {
                    return None;
                }
                len = len * 10 + usize::from(digit);
                at += 1;
            }
            if at == 1
                || bytes[at] != b'\r'
                || *bytes.get(at + 1)? != b'\n'
                || (bytes[1] == b'0' && at > 2)
            {
                return None;
            }
            let end = at + 2 + len + 2;
            (end <= bytes.len()).then_some(end)
        }
        b'+' | b':' | b'-' | b'_' | b'#' | b',' => {
            let end = 1 + bytes[1..]
                .iter()
                .take(64)
                .position(|&byte| byte == b'\r' || byte == b'\n')?;
            (bytes[end] == b'\r' && *bytes.get(end + 1)? == b'\n').then_some(end + 2)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The ends of all replies in `bytes`, scanned in pieces.
    fn ends(bytes: &[u8], cuts: &[usize]) -> (Vec<(usize, u8)>, Option<FramingError>) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
        cuts.push(bytes.len());
        cuts.sort_unstable();
        let mut scanner = Scanner::default();
        let mut at = 0;
        let mut found = Vec::new();
        for cut in cuts {
            while at < cut {
                match scanner.scan(&bytes[at..cut]) {
                    Ok(Scanned::Whole(len)) => {
                        at += len;
                        found.push((at, scanner.kind()));
                    }
                    Ok(Scanned::Part) => at = cut,
                    Err(error) => return (found, Some(error)),
                }
            }
        }
        (found, None)
    }

    /// A value, encoded, with anything that RESP2 and RESP3 have.
    fn value() -> impl Strategy<Value = Vec<u8>> {
        let text = prop::collection::vec(any::<u8>(), 0..30);
        let leaf = prop_oneof![
            "[+:,(-][ -~]{0,90}".prop_map(|line| format!("{line}\r\n").into_bytes()),
            Just(b"_\r\n".to_vec()),
            Just(b"#t\r\n".to_vec()),
            Just(b"$-1\r\n".to_vec()),
            Just(b"*-1\r\n".to_vec()),
            (prop_oneof![Just('$'), Just('='), Just('!')], text).prop_map(|(kind, text)| {
                [
                    format!("{kind}{}\r\n", text.len()).as_bytes(),
                    &text,
                    b"\r\n",
                ]
                .concat()
            }),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            let list = prop::collection::vec(inner.clone(), 0..6);
            prop_oneof![
                (prop_oneof![Just('*'), Just('~'), Just('>')], list.clone()).prop_map(
                    |(kind, values)| {
                        [
                            format!("{kind}{}\r\n", values.len()).into_bytes(),
                            values.concat(),
                        ]
                        .concat()
                    }
                ),
                list.clone().prop_map(|mut values| {
                    values.truncate(values.len() / 2 * 2);
                    [
                        format!("%{}\r\n", values.len() / 2).into_bytes(),
                        values.concat(),
                    ]
                    .concat()
                }),
                (list, inner).prop_map(|(mut values, about)| {
                    values.truncate(values.len() / 2 * 2);
                    [
                        format!("|{}\r\n", values.len() / 2).into_bytes(),
                        values.concat(),
                        about,
                    ]
                    .concat()
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn after_any_reply_the_next_one_reads_as_itself(
            values in prop::collection::vec(value(), 1..8),
            cuts in prop::collection::vec(any::<usize>(), 0..40),
        ) {
            let mut at = 0;
            let expected: Vec<_> = values.iter().map(|value| { at += value.len(); (at, value[0]) }).collect();
            prop_assert_eq!(ends(&values.concat(), &cuts), (expected, None));
        }

        #[test]
        fn any_chunking_of_any_bytes_gives_the_same_events(
            bytes in prop::collection::vec(
                prop_oneof![any::<u8>(), prop::sample::select(b"+-:$*%|>_#,(=!~\r\n0123456789".to_vec())], 0..120),
            cuts in prop::collection::vec(any::<usize>(), 0..40),
        ) {
            prop_assert_eq!(ends(&bytes, &cuts), ends(&bytes, &[]));
        }
    }

    #[test]
    fn what_is_not_resp_is_a_framing_error() {
        let error = |bytes: &[u8]| ends(bytes, &[]).1;
        assert_eq!(error(b"hello\r\n"), Some(FramingError::Type(b'h')));
        assert_eq!(error(b"$5x\r\n"), Some(FramingError::Length));
        assert_eq!(error(b"$-2\r\n"), Some(FramingError::Length));
        assert_eq!(error(b"%-1\r\n"), Some(FramingError::Length));
        assert_eq!(error(b"$?\r\n"), Some(FramingError::Length));
        assert_eq!(error(b"+OK\n"), Some(FramingError::LineEnd));
        assert_eq!(error(b"+OK\rx"), Some(FramingError::LineEnd));
        assert_eq!(
            error(b"*9223372036854775807\r\n*9223372036854775807\r\n*9223372036854775807\r\n"),
            Some(FramingError::Length)
        );
        assert_eq!(
            error(b"*999999999999999999999999999\r\n"),
            Some(FramingError::Length)
        );
    }
}
