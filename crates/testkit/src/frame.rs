//! A reply as a tree with every detail that may differ: the type of each value, each kind of null.

use std::fmt;

use crate::reply::ReplyFramer;

use crate::words;

/// One value of RESP2 or RESP3, with its type byte.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Frame {
    /// `+ - : , # ( _`: a line.
    Line(u8, Vec<u8>),
    /// `$ = !`: a string, or `$-1`.
    Bulk(u8, Option<Vec<u8>>),
    /// `* ~ > %`: values, for a map keys and values by turns, or `*-1`.
    List(u8, Option<Vec<Frame>>),
}

impl Frame {
    /// Reads a reply. `None` when the bytes are not exactly one.
    pub fn read(bytes: &[u8]) -> Option<Frame> {
        let mut rest = bytes;
        let frame = read(&mut rest, 0)?;
        rest.is_empty().then_some(frame)
    }

    /// Whether it is an error.
    pub fn is_error(&self) -> bool {
        matches!(self, Frame::Line(b'-', _) | Frame::Bulk(b'!', _))
    }

    /// Whether it is a refusal in respool's own words.
    pub fn is_refusal(&self) -> bool {
        let text = self.text().unwrap_or_default();
        self.is_error() && text.starts_with(REFUSAL.as_bytes())
    }

    /// Whether it is the simple string OK.
    pub fn is_ok(&self) -> bool {
        matches!(self, Frame::Line(b'+', text) if text == b"OK")
    }

    /// The bytes of a string or a line.
    pub fn text(&self) -> Option<&[u8]> {
        match self {
            Frame::Line(_, text) | Frame::Bulk(_, Some(text)) => Some(text),
            _ => None,
        }
    }

    /// The number of an integer.
    pub fn integer(&self) -> Option<i64> {
        match self {
            Frame::Line(b':', text) => std::str::from_utf8(text).ok()?.parse().ok(),
            _ => None,
        }
    }

    /// The elements of an aggregate, for a map keys and values by turns. Other values have none.
    pub fn items(&self) -> &[Frame] {
        match self {
            Frame::List(_, Some(items)) => items,
            _ => &[],
        }
    }

    /// The kind of reply, to tell differences apart: for an error, its code.
    pub fn class(&self) -> String {
        match self {
            frame if frame.is_error() => {
                let text = frame.text().unwrap_or_default();
                let code = text.split(|&byte| byte == b' ').next().unwrap_or_default();
                format!("-{}", code.escape_ascii())
            }
            Frame::Line(kind, _) | Frame::Bulk(kind, Some(_)) | Frame::List(kind, Some(_)) => {
                char::from(*kind).to_string()
            }
            Frame::Bulk(..) | Frame::List(..) => "null".to_owned(),
        }
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Frame::Line(kind, text) => {
                write!(f, "{}{}", char::from(*kind), words::escape(text))
            }
            Frame::Bulk(kind, None) => write!(f, "{}-1", char::from(*kind)),
            Frame::Bulk(kind, Some(text)) => {
                write!(f, "{}{}", char::from(*kind), words::show(text))
            }
            Frame::List(kind, None) => write!(f, "{}-1", char::from(*kind)),
            Frame::List(kind, Some(items)) => {
                write!(f, "{}[", char::from(*kind))?;
                for (index, item) in items.iter().enumerate() {
                    if index == ITEMS_SHOWN {
                        write!(f, ", … {} in all", items.len())?;
                        break;
                    }
                    write!(f, "{}{item}", if index > 0 { ", " } else { "" })?;
                }
                f.write_str("]")
            }
        }
    }
}

/// How respool's own refusals begin.
pub const REFUSAL: &str = "ERR respool: ";
/// Enough to recognise a reply.
const ITEMS_SHOWN: usize = 60;
/// Deeper than any reply of a server.
const DEPTH_MAX: usize = 64;

/// Splits the bytes of one connection into replies.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    /// Bytes that the scanner has seen.
    scanned: usize,
    scanner: ReplyFramer,
}

impl Frames {
    /// Takes the next bytes of the connection.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next whole reply.
    ///
    /// # Errors
    /// When the bytes are no reply.
    pub fn take(&mut self) -> Result<Option<Frame>, String> {
        let bad = |bytes: &[u8]| format!("no reply: {}", words::show(bytes));
        match self.scanner.feed(&self.bytes[self.scanned..]) {
            Err(_) => Err(bad(&self.bytes)),
            Ok(None) => {
                self.scanned = self.bytes.len();
                Ok(None)
            }
            Ok(Some(more)) => {
                let end = self.scanned + more;
                let whole = &self.bytes[..end];
                let frame = Frame::read(whole).ok_or_else(|| bad(whole))?;
                self.bytes.drain(..end);
                self.scanned = 0;
                Ok(Some(frame))
            }
        }
    }

    /// Bytes of an incomplete reply.
    pub fn rest(&self) -> &[u8] {
        &self.bytes
    }
}

fn read(rest: &mut &[u8], depth: usize) -> Option<Frame> {
    let end = rest.iter().position(|&byte| byte == b'\n')?;
    let (&kind, line) = rest[..end].split_first()?;
    let line = line.strip_suffix(b"\r")?;
    *rest = &rest[end + 1..];
    let length = || -> Option<usize> { std::str::from_utf8(line).ok()?.parse().ok() };
    Some(match kind {
        b'$' if line == b"-1" => Frame::Bulk(kind, None),
        b'*' if line == b"-1" => Frame::List(kind, None),
        b'$' | b'=' | b'!' => {
            let text = rest.get(..length()?)?.to_vec();
            *rest = rest[text.len()..].strip_prefix(b"\r\n")?;
            Frame::Bulk(kind, Some(text))
        }
        b'*' | b'~' | b'>' | b'%' if depth < DEPTH_MAX => {
            let count = length()?.checked_mul(if kind == b'%' { 2 } else { 1 })?;
            let mut items = Vec::new();
            for _ in 0..count {
                items.push(read(rest, depth + 1)?);
            }
            Frame::List(kind, Some(items))
        }
        b'+' | b'-' | b':' | b',' | b'#' | b'(' | b'_' => Frame::Line(kind, line.to_vec()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_cut_at_their_ends_wherever_the_bytes_are() {
        let bytes =
            b"+OK\r\n%1\r\n$1\r\na\r\n*2\r\n:1\r\n_\r\n$-1\r\n>2\r\n+x\r\n=5\r\ntxt:y\r\n*-1\r\n";
        let mut whole = Frames::default();
        whole.push(bytes);
        let mut expected = Vec::new();
        while let Some(frame) = whole.take().expect("these are replies") {
            expected.push(frame);
        }
        assert_eq!(expected.len(), 5);
        assert_eq!(expected[1].to_string(), "%[$a, *[:1, _]]");
        assert_eq!(expected[4], Frame::List(b'*', None));
        let mut pieces = Frames::default();
        let mut found = Vec::new();
        for byte in bytes {
            pieces.push(&[*byte]);
            while let Some(frame) = pieces.take().expect("these are replies") {
                found.push(frame);
            }
        }
        assert_eq!(found, expected);
        assert!(pieces.rest().is_empty());
    }

    /// Bytes that are no reply give an error.
    #[test]
    fn invalid_frame_is_an_error() {
        let mut frames = Frames::default();
        frames.push(b"hello\r\n");
        assert!(frames.take().is_err());
    }
}
