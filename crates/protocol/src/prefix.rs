//! Key prefixes that a server does not see: removed from the keys of requests, restored in the keys
//! of replies.
//!
//! ```text
//!   MGET user:1 user:2    ->   MGET 1 2          the table says which arguments are keys
//!   BLPOP user:q 0        ->   BLPOP q 0
//!        [user:q, x]      <-        [q, x]       the table says which elements of replies are keys
//! ```

use std::cell::Cell;

use crate::commands::{Command, KeyFlags, KeyScan, Names};
use crate::request::Span;
use crate::{encode, number, reply};

/// The reason why the prefix cannot be removed from the keys of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unstripped {
    /// The keys of the request cannot be found.
    Unknown,
    /// The request sends keys to another server, where the names without the prefix would be wrong.
    HandsOn,
    /// A key does not begin with the prefix.
    Foreign,
}

/// Finds the keys among the arguments at `spans`, which are the ones that have arrived. Returns
/// their indexes, ascending, each once.
///
/// # Errors
/// When there may be other keys. Then the server refuses the request, or the command is newer than
/// the table.
pub fn keys_of(
    command: &Command,
    bytes: &[u8],
    argc: usize,
    spans: &[Span],
) -> Result<Vec<usize>, Unstripped> {
    let is_incomplete = Cell::new(false);
    let arg = |at: usize| match spans.get(at) {
        Some(span) => span.of(bytes),
        None => {
            is_incomplete.set(true);
            b""
        }
    };
    let mut keys = Vec::new();
    let found = command.keys(argc, arg, |at, what| {
        if !what.has(KeyFlags::NOT_KEY) {
            keys.push(at);
        }
    });
    keys.sort_unstable();
    keys.dedup();
    // The first argument behind the command and its subcommand.
    let first = 1 + usize::from(command.name.contains('|'));
    // PFMERGE may have no source key. Its spec then fails, but every argument is a key that was
    // found.
    let is_known = found.is_ok() || argc.saturating_sub(first) <= keys.len();
    // A container with an unknown subcommand, whose other subcommands have keys.
    let is_unknown_subcommand = command.is_container()
        && argc > first
        && command.subcommands().any(|sub| !sub.get().keys.is_empty());
    let has_arrived = keys.last().is_none_or(|last| *last < spans.len());
    if !is_known || is_unknown_subcommand || is_incomplete.get() || !has_arrived {
        return Err(Unstripped::Unknown);
    }
    Ok(keys)
}

/// Appends a request, or its beginning, without `prefix` in front of its `keys` (see [`keys_of`]).
///
/// # Errors
/// When a key does not begin with the prefix, or the request sends keys to another server.
pub fn take_off(
    command: &Command,
    bytes: &[u8],
    spans: &[Span],
    keys: &[usize],
    prefix: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), Unstripped> {
    if command.key_scan == KeyScan::Migrate {
        return Err(Unstripped::HandsOn);
    }
    let has_prefix = |key: &usize| {
        let span = spans.get(*key);
        span.is_some_and(|span| span.of(bytes).starts_with(prefix))
    };
    if !keys.iter().all(has_prefix) {
        return Err(Unstripped::Foreign);
    }
    out.reserve(bytes.len());
    let shorter = keys.iter().map(|&key| {
        let name = spans[key].of(bytes);
        (key, &name[prefix.len()..])
    });
    replace(bytes, spans, shorter, out);
    Ok(())
}

/// Appends a request with some arguments replaced. `others` has their indexes, ascending, and the
/// new arguments.
pub fn replace<'a>(
    bytes: &[u8],
    spans: &[Span],
    others: impl Iterator<Item = (usize, &'a [u8])>,
    out: &mut Vec<u8>,
) {
    let mut at = 0;
    for (index, other) in others {
        let Some(span) = spans.get(index) else {
            continue;
        };
        let (start, end) = (span.start as usize, span.end as usize);
        // The header of the argument begins at the dollar sign in front of it.
        let header = bytes[at..start].iter().rposition(|&byte| byte == b'$');
        out.extend_from_slice(&bytes[at..at + header.unwrap_or(start - at)]);
        encode::bulk(out, other);
        at = end + 2;
    }
    out.extend_from_slice(&bytes[at..]);
}

/// A reply has another structure than replies to its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misshapen;

/// Appends a complete reply with `prefix` in front of its keys. From a list of keys, keys that are
/// not `wanted` are left out; `wanted` gets the key with its prefix.
///
/// # Errors
/// When the reply has a wrong structure. Discard the appended bytes then.
pub fn put_back(
    reply: &[u8],
    names: Names,
    prefix: &[u8],
    wanted: impl Fn(&[u8]) -> bool,
    out: &mut Vec<u8>,
) -> Result<(), Misshapen> {
    let is_nil = [&b"*-1\r\n"[..], b"$-1\r\n", b"_\r\n"].contains(&reply);
    if names == Names::None || is_nil || matches!(reply.first(), Some(b'-' | b'!')) {
        out.extend_from_slice(reply);
        return Ok(());
    }
    let mut rest = ReplyReader { bytes: reply };
    match names {
        Names::None => {}
        Names::Whole => rest.name(prefix, out)?,
        Names::Each => rest.list(prefix, wanted, out)?,
        Names::First => {
            let (kind, count) = rest.aggregate()?;
            if kind != b'*' || count == 0 {
                return Err(Misshapen);
            }
            encode::array(out, count);
            rest.name(prefix, out)?;
            rest.values(count - 1, out)?;
        }
        Names::Second => {
            let (kind, count) = rest.aggregate()?;
            if kind != b'*' || count != 2 {
                return Err(Misshapen);
            }
            encode::array(out, 2);
            rest.values(1, out)?;
            rest.list(prefix, wanted, out)?;
        }
        Names::Streams => {
            let (kind, count) = rest.aggregate()?;
            header(kind, count, out);
            for _ in 0..count {
                if kind == b'*' {
                    let (inner, of_two) = rest.aggregate()?;
                    if inner != b'*' || of_two != 2 {
                        return Err(Misshapen);
                    }
                    encode::array(out, 2);
                } else if kind != b'%' {
                    return Err(Misshapen);
                }
                rest.name(prefix, out)?;
                rest.values(1, out)?;
            }
        }
    }
    match rest.bytes {
        [] => Ok(()),
        _ => Err(Misshapen),
    }
}

fn header(kind: u8, count: usize, out: &mut Vec<u8>) {
    out.push(kind);
    number::append(out, i64::try_from(count).unwrap_or(i64::MAX));
    out.extend_from_slice(b"\r\n");
}

/// Reads a reply value by value; holds the bytes that are not read yet.
struct ReplyReader<'a> {
    bytes: &'a [u8],
}

impl<'a> ReplyReader<'a> {
    /// Reads the first line of a value: its type byte and the number behind it.
    fn line(&mut self) -> Result<(u8, usize), Misshapen> {
        let end = self.bytes.iter().position(|&byte| byte == b'\r');
        let end = end.ok_or(Misshapen)?;
        let (kind, digits) = self.bytes[..end].split_first().ok_or(Misshapen)?;
        let count = number::parse(digits).and_then(|count| usize::try_from(count).ok());
        self.bytes = self.bytes.get(end + 2..).ok_or(Misshapen)?;
        Ok((*kind, count.ok_or(Misshapen)?))
    }

    /// Reads the header of an aggregate: its type byte and its number of elements or pairs.
    fn aggregate(&mut self) -> Result<(u8, usize), Misshapen> {
        match self.line()? {
            // Each element has at least one byte, so a larger count is wrong.
            (kind @ (b'*' | b'~' | b'%'), count) if count <= self.bytes.len() => Ok((kind, count)),
            _ => Err(Misshapen),
        }
    }

    fn text(&mut self) -> Result<&'a [u8], Misshapen> {
        let (b'$', len) = self.line()? else {
            return Err(Misshapen);
        };
        let (text, rest) = self.bytes.split_at_checked(len).ok_or(Misshapen)?;
        self.bytes = rest.strip_prefix(b"\r\n").ok_or(Misshapen)?;
        Ok(text)
    }

    /// Copies a key with the prefix in front.
    fn name(&mut self, prefix: &[u8], out: &mut Vec<u8>) -> Result<(), Misshapen> {
        let name = self.text()?;
        out.push(b'$');
        number::append(out, (prefix.len() + name.len()) as i64);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(prefix);
        out.extend_from_slice(name);
        out.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// Copies a list of keys with the prefix in front of each, without unwanted keys.
    fn list(
        &mut self,
        prefix: &[u8],
        wanted: impl Fn(&[u8]) -> bool,
        out: &mut Vec<u8>,
    ) -> Result<(), Misshapen> {
        let (kind, count) = self.aggregate()?;
        if kind == b'%' {
            return Err(Misshapen);
        }
        let (mut kept, mut names) = (0, Vec::with_capacity(self.bytes.len()));
        let mut whole = prefix.to_vec();
        for _ in 0..count {
            let name = self.text()?;
            whole.truncate(prefix.len());
            whole.extend_from_slice(name);
            if wanted(&whole) {
                encode::bulk(&mut names, &whole);
                kept += 1;
            }
        }
        header(kind, kept, out);
        out.extend_from_slice(&names);
        Ok(())
    }

    /// Copies this many values unchanged.
    fn values(&mut self, count: usize, out: &mut Vec<u8>) -> Result<(), Misshapen> {
        for _ in 0..count {
            let Ok(reply::Scanned::Whole(len)) = reply::ReplyScanner::default().scan(self.bytes)
            else {
                return Err(Misshapen);
            };
            let (value, rest) = self.bytes.split_at(len);
            out.extend_from_slice(value);
            self.bytes = rest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::commands::resolve;
    use crate::request::{Found, RequestScanner};

    fn words(line: &str) -> Vec<Vec<u8>> {
        let words = line.split(' ');
        words.map(|word| word.as_bytes().to_vec()).collect()
    }

    /// The words of a request without `p:` in front of its keys.
    fn stripped(line: &str) -> Result<String, Unstripped> {
        let args = words(line);
        let mut bytes = Vec::new();
        encode::request(&mut bytes, &args);
        let mut scanner = RequestScanner::default();
        let len = bytes.len();
        assert_eq!(scanner.scan(&bytes, true), Ok(Found::Request { len }));
        let spans = scanner.spans();
        let command = resolve(args.len(), |at| &args[at]).expect(line).get();
        let keys = keys_of(command, &bytes, spans.len(), spans)?;
        let mut out = Vec::new();
        take_off(command, &bytes, spans, &keys, b"p:", &mut out)?;
        let mut scanner = RequestScanner::default();
        let len = out.len();
        assert_eq!(
            scanner.scan(&out, true),
            Ok(Found::Request { len }),
            "{line}"
        );
        let words = scanner.spans().iter().map(|span| span.of(&out));
        let words: Vec<_> = words.map(String::from_utf8_lossy).collect();
        Ok(words.join(" "))
    }

    /// The prefix is removed from the keys of a request, and no other argument changes.
    #[test]
    fn prefix_is_removed_from_keys_alone() {
        for (asked, expected) in [
            ("GET p:a", "GET a"),
            ("SET p:p:a p:b", "SET p:a p:b"),
            ("MSET p:a p:1 p:b p:2", "MSET a p:1 b p:2"),
            ("EVAL p:x 2 p:a p:b p:c", "EVAL p:x 2 a b p:c"),
            (
                "ZUNIONSTORE p:d 2 p:a p:b WEIGHTS 1 2",
                "ZUNIONSTORE d 2 a b WEIGHTS 1 2",
            ),
            (
                "XREAD COUNT 1 STREAMS p:a p:b 0 0",
                "XREAD COUNT 1 STREAMS a b 0 0",
            ),
            (
                "SORT p:a BY p:x GET # STORE p:d",
                "SORT a BY p:x GET # STORE d",
            ),
            (
                "GEORADIUS p:g 1 2 3 km STORE p:d",
                "GEORADIUS g 1 2 3 km STORE d",
            ),
            ("OBJECT ENCODING p:a", "OBJECT ENCODING a"),
            ("BITOP AND p:d p:a p:b", "BITOP AND d a b"),
            ("PFMERGE p:a", "PFMERGE a"),
            ("BLPOP p:a p:b 0", "BLPOP a b 0"),
            // A key that is the prefix alone, and a request without a key.
            ("GET p:", "GET "),
            ("GET p:a x", "GET a x"),
            ("GET", "GET"),
            ("PING p:a", "PING p:a"),
            ("EVAL x 0 p:a", "EVAL x 0 p:a"),
            // Channels are not keys.
            ("SPUBLISH p:a x", "SPUBLISH p:a x"),
            ("COMMAND GETKEYS GET p:a", "COMMAND GETKEYS GET p:a"),
        ] {
            assert_eq!(stripped(asked).as_deref(), Ok(expected), "{asked}");
        }
        for (asked, reason) in [
            ("GET q:a", Unstripped::Foreign),
            ("MGET p:a q:a", Unstripped::Foreign),
            ("GET p", Unstripped::Foreign),
            ("EVAL x 3 p:a p:b", Unstripped::Unknown),
            ("EVAL x n p:a", Unstripped::Unknown),
            ("BLPOP p:a", Unstripped::Unknown),
            ("XREAD STREAMS", Unstripped::Unknown),
            ("OBJECT NEW p:a", Unstripped::Unknown),
            ("XINFO p:a", Unstripped::Unknown),
            ("MIGRATE h 1 p:a 0 5", Unstripped::HandsOn),
            ("MIGRATE h 1  0 5 KEYS p:a", Unstripped::HandsOn),
        ] {
            assert_eq!(stripped(asked), Err(reason), "{asked}");
        }
    }

    /// In an incomplete request all keys must have arrived.
    #[test]
    fn incomplete_request_needs_all_its_keys() {
        let line = "MSET p:a 1 p:b 2";
        let mut bytes = Vec::new();
        encode::request(&mut bytes, &words(line));
        let command = resolve(1, |_| b"MSET").expect("MSET is in the table").get();
        for len in 0..bytes.len() {
            let mut scanner = RequestScanner::default();
            let _ = scanner.scan(&bytes[..len], true);
            let (spans, head) = (scanner.spans(), &bytes[..scanner.scanned()]);
            let keys = keys_of(command, head, 5, spans);
            match spans.len() {
                ..4 => assert_eq!(keys, Err(Unstripped::Unknown), "{len}"),
                _ => {
                    let (keys, mut out) = (keys.expect("all keys have arrived"), Vec::new());
                    let taken = take_off(command, head, spans, &keys, b"p:", &mut out);
                    assert_eq!(taken, Ok(()));
                    let mut expected = Vec::new();
                    encode::request(&mut expected, &words("MSET a 1 b 2"));
                    assert!(expected.starts_with(&out), "{len}");
                }
            }
        }
    }

    fn put(reply: &str, names: Names) -> Result<String, Misshapen> {
        let mut out = b"before".to_vec();
        let wanted = |name: &[u8]| name != b"p:unwanted";
        put_back(reply.as_bytes(), names, b"p:", wanted, &mut out)?;
        let text = String::from_utf8(out).expect("the reply is text");
        Ok(text
            .strip_prefix("before")
            .expect("earlier bytes stay")
            .to_owned())
    }

    /// The prefix is restored in front of the keys of a reply.
    #[test]
    fn prefix_is_restored_in_replies() {
        use Names::{Each, First, Second, Streams, Whole};
        for (names, reply, expected) in [
            (Whole, "$1\r\na\r\n", "$3\r\np:a\r\n"),
            (Whole, "$0\r\n\r\n", "$2\r\np:\r\n"),
            (Whole, "$-1\r\n", "$-1\r\n"),
            (Whole, "_\r\n", "_\r\n"),
            (Each, "*0\r\n", "*0\r\n"),
            (
                Each,
                "*3\r\n$1\r\na\r\n$8\r\nunwanted\r\n$8\r\nbcdefghi\r\n",
                "*2\r\n$3\r\np:a\r\n$10\r\np:bcdefghi\r\n",
            ),
            (Each, "~1\r\n$1\r\na\r\n", "~1\r\n$3\r\np:a\r\n"),
            (Each, "-ERR a\r\n", "-ERR a\r\n"),
            (First, "*-1\r\n", "*-1\r\n"),
            (
                First,
                "*2\r\n$1\r\na\r\n$1\r\na\r\n",
                "*2\r\n$3\r\np:a\r\n$1\r\na\r\n",
            ),
            (
                First,
                "*2\r\n$1\r\na\r\n*1\r\n*2\r\n$1\r\nm\r\n,1.5\r\n",
                "*2\r\n$3\r\np:a\r\n*1\r\n*2\r\n$1\r\nm\r\n,1.5\r\n",
            ),
            (
                Second,
                "*2\r\n$2\r\n17\r\n*1\r\n$1\r\na\r\n",
                "*2\r\n$2\r\n17\r\n*1\r\n$3\r\np:a\r\n",
            ),
            (
                Streams,
                "*2\r\n*2\r\n$1\r\na\r\n*0\r\n*2\r\n$1\r\nb\r\n*1\r\n$1\r\nb\r\n",
                "*2\r\n*2\r\n$3\r\np:a\r\n*0\r\n*2\r\n$3\r\np:b\r\n*1\r\n$1\r\nb\r\n",
            ),
            (
                Streams,
                "%2\r\n$1\r\na\r\n*0\r\n$1\r\nb\r\n$1\r\nb\r\n",
                "%2\r\n$3\r\np:a\r\n*0\r\n$3\r\np:b\r\n$1\r\nb\r\n",
            ),
        ] {
            assert_eq!(put(reply, names).as_deref(), Ok(expected), "{reply:?}");
        }
        for (names, reply) in [
            (Whole, "+a\r\n"),
            (Whole, "$2\r\na\r\n"),
            (Each, "*1\r\n:1\r\n"),
            (Each, "%1\r\n$1\r\na\r\n$1\r\na\r\n"),
            (Each, "*2\r\n$1\r\na\r\n"),
            (Each, "*1\r\n$1\r\na\r\n:1\r\n"),
            (Each, "*99999999999\r\n"),
            (First, "*0\r\n"),
            (First, "*2\r\n*0\r\n$1\r\na\r\n"),
            (Second, "*1\r\n$1\r\n0\r\n"),
            (Streams, "*1\r\n$1\r\na\r\n"),
            (Streams, "~1\r\n$1\r\na\r\n"),
        ] {
            assert_eq!(put(reply, names), Err(Misshapen), "{reply:?}");
        }
    }

    proptest! {
        /// Any bytes of a server are handled without a panic.
        #[test]
        fn any_reply_is_handled(
            bytes in prop::collection::vec(prop::sample::select(&b"*$%~_-:+0129a\r\n"[..]), 0..40),
        ) {
            use Names::{Each, First, None, Second, Streams, Whole};
            for names in [None, Whole, Each, First, Second, Streams] {
                let _ = put_back(&bytes, names, b"p:", |_| true, &mut Vec::new());
            }
        }
    }
}
