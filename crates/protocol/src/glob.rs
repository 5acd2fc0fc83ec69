//! The patterns of KEYS and SCAN, as servers read them (`stringmatchlen`, util.c): what is left of one behind a beginning
//! that all keys of a server have, and that the server does not see.
//!
//! ```text
//!   user:1*      behind `user:`     1*
//!   *            behind `user:`     *
//!   *r:*:vip     behind `user:`     *:vip
//!   *:vip        behind `user:`     *:vip or vip: no pattern says that. *vip has all of them, and more.
//! ```

/// The most bytes of a pattern by which keys are looked through one by one: a longer one is refused where that would have to be.
pub const SIFTED_BYTES_MAX: usize = 1_000;

/// Newer servers (Redis 7.2.6) give up at more stars.
const STARS_MAX: usize = 1_000;

/// A pattern, taken apart.
#[derive(Clone, Debug)]
pub struct Pattern<'a> {
    bytes: &'a [u8],
    pieces: Vec<Piece>,
}

/// What stands for one byte of a key, or a star.
#[derive(Clone, Copy, Debug)]
struct Piece {
    what: What,
    /// Where it begins in the pattern.
    at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Star,
    Any,
    Byte(u8),
    Class,
}

/// What is left of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// This pattern finds the same keys.
    Same(Vec<u8>),
    /// This one finds them and others.
    More(Vec<u8>),
    /// Servers do not agree on what it means.
    Unclear,
}

/// Finds nothing, not even a key without a name: a class that nothing is of.
const NOTHING: &[u8] = b"[]";

impl<'a> Pattern<'a> {
    /// Takes a pattern apart. Each is one.
    pub fn new(bytes: &'a [u8]) -> Pattern<'a> {
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let (what, len) = match bytes[at] {
                b'*' => (What::Star, 1),
                b'?' => (What::Any, 1),
                b'[' => (What::Class, class(&bytes[at..], 0).0),
                b'\\' if at + 1 < bytes.len() => (What::Byte(bytes[at + 1]), 2),
                byte => (What::Byte(byte), 1),
            };
            pieces.push(Piece { what, at });
            at += len;
        }
        Pattern { bytes, pieces }
    }

    /// What has to be asked where keys are without `prefix`, which has a byte at least.
    pub fn behind(&self, prefix: &[u8]) -> Left {
        let stars = self.pieces.iter().filter(|piece| piece.what == What::Star);
        if stars.count() > STARS_MAX {
            return Left::Unclear;
        }
        // The pieces at which what is left may begin, ascending.
        let mut places = self.with_skipped(vec![0]);
        for byte in prefix {
            let mut next = Vec::with_capacity(places.len() + 1);
            for place in places {
                let Some(piece) = self.pieces.get(place) else {
                    continue;
                };
                if piece.what == What::Star {
                    next.push(place);
                    continue;
                }
                match self.fits(piece, *byte) {
                    Some(true) => next.push(place + 1),
                    Some(false) => {}
                    None => return Left::Unclear,
                }
            }
            places = self.with_skipped(next);
        }
        let Some(last) = places.last().copied() else {
            return Left::Same(NOTHING.to_vec());
        };
        let is_star = |place: &usize| {
            let piece = self.pieces.get(*place);
            piece.is_some_and(|piece| piece.what == What::Star)
        };
        // Behind a star, what begins at a place in front of it begins with anything: that is found, too.
        let star = places.iter().copied().rfind(is_star);
        match star {
            None => Left::Same(self.bytes[self.at(last)..].to_vec()),
            Some(star) if last == star + 1 => Left::Same(self.bytes[self.at(star)..].to_vec()),
            Some(_) => {
                let is_clear = |piece: &Piece| piece.what != What::Class || self.is_clear(piece);
                if self.bytes.len() > SIFTED_BYTES_MAX || !self.pieces.iter().all(is_clear) {
                    return Left::Unclear;
                }
                let rest = &self.bytes[self.at(last)..];
                Left::More([b"*", rest].concat())
            }
        }
    }

    /// Whether a key is found.
    pub fn finds(&self, key: &[u8]) -> bool {
        if key.is_empty() {
            // Not by several stars.
            return self.pieces.is_empty() || self.bytes == b"*";
        }
        let (mut place, mut at) = (0, 0);
        // The last star, and where what follows it was tried last.
        let mut again = None;
        loop {
            let piece = self.pieces.get(place);
            match piece {
                Some(piece) if piece.what == What::Star => {
                    place += 1;
                    again = Some((place, at));
                    continue;
                }
                Some(piece) if at < key.len() && self.fits(piece, key[at]) == Some(true) => {
                    place += 1;
                    at += 1;
                    continue;
                }
                None if at == key.len() => return true,
                _ => {}
            }
            let Some((behind, tried)) = again.filter(|(_, tried)| *tried < key.len()) else {
                return false;
            };
            (place, at) = (behind, tried + 1);
            again = Some((place, at));
        }
    }

    /// Where a place is in the pattern.
    fn at(&self, place: usize) -> usize {
        let piece = self.pieces.get(place);
        piece.map_or(self.bytes.len(), |piece| piece.at)
    }

    /// A star may stand for nothing: then what follows it comes next.
    fn with_skipped(&self, places: Vec<usize>) -> Vec<usize> {
        let mut all = Vec::with_capacity(places.len() + 1);
        for mut place in places {
            all.push(place);
            while self
                .pieces
                .get(place)
                .is_some_and(|piece| piece.what == What::Star)
            {
                place += 1;
                all.push(place);
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether a byte fits a piece that is no star. `None`: to some servers.
    fn fits(&self, piece: &Piece, byte: u8) -> Option<bool> {
        match piece.what {
            What::Star | What::Any => Some(true),
            What::Byte(its) => Some(its == byte),
            What::Class => class(&self.bytes[piece.at..], byte).1,
        }
    }

    /// Whether all servers agree on what is of a class.
    fn is_clear(&self, piece: &Piece) -> bool {
        (0..=u8::MAX).all(|byte| self.fits(piece, byte).is_some())
    }
}

/// How long the class is with which a pattern begins, and whether a byte is of it; `None`: where bytes have a sign it is
/// another matter than where they have none. The steps are those of the servers.
fn class(pattern: &[u8], byte: u8) -> (usize, Option<bool>) {
    let mut at = 1;
    let is_not = pattern.get(at) == Some(&b'^');
    at += usize::from(is_not);
    let (mut with_sign, mut without) = (false, false);
    loop {
        let rest = &pattern[at..];
        match rest {
            [] => break,
            [b'\\', escaped, ..] => {
                (with_sign, without) =
                    (with_sign | (*escaped == byte), without | (*escaped == byte));
                at += 2;
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            // Whatever stands behind it, the end of the class included.
            [from, b'-', to, ..] => {
                let (low, high) = (*from.min(to), *from.max(to));
                without |= (low..=high).contains(&byte);
                let sign = |byte: u8| byte.cast_signed();
                let (low, high) = (sign(*from).min(sign(*to)), sign(*from).max(sign(*to)));
                with_sign |= (low..=high).contains(&sign(byte));
                at += 3;
            }
            [its, ..] => {
                (with_sign, without) = (with_sign | (*its == byte), without | (*its == byte));
                at += 1;
            }
        }
    }
    (at, (with_sign == without).then_some(without != is_not))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `stringmatchlen` of Redis 7.0, line by line. Bytes have no sign.
    fn as_server(mut pattern: &[u8], mut string: &[u8]) -> bool {
        let byte = |text: &[u8], at: usize| text.get(at).copied().unwrap_or(0);
        while !pattern.is_empty() && !string.is_empty() {
            match pattern[0] {
                b'*' => {
                    while byte(pattern, 1) == b'*' {
                        pattern = &pattern[1..];
                    }
                    if pattern.len() == 1 {
                        return true;
                    }
                    while !string.is_empty() {
                        if as_server(&pattern[1..], string) {
                            return true;
                        }
                        string = &string[1..];
                    }
                    return false;
                }
                b'?' => string = &string[1..],
                b'[' => {
                    pattern = &pattern[1..];
                    let not = byte(pattern, 0) == b'^';
                    if not {
                        pattern = &pattern[1..];
                    }
                    let mut found = false;
                    // It stands at the last byte of the class then, or at the end.
                    loop {
                        if pattern.len() >= 2 && pattern[0] == b'\\' {
                            pattern = &pattern[1..];
                            found |= pattern[0] == string[0];
                        } else if byte(pattern, 0) == b']' || pattern.is_empty() {
                            break;
                        } else if pattern.len() >= 3 && pattern[1] == b'-' {
                            let (mut start, mut end) = (pattern[0], pattern[2]);
                            if start > end {
                                (start, end) = (end, start);
                            }
                            pattern = &pattern[2..];
                            found |= string[0] >= start && string[0] <= end;
                        } else {
                            found |= pattern[0] == string[0];
                        }
                        pattern = &pattern[1..];
                    }
                    if found == not {
                        return false;
                    }
                    string = &string[1..];
                }
                first => {
                    let mut first = first;
                    if first == b'\\' && pattern.len() >= 2 {
                        pattern = &pattern[1..];
                        first = pattern[0];
                    }
                    if first != string[0] {
                        return false;
                    }
                    string = &string[1..];
                }
            }
            pattern = pattern.get(1..).unwrap_or_default();
            if string.is_empty() {
                while byte(pattern, 0) == b'*' {
                    pattern = &pattern[1..];
                }
                break;
            }
        }
        pattern.is_empty() && string.is_empty()
    }

    /// KEYS and SCAN do not look at all where one star is asked for.
    fn finds_as_server(pattern: &[u8], key: &[u8]) -> bool {
        pattern == b"*" || as_server(pattern, key)
    }

    fn text(alphabet: &'static [u8], most: usize) -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(alphabet), 0..most)
    }

    #[test]
    fn what_is_left_behind_a_beginning() {
        let behind = |pattern: &str| Pattern::new(pattern.as_bytes()).behind(b"user:");
        let same = |left: &str| Left::Same(left.as_bytes().to_vec());
        let more = |left: &str| Left::More(left.as_bytes().to_vec());
        for (pattern, left) in [
            ("*", same("*")),
            ("**", same("*")),
            ("user:*", same("*")),
            ("user:**", same("*")),
            ("user:1*", same("1*")),
            ("user:", same("")),
            ("user:1", same("1")),
            ("u*", same("*")),
            ("u*1", same("*1")),
            ("user*", same("*")),
            ("*user:*1", same("*1")),
            ("*r:*:vip", same("*:vip")),
            ("[a-u]s[^f]r?[0-9]", same("[0-9]")),
            (r"\us\er:\*", same(r"\*")),
            ("other*", same("[]")),
            ("use", same("[]")),
            ("user;*", same("[]")),
            ("*:vip", more("*vip")),
            ("*r:v*", more("*v*")),
            ("*:", more("*")),
            ("u*r:[", more("*[")),
        ] {
            assert_eq!(behind(pattern), left, "{pattern}");
        }
        let unclear: [&[u8]; 3] = [b"[a-\xff]*", b"*:[a-\xff]x", &b"*a".repeat(1_001)];
        for pattern in unclear {
            let left = Pattern::new(pattern).behind(b"user:");
            assert_eq!(left, Left::Unclear, "{}", pattern.escape_ascii());
        }
        let long = [&b"*:"[..], &[b'?'; SIFTED_BYTES_MAX]].concat();
        assert_eq!(Pattern::new(&long).behind(b"user:"), Left::Unclear);
        // A class that is not looked into is the server's to read.
        assert_eq!(
            Pattern::new(b"user:[\x80-\x90]").behind(b"user:"),
            Left::Same(b"[\x80-\x90]".to_vec())
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn a_key_is_found_as_the_server_finds_it(
            pattern in text(b"ab*?[]^-\\", 9), key in text(b"abc]^-\\*", 7),
        ) {
            let found = Pattern::new(&pattern).finds(&key);
            let (shown, of) = (pattern.escape_ascii().to_string(), key.escape_ascii().to_string());
            prop_assert_eq!(found, finds_as_server(&pattern, &key), "{} {}", shown, of);
        }

        /// Neither more keys nor fewer: of those that a server finds by what it is asked, the ones that are wanted.
        #[test]
        fn with_and_without_their_beginning_the_same_keys_are_found(
            pattern in text(b"aab**?[]^-\\", 9),
            prefix in text(b"ab]*", 4).prop_filter("it has a byte", |prefix| !prefix.is_empty()),
            key in text(b"aab]*", 5),
        ) {
            let whole = [&prefix[..], &key].concat();
            let pattern = Pattern::new(&pattern);
            let found = match pattern.behind(&prefix) {
                Left::Same(left) => finds_as_server(&left, &key),
                Left::More(left) => finds_as_server(&left, &key) && pattern.finds(&whole),
                Left::Unclear => return Ok(()),
            };
            let expected = finds_as_server(pattern.bytes, &whole);
            let shown = (pattern.bytes.escape_ascii().to_string(), whole.escape_ascii().to_string());
            prop_assert_eq!(found, expected, "{:?} {:?}", shown, prefix);
        }
    }
}
