//! `respool-lab failover` against real servers: it sees the failures, finds lost writes, and
//! leaves all files. No test asserts how fast a failover heals.

#![allow(clippy::unwrap_used, reason = "a test may stop at a surprise")]

use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use respool_lab::failover::{FailoverReport, FailoverRound, FailoverSettings, clients};
use respool_testkit::client::Reply;
use respool_testkit::scene::{By, Scene, TopologyKind};
use respool_testkit::servers::{self, Flavour};
use respool_testkit::time::clock_ns;

const LAB: &str = env!("CARGO_BIN_EXE_respool-lab");

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs it for a short time, if respool is built and supports such servers.
fn failover(out: &Path, url: &str, args: &[&str]) -> Option<Output> {
    let respool = Path::new(LAB).with_file_name("respool");
    if !respool.is_file() {
        servers::leave_out("respool", format!("{} is not built", respool.display()));
        return None;
    }
    let mut lab = Command::new(LAB);
    lab.args([
        "failover", "--rounds", "1", "--rate", "1000", "--before", "0.3",
    ]);
    let output = lab.arg("--out").arg(out).args(args).output();
    let output = output.expect("the lab starts");
    let check = Command::new(respool)
        .args(["check", "--backend", url])
        .output();
    if !check.expect("respool starts").status.success() {
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains("does not take") && said.lines().count() == 1,
            "{said}"
        );
        servers::leave_out("respool", said);
        return None;
    }
    Some(output)
}

/// Every file is there and has the one round. Returns it.
fn round(out: &Path, output: &Output) -> FailoverRound {
    let said = format!("{}\n{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}");
    let read = |name: &str| std::fs::read_to_string(out.join(name)).expect(name);
    let report: FailoverReport = serde_json::from_str(&read("report.json")).expect("a report");
    assert_eq!(report.failures, Vec::<String>::new());
    let [round] = &report.rounds[..] else {
        panic!("one round: {said}");
    };
    assert_eq!(read("rounds.csv").lines().count(), 1 + 1);
    let fields = |line: &str| line.split(',').count();
    let csv = read("timeline.csv");
    assert_eq!(csv.lines().count(), 1 + round.timeline.len());
    let names = csv.lines().next().map(fields);
    assert!(csv.lines().all(|line| Some(fields(line)) == names), "{csv}");
    let html = read("report.html");
    assert!(html.contains("<figure class=\"wide\" id=\"round-1\">"));
    assert_eq!(html.matches("<svg ").count(), 1);
    for mark in ["moment", "direct", "through"] {
        assert!(html.contains(&format!(">{mark}</text>")), "{mark}");
    }
    assert!(said.contains(read("table.txt").lines().next().expect("a table")));
    let due = |at_ms: f64| {
        let buckets = round.timeline.iter().filter(|bucket| bucket.at_ms < at_ms);
        let all = |bucket: &respool_lab::failover::Bucket| {
            bucket.done.iter().chain(&bucket.errors).sum::<u64>()
        };
        buckets.map(all).sum::<u64>()
    };
    assert_eq!(
        due(f64::INFINITY),
        round.requests,
        "each stands in one bucket"
    );
    assert!(due(0.0) > 100, "there was load before the moment");
    // The direct write comes first, and every figure is there.
    let (direct, through) = (
        round.direct_ms.expect("healed"),
        round.through_ms.expect("healed"),
    );
    assert!(direct > 0.0 && through >= direct, "{said}");
    let gap = round.longest_gap_ms.expect("writes were acknowledged");
    assert!(gap > 0.0, "{said}");
    assert!(round.acknowledged > 100, "{said}");
    assert_eq!((round.doubled, round.belied), (0, 0), "{said}");
    round.clone()
}

/// A plain server that is killed and comes back fails its own keys and loses its data.
#[test]
fn killed_shard_fails_its_keys_and_loses_them() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--kind", "sharded", "--down", "0.4", "--after", "3"];
    let url = "redis-sharded://127.0.0.1:7000,127.0.0.1:7001";
    let Some(output) = failover(folder.path(), url, &args) else {
        return;
    };
    let round = round(folder.path(), &output);
    // The server was down for this time, and no write could succeed.
    assert!(round.direct_ms.is_some_and(|ms| ms >= 400.0), "{round:?}");
    let gap = round.longest_gap_ms.unwrap_or_default();
    assert!(gap >= 350.0, "{round:?}");
    // The server was back within outage-hold-ms, so unsent requests have waited.
    assert!(
        !round.errors.iter().any(|count| count.kind == "NOTSENT"),
        "{round:?}"
    );
    let others = round.errors.iter().flat_map(|count| count.others);
    assert_eq!(others.sum::<u64>(), 0, "{round:?}");
    // The server keeps no file: acknowledged writes are lost, and the run reports them.
    assert!(
        round.lost > 0 && round.lost < round.acknowledged,
        "{round:?}"
    );
    let errors: u64 = round.timeline.iter().flat_map(|bucket| bucket.errors).sum();
    let failed: u64 = round.errors.iter().flat_map(|count| count.failed).sum();
    assert!(errors >= failed, "{round:?}");
    assert!(round.others_gap_ms.is_some(), "{round:?}");
}

/// A primary of a Cluster is replaced, however it fails.
#[test]
fn cluster_primary_is_replaced_however_it_fails() {
    let url = "redis-cluster://127.0.0.1:7000,127.0.0.1:7001";
    for (by, after) in [("command", "3"), ("kill", "8"), ("freeze", "8")] {
        let folder = tempfile::tempdir().unwrap();
        let mut args = vec!["--kind", "cluster", "--by", by, "--after", after];
        args.extend(["--silence", "1000", "--partial", "--threads", "2"]);
        let Some(output) = failover(folder.path(), url, &args) else {
            return;
        };
        let round = round(folder.path(), &output);
        let others = round.errors.iter().flat_map(|count| count.others);
        assert_eq!(others.sum::<u64>(), 0, "{by}: {round:?}");
        assert!(!round.errors.iter().any(|count| count.kind == "nil"));
        if by == "command" {
            assert_eq!(round.lost, 0, "{round:?}");
        }
    }
}

#[test]
fn another_proxy_is_measured_in_the_same_way() {
    if let Err(missing) = servers::find_program("envoy") {
        servers::leave_out("envoy", missing);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let args = [
        "--through",
        "envoy",
        "--by",
        "command",
        "--partial",
        "--after",
        "4",
    ];
    let url = "redis-cluster://127.0.0.1:7000,127.0.0.1:7001";
    let Some(output) = failover(folder.path(), url, &args) else {
        return;
    };
    let _ = round(folder.path(), &output);
    let said = text(&output.stdout);
    assert!(said.contains("through envoy: CLUSTER FAILOVER, without full coverage"));
}

/// The most by which one probe may see an event later than another one.
const PROBES_MS: f64 = 10.0;

/// A primary that Sentinels watch is replaced, however it fails.
#[test]
fn watched_primary_is_replaced_however_it_fails() {
    let url = "redis-sentinel://127.0.0.1:7000,127.0.0.1:7001/m0";
    for (by, after) in [("command", "5"), ("kill", "8"), ("freeze", "8")] {
        let folder = tempfile::tempdir().unwrap();
        let args = ["--kind", "sentinel", "--by", by, "--after", after];
        let Some(output) = failover(folder.path(), url, &args) else {
            return;
        };
        let round = round(folder.path(), &output);
        assert_eq!(
            round.others_gap_ms, None,
            "one shard has no others: {round:?}"
        );
        let (named, through) = (round.named_ms.unwrap(), round.through_ms.unwrap());
        // Two probes see the two events, each a few milliseconds late.
        assert!(
            named + PROBES_MS >= round.direct_ms.unwrap(),
            "{by}: {round:?}"
        );
        // Writes at the old primary do not count.
        assert!(through >= round.direct_ms.unwrap(), "{by}: {round:?}");
    }
}

/// Without respool: the servers fail over, and the probe sees it.
fn a_candidate_takes_over(kind: TopologyKind) {
    let binary = match servers::find(Flavour::Redis70) {
        Ok(binary) => binary,
        Err(reason) => return servers::leave_out("servers", reason),
    };
    for by in By::ALL {
        let settings = FailoverSettings {
            kind,
            by,
            ..FailoverSettings::default()
        };
        let scene = Scene::start(&settings.scene(), &binary).unwrap();
        let before = scene.holder(0).unwrap().address();
        // One of its own keys, as it refuses others.
        let mut keys = (0..).map(|number| format!("key:{number}"));
        let is_own = |key: &String| match scene.holder(0).unwrap().ask(&["SET", key, "v"]) {
            Ok(Reply::Error(_)) => false,
            reply => reply.is_ok(),
        };
        let key = keys.find(is_own).unwrap();
        assert_eq!(scene.group_of(&key).unwrap(), 0);
        scene.wait_for_replicas(&key).unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let probe = scope.spawn(|| clients::probe(&scene.candidates(), &key, &is_over));
            thread::sleep(Duration::from_millis(100));
            assert!(!probe.is_finished(), "a replica takes no write");
            let moment_ns = clock_ns();
            scene.fail(by).unwrap();
            let rest = scene.rest(Duration::from_secs(40));
            is_over.store(true, Ordering::Relaxed);
            rest.unwrap();
            let direct_ns = probe.join().unwrap();
            assert!(direct_ns.is_some_and(|at_ns| at_ns > moment_ns), "{by:?}");
        });
        let after = scene.holder(0).unwrap();
        assert_ne!(after.address(), before, "{by:?}");
        let value = after.ask(&["GET", &key]).unwrap();
        assert_eq!(value, Reply::Bulk(b"probe".to_vec()), "{by:?}");
    }
}

#[test]
fn in_a_cluster_a_replica_takes_the_place_of_its_primary() {
    a_candidate_takes_over(TopologyKind::Cluster);
}

#[test]
fn under_sentinels_a_replica_takes_the_place_of_its_primary() {
    a_candidate_takes_over(TopologyKind::Sentinel);
}

/// Options that exclude each other, and values out of range, are refused at once.
#[test]
fn impossible_failover_is_refused_at_once() {
    for (args, part) in [
        (
            &["--kind", "sharded", "--by", "command"][..],
            "no replica that takes over",
        ),
        (
            &["--kind", "sharded", "--down", "3", "--after", "2"],
            "before the end",
        ),
        (&["--rate", "10000000"], "too many"),
        (&["--kind", "ring"], "cluster, sentinel or sharded"),
        (
            &["--kind", "sentinel", "--through", "envoy"],
            "Envoy has no Sentinel backend",
        ),
        (&["--server", "redis-5"], "redis-6.2"),
        (
            &["--kind", "sentinel", "--partial"],
            "only a Cluster can have slots without an owner",
        ),
        (
            &["--partial", "--kind", "sharded"],
            "only a Cluster can have slots without an owner",
        ),
    ] {
        let mut lab = Command::new(LAB);
        let output = lab
            .arg("failover")
            .args(args)
            .output()
            .expect("the lab starts");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(
            said.contains(part) && said.lines().count() == 1,
            "{args:?}: {said}"
        );
    }
}
