//! `respool_request_errors_total`: the error replies of clients, by pool, command and outcome.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use respool_testkit::client::{Reply, pipelined};
use respool_testkit::time::wait_until;

use super::metrics::{get, pages_of, parse, with_pages};

const SOON: Duration = Duration::from_secs(20);

/// The counts of a page, by command and outcome.
fn errors(pages: SocketAddr) -> BTreeMap<(String, String), f64> {
    let samples = parse(&get(pages, "/metrics").body).into_iter();
    let errors = samples.filter(|(name, _, _)| name == "respool_request_errors_total");
    let errors = errors.map(|(_, labels, count)| {
        assert_eq!(labels["pool"], "default");
        assert_eq!(labels.len(), 3);
        let key = (labels["command"].clone(), labels["outcome"].clone());
        (key, count)
    });
    errors.collect()
}

/// Each error that a client gets counts once under its command: those of the server, those of
/// respool, and those of requests that fail. Other replies do not count.
#[test]
fn errors_count_under_their_commands() {
    let target = with_pages(&[
        "--threads=2",
        "--refuse-commands=hset",
        "--outage-hold-ms=0",
        "--server-down-error=notsent",
    ]);
    let pages = pages_of(target.proxy());
    let mut clients = [target.client(), target.client()];
    assert_eq!(clients[0].call("SET text value"), Reply::ok());
    assert_eq!(clients[0].call("RPUSH list 1 2"), Reply::Integer(2));
    assert_eq!(errors(pages), BTreeMap::new());
    for client in &mut clients {
        let error = client.call("GET list");
        assert!(error.error().is_some(), "{error:?}");
        // They may leave as one MGET.
        let replies = pipelined(client, "GET list;GET text;GET list;GET nothing;LLEN text");
        assert_eq!(replies[1], Reply::bulk("value"));
        let error = client.call("NOSUCHCOMMAND a");
        assert!(error.error().is_some(), "{error:?}");
        let error = client.call("HSET hash field value");
        assert!(error.error().is_some(), "{error:?}");
        let error = client.call("EVAL return(redis.error_reply('MINE')) 0");
        assert!(error.error().is_some(), "{error:?}");
        let error = client.call("EXEC");
        assert!(error.error().is_some(), "{error:?}");
    }
    let of = |all: &[(&str, &str, f64)]| -> BTreeMap<(String, String), f64> {
        let one = |(command, outcome, count): &(&str, &str, f64)| {
            (((*command).to_owned(), (*outcome).to_owned()), *count)
        };
        all.iter().map(one).collect()
    };
    let by_server = [
        ("get", "replied", 6.0),
        ("llen", "replied", 2.0),
        ("other", "replied", 2.0),
        ("hset", "refused", 2.0),
        ("eval", "replied", 2.0),
        ("exec", "refused", 2.0),
    ];
    let mut seen = BTreeMap::new();
    let expected = of(&by_server);
    wait_until("the page has all errors", SOON, || {
        seen = errors(pages);
        seen.values().sum::<f64>() >= expected.values().sum()
    });
    assert_eq!(seen, expected);
    target.server.kill9();
    wait_until("requests fail", SOON, || {
        let reply = clients[0].call("INCR number");
        reply
            .error()
            .is_some_and(|text| text.starts_with("NOTSENT "))
    });
    let not_sent = ("incr".to_owned(), "not_sent".to_owned());
    wait_until("the page has the failed request", SOON, || {
        seen = errors(pages);
        seen.contains_key(&not_sent)
    });
    seen.retain(|(command, _), _| command != "incr");
    assert_eq!(seen, expected, "the others stay");
}
