//! Sessions that wait for a place among links that have a bound, first come, first served.
//!
//! ```text
//!   wait ──► queue ──► wake: as many as there are free places ──► its place, kept until the next tick
//! ```
//!
//! A session that is woken asks again in its own time. Until then its place is reserved, so that a
//! session that comes in between does not take it. A session that cannot go on, because its client
//! takes no output, keeps its turn and is passed over.

use std::collections::VecDeque;

use crate::session::{Flags, Session};
use crate::slots::Key;

/// The sessions that wait at one bound.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    queue: VecDeque<Key>,
    /// Sessions with a reservation.
    woken: Vec<Key>,
}

/// The next step of a waiting session, if it were woken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Readiness {
    Ready,
    /// It waits for something else, too.
    Held,
    Gone,
}

impl Readiness {
    /// `waits`: the hold that ends when the session is woken.
    pub(crate) fn of(session: Option<&Session>, waits: Flags) -> Self {
        let Some(session) = session else {
            return Readiness::Gone;
        };
        let mut flags = session.flags;
        flags.remove(waits);
        match flags.any(Flags::HOLD) {
            true => Readiness::Held,
            false => Readiness::Ready,
        }
    }
}

impl Waiters {
    /// Whether no session waits that was not woken.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether sessions wait, and all free places are reserved for others.
    pub(crate) fn lack_room(&self, free: usize) -> bool {
        !self.queue.is_empty() && free <= self.woken.len()
    }

    /// Whether a session may take so many of the free places. Sessions that came before it are first.
    pub(crate) fn admit(&self, session: Key, needed: usize, free: usize) -> bool {
        match self.woken.contains(&session) {
            true => needed <= free,
            false => self.queue.is_empty() && needed + self.woken.len() <= free,
        }
    }

    /// A session waits for a place. One that was woken in vain keeps its turn.
    pub(crate) fn wait(&mut self, session: Key) {
        match self.leave(session) {
            true => self.queue.push_front(session),
            false => self.queue.push_back(session),
        }
    }

    /// A session that was woken needs its reservation no more. Whether it had one.
    pub(crate) fn leave(&mut self, session: Key) -> bool {
        let before = self.woken.len();
        self.woken.retain(|woken| *woken != session);
        self.woken.len() < before
    }

    /// The sessions that are next: each of them has a free place reserved.
    pub(crate) fn wake(&mut self, free: usize, readiness: impl Fn(Key) -> Readiness) -> Vec<Key> {
        let mut ready = Vec::new();
        let mut at = 0;
        while let Some(session) = self.queue.get(at).copied()
            && free > self.woken.len()
        {
            let readiness = readiness(session);
            if readiness == Readiness::Held {
                at += 1;
                continue;
            }
            self.queue.remove(at);
            if readiness == Readiness::Ready {
                self.woken.push(session);
                ready.push(session);
            }
        }
        ready
    }

    /// A tick: reservations end, and sessions that have waited too long leave the queue.
    pub(crate) fn tick(&mut self, is_over: impl Fn(Key) -> bool) -> Vec<Key> {
        self.woken.clear();
        let mut over = Vec::new();
        self.queue.retain(|session| {
            let leaves = is_over(*session);
            over.extend(leaves.then_some(*session));
            !leaves
        });
        over
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

    fn waiting(count: u32) -> Waiters {
        let mut waiters = Waiters::default();
        (0..count).for_each(|index| waiters.wait(key(index)));
        waiters
    }

    const NEWCOMER: Key = Key {
        index: 99,
        generation: 1,
    };

    fn ready(_: Key) -> Readiness {
        Readiness::Ready
    }

    /// A newcomer gets nothing that a session waits for.
    #[test]
    fn place_goes_to_the_session_that_waited_longest() {
        let mut waiters = waiting(2);
        assert!(!waiters.admit(NEWCOMER, 1, 1));
        assert!(waiters.lack_room(0) && !waiters.lack_room(1));
        assert_eq!(waiters.wake(1, ready), [key(0)]);
        assert_eq!(waiters.wake(1, ready), [], "the place is reserved");
        assert!(waiters.lack_room(1));
        assert!(!waiters.admit(NEWCOMER, 1, 2));
        assert!(waiters.admit(key(0), 1, 1));
        waiters.leave(key(0));
        assert_eq!(waiters.wake(1, ready), [key(1)]);
        assert!(!waiters.admit(NEWCOMER, 1, 1));
        assert!(waiters.admit(NEWCOMER, 1, 2));
        assert!(!waiters.admit(NEWCOMER, 2, 2), "it needs two");
    }

    /// The place was taken in another way meanwhile.
    #[test]
    fn session_that_is_woken_in_vain_keeps_its_turn() {
        let mut waiters = waiting(2);
        assert_eq!(waiters.wake(1, ready), [key(0)]);
        assert!(!waiters.admit(key(0), 1, 0));
        waiters.wait(key(0));
        assert_eq!(waiters.wake(2, ready), [key(0), key(1)]);
        assert!(waiters.is_empty());
    }

    /// A client that takes no output keeps no place from the others.
    #[test]
    fn session_that_cannot_go_on_is_passed_over() {
        let mut waiters = waiting(3);
        let readiness = |session| match session == key(0) {
            true => Readiness::Held,
            false => Readiness::Ready,
        };
        assert_eq!(waiters.wake(1, readiness), [key(1)]);
        assert_eq!(waiters.tick(|_| false), []);
        assert_eq!(waiters.wake(1, readiness), [key(2)]);
        assert_eq!(waiters.tick(|session| session == key(0)), [key(0)]);
        assert!(waiters.is_empty());
    }

    #[test]
    fn session_that_has_gone_takes_no_turn() {
        let mut waiters = waiting(2);
        let readiness = |session| match session == key(0) {
            true => Readiness::Gone,
            false => Readiness::Ready,
        };
        assert_eq!(waiters.wake(1, readiness), [key(1)]);
        assert!(waiters.is_empty());
    }
}
