//! Open files: as many as the sessions need, or as many sessions as the files allow.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of a worker beside its sessions, links and listeners: its epoll, its mailbox, a
/// spare one to refuse newcomers with, and room for what the C library opens to resolve a name.
const PER_WORKER: u64 = 16;

/// Descriptors of the process beside its workers': standard ones, logs, signals, the pipe of a
/// server of our own.
const PER_PROCESS: u64 = 32;

/// What needs descriptors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// Of the whole process.
    pub(crate) sessions_max: u32,
    /// Each listens by itself.
    pub(crate) workers: usize,
    /// Of one worker.
    pub(crate) links_max: u32,
    /// Of one worker: room for them is asked for, but sessions come first.
    pub(crate) pinned_links_max: u32,
    /// Of one worker.
    pub(crate) listeners: usize,
}

impl Need {
    /// What is needed before the first session.
    fn reserve(self) -> u64 {
        let worker = u64::from(self.links_max) + self.listeners as u64 + PER_WORKER;
        PER_PROCESS + self.workers as u64 * worker
    }

    fn total(self) -> u64 {
        let pinned = self.workers as u64 * u64::from(self.pinned_links_max);
        self.reserve() + pinned + u64::from(self.sessions_max)
    }
}

/// What we got.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Granted {
    /// Every session has its descriptor.
    Enough,
    /// Less than was asked for: how many sessions, never more than were asked for, and what to tell the operator.
    Fewer(u32, String),
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
    match u32::try_from(granted.saturating_sub(need.reserve())) {
        Ok(sessions) if sessions > 0 => {
            let asked = need.sessions_max;
            if sessions < asked {
                let text = format!(
                    "open files are limited to {granted}: {sessions} sessions at the most instead of \
                     {asked}; {remedy}"
                );
                return Granted::Fewer(sessions, text);
            }
            // Sessions come first; what is left is for pinned links.
            let pinned = u64::from(sessions - asked) / need.workers.max(1) as u64;
            let text = format!(
                "open files are limited to {granted}: enough for {asked} sessions, but each worker has \
                 descriptors for {pinned} pinned links instead of {}; {remedy} or pinned-links-max",
                need.pinned_links_max
            );
            Granted::Fewer(asked, text)
        }
        _ => Granted::TooFew(format!(
            "open files are limited to {granted}, which leaves none for a session; {remedy}, \
             threads or links-max"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEED: Need = Need {
        sessions_max: 1_000,
        workers: 2,
        links_max: 64,
        pinned_links_max: 0,
        listeners: 1,
    };

    #[test]
    fn sessions_are_limited_to_what_the_descriptors_allow_and_the_text_says_by_how_much() {
        assert_eq!(judge(NEED, NEED.total()), Granted::Enough);
        let Granted::Fewer(sessions, text) = judge(NEED, NEED.total() - 1) else {
            panic!("one is missing");
        };
        assert_eq!(sessions, 999);
        assert!(
            text.contains("999 sessions at the most instead of 1000"),
            "{text}"
        );
        assert!(text.contains(&format!("to {}", NEED.total())), "{text}");
    }

    /// A limit that is too low for pinned links gives no more sessions than were configured.
    #[test]
    fn sessions_never_exceed_what_was_configured() {
        let need = Need {
            sessions_max: 100,
            pinned_links_max: 10_000,
            ..NEED
        };
        for granted in need.reserve() + 1..need.reserve() + 1_000 {
            let Granted::Fewer(sessions, text) = judge(need, granted) else {
                panic!("pinned links have no descriptors");
            };
            let room = granted - need.reserve();
            assert_eq!(u64::from(sessions), room.min(100));
            assert_eq!(text.contains("pinned links instead of 10000"), room >= 100);
        }
    }

    #[test]
    fn no_descriptor_for_a_session_is_an_error() {
        for granted in [0, NEED.reserve()] {
            let judged = judge(NEED, granted);
            assert!(matches!(judged, Granted::TooFew(_)), "{judged:?}");
        }
    }
}
