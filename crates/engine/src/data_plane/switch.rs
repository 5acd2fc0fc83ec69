//! The switch of a routed session to the server of its next request.
//!
//! A session switches to the server of its next request. From then on its link is the shared one to
//! that server, and requests are dispatched as if there were no other server. Replies to its
//! earlier requests come from other servers in their own time, and wait for their place among the
//! session's replies.

use respool_protocol::encode::Version;

use crate::base::handle::{LinkId, SessionId};
use crate::base::settings::Shows;
use crate::data_plane::DataPlane;
use crate::data_plane::link::{Link, LinkKind, LinkRole};
use crate::data_plane::session::{Flags, Pins, Session};
use crate::routing::pool::{Group, ServerId};

impl DataPlane {
    /// Switches the session to the shared link of this server. Its requests in flight stay on the
    /// old links.
    pub(crate) fn switch_server(&mut self, id: SessionId, server: ServerId) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        if session.server == server {
            return;
        }
        debug_assert!(!session.pins.bind(), "a pinned session keeps its server");
        let kind = self.kind_at(session, server);
        let link = match session.pins.any(Pins::SPREAD) {
            // If the session has none, the request opens one.
            true => self.tracks_on(id, server),
            false => self.current_link(kind),
        };
        let link = link.unwrap_or(LinkId::NONE);
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.server = server;
        let old = std::mem::replace(&mut session.link, link);
        self.close_if_full(old);
        self.detach(old);
        if let Some(link) = self.links.get_mut(link) {
            link.attached += 1;
        }
    }

    /// Sessions on links to a server that is gone switch to the default server of their pool,
    /// unless state or a queued transaction binds them.
    pub(crate) fn switch_attached_to_default(&mut self, server: ServerId) {
        let default_server = self
            .pools
            .default_server_of(usize::from(self.server(server).pool));
        let is_free = |session: &Session| {
            session.server == server && !session.pins.bind() && session.state.any(Flags::ROUTED)
        };
        let attached = self.sessions.iter();
        let attached: Vec<SessionId> = attached
            .filter(|(_, session)| is_free(session))
            .map(|(id, _)| id)
            .collect();
        for session in attached {
            if self.queued_group(session).is_none() {
                self.switch_server(session, default_server);
            }
        }
    }

    /// The kind of link that a session shares with others to this server.
    pub(crate) fn kind_at(&self, session: &Session, server: ServerId) -> LinkKind {
        self.kind_with_lane(session).at(server)
    }

    /// The shared link of a kind, mostly the kind of the previous request.
    #[inline]
    pub(crate) fn current_link(&mut self, kind: LinkKind) -> Option<LinkId> {
        let server = usize::from(kind.server.0);
        let is_shared = |link: &Link| link.role == LinkRole::Shared;
        if let Some(link) = self.servers[server].current(kind)
            && self.links.get(link).is_some_and(is_shared)
        {
            return Some(link);
        }
        let link = self.shared_link(kind)?;
        let version = usize::from(kind.version == Version::Resp3);
        self.servers[server].current[version] = Some((kind, link));
        Some(link)
    }

    /// Switches a session from a server that cannot be reached to one that can, unless the session
    /// is bound there, or has queued requests for one owner. Any server may answer a request
    /// without keys.
    pub(crate) fn switch_from_dead(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let failed = |link: &Link| !link.is_up() && link.failures > 0;
        let is_dead = self.links.get(session.link).is_some_and(failed);
        if is_dead && !session.pins.bind() && self.queued_group(id).is_none() {
            let up = self.first_up(usize::from(session.pool));
            self.switch_server(id, up);
        }
    }

    /// Switches a session to a server that may know a command which the table lacks. In a pool of
    /// several servers, only some may have a module. Most commands name their first key at once, so
    /// the owner of that key is asked, or another server if the owner is away.
    pub(crate) fn switch_to_informed_server(&mut self, id: SessionId, first: Option<&[u8]>) {
        if self.has_several_owners(id) {
            if let Some(first) = first {
                self.switch_to_owner(id, first, self.queued_group(id));
            }
            self.switch_from_dead(id);
        }
    }

    /// Switches a session to the first server of its pool that answers.
    pub(crate) fn switch_to_first_up(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get(id) {
            let up = self.first_up(usize::from(session.pool));
            self.switch_server(id, up);
        }
    }

    /// Switches a session to the default server of its pool.
    pub(crate) fn switch_to_default_server(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get(id) {
            let server = self.pools.default_server_of(usize::from(session.pool));
            self.switch_server(id, server);
        }
    }

    /// A group of keys of the default server of a session's pool.
    pub(crate) fn default_group(&self, id: SessionId) -> Option<Group> {
        let pool = usize::from(self.sessions.get(id)?.pool);
        let server = self.pools.default_server_of(pool);
        Some(self.pools.group_at(self.pools.subpools_of(pool)[0], server))
    }

    /// Switches a session to the owner of this key, unless the session is bound to its server.
    pub(crate) fn switch_to_owner(&mut self, id: SessionId, key: &[u8], queued: Option<Group>) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let any = session.next_seq;
        let group = self.pools.group_of(session.pool, key, || any);
        if self.may_switch_to(id, group, queued) {
            let owner = self.pools.server_of(group);
            self.switch_server(id, owner);
        }
    }

    /// Switches a session to the present owner of a group, unless the session is bound to its
    /// server.
    pub(crate) fn switch_to_group(&mut self, id: SessionId, group: Group) {
        let is_free = |session: &Session| !session.pins.bind() && session.state.any(Flags::ROUTED);
        if self.sessions.get(id).is_some_and(is_free) {
            let server = self.pools.server_of(group);
            self.switch_server(id, server);
        }
    }

    /// Whether a session may switch to the owner of this group. `queued`: the group of the requests
    /// that it has queued since MULTI, if it has queued any.
    pub(crate) fn may_switch_to(&self, id: SessionId, group: Group, queued: Option<Group>) -> bool {
        let Some(session) = self.sessions.get(id) else {
            return false;
        };
        let server = self.pools.server_of(group);
        (!session.pins.bind() || session.server == server)
            && queued.is_none_or(|queued| queued == group)
    }

    /// Notes a group of keys that a session watches.
    pub(crate) fn note_watched(&mut self, id: SessionId, group: Group) {
        if let Some(session) = self.sessions.get_mut(id) {
            let watches = session.pins.any(Pins::WATCH);
            let watched = &mut session.rare().transaction.watched;
            if !watches {
                watched.clear();
            }
            if !watched.contains(&group) {
                watched.push(group);
            }
        }
    }
}

/// The pool of a session.
impl DataPlane {
    /// Whether the keys of a session's pool have several owners.
    pub(crate) fn has_several_owners(&self, id: SessionId) -> bool {
        let session = self.sessions.get(id);
        session.is_some_and(|session| self.pools[usize::from(session.pool)].has_several())
    }

    /// Whether a session has nodes of a Cluster behind it and must see a plain server.
    pub(crate) fn hides_nodes(&self, id: SessionId) -> bool {
        self.has_nodes(id) && !self.shows_a_node(id)
    }

    /// Whether the pool of a session has nodes of a Cluster.
    pub(crate) fn has_nodes(&self, id: SessionId) -> bool {
        let session = self.sessions.get(id);
        session.is_some_and(|session| self.pools.has_cluster(session.pool.into()))
    }

    /// Whether a session sees a node of a Cluster.
    pub(crate) fn shows_a_node(&self, id: SessionId) -> bool {
        let session = self.sessions.get(id);
        session.is_some_and(|session| {
            let pool = usize::from(session.pool);
            self.pools[pool].cluster().is_some() && self.settings.pools[pool].shows == Shows::Node
        })
    }

    /// Whether the sharded channels of a session's pool are with the owners of their slots.
    pub(crate) fn channels_have_places(&self, id: SessionId) -> bool {
        let first = |session: &Session| self.pools.first_of(session.pool.into());
        let session = self.sessions.get(id);
        session.is_some_and(|session| first(session).cluster().is_some())
    }
}
