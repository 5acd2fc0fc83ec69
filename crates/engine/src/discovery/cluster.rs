//! A Cluster behind us: which of its nodes owns which slots, as the nodes themselves say it.
//!
//! ```text
//!   MOVED ──────────────► that slot, at once ─────────────┐
//!     │                                                   ▼
//!     └─► a refresh:  up to 5 nodes are asked ─choose─► owners[slot] ◄── every request
//!            ▲                                            │
//!   a link was lost, an owner is not there, 10 seconds    └─► whose slots changed: its sessions wait
//!                                                             until what they asked there is answered
//! ```
//!
//! Until the nodes have said anything, the seeds own everything: they say MOVED. What is for all
//! nodes meets no MOVED: it waits for a refresh where the last one was too long ago.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

use respool_protocol::cluster::{self, Endpoint, Info, Role as NodeRole, View, ViewError};
use respool_protocol::encode;
use respool_protocol::hashing::Hash;
use respool_protocol::slot::{SLOTS, hash_slot};

use crate::duty::Duty;
use crate::engine::{Engine, Event};
use crate::introductions::{self, Introductions};
use crate::limits::SERVERS_MAX;
use crate::link::{Link, Role, State};
use crate::pool::{Group, Server, ServerId};
use crate::route::Standing;
use crate::session::{Flags, Pins, Session};
use crate::settings::{Address, Credentials, PoolKind, ServerSettings};
use crate::slots::Key;
use crate::time::Time;

/// So many nodes are asked at once.
const ASKED_MAX: usize = 5;
/// How long those that have not answered are waited for, milliseconds.
const ANSWERS_MS: u64 = 100;
/// From one refresh to the next, milliseconds: usually ...
const REFRESH_MS: u32 = 1_000;
/// ... while an owner of slots cannot be reached, and another one may have taken over ...
const REFRESH_DOWN_MS: u32 = 100;
/// ... for so long at the most ...
const FAILOVER_MS: u64 = 60_000;
/// ... and if nothing happens.
const REFRESH_QUIET_MS: u32 = 10_000;
/// Nodes that are behind what is believed are believed all the same, if they are in order, when
/// nobody who is not has answered for so long, milliseconds. Those on the smaller side of a
/// partition see sooner that they are (`cluster-node-timeout`, 15 seconds by default), and are in
/// order no more.
const BEHIND_MS: u64 = 60_000;
/// A node that owes replies and sends nothing for so long may have been replaced, milliseconds.
pub(crate) const SILENT_MS: u64 = 200;
/// What a node owes whose replica has taken over, and of whom nobody speaks, is given up when it
/// was silent for so long, milliseconds. One that runs has kept its clients waiting for its
/// replica, and answers them as soon as it knows that its place is taken; that nobody speaks of it
/// ends when it has told the others that it is a replica now. One that is gone was silent for
/// longer before the others gave its place away: nobody waits for it any more.
const REPLACED_MS: u64 = 500;
/// Whoever took over from a node that was lost is looked for so long, before its requests fail,
/// milliseconds.
pub(crate) const TAKEN_OVER_MS: u64 = 300;
/// How long it is waited, in all, for nodes that have not said yet which there are, milliseconds.
/// They do so at once, or are not there.
const NODES_MS: u64 = 1_000;
/// What is for all owners, and that a slot has none, goes by what the nodes were asked so long ago
/// at the most, milliseconds. So late they may be asked again: a refresh and the time to the next
/// one are over.
const CONFIRMED_MS: u64 = REFRESH_MS as u64 + ANSWERS_MS;
/// SCAN tells so many servers apart.
const NUMBERS: u16 = respool_protocol::fan::Cursor::SERVERS_MAX;

/// What is known of a Cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Of each slot, who is asked.
    owners: Box<[ServerId]>,
    /// The same when the last refresh was over: what has moved since is told of at the end of the
    /// next one, once.
    told: Box<[ServerId]>,
    /// Those that own slots, the owner of the first one in front.
    servers: Vec<ServerId>,
    /// Where everything is published: one of those.
    home: ServerId,
    /// What nodes are called, as far as any has said so.
    names: HashMap<ServerId, String>,
    /// Whose replicas the others are.
    primaries: HashMap<ServerId, ServerId>,
    /// Those that were replaced by one that followed them and of whom nobody has spoken since:
    /// since when.
    replaced: Vec<(ServerId, Time)>,
    /// The owners by the numbers that SCAN knows them by.
    scan_order: Vec<(u16, ServerId)>,
    /// The first of those, and the one behind the last.
    numbers: Range<u16>,
    /// All that the nodes spoke of, replicas too.
    members: Vec<ServerId>,
    seeds: Vec<ServerId>,
    /// How to reach any of them, but for its address.
    template: ServerSettings,
    /// The epoch of what is believed, and the ids of the nodes in it.
    epoch: u64,
    known: BTreeSet<String>,
    /// Those whose last answer, of whatever refresh, was for another Cluster.
    strangers: BTreeSet<ServerId>,
    /// Those that have answered with an older epoch since somebody last answered with that one, and
    /// since when there are any.
    behind: HashSet<ServerId>,
    behind_since: Option<Time>,
    /// Slots that a node has spoken of since the refresh under way began: it knows better.
    healed: HashSet<u16>,
    /// Slots that nobody owns, in order. Their last owners stand in the table still: these are
    /// asked, and refuse, or name the next one.
    unserved: Vec<u16>,
    /// When the refresh began that has said so.
    weighed_at: Time,
    /// Addresses that redirects have named.
    introductions: Introductions,
    /// The node that last said that a slot is not served, or is at an unknown address. A node knows
    /// more about its own slots than other nodes, so this node is asked.
    denied_by: Option<ServerId>,
    /// Whether a node said then that it is in order as it is.
    is_ok: bool,
    /// A slot has another owner than when the channels were looked through last.
    pub(crate) has_moved: bool,
    refresh: Refresh,
    /// Why the last one led to nothing, if it did.
    wrong: Option<String>,
    /// Sessions that ask for something of all nodes, before it is known which there are; and since
    /// when the first one has.
    awaiting: Vec<Key>,
    awaited_since: Option<Time>,
    /// When the last refresh that is over began.
    asked_at: Option<Time>,
    /// Sessions that wait for the next one, since what they ask is for all owners; and since when
    /// the first one has.
    unsure: Vec<Key>,
    unsure_since: Option<Time>,
}

/// When the nodes are asked, and what they have answered.
#[derive(Debug, Default)]
struct Refresh {
    wanted: bool,
    /// Not sooner than then.
    not_before: Time,
    /// Since when an owner has not been there.
    down_since: Option<Time>,
    /// Tells the answers to it from those to an earlier one.
    ticket: u32,
    /// It is under way since then.
    since: Option<Time>,
    /// What they are asked, and whether one of them has refused that.
    listing: Listing,
    is_refused: bool,
    /// Nodes that have not answered.
    missing: usize,
    answers: Vec<(View, Info)>,
    /// Of each of these, in their order, who gave it.
    said_by: Vec<ServerId>,
    /// Why the last one that was no answer was none.
    wrong: Option<String>,
}

/// A node's words on a slot that nobody owns.
const NOT_SERVED: &[u8] = b"CLUSTERDOWN Hash slot not served";

/// To what goes to all nodes.
const NOT_KNOWN_YET: &str =
    "CLUSTERDOWN respool: no node of the Cluster has said yet which nodes there are";

impl Cluster {
    /// `numbers`: SCAN knows its nodes by some of these.
    pub(crate) fn new(
        seeds: &[ServerSettings],
        ids: Vec<ServerId>,
        numbers: Range<u16>,
    ) -> Cluster {
        let first = ids[0];
        let numbers = numbers.start..numbers.end.min(NUMBERS).max(numbers.start + 1);
        Cluster {
            owners: vec![first; usize::from(SLOTS)].into_boxed_slice(),
            told: vec![first; usize::from(SLOTS)].into_boxed_slice(),
            servers: ids.clone(),
            home: first,
            names: HashMap::new(),
            primaries: HashMap::new(),
            replaced: Vec::new(),
            scan_order: numbers.clone().zip(ids.iter().copied()).collect(),
            numbers,
            members: ids.clone(),
            seeds: ids,
            template: seeds[0].clone(),
            epoch: 0,
            known: BTreeSet::new(),
            strangers: BTreeSet::new(),
            behind: HashSet::new(),
            behind_since: None,
            healed: HashSet::new(),
            unserved: Vec::new(),
            weighed_at: Time::default(),
            introductions: Introductions::default(),
            denied_by: None,
            is_ok: false,
            has_moved: false,
            refresh: Refresh {
                wanted: true,
                ..Refresh::default()
            },
            wrong: None,
            awaiting: Vec::new(),
            awaited_since: None,
            asked_at: None,
            unsure: Vec::new(),
            unsure_since: None,
        }
    }

    /// The login to any node that is met from now on.
    pub(crate) fn credentials_mut(&mut self) -> Option<&mut Credentials> {
        self.template.credentials.as_mut()
    }

    #[inline]
    pub(crate) fn owner_of(&self, key: &[u8]) -> ServerId {
        self.owners[usize::from(hash_slot(key))]
    }

    /// Whether a node owns any slot.
    pub(crate) fn owns_slots(&self, server: ServerId) -> bool {
        self.owners.contains(&server)
    }

    pub(crate) fn owner_of_slot(&self, slot: u16) -> ServerId {
        self.owners[usize::from(slot)]
    }

    /// Of the slots of a node the first; of one that owns none, the first of all.
    pub(crate) fn first_slot_of(&self, server: ServerId) -> u16 {
        let mut owners = (0..SLOTS).zip(&self.owners);
        let its = owners.find(|(_, owner)| **owner == server);
        its.map_or(0, |(slot, _)| slot)
    }

    pub(crate) fn servers(&self) -> &[ServerId] {
        &self.servers
    }

    pub(crate) fn home(&self) -> ServerId {
        self.home
    }

    /// What a node is, as far as it is known.
    pub(crate) fn role_of(&self, server: ServerId) -> &'static str {
        match server {
            _ if !self.is_known() => "seed",
            _ if self.servers.contains(&server) => "primary",
            _ if self.primaries.contains_key(&server) => "replica",
            _ if self.members.contains(&server) => "primary",
            _ => "seed",
        }
    }

    /// How many slots each of its nodes owns.
    pub(crate) fn slot_counts(&self) -> HashMap<ServerId, u32> {
        let mut counts: HashMap<ServerId, u32> = HashMap::new();
        counts.extend(self.members.iter().map(|server| (*server, 0)));
        for run in self.owners.chunk_by(|one, next| one == next) {
            *counts.entry(run[0]).or_default() += run.len() as u32;
        }
        for slot in &self.unserved {
            if let Some(count) = counts.get_mut(&self.owner_of_slot(*slot)) {
                *count -= 1;
            }
        }
        counts
    }

    /// The slots that nobody owns, as far as it is known, in order.
    pub(crate) fn unserved(&self) -> &[u16] {
        &self.unserved
    }

    /// Whether its nodes are in order without an owner of every slot.
    pub(crate) fn is_ok(&self) -> bool {
        self.is_ok
    }

    pub(crate) fn scan_order(&self) -> &[(u16, ServerId)] {
        &self.scan_order
    }

    /// Whether a node has said who owns what.
    pub(crate) fn is_known(&self) -> bool {
        self.epoch > 0
    }

    /// The owners may have changed.
    fn want(&mut self, by: Time) {
        self.refresh.wanted = true;
        self.refresh.not_before = self.refresh.not_before.min(by);
    }

    /// Whether what these nodes say at an epoch is to be believed. `None`: of a Cluster that is not
    /// the one that was believed, for epochs of different ones cannot be compared.
    ///
    /// An epoch that somebody was elected at is known to most owners before it counts, so most
    /// never say an older one; but if all of them have gone back (their files are those of an
    /// earlier time), most do, sooner or later. Who does not answer is not one of them.
    fn is_news(
        &mut self,
        epoch: Option<u64>,
        said_by: &[ServerId],
        is_ok: bool,
        now: Time,
    ) -> bool {
        let since = *self.behind_since.get_or_insert(now);
        self.behind.extend(said_by);
        let is_behind = |owner: &&ServerId| self.behind.contains(owner);
        let count = self.servers.iter().filter(is_behind).count();
        let is_news = epoch.is_none_or(|epoch| epoch >= self.epoch)
            || 2 * count > self.servers.len()
            || is_ok && now.since_ms(since) >= BEHIND_MS;
        if is_news {
            self.behind.clear();
            self.behind_since = None;
        }
        is_news
    }

    /// `all`: to call those by their addresses that have no other name.
    fn list_owners(&mut self, all: &[Server]) {
        let mut seen = HashSet::new();
        self.servers.clear();
        let mut last = None;
        for owner in &self.owners {
            // Neighbours mostly have the same one.
            if last.replace(*owner) != Some(*owner) && seen.insert(*owner) {
                self.servers.push(*owner);
            }
        }
        let name = |server: &ServerId| match self.names.get(server) {
            Some(name) => name.clone(),
            None => all[usize::from(server.0)].label.clone(),
        };
        let owners = self.servers.iter();
        let owners = owners.map(|server| (name(server), *server)).collect();
        self.number(owners);
    }

    /// How many slots have moved since this was last asked, from whom to whom, whoever has said so.
    fn take_untold(&mut self) -> BTreeMap<(ServerId, ServerId), u32> {
        let mut moves = BTreeMap::new();
        for (old, new) in self.told.iter().zip(&self.owners) {
            if old != new {
                *moves.entry((*old, *new)).or_default() += 1;
            }
        }
        self.told.copy_from_slice(&self.owners);
        moves
    }

    /// Finds the slots that nobody owns: no node names an owner, or that one itself names none, for
    /// its own word counts for what is its own. If it was not asked, it is as it was.
    fn weigh(&mut self, answers: &[(&Address, (View, Info))]) {
        let weigh_one = |slot: u16| {
            let owners = answers.iter().map(|(_, (view, _))| view.owner_of(slot));
            let mut named = owners.flatten().map(|node| node.endpoint.as_ref());
            let Some(owner) = named.next() else {
                return Named::Nobody;
            };
            let is_its = |at: &Address| owner.is_some_and(|its| is_at(at, its));
            let its_own = answers.iter().find(|(at, _)| is_its(at));
            match its_own.map(|(_, (view, _))| view.owner(slot)) {
                _ if named.any(|other| other != owner) => Named::Somebody,
                // Nobody knows where it is: it cannot be asked.
                _ if owner.is_none() => Named::Nobody,
                Some(None) => Named::Nobody,
                Some(Some(_)) => Named::Somebody,
                None => Named::Unasked,
            }
        };
        let was_unserved = std::mem::take(&mut self.unserved);
        let mut named = Named::Somebody;
        for slot in 0..SLOTS {
            // Neighbours mostly have the same ones.
            let is_as_before = |(_, (view, _)): &(&Address, (View, Info))| {
                let before = slot.checked_sub(1);
                before.is_some_and(|before| view.owner(before) == view.owner(slot))
            };
            if !answers.iter().all(is_as_before) {
                named = weigh_one(slot);
            }
            let is_unserved = match named {
                Named::Nobody => !self.healed.contains(&slot),
                Named::Unasked => was_unserved.binary_search(&slot).is_ok(),
                Named::Somebody => false,
            };
            if is_unserved {
                self.unserved.push(slot);
            }
        }
    }

    /// Gives the owners numbers, which say who they all are, and nothing of what they were before:
    /// a client may go on with a cursor at another worker, or another process, that has seen the
    /// Cluster change in other steps. If one of them comes or goes, all get other numbers. So a
    /// cursor from before means nobody, and its SCAN begins the Cluster anew: whose place in the
    /// order the new one has is not known there, and behind the cursor there might be keys that
    /// nobody has met.
    ///
    /// A number from before that is somebody's again hides that: with `n` owners, in `n` of 32,768
    /// cases.
    fn number(&mut self, mut owners: Vec<(String, ServerId)>) {
        owners.sort_unstable();
        let names: Vec<&str> = owners.iter().map(|(name, _)| &name[..]).collect();
        let all = Hash::Murmur.of(names.join(" ").as_bytes());
        let (from, count) = (self.numbers.start, self.numbers.len() as u32);
        let mut taken = HashSet::new();
        self.scan_order.clear();
        for (name, server) in owners {
            let first = Hash::Murmur.of(format!("{all} {name}").as_bytes()) % count;
            let mut numbers = (0..count).map(|more| from + ((first + more) % count) as u16);
            if let Some(number) = numbers.find(|number| taken.insert(*number)) {
                self.scan_order.push((number, server));
            }
        }
        self.scan_order.sort_unstable();
    }
}

/// Whom nodes name as a slot's owner.
#[derive(Clone, Copy)]
enum Named {
    Nobody,
    Somebody,
    /// One that was not asked itself.
    Unasked,
}

const NOBODY_SAYS: &str = "no node says who owns what";

/// By what the nodes are asked who owns what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Listing {
    #[default]
    Slots,
    /// Where that is refused: it is deprecated, and a user may have the right to the one and not to
    /// the other.
    Shards,
}

impl Listing {
    /// What is asked, and how far the node believes what it says.
    fn ask(self) -> [&'static [&'static str]; 2] {
        let which: &[&str] = match self {
            Listing::Slots => &["CLUSTER", "SLOTS"],
            Listing::Shards => &["CLUSTER", "SHARDS"],
        };
        [which, &["CLUSTER", "INFO"]]
    }

    fn read(self, answer: &[u8], asked: &str) -> Result<View, ViewError> {
        match self {
            Listing::Slots => View::from_slots(answer, asked),
            Listing::Shards => View::from_shards(answer, asked),
        }
    }

    fn other(self) -> Listing {
        match self {
            Listing::Slots => Listing::Shards,
            Listing::Shards => Listing::Slots,
        }
    }
}

/// Refreshes.
impl Engine {
    /// Who owns what in the pool of a server may have changed.
    pub(crate) fn doubt_owners(&mut self, server: ServerId) {
        let now = self.now;
        let pool = usize::from(self.server(server).pool);
        if let Some(cluster) = self.pools[pool].cluster_mut() {
            let by = cluster.refresh.not_before;
            cluster.want(by);
            // The first of all goes at once.
            if !cluster.is_known() {
                cluster.want(now);
            }
        }
    }

    /// The same, when a node is not there: another one may take over at any time.
    pub(crate) fn doubt_lost_owner(&mut self, server: ServerId) {
        let soon = self.now.plus_ms(REFRESH_DOWN_MS);
        let pool = usize::from(self.server(server).pool);
        let other = self.first_up(pool);
        if let Some(cluster) = self.pools[pool].cluster_mut() {
            cluster.want(soon);
            if !cluster.is_known() {
                // Any seed will say who it is.
                cluster.owners.fill(other);
                cluster.has_moved = true;
            }
        }
    }

    /// Asks the nodes of every Cluster of which that is due.
    pub(crate) fn refresh_clusters(&mut self) {
        for pool in 0..self.pools.len() {
            let now = self.now;
            let Some(cluster) = self.pools[pool].cluster() else {
                continue;
            };
            let refresh = &cluster.refresh;
            if refresh.wanted && refresh.since.is_none() && now >= refresh.not_before {
                self.begin_refresh(pool);
            }
        }
    }

    fn begin_refresh(&mut self, pool: usize) {
        let start = self.random() as usize;
        let again = self.now.plus_ms(REFRESH_DOWN_MS);
        let Some(cluster) = self.pools[pool].cluster() else {
            return;
        };
        let mut candidates = cluster.members.clone();
        candidates.extend(
            cluster
                .seeds
                .iter()
                .filter(|id| !cluster.members.contains(id)),
        );
        let first = start % candidates.len();
        candidates.rotate_left(first);
        // Who knows more may be among the others.
        candidates.sort_by_key(|id| cluster.behind.contains(id));
        if let Some(denier) = cluster.denied_by
            && let Some(place) = candidates.iter().position(|id| *id == denier)
        {
            candidates.swap(0, place);
        }
        let answering = candidates
            .into_iter()
            .filter_map(|server| self.link_that_answers(server));
        let links: Vec<Key> = answering.take(ASKED_MAX).collect();
        let now = self.now;
        let Some(cluster) = self.pools[pool].cluster_mut() else {
            return;
        };
        if links.is_empty() {
            // Of those that owned slots none may be left.
            cluster.refresh.not_before = again;
            let all = [&cluster.seeds[..], &cluster.members].concat();
            self.wake_unsure(pool, now);
            for other in all {
                self.reach(other);
            }
            return;
        }
        cluster.healed.clear();
        cluster.denied_by = None;
        let ticket = cluster.refresh.ticket.wrapping_add(1);
        let listing = cluster.refresh.listing;
        cluster.refresh = Refresh {
            down_since: cluster.refresh.down_since,
            listing,
            ticket,
            since: Some(now),
            missing: links.len(),
            ..Refresh::default()
        };
        self.counters.topology_refreshes += 1;
        let mut bytes = Vec::new();
        for request in listing.ask() {
            encode::request(&mut bytes, request);
        }
        for link in links {
            let duty = Duty::Owners {
                ticket,
                listed: None,
            };
            self.put_ours(link, &bytes, duty);
        }
    }

    /// A link on which a node can be asked who owns what. Where the clients bring the password, it
    /// may be any user's.
    pub(crate) fn link_that_answers(&self, server: ServerId) -> Option<Key> {
        let answers = |link: &Link| {
            link.key.server == server
                && link.role == Role::Shared
                && link.is_up()
                && link.takes
                && !self.is_silent(link, SILENT_MS)
        };
        let mut links = self.links.iter();
        links.find(|(_, link)| answers(link)).map(|(key, _)| key)
    }

    /// Sees to it that there is a link to a server, or an attempt at one.
    pub(crate) fn reach(&mut self, server: ServerId) {
        self.servers[usize::from(server.0)].gone = false;
        let kind = self.first_link(server);
        let known = self.shared.contains_key(&kind);
        if let Some(link) = self.shared_link(kind).filter(|_| !known) {
            self.connect(link);
        }
    }

    /// A node has said who owns what.
    pub(crate) fn take_owners(&mut self, link: Key, ticket: u32, listed: &[u8], info: &[u8]) {
        let Some(server) = self.links.get(link).map(|link| link.key.server) else {
            return;
        };
        let pool = usize::from(self.server(server).pool);
        let host = self.host_of(server);
        let address_map = self.pools[pool].address_map.clone();
        let Some(cluster) = self.pools[pool].cluster_mut() else {
            return;
        };
        let refresh = &mut cluster.refresh;
        if refresh.since.is_none() || refresh.ticket != ticket {
            return;
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
                refresh.said_by.push(server);
            }
            Err(error) => refresh.wrong = Some(error.to_string()),
        }
        if refresh.missing == 0 {
            self.end_refresh(pool);
        }
    }

    /// Looks at what has been under way for long, and at nodes that are silent.
    pub(crate) fn tick_clusters(&mut self) {
        for pool in 0..self.pools.len() {
            let now = self.now;
            let Some(cluster) = self.pools[pool].cluster() else {
                continue;
            };
            let refresh = &cluster.refresh;
            match refresh.since {
                Some(since) if now.since_ms(since) >= ANSWERS_MS => self.end_refresh(pool),
                None if now.since_ms(refresh.not_before) >= u64::from(self.quiet_ms(pool)) => {
                    self.doubt_owners(cluster.servers[0]);
                }
                _ => {}
            }
            self.lose_replaced(pool);
            self.wake_at_rest(pool);
            self.wake_for_nodes(pool);
            let since = self.pools[pool].cluster().and_then(|its| its.unsure_since);
            if since.is_some_and(|since| now.since_ms(since) >= NODES_MS) {
                self.wake_unsure(pool, now);
            }
            self.choose_home(pool);
        }
    }

    /// Whether a session waits until it is known which nodes there are.
    pub(crate) fn waits_for_nodes(&mut self, key: Key, pool: usize) -> bool {
        let now = self.now;
        let Some(cluster) = self.pools[pool].cluster_mut() else {
            return false;
        };
        let since = *cluster.awaited_since.get_or_insert(now);
        let waits = now.since_ms(since) < NODES_MS;
        if waits {
            cluster.awaiting.push(key);
            self.hold(key, Flags::HOLD_LINK);
        }
        waits
    }

    /// What a session is told that has waited for nothing: why, if anybody has said that, or cannot
    /// be asked.
    pub(crate) fn no_nodes(&self, pool: usize) -> String {
        let said = self.pools[pool].cluster();
        let said = said.and_then(|cluster| cluster.wrong.clone());
        let unreached = || {
            let server = self.pools.home_of(pool);
            let link = self
                .links
                .get(*self.shared.get(&self.first_link(server))?)?;
            let why = || {
                format!(
                    "no connection to {}: {}",
                    self.server(server).label,
                    link.reason
                )
            };
            (!link.is_up() && link.failures > 0).then(why)
        };
        match said.or_else(unreached) {
            Some(why) => format!("{NOT_KNOWN_YET} ({why}): try again"),
            None => format!("{NOT_KNOWN_YET}: try again"),
        }
    }

    /// That is known now, or has been waited for long enough.
    fn wake_for_nodes(&mut self, pool: usize) {
        let now = self.now;
        let Some(cluster) = self.pools[pool].cluster_mut() else {
            return;
        };
        let is_over = |since| now.since_ms(since) >= NODES_MS;
        if cluster.is_known() || cluster.awaited_since.is_some_and(is_over) {
            for session in std::mem::take(&mut cluster.awaiting) {
                self.release(session, Flags::HOLD_LINK);
            }
        }
    }

    /// Whether a session that asks for something of all owners waits until the nodes have said once
    /// more who those are.
    pub(crate) fn waits_for_owners(&mut self, key: Key, pool: usize) -> bool {
        let parts = self.pools.parts_of(pool).to_vec();
        let mut parts = parts.into_iter().map(usize::from);
        parts.any(|part| self.waits_for_owners_of(key, part))
    }

    fn waits_for_owners_of(&mut self, key: Key, part: usize) -> bool {
        let now = self.now;
        let Some(cluster) = self.pools[part].cluster_mut() else {
            return false;
        };
        let is_fresh = |at| now.since_ms(at) < CONFIRMED_MS;
        if cluster.asked_at.is_some_and(is_fresh) {
            return false;
        }
        cluster.unsure_since.get_or_insert(now);
        cluster.unsure.push(key);
        cluster.want(cluster.refresh.not_before);
        self.hold(key, Flags::HOLD_LINK);
        true
    }

    /// The nodes were asked then, and have said something or not: who has waited for that goes by
    /// what is known.
    fn wake_unsure(&mut self, pool: usize, asked_at: Time) {
        let Some(cluster) = self.pools[pool].cluster_mut() else {
            return;
        };
        cluster.asked_at = Some(asked_at);
        cluster.unsure_since = None;
        for session in std::mem::take(&mut cluster.unsure) {
            self.release(session, Flags::HOLD_LINK);
        }
    }

    /// How long nothing is asked if nothing happens.
    fn quiet_ms(&self, pool: usize) -> u32 {
        if self.hears_events(pool) {
            // A new owner sends notifications that no session gets until it is known.
            return REFRESH_MS;
        }
        let pool = &self.pools[pool];
        let lacks = |owner: &ServerId| pool.readers.as_ref().is_some_and(|its| its.lacks(*owner));
        match pool.servers().iter().any(lacks) {
            // Replicas come later than primaries where a Cluster has just been made.
            true => REFRESH_MS,
            false => REFRESH_QUIET_MS,
        }
    }

    /// Whether a link's server may have been replaced: it owes replies, and nothing comes.
    pub(crate) fn is_silent(&self, link: &Link, ms: u64) -> bool {
        link.heeds && owes_for(link, self.now, ms)
    }

    /// Whether a node owns no slots, as far as is known.
    pub(crate) fn owns_nothing(&self, server: ServerId) -> bool {
        let pool = &self.pools[usize::from(self.server(server).pool)];
        let cluster = pool.cluster();
        self.server(server).replica_of.is_none()
            && cluster.is_some_and(|cluster| !cluster.servers.contains(&server))
    }

    /// Who took over from a node: if that owns nothing any more, whom it follows, as the nodes say
    /// it.
    pub(crate) fn heir_of(&self, server: ServerId) -> Option<ServerId> {
        let cluster = self.pool_of(server).cluster()?;
        let follows = cluster.primaries.get(&server).copied();
        follows.filter(|_| self.owns_nothing(server))
    }

    /// Whether it is just being found out who took over from a link's server, which was lost a
    /// moment ago, or who else can be read.
    pub(crate) fn awaits_owners(&self, link: &Link) -> bool {
        let is_fresh = |at| self.now.since_ms(at) < TAKEN_OVER_MS;
        let pool = &self.pools[usize::from(self.server(link.key.server).pool)];
        let cluster = pool.cluster();
        let is_asked =
            |cluster: &Cluster| cluster.refresh.wanted || cluster.refresh.since.is_some();
        link.lost_at.is_some_and(is_fresh) && cluster.is_some_and(is_asked)
            || self.awaits_reader(link.key.server)
    }

    /// Who waits at a link that rests waits no more: who owns what is known, or is not found out.
    pub(crate) fn wake_at_rest(&mut self, pool: usize) {
        for key in self.links.keys() {
            let rests = |link: &Link| {
                (link.is_late || matches!(link.state, State::Resting { .. }))
                    && usize::from(self.server(link.key.server).pool) == pool
                    && !self.awaits_owners(link)
            };
            if self.links.get(key).is_some_and(rests) {
                self.wake_waiters(key);
            }
        }
    }

    fn end_refresh(&mut self, pool: usize) {
        let now = self.now;
        let Some(cluster) = self.pools[pool].cluster_mut() else {
            return;
        };
        let refresh = &mut cluster.refresh;
        let asked_at = refresh.since.take().unwrap_or(now);
        let answers = std::mem::take(&mut refresh.answers);
        let said_by = std::mem::take(&mut refresh.said_by);
        let wrong = refresh.wrong.take();
        // As long as one node answers, it is right for that one.
        if answers.is_empty() && std::mem::take(&mut refresh.is_refused) {
            refresh.listing = refresh.listing.other();
        }
        let choice = cluster::choose(&cluster.known, &answers);
        let strangers: Vec<ServerId> = choice.strangers.iter().map(|at| said_by[*at]).collect();
        let ours = said_by.iter().copied().zip(answers);
        let ours = ours.filter(|(id, _)| !strangers.contains(id));
        let (members, answers): (Vec<ServerId>, Vec<_>) = ours.unzip();
        let is_ok = answers.iter().any(|(_, info)| info.ok);
        // A Cluster that was never changed has the epoch 0.
        let epoch = choice.is_known.then_some(choice.epoch.max(1));
        let is_news = |_: &View| cluster.is_news(epoch, &members, is_ok, now);
        if let Some(view) = choice.view.filter(is_news) {
            let was_known = cluster.is_known();
            cluster.epoch = choice.epoch.max(1);
            cluster.known = view.ids().map(str::to_owned).collect();
            cluster.wrong = None;
            let ours = members.iter().zip(answers);
            let ours: Vec<_> = ours
                .map(|(id, answer)| (&self.servers[usize::from(id.0)].settings.address, answer))
                .collect();
            cluster.weigh(&ours);
            cluster.weighed_at = asked_at;
            cluster.is_ok = is_ok;
            self.believe(pool, &view, was_known);
        } else if let Some(wrong) = wrong {
            cluster.wrong = Some(wrong.clone());
            // Nodes may be wrong in several ways, in turn: that is one event.
            let told = self.told_of_topology.get(&pool);
            if !told.is_some_and(|text| text.starts_with(NOBODY_SAYS)) {
                self.tell_topology(pool, format!("{NOBODY_SAYS}: {wrong}"));
            }
        }
        self.note_strangers(pool, &said_by, strangers);
        let all_there = self.all_owners_are_up(pool);
        if let Some(cluster) = self.pools[pool].cluster_mut() {
            // Who the owners are may still have to be said.
            let all_there = all_there && cluster.is_known();
            let refresh = &mut cluster.refresh;
            refresh.wanted |= !all_there || cluster.behind_since.is_some();
            refresh.down_since = (!all_there).then(|| refresh.down_since.unwrap_or(now));
            let pause = match refresh.down_since {
                Some(since) if now.since_ms(since) < FAILOVER_MS => REFRESH_DOWN_MS,
                _ => REFRESH_MS,
            };
            refresh.not_before = now.plus_ms(pause);
        }
        self.wake_at_rest(pool);
        self.wake_for_nodes(pool);
        self.wake_unsure(pool, asked_at);
    }

    /// Tells of whoever answers for another Cluster: once, for not all nodes are asked each time.
    fn note_strangers(&mut self, pool: usize, answered: &[ServerId], strangers: Vec<ServerId>) {
        let Some(cluster) = self.pools[pool].cluster_mut() else {
            return;
        };
        cluster
            .strangers
            .retain(|id| strangers.contains(id) || !answered.contains(id));
        let new = strangers.into_iter();
        let new: Vec<_> = new.filter(|id| cluster.strangers.insert(*id)).collect();
        for server in new {
            let text = format!(
                "{} answers for another Cluster and is not heeded: was it named by mistake, or has it the address of a node that is gone?",
                self.server(server).label
            );
            self.say_topology(pool, text);
        }
    }

    fn all_owners_are_up(&self, pool: usize) -> bool {
        let mut servers = self.pools[pool].servers().iter();
        servers.all(|server| self.standing(*server) >= Standing::Refuses)
    }

    /// Something has happened. It may again, in the same words, and is news each time.
    pub(crate) fn tell_event(&mut self, pool: usize, text: String) {
        self.told_of_topology.remove(&pool);
        self.say_topology(pool, text);
    }

    /// How things are: once, until they are otherwise.
    pub(crate) fn tell_topology(&mut self, pool: usize, text: String) {
        let told = self.told_of_topology.insert(pool, text.clone());
        if told.as_ref() != Some(&text) {
            self.say_topology(pool, text);
        }
    }

    fn say_topology(&mut self, pool: usize, text: String) {
        let of = &self.settings.pools[usize::from(self.pools[pool].whole)];
        let text = match self.prefix_of(pool) {
            Some(prefix) => format!("behind `{prefix}`: {text}"),
            None => text,
        };
        let pool = of.name.clone();
        self.tell(Event::Topology { pool, text });
    }

    /// How the keys of a part begin. `None`: as they like.
    fn prefix_of(&self, part: usize) -> Option<String> {
        let whole = usize::from(self.pools[part].whole);
        let place = |index: &u16| usize::from(*index) == part;
        let place = self.pools.parts_of(whole).iter().position(place)?;
        let PoolKind::ByPrefix { parts } = &self.settings.pools[whole].kind else {
            return None;
        };
        let prefix = &parts.get(place).filter(|_| place > 0)?.prefix;
        Some(String::from_utf8_lossy(prefix).into_owned())
    }
}

/// What follows from it.
impl Engine {
    /// From now on this is who owns what.
    fn believe(&mut self, pool: usize, view: &View, was_known: bool) {
        self.stir_put_off();
        let now = self.now;
        let ids: Vec<Option<ServerId>> = view
            .nodes()
            .iter()
            .map(|node| self.server_at(pool, node.endpoint.as_ref()?))
            .collect();
        let id_of = |index: u16| ids.get(usize::from(index)).copied().flatten();
        self.warn_of_shared_address(pool, &ids);
        let Some(cluster) = self.pools[pool].cluster_mut() else {
            return;
        };
        let mut moved: BTreeSet<(ServerId, ServerId)> = BTreeSet::new();
        for slot in 0..SLOTS {
            // Whose slot nobody has now may come back, and says otherwise what became of it.
            let Some(owner) = view.owner(slot).and_then(id_of) else {
                continue;
            };
            let old = &mut cluster.owners[usize::from(slot)];
            if *old == owner || cluster.healed.contains(&slot) {
                continue;
            }
            moved.insert((*old, owner));
            *old = owner;
            cluster.has_moved = true;
        }
        let nodes = view.nodes().iter().zip(&ids);
        let named = nodes.filter(|(node, _)| !node.id.is_empty());
        let names = named.filter_map(|(node, id)| Some(((*id)?, node.id.clone())));
        cluster.names = names.collect();
        let owned = std::mem::take(&mut cluster.servers);
        cluster.list_owners(&self.servers);
        // A redirect may have moved the last slot of a node before this answer.
        cluster.has_moved |= cluster.servers != owned;
        // Who is spoken of follows another one now, or owns something again.
        cluster.replaced.retain(|(id, _)| !ids.contains(&Some(*id)));
        for (from, to) in &moved {
            // By its replica, and it does not follow that one now. A Cluster that has just been made
            // has named no replicas yet: then by a node that owned nothing.
            let follows = match cluster.primaries.get(to) {
                Some(of) => of == from,
                None => !owned.contains(to),
            };
            let is_replaced = follows && !ids.contains(&Some(*from));
            if is_replaced && !cluster.replaced.iter().any(|(id, _)| id == from) {
                cluster.replaced.push((*from, now));
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
        cluster.primaries = pairs.collect();
        let untold = cluster.take_untold();
        let replicas = followers.into_iter().map(|(at, _, of)| (at, of)).collect();
        let owners: HashSet<ServerId> = cluster.servers.iter().copied().collect();
        cluster.members = ids.into_iter().flatten().collect();
        let (members, seen) = (cluster.members.clone(), &owners);
        let kept: HashSet<ServerId> = members.iter().chain(seen).copied().collect();
        let had: Vec<ServerId> = (0..self.servers.len() as u16).map(ServerId).collect();
        self.pools.list_servers(pool);
        if !was_known {
            let count = owners.len();
            self.tell_topology(pool, format!("{count} nodes own its slots"));
        }
        for ((from, to), count) in untold.into_iter().filter(|_| was_known) {
            let (from, to) = (&self.server(from).label, &self.server(to).label);
            let text = format!("{count} slots moved from {from} to {to}");
            self.tell_event(pool, text);
        }
        // The first answer moves no slot: no session reads to track before it.
        if was_known && !moved.is_empty() {
            let whole = self.pools[pool].whole;
            self.trackers.note_moved(whole);
        }
        let from: BTreeSet<ServerId> = moved.into_iter().map(|(from, _)| from).collect();
        for server in from {
            self.settle_before_leaving(server);
        }
        self.choose_home(pool);
        for server in had {
            let state = self.server(server);
            let is_others = usize::from(state.pool) != pool || state.replica_of.is_some();
            if !is_others && !state.gone && !kept.contains(&server) {
                self.retire(server);
            }
        }
        for server in kept {
            self.servers[usize::from(server.0)].gone = false;
        }
        for server in owners {
            self.reach(server);
        }
        self.know_replicas(pool, replicas, |_| true);
    }

    /// Tells of nodes that the address map leads to one address.
    fn warn_of_shared_address(&mut self, pool: usize, nodes: &[Option<ServerId>]) {
        if self.pools[pool].address_map.is_empty() {
            return;
        }
        let mut seen = HashSet::new();
        let mut nodes = nodes.iter().flatten();
        if let Some(shared) = nodes.find(|id| !seen.insert(**id)) {
            let label = &self.server(*shared).label;
            let text = format!(
                "address-map leads several nodes to {label}: each needs an address of its own"
            );
            self.tell_topology(pool, text);
        }
    }

    /// Whether a refusal is the last word on a slot: nobody serves it, says the node, and the
    /// others know of no other owner. A failover leaves no slot without one, whoever is asked, nor
    /// does a move, but where one node is told to give a slot up before the other is told to take
    /// it. So it is not waited for, and whoever asked gets these words as from the node itself.
    /// They come from the node each time: as soon as that has heard of an owner it says MOVED.
    pub(crate) fn is_nobodys(&mut self, server: ServerId, said: &[u8], slot: Option<u16>) -> bool {
        let Some(slot) = slot.filter(|_| said.trim_ascii_end() == NOT_SERVED) else {
            return false;
        };
        let (now, pool) = (self.now, usize::from(self.server(server).pool));
        let Some(cluster) = self.pools[pool].cluster_mut() else {
            return false;
        };
        let is_nobodys = now.since_ms(cluster.weighed_at) < CONFIRMED_MS
            && cluster.unserved.binary_search(&slot).is_ok();
        cluster.denied_by = Some(server);
        if is_nobodys {
            // Somebody may take it at any time.
            self.doubt_owners(server);
        }
        is_nobodys
    }

    /// Whose a slot is, in a Cluster.
    pub(crate) fn owner_of_slot(&self, pool: usize, slot: u16) -> Option<ServerId> {
        let cluster = self.pools[pool].cluster();
        cluster.map(|cluster| cluster.owner_of_slot(slot))
    }

    /// A node has said that this slot is another one's. Whether that was news.
    pub(crate) fn heal_slot(&mut self, pool: usize, slot: u16, owner: ServerId) -> bool {
        let Some(cluster) = self.pools[pool].cluster_mut() else {
            return false;
        };
        cluster.healed.insert(slot);
        cluster.unserved.retain(|its| *its != slot);
        let at = &mut cluster.owners[usize::from(slot)];
        let old = std::mem::replace(at, owner);
        if old == owner {
            return false;
        }
        cluster.has_moved = true;
        // Who has lost its last slot is seen at the next refresh.
        if !cluster.servers.contains(&owner) {
            cluster.list_owners(&self.servers);
            self.pools.list_servers(pool);
        }
        if !self.lost_slots.contains(&old) {
            self.lost_slots.push(old);
        }
        let whole = self.pools[pool].whole;
        self.trackers.note_moved(whole);
        self.doubt_owners(owner);
        self.stir_put_off();
        true
    }

    /// Once for all that one read has brought: in the middle of it nobody asks anything.
    pub(crate) fn settle_lost_slots(&mut self) {
        for server in std::mem::take(&mut self.lost_slots) {
            self.settle_before_leaving(server);
        }
    }

    /// Chooses the node for everything that is published, and moves hubs to it. Any node will do,
    /// for the nodes tell each other. It stays the same as long as it can: a move loses messages.
    /// All workers take the same node, for servers count the subscribers of their own.
    fn choose_home(&mut self, pool: usize) {
        let directory = self.directory.clone();
        let mut homes = directory.homes();
        let home = self.pools.home_of(pool);
        let label = |server: ServerId| &self.server(server).label;
        let owners = self.pools[pool].servers();
        let serves = |server: ServerId| owners.contains(&server) && self.is_there(server);
        let agreed = homes.get(&(pool as u16));
        let named = owners.iter().find(|owner| Some(label(**owner)) == agreed);
        let next = match named.copied() {
            // A worker that has just begun may have no link to it yet.
            Some(agreed) if self.may_be_there(agreed) => agreed,
            _ if serves(home) => home,
            _ => self.first_up(pool),
        };
        // If this worker does not know the agreed node, another one may know newer owners.
        let leaves_it = agreed.is_some() && named.is_none() && next == home;
        let is_known = self.pools[pool].cluster().is_some_and(Cluster::is_known);
        if is_known && !leaves_it && serves(next) && Some(label(next)) != agreed {
            homes.insert(pool as u16, label(next).clone());
        }
        drop(homes);
        let Some(cluster) = self.pools[pool].cluster_mut() else {
            return;
        };
        let home = std::mem::replace(&mut cluster.home, next);
        if home != next {
            self.move_hubs(home, next);
        }
    }

    /// Something of what a server owned is another one's: who has asked it anything waits until
    /// that is answered. What it asks next would overtake it.
    fn settle_before_leaving(&mut self, server: ServerId) {
        let mut asked = HashSet::new();
        for (_, link) in self.links.iter() {
            let spreads = |by| self.tracks_several(by);
            let shared = link.role.is_manys() || spreads(link.role.captor());
            if link.key.server == server && shared {
                asked.extend(link.ledger.iter().map(|entry| entry.session));
            }
        }
        for session in asked {
            if self.sessions.get(session).is_some() {
                self.hold_until_caught_up(session);
            }
        }
        self.lose_watches(server);
    }

    /// Whose keys are watched at a node that does not have them any more: EXEC will say that they
    /// may have changed.
    fn lose_watches(&mut self, server: ServerId) {
        let pool = usize::from(self.server(server).pool);
        let Some(cluster) = self.pools[pool].cluster() else {
            return;
        };
        let is_lost = |group: &Group| {
            usize::from(group.pool) == pool && cluster.owner_of_slot(group.number) != server
        };
        let lost = |session: &Session| {
            let watched = session
                .rare
                .as_deref()
                .map_or(&[][..], |rare| &rare.watched);
            session.pins.any(Pins::WATCH) && session.server == server && watched.iter().any(is_lost)
        };
        let sessions = self.sessions.iter();
        let lost: Vec<Key> = sessions
            .filter(|(_, session)| lost(session))
            .map(|(key, _)| key)
            .collect();
        for key in lost {
            self.lose_watch(key);
        }
    }

    /// Gives up links to nodes that were replaced by their replicas and are silent. A node that is
    /// alive tells sessions that wait there in a blocking command; a frozen one would keep them
    /// waiting for ever, so they are closed once no node has named it for [`REPLACED_MS`].
    fn lose_replaced(&mut self, pool: usize) {
        let now = self.now;
        let Some(cluster) = self.pools[pool].cluster_mut() else {
            return;
        };
        let replaced = cluster.replaced.clone();
        let is_young = |since: Time| now.since_ms(since) < REPLACED_MS;
        cluster.replaced.retain(|(_, since)| is_young(*since));
        for (server, since) in replaced {
            for key in self.links.keys() {
                let Some(link) = self.links.get(key).filter(|link| link.key.server == server)
                else {
                    continue;
                };
                let waits_in_vain = link.is_up() && link.waits && !is_young(since);
                if waits_in_vain || self.is_silent(link, REPLACED_MS) {
                    self.lose_link(key, "it was replaced while it owed replies");
                }
            }
        }
    }

    /// The server at an address that a node has named in a redirect. `None`: no node has named it
    /// in an answer about the topology. Then respool asks `by`, which named it, and sends nothing
    /// to that address meanwhile. Nodes are asked for the address as it was `said`; the address map
    /// says where the server is reached.
    pub(crate) fn known_server_at(
        &mut self,
        by: ServerId,
        said: Endpoint,
        ask: bool,
    ) -> Option<ServerId> {
        let pool = usize::from(self.server(by).pool);
        let now = self.now;
        let at = self.pools[pool].address_map.apply(&said);
        let seeds = self.pools[pool].cluster()?.seeds.as_slice();
        // The configuration names the seeds, whether nodes speak of them or not.
        let is_known = |(index, server): &(ServerId, &Server)| {
            usize::from(server.pool) == pool
                && server.replica_of.is_none()
                && (!server.gone || seeds.contains(index))
                && is_at(&server.settings.address, &at)
        };
        let mut servers = (0..).map(ServerId).zip(&self.servers);
        if let Some((known, _)) = servers.find(is_known) {
            self.servers[usize::from(known.0)].gone = false;
            return Some(known);
        }
        let cluster = self.pools[pool].cluster_mut()?;
        // No node answers questions about all nodes, so the redirect alone decides. The redirect of
        // a request that runs code is proven before.
        let is_sole_word = cluster.introductions.is_refused(now) && (ask || cluster.epoch == 0);
        if is_sole_word || cluster.introductions.is_named(&said, now) {
            return self.server_at(pool, &at);
        }
        cluster.denied_by = Some(by);
        if cluster.introductions.seek(said, now) {
            self.ask_for_nodes(by);
        }
        None
    }

    fn ask_for_nodes(&mut self, server: ServerId) {
        let Some(link) = self.link_that_answers(server) else {
            return;
        };
        let mut bytes = Vec::new();
        for request in [["CLUSTER", "SHARDS"], ["CLUSTER", "NODES"]] {
            encode::request(&mut bytes, &request);
        }
        self.put_ours(link, &bytes, Duty::Nodes { shards: None });
    }

    /// A node has said which nodes there are.
    pub(crate) fn take_nodes(&mut self, link: Key, shards: &[u8], nodes: &[u8]) {
        let Some(server) = self.links.get(link).map(|link| link.key.server) else {
            return;
        };
        let (now, host) = (self.now, self.host_of(server));
        let pool = usize::from(self.server(server).pool);
        if let Some(cluster) = self.pools[pool].cluster_mut() {
            cluster.introductions.take(shards, nodes, &host, now);
        }
        self.stir_put_off();
    }

    fn host_of(&self, server: ServerId) -> String {
        match &self.server(server).settings.address {
            Address::Tcp { host, .. } => host.clone(),
            Address::Unix(_) => String::from("localhost"),
        }
    }

    /// The server of a pool at this address; a new one, if there is none. `None` at
    /// [`SERVERS_MAX`]. Pass only addresses that a node has given: respool sends a new server the
    /// credentials of the pool.
    pub(crate) fn server_at(&mut self, pool: usize, at: &Endpoint) -> Option<ServerId> {
        let address = Address::Tcp {
            host: at.host.clone(),
            port: at.port,
        };
        let is_it = |server: &Server| {
            usize::from(server.pool) == pool
                && server.replica_of.is_none()
                && server.settings.address == address
        };
        if let Some(index) = self.servers.iter().position(is_it) {
            // Nobody else gets its place.
            self.servers[index].gone = false;
            return Some(ServerId(index as u16));
        }
        let settings = ServerSettings {
            address,
            ..self.pools[pool].cluster()?.template.clone()
        };
        let server = Server::new(pool as u16, &settings);
        self.add_server(server)
    }

    /// A place for one more server. `None` at [`SERVERS_MAX`].
    pub(crate) fn add_server(&mut self, server: Server) -> Option<ServerId> {
        if let Some(index) = self.free_server() {
            self.servers[usize::from(index.0)] = server;
            self.learned.forget_server(index);
            for pool in 0..self.pools.len() {
                if let Some(cluster) = self.pools[pool].cluster_mut() {
                    cluster.strangers.remove(&index);
                    cluster.behind.remove(&index);
                }
            }
            return Some(index);
        }
        if self.servers.len() >= SERVERS_MAX {
            return None;
        }
        self.servers.push(server);
        Some(ServerId((self.servers.len() - 1) as u16))
    }

    /// The place of a server that is gone, and that nothing points to any more. Looked for when
    /// there are many.
    fn free_server(&self) -> Option<ServerId> {
        const MANY: usize = 256;
        if self.servers.len() < MANY {
            return None;
        }
        let free = |id: &ServerId| {
            self.server(*id).gone
                && !self.somebody_waits()
                && self.links.iter().all(|(_, link)| link.key.server != *id)
                && self
                    .sessions
                    .iter()
                    .all(|(_, session)| session.server != *id)
                && !self.hubs.iter().any(|hub| hub.needs(*id))
                && self.pools.iter().all(|pool| {
                    let holds = |cluster: &Cluster| {
                        let mut all = cluster.seeds.iter().chain(&cluster.owners);
                        all.any(|its| its == id) || cluster.told.contains(id)
                    };
                    let reads = pool.readers.as_ref().is_some_and(|its| its.holds(*id));
                    !reads && !pool.cluster().is_some_and(holds)
                })
        };
        (0..self.servers.len() as u16).map(ServerId).find(free)
    }

    /// A server is a member no more: nobody stays there who has no reason to.
    fn retire(&mut self, server: ServerId) {
        let state = &mut self.servers[usize::from(server.0)];
        state.gone = true;
        let (pool, label) = (usize::from(state.pool), state.label.clone());
        self.tell_topology(pool, format!("no node speaks of {label} any more"));
        self.turn_riders_home(server);
    }

    /// Who rides on links to a server that is gone, and has no reason to stay there.
    pub(crate) fn turn_riders_home(&mut self, server: ServerId) {
        let home = self.pools.home_of(usize::from(self.server(server).pool));
        let rides = |session: &Session| {
            session.server == server && !session.pins.bind() && session.flags.any(Flags::ROUTED)
        };
        let riders = self.sessions.iter();
        let riders: Vec<Key> = riders
            .filter(|(_, session)| rides(session))
            .map(|(key, _)| key)
            .collect();
        for rider in riders {
            if self.queued_group(rider).is_none() {
                self.turn(rider, home);
            }
        }
    }
}

fn is_at(address: &Address, at: &Endpoint) -> bool {
    matches!(address, Address::Tcp { host, port } if *host == at.host && *port == at.port)
}

/// Whether a link owes replies, and nothing has come for so long.
pub(crate) fn owes_for(link: &Link, now: Time, ms: u64) -> bool {
    link.is_up() && link.in_flight() > 0 && !link.waits && now.since_ms(link.progress) >= ms
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of so many nodes, none of which owns anything yet.
    fn cluster_of(nodes: u16, numbers: Range<u16>) -> (Cluster, Vec<Server>, Vec<ServerId>) {
        let seed = |port| ServerSettings {
            address: Address::Tcp {
                host: "node".to_owned(),
                port,
            },
            credentials: None,
            db: 0,
        };
        let seeds: Vec<ServerSettings> = (1..=nodes).map(seed).collect();
        let servers: Vec<Server> = seeds.iter().map(|seed| Server::new(0, seed)).collect();
        let ids: Vec<ServerId> = (0..nodes).map(ServerId).collect();
        let cluster = Cluster::new(&seeds, ids.clone(), numbers);
        (cluster, servers, ids)
    }

    /// What a node says of its own slots counts more than what others say of them.
    #[test]
    fn a_slot_is_nobodys_if_no_node_names_an_owner_or_that_one_does_not_name_itself() {
        let (mut cluster, servers, _) = cluster_of(3, 0..NUMBERS);
        let at = |node: usize| &servers[node].settings.address;
        // Whom a node names as the owner of each of the first slots; the others are the first
        // node's.
        let answer = |owners: [Option<u16>; 4]| {
            let node = |port| {
                let host = "node".to_owned();
                cluster::Node::primary("", Endpoint { host, port })
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
        // The third slot is that of a node that is not asked, and of the fourth they name different
        // ones.
        let first = || answer([None, None, Some(2), None]);
        let second = || answer([None, Some(0), Some(2), Some(2)]);
        let third = || answer([None, None, None, Some(1)]);
        cluster.weigh(&[(at(0), first()), (at(1), second())]);
        assert_eq!(cluster.unserved, [0, 1]);
        cluster.weigh(&[(at(0), first()), (at(1), second()), (at(2), third())]);
        assert_eq!(cluster.unserved, [0, 1, 2]);
        // It was not asked again.
        cluster.weigh(&[(at(0), first()), (at(1), second())]);
        assert_eq!(cluster.unserved, [0, 1, 2]);
        // A node has said since who has it.
        cluster.healed.insert(0);
        let itself = answer([None, Some(0), Some(2), None]);
        cluster.weigh(&[(at(2), itself)]);
        assert_eq!(cluster.unserved, [1, 3]);
    }

    /// Others have the numbers around them.
    #[test]
    fn scan_knows_nodes_by_the_numbers_that_are_left_to_their_cluster() {
        let (mut cluster, servers, ids) = cluster_of(12, 7..17);
        // The last two own nothing yet.
        for (slot, owner) in cluster.owners.iter_mut().enumerate() {
            *owner = ids[slot % 10];
        }
        cluster.list_owners(&servers);
        let numbers = |cluster: &Cluster| -> Vec<u16> {
            let numbered = cluster.scan_order().iter();
            numbered.map(|(number, _)| *number).collect()
        };
        assert_eq!(numbers(&cluster), (7..17).collect::<Vec<_>>());
        cluster.owners.fill(ids[10]);
        cluster.list_owners(&servers);
        assert!((7..17).contains(&numbers(&cluster)[0]));
    }

    /// Whoever met them in other steps has the same numbers; and while an owner is another one,
    /// none that it had means anybody.
    #[test]
    fn scan_knows_nodes_by_numbers_that_say_nothing_of_what_was_before() {
        let (mut cluster, servers, ids) = cluster_of(200, 0..u16::MAX);
        let numbered = |cluster: &Cluster| cluster.scan_order().to_vec();
        let own = |cluster: &mut Cluster, nodes: Range<usize>| {
            for (slot, owner) in cluster.owners.iter_mut().enumerate() {
                *owner = ids[nodes.start + slot % nodes.len()];
            }
            cluster.list_owners(&servers);
            assert_eq!(cluster.scan_order().len(), nodes.len());
        };
        own(&mut cluster, 0..3);
        let before = numbered(&cluster);
        // A replica takes over.
        own(&mut cluster, 1..4);
        let after = numbered(&cluster);
        let was_there = |(number, _): &(u16, ServerId)| before.iter().any(|(its, _)| its == number);
        assert!(!after.iter().any(was_there));
        own(&mut cluster, 0..200);
        assert!(numbered(&cluster).windows(2).all(|two| two[0].0 < two[1].0));
        own(&mut cluster, 0..3);
        assert_eq!(numbered(&cluster), before);
    }
}
