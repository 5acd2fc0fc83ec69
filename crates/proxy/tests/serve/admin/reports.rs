//! RESPOOL: times of requests by command, the slow log, and hot keys.

use std::time::Instant;

use respool_testkit::client::{Reply, RespClient, one_of_each_worker, text};

use crate::target::{Options, Target, before_every_server};

/// The time for which the server answers nothing, and the least time of a slow request.
const PAUSE: &str = "CLIENT PAUSE 300";
const SLOW: &str = "--slowlog-slower-than-us=100ms";

/// An item of an array.
fn item(reply: &Reply, at: usize) -> &Reply {
    match reply {
        Reply::Array(items) => &items[at],
        _ => panic!("no array: {reply:?}"),
    }
}

fn number(reply: &Reply) -> i64 {
    match reply {
        Reply::Integer(number) => *number,
        _ => panic!("no number: {reply:?}"),
    }
}

/// Requests with the command `get`, and the pairs of time and count of a histogram of theirs.
fn histogram(client: &mut RespClient, field: &str) -> (i64, Vec<(i64, i64)>) {
    let report = client.call("RESPOOL LATENCY HISTOGRAM get");
    let get = report.get("get").expect("GET was used");
    let (Reply::Array(numbers) | Reply::Map(numbers)) = get.get(field).expect("a known field")
    else {
        panic!("{field}: {get:?}");
    };
    let (pairs, _) = numbers.as_chunks();
    let pairs = pairs.iter().map(|[us, count]| (number(us), number(count)));
    (
        number(get.get("calls").expect("a count of calls")),
        pairs.collect(),
    )
}

/// GETs of all workers count once each, in RESP2 and RESP3.
#[test]
fn latency_counts_requests_of_all_workers() {
    before_every_server(&Options::with(&["--threads=2"]), |target| {
        let mut clients = one_of_each_worker(target.address());
        let all = 3 * clients.len() as i64;
        for client in &mut clients {
            for _ in 0..3 {
                client.call("GET k");
            }
        }
        let client = &mut clients[0];
        for hello in ["HELLO 2", "HELLO 3"] {
            client.call(hello);
            for field in ["histogram_usec", "waiting_usec", "server_usec"] {
                let (calls, buckets) = histogram(client, field);
                assert_eq!(calls, all);
                assert_eq!(
                    buckets.last().map(|(_, count)| *count),
                    Some(all),
                    "{field}"
                );
            }
        }
    });
}

/// The time of a server that is paused counts as its own, not as time in respool.
#[test]
fn latency_of_a_paused_server_is_its_own() {
    before_every_server(&Options::default(), |target| {
        let mut client = target.client();
        client.call("GET k");
        assert_eq!(target.direct_client().call(PAUSE), Reply::ok());
        client.call("GET k");
        let longest = |client: &mut RespClient, field| {
            let (_, buckets) = histogram(client, field);
            buckets.last().expect("there are requests").0
        };
        for field in ["histogram_usec", "server_usec"] {
            let us = longest(&mut client, field);
            assert!(us >= 200_000, "{field}: {us}");
        }
        assert!(longest(&mut client, "waiting_usec") < 200_000);
    });
}

/// A slow request is logged with its client, its server and its times. It stays until RESET.
#[test]
fn slow_request_is_logged_until_reset() {
    before_every_server(&Options::with(&["--threads=2", SLOW]), |target| {
        let mut client = target.client();
        client.call("CLIENT SETNAME reader");
        client.call("SET k v");
        assert_eq!(client.call("RESPOOL SLOWLOG LEN"), Reply::Integer(0));
        assert_eq!(target.direct_client().call(PAUSE), Reply::ok());
        assert_eq!(client.call("GET k"), Reply::bulk("v"));
        let mut other = target.client();
        assert_eq!(other.call("RESPOOL SLOWLOG LEN"), Reply::Integer(1));
        let log = other.call("RESPOOL SLOWLOG GET");
        let entry = item(&log, 0);
        let us = number(item(entry, 2));
        assert!((100_000..10_000_000).contains(&us), "{us} us");
        let expected = Reply::Array(vec![Reply::bulk("GET"), Reply::bulk("k")]);
        assert_eq!(item(entry, 3), &expected);
        let own = client
            .stream()
            .local_addr()
            .expect("the client is connected");
        assert_eq!(text(item(entry, 4)), own.to_string());
        assert_eq!(text(item(entry, 5)), "reader");
        assert_eq!(text(item(entry, 6)), "default");
        let server = target.server.address().to_string();
        assert_eq!(text(item(entry, 7)), server);
        assert_eq!(number(item(entry, 8)) + number(item(entry, 9)), us);
        assert!(number(item(entry, 9)) >= 100_000, "the server was slow");
        assert_eq!(other.call("RESPOOL SLOWLOG RESET"), Reply::ok());
        let empty = Reply::Array(Vec::new());
        assert_eq!(client.call("RESPOOL SLOWLOG GET -1"), empty);
    });
}

/// No password is in the slow log.
#[test]
fn slow_log_has_no_password() {
    before_every_server(&Options::with(&[SLOW]), |target| {
        let mut client = target.client();
        client.call("PING");
        for request in [
            "CONFIG SET no-such-option geheim",
            "AUTH default geheim",
            "HELLO 2 AUTH default geheim",
        ] {
            assert_eq!(target.direct_client().call(PAUSE), Reply::ok());
            client.call(request);
        }
        let log = format!("{:?}", client.call("RESPOOL SLOWLOG GET -1"));
        // HELLO has no arguments in the log.
        for entry in [
            r#"["CONFIG", "SET", "(redacted)"]"#,
            r#"["AUTH", "(redacted)"]"#,
            r#"["hello"]"#,
        ] {
            assert!(log.contains(entry), "{log}");
        }
        assert!(!log.contains("geheim"), "{log}");
    });
}

/// The keys of all workers' requests are counted together. RESET forgets them.
#[test]
fn hot_keys_of_all_workers_are_one_list() {
    let options = Options::with(&["--threads=2", "--hotkeys-sample=1"]);
    before_every_server(&options, |target| {
        let mut clients = one_of_each_worker(target.address());
        let begun = Instant::now();
        assert_eq!(clients[0].call("RESPOOL HOTKEYS RESET"), Reply::ok());
        for client in &mut clients {
            for request in [
                "GET hot",
                "GET cold",
                "SET hot v",
                "MGET hot warm",
                "GET warm",
            ] {
                client.call(request);
            }
        }
        let all = clients.len() as i64;
        let client = &mut clients[0];
        for hello in ["HELLO 2", "HELLO 3"] {
            client.call(hello);
            let keys = client.call("RESPOOL HOTKEYS GET COUNT 2");
            for (at, (key, requests)) in [("hot", 3), ("warm", 2)].into_iter().enumerate() {
                let entry = item(&keys, at);
                let field = |name| entry.get(name).expect("a known field");
                assert_eq!(field("key"), &Reply::bulk(key));
                assert_eq!(number(field("db")), 0);
                assert_eq!(number(field("requests")), requests * all);
                assert_eq!(number(field("error")), 0);
                // Each worker rounds its own.
                let least = (requests * all) as f64 / begun.elapsed().as_secs_f64() - all as f64;
                assert!(number(field("qps")) as f64 >= least, "{entry:?}");
            }
        }
        let refused = client.call("RESPOOL HOTKEYS GET COUNT 0");
        assert_eq!(
            refused.error(),
            Some("ERR count should be -1 or greater than 0")
        );
        assert_eq!(client.call("RESPOOL HOTKEYS RESET"), Reply::ok());
        let none = Reply::Array(Vec::new());
        assert_eq!(client.call("RESPOOL HOTKEYS GET"), none);
    });
}

/// Without `hotkeys-sample` no key is counted.
#[test]
fn hot_keys_are_off_by_default() {
    before_every_server(&Options::default(), |target| {
        let mut client = target.client();
        client.call("GET k");
        let none = Reply::Array(Vec::new());
        assert_eq!(client.call("RESPOOL HOTKEYS GET COUNT -1"), none);
    });
}

/// RESPOOL needs the server's right to SLOWLOG, and is an error in MULTI.
#[test]
fn reports_need_the_right_to_slowlog() {
    before_every_server(&Options::default(), |target: &mut Target| {
        let rules = "ACL SETUSER app on >secret ~* &* -@all +get +multi +exec +auth";
        assert_eq!(target.direct_client().call(rules), Reply::ok());
        let mut client = target.client();
        assert_eq!(client.call("MULTI"), Reply::ok());
        let refused = client.call("RESPOOL SLOWLOG LEN");
        assert!(refused.error().is_some_and(|text| text.contains("MULTI")));
        let aborted = client.call("EXEC");
        assert!(
            aborted
                .error()
                .is_some_and(|text| text.starts_with("EXECABORT"))
        );
        assert_eq!(client.call("AUTH app secret"), Reply::ok());
        for request in [
            "RESPOOL SLOWLOG GET",
            "RESPOOL SLOWLOG RESET",
            "RESPOOL LATENCY HISTOGRAM",
        ] {
            let reply = client.call(request);
            let refused = reply.error().is_some_and(|text| text.starts_with("NOPERM"));
            assert!(refused, "{request}: {reply:?}");
        }
    });
}
