//! The servers behind us, and which of them owns what.

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use respool_protocol::encode::Version;
use respool_protocol::fan::Cursor;
use respool_protocol::hashing::Placement;
use respool_protocol::slot::hash_slot;

use crate::address_map::AddressMap;
use crate::cluster::Cluster;
use crate::health::Health;
use crate::link::LinkKey;
use crate::readers::Readers;
use crate::renewal::Renewal;
use crate::reply_room;
use crate::returns::{Calendar, Expected};
use crate::sentinels::Watch;
use crate::settings::{FlushRule, Part, PoolKind, PoolSettings, Reads, ServerSettings};
use crate::slots::Key;
use crate::takeover::Takeover;
use crate::time::Time;
use crate::trust::Trust;

/// A server's index in the engine's table of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ServerId(pub(crate) u16);

/// One process behind us.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) settings: ServerSettings,
    /// Its address as errors and logs say it.
    pub(crate) label: String,
    /// The index of its pool; where that has parts, of the part.
    pub(crate) pool: u16,
    /// Its pool has it no more: nothing new is asked of it, and it is not connected again.
    pub(crate) gone: bool,
    /// It is a replica of that one, and nothing but reads is asked of it.
    pub(crate) replica_of: Option<ServerId>,
    /// Where it is, nobody has said yet: its links wait for that.
    pub(crate) unknown: bool,
    /// Of each version of the protocol, the kind of link that was asked for last, and the one that
    /// all share.
    pub(crate) current: [Option<(LinkKey, Key)>; 2],
    /// How its connections fare.
    pub(crate) health: Health,
    /// When it was connected anew because it takes no writes.
    pub(crate) renewal: Renewal,
    /// Whether it accepts the configured login.
    pub(crate) trust: Trust,
    /// Which of its links are stuck, and what is done about it.
    pub(crate) takeover: Takeover,
    /// What it bounds for a connection.
    pub(crate) reply_limits: reply_room::Known,
}

impl Server {
    pub(crate) fn new(pool: u16, settings: &ServerSettings) -> Server {
        Server {
            label: settings.address.to_string(),
            settings: settings.clone(),
            pool,
            gone: false,
            replica_of: None,
            unknown: false,
            current: [None; 2],
            health: Health::default(),
            renewal: Renewal::default(),
            trust: Trust::default(),
            takeover: Takeover::default(),
            reply_limits: reply_room::Known::default(),
        }
    }

    /// The link of this kind, if it was asked for last.
    #[inline]
    pub(crate) fn current(&self, kind: LinkKey) -> Option<Key> {
        let version = usize::from(kind.version == Version::Resp3);
        let (known, link) = self.current[version]?;
        (known == kind).then_some(link)
    }
}

/// The pools by their indices: first those that listeners lead to, in the order of their settings,
/// and behind them the parts of these.
#[derive(Debug)]
pub(crate) struct Pools(Vec<Pool>);

/// One logical Redis; or a part of one, which is as much a pool, but that nobody is a client of it.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Its own index.
    pub(crate) index: u16,
    /// The index of the pool whose clients ask it: its own, unless it is a part of that one.
    pub(crate) whole: u16,
    pub(crate) topology: Topology,
    /// How all keys begin that are its, where its servers see them without that. Empty: they see
    /// them as they are.
    pub(crate) unseen: Box<[u8]>,
    /// By what SCAN knows its servers.
    numbers: Range<u16>,
    /// Who knows where its servers are, if those are not always the same.
    pub(crate) watch: Option<Box<Watch>>,
    /// Where reads go, if not to the owners of the keys.
    pub(crate) readers: Option<Box<Readers>>,
    /// When the batches for its servers leave, and what in them leaves together.
    pub(crate) flush: FlushRule,
    /// Where it has several servers: the sessions that are expected back by all of them.
    pub(crate) crowd: Option<Box<Calendar>>,
    /// Where servers are reached that others name.
    pub(crate) address_map: Arc<AddressMap>,
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
    /// How a key begins says which part knows its owner.
    ByPrefix {
        prefixes: Prefixes,
        /// Their indices among the pools. None of them has parts itself.
        parts: Box<[u16]>,
        /// Those of all parts.
        servers: Vec<ServerId>,
    },
    /// The servers say themselves which of them owns which slots.
    Cluster(Box<Cluster>),
}

/// What a key shares with those that one command may name together with it: on a Cluster its slot,
/// elsewhere its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Group {
    /// The index of the pool, or of the part, that knows the owner.
    pub(crate) pool: u16,
    /// The slot or the server there.
    pub(crate) number: u16,
}

impl Pools {
    /// Makes the pools and the table of their servers.
    pub(crate) fn build(settings: &[PoolSettings], flush: &FlushRule) -> (Pools, Vec<Server>) {
        let mut servers = Vec::new();
        let (mut pools, mut behind) = (Vec::new(), Vec::new());
        for (index, pool) in settings.iter().enumerate() {
            let whole = index as u16;
            let flush = pool.flush.as_ref().unwrap_or(flush);
            let address_map = Arc::new(pool.address_map.clone());
            pools.push(match &pool.kind {
                PoolKind::ByPrefix { parts } => {
                    let first = settings.len() + behind.len();
                    let indices = (first..first + parts.len()).map(|index| index as u16);
                    let indices: Box<[u16]> = indices.collect();
                    let its = parts.iter().zip(numbers_of(parts)).zip(indices.iter());
                    behind.extend(its.map(|((part, numbers), index)| {
                        let (of, reads) = ((*index, whole), &part.reads);
                        let unseen = part.prefix.as_slice();
                        Pool {
                            unseen: unseen[..if part.strip { unseen.len() } else { 0 }].into(),
                            address_map: address_map.clone(),
                            ..Pool::build(of, &part.kind, reads, flush, numbers, &mut servers)
                        }
                    }));
                    let prefixes = Prefixes::new(parts.iter().map(|part| &part.prefix[..]));
                    let topology = Topology::ByPrefix {
                        prefixes,
                        parts: indices,
                        servers: Vec::new(),
                    };
                    Pool {
                        index: whole,
                        whole,
                        topology,
                        unseen: Box::default(),
                        numbers: 0..0,
                        watch: None,
                        readers: None,
                        flush: flush.clone(),
                        crowd: None,
                        address_map,
                    }
                }
                kind => {
                    let (of, reads) = ((whole, whole), &pool.reads);
                    Pool {
                        address_map,
                        ..Pool::build(of, kind, reads, flush, 0..u16::MAX, &mut servers)
                    }
                }
            });
        }
        pools.append(&mut behind);
        let mut pools = Pools(pools);
        for index in 0..settings.len() {
            pools.list_servers(index);
            pools[index].expect_anew();
        }
        for pool in pools.iter() {
            // Until a Sentinel says so.
            if pool.watch.is_some() {
                for server in pool.servers() {
                    servers[usize::from(server.0)].unknown = true;
                }
            }
        }
        (pools, servers)
    }

    /// The indices of the parts of a pool; of one that has none, its own.
    pub(crate) fn parts_of(&self, pool: usize) -> &[u16] {
        match &self[pool].topology {
            Topology::ByPrefix { parts, .. } => parts,
            _ => std::slice::from_ref(&self[pool].index),
        }
    }

    /// The same pools themselves.
    fn each_of(&self, pool: usize) -> impl Iterator<Item = &Pool> {
        let parts = self.parts_of(pool).iter();
        parts.map(|part| &self[usize::from(*part)])
    }

    /// Where everything of a pool is that has no key: the part for the keys that begin in no way
    /// that is named.
    pub(crate) fn first_of(&self, pool: usize) -> &Pool {
        &self[usize::from(self.parts_of(pool)[0])]
    }

    /// The server for what has no key: it owns everything where there is only one, so a request
    /// need not be looked at.
    pub(crate) fn home_of(&self, pool: usize) -> ServerId {
        match &self.first_of(pool).topology {
            Topology::Cluster(cluster) => cluster.home(),
            _ => self.first_of(pool).servers()[0],
        }
    }

    /// Whether nodes of Clusters are among its servers.
    pub(crate) fn has_cluster(&self, pool: usize) -> bool {
        self.each_of(pool).any(|part| part.cluster().is_some())
    }

    /// Whether what some of its servers refuse for a while, or for good, is asked again or
    /// elsewhere.
    pub(crate) fn refuse_for_now(&self, pool: usize) -> bool {
        self.each_of(pool)
            .any(|part| part.cluster().is_some() || part.watch.is_some())
    }

    /// Where Clusters are among others: a node of the first of them.
    pub(crate) fn node_among(&self, pool: usize) -> Option<ServerId> {
        let mut parts = self.each_of(pool).filter(|part| part.index != part.whole);
        let cluster = parts.find_map(Pool::cluster)?;
        Some(cluster.home())
    }

    /// Whether some of its keys may be read at others than their owners.
    pub(crate) fn has_readers(&self, pool: usize) -> bool {
        self.each_of(pool).any(|part| part.readers.is_some())
    }

    /// Whether some of its servers see keys without their prefix.
    pub(crate) fn strips(&self, pool: usize) -> bool {
        self.each_of(pool).any(|part| !part.unseen.is_empty())
    }

    fn own_writes(&self, pool: usize) -> impl Iterator<Item = (bool, u32)> {
        let readers = self.each_of(pool).filter_map(|part| part.readers.as_ref());
        readers.map(|readers| readers.own_writes())
    }

    /// Whether all sessions of a pool read their own writes from the beginning: if they do in one
    /// part, then in all.
    pub(crate) fn all_read_own_writes(&self, pool: usize) -> bool {
        self.own_writes(pool).any(|(all, _)| all)
    }

    /// How long a session of a pool that reads its own writes does so, milliseconds: as long as in
    /// any part. 0: no time is said.
    pub(crate) fn own_writes_ms(&self, pool: usize) -> u32 {
        self.own_writes(pool).map(|(_, ms)| ms).max().unwrap_or(0)
    }

    /// The pool or the part that knows the owner of a key, and that owner; `random` is asked where
    /// any will do.
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
            Err(random) => self.owner_in_part(pool, key, random),
        }
    }

    /// The same where only a part knows.
    #[inline(never)]
    pub(crate) fn owner_in_part(
        &self,
        whole: &Pool,
        key: &[u8],
        random: impl FnOnce() -> u32,
    ) -> (&Pool, ServerId) {
        let Topology::ByPrefix {
            prefixes, parts, ..
        } = &whole.topology
        else {
            unreachable!("what has no parts knows itself")
        };
        let part = &self[usize::from(parts[prefixes.longest_of(key)])];
        // By what its servers see: whoever asks them without us finds it there.
        match part.owner_of(part.seen(key), random) {
            Ok(owner) => (part, owner),
            Err(_) => unreachable!("a part has no parts"),
        }
    }

    /// What a key belongs to.
    pub(crate) fn group_of(&self, pool: u16, key: &[u8], random: impl FnOnce() -> u32) -> Group {
        let (part, owner) = self.owner_of(pool, key, random);
        let number = match &part.topology {
            Topology::Cluster(_) => hash_slot(part.seen(key)),
            _ => owner.0,
        };
        Group {
            pool: part.index,
            number,
        }
    }

    /// The server where that is.
    pub(crate) fn server_of(&self, group: Group) -> ServerId {
        match &self[usize::from(group.pool)].topology {
            Topology::Cluster(cluster) => cluster.owner_of_slot(group.number),
            _ => ServerId(group.number),
        }
    }

    /// Something that belongs to this server, which is one of the pool's, as it is now.
    pub(crate) fn group_at(&self, pool: u16, server: ServerId) -> Group {
        let number = match &self[usize::from(pool)].topology {
            Topology::Cluster(cluster) => cluster.first_slot_of(server),
            _ => server.0,
        };
        Group { pool, number }
    }

    /// A part may have other servers than it had.
    pub(crate) fn list_servers(&mut self, part: usize) {
        let whole = usize::from(self[part].whole);
        let all = self.each_of(whole).flat_map(Pool::servers);
        let all = all.copied().collect();
        if let Topology::ByPrefix { servers, .. } = &mut self[whole].topology {
            *servers = all;
        }
    }

    /// The parts of a pool have the rule that it has itself.
    pub(crate) fn set_parts(&mut self, pool: usize, rule: &FlushRule) {
        let parts: Vec<u16> = self.parts_of(pool).to_vec();
        for part in parts.into_iter().map(usize::from) {
            if part != pool {
                self[part].flush = rule.clone();
            }
        }
    }

    /// The server of this number, by which SCAN knows it as long as it is there; if that is gone,
    /// the first of its Cluster, whose nodes have new numbers. And the number of the next one.
    pub(crate) fn scanned_from(
        &self,
        pool: usize,
        number: u16,
    ) -> Option<((u16, ServerId), Option<u16>)> {
        let was_its = |part: &&Pool| {
            part.cluster().is_some()
                && part.numbers.contains(&number)
                && part.numbered().all(|(its, _)| its != number)
        };
        let begun_anew = self.each_of(pool).find(was_its);
        let from = begun_anew.map_or(number, |part| part.numbers.start);
        let all = self.each_of(pool).flat_map(Pool::numbered);
        let mut left = all.filter(|(its, _)| *its >= from);
        let first = left.next()?;
        Some((first, left.next().map(|(next, _)| next)))
    }

    /// Whether SCAN knows all servers of a pool.
    pub(crate) fn numbers_all(&self, pool: usize) -> bool {
        self.each_of(pool)
            .all(|part| part.numbered().count() >= part.servers().len())
    }

    /// How many requests that are about to come are one server's, if each is of a session that asks
    /// all servers alike. `None`: sessions are expected by links.
    #[inline]
    pub(crate) fn soon_by_server(&mut self, pool: usize, now: Time) -> Option<u32> {
        let soon = self[pool].crowd.as_mut()?.soon(now);
        Some(soon / self.count_asked(pool))
    }

    /// Servers that sessions of a pool ask, those in the place of owners among them.
    #[inline(never)]
    fn count_asked(&self, pool: usize) -> u32 {
        let asked = self.each_of(pool).map(|part| {
            let read = part.readers.as_ref().map_or(0, |readers| readers.count());
            part.servers().len().max(read)
        });
        asked.sum::<usize>().max(1) as u32
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

/// The numbers by which SCAN knows the servers of parts: the same in every process, whichever
/// Cluster is known first. Of what those leave that do not change, each Cluster has the same share.
fn numbers_of(parts: &[Part]) -> Vec<Range<u16>> {
    let count = |part: &Part| match &part.kind {
        PoolKind::Single(_) | PoolKind::ByPrefix { .. } => Some(1),
        PoolKind::Sharded { shards, .. } => Some(shards.len()),
        PoolKind::Watched { primaries, .. } => Some(primaries.len()),
        PoolKind::Cluster { .. } => None,
    };
    let fixed: usize = parts.iter().filter_map(count).sum();
    let clusters = parts.iter().filter(|part| count(part).is_none()).count();
    let left = usize::from(Cursor::SERVERS_MAX).saturating_sub(fixed);
    let share = (left / clusters.max(1)).max(1);
    let mut from = 0;
    let numbers = parts.iter().map(|part| {
        let first = from;
        from += count(part).unwrap_or(share);
        first as u16..from as u16
    });
    numbers.collect()
}

impl Pool {
    /// One that has no parts; `of`: its index, and that of the pool whose part it is.
    fn build(
        of: (u16, u16),
        kind: &PoolKind,
        reads: &Reads,
        flush: &FlushRule,
        numbers: Range<u16>,
        servers: &mut Vec<Server>,
    ) -> Pool {
        let (index, whole) = of;
        let mut add = |settings: &ServerSettings| {
            let id = ServerId(servers.len() as u16);
            servers.push(Server::new(index, settings));
            id
        };
        let flush = flush.clone();
        let mut watch = None;
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
                    // Until it has an address.
                    servers[usize::from(id.0)].label.clone_from(name);
                }
                watch = Watch::new(sentinels, named).map(Box::new);
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
                Topology::Cluster(Box::new(Cluster::new(seeds, ids, numbers.clone())))
            }
            PoolKind::ByPrefix { .. } => unreachable!("a part has no parts"),
        };
        Pool {
            index,
            whole,
            topology,
            unseen: Box::default(),
            numbers,
            watch,
            readers: Readers::new(reads),
            flush,
            crowd: None,
            address_map: Arc::default(),
        }
    }

    /// The owner of a key; `Err`: one of its parts knows. Left to itself the compiler makes it a
    /// call, which costs more than what it does (`make instructions`: 4 % of a request to three
    /// servers).
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
            Topology::Cluster(cluster) => Ok(cluster.owner_of(key)),
            Topology::ByPrefix { .. } => Err(random),
        }
    }

    /// What its servers see of a key that is its.
    fn seen<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        key.get(self.unseen.len()..).unwrap_or_default()
    }

    /// Whether several servers own keys.
    pub(crate) fn has_several(&self) -> bool {
        !matches!(self.topology, Topology::Single(_))
    }

    /// Whether requests have to be looked at to know which server they are for.
    pub(crate) fn is_routed(&self) -> bool {
        self.has_several() || self.readers.is_some()
    }

    /// Nobody is expected back yet.
    pub(crate) fn expect_anew(&mut self) {
        let calendar = || Box::new(Calendar::new(self.flush.max_delay_us));
        self.crowd = self.is_routed().then(calendar);
    }

    /// A session was answered by all of them and comes back in about `gap_us`.
    pub(crate) fn expect(&mut self, now: Time, gap_us: u32) -> Expected {
        let crowd = self.crowd.as_mut();
        crowd.map_or(Expected::NOT, |crowd| crowd.expect(now, gap_us))
    }

    /// It came back, or never will.
    pub(crate) fn came(&mut self, expected: Expected) {
        if let Some(crowd) = &mut self.crowd {
            crowd.came(expected);
        }
    }

    /// All that own keys, the one for what has no key in front.
    pub(crate) fn servers(&self) -> &[ServerId] {
        match &self.topology {
            Topology::Single(server) => std::slice::from_ref(server),
            Topology::Sharded { servers, .. } => servers,
            Topology::ByPrefix { servers, .. } => servers,
            Topology::Cluster(cluster) => cluster.servers(),
        }
    }

    /// The same with the numbers by which SCAN knows them, in the order of those.
    fn numbered(&self) -> impl Iterator<Item = (u16, ServerId)> {
        let by_place = match &self.topology {
            Topology::Cluster(_) => &[],
            _ => self.servers(),
        };
        let by_place = self.numbers.clone().zip(by_place.iter().copied());
        let by_number = match &self.topology {
            Topology::Cluster(cluster) => cluster.scan_order(),
            _ => &[],
        };
        by_place.chain(by_number.iter().copied())
    }

    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        match &self.topology {
            Topology::Cluster(cluster) => Some(cluster),
            _ => None,
        }
    }

    pub(crate) fn cluster_mut(&mut self) -> Option<&mut Cluster> {
        match &mut self.topology {
            Topology::Cluster(cluster) => Some(cluster),
            _ => None,
        }
    }
}

/// How the keys of parts begin, in the order of their bytes. What fits a key is not behind it, and
/// what stands between the two begins with it: so from the last one that is not behind the key, the
/// way by the prefixes of prefixes meets the longest.
#[derive(Debug)]
pub(crate) struct Prefixes {
    sorted: Box<[Prefix]>,
}

#[derive(Debug)]
struct Prefix {
    bytes: Box<[u8]>,
    part: usize,
    /// The longest other one that this one begins with.
    within: Option<usize>,
}

impl Prefixes {
    /// The first part is for what begins in no way that is named.
    fn new<'a>(prefixes: impl Iterator<Item = &'a [u8]>) -> Prefixes {
        let named = prefixes.enumerate().skip(1);
        let prefix = |(part, bytes): (usize, &[u8])| Prefix {
            bytes: bytes.into(),
            part,
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

    /// The part whose prefix is the longest of those that a key begins with.
    fn longest_of(&self, key: &[u8]) -> usize {
        let behind = self.sorted.partition_point(|prefix| *prefix.bytes <= *key);
        let mut at = behind.checked_sub(1);
        while let Some(prefix) = at.map(|at| &self.sorted[at]) {
            if key.starts_with(&prefix.bytes) {
                return prefix.part;
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
    use crate::settings::{Address, Shows};

    fn server(port: u16) -> ServerSettings {
        let host = "server".to_owned();
        ServerSettings {
            address: Address::Tcp { host, port },
            credentials: None,
            db: 0,
        }
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

    fn parts() -> impl Strategy<Value = Vec<Part>> {
        let prefixes = prop::collection::hash_set(prop::collection::vec(b'a'..b'd', 1..4), 1..10);
        let kinds = prop::collection::vec((0..4_u8, 1..6_u16), 10);
        (prefixes, kinds).prop_map(|(prefixes, kinds)| {
            let prefixes = [Vec::new()].into_iter().chain(prefixes);
            let part = |(prefix, (number, servers))| Part {
                prefix,
                strip: servers % 2 == 1,
                kind: kind(number, servers),
                reads: Reads::default(),
            };
            prefixes.zip(kinds).map(part).collect()
        })
    }

    fn pool(kind: PoolKind) -> PoolSettings {
        PoolSettings {
            name: "pool".to_owned(),
            kind,
            reads: Reads::default(),
            flush: None,
            announce: None,
            shows: Shows::default(),
            address_map: AddressMap::default(),
        }
    }

    proptest! {
        /// Whatever the parts of a pool are: a key is in the one that the longest prefix names,
        /// what is known of a key and what of its server leads to the same part, which goes by what
        /// its servers see; and SCAN meets every server of all parts once.
        #[test]
        fn a_pool_of_parts_is_one_and_each_part_is_itself(
            parts in parts(),
            keys in prop::collection::vec(prop::collection::vec(b'a'..b'e', 0..6), 50),
        ) {
            let settings = [
                pool(kind(0, 1)),
                pool(PoolKind::ByPrefix { parts: parts.clone() }),
                pool(kind(1, 3)),
            ];
            let (pools, servers) = Pools::build(&settings, &FlushRule::default());
            prop_assert_eq!(pools.len(), settings.len() + parts.len());
            for (index, made) in pools.iter().enumerate() {
                let whole = if index < settings.len() { index } else { 1 };
                prop_assert_eq!((usize::from(made.index), usize::from(made.whole)), (index, whole));
            }
            for key in keys {
                let (part, owner) = pools.owner_of(1, &key, || 7);
                let place = usize::from(part.index) - settings.len();
                let fit = (0..parts.len()).filter(|part| key.starts_with(&parts[*part].prefix));
                prop_assert_eq!(Some(place), fit.max_by_key(|part| parts[*part].prefix.len()));
                let unseen = if parts[place].strip { parts[place].prefix.len() } else { 0 };
                prop_assert_eq!(part.owner_of(&key[unseen..], || 7).ok(), Some(owner));
                let group = pools.group_of(1, &key, || 7);
                prop_assert_eq!(group.pool, part.index);
                prop_assert_eq!(pools.server_of(group), owner);
                prop_assert_eq!(servers[usize::from(owner.0)].pool, part.index);
                prop_assert!(part.servers().contains(&owner) && pools[1].servers().contains(&owner));
                prop_assert_eq!(pools.server_of(pools.group_at(part.index, owner)), owner);
            }
            prop_assert_eq!(pools.home_of(1), pools[1].servers()[0]);
            let (mut met, mut next) = (Vec::new(), Some(0));
            while let Some(from) = next {
                let ((number, server), behind) = pools.scanned_from(1, from).expect("it was named");
                prop_assert!(number < Cursor::SERVERS_MAX && met.len() < servers.len());
                met.push(server);
                next = behind;
            }
            prop_assert!(pools.numbers_all(1));
            let of_parts = servers.iter().filter(|server| pools[usize::from(server.pool)].whole == 1);
            prop_assert_eq!(met.len(), of_parts.count());
            prop_assert_eq!(&met[..], pools[1].servers());
            prop_assert_eq!(met.iter().collect::<HashSet<_>>().len(), met.len());
        }
    }

    /// A Cluster of two thousand seeds has not as many numbers, if there are many others.
    #[test]
    fn a_scan_that_would_leave_servers_out_is_known_to() {
        let part = |number: u8, kind| Part {
            prefix: vec![b'a'; usize::from(number)],
            strip: false,
            kind,
            reads: Reads::default(),
        };
        let mut parts = vec![part(0, kind(0, 1)), part(1, kind(2, 2_000))];
        let knows_all = |parts: &[Part]| {
            let parts = parts.to_vec();
            let settings = [pool(PoolKind::ByPrefix { parts })];
            let (pools, _) = Pools::build(&settings, &FlushRule::default());
            pools.numbers_all(0)
        };
        assert!(knows_all(&parts));
        parts.extend((2..20).map(|number| part(number, kind(2, 1))));
        assert!(!knows_all(&parts));
    }

    proptest! {
        /// The short way finds what a look at every prefix finds.
        #[test]
        fn of_the_prefixes_that_a_key_begins_with_the_longest_counts(
            prefixes in prop::collection::hash_set(prop::collection::vec(0..3_u8, 1..5), 0..20),
            keys in prop::collection::vec(prop::collection::vec(0..3_u8, 0..7), 50),
        ) {
            let mut parts = vec![Vec::new()];
            parts.extend(prefixes);
            let made = Prefixes::new(parts.iter().map(|prefix| &prefix[..]));
            for key in keys {
                let fit = (0..parts.len()).filter(|part| key.starts_with(&parts[*part]));
                let longest = fit.max_by_key(|part| parts[*part].len());
                prop_assert_eq!(Some(made.longest_of(&key)), longest, "{:?}", key);
            }
        }
    }
}
