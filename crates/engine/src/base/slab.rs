//! A slab: a table with entries that keep their index. A generation in each handle tells the
//! handles of earlier entries apart.

use std::marker::PhantomData;

/// The handle of an entry. No later entry gets the same handle.
pub(crate) trait Handle: Copy {
    fn new(index: u32, generation: u32) -> Self;

    fn index(self) -> u32;

    fn generation(self) -> u32;
}

/// Declares a handle type. Each kind of entry has its own type, so that the compiler tells them
/// apart.
macro_rules! handle {
    ($(#[$doc:meta])* $vis:vis struct $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        $vis struct $name {
            pub(crate) index: u32,
            pub(crate) generation: u32,
        }

        impl $crate::base::slab::Handle for $name {
            #[inline]
            fn new(index: u32, generation: u32) -> Self {
                Self { index, generation }
            }

            #[inline]
            fn index(self) -> u32 {
                self.index
            }

            #[inline]
            fn generation(self) -> u32 {
                self.generation
            }
        }
    };
}
pub(crate) use handle;

struct Slot<T> {
    /// Odd while the slot is taken, so the handle of a free slot never matches.
    generation: u32,
    value: Option<T>,
}

impl<T> Slot<T> {
    fn id<Id: Handle>(&self, index: usize) -> Id {
        Id::new(index as u32, self.generation)
    }
}

/// A table of entries of type `T` with handles of type `Id`.
pub(crate) struct Slab<Id, T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    id: PhantomData<fn() -> Id>,
}

impl<Id: Handle, T> Slab<Id, T> {
    pub(crate) fn new() -> Self {
        Slab {
            slots: Vec::new(),
            free: Vec::new(),
            id: PhantomData,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, value: T) -> Id {
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
        slot.id(index as usize)
    }

    pub(crate) fn remove(&mut self, id: Id) -> Option<T> {
        let slot = self.slots.get_mut(id.index() as usize)?;
        if slot.generation != id.generation() {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index());
        Some(value)
    }

    #[inline]
    pub(crate) fn get(&self, id: Id) -> Option<&T> {
        let slot = self.slots.get(id.index() as usize)?;
        if slot.generation == id.generation() {
            slot.value.as_ref()
        } else {
            None
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.index() as usize)?;
        if slot.generation == id.generation() {
            slot.value.as_mut()
        } else {
            None
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id, &T)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(index, slot)| Some((slot.id(index), slot.value.as_ref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Id, &mut T)> {
        let slots = self.slots.iter_mut().enumerate();
        slots.filter_map(|(index, slot)| Some((slot.id(index), slot.value.as_mut()?)))
    }

    /// Number of slots, taken and free.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The entry in a slot.
    pub(crate) fn at(&self, index: usize) -> Option<(Id, &T)> {
        let slot = self.slots.get(index)?;
        Some((slot.id(index), slot.value.as_ref()?))
    }

    /// Memory of the table, without memory that entries point to, bytes.
    pub(crate) fn table_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot<T>>() + self.free.capacity() * size_of::<u32>()
    }

    pub(crate) fn ids(&self) -> Vec<Id> {
        self.iter().map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Slab;

    handle! {
        struct Id
    }

    #[test]
    fn handle_of_removed_entry_finds_nothing() {
        let mut slab: Slab<Id, i32> = Slab::new();
        let first = slab.insert(1);
        assert_eq!(slab.remove(first), Some(1));
        assert_eq!(slab.get(first), None);
        let second = slab.insert(2);
        assert_eq!(second.index, first.index);
        assert_eq!(slab.remove(first), None);
        assert_eq!((slab.get(first), slab.get(second)), (None, Some(&2)));
        assert_eq!(slab.len(), 1);
    }
}
