//! Placement of keys on the servers of a hash-sharded pool, by the rules of twemproxy or predixy.
//!
//! Users of these proxies have their data where the proxy put it. So every rule gives the same
//! server as the proxy, odd cases included:
//!
//! ```text
//! key ──hash tag──> hashed part ──hash──> number ──distribution──> server
//! ```
//!
//! A [`Placement`] is built once from the servers of a pool. [`Placement::server_of`] then
//! allocates nothing. Modula costs a remainder and a search among the servers. Ketama costs a table
//! look-up, and for some keys a search among the points.
//!
//! Sources: twemproxy 0.5 (`src/hashkit`, `src/nc_server.c`, `src/nc_conf.c`) and predixy 1.0.5
//! (`src/HashFunc.cpp`, `src/StandaloneServerPool.cpp`). Tests compare with the binary of
//! twemproxy, Debian's `nutcracker` (`tests/hashing.rs` here, and live in the lab's
//! `tests/hashing.rs`). For predixy only its source was read.

mod functions;
mod md5;

use std::error::Error;
use std::fmt;
use std::num::NonZeroU32;

use crate::slot;
use md5::{little_endian, md5};

/// Most servers of a sharded pool. On average a server has at most 160 points of 8 bytes.
pub const SERVERS_MAX: usize = 4_096;

/// The server of each key, fixed by a list of servers, a hash function and a distribution.
///
/// A server is its index in the list that the placement was built from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    tag: Option<HashTag>,
    rule: PlacementRule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PlacementRule {
    /// The server of the first point at or after the hash. After the last point the first one
    /// follows.
    Ketama { hash: Hash, ring: Ring },
    /// The slot is the hash modulo the sum of the weights. Each server's point is its last slot.
    Modula {
        hash: Hash,
        slots: NonZeroU32,
        points: Box<[Point]>,
    },
    /// The hash modulo the number of servers.
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
    /// A placement by twemproxy's rules.
    ///
    /// Modula counts the servers in the order of their names, shorter names first, not in the order
    /// of the list. Ketama rounds a server's number of points down to a multiple of four, so a
    /// server of very little weight gets no key. Random ignores weights. With `auto_eject_hosts`,
    /// twemproxy places keys as if ejected servers were not in the list.
    ///
    /// # Errors
    /// When there are no servers, or too many. When two servers have the same name; twemproxy
    /// refuses this, too. When the sum of the weights exceeds 32 bits.
    pub fn twemproxy(
        hash: Hash,
        distribution: Distribution,
        tag: Option<HashTag>,
        nodes: &[TwemproxyNode],
    ) -> Result<Placement, PlacementError> {
        let servers = count(nodes.len())?;
        // Twemproxy sorts its servers by name first.
        let mut sorted: Vec<(u32, &TwemproxyNode)> = (0..).zip(nodes).collect();
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
            Distribution::Ketama => PlacementRule::Ketama {
                hash,
                ring: Ring::new(ketama_points(&sorted, total.get())),
            },
            Distribution::Modula => PlacementRule::Modula {
                hash,
                slots: total,
                points: modula_points(&sorted),
            },
            Distribution::Random => PlacementRule::Random { servers },
        };
        Ok(Placement { tag, rule })
    }

    /// A placement by predixy's rules with `Distribution modula`, on this many groups in the order
    /// of its configuration.
    ///
    /// One case differs. If a key lies in two of predixy's buffers, predixy hashes only its first
    /// 512 bytes. So predixy itself places longer keys differently from time to time.
    ///
    /// # Errors
    /// When there are no servers, or too many.
    pub fn predixy(
        hash: PredixyHash,
        tag: Option<HashTag>,
        servers: usize,
    ) -> Result<Placement, PlacementError> {
        let servers = u64::from(count(servers)?);
        let rule = PlacementRule::Predixy { hash, servers };
        Ok(Placement { tag, rule })
    }

    /// A random server for each request, as `random` in both proxies. This suits servers with the
    /// same data, or data of which a missed read does no harm.
    ///
    /// # Errors
    /// When there are no servers, or too many.
    pub fn random(servers: usize) -> Result<Placement, PlacementError> {
        let servers = count(servers)?;
        let rule = PlacementRule::Random { servers };
        Ok(Placement { tag: None, rule })
    }

    /// The index of a key's server.
    ///
    /// `random` is called only for a random distribution, and its number alone decides. Numbers
    /// from a seed make the result reproducible.
    #[inline]
    pub fn server_of(&self, key: &[u8], random: impl FnOnce() -> u32) -> usize {
        let part = match self.tag {
            Some(tag) => tag.part_of(key),
            None => key,
        };
        let server = match &self.rule {
            PlacementRule::Ketama { hash, ring } => ring.at_or_after(hash.of(part)),
            PlacementRule::Modula {
                hash,
                slots,
                points,
            } => at_or_after(points, hash.of(part) % *slots),
            PlacementRule::Predixy { hash, servers } => (hash.of(part) % servers) as u32,
            PlacementRule::Random { servers } => random() % servers,
        };
        server as usize
    }

    /// Whether a key's server depends on the key. With a random distribution two requests for the
    /// same key may go to two servers.
    pub fn is_by_key(&self) -> bool {
        !matches!(self.rule, PlacementRule::Random { .. })
    }
}

/// The placement rule of the proxy that placed the data, without the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hashing {
    /// Twemproxy's rule.
    Twemproxy {
        /// `hash`.
        hash: Hash,
        /// `distribution`.
        distribution: Distribution,
        /// `hash_tag`.
        tag: Option<HashTag>,
    },
    /// Predixy's rule with `Distribution modula`.
    Predixy {
        /// `Hash`.
        hash: PredixyHash,
        /// `HashTag`.
        tag: Option<HashTag>,
    },
}

impl Hashing {
    /// The placement on these servers.
    ///
    /// # Errors
    /// As [`Placement::twemproxy`] and [`Placement::predixy`]. For predixy also weights, and a
    /// server that is listed twice: predixy does not have these, so its data does not follow them.
    pub fn placement(self, nodes: &[TwemproxyNode]) -> Result<Placement, PlacementError> {
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
                let mut sorted: Vec<&TwemproxyNode> = nodes.iter().collect();
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

/// Checks the number of servers.
fn count(servers: usize) -> Result<u32, PlacementError> {
    match servers {
        0 => Err(PlacementError::NoServer),
        1..=SERVERS_MAX => Ok(servers as u32),
        _ => Err(PlacementError::TooManyServers),
    }
}

/// Points in the order of their values, with a table over the range of values. The range is divided
/// into many more arcs than points, so most arcs have no point. There the first bits of a value
/// give the server, without comparisons that the processor would mispredict.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ring {
    points: Box<[Point]>,
    /// The server of each arc, or [`DIVIDED`].
    arcs: Box<[u16]>,
    /// Number of a value's bits behind those that select the arc.
    shift: u32,
}

/// Entry of an arc that has points.
const DIVIDED: u16 = u16::MAX;
/// Most bits that select an arc: a table of 2 MiB.
const ARC_BITS_MAX: u32 = 20;

const _: () = assert!(SERVERS_MAX <= DIVIDED as usize, "DIVIDED is no server");

impl Ring {
    fn new(points: Box<[Point]>) -> Ring {
        let bits = (points.len().ilog2() + 5).min(ARC_BITS_MAX);
        let shift = u32::BITS - bits;
        let server_of = |arc: u32| {
            let at = points.partition_point(|point| point.value >> shift < arc);
            let next = points.get(at).unwrap_or(&points[0]);
            match next.value >> shift == arc {
                true => DIVIDED,
                false => next.server as u16,
            }
        };
        Ring {
            arcs: (0..1 << bits).map(server_of).collect(),
            points,
            shift,
        }
    }

    #[inline]
    fn at_or_after(&self, value: u32) -> u32 {
        match self.arcs[(value >> self.shift) as usize] {
            DIVIDED => at_or_after(&self.points, value),
            server => server.into(),
        }
    }
}

/// The server of the first point at or after `value`, or else of the first point.
#[inline(never)]
fn at_or_after(points: &[Point], value: u32) -> u32 {
    let index = points.partition_point(|point| point.value < value);
    points.get(index).unwrap_or(&points[0]).server
}

/// Ketama, described by Richard Jones in 2007, as twemproxy does it. A server of average weight has
/// 160 points, four from each MD5 of `NAME-0` to `NAME-39`. The arithmetic is twemproxy's, with
/// 32-bit floats, because its rounding decides the number of points.
fn ketama_points(sorted: &[(u32, &TwemproxyNode)], total: u32) -> Box<[Point]> {
    let mut points = Vec::with_capacity(sorted.len() * 160);
    let mut text = Vec::new();
    for &(server, node) in sorted {
        let share = node.weight.get() as f32 / total as f32;
        let digests = share * 160.0 / 4.0 * sorted.len() as f32;
        let digests = (f64::from(digests) + 0.000_000_000_1) as f32;
        for index in 0..digests.floor() as u32 {
            // For a text of more than 272 bytes twemproxy reads behind its buffer. The placement of
            // such names cannot be reproduced.
            text.clear();
            text.extend_from_slice(node.name.as_bytes());
            text.extend_from_slice(format!("-{index}").as_bytes());
            for quarter in md5(&text).chunks_exact(4) {
                let value = little_endian(quarter);
                points.push(Point { value, server });
            }
        }
    }
    // The sort is stable, as in glibc 2.36, which Debian's twemproxy uses. If two servers have the
    // same point, the server with the first name keeps it.
    points.sort_by_key(|point| point.value);
    assert!(
        !points.is_empty(),
        "a server of at least average weight has points"
    );
    points.into_boxed_slice()
}

/// Each server has as many consecutive slots as its weight.
fn modula_points(sorted: &[(u32, &TwemproxyNode)]) -> Box<[Point]> {
    let mut slots = 0;
    let point = |&(server, node): &(u32, &TwemproxyNode)| {
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
    /// `crc16`: CRC16 without clearing the upper half of the register.
    Crc16,
    /// `crc32`: 15 bits of CRC-32, as in libmemcached. Of little use with ketama.
    Crc32,
    /// `crc32a`: CRC-32 as specified.
    Crc32a,
    /// `fnv1_64`: the lower half of 64-bit FNV-1.
    Fnv1Wide,
    /// `fnv1a_64`: the lower half of 64-bit FNV-1a. Twemproxy's default.
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
    /// All functions, in twemproxy's order.
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

    /// The function with this name.
    pub fn named(name: &str) -> Option<Hash> {
        Hash::ALL.into_iter().find(|hash| hash.name() == name)
    }

    /// The hash of some bytes. Without bytes it is 0, because twemproxy does not hash an empty key.
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

/// Twemproxy's rule from a hash to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// Consistent hashing. Twemproxy's default.
    Ketama,
    /// The hash modulo the sum of the weights.
    Modula,
    /// A random server for each request.
    Random,
}

impl Distribution {
    /// All distributions, in twemproxy's order.
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

    /// The distribution with this name.
    pub fn named(name: &str) -> Option<Distribution> {
        let mut all = Distribution::ALL.into_iter();
        all.find(|distribution| distribution.name() == name)
    }
}

/// A hash function of predixy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PredixyHash {
    /// `atol`: the number at the beginning of the key.
    Atol,
    /// `crc16`: CRC16 as in Redis Cluster.
    Crc16,
}

impl PredixyHash {
    /// All functions.
    pub const ALL: [PredixyHash; 2] = [PredixyHash::Atol, PredixyHash::Crc16];

    /// Its name in predixy's configuration, where it may have any case.
    pub fn name(self) -> &'static str {
        match self {
            PredixyHash::Atol => "atol",
            PredixyHash::Crc16 => "crc16",
        }
    }

    /// The function with this name.
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

/// Two characters that enclose the hashed part of a key. The rule is the same in twemproxy
/// (`hash_tag`), predixy (`HashTag`) and Redis Cluster, which uses `{}`.
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

    /// Reads the two characters of a configuration, for example `{}` or `$$`. `None` if these are
    /// not two bytes.
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

    /// The hashed part of a key: the bytes between the first opening character and the next closing
    /// character. If there are none, the whole key.
    #[inline]
    pub fn part_of(self, key: &[u8]) -> &[u8] {
        // Most keys have no tag. This check reads eight bytes at once.
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

/// A server in twemproxy's configuration: `host:port:weight [name]`, or `/path:weight [name]` for a
/// Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TwemproxyNode {
    /// `host:port` or `/path`.
    pub address: String,
    /// Its share of the keys relative to the other servers.
    pub weight: NonZeroU32,
    /// Its name: ketama hashes it, modula sorts by it.
    pub name: String,
}

impl TwemproxyNode {
    /// A server with its own name. It keeps its keys when its address changes.
    pub fn named(address: &str, weight: NonZeroU32, name: &str) -> TwemproxyNode {
        let (address, name) = (address.to_owned(), name.to_owned());
        TwemproxyNode {
            address,
            weight,
            name,
        }
    }

    /// A server whose name is its address as written, with twemproxy's two exceptions. Port 11211,
    /// libmemcached's default, is left out. The path of a Unix socket gets a colon.
    pub fn unnamed(address: &str, weight: NonZeroU32) -> TwemproxyNode {
        let name = if address.starts_with('/') {
            format!("{address}:")
        } else {
            match address.rsplit_once(':') {
                Some((host, port)) if port.parse() == Ok(11_211_u16) => host.to_owned(),
                _ => address.to_owned(),
            }
        };
        let address = address.to_owned();
        TwemproxyNode {
            address,
            weight,
            name,
        }
    }

    /// Reads a line under `servers:` of twemproxy's configuration.
    ///
    /// # Errors
    /// When the line is malformed; the error names the fault.
    pub fn parse(line: &str) -> Result<TwemproxyNode, NodeError> {
        // The line is read from its end, as in twemproxy: a name has no space, but an address may
        // have colons.
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
            None => Ok(TwemproxyNode::unnamed(address, weight)),
            Some("") => Err(NodeError::Form),
            Some(name) => Ok(TwemproxyNode::named(address, weight, name)),
        }
    }
}

/// Reads a number of decimal digits alone.
fn digits(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// The reason why a list of servers has no placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementError {
    /// The list is empty.
    NoServer,
    /// The list has more than [`SERVERS_MAX`] servers.
    TooManyServers,
    /// Two servers have this name.
    SameName(String),
    /// The sum of the weights exceeds 32 bits.
    TooHeavy,
    /// A server has a weight, but predixy has no weights.
    Weighted,
    /// The server with this name is listed twice.
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
                "predixy has no weights: each of its servers gets equally many keys; leave the weights out",
            ),
            PlacementError::Twice(name) => write!(
                f,
                "'{name}' stands there twice, and would get the keys of two: name each server once, in the order that predixy has"
            ),
        }
    }
}

impl Error for PlacementError {}

/// The fault in the line of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeError {
    /// The line is not `host:port:weight [name]` or `/path:weight [name]`.
    Form,
    /// The port is not a number from 1 to 65535.
    Port,
    /// The weight is not a positive number.
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

    fn node(line: &str) -> TwemproxyNode {
        TwemproxyNode::parse(line).expect(line)
    }

    fn never() -> u32 {
        panic!("a placement by key needs no random number")
    }

    /// The hashed part of a key is inside the first pair of tag characters, unless this is empty.
    #[test]
    fn hashed_part_is_inside_the_first_tag() {
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

    /// Each form of a server in twemproxy's configuration gives address, weight and name.
    #[test]
    fn twemproxy_line_gives_address_weight_and_name() {
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
            assert_eq!(TwemproxyNode::parse(line), Err(error), "{line:?}");
        }
    }

    /// `server1` has the two points that twemproxy's own test expects.
    #[test]
    fn published_ketama_points_are_there() {
        let server = node("h:1:1 server1");
        let points = ketama_points(&[(0, &server)], 1);
        assert_eq!(points.len(), 160);
        for value in [3_853_726_576, 2_667_054_752] {
            assert!(points.iter().any(|point| point.value == value), "{value}");
        }
        assert!(points.windows(2).all(|pair| pair[0].value <= pair[1].value));
    }

    /// A search finds the point at or after a value. After the last point it finds the first one.
    #[test]
    fn search_finds_the_point_at_or_after_a_value() {
        let point = |value, server| Point { value, server };
        let points = [point(10, 3), point(10, 4), point(20, 5)];
        for (value, server) in [(0, 3), (10, 3), (11, 5), (20, 5), (21, 3), (u32::MAX, 3)] {
            assert_eq!(at_or_after(&points, value), server, "{value}");
            let ring = Ring::new(points.into());
            assert_eq!(ring.at_or_after(value), server, "{value}");
        }
    }

    /// The table of arcs finds the same server as a search among all points.
    #[test]
    fn ring_finds_the_same_server_as_a_full_search() {
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

    /// Modula sorts servers by length of name and then by name, and gives slots by weight.
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

    /// Predixy takes the remainder of an unsigned number, and servers in the order of the list.
    #[test]
    fn predixy_takes_the_remainder_of_an_unsigned_number() {
        let tag = HashTag::named("{}");
        let atol = Placement::predixy(PredixyHash::Atol, tag, 3).unwrap();
        let of = |key: &str| atol.server_of(key.as_bytes(), never);
        assert_eq!(of("7"), 1);
        assert_eq!(of("+8:x"), 2);
        assert_eq!(of("user"), 0);
        assert_eq!(of("5{7}"), 1);
        // 2^64 - 1 modulo 3 is 0; 2^64 - 2 modulo 3 is 2.
        assert_eq!(of("-1"), 0);
        assert_eq!(of("-2"), 2);

        let crc16 = Placement::predixy(PredixyHash::Crc16, tag, 5).unwrap();
        for number in 0..100 {
            let key = format!("{number}{{user:{number}}}");
            let server = usize::from(slot::crc16(format!("user:{number}").as_bytes()) % 5);
            assert_eq!(crc16.server_of(key.as_bytes(), never), server);
        }
    }

    /// With a random distribution the number alone decides.
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

    /// Lists of servers that a proxy would refuse, or that exceed a bound, are errors.
    #[test]
    fn impossible_pools_are_refused() {
        let refusal = |nodes: &[TwemproxyNode]| {
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
        let refusal = |nodes: &[TwemproxyNode]| predixy.placement(nodes).unwrap_err();
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

    /// Each hash function and distribution is found by its name.
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
