//! What a server knows that the table does not say: commands of modules, of newer servers or renamed, which
//! are asked about one by one; and, for transactions, which commands of the table this server has, and
//! with how many arguments: while it queues, nobody else can say that for it.

use std::collections::HashMap;

use respool_protocol::commands::{self, CommandId};
use respool_protocol::encode;
use respool_protocol::request::Span;
use respool_protocol::value::Value;

use crate::duty::Duty;
use crate::engine::Engine;
use crate::limits::LEARNED_COMMANDS_MAX;
use crate::pool::ServerId;
use crate::requests::{
    Blocked, Placed, Request, not_in_subscription, unknown_command, unknown_subcommand,
};
use crate::session::{Flags, Pins};
use crate::slots::Key;
use crate::time::Time;

/// What servers said.
#[derive(Default)]
pub(crate) struct Learned {
    commands: HashMap<Subject, Lesson>,
    /// What is being asked, on which link; about all commands by an empty name.
    pub(crate) asking: HashMap<Subject, Key>,
    /// What servers have, as soon as somebody queues a transaction for them.
    known: HashMap<Whose, Known>,
    /// Why a user may not open transactions, if it may not.
    unopened: HashMap<Whose, Vec<u8>>,
}

/// A server, and who asks it: rights are a user's.
type Whose = (ServerId, u16);
/// A command, as its server lets this user know it.
type Subject = (Whose, Vec<u8>);

/// The commands of the table that a server has.
#[derive(Debug)]
struct Known {
    /// Their numbers of arguments, by their places in the table; all as the table says if there are none,
    /// because the server would not tell.
    arities: Vec<Option<i64>>,
    /// Whether it tells its subcommands (Redis 7 and newer).
    subcommands: bool,
    /// The next transaction asks again.
    doubted: bool,
}

impl Learned {
    /// A user has said anew who it is, or its rights may have changed. What is being queued is still checked by
    /// what was known when it began.
    pub(crate) fn doubt_user(&mut self, server: ServerId, user: u16) {
        if let Some(known) = self.known.get_mut(&(server, user)) {
            known.doubted = true;
        }
    }

    /// A connection to a server is lost: it may be another one when it is back.
    pub(crate) fn doubt_server(&mut self, server: ServerId) {
        let of_server = self.known.iter_mut().filter(|((of, _), _)| *of == server);
        of_server.for_each(|(_, known)| known.doubted = true);
    }
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
    /// The server would not say, as of this moment: it may be anything.
    Unsaid { at: Time },
    /// There is no such command, as of this moment.
    Nothing { at: Time },
}

/// How long it is believed that a server does not know a command: a module may be loaded.
const NOTHING_MS: u64 = 1_000;
/// No command has a longer name.
const NAME_BYTES_MAX: usize = 128;

/// What the first arguments of a request come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A row of the table.
    Row(CommandId),
    /// A command that the server has and the table has not.
    Learned { alone: bool },
    /// Nobody has it.
    Nothing,
}

impl Engine {
    /// Says what a large request is by its first arguments; it may have to wait for what the server says.
    pub(crate) fn identify(
        &mut self,
        key: Key,
        args: &[&[u8]],
        argc: usize,
    ) -> Result<What, Placed> {
        let arg = |index: usize| args.get(index).copied().unwrap_or_default();
        if let Some(id) = commands::resolve(argc, arg) {
            return Ok(What::Row(id));
        }
        let name = arg(0).to_ascii_lowercase();
        let unauthenticated = self
            .sessions
            .get(key)
            .is_none_or(|session| session.flags.any(Flags::UNAUTHENTICATED));
        if unauthenticated || !may_be_a_name(&name) {
            return Ok(What::Nothing);
        }
        match self.lesson_of(key, &name) {
            Some(Lesson::Nothing { at } | Lesson::Unsaid { at })
                if self.now.since_ms(at) >= NOTHING_MS =>
            {
                Err(self.wait_to_learn(key, name))
            }
            None => Err(self.wait_to_learn(key, name)),
            Some(Lesson::Renamed(id)) => Ok(What::Row(id)),
            Some(Lesson::Shared { .. }) => Ok(What::Learned { alone: false }),
            Some(Lesson::Alone | Lesson::Unsaid { .. }) => Ok(What::Learned { alone: true }),
            Some(Lesson::Nothing { .. }) => Ok(What::Nothing),
        }
    }

    fn lesson_of(&self, key: Key, name: &[u8]) -> Option<Lesson> {
        let subject = (self.whose(key)?, name.to_vec());
        self.learned.commands.get(&subject).copied()
    }

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
        let lesson = match self.lesson_of(key, &name) {
            _ if unauthenticated || !may_be_a_name(&name) => Lesson::Nothing { at: self.now },
            Some(Lesson::Nothing { at } | Lesson::Unsaid { at })
                if self.now.since_ms(at) >= NOTHING_MS =>
            {
                return self.wait_to_learn(key, name);
            }
            Some(lesson) => lesson,
            None => return self.wait_to_learn(key, name),
        };
        let known = !matches!(lesson, Lesson::Renamed(_) | Lesson::Nothing { .. });
        if known && flags.any(Flags::RESTRICTED) {
            return self.answer_error(key, &not_in_subscription(&name, self.is_before_7(key)));
        }
        let held = match lesson {
            Lesson::Shared { reads } => self.pauses(|| !reads),
            Lesson::Alone | Lesson::Unsaid { .. } => self.pauses(|| true),
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
            Lesson::Alone | Lesson::Unsaid { .. } => {
                let mut pins = Pins::ONCE;
                pins.add(Pins::UNKNOWN);
                self.place_alone(key, bytes, false, pins, None)
            }
        }
    }

    /// Sees to it that it is known which commands a session's server has, if that can be known: a
    /// transaction needs it. `false`: the session waits for it.
    /// `opening` is MULTI as the client writes it.
    pub(crate) fn know_commands(&mut self, key: Key, opening: &[u8]) -> bool {
        match self.whose(key) {
            Some(whose)
                if self
                    .learned
                    .known
                    .get(&whose)
                    .is_none_or(|known| known.doubted) =>
            {
                !matches!(self.ask_about_all(key, opening), Err(Blocked::Wait))
            }
            _ => true,
        }
    }

    fn whose(&self, key: Key) -> Option<Whose> {
        let kind = self.kind_of(self.sessions.get(key)?);
        Some((kind.server, kind.user))
    }

    /// The server's error to a MULTI of this session's user, if that is what it says.
    pub(crate) fn refusal_to_open(&self, key: Key) -> Option<Vec<u8>> {
        self.learned.unopened.get(&self.whose(key)?).cloned()
    }

    /// The rights of a user may have changed.
    pub(crate) fn doubt_rights(&mut self, link: Key) {
        if let Some(link) = self.links.get(link) {
            self.learned.doubt_user(link.key.server, link.key.user);
        }
    }

    /// What the server said to a MULTI and the DISCARD behind it. Were the one right and the other not, the
    /// link would stay in a transaction.
    pub(crate) fn settle_probe(&mut self, link: Key, opened: Vec<u8>, discarded: &[u8]) {
        let Some(whose) = self
            .links
            .get(link)
            .map(|link| (link.key.server, link.key.user))
        else {
            return;
        };
        self.learned.unopened.remove(&whose);
        if opened.starts_with(b"-") {
            self.learned.unopened.insert(whose, opened);
        } else if discarded.starts_with(b"-") {
            self.learned.unopened.insert(whose, discarded.to_vec());
            self.lose_link(link, "it opens transactions and does not discard them");
        }
    }

    /// What a session's server says of a request of the table while it queues it. `Err`: its error.
    pub(crate) fn check_queued(&self, key: Key, request: &Request<'_>) -> Result<(), Vec<u8>> {
        let known = self
            .whose(key)
            .and_then(|whose| self.learned.known.get(&whose));
        let Some(known) = known.filter(|known| !known.arities.is_empty()) else {
            return Ok(());
        };
        let row = request.command;
        let argc = request.spans.len();
        let is_sub = row.name.contains('|');
        let names_sub = is_sub || row.is_container() && argc > 1;
        let container = commands::lookup(request.arg(0)).unwrap_or(request.id);
        let arity = match known.arities[container.index()] {
            None => {
                let args: Vec<&[u8]> = request.args().collect();
                return Err(unknown_command(&args, self.is_before_7(key)));
            }
            Some(arity) if !names_sub || !known.subcommands => arity,
            Some(_) => match known.arities[request.id.index()].filter(|_| is_sub) {
                Some(arity) => arity,
                None => return Err(unknown_subcommand(container.get(), request.arg(1))),
            },
        };
        let least = usize::try_from(arity.unsigned_abs()).unwrap_or(usize::MAX);
        if argc == least || arity < 0 && argc > least {
            return Ok(());
        }
        let name = if known.subcommands {
            row.name
        } else {
            container.get().name
        };
        Err(format!("ERR wrong number of arguments for '{name}' command").into_bytes())
    }

    /// Asks the server for all its commands, and whether the session's user may open transactions: not on a
    /// link of the session's own, where that would end its WATCH.
    fn ask_about_all(&mut self, key: Key, opening: &[u8]) -> Result<(), Blocked> {
        self.wait_for_lesson(key, Vec::new(), |engine| {
            let mut probe = opening.to_vec();
            encode::request(&mut probe, &["DISCARD"]);
            engine.ask_shared(key, &probe, Duty::Probe(None))?;
            let mut request = Vec::new();
            encode::request(&mut request, &["COMMAND"]);
            engine.ask_shared(key, &request, Duty::Learn(Vec::new()))
        })
    }

    /// Asks the server about a command; the session waits for what it says.
    fn ask_about(&mut self, key: Key, name: Vec<u8>) -> Result<(), Blocked> {
        self.wait_for_lesson(key, name.clone(), |engine| {
            let mut request = Vec::new();
            encode::request(&mut request, &[b"COMMAND".as_slice(), b"INFO", &name]);
            engine.ask_for_ourselves(key, &request, Duty::Learn(name))
        })
    }

    /// The session waits at the link on which `ask` asks, or on which somebody has asked the same already.
    fn wait_for_lesson(
        &mut self,
        key: Key,
        name: Vec<u8>,
        ask: impl FnOnce(&mut Engine) -> Result<Key, Blocked>,
    ) -> Result<(), Blocked> {
        let Some(whose) = self.whose(key) else {
            return Ok(());
        };
        let subject = (whose, name);
        let asked = self.learned.asking.get(&subject).copied();
        let link = match asked.filter(|link| self.links.get(*link).is_some()) {
            Some(link) => link,
            None => {
                let link = ask(self)?;
                self.learned.asking.insert(subject, link);
                link
            }
        };
        self.wait_at(key, link);
        Err(Blocked::Wait)
    }

    /// The same for one command that the table does not have.
    fn wait_to_learn(&mut self, key: Key, name: Vec<u8>) -> Placed {
        match self.ask_about(key, name) {
            Ok(()) => Placed::Wait,
            Err(blocked) => self.blocked(key, blocked),
        }
    }

    /// The server's reply to COMMAND INFO.
    pub(crate) fn learn(&mut self, link: Key, name: Vec<u8>, reply: &[u8]) {
        let Some(kind) = self.links.get(link).map(|link| link.key) else {
            return;
        };
        let subject = ((kind.server, kind.user), name);
        self.learned.asking.remove(&subject);
        if subject.1.is_empty() {
            self.learned.known.insert(subject.0, known(reply));
        } else {
            if self.learned.commands.len() >= LEARNED_COMMANDS_MAX {
                self.learned.commands.clear();
            }
            let lesson = lesson(reply, self.now);
            self.learned.commands.insert(subject, lesson);
        }
        self.wake_waiters(link);
    }
}

/// Whether it is worth asking about. What no name can be, the server is given as it is.
fn may_be_a_name(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX
}

/// Reads a reply to COMMAND.
fn known(reply: &[u8]) -> Known {
    let mut known = Known {
        arities: Vec::new(),
        subcommands: false,
        doubted: false,
    };
    let Some(Value::List(list)) = Value::read(reply) else {
        return known;
    };
    known.arities = vec![None; CommandId::COUNT];
    for facts in &list {
        let Value::List(facts) = facts else { continue };
        let name = facts.first().and_then(Value::text).unwrap_or_default();
        let (Some(id), Some(Value::Integer(arity))) = (commands::lookup(name), facts.get(1)) else {
            continue;
        };
        known.arities[id.index()] = Some(*arity);
        let Some(Value::List(subs)) = facts.get(SUBCOMMANDS_AT) else {
            continue;
        };
        for sub in subs {
            let Value::List(facts) = sub else { continue };
            let name = facts.first().and_then(Value::text).unwrap_or_default();
            let sub = name
                .iter()
                .position(|&byte| byte == b'|')
                .map(|bar| &name[bar + 1..]);
            let sub = sub.and_then(|name| commands::lookup_sub(id, name));
            if let (Some(sub), Some(Value::Integer(arity))) = (sub, facts.get(1)) {
                known.arities[sub.index()] = Some(*arity);
                known.subcommands = true;
            }
        }
    }
    known
}

/// Where in what a server says of a command its subcommands stand, since Redis 7.
const SUBCOMMANDS_AT: usize = 9;

/// Reads a reply to COMMAND INFO about one command.
fn lesson(reply: &[u8], now: Time) -> Lesson {
    let Some(Value::List(commands)) = Value::read(reply) else {
        return Lesson::Unsaid { at: now };
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
    fn what_a_server_has_is_read_from_its_list() {
        let config = "*10\r\n$6\r\nconfig\r\n:-2\r\n*0\r\n:0\r\n:0\r\n:0\r\n*0\r\n*0\r\n*0\r\n*1\r\n\
                      *2\r\n$10\r\nconfig|get\r\n:-3\r\n";
        let reply = format!("*2\r\n*2\r\n$3\r\nget\r\n:2\r\n{config}");
        let known = known(reply.as_bytes());
        let arity = |id: CommandId| known.arities[id.index()];
        assert_eq!(arity(commands::id::GET), Some(2));
        assert_eq!(arity(commands::id::CONFIG_GET), Some(-3));
        assert_eq!(
            (arity(commands::id::SET), arity(commands::id::CONFIG_SET)),
            (None, None)
        );
        assert!(known.subcommands);
        assert!(super::known(b"-NOPERM no\r\n").arities.is_empty());
    }

    #[test]
    fn a_command_goes_the_way_of_its_like() {
        let said = |facts: &str| lesson(facts.as_bytes(), Time(5));
        assert_eq!(said("*1\r\n*-1\r\n"), Lesson::Nothing { at: Time(5) });
        assert_eq!(said("*1\r\n_\r\n"), Lesson::Nothing { at: Time(5) });
        assert_eq!(said("-NOPERM no\r\n"), Lesson::Unsaid { at: Time(5) });
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
