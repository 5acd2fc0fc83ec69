//! What an engine is told before it starts. Plain data: reading it does nothing.

use std::collections::HashSet;
use std::path::PathBuf;

use respool_protocol::commands::CommandId;
use respool_protocol::hashing::Placement;

use crate::address_map::AddressMap;
use crate::limits::Limits;

/// Everything one worker's engine needs to know. All workers of a process get the same one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Named bounds.
    pub limits: Limits,
    /// Deadlines.
    pub timeouts: Timeouts,
    /// When a link's open batch leaves: at first, in every pool that has no rule of its own.
    pub flush: FlushRule,
    /// Who may connect. Empty: everybody, as with a Redis without a password.
    pub users: Vec<User>,
    /// The pools behind us; listeners name them by index.
    pub pools: Vec<PoolSettings>,
    /// What becomes of a request that needs a link of its own when there is none to be had.
    pub pinned_links_full: WhenFull,
    /// The code of the error for a request that was not executed because its server is away.
    pub away_error: AwayError,
    /// Whether subscribers of a lost link are closed.
    pub lost_subscriptions: LostSubscriptions,
    /// Commands that no client may use.
    pub refused: HashSet<CommandId>,
    /// DEBUG OBJECT passes, even if DEBUG is refused.
    pub passes_debug_object: bool,
    /// Servers are asked what they bound for a connection: `client-output-buffer-limit` and
    /// `maxmemory-clients`.
    pub asks_output_limits: bool,
}

/// What happens at a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// The session waits until there is room.
    #[default]
    Wait,
    /// It gets an error.
    Refuse,
}

/// The code of the error for a request that was not executed because its server is away. A request
/// in a pipeline has `NotSent` in any case: client libraries repeat whole pipelines for the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AwayError {
    /// `LOADING`: most plain clients that repeat a request for some error do so for this one.
    #[default]
    Loading,
    /// `TRYAGAIN`: the same for clients of a Cluster.
    TryAgain,
    /// `NOTSENT`: no client library knows it.
    NotSent,
}

impl AwayError {
    pub(crate) fn code(self) -> &'static str {
        match self {
            AwayError::Loading => "LOADING",
            AwayError::TryAgain => "TRYAGAIN",
            AwayError::NotSent => "NOTSENT",
        }
    }
}

/// What becomes of the subscribers of a link that is lost. Messages may have been missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LostSubscriptions {
    /// Their sessions are closed, as their connections would be.
    #[default]
    Close,
    /// Their channels are subscribed to again, and they are not told.
    Keep,
}

/// Deadlines, in milliseconds; 0 switches one off where its text says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From when a request is read to its reply. At it the client gets an error that says whether
    /// the request was sent; a reply that comes later is dropped. 0: no deadline. A wait for the
    /// client, for the end of CLIENT PAUSE or for replies in front that come does not count.
    pub request_ms: u32,
    /// For a connection to a server, with its handshake.
    pub connect_ms: u32,
    /// How long a link that owes replies may bring no byte at all before it is given up.
    pub link_stall_ms: u32,
    /// The first pause between two attempts to connect; it doubles, with jitter ...
    pub reconnect_min_ms: u32,
    /// ... up to this.
    pub reconnect_max_ms: u32,
    /// How long requests wait for a server that has gone away, from the loss on. 0: not at all.
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
            reconnect_max_ms: 2_000,
            outage_hold_ms: 2_000,
            session_idle_ms: 0,
            login_check_ms: 500,
            authenticate_ms: 60_000,
        }
    }
}

/// When the requests gathered for a link leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushRule {
    /// Level 2: hold the batch of a busy link until the one in flight has come back.
    /// Off: every batch leaves at the end of the turn that gathered it.
    pub hold: bool,
    /// The longest that a request waits in an open batch, microseconds.
    pub max_delay_us: u32,
    /// Level 3: GETs of a batch leave as one MGET, and SETs without options as one MSET.
    pub fuse: bool,
    /// The most keys in one of them. At it: another one.
    pub fused_keys_max: u32,
    /// Level 4: of reads in a batch that are the same, one is sent.
    pub collapse: bool,
}

impl FlushRule {
    /// The least that [`FlushRule::max_delay_us`] can be ...
    pub const MAX_DELAY_US_MIN: u32 = 1;
    /// ... and the most.
    pub const MAX_DELAY_US_MAX: u32 = 1_000_000;
    /// The least that [`FlushRule::fused_keys_max`] can be ...
    pub const FUSED_KEYS_MAX_MIN: u32 = 2;
    /// ... and the most: in so few bytes as one has at the most there is no room for more.
    pub const FUSED_KEYS_MAX_MAX: u32 = 1_000;

    /// Whether what is held may time out before it is sent: such a rule is refused.
    pub fn outwaits(&self, timeouts: &Timeouts) -> bool {
        let request_us = u64::from(timeouts.request_ms) * 1_000;
        self.hold && request_us != 0 && u64::from(self.max_delay_us) >= request_us
    }
}

impl Default for FlushRule {
    fn default() -> Self {
        FlushRule {
            hold: true,
            max_delay_us: 200,
            fuse: true,
            fused_keys_max: 128,
            collapse: true,
        }
    }
}

/// Somebody who may connect to us.
#[derive(Clone, PartialEq, Eq)]
pub struct User {
    /// `default` is who `AUTH password` means.
    pub name: String,
    /// Clear text.
    pub password: String,
    /// Where the password comes from, if it may change.
    pub source: Option<PasswordSource>,
}

/// A source of passwords, such as a file, by a number that the owner of the settings gives. The
/// engine reads no file: it names the source when a server refuses a password from it, and is told
/// a new one by `Engine::handle_password`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PasswordSource(pub u16);

/// Who we are to a server.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// `None`: the server's default user.
    pub user: Option<String>,
    /// Clear text.
    pub password: String,
    /// Where the password comes from, if it may change.
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

/// One logical Redis behind us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSettings {
    /// As logs and metrics call it.
    pub name: String,
    /// Which servers it has and which of them owns which keys.
    pub kind: PoolKind,
    /// Where its keys are read.
    pub reads: Reads,
    /// When a link's open batch leaves: at first, instead of [`Settings::flush`].
    pub flush: Option<FlushRule>,
    /// Where clients reach it, as those are told that speak to a Cluster; `None`: where they have
    /// reached it.
    pub announce: Option<Announced>,
    /// How a Cluster shows itself to clients.
    pub shows: Shows,
    /// Where servers are reached that its nodes or Sentinels name.
    pub address_map: AddressMap,
}

/// How a Cluster behind us shows itself to clients, in INFO, HELLO and CLUSTER alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shows {
    /// As a Cluster of one node, which owns all slots.
    #[default]
    Node,
    /// As a server without Cluster support.
    Server,
}

/// Where clients reach us, where ports or addresses are mapped in front of us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// A host name or an IP address (IPv6 without brackets).
    pub host: String,
    /// `None`: the port where they have reached us.
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

/// Where keys are read that a primary with replicas owns. Without replicas, as with
/// [`PoolKind::Single`], it must say nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reads {
    /// At whom.
    pub policy: ReadPolicy,
    /// The zone that we are in: whoever is in it, too, comes before all others.
    pub zone: Option<String>,
    /// Zones by how the hosts of servers begin; the longest counts, and before what a server says
    /// itself.
    pub zones: Vec<(String, String)>,
    /// The part of the reads that servers get in comparison with others. 0: none; not named: 1.
    pub weights: Vec<(Address, u32)>,
    /// How long a session that reads its own writes (it has said READWRITE) reads at primaries
    /// after it has written something, milliseconds. 0: always.
    pub own_writes_ms: u32,
    /// All sessions begin so, and not only those do that say it.
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

/// At whom is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadPolicy {
    /// The primary alone.
    #[default]
    Primary,
    /// The primary; while it is not there, a replica.
    PreferPrimary,
    /// A replica; if there is none, it is an error.
    Replica,
    /// A replica; if there is none, the primary.
    PreferReplica,
    /// Whoever answers soonest, be it a replica or the primary.
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
        let its = named.find(|(its, _)| its == address);
        its.map_or(1, |(_, weight)| *weight)
    }
}

/// The kinds of pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// One server owns every key.
    Single(ServerSettings),
    /// Primaries that Sentinels watch: one alone, or several among which keys are divided as among
    /// [`PoolKind::Sharded`].
    Watched {
        /// Sentinels to be asked first; they know the others. Who we are to the first of them holds
        /// for all.
        sentinels: Vec<ServerSettings>,
        /// What the Sentinels call the primaries, at least one.
        primaries: Vec<String>,
        /// How to reach any of those, but for its address.
        template: ServerSettings,
        /// Which of several owns a key.
        placement: Option<Placement>,
    },
    /// A Redis or Valkey Cluster: its nodes say which of them owns which keys.
    Cluster {
        /// Nodes to be asked first; from the answers come all others. Who we are to the first of
        /// them, and its database, hold for every node.
        seeds: Vec<ServerSettings>,
    },
    /// Plain servers that do not know of each other; which of them owns a key is said by its hash.
    Sharded {
        /// In the order from which the placement was made.
        shards: Vec<ServerSettings>,
        /// Which of them owns a key.
        placement: Placement,
    },
    /// Several of the others; in which of them a key is, is said by how it begins.
    ByPrefix {
        /// Of all that fit a key the longest counts. The first one is for all other keys, whatever
        /// its prefix.
        parts: Vec<Part>,
    },
}

/// Where the keys are that begin in one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// How they begin.
    pub prefix: Vec<u8>,
    /// Its servers see them without that.
    pub strip: bool,
    /// Any kind that has no parts itself.
    pub kind: PoolKind,
    /// Where its keys are read, as [`PoolSettings::reads`]; what that says of a pool with parts
    /// counts for none.
    pub reads: Reads,
}

/// How to reach one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// Where it listens.
    pub address: Address,
    /// Who we are to it.
    pub credentials: Option<Credentials>,
    /// The database a session starts in.
    pub db: u32,
}

/// Where a process listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// A host name or an IP address (IPv6 without brackets) and a port.
    Tcp {
        /// Resolved at every attempt to connect.
        host: String,
        /// 0 asks the kernel for a free one, where we listen.
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
