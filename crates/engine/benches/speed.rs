//! The time of a request on its way, piece by piece and as a whole turn, without a socket: `make
//! speed`, or `make speed ONLY=turn` for scenarios with that word in their name.

use divan::Bencher;
use divan::counter::ItemsCount;

mod scenarios;

fn main() {
    divan::main();
}

fn names() -> Vec<&'static str> {
    scenarios::all()
        .iter()
        .map(|scenario| scenario.name)
        .collect()
}

/// Runs a scenario. Its items are requests, replies, names or keys.
#[divan::bench(args = names())]
fn round(bencher: Bencher<'_, '_>, name: &str) {
    let mut all = scenarios::all().into_iter();
    let scenario = all.find(|scenario| scenario.name == name);
    let scenario = scenario.expect("the names are those of the scenarios");
    bencher
        .counter(ItemsCount::new(scenario.per_round))
        .bench_local((scenario.prepare)(scenarios::Part::Whole));
}
