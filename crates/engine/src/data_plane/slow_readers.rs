//! Sessions that ask for large replies, or take them slowly, ride on links apart. So does code that
//! may be slow.
//!
//! ```text
//!   lane 0      all other sessions of a kind
//!   lanes 1, 2  large readers: one such session is owed more than REPLIES_OWED_MAX at a time
//!   lanes 3, 4  slow readers: such a session took nothing while its link owed replies to strangers
//!   lane 5      one request of any session that may hold up its link (`quick_code.rs`)
//! ```
//!
//! A *stranger* of a session is another session with a request behind it on the same link. How long
//! strangers wait is counted for each kind of link, over all slow readers. At the bound the next
//! slow reader is closed at once.
//!
//! A reply that comes whole in one read costs no question. The size of a reply is looked at only
//! where the end of a read cuts it, and most large replies are cut. A session changes its lane only
//! while nothing of it is in flight, so its requests never overtake each other.
//!
//! Rejected: a link for each slow reader. A hundred of them would take all links that the server
//! grants, and the sessions behind that bound would be refused. In a lane slow readers wait for
//! each other alone.

use std::collections::HashMap;

use crate::engine::Engine;
use crate::entry::Entry;
use crate::limits::{
    APART_MS, APART_SESSIONS_MAX, CODE_LINKS, LARGE_READER_LINKS, LARGE_REPLY_BYTES,
    REPLIES_OWED_MAX, SLOW_READER_LINKS, STRANGERS_WAIT_SHARE,
};
use crate::link::{Link, LinkKey, Role, State};
use crate::session::{Flags, Session};
use crate::slots::Key;
use crate::time::Time;

/// Which of the links of one kind a session rides on; 0 is the one that most share.
pub(crate) type Lane = u8;

/// The link that all sessions share that are not set apart.
pub(crate) const EVERYBODYS: Lane = 0;

/// The link for code that may be slow. A session rides on it for one request.
pub(crate) const CODE_LANE: Lane = LARGE_READER_LINKS + SLOW_READER_LINKS + CODE_LINKS;

/// Why a session is set apart, from the lesser to the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Why {
    /// It asks for large replies.
    Large,
    /// It held a link up.
    Slow,
}

impl Why {
    fn lanes(self) -> std::ops::RangeInclusive<Lane> {
        match self {
            Why::Large => 1..=LARGE_READER_LINKS,
            Why::Slow => LARGE_READER_LINKS + 1..=LARGE_READER_LINKS + SLOW_READER_LINKS,
        }
    }
}

/// A session that is set apart.
#[derive(Clone, Copy, Debug)]
struct Apart {
    session: Key,
    why: Why,
    /// The lane that it is to ride on: it changes once nothing of the session is in flight.
    lane: Lane,
    until: Time,
}

/// What the last large replies of a session were like.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    /// The smoothed mean of their bytes.
    mean: u32,
    /// Bytes of the one that is being passed on.
    coming: u32,
}

/// How long strangers have waited at the links of one kind.
#[derive(Clone, Copy, Debug)]
struct Waited {
    us: u64,
    at: Time,
}

impl Waited {
    /// What still counts: a small share of the time that passes is forgiven.
    fn now(self, now: Time) -> u64 {
        let forgiven = now.since_us(self.at) / STRANGERS_WAIT_SHARE;
        self.us.saturating_sub(forgiven)
    }
}

/// What is known of slow and large readers. Report sizes with [`SlowReaders::note_part`] and
/// [`SlowReaders::note_reply`], waits with [`SlowReaders::strangers_wait`]. Poll
/// [`SlowReaders::all_apart`] in every tick. Time never runs back.
#[derive(Debug, Default)]
pub(crate) struct SlowReaders {
    /// By the numbers of sessions, as are their sizes.
    apart: HashMap<u64, Apart>,
    sizes: HashMap<u64, Size>,
    waited: HashMap<LinkKey, Waited>,
    /// Sessions that could not change their lanes. They are tried again at the next tick.
    delayed: Vec<Key>,
}

impl SlowReaders {
    /// The lane that a session is to ride on.
    fn wanted(&self, session: u64) -> Lane {
        let apart = self.apart.get(&session);
        apart.map_or(EVERYBODYS, |apart| apart.lane)
    }

    /// Whether a session that rides on this lane is to change it.
    #[inline]
    fn is_to_change(&self, session: u64, rides: Lane) -> bool {
        match self.apart.is_empty() {
            true => rides != EVERYBODYS,
            false => rides != self.wanted(session),
        }
    }

    /// Bytes of a reply that goes to a session before it has come whole. Returns whether the
    /// session is owed too much; `unanswered` counts its requests, with this one.
    fn note_part(&mut self, session: u64, bytes: usize, unanswered: u32) -> bool {
        self.make_room_for_sizes(session);
        let size = self.sizes.entry(session).or_default();
        size.coming = size.coming.saturating_add(small(bytes));
        let each = u64::from(size.coming.max(size.mean));
        each * u64::from(unanswered) > REPLIES_OWED_MAX
    }

    /// The same for a reply that has come, `bytes` of it since the last part.
    fn note_reply(&mut self, session: u64, bytes: usize, unanswered: u32) -> bool {
        self.make_room_for_sizes(session);
        let size = self.sizes.entry(session).or_default();
        let its = std::mem::take(&mut size.coming).saturating_add(small(bytes));
        size.mean = size.mean - size.mean / 4 + its / 4;
        u64::from(size.mean) * u64::from(unanswered) > REPLIES_OWED_MAX
    }

    /// At the bound what was learned is forgotten: a large reader is soon known again.
    fn make_room_for_sizes(&mut self, session: u64) {
        if self.sizes.len() >= APART_SESSIONS_MAX && !self.sizes.contains_key(&session) {
            self.sizes.clear();
        }
    }

    /// Sets a session apart, or for longer. Returns whether it has got another lane.
    fn set_apart(&mut self, number: u64, session: Key, why: Why, now: Time) -> bool {
        let until = now.plus_ms(APART_MS);
        if let Some(apart) = self.apart.get_mut(&number) {
            apart.until = until;
            if apart.lane != EVERYBODYS && apart.why >= why {
                return false;
            }
        } else if self.apart.len() >= APART_SESSIONS_MAX {
            return false;
        }
        let members = |lane: &Lane| self.apart.values().filter(|its| its.lane == *lane).count();
        let lane = why.lanes().min_by_key(members).unwrap_or(EVERYBODYS);
        let apart = Apart {
            session,
            why,
            lane,
            until,
        };
        self.apart.insert(number, apart);
        true
    }

    /// Nothing of a session is in flight, and it changes its lane. Returns which one it is to ride
    /// on.
    fn change_lane(&mut self, session: u64) -> Lane {
        let lane = self.wanted(session);
        if lane == EVERYBODYS {
            self.apart.remove(&session);
        }
        lane
    }

    /// A session is gone.
    #[inline]
    pub(crate) fn forget(&mut self, session: u64) {
        if !self.apart.is_empty() || !self.sizes.is_empty() {
            self.apart.remove(&session);
            self.sizes.remove(&session);
        }
    }

    /// The sessions that are set apart. At the end of its time a session is to ride with all others
    /// again.
    fn all_apart(&mut self, now: Time) -> Vec<Key> {
        for apart in self.apart.values_mut() {
            if now >= apart.until {
                apart.lane = EVERYBODYS;
            }
        }
        let all = self.apart.values();
        all.map(|apart| apart.session).collect()
    }

    /// Strangers wait at a link of this kind, which has not been read since `since`. Returns how
    /// long they have waited at all such links lately, microseconds. Time that passes at several
    /// links together counts once.
    fn strangers_wait(&mut self, kind: LinkKey, since: Time, now: Time) -> u64 {
        let counted = self.waited.get(&kind).map_or(since, |waited| waited.at);
        let us = self.waited(kind, now) + now.since_us(counted.max(since));
        self.waited.insert(kind, Waited { us, at: now });
        us
    }

    /// How long strangers have waited at links of this kind lately, microseconds.
    fn waited(&self, kind: LinkKey, now: Time) -> u64 {
        let waited = self.waited.get(&kind);
        waited.map_or(0, |waited| waited.now(now))
    }

    /// Waits that are forgiven are forgotten.
    fn forgive(&mut self, now: Time) {
        self.waited.retain(|_, waited| waited.now(now) > 0);
    }
}

fn small(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Lanes.
impl Engine {
    /// The kind of the link that a session shares with others.
    pub(crate) fn shared_kind_of(&self, session: &Session) -> LinkKey {
        LinkKey {
            lane: session.lane,
            ..self.kind_of(session)
        }
    }

    /// Bytes of a large reply that has not come whole go to a session.
    pub(crate) fn note_large_part(&mut self, link: Key, key: Key, bytes: usize) {
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        let (number, unanswered) = (session.id, session.depth());
        if self.slow_readers.note_part(number, bytes, unanswered) {
            self.set_apart(link, key, Why::Large);
        }
    }

    /// A reply has come whole, in more than one read; with `bytes` it ends.
    pub(crate) fn note_cut_reply(&mut self, link: Key, key: Key, bytes: usize, is_large: bool) {
        if bytes < LARGE_REPLY_BYTES && !is_large {
            return;
        }
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        let (number, unanswered) = (session.id, session.depth() + 1);
        if self.slow_readers.note_reply(number, bytes, unanswered) {
            self.set_apart(link, key, Why::Large);
        }
    }

    /// A session is not to ride with all others for a while. It stays until nothing of it is in
    /// flight.
    pub(crate) fn set_apart(&mut self, link: Key, key: Key, why: Why) {
        let shares = |link: &Link| link.role.is_manys();
        if !self.links.get(link).is_some_and(shares) {
            return;
        }
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        if self.slow_readers.set_apart(session.id, key, why, self.now) {
            self.slow.push((link, key));
        }
    }

    /// A session that is to change its lane does so, or waits until it may.
    pub(crate) fn change_lane(&mut self, key: Key) {
        // The rest of a request that is cut through must not wait for its reply.
        let is_to_change = |session: &Session| {
            self.slow_readers.is_to_change(session.id, session.lane)
                && !session.flags.any(Flags::STREAMING | Flags::SWALLOWING)
        };
        if !self.sessions.get(key).is_some_and(is_to_change) || self.hold_until_caught_up(key) {
            return;
        }
        if self.would_overtake(key) {
            return self.slow_readers.delayed.push(key);
        }
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        session.lane = self.slow_readers.change_lane(session.id);
        self.ride_in_lane(key);
    }

    /// A session that rides with all others has a request that may hold up its link. Nothing of the
    /// session is in flight.
    pub(crate) fn visit_code_lane(&mut self, key: Key) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.lane = CODE_LANE;
            self.ride_in_lane(key);
        }
    }

    /// Whether there is, or may be, a link of this kind in a lane apart. A server may refuse one more
    /// connection: then its requests travel with all others.
    pub(crate) fn has_lane_link(&self, kind: LinkKey) -> bool {
        let rests = |link: &Link| matches!(link.state, State::Resting { .. });
        let link = self.shared.get(&kind);
        match link.and_then(|link| self.links.get(*link)) {
            Some(link) => !rests(link),
            None => self.kind_with_room(kind) == kind,
        }
    }

    /// The link for code could not be connected. Its requests travel with all others, if these have
    /// a link.
    pub(crate) fn leave_code_lane(&mut self, key: Key) {
        let Some(link) = self.links.get(key) else {
            return;
        };
        let kind = LinkKey {
            lane: EVERYBODYS,
            ..link.key
        };
        let is_code_link = link.key.lane == CODE_LANE && link.role == Role::Shared;
        let others = self.shared.get(&kind).copied().filter(|_| is_code_link);
        let is_up = |link: &Key| self.links.get(*link).is_some_and(Link::is_up);
        if let Some(others) = others.filter(is_up)
            && let Some(link) = self.links.get_mut(key)
        {
            let left = link.take_left(|_, _| true);
            self.put_moved(others, left);
        }
    }

    /// Whether a link still owes the reply to a write of this session that was given up at its
    /// deadline. The session's next request must not overtake the write.
    pub(crate) fn would_overtake(&mut self, key: Key) -> bool {
        let Some(rare) = self.sessions.get_mut(key).and_then(|its| its.rare.as_mut()) else {
            return false;
        };
        // The ledger does not name the session any more.
        let owes = |link: &Key| {
            self.links.get(*link).is_some_and(|link| {
                let mut ledger = link.ledger.iter();
                ledger.any(|entry| entry.session == Key::NOBODY && !entry.class.reads())
            })
        };
        rare.gave_up.retain(owes);
        !rare.gave_up.is_empty()
    }

    /// The request of a session on this link was given up, and the server may execute it yet.
    pub(crate) fn note_given_up(&mut self, link: Key, entry: &Entry) {
        if entry.class.reads() {
            return;
        }
        if let Some(session) = self.sessions.get_mut(entry.session) {
            let gave_up = &mut session.rare().gave_up;
            if !gave_up.contains(&link) {
                gave_up.push(link);
            }
        }
    }

    /// A session without a link of its own rides on the link of its lane. Nothing of it is in
    /// flight.
    fn ride_in_lane(&mut self, key: Key) {
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        let is_free = session.pins.is_empty()
            && session.is_caught_up()
            && !session.flags.any(Flags::STREAMING | Flags::SWALLOWING);
        let (kind, rides) = (self.shared_kind_of(session), session.link);
        if !is_free {
            return;
        }
        let Some(link) = self.shared_link(kind).filter(|link| *link != rides) else {
            return;
        };
        self.ride(key, link);
    }

    /// Sessions that are set apart are seen to: one may have changed its user or database.
    pub(crate) fn tick_slow_readers(&mut self) {
        let now = self.now;
        self.slow_readers.forgive(now);
        let mut all = std::mem::take(&mut self.slow_readers.delayed);
        if !self.slow_readers.apart.is_empty() {
            all.extend(self.slow_readers.all_apart(now));
        }
        for key in all {
            let Some(session) = self.sessions.get(key) else {
                continue;
            };
            let lane = session.lane;
            let rides_elsewhere = |link: &Link| link.role == Role::Shared && link.key.lane != lane;
            let (is_free, link) = (session.is_caught_up(), session.link);
            if self.slow_readers.is_to_change(session.id, lane) {
                if is_free {
                    self.change_lane(key);
                }
            } else if self.links.get(link).is_some_and(rides_elsewhere)
                && is_free
                && !self.would_overtake(key)
            {
                self.ride_in_lane(key);
            }
        }
    }

    /// The kind of link that sessions of this kind share now. If a lane has no link, and none may be
    /// made, that is the link of all other sessions.
    pub(crate) fn kind_with_room(&self, kind: LinkKey) -> LinkKey {
        let is_apart = kind.lane != EVERYBODYS && !self.shared.contains_key(&kind);
        match is_apart && !self.has_room_in_lanes(kind.lane == CODE_LANE) {
            true => LinkKey {
                lane: EVERYBODYS,
                ..kind
            },
            false => kind,
        }
    }

    /// Whether there may be one more link for code, or for large and slow readers. Each of the two
    /// has a bound of its own.
    fn has_room_in_lanes(&self, for_code: bool) -> bool {
        let is_of_kind = |(_, link): &(Key, &Link)| {
            link.key.lane != EVERYBODYS && (link.key.lane == CODE_LANE) == for_code
        };
        let count = self.links.iter().filter(is_of_kind).count();
        count < self.settings.limits.links_max as usize / 4 && self.has_room_for_link()
    }
}

/// Strangers.
impl Engine {
    /// Whether requests of others wait on a link behind its captor.
    pub(crate) fn strangers_wait(&self, link: Key) -> bool {
        let Some(link) = self.links.get(link) else {
            return false;
        };
        let captor = link.role.captor();
        let mut ledger = link.ledger.iter();
        ledger.any(|entry| entry.session != captor && self.sessions.get(entry.session).is_some())
    }

    /// Counts the wait of strangers at a link that is not read. Returns whether they have waited as
    /// long as they may.
    pub(crate) fn count_strangers_wait(&mut self, link: Key) -> bool {
        let (now, limit_ms) = (self.now, self.settings.limits.stranger_stall_ms);
        let Some((kind, since)) = self
            .links
            .get(link)
            .and_then(|link| Some((link.key, link.paused?)))
        else {
            return false;
        };
        let waited = self.slow_readers.strangers_wait(kind, since, now);
        waited >= u64::from(limit_ms) * 1_000
    }

    /// Whether strangers have waited at links like this as long as they may.
    pub(crate) fn strangers_have_waited(&self, link: Key) -> bool {
        let limit_us = u64::from(self.settings.limits.stranger_stall_ms) * 1_000;
        let kind = self.links.get(link).map(|link| link.key);
        kind.is_some_and(|kind| self.slow_readers.waited(kind, self.now) >= limit_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::ServerId;
    use respool_protocol::encode::Version;

    const KIND: LinkKey = LinkKey {
        server: ServerId(0),
        version: Version::Resp2,
        db: 0,
        user: 0,
        lane: EVERYBODYS,
    };

    fn key(index: u32) -> Key {
        Key {
            index,
            generation: 1,
        }
    }

    fn at_ms(ms: u32) -> Time {
        Time(0).plus_ms(ms)
    }

    #[test]
    fn pipeline_of_large_replies_is_owed_too_much() {
        let mut readers = SlowReaders::default();
        let large = 100 << 10;
        assert!(!readers.note_reply(1, large, 1));
        assert!(readers.note_reply(1, large, 100));
        assert!(!readers.note_reply(2, 4 << 10, 20));
    }

    #[test]
    fn one_reply_counts_by_all_of_its_parts() {
        let mut readers = SlowReaders::default();
        let part = 100 << 10;
        assert!(!readers.note_part(1, part, 1));
        assert!(!readers.note_part(1, part, 1));
        assert!(readers.note_part(1, part, 1));
        assert!(
            !readers.note_reply(1, 0, 1),
            "its share of the mean is 75 KiB"
        );
        assert!(!readers.note_part(1, part, 1), "the next reply begins");
    }

    #[test]
    fn session_changes_its_lane_only_when_told() {
        let mut readers = SlowReaders::default();
        assert!(readers.set_apart(7, key(1), Why::Large, at_ms(0)));
        assert!(readers.is_to_change(7, EVERYBODYS));
        let lane = readers.change_lane(7);
        assert!(Why::Large.lanes().contains(&lane) && !readers.is_to_change(7, lane));
        assert!(!readers.set_apart(7, key(1), Why::Large, at_ms(1)));
        assert!(readers.set_apart(7, key(1), Why::Slow, at_ms(2)));
        assert!(readers.is_to_change(7, lane));
        assert!(Why::Slow.lanes().contains(&readers.change_lane(7)));
        assert!(!readers.set_apart(7, key(1), Why::Large, at_ms(3)));
    }

    #[test]
    fn sessions_spread_over_the_lanes() {
        let mut readers = SlowReaders::default();
        for number in 0..6 {
            readers.set_apart(number, key(number as u32), Why::Slow, at_ms(0));
        }
        for lane in Why::Slow.lanes() {
            let riders = (0..6).filter(|number| readers.wanted(*number) == lane);
            assert_eq!(riders.count(), 6 / usize::from(SLOW_READER_LINKS));
        }
    }

    #[test]
    fn session_rides_with_the_others_again_after_its_time() {
        let mut readers = SlowReaders::default();
        readers.set_apart(7, key(1), Why::Slow, at_ms(0));
        let lane = readers.change_lane(7);
        readers.all_apart(at_ms(APART_MS - 1));
        assert!(!readers.is_to_change(7, lane));
        readers.all_apart(at_ms(APART_MS));
        assert!(readers.is_to_change(7, lane));
        assert_eq!(readers.change_lane(7), EVERYBODYS);
        assert!(readers.apart.is_empty());
    }

    #[test]
    fn number_of_sessions_apart_is_bounded() {
        let mut readers = SlowReaders::default();
        for number in 0..2 * APART_SESSIONS_MAX as u64 {
            readers.set_apart(number, key(number as u32), Why::Slow, at_ms(0));
            readers.note_reply(number, 1 << 20, 1);
        }
        assert_eq!(readers.apart.len(), APART_SESSIONS_MAX);
        assert!(readers.sizes.len() <= APART_SESSIONS_MAX);
        for number in 0..2 * APART_SESSIONS_MAX as u64 {
            readers.forget(number);
        }
        assert!(readers.apart.is_empty() && readers.sizes.is_empty());
    }

    #[test]
    fn waits_of_strangers_add_up_and_are_forgiven_slowly() {
        let mut readers = SlowReaders::default();
        assert_eq!(readers.strangers_wait(KIND, at_ms(0), at_ms(50)), 50_000);
        // At another link, which was there meanwhile.
        let forgiven = 50_000 / STRANGERS_WAIT_SHARE;
        let waited = readers.strangers_wait(KIND, at_ms(20), at_ms(100));
        assert_eq!(waited, 100_000 - forgiven);
        // At a later one.
        let forgiven = forgiven + 100_000 / STRANGERS_WAIT_SHARE;
        let waited = readers.strangers_wait(KIND, at_ms(180), at_ms(200));
        assert_eq!(waited, 120_000 - forgiven);
        let other = LinkKey { db: 1, ..KIND };
        assert_eq!(readers.waited(other, at_ms(200)), 0);
        let long = at_ms(200 + 120 * STRANGERS_WAIT_SHARE as u32);
        assert_eq!(readers.waited(KIND, long), 0);
        readers.forgive(long);
        assert!(readers.waited.is_empty());
    }
}
