//! A node of a Cluster that executed nothing, and says so: its request is asked again, where it belongs or when it may be.
//!
//! ```text
//!   MOVED, ASK                                       ─► to the node that was named
//!   TRYAGAIN, CLUSTERDOWN, LOADING, ... READONLY     ─► to the slot's owner, a little later
//! ```
//!
//! Such a request is the session's until it is sent again, and the session is not read meanwhile. What it asked behind it
//! is on its way already: what of that is about the same keys is waited for. If that is refused, too, it follows behind; if
//! it is not, it was executed first, and so the request in front must not be any more: its client gets what the node had
//! said. And where two about the same keys go to different nodes, the second goes when the first is answered.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hasher};

use respool_protocol::cluster::{Endpoint, Redirect, Refusal};
use respool_protocol::commands::{self, id};
use respool_protocol::encode;
use respool_protocol::request::{Found, Scanner};
use respool_protocol::slot::hash_slot;

use crate::duty::Duty;
use crate::engine::{Engine, TICK_MS};
use crate::failure::{self, Cause, Fate};
use crate::link::{Before, Class, Entry, LinkKey, Role, State};
use crate::pool::ServerId;
use crate::session::{Flags, Pins, Rare};
use crate::settings::Address;
use crate::slots::Key;
use crate::time::Time;

/// The command that has to stand in front of one that a node was named for by ASK.
const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// How long a request is asked again where requests have no deadline, milliseconds.
const ASKED_AGAIN_MS: u32 = 10_000;

/// A request that its node did not execute.
pub(crate) struct PutOff {
    entry: Entry,
    duty: Option<Duty>,
    request: Vec<u8>,
    /// The kind of link on which it was asked; its server is where.
    asked: LinkKey,
    to: To,
    about: About,
    /// Not before then.
    due: Time,
    /// Places of what the session asked behind it about the same keys, as far as that is not answered.
    waits_for: Vec<u32>,
    /// Places of what it asked in front of it about the same keys, and what was sent to another node.
    after: Vec<u32>,
    /// What the node said.
    refusal: Vec<u8>,
}

/// What a request is about.
#[derive(Default)]
struct About {
    /// The slot of its first key.
    slot: Option<u16>,
    /// Its keys, hashed: to take two for the same that are not does no harm.
    keys: HashSet<u64>,
    reads: bool,
}

impl About {
    /// Of a request, or of all requests of a block.
    fn of(requests: &[u8], reads: bool) -> About {
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
            if let Some(id) = commands::resolve(spans.len(), arg) {
                // Where its keys are cannot be said: then its server refuses it.
                let _ = id.get().keys(spans.len(), arg, |index, _| {
                    let key = arg(index);
                    about.slot.get_or_insert_with(|| hash_slot(key));
                    let mut hasher = DefaultHasher::new();
                    hasher.write(key);
                    about.keys.insert(hasher.finish());
                });
            }
            at += len;
        }
        about
    }

    /// Whether it matters which of two is executed first.
    fn conflicts_with(&self, other: &About) -> bool {
        let one_writes = !self.reads || !other.reads;
        one_writes && !self.keys.is_disjoint(&other.keys)
    }
}

/// Where it is asked next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    /// Whoever owns its slot then.
    Owner,
    /// That one, with [`ASKING`].
    Importer(ServerId),
}

impl PutOff {
    pub(crate) fn held_bytes(&self) -> usize {
        self.request.len()
    }
}

/// What a request on a link is without what we have put in front of it.
pub(crate) fn as_asked(request: &[u8]) -> &[u8] {
    request.strip_prefix(ASKING).unwrap_or(request)
}

impl Engine {
    /// The reply in front is an error, on a link to a Cluster. Whether its node has executed nothing and somebody else, or the same later, may:
    /// then the request has left the link.
    #[cold]
    pub(crate) fn goes_elsewhere(&mut self, key: Key, reply: &[u8]) -> bool {
        let said = reply.strip_prefix(b"-").unwrap_or_default();
        let Some(state) = self.links.get_mut(key) else {
            return false;
        };
        let Some(front) = state.first_in_flight() else {
            return false;
        };
        if let Some(Duty::Block {
            before, refusal, ..
        }) = state.duties.front_mut().filter(|_| front.duty)
        {
            let refused = Refusal::of(said).is_some();
            match refusal {
                // EXEC tells what becomes of it.
                None if *before > 0 && refused => *refusal = Some(reply.to_vec()),
                Some(first) if *before == 0 && said.starts_with(b"EXECABORT") => {
                    let first = std::mem::take(first);
                    return self.goes_elsewhere(key, &first);
                }
                _ => {}
            }
            if *before > 0 {
                return false;
            }
        }
        let Some(refusal) = Refusal::of(said) else {
            return false;
        };
        let may_go = match state.duties.front().filter(|_| front.duty) {
            None => true,
            Some(duty) => duty.is_of_request(),
        };
        if !may_go || front.session == Key::NOBODY && !front.duty {
            return false;
        }
        let kind = state.key;
        let role = state.role;
        let to = self.follow(kind.server, said, refusal);
        match role {
            Role::Shared | Role::Captured { .. } => {
                self.put_off_front(key, to, refusal, reply);
                true
            }
            Role::Pinned { by } => {
                if !self.leave_own_node(key, by, front) {
                    self.put_off_front(key, to, refusal, reply);
                }
                true
            }
            // It is not held, and cannot be sent again.
            Role::Streaming { .. } if front.len == 0 => {
                let told = moved_away(self.label(key));
                self.answer_front(key, front, &told);
                true
            }
            _ => false,
        }
    }

    /// What a refusal says of who owns what.
    fn follow(&mut self, server: ServerId, said: &[u8], refusal: Refusal) -> To {
        let pool = usize::from(self.server(server).pool);
        match refusal {
            Refusal::Moved | Refusal::Ask => {
                let redirect = Redirect::read(said);
                let named = redirect.as_ref().and_then(|redirect| {
                    let host = match (redirect.host, &self.server(server).settings.address) {
                        (Some(host), _) => host.to_owned(),
                        (None, Address::Tcp { host, .. }) => host.clone(),
                        (None, Address::Unix(_)) => return None,
                    };
                    let port = redirect.port;
                    self.server_at(pool, &Endpoint { host, port })
                });
                let Some((redirect, named)) = redirect.zip(named) else {
                    // It points to nowhere that we could go to.
                    self.doubt_owners(server);
                    return To::Owner;
                };
                self.reach(named);
                if redirect.ask {
                    self.counters.redirected_ask += 1;
                    return To::Importer(named);
                }
                self.counters.redirected_moved += 1;
                self.heal_slot(pool, redirect.slot, named);
            }
            Refusal::ReadOnly | Refusal::ClusterDown | Refusal::MasterDown => {
                self.counters.refused_for_now += 1;
                self.doubt_primary(server);
                self.doubt_lost_owner(server);
            }
            Refusal::TryAgain | Refusal::Loading => self.counters.refused_for_now += 1,
        }
        To::Owner
    }

    /// The request in front, and those that are the same, leave the link; their sessions keep them.
    fn put_off_front(&mut self, key: Key, to: To, why: Refusal, reply: &[u8]) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let asked = link.key;
        let front = link.first_in_flight();
        let (entries, request, mut duty) = match front.filter(|front| front.duty) {
            Some(front) => {
                let request = as_asked(link.first_bytes()).to_vec();
                let mut duty = link.duties.pop_front();
                if let Some(Duty::Block {
                    before,
                    in_front,
                    opens,
                    refusal,
                    ..
                }) = &mut duty
                {
                    (*before, *refusal) = (*in_front, None);
                    *opens = *in_front > 0;
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
        let due = match why {
            Refusal::Moved | Refusal::Ask => self.now,
            _ => self.now.plus_ms(TICK_MS),
        };
        for entry in entries {
            let about = About::of(&request, entry.class.reads());
            let put_off = PutOff {
                waits_for: self.asked_behind(key, &entry, &about),
                after: Vec::new(),
                entry: Entry {
                    len: request.len() as u32,
                    class: Class::of(entry.class.reads()),
                    ..entry
                },
                duty: duty.take(),
                request: request.clone(),
                asked,
                to,
                about,
                // Who was sent from one to the other and back is in no hurry.
                due: match entry.before {
                    Before::Refused => self.now.plus_ms(TICK_MS),
                    _ => due,
                },
                refusal: reply.to_vec(),
            };
            self.put_off(put_off);
        }
    }

    /// What a session has asked behind a request, about the same keys and on the same link.
    fn asked_behind(&self, key: Key, front: &Entry, about: &About) -> Vec<u32> {
        let Some(link) = self.links.get(key) else {
            return Vec::new();
        };
        let mut behind = Vec::new();
        let (mut at, mut sent_at) = (0, 0..0);
        for entry in &link.ledger {
            let end = at + entry.len as usize;
            if entry.class != Class::Same {
                sent_at = at..end;
            }
            at = end;
            let is_later =
                entry.session == front.session && entry.seq.wrapping_sub(front.seq) as i32 > 0;
            if is_later {
                let request = as_asked(&link.out.bytes()[sent_at.clone()]);
                if about.conflicts_with(&About::of(request, entry.class.reads())) {
                    behind.push(entry.seq);
                }
            }
        }
        behind
    }

    fn put_off(&mut self, mut item: PutOff) {
        let key = item.entry.session;
        item.entry.before = Before::Refused;
        let seq = item.entry.seq;
        let Some(session) = self.sessions.get_mut(key) else {
            self.counters.late_replies += 1;
            return;
        };
        let items = &mut session.rare().put_off;
        // What waited for this one's answer has it: it comes behind.
        for earlier in items.iter_mut() {
            earlier.waits_for.retain(|place| *place != seq);
        }
        let is_first = items.is_empty();
        self.held_bytes += item.held_bytes();
        let behind = |other: &PutOff| (other.entry.seq.wrapping_sub(seq) as i32) <= 0;
        let place = items.partition_point(behind);
        items.insert(place, item);
        session.flags |= Flags::PUT_OFF;
        if is_first {
            self.put_off_sessions.push(key);
        }
        self.hold_until_caught_up(key);
    }

    /// Something that a session asked was answered, and not by a refusal: what was put off before it and is about the same
    /// keys must not be executed behind it.
    #[cold]
    pub(crate) fn overtaken(&mut self, key: Key, (seq, count): (u32, u32)) {
        let Some(items) = self.put_off_by(key) else {
            return;
        };
        let answered = |place: &u32| place.wrapping_sub(seq) < count;
        let mut stay = VecDeque::new();
        let mut failed = Vec::new();
        for item in items.drain(..) {
            match item.waits_for.iter().any(answered) {
                true => failed.push(item),
                false => stay.push_back(item),
            }
        }
        *items = stay;
        for item in failed {
            self.give_back_refusal(item);
        }
    }

    fn put_off_by(&mut self, key: Key) -> Option<&mut VecDeque<PutOff>> {
        let session = self.sessions.get_mut(key)?;
        session.rare.as_mut().map(|rare| &mut rare.put_off)
    }

    /// Its client gets what the node had said; unless that is for nobody but us.
    fn give_back_refusal(&mut self, item: PutOff) {
        self.held_bytes -= item.held_bytes();
        let reply = match item.refusal.get(1..).and_then(Refusal::of) {
            Some(Refusal::Moved | Refusal::Ask) => {
                moved_away(&self.server(item.asked.server).label)
            }
            _ => item.refusal,
        };
        self.counters.failed_not_sent += 1;
        self.pass_on(item.entry, &reply);
    }

    /// Asks again what may be.
    pub(crate) fn ask_put_off(&mut self) {
        for key in std::mem::take(&mut self.put_off_sessions) {
            self.ask_put_off_by(key);
            let Some(session) = self.sessions.get_mut(key) else {
                continue;
            };
            if session.rare().put_off.is_empty() {
                session.flags.remove(Flags::PUT_OFF);
            } else {
                self.put_off_sessions.push(key);
            }
        }
    }

    fn ask_put_off_by(&mut self, key: Key) {
        let Some(items) = self.put_off_by(key) else {
            return;
        };
        let mut items = std::mem::take(items);
        let mut stay: VecDeque<PutOff> = VecDeque::new();
        let mut sent: Vec<(Key, u32, About)> = Vec::new();
        while let Some(mut item) = items.pop_front() {
            item.after.retain(|place| self.is_unanswered(key, *place));
            let link = self.link_for(&item);
            let elsewhere = sent
                .iter()
                .filter(|(to, _, about)| Some(*to) != link && about.conflicts_with(&item.about));
            item.after.extend(elsewhere.map(|(_, place, _)| *place));
            let is_behind = |other: &PutOff| other.about.conflicts_with(&item.about);
            if self.is_over(&item.entry) {
                self.give_back_refusal(item);
            } else if !item.waits_for.is_empty()
                || !item.after.is_empty()
                || item.due > self.now
                || stay.iter().any(is_behind)
            {
                stay.push_back(item);
            } else if let Some(link) = link {
                sent.push((link, item.entry.seq, self.ask_at_last(link, item)));
            } else {
                self.held_bytes -= item.held_bytes();
                self.counters.failed_not_sent += 1;
                self.pass_on(item.entry, &crate::requests::bound_reply("links_max"));
            }
        }
        if let Some(left) = self.put_off_by(key) {
            // What was put off meanwhile is behind.
            stay.append(left);
            *left = stay;
        }
    }

    fn is_over(&self, entry: &Entry) -> bool {
        let limit_ms = match self.settings.timeouts.request_ms {
            0 => ASKED_AGAIN_MS,
            limit_ms => limit_ms,
        };
        self.now_ms.wrapping_sub(entry.at_ms) >= limit_ms
    }

    /// Whether a session still waits for the reply to what has this place.
    fn is_unanswered(&self, key: Key, place: u32) -> bool {
        self.sessions.get(key).is_some_and(|session| {
            let is_early = |rare: &Rare| rare.parking.holds(place);
            place.wrapping_sub(session.head_seq) as i32 >= 0
                && !session.rare.as_deref().is_some_and(is_early)
        })
    }

    /// The link on which a request is asked next; `None` at `links_max`.
    fn link_for(&mut self, item: &PutOff) -> Option<Key> {
        let server = match (item.to, item.about.slot) {
            (To::Importer(server), _) => server,
            (To::Owner, Some(slot)) => {
                let pool = usize::from(self.server(item.asked.server).pool);
                let cluster = self.pools[pool].cluster();
                cluster.map_or(item.asked.server, |cluster| cluster.owner_of_slot(slot))
            }
            (To::Owner, None) => item.asked.server,
        };
        self.current_link(LinkKey {
            server,
            ..item.asked
        })
    }

    /// Sends it again; returns what it was about.
    fn ask_at_last(&mut self, link: Key, item: PutOff) -> About {
        self.held_bytes -= item.held_bytes();
        match self.links.get(link).map(|link| &link.state) {
            Some(State::Resting { .. }) => {
                self.counters.failed_not_sent += 1;
                let reply = self.no_link_reply(link);
                self.pass_on(item.entry, &reply);
                return item.about;
            }
            Some(State::Down) => self.connect(link),
            _ => {}
        }
        let asking = matches!(item.to, To::Importer(_));
        let (request, duty) = match asking {
            true => {
                let inner = item.duty.map(Box::new);
                let duty = Duty::Asking { then: inner };
                ([ASKING, &item.request].concat(), Some(duty))
            }
            false => (item.request, item.duty),
        };
        let Some(state) = self.links.get_mut(link) else {
            return item.about;
        };
        let entry = Entry {
            len: request.len() as u32,
            duty: duty.is_some(),
            ..item.entry
        };
        match duty {
            Some(duty) => state.push_with(entry, &request, duty),
            None => state.push(entry, &request),
        }
        self.counters.link_requests += 1;
        self.list_link(link);
        self.close_if_full(link);
        item.about
    }
}

/// On a session's own link.
impl Engine {
    /// What a session asked on its own link belongs to another node than that link goes to. Whether the answer to that is given
    /// here; if not, it is asked again like others.
    fn leave_own_node(&mut self, key: Key, by: Key, front: Entry) -> bool {
        let Some(link) = self.links.get(key) else {
            return false;
        };
        let request = as_asked(link.first_bytes()).to_vec();
        let (waits, duty) = (link.waits, link.duties.front().filter(|_| front.duty));
        let (is_block, watched) = match duty {
            Some(Duty::Block { watched, .. }) => (true, *watched),
            _ => (false, false),
        };
        let Some(session) = self.sessions.get(by) else {
            return false;
        };
        let version = session.version;
        let is_last = front.session == by && session.next_seq == front.seq.wrapping_add(1);
        if id_of(&request) == Some(id::WATCH) {
            // Where its keys are now nobody watches them: EXEC will say that they may have changed.
            if let Some(session) = self.sessions.get_mut(by) {
                session.rare().watch_lost = true;
            }
            self.taint_own_link(by);
            self.unpin(by, Pins::WATCH);
            self.answer_front(key, front, b"+OK\r\n");
        } else if watched {
            // The same: what it watched is not there any more.
            let mut nil = Vec::new();
            encode::null_array(&mut nil, version);
            self.answer_front(key, front, &nil);
        } else if waits && is_last {
            // It is looked at again, in front of what has not been looked at.
            self.held_bytes += request.len();
            if let Some(session) = self.sessions.get_mut(by) {
                session.held.splice(0..0, request);
            }
            self.answer_front(key, front, b"");
            self.release(by, Flags::default());
        } else if waits || is_block {
            let told = moved_away(self.label(key));
            self.answer_front(key, front, &told);
        } else {
            return false;
        }
        true
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

    /// A link to a Cluster's node was lost, and something was left on it that may be asked again: what another node owns now goes
    /// there.
    pub(crate) fn move_left(&mut self, key: Key) {
        let Some(link) = self.links.get(key).filter(|link| link.heeds) else {
            return;
        };
        let (kind, pool) = (link.key, usize::from(self.server(link.key.server).pool));
        let Some(cluster) = self.pools[pool].cluster() else {
            return;
        };
        let moved = |entry: &Entry, request: &[u8]| {
            let its = |slot| cluster.owner_of_slot(slot) == kind.server;
            let slot = About::of(as_asked(request), false).slot;
            entry.session != Key::NOBODY && slot.is_some_and(|slot| !its(slot))
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
            let refusal = moved_away(self.label(key));
            self.put_off(PutOff {
                about: About::of(&request, entry.class.reads()),
                entry,
                duty,
                request,
                asked: kind,
                to: To::Owner,
                due: self.now,
                waits_for: Vec::new(),
                after: Vec::new(),
                refusal,
            });
        }
    }
}

/// What a client is told whose request found no node that would execute it.
fn moved_away(server: &str) -> Vec<u8> {
    let mut reply = Vec::new();
    failure::append_reply(&mut reply, Fate::NotSent, Cause::Moved { server });
    reply
}

fn id_of(request: &[u8]) -> Option<commands::CommandId> {
    let mut scanner = Scanner::default();
    let Ok(Found::Request { .. }) = scanner.scan(request, true) else {
        return None;
    };
    let spans = scanner.spans();
    commands::resolve(spans.len(), |index| spans[index].of(request))
}
