//! Reads a small reply into a tree. This is for replies to our own requests, not for forwarded
//! replies.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, reason = "it reads bytes of a server")
)]

use crate::number;

/// Deepest nesting of a reply.
const DEPTH_MAX: usize = 16;

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `+`, `,`, `(`, `#`: the text of a line.
    Line(Vec<u8>),
    /// `-` or `!`: an error with its code.
    Error(Vec<u8>),
    /// `:`: an integer.
    Integer(i64),
    /// `$` or `=`: a string.
    Bulk(Vec<u8>),
    /// Null of either protocol version.
    Null,
    /// The elements of `*`, `~` and `>`, or the keys and values of `%`.
    List(Vec<Value>),
}

impl Value {
    /// Reads a reply. `None` if `bytes` are not exactly one complete reply.
    pub fn read(bytes: &[u8]) -> Option<Value> {
        let mut rest = bytes;
        let value = read(&mut rest, 0)?;
        rest.is_empty().then_some(value)
    }

    /// The bytes of a string or a line.
    pub fn text(&self) -> Option<&[u8]> {
        match self {
            Value::Line(text) | Value::Bulk(text) => Some(text),
            _ => None,
        }
    }

    /// The value behind `key` in a map, or in a list of keys and values.
    pub fn field(&self, key: &str) -> Option<&Value> {
        let Value::List(values) = self else {
            return None;
        };
        let (pairs, _) = values.as_chunks();
        pairs
            .iter()
            .find(|[name, _]| name.text() == Some(key.as_bytes()))
            .map(|[_, value]| value)
    }
}

fn read(rest: &mut &[u8], depth: usize) -> Option<Value> {
    let end = rest.iter().position(|&byte| byte == b'\r')?;
    let (kind, line) = rest.get(..end)?.split_first()?;
    *rest = rest.get(end + 2..)?;
    let len = |line| number::parse(line).and_then(|len| usize::try_from(len).ok());
    Some(match kind {
        b'$' | b'*' if line == b"-1" => Value::Null,
        b'_' => Value::Null,
        b'+' | b',' | b'(' | b'#' => Value::Line(line.to_vec()),
        b'-' => Value::Error(line.to_vec()),
        b':' => Value::Integer(number::parse(line)?),
        b'$' | b'=' | b'!' => {
            let text = rest.get(..len(line)?)?.to_vec();
            *rest = rest.get(text.len() + 2..)?;
            match kind {
                b'!' => Value::Error(text),
                // A verbatim string begins with its format: `txt:`.
                b'=' => Value::Bulk(text.get(4..)?.to_vec()),
                _ => Value::Bulk(text),
            }
        }
        b'*' | b'~' | b'>' | b'%' if depth < DEPTH_MAX => {
            let count = len(line)?.checked_mul(if *kind == b'%' { 2 } else { 1 })?;
            // The count is not trusted: memory grows with the elements that are there.
            let mut values = Vec::new();
            for _ in 0..count {
                values.push(read(rest, depth + 1)?);
            }
            Value::List(values)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::Value;

    /// The HELLO replies of both protocol versions have the same fields.
    #[test]
    fn hello_reply_reads_the_same_in_both_versions() {
        let resp2 = b"*4\r\n$7\r\nversion\r\n$5\r\n7.0.1\r\n$5\r\nproto\r\n:2\r\n";
        let resp3 = b"%2\r\n$7\r\nversion\r\n$5\r\n7.0.1\r\n$5\r\nproto\r\n:3\r\n";
        for (reply, proto) in [(&resp2[..], 2), (&resp3[..], 3)] {
            let value = Value::read(reply).expect("a whole reply");
            assert_eq!(
                value.field("version").and_then(Value::text),
                Some(b"7.0.1".as_slice())
            );
            assert_eq!(value.field("proto"), Some(&Value::Integer(proto)));
            for cut in 0..reply.len() {
                assert_eq!(Value::read(&reply[..cut]), None);
            }
        }
    }

    /// A count without elements, and deep nesting, give no value and cost no memory.
    #[test]
    fn count_without_elements_costs_no_memory() {
        assert_eq!(Value::read(b"*2000000000\r\n:1\r\n"), None);
        assert_eq!(Value::read("*1\r\n".repeat(1000).as_bytes()), None);
    }
}
