//! The clock that processes share, and how tests wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the machine's monotonic clock: the same for every process.
pub fn clock_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Waits until the condition holds. Panics with the claim when it does not in time.
#[track_caller]
pub fn wait_until(claim: &str, limit: Duration, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {limit:?}: {claim}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A stopwatch without the time in which this process got no CPU. A test that bounds a duration
/// bounds respool's time, and not that of other programs on the machine.
///
/// A thread only sleeps. The time by which it wakes late is the time that all other
/// threads were late, too.
pub struct Watch {
    shared: Arc<WatchShared>,
    begun: Instant,
}

#[derive(Default)]
struct WatchShared {
    is_over: AtomicBool,
    /// When it last woke, microseconds from the start.
    woke_us: AtomicU64,
    /// Sum of the time by which its naps were too long, microseconds.
    late_us: AtomicU64,
}

impl Watch {
    /// A nap, with the longest wake-up on an idle machine.
    const NAP: Duration = Duration::from_millis(6);

    /// Starts it.
    pub fn start() -> Watch {
        let (shared, begun) = (Arc::new(WatchShared::default()), Instant::now());
        let watched = Arc::clone(&shared);
        thread::spawn(move || {
            while !watched.is_over.load(Ordering::SeqCst) {
                let asleep = Instant::now();
                thread::sleep(Watch::NAP - Duration::from_millis(1));
                let late = asleep.elapsed().saturating_sub(Watch::NAP);
                let late_us = late.as_micros() as u64;
                watched.late_us.fetch_add(late_us, Ordering::SeqCst);
                let woke_us = begun.elapsed().as_micros() as u64;
                watched.woke_us.store(woke_us, Ordering::SeqCst);
            }
        });
        Watch { shared, begun }
    }

    /// The time since it was started.
    pub fn elapsed(&self) -> Duration {
        let late = self.shared.late_us.load(Ordering::SeqCst);
        let woke = Duration::from_micros(self.shared.woke_us.load(Ordering::SeqCst));
        let elapsed = self.begun.elapsed();
        // The current nap is too long by this.
        let overdue = elapsed.saturating_sub(woke + Watch::NAP);
        elapsed.saturating_sub(Duration::from_micros(late) + overdue)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A watch runs while a thread waits, and stands still while no thread gets the machine.
    #[test]
    fn watch_leaves_out_time_without_the_machine() {
        let watch = Watch::start();
        thread::sleep(Duration::from_millis(300));
        let asleep = watch.elapsed();
        // On an overloaded machine, most of the time is taken off.
        let real = watch.begun.elapsed();
        let late = Duration::from_micros(watch.shared.late_us.load(Ordering::SeqCst));
        assert!(asleep <= real, "{asleep:?} of {real:?}");
        assert!(asleep + late + 4 * Watch::NAP >= Duration::from_millis(300));
        // As if its thread had slept through half a second.
        let late_us = 500_000;
        watch.shared.late_us.fetch_add(late_us, Ordering::SeqCst);
        let behind = watch.elapsed();
        assert!(behind < asleep, "{behind:?} behind {asleep:?}");
    }
}
