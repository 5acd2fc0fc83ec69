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
mod dispatch_kind;
mod link_bytes;
pub(crate) mod link_events;
mod memory;
mod new_settings;
mod own_commands;
pub(crate) mod pinned;
mod pool_ends;
pub(crate) mod pubsub;
pub(crate) mod redirects;
pub(crate) mod replies;
mod reports;
mod requests;
pub(crate) mod router;
pub(crate) mod scatter;
mod scripts;
pub(crate) mod topology;
pub(crate) mod transactions;

use std::sync::Arc;

use crate::access::Access;
use crate::admin::Admin;
use crate::base::counters::{Counters, DriverCounts};
use crate::base::error::Fate;
use crate::base::handle::{LinkId, SessionId};
use crate::base::latency::LatencyReport;
use crate::base::settings::{PasswordSource, Settings};
use crate::base::time::{TICK_MS, Time};
use crate::data_plane::DataPlane;
use crate::data_plane::actions::{Action, Event, WorkerId};
use crate::data_plane::flush_rule::Usage;
use crate::data_plane::link::Link;
use crate::data_plane::session::{Flags, Origin, Session};
use crate::data_plane::session_state::Holds;
use crate::data_plane::turn_lists::Cleanup;
use crate::data_plane::withdraw::withdraw;
use crate::data_plane::worker_query::{TargetQuery, WorkerQuery};
use crate::data_plane::worker_report::WorkerReport;
use crate::discovery::Discovery;
use crate::engine::new_settings::bounded;
use crate::local::Local;
use crate::pinned::Pinned;
use crate::pubsub::Pubsub;
use crate::pubsub::subscriber_counts::SubscriberCounts;
use crate::redirect::Redirects;
use crate::scatter::Scatter;
use crate::transaction::Transactions;

pub use new_settings::NewSettings;

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
    /// The time of the next tick.
    tick_at: Time,
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

    /// Writes the state of the worker's thread, pools and servers into `report`. Its buffers are
    /// used again.
    pub fn report(&self, report: &mut WorkerReport) {
        self.discovery.report(&self.plane, report);
        report.usage = self.plane.worker_load.usage();
    }

    /// Brings a report of the times of requests up to date. The report is of this worker alone.
    pub fn report_latency(&mut self, report: &mut LatencyReport) {
        self.plane.latency.report(report);
    }

    /// The time at which the next turn must be taken without an event, if it is before the next
    /// tick.
    pub fn deadline(&self) -> Option<Time> {
        let now = self.plane.now;
        let (plane, pubsub) = (self.plane.deadline(), self.pubsub.deadline(now));
        let all = [plane, pubsub, self.redirects.deadline(now)];
        all.into_iter().flatten().min()
    }

    /// The bytes to write to this session.
    pub fn session_output(&self, session: SessionId) -> &[u8] {
        let session = self.plane.sessions.get(session);
        session.map_or(&[], |session| session.out.pending())
    }

    /// Whether the session has not been closed.
    pub fn has_session(&self, session: SessionId) -> bool {
        self.plane.sessions.get(session).is_some()
    }

    /// The bytes to write to this link.
    pub fn link_output(&self, link: LinkId) -> &[u8] {
        self.plane.links.get(link).map_or(&[], Link::pending)
    }
}

/// Events in.
impl Engine {
    /// Makes an engine. It connects to all servers of all pools at once.
    pub fn new(settings: Arc<Settings>, worker: WorkerId, now: Time) -> Self {
        let plane = DataPlane::new(bounded(settings), worker, now);
        let mut engine = Engine {
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
        };
        engine.plane.connect_servers();
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
        self.plane.begin_turn(now);
        self.take_postponed_pushes();
    }

    /// A client has connected to the pool of this index.
    pub fn handle_accept(&mut self, from: impl Into<Origin>, pool: usize) -> SessionId {
        // The new session may get the index of a closed one, which components still know.
        self.process_cleanups();
        // A handshake of TLS may outlast its pool.
        let in_effect = self.plane.pool_to_enter(pool as u16);
        let pool = in_effect.map_or(pool, usize::from);
        let session = self.plane.accept(from.into(), pool);
        if in_effect.is_none() {
            self.handle_session_end(session);
        }
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
        if session.state.is_ending() {
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
        self.plane.session_written(session, count);
    }

    /// A session's socket took only a part of its output, or nothing.
    pub fn handle_session_full(&mut self, session: SessionId) {
        self.plane.settle_output(session);
    }

    /// A client sends no more bytes. The session closes when its requests are answered.
    pub fn handle_session_end(&mut self, session: SessionId) {
        self.pinned.end_session(&mut self.plane, session);
    }

    /// A client has ended its input while its socket is not read. It may have many unread bytes.
    pub fn handle_session_hangup(&mut self, session: SessionId) {
        let end = self.plane.end_unread_input(session);
        self.pinned.end_input(&mut self.plane, session, end);
    }

    /// Closes a session, and takes out its requests that have not left. Returns the fate of its
    /// unanswered requests. `None`: all are answered, and [`Engine::session_output`] had the last
    /// replies before this call. A session that was closed before has the fate `Unknown`.
    pub fn withdraw(&mut self, session: SessionId) -> Option<Fate> {
        let fate = withdraw(&mut self.plane, session);
        self.plane.close(session);
        fate
    }

    /// A client is gone.
    pub fn handle_session_lost(&mut self, session: SessionId) {
        self.plane.close(session);
    }

    /// The name of a link's server is being looked up since this time. The link waits for the
    /// address.
    pub fn handle_link_resolving(&mut self, link: LinkId, since: Time) {
        self.plane.note_look_up(link, Some(since));
    }

    /// The look-up for this link has ended, with or without an address.
    pub fn handle_link_resolved(&mut self, link: LinkId) {
        self.plane.note_look_up(link, None);
    }

    /// The index of the pool that a link belongs to, in [`Settings::pools`].
    pub fn pool_of_link(&self, link: LinkId) -> u16 {
        let link = self.plane.links.get(link);
        link.map_or(0, |link| self.plane.pool_of(link.kind.server).parent)
    }

    /// A link's socket is connected.
    pub fn handle_link_up(&mut self, link: LinkId) {
        self.plane.begin_handshake(link);
    }

    /// A link's socket took `count` bytes of its output.
    pub fn handle_link_written(&mut self, link: LinkId, count: usize) {
        if self.plane.link_written(link, count) {
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

    /// The links of a pool connect with other TLS from now on: servers in back-off are tried again
    /// at once. Links that are up stay.
    pub fn handle_new_tls(&mut self, pool: usize) {
        self.plane.note_new_tls(pool);
    }

    /// The password of a source has a lifetime, and a new one was handed over: links that are up
    /// log in with it.
    pub fn handle_login_renewal(&mut self, source: PasswordSource) {
        self.access.renew_logins(&mut self.plane, source);
    }

    /// Takes the sum of the other workers' counters, at most a moment old. INFO adds it to this
    /// worker's counters.
    pub fn handle_workers(&mut self, other_workers: Counters) {
        self.admin.other_workers = other_workers;
    }

    /// Takes the counts of the driver: INFO shows them, and the memory of TLS counts.
    pub fn handle_driver_counts(&mut self, counts: DriverCounts) {
        self.plane.driver = counts;
    }

    /// Takes no new requests. Each session closes when the requests that have come are answered.
    pub fn handle_drain(&mut self) {
        self.plane.draining = true;
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
        // A loss defers requests, releases sessions and asks for refreshes. The steps that refresh,
        // retry and resume come behind it.
        self.settle_losses();
        self.admin.end_pauses(&mut self.plane);
        // A shared link that drains for a slow session gets a successor, which may stay untried.
        self.plane.slow_down_all();
        self.fail_untried();
        self.discovery.refresh_clusters(&mut self.plane);
        // Deferred requests are older than the requests that their sessions hold.
        if self.redirects.has_waiting_sessions() {
            self.retry_deferred();
        }
        // Sessions wait for the links that closed sessions give back.
        self.process_cleanups();
        self.resume_sessions();
        let ticks = self.is_tick_due();
        if ticks {
            self.tick_at = self.plane.now.plus_ms(TICK_MS);
            self.tick();
        }
        if ticks || self.plane.leaving_from.is_some() {
            self.go_on_leaving();
            self.process_cleanups();
            self.resume_sessions();
        }
        // Sessions that continued may have closed, or have got their last reply.
        self.process_cleanups();
        self.admin.settle_pauses(&mut self.plane, |plane, pool| {
            self.redirects.oldest_deferred(plane, pool)
        });
        // An invalidation may follow a reply that came in this turn.
        if self.plane.trackers.owes_any() {
            self.pinned.push_invalidations(&mut self.plane);
        }
        // All subscriptions and script news of the turn leave together.
        self.send_hub_requests();
        if self.local.scripts.holds_links() {
            self.open_links_with_scripts();
        }
        if self.local.scripts.has_news() {
            self.send_script_news();
        }
        if !self.plane.turn.corked.is_empty() {
            self.plane.uncork();
        }
        // Every step that puts requests on links comes before the flush.
        self.plane.flush();
        // The bytes of the whole turn are counted now.
        self.relieve_memory();
        // Every step that holds or releases sessions is done.
        self.plane.switch_reading();
    }
}

/// Actions out.
impl Engine {
    /// The next link with something to write.
    pub fn poll_link(&mut self) -> Option<LinkId> {
        self.plane.turn.flushed_links.pop()
    }

    /// The next session with something to write.
    pub fn poll_session(&mut self) -> Option<SessionId> {
        self.plane.poll_session()
    }

    /// The next action for the driver.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.plane.turn.actions.pop_front()
    }

    /// The next event for the log.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.plane.turn.events.pop_front()
    }
}

/// Sessions.
impl Engine {
    /// Takes requests from the bytes that a session holds.
    fn take_held(&mut self, id: SessionId) {
        let Some(held) = self.plane.take_held(id) else {
            return;
        };
        let used = self.take_waiting(id, &held.bytes);
        self.plane.keep_held(id, held, used);
        self.pinned.forget_cut_request(&mut self.plane, id);
    }

    /// Continues the sessions without a reason to wait any more. One session continues in any
    /// case. If memory grows much, the rest continues in the next turn: their replies need room
    /// until they are written.
    #[inline]
    fn resume_sessions(&mut self) {
        let turn = &self.plane.turn;
        if !turn.resume.is_empty() || !turn.reserved_room.is_empty() {
            self.resume_listed();
        }
    }

    fn resume_listed(&mut self) {
        self.plane.turn.resume.begin();
        while let Some(id) = self.plane.next_to_resume() {
            let Some(session) = self.plane.sessions.get_mut(id) else {
                continue;
            };
            session.resuming.leave();
            let end_session = |plane: &mut _, id| self.pinned.end_session(plane, id);
            self.plane.leave_if_ended(id, end_session);
            self.plane.change_lane(id);
            let Some(session) = self.plane.sessions.get_mut(id) else {
                continue;
            };
            if session.state.any(Flags::STEPS) {
                self.take_steps(id);
            }
            let has_more =
                |session: &Session| !session.held.is_empty() && !session.state.any(Flags::STEPS);
            if self.plane.sessions.get(id).is_some_and(has_more) {
                self.take_held(id);
            }
            self.plane.turn.reading.push(id);
            self.plane.finish_if_done(id);
            if self.turn_is_full() {
                self.plane.turn.resume.leave_over();
                break;
            }
        }
    }

    /// Drops the state of closed sessions beyond the data plane, and gives back the links of
    /// sessions that need no dedicated link any more. Call it before sessions continue: some of
    /// them wait for those links.
    #[inline(always)]
    pub(crate) fn process_cleanups(&mut self) {
        if !self.plane.turn.cleanups.is_empty() {
            self.process_listed_cleanups();
        }
    }

    #[cold]
    #[inline(never)]
    fn process_listed_cleanups(&mut self) {
        while let Some(cleanup) = self.plane.turn.cleanups.pop_front() {
            match cleanup {
                Cleanup::Closed(id, session) => self.release_closed(id, *session),
                Cleanup::Disagreed(entry, reply) => {
                    self.pinned
                        .settle_tracking(&mut self.plane, entry.session, &reply);
                    self.plane.deliver_to(entry, &reply);
                }
                Cleanup::Unpinned(id) => self.plane.continue_unpinned(id),
                Cleanup::MayLeave(id) => self.plane.release(id, Holds::CATCH_UP),
            }
        }
    }

    fn release_closed(&mut self, id: SessionId, mut session: Session) {
        self.access.forget_session(id);
        self.redirects.forget_session(id);
        self.transactions.forget_session(id);
        self.plane.forget_session(id);
        if self
            .pinned
            .forget_session(&mut self.plane, id, &mut session)
        {
            // Every worker closes its stand-ins, so that the server notices as it would without
            // respool.
            self.send_to_all_workers(WorkerQuery::Target(TargetQuery::Gone { to: session.id }));
        }
        self.pubsub.forget_session(id);
    }
}
