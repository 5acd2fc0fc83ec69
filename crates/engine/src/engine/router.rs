//! The servers of a request, in a pool of several servers.
//!
//! ```text
//!   GET k              the owner of k, or one of its replicas (`discovery/replicas.rs`)
//!   BLPOP a b 0        the owner of both, or CROSSSLOT
//!   MGET a b c         scattered: each owner gets its keys, and the parts become one reply
//!   DBSIZE             every server
//!   PUBLISH            the pool's first server
//!   PING, TIME, AUTH   the first server that answers
//! ```
//!
//! The command's row in the table alone says which of these it is ([`Spread`]).
//!
//! A session switches to the server of its next request. From then on its link is the shared one to
//! that server, and requests are dispatched as if there were no other server. Replies to its
//! earlier requests come from other servers in their own time, and wait for their place among the
//! session's replies. All requests for one key go to one server, so they are executed in the order
//! in which they were sent.

use respool_protocol::commands::{self, Answer, Command, CommandId, Retry, Spread, id};

use crate::base::error_text::{
    CROSSSLOT, FOREIGN_OWNER, NO_KEYS, NO_READER, ONE_DATABASE, PATTERN_KEYS, UNKNOWN_KEYS,
    wrong_arity,
};
use crate::base::handle::SessionId;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::local::LocalCompletion;
use crate::data_plane::completion::pinned::ConnectionSwitch;
use crate::data_plane::handshake::{NO_CLUSTER, NO_NODE};
use crate::data_plane::ingress::{Dispatched, Request};
use crate::data_plane::learned_commands::KeySpec;
use crate::data_plane::owners::{RequestOwner, looks_elsewhere};
use crate::data_plane::quick_code::may_hold_up;
use crate::data_plane::session::{Flags, Pins, Session};
use crate::engine::Engine;
use crate::local::asks_for_us_alone;
use crate::local::catalog::Opening;
use crate::pinned::tracking::asks_for;
use crate::pinned::wait_command::is_wait;
use crate::routing::pool::ServerId;
use crate::routing::replica_table::NoReader;

impl Engine {
    /// Chooses the server of a request, and switches the session to it. Returns the outcome if the
    /// request is not for one server, or has none.
    pub(crate) fn route(
        &mut self,
        session_id: SessionId,
        request: &Request<'_>,
    ) -> Option<Dispatched> {
        self.plane
            .note_asked(session_id, request.id, request.spans.len());
        let session = self.plane.sessions.get(session_id)?;
        if request.id == id::WATCH && session.flags.any(Flags::IN_MULTI) {
            // The usual path refuses it.
            return None;
        }
        if request.command.fan_out.spread == Spread::Here && !session.flags.any(Flags::IN_MULTI) {
            return None;
        }
        let (pool, own) = (usize::from(session.pool), session.server);
        let in_multi = session.flags.any(Flags::IN_MULTI);
        let is_reading = matches!(request.id, id::READONLY | id::READWRITE);
        if is_reading && !in_multi && self.plane.pools.has_readers(pool) {
            return Some(self.plane.set_reading(session_id, request.id));
        }
        if !self.plane.pools[pool].has_several() {
            return self.route_to_one(session_id, request);
        }
        let owner =
            self.plane
                .owner_of_keys(session_id, request.command, request.spans.len(), |at| {
                    request.arg(at)
                });
        let is_bound = session.pins.bind()
            || self
                .transactions
                .queued_group(&self.plane, session_id)
                .is_some();
        if request.id == id::CLIENT_CACHING
            && request.command.arity_ok(request.spans.len())
            && !in_multi
            && self.plane.tracks_several(session_id)
            && self
                .pinned
                .has_switched_on(&self.plane, session_id, Pins::TRACKING)
        {
            return Some(self.cache_next(session_id, request));
        }
        let home = self.plane.pools.home_of(pool);
        let of_cluster = self.plane.pools[pool].cluster().is_some();
        let channels_have_places = self.plane.channels_have_places(session_id);
        let asks_a_node = is_of_cluster(request);
        let spread = match request.command.fan_out.spread {
            Spread::Channels if channels_have_places => Spread::All,
            Spread::Channels => Spread::Home,
            // Any plain server replies that it is no node.
            _ if asks_a_node && !self.plane.has_nodes(session_id) => Spread::Any,
            spread => spread,
        };
        match owner {
            // For its clients the pool is a plain server, in this reply as in all others.
            _ if asks_a_node && self.plane.hides_nodes(session_id) => {
                let text = match request.command.arity_ok(request.spans.len()) {
                    true => NO_CLUSTER.to_vec(),
                    false => wrong_arity(request.command),
                };
                Some(self.refuse_queued(session_id, &text))
            }
            _ if !of_cluster && request.id == id::SWAPDB && self.plane.pools.has_cluster(pool) => {
                Some(self.refuse_queued(session_id, ONE_DATABASE))
            }
            // The nodes of a Cluster refuse it themselves, if they have to.
            RequestOwner::One(_) if !of_cluster && looks_elsewhere(request) => {
                Some(self.refuse_queued(session_id, PATTERN_KEYS))
            }
            RequestOwner::One(group)
                if self.plane.may_switch_to(
                    session_id,
                    group,
                    self.transactions.queued_group(&self.plane, session_id),
                ) =>
            {
                let owner = self.plane.pools.server_of(group);
                let kind = self.plane.kind_of(self.plane.sessions.get(session_id)?);
                match self
                    .plane
                    .server_in_reach(session_id, owner, request.command, kind)
                {
                    Ok(server) if !is_bound && !in_multi => {
                        self.plane.switch_server(session_id, server)
                    }
                    Err(NoReader) if !is_bound && !in_multi => {
                        return Some(self.answer_error(session_id, NO_READER));
                    }
                    _ => self.plane.switch_server(session_id, owner),
                }
                if in_multi {
                    self.transactions
                        .bind_transaction(&mut self.plane, session_id, group);
                } else if request.id == id::WATCH {
                    self.plane.note_watched(session_id, group);
                }
                None
            }
            RequestOwner::One(_) => Some(self.refuse_queued(session_id, FOREIGN_OWNER)),
            RequestOwner::Several if spread == Spread::Owners && !is_bound && !in_multi => {
                Some(self.divide(session_id, request))
            }
            RequestOwner::Several => Some(self.refuse_queued(session_id, CROSSSLOT)),
            RequestOwner::NoKeys => match spread {
                Spread::Here => None,
                Spread::Node if !in_multi && self.plane.shows_a_node(session_id) => {
                    self.answer_as_node(session_id, request)
                }
                Spread::Any
                    if request.id == id::CONFIG_GET
                        && !in_multi
                        && !is_bound
                        && self.plane.hides_nodes(session_id) =>
                {
                    Some(self.ask_any(
                        session_id,
                        request,
                        Completion::Local(LocalCompletion::AsPlainServer),
                    ))
                }
                // INFO reports a primary, too.
                Spread::Refused
                    if request.id == id::ROLE
                        && !in_multi
                        && !is_bound
                        && self.plane.shows_a_node(session_id) =>
                {
                    Some(self.ask_any(
                        session_id,
                        request,
                        Completion::Local(LocalCompletion::RoleOfNode),
                    ))
                }
                // The node that executes it would report itself.
                Spread::Node if of_cluster && request.command.answer != Answer::Session => {
                    Some(self.refuse_bound(session_id, request.command))
                }
                Spread::Owner | Spread::Owners | Spread::Any | Spread::Node => {
                    // The session keeps the same server as long as that is up.
                    if !is_bound && !in_multi && !self.pinned.tracks_here(&self.plane, session_id) {
                        let up = self.plane.first_up(pool);
                        self.plane.switch_server(session_id, up);
                    }
                    None
                }
                // The nodes of a Cluster pass published messages on to each other.
                Spread::Home if channels_have_places && is_bound && self.is_at_home(own, pool) => {
                    None
                }
                Spread::Channels => None,
                Spread::Home if own != home && is_bound => {
                    Some(self.refuse_queued(session_id, FOREIGN_OWNER))
                }
                Spread::Home => {
                    self.plane.switch_server(session_id, home);
                    if in_multi && !of_cluster {
                        let first = self.plane.pools.parts_of(pool)[0];
                        let group = self.plane.pools.group_at(first, home);
                        self.transactions
                            .bind_transaction(&mut self.plane, session_id, group);
                    }
                    None
                }
                Spread::Off
                    if is_tracking(request, b"off") && self.plane.tracks_several(session_id) =>
                {
                    match in_multi {
                        true => Some(self.refuse_bound(session_id, request.command)),
                        false => Some(self.pinned.stop_tracking(&mut self.plane, session_id)),
                    }
                }
                // The server names the mistake in its own words.
                Spread::Off if is_wrong_switch(request) => None,
                Spread::Off if in_multi && !switches_off(request) => {
                    Some(self.refuse_bound(session_id, request.command))
                }
                Spread::Off if switches_off(request) => {
                    let pins = ConnectionSwitch::of(request).pins;
                    let is_on = self.plane.tracks_several(session_id)
                        && self.pinned.has_switched_on(&self.plane, session_id, pins);
                    match (is_on, in_multi) {
                        (false, _) => None,
                        (true, false) => {
                            Some(self.pinned.stop_switch(&mut self.plane, session_id, pins))
                        }
                        (true, true) => Some(self.refuse_bound(session_id, request.command)),
                    }
                }
                Spread::Off if is_tracking(request, b"on") => {
                    let broadcasts = asks_for(request.args(), b"BCAST");
                    if broadcasts && let Some(placed) = self.know_owners(session_id, pool) {
                        return Some(placed);
                    }
                    Some(self.track_at_several(session_id, request))
                }
                Spread::Off if is_switch(request.id) => {
                    Some(self.switch_at_several(session_id, request))
                }
                Spread::Off | Spread::Refused => {
                    Some(self.refuse_for_several(session_id, request.command))
                }
                Spread::All if request.id == id::INFO && asks_for_us_alone(request) => None,
                // It would reach only some of the servers.
                Spread::All | Spread::Turns if !self.plane.knows_all(pool) => {
                    self.know_owners(session_id, pool)
                }
                // One server executes the transaction, and the others would not take part.
                Spread::All | Spread::Turns if is_bound || in_multi => {
                    Some(self.refuse_bound(session_id, request.command))
                }
                Spread::All | Spread::Turns
                    if self.keeps_place(pool, request)
                        && self.plane.hold_until_caught_up(session_id) =>
                {
                    Some(Dispatched::Wait)
                }
                Spread::All | Spread::Turns
                    if self
                        .discovery
                        .waits_for_owners(&mut self.plane, session_id, pool) =>
                {
                    Some(Dispatched::Wait)
                }
                // The server names the mistake in its own words.
                Spread::Turns if !request.command.arity_ok(request.spans.len()) => None,
                Spread::All if is_wait(request.id) => {
                    Some(match request.command.arity_ok(request.spans.len()) {
                        true => self.dispatch_wait_at_all(session_id, request),
                        false => self.dispatch_on_link(session_id, request.bytes, false, None),
                    })
                }
                Spread::All if request.id == id::INFO => Some(self.ask_info(session_id, request)),
                Spread::All | Spread::Turns => {
                    let placed = match spread {
                        Spread::Turns => self.scan(session_id, request),
                        _ => self.ask_all(session_id, request),
                    };
                    if self.keeps_place(pool, request) {
                        self.plane.hold_until_caught_up(session_id);
                    }
                    Some(placed)
                }
            },
        }
    }

    /// Whether a request for all servers has to keep its place among the requests of its session.
    /// It has to if it changes data at all servers or sees all keys: servers may refuse it for a
    /// while, and then it is sent again. Such a request is sent when all earlier requests of its
    /// session are answered. The next request is sent when its reply has come.
    ///
    /// FLUSHALL keeps its place in any pool, because it uses links of its own.
    fn keeps_place(&self, pool: usize, request: &Request<'_>) -> bool {
        let command = request.command;
        let matters = command.retry == Retry::Write || command.flags.has(commands::Flags::READONLY);
        matters
            && command.answer != Answer::Alone
            && (self.plane.pools.refuse_for_now(pool) || may_hold_up(request.id))
    }

    /// Chooses the server of a request in a pool whose one owner has replicas that may be read.
    fn route_to_one(&mut self, id: SessionId, request: &Request<'_>) -> Option<Dispatched> {
        let session = self.plane.sessions.get(id)?;
        let owner = self.plane.pools.home_of(session.pool.into());
        if !session.pins.is_empty() {
            return None;
        }
        let in_multi = session.flags.any(Flags::IN_MULTI);
        let kind = self.plane.kind_of(session);
        match self.plane.server_in_reach(id, owner, request.command, kind) {
            Ok(server) if !in_multi => self.plane.switch_server(id, server),
            Err(NoReader) if !in_multi => return Some(self.answer_error(id, NO_READER)),
            _ => self.plane.switch_server(id, owner),
        }
        None
    }

    /// Waits for all servers of a pool to be known. `None`: they are known.
    fn know_owners(&mut self, id: SessionId, pool: usize) -> Option<Dispatched> {
        let part = self.plane.unknown_part(pool)?;
        if let Some(text) = self.unknown_for(part, NO_NODE) {
            return Some(self.refuse_queued(id, text.as_bytes()));
        }
        if !self.transactions.is_in_multi(&self.plane, id)
            && self.discovery.waits_for_nodes(&mut self.plane, id, part)
        {
            return Some(Dispatched::Wait);
        }
        let text = self.discovery.no_nodes(&self.plane, part);
        Some(self.refuse_queued(id, text.as_bytes()))
    }

    /// The error while a Cluster is unknown because a configured node cannot be used for this
    /// reason. `None` if no node fails for it.
    fn unknown_for(&self, part: usize, reason: &str) -> Option<String> {
        let mut servers = self.plane.pools[part].servers().iter();
        let server = servers.find(|server| self.plane.is_away_for(**server, reason))?;
        let label = &self.plane.server(*server).label;
        Some(format!(
            "CLUSTERDOWN respool: no node of the Cluster is known; {label}: {reason}"
        ))
    }

    /// Whether a server is in the first subpool of a pool, which has all requests without keys.
    fn is_at_home(&self, server: ServerId, pool: usize) -> bool {
        self.plane.server(server).pool == self.plane.pools.parts_of(pool)[0]
    }

    /// Chooses the server of a large request that passes through, by its first arguments.
    pub(crate) fn route_large(
        &mut self,
        session_id: SessionId,
        opening: Opening,
        args: &[&[u8]],
        argc: usize,
    ) -> Result<(), Vec<u8>> {
        match opening {
            Opening::Row(id) => self.plane.note_asked(session_id, id, argc),
            Opening::Learned { reads: true, .. } => {}
            Opening::Learned { .. } | Opening::Nothing => self.plane.note_write(session_id),
        }
        let Some(session) = self
            .plane
            .sessions
            .get(session_id)
            .filter(|_| self.plane.is_routed(session_id))
        else {
            return Ok(());
        };
        let pool = usize::from(session.pool);
        self.plane.switch_from_replica(session_id, None);
        if !self.plane.pools[pool].has_several() {
            return Ok(());
        }
        let Opening::Row(id) = opening else {
            return Err(UNKNOWN_KEYS.to_vec());
        };
        let (command, spread) = (id.get(), id.get().fan_out.spread);
        let arg = |at: usize| args.get(at).copied().unwrap_or_default();
        match self.plane.owner_of_keys(session_id, command, argc, arg) {
            RequestOwner::One(group)
                if self.plane.may_switch_to(
                    session_id,
                    group,
                    self.transactions.queued_group(&self.plane, session_id),
                ) =>
            {
                let server = self.plane.pools.server_of(group);
                self.plane.switch_server(session_id, server);
                Ok(())
            }
            RequestOwner::One(_) => Err(FOREIGN_OWNER.to_vec()),
            RequestOwner::Several => Err(CROSSSLOT.to_vec()),
            RequestOwner::NoKeys => {
                let is_bound = |session: &Session| session.pins.bind();
                if spread == Spread::Home
                    && !self.plane.sessions.get(session_id).is_some_and(is_bound)
                {
                    let home = self.plane.pools.home_of(pool);
                    self.plane.switch_server(session_id, home);
                }
                Ok(())
            }
        }
    }

    /// Chooses the server of a command that the table does not have, by the server's report of its
    /// keys. One owner must have all keys, and gets the request even if it only reads. A command
    /// without keys is refused, since it may concern the keys of all servers. So is every such
    /// command of a pool that removes prefixes.
    pub(crate) fn route_learned<'a>(
        &mut self,
        id: SessionId,
        keys: KeySpec,
        argc: usize,
        arg: impl Fn(usize) -> &'a [u8],
    ) -> Result<(), &'static [u8]> {
        let Some(session) = self.plane.sessions.get(id) else {
            return Ok(());
        };
        if self.plane.removes_prefix(id) {
            return Err(UNKNOWN_KEYS);
        }
        let (pool, any) = (session.pool, session.next_seq);
        let in_multi = session.flags.any(Flags::IN_MULTI);
        let groups = keys.places(argc);
        let groups = groups.map(|at| self.plane.pools.group_of(pool, arg(at), || any));
        match groups.fold(RequestOwner::NoKeys, RequestOwner::and) {
            RequestOwner::One(group)
                if self.plane.may_switch_to(
                    id,
                    group,
                    self.transactions.queued_group(&self.plane, id),
                ) =>
            {
                let owner = self.plane.pools.server_of(group);
                self.plane.switch_server(id, owner);
                if in_multi {
                    self.transactions
                        .bind_transaction(&mut self.plane, id, group);
                }
                Ok(())
            }
            RequestOwner::One(_) => Err(FOREIGN_OWNER),
            RequestOwner::Several => Err(CROSSSLOT),
            RequestOwner::NoKeys if keys == KeySpec::Unsaid => Err(UNKNOWN_KEYS),
            RequestOwner::NoKeys => Err(NO_KEYS),
        }
    }

    /// Sends a request to the first server that is up. Its reply has a completion.
    fn ask_any(&mut self, id: SessionId, request: &Request<'_>, duty: Completion) -> Dispatched {
        if let Some(session) = self.plane.sessions.get(id)
            && !self.pinned.tracks_here(&self.plane, id)
        {
            let up = self.plane.first_up(usize::from(session.pool));
            self.plane.switch_server(id, up);
        }
        self.dispatch_on_link(id, request.bytes, true, Some(duty))
    }

    /// Switches a session from a server that cannot be reached to one that can, unless the session is
    /// bound there.
    pub(crate) fn switch_from_dead_if_free(&mut self, id: SessionId) {
        let has_queued = self.transactions.queued_group(&self.plane, id).is_some();
        self.plane.switch_from_dead(id, has_queued);
    }

    /// Refuses a command that a pool of several servers cannot execute as one.
    fn refuse_for_several(&mut self, id: SessionId, command: &Command) -> Dispatched {
        self.refuse_as(id, command, ": ask the servers themselves")
    }

    /// Refuses a command for all servers in a transaction, which one server executes.
    fn refuse_bound(&mut self, id: SessionId, command: &Command) -> Dispatched {
        let when = " in a transaction, or while keys are watched: send it before MULTI and WATCH, \
                    or after EXEC";
        self.refuse_as(id, command, when)
    }

    fn refuse_as(&mut self, id: SessionId, command: &Command, rest: &str) -> Dispatched {
        self.plane.counters.refused += 1;
        let name = command.name.replace('|', " ");
        let text =
            format!("ERR respool: '{name}' cannot be asked of a pool of several servers{rest}");
        self.refuse_queued(id, text.as_bytes())
    }
}

/// Whether only a node of a Cluster can answer the request. A plain server refuses all subcommands
/// of CLUSTER, even HELP.
fn is_of_cluster(request: &Request<'_>) -> bool {
    request.command.name.starts_with("cluster|") || request.id == id::CLUSTERSCAN
}

/// Whether the request is CLIENT TRACKING with this argument, ON or OFF.
fn is_tracking(request: &Request<'_>, way: &[u8]) -> bool {
    let argc = request.spans.len();
    let has_length = argc == 3 || argc > 3 && way == b"on";
    request.id == id::CLIENT_TRACKING && has_length && request.arg(2).eq_ignore_ascii_case(way)
}

/// Whether CLIENT TRACKING or its like has a wrong argument in place of ON or OFF.
fn is_wrong_switch(request: &Request<'_>) -> bool {
    let is_way = |way: &[u8]| request.arg(2).eq_ignore_ascii_case(way);
    !request.command.arity_ok(request.spans.len()) || !is_way(b"on") && !is_way(b"off")
}

/// Whether the command is CLIENT NO-TOUCH or CLIENT IMPORT-SOURCE.
fn is_switch(command: CommandId) -> bool {
    matches!(command, id::CLIENT_NO_TOUCH | id::CLIENT_IMPORT_SOURCE)
}

/// Whether the request is CLIENT TRACKING OFF or its like.
fn switches_off(request: &Request<'_>) -> bool {
    request.spans.len() == 3 && request.arg(2).eq_ignore_ascii_case(b"off")
}
