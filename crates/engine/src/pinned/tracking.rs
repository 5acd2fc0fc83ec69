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

use respool_protocol::commands::Names;
use respool_protocol::encode::{self, Version};

use crate::base::error::is_servers_fault;
use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::pinned::{ConnectionSwitch, redirect_asked};
use crate::data_plane::ingress::{Blocked, Dispatched, Request, excess_reply};
use crate::data_plane::link::{Link, LinkRole};
use crate::data_plane::session::{Flags, Pins, Session};
use crate::data_plane::tracking::{INVALIDATE, SWITCHES, Tracker, TrackingSwitch, asks_for};
use crate::pinned::Pinned;
use crate::routing::pool::ServerId;

/// The error to a CLIENT TRACKING with REDIRECT.
const REDIRECTS: &[u8] =
    b"ERR respool: CLIENT TRACKING with REDIRECT is refused where a pool has several servers: \
    without REDIRECT, a session in RESP3 gets the invalidations itself";
/// The error to BCAST with PREFIX in a pool of servers that see keys without a prefix.
const PREFIXES: &[u8] =
    b"ERR respool: PREFIX of CLIENT TRACKING is refused where a server of the pool sees keys \
    without their prefix: ask for BCAST without PREFIX";
/// Redis's errors (`clientCommand`).
const NOT_OPTIN: &[u8] =
    b"ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.";
const NOT_OPTOUT: &[u8] =
    b"ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.";

/// A link without a byte for this long is checked with a PING, milliseconds. A server that is cut
/// off sends no invalidations, and the session may send no request for long.
const QUIET_MS: u32 = 2_000;

/// The server that decides on the rights of a session that has no link of its own: its server, or
/// another one if that cannot be reached.
fn server_that_decides(plane: &DataPlane, session: &Session) -> ServerId {
    match plane.is_reachable(session.server) {
        true => session.server,
        false => plane.first_up(usize::from(session.pool)),
    }
}

/// The commands.
impl Pinned {
    /// CLIENT TRACKING ON in a pool of several known servers: begins to track, unless the request
    /// is refused or waits. Then that is returned.
    fn ask_to_track(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Option<Dispatched> {
        if redirect_asked(request).is_some() {
            plane.counters.commands_refused += 1;
            return Some(plane.answer_error(id, REDIRECTS));
        }
        if asks_for(request.args(), b"PREFIX") && plane.removes_prefix(id) {
            plane.counters.commands_refused += 1;
            return Some(plane.answer_error(id, PREFIXES));
        }
        if plane.hold_until_caught_up(id) {
            return Some(Dispatched::Wait);
        }
        self.begin_tracking(plane, id);
        let has_room = |tracker: &Tracker| tracker.has_room_for(request.bytes);
        if !plane.trackers.sessions.get(id).is_some_and(has_room) {
            self.settle_tracking(plane, id, b"");
            return Some(plane.answer_reply(
                id,
                &excess_reply("too many bytes in CLIENT TRACKING commands of this client"),
            ));
        }
        None
    }

    /// CLIENT TRACKING ON in a pool of several known servers. `ask`: sends the request to each of
    /// these servers.
    pub(crate) fn track_at_all(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        ask: impl FnOnce(&mut DataPlane, &[ServerId]) -> Dispatched,
    ) -> Dispatched {
        if let Some(dispatched) = self.ask_to_track(plane, id, request) {
            return dispatched;
        }
        let switch = TrackingSwitch::Tracking(request.bytes.to_vec());
        let broadcasts = asks_for(request.args(), b"BCAST");
        self.ask_to_agree(plane, id, (broadcasts, switch), ask)
    }

    /// CLIENT NO-TOUCH ON or CLIENT IMPORT-SOURCE ON in a pool of several servers. From then on the
    /// session has a pinned link to each server that it asks, as a session that tracks. `ask`:
    /// sends the request to each of these servers.
    pub(crate) fn switch_at_all(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        ask: impl FnOnce(&mut DataPlane, &[ServerId]) -> Dispatched,
    ) -> Dispatched {
        if plane.hold_until_caught_up(id) {
            return Dispatched::Wait;
        }
        self.begin_to_spread(plane, id);
        let switch = TrackingSwitch::Switch(ConnectionSwitch::of(request).pins);
        self.ask_to_agree(plane, id, (false, switch), ask)
    }

    /// Asks servers whether they agree to a request, each on the session's link to it.
    fn ask_to_agree(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        (broadcasts, switch): (bool, TrackingSwitch),
        ask: impl FnOnce(&mut DataPlane, &[ServerId]) -> Dispatched,
    ) -> Dispatched {
        let servers = match self.servers_to_agree(plane, id, broadcasts, switch) {
            Ok(servers) => servers,
            Err(dispatched) => return dispatched,
        };
        let dispatched = ask(plane, &servers);
        // No server was asked if respool has refused the request itself.
        if dispatched == Dispatched::Done && !plane.hold_until_caught_up(id) {
            self.settle_tracking(plane, id, b"");
        }
        dispatched
    }

    /// The servers that must agree to a request. The session has a link to each. `Err`: the request
    /// is refused or waits.
    fn servers_to_agree(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        broadcasts: bool,
        switch: TrackingSwitch,
    ) -> Result<Vec<ServerId>, Dispatched> {
        let servers = self.servers_to_track(plane, id, broadcasts);
        for server in &servers {
            match plane.tracking_link(id, *server) {
                Ok(_) => {}
                Err(Blocked::Wait) => return Err(Dispatched::Wait),
                Err(Blocked::Refused(reply)) => {
                    self.settle_tracking(plane, id, &reply);
                    return Err(plane.answer_reply(id, &reply));
                }
            }
        }
        self.note_switch(plane, id, switch);
        Ok(servers)
    }

    /// A request waits for the agreement of all servers that are asked.
    fn note_switch(&mut self, plane: &mut DataPlane, id: SessionId, switch: TrackingSwitch) {
        if let Some(tracker) = plane.tracker_mut(id) {
            tracker.unanswered = Some(switch);
            plane.charge_tracker(id);
        }
    }

    /// The servers at which a session begins to track. With BCAST these are all owners. Otherwise
    /// these are the servers that it has links to. If there are none, one server decides on the
    /// right.
    fn servers_to_track(
        &self,
        plane: &DataPlane,
        id: SessionId,
        broadcasts: bool,
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
            true => vec![server_that_decides(plane, session)],
        }
    }

    /// CLIENT CACHING: keeps it for the next request, which decides on the server.
    pub(crate) fn cache_next(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        let Some(tracker) = plane.tracker_mut(id) else {
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
            .last_command
            .is_some_and(|last| last.get().name.starts_with("client|"));
        if is_client || session.state.any(Flags::IN_MULTI) {
            return;
        }
        if let Some(rare) = &mut session.rare {
            rare.tracking.caching = None;
        }
    }
}

/// The links.
impl Pinned {
    /// Looks after the links of sessions that track.
    pub(crate) fn tick_trackers(&mut self, plane: &mut DataPlane) {
        if plane.trackers.sessions.is_empty() {
            return plane.trackers.moved.clear();
        }
        let moved = std::mem::take(&mut plane.trackers.moved);
        for id in plane.trackers.sessions.ids() {
            let Some(session) = plane.sessions.get(id) else {
                continue;
            };
            let (pool, broadcasts) = (session.pool, session.pins.any(Pins::BROADCAST));
            if moved.contains(&pool) {
                plane.forget_all(id);
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
            if plane.known_tracking_link(id, server).is_some() || !plane.is_reachable(server) {
                continue;
            }
            if !plane.may_have_own_link(id) {
                let reason = "pinned-links-max: no link for invalidations from one more server";
                return plane.close_for(id, reason.to_owned());
            }
            if plane.open_tracking_link(id, kind.at(server)).is_err() {
                return plane.close_for(id, String::from(AWAY));
            }
        }
    }
}

/// The invalidations.
impl Pinned {
    /// The keys in an invalidation of a session, if they lack the prefix that respool removes.
    fn keys_invalidated<'a>(
        &self,
        plane: &DataPlane,
        by: SessionId,
        push: &'a [u8],
    ) -> Option<&'a [u8]> {
        let keys = push.strip_prefix(INVALIDATE)?;
        plane.removes_prefix(by).then_some(keys)
    }

    /// Handles a push on a tracking link. The session speaks RESP3.
    fn take_invalidation(&mut self, plane: &mut DataPlane, by: SessionId, push: &[u8]) {
        let Some(session) = plane.sessions.get(by) else {
            return;
        };
        let Some(place) = session.end_of_early_replies(plane.end_of_shares(by)) else {
            return plane.push_to(by, push);
        };
        if let Some(tracker) = plane.tracker_mut(by) {
            tracker.hold(place, push);
            plane.charge_tracker(by);
            plane.trackers.owe(by);
        }
    }

    /// Handles a push on a pinned link. In a push that names the stand-in of a redirect, the id
    /// becomes that of the target.
    pub(crate) fn take_own_push(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        by: SessionId,
        push: &[u8],
    ) {
        // The server sent the push before it read the session's HELLO 2, which is answered already.
        let is_resp3 = |session: &Session| session.version == Version::Resp3;
        if !plane.sessions.get(by).is_some_and(is_resp3) {
            return;
        }
        if plane.is_tracking_link(by, link) {
            let keys = self.keys_invalidated(plane, by, push);
            let named = keys.map(|keys| {
                let named = plane.named_by(link, Names::Each, None, keys);
                [INVALIDATE, &named].concat()
            });
            let push = named.as_deref().unwrap_or(push);
            return self.take_invalidation(plane, by, push);
        }
        match self.broken_redirect(plane, by, push) {
            Some(named) => plane.push_to(by, &named),
            None => plane.push_to(by, push),
        }
    }
}

const LOST: &str = "the link that held its state at a server was lost";
pub(crate) const AWAY: &str = "CLIENT TRACKING: no connection to the server";

impl Pinned {
    fn begin_tracking(&mut self, plane: &mut DataPlane, id: SessionId) {
        self.begin_to_spread(plane, id);
        if let Some(session) = plane.sessions.get_mut(id) {
            session.pins.add(Pins::TRACKING);
        }
    }

    /// Gives a session a pinned link to each server that it asks from now on.
    fn begin_to_spread(&mut self, plane: &mut DataPlane, id: SessionId) {
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
        plane.trackers.sessions.get_or_default(id);
        plane.charge_tracker(id);
        plane.taint_own_link(id);
        plane.weigh(id);
    }

    /// Sends a request on all links of a session and drops the replies.
    fn send_on_all_links(&mut self, plane: &mut DataPlane, id: SessionId, words: &[&str]) {
        let mut request = Vec::new();
        encode::request(&mut request, words);
        for (_, link) in plane.tracking_links(id).to_vec() {
            plane.put_ours(link, &request, Completion::Pass);
        }
    }

    /// Handles the servers' answer to CLIENT TRACKING ON, or to another request that all must agree
    /// to. If the servers are away, the session is closed, as they would close it: libraries
    /// connect again then, while they take an error as final.
    pub(crate) fn settle_tracking(&mut self, plane: &mut DataPlane, id: SessionId, reply: &[u8]) {
        let Some(tracker) = plane.tracker_mut(id) else {
            return;
        };
        let is_agreed = reply.starts_with(b"+");
        let switched = tracker.settle(is_agreed);
        let (is_on, broadcasts) = (tracker.is_on(), tracker.has_option(b"BCAST"));
        plane.charge_tracker(id);
        if is_servers_fault(reply) {
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
            return plane.unpin(id, Pins::ALL_TRACKING);
        }
        if !session.pins.any(Pins::TRACKING) {
            return;
        }
        session.pins.remove(Pins::TRACKING.with(Pins::BROADCAST));
        if let Some(rare) = &mut session.rare {
            rare.tracking.caching = None;
        }
        if let Some(tracker) = plane.tracker_mut(id) {
            tracker.stop();
            plane.charge_tracker(id);
        }
        self.send_on_all_links(plane, id, &["CLIENT", "TRACKING", "OFF"]);
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
                self.send_on_all_links(plane, id, &["CLIENT", name, "OFF"]);
            }
        }
        let Some(session) = plane.sessions.get_mut(id) else {
            return;
        };
        session.pins.remove(pins);
        if !session.pins.any(Pins::TRACKING.with(Pins::SWITCHED)) {
            plane.unpin(id, Pins::SPREAD);
        }
    }

    /// A tracking link is lost, so its server no longer knows which keys the session has read.
    /// `is_over`: the server has ended a wait of the session.
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
        let tracker = plane.trackers.sessions.get(by);
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
            plane.forget_all(by);
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
            plane.forget_all(by);
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
            !is_needed && state.is_some_and(|link| link.is_up() && link.owes_nothing())
        };
        let idle: Vec<LinkId> = plane
            .tracking_links(id)
            .iter()
            .filter(is_idle)
            .map(|(_, link)| *link)
            .collect();
        for link in idle {
            plane.close_tracking_link(id, link);
        }
    }

    /// Pushes the invalidations that waited for replies which went out in this turn.
    pub(crate) fn push_invalidations(&mut self, plane: &mut DataPlane) {
        for id in std::mem::take(&mut plane.trackers.owed) {
            let Some(head) = plane.sessions.get(id).map(|session| session.head_seq) else {
                continue;
            };
            let Some(tracker) = plane.tracker_mut(id) else {
                continue;
            };
            let due = tracker.take_due(head);
            let owes = tracker.owes();
            plane.charge_tracker(id);
            if owes {
                plane.trackers.owe(id);
            }
            if !due.is_empty() {
                plane.push_to(id, &due);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use respool_protocol::request::RequestScanner;

    use super::*;
    use crate::data_plane::test_plane::{plane_with_shards, replies_of, request_of, session_of};

    const INVALIDATION: &[u8] = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n";

    /// A session in RESP3 that tracks at one of two servers, and its link there. `option`: of its
    /// CLIENT TRACKING.
    fn tracking(option: &str) -> (Pinned, DataPlane, SessionId, LinkId) {
        let (mut plane, _) = plane_with_shards(2);
        let (id, mut pinned) = (session_of(&mut plane), Pinned::default());
        if let Some(session) = plane.sessions.get_mut(id) {
            session.version = Version::Resp3;
        }
        let kept = request_of(format!("CLIENT TRACKING ON {option}").trim_end());
        let mut scanner = RequestScanner::default();
        let request = kept.read(&mut scanner);
        let mut servers_asked = Vec::new();
        pinned.track_at_all(&mut plane, id, &request, |_, servers| {
            servers_asked = servers.to_vec();
            Dispatched::Wait
        });
        // One server decides on the right, as the session has asked none yet.
        assert_eq!(servers_asked, [ServerId(0)]);
        pinned.settle_tracking(&mut plane, id, b"+OK\r\n");
        let link = plane.tracking_links(id)[0].1;
        plane.mark_up(link).expect("the link is there");
        (pinned, plane, id, link)
    }

    /// An invalidation passes at once, unless a reply before it waits in the reorder buffer.
    #[test]
    fn invalidation_waits_for_replies_that_came_early() {
        let (mut pinned, mut plane, id, link) = tracking("");
        pinned.take_own_push(&mut plane, link, id, INVALIDATION);
        let push = String::from_utf8_lossy(INVALIDATION).into_owned();
        assert_eq!(replies_of(&plane, id), push);
        // The second of two replies comes first, and then a change of its key.
        let session = plane.sessions.get_mut(id).expect("it is open");
        let [first, second] = [session.take_seq(), session.take_seq()];
        plane.deliver(id, second, 1, b"$1\r\n2\r\n");
        pinned.take_own_push(&mut plane, link, id, INVALIDATION);
        pinned.push_invalidations(&mut plane);
        assert_eq!(replies_of(&plane, id), push, "the reply is not out yet");
        plane.deliver(id, first, 1, b"$1\r\n1\r\n");
        pinned.push_invalidations(&mut plane);
        let all = format!("{push}$1\r\n1\r\n$1\r\n2\r\n{push}");
        assert_eq!(replies_of(&plane, id), all);
        assert!(!plane.trackers.owes_any());
    }

    /// A session that has gone back to RESP2 gets no push.
    #[test]
    fn session_in_resp2_gets_no_push() {
        let (mut pinned, mut plane, id, link) = tracking("");
        if let Some(session) = plane.sessions.get_mut(id) {
            session.version = Version::Resp2;
        }
        pinned.take_own_push(&mut plane, link, id, INVALIDATION);
        assert_eq!(replies_of(&plane, id), "");
    }

    /// CLIENT CACHING is kept for one request, and fits the mode of tracking alone.
    #[test]
    fn caching_is_kept_for_one_request_in_its_mode() {
        let not_optin = format!("-{}\r\n", String::from_utf8_lossy(NOT_OPTIN));
        let not_optout = format!("-{}\r\n", String::from_utf8_lossy(NOT_OPTOUT));
        for (option, word, reply) in [
            ("OPTIN", "YES", "+OK\r\n"),
            ("OPTOUT", "no", "+OK\r\n"),
            ("OPTOUT", "YES", &*not_optin),
            ("OPTIN", "NO", &*not_optout),
            ("", "YES", &*not_optin),
            ("OPTIN", "MAYBE", "-ERR syntax error\r\n"),
        ] {
            let (mut pinned, mut plane, id, _) = tracking(option);
            let kept = request_of(&format!("CLIENT CACHING {word}"));
            let mut scanner = RequestScanner::default();
            let request = kept.read(&mut scanner);
            pinned.cache_next(&mut plane, id, &request);
            assert_eq!(replies_of(&plane, id), reply, "{option} {word}");
            let keeps = |plane: &DataPlane| {
                let rare = plane
                    .sessions
                    .get(id)
                    .and_then(|session| session.rare.as_ref());
                rare.is_some_and(|rare| rare.tracking.caching.is_some())
            };
            assert_eq!(keeps(&plane), reply == "+OK\r\n", "{option} {word}");
            pinned.end_caching(&mut plane, id);
            assert!(!keeps(&plane), "{option} {word}");
        }
    }

    /// The notes of a server are lost with its connection, so the session is closed.
    #[test]
    fn loss_of_a_tracking_link_closes_its_session() {
        let (mut pinned, mut plane, id, link) = tracking("");
        pinned.lose_tracking_link(&mut plane, id, link, true, false);
        assert!(plane.tracking_links(id).is_empty());
        let session = plane.sessions.get(id);
        assert!(session.is_none_or(|session| session.state.is_closing()));
    }

    /// REDIRECT is refused where a pool has several servers, before any server is asked.
    #[test]
    fn redirect_is_refused_with_several_servers() {
        let (mut plane, _) = plane_with_shards(2);
        let (id, mut pinned) = (session_of(&mut plane), Pinned::default());
        let kept = request_of("CLIENT TRACKING ON REDIRECT 7");
        let mut scanner = RequestScanner::default();
        let request = kept.read(&mut scanner);
        let refused = pinned.track_at_all(&mut plane, id, &request, |_, _| {
            panic!("a server was asked");
        });
        assert_eq!(refused, Dispatched::Done);
        let error = format!("-{}\r\n", String::from_utf8_lossy(REDIRECTS));
        assert_eq!(replies_of(&plane, id), error);
        assert!(plane.tracking_links(id).is_empty());
    }
}
