//! Questions to all workers, and sessions that wait to ask one, in lanes by the kind of question.
//!
//! Each lane has places of its own, so a flood of one kind leaves the others their places. A
//! session has one question under way. At a full lane it waits in the order of asking, so a long
//! pipeline takes one place in each round.

use std::collections::VecDeque;

use crate::limits::QUESTIONS_MAX;
use crate::slots::Key;

/// The kind of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// CLIENT LIST: its answers are large.
    List,
    /// CLIENT PAUSE: its answers come when requests before it are answered.
    Pause,
    /// CLIENT UNBLOCK: its answers may wait for a server.
    Unblock,
    /// CONFIG SET: its session has a bound, and never waits.
    Setting,
    /// All others: each worker answers at once.
    Quick,
}

impl Lane {
    const ALL: [Lane; 5] = [
        Lane::List,
        Lane::Pause,
        Lane::Unblock,
        Lane::Setting,
        Lane::Quick,
    ];
}

/// How full the lanes are. Call [`Lanes::begin`] and [`Lanes::end`] in pairs. Call [`Lanes::next`]
/// after each end, and let the session that it names ask again.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    places: [Places; Lane::ALL.len()],
}

#[derive(Debug, Default)]
struct Places {
    /// Questions under way.
    open: usize,
    /// Sessions that wait, the next one first.
    waiters: VecDeque<Key>,
}

impl Lanes {
    fn of(&mut self, lane: Lane) -> &mut Places {
        &mut self.places[lane as usize]
    }

    /// Whether a session may ask, or has to wait. A session whose turn has come does not wait
    /// behind sessions that came later. `places`: the places of the lane now, if fewer than
    /// [`QUESTIONS_MAX`].
    pub(crate) fn may_ask(&mut self, lane: Lane, has_waited: bool, places: usize) -> bool {
        let of = self.of(lane);
        of.open < places.min(QUESTIONS_MAX) && (has_waited || of.waiters.is_empty())
    }

    /// A session waits. If it had waited before, it goes on where it was: in front.
    pub(crate) fn wait(&mut self, lane: Lane, session: Key, has_waited: bool) {
        match has_waited {
            true => self.of(lane).waiters.push_front(session),
            false => self.of(lane).waiters.push_back(session),
        }
    }

    /// A question is under way.
    pub(crate) fn begin(&mut self, lane: Lane) {
        self.of(lane).open += 1;
    }

    /// A question has its reply.
    pub(crate) fn end(&mut self, lane: Lane) {
        self.of(lane).open -= 1;
    }

    /// Takes sessions off that may ask now. `lists_max`: places of the lane of lists.
    pub(crate) fn next(&mut self, lists_max: usize) -> Vec<Key> {
        let mut next = Vec::new();
        for lane in Lane::ALL {
            let of = self.of(lane);
            let places = match lane {
                Lane::List => lists_max.min(QUESTIONS_MAX),
                _ => QUESTIONS_MAX,
            };
            let room = places.saturating_sub(of.open).min(of.waiters.len());
            next.extend(of.waiters.drain(..room));
        }
        next
    }

    /// Removes and returns the waiting sessions for which `is_over` is true. It looks at all
    /// waiting sessions: call it in a tick, and not after each question.
    pub(crate) fn take_over(&mut self, is_over: impl Fn(Key) -> bool) -> Vec<Key> {
        let mut over = Vec::new();
        for of in &mut self.places {
            of.waiters.retain(|key| {
                let is_over = is_over(*key);
                if is_over {
                    over.push(*key);
                }
                !is_over
            });
        }
        over
    }

    /// Whether no session waits.
    pub(crate) fn is_calm(&self) -> bool {
        self.places.iter().all(|of| of.waiters.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(index: u32) -> Key {
        Key {
            index,
            generation: 1,
        }
    }

    /// A full lane lets sessions in as they came, and leaves the other lanes alone.
    #[test]
    fn full_lane_lets_sessions_in_as_they_came() {
        let mut lanes = Lanes::default();
        for _ in 0..QUESTIONS_MAX {
            assert!(lanes.may_ask(Lane::Quick, false, usize::MAX));
            lanes.begin(Lane::Quick);
        }
        assert!(!lanes.may_ask(Lane::Quick, true, usize::MAX));
        assert!(lanes.may_ask(Lane::List, false, usize::MAX));
        for index in 0..3 {
            lanes.wait(Lane::Quick, key(index), false);
        }
        assert_eq!(lanes.next(9), []);
        lanes.end(Lane::Quick);
        // A session that comes now is behind those that wait.
        assert!(!lanes.may_ask(Lane::Quick, false, usize::MAX));
        assert_eq!(lanes.next(9), [key(0)]);
        assert!(lanes.may_ask(Lane::Quick, true, usize::MAX));
        lanes.begin(Lane::Quick);
        // A session whose turn came and whose place is gone again is the next one.
        lanes.wait(Lane::Quick, key(0), true);
        lanes.end(Lane::Quick);
        assert_eq!(lanes.next(9), [key(0)]);
        assert!(!lanes.is_calm());
    }

    /// A session at its deadline is taken off though its lane is full.
    #[test]
    fn session_at_its_deadline_is_taken_off() {
        let mut lanes = Lanes::default();
        lanes.begin(Lane::List);
        for index in 0..4 {
            lanes.wait(Lane::List, key(index), false);
        }
        assert!(!lanes.may_ask(Lane::List, true, 1));
        assert_eq!(lanes.next(1), []);
        assert_eq!(lanes.take_over(|key| key.index == 2), [key(2)]);
        assert_eq!(lanes.next(3), [key(0), key(1)]);
        assert_eq!(lanes.take_over(|_| true), [key(3)]);
        assert!(lanes.is_calm());
    }
}
