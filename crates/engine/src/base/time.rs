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

    /// The time in milliseconds as ledgers keep it. It wraps after 49 days, so only differences
    /// count.
    pub(crate) fn stamp_ms(self) -> u32 {
        (self.0 / 1000) as u32
    }
}

impl Add<u32> for Time {
    type Output = Time;

    /// The time `us` microseconds later.
    fn add(self, us: u32) -> Time {
        Time(self.0 + u64::from(us))
    }
}
