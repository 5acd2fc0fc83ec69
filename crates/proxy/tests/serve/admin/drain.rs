//! SIGTERM: respool answers the requests that have arrived, closes the connections, and ends.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use respool_testkit::client::{Reply, RespClient, words};
use respool_testkit::servers::installed;

use crate::target::{Options, Target, proxied};

fn ends_well(mut target: Target) {
    let proxy = target.proxy.as_mut().expect("the test asked for a respool");
    let status = proxy
        .wait(Duration::from_secs(30))
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(status.code(), Some(0), "{}", proxy.log());
}

/// Increments its key until the connection is closed; the number of whole replies it got.
fn count_until_closed(mut client: RespClient, key: &str, begun: &Barrier) -> i64 {
    let mut count = 0;
    let pipeline = words(&format!("INCR {key}")).repeat(10);
    begun.wait();
    loop {
        if client.try_send(&pipeline).is_err() {
            // The peer has closed; its earlier bytes are still there to be read.
        }
        for _ in 0..10 {
            match client.try_reply_bytes() {
                Ok(reply) => {
                    count += 1;
                    assert_eq!(reply, format!(":{count}\r\n").into_bytes(), "{key}");
                }
                Err(error) => {
                    let text = error.to_string();
                    let at_a_boundary = text == "closed behind \"\"";
                    let reset = error.kind() == std::io::ErrorKind::ConnectionReset;
                    assert!(
                        at_a_boundary || reset,
                        "{key}: half a reply, or none in time: {text}"
                    );
                    return count;
                }
            }
        }
    }
}

/// A drain under load answers every request that ran, and cuts no reply.
#[test]
fn drain_under_load_answers_every_executed_request() {
    for binary in installed() {
        let options = Options::with(&["--threads=3"]);
        let target = Target::proxied(&binary, &options);
        let clients = 50;
        let begun = Barrier::new(clients + 1);
        let counts: Vec<i64> = thread::scope(|scope| {
            let counters: Vec<_> = (0..clients)
                .map(|number| {
                    let (client, begun) = (target.client(), &begun);
                    scope.spawn(move || {
                        count_until_closed(client, &format!("count:{number}"), begun)
                    })
                })
                .collect();
            begun.wait();
            thread::sleep(Duration::from_millis(300));
            target.proxy().ask_to_end();
            counters
                .into_iter()
                .map(|counter| counter.join().expect("whole replies only"))
                .collect()
        });
        let mut direct = target.direct_client();
        for (number, count) in counts.iter().enumerate() {
            let Reply::Bulk(held) = direct.call(&format!("GET count:{number}")) else {
                panic!("no load")
            };
            assert_eq!(
                held,
                count.to_string().into_bytes(),
                "client {number}: executed and answered"
            );
        }
        ends_well(target);
    }
}

/// A drain waits for the replies that servers still owe.
#[test]
fn drain_waits_for_pending_replies() {
    let target = proxied(&Options::default());
    let mut clients: Vec<RespClient> = (0..10).map(|_| target.client()).collect();
    for client in &mut clients {
        assert_eq!(client.call("SET key value"), Reply::ok());
    }
    target.server.stop();
    for client in &mut clients {
        client.send(&words("GET key").repeat(5));
    }
    thread::sleep(Duration::from_millis(100));
    target.proxy().ask_to_end();
    thread::sleep(Duration::from_millis(300));
    assert!(
        target.proxy().is_running(),
        "respool waits for replies in flight"
    );
    assert!(
        RespClient::try_connect(target.address()).is_err(),
        "respool accepts no new client"
    );
    target.server.cont();
    for client in &mut clients {
        for reply in client.replies(5) {
            assert_eq!(reply, Reply::bulk("value"));
        }
        client.expect_closed();
    }
    ends_well(target);
}

#[test]
fn idle_sessions_do_not_hold_up_the_end() {
    let target = proxied(&Options::with(&["--threads=2"]));
    let mut clients: Vec<RespClient> = (0..50).map(|_| target.client()).collect();
    for client in &mut clients {
        assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
    }
    // Half a request is nothing that could be answered.
    clients[0].send(b"*2\r\n$3\r\nGET\r\n$3\r\nke");
    target.proxy().ask_to_end();
    for client in &mut clients {
        client.expect_closed();
    }
    ends_well(target);
}

/// A silent server delays the end by the drain timeout at most.
#[test]
fn drain_timeout_bounds_a_silent_server() {
    let mut target = proxied(&Options::with(&["--drain-timeout-ms=700"]));
    let mut client = target.client();
    assert_eq!(client.call("SET key value"), Reply::ok());
    target.server.stop();
    client.send(&words("GET key"));
    thread::sleep(Duration::from_millis(50));
    let started = Instant::now();
    target.proxy().ask_to_end();
    let proxy = target.proxy.as_mut().expect("the test asked for a respool");
    proxy
        .wait(Duration::from_secs(20))
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(
        started.elapsed() >= Duration::from_millis(600),
        "respool waited for requests in flight"
    );
    target.server.cont();
}
