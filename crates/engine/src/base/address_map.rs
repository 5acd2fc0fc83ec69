//! How respool reaches servers that name themselves by other addresses.
//!
//! Behind NAT, in containers and behind forwarded ports, the nodes of a Cluster and Sentinels name
//! addresses of their own network. A map translates each of these:
//!
//! ```text
//!   10.0.0.1:6379=127.0.0.1:7001             one address
//!   10.0.0.1=127.0.0.1                       every port of a host; the port stays
//!   10.0.0.1:7000-7005=10.1.0.1:17000-17005  each port of a range, in their order
//!   redis-*:6379=*.example:6379              the right `*` repeats the text of the left one
//! ```
//!
//! An address goes through the map once. Entries without a `*` in their host come first: those with
//! one port, then those with a range, then those with any port. Of the other entries the first that
//! fits counts. An address that fits no entry stays unchanged.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use respool_protocol::cluster::{Endpoint, HOST_BYTES_MAX};

use crate::base::limits::ADDRESS_MAP_MAX;

/// The entries of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressMap {
    /// In the order in which they were given.
    entries: Vec<MapEntry>,
    /// The places of entries without a `*` in their host, by host.
    by_host: BTreeMap<String, HostEntries>,
    /// The places of entries with a `*`.
    patterns: Vec<usize>,
}

/// The places of the entries for one host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct HostEntries {
    /// Entries with one port.
    by_port: HashMap<u16, usize>,
    /// Entries with a range of ports.
    ranges: Vec<usize>,
    /// The entry for any port.
    any_port: Option<usize>,
}

/// An entry: an address as servers name it, and as respool reaches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapEntry {
    from: MapSide,
    to: MapSide,
}

/// One side of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MapSide {
    host: Host,
    ports: Ports,
}

/// A host, or a pattern of hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    /// A name in lower case, or an IP address without brackets.
    Exactly(String),
    /// The texts before and behind one `*`.
    Around(String, String),
}

/// Ports of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ports {
    /// On the left any port, on the right the same port.
    Any,
    /// From the first to the second.
    Range(u16, u16),
}

/// The reason why a list of entries is no valid map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapError {
    /// Two entries have this left side.
    Twice(String),
    /// Entries lead from this address to others and back.
    Loop(String),
    /// There are more than [`ADDRESS_MAP_MAX`].
    TooMany,
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapError::Twice(left) => write!(
                f,
                "`{left}` stands on the left of two entries: remove one of them"
            ),
            MapError::Loop(left) => write!(
                f,
                "`{left}` leads back to itself by way of other entries: on the right stands the \
                 address that respool connects to"
            ),
            MapError::TooMany => write!(f, "has more than {ADDRESS_MAP_MAX} entries"),
        }
    }
}

impl AddressMap {
    /// A map of these entries.
    ///
    /// # Errors
    /// When two entries have the same left side, when entries lead back to where they began, or
    /// when there are too many.
    pub fn new(entries: Vec<MapEntry>) -> Result<AddressMap, MapError> {
        if entries.len() > ADDRESS_MAP_MAX {
            return Err(MapError::TooMany);
        }
        let mut map = AddressMap::default();
        for (place, entry) in entries.iter().enumerate() {
            let from = &entry.from;
            let is_twice = match &from.host {
                Host::Around(..) => {
                    let mut others = map.patterns.iter();
                    let is_same = |other: &usize| entries[*other].from == *from;
                    let is_twice = others.any(is_same);
                    map.patterns.push(place);
                    is_twice
                }
                Host::Exactly(host) => {
                    let places = map.by_host.entry(host.clone()).or_default();
                    match from.ports {
                        Ports::Any => places.any_port.replace(place).is_some(),
                        Ports::Range(first, last) if first == last => {
                            places.by_port.insert(first, place).is_some()
                        }
                        Ports::Range(..) => {
                            let mut others = places.ranges.iter();
                            let is_twice = others.any(|other| entries[*other].from == *from);
                            places.ranges.push(place);
                            is_twice
                        }
                    }
                }
            };
            if is_twice {
                return Err(MapError::Twice(from.to_string()));
            }
        }
        map.entries = entries;
        match map.entries.iter().find(|entry| map.leads_back(entry)) {
            Some(entry) => Err(MapError::Loop(entry.from.to_string())),
            None => Ok(map),
        }
    }

    /// Whether entries lead from the left side of this one to other addresses and back. An entry
    /// that leads to itself is no loop: it exempts its address from a pattern.
    fn leads_back(&self, entry: &MapEntry) -> bool {
        let Host::Exactly(host) = &entry.from.host else {
            return false;
        };
        let start = Endpoint {
            host: host.clone(),
            port: match entry.from.ports {
                Ports::Range(first, _) => first,
                Ports::Any => 1,
            },
        };
        let mut at = start.clone();
        // A path with more steps than there are entries meets an entry twice.
        for _ in 0..self.entries.len() {
            let next = self.apply(&at);
            if next == at {
                return false;
            }
            if next == start {
                return true;
            }
            at = next;
        }
        false
    }

    /// Whether the map has no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries as [`MapEntry::parse`] reads them.
    pub fn entries(&self) -> &[MapEntry] {
        &self.entries
    }

    /// The address at which respool reaches a server that nodes name as `named`.
    pub fn apply(&self, named: &Endpoint) -> Endpoint {
        if self.is_empty() {
            return named.clone();
        }
        let host = fold(&named.host);
        let port = named.port;
        let exactly = self.by_host.get(&host).and_then(|places| {
            let one = places.by_port.get(&port).copied();
            let fits = |place: &&usize| self.entries[**place].from.ports.offset_of(port).is_some();
            let range = || places.ranges.iter().find(fits).copied();
            one.or_else(range).or(places.any_port)
        });
        let places = exactly.iter().chain(&self.patterns);
        let mut reached = places.filter_map(|place| self.entries[*place].reach(&host, port));
        reached.next().unwrap_or_else(|| named.clone())
    }
}

impl MapEntry {
    /// Reads `HOST[:PORTS]=HOST[:PORTS]`.
    ///
    /// # Errors
    /// Returns the mistake in the text.
    pub fn parse(text: &str) -> Result<MapEntry, String> {
        let Some((from, to)) = text.split_once('=') else {
            return Err(
                "must be NAMED=REACHED, such as 10.0.0.1:6379=127.0.0.1:7001: it lacks the `=`"
                    .into(),
            );
        };
        if to.contains('=') {
            return Err("has two `=`: one entry is NAMED=REACHED".into());
        }
        let (from, to) = (MapSide::parse(from.trim())?, MapSide::parse(to.trim())?);
        if matches!(to.host, Host::Around(..)) && !matches!(from.host, Host::Around(..)) {
            return Err("has a `*` in the host on the right, and none on the left".into());
        }
        match (from.ports, to.ports) {
            (_, Ports::Range(first, last)) if first == last => {}
            (Ports::Range(first, last), Ports::Range(to_first, to_last))
                if last - first == to_last - to_first => {}
            (_, Ports::Range(..)) => {
                return Err(
                    "a range of ports on the right needs one on the left that is as long".into(),
                );
            }
            (_, Ports::Any) => {}
        }
        Ok(MapEntry { from, to })
    }

    /// The only address to which the entry leads. `None`: it leads to several.
    pub fn only_address(&self) -> Option<Endpoint> {
        let Host::Exactly(host) = &self.to.host else {
            return None;
        };
        let ports = match self.to.ports {
            Ports::Any => self.from.ports,
            to => to,
        };
        let Ports::Range(port, last) = ports else {
            return None;
        };
        (port == last).then(|| Endpoint {
            host: host.clone(),
            port,
        })
    }

    /// The address by which a server is reached. `None`: the entry does not fit.
    fn reach(&self, host: &str, port: u16) -> Option<Endpoint> {
        let star = self.from.host.star_of(host)?;
        let offset = self.from.ports.offset_of(port)?;
        let host = match &self.to.host {
            Host::Exactly(host) => host.clone(),
            Host::Around(before, behind) => format!("{before}{star}{behind}"),
        };
        // The text of the `*` may make the name too long for a host.
        let is_host = host.len() <= HOST_BYTES_MAX;
        is_host.then_some(Endpoint {
            host,
            port: match self.to.ports {
                Ports::Any => port,
                Ports::Range(first, last) if first == last => first,
                Ports::Range(first, _) => first + offset,
            },
        })
    }
}

impl MapSide {
    fn parse(text: &str) -> Result<MapSide, String> {
        if text.contains("://") || text.starts_with("unix:") {
            return Err("each side is HOST or HOST:PORT, without a scheme".into());
        }
        let (host, ports) = match text.rsplit_once(':') {
            // The colons of `[::1]` separate no port.
            Some((_, port)) if port.ends_with(']') => (text, None),
            Some((host, ports)) => (host, Some(ports)),
            None => (text, None),
        };
        Ok(MapSide {
            host: Host::parse(host)?,
            ports: ports.map_or(Ok(Ports::Any), Ports::parse)?,
        })
    }
}

impl Host {
    fn parse(text: &str) -> Result<Host, String> {
        if text.is_empty() {
            return Err("needs a host on both sides of the `=`".into());
        }
        if let Some(inner) = text.strip_prefix('[') {
            let address = inner.strip_suffix(']').map(str::parse::<Ipv6Addr>);
            return match address {
                Some(Ok(address)) => Ok(Host::Exactly(address.to_string())),
                _ => Err("the text in [ ] must be an IPv6 address, without `*`".into()),
            };
        }
        if text.contains(':') {
            return Err("an IPv6 address stands in brackets: [::1]:PORT".into());
        }
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._*".contains(&byte);
        if !text.bytes().all(is_host) || text.len() > HOST_BYTES_MAX {
            return Err("a host has only letters, digits, `-`, `_`, `.` and one `*`".into());
        }
        let text = text.to_ascii_lowercase();
        match text.split_once('*') {
            None => Ok(Host::Exactly(text)),
            Some((_, behind)) if behind.contains('*') => {
                Err("a host has one `*` at the most".into())
            }
            Some((before, behind)) => Ok(Host::Around(before.to_owned(), behind.to_owned())),
        }
    }

    /// The text of the `*` in a host. `None`: the host does not fit.
    fn star_of<'a>(&self, host: &'a str) -> Option<&'a str> {
        match self {
            Host::Exactly(own) => (own == host).then_some(""),
            Host::Around(before, behind) => {
                let star = host.strip_prefix(&**before)?.strip_suffix(&**behind)?;
                (!star.is_empty()).then_some(star)
            }
        }
    }
}

impl Ports {
    fn parse(text: &str) -> Result<Ports, String> {
        const WRONG: &str = "a port is a number from 1 to 65535, a range such as 7000-7005, or `*`";
        let number = |text: &str| {
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            let port = text
                .parse::<u16>()
                .ok()
                .filter(|port| is_number && *port > 0);
            port.ok_or_else(|| WRONG.to_owned())
        };
        if text == "*" {
            return Ok(Ports::Any);
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (number(first)?, number(last)?);
        match first <= last {
            true => Ok(Ports::Range(first, last)),
            false => Err("a range of ports begins with the lower one".into()),
        }
    }

    /// The distance of a port from the first one. `None`: the port is not in the range.
    fn offset_of(self, port: u16) -> Option<u16> {
        match self {
            Ports::Any => Some(0),
            Ports::Range(first, last) => (first..=last).contains(&port).then(|| port - first),
        }
    }
}

/// A host in the form that entries have.
fn fold(host: &str) -> String {
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => host.to_ascii_lowercase(),
    }
}

impl fmt::Display for MapEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.from, self.to)
    }
}

impl fmt::Display for MapSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Exactly(host) if host.contains(':') => write!(f, "[{host}]")?,
            Host::Exactly(host) => f.write_str(host)?,
            Host::Around(before, behind) => write!(f, "{before}*{behind}")?,
        }
        match self.ports {
            Ports::Any => Ok(()),
            Ports::Range(first, last) if first == last => write!(f, ":{first}"),
            Ports::Range(first, last) => write!(f, ":{first}-{last}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn map(entries: &[&str]) -> Result<AddressMap, MapError> {
        let entry =
            |text: &&str| MapEntry::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        AddressMap::new(entries.iter().map(entry).collect())
    }

    fn reached(map: &AddressMap, host: &str, port: u16) -> String {
        let named = Endpoint {
            host: host.to_owned(),
            port,
        };
        let Endpoint { host, port } = map.apply(&named);
        format!("{host} {port}")
    }

    #[test]
    fn entry_to_one_address_names_it() {
        let only = |text: &str| {
            let entry = MapEntry::parse(text).expect(text);
            entry.only_address().map(|at| (at.host, at.port))
        };
        for (text, host, port) in [
            ("a:1=B:2", "b", 2),
            ("a:1=b", "b", 1),
            ("a=[0::1]:2", "::1", 2),
            ("a*:1-5=b:2", "b", 2),
        ] {
            assert_eq!(only(text), Some((host.to_owned(), port)), "{text}");
        }
        for several in ["a=b", "a:1-2=b", "a:1-2=b:3-4", "a*:1=b*:2"] {
            assert_eq!(only(several), None, "{several}");
        }
    }

    #[test]
    fn each_form_of_entry_translates_addresses() {
        for (entry, host, port, expected) in [
            (
                "10.0.0.1:6379=127.0.0.1:7001",
                "10.0.0.1",
                6379,
                "127.0.0.1 7001",
            ),
            (
                "10.0.0.1:6379=127.0.0.1:7001",
                "10.0.0.1",
                6380,
                "10.0.0.1 6380",
            ),
            (
                "10.0.0.1:6379=127.0.0.1:7001",
                "10.0.0.11",
                6379,
                "10.0.0.11 6379",
            ),
            (
                "10.0.0.1:6379=127.0.0.1",
                "10.0.0.1",
                6379,
                "127.0.0.1 6379",
            ),
            ("10.0.0.1=127.0.0.1", "10.0.0.1", 6380, "127.0.0.1 6380"),
            (
                "10.0.0.1=127.0.0.1:7001",
                "10.0.0.1",
                6380,
                "127.0.0.1 7001",
            ),
            ("10.0.0.1:*=127.0.0.1:*", "10.0.0.1", 6380, "127.0.0.1 6380"),
            ("Node-1.Example:1=node:2", "NODE-1.example", 1, "node 2"),
            ("[::1]:1=[2001:DB8::1]:2", "0:0::1", 1, "2001:db8::1 2"),
            ("[2001:db8::7]=host", "2001:db8:0::7", 6379, "host 6379"),
            ("h:7000-7005=g:17000-17005", "h", 7003, "g 17003"),
            ("h:7000-7005=g:17000-17005", "h", 7006, "h 7006"),
            ("h:7000-7005=g", "h", 7005, "g 7005"),
            ("h:7000-7005=g:1", "h", 7005, "g 1"),
            (
                "10.0.0.*:*=proxy.example:*",
                "10.0.0.9",
                6379,
                "proxy.example 6379",
            ),
            ("10.0.0.*=10.9.9.*", "10.0.0.12", 6379, "10.9.9.12 6379"),
            (
                "redis-*.internal:6379=*.example:7000",
                "redis-a-1.internal",
                6379,
                "a-1.example 7000",
            ),
            ("redis-*:6379=*", "redis-", 6379, "redis- 6379"),
            ("*=127.0.0.1", "anything", 6379, "127.0.0.1 6379"),
            ("*:6379=127.0.0.1:7000", "fe80::1", 6379, "127.0.0.1 7000"),
        ] {
            let map = map(&[entry]).expect("a map");
            assert_eq!(reached(&map, host, port), expected, "{entry}");
        }
        assert_eq!(reached(&AddressMap::default(), "Host", 1), "Host 1");
    }

    /// The most specific entry for an address counts, at any place in the list.
    #[test]
    fn entry_without_a_pattern_comes_first() {
        let map = map(&[
            "10.*=any:1",
            "10.0.0.*=later:1",
            "10.0.0.1=host:1",
            "10.0.0.1:6000-7000=range:1",
            "10.0.0.1:6379=one:1",
            // Exempt from the pattern.
            "10.0.0.2=10.0.0.2",
        ])
        .expect("a map");
        for (host, port, expected) in [
            ("10.0.0.1", 6379, "one 1"),
            ("10.0.0.1", 6380, "range 1"),
            ("10.0.0.1", 80, "host 1"),
            ("10.0.0.2", 6379, "10.0.0.2 6379"),
            ("10.0.0.3", 6379, "any 1"),
            ("11.0.0.1", 6379, "11.0.0.1 6379"),
        ] {
            assert_eq!(reached(&map, host, port), expected);
        }
    }

    #[test]
    fn error_names_the_mistake_of_an_entry() {
        for (text, error) in [
            ("", "it lacks the `=`"),
            ("10.0.0.1:6379", "it lacks the `=`"),
            ("10.0.0.1:6379->127.0.0.1:7001", "it lacks the `=`"),
            ("a=b=c", "two `=`"),
            ("=b", "needs a host"),
            ("a=", "needs a host"),
            (":1=b:1", "needs a host"),
            ("a:0=b:1", "a port is"),
            ("a:65536=b:1", "a port is"),
            ("a:x=b:1", "a port is"),
            ("a:+1=b:1", "a port is"),
            ("a:=b:1", "a port is"),
            ("a:7-5=b", "begins with the lower one"),
            ("a:5-7=b:5-8", "as long"),
            ("a:5=b:5-8", "as long"),
            ("a=b:5-8", "as long"),
            ("a=b*", "none on the left"),
            ("a**=b", "one `*` at the most"),
            ("*.*=b", "one `*` at the most"),
            ("[::*]=b", "must be an IPv6 address"),
            ("[host]=b", "must be an IPv6 address"),
            ("2001:db8::1=b", "stands in brackets"),
            ("a b=c", "a host has only"),
            ("redis://a=b", "without a scheme"),
            ("a=unix:/b", "without a scheme"),
        ] {
            let shown = MapEntry::parse(text).expect_err(text);
            assert!(shown.contains(error), "{text}: {shown}");
        }
    }

    #[test]
    fn contradictory_entries_are_refused() {
        for (entries, error) in [
            (&["a:1=b:1", "A:1=c:1"][..], MapError::Twice("a:1".into())),
            (&["a=b", "a:*=c"], MapError::Twice("a".into())),
            (&["a:1-2=b", "a:1-2=c"], MapError::Twice("a:1-2".into())),
            (&["a*:1=b", "a*:1=c"], MapError::Twice("a*:1".into())),
            (&["[::1]=b", "[0::1]=c"], MapError::Twice("[::1]".into())),
            (&["a:1=b:1", "b:1=a:1"], MapError::Loop("a:1".into())),
            (&["a=b", "b=c", "c=a"], MapError::Loop("a".into())),
            (&["x1=y1", "y*=x*"], MapError::Loop("x1".into())),
        ] {
            assert_eq!(map(entries), Err(error), "{entries:?}");
        }
        // An address on the right may be another entry's address on the left.
        for entries in [
            &["a:1=a:2", "a:2=a:3"][..],
            &["a=a"],
            &["a:1=b", "a:2=b", "a=c"],
        ] {
            assert!(map(entries).is_ok(), "{entries:?}");
        }
        let many = (0..=ADDRESS_MAP_MAX).map(|number| MapEntry::parse(&format!("h{number}=g")));
        let many = many.collect::<Result<_, _>>().expect("entries");
        assert_eq!(AddressMap::new(many), Err(MapError::TooMany));
    }

    proptest! {
        /// No text panics, each entry is shown as it is read, and every address has a result.
        #[test]
        fn entries_are_shown_as_they_are_read(
            texts in prop::collection::vec("[a-c*.]{0,3}(:[0-9*-]{0,3})?=[a-c*.]{0,3}(:[0-9*-]{0,3})?", 0..6),
            host in "[a-c.]{0,4}",
            port in 1..12_u16,
        ) {
            let entries: Vec<MapEntry> = texts.iter().filter_map(|text| MapEntry::parse(text).ok()).collect();
            for entry in &entries {
                prop_assert_eq!(MapEntry::parse(&entry.to_string()), Ok(entry.clone()));
            }
            if let Ok(map) = AddressMap::new(entries) {
                map.apply(&Endpoint { host, port });
            }
        }
    }
}
