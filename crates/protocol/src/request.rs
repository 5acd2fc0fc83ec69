//! Finding where a client's request ends and where its arguments lie.
//!
//! Redis accepts two forms: an array of bulk strings, and a line of words. The limits, the order of
//! the checks and the error texts are those of Redis's `processMultibulkBuffer` and
//! `processInlineBuffer` (networking.c): a client meets the same answer to the same bytes.
//!
//! ```text
//!   *3\r\n $3\r\n SET\r\n $3\r\n key\r\n $5\r\n value\r\n
//!              ^-^            ^-^           ^---^
//!            spans[0]       spans[1]       spans[2]
//! ```
//!
//! The bytes of a request are forwarded as they came. Redis skips the two bytes that end a line or
//! a bulk without looking at them; Valkey 9.1 compares them, and closes the connection. Ours is
//! shared, so the stricter reading is the one for all.

use crate::number;

/// Redis's `PROTO_INLINE_MAX_SIZE`: the longest line, whether a header or a whole inline request.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Redis's `proto-max-bulk-len` by default: the longest argument.
pub const BULK_BYTES_MAX: i64 = 512 << 20;
/// The most arguments of a request, as Redis has it since 7.0; 6.2 took 1,048,576.
pub const ARGS_MAX: i64 = i32::MAX as i64;
/// What a client that has to authenticate first may send: this many arguments ...
pub const UNAUTHENTICATED_ARGS_MAX: i64 = 10;
/// ... of this many bytes.
pub const UNAUTHENTICATED_BULK_BYTES_MAX: i64 = 16 << 10;

/// Where an argument lies in the bytes of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Of its first byte.
    pub start: u32,
    /// Behind its last byte.
    pub end: u32,
}

impl Span {
    /// The argument itself.
    #[inline]
    pub fn of<'a>(&self, request: &'a [u8]) -> &'a [u8] {
        &request[self.start as usize..self.end as usize]
    }
}

/// What the scanner found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A request in `len` bytes, its arguments in [`Scanner::spans`].
    Request {
        /// Its length with all headers.
        len: usize,
    },
    /// A line of words in `len` bytes, to be read by [`split_inline`].
    Inline {
        /// With the end of the line.
        len: usize,
    },
    /// `len` bytes that ask for nothing: an empty line, or an array of no or fewer elements.
    Nothing {
        /// To be skipped.
        len: usize,
    },
    /// The request does not end in these bytes. Call again with the same bytes and more.
    More,
}

/// A client broke the protocol. Redis answers `-ERR Protocol error: ` with this text, and closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// An array header without end.
    LongArrayHeader,
    /// An array header that is no number, or too large.
    ArrayLength,
    /// Too many arguments before AUTH.
    UnauthenticatedArrayLength,
    /// A bulk header without end.
    LongBulkHeader,
    /// Something else where a bulk string must be.
    NotABulk(u8),
    /// A bulk header that is no number, or too large.
    BulkLength,
    /// Too long an argument before AUTH.
    UnauthenticatedBulkLength,
    /// A line or a bulk does not end with CR LF.
    LineEnd,
    /// A line without end.
    LongLine,
    /// A line whose quotes do not match.
    Quotes,
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
        });
        if let Violation::NotABulk(got) = self {
            // Redis prints a C string: a byte that ends the string, or the line, would be lost or
            // worse.
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

/// Scans one request at a time; keeps its place when the bytes run out.
#[derive(Clone, Debug, Default)]
pub struct Scanner {
    /// The next byte to look at, from the start of the request.
    pos: usize,
    /// How many arguments the header announced; 0 before the header.
    argc: u32,
    /// The arguments found so far.
    spans: Vec<Span>,
    /// The part of the request that starts at `pos` and has not come whole.
    part: Part,
    /// See [`Scanner::hold_whole`].
    is_held_whole: bool,
}

/// The part of a request at which the bytes ran out. Its bytes are not looked at again.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// A header or an inline request.
    Line {
        /// Bytes that were searched for the end of the line: of a header behind its type byte.
        searched: u32,
    },
    /// An argument whose header was read.
    Bulk {
        /// Its length without the two bytes that end it.
        len: u32,
    },
}

impl Default for Part {
    fn default() -> Self {
        Part::Line { searched: 0 }
    }
}

impl Part {
    /// Bytes of an argument that must still come, with the two that end it; 0 for a line.
    fn bulk_bytes(self) -> u64 {
        match self {
            Part::Line { .. } => 0,
            Part::Bulk { len } => u64::from(len) + 2,
        }
    }
}

impl Scanner {
    /// The arguments found: all of them after [`Found::Request`], those of the present request
    /// alone after [`Found::More`].
    #[inline]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// How many arguments the request has by its own header; 0 while that is unknown.
    #[inline]
    pub fn argc(&self) -> usize {
        self.argc as usize
    }

    /// Bytes of memory that the arguments found so far take.
    pub fn held_bytes(&self) -> usize {
        size_of_val(self.spans.as_slice())
    }

    /// The same with the room behind them, and its own.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Scanner>() + self.spans.capacity() * size_of::<Span>()
    }

    /// How many bytes from its start the request is known to have.
    pub fn len_at_least(&self) -> u64 {
        self.pos as u64 + self.part.bulk_bytes()
    }

    /// What is left of a request behind its first [`Scanner::scanned`] bytes, for who passes it on
    /// without holding it.
    pub fn tail(&self) -> Tail {
        let bulks_left = self.argc - self.spans.len() as u32;
        Tail {
            args_left: bulks_left - u32::from(matches!(self.part, Part::Bulk { .. })),
            bulk_left: self.part.bulk_bytes(),
            header: Vec::new(),
        }
    }

    /// Notes that the caller holds this request until it is whole, however large it is.
    pub fn hold_whole(&mut self) {
        self.is_held_whole = true;
    }

    /// Whether the caller holds this request until it is whole.
    pub fn is_held_whole(&self) -> bool {
        self.is_held_whole
    }

    /// How far the request was scanned.
    pub fn scanned(&self) -> usize {
        self.pos
    }

    /// Forgets the request; keeps the memory, unless a request of many arguments made it large.
    #[inline]
    pub fn reset(&mut self) {
        self.pos = 0;
        self.argc = 0;
        self.part = Part::default();
        self.is_held_whole = false;
        self.spans.clear();
        if self.spans.capacity() > 4096 {
            self.spans.shrink_to(64);
        }
    }

    /// Looks for the end of the request that starts at the first byte of `bytes`. After
    /// [`Found::More`] the same bytes must come again, with more behind them; after anything else
    /// the scanner starts afresh.
    #[inline]
    pub fn scan(&mut self, bytes: &[u8], trusted: bool) -> Result<Found, Violation> {
        if self.pos == 0 {
            // Most requests are a few short arguments that came whole.
            if let Some(len) = self.scan_short(bytes) {
                return Ok(Found::Request { len });
            }
            // The arguments that are still here are those of the request before.
            let part = self.part;
            self.reset();
            let searched = match part {
                Part::Line { searched } => searched as usize,
                Part::Bulk { .. } => 0,
            };
            match bytes.first() {
                None => return Ok(Found::More),
                Some(b'*') => {}
                Some(_) => return self.scan_inline(bytes, searched),
            }
            let (count, next) = match header(bytes, 1, searched) {
                Header::Number(count, next) => (count, next),
                Header::More(searched) => {
                    self.part = Part::Line { searched };
                    return Ok(Found::More);
                }
                Header::Long => return Err(Violation::LongArrayHeader),
                Header::LineEnd => return Err(Violation::LineEnd),
                Header::Bad => return Err(Violation::ArrayLength),
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

    /// The end of a request that lies whole in `bytes`, if it has fewer than ten arguments of fewer
    /// than a hundred bytes each: no limit concerns it. Anything else, and anything odd, is left to
    /// the long way.
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
        self.part = Part::default();
        Some(at)
    }

    #[inline]
    fn scan_bulks(&mut self, bytes: &[u8], trusted: bool) -> Result<Found, Violation> {
        let mut pos = self.pos;
        while self.spans.len() < self.argc as usize {
            let len = match std::mem::take(&mut self.part) {
                Part::Bulk { len } => len,
                Part::Line { searched } => {
                    let (len, next) = match header(bytes, pos + 1, searched as usize) {
                        // Redis waits for the end of the line before it looks at the first byte.
                        Header::More(searched) => {
                            self.part = Part::Line { searched };
                            break;
                        }
                        Header::Long => return Err(Violation::LongBulkHeader),
                        _ if bytes[pos] != b'$' => return Err(Violation::NotABulk(bytes[pos])),
                        Header::LineEnd => return Err(Violation::LineEnd),
                        Header::Bad => return Err(Violation::BulkLength),
                        Header::Number(len, next) => (len, next),
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
                self.part = Part::Bulk { len };
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
        // `spans` stays for the caller; the next scan starts afresh.
        self.pos = 0;
        Ok(Found::Request { len: pos })
    }

    /// A line of words, of which `searched` bytes hold no end.
    #[cold]
    fn scan_inline(&mut self, bytes: &[u8], searched: usize) -> Result<Found, Violation> {
        // Redis looks for the end of the line with `strchr`: it never finds one behind a zero byte.
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
                // The next search meets a zero byte at once.
                self.part = Part::Line {
                    searched: end.unwrap_or(bytes.len()) as u32,
                };
                Ok(Found::More)
            }
        }
    }
}

/// Where the first such byte is, if not among the first `searched`.
fn position(bytes: &[u8], searched: usize, is: impl Fn(u8) -> bool) -> Option<usize> {
    let rest = bytes.get(searched..)?;
    let found = rest.iter().position(|&byte| is(byte));
    #[cfg(test)]
    tests::SEARCHED.set(tests::SEARCHED.get() + found.map_or(rest.len(), |at| at + 1));
    found.map(|at| searched + at)
}

/// The rest of a request too large to be held: finds its end without keeping its bytes.
#[derive(Clone, Debug)]
pub struct Tail {
    /// Arguments whose header has not been read.
    args_left: u32,
    /// Bytes to come of the present argument, with the two that end it.
    bulk_left: u64,
    /// The part of a header that has come.
    header: Vec<u8>,
}

impl Tail {
    /// How many of `bytes` belong to the request, and whether it ends there.
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
                // The two bytes that end it.
                if byte != if self.bulk_left == 2 { b'\r' } else { b'\n' } {
                    return Err(Violation::LineEnd);
                }
                at += 1;
                self.bulk_left -= 1;
                continue;
            }
            // A header is a few bytes of a large request: one at a time is soon enough.
            self.header.push(byte);
            at += 1;
            // Nothing can be said before the byte behind the first CR; looking at all of them again
            // with every byte would let a client make us work for nothing.
            let ended = matches!(self.header[..], [_, .., b'\r', _]);
            if !ended && self.header.len() <= LINE_BYTES_MAX {
                continue;
            }
            let (len, _) = match header(&self.header, 1, 0) {
                Header::More(_) => continue,
                Header::Long => return Err(Violation::LongBulkHeader),
                _ if self.header[0] != b'$' => return Err(Violation::NotABulk(self.header[0])),
                Header::LineEnd => return Err(Violation::LineEnd),
                Header::Bad => return Err(Violation::BulkLength),
                Header::Number(len, next) => (len, next),
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

enum Header {
    /// The number, and where the next line starts.
    Number(i64, usize),
    /// The end of the line has not come. So many bytes of it, without the type byte, hold none.
    More(u32),
    /// It has not come and never may.
    Long,
    /// Something else follows its CR than LF.
    LineEnd,
    /// The line is no number.
    Bad,
}

/// Reads the number of a header line from behind its type byte, of which `searched` bytes hold no
/// end.
#[inline]
fn header(bytes: &[u8], start: usize, searched: usize) -> Header {
    // Nearly every header is one to six digits: read them in one pass, and leave whatever is odd
    // (a sign, a zero in front, an overflow, a line cut short) to the slow way.
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
        return Header::Number(i64::from(value), at + 2);
    }
    odd_header(bytes, start, searched)
}

#[cold]
fn odd_header(bytes: &[u8], start: usize, searched: usize) -> Header {
    let line = bytes.get(start..).unwrap_or_default();
    match position(line, searched, |byte| byte == b'\r') {
        None if line.len() + 1 > LINE_BYTES_MAX => Header::Long,
        None => Header::More(line.len() as u32),
        Some(end) => match line.get(end + 1) {
            None => Header::More(end as u32),
            Some(b'\n') => match number::parse(&line[..end]) {
                Some(value) => Header::Number(value, start + end + 2),
                None => Header::Bad,
            },
            Some(_) => Header::LineEnd,
        },
    }
}

/// The words of an inline request, read as Redis's `sdssplitargs` does: `"..."` with escapes,
/// `'...'` with `\'` alone, and nothing but space behind a closing quote.
pub fn split_inline(line: &[u8]) -> Result<Vec<Vec<u8>>, Violation> {
    let mut words = Vec::new();
    let mut at = 0;
    // To Redis the line is a C string: it ends at the first zero byte.
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
                // Fewer than what counts as space between two words: a vertical tab is part of one.
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

/// C's `isspace` in the C locale.
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
        /// Bytes in which the end of a line was searched, over all calls.
        pub(super) static SEARCHED: Cell<usize> = const { Cell::new(0) };
    }

    /// Every event of `bytes`, scanned whole or in pieces: requests as their arguments.
    fn events(bytes: &[u8], cuts: &[usize]) -> (Vec<Vec<Vec<u8>>>, Option<Violation>) {
        let mut scanner = Scanner::default();
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

    /// What the scanner shows of an incomplete request is what a new one finds in the same bytes.
    fn assert_lends_own_arguments(scanner: &Scanner, held: &[u8]) {
        let mut fresh = Scanner::default();
        assert_eq!(fresh.scan(held, true), Ok(Found::More));
        assert_eq!(scanner.spans(), fresh.spans());
        assert_eq!(scanner.argc(), fresh.argc());
        assert_eq!(scanner.len_at_least(), fresh.len_at_least());
    }

    fn request() -> impl Strategy<Value = Vec<Vec<u8>>> {
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..8)
    }

    /// An incomplete line or header has no arguments, whatever request came before it.
    #[test]
    fn incomplete_request_has_no_arguments_of_the_one_before() {
        let complete = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n".as_slice();
        let long = format!("*1\r\n$120\r\n{}\r\n", "x".repeat(120));
        for before in [complete, long.as_bytes()] {
            for begun in ["a", "*", "*1", "*1\r", "*01", "\0", ""] {
                let mut scanner = Scanner::default();
                let len = before.len();
                assert_eq!(scanner.scan(before, true), Ok(Found::Request { len }));
                assert_eq!(scanner.scan(begun.as_bytes(), true), Ok(Found::More));
                assert_eq!(scanner.argc(), 0, "{begun:?}");
                assert!(scanner.spans().is_empty(), "{begun:?}");
                assert_eq!(scanner.len_at_least(), 0, "{begun:?}");
            }
        }
    }

    /// Bytes that come one at a time are each searched a few times at most.
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
            let mut scanner = Scanner::default();
            let before = SEARCHED.get();
            for end in 1..=bytes.len() {
                assert_eq!(scanner.scan(&bytes[..end], true), Ok(Found::More));
            }
            let searched = SEARCHED.get() - before;
            assert!(searched <= 2 * bytes.len(), "{searched} of {}", bytes.len());
        }
    }

    proptest! {
        #[test]
        fn any_chunking_of_good_bytes_gives_the_requests_that_were_sent(
            requests in prop::collection::vec(request(), 1..6),
            cuts in prop::collection::vec(any::<usize>(), 0..30),
        ) {
            let mut bytes = Vec::new();
            for args in &requests {
                encode::request(&mut bytes, args);
            }
            prop_assert_eq!(events(&bytes, &cuts), (requests, None));
        }

        #[test]
        fn any_chunking_of_any_bytes_gives_the_same_events(
            bytes in prop::collection::vec(
                prop_oneof![any::<u8>(), Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), b'0'..=b'9', Just(b'"')], 0..200),
            cuts in prop::collection::vec(any::<usize>(), 0..30),
        ) {
            prop_assert_eq!(events(&bytes, &cuts), events(&bytes, &[]));
        }

        #[test]
        fn a_tail_ends_where_the_request_ends(
            args in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..8),
            cut: usize,
            step in 1usize..50,
        ) {
            let mut bytes = Vec::new();
            encode::request(&mut bytes, &args);
            let len = bytes.len();
            let header = 4;
            let cut = header + cut % (len - header);
            let mut scanner = Scanner::default();
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

    #[test]
    fn violations_are_found_in_the_order_redis_finds_them() {
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

    #[test]
    fn who_is_not_authenticated_may_send_little() {
        let scan = |bytes: &[u8]| Scanner::default().scan(bytes, false);
        assert_eq!(scan(b"*11\r\n"), Err(Violation::UnauthenticatedArrayLength));
        assert_eq!(
            scan(b"*2\r\n$16385\r\n"),
            Err(Violation::UnauthenticatedBulkLength)
        );
        assert_eq!(scan(b"*10\r\n$16384\r\n"), Ok(Found::More));
    }

    #[test]
    fn inline_words_are_split_as_redis_splits_them() {
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
