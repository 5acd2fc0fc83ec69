//! Keyspace notifications of servers that see keys without their prefix.
//!
//! ```text
//!   client    PSUBSCRIBE __keyspace@0__:user:1*      gets __keyspace@0__:user:12
//!   server    PSUBSCRIBE [_a7]_keyspace@0__:1*       says __keyspace@0__:12
//! ```
//!
//! The server is asked for a pattern that has all notifications of the client's one, and more. The
//! prefix is put in front of the key in each, and those that the client's pattern does not match
//! are dropped. Two patterns of clients may lead to the same one of a server. So each has a class
//! in front that holds its number: a notification begins with `_`, so the class changes nothing.

use respool_protocol::encode;
use respool_protocol::events::{self, Event};
use respool_protocol::glob::{Left, Pattern};

use super::{Kind, Push, bulk, line};
use crate::directory::matches;

/// What a server without the prefix is asked for in place of a channel or pattern. `number` tells
/// patterns from each other. `None`: it can bring no notification of that server.
pub(super) fn name_at_server(
    kind: Kind,
    name: &[u8],
    unseen: &[u8],
    number: u32,
) -> Option<Vec<u8>> {
    if unseen.is_empty() {
        return Some(name.to_vec());
    }
    match kind {
        Kind::Pattern if !events::may_match_keys(name) => Some(name.to_vec()),
        Kind::Pattern => Some(pattern_at_server(name, unseen, number)),
        _ => match Event::of(name)? {
            Event {
                head,
                name,
                is_of_key: true,
            } => Some([head, name.strip_prefix(unseen)?].concat()),
            _ => Some(name.to_vec()),
        },
    }
}

fn pattern_at_server(pattern: &[u8], unseen: &[u8], number: u32) -> Vec<u8> {
    let class = format!("[_a{number}]");
    let rest = behind_head(pattern).and_then(|(head, rest)| {
        // Where more is found than is wanted, what is found is looked through.
        match Pattern::new(rest).behind(unseen) {
            Left::Same(left) | Left::More(left) => Some([&head[1..], &left].concat()),
            Left::Unclear => None,
        }
    });
    let rest = rest.unwrap_or_else(|| b"_key*@*__:*".to_vec());
    [class.as_bytes(), &rest].concat()
}

/// The head of a pattern for keys of one database, and what is behind it.
fn behind_head(pattern: &[u8]) -> Option<(&[u8], &[u8])> {
    let number = pattern.strip_prefix(b"__keyspace@")?;
    let is_plain = |byte: &u8| byte.is_ascii_digit() || *byte == b'?';
    let digits = number.iter().take_while(|byte| is_plain(byte)).count();
    let rest = number.get(digits..)?.strip_prefix(b"__:")?;
    Some(pattern.split_at(pattern.len() - rest.len()))
}

/// The channel of a push, as far as the push has come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// The channel of a notification, with the prefix.
    Channel(Vec<u8>),
    /// It has not come so far.
    Unsaid,
    /// It is no notification.
    Other,
}

/// The channel in the beginning of a push of a server that does not see the prefix.
pub(super) fn channel_of(kind: Kind, beginning: &[u8], unseen: &[u8]) -> Begun {
    let channel = || {
        let mut rest = line(beginning)?.1;
        for _ in 0..if kind == Kind::Pattern { 2 } else { 1 } {
            bulk(&mut rest)?;
        }
        bulk(&mut rest)
    };
    match channel() {
        None => Begun::Unsaid,
        Some(channel) => match channel.and_then(Event::of) {
            Some(event) => Begun::Channel(with_prefix(&event, unseen)),
            None => Begun::Other,
        },
    }
}

/// The channel of a notification with the prefix of its key.
fn with_prefix(event: &Event<'_>, unseen: &[u8]) -> Vec<u8> {
    match event.is_of_key {
        true => [event.head, unseen, event.name].concat(),
        false => [event.head, event.name].concat(),
    }
}

/// Whether a notification on this channel is for the subscribers of a channel or pattern.
pub(super) fn is_for(kind: Kind, name: &[u8], channel: &[u8]) -> bool {
    kind != Kind::Pattern || matches(name, channel)
}

/// A notification as a client is to see it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Whole {
    channel: Vec<u8>,
    payload: Vec<u8>,
}

impl Whole {
    /// The notification in a push of a server that does not see the prefix.
    pub(super) fn read(kind: Kind, push: &[u8], unseen: &[u8]) -> Option<Whole> {
        let mut rest = line(push)?.1;
        for _ in 0..if kind == Kind::Pattern { 2 } else { 1 } {
            bulk(&mut rest)??;
        }
        let channel = bulk(&mut rest)??;
        let payload = bulk(&mut rest)??;
        let event = Event::of(channel)?;
        Some(Whole {
            channel: with_prefix(&event, unseen),
            payload: match event.is_of_key {
                true => payload.to_vec(),
                false => [unseen, payload].concat(),
            },
        })
    }

    pub(super) fn channel(&self) -> &[u8] {
        &self.channel
    }

    /// The push for the subscribers of a channel or pattern. `None`: it is not for them.
    pub(super) fn push(&self, kind: Kind, name: &[u8]) -> Option<Vec<u8>> {
        let mut push = Vec::new();
        match kind {
            _ if !is_for(kind, name, &self.channel) => return None,
            Kind::Pattern => {
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

    fn at_server(kind: Kind, name: &str) -> Option<String> {
        let name = name_at_server(kind, name.as_bytes(), b"user:", 7)?;
        Some(String::from_utf8(name).expect("text"))
    }

    /// The server is asked by its own names of keys.
    #[test]
    fn server_is_asked_without_the_prefix() {
        for (kind, name, expected) in [
            (
                Kind::Channel,
                "__keyspace@0__:user:1",
                Some("__keyspace@0__:1"),
            ),
            (Kind::Channel, "__keyspace@0__:other:1", None),
            (
                Kind::Channel,
                "__keyevent@0__:set",
                Some("__keyevent@0__:set"),
            ),
            (
                Kind::Pattern,
                "__keyevent@*__:set",
                Some("__keyevent@*__:set"),
            ),
            (
                Kind::Pattern,
                "__keyspace@0__:user:1*",
                Some("[_a7]_keyspace@0__:1*"),
            ),
            (
                Kind::Pattern,
                "__keyspace@?__:*:1",
                Some("[_a7]_keyspace@?__:*1"),
            ),
            (
                Kind::Pattern,
                "__keyspace@*__:user:1*",
                Some("[_a7]_key*@*__:*"),
            ),
            (Kind::Pattern, "*", Some("[_a7]_key*@*__:*")),
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
        let said = push(&[
            "pmessage",
            "[_a7]_keyspace@0__:1*",
            "__keyspace@0__:12",
            "set",
        ]);
        let whole = Whole::read(Kind::Pattern, &said, b"user:").expect("a notification");
        let name = "__keyspace@0__:user:1*";
        let expected = push(&["pmessage", name, "__keyspace@0__:user:12", "set"]);
        assert_eq!(whole.push(Kind::Pattern, name.as_bytes()), Some(expected));
        assert_eq!(whole.push(Kind::Pattern, b"__keyspace@0__:1*"), None);
        let said = push(&["message", "__keyevent@0__:set", "12"]);
        let whole = Whole::read(Kind::Channel, &said, b"user:").expect("a notification");
        let expected = push(&["message", "__keyevent@0__:set", "user:12"]);
        assert_eq!(whole.push(Kind::Channel, whole.channel()), Some(expected));
        let said = push(&["pmessage", "*", "news", "12"]);
        assert_eq!(Whole::read(Kind::Pattern, &said, b"user:"), None);
        let cut = &push(&["message", "__keyevent@0__:set", "12"])[..40];
        assert_eq!(Whole::read(Kind::Channel, cut, b"user:"), None);
    }

    /// Of a push that is too large, as much as has come tells its channel.
    #[test]
    fn beginning_of_a_push_tells_its_channel() {
        let name = "[_a7]_keyspace@0__:1*";
        let said = push(&["pmessage", name, "__keyspace@0__:12", "set"]);
        let begun = |len: usize| channel_of(Kind::Pattern, &said[..len], b"user:");
        let payload_at = said.len() - "set\r\n".len();
        assert_eq!(begun(60), Begun::Unsaid);
        let channel = b"__keyspace@0__:user:12".to_vec();
        assert_eq!(begun(payload_at), Begun::Channel(channel));
        let said = push(&["pmessage", "*", "news", "x"]);
        assert_eq!(channel_of(Kind::Pattern, &said, b"user:"), Begun::Other);
    }
}
