//! Points in time, as the caller counts them.

use std::ops::Add;

/// The longest time between two turns in milliseconds. It is the precision of every deadline.
pub const TICK_MS: u32 = 50;

/// Microseconds since the caller's own start. Never runs back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

impl Time {
    /// Microseconds from `earlier` to this time; 0 if `earlier` is later.
    pub fn since_us(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Milliseconds from `earlier` to this time; 0 if `earlier` is later.
    pub fn since_ms(self, earlier: Time) -> u64 {
        self.since_us(earlier) / 1000
    }

    /// The time `ms` milliseconds later.
    pub fn plus_ms(self, ms: u32) -> Time {
        Time(self.0 + u64::from(ms) * 1000)
    }

    /// The time in milliseconds. It wraps after 49 days, so only differences count.
    pub(crate) fn wrapping_ms(self) -> u32 {
        (self.0 / 1000) as u32
    }

    /// The time as ledgers keep it.
    #[inline]
    pub(crate) fn stamp(self) -> Stamp {
        Stamp((self.0 / STAMP_TICK_US) as u32)
    }
}

/// The length of a tick of [`Stamp`], microseconds.
pub(crate) const STAMP_TICK_US: u64 = 8;

/// Ticks of [`Stamp`] in a millisecond.
const STAMP_TICKS_PER_MS: u32 = (1000 / STAMP_TICK_US) as u32;

/// A time as ledgers keep it: ticks of 8 us. It wraps after 9.5 hours, so only differences count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp(pub(crate) u32);

impl Stamp {
    /// Ticks from `earlier` to this time.
    #[inline]
    pub(crate) fn ticks_since(self, earlier: Stamp) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Milliseconds from `earlier` to this time.
    pub(crate) fn ms_since(self, earlier: Stamp) -> u32 {
        self.ticks_since(earlier) / STAMP_TICKS_PER_MS
    }
}

impl Add<u32> for Time {
    type Output = Time;

    /// The time `us` microseconds later.
    fn add(self, us: u32) -> Time {
        Time(self.0 + u64::from(us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Differences of stamps are right over the wrap.
    #[test]
    fn stamps_differ_over_the_wrap() {
        let wrap = (u64::from(u32::MAX) + 1) * STAMP_TICK_US;
        for begin in [0, wrap - 1_000_000, wrap + 7] {
            for ms in [0, 1, 999, 8 * 3_600_000] {
                let (from, to) = (Time(begin), Time(begin).plus_ms(ms));
                assert_eq!(to.stamp().ms_since(from.stamp()), ms, "{begin} us, {ms} ms");
            }
        }
    }
}
