//! The settings of an engine. They are plain data: reading them does nothing.

use std::collections::HashSet;
use std::path::PathBuf;

use respool_protocol::commands::CommandId;
use respool_protocol::hashing::Placement;

use crate::base::address_map::AddressMap;
use crate::base::limits::Limits;

/// Everything that the engine of a worker needs to know. All workers of a process get equal
/// settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The limits of a worker.
    pub limits: Limits,
    /// Deadlines.
    pub timeouts: Timeouts,
    /// When a link's open batch leaves, at first, in every pool without a rule of its own.
    pub flush: FlushRule,
    /// The users that may connect. Empty: every client may, as with a Redis without a password.
    pub users: Vec<User>,
    /// The pools behind respool; listeners name them by index. After a reload, the indices are
    /// those of [`PoolPlaces`](crate::PoolPlaces).
    pub pools: Vec<PoolSettings>,
    /// The action on a request that needs a dedicated link if none is free.
    pub pinned_links_full: WhenFull,
    /// The code of the error for a request that was not executed because its server is away.
    pub server_down_error: ServerDownError,
    /// Whether subscribers of a lost link are closed.
    pub lost_subscriptions: LostSubscriptions,
    /// Commands that no client may use.
    pub refused: HashSet<CommandId>,
    /// DEBUG OBJECT is allowed, even if DEBUG is refused.
    pub passes_debug_object: bool,
    /// Servers are asked for their output limits of a connection: `client-output-buffer-limit` and
    /// `maxmemory-clients`.
    pub asks_output_limits: bool,
    /// Servers are asked for their processor time every few seconds, for metrics.
    pub asks_server_cpu: bool,
    /// The slow log.
    pub slow_log: SlowLogSettings,
    /// The keys of one request in so many count for `RESPOOL HOTKEYS`. 0: those of none.
    pub hot_keys_sample: u32,
}

/// The slow log: the last requests that took long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowLogSettings {
    /// The least time of a slow request, from its reading to its reply, microseconds. `None`: no
    /// request is logged.
    pub slower_than_us: Option<u32>,
    /// Requests that each worker keeps.
    pub len_max: u32,
}

impl Default for SlowLogSettings {
    fn default() -> Self {
        SlowLogSettings {
            slower_than_us: Some(10_000),
            len_max: 128,
        }
    }
}

/// The action at a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// The session waits until there is room.
    #[default]
    Wait,
    /// The request gets an error.
    Refuse,
}

/// The code of the error for a request that was not executed because its server is away. A request
/// in a pipeline always gets `NotSent`, because client libraries repeat whole pipelines for the
/// other codes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerDownError {
    /// `LOADING`: of the clients that repeat a request after an error, most do so for this one.
    #[default]
    Loading,
    /// `TRYAGAIN`: most Cluster clients repeat a request after this error.
    TryAgain,
    /// `NOTSENT`: no client library repeats a request after this error.
    NotSent,
}

impl ServerDownError {
    pub(crate) fn code(self) -> &'static str {
        match self {
            ServerDownError::Loading => "LOADING",
            ServerDownError::TryAgain => "TRYAGAIN",
            ServerDownError::NotSent => "NOTSENT",
        }
    }
}

/// The action on the subscribers of a lost link. They may have missed messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LostSubscriptions {
    /// Their sessions are closed, as their connections to the server would be.
    #[default]
    Close,
    /// respool subscribes to their channels again, and does not tell them.
    Keep,
}

/// Deadlines, in milliseconds; 0 switches a deadline off where its text says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the reading of a request to its reply. At the deadline the client gets an error that
    /// says whether the request was sent, and a later reply is dropped. 0: no deadline. Time in
    /// which a request waits for its client, for the end of CLIENT PAUSE, or for earlier replies
    /// that keep coming does not count.
    pub request_ms: u32,
    /// The time for a connection to a server, with its handshake.
    pub connect_ms: u32,
    /// How long a link that owes replies may bring no byte before it is closed.
    pub link_stall_ms: u32,
    /// The first pause between two attempts to connect. It doubles each time, with jitter.
    pub reconnect_min_ms: u32,
    /// The longest pause between two attempts to connect.
    pub reconnect_max_ms: u32,
    /// How long requests wait for a server that is away, from its loss on. 0: not at all.
    pub outage_hold_ms: u32,
    /// How long a session may be idle before it is closed. 0: for ever.
    pub session_idle_ms: u32,
    /// How often a server is asked whether it still accepts the configured login. 0: never.
    pub login_check_ms: u32,
    /// How long a session that must authenticate may take to do so before it is closed. 0: for
    /// ever.
    pub authenticate_ms: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            request_ms: 10_000,
            connect_ms: 2_000,
            link_stall_ms: 30_000,
            reconnect_min_ms: 20,
            reconnect_max_ms: 250,
            outage_hold_ms: 2_000,
            session_idle_ms: 0,
            login_check_ms: 500,
            authenticate_ms: 60_000,
        }
    }
}

/// The aim of a flush rule: whether the open batch of a link that owes replies waits for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aim {
    /// The batch waits while the server or the worker is busy (`data_plane/flush_rule`).
    #[default]
    Balanced,
    /// The batch leaves at the end of its turn.
    Latency,
    /// The batch waits at any load, for [`FlushRule::max_delay_us`] at most.
    ServerCpu,
}

impl Aim {
    /// Every aim.
    pub const ALL: [Aim; 3] = [Aim::Balanced, Aim::Latency, Aim::ServerCpu];

    /// The name in options.
    pub const fn name(self) -> &'static str {
        match self {
            Aim::Balanced => "balanced",
            Aim::Latency => "latency",
            Aim::ServerCpu => "server-cpu",
        }
    }
}

/// When the open batch of a link leaves, and which requests are joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushRule {
    /// When the batch of a busy link is held.
    pub aim: Aim,
    /// The longest wait of a request in an open batch, microseconds.
    pub max_delay_us: u32,
    /// GETs of a batch leave as one MGET, and SETs without options as one MSET.
    pub fuse: bool,
    /// The most keys in one MGET or MSET. Above it, another one begins.
    pub fused_keys_max: u32,
    /// Of equal reads in a batch, one is sent.
    pub collapse: bool,
}

impl FlushRule {
    /// The least value of [`FlushRule::max_delay_us`].
    pub const MAX_DELAY_US_MIN: u32 = 1;
    /// The greatest value of [`FlushRule::max_delay_us`].
    pub const MAX_DELAY_US_MAX: u32 = 1_000_000;
    /// The least value of [`FlushRule::fused_keys_max`].
    pub const FUSED_KEYS_MAX_MIN: u32 = 2;
    /// The greatest value of [`FlushRule::fused_keys_max`]: the bytes of one MGET hold no more
    /// keys.
    pub const FUSED_KEYS_MAX_MAX: u32 = 1_000;

    /// Whether a held request may reach its deadline before it is sent: such a rule is refused.
    pub fn outwaits(&self, timeouts: &Timeouts) -> bool {
        let request_us = u64::from(timeouts.request_ms) * 1_000;
        self.aim != Aim::Latency && request_us != 0 && u64::from(self.max_delay_us) >= request_us
    }
}

impl Default for FlushRule {
    fn default() -> Self {
        FlushRule {
            aim: Aim::Balanced,
            max_delay_us: 200,
            fuse: true,
            fused_keys_max: 128,
            collapse: true,
        }
    }
}

/// A user that may connect to respool.
#[derive(Clone, PartialEq, Eq)]
pub struct User {
    /// The name; `AUTH password` means `default`.
    pub name: String,
    /// The password in clear text.
    pub password: String,
    /// The source of the password, if it may change.
    pub source: Option<PasswordSource>,
}

impl User {
    /// The place of a user that was removed. No client can log in as it.
    pub(crate) fn removed() -> User {
        User {
            name: String::new(),
            password: String::new(),
            source: None,
        }
    }

    /// Whether the user was removed.
    pub(crate) fn is_removed(&self) -> bool {
        self.name.is_empty()
    }
}

/// A source of passwords, such as a file, by a number that the owner of the settings gives. The
/// engine reads no file: it names the source when a server refuses a password from it, and gets a
/// new one by `Engine::handle_password`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PasswordSource(pub u16);

/// The login of respool to a server.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user; `None`: the server's default user.
    pub user: Option<String>,
    /// The password in clear text.
    pub password: String,
    /// The source of the password, if it may change.
    pub source: Option<PasswordSource>,
}

// Passwords never reach a log by way of a debug format.
impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// One logical Redis behind respool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSettings {
    /// The name in logs and metrics.
    pub name: String,
    /// The servers, and the owners of keys.
    pub kind: PoolKind,
    /// The driver reaches the servers over TLS. Of the ports that a node names, the one with TLS
    /// counts.
    pub tls: bool,
    /// The servers that answer reads.
    pub reads: Reads,
    /// When a link's open batch leaves, at first; `None`: [`Settings::flush`].
    pub flush: Option<FlushRule>,
    /// The address that clients of a Cluster get for this pool; `None`: the address that they have
    /// connected to.
    pub announce: Option<Announced>,
    /// The appearance of a Cluster to clients.
    pub shows: Shows,
    /// The map to reachable addresses of those that nodes and Sentinels name.
    pub address_map: AddressMap,
}

impl PoolSettings {
    /// A pool with these servers, and with defaults for all else.
    pub fn new(name: impl Into<String>, kind: PoolKind) -> PoolSettings {
        PoolSettings {
            name: name.into(),
            kind,
            tls: false,
            reads: Reads::default(),
            flush: None,
            announce: None,
            shows: Shows::default(),
            address_map: AddressMap::default(),
        }
    }

    /// Whether the pool is in use: clients may connect to it.
    pub fn is_in_use(&self) -> bool {
        !matches!(self.kind, PoolKind::Subpool | PoolKind::Ended { .. })
    }

    /// Whether both pools have the same servers, and reach and read them in the same way.
    pub(crate) fn has_servers_of(&self, other: &PoolSettings) -> bool {
        (self.tls, &self.reads, &self.address_map) == (other.tls, &other.reads, &other.address_map)
            && self.kind.without_renewable_passwords() == other.kind.without_renewable_passwords()
    }
}

impl Settings {
    /// The pools that clients may connect to.
    pub(crate) fn pools_in_use(&self) -> impl Iterator<Item = &PoolSettings> {
        self.pools.iter().filter(|pool| pool.is_in_use())
    }
}

/// The appearance of a Cluster behind respool to clients, in INFO, HELLO and CLUSTER alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shows {
    /// As a Cluster of one node, which owns all slots.
    #[default]
    Node,
    /// As a server without Cluster support.
    Server,
}

/// The address at which clients reach respool, if ports or addresses are mapped in front of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// A host name or an IP address (IPv6 without brackets).
    pub host: String,
    /// The port; `None`: the port that the client has connected to.
    pub port: Option<u16>,
}

impl std::fmt::Display for Announced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.host {
            host if host.contains(':') => write!(f, "[{host}]")?,
            host => f.write_str(host)?,
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// The servers that answer reads of a primary with replicas. For [`PoolKind::Single`] and other
/// pools without replicas it must be the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reads {
    /// The servers that are read.
    pub policy: ReadPolicy,
    /// Our zone: servers in it come before all others.
    pub zone: Option<String>,
    /// Zones by the prefixes of host names. The longest prefix counts, and it counts more than a
    /// server's own report.
    pub zones: Vec<(String, String)>,
    /// The weights of servers, which set their shares of the reads. 0: no reads; not listed: 1.
    pub weights: Vec<(Address, u32)>,
    /// How long a session that reads its own writes (it has sent READWRITE) reads at primaries
    /// after a write, milliseconds. 0: always.
    pub own_writes_ms: u32,
    /// All sessions read their own writes from the beginning, without READWRITE.
    pub all_own_writes: bool,
}

impl Default for Reads {
    fn default() -> Self {
        Reads {
            policy: ReadPolicy::default(),
            zone: None,
            zones: Vec::new(),
            weights: Vec::new(),
            own_writes_ms: 1_000,
            all_own_writes: false,
        }
    }
}

/// The servers that are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadPolicy {
    /// The primary only.
    #[default]
    Primary,
    /// The primary; while it is away, a replica.
    PreferPrimary,
    /// A replica; an error if there is none.
    Replica,
    /// A replica; the primary if there is none.
    PreferReplica,
    /// The server that answers soonest, replica or primary.
    Nearest,
}

impl Reads {
    pub(crate) fn zone_of(&self, address: &Address) -> Option<&str> {
        let Address::Tcp { host, .. } = address else {
            return None;
        };
        let fit = self
            .zones
            .iter()
            .filter(|(prefix, _)| host.starts_with(prefix));
        fit.max_by_key(|(prefix, _)| prefix.len())
            .map(|(_, zone)| zone.as_str())
    }

    pub(crate) fn weight_of(&self, address: &Address) -> u32 {
        let mut named = self.weights.iter();
        let weight = named.find(|(known, _)| known == address);
        weight.map_or(1, |(_, weight)| *weight)
    }
}

/// The kinds of pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// One server owns every key.
    Single(ServerSettings),
    /// Primaries that Sentinels watch: one, or several that divide the keys as in
    /// [`PoolKind::Sharded`].
    Watched {
        /// The first Sentinels to ask; they know the others. The credentials of the first hold for
        /// all.
        sentinels: Vec<ServerSettings>,
        /// The names of the primaries at the Sentinels, at least one.
        primaries: Vec<String>,
        /// The settings of each primary, without its address.
        template: ServerSettings,
        /// The rule that divides the keys among several primaries.
        placement: Option<Placement>,
    },
    /// A Redis or Valkey Cluster: its nodes name the owners of slots.
    Cluster {
        /// The first nodes to ask; their answers name all others. The credentials and the database
        /// of the first hold for every node.
        seeds: Vec<ServerSettings>,
    },
    /// Plain servers that do not know of each other. The hash of a key names its owner.
    Sharded {
        /// The servers, in the order for which the placement was made.
        shards: Vec<ServerSettings>,
        /// The rule that divides the keys among the servers.
        placement: Placement,
    },
    /// Several pools of the other kinds. The prefix of a key names its subpool.
    ByPrefix {
        /// The subpools. Of all prefixes of a key the longest counts. The first subpool is for all
        /// other keys, and its own prefix is ignored.
        subpools: Vec<PrefixPool>,
    },
    /// The place of a subpool, see [`PoolPlaces`](crate::PoolPlaces).
    Subpool,
    /// A reload has removed the pool or given it other servers. Its sessions leave it.
    Ended {
        /// The pool that its sessions move to, at a later index; `None`: they are closed.
        successor: Option<u16>,
    },
}

impl PoolKind {
    /// The same kind without the passwords that may change while respool runs.
    fn without_renewable_passwords(&self) -> PoolKind {
        let mut kind = self.clone();
        kind.forget_renewable_passwords();
        kind
    }

    fn forget_renewable_passwords(&mut self) {
        let forget = |server: &mut ServerSettings| {
            let credentials = server.credentials.as_mut();
            if let Some(credentials) = credentials.filter(|known| known.source.is_some()) {
                credentials.password.clear();
            }
        };
        match self {
            PoolKind::Single(server) => forget(server),
            PoolKind::Watched {
                sentinels,
                template,
                ..
            } => {
                sentinels.iter_mut().for_each(forget);
                forget(template);
            }
            PoolKind::Cluster { seeds: servers }
            | PoolKind::Sharded {
                shards: servers, ..
            } => servers.iter_mut().for_each(forget),
            PoolKind::ByPrefix { subpools } => {
                let kinds = subpools.iter_mut().map(|subpool| &mut subpool.kind);
                kinds.for_each(PoolKind::forget_renewable_passwords);
            }
            PoolKind::Subpool | PoolKind::Ended { .. } => {}
        }
    }

    /// The database in which a session starts.
    pub fn database(&self) -> u32 {
        match self {
            PoolKind::Single(server) => server.db,
            PoolKind::Watched { template, .. } => template.db,
            PoolKind::Cluster { seeds: servers }
            | PoolKind::Sharded {
                shards: servers, ..
            } => servers.first().map_or(0, |server| server.db),
            PoolKind::ByPrefix { subpools } => subpools
                .first()
                .map_or(0, |subpool| subpool.kind.database()),
            PoolKind::Subpool | PoolKind::Ended { .. } => 0,
        }
    }

    /// The number of servers that the configuration names.
    pub(crate) fn servers_named(&self) -> usize {
        match self {
            PoolKind::Single(_) => 1,
            PoolKind::Watched { primaries, .. } => primaries.len(),
            PoolKind::Cluster { seeds } => seeds.len(),
            PoolKind::Sharded { shards, .. } => shards.len(),
            PoolKind::ByPrefix { subpools } => {
                let kinds = subpools.iter().map(|subpool| &subpool.kind);
                kinds.map(PoolKind::servers_named).sum()
            }
            PoolKind::Subpool | PoolKind::Ended { .. } => 0,
        }
    }
}

/// A subpool: the pool of the keys with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixPool {
    /// The prefix.
    pub prefix: Vec<u8>,
    /// The prefix is removed before the servers see the keys.
    pub strip: bool,
    /// Any kind without subpools.
    pub kind: PoolKind,
    /// The servers that answer reads. The [`PoolSettings::reads`] of a pool with subpools count for
    /// none of its subpools.
    pub reads: Reads,
}

/// The settings of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// The address where the server listens.
    pub address: Address,
    /// The login of respool to the server.
    pub credentials: Option<Credentials>,
    /// The database in which a session starts.
    pub db: u32,
}

impl ServerSettings {
    /// A server without a login, with the database 0.
    pub fn at(address: Address) -> ServerSettings {
        ServerSettings {
            address,
            credentials: None,
            db: 0,
        }
    }
}

/// An address where a process listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// A host name or an IP address (IPv6 without brackets) and a port.
    Tcp {
        /// A host name or an IP address, resolved at every attempt to connect.
        host: String,
        /// The port; where respool listens, 0 asks the kernel for a free one.
        port: u16,
    },
    /// A socket in the file system.
    Unix(PathBuf),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
