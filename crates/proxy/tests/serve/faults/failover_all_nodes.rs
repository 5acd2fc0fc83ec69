//! Requests for all nodes of a Cluster, while some nodes fail over.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use respool_testkit::client::{Reply, RespClient, counter, request, words};
use respool_testkit::fake::{Fakes, NodeRequest, info, range, shares};
use respool_testkit::servers::Proxy;
use respool_testkit::time::wait_until;
use respool_testkit::topologies::ClusterSettings;

use crate::target::respool;
use crate::topology::cluster::{
    Served, fail_over, key_in, primaries, some_server, with_every_server,
};

const SOON: Duration = Duration::from_secs(10);
/// The topology of before is still trusted after this time.
const CONFIRMED: Duration = Duration::from_millis(1_300);
const LIBRARY: &str = "#!lua name=lib\nredis.register_function('f', function() return 1 end)";

/// A request for all nodes goes to the replica that has taken over.
#[test]
fn all_node_request_goes_to_the_new_owner() {
    for reads in ["", "?reads=prefer-replica"] {
        let served = Served::start_with(&some_server(), ClusterSettings::default(), &[], reads);
        let mut client = served.client();
        let load = request(&["FUNCTION", "LOAD", LIBRARY]);
        // Redis 6.2 has no functions.
        let has_functions = client.exchange(load.clone(), 1) == [Reply::bulk("lib")];
        let asked = [
            (words("FLUSHALL"), Reply::ok()),
            (words("FUNCTION DELETE lib"), Reply::ok()),
            (load, Reply::bulk("lib")),
            (words("FUNCTION FLUSH"), Reply::ok()),
            (words("FLUSHDB"), Reply::ok()),
        ];
        // Each time another owner is a replica now, or again.
        for (number, (asked, answer)) in asked.into_iter().enumerate() {
            let asked_for = asked.escape_ascii().to_string();
            if asked_for.contains("FUNCTION") && !has_functions {
                continue;
            }
            for key in 0..60 {
                assert_eq!(client.call(&format!("SET key:{key} x")), Reply::ok());
            }
            let slot = *served.cluster.share(number % 3).start();
            let owner = served.cluster.owner(slot);
            let primary = owner.unwrap_or_else(|error| panic!("{error}"));
            let replica = (primary + 3) % 6;
            fail_over(&served.cluster, primary, replica);
            let began = Instant::now();
            assert_eq!(client.exchange(asked, 1), [answer], "{asked_for}");
            assert!(began.elapsed() < Duration::from_secs(5), "{asked_for}");
            if asked_for.contains("FLUSHALL") || asked_for.contains("FLUSHDB") {
                for key in 0..60 {
                    assert_eq!(client.call(&format!("GET key:{key}")), Reply::Null);
                }
            }
            served.whole();
        }
    }
}

/// Two owners. The first one refuses a request and is a replica of another node from then on.
struct Refusing {
    fakes: Fakes,
    client: RespClient,
    _proxy: Proxy,
}

impl Refusing {
    /// `new_owner` is the next owner of its slots; the third node has none before.
    fn start(new_owner: usize) -> Refusing {
        let is_replica = Arc::new(AtomicBool::new(false));
        let answer = move |asked: &NodeRequest<'_>| {
            let changed = is_replica.load(Ordering::SeqCst);
            let is_asked = matches!(asked.name(), "FLUSHALL" | "FUNCTION");
            match asked.name() {
                _ if is_asked && asked.node == 0 => {
                    is_replica.store(true, Ordering::SeqCst);
                    let text = "-READONLY You can't write against a read only replica.\r\n";
                    Some(text.to_owned())
                }
                "FUNCTION" => Some("$3\r\nlib\r\n".to_owned()),
                "CLUSTER" if asked.is("CLUSTER SLOTS") && changed => {
                    Some(owned(asked.all, [new_owner, 1], new_owner))
                }
                "CLUSTER" if asked.is("CLUSTER SLOTS") => Some(shares(&asked.all[..2])),
                "CLUSTER" if asked.is("CLUSTER INFO") && changed => Some(info(3, 2)),
                _ => None,
            }
        };
        let fakes = Fakes::start(3, answer);
        let (proxy, client) = before(&fakes);
        Refusing {
            fakes,
            client,
            _proxy: proxy,
        }
    }
}

/// CLUSTER SLOTS: the owners of the halves, with the first node as a replica of one of them.
fn owned(all: &[SocketAddr], owners: [usize; 2], followed: usize) -> String {
    let half = |place: usize| {
        let owner = owners[place];
        let entry = range(8_192 * place, 8_192 * place + 8_191, all[owner]);
        if owner != followed {
            return entry;
        }
        let replica = range(0, 0, all[0]);
        let node = replica.find("*3\r\n$").map(|at| &replica[at..]);
        format!(
            "{}{}",
            entry.replacen("*3", "*4", 1),
            node.unwrap_or_default()
        )
    };
    format!("*2\r\n{}{}", half(0), half(1))
}

/// The new owner runs a part that the old owner has refused, once.
#[test]
fn refused_part_runs_once_at_the_new_owner() {
    for (asked, answer) in [
        ("FLUSHALL", Reply::ok()),
        ("FUNCTION LOAD code", Reply::bulk("lib")),
    ] {
        let mut refusing = Refusing::start(2);
        assert_eq!(refusing.client.call(asked), answer);
        let asked_of = |node| refusing.fakes.asked_of(node);
        let count = |node| asked_of(node).iter().filter(|its| *its == asked).count();
        assert_eq!((count(1), count(2)), (1, 1), "{asked}");
    }
}

/// The share of an old owner counts as done if the new owner has run the request already. FLUSHALL
/// runs again: the new owner may have got the old owner's keys after its FLUSHALL.
#[test]
fn refused_part_is_done_if_the_new_owner_ran_it() {
    for (asked, behind, times) in [
        ("FUNCTION LOAD code", "", 1),
        ("FUNCTION LOAD code", "GET x", 1),
        ("FLUSHALL", "", 2),
        ("FLUSHALL", "GET x", 2),
    ] {
        let mut refusing = Refusing::start(1);
        let client = &mut refusing.client;
        let all = [asked, behind].into_iter().filter(|one| !one.is_empty());
        client.send(&all.flat_map(words).collect::<Vec<u8>>());
        let reply = client.reply();
        match asked {
            "FLUSHALL" => assert_eq!(reply, Reply::ok(), "{behind}"),
            _ => assert_eq!(reply, Reply::bulk("lib"), "{behind}"),
        }
        if !behind.is_empty() {
            assert_eq!(client.reply(), Reply::bulk("x"));
        }
        let all = refusing.fakes.asked_of(1);
        let count = all.iter().filter(|its| *its == asked).count();
        assert_eq!(count, times, "{asked} {behind}");
    }
}

/// A request for all nodes goes to those that own slots now, though no request for a moved slot has
/// met a MOVED.
#[test]
fn all_node_request_goes_to_current_owners_only() {
    let mut served = Served::start(&some_server(), primaries(), &["--threads=2"]);
    let joined = served.cluster.add_node();
    let joined = joined.unwrap_or_else(|error| panic!("{error}"));
    let mut clients: Vec<RespClient> = (0..6).map(|_| served.client()).collect();
    let keys: Vec<String> = (0..60).map(|key| format!("key:{key}")).collect();
    for key in &keys {
        assert_eq!(clients[0].call(&format!("SET {key} x")), Reply::ok());
    }
    let all = Reply::Integer(60);
    for client in &mut clients {
        assert_eq!(client.call("DBSIZE"), all);
    }
    for from in 0..2 {
        let its = |key: &&String| served.owner(key) == from;
        let moved: Vec<&String> = keys.iter().filter(its).take(8).collect();
        moved
            .into_iter()
            .for_each(|key| served.move_key(key, joined));
    }
    thread::sleep(CONFIRMED);
    for (number, client) in clients.iter_mut().enumerate() {
        let reply = match number % 3 {
            0 => client.call("DBSIZE"),
            1 => match client.call("KEYS key:*") {
                Reply::Array(keys) => Reply::Integer(keys.len() as i64),
                other => other,
            },
            _ => Reply::Integer(scanned(client)),
        };
        assert_eq!(reply, all, "{number}");
    }
    // Moves the remaining keys, so that the old owner has none.
    for key in &keys {
        if served.owner(key) != joined {
            served.move_key(key, joined);
        }
    }
    thread::sleep(CONFIRMED);
    assert_eq!(clients[5].call("FLUSHALL"), Reply::ok());
    for node in 0..=joined {
        let mut direct = RespClient::connect(served.cluster.node(node).address());
        assert_eq!(direct.call("DBSIZE"), Reply::Integer(0), "{node}");
    }
}

/// How many different keys SCAN finds.
fn scanned(client: &mut RespClient) -> i64 {
    let (mut cursor, mut found) = ("0".to_owned(), HashSet::new());
    loop {
        let Reply::Array(reply) = client.call(&format!("SCAN {cursor} COUNT 100")) else {
            panic!("no answer to SCAN");
        };
        let [Reply::Bulk(next), Reply::Array(keys)] = &reply[..] else {
            panic!("{reply:?}");
        };
        found.extend(keys.iter().map(|key| format!("{key:?}")));
        cursor = String::from_utf8_lossy(next).into_owned();
        if cursor == "0" {
            return found.len() as i64;
        }
    }
}

/// Frequent requests for all nodes cause one topology refresh a second at most.
#[test]
fn all_node_requests_refresh_once_a_second() {
    let fakes = Fakes::start(2, |asked| match asked.name() {
        "DBSIZE" => Some(":1\r\n".to_owned()),
        _ => None,
    });
    let (proxy, mut client) = before(&fakes);
    let refreshes = counter(&mut client, "topology_refreshes");
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        let asked: Vec<u8> = (0..100).flat_map(|_| words("DBSIZE")).collect();
        let replies = client.exchange(asked, 100);
        assert!(replies.iter().all(|reply| *reply == Reply::Integer(2)));
    }
    let seconds = began.elapsed().as_secs();
    let asked = counter(&mut client, "topology_refreshes") - refreshes;
    assert!(
        (2..=2 + seconds).contains(&asked),
        "{asked}: {}",
        proxy.log()
    );
}

/// Where no node tells the slot owners, all known nodes are asked.
#[test]
fn all_known_nodes_are_asked_without_a_topology() {
    let says_nothing = Arc::new(AtomicBool::new(false));
    let nothing = Arc::clone(&says_nothing);
    let fakes = Fakes::start(2, move |asked| match asked.name() {
        "CLUSTER" if nothing.load(Ordering::SeqCst) => Some("-NOPERM no\r\n".to_owned()),
        "DBSIZE" => Some(":1\r\n".to_owned()),
        _ => None,
    });
    let (_proxy, mut client) = before(&fakes);
    says_nothing.store(true, Ordering::SeqCst);
    thread::sleep(CONFIRMED);
    // respool may use either list: a node that refuses one may still answer the other.
    let asked = || fakes.count("CLUSTER SLOTS") + fakes.count("CLUSTER SHARDS");
    let before = asked();
    assert_eq!(client.call("DBSIZE"), Reply::Integer(2));
    assert!(asked() > before);
}

/// A respool with one worker that knows these nodes, and a client.
fn before(fakes: &Fakes) -> (Proxy, RespClient) {
    let backend = format!("--backend=redis-cluster://{}", fakes.addresses()[1]);
    let proxy = Proxy::start(&respool(), &[&backend, "--threads=1"]);
    let proxy = proxy.unwrap_or_else(|error| panic!("{error}"));
    wait_until("the owners are known", SOON, || {
        proxy.log().contains("2 nodes own its slots")
    });
    let client = RespClient::connect(proxy.address());
    (proxy, client)
}

/// A client that blocks at an owner gets its element from the replica that takes over.
#[test]
fn blocked_client_is_served_by_the_new_owner() {
    with_every_server(|binary| {
        // Some servers answer MOVED then, and others UNBLOCKED.
        let settings = ClusterSettings::default();
        let served = Served::start(binary, settings, &["--threads=2"]);
        let mut other = served.client();
        let key = key_in(|slot| served.cluster.share(0).contains(&slot), 0);
        let asked = [
            format!("BLPOP {{{key}}}list 0"),
            format!("BLMOVE {{{key}}}from {{{key}}}to LEFT RIGHT 0"),
            format!("BZPOPMIN {{{key}}}sorted 0"),
            format!("XREAD BLOCK 0 STREAMS {{{key}}}stream $"),
            // The error from another node reaches the client.
            format!("BLPOP {{{key}}}nobody 0"),
        ];
        let mut waiting: Vec<RespClient> = asked.iter().map(|_| served.client()).collect();
        let Reply::Integer(last) = waiting[4].call("CLIENT ID") else {
            panic!("no id");
        };
        for (client, asked) in waiting.iter_mut().zip(&asked) {
            client.send(&words(asked));
        }
        let all_wait = |node: usize| {
            wait_until("five clients are blocked at the node", SOON, || {
                let blocked = served.cluster.node(node).info("clients", "blocked_clients");
                blocked.is_ok_and(|blocked| blocked == "5")
            });
        };
        all_wait(0);
        fail_over(&served.cluster, 0, 3);
        all_wait(3);
        let unblocked = other.call(&format!("CLIENT UNBLOCK {last} ERROR"));
        assert_eq!(unblocked, Reply::Integer(1));
        for asked in [
            format!("RPUSH {{{key}}}list x"),
            format!("RPUSH {{{key}}}from x"),
            format!("ZADD {{{key}}}sorted 1 x"),
            format!("XADD {{{key}}}stream 1-1 field x"),
        ] {
            assert!(other.call(&asked).error().is_none(), "{asked}");
        }
        for (number, client) in waiting.iter_mut().enumerate() {
            let reply = client.reply();
            let text = format!("{reply:?}");
            match number {
                4 => assert!(text.contains("UNBLOCKED client unblocked via"), "{text}"),
                _ => assert!(reply.error().is_none(), "{}: {text}", asked[number]),
            }
        }
        let moved = other.call(&format!("LRANGE {{{key}}}to 0 -1"));
        assert_eq!(moved, Reply::Array(vec![Reply::bulk("x")]));
    });
}
