//! Links that come up.

use crate::base::handle::LinkId;
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::actions::Event;
use crate::data_plane::link::{ConnectAttempt, LinkRole, LinkState};
use crate::routing::pool::ServerId;

/// The facts about a link that has finished its handshake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkUp {
    pub(crate) link: LinkId,
    pub(crate) server: ServerId,
    pub(crate) role: LinkRole,
    /// Its server's errors may be redirects.
    pub(crate) heeds: bool,
    /// When the handshake began.
    pub(crate) greeted_since: Time,
}

impl DataPlane {
    /// Puts a link into use after its handshake.
    pub(crate) fn set_up(&mut self, id: LinkId) -> Option<LinkUp> {
        let now = self.now;
        let link = self.links.get_mut(id)?;
        let greeted_since = match link.state {
            LinkState::Greeting { since, .. } => since,
            _ => now,
        };
        link.state = LinkState::Up;
        link.attempt = ConnectAttempt::Fair;
        link.up_since = now;
        link.progress = now;
        link.refusal = None;
        let up = LinkUp {
            link: id,
            server: link.kind.server,
            role: link.role,
            heeds: link.heeds,
            greeted_since,
        };
        match link.has_open_batch() {
            true => self.list_link(id),
            false => self.write_link(id),
        }
        self.counters.link_ups += 1;
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
            LinkRole::Shared | LinkRole::Hub(_) | LinkRole::Sentinel
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
