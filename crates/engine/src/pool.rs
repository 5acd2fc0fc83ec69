//! The servers behind us, and which of them owns what.

use crate::settings::{FlushRule, PoolKind, PoolSettings, ServerSettings};

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
            });
            id
        };
        let pools = settings
            .iter()
            .enumerate()
            .map(|(index, pool)| Pool {
                topology: match &pool.kind {
                    PoolKind::Single(server) => Topology::Single(add(index, server)),
                },
                flush: flush.clone(),
            })
            .collect();
        (pools, servers)
    }

    /// The server that owns everything, as every kind of pool has one so far: a request need not be
    /// looked at.
    pub(crate) fn only_server(&self) -> ServerId {
        match self.topology {
            Topology::Single(server) => server,
        }
    }
}
