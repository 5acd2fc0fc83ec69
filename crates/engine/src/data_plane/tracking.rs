//! Sessions that track at several servers: their options and links, and the invalidations
//! that wait. The component for dedicated links has the commands, see `pinned/tracking.rs`.

use std::collections::VecDeque;

use respool_protocol::encode::{self, Version};
use respool_protocol::request::{Found, RequestScanner};

use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::{INVALIDATIONS_HELD_BYTES_MAX, TRACKING_BYTES_MAX};
use crate::base::session_map::SessionMap;
use crate::data_plane::DataPlane;
use crate::data_plane::charges::{Charge, ChargeKind};
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::pinned::{PinnedCompletion, TrackingRedirect};
use crate::data_plane::ingress::Blocked;
use crate::data_plane::link::{LinkKind, LinkState};
use crate::data_plane::session::Pins;
use crate::routing::pool::ServerId;

/// The invalidation of all keys.
const INVALIDATE_ALL: &[u8] = b">2\r\n$10\r\ninvalidate\r\n_\r\n";
pub(crate) const INVALIDATE: &[u8] = b">2\r\n$10\r\ninvalidate\r\n";

/// The options beside tracking, each set on all links of a session.
pub(crate) const SWITCHES: [(Pins, &str); 2] = [
    (Pins::NO_TOUCH, "NO-TOUCH"),
    (Pins::IMPORT, "IMPORT-SOURCE"),
];

/// A CLIENT request that needs the agreement of several servers.
pub(crate) enum TrackingSwitch {
    /// CLIENT TRACKING ON, as it was sent.
    Tracking(Vec<u8>),
    /// CLIENT NO-TOUCH ON, CLIENT IMPORT-SOURCE ON: the pin that is set once the servers agree.
    Switch(Pins),
}

/// The tracking of one session at several servers.
#[derive(Default)]
pub(crate) struct Tracker {
    /// The CLIENT TRACKING requests that servers have agreed to, oldest first. Each new link gets
    /// all.
    pub(crate) agreed: Vec<Vec<u8>>,
    /// The request that is not answered yet.
    pub(crate) unanswered: Option<TrackingSwitch>,
    /// Invalidations that wait, each with its place: it goes out after all replies before that
    /// place.
    held: VecDeque<(u32, Vec<u8>)>,
    held_bytes: usize,
    /// All keys are invalidated once all replies before this place are out.
    forgets_at: Option<u32>,
}

/// The state of a session's tracking at several servers.
#[derive(Debug, Default)]
pub(crate) struct Tracking {
    /// The session's links, one for each server.
    pub(crate) links: Vec<(ServerId, LinkId)>,
    /// The CLIENT CACHING request for the next request of the session.
    pub(crate) caching: Option<Vec<u8>>,
}

impl Tracking {
    /// Removes a link.
    pub(crate) fn drop_link(&mut self, link: LinkId) {
        self.links.retain(|(_, own)| *own != link);
    }

    /// The memory of the links and the request.
    pub(crate) fn memory_bytes(&self) -> usize {
        let caching = self.caching.as_ref().map_or(0, Vec::capacity);
        self.links.capacity() * size_of::<(ServerId, LinkId)>() + caching
    }
}

/// The session that gets a session's tracking messages (CLIENT TRACKING REDIRECT).
#[derive(Debug, Default)]
pub(crate) struct TrackingTarget {
    /// The target, with its stand-in at the server.
    pub(crate) redirect: Option<TrackingRedirect>,
    /// The outcome of the search for a new target.
    pub(crate) found: Option<TargetNews>,
}

/// Whether a worker has the session to which tracking messages shall be redirected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TargetNews {
    /// The id of the session.
    pub(crate) to: u64,
    /// Whether a worker has it.
    pub(crate) is_here: bool,
}

/// Whether all replies before `place` are out. `head`: the place of the next reply.
fn is_passed(place: u32, head: u32) -> bool {
    head.wrapping_sub(place) as i32 >= 0
}

/// The later one of two places.
fn later(one: u32, other: Option<u32>) -> u32 {
    other.filter(|other| is_passed(one, *other)).unwrap_or(one)
}

impl Tracker {
    /// Whether a server has agreed to track.
    pub(crate) fn is_on(&self) -> bool {
        !self.agreed.is_empty()
    }

    /// Whether CLIENT TRACKING with these bytes can be kept for later links.
    pub(crate) fn has_room_for(&self, request: &[u8]) -> bool {
        let known: usize = self.agreed.iter().map(Vec::len).sum();
        self.agreed.iter().any(|agreed| agreed == request)
            || known + request.len() <= TRACKING_BYTES_MAX
    }

    /// Handles the servers' answer to the last request. Returns its pins, if it was not CLIENT
    /// TRACKING.
    pub(crate) fn settle(&mut self, is_agreed: bool) -> Option<Pins> {
        match self.unanswered.take()? {
            TrackingSwitch::Tracking(request) if is_agreed => {
                // The last one decides on all options but PREFIX, which add up.
                self.agreed.retain(|agreed| *agreed != request);
                self.agreed.push(request);
                None
            }
            TrackingSwitch::Tracking(_) => None,
            TrackingSwitch::Switch(pins) => Some(pins),
        }
    }

    /// CLIENT TRACKING OFF.
    pub(crate) fn stop(&mut self) {
        self.agreed.clear();
    }

    /// Whether the last CLIENT TRACKING has this option.
    pub(crate) fn has_option(&self, word: &[u8]) -> bool {
        let mut scanner = RequestScanner::default();
        let Some(request) = self.agreed.last() else {
            return false;
        };
        let Ok(Found::Request { .. }) = scanner.scan(request, true) else {
            return false;
        };
        asks_for(scanner.spans().iter().map(|span| span.of(request)), word)
    }

    /// Whether CLIENT CACHING decides which keys are noted.
    fn asks_for_caching(&self) -> bool {
        self.has_option(b"OPTIN") || self.has_option(b"OPTOUT")
    }

    /// Holds an invalidation until the replies before `place` are out. If too many bytes wait, all
    /// keys are invalidated instead.
    pub(crate) fn hold(&mut self, place: u32, push: &[u8]) {
        if self.held_bytes + push.len() > INVALIDATIONS_HELD_BYTES_MAX {
            let last = self.held.drain(..).map(|(place, _)| place);
            let last = last.fold(place, |last, place| later(place, Some(last)));
            self.held_bytes = 0;
            self.forget_behind(last);
        } else {
            self.held_bytes += push.len();
            self.held.push_back((place, push.to_vec()));
        }
    }

    /// Invalidates all keys once the replies before `place` are out.
    fn forget_behind(&mut self, place: u32) {
        self.forgets_at = Some(later(place, self.forgets_at));
    }

    /// Takes the invalidations whose earlier replies are out, for a session whose next reply is
    /// that of `head`.
    pub(crate) fn take_due(&mut self, head: u32) -> Vec<u8> {
        let mut due = Vec::new();
        self.held.retain(|(place, push)| {
            let is_due = is_passed(*place, head);
            if is_due {
                due.extend_from_slice(push);
            }
            !is_due
        });
        self.held_bytes -= due.len();
        if self.forgets_at.take_if(|at| is_passed(*at, head)).is_some() {
            due.extend_from_slice(INVALIDATE_ALL);
        }
        due
    }

    /// Whether an invalidation waits.
    pub(crate) fn owes(&self) -> bool {
        !self.held.is_empty() || self.forgets_at.is_some()
    }

    /// Its memory, the struct included.
    pub(crate) fn charge(&self) -> Charge {
        let unanswered = self.unanswered.iter().filter_map(|switch| match switch {
            TrackingSwitch::Tracking(request) => Some(request),
            TrackingSwitch::Switch(_) => None,
        });
        let requests = self.agreed.iter().chain(unanswered).map(Vec::capacity);
        Charge {
            counted: self.held_bytes,
            memory: size_of::<Tracker>() + self.held_bytes + requests.sum::<usize>(),
        }
    }
}

/// The sessions of a worker that track at several servers.
#[derive(Default)]
pub(crate) struct Trackers {
    /// The tracker of each session: its options, and the invalidations that wait.
    pub(crate) sessions: SessionMap<Tracker>,
    /// Sessions for which an invalidation waits.
    pub(crate) owed: Vec<SessionId>,
    /// Pools with keys that have got other owners since the last tick.
    pub(crate) moved: Vec<u16>,
}

impl Trackers {
    pub(crate) fn remove(&mut self, id: SessionId) -> Option<Tracker> {
        self.sessions.remove(id)
    }

    /// Memory of the table by session, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.sessions.table_bytes()
    }

    /// Whether an invalidation waits for replies.
    pub(crate) fn owes_any(&self) -> bool {
        !self.owed.is_empty()
    }

    pub(crate) fn owe(&mut self, id: SessionId) {
        if !self.owed.contains(&id) {
            self.owed.push(id);
        }
    }

    /// Some keys of a pool have another owner.
    pub(crate) fn note_moved(&mut self, pool: u16) {
        if !self.sessions.is_empty() && !self.moved.contains(&pool) {
            self.moved.push(pool);
        }
    }
}

/// Whether CLIENT TRACKING with these arguments has an option.
pub(crate) fn asks_for<'a>(args: impl Iterator<Item = &'a [u8]>, option: &[u8]) -> bool {
    let mut options = args.skip(3);
    while let Some(word) = options.next() {
        if word.eq_ignore_ascii_case(option) {
            return true;
        }
        if word.eq_ignore_ascii_case(b"PREFIX") || word.eq_ignore_ascii_case(b"REDIRECT") {
            options.next();
        }
    }
    false
}

/// The links.
impl DataPlane {
    /// The session's link to a server. It is opened if there is none.
    pub(crate) fn tracking_link(
        &mut self,
        id: SessionId,
        server: ServerId,
    ) -> Result<LinkId, Blocked> {
        if let Some(link) = self.known_tracking_link(id, server) {
            return Ok(link);
        }
        self.await_nodes(id, server)?;
        self.add_tracking_link(id, server)
    }

    /// Attaches the session to its link to the server that it has switched to.
    pub(crate) fn attach_tracking(&mut self, id: SessionId) -> Result<LinkId, Blocked> {
        let Some(server) = self.sessions.get(id).map(|session| session.server) else {
            return Err(Blocked::Wait);
        };
        let link = self.tracking_link(id, server)?;
        self.attach_own(id, link);
        Ok(link)
    }

    /// The session's link to a server, if there is one. Links of another database, protocol version
    /// or user than the session has now are closed.
    pub(crate) fn known_tracking_link(
        &mut self,
        id: SessionId,
        server: ServerId,
    ) -> Option<LinkId> {
        let session = self.sessions.get(id)?;
        let kind = self.kind_of(session);
        let links = self.tracking_links(id);
        let is_of = |(server, link): &(ServerId, LinkId)| {
            let link = self.links.get(*link);
            link.is_some_and(|link| link.kind == kind.at(*server))
        };
        if !links.iter().all(is_of) {
            let others = links.iter().filter(|own| !is_of(own));
            for link in others.map(|(_, link)| *link).collect::<Vec<_>>() {
                self.close_tracking_link(id, link);
            }
            self.forget_all(id);
        }
        self.tracks_on(id, server)
    }

    /// Opens the session's link to a server, to which it has none.
    fn add_tracking_link(&mut self, id: SessionId, server: ServerId) -> Result<LinkId, Blocked> {
        let Some(session) = self.sessions.get(id) else {
            return Err(Blocked::Wait);
        };
        let kind = self.kind_of(session).at(server);
        // A shared link shows whether the server is reachable, or soon will be.
        if let Some(resting) = self.resting_link(kind) {
            self.ready_link(id, resting)?;
        } else if self.away_until(server).is_some() {
            let shared = self.shared_link_for(id, self.default_kind(server))?;
            let shared = self.ready_link(id, shared)?;
            // A pinned link would fail at once, and be opened again at once.
            return Err(self.wait_at_full(id, shared));
        }
        self.open_tracking_link(id, kind)
    }

    pub(crate) fn open_tracking_link(
        &mut self,
        id: SessionId,
        kind: LinkKind,
    ) -> Result<LinkId, Blocked> {
        let link_id = self.own_link(kind, id)?;
        if let Some(link) = self.links.get_mut(link_id) {
            link.tainted = true;
        }
        let session = self.sessions.get_mut(id);
        let (Some(session), Some(tracker)) = (session, self.trackers.sessions.get(id)) else {
            return Ok(link_id);
        };
        let pins = session.pins;
        session.rare().tracking.links.push((kind.server, link_id));
        let mut requests = tracker.agreed.clone();
        for (_, name) in SWITCHES.iter().filter(|(pin, _)| pins.any(*pin)) {
            let mut request = Vec::new();
            encode::request(&mut request, &["CLIENT", name, "ON"]);
            requests.push(request);
        }
        for request in requests {
            self.put_ours(
                link_id,
                &request,
                Completion::Pinned(PinnedCompletion::Track),
            );
        }
        self.weigh(id);
        Ok(link_id)
    }

    pub(crate) fn close_tracking_link(&mut self, session_id: SessionId, link: LinkId) {
        if let Some(session) = self.sessions.get_mut(session_id) {
            session.rare().tracking.drop_link(link);
            if session.link == link {
                self.attach_own(session_id, LinkId::NONE);
            }
        }
        if self.links.get(link).is_some() {
            self.close_link(link);
        }
    }

    fn attach_own(&mut self, session_id: SessionId, link: LinkId) {
        let Some(session) = self.sessions.get_mut(session_id) else {
            return;
        };
        let old = std::mem::replace(&mut session.link, link);
        if old != link {
            self.detach(old);
            if let Some(link) = self.links.get_mut(link) {
                link.attached += 1;
            }
        }
    }

    /// Whether a link is one of a session's tracking links.
    pub(crate) fn is_tracking_link(&self, session: SessionId, link: LinkId) -> bool {
        let mut links = self.tracking_links(session).iter();
        links.any(|(_, own)| *own == link)
    }

    /// A request is sent without its CLIENT CACHING. The server does not note the keys as the
    /// client expects, so all keys are invalidated.
    pub(crate) fn lack_caching(&mut self, id: SessionId) {
        let tracker = self.trackers.sessions.get(id);
        if tracker.is_some_and(Tracker::asks_for_caching) {
            self.forget_all(id);
        }
    }

    /// A shared link to the same server that is in back-off or connects slowly. A link that the
    /// server refused to another user does not count: that server is reachable.
    fn resting_link(&self, kind: LinkKind) -> Option<LinkId> {
        let all = [kind, self.default_kind(kind.server)];
        let rests = |id: &LinkId| {
            self.links.get(*id).is_some_and(|link| {
                let rests =
                    matches!(link.state, LinkState::Backoff { .. }) || link.connects_slowly();
                rests && (link.kind.user == kind.user || link.handshake_error.is_none())
            })
        };
        let mut links = all.iter().filter_map(|kind| self.link_index.shared(kind));
        links.find(rests)
    }

    /// Invalidates all keys of a session at once, and again after the replies that are on their
    /// way, since these may be older.
    pub(crate) fn forget_all(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if session.version != Version::Resp3 || !session.pins.any(Pins::TRACKING) {
            return;
        }
        let (next, is_caught_up) = (session.next_seq, session.is_caught_up());
        if !is_caught_up && let Some(tracker) = self.tracker_mut(id) {
            tracker.forget_behind(next);
            self.trackers.owe(id);
        }
        self.push_to(id, INVALIDATE_ALL);
    }

    /// The tracker of a session that is open.
    pub(crate) fn tracker_mut(&mut self, id: SessionId) -> Option<&mut Tracker> {
        self.sessions.get(id)?;
        self.trackers.sessions.get_mut(id)
    }

    /// Charges a session with its tracker, after a change of it.
    pub(crate) fn charge_tracker(&mut self, id: SessionId) {
        if let Some(tracker) = self.trackers.sessions.get(id) {
            self.charge(id, ChargeKind::Invalidations, tracker.charge());
        }
    }

    /// Drops the tracking state of a session that tracks no more or has left. Its links are closed,
    /// except the one that it still needs.
    pub(crate) fn drop_tracker(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let (own, is_bound) = (session.link, !session.pins.is_empty());
        if self.trackers.remove(id).is_none() {
            return;
        }
        let tracking = std::mem::take(&mut session.rare().tracking);
        self.charge(id, ChargeKind::Invalidations, Charge::default());
        for (_, link) in tracking.links {
            if link != own {
                self.give_back(link);
            }
        }
        if is_bound {
            let mut off = Vec::new();
            encode::request(&mut off, &["CLIENT", "TRACKING", "OFF"]);
            self.put_ours(own, &off, Completion::Pass);
        }
        self.weigh(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUSH: &[u8] = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n";

    /// An invalidation follows the replies before its place, also when places wrap around.
    #[test]
    fn invalidation_waits_for_the_replies_in_front() {
        let mut tracker = Tracker::default();
        let place = 2;
        tracker.hold(place, PUSH);
        assert_eq!(tracker.held_bytes, PUSH.len());
        for head in [u32::MAX - 1, 0, 1] {
            assert_eq!(tracker.take_due(head), b"");
            assert!(tracker.owes());
        }
        assert_eq!(tracker.take_due(2), PUSH);
        assert!(!tracker.owes());
        assert_eq!(tracker.held_bytes, 0);
    }

    /// Held bytes have a bound. Beyond it, all keys are invalidated behind the last place.
    #[test]
    fn too_many_invalidations_become_one_for_all_keys() {
        let mut tracker = Tracker::default();
        let fit = INVALIDATIONS_HELD_BYTES_MAX / PUSH.len();
        for place in 0..fit as u32 {
            tracker.hold(place, PUSH);
        }
        assert!(tracker.held_bytes <= INVALIDATIONS_HELD_BYTES_MAX);
        tracker.hold(1, PUSH);
        assert_eq!(tracker.held_bytes, 0);
        assert_eq!(tracker.take_due(fit as u32 - 2), b"");
        assert_eq!(tracker.take_due(fit as u32 - 1), INVALIDATE_ALL);
        assert!(!tracker.owes());
    }

    /// A new link gets each agreed request once, the last one at the end.
    #[test]
    fn requests_are_kept_once_and_in_order() {
        let mut tracker = Tracker::default();
        let ask = |tracker: &mut Tracker, words: &str, is_agreed| {
            let mut request = Vec::new();
            encode::request(&mut request, &words.split(' ').collect::<Vec<_>>());
            tracker.unanswered = Some(TrackingSwitch::Tracking(request.clone()));
            tracker.settle(is_agreed);
            request
        };
        let one = ask(&mut tracker, "CLIENT TRACKING on bcast PREFIX a", true);
        let other = ask(&mut tracker, "CLIENT TRACKING ON BCAST PREFIX b", true);
        ask(&mut tracker, "CLIENT TRACKING ON OPTIN", false);
        assert_eq!(tracker.agreed, [one.clone(), other.clone()]);
        assert!(tracker.has_option(b"BCAST") && !tracker.asks_for_caching());
        ask(&mut tracker, "CLIENT TRACKING ON BCAST PREFIX OPTIN", true);
        assert!(!tracker.asks_for_caching(), "it is a prefix");
        tracker.agreed.pop();
        ask(&mut tracker, "CLIENT TRACKING on bcast PREFIX a", true);
        assert_eq!(tracker.agreed, [other, one]);
        assert!(tracker.is_on());
    }

    /// The kept requests have a bound in bytes. A repeated one needs no room.
    #[test]
    fn requests_that_are_kept_are_bounded() {
        let mut tracker = Tracker::default();
        let large = vec![b'a'; TRACKING_BYTES_MAX];
        assert!(tracker.has_room_for(&large));
        tracker.unanswered = Some(TrackingSwitch::Tracking(large.clone()));
        tracker.settle(true);
        assert!(tracker.has_room_for(&large), "it is kept already");
        assert!(!tracker.has_room_for(b"b"));
    }
}
