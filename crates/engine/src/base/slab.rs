//! A table whose entries keep their index, with a generation that tells an old name from a new one.

/// The name of an entry: never again the name of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Key {
    /// Nobody's name.
    pub(crate) const NOBODY: Key = Key {
        index: u32::MAX,
        generation: 0,
    };
}

struct Slot<T> {
    /// Odd while the slot is taken, so a key of a free slot can never match.
    generation: u32,
    value: Option<T>,
}

pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub(crate) fn new() -> Self {
        Slots {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                value: None,
            });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.value = Some(value);
        Key {
            index,
            generation: slot.generation,
        }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index);
        Some(value)
    }

    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        if slot.generation == key.generation {
            slot.value.as_ref()
        } else {
            None
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation {
            slot.value.as_mut()
        } else {
            None
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let key = Key {
                index: index as u32,
                generation: slot.generation,
            };
            slot.value.as_ref().map(|value| (key, value))
        })
    }

    /// How many places there are, taken or free.
    pub(crate) fn places(&self) -> usize {
        self.slots.len()
    }

    /// The entry of a place.
    pub(crate) fn at(&self, index: usize) -> Option<(Key, &T)> {
        let slot = self.slots.get(index)?;
        let key = Key {
            index: index as u32,
            generation: slot.generation,
        };
        slot.value.as_ref().map(|value| (key, value))
    }

    /// Bytes of the table.
    pub(crate) fn table_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot<T>>() + self.free.capacity() * size_of::<u32>()
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        self.iter().map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Slots;

    #[test]
    fn the_name_of_what_is_gone_names_nothing() {
        let mut slots = Slots::new();
        let first = slots.insert(1);
        assert_eq!(slots.remove(first), Some(1));
        assert_eq!(slots.get(first), None);
        let second = slots.insert(2);
        assert_eq!(second.index, first.index);
        assert_eq!(slots.remove(first), None);
        assert_eq!((slots.get(first), slots.get(second)), (None, Some(&2)));
        assert_eq!(slots.len(), 1);
    }
}
