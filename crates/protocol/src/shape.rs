//! Requests that differ from the one before them in their arguments alone.
//!
//! Most requests of a pipeline are: the same command, keys of the same length, often values of the same length, too. To
//! recognise one takes a few comparisons of what is the same in both, and then all is known that a scan would find.
//!
//! ```text
//!   *3\r\n$3\r\nSET\r\n$6\r\n user:1 \r\n$2\r\n ok \r\n
//!   the same: ^^^^^^^^^^^^^^^        ^^^^^^^^    ^^^^
//! ```

use crate::request::Span;

/// What requests of one or two arguments have in common.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    len: usize,
    /// Together they are all that is the same.
    words: [Word; 5],
}

/// Eight bytes of a request, of which those count that are in the mask.
#[derive(Clone, Copy, Debug)]
struct Word {
    at: usize,
    bytes: u64,
    mask: u64,
}

/// Bytes of a word.
const WORD: usize = 8;

impl Shape {
    /// The shape of a request that lies whole in `bytes`, with its arguments there. `None` if it has none: it has no argument
    /// besides its name or more than two, or a longer beginning than is looked at.
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
        // Up to the key: three words, which may overlap.
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

    /// Bytes of such a request.
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
    use crate::request::{Found, Scanner};
    use proptest::prelude::*;

    fn shape_of(bytes: &[u8]) -> Option<Shape> {
        let mut scanner = Scanner::default();
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
        /// What has the shape of a request has its name, and arguments in the same places: a scan finds no other.
        #[test]
        fn what_fits_is_what_a_scan_finds(
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
                let mut scanner = Scanner::default();
                prop_assert_eq!(scanner.scan(&one, true), Ok(Found::Request { len: shape.request_len() }));
                let spans = scanner.spans().to_vec();
                prop_assert_eq!(scanner.scan(&other, true), Ok(Found::Request { len: shape.request_len() }));
                prop_assert_eq!(scanner.spans(), &spans[..]);
                prop_assert_eq!(spans[0].of(&one), spans[0].of(&other));
            }
        }
    }

    #[test]
    fn requests_that_differ_in_their_arguments_alone_have_one_shape() {
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
