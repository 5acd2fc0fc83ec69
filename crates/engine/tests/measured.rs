//! What is measured is what it is said to be.

#[path = "../benches/scenarios/mod.rs"]
mod scenarios;

/// A scenario whose clients get other replies than they asked for, or that never comes to an end, cannot pass.
#[test]
fn every_scenario_that_is_measured_goes_round() {
    for scenario in scenarios::all() {
        let mut round = (scenario.prepare)(scenarios::Part::Whole);
        for _ in 0..100 {
            round();
        }
    }
}
