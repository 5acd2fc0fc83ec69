//! The servers behind respool, and which of them owns a key.

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use respool_protocol::cluster::Endpoint;
use respool_protocol::fan::Cursor;
use respool_protocol::hashing::Placement;
use respool_protocol::sentinel::SENTINELS_MAX;
use respool_protocol::slot::hash_slot;

use crate::base::address_map::AddressMap;
use crate::base::arrivals::{ArrivalSlot, ArrivalWheel};
use crate::base::settings::{
    Address, FlushRule, PoolKind, PoolSettings, PrefixPool, Reads, ServerSettings,
};
use crate::base::time::Time;
use crate::routing::replica_table::ReplicaTable;
use crate::routing::slot_table::SlotTable;

/// A server's index in the engine's table of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ServerId(pub(crate) u16);

/// A server of a pool at the start, as the configuration names it.
#[derive(Debug)]
pub(crate) struct ConfiguredServer {
    pub(crate) settings: ServerSettings,
    /// The server's address in errors and logs. For a primary that Sentinels name: its name.
    pub(crate) label: String,
    /// The index of its pool; if that has subpools, of its subpool.
    pub(crate) pool: u16,
    /// Whether its address is unknown until a Sentinel names it.
    pub(crate) unknown: bool,
}

/// The pools by their indices, which are the places of [`PoolPlaces`](crate::PoolPlaces).
#[derive(Debug)]
pub(crate) struct Pools(Vec<Pool>);

/// One logical Redis, or a subpool of one. No client connects to a subpool.
#[derive(Debug)]
pub(crate) struct Pool {
    /// The index of this pool.
    pub(crate) index: u16,
    /// The index of the pool that clients connect to: this pool, or its parent if it is a subpool.
    pub(crate) parent: u16,
    pub(crate) topology: Topology,
    /// The prefix that is removed from keys before the servers see them. Empty: nothing is removed.
    pub(crate) removed_prefix: Box<[u8]>,
    /// The numbers of its servers in SCAN cursors.
    numbers: Range<u16>,
    /// The primaries of which Sentinels know the addresses.
    pub(crate) watched: Option<Box<WatchedPrimaries>>,
    /// The servers at which keys are read, if owners are not the only ones.
    pub(crate) readers: Option<Box<ReplicaTable>>,
    /// When batches for its servers leave, and which requests are joined.
    pub(crate) flush: FlushRule,
    /// The longest wait of a balanced flush rule before one of its servers, those of its subpools
    /// included, microseconds.
    pub(crate) longest_wait_us: u32,
    /// For a pool of several servers: the sessions that are expected to send again.
    pub(crate) arrivals: Option<Box<ArrivalWheel>>,
    /// The map to reachable addresses of those that nodes and Sentinels name.
    pub(crate) address_map: Arc<AddressMap>,
    /// Whether respool reaches the servers over TLS.
    pub(crate) tls: bool,
}

/// The primaries of a pool that have Sentinels, as they are configured.
#[derive(Debug)]
pub(crate) struct WatchedPrimaries {
    /// The configured Sentinels, each once: at least one, and at most [`SENTINELS_MAX`].
    pub(crate) sentinels: Vec<Endpoint>,
    /// The settings of any Sentinel, without its address.
    pub(crate) template: ServerSettings,
    /// The names of the primaries, and the servers that stand for them.
    pub(crate) primaries: Vec<(String, ServerId)>,
}

impl WatchedPrimaries {
    /// `None`: there are no Sentinels, or too many.
    fn new(
        sentinels: &[ServerSettings],
        primaries: Vec<(String, ServerId)>,
    ) -> Option<WatchedPrimaries> {
        let endpoint = |settings: &ServerSettings| endpoint_of(&settings.address);
        Some(WatchedPrimaries {
            sentinels: each_once(sentinels.iter().filter_map(endpoint))?,
            template: sentinels.first()?.clone(),
            primaries,
        })
    }
}

/// The Sentinels at these addresses, each once. `None`: there are none, or too many.
fn each_once(all: impl Iterator<Item = Endpoint>) -> Option<Vec<Endpoint>> {
    let mut unique: Vec<Endpoint> = Vec::new();
    for endpoint in all {
        if !unique.contains(&endpoint) {
            unique.push(endpoint);
        }
    }
    (1..=SENTINELS_MAX)
        .contains(&unique.len())
        .then_some(unique)
}

pub(crate) fn endpoint_of(address: &Address) -> Option<Endpoint> {
    match address {
        Address::Tcp { host, port } => Some(Endpoint {
            host: host.clone(),
            port: *port,
        }),
        Address::Unix(_) => None,
    }
}

/// Which server owns which keys, at this moment. All routing asks this table.
#[derive(Debug)]
pub(crate) enum Topology {
    /// One server owns every key.
    Single(ServerId),
    /// Each key's owner follows from its hash.
    Sharded {
        placement: Placement,
        servers: Box<[ServerId]>,
    },
    /// The prefix of a key says which subpool knows its owner.
    ByPrefix {
        prefixes: Prefixes,
        /// The indices of the subpools. None of them has subpools.
        subpools: Box<[u16]>,
        /// The servers of all subpools.
        servers: Vec<ServerId>,
    },
    /// The servers say themselves which of them owns which slots.
    Cluster(Box<SlotTable>),
}

/// Keys of one group may be named together in one command: on a Cluster the keys of a slot,
/// elsewhere the keys of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Group {
    /// The index of the pool or subpool that knows the owner.
    pub(crate) pool: u16,
    /// The slot or the server in that pool.
    pub(crate) number: u16,
}

impl Pools {
    /// Makes the pools, and lists their servers by [`ServerId`].
    pub(crate) fn build(
        settings: &[PoolSettings],
        flush: &FlushRule,
    ) -> (Pools, Vec<ConfiguredServer>) {
        let mut pools = Pools(Vec::new());
        let servers = pools.append(settings, flush, 0);
        (pools, servers)
    }

    /// Adds pools, and lists their servers, which follow the `known` ones. First come the pools
    /// that listeners lead to, in the order of their settings, then their subpools.
    pub(crate) fn append(
        &mut self,
        settings: &[PoolSettings],
        flush: &FlushRule,
        known: usize,
    ) -> Vec<ConfiguredServer> {
        let mut servers = AddedServers {
            known,
            list: Vec::new(),
        };
        let first = self.len();
        let settings: Vec<&PoolSettings> =
            settings.iter().filter(|pool| pool.is_in_use()).collect();
        let (mut pools, mut behind) = (Vec::new(), Vec::new());
        for (index, pool) in settings.iter().enumerate() {
            let parent = (first + index) as u16;
            let flush = pool.flush.as_ref().unwrap_or(flush);
            pools.push(match &pool.kind {
                PoolKind::ByPrefix { subpools } => {
                    let first = first + settings.len() + behind.len();
                    let indices = (first..first + subpools.len()).map(|index| index as u16);
                    let indices: Box<[u16]> = indices.collect();
                    let of = (parent, *pool, flush);
                    behind.extend(Pool::build_subpools(of, subpools, &indices, &mut servers));
                    Pool::with_subpools(of, subpools, indices)
                }
                kind => {
                    let (of, reads) = ((parent, parent), &pool.reads);
                    Pool {
                        address_map: Arc::new(pool.address_map.clone()),
                        tls: pool.tls,
                        ..Pool::build(of, kind, reads, flush, 0..u16::MAX, &mut servers)
                    }
                }
            });
        }
        let parents = first..first + pools.len();
        self.0.append(&mut pools);
        self.0.append(&mut behind);
        for index in parents {
            self.list_servers(index);
            self[index].expect_anew();
        }
        for pool in self.iter().skip(first) {
            // Until a Sentinel names its address.
            if pool.watched.is_some() {
                for server in pool.servers() {
                    servers.get_mut(*server).unknown = true;
                }
            }
        }
        servers.list
    }

    /// Forgets the topology of a pool that has ended, and of its subpools. No session uses it any
    /// more. Each keeps its first server, so that it stays a pool.
    pub(crate) fn forget(&mut self, pool: usize) {
        for index in self
            .subpools_of(pool)
            .to_vec()
            .into_iter()
            .chain([pool as u16])
        {
            let first = self.default_server_of(usize::from(index));
            let ended = &mut self[usize::from(index)];
            ended.topology = Topology::Single(first);
            ended.watched = None;
            ended.readers = None;
            ended.arrivals = None;
        }
    }

    /// The indices of a pool's subpools; the pool's own index if it has none.
    pub(crate) fn subpools_of(&self, pool: usize) -> &[u16] {
        match &self[pool].topology {
            Topology::ByPrefix { subpools, .. } => subpools,
            _ => std::slice::from_ref(&self[pool].index),
        }
    }

    /// A pool's subpools; the pool itself if it has none.
    fn each_of(&self, pool: usize) -> impl Iterator<Item = &Pool> {
        let subpools = self.subpools_of(pool).iter();
        subpools.map(|subpool| &self[usize::from(*subpool)])
    }

    /// The subpool of keys without a named prefix; requests without a key go there, too. The pool
    /// itself if it has no subpools.
    pub(crate) fn first_of(&self, pool: usize) -> &Pool {
        &self[usize::from(self.subpools_of(pool)[0])]
    }

    /// The server of channels, and of requests without a key that no other rule sends elsewhere. In
    /// a pool of one server it owns every key, so no request has to be looked at.
    pub(crate) fn default_server_of(&self, pool: usize) -> ServerId {
        match &self.first_of(pool).topology {
            Topology::Cluster(slots) => slots.default_server,
            _ => self.first_of(pool).servers()[0],
        }
    }

    /// Whether the pool or one of its subpools is a Cluster.
    pub(crate) fn has_cluster(&self, pool: usize) -> bool {
        self.each_of(pool)
            .any(|subpool| subpool.cluster().is_some())
    }

    /// Whether a refusal of one of its servers leads to another attempt, there or at another
    /// server.
    pub(crate) fn refuse_for_now(&self, pool: usize) -> bool {
        self.each_of(pool)
            .any(|subpool| subpool.cluster().is_some() || subpool.watched.is_some())
    }

    /// A node of the first Cluster among a pool's subpools.
    pub(crate) fn node_among(&self, pool: usize) -> Option<ServerId> {
        let mut subpools = self
            .each_of(pool)
            .filter(|subpool| subpool.index != subpool.parent);
        let cluster = subpools.find_map(Pool::cluster)?;
        Some(cluster.default_server)
    }

    /// Whether some keys of a pool may be read at servers other than their owners.
    pub(crate) fn has_readers(&self, pool: usize) -> bool {
        self.each_of(pool).any(|subpool| subpool.readers.is_some())
    }

    /// Whether some servers of a pool see keys without their prefix.
    pub(crate) fn removes_prefix(&self, pool: usize) -> bool {
        self.each_of(pool)
            .any(|subpool| !subpool.removed_prefix.is_empty())
    }

    fn own_writes(&self, pool: usize) -> impl Iterator<Item = (bool, u32)> {
        let readers = self
            .each_of(pool)
            .filter_map(|subpool| subpool.readers.as_ref());
        readers.map(|readers| readers.own_writes())
    }

    /// Whether all sessions of a pool read their own writes from the beginning: one subpool with
    /// that setting is enough.
    pub(crate) fn all_read_own_writes(&self, pool: usize) -> bool {
        self.own_writes(pool).any(|(all, _)| all)
    }

    /// How long a session that reads its own writes does so after a write, milliseconds: the
    /// longest time of any subpool. 0: always.
    pub(crate) fn own_writes_ms(&self, pool: usize) -> u32 {
        self.own_writes(pool).map(|(_, ms)| ms).max().unwrap_or(0)
    }

    /// The pool or subpool that knows the owner of a key, and that owner. `random`: chooses where
    /// any server will do.
    #[inline]
    pub(crate) fn owner_of(
        &self,
        pool: u16,
        key: &[u8],
        random: impl FnOnce() -> u32,
    ) -> (&Pool, ServerId) {
        let pool = &self[usize::from(pool)];
        match pool.owner_of(key, random) {
            Ok(owner) => (pool, owner),
            Err(random) => self.owner_in_subpool(pool, key, random),
        }
    }

    /// The subpool that knows the owner of a key, and that owner.
    #[inline(never)]
    pub(crate) fn owner_in_subpool(
        &self,
        parent: &Pool,
        key: &[u8],
        random: impl FnOnce() -> u32,
    ) -> (&Pool, ServerId) {
        let Topology::ByPrefix {
            prefixes, subpools, ..
        } = &parent.topology
        else {
            unreachable!("a pool without subpools knows each owner")
        };
        let subpool = &self[usize::from(subpools[prefixes.longest_of(key)])];
        // Hash the key as its servers see it, so that clients which connect to them directly find
        // it there.
        match subpool.owner_of(subpool.seen(key), random) {
            Ok(owner) => (subpool, owner),
            Err(_) => unreachable!("a subpool has no subpools"),
        }
    }

    /// The group of a key.
    pub(crate) fn group_of(&self, pool: u16, key: &[u8], random: impl FnOnce() -> u32) -> Group {
        let (subpool, owner) = self.owner_of(pool, key, random);
        let number = match &subpool.topology {
            Topology::Cluster(_) => hash_slot(subpool.seen(key)),
            _ => owner.0,
        };
        Group {
            pool: subpool.index,
            number,
        }
    }

    /// The server of a group, as of now.
    pub(crate) fn server_of(&self, group: Group) -> ServerId {
        match &self[usize::from(group.pool)].topology {
            Topology::Cluster(slots) => slots.owner_of_slot(group.number),
            _ => ServerId(group.number),
        }
    }

    /// A group that this server of the pool owns now.
    pub(crate) fn group_at(&self, pool: u16, server: ServerId) -> Group {
        let number = match &self[usize::from(pool)].topology {
            Topology::Cluster(slots) => slots.first_slot_of(server),
            _ => server.0,
        };
        Group { pool, number }
    }

    /// Lists the servers of a pool anew, because a subpool may have got others.
    pub(crate) fn list_servers(&mut self, subpool: usize) {
        let parent = usize::from(self[subpool].parent);
        let all = self.each_of(parent).flat_map(Pool::servers);
        let all = all.copied().collect();
        if let Topology::ByPrefix { servers, .. } = &mut self[parent].topology {
            *servers = all;
        }
    }

    /// Gives the subpools of a pool a flush rule.
    pub(crate) fn set_subpools(&mut self, pool: usize, rule: &FlushRule) {
        let subpools: Vec<u16> = self.subpools_of(pool).to_vec();
        for subpool in subpools.into_iter().map(usize::from) {
            if subpool != pool {
                self[subpool].flush = rule.clone();
            }
        }
    }

    /// The server with this number in SCAN cursors, and the number of the next one. If that server
    /// has left a Cluster, the Cluster is scanned from its first node, because its nodes have new
    /// numbers.
    pub(crate) fn scanned_from(
        &self,
        pool: usize,
        number: u16,
    ) -> Option<((u16, ServerId), Option<u16>)> {
        let had_number = |subpool: &&Pool| {
            subpool.cluster().is_some()
                && subpool.numbers.contains(&number)
                && subpool.numbered().all(|(used, _)| used != number)
        };
        let begun_anew = self.each_of(pool).find(had_number);
        let from = begun_anew.map_or(number, |subpool| subpool.numbers.start);
        let all = self.each_of(pool).flat_map(Pool::numbered);
        let mut left = all.filter(|(number, _)| *number >= from);
        let first = left.next()?;
        Some((first, left.next().map(|(next, _)| next)))
    }

    /// Whether every server of a pool has a number for SCAN.
    pub(crate) fn numbers_all(&self, pool: usize) -> bool {
        self.each_of(pool)
            .all(|subpool| subpool.numbered().count() >= subpool.servers().len())
    }

    /// How many of the expected requests are for one server, if sessions ask all servers equally
    /// often. `None`: the pool expects sessions by links.
    #[inline]
    pub(crate) fn expected_soon_by_server(&mut self, pool: usize, now: Time) -> Option<u32> {
        let soon = self[pool].arrivals.as_mut()?.expected_soon(now);
        Some(soon / self.count_asked(pool))
    }

    /// How many servers the sessions of a pool ask, replicas included.
    #[inline(never)]
    fn count_asked(&self, pool: usize) -> u32 {
        let servers = self.each_of(pool).map(|subpool| {
            let read = subpool
                .readers
                .as_ref()
                .map_or(0, |readers| readers.count());
            subpool.servers().len().max(read)
        });
        servers.sum::<usize>().max(1) as u32
    }
}

impl Deref for Pools {
    type Target = [Pool];

    fn deref(&self) -> &[Pool] {
        &self.0
    }
}

impl DerefMut for Pools {
    fn deref_mut(&mut self) -> &mut [Pool] {
        &mut self.0
    }
}

/// The numbers of each subpool's servers in SCAN cursors. They are equal in every process, in
/// whichever order Clusters become known. Subpools with a fixed number of servers come first; each
/// Cluster gets an equal number of the rest.
fn numbers_of(subpools: &[PrefixPool]) -> Vec<Range<u16>> {
    let count = |subpool: &PrefixPool| match &subpool.kind {
        PoolKind::Single(_)
        | PoolKind::ByPrefix { .. }
        | PoolKind::Subpool
        | PoolKind::Ended { .. } => Some(1),
        PoolKind::Sharded { shards, .. } => Some(shards.len()),
        PoolKind::Watched { primaries, .. } => Some(primaries.len()),
        PoolKind::Cluster { .. } => None,
    };
    let fixed: usize = subpools.iter().filter_map(count).sum();
    let clusters = subpools
        .iter()
        .filter(|subpool| count(subpool).is_none())
        .count();
    let left = usize::from(Cursor::SERVERS_MAX).saturating_sub(fixed);
    let each = (left / clusters.max(1)).max(1);
    let mut from = 0;
    let numbers = subpools.iter().map(|subpool| {
        let first = from;
        from += count(subpool).unwrap_or(each);
        first as u16..from as u16
    });
    numbers.collect()
}

/// Servers of new pools. Their numbers follow those of the `known` servers.
struct AddedServers {
    known: usize,
    list: Vec<ConfiguredServer>,
}

impl AddedServers {
    fn add(&mut self, settings: &ServerSettings, pool: u16) -> ServerId {
        let id = ServerId((self.known + self.list.len()) as u16);
        self.list.push(ConfiguredServer {
            settings: settings.clone(),
            label: settings.address.to_string(),
            pool,
            unknown: false,
        });
        id
    }

    fn get_mut(&mut self, id: ServerId) -> &mut ConfiguredServer {
        &mut self.list[usize::from(id.0) - self.known]
    }
}

impl Pool {
    /// Makes a pool that only leads to its subpools. `of`: its index, settings and flush rule.
    fn with_subpools(
        (index, settings, flush): (u16, &PoolSettings, &FlushRule),
        subpools: &[PrefixPool],
        indices: Box<[u16]>,
    ) -> Pool {
        Pool {
            index,
            parent: index,
            topology: Topology::ByPrefix {
                prefixes: Prefixes::new(subpools.iter().map(|subpool| &subpool.prefix[..])),
                subpools: indices,
                servers: Vec::new(),
            },
            removed_prefix: Box::default(),
            numbers: 0..0,
            watched: None,
            readers: None,
            flush: flush.clone(),
            longest_wait_us: 0,
            arrivals: None,
            address_map: Arc::new(settings.address_map.clone()),
            tls: settings.tls,
        }
    }

    /// Makes the subpools of a pool. `of`: the index of the pool, its settings and flush rule.
    fn build_subpools(
        (parent, settings, flush): (u16, &PoolSettings, &FlushRule),
        subpools: &[PrefixPool],
        indices: &[u16],
        servers: &mut AddedServers,
    ) -> Vec<Pool> {
        let address_map = Arc::new(settings.address_map.clone());
        let numbered = subpools.iter().zip(numbers_of(subpools)).zip(indices);
        let subpool = |((subpool, numbers), index): ((&PrefixPool, _), &u16)| {
            let (of, reads) = ((*index, parent), &subpool.reads);
            let removed: &[u8] = if subpool.strip { &subpool.prefix } else { &[] };
            Pool {
                removed_prefix: removed.into(),
                address_map: address_map.clone(),
                tls: settings.tls,
                ..Pool::build(of, &subpool.kind, reads, flush, numbers, servers)
            }
        };
        numbered.map(subpool).collect()
    }

    /// Makes a pool without subpools. `of`: its index, and the index of the pool that clients
    /// connect to.
    fn build(
        of: (u16, u16),
        kind: &PoolKind,
        reads: &Reads,
        flush: &FlushRule,
        numbers: Range<u16>,
        servers: &mut AddedServers,
    ) -> Pool {
        let (index, parent) = of;
        let mut add = |settings: &ServerSettings| servers.add(settings, index);
        let flush = flush.clone();
        let mut watched = None;
        let topology = match kind {
            PoolKind::Single(server) => Topology::Single(add(server)),
            PoolKind::Sharded { shards, placement } => Topology::Sharded {
                placement: placement.clone(),
                servers: shards.iter().map(add).collect(),
            },
            PoolKind::Watched {
                sentinels,
                primaries,
                template,
                placement,
            } => {
                let named = |name: &String| (name.clone(), add(template));
                let named: Vec<_> = primaries.iter().map(named).collect();
                let ids: Box<[_]> = named.iter().map(|(_, id)| *id).collect();
                for (name, id) in &named {
                    // The name stands for the address until a Sentinel says it.
                    servers.get_mut(*id).label.clone_from(name);
                }
                watched = WatchedPrimaries::new(sentinels, named).map(Box::new);
                match placement {
                    Some(placement) => Topology::Sharded {
                        placement: placement.clone(),
                        servers: ids,
                    },
                    None => Topology::Single(ids[0]),
                }
            }
            PoolKind::Cluster { seeds } => {
                let ids = seeds.iter().map(add).collect();
                Topology::Cluster(Box::new(SlotTable::new(ids, numbers.clone())))
            }
            PoolKind::ByPrefix { .. } => unreachable!("a subpool has no subpools"),
            PoolKind::Subpool | PoolKind::Ended { .. } => {
                unreachable!("a pool that is not in use is not made")
            }
        };
        Pool {
            index,
            parent,
            topology,
            removed_prefix: Box::default(),
            numbers,
            watched,
            readers: ReplicaTable::new(reads),
            flush,
            longest_wait_us: 0,
            arrivals: None,
            address_map: Arc::default(),
            tls: false,
        }
    }

    /// The owner of a key. `Err`: a subpool knows it. By default the compiler makes this a call,
    /// which costs more than the body (`make instructions`: 4 % of a request to three servers).
    #[inline(always)]
    pub(crate) fn owner_of<R: FnOnce() -> u32>(
        &self,
        key: &[u8],
        random: R,
    ) -> Result<ServerId, R> {
        match &self.topology {
            Topology::Single(server) => Ok(*server),
            Topology::Sharded { placement, servers } => {
                Ok(servers[placement.server_of(key, random)])
            }
            Topology::Cluster(slots) => Ok(slots.owner_of(key)),
            Topology::ByPrefix { .. } => Err(random),
        }
    }

    /// A key of this pool as its servers see it.
    fn seen<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        key.get(self.removed_prefix.len()..).unwrap_or_default()
    }

    /// Whether several servers own keys.
    pub(crate) fn has_several(&self) -> bool {
        !matches!(self.topology, Topology::Single(_))
    }

    /// Whether requests have to be looked at to know their server.
    pub(crate) fn is_routed(&self) -> bool {
        self.has_several() || self.readers.is_some()
    }

    /// Forgets which sessions are expected.
    pub(crate) fn expect_anew(&mut self) {
        let wheel = || Box::new(ArrivalWheel::new(self.flush.max_delay_us));
        self.arrivals = self.is_routed().then(wheel);
    }

    /// A session has all its replies, and is expected to send again in about `gap_us`.
    pub(crate) fn expect(&mut self, now: Time, gap_us: u32) -> ArrivalSlot {
        let arrivals = self.arrivals.as_mut();
        arrivals.map_or(ArrivalSlot::NOT, |arrivals| arrivals.expect(now, gap_us))
    }

    /// An expected session has sent again, or is not expected any more.
    pub(crate) fn on_arrival(&mut self, expected: ArrivalSlot) {
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.on_arrival(expected);
        }
    }

    /// All servers that own keys. The first one gets requests without a key.
    pub(crate) fn servers(&self) -> &[ServerId] {
        match &self.topology {
            Topology::Single(server) => std::slice::from_ref(server),
            Topology::Sharded { servers, .. } => servers,
            Topology::ByPrefix { servers, .. } => servers,
            Topology::Cluster(slots) => slots.servers(),
        }
    }

    /// The servers with their numbers in SCAN cursors, in the order of the numbers.
    fn numbered(&self) -> impl Iterator<Item = (u16, ServerId)> {
        let by_place = match &self.topology {
            Topology::Cluster(_) => &[],
            _ => self.servers(),
        };
        let by_place = self.numbers.clone().zip(by_place.iter().copied());
        let by_number = match &self.topology {
            Topology::Cluster(slots) => slots.scan_order(),
            _ => &[],
        };
        by_place.chain(by_number.iter().copied())
    }

    /// The slots of this pool, if it is a Cluster.
    pub(crate) fn cluster(&self) -> Option<&SlotTable> {
        match &self.topology {
            Topology::Cluster(slots) => Some(slots),
            _ => None,
        }
    }

    pub(crate) fn cluster_mut(&mut self) -> Option<&mut SlotTable> {
        match &mut self.topology {
            Topology::Cluster(slots) => Some(slots),
            _ => None,
        }
    }
}

/// The prefixes of subpools, sorted by their bytes. A prefix of a key sorts before the key, and
/// everything between the two begins with that prefix. So `within` leads from the last prefix that
/// is not behind the key to the longest that fits.
#[derive(Debug)]
pub(crate) struct Prefixes {
    sorted: Box<[Prefix]>,
}

#[derive(Debug)]
struct Prefix {
    bytes: Box<[u8]>,
    subpool: usize,
    /// The longest other prefix with which this one begins.
    within: Option<usize>,
}

impl Prefixes {
    /// The first subpool is for keys without a named prefix.
    fn new<'a>(prefixes: impl Iterator<Item = &'a [u8]>) -> Prefixes {
        let named = prefixes.enumerate().skip(1);
        let prefix = |(subpool, bytes): (usize, &[u8])| Prefix {
            bytes: bytes.into(),
            subpool,
            within: None,
        };
        let mut sorted: Box<[Prefix]> = named.map(prefix).collect();
        sorted.sort_by(|a, b| a.bytes.cmp(&b.bytes));
        for index in 1..sorted.len() {
            let mut within = Some(index - 1);
            while let Some(other) = within
                && !sorted[index].bytes.starts_with(&sorted[other].bytes)
            {
                within = sorted[other].within;
            }
            sorted[index].within = within;
        }
        Prefixes { sorted }
    }

    /// The subpool with the longest prefix of a key.
    fn longest_of(&self, key: &[u8]) -> usize {
        let behind = self.sorted.partition_point(|prefix| *prefix.bytes <= *key);
        let mut at = behind.checked_sub(1);
        while let Some(prefix) = at.map(|at| &self.sorted[at]) {
            if key.starts_with(&prefix.bytes) {
                return prefix.subpool;
            }
            at = prefix.within;
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;
    use respool_protocol::hashing::PredixyHash;

    use super::*;
    use crate::base::settings::Address;

    fn server(port: u16) -> ServerSettings {
        let host = "server".to_owned();
        ServerSettings::at(Address::Tcp { host, port })
    }

    /// Each kind of pool with so many servers, seeds or primaries.
    fn kind(number: u8, servers: u16) -> PoolKind {
        let all = || (1..=servers).map(server).collect();
        let count = u32::from(servers).try_into().expect("there are some");
        let placement = Placement::predixy(PredixyHash::Crc16, None, count);
        match number {
            0 => PoolKind::Single(server(1)),
            1 => PoolKind::Sharded {
                shards: all(),
                placement: placement.expect("there are some"),
            },
            2 => PoolKind::Cluster { seeds: all() },
            _ => PoolKind::Watched {
                sentinels: vec![server(1)],
                primaries: (0..servers).map(|name| name.to_string()).collect(),
                template: server(1),
                placement: placement.ok(),
            },
        }
    }

    fn subpools() -> impl Strategy<Value = Vec<PrefixPool>> {
        let prefixes = prop::collection::hash_set(prop::collection::vec(b'a'..b'd', 1..4), 1..10);
        let kinds = prop::collection::vec((0..4_u8, 1..6_u16), 10);
        (prefixes, kinds).prop_map(|(prefixes, kinds)| {
            let prefixes = [Vec::new()].into_iter().chain(prefixes);
            let subpool = |(prefix, (number, servers))| PrefixPool {
                prefix,
                strip: servers % 2 == 1,
                kind: kind(number, servers),
                reads: Reads::default(),
            };
            prefixes.zip(kinds).map(subpool).collect()
        })
    }

    fn pool(kind: PoolKind) -> PoolSettings {
        PoolSettings::new("pool", kind)
    }

    proptest! {
        /// A key belongs to the subpool with the longest prefix. Its owner and its group lead to
        /// the same subpool, which goes by the key as its servers see it. SCAN meets every server
        /// of all subpools once.
        #[test]
        fn subpools_divide_keys_and_keep_their_own_topology(
            subpools in subpools(),
            keys in prop::collection::vec(prop::collection::vec(b'a'..b'e', 0..6), 50),
        ) {
            let settings = [
                pool(kind(0, 1)),
                pool(PoolKind::ByPrefix { subpools: subpools.clone() }),
                pool(kind(1, 3)),
            ];
            let (pools, servers) = Pools::build(&settings, &FlushRule::default());
            prop_assert_eq!(pools.len(), settings.len() + subpools.len());
            for (index, made) in pools.iter().enumerate() {
                let parent = if index < settings.len() { index } else { 1 };
                prop_assert_eq!((usize::from(made.index), usize::from(made.parent)), (index, parent));
            }
            for key in keys {
                let (subpool, owner) = pools.owner_of(1, &key, || 7);
                let place = usize::from(subpool.index) - settings.len();
                let fit = (0..subpools.len()).filter(|subpool| key.starts_with(&subpools[*subpool].prefix));
                prop_assert_eq!(Some(place), fit.max_by_key(|subpool| subpools[*subpool].prefix.len()));
                let removed_prefix = if subpools[place].strip { subpools[place].prefix.len() } else { 0 };
                prop_assert_eq!(subpool.owner_of(&key[removed_prefix..], || 7).ok(), Some(owner));
                let group = pools.group_of(1, &key, || 7);
                prop_assert_eq!(group.pool, subpool.index);
                prop_assert_eq!(pools.server_of(group), owner);
                prop_assert_eq!(servers[usize::from(owner.0)].pool, subpool.index);
                prop_assert!(subpool.servers().contains(&owner));
                prop_assert!(pools[1].servers().contains(&owner));
                prop_assert_eq!(pools.server_of(pools.group_at(subpool.index, owner)), owner);
            }
            prop_assert_eq!(pools.default_server_of(1), pools[1].servers()[0]);
            let (mut met, mut next) = (Vec::new(), Some(0));
            while let Some(from) = next {
                let ((number, server), behind) = pools.scanned_from(1, from).expect("it was named");
                prop_assert!(number < Cursor::SERVERS_MAX && met.len() < servers.len());
                met.push(server);
                next = behind;
            }
            prop_assert!(pools.numbers_all(1));
            let is_of_pool = |server: &&ConfiguredServer| pools[usize::from(server.pool)].parent == 1;
            let of_subpools = servers.iter().filter(is_of_pool);
            prop_assert_eq!(met.len(), of_subpools.count());
            prop_assert_eq!(&met[..], pools[1].servers());
            prop_assert_eq!(met.iter().collect::<HashSet<_>>().len(), met.len());
        }
    }

    /// A Sentinel that is configured twice counts once. The number of Sentinels is bounded.
    #[test]
    fn sentinels_are_unique_and_bounded() {
        let at = |port| {
            let host = "sentinel".to_owned();
            Endpoint { host, port }
        };
        let ports = |ports: &[u16]| {
            let all = each_once(ports.iter().map(|port| at(*port)));
            all.map(|all| all.iter().map(|one| one.port).collect::<Vec<_>>())
        };
        assert_eq!(ports(&[5, 3, 5, 4]), Some(vec![5, 3, 4]));
        assert_eq!(ports(&[]), None);
        let max = SENTINELS_MAX as u16;
        let count = |count| each_once((1..=count).map(at)).map(|all| all.len());
        assert_eq!((count(max), count(max + 1)), (Some(SENTINELS_MAX), None));
    }

    /// A Cluster of two thousand seeds does not get enough numbers beside many other Clusters.
    #[test]
    fn scan_numbers_may_not_suffice_for_all_servers() {
        let subpool = |number: u8, kind| PrefixPool {
            prefix: vec![b'a'; usize::from(number)],
            strip: false,
            kind,
            reads: Reads::default(),
        };
        let mut subpools = vec![subpool(0, kind(0, 1)), subpool(1, kind(2, 2_000))];
        let knows_all = |subpools: &[PrefixPool]| {
            let subpools = subpools.to_vec();
            let settings = [pool(PoolKind::ByPrefix { subpools })];
            let (pools, _) = Pools::build(&settings, &FlushRule::default());
            pools.numbers_all(0)
        };
        assert!(knows_all(&subpools));
        subpools.extend((2..20).map(|number| subpool(number, kind(2, 1))));
        assert!(!knows_all(&subpools));
    }

    proptest! {
        /// The sorted search finds the same prefix as a look at every prefix.
        #[test]
        fn longest_prefix_of_a_key_counts(
            prefixes in prop::collection::hash_set(prop::collection::vec(0..3_u8, 1..5), 0..20),
            keys in prop::collection::vec(prop::collection::vec(0..3_u8, 0..7), 50),
        ) {
            let mut subpools = vec![Vec::new()];
            subpools.extend(prefixes);
            let made = Prefixes::new(subpools.iter().map(|prefix| &prefix[..]));
            for key in keys {
                let fit = (0..subpools.len()).filter(|subpool| key.starts_with(&subpools[*subpool]));
                let longest = fit.max_by_key(|subpool| subpools[*subpool].len());
                prop_assert_eq!(Some(made.longest_of(&key)), longest, "{:?}", key);
            }
        }
    }
}
