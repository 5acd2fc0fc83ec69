//! Random requests get the same replies through respool as from the server, and leave the same
//! data.

use std::collections::BTreeMap;
use std::time::Duration;

use respool_checker::differ::{self, DifferSettings};
use respool_testkit::random::seed;
use respool_testkit::say;
use respool_testkit::servers::{self, Flavour};

use crate::target::respool;

/// Cases for each server and kind of respool.
const CASES: u64 = 12;
/// Seeds of which something has to be joined in every way.
const ROUNDS_MAX: usize = 5;

/// Random requests get the same replies through respool as from the server, and leave the same
/// data.
#[test]
fn random_requests_get_equal_replies_through_respool() {
    let first = seed() % 1_000_000_000;
    let mut coalesced = BTreeMap::new();
    // A few cases may have no requests to join in one of the ways: then others are tried.
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
        "each kind of joining happened: {coalesced:?}"
    );
}

/// The same holds where respool takes a prefix off all keys.
#[test]
fn random_requests_get_equal_replies_without_prefix() {
    let seed = seed() % 1_000_000_000;
    for flavour in Flavour::ALL {
        if servers::find(flavour).is_err() {
            continue;
        }
        say(&format!("differ: {} --strip --seed {seed}", flavour.name()));
        // Commands for all servers are left out: their replies and refusals are those of any pool
        // of several servers. Scripts are left out, too: they show the keys that they got.
        let without = ["server", "pubsub", "tracking", "functions", "scripts"];
        let scripts = ["SCRIPT", "EVAL", "EVALSHA", "FUNCTION"];
        // A pool of several servers refuses some requests. CLIENT REPLY hides such a refusal, and
        // then the different data that follow would look like a fault.
        let omitted = [&scripts[..], &["SCAN", "CLIENT REPLY"]].concat();
        let settings = DifferSettings {
            seed,
            cases: 2 * CASES,
            time_max: Some(Duration::from_secs(10)),
            flavour,
            respool: respool(),
            respool_args: vec!["--threads=1".to_owned()],
            without: without.map(str::to_owned).to_vec(),
            omitted: omitted.into_iter().map(str::to_owned).collect(),
            accepts_refusals: true,
            patience: Duration::from_secs(20),
            strips: true,
            ..DifferSettings::default()
        };
        let report =
            differ::run(&settings, &mut |_| {}).unwrap_or_else(|problem| panic!("{problem}"));
        assert!(report.is_clean(), "{}", report.text());
    }
}

/// Runs with every server, and counts joined requests.
fn compare(seed: u64, coalesced: &mut BTreeMap<&'static str, u64>) {
    for flavour in Flavour::ALL {
        // Other tests report servers that are not installed.
        if servers::find(flavour).is_err() {
            continue;
        }
        // Replies that are equal to direct ones with and without joining are equal to each other.
        let all: [&[&str]; 3] = [
            &["--threads=1"],
            &["--threads=3"],
            &["--flush-rule=latency", "--fuse=false", "--collapse=false"],
        ];
        for args in all {
            say(&format!(
                "differ: {} {} --seed {seed}",
                flavour.name(),
                args.join(" ")
            ));
            let settings = DifferSettings {
                seed,
                cases: CASES,
                time_max: Some(Duration::from_secs(10)),
                flavour,
                respool: respool(),
                respool_args: args.iter().map(|&arg| arg.to_owned()).collect(),
                // INFO and the like are our own.
                without: vec!["server".to_owned()],
                accepts_refusals: true,
                // Only a missing reply is waited for so long.
                patience: Duration::from_secs(20),
                ..DifferSettings::default()
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
