//! Links for commands that must not wait for a bound: SCRIPT KILL, SHUTDOWN and their like.
//!
//! These emergency links are outside all other bounds, so each server has few:
//! [`EMERGENCY_LINKS_PER_SERVER`]. A link whose command is done stays for the next such command. It
//! closes if it is unused for [`LINK_UNUSED_MS`](crate::base::limits::LINK_UNUSED_MS).

use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::EMERGENCY_LINKS_PER_SERVER;
use crate::data_plane::DataPlane;
use crate::data_plane::bounds_met::Bound;
use crate::data_plane::completion::Completion;
use crate::data_plane::ingress::{Blocked, Dispatched};
use crate::data_plane::link::{IDLE_EMERGENCY, Link, LinkKind, LinkRole};
use crate::data_plane::session::Pins;
use crate::pinned::Pinned;
use crate::routing::pool::ServerId;

/// Whether a link is an emergency link.
pub(crate) fn is_urgent(link: &Link) -> bool {
    matches!(link.role, LinkRole::Emergency { .. })
}

impl Pinned {
    /// Whether one more command may take an emergency link of a server.
    pub(crate) fn has_room_for_urgent_link(&self, plane: &DataPlane, server: ServerId) -> bool {
        let is_busy = |link: &Link| {
            link.kind.server == server && is_urgent(link) && link.role != IDLE_EMERGENCY
        };
        self.keys_of(plane, is_busy).len() < EMERGENCY_LINKS_PER_SERVER
    }

    /// The link for a command that stops the scripts of other sessions, or the server. It must not
    /// wait for a link that these sessions hold. If all pinned links are taken, it gets an
    /// emergency link, which is returned. `None`: the session is pinned to a link of its own.
    pub(crate) fn link_for_urgent(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
    ) -> Result<Option<LinkId>, Blocked> {
        let Some(session) = plane.sessions.get(id) else {
            return Err(Blocked::Wait);
        };
        // A server that runs a script may refuse SELECT, and these commands concern no database.
        let kind = LinkKind {
            db: 0,
            ..plane.kind_of(session)
        };
        let has_own = !session.pins.is_empty();
        if has_own || plane.may_have_own_link(id) {
            plane.pin_to(kind, id, Pins::ONCE)?;
            return Ok(None);
        }
        if plane.hold_until_caught_up(id) {
            return Err(Blocked::Wait);
        }
        match self.urgent_link(plane, kind, id) {
            Some(link) => Ok(Some(link)),
            None => Err(self.wait_for_urgent_link(plane, id, Bound::PinnedLinks)),
        }
    }

    /// Sends a command on an emergency link.
    pub(crate) fn put_urgent(
        &mut self,
        plane: &mut DataPlane,
        (id, link): (SessionId, LinkId),
        bytes: &[u8],
        completion: Option<Completion>,
    ) -> Dispatched {
        plane.set_gives_up_at(id, None);
        plane.put_on(link, id, bytes, completion.unwrap_or(Completion::Pass));
        // The session's next request goes to another link, so it waits for this reply.
        plane.hold_until_caught_up(id);
        Dispatched::Done
    }

    pub(crate) fn keys_of(
        &self,
        plane: &DataPlane,
        is_such: impl Fn(&Link) -> bool,
    ) -> Vec<LinkId> {
        let links = plane.links.iter().filter(|(_, link)| is_such(link));
        links.map(|(id, _)| id).collect()
    }

    /// A link to a server for one command. `None`: the server has as many such commands under way
    /// as it may.
    pub(crate) fn urgent_link(
        &mut self,
        plane: &mut DataPlane,
        kind: LinkKind,
        id: SessionId,
    ) -> Option<LinkId> {
        if !self.has_room_for_urgent_link(plane, kind.server) {
            return None;
        }
        let role = LinkRole::Emergency { by: id };
        let is_idle = |link: &Link| link.role == IDLE_EMERGENCY && link.kind.server == kind.server;
        let idle: Vec<LinkId> = self.keys_of(plane, is_idle);
        let same = |link_id: &&LinkId| {
            plane
                .links
                .get(**link_id)
                .is_some_and(|link| link.kind == kind)
        };
        if let Some(link) = idle.iter().find(same).copied() {
            if let Some(link) = plane.links.get_mut(link) {
                link.role = role;
            }
            return Some(link);
        }
        // An idle link of another kind gives up its place.
        let all = self.keys_of(plane, |link| {
            is_urgent(link) && link.kind.server == kind.server
        });
        if all.len() >= EMERGENCY_LINKS_PER_SERVER
            && let Some(idle) = idle.first()
        {
            plane.close_link(*idle);
        }
        let link = plane.add_link(kind, role)?;
        plane.connect(link);
        Some(link)
    }
}
