//! Divides a request among the owners of its keys.

use super::MOVE_BYTES;
use crate::commands::{Begin, CommandId, Find, Spread};
use crate::number;
use crate::request::Span;

/// Most memory of each buffer that a [`Split`] keeps for the next request.
const HELD_BYTES_MAX: usize = 1 << 20;
/// Longest header of a share: `*4294967295\r\n`.
const HEADER_BYTES_MAX: usize = 13;
/// Longest argument with the number of keys: `$10\r\n4294967295\r\n`.
const NUMBER_BYTES_MAX: usize = 17;

/// Divides requests. It keeps its buffers, so it allocates only while these grow.
///
/// The first pass finds the group of every key and counts. The second pass copies every key to its
/// share:
///
/// ```text
///   request   *5\r\n$4\r\nMGET\r\n | $1\r\na\r\n | $1\r\nb\r\n | $1\r\nc\r\n | $1\r\na\r\n
///   order                                0             1             0             0
///   bytes     *4\r\n$4\r\nMGET\r\n$1\r\na\r\n$1\r\nc\r\n$1\r\na\r\n*2\r\n$4\r\nMGET\r\n$1\r\nb\r\n
///             ^ shares[0]                                          ^ shares[1]
/// ```
#[derive(Clone, Debug, Default)]
pub struct Split {
    /// The index of each key's share, in the order of the keys.
    order: Vec<u16>,
    /// The shares, in the order of the first key of each group.
    shares: Vec<ShareSpan>,
    /// The index of each group's share. An entry counts only if that share has this group, so the
    /// table is not cleared between requests.
    share_of_group: Vec<u16>,
    /// The bytes of all shares. Its length never shrinks below the most that a request needed.
    bytes: Vec<u8>,
    /// Scratch buffer for the beginning of a share.
    header: Vec<u8>,
}

/// The position of a share in the bytes of its [`Split`].
#[derive(Clone, Copy, Debug)]
struct ShareSpan {
    group: u16,
    /// Number of its keys.
    keys: u32,
    /// Offset of its first byte.
    start: usize,
    /// In the first pass the bytes of its keys; in the second pass the offset behind its last byte.
    end: usize,
}

/// The part of a request for one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share<'a> {
    /// The group.
    pub group: u16,
    /// The request for the group.
    pub request: &'a [u8],
    /// Number of keys in it.
    pub keys: u32,
}

/// The result of [`Split::divide`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divided {
    /// All keys have one group. The request can go there unchanged, and nothing was copied.
    Whole {
        /// The group.
        group: u16,
    },
    /// Several groups have a share: [`Split::shares`].
    Shares,
}

/// The reason why a request was not divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undivided {
    /// Its keys cannot be found. Any server refuses it, with its own error.
    Keys,
    /// Its keys belong together: the command is not divided, or an option like NX of MSETEX is a
    /// condition on all keys.
    Together,
}

impl Split {
    /// Divides a request whose command has [`Spread::Owners`]. `request` is an array of bulk
    /// strings with the `spans` of the request scanner. `group_of` gives the group of a key: its
    /// slot or server.
    ///
    /// A share has its keys with their values in the order of the request, with duplicates. It also
    /// has the arguments in front of the keys and behind them, with the new number of keys.
    ///
    /// # Errors
    /// When the request must stay whole.
    #[inline]
    pub fn divide(
        &mut self,
        command: CommandId,
        request: &[u8],
        spans: &[Span],
        mut group_of: impl FnMut(&[u8]) -> u16,
    ) -> Result<Divided, Undivided> {
        let layout = Layout::of(command, request, spans)?;
        self.reset();
        let key_bytes = self.count(&layout, request, spans, &mut group_of);
        match self.shares[..] {
            [ShareSpan { group, .. }] => Ok(Divided::Whole { group }),
            _ => {
                self.write(&layout, key_bytes, request, spans);
                Ok(Divided::Shares)
            }
        }
    }

    /// The share of each group, in the order of its first key. Empty unless the last request was
    /// divided into [`Divided::Shares`].
    pub fn shares(&self) -> impl ExactSizeIterator<Item = Share<'_>> {
        let several = self.shares.len() > 1;
        let shares = if several { &self.shares[..] } else { &[] };
        shares.iter().map(|span| Share {
            group: span.group,
            request: &self.bytes[span.start..span.end],
            keys: span.keys,
        })
    }

    /// The index of each key's share, in the order of the keys. [`Merger`](super::Merger) needs it.
    pub fn order(&self) -> &[u16] {
        &self.order
    }

    /// Forgets the request. It frees buffers that a large request made large, and keeps others.
    #[inline]
    pub fn reset(&mut self) {
        self.order.clear();
        self.shares.clear();
        if self.bytes.len() > HELD_BYTES_MAX {
            self.bytes = Vec::new();
        }
        if self.order.capacity() * size_of::<u16>() > HELD_BYTES_MAX {
            self.order = Vec::new();
        }
        if self.shares.capacity() * size_of::<ShareSpan>() > HELD_BYTES_MAX {
            self.shares = Vec::new();
        }
    }

    /// The first pass. Returns the bytes of all keys with their values.
    #[inline]
    fn count(
        &mut self,
        layout: &Layout,
        request: &[u8],
        spans: &[Span],
        group_of: &mut impl FnMut(&[u8]) -> u16,
    ) -> usize {
        let first = layout.first;
        self.order.reserve((layout.behind - first) / layout.step);
        let mut before = spans[first - 1].end;
        for of_key in spans[first..layout.behind].chunks_exact(layout.step) {
            let group = group_of(of_key[0].of(request));
            let share = self.share_of(group);
            // From end to end: the CR LF of the argument before counts in place of the own one.
            let end = of_key[layout.step - 1].end;
            let span = &mut self.shares[usize::from(share)];
            span.keys += 1;
            span.end += (end - before) as usize;
            before = end;
            self.order.push(share);
        }
        (before - spans[first - 1].end) as usize
    }

    #[inline]
    fn share_of(&mut self, group: u16) -> u16 {
        let at = usize::from(group);
        if let Some(&share) = self.share_of_group.get(at)
            && let Some(span) = self.shares.get(usize::from(share))
            && span.group == group
        {
            return share;
        }
        self.add_share(group)
    }

    #[inline(never)]
    fn add_share(&mut self, group: u16) -> u16 {
        let at = usize::from(group);
        if self.share_of_group.len() <= at {
            self.share_of_group.resize(at + 1, 0);
        }
        // There are at most 65,536 groups, so at most as many shares.
        let share = self.shares.len() as u16;
        self.share_of_group[at] = share;
        self.shares.push(ShareSpan {
            group,
            keys: 0,
            start: 0,
            end: 0,
        });
        share
    }

    /// The second pass: writes all shares.
    #[inline]
    fn write(&mut self, layout: &Layout, key_bytes: usize, request: &[u8], spans: &[Span]) {
        let line_end = request.iter().position(|&byte| byte == b'\n');
        let name = &request[line_end.map_or(0, |at| at + 1)..behind(spans, 0)];
        let tail = &request[behind(spans, layout.behind - 1)..behind(spans, spans.len() - 1)];
        let tail_args = spans.len() - layout.behind;

        // Behind each share is room for the surplus bytes of a block copy.
        let around = HEADER_BYTES_MAX + name.len() + NUMBER_BYTES_MAX + tail.len() + MOVE_BYTES;
        let most = key_bytes + self.shares.len() * around;
        if self.bytes.len() < most {
            self.bytes.resize(most, 0);
        }
        let mut at = 0;
        for span in &mut self.shares {
            let keys = span.keys as usize;
            self.header.clear();
            self.header.push(b'*');
            let args = layout.first + keys * layout.step + tail_args;
            number::append(&mut self.header, args as i64);
            self.header.extend_from_slice(b"\r\n");
            self.header.extend_from_slice(name);
            if layout.counted {
                super::number_bulk(&mut self.header, i64::from(span.keys));
            }
            let of_keys = span.end;
            span.start = at;
            span.end = copy_to(&mut self.bytes, at, &self.header);
            at = span.end + of_keys + tail.len() + MOVE_BYTES;
        }

        let mut from = behind(spans, layout.first - 1);
        let of_keys = spans[layout.first..layout.behind].chunks_exact(layout.step);
        for (of_key, &share) in of_keys.zip(&self.order) {
            let to = of_key[layout.step - 1].end as usize + 2;
            let span = &mut self.shares[usize::from(share)];
            span.end = move_to(&mut self.bytes, span.end, &request[from..], to - from);
            from = to;
        }
        for span in &mut self.shares {
            span.end = copy_to(&mut self.bytes, span.end, tail);
        }
    }
}

/// The positions of the keys in a request.
struct Layout {
    /// Index of the first key.
    first: usize,
    /// Index behind the last key and its values.
    behind: usize,
    /// Number of arguments of a key with its values.
    step: usize,
    /// Whether the argument in front of the first key is the number of keys.
    counted: bool,
}

impl Layout {
    fn of(command: CommandId, request: &[u8], spans: &[Span]) -> Result<Layout, Undivided> {
        let command = command.get();
        let [spec] = command.keys else {
            return Err(Undivided::Together);
        };
        let (1, Begin::Index(1), Spread::Owners) =
            (command.keys.len(), spec.begin, command.fan_out.spread)
        else {
            return Err(Undivided::Together);
        };
        let layout = match spec.find {
            Find::Range {
                last: -1,
                step,
                limit: 0 | 1,
            } => Layout {
                first: 1,
                behind: spans.len(),
                step: usize::from(step.max(1)),
                counted: false,
            },
            Find::Count {
                number: 0,
                first: 1,
                step,
            } => {
                let number = spans.get(1).ok_or(Undivided::Keys)?;
                let keys = number::parse(number.of(request)).ok_or(Undivided::Keys)?;
                let keys = usize::try_from(keys).map_err(|_| Undivided::Keys)?;
                let step = usize::from(step.max(1));
                let behind = keys.checked_mul(step).and_then(|args| args.checked_add(2));
                Layout {
                    first: 2,
                    behind: behind.ok_or(Undivided::Keys)?,
                    step,
                    counted: true,
                }
            }
            _ => return Err(Undivided::Together),
        };
        if layout.first >= layout.behind
            || layout.behind > spans.len()
            || !(layout.behind - layout.first).is_multiple_of(layout.step)
        {
            return Err(Undivided::Keys);
        }
        if !is_about_each_key(request, &spans[layout.behind..]) {
            return Err(Undivided::Together);
        }
        Ok(layout)
    }
}

/// Whether the options apply to each key by itself: these are expiry times. An unknown option may
/// be a condition on all keys.
fn is_about_each_key(request: &[u8], mut options: &[Span]) -> bool {
    while let [option, rest @ ..] = options {
        let word = option.of(request);
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        options = if is(b"keepttl") {
            rest
        } else if is(b"ex") || is(b"px") || is(b"exat") || is(b"pxat") {
            // Without its number the server refuses every share.
            rest.get(1..).unwrap_or_default()
        } else {
            return false;
        };
    }
    true
}

/// The offset behind an argument and its CR LF.
fn behind(spans: &[Span], argument: usize) -> usize {
    spans[argument].end as usize + 2
}

/// Copies the first `len` bytes of `from`, as [`copy_to`] does. If they are few, a block of fixed
/// length is copied. The next copy overwrites the surplus bytes.
#[inline]
fn move_to(bytes: &mut [u8], at: usize, from: &[u8], len: usize) -> usize {
    match (
        from.first_chunk::<MOVE_BYTES>(),
        bytes[at..].first_chunk_mut(),
    ) {
        (Some(piece), Some(room)) if len <= MOVE_BYTES => *room = *piece,
        _ => return copy_to(bytes, at, &from[..len]),
    }
    at + len
}

/// Copies a piece to an offset. Returns the offset behind the copy.
#[inline]
fn copy_to(bytes: &mut [u8], at: usize, piece: &[u8]) -> usize {
    let end = at + piece.len();
    bytes[at..end].copy_from_slice(piece);
    end
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::commands::lookup;
    use crate::encode;
    use crate::request::{Found, RequestScanner};

    fn scanned(request: &[u8]) -> Vec<Span> {
        let mut scanner = RequestScanner::default();
        let len = request.len();
        assert_eq!(scanner.scan(request, true), Ok(Found::Request { len }));
        scanner.spans().to_vec()
    }

    fn words_of(request: &[u8]) -> Vec<String> {
        let words = scanned(request).into_iter();
        words
            .map(|span| String::from_utf8_lossy(span.of(request)).into_owned())
            .collect()
    }

    /// Divides a request by the first byte of each key. Returns group, words and number of keys of
    /// each share, or the reason why it was not divided.
    fn divided(split: &mut Split, request: &str) -> Result<Vec<(u16, String, u32)>, Undivided> {
        let words: Vec<&str> = request.split(' ').collect();
        let mut bytes = Vec::new();
        encode::request(&mut bytes, &words);
        let command = lookup(words[0].as_bytes()).unwrap();
        let group_of = |key: &[u8]| u16::from(key[0]);
        Ok(
            match split.divide(command, &bytes, &scanned(&bytes), group_of)? {
                Divided::Whole { group } => {
                    assert_eq!(split.shares().count(), 0);
                    vec![(group, request.to_owned(), split.order().len() as u32)]
                }
                Divided::Shares => split
                    .shares()
                    .map(|share| (share.group, words_of(share.request).join(" "), share.keys))
                    .collect(),
            },
        )
    }

    const A: u16 = b'a' as u16;
    const B: u16 = b'b' as u16;

    /// Each key goes to the share of its group, in the order of the request.
    #[test]
    fn each_key_goes_to_its_group_in_order() {
        let mut split = Split::default();
        let mut shares = |request| divided(&mut split, request).unwrap();
        let share = |group, words: &str, keys| (group, words.to_owned(), keys);
        assert_eq!(
            shares("MGET b1 a1 b2 b1"),
            [share(B, "MGET b1 b2 b1", 3), share(A, "MGET a1", 1)]
        );
        assert_eq!(
            shares("mset a1 x b1 yy a1 z"),
            [share(A, "mset a1 x a1 z", 2), share(B, "mset b1 yy", 1)]
        );
        assert_eq!(shares("DEL a1 a2"), [share(A, "DEL a1 a2", 2)]);
        assert_eq!(
            shares("MSETEX 3 a1 x b1 y a2 z EX 10"),
            [
                share(A, "MSETEX 2 a1 x a2 z EX 10", 2),
                share(B, "MSETEX 1 b1 y EX 10", 1)
            ]
        );
        assert_eq!(shares("EXISTS a b").len(), 2);
        assert_eq!(split.order(), [0, 1]);
    }

    /// A request whose keys belong together, or cannot be found, is not divided.
    #[test]
    fn request_with_keys_that_belong_together_stays_whole() {
        let mut split = Split::default();
        let mut reason = |request| divided(&mut split, request).unwrap_err();
        assert_eq!(reason("MSETNX a 1 b 2"), Undivided::Together);
        assert_eq!(reason("MSETEX 2 a 1 b 2 NX"), Undivided::Together);
        assert_eq!(reason("MSETEX 2 a 1 b 2 EX 10 xx"), Undivided::Together);
        assert_eq!(reason("SUNION a b"), Undivided::Together);
        assert_eq!(reason("MSET a 1 b"), Undivided::Keys);
        assert_eq!(reason("MSETEX 3 a 1 b 2"), Undivided::Keys);
        assert_eq!(reason("MSETEX 0 a 1 b 2"), Undivided::Keys);
        assert_eq!(reason("MSETEX -1 a 1 b 2"), Undivided::Keys);
        assert_eq!(
            reason("MSETEX 9223372036854775807 a 1 b 2"),
            Undivided::Keys
        );
        assert_eq!(reason("MGET"), Undivided::Keys);
    }

    /// Every command that the table divides can be divided.
    #[test]
    fn every_command_that_the_table_divides_is_divided() {
        let owners = crate::commands::all().filter(|id| id.get().fan_out.spread == Spread::Owners);
        for id in owners {
            let name = id.get().name.to_uppercase();
            let request = match &name[..] {
                "MSET" => "MSET a 1 b 2".to_owned(),
                "MSETEX" => "MSETEX 2 a 1 b 2".to_owned(),
                _ => format!("{name} a b"),
            };
            let parts = divided(&mut Split::default(), &request).unwrap();
            assert_eq!(parts.len(), 2, "{request}");
        }
    }

    /// The memory of a large request is freed with the next request.
    #[test]
    fn memory_of_a_large_request_is_freed() {
        let mut split = Split::default();
        let value = "x".repeat(HELD_BYTES_MAX);
        divided(&mut split, &format!("MSET a {value} b 1")).unwrap();
        assert!(split.bytes.capacity() > HELD_BYTES_MAX);
        divided(&mut split, "MGET a b").unwrap();
        assert!(split.bytes.capacity() < 1000);
    }

    /// Requests that are not larger than an earlier one need no new memory.
    #[test]
    fn memory_is_used_again() {
        let mut split = Split::default();
        divided(&mut split, "MSET b 1234567890 a 2 c 3 d 4").unwrap();
        let memory = |split: &Split| {
            let Split {
                order,
                shares,
                share_of_group,
                bytes,
                header,
            } = split;
            let spaces = [
                order.as_ptr().addr(),
                share_of_group.as_ptr().addr(),
                shares.as_ptr().addr(),
            ];
            (spaces, bytes.as_ptr(), header.as_ptr())
        };
        let before = memory(&split);
        for request in [
            "MGET a b c d",
            "MGET a a",
            "MSET d 12 c 34",
            "UNLINK b b b c",
        ] {
            divided(&mut split, request).unwrap();
            assert_eq!(memory(&split), before, "{request}");
        }
    }

    proptest! {
        /// The shares together are the request, for any number of groups, and after other requests.
        #[test]
        fn shares_together_are_the_request(
            requests in prop::collection::vec(
                (prop::collection::vec((any::<u8>(), 0usize..40), 1..60), any::<u8>(), any::<bool>()), 1..5),
        ) {
            let mut split = Split::default();
            for (keys, groups, with_values) in requests {
                let keys: Vec<Vec<u8>> = keys.into_iter().map(|(byte, len)| vec![byte; len]).collect();
                let group_of = |key: &[u8]| {
                    let byte = u16::from(key.first().copied().unwrap_or(0));
                    (byte % (u16::from(groups) + 1)) * 257
                };
                let mut words = vec![if with_values { b"MSET".to_vec() } else { b"MGET".to_vec() }];
                for (at, key) in keys.iter().enumerate() {
                    words.push(key.clone());
                    if with_values {
                        words.push(format!("value {at}").into_bytes());
                    }
                }
                let mut bytes = Vec::new();
                encode::request(&mut bytes, &words);
                let command = lookup(&words[0]).unwrap();
                let step = if with_values { 2 } else { 1 };

                let mut expected: Vec<(u16, Vec<Vec<u8>>)> = Vec::new();
                let mut order = Vec::new();
                for of_key in words[1..].chunks(step) {
                    let group = group_of(&of_key[0]);
                    let share = expected.iter().position(|(other, _)| *other == group).unwrap_or_else(|| {
                        expected.push((group, vec![words[0].clone()]));
                        expected.len() - 1
                    });
                    expected[share].1.extend(of_key.iter().cloned());
                    order.push(share as u16);
                }
                let divided = split.divide(command, &bytes, &scanned(&bytes), group_of);
                prop_assert_eq!(split.order(), &order[..]);
                if expected.len() == 1 {
                    prop_assert_eq!(divided, Ok(Divided::Whole { group: expected[0].0 }));
                    prop_assert_eq!(split.shares().len(), 0);
                    continue;
                }
                prop_assert_eq!(divided, Ok(Divided::Shares));
                prop_assert_eq!(split.shares().len(), expected.len());
                for (share, (group, words)) in split.shares().zip(&expected) {
                    let mut request = Vec::new();
                    encode::request(&mut request, words);
                    prop_assert_eq!(share.group, *group);
                    prop_assert_eq!(share.request, &request[..]);
                    prop_assert_eq!(share.keys as usize, (words.len() - 1) / step);
                }
            }
        }
    }
}
