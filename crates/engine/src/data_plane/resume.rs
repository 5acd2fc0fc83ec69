//! Sessions whose last hold has ended.

use crate::base::handle::SessionId;

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
    pub(crate) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// A session may continue.
    pub(crate) fn push(&mut self, id: SessionId) {
        self.sessions.push(id);
    }

    /// Begins a series of [`ResumeQueue::pop`]: sessions that the turn before left over come first.
    pub(crate) fn begin(&mut self) {
        let left_over = std::mem::take(&mut self.left_over);
        self.sessions.rotate_left(left_over);
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

    fn session(index: u32) -> SessionId {
        SessionId {
            index,
            generation: 0,
        }
    }

    fn next(resume: &mut ResumeQueue) -> Option<u32> {
        resume.pop().map(|id| id.index)
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
