//! Which of many byte strings are the same: found as they come, each looked at once.

/// Strings by their order, and who of them is the same as an earlier one.
#[derive(Default)]
pub(crate) struct Twins {
    /// Leaders by their hash, plus one; 0: none. Its length is a power of two.
    table: Vec<u32>,
    strings: Vec<Twin>,
}

#[derive(Clone, Copy)]
struct Twin {
    /// `None`: it follows another one.
    block: Option<u32>,
    /// Of a leader: the last of those that follow it, or itself.
    last: u32,
    /// The next one that follows the same leader, or 0.
    next: u32,
}

/// Where a string belongs in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    slot: usize,
    /// The last leader that is the same.
    pub(crate) leader: Option<usize>,
}

/// Places that are looked at: whoever chooses what is asked could make them all the same.
const PROBES_MAX: usize = 8;

impl Twins {
    /// Begins anew, for so many strings.
    pub(crate) fn clear(&mut self, count: usize) {
        self.strings.clear();
        self.table.clear();
        self.table.resize((2 * count).next_power_of_two(), 0);
    }

    /// Looks for a leader that is the same as the next string.
    pub(crate) fn find(&self, string: &[u8], same: impl Fn(usize) -> bool) -> Place {
        let mask = self.table.len() - 1;
        let hash = hash(string) as usize;
        for probe in 0..PROBES_MAX {
            let slot = (hash + probe) & mask;
            match self.table[slot] {
                0 => return Place { slot, leader: None },
                leader if same(leader as usize - 1) => {
                    let leader = Some(leader as usize - 1);
                    return Place { slot, leader };
                }
                _ => {}
            }
        }
        let slot = hash & mask;
        Place { slot, leader: None }
    }

    /// The next string leads: those that come and are the same may follow it, if it has a place.
    pub(crate) fn lead(&mut self, place: Option<Place>, block: u32) {
        let index = self.strings.len() as u32;
        if let Some(place) = place {
            self.table[place.slot] = index + 1;
        }
        self.push(Some(block));
    }

    /// The next string follows a leader.
    pub(crate) fn follow(&mut self, leader: usize) {
        let index = self.strings.len() as u32;
        self.push(None);
        let last = std::mem::replace(&mut self.strings[leader].last, index);
        self.strings[last as usize].next = index;
    }

    fn push(&mut self, block: Option<u32>) {
        let last = self.strings.len() as u32;
        self.strings.push(Twin {
            block,
            last,
            next: 0,
        });
    }

    pub(crate) fn block_of(&self, leader: usize) -> Option<u32> {
        self.strings[leader].block
    }

    /// The leaders in their order, with their blocks.
    pub(crate) fn leaders(&self) -> impl Iterator<Item = (usize, u32)> + Clone {
        let strings = self.strings.iter().enumerate();
        strings.filter_map(|(index, twin)| Some((index, twin.block?)))
    }

    /// Those that follow a leader, in their order.
    pub(crate) fn followers(&self, leader: usize) -> impl Iterator<Item = usize> {
        let next = |index: &usize| match self.strings[*index].next {
            0 => None,
            next => Some(next as usize),
        };
        std::iter::successors(Some(leader), next).skip(1)
    }
}

/// Words are mixed in by a multiplication whose halves are folded, as wyhash does it (Wang Yi).
fn hash(string: &[u8]) -> u64 {
    const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| {
        let product = u128::from(hash ^ word) * u128::from(SEED);
        product as u64 ^ (product >> 64) as u64
    };
    let (words, rest) = string.as_chunks::<8>();
    let mut hash = words.iter().fold(string.len() as u64, |hash, word| {
        mix(hash, u64::from_le_bytes(*word))
    });
    for byte in rest {
        hash = mix(hash, u64::from(*byte));
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Each string is found with the first one that is the same, unless too many were in the way.
        #[test]
        fn who_is_the_same_follows_the_first(strings in prop::collection::vec("[ab]{0,12}", 1..200)) {
            let mut twins = Twins::default();
            twins.clear(strings.len());
            for (index, string) in strings.iter().enumerate() {
                let place = twins.find(string.as_bytes(), |other| strings[other] == *string);
                match place.leader {
                    Some(leader) => {
                        prop_assert_eq!(&strings[leader], string);
                        twins.follow(leader);
                    }
                    None => twins.lead(Some(place), index as u32),
                }
            }
            let mut seen = vec![false; strings.len()];
            for (leader, block) in twins.leaders() {
                prop_assert_eq!(leader as u32, block);
                seen[leader] = true;
                let mut before = leader;
                for follower in twins.followers(leader) {
                    prop_assert!(follower > before && !seen[follower]);
                    prop_assert_eq!(&strings[leader], &strings[follower]);
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
        for string in &strings {
            let place = twins.find(string.as_bytes(), |other| strings[other] == *string);
            match place.leader {
                Some(leader) => twins.follow(leader),
                None => twins.lead(Some(place), 0),
            }
        }
        assert_eq!(twins.leaders().count(), 100);
    }
}
