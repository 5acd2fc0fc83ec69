//! From a server's bytes to the clients that asked: step 6 in the life of a GET.

use std::collections::HashSet;

use respool_protocol::reply::Scanned;

use crate::coalesce::is_nil;
use crate::duty::Duty;
use crate::engine::{Action, Engine, LinkId};
use crate::entry::{Class, Entry};
use crate::limits::gathered_bytes_max;
use crate::link::{Link, Role, State, UNASKED};
use crate::parking::Piece;
use crate::returns::Expected;
use crate::session::{Flags, Session};
use crate::slots::Key;
use crate::slow_readers::Why;
use crate::waiters::Readiness;

/// Bytes of an incomplete reply that are kept until its end comes. Up to here a reply that is cut
/// off becomes an error; beyond, its beginning has gone to the client, and the client must be cut
/// off too.
pub(crate) const PARTIAL_BYTES_MAX: usize = 64 << 10;

/// Replies that came one behind the other for one session: they are brought to it at once.
pub(crate) struct Delivery {
    session: Key,
    /// Of those that it asked one right behind the other, the last ones that came: before them,
    /// where a pool has several servers, may be pieces, which are on the engine's list.
    seq: u32,
    count: u32,
    /// Where their bytes start, and those of the whole delivery.
    piece: usize,
    start: usize,
}

/// What a reply was that may be no answer.
enum Aside {
    /// No answer, and what follows may be one.
    Taken,
    /// No answer, and what follows is not read, or not now.
    Last,
    Answers,
}

/// Whether a reply that begins so may be no answer to what is in front: a push (`>`), or an error
/// (`-`), and what begins nearly so. One question, and not one for each: it is asked of every
/// reply.
#[inline]
fn is_set_apart(kind: u8) -> bool {
    const ALIKE: u8 = !(b'>' ^ b'-');
    kind & ALIKE == b'>' & ALIKE
}

impl Delivery {
    pub(crate) const NONE: Delivery = Delivery {
        session: Key::NOBODY,
        seq: 0,
        count: 0,
        piece: 0,
        start: 0,
    };

    fn of(entry: Entry, at: usize) -> Delivery {
        Delivery {
            session: entry.session,
            seq: entry.seq,
            count: 1,
            piece: at,
            start: at,
        }
    }

    /// Ends at `at`, as far as its session asked one right behind the other.
    fn last_piece(&self, at: usize) -> Piece {
        Piece {
            seq: self.seq,
            count: self.count,
            len: at - self.piece,
        }
    }
}

impl Engine {
    /// A server sent bytes.
    pub fn handle_link_bytes(&mut self, link: LinkId, bytes: &[u8]) {
        self.take_link_bytes(link.0, bytes);
        if !self.lost_slots.is_empty() {
            self.settle_lost_slots();
        }
    }

    fn take_link_bytes(&mut self, key: Key, bytes: &[u8]) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        link.progress = self.now;
        self.counters.link_bytes_in += bytes.len() as u64;
        match &mut link.state {
            State::Up if link.tunnel.is_some() => self.take_tunnel_bytes(key, bytes),
            State::Up => {
                if !link.partial.is_empty() && !link.scanner.is_inside() {
                    return self.take_rest_of_head(key, bytes);
                }
                let (is_limited, owed) = (link.reply_room.is_limited(), link.ledger.len());
                if let Role::Hub(line) = link.role
                    && self.line(line).goes_behind(bytes)
                {
                    return;
                }
                self.take_replies(key, bytes);
                self.after_replies(key);
                if is_limited {
                    self.note_whole_replies(key, bytes.len(), owed);
                }
            }
            State::Greeting { greeting, .. } => {
                let greeted = greeting.read(bytes, &mut link.identity, &mut link.client_id);
                self.greeted(key, greeted);
            }
            // It was given up in this very turn.
            _ => {}
        }
    }

    /// The first line of the reply to an MGET of ours came in parts.
    #[cold]
    fn take_rest_of_head(&mut self, key: Key, bytes: &[u8]) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let mut head = std::mem::take(&mut link.partial);
        head.extend_from_slice(bytes);
        self.take_replies(key, &head);
        self.after_replies(key);
    }

    pub(crate) fn take_replies(&mut self, key: Key, bytes: &[u8]) {
        let mut at = 0;
        let mut delivery = Delivery::NONE;
        while at < bytes.len() {
            let Some(link) = self.links.get_mut(key) else {
                return;
            };
            let inside = link.scanner.is_inside();
            if link.gets_are_next() && !inside && bytes[at] != b'>' {
                // Its elements are replies like others.
                self.end_delivery(&mut delivery, &bytes[..at]);
                match self.open_gets(key, &bytes[at..]) {
                    Ok(Some(len)) => {
                        at += len;
                        continue;
                    }
                    Ok(None) => return,
                    Err(reason) => return self.lose_link(key, &reason),
                }
            }
            match link.scanner.scan(&bytes[at..]) {
                Ok(Scanned::Whole(len)) => {
                    let end = at + len;
                    if inside {
                        self.end_partial(key, &bytes[at..end]);
                        if !self.links.get(key).is_some_and(Link::is_up) {
                            return;
                        }
                    } else {
                        let link = match is_set_apart(link.scanner.kind()) {
                            false => link,
                            true => {
                                self.end_delivery(&mut delivery, &bytes[..at]);
                                match self.take_aside(key, &bytes[at..], end - at) {
                                    Aside::Taken => {
                                        at = end;
                                        continue;
                                    }
                                    Aside::Last => return,
                                    Aside::Answers => {}
                                }
                                match self.links.get_mut(key) {
                                    Some(link) => link,
                                    None => return,
                                }
                            }
                        };
                        let Some(entry) = link.first_in_flight() else {
                            self.end_delivery(&mut delivery, &bytes[..at]);
                            return self.lose_link(key, UNASKED);
                        };
                        if entry.class.is_special() {
                            let reply = &bytes[at..end];
                            let special = entry.class.tells()
                                || link.asks_again
                                || link.shares_next()
                                || entry.class == Class::OfGets && is_nil(reply);
                            if special {
                                self.end_delivery(&mut delivery, &bytes[..at]);
                                self.settle_moved(key, entry, reply, false);
                                at = end;
                                continue;
                            }
                        }
                        if entry.duty {
                            self.end_delivery(&mut delivery, &bytes[..at]);
                            self.settle(key, &bytes[at..end], false);
                            if !self.links.get(key).is_some_and(Link::is_up) {
                                // It said what ended it: what follows is not believed.
                                return;
                            }
                            at = end;
                            continue;
                        }
                        link.pop_answered(entry);
                        self.counters.link_replies += 1;
                        self.go_on_delivering(&mut delivery, entry, &bytes[..at]);
                    }
                    at = end;
                }
                Ok(Scanned::Part) => {
                    self.end_delivery(&mut delivery, &bytes[..at]);
                    return self.take_part(key, &bytes[at..]);
                }
                Err(error) => {
                    self.end_delivery(&mut delivery, &bytes[..at]);
                    return self.lose_link(key, &format!("its bytes are no replies: {error}"));
                }
            }
        }
        self.end_delivery(&mut delivery, bytes);
    }

    /// The reply to this one stands behind `bytes`.
    #[inline]
    pub(crate) fn go_on_delivering(&mut self, delivery: &mut Delivery, entry: Entry, bytes: &[u8]) {
        let at = bytes.len();
        if entry.session != delivery.session {
            self.end_delivery(delivery, bytes);
            *delivery = Delivery::of(entry, at);
        } else if entry.seq == delivery.seq.wrapping_add(delivery.count) {
            delivery.count += 1;
        } else if entry.seq.wrapping_sub(delivery.seq) as i32 > 0 {
            // What it asked in between comes from another server.
            self.pieces.push(delivery.last_piece(at));
            *delivery = Delivery {
                start: delivery.start,
                ..Delivery::of(entry, at)
            };
        } else {
            self.end_delivery(delivery, bytes);
            *delivery = Delivery::of(entry, at);
        }
    }

    /// All of it ends with `bytes`.
    #[inline(never)]
    pub(crate) fn end_delivery(&mut self, delivery: &mut Delivery, bytes: &[u8]) {
        if delivery.count > 0 {
            let last = delivery.last_piece(bytes.len());
            let session = std::mem::replace(&mut delivery.session, Key::NOBODY);
            delivery.count = 0;
            self.bring(session, last, &bytes[delivery.start..]);
        }
    }

    /// The replies to `count` requests of a session, from the one with place `seq` on.
    pub(crate) fn deliver(&mut self, key: Key, seq: u32, count: u32, bytes: &[u8]) {
        debug_assert!(self.pieces.is_empty(), "a delivery has to be ended first");
        let len = bytes.len();
        self.bring(key, Piece { seq, count, len }, bytes);
    }

    /// The same, if the engine has no pieces on its list; else those come first.
    #[inline(always)]
    fn bring(&mut self, key: Key, last: Piece, bytes: &[u8]) {
        let Some(session) = self.sessions.get_mut(key) else {
            let counts = self.pieces.drain(..).map(|piece| u64::from(piece.count));
            self.counters.late_replies += u64::from(last.count) + counts.sum::<u64>();
            return;
        };
        self.held_bytes += bytes.len();
        if last.seq == session.head_seq && self.pieces.is_empty() {
            session.out.tail(&mut self.spare).extend_from_slice(bytes);
            session.head_seq = last.seq.wrapping_add(last.count);
        } else {
            self.pieces.push(last);
            session.flags |= Flags::PARKED;
            let head = session.head_seq;
            let parking = &mut session.rare().parking;
            parking.park(head, &self.pieces, bytes, &mut self.spare);
            let is_next = self.pieces[0].seq == head;
            self.pieces.clear();
            if !is_next {
                return self.bound_parked(key);
            }
        }
        // What was parked may have its turn now.
        if session.flags.any(Flags::PARKED) {
            self.held_bytes -= session.unpark(&mut self.spare);
            if session.flags.any(Flags::PARKED) {
                self.bound_parked(key);
            }
        }
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let caught_up = session.is_caught_up();
        let soft = self.settings.limits.session_output_soft_bytes as usize;
        let much = session.out.len() > soft;
        // It may have been held for what came early, and that has had its turn.
        let held = session.flags.any(Flags::HOLD_OUTPUT) && session.out.len() <= soft / 2;
        if caught_up || !session.flags.any(Flags::ROUTED) {
            Engine::mark_dirty(&mut self.dirty, key, session);
        } else {
            self.keep_for_rest(key);
        }
        if caught_up {
            self.note_caught_up(key);
        }
        if much {
            self.hold_output(key);
        } else if held && self.unpause_captured(key) {
            self.release(key, Flags::HOLD_OUTPUT);
        }
    }

    /// A reply to a read, which is asked again on the link where it came should that have to be
    /// before it is the reply's turn.
    pub(crate) fn deliver_read(&mut self, key: Key, seq: u32, bytes: &[u8], again: (Key, &[u8])) {
        let early = |session: &&mut Session| session.head_seq != seq;
        let Some(session) = self.sessions.get_mut(key).filter(early) else {
            return self.deliver(key, seq, 1, bytes);
        };
        self.held_bytes += bytes.len() + again.1.len();
        session.flags |= Flags::PARKED;
        let head = session.head_seq;
        let parking = &mut session.rare().parking;
        parking.park_read(head, seq, bytes, again, &mut self.spare);
        self.bound_parked(key);
    }

    /// Replies before their turn have the bound of a session's output, and count apart from it:
    /// output stands at the bound while the link is not read.
    #[inline(never)]
    fn bound_parked(&mut self, key: Key) {
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        let (parked, limits) = (session.parked_bytes(), &self.settings.limits);
        if parked > limits.session_output_soft_bytes as usize {
            self.early.push(key);
        }
        // Replies that are put together of several servers have a bound of their own.
        let rare = session.rare.as_deref();
        let whole = rare.map_or(0, |rare| rare.parking.held_bytes());
        let is_over = whole > limits.session_output_hard_bytes as usize;
        let Some(session) = self.sessions.get_mut(key).filter(|_| is_over) else {
            return;
        };
        if session.head_is_put_off() {
            session.rare().delayed.give_up();
        } else {
            let reason = "session-output-hard-bytes: replies before their turn";
            self.close_for(key, reason.to_owned());
        }
    }

    /// Everything a session asked was answered. It may go another way now; and its link expects it
    /// back.
    #[inline(always)]
    fn note_caught_up(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        session.answered_at = self.now;
        session.reads_in_order = false;
        let asked_again = session.flags.any(Flags::ASKS_AGAIN);
        session
            .flags
            .remove(Flags::FUSED | Flags::ASKS_AGAIN | Flags::UNFORESEEN);
        if asked_again {
            self.askers.remove(&key);
        }
        if session.flags.any(Flags::CLOSING | Flags::ENDED) && session.out.is_empty() {
            // It wants no replies, so no write will end it.
            self.resume.push(key);
        }
        if session.flags.any(Flags::AWAITS_LAST) {
            if session.flags.any(Flags::UNPINNING) {
                self.finish_unpinning(key);
            }
            self.release(key, Flags::HOLD_DRAIN | Flags::HOLD_DEPTH);
        } else if session.expected == Expected::NOT
            && !session
                .flags
                .any(Flags::CLOSING | Flags::ENDED | Flags::ROUTED)
            && let Some(link) = self.links.get_mut(session.link)
        {
            session.expected = link.returns.expect(self.now, session.gap_us);
        } else if session.flags.any(Flags::ROUTED) {
            session.keeping.end(true);
            // Whose its next request is, nobody knows: it is expected by all of them.
            if session.expected == Expected::NOT
                && !session.flags.any(Flags::CLOSING | Flags::ENDED)
                && session.pins.is_empty()
            {
                let pool = &mut self.pools[usize::from(session.pool)];
                session.expected = pool.expect(self.now, session.gap_us);
            }
        }
    }

    /// What comes next may be no answer to what is in front: a push, or an error that says
    /// something of the server.
    #[cold]
    #[inline(never)]
    fn take_aside(&mut self, key: Key, bytes: &[u8], len: usize) -> Aside {
        let reply = &bytes[..len];
        match reply.first() {
            Some(b'>') => {
                self.take_push(key, reply);
                // It may have said what ended the link: what follows is not believed.
                let goes_on = self.links.get(key).is_some_and(Link::is_up)
                    && !self.puts_off(key, &bytes[len..]);
                if goes_on { Aside::Taken } else { Aside::Last }
            }
            Some(b'-') if self.is_heeded(key, reply) => Aside::Taken,
            _ => Aside::Answers,
        }
    }

    /// The end of a reply whose beginning came before.
    #[inline(never)]
    fn end_partial(&mut self, key: Key, bytes: &[u8]) {
        self.note_reply_bytes(key, bytes.len(), true);
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let mut partial = std::mem::take(&mut link.partial);
        let cut = std::mem::take(&mut link.cutting);
        let receiver = link.first_in_flight().map(|entry| entry.session);
        let whole = if cut {
            bytes
        } else {
            partial.extend_from_slice(bytes);
            &partial
        };
        let whole_len = whole.len();
        if link.scanner.kind() == b'>' {
            // What was cut was too large for anybody.
            if !cut {
                self.take_push(key, whole);
            }
        } else {
            let Some(entry) = link.first_in_flight() else {
                return self.lose_link(key, UNASKED);
            };
            let is_refused = link.scanner.kind() == b'-' && !cut;
            if is_refused && self.is_heeded(key, whole) {
                // Its session will be told later.
            } else if entry.duty {
                self.settle(key, whole, cut);
            } else if entry.class.is_special() {
                self.settle_moved(key, entry, whole, cut);
            } else if let Some(link) = self.links.get_mut(key) {
                link.pop_answered(entry);
                self.counters.link_replies += 1;
                self.deliver(entry.session, entry.seq, 1, whole);
            }
            if cut {
                self.end_mid_reply(entry.session);
            }
            if let Some(receiver) = receiver {
                self.note_cut_reply(key, receiver, whole_len, cut);
            }
        }
        self.spare.give(partial);
    }

    /// A push answers nobody. On a session's own link it is the session's.
    fn take_push(&mut self, key: Key, push: &[u8]) {
        match self.links.get(key).map(|link| link.role) {
            Some(Role::Pinned { by }) => self.take_own_push(key, by, push),
            Some(Role::Redirect { to }) => self.redirected(to, push),
            Some(Role::Hub(hub)) => self.take_hub_push(key, hub, push),
            Some(Role::Sentinel) => self.take_sentinel_push(key, push),
            _ => {}
        }
    }

    /// Out-of-band bytes for a session: between two replies, in the order in which they come. Who
    /// takes them too slowly is closed.
    pub(crate) fn push_to(&mut self, key: Key, bytes: &[u8]) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        self.held_bytes += bytes.len();
        let mid_reply = session.flags.any(Flags::MID_REPLY);
        let waiting = if mid_reply {
            let pushes = &mut session.rare().pushes;
            pushes.extend_from_slice(bytes);
            pushes.len()
        } else {
            session.out.tail(&mut self.spare).extend_from_slice(bytes);
            Engine::mark_dirty(&mut self.dirty, key, session);
            session.out.len()
        };
        let limits = &self.settings.limits;
        if waiting > limits.session_output_hard_bytes as usize {
            let reason = "session-output-hard-bytes: it took its messages too slowly";
            self.close_for(key, reason.to_owned());
        } else if waiting > limits.session_output_soft_bytes as usize
            && !session.flags.any(Flags::HOLD_OUTPUT)
            && !mid_reply
        {
            self.hold(key, Flags::HOLD_OUTPUT);
        }
    }

    /// A reply that came in parts is in a session's output whole: what had to wait for that follows
    /// it.
    pub(crate) fn end_mid_reply(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        session.flags.remove(Flags::MID_REPLY);
        if let Some(rare) = &mut session.rare
            && !rare.pushes.is_empty()
        {
            let pushes = std::mem::take(&mut rare.pushes);
            session.out.tail(&mut self.spare).extend_from_slice(&pushes);
            Engine::mark_dirty(&mut self.dirty, key, session);
        }
    }

    /// The bytes of a reply that does not end in them.
    #[inline(never)]
    fn take_part(&mut self, key: Key, bytes: &[u8]) {
        self.note_reply_bytes(key, bytes.len(), false);
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        if link.partial.capacity() == 0 && !link.cutting {
            link.partial = self.spare.take();
        }
        let whole_bytes_max = self.settings.limits.session_output_hard_bytes as usize;
        if link.scanner.kind() == b'>' {
            if link.cutting {
                return;
            }
            link.partial.extend_from_slice(bytes);
            if link.partial.len() > whole_bytes_max
                && let Role::Hub(hub) = link.role
            {
                link.cutting = true;
                let beginning = std::mem::take(&mut link.partial);
                self.refuse_message(hub, &beginning);
            } else if link.partial.len() > whole_bytes_max {
                self.lose_link(key, "it sent a push larger than session-output-hard-bytes");
            }
            return;
        }
        let Some(entry) = link.first_in_flight() else {
            return self.lose_link(key, UNASKED);
        };
        if !link.cutting {
            link.partial.extend_from_slice(bytes);
            if link.partial.len() <= PARTIAL_BYTES_MAX {
                return;
            }
            if entry.duty
                && let Some(duty) = link.duties.front().filter(|duty| duty.needs_whole())
            {
                let (most, option) = match duty {
                    Duty::Part { .. } => (
                        gathered_bytes_max(&self.settings.limits),
                        "worker-memory-bytes-max",
                    ),
                    _ => (whole_bytes_max, "session-output-hard-bytes"),
                };
                if link.partial.len() <= most {
                    return;
                }
                link.partial = Vec::new();
                link.cutting = true;
                let reason = format!("{option}: a reply that has to be held whole");
                return self.close_for(entry.session, reason);
            }
            if entry.silent {
                // The session wants none of it.
                link.partial = Vec::new();
                link.cutting = true;
                return;
            }
        }
        let is_early = entry.class.is_moved_read() && self.brings_early(key, &entry);
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        // A large reply is not held whole: what has come of it goes on, once it is its turn.
        let partial = std::mem::take(&mut link.partial);
        let bytes = if link.cutting { bytes } else { &partial };
        self.note_large_part(key, entry.session, bytes.len());
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        match self.sessions.get_mut(entry.session) {
            None => link.cutting = true,
            // It is asked again when it has come.
            Some(_) if is_early => link.cutting = true,
            Some(_) if entry.silent => {}
            Some(session) if session.head_seq == entry.seq => {
                link.cutting = true;
                session.flags |= Flags::MID_REPLY;
                session.out.tail(&mut self.spare).extend_from_slice(bytes);
                self.held_bytes += bytes.len();
                let much =
                    session.out.len() > self.settings.limits.session_output_soft_bytes as usize;
                Engine::mark_dirty(&mut self.dirty, entry.session, session);
                if much {
                    self.hold_output(entry.session);
                    self.slow.push((key, entry.session));
                }
            }
            Some(_) if partial.len() > self.settings.limits.session_output_hard_bytes as usize => {
                link.cutting = true;
                self.close_for(
                    entry.session,
                    "session-output-hard-bytes: a reply before its turn".to_owned(),
                );
            }
            Some(_) => {
                if partial.len() > self.settings.limits.session_output_soft_bytes as usize {
                    self.early.push(entry.session);
                }
                link.partial = partial;
            }
        }
    }

    /// A session has more output than it takes: it is not read until it takes some.
    fn hold_output(&mut self, key: Key) {
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        let (link, owed) = (session.link, !session.is_caught_up());
        let is_routed = session.flags.any(Flags::ROUTED);
        if !session.flags.any(Flags::HOLD_OUTPUT) {
            self.hold(key, Flags::HOLD_OUTPUT);
        }
        match owed {
            // It is brought by the link whose bytes are taken.
            true if is_routed => self.early.push(key),
            true => self.slow.push((link, key)),
            false => {}
        }
    }

    /// Sees to those who were brought more than they take. Not at once: a link must not lose its
    /// sharers, and what it owes them, in the middle of a reply that is several sessions'.
    pub(crate) fn slow_down_all(&mut self) {
        if self.slow.is_empty() {
            return;
        }
        for (link, key) in std::mem::take(&mut self.slow) {
            let soft = self.settings.limits.session_output_soft_bytes as usize;
            self.hold_early(link, key);
            self.change_lane(key);
            let is_slow = |session: &Session| session.out.len() > soft;
            if self.sessions.get(key).is_some_and(is_slow) {
                self.slow_down(link, key);
            }
        }
    }

    /// A link brings a session more than may wait for its turn, while another server takes its
    /// time: it is the session's alone from now on, and not read until it is its turn.
    fn hold_early(&mut self, link: Key, key: Key) {
        if !self.is_early(link, key) {
            return;
        }
        match self.links.get(link) {
            Some(state) if !state.is_up() || state.paused.is_some() => {}
            Some(state) if state.role == Role::Shared => {
                if self.has_room_for_link() {
                    self.capture(link, key);
                }
            }
            _ => self.hand_over(link, key),
        }
        let waits_for_itself = self.waits_for_itself(link, key);
        let its_own = |link: &Link| link.role.captor() == key && link.paused.is_none();
        if self.links.get(link).is_some_and(its_own) {
            // If strangers have waited long enough, the link is read on, and more replies that come
            // early are parked.
            let have_waited = self.strangers_have_waited(link) && self.strangers_wait(link);
            if !waits_for_itself && !have_waited {
                self.pause(link);
            }
            self.hold(key, Flags::HOLD_OUTPUT);
        }
    }

    /// Whether that turn comes only when this very link is read: what the session waits for stands
    /// on a link that is not read because of another one, and so on, and what the last one waits
    /// for stands here.
    fn waits_for_itself(&self, link: Key, key: Key) -> bool {
        let stands_on = |session: Key, link: &Link| {
            let state = self.sessions.get(session);
            state.is_some_and(|state| link.brings(session, state.head_seq))
        };
        let (mut waiting, mut seen) = (vec![key], vec![link]);
        while let Some(session) = waiting.pop() {
            if session != key
                && self
                    .links
                    .get(link)
                    .is_some_and(|link| stands_on(session, link))
            {
                return true;
            }
            for (other, state) in self.links.iter().filter(|(_, link)| link.paused.is_some()) {
                let captor = state.role.captor();
                // Who does not take what it is brought waits for nobody.
                if !seen.contains(&other)
                    && stands_on(session, state)
                    && self.is_early(other, captor)
                {
                    seen.push(other);
                    waiting.push(captor);
                }
            }
        }
        false
    }

    /// Whether what comes next on a link is a session's, and is not to come yet.
    pub(crate) fn is_early(&self, link: Key, key: Key) -> bool {
        let (Some(session), Some(link)) = (self.sessions.get(key), self.links.get(link)) else {
            return false;
        };
        let soft = self.settings.limits.session_output_soft_bytes as usize;
        // What has come of another one's reply is not its.
        let begun = match link.first_in_flight() {
            Some(next) if next.session == key => link.partial.len(),
            _ => 0,
        };
        // To one server alone, what comes next comes on the same link, though perhaps behind this.
        session.flags.any(Flags::ROUTED)
            && link.owes(key)
            && session.parked_bytes() + begun > soft
            && !link.brings(key, session.head_seq)
            // That is asked again when all that is in flight has come.
            && !session.head_is_put_off()
    }

    /// A link brings a session more than it takes. First everybody else leaves the link; at the
    /// hard bound it is not read either. So a slow session never stops a link that others share,
    /// and never makes us hold more than its bound.
    fn slow_down(&mut self, link: Key, key: Key) {
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        let output = session.out.len();
        let brings = |link: &Link| link.role.is_manys() && link.owes(key);
        let link = match self.links.get(link) {
            Some(state) if state.owes(key) => link,
            // What other servers owe it they may bring in good time.
            _ if self.is_routed(key) => return,
            _ => match self.links.iter().find(|(_, state)| brings(state)) {
                Some((other, _)) => other,
                None => return,
            },
        };
        let Some(state) = self.links.get(link) else {
            return;
        };
        match state.role {
            Role::Shared if state.is_up() => {
                if self.has_room_for_link() {
                    self.capture(link, key);
                } else if output >= self.settings.limits.session_output_hard_bytes as usize {
                    return self
                        .close_for(key, "session-output-hard-bytes, and links-max".to_owned());
                } else {
                    return;
                }
            }
            // What comes is what another link has brought, and this one is still being connected.
            Role::Captured { .. } if !state.is_up() => return,
            Role::Captured { by } if by != key => {
                if output < self.settings.limits.session_output_hard_bytes as usize {
                    return;
                }
                self.hand_over(link, key);
            }
            Role::Captured { .. }
            | Role::Streaming { .. }
            | Role::Emergency { .. }
            | Role::Pinned { .. } => {}
            Role::Shared
            | Role::Hub(_)
            | Role::Sentinel
            | Role::Redirect { .. }
            | Role::Probe
            | Role::Spare => {
                return;
            }
        }
        let is_paused = |state: &Link| state.paused.is_some();
        if output >= self.settings.limits.session_output_hard_bytes as usize
            && !self.links.get(link).is_some_and(is_paused)
        {
            if self.strangers_wait(link) {
                self.set_apart(link, key, Why::Slow);
                if self.strangers_have_waited(link) {
                    return self.close_for_strangers(key);
                }
            }
            self.pause(link);
        }
    }

    /// Strangers have waited behind slow sessions as long as they may: this one of them is closed.
    pub(crate) fn close_for_strangers(&mut self, key: Key) {
        let limit_ms = self.settings.limits.stranger_stall_ms;
        let reason = format!(
            "stranger-stall-ms: it took its replies too slowly, and others waited {limit_ms} ms"
        );
        self.close_for(key, reason);
    }

    /// A session holds up what others have asked: from now on it holds up this link alone. It is
    /// read as before: what others have asked there comes no later than it would have. To ask it
    /// again already here costs a server with many slow sessions all that they have asked for, once
    /// for each of them.
    fn capture(&mut self, link: Key, by: Key) {
        self.counters.captured_links += 1;
        let kind = self.links.get(link).map(|state| state.key);
        self.leave_to(link, by);
        if let Some(other) = kind.and_then(|kind| self.shared_link(kind)) {
            self.connect(other);
        }
    }

    /// The link stops being shared: it serves what it owes, and nobody puts anything new on it.
    /// `by`: who captured it, if it was that.
    pub(crate) fn leave_to(&mut self, link: Key, by: Key) {
        let Some(state) = self.links.get_mut(link) else {
            return;
        };
        state.role = Role::Captured { by };
        state.admit(false, false);
        let kind = state.key;
        // Answers there may come when its captor likes: sessions that wait for them ask again.
        self.learned.leave_questions(link);
        let waiters = std::mem::take(&mut state.waiters);
        let stay: HashSet<Key> = state.ledger.iter().map(|entry| entry.session).collect();
        for waiter in waiters {
            self.release(waiter, Flags::HOLD_LINK);
        }
        for session in stay {
            // Wherever it has turned: what it asks here next would overtake what stays.
            if self.is_routed(session) {
                self.hold_until_caught_up(session);
            }
        }
        self.shared.remove(&kind);
    }

    /// A captured link is read, so it does not wait for who captured it: from now on it waits for
    /// this one.
    fn hand_over(&mut self, link: Key, to: Key) {
        let is_others = |link: &&mut Link| matches!(link.role, Role::Captured { by } if by != to);
        if let Some(state) = self.links.get_mut(link).filter(is_others) {
            state.role = Role::Captured { by: to };
        }
    }

    /// A link is not read until its captor takes some output.
    fn pause(&mut self, link: Key) {
        self.ask_again(link);
        let Some(state) = self.links.get_mut(link) else {
            return;
        };
        state.paused = Some(self.now);
        let role = state.role;
        self.act(Action::ReadLink(LinkId(link), false));
        if let Role::Captured { by } = role {
            self.move_reads_of_others(link, by);
        }
    }

    /// Reads of others that wait on a link that is not read are asked again, on a link of their
    /// own: who comes now need not wait for what they ask, which may be as large. Where there is no
    /// room for one, on the one that all share.
    fn move_reads_of_others(&mut self, link: Key, captor: Key) {
        let Some(kind) = self.links.get(link).map(|state| state.key) else {
            return;
        };
        let has_room = self.has_room_for_link();
        let rests = |link: &Link| matches!(link.state, State::Down | State::Resting { .. });
        let shared = self.shared.get(&kind).copied();
        let shared = shared.filter(|key| !self.links.get(*key).is_none_or(rests));
        if !has_room && shared.is_none() {
            return;
        }
        let Some(state) = self.links.get_mut(link) else {
            return;
        };
        let reads = state.take_few_reads_of_others(captor);
        let Some(first) = reads.first() else {
            return;
        };
        let by = first.entry.session;
        let own = has_room.then(|| self.add_link(kind, Role::Captured { by }));
        if let Some(own) = own.flatten() {
            self.connect(own);
        }
        let Some(other) = own.flatten().or(shared) else {
            return;
        };
        self.counters.reads_sent_again += reads.len() as u64;
        if let Some(state) = self.links.get_mut(other) {
            for left in reads {
                state.push_left(left);
            }
        }
        self.list_link(other);
    }

    /// A link that was not read is read again.
    pub(crate) fn read_on(&mut self, link: Key) {
        if let Some(state) = self.links.get_mut(link)
            && state.paused.take().is_some()
        {
            state.progress = self.now;
            self.act(Action::ReadLink(LinkId(link), true));
        }
    }

    /// A session took output, or is gone: the links it held up are read again. Whether all are:
    /// what comes too early is not.
    pub(crate) fn unpause_captured(&mut self, key: Key) -> bool {
        let mut all = true;
        if self.links.iter().all(|(_, link)| link.paused.is_none()) {
            return all;
        }
        for link in self.links.keys() {
            let its = |state: &Link| state.role.captor() == key && state.paused.is_some();
            if !self.links.get(link).is_some_and(its) {
                continue;
            }
            if self.is_early(link, key) && !self.waits_for_itself(link, key) {
                all = false;
                continue;
            }
            if self.strangers_wait(link) {
                self.count_strangers_wait(link);
            }
            self.read_on(link);
        }
        all
    }

    /// After the bytes of one read: a link with room again takes requests, one that has done its
    /// duty goes.
    fn after_replies(&mut self, key: Key) {
        while let Some(session) = self.early.pop() {
            self.slow.push((key, session));
        }
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        if link.is_overtaken() {
            return self.lose_link(key, "it answered a request that it had not been sent whole");
        }
        match link.role {
            Role::Shared if link.accepting => {}
            Role::Shared => {
                let server = link.key.server;
                self.drop_successor(key, server);
                self.reopen(key);
            }
            Role::Pinned { .. } if link.takes && link.waiters.is_empty() => {}
            Role::Pinned { .. } => self.reopen(key),
            Role::Captured { .. } => {
                let (server, owes) = (link.key.server, !link.ledger.is_empty());
                if !owes && !link.scanner.is_inside() {
                    self.close_link(key);
                }
                self.end_holding(server);
            }
            _ if !link.ledger.is_empty() || link.scanner.is_inside() => {}
            Role::Emergency { .. } => self.end_emergency(key),
            // A push may come before the request is whole, when the ledger does not have it yet.
            Role::Streaming { .. } if link.is_idle() => {
                self.keep_spare(key);
                self.next_streaming();
            }
            Role::Streaming { .. }
            | Role::Hub(_)
            | Role::Sentinel
            | Role::Redirect { .. }
            | Role::Probe
            | Role::Spare => {}
        }
    }

    /// Links for large requests may be had again: as many sessions go on as there is room for.
    pub(crate) fn next_streaming(&mut self) {
        if self.streaming_waiters.is_empty() {
            return;
        }
        let free = self.free_streaming_links();
        let sessions = &self.sessions;
        let readiness = |key| Readiness::of(sessions.get(key), Flags::HOLD_LINK);
        for waiter in self.streaming_waiters.wake(free, readiness) {
            self.release(waiter, Flags::HOLD_LINK);
        }
    }
}
