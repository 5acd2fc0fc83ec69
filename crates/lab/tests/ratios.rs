//! `respool-lab ratios` reads the reports of runs and shows the medians of the ratios within each
//! round.

use std::path::Path;
use std::process::{Command, Output};

use respool_lab::case::{Case, LoadTarget, Verb, Workload};
use respool_lab::cpu::{Clock, CpuUsage};
use respool_lab::files;
use respool_lab::load::Latency;
use respool_lab::machine::Machine;
use respool_lab::options::RunOptions;
use respool_lab::report::{CaseReport, Report, Round};
use respool_lab::targets::ProcessFacts;

fn ratios(folders: &[&Path]) -> Output {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_respool-lab"));
    lab.arg("ratios").args(folders);
    lab.output().expect("the lab starts")
}

fn usage(used_s: f64) -> CpuUsage {
    CpuUsage {
        used_s,
        user_s: None,
        system_s: None,
        clock: Clock::Schedstat,
    }
}

/// A second with so many requests, of which half took at most so many microseconds, for so much CPU
/// of server and proxy.
fn round(number: u32, requests: u64, p50_us: f64, server_s: f64, proxy_s: f64) -> Round {
    Round {
        number,
        start_s: 0.0,
        seconds: 1.0,
        requests,
        requests_per_s: requests as f64,
        rate: None,
        wrong: 0,
        first_wrong: None,
        unfinished: 0,
        stalled: 0,
        latency: Latency {
            count: requests,
            mean_us: None,
            percentiles: vec![(50.0, p50_us), (99.0, 7.0)],
        },
        server: (server_s > 0.0).then(|| usage(server_s)),
        proxy: (proxy_s > 0.0).then(|| usage(proxy_s)),
        generator: usage(0.5),
        others: None,
        stolen: None,
        server_commands_per_s: None,
        answered: None,
        server_commands: None,
        server_key_reads: None,
        counters: None,
        samples: Vec::new(),
    }
}

fn case(verb: Verb, pipeline: usize, target: LoadTarget, rounds: Vec<Round>) -> CaseReport {
    let workload = Workload {
        verb,
        pipeline,
        connections: 50,
        rate: None,
    };
    CaseReport::of(Case { workload, target }, rounds)
}

fn report(server: &str, generator: &str, cases: Vec<CaseReport>) -> Report {
    Report {
        format: Report::FORMAT,
        experiment: "eight".into(),
        title: String::new(),
        about: String::new(),
        started: "2026-11-21T20:30:05Z".into(),
        took_s: 1.0,
        command: Vec::new(),
        options: RunOptions::default(),
        machine: Machine::look(),
        generator: generator.into(),
        server: ProcessFacts {
            name: "server".into(),
            version: server.into(),
            command: String::new(),
            address: String::new(),
            pid: 1,
            threads: 1,
            configuration: None,
        },
        pools: Vec::new(),
        targets: Vec::new(),
        cases,
        repeated: 0,
        comparisons: Vec::new(),
        failures: Vec::new(),
    }
}

const RESPOOL: LoadTarget = LoadTarget::Respool { threads: 1 };

#[test]
fn every_ratio_is_the_median_of_those_within_a_round() {
    let eight = report(
        "redis 7.0.15",
        "respool-lab load 0.1.0",
        vec![
            case(
                Verb::Get,
                20,
                LoadTarget::Direct,
                vec![
                    round(1, 100_000, 400.0, 1.0, 0.0),
                    round(2, 50_000, 800.0, 1.0, 0.0),
                    round(3, 200_000, 200.0, 1.0, 0.0),
                ],
            ),
            // The machine was slow in the second round. The fourth one has nothing to compare with.
            case(
                Verb::Get,
                20,
                RESPOOL,
                vec![
                    round(1, 150_000, 200.0, 0.3, 0.45),
                    round(2, 60_000, 720.0, 0.6, 0.3),
                    round(3, 160_000, 300.0, 0.4, 0.32),
                    round(4, 900_000, 1.0, 0.9, 0.9),
                ],
            ),
            case(
                Verb::Get,
                20,
                LoadTarget::Floor,
                vec![
                    round(2, 100_000, 1.0, 0.0, 0.4),
                    round(3, 200_000, 1.0, 0.0, 0.2),
                ],
            ),
            // This case has more workers than the first one, so it does not count.
            case(
                Verb::Get,
                20,
                LoadTarget::Respool { threads: 3 },
                vec![round(1, 1, 1.0, 1.0, 1.0)],
            ),
            // The direct server alone.
            case(
                Verb::Set,
                1,
                LoadTarget::Direct,
                vec![round(1, 100, 1.0, 1.0, 0.0)],
            ),
        ],
    );
    let mget = report(
        "valkey 9.1.2",
        "redis-benchmark 7.0.15",
        vec![
            case(
                Verb::Mget(100),
                1,
                LoadTarget::Direct,
                vec![round(1, 1_000, 100.0, 0.5, 0.0)],
            ),
            case(
                Verb::Mget(100),
                1,
                RESPOOL,
                vec![round(1, 12_500, 50.0, 0.5, 0.5)],
            ),
        ],
    );
    let folder = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
    files::write(&eight, &one).unwrap();
    files::write(&mget, &other).unwrap();
    let output = ratios(&[&one, &other]);
    assert!(output.status.success(), "{output:?}");
    // 1.5, 1.2 and 0.8 times as many; 0.5, 0.9 and 1.5 times as long; 0.2, 0.5 and 0.5 of the
    // server's CPU; and of the proxy's, the middle between 1.25 and 2.
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "\
server        generator         case         conns  requests/s ÷  p50 ÷  server CPU ÷  proxy CPU ÷ floor  rounds
redis 7.0.15  respool-lab load  GET P20         50          1.20   0.90          0.50               1.62       4
redis 7.0.15  respool-lab load  SET P1          50                                                             0
valkey 9.1.2  redis-benchmark   MGET 100 P1     50         12.50   0.50          0.08                          1
"
    );
}

/// A file that is no report is named.
#[test]
fn invalid_report_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let [none, newer] = ["none", "newer"].map(|name| folder.path().join(name));
    let mut report = report("redis 7.0.15", "own", Vec::new());
    report.format = Report::FORMAT + 1;
    files::write(&report, &newer).unwrap();
    for (folders, part) in [
        (&[][..], "FOLDER"),
        (&[&*none], "none/report.json: No such file"),
        (&[&*newer], "newer/report.json: its format is 2, not 1"),
        (&[Path::new("--rounds")], "'--rounds' found; see --help"),
    ] {
        let output = ratios(folders);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(part) && said.lines().count() == 1, "{said}");
        assert!(output.stdout.is_empty());
    }
}
