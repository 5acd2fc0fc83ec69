//! Keyspace notifications of servers that see keys without their prefix.
//!
//! ```text
//!   client    PSUBSCRIBE __keyspace@0__:user:1*      gets   __keyspace@0__:user:12
//!   server    PSUBSCRIBE [_a7]_keyspace@0__:1*       sends  __keyspace@0__:12
//! ```
//!
//! The hub asks the server for a pattern that matches all notifications of the client's pattern,
//! and may match more. It puts the prefix in front of the key in each notification, and drops
//! notifications that the client's pattern does not match. Two patterns of clients may lead to the
//! same pattern at a server. So each has a class in front with its number. A notification begins
//! with `_`, so the class changes nothing.

use respool_protocol::encode;
use respool_protocol::events::{self, NotificationChannel};
use respool_protocol::glob::{Left, Pattern};

use crate::base::glob::matches;

use super::{ChannelKind, Push, bulk, line};

/// The name at a server without the prefix, in place of a client's channel or pattern. `number`
/// tells patterns from each other. `None`: that server has no notification for it.
pub(super) fn name_at_server(
    kind: ChannelKind,
    name: &[u8],
    removed_prefix: &[u8],
    number: u32,
) -> Option<Vec<u8>> {
    if removed_prefix.is_empty() {
        return Some(name.to_vec());
    }
    match kind {
        ChannelKind::Pattern if !events::may_match_keys(name) => Some(name.to_vec()),
        ChannelKind::Pattern => Some(pattern_at_server(name, removed_prefix, number)),
        _ => match NotificationChannel::of(name)? {
            NotificationChannel {
                head,
                name,
                is_of_key: true,
            } => Some([head, name.strip_prefix(removed_prefix)?].concat()),
            _ => Some(name.to_vec()),
        },
    }
}

fn pattern_at_server(pattern: &[u8], removed_prefix: &[u8], number: u32) -> Vec<u8> {
    let class = format!("[_a{number}]");
    let rest = behind_head(pattern).and_then(|(head, rest)| {
        // A pattern that matches more is fine: its notifications are filtered later.
        match Pattern::new(rest).behind(removed_prefix) {
            Left::Same(left) | Left::More(left) => Some([&head[1..], &left].concat()),
            Left::Unclear => None,
        }
    });
    let rest = rest.unwrap_or_else(|| b"_key*@*__:*".to_vec());
    [class.as_bytes(), &rest].concat()
}

/// The head of a pattern for keys of one database, and the pattern behind it.
fn behind_head(pattern: &[u8]) -> Option<(&[u8], &[u8])> {
    let number = pattern.strip_prefix(b"__keyspace@")?;
    let is_plain = |byte: &u8| byte.is_ascii_digit() || *byte == b'?';
    let digits = number.iter().take_while(|byte| is_plain(byte)).count();
    let rest = number.get(digits..)?.strip_prefix(b"__:")?;
    Some(pattern.split_at(pattern.len() - rest.len()))
}

/// The channel of a push, as far as the push has come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PartialPush {
    /// The channel of a notification, with the prefix.
    Channel(Vec<u8>),
    /// Too little of the push has come.
    Undecided,
    /// The push is no notification.
    Other,
}

/// The channel in the beginning of a push of a server that does not see the prefix.
pub(super) fn channel_of(
    kind: ChannelKind,
    beginning: &[u8],
    removed_prefix: &[u8],
) -> PartialPush {
    let channel = || {
        let mut rest = line(beginning)?.1;
        for _ in 0..if kind == ChannelKind::Pattern { 2 } else { 1 } {
            bulk(&mut rest)?;
        }
        bulk(&mut rest)
    };
    match channel() {
        None => PartialPush::Undecided,
        Some(channel) => match channel.and_then(NotificationChannel::of) {
            Some(event) => PartialPush::Channel(with_prefix(&event, removed_prefix)),
            None => PartialPush::Other,
        },
    }
}

/// The channel of a notification with the prefix of its key.
fn with_prefix(event: &NotificationChannel<'_>, removed_prefix: &[u8]) -> Vec<u8> {
    match event.is_of_key {
        true => [event.head, removed_prefix, event.name].concat(),
        false => [event.head, event.name].concat(),
    }
}

/// Whether a notification on this channel is for the subscribers of a channel or pattern.
pub(super) fn is_for(kind: ChannelKind, name: &[u8], channel: &[u8]) -> bool {
    kind != ChannelKind::Pattern || matches(name, channel)
}

/// A notification as the client sees it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FullPush {
    channel: Vec<u8>,
    payload: Vec<u8>,
}

impl FullPush {
    /// The notification in a push of a server that does not see the prefix.
    pub(super) fn read(kind: ChannelKind, push: &[u8], removed_prefix: &[u8]) -> Option<FullPush> {
        let mut rest = line(push)?.1;
        for _ in 0..if kind == ChannelKind::Pattern { 2 } else { 1 } {
            bulk(&mut rest)??;
        }
        let channel = bulk(&mut rest)??;
        let payload = bulk(&mut rest)??;
        let event = NotificationChannel::of(channel)?;
        Some(FullPush {
            channel: with_prefix(&event, removed_prefix),
            payload: match event.is_of_key {
                true => payload.to_vec(),
                false => [removed_prefix, payload].concat(),
            },
        })
    }

    pub(super) fn channel(&self) -> &[u8] {
        &self.channel
    }

    /// The push for the subscribers of a channel or pattern. `None`: it is not for them.
    pub(super) fn push(&self, kind: ChannelKind, name: &[u8]) -> Option<Vec<u8>> {
        let mut push = Vec::new();
        match kind {
            _ if !is_for(kind, name, &self.channel) => return None,
            ChannelKind::Pattern => {
                encode::array(&mut push, 4);
                encode::bulk(&mut push, b"pmessage");
                encode::bulk(&mut push, name);
            }
            _ => {
                encode::array(&mut push, 3);
                encode::bulk(&mut push, b"message");
            }
        }
        encode::bulk(&mut push, &self.channel);
        encode::bulk(&mut push, &self.payload);
        push[0] = b'>';
        debug_assert!(Push::read(&push).is_some());
        Some(push)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_server(kind: ChannelKind, name: &str) -> Option<String> {
        let name = name_at_server(kind, name.as_bytes(), b"user:", 7)?;
        Some(String::from_utf8(name).expect("text"))
    }

    /// The server gets its own names of keys.
    #[test]
    fn server_is_asked_without_the_prefix() {
        for (kind, name, expected) in [
            (
                ChannelKind::Channel,
                "__keyspace@0__:user:1",
                Some("__keyspace@0__:1"),
            ),
            (ChannelKind::Channel, "__keyspace@0__:other:1", None),
            (
                ChannelKind::Channel,
                "__keyevent@0__:set",
                Some("__keyevent@0__:set"),
            ),
            (
                ChannelKind::Pattern,
                "__keyevent@*__:set",
                Some("__keyevent@*__:set"),
            ),
            (
                ChannelKind::Pattern,
                "__keyspace@0__:user:1*",
                Some("[_a7]_keyspace@0__:1*"),
            ),
            (
                ChannelKind::Pattern,
                "__keyspace@?__:*:1",
                Some("[_a7]_keyspace@?__:*1"),
            ),
            (
                ChannelKind::Pattern,
                "__keyspace@*__:user:1*",
                Some("[_a7]_key*@*__:*"),
            ),
            (ChannelKind::Pattern, "*", Some("[_a7]_key*@*__:*")),
        ] {
            assert_eq!(at_server(kind, name).as_deref(), expected, "{name}");
        }
    }

    fn push(words: &[&str]) -> Vec<u8> {
        let mut push = Vec::new();
        encode::array(&mut push, words.len());
        for word in words {
            encode::bulk(&mut push, word.as_bytes());
        }
        push[0] = b'>';
        push
    }

    /// A client sees whole keys, and nothing that its own pattern does not match.
    #[test]
    fn client_sees_whole_keys() {
        let bytes = push(&[
            "pmessage",
            "[_a7]_keyspace@0__:1*",
            "__keyspace@0__:12",
            "set",
        ]);
        let whole = FullPush::read(ChannelKind::Pattern, &bytes, b"user:").expect("a notification");
        let name = "__keyspace@0__:user:1*";
        let expected = push(&["pmessage", name, "__keyspace@0__:user:12", "set"]);
        assert_eq!(
            whole.push(ChannelKind::Pattern, name.as_bytes()),
            Some(expected)
        );
        assert_eq!(whole.push(ChannelKind::Pattern, b"__keyspace@0__:1*"), None);
        let bytes = push(&["message", "__keyevent@0__:set", "12"]);
        let whole = FullPush::read(ChannelKind::Channel, &bytes, b"user:").expect("a notification");
        let expected = push(&["message", "__keyevent@0__:set", "user:12"]);
        assert_eq!(
            whole.push(ChannelKind::Channel, whole.channel()),
            Some(expected)
        );
        let bytes = push(&["pmessage", "*", "news", "12"]);
        assert_eq!(FullPush::read(ChannelKind::Pattern, &bytes, b"user:"), None);
        let cut = &push(&["message", "__keyevent@0__:set", "12"])[..40];
        assert_eq!(FullPush::read(ChannelKind::Channel, cut, b"user:"), None);
    }

    /// The beginning of a push that is too large gives its channel.
    #[test]
    fn beginning_of_a_push_tells_its_channel() {
        let name = "[_a7]_keyspace@0__:1*";
        let bytes = push(&["pmessage", name, "__keyspace@0__:12", "set"]);
        let begun = |len: usize| channel_of(ChannelKind::Pattern, &bytes[..len], b"user:");
        let payload_at = bytes.len() - "set\r\n".len();
        assert_eq!(begun(60), PartialPush::Undecided);
        let channel = b"__keyspace@0__:user:12".to_vec();
        assert_eq!(begun(payload_at), PartialPush::Channel(channel));
        let bytes = push(&["pmessage", "*", "news", "x"]);
        assert_eq!(
            channel_of(ChannelKind::Pattern, &bytes, b"user:"),
            PartialPush::Other
        );
    }
}
