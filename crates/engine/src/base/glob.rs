//! Glob patterns, as PSUBSCRIBE and CONFIG GET take them.

/// Whether a pattern matches a name, as in Redis (`stringmatchlen`): `*`, `?`, `[a-c]`,
/// `[^a]`, and `\` in front of a literal character.
pub(crate) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut of) = (0, 0);
    // Where to continue if the pattern does not match behind the last `*`: the star takes one byte
    // more. Only the last star needs a retry, since an earlier one can take no byte that this one
    // cannot.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if at < pattern.len() && pattern[at] == b'*' {
            at += 1;
            retry = Some((at, of));
            continue;
        }
        if of == name.len() && at == pattern.len() {
            return true;
        }
        if of < name.len()
            && at < pattern.len()
            && let Some(behind) = matches_one(pattern, at, name[of])
        {
            at = behind;
            of += 1;
            continue;
        }
        match retry {
            Some((star, from)) if from < name.len() => {
                retry = Some((star, from + 1));
                at = star;
                of = from + 1;
            }
            _ => return false,
        }
    }
}

/// The place behind the pattern's element at `at`, if that element matches this byte.
fn matches_one(pattern: &[u8], at: usize, byte: u8) -> Option<usize> {
    match pattern[at] {
        b'?' => Some(at + 1),
        b'[' => {
            let mut at = at + 1;
            let not = pattern.get(at) == Some(&b'^');
            at += usize::from(not);
            let mut found = false;
            loop {
                match &pattern[at.min(pattern.len())..] {
                    // A class without a closing bracket ends with the pattern.
                    [] => break,
                    [b'\\', escaped, ..] => {
                        found |= *escaped == byte;
                        at += 2;
                    }
                    [b']', ..] => {
                        at += 1;
                        break;
                    }
                    [from, b'-', to, ..] => {
                        found |= (*from.min(to)..=*from.max(to)).contains(&byte);
                        at += 3;
                    }
                    [one, ..] => {
                        found |= *one == byte;
                        at += 1;
                    }
                }
            }
            (found != not).then_some(at)
        }
        b'\\' if at + 1 < pattern.len() => (pattern[at + 1] == byte).then_some(at + 2),
        one => (one == byte).then_some(at + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pattern matches the names that it matches in Redis.
    #[test]
    fn pattern_matches_as_in_redis() {
        let cases: &[(&str, &str, bool)] = &[
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("**", "abc", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abcdef", false),
            ("*bc", "abcbc", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h[a-c]llo", "hdllo", false),
            // The end of this range is the bracket: the class goes on to the end.
            ("h[a-]llo", "hl", true),
            ("[\\]]x", "]x", true),
            ("[a", "a", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("a\\", "a\\", true),
            ("news.*", "news.", true),
            ("news.*", "new", false),
            ("__key*@[0-9]*__:*", "__keyspace@12__:k", true),
        ];
        for &(pattern, name, expected) in cases {
            assert_eq!(
                matches(pattern.as_bytes(), name.as_bytes()),
                expected,
                "{pattern} on {name}"
            );
        }
        // A matcher that retries every star would need years for this.
        assert!(!matches(
            "a*".repeat(40).as_bytes(),
            "a".repeat(39).as_bytes()
        ));
    }
}
