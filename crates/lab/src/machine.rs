//! Facts about the machine, for readers with another one.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The properties of the machine that figures depend on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The kernel's name for the CPU.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Name of the distribution.
    pub system: String,
    /// Whether it runs under a hypervisor.
    pub is_virtual: bool,
    /// Runnable processes, averaged over the minute before the run.
    pub load_before: f64,
}

impl Machine {
    /// Reads this machine.
    pub fn look() -> Machine {
        let cpuinfo = read("/proc/cpuinfo");
        let os = read("/etc/os-release");
        let memory = field(&read("/proc/meminfo"), "MemTotal:")
            .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
        Machine {
            cpu: field(&cpuinfo, "model name").map_or_else(
                || "unknown".to_owned(),
                |text| text.trim_start_matches([':', ' ']).to_owned(),
            ),
            cores: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            memory_bytes: memory.unwrap_or(0) * 1024,
            kernel: format!(
                "{} {}",
                std::env::consts::ARCH,
                read("/proc/sys/kernel/osrelease").trim()
            ),
            system: field(&os, "PRETTY_NAME=").map_or_else(
                || "unknown".to_owned(),
                |text| text.trim_matches('"').to_owned(),
            ),
            is_virtual: field(&cpuinfo, "flags").is_some_and(|flags| flags.contains(" hypervisor")),
            load_before: read("/proc/loadavg")
                .split_whitespace()
                .next()
                .and_then(|text| text.parse().ok())
                .unwrap_or(0.0),
        }
    }
}

/// Seconds since 1970, as `2026-11-21T20:30:05Z`.
pub fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, which puts the leap day last; an era is 400 years.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Now, seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // From `date -u -d @SECONDS`.
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), expected);
        }
    }

    #[test]
    fn this_machine_has_a_name_and_a_core() {
        let machine = Machine::look();
        assert!(
            machine.cores >= 1 && machine.memory_bytes > 0 && !machine.kernel.trim().is_empty()
        );
    }
}
