//! The times when the batches in flight left.

use std::collections::VecDeque;

use crate::base::time::Stamp;

/// The times when the batches in flight left.
///
/// ```text
///              oldest         later
/// in flight  [ e3 e4     |  e5 e6 e7  |  e8 e9 ]
///                           `---- behind -----´
/// ```
///
/// A batch that leaves a link without a request in flight costs one store, and that is nearly every
/// batch of a link with few clients. Replies cost nothing: the place of the front request follows
/// from the number of requests in flight.
#[derive(Debug, Default)]
pub(super) struct Departures {
    /// The time when the oldest batch left.
    oldest: Stamp,
    /// The batches behind it. A batch that is answered leaves when the next run begins, or when
    /// another batch does.
    later: VecDeque<LaterBatch>,
    /// Requests of the batches behind the oldest.
    behind: u32,
}

/// A batch in flight behind the oldest.
#[derive(Clone, Copy, Debug)]
struct LaterBatch {
    /// Number of its requests.
    count: u32,
    /// The time when it left.
    left: Stamp,
}

/// The departure of the front request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Departure {
    /// The time when its batch left.
    pub(crate) left: Stamp,
    /// Requests of that batch in flight. `u32::MAX`: no batch follows it.
    pub(crate) count: u32,
}

impl Departures {
    /// Notes that a batch leaves with no request in flight.
    #[inline]
    pub(super) fn leave_alone(&mut self, now: Stamp) {
        self.oldest = now;
        if !self.later.is_empty() {
            self.later.clear();
            self.behind = 0;
        }
    }

    /// Notes that `count` requests leave behind the `in_flight` others.
    pub(super) fn leave_behind(&mut self, in_flight: usize, count: u32, now: Stamp) {
        self.drop_answered(in_flight as u32);
        match self.later.back_mut() {
            None if self.oldest == now => return,
            Some(newest) if newest.left == now => newest.count += count,
            _ => self.later.push_back(LaterBatch { count, left: now }),
        }
        self.behind += count;
    }

    /// The departure of the front one of `in_flight` requests.
    #[inline]
    pub(super) fn front(&mut self, in_flight: usize) -> Departure {
        if self.later.is_empty() {
            return Departure {
                left: self.oldest,
                count: u32::MAX,
            };
        }
        self.front_of_several(in_flight as u32)
    }

    #[inline(never)]
    fn front_of_several(&mut self, in_flight: u32) -> Departure {
        debug_assert!(in_flight > 0, "a front request is in flight");
        self.drop_answered(in_flight);
        let counts = self.later.iter().map(|batch| batch.count);
        debug_assert_eq!(self.behind, counts.sum::<u32>());
        Departure {
            left: self.oldest,
            count: match self.later.is_empty() {
                true => u32::MAX,
                false => in_flight - self.behind,
            },
        }
    }

    /// Drops the batches of which no request is among the `in_flight` last ones.
    fn drop_answered(&mut self, in_flight: u32) {
        while self.behind >= in_flight
            && let Some(next) = self.later.pop_front()
        {
            self.behind -= next.count;
            self.oldest = next.left;
        }
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.later.capacity() * size_of::<LaterBatch>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Departures {
        fn leave(&mut self, in_flight: usize, count: u32, now: Stamp) {
            match in_flight {
                0 => self.leave_alone(now),
                _ => self.leave_behind(in_flight, count, now),
            }
        }
    }

    fn fronts(departures: &mut Departures, in_flight: impl Iterator<Item = usize>) -> Vec<u32> {
        in_flight
            .map(|in_flight| departures.front(in_flight).left.0)
            .collect()
    }

    /// Each request has the time when its own batch left.
    #[test]
    fn request_has_the_time_of_its_batch() {
        let mut departures = Departures::default();
        departures.leave(0, 2, Stamp(1));
        departures.leave(2, 3, Stamp(5));
        departures.leave(5, 1, Stamp(9));
        assert_eq!(fronts(&mut departures, (1..=6).rev()), [1, 1, 5, 5, 5, 9]);
        assert!(departures.later.is_empty() && departures.behind == 0);
    }

    /// A run may span batches: the departure says where the next batch begins.
    #[test]
    fn departure_ends_with_its_batch() {
        let mut departures = Departures::default();
        departures.leave(0, 2, Stamp(1));
        departures.leave(1, 3, Stamp(5));
        let at = |left, count| Departure {
            left: Stamp(left),
            count,
        };
        assert_eq!(departures.front(4), at(1, 1));
        assert_eq!(departures.front(3), at(5, u32::MAX));
    }

    /// Batches that leave in one turn are one.
    #[test]
    fn batches_of_one_turn_are_one() {
        let mut departures = Departures::default();
        departures.leave(0, 2, Stamp(1));
        departures.leave(2, 3, Stamp(1));
        assert!(departures.later.is_empty());
        departures.leave(5, 3, Stamp(2));
        departures.leave(8, 3, Stamp(2));
        assert_eq!(departures.later.len(), 1);
        assert_eq!(fronts(&mut departures, (1..=11).rev())[4..=5], [1, 2]);
    }

    /// A link that is never idle, and whose replies ask for no departure, keeps its batches in
    /// flight alone.
    #[test]
    fn busy_link_forgets_answered_batches() {
        let mut departures = Departures::default();
        departures.leave(0, 2, Stamp(1));
        for turn in 2..1_000 {
            departures.leave(2, 2, Stamp(turn));
        }
        assert_eq!((departures.later.len(), departures.behind), (1, 2));
        assert_eq!(fronts(&mut departures, (1..=4).rev()), [998, 998, 999, 999]);
    }

    /// Batches that were answered and never read are gone when the link is idle.
    #[test]
    fn idle_link_forgets_its_batches() {
        let mut departures = Departures::default();
        departures.leave(0, 2, Stamp(1));
        departures.leave(2, 3, Stamp(5));
        departures.leave(0, 1, Stamp(9));
        assert_eq!(fronts(&mut departures, 1..=1), [9]);
        assert!(departures.later.is_empty() && departures.behind == 0);
    }
}
