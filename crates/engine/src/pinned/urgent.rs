//! Links for commands that must not wait for a bound: SCRIPT KILL, SHUTDOWN and their like.
//!
//! These emergency links are outside all other bounds, so each server has few:
//! [`EMERGENCY_LINKS_PER_SERVER`]. A link whose command is done stays for the next such command. It
//! closes if it is unused for [`LINK_UNUSED_MS`](crate::base::limits::LINK_UNUSED_MS).

use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::EMERGENCY_LINKS_PER_SERVER;
use crate::data_plane::DataPlane;
use crate::data_plane::link::{IDLE_EMERGENCY, Link, LinkKind, Role};
use crate::pinned::Pinned;
use crate::routing::pool::ServerId;

/// Whether a link is an emergency link.
pub(crate) fn is_urgent(link: &Link) -> bool {
    matches!(link.role, Role::Emergency { .. })
}

impl Pinned {
    /// Whether one more command may take an emergency link of a server.
    pub(crate) fn has_room_for_urgent_link(&self, plane: &DataPlane, server: ServerId) -> bool {
        let is_busy = |link: &Link| {
            link.kind.server == server && is_urgent(link) && link.role != IDLE_EMERGENCY
        };
        self.keys_of(plane, is_busy).len() < EMERGENCY_LINKS_PER_SERVER
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
        let role = Role::Emergency { by: id };
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
