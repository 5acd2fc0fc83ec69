//! Finds the end of a reply. It shares no code with the programs that it tests or measures, so a
//! common mistake cannot hide.

/// Scans replies that arrive in pieces of any size, in RESP2 and RESP3.
///
/// It keeps one counter instead of a tree: the values that are missing until the reply is whole. An
/// array of three is one value that adds three more.
#[derive(Clone, Debug, Default)]
pub struct ReplyFramer {
    state: FramerState,
    /// Missing values; 0 between replies.
    open: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FramerState {
    /// At the first byte of a value.
    #[default]
    Type,
    /// In the line of a value that ends with its line.
    Simple,
    /// In the digits of a length: the type byte, the number so far, and whether it is negative.
    Length { of: u8, value: u64, negative: bool },
    /// In a bulk string: bytes to skip, with the line end.
    Bulk(u64),
}

/// The bytes are no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl ReplyFramer {
    /// Takes the next bytes. `Ok(Some(n))`: the first `n` bytes complete a reply, and the next call
    /// begins a new one with the rest. `Ok(None)`: it took all bytes and needs more.
    ///
    /// # Errors
    /// When the bytes cannot be part of a reply. The scanner is then of no use.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        let mut at = 0;
        while at < bytes.len() {
            match self.state {
                FramerState::Type => {
                    // An attribute comes in addition to its value.
                    if self.open == 0 {
                        self.open = 1;
                    }
                    self.state = match bytes[at] {
                        b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => FramerState::Simple,
                        of @ (b'$' | b'=' | b'!' | b'*' | b'~' | b'>' | b'%' | b'|') => {
                            FramerState::Length {
                                of,
                                value: 0,
                                negative: false,
                            }
                        }
                        _ => return Err(Malformed),
                    };
                    at += 1;
                }
                FramerState::Simple => match bytes[at..].iter().position(|&byte| byte == b'\n') {
                    None => return Ok(None),
                    Some(end) => {
                        at += end + 1;
                        self.state = FramerState::Type;
                        self.open -= 1;
                    }
                },
                FramerState::Length {
                    of,
                    value,
                    negative,
                } => {
                    match bytes[at] {
                        b'-' => {
                            self.state = FramerState::Length {
                                of,
                                value,
                                negative: true,
                            }
                        }
                        digit @ b'0'..=b'9' => {
                            let value = value
                                .checked_mul(10)
                                .and_then(|value| value.checked_add(u64::from(digit - b'0')))
                                .filter(|&value| value <= LENGTH_MAX)
                                .ok_or(Malformed)?;
                            self.state = FramerState::Length {
                                of,
                                value,
                                negative,
                            };
                        }
                        b'\r' => {}
                        b'\n' => self.end_of_length(of, value, negative),
                        _ => return Err(Malformed),
                    }
                    at += 1;
                }
                FramerState::Bulk(left) => {
                    let here = left.min((bytes.len() - at) as u64);
                    at += here as usize;
                    self.state = FramerState::Bulk(left - here);
                    if left == here {
                        self.state = FramerState::Type;
                        self.open -= 1;
                    }
                }
            }
            if self.open == 0 {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    fn end_of_length(&mut self, of: u8, value: u64, negative: bool) {
        self.state = FramerState::Type;
        match of {
            b'$' | b'=' | b'!' if !negative => self.state = FramerState::Bulk(value + 2),
            b'*' | b'~' | b'>' if !negative => self.open = self.open - 1 + value,
            b'%' if !negative => self.open = self.open - 1 + 2 * value,
            // The pairs, and the value itself still to come.
            b'|' if !negative => self.open += 2 * value,
            // A null of RESP2.
            _ => self.open -= 1,
        }
    }
}

/// More than any server sends, and small enough to keep the sums from overflow.
const LENGTH_MAX: u64 = 1 << 32;

/// Writes a bulk string.
pub fn write_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REPLIES: [&[u8]; 18] = [
        b"+OK\r\n",
        b"-ERR unknown command\r\n",
        b":1000\r\n",
        b"$2\r\nxx\r\n",
        b"$0\r\n\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"$5\r\n+O\r\nK\r\n",
        b"*2\r\n$1\r\na\r\n*2\r\n:1\r\n$-1\r\n",
        b"_\r\n",
        b"#t\r\n",
        b",3.25\r\n",
        b"%1\r\n+a\r\n*1\r\n:1\r\n",
        b"~2\r\n:1\r\n:2\r\n",
        b">2\r\n+message\r\n$1\r\nx\r\n",
        b"|1\r\n+ttl\r\n:3\r\n$1\r\nx\r\n",
        b"=7\r\ntxt:abc\r\n",
    ];

    /// The ends of all replies in a stream that is cut at these places.
    fn ends(stream: &[u8], cuts: &[usize]) -> Result<Vec<usize>, Malformed> {
        let mut scanner = ReplyFramer::default();
        let mut found = Vec::new();
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut % (stream.len() + 1)).collect();
        places.extend([0, stream.len()]);
        places.sort_unstable();
        for pair in places.windows(2) {
            let mut from = pair[0];
            while let Some(length) = scanner.feed(&stream[from..pair[1]])? {
                from += length;
                found.push(from);
            }
        }
        Ok(found)
    }

    proptest! {
        #[test]
        fn any_split_finds_the_same_ends(
            picks in prop::collection::vec(0..REPLIES.len(), 1..20),
            cuts in prop::collection::vec(any::<usize>(), 0..40),
        ) {
            let mut stream = Vec::new();
            let mut expected = Vec::new();
            for pick in picks {
                stream.extend_from_slice(REPLIES[pick]);
                expected.push(stream.len());
            }
            prop_assert_eq!(ends(&stream, &cuts), Ok(expected));
        }

        #[test]
        fn no_bytes_bring_it_down(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut scanner = ReplyFramer::default();
            let mut from = 0;
            while let Ok(Some(length)) = scanner.feed(&bytes[from..]) {
                prop_assert!(length > 0);
                from += length;
            }
        }
    }

    /// Bytes that are no reply are refused.
    #[test]
    fn invalid_reply_is_refused() {
        for bytes in [
            &b"hello\r\n"[..],
            b"$x\r\n",
            b"*99999999999999\r\n",
            b"\r\n",
        ] {
            assert_eq!(
                ReplyFramer::default().feed(bytes),
                Err(Malformed),
                "{bytes:?}"
            );
        }
    }
}
