//! Requests that need all owners of a pool, before the nodes of a Cluster are known.

use crate::base::handle::SessionId;
use crate::data_plane::DataPlane;
use crate::data_plane::handshake::NO_NODE;
use crate::data_plane::ingress::Dispatched;
use crate::data_plane::session::{Flags, Session};
use crate::discovery::Discovery;

impl Discovery {
    /// Makes a session wait until the nodes of a Cluster are known, or returns the error if they do
    /// not become known. `part`: the pool or subpool that is the Cluster.
    pub(crate) fn find_owners(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        part: usize,
    ) -> Result<Dispatched, Vec<u8>> {
        if let Some(text) = unknown_for(plane, part, NO_NODE) {
            return Err(text.into_bytes());
        }
        let in_multi = |session: &Session| session.flags.any(Flags::IN_MULTI);
        let is_queued = plane.sessions.get(id).is_some_and(in_multi);
        match !is_queued && self.waits_for_nodes(plane, id, part) {
            true => Ok(Dispatched::Wait),
            false => Err(self.no_nodes(plane, part).into_bytes()),
        }
    }
}

/// The error while a Cluster is unknown because a configured node cannot be used for this
/// reason. `None` if no node fails for it.
fn unknown_for(plane: &DataPlane, part: usize, reason: &str) -> Option<String> {
    let mut servers = plane.pools[part].servers().iter();
    let server = servers.find(|server| plane.is_away_for(**server, reason))?;
    let label = &plane.server(*server).label;
    Some(format!(
        "CLUSTERDOWN respool: no node of the Cluster is known; {label}: {reason}"
    ))
}
