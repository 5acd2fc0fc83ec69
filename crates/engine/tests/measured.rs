//! The scenarios of the benchmarks measure what their names say.

#[path = "../benches/scenarios/mod.rs"]
mod scenarios;

/// A scenario fails if its clients get wrong replies, or if it never ends.
#[test]
fn every_scenario_that_is_measured_goes_round() {
    for scenario in scenarios::all() {
        let mut round = (scenario.prepare)(scenarios::Part::Whole);
        for _ in 0..100 {
            round();
        }
    }
}
