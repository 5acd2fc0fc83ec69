//! Random requests get the same replies through respool as from the server, and leave the same behind.

use std::collections::BTreeMap;
use std::time::Duration;

use respool_lab::differ::{self, Settings};
use respool_lab::servers::{self, Flavour};

use super::target::{respool, say, seed};

/// Cases for each server and kind of respool.
const CASES: u64 = 12;
/// Seeds of which something has to be joined in every way.
const ROUNDS_MAX: usize = 5;

#[test]
fn no_client_can_tell_random_requests_through_respool_from_the_same_to_the_server() {
    let first = seed() % 1_000_000_000;
    let mut coalesced = BTreeMap::new();
    // Few cases may happen to have nothing that could be joined in one of the ways: then others are tried.
    for seed in (first..).step_by(CASES as usize).take(ROUNDS_MAX) {
        compare(seed, &mut coalesced);
        if coalesced.values().all(|count| *count > 0) {
            break;
        }
    }
    say(&format!("{coalesced:?}"));
    let some = coalesced.values().all(|count| *count > 0);
    assert!(
        some && !coalesced.is_empty(),
        "nobody can tell what was not done: {coalesced:?}"
    );
}

/// The same where all keys have a prefix that respool takes off.
#[test]
fn nor_can_it_tell_that_the_server_sees_the_keys_of_random_requests_without_their_prefix() {
    let seed = seed() % 1_000_000_000;
    for flavour in Flavour::ALL {
        if servers::find(flavour).is_err() {
            continue;
        }
        say(&format!("differ: {} --strip --seed {seed}", flavour.name()));
        // What is about all servers is not compared here: where it differs, and what is refused, is that of any pool of
        // several. Scripts show the keys that they were given.
        let without = ["server", "pubsub", "tracking", "functions", "scripts"];
        let omitted = ["SCAN", "SCRIPT", "EVAL", "EVALSHA", "FUNCTION"];
        let settings = Settings {
            seed,
            cases: 2 * CASES,
            time_max: Some(Duration::from_secs(10)),
            flavour,
            respool: respool(),
            respool_args: vec!["--threads=1".to_owned()],
            without: without.map(str::to_owned).to_vec(),
            omitted: omitted.map(str::to_owned).to_vec(),
            accepts_refusals: true,
            patience: Duration::from_secs(20),
            strips: true,
            ..Settings::default()
        };
        let report =
            differ::run(&settings, &mut |_| {}).unwrap_or_else(|problem| panic!("{problem}"));
        assert!(report.is_clean(), "{}", report.text());
    }
}

/// With every server; counts what was joined.
fn compare(seed: u64, coalesced: &mut BTreeMap<&'static str, u64>) {
    for flavour in Flavour::ALL {
        // Those that are not installed were named by the others.
        if servers::find(flavour).is_err() {
            continue;
        }
        // What is the same as directly with requests joined and without is the same with them and without.
        let all: [&[&str]; 3] = [
            &["--threads=1"],
            &["--threads=3"],
            &["--hold=false", "--fuse=false", "--collapse=false"],
        ];
        for args in all {
            say(&format!(
                "differ: {} {} --seed {seed}",
                flavour.name(),
                args.join(" ")
            ));
            let settings = Settings {
                seed,
                cases: CASES,
                time_max: Some(Duration::from_secs(10)),
                flavour,
                respool: respool(),
                respool_args: args.iter().map(|&arg| arg.to_owned()).collect(),
                // INFO and the like are our own.
                without: vec!["server".to_owned()],
                accepts_refusals: true,
                // Only what never comes is waited for so long.
                patience: Duration::from_secs(20),
                ..Settings::default()
            };
            let report =
                differ::run(&settings, &mut |_| {}).unwrap_or_else(|problem| panic!("{problem}"));
            assert!(report.is_clean(), "{}", report.text());
            for (name, count) in report.coalesced {
                *coalesced.entry(name).or_insert(0) += count;
            }
        }
    }
}
