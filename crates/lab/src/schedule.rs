//! The due times of an open loop.

/// Batches at a fixed rate, even if earlier ones have no reply: batch `n` is due at `start + n /
/// rate`.
///
/// The time comes from `n`, never from a sum, so it does not drift. A late generator sends overdue
/// batches at once. The time of a request counts from when it was *due*: a target that stalls for a
/// second is charged with every request of that second, and not with one per connection.
#[derive(Clone, Debug)]
pub struct Schedule {
    start_ns: u64,
    /// Nanoseconds from one batch to the next.
    interval_ns: f64,
    next: u64,
}

impl Schedule {
    /// So many batches a second from `start_ns` on; more than 0.
    pub fn new(start_ns: u64, batches_per_second: f64) -> Schedule {
        assert!(batches_per_second > 0.0, "a rate above zero");
        Schedule {
            start_ns,
            interval_ns: 1e9 / batches_per_second,
            next: 0,
        }
    }

    /// When the next batch is due.
    pub fn due_ns(&self) -> u64 {
        self.start_ns + (self.next as f64 * self.interval_ns) as u64
    }

    /// Takes the next batch if it is due. Returns its due time.
    pub fn take(&mut self, now_ns: u64) -> Option<u64> {
        let due = self.due_ns();
        (due <= now_ns).then(|| {
            self.next += 1;
            due
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_stall_is_charged_with_every_batch_that_fell_into_it() {
        let mut schedule = Schedule::new(1_000, 1_000.0);
        assert_eq!(schedule.take(999), None);
        assert_eq!(schedule.take(1_000), Some(1_000));
        assert_eq!(schedule.take(1_001), None);
        // A stall of a hundred intervals: a hundred batches, each an interval later than the one
        // before.
        let now = 1_000 + 100_000_000;
        let dues: Vec<u64> = std::iter::from_fn(|| schedule.take(now)).collect();
        assert_eq!(dues.len(), 100);
        assert!(dues.windows(2).all(|pair| pair[1] - pair[0] == 1_000_000));
        assert_eq!(now - dues[0], 99_000_000);
    }

    proptest! {
        #[test]
        fn the_rate_holds_over_any_time_however_often_one_looks(
            rate in 1.0f64..2_000_000.0,
            looks in prop::collection::vec(1u64..50_000_000, 1..50),
        ) {
            let mut schedule = Schedule::new(0, rate);
            let mut now = 0;
            let mut taken = 0u64;
            for step in looks {
                now += step;
                while let Some(due) = schedule.take(now) {
                    prop_assert!(due <= now);
                    taken += 1;
                    if taken > 200_000 { return Ok(()); }
                }
                prop_assert!(schedule.due_ns() > now);
                let expected = now as f64 * rate / 1e9;
                // One batch, and the error of due times in whole nanoseconds.
                let error = 1.0 + rate / 1e9 + 1e-6;
                prop_assert!((taken as f64 - expected).abs() <= error, "{taken} of {expected}");
            }
        }
    }
}
