//! The lines of links in INFO.

use crate::base::handle::SessionId;
use crate::data_plane::DataPlane;
use crate::data_plane::link::{Link, LinkRole, LinkState};
use crate::data_plane::session::LocalAddress;

impl DataPlane {
    /// A description of each link to a server of this pool.
    pub(crate) fn link_lines(&self, pool: u16) -> Vec<String> {
        let links = self.links.iter().map(|(_, link)| link);
        let of_pool = links.filter(|link| self.pool_of(link.kind.server).parent == pool);
        of_pool.map(|link| self.link_line(link)).collect()
    }

    fn link_line(&self, link: &Link) -> String {
        let state = match link.state {
            LinkState::Down | LinkState::Lost => "down",
            LinkState::Retrying { .. } => "connecting-again",
            LinkState::Connecting { .. } => "connecting",
            LinkState::Handshaking { .. } => "handshake",
            LinkState::Up => "up",
            LinkState::Backoff { .. } => "backoff",
        };
        let role = match link.role {
            LinkRole::Shared => "shared",
            LinkRole::Draining { .. } => "draining",
            LinkRole::Streaming { .. } => "streaming",
            LinkRole::Emergency { .. } => "emergency",
            LinkRole::Pinned { .. } => "pinned",
            LinkRole::HubLine(_) => "hub",
            LinkRole::Sentinel => "sentinel",
            LinkRole::Redirect { .. } => "tracking-target",
            LinkRole::Probe => "login-probe",
            LinkRole::Idle => "idle",
        };
        let version = link.kind.version.number();
        format!(
            "server={},pool={},db={},resp={version},role={role},state={state},in_flight={},\
             sessions={attached},riders={attached}",
            self.server(link.kind.server).label,
            self.pool_name(link.kind.server),
            link.kind.db,
            link.ledger.in_flight(),
            attached = link.attached,
        )
    }

    /// The port that INFO shows to a session: with several pools, the port that the client is
    /// connected to. 0: a socket in the file system.
    pub(crate) fn tcp_port_of(&self, id: SessionId) -> u16 {
        match self.sessions.get(id).map(|session| &session.local) {
            _ if self.settings.pools_in_use().count() == 1 => self.worker.tcp_port(),
            Some(LocalAddress::Tcp(at) | LocalAddress::Tls(at)) => at.port(),
            _ => 0,
        }
    }
}
