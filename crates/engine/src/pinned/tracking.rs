//! CLIENT TRACKING in a pool of several servers: the session has a pinned link to each server that
//! gets its requests.
//!
//! ```text
//!   GET a ──► link to the owner of a:  CLIENT TRACKING ON, GET a ──► value ───────────┐
//!   GET b ──► link to the owner of b:  CLIENT TRACKING ON, GET b ──► value ───────────┼──► session
//!                                      a or b has changed        ──► invalidation ────┘
//! ```
//! A server notes for each connection which keys were read there. All requests of the session go
//! over these links, after the CLIENT TRACKING of the link. So no change falls between a read and
//! its note.
//!
//! An invalidation must not overtake a reply with an older value of its key, or the client would
//! cache that. A reply may wait for the replies of other servers before it. Then the invalidation
//! waits until that reply is out.
//!
//! The notes are lost with a connection, so a session that tracks is then closed, as by a server
//! that restarts. If slots move to another owner, the session gets an invalidation of all keys.
//!
//! CLIENT NO-TOUCH and CLIENT IMPORT-SOURCE use the same links. Each new link gets the options that
//! are on.

use std::collections::VecDeque;

use respool_protocol::encode::{self, Version};
use respool_protocol::request::{Found, RequestScanner};

use crate::base::error::is_servers_fault;
use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::{INVALIDATIONS_HELD_BYTES_MAX, TRACKING_BYTES_MAX};
use crate::base::session_map::SessionMap;
use crate::data_plane::DataPlane;
use crate::data_plane::charges::{Charge, ChargeKind};
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::pinned::PinnedCompletion;
use crate::data_plane::completion::pinned::redirect_asked;
use crate::data_plane::ingress::{Blocked, Dispatched, Request, bound_reply};
use crate::data_plane::link::{Link, LinkKind, LinkRole, LinkState};
use crate::data_plane::session::{Flags, Pins, Session};
use crate::pinned::Pinned;
use crate::routing::pool::ServerId;

/// The error to a CLIENT TRACKING with REDIRECT.
const REDIRECTS: &[u8] =
    b"ERR respool: CLIENT TRACKING with REDIRECT is refused where a pool has several servers: \
    without REDIRECT, a session in RESP3 gets the invalidations itself";
/// The error to BCAST with PREFIX in a pool whose servers see keys without a prefix.
const PREFIXES: &[u8] =
    b"ERR respool: PREFIX of CLIENT TRACKING is refused where a server of the pool sees keys \
    without their prefix: ask for BCAST without PREFIX";
/// Redis's errors (`clientCommand`).
const NOT_OPTIN: &[u8] =
    b"ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.";
const NOT_OPTOUT: &[u8] =
    b"ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.";

/// The invalidation of all keys.
const INVALIDATE_ALL: &[u8] = b">2\r\n$10\r\ninvalidate\r\n_\r\n";
pub(crate) const INVALIDATE: &[u8] = b">2\r\n$10\r\ninvalidate\r\n";

/// A link without a byte for this long is checked with a PING, milliseconds. A server that is cut
/// off sends no invalidations, and the session may send no request for long.
const QUIET_MS: u32 = 2_000;

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
    agreed: Vec<Vec<u8>>,
    /// The request that is not answered yet.
    asked: Option<TrackingSwitch>,
    /// Invalidations that wait, each with its place: it goes out after all replies before that
    /// place.
    held: VecDeque<(u32, Vec<u8>)>,
    held_bytes: usize,
    /// All keys are invalidated once all replies before this place are out.
    forgets_at: Option<u32>,
}

/// Whether all replies before `place` are out, for a session whose next reply is that of `head`.
fn is_passed(place: u32, head: u32) -> bool {
    head.wrapping_sub(place) as i32 >= 0
}

/// The later one of two places.
fn later(one: u32, other: Option<u32>) -> u32 {
    other.filter(|other| is_passed(one, *other)).unwrap_or(one)
}

impl Tracker {
    /// Whether a server has agreed to track.
    fn is_on(&self) -> bool {
        !self.agreed.is_empty()
    }

    /// Whether CLIENT TRACKING with these bytes can be kept for later links.
    fn has_room_for(&self, request: &[u8]) -> bool {
        let known: usize = self.agreed.iter().map(Vec::len).sum();
        self.agreed.iter().any(|agreed| agreed == request)
            || known + request.len() <= TRACKING_BYTES_MAX
    }

    /// Handles the servers' answer to the last request. Returns its pins, if it was not CLIENT
    /// TRACKING.
    fn settle(&mut self, is_agreed: bool) -> Option<Pins> {
        match self.asked.take()? {
            TrackingSwitch::Tracking(asked) if is_agreed => {
                // The last one decides on all options but PREFIX, which add up.
                self.agreed.retain(|agreed| *agreed != asked);
                self.agreed.push(asked);
                None
            }
            TrackingSwitch::Tracking(_) => None,
            TrackingSwitch::Switch(pins) => Some(pins),
        }
    }

    /// CLIENT TRACKING OFF.
    fn stop(&mut self) {
        self.agreed.clear();
    }

    /// Whether the last CLIENT TRACKING has this option.
    fn has_option(&self, word: &[u8]) -> bool {
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
    fn hold(&mut self, place: u32, push: &[u8]) {
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
    fn take_due(&mut self, head: u32) -> Vec<u8> {
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
    fn owes(&self) -> bool {
        !self.held.is_empty() || self.forgets_at.is_some()
    }

    /// Its memory, the struct included.
    fn charge(&self) -> Charge {
        let asked = self.asked.iter().filter_map(|asked| match asked {
            TrackingSwitch::Tracking(request) => Some(request),
            TrackingSwitch::Switch(_) => None,
        });
        let requests = self.agreed.iter().chain(asked).map(Vec::capacity);
        Charge {
            counted: self.held_bytes,
            memory: size_of::<Tracker>() + self.held_bytes + requests.sum::<usize>(),
        }
    }
}

/// The sessions of a worker that track at several servers.
#[derive(Default)]
pub(crate) struct Trackers {
    sessions: SessionMap<Tracker>,
    /// Sessions for which an invalidation waits.
    owed: Vec<SessionId>,
    /// Pools with keys that have got other owners since the last tick.
    moved: Vec<u16>,
}

impl Trackers {
    pub(crate) fn remove(&mut self, id: SessionId) -> Option<Tracker> {
        self.sessions.remove(id)
    }

    /// Memory of the table by session, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.sessions.table_bytes()
    }

    fn owe(&mut self, id: SessionId) {
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

/// The commands.
impl Pinned {
    /// CLIENT TRACKING ON in a pool of several known servers: begins to track, unless the request
    /// is refused or waits. Then that is returned.
    pub(crate) fn ask_to_track(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Option<Dispatched> {
        if redirect_asked(request).is_some() {
            plane.counters.refused += 1;
            return Some(plane.answer_error(id, REDIRECTS));
        }
        if asks_for(request.args(), b"PREFIX") && plane.removes_prefix(id) {
            plane.counters.refused += 1;
            return Some(plane.answer_error(id, PREFIXES));
        }
        if plane.hold_until_caught_up(id) {
            return Some(Dispatched::Wait);
        }
        self.begin_tracking(plane, id);
        let has_room = |tracker: &Tracker| tracker.has_room_for(request.bytes);
        if !self.trackers.sessions.get(id).is_some_and(has_room) {
            self.settle_tracking(plane, id, b"");
            return Some(plane.answer_reply(id, &bound_reply("TRACKING_BYTES_MAX")));
        }
        None
    }

    /// A request waits for the agreement of all servers that are asked.
    pub(crate) fn note_asked(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        asked: TrackingSwitch,
    ) {
        if let Some(tracker) = self.tracker_mut(plane, id) {
            tracker.asked = Some(asked);
            self.charge_tracker(plane, id);
        }
    }

    /// The servers at which a session begins to track. With BCAST these are all owners. Otherwise
    /// these are the servers that it has links to. If there are none, `deciding` decides on the
    /// right.
    pub(crate) fn servers_to_track(
        &self,
        plane: &DataPlane,
        id: SessionId,
        broadcasts: bool,
        deciding: ServerId,
    ) -> Vec<ServerId> {
        let Some(session) = plane.sessions.get(id) else {
            return Vec::new();
        };
        if broadcasts {
            return plane.pools[usize::from(session.pool)].servers().to_vec();
        }
        let tracked = plane.tracking_links(id);
        match tracked.is_empty() {
            false => tracked.iter().map(|(server, _)| *server).collect(),
            true => vec![deciding],
        }
    }

    /// CLIENT CACHING: keeps it for the next request, which decides on the server.
    pub(crate) fn cache_next(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        let Some(tracker) = self.tracker_mut(plane, id) else {
            return Dispatched::Done;
        };
        let word = request.arg(2);
        let refusal: &[u8] = match () {
            () if word.eq_ignore_ascii_case(b"YES") => match tracker.has_option(b"OPTIN") {
                true => b"",
                false => NOT_OPTIN,
            },
            () if word.eq_ignore_ascii_case(b"NO") => match tracker.has_option(b"OPTOUT") {
                true => b"",
                false => NOT_OPTOUT,
            },
            () => b"ERR syntax error",
        };
        if !refusal.is_empty() {
            return plane.answer_error(id, refusal);
        }
        if let Some(session) = plane.sessions.get_mut(id) {
            session.rare().tracking.caching = Some(request.bytes.to_vec());
        }
        plane.answer_reply(id, b"+OK\r\n")
    }

    /// Drops a kept CLIENT CACHING after a request. It counts for one request; a transaction is
    /// one, and CLIENT with its subcommands is none.
    pub(crate) fn end_caching(&mut self, plane: &mut DataPlane, id: SessionId) {
        let Some(session) = plane.sessions.get_mut(id) else {
            return;
        };
        let is_client = session
            .asked
            .is_some_and(|asked| asked.get().name.starts_with("client|"));
        if is_client || session.flags.any(Flags::IN_MULTI) {
            return;
        }
        if let Some(rare) = &mut session.rare {
            rare.tracking.caching = None;
        }
    }
}

/// The links.
impl Pinned {
    /// Opens the session's link to a server, to which it has none.
    pub(crate) fn add_tracking_link(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        server: ServerId,
    ) -> Result<LinkId, Blocked> {
        let Some(session) = plane.sessions.get(id) else {
            return Err(Blocked::Wait);
        };
        let kind = plane.kind_of(session).at(server);
        // A shared link shows whether the server is reachable, or soon will be.
        if let Some(resting) = self.resting_link(plane, kind) {
            plane.ready_link(id, resting)?;
        } else if plane.away_until(server).is_some() {
            let shared = plane.shared_link_for(id, plane.first_link(server))?;
            let shared = plane.ready_link(id, shared)?;
            // A pinned link would fail at once, and be opened again at once.
            return Err(plane.wait_at_full(id, shared));
        }
        self.open_tracking_link(plane, id, kind)
    }

    /// Looks after the links of sessions that track.
    pub(crate) fn tick_trackers(&mut self, plane: &mut DataPlane) {
        if self.trackers.sessions.is_empty() {
            return self.trackers.moved.clear();
        }
        let moved = std::mem::take(&mut self.trackers.moved);
        for id in self.trackers.sessions.ids() {
            let Some(session) = plane.sessions.get(id) else {
                continue;
            };
            let (pool, broadcasts) = (session.pool, session.pins.any(Pins::BROADCAST));
            if moved.contains(&pool) {
                self.forget_all(plane, id);
            }
            self.close_idle_tracking_links(plane, id);
            if broadcasts {
                self.track_at_new_owners(plane, id);
            }
            let links = plane.tracking_links(id).to_vec();
            let patience_ms = QUIET_MS.min(plane.settings.timeouts.link_stall_ms / 2);
            for (_, link) in links {
                let quiet = |link: &Link| link.is_quiet(plane.now, patience_ms);
                if plane.links.get(link).is_some_and(quiet) {
                    let mut request = Vec::new();
                    encode::request(&mut request, &["PING"]);
                    plane.put_ours(link, &request, Completion::Pass);
                }
            }
        }
    }

    /// Opens links to servers that have become owners since a session began to track with BCAST.
    fn track_at_new_owners(&mut self, plane: &mut DataPlane, id: SessionId) {
        let Some(session) = plane.sessions.get(id) else {
            return;
        };
        let (pool, kind) = (usize::from(session.pool), plane.kind_of(session));
        for server in plane.pools[pool].servers().to_vec() {
            if self.known_tracking_link(plane, id, server).is_some() || !plane.is_reachable(server)
            {
                continue;
            }
            if !plane.may_have_own_link(id) {
                let reason = "pinned-links-max: no link for invalidations from one more server";
                return plane.close_for(id, reason.to_owned());
            }
            if self.open_tracking_link(plane, id, kind.at(server)).is_err() {
                return plane.close_for(id, String::from(AWAY));
            }
        }
    }
}

/// The invalidations.
impl Pinned {
    /// The keys in an invalidation on a tracking link, if they lack the prefix that respool
    /// removes.
    pub(crate) fn keys_invalidated<'a>(
        &self,
        plane: &DataPlane,
        link: LinkId,
        by: SessionId,
        push: &'a [u8],
    ) -> Option<&'a [u8]> {
        let keys = push.strip_prefix(INVALIDATE)?;
        (plane.removes_prefix(by) && self.is_tracking_link(plane, by, link)).then_some(keys)
    }

    /// Handles a push on a tracking link. The session speaks RESP3.
    fn take_invalidation(
        &mut self,
        plane: &mut DataPlane,
        (by, end_of_parts): (SessionId, Option<u32>),
        push: &[u8],
    ) {
        let Some(session) = plane.sessions.get(by) else {
            return;
        };
        let Some(place) = session.end_of_early_replies(end_of_parts) else {
            return plane.push_to(by, push);
        };
        if let Some(tracker) = self.tracker_mut(plane, by) {
            tracker.hold(place, push);
            self.charge_tracker(plane, by);
            self.trackers.owe(by);
        }
    }

    /// Handles a push on a pinned link. In a push that names the stand-in of a redirect, the id
    /// becomes that of the target. `end_of_parts`: the place behind the session's last request of
    /// which a part has come.
    pub(crate) fn take_own_push(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        (by, end_of_parts): (SessionId, Option<u32>),
        push: &[u8],
    ) {
        // The server sent the push before it read the session's HELLO 2, which is answered already.
        let is_resp3 = |session: &Session| session.version == Version::Resp3;
        if !plane.sessions.get(by).is_some_and(is_resp3) {
            return;
        }
        if self.is_tracking_link(plane, by, link) {
            return self.take_invalidation(plane, (by, end_of_parts), push);
        }
        match self.broken_redirect(plane, by, push) {
            Some(named) => plane.push_to(by, &named),
            None => plane.push_to(by, push),
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

/// The options beside tracking, each set on all links of a session.
const SWITCHES: [(Pins, &str); 2] = [
    (Pins::NO_TOUCH, "NO-TOUCH"),
    (Pins::IMPORT, "IMPORT-SOURCE"),
];

const LOST: &str = "the link that held its state at a server was lost";
pub(crate) const AWAY: &str = "CLIENT TRACKING: no connection to the server";

impl Pinned {
    /// The tracker of a session that is open.
    fn tracker_mut(&mut self, plane: &DataPlane, id: SessionId) -> Option<&mut Tracker> {
        plane.sessions.get(id)?;
        self.trackers.sessions.get_mut(id)
    }

    /// Charges a session with its tracker, after a change of it.
    fn charge_tracker(&self, plane: &mut DataPlane, id: SessionId) {
        if let Some(tracker) = self.trackers.sessions.get(id) {
            plane.charge(id, ChargeKind::Invalidations, tracker.charge());
        }
    }

    fn begin_tracking(&mut self, plane: &mut DataPlane, id: SessionId) {
        self.begin_to_spread(plane, id);
        if let Some(session) = plane.sessions.get_mut(id) {
            session.pins.add(Pins::TRACKING);
        }
    }

    /// Gives a session a pinned link to each server that it asks from now on.
    pub(crate) fn begin_to_spread(&mut self, plane: &mut DataPlane, id: SessionId) {
        let Some(session) = plane.sessions.get_mut(id) else {
            return;
        };
        let (server, link) = (session.server, session.link);
        let had_own_link = !session.pins.is_empty();
        session.pins.add(Pins::SPREAD);
        let tracking = &mut session.rare().tracking;
        if had_own_link && tracking.links.iter().all(|(_, own)| *own != link) {
            // The session watches keys on its link, so the link is kept.
            let is_own = |link: &Link| link.role == LinkRole::Pinned { by: id };
            if plane.links.get(link).is_some_and(is_own) {
                tracking.links.push((server, link));
            }
        }
        self.trackers.sessions.get_or_default(id);
        self.charge_tracker(plane, id);
        plane.taint_own_link(id);
        plane.weigh(id);
    }

    /// Sends a request on all links of a session and drops the replies.
    fn tell_links(&mut self, plane: &mut DataPlane, id: SessionId, words: &[&str]) {
        let mut request = Vec::new();
        encode::request(&mut request, words);
        for (_, link) in plane.tracking_links(id).to_vec() {
            plane.put_ours(link, &request, Completion::Pass);
        }
    }

    /// A shared link to the same server that is in back-off or late. A refusal of another user does
    /// not count: that server is reachable.
    fn resting_link(&self, plane: &DataPlane, kind: LinkKind) -> Option<LinkId> {
        let all = [kind, plane.first_link(kind.server)];
        let rests = |id: &LinkId| {
            plane.links.get(*id).is_some_and(|link| {
                let rests = matches!(link.state, LinkState::Backoff { .. }) || link.is_late();
                rests && (link.kind.user == kind.user || link.refusal.is_none())
            })
        };
        let mut links = all
            .iter()
            .filter_map(|kind| plane.shared.get(kind).copied());
        links.find(rests)
    }

    pub(crate) fn attach_own(
        &mut self,
        plane: &mut DataPlane,
        session_id: SessionId,
        link: LinkId,
    ) {
        let Some(session) = plane.sessions.get_mut(session_id) else {
            return;
        };
        let old = std::mem::replace(&mut session.link, link);
        if old != link {
            plane.detach(old);
            if let Some(link) = plane.links.get_mut(link) {
                link.attached += 1;
            }
        }
    }

    /// Whether a link is one of a session's tracking links.
    pub(crate) fn is_tracking_link(
        &self,
        plane: &DataPlane,
        session: SessionId,
        link: LinkId,
    ) -> bool {
        let mut links = plane.tracking_links(session).iter();
        links.any(|(_, own)| *own == link)
    }

    /// Whether an invalidation waits for replies.
    pub(crate) fn owes_invalidations(&self) -> bool {
        !self.trackers.owed.is_empty()
    }

    /// Handles the servers' answer to CLIENT TRACKING ON, or to another request that all must agree
    /// to. If the servers are away, the session is closed, as they would close it: libraries
    /// connect again then, while they take an error as final.
    pub(crate) fn settle_tracking(&mut self, plane: &mut DataPlane, id: SessionId, said: &[u8]) {
        let Some(tracker) = self.tracker_mut(plane, id) else {
            return;
        };
        let is_agreed = said.starts_with(b"+");
        let switched = tracker.settle(is_agreed);
        let (is_on, broadcasts) = (tracker.is_on(), tracker.has_option(b"BCAST"));
        self.charge_tracker(plane, id);
        if is_servers_fault(said) {
            return plane.close_for(id, String::from(AWAY));
        }
        let Some(session) = plane.sessions.get_mut(id) else {
            return;
        };
        match switched {
            Some(pins) if is_agreed => session.pins.add(pins),
            // Some servers may have agreed.
            Some(pins) if !session.pins.any(pins) => self.switch_off(plane, id, pins),
            Some(_) => {}
            None if is_on => {
                session.pins.remove(Pins::BROADCAST);
                if broadcasts {
                    session.pins.add(Pins::BROADCAST);
                }
            }
            None => self.end_tracking(plane, id),
        }
    }

    /// CLIENT TRACKING OFF in a session with several links.
    pub(crate) fn stop_tracking(&mut self, plane: &mut DataPlane, id: SessionId) -> Dispatched {
        if plane.hold_until_caught_up(id) {
            return Dispatched::Wait;
        }
        self.end_tracking(plane, id);
        plane.answer_reply(id, b"+OK\r\n")
    }

    /// Ends tracking. The session's links are closed unless another option needs them.
    fn end_tracking(&mut self, plane: &mut DataPlane, id: SessionId) {
        let Some(session) = plane.sessions.get_mut(id) else {
            return;
        };
        if !session.pins.any(Pins::SWITCHED) {
            return self.unpin(plane, id, Pins::ALL_TRACKING);
        }
        if !session.pins.any(Pins::TRACKING) {
            return;
        }
        session.pins.remove(Pins::TRACKING.with(Pins::BROADCAST));
        if let Some(rare) = &mut session.rare {
            rare.tracking.caching = None;
        }
        if let Some(tracker) = self.tracker_mut(plane, id) {
            tracker.stop();
            self.charge_tracker(plane, id);
        }
        self.tell_links(plane, id, &["CLIENT", "TRACKING", "OFF"]);
    }

    /// CLIENT NO-TOUCH OFF or CLIENT IMPORT-SOURCE OFF in a session with several links.
    pub(crate) fn stop_switch(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        pins: Pins,
    ) -> Dispatched {
        if plane.hold_until_caught_up(id) {
            return Dispatched::Wait;
        }
        self.switch_off(plane, id, pins);
        plane.answer_reply(id, b"+OK\r\n")
    }

    fn switch_off(&mut self, plane: &mut DataPlane, id: SessionId, pins: Pins) {
        for (pin, name) in SWITCHES {
            if pins.any(pin) {
                self.tell_links(plane, id, &["CLIENT", name, "OFF"]);
            }
        }
        let Some(session) = plane.sessions.get_mut(id) else {
            return;
        };
        session.pins.remove(pins);
        if !session.pins.any(Pins::TRACKING.with(Pins::SWITCHED)) {
            self.unpin(plane, id, Pins::SPREAD);
        }
    }

    /// Drops the tracking state of a session that tracks no more or has left. Its links are closed,
    /// except the one that it still needs.
    pub(crate) fn drop_tracker(&mut self, plane: &mut DataPlane, id: SessionId) {
        let Some(session) = plane.sessions.get_mut(id) else {
            return;
        };
        let (own, is_bound) = (session.link, !session.pins.is_empty());
        if self.trackers.remove(id).is_none() {
            return;
        }
        let tracking = std::mem::take(&mut session.rare().tracking);
        plane.charge(id, ChargeKind::Invalidations, Charge::default());
        for (_, link) in tracking.links {
            if link != own {
                self.give_back(plane, link);
            }
        }
        if is_bound {
            let mut off = Vec::new();
            encode::request(&mut off, &["CLIENT", "TRACKING", "OFF"]);
            plane.put_ours(own, &off, Completion::Pass);
        }
        plane.weigh(id);
    }

    /// A request is sent without its CLIENT CACHING. The server does not note the keys as the
    /// client expects, so all keys are invalidated.
    pub(crate) fn lack_caching(&mut self, plane: &mut DataPlane, id: SessionId) {
        let tracker = self.trackers.sessions.get(id);
        if tracker.is_some_and(Tracker::asks_for_caching) {
            self.forget_all(plane, id);
        }
    }

    /// The session's link to a server, if there is one. Links of another database, protocol version
    /// or user than the session has now are closed.
    pub(crate) fn known_tracking_link(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        server: ServerId,
    ) -> Option<LinkId> {
        let session = plane.sessions.get(id)?;
        let kind = plane.kind_of(session);
        let links = plane.tracking_links(id);
        let is_of = |(server, link): &(ServerId, LinkId)| {
            let link = plane.links.get(*link);
            link.is_some_and(|link| link.kind == kind.at(*server))
        };
        if !links.iter().all(is_of) {
            let others = links.iter().filter(|own| !is_of(own));
            for link in others.map(|(_, link)| *link).collect::<Vec<_>>() {
                self.close_tracking_link(plane, id, link);
            }
            self.forget_all(plane, id);
        }
        plane.tracks_on(id, server)
    }

    fn open_tracking_link(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        kind: LinkKind,
    ) -> Result<LinkId, Blocked> {
        let link = plane.own_link(kind, id)?;
        if let Some(state) = plane.links.get_mut(link) {
            state.tainted = true;
        }
        let session = plane.sessions.get_mut(id);
        let (Some(session), Some(tracker)) = (session, self.trackers.sessions.get(id)) else {
            return Ok(link);
        };
        let pins = session.pins;
        session.rare().tracking.links.push((kind.server, link));
        let mut requests = tracker.agreed.clone();
        for (_, name) in SWITCHES.iter().filter(|(pin, _)| pins.any(*pin)) {
            let mut request = Vec::new();
            encode::request(&mut request, &["CLIENT", name, "ON"]);
            requests.push(request);
        }
        for request in requests {
            plane.put_ours(link, &request, Completion::Pinned(PinnedCompletion::Track));
        }
        plane.weigh(id);
        Ok(link)
    }

    fn close_tracking_link(&mut self, plane: &mut DataPlane, session_id: SessionId, link: LinkId) {
        if let Some(session) = plane.sessions.get_mut(session_id) {
            session.rare().tracking.drop_link(link);
            if session.link == link {
                self.attach_own(plane, session_id, LinkId::NONE);
            }
        }
        if plane.links.get(link).is_some() {
            plane.close_link(link);
        }
    }

    /// A tracking link is lost, and the notes of its server with it. `is_over`: the server has
    /// ended a wait of the session.
    pub(crate) fn lose_tracking_link(
        &mut self,
        plane: &mut DataPlane,
        by: SessionId,
        link: LinkId,
        was_up: bool,
        is_over: bool,
    ) {
        let Some(server) = plane.links.get(link).map(|link| link.kind.server) else {
            return;
        };
        let Some(session) = plane.sessions.get_mut(by) else {
            return;
        };
        let pool = usize::from(session.pool);
        let is_attached = session.link == link;
        if is_attached {
            session.link = LinkId::NONE;
            session.pins = session.pins.of_all_servers();
        }
        let is_switched = session.pins.any(Pins::SWITCHED);
        session.rare().tracking.drop_link(link);
        let tracker = self.trackers.sessions.get(by);
        let is_on = tracker.is_some_and(Tracker::is_on) || is_switched;
        let owns = plane.pools[pool].servers().contains(&server);
        if is_over {
            plane.close_when_answered(by);
        } else if !is_on {
            plane.close_for(by, String::from(AWAY));
        } else if was_up && owns {
            plane.close_for(by, String::from(LOST));
        } else if was_up {
            // The server owns no slot any more, and its notes are useless.
            self.forget_all(plane, by);
        }
    }

    /// Handles the server's reply to CLIENT TRACKING on a later link, or to CLIENT CACHING.
    pub(crate) fn settle_track(&mut self, plane: &mut DataPlane, link: LinkId, reply: &[u8]) {
        let Some(by) = plane.links.get(link).map(|link| link.role.session()) else {
            return;
        };
        if !reply.starts_with(b"+") {
            let why = reply.strip_prefix(b"-").unwrap_or(reply).trim_ascii_end();
            let (server, why) = (plane.label(link), String::from_utf8_lossy(why));
            let reason =
                format!("{server} refuses a CLIENT option that other servers accept: {why}");
            return plane.close_for(by, reason);
        }
        let broadcasts = |session: &Session| session.pins.any(Pins::BROADCAST);
        if plane.sessions.get(by).is_some_and(broadcasts) {
            // The session missed the changes at this server before.
            self.forget_all(plane, by);
        }
    }

    /// Closes idle links to servers that own no keys any more.
    fn close_idle_tracking_links(&mut self, plane: &mut DataPlane, id: SessionId) {
        let Some(session) = plane.sessions.get(id) else {
            return;
        };
        let (pool, own) = (usize::from(session.pool), session.link);
        let keeps_own = !session.is_caught_up() || session.pins.bind();
        let owners = plane.pools[pool].servers();
        let is_idle = |(server, link): &&(ServerId, LinkId)| {
            let state = plane.links.get(*link);
            let is_needed = owners.contains(server) || keeps_own && *link == own;
            !is_needed && state.is_some_and(|link| link.is_up() && link.is_idle())
        };
        let idle: Vec<LinkId> = plane
            .tracking_links(id)
            .iter()
            .filter(is_idle)
            .map(|(_, link)| *link)
            .collect();
        for link in idle {
            self.close_tracking_link(plane, id, link);
        }
    }

    /// Invalidates all keys of a session at once, and again after the replies that are on their
    /// way, since these may be older.
    fn forget_all(&mut self, plane: &mut DataPlane, id: SessionId) {
        let Some(session) = plane.sessions.get_mut(id) else {
            return;
        };
        if session.version != Version::Resp3 || !session.pins.any(Pins::TRACKING) {
            return;
        }
        let (next, is_caught_up) = (session.next_seq, session.is_caught_up());
        if !is_caught_up && let Some(tracker) = self.tracker_mut(plane, id) {
            tracker.forget_behind(next);
            self.trackers.owe(id);
        }
        plane.push_to(id, INVALIDATE_ALL);
    }

    /// Pushes the invalidations whose replies went out in this turn.
    pub(crate) fn tell_invalidations(&mut self, plane: &mut DataPlane) {
        for id in std::mem::take(&mut self.trackers.owed) {
            let Some(head) = plane.sessions.get(id).map(|session| session.head_seq) else {
                continue;
            };
            let Some(tracker) = self.tracker_mut(plane, id) else {
                continue;
            };
            let due = tracker.take_due(head);
            let owes = tracker.owes();
            self.charge_tracker(plane, id);
            if owes {
                self.trackers.owe(id);
            }
            if !due.is_empty() {
                plane.push_to(id, &due);
            }
        }
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
            tracker.asked = Some(TrackingSwitch::Tracking(request.clone()));
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
        tracker.asked = Some(TrackingSwitch::Tracking(large.clone()));
        tracker.settle(true);
        assert!(tracker.has_room_for(&large), "it is kept already");
        assert!(!tracker.has_room_for(b"b"));
    }
}
