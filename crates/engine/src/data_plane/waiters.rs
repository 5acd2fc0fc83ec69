//! Sessions that wait for a place among links that have a bound, first come, first served.
//!
//! ```text
//!   wait ──► queue ──► wake, one session for each free place ──► reserved until the next tick
//! ```
//!
//! A session that is woken asks for its place later in the turn. Until then the place is reserved,
//! so that a session that comes in between does not take it. A session that cannot go on, because
//! its client takes no output, is passed over and stays in front.

use std::collections::VecDeque;

use crate::base::handle::SessionId;
use crate::data_plane::session::{Holds, Session};

/// The sessions that wait at one bound.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    queue: VecDeque<SessionId>,
    /// Sessions with a reservation.
    woken: Vec<SessionId>,
}

/// The sessions that wait for a link, by the bound that has no room for it.
#[derive(Debug, Default)]
pub(crate) struct LinkWaiters {
    /// Sessions that wait for a shared link within `links-max`.
    pub(crate) shared: Waiters,
    /// Sessions that wait for a link of their own within `pinned-links-max`.
    pub(crate) pinned: Waiters,
    /// Sessions with a large request that waits for a link within `streaming-links-max`.
    pub(crate) streaming: Waiters,
    /// Sessions with a command that waits for an emergency link.
    pub(crate) emergency: VecDeque<SessionId>,
}

/// Whether a waiting session could continue, if it were woken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Readiness {
    Ready,
    /// It has another hold, too.
    Held,
    Gone,
}

impl Readiness {
    /// `waits`: the hold that ends when the session is woken.
    pub(crate) fn of(session: Option<&Session>, waits: Holds) -> Self {
        let Some(session) = session else {
            return Readiness::Gone;
        };
        match session.state.holds().without(waits).is_empty() {
            true => Readiness::Ready,
            false => Readiness::Held,
        }
    }
}

impl Waiters {
    /// Whether every session that waits was woken.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether sessions wait in the queue, and every free place is reserved for a woken session.
    pub(crate) fn lack_room(&self, free: usize) -> bool {
        !self.queue.is_empty() && free <= self.woken.len()
    }

    /// Whether a session may take `needed` of the free places. Sessions that came before it are
    /// first.
    pub(crate) fn admit(&self, session: SessionId, needed: usize, free: usize) -> bool {
        match self.woken.contains(&session) {
            true => needed <= free,
            false => self.queue.is_empty() && needed + self.woken.len() <= free,
        }
    }

    /// A session waits for a place. A session that was woken in vain goes to the front.
    pub(crate) fn wait(&mut self, session: SessionId) {
        match self.leave(session) {
            true => self.queue.push_front(session),
            false => self.queue.push_back(session),
        }
    }

    /// A session that was woken returns its reservation. Returns whether it had one.
    pub(crate) fn leave(&mut self, session: SessionId) -> bool {
        let before = self.woken.len();
        self.woken.retain(|woken| *woken != session);
        self.woken.len() < before
    }

    /// Wakes the sessions in front of the queue. Each of them has a free place reserved.
    pub(crate) fn wake(
        &mut self,
        free: usize,
        readiness: impl Fn(SessionId) -> Readiness,
    ) -> Vec<SessionId> {
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

    /// A tick: all reservations end. Removes sessions that have waited too long, and returns them.
    pub(crate) fn tick(&mut self, is_over: impl Fn(SessionId) -> bool) -> Vec<SessionId> {
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
    use crate::base::handle::session;

    fn waiting(count: u32) -> Waiters {
        let mut waiters = Waiters::default();
        (0..count).for_each(|index| waiters.wait(session(index)));
        waiters
    }

    const NEWCOMER: SessionId = SessionId {
        index: 99,
        generation: 1,
    };

    fn ready(_: SessionId) -> Readiness {
        Readiness::Ready
    }

    /// A newcomer gets no place that a session waits for.
    #[test]
    fn place_goes_to_the_session_that_waited_longest() {
        let mut waiters = waiting(2);
        assert!(!waiters.admit(NEWCOMER, 1, 1));
        assert!(waiters.lack_room(0) && !waiters.lack_room(1));
        assert_eq!(waiters.wake(1, ready), [session(0)]);
        assert_eq!(waiters.wake(1, ready), [], "the place is reserved");
        assert!(waiters.lack_room(1));
        assert!(!waiters.admit(NEWCOMER, 1, 2));
        assert!(waiters.admit(session(0), 1, 1));
        waiters.leave(session(0));
        assert_eq!(waiters.wake(1, ready), [session(1)]);
        assert!(!waiters.admit(NEWCOMER, 1, 1));
        assert!(waiters.admit(NEWCOMER, 1, 2));
        assert!(!waiters.admit(NEWCOMER, 2, 2), "it needs two");
    }

    /// The place was taken in another way meanwhile.
    #[test]
    fn session_woken_in_vain_goes_to_the_front() {
        let mut waiters = waiting(2);
        assert_eq!(waiters.wake(1, ready), [session(0)]);
        assert!(!waiters.admit(session(0), 1, 0));
        waiters.wait(session(0));
        assert_eq!(waiters.wake(2, ready), [session(0), session(1)]);
        assert!(waiters.is_empty());
    }

    /// A client that takes no output keeps no place from the others.
    #[test]
    fn session_that_cannot_go_on_is_passed_over() {
        let mut waiters = waiting(3);
        let readiness = |id| match id == session(0) {
            true => Readiness::Held,
            false => Readiness::Ready,
        };
        assert_eq!(waiters.wake(1, readiness), [session(1)]);
        assert_eq!(waiters.tick(|_| false), []);
        assert_eq!(waiters.wake(1, readiness), [session(2)]);
        assert_eq!(waiters.tick(|id| id == session(0)), [session(0)]);
        assert!(waiters.is_empty());
    }

    #[test]
    fn closed_session_takes_no_place() {
        let mut waiters = waiting(2);
        let readiness = |id| match id == session(0) {
            true => Readiness::Gone,
            false => Readiness::Ready,
        };
        assert_eq!(waiters.wake(1, readiness), [session(1)]);
        assert!(waiters.is_empty());
    }
}
