//! Sessions without a hold any more.

use crate::base::handle::SessionId;

/// Whether a session is in a list of the turn. It keeps the mark itself, so the list needs no
/// search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListMark(bool);

impl ListMark {
    #[inline]
    pub(crate) fn is_set(self) -> bool {
        self.0
    }

    /// Sets the mark. Returns whether it was not set: then the session goes into the list.
    #[inline]
    pub(crate) fn enter(&mut self) -> bool {
        !std::mem::replace(&mut self.0, true)
    }

    /// The session has left the list.
    #[inline]
    pub(crate) fn leave(&mut self) {
        self.0 = false;
    }
}

/// Sessions that continue at the end of the turn. The session that was released last is the first.
/// Sessions that a turn leaves over continue first in the next turn.
#[derive(Debug, Default)]
pub(crate) struct ResumeQueue {
    sessions: Vec<SessionId>,
    /// How many sessions at the front the turn before left over.
    left_over: usize,
}

impl ResumeQueue {
    /// Whether no session waits to continue.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// A session may continue.
    pub(crate) fn push(&mut self, id: SessionId) {
        self.sessions.push(id);
    }

    /// A session may continue, and may wait for that already. `mark`: its mark for this queue.
    pub(crate) fn push_once(&mut self, id: SessionId, mark: &mut ListMark) {
        if mark.enter() {
            self.push(id);
        }
    }

    /// Begins a series of [`ResumeQueue::pop`]: sessions that the turn before left over come first.
    pub(crate) fn begin(&mut self) {
        let left_over = std::mem::take(&mut self.left_over);
        if left_over > 0 {
            self.sessions.rotate_left(left_over);
        }
    }

    /// The next session that continues.
    pub(crate) fn pop(&mut self) -> Option<SessionId> {
        self.sessions.pop()
    }

    /// The remaining sessions continue in the next turn.
    pub(crate) fn leave_over(&mut self) {
        self.left_over = self.sessions.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::handle::session;

    fn next(resume: &mut ResumeQueue) -> Option<u32> {
        resume.pop().map(|id| id.index)
    }

    /// A session that waits to continue is in the queue once, until it leaves.
    #[test]
    fn session_waits_once() {
        let (mut resume, mut mark) = (ResumeQueue::default(), ListMark::default());
        for _ in 0..2 {
            resume.push_once(session(7), &mut mark);
            resume.push_once(session(7), &mut mark);
            assert!(mark.is_set());
            assert_eq!(next(&mut resume), Some(7));
            mark.leave();
            assert!(resume.is_empty());
        }
    }

    /// Sessions that were left over come before those that were released after them.
    #[test]
    fn session_left_over_continues_first() {
        let mut resume = ResumeQueue::default();
        for index in 0..3 {
            resume.push(session(index));
        }
        resume.begin();
        assert_eq!(next(&mut resume), Some(2));
        resume.leave_over();
        resume.push(session(3));
        resume.begin();
        assert_eq!(next(&mut resume), Some(1));
        resume.leave_over();
        resume.push(session(4));
        resume.begin();
        let order: Vec<_> = std::iter::from_fn(|| next(&mut resume)).collect();
        assert_eq!(order, [0, 3, 4]);
        assert!(resume.is_empty());
        resume.begin();
        assert_eq!(next(&mut resume), None);
    }
}
