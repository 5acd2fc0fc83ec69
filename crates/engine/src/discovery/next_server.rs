//! The server of the next attempt of a refused request.

use respool_protocol::commands::Command;

use crate::base::handle::SessionId;
use crate::data_plane::DataPlane;
use crate::data_plane::link::LinkKind;
use crate::discovery::Discovery;
use crate::routing::next_server::NextServer;
use crate::routing::pool::ServerId;
use crate::routing::replica_table::NoReader;

impl Discovery {
    /// The server that gets a refused request of a session now. `asked`: the kind of the link that
    /// carried it. `slot`: the slot of its first key.
    pub(crate) fn next_server_of(
        &mut self,
        plane: &mut DataPlane,
        session: SessionId,
        (asked, command): (LinkKind, Option<&Command>),
        slot: Option<u16>,
        next: NextServer,
    ) -> Result<ServerId, NoReader> {
        let pool = usize::from(plane.server(asked.server).pool);
        let owner = match (next, slot, plane.pools[pool].cluster()) {
            (NextServer::Importer(server) | NextServer::Named(server), ..) => return Ok(server),
            (NextServer::Owner, Some(slot), Some(cluster)) => cluster.owner_of_slot(slot),
            (NextServer::Owner, ..) => {
                let owner = plane.owner_behind(asked.server);
                self.heir_of(plane, owner).unwrap_or(owner)
            }
        };
        match command {
            Some(command) => plane.server_at_last(session, owner, command, asked),
            None => Ok(owner),
        }
    }
}
