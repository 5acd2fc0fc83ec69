//! Deferred requests: a server refused a request without executing it, and respool sends it again.
//!
//! ```text
//!   MOVED, ASK                                       ─► to the named node
//!   TRYAGAIN, CLUSTERDOWN, LOADING, ... READONLY     ─► to the slot's owner, a little later
//!   UNBLOCKED, if the server sends it by itself      ─► to the slot's owner, a little later
//! ```
//!
//! The exception is a slot without an owner: its client gets the node's error
//! ([`Engine::is_nobodys`]).
//!
//! The session keeps a deferred request until it is sent again, and is not read meanwhile. The
//! other requests of the session are on their way already, and respool waits for their replies.
//! When the session has nothing in flight, its deferred requests leave in the order in which the
//! client sent them. A later request may have been executed before. If it touched the same keys,
//! the deferred request must not be executed any more, and its client gets the refusal. Two
//! deferred requests may touch the same keys and go to different nodes. Then the second one leaves
//! after the reply to the first.

use std::collections::{HashMap, VecDeque};

use respool_protocol::cluster::{Endpoint, Redirect, Refusal};
use respool_protocol::commands::id;
use respool_protocol::encode;
use respool_protocol::request::{Found, Scanner};

use crate::base::error::{self, Cause, Fate};
use crate::base::handle::{LinkId, SessionId};
use crate::base::settings::Address;
use crate::base::slab::Slab;
use crate::base::time::{TICK_MS, Time};
use crate::data_plane::DataPlane;
use crate::data_plane::completion::{Completion, ProofStep};
use crate::data_plane::ingress::bound_reply;
use crate::data_plane::ledger::{Class, EarlierAttempt, Entry};
use crate::data_plane::link::{Link, LinkKind, LinkState, Role};
use crate::data_plane::sent_request::{ASKING, as_asked, id_of};
use crate::data_plane::session::{Flags, Pins, Session};
use crate::discovery::cluster::Cluster;
use crate::discovery::replicas::{NO_READER, NoReader, Readers};
use crate::engine::Engine;
use crate::redirect::Redirects;
use crate::redirect::conflicts::{AllExecuted, RequestKeys, TouchedKeys};
use crate::redirect::refusals::{self, Belief, RefusedRequest, belief};
use crate::routing::pool::ServerId;

/// How long a refused request is retried if requests have no deadline, milliseconds.
const ASKED_AGAIN_MS: u32 = 10_000;

/// A blocking request counts as blocked at its node after so long there, milliseconds.
const WAITED_MS: u32 = 1_000;

/// A request that its server did not execute.
struct Deferred {
    entry: Entry,
    duty: Option<Completion>,
    request: Vec<u8>,
    /// The kind of the link that carried it, with that link's server.
    asked: LinkKind,
    to: RetryTarget,
    about: RequestKeys,
    /// The earliest time of the next attempt.
    due: Time,
    /// It may block at its server, on a link that its session has for itself.
    waits: bool,
    /// The refusal: the error reply of the server.
    refusal: Vec<u8>,
    /// A later request of the session was executed, and the two conflict on a key.
    overtaken: bool,
}

/// Memory of a deferred request, without its bytes and without the refusal.
const DEFERRED_BYTES: usize = 2 * size_of::<Deferred>();

/// The server that gets the request next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryTarget {
    /// The owner of its slot at the time of the attempt.
    Owner,
    /// This server, with [`ASKING`].
    Importer(ServerId),
    /// This server. A replica named it as the owner of a slot. Or a node named it in a refusal of a
    /// request whose keys respool cannot see.
    Named(ServerId),
    /// No server yet: the request may have run. The server got a second question on this link, at
    /// the time `since`. `again`: the request was deferred before.
    Unproven {
        link: LinkId,
        since: Time,
        again: bool,
    },
}

/// The deferred requests of a session.
#[derive(Default)]
pub(crate) struct DeferredQueue {
    /// The deferred requests, in the order of their places.
    items: VecDeque<Deferred>,
    /// Other requests that were in flight on the same links when a request was deferred.
    others: Vec<InFlight>,
    /// The places of requests that were sent to an importing node, behind [`ASKING`].
    imported: Vec<u32>,
    /// The links whose requests are in `others`.
    listed_links: Vec<LinkId>,
    /// When a request that may block was deferred, milliseconds.
    waits_since_ms: u32,
    /// The session's later requests have passed their bound: nothing is retried.
    is_over_bound: bool,
    /// The session is listed in [`Redirects::now`] or [`Redirects::sessions`].
    is_listed: bool,
    /// The earliest `due` of the items.
    due: Time,
    /// When the oldest of the items was read, milliseconds as in a ledger entry.
    oldest_ms: u32,
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
    pub(crate) fn held_bytes(&self) -> usize {
        self.items.iter().map(|item| item.request.len()).sum()
    }

    /// The memory of the queue: requests, refusals and the items themselves.
    pub(crate) fn memory_bytes(&self) -> usize {
        let each = |item: &Deferred| item.request.len() + item.refusal.len() + DEFERRED_BYTES;
        let others = self.others.capacity() * size_of::<InFlight>();
        self.items.iter().map(each).sum::<usize>() + others
    }

    /// Stops all retries: the session's later requests have passed their bound.
    pub(crate) fn give_up(&mut self) {
        self.is_over_bound = true;
    }

    /// Whether the first deferred request has this place.
    pub(crate) fn holds(&self, seq: u32) -> bool {
        self.items.front().is_some_and(|item| item.entry.seq == seq)
    }

    /// The number of deferred requests.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether a scan makes sense if the session has nothing else in flight: an item is due, an
    /// event woke the queue, or conflicts with executed requests can be found.
    fn is_due(&self, now: Time, wakes: u32) -> bool {
        self.due <= now || self.wakes != wakes || !self.others.is_empty()
    }

    /// When a request began to wait, milliseconds as in a ledger entry.
    fn asked_at_ms(&self, item: &Deferred) -> u32 {
        match item.waits {
            true => self.waits_since_ms,
            false => item.entry.at_ms,
        }
    }

    /// Updates the summary of the items after a scan.
    fn sum_up(&mut self, now_ms: u32, wakes: u32) {
        let due = self.items.iter().map(|item| item.due).min();
        let asked = self.items.iter().map(|item| self.asked_at_ms(item));
        let oldest = asked.max_by_key(|at_ms| now_ms.wrapping_sub(*at_ms));
        self.oldest_ms = oldest.unwrap_or(now_ms);
        self.due = due.unwrap_or_default();
        self.wakes = wakes;
    }

    /// Whether a deferred request may block at its server.
    pub(crate) fn waits(&self) -> bool {
        self.items.iter().any(|item| item.waits)
    }

    /// When the first deferred request that cannot block was read, as in its ledger entry.
    pub(crate) fn oldest_at_ms(&self) -> Option<u32> {
        let places = self.items.iter().filter(|item| !item.waits);
        places.map(|item| item.entry.at_ms).next()
    }
}

impl Engine {
    /// Handles the error reply in front of a link whose server may redirect. Returns whether the
    /// request has left the link: it was deferred or answered.
    #[cold]
    pub(crate) fn handle_refusal(&mut self, id: LinkId, reply: &[u8]) -> bool {
        let said = reply.strip_prefix(b"-").unwrap_or_default();
        let Some(link) = self.plane.links.get_mut(id) else {
            return false;
        };
        let Some(front) = link.first_in_flight() else {
            return false;
        };
        if let Some(Completion::Block {
            before,
            came,
            refusal,
            ..
        }) = link.duties.front_mut().filter(|_| front.duty)
        {
            let refused = Refusal::of(said).is_some();
            match refusal {
                _ if *came < *before => {
                    // The reply to EXEC decides about the block.
                    if refused && refusal.is_none() {
                        *refusal = Some(reply.to_vec());
                    }
                    return false;
                }
                Some(first) if said.starts_with(b"EXECABORT") => {
                    let first = std::mem::take(first);
                    return self.handle_refusal(id, &first);
                }
                _ => {}
            }
        }
        let Some(refusal) = Refusal::of(said) else {
            return false;
        };
        let is_of_request = match link.duties.front().filter(|_| front.duty) {
            // Other sessions may wait for this reply, too, although the first session is gone.
            None => front.session != SessionId::NONE || link.shares_next(),
            Some(duty) => duty.is_of_request(),
        };
        if !is_of_request || matches!(link.role, Role::Hub(_) | Role::Sentinel) {
            return false;
        }
        let asked = match link.duties.front().filter(|_| front.duty) {
            Some(Completion::Block { opens: true, .. }) => Some(RefusedRequest::Block),
            // The requests of such a block were executed one by one: no reply speaks for all of
            // them.
            Some(Completion::Block { .. }) => return false,
            _ => None,
        };
        let is_block = asked.is_some();
        let pool = self.plane.servers[usize::from(link.kind.server.0)].pool;
        let request = as_asked(link.first_bytes());
        let about = RequestKeys::of(
            &self.plane.learned_commands,
            request,
            pool,
            front.class.reads(),
        );
        let (server, role) = (link.kind.server, link.role);
        let asked = asked.unwrap_or(match about.runs_code {
            true => RefusedRequest::Code,
            false => RefusedRequest::Plain,
        });
        match belief(asked, refusal) {
            Belief::Believed => {}
            Belief::Confirm => return self.await_proof(id, front, refusal, reply),
            Belief::AskRole => {
                self.discovery.ask_role(&mut self.plane, server);
                return false;
            }
            Belief::Answer => return false,
        }
        if self
            .discovery
            .is_nobodys(&mut self.plane, server, said, about.slot)
        {
            if is_block {
                // The client gets this refusal. The error of EXEC says less.
                self.answer_front(id, front, reply);
            }
            return is_block;
        }
        let to = self.follow_redirect(server, about.slot, said, refusal);
        if front.len == 0 {
            let mut told = Vec::new();
            let server = self.plane.label(id);
            error::append_reply(&mut told, Fate::NotSent, Cause::TooLargeToMove { server });
            self.answer_front(id, front, &told);
            return true;
        }
        match role {
            Role::Pinned { by } => self.leave_own_server(id, by, front, to, refusal, reply),
            _ => self.defer_front(id, (to, refusal), false, reply),
        }
        true
    }

    /// Updates the topology from a refusal, and returns the server that gets the request next.
    /// `slot`: the slot of the request, if respool can see its keys.
    pub(crate) fn follow_redirect(
        &mut self,
        server: ServerId,
        slot: Option<u16>,
        said: &[u8],
        refusal: Refusal,
    ) -> RetryTarget {
        let pool = usize::from(self.plane.server(server).pool);
        let of_replica = self.plane.server(server).replica_of.is_some();
        match refusal {
            Refusal::Moved | Refusal::Ask => {
                let redirect = Redirect::read(said);
                let named = redirect.as_ref();
                let named = named.and_then(|redirect| self.server_named_by(server, redirect));
                let Some((redirect, named)) = redirect.zip(named) else {
                    // No known server has the named address, at least not yet.
                    self.discovery.request_refresh(&mut self.plane, server);
                    return RetryTarget::Owner;
                };
                self.discovery.reach(&mut self.plane, named);
                if redirect.ask {
                    self.plane.counters.redirected_ask += 1;
                    return RetryTarget::Importer(named);
                }
                self.plane.counters.redirected_moved += 1;
                if of_replica {
                    // The replica's own topology may be out of date. So only this read follows the
                    // redirect, and respool asks the owners.
                    if self
                        .discovery
                        .owner_of_slot(&self.plane, pool, redirect.slot)
                        == Some(named)
                    {
                        self.discovery.note_refused_read(&mut self.plane, server);
                    }
                    self.discovery.request_refresh(&mut self.plane, server);
                    return RetryTarget::Named(named);
                }
                self.heal_slot(pool, redirect.slot, named);
                if slot != Some(redirect.slot) {
                    return RetryTarget::Named(named);
                }
            }
            // CLUSTERDOWN does not count against the replica: every node would answer so.
            _ if of_replica && refusal != Refusal::ClusterDown => {
                self.plane.counters.refused_for_now += 1;
                self.discovery.note_refused_read(&mut self.plane, server);
            }
            Refusal::ReadOnly | Refusal::Unblocked | Refusal::ClusterDown | Refusal::MasterDown => {
                self.plane.counters.refused_for_now += 1;
                self.discovery.request_survey(&mut self.plane, server);
                self.request_refresh_after_loss(server);
            }
            Refusal::TryAgain | Refusal::Loading => self.plane.counters.refused_for_now += 1,
        }
        RetryTarget::Owner
    }

    /// The server that a redirect names. `None`: no node has named that address in an answer about
    /// the topology. Then respool asks the node about the topology.
    fn server_named_by(&mut self, server: ServerId, redirect: &Redirect<'_>) -> Option<ServerId> {
        let host = match (redirect.host, &self.plane.server(server).settings.address) {
            (Some(host), _) => host.to_owned(),
            (None, Address::Tcp { host, .. }) => host.clone(),
            (None, Address::Unix(_)) => return None,
        };
        let port = redirect.port;
        self.known_server_at(server, Endpoint { host, port }, redirect.ask)
    }

    /// Defers the request in front of the link, and the equal requests that share its reply.
    /// `waits`: the request may block at its server.
    fn defer_front(
        &mut self,
        id: LinkId,
        (to, why): (RetryTarget, Refusal),
        waits: bool,
        reply: &[u8],
    ) {
        let Some(link) = self.plane.links.get_mut(id) else {
            return;
        };
        let asked = link.kind;
        let front = link.first_in_flight();
        let (entries, request, mut duty) = match front.filter(|front| front.duty) {
            Some(front) => {
                let request = as_asked(link.first_bytes()).to_vec();
                let mut duty = link.duties.pop_front();
                if let Some(Completion::Block { came, refusal, .. }) = &mut duty {
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
        self.plane.counters.link_replies += 1;
        let pool = self.plane.server(asked.server).pool;
        let now = matches!(why, Refusal::Moved | Refusal::Ask);
        for entry in entries {
            // A request that was redirected before waits for a tick, so it does not circle between
            // two nodes.
            let is_again = matches!(entry.before, EarlierAttempt::Refused | EarlierAttempt::Lost);
            let soon = now && !is_again && !matches!(to, RetryTarget::Unproven { .. });
            let item = Deferred {
                entry: Entry {
                    len: request.len() as u32,
                    class: Class::of(entry.class.reads()),
                    ..entry
                },
                duty: duty.take(),
                about: RequestKeys::of(
                    &self.plane.learned_commands,
                    &request,
                    pool,
                    entry.class.reads(),
                ),
                request: request.clone(),
                asked,
                to,
                due: match soon {
                    true => self.plane.now,
                    false => self.plane.now.plus_ms(TICK_MS),
                },
                waits,
                refusal: reply.to_vec(),
                overtaken: false,
            };
            self.defer(id, item);
        }
    }

    /// Moves a request from this link to the deferred requests of its session.
    fn defer(&mut self, link: LinkId, mut item: Deferred) {
        let (id, seq) = (item.entry.session, item.entry.seq);
        let now_ms = self.plane.now_ms;
        let Some(session) = self.plane.sessions.get_mut(id) else {
            self.plane.counters.late_replies += 1;
            return;
        };
        let waited_ms = now_ms.wrapping_sub(item.entry.at_ms);
        let is_new = item.entry.before != EarlierAttempt::Refused || waited_ms >= WAITED_MS;
        // A request of a lost link is sent again once, whichever server gets it.
        if item.entry.before != EarlierAttempt::Lost {
            item.entry.before = EarlierAttempt::Refused;
        }
        session.flags |= Flags::UNFORESEEN;
        let delayed = &mut session.rare().deferred;
        if item.waits && is_new {
            delayed.waits_since_ms = now_ms;
        }
        if !std::mem::replace(&mut delayed.is_listed, true) {
            self.redirects.now.push(id);
        }
        if delayed.items.is_empty() {
            // The last deferred requests may have ended while others were in flight: forget these.
            delayed.others.clear();
            delayed.imported.clear();
            delayed.listed_links.clear();
            (delayed.due, delayed.oldest_ms) = (item.due, item.entry.at_ms);
        }
        if !delayed.listed_links.contains(&link) {
            delayed.listed_links.push(link);
            let others = self.in_flight_of(id, link);
            if let Some(session) = self.plane.sessions.get_mut(id) {
                session.rare().deferred.others.extend(others);
            }
        }
        let Some(session) = self.plane.sessions.get_mut(id) else {
            return;
        };
        let delayed = &mut session.rare().deferred;
        let is_item = |other: &&mut InFlight| {
            other.seq == seq && !other.is_deferred && other.about.has_same_keys(&item.about)
        };
        if let Some(other) = delayed.others.iter_mut().find(is_item) {
            other.is_deferred = true;
        }
        self.plane.held_bytes += item.request.len();
        let in_front = |other: &Deferred| (other.entry.seq.wrapping_sub(seq) as i32) <= 0;
        let place = delayed.items.partition_point(in_front);
        delayed.due = delayed.due.min(item.due);
        let waited_ms = now_ms.wrapping_sub(item.entry.at_ms);
        if !item.waits && waited_ms > now_ms.wrapping_sub(delayed.oldest_ms) {
            delayed.oldest_ms = item.entry.at_ms;
        }
        delayed.items.insert(place, item);
        let is_head = session.head_is_put_off();
        self.plane.hold_until_caught_up(id);
        if is_head {
            // The session waits for replies that were not to be delivered before this one.
            self.plane.unpause_draining(id);
        }
    }

    /// The requests of a session on a link.
    fn in_flight_of(&self, session_id: SessionId, link: LinkId) -> Vec<InFlight> {
        let Some(link) = self.plane.links.get(link) else {
            return Vec::new();
        };
        let pool = self.plane.server(link.kind.server).pool;
        let mut found = Vec::new();
        let (mut at, mut sent_at): (usize, (&[u8], _)) = (0, (b"", 0..0));
        for entry in &link.ledger {
            let end = at + entry.len as usize;
            if entry.class != Class::Same {
                sent_at = (entry.class.beginning(), at..end);
            }
            at = end;
            if entry.session == session_id {
                let (beginning, sent_at) = sent_at.clone();
                let request = [beginning, &link.out.bytes()[sent_at]].concat();
                let request = as_asked(&request);
                found.push(InFlight {
                    seq: entry.seq,
                    about: RequestKeys::of(
                        &self.plane.learned_commands,
                        request,
                        pool,
                        entry.class.reads(),
                    ),
                    is_deferred: false,
                });
            }
        }
        found
    }

    /// Ends the retries: the client gets the refusal, or respool's error if the refusal is a
    /// redirect.
    fn deliver_refusal(&mut self, item: Deferred) {
        self.plane.held_bytes -= item.request.len();
        if item.is_unproven() {
            // The request may have run: the reply may be its own text.
            return self.pass_on(item.entry, &item.refusal);
        }
        let reply = match item.is_named_elsewhere() {
            true => moved_away(&self.plane.server(item.asked.server).label),
            false => item.refusal,
        };
        self.plane.counters.failed_not_sent += 1;
        self.pass_on(item.entry, &reply);
    }

    /// Sends deferred requests again if they may be sent. Sessions that deferred a request in this
    /// turn are scanned at once. Then all sessions with deferred requests are scanned, of which
    /// there may be thousands. The pause between two such scans is one microsecond a session, at
    /// most a tick. So most of the time stays for sessions that use other servers.
    pub(crate) fn retry_deferred(&mut self) {
        for id in std::mem::take(&mut self.redirects.now) {
            self.scan_deferred(id);
        }
        self.redirects.scan_missed = self.plane.now < self.redirects.scan_at;
        if self.redirects.scan_missed {
            return;
        }
        for id in std::mem::take(&mut self.redirects.sessions) {
            self.scan_deferred(id);
        }
        let pause_us = self.redirects.sessions.len().min(TICK_MS as usize * 1000);
        self.redirects.scan_at = self.plane.now + pause_us as u32;
    }

    /// Scans the deferred requests of a session, and lists the session again if some are left.
    fn scan_deferred(&mut self, id: SessionId) {
        if let Some(session) = self.plane.sessions.get_mut(id) {
            session.rare().deferred.is_listed = false;
        }
        self.retry_deferred_of(id);
        if let Some(session) = self.plane.sessions.get_mut(id) {
            let delayed = &mut session.rare().deferred;
            let has_more = !delayed.items.is_empty();
            if has_more && !std::mem::replace(&mut delayed.is_listed, true) {
                self.redirects.sessions.push(id);
            }
        }
    }

    /// Sends the deferred requests of a session again, or ends them, as far as that is due.
    fn retry_deferred_of(&mut self, id: SessionId) {
        let Some(session) = self.plane.sessions.get(id) else {
            return;
        };
        let Some(rare) = session.rare.as_deref() else {
            return;
        };
        let delayed = &rare.deferred;
        let is_due = delayed.is_due(self.plane.now, self.plane.retry_wakes);
        let is_alone = is_due && session.in_flight() == 0;
        if !is_alone
            && !delayed.is_over_bound
            && !self.redirects.is_over(&self.plane, delayed.oldest_ms)
        {
            return;
        }
        let Some(session) = self.plane.sessions.get_mut(id) else {
            return;
        };
        let delayed = &mut session.rare().deferred;
        let items = std::mem::take(&mut delayed.items);
        let waits_since_ms = delayed.waits_since_ms;
        let is_over_bound = std::mem::take(&mut delayed.is_over_bound);
        let mut executed = AllExecuted::default();
        if is_alone {
            let others = delayed.others.drain(..);
            others
                .filter(|other| !other.is_deferred)
                .for_each(|other| executed.note(other.seq, &other.about));
            delayed.listed_links.clear();
        }
        let (mut stay, mut staying) = (VecDeque::new(), TouchedKeys::default());
        let mut sent: HashMap<LinkId, TouchedKeys> = HashMap::new();
        for mut item in items {
            let at_ms = match item.waits {
                true => waits_since_ms,
                false => item.entry.at_ms,
            };
            item.overtaken |= executed.overtake(item.entry.seq, &item.about);
            let is_lost = item.overtaken && !item.is_unproven()
                || self.redirects.has_lost_proof(&self.plane, &item);
            if is_over_bound || self.redirects.is_over(&self.plane, at_ms) || is_lost {
                self.deliver_refusal(item);
                continue;
            }
            if item.is_unproven() {
                staying.add(&item.about);
                item.due = self.plane.now.plus_ms(TICK_MS);
                stay.push_back(item);
                continue;
            }
            if !is_alone || item.due > self.plane.now || staying.conflicts_with(&item.about) {
                staying.add(&item.about);
                stay.push_back(item);
                continue;
            }
            let mut item = match self.settle_by_heir(item) {
                Some(item) => item,
                None => continue,
            };
            let link = match item.waits {
                true => match self.own_link_for(id, &item) {
                    Some(link) => link,
                    None => {
                        // The request stays until a link is free.
                        stay.push_back(item);
                        continue;
                    }
                },
                false if self.plane.tracks_several(id) => {
                    match self.tracking_link_for(id, &item) {
                        Some(link) => link,
                        None => {
                            // The request stays until a link is free or the slot has another owner.
                            staying.add(&item.about);
                            item.due = self.plane.now.plus_ms(TICK_MS);
                            stay.push_back(item);
                            continue;
                        }
                    }
                }
                false => match self.link_for(&item) {
                    Ok(link) => link,
                    Err(told) => {
                        self.plane.held_bytes -= item.request.len();
                        self.plane.counters.failed_not_sent += 1;
                        self.pass_on(item.entry, &told);
                        continue;
                    }
                },
            };
            let conflicts_on_other_link = |(to, touched): (&LinkId, &TouchedKeys)| {
                *to != link && touched.conflicts_with(&item.about)
            };
            let waits_at = |link: &Link| {
                matches!(link.state, LinkState::Backoff { .. }) && self.may_wait_at(link, &item)
            };
            let is_in_back_off = self.plane.links.get(link).is_some_and(waits_at);
            if is_in_back_off || sent.iter().any(conflicts_on_other_link) {
                staying.add(&item.about);
                // A link that comes up wakes it earlier.
                let due = if is_in_back_off {
                    self.plane.now.plus_ms(TICK_MS)
                } else {
                    item.due
                };
                stay.push_back(Deferred { due, ..item });
                continue;
            }
            sent.entry(link).or_default().add(&item.about);
            if !item.is_named_elsewhere() {
                // It may be refused again, and a conflicting request behind it may not.
                staying.add(&item.about);
            }
            self.send_deferred(link, item);
        }
        if let Some(session) = self.plane.sessions.get_mut(id) {
            // Requests that were deferred during the scan come behind.
            let delayed = &mut session.rare().deferred;
            stay.append(&mut delayed.items);
            delayed.items = stay;
            delayed.sum_up(self.plane.now_ms, self.plane.retry_wakes);
        } else {
            // The session was closed during the scan: its deferred requests end with it.
            let left = stay.iter().map(|item| item.request.len());
            self.plane.held_bytes -= left.sum::<usize>();
        }
    }

    /// Whether a deferred request waits for a server that is in back-off, because another server
    /// may soon take its place. The refusal decides.
    fn may_wait_at(&self, link: &Link, item: &Deferred) -> bool {
        match item.refusal_kind() {
            // The refusal was a redirect.
            Some(Refusal::Moved | Refusal::Ask) => self.plane.awaits_reader(link.kind.server),
            // The server that said so knows that a node is missing.
            Some(_) => true,
            // Its link was lost. No server takes the place of a seed node.
            None => {
                let pool = usize::from(self.plane.server(link.kind.server).pool);
                self.knows_all(pool) || self.plane.awaits_owners(link)
            }
        }
    }

    /// Settles a share of a scattered request whose server has no slots any more. Its heir must
    /// have got a share of the same request. Then the heir's answer counts for both shares. A read
    /// is refused, so that nothing is counted twice. The exceptions are FLUSHALL and FLUSHDB: keys
    /// may have moved to the heir after it deleted its own. So the heir gets the command once more,
    /// which is safe, because the session has no request behind it. `None`: the share is settled.
    fn settle_by_heir(&mut self, item: Deferred) -> Option<Deferred> {
        let Some(Completion::Part { index, .. }) = item.duty else {
            return Some(item);
        };
        if matches!(id_of(&item.request), Some(id::FLUSHALL | id::FLUSHDB)) {
            return Some(item);
        }
        let heir = match (item.to, item.about.slot) {
            (RetryTarget::Owner, None) => self.discovery.heir_of(&self.plane, item.asked.server),
            _ => None,
        };
        let Some(answer) =
            heir.and_then(|heir| self.scatter.answer_of(&mut self.plane, item.entry, heir))
        else {
            return Some(item);
        };
        if item.about.reads {
            self.deliver_refusal(item);
        } else {
            self.plane.held_bytes -= item.request.len();
            self.take_share_of(item.entry, index, &answer);
        }
        None
    }

    /// The kind of link for the next attempt.
    fn kind_for(&mut self, item: &Deferred) -> Result<LinkKind, NoReader> {
        let asked = item.asked.server;
        let pool = usize::from(self.plane.server(asked).pool);
        let owner = match (item.to, item.about.slot, self.plane.pools[pool].cluster()) {
            (RetryTarget::Importer(server) | RetryTarget::Named(server), ..) => server,
            (RetryTarget::Unproven { .. }, ..) => asked,
            (RetryTarget::Owner, Some(slot), Some(cluster)) => cluster.owner_of_slot(slot),
            (RetryTarget::Owner, ..) => {
                let owner = self.discovery.owner_behind(&self.plane, asked);
                self.discovery.heir_of(&self.plane, owner).unwrap_or(owner)
            }
        };
        let server = match id_of(&item.request).filter(|_| item.to == RetryTarget::Owner) {
            Some(id) => self.discovery.server_at_last(
                &mut self.plane,
                item.entry.session,
                owner,
                id.get(),
                item.asked,
            )?,
            None => owner,
        };
        Ok(LinkKind {
            server,
            ..item.asked
        })
    }

    /// The link for the next attempt, or the error reply to the client if there is none.
    fn link_for(&mut self, item: &Deferred) -> Result<LinkId, Vec<u8>> {
        match self.kind_for(item) {
            Ok(kind) => {
                let link = self.current_link(kind);
                link.ok_or_else(|| bound_reply("links-max"))
            }
            Err(NoReader) => Err(error_reply(NO_READER)),
        }
    }

    /// The link on which the session tracks keys at the server of the next attempt. `None`: there
    /// is no such link just now.
    fn tracking_link_for(&mut self, id: SessionId, item: &Deferred) -> Option<LinkId> {
        let server = self.kind_for(item).ok()?.server;
        let first = self.plane.shared.get(&self.plane.first_link(server));
        let waits_at = |link: &Link| {
            matches!(link.state, LinkState::Backoff { .. }) && self.may_wait_at(link, item)
        };
        let is_in_back_off = first
            .and_then(|first| self.plane.links.get(*first))
            .is_some_and(waits_at);
        let is_known = self.plane.tracks_on(id, server).is_some();
        if is_in_back_off || !is_known && !self.pinned.may_have_own_link(&self.plane, id) {
            return None;
        }
        let link = self.tracking_link(id, server).ok()?;
        // The next attempt has no CLIENT CACHING in front of it.
        self.pinned.lack_caching(&mut self.plane, id);
        Some(link)
    }

    /// A link that the session has for itself. `None`: none is free just now.
    fn own_link_for(&mut self, id: SessionId, item: &Deferred) -> Option<LinkId> {
        let link = if self.plane.tracks_several(id) {
            let link = self.tracking_link_for(id, item)?;
            let server = self.plane.links.get(link)?.kind.server;
            self.switch_server(id, server);
            link
        } else {
            if !self.pinned.may_have_own_link(&self.plane, id) {
                return None;
            }
            let kind = self.kind_for(item).ok()?;
            let link = self.pinned.own_link(&mut self.plane, kind, id).ok()?;
            self.plane.attach_again(id, link);
            if let Some(session) = self.plane.sessions.get_mut(id) {
                session.server = kind.server;
            }
            link
        };
        if let Some(session) = self.plane.sessions.get_mut(id) {
            session.flags |= Flags::UNPINNING;
        }
        if let Some(link) = self.plane.links.get_mut(link) {
            link.waits = true;
        }
        Some(link)
    }

    /// Sends a deferred request on this link.
    fn send_deferred(&mut self, link: LinkId, item: Deferred) {
        self.plane.held_bytes -= item.request.len();
        if let Some(Completion::Part { index, .. }) = item.duty
            && let Some(server) = self.plane.links.get(link).map(|link| link.kind.server)
        {
            self.scatter
                .ask_share_of(&mut self.plane, item.entry, index, server);
        }
        match self.plane.links.get(link).map(|link| &link.state) {
            Some(LinkState::Backoff { .. }) => {
                self.plane.counters.failed_not_sent += 1;
                let away = self.plane.away_error_of(item.entry);
                let reply = self.plane.no_link_reply(link, away);
                return self.pass_on(item.entry, &reply);
            }
            Some(LinkState::Down) => self.plane.connect(link),
            _ => {}
        }
        let (request, duty) = match item.to {
            RetryTarget::Importer(_) => {
                if let Some(session) = self.plane.sessions.get_mut(item.entry.session) {
                    session.rare().deferred.imported.push(item.entry.seq);
                }
                let then = item.duty.map(Box::new);
                let request = [ASKING, &item.request].concat();
                (request, Some(Completion::Asking { then }))
            }
            RetryTarget::Owner | RetryTarget::Named(_) | RetryTarget::Unproven { .. } => {
                (item.request, item.duty)
            }
        };
        let at_ms = match item.waits {
            true => self.plane.now_ms,
            false => item.entry.at_ms,
        };
        if duty.as_ref().is_some_and(Completion::names_scripts) {
            self.local.load_named(
                &mut self.plane,
                link,
                item.entry.session,
                as_asked(&request),
            );
        }
        let Some(state) = self.plane.links.get_mut(link) else {
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
        self.plane.counters.link_requests += 1;
        self.plane.list_link(link);
        self.plane.close_if_full(link);
    }
}

impl Deferred {
    /// The kind of its refusal. `None`: its link was lost, and no server refused it.
    fn refusal_kind(&self) -> Option<Refusal> {
        self.refusal.get(1..).and_then(Refusal::of)
    }

    /// Whether it may have run: the proof of the refusal is missing.
    fn is_unproven(&self) -> bool {
        matches!(self.to, RetryTarget::Unproven { .. })
    }

    /// Whether its server named another node, and did not only refuse it for now.
    fn is_named_elsewhere(&self) -> bool {
        matches!(self.refusal_kind(), Some(Refusal::Moved | Refusal::Ask))
    }
}

/// Replies to requests that run code.
impl Engine {
    /// The reply in front says that its request, which runs code, was not executed. respool asks
    /// the server whether it refuses a twin, and the reply waits for the answer. `false`: no such
    /// question is possible, and the client gets the reply.
    fn await_proof(&mut self, id: LinkId, front: Entry, refusal: Refusal, reply: &[u8]) -> bool {
        let Some(link) = self.plane.links.get(id) else {
            return false;
        };
        let is_held = match link.role {
            Role::Pinned { by } => by == front.session && !link.waits,
            role => role.is_multiplexed(),
        };
        let Some(session) = self.plane.sessions.get(front.session).filter(|_| is_held) else {
            return false;
        };
        let request = as_asked(link.first_bytes());
        let keys = self.plane.learned_commands.keys_in(request);
        let Some(twin) = refusals::twin(request, keys) else {
            return false;
        };
        let rare = session.rare.as_deref();
        let is_imported = rare.is_some_and(|rare| rare.deferred.imported.contains(&front.seq));
        let to = RetryTarget::Unproven {
            link: id,
            since: self.plane.now,
            again: matches!(front.before, EarlierAttempt::Refused | EarlierAttempt::Lost),
        };
        self.defer_front(id, (to, refusal), false, reply);
        let (session, seq) = (front.session, front.seq);
        self.redirects.ask_for_proof(
            &mut self.plane,
            id,
            (session, seq),
            ProofStep::Twin,
            &twin,
            is_imported,
        );
        true
    }

    /// The reply to an EVALSHA says NOSCRIPT, which its script may have written. respool asks the
    /// server whether it has the script. If it does not, the script may be sent along.
    pub(crate) fn await_proof_of_noscript(
        &mut self,
        link: LinkId,
        entry: Entry,
        request: &[u8],
        reply: &[u8],
    ) {
        let Some(asked) = self.plane.links.get(link).map(|link| link.kind) else {
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
        let pool = self.plane.server(asked.server).pool;
        let item = Deferred {
            about: RequestKeys::of(
                &self.plane.learned_commands,
                request,
                pool,
                entry.class.reads(),
            ),
            entry: Entry {
                len: request.len() as u32,
                ..entry
            },
            duty: None,
            request: request.to_vec(),
            asked,
            to: RetryTarget::Unproven {
                link,
                since: self.plane.now,
                again: false,
            },
            due: self.plane.now.plus_ms(TICK_MS),
            waits: false,
            refusal: reply.to_vec(),
            overtaken: false,
        };
        self.defer(link, item);
        let place = (entry.session, entry.seq);
        self.redirects.ask_for_proof(
            &mut self.plane,
            link,
            place,
            ProofStep::NoScript,
            &question,
            false,
        );
    }

    /// Decides about an unproven request after the server's answer to the second question.
    pub(crate) fn settle_proof(
        &mut self,
        id: LinkId,
        (session, seq): (SessionId, u32),
        proof: ProofStep,
        reply: &[u8],
    ) {
        let Some(mut item) = self
            .redirects
            .take_unproven(&mut self.plane, id, session, seq)
        else {
            return;
        };
        let twin = reply.strip_prefix(b"-").and_then(Refusal::of);
        let refusal = item.refusal_kind();
        let server = item.asked.server;
        match proof {
            ProofStep::NoScript if reply == NONE_EXISTS => {
                self.plane.held_bytes -= item.request.len();
                self.send_script_along(id, item.entry, &item.request, &item.refusal);
            }
            ProofStep::Twin
                if twin
                    .zip(refusal)
                    .is_some_and(|(twin, refusal)| refusals::proves(twin, refusal)) =>
            {
                let said = reply.strip_prefix(b"-").unwrap_or_default();
                let slot = item.about.slot;
                item.refusal = reply.to_vec();
                if self
                    .discovery
                    .is_nobodys(&mut self.plane, server, said, slot)
                {
                    self.plane.held_bytes -= item.request.len();
                    return self.pass_on(item.entry, reply);
                }
                let RetryTarget::Unproven { again, .. } = item.to else {
                    return;
                };
                if let Some(twin) = twin {
                    item.to = self.follow_redirect(server, slot, said, twin);
                }
                item.due = match item.is_named_elsewhere() && !again {
                    true => self.plane.now,
                    false => self.plane.now.plus_ms(TICK_MS),
                };
                self.redirects.keep_deferred(&mut self.plane, session, item);
            }
            _ => {
                self.plane.held_bytes -= item.request.len();
                self.pass_on(item.entry, &item.refusal);
            }
        }
    }
}

/// The reply to SCRIPT EXISTS of one digest that the server does not have.
const NONE_EXISTS: &[u8] = b"*1\r\n:0\r\n";

/// Requests on a link that the session has for itself.
impl Engine {
    /// Handles a refusal on a session's own link, which cannot go to another server.
    fn leave_own_server(
        &mut self,
        link_id: LinkId,
        by: SessionId,
        front: Entry,
        to: RetryTarget,
        why: Refusal,
        reply: &[u8],
    ) {
        let Some(link) = self.plane.links.get_mut(link_id) else {
            return;
        };
        let is_watch = id_of(as_asked(link.first_bytes())) == Some(id::WATCH);
        let (is_block, watched) = match link.duties.front().filter(|_| front.duty) {
            Some(Completion::Block { watched, .. }) => (true, *watched),
            _ => (false, false),
        };
        let waits = link.waits;
        let Some(session) = self.plane.sessions.get(by) else {
            return self.answer_front(link_id, front, b"");
        };
        let version = session.version;
        let pins = session.pins;
        let is_own = front.session == by;
        if is_watch {
            // No link watches the keys at their new server, so EXEC will answer that they may have
            // changed.
            self.lose_watch(by);
            let told = match why {
                Refusal::Moved | Refusal::Ask => &b"+OK\r\n"[..],
                _ => reply,
            };
            self.answer_front(link_id, front, told);
        } else if watched {
            // The watched keys have left this server, so EXEC answers that they may have changed.
            let mut nil = Vec::new();
            encode::null_array(&mut nil, version);
            self.answer_front(link_id, front, &nil);
        } else if waits && is_own && !pins.bind() {
            // The session gets another link for itself.
            self.defer_front(link_id, (to, why), true, reply);
            self.leave_own_link(link_id, by);
        } else if waits || is_block && !pins.any(Pins::SPREAD) || !is_own {
            let told = moved_away(self.plane.label(link_id));
            self.answer_front(link_id, front, &told);
        } else {
            self.defer_front(link_id, (to, why), false, reply);
        }
    }

    /// A blocking request got its answer on the session's own link. It goes on at another server,
    /// and keeps its place.
    pub(crate) fn go_on_alone(
        &mut self,
        link: LinkId,
        entry: Entry,
        (request, duty): (Vec<u8>, Completion),
        (server, due): (ServerId, Time),
    ) {
        let Some(own) = self.plane.links.get(link) else {
            return;
        };
        let item = Deferred {
            entry: Entry {
                len: request.len() as u32,
                before: EarlierAttempt::Unsent,
                ..entry
            },
            duty: Some(duty),
            request,
            asked: LinkKind { server, ..own.kind },
            to: RetryTarget::Owner,
            about: RequestKeys::default(),
            due,
            waits: true,
            refusal: bound_reply("pinned-links-max"),
            overtaken: false,
        };
        self.defer(link, item);
        self.leave_own_link(link, entry.session);
    }

    /// Separates a session from its own link after its blocking request has left it.
    fn leave_own_link(&mut self, link_id: LinkId, by: SessionId) {
        if let Some(link) = self.plane.links.get_mut(link_id) {
            link.waits = false;
        }
        if let Some(session) = self.plane.sessions.get_mut(by) {
            session.flags.remove(Flags::UNPINNING);
        }
        if self.pinned.is_tracking_link(&self.plane, by, link_id) {
            return;
        }
        if let Some(session) = self.plane.sessions.get(by) {
            let kind = self.plane.shared_kind_of(session);
            let shared = self.plane.shared_link(kind).unwrap_or(LinkId::NONE);
            self.plane.attach_again(by, shared);
        }
        self.pinned.give_back(&mut self.plane, link_id);
    }

    /// Notes that a session's watched keys may have changed: no link watches them any more.
    pub(crate) fn lose_watch(&mut self, id: SessionId) {
        if let Some(session) = self.plane.sessions.get_mut(id) {
            session.rare().watch_lost = true;
        }
        self.plane.taint_own_link(id);
        self.pinned.unpin(&mut self.plane, id, Pins::WATCH);
    }

    /// Takes the request in front off its link, and gives its session this reply.
    fn answer_front(&mut self, id: LinkId, front: Entry, reply: &[u8]) {
        if let Some(link) = self.plane.links.get_mut(id) {
            if front.duty {
                link.duties.pop_front();
            }
            link.pop_answered(front);
        }
        self.plane.counters.link_replies += 1;
        self.pass_on(front, reply);
    }

    /// Takes requests from a lost link that another server can answer: its slot has another owner
    /// now, or another replica can be read. They are deferred.
    pub(crate) fn move_left(&mut self, id: LinkId) {
        let Some(link) = self.plane.links.get(id).filter(|link| link.heeds) else {
            return;
        };
        let kind = link.kind;
        let server = self.plane.server(kind.server);
        let (pool, of_replica) = (
            &self.plane.pools[usize::from(server.pool)],
            server.replica_of.is_some(),
        );
        let (cluster, sessions) = (pool.cluster(), &self.plane.sessions);
        let readers = pool.readers.as_deref();
        let moved = |entry: &Entry, request: &[u8]| {
            let request = as_asked(request);
            let has_moved = |cluster: &Cluster| {
                let slot =
                    RequestKeys::of(&self.plane.learned_commands, request, pool.index, false).slot;
                slot.is_some_and(|slot| cluster.owner_of_slot(slot) != kind.server)
            };
            entry.session != SessionId::NONE
                && (of_replica
                    || cluster.is_some_and(has_moved)
                    || is_read_from_replica(readers, sessions, kind.server, entry, request))
        };
        let Some(link) = self.plane.links.get_mut(id) else {
            return;
        };
        for left in link.take_left(moved) {
            let request = as_asked(&left.request).to_vec();
            let entry = Entry {
                len: request.len() as u32,
                ..left.entry
            };
            let duty = match left.duty {
                Some(Completion::Asking { then }) => then.map(|then| *then),
                duty => duty,
            };
            self.move_away(id, kind, entry, duty, request);
        }
    }

    /// Sends the reads of a link to other servers if its server has sent no reply for long. Their
    /// entries keep their places on this link, so that late replies are recognised and dropped.
    pub(crate) fn move_reads(&mut self, id: LinkId) {
        let is_shared = |link: &&mut Link| link.role.is_multiplexed();
        let Some(link) = self.plane.links.get_mut(id).filter(is_shared) else {
            return;
        };
        let kind = link.kind;
        let pool =
            &self.plane.pools[usize::from(self.plane.servers[usize::from(kind.server.0)].pool)];
        let (readers, sessions) = (pool.readers.as_deref(), &self.plane.sessions);
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
            // A part of the first reply may be with its client already.
            let is_answered = index == 0 && link.cutting;
            let duty = if entry.duty { duties.next() } else { None };
            let again = duty.and_then(Completion::read_again);
            let is_read = entry.class.reads() && entry.session != SessionId::NONE;
            if is_read
                && entry.duty == again.is_some()
                && !is_answered
                && is_read_from_replica(readers, sessions, kind.server, entry, &read)
            {
                let entry_again = Entry {
                    len: read.len() as u32,
                    class: Class::Read,
                    before: EarlierAttempt::Lost,
                    ..*entry
                };
                moved.push((entry_again, again, read.clone()));
                entry.session = SessionId::NONE;
            }
        }
        for (entry, duty, request) in moved {
            self.move_away(id, kind, entry, duty, request);
        }
    }

    /// Defers a request of this link, to be sent to another server.
    fn move_away(
        &mut self,
        link: LinkId,
        asked: LinkKind,
        entry: Entry,
        duty: Option<Completion>,
        request: Vec<u8>,
    ) {
        let refusal = moved_away(self.plane.label(link));
        let pool = self.plane.server(asked.server).pool;
        let item = Deferred {
            about: RequestKeys::of(
                &self.plane.learned_commands,
                &request,
                pool,
                entry.class.reads(),
            ),
            entry,
            duty,
            request,
            asked,
            to: RetryTarget::Owner,
            due: self.plane.now,
            waits: false,
            refusal,
            overtaken: false,
        };
        self.defer(link, item);
    }
}

impl Redirects {
    /// Whether a session has deferred requests.
    pub(crate) fn has_waiting_sessions(&self) -> bool {
        !self.now.is_empty() || !self.sessions.is_empty()
    }

    /// Whether a request that was read at `at_ms` has passed its deadline.
    pub(crate) fn is_over(&self, plane: &DataPlane, at_ms: u32) -> bool {
        let limit_ms = match plane.settings.timeouts.request_ms {
            0 => ASKED_AGAIN_MS,
            limit_ms => limit_ms,
        };
        plane.now_ms.wrapping_sub(at_ms) >= limit_ms
    }

    /// Sends the second question about an unproven request. `is_imported`: the node answers for the
    /// slot only behind [`ASKING`].
    fn ask_for_proof(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        (session, seq): (SessionId, u32),
        proof: ProofStep,
        question: &[u8],
        is_imported: bool,
    ) {
        let duty = Completion::Proof {
            session,
            seq,
            proof,
        };
        match is_imported {
            false => plane.put_ours(link, question, duty),
            true => {
                let then = Some(Box::new(duty));
                let question = [ASKING, question].concat();
                plane.put_ours(link, &question, Completion::Asking { then });
            }
        }
    }

    /// Whether the answer to the second question is lost with its link.
    fn has_lost_proof(&self, plane: &DataPlane, item: &Deferred) -> bool {
        let RetryTarget::Unproven { link, since, .. } = item.to else {
            return false;
        };
        let has_it = |link: &Link| link.is_up() && link.up_since <= since;
        !plane.links.get(link).is_some_and(has_it)
    }

    /// Takes an unproven request from the deferred ones of its session.
    fn take_unproven(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        session: SessionId,
        seq: u32,
    ) -> Option<Deferred> {
        let session = plane.sessions.get_mut(session)?;
        let items = &mut session.rare().deferred.items;
        let is_unproven = |item: &Deferred| {
            item.entry.seq == seq
                && matches!(item.to, RetryTarget::Unproven { link: asked, .. } if asked == link)
        };
        let at = items.iter().position(is_unproven)?;
        items.remove(at)
    }

    /// Puts a request back among the deferred ones, at its place.
    fn keep_deferred(&mut self, plane: &mut DataPlane, id: SessionId, item: Deferred) {
        let Some(session) = plane.sessions.get_mut(id) else {
            plane.held_bytes -= item.request.len();
            return;
        };
        let delayed = &mut session.rare().deferred;
        let seq = item.entry.seq;
        let in_front = |other: &Deferred| (other.entry.seq.wrapping_sub(seq) as i32) <= 0;
        let place = delayed.items.partition_point(in_front);
        delayed.due = delayed.due.min(item.due);
        delayed.items.insert(place, item);
        plane.wake_deferred();
    }
}

/// Whether a request is a read that its session may have from another server than the owner of its
/// key.
fn is_read_from_replica(
    readers: Option<&Readers>,
    sessions: &Slab<SessionId, Session>,
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

/// The error reply to a request that no server would execute.
fn moved_away(server: &str) -> Vec<u8> {
    let mut reply = Vec::new();
    error::append_reply(&mut reply, Fate::NotSent, Cause::Moved { server });
    reply
}
