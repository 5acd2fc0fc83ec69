//! From a client's bytes to a place on a link: steps 2 to 4 in the life of a GET.

use respool_protocol::commands::{self, Answer, Command, CommandId, Condition, Retry, id};
use respool_protocol::encode;
use respool_protocol::request::{self, Found, Scanner, Span, Violation};
use respool_protocol::shape::Shape;

use crate::control::is_control;
use crate::duty::Duty;
use crate::engine::Engine;
use crate::entry::{Class, Entry};
use crate::failure::{self, Cause, Fate};
use crate::limits::UNAUTHENTICATED_HELD_BYTES_MAX;
use crate::link::{Link, LinkKey, Role, State};
use crate::pool::ServerId;
use crate::quick_code::may_hold_up;
use crate::returns::Expected;
use crate::session::{Flags, Pins, Session};
use crate::settings::AwayError;
use crate::slots::Key;
use crate::slow_readers::CODE_LANE;
use crate::takeover::is_busy;
use crate::unknown::{Verdict, names_no_subcommand};
use crate::wait::is_wait;
use crate::words::{
    NOAUTH, RENAMED_SELECT, not_in_subscription, refusal, unknown_subcommand, wrong_arity,
};

/// A whole request whose command is known and whose number of arguments is right.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) spans: &'a [Span],
    pub(crate) id: CommandId,
    pub(crate) command: &'static Command,
}

impl<'a> Request<'a> {
    pub(crate) fn arg(&self, index: usize) -> &'a [u8] {
        self.spans[index].of(self.bytes)
    }

    pub(crate) fn args(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (bytes, spans) = (self.bytes, self.spans);
        spans.iter().map(move |span| span.of(bytes))
    }
}

/// A request that is answered later. Its server may call the command by another name, so its bytes
/// do not say what it is.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) id: CommandId,
    pub(crate) bytes: Vec<u8>,
}

impl Request<'_> {
    pub(crate) fn keep(&self) -> Kept {
        Kept {
            id: self.id,
            bytes: self.bytes.to_vec(),
        }
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// It has its place, or its answer.
    Done,
    /// It must wait; the session holds for a reason. It is to be scanned again then.
    Wait,
}

/// What the last requests that went the short way had in common.
#[derive(Default)]
pub(crate) struct Alike {
    known: Option<Known>,
    /// Bytes of the last one.
    len: usize,
}

#[derive(Clone, Copy)]
struct Known {
    shape: Shape,
    id: CommandId,
    class: Class,
    /// Where its only key is, by which it is routed.
    key: Option<Span>,
}

impl Alike {
    /// This one was none of them. If it is as long as the one before, more such may come: where
    /// lengths change all the time, nothing is learned or looked for.
    #[inline]
    pub(crate) fn learn(&mut self, bytes: &[u8], spans: &[Span], id: CommandId, class: Class) {
        let len = std::mem::replace(&mut self.len, bytes.len());
        if len == bytes.len() {
            let key = match usize::from(id.get().only_key) {
                0 => None,
                at => spans.get(at).copied(),
            };
            self.known = Shape::of(bytes, spans).map(|shape| Known {
                shape,
                id,
                class,
                key,
            });
        } else if self.known.is_some() {
            self.known = None;
        }
    }
}

/// What follows bytes that are no whole array of arguments.
enum Next {
    /// The bytes behind so many.
    Behind(usize),
    /// More bytes: the scanner keeps its place.
    Kept,
    /// The same bytes again, when the session need not wait any more.
    Waits,
}

/// To EVAL behind SCRIPT DEBUG.
const NO_DEBUGGER: &[u8] =
    b"ERR respool: this connection asked for SCRIPT DEBUG, which is refused, so \
    its scripts are, too: debug at the server itself, or say SCRIPT DEBUG NO";

impl Engine {
    /// Takes requests from `input` until it ends or the session must wait; returns how many bytes
    /// are done with. The rest is to be given again, with more behind it.
    pub(crate) fn take_requests(&mut self, key: Key, input: &[u8]) -> usize {
        let Some(session) = self.sessions.get_mut(key) else {
            return input.len();
        };
        let mut scanner = session
            .partial
            .take()
            .or_else(|| self.scanners.pop())
            .unwrap_or_default();
        self.held_bytes -= scanner.held_bytes();
        let mut at = 0;
        let mut keep_scanner = false;
        while at < input.len() {
            let Some(session) = self.sessions.get_mut(key) else {
                break;
            };
            let flags = session.flags;
            if flags.any(Flags::NOT_SCANNED) {
                if flags.any(Flags::STREAMING | Flags::SWALLOWING)
                    && !flags.any(Flags::HOLD | Flags::CLOSING)
                {
                    if flags.any(Flags::STREAMING) && self.pauses(key, || true) {
                        // What it is, is not known any more: the server must not get the rest of a
                        // write.
                        self.hold_for_pause(key);
                        break;
                    }
                    at += self.take_large(key, &input[at..]);
                    continue;
                }
                break;
            }
            let off_path = flags & Flags::OFF_PATH;
            if scanner.scanned() == 0 && (off_path == Flags::ROUTED || off_path == Flags::default())
            {
                let used = match off_path == Flags::ROUTED {
                    true => self.place_alike_by_key(key, &input[at..]),
                    false => self.place_alike(key, &input[at..]),
                };
                if used > 0 {
                    at += used;
                    continue;
                }
            }
            let trusted = !flags.any(Flags::UNAUTHENTICATED);
            match scanner.scan(&input[at..], trusted) {
                Ok(Found::Request { len }) => {
                    if self.place(key, &input[at..at + len], scanner.spans()) == Placed::Wait {
                        break;
                    }
                    at += len;
                }
                found => match self.take_other(key, &mut scanner, &input[at..], found) {
                    Next::Behind(used) => at += used,
                    Next::Kept => {
                        keep_scanner = true;
                        break;
                    }
                    Next::Waits => break,
                },
            }
        }
        let partial = if keep_scanner {
            Some(scanner)
        } else {
            // A session that has to wait may leave it in the middle of a request.
            scanner.reset();
            self.scanners.push(scanner);
            None
        };
        self.after_requests(key, partial);
        at
    }

    /// Bytes that are no whole array of arguments: `rest` begins with them.
    #[cold]
    #[inline(never)]
    fn take_other(
        &mut self,
        key: Key,
        scanner: &mut Scanner,
        rest: &[u8],
        found: Result<Found, Violation>,
    ) -> Next {
        let flags = self.sessions.get(key).map(|session| session.flags);
        let flags = flags.unwrap_or_default();
        let trusted = !flags.any(Flags::UNAUTHENTICATED);
        match found {
            Ok(Found::More) if !trusted && rest.len() > UNAUTHENTICATED_HELD_BYTES_MAX => {
                scanner.reset();
                self.refuse_protocol(key, Violation::UnauthenticatedBulkLength);
            }
            Ok(Found::More) => {
                let limits = &self.settings.limits;
                let held_max = if flags.any(Flags::IN_MULTI) {
                    limits.transaction_bytes_max
                } else {
                    limits.request_held_bytes_max
                } as usize;
                let large = scanner.argc() > 0
                    && (scanner.len_at_least() > held_max as u64 || rest.len() > held_max);
                // That is decided once: a request may come in thousands of reads.
                if large && !scanner.is_held_whole() && self.is_held_whole(key, scanner, rest) {
                    scanner.hold_whole();
                }
                let begun = match large && !scanner.is_held_whole() {
                    true => self.begin_large(key, scanner, rest),
                    false => None,
                };
                let Some(used) = begun else {
                    return Next::Kept;
                };
                scanner.reset();
                return Next::Behind(used);
            }
            Ok(Found::Nothing { len } | Found::Request { len }) => return Next::Behind(len),
            Ok(Found::Inline { len }) => {
                match self.place_inline(key, rest.get(..len).unwrap_or(rest)) {
                    Ok(Placed::Done) => return Next::Behind(len),
                    Ok(Placed::Wait) => return Next::Waits,
                    Err(violation) => self.refuse_protocol(key, violation),
                }
            }
            Err(violation) => {
                scanner.reset();
                self.refuse_protocol(key, violation);
            }
        }
        Next::Behind(0)
    }

    /// Bounds are looked at once per read, not once per request: they may be passed by one read.
    fn after_requests(&mut self, key: Key, partial: Option<Box<Scanner>>) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        self.held_bytes += partial.as_ref().map_or(0, |scanner| scanner.held_bytes());
        session.partial = partial;
        // A large request has to be read to its end to be answered.
        let is_inside = session.flags.any(Flags::STREAMING | Flags::SWALLOWING);
        if session.depth() >= self.settings.limits.session_depth_max && !is_inside {
            self.hold(key, Flags::HOLD_DEPTH);
        }
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let link = session.link;
        self.close_if_full(link);
    }

    /// A link at its bound takes nothing more until it has room again.
    pub(crate) fn close_if_full(&mut self, link: Key) {
        let limits = &self.settings.limits;
        if let Some(link) = self.links.get_mut(link) {
            link.close_if_full(limits);
        }
    }

    /// A session asks again after everything was answered: its link need not expect it any more.
    #[inline]
    pub(crate) fn note_return(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let gap = self.now.since_us(session.answered_at);
        session.gap_us = u32::try_from(gap).unwrap_or(u32::MAX);
        let expected = std::mem::replace(&mut session.expected, Expected::NOT);
        if session.flags.any(Flags::ROUTED) {
            self.pools[usize::from(session.pool)].came(expected);
        } else if let Some(link) = self.links.get_mut(session.link) {
            link.returns.came(expected);
        }
    }

    /// A whole request. The short way: its server's link takes it, no question asked.
    #[inline]
    fn place(&mut self, key: Key, bytes: &[u8], spans: &[Span]) -> Placed {
        self.counters.requests += 1;
        let Some(id) = commands::lookup(spans[0].of(bytes)) else {
            return self.place_slowly(key, bytes, spans);
        };
        let command = id.get();
        if let Some(class) = self.straight[id.index()]
            && command.arity_ok(spans.len())
            && let Some(session) = self.sessions.get_mut(key)
            && !session.flags.any(Flags::OFF_PATH)
            && let Some(link) = self.links.get_mut(session.link)
            && link.accepting
        {
            session.asked = Some(id);
            let seq = session.take_seq();
            let entry = Entry {
                len: bytes.len() as u32,
                class,
                ..Entry::of(key, seq, self.asked_ms)
            };
            link.push(entry, bytes);
            self.counters.link_requests += 1;
            if !link.listed {
                self.list_link_of(key);
            }
            self.alike.learn(bytes, spans, id, class);
            return Placed::Done;
        }
        let request = Request {
            bytes,
            spans,
            id,
            command,
        };
        match self.place_by_key(key, &request) {
            true => Placed::Done,
            false => self.place_slowly(key, bytes, spans),
        }
    }

    /// Requests that look like the last ones that went the short way go after them, in one piece.
    /// Returns how many bytes they are. Its session is on the short way.
    #[inline]
    fn place_alike(&mut self, key: Key, input: &[u8]) -> usize {
        let Some(Known {
            shape, id, class, ..
        }) = &self.alike.known
        else {
            return 0;
        };
        if shape.fits(input)
            && let Some(session) = self.sessions.get_mut(key)
            && let Some(link) = self.links.get_mut(session.link)
            && link.accepting
        {
            let len = shape.request_len();
            let mut used = len;
            let mut count = 1;
            while shape.fits(&input[used..]) {
                used += len;
                count += 1;
            }
            session.asked = Some(*id);
            let seq = session.next_seq;
            session.next_seq = seq.wrapping_add(count);
            let first = Entry {
                len: len as u32,
                class: *class,
                ..Entry::of(key, seq, self.asked_ms)
            };
            link.push_alike(first, count, &input[..used]);
            self.counters.requests += u64::from(count);
            self.counters.link_requests += u64::from(count);
            if !link.listed {
                self.list_link_of(key);
            }
            return used;
        }
        0
    }

    /// The same where a pool has several servers: each goes to its key's owner. To whom its session
    /// turns in between only the links are told.
    #[inline(never)]
    fn place_alike_by_key(&mut self, key: Key, input: &[u8]) -> usize {
        let Some(Known {
            shape,
            id,
            class,
            key: Some(name),
        }) = &self.alike.known
        else {
            return 0;
        };
        if !shape.fits(input) || !self.goes_by_key(key) {
            return 0;
        }
        let kind = self.sessions.get(key);
        let kind = kind.map(|session| self.shared_kind_of(session));
        let (Some(kind), Some(session)) = (kind, self.sessions.get_mut(key)) else {
            return 0;
        };
        let (len, limits) = (shape.request_len(), &self.settings.limits);
        // So it reads only where replicas are read.
        if session.flags.any(Flags::READS_OTHERWISE) {
            return 0;
        }
        let pool = &self.pools[usize::from(session.pool)];
        let replica = id.get().replica;
        let readers = pool.readers.as_deref().filter(|_| replica);
        let (mut server, mut on) = (session.server, session.link);
        let (mut used, mut seq) = (0, session.next_seq);
        while used == 0 || shape.fits(&input[used..]) {
            let bytes = &input[used..used + len];
            let name = name.of(bytes);
            let (readers, owner) = match pool.owner_of(name, || seq) {
                Ok(owner) => (readers, owner),
                Err(any) => {
                    let (part, owner) = self.pools.owner_in_part(pool, name, any);
                    (part.readers.as_deref().filter(|_| replica), owner)
                }
            };
            let at = match readers {
                Some(readers) => readers.instead_of(owner, key),
                None => Ok(owner),
            };
            let Ok(at) = at else {
                break;
            };
            let next = match at == server {
                true => Some(on),
                false => self.servers[usize::from(at.0)].current(kind.at(at)),
            };
            let link = next.and_then(|next| Some((next, self.links.get_mut(next)?)));
            let Some((next, link)) = link.filter(|(_, link)| link.accepting) else {
                break;
            };
            if next != on {
                // Whoever turns to it looks at its bounds for whoever turned away: the long way
                // does not.
                link.close_if_full(limits);
                if link.role != Role::Shared || !link.accepting {
                    break;
                }
                link.unused_since = self.now;
                (server, on) = (at, next);
            }
            let entry = Entry {
                len: len as u32,
                class: *class,
                ..Entry::of(key, seq, self.asked_ms)
            };
            link.push(entry, bytes);
            if !link.listed {
                link.listed = true;
                link.begin_batch(self.now);
                self.open_links.push(on);
            }
            seq = seq.wrapping_add(1);
            used += len;
        }
        let count = seq.wrapping_sub(session.next_seq);
        if count == 0 {
            return 0;
        }
        session.asked = Some(*id);
        session.next_seq = seq;
        session.server = server;
        let old = std::mem::replace(&mut session.link, on);
        if old != on {
            self.leave(old);
            if let Some(link) = self.links.get_mut(on) {
                link.riders += 1;
            }
        }
        self.counters.requests += u64::from(count);
        self.counters.link_requests += u64::from(count);
        used
    }

    #[cold]
    fn list_link_of(&mut self, key: Key) {
        if let Some(link) = self.sessions.get(key).map(|session| session.link) {
            self.list_link(link);
        }
    }

    fn place_slowly(&mut self, key: Key, bytes: &[u8], spans: &[Span]) -> Placed {
        self.counters.requests -= 1;
        let flags = match self.sessions.get_mut(key) {
            Some(session) => {
                session.burst.place(session.next_seq, bytes.len());
                session.flags
            }
            None => Flags::default(),
        };
        if flags.any(Flags::FUSED) && self.hold_until_caught_up(key) {
            return Placed::Wait;
        }
        if flags.any(Flags::ROUTED)
            && let Some(session) = self.sessions.get_mut(key)
        {
            session.flags |= Flags::UNFORESEEN;
        }
        let placed = if flags.any(Flags::TUNNEL) {
            self.place_in_tunnel(key, bytes, spans)
        } else {
            let arg = |index: usize| spans[index].of(bytes);
            match commands::resolve(spans.len(), arg) {
                Some(id) => self.place_known(key, bytes, spans, id),
                None => {
                    if let Some(session) = self.sessions.get_mut(key) {
                        session.asked = None;
                    }
                    self.place_unknown(key, bytes, spans)
                }
            }
        };
        if placed == Placed::Done {
            self.counters.requests += 1;
            self.count_down_silence(key);
            if self.tracks_several(key) {
                self.end_caching(key);
            }
        }
        placed
    }

    /// CLIENT REPLY SKIP is for one request: the one behind it.
    pub(crate) fn count_down_silence(&mut self, key: Key) {
        if let Some(session) = self.sessions.get_mut(key) {
            let next = session.flags.any(Flags::SILENT_NEXT);
            session
                .flags
                .remove(Flags::SILENT_ONCE | Flags::SILENT_NEXT);
            if next {
                session.flags |= Flags::SILENT_ONCE;
            }
        }
    }

    /// A request whose command the table has.
    pub(crate) fn place_known(
        &mut self,
        key: Key,
        bytes: &[u8],
        spans: &[Span],
        id: CommandId,
    ) -> Placed {
        let arg = |index: usize| spans[index].of(bytes);
        let request = Request {
            bytes,
            spans,
            id,
            command: id.get(),
        };
        let command = request.command;
        if self.is_routed(key) {
            self.turn_from_dead(key);
            self.turn_from_replica(key, Some(command));
        }
        let Some(verdict) = self.verdict(key, &request) else {
            return Placed::Wait;
        };
        let is_itselfs = verdict == Verdict::Itself;
        let checked = match verdict {
            Verdict::Refused(text) => Err(text),
            Verdict::Unsaid => self
                .check_shape(key, command, spans.len(), arg)
                .and_then(|()| self.check(key, command, id, spans.len(), arg)),
            Verdict::Fine | Verdict::Itself => self.check(key, command, id, spans.len(), arg),
        };
        if let Err(text) = checked {
            return match id {
                id::EXEC => self.refuse_exec(key, &text),
                _ => self.refuse_queued(key, &text),
            };
        }
        if let Some(session) = self.sessions.get_mut(key) {
            session.asked = Some(id);
        }
        if self.is_paused(key, &request) {
            return self.hold_for_pause(key);
        }
        if id == id::PING && self.is_restricted(key) {
            return self.answer_here(key, &request);
        }
        if is_control(&request) {
            return self.place_control(key, &request);
        }
        if self.is_routed(key)
            && let Some(placed) = self.route(key, &request)
        {
            return placed;
        }
        let placed = match self.strips(key) {
            true => self.place_stripped(key, &request, is_itselfs),
            false => self.place_at_server(key, &request, is_itselfs),
        };
        if names_no_subcommand(&request) && self.is_routed(key) {
            // Keys of it that only a node sees may be at another one: nothing that is asked behind
            // it may be there before it.
            self.hold_until_caught_up(key);
        }
        placed
    }

    /// The same behind its way: its session has turned to its server.
    pub(crate) fn place_at_server(
        &mut self,
        key: Key,
        request: &Request<'_>,
        is_itselfs: bool,
    ) -> Placed {
        let Request {
            bytes,
            spans,
            id,
            command,
        } = *request;
        let arg = |index: usize| spans[index].of(bytes);
        let ends_multi = matches!(
            id,
            id::MULTI | id::EXEC | id::DISCARD | id::WATCH | id::QUIT | id::RESET
        );
        let in_multi = |session: &Session| session.flags.any(Flags::IN_MULTI);
        if !ends_multi && self.sessions.get(key).is_some_and(in_multi) {
            return match is_itselfs {
                true => self.queue_unknown(key, bytes, names_no_subcommand(request)),
                false => self.queue(key, request),
            };
        }
        let looked_into = matches!(command.answer, Answer::Conditional(_));
        if is_itselfs || looked_into && !command.arity_ok(spans.len()) {
            return self.place_on_link(key, bytes, false, None);
        }
        let alone = match command.answer {
            Answer::Session | Answer::Pinned => return self.answer_here(key, request),
            Answer::Alone => true,
            Answer::Conditional(Condition::Block) => commands::asks_to_block(spans.len(), arg),
            _ => false,
        };
        let reads = command.retry == Retry::Read;
        let named = self.naming_duty(key, command);
        match command.answer {
            Answer::Alone if is_wait(id) => {
                self.place_waiting(key, request, |engine| engine.place_wait(key, request))
            }
            _ if alone && may_wait(id) => self.place_waiting(key, request, |engine| {
                engine.place_alone(key, bytes, (reads, named), Pins::ONCE, true)
            }),
            _ if alone && id == id::SHUTDOWN => {
                self.place_urgent(key, bytes, (false, Some(Duty::Shutdown)))
            }
            _ if alone => self.place_urgent(key, bytes, (reads, named)),
            Answer::Conditional(Condition::Script) => {
                self.place_code(key, request, |engine| engine.place_script(key, request))
            }
            Answer::Conditional(Condition::Count) => self.place_counted(key, request),
            _ if may_hold_up(id) => self.place_code(key, request, |engine| {
                engine.place_on_link(key, bytes, reads, named)
            }),
            _ => self.place_on_link(key, bytes, reads, named),
        }
    }

    /// What can be said of a request by its command and the number of its arguments, as the table
    /// has them.
    pub(crate) fn check_shape<'a>(
        &self,
        key: Key,
        command: &'static Command,
        argc: usize,
        arg: impl Fn(usize) -> &'a [u8],
    ) -> Result<(), Vec<u8>> {
        if self.is_silent_before_auth(key) && !command.flags.has(commands::Flags::NO_AUTH) {
            return Err(NOAUTH.to_vec());
        }
        if command.is_container() && argc > 1 && command.answer == Answer::Session {
            return Err(unknown_subcommand(arg(0), arg(1)));
        }
        // The server says that best, in the words of its version; and what the table finds wrong, a
        // newer server may find right. Of what the server does not get, see `verdict`.
        let flags = self
            .sessions
            .get(key)
            .map_or(Flags::default(), |session| session.flags);
        let servers_to_say = match command.answer {
            Answer::Server | Answer::Alone | Answer::Conditional(_) => true,
            Answer::Session | Answer::Pinned | Answer::Refused(_) => false,
        } && !flags.any(Flags::UNAUTHENTICATED | Flags::RESTRICTED);
        if !command.arity_ok(argc) && !servers_to_say {
            return Err(wrong_arity(command));
        }
        Ok(())
    }

    /// What may not be asked now, or not at all: in the order in which Redis says it.
    pub(crate) fn check<'a>(
        &mut self,
        key: Key,
        command: &'static Command,
        id: CommandId,
        argc: usize,
        arg: impl Fn(usize) -> &'a [u8],
    ) -> Result<(), Vec<u8>> {
        let without_auth = match id {
            id::QUIT => true,
            id::RESET => !self.is_before_7(key),
            _ => command.flags.has(commands::Flags::NO_AUTH),
        };
        if !without_auth && self.is_unauthenticated(key) {
            return Err(NOAUTH.to_vec());
        }
        if !allowed_in_subscription(id) && self.is_restricted(key) {
            let before_7 = self.is_before_7(key);
            // Where a subcommand had no name of its own, its container is named.
            let name = match command.name.split_once('|') {
                Some((container, _)) if before_7 => container,
                _ => command.name,
            };
            return Err(not_in_subscription(name.as_bytes(), before_7));
        }
        let is_debug_object =
            || argc > 1 && id == id::DEBUG && commands::is_word(arg(1), b"object");
        let passes = || self.settings.passes_debug_object && is_debug_object();
        if self.settings.refused.contains(&id) && !passes() {
            self.counters.refused += 1;
            return Err(format!(
                "ERR respool: '{}' is refused by the configuration (refuse-commands)",
                command.name.replace('|', " ")
            )
            .into_bytes());
        }
        // A link is given its database by SELECT.
        if id == id::SELECT && !is_select(arg(0)) {
            self.counters.refused += 1;
            return Err(RENAMED_SELECT.to_vec());
        }
        let mode = || if argc > 2 { arg(2) } else { b"" };
        if let Some(text) = self.refusal_to_debugger(key, id, mode) {
            return Err(text);
        }
        // What is wrong in itself the server refuses.
        if let Some(why) = command
            .refusal(argc, arg)
            .filter(|_| command.arity_ok(argc))
        {
            self.counters.refused += 1;
            return Err(refusal(command, why));
        }
        Ok(())
    }

    /// A client that asks for the debugger of scripts expects its scripts to be rolled back. Where
    /// it does not look at the refusal, its scripts must not run.
    fn refusal_to_debugger<'a>(
        &mut self,
        key: Key,
        id: CommandId,
        mode: impl Fn() -> &'a [u8],
    ) -> Option<Vec<u8>> {
        let is_script = matches!(id, id::EVAL | id::EVALSHA | id::EVAL_RO | id::EVALSHA_RO);
        if !is_script && id != id::SCRIPT_DEBUG {
            return None;
        }
        let session = self.sessions.get_mut(key)?;
        let rare = session.rare.as_ref();
        let debugs = rare.is_some_and(|rare| rare.debugs_scripts);
        if is_script {
            return debugs.then(|| NO_DEBUGGER.to_vec());
        }
        let begins = !mode().eq_ignore_ascii_case(b"no");
        if begins != debugs {
            session.rare().debugs_scripts = begins;
        }
        None
    }

    /// Whether the server of a session is older than Redis 7.
    pub(crate) fn is_before_7(&self, key: Key) -> bool {
        self.is_redis_before(key, (7, 0))
    }

    pub(crate) fn is_redis_before(&self, key: Key, release: (u32, u32)) -> bool {
        self.release_of(key)
            .is_some_and(|(server, its)| server == "redis" && its < release)
    }

    /// Valkey 9.1 says to who has not said who it is nothing of commands, not even which there are.
    pub(crate) fn is_silent_before_auth(&self, key: Key) -> bool {
        let unauthenticated = |session: &Session| session.flags.any(Flags::UNAUTHENTICATED);
        self.sessions.get(key).is_some_and(unauthenticated)
            && self
                .release_of(key)
                .is_some_and(|(server, its)| server == "valkey" && its >= (9, 1))
    }

    /// The server of a session, and the first two numbers of its version.
    pub(crate) fn release_of(&self, key: Key) -> Option<(&str, (u32, u32))> {
        self.release_at(self.sessions.get(key)?.server)
    }

    /// The same of a server.
    pub(crate) fn release_at(&self, server: ServerId) -> Option<(&str, (u32, u32))> {
        let identity = self.identity(server)?;
        let mut numbers = identity
            .version
            .split('.')
            .map(|number| number.parse().unwrap_or_default());
        let release = (
            numbers.next().unwrap_or_default(),
            numbers.next().unwrap_or_default(),
        );
        Some((&identity.server, release))
    }

    /// Whether a session must authenticate first. Once its server accepts the configured login, it
    /// need not.
    fn is_unauthenticated(&mut self, key: Key) -> bool {
        let Some(session) = self.sessions.get(key) else {
            return false;
        };
        if !session.flags.any(Flags::UNAUTHENTICATED) {
            return false;
        }
        let pool = session.pool;
        let first = self.first_link(self.pools.home_of(usize::from(pool)));
        let link = self
            .shared
            .get(&first)
            .and_then(|link| self.links.get(*link));
        let seen_not_to = self.settings.users.is_empty()
            && link.is_some_and(Link::is_up)
            && !self.is_login_withdrawn(usize::from(pool));
        if !seen_not_to {
            return true;
        }
        if let Some(session) = self.sessions.get_mut(key) {
            session.flags.remove(Flags::UNAUTHENTICATED);
        }
        false
    }

    /// A request that the fast path could not place: its link is not there, full, or lost to
    /// others, or its reply is not simply passed on.
    pub(crate) fn place_on_link(
        &mut self,
        key: Key,
        bytes: &[u8],
        reads: bool,
        duty: Option<Duty>,
    ) -> Placed {
        let simple = duty.is_none();
        match self.place_entry(key, bytes, reads, duty.unwrap_or(Duty::Pass), simple) {
            Ok(placed) => placed,
            Err(_) => Placed::Wait,
        }
    }

    /// The same; a duty that has to wait with its request is given back.
    pub(crate) fn place_with(
        &mut self,
        key: Key,
        bytes: &[u8],
        reads: bool,
        duty: Duty,
    ) -> Result<Placed, Duty> {
        self.place_entry(key, bytes, reads, duty, false)
    }

    fn place_entry(
        &mut self,
        key: Key,
        bytes: &[u8],
        reads: bool,
        duty: Duty,
        simple: bool,
    ) -> Result<Placed, Duty> {
        let link = match self.usable_link_for(key, bytes, reads) {
            Ok(link) => link,
            Err(Blocked::Wait) => return Err(duty),
            Err(blocked) => return Ok(self.blocked(key, blocked)),
        };
        if self.tracks_several(key) {
            self.put_caching(key, link);
        }
        let (Some(session), Some(state)) = (self.sessions.get_mut(key), self.links.get_mut(link))
        else {
            return Ok(Placed::Done);
        };
        let seq = session.take_seq();
        let silent = session.flags.any(Flags::SILENT | Flags::SILENT_ONCE);
        let entry = Entry {
            len: bytes.len() as u32,
            class: Class::of(reads),
            // Replies on the code lane tell that the code came back.
            duty: silent || !simple || state.key.lane == CODE_LANE,
            silent,
            ..Entry::of(key, seq, self.asked_ms)
        };
        if entry.duty {
            state.push_with(entry, bytes, duty);
        } else {
            state.push(entry, bytes);
        }
        self.counters.link_requests += 1;
        self.list_link(link);
        Ok(Placed::Done)
    }

    /// A request found no link.
    pub(crate) fn blocked(&mut self, key: Key, blocked: Blocked) -> Placed {
        match blocked {
            Blocked::Wait => Placed::Wait,
            Blocked::Refused(reply) => {
                self.counters.failed_not_sent += 1;
                // If it was to be queued.
                self.abort_transaction(key);
                self.answer_reply(key, &reply)
            }
        }
    }

    /// A request of our own, on a session's link, whose reply is nobody's.
    pub(crate) fn ask_for_ourselves(
        &mut self,
        key: Key,
        bytes: &[u8],
        duty: Duty,
    ) -> Result<Key, Blocked> {
        let link = self.usable_link(key)?;
        self.put_ours(link, bytes, duty);
        Ok(link)
    }

    /// The same on a link that all of a kind share.
    pub(crate) fn ask_on_shared(
        &mut self,
        kind: LinkKey,
        bytes: &[u8],
        duty: Duty,
    ) -> Result<Key, Blocked> {
        let Some(link) = self.shared_link(kind) else {
            return Err(Blocked::Refused(bound_reply("links-max")));
        };
        match self.links.get(link).map(|link| &link.state) {
            Some(State::Resting { .. }) => {
                return Err(Blocked::Refused(
                    self.no_link_reply(link, AwayError::NotSent),
                ));
            }
            Some(State::Down) => self.connect(link),
            _ => {}
        }
        if let Some(reply) = self.untried_reply(link, AwayError::NotSent) {
            return Err(Blocked::Refused(reply));
        }
        self.put_ours(link, bytes, duty);
        Ok(link)
    }

    /// A session's request on a link that may not be the one it rides on.
    pub(crate) fn put_on(&mut self, link: Key, key: Key, bytes: &[u8], duty: Duty) {
        let (Some(session), Some(state)) = (self.sessions.get_mut(key), self.links.get_mut(link))
        else {
            return;
        };
        let entry = Entry {
            len: bytes.len() as u32,
            duty: true,
            silent: session.flags.any(Flags::SILENT | Flags::SILENT_ONCE),
            ..Entry::of(key, session.take_seq(), self.asked_ms)
        };
        state.push_with(entry, bytes, duty);
        self.counters.link_requests += 1;
        self.list_link(link);
    }

    pub(crate) fn put_ours(&mut self, link: Key, bytes: &[u8], duty: Duty) {
        if let Some(state) = self.links.get_mut(link) {
            let entry = Entry {
                len: bytes.len() as u32,
                duty: true,
                ..Entry::of(Key::NOBODY, 0, self.now.stamp_ms())
            };
            state.push_with(entry, bytes, duty);
        }
        self.list_link(link);
    }

    /// A session that has no link of its own rides on the shared one of its kind, from now on.
    pub(crate) fn ride_shared(&mut self, key: Key) {
        if let Some(session) = self.sessions.get(key) {
            let kind = self.shared_kind_of(session);
            let shared = self.shared_link(kind).unwrap_or(Key::NOBODY);
            self.ride(key, shared);
        }
    }

    /// The link that a session's next request goes on, ready to take it.
    pub(crate) fn usable_link(&mut self, key: Key) -> Result<Key, Blocked> {
        let Some(session) = self.sessions.get(key) else {
            return Err(Blocked::Wait);
        };
        if self.tracks_several(key) {
            let link = self.ride_to_track(key)?;
            return self.ready_link(key, link);
        }
        let link = session.link;
        let kind = self.shared_kind_of(session);
        let usable = self
            .links
            .get(link)
            .is_some_and(|link| link.role == Role::Shared || link.role == Role::Pinned { by: key });
        if !usable {
            // Captured by a slow session, or never had: go on with another, after what is in
            // flight.
            if self.hold_until_caught_up(key) {
                return Err(Blocked::Wait);
            }
            let fresh = self.shared_link_for(key, kind)?;
            self.ride(key, fresh);
            return self.usable_link(key);
        }
        self.ready_link(key, link)
    }

    /// The same for these requests. They wait if the server would hold them.
    pub(crate) fn usable_link_for(
        &mut self,
        key: Key,
        requests: &[u8],
        reads: bool,
    ) -> Result<Key, Blocked> {
        let link = self.usable_link(key)?;
        match self.await_writes(key, link, requests, reads) {
            Some(blocked) => Err(blocked),
            None => Ok(link),
        }
    }

    /// This link, if it takes a request of this session now.
    pub(crate) fn ready_link(&mut self, key: Key, link: Key) -> Result<Key, Blocked> {
        let Some(state) = self.links.get_mut(link) else {
            return Err(Blocked::Wait);
        };
        state.unused_since = self.now;
        if state.takes
            && !state.accepting
            && !state.close_if_owes_enough(&self.settings.limits)
            && let Some(blocked) = self.await_successor(key, link)
        {
            return Err(blocked);
        }
        let Some(state) = self.links.get(link) else {
            return Err(Blocked::Wait);
        };
        match state.state {
            State::Down => {
                self.connect(link);
                Ok(link)
            }
            // Another node may have taken over: that will be known soon.
            State::Resting { .. } if self.awaits_owners(state) => {
                self.wait_at(key, link);
                Err(Blocked::Wait)
            }
            _ if state.is_late && self.awaits_owners(state) => {
                self.wait_at(key, link);
                Err(Blocked::Wait)
            }
            _ if state.is_late => Err(Blocked::Refused(
                self.no_link_reply(link, self.away_error(key)),
            )),
            State::Resting { .. } => Err(Blocked::Refused(
                self.no_link_reply(link, self.away_error(key)),
            )),
            _ if state.takes => {
                self.take_careful_turn(key, link)?;
                Ok(link)
            }
            _ if state.role == Role::Shared && state.owes_enough(&self.settings.limits) => {
                Err(self.wait_for_reply_room(key, link))
            }
            _ => {
                self.wait_at(key, link);
                Err(Blocked::Wait)
            }
        }
    }

    /// What a client is told whose request found no connection.
    pub(crate) fn no_link_reply(&self, link: Key, away: AwayError) -> Vec<u8> {
        let mut reply = Vec::new();
        if let Some(state) = self.links.get(link) {
            if wants_password(state) {
                encode::error(&mut reply, NOAUTH);
                return reply;
            }
            // It would say the same to the client.
            if let Some(words) = state.refusal.as_deref().filter(|words| is_busy(words)) {
                encode::error(&mut reply, words);
                return reply;
            }
            let cause = Cause::NoLink {
                server: self.label(link),
                reason: &state.reason,
            };
            let away = failure::away_error_at(state.refusal.as_deref(), away);
            failure::append_reply_as(&mut reply, Fate::NotSent, away, cause);
        }
        reply
    }

    fn place_inline(&mut self, key: Key, line: &[u8]) -> Result<Placed, Violation> {
        let words = request::split_inline(line)?;
        if words.is_empty() {
            return Ok(Placed::Done);
        }
        // The request that is placed has other bytes than the line.
        if let Some(session) = self.sessions.get_mut(key) {
            session.burst.count_as_many();
        }
        let mut bytes = Vec::new();
        encode::request(&mut bytes, &words);
        let mut scanner = Scanner::default();
        match scanner.scan(&bytes, true) {
            Ok(Found::Request { len }) if len == bytes.len() => {
                Ok(self.place(key, &bytes, scanner.spans()))
            }
            _ => unreachable!("what we encode is one whole request"),
        }
    }

    pub(crate) fn refuse_protocol(&mut self, key: Key, violation: Violation) {
        let mut reply = Vec::new();
        violation.append_reply(&mut reply);
        self.answer_reply(key, &reply);
        self.close_when_answered(key);
    }
}

/// Whether the server behind a link wants to know first who we are: then it is the client's to say.
pub(crate) fn wants_password(link: &Link) -> bool {
    link.refusal
        .as_deref()
        .is_some_and(|text| text.starts_with(b"NOAUTH"))
}

/// Whether that is how SELECT is called, where it was not renamed.
pub(crate) fn is_select(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"select")
}

/// Why a request has no link.
pub(crate) enum Blocked {
    /// The session holds until it can have one.
    Wait,
    /// It cannot have one: this is its reply.
    Refused(Vec<u8>),
}

pub(crate) fn bound_reply(name: &'static str) -> Vec<u8> {
    let mut reply = Vec::new();
    failure::append_reply(&mut reply, Fate::NotSent, Cause::Bound { name });
    reply
}

/// What a subscriber may ask for in RESP2.
pub(crate) fn allowed_in_subscription(id: CommandId) -> bool {
    matches!(
        id,
        id::SUBSCRIBE
            | id::UNSUBSCRIBE
            | id::PSUBSCRIBE
            | id::PUNSUBSCRIBE
            | id::SSUBSCRIBE
            | id::SUNSUBSCRIBE
            | id::PING
            | id::QUIT
            | id::RESET
    )
}

/// Whether a command may wait at the server.
pub(crate) fn may_wait(id: CommandId) -> bool {
    id.get().flags.has(commands::Flags::BLOCKING)
}
