//! Clients that a worker could not accept: one notice a second for all of them, with their number.

use std::time::{Duration, Instant};

/// The least time between two notices of a worker.
const PAUSE: Duration = Duration::from_secs(1);

/// Clients that were refused for one reason.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The reason, equal for all clients that it is given for.
    pub(crate) reason: &'static str,
    /// The newest client and what more there is to say.
    pub(crate) detail: String,
    /// How many clients, at least 1.
    pub(crate) clients: u64,
}

/// Counts refused clients until they may be told. A flood must not fill the main thread's queue.
///
/// Call [`Refusals::note`] for each client, and [`Refusals::take`] after it and now and then.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    told_at: Option<Instant>,
    waiting: Vec<Refused>,
}

impl Refusals {
    /// A client was refused.
    pub(crate) fn note(&mut self, reason: &'static str, detail: String) {
        let mut waiting = self.waiting.iter_mut();
        match waiting.find(|other| other.reason == reason) {
            Some(same) => {
                same.detail = detail;
                same.clients += 1;
            }
            None => self.waiting.push(Refused {
                reason,
                detail,
                clients: 1,
            }),
        }
    }

    /// What is to be told now, one item for each reason.
    pub(crate) fn take(&mut self, now: Instant) -> Vec<Refused> {
        let is_early = self.told_at.is_some_and(|told| now < told + PAUSE);
        if is_early || self.waiting.is_empty() {
            return Vec::new();
        }
        self.told_at = Some(now);
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each refused client is in one notice, and there is one notice a second for each reason.
    #[test]
    fn notices_count_each_refused_client_once() {
        let (mut refusals, begun) = (Refusals::default(), Instant::now());
        let mut told = Vec::new();
        for ms in 0..5_000 {
            let now = begun + Duration::from_millis(ms);
            let reason = if ms % 10 == 9 { "few" } else { "many" };
            refusals.note(reason, format!("client {ms}"));
            told.extend(refusals.take(now));
        }
        told.extend(refusals.take(begun + Duration::from_secs(6)));
        let clients = |reason| {
            let of_reason = told.iter().filter(move |refused| refused.reason == reason);
            (
                of_reason.clone().count(),
                of_reason.map(|refused| refused.clients).sum::<u64>(),
            )
        };
        assert_eq!(clients("many"), (6, 4_500));
        assert_eq!(clients("few"), (5, 500));
        assert_eq!(told.last().map(|last| &*last.detail), Some("client 4999"));
        assert!(refusals.take(begun + Duration::from_secs(9)).is_empty());
    }
}
