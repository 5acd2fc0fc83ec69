//! Shapes: recognise a request that differs from the previous one only in the bytes of its
//! arguments.
//!
//! Most requests of a pipeline have the same shape: the same command, keys of the same length,
//! often values of the same length. A few comparisons of the constant bytes recognise such a
//! request. Then everything is known that a scan would find.
//!
//! ```text
//!   *3\r\n$3\r\nSET\r\n$6\r\n user:1 \r\n$2\r\n ok \r\n
//!   constant: ^^^^^^^^^^^^^^^        ^^^^^^^^    ^^^^
//! ```

use crate::request::Span;

/// The constant bytes of requests with one or two arguments besides the command name.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    len: usize,
    /// Together they cover all constant bytes.
    words: [Word; 5],
}

/// Eight bytes of a request. Only the bytes in the mask are compared.
#[derive(Clone, Copy, Debug)]
struct Word {
    at: usize,
    bytes: u64,
    mask: u64,
}

/// Bytes of a word.
const WORD: usize = 8;

impl Shape {
    /// The shape of the complete request in `bytes`, with its argument spans. `None` if it has no
    /// argument besides its name, or more than two, or if the bytes up to the key are too many.
    pub fn of(bytes: &[u8], spans: &[Span]) -> Option<Shape> {
        let (key, value) = match spans {
            [_, key] => (key, None),
            [_, key, value] => (key, Some(value)),
            _ => return None,
        };
        let word = |end: usize, count: usize| {
            let at = end.checked_sub(WORD)?;
            let bytes = bytes.get(at..end)?.first_chunk()?;
            let mask = u64::MAX.checked_shl(8 * WORD.checked_sub(count)? as u32);
            Some(Word {
                at,
                bytes: u64::from_le_bytes(*bytes),
                mask: mask.unwrap_or(0),
            })
        };
        // Three words, which may overlap, cover the bytes up to the key.
        let start = key.start as usize;
        if start > 3 * WORD {
            return None;
        }
        let between = match value {
            Some(value) => {
                let start = value.start as usize;
                word(start, start - key.end as usize)?
            }
            None => word(WORD, 0)?,
        };
        Some(Shape {
            len: bytes.len(),
            words: [
                word(WORD, WORD)?,
                word(start.min(2 * WORD), WORD)?,
                word(start, WORD)?,
                between,
                word(bytes.len(), b"\r\n".len())?,
            ],
        })
    }

    /// Length of a request of this shape, in bytes.
    #[inline]
    pub fn request_len(&self) -> usize {
        self.len
    }

    /// Whether `bytes` begin with a request of this shape.
    #[inline]
    pub fn fits(&self, bytes: &[u8]) -> bool {
        let Some(request) = bytes.get(..self.len) else {
            return false;
        };
        let mut differs = 0;
        for Word { at, bytes, mask } in self.words {
            match request.get(at..).and_then(|rest| rest.first_chunk()) {
                Some(chunk) => differs |= (u64::from_le_bytes(*chunk) ^ bytes) & mask,
                None => return false,
            }
        }
        differs == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode;
    use crate::request::{Found, RequestScanner};
    use proptest::prelude::*;

    fn shape_of(bytes: &[u8]) -> Option<Shape> {
        let mut scanner = RequestScanner::default();
        match scanner.scan(bytes, true) {
            Ok(Found::Request { len }) if len == bytes.len() => Shape::of(bytes, scanner.spans()),
            _ => None,
        }
    }

    fn request() -> impl Strategy<Value = Vec<u8>> {
        let name = prop::sample::select(vec![
            "GET",
            "get",
            "SET",
            "INCR",
            "HGETALL",
            "X",
            "ZRANGEBYSCORE",
        ]);
        let argument = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..4),
            prop::collection::vec(prop::sample::select(b"$*\r\n01a".to_vec()), 0..24),
            prop::collection::vec(any::<u8>(), 98..102),
            prop::collection::vec(any::<u8>(), 998..1_002),
        ];
        (name, prop::collection::vec(argument, 0..4)).prop_map(|(name, arguments)| {
            let mut words = vec![name.as_bytes().to_vec()];
            words.extend(arguments);
            let mut bytes = Vec::new();
            encode::request(&mut bytes, &words);
            bytes
        })
    }

    proptest! {
        /// A request that fits a shape has the same name and the same argument positions as a scan
        /// finds.
        #[test]
        fn fitting_request_equals_a_scan(
            one in request(),
            mut other in request(),
            alike in any::<bool>(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            behind in prop::collection::vec(any::<u8>(), 0..12),
        ) {
            if alike {
                other = one.clone();
            }
            for (at, byte) in changes {
                let at = at.index(other.len());
                other[at] = byte;
            }
            other.extend(behind);
            let Some(shape) = shape_of(&one) else {
                return Ok(());
            };
            prop_assert!(shape.fits(&one));
            prop_assert!(!shape.fits(&one[..one.len() - 1]));
            if shape.fits(&other) {
                let mut scanner = RequestScanner::default();
                prop_assert_eq!(scanner.scan(&one, true), Ok(Found::Request { len: shape.request_len() }));
                let spans = scanner.spans().to_vec();
                prop_assert_eq!(scanner.scan(&other, true), Ok(Found::Request { len: shape.request_len() }));
                prop_assert_eq!(scanner.spans(), &spans[..]);
                prop_assert_eq!(spans[0].of(&one), spans[0].of(&other));
            }
        }
    }

    /// Requests that differ only in the bytes of their arguments have one shape.
    #[test]
    fn requests_with_other_arguments_have_one_shape() {
        for [one, other] in [
            [["GET", "key:1"].as_slice(), &["GET", "key:2"]],
            [&["SET", "key:1", "on"], &["SET", "key:2", "of"]],
            [&["SET", "k", ""], &["SET", "l", ""]],
        ] {
            let [one, other] = [one, other].map(|words| {
                let mut bytes = Vec::new();
                encode::request(&mut bytes, words);
                bytes
            });
            assert!(shape_of(&one).is_some_and(|shape| shape.fits(&other)));
        }
    }
}
