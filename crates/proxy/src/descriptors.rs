//! Open files: as many as the sessions need, or as many sessions as the files allow.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of a worker beside its sessions, links and listeners: its epoll, its mailbox, a
/// spare one to refuse newcomers with, and room for what the C library opens to resolve a name.
const PER_WORKER: u64 = 16;

/// Descriptors of the process beside its workers': standard ones, logs, signals, the pipe of a
/// server of our own.
const PER_PROCESS: u64 = 32;

/// Connections of a worker to one server beside its links: two for logins, two for SCRIPT KILL and
/// FUNCTION KILL. Nodes that a Cluster or a Sentinel names later are not known here.
const PER_SERVER: u64 = 4;

/// Of the descriptors for sessions and pinned links, one in so many is for pinned links where there
/// are too few for all: without any, no client could wait or watch.
const PINNED_SHARE: u64 = 8;

/// What needs descriptors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// Of the whole process.
    pub(crate) sessions_max: u32,
    /// Each listens by itself.
    pub(crate) workers: usize,
    /// Of one worker.
    pub(crate) links_max: u32,
    /// Of one worker.
    pub(crate) pinned_links_max: u32,
    /// Of the configuration.
    pub(crate) servers: usize,
    /// Of one worker.
    pub(crate) listeners: usize,
}

impl Need {
    /// What is needed before the first session.
    fn reserve(self) -> u64 {
        let servers = self.servers as u64 * PER_SERVER;
        let worker = u64::from(self.links_max) + self.listeners as u64 + servers + PER_WORKER;
        PER_PROCESS + self.workers as u64 * worker
    }

    fn pinned(self) -> u64 {
        self.workers as u64 * u64::from(self.pinned_links_max)
    }

    fn total(self) -> u64 {
        self.reserve() + self.pinned() + u64::from(self.sessions_max)
    }
}

/// What there are descriptors for; never more than was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Of the whole process.
    pub(crate) sessions_max: u32,
    /// Of one worker.
    pub(crate) pinned_links_max: u32,
}

/// What we got.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Granted {
    /// Every session and link has its descriptor.
    Enough,
    /// Less than was asked for, and what to tell the operator.
    Fewer(Room, String),
    /// Not even one session.
    TooFew(String),
}

/// Raises the limit of open files as far as `need` goes and the system lets us.
pub(crate) fn raise(need: Need) -> Granted {
    let Rlimit {
        current: soft,
        maximum: hard,
    } = getrlimit(Resource::Nofile);
    let total = need.total();
    // No limit is enough for everything.
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
        // Beyond the hard limit only a privileged process gets; asking costs nothing.
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

/// What `granted` descriptors are enough for.
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
    let share = (room / PINNED_SHARE).max(workers).min(room / 2);
    let pinned = room.saturating_sub(sessions).max(share);
    // Neither is more than was asked for, so both fit.
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
    };

    #[test]
    fn sessions_are_limited_to_what_the_descriptors_allow_and_the_text_says_by_how_much() {
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

    /// The granted numbers fit, are never more than was asked for, and leave some sessions and
    /// pinned links.
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
