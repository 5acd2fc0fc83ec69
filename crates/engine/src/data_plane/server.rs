//! A server behind respool, as its links know it.

use respool_protocol::encode::Version;

use crate::base::handle::LinkId;
use crate::base::settings::ServerSettings;
use crate::data_plane::flush_rule::ServerLoad;
use crate::data_plane::health::ServerHealth;
use crate::data_plane::link::LinkKind;
use crate::data_plane::login_state::LoginState;
use crate::data_plane::reply_limit;
use crate::data_plane::takeover::LinkTakeover;
use crate::routing::pool::{ConfiguredServer, ServerId};

/// One Redis or Valkey process behind respool.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) settings: ServerSettings,
    /// The server's address in errors and logs.
    pub(crate) label: String,
    /// The index of its pool; if that has subpools, of its subpool.
    pub(crate) pool: u16,
    /// The topology does not have this server any more: no request goes to it, and its links do not
    /// connect again.
    pub(crate) gone: bool,
    /// The server of which this one is a replica. A replica gets only reads.
    pub(crate) replica_of: Option<ServerId>,
    /// How often this entry was given to another server.
    pub(crate) reuses: u32,
    /// No Sentinel has named the server's address yet: its links wait for that.
    pub(crate) unknown: bool,
    /// For each version of the protocol: the kind of shared link that was asked for last, and that
    /// link.
    pub(crate) current: [Option<(LinkKind, LinkId)>; 2],
    /// The state of its connections.
    pub(crate) health: ServerHealth,
    /// Whether it accepts the configured login.
    pub(crate) trust: LoginState,
    /// Its stuck links, and the links that take their place.
    pub(crate) takeover: LinkTakeover,
    /// The server's limits of a connection's output.
    pub(crate) reply_limits: reply_limit::KnownLimits,
    /// The load of the server, and how long batches for it wait.
    pub(crate) load: ServerLoad,
}

impl From<ConfiguredServer> for Server {
    fn from(configured: ConfiguredServer) -> Server {
        Server {
            label: configured.label,
            unknown: configured.unknown,
            ..Server::new(configured.pool, &configured.settings)
        }
    }
}

impl Server {
    pub(crate) fn new(pool: u16, settings: &ServerSettings) -> Server {
        Server {
            label: settings.address.to_string(),
            settings: settings.clone(),
            pool,
            gone: false,
            replica_of: None,
            reuses: 0,
            unknown: false,
            current: [None; 2],
            health: ServerHealth::default(),
            trust: LoginState::default(),
            takeover: LinkTakeover::default(),
            reply_limits: reply_limit::KnownLimits::default(),
            load: ServerLoad::default(),
        }
    }

    /// The link of this kind, if it was asked for last.
    #[inline]
    pub(crate) fn current(&self, kind: LinkKind) -> Option<LinkId> {
        let version = usize::from(kind.version == Version::Resp3);
        let (known, link) = self.current[version]?;
        (known == kind).then_some(link)
    }
}
