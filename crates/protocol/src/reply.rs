//! Finds the end of a server's reply.
//!
//! One counter is enough: the number of values that are left until the reply is complete. A simple
//! value subtracts one. An aggregate of n elements adds n, a map of n pairs adds 2n. Depth does not
//! matter, no tree is built, and the bytes may be cut anywhere.
//!
//! ```text
//!    *2\r\n    $1\r\na\r\n    *1\r\n    :5\r\n
//! 1    2           1            1         0      <- values left
//! ```

use crate::number;

/// Longest header line (`*123\r\n`) of a number.
const HEADER_BYTES_MAX: usize = 24;

/// The server's bytes are not RESP. The bytes behind them cannot be read either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramingError {
    /// A value starts with this byte, which is not a type byte.
    Type(u8),
    /// A length is invalid: it is not a number, or no value has it.
    Length,
    /// A line does not end with CR LF.
    LineEnd,
}

impl std::fmt::Display for FramingError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FramingError::Type(byte) => write!(f, "no reply starts with byte {byte:#04x}"),
            FramingError::Length => f.write_str("a length is invalid"),
            FramingError::LineEnd => f.write_str("a line does not end with CR LF"),
        }
    }
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scanned {
    /// The reply ends after this many of the bytes.
    Whole(usize),
    /// All the bytes belong to the reply, and more follow.
    Fragment,
}

/// Scans one reply after another. It keeps its position between calls.
#[derive(Clone, Debug, Default)]
pub struct ReplyScanner {
    /// Number of values left in the reply; 0 between two replies.
    left: u64,
    /// The position in the current value.
    state: ScanState,
    /// The type byte of the reply.
    kind: u8,
}

#[derive(Clone, Debug, Default)]
enum ScanState {
    /// At the type byte of a value.
    #[default]
    Start,
    /// In a line whose content does not matter.
    Line { carriage_return: bool },
    /// In a header line; its bytes so far.
    Header {
        kind: u8,
        text: [u8; HEADER_BYTES_MAX],
        len: u8,
    },
    /// In a value with this many bytes left, including its CR LF.
    Bytes(u64),
}

impl ReplyScanner {
    /// Whether a reply is incomplete.
    #[inline]
    pub fn is_inside(&self) -> bool {
        self.left > 0
    }

    /// The type byte of the last scanned reply.
    #[inline]
    pub fn kind(&self) -> u8 {
        self.kind
    }

    /// Continues the current reply, or starts the next one, at the first of `bytes`.
    #[inline]
    pub fn scan(&mut self, bytes: &[u8]) -> Result<Scanned, FramingError> {
        if self.left == 0 {
            // Most replies are one short line or one short value, and complete.
            if let Some(end) = scan_short(bytes) {
                self.kind = bytes[0];
                return Ok(Scanned::Whole(end));
            }
            let Some(&kind) = bytes.first() else {
                return Ok(Scanned::Fragment);
            };
            self.kind = kind;
            self.left = 1;
            self.state = ScanState::Start;
        }
        self.scan_slow(bytes)
    }

    fn scan_slow(&mut self, bytes: &[u8]) -> Result<Scanned, FramingError> {
        let mut at = 0;
        while at < bytes.len() {
            match &mut self.state {
                ScanState::Start => {
                    // Most elements of an array are short and complete, too.
                    if let Some(end) = scan_short(&bytes[at..]) {
                        at += end;
                        self.left -= 1;
                    } else {
                        let kind = bytes[at];
                        at += 1;
                        self.state = match kind {
                            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => ScanState::Line {
                                carriage_return: false,
                            },
                            b'$' | b'=' | b'!' | b'*' | b'~' | b'>' | b'%' | b'|' => {
                                ScanState::Header {
                                    kind,
                                    text: [0; HEADER_BYTES_MAX],
                                    len: 0,
                                }
                            }
                            other => return Err(FramingError::Type(other)),
                        };
                    }
                }
                ScanState::Line { carriage_return } => {
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
                ScanState::Header { kind, text, len } => {
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
                ScanState::Bytes(left) => {
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
        Ok(Scanned::Fragment)
    }

    fn value_ends(&mut self) {
        self.left -= 1;
        self.state = ScanState::Start;
    }

    fn header_ends(&mut self, kind: u8, number: i64) -> Result<(), FramingError> {
        match (kind, number) {
            // Null of RESP2.
            (b'$' | b'*', -1) => self.value_ends(),
            (_, ..0) => return Err(FramingError::Length),
            (b'$' | b'=' | b'!', len) => {
                self.state =
                    ScanState::Bytes((len as u64).checked_add(2).ok_or(FramingError::Length)?);
            }
            (_, len) => {
                let values = match kind {
                    b'%' => (len as u64).checked_mul(2),
                    // Attributes precede a value and are not values themselves.
                    b'|' => (len as u64)
                        .checked_mul(2)
                        .and_then(|values| values.checked_add(1)),
                    _ => Some(len as u64),
                };
                self.left = values
                    .and_then(|values| values.checked_add(self.left - 1))
                    .ok_or(FramingError::Length)?;
                self.state = ScanState::Start;
            }
        }
        Ok(())
    }
}

/// The end of a complete reply that is one short line or one bulk string. `None` for any other
/// reply: the slow path decides.
#[inline]
fn scan_short(bytes: &[u8]) -> Option<usize> {
    // The most frequent replies take one comparison each.
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
                // No value has a length of more than nine digits, and `len` cannot overflow.
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

    /// The ends and type bytes of all replies in `bytes`, which arrive in pieces split at `cuts`.
    fn ends(bytes: &[u8], cuts: &[usize]) -> (Vec<(usize, u8)>, Option<FramingError>) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
        cuts.push(bytes.len());
        cuts.sort_unstable();
        let mut scanner = ReplyScanner::default();
        let mut at = 0;
        let mut found = Vec::new();
        for cut in cuts {
            while at < cut {
                match scanner.scan(&bytes[at..cut]) {
                    Ok(Scanned::Whole(len)) => {
                        at += len;
                        found.push((at, scanner.kind()));
                    }
                    Ok(Scanned::Fragment) => at = cut,
                    Err(error) => return (found, Some(error)),
                }
            }
        }
        (found, None)
    }

    /// An encoded value of any kind in RESP2 and RESP3.
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
        /// Any sequence of replies is scanned with the right ends, in any chunking.
        #[test]
        fn any_sequence_of_replies_has_the_right_ends(
            values in prop::collection::vec(value(), 1..8),
            cuts in prop::collection::vec(any::<usize>(), 0..40),
        ) {
            let mut at = 0;
            let expected: Vec<_> = values.iter().map(|value| { at += value.len(); (at, value[0]) }).collect();
            prop_assert_eq!(ends(&values.concat(), &cuts), (expected, None));
        }

        /// Any chunking of any bytes gives the same ends and the same error.
        #[test]
        fn any_chunking_of_any_bytes_gives_the_same_ends(
            bytes in prop::collection::vec(
                prop_oneof![any::<u8>(), prop::sample::select(b"+-:$*%|>_#,(=!~\r\n0123456789".to_vec())], 0..120),
            cuts in prop::collection::vec(any::<usize>(), 0..40),
        ) {
            prop_assert_eq!(ends(&bytes, &cuts), ends(&bytes, &[]));
        }
    }

    /// Bytes that are not RESP are a framing error.
    #[test]
    fn invalid_resp_is_a_framing_error() {
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
