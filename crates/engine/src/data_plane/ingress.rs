//! From a client's bytes to a place on a link: steps 2 and 3 of Journey 1 (`ARCHITECTURE.md`).

use respool_protocol::commands::{self, Answer, Command, CommandId, Retry, id};
use respool_protocol::encode;
use respool_protocol::request::{Found, RequestScanner, Span, Violation};
use respool_protocol::shape::Shape;

use crate::base::arrivals::ArrivalSlot;
use crate::base::error::{self, Cause, Fate};
use crate::base::error_text::{
    NOAUTH, RENAMED_SELECT, not_in_subscription, refusal, unknown_subcommand, wrong_arity,
};
use crate::base::handle::{LinkId, SessionId};
use crate::base::settings::ServerDownError;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::ledger::{Class, Entry};
use crate::data_plane::link::{Link, LinkKind, LinkRole, LinkState};
use crate::data_plane::session::{Flags, Session};
use crate::data_plane::session_state::Holds;
use crate::data_plane::takeover::is_busy;
use crate::routing::pool::ServerId;

/// A whole request with a command of the table.
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

    /// Whether it is a read by its command.
    pub(crate) fn reads(&self) -> bool {
        self.command.retry == Retry::Read
    }
}

/// A request that is answered later. The server may have the command under another name, so its
/// bytes on the link do not name the command.
#[derive(Clone, Debug)]
pub(crate) struct KeptRequest {
    pub(crate) id: CommandId,
    pub(crate) bytes: Vec<u8>,
}

impl Request<'_> {
    pub(crate) fn keep(&self) -> KeptRequest {
        KeptRequest {
            id: self.id,
            bytes: self.bytes.to_vec(),
        }
    }
}

impl KeptRequest {
    /// The request. `scanner` gets the places of its arguments.
    pub(crate) fn read<'a>(&'a self, scanner: &'a mut RequestScanner) -> Request<'a> {
        let Ok(Found::Request { .. }) = scanner.scan(&self.bytes, true) else {
            unreachable!("a kept request was scanned before");
        };
        Request {
            bytes: &self.bytes,
            spans: scanner.spans(),
            id: self.id,
            command: self.id.get(),
        }
    }
}

/// Calls `read` with the arguments of a request that respool has written. The bytes are that one
/// request, and no byte follows it.
pub(crate) fn scanned<T>(bytes: &[u8], read: impl FnOnce(&[Span]) -> T) -> T {
    let mut scanner = RequestScanner::default();
    match scanner.scan(bytes, true) {
        Ok(Found::Request { len }) if len == bytes.len() => read(scanner.spans()),
        _ => unreachable!("respool writes whole requests, one at a time"),
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dispatched {
    /// It is on a link, or it is answered.
    Done,
    /// It must wait. The session has a reason to wait, and scans the request again after that.
    Wait,
}

/// The shape of the last requests on the hot path.
#[derive(Default)]
pub(crate) struct ShapeCache {
    known: Option<CachedShape>,
    /// Bytes of the last request.
    len: usize,
}

#[derive(Clone, Copy)]
struct CachedShape {
    shape: Shape,
    id: CommandId,
    class: Class,
    /// The place of its only key, by which it is routed.
    key: Option<Span>,
}

impl ShapeCache {
    /// Notes a request that did not have the cached shape. If it is as long as the one before, more
    /// requests of its shape may come. If lengths change all the time, no shape is learned.
    #[inline]
    pub(crate) fn learn(&mut self, bytes: &[u8], spans: &[Span], id: CommandId, class: Class) {
        let len = std::mem::replace(&mut self.len, bytes.len());
        if len == bytes.len() {
            let key = match usize::from(id.get().only_key) {
                0 => None,
                at => spans.get(at).copied(),
            };
            self.known = Shape::of(bytes, spans).map(|shape| CachedShape {
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

/// The place in the bytes of one read, and the scanner of its requests.
pub(crate) struct Read<'a> {
    input: &'a [u8],
    /// The number of bytes that were taken.
    at: usize,
    pub(crate) scanner: Box<RequestScanner>,
    /// Whether the input ends within a request. Then the session keeps the scanner.
    pub(crate) is_inside: bool,
}

impl<'a> Read<'a> {
    /// The bytes of the whole request at which the read is.
    pub(crate) fn request(&self, len: usize) -> (&'a [u8], &[Span]) {
        (&self.input[self.at..self.at + len], self.scanner.spans())
    }

    /// The bytes that are not taken yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        &self.input[self.at..]
    }

    /// Ends the read within a request: the session keeps the scanner with its place, and waits for
    /// more bytes. Returns `false`: the read does not go on.
    pub(crate) fn wait_inside(&mut self) -> bool {
        self.is_inside = true;
        false
    }

    /// Goes on after `len` more bytes.
    pub(crate) fn advance(&mut self, len: usize) {
        self.at += len;
    }
}

/// The reason why the hot path stops.
pub(crate) enum IngressStop {
    /// The input is taken, or the session has to wait before its next request.
    End,
    /// A whole request of `len` bytes that is for none of the hot paths.
    Request { len: usize },
    /// More bytes of a large request that the session is sending.
    Large,
    /// No whole array of arguments.
    Other(Result<Found, Violation>),
}

/// The reply to EVAL after SCRIPT DEBUG.
const NO_DEBUGGER: &[u8] =
    b"ERR respool: the script was not run, because this connection sent SCRIPT DEBUG, which \
    respool refuses: debug at the server itself, or send SCRIPT DEBUG NO";

/// The hot path.
impl DataPlane {
    /// Begins to take requests of a session. `None`: there is no such session.
    #[inline(always)]
    pub(crate) fn begin_read<'a>(&mut self, id: SessionId, input: &'a [u8]) -> Option<Read<'a>> {
        let session = self.sessions.get_mut(id)?;
        let scanner = session
            .partial
            .take()
            .or_else(|| self.scanners.pop())
            .unwrap_or_default();
        self.held_bytes -= scanner.held_bytes();
        Some(Read {
            input,
            at: 0,
            scanner,
            is_inside: false,
        })
    }

    /// Takes simple requests from a read, until it comes to something else.
    pub(crate) fn ingest(&mut self, id: SessionId, read: &mut Read<'_>) -> IngressStop {
        let (input, mut at) = (read.input, read.at);
        let scanner = &mut *read.scanner;
        let stop = loop {
            if at >= input.len() {
                break IngressStop::End;
            }
            let Some(session) = self.sessions.get_mut(id) else {
                break IngressStop::End;
            };
            let state = session.state;
            if state.is_not_scanned() {
                if state.is_inside_large() && !state.is_held() && !state.is_closing() {
                    if state.is_streaming() && self.pauses(id, || true) {
                        // The command is not known any more. In a pause of writes the server must
                        // not get the rest of a write.
                        self.hold_for_pause(id);
                        break IngressStop::End;
                    }
                    break IngressStop::Large;
                }
                break IngressStop::End;
            }
            let off_path = state.off_path();
            if scanner.scanned() == 0 && (off_path == Flags::ROUTED || off_path == Flags::default())
            {
                let used = match off_path == Flags::ROUTED {
                    true => self.dispatch_same_shape_by_key(id, &input[at..]),
                    false => self.dispatch_same_shape(id, &input[at..]),
                };
                if used > 0 {
                    at += used;
                    continue;
                }
            }
            let trusted = !state.any(Flags::UNAUTHENTICATED);
            match scanner.scan(&input[at..], trusted) {
                Ok(Found::Request { len }) => {
                    if !self.dispatch_hot(id, &input[at..at + len], scanner.spans()) {
                        break IngressStop::Request { len };
                    }
                    at += len;
                }
                found => break IngressStop::Other(found),
            }
        };
        read.at = at;
        stop
    }

    /// Dispatches a whole request on one of the two hot paths. `false`: it is for neither.
    #[inline]
    pub(crate) fn dispatch_hot(&mut self, id: SessionId, bytes: &[u8], spans: &[Span]) -> bool {
        match self.dispatch_simple(id, bytes, spans) {
            Ok(()) => true,
            Err(Some(command)) => {
                let request = Request {
                    bytes,
                    spans,
                    id: command,
                    command: command.get(),
                };
                self.dispatch_by_key(id, &request)
            }
            Err(None) => false,
        }
    }

    /// Puts a whole request on its link, without checks. `Err`: it is not for the one-server hot
    /// path. The value is its command, if its first argument alone names one of the table.
    #[inline]
    fn dispatch_simple(
        &mut self,
        session_id: SessionId,
        bytes: &[u8],
        spans: &[Span],
    ) -> Result<(), Option<CommandId>> {
        self.counters.requests += 1;
        let Some(id) = commands::lookup(spans[0].of(bytes)) else {
            return Err(None);
        };
        let command = id.get();
        if let Some(class) = self.direct_classes[id.index()]
            && command.arity_ok(spans.len())
            && let Some(session) = self.sessions.get_mut(session_id)
            && session.state.is_on_one_server_path()
            && let Some(link) = self.links.get_mut(session.link)
            && link.accepting()
        {
            session.last_command = Some(id);
            let seq = session.take_seq();
            let entry = Entry {
                len: bytes.len() as u32,
                command: id.into(),
                class,
                ..Entry::of(session_id, seq, self.read_at)
            };
            link.ledger.push(entry, bytes);
            self.counters.link_requests += 1;
            if !link.listed {
                self.list_link_of(session_id);
            }
            self.shape_cache.learn(bytes, spans, id, class);
            return Ok(());
        }
        Err(Some(id))
    }

    /// Ends a read. Returns the number of bytes taken.
    #[inline(always)]
    pub(crate) fn end_read(&mut self, id: SessionId, read: Read<'_>) -> usize {
        let mut scanner = read.scanner;
        let partial = if read.is_inside {
            Some(scanner)
        } else {
            // A session that has to wait may leave the scanner in the middle of a request.
            scanner.reset();
            self.scanners.push(scanner);
            None
        };
        self.after_requests(id, partial);
        read.at
    }
}

/// Whether the server of a link asks for a password first. Then each client has to give its own.
pub(crate) fn wants_password(link: &Link) -> bool {
    link.handshake_error
        .as_deref()
        .is_some_and(|text| text.starts_with(b"NOAUTH"))
}

/// Whether a command is called SELECT, and was not renamed.
pub(crate) fn is_select(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"select")
}

/// The reason that a request has no link.
pub(crate) enum Blocked {
    /// None is free yet. The session waits.
    Wait,
    /// It cannot have one. This is its reply.
    Refused(Vec<u8>),
}

/// The reply to a command that has nothing else to say.
pub(crate) const OK: &[u8] = b"+OK\r\n";

pub(crate) fn bound_reply(name: &'static str) -> Vec<u8> {
    let mut reply = Vec::new();
    error::append_reply(&mut reply, Fate::NotSent, Cause::Bound { name });
    reply
}

/// The reply to a request at a limit without an option. `text` begins with `too`.
pub(crate) fn excess_reply(text: &'static str) -> Vec<u8> {
    let mut reply = Vec::new();
    error::append_reply(&mut reply, Fate::NotSent, Cause::Excess { text });
    reply
}

/// Whether a subscriber may send the command in RESP2.
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
    id.get().flags.has(commands::CommandFlags::BLOCKING)
}

/// Requests of one shape.
impl DataPlane {
    /// Appends requests of the cached shape in one piece. Returns the number of their bytes. The
    /// session is on the hot path.
    #[inline]
    fn dispatch_same_shape(&mut self, session_id: SessionId, input: &[u8]) -> usize {
        let Some(CachedShape {
            shape, id, class, ..
        }) = &self.shape_cache.known
        else {
            return 0;
        };
        if shape.fits(input)
            && let Some(session) = self.sessions.get_mut(session_id)
            && let Some(link) = self.links.get_mut(session.link)
            && link.accepting()
        {
            let len = shape.request_len();
            let mut used = len;
            let mut count = 1;
            while shape.fits(&input[used..]) {
                used += len;
                count += 1;
            }
            session.last_command = Some(*id);
            let seq = session.next_seq;
            session.next_seq = seq.wrapping_add(count);
            let first = Entry {
                len: len as u32,
                command: (*id).into(),
                class: *class,
                ..Entry::of(session_id, seq, self.read_at)
            };
            link.ledger.push_same_shape(first, count, &input[..used]);
            self.counters.requests += u64::from(count);
            self.counters.link_requests += u64::from(count);
            if !link.listed {
                self.list_link_of(session_id);
            }
            return used;
        }
        0
    }

    /// Appends requests of the cached shape in a pool of several servers, each to the link of its
    /// key's owner. The session switches between them, and only the links note it.
    #[inline(never)]
    fn dispatch_same_shape_by_key(&mut self, session_id: SessionId, input: &[u8]) -> usize {
        let Some(CachedShape {
            shape,
            id,
            class,
            key: Some(key),
        }) = &self.shape_cache.known
        else {
            return 0;
        };
        if !shape.fits(input) || !self.goes_by_key(session_id) {
            return 0;
        }
        let kind = self.sessions.get(session_id);
        let kind = kind.map(|session| self.kind_with_lane(session));
        let (Some(kind), Some(session)) = (kind, self.sessions.get_mut(session_id)) else {
            return 0;
        };
        let (len, limits) = (shape.request_len(), &self.settings.limits);
        // The command reads. Its session has its own rules for reads, which need the slow path.
        if session.state.any(Flags::OWN_READ_MODE) {
            return 0;
        }
        let pool = &self.pools[usize::from(session.pool)];
        let replica = id.get().replica;
        let readers = pool.readers.as_deref().filter(|_| replica);
        let (mut server, mut on) = (session.server, session.link);
        let (mut used, mut seq) = (0, session.next_seq);
        while used == 0 || shape.fits(&input[used..]) {
            let bytes = &input[used..used + len];
            let key = key.of(bytes);
            let (readers, owner) = match pool.owner_of(key, || seq) {
                Ok(owner) => (readers, owner),
                Err(any) => {
                    let (subpool, owner) = self.pools.owner_in_subpool(pool, key, any);
                    (subpool.readers.as_deref().filter(|_| replica), owner)
                }
            };
            let at = match readers {
                Some(readers) => readers.instead_of(owner, session_id),
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
            let Some((next, link)) = link.filter(|(_, link)| link.accepting()) else {
                break;
            };
            if next != on {
                // A session that leaves a link in this loop does not check the link's bound. So the
                // next session that switches to the link checks it.
                link.close_if_full(limits);
                if link.role != LinkRole::Shared || !link.accepting() {
                    break;
                }
                link.unused_since = self.now;
                (server, on) = (at, next);
            }
            let entry = Entry {
                len: len as u32,
                command: (*id).into(),
                class: *class,
                ..Entry::of(session_id, seq, self.read_at)
            };
            link.ledger.push(entry, bytes);
            if !link.listed {
                link.listed = true;
                link.begin_batch(self.now);
                self.turn.open_links.push(on);
            }
            seq = seq.wrapping_add(1);
            used += len;
        }
        let count = seq.wrapping_sub(session.next_seq);
        if count == 0 {
            return 0;
        }
        session.last_command = Some(*id);
        session.next_seq = seq;
        session.server = server;
        let old = std::mem::replace(&mut session.link, on);
        if old != on {
            self.detach(old);
            if let Some(link) = self.links.get_mut(on) {
                link.attached += 1;
            }
        }
        self.counters.requests += u64::from(count);
        self.counters.link_requests += u64::from(count);
        used
    }

    /// Whether a session needs no check other than that its pool has several servers.
    #[inline]
    pub(crate) fn goes_by_key(&self, id: SessionId) -> bool {
        let session = self.sessions.get(id);
        session.is_some_and(|session| {
            session.state.off_path() == Flags::ROUTED && session.pins.is_empty()
        })
    }

    #[cold]
    fn list_link_of(&mut self, id: SessionId) {
        if let Some(link) = self.sessions.get(id).map(|session| session.link) {
            self.list_link(link);
        }
    }
}

/// The end of a read.
impl DataPlane {
    /// Checks bounds after the requests of one read, not after each request. One read may pass
    /// them.
    fn after_requests(&mut self, id: SessionId, partial: Option<Box<RequestScanner>>) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        self.held_bytes += partial.as_ref().map_or(0, |scanner| scanner.held_bytes());
        session.partial = partial;
        // A large request has to be read to its end to be answered.
        let is_inside = session.state.is_inside_large();
        let link = session.link;
        if session.depth() >= self.settings.limits.session_pipeline_max && !is_inside {
            self.hold(id, Holds::DEPTH);
        }
        self.close_if_full(link);
    }

    /// Closes a link at its bound to new requests, until it has room again.
    pub(crate) fn close_if_full(&mut self, link: LinkId) {
        let limits = &self.settings.limits;
        if let Some(link) = self.links.get_mut(link) {
            link.close_if_full(limits);
        }
    }

    /// Notes that a session sends again after all its requests were answered. Its link does not
    /// expect it any more.
    #[inline]
    pub(crate) fn note_return(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let gap = self.now.since_us(session.answered_at);
        session.gap_us = u32::try_from(gap).unwrap_or(u32::MAX);
        let expected = std::mem::replace(&mut session.expected, ArrivalSlot::NOT);
        if session.state.any(Flags::ROUTED) {
            self.pools[usize::from(session.pool)].on_arrival(expected);
        } else if let Some(link) = self.links.get_mut(session.link) {
            link.forecast.on_arrival(expected);
        }
    }
}

/// Checks of a request.
impl DataPlane {
    /// Checks a request by its command and its number of arguments, as the table has them.
    pub(crate) fn check_shape<'a>(
        &self,
        id: SessionId,
        command: &'static Command,
        argc: usize,
        arg: impl Fn(usize) -> &'a [u8],
    ) -> Result<(), Vec<u8>> {
        if self.is_silent_before_auth(id) && !command.flags.has(commands::CommandFlags::NO_AUTH) {
            return Err(NOAUTH.to_vec());
        }
        if command.is_container() && argc > 1 && command.answer == Answer::Session {
            return Err(unknown_subcommand(arg(0), arg(1)));
        }
        // The server's own error fits its version. A newer server may accept arguments that the
        // table does not. See `verdict` for requests that the server does not get.
        let state = self
            .sessions
            .get(id)
            .map(|session| session.state)
            .unwrap_or_default();
        let servers_to_say =
            command.answer.is_by_server() && !state.any(Flags::UNAUTHENTICATED | Flags::RESTRICTED);
        if !command.arity_ok(argc) && !servers_to_say {
            return Err(wrong_arity(command));
        }
        Ok(())
    }

    /// Checks whether a request is refused now, or always. The order of the checks is that of
    /// Redis.
    pub(crate) fn check<'a>(
        &mut self,
        session_id: SessionId,
        command: &'static Command,
        id: CommandId,
        argc: usize,
        arg: impl Fn(usize) -> &'a [u8],
    ) -> Result<(), Vec<u8>> {
        let without_auth = match id {
            id::QUIT => true,
            id::RESET => !self.is_before_7(session_id),
            _ => command.flags.has(commands::CommandFlags::NO_AUTH),
        };
        if !without_auth && self.must_log_in_first(session_id) {
            return Err(NOAUTH.to_vec());
        }
        if !allowed_in_subscription(id) && self.is_restricted(session_id) {
            let before_7 = self.is_before_7(session_id);
            // Before Redis 7, a subcommand had no name of its own: the container is named.
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
            self.counters.commands_refused += 1;
            return Err(format!(
                "ERR respool: '{}' is refused by the configuration (refuse-commands)",
                command.name.replace('|', " ")
            )
            .into_bytes());
        }
        // Only SELECT under its own name sets the database of a link.
        if id == id::SELECT && !is_select(arg(0)) {
            self.counters.commands_refused += 1;
            return Err(RENAMED_SELECT.to_vec());
        }
        let mode = || if argc > 2 { arg(2) } else { b"" };
        if let Some(text) = self.note_debugger(session_id, id, mode) {
            return Err(text);
        }
        // A wrong number of arguments is for the server to refuse.
        if let Some(why) = command
            .refusal(argc, arg)
            .filter(|_| command.arity_ok(argc))
        {
            self.counters.commands_refused += 1;
            return Err(refusal(command, why));
        }
        Ok(())
    }

    /// Refuses scripts to a client that asked for the debugger. It expects its scripts to be rolled
    /// back. If it ignores the refusal of SCRIPT DEBUG, its scripts must not run.
    fn note_debugger<'a>(
        &mut self,
        session_id: SessionId,
        id: CommandId,
        mode: impl Fn() -> &'a [u8],
    ) -> Option<Vec<u8>> {
        let is_script = matches!(id, id::EVAL | id::EVALSHA | id::EVAL_RO | id::EVALSHA_RO);
        if !is_script && id != id::SCRIPT_DEBUG {
            return None;
        }
        let session = self.sessions.get_mut(session_id)?;
        let rare = session.rare.as_ref();
        let debugs = rare.is_some_and(|rare| rare.client.debugs_scripts);
        if is_script {
            return debugs.then(|| NO_DEBUGGER.to_vec());
        }
        let begins = !mode().eq_ignore_ascii_case(b"no");
        if begins != debugs {
            session.rare().client.debugs_scripts = begins;
        }
        None
    }

    /// Whether a session must authenticate first. Once its server accepts the configured login, it
    /// need not.
    pub(crate) fn must_log_in_first(&mut self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get(id) else {
            return false;
        };
        if !session.state.any(Flags::UNAUTHENTICATED) {
            return false;
        }
        let pool = session.pool;
        let first = self.default_kind(self.pools.default_server_of(usize::from(pool)));
        let link = self
            .link_index
            .shared(&first)
            .and_then(|link| self.links.get(link));
        let seen_not_to = self.settings.users.is_empty()
            && link.is_some_and(Link::is_up)
            && !self.is_login_withdrawn(usize::from(pool));
        if !seen_not_to {
            return true;
        }
        if let Some(session) = self.sessions.get_mut(id) {
            session.state.remove(Flags::UNAUTHENTICATED);
        }
        false
    }

    /// Whether the server tells unauthenticated clients nothing of commands, as Valkey 9.1 does,
    /// not even which exist.
    pub(crate) fn is_silent_before_auth(&self, id: SessionId) -> bool {
        let unauthenticated = |session: &Session| session.state.any(Flags::UNAUTHENTICATED);
        self.sessions.get(id).is_some_and(unauthenticated)
            && self
                .server_version_of(id)
                .is_some_and(|(server, version)| server == "valkey" && version >= (9, 1))
    }

    /// Whether the server of a session is older than Redis 7.
    pub(crate) fn is_before_7(&self, id: SessionId) -> bool {
        self.is_redis_before(id, (7, 0))
    }

    pub(crate) fn is_redis_before(&self, id: SessionId, release: (u32, u32)) -> bool {
        self.server_version_of(id)
            .is_some_and(|(server, version)| server == "redis" && version < release)
    }

    /// The kind of a session's server, and the first two numbers of its version.
    pub(crate) fn server_version_of(&self, id: SessionId) -> Option<(&str, (u32, u32))> {
        self.release_at(self.sessions.get(id)?.server)
    }

    /// The kind of a server, and the first two numbers of its version.
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
}

/// The link of a request.
impl DataPlane {
    /// Returns this link if it takes a request of this session now.
    pub(crate) fn ready_link(
        &mut self,
        session: SessionId,
        link_id: LinkId,
    ) -> Result<LinkId, Blocked> {
        let Some(link) = self.links.get_mut(link_id) else {
            return Err(Blocked::Wait);
        };
        link.unused_since = self.now;
        if link.takes()
            && !link.accepting()
            && !link.close_if_owes_enough(&self.settings.limits)
            && let Some(blocked) = self.await_successor(session, link_id)
        {
            return Err(blocked);
        }
        let Some(link) = self.links.get(link_id) else {
            return Err(Blocked::Wait);
        };
        match link.state {
            LinkState::Down => {
                self.connect(link_id);
                Ok(link_id)
            }
            // Another node may have taken over. That will be known soon.
            LinkState::Backoff { .. } if self.awaits_owners(link) => {
                self.wait_at(session, link_id);
                Err(Blocked::Wait)
            }
            _ if link.connects_slowly() && self.awaits_owners(link) => {
                self.wait_at(session, link_id);
                Err(Blocked::Wait)
            }
            _ if link.connects_slowly() => Err(Blocked::Refused(
                self.no_link_reply(link_id, self.server_down_error(session)),
            )),
            LinkState::Backoff { .. } => Err(Blocked::Refused(
                self.no_link_reply(link_id, self.server_down_error(session)),
            )),
            _ if link.takes() => {
                self.take_careful_room(session, link_id)?;
                Ok(link_id)
            }
            _ if link.role == LinkRole::Shared && link.owes_enough(&self.settings.limits) => {
                Err(self.wait_for_reply_room(session, link_id))
            }
            _ => {
                self.wait_at(session, link_id);
                Err(Blocked::Wait)
            }
        }
    }

    /// Moves a session that has no link of its own to the shared link of its kind.
    pub(crate) fn attach_shared(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get(id) {
            let kind = self.kind_with_lane(session);
            let shared = self.shared_link(kind).unwrap_or(LinkId::NONE);
            self.attach(id, shared);
        }
    }

    /// Puts a session's request on a link that may not be the session's own.
    pub(crate) fn put_on(
        &mut self,
        link: LinkId,
        session_id: SessionId,
        bytes: &[u8],
        completion: Completion,
    ) {
        let (Some(session), Some(state)) =
            (self.sessions.get_mut(session_id), self.links.get_mut(link))
        else {
            return;
        };
        let entry = Entry {
            len: bytes.len() as u32,
            command: session.last_command.into(),
            ..Entry::of(session_id, session.take_seq(), self.read_at)
                .with_completion(true)
                .silenced(session.state.is_silent())
        };
        state.ledger.push_with(entry, bytes, completion);
        self.counters.link_requests += 1;
        self.list_link(link);
    }

    pub(crate) fn put_ours(&mut self, link_id: LinkId, bytes: &[u8], completion: Completion) {
        if let Some(link) = self.links.get_mut(link_id) {
            let entry = Entry {
                len: bytes.len() as u32,
                ..Entry::of(SessionId::NONE, 0, self.now_stamp).with_completion(true)
            };
            link.ledger.push_with(entry, bytes, completion);
        }
        self.list_link(link_id);
    }

    /// Puts a request of respool's own on the shared link of a kind.
    pub(crate) fn ask_on_shared(
        &mut self,
        kind: LinkKind,
        bytes: &[u8],
        completion: Completion,
    ) -> Result<LinkId, Blocked> {
        let Some(link) = self.shared_link(kind) else {
            return Err(Blocked::Refused(bound_reply("links-max")));
        };
        match self.links.get(link).map(|link| &link.state) {
            Some(LinkState::Backoff { .. }) => {
                return Err(Blocked::Refused(
                    self.no_link_reply(link, ServerDownError::NotSent),
                ));
            }
            Some(LinkState::Down) => self.connect(link),
            _ => {}
        }
        if let Some(reply) = self.untried_reply(link, ServerDownError::NotSent) {
            return Err(Blocked::Refused(reply));
        }
        self.put_ours(link, bytes, completion);
        Ok(link)
    }

    /// The reply to a request that has no connection.
    pub(crate) fn no_link_reply(&self, link_id: LinkId, away: ServerDownError) -> Vec<u8> {
        let mut reply = Vec::new();
        if let Some(link) = self.links.get(link_id) {
            if wants_password(link) {
                encode::error(&mut reply, NOAUTH);
                return reply;
            }
            // The server would give the same error to the client.
            if let Some(words) = link
                .handshake_error
                .as_deref()
                .filter(|words| is_busy(words))
            {
                encode::error(&mut reply, words);
                return reply;
            }
            let cause = Cause::NoLink {
                server: self.label(link_id),
                reason: &link.reason,
            };
            let away = error::server_down_error_at(link.handshake_error.as_deref(), away);
            error::append_reply_as(&mut reply, Fate::NotSent, away, cause);
        }
        reply
    }

    /// Ends the dispatch of a request that has no link.
    pub(crate) fn blocked(&mut self, id: SessionId, blocked: Blocked) -> Dispatched {
        match blocked {
            Blocked::Wait => Dispatched::Wait,
            Blocked::Refused(reply) => {
                self.counters.failed_not_sent += 1;
                // The request may belong to a transaction.
                self.abort_transaction(id);
                self.answer_reply(id, &reply)
            }
        }
    }
}

/// Prefixes that are removed.
impl DataPlane {
    /// Whether respool removes a prefix from the keys of a session's pool.
    pub(crate) fn removes_prefix(&self, id: SessionId) -> bool {
        let session = self.sessions.get(id);
        session.is_some_and(|session| session.state.any(Flags::REWRITES_KEYS))
    }

    /// The prefix that is removed from the keys of a server.
    pub(crate) fn removed_prefix_of(&self, server: ServerId) -> &[u8] {
        &self.pools[usize::from(self.server(server).pool)].removed_prefix
    }

    /// The prefix that is removed from the keys of the session's present server.
    pub(crate) fn removed_prefix_of_session(&self, id: SessionId) -> &[u8] {
        let session = self.sessions.get(id);
        session.map_or(&[], |session| self.removed_prefix_of(session.server))
    }
}

/// Replies of a session.
impl DataPlane {
    /// Ends CLIENT REPLY SKIP, which is for one request: the next one.
    pub(crate) fn count_down_silence(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.state.end_request();
        }
    }

    #[cold]
    pub(crate) fn refuse_protocol(&mut self, id: SessionId, violation: Violation) {
        if violation == Violation::Tls {
            let reason = "it speaks TLS, and its listener has none: tls-listen opens one with TLS";
            self.report_close(id, reason.into());
        }
        let mut reply = Vec::new();
        violation.append_reply(&mut reply);
        if let Some(session) = self.sessions.get_mut(id) {
            session.last_command = None;
        }
        self.answer_reply(id, &reply);
        self.close_when_answered(id);
    }
}
