//! The servers behind us, and which of them owns what.

use respool_protocol::hashing::Placement;

use crate::link::LinkKey;
use crate::settings::{FlushRule, PoolKind, PoolSettings, ServerSettings};
use crate::slots::Key;

/// A server's index in the engine's table of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ServerId(pub(crate) u16);

/// One process behind us.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) settings: ServerSettings,
    /// Its address as errors and logs say it.
    pub(crate) label: String,
    /// The index of its pool.
    pub(crate) pool: u16,
    /// Of each version of the protocol, the kind of link that was asked for last, and the one that all share.
    pub(crate) current: [Option<(LinkKey, Key)>; 2],
}

/// One logical Redis.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) topology: Topology,
    /// When the batches for its servers leave, and what in them leaves together.
    pub(crate) flush: FlushRule,
}

/// Which server owns which keys, at this moment. Whoever routes asks here and nowhere else.
#[derive(Debug)]
pub(crate) enum Topology {
    /// One server owns every key.
    Single(ServerId),
    /// Each key's owner follows from its hash.
    Sharded {
        placement: Placement,
        servers: Box<[ServerId]>,
    },
}

impl Pool {
    /// Makes the pools and the table of their servers.
    pub(crate) fn build(settings: &[PoolSettings], flush: &FlushRule) -> (Vec<Pool>, Vec<Server>) {
        let mut servers = Vec::new();
        let mut add = |pool: usize, settings: &ServerSettings| {
            let id = ServerId(servers.len() as u16);
            servers.push(Server {
                label: settings.address.to_string(),
                settings: settings.clone(),
                pool: pool as u16,
                current: [None; 2],
            });
            id
        };
        let mut pools = Vec::new();
        for (index, pool) in settings.iter().enumerate() {
            let topology = match &pool.kind {
                PoolKind::Single(server) => Topology::Single(add(index, server)),
                PoolKind::Sharded { shards, placement } => Topology::Sharded {
                    placement: placement.clone(),
                    servers: shards.iter().map(|shard| add(index, shard)).collect(),
                },
            };
            pools.push(Pool {
                topology,
                flush: flush.clone(),
            });
        }
        (pools, servers)
    }

    /// The server for what has no key: it owns everything where there is only one, so a request need not be looked at.
    pub(crate) fn home(&self) -> ServerId {
        match &self.topology {
            Topology::Single(server) => *server,
            Topology::Sharded { servers, .. } => servers[0],
        }
    }

    /// Whether requests have to be looked at to know whose they are.
    pub(crate) fn has_several(&self) -> bool {
        matches!(self.topology, Topology::Sharded { .. })
    }

    /// The owner of a key; `random` is asked where any will do.
    #[inline]
    pub(crate) fn owner_of(&self, key: &[u8], random: impl FnOnce() -> u32) -> ServerId {
        match &self.topology {
            Topology::Single(server) => *server,
            Topology::Sharded { placement, servers } => servers[placement.server_of(key, random)],
        }
    }

    /// All of them, in the order of the configuration.
    pub(crate) fn servers(&self) -> &[ServerId] {
        match &self.topology {
            Topology::Single(server) => std::slice::from_ref(server),
            Topology::Sharded { servers, .. } => servers,
        }
    }
}
