//! What many clients are answered at once, one server could have answered, one request after the other.

use std::thread;
use std::time::Duration;

use respool_lab::histories::{self, Settings};

use super::coalescing::counter;
use super::target::{Options, Target, before_every_server, say, seed};

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
