//! Replies that came before their turn: in one buffer, which an idle session does not have.

use std::collections::VecDeque;

use crate::buffer::Spare;
use crate::slots::Key;

/// What a session is owed, and is not to get yet.
#[derive(Default)]
pub(crate) struct Parking {
    /// In the order of their places.
    replies: VecDeque<Parked>,
    bytes: Vec<u8>,
    /// Bytes of those that have left.
    left: usize,
}

/// A reply, or several neighbouring ones; behind it the request, if that may have to be asked again.
#[derive(Clone, Copy)]
struct Parked {
    seq: u32,
    count: u32,
    at: usize,
    reply_len: usize,
    request_len: usize,
    /// On which it came.
    link: Key,
}

impl Parked {
    fn len(&self) -> usize {
        self.reply_len + self.request_len
    }
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

impl Parking {
    pub(crate) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.len() - self.left
    }

    /// How many requests they are the replies to.
    pub(crate) fn places(&self) -> usize {
        let counts = self.replies.iter().map(|parked| parked.count as usize);
        counts.sum()
    }

    /// Keeps a reply whose place is behind `head`.
    pub(crate) fn park(
        &mut self,
        head: u32,
        (seq, count): (u32, u32),
        reply: &[u8],
        again: Option<(Key, &[u8])>,
        spare: &mut Spare,
    ) {
        if self.bytes.capacity() == 0 {
            self.bytes = spare.take();
        }
        let (link, request) = again.unwrap_or((Key::NOBODY, b""));
        let parked = Parked {
            seq,
            count,
            at: self.bytes.len(),
            reply_len: reply.len(),
            request_len: request.len(),
            link,
        };
        self.bytes.extend_from_slice(reply);
        self.bytes.extend_from_slice(request);
        let before = |other: &Parked| other.seq.wrapping_sub(head) < seq.wrapping_sub(head);
        // Mostly it is the last one.
        match self.replies.back() {
            Some(last) if !before(last) => {
                let place = self.replies.partition_point(before);
                self.replies.insert(place, parked);
            }
            _ => self.replies.push_back(parked),
        }
    }

    /// Appends the reply whose turn it is at `head`, if it is here; returns the place behind it, and how long the request is
    /// that leaves with it.
    pub(crate) fn unpark(&mut self, head: u32, out: &mut Vec<u8>) -> Option<(u32, usize)> {
        let parked = *self.replies.front().filter(|parked| parked.seq == head)?;
        self.replies.pop_front();
        out.extend_from_slice(&self.bytes[parked.at..parked.at + parked.reply_len]);
        self.left += parked.len();
        Some((head.wrapping_add(parked.count), parked.request_len))
    }

    /// Gives memory back of which nothing is needed.
    pub(crate) fn tidy(&mut self, spare: &mut Spare) {
        if self.replies.is_empty() {
            spare.give(std::mem::take(&mut self.bytes));
            self.left = 0;
        } else if self.left > LEFT_BYTES_MAX && self.left > self.bytes.len() / 2 {
            let mut bytes = spare.take();
            for parked in &mut self.replies {
                let at = bytes.len();
                bytes.extend_from_slice(&self.bytes[parked.at..parked.at + parked.len()]);
                parked.at = at;
            }
            spare.give(std::mem::replace(&mut self.bytes, bytes));
            self.left = 0;
        }
    }

    /// Those behind `seq` that came on this link and may have to be asked again leave.
    pub(crate) fn take_behind(&mut self, seq: u32, link: Key) -> Vec<AskedEarly> {
        let mut taken = Vec::new();
        self.replies.retain(|parked| {
            let behind = parked.seq.wrapping_sub(seq) as i32 > 0;
            let stays = !behind || parked.request_len == 0 || parked.link != link;
            if !stays {
                let at = parked.at + parked.reply_len;
                taken.push(AskedEarly {
                    seq: parked.seq,
                    request: self.bytes[at..at + parked.request_len].to_vec(),
                    freed: parked.len(),
                });
                self.left += parked.len();
            }
            stays
        });
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_leave_in_order_and_their_bytes_are_reused() {
        let (mut parking, mut spare) = (Parking::default(), Spare::default());
        let head = u32::MAX - 1;
        let mut expected = Vec::new();
        for round in 0..200_u32 {
            let from = head.wrapping_add(2 * round);
            let texts: [String; 2] = [0, 1].map(|at| format!("{round}.{at}").repeat(50));
            for at in [1, 0] {
                let place = (from.wrapping_add(at), 1);
                parking.park(from, place, texts[at as usize].as_bytes(), None, &mut spare);
            }
            let mut out = Vec::new();
            let next = parking.unpark(from, &mut out).map(|(next, _)| next);
            assert_eq!(next, Some(from.wrapping_add(1)));
            assert_eq!(
                parking.unpark(from, &mut out),
                None,
                "it is not its turn any more"
            );
            assert!(parking.unpark(from.wrapping_add(1), &mut out).is_some());
            assert_eq!(out, texts.concat().as_bytes());
            // One stays for ever, so that the memory is never given back whole.
            if round == 0 {
                parking.park(from, (from.wrapping_sub(1), 1), b"last", None, &mut spare);
                expected.extend_from_slice(b"last");
            }
            parking.tidy(&mut spare);
            assert_eq!(parking.held_bytes(), expected.len());
            assert!(
                parking.bytes.len() <= LEFT_BYTES_MAX + 1_000,
                "{}",
                parking.bytes.len()
            );
        }
        // Its bytes have moved with the others, and nothing of them is left.
        let mut out = Vec::new();
        let last = head.wrapping_sub(1);
        assert_eq!(parking.unpark(last, &mut out), Some((head, 0)));
        assert_eq!(out, expected);
        parking.tidy(&mut spare);
        parking.park(head, (head, 1), b"next", None, &mut spare);
        assert_eq!(parking.held_bytes(), 4);
    }

    #[test]
    fn what_is_asked_again_came_on_that_link_and_is_behind() {
        let (mut parking, mut spare) = (Parking::default(), Spare::default());
        let [this, other] = [1, 2].map(|index| Key {
            index,
            ..Key::NOBODY
        });
        for (seq, link) in [
            (2, this),
            (3, other),
            (4, this),
            (5, Key::NOBODY),
            (6, this),
        ] {
            let again = (link != Key::NOBODY).then_some((link, b"GET k".as_slice()));
            parking.park(1, (seq, 1), b"reply", again, &mut spare);
        }
        let taken = parking.take_behind(2, this);
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
        assert_eq!(parking.unpark(2, &mut out), Some((3, 5)));
        assert_eq!(out, b"reply");
    }
}
