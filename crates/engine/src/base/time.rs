//! Points in time, as the caller counts them.

use std::ops::Add;

/// Microseconds since the caller's own start. Never runs back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

impl Time {
    /// From `earlier` to here, in microseconds; 0 if it is later.
    pub fn since_us(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// From `earlier` to here, in milliseconds.
    pub fn since_ms(self, earlier: Time) -> u64 {
        self.since_us(earlier) / 1000
    }

    /// `ms` milliseconds later.
    pub fn plus_ms(self, ms: u32) -> Time {
        Time(self.0 + u64::from(ms) * 1000)
    }

    /// Milliseconds as ledgers keep them: they wrap after 49 days, and are only ever subtracted.
    pub(crate) fn stamp_ms(self) -> u32 {
        (self.0 / 1000) as u32
    }
}

impl Add<u32> for Time {
    type Output = Time;

    /// That many microseconds later.
    fn add(self, us: u32) -> Time {
        Time(self.0 + u64::from(us))
    }
}
