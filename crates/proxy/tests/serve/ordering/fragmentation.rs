//! The places where bytes are cut make no difference.

use std::thread;
use std::time::Duration;

use respool_testkit::client::{RespClient, words};
use respool_testkit::fault_proxy::{FaultMode, FaultProxy};
use respool_testkit::servers::any_server;

use crate::target::{Options, Target, on_every_target};

/// Requests of every form, with replies that do not depend on earlier requests.
fn requests() -> (Vec<u8>, usize) {
    let mut bytes = Vec::new();
    for text in [
        "SET split value",
        "GET split",
        "PING",
        "MGET split none split",
        "ECHO hello",
    ] {
        bytes.extend(words(text));
    }
    bytes.extend_from_slice(b"get \"split\"\r\n\r\n*0\r\n*-1\r\nPING\n");
    bytes.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$5\r\nsplit\r\n$9\r\na\r\n$1\r\n*b\r\n");
    bytes.extend(words("GET split"));
    bytes.extend(words("HGET split field"));
    (bytes, 10)
}

fn raw_replies(client: &mut RespClient, count: usize) -> Vec<u8> {
    (0..count).flat_map(|_| client.reply_bytes()).collect()
}

#[test]
fn a_request_cut_at_any_byte_is_answered_as_one_that_is_whole() {
    on_every_target(&Options::default(), |target| {
        let (bytes, count) = requests();
        let mut client = target.client();
        client.send(&bytes);
        let whole = raw_replies(&mut client, count);
        assert!(
            whole.starts_with(b"+OK\r\n$5\r\nvalue\r\n+PONG\r\n*3\r\n"),
            "{}",
            whole.escape_ascii()
        );
        for cut in 1..bytes.len() {
            client.send(&bytes[..cut]);
            // Long enough for the other side to have read the first part in most of the cuts.
            thread::sleep(Duration::from_micros(300));
            client.send(&bytes[cut..]);
            let replies = raw_replies(&mut client, count);
            assert_eq!(
                replies.escape_ascii().to_string(),
                whole.escape_ascii().to_string(),
                "cut at {cut}"
            );
        }
    });
}

#[test]
fn requests_sent_one_byte_at_a_time_are_answered_in_order() {
    on_every_target(&Options::default(), |target| {
        let (bytes, count) = requests();
        let mut client = target.client();
        client.send(&bytes);
        let whole = raw_replies(&mut client, count);
        for byte in &bytes {
            client.send(std::slice::from_ref(byte));
            thread::sleep(Duration::from_micros(50));
        }
        assert_eq!(raw_replies(&mut client, count), whole);
    });
}

/// Replies that arrive byte by byte reach the client whole.
#[test]
fn dribbled_replies_reach_the_client_whole() {
    let binary = any_server();
    let options = Options::default();
    let server = Target::direct(&binary, &options);
    let mut pipeline = Vec::new();
    let mut count = 0;
    for text in [
        "RPUSH list a bb ccc",
        "LRANGE list 0 -1",
        "SET key value",
        "GET key",
        "GET none",
        "INCR key",
        "HSET hash f 1 g 2",
        "HGETALL hash",
        "EVAL return{1,{2,{'three',{}}},false} 0",
        "ZADD zset 1.5 m",
        "ZRANGE zset 0 -1 WITHSCORES",
        "SADD set x",
        "SMEMBERS set",
        "STRLEN key",
        "PING",
        "EXISTS key",
    ] {
        pipeline.extend(words(text));
        count += 1;
    }
    for hello in ["HELLO 2", "HELLO 3"] {
        let mut direct = server.direct_client();
        direct.call(hello);
        direct.call("FLUSHALL");
        direct.send(&pipeline);
        let expected: Vec<_> = direct.replies(count);

        direct.call("FLUSHALL");
        let fault_proxy = FaultProxy::start(server.server.address(), FaultMode::Dribble);
        let proxied = Target::direct(&binary, &options).behind(fault_proxy.address(), &options);
        let mut client = proxied.client();
        client.call(hello);
        client.send(&pipeline);
        assert_eq!(client.replies(count), expected, "{hello}");
    }
}

/// The requests of two clients that send byte by byte in turn do not mix.
#[test]
fn interleaved_bytes_of_two_clients_do_not_mix() {
    on_every_target(&Options::default(), |target| {
        let (mut left, mut right) = (target.client(), target.client());
        for round in 0..20 {
            let a = words(&format!("SET left:{round} {}", "l".repeat(round)));
            let b = words(&format!("SET right:{round} {}", "r".repeat(round)));
            for at in 0..a.len().max(b.len()) {
                if let Some(byte) = a.get(at) {
                    left.send(std::slice::from_ref(byte));
                }
                if let Some(byte) = b.get(at) {
                    right.send(std::slice::from_ref(byte));
                }
            }
            assert_eq!(left.reply(), respool_testkit::client::Reply::ok());
            assert_eq!(right.reply(), respool_testkit::client::Reply::ok());
            let got = left.call(&format!("GET right:{round}"));
            assert_eq!(got, respool_testkit::client::Reply::bulk("r".repeat(round)));
        }
    });
}
