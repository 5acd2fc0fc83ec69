//! Nodes of another Cluster among those of ours: respool does not follow their topology.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use respool_protocol::slot::SLOTS;
use respool_testkit::client::{Reply, RespClient};
use respool_testkit::fake::{Fakes, range, shares};
use respool_testkit::servers::Proxy;
use respool_testkit::time::wait_until;
use respool_testkit::topologies::{ClusterSettings, Node, TestCluster};

use crate::target::respool;
use crate::topology::cluster::{SOON, Served, some_server};

/// The log says so once for each worker, and for each address.
const TOLD: &str = "answers for another Cluster";

fn nodes(primaries: usize) -> ClusterSettings {
    ClusterSettings {
        primaries,
        replicas: 0,
        args: [
            // A lost node leaves only its own slots uncovered.
            ["--cluster-require-full-coverage", "no"],
            // A single node cannot learn its own address from another one.
            ["--cluster-announce-ip", "127.0.0.1"],
        ]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .collect(),
        ..ClusterSettings::default()
    }
}

/// From now on the server at a node's address is a Cluster of its own, of one node, with a later
/// epoch than all others.
fn replace(node: &mut Node) {
    node.kill9();
    let _ = std::fs::remove_file(node.dir().join("nodes.conf"));
    node.restart().unwrap_or_else(|error| panic!("{error}"));
    let mut slots = vec!["CLUSTER".to_owned(), "ADDSLOTS".to_owned()];
    slots.extend((0..SLOTS).map(|slot| slot.to_string()));
    let epoch = ["CLUSTER", "SET-CONFIG-EPOCH", "100"].map(str::to_owned);
    for asked in [epoch.to_vec(), slots] {
        node.ask_ok(&asked)
            .unwrap_or_else(|error| panic!("{error}"));
    }
}

fn keys_at(node: &Node) -> i64 {
    match node.ask_ok(&["DBSIZE"]) {
        Ok(Reply::Integer(count)) => count,
        other => panic!("{other:?}"),
    }
}

fn started(seeds: &[SocketAddr], threads: usize) -> Proxy {
    let seeds: Vec<String> = seeds.iter().map(SocketAddr::to_string).collect();
    let args = [
        format!("--backend=redis-cluster://{}", seeds.join(",")),
        format!("--threads={threads}"),
        "--log-level=debug".to_owned(),
    ];
    Proxy::start(&respool(), &args).unwrap_or_else(|error| panic!("{error}"))
}

/// A seed node of another Cluster does not take the pool over, though its epoch is later.
#[test]
fn foreign_seed_node_does_not_take_the_pool_over() {
    let binary = some_server();
    let start = |primaries| TestCluster::start(&binary, nodes(primaries));
    let [ours, mut theirs] = [2, 1].map(|primaries| start(primaries).expect("a Cluster"));
    replace(theirs.node_mut(0));
    let strange = theirs.node(0).address();
    for (threads, at) in [(1, 0), (3, 2)] {
        let mut seeds = ours.addresses();
        seeds.insert(at, strange);
        let proxy = started(&seeds, threads);
        let told = || {
            let log = proxy.log();
            let lines = log.lines().filter(|line| line.contains(TOLD));
            lines
                .filter(|line| line.contains(&strange.to_string()))
                .count()
        };
        wait_until("every worker has logged the error", SOON, || {
            told() == threads
        });
        let mut clients: Vec<RespClient> = (0..6)
            .map(|_| RespClient::connect(proxy.address()))
            .collect();
        for round in 0..3 {
            for (number, client) in clients.iter_mut().enumerate() {
                for key in 0..30 {
                    let set = format!("SET {number}:{key} {round}");
                    assert_eq!(client.call(&set), Reply::ok(), "{}", proxy.log());
                }
            }
        }
        assert_eq!(keys_at(theirs.node(0)), 0, "{}", proxy.log());
        assert_eq!(keys_at(ours.node(0)) + keys_at(ours.node(1)), 180);
        // Later refreshes do not log it again.
        thread::sleep(Duration::from_millis(1_500));
        assert_eq!(clients[0].call("DBSIZE"), Reply::Integer(180));
        assert_eq!(told(), threads, "{}", proxy.log());
        let log = proxy.log();
        let of_strange = log.lines().filter(|line| line.contains(TOLD));
        let of_strange = of_strange.filter(|line| line.contains(&strange.to_string()));
        let is_news = |line: &&str| line.contains(" INFO ");
        assert_eq!(of_strange.filter(is_news).count(), 1, "{log}");
    }
}

/// A Cluster of which every node was replaced is served as the new one.
#[test]
fn fully_replaced_cluster_is_followed() {
    let mut served = Served::start(&some_server(), nodes(1), &["--threads=2"]);
    let mut client = served.client();
    assert_eq!(client.call("SET key x"), Reply::ok());
    replace(served.cluster.node_mut(0));
    wait_until("the new node answers", SOON, || {
        client.call("GET key") == Reply::Null
    });
}

/// Nodes that have not met yet are separate Clusters. After they have met, respool serves one.
#[test]
fn nodes_that_have_not_met_yet_are_one_cluster_when_they_have() {
    let have_met = Arc::new(AtomicBool::new(false));
    let meet = Arc::clone(&have_met);
    let fakes = Fakes::start(3, move |asked| {
        let first = |node: usize| 16_384 * node / 3;
        let (node, own) = (asked.node, asked.all[asked.node]);
        let its_own = range(first(node), first(node + 1) - 1, own);
        asked
            .is("CLUSTER SLOTS")
            .then(|| match meet.load(Ordering::SeqCst) {
                true => shares(asked.all),
                false => format!("*1\r\n{its_own}"),
            })
    });
    let proxy = started(fakes.addresses(), 1);
    wait_until("respool accepts the slots of one node", SOON, || {
        proxy.log().contains("own its slots")
    });
    have_met.store(true, Ordering::SeqCst);
    let mut client = RespClient::connect(proxy.address());
    wait_until("all nodes get requests", SOON, || {
        let got = (0..30)
            .map(|key| client.call(&format!("GET key:{key}")) == Reply::bulk(format!("key:{key}")));
        let all = got.collect::<Vec<bool>>().into_iter().all(|got| got);
        all && (0..3).all(|node| {
            fakes
                .asked_of(node)
                .iter()
                .any(|asked| asked.starts_with("GET"))
        })
    });
}
