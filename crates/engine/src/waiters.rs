//! Sessions that wait for a place among links that have a bound, first come, first served.
//!
//! ```text
//!   wait ──► queue ──► wake: as many as there are free places ──► its place, kept until the next tick
//! ```
//!
//! A session that is woken asks again in its own time. Until then its places are reserved, so that a session
//! that comes in between does not take them. A session that does not ask again by the next tick loses the
//! reservation: its client may not be reading.

use std::collections::VecDeque;

use crate::slots::Key;

/// The sessions that wait at one bound.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    queue: VecDeque<Waiter>,
    /// Sessions with a reservation.
    woken: Vec<Waiter>,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    session: Key,
    /// Places that its request needs.
    needed: usize,
}

impl Waiters {
    /// Whether no session waits that was not woken.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether a session may take that many of the free places. Sessions that came before it are first.
    pub(crate) fn admits(&self, session: Key, needed: usize, free: usize) -> bool {
        if self.woken.iter().any(|waiter| waiter.session == session) {
            return needed <= free;
        }
        self.queue.is_empty() && needed + self.reserved() <= free
    }

    /// A session waits for that many places. One that was woken in vain keeps its turn.
    pub(crate) fn wait(&mut self, session: Key, needed: usize) {
        let waiter = Waiter { session, needed };
        match self.leave(session) {
            true => self.queue.push_front(waiter),
            false => self.queue.push_back(waiter),
        }
    }

    /// A session that was woken needs its reservation no more. Whether it had one.
    pub(crate) fn leave(&mut self, session: Key) -> bool {
        let before = self.woken.len();
        self.woken.retain(|waiter| waiter.session != session);
        self.woken.len() < before
    }

    /// The sessions whose turn it is, as many as there is room for. `is_there`: whether a session has not gone.
    pub(crate) fn wake(&mut self, free: usize, is_there: impl Fn(Key) -> bool) -> Vec<Key> {
        let mut woken = Vec::new();
        while let Some(first) = self.queue.front().copied() {
            let is_there = is_there(first.session);
            if is_there && first.needed + self.reserved() > free {
                break;
            }
            self.queue.pop_front();
            if is_there {
                self.woken.push(first);
                woken.push(first.session);
            }
        }
        woken
    }

    /// The first session of that kind leaves the queue, whether or not there is room.
    pub(crate) fn take_first(&mut self, is_such: impl Fn(Key) -> bool) -> Option<Key> {
        let at = self
            .queue
            .iter()
            .position(|waiter| is_such(waiter.session))?;
        Some(self.queue.remove(at)?.session)
    }

    /// A tick: reservations end, and all sessions of that kind leave the queue.
    pub(crate) fn tick(&mut self, is_such: impl Fn(Key) -> bool) -> Vec<Key> {
        self.woken.clear();
        let mut left = Vec::new();
        self.queue.retain(|waiter| {
            let leaves = is_such(waiter.session);
            left.extend(leaves.then_some(waiter.session));
            !leaves
        });
        left
    }

    fn reserved(&self) -> usize {
        self.woken.iter().map(|waiter| waiter.needed).sum()
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

    fn waiting(needs: &[usize]) -> Waiters {
        let mut waiters = Waiters::default();
        for (index, needed) in needs.iter().enumerate() {
            waiters.wait(key(index as u32), *needed);
        }
        waiters
    }

    const NEWCOMER: u32 = 99;

    /// A newcomer gets nothing that a session waits for.
    #[test]
    fn place_goes_to_the_session_that_waited_longest() {
        let mut waiters = waiting(&[1, 1]);
        assert!(!waiters.admits(key(NEWCOMER), 1, 1));
        assert_eq!(waiters.wake(1, |_| true), [key(0)]);
        assert_eq!(waiters.wake(1, |_| true), [], "the place is reserved");
        assert!(!waiters.admits(key(NEWCOMER), 1, 2));
        assert!(waiters.admits(key(0), 1, 1));
        waiters.leave(key(0));
        assert_eq!(waiters.wake(1, |_| true), [key(1)]);
        assert!(!waiters.admits(key(NEWCOMER), 1, 1));
        assert!(waiters.admits(key(NEWCOMER), 1, 2));
    }

    #[test]
    fn session_that_needs_several_places_is_not_overtaken() {
        let mut waiters = waiting(&[3, 1]);
        for free in 0..3 {
            assert_eq!(waiters.wake(free, |_| true), []);
        }
        assert_eq!(waiters.wake(3, |_| true), [key(0)]);
        assert_eq!(waiters.wake(3, |_| true), []);
        // One of the places is taken in another way.
        assert!(!waiters.admits(key(0), 3, 2));
        waiters.wait(key(0), 3);
        assert_eq!(waiters.wake(3, |_| true), [key(0)]);
    }

    /// A client that does not read keeps a place from the others until the next tick.
    #[test]
    fn reservation_ends_with_the_tick() {
        let mut waiters = waiting(&[1, 1, 1]);
        assert_eq!(waiters.wake(1, |_| true), [key(0)]);
        assert_eq!(waiters.tick(|session| session == key(2)), [key(2)]);
        assert_eq!(waiters.wake(1, |_| true), [key(1)]);
        assert!(waiters.is_empty());
    }

    #[test]
    fn session_that_has_gone_takes_no_turn() {
        let mut waiters = waiting(&[5, 1]);
        assert_eq!(waiters.wake(1, |session| session != key(0)), [key(1)]);
        assert!(waiters.is_empty());
    }
}
