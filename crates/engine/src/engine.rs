//! The engine of one worker: its actions and events, and the order of a turn.
//!
//! The caller owns sockets and clock. In every turn it calls, in this order:
//! 1. [`Engine::begin_turn`] with the time, which never runs back, and [`Engine::begin_tick`] if
//!    [`Engine::is_tick_due`];
//! 2. `handle_*` for each event of the turn;
//! 3. [`Engine::end_turn`], which decides which batches leave;
//! 4. [`Engine::poll_link`] and [`Engine::poll_session`] until they are empty. The caller writes
//!    the bytes of [`Engine::link_output`] and [`Engine::session_output`], and reports how many
//!    bytes the sockets took. Links come first, so that servers work while clients get their
//!    replies;
//! 5. [`Engine::poll_action`] and [`Engine::poll_event`] until they are empty;
//! 6. a wait for events. It ends at [`Engine::deadline`] and after [`TICK_MS`] at the latest.
//!
//! The hot path is in `data_plane`: `ingress` takes requests and `egress` delivers replies.
//! `router` chooses the servers of a request. `link_events` handles links that come up, go down or
//! time out.

pub(crate) mod clients;
pub(crate) mod composite;
mod deadlines;
mod link_bytes;
pub(crate) mod link_events;
pub(crate) mod logins;
mod memory;
mod own_commands;
pub(crate) mod pinned;
pub(crate) mod pubsub;
pub(crate) mod redirects;
pub(crate) mod replies;
mod requests;
pub(crate) mod router;
pub(crate) mod scatter;
mod scripts;
pub(crate) mod topology;
pub(crate) mod transactions;
pub(crate) mod unknown_commands;

use crate::data_plane::worker_query::WorkerQuery;
use crate::data_plane::{DataPlane, Release};
use std::sync::Arc;

use respool_protocol::encode::Version;

use crate::access::Access;
use crate::admin::Admin;
use crate::base::arrivals::ArrivalSlot;
use crate::base::buffer::shrink;
use crate::base::counters::Counters;
use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::base::limits::unanswered_bytes_max;
use crate::base::settings::{PasswordSource, Settings};
use crate::base::time::{TICK_MS, Time};
use crate::data_plane::actions::{Action, Event, WorkerId};
use crate::data_plane::burst::Burst;
use crate::data_plane::coalesce::{BatchMove, SetRun};
use crate::data_plane::cork::Cork;
use crate::data_plane::flush_rule::Usage;
use crate::data_plane::handshake::Handshake;
use crate::data_plane::link::{Link, LinkRole, Streaming};
use crate::data_plane::resume::ListMark;
use crate::data_plane::session::{Flags, Origin, Pins, Session, SessionState};
use crate::data_plane::session_state::Holds;
use crate::data_plane::slow_readers::EVERYBODYS;
use crate::discovery::Discovery;
use crate::local::Local;
use crate::pinned::Pinned;
use crate::pubsub::Pubsub;
use crate::pubsub::subscriber_counts::SubscriberCounts;
use crate::redirect::Redirects;
use crate::routing::pool::ServerId;
use crate::scatter::Scatter;
use crate::transaction::Transactions;

/// One worker's engine. It owns the components, and keeps the order of a turn. The module's
/// documentation says how to drive it.
pub struct Engine {
    pub(crate) plane: DataPlane,
    pub(crate) discovery: Discovery,
    pub(crate) redirects: Redirects,
    pub(crate) scatter: Scatter,
    pub(crate) transactions: Transactions,
    pub(crate) pinned: Pinned,
    pub(crate) pubsub: Pubsub,
    pub(crate) local: Local,
    pub(crate) access: Access,
    pub(crate) admin: Admin,
    /// The id of the next session, which CLIENT ID shows.
    next_session: u64,
    /// The time of the next tick.
    tick_at: Time,
    /// Whether sessions may send no new requests: see [`Engine::handle_drain`].
    pub(crate) draining: bool,
}

/// Getters.
impl Engine {
    /// The counters of this worker.
    pub fn counters(&self) -> Counters {
        Counters {
            subscriptions: self.pubsub.subscriptions() as u64,
            ..self.plane.counters_now()
        }
    }

    /// The time at which the next turn must be taken without an event, if it is before the next
    /// tick.
    pub fn deadline(&self) -> Option<Time> {
        let now = self.plane.now;
        let plane = self.plane.deadline();
        let all = [
            plane,
            self.pubsub.deadline(now),
            self.redirects.deadline(now),
        ];
        all.into_iter().flatten().min()
    }

    /// The bytes to write to this session.
    pub fn session_output(&self, session: SessionId) -> &[u8] {
        self.plane
            .sessions
            .get(session)
            .map_or(&[], |session| session.out.pending())
    }

    /// The bytes to write to this link.
    pub fn link_output(&self, link: LinkId) -> &[u8] {
        self.plane.links.get(link).map_or(&[], Link::pending)
    }
}

/// Events in.
impl Engine {
    /// Makes an engine. It connects to all servers of all pools at once.
    pub fn new(mut settings: Arc<Settings>, worker: WorkerId, now: Time) -> Self {
        let bytes_max = unanswered_bytes_max(&settings.limits);
        if settings.limits.link_unanswered_bytes_max > bytes_max {
            Arc::make_mut(&mut settings)
                .limits
                .link_unanswered_bytes_max = bytes_max;
        }
        let plane = DataPlane::new(settings, worker, now);
        let mut engine = Engine {
            next_session: worker.index as u64 + 1,
            discovery: Discovery::new(&plane.pools, &plane.servers),
            plane,
            redirects: Redirects::default(),
            scatter: Scatter::default(),
            transactions: Transactions::default(),
            pinned: Pinned::default(),
            pubsub: Pubsub::default(),
            local: Local::default(),
            access: Access::default(),
            admin: Admin::default(),
            tick_at: now,
            draining: false,
        };
        for index in 0..engine.plane.servers.len() {
            let kind = engine.plane.first_link(ServerId(index as u16));
            if let Some(link) = engine.plane.shared_link(kind) {
                engine.plane.connect(link);
            }
        }
        for pool in 0..engine.plane.pools.len() {
            engine.meet_sentinels(pool);
        }
        engine
    }

    /// Makes the engine share its subscriber counts with other workers. Call it right after
    /// [`Engine::new`].
    pub fn with_directory(mut self, counts: Arc<SubscriberCounts>) -> Self {
        debug_assert!(self.pubsub.hubs.is_empty(), "no session has subscribed yet");
        self.access.share_guesses(counts.guesses());
        self.pubsub.subscriber_counts = counts;
        self
    }

    /// Starts a turn. Time never runs back.
    pub fn begin_turn(&mut self, now: Time) {
        debug_assert!(now >= self.plane.now, "time runs back");
        self.plane.now = now;
        self.plane.now_ms = now.stamp_ms();
        self.plane.asked_ms = self.plane.now_ms;
        self.plane.memory.begin_turn(self.plane.held_bytes);
        self.take_pushes_put_off();
    }

    /// A client has connected to the pool of this index.
    pub fn handle_accept(&mut self, from: impl Into<Origin>, pool: usize) -> SessionId {
        // The new session may get the index of a closed one, which components still know.
        self.release_links();
        let from = from.into();
        let server = self.plane.first_up(pool);
        let kind = self.plane.first_link(server);
        let link = self.plane.shared_link(kind).unwrap_or(LinkId::NONE);
        let mut flags = SessionState::default();
        if self.plane.must_authenticate(pool) {
            flags |= Flags::UNAUTHENTICATED;
        }
        if self.plane.pools[pool].is_routed() {
            flags |= Flags::ROUTED;
        }
        if self.plane.pools.removes_prefix(pool) {
            flags |= Flags::STRIPS;
        }
        let session = Session {
            flags,
            version: Version::Resp2,
            pins: Pins::default(),
            batch: 0,
            behind: BatchMove::default(),
            block: 0,
            sets: SetRun::default(),
            reads_in_order: false,
            burst: Burst::default(),
            link: LinkId::NONE,
            next_seq: 0,
            head_seq: 0,
            out: Default::default(),
            held: Vec::new(),
            partial: None,
            answered_at: Time(0),
            gap_us: u32::MAX,
            expected: ArrivalSlot::NOT,
            listed: ListMark::default(),
            resuming: ListMark::default(),
            cork: Cork::NONE,
            db: kind.db,
            pool: pool as u16,
            server,
            listener: from.listener,
            user: CONFIGURED,
            lane: EVERYBODYS,
            id: self.next_session,
            peer: from.peer,
            local: from.local,
            fd: from.fd,
            asked: None,
            bytes_in: 0,
            bytes_out: 0,
            accepted_at: self.plane.now,
            active_at: self.plane.now,
            took_at: self.plane.now,
            rare: None,
        };
        self.next_session += self.plane.worker.count as u64;
        self.plane.counters.sessions_total += 1;
        let session = self.plane.sessions.insert(session);
        self.plane.reset_reading(session);
        self.plane.attach(session, link);
        self.access.check_newcomer(&mut self.plane, session);
        session
    }

    /// A client sent bytes.
    pub fn handle_session_bytes(&mut self, session: SessionId, bytes: &[u8]) {
        let id = session;
        let Some(session) = self.plane.sessions.get_mut(id) else {
            return;
        };
        session.active_at = self.plane.now;
        session.bytes_in += bytes.len() as u64;
        self.plane.counters.session_bytes_in += bytes.len() as u64;
        if session.flags.is_ending() {
            return;
        }
        if session.held.is_empty() {
            if session.is_caught_up() {
                session.burst.begin(session.next_seq, bytes.len());
                self.plane.note_return(id);
            }
            let used = self.take_requests(id, bytes);
            self.plane.hold_back(id, &bytes[used..]);
        } else {
            session.burst.extend(bytes.len());
            self.plane.hold_back(id, bytes);
            self.take_held(id);
        }
    }

    /// A session's socket took `count` bytes of its output.
    pub fn handle_session_written(&mut self, session: SessionId, count: usize) {
        let id = session;
        let Some(session) = self.plane.sessions.get_mut(id) else {
            return;
        };
        session.out.take(count, &mut self.plane.spare_buffers);
        session.took_at = self.plane.now;
        session.active_at = self.plane.now;
        session.bytes_out += count as u64;
        self.plane.held_bytes -= count;
        self.plane.counters.session_bytes_out += count as u64;
        if session.flags.holds().any(Holds::OUTPUT)
            && session.out.len()
                <= self.plane.settings.limits.session_output_soft_bytes as usize / 2
            && self.plane.unpause_draining(id)
        {
            self.plane.release(id, Holds::OUTPUT);
        }
        let Some(session) = self.plane.sessions.get_mut(id) else {
            return;
        };
        if session.out.is_empty() {
            if session.flags.holds().any(Holds::MEMORY) {
                self.plane.release(id, Holds::MEMORY);
            }
            self.plane.finish_if_done(id);
        }
    }

    /// A session's socket took only a part of its output, or nothing.
    pub fn handle_session_full(&mut self, session: SessionId) {
        self.plane.settle_output(session);
    }

    /// A client sends no more bytes. The session closes when its requests are answered.
    pub fn handle_session_end(&mut self, session: SessionId) {
        let id = session;
        let Some(session) = self.plane.sessions.get_mut(id) else {
            return;
        };
        session.flags.end_input();
        if self.plane.is_to_wait(id) {
            return self.plane.close(id, false);
        }
        if self.plane.waits_at_server(id) {
            return self.pinned.end_wait(&mut self.plane, id, self.draining);
        }
        // In a pause the bytes that are held are dropped: a large request may be cut by that.
        self.admin.end_paused(&mut self.plane, id);
        self.forget_cut_request(id);
        self.plane.reading_changed(id);
        self.plane.finish_if_done(id);
    }

    /// A client whose socket is not read sends no more bytes. Unread bytes may still be in the
    /// socket, and may be many.
    pub fn handle_session_hangup(&mut self, session: SessionId) {
        let id = session;
        if self.plane.is_to_wait(id)
            || self
                .plane
                .sessions
                .get(id)
                .is_some_and(Session::is_finished)
        {
            return self.plane.close(id, false);
        }
        if self.plane.waits_at_server(id) {
            return self.pinned.end_wait(&mut self.plane, id, self.draining);
        }
        self.admin.end_paused(&mut self.plane, id);
        self.forget_cut_request(id);
    }

    /// A client is gone.
    pub fn handle_session_lost(&mut self, session: SessionId) {
        self.plane.close(session, false);
    }

    /// The name of a link's server is being looked up since this time. The link waits for the
    /// address.
    pub fn handle_link_resolving(&mut self, link: LinkId, since: Time) {
        if let Some(link) = self.plane.links.get(link) {
            let server = usize::from(link.kind.server.0);
            self.plane.servers[server].health.begin_look_up(since);
        }
    }

    /// The look-up for this link has ended, with or without an address.
    pub fn handle_link_resolved(&mut self, link: LinkId) {
        if let Some(link) = self.plane.links.get(link) {
            let server = usize::from(link.kind.server.0);
            self.plane.servers[server].health.end_look_up();
        }
    }

    /// The index of the pool that a link belongs to, in [`Settings::pools`].
    pub fn pool_of_link(&self, link: LinkId) -> u16 {
        let link = self.plane.links.get(link);
        link.map_or(0, |link| self.plane.pool_of(link.kind.server).whole)
    }

    /// A link's socket is connected.
    pub fn handle_link_up(&mut self, link: LinkId) {
        let Some(server) = self.plane.links.get(link).map(|link| link.kind.server) else {
            return;
        };
        let pool = self.plane.pool_of(server);
        let server = &self.plane.servers[server.0 as usize];
        let configured = server.settings.credentials.as_ref();
        // Without READONLY, a Cluster's replica redirects reads to the primary.
        let to_node = pool.cluster().is_some();
        let reads_only = server.replica_of.is_some() && to_node;
        let state = self.plane.links.get(link);
        let asks_for_limits = state.is_some_and(|link| self.plane.asks_for_limits(link));
        if let Some(link) = self.plane.links.get_mut(link) {
            let credentials = match link.kind.user {
                CONFIGURED => configured,
                user => self.plane.logins.get(user),
            };
            let handshake = match link.role {
                LinkRole::Probe => Handshake::of_probe(),
                _ => {
                    let other_logins =
                        self.plane
                            .logins
                            .beside(link.kind.user, link.kind.db, configured);
                    Handshake::new(link.kind, (credentials, other_logins), reads_only, to_node)
                }
            };
            let handshake = match asks_for_limits {
                true => handshake.with_limits(),
                false => handshake,
            };
            link.send_handshake(handshake, self.plane.now);
        }
        self.plane.flushed_links.push(link);
    }

    /// A link's socket took `count` bytes of its output.
    pub fn handle_link_written(&mut self, link: LinkId, count: usize) {
        let Some(state) = self.plane.links.get_mut(link) else {
            return;
        };
        state.written(count);
        if state.streaming != Streaming::No {
            state.progress = self.plane.now;
        }
        self.plane.counters.link_bytes_out += count as u64;
        if !state.takes() || !state.waiters.is_empty() {
            self.pinned.end_sending(&mut self.plane, link);
            self.plane.reopen(link);
        }
    }

    /// A source of passwords has a new password. Servers that refused the old one are tried again
    /// at once. Links and sessions stay.
    pub fn handle_password(&mut self, source: PasswordSource, password: &str) {
        self.discovery.handle_password(source, password);
        self.access
            .handle_password(&mut self.plane, source, password);
    }

    /// Takes the sum of the other workers' counters, at most a moment old. INFO adds it to this
    /// worker's counters.
    pub fn handle_workers(&mut self, other_workers: Counters) {
        self.plane.other_workers = other_workers;
    }

    /// Takes no new requests. Each session closes when the requests that have come are answered.
    pub fn handle_drain(&mut self) {
        self.draining = true;
        for id in self.plane.sessions.ids() {
            self.handle_session_end(id);
        }
    }

    /// Whether a tick is due in this turn. Then call [`Engine::begin_tick`] before any `handle_*`.
    pub fn is_tick_due(&self) -> bool {
        self.plane.now >= self.tick_at
    }

    /// Begins a tick: counts the requests that have left, and looks for links that owe replies.
    /// Call it right after [`Engine::begin_turn`] if [`Engine::is_tick_due`]. Without this call, no
    /// batch waits under a balanced flush rule.
    ///
    /// `usage`: the driver's measurement of its thread. Without it, waits follow the servers alone.
    pub fn begin_tick(&mut self, usage: Option<Usage>) {
        self.plane.begin_tick(usage);
    }

    /// Ends a turn: all events have been handled. Decides which batches leave.
    pub fn end_turn(&mut self) {
        self.settle_losses();
        self.admin.end_pauses(&mut self.plane);
        self.plane.slow_down_all();
        self.fail_untried();
        self.discovery.refresh_clusters(&mut self.plane);
        if self.redirects.has_waiting_sessions() {
            self.retry_deferred();
        }
        self.release_links();
        self.resume_sessions();
        if self.is_tick_due() {
            self.tick_at = self.plane.now.plus_ms(TICK_MS);
            self.tick();
            self.release_links();
            self.resume_sessions();
        }
        self.release_links();
        self.settle_pauses();
        if self.plane.trackers.owes_any() {
            self.pinned.tell_invalidations(&mut self.plane);
        }
        self.ask_hubs();
        if self.local.scripts.holds_links() {
            self.open_links_with_scripts();
        }
        if self.local.scripts.has_news() {
            self.tell_scripts();
        }
        if !self.plane.corked.is_empty() {
            self.plane.uncork();
        }
        self.plane.flush();
        self.relieve_memory();
        self.plane.switch_reading();
    }
}

/// Actions out.
impl Engine {
    /// The next link with something to write.
    pub fn poll_link(&mut self) -> Option<LinkId> {
        self.plane.flushed_links.pop()
    }

    /// The next session with something to write.
    pub fn poll_session(&mut self) -> Option<SessionId> {
        while let Some(id) = self.plane.dirty.pop() {
            if let Some(session) = self.plane.sessions.get_mut(id) {
                session.listed.leave();
                return Some(id);
            }
        }
        None
    }

    /// The next action for the driver.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.plane.actions.pop_front()
    }

    /// The next event for the log.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.plane.events.pop_front()
    }
}

/// Sessions.
impl Engine {
    /// Takes requests from the bytes that a session holds.
    fn take_held(&mut self, id: SessionId) {
        let Some(session) = self.plane.sessions.get_mut(id) else {
            return;
        };
        let mut held = std::mem::take(&mut session.held);
        if session.is_caught_up() {
            self.plane.note_return(id);
        }
        let used = self.take_waiting(id, &held);
        self.plane.held_bytes -= held.len();
        match self.plane.sessions.get_mut(id) {
            Some(session) if used < held.len() && !session.flags.is_closing() => {
                held.drain(..used);
                shrink(&mut held);
                self.plane.held_bytes += held.len();
                let (len, is_held) = (held.len(), session.flags.is_held());
                session.held = held;
                if used > 0 {
                    self.plane.memory.restart(id);
                }
                if is_held {
                    self.plane.note_arrival(id, self.plane.now_ms, len);
                }
            }
            _ => self.plane.spare_buffers.give(held),
        }
        self.plane.weigh(id);
        self.forget_cut_request(id);
    }

    /// Drops a large request whose rest is not taken any more: its client sends no more, or its
    /// session is closing, and no bytes are held.
    fn forget_cut_request(&mut self, id: SessionId) {
        let is_cut = |session: &Session| {
            session.flags.is_inside_large()
                && (session.flags.input_has_ended() || session.flags.is_closing())
                && session.held.is_empty()
        };
        if self.plane.sessions.get(id).is_some_and(is_cut) {
            self.pinned.forget_large(&mut self.plane, id);
        }
    }

    /// Continues the sessions whose last reason to wait has gone. One session continues in any
    /// case. If memory grows much, the rest continues in the next turn: their replies need room
    /// until they are written.
    fn resume_sessions(&mut self) {
        self.plane.resume.begin();
        while let Some(id) = self.plane.next_to_resume() {
            let Some(session) = self.plane.sessions.get_mut(id) else {
                continue;
            };
            session.resuming.leave();
            self.plane.change_lane(id);
            let Some(session) = self.plane.sessions.get_mut(id) else {
                continue;
            };
            if session.flags.any(Flags::STEPS) {
                self.take_steps(id);
            }
            let has_more =
                |session: &Session| !session.held.is_empty() && !session.flags.any(Flags::STEPS);
            if self.plane.sessions.get(id).is_some_and(has_more) {
                self.take_held(id);
            }
            self.plane.reading.push(id);
            self.plane.finish_if_done(id);
            if self.turn_is_full() {
                self.plane.resume.leave_over();
                break;
            }
        }
    }

    /// Releases the resources of closed sessions beyond the data plane, and the links of sessions
    /// that need no dedicated link any more. Call it before sessions continue: some of them wait
    /// for those links.
    #[inline(always)]
    pub(crate) fn release_links(&mut self) {
        if !self.plane.releases.is_empty() {
            self.release_noted();
        }
    }

    #[cold]
    #[inline(never)]
    fn release_noted(&mut self) {
        while let Some(release) = self.plane.releases.pop_front() {
            self.release(release);
        }
    }

    fn release(&mut self, release: Release) {
        match release {
            Release::Closed(id, session) => self.release_closed(id, *session),
            Release::Disagreed(entry, reply) => {
                self.pinned
                    .settle_tracking(&mut self.plane, entry.session, &reply);
                self.plane.deliver_to(entry, &reply);
            }
            Release::Unpinned(id) => {
                self.plane.finish_unpinning(id);
                self.plane.release(id, Holds::DRAIN);
            }
        }
    }

    fn release_closed(&mut self, id: SessionId, mut session: Session) {
        self.access.forget_session(id);
        self.redirects.forget_session(id);
        self.plane.scattered.remove(id);
        self.transactions.forget_session(id);
        self.plane.held_bytes -= self.plane.polling.forget(id);
        if self
            .pinned
            .forget_session(&mut self.plane, id, &mut session)
        {
            // Every worker closes its stand-ins, so that the server notices as it would without
            // respool.
            self.tell_all(WorkerQuery::TargetGone { to: session.id });
        }
        self.pubsub.forget_session(id);
    }
}
