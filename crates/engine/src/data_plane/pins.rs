//! The data plane's state of sessions with pinned links.

use crate::LinkId;
use crate::base::handle::SessionId;
use crate::base::settings::WhenFull;
use crate::data_plane::bounds_met::Bound;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::pinned::PinnedCompletion;
use crate::data_plane::ingress::{Blocked, bound_reply};
use crate::data_plane::link::{IDLE_EMERGENCY, LinkKind};
use crate::data_plane::session::Flags;
use crate::data_plane::session::{Pins, Session};
use crate::data_plane::session_state::Holds;
use crate::data_plane::{DataPlane, Link, LinkRole};
use crate::routing::pool::{Group, ServerId};

impl DataPlane {
    /// Whether a session has one of these reasons for a pinned link.
    pub(crate) fn has_pins(&self, id: SessionId, pins: Pins) -> bool {
        let session = self.sessions.get(id);
        session.is_some_and(|session| session.pins.any(pins))
    }

    /// Marks a session's pinned link as tainted: it carries state that no other session may find,
    /// and is closed after use.
    pub(crate) fn taint_own_link(&mut self, id: SessionId) {
        let link = self.sessions.get(id).map(|session| session.link);
        if let Some(link) = link.and_then(|link| self.links.get_mut(link))
            && link.role == (LinkRole::Pinned { by: id })
        {
            link.tainted = true;
        }
    }

    /// Sessions that watch keys at a node that has lost their slots. They lose the watch: their
    /// EXEC answers that the keys may have changed.
    fn lost_watches(&self, server: ServerId) -> Vec<SessionId> {
        let pool = usize::from(self.server(server).pool);
        let Some(slots) = self.pools[pool].cluster() else {
            return Vec::new();
        };
        let is_lost = |group: &Group| {
            usize::from(group.pool) == pool && slots.owner_of_slot(group.number) != server
        };
        let lost = |session: &Session| {
            let watched = session
                .rare
                .as_deref()
                .map_or(&[][..], |rare| &rare.transaction.watched);
            session.pins.any(Pins::WATCH) && session.server == server && watched.iter().any(is_lost)
        };
        let sessions = self.sessions.iter();
        sessions
            .filter(|(_, session)| lost(session))
            .map(|(id, _)| id)
            .collect()
    }

    /// Whether pinned and idle links reach `pinned-links-max`. An idle link is a connection of the
    /// server like any other.
    fn own_links_are_full(&self) -> bool {
        self.link_index.idle_and_dedicated() >= self.settings.limits.pinned_links_max as usize
    }

    /// Keeps a link that was given back for the next session that needs one. A link that is
    /// tainted, unread or above the bound is closed.
    pub(crate) fn keep_idle_link(&mut self, id: LinkId) {
        let now = self.now;
        let role = self.links.get(id).map(|link| link.role);
        // A pinned link was counted before it was given back; a streaming link was not.
        let too_many = !role.is_some_and(LinkRole::is_dedicated) && self.own_links_are_full();
        let unfit = |link: &Link| link.tainted || link.unread_since.is_some();
        if too_many || self.links.get(id).is_some_and(unfit) {
            return self.close_link(id);
        }
        if let Some(link) = self.links.get_mut(id) {
            link.waits = false;
            self.link_index.push_idle(id, link.kind, link.role);
            link.role = LinkRole::Idle;
            link.admit(false, false);
            link.unused_since = now;
        }
    }

    /// Whether a session has pinned links to several servers, because it tracks keys there.
    pub(crate) fn tracks_several(&self, id: SessionId) -> bool {
        let session = self.sessions.get(id);
        session.is_some_and(|session| session.pins.any(Pins::SPREAD))
    }

    /// The tracking links of a session.
    pub(crate) fn tracking_links(&self, id: SessionId) -> &[(ServerId, LinkId)] {
        let rare = self
            .sessions
            .get(id)
            .and_then(|session| session.rare.as_deref());
        rare.map_or(&[], |rare| &rare.tracking.links)
    }

    /// Sends the session's CLIENT CACHING, if it has one, on the link of its next request.
    pub(crate) fn put_caching(&mut self, session: SessionId, link: LinkId) {
        let rare = self
            .sessions
            .get(session)
            .and_then(|session| session.rare.as_deref());
        let caching = rare.and_then(|rare| rare.tracking.caching.clone());
        if let Some(request) = caching {
            self.put_ours(link, &request, Completion::Pinned(PinnedCompletion::Track));
        }
    }

    /// The session's tracking link to this server, if it has one.
    pub(crate) fn tracks_on(&self, id: SessionId, server: ServerId) -> Option<LinkId> {
        let mut links = self.tracking_links(id).iter();
        links.find(|(to, _)| *to == server).map(|(_, link)| *link)
    }

    /// Whether a session's tracking link to its present server is up. Then a request for any server
    /// stays there.
    pub(crate) fn tracks_here(&self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get(id).filter(|_| self.tracks_several(id)) else {
            return false;
        };
        let link = self.tracks_on(id, session.server);
        link.and_then(|link| self.links.get(link))
            .is_some_and(Link::is_up)
    }

    /// An emergency command has its reply. Its link stays for the next command, unless it is
    /// tainted, unread or down.
    pub(crate) fn end_emergency(&mut self, id: LinkId) {
        let now = self.now;
        match self.links.get_mut(id) {
            Some(link) if link.is_up() && !link.tainted && link.unread_since.is_none() => {
                link.role = IDLE_EMERGENCY;
                link.unused_since = now;
            }
            _ => self.close_link(id),
        }
        self.next_emergency();
    }
}

/// Pinned links.
impl DataPlane {
    /// A pinned link for this session: an idle one, or a new one.
    pub(crate) fn own_link(&mut self, kind: LinkKind, id: SessionId) -> Result<LinkId, Blocked> {
        self.wait_for_room(id)?;
        let role = LinkRole::Pinned { by: id };
        let link = match self.take_idle_link(kind, role) {
            Some(spare) => spare,
            None => {
                self.make_room_for_own_link();
                let Some(link) = self.add_link(kind, role) else {
                    return Err(Blocked::Refused(bound_reply("links-max")));
                };
                self.connect(link);
                link
            }
        };
        self.counters.dedicated_links_given += 1;
        Ok(link)
    }

    /// Waits until the session's pinned link is idle. The session may have all its replies earlier:
    /// a request that was given up keeps its place on the link, and so do respool's own requests.
    pub(crate) fn wait_for_own_link(&mut self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get(id) else {
            return false;
        };
        let link = session.link;
        let busy = |link: &Link| {
            let owes = !link.ledger.is_empty() || link.ledger.unanswered_bytes() > 0;
            link.role == LinkRole::Pinned { by: id } && owes
        };
        let busy = self.links.get(link).is_some_and(busy);
        if busy {
            self.wait_at(id, link);
        }
        busy
    }

    /// Waits for room within the bound of pinned links, or refuses, by the setting
    /// `pinned-links-full`.
    pub(crate) fn wait_for_room(&mut self, id: SessionId) -> Result<(), Blocked> {
        if self.is_past_deadline(id) {
            return Err(Blocked::Refused(bound_reply("pinned-links-max")));
        }
        if self.may_have_own_link(id) {
            self.link_waiters.pinned.leave(id);
            self.set_deadline(id, None);
            return Ok(());
        }
        self.note_bound(Bound::PinnedLinks);
        if self.settings.pinned_links_full == WhenFull::Refuse {
            return Err(Blocked::Refused(bound_reply("pinned-links-max")));
        }
        self.begin_to_wait(id);
        self.link_waiters.pinned.wait(id);
        self.hold(id, Holds::ROOM);
        Err(Blocked::Wait)
    }

    /// Whether this session may take a pinned link now, before all other sessions that wait for
    /// one.
    pub(crate) fn may_have_own_link(&self, id: SessionId) -> bool {
        self.link_waiters.pinned.admit(id, 1, self.free_own_links())
    }

    /// Closes an idle link of another kind to make room.
    fn make_room_for_own_link(&mut self) {
        if self.own_links_are_full()
            && let Some(spare) = self.link_index.any_idle()
        {
            self.close_link(spare);
        }
    }

    /// Takes an idle link of this kind, if there is one.
    pub(crate) fn take_idle_link(&mut self, kind: LinkKind, role: LinkRole) -> Option<LinkId> {
        let paused = self.is_server_paused(kind.server);
        while let Some(id) = self.link_index.pop_idle(&kind) {
            if let Some(link) = self.links.get_mut(id)
                && link.role == LinkRole::Idle
            {
                link.role = role;
                link.admit(link.may_take(), paused);
                self.link_index.count_role(role);
                return Some(id);
            }
        }
        None
    }

    /// Pins a session to a link, or adds a reason to the pin that it has.
    pub(crate) fn pin(&mut self, id: SessionId, pins: Pins) -> Result<(), Blocked> {
        let Some(session) = self.sessions.get(id) else {
            return Err(Blocked::Wait);
        };
        let kind = self.kind_of(session);
        self.pin_to(kind, id, pins)
    }

    /// Pins a session to a link, of this kind if it has none yet.
    pub(crate) fn pin_to(
        &mut self,
        kind: LinkKind,
        id: SessionId,
        pins: Pins,
    ) -> Result<(), Blocked> {
        let has_none = |session: &Session| session.pins.is_empty();
        if self.sessions.get(id).is_some_and(has_none) {
            if self.hold_until_caught_up(id) {
                return Err(Blocked::Wait);
            }
            let link = self.own_link(kind, id)?;
            self.attach(id, link);
        }
        if let Some(session) = self.sessions.get_mut(id) {
            session.pins.add(pins);
            if pins.any(Pins::STATE) {
                self.taint_own_link(id);
            }
        }
        Ok(())
    }

    /// A session's only pinned request was dispatched. The pin ends with its reply. `waits`: the
    /// request may wait at the server.
    pub(crate) fn unpin_behind(&mut self, id: SessionId, pins: Pins, waits: bool) {
        let link = self.sessions.get(id).map(|session| session.link);
        if let Some(link) = link.and_then(|link| self.links.get_mut(link)) {
            link.waits = waits;
        }
        self.unpin(id, pins);
    }

    /// Ends a reason to be pinned with the session's last request. Once that is answered, a session
    /// without another reason goes back to its shared link.
    pub(crate) fn unpin(&mut self, id: SessionId, pins: Pins) {
        if let Some(session) = self.sessions.get_mut(id)
            && session.pins.any(pins)
        {
            session.pins.remove(pins);
            session.state |= Flags::UNPINNING;
            if session.is_caught_up() {
                self.finish_unpinning(id);
            } else {
                self.hold(id, Holds::CATCH_UP);
            }
        }
    }

    /// All requests of a session that unpins are answered: the session goes back to its shared link
    /// if no reason is left.
    pub(crate) fn finish_unpinning(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.state.remove(Flags::UNPINNING);
        let (link, pins) = (session.link, session.pins);
        if let Some(link) = self.links.get_mut(link) {
            link.waits = false;
        }
        if !pins.any(Pins::SPREAD) {
            self.drop_tracker(id);
        }
        if pins.is_empty() {
            self.attach_shared(id);
            self.give_back(link);
        }
    }

    /// The pinned link of a session that unpins has brought its last reply: the session continues.
    pub(crate) fn continue_unpinned(&mut self, id: SessionId) {
        self.finish_unpinning(id);
        self.release(id, Holds::CATCH_UP);
    }

    /// Separates a session from its pinned link after its blocking request has left the link.
    pub(crate) fn leave_own_link(&mut self, link_id: LinkId, by: SessionId) {
        if let Some(link) = self.links.get_mut(link_id) {
            link.waits = false;
        }
        if let Some(session) = self.sessions.get_mut(by) {
            session.state.remove(Flags::UNPINNING);
        }
        if self.is_tracking_link(by, link_id) {
            return;
        }
        if let Some(session) = self.sessions.get(by) {
            let kind = self.kind_with_lane(session);
            let shared = self.shared_link(kind).unwrap_or(LinkId::NONE);
            self.attach_again(by, shared);
        }
        self.give_back(link_id);
    }

    /// Gives a session a pinned link of this kind. `None`: no link is free.
    pub(crate) fn move_to_own_link(&mut self, kind: LinkKind, id: SessionId) -> Option<LinkId> {
        let link = self.own_link(kind, id).ok()?;
        self.attach_again(id, link);
        if let Some(session) = self.sessions.get_mut(id) {
            session.server = kind.server;
        }
        Some(link)
    }

    /// Notes that a session's watched keys may have changed: no link watches them any more.
    pub(crate) fn lose_watch(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.rare().transaction.watch_lost = true;
        }
        self.taint_own_link(id);
        self.unpin(id, Pins::WATCH);
    }

    /// Gives back the link of a session that is not pinned any more: keeps it idle if it is clean,
    /// else closes it.
    pub(crate) fn give_back(&mut self, id: LinkId) {
        let Some(link) = self.links.get(id) else {
            return;
        };
        if !matches!(link.role, LinkRole::Pinned { .. }) {
            return;
        }
        if link.is_up() && link.owes_nothing() && !link.tainted {
            self.keep_idle_link(id);
            self.next_pinned();
        } else {
            self.close_link(id);
        }
    }

    /// A server has lost slots: its sessions wait for their replies, and lose their watches.
    pub(crate) fn leave_lost_slots(&mut self, server: ServerId) {
        self.hold_sessions_at(server);
        for session in self.lost_watches(server) {
            self.lose_watch(session);
        }
    }
}
