//! The patterns of KEYS and SCAN, as servers read them (`stringmatchlen`, util.c). They are
//! rewritten for a server that does not see the prefix of its keys:
//!
//! ```text
//!   user:1*      behind `user:`     1*
//!   *            behind `user:`     *
//!   *r:*:vip     behind `user:`     *:vip
//!   *:vip        behind `user:`     *:vip or vip, for which there is no pattern; *vip matches more
//! ```

/// Longest pattern with which keys are filtered one by one. A longer pattern that needs this is
/// refused.
pub const SIFTED_BYTES_MAX: usize = 1_000;

/// Most stars of a pattern. Newer servers (Redis 7.2.6) give up at more.
const STARS_MAX: usize = 1_000;

/// A pattern, split into tokens.
#[derive(Clone, Debug)]
pub struct Pattern<'a> {
    bytes: &'a [u8],
    tokens: Vec<PatternToken>,
}

/// A star, or a token that matches one byte of a key.
#[derive(Clone, Copy, Debug)]
struct PatternToken {
    kind: PatternTokenKind,
    /// Offset of its first byte in the pattern.
    at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PatternTokenKind {
    Star,
    Any,
    Byte(u8),
    Class,
}

/// A pattern for keys without their prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// This pattern matches the same keys.
    Same(Vec<u8>),
    /// This pattern matches the same keys and others.
    More(Vec<u8>),
    /// Servers differ in how they read the pattern.
    Unclear,
}

/// An empty class: it matches no key, not even the empty key.
const NOTHING: &[u8] = b"[]";

impl<'a> Pattern<'a> {
    /// Splits a pattern into tokens. Any bytes are a valid pattern.
    pub fn new(bytes: &'a [u8]) -> Pattern<'a> {
        let mut tokens = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let (kind, len) = match bytes[at] {
                b'*' => (PatternTokenKind::Star, 1),
                b'?' => (PatternTokenKind::Any, 1),
                b'[' => (PatternTokenKind::Class, class(&bytes[at..], 0).0),
                b'\\' if at + 1 < bytes.len() => (PatternTokenKind::Byte(bytes[at + 1]), 2),
                byte => (PatternTokenKind::Byte(byte), 1),
            };
            tokens.push(PatternToken { kind, at });
            at += len;
        }
        Pattern { bytes, tokens }
    }

    /// Rewrites the pattern for keys without `prefix`, which is not empty.
    pub fn behind(&self, prefix: &[u8]) -> Left {
        let stars = self
            .tokens
            .iter()
            .filter(|token| token.kind == PatternTokenKind::Star);
        if stars.count() > STARS_MAX {
            return Left::Unclear;
        }
        // Indexes of the tokens that may match the first byte behind the prefix, ascending.
        let mut starts = self.with_skipped(vec![0]);
        for byte in prefix {
            let mut next = Vec::with_capacity(starts.len() + 1);
            for start in starts {
                let Some(token) = self.tokens.get(start) else {
                    continue;
                };
                if token.kind == PatternTokenKind::Star {
                    next.push(start);
                    continue;
                }
                match self.fits(token, *byte) {
                    Some(true) => next.push(start + 1),
                    Some(false) => {}
                    None => return Left::Unclear,
                }
            }
            starts = self.with_skipped(next);
        }
        let Some(last) = starts.last().copied() else {
            return Left::Same(NOTHING.to_vec());
        };
        let is_star = |index: &usize| {
            let token = self.tokens.get(*index);
            token.is_some_and(|token| token.kind == PatternTokenKind::Star)
        };
        // The pattern from the last star on also matches every key that an earlier start matches.
        let star = starts.iter().copied().rfind(is_star);
        match star {
            None => Left::Same(self.bytes[self.at(last)..].to_vec()),
            Some(star) if last == star + 1 => Left::Same(self.bytes[self.at(star)..].to_vec()),
            Some(_) => {
                let is_clear = |token: &PatternToken| {
                    token.kind != PatternTokenKind::Class || self.is_clear(token)
                };
                if self.bytes.len() > SIFTED_BYTES_MAX || !self.tokens.iter().all(is_clear) {
                    return Left::Unclear;
                }
                let rest = &self.bytes[self.at(last)..];
                Left::More([b"*", rest].concat())
            }
        }
    }

    /// Whether the pattern matches a key.
    pub fn finds(&self, key: &[u8]) -> bool {
        if key.is_empty() {
            // Servers do not match the empty key with several stars.
            return self.tokens.is_empty() || self.bytes == b"*";
        }
        let (mut index, mut at) = (0, 0);
        // For backtracking: the token behind the last star, and the byte at which it was tried
        // last.
        let mut retry = None;
        loop {
            let token = self.tokens.get(index);
            match token {
                Some(token) if token.kind == PatternTokenKind::Star => {
                    index += 1;
                    retry = Some((index, at));
                    continue;
                }
                Some(token) if at < key.len() && self.fits(token, key[at]) == Some(true) => {
                    index += 1;
                    at += 1;
                    continue;
                }
                None if at == key.len() => return true,
                _ => {}
            }
            let Some((behind, tried)) = retry.filter(|(_, tried)| *tried < key.len()) else {
                return false;
            };
            (index, at) = (behind, tried + 1);
            retry = Some((index, at));
        }
    }

    /// The offset of a token in the pattern; behind the last token, its length.
    fn at(&self, index: usize) -> usize {
        let token = self.tokens.get(index);
        token.map_or(self.bytes.len(), |token| token.at)
    }

    /// Adds the tokens behind stars, because a star may match no byte.
    fn with_skipped(&self, starts: Vec<usize>) -> Vec<usize> {
        let mut all = Vec::with_capacity(starts.len() + 1);
        for mut index in starts {
            all.push(index);
            while self
                .tokens
                .get(index)
                .is_some_and(|token| token.kind == PatternTokenKind::Star)
            {
                index += 1;
                all.push(index);
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether a token other than a star matches a byte. `None`: servers differ.
    fn fits(&self, token: &PatternToken, byte: u8) -> Option<bool> {
        match token.kind {
            PatternTokenKind::Star | PatternTokenKind::Any => Some(true),
            PatternTokenKind::Byte(its) => Some(its == byte),
            PatternTokenKind::Class => class(&self.bytes[token.at..], byte).1,
        }
    }

    /// Whether all servers agree on the bytes of a class.
    fn is_clear(&self, token: &PatternToken) -> bool {
        (0..=u8::MAX).all(|byte| self.fits(token, byte).is_some())
    }
}

/// The length of the class at the beginning of a pattern, and whether it has a byte. `None`:
/// servers with signed bytes and servers with unsigned bytes differ. The steps are those of the
/// servers.
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
            // The byte behind the hyphen may be any, even the end of the class.
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

    /// `stringmatchlen` of Redis 7.0, line by line, with unsigned bytes.
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
                    // After the loop the pattern begins at the last byte of the class, or is at its
                    // end.
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

    /// KEYS and SCAN compare nothing if the pattern is a single star.
    fn finds_as_server(pattern: &[u8], key: &[u8]) -> bool {
        pattern == b"*" || as_server(pattern, key)
    }

    fn text(alphabet: &'static [u8], most: usize) -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(alphabet), 0..most)
    }

    /// A pattern is rewritten for keys without the prefix `user:`.
    #[test]
    fn pattern_is_rewritten_behind_a_prefix() {
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
        // A class behind the prefix stays as it is, even if servers differ in how they read it.
        assert_eq!(
            Pattern::new(b"user:[\x80-\x90]").behind(b"user:"),
            Left::Same(b"[\x80-\x90]".to_vec())
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// A pattern matches the same keys here as on the server.
        #[test]
        fn pattern_matches_as_the_server_does(
            pattern in text(b"ab*?[]^-\\", 9), key in text(b"abc]^-\\*", 7),
        ) {
            let found = Pattern::new(&pattern).finds(&key);
            let (shown, of) = (pattern.escape_ascii().to_string(), key.escape_ascii().to_string());
            prop_assert_eq!(found, finds_as_server(&pattern, &key), "{} {}", shown, of);
        }

        /// With the rewritten pattern, and the filter behind it, the server finds exactly the keys
        /// that the pattern matches.
        #[test]
        fn rewritten_pattern_finds_the_same_keys(
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
