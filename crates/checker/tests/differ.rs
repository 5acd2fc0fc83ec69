//! The differential tester finds no difference where there is none, and every planted one.

use std::time::Duration;

use respool_checker::differ::{self, DifferSettings};
use respool_testkit::random::seed;
use respool_testkit::servers::{self, Flavour};

fn settings(flavour: Flavour) -> DifferSettings {
    let seed = seed();
    eprintln!("{}: RESPOOL_TEST_SEED={seed}", flavour.name());
    DifferSettings {
        seed,
        flavour,
        // With many tests on few cores a reply may take long. The tester waits only for replies
        // that come.
        patience: Duration::from_secs(20),
        ..DifferSettings::default()
    }
}

#[test]
fn two_servers_with_nothing_between_never_differ() {
    for flavour in Flavour::ALL {
        if let Err(reason) = servers::find(flavour) {
            servers::leave_out("servers", reason);
            continue;
        }
        let settings = DifferSettings {
            cases: 6,
            time_max: Some(Duration::from_secs(3)),
            ..settings(flavour)
        };
        differ::check_bare(&settings, &mut |line| eprintln!("{line}"))
            .unwrap_or_else(|problem| panic!("{problem}"));
    }
}

/// A swapped, dropped, duplicated, altered or misrouted reply cannot pass.
#[test]
fn planted_reply_fault_is_found() {
    let settings = settings(Flavour::Redis70);
    differ::check_planted(&settings, &mut |line| eprintln!("{line}"))
        .unwrap_or_else(|problem| panic!("{problem}"));
}
