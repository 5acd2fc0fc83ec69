//! Sessions that have lost their last reason to wait.

use crate::slots::Key;

/// Sessions that continue at the end of the turn. The session that was released last is the first.
/// Sessions that a turn leaves over continue first in the next turn.
#[derive(Debug, Default)]
pub(crate) struct Resume {
    keys: Vec<Key>,
    /// How many of the first keys the turn before left over.
    left_over: usize,
}

impl Resume {
    /// Whether no session waits to continue.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// A session may continue.
    pub(crate) fn push(&mut self, key: Key) {
        self.keys.push(key);
    }

    /// Sessions continue now: to be called before the first [`Resume::pop`] of a series.
    pub(crate) fn begin(&mut self) {
        let left_over = std::mem::take(&mut self.left_over);
        self.keys.rotate_left(left_over);
    }

    /// The next session that continues.
    pub(crate) fn pop(&mut self) -> Option<Key> {
        self.keys.pop()
    }

    /// The others continue in the next turn.
    pub(crate) fn leave_over(&mut self) {
        self.left_over = self.keys.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(index: u32) -> Key {
        Key {
            index,
            generation: 0,
        }
    }

    fn next(resume: &mut Resume) -> Option<u32> {
        resume.pop().map(|key| key.index)
    }

    /// Sessions that were left over come before those that were released after them.
    #[test]
    fn session_left_over_continues_first() {
        let mut resume = Resume::default();
        for index in 0..3 {
            resume.push(key(index));
        }
        resume.begin();
        assert_eq!(next(&mut resume), Some(2));
        resume.leave_over();
        resume.push(key(3));
        resume.begin();
        assert_eq!(next(&mut resume), Some(1));
        resume.leave_over();
        resume.push(key(4));
        resume.begin();
        let order: Vec<_> = std::iter::from_fn(|| next(&mut resume)).collect();
        assert_eq!(order, [0, 3, 4]);
        assert!(resume.is_empty());
        resume.begin();
        assert_eq!(next(&mut resume), None);
    }
}
