//! Links for commands that must not wait for a bound: SCRIPT KILL, SHUTDOWN and their like.
//!
//! They are outside all other bounds, so each server has few: [`EMERGENCY_LINKS_PER_SERVER`]. A
//! link whose command is done stays for the next such command. It closes when none comes for
//! [`LINK_UNUSED_MS`](crate::limits::LINK_UNUSED_MS).

use crate::engine::Engine;
use crate::limits::EMERGENCY_LINKS_PER_SERVER;
use crate::link::{Link, LinkKey, Role};
use crate::pool::ServerId;
use crate::slots::Key;

/// The role of an emergency link that no session needs.
pub(crate) const IDLE: Role = Role::Emergency { by: Key::NOBODY };

impl Engine {
    /// A link to a server for one command. `None`: the server has as many such commands under way
    /// as it may.
    pub(crate) fn emergency_link(&mut self, kind: LinkKey, key: Key) -> Option<Key> {
        if !self.has_room_for_emergency(kind.server) {
            return None;
        }
        let role = Role::Emergency { by: key };
        let is_idle = |link: &Link| link.role == IDLE && link.key.server == kind.server;
        let idle: Vec<Key> = self.keys_of(is_idle);
        let same = |key: &&Key| self.links.get(**key).is_some_and(|link| link.key == kind);
        if let Some(link) = idle.iter().find(same).copied() {
            if let Some(link) = self.links.get_mut(link) {
                link.role = role;
            }
            return Some(link);
        }
        // One of another kind gives its place up.
        let all = self.keys_of(|link| is_emergency(link) && link.key.server == kind.server);
        if all.len() >= EMERGENCY_LINKS_PER_SERVER
            && let Some(idle) = idle.first()
        {
            self.close_link(*idle);
        }
        let link = self.add_link(kind, role)?;
        self.connect(link);
        Some(link)
    }

    /// Whether one more such command may be on its way to a server.
    pub(crate) fn has_room_for_emergency(&self, server: ServerId) -> bool {
        let is_busy =
            |link: &Link| link.key.server == server && is_emergency(link) && link.role != IDLE;
        self.keys_of(is_busy).len() < EMERGENCY_LINKS_PER_SERVER
    }

    /// A command has its reply. Its link stays for the next command, unless it is tainted, paused
    /// or down.
    pub(crate) fn end_emergency(&mut self, key: Key) {
        let now = self.now;
        match self.links.get_mut(key) {
            Some(link) if link.is_up() && !link.tainted && link.paused.is_none() => {
                link.role = IDLE;
                link.unused_since = now;
            }
            _ => self.close_link(key),
        }
        self.next_urgent();
    }

    fn keys_of(&self, is_such: impl Fn(&Link) -> bool) -> Vec<Key> {
        let links = self.links.iter().filter(|(_, link)| is_such(link));
        links.map(|(key, _)| key).collect()
    }
}

/// Whether a link is for such commands.
pub(crate) fn is_emergency(link: &Link) -> bool {
    matches!(link.role, Role::Emergency { .. })
}
