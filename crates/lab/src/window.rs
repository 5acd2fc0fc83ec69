//! What the flush rule buys and what it costs: batches, times and CPU over the longest that a request may wait.
//!
//! One workload is measured under every rule in the same round, the rule that holds nothing back among them: it is what the
//! others are compared with. It also says how much there is to be had: what it came to in closed loop is
//! the 100 % of the open loops of the same number of connections and workers, in the same round. So a round offers the same
//! load under every rule, and asks the machine for no more than it did a moment before.

use crate::case::{Case, Target, Verb};
use crate::experiment::{Experiment, Variant, in_turn};
use crate::report::{CaseReport, Report, Round, Spread};

/// Every flush rule under the same loads.
pub const WINDOW: Experiment = Experiment {
    name: "window",
    title: "The flush rule: batches, added latency and CPU over the longest wait",
    about: "\
How long should a request wait for others? Held back, requests leave in larger batches: server and proxy spend less CPU
on each, and each may take longer. The same GETs under every rule: nothing is held back (off), or a link that owes replies
holds its batch for so many microseconds at most. In closed loop, where the callers of one connection, of four, and of
many more wait for their replies; and in open loop, at a part of what they came to without holding. A lone caller should
pay nothing, and many callers little for much less CPU.",
    adapt: |options| {
        options.verbs = vec![Verb::Get];
        options.pipelines = vec![1];
        options.connections = vec![1, 4, 50, 500];
        options.threads = vec![1];
        options.rules_us = vec![50, 200, 1000];
        options.loads_percent = vec![60];
        options.is_without_respool = true;
        options.is_without_direct = true;
        options.budget_s = Some(240.0);
        // A stall of the whole machine is a p99.9 under every rule, and a backlog in every open loop.
        options.stolen_cores_max = Some(0.05);
    },
    plan: in_turn,
    is_isolated: false,
};

/// The rule that the others are compared with.
const OFF: &str = "off";

/// The rules that hold for so many microseconds, behind the one that does not hold; none where there are none.
pub fn rules(max_delays_us: &[u32]) -> Vec<Variant> {
    let off = (!max_delays_us.is_empty()).then(|| Variant::new(OFF, "--hold=false"));
    let on = max_delays_us.iter().map(|&us| {
        let options = format!("--hold=true --max-delay-us={us}");
        Variant::new(&name_of(us.into()), &options)
    });
    off.into_iter().chain(on).collect()
}

fn name_of(max_delay_us: i64) -> String {
    format!("{max_delay_us}us")
}

/// The name of the rule in a configuration that respool has printed.
///
/// # Errors
/// When there is none in it.
pub fn default_rule(configuration: &toml::Table) -> Result<String, String> {
    let hold = configuration.get("hold").and_then(toml::Value::as_bool);
    let max_delay_us = configuration
        .get("max-delay-us")
        .and_then(toml::Value::as_integer);
    match (hold, max_delay_us) {
        (Some(false), _) => Ok(OFF.to_owned()),
        (Some(true), Some(us)) => Ok(name_of(us)),
        _ => Err("respool does not say what its flush rule is by default".to_owned()),
    }
}

/// Requests a second that are due in a case: so many percent of what came of the same connections in closed loop a moment
/// before, in the same round, with nothing held back. `None`: the case itself is not one of an open loop at a percentage.
///
/// # Errors
/// When that was not measured.
pub fn rate(
    cases: &[Case],
    rounds: &[Vec<Round>],
    case: &Case,
    number: u32,
) -> Result<Option<f64>, String> {
    let Some(percent) = case.workload.load_percent else {
        return Ok(None);
    };
    let is_reference = |other: &Case| {
        let mut workload = case.workload;
        workload.load_percent = None;
        // The server asked directly has no workers: for it, those of the first number of them.
        let threads = case.target.threads();
        other.workload == workload
            && is_off(&other.target)
            && (threads.is_none() || threads == other.target.threads())
    };
    let closed = cases.iter().zip(rounds);
    closed
        .filter(|(other, _)| is_reference(other))
        .find_map(|(_, rounds)| rounds.iter().find(|round| round.number == number))
        .map(|round| Some(round.requests_per_s * f64::from(percent) / 100.0))
        .ok_or_else(|| "nobody knows what 100 % are: the closed loop was not measured".to_owned())
}

fn is_off(target: &Target) -> bool {
    matches!(target, Target::Variant { name, .. } if name == OFF)
}

/// One load under every rule: the same connections, workers and pace.
#[derive(Clone, Debug)]
pub struct Window {
    /// Who was asked how often at once.
    pub verb: Verb,
    /// Requests at once on a connection.
    pub pipeline: usize,
    /// Connections.
    pub connections: usize,
    /// Workers of respool.
    pub threads: u16,
    /// Percent of the most in open loop; `None`: closed loop.
    pub load_percent: Option<u8>,
    /// What came of it, a rule each.
    pub rules: Vec<Outcome>,
}

/// What one load came to under one rule. Medians over the rounds; what is compared with holding nothing back is compared within
/// each round first.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Of the rule.
    pub name: String,
    /// Whether it is what respool does when it is not told.
    pub is_default: bool,
    /// Requests a second.
    pub requests_per_s: f64,
    /// Of those that were due, in open loop: much less than all is more than this rule could bear.
    pub part_of_due: Option<f64>,
    /// Requests in a batch.
    pub batch: Option<f64>,
    /// The part of the batches that left because their oldest request had waited for too long.
    pub late: Option<f64>,
    /// Time of a request: p50, p99, p99.9.
    pub us: [Option<f64>; 3],
    /// What of it was not there with nothing held back.
    pub added_us: [Option<f64>; 3],
    /// CPU per request of server and proxy.
    pub cpu_us: [Option<f64>; 2],
    /// The same, to what it is with nothing held back.
    pub cpu_to_off: [Option<f64>; 2],
}

const PERCENTILES: [f64; 3] = [50.0, 99.0, 99.9];

/// Everything that a report of the experiment says of rules; nothing in another one.
pub fn of(report: &Report) -> Vec<Window> {
    let mut found: Vec<Window> = Vec::new();
    for off in report.cases.iter().filter(|case| is_off(&case.case.target)) {
        let workload = off.case.workload;
        let is_same = |case: &&CaseReport| {
            case.case.workload == workload
                && case.case.target.threads() == off.case.target.threads()
                && matches!(case.case.target, Target::Variant { .. })
        };
        let cases = report.cases.iter().filter(is_same);
        found.push(Window {
            verb: workload.verb,
            pipeline: workload.pipeline,
            connections: workload.connections,
            threads: off.case.target.threads().unwrap_or(1),
            load_percent: workload.load_percent,
            rules: cases
                .filter_map(|case| outcome(case, off, report.default_rule.as_deref()))
                .collect(),
        });
    }
    if report.options.rules_us.is_empty() {
        // Somebody else's variant of that name.
        found.clear();
    }
    found
}

/// `None`: it was not measured.
fn outcome(case: &CaseReport, off: &CaseReport, default_rule: Option<&str>) -> Option<Outcome> {
    let name = case.case.target.name();
    let median = |figure: &dyn Fn(&Round) -> Option<f64>| {
        Some(Spread::of(case.rounds.iter().filter_map(figure))?.median)
    };
    let compared = |figure: &dyn Fn(&Round) -> Option<f64>, compare: fn(f64, f64) -> f64| {
        let pairs = case.rounds.iter().filter_map(|round| {
            let other = off
                .rounds
                .iter()
                .find(|other| other.number == round.number)?;
            Some(compare(figure(round)?, figure(other)?))
        });
        Some(Spread::of(pairs.filter(|figure| figure.is_finite()))?.median)
    };
    let cpu: [fn(&Round) -> Option<f64>; 2] = [Round::server_us, Round::proxy_us];
    Some(Outcome {
        is_default: default_rule == Some(&name),
        name,
        requests_per_s: median(&|round| Some(round.requests_per_s))?,
        part_of_due: median(&|round| Some(round.requests_per_s / round.rate?)),
        batch: median(&Round::mean_batch),
        late: median(&|round| round.counters.as_ref()?.left_because("late")),
        us: PERCENTILES.map(|percent| median(&|round| round.latency.at(percent))),
        added_us: PERCENTILES
            .map(|percent| compared(&|round| round.latency.at(percent), |rule, off| rule - off)),
        cpu_us: cpu.map(|figure| median(&figure)),
        cpu_to_off: cpu.map(|figure| compared(&figure, |rule, off| rule / off)),
    })
}

impl Window {
    /// `closed loop`, or so many percent in open loop.
    pub fn load(&self) -> String {
        match self.load_percent {
            None => "closed loop".to_owned(),
            Some(percent) => format!("{percent} %"),
        }
    }

    /// Who and how, apart from the load.
    pub fn callers(&self) -> String {
        let plural = |count: usize, one: &str| match count {
            1 => format!("1 {one}"),
            count => format!("{count} {one}s"),
        };
        format!(
            "{} P{}, {}, {}",
            self.verb,
            self.pipeline,
            plural(self.connections, "connection"),
            plural(self.threads.into(), "worker")
        )
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::case::Workload;
    use crate::report::tests::{counters, example, round};

    /// Two connections' loads under three rules, over three rounds: the longer the wait, the larger the batches and the times.
    pub(crate) fn example_of_window() -> Report {
        let mut report = example();
        report.experiment = WINDOW.name.to_owned();
        report.options.rules_us = vec![50, 200];
        report.options.loads_percent = vec![60];
        report.default_rule = Some("200us".to_owned());
        report.options.stolen_cores_max = Some(0.05);
        report.repeated = 4;
        report.cases.clear();
        for connections in [1, 50] {
            for load_percent in [None, Some(60)] {
                let workload = Workload {
                    verb: Verb::Get,
                    pipeline: 1,
                    connections,
                    load_percent,
                };
                for (place, rule) in rules(&[50, 200]).iter().enumerate() {
                    let target = rule.target(1);
                    let rounds = (1..=3).map(|number| {
                        let requests = 60_000;
                        let mut round = round(number, &target, requests);
                        let batches = requests >> (2 * place);
                        round.counters = Some(counters(requests, batches));
                        round.rate = load_percent.map(|_| 60_000.0);
                        for (_, us) in &mut round.latency.percentiles {
                            // A machine that is slow for a round is slow under every rule.
                            *us += f64::from(number) * 100.0 + 10.0 * place as f64;
                        }
                        round
                    });
                    let rounds = rounds.collect();
                    let case = Case { workload, target };
                    report.cases.push(CaseReport::of(case, rounds));
                }
            }
        }
        report.cases[0].rounds[0].stolen = Some(0.2);
        report
    }

    #[test]
    fn a_rule_is_compared_with_holding_nothing_back_in_the_same_round() {
        let report = example_of_window();
        let windows = of(&report);
        assert_eq!(windows.len(), 4);
        assert_eq!(windows[3].callers(), "GET P1, 50 connections, 1 worker");
        assert_eq!(
            (windows[2].load(), windows[3].load()),
            ("closed loop".into(), "60 %".into())
        );
        let [off, short, long] = &windows[3].rules[..] else {
            panic!("three rules: {windows:?}");
        };
        assert_eq!(
            (off.batch, short.batch, long.batch),
            (Some(1.0), Some(4.0), Some(16.0))
        );
        assert_eq!(off.added_us, [Some(0.0); 3]);
        assert!(
            long.added_us
                .iter()
                .all(|us| (us.unwrap() - 20.0).abs() < 1e-9),
            "{long:?}"
        );
        assert_eq!(long.us[0], Some(320.0), "the second of three rounds");
        assert_eq!(long.cpu_to_off, [Some(1.0); 2]);
        assert_eq!(long.late, Some(0.5));
        assert_eq!(
            (long.part_of_due, windows[2].rules[0].part_of_due),
            (Some(1.0), None)
        );
        assert_eq!(
            windows[3]
                .rules
                .iter()
                .map(|rule| rule.is_default)
                .collect::<Vec<_>>(),
            [false, false, true]
        );
        assert_eq!(of(&example()).len(), 0);
    }

    #[test]
    fn an_open_loop_is_due_what_the_closed_one_came_to_in_the_same_round() {
        let report = example_of_window();
        let cases: Vec<Case> = report.cases.iter().map(|case| case.case.clone()).collect();
        let mut rounds: Vec<Vec<Round>> = report
            .cases
            .iter()
            .map(|case| case.rounds.clone())
            .collect();
        // The closed loop of 50 connections without holding.
        rounds[6][1].requests_per_s = 1000.0;
        let due = |place: usize, number| rate(&cases, &rounds, &cases[place], number);
        assert_eq!(due(11, 2), Ok(Some(600.0)));
        assert_eq!(due(11, 1), Ok(Some(36_000.0)));
        assert_eq!(due(8, 2), Ok(None), "a closed loop has no rate");
        assert!(due(11, 4).is_err(), "a round in which it failed");
    }

    #[test]
    fn the_default_is_what_respool_prints() {
        let rule = |text: &str| default_rule(&text.parse().unwrap());
        assert_eq!(
            rule("hold = true\nmax-delay-us = 200 # default"),
            Ok("200us".into())
        );
        assert_eq!(rule("hold = false\nmax-delay-us = 200"), Ok(OFF.into()));
        assert!(rule("max-delay-us = 200").is_err());
        assert_eq!(rules(&[]), []);
        assert_eq!(
            rules(&[200])[1].options,
            ["--hold=true", "--max-delay-us=200"]
        );
    }
}
