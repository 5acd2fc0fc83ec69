//! When sessions are expected back: what lets a batch wait for its crowd and not for a timer.
//!
//! A session that gets its last outstanding reply usually asks again after about as long as last time.
//! A link writes that moment down in a calendar of short slots; when its batch could leave, the
//! calendar says how many more requests are about to come within the time that anybody may wait.
//!
//! ```text
//!   slot        cur-2  cur-1   cur   cur+1  cur+2          cur+508
//!             |   0  |   1   |   7  |  12  |   3  | ...  |    0   |
//!   forgotten <--------- about to come ----------> later
//! ```
//!
//! The calendar may be wrong. Somebody who asks on two connections in turn is never two: whoever is
//! expected comes only after who is here was answered. So a wait that brought less than half of whom it
//! was for makes the link doubt: it lets the next 1, 3, 7, ... batches go without waiting. A wait that
//! paid ends the doubt.

use crate::time::Time;

/// Slots of the calendar. A wait is two slots long: who takes longer than some 250 waits to come back
/// is not expected at all.
const SLOTS: u32 = 512;
/// How many slots a wait spans, and by how many a session may be late.
const WAIT: u32 = 2;
/// A batch does not wait for the last of its crowd: whoever is less than this part of those who came
/// asks for the next one, and server and clients are at work at the same time. Measured with
/// `respool-lab eight --pipeline 1`: 0.96 of the direct throughput, where waiting for all gave 0.85.
const STRAGGLERS: u32 = 4;
/// Most batches that leave without waiting, after waits in vain.
const DOUBT_MAX: u32 = 1023;

/// Who is expected, and when.
#[derive(Debug)]
pub(crate) struct Calendar {
    counts: [u16; SLOTS as usize],
    /// The slot of the present moment.
    now: u32,
    /// Length of a slot, microseconds.
    slot_us: u64,
}

/// Whom a link expects, and whether to wait for them. Where a pool has several servers, its links have one calendar in common, and
/// each its own doubt: whose the next request of a session is, nobody knows, but of many sessions each server gets a share.
#[derive(Debug)]
pub(crate) struct Returns {
    calendar: Calendar,
    /// Batches that shall leave without waiting.
    skip: u32,
    doubt: u32,
    /// Of the wait that is on: how many it was for, and how many requests the batch had.
    wait: Option<(u32, u32)>,
}

/// A place in the calendar; [`Expected::NOT`] for who is in none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected(u32);

impl Expected {
    pub(crate) const NOT: Expected = Expected(u32::MAX);
}

impl Calendar {
    pub(crate) fn new(max_delay_us: u32) -> Self {
        Calendar {
            counts: [0; SLOTS as usize],
            now: 0,
            slot_us: u64::from(max_delay_us / WAIT).max(1),
        }
    }

    /// A session was answered and comes back in about `gap_us`.
    #[inline]
    pub(crate) fn expect(&mut self, now: Time, gap_us: u32) -> Expected {
        let slot = ((now.0 + u64::from(gap_us)) / self.slot_us) as u32;
        // Compared with the calendar's own moment, which may lie behind by some turns.
        if slot.wrapping_sub(self.now) >= SLOTS - WAIT - 1 {
            return Expected::NOT;
        }
        let count = &mut self.counts[(slot % SLOTS) as usize];
        *count = count.saturating_add(1);
        Expected(slot)
    }

    /// A session came back, or never will.
    #[inline]
    pub(crate) fn came(&mut self, expected: Expected) {
        // Who is overdue was forgotten.
        if expected != Expected::NOT && expected.0.wrapping_sub(self.now.wrapping_sub(WAIT)) < SLOTS
        {
            let count = &mut self.counts[(expected.0 % SLOTS) as usize];
            *count = count.saturating_sub(1);
        }
    }

    /// How many are about to come.
    pub(crate) fn soon(&mut self, now: Time) -> u32 {
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

impl Returns {
    pub(crate) fn new(max_delay_us: u32) -> Self {
        Returns {
            calendar: Calendar::new(max_delay_us),
            skip: 0,
            doubt: 0,
            wait: None,
        }
    }

    /// See [`Calendar::expect`].
    #[inline]
    pub(crate) fn expect(&mut self, now: Time, gap_us: u32) -> Expected {
        self.calendar.expect(now, gap_us)
    }

    /// See [`Calendar::came`].
    #[inline]
    pub(crate) fn came(&mut self, expected: Expected) {
        self.calendar.came(expected);
    }

    /// Whether a batch of `gathered` requests that could leave now shall wait for more.
    pub(crate) fn worth_waiting(&mut self, now: Time, gathered: u32) -> bool {
        let soon = self.calendar.soon(now);
        self.worth_waiting_for(soon, gathered)
    }

    /// The same where so many are about to come.
    pub(crate) fn worth_waiting_for(&mut self, soon: u32, gathered: u32) -> bool {
        if soon * STRAGGLERS <= gathered {
            if self.wait.take().is_some() {
                self.doubt = 0;
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

    /// The batch that waited is gone, by whatever way: the next one has a wait of its own.
    pub(crate) fn end_wait(&mut self) {
        self.wait = None;
    }

    /// The longest wait is over, and the batch leaves with `gathered` requests.
    pub(crate) fn waited(&mut self, gathered: u32) {
        if let Some((awaited, before)) = self.wait.take() {
            if (gathered - before) * 2 >= awaited {
                self.doubt = 0;
            } else {
                self.doubt = (self.doubt * 2 + 1).min(DOUBT_MAX);
                self.skip = self.doubt;
            }
        }
    }
}

const _: () = assert!(
    SLOTS.is_power_of_two(),
    "slot numbers wrap, and must go on in order when they do"
);

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_DELAY_US: u32 = 200;

    #[test]
    fn who_is_alone_is_never_waited_for() {
        let mut returns = Returns::new(MAX_DELAY_US);
        for request in 0..1000 {
            let now = Time(request * 50);
            let expected = returns.expect(now, 20);
            returns.came(expected);
            assert!(!returns.worth_waiting(Time(now.0 + 20), 1));
        }
    }

    #[test]
    fn a_crowd_is_waited_for_until_most_have_come() {
        let mut returns = Returns::new(MAX_DELAY_US);
        let crowd: Vec<Expected> = (0..50).map(|_| returns.expect(Time(1000), 100)).collect();
        for (come, expected) in crowd.into_iter().enumerate() {
            // Ten stragglers are a quarter of forty.
            assert_eq!(returns.worth_waiting(Time(1100), come as u32), come < 40);
            returns.came(expected);
        }
    }

    #[test]
    fn who_stays_away_is_forgotten() {
        let mut returns = Returns::new(MAX_DELAY_US);
        let expected = returns.expect(Time(1000), 100);
        assert!(returns.worth_waiting(Time(1100), 1));
        assert!(returns.worth_waiting(Time(1300), 1));
        assert!(!returns.worth_waiting(Time(1500), 1));
        returns.came(expected);
        assert!(returns.calendar.counts.iter().all(|count| *count == 0));
    }

    #[test]
    fn who_comes_much_later_is_not_expected() {
        let mut returns = Returns::new(MAX_DELAY_US);
        assert_eq!(returns.expect(Time(0), 60_000), Expected::NOT);
        assert_eq!(returns.expect(Time(0), u32::MAX), Expected::NOT);
    }

    #[test]
    fn waits_in_vain_become_rare() {
        let mut returns = Returns::new(MAX_DELAY_US);
        let mut waits = 0;
        for request in 0..10_000u64 {
            let now = Time(1000 + request * 100);
            // Two connections in turn: the other one is expected, and never comes first.
            let other = returns.expect(now, 50);
            if returns.worth_waiting(now, 1) {
                waits += 1;
                returns.waited(1);
            }
            returns.came(other);
        }
        assert!((1..=20).contains(&waits), "{waits} waits in vain");
    }

    #[test]
    fn a_calendar_that_slept_for_long_is_empty() {
        let mut returns = Returns::new(MAX_DELAY_US);
        for gap in 0..100 {
            returns.expect(Time(0), gap * 100);
        }
        assert_eq!(returns.calendar.soon(Time(u64::from(u32::MAX) * 300)), 0);
        assert!(returns.calendar.counts.iter().all(|count| *count == 0));
    }
}
