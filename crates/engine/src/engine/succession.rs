//! Links that take the place of other links: after a server has refused writes, or when a link is
//! stuck.

use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::link::{Link, LinkRole};
use crate::engine::Engine;

impl Engine {
    /// A link is up. An idle link that no session uses takes the place of the link for which it was
    /// connected.
    pub(crate) fn succeed(&mut self, id: LinkId) {
        let Some(link) = self
            .plane
            .links
            .get(id)
            .filter(|link| link.role == LinkRole::Idle)
        else {
            return;
        };
        let kind = link.kind;
        let is_successor = self.plane.is_successor(id, link);
        if is_successor && !self.plane.takes_over(id) {
            return self.plane.close_link(id);
        }
        let old = self.plane.shared.get(&kind).copied();
        let is_up = |old: LinkId| self.plane.links.get(old).is_some_and(Link::is_up);
        let Some(old) = old.filter(|old| is_up(*old)) else {
            // The old link was lost meanwhile, and reconnects by itself.
            return self.plane.close_link(id);
        };
        // Another server may be there now, so facts learned about the old one are in doubt.
        if !is_successor {
            self.local
                .catalog
                .doubt_server(&mut self.plane.learned_commands, kind.server);
            self.local.note_scripts_lost(&mut self.plane, kind.server);
        }
        let moved = match is_successor {
            true => self.plane.take_requests_behind(old),
            false => Vec::new(),
        };
        self.plane.drain_to(old, SessionId::NONE);
        if let Some(link) = self.plane.links.get_mut(id) {
            link.role = LinkRole::Shared;
        }
        self.plane.shared.insert(kind, id);
        self.plane.limit_link(id);
        self.local.put_moved(&mut self.plane, id, moved);
        self.plane.reopen(id);
        if self
            .plane
            .links
            .get(old)
            .is_some_and(|link| link.ledger.is_empty())
        {
            self.plane.close_link(old);
        }
        for hub in self.plane.links.ids() {
            let stays_behind = |link: &Link| {
                link.kind.server == kind.server
                    && link.tainted
                    && matches!(link.role, LinkRole::Hub(_))
            };
            if self.plane.links.get(hub).is_some_and(stays_behind) {
                self.plane.lose_link(
                    hub,
                    "its server refuses writes, and respool reconnects to it",
                );
            }
        }
        // In the log, the loss of the old links stands before the new one.
        self.settle_losses();
    }
}
