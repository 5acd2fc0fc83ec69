//! The report of one worker about its thread, pools and servers, for metrics and readiness.
//!
//! The driver has the engine write it twice a second, into the buffers of an earlier report.

use crate::base::limits::SERVERS_REPORTED_MAX;
use crate::base::time::Time;
use crate::data_plane::flush_rule::Usage;

/// A worker's report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerReport {
    /// The driver's last measurement of the worker's thread.
    pub usage: Option<Usage>,
    /// For each pool of the settings the reasons why clients cannot use it; empty if they can.
    pub pools: Vec<Vec<Unready>>,
    /// The servers of all pools, at most [`SERVERS_REPORTED_MAX`].
    pub servers: Vec<ServerReport>,
    /// Servers that found no place in `servers`.
    pub servers_left_out: usize,
}

/// Why clients cannot use a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unready {
    /// No server answers for keys of a subpool.
    NoServer {
        /// The prefix of these keys; empty: keys without another prefix. `None`: the pool has no
        /// prefixes.
        prefix: Option<Vec<u8>>,
        /// The first of its servers, and the failure of the last attempt to use it: `a:1:
        /// Connection refused`. Empty: no attempt has failed yet.
        cause: String,
    },
    /// A server that accepted the configured login refuses it now. Old sessions keep their links,
    /// and new ones must authenticate.
    LoginWithdrawn {
        /// Its address, as INFO shows it.
        server: String,
    },
}

/// A server as one worker knows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerReport {
    /// The index of its pool in the settings.
    pub pool: usize,
    /// The entry of these counters.
    pub entry: ServerEntry,
    /// Its address, or the name by which Sentinels know it, as INFO shows it.
    pub address: String,
    /// Its role, as INFO shows it.
    pub role: &'static str,
    /// Its state, as INFO shows it.
    pub state: &'static str,
    /// Links to it, in any state.
    pub links: u64,
    /// Requests that are sent to it and not answered.
    pub in_flight: u64,
    /// Attempts to connect that failed.
    pub failures_total: u64,
    /// Connections that were lost.
    pub lost_total: u64,
    /// Whether it has withdrawn the configured login, so that new sessions must authenticate.
    pub login_withdrawn: bool,
    /// The slots that it owns; `None` outside of Clusters.
    pub slots: Option<u32>,
    /// The longest time that the next batch of a busy link to it may wait, microseconds.
    pub wait_us: u32,
    /// The CPU time in its last answer to INFO cpu, and when that came. `None`: it was not asked,
    /// or does not tell.
    pub cpu: Option<(Time, ServerCpu)>,
    /// The smoothed round trip to it, microseconds; `None` where reads do not choose by it.
    pub latency_us: Option<u64>,
}

/// An entry of a worker for a server. Both parts stay while the address of the server changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerEntry {
    /// Its index in the worker.
    pub index: u16,
    /// How often it was given to another server.
    pub reuses: u32,
}

/// CPU time that a server's main thread used since its start, seconds. Servers before 7.0 tell only
/// that of the whole process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServerCpu {
    /// In user mode.
    pub user_s: f64,
    /// In the kernel.
    pub system_s: f64,
}

impl ServerCpu {
    /// Both modes together.
    pub fn total_s(self) -> f64 {
        self.user_s + self.system_s
    }
}

impl WorkerReport {
    /// Empties the report. `servers` keeps its entries, whose buffers [`WorkerReport::next_server`]
    /// uses again.
    pub(crate) fn begin(&mut self) {
        self.pools.clear();
        self.servers_left_out = 0;
    }

    /// Whether clients can use a pool; `None`: the report does not have it.
    pub fn is_ready(&self, pool: usize) -> Option<bool> {
        self.pools.get(pool).map(Vec::is_empty)
    }

    /// The place of the server number `index`, with the values of an earlier report. `None`: the
    /// report is full, and the server is counted as left out.
    pub(crate) fn next_server(&mut self, index: usize) -> Option<&mut ServerReport> {
        if index >= SERVERS_REPORTED_MAX {
            self.servers_left_out += 1;
            return None;
        }
        if index == self.servers.len() {
            self.servers.push(ServerReport::default());
        }
        self.servers.get_mut(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beyond the bound, servers are counted only. A shorter report leaves no server of a longer
    /// one.
    #[test]
    fn report_has_a_bound_and_reuses_its_places() {
        let mut report = WorkerReport::default();
        report.begin();
        for index in 0..SERVERS_REPORTED_MAX + 3 {
            let place = report.next_server(index);
            assert_eq!(place.is_some(), index < SERVERS_REPORTED_MAX);
        }
        assert_eq!(report.servers.len(), SERVERS_REPORTED_MAX);
        assert_eq!(report.servers_left_out, 3);
        report.begin();
        assert_eq!(report.servers_left_out, 0);
        assert!(report.next_server(0).is_some());
        assert_eq!(report.servers.len(), SERVERS_REPORTED_MAX);
    }
}
