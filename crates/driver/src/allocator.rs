//! Memory that the C library's allocator keeps after it was freed.
//!
//! Buffers of sessions grow, shrink and go in any order, so the heap gets holes. glibc keeps them.
//! It also raises the size from which a buffer has pages of its own to that of the largest such
//! buffer ever freed. Then bounded memory takes several times as much of the machine's memory. So
//! that size is fixed here, and a worker has the holes given back when the process has grown by
//! more than the engine counts.

use std::fs::File;
use std::time::Instant;

/// Buffers from this size on have pages of their own, which go back when the buffer is freed. It is
/// glibc's own size before the first such buffer is freed.
const PAGED_BYTES: usize = 128 << 10;

/// Free memory at the end of a heap goes back from this size on.
const TRIM_BYTES: usize = 1 << 20;

/// The pause after giving memory back, in multiples of the time that it took: it takes a worker's
/// time.
const PAUSE_TIMES: u32 = 32;

/// The process begins: large buffers get pages of their own.
pub(crate) fn set_up() {
    glibc::set(glibc::M_MMAP_THRESHOLD, PAGED_BYTES);
    glibc::set(glibc::M_TRIM_THRESHOLD, TRIM_BYTES);
}

/// One worker's part in giving back free memory.
pub(crate) struct Allocator {
    /// The file with the number of the process's pages.
    statm: Option<File>,
    rule: Rule,
}

impl Allocator {
    /// `max` is the worker's bound.
    pub(crate) fn new(max: u64) -> Allocator {
        Allocator {
            // If it cannot be read, free memory stays with the allocator.
            statm: File::open("/proc/self/statm").ok(),
            rule: Rule::new(max),
        }
    }

    /// Gives back free memory if the process has grown by much more than the `counted` bytes of its
    /// engines.
    pub(crate) fn settle(&mut self, counted: u64) {
        let began = Instant::now();
        let Some(resident) = self.resident() else {
            return;
        };
        if !self.rule.is_due(resident, counted, began) {
            return;
        }
        glibc::trim();
        let resident = self.resident().unwrap_or(resident);
        self.rule.was_done(resident, counted, began, Instant::now());
    }

    /// Bytes of memory that the process has for itself.
    fn resident(&self) -> Option<u64> {
        let mut text = [0; 128];
        let count = rustix::io::pread(self.statm.as_ref()?, &mut text, 0).ok()?;
        let text = str::from_utf8(&text[..count]).ok()?;
        // All pages, resident ones, and those of these that are shared or of files.
        let mut pages = text.split(' ').skip(1).map(str::parse);
        let (resident, shared): (u64, u64) = (pages.next()?.ok()?, pages.next()?.ok()?);
        let page = rustix::param::page_size() as u64;
        Some(resident.saturating_sub(shared) * page)
    }
}

/// When free memory is to be given back.
#[derive(Debug)]
struct Rule {
    /// Free memory is given back after this much growth.
    step: u64,
    /// The least that the process had beyond the counted bytes since free memory was last given
    /// back. Unknown at first.
    least: Option<u64>,
    /// The end of the pause.
    not_before: Option<Instant>,
}

impl Rule {
    fn new(max: u64) -> Rule {
        Rule {
            step: (max / 32).clamp(1 << 20, 32 << 20),
            least: None,
            not_before: None,
        }
    }

    fn is_due(&mut self, resident: u64, counted: u64, now: Instant) -> bool {
        let beyond = resident.saturating_sub(counted);
        let least = self.least.map_or(beyond, |least| least.min(beyond));
        self.least = Some(least);
        beyond > least + self.step && self.not_before.is_none_or(|at| now >= at)
    }

    fn was_done(&mut self, resident: u64, counted: u64, began: Instant, now: Instant) {
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
        // An allocator that does not know the parameter goes on as before.
        mallopt(param, value as c_int);
    }

    pub(super) fn trim() {
        malloc_trim(0);
    }
}

/// Other allocators know no such calls.
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

    /// Growth that the engine counts is needed. Growth beyond that is given back once.
    #[test]
    fn uncounted_growth_is_given_back() {
        let mut rule = Rule::new(32 * MIB);
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        assert!(!rule.is_due(10 * MIB, 0, at(0)), "the first look");
        assert!(!rule.is_due(40 * MIB, 30 * MIB, at(1)));
        assert!(!rule.is_due(41 * MIB, 30 * MIB, at(2)));
        assert!(rule.is_due(42 * MIB, 30 * MIB, at(3)));
        rule.was_done(42 * MIB, 30 * MIB, at(3), at(4));
        assert!(!rule.is_due(42 * MIB, 30 * MIB, at(1_000)), "in vain");
        assert!(rule.is_due(42 * MIB, 20 * MIB, at(1_000)), "sessions left");
    }

    /// After memory was given back, a pause follows that is many times as long.
    #[test]
    fn pause_is_many_times_as_long() {
        let mut rule = Rule::new(32 * MIB);
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        assert!(!rule.is_due(10 * MIB, 0, at(0)));
        rule.was_done(10 * MIB, 0, at(0), at(10));
        assert!(!rule.is_due(30 * MIB, 0, at(329)));
        assert!(rule.is_due(30 * MIB, 0, at(330)));
    }

    /// Freed memory between memory that is in use goes back to the machine.
    #[test]
    fn freed_memory_goes_back() {
        set_up();
        let mut allocator = Allocator::new(32 * MIB);
        allocator.settle(0);
        let Some(before) = allocator.resident() else {
            return;
        };
        let mut buffers: Vec<Vec<u8>> = (0..4_000).map(|_| vec![1; 16 << 10]).collect();
        let full = allocator.resident().expect("it could be read before");
        assert!(full > before + 40 * MIB, "{full} after {before}");
        let mut number = 0;
        buffers.retain(|_| {
            number += 1;
            number % 16 == 0
        });
        allocator.settle(4 * MIB);
        let after = allocator.resident().expect("it could be read before");
        assert!(after < before + 20 * MIB, "{after} after {before}");
    }
}
