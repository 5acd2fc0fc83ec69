//! Queries to all workers, and sessions that wait to ask one, in lanes by the kind of query.
//!
//! Each lane has places of its own, so a flood of one kind leaves the others their places. A
//! session has one query under way. At a full lane sessions wait in the order of asking, so a long
//! pipeline takes one place in each round.

use std::collections::VecDeque;

use crate::base::handle::SessionId;
use crate::base::limits::QUESTIONS_MAX;

/// The kind of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueryClass {
    /// CLIENT LIST. Its answers are large.
    List,
    /// CLIENT PAUSE. It is answered when the requests before it are.
    Pause,
    /// CLIENT UNBLOCK. Its answer may wait for a server.
    Unblock,
    /// CONFIG SET. It never waits: each session may have a few under way.
    Setting,
    /// All others. Each worker answers at once.
    Quick,
}

impl QueryClass {
    const ALL: [QueryClass; 5] = [
        QueryClass::List,
        QueryClass::Pause,
        QueryClass::Unblock,
        QueryClass::Setting,
        QueryClass::Quick,
    ];
}

/// The use of the lanes. Call [`QueryLanes::begin`] and [`QueryLanes::end`] in pairs. Call
/// [`QueryLanes::next`] after each end, and let the sessions that it returns ask again.
#[derive(Debug, Default)]
pub(crate) struct QueryLanes {
    places: [LanePlaces; QueryClass::ALL.len()],
}

#[derive(Debug, Default)]
struct LanePlaces {
    /// Number of queries under way.
    open: usize,
    /// Sessions that wait, the next one first.
    waiters: VecDeque<SessionId>,
}

impl QueryLanes {
    fn of(&mut self, lane: QueryClass) -> &mut LanePlaces {
        &mut self.places[lane as usize]
    }

    /// Whether a session may ask, or has to wait. A session whose turn has come does not wait
    /// behind sessions that came later. `places`: the places of the lane now, if fewer than
    /// [`QUESTIONS_MAX`].
    pub(crate) fn may_ask(&mut self, lane: QueryClass, has_waited: bool, places: usize) -> bool {
        let of = self.of(lane);
        of.open < places.min(QUESTIONS_MAX) && (has_waited || of.waiters.is_empty())
    }

    /// A session waits. A session that has waited before keeps its place in front.
    pub(crate) fn wait(&mut self, lane: QueryClass, session: SessionId, has_waited: bool) {
        match has_waited {
            true => self.of(lane).waiters.push_front(session),
            false => self.of(lane).waiters.push_back(session),
        }
    }

    /// A query is under way.
    pub(crate) fn begin(&mut self, lane: QueryClass) {
        self.of(lane).open += 1;
    }

    /// A query has its reply.
    pub(crate) fn end(&mut self, lane: QueryClass) {
        self.of(lane).open -= 1;
    }

    /// Takes off the sessions that may ask now. `lists_max`: places of the lane of lists.
    pub(crate) fn next(&mut self, lists_max: usize) -> Vec<SessionId> {
        let mut next = Vec::new();
        for lane in QueryClass::ALL {
            let of = self.of(lane);
            let places = match lane {
                QueryClass::List => lists_max.min(QUESTIONS_MAX),
                _ => QUESTIONS_MAX,
            };
            let room = places.saturating_sub(of.open).min(of.waiters.len());
            next.extend(of.waiters.drain(..room));
        }
        next
    }

    /// Removes and returns the waiting sessions for which `is_over` is true. It looks at all
    /// waiting sessions: call it in a tick, and not after each question.
    pub(crate) fn take_over(&mut self, is_over: impl Fn(SessionId) -> bool) -> Vec<SessionId> {
        let mut over = Vec::new();
        for of in &mut self.places {
            of.waiters.retain(|id| {
                let is_over = is_over(*id);
                if is_over {
                    over.push(*id);
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

    fn session(index: u32) -> SessionId {
        SessionId {
            index,
            generation: 1,
        }
    }

    /// A full lane lets sessions in as they came, and leaves the other lanes alone.
    #[test]
    fn full_lane_lets_sessions_in_as_they_came() {
        let mut lanes = QueryLanes::default();
        for _ in 0..QUESTIONS_MAX {
            assert!(lanes.may_ask(QueryClass::Quick, false, usize::MAX));
            lanes.begin(QueryClass::Quick);
        }
        assert!(!lanes.may_ask(QueryClass::Quick, true, usize::MAX));
        assert!(lanes.may_ask(QueryClass::List, false, usize::MAX));
        for index in 0..3 {
            lanes.wait(QueryClass::Quick, session(index), false);
        }
        assert_eq!(lanes.next(9), []);
        lanes.end(QueryClass::Quick);
        // A session that comes now is behind those that wait.
        assert!(!lanes.may_ask(QueryClass::Quick, false, usize::MAX));
        assert_eq!(lanes.next(9), [session(0)]);
        assert!(lanes.may_ask(QueryClass::Quick, true, usize::MAX));
        lanes.begin(QueryClass::Quick);
        // A session whose turn came and whose place is gone again is the next one.
        lanes.wait(QueryClass::Quick, session(0), true);
        lanes.end(QueryClass::Quick);
        assert_eq!(lanes.next(9), [session(0)]);
        assert!(!lanes.is_calm());
    }

    /// A session at its deadline is taken off though its lane is full.
    #[test]
    fn session_at_its_deadline_is_taken_off() {
        let mut lanes = QueryLanes::default();
        lanes.begin(QueryClass::List);
        for index in 0..4 {
            lanes.wait(QueryClass::List, session(index), false);
        }
        assert!(!lanes.may_ask(QueryClass::List, true, 1));
        assert_eq!(lanes.next(1), []);
        assert_eq!(lanes.take_over(|id| id.index == 2), [session(2)]);
        assert_eq!(lanes.next(3), [session(0), session(1)]);
        assert_eq!(lanes.take_over(|_| true), [session(3)]);
        assert!(lanes.is_calm());
    }
}
