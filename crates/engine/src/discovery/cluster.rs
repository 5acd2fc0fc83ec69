//! The belief about a Cluster: the topology that counts, and the answers of nodes that decide it.
//!
//! ```text
//!   MOVED ──────────────► that slot, at once ─────────────┐
//!     │                                                   ▼
//!     └─► a refresh:  up to 5 nodes are asked ─choose─► owners[slot] ◄── every request
//!            ▲                                            │
//!   a link was lost, an owner is down, 10 seconds         └─► slots moved: sessions with requests
//!                                                             at the old owner wait for replies
//! ```
//!
//! Until a node has answered, the seeds own all slots: they answer with MOVED. A request for all
//! nodes meets no MOVED, so it waits for a refresh if the last one is too old.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use respool_protocol::cluster::{Endpoint, Info, NodeRole, View};
use respool_protocol::slot::SLOTS;

use crate::base::handle::{LinkId, SessionId};
use crate::base::settings::{Address, Credentials, ServerSettings};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::server::Server;
use crate::discovery::Discovery;
use crate::discovery::introductions::Introductions;
use crate::discovery::refresh::TopologyRefresh;
use crate::discovery::servers::{ServersInUse, is_at};
use crate::routing::pool::{Pool, Pools, ServerId};
use crate::routing::slot_table::SlotTable;

/// Nodes with an older epoch than ours are believed if they report `cluster_state:ok`, and no node
/// with our epoch has answered for this long, milliseconds. Nodes on the smaller side of a
/// partition notice that sooner (`cluster-node-timeout`, 15 seconds by default), and do not report
/// `ok` then.
const BEHIND_MS: u64 = 60_000;
/// Links to a replaced node are closed when it was silent for this long and no node names it,
/// milliseconds. A running node lets its clients wait for its replica, and answers them once it
/// learns of the failover. Other nodes name it again once it has become a replica. A node that is
/// gone has been silent for longer than this before its replica is elected.
const REPLACED_MS: u64 = 500;

/// The belief about one Cluster beyond the owners of its slots, and the answers that decide it. The
/// owners are in the [`SlotTable`] of the pool.
#[derive(Debug)]
pub(crate) struct ClusterBelief {
    /// The owners of the slots as last reported. Slots that moved since are reported once, when a
    /// refresh ends.
    pub(super) reported: Box<[ServerId]>,
    /// The ids of nodes, as far as an answer has named them.
    pub(super) names: HashMap<ServerId, String>,
    /// The primary of each replica.
    pub(super) primaries: HashMap<ServerId, ServerId>,
    /// Nodes that were replaced by a replica and that no answer has named since, and when they were
    /// replaced.
    pub(super) replaced: Vec<(ServerId, Time)>,
    /// The nodes that the configuration names.
    pub(super) seeds: Vec<ServerId>,
    /// The settings of any node, without its address.
    pub(super) template: ServerSettings,
    /// The epoch of the topology that is believed; 0 before the first one.
    pub(super) epoch: u64,
    /// The ids of the nodes in that topology.
    pub(super) known: BTreeSet<String>,
    /// Nodes that described another Cluster in their last answer.
    pub(super) foreign_nodes: BTreeSet<ServerId>,
    /// Nodes that answered with an older epoch since a node last answered with ours.
    pub(super) behind: HashSet<ServerId>,
    /// When the first of them did.
    pub(super) behind_since: Option<Time>,
    /// Slots that a redirect moved since the refresh under way began: the redirect is newer.
    pub(super) healed: HashSet<u16>,
    /// When the refresh that found the unserved slots began.
    pub(super) unserved_at: Time,
    /// Addresses that redirects have named and no topology answer has.
    pub(super) introductions: Introductions,
    /// The node that last refused an unserved slot or named an unknown address. A node knows its
    /// own slots best, so the next refresh asks this node first.
    pub(super) denied_by: Option<ServerId>,
    /// The refresh that is under way or wanted next.
    pub(super) refresh: TopologyRefresh,
    /// When the last refresh that has ended began.
    pub(super) asked_at: Option<Time>,
    /// Sessions with requests for all owners that wait for a refresh.
    pub(super) awaiting_refresh: Vec<SessionId>,
    /// When the first of them began to wait.
    pub(super) awaiting_refresh_since: Option<Time>,
}

impl ClusterBelief {
    /// The belief about a Cluster that no node has described.
    fn new(slots: &SlotTable, servers: &[Server]) -> ClusterBelief {
        let seeds = slots.members.clone();
        ClusterBelief {
            reported: slots.owners().into(),
            names: HashMap::new(),
            primaries: HashMap::new(),
            replaced: Vec::new(),
            template: servers[usize::from(seeds[0].0)].settings.clone(),
            seeds,
            epoch: 0,
            known: BTreeSet::new(),
            foreign_nodes: BTreeSet::new(),
            behind: HashSet::new(),
            behind_since: None,
            healed: HashSet::new(),
            unserved_at: Time::default(),
            introductions: Introductions::default(),
            denied_by: None,
            refresh: TopologyRefresh::first(),
            asked_at: None,
            awaiting_refresh: Vec::new(),
            awaiting_refresh_since: None,
        }
    }

    /// The belief about a pool; `None` if it is no Cluster.
    pub(crate) fn of_pool(pool: &Pool, servers: &[Server]) -> Option<Box<ClusterBelief>> {
        let belief = |slots| Box::new(ClusterBelief::new(slots, servers));
        pool.cluster().map(belief)
    }

    /// The credentials for nodes that are found from now on.
    pub(crate) fn credentials_mut(&mut self) -> Option<&mut Credentials> {
        self.template.credentials.as_mut()
    }

    /// The role of a node in the topology that is believed.
    pub(crate) fn role_of(&self, slots: &SlotTable, server: ServerId) -> &'static str {
        match server {
            _ if !slots.is_known => "seed",
            _ if slots.servers().contains(&server) => "primary",
            _ if self.primaries.contains_key(&server) => "replica",
            _ if slots.members.contains(&server) => "primary",
            _ => "seed",
        }
    }

    /// Whether a topology with this epoch replaces the one that is believed. `epoch`: `None` if it
    /// describes another Cluster, whose epochs cannot be compared with ours. `answered_by`: the
    /// nodes that described it. `owners`: the nodes that own slots.
    ///
    /// Most owners know the epoch of an election before the election is valid. So a majority of the
    /// owners reports an older epoch only if the nodes were restored from older files. Then the
    /// older epoch is believed. A node that does not answer is not part of this majority.
    pub(super) fn is_news(
        &mut self,
        epoch: Option<u64>,
        (answered_by, owners): (&[ServerId], &[ServerId]),
        is_ok: bool,
        now: Time,
    ) -> bool {
        let since = *self.behind_since.get_or_insert(now);
        self.behind.extend(answered_by);
        let is_behind = |owner: &&ServerId| self.behind.contains(owner);
        let count = owners.iter().filter(is_behind).count();
        let is_news = epoch.is_none_or(|epoch| epoch >= self.epoch)
            || 2 * count > owners.len()
            || is_ok && now.since_ms(since) >= BEHIND_MS;
        if is_news {
            self.behind.clear();
            self.behind_since = None;
        }
        is_news
    }

    /// Lists the owners anew. `all`: the servers. Their addresses stand in for unknown ids.
    pub(super) fn list_owners(&self, slots: &mut SlotTable, all: &[Server]) {
        slots.list_owners(|server| match self.names.get(&server) {
            Some(name) => name.clone(),
            None => all[usize::from(server.0)].label.clone(),
        });
    }

    /// How many slots have moved since the last call, by old and new owner.
    fn take_unreported(&mut self, owners: &[ServerId]) -> BTreeMap<(ServerId, ServerId), u32> {
        let mut moves = BTreeMap::new();
        for (old, new) in self.reported.iter().zip(owners) {
            if old != new {
                *moves.entry((*old, *new)).or_default() += 1;
            }
        }
        self.reported.copy_from_slice(owners);
        moves
    }

    /// The slots without an owner, in order. A slot has no owner if no node names one, or if the
    /// named node denies that it is the owner. If the named node was not asked, the slot stays as
    /// it was.
    pub(super) fn unserved_by(
        &self,
        was_unserved: &[u16],
        answers: &[(&Address, (View, Info))],
    ) -> Vec<u16> {
        let owner_state = |slot: u16| {
            let owners = answers.iter().map(|(_, (view, _))| view.owner_of(slot));
            let mut named = owners.flatten().map(|node| node.endpoint.as_ref());
            let Some(owner) = named.next() else {
                return SlotOwner::Missing;
            };
            let is_owner = |at: &Address| owner.is_some_and(|owner| is_at(at, owner));
            let of_owner = answers.iter().find(|(at, _)| is_owner(at));
            match of_owner.map(|(_, (view, _))| view.owner(slot)) {
                _ if named.any(|other| other != owner) => SlotOwner::Named,
                // An owner without a known address cannot be asked.
                _ if owner.is_none() => SlotOwner::Missing,
                Some(None) => SlotOwner::Missing,
                Some(Some(_)) => SlotOwner::Named,
                None => SlotOwner::Unasked,
            }
        };
        let mut unserved = Vec::new();
        let mut named = SlotOwner::Named;
        for slot in 0..SLOTS {
            // Neighbouring slots mostly have the same answers.
            let is_as_before = |(_, (view, _)): &(&Address, (View, Info))| {
                let before = slot.checked_sub(1);
                before.is_some_and(|before| view.owner(before) == view.owner(slot))
            };
            if !answers.iter().all(is_as_before) {
                named = owner_state(slot);
            }
            let is_unserved = match named {
                SlotOwner::Missing => !self.healed.contains(&slot),
                SlotOwner::Unasked => was_unserved.binary_search(&slot).is_ok(),
                SlotOwner::Named => false,
            };
            if is_unserved {
                unserved.push(slot);
            }
        }
        unserved
    }
}

/// Which owner of a slot the nodes name.
#[derive(Clone, Copy)]
enum SlotOwner {
    Missing,
    Named,
    /// The named owner was not asked.
    Unasked,
}

/// A topology that is to be believed.
pub(super) struct NewTopology {
    pub(super) view: View,
    /// Whether an earlier one was known.
    pub(super) was_known: bool,
}

/// The changes of a topology that are followed once the default server is chosen.
pub(crate) struct TopologyChange {
    /// Servers that have left the topology.
    left: Vec<ServerId>,
    /// Servers that the topology names.
    kept: HashSet<ServerId>,
    /// Nodes that own slots.
    owners: HashSet<ServerId>,
    /// The addresses of the replicas, each with its primary.
    replicas: Vec<(Endpoint, ServerId)>,
}

impl Discovery {
    /// The belief about a pool that is a Cluster, and its slots.
    pub(super) fn cluster_of<'a>(
        &'a mut self,
        pools: &'a mut Pools,
        pool: usize,
    ) -> Option<(&'a mut ClusterBelief, &'a mut SlotTable)> {
        let slots = pools[pool].cluster_mut()?;
        Some((self.clusters[pool].as_deref_mut()?, slots))
    }
}

/// Changes of the topology.
impl Discovery {
    /// Replaces the topology of a Cluster: its tables, and the state of its nodes.
    pub(super) fn believe(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        topology: NewTopology,
        in_use: &ServersInUse,
    ) -> Option<TopologyChange> {
        let NewTopology { view, was_known } = topology;
        plane.wake_deferred();
        let now = plane.now;
        let ids: Vec<Option<ServerId>> = view
            .nodes()
            .iter()
            .map(|node| self.server_at(plane, pool, node.endpoint.as_ref()?, in_use))
            .collect();
        let id_of = |index: u16| ids.get(usize::from(index)).copied().flatten();
        self.warn_of_shared_address(plane, pool, &ids);
        let (belief, slots) = self.cluster_of(&mut plane.pools, pool)?;
        let mut moved: BTreeSet<(ServerId, ServerId)> = BTreeSet::new();
        for slot in 0..SLOTS {
            // A slot may have no owner now. Its last one may come back, and then redirects it.
            let Some(owner) = view.owner(slot).and_then(id_of) else {
                continue;
            };
            if slots.owner_of_slot(slot) == owner || belief.healed.contains(&slot) {
                continue;
            }
            moved.insert((slots.set_owner(slot, owner), owner));
        }
        let nodes = view.nodes().iter().zip(&ids);
        let named = nodes.filter(|(node, _)| !node.id.is_empty());
        let names = named.filter_map(|(node, id)| Some(((*id)?, node.id.clone())));
        belief.names = names.collect();
        let owned = slots.servers().to_vec();
        belief.list_owners(slots, &plane.servers);
        // A redirect may have moved the last slot of a node before this answer.
        slots.has_moved |= slots.servers() != owned;
        // A node that is named follows another one now, or owns slots again.
        belief.replaced.retain(|(id, _)| !ids.contains(&Some(*id)));
        for (from, to) in &moved {
            // A replica of the old owner took over, and the old owner does not follow it yet. A new
            // Cluster has named no replicas: there, a node that owned no slot counts as one.
            let follows = match belief.primaries.get(to) {
                Some(of) => of == from,
                None => !owned.contains(to),
            };
            let is_replaced = follows && !ids.contains(&Some(*from));
            if is_replaced && !belief.replaced.iter().any(|(id, _)| id == from) {
                belief.replaced.push((*from, now));
            }
        }
        let followers = view.nodes().iter().zip(&ids).filter_map(|(node, id)| {
            let NodeRole::Replica { of: Some(of) } = node.role else {
                return None;
            };
            Some((node.endpoint.clone()?, (*id)?, id_of(of)?))
        });
        let followers: Vec<_> = followers.collect();
        let pairs = followers.iter().map(|(_, id, of)| (*id, *of));
        belief.primaries = pairs.collect();
        let unreported = belief.take_unreported(slots.owners());
        let replicas = followers.into_iter().map(|(at, _, of)| (at, of)).collect();
        let owners: HashSet<ServerId> = slots.servers().iter().copied().collect();
        slots.members = ids.into_iter().flatten().collect();
        let kept: HashSet<ServerId> = slots.members.iter().chain(&owners).copied().collect();
        plane.pools.list_servers(pool);
        if was_known {
            for owner in owners.iter().filter(|owner| !owned.contains(owner)) {
                plane.note_new_owner(*owner);
            }
        }
        self.report_moves(plane, pool, was_known.then_some(unreported), owners.len());
        let is_left = |server: &ServerId| {
            let state = plane.server(*server);
            let is_others = usize::from(state.pool) != pool || state.replica_of.is_some();
            !is_others && !state.gone && !kept.contains(server)
        };
        let left = (0..plane.servers.len() as u16).map(ServerId);
        let left = left.filter(is_left).collect();
        // The first topology moves no slot: no session tracks keys before it.
        if was_known && !moved.is_empty() {
            let parent = plane.pools[pool].parent;
            plane.trackers.note_moved(parent);
        }
        // A session's later requests go to the new owner, and must not overtake.
        for server in BTreeSet::from_iter(moved.into_iter().map(|(from, _)| from)) {
            plane.leave_lost_slots(server);
        }
        Some(TopologyChange {
            left,
            kept,
            owners,
            replicas,
        })
    }

    /// Reports a topology: the slots that moved, by old and new owner, or how many nodes own the
    /// slots if it is the first one.
    fn report_moves(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        moves: Option<BTreeMap<(ServerId, ServerId), u32>>,
        owners: usize,
    ) {
        let Some(moves) = moves else {
            return self.report_topology(plane, pool, format!("{owners} nodes own its slots"));
        };
        for ((from, to), count) in moves {
            let (from, to) = (&plane.server(from).label, &plane.server(to).label);
            let text = format!("{count} slots moved from {from} to {to}");
            plane.report_event(pool, text);
        }
    }

    /// Leaves the servers that a new topology does not have, connects to the owners of slots, and
    /// sets their replicas.
    pub(super) fn follow_change(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        change: TopologyChange,
        in_use: &ServersInUse,
    ) {
        for server in change.left {
            self.retire(plane, server);
            plane.switch_attached_to_default(server);
        }
        for server in &change.kept {
            plane.servers[usize::from(server.0)].gone = false;
        }
        for server in &change.owners {
            self.reach(plane, *server);
        }
        self.know_replicas(plane, pool, change.replicas, |_| true, in_use);
    }

    /// A node has redirected this slot to another owner.
    pub(super) fn heal_slot(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        slot: u16,
        owner: ServerId,
    ) {
        let Some((belief, slots)) = self.cluster_of(&mut plane.pools, pool) else {
            return;
        };
        belief.healed.insert(slot);
        slots.unserved.retain(|other| *other != slot);
        let old = slots.set_owner(slot, owner);
        if old == owner {
            return;
        }
        // The next refresh finds whether the old owner has lost its last slot.
        if !slots.servers().contains(&owner) {
            belief.list_owners(slots, &plane.servers);
            plane.pools.list_servers(pool);
            plane.note_new_owner(owner);
        }
        if !self.lost_slots.contains(&old) {
            self.lost_slots.push(old);
        }
        self.request_refresh(plane, owner);
        plane.wake_deferred();
        let parent = plane.pools[pool].parent;
        plane.trackers.note_moved(parent);
    }

    /// Lets sessions of servers that lost slots wait for their replies. It runs once after each
    /// read: during a read no session sends requests.
    pub(crate) fn settle_lost_slots(&mut self, plane: &mut DataPlane) {
        for server in std::mem::take(&mut self.lost_slots) {
            plane.leave_lost_slots(server);
        }
    }

    /// Chooses the node for publishing and subscribing. Any node will do, because nodes pass
    /// messages on. The choice is kept as long as possible, because a move loses messages. All
    /// workers choose the same node, because each server counts its own subscribers only.
    ///
    /// `default_servers`: the choices of all workers. Returns the old and the new node if the
    /// choice has changed.
    pub(crate) fn choose_default_server(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        default_servers: &mut HashMap<u16, String>,
    ) -> Option<(ServerId, ServerId)> {
        let default_server = plane.pools.default_server_of(pool);
        let label = |server: ServerId| &plane.server(server).label;
        let owners = plane.pools[pool].servers();
        let serves = |server: ServerId| owners.contains(&server) && plane.is_there(server);
        let agreed = default_servers.get(&(pool as u16));
        let named = owners.iter().find(|owner| Some(label(**owner)) == agreed);
        let next = match named.copied() {
            // A worker that has just started may have no link to the agreed node yet.
            Some(agreed) if plane.may_be_there(agreed) => agreed,
            _ if serves(default_server) => default_server,
            _ => plane.first_up(pool),
        };
        // If this worker does not know the agreed node, another worker may know newer owners.
        let leaves_it = agreed.is_some() && named.is_none() && next == default_server;
        let is_known = plane.pools[pool].cluster();
        let is_known = is_known.is_some_and(|slots| slots.is_known);
        if is_known && !leaves_it && serves(next) && Some(label(next)) != agreed {
            default_servers.insert(pool as u16, label(next).clone());
        }
        let slots = plane.pools[pool].cluster_mut()?;
        let default_server = std::mem::replace(&mut slots.default_server, next);
        (default_server != next).then_some((default_server, next))
    }

    /// Finds links to nodes that were replaced by their replicas and are silent. A running node
    /// ends the blocking commands of its clients when it becomes a replica. A frozen node would
    /// keep these sessions waiting for ever, so their links are closed once no node has named it
    /// for [`REPLACED_MS`]. Returns the links to lose.
    pub(crate) fn replaced_links(&mut self, plane: &mut DataPlane, pool: usize) -> Vec<LinkId> {
        let now = plane.now;
        let mut links = Vec::new();
        let Some(belief) = self.clusters[pool].as_deref_mut() else {
            return links;
        };
        let replaced = belief.replaced.clone();
        let is_young = |since: Time| now.since_ms(since) < REPLACED_MS;
        belief.replaced.retain(|(_, since)| is_young(*since));
        for (server, since) in replaced {
            for id in plane.links.ids() {
                let link = plane.links.get(id);
                let Some(link) = link.filter(|link| link.kind.server == server) else {
                    continue;
                };
                let waits_in_vain = link.is_up() && link.waits && !is_young(since);
                if waits_in_vain || plane.is_silent(link, REPLACED_MS) {
                    links.push(id);
                }
            }
        }
        links
    }

    /// The node that took over from this one: the primary that it follows, if it owns no slot any
    /// more.
    pub(crate) fn new_primary_of(&self, plane: &DataPlane, server: ServerId) -> Option<ServerId> {
        let pool = usize::from(plane.server(server).pool);
        let belief = self.clusters[pool].as_ref()?;
        let follows = belief.primaries.get(&server).copied();
        follows.filter(|_| plane.owns_nothing(server))
    }

    /// Reports the state of a pool's topology, once until the text changes.
    pub(crate) fn report_topology(&mut self, plane: &mut DataPlane, pool: usize, text: String) {
        let last = plane.reported_topology.insert(pool, text.clone());
        if last.as_ref() != Some(&text) {
            plane.emit_topology(pool, text);
        }
    }

    /// Reports that the address map leads several nodes to one address.
    fn warn_of_shared_address(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        nodes: &[Option<ServerId>],
    ) {
        if plane.pools[pool].address_map.is_empty() {
            return;
        }
        let mut seen = HashSet::new();
        let mut nodes = nodes.iter().flatten();
        if let Some(shared) = nodes.find(|id| !seen.insert(**id)) {
            let label = &plane.server(*shared).label;
            let text = format!(
                "address-map leads several nodes to {label}: each needs an address of its own"
            );
            self.report_topology(plane, pool, text);
        }
    }

    /// The owner of a slot; `None` outside of a Cluster.
    pub(crate) fn owner_of_slot(
        &self,
        plane: &DataPlane,
        pool: usize,
        slot: u16,
    ) -> Option<ServerId> {
        let cluster = plane.pools[pool].cluster();
        cluster.map(|cluster| cluster.owner_of_slot(slot))
    }
}

#[cfg(test)]
mod tests {
    use respool_protocol::cluster::ClusterNode;

    use super::*;

    /// A node's word on its own slots counts more than the word of other nodes.
    #[test]
    fn slot_is_unserved_without_an_owner_that_names_itself() {
        let server = |port| {
            let host = "node".to_owned();
            let address = Address::Tcp { host, port };
            let credentials = None;
            Server::new(
                0,
                &ServerSettings {
                    address,
                    credentials,
                    db: 0,
                },
            )
        };
        let servers: Vec<Server> = (1..=3).map(server).collect();
        let slots = SlotTable::new((0..3).map(ServerId).collect(), 0..3);
        let mut belief = ClusterBelief::new(&slots, &servers);
        let at = |node: usize| &servers[node].settings.address;
        // The owners that a node names for the first four slots. The first node owns the other
        // slots.
        let answer = |owners: [Option<u16>; 4]| {
            let node = |port| {
                let host = "node".to_owned();
                ClusterNode::primary("", Endpoint { host, port })
            };
            let own = |(slot, owner): (u16, Option<u16>)| Some((slot..=slot, owner?));
            let ranges = (0..)
                .zip(owners)
                .filter_map(own)
                .chain([(4..=SLOTS - 1, 0)]);
            let view = View::new((1..=3).map(node).collect(), ranges).expect("a view");
            let info = Info {
                ok: true,
                current_epoch: 1,
                my_epoch: 1,
                slots_assigned: SLOTS,
            };
            (view, info)
        };
        // The third slot is that of a node that is not asked. For the fourth slot the nodes name
        // different owners.
        let first = || answer([None, None, Some(2), None]);
        let second = || answer([None, Some(0), Some(2), Some(2)]);
        let third = || answer([None, None, None, Some(1)]);
        let unserved = belief.unserved_by(&[], &[(at(0), first()), (at(1), second())]);
        assert_eq!(unserved, [0, 1]);
        let all = [(at(0), first()), (at(1), second()), (at(2), third())];
        let unserved = belief.unserved_by(&unserved, &all);
        assert_eq!(unserved, [0, 1, 2]);
        // The third node was not asked again.
        let unserved = belief.unserved_by(&unserved, &[(at(0), first()), (at(1), second())]);
        assert_eq!(unserved, [0, 1, 2]);
        // Meanwhile a redirect named the owner of the first slot.
        belief.healed.insert(0);
        let itself = answer([None, Some(0), Some(2), None]);
        let unserved = belief.unserved_by(&unserved, &[(at(2), itself)]);
        assert_eq!(unserved, [1, 3]);
    }
}
