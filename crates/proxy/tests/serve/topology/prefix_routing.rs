//! A pool whose keys are, by their prefix, at one server, at several, in a Cluster or with
//! Sentinels: to a client all of them are one server.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use respool_protocol::slot::hash_slot;
use respool_testkit::client::{Reply, RespClient, counter, pipelined, request, text, texts, words};
use respool_testkit::counting::{AllowedFailures, counted};
use respool_testkit::random::{Random, seed};
use respool_testkit::servers::{self, Flavour, Proxy, ServerProcess};
use respool_testkit::time::wait_until;
use respool_testkit::topologies::{
    Sentinels, SentinelsSettings, Shards, TestCluster, cluster_url, sentinel_url, sharded_url,
};
use tempfile::TempDir;

use crate::target::respool;
use crate::topology::cluster::{SOON, calm_primaries, move_slots, move_some, some_server};
use crate::topology::divided::answers_like_one_server;
use crate::topology::replicas::{calls, reset, wait_for_replicas};
use crate::topology::sentinel;

/// One of each kind.
struct Kinds {
    single: ServerProcess,
    other: ServerProcess,
    shards: Shards,
    cluster: TestCluster,
    sentinels: Sentinels,
}

/// A respool before them.
struct ServedKinds {
    kinds: Kinds,
    proxy: (Proxy, TempDir),
}

impl Drop for ServedKinds {
    fn drop(&mut self) {
        let log = self.proxy.0.log();
        if thread::panicking() {
            eprintln!("its log:\n{log}");
        } else {
            assert!(!log.contains("panicked at"), "{log}");
        }
    }
}

impl Kinds {
    fn start(binary: &Path) -> Kinds {
        let settings = SentinelsSettings {
            watched: 1,
            ..SentinelsSettings::default()
        };
        let kinds = || -> std::io::Result<Kinds> {
            Ok(Kinds {
                single: ServerProcess::start(binary, &[""; 0])?,
                other: ServerProcess::start(binary, &[""; 0])?,
                shards: Shards::start(binary, 2, &[""; 0])?,
                cluster: TestCluster::start(binary, calm_primaries())?,
                sentinels: Sentinels::start(binary, &settings)?,
            })
        };
        kinds().unwrap_or_else(|error| panic!("{error}"))
    }

    /// respool's URL for one kind.
    fn url(&self, kind: &str) -> String {
        match kind {
            "single" => format!("redis://{}", self.single.address()),
            "other" => format!("redis://{}", self.other.address()),
            "sharded" => sharded_url(&self.shards.addresses()),
            "cluster" => cluster_url(&self.cluster.addresses()),
            "read" => self.url("sentinels") + "?reads=prefer-replica",
            _ => {
                let name = self.sentinels.watched(0).name();
                sentinel_url(&self.sentinels.addresses(), name)
            }
        }
    }

    /// A respool before them, with its file in the folder. Subpools that `stripped` names see keys
    /// without prefix.
    fn proxy(&self, all: &str, prefixes: &[(&str, &str)], threads: u32) -> (Proxy, TempDir) {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let file = folder.path().join("respool.toml");
        let proxy = Proxy::start_with(&respool(), |port| {
            let mut text = format!(
                "threads = {threads}\nreconnect-max-ms = 100\nrequest-timeout-ms = 3000\n\
                 [pool.all]\nlisten = '127.0.0.1:{port}'\nbackend = '{}'\n[pool.all.prefixes]\n",
                self.url(all)
            );
            for (prefix, kind) in prefixes {
                let part = match kind.strip_prefix("stripped ") {
                    Some(kind) => format!("{{ backend = '{}', strip = true }}", self.url(kind)),
                    None => format!("'{}'", self.url(kind)),
                };
                text.push_str(&format!("'{prefix}' = {part}\n"));
            }
            std::fs::write(&file, text).unwrap_or_else(|error| panic!("{error}"));
            vec!["--config".into(), file.display().to_string()]
        });
        (proxy.unwrap_or_else(|error| panic!("{error}")), folder)
    }

    /// Keys that one kind has, by itself.
    fn held(&self, kind: &str) -> HashSet<String> {
        let addresses = match kind {
            "single" => vec![self.single.address()],
            "other" => vec![self.other.address()],
            "sharded" => self.shards.addresses(),
            "cluster" => self.cluster.addresses(),
            _ => {
                let primary = self.sentinels.primary(0);
                let primary = primary.unwrap_or_else(|error| panic!("{error}"));
                vec![self.sentinels.watched(0).server(primary).address()]
            }
        };
        let keys = |address| texts(&RespClient::connect(address).call("KEYS *"));
        addresses.into_iter().flat_map(keys).collect()
    }
}

impl ServedKinds {
    /// `all`: for keys that begin in no named way; and the others.
    fn start(binary: &Path, all: &str, prefixes: &[(&str, &str)], threads: u32) -> ServedKinds {
        let kinds = Kinds::start(binary);
        let proxy = kinds.proxy(all, prefixes, threads);
        ServedKinds { kinds, proxy }
    }

    fn client(&self) -> RespClient {
        RespClient::connect(self.proxy.0.address())
    }
}

/// The same where `sharded` has the others.
const SHARDED: [(&str, &str); 3] = [("c:", "cluster"), ("w:", "sentinels"), ("c:s:", "single")];

/// Where keys are in most of these tests.
const MIXED: [(&str, &str); 4] = [
    ("c:", "cluster"),
    ("w:", "sentinels"),
    ("s:", "sharded"),
    ("c:s:", "other"),
];

fn code(reply: &Reply) -> &str {
    let text = reply.error().unwrap_or_default();
    text.split(' ').next().unwrap_or_default()
}

/// Every key of a SCAN, as often as it comes.
fn scanned(client: &mut RespClient) -> Vec<String> {
    let (mut cursor, mut all) = ("0".to_owned(), Vec::new());
    loop {
        let Reply::Array(reply) = client.call(&format!("SCAN {cursor} COUNT 7")) else {
            panic!("SCAN answers an array")
        };
        all.extend(texts(&reply[1]));
        cursor = text(&reply[0]);
        if cursor == "0" {
            return all;
        }
    }
}

/// Keys are in the pool of their prefix, which may be of any kind. A client sees one server.
#[test]
fn prefixes_route_keys_to_any_kind_of_pool() {
    for (all, cluster) in [("sharded", "cluster"), ("cluster", "sharded")] {
        let prefixes = [("c:", cluster), ("w:", "sentinels"), ("c:s:", "single")];
        let served = ServedKinds::start(&some_server(), all, &prefixes, 3);
        let mut client = served.client();
        let key = |number: usize| {
            let prefix = ["", "c:", "w:", "c:s:", "c", "other:"][number % 6];
            format!("{prefix}{number}")
        };
        let keys: Vec<String> = (0..240).map(key).collect();
        let pairs: Vec<String> = keys.iter().map(|key| format!("{key} {key}")).collect();
        assert_eq!(
            client.call(&format!("MSET {}", pairs.join(" "))),
            Reply::ok()
        );
        let values = client.call(&format!("MGET {}", keys.join(" ")));
        assert_eq!(texts(&values), keys);
        for (kind, of) in [
            (all, vec![0, 4, 5]),
            (cluster, vec![1]),
            ("sentinels", vec![2]),
            ("single", vec![3]),
        ] {
            let its = |number: &usize| of.contains(&(number % 6));
            let expected: HashSet<String> = (0..240).filter(its).map(key).collect();
            assert_eq!(served.kinds.held(kind), expected, "{kind}");
        }
        assert_eq!(client.call("DBSIZE"), Reply::Integer(240));
        // WAIT returns 0, because some servers have no replica.
        assert_eq!(client.call("WAIT 0 1000"), Reply::Integer(0));
        let expected: HashSet<String> = keys.iter().cloned().collect();
        let found = texts(&client.call("KEYS *"));
        assert_eq!(
            (found.len(), found.into_iter().collect::<HashSet<_>>()),
            (240, expected.clone())
        );
        // Nothing grows or shrinks meanwhile, so none comes twice.
        let found = scanned(&mut client);
        assert_eq!(
            (found.len(), found.into_iter().collect::<HashSet<_>>()),
            (240, expected)
        );
        let some = format!("{} {} {} {}", keys[0], keys[1], keys[2], keys[3]);
        assert_eq!(client.call(&format!("DEL {some}")), Reply::Integer(4));
        assert_eq!(client.call(&format!("EXISTS {some}")), Reply::Integer(0));
        assert_eq!(client.call("FLUSHALL"), Reply::ok());
        for kind in ["single", "sharded", "cluster", "sentinels"] {
            assert!(served.kinds.held(kind).is_empty(), "{kind}");
        }
        // Nothing tells a client of the Cluster.
        let mut direct = RespClient::connect(served.kinds.single.address());
        for asked in ["CLUSTER SLOTS", "CLUSTER INFO", "READONLY", "ASKING"] {
            let (ours, its) = (client.call(asked), direct.call(asked));
            assert_eq!(ours, its, "{asked}");
        }
        let info = text(&client.call("INFO"));
        for said in [
            "redis_mode:cluster",
            "server_mode:cluster",
            "cluster_enabled:1",
        ] {
            assert!(!info.contains(said), "{info}");
        }
    }
}

/// A request that one server has to run has keys of one subpool alone.
#[test]
fn single_server_request_needs_keys_of_one_subpool() {
    let served = ServedKinds::start(&some_server(), "single", &MIXED, 2);
    let mut client = served.client();
    let mut other = served.client();
    // Within each part everything is as there.
    for part in ["", "c:", "w:", "s:", "c:s:"] {
        let [a, b] = ["a", "b"].map(|name| format!("{part}{{x}}{name}"));
        let block = format!("MULTI;SET {a} 1;INCR {a};SET {b} 5;EXEC");
        let executed = pipelined(&mut client, &block).pop();
        let expected = vec![Reply::ok(), Reply::Integer(2), Reply::ok()];
        assert_eq!(executed, Some(Reply::Array(expected)), "{part}");
        let script = format!("EVAL return({{KEYS[1],KEYS[2]}}) 2 {a} {b}");
        assert_eq!(texts(&client.call(&script)), [a.clone(), b.clone()]);
        // Another client changes a watched key.
        assert_eq!(client.call(&format!("WATCH {a}")), Reply::ok());
        assert_eq!(other.call(&format!("INCR {a}")), Reply::Integer(3));
        let block = format!("MULTI;INCR {a};EXEC");
        assert_eq!(pipelined(&mut client, &block).pop(), Some(Reply::Null));
        assert_eq!(client.call(&format!("WATCH {a}")), Reply::ok());
        let executed = pipelined(&mut client, &block).pop();
        assert_eq!(executed, Some(Reply::Array(vec![Reply::Integer(4)])));
        // Another client brings the element.
        let list = format!("{part}{{x}}list");
        client.send(&words(&format!("BLPOP {list} 10")));
        thread::sleep(Duration::from_millis(50));
        assert_eq!(other.call(&format!("LPUSH {list} v")), Reply::Integer(1));
        assert_eq!(texts(&client.reply()), [list, "v".to_owned()]);
    }
    // Requests with keys of several parts are refused.
    let (one, two) = ("c:{x}a", "w:{x}a");
    for asked in [
        format!("SINTERSTORE {one} {two}"),
        format!("EVAL return(1) 2 {one} {two}"),
        format!("BLPOP {one} {two} 1"),
        format!("RENAME k {two}"),
        // Two slots of the Cluster.
        "RENAME c:{x}a c:{y}a".to_owned(),
    ] {
        assert_eq!(code(&client.call(&asked)), "CROSSSLOT", "{asked}");
    }
    for block in [
        format!("MULTI;SET {one} 7;SET {two} 7;EXEC"),
        format!("WATCH {one};MULTI;SET {two} 7;EXEC"),
        "MULTI;SET c:{x}a 7;SET c:{y}a 7;EXEC".to_owned(),
    ] {
        let replies = pipelined(&mut client, &block);
        assert_eq!(code(&replies[2]), "CROSSSLOT", "{replies:?}");
        assert_eq!(code(&replies[3]), "EXECABORT", "{replies:?}");
    }
    let values = client.call(&format!("MGET {one} {two}"));
    assert_eq!(texts(&values), ["4", "4"]);
    // A script is known in all parts.
    let loaded = client.call_args(&["SCRIPT", "LOAD", "return redis.call('GET',KEYS[1])"]);
    for key in [one, two, "{x}a"] {
        let value = client.call(&format!("EVALSHA {} 1 {key}", text(&loaded)));
        assert_eq!(value, Reply::bulk("4"), "{key}");
    }
}

/// Published messages reach every subscriber, with the keys in any subpool.
#[test]
fn published_messages_reach_every_listener() {
    for all in ["single", "cluster", "sentinels"] {
        let prefixes: Vec<(&str, &str)> =
            MIXED.into_iter().filter(|(_, kind)| *kind != all).collect();
        let served = ServedKinds::start(&sentinel::some_server(6), all, &prefixes, 2);
        let mut listeners: Vec<RespClient> = (0..4).map(|_| served.client()).collect();
        // A worker that has just met the Cluster subscribes at its first node as soon as that is
        // connected.
        for listener in &mut listeners {
            assert_eq!(listener.call("DBSIZE"), Reply::Integer(0));
        }
        thread::sleep(Duration::from_millis(500));
        for listener in &mut listeners {
            listener.call("SUBSCRIBE c:news w:news news");
            listener.replies(2);
        }
        let mut client = served.client();
        for channel in ["c:news", "w:news", "news"] {
            // Earlier requests of a session do not matter.
            assert_eq!(client.call("SET w:k 1"), Reply::ok());
            let heard = client.call(&format!("PUBLISH {channel} hello"));
            // In a Cluster, the subscribers of the node that was asked.
            if all != "cluster" {
                assert_eq!(heard, Reply::Integer(4), "{all}");
            }
            for listener in &mut listeners {
                let message = texts(&listener.reply());
                assert_eq!(message, ["message", channel, "hello"]);
            }
        }
        let replies = pipelined(&mut client, "MULTI;PUBLISH news two;SET w:k 2;EXEC");
        let aborts = all != "sentinels";
        assert_eq!(
            code(&replies[2]) == "CROSSSLOT",
            aborts,
            "{all}: {replies:?}"
        );
        for number in 0..8 {
            let channel = format!("shard:{number}");
            let mut listener = served.client();
            listener.call(&format!("SSUBSCRIBE {channel}"));
            let heard = client.call(&format!("SPUBLISH {channel} hello"));
            assert_eq!(heard, Reply::Integer(1), "{all}");
            assert_eq!(texts(&listener.reply()), ["smessage", &channel, "hello"]);
        }
    }
}

#[test]
fn many_kinds_answer_like_one_server() {
    let whole = [("k", "sharded"), ("k1", "cluster"), ("k2", "sentinels")];
    let stripped = [
        ("k", "stripped sharded"),
        ("k1", "stripped cluster"),
        ("k2", "stripped sentinels"),
    ];
    let binary = some_server();
    for prefixes in [whole, stripped] {
        let served = ServedKinds::start(&binary, "single", &prefixes, 2);
        let size = answers_like_one_server(&binary, served.proxy.0.address());
        assert_eq!(served.client().call("DBSIZE"), size);
    }
}

#[test]
fn parts_of_any_kind_see_short_keys() {
    let prefixes = [
        ("c:", "stripped cluster"),
        ("w:", "stripped sentinels"),
        ("s:", "stripped sharded"),
        ("c:s:", "other"),
    ];
    let served = ServedKinds::start(&some_server(), "single", &prefixes, 2);
    let mut client = served.client();
    let keys = |of: usize| ["c:", "w:", "s:", "c:s:", ""].map(|prefix| format!("{prefix}k{of}"));
    // The first requests may come before its nodes have given their slots.
    assert_eq!(client.call("SET c:k0 0"), Reply::ok());
    let healed = counter(&mut client, "redirected_moved");
    for of in 0..50 {
        let pairs = keys(of).map(|key| format!("{key} {key}")).join(" ");
        assert_eq!(client.call(&format!("MSET {pairs}")), Reply::ok());
    }
    let short: HashSet<String> = (0..50).map(|of| format!("k{of}")).collect();
    for kind in ["cluster", "sentinels", "sharded", "single"] {
        assert_eq!(served.kinds.held(kind), short, "{kind}");
    }
    let all: HashSet<String> = (0..50).flat_map(keys).collect();
    let found = |names: Vec<String>| names.into_iter().collect::<HashSet<_>>();
    assert_eq!(found(texts(&client.call("KEYS *"))), all);
    assert_eq!(found(scanned(&mut client)), all);
    for of in 0..50 {
        let gets = keys(of).map(|key| format!("GET {key}")).join(";");
        let mget = format!("MGET {}", keys(of).join(" "));
        let expected = keys(of).map(Reply::bulk).to_vec();
        assert_eq!(pipelined(&mut client, &gets), expected);
        assert_eq!(client.call(&mget), Reply::Array(expected));
    }
    // SWAPDB is refused: it could succeed at some servers only.
    let swapped = client.call("SWAPDB 0 1");
    let told = "respool: SWAPDB is refused";
    assert!(
        swapped.error().is_some_and(|error| error.contains(told)),
        "{swapped:?}"
    );
    assert_eq!(client.call("GET k1"), Reply::bulk("k1"));
    // SELECT and DBSIZE do not depend on the key that was asked for last.
    for key in ["k1", "c:k1"] {
        assert_eq!(
            code(&pipelined(&mut client, &format!("GET {key};SELECT 1"))[1]),
            "ERR"
        );
        assert_eq!(client.call("DBSIZE"), Reply::Integer(250));
    }
    // A request for one node of a Cluster is accepted if its keys without their prefix have one
    // slot.
    for (prefix, tag) in [("c:", "c:{t}"), ("w:", "w:"), ("s:", "s:{t}")] {
        let transaction = format!("MULTI;SET {tag}a 1;RPUSH {tag}l x;EXEC;BLPOP {tag}m {tag}l 1");
        let replies = pipelined(&mut client, &transaction);
        let done = Reply::Array(vec![Reply::ok(), Reply::Integer(1)]);
        assert_eq!(replies[3], done, "{prefix}");
        assert_eq!(texts(&replies[4]), [format!("{tag}l"), "x".to_owned()]);
    }
    assert_eq!(counter(&mut client, "redirected_moved"), healed);
    let refused = client.call("BLPOP c:{d}a c:{e}b 1");
    assert_eq!(code(&refused), "CROSSSLOT", "{refused:?}");
}

/// Slots of a subpool that move under load are noticed by no client.
#[test]
fn moving_slots_of_a_subpool_are_unnoticed() {
    let binary = some_server();
    let behind = [("c", "cluster"), ("d", "sentinels"), ("c1", "sharded")];
    let before = [("c", "sharded"), ("d", "sentinels"), ("c1", "single")];
    let mut served = ServedKinds::start(&binary, "single", &behind, 3);
    // Only keys that begin with `c` are in this pool.
    let errors = counted(
        served.proxy.0.address(),
        &mut served,
        AllowedFailures::Nothing,
        |served| {
            let mut random = Random::new(seed());
            move_some(&served.kinds.cluster, 40, &[0, 1, 2], &mut random);
        },
    );
    assert!(errors.is_empty(), "{errors:?}");
    let met = |served: &ServedKinds, name: &str| {
        let claim = format!("the counter {name} is above 0");
        wait_until(&claim, SOON, || counter(&mut served.client(), name) > 0);
    };
    met(&served, "redirected_moved");
    drop(served);
    let stripped = [("c", "stripped cluster"), ("d", "stripped sentinels")];
    let mut served = ServedKinds::start(&binary, "single", &stripped, 3);
    counted(
        served.proxy.0.address(),
        &mut served,
        AllowedFailures::Nothing,
        |served| {
            let mut random = Random::new(seed());
            // Slots of keys by their names at the nodes.
            let mut held: Vec<String> = served.kinds.held("cluster").into_iter().collect();
            held.sort();
            let some = (0..20).map(|_| &held[random.below(held.len() as u64) as usize]);
            let slots = some.map(|key| hash_slot(key.as_bytes())).collect();
            move_slots(&served.kinds.cluster, slots, &[0, 1, 2], &mut random);
        },
    );
    met(&served, "redirected_moved");
    drop(served);
    let mut served = ServedKinds::start(&binary, "cluster", &before, 3);
    counted(
        served.proxy.0.address(),
        &mut served,
        AllowedFailures::Nothing,
        |served| {
            let mut random = Random::new(seed());
            move_some(&served.kinds.cluster, 20, &[0, 1, 2], &mut random);
        },
    );
    met(&served, "redirected_moved");
}

/// SCAN finds every key though nodes of a subpool come and go.
#[test]
fn scan_finds_every_key_of_a_changing_subpool() {
    let mut served = ServedKinds::start(&some_server(), "sharded", &SHARDED, 3);
    let mut client = served.client();
    let key = |number: usize| format!("{}{number}", ["", "c:", "w:", "c:s:"][number % 4]);
    let keys: Vec<String> = (0..600).map(key).collect();
    for key in &keys {
        assert_eq!(client.call(&format!("SET {key} 1")), Reply::ok());
    }
    let taken: HashSet<u16> = keys.iter().map(|key| hash_slot(key.as_bytes())).collect();
    let share = served.kinds.cluster.share(0);
    let free = share.filter(|slot| !taken.contains(slot)).take(10);
    let free: Vec<u16> = free.collect();
    let node = served.kinds.cluster.add_node();
    let node = node.unwrap_or_else(|error| panic!("{error}"));
    let mut found = Vec::new();
    let mut cursor = "0".to_owned();
    for step in 0.. {
        // Each step of another session, and so perhaps of another worker.
        let Reply::Array(reply) = served.client().call(&format!("SCAN {cursor} COUNT 10")) else {
            panic!("SCAN answers an array")
        };
        found.extend(texts(&reply[1]));
        cursor = text(&reply[0]);
        if cursor == "0" {
            break;
        }
        // Slots without keys move to a node and back: SCAN has one server more, and then one less.
        let moves = match step {
            5 => Some((0, node)),
            20 => Some((node, 0)),
            _ => None,
        };
        if let Some((from, to)) = moves {
            let moved = served
                .kinds
                .cluster
                .move_slots(free.iter().copied(), from, to);
            moved.unwrap_or_else(|error| panic!("{error}"));
            // A redirect tells each worker of it.
            let names = free.iter().map(|slot| {
                let mut names = (0..).map(|number| format!("c:{number}"));
                names.find(|name| hash_slot(name.as_bytes()) == *slot)
            });
            for name in names.flatten() {
                for _ in 0..9 {
                    assert_eq!(served.client().call(&format!("GET {name}")), Reply::Null);
                }
            }
        }
    }
    let every: HashSet<String> = keys.into_iter().collect();
    // A node that has just become a replica may be asked as the owner that it was: then its keys
    // come twice.
    assert_eq!(found.into_iter().collect::<HashSet<_>>(), every);
    // After slots with keys have moved to a new node, requests to all servers include it.
    let slots = taken.iter().copied().filter(|slot| {
        let mut names = every.iter().filter(|name| name.starts_with("c:"));
        served.kinds.cluster.share(1).contains(slot)
            && names.any(|name| hash_slot(name.as_bytes()) == *slot)
    });
    let slots: Vec<u16> = slots.take(5).collect();
    let node = served.kinds.cluster.add_node();
    let node = node.unwrap_or_else(|error| panic!("{error}"));
    let moved = served.kinds.cluster.move_slots(slots, 1, node);
    moved.unwrap_or_else(|error| panic!("{error}"));
    for _ in 0..9 {
        let mut client = served.client();
        for name in every.iter().filter(|name| name.starts_with("c:")) {
            assert_eq!(client.call(&format!("GET {name}")), Reply::bulk("1"));
        }
        assert_eq!(client.call("DBSIZE"), Reply::Integer(600));
    }
    assert_eq!(client.call("FLUSHALL"), Reply::ok());
    assert_eq!(client.call("DBSIZE"), Reply::Integer(0));
}

/// While a primary of one subpool is replaced, keys of the others are answered.
#[test]
fn failover_of_one_subpool_leaves_the_others() {
    let served = ServedKinds::start(&sentinel::some_server(7), "single", &MIXED, 2);
    let mut client = served.client();
    assert_eq!(client.call("SET w:lost 0"), Reply::ok());
    let watched = served.kinds.sentinels.watched(0);
    let replica = watched.server(1).address();
    wait_until("the replica has the value", SOON, || {
        RespClient::connect(replica).call("GET w:lost") == Reply::bulk("0")
    });
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for key in ["k", "c:k", "s:k", "c:s:k"] {
            let (mut client, over) = (served.client(), &over);
            scope.spawn(move || {
                for value in 1.. {
                    assert_eq!(client.call(&format!("INCR {key}")), Reply::Integer(value));
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
        thread::sleep(Duration::from_millis(100));
        watched.server(0).kill9();
        let replaced = served.kinds.sentinels.wait_for_other_primary(0, 0, SOON);
        over.store(true, Ordering::SeqCst);
        replaced.unwrap_or_else(|error| panic!("{error}"));
    });
    wait_until("the key of the lost primary is served again", SOON, || {
        client.call("GET w:lost") == Reply::bulk("0")
    });
}

#[test]
fn each_part_is_read_where_its_own_url_says() {
    is_read_where_its_url_says("read", "w:k");
    is_read_where_its_url_says("stripped read", "k");
}

/// `seen`: the name of the key `w:k` at its servers.
fn is_read_where_its_url_says(read: &str, seen: &str) {
    let prefixes = [("w:", read), ("c:", "cluster")];
    let served = ServedKinds::start(&sentinel::some_server(8), "single", &prefixes, 1);
    let [primary, replica] = [0, 1].map(|server| {
        let watched = served.kinds.sentinels.watched(0);
        watched.server(server).address()
    });
    let mut client = served.client();
    assert_eq!(client.call("MSET k 1 c:k 1 w:k 1 w:l 1"), Reply::ok());
    wait_until("the replica has the value", SOON, || {
        RespClient::connect(replica).call(&format!("GET {seen}")) == Reply::bulk("1")
    });
    wait_for_replicas(&served.proxy.0, 1);
    let reads = |server| calls(server, "get") + calls(server, "mget");
    let single = served.kinds.single.address();
    reset(&[primary, replica, single]);
    for _ in 0..20 {
        for key in ["k", "c:k", "w:k"] {
            assert_eq!(client.call(&format!("GET {key}")), Reply::bulk("1"));
        }
        let values = pipelined(
            &mut client,
            "GET w:k;GET c:k;GET w:l;GET w:k;MGET w:k k w:l",
        );
        assert_eq!(texts(&values[4]), ["1", "1", "1"]);
        assert_eq!(values[..4], [(); 4].map(|()| Reply::bulk("1")));
    }
    assert_eq!(reads(primary), 0);
    assert!(reads(replica) >= 40, "{}", reads(replica));
    assert_eq!(reads(single), 40);
    // A client in READWRITE mode reads its own writes at the primary.
    assert_eq!(client.call("READWRITE"), Reply::ok());
    for number in 0..50 {
        for key in ["w:k", "c:k", "k"] {
            let set = format!("SET {key} {number};GET {key}");
            let values = pipelined(&mut client, &set);
            assert_eq!(values[1], Reply::bulk(number.to_string()), "{key}");
        }
    }
    assert!(reads(primary) >= 50, "{}", reads(primary));
}

/// A module that one subpool has is used with keys of that subpool.
#[test]
fn module_of_one_subpool_is_used_with_its_keys() {
    let binary = match servers::find(Flavour::Redis82) {
        Ok(binary) => binary,
        Err(reason) => return servers::leave_out("servers", reason),
    };
    let module = binary.with_file_name("falkordb.so");
    let module = module.to_str().expect("the path is text");
    let start =
        |args: &[&str]| ServerProcess::start(&binary, args).unwrap_or_else(|e| panic!("{e}"));
    let (all, graphs) = (start(&[]), start(&["--loadmodule", module]));
    let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let file = folder.path().join("respool.toml");
    let proxy = Proxy::start_with(&respool(), |port| {
        let text = format!(
            "threads = 1\nrequest-held-bytes-max = 65536\n\
             [pool.all]\nlisten = '127.0.0.1:{port}'\nbackend = 'redis://{}'\n\
             [pool.all.prefixes]\n'g:' = 'redis://{}'\n",
            all.address(),
            graphs.address()
        );
        std::fs::write(&file, text).unwrap_or_else(|error| panic!("{error}"));
        vec!["--config".into(), file.display().to_string()]
    });
    let proxy = proxy.unwrap_or_else(|error| panic!("{error}"));
    let mut client = RespClient::connect(proxy.address());
    for large in [0, 200_000] {
        for round in 0..3 {
            let query = format!("CREATE(:n{{of:'{}'}})", "x".repeat(large));
            let asked = |key: &str| request(&["GRAPH.QUERY", key, &query]);
            let made = client.exchange(asked("g:a"), 1).remove(0);
            assert!(matches!(made, Reply::Array(_)), "{large} {round}: {made:?}");
            let elsewhere = client.exchange(asked("a"), 1).remove(0);
            let text = elsewhere.error().unwrap_or_default();
            assert!(text.starts_with("ERR unknown command"), "{elsewhere:?}");
            assert_eq!(client.call("SET a 1"), Reply::ok());
        }
    }
    let count = client.call("GRAPH.QUERY g:a MATCH(n)RETURN(count(n))");
    assert!(format!("{count:?}").contains(":6"), "{count:?}");
}

/// A subpool that is wholly dead fails its own keys alone.
#[test]
fn dead_subpool_fails_its_own_keys_alone() {
    let served = ServedKinds::start(&some_server(), "single", &MIXED, 2);
    let alive = ["k", "w:k", "s:k", "c:s:k"];
    let mut client = served.client();
    for key in alive.into_iter().chain(["c:k"]) {
        assert_eq!(client.call(&format!("SET {key} 0")), Reply::ok());
    }
    for node in served.kinds.cluster.nodes() {
        node.kill9();
    }
    wait_until("keys of the lost Cluster fail", SOON, || {
        matches!(
            code(&client.call("SET c:k 1")),
            "NOTSENT" | "LOADING" | "UNKNOWN"
        )
    });
    let again = served.kinds.proxy("single", &MIXED, 2);
    for (before, (proxy, _)) in [(0, &served.proxy), (50, &again)] {
        let mut client = RespClient::connect(proxy.address());
        for round in 1..=50 {
            for key in alive {
                let value = Reply::Integer(before + round);
                assert_eq!(client.call(&format!("INCR {key}")), value, "{key}");
            }
        }
        let values = client.call(&format!("MGET {}", alive.join(" ")));
        assert_eq!(texts(&values).len(), 4);
        assert!(client.call("GET c:k").error().is_some());
        assert!(client.call("MGET k c:k").error().is_some());
        assert!(client.call("DBSIZE").error().is_some());
    }
}
