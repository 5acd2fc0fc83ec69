//! Places for queries to all workers, and the sessions that wait for one, by the class of the
//! query.
//!
//! Each class has places of its own, so a flood of one class leaves the others their places. A
//! session has one query under way. If all places of a class are taken, sessions wait in the order
//! of asking, so a long pipeline takes one place in each round.

use std::collections::VecDeque;

use crate::base::handle::SessionId;
use crate::base::limits::{QUESTIONS_MAX, REPORTS_MAX};

/// The class of a query.
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
    /// The slow log and hot keys. Their answers may have megabytes.
    Report,
    /// All others. Each worker answers at once.
    Quick,
}

impl QueryClass {
    const ALL: [QueryClass; 6] = [
        QueryClass::List,
        QueryClass::Pause,
        QueryClass::Unblock,
        QueryClass::Setting,
        QueryClass::Report,
        QueryClass::Quick,
    ];
}

/// The places of all classes. Call [`QueryPlaces::begin`] and [`QueryPlaces::end`] in pairs. Call
/// [`QueryPlaces::next`] after each end, and let the sessions that it returns ask again.
#[derive(Debug, Default)]
pub(crate) struct QueryPlaces {
    places: [ClassPlaces; QueryClass::ALL.len()],
}

/// The places of one class.
#[derive(Debug, Default)]
struct ClassPlaces {
    /// Number of queries under way.
    open: usize,
    /// Sessions that wait, the next one first.
    waiters: VecDeque<SessionId>,
}

impl QueryPlaces {
    fn of(&mut self, class: QueryClass) -> &mut ClassPlaces {
        &mut self.places[class as usize]
    }

    /// Whether a session may ask, or has to wait. A session that has waited for its place does not
    /// wait behind sessions that came later. `places`: the places of the class now, if fewer than
    /// [`QUESTIONS_MAX`].
    pub(crate) fn may_ask(&mut self, class: QueryClass, has_waited: bool, places: usize) -> bool {
        let of = self.of(class);
        of.open < places.min(QUESTIONS_MAX) && (has_waited || of.waiters.is_empty())
    }

    /// A session waits. A session that has waited before keeps its place in front.
    pub(crate) fn wait(&mut self, class: QueryClass, session: SessionId, has_waited: bool) {
        match has_waited {
            true => self.of(class).waiters.push_front(session),
            false => self.of(class).waiters.push_back(session),
        }
    }

    /// A query is under way.
    pub(crate) fn begin(&mut self, class: QueryClass) {
        self.of(class).open += 1;
    }

    /// A query has its reply.
    pub(crate) fn end(&mut self, class: QueryClass) {
        self.of(class).open -= 1;
    }

    /// Takes off the sessions that may ask now. `lists_max`: places of the class of lists.
    pub(crate) fn next(&mut self, lists_max: usize) -> Vec<SessionId> {
        let mut next = Vec::new();
        for class in QueryClass::ALL {
            let of = self.of(class);
            let places = match class {
                QueryClass::List => lists_max.min(QUESTIONS_MAX),
                QueryClass::Report => REPORTS_MAX,
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
    use crate::base::handle::session;

    /// A full class lets sessions in as they came, and leaves the other classes alone.
    #[test]
    fn full_class_lets_sessions_in_as_they_came() {
        let mut places = QueryPlaces::default();
        for _ in 0..QUESTIONS_MAX {
            assert!(places.may_ask(QueryClass::Quick, false, usize::MAX));
            places.begin(QueryClass::Quick);
        }
        assert!(!places.may_ask(QueryClass::Quick, true, usize::MAX));
        assert!(places.may_ask(QueryClass::List, false, usize::MAX));
        for index in 0..3 {
            places.wait(QueryClass::Quick, session(index), false);
        }
        assert_eq!(places.next(9), []);
        places.end(QueryClass::Quick);
        // A session that comes now is behind the waiting sessions.
        assert!(!places.may_ask(QueryClass::Quick, false, usize::MAX));
        assert_eq!(places.next(9), [session(0)]);
        assert!(places.may_ask(QueryClass::Quick, true, usize::MAX));
        places.begin(QueryClass::Quick);
        // A woken session that finds its place taken again is the next one.
        places.wait(QueryClass::Quick, session(0), true);
        places.end(QueryClass::Quick);
        assert_eq!(places.next(9), [session(0)]);
        assert!(!places.is_calm());
    }

    /// A session at its deadline is taken off though its class is full.
    #[test]
    fn session_at_its_deadline_is_taken_off() {
        let mut places = QueryPlaces::default();
        places.begin(QueryClass::List);
        for index in 0..4 {
            places.wait(QueryClass::List, session(index), false);
        }
        assert!(!places.may_ask(QueryClass::List, true, 1));
        assert_eq!(places.next(1), []);
        assert_eq!(places.take_over(|id| id.index == 2), [session(2)]);
        assert_eq!(places.next(3), [session(0), session(1)]);
        assert_eq!(places.take_over(|_| true), [session(3)]);
        assert!(places.is_calm());
    }
}
