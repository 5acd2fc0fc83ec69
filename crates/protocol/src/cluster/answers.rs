//! Reads the answers to CLUSTER SLOTS, SHARDS, NODES and INFO, in RESP2 and RESP3.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, reason = "it reads bytes of a server")
)]

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::str;

use super::{
    ANSWER_BYTES_MAX, ClusterNode, Endpoint, HOST_BYTES_MAX, ID_BYTES_MAX, NODES_MAX, NodeHealth,
    NodeRole, View, ViewError, split_address,
};
use crate::slot::SLOTS;
use crate::value::Value;

/// Most bytes of an answer that an error shows.
const SHOWN_BYTES_MAX: usize = 100;

impl View {
    /// Reads the answer to CLUSTER SLOTS. `asked` is the host of the node that answered. It is also
    /// the host of a node whose endpoint is missing.
    ///
    /// An endpoint `?` stands for a host name that is not configured. Then the address in the
    /// node's details counts, if there is one. The answer has only nodes with slots and their
    /// replicas, and no failed replica.
    ///
    /// # Errors
    /// When the answer is malformed; the error names the fault.
    pub fn from_slots(answer: &[u8], asked: &str) -> Result<View, ViewError> {
        const FORM: ViewError =
            ViewError::Form("a list of ranges: first slot, last slot, primary, replicas");
        let mut draft = Draft::default();
        for range in &list(read(answer)?, FORM)? {
            let Value::List(parts) = range else {
                return Err(FORM);
            };
            let [first, last, primary, replicas @ ..] = parts.as_slice() else {
                return Err(FORM);
            };
            let primary = draft.add(slots_node(primary, asked)?)?;
            // A node that owns slots is a primary, even if another range lists it as a replica.
            if let Some(node) = draft.nodes.get_mut(usize::from(primary)) {
                node.role = NodeRole::Primary;
            }
            draft.own(slot_of(first)?, slot_of(last)?, primary);
            for replica in replicas {
                let mut node = slots_node(replica, asked)?;
                node.role = NodeRole::Replica { of: Some(primary) };
                draft.add(node)?;
            }
        }
        draft.finish()
    }

    /// Reads the answer to CLUSTER SHARDS (Redis 7.0 and later). `asked` is the host of the node
    /// that answered. It is also the host of a node whose endpoint is missing. If the endpoint is
    /// `?`, the node's address counts.
    ///
    /// After a failover a shard may have two primaries, the failed one and the new one. Its slots
    /// belong to the healthiest, then to the one with the higher replication offset.
    ///
    /// # Errors
    /// When the answer is malformed; the error names the fault.
    pub fn from_shards(answer: &[u8], asked: &str) -> Result<View, ViewError> {
        const FORM: ViewError = ViewError::Form("a list of shards, each with slots and nodes");
        let mut draft = Draft::default();
        for shard in &list(read(answer)?, FORM)? {
            let (Some(Value::List(slots)), Some(Value::List(nodes))) =
                (shard.field("slots"), shard.field("nodes"))
            else {
                return Err(FORM);
            };
            let mut members = Vec::new();
            for node in nodes {
                members.push(draft.add(shards_node(node, asked)?)?);
            }
            let node = |index: &u16| draft.nodes.get(usize::from(*index));
            let is_primary =
                |index: &&u16| node(index).is_some_and(|node| node.role == NodeRole::Primary);
            let primaries = members.iter().filter(is_primary);
            let primary = primaries
                .rev()
                .max_by_key(|index| {
                    let node = node(index)?;
                    let rank = match node.health {
                        NodeHealth::Online => 4,
                        NodeHealth::Loading => 3,
                        NodeHealth::Suspected => 2,
                        NodeHealth::Joining => 1,
                        NodeHealth::Failed => 0,
                    };
                    Some((rank, node.offset_bytes))
                })
                .copied();
            for member in members {
                draft.set_primary(member, primary);
            }
            let (ranges, rest) = slots.as_chunks();
            if !rest.is_empty() {
                return Err(ViewError::Form("slots in pairs: first and last of a range"));
            }
            for [first, last] in ranges {
                let (first, last) = (slot_of(first)?, slot_of(last)?);
                // Without a primary the slots have no owner.
                if let Some(primary) = primary {
                    draft.own(first, last, primary);
                }
            }
        }
        draft.finish()
    }

    /// Reads the answer to CLUSTER NODES. `asked` is the host of the node that answered. It
    /// replaces an empty host: a node may not know its own address.
    ///
    /// The endpoint is the address, even if host names are preferred. The host name is in
    /// [`ClusterNode::hostname`]. A migrating slot belongs to its old owner until the migration
    /// ends.
    ///
    /// # Errors
    /// When the answer is malformed; the error names the fault.
    pub fn from_nodes(answer: &[u8], asked: &str) -> Result<View, ViewError> {
        let text = text_of(read(answer)?)?;
        let mut draft = Draft::default();
        // Each replica with the id of its primary, which may be on a later line.
        let mut primaries = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let mut words = line.split(' ');
            let mut word = |name| words.next().ok_or(ViewError::Missing(name));
            let id = id_of(word("id of a node")?)?;
            let address = word("address of a node")?;
            let flags = word("flags of a node")?;
            let primary = word("primary of a node")?;
            let (_ping, _pong) = (
                word("time of the last ping")?,
                word("time of the last pong")?,
            );
            let epoch = number_of("config epoch", word("config epoch")?)?;
            let is_linked = match word("state of the link")? {
                "connected" => true,
                "disconnected" => false,
                other => return Err(field("state of the link", other)),
            };

            let mut node = nodes_node(id, address, asked)?;
            node.epoch = Some(epoch);
            let mut is_myself = false;
            let (mut is_joining, mut is_failed, mut is_suspected) = (false, false, !is_linked);
            for flag in flags.split(',') {
                match flag {
                    "myself" => is_myself = true,
                    "master" => node.role = NodeRole::Primary,
                    "slave" => node.role = NodeRole::Replica { of: None },
                    "fail" => is_failed = true,
                    "fail?" => is_suspected = true,
                    "handshake" => is_joining = true,
                    "noaddr" => node.endpoint = None,
                    // `nofailover`, `noflags`, and flags of later versions.
                    _ => {}
                }
            }
            node.health = match () {
                () if is_joining => NodeHealth::Joining,
                () if is_failed => NodeHealth::Failed,
                () if is_suspected => NodeHealth::Suspected,
                () => NodeHealth::Online,
            };
            let index = draft.add(node)?;
            if is_myself {
                draft.myself = Some(index);
            }
            if primary != "-" {
                primaries.push((index, primary));
            }
            for slots in words.filter(|slots| !slots.is_empty() && !slots.starts_with('[')) {
                let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
                draft.own(slot("slot", first)?, slot("slot", last)?, index);
            }
        }
        for (index, primary) in primaries {
            let primary = draft.by_key.get(primary).copied();
            draft.set_primary(index, primary);
        }
        draft.finish()
    }
}

/// The state of a Cluster as one node sees it: CLUSTER INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Whether the node serves keys. It must reach most primaries, and the owner of every slot
    /// unless full coverage is off.
    pub ok: bool,
    /// The highest epoch that the node knows.
    pub current_epoch: u64,
    /// The node's config epoch; for a replica the config epoch of its primary.
    pub my_epoch: u64,
    /// Number of slots with an owner, reachable or not.
    pub slots_assigned: u16,
}

impl Info {
    /// Reads the answer to CLUSTER INFO.
    ///
    /// # Errors
    /// When the answer is malformed; the error names the fault.
    pub fn read(answer: &[u8]) -> Result<Info, ViewError> {
        let text = text_of(read(answer)?)?;
        let value = |name: &'static str| {
            let mut fields = text.lines().filter_map(|line| line.split_once(':'));
            let found = fields.find(|(key, _)| *key == name);
            found
                .map(|(_, value)| value)
                .ok_or(ViewError::Missing(name))
        };
        let number = |name| number_of(name, value(name)?);
        const STATE: &str = "cluster_state";
        const ASSIGNED: &str = "cluster_slots_assigned";
        let assigned = number(ASSIGNED)?;
        Ok(Info {
            ok: match value(STATE)? {
                "ok" => true,
                "fail" => false,
                other => return Err(field(STATE, other)),
            },
            current_epoch: number("cluster_current_epoch")?,
            my_epoch: number("cluster_my_epoch")?,
            slots_assigned: u16::try_from(assigned)
                .ok()
                .filter(|&slots| slots <= SLOTS)
                .ok_or_else(|| field(ASSIGNED, value(ASSIGNED).unwrap_or_default()))?,
        })
    }
}

/// The parts of a view while an answer is read.
#[derive(Default)]
struct Draft {
    nodes: Vec<ClusterNode>,
    /// The index of each node by its id, or by `host port` if it has no id.
    by_key: BTreeMap<String, u16>,
    ranges: Vec<(RangeInclusive<u16>, u16)>,
    myself: Option<u16>,
}

impl Draft {
    /// Sets the primary of a replica.
    fn set_primary(&mut self, index: u16, primary: Option<u16>) {
        let node = self.nodes.get_mut(usize::from(index));
        if let Some(NodeRole::Replica { of }) = node.map(|node| &mut node.role) {
            *of = primary;
        }
    }

    /// Adds a node and returns its index. If the node is there already, its first description
    /// stays.
    fn add(&mut self, node: ClusterNode) -> Result<u16, ViewError> {
        let key = match &node.endpoint {
            _ if !node.id.is_empty() => node.id.clone(),
            Some(endpoint) => format!("{} {}", endpoint.host, endpoint.port),
            None => return Err(ViewError::Missing("endpoint of a node without an id")),
        };
        if let Some(&index) = self.by_key.get(&key) {
            return Ok(index);
        }
        let index = self.nodes.len();
        if index == NODES_MAX {
            return Err(ViewError::TooManyNodes);
        }
        let index = index as u16;
        self.nodes.push(node);
        self.by_key.insert(key, index);
        Ok(index)
    }

    fn own(&mut self, first: u16, last: u16, owner: u16) {
        self.ranges.push((first..=last, owner));
    }

    fn finish(self) -> Result<View, ViewError> {
        let mut view = View::new(self.nodes, self.ranges)?;
        view.myself = self.myself;
        Ok(view)
    }
}

/// Reads a node of CLUSTER SLOTS: endpoint and port, its id from Redis 4.0 on, details from 7.0 on.
fn slots_node(value: &Value, asked: &str) -> Result<ClusterNode, ViewError> {
    const FORM: ViewError = ViewError::Form("a node with endpoint, port, and perhaps id and more");
    let Value::List(parts) = value else {
        return Err(FORM);
    };
    let [host, port, more @ ..] = parts.as_slice() else {
        return Err(FORM);
    };
    let about = more.get(1);
    let about = |key| about.and_then(|about| about.field(key));
    let id = match more.first() {
        Some(id) => id_of(text("id of a node", id)?)?,
        None => String::new(),
    };
    let port = port_of("port of a node", port)?;
    let host = host_of(Some(host), about("ip"), asked)?;
    Ok(ClusterNode {
        hostname: hostname_of(about("hostname"))?,
        zone: zone_of(about("availability-zone")),
        ..node(id, host, port)
    })
}

/// Reads a node of CLUSTER SHARDS: a map.
fn shards_node(value: &Value, asked: &str) -> Result<ClusterNode, ViewError> {
    const ROLE: &str = "role of a node";
    let about = |key| value.field(key);
    let needed = |name, key| text(name, about(key).ok_or(ViewError::Missing(name))?);
    let id = id_of(needed("id of a node", "id")?)?;
    let role = match needed(ROLE, "role")? {
        "master" | "primary" => NodeRole::Primary,
        "replica" | "slave" => NodeRole::Replica { of: None },
        other => return Err(field(ROLE, other)),
    };
    let health = match needed("health of a node", "health")? {
        "online" => NodeHealth::Online,
        "loading" => NodeHealth::Loading,
        "fail" | "failed" => NodeHealth::Failed,
        _ => NodeHealth::Suspected,
    };
    let port = |name, key| match about(key) {
        Some(port) => port_of(name, port),
        None => Ok(0),
    };
    let tls_port = port("TLS port of a node", "tls-port")?;
    let port = match port("port of a node", "port")? {
        0 => tls_port,
        port => port,
    };
    let host = host_of(about("endpoint").or(about("ip")), about("ip"), asked)?;
    let offset_bytes = match about("replication-offset") {
        Some(Value::Integer(offset)) => u64::try_from(*offset).ok(),
        _ => None,
    };
    Ok(ClusterNode {
        tls_port: Some(tls_port).filter(|&port| port != 0),
        role,
        health,
        hostname: hostname_of(about("hostname"))?,
        zone: zone_of(about("availability-zone")),
        offset_bytes,
        ..node(id, host, port)
    })
}

/// Reads the address of a node in CLUSTER NODES: `host:port@bus-port,hostname,key=value`. Old
/// versions write only its beginning.
fn nodes_node(id: String, address: &str, asked: &str) -> Result<ClusterNode, ViewError> {
    const ADDRESS: &str = "address of a node";
    let (place, about) = match address.split_once(',') {
        Some((place, about)) => (place, about),
        None => (address, ""),
    };
    let place = place.split_once('@').map_or(place, |(place, _)| place);
    let (host, port) = split_address(place)
        .filter(|(host, _)| host.len() <= HOST_BYTES_MAX)
        .ok_or_else(|| field(ADDRESS, address))?;
    let host = if host.is_empty() { asked } else { host };
    let mut more = about.split(',');
    let hostname = more.next().filter(|hostname| !hostname.is_empty());
    let mut node = ClusterNode {
        role: NodeRole::Unknown,
        hostname: hostname
            .map(|hostname| host_text("hostname", hostname))
            .transpose()?,
        ..node(id, host.to_owned(), port)
    };
    for (key, value) in more.filter_map(|pair| pair.split_once('=')) {
        match key {
            "availability-zone" if !value.is_empty() => node.zone = Some(shown(value.as_bytes())),
            "tls-port" => node.tls_port = value.parse().ok().filter(|&port| port != 0),
            _ => {}
        }
    }
    Ok(node)
}

/// A node with this id and endpoint. Port 0 means that it has no endpoint.
fn node(id: String, host: String, port: u16) -> ClusterNode {
    let mut node = ClusterNode::primary(&id, Endpoint { host, port });
    node.endpoint = node.endpoint.filter(|_| port != 0);
    node
}

fn read(answer: &[u8]) -> Result<Value, ViewError> {
    if answer.len() > ANSWER_BYTES_MAX {
        return Err(ViewError::TooLong);
    }
    match Value::read(answer) {
        None => Err(ViewError::NotAReply),
        Some(Value::Error(error)) => Err(ViewError::Refused(shown(&error))),
        Some(value) => Ok(value),
    }
}

fn list(value: Value, form: ViewError) -> Result<Vec<Value>, ViewError> {
    match value {
        Value::List(values) => Ok(values),
        _ => Err(form),
    }
}

/// The text of an answer that is one string.
fn text_of(value: Value) -> Result<String, ViewError> {
    const FORM: ViewError = ViewError::Form("a text");
    match value {
        Value::Bulk(text) | Value::Line(text) => String::from_utf8(text).map_err(|_| FORM),
        _ => Err(FORM),
    }
}

fn text<'a>(name: &'static str, value: &'a Value) -> Result<&'a str, ViewError> {
    let bytes = value
        .text()
        .ok_or(ViewError::Form("text where text belongs"))?;
    str::from_utf8(bytes).map_err(|_| ViewError::Field(name, shown(bytes)))
}

fn id_of(id: &str) -> Result<String, ViewError> {
    let fits = (1..=ID_BYTES_MAX).contains(&id.len());
    if fits && id.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(id.to_owned())
    } else {
        Err(field("id of a node", id))
    }
}

/// The host of a node, from its endpoint and its address in the answer.
fn host_of(endpoint: Option<&Value>, ip: Option<&Value>, asked: &str) -> Result<String, ViewError> {
    const HOST: &str = "endpoint of a node";
    let host = |value: Option<&Value>| match value {
        None | Some(Value::Null) => Ok(String::new()),
        Some(value) => host_text(HOST, text(HOST, value)?),
    };
    let mut found = host(endpoint)?;
    if found == "?" {
        found = host(ip)?;
    }
    Ok(match found.as_str() {
        "" | "?" => asked.to_owned(),
        _ => found,
    })
}

fn host_text(name: &'static str, host: &str) -> Result<String, ViewError> {
    let fits = host.len() <= HOST_BYTES_MAX;
    if fits && host.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(host.to_owned())
    } else {
        Err(field(name, host))
    }
}

fn hostname_of(value: Option<&Value>) -> Result<Option<String>, ViewError> {
    const NAME: &str = "hostname";
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match host_text(NAME, text(NAME, value)?)? {
            empty if empty.is_empty() => Ok(None),
            hostname => Ok(Some(hostname)),
        },
    }
}

/// The configured zone, which may be any text.
fn zone_of(value: Option<&Value>) -> Option<String> {
    let zone = value?.text().filter(|zone| !zone.is_empty())?;
    Some(shown(zone))
}

fn port_of(name: &'static str, value: &Value) -> Result<u16, ViewError> {
    match value {
        Value::Integer(port) => {
            u16::try_from(*port).map_err(|_| ViewError::Field(name, port.to_string()))
        }
        _ => Err(ViewError::Form("a number where a port belongs")),
    }
}

fn slot_of(value: &Value) -> Result<u16, ViewError> {
    match value {
        Value::Integer(slot) => u16::try_from(*slot)
            .ok()
            .filter(|&slot| slot < SLOTS)
            .ok_or_else(|| ViewError::Field("slot", slot.to_string())),
        _ => Err(ViewError::Form("a number where a slot belongs")),
    }
}

fn slot(name: &'static str, text: &str) -> Result<u16, ViewError> {
    let slot = u16::try_from(number_of(name, text)?).ok();
    slot.filter(|&slot| slot < SLOTS)
        .ok_or_else(|| field(name, text))
}

fn number_of(name: &'static str, text: &str) -> Result<u64, ViewError> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_number);
    number.ok_or_else(|| field(name, text))
}

fn field(name: &'static str, value: &str) -> ViewError {
    ViewError::Field(name, shown(value.as_bytes()))
}

/// The beginning of some bytes as printable text.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes.get(..SHOWN_BYTES_MAX).unwrap_or(bytes));
    text.chars()
        .map(|char| if char.is_control() { '?' } else { char })
        .collect()
}
