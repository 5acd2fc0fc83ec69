//! Discovery of servers: their addresses, roles and slots. It writes the routing tables.

pub(crate) mod cluster;
pub(crate) mod introductions;
pub(crate) mod next_server;
pub(crate) mod readonly;
pub(crate) mod replicas;
pub(crate) mod sentinel;
pub(crate) mod server_report;
mod unknown_cluster;

use crate::routing::pool::ServerId;

/// What servers said of the topology.
#[derive(Default)]
pub(crate) struct Discovery {
    /// Servers that lost slots, by redirects among the replies that are being taken.
    pub(crate) lost_slots: Vec<ServerId>,
    /// Entries of servers that a new server has got. Facts about the old server are void.
    pub(crate) reused: Vec<ServerId>,
}
