//! Discovery of servers: their addresses, roles and slots. It writes the routing tables.

pub(crate) mod cluster;
pub(crate) mod introductions;
pub(crate) mod next_server;
pub(crate) mod readonly;
pub(crate) mod replicas;
pub(crate) mod sentinel;
pub(crate) mod server_report;
mod unknown_cluster;

use std::collections::HashMap;

use crate::data_plane::DataPlane;
use crate::data_plane::link::Role;
use crate::data_plane::link_up::LinkUp;
use crate::discovery::readonly::ReadonlyReconnect;
use crate::discovery::replicas::Readers;
use crate::routing::pool::ServerId;

/// What servers said of the topology.
#[derive(Default)]
pub(crate) struct Discovery {
    /// Servers that lost slots, by redirects among the replies that are being taken.
    pub(crate) lost_slots: Vec<ServerId>,
    /// Entries of servers that a new server has got. Facts about the old server are void.
    pub(crate) reused: Vec<ServerId>,
    /// The servers that may be read, by pool. Each pool with replicas has an entry once servers
    /// are known.
    readers: HashMap<usize, Readers>,
    /// When links were connected anew because their server takes no writes.
    renewals: HashMap<ServerId, ReadonlyReconnect>,
}

impl Discovery {
    /// A link is up: its server is asked for what it knows of the others.
    pub(crate) fn link_up(&mut self, plane: &mut DataPlane, up: &LinkUp) {
        if up.heeds {
            self.request_refresh(plane, up.server);
            self.look_at(plane, up.server);
        }
        if up.role == Role::Sentinel {
            self.sentinel_up(plane, up.link);
        }
    }
}
