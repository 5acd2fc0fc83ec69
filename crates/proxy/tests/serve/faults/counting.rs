//! The counting sessions themselves: a run fails when a server has doubled or lost an increment.

use std::thread;
use std::time::Duration;

use respool_testkit::client::{Reply, RespClient, text};
use respool_testkit::counting::{AllowedFailures, HANDED_ON, Steps, counted_in_steps};
use respool_testkit::servers::{ServerProcess, any_server};
use respool_testkit::time::wait_until;

use crate::target::{Options, proxied};

/// A run fails if a server has doubled or lost an increment, unless the run allows the loss.
#[test]
fn counting_run_notices_doubled_and_lost_writes() {
    let primary = proxied(&Options::default());
    let port = primary.server.port().to_string();
    let follows = ["--replicaof", "127.0.0.1", &port];
    let replica =
        ServerProcess::start(&any_server(), &follows).unwrap_or_else(|error| panic!("{error}"));
    wait_until("the replica follows its primary", HANDED_ON, || {
        let said = RespClient::connect(replica.address()).call("INFO replication");
        text(&said).contains("master_link_status:up")
    });
    let (key, of_several) = ("c7:9", "{t3}:1");
    for (order, noticed_by) in [
        (format!("INCR {key}"), &ALL[..]),
        // More than is counted in the time of a run.
        (format!("DECRBY {key} 500000"), &ALL),
        (format!("DECR {key}"), &ALL[..2]),
        (format!("DEL {of_several}"), &ALL),
        ("PING".to_owned(), &[]),
    ] {
        for allowed in ALL {
            let mut planted = primary.direct_client();
            assert_eq!(planted.call("FLUSHALL"), Reply::ok());
            let run = || {
                let counted = |planted: &mut RespClient, _: &Steps| {
                    // Time for a few that are not handed on to be acknowledged.
                    thread::sleep(Duration::from_millis(200));
                    let done = planted.call(&order);
                    assert!(done.error().is_none(), "{done:?}");
                };
                counted_in_steps(primary.address(), &mut planted, allowed, counted);
            };
            let is_noticed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err();
            let expected = noticed_by.contains(&allowed);
            assert_eq!(is_noticed, expected, "{order}, {allowed:?}");
        }
    }
}

const ALL: [AllowedFailures; 3] = [
    AllowedFailures::Nothing,
    AllowedFailures::Cuts,
    AllowedFailures::Loss,
];
