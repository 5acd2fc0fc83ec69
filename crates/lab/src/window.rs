//! The flush rules over the load: the time of a request, and CPU of server and proxy.
//!
//! A round offers one load after the other to every target. The loads are absolute rates, so every
//! target gets the same requests at the same moments. The rule `latency` never waits: the others
//! are compared with it, within the same round.

use crate::case::{Case, LoadTarget, Verb};
use crate::experiment::{Experiment, in_turn};
use crate::options::{SETTLE_S, Variant};
use crate::report::{CaseReport, FigureSpread, Report, Round, paired};

/// The three flush rules, the direct server and other proxies under the same loads.
pub const WINDOW: Experiment = Experiment {
    name: "window",
    title: "The flush rules: time and CPU of a request over the load",
    about: "\
When should a request wait for others? Requests that wait leave in larger batches: server and proxy spend less CPU on
each, and each may take longer. The same GETs go to the server directly, to respool under each flush rule (latency,
balanced, server-cpu), and to every peer. They are due at a fixed rate (open loop), one rate after the other; the same
connections then run in closed loop. The same load runs for at least 2 s before each window: balanced needs that time to
settle. While there is room, balanced should be as quick as latency; under full load it should cost the server as little
as server-cpu.",
    adapt: |options| {
        options.verbs = vec![Verb::Get];
        options.pipelines = vec![1];
        options.connections = vec![50];
        options.threads = vec![1];
        options.rates = vec![2_000, 10_000, 30_000, 60_000];
        options.variants = rules().collect();
        options.is_without_respool = true;
        options.warmup_s = Some(SETTLE_S);
        options.budget_s = Some(600.0);
        // A stall of the whole machine would show as p99 of every rule, and as a backlog in open
        // loop.
        options.stolen_cores_max = Some(0.05);
    },
    plan: in_turn,
    is_isolated: false,
};

/// The rule that all other targets are compared with.
const LATENCY: &str = "latency";

/// respool under each of its flush rules.
fn rules() -> impl Iterator<Item = Variant> {
    let rules = [LATENCY, "balanced", "server-cpu"];
    rules
        .into_iter()
        .map(|rule| Variant::new(rule, &format!("--flush-rule={rule}")))
}

/// One target under one load: medians over the rounds.
#[derive(Clone, Debug)]
pub struct WindowResult<'a> {
    /// The load and the target.
    pub case: &'a Case,
    /// Requests done per second.
    pub requests_per_s: f64,
    /// The share of the due requests that were done; `None`: closed loop.
    pub part_of_due: Option<f64>,
    /// Requests per batch, by respool's counter.
    pub batch: Option<f64>,
    /// Time of a request, microseconds: p50 and p99.
    pub us: [Option<f64>; 2],
    /// The same, relative to `latency` in the same round.
    pub to_latency: [Option<f64>; 2],
    /// CPU per request of server and proxy, microseconds.
    pub cpu_us: [Option<f64>; 2],
}

const PERCENTILES: [f64; 2] = [50.0, 99.0];

/// Every measured case. Empty for another experiment.
pub fn of(report: &Report) -> Vec<WindowResult<'_>> {
    if report.experiment != WINDOW.name {
        return Vec::new();
    }
    let cases = report.cases.iter();
    cases.filter_map(|case| outcome(report, case)).collect()
}

fn outcome<'a>(report: &'a Report, case: &'a CaseReport) -> Option<WindowResult<'a>> {
    let target = &case.case.target;
    let is_latency = |other: &&CaseReport| {
        // The direct server and other proxies have no respool workers: for them the first number of
        // workers counts.
        let is_same_build = target.is_respool();
        other.case.workload == case.case.workload
            && matches!(&other.case.target, LoadTarget::Variant { name, .. } if name == LATENCY)
            && (!is_same_build || other.case.target.threads() == target.threads())
    };
    let latency = report.cases.iter().find(is_latency);
    let median = |figure: &dyn Fn(&Round) -> Option<f64>| {
        Some(FigureSpread::of(case.rounds.iter().filter_map(figure))?.median)
    };
    Some(WindowResult {
        case: &case.case,
        requests_per_s: median(&|round| Some(round.requests_per_s))?,
        part_of_due: median(&|round| Some(round.requests_per_s / round.rate?)),
        batch: median(&Round::mean_batch),
        us: PERCENTILES.map(|percent| median(&|round| round.latency.at(percent))),
        to_latency: PERCENTILES
            .map(|percent| paired(case, latency, &|round| round.latency.at(percent))),
        cpu_us: [median(&Round::server_us), median(&Round::proxy_us)],
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::options::RunOptions;
    use crate::report::tests::{counters, example, round};

    /// Two rates and the closed loop, three rounds: each target has larger batches and longer times
    /// than the one before it.
    pub(crate) fn example_of_window() -> Report {
        let mut report = example();
        report.experiment = WINDOW.name.to_owned();
        report.options = RunOptions::default();
        (WINDOW.adapt)(&mut report.options);
        report.options.rates = vec![2_000, 10_000];
        report.options.peers = vec![LoadTarget::Other {
            name: "predixy".into(),
            address: "127.0.0.1:1".into(),
            pid: 1,
        }];
        report.repeated = 4;
        let cases = report.options.cases().into_iter().enumerate();
        report.cases = cases
            .map(|(place, case)| {
                let place = place % 5;
                let requests = case.workload.rate.map_or(60_000, u64::from);
                let rounds = (1..=3).map(|number| {
                    let mut round = round(number, &case.target, requests);
                    if case.target.is_respool() {
                        round.counters = Some(counters(requests, requests >> place));
                    }
                    round.rate = case.workload.rate.map(f64::from);
                    for (_, us) in &mut round.latency.percentiles {
                        // A machine that is slow for a round is slow for every target.
                        *us = f64::from(number) * 100.0 * (1.0 + place as f64);
                    }
                    round
                });
                let rounds = rounds.collect();
                CaseReport::of(case, rounds)
            })
            .collect();
        report.cases[0].rounds[0].stolen = Some(0.2);
        report
    }

    #[test]
    fn window_asks_every_target_at_every_rate_and_in_closed_loop() {
        let report = example_of_window();
        let ids: Vec<String> = report.cases.iter().map(|case| case.id.clone()).collect();
        let targets = [
            "direct",
            "latency-t1",
            "balanced-t1",
            "server_cpu-t1",
            "predixy",
        ];
        let wanted = ["-o2000", "-o10000", ""]
            .iter()
            .flat_map(|load| targets.map(|target| format!("get-p1-c50{load}-{target}")));
        assert_eq!(ids, wanted.collect::<Vec<_>>());
        assert_eq!(
            report.options.variants[1].options,
            ["--flush-rule=balanced"]
        );
        assert!(report.options.warmup_s() >= SETTLE_S);
        assert!(report.options.seconds() > 1.0);
    }

    /// The rounds differ by a factor of three, the targets in each round by one.
    #[test]
    fn times_are_compared_with_latency_in_the_same_round() {
        let mut report = example_of_window();
        let found = of(&report);
        assert_eq!(found.len(), 3 * 5);
        let [direct, latency, balanced, server_cpu, peer] = &found[5..10] else {
            panic!("five targets: {found:?}");
        };
        assert_eq!(latency.to_latency, [Some(1.0); 2]);
        assert_eq!(direct.to_latency, [Some(0.5); 2]);
        assert_eq!(server_cpu.to_latency, [Some(2.0); 2]);
        assert_eq!(balanced.us, [Some(600.0); 2], "the second of three rounds");
        assert_eq!((balanced.batch, server_cpu.batch), (Some(4.0), Some(8.0)));
        assert_eq!((direct.batch, peer.batch), (None, None));
        assert_eq!(direct.cpu_us[1], None);
        assert_eq!(peer.cpu_us, [Some(50.0), Some(60.0)]);
        assert_eq!(peer.part_of_due, Some(1.0));
        assert_eq!(found[10].part_of_due, None, "the closed loop");
        // The third round of `latency` failed: the ratio is of the other two.
        report.cases[6].rounds.truncate(2);
        assert_eq!(of(&report)[8].to_latency, [Some(2.0); 2]);
        report.cases[6].rounds.clear();
        let found = of(&report);
        assert_eq!(found.len(), 3 * 5 - 1);
        assert_eq!(found[7].to_latency, [None; 2]);
        assert!(of(&example()).is_empty());
    }

    #[test]
    fn workers_are_compared_with_as_many_workers() {
        let mut report = example_of_window();
        let mut more = report.cases[6..8].to_vec();
        for case in &mut more {
            let LoadTarget::Variant { threads, .. } = &mut case.case.target else {
                panic!("a rule: {case:?}");
            };
            *threads = 3;
        }
        for round in &mut more[0].rounds {
            for (_, us) in &mut round.latency.percentiles {
                *us *= 2.0;
            }
        }
        report.cases.extend(more);
        let found = of(&report);
        assert_eq!(found[7].to_latency, [Some(1.5); 2]);
        assert_eq!(found[16].to_latency, [Some(0.75); 2]);
        assert_eq!(found[9].to_latency, [Some(2.5); 2], "the peer");
    }
}
