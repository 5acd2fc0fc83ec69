//! The most frequent items of a stream, by the Space-Saving algorithm of Metwally, Agrawal and
//! El Abbadi (2005), with a fixed number of counters.
//!
//! A new item takes the counter with the least count when all are taken, and goes on counting from
//! there. So a count is never too small, and it is too large by [`CountedItem::error`] at most. Of
//! `n` items, each one that came more than `n / counters` times has a counter.

use std::hash::{DefaultHasher, Hash, Hasher};

/// An item and its count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CountedItem<T> {
    pub(crate) item: T,
    /// How often it came, at most.
    pub(crate) count: u64,
    /// By how much the count may be too large.
    pub(crate) error: u64,
}

/// The most frequent items.
#[derive(Debug)]
pub(crate) struct SpaceSaving<T> {
    /// Number of counters.
    counters_max: usize,
    /// The hash of each item, at the same index: one cache line has eight of them.
    hashes: Vec<u64>,
    counters: Vec<CountedItem<T>>,
}

impl<T> SpaceSaving<T> {
    pub(crate) fn new(counters_max: usize) -> SpaceSaving<T> {
        SpaceSaving {
            counters_max,
            hashes: Vec::new(),
            counters: Vec::new(),
        }
    }

    /// Counts an item. `make` makes it, if it has no counter.
    pub(crate) fn note<Q: Hash + ?Sized>(
        &mut self,
        item: &Q,
        is_same: impl Fn(&T) -> bool,
        make: impl FnOnce() -> T,
    ) {
        let mut hasher = DefaultHasher::new();
        item.hash(&mut hasher);
        let hash = hasher.finish();
        let mut same = self.hashes.iter().zip(&mut self.counters);
        if let Some((_, known)) = same.find(|(other, one)| **other == hash && is_same(&one.item)) {
            known.count += 1;
            return;
        }
        let floor = self.floor();
        let new = CountedItem {
            item: make(),
            count: floor + 1,
            error: floor,
        };
        if self.counters.len() < self.counters_max {
            self.hashes.push(hash);
            self.counters.push(new);
            return;
        }
        let counts = self.counters.iter().enumerate();
        if let Some((least, _)) = counts.min_by_key(|(_, one)| one.count) {
            self.hashes[least] = hash;
            self.counters[least] = new;
        }
    }

    /// How often an item without a counter may have come, at most.
    pub(crate) fn floor(&self) -> u64 {
        if self.counters.len() < self.counters_max {
            return 0;
        }
        let counts = self.counters.iter().map(|one| one.count);
        counts.min().unwrap_or_default()
    }

    /// The items that have a counter, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &CountedItem<T>> {
        self.counters.iter()
    }

    /// Bytes of memory, without the memory that the items point to.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.hashes.capacity() * size_of::<u64>()
            + self.counters.capacity() * size_of::<CountedItem<T>>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn of(items: &[u8], counters_max: usize) -> SpaceSaving<u8> {
        let mut sketch = SpaceSaving::new(counters_max);
        for item in items {
            sketch.note(item, |other| other == item, || *item);
        }
        sketch
    }

    proptest! {
        /// Counts are never too small, nor too large by more than their errors. Frequent items are
        /// not missing.
        #[test]
        fn counts_are_within_their_errors(
            items in prop::collection::vec(prop_oneof![3 => 0u8..4, 1 => 0u8..=255], 0..600),
            counters_max in 1usize..20,
        ) {
            let sketch = of(&items, counters_max);
            let mut counts: HashMap<u8, u64> = HashMap::new();
            items.iter().for_each(|item| *counts.entry(*item).or_default() += 1);
            prop_assert!(sketch.iter().count() <= counters_max);
            prop_assert!(sketch.floor() <= items.len() as u64 / counters_max as u64);
            for one in sketch.iter() {
                let real = counts.remove(&one.item).unwrap_or_default();
                prop_assert!(real <= one.count && one.count <= real + one.error);
            }
            // The rest has no counter.
            prop_assert!(counts.values().all(|count| *count <= sketch.floor()));
        }
    }
}
