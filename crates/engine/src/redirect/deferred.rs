//! A node that executed nothing, and says so: its request is asked again, where it belongs or when
//! it may be.
//!
//! ```text
//!   MOVED, ASK                                       ─► to the node that was named
//!   TRYAGAIN, CLUSTERDOWN, LOADING, ... READONLY     ─► to the slot's owner, a little later
//!   UNBLOCKED, if a server does that itself          ─► the same
//! ```
//!
//! Not so a slot that nobody owns: then its client gets the node's words ([`Engine::is_nobodys`]).
//!
//! Such a request is put off: it is the session's until it is sent again, and the session is not
//! read meanwhile. What it asked besides is on its way already, and is waited for. When nothing of
//! the session is in flight any more, what was put off is sent in the order in which it was asked.
//! Some of what was asked behind it may have been executed: if that was about the same keys, what
//! was put off must not be executed any more, and its client gets what the node had said. And of
//! two about the same keys that go to different nodes, the second goes when the first is answered.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hasher};

use respool_protocol::cluster::{Endpoint, Redirect, Refusal};
use respool_protocol::commands::{self, CommandId, Flags as CommandFlags, Spread, id};
use respool_protocol::encode;
use respool_protocol::request::{Found, Scanner};
use respool_protocol::slot::hash_slot;

use crate::belief::{self, Asked, Belief, belief};
use crate::cluster::Cluster;
use crate::duty::{Duty, Proof};
use crate::engine::{Engine, TICK_MS};
use crate::entry::{Before, Class, Entry};
use crate::failure::{self, Cause, Fate};
use crate::link::{Link, LinkKey, Role, State};
use crate::pool::ServerId;
use crate::readers::{NO_READER, NoReader, Readers};
use crate::requests::bound_reply;
use crate::session::{Flags, Pins, Session};
use crate::settings::Address;
use crate::slots::{Key, Slots};
use crate::time::Time;
use crate::unknown::Learned;

/// The command that has to stand in front of one that a node was named for by ASK.
pub(crate) const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// How long a request is asked again where requests have no deadline, milliseconds.
const ASKED_AGAIN_MS: u32 = 10_000;

/// A request that may wait at its node has waited there if it was there for so long, milliseconds.
const WAITED_MS: u32 = 1_000;

/// A request that its node did not execute.
struct PutOff {
    entry: Entry,
    duty: Option<Duty>,
    request: Vec<u8>,
    /// The kind of link on which it was asked; its server is where.
    asked: LinkKey,
    to: To,
    about: About,
    /// Not before then.
    due: Time,
    /// It may have to wait at its node, on a link of its session's own.
    waits: bool,
    /// What the node said.
    refusal: Vec<u8>,
    /// A request behind it was executed and changed its keys, or saw them.
    overtaken: bool,
}

/// What is kept of a request that was put off, apart from its bytes and its server's words.
const PUT_OFF_BYTES: usize = 2 * size_of::<PutOff>();

/// The server that gets the request next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// The owner of its slot at that time.
    Owner,
    /// This server, with [`ASKING`].
    Importer(ServerId),
    /// This server. A replica has named it as the owner of a slot, or a node has in a reply to a
    /// request whose keys we do not see.
    Named(ServerId),
    /// No server yet: the request may have run. A second question is on its way to the server, on
    /// this link, since that time. `again`: the request was put off before.
    Unproven { link: Key, since: Time, again: bool },
}

/// What a session has put off.
#[derive(Default)]
pub(crate) struct Delayed {
    /// In the order of their places.
    items: VecDeque<PutOff>,
    /// What else it had in flight when that began, on the same links.
    others: Vec<Other>,
    /// The places of requests that were sent to an importing node, with [`ASKING`] in front.
    imported: Vec<u32>,
    /// Those links.
    looked_through: Vec<Key>,
    /// Since when a request is put off that may have to wait.
    waits_since_ms: u32,
    /// What has come behind it is more than may wait for it.
    is_too_much: bool,
    /// Whether its session is on one of the engine's lists of those that have put something off.
    is_listed: bool,
    /// When the first of it may be asked, when the oldest of it was, and how often it had been
    /// stirred when it was looked at.
    due: Time,
    oldest_ms: u32,
    stirs: u32,
}

/// A request that was in flight when one in front of it was put off.
struct Other {
    seq: u32,
    about: About,
    /// It was put off, too.
    is_put_off: bool,
}

impl Delayed {
    pub(crate) fn held_bytes(&self) -> usize {
        self.items.iter().map(|item| item.request.len()).sum()
    }

    /// The same with what is kept of each of them.
    pub(crate) fn memory_bytes(&self) -> usize {
        let each = |item: &PutOff| item.request.len() + item.refusal.len() + PUT_OFF_BYTES;
        let others = self.others.capacity() * size_of::<Other>();
        self.items.iter().map(each).sum::<usize>() + others
    }

    /// More has come behind it than may wait: it is not asked again.
    pub(crate) fn give_up(&mut self) {
        self.is_too_much = true;
    }

    /// Whether what has this place is put off.
    pub(crate) fn holds(&self, seq: u32) -> bool {
        self.items.front().is_some_and(|item| item.entry.seq == seq)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether one of them may be asked, if its session has nothing else in flight, or it would be
    /// known what has overtaken them.
    fn is_due(&self, now: Time, stirs: u32) -> bool {
        self.due <= now || self.stirs != stirs || !self.others.is_empty()
    }

    /// Since when a request has waited, as ledgers keep it.
    fn asked_at_ms(&self, item: &PutOff) -> u32 {
        match item.waits {
            true => self.waits_since_ms,
            false => item.entry.at_ms,
        }
    }

    /// What is put off has changed, and was looked at now.
    fn sum_up(&mut self, now_ms: u32, stirs: u32) {
        let due = self.items.iter().map(|item| item.due).min();
        let asked = self.items.iter().map(|item| self.asked_at_ms(item));
        let oldest = asked.max_by_key(|at_ms| now_ms.wrapping_sub(*at_ms));
        self.oldest_ms = oldest.unwrap_or(now_ms);
        self.due = due.unwrap_or_default();
        self.stirs = stirs;
    }

    /// Whether a request of it may have to wait at its node.
    pub(crate) fn waits(&self) -> bool {
        self.items.iter().any(|item| item.waits)
    }

    /// When the oldest of it was asked, as ledgers keep it.
    pub(crate) fn oldest_at_ms(&self) -> Option<u32> {
        let places = self.items.iter().filter(|item| !item.waits);
        places.map(|item| item.entry.at_ms).next()
    }
}

/// What a request is about.
#[derive(Default)]
struct About {
    /// The slot of its first key.
    slot: Option<u16>,
    /// Its keys, hashed: to take two for the same that are not does no harm.
    keys: Vec<u64>,
    /// It is about all keys (FLUSHALL, DBSIZE).
    all_keys: bool,
    reads: bool,
    /// Its error texts may be its client's, see [`belief::runs_code`].
    runs_code: bool,
}

impl About {
    /// Of a request, or of all requests of a block, as a server of this pool or part sees it.
    fn of(learned: &Learned, requests: &[u8], pool: u16, reads: bool) -> About {
        let mut about = About {
            reads,
            ..About::default()
        };
        let mut at = 0;
        let mut scanner = Scanner::default();
        while let Ok(Found::Request { len }) = scanner.scan(&requests[at..], true) {
            let request = &requests[at..at + len];
            let spans = scanner.spans();
            let arg = |index: usize| spans[index].of(request);
            let mut note = |index: usize| {
                let key = arg(index);
                about.slot.get_or_insert_with(|| hash_slot(key));
                let mut hasher = DefaultHasher::new();
                // Two of them may call two keys the same.
                hasher.write_u16(pool);
                hasher.write(key);
                about.keys.push(hasher.finish());
            };
            match commands::resolve(spans.len(), arg) {
                Some(id) => {
                    // Where its keys are cannot be said: then its server refuses it.
                    let _ = id.get().keys(spans.len(), arg, |index, _| note(index));
                    about.runs_code |= belief::runs_code(Some(id));
                    about.all_keys |= is_about_all_keys(id);
                }
                None => {
                    let keys = learned.keys_of(arg(0));
                    keys.places(spans.len()).for_each(note);
                    about.runs_code = true;
                }
            }
            at += len;
        }
        about
    }

    /// Whether it changes something, and may change anything: it names no keys.
    fn may_change_all(&self) -> bool {
        self.keys.is_empty() && !self.reads
    }
}

impl Engine {
    /// The slot of the first key that a request names, as the servers of this pool or part see it.
    pub(crate) fn slot_named_in(&self, request: &[u8], pool: u16) -> Option<u16> {
        About::of(&self.learned, request, pool, false).slot
    }
}

/// As what is for all servers where there are several: what changes or reads keys of it.
fn is_about_all_keys(id: CommandId) -> bool {
    let command = id.get();
    matches!(command.fan_out.spread, Spread::All | Spread::Turns)
        && (command.flags.has(CommandFlags::WRITE) || command.flags.has(CommandFlags::READONLY))
}

/// Keys, and whether something about them only reads.
#[derive(Default)]
struct Touched {
    any: HashSet<u64>,
    written: HashSet<u64>,
    /// Something that may change any of them ...
    all: bool,
    /// ... or reads all.
    all_read: bool,
}

impl Touched {
    fn add(&mut self, about: &About) {
        self.all |= about.may_change_all();
        self.all_read |= about.all_keys;
        self.any.extend(&about.keys);
        if !about.reads {
            self.written.extend(&about.keys);
        }
    }

    /// Whether it matters in which order that is executed.
    fn conflicts_with(&self, about: &About) -> bool {
        let all = match about.all_keys {
            true => !self.written.is_empty(),
            false => self.all_read && !about.reads && !about.keys.is_empty(),
        };
        if self.all || all || about.may_change_all() && !self.any.is_empty() {
            return true;
        }
        let keys = match about.reads {
            true => &self.written,
            false => &self.any,
        };
        about.keys.iter().any(|key| keys.contains(key))
    }
}

/// What a request on a link is without what we have put in front of it.
pub(crate) fn as_asked(request: &[u8]) -> &[u8] {
    request.strip_prefix(ASKING).unwrap_or(request)
}

impl Engine {
    /// The reply in front is an error, on a link whose server may send us elsewhere. Whether it has
    /// executed nothing, and somebody else may, or it later: then the request has left the link.
    #[cold]
    pub(crate) fn goes_elsewhere(&mut self, key: Key, reply: &[u8]) -> bool {
        let said = reply.strip_prefix(b"-").unwrap_or_default();
        let Some(link) = self.links.get_mut(key) else {
            return false;
        };
        let Some(front) = link.first_in_flight() else {
            return false;
        };
        if let Some(Duty::Block {
            before,
            came,
            refusal,
            ..
        }) = link.duties.front_mut().filter(|_| front.duty)
        {
            let refused = Refusal::of(said).is_some();
            match refusal {
                _ if *came < *before => {
                    // EXEC tells what becomes of it.
                    if refused && refusal.is_none() {
                        *refusal = Some(reply.to_vec());
                    }
                    return false;
                }
                Some(first) if said.starts_with(b"EXECABORT") => {
                    let first = std::mem::take(first);
                    return self.goes_elsewhere(key, &first);
                }
                _ => {}
            }
        }
        let Some(refusal) = Refusal::of(said) else {
            return false;
        };
        let is_of_request = match link.duties.front().filter(|_| front.duty) {
            // Others may have asked the same as who does not want it any more.
            None => front.session != Key::NOBODY || link.shares_next(),
            Some(duty) => duty.is_of_request(),
        };
        if !is_of_request || matches!(link.role, Role::Hub(_) | Role::Sentinel) {
            return false;
        }
        let asked = match link.duties.front().filter(|_| front.duty) {
            Some(Duty::Block { opens: true, .. }) => Some(Asked::Block),
            // Its requests were executed one by one: no reply speaks for all of them.
            Some(Duty::Block { .. }) => return false,
            _ => None,
        };
        let is_block = asked.is_some();
        let pool = self.servers[usize::from(link.key.server.0)].pool;
        let request = as_asked(link.first_bytes());
        let about = About::of(&self.learned, request, pool, front.class.reads());
        let (server, role) = (link.key.server, link.role);
        let asked = asked.unwrap_or(match about.runs_code {
            true => Asked::Code,
            false => Asked::Plain,
        });
        match belief(asked, refusal) {
            Belief::Believed => {}
            Belief::Confirm => return self.await_proof(key, front, refusal, reply),
            Belief::AskRole => {
                self.ask_role(server);
                return false;
            }
            Belief::Answer => return false,
        }
        if self.is_nobodys(server, said, about.slot) {
            if is_block {
                // EXEC says less.
                self.answer_front(key, front, reply);
            }
            return is_block;
        }
        let to = self.follow(server, about.slot, said, refusal);
        if front.len == 0 {
            let mut told = Vec::new();
            let server = self.label(key);
            failure::append_reply(&mut told, Fate::NotSent, Cause::TooLargeToMove { server });
            self.answer_front(key, front, &told);
            return true;
        }
        match role {
            Role::Pinned { by } => self.leave_own_node(key, by, front, to, refusal, reply),
            _ => self.put_off_front(key, (to, refusal), false, reply),
        }
        true
    }

    /// What a refusal says of who owns what. `slot`: that of the request, as far as we see its
    /// keys.
    pub(crate) fn follow(
        &mut self,
        server: ServerId,
        slot: Option<u16>,
        said: &[u8],
        refusal: Refusal,
    ) -> To {
        let pool = usize::from(self.server(server).pool);
        let of_replica = self.server(server).replica_of.is_some();
        match refusal {
            Refusal::Moved | Refusal::Ask => {
                let redirect = Redirect::read(said);
                let named = redirect.as_ref();
                let named = named.and_then(|redirect| self.server_named_by(server, redirect));
                let Some((redirect, named)) = redirect.zip(named) else {
                    // It points to nowhere that we could go to, or not yet.
                    self.doubt_owners(server);
                    return To::Owner;
                };
                self.reach(named);
                if redirect.ask {
                    self.counters.redirected_ask += 1;
                    return To::Importer(named);
                }
                self.counters.redirected_moved += 1;
                if of_replica {
                    // It may be late itself: nobody but the one whose read it was goes by it, and
                    // owners are asked.
                    if self.owner_of_slot(pool, redirect.slot) == Some(named) {
                        self.note_refused_read(server);
                    }
                    self.doubt_owners(server);
                    return To::Named(named);
                }
                self.heal_slot(pool, redirect.slot, named);
                if slot != Some(redirect.slot) {
                    return To::Named(named);
                }
            }
            // That the Cluster is down, any of its nodes would say.
            _ if of_replica && refusal != Refusal::ClusterDown => {
                self.counters.refused_for_now += 1;
                self.note_refused_read(server);
            }
            Refusal::ReadOnly | Refusal::Unblocked | Refusal::ClusterDown | Refusal::MasterDown => {
                self.counters.refused_for_now += 1;
                self.doubt_primary(server);
                self.doubt_lost_owner(server);
            }
            Refusal::TryAgain | Refusal::Loading => self.counters.refused_for_now += 1,
        }
        To::Owner
    }

    /// The server that a redirect names. `None`: no node has named that address in an answer about
    /// the topology. Then respool asks the node about the topology.
    fn server_named_by(&mut self, server: ServerId, redirect: &Redirect<'_>) -> Option<ServerId> {
        let host = match (redirect.host, &self.server(server).settings.address) {
            (Some(host), _) => host.to_owned(),
            (None, Address::Tcp { host, .. }) => host.clone(),
            (None, Address::Unix(_)) => return None,
        };
        let port = redirect.port;
        self.known_server_at(server, Endpoint { host, port }, redirect.ask)
    }

    /// The request in front, and those that are the same, leave the link; their sessions keep them.
    /// `waits`: it may have to wait at its node.
    fn put_off_front(&mut self, key: Key, (to, why): (To, Refusal), waits: bool, reply: &[u8]) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let asked = link.key;
        let front = link.first_in_flight();
        let (entries, request, mut duty) = match front.filter(|front| front.duty) {
            Some(front) => {
                let request = as_asked(link.first_bytes()).to_vec();
                let mut duty = link.duties.pop_front();
                if let Some(Duty::Block { came, refusal, .. }) = &mut duty {
                    (*came, *refusal) = (0, None);
                }
                link.pop_answered(front);
                (vec![front], request, duty)
            }
            None => {
                let (alone, request) = link.take_alone();
                (alone, request, None)
            }
        };
        self.counters.link_replies += 1;
        let pool = self.server(asked.server).pool;
        let now = matches!(why, Refusal::Moved | Refusal::Ask);
        for entry in entries {
            // Who was sent from one to the other and back is in no hurry.
            let is_again = matches!(entry.before, Before::Refused | Before::Lost);
            let soon = now && !is_again && !matches!(to, To::Unproven { .. });
            let item = PutOff {
                entry: Entry {
                    len: request.len() as u32,
                    class: Class::of(entry.class.reads()),
                    ..entry
                },
                duty: duty.take(),
                about: About::of(&self.learned, &request, pool, entry.class.reads()),
                request: request.clone(),
                asked,
                to,
                due: match soon {
                    true => self.now,
                    false => self.now.plus_ms(TICK_MS),
                },
                waits,
                refusal: reply.to_vec(),
                overtaken: false,
            };
            self.put_off(key, item);
        }
    }

    /// A request that was on this link is its session's again.
    fn put_off(&mut self, link: Key, mut item: PutOff) {
        let (key, seq) = (item.entry.session, item.entry.seq);
        let now_ms = self.now_ms;
        let Some(session) = self.sessions.get_mut(key) else {
            self.counters.late_replies += 1;
            return;
        };
        let waited_ms = now_ms.wrapping_sub(item.entry.at_ms);
        let is_new = item.entry.before != Before::Refused || waited_ms >= WAITED_MS;
        // What was lost is asked again once, wherever.
        if item.entry.before != Before::Lost {
            item.entry.before = Before::Refused;
        }
        session.flags |= Flags::UNFORESEEN;
        let delayed = &mut session.rare().delayed;
        if item.waits && is_new {
            delayed.waits_since_ms = now_ms;
        }
        if !std::mem::replace(&mut delayed.is_listed, true) {
            self.put_off_now.push(key);
        }
        if delayed.items.is_empty() {
            // Those that were given back before all else was answered have left it behind.
            delayed.others.clear();
            delayed.imported.clear();
            delayed.looked_through.clear();
            (delayed.due, delayed.oldest_ms) = (item.due, item.entry.at_ms);
        }
        if !delayed.looked_through.contains(&link) {
            delayed.looked_through.push(link);
            let others = self.in_flight_of(key, link);
            if let Some(session) = self.sessions.get_mut(key) {
                session.rare().delayed.others.extend(others);
            }
        }
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let delayed = &mut session.rare().delayed;
        let is_it = |other: &&mut Other| {
            other.seq == seq && !other.is_put_off && other.about.keys == item.about.keys
        };
        if let Some(other) = delayed.others.iter_mut().find(is_it) {
            other.is_put_off = true;
        }
        self.held_bytes += item.request.len();
        let in_front = |other: &PutOff| (other.entry.seq.wrapping_sub(seq) as i32) <= 0;
        let place = delayed.items.partition_point(in_front);
        delayed.due = delayed.due.min(item.due);
        let waited_ms = now_ms.wrapping_sub(item.entry.at_ms);
        if !item.waits && waited_ms > now_ms.wrapping_sub(delayed.oldest_ms) {
            delayed.oldest_ms = item.entry.at_ms;
        }
        delayed.items.insert(place, item);
        let is_head = session.head_is_put_off();
        self.hold_until_caught_up(key);
        if is_head {
            // It waits for what was not to come before it.
            self.unpause_captured(key);
        }
    }

    /// What a session has on a link.
    fn in_flight_of(&self, key: Key, link: Key) -> Vec<Other> {
        let Some(link) = self.links.get(link) else {
            return Vec::new();
        };
        let pool = self.server(link.key.server).pool;
        let mut found = Vec::new();
        let (mut at, mut sent_at): (usize, (&[u8], _)) = (0, (b"", 0..0));
        for entry in &link.ledger {
            let end = at + entry.len as usize;
            if entry.class != Class::Same {
                sent_at = (entry.class.beginning(), at..end);
            }
            at = end;
            if entry.session == key {
                let (beginning, sent_at) = sent_at.clone();
                let request = [beginning, &link.out.bytes()[sent_at]].concat();
                let request = as_asked(&request);
                found.push(Other {
                    seq: entry.seq,
                    about: About::of(&self.learned, request, pool, entry.class.reads()),
                    is_put_off: false,
                });
            }
        }
        found
    }

    /// Its client gets what the node had said, if that is for clients.
    fn give_back_refusal(&mut self, item: PutOff) {
        self.held_bytes -= item.request.len();
        if item.is_unproven() {
            // It may have run: these are its own words.
            return self.pass_on(item.entry, &item.refusal);
        }
        let reply = match item.is_named_elsewhere() {
            true => moved_away(&self.server(item.asked.server).label),
            false => item.refusal,
        };
        self.counters.failed_not_sent += 1;
        self.pass_on(item.entry, &reply);
    }

    /// Asks again what may be. Whoever has put something off in this turn is looked at now; then
    /// whoever still waits, of whom there may be thousands: so no sooner than in as many
    /// microseconds as they were, or in a tick, which leaves most of the time to those who ask of
    /// other servers.
    pub(crate) fn ask_put_off(&mut self) {
        for key in std::mem::take(&mut self.put_off_now) {
            self.look_at_put_off(key);
        }
        self.put_off_missed = self.now < self.put_off_at;
        if self.put_off_missed {
            return;
        }
        for key in std::mem::take(&mut self.put_off_sessions) {
            self.look_at_put_off(key);
        }
        let pause_us = self.put_off_sessions.len().min(TICK_MS as usize * 1000);
        self.put_off_at = self.now + pause_us as u32;
    }

    fn look_at_put_off(&mut self, key: Key) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.rare().delayed.is_listed = false;
        }
        self.ask_put_off_by(key);
        if let Some(session) = self.sessions.get_mut(key) {
            let delayed = &mut session.rare().delayed;
            let has_more = !delayed.items.is_empty();
            if has_more && !std::mem::replace(&mut delayed.is_listed, true) {
                self.put_off_sessions.push(key);
            }
        }
    }

    /// Whether some session has put something off.
    pub(crate) fn somebody_waits(&self) -> bool {
        !self.put_off_now.is_empty() || !self.put_off_sessions.is_empty()
    }

    /// Somebody can be asked, or is another one, who could not: what waits for that is looked at.
    pub(crate) fn stir_put_off(&mut self) {
        self.put_off_stirs = self.put_off_stirs.wrapping_add(1);
    }

    fn ask_put_off_by(&mut self, key: Key) {
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        let Some(rare) = session.rare.as_deref() else {
            return;
        };
        let delayed = &rare.delayed;
        let is_due = delayed.is_due(self.now, self.put_off_stirs);
        let is_alone = is_due && session.in_flight() == 0;
        if !is_alone && !delayed.is_too_much && !self.is_over(delayed.oldest_ms) {
            return;
        }
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let delayed = &mut session.rare().delayed;
        let items = std::mem::take(&mut delayed.items);
        let waits_since_ms = delayed.waits_since_ms;
        let is_too_much = std::mem::take(&mut delayed.is_too_much);
        let mut executed = AllExecuted::default();
        if is_alone {
            let others = delayed.others.drain(..);
            others
                .filter(|other| !other.is_put_off)
                .for_each(|other| executed.note(&other));
            delayed.looked_through.clear();
        }
        let (mut stay, mut staying) = (VecDeque::new(), Touched::default());
        let mut sent: HashMap<Key, Touched> = HashMap::new();
        for mut item in items {
            let at_ms = match item.waits {
                true => waits_since_ms,
                false => item.entry.at_ms,
            };
            item.overtaken |= item.is_overtaken(&executed);
            let is_lost = item.overtaken && !item.is_unproven() || self.has_lost_proof(&item);
            if is_too_much || self.is_over(at_ms) || is_lost {
                self.give_back_refusal(item);
                continue;
            }
            if item.is_unproven() {
                staying.add(&item.about);
                item.due = self.now.plus_ms(TICK_MS);
                stay.push_back(item);
                continue;
            }
            if !is_alone || item.due > self.now || staying.conflicts_with(&item.about) {
                staying.add(&item.about);
                stay.push_back(item);
                continue;
            }
            let mut item = match self.settle_by_heir(item) {
                Some(item) => item,
                None => continue,
            };
            let link = match item.waits {
                true => match self.own_link_for(key, &item) {
                    Some(link) => link,
                    None => {
                        // There will be room.
                        stay.push_back(item);
                        continue;
                    }
                },
                false if self.tracks_several(key) => match self.tracking_link_for(key, &item) {
                    Some(link) => link,
                    None => {
                        // There will be room, or another owner.
                        staying.add(&item.about);
                        item.due = self.now.plus_ms(TICK_MS);
                        stay.push_back(item);
                        continue;
                    }
                },
                false => match self.link_for(&item) {
                    Ok(link) => link,
                    Err(told) => {
                        self.held_bytes -= item.request.len();
                        self.counters.failed_not_sent += 1;
                        self.pass_on(item.entry, &told);
                        continue;
                    }
                },
            };
            let on_others = |(to, touched): (&Key, &Touched)| {
                *to != link && touched.conflicts_with(&item.about)
            };
            let waits_at = |link: &Link| {
                matches!(link.state, State::Resting { .. }) && self.may_wait_at(link, &item)
            };
            let rests = self.links.get(link).is_some_and(waits_at);
            if rests || sent.iter().any(on_others) {
                staying.add(&item.about);
                // Whoever comes up stirs it.
                let due = if rests {
                    self.now.plus_ms(TICK_MS)
                } else {
                    item.due
                };
                stay.push_back(PutOff { due, ..item });
                continue;
            }
            sent.entry(link).or_default().add(&item.about);
            if !item.is_named_elsewhere() {
                // It may be refused again, and what is behind it not.
                staying.add(&item.about);
            }
            self.ask_at_last(link, item);
        }
        if let Some(session) = self.sessions.get_mut(key) {
            // What was put off meanwhile is behind.
            let delayed = &mut session.rare().delayed;
            stay.append(&mut delayed.items);
            delayed.items = stay;
            delayed.sum_up(self.now_ms, self.put_off_stirs);
        } else {
            // It was closed meanwhile, and what it had put off with it.
            let left = stay.iter().map(|item| item.request.len());
            self.held_bytes -= left.sum::<usize>();
        }
    }

    /// Whether there may soon be somebody in the place of a server that is missing, by what was
    /// said to a request.
    fn may_wait_at(&self, link: &Link, item: &PutOff) -> bool {
        match item.said() {
            // Its node named another one.
            Some(Refusal::Moved | Refusal::Ask) => self.awaits_reader(link.key.server),
            // Whoever said that it is not the time for it knows that somebody is missing.
            Some(_) => true,
            // It was left on a link that is lost, and to a seed there is no heir.
            None => {
                let pool = usize::from(self.server(link.key.server).pool);
                self.knows_all(pool) || self.awaits_owners(link)
            }
        }
    }

    fn is_over(&self, at_ms: u32) -> bool {
        let limit_ms = match self.settings.timeouts.request_ms {
            0 => ASKED_AGAIN_MS,
            limit_ms => limit_ms,
        };
        self.now_ms.wrapping_sub(at_ms) >= limit_ms
    }

    /// A part of a request whose server owns nothing any more, and follows one that was asked for
    /// another part of it. That one's answer counts for both where something is to be the same at
    /// all servers. What FLUSHALL deletes may have come there after it was deleted there: it is
    /// asked once more, for its session has asked for nothing behind it. And nothing is counted
    /// twice. `None`: the part is settled.
    fn settle_by_heir(&mut self, item: PutOff) -> Option<PutOff> {
        let Some(Duty::Part { index, .. }) = item.duty else {
            return Some(item);
        };
        if matches!(id_of(&item.request), Some(id::FLUSHALL | id::FLUSHDB)) {
            return Some(item);
        }
        let heir = match (item.to, item.about.slot) {
            (To::Owner, None) => self.heir_of(item.asked.server),
            _ => None,
        };
        let Some(answer) = heir.and_then(|heir| self.answer_of(item.entry, heir)) else {
            return Some(item);
        };
        if item.about.reads {
            self.give_back_refusal(item);
        } else {
            self.held_bytes -= item.request.len();
            self.take_part_of(item.entry, index, &answer);
        }
        None
    }

    /// The kind of link on which a request is asked next.
    fn kind_for(&mut self, item: &PutOff) -> Result<LinkKey, NoReader> {
        let asked = item.asked.server;
        let pool = usize::from(self.server(asked).pool);
        let owner = match (item.to, item.about.slot, self.pools[pool].cluster()) {
            (To::Importer(server) | To::Named(server), ..) => server,
            (To::Unproven { .. }, ..) => asked,
            (To::Owner, Some(slot), Some(cluster)) => cluster.owner_of_slot(slot),
            (To::Owner, ..) => {
                let owner = self.owner_behind(asked);
                self.heir_of(owner).unwrap_or(owner)
            }
        };
        let server = match id_of(&item.request).filter(|_| item.to == To::Owner) {
            Some(id) => self.server_at_last(item.entry.session, owner, id.get(), item.asked)?,
            None => owner,
        };
        Ok(LinkKey {
            server,
            ..item.asked
        })
    }

    /// The link; if there is none, what its client is told.
    fn link_for(&mut self, item: &PutOff) -> Result<Key, Vec<u8>> {
        match self.kind_for(item) {
            Ok(kind) => {
                let link = self.current_link(kind);
                link.ok_or_else(|| bound_reply("links-max"))
            }
            Err(NoReader) => Err(error_reply(NO_READER)),
        }
    }

    /// The link on which its session tracks; `None` if it cannot be had just now.
    fn tracking_link_for(&mut self, key: Key, item: &PutOff) -> Option<Key> {
        let server = self.kind_for(item).ok()?.server;
        let first = self.shared.get(&self.first_link(server));
        let waits_at = |link: &Link| {
            matches!(link.state, State::Resting { .. }) && self.may_wait_at(link, item)
        };
        let rests = first
            .and_then(|first| self.links.get(*first))
            .is_some_and(waits_at);
        let is_known = self.tracks_on(key, server).is_some();
        if rests || !is_known && !self.may_have_own_link(key) {
            return None;
        }
        let link = self.tracking_link(key, server).ok()?;
        // It is sent again without the CLIENT CACHING in front of it.
        self.lack_caching(key);
        Some(link)
    }

    /// A link of its session's own; `None` if there is no room for one just now.
    fn own_link_for(&mut self, key: Key, item: &PutOff) -> Option<Key> {
        let link = if self.tracks_several(key) {
            let link = self.tracking_link_for(key, item)?;
            let server = self.links.get(link)?.key.server;
            self.turn(key, server);
            link
        } else {
            if !self.may_have_own_link(key) {
                return None;
            }
            let kind = self.kind_for(item).ok()?;
            let link = self.own_link(kind, key).ok()?;
            self.ride_anew(key, link);
            if let Some(session) = self.sessions.get_mut(key) {
                session.server = kind.server;
            }
            link
        };
        if let Some(session) = self.sessions.get_mut(key) {
            session.flags |= Flags::UNPINNING;
        }
        if let Some(link) = self.links.get_mut(link) {
            link.waits = true;
        }
        Some(link)
    }

    /// Sends it again.
    fn ask_at_last(&mut self, link: Key, item: PutOff) {
        self.held_bytes -= item.request.len();
        if let Some(Duty::Part { index, .. }) = item.duty
            && let Some(server) = self.links.get(link).map(|link| link.key.server)
        {
            self.ask_part_of(item.entry, index, server);
        }
        match self.links.get(link).map(|link| &link.state) {
            Some(State::Resting { .. }) => {
                self.counters.failed_not_sent += 1;
                let away = self.away_error_of(item.entry);
                let reply = self.no_link_reply(link, away);
                return self.pass_on(item.entry, &reply);
            }
            Some(State::Down) => self.connect(link),
            _ => {}
        }
        let (request, duty) = match item.to {
            To::Importer(_) => {
                if let Some(session) = self.sessions.get_mut(item.entry.session) {
                    session.rare().delayed.imported.push(item.entry.seq);
                }
                let then = item.duty.map(Box::new);
                let request = [ASKING, &item.request].concat();
                (request, Some(Duty::Asking { then }))
            }
            To::Owner | To::Named(_) | To::Unproven { .. } => (item.request, item.duty),
        };
        let at_ms = match item.waits {
            true => self.now_ms,
            false => item.entry.at_ms,
        };
        if duty.as_ref().is_some_and(Duty::names_scripts) {
            self.load_named(link, item.entry.session, as_asked(&request));
        }
        let Some(state) = self.links.get_mut(link) else {
            return;
        };
        let entry = Entry {
            len: request.len() as u32,
            duty: duty.is_some(),
            at_ms,
            ..item.entry
        };
        match duty {
            Some(duty) => state.push_with(entry, &request, duty),
            None => state.push(entry, &request),
        }
        self.counters.link_requests += 1;
        self.list_link(link);
        self.close_if_full(link);
    }
}

impl PutOff {
    /// What its node refused it for; `None`: it was left on a link that is lost.
    fn said(&self) -> Option<Refusal> {
        self.refusal.get(1..).and_then(Refusal::of)
    }

    /// Whether it is not known whether it ran.
    fn is_unproven(&self) -> bool {
        matches!(self.to, To::Unproven { .. })
    }

    /// Whether its node named another one, and did not only refuse it for now.
    fn is_named_elsewhere(&self) -> bool {
        matches!(self.said(), Some(Refusal::Moved | Refusal::Ask))
    }

    /// Whether something that was asked behind it, and about its keys, was executed.
    fn is_overtaken(&self, executed: &AllExecuted) -> bool {
        let seq = self.entry.seq;
        let is_behind =
            |place: Option<u32>| place.is_some_and(|place| place.wrapping_sub(seq) as i32 > 0);
        let about = &self.about;
        let by = |last: &Executed| match about.reads {
            true => is_behind(last.write),
            false => is_behind(last.any),
        };
        let mut keys = about.keys.iter();
        keys.any(|key| executed.keys.get(key).is_some_and(by))
            || !about.keys.is_empty() && by(&executed.all)
            || about.all_keys && by(&executed.each)
    }
}

/// What else a session had asked, and was executed.
#[derive(Default)]
struct AllExecuted {
    keys: HashMap<u64, Executed>,
    /// About whichever keys.
    each: Executed,
    /// About all keys.
    all: Executed,
}

impl AllExecuted {
    fn note(&mut self, other: &Other) {
        let Other { seq, about, .. } = other;
        for key in &about.keys {
            let of_key = self.keys.entry(*key).or_default();
            of_key.note(*seq, about.reads);
        }
        if about.all_keys {
            self.all.note(*seq, about.reads);
        }
        if about.all_keys || !about.keys.is_empty() {
            self.each.note(*seq, about.reads);
        }
    }
}

/// The last places of what was executed about a key.
#[derive(Default)]
struct Executed {
    any: Option<u32>,
    write: Option<u32>,
}

impl Executed {
    fn note(&mut self, seq: u32, reads: bool) {
        // In the order in which they were asked they come of each link alone.
        let is_later =
            |last: &Option<u32>| last.is_none_or(|last| seq.wrapping_sub(last) as i32 > 0);
        if is_later(&self.any) {
            self.any = Some(seq);
        }
        if !reads && is_later(&self.write) {
            self.write = Some(seq);
        }
    }
}

/// Replies to requests that run code.
impl Engine {
    /// The reply in front says that its request, which runs code, was not executed. respool asks
    /// the server whether it refuses a twin, and the reply waits for the answer. `false`: no such
    /// question is possible, and the client gets the reply.
    fn await_proof(&mut self, key: Key, front: Entry, refusal: Refusal, reply: &[u8]) -> bool {
        let Some(link) = self.links.get(key) else {
            return false;
        };
        let is_held = match link.role {
            Role::Pinned { by } => by == front.session && !link.waits,
            role => role.is_manys(),
        };
        let Some(session) = self.sessions.get(front.session).filter(|_| is_held) else {
            return false;
        };
        let request = as_asked(link.first_bytes());
        let keys = self.learned.keys_in(request);
        let Some(twin) = belief::twin(request, keys) else {
            return false;
        };
        let rare = session.rare.as_deref();
        let is_imported = rare.is_some_and(|rare| rare.delayed.imported.contains(&front.seq));
        let to = To::Unproven {
            link: key,
            since: self.now,
            again: matches!(front.before, Before::Refused | Before::Lost),
        };
        self.put_off_front(key, (to, refusal), false, reply);
        let (session, seq) = (front.session, front.seq);
        self.ask_for_proof(key, (session, seq), Proof::Twin, &twin, is_imported);
        true
    }

    /// The reply to an EVALSHA says NOSCRIPT, which its script may have written. respool asks the
    /// server whether it has the script. If it does not, the script may be sent along.
    pub(crate) fn await_proof_of_noscript(
        &mut self,
        link: Key,
        entry: Entry,
        request: &[u8],
        reply: &[u8],
    ) {
        let Some(asked) = self.links.get(link).map(|link| link.key) else {
            return self.pass_on(entry, reply);
        };
        let mut scanner = Scanner::default();
        let digest = match scanner.scan(request, true) {
            Ok(Found::Request { .. }) => scanner.spans().get(1).map(|span| span.of(request)),
            _ => None,
        };
        let Some(digest) = digest else {
            return self.pass_on(entry, reply);
        };
        let mut question = Vec::new();
        encode::request(&mut question, &[&b"SCRIPT"[..], b"EXISTS", digest]);
        let pool = self.server(asked.server).pool;
        let item = PutOff {
            about: About::of(&self.learned, request, pool, entry.class.reads()),
            entry: Entry {
                len: request.len() as u32,
                ..entry
            },
            duty: None,
            request: request.to_vec(),
            asked,
            to: To::Unproven {
                link,
                since: self.now,
                again: false,
            },
            due: self.now.plus_ms(TICK_MS),
            waits: false,
            refusal: reply.to_vec(),
            overtaken: false,
        };
        self.put_off(link, item);
        let whose = (entry.session, entry.seq);
        self.ask_for_proof(link, whose, Proof::NoScript, &question, false);
    }

    /// `is_imported`: the node has the slot only for requests behind [`ASKING`].
    fn ask_for_proof(
        &mut self,
        link: Key,
        (session, seq): (Key, u32),
        proof: Proof,
        question: &[u8],
        is_imported: bool,
    ) {
        let duty = Duty::Proof {
            session,
            seq,
            proof,
        };
        match is_imported {
            false => self.put_ours(link, question, duty),
            true => {
                let then = Some(Box::new(duty));
                let question = [ASKING, question].concat();
                self.put_ours(link, &question, Duty::Asking { then });
            }
        }
    }

    /// Whether the answer to the second question cannot come any more.
    fn has_lost_proof(&self, item: &PutOff) -> bool {
        let To::Unproven { link, since, .. } = item.to else {
            return false;
        };
        let has_it = |link: &Link| link.is_up() && link.up_since <= since;
        !self.links.get(link).is_some_and(has_it)
    }

    /// The server has answered the second question.
    pub(crate) fn settle_proof(
        &mut self,
        key: Key,
        (session, seq): (Key, u32),
        proof: Proof,
        reply: &[u8],
    ) {
        let Some(mut item) = self.take_unproven(key, session, seq) else {
            return;
        };
        let twin = reply.strip_prefix(b"-").and_then(Refusal::of);
        let refusal = item.said();
        let server = item.asked.server;
        match proof {
            Proof::NoScript if reply == NONE_EXISTS => {
                self.held_bytes -= item.request.len();
                self.send_script_along(key, item.entry, &item.request, &item.refusal);
            }
            Proof::Twin
                if twin
                    .zip(refusal)
                    .is_some_and(|(twin, refusal)| belief::proves(twin, refusal)) =>
            {
                let said = reply.strip_prefix(b"-").unwrap_or_default();
                let slot = item.about.slot;
                item.refusal = reply.to_vec();
                if self.is_nobodys(server, said, slot) {
                    self.held_bytes -= item.request.len();
                    return self.pass_on(item.entry, reply);
                }
                let To::Unproven { again, .. } = item.to else {
                    return;
                };
                if let Some(twin) = twin {
                    item.to = self.follow(server, slot, said, twin);
                }
                item.due = match item.is_named_elsewhere() && !again {
                    true => self.now,
                    false => self.now.plus_ms(TICK_MS),
                };
                self.keep_put_off(session, item);
            }
            _ => {
                self.held_bytes -= item.request.len();
                self.pass_on(item.entry, &item.refusal);
            }
        }
    }

    fn take_unproven(&mut self, link: Key, session: Key, seq: u32) -> Option<PutOff> {
        let session = self.sessions.get_mut(session)?;
        let items = &mut session.rare().delayed.items;
        let is_it = |item: &PutOff| {
            item.entry.seq == seq
                && matches!(item.to, To::Unproven { link: its, .. } if its == link)
        };
        let at = items.iter().position(is_it)?;
        items.remove(at)
    }

    /// A request goes back among those that are put off, at its place.
    fn keep_put_off(&mut self, key: Key, item: PutOff) {
        let Some(session) = self.sessions.get_mut(key) else {
            self.held_bytes -= item.request.len();
            return;
        };
        let delayed = &mut session.rare().delayed;
        let seq = item.entry.seq;
        let in_front = |other: &PutOff| (other.entry.seq.wrapping_sub(seq) as i32) <= 0;
        let place = delayed.items.partition_point(in_front);
        delayed.due = delayed.due.min(item.due);
        delayed.items.insert(place, item);
        self.stir_put_off();
    }
}

/// To SCRIPT EXISTS of one digest.
const NONE_EXISTS: &[u8] = b"*1\r\n:0\r\n";

/// On a session's own link.
impl Engine {
    /// What a session asked on its own link belongs to another node than that link goes to.
    fn leave_own_node(
        &mut self,
        key: Key,
        by: Key,
        front: Entry,
        to: To,
        why: Refusal,
        reply: &[u8],
    ) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let is_watch = id_of(as_asked(link.first_bytes())) == Some(id::WATCH);
        let (is_block, watched) = match link.duties.front().filter(|_| front.duty) {
            Some(Duty::Block { watched, .. }) => (true, *watched),
            _ => (false, false),
        };
        let waits = link.waits;
        let Some(session) = self.sessions.get(by) else {
            return self.answer_front(key, front, b"");
        };
        let version = session.version;
        let pins = session.pins;
        let its = front.session == by;
        if is_watch {
            // Where its keys are now nobody watches them: EXEC will say that they may have changed.
            self.lose_watch(by);
            let told = match why {
                Refusal::Moved | Refusal::Ask => &b"+OK\r\n"[..],
                _ => reply,
            };
            self.answer_front(key, front, told);
        } else if watched {
            // The same: what it watched is not there any more.
            let mut nil = Vec::new();
            encode::null_array(&mut nil, version);
            self.answer_front(key, front, &nil);
        } else if waits && its && !pins.bind() {
            // It will have another link of its own.
            self.put_off_front(key, (to, why), true, reply);
            self.leave_own_link(key, by);
        } else if waits || is_block && !pins.any(Pins::SPREAD) || !its {
            let told = moved_away(self.label(key));
            self.answer_front(key, front, &told);
        } else {
            self.put_off_front(key, (to, why), false, reply);
        }
    }

    /// What a session waited for on its own link is answered there, and goes on at another server.
    /// It keeps its place.
    pub(crate) fn go_on_alone(
        &mut self,
        link: Key,
        entry: Entry,
        (request, duty): (Vec<u8>, Duty),
        (server, due): (ServerId, Time),
    ) {
        let Some(own) = self.links.get(link) else {
            return;
        };
        let item = PutOff {
            entry: Entry {
                len: request.len() as u32,
                before: Before::Unsent,
                ..entry
            },
            duty: Some(duty),
            request,
            asked: LinkKey { server, ..own.key },
            to: To::Owner,
            about: About::default(),
            due,
            waits: true,
            refusal: bound_reply("pinned-links-max"),
            overtaken: false,
        };
        self.put_off(link, item);
        self.leave_own_link(link, entry.session);
    }

    /// What a session waits for on a link of its own has left it.
    fn leave_own_link(&mut self, key: Key, by: Key) {
        if let Some(link) = self.links.get_mut(key) {
            link.waits = false;
        }
        if let Some(session) = self.sessions.get_mut(by) {
            session.flags.remove(Flags::UNPINNING);
        }
        if self.is_tracking_link(by, key) {
            return;
        }
        if let Some(session) = self.sessions.get(by) {
            let kind = self.shared_kind_of(session);
            let shared = self.shared_link(kind).unwrap_or(Key::NOBODY);
            self.ride_anew(by, shared);
        }
        self.give_back(key);
    }

    /// Nobody watches the keys of a session any more, and so they may have changed.
    pub(crate) fn lose_watch(&mut self, key: Key) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.rare().watch_lost = true;
        }
        self.taint_own_link(key);
        self.unpin(key, Pins::WATCH);
    }

    /// The request in front leaves its link with this answer.
    fn answer_front(&mut self, key: Key, front: Entry, reply: &[u8]) {
        if let Some(link) = self.links.get_mut(key) {
            if front.duty {
                link.duties.pop_front();
            }
            link.pop_answered(front);
        }
        self.counters.link_replies += 1;
        self.pass_on(front, reply);
    }

    /// A link was lost, and something was left on it that may be asked again: what another server
    /// owns now, or can be read at another one, goes there.
    pub(crate) fn move_left(&mut self, key: Key) {
        let Some(link) = self.links.get(key).filter(|link| link.heeds) else {
            return;
        };
        let kind = link.key;
        let server = self.server(kind.server);
        let (pool, of_replica) = (
            &self.pools[usize::from(server.pool)],
            server.replica_of.is_some(),
        );
        let (cluster, sessions) = (pool.cluster(), &self.sessions);
        let readers = pool.readers.as_deref();
        let moved = |entry: &Entry, request: &[u8]| {
            let request = as_asked(request);
            let is_anothers = |cluster: &Cluster| {
                let slot = About::of(&self.learned, request, pool.index, false).slot;
                slot.is_some_and(|slot| cluster.owner_of_slot(slot) != kind.server)
            };
            entry.session != Key::NOBODY
                && (of_replica
                    || cluster.is_some_and(is_anothers)
                    || is_read_elsewhere(readers, sessions, kind.server, entry, request))
        };
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        for left in link.take_left(moved) {
            let request = as_asked(&left.request).to_vec();
            let entry = Entry {
                len: request.len() as u32,
                ..left.entry
            };
            let duty = match left.duty {
                Some(Duty::Asking { then }) => then.map(|then| *then),
                duty => duty,
            };
            self.move_away(key, kind, entry, duty, request);
        }
    }

    /// An owner owes replies and sends nothing for long: its reads that can be had at another
    /// server go there. Here they keep their places, so that their late replies are known for what
    /// they are.
    pub(crate) fn move_reads(&mut self, key: Key) {
        let is_shared = |link: &&mut Link| link.role.is_manys();
        let Some(link) = self.links.get_mut(key).filter(is_shared) else {
            return;
        };
        let kind = link.key;
        let pool = &self.pools[usize::from(self.servers[usize::from(kind.server.0)].pool)];
        let (readers, sessions) = (pool.readers.as_deref(), &self.sessions);
        let (mut moved, mut at, mut read) = (Vec::new(), 0, Vec::new());
        let mut duties = link.duties.iter();
        for (index, entry) in link.ledger.iter_mut().enumerate() {
            let behind = at + entry.len as usize;
            if entry.class != Class::Same {
                read.clear();
                read.extend_from_slice(entry.class.beginning());
                read.extend_from_slice(&link.out.bytes()[at..behind]);
            }
            at = behind;
            // The reply in front may be half with its client.
            let is_answered = index == 0 && link.cutting;
            let duty = if entry.duty { duties.next() } else { None };
            let again = duty.and_then(Duty::read_again);
            let is_read = entry.class.reads() && entry.session != Key::NOBODY;
            if is_read
                && entry.duty == again.is_some()
                && !is_answered
                && is_read_elsewhere(readers, sessions, kind.server, entry, &read)
            {
                let entry_again = Entry {
                    len: read.len() as u32,
                    class: Class::Read,
                    before: Before::Lost,
                    ..*entry
                };
                moved.push((entry_again, again, read.clone()));
                entry.session = Key::NOBODY;
            }
        }
        for (entry, duty, request) in moved {
            self.move_away(key, kind, entry, duty, request);
        }
    }

    /// A request that was on this link goes to another server.
    fn move_away(
        &mut self,
        link: Key,
        asked: LinkKey,
        entry: Entry,
        duty: Option<Duty>,
        request: Vec<u8>,
    ) {
        let refusal = moved_away(self.label(link));
        let pool = self.server(asked.server).pool;
        let item = PutOff {
            about: About::of(&self.learned, &request, pool, entry.class.reads()),
            entry,
            duty,
            request,
            asked,
            to: To::Owner,
            due: self.now,
            waits: false,
            refusal,
            overtaken: false,
        };
        self.put_off(link, item);
    }
}

/// Whether a request is a read that its session may have of another server than the owner of its
/// key.
fn is_read_elsewhere(
    readers: Option<&Readers>,
    sessions: &Slots<Session>,
    owner: ServerId,
    entry: &Entry,
    request: &[u8],
) -> bool {
    let at = readers.and_then(|readers| readers.instead_of(owner, entry.session).ok());
    let wants = |session: &Session| !session.flags.any(Flags::READS_OTHERWISE);
    at.is_some_and(|at| at != owner)
        && sessions.get(entry.session).is_some_and(wants)
        && id_of(request).is_some_and(|id| id.get().replica)
}

fn error_reply(text: &[u8]) -> Vec<u8> {
    let mut reply = Vec::new();
    encode::error(&mut reply, text);
    reply
}

/// What a client is told whose request found no node that would execute it.
fn moved_away(server: &str) -> Vec<u8> {
    let mut reply = Vec::new();
    failure::append_reply(&mut reply, Fate::NotSent, Cause::Moved { server });
    reply
}

pub(crate) fn id_of(request: &[u8]) -> Option<commands::CommandId> {
    let mut scanner = Scanner::default();
    let Ok(Found::Request { .. }) = scanner.scan(request, true) else {
        return None;
    };
    let spans = scanner.spans();
    commands::resolve(spans.len(), |index| spans[index].of(request))
}
