//! Finds the end of a client's request and the positions of its arguments.
//!
//! Redis accepts two forms: an array of bulk strings, and a line of words. Limits, order of checks
//! and error texts are those of `processMultibulkBuffer` and `processInlineBuffer` (networking.c).
//! So the same bytes get the same answer as from Redis.
//!
//! ```text
//!   *3\r\n $3\r\n SET\r\n $3\r\n key\r\n $5\r\n value\r\n
//!              ^-^            ^-^           ^---^
//!            spans[0]       spans[1]       spans[2]
//! ```
//!
//! The bytes of a request are forwarded unchanged. Redis skips the two bytes that end a line or a
//! bulk string without a check. Valkey 9.1 checks them and closes the connection. Our link is
//! shared, so the scanner always checks them.

use crate::number;

/// Longest line, a header or an inline request: Redis's `PROTO_INLINE_MAX_SIZE`.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Longest argument: the default of Redis's `proto-max-bulk-len`.
pub const BULK_BYTES_MAX: i64 = 512 << 20;
/// Most arguments of a request, as in Redis since 7.0; 6.2 allows 1,048,576.
pub const ARGS_MAX: i64 = i32::MAX as i64;
/// Most arguments of a request before authentication.
pub const UNAUTHENTICATED_ARGS_MAX: i64 = 10;
/// Longest argument before authentication.
pub const UNAUTHENTICATED_BULK_BYTES_MAX: i64 = 16 << 10;

/// The position of an argument in the bytes of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Offset of its first byte.
    pub start: u32,
    /// Offset behind its last byte.
    pub end: u32,
}

impl Span {
    /// The bytes of the argument.
    #[inline]
    pub fn of<'a>(&self, request: &'a [u8]) -> &'a [u8] {
        &request[self.start as usize..self.end as usize]
    }
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// An array request. Its arguments are in [`RequestScanner::spans`].
    Request {
        /// Its length with all headers.
        len: usize,
    },
    /// An inline request, to be read by [`split_inline`].
    Inline {
        /// Its length with the end of the line.
        len: usize,
    },
    /// Bytes without a request: an empty line, or an array of zero or a negative number of
    /// elements.
    Nothing {
        /// Number of bytes to skip.
        len: usize,
    },
    /// The request is incomplete. Call again with the same bytes and more.
    More,
}

/// A protocol error of a client. Redis answers `-ERR Protocol error: ` with a text, and closes the
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// An array header is longer than a line may be.
    LongArrayHeader,
    /// The count of an array is not a number, or too large.
    ArrayLength,
    /// A request before authentication has too many arguments.
    UnauthenticatedArrayLength,
    /// A bulk header is longer than a line may be.
    LongBulkHeader,
    /// Another byte stands in place of the `$` of a bulk string.
    NotABulk(u8),
    /// The length of a bulk string is not a number, or too large.
    BulkLength,
    /// A request before authentication has too long an argument.
    UnauthenticatedBulkLength,
    /// A line or a bulk string does not end with CR LF.
    LineEnd,
    /// An inline request is longer than a line may be.
    LongLine,
    /// The quotes of an inline request do not match.
    Quotes,
    /// A handshake of TLS stands in place of a request. Redis waits for its line end.
    Tls,
}

impl Violation {
    /// Appends the error reply, in Redis's words.
    pub fn append_reply(self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"-ERR Protocol error: ");
        out.extend_from_slice(match self {
            Violation::LongArrayHeader => b"too big mbulk count string",
            Violation::ArrayLength => b"invalid multibulk length",
            Violation::UnauthenticatedArrayLength => b"unauthenticated multibulk length",
            Violation::LongBulkHeader => b"too big bulk count string",
            Violation::NotABulk(_) => b"expected '$', got '",
            Violation::BulkLength => b"invalid bulk length",
            Violation::UnauthenticatedBulkLength => b"unauthenticated bulk length",
            Violation::LineEnd => b"invalid CRLF in request",
            Violation::LongLine => b"too big inline request",
            Violation::Quotes => b"unbalanced quotes in request",
            Violation::Tls => b"TLS at a listener without TLS",
        });
        if let Violation::NotABulk(got) = self {
            // A CR or LF would end the line of the error. Redis replaces them by spaces, too.
            out.push(if got == b'\r' || got == b'\n' {
                b' '
            } else {
                got
            });
            out.push(b'\'');
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Scans one request at a time. It keeps its position while a request is incomplete.
#[derive(Clone, Debug, Default)]
pub struct RequestScanner {
    /// Offset of the next byte to scan, from the start of the request.
    pos: usize,
    /// Number of arguments in the header; 0 before the header.
    argc: u32,
    /// The arguments found so far.
    spans: Vec<Span>,
    /// The incomplete element at `pos`.
    pending: Pending,
    /// See [`RequestScanner::hold_whole`].
    is_held_whole: bool,
}

/// The element of a request at which the bytes ran out. Its scanned bytes are not scanned again.
#[derive(Clone, Copy, Debug)]
enum Pending {
    /// A header or an inline request.
    Line {
        /// Bytes already searched for the end of the line, in a header without its type byte.
        searched: u32,
    },
    /// An argument whose header is read.
    Bulk {
        /// Its length without its CR LF.
        len: u32,
    },
}

impl Default for Pending {
    fn default() -> Self {
        Pending::Line { searched: 0 }
    }
}

impl Pending {
    /// Length of a pending argument with its CR LF; 0 for a line.
    fn bulk_bytes(self) -> u64 {
        match self {
            Pending::Line { .. } => 0,
            Pending::Bulk { len } => u64::from(len) + 2,
        }
    }
}

impl RequestScanner {
    /// The arguments found: all of them after [`Found::Request`], the first ones after
    /// [`Found::More`].
    #[inline]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// The number of arguments in the request's header; 0 before the header.
    #[inline]
    pub fn argc(&self) -> usize {
        self.argc as usize
    }

    /// Memory of the spans found so far, in bytes.
    pub fn held_bytes(&self) -> usize {
        size_of_val(self.spans.as_slice())
    }

    /// Memory of the scanner and its whole span buffer, in bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<RequestScanner>() + self.spans.capacity() * size_of::<Span>()
    }

    /// The least length of the request, by the headers scanned so far.
    pub fn len_at_least(&self) -> u64 {
        self.pos as u64 + self.pending.bulk_bytes()
    }

    /// A scanner for the rest of the request, behind its first [`RequestScanner::scanned`] bytes.
    /// It is for callers that forward the rest without holding it.
    pub fn tail(&self) -> Tail {
        let bulks_left = self.argc - self.spans.len() as u32;
        Tail {
            args_left: bulks_left - u32::from(matches!(self.pending, Pending::Bulk { .. })),
            bulk_left: self.pending.bulk_bytes(),
            header: Vec::new(),
        }
    }

    /// Notes that the caller holds this request until it is complete, however large it is.
    pub fn hold_whole(&mut self) {
        self.is_held_whole = true;
    }

    /// Whether the caller holds this request until it is complete.
    pub fn is_held_whole(&self) -> bool {
        self.is_held_whole
    }

    /// The number of scanned bytes of the request.
    pub fn scanned(&self) -> usize {
        self.pos
    }

    /// Forgets the request. It frees a span buffer that a request of many arguments made large.
    #[inline]
    pub fn reset(&mut self) {
        self.pos = 0;
        self.argc = 0;
        self.pending = Pending::default();
        self.is_held_whole = false;
        self.spans.clear();
        if self.spans.capacity() > 4096 {
            self.spans.shrink_to(64);
        }
    }

    /// Finds the end of the request that starts at the first byte of `bytes`. After [`Found::More`]
    /// the next call must have the same bytes and more. After any other result the scanner starts a
    /// new request.
    #[inline]
    pub fn scan(&mut self, bytes: &[u8], trusted: bool) -> Result<Found, Violation> {
        if self.pos == 0 {
            // Most requests are complete and have a few short arguments.
            if let Some(len) = self.scan_short(bytes) {
                return Ok(Found::Request { len });
            }
            // Spans of the last request are still there.
            let pending = self.pending;
            self.reset();
            let searched = match pending {
                Pending::Line { searched } => searched as usize,
                Pending::Bulk { .. } => 0,
            };
            match bytes.first() {
                None => return Ok(Found::More),
                Some(b'*') => {}
                Some(_) => return self.scan_inline(bytes, searched),
            }
            let (count, next) = match header(bytes, 1, searched) {
                HeaderScan::Number(count, next) => (count, next),
                HeaderScan::More(searched) => {
                    self.pending = Pending::Line { searched };
                    return Ok(Found::More);
                }
                HeaderScan::Long => return Err(Violation::LongArrayHeader),
                HeaderScan::LineEnd => return Err(Violation::LineEnd),
                HeaderScan::Bad => return Err(Violation::ArrayLength),
            };
            if count > ARGS_MAX {
                return Err(Violation::ArrayLength);
            }
            if !trusted && count > UNAUTHENTICATED_ARGS_MAX {
                return Err(Violation::UnauthenticatedArrayLength);
            }
            if count <= 0 {
                return Ok(Found::Nothing { len: next });
            }
            self.argc = count as u32;
            self.pos = next;
        }
        self.scan_bulks(bytes, trusted)
    }

    /// Scans a complete request of fewer than ten arguments of fewer than a hundred bytes each.
    /// Such a request exceeds no limit. `None` for any other request: the slow path decides.
    #[inline]
    fn scan_short(&mut self, bytes: &[u8]) -> Option<usize> {
        let &[b'*', argc @ b'1'..=b'9', b'\r', b'\n', ..] = bytes else {
            return None;
        };
        let argc = u32::from(argc - b'0');
        self.spans.clear();
        let mut at = 4;
        for _ in 0..argc {
            let (len, start) = match *bytes.get(at..)? {
                [b'$', ones @ b'0'..=b'9', b'\r', b'\n', ..] => (usize::from(ones - b'0'), at + 4),
                [
                    b'$',
                    tens @ b'1'..=b'9',
                    ones @ b'0'..=b'9',
                    b'\r',
                    b'\n',
                    ..,
                ] => (
                    usize::from(tens - b'0') * 10 + usize::from(ones - b'0'),
                    at + 5,
                ),
                _ => return None,
            };
            let end = start + len;
            if *bytes.get(end..end + 2)? != *b"\r\n" {
                return None;
            }
            self.spans.push(Span {
                start: start as u32,
                end: end as u32,
            });
            at = end + 2;
        }
        self.argc = argc;
        self.pending = Pending::default();
        Some(at)
    }

    #[inline]
    fn scan_bulks(&mut self, bytes: &[u8], trusted: bool) -> Result<Found, Violation> {
        let mut pos = self.pos;
        while self.spans.len() < self.argc as usize {
            let len = match std::mem::take(&mut self.pending) {
                Pending::Bulk { len } => len,
                Pending::Line { searched } => {
                    let (len, next) = match header(bytes, pos + 1, searched as usize) {
                        // Redis waits for the end of the line before it checks the first byte.
                        HeaderScan::More(searched) => {
                            self.pending = Pending::Line { searched };
                            break;
                        }
                        HeaderScan::Long => return Err(Violation::LongBulkHeader),
                        _ if bytes[pos] != b'$' => return Err(Violation::NotABulk(bytes[pos])),
                        HeaderScan::LineEnd => return Err(Violation::LineEnd),
                        HeaderScan::Bad => return Err(Violation::BulkLength),
                        HeaderScan::Number(len, next) => (len, next),
                    };
                    if !(0..=BULK_BYTES_MAX).contains(&len) {
                        return Err(Violation::BulkLength);
                    }
                    if !trusted && len > UNAUTHENTICATED_BULK_BYTES_MAX {
                        return Err(Violation::UnauthenticatedBulkLength);
                    }
                    pos = next;
                    len as u32
                }
            };
            let end = pos + len as usize;
            if end + 2 > bytes.len() {
                self.pending = Pending::Bulk { len };
                break;
            }
            if bytes[end] != b'\r' || bytes[end + 1] != b'\n' {
                return Err(Violation::LineEnd);
            }
            self.spans.push(Span {
                start: pos as u32,
                end: end as u32,
            });
            pos = end + 2;
        }
        self.pos = pos;
        if self.spans.len() < self.argc as usize {
            return Ok(Found::More);
        }
        // `spans` stays for the caller. The next scan starts a new request.
        self.pos = 0;
        Ok(Found::Request { len: pos })
    }

    /// Scans an inline request whose first `searched` bytes have no line end.
    #[cold]
    fn scan_inline(&mut self, bytes: &[u8], searched: usize) -> Result<Found, Violation> {
        if bytes.starts_with(TLS_HANDSHAKE) {
            return Err(Violation::Tls);
        }
        // Redis searches the line end with `strchr`, which stops at a zero byte.
        match position(bytes, searched, |byte| byte == b'\n' || byte == 0) {
            Some(end) if bytes[end] == b'\n' => {
                let len = end + 1;
                let empty = bytes[..end].iter().all(|byte| is_space(*byte));
                Ok(if empty {
                    Found::Nothing { len }
                } else {
                    Found::Inline { len }
                })
            }
            _ if bytes.len() > LINE_BYTES_MAX => Err(Violation::LongLine),
            end => {
                // If a zero byte stopped the search, the next search begins at it and stops at
                // once.
                self.pending = Pending::Line {
                    searched: end.unwrap_or(bytes.len()) as u32,
                };
                Ok(Found::More)
            }
        }
    }
}

/// The first bytes of a connection with TLS: a handshake record of any version. No command begins
/// so.
const TLS_HANDSHAKE: &[u8] = &[0x16, 3];

/// The offset of the first matching byte behind the first `searched` bytes.
fn position(bytes: &[u8], searched: usize, is: impl Fn(u8) -> bool) -> Option<usize> {
    let rest = bytes.get(searched..)?;
    let found = rest.iter().position(|&byte| is(byte));
    #[cfg(test)]
    tests::SEARCHED.set(tests::SEARCHED.get() + found.map_or(rest.len(), |at| at + 1));
    found.map(|at| searched + at)
}

/// Scans the rest of a request that is too large to hold. It finds the end without keeping the
/// bytes.
#[derive(Clone, Debug)]
pub struct Tail {
    /// Number of arguments whose header is not read yet.
    args_left: u32,
    /// Bytes left of the current argument, with its CR LF.
    bulk_left: u64,
    /// The bytes of an incomplete header.
    header: Vec<u8>,
}

impl Tail {
    /// Returns the number of `bytes` that belong to the request, and whether it ends there.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<(usize, bool), Violation> {
        let mut at = 0;
        loop {
            let step = self
                .bulk_left
                .saturating_sub(2)
                .min((bytes.len() - at) as u64);
            at += step as usize;
            self.bulk_left -= step;
            if self.bulk_left == 0 && self.args_left == 0 {
                return Ok((at, true));
            }
            let Some(&byte) = bytes.get(at) else {
                return Ok((at, false));
            };
            if self.bulk_left > 0 {
                // The CR LF of the argument.
                if byte != if self.bulk_left == 2 { b'\r' } else { b'\n' } {
                    return Err(Violation::LineEnd);
                }
                at += 1;
                self.bulk_left -= 1;
                continue;
            }
            // Headers are few bytes of a large request, so one byte at a time is fast enough.
            self.header.push(byte);
            at += 1;
            // The header is parsed once, at the byte behind the first CR. To parse it again with
            // every byte would let a client waste our CPU time.
            let ended = matches!(self.header[..], [_, .., b'\r', _]);
            if !ended && self.header.len() <= LINE_BYTES_MAX {
                continue;
            }
            let (len, _) = match header(&self.header, 1, 0) {
                HeaderScan::More(_) => continue,
                HeaderScan::Long => return Err(Violation::LongBulkHeader),
                _ if self.header[0] != b'$' => return Err(Violation::NotABulk(self.header[0])),
                HeaderScan::LineEnd => return Err(Violation::LineEnd),
                HeaderScan::Bad => return Err(Violation::BulkLength),
                HeaderScan::Number(len, next) => (len, next),
            };
            if !(0..=BULK_BYTES_MAX).contains(&len) {
                return Err(Violation::BulkLength);
            }
            self.header.clear();
            self.bulk_left = len as u64 + 2;
            self.args_left -= 1;
        }
    }
}

enum HeaderScan {
    /// The number, and the offset of the next line.
    Number(i64, usize),
    /// The line is incomplete. This many bytes behind its type byte have no line end.
    More(u32),
    /// The line is too long.
    Long,
    /// The byte behind the CR is not LF.
    LineEnd,
    /// The line is not a number.
    Bad,
}

/// Reads the number of a header line, from `start` behind its type byte. The first `searched` bytes
/// have no line end.
#[inline]
fn header(bytes: &[u8], start: usize, searched: usize) -> HeaderScan {
    // Nearly every header has one to six digits, which are read in one pass. A sign, a leading
    // zero, an overflow or an incomplete line goes to the slow path.
    let mut value = 0u32;
    let mut at = start;
    while at < bytes.len() && at < start + 9 {
        let digit = bytes[at].wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        value = value * 10 + u32::from(digit);
        at += 1;
    }
    if at + 1 < bytes.len()
        && bytes[at] == b'\r'
        && bytes[at + 1] == b'\n'
        && at > start
        && (bytes[start] != b'0' || at == start + 1)
    {
        return HeaderScan::Number(i64::from(value), at + 2);
    }
    header_slow(bytes, start, searched)
}

#[cold]
fn header_slow(bytes: &[u8], start: usize, searched: usize) -> HeaderScan {
    let line = bytes.get(start..).unwrap_or_default();
    match position(line, searched, |byte| byte == b'\r') {
        None if line.len() + 1 > LINE_BYTES_MAX => HeaderScan::Long,
        None => HeaderScan::More(line.len() as u32),
        Some(end) => match line.get(end + 1) {
            None => HeaderScan::More(end as u32),
            Some(b'\n') => match number::parse(&line[..end]) {
                Some(value) => HeaderScan::Number(value, start + end + 2),
                None => HeaderScan::Bad,
            },
            Some(_) => HeaderScan::LineEnd,
        },
    }
}

/// Splits an inline request into words, as Redis's `sdssplitargs` does: `"..."` with escapes,
/// `'...'` with `\'` alone, and only space behind a closing quote.
pub fn split_inline(line: &[u8]) -> Result<Vec<Vec<u8>>, Violation> {
    let mut words = Vec::new();
    let mut at = 0;
    // Redis reads the line as a C string, which ends at the first zero byte.
    let line = line.split(|&byte| byte == 0).next().unwrap_or_default();
    let byte = |at: usize| line.get(at).copied();
    loop {
        while byte(at).is_some_and(is_space) {
            at += 1;
        }
        if at >= line.len() {
            return Ok(words);
        }
        let mut word = Vec::new();
        loop {
            match byte(at) {
                None => break,
                Some(b'"') => {
                    at = double_quoted(line, at + 1, &mut word)?;
                    break;
                }
                Some(b'\'') => {
                    at = single_quoted(line, at + 1, &mut word)?;
                    break;
                }
                // These are fewer than the spaces between two words: a vertical tab is part of a
                // word.
                Some(b' ' | b'\t' | b'\r' | b'\n') => break,
                Some(other) => {
                    word.push(other);
                    at += 1;
                }
            }
        }
        words.push(word);
    }
}

fn double_quoted(line: &[u8], mut at: usize, word: &mut Vec<u8>) -> Result<usize, Violation> {
    loop {
        match line[at..] {
            [b'\\', b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                word.push(hex(high) << 4 | hex(low));
                at += 4;
            }
            [b'\\', escaped, ..] => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => other,
                });
                at += 2;
            }
            [b'"', ref rest @ ..] => return after_quote(rest, at + 1),
            [other, ..] => {
                word.push(other);
                at += 1;
            }
            [] => return Err(Violation::Quotes),
        }
    }
}

fn single_quoted(line: &[u8], mut at: usize, word: &mut Vec<u8>) -> Result<usize, Violation> {
    loop {
        match line[at..] {
            [b'\\', b'\'', ..] => {
                word.push(b'\'');
                at += 2;
            }
            [b'\'', ref rest @ ..] => return after_quote(rest, at + 1),
            [other, ..] => {
                word.push(other);
                at += 1;
            }
            [] => return Err(Violation::Quotes),
        }
    }
}

fn after_quote(rest: &[u8], at: usize) -> Result<usize, Violation> {
    match rest.first() {
        Some(byte) if !is_space(*byte) => Err(Violation::Quotes),
        _ => Ok(at),
    }
}

/// `isspace` of C in the C locale.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;
    use crate::encode;

    thread_local! {
        /// Number of bytes searched for line ends, over all calls.
        pub(super) static SEARCHED: Cell<usize> = const { Cell::new(0) };
    }

    /// The requests in `bytes`, as arguments, and the violation that ends them. The bytes arrive in
    /// pieces, split at `cuts`.
    fn events(bytes: &[u8], cuts: &[usize]) -> (Vec<Vec<Vec<u8>>>, Option<Violation>) {
        let mut scanner = RequestScanner::default();
        let mut held: Vec<u8> = Vec::new();
        let mut seen = Vec::new();
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
        ends.push(bytes.len());
        ends.sort_unstable();
        let mut from = 0;
        for end in ends {
            held.extend_from_slice(&bytes[from..end]);
            from = end;
            loop {
                let len = match scanner.scan(&held, true) {
                    Ok(Found::More) => {
                        assert_lends_own_arguments(&scanner, &held);
                        break;
                    }
                    Ok(Found::Request { len }) => {
                        let args = scanner.spans().iter().map(|span| span.of(&held).to_vec());
                        seen.push(args.collect());
                        len
                    }
                    Ok(Found::Inline { len }) => {
                        match split_inline(&held[..len]) {
                            Ok(words) => seen.push(words),
                            Err(violation) => return (seen, Some(violation)),
                        }
                        len
                    }
                    Ok(Found::Nothing { len }) => len,
                    Err(violation) => return (seen, Some(violation)),
                };
                held.drain(..len);
            }
        }
        (seen, None)
    }

    /// Asserts that the scanner shows the same arguments of an incomplete request as a new scanner
    /// finds in its bytes.
    fn assert_lends_own_arguments(scanner: &RequestScanner, held: &[u8]) {
        let mut fresh = RequestScanner::default();
        assert_eq!(fresh.scan(held, true), Ok(Found::More));
        assert_eq!(scanner.spans(), fresh.spans());
        assert_eq!(scanner.argc(), fresh.argc());
        assert_eq!(scanner.len_at_least(), fresh.len_at_least());
    }

    fn request() -> impl Strategy<Value = Vec<Vec<u8>>> {
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..8)
    }

    /// An incomplete line or header shows no arguments of the request before it.
    #[test]
    fn incomplete_request_has_no_arguments_of_the_one_before() {
        let complete = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n".as_slice();
        let long = format!("*1\r\n$120\r\n{}\r\n", "x".repeat(120));
        for before in [complete, long.as_bytes()] {
            for begun in ["a", "*", "*1", "*1\r", "*01", "\0", ""] {
                let mut scanner = RequestScanner::default();
                let len = before.len();
                assert_eq!(scanner.scan(before, true), Ok(Found::Request { len }));
                assert_eq!(scanner.scan(begun.as_bytes(), true), Ok(Found::More));
                assert_eq!(scanner.argc(), 0, "{begun:?}");
                assert!(scanner.spans().is_empty(), "{begun:?}");
                assert_eq!(scanner.len_at_least(), 0, "{begun:?}");
            }
        }
    }

    /// Bytes that arrive one at a time are searched at most twice on average.
    #[test]
    fn bytes_one_at_a_time_are_searched_once() {
        let fill = |beginning: &str, byte: u8| {
            let mut bytes = beginning.as_bytes().to_vec();
            bytes.resize(LINE_BYTES_MAX - 2, byte);
            bytes
        };
        let header = fill("*1\r\n$", b'0');
        let mut arguments = b"*10000\r\n".to_vec();
        arguments.extend_from_slice(&b"$1\r\na\r\n".repeat(9_000));
        let lines = [fill("GET ", b'a'), fill("\0", b'a'), fill("*", b'0')];
        for bytes in lines.into_iter().chain([header, arguments]) {
            let mut scanner = RequestScanner::default();
            let before = SEARCHED.get();
            for end in 1..=bytes.len() {
                assert_eq!(scanner.scan(&bytes[..end], true), Ok(Found::More));
            }
            let searched = SEARCHED.get() - before;
            assert!(searched <= 2 * bytes.len(), "{searched} of {}", bytes.len());
        }
    }

    proptest! {
        /// Valid requests are found in any chunking of their bytes.
        #[test]
        fn any_chunking_gives_the_requests_sent(
            requests in prop::collection::vec(request(), 1..6),
            cuts in prop::collection::vec(any::<usize>(), 0..30),
        ) {
            let mut bytes = Vec::new();
            for args in &requests {
                encode::request(&mut bytes, args);
            }
            prop_assert_eq!(events(&bytes, &cuts), (requests, None));
        }

        /// Any chunking of any bytes gives the same requests and the same violation.
        #[test]
        fn any_chunking_of_any_bytes_gives_the_same_events(
            bytes in prop::collection::vec(
                prop_oneof![any::<u8>(), Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), b'0'..=b'9', Just(b'"')], 0..200),
            cuts in prop::collection::vec(any::<usize>(), 0..30),
        ) {
            prop_assert_eq!(events(&bytes, &cuts), events(&bytes, &[]));
        }

        /// A tail ends at the end of its request.
        #[test]
        fn tail_ends_at_the_end_of_the_request(
            args in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..8),
            cut: usize,
            step in 1usize..50,
        ) {
            let mut bytes = Vec::new();
            encode::request(&mut bytes, &args);
            let len = bytes.len();
            let header = 4;
            let cut = header + cut % (len - header);
            let mut scanner = RequestScanner::default();
            prop_assert_eq!(scanner.scan(&bytes[..cut], true), Ok(Found::More));
            bytes.extend_from_slice(b"*1\r\n$4\r\nPING\r\n");
            let mut tail = scanner.tail();
            let mut at = scanner.scanned();
            let mut done = false;
            while !done {
                let chunk = &bytes[at..(at + step).min(bytes.len())];
                let (used, ended) = tail.scan(chunk).expect("the bytes are good");
                at += used;
                done = ended;
            }
            prop_assert_eq!(at, len);
        }
    }

    /// Violations are found in the same order as by Redis.
    #[test]
    fn violations_are_found_in_the_order_of_redis() {
        let violation = |bytes: &[u8]| events(bytes, &[]).1;
        assert_eq!(violation(b"*2147483648\r\n"), Some(Violation::ArrayLength));
        assert_eq!(violation(b"*1x\r\n"), Some(Violation::ArrayLength));
        assert_eq!(violation(b"*1\r\n:5\r\n"), Some(Violation::NotABulk(b':')));
        assert_eq!(violation(b"*1\r\n:5"), None);
        assert_eq!(violation(b"*1\r\n$-1\r\n"), Some(Violation::BulkLength));
        assert_eq!(
            violation(b"*1\r\n$536870913\r\n"),
            Some(Violation::BulkLength)
        );
        assert_eq!(violation(b"*1\r\n$03\r\n"), Some(Violation::BulkLength));
        assert_eq!(violation(b"*1\r\n$4\r\nPINGxx"), Some(Violation::LineEnd));
        assert_eq!(violation(b"*1\r\n$4\rxPING"), Some(Violation::LineEnd));
        assert_eq!(violation(b"*1\rx"), Some(Violation::LineEnd));
        assert_eq!(violation(b"GET \"a\r\n"), Some(Violation::Quotes));
        // A client with TLS waits for an answer, and sends no line end.
        assert_eq!(violation(&[0x16]), None);
        assert_eq!(violation(&[0x16, 3, 1, 2, 0]), Some(Violation::Tls));
        let long = vec![b'1'; LINE_BYTES_MAX + 1];
        assert_eq!(violation(&long), Some(Violation::LongLine));
        assert_eq!(
            violation(&[b"*".as_slice(), &long].concat()),
            Some(Violation::LongArrayHeader)
        );
        assert_eq!(
            violation(&[b"*1\r\n$".as_slice(), &long].concat()),
            Some(Violation::LongBulkHeader)
        );
    }

    /// Before authentication the number and length of arguments are bounded.
    #[test]
    fn unauthenticated_requests_are_bounded() {
        let scan = |bytes: &[u8]| RequestScanner::default().scan(bytes, false);
        assert_eq!(scan(b"*11\r\n"), Err(Violation::UnauthenticatedArrayLength));
        assert_eq!(
            scan(b"*2\r\n$16385\r\n"),
            Err(Violation::UnauthenticatedBulkLength)
        );
        assert_eq!(scan(b"*10\r\n$16384\r\n"), Ok(Found::More));
    }

    /// The words of an inline request are split as by Redis.
    #[test]
    fn inline_words_are_split_as_by_redis() {
        let words = |line: &str| split_inline(line.as_bytes()).map(|words| words.concat());
        assert_eq!(
            words("  set  k \"a b\\x41\\n\" \r\n").as_deref(),
            Ok(b"setka bA\n".as_slice())
        );
        assert_eq!(
            words("'it\\'s \\n'\r\n").as_deref(),
            Ok(b"it's \\n".as_slice())
        );
        assert_eq!(words("\"a\"b"), Err(Violation::Quotes));
        assert_eq!(words("a\"b c\"").as_deref(), Ok(b"ab c".as_slice()));
        assert_eq!(split_inline(b"\"\"\r\n"), Ok(vec![Vec::new()]));
    }
}
