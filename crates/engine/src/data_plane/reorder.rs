//! The reorder buffer: replies of a session that came before their place. An idle session has none.
//!
//! ```text
//!   requests    a1 b1 a2 c1 b2        the places of a session, from the first unanswered one on
//!   replies     .. b1 .. .. b2        each reply stands at its place, so no search finds the next
//! ```

use crate::base::buffer::SpareBuffers;
use crate::base::handle::LinkId;

/// The replies to a session that came and that it may not get yet.
#[derive(Default)]
pub(crate) struct ReorderBuffer {
    /// Slots by place, up to the last reply that has come. The first `passed` slots are done with;
    /// the next one has the place `first`.
    places: Vec<ReorderSlot>,
    passed: usize,
    first: u32,
    /// Requests with replies in the buffer.
    parked: usize,
    bytes: Vec<u8>,
    /// Bytes of replies that have left and still take room in `bytes`.
    left: usize,
}

/// A reply, or several neighbouring ones at the place of the first. If the request may have to be
/// sent again, it stands behind its reply.
#[derive(Clone, Copy)]
struct ReorderSlot {
    /// Requests that the replies answer; 0: no reply has come.
    count: u32,
    at: usize,
    reply_len: usize,
    request_len: usize,
    /// The link on which the reply came.
    link: LinkId,
}

impl ReorderSlot {
    const EMPTY: ReorderSlot = ReorderSlot {
        count: 0,
        at: 0,
        reply_len: 0,
        request_len: 0,
        link: LinkId::NONE,
    };

    fn len(&self) -> usize {
        self.reply_len + self.request_len
    }
}

/// Replies to `count` successive requests of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyRange {
    pub(crate) seq: u32,
    pub(crate) count: u32,
    pub(crate) len: usize,
}

/// A request that has to be sent again, because its reply came too early.
pub(crate) struct RepeatedRequest {
    pub(crate) seq: u32,
    pub(crate) request: Vec<u8>,
    /// Bytes that the buffer holds no longer.
    pub(crate) freed: usize,
}

/// Bytes of replies that have left may take this much room, or half of the buffer, before the rest
/// is moved together.
const LEFT_BYTES_MAX: usize = 16 << 10;

/// No session has as many requests in flight: `session-pipeline-max` has a lower maximum.
const AHEAD_MAX: usize = 1_000_001;

/// Slots for which memory is kept while the buffer is empty.
const PLACES_KEPT: usize = 128;

impl ReorderBuffer {
    pub(crate) fn is_empty(&self) -> bool {
        self.parked == 0
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.len() - self.left
    }

    /// Bytes of memory that the buffer takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.places.capacity() * size_of::<ReorderSlot>()
    }

    /// The place behind the last reply.
    pub(crate) fn end(&self) -> Option<u32> {
        let last = self.places.last().filter(|_| !self.is_empty())?;
        let ahead = (self.places.len() - self.passed) as u32 + last.count - 1;
        Some(self.first.wrapping_add(ahead))
    }

    /// The number of requests with replies in the buffer.
    pub(crate) fn places(&self) -> usize {
        self.parked
    }

    /// Keeps replies, in the order of `ranges`. None of them has a place in front of `head`.
    pub(crate) fn park(
        &mut self,
        head: u32,
        ranges: &[ReplyRange],
        replies: &[u8],
        spare: &mut SpareBuffers,
    ) {
        let mut at = self.room(spare).len();
        self.bytes.extend_from_slice(replies);
        self.pass(head);
        for range in ranges {
            let place = ReorderSlot {
                count: range.count,
                at,
                reply_len: range.len,
                ..ReorderSlot::EMPTY
            };
            self.put(range.seq, place);
            at += range.len;
        }
    }

    /// Keeps the reply to a request that may have to be sent again on this link.
    pub(crate) fn park_read(
        &mut self,
        head: u32,
        seq: u32,
        reply: &[u8],
        (link, request): (LinkId, &[u8]),
        spare: &mut SpareBuffers,
    ) {
        let at = self.room(spare).len();
        self.bytes.extend_from_slice(reply);
        self.bytes.extend_from_slice(request);
        let place = ReorderSlot {
            count: 1,
            at,
            reply_len: reply.len(),
            request_len: request.len(),
            link,
        };
        self.pass(head);
        self.put(seq, place);
    }

    fn room(&mut self, spare: &mut SpareBuffers) -> &mut Vec<u8> {
        if self.bytes.capacity() == 0 {
            self.bytes = spare.take();
        }
        &mut self.bytes
    }

    #[inline]
    fn put(&mut self, seq: u32, place: ReorderSlot) {
        self.parked += place.count as usize;
        let ahead = seq.wrapping_sub(self.first) as usize;
        debug_assert!(ahead < AHEAD_MAX, "the place is answered already");
        let index = self.passed + ahead;
        if let Some(slot) = self.places.get_mut(index) {
            *slot = place;
        } else {
            self.places.resize(index, ReorderSlot::EMPTY);
            self.places.push(place);
        }
    }

    /// Drops the slots in front of `head`. Their requests are answered.
    #[inline]
    fn pass(&mut self, head: u32) {
        self.passed += head.wrapping_sub(self.first) as usize;
        self.first = head;
        if self.passed >= self.places.len() {
            self.places.clear();
            self.passed = 0;
        }
    }

    /// Appends to `out` the replies from `head` on, up to the first that has not come. Returns the
    /// place behind them, and the length of the requests that leave with them.
    pub(crate) fn take_next(&mut self, head: u32, out: &mut Vec<u8>) -> (u32, usize) {
        self.pass(head);
        let (mut behind, mut requests_len) = (head, 0);
        let mut index = self.passed;
        while let Some(place) = self.places.get(index).filter(|place| place.count > 0) {
            out.extend_from_slice(&self.bytes[place.at..place.at + place.reply_len]);
            requests_len += place.request_len;
            self.left += place.len();
            self.parked -= place.count as usize;
            behind = behind.wrapping_add(place.count);
            index += place.count as usize;
        }
        self.pass(behind);
        (behind, requests_len)
    }

    /// Gives memory back that the buffer does not need.
    pub(crate) fn tidy(&mut self, spare: &mut SpareBuffers) {
        if self.is_empty() {
            spare.give(std::mem::take(&mut self.bytes));
            self.left = 0;
            self.places.clear();
            self.places.shrink_to(PLACES_KEPT);
            self.passed = 0;
            return;
        }
        if self.passed > PLACES_KEPT && self.passed > self.places.len() / 2 {
            self.places.drain(..self.passed);
            self.passed = 0;
        }
        if self.left > LEFT_BYTES_MAX && self.left > self.bytes.len() / 2 {
            let mut bytes = spare.take();
            for place in &mut self.places[self.passed..] {
                let at = bytes.len();
                bytes.extend_from_slice(&self.bytes[place.at..place.at + place.len()]);
                place.at = at;
            }
            spare.give(std::mem::replace(&mut self.bytes, bytes));
            self.left = 0;
        }
    }

    /// Takes out the requests behind `seq` with replies that came on this link and are too early.
    pub(crate) fn take_behind(
        &mut self,
        seq: u32,
        link: LinkId,
        is_early: impl Fn(&[u8]) -> bool,
    ) -> Vec<RepeatedRequest> {
        let mut taken = Vec::new();
        for (index, place) in (0..).zip(&mut self.places[self.passed..]) {
            let own = self.first.wrapping_add(index);
            let behind = own.wrapping_sub(seq) as i32 > 0;
            let at = place.at + place.reply_len;
            let request = &self.bytes[at..at + place.request_len];
            if behind && place.request_len > 0 && place.link == link && is_early(request) {
                taken.push(RepeatedRequest {
                    seq: own,
                    request: request.to_vec(),
                    freed: place.len(),
                });
                self.left += place.len();
                self.parked -= place.count as usize;
                *place = ReorderSlot::EMPTY;
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(seq: u32, reply: &[u8]) -> ReplyRange {
        ReplyRange {
            seq,
            count: 1,
            len: reply.len(),
        }
    }

    /// Replies leave in the order of their places, and memory of sent replies is reused.
    #[test]
    fn replies_leave_in_order_and_memory_is_reused() {
        let (mut buffer, mut spare) = (ReorderBuffer::default(), SpareBuffers::default());
        let mut head = u32::MAX - 1;
        // One reply stays behind all others, so the whole buffer is never given back.
        let last = head.wrapping_add(600);
        buffer.park(head, &[range(last, b"last")], b"last", &mut spare);
        for round in 0..199_u32 {
            let texts: [String; 3] = [0, 1, 2].map(|at| format!("{round}.{at}").repeat(50));
            let [first, second, third] = texts.each_ref().map(|text| text.as_bytes());
            let mut out = Vec::new();
            assert_eq!(
                buffer.take_next(head, &mut out),
                (head, 0),
                "the reply has not come"
            );
            let [next, then] = [1, 2].map(|at| head.wrapping_add(at));
            buffer.park(head, &[range(then, third)], third, &mut spare);
            let both = [first, second].concat();
            let ranges = [range(head, first), range(next, second)];
            buffer.park(head, &ranges, &both, &mut spare);
            head = head.wrapping_add(3);
            assert_eq!(buffer.take_next(head.wrapping_sub(3), &mut out), (head, 0));
            assert_eq!(out, texts.concat().as_bytes());
            buffer.tidy(&mut spare);
            assert_eq!((buffer.places(), buffer.held_bytes()), (1, 4));
            let held = buffer.bytes.len();
            assert!(held <= LEFT_BYTES_MAX + 1_000, "{held}");
        }
        // The bytes of the last reply have moved with the others, and nothing of them is left.
        let mut out = Vec::new();
        assert_eq!(buffer.take_next(last, &mut out), (last.wrapping_add(1), 0));
        assert_eq!(out, b"last");
        buffer.tidy(&mut spare);
        assert_eq!(buffer.bytes.capacity(), 0);
        assert!(buffer.places.capacity() <= 2 * PLACES_KEPT);
        let next = last.wrapping_add(1);
        buffer.park(next, &[range(next, b"next")], b"next", &mut spare);
        assert_eq!(buffer.held_bytes(), 4);
    }

    /// A slot may hold several neighbouring replies.
    #[test]
    fn several_replies_stand_at_one_place() {
        let (mut buffer, mut spare) = (ReorderBuffer::default(), SpareBuffers::default());
        let three = ReplyRange {
            count: 3,
            ..range(6, b"678")
        };
        buffer.park(5, &[range(9, b"9"), range(11, b"11")], b"911", &mut spare);
        buffer.park(5, &[three], b"678", &mut spare);
        assert_eq!(buffer.places(), 5);
        let mut out = Vec::new();
        assert_eq!(buffer.take_next(5, &mut out), (5, 0));
        assert_eq!(buffer.take_next(6, &mut out), (10, 0));
        assert_eq!(buffer.take_next(11, &mut out), (12, 0));
        assert_eq!(out, b"678911");
        assert!(buffer.is_empty());
    }

    /// Only requests behind the place, with replies of that link, are taken out.
    #[test]
    fn early_replies_of_one_link_are_taken_out() {
        let (mut buffer, mut spare) = (ReorderBuffer::default(), SpareBuffers::default());
        let [this, other] = [1, 2].map(|index| LinkId {
            index,
            ..LinkId::NONE
        });
        for (seq, link) in [(2, this), (3, other), (4, this), (6, this)] {
            buffer.park_read(1, seq, b"reply", (link, b"GET k"), &mut spare);
        }
        buffer.park(1, &[range(5, b"reply")], b"reply", &mut spare);
        let taken = buffer.take_behind(2, this, |request| request == b"GET k");
        assert_eq!(
            taken.iter().map(|early| early.seq).collect::<Vec<_>>(),
            [4, 6]
        );
        assert!(
            taken
                .iter()
                .all(|early| early.request == b"GET k" && early.freed == 10)
        );
        assert_eq!(buffer.held_bytes(), 2 * 10 + 5);
        let mut out = Vec::new();
        assert_eq!(buffer.take_next(2, &mut out), (4, 10));
        assert_eq!(out, b"replyreply");
    }
}
