//! CLIENT TRACKING where a pool has several servers: the session has a link of its own to each
//! server that it asks.
//!
//! ```text
//!   GET a ──► own link to the owner of a:  CLIENT TRACKING ON, GET a ──► the value ────┐
//!   GET b ──► own link to the owner of b:  CLIENT TRACKING ON, GET b ──► the value ────┼──► session
//!                                          a or b has changed        ──► invalidation ─┘
//! ```
//!
//! A server notes for each connection which keys were read there. All requests of the session travel
//! on these links, behind the CLIENT TRACKING of the link. So no change falls between a read and
//! its note.
//!
//! An invalidation must not overtake the reply that it is about, or the client would cache the old
//! value. A reply may wait for the replies of other servers in front of it. Then the invalidation
//! waits behind that reply.
//!
//! Notes are lost with a connection, and a session that tracks is then closed, as by a server that
//! restarts. If slots move to another owner, the session is told to forget all keys.
//!
//! CLIENT NO-TOUCH and CLIENT IMPORT-SOURCE use the same links. Each new link is sent what is on.

use std::collections::VecDeque;

use respool_protocol::commands::Names;
use respool_protocol::encode::{self, Version};
use respool_protocol::request::{Found, Scanner};

use crate::duty::Duty;
use crate::engine::Engine;
use crate::failure::is_servers_fault;
use crate::limits::{INVALIDATIONS_HELD_BYTES_MAX, TRACKING_BYTES_MAX};
use crate::link::{Link, LinkKey, Role, State};
use crate::pinned::Switch;
use crate::pool::ServerId;
use crate::redirect::redirect_asked;
use crate::requests::{Blocked, Placed, Request, bound_reply};
use crate::session::{Pins, Session};
use crate::slots::Key;

/// To a CLIENT TRACKING that names another session.
const REDIRECTS: &[u8] =
    b"ERR respool: CLIENT TRACKING with REDIRECT is refused where a pool has several servers: \
    without REDIRECT, a session in RESP3 gets the invalidations itself";
/// To a BCAST with PREFIX, where servers know keys by other names.
const PREFIXES: &[u8] =
    b"ERR respool: PREFIX of CLIENT TRACKING is refused where a server of the pool sees keys \
    without their prefix: ask for BCAST without PREFIX";
/// As Redis has it (`clientCommand`).
const NOT_OPTIN: &[u8] =
    b"ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.";
const NOT_OPTOUT: &[u8] =
    b"ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.";

/// All keys may have changed.
const INVALIDATE_ALL: &[u8] = b">2\r\n$10\r\ninvalidate\r\n_\r\n";
const INVALIDATE: &[u8] = b">2\r\n$10\r\ninvalidate\r\n";

/// After so many milliseconds without a byte a link is asked whether its server is there. A server
/// that is cut off sends no invalidations, and the session may ask nothing for long.
const QUIET_MS: u32 = 2_000;

/// A request about the connection itself that several servers are to agree to.
enum Asked {
    /// CLIENT TRACKING ON, as it was sent.
    Tracking(Vec<u8>),
    /// CLIENT NO-TOUCH ON, CLIENT IMPORT-SOURCE ON: the pin that is set once the servers agree.
    Switch(Pins),
}

/// The tracking of one session at several servers.
#[derive(Default)]
pub(crate) struct Tracker {
    /// The CLIENT TRACKING requests that were agreed to, oldest first. Each new link is sent all.
    agreed: Vec<Vec<u8>>,
    /// The request that is not answered yet.
    asked: Option<Asked>,
    /// One to each server that was asked.
    links: Vec<(ServerId, Key)>,
    /// The CLIENT CACHING request for the next request of the session.
    caching: Option<Vec<u8>>,
    /// Invalidations that wait, each until all replies in front of its place are out.
    held: VecDeque<(u32, Vec<u8>)>,
    held_bytes: usize,
    /// All keys are invalidated once all replies in front of this place are out.
    forgets_at: Option<u32>,
}

/// Whether a session that has been answered up to `head` has the replies in front of `place`.
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

    fn link_to(&self, server: ServerId) -> Option<Key> {
        let mut links = self.links.iter();
        links.find(|(to, _)| *to == server).map(|(_, link)| *link)
    }

    fn has_link(&self, link: Key) -> bool {
        self.links.iter().any(|(_, own)| *own == link)
    }

    /// The links that the session keeps for as long as it tracks.
    pub(crate) fn links(&self) -> impl Iterator<Item = Key> {
        self.links.iter().map(|(_, link)| *link)
    }

    fn drop_link(&mut self, link: Key) {
        self.links.retain(|(_, own)| *own != link);
    }

    /// Whether CLIENT TRACKING with these bytes can be kept for later links.
    fn has_room_for(&self, request: &[u8]) -> bool {
        let known: usize = self.agreed.iter().map(Vec::len).sum();
        self.agreed.iter().any(|agreed| agreed == request)
            || known + request.len() <= TRACKING_BYTES_MAX
    }

    /// The servers have answered the last request. Returns the pins that it was about, if it was
    /// not about tracking.
    fn settle(&mut self, is_agreed: bool) -> Option<Pins> {
        match self.asked.take()? {
            Asked::Tracking(asked) if is_agreed => {
                // The last one decides on all options but PREFIX, which add up.
                self.agreed.retain(|agreed| *agreed != asked);
                self.agreed.push(asked);
                None
            }
            Asked::Tracking(_) => None,
            Asked::Switch(pins) => Some(pins),
        }
    }

    /// CLIENT TRACKING OFF.
    fn stop(&mut self) {
        self.agreed.clear();
        self.caching = None;
    }

    /// Whether the last CLIENT TRACKING has this option.
    fn has_option(&self, word: &[u8]) -> bool {
        let mut scanner = Scanner::default();
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

    /// An invalidation waits for the replies in front of `place`. If too much waits, all keys are
    /// invalidated instead. Returns by how many bytes more or less are held.
    fn hold(&mut self, place: u32, push: &[u8]) -> isize {
        let before = self.held_bytes as isize;
        if self.held_bytes + push.len() > INVALIDATIONS_HELD_BYTES_MAX {
            let last = self.held.drain(..).map(|(place, _)| place);
            let last = last.fold(place, |last, place| later(place, Some(last)));
            self.held_bytes = 0;
            self.forget_behind(last);
        } else {
            self.held_bytes += push.len();
            self.held.push_back((place, push.to_vec()));
        }
        self.held_bytes as isize - before
    }

    /// All keys are invalidated behind the replies in front of `place`.
    fn forget_behind(&mut self, place: u32) {
        self.forgets_at = Some(later(place, self.forgets_at));
    }

    /// The invalidations that wait for no reply, if the session was answered up to `head`.
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

    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Its bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        let asked = self.asked.iter().filter_map(|asked| match asked {
            Asked::Tracking(request) => Some(request),
            Asked::Switch(_) => None,
        });
        let agreed = self.agreed.iter().chain(asked).chain(&self.caching);
        size_of::<Tracker>()
            + self.held_bytes
            + agreed.map(Vec::capacity).sum::<usize>()
            + self.links.capacity() * size_of::<(ServerId, Key)>()
    }
}

/// The sessions of a worker that track at several servers.
#[derive(Default)]
pub(crate) struct Trackers {
    sessions: Vec<Key>,
    /// Sessions for which an invalidation waits.
    owed: Vec<Key>,
    /// Pools with keys that have other owners since the last tick.
    moved: Vec<u16>,
}

impl Trackers {
    fn add(&mut self, key: Key) {
        if !self.sessions.contains(&key) {
            self.sessions.push(key);
        }
    }

    pub(crate) fn remove(&mut self, key: Key) {
        self.sessions.retain(|session| *session != key);
    }

    fn owe(&mut self, key: Key) {
        if !self.owed.contains(&key) {
            self.owed.push(key);
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
impl Engine {
    /// Whether a session has a link of its own to each server that it asks, to track there.
    pub(crate) fn tracks_several(&self, key: Key) -> bool {
        let session = self.sessions.get(key);
        session.is_some_and(|session| session.pins.any(Pins::SPREAD))
    }

    fn tracker(&self, key: Key) -> Option<&Tracker> {
        self.sessions.get(key)?.rare.as_ref()?.tracker.as_deref()
    }

    fn tracker_mut(&mut self, key: Key) -> Option<&mut Tracker> {
        let rare = self.sessions.get_mut(key)?.rare.as_mut()?;
        rare.tracker.as_deref_mut()
    }

    /// CLIENT TRACKING ON where a pool has several servers, all of which are known.
    pub(crate) fn track_at_several(&mut self, key: Key, request: &Request<'_>) -> Placed {
        if redirect_asked(request).is_some() {
            self.counters.refused += 1;
            return self.answer_error(key, REDIRECTS);
        }
        let broadcasts = asks_for(request.args(), b"BCAST");
        if asks_for(request.args(), b"PREFIX") && self.strips(key) {
            self.counters.refused += 1;
            return self.answer_error(key, PREFIXES);
        }
        if self.hold_until_caught_up(key) {
            return Placed::Wait;
        }
        self.begin_tracking(key);
        let has_room = |tracker: &Tracker| tracker.has_room_for(request.bytes);
        if !self.tracker(key).is_some_and(has_room) {
            self.settle_tracking(key, b"");
            return self.answer_reply(key, &bound_reply("TRACKING_BYTES_MAX"));
        }
        let servers = self.servers_to_track(key, broadcasts);
        let asked = Asked::Tracking(request.bytes.to_vec());
        self.ask_to_agree(key, request, &servers, asked)
    }

    /// CLIENT NO-TOUCH ON, CLIENT IMPORT-SOURCE ON where a pool has several servers. From then on
    /// the session has a link of its own to each server that it asks, as a session that tracks.
    pub(crate) fn switch_at_several(&mut self, key: Key, request: &Request<'_>) -> Placed {
        if self.hold_until_caught_up(key) {
            return Placed::Wait;
        }
        self.begin_to_spread(key);
        let servers = self.servers_to_track(key, false);
        let asked = Asked::Switch(Switch::of(request).pins);
        self.ask_to_agree(key, request, &servers, asked)
    }

    /// These servers are asked whether they agree, each on the session's own link to it.
    fn ask_to_agree(
        &mut self,
        key: Key,
        request: &Request<'_>,
        servers: &[ServerId],
        asked: Asked,
    ) -> Placed {
        for server in servers {
            match self.tracking_link(key, *server) {
                Ok(_) => {}
                Err(Blocked::Wait) => return Placed::Wait,
                Err(Blocked::Refused(reply)) => {
                    self.settle_tracking(key, &reply);
                    return self.answer_reply(key, &reply);
                }
            }
        }
        if let Some(tracker) = self.tracker_mut(key) {
            tracker.asked = Some(asked);
        }
        let placed = self.ask_these(key, request, servers);
        if placed == Placed::Done && !self.hold_until_caught_up(key) {
            // It was refused here.
            self.settle_tracking(key, b"");
        }
        placed
    }

    /// A session that broadcasts tracks at all owners. Any other session tracks at the servers that it
    /// asks, and the first of them says whether it may.
    fn servers_to_track(&mut self, key: Key, broadcasts: bool) -> Vec<ServerId> {
        let Some(session) = self.sessions.get(key) else {
            return Vec::new();
        };
        let (pool, own) = (usize::from(session.pool), session.server);
        let tracker = session.rare.as_ref().and_then(|rare| rare.tracker.as_ref());
        let tracked = tracker.map_or(&[][..], |tracker| &tracker.links);
        if broadcasts {
            return self.pools[pool].servers().to_vec();
        }
        match tracked.is_empty() {
            false => tracked.iter().map(|(server, _)| *server).collect(),
            true if self.is_reachable(own) => vec![own],
            true => vec![self.first_up(pool)],
        }
    }

    fn begin_tracking(&mut self, key: Key) {
        self.begin_to_spread(key);
        if let Some(session) = self.sessions.get_mut(key) {
            session.pins.add(Pins::TRACKING);
        }
    }

    /// From now on the session has a link of its own to each server that it asks.
    fn begin_to_spread(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let (server, link) = (session.server, session.link);
        let had_own_link = !session.pins.is_empty();
        session.pins.add(Pins::SPREAD);
        let tracker = session.rare().tracker.get_or_insert_default();
        if had_own_link && !tracker.has_link(link) {
            // It watches keys there.
            let is_own = |link: &Link| link.role == Role::Pinned { by: key };
            if self.links.get(link).is_some_and(is_own) {
                tracker.links.push((server, link));
            }
        }
        self.trackers.add(key);
        self.taint_own_link(key);
        self.weigh(key);
    }

    /// The servers have answered CLIENT TRACKING ON, or another request that all are to agree to.
    /// If they are away, the session is closed, as they would close it: libraries connect again
    /// then, and take an error for the last word.
    pub(crate) fn settle_tracking(&mut self, key: Key, said: &[u8]) {
        let Some(tracker) = self.tracker_mut(key) else {
            return;
        };
        let is_agreed = said.starts_with(b"+");
        let switched = tracker.settle(is_agreed);
        let (is_on, broadcasts) = (tracker.is_on(), tracker.has_option(b"BCAST"));
        if is_servers_fault(said) {
            return self.close_for(key, String::from(AWAY));
        }
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        match switched {
            Some(pins) if is_agreed => session.pins.add(pins),
            // Some servers may have agreed.
            Some(pins) if !session.pins.any(pins) => self.switch_off(key, pins),
            Some(_) => {}
            None if is_on => {
                session.pins.remove(Pins::BROADCAST);
                if broadcasts {
                    session.pins.add(Pins::BROADCAST);
                }
            }
            None => self.end_tracking(key),
        }
    }

    /// CLIENT TRACKING OFF of a session that tracks at several servers.
    pub(crate) fn stop_tracking(&mut self, key: Key) -> Placed {
        if self.hold_until_caught_up(key) {
            return Placed::Wait;
        }
        self.end_tracking(key);
        self.answer_reply(key, b"+OK\r\n")
    }

    /// The session tracks no more. Its links are closed, unless the servers know something else of
    /// them.
    fn end_tracking(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        if !session.pins.any(Pins::SWITCHED) {
            return self.unpin(key, Pins::ALL_TRACKING);
        }
        if !session.pins.any(Pins::TRACKING) {
            return;
        }
        session.pins.remove(Pins::TRACKING.with(Pins::BROADCAST));
        if let Some(tracker) = self.tracker_mut(key) {
            tracker.stop();
        }
        self.tell_links(key, &["CLIENT", "TRACKING", "OFF"]);
    }

    /// CLIENT NO-TOUCH OFF, CLIENT IMPORT-SOURCE OFF of a session that has links to several servers.
    pub(crate) fn stop_switch(&mut self, key: Key, pins: Pins) -> Placed {
        if self.hold_until_caught_up(key) {
            return Placed::Wait;
        }
        self.switch_off(key, pins);
        self.answer_reply(key, b"+OK\r\n")
    }

    fn switch_off(&mut self, key: Key, pins: Pins) {
        for (pin, name) in SWITCHES {
            if pins.any(pin) {
                self.tell_links(key, &["CLIENT", name, "OFF"]);
            }
        }
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        session.pins.remove(pins);
        if !session.pins.any(Pins::TRACKING.with(Pins::SWITCHED)) {
            self.unpin(key, Pins::SPREAD);
        }
    }

    /// A request of ours on all links of a session; its replies do not matter.
    fn tell_links(&mut self, key: Key, words: &[&str]) {
        let mut request = Vec::new();
        encode::request(&mut request, words);
        let links = self.tracker(key).map(|tracker| tracker.links().collect());
        let links: Vec<Key> = links.unwrap_or_default();
        for link in links {
            self.put_ours(link, &request, Duty::Track);
        }
    }

    /// A session tracks no more, or is gone: its links are closed, except the one that it still
    /// needs.
    pub(crate) fn drop_tracker(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let (own, is_bound) = (session.link, !session.pins.is_empty());
        let rare = session.rare.as_mut();
        let Some(tracker) = rare.and_then(|rare| rare.tracker.take()) else {
            return;
        };
        self.held_bytes -= tracker.held_bytes();
        self.trackers.remove(key);
        for link in tracker.links().filter(|link| *link != own) {
            self.give_back(link);
        }
        if is_bound {
            let mut off = Vec::new();
            encode::request(&mut off, &["CLIENT", "TRACKING", "OFF"]);
            self.put_ours(own, &off, Duty::Pass);
        }
        self.weigh(key);
    }

    /// CLIENT CACHING is about the next request, wherever that goes.
    pub(crate) fn cache_next(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let Some(tracker) = self.tracker_mut(key) else {
            return Placed::Done;
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
            return self.answer_error(key, refusal);
        }
        tracker.caching = Some(request.bytes.to_vec());
        self.answer_reply(key, b"+OK\r\n")
    }

    /// A request of the session follows on this link.
    pub(crate) fn put_caching(&mut self, key: Key, link: Key) {
        let caching = self
            .tracker(key)
            .and_then(|tracker| tracker.caching.clone());
        if let Some(request) = caching {
            self.put_ours(link, &request, Duty::Track);
        }
    }

    /// A request has been placed. CLIENT CACHING counts for one, which a transaction is; CLIENT and
    /// its subcommands are none.
    pub(crate) fn end_caching(&mut self, key: Key) {
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        let is_client = session
            .asked
            .is_some_and(|asked| asked.get().name.starts_with("client|"));
        if is_client || self.is_in_multi(key) {
            return;
        }
        if let Some(tracker) = self.tracker_mut(key) {
            tracker.caching = None;
        }
    }

    /// A request is sent without its CLIENT CACHING. Its server does not note the keys as the client
    /// expects, so the client has to forget them.
    pub(crate) fn lack_caching(&mut self, key: Key) {
        if self.tracker(key).is_some_and(Tracker::asks_for_caching) {
            self.forget_all(key);
        }
    }
}

/// The links.
impl Engine {
    /// The link on which a session asks this server; opened if it has none.
    pub(crate) fn tracking_link(&mut self, key: Key, server: ServerId) -> Result<Key, Blocked> {
        if let Some(link) = self.known_tracking_link(key, server) {
            return Ok(link);
        }
        let Some(session) = self.sessions.get(key) else {
            return Err(Blocked::Wait);
        };
        let kind = self.kind_of(session).at(server);
        self.know_nodes(key, server)?;
        // A shared link knows whether the server is there, or is soon to be.
        if let Some(resting) = self.resting_link(kind) {
            self.ready_link(key, resting)?;
        } else if self.away_until(server).is_some() {
            let shared = self.shared_link_for(key, self.first_link(server))?;
            let shared = self.ready_link(key, shared)?;
            // A link of the session's own would fail at once, and be opened again at once.
            return Err(self.wait_at_full(key, shared));
        }
        self.open_tracking_link(key, kind)
    }

    /// Waits for the first topology answer of the server's Cluster. Without it most reads would be
    /// redirected, and each redirect would look like a slot that moves while the session tracks.
    fn know_nodes(&mut self, key: Key, server: ServerId) -> Result<(), Blocked> {
        let part = usize::from(self.server(server).pool);
        match self.pools[part].cluster() {
            Some(cluster) if !cluster.is_known() => {}
            _ => return Ok(()),
        }
        if self.waits_for_nodes(key, part) {
            return Err(Blocked::Wait);
        }
        let mut reply = Vec::new();
        encode::error(&mut reply, self.no_nodes(part).as_bytes());
        Err(Blocked::Refused(reply))
    }

    /// The same link, if it is there. Links of another database, version or user than the session
    /// has now are closed.
    fn known_tracking_link(&mut self, key: Key, server: ServerId) -> Option<Key> {
        let session = self.sessions.get(key)?;
        let kind = self.kind_of(session);
        let tracker = session.rare.as_ref()?.tracker.as_ref()?;
        let is_of = |(server, link): &(ServerId, Key)| {
            let link = self.links.get(*link);
            link.is_some_and(|link| link.key == kind.at(*server))
        };
        if !tracker.links.iter().all(is_of) {
            let others = tracker.links.iter().filter(|own| !is_of(own));
            for link in others.map(|(_, link)| *link).collect::<Vec<_>>() {
                self.close_tracking_link(key, link);
            }
            self.forget_all(key);
        }
        self.tracker(key)?.link_to(server)
    }

    /// A shared link to the same server that could not be connected, and is not tried just now. A
    /// server that refuses another user is there.
    fn resting_link(&self, kind: LinkKey) -> Option<Key> {
        let all = [kind, self.first_link(kind.server)];
        let rests = |key: &Key| {
            self.links.get(*key).is_some_and(|link| {
                let rests = matches!(link.state, State::Resting { .. }) || link.is_late;
                rests && (link.key.user == kind.user || link.refusal.is_none())
            })
        };
        let mut links = all.iter().filter_map(|kind| self.shared.get(kind).copied());
        links.find(rests)
    }

    fn open_tracking_link(&mut self, key: Key, kind: LinkKey) -> Result<Key, Blocked> {
        let link = self.own_link(kind, key)?;
        if let Some(state) = self.links.get_mut(link) {
            state.tainted = true;
        }
        let pins = self
            .sessions
            .get(key)
            .map_or(Pins::default(), |session| session.pins);
        let Some(tracker) = self.tracker_mut(key) else {
            return Ok(link);
        };
        tracker.links.push((kind.server, link));
        let mut requests = tracker.agreed.clone();
        for (_, name) in SWITCHES.iter().filter(|(pin, _)| pins.any(*pin)) {
            let mut request = Vec::new();
            encode::request(&mut request, &["CLIENT", name, "ON"]);
            requests.push(request);
        }
        for request in requests {
            self.put_ours(link, &request, Duty::Track);
        }
        self.weigh(key);
        Ok(link)
    }

    /// The session rides on its own link to the server to which it has turned.
    pub(crate) fn ride_to_track(&mut self, key: Key) -> Result<Key, Blocked> {
        let Some(server) = self.sessions.get(key).map(|session| session.server) else {
            return Err(Blocked::Wait);
        };
        let link = self.tracking_link(key, server)?;
        self.ride_on_own(key, link);
        Ok(link)
    }

    fn ride_on_own(&mut self, key: Key, link: Key) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let old = std::mem::replace(&mut session.link, link);
        if old != link {
            self.leave(old);
            if let Some(link) = self.links.get_mut(link) {
                link.riders += 1;
            }
        }
    }

    /// The link of a session to this server, if it has one.
    pub(crate) fn tracks_on(&self, key: Key, server: ServerId) -> Option<Key> {
        self.tracker(key)?.link_to(server)
    }

    /// Whether a session tracks on this link, and has others.
    pub(crate) fn is_tracking_link(&self, key: Key, link: Key) -> bool {
        self.tracker(key)
            .is_some_and(|tracker| tracker.has_link(link))
    }

    /// Whether a session that may be answered by any server stays at its own.
    pub(crate) fn tracks_here(&self, key: Key) -> bool {
        let Some(session) = self.sessions.get(key).filter(|_| self.tracks_several(key)) else {
            return false;
        };
        let link = self.tracks_on(key, session.server);
        link.and_then(|link| self.links.get(link))
            .is_some_and(Link::is_up)
    }

    fn close_tracking_link(&mut self, key: Key, link: Key) {
        if let Some(tracker) = self.tracker_mut(key) {
            tracker.drop_link(link);
        }
        if self
            .sessions
            .get(key)
            .is_some_and(|session| session.link == link)
        {
            self.ride_on_own(key, Key::NOBODY);
        }
        if self.links.get(link).is_some() {
            self.close_link(link);
        }
    }

    /// A link on which a session tracks is lost, and the notes of its server with it. `is_over`: the
    /// server has ended a wait of the session.
    pub(crate) fn lose_tracking_link(&mut self, by: Key, link: Key, was_up: bool, is_over: bool) {
        let Some(server) = self.links.get(link).map(|link| link.key.server) else {
            return;
        };
        let Some(session) = self.sessions.get_mut(by) else {
            return;
        };
        let pool = usize::from(session.pool);
        let rides = session.link == link;
        if rides {
            session.link = Key::NOBODY;
            session.pins = session.pins.of_all_servers();
        }
        let is_switched = session.pins.any(Pins::SWITCHED);
        let tracker = session.rare().tracker.get_or_insert_default();
        tracker.drop_link(link);
        let is_on = tracker.is_on() || is_switched;
        let owns = self.pools[pool].servers().contains(&server);
        if is_over {
            self.close_when_answered(by);
        } else if !is_on {
            self.close_for(by, String::from(AWAY));
        } else if was_up && owns {
            self.close_for(by, String::from(LOST));
        } else if was_up {
            // It owns no key any more, and its notes were forgotten.
            self.forget_all(by);
        }
    }

    /// The server's answer to CLIENT TRACKING on a later link, or to CLIENT CACHING.
    pub(crate) fn settle_track(&mut self, link: Key, reply: &[u8]) {
        let Some(by) = self.links.get(link).map(|link| link.role.captor()) else {
            return;
        };
        if !reply.starts_with(b"+") {
            let why = reply.strip_prefix(b"-").unwrap_or(reply).trim_ascii_end();
            let (server, why) = (self.label(link), String::from_utf8_lossy(why));
            let reason = format!("{server} refuses what other servers do for it: {why}");
            return self.close_for(by, reason);
        }
        let broadcasts = |session: &Session| session.pins.any(Pins::BROADCAST);
        if self.sessions.get(by).is_some_and(broadcasts) {
            // The session was not told of changes there before.
            self.forget_all(by);
        }
    }

    pub(crate) fn tick_trackers(&mut self) {
        if self.trackers.sessions.is_empty() {
            return self.trackers.moved.clear();
        }
        let moved = std::mem::take(&mut self.trackers.moved);
        for key in self.trackers.sessions.clone() {
            let Some(session) = self.sessions.get(key) else {
                continue;
            };
            let (pool, broadcasts) = (session.pool, session.pins.any(Pins::BROADCAST));
            if moved.contains(&pool) {
                self.forget_all(key);
            }
            self.close_idle_tracking_links(key);
            if broadcasts {
                self.track_at_new_owners(key);
            }
            let links = self.tracker(key).map(|tracker| tracker.links().collect());
            let links: Vec<Key> = links.unwrap_or_default();
            let patience_ms = QUIET_MS.min(self.settings.timeouts.link_stall_ms / 2);
            for link in links {
                let quiet = |link: &Link| link.is_quiet(self.now, patience_ms);
                if self.links.get(link).is_some_and(quiet) {
                    let mut request = Vec::new();
                    encode::request(&mut request, &["PING"]);
                    self.put_ours(link, &request, Duty::Pass);
                }
            }
        }
    }

    /// Links to servers that own nothing any more are closed once they owe nothing.
    fn close_idle_tracking_links(&mut self, key: Key) {
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        let (pool, own) = (usize::from(session.pool), session.link);
        let keeps_own = !session.is_caught_up() || session.pins.bind();
        let owners = self.pools[pool].servers();
        let is_idle = |(server, link): &&(ServerId, Key)| {
            let state = self.links.get(*link);
            let is_needed = owners.contains(server) || keeps_own && *link == own;
            !is_needed && state.is_some_and(|link| link.is_up() && link.is_idle())
        };
        let links = self.tracker(key).map_or(&[][..], |tracker| &tracker.links);
        let idle: Vec<Key> = links
            .iter()
            .filter(is_idle)
            .map(|(_, link)| *link)
            .collect();
        for link in idle {
            self.close_tracking_link(key, link);
        }
    }

    /// A session that broadcasts is told by each owner, also by those that have become owners since.
    fn track_at_new_owners(&mut self, key: Key) {
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        let (pool, kind) = (usize::from(session.pool), self.kind_of(session));
        for server in self.pools[pool].servers().to_vec() {
            if self.known_tracking_link(key, server).is_some() || !self.is_reachable(server) {
                continue;
            }
            if !self.may_have_own_link(key) {
                let reason = "pinned-links-max: it was to be told by one server more";
                return self.close_for(key, reason.to_owned());
            }
            if self.open_tracking_link(key, kind.at(server)).is_err() {
                return self.close_for(key, String::from(AWAY));
            }
        }
    }
}

/// The invalidations.
impl Engine {
    /// A push on one of the links on which a session tracks. The session speaks RESP3.
    pub(crate) fn take_invalidation(&mut self, link: Key, by: Key, push: &[u8]) {
        let Some(session) = self.sessions.get(by) else {
            return;
        };
        let (place, strips) = (session.end_of_early_replies(), self.strips(by));
        let named = match push.strip_prefix(INVALIDATE).filter(|_| strips) {
            Some(keys) => [INVALIDATE, &self.named_by(link, Names::Each, None, keys)].concat(),
            None => push.to_vec(),
        };
        let Some(place) = place else {
            return self.push_to(by, &named);
        };
        if let Some(tracker) = self.tracker_mut(by) {
            let more = tracker.hold(place, &named);
            self.held_bytes = self.held_bytes.saturating_add_signed(more);
            self.trackers.owe(by);
        }
    }

    /// All keys may have changed for a session. It is told at once, and again behind the replies
    /// that are on their way: these may be older.
    pub(crate) fn forget_all(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        if session.version != Version::Resp3 || !session.pins.any(Pins::TRACKING) {
            return;
        }
        let (next, is_caught_up) = (session.next_seq, session.is_caught_up());
        if !is_caught_up && let Some(tracker) = self.tracker_mut(key) {
            tracker.forget_behind(next);
            self.trackers.owe(key);
        }
        self.push_to(key, INVALIDATE_ALL);
    }

    /// The end of a turn: invalidations follow the replies that they waited for.
    pub(crate) fn tell_invalidations(&mut self) {
        for key in std::mem::take(&mut self.trackers.owed) {
            let Some(head) = self.sessions.get(key).map(|session| session.head_seq) else {
                continue;
            };
            let Some(tracker) = self.tracker_mut(key) else {
                continue;
            };
            let before = tracker.held_bytes();
            let due = tracker.take_due(head);
            let (after, owes) = (tracker.held_bytes(), tracker.owes());
            self.held_bytes -= before - after;
            if owes {
                self.trackers.owe(key);
            }
            if !due.is_empty() {
                self.push_to(key, &due);
            }
        }
    }

    /// Whether an invalidation waits for replies.
    pub(crate) fn owes_invalidations(&self) -> bool {
        !self.trackers.owed.is_empty()
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

/// The options beside tracking that a session can have on at each of its servers.
const SWITCHES: [(Pins, &str); 2] = [
    (Pins::NO_TOUCH, "NO-TOUCH"),
    (Pins::IMPORT, "IMPORT-SOURCE"),
];

const LOST: &str = "the connection that a server knew it by was lost";
pub(crate) const AWAY: &str = "CLIENT TRACKING: no connection to the server";

#[cfg(test)]
mod tests {
    use super::*;

    const PUSH: &[u8] = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n";

    /// An invalidation follows the replies in front of its place, though places begin anew.
    #[test]
    fn invalidation_waits_for_the_replies_in_front() {
        let mut tracker = Tracker::default();
        let place = 2;
        assert_eq!(tracker.hold(place, PUSH), PUSH.len() as isize);
        for head in [u32::MAX - 1, 0, 1] {
            assert_eq!(tracker.take_due(head), b"");
            assert!(tracker.owes());
        }
        assert_eq!(tracker.take_due(2), PUSH);
        assert!(!tracker.owes());
        assert_eq!(tracker.held_bytes(), 0);
    }

    /// Held bytes have a bound. Beyond it, all keys are invalidated behind the last place.
    #[test]
    fn too_many_invalidations_become_one_for_all_keys() {
        let mut tracker = Tracker::default();
        let fit = INVALIDATIONS_HELD_BYTES_MAX / PUSH.len();
        for place in 0..fit as u32 {
            tracker.hold(place, PUSH);
        }
        assert!(tracker.held_bytes() <= INVALIDATIONS_HELD_BYTES_MAX);
        assert!(tracker.hold(1, PUSH) < 0);
        assert_eq!(tracker.held_bytes(), 0);
        assert_eq!(tracker.take_due(fit as u32 - 2), b"");
        assert_eq!(tracker.take_due(fit as u32 - 1), INVALIDATE_ALL);
        assert!(!tracker.owes());
    }

    /// A new link is sent each request that was agreed to, once, the last one at the end.
    #[test]
    fn requests_are_kept_once_and_in_order() {
        let mut tracker = Tracker::default();
        let ask = |tracker: &mut Tracker, words: &str, is_agreed| {
            let mut request = Vec::new();
            encode::request(&mut request, &words.split(' ').collect::<Vec<_>>());
            tracker.asked = Some(Asked::Tracking(request.clone()));
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

    #[test]
    fn requests_that_are_kept_are_bounded() {
        let mut tracker = Tracker::default();
        let large = vec![b'a'; TRACKING_BYTES_MAX];
        assert!(tracker.has_room_for(&large));
        tracker.asked = Some(Asked::Tracking(large.clone()));
        tracker.settle(true);
        assert!(tracker.has_room_for(&large), "it is kept already");
        assert!(!tracker.has_room_for(b"b"));
    }
}
