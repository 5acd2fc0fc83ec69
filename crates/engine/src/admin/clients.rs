//! The clients of the process, as CLIENT LIST, KILL, PAUSE and their like see them. These are
//! respool's sessions, not the server's connections, which are respool's links.
//!
//! Syntax, texts and the order of fields are those of Redis 8.2 (`clientListCommand`,
//! `clientKillCommand` and their neighbours). In front of a Valkey they are those of Valkey 9.1
//! (`parseClientFiltersOrReply`), which has more filters.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};

use respool_protocol::commands::id;
use respool_protocol::{encode, number};

use crate::admin::Admin;
use crate::admin::workers::OwnQuestion;
use crate::base::error_text::{c_string, malformed_subcommand};
use crate::base::handle::{LinkId, SessionId};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::actions::Event;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::admin::AdminCompletion;
use crate::data_plane::ingress::{Dispatched, OK, Request};
use crate::data_plane::link::Link;
use crate::data_plane::pause::Pause;
use crate::data_plane::session::{Flags, LocalAddress, Peer, Pins, Session};
use crate::data_plane::session_state::Holds;
use crate::data_plane::worker_query::{
    AdminQuery, ClientLines, ClientTraits, ClientType, Dialect, Filter, ReplyForm, Unblock,
    WorkerQuery, WorkerReply,
};

/// The error if no session passes.
type NoMatch = Option<Vec<u8>>;

impl ClientType {
    fn by_name(name: &[u8], dialect: Dialect) -> Option<ClientType> {
        let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
        Some(match () {
            () if is("normal") => ClientType::Normal,
            () if is("pubsub") => ClientType::PubSub,
            () if is("slave") || is("replica") => ClientType::Replica,
            () if is("master") => ClientType::Primary,
            () if is("primary") && dialect == Dialect::Valkey => ClientType::Primary,
            () => return None,
        })
    }
}

impl Admin {
    /// Answers a command about clients, or asks all workers.
    pub(crate) fn answer_clients(
        &mut self,
        plane: &mut DataPlane,
        session_id: SessionId,
        request: &Request<'_>,
    ) -> Result<OwnQuestion, Dispatched> {
        match request.id {
            id::CLIENT_INFO => {
                let mut line = String::new();
                write_client_line(plane, &mut line, session_id);
                Err(plane.answer_with(session_id, |out, session| {
                    encode::verbatim(out, session.version, &line)
                }))
            }
            id::CLIENT_LIST => match list_filter(plane, session_id, request) {
                Ok((filter, form, not_found)) => self.ask(
                    plane,
                    session_id,
                    WorkerQuery::Admin(AdminQuery::List(Box::new(filter))),
                    form,
                    not_found,
                ),
                Err(text) => Err(plane.answer_error(session_id, &text)),
            },
            id::CLIENT_KILL => match kill_filter(plane, session_id, request) {
                Ok((filter, form, not_found)) => self.ask(
                    plane,
                    session_id,
                    WorkerQuery::Admin(AdminQuery::Kill(Box::new(filter))),
                    form,
                    not_found,
                ),
                Err(text) => Err(plane.answer_error(session_id, &text)),
            },
            id::CLIENT_PAUSE => match pause_asked(plane, session_id, request) {
                Ok(question) => self.ask(plane, session_id, question, ReplyForm::Ok, None),
                Err(text) => Err(plane.answer_error(session_id, &text)),
            },
            id::CLIENT_UNPAUSE => {
                let pool = plane.pool_of_session(session_id);
                self.ask(
                    plane,
                    session_id,
                    WorkerQuery::Admin(AdminQuery::Unpause { pool }),
                    ReplyForm::Ok,
                    None,
                )
            }
            id::CLIENT_UNBLOCK => match unblock_asked(plane, session_id, request) {
                Ok(question) => self.ask(plane, session_id, question, ReplyForm::Sum, None),
                Err(text) => Err(plane.answer_error(session_id, &text)),
            },
            _ => Err(client_no_evict(plane, session_id, request)),
        }
    }

    /// Closes the sessions that pass. A session that kills itself gets its reply first.
    pub(super) fn kill_clients(&mut self, plane: &mut DataPlane, filter: &Filter) -> u64 {
        let passes = |(session_id, session): (SessionId, &Session)| {
            passes(plane, session, filter).then_some((session_id, session.id))
        };
        let killed: Vec<(SessionId, u64)> = plane.sessions.iter().filter_map(passes).collect();
        for &(session_id, id) in &killed {
            let asker = filter.asker;
            if id == asker {
                plane.close_when_answered(session_id);
                continue;
            }
            let peer = plane.sessions.get(session_id).map(|session| session.peer);
            plane.emit(Event::SessionClosed {
                peer: peer.map_or(String::new(), |peer| peer.to_string()),
                reason: format!("client {asker} asked for it: CLIENT KILL"),
            });
            plane.close(session_id);
        }
        killed.len() as u64
    }

    /// Ends the wait of a session of this worker in a blocking command. Returns whether it waited.
    /// `None`: the server's reply becomes the answer to the query `asked_by`, a worker and its
    /// ticket. `ends_poll`: ends the wait of a session that is polled for, if it waits.
    pub(crate) fn unblock_client(
        &mut self,
        plane: &mut DataPlane,
        client: (u64, u16),
        how: Unblock,
        asked_by: (usize, u64),
        ends_poll: impl FnOnce(&mut DataPlane, SessionId) -> bool,
    ) -> Option<WorkerReply> {
        let Some(session) = session_of(plane, client) else {
            return Some(WorkerReply::Count(0));
        };
        if plane.polling.holds(session) && ends_poll(plane, session) {
            return Some(WorkerReply::Count(1));
        }
        let is_asked = self.unblock(plane, session, how, asked_by);
        (!is_asked).then_some(WorkerReply::Count(0))
    }

    /// Has the server end the wait of this session in a blocking command. Returns false if it waits
    /// in none.
    fn unblock(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        how: Unblock,
        asked_by: (usize, u64),
    ) -> bool {
        let blocked = plane.sessions.get(id).map(|session| session.link);
        // CLIENT UNBLOCK names the link at the server, so the link must not serve another session
        // by then.
        if let Some(link) = blocked.and_then(|link| plane.links.get_mut(link)) {
            link.tainted |= link.waits;
        }
        let waits = |link: &Link| link.waits && link.is_up() && !link.ledger.is_empty();
        let waits = |link: &LinkId| plane.links.get(*link).is_some_and(waits);
        let Some(blocked) = blocked.filter(waits) else {
            return false;
        };
        let how = match how {
            Unblock::Timeout => "TIMEOUT",
            Unblock::Error => "ERROR",
        };
        let (to, ticket) = asked_by;
        let completion = Completion::Admin(AdminCompletion::Unblock { to, ticket });
        plane.ask_to_unblock(blocked, how, completion)
    }

    pub(crate) fn begin_pause(&mut self, plane: &mut DataPlane, pool: u16, until: Time, all: bool) {
        match plane.pauses.iter_mut().find(|pause| pause.pool == pool) {
            // If two pauses overlap, the later end and the stricter mode count.
            Some(pause) => {
                pause.until = pause.until.max(until);
                pause.all |= all;
            }
            None if until <= plane.now => {}
            None => {
                plane.pauses.push(Pause { pool, until, all });
                plane.admit_links();
            }
        }
    }

    pub(crate) fn end_pause(&mut self, plane: &mut DataPlane, pool: u16) {
        let Some(index) = plane.pauses.iter().position(|pause| pause.pool == pool) else {
            return;
        };
        plane.pauses.swap_remove(index);
        plane.admit_links();
        // The session that is released last continues first. Sessions paused in other pools stay
        // paused.
        let mut released = Vec::new();
        let mut paused = std::mem::take(&mut plane.paused);
        paused.retain(|id| {
            let session = plane.sessions.get(*id);
            let ends = session.is_none_or(|session| plane.known_pool(session.pool) == pool);
            if ends {
                released.push(*id);
            }
            !ends
        });
        plane.paused = paused;
        for id in released.into_iter().rev() {
            plane.release(id, Holds::PAUSE);
        }
    }

    /// Ends the pauses that are over.
    pub(crate) fn end_pauses(&mut self, plane: &mut DataPlane) {
        let now = plane.now;
        while let Some(over) = plane.pauses.iter().find(|pause| now >= pause.until) {
            self.end_pause(plane, over.pool);
        }
    }
}

/// The filter of a CLIENT LIST, the form of its reply, and the error if no session passes.
fn list_filter(
    plane: &DataPlane,
    session_id: SessionId,
    request: &Request<'_>,
) -> Result<(Filter, ReplyForm, NoMatch), Vec<u8>> {
    let mut filter = filter(plane, session_id, false);
    let argc = request.spans.len();
    let (mut named, mut not_found) = (None, None);
    if filter.dialect == Dialect::Valkey {
        not_found = parse_filters(plane, session_id, request, &mut filter)?;
    } else if argc == 4 && request.arg(2).eq_ignore_ascii_case(b"type") {
        filter.is.kind = Some(kind(request.arg(3), filter.dialect)?);
    } else if argc > 3 && request.arg(2).eq_ignore_ascii_case(b"id") {
        let mut ids = Vec::new();
        for arg in request.args().skip(3) {
            let id = number::parse(arg).ok_or(b"ERR Invalid client ID".as_slice())?;
            // Unknown ids are no error. Ids below 1 are never given.
            ids.push(u64::try_from(id).unwrap_or(0));
        }
        named = Some(ids.clone());
        filter.is.ids = Some(ids);
    } else if argc != 2 {
        return Err(SYNTAX.to_vec());
    }
    Ok((filter, ReplyForm::Lines(named), not_found))
}

/// The filter of a CLIENT KILL, the form of its reply, and the error if no session passes.
fn kill_filter(
    plane: &DataPlane,
    id: SessionId,
    request: &Request<'_>,
) -> Result<(Filter, ReplyForm, NoMatch), Vec<u8>> {
    let mut filter = filter(plane, id, true);
    if request.spans.len() == 3 {
        // The old form takes one address, which may be the client's own.
        filter.skip_asker = false;
        filter.is.addr = Some(request.arg(2).to_vec());
        return Ok((filter, ReplyForm::AnyKilled, None));
    }
    let not_found = parse_filters(plane, id, request, &mut filter)?;
    Ok((filter, ReplyForm::Sum, not_found))
}

fn filter(plane: &DataPlane, session_id: SessionId, skip_asker: bool) -> Filter {
    Filter {
        asker: plane
            .sessions
            .get(session_id)
            .map_or(0, |session| session.id),
        pool: plane.pool_of_session(session_id),
        skip_asker,
        dialect: dialect_of(plane, session_id),
        age: None,
        idle: None,
        is: ClientTraits::default(),
        is_not: ClientTraits::default(),
    }
}

/// Reads filters as pairs of a name and a value. Valkey's ID takes several numbers. Returns the
/// error if no session passes.
fn parse_filters(
    plane: &DataPlane,
    session_id: SessionId,
    request: &Request<'_>,
    filter: &mut Filter,
) -> Result<NoMatch, Vec<u8>> {
    let mut not_found = None;
    let argc = request.spans.len();
    let valkey = filter.dialect == Dialect::Valkey;
    let mut at = 2;
    while at < argc {
        if at + 1 == argc {
            return Err(SYNTAX.to_vec());
        }
        let word = request.arg(at).to_ascii_lowercase();
        let value = request.arg(at + 1);
        at += 2;
        match word.as_slice() {
            b"skipme" => {
                filter.skip_asker = if value.eq_ignore_ascii_case(b"yes") {
                    true
                } else if value.eq_ignore_ascii_case(b"no") {
                    false
                } else {
                    return Err(SYNTAX.to_vec());
                };
                continue;
            }
            b"maxage" if !plane.is_redis_before(session_id, (7, 4)) => {
                filter.age = Some(seconds("maxage", value)?);
                continue;
            }
            b"idle" if valkey => {
                filter.idle = Some(seconds("idle", value)?);
                continue;
            }
            _ => {}
        }
        let (traits, word) = match word.strip_prefix(b"not-") {
            Some(rest) if valkey => (&mut filter.is_not, rest),
            _ => (&mut filter.is, word.as_slice()),
        };
        let negated = word.len() < request.arg(at - 2).len();
        match word {
            b"id" if valkey => {
                let ids = traits.ids.get_or_insert_default();
                at -= 1;
                while at < argc
                    && let Some(id) = number::parse(request.arg(at))
                {
                    ids.push(client_id(Some(id))?);
                    at += 1;
                }
            }
            b"id" if plane.is_before_7(session_id) => {
                // Ids below 1 are never given.
                let id = number::parse(value).ok_or(NO_INTEGER)?;
                traits.ids = Some(vec![u64::try_from(id).unwrap_or(0)]);
            }
            b"id" => traits.ids = Some(vec![client_id(number::parse(value))?]),
            b"type" => traits.kind = Some(kind(value, filter.dialect)?),
            b"addr" => traits.addr = Some(value.to_vec()),
            b"laddr" => traits.laddr = Some(value.to_vec()),
            b"user" => {
                if !is_user(plane, value) {
                    let text = [b"ERR No such user '", c_string(value), b"'"].concat();
                    if negated || !plane.settings.users.is_empty() {
                        return Err(text);
                    }
                    // A session of another worker may have a user of that name.
                    not_found = Some(text);
                }
                traits.user = Some(value.to_vec());
            }
            b"flags" if valkey => {
                known_letters("flags", negated, value, KNOWN_FLAGS)?;
                traits.flags = Some(value.to_vec());
            }
            b"capa" if valkey => {
                known_letters("capa", negated, value, b"r")?;
                traits.capa = Some(value.to_vec());
            }
            b"name" if valkey => traits.name = Some(value.to_vec()),
            b"lib-name" if valkey => traits.lib_name = Some(value.to_vec()),
            b"lib-ver" if valkey => traits.lib_ver = Some(value.to_vec()),
            b"ip" if valkey => traits.ip = Some(value.to_vec()),
            b"db" if valkey => {
                let word = if negated { "NOT-DB" } else { "DB" };
                let index = number::parse(value).and_then(|index| i32::try_from(index).ok());
                let index =
                    index.ok_or_else(|| format!("ERR {word} is not an integer or out of range"))?;
                // respool does not know how many databases the server has. No session has
                // selected an index beyond them.
                let index = u32::try_from(index).map_err(|_| {
                    format!("ERR {word} number should be between 0 and {}", i32::MAX)
                })?;
                traits.db = Some(index);
            }
            _ => return Err(SYNTAX.to_vec()),
        }
    }
    Ok(not_found)
}

fn pause_asked(
    plane: &DataPlane,
    id: SessionId,
    request: &Request<'_>,
) -> Result<WorkerQuery, Vec<u8>> {
    let argc = request.spans.len();
    let all = match argc {
        4 if request.arg(3).eq_ignore_ascii_case(b"write") => false,
        4 if !request.arg(3).eq_ignore_ascii_case(b"all") => {
            return Err(b"ERR CLIENT PAUSE mode must be WRITE or ALL".to_vec());
        }
        5.. if dialect_of(plane, id) == Dialect::Redis => {
            return Err(malformed_subcommand(request.arg(0), request.arg(1)));
        }
        _ => true,
    };
    let ms = number::parse(request.arg(2))
        .ok_or(b"ERR timeout is not an integer or out of range".as_slice())?;
    let ms = u64::try_from(ms).map_err(|_| b"ERR timeout is negative".as_slice())?;
    // The server's clock counts from 1970, so an end that is out of its range is out of range
    // here.
    let now_ms = plane.worker.started_at * 1_000 + plane.now.0 / 1_000;
    if ms > i64::MAX as u64 - now_ms {
        return Err(b"ERR timeout is out of range".to_vec());
    }
    let until = Time(plane.now.0.saturating_add(ms.saturating_mul(1_000)));
    let pool = plane.pool_of_session(id);
    Ok(WorkerQuery::Admin(AdminQuery::Pause { pool, until, all }))
}

fn unblock_asked(
    plane: &DataPlane,
    session_id: SessionId,
    request: &Request<'_>,
) -> Result<WorkerQuery, Vec<u8>> {
    let argc = request.spans.len();
    let how = match argc {
        4 if request.arg(3).eq_ignore_ascii_case(b"error") => Unblock::Error,
        4 if !request.arg(3).eq_ignore_ascii_case(b"timeout") => {
            return Err(b"ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR".to_vec());
        }
        5.. if dialect_of(plane, session_id) == Dialect::Redis => {
            return Err(malformed_subcommand(request.arg(0), request.arg(1)));
        }
        _ => Unblock::Timeout,
    };
    let id = number::parse(request.arg(2))
        .ok_or(b"ERR value is not an integer or out of range".as_slice())?;
    // Ids below 1 are never given.
    let id = u64::try_from(id).unwrap_or(0);
    let pool = plane.pool_of_session(session_id);
    Ok(WorkerQuery::Unblock { id, pool, how })
}

fn client_no_evict(plane: &mut DataPlane, id: SessionId, request: &Request<'_>) -> Dispatched {
    let on = request.arg(2).eq_ignore_ascii_case(b"on");
    if !on && !request.arg(2).eq_ignore_ascii_case(b"off") {
        return plane.answer_error(id, SYNTAX);
    }
    if let Some(session) = plane.sessions.get_mut(id)
        && (on || session.rare.is_some())
    {
        session.rare().client.no_evict = on;
    }
    plane.answer_reply(id, OK)
}

/// The session of a client id in a pool.
fn session_of(plane: &DataPlane, (id, pool): (u64, u16)) -> Option<SessionId> {
    let mut sessions = plane.sessions.iter();
    let found =
        sessions.find(|(_, session)| session.id == id && plane.known_pool(session.pool) == pool);
    found.map(|(session, _)| session)
}

/// The lines of the sessions that pass.
pub(super) fn list_clients(plane: &DataPlane, filter: &Filter) -> ClientLines {
    let mut lines = ClientLines::default();
    for (session_id, session) in plane.sessions.iter() {
        if passes(plane, session, filter) {
            lines.push(session.id, |text| {
                write_client_line(plane, text, session_id);
            });
        }
    }
    lines.shrink();
    lines
}

fn passes(plane: &DataPlane, session: &Session, filter: &Filter) -> bool {
    let old = |since: Time, seconds: Option<u64>| {
        seconds.is_none_or(|seconds| plane.now.since_ms(since) / 1_000 >= seconds)
    };
    plane.known_pool(session.pool) == filter.pool
        && !(filter.skip_asker && session.id == filter.asker)
        && old(session.accepted_at, filter.age)
        && old(session.active_at, filter.idle)
        && has(plane, session, &filter.is).all(|has| has)
        && !has(plane, session, &filter.is_not).any(|has| has)
}

/// For each trait of the filter, whether the session has it.
fn has<'a>(
    plane: &'a DataPlane,
    session: &'a Session,
    traits: &'a ClientTraits,
) -> impl Iterator<Item = bool> + 'a {
    let rare = session.rare.as_deref();
    // An empty name counts as no name.
    let text = |ours: Option<&[u8]>, wanted: &Option<Vec<u8>>| {
        let given = |wanted: &Vec<u8>| ours.is_some_and(|ours| !ours.is_empty() && ours == wanted);
        wanted.as_ref().map(given)
    };
    let plain = |ours: &dyn Fn() -> String, wanted: &Option<Vec<u8>>| -> Option<bool> {
        wanted.as_ref().map(|wanted| ours().as_bytes() == wanted)
    };
    let flags = |wanted: &Vec<u8>| {
        let ours = client_flags(plane, session);
        wanted.iter().all(|&flag| ours.contains(char::from(flag)))
    };
    [
        traits.ids.as_ref().map(|ids| ids.contains(&session.id)),
        traits.kind.map(|kind| kind == client_kind(session)),
        plain(&|| addr(session), &traits.addr),
        plain(&|| laddr(session), &traits.laddr),
        traits.ip.as_ref().map(|ip| is_from(session, ip)),
        plain(&|| plane.user_name(session.user).to_owned(), &traits.user),
        traits.flags.as_ref().map(flags),
        text(rare.map(|rare| &*rare.client.name), &traits.name),
        text(rare.map(|rare| &*rare.client.lib_name), &traits.lib_name),
        text(rare.map(|rare| &*rare.client.lib_ver), &traits.lib_ver),
        traits.db.map(|db| db == session.db),
        // respool does not keep CLIENT CAPA: no session has a capability.
        traits.capa.as_ref().map(Vec::is_empty),
    ]
    .into_iter()
    .flatten()
}

fn dialect_of(plane: &DataPlane, id: SessionId) -> Dialect {
    match plane.identity_of(id) {
        Some(identity) if identity.server == "valkey" => Dialect::Valkey,
        _ => Dialect::Redis,
    }
}

/// Whether a session may have a user of that name, as far as this worker knows.
fn is_user(plane: &DataPlane, name: &[u8]) -> bool {
    // Redis always has its default user, whether or not a client may be it.
    name == b"default"
        || plane
            .settings
            .users
            .iter()
            .any(|user| user.name.as_bytes() == name)
        || plane
            .sessions
            .iter()
            .any(|(_, session)| plane.user_name(session.user).as_bytes() == name)
}

/// Appends a session's line as CLIENT LIST and INFO show it. The memory in the line excludes the
/// buffers that the session borrows for a turn.
fn write_client_line(plane: &DataPlane, line: &mut String, session_id: SessionId) {
    let Some(session) = plane.sessions.get(session_id) else {
        return;
    };
    let seconds = |since| plane.now.since_ms(since) / 1_000;
    let rare = session.rare.as_deref();
    let transaction = rare.and_then(|rare| rare.transaction.open.as_ref());
    let within = rare.and_then(|rare| rare.composite.within);
    let queued = within.map(|within| within.count);
    let queued = queued.or(transaction.map(|transaction| transaction.count));
    // Valkey 8.1 and newer allocate memory for queued commands at the first MULTI or WATCH, and
    // keep it.
    let keeps_room = || {
        let release = plane.server_version_of(session_id);
        release.is_some_and(|(server, its)| server == "valkey" && its >= (8, 1))
    };
    let none_queued = match session.has_queued && keeps_room() {
        true => 0,
        false => -1,
    };
    let held = session.held_bytes();
    let unsent = session.out.len();
    let [sub, psub, ssub] = session.subscriptions();
    // Writing to a String cannot fail.
    let _ = write!(
        line,
        "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={}",
        session.id,
        addr(session),
        laddr(session),
        session.fd,
        text(rare.map(|rare| &*rare.client.name)),
        seconds(session.accepted_at),
        seconds(session.active_at),
        client_flags(plane, session),
    );
    let release = plane.server_version_of(session_id);
    let mut put = |field: &str, value: &dyn Display| {
        if shows_field(release, field) {
            let _ = write!(line, " {field}={value}");
        }
    };
    put("capa", &"");
    put("db", &within.map_or(session.db, |within| within.db));
    put("sub", &sub);
    put("psub", &psub);
    put("ssub", &ssub);
    put("multi", &queued.map_or(none_queued, i64::from));
    // Only the server knows the number of watched keys.
    put("watch", &u8::from(session.pins.any(Pins::WATCH)));
    put("qbuf", &session.held.len());
    put("qbuf-free", &0);
    put("argv-mem", &0);
    put("multi-mem", &0);
    put("rbs", &0);
    put("rbp", &0);
    put("obl", &unsent);
    put("oll", &0);
    put("omem", &0);
    put("tot-mem", &(size_of::<Session>() + held));
    // A session without a hold is about to be read again, so it counts as read.
    let is_unread = session.is_unread && session.state.is_held();
    put("events", &if is_unread { "" } else { "r" });
    put(
        "cmd",
        &session.last_command.map_or("NULL", |id| id.get().name),
    );
    let user = within.map_or(session.user, |within| within.user);
    put("user", &plane.user_name(user));
    let redirect = match rare.and_then(|rare| rare.target.redirect.as_ref()) {
        Some(redirect) => redirect.to as i64,
        None if session.pins.any(Pins::TRACKING) => 0,
        None => -1,
    };
    put("redir", &redirect);
    put("resp", &session.version.number());
    put("lib-name", &text(rare.map(|rare| &*rare.client.lib_name)));
    put("lib-ver", &text(rare.map(|rare| &*rare.client.lib_ver)));
    put("io-thread", &0);
    put("tot-net-in", &session.bytes_in);
    put("tot-net-out", &session.bytes_out);
    // Places in the order of replies count requests. Those in front of the head are answered.
    put("tot-cmds", &session.head_seq);
    line.push('\n');
}

/// The flags of a session, in Redis's order.
fn client_flags(plane: &DataPlane, session: &Session) -> String {
    let waits = plane.links.get(session.link).is_some_and(|link| link.waits);
    let rare = session.rare.as_deref();
    let no_evict = rare.is_some_and(|rare| rare.client.no_evict);
    let within = rare.and_then(|rare| rare.composite.within);
    let letters = [
        ('O', session.pins.any(Pins::MONITOR)),
        ('P', session.listens()),
        ('x', session.state.any(Flags::IN_MULTI) || within.is_some()),
        (
            'b',
            waits || session.state.holds().any(Holds::PAUSE | Holds::ROOM),
        ),
        ('t', session.pins.any(Pins::TRACKING)),
        ('B', session.pins.any(Pins::BROADCAST)),
        ('c', session.state.is_closing()),
        ('U', session.peer == Peer::Unix),
        ('e', no_evict),
        ('T', session.pins.any(Pins::NO_TOUCH)),
        ('I', session.pins.any(Pins::IMPORT)),
    ];
    let flags: String = letters
        .into_iter()
        .filter_map(|(letter, is)| is.then_some(letter))
        .collect();
    if flags.is_empty() {
        "N".to_owned()
    } else {
        flags
    }
}

/// A field of CLIENT LIST, and the first release of Redis and of Valkey that shows it. `None`: no
/// release of that server shows it.
type FieldSince = (&'static str, Option<(u32, u32)>, Option<(u32, u32)>);

/// Fields that are newer than Redis 6.2, or that one of the two servers does not have. Clients take
/// such a field as a sign that the server has the feature. Checked with Redis 6.2, 7.0 and 8.2 and
/// Valkey 9.1; releases between these as their documentation says. Redis has `ssub` since 7.0.3.
const FIELDS_SINCE: [FieldSince; 13] = [
    ("capa", None, Some((8, 1))),
    ("ssub", Some((7, 0)), Some((7, 2))),
    ("watch", Some((7, 4)), Some((8, 0))),
    ("multi-mem", Some((7, 0)), Some((7, 2))),
    ("rbs", Some((7, 0)), Some((7, 2))),
    ("rbp", Some((7, 0)), Some((7, 2))),
    ("resp", Some((7, 0)), Some((7, 2))),
    ("lib-name", Some((7, 2)), Some((7, 2))),
    ("lib-ver", Some((7, 2)), Some((7, 2))),
    ("io-thread", Some((8, 0)), None),
    ("tot-net-in", Some((8, 2)), Some((8, 0))),
    ("tot-net-out", Some((8, 2)), Some((8, 0))),
    ("tot-cmds", Some((8, 2)), Some((8, 0))),
];

/// Whether a server shows a field in CLIENT LIST. A server of unknown release is a new Redis.
fn shows_field(release: Option<(&str, (u32, u32))>, field: &str) -> bool {
    let Some((_, redis, valkey)) = FIELDS_SINCE.iter().find(|(name, ..)| *name == field) else {
        return true;
    };
    match release {
        None => redis.is_some(),
        Some(("valkey", its)) => valkey.is_some_and(|first| its >= first),
        Some((_, its)) => redis.is_some_and(|first| its >= first),
    }
}

/// All flags of CLIENT LIST in Valkey 9.1.
const KNOWN_FLAGS: &[u8] = b"OSMPxbtRBdcuAUreTIN";

fn client_kind(session: &Session) -> ClientType {
    if session.listens() {
        ClientType::PubSub
    } else {
        ClientType::Normal
    }
}

fn text(field: Option<&[u8]>) -> Cow<'_, str> {
    String::from_utf8_lossy(field.unwrap_or_default())
}

fn addr(session: &Session) -> String {
    match (session.peer, &session.local) {
        (Peer::Tcp(address), _) => address.to_string(),
        // A Unix socket's other end has no name, so Redis shows the path of its own end.
        (Peer::Unix, LocalAddress::Unix(path)) => format!("{path}:0"),
        (Peer::Unix | Peer::Caller, _) => session.peer.to_string(),
    }
}

fn laddr(session: &Session) -> String {
    match &session.local {
        LocalAddress::Unknown => String::new(),
        LocalAddress::Tcp(address) | LocalAddress::Tls(address) => address.to_string(),
        LocalAddress::Unix(path) => format!("{path}:0"),
    }
}

fn is_from(session: &Session, ip: &[u8]) -> bool {
    match session.peer {
        Peer::Tcp(address) => address.ip().to_string().as_bytes() == ip,
        Peer::Unix | Peer::Caller => false,
    }
}

fn kind(name: &[u8], dialect: Dialect) -> Result<ClientType, Vec<u8>> {
    ClientType::by_name(name, dialect)
        .ok_or_else(|| [b"ERR Unknown client type '", c_string(name), b"'"].concat())
}

const NO_INTEGER: &[u8] = b"ERR value is not an integer or out of range";

fn client_id(id: Option<i64>) -> Result<u64, &'static [u8]> {
    id.and_then(|id| u64::try_from(id).ok())
        .filter(|&id| id > 0)
        .ok_or(b"ERR client-id should be greater than 0")
}

fn seconds(word: &str, value: &[u8]) -> Result<u64, String> {
    let seconds = number::parse(value)
        .ok_or_else(|| format!("ERR {word} is not an integer or out of range"))?;
    u64::try_from(seconds)
        .ok()
        .filter(|&seconds| seconds > 0)
        .ok_or_else(|| format!("ERR {word} should be greater than 0"))
}

fn known_letters(word: &str, negated: bool, value: &[u8], known: &[u8]) -> Result<(), Vec<u8>> {
    if value.iter().all(|letter| known.contains(letter)) {
        return Ok(());
    }
    let which = if negated {
        format!("NOT-{}", word.to_uppercase())
    } else {
        "provided".to_owned()
    };
    let text = format!("ERR Unknown {word} found in the {which} filter: ");
    Err([text.as_bytes(), c_string(value)].concat())
}

const SYNTAX: &[u8] = b"ERR syntax error";
