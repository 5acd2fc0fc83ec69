//! Keyspace notifications before several servers: each server notifies its own subscribers alone,
//! and to a client all of them are one server.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use respool_testkit::client::{Reply, RespClient, words};
use respool_testkit::servers::{Proxy, any_server};
use respool_testkit::time::wait_until;
use respool_testkit::topologies::{ClusterSettings, Shards, TestCluster, cluster_url, sharded_url};

use crate::target::respool;
use crate::topology::cluster::{
    SOON, Served, fail_over, key_in, primaries, some_server, with_every_server,
};

/// A client's subscriptions, and the notifications that each brings of one `SET key value`.
const SUBSCRIPTIONS: [(&str, &[&str]); 7] = [
    ("PSUBSCRIBE __key*__:*", &["space", "event"]),
    ("PSUBSCRIBE *", &["space", "event"]),
    ("PSUBSCRIBE __keyspace@0__:*", &["space"]),
    ("PSUBSCRIBE __keyevent@?__:s[e]t", &["event"]),
    ("PSUBSCRIBE \\_*__:set", &["event"]),
    ("SUBSCRIBE __keyevent@0__:set", &["event"]),
    ("PSUBSCRIBE __keyboard* news*", &[]),
];

/// A subscriber, and its notifications of each SET.
struct EventSubscriber {
    client: RespClient,
    asked: &'static str,
    events: &'static [&'static str],
}

impl EventSubscriber {
    /// Subscribes and reads the confirmations, of which there is one for each name.
    fn start(address: SocketAddr, index: usize) -> EventSubscriber {
        let (asked, events) = SUBSCRIPTIONS[index % SUBSCRIPTIONS.len()];
        let mut client = RespClient::connect(address);
        if index >= SUBSCRIPTIONS.len() {
            client.call("HELLO 3");
        }
        client.send(&words(asked));
        for (count, name) in (1..).zip(asked.split(' ').skip(1)) {
            let said = items(client.reply());
            let verb = asked.split(' ').next().unwrap_or_default().to_lowercase();
            let expected = [Reply::bulk(verb), Reply::bulk(name), Reply::Integer(count)];
            assert_eq!(said[..], expected, "{asked}");
        }
        EventSubscriber {
            client,
            asked,
            events,
        }
    }

    /// All that it gets up to the last message.
    fn got(&mut self, last: &str) -> Vec<(String, String)> {
        let mut all = Vec::new();
        loop {
            let said = items(self.client.reply());
            let [channel, text] = &said[said.len() - 2..] else {
                panic!("{said:?}");
            };
            let (channel, text) = (plain(channel), plain(text));
            if text == last {
                return all;
            }
            all.push((channel, text));
        }
    }

    /// Each of these keys was set once, and nothing else was.
    fn assert_each_once(&self, got: &[(String, String)], keys: &[String]) {
        let mut counts: BTreeMap<&(String, String), usize> = BTreeMap::new();
        for one in got {
            *counts.entry(one).or_default() += 1;
        }
        let twice: Vec<_> = counts.iter().filter(|(_, count)| **count > 1).collect();
        assert!(twice.is_empty(), "{}: {twice:?}", self.asked);
        let mut expected = BTreeSet::new();
        for key in keys {
            for event in self.events {
                expected.insert(match *event {
                    "space" => (format!("__keyspace@0__:{key}"), "set".to_owned()),
                    _ => ("__keyevent@0__:set".to_owned(), key.clone()),
                });
            }
        }
        let got: BTreeSet<_> = got.iter().cloned().collect();
        let missing: Vec<_> = expected.difference(&got).collect();
        let more: Vec<_> = got.difference(&expected).collect();
        assert!(
            missing.is_empty() && more.is_empty(),
            "{}: missing {missing:?}, more {more:?}",
            self.asked
        );
    }
}

fn items(value: Reply) -> Vec<Reply> {
    match value {
        Reply::Array(items) | Reply::Push(items) => items,
        other => panic!("{other:?} is no message"),
    }
}

fn plain(value: &Reply) -> String {
    match value {
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("{other:?} is no text"),
    }
}

/// All kinds of subscribers, in both versions of the protocol.
fn listeners(address: SocketAddr) -> Vec<EventSubscriber> {
    let all = 0..2 * SUBSCRIPTIONS.len();
    all.map(|index| EventSubscriber::start(address, index))
        .collect()
}

/// Sets keys, and checks that each listener gets their notifications. An ordinary message and the
/// last one reach its subscribers once.
fn each_gets_all(address: SocketAddr, listeners: &mut [EventSubscriber], keys: &[String]) {
    let mut client = RespClient::connect(address);
    for key in keys {
        assert_eq!(client.call(&format!("SET {key} 1")), Reply::ok());
    }
    for listener in listeners {
        // A RESP3 subscriber may send any command: its own message is the last one.
        let asked = listener.asked;
        let mut got = Vec::new();
        let count = keys.len() * listener.events.len();
        while got.len() < count {
            let said = items(listener.client.reply());
            let [channel, text] = &said[said.len() - 2..] else {
                panic!("{said:?}");
            };
            got.push((plain(channel), plain(text)));
        }
        listener.assert_each_once(&got, keys);
        assert!(
            listener.client.is_quiet(Duration::from_millis(20)),
            "{asked}: more came"
        );
    }
}

fn keys(beginning: &str, count: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("{beginning}:{number}"))
        .collect()
}

/// Has all servers send notifications, and checks that respool has handed that on to each.
fn notify(address: SocketAddr, servers: &[SocketAddr]) {
    let mut client = RespClient::connect(address);
    assert_eq!(
        client.call("CONFIG SET notify-keyspace-events KEA"),
        Reply::ok()
    );
    for server in servers {
        let said = RespClient::connect(*server).call("CONFIG GET notify-keyspace-events");
        let Reply::Array(pair) = said else {
            panic!("{said:?}");
        };
        assert_eq!(pair[1], Reply::bulk("AKE"));
    }
}

/// Before a Cluster, a client gets the notifications of all owners once, and ordinary messages
/// once.
#[test]
fn cluster_events_of_all_owners_arrive_once() {
    with_every_server(|binary| {
        let served = Served::start(binary, primaries(), &["--threads=2"]);
        let address = served.proxy.address();
        notify(address, &served.cluster.addresses());
        let mut all = listeners(address);
        each_gets_all(address, &mut all, &keys("first", 30));
        ordinary_messages_come_once(address, &mut all);
        leave_and_come_back(address, &mut all);
    });
}

/// The same before plain servers among which keys are divided.
#[test]
fn shard_events_of_all_servers_arrive_once() {
    let shards = Shards::start(&any_server(), 3, &[""; 0]);
    let shards = shards.unwrap_or_else(|error| panic!("{error}"));
    let backend = format!("--backend={}", sharded_url(&shards.addresses()));
    let proxy = Proxy::start(&respool(), &[backend, "--threads=2".to_owned()]);
    let proxy = proxy.unwrap_or_else(|error| panic!("{error}"));
    let address = proxy.address();
    notify(address, &shards.addresses());
    let mut all = listeners(address);
    each_gets_all(address, &mut all, &keys("first", 30));
    ordinary_messages_come_once(address, &mut all);
    leave_and_come_back(address, &mut all);
}

/// The same for keys with prefixes: at one server, at several, or in a Cluster.
#[test]
fn events_of_all_parts_arrive_once() {
    let binary = some_server();
    let start = |count| {
        let shards = Shards::start(&binary, count, &[""; 0]);
        shards.unwrap_or_else(|error| panic!("{error}"))
    };
    let (first, several) = (start(1), start(2));
    let cluster =
        TestCluster::start(&binary, primaries()).unwrap_or_else(|error| panic!("{error}"));
    let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let file = folder.path().join("respool.toml");
    let proxy = Proxy::start_with(&respool(), |port| {
        let text = format!(
            "threads = 2\n[pool.all]\nlisten = '127.0.0.1:{port}'\nbackend = 'redis://{}'\n\
             [pool.all.prefixes]\n'several' = '{}'\n'cluster' = '{}'\n",
            first.addresses()[0],
            sharded_url(&several.addresses()),
            cluster_url(&cluster.addresses()),
        );
        std::fs::write(&file, text).unwrap_or_else(|error| panic!("{error}"));
        vec!["--config".into(), file.display().to_string()]
    });
    let proxy = proxy.unwrap_or_else(|error| panic!("{error}"));
    let address = proxy.address();
    let servers = [first.addresses(), several.addresses(), cluster.addresses()];
    notify(address, &servers.concat());
    let mut all = listeners(address);
    let some = ["first", "several", "cluster"].map(|part| keys(part, 12));
    each_gets_all(address, &mut all, &some.concat());
    ordinary_messages_come_once(address, &mut all);
}

/// Where servers see keys without their prefix, clients see and name whole keys.
#[test]
fn events_name_keys_with_their_prefix() {
    let binary = some_server();
    let start = |count| {
        let shards = Shards::start(&binary, count, &[""; 0]);
        shards.unwrap_or_else(|error| panic!("{error}"))
    };
    let (first, several) = (start(1), start(2));
    let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let file = folder.path().join("respool.toml");
    let proxy = Proxy::start_with(&respool(), |port| {
        let text = format!(
            "threads = 2\n[pool.all]\nlisten = '127.0.0.1:{port}'\nbackend = 'redis://{}'\n\
             [pool.all.prefixes]\n'user:' = {{ backend = '{}', strip = true }}\n",
            first.addresses()[0],
            sharded_url(&several.addresses()),
        );
        std::fs::write(&file, text).unwrap_or_else(|error| panic!("{error}"));
        vec!["--config".into(), file.display().to_string()]
    });
    let proxy = proxy.unwrap_or_else(|error| panic!("{error}"));
    let address = proxy.address();
    notify(address, &[first.addresses(), several.addresses()].concat());
    let mut all = listeners(address);
    let some = ["first", "user"].map(|part| keys(part, 20)).concat();
    each_gets_all(address, &mut all, &some);
    ordinary_messages_come_once(address, &mut all);
    for (asked, expected) in [
        ("PSUBSCRIBE __keyspace@0__:user:1*", "user:12"),
        ("PSUBSCRIBE __keyspace@0__:*er:12", "user:12"),
        ("SUBSCRIBE __keyspace@0__:user:12", "user:12"),
        ("PSUBSCRIBE __keyspace@0__:12*", "none"),
    ] {
        let mut client = RespClient::connect(address);
        assert_eq!(items(client.call(asked)).len(), 3);
        let mut other = RespClient::connect(address);
        assert_eq!(other.call("SET user:12 1"), Reply::ok());
        if expected == "none" {
            assert!(client.is_quiet(Duration::from_millis(100)), "{asked}");
            continue;
        }
        let said = items(client.reply());
        let [channel, text] = &said[said.len() - 2..] else {
            panic!("{said:?}");
        };
        let channel = plain(channel);
        assert_eq!(
            (channel, plain(text)),
            (format!("__keyspace@0__:{expected}"), "set".to_owned())
        );
        assert!(
            client.is_quiet(Duration::from_millis(20)),
            "{asked}: the event came twice"
        );
    }
}

/// `*`, `_*` and the like bring an ordinary message once, though they are subscribed to at every
/// owner.
fn ordinary_messages_come_once(address: SocketAddr, all: &mut [EventSubscriber]) {
    let mut client = RespClient::connect(address);
    client.call("PUBLISH news:1 hello");
    client.call("PUBLISH __keyboard last");
    for listener in all {
        let brings = match listener.asked {
            "PSUBSCRIBE *" | "PSUBSCRIBE __keyboard* news*" => 1,
            _ => continue,
        };
        assert_eq!(listener.got("last").len(), brings, "{}", listener.asked);
        assert!(listener.client.is_quiet(Duration::from_millis(50)));
    }
}

/// A subscriber that leaves gets no more events. After it subscribes again, it gets all events.
fn leave_and_come_back(address: SocketAddr, all: &mut [EventSubscriber]) {
    let mut client = RespClient::connect(address);
    for listener in &mut *all {
        let words_of = listener.asked.split_once(' ').unwrap_or_default();
        let leaves = match words_of.0 {
            "SUBSCRIBE" => "UNSUBSCRIBE",
            _ => "PUNSUBSCRIBE",
        };
        listener.client.send(&words(leaves));
        for _ in words_of.1.split(' ') {
            assert_eq!(items(listener.client.reply()).len(), 3);
        }
    }
    for key in keys("unheard", 10) {
        assert_eq!(client.call(&format!("SET {key} 1")), Reply::ok());
    }
    for listener in &mut *all {
        assert!(listener.client.is_quiet(Duration::from_millis(5)));
        listener.client.send(&words(listener.asked));
        for _ in listener.asked.split(' ').skip(1) {
            assert_eq!(items(listener.client.reply()).len(), 3);
        }
    }
    each_gets_all(address, all, &keys("again", 30));
}

/// Notifications go on after slots have moved, a node was added, and a primary was replaced by
/// command: none is missing and none comes twice.
#[test]
fn events_follow_slots_new_nodes_and_failovers() {
    let settings = ClusterSettings {
        args: ["--notify-keyspace-events", "KEA"]
            .map(str::to_owned)
            .to_vec(),
        ..ClusterSettings::default()
    };
    // The first node that fails over is the one where everything else is published.
    let args = ["--threads=1"];
    let mut served = Served::start(&some_server(), settings, &args);
    let address = served.proxy.address();
    let mut all = listeners(address);
    each_gets_all(address, &mut all, &keys("first", 30));
    let empty = key_in(|slot| served.cluster.share(0).contains(&slot), 3);
    let empty = format!("{{{empty}}}:set");
    served.move_key(&empty, 1);
    each_gets_all(address, &mut all, &keys("moved", 30));
    let added = served.cluster.add_node();
    let added = added.unwrap_or_else(|error| panic!("{error}"));
    served.move_key(&empty, added);
    // The first request for the moved key is redirected to the added node. The request waits
    // until respool is subscribed to the notifications of that node.
    let mut some = vec![empty];
    some.extend(keys("added", 30));
    each_gets_all(address, &mut all, &some);
    for primary in 0..3 {
        fail_over(&served.cluster, primary, primary + 3);
        wait_until("respool listens to the new primary", SOON, || {
            listened(served.cluster.node(primary + 3).address())
        });
        served.whole();
        wait_until("respool has left the old primary", SOON, || {
            !listened(served.cluster.node(primary).address())
        });
        each_gets_all(address, &mut all, &keys(&format!("over{primary}"), 30));
    }
}

/// Whether a node has a subscriber of each pattern.
fn listened(node: SocketAddr) -> bool {
    let count = RespClient::connect(node).call("PUBSUB NUMPAT");
    count == Reply::Integer(5) || count == Reply::Integer(7)
}

/// When a primary is killed, its subscribers are closed. With `lost-subscriptions=keep` they get
/// the notifications of the new primary.
#[test]
fn events_follow_a_killed_primary() {
    for keeps in [true, false] {
        let settings = ClusterSettings {
            args: ["--notify-keyspace-events", "KEA"]
                .map(str::to_owned)
                .to_vec(),
            ..ClusterSettings::default()
        };
        let option = format!(
            "--lost-subscriptions={}",
            if keeps { "keep" } else { "close" }
        );
        let served = Served::start(&some_server(), settings, &["--threads=1", &option]);
        let address = served.proxy.address();
        let mut all = listeners(address);
        each_gets_all(address, &mut all, &keys("first", 30));
        let slot = *served.cluster.share(2).start();
        served.cluster.node(2).kill9();
        if !keeps {
            for listener in &mut all {
                match listener.events {
                    // Such a channel brings no notification: respool subscribes at one other node.
                    [] => assert_eq!(listener.asked, SUBSCRIPTIONS[6].0),
                    _ => listener.client.expect_closed(),
                }
            }
            all = listeners(address);
        }
        let new_owner = served.cluster.wait_for_other_owner(slot, 2, SOON);
        assert_eq!(new_owner.unwrap_or_else(|error| panic!("{error}")), 5);
        wait_until("respool listens to the new primary", SOON, || {
            listened(served.cluster.node(5).address())
        });
        each_gets_all(address, &mut all, &keys("heir", 30));
    }
}
