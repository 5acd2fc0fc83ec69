//! The servers of a request, in a pool of several servers.
//!
//! ```text
//!   GET k              the owner of k, or one of its replicas (`routing/replica_table.rs`)
//!   BLPOP a b 0        the owner of both, or CROSSSLOT
//!   MGET a b c         scattered: a share for each server or slot, and the parts become one reply
//!   DBSIZE             every server
//!   PUBLISH            the pool's first server
//!   PING, TIME         the first server that answers
//! ```
//!
//! The command's row in the table says which of these it is ([`Spread`]). [`Facts::route`] adds the
//! state of the session and the form of the pool. It reads [`Facts`] alone and changes nothing.
//! [`Engine::route`] then carries the [`Route`] out.
//!
//! All requests for one key go to one server, so they are executed in the order in which they were
//! sent.

use std::borrow::Cow;
use std::ops::ControlFlow;

use respool_protocol::commands::{self, Answer, Command, CommandId, Retry, Spread, id};

use crate::base::error_text::{CROSSSLOT, FOREIGN_OWNER, ONE_DATABASE, PATTERN_KEYS, wrong_arity};
use crate::base::handle::SessionId;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::local::LocalCompletion;
use crate::data_plane::completion::pinned::{ConnectionSwitch, is_connection_switch};
use crate::data_plane::handshake::NO_CLUSTER;
use crate::data_plane::ingress::{Dispatched, Request};
use crate::data_plane::owners::{RequestOwner, looks_elsewhere};
use crate::data_plane::quick_code::may_hold_up;
use crate::data_plane::session::{Flags, Pins};
use crate::data_plane::tracking::asks_for;
use crate::engine::Engine;
use crate::local::info::{adds_our_section, asks_for_us_alone};
use crate::pinned::wait_command::is_wait;
use crate::routing::pool::Group;

/// The way of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// To the session's present server, or respool answers it.
    Present,
    /// To the owner of its keys.
    Owner {
        group: Group,
        /// Replicas of the owner may answer it.
        may_read: bool,
        claim: Claim,
    },
    /// To the pool's one owner, or to a replica of it if that may answer.
    OnlyOwner {
        may_read: bool,
    },
    /// To the first server that answers.
    FirstUp,
    /// To the first server that answers. The reply becomes that of a plain server.
    AsPlainServer,
    /// To the first server that answers. The reply becomes that of a primary without replicas.
    RoleOfNode,
    /// To the pool's default server.
    DefaultServer {
        /// The session's transaction stays at that server.
        claims: bool,
    },
    /// A component takes it on.
    Component(ComponentRoute),
    /// Nowhere, before the earlier requests of the session are answered.
    CatchUp,
    /// Nowhere, before the owners are known.
    FindOwners,
    /// READONLY or READWRITE: the session chooses how it reads.
    ChooseReading,
    Refuse(RouteError),
}

/// The way of a request for which the data plane needs a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ComponentRoute {
    /// To the owners of its keys: a share for each [`Group`].
    Divide,
    /// To all owners, when they are known well enough.
    Everywhere(Everywhere),
    /// respool answers as a node of a Cluster, if it can.
    AsNode,
    /// CLIENT CACHING: it is kept for the next request.
    CacheNext,
    /// CLIENT TRACKING ON at several servers.
    Track,
    /// CLIENT TRACKING OFF at several servers.
    StopTracking,
    /// CLIENT NO-TOUCH ON and its like at several servers.
    Switch,
    /// CLIENT NO-TOUCH OFF and its like at several servers.
    StopSwitch,
}

impl From<ComponentRoute> for Route {
    fn from(route: ComponentRoute) -> Route {
        Route::Component(route)
    }
}

impl From<Everywhere> for Route {
    fn from(everywhere: Everywhere) -> Route {
        Route::Component(ComponentRoute::Everywhere(everywhere))
    }
}

/// The hold of a request on its owner: later requests of the session go to the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    Nothing,
    /// The request is queued in a transaction.
    Transaction,
    /// The session watches the keys.
    Watch,
}

/// The way in which all owners are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Everywhere {
    All {
        /// The request keeps its place: the next one of its session waits for its reply.
        keeps_place: bool,
    },
    /// One server after the other, as the cursor says.
    Scan {
        keeps_place: bool,
    },
    Info,
    /// WAIT or WAITAOF, at one server after the other.
    WaitCommand,
    /// The server of the session names the mistake in its own words.
    Mistake,
}

/// The reason that a request has no way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteError {
    /// Its keys have several groups: servers, or slots of a Cluster.
    CrossSlot,
    /// The session is bound to another server than its owner.
    ForeignOwner,
    /// SORT makes keys from a pattern.
    PatternKeys,
    /// SWAPDB, where only some of the servers could execute it.
    OneDatabase,
    /// Only a node of a Cluster answers it, and the pool is shown as a plain server.
    NoCluster,
    /// The same, with a wrong number of arguments.
    WrongArity,
    /// It is for all servers, and the session is bound to one.
    Bound,
    /// A pool of several servers cannot execute it as one.
    Several,
}

/// All facts that decide the route of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    command: CommandId,
    arity_ok: bool,
    arguments: Arguments,
    keys: RequestOwner,
    /// The session may switch to the one owner of the keys.
    may_switch: bool,
    session: SessionFacts,
    pool: PoolFacts,
}

/// The arguments of some commands, as far as they change the route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arguments {
    /// Nothing that changes the route.
    Usual,
    /// SORT reads keys that it makes from a pattern.
    Pattern,
    /// INFO asks for respool's section alone.
    OwnSection,
    /// CLIENT TRACKING or its like: ON.
    On,
    /// CLIENT TRACKING ON with BCAST.
    OnForAll,
    Off,
    /// OFF with more arguments.
    OffWithMore,
    /// Neither ON nor OFF, or a wrong number of arguments.
    NoSwitch,
}

#[derive(Clone, Copy, Debug)]
struct SessionFacts {
    in_multi: bool,
    /// The session stays at its server, or has queued requests for one owner.
    is_bound: bool,
    /// The session has a link of its own.
    is_pinned: bool,
    /// The session has a link of its own to each server that it uses.
    has_spread: bool,
    /// The session tracks keys.
    tracks: bool,
    /// The session tracks keys at its present server.
    tracks_here: bool,
    /// The option that the request names is on.
    is_on: bool,
    /// The present server is the pool's first server.
    is_at_default_server: bool,
    /// The present server is in the pool's first subpool.
    is_in_first_subpool: bool,
    is_caught_up: bool,
}

#[derive(Clone, Copy, Debug)]
struct PoolFacts {
    /// Several servers own keys.
    has_several: bool,
    /// Replicas of an owner may be read.
    has_readers: bool,
    /// The pool as a whole is a Cluster.
    is_cluster: bool,
    /// The pool or a subpool is a Cluster.
    has_nodes: bool,
    /// Clients see one node of a Cluster.
    shows_a_node: bool,
    /// Sharded channels are with the owners of their slots.
    channels_have_places: bool,
    /// All owners are known.
    knows_all: bool,
    /// A refusal of a server leads to another attempt.
    refuses_for_now: bool,
}

impl Facts {
    /// `None`: the session is closed. `queued`: the group of the requests that it has queued since
    /// MULTI, if it has queued any.
    pub(crate) fn of(
        plane: &DataPlane,
        id: SessionId,
        request: &Request<'_>,
        queued: Option<Group>,
    ) -> Option<Facts> {
        let session = plane.sessions.get(id)?;
        let (pools, pool) = (&plane.pools, usize::from(session.pool));
        let (command, argc) = (request.command, request.spans.len());
        let has_several = pools[pool].has_several();
        let keys = match has_several {
            true => plane.owner_of_keys(id, command, argc, |at| request.arg(at)),
            false => RequestOwner::NoKeys,
        };
        let arguments = Arguments::of(request);
        let is_on = arguments == Arguments::Off
            && session.pins.any(ConnectionSwitch::of(request).pins)
            && plane.tracks_several(id);
        Some(Facts {
            command: request.id,
            arity_ok: command.arity_ok(argc),
            arguments,
            keys,
            may_switch: match keys {
                RequestOwner::One(group) => plane.may_switch_to(id, group, queued),
                RequestOwner::NoKeys | RequestOwner::Several => false,
            },
            session: SessionFacts {
                in_multi: session.state.any(Flags::IN_MULTI),
                is_bound: session.pins.bind() || queued.is_some(),
                is_pinned: !session.pins.is_empty(),
                has_spread: session.pins.any(Pins::SPREAD),
                tracks: session.pins.any(Pins::TRACKING),
                tracks_here: plane.tracks_here(id),
                is_on,
                is_at_default_server: session.server == pools.default_server_of(pool),
                is_in_first_subpool: plane.server(session.server).pool
                    == pools.subpools_of(pool)[0],
                is_caught_up: session.is_caught_up(),
            },
            pool: PoolFacts {
                has_several,
                has_readers: pools.has_readers(pool),
                is_cluster: pools[pool].cluster().is_some(),
                has_nodes: pools.has_cluster(pool),
                shows_a_node: plane.shows_a_node(id),
                channels_have_places: plane.channels_have_places(id),
                knows_all: plane.knows_all(pool),
                refuses_for_now: pools.refuse_for_now(pool),
            },
        })
    }

    /// Chooses the route of the request.
    pub(crate) fn route(&self) -> Route {
        let (session, pool) = (&self.session, &self.pool);
        let is_reading = matches!(self.command, id::READONLY | id::READWRITE);
        if self.command == id::WATCH && session.in_multi {
            // The usual path refuses it.
            return Route::Present;
        }
        if self.command.get().fan_out.spread == Spread::Local && !session.in_multi {
            return Route::Present;
        }
        if is_reading && !session.in_multi && pool.has_readers {
            return Route::ChooseReading;
        }
        if !pool.has_several {
            return match session.is_pinned {
                true => Route::Present,
                false => Route::OnlyOwner {
                    may_read: !session.in_multi,
                },
            };
        }
        let is_caching = self.command == id::CLIENT_CACHING && self.arity_ok;
        if is_caching && !session.in_multi && session.has_spread && session.tracks {
            return ComponentRoute::CacheNext.into();
        }
        if let Some(refusal) = self.refusal() {
            return Route::Refuse(refusal);
        }
        match self.keys {
            RequestOwner::NoKeys => self.route_without_keys(),
            RequestOwner::One(group) if self.may_switch => Route::Owner {
                group,
                may_read: !session.is_bound && !session.in_multi,
                claim: match self.command {
                    _ if session.in_multi => Claim::Transaction,
                    id::WATCH => Claim::Watch,
                    _ => Claim::Nothing,
                },
            },
            RequestOwner::One(_) => Route::Refuse(RouteError::ForeignOwner),
            RequestOwner::Several if self.spread() == Spread::Owners && !self.is_kept() => {
                ComponentRoute::Divide.into()
            }
            RequestOwner::Several => Route::Refuse(RouteError::CrossSlot),
        }
    }

    /// The command's spread in this pool.
    fn spread(&self) -> Spread {
        match self.command.get().fan_out.spread {
            Spread::Channels if self.pool.channels_have_places => Spread::All,
            Spread::Channels => Spread::Default,
            // Any plain server replies that it is no node.
            _ if self.is_of_cluster() && !self.pool.has_nodes => Spread::Any,
            spread => spread,
        }
    }

    /// Whether only a node of a Cluster can answer the request. A plain server refuses all
    /// subcommands of CLUSTER, even HELP.
    fn is_of_cluster(&self) -> bool {
        self.command.get().name.starts_with("cluster|") || self.command == id::CLUSTERSCAN
    }

    fn hides_nodes(&self) -> bool {
        self.pool.has_nodes && !self.pool.shows_a_node
    }

    /// Whether one server gets the request, since it is one of several that belong together.
    fn is_kept(&self) -> bool {
        self.session.is_bound || self.session.in_multi
    }

    /// The refusal of a request that no server of the pool shall get.
    fn refusal(&self) -> Option<RouteError> {
        let pool = &self.pool;
        let has_one_owner = matches!(self.keys, RequestOwner::One(_));
        match self.arguments {
            // For its clients the pool is a plain server, in this reply as in all others.
            _ if self.is_of_cluster() && self.hides_nodes() => Some(match self.arity_ok {
                true => RouteError::NoCluster,
                false => RouteError::WrongArity,
            }),
            _ if !pool.is_cluster && pool.has_nodes && self.command == id::SWAPDB => {
                Some(RouteError::OneDatabase)
            }
            // The nodes of a Cluster refuse it themselves, if they have to.
            Arguments::Pattern if has_one_owner && !pool.is_cluster => {
                Some(RouteError::PatternKeys)
            }
            _ => None,
        }
    }

    fn route_without_keys(&self) -> Route {
        let (session, pool) = (&self.session, &self.pool);
        match self.spread() {
            Spread::Local => Route::Present,
            Spread::Node if !session.in_multi && pool.shows_a_node => ComponentRoute::AsNode.into(),
            Spread::Any
                if self.command == id::CONFIG_GET && !self.is_kept() && self.hides_nodes() =>
            {
                Route::AsPlainServer
            }
            // INFO reports a primary, too.
            Spread::Refused if self.command == id::ROLE && !self.is_kept() && pool.shows_a_node => {
                Route::RoleOfNode
            }
            // The node that executes it would report itself.
            Spread::Node if pool.is_cluster && self.command.get().answer != Answer::Session => {
                Route::Refuse(RouteError::Bound)
            }
            // The session keeps the same server as long as that is up.
            Spread::Owner | Spread::Owners | Spread::Any | Spread::Node => {
                match self.is_kept() || session.tracks_here {
                    true => Route::Present,
                    false => Route::FirstUp,
                }
            }
            Spread::Default => self.route_to_default(),
            Spread::Off => self.route_of_switch(),
            Spread::Refused => Route::Refuse(RouteError::Several),
            Spread::Channels | Spread::All | Spread::Sequence => self.route_everywhere(),
        }
    }

    fn route_to_default(&self) -> Route {
        let (session, pool) = (&self.session, &self.pool);
        // The nodes of a Cluster pass published messages on to each other.
        if pool.channels_have_places && session.is_bound && session.is_in_first_subpool {
            return Route::Present;
        }
        match session.is_bound && !session.is_at_default_server {
            true => Route::Refuse(RouteError::ForeignOwner),
            false => Route::DefaultServer {
                claims: session.in_multi && !pool.is_cluster,
            },
        }
    }

    /// The route of CLIENT TRACKING, or of another option of a connection.
    fn route_of_switch(&self) -> Route {
        let session = &self.session;
        let tracks_keys = self.command == id::CLIENT_TRACKING;
        match self.arguments {
            Arguments::Off if tracks_keys && session.has_spread => match session.in_multi {
                true => Route::Refuse(RouteError::Bound),
                false => ComponentRoute::StopTracking.into(),
            },
            // The server names the mistake in its own words.
            Arguments::NoSwitch => Route::Present,
            Arguments::Off => match (session.is_on, session.in_multi) {
                (false, _) => Route::Present,
                (true, false) => ComponentRoute::StopSwitch.into(),
                (true, true) => Route::Refuse(RouteError::Bound),
            },
            _ if session.in_multi => Route::Refuse(RouteError::Bound),
            Arguments::OnForAll if tracks_keys && !self.pool.knows_all => Route::FindOwners,
            Arguments::On | Arguments::OnForAll if tracks_keys => ComponentRoute::Track.into(),
            _ if is_connection_switch(self.command) && !tracks_keys => {
                ComponentRoute::Switch.into()
            }
            _ => Route::Refuse(RouteError::Several),
        }
    }

    fn route_everywhere(&self) -> Route {
        let is_sequence = self.spread() == Spread::Sequence;
        let keeps_place = self.keeps_place();
        match self.command {
            id::INFO if self.arguments == Arguments::OwnSection => Route::Present,
            // It would reach only some of the servers.
            _ if !self.pool.knows_all => Route::FindOwners,
            // One server executes the transaction, and the others would not take part.
            _ if self.is_kept() => Route::Refuse(RouteError::Bound),
            _ if keeps_place && !self.session.is_caught_up => Route::CatchUp,
            _ if is_sequence && !self.arity_ok => Everywhere::Mistake.into(),
            _ if is_sequence => Everywhere::Scan { keeps_place }.into(),
            wait if is_wait(wait) && self.arity_ok => Everywhere::WaitCommand.into(),
            wait if is_wait(wait) => Everywhere::Mistake.into(),
            id::INFO => Everywhere::Info.into(),
            _ => Everywhere::All { keeps_place }.into(),
        }
    }

    /// Whether a request for all servers has to keep its place among the requests of its session.
    /// It has to if it changes data at all servers or sees all keys: servers may refuse it for a
    /// while, and then it is sent again. Such a request is sent when all earlier requests of its
    /// session are answered. The next request is sent when its reply has come.
    ///
    /// FLUSHALL keeps its place in any pool, because it uses links of its own.
    fn keeps_place(&self) -> bool {
        let command = self.command.get();
        let matters =
            command.retry == Retry::Write || command.flags.has(commands::CommandFlags::READONLY);
        matters
            && command.answer != Answer::Alone
            && (self.pool.refuses_for_now || may_hold_up(self.command))
    }
}

impl Arguments {
    fn of(request: &Request<'_>) -> Arguments {
        match request.id {
            id::SORT | id::SORT_RO if looks_elsewhere(request) => Arguments::Pattern,
            id::INFO if asks_for_us_alone(request) => Arguments::OwnSection,
            id if is_connection_switch(id) => Arguments::of_switch(request),
            _ => Arguments::Usual,
        }
    }

    fn of_switch(request: &Request<'_>) -> Arguments {
        let argc = request.spans.len();
        if !request.command.arity_ok(argc) {
            return Arguments::NoSwitch;
        }
        let is = |way: &[u8]| request.arg(2).eq_ignore_ascii_case(way);
        match () {
            () if is(b"off") && argc == 3 => Arguments::Off,
            () if is(b"off") => Arguments::OffWithMore,
            () if is(b"on") && asks_for(request.args(), b"BCAST") => Arguments::OnForAll,
            () if is(b"on") => Arguments::On,
            () => Arguments::NoSwitch,
        }
    }
}

impl RouteError {
    fn text(self, command: &Command) -> Cow<'static, [u8]> {
        let name = || command.name.replace('|', " ");
        match self {
            RouteError::CrossSlot => CROSSSLOT.into(),
            RouteError::ForeignOwner => FOREIGN_OWNER.into(),
            RouteError::PatternKeys => PATTERN_KEYS.into(),
            RouteError::OneDatabase => ONE_DATABASE.into(),
            RouteError::NoCluster => NO_CLUSTER.into(),
            RouteError::WrongArity => wrong_arity(command).into(),
            RouteError::Bound => format!(
                "ERR respool: '{}' cannot be sent to a pool of several servers in a transaction, \
                or while keys are watched: send it before MULTI and WATCH, or after EXEC",
                name()
            )
            .into_bytes()
            .into(),
            RouteError::Several => format!(
                "ERR respool: '{}' cannot be sent to a pool of several servers: \
                ask the servers themselves",
                name()
            )
            .into_bytes()
            .into(),
        }
    }

    /// Whether respool counts it among the requests that it refused.
    fn counts(self) -> bool {
        matches!(self, RouteError::Bound | RouteError::Several)
    }
}

impl Everywhere {
    /// Whether the next request of the session waits for the reply.
    fn keeps_place(self) -> bool {
        match self {
            Everywhere::All { keeps_place } | Everywhere::Scan { keeps_place } => keeps_place,
            Everywhere::Info | Everywhere::WaitCommand | Everywhere::Mistake => false,
        }
    }
}

/// Switches a session to the owner of its request, or to the server at which it reads. Returns the
/// outcome if no server may be read.
fn switch_to_owner(
    plane: &mut DataPlane,
    (id, request): (SessionId, &Request<'_>),
    group: Group,
    may_read: bool,
    claim: Claim,
) -> Option<Dispatched> {
    let owner = plane.pools.server_of(group);
    let dispatched = plane.switch_or_refuse(id, owner, request, may_read);
    if dispatched.is_none() {
        match claim {
            Claim::Nothing => {}
            Claim::Transaction => plane.bind_transaction(id, group),
            Claim::Watch => plane.note_watched(id, group),
        }
    }
    dispatched
}

/// Takes the route of a request, as far as the data plane can: it switches the session, holds it or
/// refuses the request. `stays`: only the session's present server may answer it. `Break`: the
/// outcome, or `None` if the session has switched to the server of its request.
fn take_route(
    plane: &mut DataPlane,
    (id, request): (SessionId, &Request<'_>),
    route: Route,
    stays: bool,
) -> ControlFlow<Option<Dispatched>, ComponentRoute> {
    ControlFlow::Break(match route {
        Route::Component(route) => return ControlFlow::Continue(route),
        Route::Present => None,
        Route::Owner {
            group,
            may_read,
            claim,
        } => switch_to_owner(plane, (id, request), group, may_read, claim),
        Route::OnlyOwner { may_read } => {
            let pool = plane.sessions.get(id).map(|session| session.pool);
            pool.and_then(|pool| {
                let owner = plane.pools.default_server_of(pool.into());
                plane.switch_or_refuse(id, owner, request, may_read)
            })
        }
        Route::FirstUp => {
            plane.switch_to_first_up(id);
            None
        }
        Route::DefaultServer { claims } => {
            plane.switch_to_default_server(id);
            if claims && let Some(group) = plane.default_group(id) {
                plane.bind_transaction(id, group);
            }
            None
        }
        Route::AsPlainServer => {
            Some(plane.ask_any(id, request, stays, LocalCompletion::AsPlainServer))
        }
        Route::RoleOfNode => Some(plane.ask_any(id, request, stays, LocalCompletion::RoleOfNode)),
        Route::CatchUp => {
            plane.hold_until_caught_up(id);
            Some(Dispatched::Wait)
        }
        Route::FindOwners => plane.find_owners(id),
        Route::ChooseReading => Some(plane.set_reading(id, request.id)),
        Route::Refuse(refusal) => {
            plane.counters.commands_refused += u64::from(refusal.counts());
            Some(plane.refuse_queued(id, &refusal.text(request.command)))
        }
    })
}

impl Engine {
    /// Chooses the server of a request, and switches the session to it. Returns the outcome if the
    /// request is not for one server, or has none.
    pub(crate) fn route(&mut self, id: SessionId, request: &Request<'_>) -> Option<Dispatched> {
        let plane = &mut self.plane;
        plane.note_command(id, request.id, request.spans.len());
        let queued = plane.queued_group(id);
        let facts = Facts::of(plane, id, request, queued)?;
        let stays = facts.session.tracks_here;
        let route = match take_route(plane, (id, request), facts.route(), stays) {
            ControlFlow::Break(outcome) => return outcome,
            ControlFlow::Continue(route) => route,
        };
        let ask =
            |plane: &mut _, servers: &[_]| self.scatter.ask_these(plane, id, request, servers);
        Some(match route {
            ComponentRoute::Divide => self.divide(id, request),
            ComponentRoute::Everywhere(everywhere) => {
                return self.ask_everywhere(id, request, everywhere);
            }
            ComponentRoute::AsNode => return self.local.answer_as_node(plane, id, request),
            ComponentRoute::CacheNext => self.pinned.cache_next(plane, id, request),
            ComponentRoute::Track => self.pinned.track_at_all(plane, id, request, ask),
            ComponentRoute::StopTracking => self.pinned.stop_tracking(plane, id),
            ComponentRoute::Switch => self.pinned.switch_at_all(plane, id, request, ask),
            ComponentRoute::StopSwitch => {
                let pins = ConnectionSwitch::of(request).pins;
                self.pinned.stop_switch(plane, id, pins)
            }
        })
    }

    /// Sends a request to all owners of a pool. `None`: it goes to the session's present server.
    fn ask_everywhere(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        everywhere: Everywhere,
    ) -> Option<Dispatched> {
        let plane = &mut self.plane;
        let pool = usize::from(plane.sessions.get(id)?.pool);
        if self.discovery.wait_for_owners(plane, id, pool) {
            return Some(Dispatched::Wait);
        }
        let dispatched = match everywhere {
            Everywhere::All { .. } => self.scatter.ask_all(plane, id, request),
            Everywhere::Scan { .. } => {
                let refresh = |plane: &mut _, server| self.discovery.request_refresh(plane, server);
                self.scatter.scan(plane, id, request, refresh)
            }
            Everywhere::Info => {
                let adds_section = adds_our_section(request);
                self.scatter.ask_info(plane, id, request, adds_section)
            }
            Everywhere::WaitCommand => {
                let rest = self.pinned.begin_wait_at_all(plane, id, request);
                self.dispatch_wait(id, request, rest)
            }
            Everywhere::Mistake if is_wait(request.id) => {
                plane.dispatch_on_link(id, request.bytes, false, None)
            }
            Everywhere::Mistake => return None,
        };
        if everywhere.keeps_place() {
            self.plane.hold_until_caught_up(id);
        }
        Some(dispatched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIVIDED: Route = Route::Component(ComponentRoute::Divide);
    const AS_NODE: Route = Route::Component(ComponentRoute::AsNode);
    const TRACK: Route = Route::Component(ComponentRoute::Track);
    const SWITCH: Route = Route::Component(ComponentRoute::Switch);
    const GROUP: Group = Group { pool: 0, number: 7 };
    const ONE: RequestOwner = RequestOwner::One(GROUP);
    const NONE: RequestOwner = RequestOwner::NoKeys;
    const SEVERAL: RequestOwner = RequestOwner::Several;

    /// A request of a fresh session to a pool of several plain servers.
    fn plain(command: CommandId, keys: RequestOwner) -> Facts {
        Facts {
            command,
            arity_ok: true,
            arguments: Arguments::Usual,
            keys,
            may_switch: true,
            session: SessionFacts {
                in_multi: false,
                is_bound: false,
                is_pinned: false,
                has_spread: false,
                tracks: false,
                tracks_here: false,
                is_on: false,
                is_at_default_server: false,
                is_in_first_subpool: true,
                is_caught_up: true,
            },
            pool: PoolFacts {
                has_several: true,
                has_readers: false,
                is_cluster: false,
                has_nodes: false,
                shows_a_node: false,
                channels_have_places: false,
                knows_all: true,
                refuses_for_now: false,
            },
        }
    }

    /// The same request in a transaction.
    fn queued(facts: Facts) -> Facts {
        let session = SessionFacts {
            in_multi: true,
            ..facts.session
        };
        Facts { session, ..facts }
    }

    /// The same request of a session that watches keys at a server that is not the first one.
    fn watching(facts: Facts) -> Facts {
        let session = SessionFacts {
            is_bound: true,
            is_pinned: true,
            ..facts.session
        };
        Facts { session, ..facts }
    }

    /// The same request to a Cluster that is shown as a plain server.
    fn to_cluster(facts: Facts) -> Facts {
        let pool = PoolFacts {
            is_cluster: true,
            has_nodes: true,
            channels_have_places: true,
            refuses_for_now: true,
            ..facts.pool
        };
        Facts { pool, ..facts }
    }

    /// The same request to a Cluster that is shown as one node.
    fn to_node(facts: Facts) -> Facts {
        let mut facts = to_cluster(facts);
        facts.pool.shows_a_node = true;
        facts
    }

    /// The same request to a pool in which the second of two subpools is a Cluster.
    fn to_parts(facts: Facts) -> Facts {
        let pool = PoolFacts {
            has_nodes: true,
            refuses_for_now: true,
            ..facts.pool
        };
        Facts { pool, ..facts }
    }

    /// The routes of a request in all of these situations.
    fn routes(facts: Facts) -> [Route; 6] {
        let situations = [
            facts,
            queued(facts),
            watching(facts),
            to_cluster(facts),
            to_node(facts),
            to_parts(facts),
        ];
        situations.map(|facts| facts.route())
    }

    fn owner(may_read: bool, claim: Claim) -> Route {
        let group = GROUP;
        Route::Owner {
            group,
            may_read,
            claim,
        }
    }

    /// The routes of a request that any server may answer.
    fn routes_of_any() -> [Route; 6] {
        use Route::{FirstUp, Present};
        [FirstUp, Present, Present, FirstUp, FirstUp, FirstUp]
    }

    /// The routes of a request with keys of one owner.
    fn routes_to_owner() -> [Route; 6] {
        let read = owner(true, Claim::Nothing);
        let queued = owner(false, Claim::Transaction);
        let bound = owner(false, Claim::Nothing);
        [read, queued, bound, read, read, read]
    }

    /// The routes of a request for all servers.
    fn routes_to_all(plain: Everywhere, cluster: Everywhere) -> [Route; 6] {
        let (plain, cluster) = (Route::from(plain), Route::from(cluster));
        let bound = Route::Refuse(RouteError::Bound);
        [plain, bound, bound, cluster, cluster, cluster]
    }

    /// Each spread, in each situation.
    #[test]
    fn spread_and_situation_decide_the_route() {
        use Route::{DefaultServer, Present, Refuse};
        use RouteError::{Bound, CrossSlot, ForeignOwner, NoCluster, Several};
        let crossing = Refuse(CrossSlot);
        let all = |keeps_place| Everywhere::All { keeps_place };
        let scan = |keeps_place| Everywhere::Scan { keeps_place };
        let [free, claimed] = [false, true].map(|claims| DefaultServer { claims });
        let away = Refuse(ForeignOwner);
        let table = [
            (Spread::Owner, id::GET, NONE, routes_of_any()),
            (Spread::Owner, id::GET, ONE, routes_to_owner()),
            (Spread::Owner, id::BLPOP, SEVERAL, [crossing; 6]),
            (Spread::Owners, id::MGET, NONE, routes_of_any()),
            (Spread::Owners, id::MGET, ONE, routes_to_owner()),
            (
                Spread::Owners,
                id::MGET,
                SEVERAL,
                [DIVIDED, crossing, crossing, DIVIDED, DIVIDED, DIVIDED],
            ),
            (Spread::Any, id::PING, NONE, routes_of_any()),
            (
                Spread::Default,
                id::PUBLISH,
                NONE,
                [free, claimed, away, free, free, free],
            ),
            (
                Spread::Channels,
                id::PUBSUB_SHARDCHANNELS,
                NONE,
                [
                    free,
                    claimed,
                    away,
                    Route::from(all(false)),
                    Route::from(all(false)),
                    free,
                ],
            ),
            (
                Spread::All,
                id::DBSIZE,
                NONE,
                routes_to_all(all(false), all(true)),
            ),
            (
                Spread::Sequence,
                id::SCAN,
                NONE,
                routes_to_all(scan(false), scan(true)),
            ),
            (
                Spread::Node,
                id::CLUSTER_INFO,
                NONE,
                [
                    Route::FirstUp,
                    Present,
                    Present,
                    Refuse(NoCluster),
                    AS_NODE,
                    Refuse(NoCluster),
                ],
            ),
            (
                Spread::Node,
                id::ASKING,
                NONE,
                [
                    Route::FirstUp,
                    Present,
                    Present,
                    Route::FirstUp,
                    AS_NODE,
                    Route::FirstUp,
                ],
            ),
            (Spread::Local, id::SELECT, NONE, [Present; 6]),
            (
                Spread::Off,
                id::CLIENT_TRACKING,
                NONE,
                [
                    Refuse(Several),
                    Refuse(Bound),
                    Refuse(Several),
                    Refuse(Several),
                    Refuse(Several),
                    Refuse(Several),
                ],
            ),
            (Spread::Refused, id::MONITOR, NONE, [Refuse(Several); 6]),
        ];
        for (spread, command, keys, expected) in table {
            let name = command.get().name;
            assert_eq!(command.get().fan_out.spread, spread, "{name}");
            assert_eq!(routes(plain(command, keys)), expected, "{name} {keys:?}");
        }
    }

    /// Rows that the router knows by name, in each situation.
    #[test]
    fn named_commands_have_routes_of_their_own() {
        use Route::{FirstUp, Present, Refuse};
        use RouteError::{Bound, NoCluster, OneDatabase, PatternKeys, Several, WrongArity};
        let with = |arguments, facts| Facts { arguments, ..facts };
        let pattern = Refuse(PatternKeys);
        let read = owner(true, Claim::Nothing);
        let watch = owner(true, Claim::Watch);
        let bound = Refuse(Bound);
        let whole = Everywhere::All { keeps_place: true };
        let table = [
            (
                plain(id::WATCH, ONE),
                [
                    watch,
                    Present,
                    owner(false, Claim::Watch),
                    watch,
                    watch,
                    watch,
                ],
            ),
            (
                with(Arguments::Pattern, plain(id::SORT, ONE)),
                [pattern, pattern, pattern, read, read, pattern],
            ),
            (
                plain(id::CONFIG_GET, NONE),
                [
                    FirstUp,
                    Present,
                    Present,
                    Route::AsPlainServer,
                    FirstUp,
                    Route::AsPlainServer,
                ],
            ),
            (
                plain(id::ROLE, NONE),
                [
                    Refuse(Several),
                    Refuse(Several),
                    Refuse(Several),
                    Refuse(Several),
                    Route::RoleOfNode,
                    Refuse(Several),
                ],
            ),
            (
                plain(id::CLUSTERSCAN, NONE),
                [
                    FirstUp,
                    Present,
                    Present,
                    Refuse(NoCluster),
                    FirstUp,
                    Refuse(NoCluster),
                ],
            ),
            (
                Facts {
                    arity_ok: false,
                    ..plain(id::CLUSTER_INFO, NONE)
                },
                [
                    FirstUp,
                    Present,
                    Present,
                    Refuse(WrongArity),
                    AS_NODE,
                    Refuse(WrongArity),
                ],
            ),
            (
                plain(id::SWAPDB, NONE),
                [
                    Everywhere::All { keeps_place: false }.into(),
                    bound,
                    bound,
                    Route::from(whole),
                    Route::from(whole),
                    Refuse(OneDatabase),
                ],
            ),
        ];
        for (facts, expected) in table {
            let (name, arguments) = (facts.command.get().name, facts.arguments);
            assert_eq!(routes(facts), expected, "{name} {arguments:?}");
        }
    }

    /// Rows that the router knows by name and sends to every server, in each situation.
    #[test]
    fn named_commands_for_every_server_have_routes_of_their_own() {
        let with = |arguments, facts| Facts { arguments, ..facts };
        let whole = Everywhere::All { keeps_place: true };
        let table = [
            (plain(id::FLUSHALL, NONE), routes_to_all(whole, whole)),
            (
                plain(id::INFO, NONE),
                routes_to_all(Everywhere::Info, Everywhere::Info),
            ),
            (
                with(Arguments::OwnSection, plain(id::INFO, NONE)),
                [Route::Present; 6],
            ),
            (
                plain(id::WAIT, NONE),
                routes_to_all(Everywhere::WaitCommand, Everywhere::WaitCommand),
            ),
            (
                Facts {
                    arity_ok: false,
                    ..plain(id::WAIT, NONE)
                },
                routes_to_all(Everywhere::Mistake, Everywhere::Mistake),
            ),
            (
                Facts {
                    arity_ok: false,
                    ..plain(id::SCAN, NONE)
                },
                routes_to_all(Everywhere::Mistake, Everywhere::Mistake),
            ),
        ];
        for (facts, expected) in table {
            let (name, arguments) = (facts.command.get().name, facts.arguments);
            assert_eq!(routes(facts), expected, "{name} {arguments:?}");
        }
    }

    /// Options of a connection, in each situation.
    #[test]
    fn options_have_routes_of_their_own() {
        use Route::Present;
        let option = |command, arguments| Facts {
            arguments,
            ..plain(command, NONE)
        };
        let bound = Route::Refuse(RouteError::Bound);
        let table = [
            (
                option(id::CLIENT_TRACKING, Arguments::On),
                [TRACK, bound, TRACK, TRACK, TRACK, TRACK],
            ),
            (option(id::CLIENT_TRACKING, Arguments::Off), [Present; 6]),
            (
                option(id::CLIENT_TRACKING, Arguments::NoSwitch),
                [Present; 6],
            ),
            (
                option(id::CLIENT_NO_TOUCH, Arguments::On),
                [SWITCH, bound, SWITCH, SWITCH, SWITCH, SWITCH],
            ),
            (option(id::CLIENT_NO_TOUCH, Arguments::Off), [Present; 6]),
        ];
        for (facts, expected) in table {
            let (name, arguments) = (facts.command.get().name, facts.arguments);
            assert_eq!(routes(facts), expected, "{name} {arguments:?}");
        }
    }

    /// All rows of a spread have the same routes, except those that the router knows by name.
    #[test]
    fn rows_of_one_spread_have_the_same_routes() {
        // `keeps_place` depends on other columns of the row.
        let shape = |route| match route {
            Route::Component(ComponentRoute::Everywhere(Everywhere::All { .. })) => {
                Everywhere::All { keeps_place: false }.into()
            }
            route => route,
        };
        let named = [
            id::WATCH,
            id::CONFIG_GET,
            id::ROLE,
            id::CLUSTERSCAN,
            id::SWAPDB,
            id::INFO,
            id::WAIT,
            id::WAITAOF,
        ];
        let model = |spread| match spread {
            Spread::Owner => id::GET,
            Spread::Owners => id::MGET,
            Spread::Any => id::PING,
            Spread::Default => id::PUBLISH,
            Spread::Channels => id::PUBSUB_SHARDCHANNELS,
            Spread::All => id::DBSIZE,
            Spread::Sequence => id::SCAN,
            Spread::Node => id::ASKING,
            Spread::Local => id::SELECT,
            Spread::Off => id::CLIENT_TRACKING,
            Spread::Refused => id::MONITOR,
        };
        let has_own = |id: &CommandId| {
            let is_option = id.get().fan_out.spread == Spread::Off;
            is_option || named.contains(id) || id.get().name.starts_with("cluster|")
        };
        for command in commands::all().filter(|id| !has_own(id)) {
            let model = model(command.get().fan_out.spread);
            for keys in [NONE, ONE, SEVERAL] {
                let routes = |id| routes(plain(id, keys)).map(shape);
                let name = command.get().name;
                assert_eq!(routes(command), routes(model), "{name} {keys:?}");
            }
        }
    }

    #[test]
    fn pool_of_one_owner_asks_for_no_keys() {
        let to_one = |command| {
            let mut facts = plain(command, NONE);
            facts.pool.has_several = false;
            facts.pool.has_readers = true;
            facts
        };
        let read = Route::OnlyOwner { may_read: true };
        assert_eq!(to_one(id::GET).route(), read);
        assert_eq!(to_one(id::DBSIZE).route(), read);
        let queued = queued(to_one(id::GET)).route();
        assert_eq!(queued, Route::OnlyOwner { may_read: false });
        assert_eq!(watching(to_one(id::GET)).route(), Route::Present);
        assert_eq!(to_one(id::READONLY).route(), Route::ChooseReading);
        assert_eq!(to_one(id::SELECT).route(), Route::Present);
    }

    #[test]
    fn bound_session_stays_at_its_server() {
        let mut facts = watching(plain(id::GET, ONE));
        facts.may_switch = false;
        assert_eq!(facts.route(), Route::Refuse(RouteError::ForeignOwner));
        // At the first server it may publish, and in a Cluster at any node.
        let mut facts = watching(plain(id::PUBLISH, NONE));
        facts.session.is_at_default_server = true;
        assert_eq!(facts.route(), Route::DefaultServer { claims: false });
        let mut facts = watching(to_cluster(plain(id::PUBLISH, NONE)));
        assert_eq!(facts.route(), Route::Present);
        facts.session.is_in_first_subpool = false;
        assert_eq!(facts.route(), Route::Refuse(RouteError::ForeignOwner));
        // The node that executes the transaction would report itself.
        let facts = queued(to_node(plain(id::CLUSTER_INFO, NONE)));
        assert_eq!(facts.route(), Route::Refuse(RouteError::Bound));
    }

    #[test]
    fn requests_for_all_servers_wait_for_facts_and_their_place() {
        let mut unknown = to_cluster(plain(id::DBSIZE, NONE));
        unknown.pool.knows_all = false;
        assert_eq!(unknown.route(), Route::FindOwners);
        let mut option = to_cluster(plain(id::CLIENT_TRACKING, NONE));
        option.pool.knows_all = false;
        option.arguments = Arguments::OnForAll;
        assert_eq!(option.route(), Route::FindOwners);
        option.arguments = Arguments::On;
        assert_eq!(option.route(), TRACK);
        let mut busy = to_cluster(plain(id::DBSIZE, NONE));
        busy.session.is_caught_up = false;
        assert_eq!(busy.route(), Route::CatchUp);
        busy.pool.refuses_for_now = false;
        let all = Everywhere::All { keeps_place: false };
        assert_eq!(busy.route(), Route::from(all));
    }

    /// A session with a link of its own to each server.
    #[test]
    fn spread_session_switches_options_at_all_servers() {
        let tracking = |command, arguments| {
            let mut facts = plain(command, NONE);
            facts.arguments = arguments;
            facts.session.has_spread = true;
            facts.session.is_pinned = true;
            facts.session.tracks = true;
            facts.session.is_on = arguments == Arguments::Off;
            facts
        };
        let off = tracking(id::CLIENT_TRACKING, Arguments::Off);
        assert_eq!(off.route(), Route::from(ComponentRoute::StopTracking));
        assert_eq!(queued(off).route(), Route::Refuse(RouteError::Bound));
        let off = tracking(id::CLIENT_NO_TOUCH, Arguments::Off);
        assert_eq!(off.route(), Route::from(ComponentRoute::StopSwitch));
        assert_eq!(queued(off).route(), Route::Refuse(RouteError::Bound));
        let caching = tracking(id::CLIENT_CACHING, Arguments::Usual);
        assert_eq!(caching.route(), Route::from(ComponentRoute::CacheNext));
        assert_eq!(queued(caching).route(), Route::Present);
        let mut ping = tracking(id::PING, Arguments::Usual);
        assert_eq!(ping.route(), Route::FirstUp);
        ping.session.tracks_here = true;
        assert_eq!(ping.route(), Route::Present);
    }
}
