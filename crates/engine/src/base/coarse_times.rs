//! Times of requests by command in buckets of powers of two, as LATENCY HISTOGRAM shows them. The
//! answer of a worker is 40 KB at most; with all buckets it would be 1.3 MB.

use std::collections::BTreeMap;

use crate::base::latency::{CommandTimes, LONGEST_BITS, LatencyHistogram};
use crate::base::time::STAMP_TICK_US;

/// Number of buckets: the first ends at one tick, and each further one at twice the time.
const BUCKETS: usize = LONGEST_BITS as usize + 1;

/// A histogram with buckets of powers of two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CoarseHistogram {
    counts: [u64; BUCKETS],
}

impl From<&LatencyHistogram> for CoarseHistogram {
    /// A narrow bucket counts in the first coarse one that holds all of it.
    fn from(narrow: &LatencyHistogram) -> CoarseHistogram {
        let mut coarse = CoarseHistogram::default();
        for (last_us, count) in narrow.buckets() {
            let last_ticks = (last_us / STAMP_TICK_US).max(1);
            let bucket = last_ticks.next_power_of_two().trailing_zeros() as usize;
            coarse.counts[bucket.min(BUCKETS - 1)] += count;
        }
        coarse
    }
}

impl CoarseHistogram {
    /// Number of requests.
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The longest time of each bucket that is not empty, microseconds, and its count.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.counts.iter().enumerate();
        counts
            .filter(|(_, count)| **count > 0)
            .map(|(bucket, count)| (STAMP_TICK_US << bucket, *count))
    }

    fn add(&mut self, other: &CoarseHistogram) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }
}

/// Times of the requests of one command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CoarseTimes {
    /// Whole times.
    pub(crate) total: CoarseHistogram,
    /// Times in respool.
    pub(crate) waiting: CoarseHistogram,
    /// Times at the server.
    pub(crate) server: CoarseHistogram,
}

/// Times of requests by command: of one worker, or the sum of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoarseReport {
    commands: BTreeMap<&'static str, CoarseTimes>,
}

impl<'a> FromIterator<(&'static str, &'a CommandTimes)> for CoarseReport {
    fn from_iter<T: IntoIterator<Item = (&'static str, &'a CommandTimes)>>(all: T) -> CoarseReport {
        let coarse = |(name, times): (&'static str, &CommandTimes)| {
            let times = CoarseTimes {
                total: (&times.total()).into(),
                waiting: (&times.waiting()).into(),
                server: (&times.server()).into(),
            };
            (name, times)
        };
        CoarseReport {
            commands: all.into_iter().map(coarse).collect(),
        }
    }
}

impl CoarseReport {
    /// Adds the times of another worker.
    pub(crate) fn add(&mut self, other: &CoarseReport) {
        for (name, more) in &other.commands {
            let times = self.commands.entry(name).or_default();
            times.total.add(&more.total);
            times.waiting.add(&more.waiting);
            times.server.add(&more.server);
        }
    }

    /// Each command with its times, by name.
    pub(crate) fn commands(&self) -> impl Iterator<Item = (&'static str, &CoarseTimes)> {
        self.commands.iter().map(|(name, times)| (*name, times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each time is in a bucket that ends at the time or later, and at less than twice the time
    /// and 4 % above it.
    #[test]
    fn coarse_buckets_hold_their_times() {
        for ticks in [0, 1, 2, 3, 4, 63, 64, 65, 1_000, 1 << 20, (1 << 24) - 1] {
            let mut narrow = LatencyHistogram::default();
            narrow.note(ticks, 3);
            let coarse = CoarseHistogram::from(&narrow);
            let [(us, 3)] = coarse.buckets().collect::<Vec<_>>()[..] else {
                panic!("{ticks} ticks are in one bucket");
            };
            let time_us = u64::from(ticks) * STAMP_TICK_US;
            assert!(
                us >= time_us && us <= (time_us * 104 / 50).max(8),
                "{ticks}: {us}"
            );
        }
    }
}
