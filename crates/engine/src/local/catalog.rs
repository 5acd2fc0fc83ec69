//! Servers' answers about commands. respool asks one by one about commands that the table lacks: of
//! modules, of newer servers, or renamed. For the table's commands, a server lists those that it
//! has, with their numbers of arguments. That matters for requests that do not reach the server:
//! those answered here, queued, or refused to a subscriber.

use std::collections::{HashMap, HashSet};

use respool_protocol::commands::{self, CommandId, id};
use respool_protocol::encode;
use respool_protocol::value::Value;

use crate::base::error_text::{unknown_command, unknown_subcommand, wrong_arity};
use crate::base::handle::{LinkId, SessionId};
use crate::base::slab::Slab;
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::local::{LocalCompletion, Subject};
use crate::data_plane::ingress::{Blocked, Dispatched, Request, allowed_in_subscription};
use crate::data_plane::learned_commands::{
    CommandInfo, LearnedCommands, LearnedKeySpec, ServerUser,
};
use crate::data_plane::link::{Link, LinkKind, LinkRole};
use crate::data_plane::session::Flags;
use crate::local::Local;
use crate::local::acl::{KnownRights, RIGHT_MS, RightRefusal};
use crate::routing::pool::ServerId;

/// The answers of servers about commands.
#[derive(Default)]
pub(crate) struct CommandCatalog {
    /// Questions without an answer: the link of each, and when it was asked.
    asking: HashMap<(ServerUser, Subject), (LinkId, Time)>,
    /// Servers that have lost the links of questions and answered none since: the number of losses
    /// and the time of the last one.
    unanswered: HashMap<ServerUser, (u32, Time)>,
    /// The commands of each server, read as soon as they matter.
    known: HashMap<ServerId, KnownCommands>,
    /// The refusals of COMMAND. `None`: the user lacks the right. A time: when the server refused
    /// once.
    command_refused: HashMap<ServerUser, Option<Time>>,
    /// The answers to whether a user may open transactions, asked at its first MULTI: the refusal,
    /// if any, and the time of the answer.
    opening_rights: HashMap<ServerUser, (Option<Vec<u8>>, Time)>,
    /// The answers to whether a user may send other requests that respool answers itself.
    pub(crate) rights: KnownRights,
}

impl CommandCatalog {
    /// A link did not come up: its questions are asked on another link.
    pub(crate) fn leave_questions(&mut self, link: LinkId) {
        self.asking.retain(|_, (on, _)| *on != link);
    }

    /// The link on which a question is being asked, and since when. `None` if the link is gone or
    /// draining: its answers may come late or never, and the question is asked on another link.
    fn asked_on(
        &self,
        links: &Slab<LinkId, Link>,
        subject: &(ServerUser, Subject),
    ) -> Option<(LinkId, Time)> {
        let question = self.asking.get(subject).copied();
        question.filter(|(link, _)| links.get(*link).is_some_and(takes_questions))
    }

    /// The answers on this link will never come. Sessions ask again on another link and wait there,
    /// but not for ever: a server that loses each connection never answers.
    pub(crate) fn lose_questions(&mut self, link: LinkId, now: Time) {
        let lost = self.asking.extract_if(|_, (on, _)| *on == link);
        let lost: HashSet<ServerUser> = lost.map(|((server_user, _), _)| server_user).collect();
        for server_user in lost {
            let (count, at) = self.unanswered.entry(server_user).or_insert((0, now));
            *count = count.saturating_add(1);
            *at = now;
        }
    }

    /// Removes a question that was answered.
    fn note_answer(&mut self, subject: &(ServerUser, Subject)) {
        self.asking.remove(subject);
        self.unanswered.remove(&subject.0);
    }

    /// Whether sessions wait no longer for a question that was asked at `since`.
    fn is_late(&self, server_user: &ServerUser, since: Time, now: Time) -> bool {
        let lost = self
            .unanswered
            .get(server_user)
            .map_or(0, |(count, _)| *count);
        lost >= LOST_QUESTIONS_MAX || now.since_ms(since) >= LESSON_MS
    }

    /// The links of late questions.
    fn tick_questions(&mut self, links: &Slab<LinkId, Link>, now: Time) -> Vec<LinkId> {
        self.asking
            .retain(|_, (link, _)| links.get(*link).is_some_and(takes_questions));
        self.unanswered
            .retain(|_, (_, at)| now.since_ms(*at) < UNANSWERED_MS);
        let asking = self.asking.iter();
        let late =
            asking.filter(|((server_user, _), (_, since))| self.is_late(server_user, *since, now));
        late.map(|(_, (link, _))| *link).collect()
    }
}

/// Whether the answers on a link come in time.
fn takes_questions(link: &Link) -> bool {
    !matches!(link.role, LinkRole::Draining { .. })
}

/// The commands of the table that a server has.
#[derive(Debug)]
struct KnownCommands {
    /// Their arities, by their places in the table. `None`: the server lacks the command.
    arities: Vec<Option<i64>>,
    /// Whether the server lists its subcommands (Redis 7 and newer).
    subcommands: bool,
    /// The list may be old: the next session that needs it asks again.
    is_stale: bool,
}

/// The server's judgement of a request before its arguments are read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CommandCheck {
    /// Not known or not needed: the table's row counts.
    Unknown,
    /// No objection.
    Allowed,
    /// The server's error.
    Refused(Vec<u8>),
    /// The server answers the request with an error of its own and has no other effect: it gets the
    /// request.
    ServerRefuses,
}

/// The outcome of the checks of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RequestAdmission {
    /// It goes on. `server_refuses`: the server answers it with an error of its own.
    Passed { server_refuses: bool },
    /// The session waits: for the server's answer about the command, or for the end of a pause.
    Waits,
    /// The client gets this error.
    Refused(Vec<u8>),
}

impl CommandCatalog {
    /// A user has authenticated again, or its rights may have changed.
    pub(crate) fn invalidate_user(&mut self, user: u16) {
        self.command_refused.retain(|(_, of), _| *of != user);
        self.opening_rights.retain(|(_, of), _| *of != user);
        self.rights.invalidate(|(_, of)| of == user);
    }

    /// Forgets a user. Its number may be given to another one.
    pub(crate) fn forget_user(&mut self, learned: &mut LearnedCommands, user: u16) {
        self.invalidate_user(user);
        learned.forget_user(user);
    }

    /// A connection to a server was lost: another server may have its place when it is back.
    /// Requests in a transaction are still checked by the list that counted at its MULTI.
    pub(crate) fn invalidate_server(&mut self, learned: &mut LearnedCommands, server: ServerId) {
        if let Some(known) = self.known.get_mut(&server) {
            known.is_stale = true;
        }
        learned.forget_server(server);
        self.command_refused.retain(|(of, _), _| *of != server);
        self.opening_rights.retain(|(of, _), _| *of != server);
    }

    /// Forgets a server. Its number is given to another one.
    pub(crate) fn forget_server(&mut self, learned: &mut LearnedCommands, server: ServerId) {
        self.invalidate_server(learned, server);
        self.known.remove(&server);
        self.rights.invalidate(|(of, _)| of == server);
    }
}

/// How long two answers count: that a server lacks a command, since a module may be loaded, and
/// that it refused to answer, since it may only have been busy.
const NOTHING_MS: u64 = 1_000;
/// How long a session waits to learn which commands a server has, or whether it may open
/// transactions. After that the table counts, and an unknown command is taken as the worst kind.
/// The server may be busy for long, and the request may be meant to end that.
const LESSON_MS: u64 = 1_000;
/// Number of links that a server may lose with a question on them before sessions stop waiting.
/// Sessions that connect again after a restart have caused one such loss.
const LOST_QUESTIONS_MAX: u32 = 3;
/// How long such losses count if no question is answered.
const UNANSWERED_MS: u64 = 5_000;
/// The longest name of a command, bytes.
const NAME_BYTES_MAX: usize = 128;

impl Local {
    /// The server's answer about a command. `Err`: the session waits for it, or got the error for
    /// which the answer cannot be had.
    pub(crate) fn info_of(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        name: Vec<u8>,
    ) -> Result<CommandInfo, Dispatched> {
        let now = plane.now;
        let Some(server_user) = self.server_user(plane, id) else {
            return Err(Dispatched::Done);
        };
        let subject = (server_user, name);
        match plane.learned_commands.get(&subject) {
            Some(CommandInfo::Nothing { at } | CommandInfo::Unreported { at })
                if now.since_ms(*at) >= NOTHING_MS => {}
            Some(info) => return Ok(*info),
            None => {}
        }
        match self.ask_about(plane, id, subject.1) {
            // The answer does not come in time.
            Ok(()) => Ok(CommandInfo::Unreported { at: now }),
            Err(blocked) => Err(plane.blocked(id, blocked)),
        }
    }

    /// Asks for the commands of a session's server unless they are known. Returns false if the
    /// session waits for the answer.
    fn know_commands(&mut self, plane: &mut DataPlane, id: SessionId) -> bool {
        let Some(session) = plane.sessions.get(id) else {
            return true;
        };
        let own = plane.kind_of(session);
        let known = self.catalog.known.get(&own.server);
        if known.is_some_and(|known| !known.is_stale) {
            return true;
        }
        // All users see the same commands. The first link is up already, but its user may have no
        // right to COMMAND.
        for kind in [plane.default_kind(own.server), own] {
            let is_refused = match self.catalog.command_refused.get(&(kind.server, kind.user)) {
                Some(Some(at)) => plane.now.since_ms(*at) < NOTHING_MS,
                Some(None) => true,
                None => false,
            };
            if !is_refused && matches!(self.ask_about_all(plane, id, kind), Err(Blocked::Wait)) {
                return false;
            }
        }
        true
    }

    /// Asks whether the session's user may open transactions, unless that is known. `opening`: a
    /// MULTI, as the client wrote it. `Err`: the session waits for the answer, or the server has
    /// refused.
    pub(crate) fn admit_opening(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        opening: &[u8],
    ) -> Result<(), Blocked> {
        if !self.know_opening(plane, id, opening) {
            return Err(Blocked::Wait);
        }
        match self.refusal_to_open(plane, id) {
            Some(refusal) => Err(Blocked::Refused(refusal)),
            None => Ok(()),
        }
    }

    /// Returns false if the session waits for the answer.
    fn know_opening(&mut self, plane: &mut DataPlane, id: SessionId, opening: &[u8]) -> bool {
        let known = self.server_user(plane, id).is_none_or(|server_user| {
            let answer = self.catalog.opening_rights.get(&server_user);
            answer.is_some_and(|(refusal, at)| {
                refusal.is_none() || plane.now.since_ms(*at) < RIGHT_MS
            })
        });
        known || !matches!(self.ask_to_open(plane, id, opening), Err(Blocked::Wait))
    }

    /// Checks a request with a command of the table.
    pub(crate) fn admit(
        &mut self,
        plane: &mut DataPlane,
        session_id: SessionId,
        request: &Request<'_>,
    ) -> RequestAdmission {
        let (id, command, argc) = (request.id, request.command, request.spans.len());
        let arg = |index: usize| request.arg(index);
        let Some(verdict) = self.verdict(plane, session_id, request) else {
            return RequestAdmission::Waits;
        };
        let server_refuses = verdict == CommandCheck::ServerRefuses;
        let checked = match verdict {
            CommandCheck::Refused(text) => Err(text),
            CommandCheck::Unknown => plane
                .check_shape(session_id, command, argc, arg)
                .and_then(|()| plane.check(session_id, command, id, argc, arg)),
            CommandCheck::Allowed | CommandCheck::ServerRefuses => {
                plane.check(session_id, command, id, argc, arg)
            }
        };
        if let Some(session) = plane.sessions.get_mut(session_id) {
            session.last_command = Some(id);
        }
        if let Err(text) = checked {
            return RequestAdmission::Refused(text);
        }
        match plane.is_paused(session_id, request) {
            true => {
                plane.hold_for_pause(session_id);
                RequestAdmission::Waits
            }
            false => RequestAdmission::Passed { server_refuses },
        }
    }

    /// The judgement of a session's server on a request that the server may never see. `None`: the
    /// session waits for the answer.
    fn verdict(
        &mut self,
        plane: &mut DataPlane,
        session_id: SessionId,
        request: &Request<'_>,
    ) -> Option<CommandCheck> {
        let state = plane
            .sessions
            .get(session_id)
            .map(|session| session.state)
            .unwrap_or_default();
        let row = request.command;
        let is_asked_itself = row.answer.is_by_server();
        if is_asked_itself && !state.any(Flags::IN_MULTI | Flags::RESTRICTED)
            || plane.is_silent_before_auth(session_id)
        {
            return Some(CommandCheck::Unknown);
        }
        // A queued request is judged by the list that counted at its MULTI. An unauthenticated
        // session could not ask.
        let may_ask = !state.any(Flags::IN_MULTI | Flags::UNAUTHENTICATED);
        let is_refused_here = state.any(Flags::RESTRICTED) && !allowed_in_subscription(request.id);
        let matters = is_refused_here
            || matches!(request.id, id::MULTI | id::DISCARD | id::RESET)
            || matches!(request.id, id::READONLY | id::READWRITE | id::ASKING)
            || is_since_7(request.id)
            || !row.arity_ok(request.spans.len())
            || names_no_subcommand(request);
        // Asked at the same time as the list below, so that a slow server is waited for once.
        let refusal = match state.any(Flags::UNAUTHENTICATED) {
            true => Some(None),
            false => self.refusal_of_right(plane, session_id, request, state.any(Flags::IN_MULTI)),
        };
        if may_ask && matters && !self.know_commands(plane, session_id) {
            return None;
        }
        // Redis's order: unknown command first, then wrong arguments, then missing rights.
        let refusal = refusal?;
        if refusal == Some(RightRefusal::Unknown) {
            return Some(self.unknown(plane, session_id, request));
        }
        let verdict = match self.known_verdict(plane, session_id, request) {
            // A request that is answered here needs the number of arguments of the table.
            CommandCheck::Allowed if !is_asked_itself && !row.arity_ok(request.spans.len()) => {
                CommandCheck::Refused(wrong_arity(row))
            }
            verdict @ (CommandCheck::Refused(_) | CommandCheck::ServerRefuses) => {
                return Some(verdict);
            }
            verdict => verdict,
        };
        let has_rights = row.arity_ok(request.spans.len()) && !state.any(Flags::RESTRICTED);
        Some(match refusal {
            Some(RightRefusal::Denied(error)) if has_rights => CommandCheck::Refused(error),
            Some(RightRefusal::Unanswered) if has_rights => CommandCheck::Refused(
                self.unanswered_error(plane, session_id, plane.server_down_error(session_id)),
            ),
            _ => verdict,
        })
    }

    /// Asks the server for all its commands, on a link of this kind.
    fn ask_about_all(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        kind: LinkKind,
    ) -> Result<(), Blocked> {
        let mut request = Vec::new();
        encode::request(&mut request, &["COMMAND"]);
        let question = (
            request,
            Completion::Local(LocalCompletion::Learn(Subject::Commands)),
        );
        self.wait_for_info(plane, id, kind, Subject::Commands, question)
    }

    /// Asks the server whether the session's user may open transactions. A pinned link is not used:
    /// EXEC would end its WATCH.
    fn ask_to_open(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        opening: &[u8],
    ) -> Result<(), Blocked> {
        let Some(session) = plane.sessions.get(id) else {
            return Ok(());
        };
        let kind = plane.kind_of(session);
        let mut probe = opening.to_vec();
        encode::request(&mut probe, &["EXEC"]);
        let question = (probe, Completion::Local(LocalCompletion::Probe(None)));
        self.wait_for_info(plane, id, kind, Subject::Opening, question)
    }

    /// Asks the server about a command. The session waits for the answer.
    fn ask_about(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        name: Vec<u8>,
    ) -> Result<(), Blocked> {
        let Some(session) = plane.sessions.get(id) else {
            return Ok(());
        };
        let kind = plane.kind_of(session);
        let mut request = Vec::new();
        encode::request(&mut request, &[b"COMMAND".as_slice(), b"INFO", &name]);
        let question = (
            request,
            Completion::Local(LocalCompletion::Learn(Subject::Command(name.clone()))),
        );
        self.wait_for_info(plane, id, kind, Subject::Command(name), question)
    }

    /// Has the session wait for an answer of the server to the user of `kind`. The question is
    /// sent unless it is under way already. `Ok`: the answer is late, and the session goes on
    /// without it.
    pub(crate) fn wait_for_info(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        kind: LinkKind,
        subject: Subject,
        (request, completion): (Vec<u8>, Completion),
    ) -> Result<(), Blocked> {
        let subject = ((kind.server, kind.user), subject);
        let pending = self.catalog.asked_on(&plane.links, &subject);
        let since = pending.map_or(plane.now, |(_, since)| since);
        let is_late =
            self.catalog.is_late(&subject.0, since, plane.now) || plane.is_expired(plane.read_at);
        let link = match pending {
            Some((link, _)) => link,
            // A late server may have recovered: it is asked, and its answer clears the record of
            // losses.
            None => match plane.ask_on_shared(kind, &request, completion) {
                Err(_) if is_late => return Ok(()),
                sent => {
                    let link = sent?;
                    self.catalog.asking.insert(subject, (link, plane.now));
                    link
                }
            },
        };
        if is_late {
            return Ok(());
        }
        plane.wait_at(id, link);
        Err(Blocked::Wait)
    }

    /// Reads the replies of a server to a user's MULTI and the EXEC after it. If only MULTI is
    /// accepted, the link is stuck in a transaction and is closed.
    pub(super) fn read_opening(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        replies: [&[u8]; 2],
    ) -> Option<OpeningAnswer> {
        let kind = plane.links.get(link)?.kind;
        let is_stuck = stays_open(replies[0], replies[1]);
        if is_stuck {
            plane.lose_link(link, "it opens transactions and does not execute them");
        }
        Some(OpeningAnswer {
            link,
            server_user: (kind.server, kind.user),
            refusal: lasting_refusal(replies),
            is_stuck,
        })
    }

    /// Notes a server's answer to whether a user may open transactions, and wakes the sessions that
    /// wait for it.
    pub(crate) fn note_opening(&mut self, plane: &mut DataPlane, answer: OpeningAnswer) {
        let OpeningAnswer {
            server_user,
            refusal,
            ..
        } = answer;
        self.catalog.note_answer(&(server_user, Subject::Opening));
        self.catalog
            .opening_rights
            .insert(server_user, (refusal, plane.now));
        plane.wake_waiters(answer.link);
    }
}

/// A server's answer to whether a user may open transactions.
#[derive(Debug)]
pub(crate) struct OpeningAnswer {
    link: LinkId,
    server_user: ServerUser,
    /// `None`: the user may.
    refusal: Option<Vec<u8>>,
    /// Whether the link is stuck in a transaction, and was closed.
    pub(crate) is_stuck: bool,
}

/// The error for which a user may not open transactions. Other errors pass.
fn lasting_refusal(replies: [&[u8]; 2]) -> Option<Vec<u8>> {
    let is_lasting = |error: &Vec<u8>| {
        let lasting = [&b"-NOPERM"[..], b"-ERR unknown command"];
        lasting.iter().any(|beginning| error.starts_with(beginning))
    };
    replies.map(of_its_own).into_iter().find(is_lasting)
}

/// Whether a link is stuck in a transaction: the server has accepted MULTI, and has not ended it.
fn stays_open(opened: &[u8], executed: &[u8]) -> bool {
    let has_ended = executed.starts_with(b"*") || executed.starts_with(b"-EXECABORT");
    !opened.starts_with(b"-") && !has_ended
}

/// The reason within an EXECABORT error, or the error itself.
fn of_its_own(error: &[u8]) -> Vec<u8> {
    match error.strip_prefix(b"-EXECABORT Transaction discarded because of: ") {
        Some(why) => [b"-", why].concat(),
        None => error.to_vec(),
    }
}

/// Commands answered here that came with Redis 7 or later. An older server does not list
/// subcommands, so its list does not show that it lacks these.
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

/// Whether a request names a subcommand that the table lacks.
pub(crate) fn names_no_subcommand(request: &Request<'_>) -> bool {
    request.command.is_container() && request.spans.len() > 1
}

/// Whether a name may be a command's. A request with another name goes to the server as it is.
pub(crate) fn may_be_a_name(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX
}

/// Reads a reply to COMMAND. `None`: it holds no list.
fn known(reply: &[u8]) -> Option<KnownCommands> {
    let Some(Value::List(list)) = Value::read(reply) else {
        return None;
    };
    let mut known = KnownCommands {
        arities: vec![None; CommandId::COUNT],
        subcommands: false,
        is_stale: false,
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

/// The index of the subcommands in a command's entry, since Redis 7.
const SUBCOMMANDS_AT: usize = 9;

/// Reads a reply to COMMAND INFO about one command.
fn parse_info(reply: &[u8], now: Time) -> CommandInfo {
    let Some(Value::List(commands)) = Value::read(reply) else {
        return CommandInfo::Unreported { at: now };
    };
    let Some(Value::List(facts)) = commands.first() else {
        return CommandInfo::Nothing { at: now };
    };
    let renamed = facts
        .first()
        .and_then(Value::text)
        .and_then(commands::lookup);
    if let Some(id) = renamed {
        return CommandInfo::Renamed(id);
    }
    let Some(Value::List(flags)) = facts.get(2) else {
        return CommandInfo::Alone {
            keys: LearnedKeySpec::Unreported,
        };
    };
    let has = |flag: &str| flags.iter().any(|it| it.text() == Some(flag.as_bytes()));
    let keys = match has("movablekeys") {
        true => LearnedKeySpec::Unreported,
        false => keys(facts),
    };
    let data = has("readonly") || has("write");
    if data
        && !["blocking", "noscript", "pubsub", "admin"]
            .iter()
            .any(|flag| has(flag))
    {
        CommandInfo::Shared {
            reads: has("readonly"),
            keys,
        }
    } else {
        CommandInfo::Alone { keys }
    }
}

/// The index of the first key, the last key and the step in a command's entry.
const KEYS_AT: usize = 3;

fn keys(facts: &[Value]) -> LearnedKeySpec {
    let number = |at: usize| match facts.get(KEYS_AT + at) {
        Some(Value::Integer(number)) => Some(*number),
        _ => None,
    };
    let (Some(first), Some(last), Some(step)) = (number(0), number(1), number(2)) else {
        return LearnedKeySpec::Unreported;
    };
    match (usize::try_from(first), usize::try_from(step)) {
        (Ok(0), _) => LearnedKeySpec::None,
        (Ok(first), Ok(step @ 1..)) => LearnedKeySpec::At { first, last, step },
        _ => LearnedKeySpec::Unreported,
    }
}

impl Local {
    pub(crate) fn server_user(&self, plane: &DataPlane, id: SessionId) -> Option<ServerUser> {
        let kind = plane.kind_of(plane.sessions.get(id)?);
        Some((kind.server, kind.user))
    }

    /// The server's error to a MULTI of this session's user, if it has refused one.
    fn refusal_to_open(&self, plane: &DataPlane, id: SessionId) -> Option<Vec<u8>> {
        self.catalog
            .opening_rights
            .get(&self.server_user(plane, id)?)?
            .0
            .clone()
    }

    /// The rights of a link's user may have changed.
    pub(crate) fn invalidate_rights(&mut self, plane: &mut DataPlane, link: LinkId) {
        if let Some(link) = plane.links.get(link) {
            self.catalog.invalidate_user(link.kind.user);
        }
    }

    /// Drops old answers and wakes sessions that have waited long enough.
    pub(crate) fn tick_command_info(&mut self, plane: &mut DataPlane) {
        self.catalog.rights.tick(plane.now);
        for link in self.catalog.tick_questions(&plane.links, plane.now) {
            plane.wake_waiters(link);
        }
    }

    pub(crate) fn unknown(
        &self,
        plane: &DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> CommandCheck {
        let args: Vec<&[u8]> = request.args().collect();
        CommandCheck::Refused(unknown_command(&args, plane.is_before_7(id)))
    }

    /// The known commands of a session's server. In MULTI the session may have switched to a server
    /// that was never asked. Then another server of the pool counts, which was asked at MULTI.
    fn known_of(&self, plane: &DataPlane, id: SessionId) -> Option<&KnownCommands> {
        let (server, _) = self.server_user(plane, id)?;
        let session = plane.sessions.get(id)?;
        let all = plane.pools[usize::from(session.pool)].servers().iter();
        let all = all.filter(|_| session.state.any(Flags::IN_MULTI));
        let mut servers = std::iter::once(&server).chain(all);
        servers.find_map(|server| self.catalog.known.get(server))
    }

    fn known_verdict(
        &self,
        plane: &DataPlane,
        session_id: SessionId,
        request: &Request<'_>,
    ) -> CommandCheck {
        let row = request.command;
        let argc = request.spans.len();
        let is_sub = row.name.contains('|');
        let names_sub = is_sub || names_no_subcommand(request);
        let container = row.name.split('|').next().unwrap_or_default();
        let container = commands::lookup(container.as_bytes()).unwrap_or(request.id);
        let known = self.known_of(plane, session_id);
        let arity_of = |id: CommandId| known.map(|known| known.arities[id.index()]);
        if request.id == id::QUIT {
            // Before Redis 7.2 QUIT was no command: Redis looked for it before all commands.
            return CommandCheck::Unknown;
        }
        if arity_of(container) == Some(None) {
            return self.unknown(plane, session_id, request);
        }
        if names_sub && plane.is_before_7(session_id) {
            // Before Redis 7 a container checked its subcommands when it was executed.
            let ours = is_sub
                && row.arity_ok(argc)
                && !is_since_7(request.id)
                && !(matches!(request.id, id::CLIENT_PAUSE | id::CLIENT_UNBLOCK) && argc > 4);
            // A subcommand that is unknown to the table could do anything to our link: it is
            // refused with the server's error.
            let unknown = request.id == id::CLIENT;
            return match ours || unknown {
                true => CommandCheck::Allowed,
                false => CommandCheck::ServerRefuses,
            };
        }
        let arity = match arity_of(request.id) {
            Some(Some(arity)) if is_sub || !names_sub => arity,
            Some(_) if known.is_some_and(|known| known.subcommands) => {
                return CommandCheck::Refused(unknown_subcommand(request.arg(0), request.arg(1)));
            }
            _ => return CommandCheck::Unknown,
        };
        let least = usize::try_from(arity.unsigned_abs()).unwrap_or(usize::MAX);
        if argc == least || arity < 0 && argc > least {
            return CommandCheck::Allowed;
        }
        CommandCheck::Refused(wrong_arity(row))
    }

    /// Notes that a question is asked on this link. Returns false if it is being asked already.
    pub(crate) fn begin_question(
        &mut self,
        plane: &mut DataPlane,
        server_user: ServerUser,
        subject: Subject,
        link: LinkId,
    ) -> bool {
        let subject = (server_user, subject);
        let is_new = self.catalog.asked_on(&plane.links, &subject).is_none();
        if is_new {
            self.catalog.asking.insert(subject, (link, plane.now));
        }
        is_new
    }

    /// The server's reply to COMMAND or COMMAND INFO.
    pub(crate) fn learn(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        about: Subject,
        reply: &[u8],
    ) {
        let Some(kind) = plane.links.get(link).map(|link| link.kind) else {
            return;
        };
        let subject = ((kind.server, kind.user), about);
        self.catalog.note_answer(&subject);
        match subject {
            (server_user, Subject::Commands) => match known(reply) {
                Some(known) => {
                    self.catalog.known.insert(server_user.0, known);
                }
                // The server may be loading, or the user may have no right to COMMAND.
                None => {
                    let at = (!reply.starts_with(b"-NOPERM")).then_some(plane.now);
                    self.catalog.command_refused.insert(server_user, at);
                }
            },
            (server_user, Subject::Command(name)) => {
                let info = parse_info(reply, plane.now);
                plane.learned_commands.learn((server_user, name), info);
            }
            (server_user, Subject::Right(probe)) => {
                self.catalog
                    .rights
                    .learn(server_user, probe, reply, plane.now);
            }
            ((server, _), Subject::Script { number }) => {
                self.scripts
                    .note_restored((server, number), reply, plane.now);
            }
            (_, Subject::Opening) => unreachable!("the reply to a probe is no info"),
        }
        plane.wake_waiters(link);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link is stuck only if MULTI was accepted and EXEC did not end the transaction.
    #[test]
    fn link_is_stuck_if_exec_does_not_end_its_transaction() {
        assert!(!stays_open(b"+OK\r\n", b"*0\r\n"));
        assert!(!stays_open(b"+OK\r\n", b"-EXECABORT x\r\n"));
        assert!(!stays_open(
            b"-NOPERM x\r\n",
            b"-ERR EXEC without MULTI\r\n"
        ));
        assert!(stays_open(b"+OK\r\n", b"-NOPERM x\r\n"));
    }

    /// Commands, subcommands and arities are read from the reply to COMMAND.
    #[test]
    fn commands_of_a_server_are_read_from_its_list() {
        let config = "*10\r\n$6\r\nconfig\r\n:-2\r\n*0\r\n:0\r\n:0\r\n:0\r\n*0\r\n*0\r\n*0\r\n*1\r\n\
                      *2\r\n$10\r\nconfig|get\r\n:-3\r\n";
        let reply = format!("*2\r\n*2\r\n$3\r\nget\r\n:2\r\n{config}");
        let known = known(reply.as_bytes()).expect("a list of commands");
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

    /// A command that the table lacks is shared or sent alone by the flags of COMMAND INFO.
    #[test]
    fn learned_command_is_sent_by_its_flags() {
        let info_of = |facts: &str| parse_info(facts.as_bytes(), Time(5));
        assert_eq!(
            info_of("*1\r\n*-1\r\n"),
            CommandInfo::Nothing { at: Time(5) }
        );
        assert_eq!(info_of("*1\r\n_\r\n"), CommandInfo::Nothing { at: Time(5) });
        assert_eq!(
            info_of("-NOPERM no\r\n"),
            CommandInfo::Unreported { at: Time(5) }
        );
        let with = |flags: &str| info_of(&format!("*1\r\n*3\r\n$6\r\nbf.add\r\n:3\r\n{flags}"));
        let keys = LearnedKeySpec::Unreported;
        let shared = |reads| CommandInfo::Shared { reads, keys };
        assert_eq!(with("*2\r\n+write\r\n+denyoom\r\n"), shared(false));
        assert_eq!(with("~1\r\n+readonly\r\n"), shared(true));
        assert_eq!(
            with("*2\r\n+write\r\n+blocking\r\n"),
            CommandInfo::Alone { keys }
        );
        assert_eq!(with("*1\r\n+fast\r\n"), CommandInfo::Alone { keys });
        let renamed = info_of("*1\r\n*3\r\n$5\r\nmulti\r\n:1\r\n*0\r\n");
        assert_eq!(renamed, CommandInfo::Renamed(commands::id::MULTI));
    }

    /// The keys of an unknown command are where its server puts them. Other shapes are not known.
    #[test]
    fn learned_keys_are_where_the_server_puts_them() {
        let keys_of = |flag: &str, places: &str| {
            let facts = format!("*1\r\n*6\r\n$5\r\na.get\r\n:-2\r\n*1\r\n+{flag}\r\n{places}");
            match parse_info(facts.as_bytes(), Time(5)) {
                CommandInfo::Shared { keys, .. } | CommandInfo::Alone { keys } => keys,
                other => panic!("{other:?}"),
            }
        };
        let places = |keys: LearnedKeySpec, argc: usize| keys.places(argc).collect::<Vec<_>>();
        let one = keys_of("write", ":1\r\n:1\r\n:1\r\n");
        assert_eq!(places(one, 4), [1]);
        assert_eq!(places(one, 1), []);
        let pairs = keys_of("fast", ":2\r\n:-2\r\n:2\r\n");
        assert_eq!(places(pairs, 6), [2, 4]);
        assert_eq!(places(pairs, 2), []);
        let two = keys_of("write", ":1\r\n:2\r\n:1\r\n");
        assert_eq!(places(two, 2), [1]);
        assert_eq!(keys_of("write", ":0\r\n:0\r\n:0\r\n"), LearnedKeySpec::None);
        let odd = [
            ":1\r\n:1\r\n:0\r\n",
            ":-1\r\n:1\r\n:1\r\n",
            ":1\r\n:1\r\n+a\r\n",
        ];
        for places in odd {
            assert_eq!(keys_of("write", places), LearnedKeySpec::Unreported);
        }
        let movable = keys_of("movablekeys", ":1\r\n:1\r\n:1\r\n");
        assert_eq!(movable, LearnedKeySpec::Unreported);
    }
}
