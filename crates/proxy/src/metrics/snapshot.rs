//! The figures of one scrape: the last reports of all workers, put together.

use std::collections::BTreeMap;

use respool_config::passwords::RenewalFailures;
use respool_config::tls_files::CertificateExpiry;
use respool_driver::ErrorsByName;
use respool_engine::{
    Counters, LatencyReport, ReloadReport, ServerCpu, ServerReport, Time, Unready, Usage,
    WorkerReport,
};

use super::process::ProcessFigures;
use super::server_tallies::ServerTallies;

/// Servers with a name on a page. The others of a pool are one series, [`OTHER`].
pub(crate) const SERVERS_NAMED_MAX: usize = 256;

/// The name of the servers beyond [`SERVERS_NAMED_MAX`].
pub(crate) const OTHER: &str = "other";

/// The name of a server that is called [`OTHER`]: Sentinels know primaries by names. No name that
/// Sentinels take has a quote.
const CALLED_OTHER: &str = "'other'";

/// The name of a server on pages.
fn shown_name(report: &ServerReport) -> &str {
    match report.address.as_str() {
        OTHER => CALLED_OTHER,
        address => address,
    }
}

/// The states of a server, the best first. A server has the best one that a worker sees.
const STATES: [&str; 7] = [
    "up",
    "needs-login",
    "connecting",
    "backoff",
    "down",
    "unknown",
    "gone",
];

/// The states of a server that answers.
const ANSWERS: [&str; 2] = ["up", "needs-login"];

/// The states of a server that a worker wants to reach and does not. A server in the state `down`
/// is wanted by no worker, such as a replica that is not read or a node without slots.
const UNREACHED: [&str; 3] = ["connecting", "backoff", "unknown"];

/// The roles of servers. A `seed` is a configured node of a Cluster that no node has named.
const ROLES: [&str; 4] = ["primary", "replica", "sentinel", "seed"];

/// The figures of one scrape.
#[derive(Debug, Default)]
pub(crate) struct MetricsSnapshot {
    /// The figures of the process.
    pub(crate) process: ProcessFigures,
    /// The reloads of the configuration.
    pub(crate) reload: ReloadReport,
    /// The certificates of respool that expire.
    pub(crate) certificates: Vec<CertificateExpiry>,
    /// How often passwords and certificates could not be renewed.
    pub(crate) renewal_failures: RenewalFailures,
    /// The sum over all workers.
    pub(crate) counters: Counters,
    /// Each worker.
    pub(crate) workers: Vec<WorkerFigures>,
    /// The pools, by index.
    pub(crate) pools: Vec<PoolFigures>,
    /// The servers by pool and address. Those beyond [`SERVERS_NAMED_MAX`] are [`OTHER`].
    pub(crate) servers: BTreeMap<(usize, String), ServerTotals>,
    /// The times of requests by command, over all workers.
    pub(crate) times: LatencyReport,
    /// The error replies, over all workers.
    pub(crate) errors: ErrorsByName,
    /// Names are used up, and this is the first page on which a server lacks one.
    pub(crate) lacks_names: bool,
}

/// The figures of one pool.
#[derive(Debug)]
pub(crate) struct PoolFigures {
    /// Its name.
    pub(crate) name: String,
    /// Whether clients can use it: servers answer, and accept the configured login.
    pub(crate) is_ready: bool,
    /// Its servers that no worker reaches, by role, those beyond [`SERVERS_NAMED_MAX`] included.
    pub(crate) down: [(&'static str, u64); ROLES.len()],
}

/// The figures of one worker.
#[derive(Debug)]
pub(crate) struct WorkerFigures {
    /// Its counters.
    pub(crate) counters: Counters,
    /// The time of its thread.
    pub(crate) usage: Option<Usage>,
    /// Servers that found no place in its report.
    pub(crate) servers_left_out: usize,
}

/// A server, over all workers; or several servers.
#[derive(Debug, Default)]
pub(crate) struct ServerTotals {
    /// Its role; empty for several servers.
    pub(crate) role: &'static str,
    /// Its best state; empty for several servers.
    pub(crate) state: &'static str,
    /// Servers that answer: 0 or 1 for one server.
    pub(crate) up: u64,
    /// Links of all workers.
    pub(crate) links: u64,
    /// Requests that are sent and not answered.
    pub(crate) in_flight: u64,
    /// Attempts to connect that failed, by [`ServerTallies`].
    pub(crate) failures_total: u64,
    /// Connections that were lost, by [`ServerTallies`].
    pub(crate) lost_total: u64,
    /// Servers that have withdrawn the configured login, as a worker knows: 0 or 1 for one server.
    pub(crate) login_withdrawn: u64,
    /// Slots that it owns.
    pub(crate) slots: Option<u32>,
    /// The longest wait of a batch, microseconds.
    pub(crate) wait_us: u32,
    /// The smallest of the workers' smoothed round trips, microseconds.
    pub(crate) latency_us: Option<u64>,
    /// The greatest of the recent answers about its CPU time; `None` for several servers.
    pub(crate) cpu_answer: Option<(Time, ServerCpu)>,
    /// Its CPU time, by [`ServerTallies`]; `None` where `cpu_answer` is.
    pub(crate) cpu: Option<ServerCpu>,
}

impl ServerTotals {
    /// Adds the report of another worker about the same server.
    fn add_report(&mut self, report: &ServerReport) {
        let rank = |state: &str| STATES.iter().position(|known| *known == state);
        let is_better = rank(report.state) < rank(self.state);
        if self.state.is_empty() || is_better {
            (self.role, self.state) = (report.role, report.state);
        }
        self.up = u64::from(ANSWERS.contains(&self.state));
        self.links += report.links;
        self.in_flight += report.in_flight;
        self.login_withdrawn = self.login_withdrawn.max(report.login_withdrawn.into());
        self.slots = self.slots.max(report.slots);
        self.wait_us = self.wait_us.max(report.wait_us);
        self.latency_us = match (self.latency_us, report.latency_us) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.cpu_answer = match (self.cpu_answer, report.cpu) {
            (Some(a), Some(b)) => Some(later_cpu(a, b)),
            (a, b) => a.or(b),
        };
    }

    /// Whether workers try to reach the server, and none does.
    fn is_down(&self) -> bool {
        UNREACHED.contains(&self.state)
    }

    /// Adds another server.
    fn add_server(&mut self, other: &ServerTotals) {
        self.up += other.up;
        self.links += other.links;
        self.in_flight += other.in_flight;
        self.login_withdrawn += other.login_withdrawn;
        self.slots = match (self.slots, other.slots) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (a, b) => a.or(b),
        };
        self.wait_us = self.wait_us.max(other.wait_us);
    }
}

/// Answers of a server that are further apart than this are not compared, milliseconds: the server
/// may have started anew in between.
const CPU_ANSWERS_APART_MS: u64 = 10_000;

/// The later of two answers about a server's CPU time. A worker notes the time at which it handles
/// an answer, which is not the order of the server. So of two recent answers the greater one is
/// later: a counter must not fall.
pub(super) fn later_cpu(a: (Time, ServerCpu), b: (Time, ServerCpu)) -> (Time, ServerCpu) {
    let (older, newer) = if a.0 <= b.0 { (a, b) } else { (b, a) };
    let is_recent = newer.0.since_ms(older.0) < CPU_ANSWERS_APART_MS;
    match is_recent && older.1.total_s() > newer.1.total_s() {
        true => older,
        false => newer,
    }
}

impl MetricsSnapshot {
    /// Puts the reports of the workers together. `pools`: the names of the pools by index.
    /// `tallies`: the counters of servers until the last page.
    pub(crate) fn new(
        process: ProcessFigures,
        pools: &[String],
        counters: Vec<Counters>,
        reports: &[WorkerReport],
        tallies: &mut ServerTallies,
    ) -> MetricsSnapshot {
        let mut snapshot = MetricsSnapshot {
            process,
            ..MetricsSnapshot::default()
        };
        for (index, counters) in counters.into_iter().enumerate() {
            snapshot.counters.add(&counters);
            let report = reports.get(index);
            snapshot.workers.push(WorkerFigures {
                counters,
                usage: report.and_then(|report| report.usage),
                servers_left_out: report.map_or(0, |report| report.servers_left_out),
            });
        }
        let mut servers: BTreeMap<(usize, &str), ServerTotals> = BTreeMap::new();
        for report in reports.iter().flat_map(|report| &report.servers) {
            let key = (report.pool, shown_name(report));
            servers.entry(key).or_default().add_report(report);
        }
        let unready = unready(pools.len(), reports);
        for (name, reasons) in pools.iter().zip(unready) {
            snapshot.pools.push(PoolFigures {
                name: name.clone(),
                is_ready: reasons.is_empty(),
                down: ROLES.map(|role| (role, 0)),
            });
        }
        for ((pool, _), totals) in servers.iter().filter(|(_, totals)| totals.is_down()) {
            let roles = snapshot.pools.get_mut(*pool).map(|pool| &mut pool.down);
            let mut roles = roles.into_iter().flatten();
            if let Some((_, count)) = roles.find(|(role, _)| *role == totals.role) {
                *count += 1;
            }
        }
        let present = servers.keys().filter_map(|(pool, server)| {
            let pool = pools.get(*pool)?;
            Some((pool.as_str(), *server))
        });
        snapshot.lacks_names = tallies.name_servers(&present.collect());
        for (index, report) in reports.iter().enumerate() {
            for server in &report.servers {
                if let Some(pool) = pools.get(server.pool) {
                    tallies.add(index, pool, shown_name(server), server);
                }
            }
        }
        for ((pool, server), totals) in servers {
            if let Some(name) = pools.get(pool) {
                snapshot.take_server((pool, name), server, totals, tallies);
            }
        }
        snapshot
    }

    /// Shows a server by its name, or adds it to [`OTHER`].
    fn take_server(
        &mut self,
        (pool, name): (usize, &str),
        server: &str,
        mut totals: ServerTotals,
        tallies: &mut ServerTallies,
    ) {
        let (tally, cpu) = tallies.total(name, server, totals.cpu_answer);
        totals.cpu = cpu;
        let is_named = tally.is_named;
        let shown = if is_named { server } else { OTHER };
        let shown = self.servers.entry((pool, shown.to_owned())).or_default();
        match is_named {
            true => *shown = totals,
            false => shown.add_server(&totals),
        }
        (shown.failures_total, shown.lost_total) = (tally.failures_total, tally.lost_total);
    }
}

/// The reasons why each of `count` pools is not ready; empty if it is. One worker that reaches all
/// subpools is enough. One that knows of a withdrawn login is enough to say so: the others have no
/// sessions, so they have not asked.
pub(crate) fn unready(count: usize, reports: &[WorkerReport]) -> Vec<Vec<Unready>> {
    let of_pool = |pool: usize| {
        let said = reports.iter().filter_map(|report| report.pools.get(pool));
        let is_down = |reason: &&Unready| matches!(reason, Unready::NoServer { .. });
        let down = said.clone().map(|reasons| reasons.iter().filter(is_down));
        let least = down.min_by_key(|reasons| reasons.clone().count());
        let mut all: Vec<Unready> = match least {
            Some(reasons) => reasons.cloned().collect(),
            None => vec![Unready::NoServer {
                prefix: None,
                cause: String::new(),
            }],
        };
        for reason in said.flatten().filter(|reason| !is_down(reason)) {
            if !all.contains(reason) {
                all.push(reason.clone());
            }
        }
        all
    };
    (0..count).map(of_pool).collect()
}

#[cfg(test)]
mod tests {
    use respool_engine::ServerEntry;

    use super::*;

    fn report(address: &str, state: &'static str) -> ServerReport {
        ServerReport {
            address: address.into(),
            role: "primary",
            state,
            links: 2,
            failures_total: 3,
            ..ServerReport::default()
        }
    }

    fn no_server(prefix: Option<&[u8]>) -> Unready {
        Unready::NoServer {
            prefix: prefix.map(<[u8]>::to_vec),
            cause: String::new(),
        }
    }

    fn snapshot_of(reports: &[WorkerReport]) -> MetricsSnapshot {
        let pools = ["default".to_owned()];
        let counters = vec![Counters::default(); reports.len()];
        let (process, mut tallies) = (ProcessFigures::default(), ServerTallies::default());
        MetricsSnapshot::new(process, &pools, counters, reports, &mut tallies)
    }

    /// Workers add up, and the best state counts. Of answers about CPU time, see [`later_cpu`].
    #[test]
    fn reports_of_workers_add_up() {
        let cpu = |at, user_s| {
            let system_s = 0.0;
            Some((Time(at), ServerCpu { user_s, system_s }))
        };
        let down = || vec![no_server(None)];
        let of = |state, cpu, reasons| WorkerReport {
            servers: vec![ServerReport {
                cpu,
                ..report("a:1", state)
            }],
            pools: vec![reasons],
            ..WorkerReport::default()
        };
        let reports = [
            of("backoff", cpu(9, 7.0), down()),
            of("up", cpu(5, 8.0), Vec::new()),
            of("connecting", None, down()),
        ];
        let snapshot = snapshot_of(&reports);
        let pool = &snapshot.pools[0];
        assert_eq!((pool.name.as_str(), pool.is_ready), ("default", true));
        let server = &snapshot.servers[&(0, "a:1".to_owned())];
        assert_eq!((server.state, server.up), ("up", 1));
        // A server that waits for the login of a client answers, although it has no link.
        let mut waiting = ServerTotals::default();
        waiting.add_report(&report("a:1", "backoff"));
        assert_eq!((waiting.up, waiting.is_down()), (0, true));
        waiting.add_report(&report("a:1", "needs-login"));
        assert_eq!((waiting.state, waiting.up), ("needs-login", 1));
        assert!(!waiting.is_down());
        assert_eq!((server.links, server.failures_total), (6, 9));
        assert_eq!(server.cpu_answer, cpu(5, 8.0));
        assert_eq!(unready(2, &reports), [Vec::new(), down()]);
    }

    /// Of workers that reach only some subpools, the one that reaches the most tells the rest. A
    /// login that one worker found withdrawn is a reason, too.
    #[test]
    fn reasons_of_workers_are_put_together() {
        let down = |prefix: &[u8]| no_server(Some(prefix));
        let withdrawn = || Unready::LoginWithdrawn {
            server: "a:1".to_owned(),
        };
        let of = |reasons: Vec<Unready>| WorkerReport {
            pools: vec![reasons],
            ..WorkerReport::default()
        };
        for (workers, expected) in [
            (
                vec![vec![down(b""), down(b"p")], vec![down(b"p")]],
                vec![down(b"p")],
            ),
            (
                vec![vec![], vec![down(b"p"), withdrawn()], vec![withdrawn()]],
                vec![withdrawn()],
            ),
            (vec![], vec![no_server(None)]),
        ] {
            let reports: Vec<WorkerReport> = workers.into_iter().map(of).collect();
            assert_eq!(unready(1, &reports), [expected]);
        }
    }

    /// Of two recent answers about CPU time the greater one counts, whichever came first. A server
    /// that started anew begins at 0 again.
    #[test]
    fn cpu_time_falls_only_when_a_server_starts_anew() {
        let cpu = |at_ms: u64, user_s| {
            let system_s = 1.0;
            (Time(at_ms * 1_000), ServerCpu { user_s, system_s })
        };
        for (a, b, later) in [
            (cpu(5, 8.0), cpu(9, 7.0), cpu(5, 8.0)),
            (cpu(5, 7.0), cpu(9, 8.0), cpu(9, 8.0)),
            (cpu(5, 8.0), cpu(20_000, 0.1), cpu(20_000, 0.1)),
        ] {
            assert_eq!(later_cpu(a, b), later);
            assert_eq!(later_cpu(b, a), later);
        }
    }

    /// Any number of servers makes a bounded number of series, and none is lost in the sums.
    #[test]
    fn servers_beyond_the_bound_are_one_series() {
        let servers = (0..SERVERS_NAMED_MAX + 5).map(|nth| ServerReport {
            entry: ServerEntry {
                index: nth as u16,
                reuses: 0,
            },
            ..report(&format!("10.0.0.1:{}", 10_000 + nth), "up")
        });
        let servers = servers.collect();
        let snapshot = snapshot_of(&[WorkerReport {
            servers,
            ..WorkerReport::default()
        }]);
        assert_eq!(snapshot.servers.len(), SERVERS_NAMED_MAX + 1);
        let other = &snapshot.servers[&(0, OTHER.to_owned())];
        assert_eq!((other.up, other.links, other.failures_total), (5, 10, 15));
        assert_eq!((other.role, other.state), ("", ""));
    }

    /// A server that cannot be reached counts for its pool and role, with or without a series of
    /// its own. One that is not wanted does not count.
    #[test]
    fn servers_beyond_the_bound_count_when_down() {
        let mut servers: Vec<ServerReport> = (0..SERVERS_NAMED_MAX + 5)
            .map(|nth| report(&format!("10.0.0.1:{}", 10_000 + nth), "up"))
            .collect();
        let down = |servers: &[ServerReport]| {
            let snapshot = snapshot_of(&[WorkerReport {
                servers: servers.to_vec(),
                ..WorkerReport::default()
            }]);
            snapshot.pools[0].down.map(|(_, count)| count)
        };
        assert_eq!(down(&servers), [0; 4]);
        // The last ones have no name.
        servers[SERVERS_NAMED_MAX + 4].state = "backoff";
        servers[SERVERS_NAMED_MAX + 3].state = "connecting";
        servers[SERVERS_NAMED_MAX + 2].role = "replica";
        servers[SERVERS_NAMED_MAX + 2].state = "down";
        servers[SERVERS_NAMED_MAX + 1].state = "gone";
        servers[0].state = "unknown";
        servers[1].state = "down";
        servers[2].role = "replica";
        servers[2].state = "backoff";
        servers[3].role = "seed";
        servers[3].state = "backoff";
        assert_eq!(down(&servers), [3, 1, 0, 1]);
    }
}
