//! The links of the data plane by their purpose.

use std::collections::HashMap;

use crate::base::handle::LinkId;
use crate::data_plane::link::{Link, LinkKind, LinkRole};

/// The shared and the idle links by their kind, and the number of dedicated ones.
#[derive(Debug, Default)]
pub(crate) struct LinkIndex {
    /// The shared link of each kind.
    pub(crate) shared: HashMap<LinkKind, LinkId>,
    /// Links without a session, which the next session of their kind gets.
    idle: HashMap<LinkKind, Vec<LinkId>>,
    /// The number of links that serve one session each.
    dedicated: u32,
}

impl LinkIndex {
    /// The shared link of a kind.
    pub(crate) fn shared(&self, kind: &LinkKind) -> Option<LinkId> {
        self.shared.get(kind).copied()
    }

    /// The number of links that serve one session each.
    pub(crate) fn dedicated(&self) -> u32 {
        self.dedicated
    }

    /// The number of idle and of dedicated links.
    pub(crate) fn idle_and_dedicated(&self) -> usize {
        let idle: usize = self.idle.values().map(Vec::len).sum();
        self.dedicated as usize + idle
    }

    /// Some idle link, of any kind.
    pub(crate) fn any_idle(&self) -> Option<LinkId> {
        self.idle.values().find_map(|links| links.first().copied())
    }

    /// A link has this role now.
    pub(crate) fn count_role(&mut self, role: LinkRole) {
        self.dedicated += u32::from(role.is_dedicated());
    }

    /// Keeps a link for the next session of its kind. `role`: the role that it had.
    pub(crate) fn push_idle(&mut self, id: LinkId, kind: LinkKind, role: LinkRole) {
        self.dedicated -= u32::from(role.is_dedicated());
        self.idle.entry(kind).or_default().push(id);
    }

    /// Takes out the idle link of a kind that was used last.
    pub(crate) fn pop_idle(&mut self, kind: &LinkKind) -> Option<LinkId> {
        self.idle.get_mut(kind)?.pop()
    }

    /// Forgets a link that was removed.
    pub(crate) fn forget(&mut self, id: LinkId, link: &Link) {
        if self.shared(&link.kind) == Some(id) {
            self.shared.remove(&link.kind);
        }
        if link.role == LinkRole::Idle
            && let Some(idle) = self.idle.get_mut(&link.kind)
        {
            idle.retain(|idle| *idle != id);
        }
        self.dedicated -= u32::from(link.role.is_dedicated());
    }
}

#[cfg(test)]
mod tests {
    use respool_protocol::encode::Version;

    use super::*;
    use crate::base::handle::SessionId;
    use crate::base::time::Time;
    use crate::routing::pool::ServerId;

    const PINNED: LinkRole = LinkRole::Pinned {
        by: SessionId::NONE,
    };

    fn id(index: u32) -> LinkId {
        LinkId {
            index,
            generation: 0,
        }
    }

    fn link(role: LinkRole) -> Link {
        let kind = LinkKind {
            server: ServerId(0),
            version: Version::Resp2,
            db: 0,
            user: 0,
            lane: 0,
        };
        Link::new(kind, role, 0, Time(0))
    }

    /// The index forgets the removed link alone, and no other link of its kind.
    #[test]
    fn removed_link_is_forgotten() {
        let mut index = LinkIndex::default();
        let kind = link(LinkRole::Shared).kind;
        index.shared.insert(kind, id(1));
        index.forget(id(2), &link(LinkRole::Shared));
        assert_eq!(index.shared(&kind), Some(id(1)));
        index.forget(id(1), &link(LinkRole::Shared));
        assert_eq!(index.shared(&kind), None);
        for link in [3, 4] {
            index.push_idle(id(link), kind, LinkRole::Idle);
        }
        index.forget(id(4), &link(LinkRole::Idle));
        assert_eq!(index.any_idle(), Some(id(3)));
        assert_eq!(index.pop_idle(&kind), Some(id(3)));
        assert_eq!(index.pop_idle(&kind), None);
    }

    /// A dedicated link counts until it is given back or removed.
    #[test]
    fn dedicated_link_counts_until_it_is_given_back() {
        let mut index = LinkIndex::default();
        for role in [PINNED, PINNED, LinkRole::Shared] {
            index.count_role(role);
        }
        assert_eq!(index.dedicated(), 2);
        index.push_idle(id(1), link(PINNED).kind, PINNED);
        assert_eq!((index.dedicated(), index.idle_and_dedicated()), (1, 2));
        index.forget(id(2), &link(PINNED));
        assert_eq!((index.dedicated(), index.idle_and_dedicated()), (0, 1));
    }
}
