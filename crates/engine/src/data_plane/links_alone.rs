//! Links that carry one request alone, so that it waits behind no other one: streaming links, and
//! emergency links beyond their bound.

use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::EMERGENCY_LINKS_PER_SERVER;
use crate::base::settings::WhenFull;
use crate::data_plane::DataPlane;
use crate::data_plane::bounds_met::Bound;
use crate::data_plane::ingress::{Blocked, bound_reply};
use crate::data_plane::link::{IDLE_EMERGENCY, Link, LinkKind, LinkRole};
use crate::data_plane::reachability::Reachability;
use crate::data_plane::session_state::Holds;
use crate::routing::pool::ServerId;

/// Whether a link is an emergency link.
fn is_emergency(link: &Link) -> bool {
    matches!(link.role, LinkRole::Emergency { .. })
}

impl DataPlane {
    /// A link to each server that carries nothing else, for a request that must not wait behind
    /// others there. The links serve this one request, as streaming links do, and count among them.
    /// At the bound of streaming links, each is an emergency link.
    pub(crate) fn dedicated_links_to(
        &mut self,
        id: SessionId,
        servers: Vec<ServerId>,
    ) -> Result<Vec<LinkId>, Blocked> {
        // The session's earlier requests are executed first.
        if self.hold_until_caught_up(id) {
            return Err(Blocked::Wait);
        }
        for server in &servers {
            let first = self.first_link_to(*server);
            if let Some(first) = first.filter(|_| self.reachability(*server) == Reachability::Away)
            {
                return Err(Blocked::Refused(
                    self.no_link_reply(first, self.server_down_error(id)),
                ));
            }
        }
        let has_room = self.may_stream(id, servers.len()) && self.has_room_for_link();
        let is_emergency = !has_room
            && servers
                .iter()
                .all(|server| self.has_room_for_emergency_link(*server));
        if !has_room && !is_emergency {
            return Err(self.wait_for_emergency_link(id, Bound::StreamingLinks));
        }
        self.set_deadline(id, None);
        let mut links = Vec::with_capacity(servers.len());
        for server in servers {
            let Some(session) = self.sessions.get(id) else {
                return Err(Blocked::Wait);
            };
            let kind = self.kind_of(session).at(server);
            let link = match is_emergency {
                true => self.emergency_link(kind, id),
                false => self.link_once(kind, id),
            };
            match link {
                Some(link) => links.push(link),
                None => {
                    links.into_iter().for_each(|link| self.close_link(link));
                    self.next_streaming();
                    return Err(Blocked::Refused(bound_reply("links-max")));
                }
            }
        }
        Ok(links)
    }

    /// Whether this session may have this many streaming links now, before other sessions that
    /// wait.
    fn may_stream(&self, id: SessionId, needed: usize) -> bool {
        let free = self.free_streaming_links();
        self.link_waiters.streaming.admit(id, needed, free)
    }

    /// A link that serves one request of this session. `None`: the bound of links is reached.
    pub(crate) fn link_once(&mut self, kind: LinkKind, id: SessionId) -> Option<LinkId> {
        let role = LinkRole::Streaming { by: id };
        if let Some(spare) = self.take_idle_link(kind, role) {
            return Some(spare);
        }
        let link = self.add_link(kind, role)?;
        self.connect(link);
        Some(link)
    }

    /// Waits for a place within the bound of streaming links.
    pub(crate) fn wait_for_streaming(&mut self, id: SessionId) -> Result<(), Blocked> {
        if self.is_past_deadline(id) || self.settings.limits.streaming_links_max == 0 {
            return Err(Blocked::Refused(bound_reply("streaming-links-max")));
        }
        if !self.may_stream(id, 1) {
            self.note_bound(Bound::StreamingLinks);
            self.begin_to_wait(id);
            self.link_waiters.streaming.wait(id);
            self.hold(id, Holds::LINK);
            return Err(Blocked::Wait);
        }
        self.link_waiters.streaming.leave(id);
        self.set_deadline(id, None);
        Ok(())
    }

    /// Whether one more command may take an emergency link of a server.
    fn has_room_for_emergency_link(&self, server: ServerId) -> bool {
        let is_busy = |link: &Link| {
            link.kind.server == server && is_emergency(link) && link.role != IDLE_EMERGENCY
        };
        self.links_such(is_busy).len() < EMERGENCY_LINKS_PER_SERVER
    }

    fn links_such(&self, is_such: impl Fn(&Link) -> bool) -> Vec<LinkId> {
        let links = self.links.iter().filter(|(_, link)| is_such(link));
        links.map(|(id, _)| id).collect()
    }

    /// A link to a server for one command. `None`: the server has as many such commands under way
    /// as it may.
    pub(crate) fn emergency_link(&mut self, kind: LinkKind, id: SessionId) -> Option<LinkId> {
        if !self.has_room_for_emergency_link(kind.server) {
            return None;
        }
        let role = LinkRole::Emergency { by: id };
        let is_idle = |link: &Link| link.role == IDLE_EMERGENCY && link.kind.server == kind.server;
        let idle: Vec<LinkId> = self.links_such(is_idle);
        let same = |link_id: &&LinkId| {
            self.links
                .get(**link_id)
                .is_some_and(|link| link.kind == kind)
        };
        if let Some(link) = idle.iter().find(same).copied() {
            if let Some(link) = self.links.get_mut(link) {
                link.role = role;
            }
            return Some(link);
        }
        // An idle link of another kind makes room.
        let all = self.links_such(|link| is_emergency(link) && link.kind.server == kind.server);
        if all.len() >= EMERGENCY_LINKS_PER_SERVER
            && let Some(idle) = idle.first()
        {
            self.close_link(*idle);
        }
        let link = self.add_link(kind, role)?;
        self.connect(link);
        Some(link)
    }

    /// Holds a command that may take an emergency link until it gets one, or until there is room
    /// within the bound.
    pub(crate) fn wait_for_emergency_link(&mut self, id: SessionId, bound: Bound) -> Blocked {
        let is_refused =
            bound == Bound::PinnedLinks && self.settings.pinned_links_full == WhenFull::Refuse;
        if self.is_past_deadline(id) || is_refused {
            self.set_deadline(id, None);
            return Blocked::Refused(bound_reply(bound.name()));
        }
        if self.deadline_of(id).is_none() {
            self.note_bound(bound);
        }
        self.begin_to_wait(id);
        self.link_waiters.emergency.push_back(id);
        self.hold(id, Holds::ROOM);
        Blocked::Wait
    }
}
