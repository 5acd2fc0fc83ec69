//! The error replies of each pool, by command and outcome.
//!
//! ```text
//!   a server's reply "-..." ──► take_answer, completions ──┐
//!   a request that fails ─────► answer_or_fail ────────────┼─► ErrorTable ──► LatencyReport
//!   respool's own answer ─────► answer_reply ──────────────┘
//! ```
//!
//! An error reply leaves the hot path for another reason: it may be a redirect. So simple replies
//! pay nothing for these counts. A request counts once, when its client gets the error. An error
//! that respool handles itself, such as a redirect, does not count. An error among the results of
//! EXEC does not count either: the reply to EXEC is an array.

use crate::base::error::ErrorOutcome;
use crate::base::handle::SessionId;
use crate::base::latency::{ErrorKind, LatencyReport};
use crate::base::limits::LATENCY_COMMANDS_MAX;
use crate::data_plane::DataPlane;
use crate::data_plane::latency::{name_of, number_of};
use crate::data_plane::ledger::{CommandMark, Entry};

/// The error replies of one pool.
struct PoolErrors {
    /// By the number of the command and that of the outcome.
    counts: [[u64; ErrorOutcome::ALL.len()]; LATENCY_COMMANDS_MAX],
    /// Whether it has changed since the last report.
    has_changed: bool,
}

/// The error replies of a worker. A pool takes 2 KiB once it has an error. The places of pools have
/// the bound [`SERVERS_EVER_MAX`](crate::limits::SERVERS_EVER_MAX).
#[derive(Default)]
pub(crate) struct ErrorTable {
    /// By the place of the pool.
    pools: Vec<Option<Box<PoolErrors>>>,
}

impl ErrorTable {
    /// Counts an error reply to a request of a client. A request of respool's own does not count.
    fn note(&mut self, pool: u16, command: CommandMark, outcome: ErrorOutcome) {
        let Some(number) = number_of(command) else {
            return;
        };
        let place = usize::from(pool);
        if place >= self.pools.len() {
            self.pools.resize_with(place + 1, || None);
        }
        let none = || {
            Box::new(PoolErrors {
                counts: [[0; ErrorOutcome::ALL.len()]; LATENCY_COMMANDS_MAX],
                has_changed: false,
            })
        };
        let errors = self.pools[place].get_or_insert_with(none);
        errors.counts[number][outcome as usize] += 1;
        errors.has_changed = true;
    }

    /// Brings a report up to date.
    pub(crate) fn report(&mut self, report: &mut LatencyReport) {
        for (pool, errors) in (0..).zip(&mut self.pools) {
            let Some(errors) = errors else {
                continue;
            };
            if !std::mem::take(&mut errors.has_changed) {
                continue;
            }
            for (number, counts) in errors.counts.iter().enumerate() {
                for (outcome, count) in ErrorOutcome::ALL.into_iter().zip(counts) {
                    if *count > 0 {
                        let command = name_of(number);
                        let kind = ErrorKind {
                            pool,
                            command,
                            outcome,
                        };
                        report.errors.insert(kind, *count);
                    }
                }
            }
        }
    }
}

impl DataPlane {
    /// Counts the reply that the session of the entry gets, if it is an error.
    #[inline]
    pub(crate) fn note_if_error(&mut self, entry: &Entry, reply: &[u8]) {
        if reply.first() == Some(&b'-') {
            self.note_error(entry, reply);
        }
    }

    /// Counts an error reply that the session of the entry gets.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_error(&mut self, entry: &Entry, error: &[u8]) {
        let outcome = ErrorOutcome::of(error, ErrorOutcome::Replied);
        self.count_error(entry.session, entry.command, outcome);
    }

    /// Counts respool's own answer to a request of a session, if it is an error.
    #[inline]
    pub(crate) fn note_if_own_error(
        &mut self,
        id: SessionId,
        command: impl Into<CommandMark>,
        reply: &[u8],
    ) {
        if reply.first() == Some(&b'-') {
            self.note_own_error(id, command.into(), reply);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_own_error(&mut self, id: SessionId, command: CommandMark, error: &[u8]) {
        let outcome = ErrorOutcome::of(error, ErrorOutcome::Refused);
        self.count_error(id, command, outcome);
    }

    fn count_error(&mut self, id: SessionId, command: CommandMark, outcome: ErrorOutcome) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let rare = session.rare.as_deref();
        if rare.is_none_or(|rare| rare.composite.within.is_none()) {
            self.latency.errors.note(session.pool, command, outcome);
        }
    }
}
