//! Links that are connected and come up, and the bytes that their sockets take.

use crate::base::handle::{CONFIGURED, LinkId};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::actions::Event;
use crate::data_plane::handshake::Handshake;
use crate::data_plane::link::{ConnectAttempt, LinkRole, LinkState, Streaming};
use crate::routing::pool::ServerId;

/// The facts about a link that has finished its handshake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkUp {
    pub(crate) link: LinkId,
    pub(crate) server: ServerId,
    pub(crate) role: LinkRole,
    /// Its server's errors may be redirects.
    pub(crate) handles_redirects: bool,
    /// When the handshake began.
    pub(crate) handshake_since: Time,
}

impl DataPlane {
    /// Sends the handshake on a link with a connected socket.
    pub(crate) fn begin_handshake(&mut self, link_id: LinkId) {
        let Some(server) = self.links.get(link_id).map(|link| link.kind.server) else {
            return;
        };
        let pool = self.pool_of(server);
        let server = &self.servers[server.0 as usize];
        let configured = server.settings.credentials.as_ref();
        // Without READONLY, a Cluster's replica redirects reads to the primary.
        let to_node = pool.cluster().is_some();
        let reads_only = server.replica_of.is_some() && to_node;
        let link = self.links.get(link_id);
        let asks_for_limits = link.is_some_and(|link| self.asks_for_limits(link));
        if let Some(link) = self.links.get_mut(link_id) {
            let credentials = match link.kind.user {
                CONFIGURED => configured,
                user => self.logins.get(user),
            };
            let handshake = match link.role {
                LinkRole::Probe => Handshake::of_probe(),
                _ => {
                    let other_logins = self.logins.beside(link.kind.user, link.kind.db, configured);
                    Handshake::new(link.kind, (credentials, other_logins), reads_only, to_node)
                }
            };
            let handshake = match asks_for_limits {
                true => handshake.with_limits(),
                false => handshake,
            };
            link.send_handshake(handshake, self.now);
        }
        self.turn.flushed_links.push(link_id);
    }

    /// A link's socket took `count` bytes of its output. Returns whether requests may wait for
    /// that.
    #[inline]
    pub(crate) fn link_written(&mut self, link_id: LinkId, count: usize) -> bool {
        let Some(link) = self.links.get_mut(link_id) else {
            return false;
        };
        link.written(count);
        if link.streaming != Streaming::No {
            link.progress = self.now;
        }
        self.counters.link_bytes_out += count as u64;
        !link.takes() || !link.waiters.is_empty()
    }

    /// The name of a link's server is being looked up since this time; `None`: the look-up has
    /// ended.
    pub(crate) fn note_look_up(&mut self, link: LinkId, since: Option<Time>) {
        if let Some(link) = self.links.get(link) {
            let server = usize::from(link.kind.server.0);
            let health = &mut self.servers[server].health;
            match since {
                Some(since) => health.begin_look_up(since),
                None => health.end_look_up(),
            }
        }
    }

    /// Puts a link into use after its handshake.
    pub(crate) fn mark_up(&mut self, id: LinkId) -> Option<LinkUp> {
        let now = self.now;
        let link = self.links.get_mut(id)?;
        let handshake_since = match link.state {
            LinkState::Handshaking { since, .. } => since,
            _ => now,
        };
        link.state = LinkState::Up;
        link.attempt = ConnectAttempt::Fair;
        link.up_since = now;
        link.progress = now;
        link.handshake_error = None;
        let up = LinkUp {
            link: id,
            server: link.kind.server,
            role: link.role,
            handles_redirects: link.handles_redirects,
            handshake_since,
        };
        match link.ledger.has_open_batch() {
            true => self.list_link(id),
            false => self.write_link(id),
        }
        self.counters.links_connected += 1;
        self.reopen(id);
        Some(up)
    }

    /// Reports in the log that a link is up.
    pub(crate) fn report_up(&mut self, id: LinkId) {
        let Some(link) = self.links.get(id) else {
            return;
        };
        if !matches!(
            link.role,
            LinkRole::Shared | LinkRole::HubLine(_) | LinkRole::Sentinel
        ) {
            return;
        }
        let is_node = self.pool_of(link.kind.server).cluster().is_some();
        let identity = link.identity.as_ref();
        let identity = identity.map_or(String::new(), |identity| identity.description(is_node));
        self.emit(Event::LinkUp {
            server: self.label(id).to_owned(),
            pool: self.pool_name(link.kind.server).to_owned(),
            identity,
        });
    }
}
