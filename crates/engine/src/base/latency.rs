//! Times of requests by command: histograms of fixed size, and the report of a worker, which has
//! the error replies, too.

use std::collections::BTreeMap;

use crate::base::error::ErrorOutcome;
use crate::base::time::STAMP_TICK_US;

/// Buckets for each power of two, as a power of two. A bucket is at most 1/32 as wide as its time.
const STEPS_BITS: u32 = 5;

/// The longest time that is told apart, as a power of two of ticks: 134 s. Longer times count as
/// this one.
pub(crate) const LONGEST_BITS: u32 = 24;

/// Number of buckets that hold one tick each, the first ones.
pub(crate) const NARROW_TICKS: u32 = 2 << STEPS_BITS;

/// Number of buckets.
const BUCKETS: usize = ((LONGEST_BITS - STEPS_BITS + 1) as usize) << STEPS_BITS;

/// The bucket of a time in ticks.
#[inline]
fn bucket_of(ticks: u32) -> usize {
    const STEPS: u32 = 1 << STEPS_BITS;
    let shift = (31 - STEPS_BITS) - (ticks | STEPS).leading_zeros();
    let bucket = (shift << STEPS_BITS) + (ticks >> shift);
    (bucket as usize).min(BUCKETS - 1)
}

/// The shortest and the longest time of a bucket, ticks.
fn ticks_of(bucket: usize) -> (u64, u64) {
    let shift = (bucket >> STEPS_BITS).saturating_sub(1);
    let first = (bucket - (shift << STEPS_BITS)) as u64;
    (first << shift, ((first + 1) << shift) - 1)
}

/// The middle of a bucket, microseconds.
fn middle_us(bucket: usize) -> u64 {
    let (first, last) = ticks_of(bucket);
    (first + last) * STAMP_TICK_US / 2
}

/// A log-linear histogram of times. A bucket is as wide as a tick of 8 us, or 1/32 of its time.
#[derive(Debug, PartialEq, Eq)]
pub struct LatencyHistogram {
    counts: [u64; BUCKETS],
}

impl Clone for LatencyHistogram {
    fn clone(&self) -> LatencyHistogram {
        LatencyHistogram {
            counts: self.counts,
        }
    }

    /// Copies in place, without a second copy on the stack.
    fn clone_from(&mut self, other: &LatencyHistogram) {
        self.counts.copy_from_slice(&other.counts);
    }
}

impl Default for LatencyHistogram {
    fn default() -> LatencyHistogram {
        LatencyHistogram {
            counts: [0; BUCKETS],
        }
    }
}

impl LatencyHistogram {
    /// Counts `count` requests that took this time, in ticks of 8 us.
    #[inline]
    pub(crate) fn note(&mut self, ticks: u32, count: u32) {
        self.counts[bucket_of(ticks)] += u64::from(count);
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &LatencyHistogram) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    /// Number of requests.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all times, microseconds. It is made of the middles of the buckets: the error is
    /// at most 1.6 % of the sum. A time below 512 us is exact to a tick of 8 us. A time beyond
    /// 134 s counts as 134 s.
    pub fn sum_us(&self) -> u64 {
        let counts = self.counts.iter().enumerate();
        counts
            .map(|(bucket, count)| middle_us(bucket) * count)
            .sum()
    }

    /// Number of requests in buckets that end at `us` microseconds or before.
    pub fn count_up_to_us(&self, us: u64) -> u64 {
        let ends_by = |(last_us, _): &(u64, u64)| *last_us <= us;
        let counts = self.buckets().take_while(ends_by);
        counts.map(|(_, count)| count).sum()
    }

    /// The longest time of each bucket that is not empty, microseconds, and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.counts.iter().enumerate();
        counts
            .filter(|(_, count)| **count > 0)
            .map(|(bucket, count)| (ticks_of(bucket).1 * STAMP_TICK_US, *count))
    }

    /// The time within which this fraction of the requests stays, microseconds. `None` without a
    /// request.
    pub fn quantile_us(&self, quantile: f64) -> Option<u64> {
        let all = self.count();
        let rank = (all as f64 * quantile).ceil().clamp(1.0, all.max(1) as f64) as u64;
        let mut up_to = 0;
        let found = self.counts.iter().position(|count| {
            up_to += count;
            up_to >= rank
        });
        found.map(middle_us)
    }
}

/// Times of requests that waited in respool.
#[derive(Debug, Default, PartialEq, Eq)]
struct WaitedTimes {
    /// Whole times.
    total: LatencyHistogram,
    /// Times in respool.
    waiting: LatencyHistogram,
    /// Times at the server.
    server: LatencyHistogram,
}

impl Clone for WaitedTimes {
    fn clone(&self) -> WaitedTimes {
        WaitedTimes {
            total: self.total.clone(),
            waiting: self.waiting.clone(),
            server: self.server.clone(),
        }
    }

    fn clone_from(&mut self, other: &WaitedTimes) {
        self.total.clone_from(&other.total);
        self.waiting.clone_from(&other.waiting);
        self.server.clone_from(&other.server);
    }
}

/// Times of the requests of one command.
///
/// Most requests leave in the turn in which they are read. Their time at the server is their whole
/// time, and is counted once.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CommandTimes {
    /// Whole times of requests that left in the turn in which they were read.
    at_once: LatencyHistogram,
    /// Times of all other requests, once there is one.
    waited: Option<Box<WaitedTimes>>,
}

impl Clone for CommandTimes {
    fn clone(&self) -> CommandTimes {
        CommandTimes {
            at_once: self.at_once.clone(),
            waited: self.waited.clone(),
        }
    }

    /// Copies into the memory that is there: a report is brought up to date once a second.
    fn clone_from(&mut self, other: &CommandTimes) {
        self.at_once.clone_from(&other.at_once);
        self.waited.clone_from(&other.waited);
    }
}

impl CommandTimes {
    /// Counts `count` requests that left in the turn in which they were read.
    #[inline]
    pub(crate) fn note_at_once(&mut self, ticks: u32, count: u32) {
        self.at_once.note(ticks, count);
    }

    /// Counts `count` requests that left in the turn in which they were read, and took less than
    /// [`NARROW_TICKS`].
    #[inline]
    pub(crate) fn note_soon(&mut self, ticks: u32, count: u32) {
        debug_assert!(ticks < NARROW_TICKS);
        self.at_once.counts[ticks as usize] += u64::from(count);
    }

    /// Counts `count` requests that waited in respool.
    pub(crate) fn note_waited(&mut self, waiting: u32, server: u32, count: u32) {
        let times = self.waited.get_or_insert_default();
        times.total.note(waiting.saturating_add(server), count);
        times.waiting.note(waiting, count);
        times.server.note(server, count);
    }

    /// Times from the reading of a request to the reading of its reply.
    pub fn total(&self) -> LatencyHistogram {
        self.all(|waited| &waited.total)
    }

    /// Times from the departure of a request's batch to the reading of its reply.
    pub fn server(&self) -> LatencyHistogram {
        self.all(|waited| &waited.server)
    }

    /// Times from the reading of a request to the departure of its batch.
    pub fn waiting(&self) -> LatencyHistogram {
        let mut all = LatencyHistogram::default();
        if let Some(waited) = &self.waited {
            all.add(&waited.waiting);
        }
        all.counts[0] += self.at_once.count();
        all
    }

    fn all(&self, of_waited: impl FnOnce(&WaitedTimes) -> &LatencyHistogram) -> LatencyHistogram {
        let mut all = self.at_once.clone();
        if let Some(waited) = &self.waited {
            all.add(of_waited(waited));
        }
        all
    }

    /// Adds the times of another worker, or of another command.
    pub fn add(&mut self, other: &CommandTimes) {
        self.at_once.add(&other.at_once);
        if let Some(more) = &other.waited {
            let times = self.waited.get_or_insert_default();
            times.total.add(&more.total);
            times.waiting.add(&more.waiting);
            times.server.add(&more.server);
        }
    }
}

/// The error replies that have one pool, command and outcome in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ErrorKind {
    /// The place of the pool.
    pub pool: u16,
    /// The command, by the names of [`LatencyReport::commands`].
    pub command: &'static str,
    /// The outcome.
    pub outcome: ErrorOutcome,
}

/// Times of requests by command, and error replies: of one worker, or the sum of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyReport {
    /// The measured commands, by name.
    pub(crate) commands: BTreeMap<&'static str, CommandTimes>,
    /// The number of error replies of each kind.
    pub(crate) errors: BTreeMap<ErrorKind, u64>,
}

impl FromIterator<(&'static str, CommandTimes)> for LatencyReport {
    fn from_iter<T: IntoIterator<Item = (&'static str, CommandTimes)>>(times: T) -> LatencyReport {
        LatencyReport {
            commands: times.into_iter().collect(),
            errors: BTreeMap::new(),
        }
    }
}

impl LatencyReport {
    /// Adds the report of another worker.
    pub fn add(&mut self, other: &LatencyReport) {
        for (name, times) in &other.commands {
            self.commands.entry(name).or_default().add(times);
        }
        for (kind, count) in &other.errors {
            *self.errors.entry(*kind).or_default() += count;
        }
    }

    /// Each command that was measured, with its times, by name. `other` stands for all commands
    /// that have no measurement of their own: see [`crate::limits::LATENCY_COMMANDS_MAX`].
    pub fn commands(&self) -> impl Iterator<Item = (&'static str, &CommandTimes)> {
        self.commands.iter().map(|(name, times)| (*name, times))
    }

    /// The number of error replies of each kind that there was.
    pub fn errors(&self) -> impl Iterator<Item = (ErrorKind, u64)> {
        self.errors.iter().map(|(kind, count)| (*kind, *count))
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;
    use proptest::prelude::*;

    use super::*;

    /// Every time is in a bucket that holds it, and buckets are narrow.
    #[test]
    fn buckets_are_in_order_and_narrow() {
        let mut next = 0;
        for bucket in 0..BUCKETS {
            let (first, last) = ticks_of(bucket);
            assert_eq!(first, next, "no gap before bucket {bucket}");
            assert_eq!(bucket_of(first as u32), bucket);
            assert_eq!(bucket_of(last as u32), bucket);
            assert!((last - first) * 32 <= first, "bucket {bucket} is narrow");
            next = last + 1;
        }
        assert_eq!(next, 1 << LONGEST_BITS);
        assert_eq!(bucket_of(u32::MAX), BUCKETS - 1);
    }

    proptest! {
        /// Quantiles differ from those of another library by 3 % at most.
        #[test]
        fn quantiles_agree_with_an_oracle(
            times in prop::collection::vec((0u32..8, 1u32..1_000), 1..300),
            quantile in 0.0f64..1.0,
        ) {
            let mut ours = LatencyHistogram::default();
            let mut oracle = Histogram::<u64>::new_with_bounds(1, 1 << 40, 4)
                .expect("the bounds are right");
            for (exponent, mantissa) in times {
                // Times of all sizes, none of them 0.
                let ticks = (mantissa << (2 * exponent)).min((1 << LONGEST_BITS) - 1);
                ours.note(ticks, 1);
                let us = u64::from(ticks) * STAMP_TICK_US;
                oracle.record(us).expect("the time is within the bounds");
            }
            let found = ours.quantile_us(quantile).expect("there are requests") as f64;
            let expected = oracle.value_at_quantile(quantile) as f64;
            prop_assert!((found / expected - 1.0).abs() <= 0.03, "{found} us, not {expected} us");
            prop_assert_eq!(ours.count(), oracle.len());
            let sum = oracle.mean() * oracle.len() as f64;
            prop_assert!((ours.sum_us() as f64 / sum - 1.0).abs() <= 0.02);
            prop_assert_eq!(ours.count_up_to_us(u64::MAX), ours.count());
        }
    }

    /// The sum is exact to a tick below 512 us, and to 1.6 % up to 134 s. Longer times are cut.
    #[test]
    fn sum_is_as_exact_as_it_says() {
        let sum_of = |ticks: u32| {
            let mut times = LatencyHistogram::default();
            times.note(ticks, 1);
            times.sum_us() as f64
        };
        for ticks in 0..64 {
            assert_eq!(sum_of(ticks), f64::from(ticks * 8));
        }
        for ticks in (64..1 << LONGEST_BITS).step_by(997) {
            let error = sum_of(ticks) / (f64::from(ticks) * 8.0) - 1.0;
            assert!(error.abs() <= 0.016, "{ticks} ticks: {error}");
        }
        let most = sum_of((1 << LONGEST_BITS) - 1);
        assert_eq!([1 << LONGEST_BITS, u32::MAX].map(sum_of), [most; 2]);
    }

    /// A copy into a report is equal, whether the report has the memory already or not.
    #[test]
    fn times_are_copied_in_place() {
        let mut times = CommandTimes::default();
        times.note_at_once(10, 3);
        let mut copy = CommandTimes::default();
        copy.note_at_once(11, 1);
        copy.clone_from(&times);
        assert_eq!(copy, times);
        for _ in 0..2 {
            times.note_waited(20, 30, 2);
            copy.clone_from(&times);
            assert_eq!(copy, times);
        }
        copy.clone_from(&CommandTimes::default());
        assert_eq!(copy, CommandTimes::default());
    }

    /// A request that left at once has no wait, and the same time at the server as in all.
    #[test]
    fn times_of_both_kinds_add_up() {
        let mut times = CommandTimes::default();
        times.note_at_once(10, 3);
        times.note_waited(20, 30, 2);
        let mut both = CommandTimes::default();
        both.add(&times);
        let shown = |times: LatencyHistogram| times.buckets().collect::<Vec<_>>();
        assert_eq!(shown(both.total()), [(80, 3), (400, 2)]);
        assert_eq!(shown(both.waiting()), [(0, 3), (160, 2)]);
        assert_eq!(shown(both.server()), [(80, 3), (240, 2)]);
    }
}
