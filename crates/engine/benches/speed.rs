//! The time that a request takes on its way, piece by piece and as a whole turn, without a socket:
//! `make speed`, or `make speed ONLY=turn` for those whose name has that word.

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

/// The items are requests, replies, names or keys.
#[divan::bench(args = names())]
fn round(bencher: Bencher<'_, '_>, name: &str) {
    let mut all = scenarios::all().into_iter();
    let scenario = all.find(|scenario| scenario.name == name);
    let scenario = scenario.expect("the names are those of the scenarios");
    bencher
        .counter(ItemsCount::new(scenario.per_round))
        .bench_local((scenario.prepare)(scenarios::Part::Whole));
}
