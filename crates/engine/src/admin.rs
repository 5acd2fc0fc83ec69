//! Commands about all clients, workers and settings of this process.

pub(crate) mod clients;
pub(crate) mod listing;
pub(crate) mod query_places;
pub(crate) mod reports;
pub(crate) mod runtime_config;
pub(crate) mod workers;

use std::collections::HashMap;

use crate::base::counters::Counters;
use crate::base::reload_report::ReloadReport;
use crate::base::time::Time;

use workers::{PendingQueries, SettlingPause};

/// Queries to all workers, pauses, and settings that were changed while respool runs.
#[derive(Default)]
pub(crate) struct Admin {
    /// Queries of this worker's sessions that some worker has not answered, oldest first.
    pub(crate) queries: PendingQueries,
    /// The ticket of the next query.
    pub(crate) next_ticket: u64,
    /// Pauses that are answered once all requests before them are.
    pub(crate) settling_pauses: Vec<SettlingPause>,
    /// The time and worker of the last change of each option, by its number and that of its pool or
    /// listener.
    pub(crate) set_at: HashMap<(usize, u16), (Time, usize)>,
    /// The time of the last new settings. An option that was set before it does not count.
    pub(crate) settings_at: Time,
    /// The outcome of reloads so far.
    pub(crate) reloads: ReloadReport,
    /// The sum of the other workers' counters, at most a moment old.
    pub(crate) other_workers: Counters,
}
