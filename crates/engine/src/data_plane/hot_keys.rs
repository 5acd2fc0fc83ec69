//! The keys that are asked for most, from a sample of the requests that leave.
//!
//! A batch that leaves counts down by its requests, which is one comparison. Where the countdown
//! ends within the batch, the request there is scanned, and its keys are counted. The next gap is
//! random, with the configured mean, so a client with a fixed order of requests is not
//! always sampled at the same one.

use std::collections::{BTreeMap, HashMap};

use respool_protocol::commands::{self, KeyFlags};
use respool_protocol::request::{Found, RequestScanner};

use crate::base::limits::{HOT_KEY_BYTES_MAX, HOT_KEYS_MAX, HOT_KEYS_PER_REQUEST_MAX};
use crate::base::space_saving::{CountedItem, SpaceSaving};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::ledger::Ledger;

/// A key in a database.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HotKey {
    pub(crate) db: u32,
    /// The first bytes of the key, [`HOT_KEY_BYTES_MAX`] at most.
    pub(crate) key: Box<[u8]>,
}

/// The sampled keys of a worker.
pub(crate) struct HotKeys {
    /// One request in so many is sampled. 0: none.
    sample: u32,
    /// Requests before the next sampled one. `u64::MAX`: none is sampled.
    skip: u64,
    /// The state of the random gaps.
    random: u64,
    /// When the rate was set.
    since: Time,
    /// The keys of each pool, so that one pool takes no counter from another.
    pools: BTreeMap<u16, PoolKeys>,
}

/// The sampled keys of a pool.
struct PoolKeys {
    /// When the counts began.
    since: Time,
    sketch: SpaceSaving<HotKey>,
}

impl PoolKeys {
    fn new(since: Time) -> PoolKeys {
        PoolKeys {
            since,
            sketch: SpaceSaving::new(HOT_KEYS_MAX),
        }
    }
}

impl HotKeys {
    /// `seed`: for the random gaps.
    pub(crate) fn new(seed: u64) -> HotKeys {
        HotKeys {
            sample: 0,
            skip: u64::MAX,
            random: seed | 1,
            since: Time(0),
            pools: BTreeMap::new(),
        }
    }

    /// Takes the configured rate. Counts of another rate, and of pools that have ended, are
    /// forgotten.
    pub(crate) fn apply(&mut self, sample: u32, has_ended: impl Fn(u16) -> bool, now: Time) {
        self.pools.retain(|pool, _| !has_ended(*pool));
        if self.sample != sample {
            self.sample = sample;
            self.pools.clear();
            self.since = now;
            self.skip = match sample {
                0 => u64::MAX,
                _ => self.gap() - 1,
            };
        }
    }

    /// The distance from a sampled request to the next one: from 1 to twice the mean less 1.
    fn gap(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        1 + self.random % (2 * u64::from(self.sample) - 1)
    }

    /// Counts the requests of a batch that leaves. Returns whether one of them is to be sampled:
    /// then [`HotKeys::take_batch`] has to follow.
    #[inline]
    pub(crate) fn reaches(&mut self, requests: u64) -> bool {
        if requests <= self.skip {
            self.skip -= if self.skip == u64::MAX { 0 } else { requests };
            return false;
        }
        true
    }

    /// Samples the open batch of a ledger. Its requests are still as their clients sent them. A
    /// request that leaves again counted when it left first.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_batch(&mut self, ledger: &Ledger, (pool, db): (u16, u32)) {
        let (mut rest, mut scanner) = (ledger.open_batch_bytes(), RequestScanner::default());
        for entry in ledger.open_entries() {
            let Some((bytes, behind)) = rest.split_at_checked(entry.len as usize) else {
                return;
            };
            rest = behind;
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            self.skip = self.gap() - 1;
            if entry.has_left_before() {
                continue;
            }
            scanner.reset();
            if let Ok(Found::Request { .. }) = scanner.scan(bytes, true) {
                let spans = scanner.spans();
                self.take_request(spans.len(), |at| spans[at].of(bytes), (pool, db));
            }
        }
    }

    /// Counts the keys of a request.
    fn take_request<'a>(
        &mut self,
        argc: usize,
        arg: impl Fn(usize) -> &'a [u8],
        (pool, db): (u16, u32),
    ) {
        let Some(id) = commands::resolve(argc, &arg) else {
            return;
        };
        let (mut keys, mut count) = ([0; HOT_KEYS_PER_REQUEST_MAX], 0);
        let found = id.get().keys(argc, &arg, |at, flags| {
            if !flags.has(KeyFlags::NOT_KEY) && count < keys.len() {
                keys[count] = at;
                count += 1;
            }
        });
        if found.is_err() {
            return;
        }
        let begun = || PoolKeys::new(self.since);
        let pool = self.pools.entry(pool).or_insert_with(begun);
        for at in &keys[..count] {
            let key = arg(*at);
            let key = &key[..key.len().min(HOT_KEY_BYTES_MAX)];
            pool.sketch.note(
                &(db, key),
                |known| (known.db, &*known.key) == (db, key),
                || HotKey {
                    db,
                    key: key.into(),
                },
            );
        }
    }

    /// The counts of a pool and of its predecessors.
    pub(crate) fn reports(
        &self,
        is_of_pool: impl Fn(u16) -> bool,
        now: Time,
    ) -> Vec<HotKeysReport> {
        let pools = self.pools.iter().filter(|(pool, _)| is_of_pool(**pool));
        let reports = pools.map(|(_, keys)| HotKeysReport {
            sample: self.sample,
            us: now.since_us(keys.since),
            floor: keys.sketch.floor(),
            keys: keys.sketch.iter().cloned().collect(),
        });
        reports.collect()
    }

    /// Forgets the keys of a pool and of its predecessors.
    pub(crate) fn clear(&mut self, pool: u16, is_of_pool: impl Fn(u16) -> bool, now: Time) {
        self.pools.retain(|other, _| !is_of_pool(*other));
        self.pools.insert(pool, PoolKeys::new(now));
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        let of_pool = |keys: &PoolKeys| {
            let items = keys.sketch.iter().map(|one| one.item.key.len());
            size_of::<PoolKeys>() + keys.sketch.memory_bytes() + items.sum::<usize>()
        };
        self.pools.values().map(of_pool).sum()
    }
}

impl DataPlane {
    /// Takes the settings of the sample of keys.
    pub(crate) fn apply_hot_keys(&mut self) {
        let (sample, now) = (self.settings.hot_keys_sample, self.now);
        let ending = &self.ending;
        let has_ended = |pool| {
            ending
                .iter()
                .any(|one| one.pool == pool && one.left_at.is_some())
        };
        self.hot_keys.apply(sample, has_ended, now);
    }

    /// Forgets the hot keys of a pool.
    pub(crate) fn clear_hot_keys(&mut self, pool: u16) {
        let now = self.now;
        let pools: Vec<u16> = (0..self.pools.len() as u16)
            .filter(|other| self.known_pool(*other) == pool)
            .collect();
        self.hot_keys
            .clear(pool, |other| pools.contains(&other), now);
    }
}

/// The counts of a worker, for one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotKeysReport {
    /// One request in so many was sampled.
    sample: u32,
    /// The time in which they were counted, microseconds.
    us: u64,
    /// How often a key without a counter may have been sampled, at most.
    floor: u64,
    keys: Vec<CountedItem<HotKey>>,
}

/// A key with its figures over all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyFigures {
    /// Requests for it, at most, as far as the sample is like the rest.
    pub(crate) count: u64,
    /// By how much the count may be too large.
    pub(crate) error: u64,
    /// Requests for it in a second.
    pub(crate) per_second: u64,
}

/// The sum of all workers' counts: the key asked for most comes first. A key without a counter in a
/// worker may have been sampled there up to the floor.
pub(crate) fn merged(reports: &[HotKeysReport]) -> Vec<(HotKey, KeyFigures)> {
    let mut all: HashMap<&HotKey, KeyFigures> = HashMap::new();
    let keys = reports.iter().flat_map(|report| &report.keys);
    keys.for_each(|one| _ = all.entry(&one.item).or_default());
    for report in reports {
        let own: HashMap<&HotKey, &CountedItem<HotKey>> =
            report.keys.iter().map(|one| (&one.item, one)).collect();
        for (key, figures) in &mut all {
            let own = own.get(key).map(|one| (one.count, one.error));
            let (count, error) = own.unwrap_or((report.floor, report.floor));
            let sample = u64::from(report.sample);
            figures.count += count * sample;
            figures.error += error * sample;
            // The middle of the possible range, as Valkey takes it.
            let twice = u128::from(2 * count - error) * u128::from(sample) * 1_000_000;
            let twice_us = 2 * u128::from(report.us.max(1));
            figures.per_second += ((twice + twice_us / 2) / twice_us) as u64;
        }
    }
    let mut all: Vec<_> = all
        .into_iter()
        .map(|(key, figures)| (key.clone(), figures))
        .collect();
    all.sort_by(|(key, one), (other_key, other)| {
        let least_first = (one.per_second, one.count).cmp(&(other.per_second, other.count));
        least_first
            .reverse()
            .then((key.db, &key.key).cmp(&(other_key.db, &other_key.key)))
    });
    all
}

#[cfg(test)]
mod tests {
    use respool_protocol::encode;

    use super::*;
    use crate::base::handle::SessionId;
    use crate::base::time::Stamp;
    use crate::data_plane::ledger::{Class, Entry};

    /// Lets a batch of requests leave.
    fn leave(keys: &mut HotKeys, lines: &[String]) {
        let mut ledger = Ledger::default();
        for line in lines {
            let mut bytes = Vec::new();
            encode::request(&mut bytes, &line.split(' ').collect::<Vec<_>>());
            let entry = Entry {
                len: bytes.len() as u32,
                class: Class::Read,
                ..Entry::of(SessionId::NONE, 0, Stamp(0))
            };
            ledger.push(entry, &bytes);
        }
        if keys.reaches(lines.len() as u64) {
            keys.take_batch(&ledger, (0, 0));
        }
    }

    fn sampling(sample: u32) -> HotKeys {
        let mut keys = HotKeys::new(7);
        keys.apply(sample, |_| false, Time(0));
        keys
    }

    /// The figures of each key after a second, the hottest first.
    fn shown(all: &[&HotKeys]) -> Vec<(String, KeyFigures)> {
        let now = Time(1_000_000);
        let reports: Vec<_> = all
            .iter()
            .flat_map(|keys| keys.reports(|pool| pool == 0, now))
            .collect();
        let text = |key: HotKey| String::from_utf8_lossy(&key.key).into_owned();
        let all = merged(&reports).into_iter();
        all.map(|(key, figures)| (text(key), figures)).collect()
    }

    /// Without a sample no key is counted. With every request in it, each key counts once.
    #[test]
    fn every_key_counts_if_every_request_is_sampled() {
        for sample in [0, 1] {
            let mut keys = sampling(sample);
            for lines in [
                &[
                    "GET a",
                    "MSET a 1 b 2",
                    "PING",
                    "EVAL x 1 c arg",
                    "NOSUCH a",
                ][..],
                &["GET a"],
            ] {
                leave(
                    &mut keys,
                    &lines
                        .iter()
                        .map(|line| (*line).to_owned())
                        .collect::<Vec<_>>(),
                );
            }
            let found: Vec<_> = shown(&[&keys])
                .into_iter()
                .map(|(key, figures)| (key, figures.count, figures.error, figures.per_second))
                .collect();
            let expected = [("a", 3, 0, 3), ("b", 1, 0, 1), ("c", 1, 0, 1)];
            let expected = expected
                .map(|(key, count, error, per_second)| (key.to_owned(), count, error, per_second));
            assert_eq!(found, expected[..if sample == 0 { 0 } else { 3 }]);
        }
    }

    /// The hottest of many keys are found from a sample, with almost their fractions. Two workers
    /// show the same as one with all requests.
    #[test]
    fn hottest_keys_are_found_from_a_sample() {
        let mut workers = [sampling(20), sampling(20)];
        let (mut state, requests) = (1u64, 200_000u64);
        for batch in 0..requests / 100 {
            let lines: Vec<String> = (0..100)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                    let random = state >> 33;
                    // Key n takes a fraction of 1 / 2^n. Half of the requests are for any key.
                    match random % 2 {
                        0 => format!("GET any:{}", (random >> 1) % 100_000),
                        _ => format!("GET hot:{}", (random >> 1 | 1 << 20).trailing_zeros()),
                    }
                })
                .collect();
            leave(&mut workers[(batch % 2) as usize], &lines);
        }
        let [one, other] = &workers;
        let found = shown(&[one, other]);
        for (rank, (key, figures)) in found[..4].iter().enumerate() {
            assert_eq!(*key, format!("hot:{rank}"));
            let real = requests >> (rank + 2);
            let middle = figures.count - figures.error / 2;
            let off = middle as f64 / real as f64 - 1.0;
            assert!(off.abs() < 0.2, "{key}: {middle}, not {real}");
            assert!(figures.per_second.abs_diff(middle) <= 20, "{figures:?}");
        }
        assert!(one.memory_bytes() < 64 << 10, "{}", one.memory_bytes());
    }

    /// RESET forgets the keys of one pool, and a new rate forgets all.
    #[test]
    fn reset_forgets_the_keys_of_a_pool() {
        let mut keys = sampling(1);
        leave(&mut keys, &[String::from("GET a")]);
        keys.clear(1, |pool| pool == 1, Time(5));
        assert_eq!(shown(&[&keys]).len(), 1);
        keys.clear(0, |pool| pool == 0, Time(500_000));
        assert_eq!(shown(&[&keys]).len(), 0);
        leave(&mut keys, &[String::from("GET a")]);
        let [(_, figures)] = &shown(&[&keys])[..] else {
            panic!("one key was asked for");
        };
        assert_eq!(figures.per_second, 2, "one in half a second");
        keys.apply(2, |_| false, Time(600_000));
        assert_eq!(shown(&[&keys]).len(), 0);
    }

    /// A long key counts by its beginning, and a request by its first keys.
    #[test]
    fn long_keys_and_requests_are_cut() {
        let mut keys = sampling(1);
        let long = "k".repeat(2 * HOT_KEY_BYTES_MAX);
        let many: Vec<String> = (0..100).map(|at| format!("{at:03}")).collect();
        leave(
            &mut keys,
            &[format!("GET {long}"), format!("MGET {}", many.join(" "))],
        );
        let found = shown(&[&keys]);
        assert_eq!(found.len(), 1 + HOT_KEYS_PER_REQUEST_MAX);
        let cut = &long[..HOT_KEY_BYTES_MAX];
        assert!(found.iter().any(|(key, _)| key == cut));
    }
}
