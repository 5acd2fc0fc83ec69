//! What the nodes of a Cluster say of its topology: read into one shape, and which of them to believe.
//!
//! ```text
//! CLUSTER SLOTS  ──┐
//! CLUSTER SHARDS ──┼──read──> a View ──────┐
//! CLUSTER NODES  ──┘                       ├──choose──> the View to believe ──diff──> the slots that changed owner
//! CLUSTER INFO   ─────read──> its Info ────┘
//! ```
//!
//! A [`View`] is what one node believes at one moment: the nodes, and for each of the 16,384 slots which of them
//! owns it. The three commands say the same with more or less detail:
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
//! What a node executed nothing of is a [`Refusal`], and where it points to a [`Redirect`].

mod answers;
mod refusal;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::ops::RangeInclusive;

use crate::slot::SLOTS;

pub use answers::Info;
pub use refusal::{Redirect, Refusal};

/// How many nodes a view may have. Redis advises against more than 1,000 in a Cluster.
pub const NODES_MAX: usize = 4_096;

/// The longest answer that is read. One that makes sense, every slot a range of its own and each with two replicas,
/// is about 5 MiB of CLUSTER SLOTS, and more with long names.
pub const ANSWER_BYTES_MAX: usize = 32 << 20;

/// The longest host, as in DNS.
pub const HOST_BYTES_MAX: usize = 255;

/// The longest id of a node: Redis's and Valkey's have 40 bytes.
pub const ID_BYTES_MAX: usize = 64;

/// In a table of owners: the slot has none.
pub const NOBODY: u16 = u16::MAX;

// Every node has an index that is not NOBODY.
const _: () = assert!(NODES_MAX <= NOBODY as usize);

/// How the nodes of a Cluster share the slots, as one of them sees it.
///
/// Nodes are known by their index, which means nothing in another view: there they are found again by
/// their id, or by their endpoint where an answer has no ids.
#[derive(Clone, PartialEq, Eq)]
pub struct View {
    nodes: Vec<Node>,
    /// For each slot the index of its primary, or [`NOBODY`].
    owners: Box<[u16]>,
    myself: Option<u16>,
}

/// One node of a Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// 40 hexadecimal digits, the same for the life of the node. Empty where the answer has none.
    pub id: String,
    /// Where clients reach it; `None` if the node that was asked does not know.
    pub endpoint: Option<Endpoint>,
    /// The port for TLS, where the answer says which it is. If it is the only one, `endpoint` has it, too.
    pub tls_port: Option<u16>,
    /// Primary or replica.
    pub role: Role,
    /// How it is, as the node that was asked sees it.
    pub health: Health,
    /// The name that the administrator gave its host. CLUSTER SLOTS leaves it out where the endpoint is that name.
    pub hostname: Option<String>,
    /// The availability zone that the administrator put it in.
    pub zone: Option<String>,
    /// Its config epoch: of two nodes that claim a slot, the one with the higher epoch has it.
    pub epoch: Option<u64>,
    /// How many bytes of the replication stream it has written or taken in.
    pub offset_bytes: Option<u64>,
}

/// A host and a port to connect to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// A name, an IPv4 address, or an IPv6 address without brackets; at most [`HOST_BYTES_MAX`] bytes.
    pub host: String,
    /// From 1 on.
    pub port: u16,
}

/// What a node is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It owns slots, or could.
    Primary,
    /// It has what its primary has.
    Replica {
        /// The index of its primary; `None` if that is not in the view.
        of: Option<u16>,
    },
    /// Not known yet: it is just being met.
    Unknown,
}

/// How a node is, as another one sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Nothing is known against it.
    Online,
    /// It is there, and still reads its data.
    Loading,
    /// The node that was asked cannot reach it (`fail?`, or no link), or says a word of it that is not known here.
    Suspected,
    /// Most primaries could not reach it.
    Failed,
    /// It is not a member yet: a handshake.
    Joining,
}

impl Node {
    /// A primary that is online, of which nothing else is known.
    pub fn primary(id: &str, endpoint: Endpoint) -> Node {
        Node {
            id: id.to_owned(),
            endpoint: Some(endpoint),
            tls_port: None,
            role: Role::Primary,
            health: Health::Online,
            hostname: None,
            zone: None,
            epoch: None,
            offset_bytes: None,
        }
    }

    /// Whether there is a point in connecting to it: it is a member, not failed, and its endpoint is known.
    pub fn is_usable(&self) -> bool {
        let is_member = !matches!(self.health, Health::Failed | Health::Joining);
        is_member && self.endpoint.is_some()
    }

    /// What it is known by in other views.
    fn name(&self) -> Name<'_> {
        match &self.endpoint {
            _ if !self.id.is_empty() => Name::Id(&self.id),
            endpoint => Name::Endpoint(endpoint.as_ref()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name<'a> {
    Id(&'a str),
    Endpoint(Option<&'a Endpoint>),
}

impl View {
    /// A view of nodes, and of ranges of slots with the index of their owner among the nodes.
    ///
    /// # Errors
    /// When there are more than [`NODES_MAX`] nodes; when a range has a slot that does not exist, or ends before it
    /// begins; when an index has no node; when a slot stands in two ranges.
    pub fn new(
        nodes: Vec<Node>,
        ranges: impl IntoIterator<Item = (RangeInclusive<u16>, u16)>,
    ) -> Result<View, ViewError> {
        if nodes.len() > NODES_MAX {
            return Err(ViewError::TooManyNodes);
        }
        let exists = |index: u16| usize::from(index) < nodes.len();
        for node in &nodes {
            if let Role::Replica { of: Some(primary) } = node.role
                && !exists(primary)
            {
                return Err(ViewError::NoSuchNode(primary));
            }
        }
        let mut owners = vec![NOBODY; usize::from(SLOTS)].into_boxed_slice();
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
                if *before != NOBODY {
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

    /// All nodes that the answer speaks of, in its order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The index of a slot's owner among the nodes, or `None` if nobody owns it.
    #[inline]
    pub fn owner(&self, slot: u16) -> Option<u16> {
        let owner = self.owners.get(usize::from(slot)).copied();
        owner.filter(|&owner| owner != NOBODY)
    }

    /// The primary that owns a slot.
    pub fn owner_of(&self, slot: u16) -> Option<&Node> {
        self.nodes.get(usize::from(self.owner(slot)?))
    }

    /// The table itself: one index, or [`NOBODY`], for each of the [`SLOTS`] slots.
    pub fn owners(&self) -> &[u16] {
        &self.owners
    }

    /// The slots that have an owner, as ranges as long as they can be, in order, each with its owner's index.
    pub fn ranges(&self) -> impl Iterator<Item = (RangeInclusive<u16>, u16)> + '_ {
        let runs = self.owners.chunk_by(|one, next| one == next);
        let mut at = 0;
        runs.filter_map(move |run| {
            let first = at;
            at += run.len();
            // The table has SLOTS slots, so they all have 16 bits.
            let range = first as u16..=(at - 1) as u16;
            (run[0] != NOBODY).then_some((range, run[0]))
        })
    }

    /// How many slots have an owner.
    pub fn slots_owned(&self) -> usize {
        let owned = self.owners.iter().filter(|&&owner| owner != NOBODY);
        owned.count()
    }

    /// The indexes of a primary's replicas.
    pub fn replicas_of(&self, primary: u16) -> impl Iterator<Item = u16> + '_ {
        let of = Role::Replica { of: Some(primary) };
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
        let named = |node: &Node| !id.is_empty() && node.id == id;
        self.nodes.iter().position(named).map(|index| index as u16)
    }

    /// The index of the node at this place, for a [`Redirect`]: by the host of its endpoint or by its host name, and by
    /// either of its ports.
    pub fn find_at(&self, host: &str, port: u16) -> Option<u16> {
        let there = |node: &Node| {
            node.endpoint.as_ref().is_some_and(|at| {
                (at.host == host || node.hostname.as_deref() == Some(host))
                    && (at.port == port || node.tls_port == Some(port))
            })
        };
        self.nodes.iter().position(there).map(|index| index as u16)
    }

    /// Puts other endpoints in the place of those that the answer has.
    pub fn map_endpoints(&mut self, map: impl Fn(&Endpoint) -> Endpoint) {
        for endpoint in self
            .nodes
            .iter_mut()
            .filter_map(|node| node.endpoint.as_mut())
        {
            *endpoint = map(endpoint);
        }
    }

    /// The index of the node that was asked, where the answer says which it is: CLUSTER NODES only.
    pub fn myself(&self) -> Option<u16> {
        self.myself
    }

    /// The same without the nodes that are not [usable](Node::is_usable). Their slots have no owner then, and
    /// their replicas no primary.
    pub fn usable(&self) -> View {
        let mut nodes = Vec::new();
        let mut index_now = vec![NOBODY; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            if node.is_usable() {
                index_now[index] = nodes.len() as u16;
                nodes.push(node.clone());
            }
        }
        let now = |index: u16| {
            let index = index_now.get(usize::from(index)).copied();
            index.filter(|&index| index != NOBODY)
        };
        for node in &mut nodes {
            if let Role::Replica { of } = &mut node.role {
                *of = of.and_then(now);
            }
        }
        let owners = self.owners.iter();
        View {
            nodes,
            owners: owners.map(|&owner| now(owner).unwrap_or(NOBODY)).collect(),
            myself: self.myself.and_then(now),
        }
    }

    /// Who owns what, in a form that is the same for any order of the nodes.
    fn shares(&self) -> Shares<'_> {
        let ranges = self.ranges().map(|(range, owner)| {
            let name = self.nodes[usize::from(owner)].name();
            (*range.start(), *range.end(), name)
        });
        ranges.collect()
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

/// First and last slot of each range, and its owner.
type Shares<'a> = Vec<(u16, u16, Name<'a>)>;

/// What to believe of what several nodes answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The view to believe; `None` if there is none.
    pub view: Option<View>,
    /// The current epoch of those who share it.
    pub epoch: u64,
    /// Whether it is of the Cluster that is known: then its epoch says whether it is later than what was believed before.
    pub is_known: bool,
    /// The places of the answers that are of other Clusters.
    pub strangers: Vec<usize>,
}

/// Whom to believe of several nodes that answered at the same time. `known`: the ids of the nodes that are believed in.
///
/// 1. Answers are of one Cluster if their views share the id of a node, or each shares one with a third.
///    Epochs and majorities of different Clusters say nothing of each other.
/// 2. The Cluster counts of which there are most answers; of as many, the one that has most of the known ids; then the one that
///    comes first by what follows.
/// 3. The nodes that are not [usable](Node::is_usable) are left out of every view.
/// 4. Only answers with the highest current epoch count. Every failover begins with a higher one, which
///    spreads to whoever can still be reached: who has a lower one has not heard of the last failover.
/// 5. Of these, the view that most nodes share counts: in which each slot has the same owner. A slot that moves to
///    the node whose epoch is the highest already raises none, so answers of one epoch may differ for a moment.
/// 6. If as many share another one: that of more nodes whose own state is ok, then the one in which more slots have
///    an owner, then any, but the same in whatever order the answers stand.
/// 7. Of those who share it, one whose state is ok and who sees the most usable nodes is taken as it is: replicas and
///    zones of several are not mixed.
///
/// Which Cluster an answer without any id is of cannot be said: such answers count, as those of one, where no other has
/// an id.
///
/// All answers should be read from the same command: one that has ids and one that has none never agree.
pub fn choose(known: &BTreeSet<String>, answers: &[(View, Info)]) -> Choice {
    let all = answers.iter().map(|(view, info)| (view.usable(), info));
    let all: Vec<(View, &Info)> = all.collect();
    let clusters = clusters_of(answers);
    let mut named: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut nameless = Vec::new();
    for (place, cluster) in clusters.iter().enumerate() {
        match *cluster {
            Some(cluster) => named.entry(cluster).or_default().push(place),
            None => nameless.push(place),
        }
    }
    let of_each = named.iter().filter_map(|(cluster, places)| {
        let ids = places.iter().flat_map(|place| answers[*place].0.ids());
        let ids: BTreeSet<&str> = ids.collect();
        let shared = ids.iter().filter(|id| known.contains(**id)).count();
        let verdict = Verdict::of(&all, places)?;
        // Nodes without slots may be all that they have; two Clusters have no id in common.
        let last = Reverse(ids.first().copied());
        let rank = (places.len(), shared, verdict.rank, last);
        Some((rank, verdict.view, Some(*cluster)))
    });
    let of_nobody = Verdict::of(&all, &nameless).filter(|_| named.is_empty());
    let of_nobody = of_nobody.map(|verdict| {
        let rank = (nameless.len(), 0, verdict.rank, Reverse(None));
        (rank, verdict.view, None)
    });
    let best = of_each.chain(of_nobody);
    let best = best.max_by(|(rank, ..), (other, ..)| rank.cmp(other));
    let chosen = best.as_ref().and_then(|(.., cluster)| *cluster);
    let is_other = |place: &usize| clusters[*place].is_some_and(|its| Some(its) != chosen);
    let shared = best.as_ref().map_or(0, |((_, shared, ..), ..)| *shared);
    Choice {
        is_known: shared > 0 || known.is_empty() || chosen.is_none(),
        strangers: (0..answers.len()).filter(is_other).collect(),
        epoch: best.as_ref().map_or(0, |((_, _, rank, _), ..)| rank.0),
        view: best.map(|(_, view, _)| view.clone()),
    }
}

/// Of each answer, which Cluster it is of: the first place of one that is; `None` without an id.
fn clusters_of(answers: &[(View, Info)]) -> Vec<Option<usize>> {
    let mut clusters: Vec<Option<usize>> = vec![None; answers.len()];
    let mut first_with: BTreeMap<&str, usize> = BTreeMap::new();
    for (place, (view, _)) in answers.iter().enumerate() {
        for id in view.ids() {
            let own = *clusters[place].get_or_insert(place);
            let with = *first_with.entry(id).or_insert(place);
            let other = clusters[with].unwrap_or(own);
            // Those that could be told apart until now.
            let (first, later) = (own.min(other), own.max(other));
            for cluster in clusters.iter_mut().filter(|its| **its == Some(later)) {
                *cluster = Some(first);
            }
        }
    }
    clusters
}

/// What the answers of one Cluster come to.
struct Verdict<'a> {
    /// Of several Clusters the one with the highest counts: the epoch; how many share the view, and how many of these are ok;
    /// how many slots have an owner, and which.
    rank: (u64, usize, usize, usize, Reverse<Shares<'a>>),
    view: &'a View,
}

impl<'a> Verdict<'a> {
    /// `places`: which of the answers they are.
    fn of(answers: &'a [(View, &Info)], places: &[usize]) -> Option<Verdict<'a>> {
        let epoch_at = |place: &usize| answers[*place].1.current_epoch;
        let epoch = places.iter().map(epoch_at).max()?;
        let mut parties: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for place in places.iter().filter(|place| epoch_at(place) == epoch) {
            let shares = answers[*place].0.shares();
            parties.entry(shares).or_default().push(*place);
        }
        let ranked = parties.into_iter().map(|(shares, party)| {
            let ok = party.iter().filter(|&&place| answers[place].1.ok).count();
            let owned = answers[party[0]].0.slots_owned();
            ((epoch, party.len(), ok, owned, Reverse(shares)), party)
        });
        let (rank, party) = ranked.max()?;
        let best = party.iter().max_by_key(|&&place| {
            let (view, info) = &answers[place];
            (info.ok, view.nodes.len(), Reverse(place))
        })?;
        let view = &answers[*best].0;
        Some(Verdict { rank, view })
    }
}

/// Slots whose owner is another one than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// As many neighbours as have the same change.
    pub slots: RangeInclusive<u16>,
    /// The index of their owner in the old view; `None` if they had none.
    pub from: Option<u16>,
    /// The index of their owner in the new view; `None` if they have none any more.
    pub to: Option<u16>,
}

/// Which slots changed owner, in order.
///
/// An owner is the same if its id is, or its endpoint where one of the two has no id. So a node that has only got another
/// address keeps its slots: compare [`Node::endpoint`] for that.
pub fn diff(old: &View, new: &View) -> Vec<Change> {
    // Each node by its id, and by its endpoint together with whether it has one.
    let mut by_id = BTreeMap::new();
    let mut by_endpoint = BTreeMap::new();
    for (index, node) in (0_u16..).zip(&new.nodes) {
        let has_id = !node.id.is_empty();
        if has_id {
            by_id.insert(node.id.as_str(), index);
        }
        by_endpoint.insert((node.endpoint.as_ref(), has_id), index);
    }
    // Where each of the old nodes is in the new view.
    let index_now = |node: &Node| {
        let there = |has_id| {
            let endpoint = node.endpoint.as_ref()?;
            by_endpoint.get(&(Some(endpoint), has_id))
        };
        let index = if node.id.is_empty() {
            there(false).or_else(|| there(true))
        } else {
            by_id.get(node.id.as_str()).or_else(|| there(false))
        };
        index.copied()
    };
    let index_now: Vec<Option<u16>> = old.nodes.iter().map(index_now).collect();
    let mut changes: Vec<Change> = Vec::new();
    for slot in 0..SLOTS {
        let (from, to) = (old.owner(slot), new.owner(slot));
        let stayed = match from {
            Some(from) => to.is_some() && index_now[usize::from(from)] == to,
            None => to.is_none(),
        };
        if stayed {
            continue;
        }
        match changes.last_mut() {
            Some(last) if last.slots.end() + 1 == slot && (last.from, last.to) == (from, to) => {
                last.slots = *last.slots.start()..=slot;
            }
            _ => changes.push(Change {
                slots: slot..=slot,
                from,
                to,
            }),
        }
    }
    changes
}

/// Why an answer is no view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewError {
    /// It is longer than [`ANSWER_BYTES_MAX`].
    TooLong,
    /// The bytes are not one whole reply.
    NotAReply,
    /// The node answered with this error, of which the beginning is here.
    Refused(String),
    /// It is not built as it should be: what should be there.
    Form(&'static str),
    /// A field, by its name, has this value, of which the beginning is here.
    Field(&'static str, String),
    /// A field, by its name, is missing.
    Missing(&'static str),
    /// There are more than [`NODES_MAX`].
    TooManyNodes,
    /// A slot or a replica belongs to a node of this index, and there is none.
    NoSuchNode(u16),
    /// From the first of these slots to the second there is no slot, or one that does not exist.
    Range(u16, u16),
    /// This slot stands in two ranges.
    SlotTwice(u16),
}

impl fmt::Display for ViewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ViewError::TooLong => write!(f, "an answer has at most {ANSWER_BYTES_MAX} bytes"),
            ViewError::NotAReply => f.write_str("the answer is not one whole reply"),
            ViewError::Refused(error) => write!(f, "the node answered '{error}'"),
            ViewError::Form(expected) => write!(f, "the answer should be {expected}"),
            ViewError::Field(name, value) => write!(f, "the {name} cannot be '{value}'"),
            ViewError::Missing(name) => write!(f, "the {name} is missing"),
            ViewError::TooManyNodes => write!(f, "a Cluster has at most {NODES_MAX} nodes"),
            ViewError::NoSuchNode(index) => write!(f, "there is no node with the index {index}"),
            ViewError::Range(first, last) => {
                write!(f, "the slots from {first} to {last} are no range of slots")
            }
            ViewError::SlotTwice(slot) => write!(f, "slot {slot} stands in two ranges"),
        }
    }
}

impl Error for ViewError {}

/// Host and port of `host:port`, where the host may be empty, an IPv6 address, or one in brackets. `None` if the port
/// is no number of 16 bits, or the host has anything that no host has.
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

    fn info(current_epoch: u64, ok: bool) -> Info {
        Info {
            ok,
            current_epoch,
            my_epoch: 0,
            slots_assigned: 0,
        }
    }

    /// Primaries of these ids, with ranges by the place in the list.
    fn view(ids: &[&str], ranges: &[(RangeInclusive<u16>, u16)]) -> View {
        let node = |id: &&str| Node::primary(id, endpoint(id, 1));
        View::new(ids.iter().map(node).collect(), ranges.iter().cloned()).expect("a view")
    }

    /// The id of each slot's owner.
    fn owner_ids(view: &View) -> Vec<Option<&str>> {
        let id = |slot| view.owner_of(slot).map(|node| node.id.as_str());
        (0..SLOTS).map(id).collect()
    }

    /// The text of an error says what is wrong.
    #[test]
    fn a_malformed_answer_is_refused_with_its_reason() {
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
            (line(" 5-3"), "the slots from 5 to 3 are no range of slots"),
            (line(" 5-7 7"), "slot 7 stands in two ranges"),
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
            (slots("*1\r\n"), "the answer is not one whole reply"),
            (slots("*0\r\n+OK\r\n"), "the answer is not one whole reply"),
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
        let long = vec![b' '; ANSWER_BYTES_MAX + 1];
        assert_eq!(View::from_slots(&long, ASKED), Err(ViewError::TooLong));
    }

    /// More nodes than the bound are refused, and as many as the bound are not.
    #[test]
    fn a_view_has_a_bounded_number_of_nodes() {
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
        let nodes = vec![Node::primary("", endpoint("h", 1)); NODES_MAX + 1];
        assert_eq!(View::new(nodes, []), Err(ViewError::TooManyNodes));
    }

    /// An endpoint that is not said is where one asked; a name that nobody gave is the address, if that is said.
    #[test]
    fn an_unknown_endpoint_is_where_one_asked() {
        let host = |endpoint: &str, more: &str| {
            let node = format!("*4\r\n{endpoint}\r\n:7000\r\n+id\r\n{more}\r\n");
            let answer = format!("*1\r\n*3\r\n:0\r\n:1\r\n{node}");
            let view = View::from_slots(answer.as_bytes(), ASKED).expect(&answer);
            view.nodes()[0].endpoint.clone().expect("a place").host
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

    /// Without ids a node is its place; whoever owns slots is no replica.
    #[test]
    fn nodes_without_ids_are_known_by_their_place() {
        let range = |slot: u16, places: &[(&str, u16)]| {
            let node = |(host, port): &(&str, u16)| format!("*2\r\n+{host}\r\n:{port}\r\n");
            let nodes: String = places.iter().map(node).collect();
            format!("*{}\r\n:{slot}\r\n:{slot}\r\n{nodes}", places.len() + 2)
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
        let roles: Vec<Role> = view.nodes().iter().map(|node| node.role).collect();
        let replica = |of| Role::Replica { of: Some(of) };
        assert_eq!(
            roles,
            [Role::Primary, Role::Primary, replica(0), replica(1)]
        );
        assert_eq!(diff(&view, &view), []);
    }

    /// Every part of a line of CLUSTER NODES, as all versions write it.
    #[test]
    fn a_line_of_nodes_is_read_whole() {
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
        let replica = |of| Role::Replica { of };
        let expected = [
            (Some(ASKED), Role::Primary, Health::Online, 5),
            (Some("2001:db8::1"), replica(Some(0)), Health::Online, 5),
            (Some("::1"), Role::Primary, Health::Suspected, 6),
            (Some("10.0.0.4"), replica(None), Health::Failed, 0),
            (None, Role::Primary, Health::Online, 0),
            (None, Role::Primary, Health::Online, 0),
            (Some("10.0.0.6"), Role::Unknown, Health::Joining, 0),
            (Some("10.0.0.7"), Role::Primary, Health::Suspected, 0),
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

    /// A shard of several primaries belongs to the healthiest, then to the one that has come further.
    #[test]
    fn a_shard_belongs_to_its_best_primary() {
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

    /// One case for each part of the rule, in its order.
    #[test]
    fn who_is_believed() {
        let ours = || view(&["a", "b"], &[(0..=99, 0), (100..=199, 1)]);
        let same = || view(&["b", "a"], &[(0..=99, 1), (100..=199, 0)]);
        let theirs = || view(&["a", "b"], &[(0..=199, 0)]);
        let choose = |answers: &[(View, Info)]| choose(&BTreeSet::new(), answers).view;
        let believed = |answers: &[(View, Info)]| {
            let view = choose(answers)?;
            Some(owner_ids(&view)[150]? == "b")
        };
        assert_eq!(choose(&[]), None);
        let (ok, down) = (info(7, true), info(7, false));
        assert_eq!(
            believed(&[(theirs(), ok), (ours(), ok), (same(), ok)]),
            Some(true)
        );
        assert_eq!(
            believed(&[(theirs(), info(8, false)), (ours(), ok), (same(), ok)]),
            Some(false)
        );
        assert_eq!(believed(&[(theirs(), down), (ours(), ok)]), Some(true));
        assert_eq!(believed(&[(theirs(), ok), (ours(), down)]), Some(false));
        let more = || view(&["a", "b"], &[(0..=99, 0), (100..=200, 1)]);
        assert_eq!(believed(&[(theirs(), ok), (more(), ok)]), Some(true));
        assert_eq!(believed(&[(theirs(), ok), (more(), down)]), Some(false));

        // Where nothing else decides, the order of the answers does not either.
        let [one, other] = [0, 1].map(|owner| (view(&["a", "b"], &[(0..=99, owner)]), ok));
        let either = choose(&[one.clone(), other.clone()]).expect("two answers");
        assert_eq!(Some(either), choose(&[other, one]));

        // Who shares the view may know more or fewer nodes without slots.
        let wider = || view(&["a", "b", "spare"], &[(0..=99, 0), (100..=199, 1)]);
        let nodes = |answers: &[(View, Info)]| choose(answers).map(|view| view.nodes.len());
        assert_eq!(nodes(&[(ours(), ok), (wider(), ok), (ours(), ok)]), Some(3));
        assert_eq!(nodes(&[(ours(), ok), (wider(), down)]), Some(2));

        // What is said of a failed owner counts no more than if nothing were said.
        let mut failed = theirs();
        failed.nodes[0].health = Health::Failed;
        let nobody = view(&["b"], &[]);
        let answers = [(failed, ok), (ours(), ok), (nobody, ok)];
        assert_eq!(choose(&answers).map(|view| view.slots_owned()), Some(0));
    }

    /// An owner is known by its id, or by its endpoint if that is all there is.
    #[test]
    fn an_owner_at_another_address_is_the_same() {
        let old = view(&["a", "b"], &[(0..=9, 0), (10..=19, 1)]);
        let mut new = view(&["b", "a"], &[(0..=9, 1), (10..=19, 0), (20..=20, 0)]);
        new.nodes[0].endpoint = Some(endpoint("elsewhere", 5));
        let change = |slots, from, to| Change { slots, from, to };
        assert_eq!(diff(&old, &new), [change(20..=20, None, Some(0))]);
        assert_eq!(diff(&new, &old), [change(20..=20, Some(0), None)]);

        // Another node at the same address is another node,
        new.nodes[1].id = "c".to_owned();
        assert_eq!(diff(&old, &new)[0], change(0..=9, Some(0), Some(1)));
        // unless nothing else is known of it.
        new.nodes[1].id.clear();
        assert_eq!(diff(&old, &new), [change(20..=20, None, Some(0))]);
        assert_eq!(diff(&new, &old), [change(20..=20, Some(0), None)]);
    }

    /// The answers of several Clusters are not compared by their epochs; and it is said which of them do not count.
    #[test]
    fn another_cluster_does_not_count() {
        let ours = |owner| (view(&["a", "b"], &[(0..=99, owner)]), info(7, true));
        let theirs = |epoch| {
            let view = view(&["x", "y"], &[(0..=16_383, 0)]);
            (view, info(epoch, true))
        };
        let empty = |epoch| (view(&[], &[]), info(epoch, false));
        let chosen = |known: &[&str], answers: &[(View, Info)]| {
            let known = known.iter().map(|id| String::from(*id)).collect();
            let choice = choose(&known, answers);
            let first = choice
                .view
                .and_then(|view| Some(owner_ids(&view)[0]?.to_owned()));
            (first.unwrap_or_default(), choice.epoch, choice.strangers)
        };
        let is =
            |first: &str, epoch, strangers: &[usize]| (first.to_owned(), epoch, strangers.to_vec());
        // Most answers count; of as many, who is known.
        let answers = [theirs(9), ours(0), ours(1)];
        assert_eq!(chosen(&[], &answers), is("a", 7, &[0]));
        assert_eq!(chosen(&["b", "gone"], &answers), is("a", 7, &[0]));
        assert_eq!(chosen(&["y"], &answers), is("a", 7, &[0]));
        let answers = [theirs(9), ours(1)];
        assert_eq!(chosen(&["a"], &answers), is("b", 7, &[0]));
        assert_eq!(chosen(&["y"], &answers), is("x", 9, &[1]));
        // A node that has gone over has taken its id along.
        assert_eq!(chosen(&["a", "b", "x"], &answers), is("b", 7, &[0]));
        // Of as many, those with the higher epoch.
        assert_eq!(chosen(&[], &[ours(0), theirs(6)]), is("a", 7, &[1]));
        assert_eq!(chosen(&["gone"], &[theirs(8), ours(0)]), is("x", 8, &[1]));

        // Who follows whom shows that two are of one Cluster, though neither speaks of the other.
        let one = || (view(&["a", "b"], &[(0..=99, 0)]), info(7, true));
        let other = || (view(&["d", "c"], &[(0..=99, 0)]), info(8, true));
        let both = || (view(&["c", "b"], &[(0..=99, 0)]), info(6, true));
        for answers in [
            [one(), other(), both()],
            [both(), one(), other()],
            [other(), one(), both()],
        ] {
            assert_eq!(chosen(&["a"], &answers), is("d", 8, &[]));
        }
        let apart = chosen(&["a"], &[one(), other(), theirs(9)]);
        assert_eq!(apart, is("a", 7, &[1, 2]));

        // Before they meet, nodes are Clusters of their own, and without slots they say nothing of themselves.
        assert_eq!(chosen(&["a"], &[empty(9), ours(0)]), is("a", 7, &[]));
        let most = [empty(9), ours(0), empty(9)];
        assert_eq!(chosen(&[], &most), is("a", 7, &[]));
        let choice = choose(&BTreeSet::new(), &[empty(9), empty(8)]);
        assert_eq!((choice.view, choice.epoch), (Some(empty(9).0), 9));
    }

    /// The epochs of two Clusters cannot be compared.
    #[test]
    fn it_is_said_whether_the_chosen_cluster_is_the_known_one() {
        let answers = [(view(&["a", "b"], &[(0..=99, 0)]), info(7, true))];
        let is_known = |known: &[&str]| {
            let known = known.iter().map(|id| String::from(*id)).collect();
            choose(&known, &answers).is_known
        };
        assert!(is_known(&["b", "gone"]) && is_known(&[]));
        assert!(!is_known(&["gone"]));
    }

    /// As servers answered before nodes had ids.
    #[test]
    fn answers_without_ids_are_of_one_cluster() {
        let without = |owner, epoch| {
            let mut view = view(&["a", "b"], &[(0..=99, owner)]);
            view.nodes.iter_mut().for_each(|node| node.id.clear());
            (view, info(epoch, true))
        };
        let answers = [without(0, 7), without(0, 7), without(1, 8)];
        for known in [BTreeSet::new(), BTreeSet::from(["x".to_owned()])] {
            let choice = choose(&known, &answers);
            assert_eq!(choice.view.as_ref(), Some(&answers[2].0));
            assert_eq!((choice.epoch, choice.strangers), (8, Vec::new()));
        }
    }

    /// Where the owner changes, and to which of the primaries.
    type Cuts = BTreeMap<u16, Option<prop::sample::Index>>;

    fn any_cuts() -> impl Strategy<Value = Cuts> {
        prop::collection::btree_map(0..SLOTS, any::<Option<prop::sample::Index>>(), 0..12)
    }

    /// Nodes with ids that say nothing of their order; the first is a primary.
    fn any_nodes() -> impl Strategy<Value = Vec<Node>> {
        let shapes = prop::collection::vec((any::<bool>(), 0..5_u8), 1..8);
        (shapes, any::<u64>()).prop_map(|(shapes, seed)| {
            let node = |(index, (is_replica, health)): (usize, (bool, u8))| {
                let number = (index as u64 + 1).wrapping_mul(seed | 1);
                let place = endpoint("::1", 7_000 + index as u16);
                let mut node = Node::primary(&format!("{number:040x}"), place);
                if is_replica && index > 0 {
                    node.role = Role::Replica { of: Some(0) };
                }
                if health == 0 {
                    node.health = Health::Failed;
                }
                node
            };
            shapes.into_iter().enumerate().map(node).collect()
        })
    }

    fn cut(nodes: &[Node], cuts: &Cuts) -> View {
        let primaries: Vec<u16> = (0..)
            .zip(nodes)
            .filter_map(|(index, node)| (node.role == Role::Primary).then_some(index))
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

    /// The same with the nodes in another order.
    fn rotated(view: &View, by: usize) -> View {
        let count = view.nodes.len();
        let mut nodes = view.nodes.clone();
        nodes.rotate_left(by % count);
        let now = |index: u16| ((usize::from(index) + count - by % count) % count) as u16;
        for node in &mut nodes {
            if let Role::Replica { of: Some(of) } = &mut node.role {
                *of = now(*of);
            }
        }
        let ranges = view.ranges().map(|(range, owner)| (range, now(owner)));
        View::new(nodes, ranges).expect("the same view")
    }

    /// What each node is, by its id, and the id of its primary.
    fn by_id(view: &View) -> BTreeMap<&str, (&Option<Endpoint>, Health, Option<&str>)> {
        let id = |index: u16| view.nodes[usize::from(index)].id.as_str();
        let nodes = view.nodes.iter().map(|node| {
            let primary = match node.role {
                Role::Replica { of } => of.map(id),
                _ => None,
            };
            (node.id.as_str(), (&node.endpoint, node.health, primary))
        });
        nodes.collect()
    }

    fn bulk(text: &str) -> String {
        format!("${}\r\n{text}\r\n", text.len())
    }

    /// What a node with this view answers to CLUSTER SLOTS.
    fn slots_answer(view: &View, resp3: bool) -> Vec<u8> {
        let node = |index: u16| {
            let Node { id, endpoint, .. } = &view.nodes[usize::from(index)];
            let at = endpoint.as_ref().expect("all have one");
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

    /// What a node with this view answers to CLUSTER SHARDS.
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
            let at = node.endpoint.as_ref().expect("all have one");
            let role = if node.role == Role::Primary {
                "master"
            } else {
                "replica"
            };
            let health = if node.health == Health::Failed {
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
            .filter(|&index| view.nodes[usize::from(index)].role == Role::Primary)
            .map(|primary| {
                let ranges = view.ranges().filter(|(_, owner)| *owner == primary);
                let slots: Vec<u16> = ranges
                    .flat_map(|(range, _)| [*range.start(), *range.end()])
                    .collect();
                let list: String = slots.iter().map(|slot| format!(":{slot}\r\n")).collect();
                // Where the primary stands in its shard does not matter.
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

    /// What a node with this view answers to CLUSTER NODES.
    fn nodes_answer(view: &View, resp3: bool) -> Vec<u8> {
        let mut text = String::new();
        for (index, node) in (0..).zip(&view.nodes) {
            let at = node.endpoint.as_ref().expect("all have one");
            let (role, primary) = match node.role {
                Role::Replica { of: Some(of) } => {
                    ("slave", view.nodes[usize::from(of)].id.as_str())
                }
                _ => ("master", "-"),
            };
            let failed = if node.health == Health::Failed {
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
        #[test]
        fn the_slots_that_go_in_come_out(view in any_view(), resp3: bool) {
            let slots = View::from_slots(&slots_answer(&view, resp3), ASKED).unwrap();
            prop_assert_eq!(owner_ids(&slots), owner_ids(&view));
            let shards = View::from_shards(&shards_answer(&view, resp3), ASKED).unwrap();
            let nodes = View::from_nodes(&nodes_answer(&view, resp3), ASKED).unwrap();
            for read in [shards, nodes] {
                prop_assert_eq!(owner_ids(&read), owner_ids(&view));
                prop_assert_eq!(by_id(&read), by_id(&view));
            }

            // The ranges are the table: in order, none beside another of the same owner.
            let ranges: Vec<_> = view.ranges().collect();
            for pair in ranges.windows(2) {
                let (end, start) = (*pair[0].0.end(), *pair[1].0.start());
                prop_assert!(end < start && (end + 1 < start || pair[0].1 != pair[1].1));
            }
            prop_assert_eq!(ranges.iter().map(|(range, _)| range.len()).sum::<usize>(), view.slots_owned());
            prop_assert_eq!(View::new(view.nodes.clone(), ranges), Ok(view));
        }

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

        #[test]
        fn what_is_usable_keeps_its_slots(view in any_view(), by: usize) {
            let usable = view.usable();
            prop_assert!(usable.nodes.iter().all(Node::is_usable));
            let ids = |slot| {
                let owner = view.owner_of(slot).filter(|node| node.is_usable());
                owner.map(|node| node.id.as_str())
            };
            prop_assert_eq!(owner_ids(&usable), (0..SLOTS).map(ids).collect::<Vec<_>>());
            for (id, (_, _, primary)) in by_id(&usable) {
                let before = by_id(&view)[id].2;
                prop_assert_eq!(primary, before.filter(|id| usable.find(id).is_some()));
            }
            let rotated = rotated(&view, by % 100);
            prop_assert_eq!(rotated.shares(), view.shares());
        }

        /// What is believed is what most of those with the highest epoch say, in whatever order they and their nodes stand.
        #[test]
        fn the_latest_and_most_are_believed(
            nodes in any_nodes(),
            cuts in prop::collection::vec(any_cuts(), 1..4),
            votes in prop::collection::vec((any::<prop::sample::Index>(), 0..3_u64, any::<bool>(), 0..9_usize), 1..9),
            by: usize,
        ) {
            let views: Vec<View> = cuts.iter().map(|cuts| cut(&nodes, cuts)).collect();
            let answers: Vec<(View, Info)> = votes
                .iter()
                .map(|(which, epoch, ok, by)| (rotated(which.get(&views), *by), info(*epoch, *ok)))
                .collect();
            let choose = |answers: &[(View, Info)]| choose(&BTreeSet::new(), answers).view;
            let chosen = choose(&answers).expect("there are answers");
            prop_assert!(chosen.nodes.iter().all(Node::is_usable));

            let epoch = answers.iter().map(|(_, info)| info.current_epoch).max();
            let latest = answers.iter().filter(|(_, info)| Some(info.current_epoch) == epoch);
            let latest: Vec<View> = latest.map(|(view, _)| view.usable()).collect();
            let owners: Vec<_> = latest.iter().map(owner_ids).collect();
            let party = |of: &Vec<Option<&str>>| owners.iter().filter(|other| *other == of).count();
            let most = owners.iter().map(party).max();
            prop_assert_eq!(Some(party(&owner_ids(&chosen))), most);

            let mut turned = answers.clone();
            turned.rotate_left(by % answers.len());
            turned.reverse();
            let again = choose(&turned).expect("there are answers");
            prop_assert_eq!(owner_ids(&again), owner_ids(&chosen));
        }

        /// Nor does it matter what fewer nodes of another Cluster say, how late their epochs are, and where they stand among ours; nor
        /// what as many say, once ours is known.
        #[test]
        fn what_is_believed_is_the_same_without_strangers(
            nodes in any_nodes(),
            cuts in prop::collection::vec((any_cuts(), 0..3_u64, any::<bool>()), 1..5),
            theirs in prop::collection::vec((any_cuts(), 0..9_u64, any::<prop::sample::Index>()), 0..5),
            is_known: bool,
        ) {
            let known = nodes.iter().map(|node| node.id.clone()).filter(|_| is_known);
            let known: BTreeSet<String> = known.collect();
            let of = |cuts: &Cuts, nodes: &[Node], epoch, ok| (cut(nodes, cuts), info(epoch, ok));
            let ours: Vec<_> = cuts.iter().map(|(cuts, epoch, ok)| of(cuts, &nodes, *epoch, *ok)).collect();
            let alone = choose(&known, &ours);
            prop_assert!(alone.strangers.is_empty() && alone.is_known);
            let mut others = nodes.clone();
            others.iter_mut().for_each(|node| node.id.insert(0, 'x'));
            let fewer = ours.len() - usize::from(!is_known);
            let mut all = ours.clone();
            for (cuts, epoch, at) in theirs.iter().take(fewer) {
                all.insert(at.index(all.len() + 1), of(cuts, &others, *epoch, true));
            }
            let choice = choose(&known, &all);
            prop_assert_eq!((&choice.view, choice.epoch), (&alone.view, alone.epoch));
            let is_theirs = |place: &usize| all[*place].0.ids().all(|id| id.starts_with('x'));
            let strangers: Vec<usize> = (0..all.len()).filter(is_theirs).collect();
            prop_assert_eq!(choice.strangers, strangers);
        }

        #[test]
        fn a_difference_makes_the_new_view_of_the_old(
            nodes in any_nodes(),
            cuts in [any_cuts(), any_cuts()],
            by in 0..9_usize,
        ) {
            let [old, new] = cuts.map(|cuts| cut(&nodes, &cuts));
            let new = rotated(&new, by);
            prop_assert_eq!(diff(&old, &rotated(&old, by)), []);
            let changes = diff(&old, &new);
            let old_id = |index: Option<u16>| Some(old.nodes[usize::from(index?)].id.as_str());
            let new_id = |index: Option<u16>| Some(new.nodes[usize::from(index?)].id.as_str());
            let mut owners = owner_ids(&old);
            for change in &changes {
                let (from, to) = (old_id(change.from), new_id(change.to));
                prop_assert_ne!(from, to);
                for slot in change.slots.clone() {
                    let owner = &mut owners[usize::from(slot)];
                    prop_assert_eq!(*owner, from);
                    *owner = to;
                }
            }
            prop_assert_eq!(owners, owner_ids(&new));
            for pair in changes.windows(2) {
                let (end, start) = (*pair[0].slots.end(), *pair[1].slots.start());
                let is_same = (pair[0].from, pair[0].to) == (pair[1].from, pair[1].to);
                prop_assert!(end < start && (end + 1 < start || !is_same));
            }
        }
    }
}
