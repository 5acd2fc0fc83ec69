//! Bounds that requests have met. Each meeting is counted, and reported to the operator once a
//! minute.

use crate::base::limits::{
    UPLOAD_BYTES_PER_S_FAIR, UPLOAD_BYTES_PER_S_MIN, UPLOAD_HELD_MS, WATCH_HELD_MS,
};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::actions::Event;

/// How often one bound is reported to the operator, milliseconds.
pub(crate) const REPORT_EVERY_MS: u64 = 60_000;

/// A bound on links at which requests wait while other sessions use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    PinnedLinks,
    StreamingLinks,
    Links,
}

impl Bound {
    const ALL: [Bound; 3] = [Bound::PinnedLinks, Bound::StreamingLinks, Bound::Links];

    /// The option that sets the bound.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Bound::PinnedLinks => "pinned-links-max",
            Bound::StreamingLinks => "streaming-links-max",
            Bound::Links => "links-max",
        }
    }

    /// The effect on a request that meets the bound.
    fn effect(self) -> String {
        match self {
            Bound::PinnedLinks => format!(
                "blocking commands are polled for; other requests that need a link of their own \
                 wait, or fail with NOTSENT at their deadline; a session that holds a link by \
                 WATCH alone loses it after {WATCH_HELD_MS} ms"
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

/// When each bound was last reported. Call [`Bounds::is_report_due`] each time a bound is met.
#[derive(Debug, Default)]
pub(crate) struct Bounds {
    /// When each bound was last reported, by [`Bound`].
    reported_at: [Option<Time>; Bound::ALL.len()],
}

impl Bounds {
    /// Whether the operator gets a report now. Time never runs back.
    fn is_report_due(&mut self, bound: Bound, now: Time) -> bool {
        let reported_at = &mut self.reported_at[bound as usize];
        let is_due = reported_at.is_none_or(|at| now.since_ms(at) >= REPORT_EVERY_MS);
        if is_due {
            *reported_at = Some(now);
        }
        is_due
    }
}

impl DataPlane {
    /// A request has met a bound: it waits, or is refused.
    pub(crate) fn note_bound(&mut self, bound: Bound) {
        match bound {
            Bound::PinnedLinks => self.counters.pinned_links_full += 1,
            Bound::StreamingLinks => self.counters.streaming_links_full += 1,
            Bound::Links => self.counters.links_full += 1,
        }
        if self.bounds.is_report_due(bound, self.now) {
            self.emit(Event::BoundReached {
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
    fn each_bound_is_reported_once_a_minute() {
        let mut bounds = Bounds::default();
        let minute = Time(0).plus_ms(60_000);
        for bound in Bound::ALL {
            assert!(bounds.is_report_due(bound, Time(0)));
            assert!(!bounds.is_report_due(bound, Time(0).plus_ms(59_999)));
        }
        assert!(bounds.is_report_due(Bound::StreamingLinks, minute));
        assert!(!bounds.is_report_due(Bound::StreamingLinks, minute.plus_ms(1)));
        assert!(bounds.is_report_due(Bound::PinnedLinks, minute.plus_ms(1)));
    }
}
