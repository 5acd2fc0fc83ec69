//! Clients that a worker could not accept: at most one notice a second for each reason.

use std::time::{Duration, Instant};

/// Shortest time between two notices of a worker.
const NOTICE_PAUSE: Duration = Duration::from_secs(1);

/// Clients that were refused for one reason.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The reason, the same for all of these clients.
    pub(crate) reason: &'static str,
    /// The newest client, and the remedy.
    pub(crate) detail: String,
    /// Number of clients, at least 1.
    pub(crate) clients: u64,
}

/// Counts refused clients until the next notice, so that a flood of clients does not fill the main
/// thread's queue.
///
/// Call [`Refusals::note`] for each client. Call [`Refusals::take`] after it and at regular times.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Time of the last notice.
    noticed_at: Option<Instant>,
    /// Refused clients of the next notice, one item for each reason.
    pending: Vec<Refused>,
}

impl Refusals {
    /// Counts a refused client.
    pub(crate) fn note(&mut self, reason: &'static str, detail: String) {
        let mut pending = self.pending.iter_mut();
        match pending.find(|other| other.reason == reason) {
            Some(same) => {
                same.detail = detail;
                same.clients += 1;
            }
            None => self.pending.push(Refused {
                reason,
                detail,
                clients: 1,
            }),
        }
    }

    /// Returns the refusals for a notice, one item for each reason. Empty while the pause lasts.
    pub(crate) fn take(&mut self, now: Instant) -> Vec<Refused> {
        let is_early = self.noticed_at.is_some_and(|at| now < at + NOTICE_PAUSE);
        if is_early || self.pending.is_empty() {
            return Vec::new();
        }
        self.noticed_at = Some(now);
        std::mem::take(&mut self.pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each refused client is in one notice, and there is one notice a second for each reason.
    #[test]
    fn notices_count_each_refused_client_once() {
        let (mut refusals, begun) = (Refusals::default(), Instant::now());
        let mut noticed = Vec::new();
        for ms in 0..5_000 {
            let now = begun + Duration::from_millis(ms);
            let reason = if ms % 10 == 9 { "few" } else { "many" };
            refusals.note(reason, format!("client {ms}"));
            noticed.extend(refusals.take(now));
        }
        noticed.extend(refusals.take(begun + Duration::from_secs(6)));
        let clients = |reason| {
            let of_reason = noticed
                .iter()
                .filter(move |refused| refused.reason == reason);
            (
                of_reason.clone().count(),
                of_reason.map(|refused| refused.clients).sum::<u64>(),
            )
        };
        assert_eq!(clients("many"), (6, 4_500));
        assert_eq!(clients("few"), (5, 500));
        assert_eq!(
            noticed.last().map(|last| &*last.detail),
            Some("client 4999")
        );
        assert!(refusals.take(begun + Duration::from_secs(9)).is_empty());
    }
}
