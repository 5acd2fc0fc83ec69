//! Returns freed memory from the C library's allocator to the system.
//!
//! Buffers of sessions grow, shrink and end in any order, so the heap gets holes. glibc keeps these
//! holes. It also raises its mmap threshold to the size of the largest mapped buffer that was
//! freed. Then bounded memory takes several times as much of the machine's memory. So the threshold
//! is fixed here, and a worker trims the heap when the process has grown by more than the engines
//! count.

use std::fs::File;
use std::time::Instant;

/// Smallest buffer that glibc maps by itself; its pages go back when it is freed. This is glibc's
/// initial threshold.
const PAGED_BYTES: usize = 128 << 10;

/// Smallest free block at the end of a heap that glibc returns to the system.
const TRIM_BYTES: usize = 1 << 20;

/// The pause after a trim, in multiples of the time that the trim took. A trim blocks its worker.
const PAUSE_TIMES: u32 = 32;

/// Fixes glibc's thresholds. Called once, before the workers start.
pub(crate) fn set_up() {
    glibc::set(glibc::M_MMAP_THRESHOLD, PAGED_BYTES);
    glibc::set(glibc::M_TRIM_THRESHOLD, TRIM_BYTES);
}

/// Trims the heap for one worker.
pub(crate) struct Allocator {
    /// `/proc/self/statm`: the page counts of the process. `None`: it cannot be opened.
    statm: Option<File>,
    policy: TrimPolicy,
}

impl Allocator {
    /// `memory_bytes_max` is the memory bound of the worker.
    pub(crate) fn new(memory_bytes_max: u64) -> Allocator {
        Allocator {
            // Without this file the heap is never trimmed.
            statm: File::open("/proc/self/statm").ok(),
            policy: TrimPolicy::new(memory_bytes_max),
        }
    }

    /// Takes another memory bound of the worker.
    pub(crate) fn set_bound(&mut self, memory_bytes_max: u64) {
        self.policy.step = TrimPolicy::step_of(memory_bytes_max);
    }

    /// Trims the heap if the process has grown by much more than the `counted` bytes of its
    /// engines.
    pub(crate) fn trim_if_due(&mut self, counted: u64) {
        let began = Instant::now();
        let Some(resident) = self.resident() else {
            return;
        };
        if !self.policy.is_due(resident, counted, began) {
            return;
        }
        glibc::trim();
        let resident = self.resident().unwrap_or(resident);
        self.policy
            .handle_trimmed(resident, counted, began, Instant::now());
    }

    /// Resident bytes of the process without its shared pages.
    fn resident(&self) -> Option<u64> {
        let mut text = [0; 128];
        let count = rustix::io::pread(self.statm.as_ref()?, &mut text, 0).ok()?;
        let text = str::from_utf8(&text[..count]).ok()?;
        // The fields: all pages, resident pages, and resident pages that are shared or file-backed.
        let mut pages = text.split(' ').skip(1).map(str::parse);
        let (resident, shared): (u64, u64) = (pages.next()?.ok()?, pages.next()?.ok()?);
        let page = rustix::param::page_size() as u64;
        Some(resident.saturating_sub(shared) * page)
    }
}

/// Decides when the heap is trimmed. Resident bytes minus counted bytes are the overhead.
#[derive(Debug)]
struct TrimPolicy {
    /// Growth of the overhead, in bytes, that triggers a trim.
    step: u64,
    /// The smallest overhead since the last trim, in bytes. Unknown at first.
    least: Option<u64>,
    /// End of the pause after the last trim.
    not_before: Option<Instant>,
}

impl TrimPolicy {
    fn step_of(memory_bytes_max: u64) -> u64 {
        (memory_bytes_max / 32).clamp(1 << 20, 32 << 20)
    }

    fn new(memory_bytes_max: u64) -> TrimPolicy {
        TrimPolicy {
            step: TrimPolicy::step_of(memory_bytes_max),
            least: None,
            not_before: None,
        }
    }

    fn is_due(&mut self, resident: u64, counted: u64, now: Instant) -> bool {
        let overhead = resident.saturating_sub(counted);
        let least = self.least.map_or(overhead, |least| least.min(overhead));
        self.least = Some(least);
        overhead > least + self.step && self.not_before.is_none_or(|at| now >= at)
    }

    fn handle_trimmed(&mut self, resident: u64, counted: u64, began: Instant, now: Instant) {
        self.least = Some(resident.saturating_sub(counted));
        self.not_before = Some(now + now.saturating_duration_since(began) * PAUSE_TIMES);
    }
}

#[cfg(target_env = "gnu")]
mod glibc {
    use std::ffi::c_int;

    pub(super) const M_TRIM_THRESHOLD: c_int = -1;
    pub(super) const M_MMAP_THRESHOLD: c_int = -3;

    #[allow(unsafe_code)]
    // SAFETY: the declarations are those of glibc's malloc.h. Neither function takes a pointer, and
    // both may be called from any thread at any time: they take the allocator's own locks.
    unsafe extern "C" {
        safe fn mallopt(param: c_int, value: c_int) -> c_int;
        safe fn malloc_trim(pad: usize) -> c_int;
    }

    pub(super) fn set(param: c_int, value: usize) {
        // An allocator that does not know the parameter ignores it.
        mallopt(param, value as c_int);
    }

    pub(super) fn trim() {
        malloc_trim(0);
    }
}

/// Other C libraries have no such calls.
#[cfg(not(target_env = "gnu"))]
mod glibc {
    pub(super) const M_TRIM_THRESHOLD: i32 = -1;
    pub(super) const M_MMAP_THRESHOLD: i32 = -3;

    pub(super) fn set(_param: i32, _value: usize) {}

    pub(super) fn trim() {}
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Growth that the engines count triggers no trim. Growth beyond it triggers one.
    #[test]
    fn uncounted_growth_is_trimmed() {
        let mut policy = TrimPolicy::new(32 * MIB);
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        assert!(!policy.is_due(10 * MIB, 0, at(0)), "the first look");
        assert!(!policy.is_due(40 * MIB, 30 * MIB, at(1)));
        assert!(!policy.is_due(41 * MIB, 30 * MIB, at(2)));
        assert!(policy.is_due(42 * MIB, 30 * MIB, at(3)));
        policy.handle_trimmed(42 * MIB, 30 * MIB, at(3), at(4));
        let later = at(1_000);
        assert!(!policy.is_due(42 * MIB, 30 * MIB, later), "no gain");
        assert!(policy.is_due(42 * MIB, 20 * MIB, later), "sessions closed");
    }

    /// After a trim that takes 10 ms, the next one waits 320 ms.
    #[test]
    fn trim_is_followed_by_a_longer_pause() {
        let mut policy = TrimPolicy::new(32 * MIB);
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        assert!(!policy.is_due(10 * MIB, 0, at(0)));
        policy.handle_trimmed(10 * MIB, 0, at(0), at(10));
        assert!(!policy.is_due(30 * MIB, 0, at(329)));
        assert!(policy.is_due(30 * MIB, 0, at(330)));
    }

    /// Freed memory between blocks that are in use goes back to the system.
    #[test]
    fn freed_memory_goes_back_to_the_system() {
        set_up();
        let mut allocator = Allocator::new(32 * MIB);
        allocator.trim_if_due(0);
        let Some(before) = allocator.resident() else {
            return;
        };
        let mut buffers: Vec<Vec<u8>> = (0..4_000).map(|_| vec![1; 16 << 10]).collect();
        let full = allocator.resident().expect("statm was readable before");
        assert!(full > before + 40 * MIB, "{full} after {before}");
        let mut number = 0;
        buffers.retain(|_| {
            number += 1;
            number % 16 == 0
        });
        allocator.trim_if_due(4 * MIB);
        let after = allocator.resident().expect("statm was readable before");
        assert!(after < before + 20 * MIB, "{after} after {before}");
    }
}
