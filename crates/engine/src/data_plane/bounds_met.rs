//! Bounds that requests have met: each is counted, and told to the operator once a minute.

use crate::engine::{Engine, Event};
use crate::limits::{
    UPLOAD_BYTES_PER_S_FAIR, UPLOAD_BYTES_PER_S_MIN, UPLOAD_HELD_MS, WATCH_HELD_MS,
};
use crate::time::Time;
use crate::waiters::Waiters;

/// How often one bound is told to the operator, milliseconds.
const TOLD_EVERY_MS: u64 = 60_000;

/// A bound at which requests wait for a good that others hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    PinnedLinks,
    StreamingLinks,
    Links,
}

impl Bound {
    const ALL: [Bound; 3] = [Bound::PinnedLinks, Bound::StreamingLinks, Bound::Links];

    /// The option that sets it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Bound::PinnedLinks => "pinned-links-max",
            Bound::StreamingLinks => "streaming-links-max",
            Bound::Links => "links-max",
        }
    }

    /// What becomes of a request that meets it.
    fn effect(self) -> String {
        match self {
            Bound::PinnedLinks => format!(
                "blocking commands are polled for; other requests that need a link of their own \
                 wait, or fail with NOTSENT at their deadline; a session that holds a link by WATCH alone loses it after \
                 {WATCH_HELD_MS} ms"
            ),
            Bound::StreamingLinks => format!(
                "large requests wait, or fail with NOTSENT at their deadline; the slowest upload \
                 below {UPLOAD_BYTES_PER_S_MIN} bytes a second is ended, and after \
                 {UPLOAD_HELD_MS} ms the slowest below {UPLOAD_BYTES_PER_S_FAIR}"
            ),
            Bound::Links => {
                "the link that was idle longest is closed for each new one; while none \
                             is idle, requests that need another database, user or version of the \
                             protocol wait, or fail with NOTSENT at their deadline"
                    .to_owned()
            }
        }
    }
}

/// When each bound was told last, and the sessions that wait for shared links. Query it with
/// [`Bounds::is_to_tell`] each time a bound is met.
#[derive(Debug, Default)]
pub(crate) struct Bounds {
    /// Sessions that wait for room within `links-max`: see [`crate::link_room`].
    pub(crate) link_waiters: Waiters,
    told_at: [Option<Time>; Bound::ALL.len()],
}

impl Bounds {
    /// Whether the operator is told now. Time never runs back.
    fn is_to_tell(&mut self, bound: Bound, now: Time) -> bool {
        let told_at = &mut self.told_at[bound as usize];
        let is_due = told_at.is_none_or(|at| now.since_ms(at) >= TOLD_EVERY_MS);
        if is_due {
            *told_at = Some(now);
        }
        is_due
    }
}

impl Engine {
    /// A request has met a bound: it waits, or is refused.
    pub(crate) fn note_bound(&mut self, bound: Bound) {
        match bound {
            Bound::PinnedLinks => self.counters.pinned_links_full += 1,
            Bound::StreamingLinks => self.counters.streaming_links_full += 1,
            Bound::Links => self.counters.links_full += 1,
        }
        if self.bounds.is_to_tell(bound, self.now) {
            self.tell(Event::BoundReached {
                name: bound.name(),
                effect: bound.effect(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_is_told_once_a_minute() {
        let mut bounds = Bounds::default();
        let minute = Time(0).plus_ms(60_000);
        for bound in Bound::ALL {
            assert!(bounds.is_to_tell(bound, Time(0)));
            assert!(!bounds.is_to_tell(bound, Time(0).plus_ms(59_999)));
        }
        assert!(bounds.is_to_tell(Bound::StreamingLinks, minute));
        assert!(!bounds.is_to_tell(Bound::StreamingLinks, minute.plus_ms(1)));
        assert!(bounds.is_to_tell(Bound::PinnedLinks, minute.plus_ms(1)));
    }
}
