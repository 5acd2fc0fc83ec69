//! Room for one more link within `links-max`.
//!
//! ```text
//!   a link is needed ──► fewer than links-max: the link is made
//!                   └──► links-max: an unused shared link is closed, and the link is made
//!                            └──► no link is unused: the session waits, at most until its deadline
//! ```
//!
//! Sessions may use an unused link. After its end, each gets a link again with its next request.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::base::limits::LINKS_PER_SERVER;
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::bounds_met::Bound;
use crate::data_plane::ingress::{Blocked, bound_reply};
use crate::data_plane::link::{Link, LinkKind, LinkRole, LinkState};
use crate::data_plane::server::Server;
use crate::data_plane::session::Session;
use crate::data_plane::session_state::Holds;
use crate::data_plane::waiters::Readiness;

/// The cost of closing an unused link. The cheapest one is closed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UnusedCost {
    /// Whether sessions use it: they need a link again with their next requests.
    has_sessions: bool,
    /// Whether it has the login of a client. The server may have another password by now.
    has_login: bool,
    /// The time when it was used last.
    used_at: Time,
}

impl UnusedCost {
    /// `None`: the link is in use, or was used in this turn. The code that needs one more link may
    /// still have the id of such a link.
    fn of(link: &Link, now: Time) -> Option<UnusedCost> {
        let is_connected = match link.state {
            LinkState::Up
            | LinkState::Down
            | LinkState::Backoff { .. }
            | LinkState::Retrying { .. } => true,
            LinkState::Connecting { .. } | LinkState::Handshaking { .. } | LinkState::Lost => false,
        };
        let is_unused = link.role == LinkRole::Shared
            && is_connected
            && link.owes_nothing()
            && !link.ledger.has_repeats()
            && link.waiters.is_empty()
            && link.unread_since.is_none()
            && Arc::strong_count(&link.stand_in) == 1;
        let cost = UnusedCost {
            has_sessions: link.attached > 0,
            has_login: link.kind.user != CONFIGURED,
            used_at: link.progress.max(link.unused_since),
        };
        (is_unused && cost.used_at < now).then_some(cost)
    }
}

/// Room for links.
impl DataPlane {
    /// Whether one more shared link may be made, perhaps in place of an unused one. Links of one
    /// session have a bound of their own.
    pub(crate) fn has_room_for_link(&self) -> bool {
        self.free_links() > 0 || self.least_used_link().is_some()
    }

    /// Makes room for one more link. False: `links-max` is reached, and no link is unused.
    pub(crate) fn make_room_for_link(&mut self) -> bool {
        if self.free_links() > 0 {
            return true;
        }
        self.note_bound(Bound::Links);
        let Some(least_used) = self.least_used_link() else {
            return false;
        };
        self.counters.links_closed_for_room += 1;
        self.close_link(least_used);
        true
    }

    /// The number of links that `links-max` still allows.
    fn free_links(&self) -> usize {
        let counts = |(_, link): &(LinkId, &Link)| {
            link.role.is_bounded_by_links_max() && link.role != LinkRole::Idle
        };
        // The configuration does not say how many of these servers there are.
        let is_unnamed = |server: &&Server| {
            let pool = &self.pools[usize::from(server.pool)];
            !server.gone && (pool.cluster().is_some() || server.replica_of.is_some())
        };
        let servers = self.servers.iter().filter(is_unnamed);
        let max = (self.settings.limits.links_max as usize).max(LINKS_PER_SERVER * servers.count());
        max.saturating_sub(self.links.iter().filter(counts).count())
    }

    /// The costs of the unused links. The first link of a server is always kept.
    fn unused_links(&self) -> impl Iterator<Item = (UnusedCost, LinkId)> {
        self.links.iter().filter_map(|(id, link)| {
            let cost = UnusedCost::of(link, self.now)?;
            (link.kind != self.default_kind(link.kind.server)).then_some((cost, id))
        })
    }

    fn least_used_link(&self) -> Option<LinkId> {
        self.unused_links().min().map(|(_, id)| id)
    }

    /// The number of links that `pinned_links_max` still allows.
    pub(crate) fn free_own_links(&self) -> usize {
        let max = self.settings.limits.pinned_links_max;
        max.saturating_sub(self.link_index.dedicated()) as usize
    }

    pub(crate) fn free_streaming_links(&self) -> usize {
        let max = self.settings.limits.streaming_links_max as usize;
        max.saturating_sub(self.streaming_links())
    }

    fn streaming_links(&self) -> usize {
        let links = self.links.iter();
        let streaming = links.filter(|(_, link)| matches!(link.role, LinkRole::Streaming { .. }));
        streaming.count()
    }
}

/// Whether a session waits for a link no longer: it was closed, or its deadline has come.
fn is_over(session: Option<&Session>, now: Time) -> bool {
    session.is_none_or(|session| session.deadline().is_some_and(|at| now >= at))
}

/// Sessions that wait for room.
impl DataPlane {
    /// The shared link of a kind, for the next request of a session. If there is no room for the
    /// link, the session waits, at most until its deadline.
    pub(crate) fn shared_link_for(
        &mut self,
        id: SessionId,
        kind: LinkKind,
    ) -> Result<LinkId, Blocked> {
        let kind = self.kind_with_room(kind);
        if let Some(link) = self.link_index.shared(&kind) {
            return Ok(link);
        }
        let room = self.free_links() + self.unused_links().count();
        if self.link_waiters.shared.admit(id, 1, room)
            && let Some(link) = self.shared_link(kind)
        {
            if self.link_waiters.shared.leave(id) {
                self.set_deadline(id, None);
            }
            return Ok(link);
        }
        Err(self.wait_for_link(id))
    }

    /// Makes a session wait because there is no room for its link. Past its deadline, it is
    /// refused.
    fn wait_for_link(&mut self, id: SessionId) -> Blocked {
        if self.is_past_deadline(id) {
            self.link_waiters.shared.leave(id);
            self.set_deadline(id, None);
            return Blocked::Refused(bound_reply(Bound::Links.name()));
        }
        if self.deadline_of(id).is_none() {
            self.note_bound(Bound::Links);
        }
        self.begin_to_wait(id);
        self.link_waiters.shared.wait(id);
        self.hold(id, Holds::ROOM);
        Blocked::Wait
    }

    /// Releases requests past their deadline, which are refused when they are dispatched again.
    /// Releases sessions for which there is room, too.
    pub(crate) fn tick_waiters(&mut self) {
        let (now, sessions) = (self.now, &self.sessions);
        let is_over = |id| is_over(sessions.get(id), now);
        let own = self.link_waiters.pinned.tick(is_over);
        let streaming = self.link_waiters.streaming.tick(is_over);
        let (emergency, rest) = std::mem::take(&mut self.link_waiters.emergency)
            .into_iter()
            .partition::<VecDeque<SessionId>, _>(|id| is_over(*id));
        self.link_waiters.emergency = rest;
        for id in own.into_iter().chain(emergency) {
            self.release(id, Holds::ROOM);
        }
        for id in streaming {
            self.release(id, Holds::LINK);
        }
        self.next_pinned();
        self.next_streaming();
        self.next_emergency();
        self.tick_link_waiters();
    }

    /// Releases sessions that wait at a link past their deadline.
    pub(crate) fn tick_at_link(&mut self, link_id: LinkId) {
        let Some(link) = self.links.get_mut(link_id) else {
            return;
        };
        if link.waiters.is_empty() {
            return;
        }
        let waiters = std::mem::take(&mut link.waiters);
        let (late, rest) = waiters
            .into_iter()
            .partition::<Vec<SessionId>, _>(|id| self.is_past_deadline(*id));
        if let Some(link) = self.links.get_mut(link_id) {
            link.waiters = rest;
        }
        for id in late {
            self.release(id, Holds::LINK);
        }
    }

    /// A tick: continues sessions that have room for their links, and sessions past their deadline.
    /// The latter are refused when they try again.
    fn tick_link_waiters(&mut self) {
        let (now, sessions) = (self.now, &self.sessions);
        let is_over = |id| is_over(sessions.get(id), now);
        let mut next = self.link_waiters.shared.tick(is_over);
        if !self.link_waiters.shared.is_empty() {
            let room = self.free_links() + self.unused_links().count();
            let readiness = |id| Readiness::of(self.sessions.get(id), Holds::ROOM);
            next.extend(self.link_waiters.shared.wake(room, readiness));
        }
        for id in next {
            self.release(id, Holds::ROOM);
        }
    }

    /// Wakes as many sessions as there may be more pinned links.
    pub(crate) fn next_pinned(&mut self) {
        let free = self.free_own_links();
        let sessions = &self.sessions;
        let readiness = |id| Readiness::of(sessions.get(id), Holds::ROOM);
        for waiter in self.link_waiters.pinned.wake(free, readiness) {
            self.release(waiter, Holds::ROOM);
        }
    }

    /// Wakes as many sessions as there may be more links for large requests.
    pub(crate) fn next_streaming(&mut self) {
        if self.link_waiters.streaming.is_empty() {
            return;
        }
        let free = self.free_streaming_links();
        let sessions = &self.sessions;
        let readiness = |id| Readiness::of(sessions.get(id), Holds::LINK);
        for waiter in self.link_waiters.streaming.wake(free, readiness) {
            self.release(waiter, Holds::LINK);
        }
    }

    /// An emergency link may be free: the first session that waits for one goes on.
    pub(crate) fn next_emergency(&mut self) {
        while let Some(id) = self.link_waiters.emergency.pop_front() {
            if self.sessions.get(id).is_some() {
                return self.release(id, Holds::ROOM);
            }
        }
    }

    /// Opens a link that has room again. Sessions that wait for it continue.
    pub(crate) fn reopen(&mut self, id: LinkId) {
        let limits = &self.settings.limits;
        let paused = self.is_link_paused(id);
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        let least_room = match link.reply_room.is_careful() {
            true => link.reply_room.replies_max(),
            false => link.reply_room.replies_max().div_ceil(2),
        };
        let room = link.ledger.len() + least_room <= link.reply_room.replies_max()
            && link.ledger.unanswered_bytes() <= limits.link_unanswered_bytes_max as usize / 2;
        let is_down = matches!(
            link.state,
            LinkState::Down | LinkState::Lost | LinkState::Backoff { .. }
        );
        if !room || is_down {
            return;
        }
        link.admit(link.may_take(), paused);
        self.wake_for_room(id);
    }
}

#[cfg(test)]
mod tests {
    use respool_protocol::encode::Version;

    use super::*;
    use crate::routing::pool::ServerId;

    const NOW: Time = Time(5_000);

    fn unused(user: u16, sessions: u32, used_at: u64) -> Link {
        let kind = LinkKind {
            server: ServerId(0),
            version: Version::Resp2,
            db: 1,
            user,
            lane: 0,
        };
        let mut link = Link::new(kind, LinkRole::Shared, 0, Time(used_at));
        link.attached = sessions;
        link
    }

    fn cost(link: &Link) -> Option<UnusedCost> {
        UnusedCost::of(link, NOW)
    }

    /// A link that no session uses goes first, then the one that was used longest ago.
    #[test]
    fn link_of_sessions_is_closed_last() {
        let mut links = [
            unused(CONFIGURED + 1, 1, 1_000),
            unused(CONFIGURED, 1, 3_000),
            unused(CONFIGURED, 0, 4_000),
            unused(CONFIGURED, 0, 2_000),
        ];
        links.sort_by_key(cost);
        let order = links.map(|link| link.progress.0);
        assert_eq!(order, [2_000, 4_000, 3_000, 1_000]);
    }

    /// A link that was used in this turn may be about to get a request.
    #[test]
    fn link_in_use_is_not_closed() {
        assert!(cost(&unused(CONFIGURED, 0, 4_999)).is_some());
        assert_eq!(cost(&unused(CONFIGURED, 0, 5_000)), None);
        type LinkUse = fn(&mut Link);
        let uses: [LinkUse; 5] = [
            |link| link.unused_since = NOW,
            |link| link.waiters.push(SessionId::NONE),
            |link| link.unread_since = Some(Time(0)),
            |link| {
                link.role = LinkRole::Draining {
                    by: SessionId::NONE,
                }
            },
            |link| link.state = LinkState::Connecting { since: Time(0) },
        ];
        for used in uses {
            let mut link = unused(CONFIGURED, 0, 1_000);
            used(&mut link);
            assert_eq!(cost(&link), None);
        }
    }
}
