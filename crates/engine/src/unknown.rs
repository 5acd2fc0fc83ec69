//! Commands that the table does not have: of a module, of a newer server, or renamed. The server is asked
//! once what they are, and then they go the way of their like.

use std::collections::HashMap;

use respool_protocol::commands::{self, CommandId};
use respool_protocol::encode;
use respool_protocol::request::Span;
use respool_protocol::value::Value;

use crate::duty::Duty;
use crate::engine::Engine;
use crate::limits::LEARNED_COMMANDS_MAX;
use crate::requests::{Placed, unknown_command};
use crate::session::{Flags, Pins};
use crate::slots::Key;
use crate::time::Time;

/// What servers said.
#[derive(Default)]
pub(crate) struct Learned {
    commands: HashMap<Vec<u8>, Lesson>,
    /// What is being asked, on which link.
    pub(crate) asking: HashMap<Vec<u8>, Key>,
}

/// What a server said of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lesson {
    /// It is one of the table by another name.
    Renamed(CommandId),
    /// It works on data and never waits.
    Shared { reads: bool },
    /// It may do anything with its connection.
    Alone,
    /// There is no such command, as of this moment.
    Nothing { at: Time },
}

/// How long it is believed that a server does not know a command: a module may be loaded.
const NOTHING_MS: u64 = 1_000;
/// No command has a longer name.
const NAME_BYTES_MAX: usize = 128;

impl Engine {
    /// A request whose command the table does not have.
    pub(crate) fn place_unknown(&mut self, key: Key, bytes: &[u8], spans: &[Span]) -> Placed {
        let name = spans[0].of(bytes).to_ascii_lowercase();
        if name == b"post" || name == b"host:" {
            // A browser was made to speak to us: what follows in its request is not the client's will.
            // Redis closes, too (`securityWarningCommand`).
            let reason = "it speaks HTTP: possibly an attack by way of a browser";
            self.close_for(key, reason.to_owned());
            return Placed::Done;
        }
        let flags = self
            .sessions
            .get(key)
            .map_or(Flags::default(), |session| session.flags);
        let in_multi = flags.any(Flags::IN_MULTI);
        let unauthenticated = flags.any(Flags::UNAUTHENTICATED);
        let lesson = match self.learned.commands.get(&name).copied() {
            _ if unauthenticated || name.len() > NAME_BYTES_MAX => Lesson::Nothing { at: self.now },
            Some(Lesson::Nothing { at }) if self.now.since_ms(at) >= NOTHING_MS => {
                return self.ask_about(key, name);
            }
            Some(lesson) => lesson,
            None => return self.ask_about(key, name),
        };
        let held = match lesson {
            Lesson::Shared { reads } => self.pauses(|| !reads),
            Lesson::Alone => self.pauses(|| true),
            Lesson::Renamed(_) | Lesson::Nothing { .. } => false,
        };
        if held {
            return self.hold_for_pause(key);
        }
        match lesson {
            Lesson::Renamed(id) => self.place_known(key, bytes, spans, id),
            Lesson::Nothing { .. } if unauthenticated || in_multi => {
                let args: Vec<&[u8]> = spans.iter().map(|span| span.of(bytes)).collect();
                self.refuse_queued(key, &unknown_command(&args, self.is_before_7(key)))
            }
            // The server's own words are the best.
            Lesson::Nothing { .. } => self.place_on_link(key, bytes, false, None),
            _ if in_multi => self.queue_unknown(key, bytes),
            Lesson::Shared { reads } => self.place_on_link(key, bytes, reads, None),
            Lesson::Alone => {
                let mut pins = Pins::ONCE;
                pins.add(Pins::UNKNOWN);
                self.place_alone(key, bytes, false, pins, None)
            }
        }
    }

    /// Asks the server about a command; the session waits for what it says.
    fn ask_about(&mut self, key: Key, name: Vec<u8>) -> Placed {
        let asked = self.learned.asking.get(&name).copied();
        let link = match asked.filter(|link| self.links.get(*link).is_some()) {
            Some(link) => link,
            None => {
                let mut request = Vec::new();
                encode::request(&mut request, &[b"COMMAND".as_slice(), b"INFO", &name]);
                match self.ask_for_ourselves(key, &request, Duty::Learn(name.clone())) {
                    Ok(link) => {
                        self.learned.asking.insert(name, link);
                        link
                    }
                    Err(blocked) => return self.blocked(key, blocked),
                }
            }
        };
        if let Some(link) = self.links.get_mut(link) {
            link.waiters.push(key);
        }
        self.hold(key, Flags::HOLD_LINK);
        Placed::Wait
    }

    /// The server's reply to COMMAND INFO.
    pub(crate) fn learn(&mut self, link: Key, name: Vec<u8>, reply: &[u8]) {
        self.learned.asking.remove(&name);
        if self.learned.commands.len() >= LEARNED_COMMANDS_MAX {
            self.learned.commands.clear();
        }
        let lesson = lesson(reply, self.now);
        self.learned.commands.insert(name, lesson);
        self.wake_waiters(link);
    }
}

/// Reads a reply to COMMAND INFO about one command.
fn lesson(reply: &[u8], now: Time) -> Lesson {
    let Some(Value::List(commands)) = Value::read(reply) else {
        // It would not say: it may be anything.
        return Lesson::Alone;
    };
    let Some(Value::List(facts)) = commands.first() else {
        return Lesson::Nothing { at: now };
    };
    let renamed = facts
        .first()
        .and_then(Value::text)
        .and_then(commands::lookup);
    if let Some(id) = renamed {
        return Lesson::Renamed(id);
    }
    let Some(Value::List(flags)) = facts.get(2) else {
        return Lesson::Alone;
    };
    let has = |flag: &str| flags.iter().any(|it| it.text() == Some(flag.as_bytes()));
    let data = has("readonly") || has("write");
    if data
        && !["blocking", "noscript", "pubsub", "admin"]
            .iter()
            .any(|flag| has(flag))
    {
        Lesson::Shared {
            reads: has("readonly"),
        }
    } else {
        Lesson::Alone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_goes_the_way_of_its_like() {
        let said = |facts: &str| lesson(facts.as_bytes(), Time(5));
        assert_eq!(said("*1\r\n*-1\r\n"), Lesson::Nothing { at: Time(5) });
        assert_eq!(said("*1\r\n_\r\n"), Lesson::Nothing { at: Time(5) });
        assert_eq!(said("-NOPERM no\r\n"), Lesson::Alone);
        let with = |flags: &str| said(&format!("*1\r\n*3\r\n$6\r\nbf.add\r\n:3\r\n{flags}"));
        assert_eq!(
            with("*2\r\n+write\r\n+denyoom\r\n"),
            Lesson::Shared { reads: false }
        );
        assert_eq!(with("~1\r\n+readonly\r\n"), Lesson::Shared { reads: true });
        assert_eq!(with("*2\r\n+write\r\n+blocking\r\n"), Lesson::Alone);
        assert_eq!(with("*1\r\n+fast\r\n"), Lesson::Alone);
        let renamed = said("*1\r\n*3\r\n$5\r\nmulti\r\n:1\r\n*0\r\n");
        assert_eq!(renamed, Lesson::Renamed(commands::id::MULTI));
    }
}
