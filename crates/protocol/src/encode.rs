//! Writes requests and replies.

use crate::number;

/// The protocol version of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Version {
    /// RESP2, with which every connection starts.
    #[default]
    Resp2,
    /// RESP3, after `HELLO 3`.
    Resp3,
}

impl Version {
    /// The number of the version in HELLO.
    pub fn number(self) -> i64 {
        match self {
            Version::Resp2 => 2,
            Version::Resp3 => 3,
        }
    }
}

/// Appends a request: an array of bulk strings.
pub fn request<A: AsRef<[u8]>>(out: &mut Vec<u8>, args: &[A]) {
    array(out, args.len());
    for arg in args {
        bulk(out, arg.as_ref());
    }
}

/// Appends a bulk string.
pub fn bulk(out: &mut Vec<u8>, text: &[u8]) {
    header(out, b'$', text.len());
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// Appends null in place of a value.
pub fn null(out: &mut Vec<u8>, version: Version) {
    out.extend_from_slice(match version {
        Version::Resp2 => b"$-1\r\n".as_slice(),
        Version::Resp3 => b"_\r\n",
    });
}

/// Appends null in place of an array.
pub fn null_array(out: &mut Vec<u8>, version: Version) {
    match version {
        Version::Resp2 => out.extend_from_slice(b"*-1\r\n"),
        Version::Resp3 => null(out, version),
    }
}

/// Appends an integer.
pub fn integer(out: &mut Vec<u8>, value: i64) {
    out.push(b':');
    number::append(out, value);
    out.extend_from_slice(b"\r\n");
}

/// Appends the header of an array of `len` elements.
pub fn array(out: &mut Vec<u8>, len: usize) {
    header(out, b'*', len);
}

/// Appends the header of a map of `pairs` pairs; in RESP2 the header of a flat array.
pub fn map(out: &mut Vec<u8>, version: Version, pairs: usize) {
    match version {
        Version::Resp2 => header(out, b'*', pairs * 2),
        Version::Resp3 => header(out, b'%', pairs),
    }
}

/// Appends text of several lines: a verbatim string in RESP3, a bulk string in RESP2.
pub fn verbatim(out: &mut Vec<u8>, version: Version, text: &str) {
    verbatim_parts(out, version, text.len(), [text].into_iter());
}

/// As [`verbatim`], for a text in parts with `len` bytes together.
pub fn verbatim_parts<'a>(
    out: &mut Vec<u8>,
    version: Version,
    len: usize,
    parts: impl Iterator<Item = &'a str>,
) {
    const FORMAT: &[u8] = b"txt:";
    // The length has at most 20 digits.
    out.reserve(len + FORMAT.len() + 25);
    match version {
        Version::Resp2 => header(out, b'$', len),
        Version::Resp3 => {
            header(out, b'=', len + FORMAT.len());
            out.extend_from_slice(FORMAT);
        }
    }
    parts.for_each(|part| out.extend_from_slice(part.as_bytes()));
    out.extend_from_slice(b"\r\n");
}

/// Appends a status. `text` is our own and has no line end.
pub fn status(out: &mut Vec<u8>, text: &str) {
    line(out, b'+', text.as_bytes());
}

/// Appends an error. `text` starts with its code. Line ends in it become spaces, as in Redis.
pub fn error(out: &mut Vec<u8>, text: &[u8]) {
    line(out, b'-', text);
}

fn line(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    out.extend(text.iter().map(|&byte| {
        if byte == b'\r' || byte == b'\n' {
            b' '
        } else {
            byte
        }
    }));
    out.extend_from_slice(b"\r\n");
}

fn header(out: &mut Vec<u8>, kind: u8, len: usize) {
    out.push(kind);
    number::append(out, len as i64);
    out.extend_from_slice(b"\r\n");
}
