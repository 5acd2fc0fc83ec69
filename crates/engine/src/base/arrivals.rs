//! Forecasts when sessions send their next requests. A batch waits for these requests, and not for
//! a timer.
//!
//! A session that gets its last outstanding reply usually sends again after about as long as last
//! time. Its link notes that moment in a wheel of short slots. When a batch could leave, the wheel
//! says how many more requests will come within the longest wait.
//!
//! ```text
//!   slot        cur-2  cur-1   cur   cur+1  cur+2          cur+508
//!             |   0  |   1   |   7  |  12  |   3  | ...  |    0   |
//!   forgotten <--------- about to come ----------> later
//! ```
//!
//! The wheel may be wrong. A client that uses two connections alternately never sends on both at
//! once: the expected session sends only after the present request is answered. If a wait brings
//! less than half of the expected requests, the forecast was wrong, and the link lets the next 1,
//! 3, 7, ... batches leave without waiting. After a wait that pays, all batches may wait again.

use crate::base::time::Time;

/// Slots of the wheel. A wait is two slots long. A session that takes longer than some 250 waits is
/// not expected at all.
const SLOTS: u32 = 512;
/// Slots that a wait spans. A session may also be late by as many.
const WAIT: u32 = 2;
/// A batch does not wait for the last sessions of a crowd. If the expected requests are at most
/// this fraction of those that came, they go into the next batch. So server and clients work at the
/// same time. Measured with `respool-lab eight --pipeline 1`: 0.96 of the direct throughput, where
/// waiting for all gave 0.85.
const STRAGGLERS: u32 = 4;
/// The most batches that leave without waiting, after waits in vain.
const SKIP_MAX: u32 = 1023;

/// How many sessions are expected in each slot of time.
#[derive(Debug)]
pub(crate) struct ArrivalWheel {
    counts: [u16; SLOTS as usize],
    /// The slot of the present moment.
    now: u32,
    /// Length of a slot, microseconds.
    slot_us: u64,
}

/// How many requests a link expects, and whether a batch waits for them.
///
/// The links of a pool with several servers share one wheel, and each has its own skips. The server
/// of a session's next request is unknown. Of many sessions, each server gets a share.
#[derive(Debug)]
pub(crate) struct ArrivalForecast {
    wheel: ArrivalWheel,
    /// Batches that leave without waiting, from now on.
    skip: u32,
    /// How many batches the last wait in vain made skip; 0 after a wait that paid.
    last_skip: u32,
    /// The wait that is on: the requests expected, and those in the batch, when it began.
    wait: Option<(u32, u32)>,
}

/// A session's slot in the wheel; [`ArrivalSlot::NOT`] if it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArrivalSlot(u32);

impl ArrivalSlot {
    pub(crate) const NOT: ArrivalSlot = ArrivalSlot(u32::MAX);
}

impl ArrivalWheel {
    pub(crate) fn new(max_delay_us: u32) -> Self {
        ArrivalWheel {
            counts: [0; SLOTS as usize],
            now: 0,
            slot_us: u64::from(max_delay_us / WAIT).max(1),
        }
    }

    /// Notes a session that was answered and sends again in about `gap_us`.
    #[inline]
    pub(crate) fn expect(&mut self, now: Time, gap_us: u32) -> ArrivalSlot {
        let slot = ((now.0 + u64::from(gap_us)) / self.slot_us) as u32;
        // The wheel's own moment may lie some turns behind.
        if slot.wrapping_sub(self.now) >= SLOTS - WAIT - 1 {
            return ArrivalSlot::NOT;
        }
        let count = &mut self.counts[(slot % SLOTS) as usize];
        *count = count.saturating_add(1);
        ArrivalSlot(slot)
    }

    /// Takes a session out that has sent again, or that never will.
    #[inline]
    pub(crate) fn on_arrival(&mut self, expected: ArrivalSlot) {
        // `expected_soon` has cleared the slot of an overdue session.
        if expected != ArrivalSlot::NOT
            && expected.0.wrapping_sub(self.now.wrapping_sub(WAIT)) < SLOTS
        {
            let count = &mut self.counts[(expected.0 % SLOTS) as usize];
            *count = count.saturating_sub(1);
        }
    }

    /// The number of sessions that are about to send.
    pub(crate) fn expected_soon(&mut self, now: Time) -> u32 {
        let slot = (now.0 / self.slot_us) as u32;
        let passed = slot.wrapping_sub(self.now);
        for forgotten in 0..passed.min(SLOTS) {
            self.counts[(self.now.wrapping_sub(WAIT).wrapping_add(forgotten) % SLOTS) as usize] = 0;
        }
        self.now = slot;
        let window = slot.wrapping_sub(WAIT)..=slot.wrapping_add(WAIT);
        window
            .map(|slot| u32::from(self.counts[(slot % SLOTS) as usize]))
            .sum()
    }
}

impl ArrivalForecast {
    pub(crate) fn new(max_delay_us: u32) -> Self {
        ArrivalForecast {
            wheel: ArrivalWheel::new(max_delay_us),
            skip: 0,
            last_skip: 0,
            wait: None,
        }
    }

    /// See [`ArrivalWheel::expect`].
    #[inline]
    pub(crate) fn expect(&mut self, now: Time, gap_us: u32) -> ArrivalSlot {
        self.wheel.expect(now, gap_us)
    }

    /// See [`ArrivalWheel::on_arrival`].
    #[inline]
    pub(crate) fn on_arrival(&mut self, expected: ArrivalSlot) {
        self.wheel.on_arrival(expected);
    }

    /// Whether a batch of `gathered` requests that could leave now waits for more.
    pub(crate) fn worth_waiting(&mut self, now: Time, gathered: u32) -> bool {
        let soon = self.wheel.expected_soon(now);
        self.worth_waiting_for(soon, gathered)
    }

    /// Whether a batch of `gathered` requests waits, if `soon` more are about to come.
    pub(crate) fn worth_waiting_for(&mut self, soon: u32, gathered: u32) -> bool {
        if soon * STRAGGLERS <= gathered {
            if self.wait.take().is_some() {
                self.last_skip = 0;
            }
            return false;
        }
        if self.wait.is_none() {
            if self.skip > 0 {
                self.skip -= 1;
                return false;
            }
            self.wait = Some((soon, gathered));
        }
        true
    }

    /// Forgets the wait of a batch that has left for any reason. The next batch has a wait of its
    /// own.
    pub(crate) fn end_wait(&mut self) {
        self.wait = None;
    }

    /// Judges the wait of a batch that leaves with `gathered` requests, because the longest wait is
    /// over.
    pub(crate) fn waited(&mut self, gathered: u32) {
        if let Some((awaited, before)) = self.wait.take() {
            if (gathered - before) * 2 >= awaited {
                self.last_skip = 0;
            } else {
                self.last_skip = (self.last_skip * 2 + 1).min(SKIP_MAX);
                self.skip = self.last_skip;
            }
        }
    }
}

const _: () = assert!(
    SLOTS.is_power_of_two(),
    "slot numbers wrap around u32 and must stay in order there"
);

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_DELAY_US: u32 = 200;

    /// A batch does not wait for a lone client that has its request in it.
    #[test]
    fn lone_client_never_waits() {
        let mut forecast = ArrivalForecast::new(MAX_DELAY_US);
        for request in 0..1000 {
            let now = Time(request * 50);
            let expected = forecast.expect(now, 20);
            forecast.on_arrival(expected);
            assert!(!forecast.worth_waiting(Time(now.0 + 20), 1));
        }
    }

    /// A batch waits for a crowd until four fifths of it have come.
    #[test]
    fn batch_waits_for_most_of_a_crowd() {
        let mut forecast = ArrivalForecast::new(MAX_DELAY_US);
        let crowd: Vec<ArrivalSlot> = (0..50).map(|_| forecast.expect(Time(1000), 100)).collect();
        for (come, expected) in crowd.into_iter().enumerate() {
            // The last ten are a quarter of forty.
            assert_eq!(forecast.worth_waiting(Time(1100), come as u32), come < 40);
            forecast.on_arrival(expected);
        }
    }

    /// A session that does not come in its slot is not expected any longer.
    #[test]
    fn absent_session_is_forgotten() {
        let mut forecast = ArrivalForecast::new(MAX_DELAY_US);
        let expected = forecast.expect(Time(1000), 100);
        assert!(forecast.worth_waiting(Time(1100), 1));
        assert!(forecast.worth_waiting(Time(1300), 1));
        assert!(!forecast.worth_waiting(Time(1500), 1));
        forecast.on_arrival(expected);
        assert!(forecast.wheel.counts.iter().all(|count| *count == 0));
    }

    /// A session that sends rarely has no slot.
    #[test]
    fn rare_session_is_not_expected() {
        let mut forecast = ArrivalForecast::new(MAX_DELAY_US);
        assert_eq!(forecast.expect(Time(0), 60_000), ArrivalSlot::NOT);
        assert_eq!(forecast.expect(Time(0), u32::MAX), ArrivalSlot::NOT);
    }

    /// After each wait in vain more batches leave without waiting.
    #[test]
    fn waits_in_vain_become_rare() {
        let mut forecast = ArrivalForecast::new(MAX_DELAY_US);
        let mut waits = 0;
        for request in 0..10_000u64 {
            let now = Time(1000 + request * 100);
            // One client uses two connections alternately: the other one is expected, and never
            // comes first.
            let other = forecast.expect(now, 50);
            if forecast.worth_waiting(now, 1) {
                waits += 1;
                forecast.waited(1);
            }
            forecast.on_arrival(other);
        }
        assert!((1..=20).contains(&waits), "{waits} waits in vain");
    }

    /// A wheel that was not read for a long time expects no session.
    #[test]
    fn wheel_is_empty_after_a_long_time() {
        let mut forecast = ArrivalForecast::new(MAX_DELAY_US);
        for gap in 0..100 {
            forecast.expect(Time(0), gap * 100);
        }
        assert_eq!(
            forecast
                .wheel
                .expected_soon(Time(u64::from(u32::MAX) * 300)),
            0
        );
        assert!(forecast.wheel.counts.iter().all(|count| *count == 0));
    }
}
