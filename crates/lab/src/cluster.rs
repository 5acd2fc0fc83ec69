//! The cost of several servers behind one proxy, and of dividing a request of many keys among them.
//!
//! Every way is measured over one, three and six servers in the same round: respool before plain
//! servers, respool before a Cluster, and Envoy's Redis proxy before the same Cluster. The direct
//! server stands beside them. Ratios are medians of ratios within a round, as everywhere.

use crate::bar::Bar;
use crate::case::{LoadTarget, Verb, Way, Workload};
use crate::experiment::{Experiment, in_turn};
use crate::report::{CaseReport, Cost, Report, Round, paired};

/// The same requests over one server and over several.
pub const CLUSTER: Experiment = Experiment {
    name: "cluster",
    title: "Several servers: the cost of dividing requests among them",
    about: "\
What does it cost a proxy to divide requests among several servers? SET and GET, one at a time and 20 at once, and MGET and MSET of
100 keys, over one server, three and six: through respool before plain servers (redis-sharded://), through respool before a
Cluster (redis-cluster://), and through Envoy before the same Cluster. Requests that went to one server in one write now go to
several in one each: the proxy and the servers make as many more system calls for the same requests. A request of many keys is
divided and its reply put together, which nothing does for a server that is asked directly.",
    adapt: |options| {
        options.verbs = vec![Verb::Set, Verb::Get, Verb::Mget(100), Verb::Mset(100)];
        options.threads = vec![1];
        options.is_without_respool = true;
        options.ways = Way::ALL.to_vec();
        options.servers = vec![1, 3, 6];
        options.budget_s = Some(600.0);
    },
    plan: in_turn,
    is_isolated: false,
};

/// Most servers of a pool that the lab starts.
pub const SERVERS_MAX: u16 = 32;

/// The number of servers for which the bars hold.
const BARS_AT: u16 = 3;
/// CPU of the proxy per request, relative to one server.
const TO_ONE_MAX: f64 = 1.25;
/// CPU of the proxy per request, relative to Envoy.
const TO_ENVOY_MAX: f64 = 0.3;
/// CPU of the proxy per key of an MGET of 100, µs.
const KEY_US_MAX: f64 = 0.12;
/// CPU of the servers per key of it, relative to the direct server.
const SERVERS_CPU_MAX: f64 = 1.0;
/// Median time of an MGET of 100, relative to the direct server.
const P50_MAX: f64 = 1.5;

/// One workload over one pool. Figures are medians over the rounds, and ratios are taken within
/// each round first.
#[derive(Clone, Debug)]
pub struct Pooled<'a> {
    /// The case with all its figures.
    pub case: &'a CaseReport,
    /// The way to the servers.
    pub way: Way,
    /// The number of servers.
    pub servers: u16,
    /// CPU of the proxy per request, relative to the same way over one server.
    pub proxy_to_one: Option<f64>,
    /// CPU of the proxy per request, relative to respool before one plain server.
    pub proxy_to_plain: Option<f64>,
    /// CPU of the proxy per request, relative to Envoy over as many servers.
    pub proxy_to_envoy: Option<f64>,
    /// CPU of the proxy per key, for requests with many keys.
    pub proxy_us_per_key: Option<f64>,
    /// CPU of all servers per key, for requests with many keys.
    pub server_us_per_key: Option<f64>,
}

/// Every case over a pool, in the order of the tables. Empty for another experiment.
pub fn of(report: &Report) -> Vec<Pooled<'_>> {
    report
        .cases
        .iter()
        .filter_map(|case| pooled(report, case))
        .collect()
}

fn pooled<'a>(report: &'a Report, case: &'a CaseReport) -> Option<Pooled<'a>> {
    let LoadTarget::Pool {
        way,
        servers,
        threads,
    } = case.case.target
    else {
        return None;
    };
    let to = |way: Way, servers: u16| {
        let threads = match way {
            Way::Envoy => 1,
            Way::Sharded | Way::Cluster => threads,
        };
        let target = LoadTarget::Pool {
            way,
            servers,
            threads,
        };
        let other = report.find(case.case.workload, &target);
        paired(case, other, &Round::proxy_us)
    };
    let summary = case.summary.as_ref();
    let keys = case.case.workload.verb.keys();
    let per_key = |cost: Option<&Cost>| {
        let us = cost?.us_per_request?.median;
        (keys > 1).then(|| us / f64::from(keys))
    };
    Some(Pooled {
        case,
        way,
        servers,
        proxy_to_one: to(way, 1),
        proxy_to_plain: to(Way::Sharded, 1),
        proxy_to_envoy: to(Way::Envoy, servers),
        proxy_us_per_key: per_key(summary.and_then(|summary| summary.proxy.as_ref())),
        server_us_per_key: per_key(summary.and_then(|summary| summary.server.as_ref())),
    })
}

/// The bounds over three servers, with the measured figures.
pub fn bars(report: &Report) -> Vec<Bar> {
    let mut bars = Vec::new();
    for pooled in of(report) {
        if pooled.servers != BARS_AT || pooled.way == Way::Envoy {
            continue;
        }
        let ratios = report.ratios(pooled.case);
        let found: &[(&'static str, Option<f64>, Option<f64>)] =
            match (pooled.case.case.workload.verb, pooled.way) {
                (Verb::Mget(_), Way::Sharded) => &[
                    (
                        "proxy CPU per key, µs",
                        Some(KEY_US_MAX),
                        pooled.proxy_us_per_key,
                    ),
                    (
                        "servers' CPU ÷ direct MGET's",
                        Some(SERVERS_CPU_MAX),
                        ratios.server_cpu_to_direct,
                    ),
                    ("p50 ÷ direct MGET's", Some(P50_MAX), ratios.p50_to_direct),
                ],
                (Verb::Set | Verb::Get, _) => &[
                    (
                        "proxy CPU ÷ its own with 1 server",
                        Some(TO_ONE_MAX),
                        pooled.proxy_to_one,
                    ),
                    (
                        "proxy CPU ÷ before 1 plain server",
                        None,
                        pooled.proxy_to_plain,
                    ),
                    (
                        "proxy CPU ÷ Envoy's",
                        Some(TO_ENVOY_MAX),
                        pooled.proxy_to_envoy,
                    ),
                ],
                _ => &[],
            };
        bars.extend(found.iter().map(|&(figure, most, found)| Bar {
            case: pooled.case.case.clone(),
            figure,
            most,
            found,
        }));
    }
    bars
}

/// The case of a workload over one way and number of servers, with the first number of workers.
pub fn find(report: &Report, workload: Workload, way: Way, servers: u16) -> Option<Pooled<'_>> {
    let mut all = of(report).into_iter();
    all.find(|pooled| {
        pooled.case.case.workload == workload && pooled.way == way && pooled.servers == servers
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::case::Case;
    use crate::options::RunOptions;
    use crate::report::tests::{example, round};

    /// GETs and MGETs of 100 over one server and three, in three rounds. Each further server costs
    /// the proxy a tenth more, and Envoy costs ten times as much. The second round is slow for all
    /// targets.
    pub(crate) fn example_of_cluster() -> Report {
        let mut report = example();
        report.experiment = CLUSTER.name.to_owned();
        let mut options = RunOptions::default();
        (CLUSTER.adapt)(&mut options);
        options.verbs = vec![Verb::Get, Verb::Mget(100)];
        options.pipelines = vec![20];
        options.servers = vec![1, 3];
        report.cases = options
            .cases()
            .into_iter()
            .map(|case| {
                let rounds = (1..=3).map(|number| {
                    let mut round = round(number, &case.target, 100_000);
                    let slow = if number == 2 { 3.0 } else { 1.0 };
                    let dearer = match case.target {
                        LoadTarget::Pool {
                            way: Way::Envoy, ..
                        } => 10.0,
                        _ => 1.0 + 0.1 * f64::from(case.target.servers() - 1),
                    };
                    if let Some(usage) = &mut round.proxy {
                        usage.used_s *= slow * dearer;
                    }
                    for (_, us) in &mut round.latency.percentiles {
                        *us *= slow * f64::from(case.target.servers());
                    }
                    round
                });
                CaseReport::of(case.clone(), rounds.collect())
            })
            .collect();
        report.options = options;
        report
    }

    /// Every way is measured over every number of servers, and requests of many keys one at a time.
    #[test]
    fn cluster_measures_every_way_over_every_size() {
        let mut options = RunOptions::default();
        (CLUSTER.adapt)(&mut options);
        let cases = options.cases();
        // The direct server, and three ways over one, three and six servers.
        assert_eq!(cases.len(), (4 + 2) * (1 + 3 * 3));
        let ids: Vec<String> = cases.iter().map(Case::id).collect();
        assert_eq!(
            ids[..3],
            [
                "set-p1-c50-direct",
                "set-p1-c50-sharded_1-t1",
                "set-p1-c50-sharded_3-t1"
            ]
        );
        assert!(ids.contains(&"get-p20-c50-envoy_6".to_owned()), "{ids:?}");
        assert!(ids.contains(&"mset-100-p1-c50-cluster_3-t1".to_owned()));
        assert!(!ids.iter().any(|id| id.contains("100-p20")), "{ids:?}");
    }

    /// A pool is compared with one server and with Envoy in the same round.
    #[test]
    fn pool_is_compared_within_a_round() {
        let report = example_of_cluster();
        let pooled = of(&report);
        assert_eq!(pooled.len(), 2 * 3 * 2, "the direct server is none");
        let near = |found: Option<f64>, expected: f64| {
            let found = found.unwrap();
            assert!((found - expected).abs() < 1e-9, "{found}, not {expected}");
        };
        let workload = pooled[0].case.case.workload;
        let cluster = find(&report, workload, Way::Cluster, 3).unwrap();
        near(cluster.proxy_to_one, 1.2);
        near(cluster.proxy_to_plain, 1.2);
        near(cluster.proxy_to_envoy, 0.12);
        let mget = pooled.last().unwrap().case.case.workload;
        let sharded = find(&report, mget, Way::Sharded, 3).unwrap();
        near(sharded.proxy_us_per_key, 7.2 / 100.0);
        near(sharded.server_us_per_key, 5.0 / 100.0);
        assert!(of(&example()).is_empty());
    }

    /// A bar is kept, missed, or unknown.
    #[test]
    fn bar_is_kept_missed_or_unknown() {
        let report = example_of_cluster();
        let found: Vec<_> = bars(&report)
            .into_iter()
            .map(|bar| (bar.case.id(), bar.most, bar.is_kept()))
            .collect();
        let of = |id: &str, most, kept| (id.to_owned(), most, kept);
        let mut expected = Vec::new();
        for way in ["sharded_3", "cluster_3"] {
            let id = format!("get-p20-c50-{way}-t1");
            expected.extend([
                of(&id, Some(TO_ONE_MAX), Some(true)),
                of(&id, None, None),
                of(&id, Some(TO_ENVOY_MAX), Some(true)),
            ]);
        }
        let id = "mget-100-p20-c50-sharded_3-t1";
        expected.extend([
            of(id, Some(KEY_US_MAX), Some(true)),
            of(id, Some(SERVERS_CPU_MAX), Some(true)),
            // Three times as long as directly.
            of(id, Some(P50_MAX), Some(false)),
        ]);
        assert_eq!(found, expected);
    }
}
