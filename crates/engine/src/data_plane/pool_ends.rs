//! Pools that a reload adds or ends, and the sessions that leave a pool that has ended.
//!
//! ```text
//!   session: nothing unanswered, bound or subscribed ──► the successor, or closed
//!            requests in flight                      ──► held until they are answered
//!            MULTI, WATCH                            ──► left alone until they end
//! ```
//!
//! So the new server gets no request of a session before all earlier ones are answered. The order
//! of the steps is in `engine/pool_ends.rs`.

use std::ops::Range;

use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::base::limits::LEAVING_SESSIONS_PER_TURN_MAX;
use crate::base::pool_places;
use crate::base::settings::{LostSubscriptions, PoolKind, Settings};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::actions::Action;
use crate::data_plane::ingress::wants_password;
use crate::data_plane::link::LinkRole;
use crate::data_plane::link_loss::LinkDown;
use crate::data_plane::server::Server;
use crate::data_plane::session::{Flags, Pins, Session};
use crate::data_plane::session_state::Holds;
use crate::data_plane::turn_lists::Cleanup;
use crate::routing::pool::ServerId;

/// How long the links of a pool without sessions may owe replies, milliseconds. These are replies
/// to respool, or to clients that have left.
const LAST_REPLIES_MS: u64 = 1_000;

/// How long a session with requests in flight may wait for their replies at least,
/// milliseconds: the drain timeout may be zero, for a quick stop.
const ANSWERS_MS: u64 = 1_000;

/// How long a request that waits at the server may take to end when it is asked to, milliseconds.
const LAST_WORDS_MS: u64 = 1_000;

/// A pool that a reload has ended, until its last link is closed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndingPool {
    /// Its index.
    pub(crate) pool: u16,
    /// When its present successor was named, or when it was removed.
    pub(crate) since: Time,
    /// When its sessions began to move or to end. `None`: the pool serves on, until its successor
    /// answers, its own servers cannot be reached, or `outage-hold-ms` is over.
    pub(crate) moves_since: Option<Time>,
    /// No session has been found in it by the present walk, which began when sessions could leave
    /// and none could enter.
    seems_left: bool,
    /// How long sessions may then go on with a transaction or a request that waits.
    pub(crate) drain_ms: u32,
    /// When its last session left it, and discovery forgot it.
    pub(crate) left_at: Option<Time>,
}

/// The way in which a session leaves a pool that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// It may move now.
    Moves,
    /// It may move when its requests are answered.
    WhenAnswered,
    /// It may move when it ends its transaction, or when it has waited for something else.
    Later,
    /// Its connection has state at the old server. It closes when its requests are answered.
    Closes,
}

impl DataPlane {
    /// Makes the pools that the settings have behind those that are known. Returns the indices of
    /// the new pools, and the new servers.
    pub(crate) fn add_pools(&mut self) -> (Range<usize>, Range<usize>) {
        let (pools, servers) = (self.pools.len(), self.servers.len());
        let settings = self.settings.clone();
        let added = settings.pools.get(pools..).unwrap_or_default();
        let new = self.pools.append(added, &settings.flush, servers);
        self.servers.extend(new.into_iter().map(Server::from));
        self.set_waits();
        for server in servers..self.servers.len() {
            self.connect_server(ServerId(server as u16));
        }
        (pools..self.pools.len(), servers..self.servers.len())
    }

    /// The pools that the settings end, and that those `before` did not.
    pub(crate) fn newly_ended(&self, before: &Settings) -> Vec<u16> {
        let has_ended = |settings: &Settings, place: usize| {
            let pool = settings.pools.get(place);
            pool.is_some_and(|pool| matches!(pool.kind, PoolKind::Ended { .. }))
        };
        let places = 0..self.settings.pools.len();
        let ended = places.filter(|at| has_ended(&self.settings, *at) && !has_ended(before, *at));
        ended.map(|place| place as u16).collect()
    }

    /// Begins the end of a pool. Its sessions may go on with state at the old server for
    /// `drain_ms`. Returns its successor, if it has one.
    pub(crate) fn begin_pool_end(&mut self, pool: u16, drain_ms: u32) -> Option<u16> {
        let since = self.now;
        let successor = self.pool_in_effect(pool);
        self.ending.push(EndingPool {
            pool,
            since,
            moves_since: None,
            seems_left: false,
            drain_ms,
            left_at: None,
        });
        let successor = successor?;
        // Sessions that have not left an earlier pool wait for the new successor, too.
        for index in 0..self.ending.len() {
            let EndingPool { pool, left_at, .. } = self.ending[index];
            if left_at.is_none() && self.pool_in_effect(pool) == Some(successor) {
                let ending = &mut self.ending[index];
                (ending.since, ending.moves_since) = (since, None);
                ending.seems_left = false;
            }
        }
        for pause in &mut self.pauses {
            if pause.pool == pool {
                pause.pool = successor;
            }
        }
        self.admit_links();
        Some(successor)
    }

    /// The sessions that the end of a pool without a successor closes.
    pub(crate) fn sessions_of_removed_pools(&self, settings: &Settings) -> Vec<SessionId> {
        let is_removed = |pool| pool_places::in_effect(&settings.pools, pool).is_none();
        let sessions = self.sessions.iter();
        let removed = sessions.filter(|(_, session)| is_removed(session.pool));
        removed.map(|(id, _)| id).collect()
    }

    /// Looks for pools that have ended and may be left now, and begins a walk over the sessions if
    /// none is under way. Closes links of pools that all sessions have left.
    pub(crate) fn tick_pool_ends(&mut self) {
        for index in 0..self.ending.len() {
            let ending = self.ending[index];
            if ending.moves_since.is_none() && self.may_be_left(ending) {
                self.ending[index].moves_since = Some(self.now);
            }
            self.leave_with_unsent(ending.pool);
        }
        if self.leaving_from.is_none() {
            self.begin_leaving();
        }
        self.close_left_pools();
    }

    /// Begins a walk over the sessions, in which those of ended pools leave.
    fn begin_leaving(&mut self) {
        let is_open = |ending: &EndingPool| ending.left_at.is_none();
        for ending in &mut self.ending {
            ending.seems_left = ending.moves_since.is_some() && is_open(ending);
        }
        self.leaving_from = self.ending.iter().any(is_open).then_some(0);
    }

    /// Goes on with the walk over the sessions, up to a bound. Returns the pools whose last session
    /// has left. `end_session`: ends a session as at the end of the process.
    ///
    /// Sessions come and go between two steps. A new one may take a place that the walk has passed,
    /// but it is in no pool that sessions leave.
    pub(crate) fn go_on_leaving(
        &mut self,
        mut end_session: impl FnMut(&mut DataPlane, SessionId),
    ) -> Vec<u16> {
        let Some(from) = self.leaving_from else {
            return Vec::new();
        };
        let to = from + LEAVING_SESSIONS_PER_TURN_MAX;
        for place in from..to.min(self.sessions.slots()) {
            let Some((id, session)) = self.sessions.at(place) else {
                continue;
            };
            let pool = session.pool;
            let mut all = self.ending.iter_mut();
            if let Some(ending) = all.find(|ending| ending.pool == pool) {
                ending.seems_left = false;
                let ending = *ending;
                self.leave_ended_pool(id, ending, &mut end_session);
            }
        }
        if to < self.sessions.slots() {
            self.leaving_from = Some(to);
            return Vec::new();
        }
        self.leaving_from = None;
        let left = self.ending.iter_mut().filter(|ending| ending.seems_left);
        let leave = |ending: &mut EndingPool| {
            (ending.seems_left, ending.left_at) = (false, Some(self.now));
            ending.pool
        };
        left.map(leave).collect()
    }

    /// A link was lost, and no request has failed for that yet. If its pool has ended and none of
    /// the pool's servers can be reached, its sessions leave it: its servers are away or refuse the
    /// old password, so the sessions wait for the successor as well as for them.
    pub(crate) fn leave_after_loss(&mut self, down: &LinkDown) {
        if self.ending.is_empty() || down.role != LinkRole::Shared {
            return;
        }
        let pool = self.pool_of(down.server).parent;
        let error = down.handshake_error.as_deref().unwrap_or_default();
        // A lost link connects again at once. A server may wait for clients to bring the password.
        if !down.was_up && !error.starts_with(b"NOAUTH") {
            self.leave_if_unreachable(pool);
        }
        self.leave_with_unsent(pool);
    }

    /// If a pool has ended and none of its servers can be reached, its sessions begin to leave it.
    fn leave_if_unreachable(&mut self, pool: u16) {
        let now = self.now;
        let serves = |ending: &&mut EndingPool| ending.pool == pool && ending.moves_since.is_none();
        if !self.has_reachable_server(pool)
            && let Some(ending) = self.ending.iter_mut().find(serves)
        {
            ending.moves_since = Some(now);
            self.leave_with_unsent(pool);
            self.begin_leaving();
        }
    }

    /// Gives the sessions of a pool the requests back that no link has sent, if they move to its
    /// successor now.
    fn leave_with_unsent(&mut self, pool: u16) {
        if let Some(successor) = self.successor_in_use(pool) {
            self.take_back_unsent(pool, |plane, id| plane.may_take_unsent_to(id, successor));
        }
    }

    /// Whether a session may take its unsent requests to another pool: it has no state at its
    /// server, its requests are there as the client sent them, and it wants the reply of the next
    /// request. CLIENT REPLY OFF or SKIP would silence the first request that it reads again.
    fn may_take_unsent_to(&self, id: SessionId, pool: u16) -> bool {
        let is_plain = |session: &Session| {
            session.pins.is_empty()
                && !session.state.any(Flags::REWRITES_KEYS | Flags::UNPINNING)
                && session.state.wants_replies()
        };
        self.leaving(id) == Some(Leaving::WhenAnswered)
            && self.sessions.get(id).is_some_and(is_plain)
            && !self.polling.holds(id)
            && !self.loses_database_in(id, pool)
    }

    /// Sessions begin to leave ended pools that have no link up and a server in back-off: the last
    /// attempt to connect has failed before the pool ended.
    pub(crate) fn leave_pools_in_back_off(&mut self) {
        for pool in self.pools_in_back_off() {
            self.leave_if_unreachable(pool);
        }
    }

    /// The ended pools with a server that is in back-off.
    fn pools_in_back_off(&self) -> Vec<u16> {
        let ending = self.ending.iter().map(|ending| ending.pool);
        let is_in_back_off = |pool: &u16| {
            let mut servers = self.servers_of_pool(*pool);
            servers.any(|server| self.is_in_back_off(server))
        };
        ending.filter(is_in_back_off).collect()
    }

    /// Whether a shared link to a server of a pool is up, or one of its servers waits for clients
    /// to bring the password.
    fn has_reachable_server(&self, pool: u16) -> bool {
        self.servers_of_pool(pool).any(|server| {
            let mut links = self.links_shared_to(server);
            links.any(|(_, link)| link.is_up() || wants_password(link))
        })
    }

    /// The servers that execute the requests of a pool.
    fn servers_of_pool(&self, pool: u16) -> impl Iterator<Item = ServerId> {
        let subpools = self.pools.subpools_of(usize::from(pool)).iter();
        subpools.flat_map(|subpool| {
            let subpool = &self.pools[usize::from(*subpool)];
            match subpool.cluster() {
                Some(slots) => slots.servers().to_vec(),
                None => subpool.servers().to_vec(),
            }
        })
    }

    /// Has a session leave its pool, if that has ended. A session that is about to continue has
    /// its earlier replies, so it may move now.
    #[inline]
    pub(crate) fn leave_if_ended(
        &mut self,
        id: SessionId,
        end_session: impl FnMut(&mut DataPlane, SessionId),
    ) {
        if !self.ending.is_empty()
            && let Some(ending) = self.end_of_pool(id)
        {
            self.leave_ended_pool(id, ending, end_session);
        }
    }

    /// Holds a session that has ended a state that bound it to its server, if sessions leave its
    /// pool now: its next request waits until it has left. Else a session that begins the next
    /// transaction at once would never leave.
    pub(crate) fn hold_to_leave_pool(&mut self, id: SessionId) {
        let moves = |ending: EndingPool| ending.moves_since.is_some();
        if self.ending.is_empty() || !self.end_of_pool(id).is_some_and(moves) {
            return;
        }
        if !self.hold_until_caught_up(id) {
            self.hold(id, Holds::CATCH_UP);
            self.turn.cleanups.push_back(Cleanup::MayLeave(id));
        }
    }

    /// Whether a session that is about to send a request leaves its pool first. The walk has not
    /// come to it yet.
    #[inline]
    pub(crate) fn leaves_before_request(&self, id: SessionId) -> bool {
        !self.ending.is_empty() && self.moves_now(id)
    }

    #[cold]
    fn moves_now(&self, id: SessionId) -> bool {
        let pool = self.sessions.get(id).map(|session| session.pool);
        let successor = pool.and_then(|pool| self.successor_in_use(pool));
        successor.is_some_and(|successor| {
            self.leaving(id) == Some(Leaving::Moves) && !self.loses_database_in(id, successor)
        })
    }

    #[cold]
    #[inline(never)]
    fn leave_ended_pool(
        &mut self,
        id: SessionId,
        ending: EndingPool,
        mut end_session: impl FnMut(&mut DataPlane, SessionId),
    ) {
        let Some(leaving) = self.leaving(id) else {
            return;
        };
        let Some(since) = ending.moves_since else {
            return;
        };
        let mut end_open_session = |plane: &mut DataPlane| {
            let is_open = |session: &Session| !session.state.is_ending();
            if plane.sessions.get(id).is_some_and(is_open) {
                end_session(plane, id);
            }
        };
        let successor = self.pool_in_effect(ending.pool);
        match (leaving, successor) {
            (_, None) | (Leaving::Closes, _) => end_open_session(self),
            (Leaving::Moves, Some(pool)) if self.loses_database_in(id, pool) => {
                end_open_session(self);
            }
            (Leaving::Moves, Some(pool)) => return self.move_to_pool(id, pool),
            (Leaving::WhenAnswered, _) => {
                self.hold_until_caught_up(id);
            }
            (Leaving::Later, _) => {}
        }
        let spent_ms = self.now.since_ms(since);
        let waits = self.waits_at_server(id);
        let drain_ms = match leaving {
            Leaving::WhenAnswered if !waits => u64::from(ending.drain_ms).max(ANSWERS_MS),
            _ => u64::from(ending.drain_ms),
        };
        // A server that is asked to end a wait gives no element to a client that is leaving.
        let grace_ms = match waits {
            true => LAST_WORDS_MS,
            false => 0,
        };
        if spent_ms >= drain_ms && grace_ms > 0 {
            end_open_session(self);
        }
        if spent_ms >= drain_ms + grace_ms {
            let reason = "a reload of the configuration ended its pool, and it did not end its \
                          requests within drain-timeout-ms";
            self.close_for(id, reason.into());
        }
    }

    /// Closes the links of pools that all sessions have left, and forgets those without links.
    fn close_left_pools(&mut self) {
        let mut ending = std::mem::take(&mut self.ending);
        ending.retain(|ending| {
            let is_left = |left_at| !self.close_links_of(ending.pool, left_at);
            let is_over = ending.left_at.is_some_and(is_left);
            if is_over {
                self.push_action(Action::ForgetPool(ending.pool));
            }
            !is_over
        });
        self.ending = ending;
    }

    /// The pool that sessions of this pool belong to now. `None`: a reload has removed it.
    pub(crate) fn pool_in_effect(&self, pool: u16) -> Option<u16> {
        pool_places::in_effect(&self.settings.pools, pool)
    }

    /// The successor of a pool that has ended, if sessions move to it now.
    pub(crate) fn successor_in_use(&self, pool: u16) -> Option<u16> {
        let moves = |ending: &EndingPool| ending.pool == pool && ending.moves_since.is_some();
        let successor = self.pool_in_effect(pool)?;
        self.ending.iter().any(moves).then_some(successor)
    }

    /// The pool by which clients, pauses and scripts are known: the last successor of this pool.
    /// Sessions that have not left their old pool yet belong to it already.
    pub(crate) fn known_pool(&self, pool: u16) -> u16 {
        self.pool_in_effect(pool).unwrap_or(pool)
    }

    /// The same for a session. `None`: it is gone.
    pub(crate) fn known_pool_of(&self, id: SessionId) -> Option<u16> {
        self.sessions
            .get(id)
            .map(|session| self.known_pool(session.pool))
    }

    /// Whether a reload has ended the pool of a server, and no session uses it any more.
    pub(crate) fn is_left(&self, server: ServerId) -> bool {
        let pool = self.pool_of(server).parent;
        let is_its = |ending: &EndingPool| ending.pool == pool && ending.left_at.is_some();
        self.ending.iter().any(is_its)
    }

    /// The end of a session's pool, if a reload has ended it.
    pub(crate) fn end_of_pool(&self, id: SessionId) -> Option<EndingPool> {
        let pool = self.sessions.get(id)?.pool;
        let mut ending = self.ending.iter().copied();
        ending.find(|ending| ending.pool == pool)
    }

    /// The pool of a new session. Until a pool answers, its predecessor serves. `None`: a reload
    /// has removed the pool.
    pub(crate) fn pool_to_enter(&self, pool: u16) -> Option<u16> {
        let pool = self.pool_in_effect(pool)?;
        Some(self.server_until_ready(pool).unwrap_or(pool))
    }

    /// The newest predecessor of a pool, as long as it serves in its place.
    pub(crate) fn server_until_ready(&self, pool: u16) -> Option<u16> {
        let serves = |ending: &&EndingPool| {
            ending.moves_since.is_none()
                && ending.left_at.is_none()
                && self.pool_in_effect(ending.pool) == Some(pool)
        };
        let predecessor = self.ending.iter().rev().find(serves);
        predecessor.map(|ending| ending.pool)
    }

    /// Whether the sessions of a pool that has ended may leave it now: it was removed, its
    /// successor answers, or requests have waited for that as long as for a lost server.
    fn may_be_left(&self, ending: EndingPool) -> bool {
        let Some(successor) = self.pool_in_effect(ending.pool) else {
            return true;
        };
        let hold_ms = u64::from(self.settings.timeouts.outage_hold_ms);
        self.now.since_ms(ending.since) >= hold_ms || self.is_ready_after(successor, ending.pool)
    }

    /// Whether a pool answers as its predecessor does, and knows the owners of keys.
    fn is_ready_after(&self, pool: u16, predecessor: u16) -> bool {
        let first = self.pools.default_server_of(predecessor.into());
        // Where clients bring the password, no link is up before a client has come.
        let serves = |server| {
            let mut links = self.links_shared_to(server);
            links.any(|(_, link)| link.is_up() && link.kind.user == CONFIGURED)
        };
        let has_login = serves(first);
        let answers = |server: &ServerId| match has_login {
            true => serves(*server),
            false => self.is_alive(*server),
        };
        let subpools = self.pools.subpools_of(usize::from(pool)).iter();
        let mut subpools = subpools.map(|subpool| &self.pools[usize::from(*subpool)]);
        self.knows_all(usize::from(pool))
            && subpools.all(|subpool| match subpool.cluster() {
                Some(slots) => slots.servers().iter().any(answers),
                None => subpool.servers().iter().all(answers),
            })
    }

    /// Whether a session could not select its database in another pool: a Cluster has one.
    fn loses_database_in(&self, id: SessionId, pool: u16) -> bool {
        let is_other = |session: &Session| {
            session.db != self.server(session.server).settings.db && session.db != 0
        };
        self.pools.has_cluster(pool.into()) && self.sessions.get(id).is_some_and(is_other)
    }

    /// How a session leaves its pool, which has ended. `None`: it is gone, or closes already.
    fn leaving(&self, id: SessionId) -> Option<Leaving> {
        let session = self.sessions.get(id)?;
        let state = session.state;
        if state.is_closing() {
            return None;
        }
        // The hub moves, too, if subscriptions outlast the loss of a server.
        let may_listen = self.settings.lost_subscriptions == LostSubscriptions::Keep;
        let loses_channels = session.listens() && !may_listen;
        if loses_channels || state.is_tunnel() || session.pins.any(Pins::STATE) {
            return Some(Leaving::Closes);
        }
        // The rest of a large request must not wait for its reply.
        let is_bound =
            session.pins.any(Pins::WATCH) || state.any(Flags::IN_MULTI) || state.is_mid_request();
        Some(match session.is_caught_up() {
            _ if is_bound => Leaving::Later,
            false => Leaving::WhenAnswered,
            true if self.is_free_to_move(id, session) => Leaving::Moves,
            true => Leaving::Later,
        })
    }

    /// Whether a session with no unanswered request has no other state at its server.
    fn is_free_to_move(&self, id: SessionId, session: &Session) -> bool {
        let busy = Flags::UNPINNING | Flags::MID_REPLY;
        let holds = session.state.holds();
        // A session that waits for another reason is woken for that reason.
        let waits_at_link = holds.any(Holds::LINK)
            && self
                .links
                .get(session.link)
                .is_some_and(|link| link.waiters.contains(&id));
        session.pins.is_empty()
            && !session.state.any(busy)
            && !self.polling.holds(id)
            && !holds.any(Holds::ROOM | Holds::CATCH_UP)
            && (!holds.any(Holds::LINK) || waits_at_link)
    }

    /// Moves a session to another pool. It keeps its name, user, protocol and database. A session
    /// in the database that the old pool begins with begins in that of the new one.
    fn move_to_pool(&mut self, id: SessionId, pool: u16) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let (old, first_db) = (session.link, self.server(session.server).settings.db);
        // Only such a session may be among the waiters of its link.
        let waits = session.state.holds().any(Holds::LINK);
        if let Some(link) = self.links.get_mut(old).filter(|_| waits) {
            link.waiters.retain(|waiter| *waiter != id);
        }
        self.close_if_full(old);
        self.attach(id, LinkId::NONE);
        let index = usize::from(pool);
        let server = self.first_up(index);
        let new_db = self.server(server).settings.db;
        let (is_routed, rewrites) = (
            self.pools[index].is_routed(),
            self.pools.removes_prefix(index),
        );
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.pool = pool;
        session.server = server;
        if session.db == first_db {
            session.db = new_db;
        }
        for (flag, is_set) in [(Flags::ROUTED, is_routed), (Flags::REWRITES_KEYS, rewrites)] {
            session.state.remove(flag);
            if is_set {
                session.state |= flag;
            }
        }
        self.reset_reading(id);
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let kind = self.kind_at(session, server);
        let link = self.current_link(kind).unwrap_or(LinkId::NONE);
        self.attach(id, link);
        if waits {
            self.release(id, Holds::LINK);
        }
    }

    /// No session uses a pool any more: its servers are gone.
    pub(crate) fn leave_pool(&mut self, pool: u16) {
        let subpools: Vec<u16> = self.pools.subpools_of(usize::from(pool)).to_vec();
        for server in &mut self.servers {
            if subpools.contains(&server.pool) {
                server.gone = true;
            }
        }
        for subpool in subpools.into_iter().map(usize::from) {
            self.awaited_nodes.remove(&subpool);
            self.reported_topology.remove(&subpool);
        }
        self.pools.forget(usize::from(pool));
    }

    /// Closes the links of a pool without sessions that owe nothing, and after a while those that
    /// owe replies. Returns whether some are left.
    fn close_links_of(&mut self, pool: u16, left_at: Time) -> bool {
        let mut is_left = false;
        let is_late = self.now.since_ms(left_at) >= LAST_REPLIES_MS;
        for id in self.links.ids() {
            let Some(link) = self.links.get(id) else {
                continue;
            };
            if self.pool_of(link.kind.server).parent != pool {
                continue;
            }
            // Other links are awaited until they are up.
            let may_go = link.is_up() || link.role == LinkRole::Shared;
            match may_go && link.is_unused() && link.role.ends_when_unused() {
                true => self.close_link(id),
                false => {
                    is_left = true;
                    // A hub closes its own lines.
                    if is_late && link.is_up() && !matches!(link.role, LinkRole::HubLine(_)) {
                        self.lose_link(id, "a reload of the configuration ended its pool");
                    }
                }
            }
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::settings::PoolSettings;
    use crate::data_plane::session::Peer;
    use crate::data_plane::test_plane::{plane_of, pool_at, session_of};

    /// How long sessions may go on in a pool that has ended, milliseconds.
    const DRAIN_MS: u32 = 1_000;

    /// Settings with two pools. A reload has removed those that are named.
    fn settings(removed: &[usize]) -> Settings {
        let pool = |place: usize| match removed.contains(&place) {
            true => PoolSettings {
                kind: PoolKind::Ended { successor: None },
                ..pool_at(1)
            },
            false => pool_at(1),
        };
        Settings {
            pools: vec![pool(0), pool(1)],
            ..Settings::default()
        }
    }

    /// A pool ends once, although later settings name it again.
    #[test]
    fn pool_ends_with_the_first_settings_that_say_so() {
        let mut plane = plane_of(settings(&[]));
        plane.settings = Arc::new(settings(&[1]));
        assert_eq!(plane.newly_ended(&settings(&[])), [1]);
        plane.settings = Arc::new(settings(&[0, 1]));
        assert_eq!(plane.newly_ended(&settings(&[1])), [0]);
    }

    /// An idle session of a removed pool is ended as at the end of the process. The pool is left
    /// when its last session has gone.
    #[test]
    fn removed_pool_is_left_after_its_last_session() {
        let mut plane = plane_of(settings(&[]));
        let id = session_of(&mut plane);
        plane.settings = Arc::new(settings(&[0]));
        assert_eq!(plane.begin_pool_end(0, DRAIN_MS), None);
        let mut ended = Vec::new();
        plane.tick_pool_ends();
        assert_eq!(plane.go_on_leaving(|_, id| ended.push(id)), []);
        assert_eq!(ended, [id]);
        plane.close(id);
        plane.tick_pool_ends();
        assert_eq!(plane.go_on_leaving(|_, _| {}), [0]);
        // It is left once.
        plane.tick_pool_ends();
        assert_eq!(plane.go_on_leaving(|_, _| {}), []);
    }

    /// Many sessions leave a pool in several turns, each a bounded number. The pool is left once
    /// all of them have left, although sessions come and go meanwhile.
    #[test]
    fn sessions_leave_in_bounded_steps() {
        let mut plane = plane_of(settings(&[]));
        let all: Vec<SessionId> = (0..3 * LEAVING_SESSIONS_PER_TURN_MAX)
            .map(|_| session_of(&mut plane))
            .collect();
        let mut moved = settings(&[0]);
        moved.pools[0].kind = PoolKind::Ended { successor: Some(1) };
        moved.timeouts.outage_hold_ms = 0;
        plane.settings = Arc::new(moved);
        assert_eq!(plane.begin_pool_end(0, DRAIN_MS), Some(1));
        plane.tick_pool_ends();
        let in_pool = |plane: &DataPlane, pool| {
            let sessions = plane.sessions.iter();
            sessions.filter(|(_, session)| session.pool == pool).count()
        };
        let mut left = Vec::new();
        for turn in 0..3 {
            assert_eq!(left, [], "sessions are in the pool");
            let before = in_pool(&plane, 0);
            left = plane.go_on_leaving(|_, _| {});
            let moved = before - in_pool(&plane, 0);
            assert!(moved <= LEAVING_SESSIONS_PER_TURN_MAX, "{moved} moved");
            assert!(
                turn > 0 || plane.deadline() == Some(plane.now),
                "it goes on at once"
            );
            // A session leaves its place, in front of the walk or behind it, to one of the new
            // pool.
            plane.close(all[2_usize.pow(turn)]);
            plane.close(all[all.len() - 1 - turn as usize]);
            plane.accept(Peer::Unix.into(), 1);
        }
        assert_eq!((in_pool(&plane, 0), left), (0, Vec::new()));
        assert_eq!(plane.deadline(), None);
        // The next walk finds no session.
        plane.tick_pool_ends();
        let mut left = Vec::new();
        while plane.leaving_from.is_some() {
            left.extend(plane.go_on_leaving(|_, _| {}));
        }
        assert_eq!(left, [0]);
    }

    /// A pool whose sessions may leave from the middle of a walk on is not left at the end of that
    /// walk: its first sessions were passed.
    #[test]
    fn pool_is_not_left_by_a_walk_that_began_before_its_end() {
        let mut plane = plane_of(settings(&[]));
        let id = session_of(&mut plane);
        let others = (0..LEAVING_SESSIONS_PER_TURN_MAX).map(|_| 1);
        for pool in others {
            plane.accept(Peer::Unix.into(), pool);
        }
        plane.settings = Arc::new(settings(&[1]));
        plane.begin_pool_end(1, DRAIN_MS);
        plane.tick_pool_ends();
        assert_eq!(plane.go_on_leaving(|_, _| {}), []);
        plane.settings = Arc::new(settings(&[0, 1]));
        plane.begin_pool_end(0, DRAIN_MS);
        plane.tick_pool_ends();
        assert_eq!(plane.go_on_leaving(|_, _| {}), [], "the walk has passed it");
        let mut ended = Vec::new();
        plane.tick_pool_ends();
        plane.go_on_leaving(|_, id| ended.push(id));
        assert_eq!(ended[0], id);
    }
}
