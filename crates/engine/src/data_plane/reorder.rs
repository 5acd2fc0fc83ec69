//! Replies that came before their turn: in one buffer, which an idle session does not have.
//!
//! ```text
//!   asked       a1 b1 a2 c1 b2        the places of a session, from the first that is not answered on
//!   came        .. b1 .. .. b2        what is here stands at its place, so whose turn it is, is never looked for
//! ```

use crate::buffer::Spare;
use crate::slots::Key;

/// What a session is owed, and is not to get yet.
#[derive(Default)]
pub(crate) struct Parking {
    /// From that of `first` on, as far as something has come; those in front of it have had their
    /// turn.
    places: Vec<Place>,
    passed: usize,
    first: u32,
    /// Requests whose replies are here.
    parked: usize,
    bytes: Vec<u8>,
    /// Bytes of those that have left.
    left: usize,
}

/// A reply, or several neighbouring ones, which stand at the place of the first; behind it the
/// request, if that may have to be asked again.
#[derive(Clone, Copy)]
struct Place {
    /// 0: nothing has come.
    count: u32,
    at: usize,
    reply_len: usize,
    request_len: usize,
    /// On which it came.
    link: Key,
}

impl Place {
    const EMPTY: Place = Place {
        count: 0,
        at: 0,
        reply_len: 0,
        request_len: 0,
        link: Key::NOBODY,
    };

    fn len(&self) -> usize {
        self.reply_len + self.request_len
    }
}

/// Replies to `count` requests that a session asked one right behind the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) seq: u32,
    pub(crate) count: u32,
    pub(crate) len: usize,
}

/// A request whose answer came too early.
pub(crate) struct AskedEarly {
    pub(crate) seq: u32,
    pub(crate) request: Vec<u8>,
    /// Bytes that are not parked any more.
    pub(crate) freed: usize,
}

/// So many bytes that have left stay where they are at the most, or half of all.
const LEFT_BYTES_MAX: usize = 16 << 10;

/// No session has as many requests in flight: the most that its depth can be set to.
const AHEAD_MAX: usize = 1_000_001;

/// For so many places memory is kept when nothing is parked.
const PLACES_KEPT: usize = 128;

impl Parking {
    pub(crate) fn is_empty(&self) -> bool {
        self.parked == 0
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.len() - self.left
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.places.capacity() * size_of::<Place>()
    }

    /// The place behind the last one.
    pub(crate) fn end(&self) -> Option<u32> {
        let last = self.places.last().filter(|_| !self.is_empty())?;
        let ahead = (self.places.len() - self.passed) as u32 + last.count - 1;
        Some(self.first.wrapping_add(ahead))
    }

    /// How many requests they are the replies to.
    pub(crate) fn places(&self) -> usize {
        self.parked
    }

    /// Keeps replies, the first of which is not in front of `head`, in the order of `pieces`.
    pub(crate) fn park(&mut self, head: u32, pieces: &[Piece], replies: &[u8], spare: &mut Spare) {
        let mut at = self.room(spare).len();
        self.bytes.extend_from_slice(replies);
        self.pass(head);
        for piece in pieces {
            let place = Place {
                count: piece.count,
                at,
                reply_len: piece.len,
                ..Place::EMPTY
            };
            self.put(piece.seq, place);
            at += piece.len;
        }
    }

    /// Keeps the reply to a request that may have to be asked again on this link.
    pub(crate) fn park_read(
        &mut self,
        head: u32,
        seq: u32,
        reply: &[u8],
        (link, request): (Key, &[u8]),
        spare: &mut Spare,
    ) {
        let at = self.room(spare).len();
        self.bytes.extend_from_slice(reply);
        self.bytes.extend_from_slice(request);
        let place = Place {
            count: 1,
            at,
            reply_len: reply.len(),
            request_len: request.len(),
            link,
        };
        self.pass(head);
        self.put(seq, place);
    }

    fn room(&mut self, spare: &mut Spare) -> &mut Vec<u8> {
        if self.bytes.capacity() == 0 {
            self.bytes = spare.take();
        }
        &mut self.bytes
    }

    #[inline]
    fn put(&mut self, seq: u32, place: Place) {
        self.parked += place.count as usize;
        let ahead = seq.wrapping_sub(self.first) as usize;
        debug_assert!(ahead < AHEAD_MAX, "its turn is over");
        let index = self.passed + ahead;
        if let Some(its) = self.places.get_mut(index) {
            *its = place;
        } else {
            self.places.resize(index, Place::EMPTY);
            self.places.push(place);
        }
    }

    /// What is before `head` has been answered.
    #[inline]
    fn pass(&mut self, head: u32) {
        self.passed += head.wrapping_sub(self.first) as usize;
        self.first = head;
        if self.passed >= self.places.len() {
            self.places.clear();
            self.passed = 0;
        }
    }

    /// Appends the replies whose turn it is, from `head` on; returns the place behind them, and how
    /// long the requests are that leave with them.
    pub(crate) fn unpark(&mut self, head: u32, out: &mut Vec<u8>) -> (u32, usize) {
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

    /// Gives memory back of which nothing is needed.
    pub(crate) fn tidy(&mut self, spare: &mut Spare) {
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

    /// Those behind `seq` that came on this link and have to be asked again leave.
    pub(crate) fn take_behind(
        &mut self,
        seq: u32,
        link: Key,
        is_early: impl Fn(&[u8]) -> bool,
    ) -> Vec<AskedEarly> {
        let mut taken = Vec::new();
        for (index, place) in (0..).zip(&mut self.places[self.passed..]) {
            let its = self.first.wrapping_add(index);
            let behind = its.wrapping_sub(seq) as i32 > 0;
            let at = place.at + place.reply_len;
            let request = &self.bytes[at..at + place.request_len];
            if behind && place.request_len > 0 && place.link == link && is_early(request) {
                taken.push(AskedEarly {
                    seq: its,
                    request: request.to_vec(),
                    freed: place.len(),
                });
                self.left += place.len();
                self.parked -= place.count as usize;
                *place = Place::EMPTY;
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(seq: u32, reply: &[u8]) -> Piece {
        Piece {
            seq,
            count: 1,
            len: reply.len(),
        }
    }

    #[test]
    fn replies_leave_in_order_and_their_bytes_are_reused() {
        let (mut parking, mut spare) = (Parking::default(), Spare::default());
        let mut head = u32::MAX - 1;
        // One stays behind all of them, so that the memory is never given back whole.
        let last = head.wrapping_add(600);
        parking.park(head, &[piece(last, b"last")], b"last", &mut spare);
        for round in 0..199_u32 {
            let texts: [String; 3] = [0, 1, 2].map(|at| format!("{round}.{at}").repeat(50));
            let [first, second, third] = texts.each_ref().map(|text| text.as_bytes());
            let mut out = Vec::new();
            assert_eq!(parking.unpark(head, &mut out), (head, 0), "it has not come");
            let [next, then] = [1, 2].map(|at| head.wrapping_add(at));
            parking.park(head, &[piece(then, third)], third, &mut spare);
            let both = [first, second].concat();
            let pieces = [piece(head, first), piece(next, second)];
            parking.park(head, &pieces, &both, &mut spare);
            head = head.wrapping_add(3);
            assert_eq!(parking.unpark(head.wrapping_sub(3), &mut out), (head, 0));
            assert_eq!(out, texts.concat().as_bytes());
            parking.tidy(&mut spare);
            assert_eq!((parking.places(), parking.held_bytes()), (1, 4));
            let held = parking.bytes.len();
            assert!(held <= LEFT_BYTES_MAX + 1_000, "{held}");
        }
        // Its bytes have moved with the others, and nothing of them is left.
        let mut out = Vec::new();
        assert_eq!(parking.unpark(last, &mut out), (last.wrapping_add(1), 0));
        assert_eq!(out, b"last");
        parking.tidy(&mut spare);
        assert_eq!(parking.bytes.capacity(), 0);
        assert!(parking.places.capacity() <= 2 * PLACES_KEPT);
        let next = last.wrapping_add(1);
        parking.park(next, &[piece(next, b"next")], b"next", &mut spare);
        assert_eq!(parking.held_bytes(), 4);
    }

    #[test]
    fn several_replies_stand_at_one_place() {
        let (mut parking, mut spare) = (Parking::default(), Spare::default());
        let three = Piece {
            count: 3,
            ..piece(6, b"678")
        };
        parking.park(5, &[piece(9, b"9"), piece(11, b"11")], b"911", &mut spare);
        parking.park(5, &[three], b"678", &mut spare);
        assert_eq!(parking.places(), 5);
        let mut out = Vec::new();
        assert_eq!(parking.unpark(5, &mut out), (5, 0));
        assert_eq!(parking.unpark(6, &mut out), (10, 0));
        assert_eq!(parking.unpark(11, &mut out), (12, 0));
        assert_eq!(out, b"678911");
        assert!(parking.is_empty());
    }

    #[test]
    fn what_is_asked_again_came_on_that_link_and_is_behind() {
        let (mut parking, mut spare) = (Parking::default(), Spare::default());
        let [this, other] = [1, 2].map(|index| Key {
            index,
            ..Key::NOBODY
        });
        for (seq, link) in [(2, this), (3, other), (4, this), (6, this)] {
            parking.park_read(1, seq, b"reply", (link, b"GET k"), &mut spare);
        }
        parking.park(1, &[piece(5, b"reply")], b"reply", &mut spare);
        let taken = parking.take_behind(2, this, |request| request == b"GET k");
        assert_eq!(
            taken.iter().map(|early| early.seq).collect::<Vec<_>>(),
            [4, 6]
        );
        assert!(
            taken
                .iter()
                .all(|early| early.request == b"GET k" && early.freed == 10)
        );
        assert_eq!(parking.held_bytes(), 2 * 10 + 5);
        let mut out = Vec::new();
        assert_eq!(parking.unpark(2, &mut out), (4, 10));
        assert_eq!(out, b"replyreply");
    }
}
