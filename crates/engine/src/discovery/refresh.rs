//! Refreshes of the topology of a Cluster: when nodes are asked, and which sessions wait for that.

use respool_protocol::cluster::{Info, View, ViewError};
use respool_protocol::encode;

use crate::base::handle::{LinkId, SessionId};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::awaited_nodes::NODES_MS;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::discovery::DiscoveryCompletion;
use crate::data_plane::ingress::Dispatched;
use crate::data_plane::link::{Link, LinkRole, LinkState};
use crate::data_plane::reachability::{Reachability, SILENT_MS};
use crate::data_plane::session_state::Holds;
use crate::discovery::Discovery;
use crate::discovery::cluster::{ClusterBelief, NewTopology, TopologyChange};
use crate::discovery::introductions;
use crate::discovery::servers::ServersInUse;
use crate::discovery::view_election;
use crate::routing::pool::ServerId;
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
/// The greatest age of a topology answer by which a request goes to all owners, or a slot counts as
/// unserved, milliseconds. It is a refresh and the time to the next one, so a new answer can come
/// in that time.
const CONFIRMED_MS: u64 = REFRESH_MS as u64 + ANSWERS_MS;

/// The refresh that is under way or wanted next.
#[derive(Debug, Default)]
pub(super) struct TopologyRefresh {
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

impl TopologyRefresh {
    /// The first refresh, which is wanted at once.
    pub(super) fn first() -> TopologyRefresh {
        TopologyRefresh {
            wanted: true,
            ..TopologyRefresh::default()
        }
    }
}

impl ClusterBelief {
    /// Asks for a refresh at `by`, or sooner if one is due sooner.
    fn want(&mut self, slots: &mut SlotTable, by: Time) {
        self.refresh.wanted = true;
        self.refresh.not_before = self.refresh.not_before.min(by);
        slots.is_refreshing = true;
    }
}

/// A node's error for a slot without an owner.
const NOT_SERVED: &[u8] = b"CLUSTERDOWN Hash slot not served";

/// The report of a refresh that gave no topology, without the reason.
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

    fn read(self, answer: &[u8], host: &str) -> Result<View, ViewError> {
        match self {
            OwnerListing::Slots => View::from_slots(answer, host),
            OwnerListing::Shards => View::from_shards(answer, host),
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
    /// The changes if another topology is believed now.
    pub(crate) change: Option<TopologyChange>,
}

/// The course of a refresh.
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
            let completion = Completion::Discovery(DiscoveryCompletion::Owners {
                ticket,
                listed: None,
            });
            plane.put_ours(link, &bytes, completion);
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
        let (address_map, tls) = (plane.pools[pool].address_map.clone(), plane.pools[pool].tls);
        let refresh = &mut self.clusters[pool].as_deref_mut()?.refresh;
        if refresh.since.is_none() || refresh.ticket != ticket {
            return None;
        }
        let view = refresh.listing.read(listed, &host).map(|mut view| {
            if tls {
                view.take_tls_ports();
            }
            view.map_endpoints(|named| address_map.apply(named));
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

    /// Ends a refresh: chooses a topology from the answers, and believes it.
    /// [`Discovery::conclude_refresh`] has to follow.
    pub(crate) fn end_refresh(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        in_use: &ServersInUse,
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
        let foreign_nodes: Vec<ServerId> = choice
            .unlisted_nodes
            .iter()
            .map(|at| answered_by[*at])
            .collect();
        let ours = answered_by.iter().copied().zip(answers);
        let ours = ours.filter(|(id, _)| !foreign_nodes.contains(id));
        let (members, answers): (Vec<ServerId>, Vec<_>) = ours.unzip();
        let is_ok = answers.iter().any(|(_, info)| info.ok);
        // A Cluster that was never changed has epoch 0.
        let epoch = choice.is_known.then_some(choice.epoch.max(1));
        let owners = slots.servers();
        let is_news = |_: &View| belief.is_news(epoch, (&members, owners), is_ok, now);
        let mut topology = None;
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
            topology = Some(NewTopology { view, was_known });
        } else if let Some(wrong) = wrong {
            plane.awaited_nodes.entry(pool).or_default().wrong = Some(wrong.clone());
            // Nodes may be wrong in several ways by turns: that is one event.
            let last = plane.reported_topology.get(&pool);
            if !last.is_some_and(|text| text.starts_with(NO_OWNERS)) {
                self.report_topology(plane, pool, format!("{NO_OWNERS}: {wrong}"));
            }
        }
        let change = topology.and_then(|topology| self.believe(plane, pool, topology, in_use));
        Some(EndedRefresh {
            asked_at,
            answered_by,
            foreign_nodes,
            change,
        })
    }

    /// Follows the changes of a topology, sets the time of the next refresh, and wakes the sessions
    /// that waited for this one.
    pub(crate) fn conclude_refresh(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        ended: EndedRefresh,
        in_use: &ServersInUse,
    ) {
        let now = plane.now;
        if let Some(change) = ended.change {
            self.follow_change(plane, pool, change, in_use);
        }
        self.note_foreign_nodes(plane, pool, &ended.answered_by, ended.foreign_nodes);
        let mut owners = plane.pools[pool].servers().iter();
        let all_up = owners.all(|server| plane.reachability(*server) >= Reachability::Refuses);
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
            plane.emit_topology(pool, text);
        }
    }
}

/// Sessions that wait for a refresh.
impl Discovery {
    /// Waits until respool knows the servers that publish to the channels of a subscription.
    /// `None`: they are known. `any_node`: it has channels whose messages any node of a Cluster
    /// publishes. `events`: it has channels of keyspace notifications.
    pub(crate) fn await_publishers(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        (any_node, events): (bool, bool),
    ) -> Option<Dispatched> {
        let pool = usize::from(plane.sessions.get(id)?.pool);
        let first = usize::from(plane.pools.subpools_of(pool)[0]);
        let cluster = plane.pools[first].cluster();
        // The first topology answer may move everything that is published to another node, and the
        // session would miss messages.
        if any_node
            && cluster.is_some_and(|slots| !slots.is_known)
            && plane.wait_for_nodes(id, first)
        {
            return Some(Dispatched::Wait);
        }
        if !events {
            return None;
        }
        let waits = match plane.unknown_subpool(pool) {
            Some(subpool) => plane.wait_for_nodes(id, subpool),
            None => self.wait_for_owners(plane, id, pool),
        };
        if waits {
            return Some(Dispatched::Wait);
        }
        let text = plane.no_nodes(plane.unknown_subpool(pool)?);
        Some(plane.answer_error(id, text.as_bytes()))
    }

    /// Whether a session with a request for all owners waits for a refresh, because the last one is
    /// too old.
    pub(crate) fn wait_for_owners(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        pool: usize,
    ) -> bool {
        let subpools = plane.pools.subpools_of(pool).to_vec();
        let mut subpools = subpools.into_iter().map(usize::from);
        subpools.any(|subpool| self.wait_for_owners_of(plane, id, subpool))
    }

    fn wait_for_owners_of(&mut self, plane: &mut DataPlane, id: SessionId, subpool: usize) -> bool {
        let now = plane.now;
        let Some((belief, slots)) = self.cluster_of(&mut plane.pools, subpool) else {
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

    /// Wakes sessions at links in back-off, once the owners are known or cannot be found.
    pub(crate) fn wake_at_rest(&mut self, plane: &mut DataPlane, pool: usize) {
        for id in plane.links.ids() {
            let rests = |link: &Link| {
                (link.connects_slowly() || matches!(link.state, LinkState::Backoff { .. }))
                    && usize::from(plane.server(link.kind.server).pool) == pool
                    && !plane.awaits_owners(link)
            };
            if plane.links.get(id).is_some_and(rests) {
                plane.wake_waiters(id);
            }
        }
    }

    /// Whether the error for an unserved slot goes to the client: the node refuses it, and the
    /// other nodes know no owner either. In a failover every node still names an owner. In a move a
    /// slot has none only if one node gives it up before the other takes it. So respool does not
    /// wait, and the client gets the node's own words. The next request asks the node again: as
    /// soon as it knows an owner, it answers with MOVED.
    pub(super) fn confirm_unowned(
        &mut self,
        plane: &mut DataPlane,
        server: ServerId,
        error: &[u8],
        slot: Option<u16>,
    ) -> bool {
        let Some(slot) = slot.filter(|_| error.trim_ascii_end() == NOT_SERVED) else {
            return false;
        };
        let (now, pool) = (plane.now, usize::from(plane.server(server).pool));
        let Some((belief, slots)) = self.cluster_of(&mut plane.pools, pool) else {
            return false;
        };
        let confirm_unowned = now.since_ms(belief.unserved_at) < CONFIRMED_MS
            && slots.unserved.binary_search(&slot).is_ok();
        belief.denied_by = Some(server);
        if confirm_unowned {
            // A node may take the slot at any time.
            self.request_refresh(plane, server);
        }
        confirm_unowned
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::settings::PoolKind;
    use crate::data_plane::test_plane::{plane_with_pool, server_at};

    /// CLUSTER SLOTS of two nodes, of which the first one owns the slots below `end`.
    fn slots_answer(end: u16) -> Vec<u8> {
        let range = |first, last, port| {
            format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n+server\r\n:{port}\r\n")
        };
        let ranges = [range(0, end - 1, 1), range(end, 16_383, 2)];
        format!("*2\r\n{}", ranges.concat()).into_bytes()
    }

    fn info_answer(epoch: u32) -> Vec<u8> {
        let text = format!(
            "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_current_epoch:{epoch}\r\n\
             cluster_my_epoch:{epoch}\r\n"
        );
        format!("${}\r\n{text}\r\n", text.len()).into_bytes()
    }

    /// A Cluster of two seeds with a link to each that is up.
    fn cluster() -> (DataPlane, Discovery, [LinkId; 2]) {
        let seeds = vec![server_at(1), server_at(2)];
        let mut plane = plane_with_pool(PoolKind::Cluster { seeds });
        let discovery = Discovery::new(&plane.pools, &plane.servers);
        let links = [0, 1].map(|server| {
            let kind = plane.default_kind(ServerId(server));
            let link = plane.shared_link(kind).expect("there is room for a link");
            plane.mark_up(link).expect("the link is there");
            link
        });
        (plane, discovery, links)
    }

    /// Both nodes answer the refresh of this number.
    fn answer(
        (plane, discovery, links): (&mut DataPlane, &mut Discovery, [LinkId; 2]),
        ticket: u32,
        (end, epoch): (u16, u32),
    ) -> EndedRefresh {
        let (slots, info) = (slots_answer(end), info_answer(epoch));
        let [first, last] =
            links.map(|link| discovery.take_owners(plane, link, ticket, &slots, &info));
        assert_eq!((first, last), (None, Some(0)));
        let in_use = ServersInUse::default();
        let ended = discovery.end_refresh(plane, 0, &in_use);
        ended.expect("a refresh was under way")
    }

    /// Slots have their owners from the first refresh on. Its last answer ends it, and late answers
    /// change nothing.
    #[test]
    fn first_refresh_names_the_owners() {
        let (mut plane, mut discovery, links) = cluster();
        discovery.refresh_clusters(&mut plane);
        let slots = |plane: &DataPlane, slot| {
            let slots = plane.pools[0].cluster().expect("it is a Cluster");
            let state = (slots.is_known, slots.is_refreshing);
            (state, slots.owner_of_slot(slot))
        };
        assert_eq!(slots(&plane, 8_000), ((false, true), ServerId(0)));
        let ended = answer((&mut plane, &mut discovery, links), 1, (8_000, 1));
        assert!(ended.change.is_some());
        assert_eq!(slots(&plane, 8_000), ((true, false), ServerId(1)));
        let in_use = ServersInUse::default();
        discovery.conclude_refresh(&mut plane, 0, ended, &in_use);
        assert_eq!(slots(&plane, 7_999), ((true, false), ServerId(0)));
        let (late, info) = (slots_answer(1), info_answer(9));
        let ended = discovery.take_owners(&mut plane, links[0], 1, &late, &info);
        assert_eq!(ended, None);
    }

    /// A redirect moves its slot at once, and counts more than the refresh that is under way.
    #[test]
    fn redirect_is_newer_than_the_refresh_under_way() {
        let (mut plane, mut discovery, links) = cluster();
        discovery.refresh_clusters(&mut plane);
        let ended = answer((&mut plane, &mut discovery, links), 1, (8_000, 1));
        let in_use = ServersInUse::default();
        discovery.conclude_refresh(&mut plane, 0, ended, &in_use);
        let owner = |plane: &DataPlane, slot| {
            let slots = plane.pools[0].cluster().expect("it is a Cluster");
            slots.owner_of_slot(slot)
        };
        plane.now = plane.now.plus_ms(REFRESH_MS);
        discovery.request_refresh(&mut plane, ServerId(0));
        discovery.refresh_clusters(&mut plane);
        discovery.heal_slot(&mut plane, 0, 100, ServerId(1));
        assert_eq!(owner(&plane, 100), ServerId(1));
        assert_eq!(discovery.lost_slots, [ServerId(0)]);
        // The nodes have answered before they moved the slot, and name another slot that moved.
        answer((&mut plane, &mut discovery, links), 2, (7_999, 1));
        assert_eq!(owner(&plane, 100), ServerId(1));
        assert_eq!(owner(&plane, 7_999), ServerId(1));
        assert_eq!(owner(&plane, 99), ServerId(0));
    }

    /// A topology of an older epoch is not believed while the nodes with ours are more.
    #[test]
    fn older_epoch_is_not_believed() {
        let (mut plane, mut discovery, links) = cluster();
        discovery.refresh_clusters(&mut plane);
        let ended = answer((&mut plane, &mut discovery, links), 1, (8_000, 5));
        let in_use = ServersInUse::default();
        discovery.conclude_refresh(&mut plane, 0, ended, &in_use);
        plane.now = plane.now.plus_ms(REFRESH_MS);
        discovery.request_refresh(&mut plane, ServerId(0));
        discovery.refresh_clusters(&mut plane);
        // Only one node answers before the time is over.
        let (slots, info) = (slots_answer(1), info_answer(4));
        let ended = discovery.take_owners(&mut plane, links[0], 2, &slots, &info);
        assert_eq!(ended, None);
        let ended = discovery.end_refresh(&mut plane, 0, &in_use);
        assert!(ended.expect("a refresh was under way").change.is_none());
        let slots = plane.pools[0].cluster().expect("it is a Cluster");
        assert_eq!(slots.owner_of_slot(100), ServerId(0));
    }
}
