//! The path of a request: from a session to a link, into a batch, and its reply back.

pub(crate) mod accept;
pub(crate) mod actions;
pub(crate) mod answers;
pub(crate) mod awaited_nodes;
pub(crate) mod bounds_met;
pub(crate) mod burst;
mod by_key;
pub(crate) mod charges;
pub(crate) mod client_settings;
pub(crate) mod coalesce;
pub(crate) mod completion;
pub(crate) mod composite;
pub(crate) mod cork;
pub(crate) mod database_change;
pub(crate) mod deadlines;
pub(crate) mod dedup;
pub(crate) mod dispatch;
pub(crate) mod egress;
pub(crate) mod failure;
pub(crate) mod flush_rule;
pub(crate) mod gate;
pub(crate) mod guess_delay;
pub(crate) mod handshake;
pub(crate) mod health;
pub(crate) mod hello;
pub(crate) mod hot_keys;
pub(crate) mod ingress;
pub(crate) mod key_prefix;
pub(crate) mod latency;
pub(crate) mod learned_commands;
pub(crate) mod ledger;
pub(crate) mod link;
pub(crate) mod link_deadlines;
pub(crate) mod link_index;
pub(crate) mod link_limit;
pub(crate) mod link_loss;
mod link_report;
pub(crate) mod link_up;
pub(crate) mod links_alone;
pub(crate) mod login_state;
pub(crate) mod logins;
pub(crate) mod memory;
pub(crate) mod new_settings;
pub(crate) mod open_transaction;
pub(crate) mod outage;
pub(crate) mod own_options;
pub(crate) mod owners;
pub(crate) mod pause;
pub(crate) mod pins;
pub(crate) mod polled;
pub(crate) mod pool_ends;
pub(crate) mod quick_code;
pub(crate) mod reachability;
pub(crate) mod reconnects;
pub(crate) mod relief;
pub(crate) mod reorder;
pub(crate) mod replica_reads;
pub(crate) mod reply_elements;
pub(crate) mod reply_limit;
pub(crate) mod request_errors;
mod reset;
pub(crate) mod resume;
pub(crate) mod scattered;
pub(crate) mod scripts;
pub(crate) mod sent_request;
pub(crate) mod server;
pub(crate) mod session;
pub(crate) mod session_state;
pub(crate) mod slow_arguments;
pub(crate) mod slow_log;
pub(crate) mod slow_readers;
pub(crate) mod succession;
pub(crate) mod switch;
pub(crate) mod takeover;
#[cfg(test)]
pub(crate) mod test_plane;
pub(crate) mod tracking;
pub(crate) mod turn_lists;
pub(crate) mod unblock;
pub(crate) mod unfinished;
mod unsent;
pub(crate) mod untaken;
pub(crate) mod waiters;
pub(crate) mod withdraw;
pub(crate) mod worker_query;
pub(crate) mod worker_report;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use respool_protocol::commands::{self, Coalesce, Retry};
use respool_protocol::encode::Version;
use respool_protocol::request::RequestScanner;

use crate::base::arrivals::ArrivalSlot;
use crate::base::buffer::{SpareBuffers, shrink};
use crate::base::counters::{Counters, DriverCounts};
use crate::base::error::{Cause, Fate};
use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::base::session_map::SessionMap;
use crate::base::settings::Settings;
use crate::base::slab::Slab;
use crate::base::time::{Stamp, Time};
use crate::data_plane::actions::{Action, CloseReason, Event, WorkerId};
use crate::data_plane::awaited_nodes::AwaitedNodes;
use crate::data_plane::bounds_met::Bounds;
use crate::data_plane::coalesce::{Coalescing, RepeatedRequests};
use crate::data_plane::deadlines::WaitingSince;
use crate::data_plane::flush_rule::WorkerLoad;
use crate::data_plane::handshake::Identity;
use crate::data_plane::hot_keys::HotKeys;
use crate::data_plane::ingress::{ShapeCache, may_wait};
use crate::data_plane::latency::LatencyTable;
use crate::data_plane::learned_commands::LearnedCommands;
use crate::data_plane::ledger::{Class, Entry};
use crate::data_plane::link::{
    ConnectAttempt, Decision, FlushReason, Link, LinkKind, LinkRole, LinkState,
};
use crate::data_plane::link_index::LinkIndex;
use crate::data_plane::logins::Logins;
use crate::data_plane::memory::Memory;
use crate::data_plane::own_options::CoalescingSwitches;
use crate::data_plane::pause::Pause;
use crate::data_plane::polled::PolledCommands;
use crate::data_plane::pool_ends::EndingPool;
use crate::data_plane::quick_code::{QuickCode, may_hold_up};
use crate::data_plane::reachability::TAKEN_OVER_MS;
use crate::data_plane::scattered::ScatteredRequests;
use crate::data_plane::server::Server;
use crate::data_plane::session::{Flags, Session};
use crate::data_plane::session_state::Holds;
use crate::data_plane::slow_log::SlowLog;
use crate::data_plane::slow_readers::{DEFAULT_LANE, SlowReaders};
use crate::data_plane::tracking::Trackers;
use crate::data_plane::turn_lists::{Cleanup, TurnLists};
use crate::data_plane::unsent::TakenBytes;
use crate::data_plane::untaken::UnreadOutput;
use crate::data_plane::waiters::LinkWaiters;
use crate::routing::pool::{Pool, Pools, ServerId};
use crate::settings::ServerDownError;

/// The buffer for waiting bytes of a session doubles up to this size. Beyond it, the buffer grows
/// by the bytes that come.
const HELD_BYTES_DOUBLED: usize = 16 << 10;

/// The sessions and links of a worker, the tables that route between them, and the lists of a turn.
///
/// ```text
///   session bytes ─► ingress ─► routing ─► link: batch ─► flush ─► server
///   session output ◄─ reorder ◄─ egress ◄─ link: ledger ◄───────── server
/// ```
///
/// A plain GET stays in here. The components above decide all other requests.
pub(crate) struct DataPlane {
    // Configuration and time.
    /// The settings of the process.
    pub(crate) settings: Arc<Settings>,
    /// The identity of this engine's worker.
    pub(crate) worker: WorkerId,
    /// The time at which the turn began.
    pub(crate) now: Time,
    /// `now` as ledger entries hold it.
    pub(crate) now_stamp: Stamp,
    /// The time when the requests that are being dispatched were read. It is before `now_stamp`
    /// while waiting requests are dispatched.
    pub(crate) read_at: Stamp,
    /// The state of the random numbers.
    pub(crate) random: u64,

    // Routing.
    /// The pools and subpools, with the owners of their slots.
    pub(crate) pools: Pools,
    /// The servers of all pools, by [`ServerId`].
    pub(crate) servers: Vec<Server>,
    /// Pools that reloads have ended and that still have sessions or links.
    pub(crate) ending: Vec<EndingPool>,
    /// The place in the table of sessions at which the walk over the sessions of ended pools goes
    /// on. `None`: no walk is under way.
    pub(crate) leaving_from: Option<usize>,
    /// Whether sessions may send no new requests: see [`crate::Engine::handle_drain`].
    pub(crate) draining: bool,
    /// The logins of links and sessions other than the configured one.
    pub(crate) logins: Logins,
    /// Sessions that wait for the first topology of a Cluster, by pool.
    pub(crate) awaited_nodes: HashMap<usize, AwaitedNodes>,
    /// The last line in the log about the owners of each pool.
    pub(crate) reported_topology: HashMap<usize, String>,

    // Sessions and links.
    /// All sessions that are open.
    pub(crate) sessions: Slab<SessionId, Session>,
    /// All links, connected or not.
    pub(crate) links: Slab<LinkId, Link>,
    /// The links by their purpose.
    pub(crate) link_index: LinkIndex,
    /// Sessions that wait for a link, because a bound has no room for it.
    pub(crate) link_waiters: LinkWaiters,
    /// The time when each bound was reported last.
    pub(crate) bounds: Bounds,
    /// The lists that a turn fills and empties.
    pub(crate) turn: TurnLists,
    /// The id of the next session, which CLIENT ID shows.
    next_session: u64,

    // Requests: their classes and shapes.
    /// The class of each command that goes to a server without further checks.
    pub(crate) direct_classes: Box<[Option<Class>]>,
    /// The shape of the last requests on the hot path.
    pub(crate) shape_cache: ShapeCache,
    /// The commands that the table lacks and servers have.
    pub(crate) learned_commands: LearnedCommands,
    /// Scripts and functions behind which no link was stuck of late.
    pub(crate) quick_code: QuickCode,

    // Batches.
    /// The coalescing switches of each listener. Those of listeners behind the end are all on.
    pub(crate) coalescing_switches: Vec<CoalescingSwitches>,
    /// The load of the worker, for the flush rule.
    pub(crate) worker_load: WorkerLoad,
    /// The number of the batch that leaves next.
    pub(crate) batch: u32,
    /// Buffers in which a batch is put into order.
    pub(crate) coalescing: Coalescing,
    /// Requests that are sent a second time, by session, until their replies have come.
    pub(crate) repeated_requests: HashMap<SessionId, Vec<RepeatedRequests>>,

    // Buffers.
    /// Buffers that no session uses.
    pub(crate) spare_buffers: SpareBuffers,
    /// Scanners that no session uses.
    #[expect(
        clippy::vec_box,
        reason = "a scanner moves between this list and sessions as one word"
    )]
    pub(crate) scanners: Vec<Box<RequestScanner>>,
    /// The buffer for a reply of our own, until the reply has its place.
    pub(crate) scratch: Vec<u8>,

    // Sessions that wait, and requests that are not simple.
    /// The times when requests that wait were read.
    pub(crate) deadlines: WaitingSince,
    /// Sessions that get large replies, or take replies slowly.
    pub(crate) slow_readers: SlowReaders,
    /// Sessions that are not read, because they do not take their output.
    pub(crate) unread_output: UnreadOutput,
    /// CLIENT PAUSE: the pauses that hold requests back.
    pub(crate) pauses: Vec<Pause>,
    /// Sessions that wait for the end of a pause.
    pub(crate) paused: Vec<SessionId>,
    /// Requests with shares at several servers that have not all their parts yet.
    pub(crate) scattered: SessionMap<ScatteredRequests>,
    /// Sessions that track at several servers.
    pub(crate) trackers: Trackers,
    /// Blocking commands that are polled.
    pub(crate) polling: PolledCommands,
    /// The number of events for which a deferred request may wait: a server can be reached, or a
    /// slot has another owner.
    pub(crate) retry_wakes: u32,

    // Memory and counters.
    /// Bytes that are held for sessions.
    pub(crate) held_bytes: usize,
    /// The memory that sessions use.
    pub(crate) memory: Memory,
    /// The counters of this worker, without those that components count.
    pub(crate) counters: Counters,
    /// The counts of the driver, from its last report.
    pub(crate) driver: DriverCounts,
    /// The times of requests by command.
    pub(crate) latency: LatencyTable,
    /// The last requests that took long.
    pub(crate) slow_log: SlowLog,
    /// The keys that are asked for most.
    pub(crate) hot_keys: HotKeys,
}

impl DataPlane {
    pub(crate) fn new(settings: Arc<Settings>, worker: WorkerId, now: Time) -> DataPlane {
        let WorkerId { index, seed, .. } = worker;
        let (pools, servers) = Pools::build(&settings.pools, &settings.flush);
        let mut plane = DataPlane {
            pools,
            servers: servers.into_iter().map(Server::from).collect(),
            ending: Vec::new(),
            leaving_from: None,
            draining: false,
            worker,
            turn: TurnLists::default(),
            now,
            now_stamp: now.stamp(),
            read_at: now.stamp(),
            deadlines: WaitingSince::default(),
            sessions: Slab::new(),
            links: Slab::new(),
            link_index: LinkIndex::default(),
            link_waiters: LinkWaiters::default(),
            trackers: Trackers::default(),
            bounds: Bounds::default(),
            slow_readers: SlowReaders::default(),
            direct_classes: direct_classes(&settings),
            shape_cache: ShapeCache::default(),
            learned_commands: LearnedCommands::default(),
            coalescing_switches: Vec::new(),
            logins: Logins::default(),
            worker_load: WorkerLoad::default(),
            batch: 0,
            coalescing: Coalescing::default(),
            spare_buffers: SpareBuffers::default(),
            scanners: Vec::new(),
            scratch: Vec::new(),
            repeated_requests: HashMap::new(),
            unread_output: UnreadOutput::default(),
            scattered: SessionMap::default(),
            awaited_nodes: HashMap::new(),
            polling: PolledCommands::default(),
            quick_code: QuickCode::default(),
            reported_topology: HashMap::new(),
            pauses: Vec::new(),
            paused: Vec::new(),
            retry_wakes: 0,
            held_bytes: 0,
            memory: Memory::new(settings.limits.worker_memory_bytes_max),
            counters: Counters::default(),
            driver: DriverCounts::default(),
            latency: LatencyTable::default(),
            slow_log: SlowLog::default(),
            hot_keys: HotKeys::new(seed),
            random: seed | 1,
            next_session: index as u64 + 1,
            settings,
        };
        plane.apply_slow_log();
        plane.apply_hot_keys();
        plane
    }
}

impl DataPlane {
    /// Begins to connect the first link to each configured server.
    pub(crate) fn connect_servers(&mut self) {
        for index in 0..self.servers.len() {
            self.connect_server(ServerId(index as u16));
        }
    }

    /// Begins to connect the first link to a server.
    pub(crate) fn connect_server(&mut self, server: ServerId) {
        let kind = self.default_kind(server);
        if let Some(link) = self.shared_link(kind) {
            self.connect(link);
        }
    }

    /// The next random number, by xorshift64*. Jitter needs no better one.
    pub(crate) fn random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    /// Starts a turn. Time never runs back.
    pub(crate) fn begin_turn(&mut self, now: Time) {
        debug_assert!(now >= self.now, "time runs back");
        self.now = now;
        self.now_stamp = now.stamp();
        self.read_at = self.now_stamp;
        self.memory.begin_turn(self.held_bytes);
    }
}

fn class(id: commands::CommandId) -> Class {
    match (id.get().coalesce, id.get().retry) {
        (Coalesce::Get, _) => Class::Get,
        (Coalesce::Set, _) => Class::Set,
        (Coalesce::Collapse, _) => Class::Pure,
        (_, retry) => Class::of(retry == Retry::Read),
    }
}

/// The class of each command that may go to a server without further checks. A command has none if
/// the configuration refuses it, or if it may hold up its connection.
fn direct_classes(settings: &Settings) -> Box<[Option<Class>]> {
    commands::all()
        .map(|id| {
            let is_direct =
                id.get().goes_straight() && !may_hold_up(id) && !settings.refused.contains(&id);
            is_direct.then(|| class(id))
        })
        .collect()
}

/// Servers and pools.
impl DataPlane {
    pub(crate) fn server(&self, id: ServerId) -> &Server {
        &self.servers[id.0 as usize]
    }

    /// The pool of a server, or the subpool if the pool has several.
    pub(crate) fn pool_of(&self, server: ServerId) -> &Pool {
        &self.pools[usize::from(self.server(server).pool)]
    }

    /// The time at which the next turn must be taken without an event, as far as the data plane
    /// knows.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let walks = self.leaving_from.is_some();
        if walks || !self.turn.resume.is_empty() || !self.turn.untried.is_empty() {
            return Some(self.now);
        }
        let pause_ends = self.pauses.iter().map(|pause| pause.until).min();
        let kept_until = self.turn.corked.front().map(|(until, _)| *until);
        let all = [self.turn.flush_at, kept_until, pause_ends];
        all.into_iter().flatten().min()
    }

    /// Whether sessions of a server's pool have to switch to it.
    pub(crate) fn is_routed_to(&self, server: ServerId) -> bool {
        let parent = self.pool_of(server).parent;
        self.pools[usize::from(parent)].is_routed()
    }

    /// The configured name of a server's pool.
    pub(crate) fn pool_name(&self, server: ServerId) -> &str {
        let parent = self.pool_of(server).parent;
        let pool = self.settings.pools.get(usize::from(parent));
        pool.map_or("", |pool| pool.name.as_str())
    }

    /// The version and kind of a server, if a link knows them.
    pub(crate) fn identity(&self, server: ServerId) -> Option<&Identity> {
        let is_to_server = |link: &&Link| link.kind.server == server;
        self.links
            .iter()
            .map(|(_, link)| link)
            .filter(is_to_server)
            .find_map(|link| link.identity.as_ref())
    }

    /// Whether a node owns no slots, as far as respool knows.
    pub(crate) fn owns_nothing(&self, server: ServerId) -> bool {
        let pool = &self.pools[usize::from(self.server(server).pool)];
        let cluster = pool.cluster();
        self.server(server).replica_of.is_none()
            && cluster.is_some_and(|cluster| !cluster.servers().contains(&server))
    }

    /// Whether sessions must authenticate if this server refuses the configured login. A replica
    /// does not decide that: its users may differ.
    pub(crate) fn decides_login(&self, server: ServerId) -> bool {
        let state = self.server(server);
        !state.gone && state.replica_of.is_none() && !self.owns_nothing(server)
    }

    /// Whether a server of a pool has withdrawn the configured login.
    pub(crate) fn is_login_withdrawn(&self, pool: usize) -> bool {
        let withdrawn = |(index, server): (usize, &Server)| {
            server.trust.is_withdrawn()
                && usize::from(self.pools[usize::from(server.pool)].parent) == pool
                && self.decides_login(ServerId(index as u16))
        };
        self.servers.iter().enumerate().any(withdrawn)
    }

    /// Whether the configured login is checked: checks are on, and respool has no users of its own.
    pub(crate) fn checks_logins(&self) -> bool {
        self.settings.timeouts.login_check_ms > 0 && self.settings.users.is_empty()
    }

    /// Whether new sessions must authenticate because this server has withdrawn the configured
    /// login, and no new password is sought. Without a login in the configuration clients bring
    /// their own, so the server refuses none of them.
    pub(crate) fn refuses_newcomers(&self, server: ServerId) -> bool {
        let state = self.server(server);
        state.trust.is_withdrawn_for_long(self.now)
            && state.settings.credentials.is_some()
            && self.checks_logins()
            && self.decides_login(server)
    }

    /// Whether all servers of a pool are known.
    pub(crate) fn knows_all(&self, pool: usize) -> bool {
        self.unknown_subpool(pool).is_none()
    }

    /// The first subpool of a pool that is a Cluster of which no node has reported slots.
    pub(crate) fn unknown_subpool(&self, pool: usize) -> Option<usize> {
        let subpools = self.pools.subpools_of(pool).iter();
        let cluster = |subpool: usize| self.pools[subpool].cluster();
        let mut subpools = subpools.map(|subpool| usize::from(*subpool));
        subpools.find(|subpool| cluster(*subpool).is_some_and(|slots| !slots.is_known))
    }

    /// Whether a link's server was lost a moment ago, and discovery looks for the new owner, or
    /// another replica may still answer.
    pub(crate) fn awaits_owners(&self, link: &Link) -> bool {
        let is_fresh = |at| self.now.since_ms(at) < TAKEN_OVER_MS;
        let pool = &self.pools[usize::from(self.server(link.kind.server).pool)];
        let cluster = pool.cluster();
        link.lost_at.is_some_and(is_fresh) && cluster.is_some_and(|slots| slots.is_refreshing)
            || self.awaits_reader(link.kind.server)
    }

    /// Whether a replica of an owner was lost a moment ago, is reconnecting, and has not reported
    /// its state yet. A Sentinel that makes a replica the primary ends its connections.
    pub(crate) fn awaits_reader(&self, owner: ServerId) -> bool {
        let readers = self.pools[usize::from(self.server(owner).pool)]
            .readers
            .as_deref();
        let returns = |link: &Link| {
            let is_fresh = |at| self.now.since_ms(at) < TAKEN_OVER_MS;
            link.lost_at.is_some_and(is_fresh) && !matches!(link.state, LinkState::Backoff { .. })
        };
        let mut unheard = readers
            .into_iter()
            .flat_map(|table| table.unheard_of(owner));
        unheard.any(|replica| self.first_link_is(replica, returns))
    }
}

/// Links.
impl DataPlane {
    /// The kind of link that a session uses.
    pub(crate) fn kind_of(&self, session: &Session) -> LinkKind {
        LinkKind {
            server: session.server,
            version: session.version,
            db: session.db,
            user: if self.settings.users.is_empty() {
                session.user
            } else {
                CONFIGURED
            },
            lane: DEFAULT_LANE,
        }
    }

    /// The kind of link that a new session of a server uses.
    pub(crate) fn default_kind(&self, server: ServerId) -> LinkKind {
        LinkKind {
            server,
            version: Version::Resp2,
            db: self.server(server).settings.db,
            user: CONFIGURED,
            lane: DEFAULT_LANE,
        }
    }

    /// The shared link of a kind. If there is none, adds one that is not connected yet. `None` at
    /// `links_max`.
    pub(crate) fn shared_link(&mut self, kind: LinkKind) -> Option<LinkId> {
        let kind = self.kind_with_room(kind);
        let shared = self.link_index.shared(&kind);
        if shared.is_some() {
            return shared;
        }
        let link = self.add_link(kind, LinkRole::Shared)?;
        self.link_index.shared.insert(kind, link);
        Some(link)
    }

    pub(crate) fn add_link(&mut self, kind: LinkKind, role: LinkRole) -> Option<LinkId> {
        if role.is_bounded_by_links_max() && !self.make_room_for_link() {
            return None;
        }
        Some(self.insert_link(kind, role))
    }

    /// Adds a link without a check of `links_max`.
    pub(crate) fn insert_link(&mut self, kind: LinkKind, role: LinkRole) -> LinkId {
        let pool = self.pool_of(kind.server);
        let mut link = Link::new(kind, role, pool.flush.max_delay_us, self.now);
        link.wait_us = pool.flush.wait_us(self.server(kind.server).load.wait_us());
        link.handles_redirects = role != LinkRole::Probe
            && (pool.cluster().is_some() || pool.watched.is_some() && role != LinkRole::Sentinel);
        self.link_index.count_role(role);
        link.reply_room
            .bound_ledger(self.settings.limits.link_unanswered_requests_max);
        let link = self.links.insert(link);
        self.limit_link(link);
        link
    }

    /// Starts to connect a link that is not connected.
    pub(crate) fn connect(&mut self, link_id: LinkId) {
        if self.wait_for_attempt(link_id) {
            return;
        }
        let paused = self.is_link_paused(link_id);
        let Some(link) = self.links.get_mut(link_id) else {
            return;
        };
        link.state = LinkState::Connecting { since: self.now };
        link.attempted_at = self.now;
        link.attempt = ConnectAttempt::Fair;
        link.admit(link.may_take(), paused);
        let id = link.kind.server;
        let server = &self.servers[usize::from(id.0)];
        if server.unknown {
            // The link connects when a Sentinel has named the server's address.
            return;
        }
        let to = server.settings.address.clone();
        self.servers[usize::from(id.0)].health.end_look_up();
        if !self.may_try(link_id, id) {
            let reason = self.server(id).health.reason.clone();
            if let Some(link) = self.links.get_mut(link_id) {
                link.attempt = ConnectAttempt::Skipped;
                link.reason = reason;
                self.turn.untried.push(link_id);
            }
            return;
        }
        self.turn
            .actions
            .push_back(Action::Connect { link: link_id, to });
    }

    /// Makes a session wait for a link that is not up, and connects the link first. Returns the
    /// error for the session if the server is known to be away, see [`DataPlane::untried_reply`].
    pub(crate) fn wait_until_up(
        &mut self,
        session: SessionId,
        link: LinkId,
    ) -> Result<(), Vec<u8>> {
        let is_unconnected =
            |link: &Link| matches!(link.state, LinkState::Down | LinkState::Backoff { .. });
        if self.links.get(link).is_some_and(is_unconnected) {
            self.connect(link);
        }
        if let Some(reply) = self.untried_reply(link, self.server_down_error(session)) {
            return Err(reply);
        }
        self.wait_at(session, link);
        Ok(())
    }

    /// The error for a request on a link that was not tried, because its server is known to be
    /// away. A wait for the link would end with the turn. Two links that have to make room for each
    /// other would wait for each other for ever.
    pub(crate) fn untried_reply(&self, link: LinkId, away: ServerDownError) -> Option<Vec<u8>> {
        let untried = self.links.get(link).is_some_and(Link::is_untried);
        untried.then(|| self.no_link_reply(link, away))
    }

    /// Closes a link that owes no replies, and removes it.
    pub(crate) fn close_link(&mut self, id: LinkId) {
        self.push_action(Action::CloseLink(id));
        self.remove_link(id);
    }

    /// Removes a link that owes no replies and has no connection.
    pub(crate) fn remove_link(&mut self, id: LinkId) {
        if let Some(link) = self.links.remove(id) {
            self.link_index.forget(id, &link);
            for waiter in link.waiters {
                self.release(waiter, Holds::LINK);
            }
            self.next_streaming();
            if link.role.is_dedicated() {
                self.next_pinned();
            }
        }
    }

    /// Whether the driver has not yet closed the last connection of a link.
    pub(crate) fn is_to_close(&self, link: LinkId) -> bool {
        self.turn.actions.contains(&Action::CloseLink(link))
    }

    pub(crate) fn links_shared_to(
        &self,
        server: ServerId,
    ) -> impl Iterator<Item = (LinkId, &Link)> {
        let kinds = self
            .link_index
            .shared
            .iter()
            .filter(move |(kind, _)| kind.server == server);
        kinds.filter_map(|(_, id)| Some((*id, self.links.get(*id)?)))
    }

    /// The shared link of the first kind to a server.
    pub(crate) fn first_link_to(&self, server: ServerId) -> Option<LinkId> {
        self.link_index.shared(&self.default_kind(server))
    }

    pub(crate) fn first_link_is(&self, server: ServerId, is: impl FnOnce(&Link) -> bool) -> bool {
        let link = self.first_link_to(server);
        link.and_then(|link| self.links.get(link)).is_some_and(is)
    }

    pub(crate) fn label(&self, link: LinkId) -> &str {
        self.links
            .get(link)
            .map_or("", |link| &self.server(link.kind.server).label)
    }

    /// Lists a link that has bytes of a large request to write.
    pub(crate) fn write_link(&mut self, id: LinkId) {
        if self.turn.flushed_links.last() != Some(&id) {
            self.turn.flushed_links.push(id);
        }
    }
}

/// The flush of open batches.
impl DataPlane {
    /// Lists a link that has bytes for the flush rule to decide on.
    pub(crate) fn list_link(&mut self, id: LinkId) {
        if let Some(link) = self.links.get_mut(id)
            && !link.listed
        {
            link.listed = true;
            link.begin_batch(self.now);
            self.turn.open_links.push(id);
        }
    }

    /// Applies the flush rule to every open batch. Without a wait by that rule, a batch leaves at
    /// once.
    pub(crate) fn flush(&mut self) {
        self.turn.flush_at = None;
        let some_listener_aims = self
            .coalescing_switches
            .iter()
            .any(|switches| switches.aim.is_some());
        let mut at = 0;
        while at < self.turn.open_links.len() {
            let id = self.turn.open_links[at];
            let Some(link) = self.links.get_mut(id) else {
                self.turn.open_links.swap_remove(at);
                continue;
            };
            // The batch of a link that is not connected leaves when the link is up.
            if !link.is_up() || !link.ledger.has_open_batch() {
                link.listed = false;
                self.turn.open_links.swap_remove(at);
                continue;
            }
            let mut wait_us = link.wait_us;
            if some_listener_aims {
                // A batch leaves as a whole, after the shortest wait of its sessions.
                let server = &self.servers[usize::from(link.kind.server.0)];
                let rule = &self.pools[usize::from(server.pool)].flush;
                let of_entry = |entry: &Entry| {
                    let session = self.sessions.get(entry.session)?;
                    let aim =
                        CoalescingSwitches::of(&self.coalescing_switches, session.listener).aim;
                    Some(rule.wait_us_for(aim, server.load.wait_us()))
                };
                let all = link.ledger.open_entries().filter_map(of_entry);
                wait_us = all.min().unwrap_or(wait_us);
            }
            let decision = match wait_us {
                0 => Decision::Flush(FlushReason::Idle),
                _ => {
                    let server = &self.servers[usize::from(link.kind.server.0)];
                    let mut in_flight = link.ledger.in_flight();
                    if in_flight > 0 {
                        in_flight = in_flight.saturating_sub(server.load.questions_on(id));
                    }
                    let pool = usize::from(server.pool);
                    let soon = match in_flight {
                        0 => {
                            let whole = usize::from(self.pools[pool].parent);
                            self.pools.expected_soon_by_server(whole, self.now)
                        }
                        _ => None,
                    };
                    let rule = &self.pools[pool].flush;
                    link.decide(rule, wait_us, in_flight, self.now, soon)
                }
            };
            match decision {
                Decision::HoldUntil(due) => {
                    self.turn.flush_at =
                        Some(self.turn.flush_at.map_or(due, |earliest| earliest.min(due)));
                    at += 1;
                }
                Decision::Flush(why) => {
                    let counters = &mut self.counters;
                    counters.batches += 1;
                    counters.batch_requests.note(link.ledger.batched());
                    link.requests += link.ledger.batched() as u64;
                    match why {
                        FlushReason::Idle => counters.flushed_idle += 1,
                        FlushReason::Full => counters.flushed_full += 1,
                        FlushReason::Late => counters.flushed_late += 1,
                    }
                    if self.hot_keys.reaches(link.ledger.batched() as u64) {
                        let server = &self.servers[usize::from(link.kind.server.0)];
                        let pool = self.pools[usize::from(server.pool)].parent;
                        self.hot_keys.take_batch(&link.ledger, (pool, link.kind.db));
                    }
                    let link = if link.ledger.movable() > 1 && link.role.is_multiplexed() {
                        self.coalesce(id);
                        self.links.get_mut(id)
                    } else {
                        Some(link)
                    };
                    if let Some(link) = link {
                        link.flush(self.now);
                        link.listed = false;
                    }
                    self.turn.open_links.swap_remove(at);
                    self.turn.flushed_links.push(id);
                }
            }
        }
    }
}

/// The link of a session.
impl DataPlane {
    /// Moves a session to another link. It must have nothing in flight: a new request could
    /// overtake one on the old link.
    pub(crate) fn attach(&mut self, session_id: SessionId, link: LinkId) {
        let caught_up = |session: &Session| session.is_caught_up();
        debug_assert!(self.sessions.get(session_id).is_none_or(caught_up));
        self.attach_again(session_id, link);
    }

    /// Moves a session to another link after all its unanswered requests have left the old link.
    pub(crate) fn attach_again(&mut self, session_id: SessionId, link: LinkId) {
        let Some(session) = self.sessions.get_mut(session_id) else {
            return;
        };
        let old = std::mem::replace(&mut session.link, link);
        let expected = std::mem::replace(&mut session.expected, ArrivalSlot::NOT);
        session.gap_us = u32::MAX;
        match session.state.any(Flags::ROUTED) {
            true => self.pools[usize::from(session.pool)].on_arrival(expected),
            false => self.on_session_arrival(old, expected),
        }
        self.detach(old);
        if let Some(link) = self.links.get_mut(link) {
            link.attached += 1;
        }
    }

    /// A session that was expected on a link has come, or will not come any more.
    fn on_session_arrival(&mut self, link: LinkId, expected: ArrivalSlot) {
        if let Some(link) = self.links.get_mut(link) {
            link.forecast.on_arrival(expected);
        }
    }

    pub(crate) fn detach(&mut self, link: LinkId) {
        if let Some(link) = self.links.get_mut(link) {
            link.attached -= 1;
            link.unused_since = self.now;
        }
    }
}

/// Reasons to wait.
impl DataPlane {
    /// Gives a session a reason to wait.
    pub(crate) fn hold(&mut self, id: SessionId, reason: Holds) {
        if let Some(session) = self.sessions.get_mut(id) {
            if reason == Holds::OUTPUT && !session.state.holds().any(reason) {
                self.unread_output.note(id);
            }
            session.state.hold(reason);
            self.turn.reading.push(id);
            if reason.any(Holds::BY_CLIENT) {
                self.deadlines.forget(id);
            }
        }
    }

    /// Makes a session wait until this link wakes its waiters.
    pub(crate) fn wait_at(&mut self, session: SessionId, link: LinkId) {
        if let Some(link) = self.links.get_mut(link) {
            link.waiters.push(session);
        }
        self.hold(session, Holds::LINK);
    }

    /// A server has lost slots: sessions with requests in flight there wait for the replies. Their
    /// next request could go to the new owner and overtake.
    pub(crate) fn hold_sessions_at(&mut self, server: ServerId) {
        let mut waiting = HashSet::new();
        for (_, link) in self.links.iter() {
            let spreads = |by| self.tracks_several(by);
            let shared = link.role.is_multiplexed() || spreads(link.role.session());
            if link.kind.server == server && shared {
                waiting.extend(link.ledger.iter().map(|entry| entry.session));
            }
        }
        for session in waiting {
            if self.sessions.get(session).is_some() {
                self.hold_until_caught_up(session);
            }
        }
    }

    /// Makes a session wait until all its requests are answered. Returns whether it has to wait.
    pub(crate) fn hold_until_caught_up(&mut self, id: SessionId) -> bool {
        let has_unanswered = |session: &Session| !session.is_caught_up();
        let holds = self.sessions.get(id).is_some_and(has_unanswered);
        if holds {
            self.hold(id, Holds::CATCH_UP);
        }
        holds
    }

    /// Removes a reason to wait. Without another reason, the session continues.
    pub(crate) fn release(&mut self, id: SessionId, reason: Holds) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.state.release(reason);
        if !session.state.is_held() {
            self.turn.resume.push_once(id, &mut session.resuming);
        }
    }

    /// The next session that continues. If there is none, links give room for replies that woken
    /// sessions did not use to other sessions.
    pub(crate) fn next_to_resume(&mut self) -> Option<SessionId> {
        let next = self.turn.resume.pop();
        if next.is_some() || self.turn.reserved_room.is_empty() {
            return next;
        }
        self.pass_room_on();
        self.turn.resume.pop()
    }

    /// Whether the requests in flight of a session may wait for an event at the server.
    pub(crate) fn waits_at_server(&self, id: SessionId) -> bool {
        let link = self.sessions.get(id).map(|session| session.link);
        link.and_then(|link| self.links.get(link))
            .is_some_and(|link| link.waits || link.tunnel.is_some())
    }

    /// Whether a session waits for a link in order to wait at the server. If its client leaves, no
    /// client should get the result.
    pub(crate) fn is_to_wait(&self, id: SessionId) -> bool {
        self.sessions.get(id).is_some_and(|session| {
            let is_held = session.state.holds().any(Holds::ROOM);
            is_held && session.last_command.is_some_and(may_wait)
                || self.polling.holds(id)
                || session.defers_wait()
        })
    }

    /// Takes the bytes that a session holds. [`DataPlane::keep_held`] has to follow.
    #[inline]
    pub(crate) fn take_held(&mut self, id: SessionId) -> Option<TakenBytes> {
        let session = self.sessions.get_mut(id)?;
        let bytes = std::mem::take(&mut session.held);
        if session.is_caught_up() {
            self.note_return(id);
        }
        let counted_before = self.counters.requests;
        Some(TakenBytes {
            bytes,
            counted_before,
        })
    }

    /// Holds the bytes of a session again that are left behind the first `used` ones.
    #[inline]
    pub(crate) fn keep_held(&mut self, id: SessionId, held: TakenBytes, used: usize) {
        self.uncount_read_again(id, held.counted_before);
        let mut held = held.bytes;
        self.held_bytes -= held.len();
        match self.sessions.get_mut(id) {
            Some(session) if used < held.len() && !session.state.is_closing() => {
                held.drain(..used);
                shrink(&mut held);
                self.held_bytes += held.len();
                let (len, is_held) = (held.len(), session.state.is_held());
                session.held = held;
                if used > 0 {
                    self.memory.restart(id);
                }
                if is_held {
                    self.note_held_bytes(id, self.now_stamp, len);
                }
            }
            _ => self.spare_buffers.give(held),
        }
        self.weigh(id);
    }

    /// Holds bytes of a session that cannot be taken now.
    pub(crate) fn hold_back(&mut self, id: SessionId, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if session.state.is_closing() {
            return;
        }
        if session.held.capacity() == 0 {
            session.held = self.spare_buffers.take();
        }
        if session.held.len() + bytes.len() > HELD_BYTES_DOUBLED {
            session.held.reserve_exact(bytes.len());
        }
        session.held.extend_from_slice(bytes);
        self.held_bytes += bytes.len();
        if session.state.is_held() {
            let len = session.held.len();
            self.turn.reading.push(id);
            self.note_held_bytes(id, self.now_stamp, len);
        }
        self.weigh(id);
    }
}

/// Sessions.
impl DataPlane {
    pub(crate) fn is_routed(&self, id: SessionId) -> bool {
        let session = self.sessions.get(id);
        session.is_some_and(|session| session.state.any(Flags::ROUTED))
    }

    pub(crate) fn is_restricted(&self, id: SessionId) -> bool {
        let restricted = |session: &Session| session.state.any(Flags::RESTRICTED);
        self.sessions.get(id).is_some_and(restricted)
    }

    /// A session, open or closed in this turn. The components have not released a closed one yet.
    pub(crate) fn session_or_closed(&mut self, id: SessionId) -> Option<&mut Session> {
        if let Some(session) = self.sessions.get_mut(id) {
            return Some(session);
        }
        self.turn
            .cleanups
            .iter_mut()
            .find_map(|release| match release {
                Cleanup::Closed(closed, session) if *closed == id => Some(&mut **session),
                _ => None,
            })
    }

    pub(crate) fn reading_changed(&mut self, id: SessionId) {
        self.turn.reading.push(id);
    }

    /// Tells the driver which sessions to read, once per turn: most reasons to wait come and go
    /// within a turn.
    pub(crate) fn switch_reading(&mut self) {
        while let Some(id) = self.turn.reading.pop() {
            let Some(session) = self.sessions.get_mut(id) else {
                continue;
            };
            let read = session.wants_reading(&self.settings.limits, self.now);
            if read == session.is_unread {
                session.is_unread = !read;
                self.turn.actions.push_back(Action::ReadSession(id, read));
            }
        }
    }

    /// Lists a session that has output to write.
    pub(crate) fn mark_dirty(dirty: &mut Vec<SessionId>, id: SessionId, session: &mut Session) {
        if session.listed.enter() {
            dirty.push(id);
        }
    }

    /// Takes no more requests from a session. It closes after it has its remaining replies.
    pub(crate) fn close_when_answered(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.state.close();
            self.held_bytes -= session.held.len();
            session.held = Vec::new();
            self.turn.reading.push(id);
            // If no reply is due, no write will close the session.
            self.turn.resume.push(id);
        }
    }

    pub(crate) fn finish_if_done(&mut self, id: SessionId) {
        let session = self.sessions.get_mut(id);
        if let Some(session) = session.filter(|session| session.is_finished()) {
            let reason = session.rare.as_mut();
            let reason = reason.and_then(|rare| rare.close_reason.take());
            self.close_as(id, true, reason);
        }
    }

    /// Closes a session because it broke a rule or a bound.
    pub(crate) fn close_for(&mut self, id: SessionId, reason: String) {
        self.close_told(id, false, reason);
    }

    /// Closes a session, and tells its client's side and the operator why. `after_output`: each of
    /// its requests has its reply.
    pub(crate) fn close_told(&mut self, id: SessionId, after_output: bool, reason: String) {
        let rule = CloseReason::Rule(reason.as_str().into());
        self.report_close(id, reason);
        self.close_as(id, after_output, Some(rule));
    }

    /// Closes a session whose request waits at a lost server. The log has the loss of the link.
    pub(crate) fn close_at_loss(&mut self, id: SessionId, fate: Fate, cause: Cause<'_>) {
        // Output that has not left goes with the session, and with it replies to other requests.
        let is_untold = |session: &Session| !session.out.is_empty();
        let fate = match self.sessions.get(id).is_some_and(is_untold) {
            true => Fate::Unknown,
            false => fate,
        };
        self.close_as(id, false, Some(CloseReason::server_lost(fate, cause)));
    }

    /// Notes the loss for which a session closes once it has its replies. Its last requests get
    /// none.
    pub(crate) fn note_close_reason(&mut self, id: SessionId, fate: Fate, cause: Cause<'_>) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.rare().close_reason = Some(CloseReason::server_lost(fate, cause));
        }
    }

    /// Reports that a session is closed because it broke a rule or a bound.
    pub(crate) fn report_close(&mut self, id: SessionId, reason: String) {
        if let Some(session) = self.sessions.get(id) {
            let peer = session.peer.to_string();
            self.counters.sessions_closed_by_us += 1;
            self.turn
                .events
                .push_back(Event::SessionClosed { peer, reason });
        }
    }

    /// Removes a session. Its late replies are dropped when they come. The engine releases the rest
    /// of its state later in the turn.
    pub(crate) fn close(&mut self, id: SessionId) {
        self.close_as(id, false, None);
    }

    fn close_as(&mut self, id: SessionId, after_output: bool, reason: Option<CloseReason>) {
        let Some(mut session) = self.sessions.remove(id) else {
            return;
        };
        self.repeated_requests.remove(&id);
        self.memory.forget(id);
        self.slow_readers.forget(session.id);
        self.held_bytes -= session.held_bytes();
        session.out.take(session.out.len(), &mut self.spare_buffers);
        match session.state.any(Flags::ROUTED) {
            true => self.pools[usize::from(session.pool)].on_arrival(session.expected),
            false => self.on_session_arrival(session.link, session.expected),
        }
        self.detach(session.link);
        if let Some(link) = self.links.get_mut(session.link)
            && link.role == (LinkRole::Pinned { by: id })
        {
            // The server's side of the connection has state of this session.
            link.tainted = true;
        }
        if let Some(mut scanner) = session.partial.take() {
            // The scanner is in the middle of a request of this session.
            scanner.reset();
            self.scanners.push(scanner);
        }
        self.read_links_again(id);
        self.turn.actions.push_back(Action::CloseSession {
            session: id,
            after_output,
            reason,
        });
        let cleanup = Cleanup::Closed(id, Box::new(session));
        self.turn.cleanups.push_back(cleanup);
    }
}

/// Actions and events.
impl DataPlane {
    /// Notes an event for which deferred requests may wait.
    pub(crate) fn wake_deferred(&mut self) {
        self.retry_wakes = self.retry_wakes.wrapping_add(1);
    }

    pub(crate) fn push_action(&mut self, action: Action) {
        self.turn.actions.push_back(action);
    }

    pub(crate) fn emit(&mut self, event: Event) {
        self.turn.events.push_back(event);
    }
}
