//! File descriptors: raises the limit to the configured bounds, or lowers the bounds to the limit.

use respool_config::config::Config;
use respool_engine::limits::Limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::metrics::CONNECTIONS_MAX;

/// Descriptors of a worker besides its sessions, links and listeners: its epoll, its mailbox, a
/// spare one to refuse clients with, and those that the C library needs to resolve a name.
const PER_WORKER: u64 = 16;

/// Descriptors of the process besides those of its workers: standard ones, logs, signals, the pipe
/// of the server of `--spawn`.
const PER_PROCESS: u64 = 32;

/// Descriptors of the pages about the process: two of the listener, two of each connection, and as
/// many of connections that are being closed.
const METRICS: u64 = 4 * CONNECTIONS_MAX as u64 + 2;

/// Connections of a worker to one server besides its links: two for logins, two for SCRIPT KILL and
/// FUNCTION KILL. Servers that a Cluster or a Sentinel names later do not count.
const PER_SERVER: u64 = 4;

/// Where descriptors are short, pinned links get at least one in this many of those for sessions
/// and pinned links. Without pinned links, no client could use WATCH or blocking commands.
const PINNED_DIVISOR: u64 = 8;

/// The bounds that need descriptors.
#[derive(Clone, Copy, Debug)]
struct Need {
    /// Sessions of the process.
    sessions_max: u32,
    /// Workers; each opens every listener.
    workers: usize,
    /// Shared links of one worker.
    links_max: u32,
    /// Pinned links of one worker.
    pinned_links_max: u32,
    /// Servers in the configuration.
    servers: usize,
    /// Listeners of one worker.
    listeners: usize,
    /// Whether there are pages about the process.
    has_metrics: bool,
}

impl Need {
    /// Descriptors besides those for sessions and pinned links.
    fn reserve(self) -> u64 {
        let servers = self.servers as u64 * PER_SERVER;
        let worker = u64::from(self.links_max) + self.listeners as u64 + servers + PER_WORKER;
        let metrics = if self.has_metrics { METRICS } else { 0 };
        PER_PROCESS + metrics + self.workers as u64 * worker
    }

    /// Descriptors for pinned links.
    fn pinned(self) -> u64 {
        self.workers as u64 * u64::from(self.pinned_links_max)
    }

    /// Descriptors for everything.
    fn total(self) -> u64 {
        self.reserve() + self.pinned() + u64::from(self.sessions_max)
    }
}

/// The bounds for which there are descriptors. They are never above the configured ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Sessions of the process.
    pub(crate) sessions_max: u32,
    /// Pinned links of one worker.
    pub(crate) pinned_links_max: u32,
}

impl Room {
    /// Lowers the bounds of the engine to those for which there are descriptors.
    pub(crate) fn bound(self, limits: &mut Limits) {
        limits.sessions_max = self.sessions_max;
        limits.pinned_links_max = self.pinned_links_max;
    }
}

/// The result of raising the limit.
#[derive(Debug, PartialEq, Eq)]
enum Granted {
    /// There is a descriptor for every session and link.
    Enough,
    /// There are fewer: the bounds that fit, and a warning for the operator.
    Fewer(Room, String),
    /// There is none for a session; an error for the operator.
    TooFew(String),
}

/// The bounds for which there are file descriptors, and a warning if these are lower than the
/// configured ones. Raises the limit of descriptors.
///
/// # Errors
/// Says that there are too few descriptors, and the remedy.
pub(crate) fn room(config: &Config) -> Result<(Room, Option<String>), String> {
    let limits = config.limits();
    let granted = raise(Need {
        sessions_max: limits.sessions_max,
        workers: config.workers,
        links_max: limits.links_max,
        pinned_links_max: limits.pinned_links_max,
        servers: config.servers(),
        listeners: config.listeners().len(),
        has_metrics: config.metrics_listen.is_some(),
    });
    let all = Room {
        sessions_max: limits.sessions_max,
        pinned_links_max: limits.pinned_links_max,
    };
    match granted {
        Granted::Enough => Ok((all, None)),
        Granted::Fewer(room, text) => Ok((room, Some(text))),
        Granted::TooFew(text) => Err(text),
    }
}

/// Raises the limit of open files to `need`, or as far as the system allows.
fn raise(need: Need) -> Granted {
    let Rlimit {
        current: soft,
        maximum: hard,
    } = getrlimit(Resource::Nofile);
    let total = need.total();
    // `None` is no limit.
    let soft = soft.unwrap_or(u64::MAX);
    if soft >= total {
        return Granted::Enough;
    }
    let set = |current, maximum| {
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(current),
                maximum,
            },
        )
        .is_ok()
    };
    let granted = match hard {
        // Only a privileged process may raise the hard limit. Trying costs nothing.
        Some(hard) if hard < total && !set(total, Some(total)) => {
            if set(hard, Some(hard)) {
                hard
            } else {
                soft
            }
        }
        Some(hard) if hard < total => total,
        _ => {
            if set(total, hard) {
                total
            } else {
                soft
            }
        }
    };
    judge(need, granted)
}

/// The bounds for which `granted` descriptors are enough.
fn judge(need: Need, granted: u64) -> Granted {
    let total = need.total();
    if granted >= total {
        return Granted::Enough;
    }
    let remedy = format!(
        "raise the hard limit to {total} (LimitNOFILE= of a systemd unit, --ulimit nofile= of a \
         container, `ulimit -Hn`) or lower sessions-max"
    );
    let room = granted.saturating_sub(need.reserve());
    if room == 0 {
        return Granted::TooFew(format!(
            "open files are limited to {granted}, which leaves none for a session; {remedy}, \
             threads or links-max"
        ));
    }
    let sessions = u64::from(need.sessions_max);
    let workers = need.workers.max(1) as u64;
    let share = (room / PINNED_DIVISOR).max(workers).min(room / 2);
    let pinned = room.saturating_sub(sessions).max(share);
    // Both are at most the configured bounds, so both fit their types.
    let pinned_links_max = (pinned.min(need.pinned()) / workers) as u32;
    let left = room - u64::from(pinned_links_max) * workers;
    let fits = Room {
        sessions_max: left.min(sessions) as u32,
        pinned_links_max,
    };
    let text = format!(
        "open files are limited to {granted}: {} sessions at the most (sessions-max is {sessions}), \
         and {pinned_links_max} pinned links of each worker (pinned-links-max is {}); {remedy} or \
         pinned-links-max",
        fits.sessions_max, need.pinned_links_max
    );
    Granted::Fewer(fits, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEED: Need = Need {
        sessions_max: 1_000,
        workers: 2,
        links_max: 64,
        pinned_links_max: 0,
        servers: 1,
        listeners: 1,
        has_metrics: false,
    };

    /// The warning says how many sessions fit, and the limit that would be enough.
    #[test]
    fn sessions_are_limited_by_descriptors() {
        assert_eq!(judge(NEED, NEED.total()), Granted::Enough);
        let Granted::Fewer(room, text) = judge(NEED, NEED.total() - 1) else {
            panic!("one is missing");
        };
        assert_eq!(room.sessions_max, 999);
        assert!(
            text.contains("999 sessions at the most (sessions-max is 1000)"),
            "{text}"
        );
        assert!(text.contains(&format!("to {}", NEED.total())), "{text}");
    }

    /// The bounds fit the descriptors, are never above the configured ones, and leave some sessions
    /// and pinned links.
    #[test]
    fn sessions_and_pinned_links_share_too_few_descriptors() {
        let need = Need {
            sessions_max: 100,
            pinned_links_max: 500,
            ..NEED
        };
        for granted in need.reserve() + 1..need.total() {
            let Granted::Fewer(fits, _) = judge(need, granted) else {
                panic!("some are missing");
            };
            let pinned = u64::from(fits.pinned_links_max);
            let room = granted - need.reserve();
            assert!(fits.sessions_max > 0 && fits.sessions_max <= 100);
            assert!(pinned <= 500);
            assert!(u64::from(fits.sessions_max) + 2 * pinned <= room);
            assert!(room < 4 || pinned > 0, "one of each worker");
        }
        let Granted::Fewer(fits, _) = judge(need, need.total() - 2) else {
            panic!("some are missing");
        };
        assert_eq!((fits.sessions_max, fits.pinned_links_max), (100, 499));
    }

    #[test]
    fn no_descriptor_for_a_session_is_an_error() {
        for granted in [0, NEED.reserve()] {
            let judged = judge(NEED, granted);
            assert!(matches!(judged, Granted::TooFew(_)), "{judged:?}");
        }
    }
}
