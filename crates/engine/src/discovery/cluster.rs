//! What the nodes of a Cluster have said about it, and which of their answers is believed.
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

use respool_protocol::cluster::{Endpoint, Info, NodeRole, View, ViewError};
use respool_protocol::encode;
use respool_protocol::slot::SLOTS;

use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::SERVERS_MAX;
use crate::base::settings::{Address, Credentials, ServerSettings};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::awaited_nodes::NODES_MS;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::discovery::DiscoveryCompletion;
use crate::data_plane::ingress::Dispatched;
use crate::data_plane::link::{Link, LinkRole, LinkState};
use crate::data_plane::server::Server;
use crate::data_plane::session_state::Holds;
use crate::data_plane::standing::{SILENT_MS, Standing};
use crate::discovery::Discovery;
use crate::discovery::introductions::{self, Introductions};
use crate::discovery::view_election;
use crate::routing::pool::{Pools, ServerId};
use crate::routing::slot_table::SlotTable;

/// Nodes that one refresh asks.
const ASKED_MAX: usize = 5;
/// How long a refresh waits for answers, milliseconds.
const ANSWERS_MS: u64 = 100;
/// The shortest time between two refreshes, milliseconds.
const REFRESH_MS: u32 = 1_000;
/// The same while an owner of slots cannot be reached, because a replica may have taken over,
/// milliseconds.
const REFRESH_DOWN_MS: u32 = 100;
/// How long an owner that cannot be reached makes refreshes that frequent, milliseconds.
const FAILOVER_MS: u64 = 60_000;
/// The time between two refreshes if nothing happens, milliseconds.
const REFRESH_QUIET_MS: u32 = 10_000;
/// Nodes with an older epoch than ours are believed if they report `cluster_state:ok`, and no node
/// with our epoch has answered for this long, milliseconds. Nodes on the smaller side of a
/// partition notice that sooner (`cluster-node-timeout`, 15 seconds by default), and do not report
/// `ok` then.
const BEHIND_MS: u64 = 60_000;
/// Links to a replaced node are given up when it was silent for this long and no node names it,
/// milliseconds. A node that still runs keeps its clients waiting for its replica, and answers them
/// as soon as it learns of the failover. Other nodes name it again once it has become a replica. A
/// node that is gone was silent for longer before its replica was elected.
const REPLACED_MS: u64 = 500;
/// The greatest age of a topology answer by which a request goes to all owners, or a slot counts as
/// unserved, milliseconds. It is a refresh and the time to the next one, so a new answer can come
/// in that time.
const CONFIRMED_MS: u64 = REFRESH_MS as u64 + ANSWERS_MS;
/// What is believed about one Cluster beyond the owners of its slots, and the answers that decide
/// it. The owners are in the [`SlotTable`] of the pool.
#[derive(Debug)]
pub(crate) struct ClusterBelief {
    /// The owners of the slots as last reported. Slots that moved since are reported once, when a
    /// refresh ends.
    reported: Box<[ServerId]>,
    /// The ids of nodes, as far as an answer has named them.
    names: HashMap<ServerId, String>,
    /// The primary of each replica.
    primaries: HashMap<ServerId, ServerId>,
    /// Nodes that were replaced by a replica and that no answer has named since, and when they were
    /// replaced.
    replaced: Vec<(ServerId, Time)>,
    /// The nodes that the configuration names.
    seeds: Vec<ServerId>,
    /// The settings of any node, without its address.
    template: ServerSettings,
    /// The epoch of the topology that is believed; 0 before the first one.
    epoch: u64,
    /// The ids of the nodes in that topology.
    known: BTreeSet<String>,
    /// Nodes whose last answer described another Cluster.
    foreign_nodes: BTreeSet<ServerId>,
    /// Nodes that answered with an older epoch since a node last answered with ours.
    behind: HashSet<ServerId>,
    /// When the first of them did.
    behind_since: Option<Time>,
    /// Slots that a redirect moved since the refresh under way began: the redirect is newer.
    healed: HashSet<u16>,
    /// When the refresh that found the unserved slots began.
    unserved_at: Time,
    /// Addresses that redirects have named and no topology answer has.
    introductions: Introductions,
    /// The node that last refused an unserved slot or named an unknown address. A node knows its
    /// own slots best, so the next refresh asks this node first.
    denied_by: Option<ServerId>,
    refresh: TopologyRefresh,
    /// When the last refresh that has ended began.
    asked_at: Option<Time>,
    /// Sessions with requests for all owners that wait for a refresh.
    awaiting_refresh: Vec<SessionId>,
    /// When the first of them began to wait.
    awaiting_refresh_since: Option<Time>,
}

/// The refresh that is under way or wanted next.
#[derive(Debug, Default)]
struct TopologyRefresh {
    /// A refresh is wanted.
    wanted: bool,
    /// The next refresh does not begin sooner.
    not_before: Time,
    /// Since when an owner of slots has not been reachable.
    down_since: Option<Time>,
    /// The number of this refresh, which tells its answers from earlier ones.
    ticket: u32,
    /// When the refresh under way began.
    since: Option<Time>,
    /// The command that lists the owners.
    listing: OwnerListing,
    /// Whether a node has refused that command.
    is_refused: bool,
    /// How many nodes have not answered.
    missing: usize,
    /// The answers so far.
    answers: Vec<(View, Info)>,
    /// The node of each answer, in the same order.
    answered_by: Vec<ServerId>,
    /// The fault of the last invalid answer.
    wrong: Option<String>,
}

/// A node's error for a slot without an owner.
const NOT_SERVED: &[u8] = b"CLUSTERDOWN Hash slot not served";

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
            refresh: TopologyRefresh {
                wanted: true,
                ..TopologyRefresh::default()
            },
            asked_at: None,
            awaiting_refresh: Vec::new(),
            awaiting_refresh_since: None,
        }
    }

    /// The beliefs about all pools, by their indices; `None` for pools that are no Cluster.
    pub(crate) fn of_pools(pools: &Pools, servers: &[Server]) -> Vec<Option<Box<ClusterBelief>>> {
        let belief = |slots| Box::new(ClusterBelief::new(slots, servers));
        let pools = pools.iter();
        pools.map(|pool| pool.cluster().map(belief)).collect()
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

    /// Asks for a refresh at `by`, or sooner if one is due sooner.
    fn want(&mut self, slots: &mut SlotTable, by: Time) {
        self.refresh.wanted = true;
        self.refresh.not_before = self.refresh.not_before.min(by);
        slots.is_refreshing = true;
    }

    /// Whether a topology with this epoch replaces the one that is believed. `epoch`: `None` if it
    /// describes another Cluster, whose epochs cannot be compared with ours. `answered_by`: the
    /// nodes that gave it. `owners`: the nodes that own slots.
    ///
    /// Most owners know the epoch of an election before it counts, so most never report an older
    /// one. If all of them were restored from older files, most report an older epoch sooner or
    /// later. A node that does not answer counts for neither.
    fn is_news(
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

    /// Lists the owners anew. `all`: the servers, whose addresses stand in for unknown ids.
    fn list_owners(&self, slots: &mut SlotTable, all: &[Server]) {
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

    /// The slots without an owner, in order: no node names one, or the node that others name denies
    /// it. Each node's word on its own slots counts. If the named node was not asked, the slot
    /// stays as it was.
    fn unserved_by(&self, was_unserved: &[u16], answers: &[(&Address, (View, Info))]) -> Vec<u16> {
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

const NO_OWNERS: &str = "no node has named the owners of slots";

/// The command by which nodes list the owners of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OwnerListing {
    #[default]
    Slots,
    /// If CLUSTER SLOTS is refused: it is deprecated, and a user may have the right to one command
    /// only.
    Shards,
}

impl OwnerListing {
    /// The command, and CLUSTER INFO for the epoch and state of the node.
    fn ask(self) -> [&'static [&'static str]; 2] {
        let which: &[&str] = match self {
            OwnerListing::Slots => &["CLUSTER", "SLOTS"],
            OwnerListing::Shards => &["CLUSTER", "SHARDS"],
        };
        [which, &["CLUSTER", "INFO"]]
    }

    fn read(self, answer: &[u8], asked: &str) -> Result<View, ViewError> {
        match self {
            OwnerListing::Slots => View::from_slots(answer, asked),
            OwnerListing::Shards => View::from_shards(answer, asked),
        }
    }

    fn other(self) -> OwnerListing {
        match self {
            OwnerListing::Slots => OwnerListing::Shards,
            OwnerListing::Shards => OwnerListing::Slots,
        }
    }
}

/// The answers of a refresh that has ended.
pub(crate) struct EndedRefresh {
    /// When it began.
    asked_at: Time,
    answered_by: Vec<ServerId>,
    /// Nodes that answered for another Cluster.
    foreign_nodes: Vec<ServerId>,
    /// The topology that replaces the one that is believed, if there is one.
    pub(crate) news: Option<NewTopology>,
}

/// A topology that is to be believed.
pub(crate) struct NewTopology {
    view: View,
    /// Whether an earlier one was known.
    was_known: bool,
}

/// The changes of a topology, as far as they concern other components.
pub(crate) struct TopologyChange {
    /// Servers that have lost slots.
    pub(crate) lost_slots: BTreeSet<ServerId>,
    /// Slots moved, and not only because the first topology became known.
    pub(crate) has_moved: bool,
    /// Servers that have left the topology.
    pub(crate) left: Vec<ServerId>,
    /// Servers that the topology names.
    kept: HashSet<ServerId>,
    /// Nodes that own slots.
    owners: HashSet<ServerId>,
    /// The addresses of the replicas, each with its primary.
    pub(crate) replicas: Vec<(Endpoint, ServerId)>,
}

/// The servers to which other components still refer. Their entries are not used for others.
#[derive(Default)]
pub(crate) struct ServersInUse {
    /// Deferred requests may refer to any server.
    pub(crate) all: bool,
    pub(crate) some: HashSet<ServerId>,
}

impl Discovery {
    /// What is believed about a pool that is a Cluster, and its slots.
    fn cluster_of<'a>(
        &'a mut self,
        pools: &'a mut Pools,
        pool: usize,
    ) -> Option<(&'a mut ClusterBelief, &'a mut SlotTable)> {
        let slots = pools[pool].cluster_mut()?;
        Some((self.clusters[pool].as_deref_mut()?, slots))
    }
}

/// Refreshes.
impl Discovery {
    /// A node is lost, and a replica may take over at any time: asks for a refresh soon.
    pub(crate) fn request_refresh_after_loss(&mut self, plane: &mut DataPlane, server: ServerId) {
        let soon = plane.now.plus_ms(REFRESH_DOWN_MS);
        let pool = usize::from(plane.server(server).pool);
        let other = plane.first_up(pool);
        if let Some((belief, slots)) = self.cluster_of(&mut plane.pools, pool) {
            belief.want(slots, soon);
            if !slots.is_known {
                // Any seed can name the owners.
                slots.set_every_owner(other);
            }
        }
    }

    /// A node has answered a refresh. Returns the pool if that was the last answer.
    pub(crate) fn take_owners(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        ticket: u32,
        listed: &[u8],
        info: &[u8],
    ) -> Option<usize> {
        let server = plane.links.get(link)?.kind.server;
        let pool = usize::from(plane.server(server).pool);
        let host = self.host_of(plane, server);
        let address_map = plane.pools[pool].address_map.clone();
        let refresh = &mut self.clusters[pool].as_deref_mut()?.refresh;
        if refresh.since.is_none() || refresh.ticket != ticket {
            return None;
        }
        let view = refresh.listing.read(listed, &host).map(|mut view| {
            view.map_endpoints(|said| address_map.apply(said));
            view
        });
        let answer = view.and_then(|view| Ok((view, Info::read(info)?)));
        refresh.is_refused |= introductions::is_refusal(listed);
        refresh.missing -= 1;
        match answer {
            Ok(answer) => {
                refresh.answers.push(answer);
                refresh.answered_by.push(server);
            }
            Err(error) => refresh.wrong = Some(error.to_string()),
        }
        (refresh.missing == 0).then_some(pool)
    }

    /// Asks for a refresh of a Cluster if one is due. Returns whether the refresh under way takes
    /// too long. `hears_events`: sessions of the pool get notifications of its servers.
    pub(crate) fn tick_refresh(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        hears_events: bool,
    ) -> bool {
        let now = plane.now;
        let Some((belief, slots)) = self.cluster_of(&mut plane.pools, pool) else {
            return false;
        };
        let (refresh, first) = (&belief.refresh, slots.servers()[0]);
        match refresh.since {
            Some(since) => now.since_ms(since) >= ANSWERS_MS,
            None => {
                let not_before = refresh.not_before;
                let quiet_ms = self.quiet_ms(plane, pool, hears_events);
                if now.since_ms(not_before) >= u64::from(quiet_ms) {
                    self.request_refresh(plane, first);
                }
                false
            }
        }
    }

    /// Wakes the sessions of a Cluster that have waited long enough for its topology.
    pub(crate) fn tick_waiting_sessions(&mut self, plane: &mut DataPlane, pool: usize) {
        let now = plane.now;
        self.wake_at_rest(plane, pool);
        plane.wake_awaiting_nodes(pool);
        let since = self.clusters[pool]
            .as_ref()
            .and_then(|belief| belief.awaiting_refresh_since);
        if since.is_some_and(|since| now.since_ms(since) >= NODES_MS) {
            self.wake_awaiting_refresh(plane, pool, now);
        }
    }

    /// The time between two refreshes if nothing happens, milliseconds.
    fn quiet_ms(&self, plane: &DataPlane, pool: usize, hears_events: bool) -> u32 {
        if hears_events {
            // A new owner sends notifications, and no session gets them until the owner is known.
            return REFRESH_MS;
        }
        let state = &plane.pools[pool];
        let lacks = |owner: &ServerId| self.lacks_replica(pool, *owner);
        match state.readers.is_some() && state.servers().iter().any(lacks) {
            // In a Cluster that was just made, replicas become known later than primaries.
            true => REFRESH_MS,
            false => REFRESH_QUIET_MS,
        }
    }

    /// Ends a refresh: chooses a topology from the answers. [`Discovery::conclude_refresh`] has to
    /// follow.
    pub(crate) fn end_refresh(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
    ) -> Option<EndedRefresh> {
        let now = plane.now;
        let (belief, slots) = self.cluster_of(&mut plane.pools, pool)?;
        let refresh = &mut belief.refresh;
        let asked_at = refresh.since.take().unwrap_or(now);
        slots.is_refreshing = refresh.wanted;
        let answers = std::mem::take(&mut refresh.answers);
        let answered_by = std::mem::take(&mut refresh.answered_by);
        let wrong = refresh.wrong.take();
        // The command is kept as long as one node answers it.
        if answers.is_empty() && std::mem::take(&mut refresh.is_refused) {
            refresh.listing = refresh.listing.other();
        }
        let choice = view_election::choose(&belief.known, &answers);
        let foreign_nodes: Vec<ServerId> =
            choice.strangers.iter().map(|at| answered_by[*at]).collect();
        let ours = answered_by.iter().copied().zip(answers);
        let ours = ours.filter(|(id, _)| !foreign_nodes.contains(id));
        let (members, answers): (Vec<ServerId>, Vec<_>) = ours.unzip();
        let is_ok = answers.iter().any(|(_, info)| info.ok);
        // A Cluster that was never changed has epoch 0.
        let epoch = choice.is_known.then_some(choice.epoch.max(1));
        let owners = slots.servers();
        let is_news = |_: &View| belief.is_news(epoch, (&members, owners), is_ok, now);
        let mut news = None;
        if let Some(view) = choice.view.filter(is_news) {
            let was_known = slots.is_known;
            belief.epoch = choice.epoch.max(1);
            slots.is_known = true;
            belief.known = view.ids().map(str::to_owned).collect();
            plane.awaited_nodes.entry(pool).or_default().wrong = None;
            let address = |id: &ServerId| &plane.servers[usize::from(id.0)].settings.address;
            let ours = members.iter().zip(answers);
            let ours: Vec<_> = ours.map(|(id, answer)| (address(id), answer)).collect();
            slots.unserved = belief.unserved_by(&slots.unserved, &ours);
            belief.unserved_at = asked_at;
            slots.is_ok = is_ok;
            news = Some(NewTopology { view, was_known });
        } else if let Some(wrong) = wrong {
            plane.awaited_nodes.entry(pool).or_default().wrong = Some(wrong.clone());
            // Nodes may be wrong in several ways by turns: that is one event.
            let last = plane.reported_topology.get(&pool);
            if !last.is_some_and(|text| text.starts_with(NO_OWNERS)) {
                self.tell_topology(plane, pool, format!("{NO_OWNERS}: {wrong}"));
            }
        }
        Some(EndedRefresh {
            asked_at,
            answered_by,
            foreign_nodes,
            news,
        })
    }

    /// Sets the time of the next refresh, and wakes the sessions that waited for this one.
    pub(crate) fn conclude_refresh(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        ended: EndedRefresh,
    ) {
        let now = plane.now;
        self.note_foreign_nodes(plane, pool, &ended.answered_by, ended.foreign_nodes);
        let mut owners = plane.pools[pool].servers().iter();
        let all_up = owners.all(|server| plane.standing(*server) >= Standing::Refuses);
        if let Some((belief, slots)) = self.cluster_of(&mut plane.pools, pool) {
            // Before the first topology, the owners are not known.
            let all_up = all_up && slots.is_known;
            let refresh = &mut belief.refresh;
            refresh.wanted |= !all_up || belief.behind_since.is_some();
            slots.is_refreshing |= refresh.wanted;
            refresh.down_since = (!all_up).then(|| refresh.down_since.unwrap_or(now));
            let pause = match refresh.down_since {
                Some(since) if now.since_ms(since) < FAILOVER_MS => REFRESH_DOWN_MS,
                _ => REFRESH_MS,
            };
            refresh.not_before = now.plus_ms(pause);
        }
        self.wake_at_rest(plane, pool);
        plane.wake_awaiting_nodes(pool);
        self.wake_awaiting_refresh(plane, pool, ended.asked_at);
    }
}

/// Changes of the topology.
impl Discovery {
    /// Replaces the topology of a Cluster: its tables, and the state of its nodes.
    pub(crate) fn believe(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        news: NewTopology,
        in_use: &ServersInUse,
    ) -> Option<TopologyChange> {
        let NewTopology { view, was_known } = news;
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
            // A node whose slot has no owner now may come back, and then redirects the slot itself.
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
        self.tell_moves(plane, pool, was_known.then_some(unreported), owners.len());
        let is_left = |server: &ServerId| {
            let state = plane.server(*server);
            let is_others = usize::from(state.pool) != pool || state.replica_of.is_some();
            !is_others && !state.gone && !kept.contains(server)
        };
        let left = (0..plane.servers.len() as u16).map(ServerId);
        let left = left.filter(is_left).collect();
        Some(TopologyChange {
            has_moved: was_known && !moved.is_empty(),
            lost_slots: moved.into_iter().map(|(from, _)| from).collect(),
            left,
            kept,
            owners,
            replicas,
        })
    }

    /// Reports a topology: the slots that moved, by old and new owner, or how many nodes own the
    /// slots if it is the first one.
    fn tell_moves(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        moves: Option<BTreeMap<(ServerId, ServerId), u32>>,
        owners: usize,
    ) {
        let Some(moves) = moves else {
            return self.tell_topology(plane, pool, format!("{owners} nodes own its slots"));
        };
        for ((from, to), count) in moves {
            let (from, to) = (&plane.server(from).label, &plane.server(to).label);
            let text = format!("{count} slots moved from {from} to {to}");
            plane.tell_event(pool, text);
        }
    }

    /// A server has left the topology. Its sessions have to leave its links.
    pub(crate) fn retire(&mut self, plane: &mut DataPlane, server: ServerId) {
        let state = &mut plane.servers[usize::from(server.0)];
        state.gone = true;
        let (pool, label) = (usize::from(state.pool), state.label.clone());
        self.tell_topology(plane, pool, format!("no node speaks of {label} any more"));
    }

    /// Connects to the owners of slots of a new topology.
    pub(crate) fn reach_owners(&mut self, plane: &mut DataPlane, change: &TopologyChange) {
        for server in &change.kept {
            plane.servers[usize::from(server.0)].gone = false;
        }
        for server in &change.owners {
            self.reach(plane, *server);
        }
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
        }
        if !self.lost_slots.contains(&old) {
            self.lost_slots.push(old);
        }
        self.request_refresh(plane, owner);
        plane.wake_deferred();
        let whole = plane.pools[pool].whole;
        plane.trackers.note_moved(whole);
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
    /// `homes`: the choices of all workers. Returns the old and the new node if the choice has
    /// changed.
    pub(crate) fn choose_home(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        homes: &mut HashMap<u16, String>,
    ) -> Option<(ServerId, ServerId)> {
        let home = plane.pools.home_of(pool);
        let label = |server: ServerId| &plane.server(server).label;
        let owners = plane.pools[pool].servers();
        let serves = |server: ServerId| owners.contains(&server) && plane.is_there(server);
        let agreed = homes.get(&(pool as u16));
        let named = owners.iter().find(|owner| Some(label(**owner)) == agreed);
        let next = match named.copied() {
            // A worker that has just started may have no link to the agreed node yet.
            Some(agreed) if plane.may_be_there(agreed) => agreed,
            _ if serves(home) => home,
            _ => plane.first_up(pool),
        };
        // If this worker does not know the agreed node, another worker may know newer owners.
        let leaves_it = agreed.is_some() && named.is_none() && next == home;
        let is_known = plane.pools[pool].cluster();
        let is_known = is_known.is_some_and(|slots| slots.is_known);
        if is_known && !leaves_it && serves(next) && Some(label(next)) != agreed {
            homes.insert(pool as u16, label(next).clone());
        }
        let slots = plane.pools[pool].cluster_mut()?;
        let home = std::mem::replace(&mut slots.home, next);
        (home != next).then_some((home, next))
    }

    /// Finds links to nodes that were replaced by their replicas and are silent. A node that is
    /// alive tells sessions that wait there in a blocking command; a frozen one would keep them
    /// waiting for ever, so they are closed once no node has named it for [`REPLACED_MS`]. Returns
    /// the links to lose.
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

    /// The server at an address that a redirect has named. `None`: no topology answer has named the
    /// address. Then respool asks the node `by` that sent the redirect, and sends nothing to that
    /// address meanwhile. Nodes know the address as it was `said`; the address map says where the
    /// server is reached.
    pub(crate) fn known_server_at(
        &mut self,
        plane: &mut DataPlane,
        by: ServerId,
        said: Endpoint,
        ask: bool,
        in_use: &ServersInUse,
    ) -> Option<ServerId> {
        let pool = usize::from(plane.server(by).pool);
        let now = plane.now;
        let at = plane.pools[pool].address_map.apply(&said);
        let seeds = self.clusters[pool].as_ref()?.seeds.as_slice();
        // The configuration names the seeds, whether the nodes name them or not.
        let is_known = |(index, server): &(ServerId, &Server)| {
            usize::from(server.pool) == pool
                && server.replica_of.is_none()
                && (!server.gone || seeds.contains(index))
                && is_at(&server.settings.address, &at)
        };
        let mut servers = (0..).map(ServerId).zip(&plane.servers);
        if let Some((known, _)) = servers.find(is_known) {
            plane.servers[usize::from(known.0)].gone = false;
            return Some(known);
        }
        let (belief, slots) = self.cluster_of(&mut plane.pools, pool)?;
        // The nodes refuse to list all nodes, so the redirect alone decides. The redirect of a
        // request that runs code was proven before.
        let is_sole_word = belief.introductions.is_refused(now) && (ask || !slots.is_known);
        if is_sole_word || belief.introductions.is_named(&said, now) {
            return self.server_at(plane, pool, &at, in_use);
        }
        belief.denied_by = Some(by);
        if belief.introductions.seek(said, now) {
            self.ask_for_nodes(plane, by);
        }
        None
    }

    /// A node has listed the nodes of its Cluster.
    pub(crate) fn take_nodes(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        shards: &[u8],
        nodes: &[u8],
    ) {
        let Some(server) = plane.links.get(link).map(|link| link.kind.server) else {
            return;
        };
        let (now, host) = (plane.now, self.host_of(plane, server));
        let pool = usize::from(plane.server(server).pool);
        if let Some(belief) = &mut self.clusters[pool] {
            belief.introductions.take(shards, nodes, &host, now);
        }
        plane.wake_deferred();
    }

    /// The server of a pool at this address; a new server if there is none. `None` at
    /// [`SERVERS_MAX`]. Pass only addresses that a node has given: respool sends a new server the
    /// credentials of the pool.
    fn server_at(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        at: &Endpoint,
        in_use: &ServersInUse,
    ) -> Option<ServerId> {
        let address = Address::Tcp {
            host: at.host.clone(),
            port: at.port,
        };
        let is_it = |server: &Server| {
            usize::from(server.pool) == pool
                && server.replica_of.is_none()
                && server.settings.address == address
        };
        if let Some(index) = plane.servers.iter().position(is_it) {
            // The entry is in use again, so no other server gets it.
            plane.servers[index].gone = false;
            return Some(ServerId(index as u16));
        }
        let settings = ServerSettings {
            address,
            ..self.clusters[pool].as_ref()?.template.clone()
        };
        let server = Server::new(pool as u16, &settings);
        self.add_server(plane, server, in_use)
    }

    /// Adds a server. `None` at [`SERVERS_MAX`]. If it gets the entry of another server, the entry
    /// is listed in [`Discovery::reused`].
    pub(crate) fn add_server(
        &mut self,
        plane: &mut DataPlane,
        server: Server,
        in_use: &ServersInUse,
    ) -> Option<ServerId> {
        if let Some(index) = self.free_server(plane, in_use) {
            plane.servers[usize::from(index.0)] = server;
            self.reused.push(index);
            self.renewals.remove(&index);
            for belief in self.clusters.iter_mut().flatten() {
                belief.foreign_nodes.remove(&index);
                belief.behind.remove(&index);
            }
            return Some(index);
        }
        if plane.servers.len() >= SERVERS_MAX {
            return None;
        }
        plane.servers.push(server);
        Some(ServerId((plane.servers.len() - 1) as u16))
    }

    /// Whether entries of servers are reused: there are many.
    pub(crate) fn reuses_servers(&self, plane: &DataPlane) -> bool {
        const MANY: usize = 256;
        plane.servers.len() >= MANY
    }

    /// The entry of a server that is gone and that nothing refers to.
    fn free_server(&self, plane: &DataPlane, in_use: &ServersInUse) -> Option<ServerId> {
        if !self.reuses_servers(plane) || in_use.all {
            return None;
        }
        let free = |id: &ServerId| {
            plane.server(*id).gone
                && !in_use.some.contains(id)
                && plane.links.iter().all(|(_, link)| link.kind.server != *id)
                && plane
                    .sessions
                    .iter()
                    .all(|(_, session)| session.server != *id)
                && !self.may_read_at(*id)
                && plane
                    .pools
                    .iter()
                    .zip(&self.clusters)
                    .all(|(pool, belief)| {
                        let owns = pool.cluster().is_some_and(|slots| slots.owns_slots(*id));
                        let names = |belief: &ClusterBelief| {
                            belief.seeds.contains(id) || belief.reported.contains(id)
                        };
                        !owns && !belief.as_deref().is_some_and(names)
                    })
        };
        (0..plane.servers.len() as u16).map(ServerId).find(free)
    }
}

fn is_at(address: &Address, at: &Endpoint) -> bool {
    matches!(address, Address::Tcp { host, port } if *host == at.host && *port == at.port)
}

impl Discovery {
    /// Asks for a refresh of the Cluster of a server, because owners may have changed.
    pub(crate) fn request_refresh(&mut self, plane: &mut DataPlane, server: ServerId) {
        let now = plane.now;
        let pool = usize::from(plane.server(server).pool);
        if let Some((belief, slots)) = self.cluster_of(&mut plane.pools, pool) {
            let by = belief.refresh.not_before;
            belief.want(slots, by);
            // The first refresh begins at once.
            if !slots.is_known {
                belief.want(slots, now);
            }
        }
    }

    /// A link to a node that can be asked for the topology. If clients bring the passwords, the
    /// link may be any user's.
    pub(crate) fn link_that_answers(&self, plane: &DataPlane, server: ServerId) -> Option<LinkId> {
        let answers = |link: &Link| {
            link.kind.server == server
                && link.role == LinkRole::Shared
                && link.is_up()
                && link.takes()
                && !plane.is_silent(link, SILENT_MS)
        };
        let mut links = plane.links.iter();
        links.find(|(_, link)| answers(link)).map(|(id, _)| id)
    }

    /// Waits until respool knows the servers that publish to the channels of a subscription. `None`:
    /// they are known. `any_node`: it has channels whose messages any node of a Cluster publishes.
    /// `events`: it has channels of keyspace notifications.
    pub(crate) fn await_publishers(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        (any_node, events): (bool, bool),
    ) -> Option<Dispatched> {
        let pool = usize::from(plane.sessions.get(id)?.pool);
        let home = usize::from(plane.pools.parts_of(pool)[0]);
        let cluster = plane.pools[home].cluster();
        // The first topology answer may move everything that is published to another node, and the
        // session would miss messages.
        if any_node
            && cluster.is_some_and(|slots| !slots.is_known)
            && plane.waits_for_nodes(id, home)
        {
            return Some(Dispatched::Wait);
        }
        if !events {
            return None;
        }
        let waits = match plane.unknown_part(pool) {
            Some(part) => plane.waits_for_nodes(id, part),
            None => self.waits_for_owners(plane, id, pool),
        };
        if waits {
            return Some(Dispatched::Wait);
        }
        let text = plane.no_nodes(plane.unknown_part(pool)?);
        Some(plane.answer_error(id, text.as_bytes()))
    }

    /// Whether a session with a request for all owners waits for a refresh, because the last one is
    /// too old.
    pub(crate) fn waits_for_owners(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        pool: usize,
    ) -> bool {
        let parts = plane.pools.parts_of(pool).to_vec();
        let mut parts = parts.into_iter().map(usize::from);
        parts.any(|part| self.waits_for_owners_of(plane, id, part))
    }

    fn waits_for_owners_of(&mut self, plane: &mut DataPlane, id: SessionId, part: usize) -> bool {
        let now = plane.now;
        let Some((belief, slots)) = self.cluster_of(&mut plane.pools, part) else {
            return false;
        };
        let is_fresh = |at| now.since_ms(at) < CONFIRMED_MS;
        if belief.asked_at.is_some_and(is_fresh) {
            return false;
        }
        belief.awaiting_refresh_since.get_or_insert(now);
        belief.awaiting_refresh.push(id);
        belief.want(slots, belief.refresh.not_before);
        plane.hold(id, Holds::LINK);
        true
    }

    /// A refresh has ended, with or without a topology. Sessions that waited for it go on with the
    /// owners that are known. `asked_at`: when the refresh began.
    fn wake_awaiting_refresh(&mut self, plane: &mut DataPlane, pool: usize, asked_at: Time) {
        let Some(belief) = self.clusters[pool].as_deref_mut() else {
            return;
        };
        belief.asked_at = Some(asked_at);
        belief.awaiting_refresh_since = None;
        for session in std::mem::take(&mut belief.awaiting_refresh) {
            plane.release(session, Holds::LINK);
        }
    }

    /// The node that took over from this one: the primary that it follows, if it owns no slot any
    /// more.
    pub(crate) fn heir_of(&self, plane: &DataPlane, server: ServerId) -> Option<ServerId> {
        let pool = usize::from(plane.server(server).pool);
        let belief = self.clusters[pool].as_ref()?;
        let follows = belief.primaries.get(&server).copied();
        follows.filter(|_| plane.owns_nothing(server))
    }

    /// Reports nodes that answer for another Cluster, each once. A refresh does not ask all nodes,
    /// so nodes without an answer keep their mark.
    fn note_foreign_nodes(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        answered: &[ServerId],
        foreign_nodes: Vec<ServerId>,
    ) {
        let Some(belief) = self.clusters[pool].as_deref_mut() else {
            return;
        };
        belief
            .foreign_nodes
            .retain(|id| foreign_nodes.contains(id) || !answered.contains(id));
        let new = foreign_nodes.into_iter();
        let new: Vec<_> = new.filter(|id| belief.foreign_nodes.insert(*id)).collect();
        for server in new {
            let text = format!(
                "{} answers for another Cluster and is ignored: was it configured by mistake, or \
                 does it have the address of a node that is gone?",
                plane.server(server).label
            );
            plane.say_topology(pool, text);
        }
    }

    /// Reports the state of a pool's topology, once until the text changes.
    pub(crate) fn tell_topology(&mut self, plane: &mut DataPlane, pool: usize, text: String) {
        let last = plane.reported_topology.insert(pool, text.clone());
        if last.as_ref() != Some(&text) {
            plane.say_topology(pool, text);
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
            self.tell_topology(plane, pool, text);
        }
    }

    /// Whether the error for an unserved slot goes to the client: the node refuses it, and the
    /// other nodes know no owner either. In a failover every node still names an owner. In a move a
    /// slot has none only if one node gives it up before the other takes it. So respool does not
    /// wait, and the client gets the node's own words. The next request asks the node again: as
    /// soon as it knows an owner, it answers with MOVED.
    pub(crate) fn is_nobodys(
        &mut self,
        plane: &mut DataPlane,
        server: ServerId,
        said: &[u8],
        slot: Option<u16>,
    ) -> bool {
        let Some(slot) = slot.filter(|_| said.trim_ascii_end() == NOT_SERVED) else {
            return false;
        };
        let (now, pool) = (plane.now, usize::from(plane.server(server).pool));
        let Some((belief, slots)) = self.cluster_of(&mut plane.pools, pool) else {
            return false;
        };
        let is_nobodys = now.since_ms(belief.unserved_at) < CONFIRMED_MS
            && slots.unserved.binary_search(&slot).is_ok();
        belief.denied_by = Some(server);
        if is_nobodys {
            // A node may take the slot at any time.
            self.request_refresh(plane, server);
        }
        is_nobodys
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

    fn ask_for_nodes(&mut self, plane: &mut DataPlane, server: ServerId) {
        let Some(link) = self.link_that_answers(plane, server) else {
            return;
        };
        let mut bytes = Vec::new();
        for request in [["CLUSTER", "SHARDS"], ["CLUSTER", "NODES"]] {
            encode::request(&mut bytes, &request);
        }
        plane.put_ours(
            link,
            &bytes,
            Completion::Discovery(DiscoveryCompletion::Nodes { shards: None }),
        );
    }

    fn host_of(&self, plane: &DataPlane, server: ServerId) -> String {
        match &plane.server(server).settings.address {
            Address::Tcp { host, .. } => host.clone(),
            Address::Unix(_) => String::from("localhost"),
        }
    }

    /// Begins the refresh of every Cluster for which one is due.
    pub(crate) fn refresh_clusters(&mut self, plane: &mut DataPlane) {
        for pool in 0..self.clusters.len() {
            let now = plane.now;
            let Some(belief) = &self.clusters[pool] else {
                continue;
            };
            let refresh = &belief.refresh;
            if refresh.wanted && refresh.since.is_none() && now >= refresh.not_before {
                self.begin_refresh(plane, pool);
            }
        }
    }

    fn begin_refresh(&mut self, plane: &mut DataPlane, pool: usize) {
        let start = plane.random() as usize;
        let again = plane.now.plus_ms(REFRESH_DOWN_MS);
        let Some((belief, slots)) = self.cluster_of(&mut plane.pools, pool) else {
            return;
        };
        let mut candidates = slots.members.clone();
        let seeds = belief.seeds.iter();
        candidates.extend(seeds.filter(|id| !slots.members.contains(id)));
        let first = start % candidates.len();
        candidates.rotate_left(first);
        // Nodes with an older epoch come last.
        candidates.sort_by_key(|id| belief.behind.contains(id));
        if let Some(denier) = belief.denied_by
            && let Some(place) = candidates.iter().position(|id| *id == denier)
        {
            candidates.swap(0, place);
        }
        let answering = candidates
            .into_iter()
            .filter_map(|server| self.link_that_answers(plane, server));
        let links: Vec<LinkId> = answering.take(ASKED_MAX).collect();
        let now = plane.now;
        let Some((belief, slots)) = self.cluster_of(&mut plane.pools, pool) else {
            return;
        };
        if links.is_empty() {
            // Perhaps no node that owned slots is left.
            belief.refresh.not_before = again;
            let all = [&belief.seeds[..], &slots.members].concat();
            self.wake_awaiting_refresh(plane, pool, now);
            for other in all {
                self.reach(plane, other);
            }
            return;
        }
        belief.healed.clear();
        belief.denied_by = None;
        let ticket = belief.refresh.ticket.wrapping_add(1);
        let listing = belief.refresh.listing;
        belief.refresh = TopologyRefresh {
            down_since: belief.refresh.down_since,
            listing,
            ticket,
            since: Some(now),
            missing: links.len(),
            ..TopologyRefresh::default()
        };
        plane.counters.topology_refreshes += 1;
        let mut bytes = Vec::new();
        for request in listing.ask() {
            encode::request(&mut bytes, request);
        }
        for link in links {
            let duty = Completion::Discovery(DiscoveryCompletion::Owners {
                ticket,
                listed: None,
            });
            plane.put_ours(link, &bytes, duty);
        }
    }

    /// Makes sure that a server has a link, or an attempt to connect one.
    pub(crate) fn reach(&mut self, plane: &mut DataPlane, server: ServerId) {
        plane.servers[usize::from(server.0)].gone = false;
        let kind = plane.first_link(server);
        let known = plane.shared.contains_key(&kind);
        if let Some(link) = plane.shared_link(kind).filter(|_| !known) {
            plane.connect(link);
        }
    }

    /// Wakes sessions at links in back-off, once the owners are known or cannot be found.
    pub(crate) fn wake_at_rest(&mut self, plane: &mut DataPlane, pool: usize) {
        for id in plane.links.ids() {
            let rests = |link: &Link| {
                (link.is_late() || matches!(link.state, LinkState::Backoff { .. }))
                    && usize::from(plane.server(link.kind.server).pool) == pool
                    && !plane.awaits_owners(link)
            };
            if plane.links.get(id).is_some_and(rests) {
                plane.wake_waiters(id);
            }
        }
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
