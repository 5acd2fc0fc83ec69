//! Reads the messages that a Sentinel publishes, as RESP2 messages and RESP3 pushes.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, reason = "it reads bytes of a server")
)]

use std::str;

use super::answers::{host_of, name_text, read_up_to, shown, text};
use super::{AnswerError, Endpoint, MESSAGE_BYTES_MAX};
use crate::number;
use crate::value::Value;

/// The channels to subscribe to: their messages change the primary, or are a reason to ask again. A
/// Sentinel publishes other steps of a failover on more channels.
pub const CHANNELS: [&str; 19] = [
    "+switch-master",
    "+failover-state-wait-promotion",
    "+promoted-slave",
    "+sdown",
    "-sdown",
    "+odown",
    "-odown",
    "+reboot",
    "+slave",
    "+slave-reconf-done",
    "+role-change",
    "-role-change",
    "+sentinel",
    "+sentinel-address-switch",
    "+sentinel-invalid-addr",
    "+monitor",
    "-monitor",
    "+reset-master",
    "+set",
];

/// One message on a subscribed connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A channel is subscribed. After the last channel no event is missed, so then ask the
    /// Sentinel.
    Subscribed {
        /// Number of subscribed channels; the last confirmation has the length of [`CHANNELS`].
        channels: u64,
    },
    /// An event on one of [`CHANNELS`].
    Event(FailoverEvent),
    /// The answer to PING.
    Pong,
    /// Any other message.
    Other,
}

/// An event that may need a reaction. `name` is the name of the primary that it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailoverEvent {
    /// Another server is the primary: `+switch-master`.
    Switched {
        /// Name of the primary.
        name: String,
        /// Address of the old primary.
        from: Option<Endpoint>,
        /// Address of the new primary; `None` if the Sentinel does not know it: ask.
        to: Option<Endpoint>,
    },
    /// A replica got the order to become primary, and may be one at any moment:
    /// `+failover-state-wait-promotion`. Only the leading Sentinel publishes it. It asks the
    /// replica for its role once a second, and gives its address to clients only after that.
    Promoting {
        /// Name of the primary.
        name: String,
        /// Address of the replica; `None` if the Sentinel does not know it.
        to: Option<Endpoint>,
    },
    /// A replica has become primary: `+promoted-slave`. Only the leading Sentinel publishes it, and
    /// gives the new address to clients from now on. It publishes [`FailoverEvent::Switched`] when
    /// the other replicas follow. That may take up to its failover timeout.
    Promoted {
        /// Name of the primary.
        name: String,
        /// Address of the new primary; `None` if the Sentinel does not know it.
        to: Option<Endpoint>,
    },
    /// A server or Sentinel is down: `+sdown`, `+odown`.
    Down {
        /// The server or Sentinel.
        instance: Instance,
        /// Whether a quorum of Sentinels agrees: `+odown`.
        is_agreed: bool,
    },
    /// A server or Sentinel is no longer down: `-sdown`, `-odown`.
    Up {
        /// The server or Sentinel.
        instance: Instance,
        /// Whether it ends a state on which a quorum agreed: `-odown`.
        is_agreed: bool,
    },
    /// A server has restarted, without its unsaved data: `+reboot`.
    Rebooted {
        /// The server.
        instance: Instance,
    },
    /// The replicas have changed, or a replica has changed its primary or role: ask for them.
    Replicas {
        /// Name of their primary.
        name: String,
    },
    /// A Sentinel is new or has another address: ask for the Sentinels.
    Sentinels {
        /// Name of the primary that they watch.
        name: String,
    },
    /// A primary is watched from now on or no longer, was reset or reconfigured, or reports another
    /// role: ask for everything.
    Names {
        /// Name of the primary.
        name: String,
    },
}

/// The server or Sentinel that a message concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its relation to the primary.
    pub kind: Kind,
    /// Name of the primary.
    pub name: String,
    /// Its address; `None` if the Sentinel does not know it.
    pub endpoint: Option<Endpoint>,
}

/// The relation of an instance to a primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is the primary itself.
    Primary,
    /// It is a replica of the primary.
    Replica,
    /// It is a Sentinel that watches the primary.
    Sentinel,
}

impl FailoverEvent {
    /// The name of the primary that the event concerns.
    pub fn name(&self) -> &str {
        match self {
            FailoverEvent::Switched { name, .. }
            | FailoverEvent::Promoting { name, .. }
            | FailoverEvent::Promoted { name, .. }
            | FailoverEvent::Replicas { name }
            | FailoverEvent::Sentinels { name }
            | FailoverEvent::Names { name } => name,
            FailoverEvent::Down { instance, .. }
            | FailoverEvent::Up { instance, .. }
            | FailoverEvent::Rebooted { instance } => &instance.name,
        }
    }

    /// Reads the text of a message. `None` if the channel is not one of [`CHANNELS`].
    ///
    /// # Errors
    /// When the text is malformed. An event has still happened: ask for everything.
    pub fn read(channel: &[u8], text: &[u8]) -> Result<Option<FailoverEvent>, AnswerError> {
        let text = str::from_utf8(text).map_err(|_| AnswerError::Field(EVENT, shown(text)))?;
        let mut words = Words {
            words: text.split(' '),
            text,
        };
        let event = match channel {
            b"+switch-master" => {
                let name = words.name()?;
                let (from, to) = (words.endpoint()?, words.endpoint()?);
                FailoverEvent::Switched { name, from, to }
            }
            b"+failover-state-wait-promotion" => {
                let Instance { name, endpoint, .. } = words.instance()?;
                let to = endpoint;
                FailoverEvent::Promoting { name, to }
            }
            b"+promoted-slave" => {
                let Instance { name, endpoint, .. } = words.instance()?;
                let to = endpoint;
                FailoverEvent::Promoted { name, to }
            }
            b"+sdown" | b"+odown" => FailoverEvent::Down {
                instance: words.instance()?,
                is_agreed: channel == b"+odown",
            },
            b"-sdown" | b"-odown" => FailoverEvent::Up {
                instance: words.instance()?,
                is_agreed: channel == b"-odown",
            },
            b"+reboot" => FailoverEvent::Rebooted {
                instance: words.instance()?,
            },
            b"+slave" | b"+slave-reconf-done" | b"+role-change" | b"-role-change" => {
                match words.instance()? {
                    // The primary has become a replica, or is a primary again.
                    Instance {
                        kind: Kind::Primary,
                        name,
                        ..
                    } => FailoverEvent::Names { name },
                    Instance { name, .. } => FailoverEvent::Replicas { name },
                }
            }
            b"+sentinel" | b"+sentinel-address-switch" | b"+sentinel-invalid-addr" => {
                let Instance { name, .. } = words.instance()?;
                FailoverEvent::Sentinels { name }
            }
            b"+monitor" | b"-monitor" | b"+reset-master" | b"+set" => {
                let Instance { name, .. } = words.instance()?;
                FailoverEvent::Names { name }
            }
            _ => return Ok(None),
        };
        Ok(Some(event))
    }
}

impl Message {
    /// Reads one message of a connection that has sent [`ask_events`](super::ask_events), or the
    /// answer to PING there.
    ///
    /// # Errors
    /// When the message is malformed; [`AnswerError::Refused`] if the Sentinel refused a request.
    pub fn read(message: &[u8]) -> Result<Message, AnswerError> {
        const FORM: AnswerError = AnswerError::Form("a message");
        const COUNT: &str = "number of channels";
        let value = read_up_to(message, MESSAGE_BYTES_MAX)?;
        let parts = match &value {
            Value::List(parts) => parts.as_slice(),
            // The form for RESP3, and for connections without a subscription.
            Value::Line(pong) if pong == b"PONG" => return Ok(Message::Pong),
            _ => return Err(FORM),
        };
        let bytes = |part: &'_ Value| part.text().map(<[u8]>::to_vec).ok_or(FORM);
        let (kind, rest) = parts.split_first().ok_or(FORM)?;
        let kind = text("kind of a message", kind)?;
        let (channel, published) = match (kind, rest) {
            ("message", [channel, published]) | ("pmessage", [_, channel, published]) => {
                (bytes(channel)?, bytes(published)?)
            }
            ("subscribe", [_, Value::Integer(channels)]) => {
                let channels = u64::try_from(*channels);
                let channels = channels.map_err(|_| AnswerError::Form(COUNT))?;
                return Ok(Message::Subscribed { channels });
            }
            ("pong", [_]) => return Ok(Message::Pong),
            ("message" | "pmessage" | "subscribe" | "pong", _) => return Err(FORM),
            _ => return Ok(Message::Other),
        };
        let event = FailoverEvent::read(&channel, &published)?;
        Ok(event.map_or(Message::Other, Message::Event))
    }
}

const EVENT: &str = "text of a message";

/// The words of a message. The word of an unknown host is empty.
struct Words<'a> {
    words: str::Split<'a, char>,
    text: &'a str,
}

impl<'a> Words<'a> {
    fn next(&mut self) -> Result<&'a str, AnswerError> {
        self.words.next().ok_or_else(|| self.wrong())
    }

    fn name(&mut self) -> Result<String, AnswerError> {
        name_text(self.next()?)
    }

    fn endpoint(&mut self) -> Result<Option<Endpoint>, AnswerError> {
        let (host, port) = (self.next()?, self.next()?);
        let host = host_of("host of a message", host)?;
        let port = number::parse(port.as_bytes()).and_then(|port| u16::try_from(port).ok());
        let port = port.ok_or_else(|| self.wrong())?;
        Ok(host
            .filter(|_| port != 0)
            .map(|host| Endpoint { host, port }))
    }

    /// Reads `master NAME HOST PORT`, or for others `KIND ITS-NAME HOST PORT @ NAME HOST PORT`.
    /// More words may follow.
    fn instance(&mut self) -> Result<Instance, AnswerError> {
        let kind = match self.next()? {
            "master" | "primary" => Kind::Primary,
            "slave" | "replica" => Kind::Replica,
            "sentinel" => Kind::Sentinel,
            _ => return Err(self.wrong()),
        };
        let own = self.next()?;
        let endpoint = self.endpoint()?;
        let name = if kind == Kind::Primary {
            name_text(own)?
        } else if self.next()? == "@" {
            self.name()?
        } else {
            return Err(self.wrong());
        };
        Ok(Instance {
            kind,
            name,
            endpoint,
        })
    }

    fn wrong(&self) -> AnswerError {
        AnswerError::Field(EVENT, shown(self.text.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(host: &str, port: u16) -> Option<Endpoint> {
        let host = host.to_owned();
        Some(Endpoint { host, port })
    }

    fn instance(kind: Kind, name: &str, endpoint: Option<Endpoint>) -> Instance {
        Instance {
            kind,
            name: name.to_owned(),
            endpoint,
        }
    }

    fn event(channel: &str, text: &str) -> Result<Option<FailoverEvent>, AnswerError> {
        FailoverEvent::read(channel.as_bytes(), text.as_bytes())
    }

    /// Switches and promotions are read, with host names, IPv4 and IPv6 addresses, and unknown
    /// hosts.
    #[test]
    fn switches_and_promotions_are_read() {
        let name = || "m".to_owned();
        for (channel, text, expected) in [
            (
                "+switch-master",
                "m 10.0.0.1 6379 one.example 6380",
                FailoverEvent::Switched {
                    name: name(),
                    from: at("10.0.0.1", 6379),
                    to: at("one.example", 6380),
                },
            ),
            (
                "+switch-master",
                "m ::1 6379  6380",
                FailoverEvent::Switched {
                    name: name(),
                    from: at("::1", 6379),
                    to: None,
                },
            ),
            (
                "+promoted-slave",
                "slave ::1:7 ::1 7 @ m ::1 6",
                FailoverEvent::Promoted {
                    name: name(),
                    to: at("::1", 7),
                },
            ),
        ] {
            assert_read(channel, text, expected);
        }
    }

    /// Changes of the health of a server or Sentinel are read.
    #[test]
    fn health_changes_are_read() {
        for (channel, text, expected) in [
            (
                "+sdown",
                "master m h 6",
                FailoverEvent::Down {
                    instance: instance(Kind::Primary, "m", at("h", 6)),
                    is_agreed: false,
                },
            ),
            (
                "+odown",
                "master m h 6 #quorum 2/2",
                FailoverEvent::Down {
                    instance: instance(Kind::Primary, "m", at("h", 6)),
                    is_agreed: true,
                },
            ),
            (
                "-sdown",
                "slave h:7 h 7 @ m h 6",
                FailoverEvent::Up {
                    instance: instance(Kind::Replica, "m", at("h", 7)),
                    is_agreed: false,
                },
            ),
            (
                "-odown",
                "master m h 6",
                FailoverEvent::Up {
                    instance: instance(Kind::Primary, "m", at("h", 6)),
                    is_agreed: true,
                },
            ),
            (
                "-sdown",
                "sentinel id h 0 @ m h 6",
                FailoverEvent::Up {
                    instance: instance(Kind::Sentinel, "m", None),
                    is_agreed: false,
                },
            ),
            (
                "+reboot",
                "master m h 6",
                FailoverEvent::Rebooted {
                    instance: instance(Kind::Primary, "m", at("h", 6)),
                },
            ),
        ] {
            assert_read(channel, text, expected);
        }
    }

    /// Events that are a reason to ask again are read.
    #[test]
    fn membership_changes_are_read() {
        let name = || "m".to_owned();
        for (channel, text, expected) in [
            (
                "+slave",
                "slave h:7 h 7 @ m h 6",
                FailoverEvent::Replicas { name: name() },
            ),
            (
                "-role-change",
                "slave h:7 h 7 @ m h 6 new reported role is master",
                FailoverEvent::Replicas { name: name() },
            ),
            (
                "-role-change",
                "master m h 6 new reported role is slave",
                FailoverEvent::Names { name: name() },
            ),
            (
                "+sentinel",
                "sentinel id h 8 @ m h 6",
                FailoverEvent::Sentinels { name: name() },
            ),
            (
                "+sentinel-address-switch",
                "master m h 6 ip i port 9 for id",
                FailoverEvent::Sentinels { name: name() },
            ),
            (
                "-monitor",
                "master m h 6",
                FailoverEvent::Names { name: name() },
            ),
            (
                "+set",
                "master m h 6 quorum 2",
                FailoverEvent::Names { name: name() },
            ),
        ] {
            assert_read(channel, text, expected);
        }
        assert_eq!(event("+tilt", "#tilt mode entered"), Ok(None));
    }

    fn assert_read(channel: &str, text: &str, expected: FailoverEvent) {
        assert_eq!(expected.name(), "m");
        assert_eq!(event(channel, text), Ok(Some(expected)), "{channel} {text}");
    }

    /// Messages of every subscribed channel are read, and of no other channel.
    #[test]
    fn every_channel_is_read_and_no_other() {
        for channel in CHANNELS {
            let text = match channel {
                "+switch-master" => "m h 1 h 2",
                _ => "slave h:1 h 1 @ m h 2",
            };
            let read = event(channel, text).expect(channel).expect(channel);
            assert_eq!(read.name(), "m");
            assert!(event(channel, "").is_err() && event(channel, "m h 1").is_err());
            assert_eq!(event(&channel[1..], text), Ok(None));
        }
    }

    /// A malformed event is an error that shows its text.
    #[test]
    fn malformed_event_is_an_error() {
        let long = "h".repeat(super::super::HOST_BYTES_MAX + 1);
        for (channel, text) in [
            ("+switch-master", "m h 1 h".to_owned()),
            ("+switch-master", "m h 1 h x".to_owned()),
            ("+switch-master", "m h 1 h 65536".to_owned()),
            ("+switch-master", "m h 1 h -1".to_owned()),
            ("+switch-master", format!("m h 1 {long} 2")),
            ("+switch-master", " h 1 h 2".to_owned()),
            ("+switch-master", "m\r h 1 h 2".to_owned()),
            ("+sdown", "stranger m h 1".to_owned()),
            ("+sdown", "slave h:1 h 1".to_owned()),
            ("+sdown", "slave h:1 h 1 m h 1".to_owned()),
            ("+sdown", "slave h:1 h 1 @".to_owned()),
        ] {
            let error = event(channel, &text).expect_err(&text);
            assert!(matches!(error, AnswerError::Field(..)), "{text}: {error}");
        }
        assert!(FailoverEvent::read(b"+sdown", b"master m \xff 1").is_err());
    }

    /// A message of RESP2 and the push of RESP3 read the same.
    #[test]
    fn message_reads_the_same_in_both_versions() {
        let text = "$11\r\nm h 1 ::1 2\r\n";
        let switched = FailoverEvent::Switched {
            name: "m".to_owned(),
            from: at("h", 1),
            to: at("::1", 2),
        };
        for kind in ['*', '>'] {
            for (message, expected) in [
                (
                    format!("{kind}3\r\n+message\r\n++switch-master\r\n{text}"),
                    Message::Event(switched.clone()),
                ),
                (
                    format!("{kind}4\r\n+pmessage\r\n+*\r\n++switch-master\r\n{text}"),
                    Message::Event(switched.clone()),
                ),
                (
                    format!("{kind}3\r\n+message\r\n+tilt\r\n{text}"),
                    Message::Other,
                ),
                (
                    format!("{kind}3\r\n+subscribe\r\n+tilt\r\n:7\r\n"),
                    Message::Subscribed { channels: 7 },
                ),
                (
                    format!("{kind}3\r\n+unsubscribe\r\n+tilt\r\n:7\r\n"),
                    Message::Other,
                ),
                (format!("{kind}2\r\n+pong\r\n$0\r\n\r\n"), Message::Pong),
                ("+PONG\r\n".to_owned(), Message::Pong),
            ] {
                assert_eq!(Message::read(message.as_bytes()), Ok(expected), "{message}");
            }
            for malformed in [
                format!("{kind}0\r\n"),
                format!("{kind}2\r\n+message\r\n+tilt\r\n"),
                format!("{kind}3\r\n+subscribe\r\n+tilt\r\n+7\r\n"),
                format!("{kind}3\r\n+subscribe\r\n+tilt\r\n:-7\r\n"),
                format!("{kind}3\r\n+message\r\n+tilt\r\n:7\r\n"),
                format!("{kind}3\r\n:1\r\n+tilt\r\n:7\r\n"),
                "+OK\r\n".to_owned(),
            ] {
                let read = Message::read(malformed.as_bytes());
                assert!(matches!(read, Err(AnswerError::Form(_))), "{malformed}");
            }
        }
        let long = vec![b' '; MESSAGE_BYTES_MAX + 1];
        let too_long = Err(AnswerError::TooLong(MESSAGE_BYTES_MAX));
        assert_eq!(Message::read(&long), too_long);
    }

    proptest! {
        /// A written event is read back.
        #[test]
        fn written_event_is_read_back(
            name in "[!-~]{1,40}",
            hosts in ["[a-z0-9.:-]{1,60}", "[a-z0-9.:-]{1,60}"],
            ports in [1..=u16::MAX, 1..=u16::MAX],
            more in "( [ -~]{0,20})?",
        ) {
            let [from, to] = [0, 1].map(|which| at(&hosts[which], ports[which]));
            let [from_text, to_text] = [0, 1].map(|which| format!("{} {}", hosts[which], ports[which]));
            let switched = FailoverEvent::Switched { name: name.clone(), from: from.clone(), to: to.clone() };
            let read = event("+switch-master", &format!("{name} {from_text} {to_text}{more}"));
            prop_assert_eq!(read, Ok(Some(switched)));
            let down = FailoverEvent::Down { instance: instance(Kind::Replica, &name, from), is_agreed: false };
            let read = event("+sdown", &format!("slave x {from_text} @ {name} {to_text}{more}"));
            prop_assert_eq!(read, Ok(Some(down)));
            let down = FailoverEvent::Down { instance: instance(Kind::Primary, &name, to), is_agreed: true };
            prop_assert_eq!(event("+odown", &format!("master {name} {to_text}{more}")), Ok(Some(down)));
        }

        /// Reading any bytes gives a message or an error, and never panics.
        #[test]
        fn any_bytes_are_a_message_or_an_error(
            channel in prop::sample::select(CHANNELS.to_vec()),
            pieces in prop::collection::vec(
                prop_oneof![
                    prop::sample::select(vec![
                        "master ", "slave ", "sentinel ", "m ", "h 1 ", " 1 ", "@ ", "::1 0 ", "*3\r\n", ">3\r\n",
                        "+message\r\n", "+subscribe\r\n", "++switch-master\r\n", ":1\r\n", "$3\r\n",
                    ]).prop_map(|piece| piece.as_bytes().to_vec()),
                    prop::collection::vec(any::<u8>(), 0..6),
                ],
                0..12,
            ),
        ) {
            let bytes = pieces.concat();
            if let Ok(event) = FailoverEvent::read(channel.as_bytes(), &bytes) {
                prop_assert!(event.is_some_and(|event| !event.name().is_empty()));
            }
            let _ = Message::read(&bytes);
        }
    }
}
