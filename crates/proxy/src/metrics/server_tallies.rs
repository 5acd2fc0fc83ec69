//! The counters of servers by label set, over the life of the process.
//!
//! ```text
//!   worker 0, entry 7: 12 lost ──┐ counted since                ┌─► pool a, 10.0.0.1:6379   12
//!   worker 1, entry 7:  3 lost ──┤ the last page  ──► label set ┼─► pool a, 10.0.0.2:6379    3
//!   worker 1, entry 9:  1 lost ──┘                              └─► pool a, other            1
//! ```
//!
//! A worker counts for each of its entries. The labels of an entry change: a Sentinel names another
//! address, or a server gets a name in place of `other`. Entries of a label set come and go: an
//! ended pool has its own, and a node of a Cluster is hidden while its reader is shown. So a sum of
//! the counters that workers report could fall, and Prometheus takes a fall for a restart. Here
//! the counts of an entry since the last page are added to the labels that it has now, and nothing
//! is ever taken away.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZero;
use std::thread;

use respool_engine::{ServerCpu, ServerEntry, ServerReport, Time};

use super::snapshot::{SERVERS_NAMED_MAX, later_cpu};

/// Servers that pages have named, those that left included. At the limit: a server that has no
/// name yet counts for `other` of its pool.
pub(crate) const SERVERS_KEPT_MAX: usize = 4_096;

/// Cores that a server may keep busy, at least: threads for input and output count before Redis
/// 7.0. More than these or the cores of this machine is the figure of another process.
const SERVER_CORES_LEAST: usize = 8;

/// The counters of servers by label set.
#[derive(Debug)]
pub(crate) struct ServerTallies {
    /// The counts of each entry of each worker at the last page. The bound is the engine's
    /// `SERVERS_MAX` for each worker.
    last: Vec<HashMap<u16, EntryCounts>>,
    /// The totals, by pool.
    totals: BTreeMap<String, PoolTallies>,
    /// Servers with a name in `totals`: at most [`SERVERS_KEPT_MAX`].
    kept: usize,
    /// Whether a server got no name because [`SERVERS_KEPT_MAX`] are kept.
    lacks_names: bool,
    /// Cores that a server may keep busy.
    server_cores_max: f64,
}

/// The totals of the servers of one pool.
#[derive(Debug, Default)]
struct PoolTallies {
    /// Those of each server that a page has named.
    servers: BTreeMap<String, LabelTally>,
    /// Those of all others.
    other: LabelTally,
}

/// The counts of an entry of a worker.
#[derive(Clone, Copy, Debug, Default)]
struct EntryCounts {
    reuses: u32,
    failures: u64,
    lost: u64,
}

/// The totals of one label set. None of them ever falls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LabelTally {
    /// Attempts to connect that failed.
    pub(crate) failures_total: u64,
    /// Connections that were lost.
    pub(crate) lost_total: u64,
    /// CPU time that the server used, since it started or since the first page.
    cpu: ServerCpu,
    /// The answer about CPU time that was counted last.
    cpu_answer: Option<(Time, ServerCpu)>,
    /// The last page named the server.
    pub(crate) is_named: bool,
}

impl Default for ServerTallies {
    fn default() -> ServerTallies {
        let cores = thread::available_parallelism().map_or(0, NonZero::get);
        ServerTallies {
            last: Vec::new(),
            totals: BTreeMap::new(),
            kept: 0,
            lacks_names: false,
            server_cores_max: cores.max(SERVER_CORES_LEAST) as f64,
        }
    }
}

impl ServerTallies {
    /// Chooses the servers among `present` that this page names. A server that the last page named
    /// keeps its name. Returns whether names are used up, the first time that a server gets none
    /// for this reason.
    pub(crate) fn name_servers(&mut self, present: &BTreeSet<(&str, &str)>) -> bool {
        let mut free = SERVERS_NAMED_MAX;
        for (pool, of_pool) in &mut self.totals {
            for (server, tally) in &mut of_pool.servers {
                tally.is_named &= present.contains(&(pool.as_str(), server.as_str()));
                free -= usize::from(tally.is_named);
            }
        }
        let mut lacks_names = false;
        for (pool, server) in present {
            if !self.totals.contains_key(*pool) {
                let none = PoolTallies::default();
                self.totals.insert((*pool).to_owned(), none);
            }
            let Some(of_pool) = self.totals.get_mut(*pool) else {
                continue;
            };
            let known = of_pool.servers.get_mut(*server);
            if free == 0 || known.as_ref().is_some_and(|tally| tally.is_named) {
                continue;
            }
            match known {
                Some(tally) => tally.is_named = true,
                None if self.kept == SERVERS_KEPT_MAX => {
                    lacks_names = true;
                    continue;
                }
                None => {
                    let is_named = true;
                    let tally = LabelTally {
                        is_named,
                        ..LabelTally::default()
                    };
                    of_pool.servers.insert((*server).to_owned(), tally);
                    self.kept += 1;
                }
            }
            free -= 1;
        }
        let is_first = lacks_names && !self.lacks_names;
        self.lacks_names |= lacks_names;
        is_first
    }

    /// Adds the counts of a worker's entry since the last page. `server`: its name on pages.
    pub(crate) fn add(&mut self, worker: usize, pool: &str, server: &str, report: &ServerReport) {
        if worker >= self.last.len() {
            self.last.resize_with(worker + 1, HashMap::new);
        }
        let ServerEntry { index, reuses } = report.entry;
        let now = EntryCounts {
            reuses,
            failures: report.failures_total,
            lost: report.lost_total,
        };
        let last = self.last[worker].insert(index, now).unwrap_or_default();
        let last = match last.reuses == reuses {
            true => last,
            false => EntryCounts::default(),
        };
        if let Some(tally) = self.tally(pool, server) {
            tally.failures_total += now.failures.saturating_sub(last.failures);
            tally.lost_total += now.lost.saturating_sub(last.lost);
        }
    }

    /// The totals of a server, with the CPU time that it has used since its last answer. Those of
    /// all servers without a name have no CPU time.
    pub(crate) fn total(
        &mut self,
        pool: &str,
        server: &str,
        answer: Option<(Time, ServerCpu)>,
    ) -> (LabelTally, Option<ServerCpu>) {
        let cores_max = self.server_cores_max;
        let Some(tally) = self.tally(pool, server) else {
            return Default::default();
        };
        let answer = answer.filter(|_| tally.is_named);
        let cpu = answer.map(|answer| tally.add_cpu(answer, cores_max));
        (*tally, cpu)
    }

    /// The totals of a server if it has a name, else those of all others of its pool. `None`: no
    /// page has had a server of the pool.
    fn tally(&mut self, pool: &str, server: &str) -> Option<&mut LabelTally> {
        let of_pool = self.totals.get_mut(pool)?;
        let named = of_pool.servers.get_mut(server);
        Some(match named.filter(|tally| tally.is_named) {
            Some(tally) => tally,
            None => &mut of_pool.other,
        })
    }
}

impl LabelTally {
    /// Adds the CPU time that a server has used since its last answer. Returns its total.
    fn add_cpu(&mut self, answer: (Time, ServerCpu), cores_max: f64) -> ServerCpu {
        let Some(last) = self.cpu_answer else {
            (self.cpu, self.cpu_answer) = (answer.1, Some(answer));
            return self.cpu;
        };
        // The worker with the last answer may be gone.
        let answer = later_cpu(last, answer);
        let has_restarted = answer.1.total_s() < last.1.total_s();
        let base = if has_restarted {
            ServerCpu::default()
        } else {
            last.1
        };
        let user_s = (answer.1.user_s - base.user_s).max(0.0);
        let system_s = (answer.1.system_s - base.system_s).max(0.0);
        let most_s = answer.0.since_us(last.0) as f64 / 1e6 * cores_max;
        // Else another process answers at this address, with the CPU time of its own life.
        if user_s + system_s <= most_s {
            self.cpu.user_s += user_s;
            self.cpu.system_s += system_s;
        }
        self.cpu_answer = Some(answer);
        self.cpu
    }
}

#[cfg(test)]
mod tests {
    use respool_engine::{Counters, WorkerReport};
    use respool_testkit::random::Random;

    use super::super::process::ProcessFigures;
    use super::super::snapshot::{MetricsSnapshot, OTHER};
    use super::*;

    /// The counters that pages have shown last, by pool and server.
    type Shown = BTreeMap<(String, String), (u64, u64)>;

    /// Pages, one after another. None may show less than an earlier one.
    #[derive(Default)]
    struct Pages {
        tallies: ServerTallies,
        shown: Shown,
    }

    impl Pages {
        /// A page about these servers of each worker.
        fn page(&mut self, pools: &[&str], workers: &[Vec<ServerReport>]) -> MetricsSnapshot {
            let pools: Vec<String> = pools.iter().map(|&name| name.to_owned()).collect();
            let report = |servers: &Vec<ServerReport>| WorkerReport {
                servers: servers.clone(),
                ..WorkerReport::default()
            };
            let reports: Vec<WorkerReport> = workers.iter().map(report).collect();
            let counters = vec![Counters::default(); workers.len()];
            let process = ProcessFigures::default();
            let page = MetricsSnapshot::new(process, &pools, counters, &reports, &mut self.tallies);
            for ((pool, server), totals) in &page.servers {
                let label = (pools[*pool].clone(), server.clone());
                let now = (totals.failures_total, totals.lost_total);
                let before = self.shown.insert(label.clone(), now).unwrap_or_default();
                assert!(
                    before.0 <= now.0 && before.1 <= now.1,
                    "{label:?}: {before:?}, {now:?}"
                );
            }
            page
        }

        /// The failed attempts that pages have shown for a server of the pool `a`.
        fn failures(&self, server: &str) -> u64 {
            self.shown[&("a".to_owned(), server.to_owned())].0
        }

        /// The sum over all label sets.
        fn all_failures(&self) -> u64 {
            self.shown.values().map(|(failures, _)| failures).sum()
        }
    }

    fn server((index, reuses): (u16, u32), address: &str, failures_total: u64) -> ServerReport {
        ServerReport {
            entry: ServerEntry { index, reuses },
            address: address.into(),
            role: "primary",
            state: "up",
            failures_total,
            lost_total: failures_total / 2,
            ..ServerReport::default()
        }
    }

    /// Two entries with one label set add up. One that is hidden and comes back counts once.
    #[test]
    fn hidden_entry_keeps_its_counts() {
        let mut pages = Pages::default();
        let (node, reader) = (server((1, 0), "x:1", 10), server((2, 0), "x:1", 4));
        pages.page(&["a"], &[vec![node, reader.clone()]]);
        assert_eq!(pages.failures("x:1"), 14);
        pages.page(&["a"], &[vec![reader]]);
        assert_eq!(pages.failures("x:1"), 14);
        let (node, reader) = (server((1, 0), "x:1", 11), server((2, 0), "x:1", 4));
        pages.page(&["a"], &[vec![node, reader]]);
        assert_eq!(pages.failures("x:1"), 15);
    }

    /// A Sentinel gives an entry another address, and the old one again. Each address shows its
    /// own counts.
    #[test]
    fn renamed_server_leaves_its_counts_behind() {
        let mut pages = Pages::default();
        for (address, failures) in [("x:1", 5), ("y:1", 7), ("x:1", 8)] {
            pages.page(&["a"], &[vec![server((0, 0), address, failures)]]);
        }
        assert_eq!((pages.failures("x:1"), pages.failures("y:1")), (6, 2));
    }

    /// A pool is replaced: for a while its old and its new server have the same labels.
    #[test]
    fn ended_pool_leaves_its_counts_behind() {
        let mut pages = Pages::default();
        let old = || server((0, 0), "x:1", 9);
        pages.page(&["a"], &[vec![old()], vec![old()]]);
        pages.page(
            &["a"],
            &[vec![old(), server((1, 0), "x:1", 1)], vec![old()]],
        );
        assert_eq!(pages.failures("x:1"), 19);
        pages.page(&["a"], &[vec![server((1, 0), "x:1", 1)], vec![]]);
        assert_eq!(pages.failures("x:1"), 19);
        // The pool leaves the configuration, another takes its index, and it comes back.
        pages.page(&["b"], &[vec![server((2, 0), "x:1", 3)]]);
        pages.page(
            &["b", "a"],
            &[vec![ServerReport {
                pool: 1,
                ..server((3, 0), "x:1", 2)
            }]],
        );
        assert_eq!((pages.failures("x:1"), pages.all_failures()), (21, 24));
    }

    /// An entry that another server gets begins at 0, even with a greater count than before.
    #[test]
    fn reused_entry_counts_from_the_beginning() {
        let mut pages = Pages::default();
        for (reuses, failures) in [(0, 5), (1, 5), (2, 3), (3, 9)] {
            pages.page(&["a"], &[vec![server((0, reuses), "x:1", failures)]]);
        }
        assert_eq!(pages.failures("x:1"), 22);
    }

    /// Servers come and go around the bound of named ones, at random. No count falls, and none is
    /// lost or counted twice.
    #[test]
    fn counts_stay_while_servers_get_and_lose_names() {
        let (mut pages, mut random) = (Pages::default(), Random::new(7));
        let mut counted = vec![0; SERVERS_NAMED_MAX + 60];
        let (mut expected, mut was_beyond) = (0, false);
        for _ in 0..60 {
            let mut present = Vec::new();
            for (nth, failures) in counted.iter_mut().enumerate() {
                if random.below(8) > 0 {
                    let more = random.below(3);
                    *failures += more;
                    expected += more;
                    present.push(server((nth as u16, 0), &format!("x:{nth}"), *failures));
                }
            }
            let page = pages.page(&["a"], &[present]);
            was_beyond |= page.servers.contains_key(&(0, OTHER.to_owned()));
            assert!(page.servers.len() <= SERVERS_NAMED_MAX + 1);
            assert_eq!(pages.all_failures(), expected);
        }
        assert!(was_beyond && pages.failures(OTHER) > 0);
    }

    /// Beyond the bound of names, a new server counts for `other`, and one with a name keeps it.
    /// The first page on which a server lacks a name says so.
    #[test]
    fn names_have_a_bound() {
        let mut pages = Pages::default();
        let mut said = Vec::new();
        for nth in 0..SERVERS_KEPT_MAX + 10 {
            let address = format!("x:{nth}");
            let page = pages.page(&["a"], &[vec![server((0, nth as u32), &address, 1)]]);
            said.extend(page.lacks_names.then_some(nth));
        }
        assert_eq!(said, [SERVERS_KEPT_MAX]);
        assert_eq!(pages.failures(OTHER), 10);
        assert_eq!(pages.tallies.totals["a"].servers.len(), SERVERS_KEPT_MAX);
        pages.page(&["a"], &[vec![server((1, 0), "x:3", 4)]]);
        assert_eq!(pages.failures("x:3"), 5);
    }

    /// A server that is called `other` has a series and counters of its own.
    #[test]
    fn server_called_other_is_not_the_others() {
        let mut pages = Pages::default();
        let beyond =
            (0..SERVERS_NAMED_MAX + 5).map(|nth| server((nth as u16, 0), &format!("x:{nth}"), 1));
        let called = server((1_000, 0), OTHER, 7);
        // The first page names it, so it keeps its name.
        let page = pages.page(&["a"], &[vec![called.clone()]]);
        assert!(!page.servers.contains_key(&(0, OTHER.to_owned())));
        let all = beyond.chain([called]).collect();
        let page = pages.page(&["a"], &[all]);
        assert_eq!(page.servers.len(), SERVERS_NAMED_MAX + 1);
        assert_eq!(page.servers[&(0, OTHER.to_owned())].up, 6);
        assert_eq!((pages.failures("'other'"), pages.failures(OTHER)), (7, 6));
    }

    /// CPU time goes on when the server starts anew, or when the worker with the last answer is
    /// gone. The CPU time of another process at the same address is not added at once.
    #[test]
    fn cpu_time_never_falls() {
        let mut pages = Pages::default();
        let mut shown = Vec::new();
        for (at_s, user_s) in [
            (10, 100.0),
            (20, 103.0),
            // An older answer of another worker.
            (18, 102.5),
            // A restart.
            (40, 0.5),
            (50, 2.5),
            // A process that has run for long.
            (60, 2_000.0),
            (70, 2_001.0),
        ] {
            let system_s = 0.25;
            let report = ServerReport {
                cpu: Some((Time(at_s * 1_000_000), ServerCpu { user_s, system_s })),
                ..server((0, 0), "x:1", 0)
            };
            let page = pages.page(&["a"], &[vec![report]]);
            let cpu = page.servers[&(0, "x:1".to_owned())]
                .cpu
                .expect("it is known");
            shown.push((cpu.user_s, cpu.system_s));
        }
        let expected = [
            (100.0, 0.25),
            (103.0, 0.25),
            (103.0, 0.25),
            (103.5, 0.5),
            (105.5, 0.5),
            (105.5, 0.5),
            (106.5, 0.5),
        ];
        assert_eq!(shown, expected);
    }
}
