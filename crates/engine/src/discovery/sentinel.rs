//! Primaries that are watched by Sentinels: which server each of them is, at this moment.
//!
//! ```text
//!   Sentinel ──┐  +switch-master, +promoted-slave: at once; who was told to become it: a tick later
//!   Sentinel ──┼──────────────────────────────────────────► the address of the server
//!   Sentinel ──┘  surveys, every 10 seconds ──choose──►      that has the name
//! ```
//!
//! To all others a primary is a server like any other. When its address changes its links are lost,
//! as they are when a server restarts, and connect to the new one. That is proven when they do: who
//! says that it is a replica is not used.

use respool_protocol::cluster::Endpoint;
use respool_protocol::encode::Version;
use respool_protocol::sentinel::{
    self, Answer, Event as Heard, Message, Primary, Replica, Roster, SURVEY_ANSWERS, Survey,
};

use crate::auth::CONFIGURED;
use crate::duty::Duty;
use crate::engine::{Action, Engine, LinkId, TICK_MS};
use crate::limits::SENTINELS_WATCHED_MAX;
use crate::link::{Link, LinkKey, Role, State};
use crate::pool::{Server, ServerId};
use crate::settings::{Address, Credentials, ServerSettings};
use crate::slots::Key;
use crate::slow_readers::EVERYBODYS;
use crate::time::Time;

/// From one survey to the next, milliseconds.
const SURVEY_MS: u64 = 10_000;
/// The same where something has happened: what Sentinels say of one failover comes at once, and
/// servers refuse everybody. Less than a tick, so that who was refused is asked again behind the
/// answer, and not while it comes.
const SURVEY_SOON_MS: u64 = TICK_MS as u64 * 4 / 5;
/// The same of a Sentinel that tells us of no events.
const SURVEY_DEAF_MS: u64 = 1_000;

/// How long who was told to become primary is taken for it, milliseconds, unless its own word
/// disproves it: until then those who told it so have asked it, several times, and named it.
const HEIR_MS: u64 = SURVEY_MS;

/// The Sentinels of a pool, and what they have said.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Names of primaries, and the servers that stand for them.
    primaries: Vec<(String, ServerId)>,
    roster: Roster,
    /// How to reach a Sentinel, but for its address.
    template: ServerSettings,
    watchers: Vec<Watcher>,
    /// The latest of what those had said of each primary who are not listened to any more.
    left: Vec<Option<Answer>>,
    /// Who was told to become each primary, and from when on it may be: as if a Sentinel said so
    /// that knows of one failover more.
    heirs: Vec<Option<(Answer, Time)>>,
}

/// One Sentinel.
#[derive(Debug)]
struct Watcher {
    server: ServerId,
    link: Key,
    /// What it said last of each primary. That lasts when it is gone, so that no other leads back
    /// behind it.
    said: Vec<Option<Answer>>,
    /// The config epochs that it last gave.
    epochs: Vec<u64>,
    /// What was wrong with its answers, as it was told.
    wrong: Vec<Option<String>>,
    surveyed: Time,
    /// Primaries of the last survey of which it has not said all.
    asked: usize,
    /// It is to be asked again, soon.
    again: bool,
    /// It was asked for events on this connection, and has said nothing since.
    first: bool,
    /// It refuses to tell of events: we may not subscribe there.
    deaf: bool,
}

impl Watch {
    /// `None`: there are no Sentinels, or too many.
    pub(crate) fn new(
        sentinels: &[ServerSettings],
        primaries: Vec<(String, ServerId)>,
    ) -> Option<Watch> {
        let endpoint = |settings: &ServerSettings| endpoint_of(&settings.address);
        Some(Watch {
            left: vec![None; primaries.len()],
            heirs: vec![None; primaries.len()],
            primaries,
            roster: Roster::new(sentinels.iter().filter_map(endpoint)).ok()?,
            template: sentinels.first()?.clone(),
            watchers: Vec::new(),
        })
    }

    /// The login to any Sentinel that is met from now on.
    pub(crate) fn credentials_mut(&mut self) -> Option<&mut Credentials> {
        self.template.credentials.as_mut()
    }
}

fn endpoint_of(address: &Address) -> Option<Endpoint> {
    match address {
        Address::Tcp { host, port } => Some(Endpoint {
            host: host.clone(),
            port: *port,
        }),
        Address::Unix(_) => None,
    }
}

fn address_of(endpoint: &Endpoint) -> Address {
    Address::Tcp {
        host: endpoint.host.clone(),
        port: endpoint.port,
    }
}

/// Links to Sentinels.
impl Engine {
    /// Connects to Sentinels that are known and not connected to, and looks who has been silent for
    /// long.
    pub(crate) fn tick_sentinels(&mut self) {
        for pool in 0..self.pools.len() {
            if self.pools[pool].watch.is_some() {
                self.meet_sentinels(pool);
                self.follow_heirs(pool);
                self.survey_again(pool);
            }
        }
    }

    pub(crate) fn meet_sentinels(&mut self, pool: usize) {
        let Some(watch) = &self.pools[pool].watch else {
            return;
        };
        let wanted = self.wanted_sentinels(watch);
        let (names, template) = (watch.primaries.len(), watch.template.clone());
        for address in &wanted {
            let is_it = |watcher: &Watcher| {
                self.servers[usize::from(watcher.server.0)].settings.address == *address
            };
            let Some(watch) = &self.pools[pool].watch else {
                return;
            };
            if watch.watchers.iter().any(is_it) {
                continue;
            }
            let settings = ServerSettings {
                address: address.clone(),
                ..template.clone()
            };
            let Some(server) = self.add_server(Server::new(pool as u16, &settings)) else {
                return;
            };
            let kind = LinkKey {
                server,
                version: Version::Resp3,
                db: 0,
                user: CONFIGURED,
                lane: EVERYBODYS,
            };
            let Some(link) = self.add_link(kind, Role::Sentinel) else {
                // At `links_max`. There may be room at the next tick.
                self.servers[usize::from(server.0)].gone = true;
                return;
            };
            self.connect(link);
            let watcher = Watcher {
                server,
                link,
                said: vec![None; names],
                epochs: vec![0; names],
                wrong: vec![None; names],
                surveyed: self.now,
                asked: 0,
                again: false,
                first: false,
                deaf: false,
            };
            if let Some(watch) = &mut self.pools[pool].watch {
                watch.watchers.push(watcher);
            }
        }
        self.leave_sentinels(pool, &wanted);
    }

    /// Who is listened to, or is to be: those who are there stay, and who is not there keeps no
    /// other from it.
    fn wanted_sentinels(&self, watch: &Watch) -> Vec<Address> {
        let all = watch.roster.all();
        let of = |watcher: &Watcher| &self.servers[usize::from(watcher.server.0)].settings.address;
        let link = |watcher: &Watcher| self.links.get(watcher.link);
        let is_up = |watcher: &&Watcher| link(watcher).is_some_and(Link::is_up);
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

    /// Who is not wanted is not looked for. What it has said is not forgotten.
    fn leave_sentinels(&mut self, pool: usize, wanted: &[Address]) {
        let servers = &self.servers;
        let Some(watch) = &mut self.pools[pool].watch else {
            return;
        };
        let leaves = |watcher: &mut Watcher| {
            let address = &servers[usize::from(watcher.server.0)].settings.address;
            !wanted.contains(address)
        };
        let left: Vec<Watcher> = watch.watchers.extract_if(.., leaves).collect();
        for watcher in &left {
            for (kept, said) in watch.left.iter_mut().zip(&watcher.said) {
                let epoch = |answer: &Option<Answer>| answer.as_ref().map(|said| said.config_epoch);
                if epoch(said) > epoch(kept) {
                    kept.clone_from(said);
                }
            }
        }
        for watcher in left {
            self.servers[usize::from(watcher.server.0)].gone = true;
            self.close_link(watcher.link);
        }
    }

    /// A Sentinel can be asked: everything that happens from now on, and what is so now.
    pub(crate) fn sentinel_up(&mut self, key: Key) {
        if let Some(watcher) = self.watcher_mut(key) {
            // What it was asked before was lost with its connection.
            watcher.asked = 0;
            watcher.first = !watcher.deaf;
        }
        let mut events = Vec::new();
        if self.watcher_mut(key).is_some_and(|watcher| !watcher.deaf) {
            sentinel::ask_events(&mut events);
        }
        self.survey(key, events);
    }

    fn survey_again(&mut self, pool: usize) {
        let Some(watch) = &self.pools[pool].watch else {
            return;
        };
        let due = |watcher: &&Watcher| {
            let after_ms = match watcher.again {
                true => SURVEY_SOON_MS,
                false if watcher.deaf => SURVEY_DEAF_MS,
                false => SURVEY_MS,
            };
            watcher.asked == 0 && self.now.since_ms(watcher.surveyed) >= after_ms
        };
        let due = watch.watchers.iter().filter(due);
        let links: Vec<Key> = due.map(|watcher| watcher.link).collect();
        for link in links {
            if self.links.get(link).is_some_and(Link::is_up) {
                self.survey(link, Vec::new());
            }
        }
    }

    /// Something has happened: a Sentinel is asked at once, or when it has answered what it was
    /// asked just now.
    fn survey_soon(&mut self, key: Key) {
        let now = self.now;
        let Some(watcher) = self.watcher_mut(key) else {
            return;
        };
        watcher.again = true;
        if watcher.asked == 0 && now.since_ms(watcher.surveyed) >= SURVEY_SOON_MS {
            self.survey(key, Vec::new());
        }
    }

    /// Asks a Sentinel about every primary; `first`: behind what has no reply but messages.
    fn survey(&mut self, key: Key, first: Vec<u8>) {
        let now = self.now;
        let Some((pool, index)) = self.watcher_of(key) else {
            return;
        };
        let Some(watch) = &mut self.pools[pool].watch else {
            return;
        };
        let watcher = &mut watch.watchers[index];
        (watcher.surveyed, watcher.again) = (now, false);
        watcher.asked = watch.primaries.len();
        let names: Vec<String> = watch
            .primaries
            .iter()
            .map(|(name, _)| name.clone())
            .collect();
        let mut bytes = first;
        for (primary, name) in names.iter().enumerate() {
            sentinel::ask_survey(&mut bytes, name);
            let duty = Duty::Survey {
                primary: primary as u16,
                answers: Vec::new(),
            };
            self.put_ours(key, &bytes, duty);
            bytes.clear();
        }
    }

    fn watcher_mut(&mut self, link: Key) -> Option<&mut Watcher> {
        let (pool, index) = self.watcher_of(link)?;
        self.pools[pool].watch.as_mut()?.watchers.get_mut(index)
    }

    fn watcher_of(&self, link: Key) -> Option<(usize, usize)> {
        let server = self.links.get(link)?.key.server;
        let pool = usize::from(self.server(server).pool);
        let watch = self.pools[pool].watch.as_ref()?;
        let index = watch.watchers.iter().position(|one| one.link == link)?;
        Some((pool, index))
    }
}

/// What Sentinels say.
impl Engine {
    /// All that one says of a primary.
    pub(crate) fn take_survey(&mut self, key: Key, primary: u16, answers: &[Vec<u8>]) {
        let Some((pool, index)) = self.watcher_of(key) else {
            return;
        };
        let name = usize::from(primary);
        let Ok(answers) = <&[_; SURVEY_ANSWERS]>::try_from(answers) else {
            return;
        };
        if let Some(watcher) = self.watcher_mut(key) {
            watcher.asked = watcher.asked.saturating_sub(1);
            let is_first = std::mem::take(&mut watcher.first);
            if is_first && answers[0].starts_with(b"-") && Primary::read(&answers[1]).is_ok() {
                // SUBSCRIBE has no reply but this one, and from now on every answer would be taken
                // for the one before.
                watcher.deaf = true;
                return self.lose_link(
                    key,
                    "it refuses SUBSCRIBE, and is asked every second instead",
                );
            }
        }
        let survey = match Survey::read(answers.each_ref().map(Vec::as_slice)) {
            Ok(mut survey) => {
                let address_map = &self.pools[pool].address_map;
                survey.map_endpoints(|said| address_map.apply(said));
                survey
            }
            Err(error) => {
                let watch = self.pools[pool].watch.as_ref();
                let asked = watch.map_or("", |watch| &watch.primaries[name].0);
                let text = format!("Sentinel {}: asked for '{asked}': {error}", self.label(key));
                let watcher = self.watcher_mut(key);
                let told = watcher.and_then(|watcher| watcher.wrong.get_mut(name));
                if told.is_some_and(|told| told.replace(text.clone()).as_ref() != Some(&text)) {
                    self.tell_topology(pool, text);
                }
                return;
            }
        };
        let me = endpoint_of(&self.server(self.sentinel_at(pool, index)).settings.address);
        let Some(watch) = &mut self.pools[pool].watch else {
            return;
        };
        let watcher = &mut watch.watchers[index];
        let said = survey.answer();
        watcher.said[name] = Some(said.clone());
        watcher.wrong[name] = None;
        let epoch = survey.primary.config_epoch;
        let before = std::mem::replace(&mut watcher.epochs[name], epoch);
        if epoch < before {
            // The name was begun anew: what was said before by those who are not there holds no
            // longer.
            watch.left[name] = None;
            for watcher in &mut watch.watchers {
                if !self.links.get(watcher.link).is_some_and(Link::is_up) {
                    watcher.said[name] = None;
                }
            }
        }
        let news = match (&survey.peers, me) {
            (Ok(peers), Some(me)) => watch.roster.handle_peers(&me, peers),
            _ => false,
        };
        if news {
            self.meet_sentinels(pool);
        }
        self.follow_primary(pool, name);
        if let Ok(replicas) = survey.replicas {
            self.follow_replicas(pool, name, &said, &replicas);
        }
    }

    /// What is said of its replicas by who names the primary that is believed.
    fn follow_replicas(&mut self, pool: usize, name: usize, said: &Answer, replicas: &[Replica]) {
        let Some(watch) = &self.pools[pool].watch else {
            return;
        };
        let (_, primary) = watch.primaries[name];
        if self.server(primary).settings.address != address_of(&said.address) {
            return;
        }
        let at = replicas
            .iter()
            .filter_map(|replica| replica.endpoint.clone());
        let others = at.filter(|at| *at != said.address);
        let replicas = others.map(|at| (at, primary)).collect();
        self.know_replicas(pool, replicas, |owner| owner == primary);
    }

    /// A primary of which nobody has said yet where it is: who watches it, and its place among
    /// those that they watch.
    fn sought(&self, server: ServerId) -> Option<(&Watch, usize)> {
        let state = self.server(server);
        let watch = self.pools[usize::from(state.pool)].watch.as_ref();
        let watch = watch.filter(|_| state.unknown)?;
        let mut names = watch.primaries.iter();
        let primary = names.position(|(_, its)| *its == server)?;
        Some((watch, primary))
    }

    /// Why nobody has said yet where a primary is, if that is so: in the words of a Sentinel that
    /// was asked, or of the connection to one that could not be.
    pub(crate) fn why_unknown(&self, server: ServerId) -> Option<String> {
        let (watch, primary) = self.sought(server)?;
        let mut watchers = watch.watchers.iter();
        let said = watchers.find_map(|watcher| watcher.wrong[primary].clone());
        let unreached = |watcher: &Watcher| {
            let link = self.links.get(watcher.link);
            let link = link.filter(|link| !link.is_up() && link.failures > 0)?;
            let sentinel = self.label(watcher.link);
            Some(format!("Sentinel {sentinel}: {}", link.reason))
        };
        said.or_else(|| watch.watchers.iter().find_map(unreached))
    }

    /// The same when no Sentinel is left that might say it: each refuses or cannot be reached, and
    /// the first one that refuses is told. While none can be reached it is no answer, and one may
    /// come.
    pub(crate) fn why_refused(&self, server: ServerId) -> Option<String> {
        let (watch, primary) = self.sought(server)?;
        let mut first = None;
        for watcher in &watch.watchers {
            let link = self.links.get(watcher.link)?;
            let says = match (link.is_up(), &link.refusal) {
                (true, _) => Some(watcher.wrong[primary].clone()?),
                (false, Some(_)) => {
                    let sentinel = self.label(watcher.link);
                    Some(format!("Sentinel {sentinel}: {}", link.reason))
                }
                (false, None) if link.failures > 0 => None,
                (false, None) => return None,
            };
            first = first.or(says);
        }
        first
    }

    fn sentinel_at(&self, pool: usize, index: usize) -> ServerId {
        let watch = self.pools[pool].watch.as_ref();
        let watcher = watch.and_then(|watch| watch.watchers.get(index));
        watcher.map_or(ServerId(0), |watcher| watcher.server)
    }

    /// Something has happened.
    pub(crate) fn take_sentinel_push(&mut self, key: Key, push: &[u8]) {
        let heard = match Message::read(push) {
            Ok(Message::Event(heard)) => heard,
            Ok(_) => return,
            // Whatever it was.
            Err(_) => return self.survey_soon(key),
        };
        let Some((pool, index)) = self.watcher_of(key) else {
            return;
        };
        let address_map = self.pools[pool].address_map.clone();
        let reached = |said: Endpoint| address_map.apply(&said);
        let Some(watch) = &mut self.pools[pool].watch else {
            return;
        };
        let mut names = watch.primaries.iter();
        let Some(primary) = names.position(|(name, _)| name == heard.name()) else {
            return;
        };
        if let Heard::Names { .. } = heard {
            // It may begin anew, with the epoch 0.
            watch.watchers[index].said[primary] = None;
            watch.heirs[primary] = None;
        }
        if let Heard::Promoting { to: Some(to), .. } = &heard
            && let Some(said) = &watch.watchers[index].said[primary]
        {
            let heir = Answer {
                id: None,
                address: reached(to.clone()),
                config_epoch: said.config_epoch + 1,
                health: said.health,
            };
            // It was told a moment ago, and hears it within a tick; before, it would say that it is
            // a replica.
            watch.heirs[primary] = Some((heir, self.now.plus_ms(TICK_MS)));
        }
        let to = match heard {
            Heard::Switched { to, .. } | Heard::Promoted { to, .. } => to.map(reached),
            _ => None,
        };
        if let Some(to) = to
            && let Some(said) = &mut watch.watchers[index].said[primary]
            && said.address != to
        {
            // Its epoch it does not say; that it is a later one, it does.
            said.config_epoch += 1;
            said.address = to;
            self.follow_primary(pool, primary);
        }
        self.survey_soon(key);
    }

    /// Who was told to become primary is taken for it, and no longer if nobody has named it.
    fn follow_heirs(&mut self, pool: usize) {
        let now = self.now;
        let Some(watch) = &mut self.pools[pool].watch else {
            return;
        };
        let mut moved = Vec::new();
        for (primary, heir) in watch.heirs.iter_mut().enumerate() {
            if heir.is_some() {
                moved.push(primary);
            }
            heir.take_if(|(_, from)| now.since_ms(*from) >= HEIR_MS);
        }
        for primary in moved {
            self.follow_primary(pool, primary);
        }
    }

    /// Who is taken for a primary says that it is a replica. Whether it was taken for one because
    /// it was told to become it: it has not yet, if it ever will, and what waits for it goes to
    /// whom the Sentinels name.
    pub(crate) fn leave_heir(&mut self, server: ServerId) -> bool {
        let pool = usize::from(self.server(server).pool);
        let Some(watch) = &mut self.pools[pool].watch else {
            return false;
        };
        let mut names = watch.primaries.iter();
        let Some(primary) = names.position(|(_, its)| *its == server) else {
            return false;
        };
        let had_one = watch.heirs[primary].take().is_some();
        had_one && self.follow_primary(pool, primary)
    }

    /// A primary may be elsewhere than it was. Whether it is.
    fn follow_primary(&mut self, pool: usize, primary: usize) -> bool {
        let Some(watch) = &self.pools[pool].watch else {
            return false;
        };
        let said = watch.watchers.iter().map(|watcher| &watcher.said);
        let said = said.chain([&watch.left]);
        let heir = watch.heirs[primary].as_ref();
        let heir = heir.filter(|(_, from)| self.now >= *from);
        let said = said.filter_map(|said| said[primary].as_ref());
        let said: Vec<Answer> = said.chain(heir.map(|(heir, _)| heir)).cloned().collect();
        let Some(chosen) = sentinel::choose(&said) else {
            return false;
        };
        let address = address_of(&chosen.address);
        let (name, server) = watch.primaries[primary].clone();
        let state = &self.servers[usize::from(server.0)];
        if !state.unknown && state.settings.address == address {
            return false;
        }
        let text = match state.unknown {
            true => format!("the primary '{name}' is {address}"),
            false => format!("the primary '{name}' is {address}, and was {}", state.label),
        };
        self.tell_topology(pool, text);
        self.move_server(server, address);
        true
    }

    /// What was a server is at another address now: whatever is connected to the old one is not
    /// believed any more.
    fn move_server(&mut self, server: ServerId, address: Address) {
        self.stir_put_off();
        let label = address.to_string();
        let state = &mut self.servers[usize::from(server.0)];
        // Who loses a link is told of the old one, and a link that connects goes to the new one.
        state.settings.address = address;
        state.unknown = false;
        state.health.forget();
        for key in self.links.keys() {
            let Some(link) = self.links.get(key).filter(|link| link.key.server == server) else {
                continue;
            };
            match link.state {
                State::Up => {
                    self.lose_link(key, "the Sentinels have another primary now");
                    // What was found out was about the old one.
                    self.servers[usize::from(server.0)].health.forget();
                }
                // Nothing of what waits for it was sent: it waits on.
                State::Connecting { .. } | State::Greeting { .. } => {
                    self.act(Action::CloseLink(LinkId(key)));
                    self.connect(key);
                }
                State::Down | State::Resting { .. } | State::Retrying { .. } => {}
            }
        }
        self.servers[usize::from(server.0)].label = label;
        for key in self.links.keys() {
            let rests =
                |link: &&Link| matches!(link.state, State::Resting { .. } | State::Retrying { .. });
            let link = self.links.get(key).filter(rests);
            if link.is_some_and(|link| link.key.server == server) {
                self.connect(key);
            }
        }
    }

    /// Whether a server that has just been greeted is what it is taken for; if not, why.
    pub(crate) fn is_disproved(&self, key: Key) -> bool {
        let Some(link) = self.links.get(key) else {
            return false;
        };
        let pool = usize::from(self.server(link.key.server).pool);
        let replica = |role: &str| role == "replica" || role == "slave";
        let says = link
            .identity
            .as_ref()
            .is_some_and(|identity| replica(&identity.role));
        let is_primary = self.server(link.key.server).replica_of.is_none();
        self.pools[pool].watch.is_some() && is_primary && link.role != Role::Sentinel && says
    }

    /// A primary is not what it was: the Sentinels may know more.
    pub(crate) fn doubt_primary(&mut self, server: ServerId) {
        let pool = usize::from(self.server(server).pool);
        let Some(watch) = &self.pools[pool].watch else {
            return;
        };
        let links: Vec<Key> = watch.watchers.iter().map(|one| one.link).collect();
        for link in links {
            if self.links.get(link).is_some_and(Link::is_up) {
                self.survey_soon(link);
            }
        }
    }
}
