//! Links that take the place of other links: after a server has refused writes, or when a link is
//! stuck.

use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::DataPlane;
use crate::data_plane::ledger::departed::Departed;
use crate::data_plane::link::{Link, LinkKind, LinkRole};

/// A link that takes the place of a shared one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Succession {
    /// The new link.
    link: LinkId,
    /// The shared link that is up, and drains from now on.
    old: LinkId,
    /// The kind of both links.
    pub(crate) kind: LinkKind,
    /// The old link is stuck, and its server is the same. Otherwise the server has refused writes,
    /// and another one may be there now.
    pub(crate) is_takeover: bool,
}

impl DataPlane {
    /// The succession that begins when this link comes up. `None`: the link is not idle, or the old
    /// link needs no successor any more.
    pub(crate) fn succession_of(&mut self, id: LinkId) -> Option<Succession> {
        let link = self.links.get(id);
        let link = link.filter(|link| link.role == LinkRole::Idle)?;
        let kind = link.kind;
        let is_takeover = self.is_successor(id, link);
        if is_takeover && !self.takes_over(id) {
            self.close_link(id);
            return None;
        }
        let old = self.link_index.shared(&kind);
        let is_up = |old: &LinkId| self.links.get(*old).is_some_and(Link::is_up);
        let Some(old) = old.filter(is_up) else {
            // The old link was lost meanwhile, and reconnects by itself.
            self.close_link(id);
            return None;
        };
        Some(Succession {
            link: id,
            old,
            kind,
            is_takeover,
        })
    }

    /// Puts the new link in the place of the old one. Returns the requests that move to it.
    pub(crate) fn take_place(&mut self, succession: &Succession) -> Vec<Departed> {
        let (id, old) = (succession.link, succession.old);
        let moved = match succession.is_takeover {
            true => self.take_requests_behind(old),
            false => Vec::new(),
        };
        self.drain_to(old, SessionId::NONE);
        if let Some(link) = self.links.get_mut(id) {
            link.role = LinkRole::Shared;
        }
        self.link_index.shared.insert(succession.kind, id);
        self.limit_link(id);
        moved
    }

    /// Opens the new link, which has the requests that move to it. Links that stay behind end.
    pub(crate) fn end_succession(&mut self, succession: &Succession) {
        let (id, old) = (succession.link, succession.old);
        self.reopen(id);
        let owes_nothing = |link: &Link| link.ledger.is_empty();
        if self.links.get(old).is_some_and(owes_nothing) {
            self.close_link(old);
        }
        let server = succession.kind.server;
        for hub in self.links.ids() {
            let stays_behind = |link: &Link| {
                link.kind.server == server
                    && link.tainted
                    && matches!(link.role, LinkRole::HubLine(_))
            };
            if self.links.get(hub).is_some_and(stays_behind) {
                self.lose_link(
                    hub,
                    "its server refuses writes, and respool reconnects to it",
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::settings::PoolKind;
    use crate::data_plane::actions::Action;
    use crate::data_plane::test_plane::{plane_with_pool, server_at};
    use crate::routing::pool::ServerId;

    /// A plane with a shared link, and an idle link of the same kind that has just come up.
    fn plane_with_idle_link() -> (DataPlane, LinkId, LinkId) {
        let mut plane = plane_with_pool(PoolKind::Single(server_at(1)));
        let kind = plane.default_kind(ServerId(0));
        let old = plane.shared_link(kind).expect("there is room for a link");
        let idle = plane.insert_link(kind, LinkRole::Idle);
        plane.mark_up(idle).expect("the link is there");
        (plane, old, idle)
    }

    /// An idle link takes the place of a shared link that is up. The old link has nothing to answer
    /// and is closed.
    #[test]
    fn idle_link_takes_the_place_of_a_shared_one() {
        let (mut plane, old, idle) = plane_with_idle_link();
        plane.mark_up(old).expect("the link is there");
        let succession = plane.succession_of(idle).expect("a succession");
        assert!(!succession.is_takeover && succession.old == old);
        assert_eq!(plane.take_place(&succession).len(), 0);
        assert_eq!(plane.link_index.shared(&succession.kind), Some(idle));
        plane.end_succession(&succession);
        let link = plane.links.get(idle).expect("the link is there");
        assert!(link.role == LinkRole::Shared && link.takes());
        assert!(plane.turn.actions.contains(&Action::CloseLink(old)));
    }

    /// A shared link that is not up reconnects by itself: the idle link is closed.
    #[test]
    fn idle_link_beside_a_lost_one_is_closed() {
        let (mut plane, old, idle) = plane_with_idle_link();
        assert!(plane.succession_of(idle).is_none());
        assert!(plane.turn.actions.contains(&Action::CloseLink(idle)));
        let kind = plane.default_kind(ServerId(0));
        assert_eq!(plane.link_index.shared(&kind), Some(old));
        // A link of another use succeeds no link.
        assert!(plane.succession_of(old).is_none());
    }
}
