//! The elements of an array in a reply.

use respool_protocol::number;
use respool_protocol::reply::{self, Scanned};

/// The elements of an array, each with its bytes. `None`: the bytes are no whole array, or a push
/// message stands in it, as servers send it in place of a missing result.
pub(crate) fn elements_of(array: &[u8]) -> Option<Vec<&[u8]>> {
    let header = array.windows(2).position(|end| end == b"\r\n")?;
    let (b'*', count) = array
        .split_first()
        .map(|(kind, _)| (*kind, &array[1..header]))?
    else {
        return None;
    };
    let count = usize::try_from(number::parse(count)?).ok()?;
    let mut rest = &array[header + 2..];
    let mut elements = Vec::new();
    for _ in 0..count {
        let Ok(Scanned::Whole(len)) = reply::ReplyScanner::default().scan(rest) else {
            return None;
        };
        if rest[0] == b'>' {
            return None;
        }
        elements.push(&rest[..len]);
        rest = &rest[len..];
    }
    rest.is_empty().then_some(elements)
}

#[cfg(test)]
mod tests {
    use super::elements_of;

    /// An array splits into its elements. Other values and arrays that are cut off do not.
    #[test]
    fn array_splits_into_elements_and_other_values_do_not() {
        let array = b"*3\r\n:1\r\n*2\r\n$1\r\na\r\n+b\r\n$-1\r\n";
        let elements: [&[u8]; 3] = [b":1\r\n", b"*2\r\n$1\r\na\r\n+b\r\n", b"$-1\r\n"];
        assert_eq!(elements_of(array).as_deref(), Some(&elements[..]));
        assert_eq!(elements_of(b"*0\r\n"), Some(vec![]));
        for other in [
            &b"*-1\r\n"[..],
            b"*1\r\n>1\r\n:1\r\n",
            b"_\r\n",
            b"-EXECABORT x\r\n",
            b"*2\r\n:1\r\n",
            b"*1\r\n:1\r\n:2\r\n",
            b"",
        ] {
            assert_eq!(elements_of(other), None);
        }
    }
}
