//! The servers behind us, and which of them owns what.

use crate::settings::{PoolKind, PoolSettings, ServerSettings};

/// A server's index in the engine's table of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ServerId(pub(crate) u16);

/// One process behind us.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) settings: ServerSettings,
    /// Its address as errors and logs say it.
    pub(crate) label: String,
}

/// One logical Redis.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) topology: Topology,
}

/// Which server owns which keys, at this moment. Whoever routes asks here and nowhere else.
#[derive(Debug)]
pub(crate) enum Topology {
    /// One server owns every key.
    Single(ServerId),
}

impl Pool {
    /// Makes the pools and the table of their servers.
    pub(crate) fn build(settings: &[PoolSettings]) -> (Vec<Pool>, Vec<Server>) {
        let mut servers = Vec::new();
        let mut add = |settings: &ServerSettings| {
            let id = ServerId(servers.len() as u16);
            servers.push(Server {
                label: settings.address.to_string(),
                settings: settings.clone(),
            });
            id
        };
        let pools = settings
            .iter()
            .map(|pool| Pool {
                topology: match &pool.kind {
                    PoolKind::Single(server) => Topology::Single(add(server)),
                },
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
