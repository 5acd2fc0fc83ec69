//! Does this build of respool cost more CPU per request than another build of it?
//!
//! A machine drifts, and the measurement before matters. So both builds are measured in quadruples:
//! this one, the base, the base, this one; and the next time the other way round. The ratio of
//! their means in a quadruple cancels a drift, and over two quadruples the cost of a place in them.
//! Each measurement gets a new process with cores of its own ([`crate::cores`]). So the kernel's
//! choice of memory is a part of the spread, instead of an advantage of one build in the whole run.
//! A measured window ends by time, not after a number of requests: the comparison is of CPU per
//! request.
//!
//! A quadruple is one observation. The verdict on a case is the median of its quadruples' ratios,
//! with an interval that assumes nothing about their distribution: see [`median_interval`].

use crate::case::{Case, LoadTarget};
use crate::experiment::{Experiment, RunPlan};
use crate::report::{CaseReport, Comparison, FigureSpread, Ratio, Round, Verdict};

/// Two builds of respool by turns, many times.
pub const AGAINST: Experiment = Experiment {
    name: "against",
    title: "This build of respool against another one: CPU per request",
    about: "\
Does this build of respool cost more CPU per request than another one, the base? Both stand before the same server and get
the same load, by turns: this one, the base, the base, this one; then the other way round. Each time it is a new process, on cores
that server and generator do not use, if there is more than one. The figure to look at is the ratio of their CPU per request: the
median over all such quadruples, with the interval in which the true median lies in 95 of 100 such runs.",
    adapt: |options| {
        options.threads = vec![1];
        options.seconds = Some(0.5);
        options.rounds = Some(40);
    },
    plan: quadruples,
    is_isolated: true,
};

impl Verdict {
    fn of(interval: Option<(f64, f64)>, allow_percent: f64) -> Verdict {
        let bound = 1.0 + allow_percent / 100.0;
        match interval {
            Some((_, high)) if high <= bound => Verdict::AtMost,
            Some((low, _)) if low > bound => Verdict::More,
            _ => Verdict::CannotTell,
        }
    }

    /// Words for a table.
    pub fn in_words(self, allow_percent: f64) -> String {
        match self {
            Verdict::AtMost => format!("at most {allow_percent} % more"),
            Verdict::More => format!("more than {allow_percent} % more"),
            Verdict::CannotTell => "cannot tell".to_owned(),
        }
    }
}

/// The order of measurements. Cases come in pairs, this build and the base. Two rounds of a pair,
/// the second one backwards, make a quadruple.
fn quadruples(cases: &[Case], rounds: u32) -> RunPlan {
    let mut plan = RunPlan::new();
    for (turn, round) in (1..rounds).step_by(2).enumerate() {
        for new in (0..cases.len()).step_by(2) {
            let base = new + 1;
            let (outer, inner) = if turn % 2 == 0 {
                (new, base)
            } else {
                (base, new)
            };
            plan.extend([
                (round, outer),
                (round, inner),
                (round + 1, inner),
                (round + 1, outer),
            ]);
        }
    }
    plan
}

/// Compares each case with the base next to it. Empty without a base.
pub fn compare(cases: &[CaseReport], allow_percent: f64) -> Vec<Comparison> {
    let comparison = |pair: &[CaseReport]| {
        let [new, base] = pair else { return None };
        let LoadTarget::Base { threads, .. } = base.case.target else {
            return None;
        };
        let proxy = Ratio::of(new, base, &Round::proxy_us);
        Some(Comparison {
            workload: new.case.workload,
            threads,
            verdict: Verdict::of(proxy.interval, allow_percent),
            proxy,
            proxy_user: Ratio::of(new, base, &Round::proxy_user_us),
            server: Ratio::of(new, base, &Round::server_us),
        })
    };
    cases.chunks(2).filter_map(comparison).collect()
}

impl Ratio {
    fn of(new: &CaseReport, base: &CaseReport, figure: &dyn Fn(&Round) -> Option<f64>) -> Ratio {
        let of = |case: &CaseReport, number| {
            let round = case.rounds.iter().find(|round| round.number == number)?;
            figure(round)
        };
        let last = new.rounds.last().map_or(0, |round| round.number);
        let quadruples: Vec<f64> = (1..last)
            .step_by(2)
            .filter_map(|first| {
                let both = |case| Some(of(case, first)? + of(case, first + 1)?);
                Some(both(new)? / both(base)?)
            })
            // User time may be 0 in windows of a few ticks: that is no observation.
            .filter(|&ratio| ratio > 0.0 && ratio.is_finite())
            .collect();
        let median =
            |figures: &mut dyn Iterator<Item = f64>| FigureSpread::of(figures).map(|s| s.median);
        let us = |case: &CaseReport| median(&mut case.rounds.iter().filter_map(figure));
        Ratio {
            new_us: us(new),
            base_us: us(base),
            median: median(&mut quadruples.iter().copied()),
            interval: median_interval(&quadruples),
            quadruples: quadruples.len(),
        }
    }
}

/// The interval that holds the true median with a confidence of at least 95 %, for any
/// distribution. `None`: there are fewer than six figures.
///
/// Each figure is below the true median with a probability of one half, so the number of those has
/// a binomial distribution. From both ends, as many figures may be left out as that distribution
/// has below 2.5 %. This is the sign test, turned into an interval (W. J. Conover, Practical
/// Nonparametric Statistics, 3rd edition, 1999, section 3.2).
pub fn median_interval(figures: &[f64]) -> Option<(f64, f64)> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    // With many figures the probability of none is too small for a float, so the sum uses
    // logarithms.
    let mut ln_probability = count as f64 * 0.5f64.ln();
    let mut at_most = ln_probability.exp();
    let mut left_out = 0;
    while at_most <= 0.025 {
        left_out += 1;
        ln_probability += ((count + 1 - left_out) as f64 / left_out as f64).ln();
        at_most += ln_probability.exp();
    }
    (left_out > 0).then(|| (sorted[left_out - 1], sorted[count - left_out]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Verb, Workload};
    use crate::report::tests::round;

    #[test]
    fn the_interval_is_the_one_of_the_published_tables() {
        // Ends by rank, from textbook tables of confidence intervals for the median (n of 6, 8, 9,
        // 12, 17, 20).
        for (count, first, last) in [
            (6, 1, 6),
            (8, 1, 8),
            (9, 2, 8),
            (12, 3, 10),
            (17, 5, 13),
            (20, 6, 15),
        ] {
            // The ranks themselves, in another order.
            let ranks: Vec<f64> = (1..=count).rev().map(f64::from).collect();
            let expected = Some((f64::from(first), f64::from(last)));
            assert_eq!(median_interval(&ranks), expected, "of {count}");
        }
        for count in 0..6 {
            assert_eq!(median_interval(&vec![1.0; count]), None, "of {count}");
        }
        // About 1.96 standard deviations on either side of the middle; one is half the root of the
        // count.
        let many: Vec<f64> = (1..=10_000).map(f64::from).collect();
        assert_eq!(median_interval(&many), Some((4_902.0, 5_099.0)));
    }

    #[test]
    fn a_verdict_needs_the_whole_interval_on_one_side() {
        let of = |low, high| Verdict::of(Some((low, high)), 3.0);
        assert_eq!(of(0.95, 1.03), Verdict::AtMost);
        assert_eq!(of(1.031, 1.2), Verdict::More);
        assert_eq!(of(1.029, 1.031), Verdict::CannotTell);
        assert_eq!(Verdict::of(None, 3.0), Verdict::CannotTell);
        assert_eq!(Verdict::of(Some((0.9, 1.01)), 0.0), Verdict::CannotTell);
    }

    fn cases(workloads: usize) -> Vec<Case> {
        let base = LoadTarget::Base {
            threads: 1,
            binary: "respool".into(),
        };
        let targets = [LoadTarget::Respool { threads: 1 }, base];
        let case = |pipeline, target: &LoadTarget| Case {
            workload: Workload {
                verb: Verb::Get,
                pipeline,
                connections: 50,
                rate: None,
            },
            target: target.clone(),
        };
        (1..=workloads)
            .flat_map(|pipeline| targets.iter().map(move |target| case(pipeline, target)))
            .collect()
    }

    #[test]
    fn builds_take_turns_so_that_no_place_is_always_the_same_ones() {
        let plan = quadruples(&cases(2), 4);
        let order: Vec<usize> = plan.iter().map(|&(_, place)| place).collect();
        assert_eq!(order, [0, 1, 1, 0, 2, 3, 3, 2, 1, 0, 0, 1, 3, 2, 2, 3]);
        for (place, round) in (0..4).flat_map(|place| (1..=4).map(move |round| (place, round))) {
            let times = plan.iter().filter(|&&step| step == (round, place)).count();
            assert_eq!(times, 1, "case {place} in round {round}");
        }
    }

    /// The comparison of a run in which a measurement costs `cost(build, step)` µs: build 0 is the
    /// new one.
    fn simulate(rounds: u32, cost: impl Fn(usize, usize) -> f64) -> Comparison {
        let cases = cases(1);
        let mut measured: [Vec<Round>; 2] = [Vec::new(), Vec::new()];
        for (step, (number, place)) in quadruples(&cases, rounds).into_iter().enumerate() {
            let mut round = round(number, &cases[place].target, 1_000_000);
            round.proxy.as_mut().unwrap().used_s = cost(place, step);
            measured[place].push(round);
        }
        let reports: Vec<CaseReport> = cases
            .into_iter()
            .zip(measured)
            .map(|(case, rounds)| CaseReport::of(case, rounds))
            .collect();
        let mut found = compare(&reports, 3.0);
        assert_eq!(found.len(), 1);
        assert!(compare(&reports[..1], 3.0).is_empty());
        found.remove(0)
    }

    #[test]
    fn drift_and_a_dear_first_place_cancel_and_a_difference_shows() {
        let of_build = |build: usize| if build == 0 { 5.5 } else { 5.0 };
        let drifting = simulate(24, |build, step| {
            of_build(build) * (1.0 + step as f64 / 50.0)
        });
        let (low, high) = drifting.proxy.interval.unwrap();
        assert!((low - 1.1).abs() < 1e-9 && (high - 1.1).abs() < 1e-9);
        assert_eq!(drifting.verdict, Verdict::More);
        assert_eq!(drifting.proxy.quadruples, 12);
        assert!((drifting.server.median.unwrap() - 1.0).abs() < 1e-9);
        assert!((drifting.proxy_user.median.unwrap() - 1.0).abs() < 1e-9);

        let first_is_dear = |step: usize| if step.is_multiple_of(4) { 1.16 } else { 1.0 };
        let same = simulate(24, |_, step| 5.0 * first_is_dear(step));
        assert!((same.proxy.median.unwrap() - 1.0).abs() < 0.005, "{same:?}");
        assert_ne!(same.verdict, Verdict::More);

        let few = simulate(10, |build, _| of_build(build));
        assert_eq!(
            (few.proxy.interval, few.verdict),
            (None, Verdict::CannotTell)
        );
        assert!((few.proxy.median.unwrap() - 1.1).abs() < 1e-9);
    }

    #[test]
    fn a_quadruple_that_came_to_nothing_is_left_out() {
        let whole = simulate(24, |_, _| 5.0);
        assert_eq!(whole.proxy.quadruples, 12);
        let part = simulate(24, |_, step| if step / 4 == 1 { 0.0 } else { 5.0 });
        assert_eq!(part.proxy.quadruples, 11);
        assert_eq!(part.proxy.median, Some(1.0));
    }
}
