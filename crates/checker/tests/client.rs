//! The checkers drive the client as they drive the proxy: through a process that passes each
//! connection on to it.

use std::path::Path;
use std::time::Duration;

use respool_checker::differ::{self, DifferSettings};
use respool_checker::histories::{self, HistoryReport, HistorySettings};
use respool_testkit::random::seed;
use respool_testkit::say;
use respool_testkit::servers::{Flavour, Proxy, ServerProcess, any_server};

fn bridge() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_respool-client-bridge"))
}

/// Runs a history through a client with these options, and finds no contradiction.
fn no_contradiction(options: &[&str], settings: &HistorySettings) -> HistoryReport {
    say(&format!("histories {options:?} --seed {}", settings.seed));
    let server = ServerProcess::start::<&str>(&any_server(), &[]).expect("the server starts");
    let mut args = vec![format!("--backend=redis://{}", server.address())];
    args.extend(options.iter().map(|option| (*option).to_owned()));
    let client = Proxy::start(bridge(), &args).expect("the client starts");
    let report = histories::run(settings, client.address(), server.address(), &mut |_| {})
        .unwrap_or_else(|problem| panic!("{problem}"));
    let found = report.contradictions.join("\n");
    assert!(found.is_empty(), "{found}\n{report:?}");
    report
}

fn settings() -> HistorySettings {
    HistorySettings {
        seed: seed() % 1_000_000,
        requests: 30_000,
        keys: 6,
        ..HistorySettings::default()
    }
}

#[test]
fn sessions_are_linearizable() {
    let report = no_contradiction(&[], &settings());
    assert_eq!(report.failed, 0, "{report:?}");
}

#[test]
fn calls_are_linearizable() {
    let report = no_contradiction(&["--calls=true"], &settings());
    assert_eq!(report.failed, 0, "{report:?}");
}

/// The links are cut, and calls end their waits at random: each is told its fate.
#[test]
fn failed_calls_are_told_their_fate() {
    let settings = HistorySettings {
        cuts: Some(Duration::from_millis(100)),
        ..settings()
    };
    let report = no_contradiction(&["--calls=true", "--give-up-one-in=10"], &settings);
    assert!(report.failed > 100, "{report:?}");
}

#[test]
fn replies_of_sessions_do_not_differ() {
    let settings = DifferSettings {
        seed: seed(),
        flavour: Flavour::Redis70,
        cases: 20,
        respool: bridge().to_owned(),
        // DEBUG is refused by default, for example.
        accepts_refusals: true,
        patience: Duration::from_secs(20),
        ..DifferSettings::default()
    };
    say(&format!("differ --seed {}", settings.seed));
    let report = differ::run(&settings, &mut |line| eprintln!("{line}"));
    let report = report.unwrap_or_else(|problem| panic!("{problem}"));
    assert!(report.is_clean(), "{}", report.text());
}
