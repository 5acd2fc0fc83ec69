//! A side table: the state that a component keeps for the few sessions that concern it.
//!
//! ```text
//!   places    index of a session -> place     [ -  1  -  -  0  2 ]
//!   entries   place -> (session, state)       [ (4, ..) (1, ..) (5, ..) ]
//! ```
//!
//! A lookup is two loads, and entries lie side by side. Sessions without an entry cost four bytes
//! each.

use crate::base::handle::SessionId;

/// State of type `T` by session. A session has one entry at most.
pub(crate) struct SessionMap<T> {
    /// The place of each session's entry, by the session's index.
    places: Vec<u32>,
    entries: Vec<(SessionId, T)>,
}

/// The place of no entry.
const NOWHERE: u32 = u32::MAX;

impl<T> Default for SessionMap<T> {
    fn default() -> Self {
        SessionMap {
            places: Vec::new(),
            entries: Vec::new(),
        }
    }
}

impl<T> SessionMap<T> {
    #[inline]
    fn place(&self, id: SessionId) -> Option<usize> {
        let place = *self.places.get(id.index())? as usize;
        let (of, _) = self.entries.get(place)?;
        (*of == id).then_some(place)
    }

    #[inline]
    pub(crate) fn get(&self, id: SessionId) -> Option<&T> {
        let place = self.place(id)?;
        Some(&self.entries[place].1)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut T> {
        let place = self.place(id)?;
        Some(&mut self.entries[place].1)
    }

    /// The session's entry. If there is none, adds one.
    pub(crate) fn get_or_default(&mut self, id: SessionId) -> &mut T
    where
        T: Default,
    {
        let place = match self.place(id) {
            Some(place) => place,
            None => self.add(id, T::default()),
        };
        &mut self.entries[place].1
    }

    /// Sets the session's entry. Returns the one before.
    pub(crate) fn insert(&mut self, id: SessionId, value: T) -> Option<T> {
        if let Some(old) = self.get_mut(id) {
            return Some(std::mem::replace(old, value));
        }
        self.add(id, value);
        None
    }

    fn add(&mut self, id: SessionId, value: T) -> usize {
        if self.places.len() <= id.index() {
            self.places.resize(id.index() + 1, NOWHERE);
        }
        debug_assert_eq!(
            self.places[id.index()],
            NOWHERE,
            "the entries of a closed session are removed before its index is used again"
        );
        if let Some((stale, _)) = self.entries.get(self.places[id.index()] as usize) {
            self.remove(*stale);
        }
        let place = self.entries.len();
        self.places[id.index()] = place as u32;
        self.entries.push((id, value));
        place
    }

    pub(crate) fn remove(&mut self, id: SessionId) -> Option<T> {
        let place = self.place(id)?;
        self.places[id.index()] = NOWHERE;
        let (_, value) = self.entries.swap_remove(place);
        if let Some((moved, _)) = self.entries.get(place) {
            self.places[moved.index()] = place as u32;
        }
        Some(value)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The sessions that have an entry.
    pub(crate) fn ids(&self) -> Vec<SessionId> {
        self.entries.iter().map(|(id, _)| *id).collect()
    }

    /// Memory of the table, without memory that entries point to, bytes.
    pub(crate) fn table_bytes(&self) -> usize {
        self.places.capacity() * size_of::<u32>()
            + self.entries.capacity() * size_of::<(SessionId, T)>()
    }
}

#[cfg(test)]
mod tests {
    use super::SessionMap;
    use crate::base::handle::SessionId;

    fn session(index: u32, generation: u32) -> SessionId {
        SessionId { index, generation }
    }

    /// An entry is found by its own session alone, also after other entries have left.
    #[test]
    fn session_finds_its_own_entry() {
        let mut map = SessionMap::default();
        for index in [7, 0, 3] {
            assert_eq!(map.insert(session(index, 1), index), None);
        }
        assert_eq!(map.insert(session(0, 1), 10), Some(0));
        assert_eq!(map.remove(session(7, 1)), Some(7));
        assert_eq!(map.remove(session(7, 1)), None);
        assert_eq!(map.get(session(7, 1)), None);
        assert_eq!(map.get(session(1, 1)), None);
        assert_eq!(map.get(session(100, 1)), None);
        assert_eq!(map.get(session(0, 1)), Some(&10));
        assert_eq!(map.get_mut(session(3, 1)), Some(&mut 3));
        assert_eq!(map.ids(), [session(3, 1), session(0, 1)]);
        assert!(!map.is_empty());
    }

    /// A later session with the same index has nothing of the earlier one.
    #[test]
    fn later_session_has_no_entry_of_earlier_one() {
        let mut map: SessionMap<Vec<i32>> = SessionMap::default();
        map.get_or_default(session(2, 1)).push(1);
        assert_eq!(map.get(session(2, 3)), None);
        assert_eq!(map.remove(session(2, 3)), None);
        assert_eq!(map.remove(session(2, 1)), Some(vec![1]));
        map.get_or_default(session(2, 3)).push(2);
        assert_eq!(map.get(session(2, 3)), Some(&vec![2]));
        assert_eq!(map.get(session(2, 1)), None);
    }
}
