//! WAIT and WAITAOF before several servers: the session may have written to any of them.

use std::time::{Duration, Instant};

use respool_testkit::client::{Reply, RespClient, pipelined, words};
use respool_testkit::servers::{Proxy, ServerProcess, any_server};
use respool_testkit::time::wait_until;
use respool_testkit::topologies::ClusterSettings;

use crate::target::respool;
use crate::topology::cluster::{
    SOON, Served, fail_over, key_in, primaries, some_server, with_every_server,
};

/// Before a Cluster, WAIT waits for the slowest of all replicas.
#[test]
fn wait_waits_for_the_slowest_replica_of_a_cluster() {
    with_every_server(|binary| {
        let served = Served::start(binary, ClusterSettings::default(), &["--threads=2"]);
        let mut client = served.client();
        let keys: Vec<String> = (0..3)
            .map(|share| key_in(|slot| served.cluster.share(share).contains(&slot), 0))
            .collect();
        let mut other = served.client();
        for key in &keys {
            assert_eq!(client.call(&format!("SET {key} 1")), Reply::ok());
        }
        assert_eq!(
            client.call("WAIT 1 5000"),
            Reply::Integer(1),
            "{}",
            binary.display()
        );
        assert!(matches!(client.call("WAIT 0 0"), Reply::Integer(0..=1)));
        let mut node = RespClient::connect(served.cluster.node(0).address());
        let has_waitaof = node.call("WAITAOF 0 0 10").error().is_none();
        for (primary, key) in keys.iter().enumerate() {
            served.cluster.node(primary + 3).stop();
            assert_eq!(client.call(&format!("SET {key} 2")), Reply::ok());
            let asked = Instant::now();
            assert_eq!(client.call("WAIT 1 300"), Reply::Integer(0), "{key}");
            let took = asked.elapsed();
            let is_in_time = took >= Duration::from_millis(290) && took < Duration::from_secs(3);
            assert!(is_in_time, "{took:?}");
            if has_waitaof {
                let none = Reply::Array(vec![Reply::Integer(0), Reply::Integer(0)]);
                assert_eq!(client.call("WAITAOF 0 1 100"), none);
            }
            // The reply comes when the last of them has the writes, and later requests of the
            // session wait behind it.
            client.send(&words("WAIT 1 20000"));
            client.send(&words(&format!("GET {key}")));
            assert!(client.is_quiet(Duration::from_millis(200)));
            served.cluster.node(primary + 3).cont();
            assert_eq!(client.reply(), Reply::Integer(1));
            assert_eq!(client.reply(), Reply::bulk("2"));
        }
        // respool has deleted the keys that it wrote for it.
        assert_eq!(client.call("DBSIZE"), Reply::Integer(3));
        for (asked, said) in [
            ("WAIT 1", "ERR wrong number of arguments for 'wait' command"),
            ("WAIT a 1", "ERR value is not an integer or out of range"),
            ("WAIT 1 -1", "ERR timeout is negative"),
            ("WAIT 1 x", "ERR timeout is not an integer or out of range"),
        ] {
            assert_eq!(client.call(asked).error(), Some(said), "{asked}");
        }
        let key = &keys[0];
        for bound in [
            format!("MULTI;SET {key} 1;WAIT 1 0;EXEC"),
            format!("WATCH {key};WAIT 1 0"),
        ] {
            let replies = pipelined(&mut other, &bound);
            let refused = replies.iter().any(|reply| {
                let text = reply.error().unwrap_or_default();
                text.starts_with("ERR respool: 'wait' cannot be sent to a pool of several servers")
            });
            assert!(refused, "{replies:?}");
        }
    });
}

/// Before shards, WAIT returns the least number that one of them gives.
#[test]
fn wait_returns_the_least_of_all_shards() {
    let binary = any_server();
    let start =
        || ServerProcess::start(&binary, &[""; 0]).unwrap_or_else(|error| panic!("{error}"));
    let (servers, replicas): (Vec<ServerProcess>, Vec<ServerProcess>) =
        (0..3).map(|_| (start(), start())).unzip();
    for (server, replica) in servers.iter().zip(&replicas) {
        let (host, port) = (server.address().ip(), server.address().port());
        let follows =
            RespClient::connect(replica.address()).call(&format!("REPLICAOF {host} {port}"));
        assert_eq!(follows, Reply::ok());
    }
    let hosts: Vec<String> = servers
        .iter()
        .map(|server| server.address().to_string())
        .collect();
    let backend = format!("--backend=redis-sharded://{}", hosts.join(","));
    let args = [
        backend,
        "--threads=1".to_owned(),
        "--pinned-links-max=1".to_owned(),
    ];
    let proxy = Proxy::start(&respool(), &args).unwrap_or_else(|error| panic!("{error}"));
    let mut client = RespClient::connect(proxy.address());
    wait_until("all replicas follow", SOON, || {
        client.call("WAIT 1 300") == Reply::Integer(1)
    });
    for replica in &replicas {
        for key in 0..30 {
            assert_eq!(client.call(&format!("SET key:{key} 1")), Reply::ok());
        }
        assert_eq!(client.call("WAIT 1 5000"), Reply::Integer(1));
        replica.stop();
        for key in 0..30 {
            assert_eq!(client.call(&format!("SET key:{key} 2")), Reply::ok());
        }
        assert_eq!(client.call("WAIT 1 100"), Reply::Integer(0));
        // Several waiting sessions get one link after the other. A session without a link within
        // its own time gets an error that nothing was asked, and not a number.
        let mut waiting: Vec<RespClient> = (0..3)
            .map(|_| RespClient::connect(proxy.address()))
            .collect();
        for client in &mut waiting {
            client.send(&words("WAIT 1 400"));
        }
        for client in &mut waiting {
            let reply = client.reply();
            let is_unasked = reply
                .error()
                .is_some_and(|text| text.contains("pinned-links-max"));
            assert!(reply == Reply::Integer(0) || is_unasked, "{reply:?}");
        }
        replica.cont();
        assert_eq!(client.call("WAIT 1 5000"), Reply::Integer(1));
    }
}

/// A client that leaves during WAIT leaves nothing behind.
#[test]
fn client_that_leaves_wait_leaves_nothing_behind() {
    let served = Served::start(&some_server(), primaries(), &["--threads=1"]);
    let blocked = || -> u32 {
        let nodes = served.cluster.nodes().iter();
        let of = |count: String| count.parse::<u32>().expect("a number");
        nodes
            .map(|node| of(node.info("clients", "blocked_clients").expect("INFO")))
            .sum()
    };
    let mut client = served.client();
    wait_until("slot owners are known", SOON, || {
        client.call("WAIT 0 10") == Reply::Integer(0)
    });
    for _ in 0..3 {
        let mut waiting = served.client();
        waiting.send(&words("WAIT 1 0"));
        wait_until("the client is blocked", SOON, || blocked() == 1);
        drop(waiting);
        wait_until("no client is blocked", SOON, || blocked() == 0);
        assert_eq!(client.call("WAIT 1 10"), Reply::Integer(0));
    }
}

/// WAIT is answered while replicas take over.
#[test]
fn wait_is_answered_during_a_failover() {
    with_every_server(|binary| {
        let served = Served::start(binary, ClusterSettings::default(), &["--threads=1"]);
        let mut client = served.client();
        assert_eq!(client.call("SET k 1"), Reply::ok());
        wait_until("slot owners are known", SOON, || {
            client.call("WAIT 1 1000") == Reply::Integer(1)
        });
        for primary in 0..2 {
            std::thread::scope(|scope| {
                let failing = scope.spawn(|| fail_over(&served.cluster, primary, primary + 3));
                while !failing.is_finished() {
                    let said = client.call("WAIT 1 3000");
                    assert!(matches!(said, Reply::Integer(0..=1)), "{said:?}");
                }
            });
        }
        assert_eq!(client.call("SET k 2"), Reply::ok());
        wait_until("all replicas follow", SOON, || {
            client.call("WAIT 1 1000") == Reply::Integer(1)
        });
    });
}

/// WAIT is answered while slots move.
#[test]
fn wait_is_answered_while_slots_move() {
    let served = Served::start(&some_server(), primaries(), &["--threads=2"]);
    let mut client = served.client();
    for round in 0..6 {
        let key = format!("waits:{round}");
        assert_eq!(client.call(&format!("SET {key} 1")), Reply::ok());
        let to = (served.owner(&key) + 1) % 3;
        std::thread::scope(|scope| {
            let moving = scope.spawn(|| served.move_key(&key, to));
            while !moving.is_finished() {
                assert_eq!(client.call("WAIT 0 100"), Reply::Integer(0));
            }
        });
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(client.call("DBSIZE"), Reply::Integer(6));
}
