//! CPU time and run-queue time of a worker's thread.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use respool_engine::Usage;
use rustix::time::{ClockId, clock_gettime};

/// Digits of a 64-bit number and the space behind it.
const NUMBER_BYTES_MAX: usize = 21;

/// Measures the thread that created it.
#[derive(Debug)]
pub(crate) struct Meter {
    /// `/proc/thread-self/schedstat`. `None`: the kernel does not have it.
    schedstat: Option<File>,
    /// Time on a run queue, microseconds, from the last read of `schedstat`.
    waited_us: u64,
}

impl Meter {
    pub(crate) fn of_this_thread() -> Meter {
        Meter {
            schedstat: File::open("/proc/thread-self/schedstat").ok(),
            waited_us: 0,
        }
    }

    /// The thread's CPU time and its time on a run queue.
    pub(crate) fn usage(&mut self) -> Usage {
        let ran = clock_gettime(ClockId::ThreadCPUTime);
        let ran = Duration::new(ran.tv_sec.unsigned_abs(), ran.tv_nsec as u32);
        if let Some(waited_us) = self.read_waited_us() {
            self.waited_us = waited_us;
        }
        Usage {
            ran_us: ran.as_micros() as u64,
            waited_us: self.waited_us,
        }
    }

    fn read_waited_us(&self) -> Option<u64> {
        let mut bytes = [0; 3 * NUMBER_BYTES_MAX];
        let len = self.schedstat.as_ref()?.read_at(&mut bytes, 0).ok()?;
        waited_us(str::from_utf8(&bytes[..len]).ok()?)
    }
}

/// The second number of `schedstat`: nanoseconds on a run queue
/// (`Documentation/scheduler/sched-stats.rst`). A kernel without these statistics writes 0.
fn waited_us(schedstat: &str) -> Option<u64> {
    let waited_ns: u64 = schedstat.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(waited_ns / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time on a run queue is the second number of `schedstat`.
    #[test]
    fn waiting_time_is_the_second_number() {
        assert_eq!(waited_us("123456789 5000999 42\n"), Some(5_000));
        for odd in ["", "1", "1 x 3", "1 -2 3"] {
            assert_eq!(waited_us(odd), None, "{odd:?}");
        }
    }

    /// For a thread that computes, CPU time or run-queue time grows.
    #[test]
    fn busy_thread_uses_or_awaits_a_processor() {
        let mut meter = Meter::of_this_thread();
        let mut total = || {
            let usage = meter.usage();
            usage.ran_us + usage.waited_us
        };
        let before = total();
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_millis(50) {}
        // Both clocks leave out the time that other virtual machines take.
        let used = total() - before;
        assert!((1_000..1_000_000).contains(&used), "{used}");
    }
}
