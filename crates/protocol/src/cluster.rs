//! The topology of a Cluster as its nodes report it: how answers are read.
//!
//! ```text
//! CLUSTER SLOTS  ──┐
//! CLUSTER SHARDS ──┼──read──> View
//! CLUSTER NODES  ──┘
//! CLUSTER INFO   ─────read──> Info
//! ```
//!
//! A [`View`] is the topology that one node reports at one moment: the nodes, and the owner of each
//! of the 16,384 slots. Three commands report it, in different detail:
//!
//! | | SLOTS | SHARDS (7.0 and later) | NODES |
//! |---|---|---|---|
//! | nodes without slots, and their replicas | no | yes | yes |
//! | failed nodes | not marked, and only with slots | yes | yes, and the suspected ones |
//! | endpoint | as the administrator prefers | as the administrator prefers | always the address |
//! | host name | yes, from 7.0 | yes | yes, from 7.0 |
//! | availability zone | Valkey | Valkey | no |
//! | TLS port | no | yes | no |
//! | epoch of each node | no | no | yes |
//!
//! An error of a node that executed nothing of a request is a [`Refusal`]. A [`Redirect`] is the
//! node that MOVED or ASK names.

mod answers;
mod refusal;

use std::error::Error;
use std::fmt;
use std::ops::RangeInclusive;

use crate::slot::SLOTS;

pub use answers::Info;
pub use refusal::{Redirect, Refusal};

/// Most nodes of a view. Redis advises against more than 1,000 in a Cluster.
pub const NODES_MAX: usize = 4_096;

/// Longest answer that is read. The longest sensible CLUSTER SLOTS, with a range for each slot and
/// two replicas each, has about 5 MiB, and more with long host names.
pub const ANSWER_BYTES_MAX: usize = 32 << 20;

/// Longest host name, as in DNS.
pub const HOST_BYTES_MAX: usize = 255;

/// Longest node id. The ids of Redis and Valkey have 40 bytes.
pub const ID_BYTES_MAX: usize = 64;

/// Entry of a slot without an owner in a table of owners.
pub const NO_OWNER: u16 = u16::MAX;

// The index of a node is never NO_OWNER.
const _: () = assert!(NODES_MAX <= NO_OWNER as usize);

/// The nodes of a Cluster and the owners of its slots, as one node reports them.
///
/// An index names a node within its view only. In another view a node is found by its id, or by its
/// endpoint if an answer has no ids.
#[derive(Clone, PartialEq, Eq)]
pub struct View {
    nodes: Vec<ClusterNode>,
    /// The index of each slot's owner, or [`NO_OWNER`].
    owners: Box<[u16]>,
    /// The index of the node that answered; only CLUSTER NODES says it.
    myself: Option<u16>,
}

/// One node of a Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNode {
    /// 40 hexadecimal digits, fixed for the life of the node. Empty if the answer has no ids.
    pub id: String,
    /// Address for clients; `None` if the node that answered does not know it.
    pub endpoint: Option<Endpoint>,
    /// The TLS port, if the answer has it. If it is the only port, `endpoint` has it, too.
    pub tls_port: Option<u16>,
    /// Primary or replica.
    pub role: NodeRole,
    /// Health, as the node that answered sees it.
    pub health: NodeHealth,
    /// Configured host name. CLUSTER SLOTS leaves it out if the endpoint is that name.
    pub hostname: Option<String>,
    /// Configured availability zone.
    pub zone: Option<String>,
    /// Config epoch. If two nodes claim a slot, the node with the higher epoch owns it.
    pub epoch: Option<u64>,
    /// Replication offset: bytes of the stream that the node has written or applied.
    pub offset_bytes: Option<u64>,
}

/// A host and a port to connect to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// A name, an IPv4 address, or an IPv6 address without brackets; at most [`HOST_BYTES_MAX`]
    /// bytes.
    pub host: String,
    /// The port, never 0.
    pub port: u16,
}

/// The role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRole {
    /// A primary: it owns slots or may own some.
    Primary,
    /// A replica: it copies its primary.
    Replica {
        /// The index of its primary; `None` if the primary is not in the view.
        of: Option<u16>,
    },
    /// Unknown: the node is in a handshake.
    Unknown,
}

/// The health of a node, as another node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeHealth {
    /// The node is reachable.
    Online,
    /// The node still loads its data.
    Loading,
    /// The reporting node cannot reach it (`fail?`, or no link), or uses a word that is unknown
    /// here.
    Suspected,
    /// Most primaries cannot reach it: `fail`.
    Failed,
    /// The node is in a handshake and not a member yet.
    Joining,
}

impl ClusterNode {
    /// An online primary with this id and endpoint, and no other details.
    pub fn primary(id: &str, endpoint: Endpoint) -> ClusterNode {
        ClusterNode {
            id: id.to_owned(),
            endpoint: Some(endpoint),
            tls_port: None,
            role: NodeRole::Primary,
            health: NodeHealth::Online,
            hostname: None,
            zone: None,
            epoch: None,
            offset_bytes: None,
        }
    }

    /// Whether a connection to the node may work: it is a member, has not failed, and has an
    /// endpoint.
    pub fn is_usable(&self) -> bool {
        let is_member = !matches!(self.health, NodeHealth::Failed | NodeHealth::Joining);
        is_member && self.endpoint.is_some()
    }
}

impl View {
    /// Makes a view of nodes and of slot ranges, each range with the index of its owner.
    ///
    /// # Errors
    /// When there are more than [`NODES_MAX`] nodes. When a range has a slot that does not exist,
    /// or ends before it begins. When an index has no node. When a slot is in two ranges.
    pub fn new(
        nodes: Vec<ClusterNode>,
        ranges: impl IntoIterator<Item = (RangeInclusive<u16>, u16)>,
    ) -> Result<View, ViewError> {
        if nodes.len() > NODES_MAX {
            return Err(ViewError::TooManyNodes);
        }
        let exists = |index: u16| usize::from(index) < nodes.len();
        for node in &nodes {
            if let NodeRole::Replica { of: Some(primary) } = node.role
                && !exists(primary)
            {
                return Err(ViewError::NoSuchNode(primary));
            }
        }
        let mut owners = vec![NO_OWNER; usize::from(SLOTS)].into_boxed_slice();
        for (range, owner) in ranges {
            let (first, last) = range.into_inner();
            if !exists(owner) {
                return Err(ViewError::NoSuchNode(owner));
            }
            let slots = owners.get_mut(usize::from(first)..=usize::from(last));
            let slots = slots
                .filter(|slots| !slots.is_empty())
                .ok_or(ViewError::Range(first, last))?;
            for (slot, before) in (first..).zip(slots) {
                if *before != NO_OWNER {
                    return Err(ViewError::SlotTwice(slot));
                }
                *before = owner;
            }
        }
        Ok(View {
            nodes,
            owners,
            myself: None,
        })
    }

    /// All nodes of the answer, in its order.
    pub fn nodes(&self) -> &[ClusterNode] {
        &self.nodes
    }

    /// The index of a slot's owner, or `None` if the slot has no owner.
    #[inline]
    pub fn owner(&self, slot: u16) -> Option<u16> {
        let owner = self.owners.get(usize::from(slot)).copied();
        owner.filter(|&owner| owner != NO_OWNER)
    }

    /// The node that owns a slot.
    pub fn owner_of(&self, slot: u16) -> Option<&ClusterNode> {
        self.nodes.get(usize::from(self.owner(slot)?))
    }

    /// The table of owners: one index, or [`NO_OWNER`], for each of the [`SLOTS`] slots.
    pub fn owners(&self) -> &[u16] {
        &self.owners
    }

    /// The longest ranges of slots with the same owner, in order, each with the owner's index.
    /// Slots without an owner are in no range.
    pub fn ranges(&self) -> impl Iterator<Item = (RangeInclusive<u16>, u16)> + '_ {
        let runs = self.owners.chunk_by(|one, next| one == next);
        let mut at = 0;
        runs.filter_map(move |run| {
            let first = at;
            at += run.len();
            // The table has SLOTS entries, so every slot fits 16 bits.
            let range = first as u16..=(at - 1) as u16;
            (run[0] != NO_OWNER).then_some((range, run[0]))
        })
    }

    /// The number of slots that have an owner.
    pub fn slots_owned(&self) -> usize {
        let owned = self.owners.iter().filter(|&&owner| owner != NO_OWNER);
        owned.count()
    }

    /// The indexes of a primary's replicas.
    pub fn replicas_of(&self, primary: u16) -> impl Iterator<Item = u16> + '_ {
        let of = NodeRole::Replica { of: Some(primary) };
        let nodes = (0..).zip(&self.nodes);
        nodes.filter_map(move |(index, node)| (node.role == of).then_some(index))
    }

    /// The ids of all nodes that have one.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        let ids = self.nodes.iter().map(|node| node.id.as_str());
        ids.filter(|id| !id.is_empty())
    }

    /// The index of the node with this id.
    pub fn find(&self, id: &str) -> Option<u16> {
        let named = |node: &ClusterNode| !id.is_empty() && node.id == id;
        self.nodes.iter().position(named).map(|index| index as u16)
    }

    /// The index of the node that a [`Redirect`] names. The host is compared with the endpoint and
    /// the host name, the port with both ports.
    pub fn find_at(&self, host: &str, port: u16) -> Option<u16> {
        let is_named = |node: &ClusterNode| {
            node.endpoint.as_ref().is_some_and(|at| {
                (at.host == host || node.hostname.as_deref() == Some(host))
                    && (at.port == port || node.tls_port == Some(port))
            })
        };
        self.nodes
            .iter()
            .position(is_named)
            .map(|index| index as u16)
    }

    /// Replaces the port of each endpoint by the TLS port, where the answer has one.
    ///
    /// CLUSTER SHARDS has both ports. The other two answers have the port that fits the connection
    /// on which they were asked.
    pub fn take_tls_ports(&mut self) {
        for node in &mut self.nodes {
            if let (Some(endpoint), Some(port)) = (&mut node.endpoint, node.tls_port) {
                endpoint.port = port;
            }
        }
    }

    /// Replaces each endpoint by the result of `map`.
    pub fn map_endpoints(&mut self, map: impl Fn(&Endpoint) -> Endpoint) {
        for endpoint in self
            .nodes
            .iter_mut()
            .filter_map(|node| node.endpoint.as_mut())
        {
            *endpoint = map(endpoint);
        }
    }

    /// The index of the node that answered. Only CLUSTER NODES says it.
    pub fn myself(&self) -> Option<u16> {
        self.myself
    }

    /// The view without nodes that are not [usable](ClusterNode::is_usable). Their slots get no
    /// owner, and their replicas no primary.
    pub fn usable(&self) -> View {
        let mut nodes = Vec::new();
        let mut new_indexes = vec![NO_OWNER; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            if node.is_usable() {
                new_indexes[index] = nodes.len() as u16;
                nodes.push(node.clone());
            }
        }
        let new_index = |index: u16| {
            let index = new_indexes.get(usize::from(index)).copied();
            index.filter(|&index| index != NO_OWNER)
        };
        for node in &mut nodes {
            if let NodeRole::Replica { of } = &mut node.role {
                *of = of.and_then(new_index);
            }
        }
        let owners = self.owners.iter();
        View {
            nodes,
            owners: owners
                .map(|&owner| new_index(owner).unwrap_or(NO_OWNER))
                .collect(),
            myself: self.myself.and_then(new_index),
        }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<_> = self.ranges().collect();
        f.debug_struct("View")
            .field("nodes", &self.nodes)
            .field("ranges", &ranges)
            .field("myself", &self.myself)
            .finish()
    }
}

/// The reason why an answer is not a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewError {
    /// The answer is longer than [`ANSWER_BYTES_MAX`].
    TooLong,
    /// The bytes are not one complete reply.
    NotAReply,
    /// The node answered with an error; its beginning.
    Refused(String),
    /// The answer has another structure than the expected one, which is named.
    Form(&'static str),
    /// A field has a wrong value: name of the field, beginning of the value.
    Field(&'static str, String),
    /// The field with this name is missing.
    Missing(&'static str),
    /// The answer has more than [`NODES_MAX`] nodes.
    TooManyNodes,
    /// A slot or a replica refers to a node index that does not exist.
    NoSuchNode(u16),
    /// A range from the first slot to the last is empty or has a slot that does not exist.
    Range(u16, u16),
    /// This slot is in two ranges.
    SlotTwice(u16),
}

impl fmt::Display for ViewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ViewError::TooLong => write!(f, "the answer has more than {ANSWER_BYTES_MAX} bytes"),
            ViewError::NotAReply => f.write_str("the answer is not one complete reply"),
            ViewError::Refused(error) => write!(f, "the node answered '{error}'"),
            ViewError::Form(expected) => write!(f, "the answer should be {expected}"),
            ViewError::Field(name, value) => write!(f, "the {name} cannot be '{value}'"),
            ViewError::Missing(name) => write!(f, "the {name} is missing"),
            ViewError::TooManyNodes => write!(f, "the answer has more than {NODES_MAX} nodes"),
            ViewError::NoSuchNode(index) => write!(f, "there is no node with the index {index}"),
            ViewError::Range(first, last) => {
                write!(f, "{first} to {last} is not a range of slots")
            }
            ViewError::SlotTwice(slot) => write!(f, "slot {slot} is in two ranges"),
        }
    }
}

impl Error for ViewError {}

/// Splits `host:port`. The host may be empty, or an IPv6 address with or without brackets. `None`
/// if the port is not a 16-bit number, or the host has a character that no host has.
fn split_address(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|_| is_number)?;
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let host = bare.unwrap_or(host);
    host.bytes()
        .all(|byte| byte.is_ascii_graphic())
        .then_some((host, port))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const ASKED: &str = "asked.example";

    fn endpoint(host: &str, port: u16) -> Endpoint {
        let host = host.to_owned();
        Endpoint { host, port }
    }

    /// The id of each slot's owner.
    fn owner_ids(view: &View) -> Vec<Option<&str>> {
        let id = |slot| view.owner_of(slot).map(|node| node.id.as_str());
        (0..SLOTS).map(id).collect()
    }

    /// A malformed answer is an error, and its text names the fault.
    #[test]
    fn malformed_answer_error_names_the_fault() {
        let line = |rest: &str| {
            let text = format!("id h:1@2 master - 0 0 1 connected{rest}\n");
            let answer = format!("${}\r\n{text}\r\n", text.len());
            View::from_nodes(answer.as_bytes(), ASKED)
        };
        let slots = |answer: &str| View::from_slots(answer.as_bytes(), ASKED);
        let shards = |answer: &str| View::from_shards(answer.as_bytes(), ASKED);
        assert_eq!(line(" 0-16383").map(|view| view.slots_owned()), Ok(16_384));
        let many = format!("*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n${}\r\n", HOST_BYTES_MAX + 1)
            + &format!("{}\r\n:1\r\n", "h".repeat(HOST_BYTES_MAX + 1));
        for (found, text) in [
            (line(" 16384"), "the slot cannot be '16384'"),
            (line(" 5-x"), "the slot cannot be 'x'"),
            (line(" +5"), "the slot cannot be '+5'"),
            (line(" 5-3"), "5 to 3 is not a range of slots"),
            (line(" 5-7 7"), "slot 7 is in two ranges"),
            (line("x"), "the state of the link cannot be 'connectedx'"),
            (
                View::from_nodes(b"+id h:1 master - 0\r\n", ASKED),
                "the time of the last pong is missing",
            ),
            (
                View::from_nodes(b"+id h:x@1 master - 0 0 1 connected\r\n", ASKED),
                "the address of a node cannot be 'h:x@1'",
            ),
            (
                View::from_nodes(b"+id h:1 master - 0 0 -1 connected\r\n", ASKED),
                "the config epoch cannot be '-1'",
            ),
            (
                View::from_nodes(b"*0\r\n", ASKED),
                "the answer should be a text",
            ),
            (slots("*1\r\n"), "the answer is not one complete reply"),
            (
                slots("*0\r\n+OK\r\n"),
                "the answer is not one complete reply",
            ),
            (
                slots("-ERR This instance has cluster support disabled\r\n"),
                "the node answered 'ERR This instance has cluster support disabled'",
            ),
            (
                slots(":1\r\n"),
                "the answer should be a list of ranges: first slot, last slot, primary, replicas",
            ),
            (
                slots("*1\r\n*2\r\n:0\r\n:1\r\n"),
                "the answer should be a list of ranges: first slot, last slot, primary, replicas",
            ),
            (
                slots("*1\r\n*3\r\n:0\r\n:1\r\n*1\r\n+h\r\n"),
                "the answer should be a node with endpoint, port, and perhaps id and more",
            ),
            (
                slots("*1\r\n*3\r\n:-1\r\n:1\r\n*2\r\n+h\r\n:1\r\n"),
                "the slot cannot be '-1'",
            ),
            (
                slots("*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n+h\r\n:65536\r\n"),
                "the port of a node cannot be '65536'",
            ),
            (
                slots("*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n+h h\r\n:1\r\n"),
                "the endpoint of a node cannot be 'h h'",
            ),
            (
                slots(&many),
                &format!("the endpoint of a node cannot be '{}'", "h".repeat(100)),
            ),
            (
                slots("*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n+h\r\n:0\r\n"),
                "the endpoint of a node without an id is missing",
            ),
            (
                shards("*1\r\n*0\r\n"),
                "the answer should be a list of shards, each with slots and nodes",
            ),
            (
                shards("*1\r\n%2\r\n+slots\r\n*1\r\n:0\r\n+nodes\r\n*0\r\n"),
                "the answer should be slots in pairs: first and last of a range",
            ),
            (
                shards("*1\r\n%2\r\n+slots\r\n*0\r\n+nodes\r\n*1\r\n%1\r\n+id\r\n+a\r\n"),
                "the role of a node is missing",
            ),
        ] {
            assert_eq!(
                found.map_err(|error| error.to_string()),
                Err(text.to_owned())
            );
        }
        let long = vec![b' '; ANSWER_BYTES_MAX + 1];
        assert_eq!(View::from_slots(&long, ASKED), Err(ViewError::TooLong));
    }

    /// A malformed answer to CLUSTER INFO is an error, and its text names the fault.
    #[test]
    fn malformed_info_error_names_the_fault() {
        let info = |text: &str| {
            Info::read(format!("+{text}\r\n").as_bytes())
                .unwrap_err()
                .to_string()
        };
        assert_eq!(info("x"), "the cluster_slots_assigned is missing");
        assert_eq!(
            info(
                "cluster_state:ok\ncluster_slots_assigned:16385\ncluster_current_epoch:1\ncluster_my_epoch:1"
            ),
            "the cluster_slots_assigned cannot be '16385'"
        );
        assert_eq!(
            info(
                "cluster_state:odd\ncluster_slots_assigned:0\ncluster_current_epoch:1\ncluster_my_epoch:1"
            ),
            "the cluster_state cannot be 'odd'"
        );
    }

    /// An answer with one node more than the bound is an error.
    #[test]
    fn number_of_nodes_is_bounded() {
        let answer = |nodes: usize| {
            let line = |index| format!("id{index} h:{index}@1 master - 0 0 1 connected\n");
            let text: String = (1..=nodes).map(line).collect();
            format!("${}\r\n{text}\r\n", text.len())
        };
        let read = |nodes| View::from_nodes(answer(nodes).as_bytes(), ASKED);
        assert_eq!(
            read(NODES_MAX).map(|view| view.nodes().len()),
            Ok(NODES_MAX)
        );
        assert_eq!(read(NODES_MAX + 1), Err(ViewError::TooManyNodes));
        let nodes = vec![ClusterNode::primary("", endpoint("h", 1)); NODES_MAX + 1];
        assert_eq!(View::new(nodes, []), Err(ViewError::TooManyNodes));
    }

    /// A missing endpoint is the host of the node that answered. A missing host name is the node's
    /// address, if the answer has it.
    #[test]
    fn missing_endpoint_is_the_asked_host() {
        let host = |endpoint: &str, more: &str| {
            let node = format!("*4\r\n{endpoint}\r\n:7000\r\n+id\r\n{more}\r\n");
            let answer = format!("*1\r\n*3\r\n:0\r\n:1\r\n{node}");
            let view = View::from_slots(answer.as_bytes(), ASKED).expect(&answer);
            view.nodes()[0].endpoint.clone().expect("an endpoint").host
        };
        let ip = "%1\r\n+ip\r\n+10.0.0.9";
        for (endpoint, more, expected) in [
            ("$-1", "*0", ASKED),
            ("_", ip, ASKED),
            ("$0\r\n", ip, ASKED),
            ("+?", ip, "10.0.0.9"),
            ("+?", "%1\r\n+ip\r\n$0\r\n", ASKED),
            ("+?", "*0", ASKED),
            ("+?", "%1\r\n+ip\r\n+?", ASKED),
            ("+h", ip, "h"),
            ("+2001:db8::1", ip, "2001:db8::1"),
        ] {
            assert_eq!(host(endpoint, more), expected, "{endpoint} {more}");
        }
    }

    /// Nodes without ids are identified by their endpoints. A node that owns slots is a primary.
    #[test]
    fn nodes_without_ids_are_identified_by_endpoint() {
        let range = |slot: u16, endpoints: &[(&str, u16)]| {
            let node = |(host, port): &(&str, u16)| format!("*2\r\n+{host}\r\n:{port}\r\n");
            let nodes: String = endpoints.iter().map(node).collect();
            format!("*{}\r\n:{slot}\r\n:{slot}\r\n{nodes}", endpoints.len() + 2)
        };
        let ranges = [
            range(0, &[("a", 1), ("b", 1), ("a", 2)]),
            range(1, &[("b", 1), ("c", 1)]),
            range(2, &[("a", 1)]),
        ];
        let answer = format!("*3\r\n{}", ranges.concat());
        let view = View::from_slots(answer.as_bytes(), ASKED).expect(&answer);
        assert_eq!(view.nodes().len(), 4);
        let owner = |slot| view.owner_of(slot).and_then(|node| node.endpoint.clone());
        assert_eq!(
            [0, 1, 2].map(owner),
            ["a", "b", "a"].map(|host| Some(endpoint(host, 1)))
        );
        let roles: Vec<NodeRole> = view.nodes().iter().map(|node| node.role).collect();
        let replica = |of| NodeRole::Replica { of: Some(of) };
        assert_eq!(
            roles,
            [NodeRole::Primary, NodeRole::Primary, replica(0), replica(1)]
        );
    }

    /// Each field of a CLUSTER NODES line is read, in the formats of all versions.
    #[test]
    fn nodes_line_is_read_completely() {
        let text = "\
            a :7000@17000 myself,master - 0 0 5 connected 3 10-12 [93->-b] [77-<-c]\n\
            b 2001:db8::1:7000@17000,b.example,shard-id=69bc,availability-zone=z1,tls-port=7001 slave,nofailover a 0 1 5 connected\n\
            c [::1]:7000 master,fail? - 1 2 6 disconnected 0-2\n\
            d 10.0.0.4:7000@17000, slave,fail gone 1 2 0 connected\n\
            e :0@0 master - 1 2 0 connected\n\
            h 10.0.0.8:7000@17000 master,noaddr - 1 2 0 connected\n\
            f 10.0.0.6:7000@17000 handshake - 0 0 0 disconnected\n\
            g 10.0.0.7:7000@17000 master,news - 0 0 0 disconnected\n";
        let answer = format!("={}\r\ntxt:{text}\r\n", text.len() + 4);
        let view = View::from_nodes(answer.as_bytes(), ASKED).expect("a view");
        let replica = |of| NodeRole::Replica { of };
        let expected = [
            (Some(ASKED), NodeRole::Primary, NodeHealth::Online, 5),
            (Some("2001:db8::1"), replica(Some(0)), NodeHealth::Online, 5),
            (Some("::1"), NodeRole::Primary, NodeHealth::Suspected, 6),
            (Some("10.0.0.4"), replica(None), NodeHealth::Failed, 0),
            (None, NodeRole::Primary, NodeHealth::Online, 0),
            (None, NodeRole::Primary, NodeHealth::Online, 0),
            (Some("10.0.0.6"), NodeRole::Unknown, NodeHealth::Joining, 0),
            (
                Some("10.0.0.7"),
                NodeRole::Primary,
                NodeHealth::Suspected,
                0,
            ),
        ];
        assert_eq!(view.nodes().len(), expected.len());
        for (node, (host, role, health, epoch)) in view.nodes().iter().zip(expected) {
            let place = host.map(|host| endpoint(host, 7000));
            assert_eq!((&node.endpoint, node.role), (&place, role));
            assert_eq!((node.health, node.epoch), (health, Some(epoch)));
        }
        let named = &view.nodes()[1];
        assert_eq!(named.hostname.as_deref(), Some("b.example"));
        assert_eq!(named.zone.as_deref(), Some("z1"));
        assert_eq!(named.tls_port, Some(7001));
        assert_eq!(view.nodes()[3].hostname, None);
        assert_eq!(view.myself(), Some(0));
        assert_eq!(
            view.ranges().collect::<Vec<_>>(),
            [(0..=2, 2), (3..=3, 0), (10..=12, 0)]
        );
        assert_eq!(view.find_at("b.example", 7001), Some(1));
        assert_eq!(view.find_at("b.example", 7002), None);
        let usable = view.usable();
        let ids: Vec<&str> = usable.nodes().iter().map(|node| node.id.as_str()).collect();
        assert_eq!(ids, ["a", "b", "c", "g"]);
    }

    /// CLUSTER SHARDS names both ports. Over TLS the port with TLS counts; a node without one keeps
    /// its port.
    #[test]
    fn tls_ports_take_the_place_of_plain_ones() {
        let node = |id: &str, ports: &str| {
            format!(
                "*{}\r\n+id\r\n+{id}\r\n{ports}+endpoint\r\n+{ASKED}\r\n+role\r\n+master\r\n+health\r\n+online\r\n",
                8 + 2 * ports.matches('+').count()
            )
        };
        let shard = |slot: u16, node: String| {
            format!("*4\r\n+slots\r\n*2\r\n:{slot}\r\n:{slot}\r\n+nodes\r\n*1\r\n{node}")
        };
        let both = node("a", "+port\r\n:1\r\n+tls-port\r\n:2\r\n");
        let plain = node("b", "+port\r\n:3\r\n");
        let answer = format!("*2\r\n{}{}", shard(0, both), shard(1, plain));
        let mut view = View::from_shards(answer.as_bytes(), ASKED).expect("a view");
        let ports = |view: &View| {
            let nodes = view.nodes().iter();
            let ports = nodes.filter_map(|node| node.endpoint.as_ref().map(|at| at.port));
            ports.collect::<Vec<_>>()
        };
        assert_eq!(ports(&view), [1, 3]);
        view.take_tls_ports();
        assert_eq!(ports(&view), [2, 3]);
        // A redirect may name either port.
        assert_eq!(view.find_at(ASKED, 2), Some(0));
    }

    /// Of several primaries in a shard the healthiest owns the slots, then the one with the higher
    /// offset.
    #[test]
    fn shard_belongs_to_its_best_primary() {
        let owner = |nodes: &[(&str, u64)]| {
            let node = |(index, (health, offset)): (usize, &(&str, u64))| {
                format!(
                    "%6\r\n+id\r\n+{index}\r\n+port\r\n:1\r\n+endpoint\r\n+h\r\n+role\r\n+master\r\n\
                     +health\r\n+{health}\r\n+replication-offset\r\n:{offset}\r\n"
                )
            };
            let list: String = nodes.iter().enumerate().map(node).collect();
            let slots = "%2\r\n+slots\r\n*2\r\n:0\r\n:9\r\n+nodes\r\n";
            let answer = format!("*1\r\n{slots}*{}\r\n{list}", nodes.len());
            View::from_shards(answer.as_bytes(), ASKED)
                .expect(&answer)
                .owner(9)
        };
        assert_eq!(owner(&[]), None);
        assert_eq!(owner(&[("fail", 9)]), Some(0));
        assert_eq!(owner(&[("fail", 9), ("online", 5)]), Some(1));
        assert_eq!(
            owner(&[("loading", 9), ("online", 5), ("failed", 9)]),
            Some(1)
        );
        assert_eq!(owner(&[("online", 5), ("online", 9)]), Some(1));
        assert_eq!(owner(&[("online", 9), ("online", 9)]), Some(0));
        assert_eq!(owner(&[("a later word", 9), ("fail", 9)]), Some(0));
    }

    /// The slots at which the owner changes, each with its new owner among the primaries.
    type Cuts = BTreeMap<u16, Option<prop::sample::Index>>;

    fn any_cuts() -> impl Strategy<Value = Cuts> {
        prop::collection::btree_map(0..SLOTS, any::<Option<prop::sample::Index>>(), 0..12)
    }

    /// Nodes with ids in any order. The first node is a primary.
    fn any_nodes() -> impl Strategy<Value = Vec<ClusterNode>> {
        let shapes = prop::collection::vec((any::<bool>(), 0..5_u8), 1..8);
        (shapes, any::<u64>()).prop_map(|(shapes, seed)| {
            let node = |(index, (is_replica, health)): (usize, (bool, u8))| {
                let number = (index as u64 + 1).wrapping_mul(seed | 1);
                let endpoint = endpoint("::1", 7_000 + index as u16);
                let mut node = ClusterNode::primary(&format!("{number:040x}"), endpoint);
                if is_replica && index > 0 {
                    node.role = NodeRole::Replica { of: Some(0) };
                }
                if health == 0 {
                    node.health = NodeHealth::Failed;
                }
                node
            };
            shapes.into_iter().enumerate().map(node).collect()
        })
    }

    fn cut(nodes: &[ClusterNode], cuts: &Cuts) -> View {
        let primaries: Vec<u16> = (0..)
            .zip(nodes)
            .filter_map(|(index, node)| (node.role == NodeRole::Primary).then_some(index))
            .collect();
        let ends = cuts.keys().skip(1).map(|next| next - 1).chain([SLOTS - 1]);
        let ranges = cuts.iter().zip(ends).filter_map(|((&first, owner), last)| {
            Some((first..=last, *owner.as_ref()?.get(&primaries)))
        });
        View::new(nodes.to_vec(), ranges).expect("ranges beside each other")
    }

    fn any_view() -> impl Strategy<Value = View> {
        (any_nodes(), any_cuts()).prop_map(|(nodes, cuts)| cut(&nodes, &cuts))
    }

    /// Endpoint, health and primary's id of each node, by its id.
    fn by_id(view: &View) -> BTreeMap<&str, (&Option<Endpoint>, NodeHealth, Option<&str>)> {
        let id = |index: u16| view.nodes[usize::from(index)].id.as_str();
        let nodes = view.nodes.iter().map(|node| {
            let primary = match node.role {
                NodeRole::Replica { of } => of.map(id),
                _ => None,
            };
            (node.id.as_str(), (&node.endpoint, node.health, primary))
        });
        nodes.collect()
    }

    fn bulk(text: &str) -> String {
        format!("${}\r\n{text}\r\n", text.len())
    }

    /// The answer of a node with this view to CLUSTER SLOTS.
    fn slots_answer(view: &View, resp3: bool) -> Vec<u8> {
        let node = |index: u16| {
            let ClusterNode { id, endpoint, .. } = &view.nodes[usize::from(index)];
            let at = endpoint.as_ref().expect("every node has an endpoint");
            let about = if resp3 { "%0\r\n" } else { "*0\r\n" };
            format!(
                "*4\r\n{}:{}\r\n{}{about}",
                bulk(&at.host),
                at.port,
                bulk(id)
            )
        };
        let ranges: Vec<String> = view
            .ranges()
            .map(|(range, owner)| {
                let nodes: Vec<String> = [owner]
                    .into_iter()
                    .chain(view.replicas_of(owner))
                    .map(node)
                    .collect();
                let (first, last) = range.into_inner();
                format!(
                    "*{}\r\n:{first}\r\n:{last}\r\n{}",
                    nodes.len() + 2,
                    nodes.concat()
                )
            })
            .collect();
        format!("*{}\r\n{}", ranges.len(), ranges.concat()).into_bytes()
    }

    /// The answer of a node with this view to CLUSTER SHARDS.
    fn shards_answer(view: &View, resp3: bool) -> Vec<u8> {
        let map = |fields: &[(&str, String)]| {
            let head = if resp3 {
                format!("%{}\r\n", fields.len())
            } else {
                format!("*{}\r\n", fields.len() * 2)
            };
            let fields = fields.iter().map(|(key, value)| bulk(key) + value);
            head + &fields.collect::<String>()
        };
        let node = |index: u16| {
            let node = &view.nodes[usize::from(index)];
            let at = node.endpoint.as_ref().expect("every node has an endpoint");
            let role = if node.role == NodeRole::Primary {
                "master"
            } else {
                "replica"
            };
            let health = if node.health == NodeHealth::Failed {
                "fail"
            } else {
                "online"
            };
            map(&[
                ("id", bulk(&node.id)),
                ("port", format!(":{}\r\n", at.port)),
                ("ip", bulk(&at.host)),
                ("endpoint", bulk(&at.host)),
                ("role", bulk(role)),
                ("replication-offset", ":5\r\n".to_owned()),
                ("health", bulk(health)),
            ])
        };
        let shards: Vec<String> = (0..view.nodes.len() as u16)
            .filter(|&index| view.nodes[usize::from(index)].role == NodeRole::Primary)
            .map(|primary| {
                let ranges = view.ranges().filter(|(_, owner)| *owner == primary);
                let slots: Vec<u16> = ranges
                    .flat_map(|(range, _)| [*range.start(), *range.end()])
                    .collect();
                let list: String = slots.iter().map(|slot| format!(":{slot}\r\n")).collect();
                // The primary may be at any position in its shard.
                let nodes: Vec<String> = view
                    .replicas_of(primary)
                    .chain([primary])
                    .map(node)
                    .collect();
                map(&[
                    ("slots", format!("*{}\r\n{list}", slots.len())),
                    ("nodes", format!("*{}\r\n{}", nodes.len(), nodes.concat())),
                ])
            })
            .collect();
        format!("*{}\r\n{}", shards.len(), shards.concat()).into_bytes()
    }

    /// The answer of a node with this view to CLUSTER NODES.
    fn nodes_answer(view: &View, resp3: bool) -> Vec<u8> {
        let mut text = String::new();
        for (index, node) in (0..).zip(&view.nodes) {
            let at = node.endpoint.as_ref().expect("every node has an endpoint");
            let (role, primary) = match node.role {
                NodeRole::Replica { of: Some(of) } => {
                    ("slave", view.nodes[usize::from(of)].id.as_str())
                }
                _ => ("master", "-"),
            };
            let failed = if node.health == NodeHealth::Failed {
                ",fail"
            } else {
                ""
            };
            text += &format!(
                "{} {}:{}@17000 {role}{failed} {primary} 0 0 1 connected",
                node.id, at.host, at.port
            );
            for (range, _) in view.ranges().filter(|(_, owner)| *owner == index) {
                text += &match range.into_inner() {
                    (first, last) if first == last => format!(" {first}"),
                    (first, last) => format!(" {first}-{last}"),
                };
            }
            text.push('\n');
        }
        if resp3 {
            format!("={}\r\ntxt:{text}\r\n", text.len() + 4).into_bytes()
        } else {
            bulk(&text).into_bytes()
        }
    }

    proptest! {
        /// A view that is written as an answer is read back, from each of the three commands.
        #[test]
        fn written_view_is_read_back(view in any_view(), resp3: bool) {
            let slots = View::from_slots(&slots_answer(&view, resp3), ASKED).unwrap();
            prop_assert_eq!(owner_ids(&slots), owner_ids(&view));
            let shards = View::from_shards(&shards_answer(&view, resp3), ASKED).unwrap();
            let nodes = View::from_nodes(&nodes_answer(&view, resp3), ASKED).unwrap();
            for read in [shards, nodes] {
                prop_assert_eq!(owner_ids(&read), owner_ids(&view));
                prop_assert_eq!(by_id(&read), by_id(&view));
            }

            // The ranges are in order, and neighbouring ranges have different owners.
            let ranges: Vec<_> = view.ranges().collect();
            for pair in ranges.windows(2) {
                let (end, start) = (*pair[0].0.end(), *pair[1].0.start());
                prop_assert!(end < start && (end + 1 < start || pair[0].1 != pair[1].1));
            }
            prop_assert_eq!(ranges.iter().map(|(range, _)| range.len()).sum::<usize>(), view.slots_owned());
            prop_assert_eq!(View::new(view.nodes.clone(), ranges), Ok(view));
        }

        /// Reading any bytes gives a view or an error, and never panics.
        #[test]
        fn any_bytes_are_a_view_or_an_error(
            pieces in prop::collection::vec(
                prop_oneof![
                    prop::sample::select(vec![
                        "*1\r\n", "*2\r\n", "*3\r\n", "*4\r\n", "%1\r\n", "%2\r\n", "*0\r\n", ":0\r\n", ":9\r\n", "_\r\n",
                        "+slots\r\n", "+nodes\r\n", "+id\r\n", "+h\r\n", "+role\r\n", "+master\r\n", "+health\r\n", "+port\r\n",
                        "+a h:1@2 master - 0 0 1 connected 0-9\r\n", "+a :0@0,,x=y slave b 0 0 1 connected\r\n",
                    ]).prop_map(|piece| piece.as_bytes().to_vec()),
                    prop::collection::vec(any::<u8>(), 0..6),
                ],
                0..30,
            ),
        ) {
            let bytes = pieces.concat();
            let text = [format!("${}\r\n", bytes.len()).as_bytes(), &bytes, b"\r\n"].concat();
            for answer in [&bytes, &text] {
                for read in [View::from_slots, View::from_shards, View::from_nodes] {
                    let _ = read(answer, ASKED);
                }
                let _ = Info::read(answer);
            }
        }

        /// Without its unusable nodes, a view keeps the slots and replicas of the others.
        #[test]
        fn usable_nodes_keep_their_slots(view in any_view()) {
            let usable = view.usable();
            prop_assert!(usable.nodes.iter().all(ClusterNode::is_usable));
            let ids = |slot| {
                let owner = view.owner_of(slot).filter(|node| node.is_usable());
                owner.map(|node| node.id.as_str())
            };
            prop_assert_eq!(owner_ids(&usable), (0..SLOTS).map(ids).collect::<Vec<_>>());
            for (id, (_, _, primary)) in by_id(&usable) {
                let before = by_id(&view)[id].2;
                prop_assert_eq!(primary, before.filter(|id| usable.find(id).is_some()));
            }
        }
    }
}
