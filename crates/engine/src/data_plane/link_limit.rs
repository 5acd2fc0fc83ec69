//! Room for one more link within `links-max`.
//!
//! ```text
//!   a link is needed ──► fewer than links-max: the link is made
//!                   └──► links-max: the idlest shared link is closed, and the link is made
//!                            └──► no link is idle: the session waits, at most until its deadline
//! ```
//!
//! Sessions may ride on an idle link. After its end, each gets a link again with its next request.

use std::sync::Arc;

use crate::auth::CONFIGURED;
use crate::bounds::Bound;
use crate::engine::Engine;
use crate::limits::LINKS_PER_SERVER;
use crate::link::{Link, LinkKey, Role, State};
use crate::pool::Server;
use crate::requests::{Blocked, bound_reply};
use crate::session::Flags;
use crate::slots::Key;
use crate::time::Time;
use crate::waiters::Readiness;

/// The cost of closing an idle link. The cheapest one is closed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// Whether sessions ride on it: they need it again with their next requests.
    has_riders: bool,
    /// Whether it has the login of a client: the server may know another password by now.
    has_login: bool,
    /// When it was used last.
    used_at: Time,
}

impl Cost {
    /// `None`: the link is in use, or was used in this turn. Then its key may be held by the code
    /// that asks for one link more.
    fn of(link: &Link, now: Time) -> Option<Cost> {
        let is_connected = match link.state {
            State::Up | State::Down | State::Resting { .. } | State::Retrying { .. } => true,
            State::Connecting { .. } | State::Greeting { .. } => false,
        };
        let is_idle = link.role == Role::Shared
            && is_connected
            && link.is_idle()
            && link.again.is_empty()
            && link.waiters.is_empty()
            && link.paused.is_none()
            && Arc::strong_count(&link.held) == 1;
        let cost = Cost {
            has_riders: link.riders > 0,
            has_login: link.key.user != CONFIGURED,
            used_at: link.progress.max(link.unused_since),
        };
        (is_idle && cost.used_at < now).then_some(cost)
    }
}

impl Engine {
    /// Whether there may be one more link that is not a session's own, perhaps in the place of an
    /// idle one. Links of one session have a bound of their own.
    pub(crate) fn has_room_for_link(&self) -> bool {
        self.free_links() > 0 || self.idlest_link().is_some()
    }

    /// Makes room for one more link. False: `links-max` is reached, and no link is idle.
    pub(crate) fn make_room_for_link(&mut self) -> bool {
        if self.free_links() > 0 {
            return true;
        }
        self.note_bound(Bound::Links);
        let Some(idlest) = self.idlest_link() else {
            return false;
        };
        self.counters.links_closed_for_room += 1;
        self.close_link(idlest);
        true
    }

    /// How many links fewer than `links-max` there are.
    fn free_links(&self) -> usize {
        let counts = |(_, link): &(Key, &Link)| {
            link.role.is_bounded_by_links_max() && link.role != Role::Spare
        };
        // The settings do not say how many of these servers there are.
        let is_unnamed = |server: &&Server| {
            let pool = &self.pools[usize::from(server.pool)];
            !server.gone && (pool.cluster().is_some() || server.replica_of.is_some())
        };
        let servers = self.servers.iter().filter(is_unnamed);
        let max = (self.settings.limits.links_max as usize).max(LINKS_PER_SERVER * servers.count());
        max.saturating_sub(self.links.iter().filter(counts).count())
    }

    /// The costs of the idle links. The first link of a server is always kept.
    fn idle_links(&self) -> impl Iterator<Item = (Cost, Key)> {
        self.links.iter().filter_map(|(key, link)| {
            let cost = Cost::of(link, self.now)?;
            (link.key != self.first_link(link.key.server)).then_some((cost, key))
        })
    }

    fn idlest_link(&self) -> Option<Key> {
        self.idle_links().min().map(|(_, key)| key)
    }

    /// The shared link of a kind, for the next request of a session. If there is no room for it, the
    /// session waits, at most until its deadline.
    pub(crate) fn shared_link_for(&mut self, key: Key, kind: LinkKey) -> Result<Key, Blocked> {
        let kind = self.kind_with_room(kind);
        if let Some(link) = self.shared.get(&kind) {
            return Ok(*link);
        }
        let room = self.free_links() + self.idle_links().count();
        if self.bounds.link_waiters.admit(key, 1, room)
            && let Some(link) = self.shared_link(kind)
        {
            if self.bounds.link_waiters.leave(key) {
                self.set_gives_up_at(key, None);
            }
            return Ok(link);
        }
        Err(self.wait_for_link(key))
    }

    /// There is no room for the link that a session needs.
    fn wait_for_link(&mut self, key: Key) -> Blocked {
        if self.is_past_deadline(key) {
            self.bounds.link_waiters.leave(key);
            self.set_gives_up_at(key, None);
            return Blocked::Refused(bound_reply(Bound::Links.name()));
        }
        if self.deadline_of(key).is_none() {
            self.note_bound(Bound::Links);
        }
        self.begin_to_wait(key);
        self.bounds.link_waiters.wait(key);
        self.hold(key, Flags::HOLD_ROOM);
        Blocked::Wait
    }

    /// A tick: a session goes on if there is room for its link. So does one past its deadline;
    /// it is refused when it asks again.
    pub(crate) fn tick_link_waiters(&mut self) {
        let (now, sessions) = (self.now, &self.sessions);
        let is_over = |key| {
            let session = sessions.get(key);
            session.is_none_or(|session| session.gives_up_at().is_some_and(|at| now >= at))
        };
        let mut next = self.bounds.link_waiters.tick(is_over);
        if !self.bounds.link_waiters.is_empty() {
            let room = self.free_links() + self.idle_links().count();
            let readiness = |key| Readiness::of(self.sessions.get(key), Flags::HOLD_ROOM);
            next.extend(self.bounds.link_waiters.wake(room, readiness));
        }
        for key in next {
            self.release(key, Flags::HOLD_ROOM);
        }
    }
}

#[cfg(test)]
mod tests {
    use respool_protocol::encode::Version;

    use super::*;
    use crate::pool::ServerId;

    const NOW: Time = Time(5_000);

    fn idle(user: u16, riders: u32, used_at: u64) -> Link {
        let kind = LinkKey {
            server: ServerId(0),
            version: Version::Resp2,
            db: 1,
            user,
            lane: 0,
        };
        let mut link = Link::new(kind, Role::Shared, 0, Time(used_at));
        link.riders = riders;
        link
    }

    fn cost(link: &Link) -> Option<Cost> {
        Cost::of(link, NOW)
    }

    /// A link without riders goes first, then the one that was used longest ago.
    #[test]
    fn link_that_sessions_ride_on_goes_last() {
        let mut links = [
            idle(CONFIGURED + 1, 1, 1_000),
            idle(CONFIGURED, 1, 3_000),
            idle(CONFIGURED, 0, 4_000),
            idle(CONFIGURED, 0, 2_000),
        ];
        links.sort_by_key(cost);
        let order = links.map(|link| link.progress.0);
        assert_eq!(order, [2_000, 4_000, 3_000, 1_000]);
    }

    /// A link that was used in this turn may be about to get a request.
    #[test]
    fn link_in_use_is_not_closed() {
        assert!(cost(&idle(CONFIGURED, 0, 4_999)).is_some());
        assert_eq!(cost(&idle(CONFIGURED, 0, 5_000)), None);
        type Use = fn(&mut Link);
        let uses: [Use; 5] = [
            |link| link.unused_since = NOW,
            |link| link.waiters.push(Key::NOBODY),
            |link| link.paused = Some(Time(0)),
            |link| link.role = Role::Captured { by: Key::NOBODY },
            |link| link.state = State::Connecting { since: Time(0) },
        ];
        for used in uses {
            let mut link = idle(CONFIGURED, 0, 1_000);
            used(&mut link);
            assert_eq!(cost(&link), None);
        }
    }
}
