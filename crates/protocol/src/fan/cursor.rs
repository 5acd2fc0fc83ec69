//! SCAN over several servers, one after the other. The client's cursor encodes the server.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, reason = "it reads bytes of a server")
)]

use super::merge::{self, Merged, Part};
use crate::request::Span;
use crate::{encode, number, reply};

/// The position of a SCAN over several servers. Its code is below 2^53, because many clients read
/// cursors as doubles.
///
/// ```text
///    52                                     15 14              0
///   +-----------------------------------------+-----------------+
///   | the server's own cursor                 | the server      |
///   +-----------------------------------------+-----------------+
/// ```
///
/// A server's cursor is a bucket number of its hash table with reversed bits. So it is below the
/// number of buckets: one or two per key in Redis, fewer in Valkey. A Cluster node newer than Redis
/// 7.0 has a table per slot and puts the slot into the lowest 14 bits. 38 bits are enough for
/// 274,877,906,944 buckets, or on a Cluster for 16,777,216 in each slot. Seen with 300,000 keys: 18
/// or 19 bits (Redis 6.2, 7.0, 8.2), 16 bits (Valkey 9.1). With 200,000 more keys in one slot of a
/// Cluster: 31 bits (Redis 8.2), 29 bits (Valkey 9.1).
///
/// Servers do not promise that cursors stay below this. A larger cursor has no code
/// ([`Cursor::code`]), and the client gets an error ([`scan_reply`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// Number of the server. It must not change during a SCAN. Servers are asked in this order.
    pub server: u16,
    /// The server's own cursor; 0 is its beginning.
    pub cursor: u64,
}

impl Cursor {
    /// Most servers that a code can tell apart.
    pub const SERVERS_MAX: u16 = 1 << Self::SERVER_BITS;
    /// Largest cursor of a server that fits a code.
    pub const CURSOR_MAX: u64 = (1 << (Self::BITS - Self::SERVER_BITS)) - 1;

    const BITS: u32 = 53;
    const SERVER_BITS: u32 = 15;

    /// The client's cursor; `None` if the server or its cursor is too large. It is 0 only at the
    /// beginning of the first server.
    pub const fn code(self) -> Option<u64> {
        if self.server >= Self::SERVERS_MAX || self.cursor > Self::CURSOR_MAX {
            return None;
        }
        Some(self.cursor << Self::SERVER_BITS | self.server as u64)
    }

    /// Decodes a client's cursor; `None` if [`Cursor::code`] never makes this number.
    pub const fn of_code(code: u64) -> Option<Cursor> {
        if code >> Self::BITS != 0 {
            return None;
        }
        Some(Cursor {
            server: (code % Self::SERVERS_MAX as u64) as u16,
            cursor: code >> Self::SERVER_BITS,
        })
    }

    /// Reads a client's argument. `None` if it is invalid; Redis answers `ERR invalid cursor`. The
    /// caller checks that the pool has this server.
    pub fn parse(argument: &[u8]) -> Option<Cursor> {
        let code = number::parse(argument)?;
        Cursor::of_code(u64::try_from(code).ok()?)
    }
}

/// Appends a client's SCAN with the server's own cursor. `request` is an array of bulk strings with
/// the `spans` of the request scanner. A request without a second argument is appended unchanged.
pub fn scan_request(request: &[u8], spans: &[Span], cursor: Cursor, out: &mut Vec<u8>) {
    let front = spans
        .first()
        .and_then(|name| request.get(..name.end as usize + 2));
    let behind = spans
        .get(1)
        .and_then(|argument| request.get(argument.end as usize + 2..));
    let (Some(front), Some(behind)) = (front, behind) else {
        out.extend_from_slice(request);
        return;
    };
    out.extend_from_slice(front);
    super::number_bulk(out, i64::try_from(cursor.cursor).unwrap_or(i64::MAX));
    out.extend_from_slice(behind);
}

/// Appends the reply of a server to SCAN, with the client's cursor in place of the server's.
/// `server` is its number and `next` the number of the next server. At the end of a server the
/// cursor goes to the next one; at the end of the last server it is 0. An error names the server,
/// as in [`Merger`](super::Merger), and the client's last cursor stays valid.
pub fn scan_reply(part: Part<'_>, server: u16, next: Option<u16>, out: &mut Vec<u8>) -> Merged {
    let parts = &[part];
    if merge::is_error(part.reply) {
        return merge::failed(parts, 0, out);
    }
    let Some((cursor, rest)) = cursor_of(part.reply) else {
        return merge::misshapen(parts, 0, out);
    };
    let code = match next {
        _ if cursor != 0 => Cursor { server, cursor }.code(),
        Some(server) => Cursor { server, cursor }.code(),
        None => Some(0),
    };
    let Some(code) = code else {
        merge::append_error(part.server, b"its SCAN cursor is too large", out);
        return Merged::Failed { part: 0 };
    };
    encode::array(out, 2);
    super::number_bulk(out, code as i64);
    out.extend_from_slice(rest);
    Merged::Whole
}

/// The cursor of a SCAN reply, and the bytes behind it.
fn cursor_of(reply: &[u8]) -> Option<(u64, &[u8])> {
    if reply::ReplyScanner::default().scan(reply) != Ok(reply::Scanned::Whole(reply.len())) {
        return None;
    }
    let rest = reply.strip_prefix(b"*2\r\n$")?;
    let line = rest.iter().position(|&byte| byte == b'\r')?;
    let len = usize::try_from(number::parse(rest.get(..line)?)?).ok()?;
    let text = rest.get(line + 2..)?.get(..len)?;
    let rest = rest.get(line + 2 + len + 2..)?;
    // Redis may write a cursor beyond i64, which is too large for a code, too.
    let cursor = match number::parse(text) {
        Some(cursor) => u64::try_from(cursor).ok()?,
        None if text.len() >= 19 && text.iter().all(u8::is_ascii_digit) => u64::MAX,
        None => return None,
    };
    matches!(rest.first(), Some(b'*' | b'~')).then_some((cursor, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::request::{Found, RequestScanner};

    const SERVER: &str = "127.0.0.1:6381";

    fn reply_to_client(reply: &[u8], server: u16, servers: u16) -> (Merged, String) {
        let mut out = b"before".to_vec();
        let part = Part {
            server: SERVER,
            reply,
        };
        let next = (server + 1 < servers).then_some(server + 1);
        let merged = scan_reply(part, server, next, &mut out);
        let text = String::from_utf8(out).unwrap();
        (merged, text.strip_prefix("before").unwrap().to_owned())
    }

    /// The cursor 0 is the beginning of the first server, and only that.
    #[test]
    fn zero_is_only_the_beginning() {
        assert_eq!(Cursor::default().code(), Some(0));
        assert_eq!(Cursor::parse(b"0"), Some(Cursor::default()));
        let second = Cursor {
            server: 1,
            cursor: 0,
        };
        assert_eq!(second.code(), Some(1));
    }

    /// A server number or cursor that is too large has no code.
    #[test]
    fn too_large_cursor_has_no_code() {
        let cursor = |server, cursor| Cursor { server, cursor };
        let last = cursor(Cursor::SERVERS_MAX - 1, Cursor::CURSOR_MAX);
        assert_eq!(last.code(), Some((1 << 53) - 1));
        assert_eq!(cursor(0, Cursor::CURSOR_MAX + 1).code(), None);
        assert_eq!(cursor(Cursor::SERVERS_MAX, 0).code(), None);
        assert_eq!(Cursor::of_code(1 << 53), None);
        for bad in ["", "-1", "x", "9007199254740992", "18446744073709551615"] {
            assert_eq!(Cursor::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    /// The request for the server keeps the options of the client's request.
    #[test]
    fn request_keeps_its_options() {
        let request = b"*4\r\n$4\r\nscan\r\n$6\r\n393273\r\n$5\r\nCOUNT\r\n$2\r\n10\r\n";
        let mut scanner = RequestScanner::default();
        let len = request.len();
        assert_eq!(scanner.scan(request, true), Ok(Found::Request { len }));
        let cursor = Cursor::parse(scanner.spans()[1].of(request)).unwrap();
        assert_eq!((cursor.server, cursor.cursor), (57, 12));
        let mut out = Vec::new();
        scan_request(request, scanner.spans(), cursor, &mut out);
        let expected = b"*4\r\n$4\r\nscan\r\n$2\r\n12\r\n$5\r\nCOUNT\r\n$2\r\n10\r\n";
        assert_eq!(
            out.escape_ascii().to_string(),
            expected.escape_ascii().to_string()
        );
    }

    /// The end of a server leads to the next server, and the end of the last server ends the SCAN.
    #[test]
    fn end_of_a_server_leads_to_the_next() {
        let whole = |text: &str| (Merged::Whole, text.to_owned());
        let reply = b"*2\r\n$2\r\n12\r\n*1\r\n$1\r\na\r\n";
        assert_eq!(
            reply_to_client(reply, 57, 60),
            whole("*2\r\n$6\r\n393273\r\n*1\r\n$1\r\na\r\n")
        );
        let end = b"*2\r\n$1\r\n0\r\n*0\r\n";
        assert_eq!(reply_to_client(end, 0, 2), whole("*2\r\n$1\r\n1\r\n*0\r\n"));
        assert_eq!(reply_to_client(end, 1, 2), whole("*2\r\n$1\r\n0\r\n*0\r\n"));
    }

    /// A SCAN that fails names its server.
    #[test]
    fn failed_scan_names_its_server() {
        let (merged, text) = reply_to_client(b"-LOADING Redis is loading\r\n", 0, 2);
        assert_eq!(merged, Merged::Failed { part: 0 });
        assert_eq!(
            text,
            "-LOADING respool: 127.0.0.1:6381: Redis is loading\r\n"
        );
        for large in [
            "274877906944",
            "9223372036854775807",
            "18446744073709551615",
        ] {
            let reply = format!("*2\r\n${}\r\n{large}\r\n*0\r\n", large.len());
            let (merged, text) = reply_to_client(reply.as_bytes(), 0, 2);
            assert_eq!(merged, Merged::Failed { part: 0 });
            assert_eq!(
                text,
                "-ERR respool: 127.0.0.1:6381: its SCAN cursor is too large\r\n"
            );
        }
        for odd in [
            "+OK\r\n",
            "*2\r\n$1\r\n0\r\n:5\r\n",
            "*2\r\n$1\r\n0\r\n",
            "*2\r\n$1\r\nx\r\n*0\r\n",
            "*2\r\n$2\r\n-1\r\n*0\r\n",
        ] {
            let (merged, _) = reply_to_client(odd.as_bytes(), 0, 2);
            assert_eq!(merged, Merged::Misshapen { part: 0 }, "{odd:?}");
        }
    }

    proptest! {
        /// Each number below 2^53 is the code of one cursor.
        #[test]
        fn every_number_below_2_to_53_is_one_cursor(code in 0..1u64 << 53) {
            let cursor = Cursor::of_code(code).unwrap();
            prop_assert_eq!(cursor.code(), Some(code));
            prop_assert_eq!(Cursor::parse(code.to_string().as_bytes()), Some(cursor));
        }

        /// The server gets back the cursor that it gave.
        #[test]
        fn server_cursor_comes_back_unchanged(server in 0..Cursor::SERVERS_MAX, cursor in 1..=Cursor::CURSOR_MAX) {
            let given = format!("*2\r\n${}\r\n{cursor}\r\n*0\r\n", cursor.to_string().len());
            let (merged, text) = reply_to_client(given.as_bytes(), server, Cursor::SERVERS_MAX);
            prop_assert_eq!(merged, Merged::Whole);
            let back = Cursor::parse(text.split("\r\n").nth(2).unwrap().as_bytes());
            prop_assert_eq!(back, Some(Cursor { server, cursor }));
        }

        /// Any bytes of a server give one complete reply.
        #[test]
        fn any_bytes_give_one_reply(
            bytes in prop::collection::vec(
                prop_oneof![any::<u8>(), prop::sample::select(b"$*~-:\r\n0123".to_vec())], 0..80),
            whole in any::<bool>(),
        ) {
            let reply = if whole { [b"*2\r\n$1\r\n".as_slice(), &bytes].concat() } else { bytes };
            let mut out = Vec::new();
            scan_reply(Part { server: SERVER, reply: &reply }, 3, None, &mut out);
            let end = crate::reply::ReplyScanner::default().scan(&out);
            prop_assert_eq!(end, Ok(crate::reply::Scanned::Whole(out.len())));
        }
    }
}
