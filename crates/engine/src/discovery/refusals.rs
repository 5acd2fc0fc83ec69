//! Refusals of requests, and their meaning for the topology.

use respool_protocol::cluster::{Endpoint, Redirect, Refusal};

use crate::base::settings::Address;
use crate::data_plane::DataPlane;
use crate::discovery::Discovery;
use crate::discovery::servers::ServersInUse;
use crate::routing::next_server::NextServer;
use crate::routing::pool::ServerId;

/// The meaning of a refusal for the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusalMeaning {
    /// It names another server.
    Redirects,
    /// This replica does not answer reads now.
    UnfitReplica,
    /// Another server may be the owner now, or soon.
    OwnersChange,
    /// The same server will execute the request.
    Passes,
}

impl RefusalMeaning {
    fn of(refusal: Refusal, of_replica: bool) -> RefusalMeaning {
        match refusal {
            Refusal::Moved | Refusal::Ask => RefusalMeaning::Redirects,
            // CLUSTERDOWN does not count against the replica: every node would answer so.
            _ if of_replica && refusal != Refusal::ClusterDown => RefusalMeaning::UnfitReplica,
            Refusal::ReadOnly | Refusal::Unblocked | Refusal::ClusterDown | Refusal::MasterDown => {
                RefusalMeaning::OwnersChange
            }
            Refusal::TryAgain | Refusal::Loading => RefusalMeaning::Passes,
        }
    }
}

impl Discovery {
    /// Updates the topology from a refusal of this server, and returns the server that gets the
    /// request next. `slot`: the slot of the request, if respool can see its keys. `None`: no
    /// server has the slot, so the client gets the refusal ([`Discovery::confirm_unowned`]).
    pub(crate) fn follow_refusal(
        &mut self,
        plane: &mut DataPlane,
        (server, slot): (ServerId, Option<u16>),
        error: &[u8],
        refusal: Refusal,
        in_use: &ServersInUse,
    ) -> Option<NextServer> {
        if self.confirm_unowned(plane, server, error, slot) {
            return None;
        }
        let of_replica = plane.server(server).replica_of.is_some();
        match RefusalMeaning::of(refusal, of_replica) {
            RefusalMeaning::Redirects => {
                return Some(self.follow_redirect(plane, (server, slot), error, in_use));
            }
            RefusalMeaning::UnfitReplica => {
                plane.counters.requests_deferred += 1;
                self.note_refused_read(plane, server);
            }
            RefusalMeaning::OwnersChange => {
                plane.counters.requests_deferred += 1;
                self.request_survey(plane, server);
                self.request_refresh_after_loss(plane, server);
            }
            RefusalMeaning::Passes => plane.counters.requests_deferred += 1,
        }
        Some(NextServer::Owner)
    }

    fn follow_redirect(
        &mut self,
        plane: &mut DataPlane,
        (server, slot): (ServerId, Option<u16>),
        error: &[u8],
        in_use: &ServersInUse,
    ) -> NextServer {
        let redirect = Redirect::read(error);
        let named = redirect.as_ref();
        let named =
            named.and_then(|redirect| self.server_named_by(plane, server, redirect, in_use));
        let Some((redirect, named)) = redirect.zip(named) else {
            // No known server has the named address, at least not yet.
            self.request_refresh(plane, server);
            return NextServer::Owner;
        };
        self.reach(plane, named);
        if redirect.ask {
            plane.counters.redirected_ask += 1;
            return NextServer::Importer(named);
        }
        plane.counters.redirected_moved += 1;
        let pool = usize::from(plane.server(server).pool);
        if plane.server(server).replica_of.is_some() {
            // The replica's own topology may be out of date. So only this read follows the
            // redirect, and respool asks the owners.
            if self.owner_of_slot(plane, pool, redirect.slot) == Some(named) {
                self.note_refused_read(plane, server);
            }
            self.request_refresh(plane, server);
            return NextServer::Named(named);
        }
        self.heal_slot(plane, pool, redirect.slot, named);
        match slot == Some(redirect.slot) {
            true => NextServer::Owner,
            false => NextServer::Named(named),
        }
    }

    /// The server that a redirect names. `None`: no node has named that address in an answer about
    /// the topology. Then respool asks the node about the topology.
    fn server_named_by(
        &mut self,
        plane: &mut DataPlane,
        server: ServerId,
        redirect: &Redirect<'_>,
        in_use: &ServersInUse,
    ) -> Option<ServerId> {
        let host = match (redirect.host, &plane.server(server).settings.address) {
            (Some(host), _) => host.to_owned(),
            (None, Address::Tcp { host, .. }) => host.clone(),
            (None, Address::Unix(_)) => return None,
        };
        let named = Endpoint {
            host,
            port: redirect.port,
        };
        self.known_server_at(plane, server, named, redirect.ask, in_use)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each refusal, of an owner and of a replica.
    #[test]
    fn refusals_change_the_topology_by_their_server() {
        use RefusalMeaning::{OwnersChange, Passes, Redirects, UnfitReplica};
        let table = [
            (Refusal::Moved, Redirects, Redirects),
            (Refusal::Ask, Redirects, Redirects),
            (Refusal::TryAgain, Passes, UnfitReplica),
            (Refusal::Loading, Passes, UnfitReplica),
            (Refusal::ReadOnly, OwnersChange, UnfitReplica),
            (Refusal::Unblocked, OwnersChange, UnfitReplica),
            (Refusal::MasterDown, OwnersChange, UnfitReplica),
            (Refusal::ClusterDown, OwnersChange, OwnersChange),
        ];
        for (refusal, of_owner, of_replica) in table {
            assert_eq!(RefusalMeaning::of(refusal, false), of_owner, "{refusal:?}");
            assert_eq!(RefusalMeaning::of(refusal, true), of_replica, "{refusal:?}");
        }
    }
}
