//! The servers behind us, and which of them owns what.

use respool_protocol::encode::Version;
use respool_protocol::hashing::Placement;

use crate::cluster::Cluster;
use crate::health::Health;
use crate::link::LinkKey;
use crate::readers::Readers;
use crate::returns::{Calendar, Expected};
use crate::sentinels::Watch;
use crate::settings::{FlushRule, PoolKind, PoolSettings, ServerSettings};
use crate::slots::Key;
use crate::time::Time;

/// A server's index in the engine's table of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ServerId(pub(crate) u16);

/// One process behind us.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) settings: ServerSettings,
    /// Its address as errors and logs say it.
    pub(crate) label: String,
    /// The index of its pool.
    pub(crate) pool: u16,
    /// Its pool has it no more: nothing new is asked of it, and it is not connected again.
    pub(crate) gone: bool,
    /// It is a replica of that one, and nothing but reads is asked of it.
    pub(crate) replica_of: Option<ServerId>,
    /// Where it is, nobody has said yet: its links wait for that.
    pub(crate) unknown: bool,
    /// Of each version of the protocol, the kind of link that was asked for last, and the one that all share.
    pub(crate) current: [Option<(LinkKey, Key)>; 2],
    /// How its connections fare.
    pub(crate) health: Health,
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

/// One logical Redis.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) topology: Topology,
    /// Who knows where its servers are, if those are not always the same.
    pub(crate) watch: Option<Box<Watch>>,
    /// Where reads go, if not to the owners of the keys.
    pub(crate) readers: Option<Box<Readers>>,
    /// When the batches for its servers leave, and what in them leaves together.
    pub(crate) flush: FlushRule,
    /// Where it has several servers: the sessions that are expected back by all of them.
    pub(crate) crowd: Option<Box<Calendar>>,
    /// Some of its servers see keys without their prefix.
    pub(crate) strips: bool,
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
    /// Each key's owner follows from how it begins, and from its hash.
    ByPrefix {
        prefixes: Prefixes,
        /// Of each part, where its servers begin, and which of several owns a key; and how many bytes of the key those do
        /// not see.
        parts: Box<[(usize, Option<Placement>, usize)]>,
        servers: Box<[ServerId]>,
    },
    /// The servers say themselves which of them owns which slots.
    Cluster(Box<Cluster>),
}

/// What a key shares with those that one command may name together with it: on a Cluster its slot, elsewhere its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group(pub(crate) u16);

impl Pool {
    /// Makes the pools and the table of their servers.
    pub(crate) fn build(settings: &[PoolSettings], flush: &FlushRule) -> (Vec<Pool>, Vec<Server>) {
        let mut servers = Vec::new();
        let mut add = |pool: usize, settings: &ServerSettings| {
            let id = ServerId(servers.len() as u16);
            servers.push(Server::new(pool as u16, settings));
            id
        };
        let mut pools = Vec::new();
        for (index, pool) in settings.iter().enumerate() {
            let mut flush = flush.clone();
            let mut watch = None;
            let topology = match &pool.kind {
                PoolKind::Single(server) => Topology::Single(add(index, server)),
                PoolKind::Sharded { shards, placement } => Topology::Sharded {
                    placement: placement.clone(),
                    servers: shards.iter().map(|shard| add(index, shard)).collect(),
                },
                PoolKind::Watched {
                    sentinels,
                    primaries,
                    template,
                    placement,
                } => {
                    let named = |name: &String| (name.clone(), add(index, template));
                    let named: Vec<_> = primaries.iter().map(named).collect();
                    let ids: Box<[_]> = named.iter().map(|(_, id)| *id).collect();
                    watch = Watch::new(sentinels, named).map(Box::new);
                    match placement {
                        Some(placement) => Topology::Sharded {
                            placement: placement.clone(),
                            servers: ids,
                        },
                        None => Topology::Single(ids[0]),
                    }
                }
                PoolKind::ByPrefix { parts } => {
                    let mut servers = Vec::new();
                    let owners = parts.iter().map(|part| {
                        let first = servers.len();
                        servers.extend(part.servers.iter().map(|server| add(index, server)));
                        let unseen = part.servers.first().map_or(0, |server| server.strip.len());
                        (first, part.placement.clone(), unseen)
                    });
                    Topology::ByPrefix {
                        parts: owners.collect(),
                        prefixes: Prefixes::new(parts.iter().map(|part| &part.prefix[..])),
                        servers: servers.into(),
                    }
                }
                PoolKind::Cluster { seeds } => {
                    // Keys that come together are rarely of one slot.
                    flush.fuse = false;
                    let ids = seeds.iter().map(|seed| add(index, seed)).collect();
                    Topology::Cluster(Box::new(Cluster::new(seeds, ids)))
                }
            };
            let mut pool = Pool {
                topology,
                watch,
                readers: Readers::new(&pool.reads),
                flush,
                crowd: None,
                strips: false,
            };
            pool.expect_anew();
            pools.push(pool);
        }
        for pool in &mut pools {
            let strips =
                |server: &ServerId| !servers[usize::from(server.0)].settings.strip.is_empty();
            pool.strips = pool.servers().iter().any(strips);
            // Until a Sentinel says so.
            if pool.watch.is_some() {
                for server in pool.servers() {
                    servers[usize::from(server.0)].unknown = true;
                }
            }
        }
        (pools, servers)
    }

    /// The server for what has no key: it owns everything where there is only one, so a request need not be looked at.
    pub(crate) fn home(&self) -> ServerId {
        match &self.topology {
            Topology::Cluster(cluster) => cluster.home(),
            _ => self.servers()[0],
        }
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

    /// How many requests that are about to come are one server's, if each is of a session that asks all servers alike.
    /// `None`: sessions are expected by links.
    pub(crate) fn soon_by_server(&mut self, now: Time) -> Option<u32> {
        let soon = self.crowd.as_mut()?.soon(now);
        let read = self.readers.as_ref().map_or(0, |readers| readers.count());
        Some(soon / self.servers().len().max(read).max(1) as u32)
    }

    /// The owner of a key; `random` is asked where any will do.
    #[inline]
    pub(crate) fn owner_of(&self, key: &[u8], random: impl FnOnce() -> u32) -> ServerId {
        match &self.topology {
            Topology::Single(server) => *server,
            Topology::Sharded { placement, servers } => servers[placement.server_of(key, random)],
            Topology::ByPrefix {
                prefixes,
                parts,
                servers,
            } => {
                let (first, placement, unseen) = &parts[prefixes.longest_of(key)];
                let placement = placement.as_ref();
                // By what they see: whoever asks them without us finds it there.
                let seen = key.get(*unseen..).unwrap_or_default();
                servers[first + placement.map_or(0, |its| its.server_of(seen, random))]
            }
            Topology::Cluster(cluster) => cluster.owner_of(key),
        }
    }

    /// What a key belongs to.
    pub(crate) fn group_of(&self, key: &[u8], random: impl FnOnce() -> u32) -> Group {
        match &self.topology {
            Topology::Cluster(_) => Group(respool_protocol::slot::hash_slot(key)),
            _ => Group(self.owner_of(key, random).0),
        }
    }

    /// The server where that is.
    pub(crate) fn server_of(&self, group: Group) -> ServerId {
        match &self.topology {
            Topology::Cluster(cluster) => cluster.owner_of_slot(group.0),
            _ => ServerId(group.0),
        }
    }

    /// All that own keys, the one for what has no key in front.
    pub(crate) fn servers(&self) -> &[ServerId] {
        match &self.topology {
            Topology::Single(server) => std::slice::from_ref(server),
            Topology::Sharded { servers, .. } | Topology::ByPrefix { servers, .. } => servers,
            Topology::Cluster(cluster) => cluster.servers(),
        }
    }

    /// The server of this number, by which SCAN knows it as long as it is there; if that is gone, the one behind it. And the
    /// number of the next one.
    pub(crate) fn scanned_from(&self, number: u16) -> Option<((u16, ServerId), Option<u16>)> {
        let by_place = match &self.topology {
            Topology::Cluster(_) => &[],
            _ => self.servers(),
        };
        let by_place = (0..).zip(by_place.iter().copied());
        let by_number = match &self.topology {
            Topology::Cluster(cluster) => cluster.scan_order(),
            _ => &[],
        };
        let all = by_place.chain(by_number.iter().copied());
        let mut left = all.filter(|(its, _)| *its >= number);
        let first = left.next()?;
        Some((first, left.next().map(|(next, _)| next)))
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

/// How the keys of parts begin, in the order of their bytes. What fits a key is not behind it, and what stands between the
/// two begins with it: so from the last one that is not behind the key, the way by the prefixes of prefixes meets the longest.
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
    use proptest::prelude::*;

    use super::*;

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
