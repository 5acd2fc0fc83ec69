//! Finds equal byte strings among many. Each string is looked at once, when it comes.

/// Strings by their numbers, and the earlier string that each is equal to.
#[derive(Default)]
pub(crate) struct Twins {
    /// Leaders by their hash, plus one; 0: none. Its length is a power of two.
    table: Vec<u32>,
    leaders: Vec<Leader>,
    followers: Vec<Follower>,
}

/// The first of some equal strings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leader {
    pub(crate) string: u32,
    pub(crate) block: u32,
    /// Followers, plus one; 0: none.
    first: u32,
    last: u32,
}

#[derive(Clone, Copy)]
struct Follower {
    string: u32,
    /// The same leader's next one, plus one; 0: none.
    next: u32,
}

/// Where a string belongs in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    slot: usize,
    /// The last leader that is the same.
    pub(crate) leader: Option<usize>,
}

/// Places of the table that are looked at. A client that chooses its keys could give all strings
/// the same place.
const PROBES_MAX: usize = 8;

impl Twins {
    /// Begins anew, for so many strings that are looked for.
    pub(crate) fn clear(&mut self, count: usize) {
        self.leaders.clear();
        self.followers.clear();
        self.table.clear();
        self.table.resize((2 * count).next_power_of_two(), 0);
    }

    /// Looks for a leader that is the same as this string; `same` is asked by the number of the
    /// leader's.
    #[inline]
    pub(crate) fn find(&self, string: &[u8], same: impl Fn(u32) -> bool) -> Place {
        let mask = self.table.len() - 1;
        let hash = hash(string) as usize;
        for probe in 0..PROBES_MAX {
            let slot = (hash + probe) & mask;
            let leader = match self.table[slot] {
                0 => return Place { slot, leader: None },
                leader => leader as usize - 1,
            };
            if same(self.leaders[leader].string) {
                let leader = Some(leader);
                return Place { slot, leader };
            }
        }
        // The leader that loses this place is not found any more. A string that is equal to it is
        // sent once more, and each client gets the right reply.
        let slot = hash & mask;
        Place { slot, leader: None }
    }

    /// This string leads: those that come and are the same may follow it, if it has a place.
    #[inline]
    pub(crate) fn lead(&mut self, place: Option<Place>, string: u32, block: u32) {
        self.leaders.push(Leader {
            string,
            block,
            first: 0,
            last: 0,
        });
        if let Some(place) = place {
            self.table[place.slot] = self.leaders.len() as u32;
        }
    }

    /// This string follows a leader.
    pub(crate) fn follow(&mut self, leader: usize, string: u32) {
        self.followers.push(Follower { string, next: 0 });
        let own = self.followers.len() as u32;
        let leader = &mut self.leaders[leader];
        match std::mem::replace(&mut leader.last, own) {
            0 => leader.first = own,
            last => self.followers[last as usize - 1].next = own,
        }
    }

    /// In their order.
    pub(crate) fn leaders(&self) -> &[Leader] {
        &self.leaders
    }

    /// Those that follow a leader, in their order.
    #[inline]
    pub(crate) fn followers(&self, leader: &Leader) -> impl Iterator<Item = u32> {
        let at = |own: u32| Some(self.followers[own.checked_sub(1)? as usize]);
        let all = std::iter::successors(at(leader.first), move |follower| at(follower.next));
        all.map(|follower| follower.string)
    }
}

/// Words are mixed in by a multiplication whose halves are folded, as wyhash does it (Wang Yi).
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
        // The last word, which may have bytes of the one before it.
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
        /// Each string is found with the first one that is the same, unless too many were in the
        /// way.
        #[test]
        fn who_is_the_same_follows_the_first(strings in prop::collection::vec("[ab]{0,12}", 1..200)) {
            let mut twins = Twins::default();
            twins.clear(strings.len());
            for (index, string) in strings.iter().enumerate() {
                let (number, bytes) = (index as u32, string.as_bytes());
                let place = twins.find(bytes, |other| strings[other as usize] == *string);
                match place.leader {
                    Some(leader) => {
                        prop_assert_eq!(&strings[twins.leaders()[leader].string as usize], string);
                        twins.follow(leader, number);
                    }
                    None => twins.lead(Some(place), number, 7 * number),
                }
            }
            let mut seen = vec![false; strings.len()];
            for leader in twins.leaders() {
                prop_assert_eq!(7 * leader.string, leader.block);
                let first = leader.string as usize;
                prop_assert!(!std::mem::replace(&mut seen[first], true));
                let mut before = first;
                for follower in twins.followers(leader) {
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

    #[test]
    fn the_same_keys_of_many_are_found() {
        let strings: Vec<String> = (0..400)
            .map(|index| format!("key:{:012}", index % 100))
            .collect();
        let mut twins = Twins::default();
        twins.clear(strings.len());
        for (index, string) in strings.iter().enumerate() {
            let bytes = string.as_bytes();
            let place = twins.find(bytes, |other| strings[other as usize] == *string);
            match place.leader {
                Some(leader) => twins.follow(leader, index as u32),
                None => twins.lead(Some(place), index as u32, 0),
            }
        }
        assert_eq!(twins.leaders().len(), 100);
    }
}
