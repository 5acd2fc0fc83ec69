//! What a server knows that the table does not say: commands of modules, of newer servers or
//! renamed, which are asked about one by one; and which commands of the table this server has, with
//! how many arguments: of what it is not asked itself (what is answered here, what is queued, what
//! a subscriber may not ask), nobody else can say that for it.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use respool_protocol::commands::{self, Answer, CommandId, id};
use respool_protocol::encode;
use respool_protocol::request::{Found, Scanner, Span};
use respool_protocol::value::Value;

use crate::duty::Duty;
use crate::engine::Engine;
use crate::limits::LEARNED_COMMANDS_MAX;
use crate::link::LinkKey;
use crate::pool::ServerId;
use crate::requests::{Blocked, Placed, Request, allowed_in_subscription};
use crate::rights::{RIGHT_MS, Refusal, Rights};
use crate::session::{Flags, Pins};
use crate::slots::Key;
use crate::time::Time;
use crate::words::{NOAUTH, not_in_subscription, unknown_command, unknown_subcommand, wrong_arity};

/// What servers said.
#[derive(Default)]
pub(crate) struct Learned {
    commands: HashMap<(Whose, Vec<u8>), Lesson>,
    /// What is being asked, on which link, since when.
    asking: HashMap<(Whose, Subject), (Key, Time)>,
    /// Servers that have lost the links of questions and answered none since: how often, and when
    /// the last time.
    unanswered: HashMap<Whose, (u32, Time)>,
    /// What servers have, as soon as that matters; and whom they would not tell, since when, if it
    /// may have been for a moment only.
    known: HashMap<ServerId, Known>,
    untold: HashMap<Whose, Option<Time>>,
    /// Why a user may not open transactions, if it may not, as of some moment; as soon as it wants
    /// to.
    unopened: HashMap<Whose, (Option<Vec<u8>>, Time)>,
    /// What else it may ask.
    pub(crate) rights: Rights,
}

impl Learned {
    /// The answers on this link may come late: sessions ask again on another one.
    pub(crate) fn leave_questions(&mut self, link: Key) {
        self.asking.retain(|_, (on, _)| *on != link);
    }

    /// The answers on this link will never come. Sessions ask again on another one and wait there,
    /// but not for ever: a server that loses each connection answers nothing.
    pub(crate) fn lose_questions(&mut self, link: Key, now: Time) {
        let lost = self.asking.extract_if(|_, (on, _)| *on == link);
        let lost: HashSet<Whose> = lost.map(|((whose, _), _)| whose).collect();
        for whose in lost {
            let (count, at) = self.unanswered.entry(whose).or_insert((0, now));
            *count = count.saturating_add(1);
            *at = now;
        }
    }

    /// A question was answered.
    fn note_answer(&mut self, subject: &(Whose, Subject)) {
        self.asking.remove(subject);
        self.unanswered.remove(&subject.0);
    }

    /// Whether sessions wait no longer for a question that was asked at `since`.
    fn is_late(&self, whose: &Whose, since: Time, now: Time) -> bool {
        let lost = self.unanswered.get(whose).map_or(0, |(count, _)| *count);
        lost >= LOST_QUESTIONS_MAX || now.since_ms(since) >= LESSON_MS
    }

    /// The links whose questions are late.
    fn tick_questions(&mut self, now: Time) -> Vec<Key> {
        self.unanswered
            .retain(|_, (_, at)| now.since_ms(*at) < UNANSWERED_MS);
        let asking = self.asking.iter();
        let late = asking.filter(|((whose, _), (_, since))| self.is_late(whose, *since, now));
        late.map(|(_, (link, _))| *link).collect()
    }
}

/// A server, and who asks it: rights are a user's.
pub(crate) type Whose = (ServerId, u16);

/// What a server is asked about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    /// A command that the table does not have.
    Command(Vec<u8>),
    /// All that it has.
    Commands,
    /// Whether a transaction may be opened.
    Opening,
    /// Whether this, its bytes, may be asked.
    Right(Vec<u8>),
    /// Nothing: it gets the script of this number.
    Script { number: u32 },
}

/// The commands of the table that a server has.
#[derive(Debug)]
struct Known {
    /// Their numbers of arguments, by their places in the table.
    arities: Vec<Option<i64>>,
    /// Whether it tells its subcommands (Redis 7 and newer).
    subcommands: bool,
    /// Whoever needs it next asks again.
    doubted: bool,
}

/// What a server has to say to a request before anybody looks into it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is not known here, or not needed: what the table says is as good.
    Unsaid,
    /// Nothing.
    Fine,
    /// This error.
    Refused(Vec<u8>),
    /// An error of its own, with which it does nothing else: so it may have the request.
    Itself,
}

impl Learned {
    /// A user has said anew who it is, or its rights may have changed.
    pub(crate) fn doubt_user(&mut self, user: u16) {
        self.untold.retain(|(_, of), _| *of != user);
        self.unopened.retain(|(_, of), _| *of != user);
        self.rights.doubt(|(_, of)| of == user);
    }

    /// Its place may be another one's.
    pub(crate) fn forget_user(&mut self, user: u16) {
        self.doubt_user(user);
        self.commands.retain(|((_, of), _), _| *of != user);
    }

    /// Which arguments of a command that the table does not have are keys, whichever server said
    /// it.
    pub(crate) fn keys_of(&self, name: &[u8]) -> Keys {
        let said = |((_, of), lesson): (&(Whose, Vec<u8>), &Lesson)| match lesson {
            Lesson::Shared { keys, .. } | Lesson::Alone { keys }
                if of.eq_ignore_ascii_case(name) =>
            {
                Some(*keys)
            }
            _ => None,
        };
        let said = self.commands.iter().find_map(said);
        said.unwrap_or(Keys::Unsaid)
    }

    /// The places of keys in a request, as far as a server has said where its command has them.
    pub(crate) fn keys_in(&self, request: &[u8]) -> impl Iterator<Item = usize> + use<> {
        let mut scanner = Scanner::default();
        let (keys, argc) = match scanner.scan(request, true) {
            Ok(Found::Request { .. }) => {
                let spans = scanner.spans();
                let name = spans.first().map_or(&b""[..], |name| name.of(request));
                (self.keys_of(name), spans.len())
            }
            _ => (Keys::None, 0),
        };
        keys.places(argc)
    }

    /// A connection to a server is lost: it may be another one when it is back. What is being
    /// queued is still checked by what was known when it began.
    pub(crate) fn doubt_server(&mut self, server: ServerId) {
        if let Some(known) = self.known.get_mut(&server) {
            known.doubted = true;
        }
        self.commands.retain(|((of, _), _), _| *of != server);
        self.untold.retain(|(of, _), _| *of != server);
        self.unopened.retain(|(of, _), _| *of != server);
    }

    /// Its place is another one's.
    pub(crate) fn forget_server(&mut self, server: ServerId) {
        self.doubt_server(server);
        self.known.remove(&server);
        self.rights.doubt(|(of, _)| of == server);
    }
}

/// What a server said of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lesson {
    /// It is one of the table by another name.
    Renamed(CommandId),
    /// It works on data and never waits.
    Shared { reads: bool, keys: Keys },
    /// It may do anything with its connection.
    Alone { keys: Keys },
    /// The server would not say, as of this moment: it may be anything.
    Unsaid { at: Time },
    /// There is no such command, as of this moment.
    Nothing { at: Time },
}

/// Which arguments of a command are keys, as its server says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// From the first to the last, with so many from one to the next; from the end, where that is
    /// negative.
    At {
        first: usize,
        last: i64,
        step: usize,
    },
    /// None of them.
    None,
    /// It depends on the arguments, or is not known.
    Unsaid,
}

impl Keys {
    /// Their places among so many arguments.
    pub(crate) fn places(self, argc: usize) -> impl Iterator<Item = usize> {
        let (first, last, step) = match self {
            Keys::At { first, last, step } => (first, last, step),
            Keys::None | Keys::Unsaid => (1, 0, 1),
        };
        let end = argc as i64;
        let last = if last < 0 { end + last } else { last };
        let behind = usize::try_from(last.min(end - 1) + 1).unwrap_or_default();
        (first..behind).step_by(step)
    }
}

/// How long it is believed that a server does not know a command, since a module may be loaded; and
/// that it would not say, since it may only have been busy.
const NOTHING_MS: u64 = 1_000;
/// How long one waits to learn which commands a server has, or whether transactions may be opened;
/// at it, what the table says is believed, and of what it does not have, the worst. The server may
/// be at something else for long, and who asks may want to end just that.
const LESSON_MS: u64 = 1_000;
/// Links that a server may lose with a question on them before sessions wait for no answer. Sessions
/// that connect again after a restart have one such loss behind them.
const LOST_QUESTIONS_MAX: u32 = 3;
/// How long such losses count if no question is answered.
const UNANSWERED_MS: u64 = 5_000;
/// No command has a longer name.
const NAME_BYTES_MAX: usize = 128;

/// What the first arguments of a request come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A row of the table.
    Row(CommandId),
    /// A command that the server has and the table has not.
    Learned { alone: bool, reads: bool },
    /// The table and the server both lack the command.
    Nothing,
}

impl Engine {
    /// Says what a large request is by its first arguments; it may have to wait for what the server
    /// says.
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
        self.turn_to_who_may_know(key, args.get(1).copied());
        Ok(match self.lesson_of(key, name)? {
            Lesson::Renamed(id) => What::Row(id),
            Lesson::Shared { reads, .. } => What::Learned {
                alone: false,
                reads,
            },
            Lesson::Alone { .. } | Lesson::Unsaid { .. } => What::Learned {
                alone: true,
                reads: false,
            },
            Lesson::Nothing { .. } => What::Nothing,
        })
    }

    /// What the server says of a command; or the session waits for it, or was told why it cannot be
    /// known.
    fn lesson_of(&mut self, key: Key, name: Vec<u8>) -> Result<Lesson, Placed> {
        let now = self.now;
        let Some(whose) = self.whose(key) else {
            return Err(Placed::Done);
        };
        let subject = (whose, name);
        match self.learned.commands.get(&subject) {
            Some(Lesson::Nothing { at } | Lesson::Unsaid { at })
                if now.since_ms(*at) >= NOTHING_MS => {}
            Some(lesson) => return Ok(*lesson),
            None => {}
        }
        match self.ask_about(key, subject.1) {
            // It does not say in time.
            Ok(()) => Ok(Lesson::Unsaid { at: now }),
            Err(blocked) => Err(self.blocked(key, blocked)),
        }
    }

    /// Where a pool has several servers, parts of it may have modules that others have not. Most
    /// commands name their first key at once, so its owner is asked what it is, and if that cannot
    /// be, another one.
    fn turn_to_who_may_know(&mut self, key: Key, first: Option<&[u8]>) {
        if self.has_several_owners(key) {
            if let Some(first) = first {
                self.turn_to_owner(key, first);
            }
            self.turn_from_dead(key);
        }
    }

    /// A request whose command the table does not have.
    pub(crate) fn place_unknown(&mut self, key: Key, bytes: &[u8], spans: &[Span]) -> Placed {
        self.turn_from_replica(key, None);
        self.turn_to_who_may_know(key, spans.get(1).map(|name| name.of(bytes)));
        let name = spans[0].of(bytes).to_ascii_lowercase();
        if name == b"post" || name == b"host:" {
            // A browser was made to speak to us: what follows in its request is not the client's
            // will. Redis closes, too (`securityWarningCommand`).
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
        let lesson = match unauthenticated || !may_be_a_name(&name) {
            true => Lesson::Nothing { at: self.now },
            false => match self.lesson_of(key, name.clone()) {
                Ok(lesson) => lesson,
                Err(placed) => return placed,
            },
        };
        let keys = match lesson {
            Lesson::Shared { keys, .. } | Lesson::Alone { keys } => Some(keys),
            Lesson::Unsaid { .. } => Some(Keys::Unsaid),
            Lesson::Renamed(_) | Lesson::Nothing { .. } => None,
        };
        if let Some(keys) = keys
            && self.has_several_owners(key)
        {
            let arg = |at: usize| spans[at].of(bytes);
            if let Err(text) = self.route_learned(key, keys, spans.len(), arg) {
                return self.refuse_queued(key, text);
            }
        }
        if keys.is_some() && flags.any(Flags::RESTRICTED) {
            return self.answer_error(key, &not_in_subscription(&name, self.is_before_7(key)));
        }
        let held = match lesson {
            Lesson::Shared { reads, .. } => self.pauses(key, || !reads),
            Lesson::Alone { .. } | Lesson::Unsaid { .. } => self.pauses(key, || true),
            Lesson::Renamed(_) | Lesson::Nothing { .. } => false,
        };
        if held {
            return self.hold_for_pause(key);
        }
        // Nor is it sure that there is no such command: a module may have been loaded meanwhile.
        if !matches!(
            lesson,
            Lesson::Renamed(_) | Lesson::Shared { reads: true, .. }
        ) {
            self.note_write(key);
        }
        match lesson {
            Lesson::Renamed(id) => {
                let sub = spans.get(1).filter(|_| id.get().is_container());
                let sub = sub.and_then(|name| commands::lookup_sub(id, name.of(bytes)));
                self.place_known(key, bytes, spans, sub.unwrap_or(id))
            }
            // Where servers see keys without their prefix it must not be one that is there by now.
            Lesson::Nothing { .. } if unauthenticated || in_multi || self.strips(key) => {
                if self.is_silent_before_auth(key) {
                    return self.answer_error(key, NOAUTH);
                }
                let args: Vec<&[u8]> = spans.iter().map(|span| span.of(bytes)).collect();
                self.refuse_queued(key, &unknown_command(&args, self.is_before_7(key)))
            }
            // The server's own words are the best.
            Lesson::Nothing { .. } => self.place_on_link(key, bytes, false, None),
            _ if in_multi => {
                let taints = !matches!(lesson, Lesson::Shared { .. });
                self.queue_unknown(key, bytes, taints)
            }
            Lesson::Shared { reads, .. } => self.place_any_code(key, bytes, |engine| {
                engine.place_on_link(key, bytes, reads, None)
            }),
            Lesson::Alone { .. } | Lesson::Unsaid { .. } => {
                let mut pins = Pins::ONCE;
                pins.add(Pins::UNKNOWN);
                self.place_alone(key, bytes, (false, None), pins, true)
            }
        }
    }

    /// Sees to it that it is known which commands a session's server has, if that can be known.
    /// `false`: the session waits for it.
    pub(crate) fn know_commands(&mut self, key: Key) -> bool {
        let Some(session) = self.sessions.get(key) else {
            return true;
        };
        let own = self.kind_of(session);
        let known = self.learned.known.get(&own.server);
        if known.is_some_and(|known| !known.doubted) {
            return true;
        }
        // What a server has is the same for all. The first link is there already; who speaks for it
        // may have no right to know.
        for kind in [self.first_link(own.server), own] {
            let untold = match self.learned.untold.get(&(kind.server, kind.user)) {
                Some(Some(at)) => self.now.since_ms(*at) < NOTHING_MS,
                Some(None) => true,
                None => false,
            };
            if !untold && matches!(self.ask_about_all(key, kind), Err(Blocked::Wait)) {
                return false;
            }
        }
        true
    }

    /// The same for whether the session's user may open transactions. `opening` is MULTI as the
    /// client writes it.
    pub(crate) fn know_opening(&mut self, key: Key, opening: &[u8]) -> bool {
        let known = self.whose(key).is_none_or(|whose| {
            let said = self.learned.unopened.get(&whose);
            said.is_some_and(|(refusal, at)| refusal.is_none() || self.now.since_ms(*at) < RIGHT_MS)
        });
        known || !matches!(self.ask_to_open(key, opening), Err(Blocked::Wait))
    }

    pub(crate) fn whose(&self, key: Key) -> Option<Whose> {
        let kind = self.kind_of(self.sessions.get(key)?);
        Some((kind.server, kind.user))
    }

    /// The server's error to a MULTI of this session's user, if that is what it says.
    pub(crate) fn refusal_to_open(&self, key: Key) -> Option<Vec<u8>> {
        self.learned.unopened.get(&self.whose(key)?)?.0.clone()
    }

    /// The rights of a user may have changed.
    pub(crate) fn doubt_rights(&mut self, link: Key) {
        if let Some(link) = self.links.get(link) {
            self.learned.doubt_user(link.key.user);
        }
    }

    /// What the server said to a MULTI and the EXEC behind it. Were the one right and the other
    /// not, the link would stay in a transaction.
    pub(crate) fn settle_probe(&mut self, link: Key, opened: Vec<u8>, executed: &[u8]) {
        let Some(whose) = self
            .links
            .get(link)
            .map(|link| (link.key.server, link.key.user))
        else {
            return;
        };
        self.learned.note_answer(&(whose, Subject::Opening));
        // What else may be wrong passes.
        let is_lasting = |said: &Vec<u8>| {
            let lasting = [&b"-NOPERM"[..], b"-ERR unknown command"];
            lasting.iter().any(|beginning| said.starts_with(beginning))
        };
        let refusal = [opened.as_slice(), executed]
            .map(of_its_own)
            .into_iter()
            .find(is_lasting);
        let has_ended = executed.starts_with(b"*") || executed.starts_with(b"-EXECABORT");
        if !opened.starts_with(b"-") && !has_ended {
            self.lose_link(link, "it opens transactions and does not execute them");
        }
        // Behind that: a lost link puts in doubt what was known before.
        self.learned.unopened.insert(whose, (refusal, self.now));
        self.wake_waiters(link);
    }

    /// What a session's server says of a request of the table that it may not get to see. `None`:
    /// the session waits until that is known.
    pub(crate) fn verdict(&mut self, key: Key, request: &Request<'_>) -> Option<Verdict> {
        let flags = self
            .sessions
            .get(key)
            .map_or(Flags::default(), |session| session.flags);
        let row = request.command;
        let is_asked_itself = match row.answer {
            Answer::Server | Answer::Alone | Answer::Conditional(_) => true,
            Answer::Session | Answer::Pinned | Answer::Refused(_) => false,
        };
        if is_asked_itself && !flags.any(Flags::IN_MULTI | Flags::RESTRICTED)
            || self.is_silent_before_auth(key)
        {
            return Some(Verdict::Unsaid);
        }
        // What is queued is judged by what was known at its MULTI; who has still to say who it is
        // could not ask.
        let may_ask = !flags.any(Flags::IN_MULTI | Flags::UNAUTHENTICATED);
        let is_refused_here = flags.any(Flags::RESTRICTED) && !allowed_in_subscription(request.id);
        let matters = is_refused_here
            || matches!(request.id, id::MULTI | id::DISCARD | id::RESET)
            || matches!(request.id, id::READONLY | id::READWRITE | id::ASKING)
            || is_since_7(request.id)
            || !row.arity_ok(request.spans.len())
            || names_no_subcommand(request);
        // Asked at once: a server that is slow to say is waited for once.
        let refusal = match flags.any(Flags::UNAUTHENTICATED) {
            true => Some(None),
            false => self.refusal_of_right(key, request, flags.any(Flags::IN_MULTI)),
        };
        if may_ask && matters && !self.know_commands(key) {
            return None;
        }
        // First whether there is such a command, then what is wrong with it, then who may ask it.
        let refusal = refusal?;
        if refusal == Some(Refusal::Unknown) {
            return Some(self.unknown(key, request));
        }
        let verdict = match self.known_verdict(key, request) {
            // What is answered here needs the arguments that the table says.
            Verdict::Fine if !is_asked_itself && !row.arity_ok(request.spans.len()) => {
                Verdict::Refused(wrong_arity(row))
            }
            verdict @ (Verdict::Refused(_) | Verdict::Itself) => return Some(verdict),
            verdict => verdict,
        };
        let has_rights = row.arity_ok(request.spans.len()) && !flags.any(Flags::RESTRICTED);
        Some(match refusal {
            Some(Refusal::Denied(error)) if has_rights => Verdict::Refused(error),
            Some(Refusal::Untold) if has_rights => {
                Verdict::Refused(self.untold_error(key, self.away_error(key)))
            }
            _ => verdict,
        })
    }

    /// Lets those go on who have waited long enough.
    pub(crate) fn tick_lessons(&mut self) {
        self.learned.rights.tick(self.now);
        for link in self.learned.tick_questions(self.now) {
            self.wake_waiters(link);
        }
    }

    fn unknown(&self, key: Key, request: &Request<'_>) -> Verdict {
        let args: Vec<&[u8]> = request.args().collect();
        Verdict::Refused(unknown_command(&args, self.is_before_7(key)))
    }

    /// What is known of the commands of a session's server. In MULTI it may have turned to one that
    /// was never asked: then that of another one of the pool, which was asked for its MULTI.
    fn known_of(&self, key: Key) -> Option<&Known> {
        let (server, _) = self.whose(key)?;
        let session = self.sessions.get(key)?;
        let all = self.pools[usize::from(session.pool)].servers().iter();
        let all = all.filter(|_| session.flags.any(Flags::IN_MULTI));
        let mut asked = std::iter::once(&server).chain(all);
        asked.find_map(|server| self.learned.known.get(server))
    }

    fn known_verdict(&self, key: Key, request: &Request<'_>) -> Verdict {
        let row = request.command;
        let argc = request.spans.len();
        let is_sub = row.name.contains('|');
        let names_sub = is_sub || names_no_subcommand(request);
        let container = row.name.split('|').next().unwrap_or_default();
        let container = commands::lookup(container.as_bytes()).unwrap_or(request.id);
        let known = self.known_of(key);
        let arity_of = |id: CommandId| known.map(|known| known.arities[id.index()]);
        if request.id == id::QUIT {
            // Before Redis 7.2 it was no command, but looked for in front of all commands.
            return Verdict::Unsaid;
        }
        if arity_of(container) == Some(None) {
            return self.unknown(key, request);
        }
        if names_sub && self.is_before_7(key) {
            // A container looked into its subcommands itself, when it was executed.
            let ours = is_sub
                && row.arity_ok(argc)
                && !is_since_7(request.id)
                && !(matches!(request.id, id::CLIENT_PAUSE | id::CLIENT_UNBLOCK) && argc > 4);
            // What nobody knows of may do anything with our link: it is refused in the server's
            // words.
            let nobodys = request.id == id::CLIENT;
            return match ours || nobodys {
                true => Verdict::Fine,
                false => Verdict::Itself,
            };
        }
        let arity = match arity_of(request.id) {
            Some(Some(arity)) if is_sub || !names_sub => arity,
            Some(_) if known.is_some_and(|known| known.subcommands) => {
                return Verdict::Refused(unknown_subcommand(request.arg(0), request.arg(1)));
            }
            _ => return Verdict::Unsaid,
        };
        let least = usize::try_from(arity.unsigned_abs()).unwrap_or(usize::MAX);
        if argc == least || arity < 0 && argc > least {
            return Verdict::Fine;
        }
        Verdict::Refused(wrong_arity(row))
    }

    /// Asks the server for all its commands, on a link of this kind.
    fn ask_about_all(&mut self, key: Key, kind: LinkKey) -> Result<(), Blocked> {
        self.wait_for_lesson(key, kind, Subject::Commands, |engine| {
            let mut request = Vec::new();
            encode::request(&mut request, &["COMMAND"]);
            engine.ask_on_shared(kind, &request, Duty::Learn(Subject::Commands))
        })
    }

    /// Asks the server whether the session's user may open transactions: not on a link of the
    /// session's own, where that would end its WATCH.
    fn ask_to_open(&mut self, key: Key, opening: &[u8]) -> Result<(), Blocked> {
        let Some(session) = self.sessions.get(key) else {
            return Ok(());
        };
        let kind = self.kind_of(session);
        self.wait_for_lesson(key, kind, Subject::Opening, |engine| {
            let mut probe = opening.to_vec();
            encode::request(&mut probe, &["EXEC"]);
            engine.ask_on_shared(kind, &probe, Duty::Probe(None))
        })
    }

    /// Asks the server about a command; the session waits for what it says.
    fn ask_about(&mut self, key: Key, name: Vec<u8>) -> Result<(), Blocked> {
        let Some(session) = self.sessions.get(key) else {
            return Ok(());
        };
        let kind = self.kind_of(session);
        self.wait_for_lesson(key, kind, Subject::Command(name.clone()), |engine| {
            let mut request = Vec::new();
            encode::request(&mut request, &[b"COMMAND".as_slice(), b"INFO", &name]);
            engine.ask_on_shared(kind, &request, Duty::Learn(Subject::Command(name)))
        })
    }

    /// The session waits at the link on which `ask` asks, for the server and user of this kind, or
    /// on which somebody has asked the same already.
    pub(crate) fn wait_for_lesson(
        &mut self,
        key: Key,
        kind: LinkKey,
        subject: Subject,
        ask: impl FnOnce(&mut Engine) -> Result<Key, Blocked>,
    ) -> Result<(), Blocked> {
        let subject = ((kind.server, kind.user), subject);
        let asked = self.learned.asking.get(&subject).copied();
        let since = asked.map_or(self.now, |(_, since)| since);
        let is_late =
            self.learned.is_late(&subject.0, since, self.now) || self.is_expired(self.asked_ms);
        let link = match asked {
            Some((link, _)) => link,
            // A late server may be well again: it is asked, and its answer ends the doubt.
            None => match ask(self) {
                Err(_) if is_late => return Ok(()),
                asked => {
                    let link = asked?;
                    self.learned.asking.insert(subject, (link, self.now));
                    link
                }
            },
        };
        if is_late {
            return Ok(());
        }
        self.wait_at(key, link);
        Err(Blocked::Wait)
    }

    /// Notes that a question is asked on this link. Returns false if it is being asked already.
    pub(crate) fn begin_question(&mut self, whose: Whose, subject: Subject, link: Key) -> bool {
        let asked = (link, self.now);
        match self.learned.asking.entry((whose, subject)) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(asked);
                true
            }
        }
    }

    /// The server's reply to COMMAND or COMMAND INFO.
    pub(crate) fn learn(&mut self, link: Key, about: Subject, reply: &[u8]) {
        let Some(kind) = self.links.get(link).map(|link| link.key) else {
            return;
        };
        let subject = ((kind.server, kind.user), about);
        self.learned.note_answer(&subject);
        match subject {
            (whose, Subject::Commands) => match known(reply) {
                Some(known) => {
                    self.learned.known.insert(whose.0, known);
                }
                // It may be loading; or this user may never know.
                None => {
                    let at = (!reply.starts_with(b"-NOPERM")).then_some(self.now);
                    self.learned.untold.insert(whose, at);
                }
            },
            (whose, Subject::Command(name)) => {
                if self.learned.commands.len() >= LEARNED_COMMANDS_MAX {
                    self.learned.commands.clear();
                }
                let lesson = lesson(reply, self.now);
                self.learned.commands.insert((whose, name), lesson);
            }
            (whose, Subject::Right(probe)) => {
                self.learned.rights.learn(whose, probe, reply, self.now);
            }
            ((server, _), Subject::Script { number }) => {
                self.scripts
                    .note_restored((server, number), reply, self.now);
            }
            (_, Subject::Opening) => unreachable!("a probe has a duty of its own"),
        }
        self.wake_waiters(link);
    }
}

/// An error to an EXEC, without what says that it is one to that.
fn of_its_own(error: &[u8]) -> Vec<u8> {
    match error.strip_prefix(b"-EXECABORT Transaction discarded because of: ") {
        Some(why) => [b"-", why].concat(),
        None => error.to_vec(),
    }
}

/// Of what is answered here, what came with Redis 7 or later. Subcommands among them are unknown to
/// whoever does not tell its subcommands.
fn is_since_7(id: CommandId) -> bool {
    matches!(
        id,
        id::CLIENT_CAPA
            | id::CLIENT_IMPORT_SOURCE
            | id::CLIENT_NO_EVICT
            | id::CLIENT_NO_TOUCH
            | id::CLIENT_SETINFO
            | id::SSUBSCRIBE
            | id::SUNSUBSCRIBE
    )
}

/// Whether it names a subcommand that its container does not have in the table.
pub(crate) fn names_no_subcommand(request: &Request<'_>) -> bool {
    request.command.is_container() && request.spans.len() > 1
}

/// Whether it is worth asking about. What no name can be, the server is given as it is.
fn may_be_a_name(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX
}

/// Reads a reply to COMMAND. `None`: it does not say.
fn known(reply: &[u8]) -> Option<Known> {
    let Some(Value::List(list)) = Value::read(reply) else {
        return None;
    };
    let mut known = Known {
        arities: vec![None; CommandId::COUNT],
        subcommands: false,
        doubted: false,
    };
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
    Some(known)
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
        return Lesson::Alone { keys: Keys::Unsaid };
    };
    let has = |flag: &str| flags.iter().any(|it| it.text() == Some(flag.as_bytes()));
    let keys = match has("movablekeys") {
        true => Keys::Unsaid,
        false => keys(facts),
    };
    let data = has("readonly") || has("write");
    if data
        && !["blocking", "noscript", "pubsub", "admin"]
            .iter()
            .any(|flag| has(flag))
    {
        Lesson::Shared {
            reads: has("readonly"),
            keys,
        }
    } else {
        Lesson::Alone { keys }
    }
}

/// Where in what a server says of a command the places of its keys stand: the first, the last and
/// the step.
const KEYS_AT: usize = 3;

fn keys(facts: &[Value]) -> Keys {
    let number = |at: usize| match facts.get(KEYS_AT + at) {
        Some(Value::Integer(number)) => Some(*number),
        _ => None,
    };
    let (Some(first), Some(last), Some(step)) = (number(0), number(1), number(2)) else {
        return Keys::Unsaid;
    };
    match (usize::try_from(first), usize::try_from(step)) {
        (Ok(0), _) => Keys::None,
        (Ok(first), Ok(step @ 1..)) => Keys::At { first, last, step },
        _ => Keys::Unsaid,
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
        let known = known(reply.as_bytes()).expect("it says");
        let arity = |id: CommandId| known.arities[id.index()];
        assert_eq!(arity(commands::id::GET), Some(2));
        assert_eq!(arity(commands::id::CONFIG_GET), Some(-3));
        assert_eq!(
            (arity(commands::id::SET), arity(commands::id::CONFIG_SET)),
            (None, None)
        );
        assert!(known.subcommands);
        assert!(super::known(b"-NOPERM no\r\n").is_none());
    }

    #[test]
    fn a_command_goes_the_way_of_its_like() {
        let said = |facts: &str| lesson(facts.as_bytes(), Time(5));
        assert_eq!(said("*1\r\n*-1\r\n"), Lesson::Nothing { at: Time(5) });
        assert_eq!(said("*1\r\n_\r\n"), Lesson::Nothing { at: Time(5) });
        assert_eq!(said("-NOPERM no\r\n"), Lesson::Unsaid { at: Time(5) });
        let with = |flags: &str| said(&format!("*1\r\n*3\r\n$6\r\nbf.add\r\n:3\r\n{flags}"));
        let keys = Keys::Unsaid;
        let shared = |reads| Lesson::Shared { reads, keys };
        assert_eq!(with("*2\r\n+write\r\n+denyoom\r\n"), shared(false));
        assert_eq!(with("~1\r\n+readonly\r\n"), shared(true));
        assert_eq!(
            with("*2\r\n+write\r\n+blocking\r\n"),
            Lesson::Alone { keys }
        );
        assert_eq!(with("*1\r\n+fast\r\n"), Lesson::Alone { keys });
        let renamed = said("*1\r\n*3\r\n$5\r\nmulti\r\n:1\r\n*0\r\n");
        assert_eq!(renamed, Lesson::Renamed(commands::id::MULTI));
    }

    #[test]
    fn keys_are_where_the_server_says_if_it_says_it_of_all_arguments() {
        let said = |flag: &str, places: &str| {
            let facts = format!("*1\r\n*6\r\n$5\r\na.get\r\n:-2\r\n*1\r\n+{flag}\r\n{places}");
            match lesson(facts.as_bytes(), Time(5)) {
                Lesson::Shared { keys, .. } | Lesson::Alone { keys } => keys,
                other => panic!("{other:?}"),
            }
        };
        let places = |keys: Keys, argc: usize| keys.places(argc).collect::<Vec<_>>();
        let one = said("write", ":1\r\n:1\r\n:1\r\n");
        assert_eq!(places(one, 4), [1]);
        assert_eq!(places(one, 1), []);
        let pairs = said("fast", ":2\r\n:-2\r\n:2\r\n");
        assert_eq!(places(pairs, 6), [2, 4]);
        assert_eq!(places(pairs, 2), []);
        let two = said("write", ":1\r\n:2\r\n:1\r\n");
        assert_eq!(places(two, 2), [1]);
        assert_eq!(said("write", ":0\r\n:0\r\n:0\r\n"), Keys::None);
        let odd = [
            ":1\r\n:1\r\n:0\r\n",
            ":-1\r\n:1\r\n:1\r\n",
            ":1\r\n:1\r\n+a\r\n",
        ];
        for places in odd {
            assert_eq!(said("write", places), Keys::Unsaid);
        }
        let movable = said("movablekeys", ":1\r\n:1\r\n:1\r\n");
        assert_eq!(movable, Keys::Unsaid);
    }
}
