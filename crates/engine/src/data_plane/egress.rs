//! From a server's bytes to the clients of its replies: step 5 of Journey 1 (`ARCHITECTURE.md`).

use crate::data_plane::DataPlane;
use crate::data_plane::turn_lists::Cleanup;
use std::collections::HashSet;

use respool_protocol::reply::{FramingError, Scanned};

use crate::base::arrivals::ArrivalSlot;
use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::parts_bytes_max;
use crate::data_plane::actions::Action;
use crate::data_plane::coalesce::is_nil;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::scatter::ScatterCompletion;
use crate::data_plane::latency::OpenRun;
use crate::data_plane::ledger::{Class, CommandMark, Entry};
use crate::data_plane::link::LineId;
use crate::data_plane::link::{Link, LinkRole, LinkState, UNASKED};
use crate::data_plane::reorder::ReplyRange;
use crate::data_plane::session::{Flags, Session};
use crate::data_plane::session_state::Holds;
use crate::data_plane::slow_readers::LaneReason;

/// Bytes of an incomplete reply that are kept until its end comes. If the link is lost within this
/// bound, the client gets an error. Beyond it, the beginning of the reply has gone to the client,
/// so the client must be cut off too.
pub(crate) const PARTIAL_BYTES_MAX: usize = 64 << 10;

/// Consecutive replies to one session, which are delivered at once.
pub(crate) struct Delivery {
    session: SessionId,
    /// The first request of the last range: requests that the session sent one after the other. In
    /// a pool of several servers, earlier ranges of the delivery may be in `reply_ranges`.
    seq: u32,
    count: u32,
    /// The offset of the last range's bytes.
    range_start: usize,
    /// The offset of the whole delivery's bytes.
    start: usize,
}

/// The place in the bytes of a server. All replies before it are delivered.
pub(crate) struct Replies<'a> {
    bytes: &'a [u8],
    pub(crate) at: usize,
}

impl<'a> Replies<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Replies<'a> {
        Replies { bytes, at: 0 }
    }

    /// The bytes that are not taken yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }
}

/// The reason why the hot path stops. All replies before this place are delivered.
pub(crate) enum EgressStop {
    /// The bytes are taken.
    End,
    /// The next reply goes to the completion of its request.
    Completion { len: usize },
    /// The next reply may answer no request.
    Special { len: usize },
    /// The end of a reply that began in an earlier read.
    Rest { len: usize },
    /// The beginning of a reply, up to the end of the bytes.
    Beginning,
    /// The link has to be closed, for this reason.
    Broken(String),
}

impl EgressStop {
    #[cold]
    fn invalid(error: FramingError) -> EgressStop {
        EgressStop::Broken(format!("its bytes are not valid replies: {error}"))
    }
}

/// The use of a whole reply that answers a request.
pub(crate) enum ReplyUse {
    /// It is delivered, or it was given to a read that was moved.
    Taken,
    /// It goes to the completion of its request.
    HasCompletion,
    /// No request waits for it.
    Unasked,
}

/// Whether a reply that begins with this byte may answer no request. It may if it is a push (`>`)
/// or an error (`-`). A few other bytes pass the test too, such as `=` and `,`. The test is made
/// for every reply, so it is one comparison in place of two.
#[inline]
fn is_special(kind: u8) -> bool {
    const ALIKE: u8 = !(b'>' ^ b'-');
    kind & ALIKE == b'>' & ALIKE
}

impl Delivery {
    pub(crate) const NONE: Delivery = Delivery {
        session: SessionId::NONE,
        seq: 0,
        count: 0,
        range_start: 0,
        start: 0,
    };

    fn of(entry: Entry, at: usize) -> Delivery {
        Delivery {
            session: entry.session,
            seq: entry.seq,
            count: 1,
            range_start: at,
            start: at,
        }
    }

    /// Whether the reply to this request continues the last range.
    #[inline]
    fn is_followed_by(&self, entry: &Entry) -> bool {
        entry.session == self.session && entry.seq == self.seq.wrapping_add(self.count)
    }

    /// The last range of the delivery, which ends at `at`.
    fn last_range(&self, at: usize) -> ReplyRange {
        ReplyRange {
            seq: self.seq,
            count: self.count,
            len: at - self.range_start,
        }
    }
}

/// Replies to one session in a row, from which on more are expected: sessions with pipelines get
/// many.
const LONG_ROW: u32 = 4;

/// Replies that need no more than their delivery, to requests that are alike.
struct AlikeReplies {
    count: u32,
    /// The place behind them.
    at: usize,
    /// The reason why no reply can follow. `None`: the hot path goes on with the next one.
    stop: Option<EgressStop>,
}

/// Takes the replies from `at` on, as long as they are for the session of `last` and their requests
/// followed it in the same turn. `last` was answered simply, so these are, too: they have its
/// command, its class and its marks. This is the innermost loop of pipelines.
#[inline(never)]
fn take_alike(link: &mut Link, last: Entry, bytes: &[u8], mut at: usize) -> AlikeReplies {
    let (mut count, is_joined) = (0, last.class.is_coalesced());
    let stop = loop {
        let Some(entry) = link.ledger.front_in_flight() else {
            break None;
        };
        let is_alike = entry.is_of_run(last.command, last.read_at)
            && (entry.class, entry.marks) == (last.class, last.marks)
            && entry.session == last.session
            && entry.seq == last.seq.wrapping_add(count + 1);
        if !is_alike || at >= bytes.len() {
            break None;
        }
        let own_len = entry.len;
        let len = match link.scanner.scan(&bytes[at..]) {
            // The hot path scans it once more.
            Ok(Scanned::Whole(_)) if is_special(link.scanner.kind()) => break None,
            Ok(Scanned::Whole(len)) => len,
            Ok(Scanned::Fragment) => break Some(EgressStop::Beginning),
            Err(error) => break Some(EgressStop::invalid(error)),
        };
        if is_joined && is_for_joined(link, last, &bytes[at..at + len]) {
            break None;
        }
        link.ledger.pop_simple(own_len);
        count += 1;
        at += len;
    };
    AlikeReplies { count, at, stop }
}

/// A reply that came in fragments, and is whole now.
pub(crate) struct EndedReply {
    /// All of its bytes. None if it is `cut`.
    pub(crate) bytes: Vec<u8>,
    /// Whether its beginning has been passed on, or dropped.
    pub(crate) cut: bool,
    /// Its first byte.
    pub(crate) kind: u8,
    /// The session of the front request.
    pub(crate) receiver: Option<SessionId>,
}

/// Replies that come in fragments, and the end of a read.
impl DataPlane {
    /// Takes the end of a reply that began in an earlier read.
    pub(crate) fn end_fragment(&mut self, id: LinkId, bytes: &[u8]) -> Option<EndedReply> {
        self.note_reply_bytes(id, bytes.len(), true);
        let link = self.links.get_mut(id)?;
        let mut whole = std::mem::take(&mut link.partial);
        let cut = std::mem::take(&mut link.cutting);
        let receiver = link.ledger.first_in_flight().map(|entry| entry.session);
        if !cut {
            whole.extend_from_slice(bytes);
        }
        Some(EndedReply {
            bytes: whole,
            cut,
            kind: link.scanner.kind(),
            receiver,
        })
    }

    /// Passes a reply on that came in fragments, if its request has no completion. Returns whether
    /// it has one.
    pub(crate) fn pass_ended(&mut self, id: LinkId, entry: Entry, reply: &[u8], cut: bool) -> bool {
        if entry.has_completion() {
            return true;
        }
        if entry.class.is_coalesced() {
            self.settle_joined(id, entry, reply, cut);
            return false;
        }
        self.note_front(id, &entry);
        if !cut {
            self.note_if_error(&entry, reply);
        }
        if let Some(link) = self.links.get_mut(id) {
            link.ledger.pop_answered(entry);
            self.counters.link_replies += 1;
            self.deliver(entry.session, entry.seq, 1, reply);
        }
        false
    }

    /// Takes bytes of a reply that does not end with them. Returns the beginning of a message of a
    /// hub that is too large.
    #[inline(never)]
    pub(crate) fn take_partial(&mut self, id: LinkId, bytes: &[u8]) -> Option<(LineId, Vec<u8>)> {
        self.note_reply_bytes(id, bytes.len(), false);
        let link = self.links.get_mut(id)?;
        if link.partial.capacity() == 0 && !link.cutting {
            link.partial = self.spare_buffers.take();
        }
        let whole_bytes_max = self.settings.limits.session_output_hard_bytes as usize;
        if link.scanner.kind() == b'>' {
            if link.cutting {
                return None;
            }
            link.partial.extend_from_slice(bytes);
            if link.partial.len() > whole_bytes_max
                && let LinkRole::HubLine(line) = link.role
            {
                link.cutting = true;
                let beginning = std::mem::take(&mut link.partial);
                return Some((line, beginning));
            }
            if link.partial.len() > whole_bytes_max {
                self.lose_link(id, "it sent a push larger than session-output-hard-bytes");
            }
            return None;
        }
        let Some(entry) = link.ledger.first_in_flight() else {
            self.lose_link(id, UNASKED);
            return None;
        };
        if !link.cutting {
            link.partial.extend_from_slice(bytes);
            if link.partial.len() <= PARTIAL_BYTES_MAX {
                return None;
            }
            if entry.has_completion()
                && let Some(completion) = link
                    .ledger
                    .front_completion()
                    .filter(|completion| completion.needs_whole())
            {
                let (bytes_max, option) = match completion {
                    Completion::Scatter(ScatterCompletion::Share { .. }) => (
                        parts_bytes_max(&self.settings.limits),
                        "worker-memory-bytes-max",
                    ),
                    _ => (whole_bytes_max, "session-output-hard-bytes"),
                };
                if link.partial.len() <= bytes_max {
                    return None;
                }
                link.partial = Vec::new();
                link.cutting = true;
                let reason = format!("{option}: a reply that has to be held whole");
                self.close_for(entry.session, reason);
                return None;
            }
            if entry.is_silent() {
                // The session wants no byte of it.
                link.partial = Vec::new();
                link.cutting = true;
                return None;
            }
        }
        let is_early = entry.class.is_moved_read() && self.brings_early(id, &entry);
        let link = self.links.get_mut(id)?;
        // A large reply is not held whole: its bytes are delivered as they come, in the session's
        // order.
        let partial = std::mem::take(&mut link.partial);
        let bytes = if link.cutting { bytes } else { &partial };
        self.note_large_fragment(id, entry.session, bytes.len());
        let link = self.links.get_mut(id)?;
        match self.sessions.get_mut(entry.session) {
            None => link.cutting = true,
            // The read is sent again when the reply has come.
            Some(_) if is_early => link.cutting = true,
            Some(_) if entry.is_silent() => {}
            Some(session) if session.head_seq == entry.seq => {
                link.cutting = true;
                session.state |= Flags::MID_REPLY;
                session
                    .out
                    .tail(&mut self.spare_buffers)
                    .extend_from_slice(bytes);
                self.held_bytes += bytes.len();
                let is_much =
                    session.out.len() > self.settings.limits.session_output_soft_bytes as usize;
                DataPlane::mark_dirty(&mut self.turn.dirty, entry.session, session);
                if is_much {
                    self.hold_output(entry.session);
                    self.turn.slow_pairs.push((id, entry.session));
                }
            }
            Some(_) if partial.len() > self.settings.limits.session_output_hard_bytes as usize => {
                link.cutting = true;
                self.close_for(
                    entry.session,
                    "session-output-hard-bytes: a reply that waits for earlier ones".to_owned(),
                );
            }
            Some(_) => {
                if partial.len() > self.settings.limits.session_output_soft_bytes as usize {
                    self.turn.slowed_by_current_read.push(entry.session);
                }
                link.partial = partial;
            }
        }
        None
    }

    /// Ends the handling of one read: reopens a link that has room again, and closes a link that
    /// has served its purpose.
    pub(crate) fn after_replies(&mut self, id: LinkId) {
        while let Some(session) = self.turn.slowed_by_current_read.pop() {
            self.turn.slow_pairs.push((id, session));
        }
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        if link.ledger.is_overtaken() {
            return self.lose_link(id, "it answered a request that was not written whole");
        }
        match link.role {
            LinkRole::Shared if link.accepting() => {}
            LinkRole::Shared => {
                let server = link.kind.server;
                self.drop_successor(id, server);
                self.reopen(id);
            }
            LinkRole::Pinned { .. } if link.takes() && link.waiters.is_empty() => {}
            LinkRole::Pinned { .. } => self.reopen(id),
            LinkRole::Draining { .. } => {
                let (server, owes) = (link.kind.server, !link.ledger.is_empty());
                if !owes && !link.scanner.is_inside() {
                    self.close_link(id);
                }
                self.end_holding(server);
            }
            _ if !link.ledger.is_empty() || link.scanner.is_inside() => {}
            LinkRole::Emergency { .. } => self.end_emergency(id),
            // A push may come before the request is whole, when the ledger does not have it yet.
            LinkRole::Streaming { .. } if link.owes_nothing() => {
                self.keep_idle_link(id);
                self.next_streaming();
            }
            LinkRole::Streaming { .. }
            | LinkRole::HubLine(_)
            | LinkRole::Sentinel
            | LinkRole::Redirect { .. }
            | LinkRole::Probe
            | LinkRole::Idle => {}
        }
    }
}

/// The hot path.
impl DataPlane {
    /// Delivers simple replies, until it comes to something else.
    pub(crate) fn deliver_replies(&mut self, id: LinkId, replies: &mut Replies<'_>) -> EgressStop {
        let bytes = replies.bytes;
        let mut at = replies.at;
        let mut delivery = Delivery::NONE;
        let mut run = OpenRun::NONE;
        let stop = loop {
            if at >= bytes.len() {
                break EgressStop::End;
            }
            let Some(mut link) = self.links.get_mut(id) else {
                return EgressStop::End;
            };
            let inside = link.scanner.is_inside();
            if link.ledger.gets_are_next() && !inside && bytes[at] != b'>' {
                // The elements of the reply are handled as single replies.
                self.end_run(id, &mut run);
                self.end_delivery(&mut delivery, &bytes[..at]);
                match self.open_gets(id, &bytes[at..]) {
                    Ok(Some(len)) => {
                        at += len;
                        continue;
                    }
                    Ok(None) => return EgressStop::End,
                    Err(reason) => return EgressStop::Broken(reason),
                }
            }
            let len = match link.scanner.scan(&bytes[at..]) {
                Ok(Scanned::Whole(len)) if inside => break EgressStop::Rest { len },
                Ok(Scanned::Whole(len)) => len,
                Ok(Scanned::Fragment) => break EgressStop::Beginning,
                Err(error) => break EgressStop::invalid(error),
            };
            if is_special(link.scanner.kind()) {
                break EgressStop::Special { len };
            }
            let Some(entry) = link.ledger.first_in_flight() else {
                break EgressStop::Broken(UNASKED.to_owned());
            };
            if entry.class.is_coalesced() && is_for_joined(link, entry, &bytes[at..at + len]) {
                self.end_run(id, &mut run);
                self.end_delivery(&mut delivery, &bytes[..at]);
                self.settle_joined(id, entry, &bytes[at..at + len], false);
                at += len;
                continue;
            }
            if entry.has_completion() {
                break EgressStop::Completion { len };
            }
            if !entry.is_of_run(run.command, run.read_at) {
                let (replies, now) = (self.counters.link_replies, self.now_stamp);
                let (of, ledger) = ((entry.command, entry.read_at), &mut link.ledger);
                if self.latency.begin_run(&mut run, of, ledger, (replies, now)) {
                    self.log_slow_front(id, &entry);
                    link = match self.links.get_mut(id) {
                        Some(link) => link,
                        None => return EgressStop::End,
                    };
                }
            }
            link.ledger.pop_answered(entry);
            self.counters.link_replies += 1;
            if !delivery.is_followed_by(&entry) {
                self.begin_range(&mut delivery, entry, &bytes[..at]);
                at += len;
                continue;
            }
            at += len;
            delivery.count += 1;
            if delivery.count < LONG_ROW {
                continue;
            }
            let taken = take_alike(link, entry, bytes, at);
            self.counters.link_replies += u64::from(taken.count);
            delivery.count += taken.count;
            at = taken.at;
            if let Some(stop) = taken.stop {
                break stop;
            }
        };
        self.end_run(id, &mut run);
        self.end_delivery(&mut delivery, &bytes[..at]);
        replies.at = at;
        stop
    }

    /// Ends a run of replies of a link: its times are counted.
    #[inline]
    fn end_run(&mut self, id: LinkId, run: &mut OpenRun) {
        if run.command == CommandMark::NONE {
            return;
        }
        let (replies, now) = (self.counters.link_replies, self.now_stamp);
        if !self.latency.end_short_run(run, replies, now)
            && let Some(link) = self.links.get_mut(id)
        {
            self.latency
                .end_long_run(run, replies, &mut link.ledger, now);
        }
        run.command = CommandMark::NONE;
    }

    /// Takes the next reply, of `len` bytes, as the answer to the front request of its link. It is
    /// an error, which might have answered no request.
    #[cold]
    pub(crate) fn take_answer(
        &mut self,
        id: LinkId,
        replies: &mut Replies<'_>,
        len: usize,
    ) -> ReplyUse {
        let Some(link) = self.links.get_mut(id) else {
            return ReplyUse::Taken;
        };
        let Some(entry) = link.ledger.first_in_flight() else {
            return ReplyUse::Unasked;
        };
        let reply = &replies.rest()[..len];
        if entry.class.is_coalesced() && is_for_joined(link, entry, reply) {
            self.settle_joined(id, entry, reply, false);
        } else if entry.has_completion() {
            return ReplyUse::HasCompletion;
        } else {
            self.note_front(id, &entry);
            self.note_if_error(&entry, reply);
            if let Some(link) = self.links.get_mut(id) {
                link.ledger.pop_answered(entry);
            }
            self.counters.link_replies += 1;
            self.deliver(entry.session, entry.seq, 1, reply);
        }
        replies.at += len;
        ReplyUse::Taken
    }
}

/// Whether the reply to a request of a special class needs more than its delivery: the request may
/// have been moved, shared or joined with others.
#[inline(always)]
fn is_for_joined(link: &Link, entry: Entry, reply: &[u8]) -> bool {
    entry.class.is_read_by_respool()
        || link.ledger.is_repeating()
        || link.ledger.next_is_collapsed()
        || entry.class == Class::OfGets && is_nil(reply)
}

/// The output of sessions, and links that are not read.
impl DataPlane {
    /// Ends a reply that came in fragments: the session's output has all of it. Pushes that waited
    /// for its end follow it.
    pub(crate) fn end_mid_reply(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.state.remove(Flags::MID_REPLY);
        if let Some(rare) = &mut session.rare
            && !rare.pushes.is_empty()
        {
            let pushes = std::mem::take(&mut rare.pushes);
            session
                .out
                .tail(&mut self.spare_buffers)
                .extend_from_slice(&pushes);
            DataPlane::mark_dirty(&mut self.turn.dirty, id, session);
        }
    }

    /// Stops reading a session that has more output than it takes, until it takes some.
    fn hold_output(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let (link, owed) = (session.link, !session.is_caught_up());
        let is_routed = session.state.any(Flags::ROUTED);
        if !session.state.holds().any(Holds::OUTPUT) {
            self.hold(id, Holds::OUTPUT);
        }
        match owed {
            // The output comes from the link that is being read.
            true if is_routed => self.turn.slowed_by_current_read.push(id),
            true => self.turn.slow_pairs.push((link, id)),
            false => {}
        }
    }

    /// Whether the session's next reply can come only after this link is read. The session waits
    /// for a reply on a link that is not read because of another session, and so on. The last of
    /// these sessions waits for a reply on this link.
    fn waits_for_itself(&self, link_id: LinkId, session_id: SessionId) -> bool {
        let waits_at = |waiting_id: SessionId, link: &Link| {
            let session = self.sessions.get(waiting_id);
            session.is_some_and(|session| link.ledger.brings(waiting_id, session.head_seq))
        };
        let (mut waiting, mut seen) = (vec![session_id], vec![link_id]);
        while let Some(waiting_id) = waiting.pop() {
            if waiting_id != session_id
                && self
                    .links
                    .get(link_id)
                    .is_some_and(|link| waits_at(waiting_id, link))
            {
                return true;
            }
            for (other_id, link) in self
                .links
                .iter()
                .filter(|(_, link)| link.unread_since.is_some())
            {
                let slow_session = link.role.session();
                // A session that does not take its output waits for no link.
                if !seen.contains(&other_id)
                    && waits_at(waiting_id, link)
                    && self.is_early(other_id, slow_session)
                {
                    seen.push(other_id);
                    waiting.push(slow_session);
                }
            }
        }
        false
    }

    /// Whether the next reply on a link is for this session and comes too early.
    pub(crate) fn is_early(&self, link: LinkId, session_id: SessionId) -> bool {
        let (Some(session), Some(link)) = (self.sessions.get(session_id), self.links.get(link))
        else {
            return false;
        };
        let soft = self.settings.limits.session_output_soft_bytes as usize;
        // Bytes of another session's reply do not count.
        let begun = match link.ledger.first_in_flight() {
            Some(next) if next.session == session_id => link.partial.len(),
            _ => 0,
        };
        // With a single server, the next reply comes on the same link, though perhaps after this
        // one.
        session.state.any(Flags::ROUTED)
            && link.ledger.owes(session_id)
            && session.reordered_bytes() + begun > soft
            && !link.ledger.brings(session_id, session.head_seq)
            // Such a request is sent again when all requests in flight have been answered.
            && !session.head_is_deferred()
    }

    /// Makes a draining link wait for this session. The link is read, so it does not wait for the
    /// session that it drains for.
    fn hand_over(&mut self, link_id: LinkId, to: SessionId) {
        let is_for_other =
            |link: &&mut Link| matches!(link.role, LinkRole::Draining { by } if by != to);
        if let Some(link) = self.links.get_mut(link_id).filter(is_for_other) {
            link.role = LinkRole::Draining { by: to };
        }
    }

    /// Reads a link again that was not read.
    pub(crate) fn read_on(&mut self, link_id: LinkId) {
        if let Some(link) = self.links.get_mut(link_id)
            && link.unread_since.take().is_some()
        {
            link.progress = self.now;
            self.push_action(Action::ReadLink(link_id, true));
        }
    }

    /// Reads the links again that a session held up, because it took output or was closed. Returns
    /// whether all of them are read: a link that brings early replies is not.
    pub(crate) fn read_links_again(&mut self, id: SessionId) -> bool {
        let mut all = true;
        if self
            .links
            .iter()
            .all(|(_, link)| link.unread_since.is_none())
        {
            return all;
        }
        for link_id in self.links.ids() {
            let is_held_up = |link: &Link| link.role.session() == id && link.unread_since.is_some();
            if !self.links.get(link_id).is_some_and(is_held_up) {
                continue;
            }
            if self.is_early(link_id, id) && !self.waits_for_itself(link_id, id) {
                all = false;
                continue;
            }
            if self.head_of_line_wait(link_id) {
                self.count_head_of_line_wait(link_id);
            }
            self.read_on(link_id);
        }
        all
    }
}

/// Links that drain for a slow session.
impl DataPlane {
    /// Handles a link that brings a session more early replies than may wait, because another
    /// server is slow. The link drains for this session alone, and is not read until the session
    /// gets its earlier replies.
    fn hold_early(&mut self, link: LinkId, session: SessionId) {
        if !self.is_early(link, session) {
            return;
        }
        match self.links.get(link) {
            Some(state) if !state.is_up() || state.unread_since.is_some() => {}
            Some(state) if state.role == LinkRole::Shared => {
                if self.has_room_for_link() {
                    self.drain_for(link, session);
                }
            }
            _ => self.hand_over(link, session),
        }
        let waits_for_itself = self.waits_for_itself(link, session);
        let its_own = |link: &Link| link.role.session() == session && link.unread_since.is_none();
        if self.links.get(link).is_some_and(its_own) {
            // If other sessions have waited long enough, the link is read on, and more early
            // replies wait in the reorder buffer.
            let have_waited = self.head_of_line_waited(link) && self.head_of_line_wait(link);
            if !waits_for_itself && !have_waited {
                self.stop_reading(link);
            }
            self.hold(session, Holds::OUTPUT);
        }
    }

    /// Drains a link for a session that holds up the requests of others, so that it holds up this
    /// link alone. The link is read as before: others get their replies there no later than before.
    /// Their requests are not sent again yet. With many slow sessions, the server would execute
    /// them once for each of these.
    fn drain_for(&mut self, link_id: LinkId, by: SessionId) {
        self.counters.links_drained += 1;
        let kind = self.links.get(link_id).map(|link| link.kind);
        self.drain_to(link_id, by);
        if let Some(other) = kind.and_then(|kind| self.shared_link(kind)) {
            self.connect(other);
        }
    }

    /// Ends the sharing of a link: it serves the requests that it has, and takes no new ones. `by`:
    /// the slow session, if that is the cause.
    pub(crate) fn drain_to(&mut self, link_id: LinkId, by: SessionId) {
        let Some(link) = self.links.get_mut(link_id) else {
            return;
        };
        link.role = LinkRole::Draining { by };
        link.admit(false, false);
        let kind = link.kind;
        let waiters = std::mem::take(&mut link.waiters);
        let stay: HashSet<SessionId> = link.ledger.iter().map(|entry| entry.session).collect();
        for waiter in waiters {
            self.release(waiter, Holds::LINK);
        }
        for session in stay {
            // Wherever the session has switched: its next request on this link would overtake
            // these.
            if self.is_routed(session) {
                self.hold_until_caught_up(session);
            }
        }
        self.link_index.shared.remove(&kind);
    }

    /// Stops reading a link until its slow session takes some output.
    pub(crate) fn stop_reading(&mut self, link_id: LinkId) {
        self.ask_again(link_id);
        let Some(link) = self.links.get_mut(link_id) else {
            return;
        };
        link.unread_since = Some(self.now);
        let role = link.role;
        self.push_action(Action::ReadLink(link_id, false));
        if let LinkRole::Draining { by } = role {
            self.move_reads_of_others(link_id, by);
        }
    }

    /// Sends the reads of others that wait on a link that is not read again, on a new draining
    /// link. New requests on the shared link need not wait for these reads, which may be as large.
    /// If there is no room for a new link, the reads go to the shared link.
    fn move_reads_of_others(&mut self, link_id: LinkId, slow_session: SessionId) {
        let Some(kind) = self.links.get(link_id).map(|link| link.kind) else {
            return;
        };
        let has_room = self.has_room_for_link();
        let rests = |link: &Link| matches!(link.state, LinkState::Down | LinkState::Backoff { .. });
        let shared = self.link_index.shared(&kind);
        let shared = shared.filter(|id| !self.links.get(*id).is_none_or(rests));
        if !has_room && shared.is_none() {
            return;
        }
        let Some(link) = self.links.get_mut(link_id) else {
            return;
        };
        let stay = link.bound_sessions(slow_session);
        let reads = link.ledger.take_few_reads_of_others(stay);
        let Some(first) = reads.first() else {
            return;
        };
        let by = first.entry.session;
        let own = has_room.then(|| self.add_link(kind, LinkRole::Draining { by }));
        if let Some(own) = own.flatten() {
            self.connect(own);
        }
        let Some(other) = own.flatten().or(shared) else {
            return;
        };
        self.counters.reads_sent_again += reads.len() as u64;
        if let Some(link) = self.links.get_mut(other) {
            for read in reads {
                link.ledger.push_departed(read);
            }
        }
        self.list_link(other);
    }
}

/// Delivery.
impl DataPlane {
    /// Adds a reply to the delivery. The reply follows `bytes`.
    #[inline(always)]
    pub(crate) fn go_on_delivering(&mut self, delivery: &mut Delivery, entry: Entry, bytes: &[u8]) {
        if delivery.is_followed_by(&entry) {
            delivery.count += 1;
        } else {
            self.begin_range(delivery, entry, bytes);
        }
    }

    /// Adds a reply to the delivery that does not continue its last range.
    #[inline(always)]
    fn begin_range(&mut self, delivery: &mut Delivery, entry: Entry, bytes: &[u8]) {
        let at = bytes.len();
        if entry.session != delivery.session {
            if delivery.count > 0 {
                self.end_delivery(delivery, bytes);
            }
            *delivery = Delivery::of(entry, at);
        } else if entry.seq.wrapping_sub(delivery.seq) as i32 > 0 {
            // Requests in between went to another server.
            self.turn.reply_ranges.push(delivery.last_range(at));
            *delivery = Delivery {
                start: delivery.start,
                ..Delivery::of(entry, at)
            };
        } else {
            self.end_delivery(delivery, bytes);
            *delivery = Delivery::of(entry, at);
        }
    }

    /// Delivers all of it. It ends with `bytes`.
    #[inline(never)]
    pub(crate) fn end_delivery(&mut self, delivery: &mut Delivery, bytes: &[u8]) {
        if delivery.count > 0 {
            let last = delivery.last_range(bytes.len());
            let session = std::mem::replace(&mut delivery.session, SessionId::NONE);
            delivery.count = 0;
            self.deliver_range(session, last, &bytes[delivery.start..]);
        }
    }

    /// Delivers the replies to `count` requests of a session, from place `seq` on.
    pub(crate) fn deliver(&mut self, id: SessionId, seq: u32, count: u32, bytes: &[u8]) {
        debug_assert!(
            self.turn.reply_ranges.is_empty(),
            "the open delivery ends first"
        );
        let len = bytes.len();
        self.deliver_range(id, ReplyRange { seq, count, len }, bytes);
    }

    /// Delivers a range of replies, after the ranges in `reply_ranges`.
    #[inline(always)]
    fn deliver_range(&mut self, id: SessionId, last: ReplyRange, bytes: &[u8]) {
        let Some(session) = self.sessions.get_mut(id) else {
            let counts = self
                .turn
                .reply_ranges
                .drain(..)
                .map(|range| u64::from(range.count));
            self.counters.late_replies += u64::from(last.count) + counts.sum::<u64>();
            return;
        };
        self.held_bytes += bytes.len();
        if last.seq == session.head_seq && self.turn.reply_ranges.is_empty() {
            session
                .out
                .tail(&mut self.spare_buffers)
                .extend_from_slice(bytes);
            session.head_seq = last.seq.wrapping_add(last.count);
        } else {
            self.turn.reply_ranges.push(last);
            session.state |= Flags::REORDERED;
            let head = session.head_seq;
            let buffer = &mut session.rare().reorder;
            buffer.park(
                head,
                &self.turn.reply_ranges,
                bytes,
                &mut self.spare_buffers,
            );
            let is_next = self.turn.reply_ranges[0].seq == head;
            self.turn.reply_ranges.clear();
            if !is_next {
                return self.bound_reordered(id);
            }
        }
        // Early replies may have their place now.
        let mut session = session;
        if session.state.any(Flags::REORDERED) {
            self.held_bytes -= session.take_next(&mut self.spare_buffers);
            if session.state.any(Flags::REORDERED) {
                self.bound_reordered(id);
            }
            match self.sessions.get_mut(id) {
                Some(bounded) => session = bounded,
                None => return,
            }
        }
        let caught_up = session.is_caught_up();
        let soft = self.settings.limits.session_output_soft_bytes as usize;
        let is_over_soft = session.out.len() > soft;
        // The session may have been held because of early replies, which have been delivered.
        let held = session.state.holds().any(Holds::OUTPUT) && session.out.len() <= soft / 2;
        if caught_up || !session.state.any(Flags::ROUTED) {
            DataPlane::mark_dirty(&mut self.turn.dirty, id, session);
        } else {
            self.cork_output(id);
        }
        if caught_up {
            self.note_caught_up(id);
        }
        if is_over_soft {
            self.hold_output(id);
        } else if held && self.read_links_again(id) {
            self.release(id, Holds::OUTPUT);
        }
    }

    /// Delivers the reply to a read. If it comes early, the request stays with it: the read may
    /// have to be sent again on the same link before the reply has its place.
    pub(crate) fn deliver_read(
        &mut self,
        id: SessionId,
        seq: u32,
        bytes: &[u8],
        again: (LinkId, &[u8]),
    ) {
        let early = |session: &&mut Session| session.head_seq != seq;
        let Some(session) = self.sessions.get_mut(id).filter(early) else {
            return self.deliver(id, seq, 1, bytes);
        };
        self.held_bytes += bytes.len() + again.1.len();
        session.state |= Flags::REORDERED;
        let head = session.head_seq;
        let buffer = &mut session.rare().reorder;
        buffer.park_read(head, seq, bytes, again, &mut self.spare_buffers);
        self.bound_reordered(id);
    }

    /// Bounds the early replies of a session, by the bounds of its output. They count apart from
    /// the output, which stays at its bound while the link is not read.
    #[inline(never)]
    fn bound_reordered(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let (reordered, limits) = (session.reordered_bytes(), &self.settings.limits);
        if reordered > limits.session_output_soft_bytes as usize {
            self.turn.slowed_by_current_read.push(id);
        }
        // Replies that are put together from parts of several servers have a bound of their own.
        let rare = session.rare.as_deref();
        let whole = rare.map_or(0, |rare| rare.reorder.held_bytes());
        let is_over = whole > limits.session_output_hard_bytes as usize;
        let Some(session) = self.sessions.get_mut(id).filter(|_| is_over) else {
            return;
        };
        if session.head_is_deferred() {
            session.rare().deferred.is_over_bound = true;
        } else {
            let reason = "session-output-hard-bytes: replies that wait for earlier ones";
            self.close_for(id, reason.to_owned());
        }
    }

    /// Notes that all requests of a session were answered. It may use another link now. Its link
    /// expects it to send again.
    #[inline(always)]
    pub(super) fn note_caught_up(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.answered_at = self.now;
        session.reads_in_order = false;
        let repeats = session.state.any(Flags::ASKS_AGAIN);
        session
            .state
            .remove(Flags::FUSED | Flags::ASKS_AGAIN | Flags::REPLY_TIME_UNKNOWN);
        if repeats {
            self.repeated_requests.remove(&id);
        }
        if session.state.is_ending() && session.out.is_empty() {
            // The session wants no replies, so no write will end it.
            self.turn.resume.push(id);
        }
        if session.state.awaits_last() {
            // A session that is being unpinned continues when its link is given back.
            let continues = match session.state.any(Flags::UNPINNING) {
                true => {
                    self.turn.cleanups.push_back(Cleanup::Unpinned(id));
                    Holds::DEPTH
                }
                false => Holds::CATCH_UP | Holds::DEPTH,
            };
            self.release(id, continues);
        } else if session.expected == ArrivalSlot::NOT
            && !session.state.is_ending()
            && !session.state.any(Flags::ROUTED)
            && let Some(link) = self.links.get_mut(session.link)
        {
            session.expected = link.forecast.expect(self.now, session.gap_us);
        } else if session.state.any(Flags::ROUTED) {
            session.cork.end(true);
            // Its next request may go to any server: the arrival wheel of the pool expects it.
            if session.expected == ArrivalSlot::NOT
                && !session.state.is_ending()
                && session.pins.is_empty()
            {
                let pool = &mut self.pools[usize::from(session.pool)];
                session.expected = pool.expect(self.now, session.gap_us);
            }
        }
    }

    /// Sends out-of-band bytes to a session, between two replies, in the order in which they come.
    /// A session that takes them too slowly is closed.
    pub(crate) fn push_to(&mut self, id: SessionId, bytes: &[u8]) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        self.held_bytes += bytes.len();
        let mid_reply = session.state.any(Flags::MID_REPLY);
        let waiting = if mid_reply {
            let pushes = &mut session.rare().pushes;
            pushes.extend_from_slice(bytes);
            pushes.len()
        } else {
            session
                .out
                .tail(&mut self.spare_buffers)
                .extend_from_slice(bytes);
            DataPlane::mark_dirty(&mut self.turn.dirty, id, session);
            session.out.len()
        };
        let limits = &self.settings.limits;
        if waiting > limits.session_output_hard_bytes as usize {
            let reason = "session-output-hard-bytes: it took its messages too slowly";
            self.close_for(id, reason.to_owned());
        } else if waiting > limits.session_output_soft_bytes as usize
            && !session.state.holds().any(Holds::OUTPUT)
            && !mid_reply
        {
            self.hold(id, Holds::OUTPUT);
        }
    }

    /// Slows down sessions that got more than they take. This waits for the end of the turn: a link
    /// must not stop being shared in the middle of a reply that is for several sessions.
    pub(crate) fn slow_down_all(&mut self) {
        if self.turn.slow_pairs.is_empty() {
            return;
        }
        for (link, id) in std::mem::take(&mut self.turn.slow_pairs) {
            let soft = self.settings.limits.session_output_soft_bytes as usize;
            self.hold_early(link, id);
            self.change_lane(id);
            let is_slow = |session: &Session| session.out.len() > soft;
            if self.sessions.get(id).is_some_and(is_slow) {
                self.slow_down(link, id);
            }
        }
    }

    /// Slows down a session that gets more from a link than it takes. First all other sessions
    /// leave the link. At the hard bound the link is not read either. So a slow session never stops
    /// a shared link, and never makes respool hold more than its bound.
    fn slow_down(&mut self, link_id: LinkId, session_id: SessionId) {
        let Some(session) = self.sessions.get(session_id) else {
            return;
        };
        let output = session.out.len();
        let brings = |link: &Link| link.role.is_multiplexed() && link.ledger.owes(session_id);
        let link_id = match self.links.get(link_id) {
            Some(link) if link.ledger.owes(session_id) => link_id,
            // Other servers may bring their replies in good time.
            _ if self.is_routed(session_id) => return,
            _ => match self.links.iter().find(|(_, link)| brings(link)) {
                Some((other, _)) => other,
                None => return,
            },
        };
        let Some(link) = self.links.get(link_id) else {
            return;
        };
        match link.role {
            LinkRole::Shared if link.is_up() => {
                if self.has_room_for_link() {
                    self.drain_for(link_id, session_id);
                } else if output >= self.settings.limits.session_output_hard_bytes as usize {
                    return self.close_for(
                        session_id,
                        "session-output-hard-bytes, and links-max".to_owned(),
                    );
                } else {
                    return;
                }
            }
            // Another link brought these bytes, and this one is still being connected.
            LinkRole::Draining { .. } if !link.is_up() => return,
            LinkRole::Draining { by } if by != session_id => {
                if output < self.settings.limits.session_output_hard_bytes as usize {
                    return;
                }
                self.hand_over(link_id, session_id);
            }
            LinkRole::Draining { .. }
            | LinkRole::Streaming { .. }
            | LinkRole::Emergency { .. }
            | LinkRole::Pinned { .. } => {}
            LinkRole::Shared
            | LinkRole::HubLine(_)
            | LinkRole::Sentinel
            | LinkRole::Redirect { .. }
            | LinkRole::Probe
            | LinkRole::Idle => {
                return;
            }
        }
        let is_unread = |link: &Link| link.unread_since.is_some();
        if output >= self.settings.limits.session_output_hard_bytes as usize
            && !self.links.get(link_id).is_some_and(is_unread)
        {
            if self.head_of_line_wait(link_id) {
                self.set_apart(link_id, session_id, LaneReason::Slow);
                if self.head_of_line_waited(link_id) {
                    return self.close_for_foreign_sessions(session_id);
                }
            }
            self.stop_reading(link_id);
        }
    }

    /// Closes a slow session: other sessions have waited behind slow sessions for as long as they
    /// may.
    pub(crate) fn close_for_foreign_sessions(&mut self, id: SessionId) {
        let limit_ms = self.settings.limits.head_of_line_stall_ms;
        let reason = format!(
            "head-of-line-stall-ms: it took its replies too slowly, and others waited {limit_ms} ms"
        );
        self.close_for(id, reason);
    }
}
