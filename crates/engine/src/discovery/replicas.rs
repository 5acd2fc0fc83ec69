//! Reads from replicas: the server at which a session reads instead of the owner of a key.
//!
//! ```text
//!   GET k ─► owner of k ─► the owner's table ─► its read share ─► a replica, or the owner
//!                               ▲
//!       policy, zone, weights ──┤
//!       links, INFO every second┘
//! ```
//!
//! To the data plane a replica is one more server, which gets only reads. A process that is a
//! replica now and the owner of slots later is two servers here. So a reply in one role never
//! answers a request to the other role.
//!
//! A session keeps its read share, and as few read shares as possible move. So a session seldom
//! sees older data than it has seen. A replica has no read shares while its link is down, it is
//! silent, it loads its data or it has lost its primary. Reads that it has not answered are then
//! sent elsewhere.

use std::hash::{DefaultHasher, Hasher};

use respool_protocol::cluster::Endpoint;
use respool_protocol::encode;

use crate::base::handle::LinkId;
use crate::base::limits::REPLICAS_READ_MAX;
use crate::base::settings::{Address, ReadPolicy, Reads, ServerSettings};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::discovery::DiscoveryCompletion;
use crate::data_plane::ledger::EarlierAttempt;
use crate::data_plane::link::Link;
use crate::data_plane::reachability::SILENT_MS;
use crate::data_plane::replica_reads::SILENCE_MS_MAX;
use crate::data_plane::server::Server;
use crate::discovery::Discovery;
use crate::discovery::servers::ServersInUse;
use crate::routing::pool::ServerId;
use crate::routing::replica_table::{Candidate, choose, deal_again};

/// The time between two questions to a server, milliseconds.
const LOOK_MS: u64 = 1_000;
/// A server that has not answered the questions for this long is not read, milliseconds.
const KNOWN_MS: u64 = 3 * LOOK_MS;
/// A server that refused a read is not read for this long, milliseconds.
const REFUSED_MS: u32 = 1_000;
/// A replica that has heard nothing of its primary for longer than this, and lacks data that the
/// primary has sent, is cut off, seconds. A primary pings its replicas every 10 s
/// (`repl-ping-replica-period` in `redis.conf`; `replicationCron`), which is 11 in whole seconds.
/// The rest is for a primary that is busy. The replica itself reports its link as up until
/// `repl-timeout`, mostly 60 s.
const UNHEARD_S: u64 = 15;
/// The questions to a server.
const LOOK: [&[&str]; 2] = [&["INFO", "server"], &["INFO", "replication"]];

/// The servers of a pool that may be read: replicas, and with some policies owners.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    /// The replicas and the owners. Owners are asked, too, whether they are read or not.
    all: Vec<Reader>,
    /// When the servers were last asked.
    looked_at: Time,
}

/// A server that may be read, and the owner of its keys.
#[derive(Debug)]
struct Reader {
    server: ServerId,
    owner: ServerId,
    state: ReaderState,
}

/// The state of a server that may be read.
#[derive(Clone, Debug, Default)]
struct ReaderState {
    /// The availability zone that the server reports.
    zone: Option<String>,
    /// The smoothed time from a question to its answer, requests in front included, microseconds.
    latency_us: Option<u64>,
    /// When the question that has no answer yet was sent.
    asked_at: Option<Time>,
    /// The server's last report of its role.
    role: RoleAnswer,
    /// When it gave that report.
    role_at: Option<Time>,
    /// The hash of the id of the replication stream that the server receives or sends.
    stream: Option<u64>,
    /// The offset in that stream, bytes.
    offset: Option<u64>,
    /// The offset of the report before. Any report of another server is newer now.
    had: Option<u64>,
    /// The server has heard nothing of its primary for longer than [`UNHEARD_S`].
    hears_nothing: bool,
    /// The hash of the id of the server's process.
    process: Option<u64>,
    /// The server is not read before this time, because it refused a read.
    refused_until: Time,
    /// The server was readable when that was last reported.
    is_read: bool,
}

/// The role that a server reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RoleAnswer {
    /// Another role, none, or a replica without its primary's data.
    #[default]
    Otherwise,
    /// A replica that follows its primary.
    Follows,
    /// A replica that has lost its primary, or has become a primary.
    Followed,
}

/// A change of the known replicas of a pool.
pub(crate) struct ReplicaChange {
    /// Replicas that have left the topology.
    pub(crate) left: Vec<ServerId>,
    /// Servers that were not known, or had another owner.
    pub(crate) added: Vec<ServerId>,
}

impl Readers {
    fn of(&self, server: ServerId) -> Option<&Reader> {
        self.all.iter().find(|reader| reader.server == server)
    }

    fn of_mut(&mut self, server: ServerId) -> Option<&mut ReaderState> {
        let reader = self.all.iter_mut().find(|reader| reader.server == server);
        reader.map(|reader| &mut reader.state)
    }

    /// The replicas that have not reported their role yet, each with its owner.
    fn unheard(&self) -> Vec<(ServerId, ServerId)> {
        let is_unheard =
            |reader: &&Reader| reader.server != reader.owner && reader.state.role_at.is_none();
        let unheard = self.all.iter().filter(is_unheard);
        unheard
            .map(|reader| (reader.server, reader.owner))
            .collect()
    }
}

/// How long a server with replicas may be silent before its reads are sent elsewhere, milliseconds.
fn silence_ms_max(plane: &DataPlane) -> u64 {
    match plane.settings.timeouts.request_ms {
        0 => SILENCE_MS_MAX,
        limit_ms => (u64::from(limit_ms) / 3).clamp(SILENT_MS, SILENCE_MS_MAX),
    }
}

impl ReaderState {
    /// Takes the fields of the replication stream from INFO.
    fn note_stream(&mut self, how: &[u8]) {
        let number = |name| field(how, name).and_then(|number| number.parse::<u64>().ok());
        self.stream = field(how, "master_replid").map(hash);
        self.had = self.offset;
        // The `master_repl_offset` of a replica may count the stream that it sends itself.
        self.offset = number("slave_repl_offset").or_else(|| number("master_repl_offset"));
        let unheard_s = number("master_last_io_seconds_ago").unwrap_or_default();
        self.hears_nothing = unheard_s > UNHEARD_S;
    }

    /// Whether this replica has heard nothing for long, and lacks data that its primary reported
    /// before.
    fn lacks_data_of(&self, primary: &ReaderState) -> bool {
        let is_behind = primary.had > self.offset || primary.stream != self.stream;
        self.hears_nothing && primary.had.is_some() && is_behind
    }
}

impl RoleAnswer {
    /// The role after the next answer. `how`: the replication section of INFO.
    fn then(self, how: &[u8]) -> RoleAnswer {
        let shows = |name, value| field(how, name) == Some(value);
        // -1: it never had a primary.
        let never = shows("master_link_down_since_seconds", "-1");
        if shows("role", "master") && self != RoleAnswer::Otherwise {
            RoleAnswer::Followed
        } else if !shows("role", "slave") || shows("master_sync_in_progress", "1") {
            RoleAnswer::Otherwise
        } else if shows("master_link_status", "up") {
            RoleAnswer::Follows
        } else if shows("master_link_status", "down") && !never {
            RoleAnswer::Followed
        } else {
            RoleAnswer::Otherwise
        }
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    hasher.finish()
}

/// The value of a field of INFO.
fn field<'a>(reply: &'a [u8], name: &str) -> Option<&'a str> {
    let mut lines = reply.split(|byte| *byte == b'\n');
    let value = lines.find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b":"))?;
    std::str::from_utf8(value.trim_ascii_end()).ok()
}

impl Discovery {
    /// Whether an owner of a pool has no known replica.
    pub(crate) fn lacks_replica(&self, pool: usize, owner: ServerId) -> bool {
        let mut all = self
            .readers
            .get(&pool)
            .into_iter()
            .flat_map(|readers| &readers.all);
        !all.any(|reader| reader.owner == owner && reader.server != owner)
    }

    /// Whether a server may be read.
    pub(crate) fn may_read_at(&self, server: ServerId) -> bool {
        self.readers
            .values()
            .any(|readers| readers.of(server).is_some())
    }

    /// The fields in INFO for a server that may be read.
    pub(crate) fn shown_reader(&self, plane: &DataPlane, server: ServerId) -> Option<String> {
        let state = plane.server(server);
        let pool = usize::from(state.pool);
        let table = plane.pools[pool].readers.as_ref()?;
        let is_read = |reader: &&Reader| reader.server != reader.owner || table.reads_owners();
        let reader = self.readers.get(&pool)?.of(server).filter(is_read)?;
        let zone = table.settings.zone_of(&state.settings.address);
        let zone = zone.or(reader.state.zone.as_deref()).unwrap_or_default();
        let latency_us = reader.state.latency_us.map_or(-1, |us| us as i64);
        let shares = table.read_share_count(server);
        Some(format!(
            "zone={zone},latency_us={latency_us},read_shares={shares},seats={shares}"
        ))
    }

    /// The smoothed round trip to a server at which keys are read, microseconds.
    pub(super) fn latency_us_of(&self, plane: &DataPlane, server: ServerId) -> Option<u64> {
        let pool = usize::from(plane.server(server).pool);
        let reader = self.readers.get(&pool)?.of(server)?;
        reader.state.latency_us
    }

    /// Sets the replicas of the owners of a pool for which `of` holds. `replicas`: their addresses
    /// and owners.
    pub(super) fn know_replicas(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        replicas: Vec<(Endpoint, ServerId)>,
        of: impl Fn(ServerId) -> bool,
        in_use: &ServersInUse,
    ) {
        if plane.pools[pool].readers.is_none() {
            return;
        }
        let mut known: Vec<(ServerId, ServerId)> = Vec::new();
        for (endpoint, owner) in replicas {
            let so_far = known.iter().filter(|(_, of)| *of == owner).count();
            if so_far < REPLICAS_READ_MAX
                && let Some(server) = self.replica_at(plane, pool, (&endpoint, owner), in_use)
            {
                known.push((server, owner));
            }
        }
        let change = self.set_replicas(plane, pool, known, of);
        for server in change.left {
            // The replica has left the topology: sessions leave its links.
            plane.servers[usize::from(server.0)].gone = true;
            plane.switch_attached_to_default(server);
        }
        self.meet_replicas(plane, pool, change.added);
    }

    /// The replica at this address; a new one, if there is none. `None` at
    /// [`SERVERS_MAX`](crate::base::limits::SERVERS_MAX).
    fn replica_at(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        (at, of): (&Endpoint, ServerId),
        in_use: &ServersInUse,
    ) -> Option<ServerId> {
        let address = Address::Tcp {
            host: at.host.clone(),
            port: at.port,
        };
        let known = self.known_replica(plane, pool, &address, of);
        if known.is_some() {
            return known;
        }
        let settings = ServerSettings {
            address,
            ..plane.server(of).settings.clone()
        };
        let mut server = Server::new(pool as u16, &settings);
        server.replica_of = Some(of);
        self.add_server(plane, server, in_use)
    }

    /// Sets the replicas of the owners of a pool for which `of` holds. `known`: each with its
    /// owner. [`Discovery::meet_replicas`] has to follow.
    fn set_replicas(
        &mut self,
        plane: &DataPlane,
        pool: usize,
        mut known: Vec<(ServerId, ServerId)>,
        of: impl Fn(ServerId) -> bool,
    ) -> ReplicaChange {
        let owners: Vec<ServerId> = plane.pools[pool].servers().to_vec();
        let readers = self.readers.entry(pool).or_default();
        // Owners are asked, too, though not every policy reads them.
        let polled = owners.iter().filter(|owner| of(**owner));
        known.extend(polled.map(|owner| (*owner, *owner)));
        let leaves = |reader: &mut Reader| {
            (of(reader.owner) || !owners.contains(&reader.owner))
                && !known.contains(&(reader.server, reader.owner))
        };
        let left: Vec<Reader> = readers.all.extract_if(.., leaves).collect();
        let mut added = Vec::new();
        for (server, owner) in known {
            if readers.of(server).is_none() {
                // A server that was known may only have another owner now.
                let same = left.iter().find(|reader| reader.server == server);
                let state = same.map(|reader| reader.state.clone()).unwrap_or_default();
                readers.all.push(Reader {
                    server,
                    owner,
                    state,
                });
                added.push(server);
            }
        }
        let is_left =
            |reader: &Reader| !added.contains(&reader.server) && reader.server != reader.owner;
        let left = left.into_iter().filter(is_left);
        ReplicaChange {
            left: left.map(|reader| reader.server).collect(),
            added,
        }
    }

    /// Begins to read from replicas that have become known.
    fn meet_replicas(&mut self, plane: &mut DataPlane, pool: usize, added: Vec<ServerId>) {
        self.note_unheard(plane, pool);
        for server in added {
            self.reach(plane, server);
            self.look_at(plane, server);
        }
        self.rebalance_replicas(plane, pool);
    }

    /// The known replica at this address, from now on a replica of `of`.
    fn known_replica(
        &self,
        plane: &mut DataPlane,
        pool: usize,
        address: &Address,
        of: ServerId,
    ) -> Option<ServerId> {
        let is_it = |server: &Server| {
            usize::from(server.pool) == pool
                && server.replica_of.is_some()
                && server.settings.address == *address
        };
        let index = plane.servers.iter().position(is_it)?;
        plane.servers[index].replica_of = Some(of);
        // The entry is in use again, so no other server gets it.
        plane.servers[index].gone = false;
        Some(ServerId(index as u16))
    }

    /// Asks the servers for their role, and divides the read shares anew.
    pub(crate) fn tick_readers(&mut self, plane: &mut DataPlane) {
        for pool in 0..plane.pools.len() {
            if plane.pools[pool].readers.is_none() {
                continue;
            }
            let readers = self.readers.entry(pool).or_default();
            if plane.now.since_ms(readers.looked_at) >= LOOK_MS {
                readers.looked_at = plane.now;
                let servers: Vec<ServerId> =
                    readers.all.iter().map(|reader| reader.server).collect();
                for server in servers {
                    self.look_at(plane, server);
                }
            }
            self.rebalance_replicas(plane, pool);
            self.wake_at_rest(plane, pool);
        }
    }

    /// The links of replicas that owe replies and send none. Their reads are to be sent elsewhere.
    pub(crate) fn silent_replicas(&self, plane: &DataPlane) -> Vec<LinkId> {
        let silence_ms_max = silence_ms_max(plane);
        let is_silent = |link: &Link| {
            plane.server(link.kind.server).replica_of.is_some()
                && plane.is_silent(link, silence_ms_max)
                // A read that was lost on one link before takes long everywhere, so it ends here.
                && link.ledger.front().is_none_or(|entry| entry.earlier_attempt() != EarlierAttempt::Lost)
        };
        let silent = plane.links.iter().filter(|(_, link)| is_silent(link));
        silent.map(|(id, _)| id).collect()
    }

    /// The silent links in pools with replicas. Replicas may answer their reads.
    pub(crate) fn silent_readers(&self, plane: &DataPlane) -> Vec<LinkId> {
        let silence_ms_max = silence_ms_max(plane);
        let owes_reads = |link: &Link| {
            let pool = plane.pool_of(link.kind.server);
            pool.readers.is_some() && plane.is_silent(link, silence_ms_max)
        };
        let silent = plane.links.iter().filter(|(_, link)| owes_reads(link));
        silent.map(|(id, _)| id).collect()
    }

    /// Writes to the replica table which replicas have not reported their role yet.
    fn note_unheard(&self, plane: &mut DataPlane, pool: usize) {
        if let Some(table) = &mut plane.pools[pool].readers
            && let Some(readers) = self.readers.get(&pool)
        {
            table.set_unheard(readers.unheard());
        }
    }

    /// Asks a server for its role, unless it still owes an answer.
    pub(crate) fn look_at(&mut self, plane: &mut DataPlane, server: ServerId) {
        let pool = usize::from(plane.server(server).pool);
        let now = plane.now;
        // The ACL of another user may forbid INFO.
        let first = plane.first_link_to(server);
        let is_up = |link: &LinkId| plane.links.get(*link).is_some_and(Link::is_up);
        let link = first.filter(is_up);
        let Some((link, readers)) = link.zip(self.readers.get_mut(&pool)) else {
            return;
        };
        let Some(state) = readers.of_mut(server) else {
            return;
        };
        let owes = |since| now.since_ms(since) < KNOWN_MS;
        if state.asked_at.is_some_and(owes) {
            return;
        }
        state.asked_at = Some(now);
        let mut bytes = Vec::new();
        for request in LOOK {
            encode::request(&mut bytes, request);
        }
        plane.put_ours(
            link,
            &bytes,
            Completion::Discovery(DiscoveryCompletion::Look { first: None }),
        );
    }

    /// The connection to a server is lost. Another process may answer there next, or one without
    /// its keys. So the server is not read before it has reported its role again.
    pub(crate) fn forget_look(&mut self, plane: &mut DataPlane, link: LinkId) {
        let Some(server) = plane.links.get(link).map(|link| link.kind.server) else {
            return;
        };
        let is_first = plane.first_link_to(server) == Some(link);
        let pool = usize::from(plane.server(server).pool);
        if let Some(readers) = self.readers.get_mut(&pool).filter(|_| is_first)
            && let Some(state) = readers.of_mut(server)
        {
            (state.asked_at, state.role_at) = (None, None);
            self.note_unheard(plane, pool);
        }
    }

    /// The state of a replica's primary.
    fn state_of_owner(&self, plane: &DataPlane, reader: &Reader) -> Option<&ReaderState> {
        let pool = usize::from(plane.server(reader.server).pool);
        let readers = self.readers.get(&pool)?;
        readers.of(reader.owner).map(|owner| &owner.state)
    }

    /// A server as a candidate for read shares. `None`: its weight is 0.
    fn candidate(&self, plane: &DataPlane, reader: &Reader, settings: &Reads) -> Option<Candidate> {
        let state = &reader.state;
        let address = &plane.server(reader.server).settings.address;
        let weight = settings.weight_of(address);
        (weight > 0).then(|| Candidate {
            server: reader.server,
            zone: settings
                .zone_of(address)
                .or(state.zone.as_deref())
                .map(str::to_owned),
            weight,
            latency_us: state.latency_us.unwrap_or_default(),
        })
    }

    /// A server has answered the questions. `server_info` and `how` are its answers, in the order
    /// of `LOOK`.
    pub(crate) fn take_look(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        server_info: &[u8],
        how: &[u8],
    ) {
        let Some(server) = plane.links.get(link).map(|link| link.kind.server) else {
            return;
        };
        let now = plane.now;
        let is_replica = plane.server(server).replica_of.is_some();
        let pool = usize::from(plane.server(server).pool);
        let readers = self.readers.get_mut(&pool);
        let Some(state) = readers.and_then(|readers| readers.of_mut(server)) else {
            return;
        };
        let Some(asked_at) = state.asked_at.take() else {
            return;
        };
        let before = (state.role_at, state.role, state.zone.take());
        let took_us = now.since_us(asked_at);
        state.latency_us = Some(match state.latency_us {
            Some(before) => (3 * before + took_us) / 4,
            None => took_us,
        });
        let zone = field(server_info, "availability_zone").filter(|zone| !zone.is_empty());
        state.zone = zone.map(str::to_owned);
        state.role_at = Some(now);
        let process = field(server_info, "run_id").map(hash);
        if state.process.is_some() && state.process != process {
            // The process is another one, and may lack the keys.
            state.role = RoleAnswer::Otherwise;
        }
        state.process = process;
        state.note_stream(how);
        state.role = match is_replica {
            true => state.role.then(how),
            // An owner proves by its replies that it is alive.
            false => RoleAnswer::Follows,
        };
        let is_same = before.0.is_some_and(|at| now.since_ms(at) < KNOWN_MS)
            && (before.1, &before.2) == (state.role, &state.zone);
        if before.0.is_none() {
            self.note_unheard(plane, pool);
        }
        // A change of round trips may wait for the next tick.
        if !is_same {
            self.rebalance_replicas(plane, pool);
            // Sessions that have waited for a replica read there now.
            self.wake_at_rest(plane, pool);
        }
    }

    /// A replica has refused a read: it is not read for a while.
    pub(crate) fn note_refused_read(&mut self, plane: &mut DataPlane, server: ServerId) {
        let pool = usize::from(plane.server(server).pool);
        let (now, until) = (plane.now, plane.now.plus_ms(REFUSED_MS));
        let readers = self.readers.get_mut(&pool);
        let Some(state) = readers.and_then(|readers| readers.of_mut(server)) else {
            return;
        };
        // Of many refusals at once, the first takes the read shares.
        let has_read_shares = state.refused_until <= now;
        state.refused_until = until;
        if has_read_shares {
            self.rebalance_replicas(plane, pool);
        }
    }

    /// Divides the read shares of a pool anew, because the readable servers may have changed.
    pub(crate) fn rebalance_replicas(&mut self, plane: &mut DataPlane, pool: usize) {
        let table = plane.pools[pool].readers.as_ref();
        let Some((table, readers)) = table.zip(self.readers.get(&pool)) else {
            return;
        };
        let settings = &table.settings;
        let reads_owners = table.reads_owners();
        let (mut tables, mut count) = (vec![None; plane.servers.len()], 0);
        for owner in plane.pools[pool].servers() {
            let allowed = readers.all.iter().filter(|reader| reader.owner == *owner);
            let allowed = allowed.filter(|reader| reader.server != *owner || reads_owners);
            let candidates = allowed
                .filter(|reader| self.why_unread(plane, reader).is_none())
                .filter_map(|reader| self.candidate(plane, reader, settings));
            let before = table.read_shares_of(*owner);
            let chosen = choose(candidates.collect(), settings, before);
            count += chosen.len().max(1);
            let shares = match settings.policy {
                ReadPolicy::PreferPrimary if !plane.is_lost(*owner) => None,
                _ => deal_again(&chosen, before),
            };
            tables[usize::from(owner.0)] = shares;
        }
        if let Some(table) = &mut plane.pools[pool].readers {
            table.set_read_shares(tables, count);
        }
        self.report_readers(plane, pool);
    }

    /// The reason why a server cannot be read now; `None` if it can.
    fn why_unread(&self, plane: &DataPlane, reader: &Reader) -> Option<&'static str> {
        let is_known = |at: Option<Time>| at.is_some_and(|at| plane.now.since_ms(at) < KNOWN_MS);
        if !plane.first_link_is(reader.server, Link::is_up) {
            Some("there is no connection")
        } else if !plane.brings_replies(reader.server) && self.has_other(plane, reader) {
            Some("it owes replies and sends nothing")
        } else if plane.now < reader.state.refused_until {
            Some("it has refused a read")
        } else {
            match reader.state.role {
                _ if !is_known(reader.state.role_at) => Some("it does not say how it is"),
                RoleAnswer::Otherwise => Some("it does not report that it follows its primary"),
                // While the primary is away, no server has newer data.
                RoleAnswer::Followed if !plane.is_lost(reader.owner) => {
                    Some("it has lost its primary")
                }
                RoleAnswer::Follows if self.follows_another(plane, reader) => {
                    Some("it follows another primary")
                }
                RoleAnswer::Follows if self.is_cut_off(plane, reader) => {
                    Some("it hears nothing of its primary, which has more")
                }
                RoleAnswer::Followed | RoleAnswer::Follows => None,
            }
        }
    }

    /// Whether another server may answer the reads of this one. Otherwise it is better to wait.
    fn has_other(&self, plane: &DataPlane, reader: &Reader) -> bool {
        let pool = usize::from(plane.server(reader.server).pool);
        let mut all = self
            .readers
            .get(&pool)
            .into_iter()
            .flat_map(|readers| &readers.all);
        let is_other =
            |other: &Reader| other.owner == reader.owner && other.server != reader.server;
        let owner_may = plane.may_be_read(reader.owner) && !plane.is_lost(reader.owner);
        owner_may
            || all.any(|other| {
                is_other(other)
                    && other.server != reader.owner
                    && plane.brings_replies(other.server)
            })
    }

    /// Whether a replica follows another primary than the one that the Sentinels name. A replica in
    /// a Cluster answers with MOVED itself.
    fn follows_another(&self, plane: &DataPlane, reader: &Reader) -> bool {
        let stream = self
            .state_of_owner(plane, reader)
            .and_then(|owner| owner.stream);
        plane.pool_of(reader.server).watched.is_some()
            && stream.is_some()
            && stream != reader.state.stream
            && !plane.is_lost(reader.owner)
    }

    /// Whether a replica does not get its primary's stream, though it reports its link as up.
    fn is_cut_off(&self, plane: &DataPlane, reader: &Reader) -> bool {
        let owner = self.state_of_owner(plane, reader);
        owner.is_some_and(|owner| reader.state.lacks_data_of(owner)) && !plane.is_lost(reader.owner)
    }

    /// Reports the replicas that begin or cease to be read. Owners are not reported.
    fn report_readers(&mut self, plane: &mut DataPlane, pool: usize) {
        let Some(readers) = self.readers.get(&pool) else {
            return;
        };
        let is_new = |(_, reader, why): &(usize, &Reader, Option<_>)| {
            reader.server != reader.owner && reader.state.is_read == why.is_some()
        };
        let all = readers.all.iter().enumerate();
        let changed = all.map(|(index, reader)| (index, reader, self.why_unread(plane, reader)));
        let changed: Vec<(usize, String)> = changed
            .filter(is_new)
            .map(|(index, reader, why)| {
                let label = &plane.server(reader.server).label;
                let text = match why {
                    None => format!("the replica {label} is read"),
                    Some(why) => format!("the replica {label} is not read: {why}"),
                };
                (index, text)
            })
            .collect();
        for (index, text) in changed {
            if let Some(readers) = self.readers.get_mut(&pool) {
                let state = &mut readers.all[index].state;
                state.is_read = !state.is_read;
            }
            self.report_topology(plane, pool, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_info_are_found() {
        let info = b"$60\r\n# Replication\r\nrole:slave\r\nmaster_link_status:up\r\n\r\n";
        assert_eq!(field(info, "role"), Some("slave"));
        assert_eq!(field(info, "master_link_status"), Some("up"));
        assert_eq!(field(info, "master_link"), None);
        assert_eq!(RoleAnswer::Otherwise.then(info), RoleAnswer::Follows);
        // The primary is gone, and the replica has taken over.
        assert_eq!(
            RoleAnswer::Follows.then(b"role:master\r\n"),
            RoleAnswer::Followed
        );
        for (info, role) in [
            (
                &b"role:slave\r\nmaster_link_status:down\r\nmaster_link_down_since_seconds:3\r\n"[..],
                RoleAnswer::Followed,
            ),
            (
                b"role:slave\r\nmaster_link_status:down\r\nmaster_link_down_since_seconds:-1\r\n",
                RoleAnswer::Otherwise,
            ),
            (
                b"role:slave\r\nmaster_link_status:up\r\nmaster_sync_in_progress:1\r\n",
                RoleAnswer::Otherwise,
            ),
            (b"role:master\r\n", RoleAnswer::Otherwise),
            (b"-NOPERM no", RoleAnswer::Otherwise),
        ] {
            assert_eq!(
                RoleAnswer::Otherwise.then(info),
                role,
                "{}",
                info.escape_ascii()
            );
        }
    }

    #[test]
    fn silent_replica_with_less_than_its_primary_is_cut_off() {
        // The answers to two questions in a row: the primary's first answer counts.
        let answer = |how: &str| {
            let mut state = ReaderState::default();
            state.note_stream(how.as_bytes());
            state.note_stream(&how.replace("offset:100", "offset:120").into_bytes());
            state
        };
        let primary = |offset: &str| answer(&format!("master_replid:a\r\n{offset}"));
        let replica = |heard: &str, stream: &str, offset: u64| {
            answer(&format!(
                "{heard}slave_repl_offset:{offset}\r\nmaster_replid:{stream}\r\nmaster_repl_offset:7\r\n"
            ))
        };
        let heard = |ago: &str| format!("master_last_io_seconds_ago:{ago}\r\n");
        let at_100 = "master_repl_offset:100\r\n";
        for (ago, stream, offset, primary_says, is_cut_off) in [
            (heard("16"), "a", 99, at_100, true),
            (heard("16"), "b", 100, at_100, true),
            (heard("16"), "a", 100, at_100, false),
            // The replica was asked later than its primary.
            (heard("16"), "a", 101, at_100, false),
            (heard("15"), "a", 99, at_100, false),
            (heard("-1"), "a", 99, at_100, false),
            (String::new(), "a", 99, at_100, false),
            (heard("16"), "a", 99, "", false),
        ] {
            let replica = replica(&ago, stream, offset);
            assert_eq!(
                replica.lacks_data_of(&primary(primary_says)),
                is_cut_off,
                "{ago:?} {stream} {offset} {primary_says:?}"
            );
        }
    }
}
