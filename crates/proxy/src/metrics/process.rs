//! Figures of the process, from `/proc`.

use std::fs;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use crate::log_lines::lines_lost;

/// Figures of this process. `None`: the system does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ProcessFigures {
    /// CPU time in user mode, seconds.
    pub(crate) user_s: Option<f64>,
    /// CPU time in the kernel, seconds.
    pub(crate) system_s: Option<f64>,
    /// Open file descriptors.
    pub(crate) open_fds: Option<f64>,
    /// The limit of open file descriptors.
    pub(crate) max_fds: Option<f64>,
    /// Memory in RAM.
    pub(crate) resident_bytes: Option<f64>,
    /// Address space.
    pub(crate) virtual_bytes: Option<f64>,
    /// The start, seconds since 1970.
    pub(crate) started_s: Option<f64>,
    /// Log lines that were lost since the start.
    pub(crate) log_lines_lost: Option<f64>,
}

impl ProcessFigures {
    /// The figures of this moment. `started_s`: the start, seconds since 1970.
    pub(crate) fn read(started_s: f64) -> ProcessFigures {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let [user_s, system_s] = cpu_of(&stat, clock_ticks_per_second() as f64);
        let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let [virtual_bytes, resident_bytes] = memory_of(&statm, page_size() as f64);
        // The directory is open while it is read.
        let open = fs::read_dir("/proc/self/fd").map(|entries| entries.count().saturating_sub(1));
        ProcessFigures {
            user_s,
            system_s,
            open_fds: open.ok().map(|count| count as f64),
            max_fds: getrlimit(Resource::Nofile)
                .current
                .map(|limit| limit as f64),
            resident_bytes,
            virtual_bytes,
            started_s: Some(started_s),
            log_lines_lost: Some(lines_lost() as f64),
        }
    }
}

/// CPU time in user mode and in the kernel: fields 14 and 15 of `/proc/self/stat`, in ticks. The
/// name of the program may hold spaces and brackets, so the fields are counted behind its last
/// bracket.
fn cpu_of(stat: &str, ticks_per_s: f64) -> [Option<f64>; 2] {
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut next = || Some(fields.next()?.parse::<u64>().ok()? as f64 / ticks_per_s);
    [next(), next()]
}

/// Address space and memory in RAM: the first two fields of `/proc/self/statm`, in pages.
fn memory_of(statm: &str, page_bytes: f64) -> [Option<f64>; 2] {
    let mut fields = statm.split_ascii_whitespace();
    let mut next = || Some(fields.next()?.parse::<u64>().ok()? as f64 * page_bytes);
    [next(), next()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_proc_are_read_by_their_place() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 250 150 16 17";
        assert_eq!(cpu_of(stat, 100.0), [Some(2.5), Some(1.5)]);
        assert_eq!(cpu_of("", 100.0), [None, None]);
        assert_eq!(memory_of("20 5 1", 4096.0), [Some(81920.0), Some(20480.0)]);
        assert_eq!(memory_of("x", 4096.0), [None, None]);
    }

    /// This test has used some CPU time and memory, and has descriptors open.
    #[test]
    fn own_process_has_all_figures() {
        let figures = ProcessFigures::read(1.0);
        let cpu = figures.user_s.unwrap() + figures.system_s.unwrap();
        assert!((0.0..1e6).contains(&cpu), "{cpu}");
        assert!(figures.open_fds.unwrap() >= 3.0, "{figures:?}");
        assert!(figures.max_fds.unwrap() >= figures.open_fds.unwrap());
        assert!(figures.resident_bytes.unwrap() > 1e5, "{figures:?}");
        assert!(figures.virtual_bytes.unwrap() >= figures.resident_bytes.unwrap());
    }
}
