//! Primaries behind Sentinels: the address of each primary, at this moment.
//!
//! ```text
//!   Sentinel ──┐  +switch-master, +promoted-slave: at once; a replica told to: a tick later
//!   Sentinel ──┼──────────────────────────────────────────► the address of the server
//!   Sentinel ──┘  surveys, every 10 seconds ──choose──►      that has the name
//! ```
//!
//! To the rest of the engine such a primary is a server like any other. When its address changes,
//! its links are lost, as they are when a server restarts, and connect to the new address. The
//! handshake proves the role: a server that reports the role of a replica is not used.

use respool_protocol::cluster::Endpoint;
use respool_protocol::encode::Version;
use respool_protocol::sentinel::{
    FailoverEvent, Message, Primary, Replica, SURVEY_ANSWERS, Survey, ask_events, ask_survey,
};

use crate::base::handle::{CONFIGURED, LinkId};
use crate::base::limits::SENTINELS_WATCHED_MAX;
use crate::base::settings::{Address, Credentials, ServerSettings};
use crate::base::time::{TICK_MS, Time};
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::discovery::DiscoveryCompletion;
use crate::data_plane::flush_rule::ServerLoad;
use crate::data_plane::link::{Link, LinkKind, LinkRole, LinkState};
use crate::data_plane::server::Server;
use crate::data_plane::slow_readers::DEFAULT_LANE;
use crate::discovery::Discovery;
use crate::discovery::primary_election::{self, PrimaryAnswer};
use crate::discovery::roster::Roster;
use crate::discovery::servers::ServersInUse;
use crate::routing::pool::{ServerId, WatchedPrimaries, endpoint_of};

/// The time between two surveys of a Sentinel, milliseconds.
const SURVEY_MS: u64 = 10_000;
/// The least time between two surveys after an event, milliseconds. The events of one failover come
/// together, and meanwhile servers refuse all requests. It is less than a tick, so that refused
/// requests are sent again after the answer has come.
const SURVEY_SOON_MS: u64 = TICK_MS as u64 * 4 / 5;
/// The time between two surveys of a Sentinel that refuses to report events, milliseconds.
const SURVEY_WITHOUT_EVENTS_MS: u64 = 1_000;

/// How long a replica that was told to take over counts as the primary, milliseconds, unless it
/// reports another role. In that time the Sentinel that chose it has asked it several times, and
/// named it.
const PROMOTED_MS: u64 = SURVEY_MS;

/// The Sentinels of a pool, and their answers.
#[derive(Debug)]
pub(crate) struct SentinelGroup {
    /// The names of the primaries, and the servers that stand for them.
    primaries: Vec<(String, ServerId)>,
    /// The known Sentinels.
    roster: Roster,
    /// The settings of any Sentinel, without its address.
    template: ServerSettings,
    /// The Sentinels that have a link.
    watchers: Vec<SentinelNode>,
    /// For each primary, the answer with the highest epoch of Sentinels that have no link any more.
    last_answers: Vec<Option<PrimaryAnswer>>,
    /// For each primary, the replica that was told to take over, and from when on it counts. It
    /// counts like the answer of a Sentinel with the next epoch.
    promoted: Vec<Option<(PrimaryAnswer, Time)>>,
}

/// A Sentinel with a link.
#[derive(Debug)]
struct SentinelNode {
    server: ServerId,
    link: LinkId,
    /// Its last answer for each primary. It counts while the link is down, too, so that no older
    /// answer of another Sentinel replaces it.
    answers: Vec<Option<PrimaryAnswer>>,
    /// The config epoch that it last reported for each primary.
    epochs: Vec<u64>,
    /// The last reported fault of its answers for each primary.
    wrong: Vec<Option<String>>,
    /// When its last survey began.
    surveyed: Time,
    /// Primaries of the last survey without an answer.
    unanswered: usize,
    /// Another survey is wanted soon.
    wants_survey: bool,
    /// It was asked for events on this connection, and has answered nothing since.
    is_fresh: bool,
    /// It refuses SUBSCRIBE, so it is surveyed more often.
    refuses_events: bool,
}

impl SentinelGroup {
    pub(crate) fn new(watched: &WatchedPrimaries) -> SentinelGroup {
        let primaries = watched.primaries.clone();
        SentinelGroup {
            last_answers: vec![None; primaries.len()],
            promoted: vec![None; primaries.len()],
            primaries,
            roster: Roster::new(watched.sentinels.clone()),
            template: watched.template.clone(),
            watchers: Vec::new(),
        }
    }

    /// The credentials for Sentinels that are found from now on.
    pub(crate) fn credentials_mut(&mut self) -> Option<&mut Credentials> {
        self.template.credentials.as_mut()
    }
}

fn address_of(endpoint: &Endpoint) -> Address {
    Address::Tcp {
        host: endpoint.host.clone(),
        port: endpoint.port,
    }
}

/// The consequence of a Sentinel's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentinelEvent {
    /// It is no event of a known primary.
    Nothing,
    /// The Sentinel is surveyed soon.
    Survey,
    /// The same, and this primary of the pool has another address now.
    Moved { pool: usize, primary: usize },
}

/// A Sentinel's answer about a primary.
pub(crate) struct SurveyAnswer {
    pub(crate) pool: usize,
    /// The number of the primary among those of its Sentinels.
    pub(crate) primary: usize,
    /// The Sentinel has named other Sentinels.
    pub(crate) names_others: bool,
    answer: PrimaryAnswer,
    replicas: Option<Vec<Replica>>,
}

/// Links to Sentinels.
impl Discovery {
    /// Connects to known Sentinels without a link, and leaves unwanted Sentinels.
    pub(crate) fn meet_sentinels(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        in_use: &ServersInUse,
    ) {
        let Some(watch) = self.groups.get(&pool) else {
            return;
        };
        let wanted = self.wanted_sentinels(plane, watch);
        let (names, template) = (watch.primaries.len(), watch.template.clone());
        for address in &wanted {
            let is_it = |watcher: &SentinelNode| {
                plane.servers[usize::from(watcher.server.0)]
                    .settings
                    .address
                    == *address
            };
            let Some(watch) = self.groups.get(&pool) else {
                return;
            };
            if watch.watchers.iter().any(is_it) {
                continue;
            }
            let settings = ServerSettings {
                address: address.clone(),
                ..template.clone()
            };
            let server = Server::new(pool as u16, &settings);
            let Some(server) = self.add_server(plane, server, in_use) else {
                return;
            };
            let kind = LinkKind {
                server,
                version: Version::Resp3,
                db: 0,
                user: CONFIGURED,
                lane: DEFAULT_LANE,
            };
            let Some(link) = plane.add_link(kind, LinkRole::Sentinel) else {
                // At `links_max`. There may be room at the next tick.
                plane.servers[usize::from(server.0)].gone = true;
                return;
            };
            plane.connect(link);
            let watcher = SentinelNode {
                server,
                link,
                answers: vec![None; names],
                epochs: vec![0; names],
                wrong: vec![None; names],
                surveyed: plane.now,
                unanswered: 0,
                wants_survey: false,
                is_fresh: false,
                refuses_events: false,
            };
            if let Some(watch) = self.groups.get_mut(&pool) {
                watch.watchers.push(watcher);
            }
        }
        self.leave_sentinels(plane, pool, &wanted);
    }
}

/// Answers and events of Sentinels.
impl Discovery {
    /// A Sentinel has answered the survey of a primary.
    pub(super) fn take_survey(
        &mut self,
        plane: &mut DataPlane,
        id: LinkId,
        primary: u16,
        answers: &[Vec<u8>],
    ) -> Option<SurveyAnswer> {
        let (pool, index) = self.watcher_of(plane, id)?;
        let name = usize::from(primary);
        let answers = <&[_; SURVEY_ANSWERS]>::try_from(answers).ok()?;
        if let Some(watcher) = self.watcher_mut(plane, id) {
            watcher.unanswered = watcher.unanswered.saturating_sub(1);
            let is_first = std::mem::take(&mut watcher.is_fresh);
            if is_first && answers[0].starts_with(b"-") && Primary::read(&answers[1]).is_ok() {
                // SUBSCRIBE has no other reply than this error, so later answers would be taken for
                // earlier ones.
                watcher.refuses_events = true;
                plane.lose_link(
                    id,
                    "it refuses SUBSCRIBE, and is asked every second instead",
                );
                return None;
            }
        }
        let survey = match Survey::read(answers.each_ref().map(Vec::as_slice)) {
            Ok(mut survey) => {
                let address_map = &plane.pools[pool].address_map;
                survey.map_endpoints(|named| address_map.apply(named));
                survey
            }
            Err(error) => {
                let watch = self.groups.get(&pool);
                let named = watch.map_or("", |watch| &watch.primaries[name].0);
                let text = format!("Sentinel {}: asked for '{named}': {error}", plane.label(id));
                let watcher = self.watcher_mut(plane, id);
                let logged = watcher.and_then(|watcher| watcher.wrong.get_mut(name));
                if logged.is_some_and(|logged| logged.replace(text.clone()).as_ref() != Some(&text))
                {
                    self.report_topology(plane, pool, text);
                }
                return None;
            }
        };
        let me = self.sentinel_at(pool, index);
        let me = endpoint_of(&plane.server(me).settings.address);
        let watch = self.groups.get_mut(&pool)?;
        let watcher = &mut watch.watchers[index];
        let answer = PrimaryAnswer::of(&survey);
        watcher.answers[name] = Some(answer.clone());
        watcher.wrong[name] = None;
        let epoch = survey.primary.config_epoch;
        let before = std::mem::replace(&mut watcher.epochs[name], epoch);
        if epoch < before {
            // The name was configured anew. Earlier answers of Sentinels that are down no longer
            // count.
            watch.last_answers[name] = None;
            for watcher in &mut watch.watchers {
                if !plane.links.get(watcher.link).is_some_and(Link::is_up) {
                    watcher.answers[name] = None;
                }
            }
        }
        let names_others = match (&survey.peers, me) {
            (Ok(peers), Some(me)) => watch.roster.handle_peers(&me, peers),
            _ => false,
        };
        Some(SurveyAnswer {
            pool,
            primary: name,
            names_others,
            answer,
            replicas: survey.replicas.ok(),
        })
    }

    /// Sets the replicas of a primary that an answer names.
    pub(crate) fn know_replicas_named(
        &mut self,
        plane: &mut DataPlane,
        answer: SurveyAnswer,
        in_use: &ServersInUse,
    ) {
        let pool = answer.pool;
        if let Some((primary, replicas)) = self.replicas_named(plane, answer) {
            self.know_replicas(plane, pool, replicas, |owner| owner == primary, in_use);
        }
    }

    /// The replicas of a primary, if the Sentinel that names them names the primary that is
    /// believed. Each has that primary beside it.
    fn replicas_named(
        &self,
        plane: &DataPlane,
        answer: SurveyAnswer,
    ) -> Option<(ServerId, Vec<(Endpoint, ServerId)>)> {
        let replicas = answer.replicas?;
        let watch = self.groups.get(&answer.pool)?;
        let (_, primary) = watch.primaries[answer.primary];
        if plane.server(primary).settings.address != address_of(&answer.answer.address) {
            return None;
        }
        let at = replicas.into_iter().filter_map(|replica| replica.endpoint);
        let others = at.filter(|at| *at != answer.answer.address);
        Some((primary, others.map(|at| (at, primary)).collect()))
    }

    /// A Sentinel has sent a message.
    pub(crate) fn take_sentinel_push(
        &mut self,
        plane: &mut DataPlane,
        link_id: LinkId,
        push: &[u8],
    ) -> SentinelEvent {
        let event = match Message::read(push) {
            Ok(Message::Event(event)) => event,
            Ok(_) => return SentinelEvent::Nothing,
            // A message of unknown form may be any event.
            Err(_) => return SentinelEvent::Survey,
        };
        let Some((pool, index)) = self.watcher_of(plane, link_id) else {
            return SentinelEvent::Nothing;
        };
        let address_map = plane.pools[pool].address_map.clone();
        let reached = |named: Endpoint| address_map.apply(&named);
        let Some(watch) = self.groups.get_mut(&pool) else {
            return SentinelEvent::Nothing;
        };
        let mut names = watch.primaries.iter();
        let Some(primary) = names.position(|(name, _)| name == event.name()) else {
            return SentinelEvent::Nothing;
        };
        if let FailoverEvent::Names { .. } = event {
            // The name may have been configured anew, with epoch 0.
            watch.watchers[index].answers[primary] = None;
            watch.promoted[primary] = None;
        }
        if let FailoverEvent::Promoting { to: Some(to), .. } = &event
            && let Some(last) = &watch.watchers[index].answers[primary]
        {
            let new_primary = PrimaryAnswer {
                id: None,
                address: reached(to.clone()),
                config_epoch: last.config_epoch + 1,
                health: last.health,
            };
            // The replica was told a moment ago, and obeys within a tick. Before that it would
            // report the role of a replica.
            watch.promoted[primary] = Some((new_primary, plane.now.plus_ms(TICK_MS)));
        }
        let to = match event {
            FailoverEvent::Switched { to, .. } | FailoverEvent::Promoted { to, .. } => {
                to.map(reached)
            }
            _ => None,
        };
        if let Some(to) = to
            && let Some(last) = &mut watch.watchers[index].answers[primary]
            && last.address != to
        {
            // The event does not name its epoch, but it is a later one.
            last.config_epoch += 1;
            last.address = to;
            return SentinelEvent::Moved { pool, primary };
        }
        SentinelEvent::Survey
    }

    /// The primaries of a pool for which a replica was told to take over. Forgets such a replica if
    /// no Sentinel has named it in `PROMOTED_MS`.
    pub(crate) fn promotions(&mut self, plane: &mut DataPlane, pool: usize) -> Vec<usize> {
        let now = plane.now;
        let Some(watch) = self.groups.get_mut(&pool) else {
            return Vec::new();
        };
        let mut moved = Vec::new();
        for (primary, new_primary) in watch.promoted.iter_mut().enumerate() {
            if new_primary.is_some() {
                moved.push(primary);
            }
            new_primary.take_if(|(_, from)| now.since_ms(*from) >= PROMOTED_MS);
        }
        moved
    }

    /// The server that stands for a primary reports the role of a replica. Returns the pool and the
    /// number of the primary if the server was only told to take over: then its requests go to the
    /// primary that the Sentinels name.
    pub(crate) fn forget_new_primary(
        &mut self,
        plane: &mut DataPlane,
        server: ServerId,
    ) -> Option<(usize, usize)> {
        let pool = usize::from(plane.server(server).pool);
        let watch = self.groups.get_mut(&pool)?;
        let mut names = watch.primaries.iter();
        let primary = names.position(|(_, id)| *id == server)?;
        let had_one = watch.promoted[primary].take().is_some();
        had_one.then_some((pool, primary))
    }

    /// Gives the server of a primary the address that the Sentinels name, if that is a new one.
    /// Returns the server. [`Discovery::connect_to_new_address`] has to follow.
    pub(crate) fn take_new_address(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        primary: usize,
    ) -> Option<ServerId> {
        let watch = self.groups.get(&pool)?;
        let answers = watch.watchers.iter().map(|watcher| &watcher.answers);
        let answers = answers.chain([&watch.last_answers]);
        let new_primary = watch.promoted[primary].as_ref();
        let new_primary = new_primary.filter(|(_, from)| plane.now >= *from);
        let answers = answers.filter_map(|answers| answers[primary].as_ref());
        let answers: Vec<PrimaryAnswer> = answers
            .chain(new_primary.map(|(new_primary, _)| new_primary))
            .cloned()
            .collect();
        let chosen = primary_election::choose(&answers)?;
        let address = address_of(&chosen.address);
        let (name, server) = watch.primaries[primary].clone();
        let state = &plane.servers[usize::from(server.0)];
        if !state.unknown && state.settings.address == address {
            return None;
        }
        let text = match state.unknown {
            true => format!("the primary '{name}' is {address}"),
            false => format!("the primary '{name}' is {address}, and was {}", state.label),
        };
        self.report_topology(plane, pool, text);
        self.set_address(plane, server, address);
        Some(server)
    }

    /// Gives a server another address. The server keeps its label until its links to the old
    /// address are lost: they name it to their sessions. Links that connect use the new address.
    fn set_address(&self, plane: &mut DataPlane, server: ServerId, address: Address) {
        plane.wake_deferred();
        let state = &mut plane.servers[usize::from(server.0)];
        state.settings.address = address;
        state.unknown = false;
        state.health.forget();
        // The new server may report its utilization where the old one did not.
        state.load = ServerLoad::default();
        plane.set_waits();
    }

    /// The links of a server to its old address are lost. Names the new one, and connects.
    pub(crate) fn connect_to_new_address(&mut self, plane: &mut DataPlane, server: ServerId) {
        let state = &mut plane.servers[usize::from(server.0)];
        state.label = state.settings.address.to_string();
        for id in plane.links.ids() {
            let rests = |link: &&Link| {
                matches!(
                    link.state,
                    LinkState::Backoff { .. } | LinkState::Retrying { .. }
                )
            };
            let link = plane.links.get(id).filter(rests);
            if link.is_some_and(|link| link.kind.server == server) {
                plane.connect(id);
            }
        }
    }
}

impl Discovery {
    /// The addresses of the Sentinels that shall have a link. Those that are up stay, and a
    /// Sentinel that cannot be reached takes no place from another one.
    fn wanted_sentinels(&self, plane: &DataPlane, watch: &SentinelGroup) -> Vec<Address> {
        let all = watch.roster.all();
        let of = |watcher: &SentinelNode| {
            &plane.servers[usize::from(watcher.server.0)]
                .settings
                .address
        };
        let link = |watcher: &SentinelNode| plane.links.get(watcher.link);
        let is_up = |watcher: &&SentinelNode| link(watcher).is_some_and(Link::is_up);
        let mut wanted: Vec<Address> = watch
            .watchers
            .iter()
            .filter(is_up)
            .map(of)
            .cloned()
            .collect();
        wanted.sort_by_cached_key(|address| {
            let place = all.iter().position(|one| address_of(one) == *address);
            place.unwrap_or(usize::MAX)
        });
        wanted.truncate(SENTINELS_WATCHED_MAX);
        let mut counted = wanted.len();
        if counted == SENTINELS_WATCHED_MAX {
            return wanted;
        }
        for address in all.iter().map(address_of) {
            if wanted.contains(&address) {
                continue;
            }
            let watcher = watch
                .watchers
                .iter()
                .find(|watcher| *of(watcher) == address);
            let has_failed = watcher.and_then(link).is_some_and(|link| link.failures > 0);
            if has_failed {
                wanted.push(address);
            } else if counted < SENTINELS_WATCHED_MAX {
                counted += 1;
                wanted.push(address);
            }
        }
        wanted
    }

    /// A link to a Sentinel is up: subscribes to its events, and surveys it.
    pub(crate) fn sentinel_up(&mut self, plane: &mut DataPlane, id: LinkId) {
        if let Some(watcher) = self.watcher_mut(plane, id) {
            // Earlier questions were lost with the connection.
            watcher.unanswered = 0;
            watcher.is_fresh = !watcher.refuses_events;
        }
        let mut events = Vec::new();
        if self
            .watcher_mut(plane, id)
            .is_some_and(|watcher| !watcher.refuses_events)
        {
            ask_events(&mut events);
        }
        self.survey(plane, id, events);
    }

    pub(crate) fn survey_again(&mut self, plane: &mut DataPlane, pool: usize) {
        let Some(watch) = self.groups.get(&pool) else {
            return;
        };
        let due = |watcher: &&SentinelNode| {
            let after_ms = match watcher.wants_survey {
                true => SURVEY_SOON_MS,
                false if watcher.refuses_events => SURVEY_WITHOUT_EVENTS_MS,
                false => SURVEY_MS,
            };
            watcher.unanswered == 0 && plane.now.since_ms(watcher.surveyed) >= after_ms
        };
        let due = watch.watchers.iter().filter(due);
        let links: Vec<LinkId> = due.map(|watcher| watcher.link).collect();
        for link in links {
            if plane.links.get(link).is_some_and(Link::is_up) {
                self.survey(plane, link, Vec::new());
            }
        }
    }

    /// Surveys a Sentinel after an event: at once, or when it has answered the survey under way.
    pub(crate) fn survey_soon(&mut self, plane: &mut DataPlane, id: LinkId) {
        let now = plane.now;
        let Some(watcher) = self.watcher_mut(plane, id) else {
            return;
        };
        watcher.wants_survey = true;
        if watcher.unanswered == 0 && now.since_ms(watcher.surveyed) >= SURVEY_SOON_MS {
            self.survey(plane, id, Vec::new());
        }
    }

    /// Asks a Sentinel about every primary. `first`: requests without replies that go in front.
    fn survey(&mut self, plane: &mut DataPlane, id: LinkId, first: Vec<u8>) {
        let now = plane.now;
        let Some((pool, index)) = self.watcher_of(plane, id) else {
            return;
        };
        let Some(watch) = self.groups.get_mut(&pool) else {
            return;
        };
        let watcher = &mut watch.watchers[index];
        (watcher.surveyed, watcher.wants_survey) = (now, false);
        watcher.unanswered = watch.primaries.len();
        let names: Vec<String> = watch
            .primaries
            .iter()
            .map(|(name, _)| name.clone())
            .collect();
        let mut bytes = first;
        for (primary, name) in names.iter().enumerate() {
            ask_survey(&mut bytes, name);
            let completion = Completion::Discovery(DiscoveryCompletion::Survey {
                primary: primary as u16,
                answers: Vec::new(),
            });
            plane.put_ours(id, &bytes, completion);
            bytes.clear();
        }
    }

    fn watcher_mut(&mut self, plane: &DataPlane, link: LinkId) -> Option<&mut SentinelNode> {
        let (pool, index) = self.watcher_of(plane, link)?;
        self.groups.get_mut(&pool)?.watchers.get_mut(index)
    }

    fn watcher_of(&self, plane: &DataPlane, link: LinkId) -> Option<(usize, usize)> {
        let server = plane.links.get(link)?.kind.server;
        let pool = usize::from(plane.server(server).pool);
        let watch = self.groups.get(&pool)?;
        let index = watch.watchers.iter().position(|one| one.link == link)?;
        Some((pool, index))
    }

    /// The Sentinels of a primary whose address none has named yet, and the place of the primary
    /// among theirs.
    pub(crate) fn sought(
        &self,
        plane: &DataPlane,
        server: ServerId,
    ) -> Option<(&SentinelGroup, usize)> {
        let state = plane.server(server);
        let watch = self.groups.get(&usize::from(state.pool));
        let watch = watch.filter(|_| state.unknown)?;
        let mut names = watch.primaries.iter();
        let primary = names.position(|(_, id)| *id == server)?;
        Some((watch, primary))
    }

    /// Why no Sentinel has named the address of a primary: the fault of a Sentinel's answer, or of
    /// a connection to one. `None` if the address is known.
    pub(crate) fn why_unknown(&self, plane: &DataPlane, server: ServerId) -> Option<String> {
        let (watch, primary) = self.sought(plane, server)?;
        let mut watchers = watch.watchers.iter();
        let fault = watchers.find_map(|watcher| watcher.wrong[primary].clone());
        let unreached = |watcher: &SentinelNode| {
            let link = plane.links.get(watcher.link);
            let link = link.filter(|link| !link.is_up() && link.failures > 0)?;
            let sentinel = plane.label(watcher.link);
            Some(format!("Sentinel {sentinel}: {}", link.reason))
        };
        fault.or_else(|| watch.watchers.iter().find_map(unreached))
    }

    /// The first refusal, if every Sentinel refuses to name a primary or cannot be reached. If none
    /// can be reached, that is no refusal, and one may come up.
    pub(crate) fn why_refused(&self, plane: &DataPlane, server: ServerId) -> Option<String> {
        let (watch, primary) = self.sought(plane, server)?;
        let mut first = None;
        for watcher in &watch.watchers {
            let link = plane.links.get(watcher.link)?;
            let refusal = match (link.is_up(), &link.handshake_error) {
                (true, _) => Some(watcher.wrong[primary].clone()?),
                (false, Some(_)) => {
                    let sentinel = plane.label(watcher.link);
                    Some(format!("Sentinel {sentinel}: {}", link.reason))
                }
                (false, None) if link.failures > 0 => None,
                (false, None) => return None,
            };
            first = first.or(refusal);
        }
        first
    }

    fn sentinel_at(&self, pool: usize, index: usize) -> ServerId {
        let watch = self.groups.get(&pool);
        let watcher = watch.and_then(|watch| watch.watchers.get(index));
        watcher.map_or(ServerId(0), |watcher| watcher.server)
    }

    /// Whether a server that shall be a primary has reported the role of a replica in its
    /// handshake.
    pub(crate) fn is_disproved(&self, plane: &DataPlane, id: LinkId) -> bool {
        let Some(link) = plane.links.get(id) else {
            return false;
        };
        let pool = usize::from(plane.server(link.kind.server).pool);
        let replica = |role: &str| role == "replica" || role == "slave";
        let is_replica = link
            .identity
            .as_ref()
            .is_some_and(|identity| replica(&identity.role));
        let is_primary = plane.server(link.kind.server).replica_of.is_none();
        plane.pools[pool].watched.is_some()
            && is_primary
            && link.role != LinkRole::Sentinel
            && is_replica
    }

    /// A primary has changed its role: surveys the Sentinels, which may know more.
    pub(crate) fn request_survey(&mut self, plane: &mut DataPlane, server: ServerId) {
        let pool = usize::from(plane.server(server).pool);
        let Some(watch) = self.groups.get(&pool) else {
            return;
        };
        let links: Vec<LinkId> = watch.watchers.iter().map(|one| one.link).collect();
        for link in links {
            if plane.links.get(link).is_some_and(Link::is_up) {
                self.survey_soon(plane, link);
            }
        }
    }

    /// Closes the links to Sentinels that are not wanted any more. Their last answers are kept.
    pub(super) fn leave_sentinels(
        &mut self,
        plane: &mut DataPlane,
        pool: usize,
        wanted: &[Address],
    ) {
        let servers = &plane.servers;
        let Some(watch) = self.groups.get_mut(&pool) else {
            return;
        };
        let leaves = |watcher: &mut SentinelNode| {
            let address = &servers[usize::from(watcher.server.0)].settings.address;
            !wanted.contains(address)
        };
        let left: Vec<SentinelNode> = watch.watchers.extract_if(.., leaves).collect();
        for watcher in &left {
            for (kept, last) in watch.last_answers.iter_mut().zip(&watcher.answers) {
                let epoch = |answer: &Option<PrimaryAnswer>| {
                    answer.as_ref().map(|answer| answer.config_epoch)
                };
                if epoch(last) > epoch(kept) {
                    kept.clone_from(last);
                }
            }
        }
        for watcher in left {
            plane.servers[usize::from(watcher.server.0)].gone = true;
            plane.close_link(watcher.link);
        }
    }
}
