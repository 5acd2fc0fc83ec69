//! Reads from replicas: at whom a session reads instead of at the owner of a key.
//!
//! ```text
//!   GET k ─► owner of k ─► that owner's table ─► the session's seat in it ─► a replica, or the owner itself
//!                               ▲
//!       policy, zone, weights ──┤
//!       links, INFO every second┘
//! ```
//!
//! To all else a replica is one more server, on which nothing but reads is asked. A process that is a replica today and the owner of slots
//! tomorrow is two servers here: so nothing that was asked of it as the one is ever answered by it as the other.
//!
//! A session keeps its seat, and seats change hands no more than they must: so what it has seen once, it mostly does not see
//! undone. A replica that cannot be read (its link is down, it is silent, it loads, it has lost its primary) has no seats; what it was asked
//! and has not answered is asked elsewhere.

#[path = "../routing/replica_table.rs"]
mod seats;

use std::hash::{DefaultHasher, Hasher};

use respool_protocol::cluster::Endpoint;
use respool_protocol::commands::{Command, CommandId, Flags as CommandFlags, id};
use respool_protocol::encode;

use crate::cluster::{SILENT_MS, TAKEN_OVER_MS};
use crate::duty::Duty;
use crate::engine::Engine;
use crate::entry::Before;
use crate::here::OK;
use crate::limits::REPLICAS_READ_MAX;
use crate::link::{Link, LinkKey, State};
use crate::pool::{Server, ServerId};
use crate::requests::Placed;
use crate::session::Flags;
use crate::settings::{Address, ReadPolicy, Reads, ServerSettings};
use crate::slots::Key;
use crate::time::Time;
use seats::{Candidate, Seats, choose, seat_again, seat_of};

/// How often a server is asked how it is, milliseconds.
const LOOK_MS: u64 = 1_000;
/// One that has not said for so long that it is well is not read, milliseconds.
const KNOWN_MS: u64 = 3 * LOOK_MS;
/// One that refused a read is not read for so long, milliseconds.
const REFUSED_MS: u32 = 1_000;
/// A replica that owes replies and sends nothing for so long is given up, and others are asked, milliseconds. If requests have less than
/// three times as long, a third of that.
const GIVEN_UP_MS: u64 = 1_000;
/// A replica that has heard nothing of its primary for so long, though that has given out more, is cut off from it, seconds. A primary
/// pings its replicas every 10 s (`repl-ping-replica-period` in `redis.conf`; `replicationCron`), in whole seconds it is 11; the rest is for
/// one that was busy just then. The replica itself says that its link is up until `repl-timeout`, mostly 60 s.
const UNHEARD_S: u64 = 15;
/// What a server is asked.
const LOOK: [&[&str]; 2] = [&["INFO", "server"], &["INFO", "replication"]];

/// Of a pool, the servers that are read, be they replicas or, where owners are among those, owners.
#[derive(Debug)]
pub(crate) struct Readers {
    settings: Reads,
    all: Vec<Reader>,
    /// Of each owner, by its index among the engine's servers, at whom its sessions read.
    tables: Vec<Option<Box<Seats>>>,
    /// Servers in them.
    count: usize,
    looked_at: Time,
}

#[derive(Debug)]
struct Reader {
    server: ServerId,
    owner: ServerId,
    state: ReaderState,
}

/// How a server that is read is.
#[derive(Clone, Debug, Default)]
struct ReaderState {
    /// The availability zone that it says it is in.
    zone: Option<String>,
    /// Its round trip, with what waits in front there; smoothed.
    latency_us: Option<u64>,
    /// It was asked how it is, and has not answered.
    asked_at: Option<Time>,
    /// What it last said of itself, and when.
    says: Says,
    said_at: Option<Time>,
    /// Whose stream of changes it takes in, or gives out; hashed.
    stream: Option<u64>,
    /// How much of that it has taken in, or given out, bytes.
    offset: Option<u64>,
    /// How much that was when it was asked the time before: what others say now is at least as new.
    had: Option<u64>,
    /// It has heard nothing of its primary for [`UNHEARD_S`].
    hears_nothing: bool,
    /// Which process that was, by the name that it has for this time; hashed.
    process: Option<u64>,
    refused_until: Time,
    /// It was read when seats were dealt last.
    is_read: bool,
}

/// What a client is told then.
pub(crate) const NO_READER: &[u8] =
    b"NOTSENT respool: no replica can be read at the moment, and the pool says reads=replica: try again, or ask for prefer-replica";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Says {
    /// Nothing, or that it has not got what its primary has.
    #[default]
    Otherwise,
    /// That it follows its primary.
    Follows,
    /// That it did, and has lost it; or is a primary itself now.
    Followed,
}

/// There is no replica that may be read, and only those may.
#[derive(Debug)]
pub(crate) struct NoReader;

impl Readers {
    /// `None`: whatever is read is read at its owner.
    pub(crate) fn new(settings: &Reads) -> Option<Box<Readers>> {
        (settings.policy != ReadPolicy::Primary).then(|| {
            Box::new(Readers {
                settings: settings.clone(),
                all: Vec::new(),
                tables: Vec::new(),
                count: 0,
                looked_at: Time(0),
            })
        })
    }

    /// Where this session reads what an owner has.
    #[inline]
    pub(crate) fn instead_of(&self, owner: ServerId, session: Key) -> Result<ServerId, NoReader> {
        match self.tables.get(usize::from(owner.0)) {
            Some(Some(seats)) => Ok(seats[seat_of(session)]),
            _ if self.settings.policy == ReadPolicy::Replica => Err(NoReader),
            _ => Ok(owner),
        }
    }

    fn of(&self, server: ServerId) -> Option<&Reader> {
        self.all.iter().find(|one| one.server == server)
    }

    fn of_mut(&mut self, server: ServerId) -> Option<&mut ReaderState> {
        let one = self.all.iter_mut().find(|one| one.server == server);
        one.map(|one| &mut one.state)
    }

    /// How many servers are read in the place of owners, those among them.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Whether owners are among those that are read.
    fn reads_owners(&self) -> bool {
        self.settings.policy == ReadPolicy::Nearest
    }

    /// Whether an owner has no replica, as far as is known.
    pub(crate) fn lacks(&self, owner: ServerId) -> bool {
        let mut all = self.all.iter();
        !all.any(|one| one.owner == owner && one.server != owner)
    }

    /// What INFO shows of a server that may be read.
    pub(crate) fn shown(&self, server: ServerId, at: &Address) -> Option<String> {
        let is_read = |one: &&Reader| one.server != one.owner || self.reads_owners();
        let one = self.of(server).filter(is_read)?;
        let tables = self.tables.iter().flatten();
        let seats = tables.flat_map(|seats| seats.iter().filter(|its| **its == server));
        let zone = self.settings.zone_of(at).or(one.state.zone.as_deref());
        let zone = zone.unwrap_or_default();
        let latency_us = one.state.latency_us.map_or(-1, |us| us as i64);
        let seats = seats.count();
        Some(format!("zone={zone},latency_us={latency_us},seats={seats}"))
    }

    /// Whether all sessions read their own writes, and how long a session does, milliseconds.
    pub(crate) fn own_writes(&self) -> (bool, u32) {
        (self.settings.all_own_writes, self.settings.own_writes_ms)
    }

    /// Whether a server is read, or may be.
    pub(crate) fn holds(&self, server: ServerId) -> bool {
        self.of(server).is_some()
    }
}

/// Of a session that reads its own writes, when it has written.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// It has written something, and has not been seen without anything in flight since.
    written: bool,
    /// Then the time since its last write is over.
    until_ms: Option<u32>,
}

/// Where requests are read.
impl Engine {
    /// The server that a request of a session is for, whose keys `owner` owns.
    #[inline]
    pub(crate) fn server_for(
        &mut self,
        key: Key,
        owner: ServerId,
        command: &Command,
    ) -> Result<ServerId, NoReader> {
        let Some(session) = self.sessions.get(key) else {
            return Ok(owner);
        };
        match &self.pool_of(owner).readers {
            None => Ok(owner),
            Some(_) if session.flags.any(Flags::READS_OTHERWISE) => {
                self.server_as_wanted(key, owner, command)
            }
            Some(readers) if command.replica => readers.instead_of(owner, key),
            Some(_) => Ok(owner),
        }
    }

    /// The same for a session that has said how it wants to read.
    #[cold]
    fn server_as_wanted(
        &mut self,
        key: Key,
        owner: ServerId,
        command: &Command,
    ) -> Result<ServerId, NoReader> {
        let now_ms = self.now_ms;
        let Some(session) = self.sessions.get_mut(key) else {
            return Ok(owner);
        };
        let is_caught_up = session.is_caught_up();
        let answered_ms = session.answered_at.stamp_ms();
        let own_writes_ms = self.pools.own_writes_ms(usize::from(session.pool));
        let reading = &mut session.rare().reading;
        reading.written |= may_write(command);
        let its = usize::from(self.servers[usize::from(owner.0)].pool);
        let Some(readers) = &self.pools[its].readers else {
            return Ok(owner);
        };
        if !command.replica || readers.settings.own_writes_ms == 0 {
            return Ok(owner);
        }
        if reading.written && is_caught_up {
            // What it wrote was answered then at the latest.
            reading.written = false;
            reading.until_ms = Some(answered_ms.wrapping_add(own_writes_ms));
        }
        let is_over = |until_ms: u32| (until_ms.wrapping_sub(now_ms) as i32) <= 0;
        if reading.written || !reading.until_ms.is_none_or(is_over) {
            return Ok(owner);
        }
        reading.until_ms = None;
        readers.instead_of(owner, key)
    }

    /// Who asks for anything but a read does not ask a replica. `command`: `None` if the table does not have it.
    pub(crate) fn turn_from_replica(&mut self, key: Key, command: Option<&Command>) {
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        let of = self.server(session.server).replica_of;
        let is_read = command.is_some_and(|command| command.replica);
        if let Some(owner) = of
            && !session.pins.bind()
            && (!is_read || session.flags.any(Flags::IN_MULTI))
        {
            let owner = match self.server(owner).gone {
                true => self.home_of(session),
                false => owner,
            };
            self.turn(key, owner);
        }
    }

    /// The same, but for a replica to which a link of the kind that is needed cannot be had (it has too many, or knows no such user): then
    /// the owner, if that may be read. On the way that most requests go such a link takes none, and they come this way.
    pub(crate) fn server_in_reach(
        &mut self,
        key: Key,
        owner: ServerId,
        command: &Command,
        kind: LinkKey,
    ) -> Result<ServerId, NoReader> {
        if self.tracks_several(key) {
            // A replica notes no reads for it.
            return Ok(owner);
        }
        let server = self.server_for(key, owner, command)?;
        if server != owner && self.may_be_read(owner) {
            let link = self.shared.get(&kind.at(server));
            let rests = |link: &Link| matches!(link.state, State::Resting { .. });
            if link
                .and_then(|link| self.links.get(*link))
                .is_some_and(rests)
            {
                return Ok(owner);
            }
        }
        Ok(server)
    }

    /// The server that is asked what another one has refused or lost: the owner, if that is there and may be read.
    pub(crate) fn server_at_last(
        &mut self,
        key: Key,
        owner: ServerId,
        command: &Command,
        kind: LinkKey,
    ) -> Result<ServerId, NoReader> {
        match self.may_be_read(owner) && !self.is_lost(owner) {
            true => Ok(owner),
            false => self.server_in_reach(key, owner, command, kind),
        }
    }

    /// Whether the policy leaves it to an owner to answer where no replica does.
    fn may_be_read(&self, owner: ServerId) -> bool {
        let readers = self.pool_of(owner).readers.as_deref();
        readers.is_none_or(|its| its.settings.policy != ReadPolicy::Replica)
    }

    /// The owner for which a replica stands; any other server for itself.
    pub(crate) fn owner_behind(&self, server: ServerId) -> ServerId {
        self.server(server).replica_of.unwrap_or(server)
    }

    /// A session asks for something with so many arguments that may change keys and name none.
    pub(crate) fn note_asked(&mut self, key: Key, asked: CommandId, argc: usize) {
        // A subcommand that the table does not have may be a newer server's.
        let is_unknown = asked.get().is_container() && argc > 1;
        if asked == id::EXEC || is_unknown || may_write(asked.get()) {
            self.note_write(key);
        }
    }

    /// A session may change something.
    pub(crate) fn note_write(&mut self, key: Key) {
        if let Some(session) = self.sessions.get_mut(key)
            && session.flags.any(Flags::READS_OTHERWISE)
        {
            session.rare().reading.written = true;
        }
    }

    /// READONLY and READWRITE where reads go to replicas: whether this session reads its own writes.
    pub(crate) fn set_reading(&mut self, key: Key, asked: CommandId) -> Placed {
        if let Some(session) = self.sessions.get_mut(key) {
            session.flags.remove(Flags::READS_OTHERWISE);
            if asked == id::READWRITE {
                session.flags |= Flags::READS_OTHERWISE;
                // What it has written before counts, too.
                session.rare().reading.written = true;
            }
        }
        self.answer_reply(key, OK)
    }

    /// A session begins anew.
    pub(crate) fn reset_reading(&mut self, key: Key) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.flags.remove(Flags::READS_OTHERWISE);
            if self.pools.all_read_own_writes(session.pool.into()) {
                session.flags |= Flags::READS_OTHERWISE;
            }
        }
    }
}

/// Whether something may be written by it, as far as the table says.
fn may_write(command: &Command) -> bool {
    let reads = command.flags.has(CommandFlags::READONLY);
    command.flags.has(CommandFlags::WRITE) || !reads && !command.keys.is_empty()
}

/// Which replicas there are, and how they are.
impl Engine {
    /// These are the replicas of the owners of a pool, or of those of them that are in `of`.
    pub(crate) fn know_replicas(
        &mut self,
        pool: usize,
        replicas: Vec<(Endpoint, ServerId)>,
        of: impl Fn(ServerId) -> bool,
    ) {
        if self.pools[pool].readers.is_none() {
            return;
        }
        let mut known: Vec<(ServerId, ServerId)> = Vec::new();
        for (endpoint, owner) in replicas {
            let so_far = known.iter().filter(|(_, its)| *its == owner).count();
            if so_far < REPLICAS_READ_MAX
                && let Some(server) = self.replica_at(pool, &endpoint, owner)
            {
                known.push((server, owner));
            }
        }
        let owners: Vec<ServerId> = self.pools[pool].servers().to_vec();
        let Some(readers) = &mut self.pools[pool].readers else {
            return;
        };
        // They are asked how they are, too, though not all policies read them.
        let asked = owners.iter().filter(|owner| of(**owner));
        known.extend(asked.map(|owner| (*owner, *owner)));
        let leaves = |one: &mut Reader| {
            (of(one.owner) || !owners.contains(&one.owner))
                && !known.contains(&(one.server, one.owner))
        };
        let left: Vec<Reader> = readers.all.extract_if(.., leaves).collect();
        let mut news = Vec::new();
        for (server, owner) in known {
            if readers.of(server).is_none() {
                // It may only have another owner now.
                let same = left.iter().find(|one| one.server == server);
                let state = same.map(|one| one.state.clone()).unwrap_or_default();
                readers.all.push(Reader {
                    server,
                    owner,
                    state,
                });
                news.push(server);
            }
        }
        for one in left {
            if !news.contains(&one.server) && one.server != one.owner {
                self.leave_replica(one.server);
            }
        }
        for server in news {
            self.reach(server);
            self.look_at(server);
        }
        self.deal_seats(pool);
    }

    /// The replica at this address; a new one, if there is none. `None` at [`SERVERS_MAX`](crate::limits::SERVERS_MAX).
    fn replica_at(&mut self, pool: usize, at: &Endpoint, of: ServerId) -> Option<ServerId> {
        let address = Address::Tcp {
            host: at.host.clone(),
            port: at.port,
        };
        let is_it = |server: &Server| {
            usize::from(server.pool) == pool
                && server.replica_of.is_some()
                && server.settings.address == address
        };
        if let Some(index) = self.servers.iter().position(is_it) {
            self.servers[index].replica_of = Some(of);
            // Nobody else gets its place.
            self.servers[index].gone = false;
            return Some(ServerId(index as u16));
        }
        let settings = ServerSettings {
            address,
            ..self.server(of).settings.clone()
        };
        let mut server = Server::new(pool as u16, &settings);
        server.replica_of = Some(of);
        self.add_server(server)
    }

    /// Nobody speaks of a replica any more.
    fn leave_replica(&mut self, server: ServerId) {
        self.servers[usize::from(server.0)].gone = true;
        self.turn_riders_home(server);
    }

    /// Asks the servers that are read how they are, sees who does not answer, and deals the seats anew.
    pub(crate) fn tick_readers(&mut self) {
        if self.pools.iter().all(|pool| pool.readers.is_none()) {
            return;
        }
        self.give_up_silent();
        for pool in 0..self.pools.len() {
            let now = self.now;
            let Some(readers) = &mut self.pools[pool].readers else {
                continue;
            };
            if now.since_ms(readers.looked_at) >= LOOK_MS {
                readers.looked_at = now;
                let servers: Vec<ServerId> = readers.all.iter().map(|one| one.server).collect();
                for server in servers {
                    self.look_at(server);
                }
            }
            self.deal_seats(pool);
            self.wake_at_rest(pool);
        }
    }

    /// Asks a server how it is, unless it owes an answer to that.
    pub(crate) fn look_at(&mut self, server: ServerId) {
        let pool = usize::from(self.server(server).pool);
        let now = self.now;
        // Another user may not be allowed to ask.
        let first = self.shared.get(&self.first_link(server)).copied();
        let is_up = |link: &Key| self.links.get(*link).is_some_and(Link::is_up);
        let link = first.filter(is_up);
        let Some((link, readers)) = link.zip(self.pools[pool].readers.as_mut()) else {
            return;
        };
        let Some(state) = readers.of_mut(server) else {
            return;
        };
        let owes = |since| now.since_ms(since) < KNOWN_MS;
        if state.asked_at.is_some_and(owes) {
            return;
        }
        state.asked_at = Some(now);
        let mut bytes = Vec::new();
        for request in LOOK {
            encode::request(&mut bytes, request);
        }
        self.put_ours(link, &bytes, Duty::Look { who: None });
    }

    /// A server has said who it is and how it is.
    pub(crate) fn take_look(&mut self, link: Key, who: &[u8], how: &[u8]) {
        let Some(server) = self.links.get(link).map(|link| link.key.server) else {
            return;
        };
        let now = self.now;
        let is_replica = self.server(server).replica_of.is_some();
        let pool = usize::from(self.server(server).pool);
        let Some(state) = self.pools[pool]
            .readers
            .as_mut()
            .and_then(|readers| readers.of_mut(server))
        else {
            return;
        };
        let Some(asked_at) = state.asked_at.take() else {
            return;
        };
        let before = (state.said_at, state.says, state.zone.take());
        let took_us = now.since_us(asked_at);
        state.latency_us = Some(match state.latency_us {
            Some(before) => (3 * before + took_us) / 4,
            None => took_us,
        });
        let zone = field(who, "availability_zone").filter(|zone| !zone.is_empty());
        state.zone = zone.map(str::to_owned);
        state.said_at = Some(now);
        let process = field(who, "run_id").map(hash);
        if state.process.is_some() && state.process != process {
            // It has ended meanwhile, and may have lost what it had.
            state.says = Says::Otherwise;
        }
        state.process = process;
        state.note_stream(how);
        state.says = match is_replica {
            true => state.says.then(how),
            // That it is there, it says by its replies.
            false => Says::Follows,
        };
        let is_same = before.0.is_some_and(|at| now.since_ms(at) < KNOWN_MS)
            && (before.1, &before.2) == (state.says, &state.zone);
        // What the round trips say may wait for the next tick.
        if !is_same {
            self.deal_seats(pool);
            // Who has waited for that reads there now.
            self.wake_at_rest(pool);
        }
    }

    /// The connection to a server is lost. Who answers there next may be another one, or without its keys: it is not read before it has
    /// said how it is.
    pub(crate) fn forget_look(&mut self, link: Key) {
        let Some(server) = self.links.get(link).map(|link| link.key.server) else {
            return;
        };
        let is_first = self.shared.get(&self.first_link(server)) == Some(&link);
        let pool = usize::from(self.server(server).pool);
        if let Some(readers) = self.pools[pool].readers.as_mut().filter(|_| is_first)
            && let Some(state) = readers.of_mut(server)
        {
            (state.asked_at, state.said_at) = (None, None);
        }
    }

    /// A replica has refused a read: it is not asked for a while.
    pub(crate) fn note_refused_read(&mut self, server: ServerId) {
        let pool = usize::from(self.server(server).pool);
        let (now, until) = (self.now, self.now.plus_ms(REFUSED_MS));
        let state = self.pools[pool].readers.as_mut();
        let Some(state) = state.and_then(|readers| readers.of_mut(server)) else {
            return;
        };
        // Of many that it refuses at once, the first has taken its seats.
        let has_seats = state.refused_until <= now;
        state.refused_until = until;
        if has_seats {
            self.deal_seats(pool);
        }
    }

    /// Replicas that owe replies and bring none are asked no more, and others are asked what they were; and what owners that bring none
    /// were asked, as far as it is read and others may answer.
    fn give_up_silent(&mut self) {
        let given_up_ms = match self.settings.timeouts.request_ms {
            0 => GIVEN_UP_MS,
            limit_ms => (u64::from(limit_ms) / 3).clamp(SILENT_MS, GIVEN_UP_MS),
        };
        let is_silent = |link: &Link| {
            self.server(link.key.server).replica_of.is_some()
                && self.is_silent(link, given_up_ms)
                // What takes long wherever it is asked is left to end here.
                && link.ledger.front().is_none_or(|entry| entry.before != Before::Lost)
        };
        let links = self.links.iter();
        let silent = links.filter(|(_, link)| is_silent(link));
        let silent: Vec<Key> = silent.map(|(key, _)| key).collect();
        for key in silent {
            self.lose_link(key, "it sent nothing for long, and its reads go elsewhere");
        }
        let owes_reads = |link: &Link| {
            let pool = self.pool_of(link.key.server);
            pool.readers.is_some() && self.is_silent(link, given_up_ms)
        };
        let links = self.links.iter();
        let silent = links.filter(|(_, link)| owes_reads(link));
        let silent: Vec<Key> = silent.map(|(key, _)| key).collect();
        for key in silent {
            self.move_reads(key);
        }
    }

    /// Who can be read may have changed.
    pub(crate) fn deal_seats(&mut self, pool: usize) {
        let Some(readers) = &self.pools[pool].readers else {
            return;
        };
        let settings = &readers.settings;
        let reads_owners = readers.reads_owners();
        let (mut tables, mut count) = (vec![None; self.servers.len()], 0);
        for owner in self.pools[pool].servers() {
            let its = readers.all.iter().filter(|one| one.owner == *owner);
            let its = its.filter(|one| one.server != *owner || reads_owners);
            let candidates = its
                .filter(|one| self.why_unread(one).is_none())
                .filter_map(|one| self.candidate(one, settings));
            let before = readers.tables.get(usize::from(owner.0));
            let before = before.and_then(Option::as_deref);
            let chosen = choose(candidates.collect(), settings, before);
            count += chosen.len().max(1);
            let seats = match settings.policy {
                ReadPolicy::PreferPrimary if !self.is_lost(*owner) => None,
                _ => seat_again(&chosen, before),
            };
            tables[usize::from(owner.0)] = seats;
        }
        if let Some(readers) = &mut self.pools[pool].readers {
            readers.count = count;
            readers.tables = tables;
        }
        self.tell_readers(pool);
    }

    /// Whether an owner cannot be asked just now, and could before.
    fn is_lost(&self, owner: ServerId) -> bool {
        self.first_link_is(owner, |link| {
            let was_tried = link.failures > 0 || link.lost_at.is_some();
            !link.is_up() && was_tried || self.is_silent(link, GIVEN_UP_MS)
        })
    }

    /// Whether a replica of an owner was lost a moment ago, is connected to anew and has not yet said how it is. A Sentinel that
    /// makes it a primary ends its connections.
    pub(crate) fn awaits_reader(&self, owner: ServerId) -> bool {
        let readers = self.pools[usize::from(self.server(owner).pool)]
            .readers
            .as_deref();
        let returns = |link: &Link| {
            let is_fresh = |at| self.now.since_ms(at) < TAKEN_OVER_MS;
            link.lost_at.is_some_and(is_fresh) && !matches!(link.state, State::Resting { .. })
        };
        let mut all = readers.into_iter().flat_map(|its| &its.all);
        all.any(|one| {
            one.owner == owner
                && one.server != owner
                && one.state.said_at.is_none()
                && self.first_link_is(one.server, returns)
        })
    }

    /// Why a server cannot be read just now, if it cannot.
    fn why_unread(&self, one: &Reader) -> Option<&'static str> {
        let is_known = |at: Option<Time>| at.is_some_and(|at| self.now.since_ms(at) < KNOWN_MS);
        if !self.first_link_is(one.server, Link::is_up) {
            Some("there is no connection")
        } else if !self.speaks(one.server) && self.has_other(one) {
            Some("it owes replies and sends nothing")
        } else if self.now < one.state.refused_until {
            Some("it has refused a read")
        } else {
            match one.state.says {
                _ if !is_known(one.state.said_at) => Some("it does not say how it is"),
                Says::Otherwise => Some("it does not say that it follows its primary"),
                // While that is not there, nobody has anything newer.
                Says::Followed if !self.is_lost(one.owner) => Some("it has lost its primary"),
                Says::Follows if self.follows_another(one) => Some("it follows another primary"),
                Says::Follows if self.is_cut_off(one) => {
                    Some("it hears nothing of its primary, which has more")
                }
                Says::Followed | Says::Follows => None,
            }
        }
    }

    /// Whether a server is connected, and owes no reply for long.
    fn speaks(&self, server: ServerId) -> bool {
        self.first_link_is(server, |link| {
            link.is_up() && !self.is_silent(link, SILENT_MS)
        })
    }

    /// Whether somebody else may answer what a server is asked. If nobody may, it is better waited for.
    fn has_other(&self, one: &Reader) -> bool {
        let pool = self.pool_of(one.server);
        let mut all = pool.readers.iter().flat_map(|its| &its.all);
        let is_other = |other: &Reader| other.owner == one.owner && other.server != one.server;
        let owner_may = self.may_be_read(one.owner) && !self.is_lost(one.owner);
        owner_may
            || all.any(|other| {
                is_other(other) && other.server != one.owner && self.speaks(other.server)
            })
    }

    /// Whether a replica takes in what another primary gives out than the one that the Sentinels name. A Cluster's says MOVED itself.
    fn follows_another(&self, one: &Reader) -> bool {
        let stream = self.state_of_owner(one).and_then(|owner| owner.stream);
        self.pool_of(one.server).watch.is_some()
            && stream.is_some()
            && stream != one.state.stream
            && !self.is_lost(one.owner)
    }

    /// Whether a replica does not get what its primary gives out, though it believes that they are connected.
    fn is_cut_off(&self, one: &Reader) -> bool {
        let owner = self.state_of_owner(one);
        owner.is_some_and(|owner| one.state.lacks_what_has(owner)) && !self.is_lost(one.owner)
    }

    /// What the primary of this one has said.
    fn state_of_owner(&self, one: &Reader) -> Option<&ReaderState> {
        let readers = self.pool_of(one.server).readers.as_ref()?;
        readers.of(one.owner).map(|owner| &owner.state)
    }

    /// Says whose reads begin and end. Those of owners nobody has to be told of.
    fn tell_readers(&mut self, pool: usize) {
        let Some(readers) = &self.pools[pool].readers else {
            return;
        };
        let is_new = |(_, one, why): &(usize, &Reader, Option<_>)| {
            one.server != one.owner && one.state.is_read == why.is_some()
        };
        let all = readers.all.iter().enumerate();
        let changed = all.map(|(index, one)| (index, one, self.why_unread(one)));
        let changed: Vec<(usize, String)> = changed
            .filter(is_new)
            .map(|(index, one, why)| {
                let label = &self.server(one.server).label;
                let text = match why {
                    None => format!("the replica {label} is read"),
                    Some(why) => format!("the replica {label} is not read: {why}"),
                };
                (index, text)
            })
            .collect();
        for (index, text) in changed {
            if let Some(readers) = &mut self.pools[pool].readers {
                let state = &mut readers.all[index].state;
                state.is_read = !state.is_read;
            }
            self.tell_topology(pool, text);
        }
    }

    /// `None`: it has no weight.
    fn candidate(&self, one: &Reader, settings: &Reads) -> Option<Candidate> {
        let state = &one.state;
        let address = &self.server(one.server).settings.address;
        let weight = settings.weight_of(address);
        (weight > 0).then(|| Candidate {
            server: one.server,
            zone: settings
                .zone_of(address)
                .or(state.zone.as_deref())
                .map(str::to_owned),
            weight,
            latency_us: state.latency_us.unwrap_or_default(),
        })
    }
}

impl ReaderState {
    /// What INFO says of the stream of changes.
    fn note_stream(&mut self, how: &[u8]) {
        let number = |name| field(how, name).and_then(|number| number.parse::<u64>().ok());
        self.stream = field(how, "master_replid").map(hash);
        self.had = self.offset;
        // Of a replica, `master_repl_offset` may be what it gives out itself.
        self.offset = number("slave_repl_offset").or_else(|| number("master_repl_offset"));
        let unheard_s = number("master_last_io_seconds_ago").unwrap_or_default();
        self.hears_nothing = unheard_s > UNHEARD_S;
    }

    /// Whether this replica has heard nothing for long, and misses something of what its primary has said to have given out.
    fn lacks_what_has(&self, primary: &ReaderState) -> bool {
        let is_behind = primary.had > self.offset || primary.stream != self.stream;
        self.hears_nothing && primary.had.is_some() && is_behind
    }
}

impl Says {
    /// After that, of what INFO says of replication.
    fn then(self, how: &[u8]) -> Says {
        let says = |name, value| field(how, name) == Some(value);
        // -1: it never had a primary.
        let never = says("master_link_down_since_seconds", "-1");
        if says("role", "master") && self != Says::Otherwise {
            Says::Followed
        } else if !says("role", "slave") || says("master_sync_in_progress", "1") {
            Says::Otherwise
        } else if says("master_link_status", "up") {
            Says::Follows
        } else if says("master_link_status", "down") && !never {
            Says::Followed
        } else {
            Says::Otherwise
        }
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    hasher.finish()
}

/// The value of a field of INFO.
fn field<'a>(reply: &'a [u8], name: &str) -> Option<&'a str> {
    let mut lines = reply.split(|byte| *byte == b'\n');
    let value = lines.find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b":"))?;
    std::str::from_utf8(value.trim_ascii_end()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_info_are_found() {
        let info = b"$60\r\n# Replication\r\nrole:slave\r\nmaster_link_status:up\r\n\r\n";
        assert_eq!(field(info, "role"), Some("slave"));
        assert_eq!(field(info, "master_link_status"), Some("up"));
        assert_eq!(field(info, "master_link"), None);
        assert_eq!(Says::Otherwise.then(info), Says::Follows);
        // Its primary is gone, and it has taken over.
        assert_eq!(Says::Follows.then(b"role:master\r\n"), Says::Followed);
        for (info, says) in [
            (
                &b"role:slave\r\nmaster_link_status:down\r\nmaster_link_down_since_seconds:3\r\n"[..],
                Says::Followed,
            ),
            (
                b"role:slave\r\nmaster_link_status:down\r\nmaster_link_down_since_seconds:-1\r\n",
                Says::Otherwise,
            ),
            (
                b"role:slave\r\nmaster_link_status:up\r\nmaster_sync_in_progress:1\r\n",
                Says::Otherwise,
            ),
            (b"role:master\r\n", Says::Otherwise),
            (b"-NOPERM no", Says::Otherwise),
        ] {
            assert_eq!(Says::Otherwise.then(info), says, "{}", info.escape_ascii());
        }
    }

    #[test]
    fn who_has_heard_nothing_for_long_and_has_less_than_its_primary_is_cut_off() {
        // At two looks, one behind the other: the primary's word of the first counts.
        let said = |how: &str| {
            let mut state = ReaderState::default();
            state.note_stream(how.as_bytes());
            state.note_stream(&how.replace("offset:100", "offset:120").into_bytes());
            state
        };
        let primary = |offset: &str| said(&format!("master_replid:a\r\n{offset}"));
        let replica = |heard: &str, stream: &str, offset: u64| {
            said(&format!(
                "{heard}slave_repl_offset:{offset}\r\nmaster_replid:{stream}\r\nmaster_repl_offset:7\r\n"
            ))
        };
        let heard = |ago: &str| format!("master_last_io_seconds_ago:{ago}\r\n");
        let at_100 = "master_repl_offset:100\r\n";
        for (ago, stream, offset, primary_says, is_cut_off) in [
            (heard("16"), "a", 99, at_100, true),
            (heard("16"), "b", 100, at_100, true),
            (heard("16"), "a", 100, at_100, false),
            // It was asked later than its primary.
            (heard("16"), "a", 101, at_100, false),
            (heard("15"), "a", 99, at_100, false),
            (heard("-1"), "a", 99, at_100, false),
            (String::new(), "a", 99, at_100, false),
            (heard("16"), "a", 99, "", false),
        ] {
            let replica = replica(&ago, stream, offset);
            assert_eq!(
                replica.lacks_what_has(&primary(primary_says)),
                is_cut_off,
                "{ago:?} {stream} {offset} {primary_says:?}"
            );
        }
    }
}
