//! Links apart for sessions that ask for large replies or take them slowly, and for code that may
//! be slow.
//!
//! ```text
//!   lane 0      all other sessions of a kind
//!   lanes 1, 2  large readers: one such session is owed more than REPLIES_OWED_MAX at a time
//!   lanes 3, 4  slow readers: such a session took nothing while its link owed replies to others
//!   lane 5      one request of any session that may hold up its link (`quick_code.rs`)
//! ```
//!
//! A slow reader makes the other sessions with requests behind it on the same link wait. Their
//! waits are counted for each kind of link, over all slow readers. At the bound the next slow
//! reader is closed at once.
//!
//! A reply that comes whole in one read costs no check. The size of a reply is looked at only where
//! the end of a read cuts it, and most large replies are cut. A session changes its lane only while
//! it has nothing in flight, so its requests never overtake each other.
//!
//! Rejected: a link for each slow reader. A hundred of them would take all links that the server
//! grants, and the sessions behind that bound would be refused. In a lane, slow readers wait only
//! for each other.

use std::collections::HashMap;

use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::{
    APART_MS, APART_SESSIONS_MAX, CODE_LINKS, LARGE_READER_LINKS, LARGE_REPLY_BYTES,
    REPLIES_OWED_MAX, SLOW_READER_LINKS, STRANGERS_WAIT_DIVISOR,
};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::ledger::Entry;
use crate::data_plane::ledger::departed::Departed;
use crate::data_plane::link::{Link, LinkKind, LinkRole, LinkState};
use crate::data_plane::session::Session;

/// The link of a kind to which a session is attached. Most sessions share lane 0.
pub(crate) type LinkLane = u8;

/// The lane of all sessions that are not set apart.
pub(crate) const DEFAULT_LANE: LinkLane = 0;

/// The lane for code that may be slow. A session is attached to its link for one request.
pub(crate) const CODE_LANE: LinkLane = LARGE_READER_LINKS + SLOW_READER_LINKS + CODE_LINKS;

/// The reasons to set a session apart, from the lesser to the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LaneReason {
    /// The session asks for large replies.
    Large,
    /// The session held a link up.
    Slow,
}

impl LaneReason {
    fn lanes(self) -> std::ops::RangeInclusive<LinkLane> {
        match self {
            LaneReason::Large => 1..=LARGE_READER_LINKS,
            LaneReason::Slow => LARGE_READER_LINKS + 1..=LARGE_READER_LINKS + SLOW_READER_LINKS,
        }
    }
}

/// A session that is set apart.
#[derive(Clone, Copy, Debug)]
struct SlowReader {
    session: SessionId,
    /// The reason why the session is set apart.
    why: LaneReason,
    /// The lane that the session is to have. It changes once the session has nothing in flight.
    lane: LinkLane,
    /// The end of its time apart.
    until: Time,
}

/// The sizes of a session's last large replies, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct ReplySizes {
    /// Their smoothed mean.
    mean: u32,
    /// The bytes of the present reply that have come.
    coming: u32,
}

/// How long other sessions have waited for slow readers at the links of one kind.
#[derive(Clone, Copy, Debug)]
struct ForeignWait {
    /// Microseconds, less the time that was forgiven until `at`.
    us: u64,
    /// When the wait was last counted.
    at: Time,
}

impl ForeignWait {
    /// The wait that still counts, microseconds. A small fraction of the time that passes is
    /// forgiven.
    fn now(self, now: Time) -> u64 {
        let forgiven = now.since_us(self.at) / STRANGERS_WAIT_DIVISOR;
        self.us.saturating_sub(forgiven)
    }
}

/// The slow and large readers of a worker. Report sizes with [`SlowReaders::note_fragment`] and
/// [`SlowReaders::note_reply`], waits with [`SlowReaders::head_of_line_wait`]. Poll
/// [`SlowReaders::all_apart`] in every tick. Time never runs back.
#[derive(Debug, Default)]
pub(crate) struct SlowReaders {
    /// The sessions that are set apart, by their numbers.
    apart: HashMap<u64, SlowReader>,
    /// Sizes of large replies, by the numbers of sessions.
    sizes: HashMap<u64, ReplySizes>,
    /// Waits of other sessions, by the kind of link.
    waited: HashMap<LinkKind, ForeignWait>,
    /// Sessions that could not change their lanes. They are tried again at the next tick.
    to_retry: Vec<SessionId>,
}

impl SlowReaders {
    /// The lane that a session is to have.
    fn wanted(&self, session: u64) -> LinkLane {
        let apart = self.apart.get(&session);
        apart.map_or(DEFAULT_LANE, |apart| apart.lane)
    }

    /// Whether a session in `lane` is to change it.
    #[inline]
    fn is_to_change(&self, session: u64, lane: LinkLane) -> bool {
        match self.apart.is_empty() {
            true => lane != DEFAULT_LANE,
            false => lane != self.wanted(session),
        }
    }

    /// Notes bytes of a reply that goes to a session before it has come whole. Returns whether the
    /// session is owed too much. `unanswered` counts its requests, with this one.
    fn note_fragment(&mut self, session: u64, bytes: usize, unanswered: u32) -> bool {
        self.make_room_for_sizes(session);
        let size = self.sizes.entry(session).or_default();
        size.coming = size.coming.saturating_add(small(bytes));
        let each = u64::from(size.coming.max(size.mean));
        each * u64::from(unanswered) > REPLIES_OWED_MAX
    }

    /// Notes the end of a reply, with `bytes` since the last fragment. Returns whether the session
    /// is owed too much. `unanswered` counts its requests, with this one.
    fn note_reply(&mut self, session: u64, bytes: usize, unanswered: u32) -> bool {
        self.make_room_for_sizes(session);
        let size = self.sizes.entry(session).or_default();
        let reply_bytes = std::mem::take(&mut size.coming).saturating_add(small(bytes));
        size.mean = size.mean - size.mean / 4 + reply_bytes / 4;
        u64::from(size.mean) * u64::from(unanswered) > REPLIES_OWED_MAX
    }

    /// Forgets all sizes at the bound. A large reader is soon known again.
    fn make_room_for_sizes(&mut self, session: u64) {
        if self.sizes.len() >= APART_SESSIONS_MAX && !self.sizes.contains_key(&session) {
            self.sizes.clear();
        }
    }

    /// Sets a session apart, or for longer. Returns whether its lane changes.
    fn set_apart(&mut self, number: u64, session: SessionId, why: LaneReason, now: Time) -> bool {
        let until = now.plus_ms(APART_MS);
        if let Some(apart) = self.apart.get_mut(&number) {
            apart.until = until;
            if apart.lane != DEFAULT_LANE && apart.why >= why {
                return false;
            }
        } else if self.apart.len() >= APART_SESSIONS_MAX {
            return false;
        }
        let members = |lane: &LinkLane| {
            self.apart
                .values()
                .filter(|apart| apart.lane == *lane)
                .count()
        };
        let lane = why.lanes().min_by_key(members).unwrap_or(DEFAULT_LANE);
        let apart = SlowReader {
            session,
            why,
            lane,
            until,
        };
        self.apart.insert(number, apart);
        true
    }

    /// Ends the change of a session's lane, once the session has nothing in flight. Returns the new
    /// lane.
    fn change_lane(&mut self, session: u64) -> LinkLane {
        let lane = self.wanted(session);
        if lane == DEFAULT_LANE {
            self.apart.remove(&session);
        }
        lane
    }

    /// Forgets a session that is closed.
    #[inline]
    pub(crate) fn forget(&mut self, session: u64) {
        if !self.apart.is_empty() || !self.sizes.is_empty() {
            self.apart.remove(&session);
            self.sizes.remove(&session);
        }
    }

    /// The sessions that are set apart. A session whose time is over is to return to the common
    /// lane.
    fn all_apart(&mut self, now: Time) -> Vec<SessionId> {
        for apart in self.apart.values_mut() {
            if now >= apart.until {
                apart.lane = DEFAULT_LANE;
            }
        }
        let all = self.apart.values();
        all.map(|apart| apart.session).collect()
    }

    /// Counts the wait of other sessions at a link of this kind, which has not been read since
    /// `since`. Returns how long they have waited at all such links lately, microseconds. Time that
    /// passes at several links together counts once.
    fn head_of_line_wait(&mut self, kind: LinkKind, since: Time, now: Time) -> u64 {
        let counted = self.waited.get(&kind).map_or(since, |waited| waited.at);
        let us = self.waited(kind, now) + now.since_us(counted.max(since));
        self.waited.insert(kind, ForeignWait { us, at: now });
        us
    }

    /// How long other sessions have waited at links of this kind lately, microseconds.
    fn waited(&self, kind: LinkKind, now: Time) -> u64 {
        let waited = self.waited.get(&kind);
        waited.map_or(0, |waited| waited.now(now))
    }

    /// Drops the waits of which nothing counts any longer.
    fn forgive(&mut self, now: Time) {
        self.waited.retain(|_, waited| waited.now(now) > 0);
    }
}

fn small(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

impl DataPlane {
    /// Takes the requests of a code link that could not be connected, for the common link. `None`
    /// if that is not up.
    pub(crate) fn take_code_requests(&mut self, id: LinkId) -> Option<(LinkId, Vec<Departed>)> {
        let link = self.links.get(id)?;
        let kind = LinkKind {
            lane: DEFAULT_LANE,
            ..link.kind
        };
        let is_code_link = link.kind.lane == CODE_LANE && link.role == LinkRole::Shared;
        let common = self.link_index.shared(&kind).filter(|_| is_code_link)?;
        if !self.links.get(common).is_some_and(Link::is_up) {
            return None;
        }
        let departed = self.links.get_mut(id)?.take_departing(|_, _| true);
        Some((common, departed))
    }

    /// The kind of the shared link to which a session belongs.
    pub(crate) fn kind_with_lane(&self, session: &Session) -> LinkKind {
        LinkKind {
            lane: session.lane,
            ..self.kind_of(session)
        }
    }

    /// Notes bytes of a large reply that go to a session before the reply has come whole.
    pub(crate) fn note_large_fragment(
        &mut self,
        link: LinkId,
        session_id: SessionId,
        bytes: usize,
    ) {
        let Some(session) = self.sessions.get(session_id) else {
            return;
        };
        let (number, unanswered) = (session.id, session.depth());
        if self.slow_readers.note_fragment(number, bytes, unanswered) {
            self.set_apart(link, session_id, LaneReason::Large);
        }
    }

    /// Notes the end of a reply that came in more than one read. `bytes`: its last fragment.
    pub(crate) fn note_cut_reply(
        &mut self,
        link: LinkId,
        session_id: SessionId,
        bytes: usize,
        is_large: bool,
    ) {
        if bytes < LARGE_REPLY_BYTES && !is_large {
            return;
        }
        let Some(session) = self.sessions.get(session_id) else {
            return;
        };
        let (number, unanswered) = (session.id, session.depth() + 1);
        if self.slow_readers.note_reply(number, bytes, unanswered) {
            self.set_apart(link, session_id, LaneReason::Large);
        }
    }

    /// Sets a session apart for a while. It stays on its link until it has nothing in flight.
    pub(crate) fn set_apart(&mut self, link: LinkId, session_id: SessionId, why: LaneReason) {
        let is_multiplexed = |link: &Link| link.role.is_multiplexed();
        if !self.links.get(link).is_some_and(is_multiplexed) {
            return;
        }
        let Some(session) = self.sessions.get(session_id) else {
            return;
        };
        if self
            .slow_readers
            .set_apart(session.id, session_id, why, self.now)
        {
            self.turn.slow_pairs.push((link, session_id));
        }
    }

    /// Whether this lane has a link, or may get one. The server may refuse one more connection:
    /// then the lane's requests go to the common link.
    pub(crate) fn has_lane_link(&self, kind: LinkKind) -> bool {
        let is_in_backoff = |link: &Link| matches!(link.state, LinkState::Backoff { .. });
        let link = self.link_index.shared(&kind);
        match link.and_then(|link| self.links.get(link)) {
            Some(link) => !is_in_backoff(link),
            None => self.kind_with_room(kind) == kind,
        }
    }

    /// Whether a link still owes the reply to a write of this session that was given up at its
    /// deadline. The session's next request must not overtake the write.
    pub(crate) fn would_overtake(&mut self, id: SessionId) -> bool {
        let Some(rare) = self
            .sessions
            .get_mut(id)
            .and_then(|session| session.rare.as_mut())
        else {
            return false;
        };
        // The ledger no longer names the session.
        let owes = |link: &LinkId| {
            self.links.get(*link).is_some_and(|link| {
                let mut ledger = link.ledger.iter();
                ledger.any(|entry| entry.session == SessionId::NONE && !entry.class.reads())
            })
        };
        rare.deadlines.given_up_on.retain(owes);
        !rare.deadlines.given_up_on.is_empty()
    }

    /// Notes that a session's request on this link was given up. The server may still execute it.
    pub(crate) fn note_given_up(&mut self, link: LinkId, entry: &Entry) {
        if entry.class.reads() {
            return;
        }
        if let Some(session) = self.sessions.get_mut(entry.session) {
            let given_up_on = &mut session.rare().deadlines.given_up_on;
            if !given_up_on.contains(&link) {
                given_up_on.push(link);
            }
        }
    }

    /// The kind of the shared link for sessions of this kind at present. If a lane has no link and
    /// may get none, that is the common one.
    pub(crate) fn kind_with_room(&self, kind: LinkKind) -> LinkKind {
        let is_apart = kind.lane != DEFAULT_LANE && self.link_index.shared(&kind).is_none();
        match is_apart && !self.has_room_in_lanes(kind.lane == CODE_LANE) {
            true => LinkKind {
                lane: DEFAULT_LANE,
                ..kind
            },
            false => kind,
        }
    }

    /// Whether there may be one more link for code, or for large and slow readers. Each of the two
    /// has its own bound.
    fn has_room_in_lanes(&self, for_code: bool) -> bool {
        let is_of_kind = |(_, link): &(LinkId, &Link)| {
            link.kind.lane != DEFAULT_LANE && (link.kind.lane == CODE_LANE) == for_code
        };
        let count = self.links.iter().filter(is_of_kind).count();
        count < self.settings.limits.links_max as usize / 4 && self.has_room_for_link()
    }

    /// Whether requests of other sessions wait on a link behind its slow reader.
    pub(crate) fn head_of_line_wait(&self, link: LinkId) -> bool {
        let Some(link) = self.links.get(link) else {
            return false;
        };
        let captor = link.role.session();
        let mut ledger = link.ledger.iter();
        ledger.any(|entry| entry.session != captor && self.sessions.get(entry.session).is_some())
    }

    /// Counts the wait of other sessions at a link that is not read. Returns whether they have
    /// waited as long as they may.
    pub(crate) fn count_head_of_line_wait(&mut self, link: LinkId) -> bool {
        let (now, limit_ms) = (self.now, self.settings.limits.head_of_line_stall_ms);
        let Some((kind, since)) = self
            .links
            .get(link)
            .and_then(|link| Some((link.kind, link.unread_since?)))
        else {
            return false;
        };
        let waited = self.slow_readers.head_of_line_wait(kind, since, now);
        waited >= u64::from(limit_ms) * 1_000
    }

    /// Whether other sessions have waited at links of this kind as long as they may.
    pub(crate) fn head_of_line_waited(&self, link: LinkId) -> bool {
        let limit_us = u64::from(self.settings.limits.head_of_line_stall_ms) * 1_000;
        let kind = self.links.get(link).map(|link| link.kind);
        kind.is_some_and(|kind| self.slow_readers.waited(kind, self.now) >= limit_us)
    }

    /// Changes the lane of a session that is to change it, or holds the session until it may.
    pub(crate) fn change_lane(&mut self, session_id: SessionId) {
        // The rest of a request that is cut through must not wait for its reply.
        let is_to_change = |session: &Session| {
            self.slow_readers.is_to_change(session.id, session.lane)
                && !session.state.is_inside_large()
        };
        if !self.sessions.get(session_id).is_some_and(is_to_change)
            || self.hold_until_caught_up(session_id)
        {
            return;
        }
        if self.would_overtake(session_id) {
            return self.slow_readers.to_retry.push(session_id);
        }
        let Some(session) = self.sessions.get_mut(session_id) else {
            return;
        };
        session.lane = self.slow_readers.change_lane(session.id);
        self.attach_in_lane(session_id);
    }

    /// Attaches a session of the common lane to the code link, for a request that may hold up a
    /// link. The session must have nothing in flight.
    pub(crate) fn visit_code_lane(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.lane = CODE_LANE;
            self.attach_in_lane(id);
        }
    }

    /// Attaches a session without a link of its own to the link of its lane. The session must have
    /// nothing in flight.
    fn attach_in_lane(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let is_free =
            session.pins.is_empty() && session.is_caught_up() && !session.state.is_inside_large();
        let (kind, old_link) = (self.kind_with_lane(session), session.link);
        if !is_free {
            return;
        }
        let Some(link) = self.shared_link(kind).filter(|link| *link != old_link) else {
            return;
        };
        self.attach(id, link);
    }

    /// Moves sessions that are set apart to the right links. A session may have changed its user or
    /// database.
    pub(crate) fn tick_slow_readers(&mut self) {
        let now = self.now;
        self.slow_readers.forgive(now);
        let mut all = std::mem::take(&mut self.slow_readers.to_retry);
        if !self.slow_readers.apart.is_empty() {
            all.extend(self.slow_readers.all_apart(now));
        }
        for session_id in all {
            let Some(session) = self.sessions.get(session_id) else {
                continue;
            };
            let lane = session.lane;
            let is_on_other_lane =
                |link: &Link| link.role == LinkRole::Shared && link.kind.lane != lane;
            let (is_free, link) = (session.is_caught_up(), session.link);
            if self.slow_readers.is_to_change(session.id, lane) {
                if is_free {
                    self.change_lane(session_id);
                }
            } else if self.links.get(link).is_some_and(is_on_other_lane)
                && is_free
                && !self.would_overtake(session_id)
            {
                self.attach_in_lane(session_id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::handle::session;
    use crate::routing::pool::ServerId;
    use respool_protocol::encode::Version;

    const KIND: LinkKind = LinkKind {
        server: ServerId(0),
        version: Version::Resp2,
        db: 0,
        user: 0,
        lane: DEFAULT_LANE,
    };

    fn at_ms(ms: u32) -> Time {
        Time(0).plus_ms(ms)
    }

    /// A pipeline of large replies is owed too much; one large reply or small ones are not.
    #[test]
    fn pipeline_of_large_replies_is_owed_too_much() {
        let mut readers = SlowReaders::default();
        let large = 100 << 10;
        assert!(!readers.note_reply(1, large, 1));
        assert!(readers.note_reply(1, large, 100));
        assert!(!readers.note_reply(2, 4 << 10, 20));
    }

    /// A reply that comes in fragments counts by their sum, and the next one begins at 0.
    #[test]
    fn one_reply_counts_by_all_of_its_fragments() {
        let mut readers = SlowReaders::default();
        let fragment = 100 << 10;
        assert!(!readers.note_fragment(1, fragment, 1));
        assert!(!readers.note_fragment(1, fragment, 1));
        assert!(readers.note_fragment(1, fragment, 1));
        assert!(
            !readers.note_reply(1, 0, 1),
            "the reply adds 75 KiB to the mean"
        );
        assert!(
            !readers.note_fragment(1, fragment, 1),
            "the next reply begins"
        );
    }

    /// A session changes its lane only when it is set apart for a stronger reason.
    #[test]
    fn session_changes_its_lane_only_when_told() {
        let mut readers = SlowReaders::default();
        assert!(readers.set_apart(7, session(1), LaneReason::Large, at_ms(0)));
        assert!(readers.is_to_change(7, DEFAULT_LANE));
        let lane = readers.change_lane(7);
        assert!(LaneReason::Large.lanes().contains(&lane) && !readers.is_to_change(7, lane));
        assert!(!readers.set_apart(7, session(1), LaneReason::Large, at_ms(1)));
        assert!(readers.set_apart(7, session(1), LaneReason::Slow, at_ms(2)));
        assert!(readers.is_to_change(7, lane));
        assert!(LaneReason::Slow.lanes().contains(&readers.change_lane(7)));
        assert!(!readers.set_apart(7, session(1), LaneReason::Large, at_ms(3)));
    }

    /// Each lane of slow readers gets equally many sessions.
    #[test]
    fn sessions_spread_over_the_lanes() {
        let mut readers = SlowReaders::default();
        for number in 0..6 {
            readers.set_apart(number, session(number as u32), LaneReason::Slow, at_ms(0));
        }
        for lane in LaneReason::Slow.lanes() {
            let attached = (0..6).filter(|number| readers.wanted(*number) == lane);
            assert_eq!(attached.count(), 6 / usize::from(SLOW_READER_LINKS));
        }
    }

    /// A session returns to the common lane when its time apart is over.
    #[test]
    fn session_returns_to_common_lane_after_its_time() {
        let mut readers = SlowReaders::default();
        readers.set_apart(7, session(1), LaneReason::Slow, at_ms(0));
        let lane = readers.change_lane(7);
        readers.all_apart(at_ms(APART_MS - 1));
        assert!(!readers.is_to_change(7, lane));
        readers.all_apart(at_ms(APART_MS));
        assert!(readers.is_to_change(7, lane));
        assert_eq!(readers.change_lane(7), DEFAULT_LANE);
        assert!(readers.apart.is_empty());
    }

    /// Sessions and sizes are noted up to a bound.
    #[test]
    fn number_of_sessions_apart_is_bounded() {
        let mut readers = SlowReaders::default();
        for number in 0..2 * APART_SESSIONS_MAX as u64 {
            readers.set_apart(number, session(number as u32), LaneReason::Slow, at_ms(0));
            readers.note_reply(number, 1 << 20, 1);
        }
        assert_eq!(readers.apart.len(), APART_SESSIONS_MAX);
        assert!(readers.sizes.len() <= APART_SESSIONS_MAX);
        for number in 0..2 * APART_SESSIONS_MAX as u64 {
            readers.forget(number);
        }
        assert!(readers.apart.is_empty() && readers.sizes.is_empty());
    }

    /// Waits at all links of a kind add up, once for the same time, and are forgiven slowly.
    #[test]
    fn waits_of_other_sessions_add_up_and_fade() {
        let mut readers = SlowReaders::default();
        assert_eq!(readers.head_of_line_wait(KIND, at_ms(0), at_ms(50)), 50_000);
        // Another link was unread meanwhile.
        let forgiven = 50_000 / STRANGERS_WAIT_DIVISOR;
        let waited = readers.head_of_line_wait(KIND, at_ms(20), at_ms(100));
        assert_eq!(waited, 100_000 - forgiven);
        // This link came later.
        let forgiven = forgiven + 100_000 / STRANGERS_WAIT_DIVISOR;
        let waited = readers.head_of_line_wait(KIND, at_ms(180), at_ms(200));
        assert_eq!(waited, 120_000 - forgiven);
        let other = LinkKind { db: 1, ..KIND };
        assert_eq!(readers.waited(other, at_ms(200)), 0);
        let long = at_ms(200 + 120 * STRANGERS_WAIT_DIVISOR as u32);
        assert_eq!(readers.waited(KIND, long), 0);
        readers.forgive(long);
        assert!(readers.waited.is_empty());
    }
}
