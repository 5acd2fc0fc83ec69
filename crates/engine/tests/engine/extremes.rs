//! Whole sessions before servers with right and wrong replies, at limits as low as options allow.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::whole::{Choices, Kind};

/// Steps of one history.
const STEPS: usize = 600;

/// More steps than the bytes of an input can choose, as in the fuzz target `sessions`.
const STEPS_OF_INPUT: usize = 10_000;

/// Number of histories in a run without RESPOOL_SECONDS.
const HISTORIES: u64 = 1_200;

/// The engine breaks no rule of [`whole`], for any behaviour of clients and servers.
///
/// A failure prints its seed: `RESPOOL_SEED` runs that history again, step by step.
/// `RESPOOL_SECONDS` tries new histories for that time. `RESPOOL_POOL` names one kind of pool.
#[test]
fn sessions_at_extreme_limits_keep_every_rule() {
    let read = |name| std::env::var(name).ok();
    let kind = read("RESPOOL_POOL").map(|name| Kind::named(&name).expect("a kind of pool"));
    if let Some(seed) = read("RESPOOL_SEED") {
        let seed = seed.parse().expect("a number");
        return crate::whole::run(Choices::seeded(seed), kind, STEPS, true);
    }
    let seconds = read("RESPOOL_SECONDS").map(|text| text.parse().expect("a number"));
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let first = match until {
        // CI tries the same histories each time.
        None => 1,
        Some(_) => now.map_or(1, |since| since.as_nanos() as u64),
    };
    let mut histories = 0;
    while until.map_or(histories < HISTORIES, |until| Instant::now() < until) {
        let seed = first + histories;
        let history = std::panic::catch_unwind(|| {
            crate::whole::run(Choices::seeded(seed), kind, STEPS, false)
        });
        if let Err(broken) = history {
            println!("run it again with RESPOOL_SEED={seed}");
            std::panic::resume_unwind(broken);
        }
        histories += 1;
    }
    println!("{histories} histories from RESPOOL_SEED={first} on");
}

/// Inputs of the fuzzer that once broke a rule break none. Each file name states the fault.
#[test]
fn inputs_that_broke_a_rule_break_none() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/engine/whole/inputs");
    let mut inputs = 0;
    for entry in std::fs::read_dir(folder).expect("the folder of inputs") {
        let path = entry.expect("an entry").path();
        println!("{}", path.display());
        let bytes = std::fs::read(&path).expect("an input");
        crate::whole::run(Choices::Bytes(&bytes), None, STEPS_OF_INPUT, false);
        inputs += 1;
    }
    assert!(inputs > 0);
}
