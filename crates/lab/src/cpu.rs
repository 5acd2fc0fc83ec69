//! The cost of a process: CPU time and memory, as the kernel counts them. No other module reads
//! them.
//!
//! **CPU.** Two counters of Linux are read for every process, with all its threads:
//!
//! - `/proc/PID/task/*/schedstat`, first field: nanoseconds on a CPU. The *total* comes from here.
//!   It is exact for a sleeping thread. For a running one it is late by up to one scheduler tick (1
//!   to 10 ms, by the kernel's configuration). In a window of one second that is at most one
//!   percent, and it does not add up.
//! - `/proc/PID/stat`, `utime` and `stime`: their ratio *splits* the total into user and system.
//!   They are in hundredths of a second, and the kernel itself splits by samples at its ticks. So a
//!   split over a second has an error of a few percent. A window with less than one hundredth has
//!   no split.
//!
//! The total falls back to `utime + stime` where there is no `schedstat`, and for a window in which
//! a thread ended, as its nanoseconds ended with it. [`CpuUsage::clock`] says which counter it was.
//! The kernel scales `utime + stime` to the same nanoseconds, so that total is coarser, but no
//! other measure.
//!
//! **Memory.** `/proc/PID/smaps_rollup`: resident bytes, and the proportional share, which counts a
//! page of several processes in parts.

use std::fs;
use std::io;

use serde::{Deserialize, Serialize};

/// The CPU time of a process, or of several as one, at a reading. The default is a process before
/// its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Each thread's nanoseconds on a CPU, sorted by thread. Empty where the kernel has no
    /// `schedstat`.
    threads: Vec<(u32, u64)>,
    user_ticks: u64,
    system_ticks: u64,
    /// Number of further processes in it.
    others: u32,
}

/// CPU time of a process between two readings, seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuUsage {
    /// User and system together.
    pub used_s: f64,
    /// Time in its own code. `None`: too little to split.
    pub user_s: Option<f64>,
    /// Time in the kernel. `None`: too little to split.
    pub system_s: Option<f64>,
    /// The counter that [`CpuUsage::used_s`] comes from.
    pub clock: Clock,
}

/// The counter of a total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// Nanoseconds of each thread.
    Schedstat,
    /// Hundredths of a second of the process.
    Ticks,
}

/// Reads a process with all its threads.
///
/// # Errors
/// When there is no such process, or the kernel's text has another form than documented.
pub fn read(pid: u32) -> io::Result<Reading> {
    let (user_ticks, system_ticks) =
        parse_stat(&read_proc(pid, "stat")?).ok_or_else(|| malformed(pid, "stat"))?;
    Ok(Reading {
        threads: read_threads(pid),
        user_ticks,
        system_ticks,
        others: 0,
    })
}

/// Reads several processes as one; at least one.
///
/// # Errors
/// As [`read`], for any of them.
pub fn read_all(pids: &[u32]) -> io::Result<Reading> {
    let Some((first, others)) = pids.split_first() else {
        return Err(io::Error::other("no process to read"));
    };
    let mut sum = read(*first)?;
    for pid in others {
        let other = read(*pid)?;
        sum.threads.extend(other.threads);
        sum.user_ticks += other.user_ticks;
        sum.system_ticks += other.system_ticks;
        sum.others += 1;
    }
    sum.threads.sort_unstable();
    Ok(sum)
}

impl Reading {
    /// CPU time since an earlier reading of the same process.
    pub fn since(&self, earlier: &Reading) -> CpuUsage {
        let user = ticks_s(self.user_ticks.saturating_sub(earlier.user_ticks));
        let system = ticks_s(self.system_ticks.saturating_sub(earlier.system_ticks));
        let ticks = user + system;
        // A thread that began and ended in between is in the ticks alone.
        let by_thread = self
            .thread_ns_since(earlier)
            .map(|ns| ns as f64 / 1e9)
            .filter(|&seconds| seconds > ticks - TICKS_ERROR_S * f64::from(1 + self.others));
        let used_s = by_thread.unwrap_or(ticks);
        // Scales the ticks to the total, which is more exact.
        let part = |part: f64| (ticks > 0.0).then(|| used_s * part / ticks);
        CpuUsage {
            used_s,
            user_s: part(user),
            system_s: part(system),
            clock: if by_thread.is_some() {
                Clock::Schedstat
            } else {
                Clock::Ticks
            },
        }
    }

    /// `None` when a thread of the earlier reading has ended, or there is nothing to compare.
    fn thread_ns_since(&self, earlier: &Reading) -> Option<u64> {
        let now = |thread| {
            let place = self
                .threads
                .binary_search_by_key(&thread, |&(id, _)| id)
                .ok()?;
            Some(self.threads[place].1)
        };
        let before: u64 = earlier.threads.iter().map(|&(_, ns)| ns).sum();
        if self.threads.is_empty() || !earlier.threads.iter().all(|&(id, _)| now(id).is_some()) {
            return None;
        }
        // A thread that began in between starts at zero, so it counts in full.
        let after: u64 = self.threads.iter().map(|&(_, ns)| ns).sum();
        Some(after.saturating_sub(before))
    }
}

impl CpuUsage {
    /// No CPU time.
    pub const NONE: CpuUsage = CpuUsage {
        used_s: 0.0,
        user_s: None,
        system_s: None,
        clock: Clock::Schedstat,
    };

    /// Microseconds of CPU time for each request.
    pub fn us_per_request(&self, requests: u64) -> Option<f64> {
        (requests > 0).then(|| self.used_s * 1e6 / requests as f64)
    }
}

/// The CPU time of all cores of the machine at a reading, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MachineReading {
    /// Time in which cores were busy, without the time that the hypervisor took.
    pub busy_s: f64,
    /// Time that the hypervisor took for other machines.
    pub stolen_s: f64,
}

/// Reads the machine as a whole, in hundredths of a second.
///
/// # Errors
/// When the kernel's text has another form than documented.
pub fn read_machine() -> io::Result<MachineReading> {
    let text = fs::read_to_string("/proc/stat")?;
    parse_machine(&text).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "/proc/stat is not as documented",
        )
    })
}

/// The memory of a process, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMemory {
    /// Resident memory.
    pub rss_bytes: u64,
    /// Its proportional share of resident memory.
    pub pss_bytes: u64,
    /// The anonymous part of that share.
    pub anonymous_bytes: u64,
}

/// Reads the memory of a process.
///
/// # Errors
/// When there is no such process, or it belongs to another user.
pub fn read_memory(pid: u32) -> io::Result<ProcessMemory> {
    parse_rollup(&read_proc(pid, "smaps_rollup")?).ok_or_else(|| malformed(pid, "smaps_rollup"))
}

/// The number of threads of a process.
pub fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// Linux reports hundredths of a second (`USER_HZ`) to user space, for any tick of the kernel.
const TICKS_PER_SECOND: f64 = 100.0;

/// The largest error of a difference of two such figures: user and system are each cut to a whole
/// tick, and the nanoseconds of a running thread are late by a scheduler tick.
const TICKS_ERROR_S: f64 = 0.03;

fn ticks_s(ticks: u64) -> f64 {
    ticks as f64 / TICKS_PER_SECOND
}

fn read_proc(pid: u32, file: &str) -> io::Result<String> {
    let path = format!("/proc/{pid}/{file}");
    fs::read_to_string(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))
}

fn malformed(pid: u32, file: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("/proc/{pid}/{file} is not as documented"),
    )
}

fn read_threads(pid: u32) -> Vec<(u32, u64)> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let mut threads: Vec<(u32, u64)> = tasks
        .flatten()
        .filter_map(|task| {
            let id = task.file_name().to_str()?.parse().ok()?;
            // A thread that ends meanwhile is just not there any more.
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            Some((id, parse_schedstat(&text)?))
        })
        .collect();
    threads.sort_unstable();
    threads
}

/// `utime` and `stime` of `/proc/PID/stat`. The program's name stands in brackets and may contain
/// spaces and brackets, so fields count from the *last* closing one.
fn parse_stat(text: &str) -> Option<(u64, u64)> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn parse_machine(text: &str) -> Option<MachineReading> {
    // cpu  user nice system idle iowait irq softirq steal ...
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    let at = |place: usize| ticks.get(place).copied().map(ticks_s);
    let busy_s = at(0)? + at(1)? + at(2)? + at(5)? + at(6)?;
    Some(MachineReading {
        busy_s,
        stolen_s: at(7)?,
    })
}

fn parse_schedstat(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

fn parse_rollup(text: &str) -> Option<ProcessMemory> {
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    };
    Some(ProcessMemory {
        rss_bytes: bytes("Rss:")?,
        pss_bytes: bytes("Pss:")?,
        // Kernels before 5.9 lack it.
        anonymous_bytes: bytes("Pss_Anon:").unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn stat(name: &str) -> String {
        format!(
            "6150 ({name}) R 1 2 3 4 -1 4194304 104 0 0 0 123 456 7 8 20 0 1 0 106472 3133440 360"
        )
    }

    /// A program name with spaces and brackets does not shift the fields of /proc/PID/stat.
    #[test]
    fn program_name_does_not_shift_the_stat_fields() {
        for name in [
            "cat",
            "redis-server *:1",
            "a) R 9 9 (b",
            "((",
            "))",
            ") 1 2 3",
            "",
        ] {
            assert_eq!(parse_stat(&stat(name)), Some((123, 456)), "{name:?}");
        }
    }

    /// A line that is no stat line is refused.
    #[test]
    fn invalid_stat_line_is_refused() {
        for text in [
            "",
            "6150 (cat",
            "6150 (cat) R 1 2",
            "1 (c) R 1 2 3 4 5 6 7 8 9 10 x 5 6",
        ] {
            assert_eq!(parse_stat(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_rollup_is_read_in_bytes() {
        let text = "55f6-7ffe ---p 00000000 00:00 0  [rollup]\nRss:    1740 kB\nPss:     304 kB\n\
                    Pss_Dirty:  116 kB\nPss_Anon:  116 kB\n";
        let memory = parse_rollup(text).unwrap();
        assert_eq!(
            (memory.rss_bytes, memory.pss_bytes),
            (1740 << 10, 304 << 10)
        );
        assert_eq!(memory.anonymous_bytes, 116 << 10);
        assert_eq!(parse_rollup("Rss: many kB"), None);
    }

    #[test]
    fn the_machine_is_busy_with_everything_but_idling() {
        let text = "cpu  100 20 300 99999 55555 4 6 70 1 1\ncpu0 1 2 3\n";
        let found = parse_machine(text).unwrap();
        assert!((found.busy_s - 4.3).abs() < 1e-9 && (found.stolen_s - 0.7).abs() < 1e-9);
        assert_eq!(parse_machine("cpu 1 2 3"), None);
        assert!(read_machine().unwrap().busy_s > 0.0);
    }

    fn reading(threads: &[(u32, u64)], user: u64, system: u64) -> Reading {
        Reading {
            threads: threads.to_vec(),
            user_ticks: user,
            system_ticks: system,
            others: 0,
        }
    }

    /// The total is of all threads, and the ticks split it into user and system.
    #[test]
    fn cpu_total_covers_all_threads() {
        let before = reading(&[(1, 1_000_000), (2, 5_000_000)], 10, 20);
        let after = reading(
            &[(1, 401_000_000), (2, 5_000_000), (3, 100_000_000)],
            22,
            58,
        );
        let usage = after.since(&before);
        assert_eq!(usage.clock, Clock::Schedstat);
        assert!((usage.used_s - 0.5).abs() < 1e-9);
        assert!((usage.user_s.unwrap() - 0.12).abs() < 1e-9);
        assert!((usage.system_s.unwrap() - 0.38).abs() < 1e-9);
        assert_eq!(usage.us_per_request(1000), Some(500.0));
        assert_eq!(usage.us_per_request(0), None);
    }

    #[test]
    fn a_thread_that_ended_takes_the_total_from_the_ticks() {
        let before = reading(&[(1, 1_000), (2, 5_000_000)], 10, 20);
        let after = reading(&[(1, 2_000)], 22, 58);
        let usage = after.since(&before);
        assert_eq!(usage.clock, Clock::Ticks);
        assert!((usage.used_s - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_thread_that_came_and_went_is_in_the_total() {
        let usage = reading(&[(1, 5_000_000)], 30, 70).since(&Reading::default());
        assert_eq!((usage.clock, usage.used_s), (Clock::Ticks, 1.0));
        let usage = reading(&[(1, 995_000_000)], 30, 70).since(&Reading::default());
        assert_eq!((usage.clock, usage.used_s), (Clock::Schedstat, 0.995));
    }

    #[test]
    fn less_than_a_tick_is_not_split() {
        let usage = reading(&[(1, 3_000_000)], 10, 20).since(&reading(&[(1, 0)], 10, 20));
        assert!((usage.used_s - 0.003).abs() < 1e-12);
        assert_eq!((usage.user_s, usage.system_s), (None, None));
    }

    #[test]
    fn the_work_of_this_process_shows() {
        let pid = std::process::id();
        let before = read(pid).unwrap();
        let mut sum = 0u64;
        let begin = std::time::Instant::now();
        while begin.elapsed().as_millis() < 60 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let usage = read(pid).unwrap().since(&before);
        assert!(usage.used_s > 0.0 || sum == 0);
        assert!(read_memory(pid).unwrap().rss_bytes > 0);
        assert!(threads(pid) >= 1);
    }

    #[test]
    fn several_processes_are_read_as_one() {
        // No thread of these ends meanwhile, as one of this process or of its parent may.
        let start = || Command::new("sleep").arg("60").spawn().unwrap();
        let mut sleepers = [start(), start()];
        let [own, other] = sleepers.each_ref().map(Child::id);
        let (one, both) = (read(own).unwrap(), read_all(&[own, other]).unwrap());
        let usage = read_all(&[own, other]).unwrap().since(&both);
        for sleeper in &mut sleepers {
            sleeper.kill().unwrap();
            sleeper.wait().unwrap();
        }
        assert_eq!((one.others, both.others), (0, 1));
        assert!(both.user_ticks + both.system_ticks >= one.user_ticks + one.system_ticks);
        let has = |thread: &u32| both.threads.iter().any(|(id, _)| id == thread);
        assert!(has(&own) && has(&other) && both.threads.is_sorted());
        assert_eq!(usage.clock, Clock::Schedstat, "no thread is missed");
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        // Above the largest process id of Linux.
        assert!(read(u32::MAX).is_err());
        assert!(read_all(&[std::process::id(), u32::MAX]).is_err());
        assert!(read_all(&[]).is_err());
        assert!(read_memory(u32::MAX).is_err());
    }
}
