//! Finds equal byte strings among many. Each string is read once, when it comes.

/// Strings by their numbers, and the earlier string that each is equal to.
#[derive(Default)]
pub(crate) struct Dedup {
    /// Leaders by their hash, as index plus one; 0: none. The length is a power of two.
    table: Vec<u32>,
    leaders: Vec<Leader>,
    followers: Vec<Follower>,
}

/// The first of some equal strings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leader {
    pub(crate) string: u32,
    pub(crate) block: u32,
    /// The index of its first follower, plus one; 0: none.
    first: u32,
    last: u32,
}

#[derive(Clone, Copy)]
struct Follower {
    string: u32,
    /// The index of the leader's next follower, plus one; 0: none.
    next: u32,
}

/// The slot of a string in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DedupSlot {
    slot: usize,
    /// The index of the leader that is equal to the string.
    pub(crate) leader: Option<usize>,
}

/// Slots of the table that a search looks at. A client that chooses its keys could give all strings
/// the same slot.
const PROBES_MAX: usize = 8;

impl Dedup {
    /// Empties the table and makes room for `count` strings.
    pub(crate) fn clear(&mut self, count: usize) {
        self.leaders.clear();
        self.followers.clear();
        self.table.clear();
        self.table.resize((2 * count).next_power_of_two(), 0);
    }

    /// Looks for a leader that is equal to this string. `same`: whether the string equals the one
    /// with this number.
    #[inline]
    pub(crate) fn find(&self, string: &[u8], same: impl Fn(u32) -> bool) -> DedupSlot {
        let mask = self.table.len() - 1;
        let hash = hash(string) as usize;
        for probe in 0..PROBES_MAX {
            let slot = (hash + probe) & mask;
            let leader = match self.table[slot] {
                0 => return DedupSlot { slot, leader: None },
                leader => leader as usize - 1,
            };
            if same(self.leaders[leader].string) {
                let leader = Some(leader);
                return DedupSlot { slot, leader };
            }
        }
        // The leader that loses this slot is not found any more. A string that is equal to it is
        // sent once more, and each client gets the right reply.
        let slot = hash & mask;
        DedupSlot { slot, leader: None }
    }

    /// Makes this string a leader. Later equal strings may follow it, if it has a slot.
    #[inline]
    pub(crate) fn lead(&mut self, slot: Option<DedupSlot>, string: u32, block: u32) {
        self.leaders.push(Leader {
            string,
            block,
            first: 0,
            last: 0,
        });
        if let Some(slot) = slot {
            self.table[slot.slot] = self.leaders.len() as u32;
        }
    }

    /// Makes this string a follower of a leader.
    pub(crate) fn follow(&mut self, leader: usize, string: u32) {
        self.followers.push(Follower { string, next: 0 });
        let own = self.followers.len() as u32;
        let leader = &mut self.leaders[leader];
        match std::mem::replace(&mut leader.last, own) {
            0 => leader.first = own,
            last => self.followers[last as usize - 1].next = own,
        }
    }

    /// All leaders, in their order.
    pub(crate) fn leaders(&self) -> &[Leader] {
        &self.leaders
    }

    /// The strings that follow a leader, in their order.
    #[inline]
    pub(crate) fn followers(&self, leader: &Leader) -> impl Iterator<Item = u32> {
        let at = |own: u32| Some(self.followers[own.checked_sub(1)? as usize]);
        let all = std::iter::successors(at(leader.first), move |follower| at(follower.next));
        all.map(|follower| follower.string)
    }
}

/// Mixes in each word by a multiplication, and folds its halves, as wyhash does it (Wang Yi).
pub(crate) fn hash(string: &[u8]) -> u64 {
    const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| {
        let product = u128::from(hash ^ word) * u128::from(SEED);
        product as u64 ^ (product >> 64) as u64
    };
    let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
    let (words, rest) = string.as_chunks::<8>();
    let length = string.len() as u64;
    match string.last_chunk::<8>() {
        // The last word may share bytes with the one before it.
        Some(last) => {
            let mixed = words
                .iter()
                .fold(length, |hash, bytes| mix(hash, word(bytes)));
            mix(mixed, word(last))
        }
        None => rest
            .iter()
            .fold(length, |hash, byte| mix(hash, u64::from(*byte))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Each string is found with the first equal one, unless too many others are in the way.
        #[test]
        fn equal_string_follows_the_first(strings in prop::collection::vec("[ab]{0,12}", 1..200)) {
            let mut dedup = Dedup::default();
            dedup.clear(strings.len());
            for (index, string) in strings.iter().enumerate() {
                let (number, bytes) = (index as u32, string.as_bytes());
                let slot = dedup.find(bytes, |other| strings[other as usize] == *string);
                match slot.leader {
                    Some(leader) => {
                        prop_assert_eq!(&strings[dedup.leaders()[leader].string as usize], string);
                        dedup.follow(leader, number);
                    }
                    None => dedup.lead(Some(slot), number, 7 * number),
                }
            }
            let mut seen = vec![false; strings.len()];
            for leader in dedup.leaders() {
                prop_assert_eq!(7 * leader.string, leader.block);
                let first = leader.string as usize;
                prop_assert!(!std::mem::replace(&mut seen[first], true));
                let mut before = first;
                for follower in dedup.followers(leader) {
                    let follower = follower as usize;
                    prop_assert!(follower > before && !seen[follower]);
                    prop_assert_eq!(&strings[first], &strings[follower]);
                    seen[follower] = true;
                    before = follower;
                }
            }
            prop_assert!(seen.iter().all(|seen| *seen));
        }
    }

    /// All equal keys among 400 are found.
    #[test]
    fn equal_keys_of_many_are_found() {
        let strings: Vec<String> = (0..400)
            .map(|index| format!("key:{:012}", index % 100))
            .collect();
        let mut dedup = Dedup::default();
        dedup.clear(strings.len());
        for (index, string) in strings.iter().enumerate() {
            let bytes = string.as_bytes();
            let slot = dedup.find(bytes, |other| strings[other as usize] == *string);
            match slot.leader {
                Some(leader) => dedup.follow(leader, index as u32),
                None => dedup.lead(Some(slot), index as u32, 0),
            }
        }
        assert_eq!(dedup.leaders().len(), 100);
    }
}
