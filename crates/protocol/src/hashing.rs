//! Which server of a hash-sharded pool a key belongs to: as twemproxy has it, or as predixy has it.
//!
//! Whoever comes from such a proxy has data where that proxy put it, so every rule here gives the
//! very server that the peer would have chosen, odd cases included:
//!
//! ```text
//! key ──hash tag──> the part that counts ──hash──> a number ──distribution──> a server
//! ```
//!
//! A [`Placement`] is built once from the servers of a pool and then asked [`Placement::server_of`] for
//! each key: no allocation, one remainder and a search among the servers (modula), or a look at the few of
//! their points that its first bits leave (ketama).
//!
//! Sources: twemproxy 0.5 (`src/hashkit`, `src/nc_server.c`, `src/nc_conf.c`), against whose binary,
//! Debian's `nutcracker`, all of it is tested (`tests/hashing.rs` here, and live in the lab's
//! `tests/hashing.rs`); predixy 1.0.5 (`src/HashFunc.cpp`, `src/StandaloneServerPool.cpp`), from
//! reading its source only.

mod functions;
mod md5;

use std::error::Error;
use std::fmt;
use std::num::NonZeroU32;

use crate::slot;
use md5::{little_endian, md5};

/// How many servers a sharded pool may have. One has at most 160 points of 8 bytes on average.
pub const SERVERS_MAX: usize = 4_096;

/// Which server each key belongs to: fixed for a list of servers, a hash function and a distribution.
///
/// Servers are known by their index in the list that the placement was built from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    tag: Option<HashTag>,
    rule: Rule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    /// The first point at or after the hash; behind the last point, the first one.
    Ketama { hash: Hash, ring: Ring },
    /// The slot is the remainder by the sum of the weights; each server's point is its last slot.
    Modula {
        hash: Hash,
        slots: NonZeroU32,
        points: Box<[Point]>,
    },
    /// The remainder by the number of servers.
    Predixy { hash: PredixyHash, servers: u64 },
    /// Any server.
    Random { servers: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    value: u32,
    server: u32,
}

impl Placement {
    /// As twemproxy places keys.
    ///
    /// Its odd sides: modula counts the servers in the order of their names, shorter names first, not
    /// in the order of the list; ketama rounds a server's share of the points down to fours, so one of
    /// very little weight gets no key at all; random ignores weights. With `auto_eject_hosts`, twemproxy
    /// places keys as if the servers that it ejected were not in the list.
    ///
    /// # Errors
    /// When there is no server, or too many; when two have the same name, which twemproxy refuses, too;
    /// when the weights do not sum up within 32 bits.
    pub fn twemproxy(
        hash: Hash,
        distribution: Distribution,
        tag: Option<HashTag>,
        nodes: &[Node],
    ) -> Result<Placement, PlacementError> {
        let servers = count(nodes.len())?;
        // Twemproxy sorts its servers by name before it does anything with them.
        let mut sorted: Vec<(u32, &Node)> = (0..).zip(nodes).collect();
        sorted.sort_by_key(|(_, node)| (node.name.len(), &node.name));
        for pair in sorted.windows(2) {
            if pair[0].1.name == pair[1].1.name {
                return Err(PlacementError::SameName(pair[0].1.name.clone()));
            }
        }
        let mut weights = nodes.iter().map(|node| node.weight.get());
        let total = weights
            .try_fold(0_u32, u32::checked_add)
            .and_then(NonZeroU32::new)
            .ok_or(PlacementError::TooHeavy)?;
        let rule = match distribution {
            Distribution::Ketama => Rule::Ketama {
                hash,
                ring: Ring::new(ketama_points(&sorted, total.get())),
            },
            Distribution::Modula => Rule::Modula {
                hash,
                slots: total,
                points: modula_points(&sorted),
            },
            Distribution::Random => Rule::Random { servers },
        };
        Ok(Placement { tag, rule })
    }

    /// As predixy places keys with `Distribution modula`, on that many groups in the order in which
    /// its configuration lists them.
    ///
    /// One thing is not followed: predixy hashes only the first 512 bytes of a key if they happen to lie
    /// in two of its buffers, so where it keeps a longer key differs from time to time.
    ///
    /// # Errors
    /// When there is no server, or too many.
    pub fn predixy(
        hash: PredixyHash,
        tag: Option<HashTag>,
        servers: usize,
    ) -> Result<Placement, PlacementError> {
        let servers = u64::from(count(servers)?);
        let rule = Rule::Predixy { hash, servers };
        Ok(Placement { tag, rule })
    }

    /// Any server for any key, as `random` is for both peers. It makes sense for servers that
    /// all have the same data, or where a read that finds nothing does no harm.
    ///
    /// # Errors
    /// When there is no server, or too many.
    pub fn random(servers: usize) -> Result<Placement, PlacementError> {
        let servers = count(servers)?;
        let rule = Rule::Random { servers };
        Ok(Placement { tag: None, rule })
    }

    /// The index of the server that a key belongs to.
    ///
    /// `random` is asked for a number only where the distribution is random, and the number alone
    /// decides then: whoever wants it reproducible gives numbers from a seed.
    #[inline]
    pub fn server_of(&self, key: &[u8], random: impl FnOnce() -> u32) -> usize {
        let part = match self.tag {
            Some(tag) => tag.part_of(key),
            None => key,
        };
        let server = match &self.rule {
            Rule::Ketama { hash, ring } => ring.at_or_after(hash.of(part)),
            Rule::Modula {
                hash,
                slots,
                points,
            } => at_or_after(points, hash.of(part) % *slots),
            Rule::Predixy { hash, servers } => (hash.of(part) % servers) as u32,
            Rule::Random { servers } => random() % servers,
        };
        server as usize
    }

    /// Whether a key's server depends on the key: not so where the distribution is random, and then two
    /// requests with the same key may go to two servers.
    pub fn is_by_key(&self) -> bool {
        !matches!(self.rule, Rule::Random { .. })
    }
}

/// How keys are placed, whatever the servers are: the rule of the proxy by which the data got there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hashing {
    /// Twemproxy's.
    Twemproxy {
        /// `hash`.
        hash: Hash,
        /// `distribution`.
        distribution: Distribution,
        /// `hash_tag`.
        tag: Option<HashTag>,
    },
    /// Predixy's, with `Distribution modula`.
    Predixy {
        /// `Hash`.
        hash: PredixyHash,
        /// `HashTag`.
        tag: Option<HashTag>,
    },
}

impl Hashing {
    /// The same for these servers.
    ///
    /// # Errors
    /// As [`Placement::twemproxy`] and [`Placement::predixy`]; and what predixy has no place for, so that nothing is heeded
    /// in silence that the data does not follow: weights, and a server that stands there twice.
    pub fn placement(self, nodes: &[Node]) -> Result<Placement, PlacementError> {
        match self {
            Hashing::Twemproxy {
                hash,
                distribution,
                tag,
            } => Placement::twemproxy(hash, distribution, tag, nodes),
            Hashing::Predixy { hash, tag } => {
                if nodes.iter().any(|node| node.weight.get() > 1) {
                    return Err(PlacementError::Weighted);
                }
                let mut sorted: Vec<&Node> = nodes.iter().collect();
                sorted.sort_by_key(|node| &node.address);
                for pair in sorted.windows(2) {
                    if pair[0].address == pair[1].address {
                        return Err(PlacementError::Twice(pair[0].name.clone()));
                    }
                }
                Placement::predixy(hash, tag, nodes.len())
            }
        }
    }
}

/// The number of servers, if it is one that a pool may have.
fn count(servers: usize) -> Result<u32, PlacementError> {
    match servers {
        0 => Err(PlacementError::NoServer),
        1..=SERVERS_MAX => Ok(servers as u32),
        _ => Err(PlacementError::TooManyServers),
    }
}

/// Points in the order of their values, of which there are many. Cut into so many more parts that most have none: there the
/// first bits of a value say the server, and nothing is compared that no processor could foresee.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ring {
    points: Box<[Point]>,
    /// The server of each part, or [`DIVIDED`].
    parts: Box<[u16]>,
    /// Bits of a value behind those that say its part.
    shift: u32,
}

/// A part has points.
const DIVIDED: u16 = u16::MAX;
/// The most bits that say a part: 2 MiB of them.
const PART_BITS_MAX: u32 = 20;

const _: () = assert!(SERVERS_MAX <= DIVIDED as usize, "each server has a number");

impl Ring {
    fn new(points: Box<[Point]>) -> Ring {
        let bits = (points.len().ilog2() + 5).min(PART_BITS_MAX);
        let shift = u32::BITS - bits;
        let server_of = |part: u32| {
            let at = points.partition_point(|point| point.value >> shift < part);
            let next = points.get(at).unwrap_or(&points[0]);
            match next.value >> shift == part {
                true => DIVIDED,
                false => next.server as u16,
            }
        };
        Ring {
            parts: (0..1 << bits).map(server_of).collect(),
            points,
            shift,
        }
    }

    #[inline]
    fn at_or_after(&self, value: u32) -> u32 {
        match self.parts[(value >> self.shift) as usize] {
            DIVIDED => at_or_after(&self.points, value),
            server => server.into(),
        }
    }
}

/// The server of the first point whose value is not below, and of the first of all if there is none.
#[inline(never)]
fn at_or_after(points: &[Point], value: u32) -> u32 {
    let index = points.partition_point(|point| point.value < value);
    points.get(index).unwrap_or(&points[0]).server
}

/// Ketama, as Richard Jones described it in 2007 and twemproxy does it: a server of average weight has 160
/// points, four from each MD5 of `NAME-0` to `NAME-39`. The arithmetic is twemproxy's, in floats of
/// 32 bits, since what it rounds to decides how many points there are.
fn ketama_points(sorted: &[(u32, &Node)], total: u32) -> Box<[Point]> {
    let mut points = Vec::with_capacity(sorted.len() * 160);
    let mut text = Vec::new();
    for &(server, node) in sorted {
        let share = node.weight.get() as f32 / total as f32;
        let digests = share * 160.0 / 4.0 * sorted.len() as f32;
        let digests = (f64::from(digests) + 0.000_000_000_1) as f32;
        for index in 0..digests.floor() as u32 {
            // Twemproxy reads behind its buffer when this has more than 272 bytes; such names have no
            // place there that could be matched.
            text.clear();
            text.extend_from_slice(node.name.as_bytes());
            text.extend_from_slice(format!("-{index}").as_bytes());
            for quarter in md5(&text).chunks_exact(4) {
                let value = little_endian(quarter);
                points.push(Point { value, server });
            }
        }
    }
    // Stable, as the sorting of glibc 2.36 that Debian's twemproxy runs with: where two servers have the
    // same point, the one whose name comes first keeps it.
    points.sort_by_key(|point| point.value);
    assert!(
        !points.is_empty(),
        "a server of at least average weight has points"
    );
    points.into_boxed_slice()
}

/// Each server has as many slots as its weight, one behind the other.
fn modula_points(sorted: &[(u32, &Node)]) -> Box<[Point]> {
    let mut slots = 0;
    let point = |&(server, node): &(u32, &Node)| {
        slots += node.weight.get();
        let value = slots - 1;
        Point { value, server }
    };
    sorted.iter().map(point).collect()
}

/// A hash function of twemproxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hash {
    /// `one_at_a_time`: Bob Jenkins' hash of 1997.
    OneAtATime,
    /// `md5`: the first four bytes of the digest.
    Md5,
    /// `crc16`: not quite, the upper half of the register is left in.
    Crc16,
    /// `crc32`: 15 bits of it, as libmemcached has it. Of little use with ketama.
    Crc32,
    /// `crc32a`: CRC-32 as specified.
    Crc32a,
    /// `fnv1_64`: the lower half of FNV-1 of 64 bits.
    Fnv1Wide,
    /// `fnv1a_64`: the lower half of FNV-1a of 64 bits. Twemproxy's default.
    Fnv1aWide,
    /// `fnv1_32`.
    Fnv1,
    /// `fnv1a_32`.
    Fnv1a,
    /// `hsieh`: SuperFastHash.
    Hsieh,
    /// `murmur`: MurmurHash2.
    Murmur,
    /// `jenkins`: lookup3.
    Jenkins,
}

impl Hash {
    /// All of them, as twemproxy lists them.
    pub const ALL: [Hash; 12] = [
        Hash::OneAtATime,
        Hash::Md5,
        Hash::Crc16,
        Hash::Crc32,
        Hash::Crc32a,
        Hash::Fnv1Wide,
        Hash::Fnv1aWide,
        Hash::Fnv1,
        Hash::Fnv1a,
        Hash::Hsieh,
        Hash::Murmur,
        Hash::Jenkins,
    ];

    /// Its name in twemproxy's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Hash::OneAtATime => "one_at_a_time",
            Hash::Md5 => "md5",
            Hash::Crc16 => "crc16",
            Hash::Crc32 => "crc32",
            Hash::Crc32a => "crc32a",
            Hash::Fnv1Wide => "fnv1_64",
            Hash::Fnv1aWide => "fnv1a_64",
            Hash::Fnv1 => "fnv1_32",
            Hash::Fnv1a => "fnv1a_32",
            Hash::Hsieh => "hsieh",
            Hash::Murmur => "murmur",
            Hash::Jenkins => "jenkins",
        }
    }

    /// The function of that name.
    pub fn named(name: &str) -> Option<Hash> {
        Hash::ALL.into_iter().find(|hash| hash.name() == name)
    }

    /// The hash of some bytes. That of no bytes is 0 with every function: twemproxy asks none of them
    /// about an empty key.
    pub fn of(self, bytes: &[u8]) -> u32 {
        if bytes.is_empty() {
            return 0;
        }
        match self {
            Hash::OneAtATime => functions::one_at_a_time(bytes),
            Hash::Md5 => functions::md5_head(bytes),
            Hash::Crc16 => functions::crc16(bytes),
            Hash::Crc32 => functions::crc32(bytes),
            Hash::Crc32a => functions::crc32a(bytes),
            Hash::Fnv1Wide => functions::fnv1_64(bytes),
            Hash::Fnv1aWide => functions::fnv1a_64(bytes),
            Hash::Fnv1 => functions::fnv1_32(bytes),
            Hash::Fnv1a => functions::fnv1a_32(bytes),
            Hash::Hsieh => functions::hsieh(bytes),
            Hash::Murmur => functions::murmur(bytes),
            Hash::Jenkins => functions::jenkins(bytes),
        }
    }
}

/// How twemproxy gets from a hash to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// Consistent hashing. Twemproxy's default.
    Ketama,
    /// The remainder by the sum of the weights.
    Modula,
    /// Any server.
    Random,
}

impl Distribution {
    /// All of them, as twemproxy lists them.
    pub const ALL: [Distribution; 3] = [
        Distribution::Ketama,
        Distribution::Modula,
        Distribution::Random,
    ];

    /// Its name in twemproxy's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Distribution::Ketama => "ketama",
            Distribution::Modula => "modula",
            Distribution::Random => "random",
        }
    }

    /// The distribution of that name.
    pub fn named(name: &str) -> Option<Distribution> {
        let mut all = Distribution::ALL.into_iter();
        all.find(|distribution| distribution.name() == name)
    }
}

/// A hash function of predixy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PredixyHash {
    /// `atol`: the number that the key begins with.
    Atol,
    /// `crc16`: the one of Redis Cluster.
    Crc16,
}

impl PredixyHash {
    /// All of them.
    pub const ALL: [PredixyHash; 2] = [PredixyHash::Atol, PredixyHash::Crc16];

    /// Its name in predixy's configuration, where its case does not matter.
    pub fn name(self) -> &'static str {
        match self {
            PredixyHash::Atol => "atol",
            PredixyHash::Crc16 => "crc16",
        }
    }

    /// The function of that name.
    pub fn named(name: &str) -> Option<PredixyHash> {
        let mut all = PredixyHash::ALL.into_iter();
        all.find(|hash| hash.name().eq_ignore_ascii_case(name))
    }

    /// The hash of some bytes.
    pub fn of(self, bytes: &[u8]) -> u64 {
        match self {
            PredixyHash::Atol => functions::atol(bytes),
            PredixyHash::Crc16 => u64::from(slot::crc16(bytes)),
        }
    }
}

/// Two characters between which stands the part of a key that is hashed. The rule is the same in
/// twemproxy (`hash_tag`), predixy (`HashTag`) and Redis Cluster, where the characters are `{}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HashTag {
    open: u8,
    close: u8,
}

impl HashTag {
    /// `{}`.
    pub const BRACES: HashTag = HashTag {
        open: b'{',
        close: b'}',
    };

    /// From its two characters as configurations have them, `{}` or `$$`; none if that is not two bytes.
    pub fn named(characters: &str) -> Option<HashTag> {
        match *characters.as_bytes() {
            [open, close] => Some(HashTag { open, close }),
            _ => None,
        }
    }

    /// Its two characters.
    pub fn characters(self) -> [char; 2] {
        [self.open, self.close].map(char::from)
    }

    /// What of a key is hashed: what stands between the first opening character and the first closing one
    /// behind it, unless that is nothing; else the whole key.
    #[inline]
    pub fn part_of(self, key: &[u8]) -> &[u8] {
        // Most keys have no tag: that is seen eight bytes at once.
        let (eights, rest) = key.as_chunks::<8>();
        let pattern = u64::from_ne_bytes([self.open; 8]);
        let has_one = |eight: &[u8; 8]| has_zero(u64::from_ne_bytes(*eight) ^ pattern);
        if !eights.iter().any(has_one) && !rest.contains(&self.open) {
            return key;
        }
        let Some(open) = key.iter().position(|&byte| byte == self.open) else {
            return key;
        };
        let tagged = &key[open + 1..];
        match tagged.iter().position(|&byte| byte == self.close) {
            None | Some(0) => key,
            Some(close) => &tagged[..close],
        }
    }
}

/// Whether one of eight bytes is zero.
fn has_zero(bytes: u64) -> bool {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    bytes.wrapping_sub(ONES) & !bytes & (ONES << 7) != 0
}

/// A server of a pool as twemproxy's configuration has it: `host:port:weight [name]`, or
/// `/path:weight [name]` for a unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// `host:port` or `/path`.
    pub address: String,
    /// How many keys it gets, relative to the others.
    pub weight: NonZeroU32,
    /// What ketama hashes, and what modula sorts by.
    pub name: String,
}

impl Node {
    /// A server with a name of its own: it can move to another address and keeps its keys.
    pub fn named(address: &str, weight: NonZeroU32, name: &str) -> Node {
        let (address, name) = (address.to_owned(), name.to_owned());
        Node {
            address,
            weight,
            name,
        }
    }

    /// A server whose name is its address, in twemproxy's way: as it is written, but without the port if
    /// that is 11211 (libmemcached's default), and with a colon behind the path of a unix socket.
    pub fn unnamed(address: &str, weight: NonZeroU32) -> Node {
        let name = if address.starts_with('/') {
            format!("{address}:")
        } else {
            match address.rsplit_once(':') {
                Some((host, port)) if port.parse() == Ok(11_211_u16) => host.to_owned(),
                _ => address.to_owned(),
            }
        };
        let address = address.to_owned();
        Node {
            address,
            weight,
            name,
        }
    }

    /// From a line under `servers:` of twemproxy's configuration.
    ///
    /// # Errors
    /// Says what is wrong with the line.
    pub fn parse(line: &str) -> Result<Node, NodeError> {
        // From the end, as there: a name has no space, and an address may have colons.
        let (rest, name) = match line.rsplit_once(' ') {
            Some((rest, name)) => (rest, Some(name)),
            None => (line, None),
        };
        let (address, weight) = rest.rsplit_once(':').ok_or(NodeError::Form)?;
        if !address.starts_with('/') {
            let (host, port) = address.rsplit_once(':').ok_or(NodeError::Form)?;
            if host.is_empty() {
                return Err(NodeError::Form);
            }
            digits(port)
                .filter(|port| (1..=65_535).contains(port))
                .ok_or(NodeError::Port)?;
        }
        let weight = digits(weight)
            .and_then(NonZeroU32::new)
            .ok_or(NodeError::Weight)?;
        match name {
            None => Ok(Node::unnamed(address, weight)),
            Some("") => Err(NodeError::Form),
            Some(name) => Ok(Node::named(address, weight, name)),
        }
    }
}

/// A number that is written with nothing but digits.
fn digits(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// Why there is no placement for a list of servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementError {
    /// The list is empty.
    NoServer,
    /// There are more than [`SERVERS_MAX`].
    TooManyServers,
    /// Two servers have this name.
    SameName(String),
    /// The weights sum up to more than 32 bits hold.
    TooHeavy,
    /// There are weights, and the rule has none.
    Weighted,
    /// A server of this name stands there twice.
    Twice(String),
}

impl fmt::Display for PlacementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlacementError::NoServer => f.write_str("a sharded pool needs a server"),
            PlacementError::TooManyServers => {
                write!(f, "a sharded pool has at most {SERVERS_MAX} servers")
            }
            PlacementError::SameName(name) => write!(f, "two servers have the name '{name}'"),
            PlacementError::TooHeavy => {
                write!(f, "the weights sum up to more than {}", u32::MAX)
            }
            PlacementError::Weighted => f.write_str(
                "predixy has no weights, each of its servers gets as many keys as the others: leave them away",
            ),
            PlacementError::Twice(name) => write!(
                f,
                "'{name}' stands there twice, and would get the keys of two: name each server once, in the order that predixy has"
            ),
        }
    }
}

impl Error for PlacementError {}

/// What is wrong with the line of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeError {
    /// It is not `host:port:weight [name]` or `/path:weight [name]`.
    Form,
    /// The port is no number from 1 to 65535.
    Port,
    /// The weight is no number from 1 on.
    Weight,
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NodeError::Form => {
                "a server is written 'host:port:weight [name]' or '/path:weight [name]'"
            }
            NodeError::Port => "a port is a number from 1 to 65535",
            NodeError::Weight => "a weight is a number from 1 on",
        })
    }
}

impl Error for NodeError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(line: &str) -> Node {
        Node::parse(line).expect(line)
    }

    fn never() -> u32 {
        panic!("a placement by key asks for no random number")
    }

    /// A key's part is what stands in the first pair, unless that is nothing.
    #[test]
    fn a_hash_tag_decides_alone() {
        let same = HashTag::named("$$").unwrap();
        let two = HashTag::named("<>").unwrap();
        for (tag, key, part) in [
            (same, &b"a$b$c"[..], &b"b"[..]),
            (same, b"a$b", b"a$b"),
            (same, b"$$a$", b"$$a$"),
            (two, b">a<b>c", b"b"),
            (two, b"<<a>", b"<a"),
            (HashTag::BRACES, b"{a}{b}", b"a"),
            (HashTag::BRACES, b"", b""),
        ] {
            assert_eq!(tag.part_of(key), part, "{}", key.escape_ascii());
        }
        assert_eq!(HashTag::named("{"), None);
        assert_eq!(HashTag::named("{ }"), None);
        assert_eq!(
            HashTag::named("é").unwrap().part_of("aéb".as_bytes()),
            "aéb".as_bytes()
        );
    }

    /// Every form that twemproxy's configuration knows, and what ketama hashes for it.
    #[test]
    fn a_line_of_twemproxy_gives_address_weight_and_name() {
        for (line, address, weight, name) in [
            ("10.0.0.1:6379:1", "10.0.0.1:6379", 1, "10.0.0.1:6379"),
            ("10.0.0.1:11211:3", "10.0.0.1:11211", 3, "10.0.0.1"),
            ("10.0.0.1:11211:3 a", "10.0.0.1:11211", 3, "a"),
            ("cache-7:06379:2 b:1:2", "cache-7:06379", 2, "b:1:2"),
            ("::1:6379:1", "::1:6379", 1, "::1:6379"),
            ("/run/a:1", "/run/a", 1, "/run/a:"),
            ("/run/a:b:1 c", "/run/a:b", 1, "c"),
        ] {
            let found = node(line);
            assert_eq!(found.address, address);
            assert_eq!(found.weight.get(), weight);
            assert_eq!(found.name, name);
        }
        for (line, error) in [
            ("", NodeError::Form),
            ("10.0.0.1", NodeError::Form),
            ("10.0.0.1:6379", NodeError::Form),
            (":6379:1", NodeError::Form),
            ("10.0.0.1:6379:1 ", NodeError::Form),
            ("10.0.0.1:0:1", NodeError::Port),
            ("10.0.0.1:65536:1", NodeError::Port),
            ("10.0.0.1:+80:1", NodeError::Port),
            ("10.0.0.1:6379:0", NodeError::Weight),
            ("10.0.0.1:6379:+1", NodeError::Weight),
            ("10.0.0.1:6379: a", NodeError::Weight),
        ] {
            assert_eq!(Node::parse(line), Err(error), "{line:?}");
        }
    }

    /// What twemproxy's own test expects of two points of `server1`.
    #[test]
    fn the_published_ketama_points_are_there() {
        let server = node("h:1:1 server1");
        let points = ketama_points(&[(0, &server)], 1);
        assert_eq!(points.len(), 160);
        for value in [3_853_726_576, 2_667_054_752] {
            assert!(points.iter().any(|point| point.value == value), "{value}");
        }
        assert!(points.windows(2).all(|pair| pair[0].value <= pair[1].value));
    }

    /// Behind the last point comes the first one; a point belongs to itself.
    #[test]
    fn the_search_ends_at_the_right_point() {
        let point = |value, server| Point { value, server };
        let points = [point(10, 3), point(10, 4), point(20, 5)];
        for (value, server) in [(0, 3), (10, 3), (11, 5), (20, 5), (21, 3), (u32::MAX, 3)] {
            assert_eq!(at_or_after(&points, value), server, "{value}");
            let ring = Ring::new(points.into());
            assert_eq!(ring.at_or_after(value), server, "{value}");
        }
    }

    /// What the first bits of a value leave is where a search among all points ends.
    #[test]
    fn however_points_lie_a_look_at_a_few_finds_the_same_as_a_search_among_all() {
        let spread: fn(u32) -> u32 = |index| index.wrapping_mul(2_654_435_761);
        let crowded: fn(u32) -> u32 = |index| u32::MAX - index / 3;
        for (count, value_of) in [(1, spread), (2, spread), (480, spread), (1_000, crowded)] {
            let mut values: Vec<u32> = (0..count).map(value_of).collect();
            values.sort();
            let of = |(server, value)| Point { value, server };
            let points: Box<[Point]> = (0..).zip(values.iter().copied()).map(of).collect();
            let ring = Ring::new(points.clone());
            let near = values
                .iter()
                .flat_map(|value| [value.wrapping_sub(1), *value, value.wrapping_add(1), !value]);
            for value in near.chain([0, 1, u32::MAX]) {
                assert_eq!(
                    ring.at_or_after(value),
                    at_or_after(&points, value),
                    "{value}"
                );
            }
        }
    }

    /// Slots by weight, servers by the length of their names and then by the names, indexes by the list.
    #[test]
    fn modula_sorts_by_name_and_counts_by_weight() {
        let nodes = [
            node("h:1:1 beta"),
            node("h:2:2 c"),
            node("h:3:3 alpha"),
            node("h:4:1 zeta"),
        ];
        let placement =
            Placement::twemproxy(Hash::Crc32a, Distribution::Modula, None, &nodes).unwrap();
        for number in 0..100_u32 {
            let key = number.to_string();
            let slot = Hash::Crc32a.of(key.as_bytes()) % 7;
            let server = [1, 1, 0, 3, 2, 2, 2][slot as usize];
            assert_eq!(placement.server_of(key.as_bytes(), never), server);
        }
    }

    /// Predixy's remainder is one of unsigned numbers, in the order of the list.
    #[test]
    fn predixy_takes_the_remainder_of_an_unsigned_number() {
        let tag = HashTag::named("{}");
        let atol = Placement::predixy(PredixyHash::Atol, tag, 3).unwrap();
        let of = |key: &str| atol.server_of(key.as_bytes(), never);
        assert_eq!(of("7"), 1);
        assert_eq!(of("+8:x"), 2);
        assert_eq!(of("user"), 0);
        assert_eq!(of("5{7}"), 1);
        // 2^64 - 1 is divided by 3 without a rest; 2^64 - 2 leaves 2.
        assert_eq!(of("-1"), 0);
        assert_eq!(of("-2"), 2);

        let crc16 = Placement::predixy(PredixyHash::Crc16, tag, 5).unwrap();
        for number in 0..100 {
            let key = format!("{number}{{user:{number}}}");
            let server = usize::from(slot::crc16(format!("user:{number}").as_bytes()) % 5);
            assert_eq!(crc16.server_of(key.as_bytes(), never), server);
        }
    }

    /// Random asks for one number, which alone decides.
    #[test]
    fn random_is_decided_by_the_number() {
        let nodes = [node("h:1:9 a"), node("h:2:1 b"), node("h:3:1 c")];
        let one = Placement::twemproxy(Hash::Md5, Distribution::Random, None, &nodes).unwrap();
        let two = Placement::random(3).unwrap();
        for number in [0, 1, 2, 3, 100, u32::MAX] {
            for placement in [&one, &two] {
                assert!(!placement.is_by_key());
                let server = placement.server_of(b"key", || number);
                assert_eq!(server, number as usize % 3);
            }
        }
    }

    /// What twemproxy would refuse, or what would have no bound, is refused when the pool is built.
    #[test]
    fn impossible_pools_are_refused() {
        let refusal = |nodes: &[Node]| {
            Placement::twemproxy(Hash::Md5, Distribution::Ketama, None, nodes).unwrap_err()
        };
        assert_eq!(refusal(&[]), PlacementError::NoServer);
        assert_eq!(
            refusal(&[node("h:1:1 a"), node("h:2:1 b"), node("h:3:1 a")]),
            PlacementError::SameName("a".to_owned())
        );
        assert_eq!(
            refusal(&[node("h:1:4294967295 a"), node("h:2:1 b")]),
            PlacementError::TooHeavy
        );
        let predixy = Hashing::Predixy {
            hash: PredixyHash::Crc16,
            tag: None,
        };
        let refusal = |nodes: &[Node]| predixy.placement(nodes).unwrap_err();
        assert_eq!(
            refusal(&[node("h:1:1"), node("h:2:2")]),
            PlacementError::Weighted
        );
        assert_eq!(
            refusal(&[node("h:1:1 a"), node("h:2:1"), node("h:1:1 b")]),
            PlacementError::Twice("a".to_owned())
        );
        assert!(predixy.placement(&[node("h:1:1"), node("h:2:1")]).is_ok());
        let too_many = Placement::random(SERVERS_MAX + 1).unwrap_err();
        assert_eq!(too_many, PlacementError::TooManyServers);
        assert!(Placement::random(SERVERS_MAX).is_ok());
    }

    /// Names are found again, and each function has one of its own.
    #[test]
    fn names_are_twemproxys_and_predixys() {
        for hash in Hash::ALL {
            assert_eq!(Hash::named(hash.name()), Some(hash));
        }
        for distribution in Distribution::ALL {
            assert_eq!(Distribution::named(distribution.name()), Some(distribution));
        }
        assert_eq!(PredixyHash::named("CRC16"), Some(PredixyHash::Crc16));
        assert_eq!(PredixyHash::named("atol"), Some(PredixyHash::Atol));
        assert_eq!(Hash::named("crc64"), None);
    }
}
