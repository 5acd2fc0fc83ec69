//! The result of a run: every round and every sample. [`crate::files`] writes it.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::case::{Case, LoadTarget, Verb, Workload};
use crate::counters::CounterTotals;
use crate::cpu::CpuUsage;
use crate::load::Latency;
use crate::machine::Machine;
use crate::options::RunOptions;
use crate::targets::ProcessFacts;

/// A whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Version of the format. A reader should refuse another one.
    pub format: u32,
    /// Name of the experiment: `eight`.
    pub experiment: String,
    /// Its title.
    pub title: String,
    /// Its question, in a few sentences.
    pub about: String,
    /// When it began, UTC.
    pub started: String,
    /// Seconds from beginning to end.
    pub took_s: f64,
    /// The command line that ran it.
    pub command: Vec<String>,
    /// All options, defaults included.
    pub options: RunOptions,
    /// The machine.
    pub machine: Machine,
    /// The generator with its version.
    pub generator: String,
    /// The server behind all targets, or the one asked directly.
    pub server: ProcessFacts,
    /// The pools of several servers, if there are any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<ProcessFacts>,
    /// The proxies.
    pub targets: Vec<ProcessFacts>,
    /// Every case, in the order of the tables.
    pub cases: Vec<CaseReport>,
    /// Measurements that were repeated because a hypervisor took too much.
    #[serde(default)]
    pub repeated: usize,
    /// This build of respool against another one, in that experiment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub comparisons: Vec<Comparison>,
    /// Failures, one line each. Empty: every reply was right.
    pub failures: Vec<String>,
}

/// One case and its rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CaseReport {
    /// Its name in files and anchors.
    pub id: String,
    /// The measured case.
    pub case: Case,
    /// In the order they ran.
    pub rounds: Vec<Round>,
    /// Over all rounds; `None` without rounds.
    pub summary: Option<Summary>,
}

impl CaseReport {
    /// The report of these rounds.
    pub fn of(case: Case, rounds: Vec<Round>) -> CaseReport {
        CaseReport {
            id: case.id(),
            summary: Summary::of(&rounds),
            case,
            rounds,
        }
    }
}

/// One measurement of one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Round {
    /// From 1.
    pub number: u32,
    /// Seconds from the beginning of the run to that of the measured window.
    pub start_s: f64,
    /// Length of the window.
    pub seconds: f64,
    /// Requests answered in the window.
    pub requests: u64,
    /// Requests a second.
    pub requests_per_s: f64,
    /// Requests a second that were due; `None`: closed loop.
    #[serde(default)]
    pub rate: Option<f64>,
    /// Replies other than expected.
    pub wrong: u64,
    /// The first of them.
    pub first_wrong: Option<String>,
    /// Requests in flight or overdue at the end of the window.
    pub unfinished: u64,
    /// Connections that still owed a reply a second later.
    pub stalled: usize,
    /// Time per request.
    pub latency: Latency,
    /// CPU of the server in the window, of all servers together in a pool; `None` without a server.
    pub server: Option<CpuUsage>,
    /// CPU of the proxy.
    pub proxy: Option<CpuUsage>,
    /// CPU of the generator.
    pub generator: CpuUsage,
    /// Cores that other processes on the machine used meanwhile: a disturbance.
    pub others: Option<f64>,
    /// Cores that a hypervisor took meanwhile.
    pub stolen: Option<f64>,
    /// Commands a second by the server's counter: fewer than requests where a proxy answers or
    /// joins some.
    pub server_commands_per_s: Option<f64>,
    /// All answered requests: in the warm-up, in the window, and those in flight at its end.
    #[serde(default)]
    pub answered: Option<u64>,
    /// Commands that the server executed for them, by its counter, from before the first to after
    /// the last.
    #[serde(default)]
    pub server_commands: Option<u64>,
    /// Keys that the server looked up for them, by its counter, with each key of an MGET.
    #[serde(default)]
    pub server_key_reads: Option<u64>,
    /// respool's own counters in the window.
    #[serde(default)]
    pub counters: Option<CounterTotals>,
    /// About ten samples a second.
    pub samples: Vec<RateSample>,
}

/// Rates since the sample before.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct RateSample {
    /// Seconds from the beginning of the run.
    pub at_s: f64,
    /// Requests a second.
    pub requests_per_s: f64,
    /// Cores that the server used.
    pub server: Option<f64>,
    /// Cores that the proxy used.
    pub proxy: Option<f64>,
    /// Cores that the generator used.
    pub generator: Option<f64>,
}

/// The summary of a case over its rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// Requests a second.
    pub requests_per_s: FigureSpread,
    /// Median time of a request.
    pub p50_us: Option<FigureSpread>,
    /// 99 % took no longer.
    pub p99_us: Option<FigureSpread>,
    /// 99.9 % took no longer.
    pub p999_us: Option<FigureSpread>,
    /// CPU of the server.
    pub server: Option<Cost>,
    /// CPU of the proxy.
    pub proxy: Option<Cost>,
    /// CPU of the generator.
    pub generator: Cost,
    /// Commands a second at the server.
    pub server_commands_per_s: Option<FigureSpread>,
    /// Cores that other processes on the machine used.
    pub others: Option<FigureSpread>,
}

/// CPU of one process in one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cost {
    /// Cores, user and system together.
    pub used: FigureSpread,
    /// Cores in its own code.
    pub user: Option<FigureSpread>,
    /// Cores in the kernel.
    pub system: Option<FigureSpread>,
    /// Microseconds of CPU for each request.
    pub us_per_request: Option<FigureSpread>,
}

/// One case with both builds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Comparison {
    /// The load.
    pub workload: Workload,
    /// Workers of both builds.
    pub threads: u16,
    /// The verdict on the proxy's ratio.
    pub verdict: Verdict,
    /// CPU of the proxy per request.
    pub proxy: Ratio,
    /// The part in its own code. Ticks count it, so its interval is wide unless the run is long.
    pub proxy_user: Ratio,
    /// CPU of the server per request.
    pub server: Ratio,
}

/// A cost with this build, relative to the base.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Microseconds per request with this build, the median of the rounds.
    pub new_us: Option<f64>,
    /// Microseconds per request with the base.
    pub base_us: Option<f64>,
    /// The median of the quadruples' ratios.
    pub median: Option<f64>,
    /// The interval of the true median with a confidence of 95 %; `None`: too few quadruples.
    pub interval: Option<(f64, f64)>,
    /// Quadruples in which both were measured.
    pub quadruples: usize,
}

/// The relation of an interval to a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The whole interval is below the bound.
    AtMost,
    /// The whole interval is above the bound.
    More,
    /// The bound is inside, or there is no interval.
    CannotTell,
}

/// A figure over rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FigureSpread {
    /// The median; the mean of the middle two for an even number.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl FigureSpread {
    /// The spread of at least one figure.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<FigureSpread> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(FigureSpread { median, min, max })
    }

    /// The range, as a share of the median.
    pub fn relative(&self) -> f64 {
        if self.median > 0.0 {
            (self.max - self.min) / self.median
        } else {
            0.0
        }
    }
}

impl Summary {
    /// `None` without rounds.
    pub fn of(rounds: &[Round]) -> Option<Summary> {
        let percentile =
            |percent: f64| FigureSpread::of(rounds.iter().filter_map(|r| r.latency.at(percent)));
        let cost = |usage: &dyn Fn(&Round) -> Option<&CpuUsage>| {
            let each = |figure: &dyn Fn(&Round, &CpuUsage) -> Option<f64>| {
                FigureSpread::of(
                    rounds
                        .iter()
                        .filter_map(|round| figure(round, usage(round)?)),
                )
            };
            Some(Cost {
                used: each(&|round, usage| Some(usage.used_s / round.seconds))?,
                user: each(&|round, usage| Some(usage.user_s? / round.seconds)),
                system: each(&|round, usage| Some(usage.system_s? / round.seconds)),
                us_per_request: each(&|round, usage| usage.us_per_request(round.requests)),
            })
        };
        Some(Summary {
            requests_per_s: FigureSpread::of(rounds.iter().map(|round| round.requests_per_s))?,
            p50_us: percentile(50.0),
            p99_us: percentile(99.0),
            p999_us: percentile(99.9),
            server: cost(&|round| round.server.as_ref()),
            proxy: cost(&|round| round.proxy.as_ref()),
            generator: cost(&|round| Some(&round.generator))?,
            server_commands_per_s: FigureSpread::of(
                rounds
                    .iter()
                    .filter_map(|round| round.server_commands_per_s),
            ),
            others: FigureSpread::of(rounds.iter().filter_map(|round| round.others)),
        })
    }
}

/// A case relative to others. Each ratio is the median over the rounds of the ratio *within* a
/// round: both were measured within seconds, so a slow machine slows both.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ratios {
    /// Requests a second, relative to the direct server under the same workload.
    pub throughput_to_direct: Option<f64>,
    /// Median time, relative to the direct server.
    pub p50_to_direct: Option<f64>,
    /// The server's CPU per request, relative to the direct server.
    pub server_cpu_to_direct: Option<f64>,
    /// The proxy's CPU per request, relative to the floor under the same workload.
    pub proxy_cpu_to_floor: Option<f64>,
    /// The proxy's CPU per request (or the direct server's), relative to the fewest connections.
    pub cpu_to_fewest: Option<f64>,
}

impl Round {
    /// Microseconds of the server's CPU for each request.
    pub fn server_us(&self) -> Option<f64> {
        self.server.as_ref()?.us_per_request(self.requests)
    }

    /// Microseconds of the proxy's CPU for each request.
    pub fn proxy_us(&self) -> Option<f64> {
        self.proxy.as_ref()?.us_per_request(self.requests)
    }

    /// The part of them in its own code.
    pub fn proxy_user_us(&self) -> Option<f64> {
        let user_s = self.proxy.as_ref()?.user_s?;
        (self.requests > 0).then(|| user_s * 1e6 / self.requests as f64)
    }

    /// Mean number of requests that respool sent in one write.
    pub fn mean_batch(&self) -> Option<f64> {
        self.counters.as_ref()?.mean_batch()
    }

    /// The share of requests for which the server executed no command of their own, because they
    /// were joined with others.
    pub fn saved_commands(&self, verb: Verb) -> Option<f64> {
        // A transaction is one request of several commands.
        let answered = self.answered.filter(|_| verb != Verb::Multi)?;
        saved(self.server_commands?, answered)
    }

    /// The share of keys that the server did not look up, because one look-up answered several
    /// requests.
    pub fn saved_key_reads(&self, verb: Verb) -> Option<f64> {
        // A write looks up keys, too, but the server does not count it.
        let is_read = matches!(verb, Verb::Get | Verb::Mget(_));
        let answered = self.answered.filter(|_| is_read)?;
        saved(self.server_key_reads?, answered * u64::from(verb.keys()))
    }
}

impl Report {
    /// The version of `report.json` that this program writes.
    pub const FORMAT: u32 = 1;

    /// The case of a workload against a target.
    pub fn find(&self, workload: Workload, target: &LoadTarget) -> Option<&CaseReport> {
        let is_it = |case: &Case| case.workload == workload && case.target == *target;
        self.cases.iter().find(|found| is_it(&found.case))
    }

    /// Compares a case with the direct server, the floor and fewer connections, where they were
    /// measured.
    pub fn ratios(&self, case: &CaseReport) -> Ratios {
        let workload = case.case.workload;
        let target = &case.case.target;
        let direct = self.find(workload, &LoadTarget::Direct);
        let floor = self.find(workload, &LoadTarget::Floor);
        let fewest = self.options.connections.iter().copied().min().unwrap_or(0);
        let fewest = self.find(
            Workload {
                connections: fewest,
                ..workload
            },
            target,
        );
        let rate = |round: &Round| Some(round.requests_per_s);
        let p50 = |round: &Round| round.latency.at(50.0);
        let cpu = |round: &Round| round.proxy_us().or_else(|| round.server_us());
        Ratios {
            throughput_to_direct: paired(case, direct, &rate),
            p50_to_direct: paired(case, direct, &p50),
            server_cpu_to_direct: paired(case, direct, &Round::server_us),
            proxy_cpu_to_floor: paired(case, floor, &Round::proxy_us),
            cpu_to_fewest: paired(case, fewest, &cpu),
        }
    }

    /// The workloads, in the order of the tables.
    pub fn workloads(&self) -> Vec<Workload> {
        let mut found = Vec::new();
        for case in &self.cases {
            if !found.contains(&case.case.workload) {
                found.push(case.case.workload);
            }
        }
        found
    }

    /// Whether every case was measured and every reply was right.
    pub fn is_good(&self) -> bool {
        self.failures.is_empty()
    }

    /// Reads the report of a folder.
    ///
    /// # Errors
    /// One line: the file, and why it is no report of this format.
    pub fn read(folder: &Path) -> Result<Report, String> {
        let path = folder.join("report.json");
        let read = || -> Result<Report, String> {
            let json = fs::read(&path).map_err(|error| error.to_string())?;
            let report: Report =
                serde_json::from_slice(&json).map_err(|error| error.to_string())?;
            match report.format {
                Report::FORMAT => Ok(report),
                other => Err(format!("its format is {other}, not {}", Report::FORMAT)),
            }
        };
        read().map_err(|problem| format!("{}: {problem}", path.display()))
    }

    /// One line for each case and round. An empty field has no figure.
    pub fn csv(&self) -> String {
        let mut text = String::from(
            "experiment,case,verb,pipeline,connections,target,threads,round,start_s,seconds,requests,\
             requests_per_s,wrong,stalled,unfinished,p50_us,p90_us,p99_us,p99.9_us,max_us,\
             server_commands_per_s,others_cores,stolen_cores,server_cores,server_user_cores,server_system_cores,\
             server_us_per_request,proxy_cores,proxy_user_cores,proxy_system_cores,\
             proxy_us_per_request,generator_cores,generator_user_cores,generator_system_cores,\
             generator_us_per_request,answered,server_commands,server_key_reads,\
             link_requests,batches,flushed_idle,flushed_full,flushed_late,fused_batches,fused_gets,fused_sets,collapsed,commands_saved,\
             asked_again,due_per_s\n",
        );
        for case in &self.cases {
            for round in &case.rounds {
                let Workload {
                    verb,
                    pipeline,
                    connections,
                    rate: _,
                } = case.case.workload;
                let threads = case.case.target.threads().map(f64::from);
                let mut fields = vec![
                    self.experiment.clone(),
                    case.id.clone(),
                    verb.to_string(),
                    pipeline.to_string(),
                    connections.to_string(),
                    quoted(&case.case.target.name()),
                    number(threads),
                    round.number.to_string(),
                    number(Some(round.start_s)),
                    number(Some(round.seconds)),
                    round.requests.to_string(),
                    number(Some(round.requests_per_s)),
                    round.wrong.to_string(),
                    round.stalled.to_string(),
                    round.unfinished.to_string(),
                ];
                for percent in [50.0, 90.0, 99.0, 99.9, 100.0] {
                    fields.push(number(round.latency.at(percent)));
                }
                fields.push(number(round.server_commands_per_s));
                fields.push(number(round.others));
                fields.push(number(round.stolen));
                for usage in [
                    round.server.as_ref(),
                    round.proxy.as_ref(),
                    Some(&round.generator),
                ] {
                    let cores = |seconds: Option<f64>| number(seconds.map(|s| s / round.seconds));
                    fields.push(cores(usage.map(|usage| usage.used_s)));
                    fields.push(cores(usage.and_then(|usage| usage.user_s)));
                    fields.push(cores(usage.and_then(|usage| usage.system_s)));
                    fields.push(number(
                        usage.and_then(|usage| usage.us_per_request(round.requests)),
                    ));
                }
                for count in [
                    round.answered,
                    round.server_commands,
                    round.server_key_reads,
                ] {
                    fields.push(count.map_or(String::new(), |count| count.to_string()));
                }
                for name in [
                    "link_requests",
                    "batches",
                    "flushed_idle",
                    "flushed_full",
                    "flushed_late",
                    "fused_batches",
                    "fused_gets",
                    "fused_sets",
                    "collapsed",
                    "commands_saved",
                    "asked_again",
                ] {
                    let count = round.counters.as_ref().and_then(|found| found.get(name));
                    fields.push(count.map_or(String::new(), |count| count.to_string()));
                }
                fields.push(number(round.rate));
                text.push_str(&fields.join(","));
                text.push('\n');
            }
        }
        text
    }
}

fn saved(done: u64, asked: u64) -> Option<f64> {
    (asked > 0).then(|| 1.0 - done as f64 / asked as f64)
}

/// The median of the ratios within a round, over the rounds that both have.
pub(crate) fn paired(
    case: &CaseReport,
    base: Option<&CaseReport>,
    figure: &dyn Fn(&Round) -> Option<f64>,
) -> Option<f64> {
    let base = base?;
    let ratios = case.rounds.iter().filter_map(|round| {
        let other = base
            .rounds
            .iter()
            .find(|other| other.number == round.number)?;
        Some(figure(round)? / figure(other).filter(|&figure| figure > 0.0)?)
    });
    Some(FigureSpread::of(ratios)?.median)
}

/// At most four decimals: no measurement here is finer.
fn number(figure: Option<f64>) -> String {
    let Some(figure) = figure else {
        return String::new();
    };
    let text = format!("{figure:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cpu::Clock;

    fn usage(used_s: f64) -> CpuUsage {
        CpuUsage {
            used_s,
            user_s: Some(used_s * 0.25),
            system_s: Some(used_s * 0.75),
            clock: Clock::Schedstat,
        }
    }

    pub(crate) fn round(number: u32, target: &LoadTarget, requests: u64) -> Round {
        let samples = (0..10).map(|step| RateSample {
            at_s: f64::from(number * 2) + f64::from(step) * 0.1,
            requests_per_s: requests as f64,
            server: target.has_server().then_some(0.5),
            proxy: (*target != LoadTarget::Direct).then_some(0.6),
            generator: Some(0.4),
        });
        Round {
            number,
            start_s: f64::from(number * 2),
            seconds: 1.0,
            requests,
            requests_per_s: requests as f64,
            rate: None,
            wrong: 0,
            first_wrong: None,
            unfinished: 50,
            stalled: 0,
            latency: Latency {
                count: requests,
                mean_us: Some(10.0),
                percentiles: Latency::LADDER.iter().map(|&p| (p, p * 2.0)).collect(),
            },
            server: target.has_server().then(|| usage(0.5)),
            proxy: (*target != LoadTarget::Direct).then(|| usage(0.6)),
            generator: usage(0.4),
            others: Some(0.25),
            stolen: Some(0.0),
            server_commands_per_s: target.has_server().then_some(requests as f64),
            answered: Some(2 * requests),
            server_commands: target.has_server().then_some(requests / 2),
            server_key_reads: target.has_server().then_some(requests),
            counters: target
                .is_respool()
                .then(|| counters(requests, requests / 20)),
            samples: samples.collect(),
        }
    }

    /// So many requests in so many batches, of which half left late; half of the requests were
    /// equal to others.
    pub(crate) fn counters(requests: u64, batches: u64) -> CounterTotals {
        CounterTotals::read(&format!(
            "respool_link_requests:{requests}\nrespool_batches:{batches}\nrespool_flushed_idle:{}\n\
             respool_flushed_full:0\nrespool_flushed_late:{}\nrespool_collapsed:{}\n",
            batches - batches / 2,
            batches / 2,
            requests / 2
        ))
    }

    /// A report with direct, respool and floor under two workloads; respool has no round in the
    /// second one.
    pub(crate) fn example() -> Report {
        let facts = ProcessFacts {
            name: "server".into(),
            version: "redis 7.0.15".into(),
            command: "redis-server --port 1 <&>".into(),
            address: "127.0.0.1:1".into(),
            pid: 7,
            threads: 5,
            configuration: Some("a: 1\n".into()),
        };
        let mut cases = Vec::new();
        for pipeline in [1, 20] {
            for target in [
                LoadTarget::Direct,
                LoadTarget::Respool { threads: 1 },
                LoadTarget::Floor,
            ] {
                let workload = Workload {
                    verb: Verb::Get,
                    pipeline,
                    connections: 50,
                    rate: None,
                };
                let failed = pipeline == 20 && target.is_proxy();
                let counts: &[u64] = if failed {
                    &[]
                } else {
                    &[100_000, 120_000, 90_000]
                };
                let rounds: Vec<Round> = (1..)
                    .zip(counts)
                    .map(|(number, &count)| round(number, &target, count))
                    .collect();
                let summary = Summary::of(&rounds);
                let case = Case { workload, target };
                cases.push(CaseReport {
                    id: case.id(),
                    case,
                    rounds,
                    summary,
                });
            }
        }
        Report {
            format: Report::FORMAT,
            experiment: "eight".into(),
            title: "Eight & more".into(),
            about: "What is it?".into(),
            started: "2026-11-21T20:30:05Z".into(),
            took_s: 12.5,
            command: vec!["respool-lab".into(), "eight".into()],
            options: RunOptions::default(),
            machine: Machine::look(),
            generator: "own".into(),
            server: facts.clone(),
            pools: Vec::new(),
            targets: vec![facts],
            cases,
            repeated: 0,
            comparisons: Vec::new(),
            failures: vec!["GET P20: <lost>".into()],
        }
    }

    #[test]
    fn a_spread_is_the_median_and_the_ends() {
        let spread = |figures: &[f64]| FigureSpread::of(figures.iter().copied());
        assert_eq!(spread(&[]), None);
        let odd = spread(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max), (2.0, 1.0, 3.0));
        assert_eq!(odd.relative(), 1.0);
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(spread(&[0.0]).unwrap().relative(), 0.0);
    }

    #[test]
    fn the_summary_is_of_medians_and_the_ratios_are_of_pairs() {
        let report = example();
        let case = &report.cases[1];
        let summary = case.summary.as_ref().unwrap();
        assert_eq!(summary.requests_per_s.median, 100_000.0);
        assert_eq!(
            summary
                .proxy
                .as_ref()
                .unwrap()
                .us_per_request
                .unwrap()
                .median,
            6.0
        );
        assert_eq!(
            summary.proxy.as_ref().unwrap().system.unwrap().median,
            0.6 * 0.75
        );
        assert_eq!(summary.p999_us.unwrap().median, 199.8);
        let ratios = report.ratios(case);
        assert_eq!(ratios.throughput_to_direct, Some(1.0));
        assert_eq!(ratios.proxy_cpu_to_floor, Some(1.0));
        assert_eq!(ratios.server_cpu_to_direct, Some(1.0));
        assert_eq!(report.ratios(&report.cases[4]), Ratios::default());
        let first = &case.rounds[0];
        assert_eq!(first.saved_commands(Verb::Set), Some(0.75));
        assert_eq!(first.saved_commands(Verb::Multi), None);
        assert_eq!(first.saved_key_reads(Verb::Set), None);
        assert_eq!(first.saved_key_reads(Verb::Get), Some(0.5));
        assert_eq!(first.saved_key_reads(Verb::Mget(2)), Some(0.75));
        // A machine that is slow for a round is slow for both, so the ratio stays.
        let mut report = report;
        for place in [0, 1] {
            report.cases[place].rounds[2].requests_per_s /= 10.0;
        }
        report.cases[1].rounds[0].requests_per_s *= 3.0;
        let case = &report.cases[1];
        assert_eq!(report.ratios(case).throughput_to_direct, Some(1.0));
        // A round that the other case lacks is left out.
        report.cases[0].rounds.truncate(1);
        assert_eq!(
            report.ratios(&report.cases[1]).throughput_to_direct,
            Some(3.0)
        );
    }

    #[test]
    fn the_csv_has_a_line_a_round_and_as_many_fields_as_names() {
        let report = example();
        let csv = report.csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 1 + 5 * 3);
        let names: Vec<&str> = lines[0].split(',').collect();
        for line in &lines {
            assert_eq!(line.split(',').count(), names.len(), "{line}");
        }
        let field = |line: &'_ str, name: &str| {
            let place = names.iter().position(|n| *n == name).unwrap();
            line.split(',').nth(place).unwrap().to_owned()
        };
        assert_eq!(
            field(lines[1], "proxy_cores"),
            "",
            "nothing stands in front of the direct server"
        );
        assert_eq!(field(lines[4], "proxy_us_per_request"), "6");
        assert_eq!(field(lines[4], "p99.9_us"), "199.8");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
