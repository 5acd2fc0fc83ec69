//! Keyspace notifications: the channels on which a server publishes changes of keys.
//!
//! ```text
//!   __keyspace@0__:user:1      channel of the key `user:1` of database 0; the payload is the event
//!   __keyevent@0__:expired     channel of the event `expired`; the payload is the key
//! ```
//!
//! A server sends them only to its own subscribers, not to other servers. So the servers at which a
//! channel or pattern is subscribed depend on whether it can match such a channel.

/// The beginnings of the channels, up to the number of the database.
const HEADS: [&[u8]; 2] = [b"__keyspace@", b"__keyevent@"];

/// Length of each head.
const HEAD_LEN: usize = HEADS[0].len();

/// The bytes behind the number of the database.
const TAIL: &[u8] = b"__:";

/// States of a match beyond the bytes of the head: at the first digit, behind a digit, and at the
/// name.
const NUMBER: usize = HEAD_LEN;
const DIGITS: usize = NUMBER + 1;
const NAME: usize = DIGITS + TAIL.len();

const _: () = assert!(HEADS[1].len() == HEAD_LEN && NAME < u32::BITS as usize);

/// The channel of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotificationChannel<'a> {
    /// The channel without the name.
    pub head: &'a [u8],
    /// The name of a key or of an event.
    pub name: &'a [u8],
    /// Whether it is the channel of a key.
    pub is_of_key: bool,
}

impl<'a> NotificationChannel<'a> {
    /// Reads a channel. `None` if it is not the channel of a notification.
    pub fn of(channel: &'a [u8]) -> Option<NotificationChannel<'a>> {
        let head = HEADS.iter().find(|head| channel.starts_with(head))?;
        let behind = &channel[HEAD_LEN..];
        let digits = behind.iter().take_while(|byte| byte.is_ascii_digit());
        let digits = digits.count();
        if digits == 0 || !behind[digits..].starts_with(TAIL) {
            return None;
        }
        let (head_and_number, name) = channel.split_at(HEAD_LEN + digits + TAIL.len());
        Some(NotificationChannel {
            head: head_and_number,
            name,
            is_of_key: *head == HEADS[0],
        })
    }
}

/// Whether a channel is the channel of a notification.
pub fn is_event(channel: &[u8]) -> bool {
    NotificationChannel::of(channel).is_some()
}

/// Whether a pattern matches the channel of any key.
pub fn may_match_keys(pattern: &[u8]) -> bool {
    meets(HEADS[0], pattern)
}

/// Whether a pattern matches the channel of any notification. If servers differ in how they read a
/// class, one that matches is enough.
pub fn may_match(pattern: &[u8]) -> bool {
    HEADS.iter().any(|head| meets(head, pattern))
}

/// Whether a pattern matches a channel with this head. A bit of `states` is set for each position
/// in a channel that the pattern may have reached.
fn meets(head: &[u8], pattern: &[u8]) -> bool {
    let mut states: u32 = 1;
    let mut at = 0;
    while at < pattern.len() && states != 0 {
        let (bytes, len) = match pattern[at] {
            b'*' => {
                // A star reaches every later position: positions form one sequence.
                states = (!0 << states.trailing_zeros()) & ((1 << (NAME + 1)) - 1);
                at += 1;
                continue;
            }
            b'?' => (Bytes::ALL, 1),
            b'[' => class(&pattern[at..]),
            b'\\' if at + 1 < pattern.len() => (Bytes::one(pattern[at + 1]), 2),
            byte => (Bytes::one(byte), 1),
        };
        let mut next = 0;
        for state in (0..=NAME).filter(|state| states & 1 << state != 0) {
            next |= next_states(head, state, &bytes);
        }
        states = next;
        at += len;
    }
    states & 1 << NAME != 0
}

/// The states that follow a state if the pattern matches one of these bytes.
fn next_states(head: &[u8], state: usize, bytes: &Bytes) -> u32 {
    let step = |fits: bool, to: usize| u32::from(fits) << to;
    let is_digit = || (b'0'..=b'9').any(|digit| bytes.has(digit));
    match state {
        ..NUMBER => step(bytes.has(head[state]), state + 1),
        NUMBER => step(is_digit(), DIGITS),
        DIGITS => step(is_digit(), DIGITS) | step(bytes.has(TAIL[0]), DIGITS + 1),
        _ if state < NAME => step(bytes.has(TAIL[state - DIGITS]), state + 1),
        _ => step(!bytes.is_empty(), NAME),
    }
}

/// A set of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bytes([u128; 2]);

impl Bytes {
    const ALL: Bytes = Bytes([!0; 2]);
    const NONE: Bytes = Bytes([0; 2]);

    fn one(byte: u8) -> Bytes {
        let mut bytes = Bytes::NONE;
        bytes.add(byte, byte);
        bytes
    }

    fn has(&self, byte: u8) -> bool {
        self.0[usize::from(byte >> 7)] & 1 << (byte & 127) != 0
    }

    fn is_empty(&self) -> bool {
        *self == Bytes::NONE
    }

    fn add(&mut self, low: u8, high: u8) {
        for half in 0..2_u8 {
            let (start, end) = (half << 7, half << 7 | 127);
            let (from, to) = (low.max(start), high.min(end));
            if from <= to {
                self.0[usize::from(half)] |= !0 >> (127 - (to - from)) << (from - start);
            }
        }
    }

    fn or(self, other: Bytes) -> Bytes {
        Bytes([self.0[0] | other.0[0], self.0[1] | other.0[1]])
    }

    fn not(self) -> Bytes {
        Bytes(self.0.map(|half| !half))
    }
}

/// The bytes of the class at the beginning of a pattern, and its length. The steps are those of the
/// servers (`stringmatchlen`, util.c). Some servers compare the ends of a range as signed bytes,
/// others as unsigned bytes. The range has the bytes of both.
fn class(pattern: &[u8]) -> (Bytes, usize) {
    let mut at = 1;
    let is_not = pattern.get(at) == Some(&b'^');
    at += usize::from(is_not);
    let (mut with_sign, mut without) = (Bytes::NONE, Bytes::NONE);
    let mut add = |low: u8, high: u8| {
        without.add(low.min(high), low.max(high));
        let signed = |byte: u8| byte.cast_signed();
        let (low, high) = (signed(low).min(signed(high)), signed(low).max(signed(high)));
        match (low < 0, high < 0) {
            (true, false) => {
                with_sign.add(low.cast_unsigned(), u8::MAX);
                with_sign.add(0, high.cast_unsigned());
            }
            _ => with_sign.add(low.cast_unsigned(), high.cast_unsigned()),
        }
    };
    loop {
        match &pattern[at.min(pattern.len())..] {
            [] => break,
            [b'\\', escaped, ..] => {
                add(*escaped, *escaped);
                at += 2;
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            [from, b'-', to, ..] => {
                add(*from, *to);
                at += 3;
            }
            [one, ..] => {
                add(*one, *one);
                at += 1;
            }
        }
    }
    let bytes = match is_not {
        true => with_sign.not().or(without.not()),
        false => with_sign.or(without),
    };
    (bytes, at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::glob::Pattern;

    /// The channel of a notification has a head, a number and the tail.
    #[test]
    fn event_channels_are_recognised() {
        let events = [
            "__keyspace@0__:user:1",
            "__keyspace@15__:",
            "__keyevent@0__:expired",
        ];
        let others = [
            "",
            "news",
            "__key",
            "__keyboard",
            "__keyspace@__:k",
            "__keyspace@0_:k",
            "__keyspace@0__k",
            "__keyspace@x__:k",
            "__keyspace@0",
            "_keyspace@0__:k",
            "x__keyspace@0__:k",
        ];
        for channel in events {
            assert!(is_event(channel.as_bytes()), "{channel}");
            assert!(may_match(channel.as_bytes()), "{channel}");
        }
        for channel in others {
            assert!(!is_event(channel.as_bytes()), "{channel}");
            assert!(!may_match(channel.as_bytes()), "{channel}");
        }
    }

    /// `may_match` is true for patterns that match the channel of a notification, and false for
    /// others.
    #[test]
    fn patterns_that_match_an_event_are_found() {
        let some: [&[u8]; 24] = [
            b"*",
            b"**",
            b"_*",
            b"__*",
            b"__key*",
            b"__key*__:*",
            b"__key*@*__:*",
            b"__keyspace@0__:user:*",
            b"__keyspace@?__:k",
            b"__keyspace@1?__:k",
            b"__keyspace@[0-9]*__:*",
            b"__keyevent@*__:expired",
            b"?_key*",
            b"???????????????",
            b"[_][^a]key*",
            b"[^a-z]*",
            b"\\_\\_key*",
            b"__key[es]*",
            b"*:expired",
            b"*expired",
            b"*@*",
            b"__keyspace@0__:[^a]",
            b"__keyspace@0__:[\xf0-\xff]",
            b"*a*b*c*",
        ];
        let none: [&[u8]; 22] = [
            b"",
            b"news*",
            b"__",
            b"__?",
            b"__keyboard*",
            b"__key[^es]*",
            b"__keyspace@[a-z]*__:k",
            b"__keyspace@?",
            b"__keyspace@??:*",
            b"__keyspace@0__[^:]*",
            b"[a-z]*",
            b"[^_]*",
            b"[]*",
            b"\\**",
            b"??????????????",
            b"_[_",
            b"__keyevent@0__expired",
            b"__KEY*",
            b"__keyspace@0__:[]",
            b"[a-c]*",
            b"a*",
            b"?[^_]*",
        ];
        for pattern in some {
            assert!(may_match(pattern), "{}", pattern.escape_ascii());
        }
        for pattern in none {
            assert!(!may_match(pattern), "{}", pattern.escape_ascii());
        }
    }

    fn channels() -> impl Strategy<Value = Vec<u8>> {
        let name = prop::collection::vec(prop::sample::select(&b"ab*?[]^-\\:_"[..]), 0..4);
        let number = prop::sample::select(&["0", "7", "15"][..]);
        (0..HEADS.len(), number, name)
            .prop_map(|(head, number, name)| [HEADS[head], number.as_bytes(), TAIL, &name].concat())
    }

    /// Makes a pattern from a channel by replacing some bytes.
    fn pattern_of(channel: &[u8], pieces: &[u8]) -> Vec<u8> {
        let mut pattern = Vec::new();
        for (at, byte) in channel.iter().enumerate() {
            match pieces.get(at % pieces.len().max(1)) {
                Some(0) => pattern.push(b'*'),
                Some(1) => pattern.extend([b'*', *byte, b'*']),
                Some(2) => pattern.push(b'?'),
                Some(3) => pattern.extend([b'[', *byte, b']']),
                Some(4) => pattern.extend([b'[', b'^', b'x', b']']),
                Some(5) => pattern.extend([b'[', b'!', b'-', b'~', b']']),
                Some(6) => pattern.extend([b'\\', *byte]),
                _ => pattern.push(*byte),
            }
        }
        pattern
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// Every pattern that matches the channel of a notification is recognised.
        #[test]
        fn no_pattern_with_events_is_missed(
            channel in channels(), pieces in prop::collection::vec(0..12_u8, 1..9),
        ) {
            let pattern = pattern_of(&channel, &pieces);
            prop_assert!(is_event(&channel));
            if Pattern::new(&pattern).finds(&channel) {
                prop_assert!(may_match(&pattern), "{}", pattern.escape_ascii());
            }
        }

        /// The set of a class has the bytes that the server matches.
        #[test]
        fn class_has_the_bytes_that_the_server_matches(
            inner in prop::collection::vec(prop::sample::select(&b"ab_0-9^\\]"[..]), 0..8), byte in 0..128_u8,
        ) {
            let pattern = [b"[", &inner[..]].concat();
            let (bytes, len) = class(&pattern);
            let whole = &pattern[..len.min(pattern.len())];
            prop_assert_eq!(bytes.has(byte), Pattern::new(whole).finds(&[byte]), "{}", whole.escape_ascii());
        }
    }
}
