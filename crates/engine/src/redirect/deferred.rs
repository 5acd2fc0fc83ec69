//! Deferred requests: a server refused a request without executing it, and respool sends it again.
//!
//! ```text
//!   MOVED, ASK                                       ─► to the named node
//!   TRYAGAIN, CLUSTERDOWN, LOADING, ... READONLY     ─► to the slot's owner, a little later
//!   UNBLOCKED, if the server sends it by itself      ─► to the slot's owner, a little later
//! ```
//!
//! The exception is a slot without an owner: its client gets the node's error
//! ([`crate::discovery::Discovery::confirm_unowned`]).
//!
//! `Redirects` keeps a deferred request for its session until it is sent again. The session is not
//! read meanwhile. Its other requests are on their way already, and respool waits for their
//! replies.
//!
//! When the session has nothing in flight, its deferred requests leave in the order in which the
//! client sent them. A later request may have been executed before. If it touched the same keys,
//! the deferred request must not be executed any more. Its client gets the refusal, or NOTSENT if
//! the refusal is MOVED or ASK. Two deferred requests may touch the same keys and go to different
//! nodes. Then the second one leaves after the reply to the first.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};

use respool_protocol::cluster::Refusal;
use respool_protocol::commands::id;
use respool_protocol::encode;
use respool_protocol::request::{Found, RequestScanner};

use crate::base::error::{self, Cause, Fate};
use crate::base::handle::{LinkId, SessionId};
use crate::base::slab::Slab;
use crate::base::time::{Stamp, TICK_MS, Time};
use crate::data_plane::DataPlane;
use crate::data_plane::charges::{Charge, ChargeKind};
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::redirect::{ProofKind, RedirectCompletion};
use crate::data_plane::completion::scatter::ScatterCompletion;
use crate::data_plane::ingress::bound_reply;
use crate::data_plane::ledger::{Class, EarlierAttempt, Entry};
use crate::data_plane::link::{Link, LinkKind, LinkRole, LinkState};
use crate::data_plane::sent_request::{ASKING, id_of, without_asking};
use crate::data_plane::session::{Flags, Pins, Session};
use crate::redirect::Redirects;
use crate::redirect::conflicts::{AllExecuted, RequestKeys, TouchedKeys};
use crate::redirect::refusals::{self, Belief, RefusedRequest, belief};
use crate::routing::next_server::NextServer;
use crate::routing::pool::{Pool, ServerId};

/// How long a refused request is retried if requests have no deadline, milliseconds.
const ASKED_AGAIN_MS: u32 = 10_000;

/// A blocking request counts as blocked at its node after so long there, milliseconds.
const WAITED_MS: u32 = 1_000;

/// A request that its server did not execute.
pub(crate) struct Deferred {
    entry: Entry,
    completion: Option<Completion>,
    request: Vec<u8>,
    /// The kind of the link that carried it, with that link's server.
    sent_on: LinkKind,
    /// The server that gets the next attempt.
    to: NextServer,
    /// The question that proves the refusal, if the request may have run.
    proof: Option<AwaitedProof>,
    /// The keys of the request.
    about: RequestKeys,
    /// The earliest time of the next attempt.
    due: Time,
    /// Whether it may block at its server, on a pinned link of its session.
    waits: bool,
    /// The refusal: the error reply of the server.
    refusal: Vec<u8>,
    /// Whether a later request of the session was executed that conflicts with it on a key.
    overtaken: bool,
}

/// Memory of a deferred request, without its bytes and without the refusal.
const DEFERRED_BYTES: usize = 2 * size_of::<Deferred>();

/// A second question to the server. Its answer proves a refusal, or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AwaitedProof {
    link: LinkId,
    /// When the question was sent.
    since: Time,
    /// The request was deferred before.
    again: bool,
}

/// The meaning of an error reply in front of a link.
pub(crate) enum Judgement<'a> {
    /// The client gets the reply.
    Answer,
    /// The client gets the reply, and the server is asked for its role.
    AskRole(ServerId),
    /// The request is deferred until the refusal is proven.
    AwaitsProof,
    /// The server has not executed the request, which still is in front of the link.
    Refused(RefusedFront<'a>),
}

/// A refused request in front of its link.
pub(crate) struct RefusedFront<'a> {
    pub(crate) link: LinkId,
    pub(crate) front: Entry,
    pub(crate) server: ServerId,
    role: LinkRole,
    /// The slot of its first key, if respool can see its keys.
    pub(crate) slot: Option<u16>,
    /// It is a transaction: the refusal is the reply to its EXEC, or came before that.
    pub(crate) is_block: bool,
    pub(crate) refusal: Refusal,
    /// The error reply that refuses it.
    pub(crate) reply: Cow<'a, [u8]>,
}

impl RefusedFront<'_> {
    /// The text of the error reply.
    pub(crate) fn error(&self) -> &[u8] {
        self.reply.strip_prefix(b"-").unwrap_or_default()
    }
}

/// The deferred requests of a session.
#[derive(Default)]
pub(super) struct DeferredQueue {
    /// The deferred requests, in the order of their places.
    items: VecDeque<Deferred>,
    /// The number of items that may block at their server.
    waiting: usize,
    /// The requests and refusals of the items.
    charge: Charge,
    /// Other requests that were in flight on the same links when a request was deferred.
    others: Vec<InFlight>,
    /// The places of requests that were sent to an importing node, behind [`ASKING`].
    imported: Vec<u32>,
    /// The links of the requests in `others`.
    listed_links: Vec<LinkId>,
    /// When a request that may block was deferred.
    waits_since: Stamp,
    /// The session is listed in [`Redirects::new_sessions`] or [`Redirects::sessions`].
    is_listed: bool,
    /// The earliest `due` of the items.
    due: Time,
    /// When the oldest of the items was read.
    oldest: Stamp,
    /// The value of [`DataPlane::retry_wakes`] at the last scan.
    wakes: u32,
}

/// A request that was in flight when an earlier request of its session was deferred.
struct InFlight {
    seq: u32,
    about: RequestKeys,
    /// It was deferred, too.
    is_deferred: bool,
}

impl DeferredQueue {
    /// Adds a request at its place, behind the items with the same place.
    fn insert(&mut self, item: Deferred) {
        let seq = item.entry.seq;
        let in_front = |other: &Deferred| (other.entry.seq.wrapping_sub(seq) as i32) <= 0;
        let place = self.items.partition_point(in_front);
        self.count(&item);
        self.items.insert(place, item);
    }

    fn remove(&mut self, at: usize) -> Option<Deferred> {
        let item = self.items.remove(at)?;
        self.waiting -= usize::from(item.waits);
        self.charge.counted -= item.request.len();
        self.charge.memory -= item.memory_bytes();
        Some(item)
    }

    fn take_all(&mut self) -> VecDeque<Deferred> {
        (self.waiting, self.charge) = (0, Charge::default());
        std::mem::take(&mut self.items)
    }

    /// Puts items that a scan has left in front of the others.
    fn put_in_front(&mut self, mut items: VecDeque<Deferred>) {
        items.iter().for_each(|item| self.count(item));
        items.append(&mut self.items);
        self.items = items;
    }

    fn count(&mut self, item: &Deferred) {
        self.waiting += usize::from(item.waits);
        self.charge.counted += item.request.len();
        self.charge.memory += item.memory_bytes();
    }

    /// Tells the data plane the facts about the queue. Call it after each change.
    fn report(&self, plane: &mut DataPlane, id: SessionId) {
        if let Some(session) = plane.sessions.get_mut(id) {
            let facts = &mut session.rare().deferred;
            facts.first = self.items.front().map(|item| item.entry.seq);
            facts.count = self.items.len();
            facts.wait = self.waiting > 0;
        }
        let others = self.others.capacity() * size_of::<InFlight>();
        let charge = Charge {
            memory: self.charge.memory + others,
            ..self.charge
        };
        plane.charge(id, ChargeKind::Deferred, charge);
    }

    /// Whether a scan makes sense if the session has nothing else in flight: an item is due, an
    /// event woke the queue, or conflicts with executed requests can be found.
    fn is_due(&self, now: Time, wakes: u32) -> bool {
        self.due <= now || self.wakes != wakes || !self.others.is_empty()
    }

    /// When a request began to wait.
    fn waiting_since(&self, item: &Deferred) -> Stamp {
        match item.waits {
            true => self.waits_since,
            false => item.entry.read_at,
        }
    }

    /// Updates the summary of the items after a scan.
    fn sum_up(&mut self, now: Stamp, wakes: u32) {
        let due = self.items.iter().map(|item| item.due).min();
        let times = self.items.iter().map(|item| self.waiting_since(item));
        let oldest = times.max_by_key(|since| now.ticks_since(*since));
        self.oldest = oldest.unwrap_or(now);
        self.due = due.unwrap_or_default();
        self.wakes = wakes;
    }

    /// When the first deferred request that cannot block was read.
    fn oldest_read_at(&self) -> Option<Stamp> {
        let places = self.items.iter().filter(|item| !item.waits);
        places.map(|item| item.entry.read_at).next()
    }
}

impl Redirects {
    /// Drops the deferred requests of a session that is closed.
    pub(crate) fn forget_session(&mut self, id: SessionId) {
        self.queues.remove(id);
    }

    /// Memory of the table by session, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.queues.table_bytes()
    }
}

impl Redirects {
    /// Judges the error reply in front of a link to a server that may redirect.
    #[cold]
    pub(crate) fn judge<'a>(
        &mut self,
        plane: &mut DataPlane,
        id: LinkId,
        reply: &'a [u8],
    ) -> Judgement<'a> {
        let error = reply.strip_prefix(b"-").unwrap_or_default();
        let Some(link) = plane.links.get_mut(id) else {
            return Judgement::Answer;
        };
        let Some(front) = link.ledger.first_in_flight() else {
            return Judgement::Answer;
        };
        let mut reply = Cow::Borrowed(reply);
        if let Some(Completion::Block {
            before,
            came,
            refusal,
            ..
        }) = link.ledger.front_completion_mut()
        {
            let refused = Refusal::of(error).is_some();
            match refusal {
                _ if *came < *before => {
                    // The reply to EXEC decides about the block.
                    if refused && refusal.is_none() {
                        *refusal = Some(reply.to_vec());
                    }
                    return Judgement::Answer;
                }
                Some(first) if error.starts_with(b"EXECABORT") => {
                    reply = Cow::Owned(std::mem::take(first));
                }
                _ => {}
            }
        }
        let error = reply.strip_prefix(b"-").unwrap_or_default();
        let Some(refusal) = Refusal::of(error) else {
            return Judgement::Answer;
        };
        let is_of_request = match link.ledger.front_completion() {
            // Other sessions may wait for this reply, too, although the first session is gone.
            None => front.session != SessionId::NONE || link.ledger.next_is_collapsed(),
            Some(completion) => completion.is_of_request(),
        };
        if !is_of_request || matches!(link.role, LinkRole::HubLine(_) | LinkRole::Sentinel) {
            return Judgement::Answer;
        }
        let kind = match link.ledger.front_completion() {
            Some(Completion::Block { opens: true, .. }) => Some(RefusedRequest::Block),
            // The requests of such a block were executed one by one: no reply speaks for all of
            // them.
            Some(Completion::Block { .. }) => return Judgement::Answer,
            _ => None,
        };
        let is_block = kind.is_some();
        let pool = plane.servers[usize::from(link.kind.server.0)].pool;
        let request = without_asking(link.ledger.first_bytes());
        let about = RequestKeys::of(&plane.learned_commands, request, pool, front.class.reads());
        let (server, role) = (link.kind.server, link.role);
        let kind = kind.unwrap_or(match about.runs_code {
            true => RefusedRequest::Code,
            false => RefusedRequest::Plain,
        });
        match belief(kind, refusal) {
            Belief::Believed => {}
            Belief::Confirm => {
                return match self.await_proof(plane, id, front, refusal, &reply) {
                    true => Judgement::AwaitsProof,
                    false => Judgement::Answer,
                };
            }
            Belief::AskRole => return Judgement::AskRole(server),
            Belief::Answer => return Judgement::Answer,
        }
        Judgement::Refused(RefusedFront {
            link: id,
            front,
            server,
            role,
            slot: about.slot,
            is_block,
            refusal,
            reply,
        })
    }

    /// Takes a refused request off its link: it is deferred, or its client is answered. `next`: the
    /// server that gets it next.
    pub(crate) fn take_off(
        &mut self,
        plane: &mut DataPlane,
        refused: &RefusedFront<'_>,
        next: NextServer,
    ) {
        let (id, why) = (refused.link, refused.refusal);
        if refused.front.len == 0 {
            let mut error = Vec::new();
            let server = plane.label(id);
            error::append_reply(&mut error, Fate::NotSent, Cause::TooLargeToMove { server });
            return plane.answer_front(id, refused.front, &error);
        }
        match refused.role {
            LinkRole::Pinned { by } => self.take_off_own_link(plane, refused, by, next),
            _ => self.defer_front(plane, id, (next, None, why), false, &refused.reply),
        }
    }

    /// Defers the request in front of the link, and the equal requests that share its reply.
    /// `waits`: the request may block at its server.
    fn defer_front(
        &mut self,
        plane: &mut DataPlane,
        id: LinkId,
        (to, proof, why): (NextServer, Option<AwaitedProof>, Refusal),
        waits: bool,
        reply: &[u8],
    ) {
        let Some(link) = plane.links.get_mut(id) else {
            return;
        };
        let sent_on = link.kind;
        let front = link.ledger.first_in_flight();
        let (entries, request, mut completion) = match front.filter(|front| front.has_completion())
        {
            Some(front) => {
                let request = without_asking(link.ledger.first_bytes()).to_vec();
                let mut completion = link.ledger.pop_completed(front);
                if let Some(Completion::Block { came, refusal, .. }) = &mut completion {
                    (*came, *refusal) = (0, None);
                }
                (vec![front], request, completion)
            }
            None => {
                let (alone, request) = link.ledger.take_alone();
                (alone, request, None)
            }
        };
        plane.counters.link_replies += 1;
        let pool = plane.server(sent_on.server).pool;
        let now = matches!(why, Refusal::Moved | Refusal::Ask);
        for entry in entries {
            // A request that was redirected before waits for a tick, so it does not circle between
            // two nodes.
            let is_again = matches!(
                entry.earlier_attempt(),
                EarlierAttempt::Refused | EarlierAttempt::Lost
            );
            let soon = now && !is_again && proof.is_none();
            let item = Deferred {
                entry: Entry {
                    len: request.len() as u32,
                    class: Class::of(entry.class.reads()),
                    ..entry
                },
                completion: completion.take(),
                about: RequestKeys::of(
                    &plane.learned_commands,
                    &request,
                    pool,
                    entry.class.reads(),
                ),
                request: request.clone(),
                sent_on,
                to,
                proof,
                due: match soon {
                    true => plane.now,
                    false => plane.now.plus_ms(TICK_MS),
                },
                waits,
                refusal: reply.to_vec(),
                overtaken: false,
            };
            self.defer(plane, id, item);
        }
    }

    /// Moves a request from this link to the deferred requests of its session.
    fn defer(&mut self, plane: &mut DataPlane, link: LinkId, mut item: Deferred) {
        let (id, seq) = (item.entry.session, item.entry.seq);
        let now_stamp = plane.now_stamp;
        let Some(session) = plane.sessions.get_mut(id) else {
            plane.counters.late_replies += 1;
            return;
        };
        let waited_ms = now_stamp.ms_since(item.entry.read_at);
        let is_new =
            item.entry.earlier_attempt() != EarlierAttempt::Refused || waited_ms >= WAITED_MS;
        // A request of a lost link is sent again once, whichever server gets it.
        if item.entry.earlier_attempt() != EarlierAttempt::Lost {
            item.entry = item.entry.after(EarlierAttempt::Refused);
        }
        session.state |= Flags::REPLY_TIME_UNKNOWN;
        let queue = self.queues.get_or_default(id);
        if item.waits && is_new {
            queue.waits_since = now_stamp;
        }
        if !std::mem::replace(&mut queue.is_listed, true) {
            self.new_sessions.push(id);
        }
        if queue.items.is_empty() {
            // The last deferred requests may have ended while others were in flight: forget these.
            queue.others.clear();
            queue.imported.clear();
            queue.listed_links.clear();
            (queue.due, queue.oldest) = (item.due, item.entry.read_at);
        }
        if !queue.listed_links.contains(&link) {
            queue.listed_links.push(link);
            queue.others.extend(in_flight_of(plane, id, link));
        }
        let is_item = |other: &&mut InFlight| {
            other.seq == seq && !other.is_deferred && other.about.has_same_keys(&item.about)
        };
        if let Some(other) = queue.others.iter_mut().find(is_item) {
            other.is_deferred = true;
        }
        queue.due = queue.due.min(item.due);
        if !item.waits
            && now_stamp.ticks_since(item.entry.read_at) > now_stamp.ticks_since(queue.oldest)
        {
            queue.oldest = item.entry.read_at;
        }
        queue.insert(item);
        queue.report(plane, id);
        let is_head = plane
            .sessions
            .get(id)
            .is_some_and(Session::head_is_deferred);
        plane.hold_until_caught_up(id);
        if is_head {
            // The session waits for replies that were not to be delivered before this one.
            plane.read_links_again(id);
        }
    }

    /// Takes a refused request off a session's own link, which cannot go to another server.
    fn take_off_own_link(
        &mut self,
        plane: &mut DataPlane,
        refused: &RefusedFront<'_>,
        by: SessionId,
        next: NextServer,
    ) {
        let (id, why) = (refused.link, refused.refusal);
        let Some(link) = plane.links.get(id) else {
            return;
        };
        let is_watch = id_of(without_asking(link.ledger.first_bytes())) == Some(id::WATCH);
        let (is_block, watched) = match link.ledger.front_completion() {
            Some(Completion::Block { watched, .. }) => (true, *watched),
            _ => (false, false),
        };
        let waits = link.waits;
        let Some(session) = plane.sessions.get(by) else {
            return plane.answer_front(id, refused.front, b"");
        };
        let version = session.version;
        let pins = session.pins;
        let is_own = refused.front.session == by;
        if is_watch {
            // No link watches the keys at their new server, so EXEC will answer that they may have
            // changed.
            let error = match why {
                Refusal::Moved | Refusal::Ask => b"+OK\r\n".to_vec(),
                _ => refused.reply.to_vec(),
            };
            plane.lose_watch(by);
            plane.answer_front(id, refused.front, &error);
        } else if watched {
            // The watched keys have left this server, so EXEC answers that they may have changed.
            let mut nil = Vec::new();
            encode::null_array(&mut nil, version);
            plane.answer_front(id, refused.front, &nil);
        } else if waits && is_own && !pins.bind() {
            // The session gets another link for itself.
            self.defer_front(plane, id, (next, None, why), true, &refused.reply);
            plane.leave_own_link(id, by);
        } else if waits || is_block && !pins.any(Pins::SPREAD) || !is_own {
            let error = moved_away(plane.label(id));
            plane.answer_front(id, refused.front, &error);
        } else {
            self.defer_front(plane, id, (next, None, why), false, &refused.reply);
        }
    }

    /// Takes the sessions that deferred a request in this turn. Their requests are scanned at once.
    pub(crate) fn poll_new_sessions(&mut self) -> Vec<SessionId> {
        std::mem::take(&mut self.new_sessions)
    }

    /// Begins a sweep: takes all sessions with deferred requests, unless the last sweep was just
    /// now. They may be thousands. The pause between two sweeps is one microsecond a session, at
    /// most a tick. So most of the time stays for sessions that use other servers.
    pub(crate) fn begin_sweep(&mut self, plane: &DataPlane) -> Vec<SessionId> {
        self.sweep_missed = plane.now < self.sweep_at;
        match self.sweep_missed {
            true => Vec::new(),
            false => std::mem::take(&mut self.sessions),
        }
    }

    /// The sweep of all sessions has ended.
    pub(crate) fn end_sweep(&mut self, plane: &DataPlane) {
        if !self.sweep_missed {
            let pause_us = self.sessions.len().min(TICK_MS as usize * 1000);
            self.sweep_at = plane.now + pause_us as u32;
        }
    }

    /// Begins a scan of the deferred requests of a session. `None`: nothing is due.
    pub(crate) fn begin_scan(&mut self, plane: &mut DataPlane, id: SessionId) -> Option<RetryScan> {
        let scattered = plane.scattered_of(id);
        let (now, wakes) = (plane.now, plane.retry_wakes);
        let session = plane.sessions.get_mut(id)?;
        let queue = self.queues.get_mut(id)?;
        queue.is_listed = false;
        let is_over_bound = session.rare().deferred.is_over_bound;
        let is_alone = queue.is_due(now, wakes) && session.in_flight(scattered) == 0;
        if !is_alone && !is_over_bound && !is_over(plane, queue.oldest) {
            return None;
        }
        plane.sessions.get_mut(id)?.rare().deferred.is_over_bound = false;
        let mut scan = RetryScan {
            session: id,
            items: queue.take_all(),
            waits_since: queue.waits_since,
            is_over_bound,
            is_alone,
            executed: AllExecuted::default(),
            stay: VecDeque::new(),
            staying: TouchedKeys::default(),
            sent: HashMap::new(),
        };
        if is_alone {
            let others = queue.others.drain(..);
            others
                .filter(|other| !other.is_deferred)
                .for_each(|other| scan.executed.note(other.seq, &other.about));
            queue.listed_links.clear();
        }
        queue.report(plane, id);
        Some(scan)
    }

    /// Ends a scan: the session keeps the requests that stay.
    pub(crate) fn end_scan(&mut self, plane: &mut DataPlane, scan: RetryScan) {
        let (now, wakes) = (plane.now_stamp, plane.retry_wakes);
        // If the session was closed during the scan, its deferred requests end with it.
        if let Some(queue) = self.queue_of(plane, scan.session) {
            // Requests that were deferred during the scan come behind.
            queue.put_in_front(scan.stay);
            queue.sum_up(now, wakes);
            queue.report(plane, scan.session);
        }
    }

    /// The queue of a session that is open.
    fn queue_of(&mut self, plane: &DataPlane, id: SessionId) -> Option<&mut DeferredQueue> {
        plane.sessions.get(id)?;
        self.queues.get_mut(id)
    }

    /// Lists a session again if it has deferred requests left.
    pub(crate) fn list_again(&mut self, plane: &DataPlane, id: SessionId) {
        if let Some(queue) = self.queue_of(plane, id) {
            let has_more = !queue.items.is_empty();
            if has_more && !std::mem::replace(&mut queue.is_listed, true) {
                self.sessions.push(id);
            }
        }
    }

    /// Ends the retries of a request. The client gets the refusal, or respool's error if the
    /// refusal is a redirect.
    pub(crate) fn end_retries(&mut self, plane: &mut DataPlane, item: Deferred) {
        if item.is_unproven() {
            // The request may have run: the reply may be its own text.
            return plane.deliver_held_back(item.entry, &item.refusal);
        }
        let reply = match item.is_named_elsewhere() {
            true => moved_away(&plane.server(item.sent_on.server).label),
            false => item.refusal,
        };
        plane.counters.failed_not_sent += 1;
        plane.answer_or_fail(item.entry, &reply);
    }

    /// Whether a deferred request waits for a server that is in back-off, because another server
    /// may soon take its place. The refusal decides.
    pub(super) fn may_wait_at(&self, plane: &DataPlane, link: &Link, item: &Deferred) -> bool {
        if !matches!(link.state, LinkState::Backoff { .. }) {
            return false;
        }
        match item.refusal_kind() {
            // The refusal was a redirect.
            Some(Refusal::Moved | Refusal::Ask) => plane.awaits_reader(link.kind.server),
            // The server that said so knows that a node is missing.
            Some(_) => true,
            // Its link was lost. No server takes the place of a seed node.
            None => {
                let pool = usize::from(plane.server(link.kind.server).pool);
                plane.knows_all(pool) || plane.awaits_owners(link)
            }
        }
    }

    /// Makes the link of the next attempt connect. Returns the reply to the client if the server is
    /// in back-off: the request is not sent.
    pub(super) fn wake_link(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        entry: Entry,
    ) -> Result<(), Vec<u8>> {
        match plane.links.get(link).map(|link| &link.state) {
            Some(LinkState::Backoff { .. }) => {
                plane.counters.failed_not_sent += 1;
                let away = plane.server_down_error_of(entry);
                return Err(plane.no_link_reply(link, away));
            }
            Some(LinkState::Down) => plane.connect(link),
            _ => {}
        }
        Ok(())
    }

    /// Puts a deferred request on this link.
    pub(crate) fn send(&mut self, plane: &mut DataPlane, link: LinkId, item: Deferred) {
        let (request, completion) = match item.to {
            NextServer::Importer(_) => {
                if let Some(queue) = self.queue_of(plane, item.entry.session) {
                    queue.imported.push(item.entry.seq);
                }
                let then = item.completion.map(Box::new);
                let request = [ASKING, &item.request].concat();
                (request, Some(Completion::Asking { then }))
            }
            NextServer::Owner | NextServer::Named(_) => (item.request, item.completion),
        };
        let read_at = match item.waits {
            true => plane.now_stamp,
            false => item.entry.read_at,
        };
        let Some(state) = plane.links.get_mut(link) else {
            return;
        };
        let entry = Entry {
            len: request.len() as u32,
            read_at,
            ..item.entry.with_completion(completion.is_some())
        };
        match completion {
            Some(completion) => state.ledger.push_with(entry, &request, completion),
            None => state.ledger.push(entry, &request),
        }
        plane.counters.link_requests += 1;
        plane.list_link(link);
        plane.close_if_full(link);
    }
}

/// The requests of a session on a link.
fn in_flight_of(plane: &DataPlane, session_id: SessionId, link: LinkId) -> Vec<InFlight> {
    let Some(link) = plane.links.get(link) else {
        return Vec::new();
    };
    let pool = plane.server(link.kind.server).pool;
    let mut found = Vec::new();
    for held in link.ledger.requests() {
        let entry = held.entry;
        if entry.session == session_id {
            let request = held.bytes();
            let request = without_asking(&request);
            found.push(InFlight {
                seq: entry.seq,
                about: RequestKeys::of(&plane.learned_commands, request, pool, entry.class.reads()),
                is_deferred: false,
            });
        }
    }
    found
}

/// A scan of the deferred requests of one session: which are sent now, and which stay or end.
pub(crate) struct RetryScan {
    session: SessionId,
    /// The requests that are not looked at yet.
    items: VecDeque<Deferred>,
    waits_since: Stamp,
    is_over_bound: bool,
    /// The session has nothing in flight, and a request is due.
    is_alone: bool,
    executed: AllExecuted,
    stay: VecDeque<Deferred>,
    /// The keys of the requests in `stay`, and of requests that may come back.
    staying: TouchedKeys,
    /// The keys of the requests that this scan has sent on each link.
    sent: HashMap<LinkId, TouchedKeys>,
}

/// The next request of a scan.
pub(crate) enum RetryOutcome {
    /// The retries of this request have ended.
    End(Deferred),
    /// This request is sent, if there is a link for it.
    Send(Deferred),
}

impl RetryScan {
    /// The next request.
    pub(crate) fn next(&mut self, plane: &DataPlane) -> Option<RetryOutcome> {
        while let Some(mut item) = self.items.pop_front() {
            let since = match item.waits {
                true => self.waits_since,
                false => item.entry.read_at,
            };
            item.overtaken |= self.executed.overtake(item.entry.seq, &item.about);
            let is_lost = item.overtaken && !item.is_unproven() || item.has_lost_proof(plane);
            if self.is_over_bound || is_over(plane, since) || is_lost {
                return Some(RetryOutcome::End(item));
            }
            if item.is_unproven() {
                self.stay_until_tick(plane, item);
                continue;
            }
            let may_leave = self.is_alone && item.due <= plane.now;
            if may_leave && !self.staying.conflicts_with(&item.about) {
                return Some(RetryOutcome::Send(item));
            }
            self.stay(item);
        }
        None
    }

    fn stay(&mut self, item: Deferred) {
        self.staying.add(&item.about);
        self.stay.push_back(item);
    }

    /// The request stays until the next tick, or until an event wakes it.
    pub(crate) fn stay_until_tick(&mut self, plane: &DataPlane, mut item: Deferred) {
        item.due = plane.now.plus_ms(TICK_MS);
        self.stay(item);
    }

    /// A blocking request stays until its session gets a link for itself.
    pub(crate) fn stay_without_link(&mut self, item: Deferred) {
        self.stay.push_back(item);
    }

    /// Notes that a request leaves on this link. `None`: it has to stay. `is_in_back_off`: it waits
    /// for the server of the link, or for a server in its place.
    pub(crate) fn put_on_link(
        &mut self,
        plane: &DataPlane,
        link: LinkId,
        item: Deferred,
        is_in_back_off: bool,
    ) -> Option<Deferred> {
        let conflicts_on_other_link = |(to, touched): (&LinkId, &TouchedKeys)| {
            *to != link && touched.conflicts_with(&item.about)
        };
        if is_in_back_off {
            // A link that comes up wakes it earlier.
            self.stay_until_tick(plane, item);
            return None;
        }
        if self.sent.iter().any(conflicts_on_other_link) {
            self.stay(item);
            return None;
        }
        self.sent.entry(link).or_default().add(&item.about);
        if !item.is_named_elsewhere() {
            // It may be refused again, and a conflicting request behind it may not.
            self.staying.add(&item.about);
        }
        Some(item)
    }
}

impl Deferred {
    /// The memory of the request, the refusal and the item itself.
    fn memory_bytes(&self) -> usize {
        self.request.len() + self.refusal.len() + DEFERRED_BYTES
    }

    pub(crate) fn entry(&self) -> Entry {
        self.entry
    }

    pub(crate) fn request(&self) -> &[u8] {
        &self.request
    }

    /// The kind of the link that carried it, with that link's server.
    pub(crate) fn sent_on(&self) -> LinkKind {
        self.sent_on
    }

    /// The server that gets it next.
    pub(crate) fn next_server(&self) -> NextServer {
        self.to
    }

    /// Whether it goes to the server that has taken over from its own, if there is one.
    pub(crate) fn may_go_to_new_primary(&self) -> bool {
        self.to == NextServer::Owner && self.slot().is_none()
    }

    /// The slot of its first key.
    pub(crate) fn slot(&self) -> Option<u16> {
        self.about.slot
    }

    /// Whether it changes no key.
    pub(crate) fn reads(&self) -> bool {
        self.about.reads
    }

    /// Whether it may block at its server, so that its session needs a link for itself.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// The number of its share, if it is a share of a scattered request.
    pub(crate) fn share(&self) -> Option<u16> {
        match self.completion {
            Some(Completion::Scatter(ScatterCompletion::Share { index, .. })) => Some(index),
            _ => None,
        }
    }

    /// Whether it names scripts that its next server may lack.
    pub(crate) fn names_scripts(&self) -> bool {
        match self.to {
            // The reply to ASKING comes first.
            NextServer::Importer(_) => false,
            NextServer::Owner | NextServer::Named(_) => self
                .completion
                .as_ref()
                .is_some_and(Completion::names_scripts),
        }
    }

    /// The kind of its refusal. `None`: its link was lost, and no server refused it.
    fn refusal_kind(&self) -> Option<Refusal> {
        self.refusal.get(1..).and_then(Refusal::of)
    }

    /// Whether it may have run: the proof of the refusal is missing.
    fn is_unproven(&self) -> bool {
        self.proof.is_some()
    }

    /// Whether the answer to the second question is lost with its link.
    fn has_lost_proof(&self, plane: &DataPlane) -> bool {
        let Some(AwaitedProof { link, since, .. }) = self.proof else {
            return false;
        };
        let has_it = |link: &Link| link.is_up() && link.up_since <= since;
        !plane.links.get(link).is_some_and(has_it)
    }

    /// Whether its server named another node, and did not only refuse it for now.
    fn is_named_elsewhere(&self) -> bool {
        matches!(self.refusal_kind(), Some(Refusal::Moved | Refusal::Ask))
    }
}

/// Replies to requests that run code.
impl Redirects {
    /// The reply in front says that its request, which runs code, was not executed. respool asks
    /// the server whether it refuses a twin, and the reply waits for the answer. `false`: no such
    /// question is possible, and the client gets the reply.
    fn await_proof(
        &mut self,
        plane: &mut DataPlane,
        id: LinkId,
        front: Entry,
        refusal: Refusal,
        reply: &[u8],
    ) -> bool {
        let Some(link) = plane.links.get(id) else {
            return false;
        };
        let is_held = match link.role {
            LinkRole::Pinned { by } => by == front.session && !link.waits,
            role => role.is_multiplexed(),
        };
        if !is_held || plane.sessions.get(front.session).is_none() {
            return false;
        }
        let request = without_asking(link.ledger.first_bytes());
        let keys = plane.learned_commands.keys_in(request);
        let Some(twin) = refusals::twin(request, keys) else {
            return false;
        };
        let queue = self.queues.get(front.session);
        let is_imported = queue.is_some_and(|queue| queue.imported.contains(&front.seq));
        let proof = AwaitedProof {
            link: id,
            since: plane.now,
            again: matches!(
                front.earlier_attempt(),
                EarlierAttempt::Refused | EarlierAttempt::Lost
            ),
        };
        let next = NextServer::Owner;
        self.defer_front(plane, id, (next, Some(proof), refusal), false, reply);
        let (session, seq) = (front.session, front.seq);
        self.ask_for_proof(
            plane,
            id,
            (session, seq),
            ProofKind::Twin,
            &twin,
            is_imported,
        );
        true
    }

    /// The reply to an EVALSHA says NOSCRIPT, which its script may have written. respool asks the
    /// server whether it has the script. If it does not, the script may be sent along. `false`: no
    /// such question is possible, and the client gets the reply.
    pub(crate) fn await_proof_of_noscript(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        entry: Entry,
        request: &[u8],
        reply: &[u8],
    ) -> bool {
        let Some(sent_on) = plane.links.get(link).map(|link| link.kind) else {
            return false;
        };
        let mut scanner = RequestScanner::default();
        let digest = match scanner.scan(request, true) {
            Ok(Found::Request { .. }) => scanner.spans().get(1).map(|span| span.of(request)),
            _ => None,
        };
        let Some(digest) = digest else {
            return false;
        };
        let mut question = Vec::new();
        encode::request(&mut question, &[&b"SCRIPT"[..], b"EXISTS", digest]);
        let pool = plane.server(sent_on.server).pool;
        let item = Deferred {
            about: RequestKeys::of(&plane.learned_commands, request, pool, entry.class.reads()),
            entry: Entry {
                len: request.len() as u32,
                ..entry
            },
            completion: None,
            request: request.to_vec(),
            sent_on,
            to: NextServer::Owner,
            proof: Some(AwaitedProof {
                link,
                since: plane.now,
                again: false,
            }),
            due: plane.now.plus_ms(TICK_MS),
            waits: false,
            refusal: reply.to_vec(),
            overtaken: false,
        };
        plane.note_repeated();
        self.defer(plane, link, item);
        let place = (entry.session, entry.seq);
        self.ask_for_proof(plane, link, place, ProofKind::NoScript, &question, false);
        true
    }

    /// Decides about an unproven request after the server's answer to the second question.
    /// `send_script`: sends the request with its script, which the server lacks, if respool has it.
    /// Returns the request if the server refused its twin, and so did not execute it. Otherwise the
    /// client gets its reply, or the request has ended meanwhile.
    pub(crate) fn settle_proof(
        &mut self,
        plane: &mut DataPlane,
        (id, (session, seq)): (LinkId, (SessionId, u32)),
        proof: ProofKind,
        reply: &[u8],
        send_script: impl FnOnce(&mut DataPlane, Entry, &[u8]) -> bool,
    ) -> Option<(Deferred, Refusal)> {
        let mut item = self.take_unproven(plane, id, session, seq)?;
        let twin = reply.strip_prefix(b"-").and_then(Refusal::of);
        let proven = twin.zip(item.refusal_kind());
        let proven = proven.filter(|(twin, refusal)| refusals::proves(*twin, *refusal));
        match (proof, proven) {
            (ProofKind::Twin, Some((twin, _))) => {
                item.refusal = reply.to_vec();
                return Some((item, twin));
            }
            (ProofKind::NoScript, _) if reply == NONE_EXISTS => {
                if !send_script(plane, item.entry, &item.request) {
                    plane.deliver_held_back(item.entry, &item.refusal);
                }
            }
            _ => plane.deliver_held_back(item.entry, &item.refusal),
        }
        None
    }

    /// Keeps a request with a proven refusal until it is sent to the next server.
    pub(crate) fn keep_proven(
        &mut self,
        plane: &mut DataPlane,
        mut item: Deferred,
        next: NextServer,
    ) {
        let Some(proof) = item.proof.take() else {
            unreachable!("a request is proven once");
        };
        item.to = next;
        item.due = match item.is_named_elsewhere() && !proof.again {
            true => plane.now,
            false => plane.now.plus_ms(TICK_MS),
        };
        let session = item.entry.session;
        self.keep_deferred(plane, session, item);
    }
}

/// The reply to SCRIPT EXISTS of one digest that the server does not have.
const NONE_EXISTS: &[u8] = b"*1\r\n:0\r\n";

/// Requests that leave their link without a refusal.
impl Redirects {
    /// A blocking request got its answer on the session's own link. It goes on at another server,
    /// and keeps its place.
    pub(crate) fn go_on_elsewhere(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        entry: Entry,
        (request, completion): (Vec<u8>, Completion),
        (server, due): (ServerId, Time),
    ) {
        plane.note_repeated();
        let Some(own) = plane.links.get(link) else {
            return plane.leave_own_link(link, entry.session);
        };
        let item = Deferred {
            entry: Entry {
                len: request.len() as u32,
                ..entry.after(EarlierAttempt::Unsent).leaving_again()
            },
            completion: Some(completion),
            request,
            sent_on: LinkKind { server, ..own.kind },
            to: NextServer::Owner,
            proof: None,
            about: RequestKeys::default(),
            due,
            waits: true,
            refusal: bound_reply("pinned-links-max"),
            overtaken: false,
        };
        self.defer(plane, link, item);
        plane.leave_own_link(link, entry.session);
    }

    /// Takes requests from a lost link that another server can answer: its slot has another owner
    /// now, or another replica can be read. They are deferred.
    pub(crate) fn move_remaining(&mut self, plane: &mut DataPlane, id: LinkId) {
        let Some(link) = plane.links.get(id).filter(|link| link.handles_redirects) else {
            return;
        };
        let kind = link.kind;
        let server = plane.server(kind.server);
        let (pool, of_replica) = (
            &plane.pools[usize::from(server.pool)],
            server.replica_of.is_some(),
        );
        let (cluster, sessions) = (pool.cluster(), &plane.sessions);
        let moved = |entry: &Entry, request: &[u8]| {
            let request = without_asking(request);
            let has_moved = || {
                let learned = &plane.learned_commands;
                let slot = RequestKeys::of(learned, request, pool.index, false).slot;
                cluster
                    .zip(slot)
                    .is_some_and(|(cluster, slot)| cluster.owner_of_slot(slot) != kind.server)
            };
            entry.session != SessionId::NONE
                && (of_replica
                    || cluster.is_some() && has_moved()
                    || is_read_from_replica(pool, sessions, kind.server, entry, request))
        };
        let Some(link) = plane.links.get_mut(id) else {
            return;
        };
        for departed in link.take_departing(moved) {
            let request = without_asking(&departed.request).to_vec();
            let entry = Entry {
                len: request.len() as u32,
                ..departed.entry
            };
            let completion = match departed.completion {
                Some(Completion::Asking { then }) => then.map(|then| *then),
                completion => completion,
            };
            self.move_away(plane, id, kind, entry, completion, request);
        }
    }

    /// Sends the reads of a link to other servers if its server has sent no reply for long. Their
    /// entries keep their places on this link, so that late replies are recognised and dropped.
    pub(crate) fn move_reads(&mut self, plane: &mut DataPlane, id: LinkId) {
        let is_shared = |link: &&mut Link| link.role.is_multiplexed();
        let Some(link) = plane.links.get_mut(id).filter(is_shared) else {
            return;
        };
        let kind = link.kind;
        let pool = &plane.pools[usize::from(plane.servers[usize::from(kind.server.0)].pool)];
        let sessions = &plane.sessions;
        let mut moved = Vec::new();
        for (index, held) in link.ledger.requests().enumerate() {
            let entry = held.entry;
            // A fragment of the first reply may be with its client already.
            let is_answered = index == 0 && link.cutting;
            let again = held.completion.and_then(Completion::read_again);
            let is_read = entry.class.reads() && entry.session != SessionId::NONE;
            if !is_read || entry.has_completion() != again.is_some() || is_answered {
                continue;
            }
            let read = held.bytes();
            if is_read_from_replica(pool, sessions, kind.server, entry, &read) {
                let entry_again = Entry {
                    len: read.len() as u32,
                    class: Class::Read,
                    ..entry.after(EarlierAttempt::Lost)
                };
                moved.push((index, entry_again, again, read));
            }
        }
        for (index, ..) in &moved {
            link.ledger.give_up(*index);
        }
        for (_, entry, completion, request) in moved {
            self.move_away(plane, id, kind, entry, completion, request);
        }
    }

    /// Defers a request of this link, to be sent to another server.
    fn move_away(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        sent_on: LinkKind,
        entry: Entry,
        completion: Option<Completion>,
        request: Vec<u8>,
    ) {
        let refusal = moved_away(plane.label(link));
        let pool = plane.server(sent_on.server).pool;
        let item = Deferred {
            about: RequestKeys::of(&plane.learned_commands, &request, pool, entry.class.reads()),
            entry,
            completion,
            request,
            sent_on,
            to: NextServer::Owner,
            proof: None,
            due: plane.now,
            waits: false,
            refusal,
            overtaken: false,
        };
        self.defer(plane, link, item);
    }
}

impl Redirects {
    /// The time at which the next turn must be taken without an event: now for new deferred
    /// requests, else at the sweep that was skipped.
    pub(crate) fn deadline(&self, now: Time) -> Option<Time> {
        match self.new_sessions.is_empty() {
            true => self.sweep_missed.then_some(self.sweep_at),
            false => Some(now),
        }
    }

    /// Whether a session has deferred requests.
    pub(crate) fn has_waiting_sessions(&self) -> bool {
        !self.new_sessions.is_empty() || !self.sessions.is_empty()
    }

    /// When the oldest deferred request of a pool's sessions was read.
    pub(crate) fn oldest_deferred(&self, plane: &DataPlane, pool: u16) -> Option<Stamp> {
        let now = plane.now_stamp;
        let deferring = [&self.new_sessions, &self.sessions].into_iter().flatten();
        let oldest = deferring.filter_map(|id| {
            let session = plane.sessions.get(*id);
            session.filter(|session| session.pool == pool)?;
            self.queues.get(*id)?.oldest_read_at()
        });
        oldest.max_by_key(|read_at| now.ticks_since(*read_at))
    }

    /// Sends the second question about an unproven request. `is_imported`: the node answers for the
    /// slot only behind [`ASKING`].
    fn ask_for_proof(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        (session, seq): (SessionId, u32),
        proof: ProofKind,
        question: &[u8],
        is_imported: bool,
    ) {
        let completion = Completion::Redirect(RedirectCompletion::Proof {
            session,
            seq,
            proof,
        });
        match is_imported {
            false => plane.put_ours(link, question, completion),
            true => {
                let then = Some(Box::new(completion));
                let question = [ASKING, question].concat();
                plane.put_ours(link, &question, Completion::Asking { then });
            }
        }
    }

    /// Takes an unproven request from the deferred ones of its session.
    fn take_unproven(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        session: SessionId,
        seq: u32,
    ) -> Option<Deferred> {
        let queue = self.queue_of(plane, session)?;
        let is_unproven = |item: &Deferred| {
            item.entry.seq == seq && item.proof.is_some_and(|proof| proof.link == link)
        };
        let at = queue.items.iter().position(is_unproven)?;
        let item = queue.remove(at);
        queue.report(plane, session);
        item
    }

    /// Puts a request back among the deferred ones, at its place.
    fn keep_deferred(&mut self, plane: &mut DataPlane, id: SessionId, item: Deferred) {
        let Some(queue) = self.queue_of(plane, id) else {
            return;
        };
        queue.due = queue.due.min(item.due);
        queue.insert(item);
        queue.report(plane, id);
        plane.wake_deferred();
    }
}

/// Whether a request is a read that its session may have from another server than the owner of its
/// key.
fn is_read_from_replica(
    pool: &Pool,
    sessions: &Slab<SessionId, Session>,
    owner: ServerId,
    entry: &Entry,
    request: &[u8],
) -> bool {
    let readers = pool.readers.as_deref();
    let at = readers.and_then(|readers| readers.instead_of(owner, entry.session).ok());
    let wants = |session: &Session| !session.state.any(Flags::OWN_READ_MODE);
    at.is_some_and(|at| at != owner)
        && sessions.get(entry.session).is_some_and(wants)
        && id_of(request).is_some_and(|id| id.get().replica)
}

/// Whether a request that was read at `read_at` has passed its deadline.
fn is_over(plane: &DataPlane, read_at: Stamp) -> bool {
    let limit_ms = match plane.settings.timeouts.request_ms {
        0 => ASKED_AGAIN_MS,
        limit_ms => limit_ms,
    };
    plane.now_stamp.ms_since(read_at) >= limit_ms
}

/// The error reply to a request that no server would execute.
fn moved_away(server: &str) -> Vec<u8> {
    let mut reply = Vec::new();
    error::append_reply(&mut reply, Fate::NotSent, Cause::Moved { server });
    reply
}

#[cfg(test)]
mod tests {
    use respool_protocol::commands::Retry;
    use respool_protocol::encode::Version;

    use super::*;
    use crate::base::settings::Settings;
    use crate::data_plane::learned_commands::LearnedCommands;
    use crate::data_plane::slow_readers::DEFAULT_LANE;
    use crate::data_plane::test_plane::plane_of;

    const MOVED: &[u8] = b"-MOVED 1 node:1\r\n";
    const TRY_AGAIN: &[u8] = b"-TRYAGAIN later\r\n";
    /// How long requests are retried in these tests, milliseconds.
    const REQUEST_MS: u32 = 1_000;

    fn plane() -> DataPlane {
        let mut settings = Settings::default();
        settings.timeouts.request_ms = REQUEST_MS;
        plane_of(settings)
    }

    fn link(index: u32) -> LinkId {
        LinkId {
            index,
            generation: 0,
        }
    }

    /// A request with words that are separated by spaces, refused with this reply.
    fn item(seq: u32, request: &str, refusal: &[u8]) -> Deferred {
        let words: Vec<&str> = request.split(' ').collect();
        let mut bytes = Vec::new();
        encode::request(&mut bytes, &words);
        let reads = id_of(&bytes).is_some_and(|id| id.get().retry == Retry::Read);
        Deferred {
            entry: Entry::of(SessionId::NONE, seq, Stamp(0)),
            completion: None,
            about: RequestKeys::of(&LearnedCommands::default(), &bytes, 0, reads),
            request: bytes,
            sent_on: LinkKind {
                server: ServerId(0),
                version: Version::Resp2,
                db: 0,
                user: 0,
                lane: DEFAULT_LANE,
            },
            to: NextServer::Owner,
            proof: None,
            due: Time(0),
            waits: false,
            refusal: refusal.to_vec(),
            overtaken: false,
        }
    }

    fn scan(items: impl IntoIterator<Item = Deferred>) -> RetryScan {
        RetryScan {
            session: SessionId::NONE,
            items: items.into_iter().collect(),
            waits_since: Stamp(0),
            is_over_bound: false,
            is_alone: true,
            executed: AllExecuted::default(),
            stay: VecDeque::new(),
            staying: TouchedKeys::default(),
            sent: HashMap::new(),
        }
    }

    /// The places of the requests that leave and of those that end. Each leaves on the link of
    /// `links` at its place.
    fn run(scan: &mut RetryScan, plane: &DataPlane, links: &[u32]) -> (Vec<u32>, Vec<u32>) {
        let (mut left, mut ended) = (Vec::new(), Vec::new());
        while let Some(next) = scan.next(plane) {
            match next {
                RetryOutcome::End(item) => ended.push(item.entry.seq),
                RetryOutcome::Send(item) => {
                    let seq = item.entry.seq;
                    let on = link(links[seq as usize]);
                    left.extend(scan.put_on_link(plane, on, item, false).map(|_| seq));
                }
            }
        }
        (left, ended)
    }

    fn stays(scan: &RetryScan) -> Vec<u32> {
        scan.stay.iter().map(|item| item.entry.seq).collect()
    }

    /// Redirected requests for one key leave together on one link. On two links the second one
    /// stays until the first is answered.
    #[test]
    fn conflicting_requests_leave_on_one_link_alone() {
        let items = || {
            [
                item(0, "SET a 1", MOVED),
                item(1, "GET a", MOVED),
                item(2, "GET b", MOVED),
            ]
        };
        let plane = plane();
        let mut same = scan(items());
        assert_eq!(run(&mut same, &plane, &[1, 1, 2]), (vec![0, 1, 2], vec![]));
        let mut apart = scan(items());
        assert_eq!(run(&mut apart, &plane, &[1, 2, 2]), (vec![0, 2], vec![]));
        assert_eq!(stays(&apart), [1]);
    }

    /// A request that was refused for now may be refused again, so a conflicting one stays behind
    /// it, on the same link, too.
    #[test]
    fn request_stays_behind_one_that_may_come_back() {
        let plane = plane();
        let mut scan = scan([item(0, "SET a 1", TRY_AGAIN), item(1, "GET a", TRY_AGAIN)]);
        assert_eq!(run(&mut scan, &plane, &[1, 1]), (vec![0], vec![]));
        assert_eq!(stays(&scan), [1]);
    }

    /// A request that is not due stays, and a conflicting one behind it stays, too.
    #[test]
    fn requests_wait_for_one_that_is_not_due() {
        let plane = plane();
        let mut first = item(0, "SET a 1", MOVED);
        first.due = Time(0).plus_ms(1);
        let others = [item(1, "GET a", MOVED), item(2, "GET b", MOVED)];
        let mut scan = scan(std::iter::once(first).chain(others));
        assert_eq!(run(&mut scan, &plane, &[1, 1, 1]), (vec![2], vec![]));
        assert_eq!(stays(&scan), [0, 1]);
    }

    /// A request ends at its deadline, or once a later request was executed on its keys.
    #[test]
    fn retries_end_at_the_deadline_and_when_overtaken() {
        let mut plane = plane();
        let mut overtaken = scan([item(0, "GET a", MOVED), item(1, "GET b", MOVED)]);
        let write = item(2, "SET a 1", MOVED);
        overtaken.executed.note(2, &write.about);
        assert_eq!(run(&mut overtaken, &plane, &[1, 1]), (vec![1], vec![0]));
        plane.now_stamp = Time(0).plus_ms(REQUEST_MS).stamp();
        let mut late = scan([item(0, "GET a", MOVED)]);
        assert_eq!(run(&mut late, &plane, &[1]), (vec![], vec![0]));
    }

    /// While other requests of the session are in flight, nothing leaves.
    #[test]
    fn nothing_leaves_beside_requests_in_flight() {
        let plane = plane();
        let mut scan = scan([item(0, "GET a", MOVED)]);
        scan.is_alone = false;
        assert_eq!(run(&mut scan, &plane, &[1]), (vec![], vec![]));
        assert_eq!(stays(&scan), [0]);
    }

    /// A request ends if its proof was lost with its link.
    #[test]
    fn request_without_proof_ends() {
        let plane = plane();
        let mut unproven = item(0, "EVAL x 1 a", MOVED);
        unproven.proof = Some(AwaitedProof {
            link: link(1),
            since: Time(0),
            again: false,
        });
        let mut scan = scan([unproven]);
        assert_eq!(run(&mut scan, &plane, &[1]), (vec![], vec![0]));
    }
}
