//! Nodes of a Cluster that are reached elsewhere than where they listen: by a name, at a port that is passed on, at an IPv6
//! address; or that do not say where.

use std::net::{Ipv6Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use respool_lab::servers::{self, Proxy};
use respool_lab::topologies::{Cluster, ClusterSettings};
use respool_protocol::cluster::View;
use respool_protocol::encode;
use respool_protocol::slot::hash_slot;

use super::client::{Client, Value};
use super::coalescing::counter;
use super::relay::{Mode, Relay};
use super::target::{installed, respool, wait_until};

const SOON: Duration = Duration::from_secs(20);

/// Three nodes with these arguments.
fn cluster(binary: &Path, args: &[&str]) -> Cluster {
    let settings = ClusterSettings {
        replicas: 0,
        args: args.iter().map(|&arg| arg.to_owned()).collect(),
        ..ClusterSettings::default()
    };
    Cluster::start(binary, settings).unwrap_or_else(|error| panic!("{error}"))
}

/// Those that know of names and of ports that change.
fn from_7_on(body: impl Fn(&Path)) {
    for binary in installed() {
        let said = servers::version(&binary).unwrap_or_else(|error| panic!("{error}"));
        if !said.contains(" 6.") {
            body(&binary);
        }
    }
}

fn order(cluster: &Cluster, node: usize, words: &[&str]) {
    let ordered = cluster.node(node).order(words);
    ordered.unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

/// Waits until all nodes say of all where to reach them, as clients read it; `asked`: whoever does not say.
fn wait_until_said(cluster: &Cluster, expected: &[(&str, u16)]) {
    wait_until("the nodes know each other's places", SOON, || {
        cluster.nodes().iter().all(|node| {
            let mut asked = Client::connect(node.address());
            let mut request = Vec::new();
            encode::request(&mut request, &["CLUSTER", "SLOTS"]);
            asked.send(&request);
            let view = View::from_slots(&asked.reply_bytes(), "asked");
            let view = view.unwrap_or_else(|error| panic!("{error}"));
            let places = view
                .nodes()
                .iter()
                .filter_map(|node| node.endpoint.as_ref());
            let said: Vec<(String, u16)> = places.map(|at| (at.host.clone(), at.port)).collect();
            let is_said = |(host, port): &(&str, u16)| said.contains(&((*host).to_owned(), *port));
            said.len() == expected.len() && expected.iter().all(is_said)
        })
    });
}

/// A respool that is told of one node finds the others at these places, and is sent there when a slot moves.
fn is_reached_there(cluster: &Cluster, seed: &str, places: &[String]) {
    let backend = format!("--backend=redis-cluster://{seed}");
    let args = [backend.as_str(), "--threads=1"];
    let proxy = Proxy::start(&respool(), &args).unwrap_or_else(|error| panic!("{error}"));
    let mut client = Client::connect(proxy.address());
    let mut lines = Vec::new();
    wait_until("all nodes are reached", SOON, || {
        lines = servers_of(&mut client);
        lines.len() == places.len()
            && lines.iter().all(|line| line.contains(",state=up,"))
            && places.iter().all(|place| {
                lines
                    .iter()
                    .any(|line| line.starts_with(&format!("address={place},")))
            })
    });
    for line in &lines {
        assert!(line.contains(",role=primary,"), "{line}");
        assert!(line.contains(",slots=546"), "{line}");
    }
    for number in 0..60 {
        let set = client.call(&format!("SET key:{number} {number}"));
        assert_eq!(set, Value::ok(), "{lines:?}");
    }
    for number in 0..60 {
        let got = client.call(&format!("GET key:{number}"));
        assert_eq!(got, Value::bulk(number.to_string()), "{lines:?}");
    }
    for node in cluster.nodes() {
        let held = Client::connect(node.address()).call("DBSIZE");
        assert!(matches!(held, Value::Integer(1..)), "{held:?}");
    }
    assert_eq!(counter(&mut client, "redirected_moved"), 0);
    let slot = hash_slot(b"key:1");
    let from = cluster
        .owner(slot)
        .unwrap_or_else(|error| panic!("{error}"));
    let moved = cluster.move_slots([slot], from, (from + 1) % 3);
    moved.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(client.call("GET key:1"), Value::bulk("1"));
    assert_eq!(counter(&mut client, "redirected_moved"), 1);
    assert_eq!(servers_of(&mut client).len(), places.len());
    let log = proxy.log();
    assert!(!log.contains("panicked at"), "{log}");
}

/// What INFO says of servers, one a line.
fn servers_of(client: &mut Client) -> Vec<String> {
    let Value::Bulk(text) = client.call("INFO respool") else {
        panic!("INFO is a text");
    };
    let text = String::from_utf8(text).expect("INFO is ASCII");
    let lines = text
        .lines()
        .filter(|line| line.starts_with("respool_server_"));
    let said = lines.filter_map(|line| line.split_once(':'));
    said.map(|(_, said)| said.to_owned()).collect()
}

fn ports(cluster: &Cluster) -> Vec<u16> {
    let addresses = cluster.addresses();
    addresses.iter().map(|address| address.port()).collect()
}

#[test]
fn nodes_that_announce_a_host_name_are_reached_by_it() {
    from_7_on(|binary| {
        let args = [
            "--cluster-announce-hostname",
            "localhost",
            "--cluster-preferred-endpoint-type",
            "hostname",
        ];
        let cluster = cluster(binary, &args);
        let ports = ports(&cluster);
        let said: Vec<_> = ports.iter().map(|port| ("localhost", *port)).collect();
        wait_until_said(&cluster, &said);
        let places: Vec<_> = ports
            .iter()
            .map(|port| format!("localhost:{port}"))
            .collect();
        is_reached_there(&cluster, &format!("127.0.0.1:{}", ports[0]), &places);
    });
}

#[test]
fn nodes_that_do_not_say_where_they_are_are_where_the_one_is_that_was_asked() {
    from_7_on(|binary| {
        let args = ["--cluster-preferred-endpoint-type", "unknown-endpoint"];
        let cluster = cluster(binary, &args);
        let ports = ports(&cluster);
        let said: Vec<_> = ports.iter().map(|port| ("asked", *port)).collect();
        wait_until_said(&cluster, &said);
        for host in ["localhost", "127.0.0.1"] {
            let places: Vec<_> = ports.iter().map(|port| format!("{host}:{port}")).collect();
            is_reached_there(&cluster, &places[1], &places);
            let slot = hash_slot(b"key:1");
            let now = cluster
                .owner(slot)
                .unwrap_or_else(|error| panic!("{error}"));
            let home = (0..3).find(|&node| cluster.share(node).contains(&slot));
            let back = cluster.move_slots([slot], now, home.expect("all slots are shared"));
            back.unwrap_or_else(|error| panic!("{error}"));
        }
    });
}

#[test]
fn nodes_behind_ports_that_are_passed_on_are_reached_by_those() {
    from_7_on(|binary| {
        let cluster = cluster(binary, &[]);
        let relays: Vec<Relay> = cluster
            .addresses()
            .into_iter()
            .map(|address| Relay::start(address, Mode::Pass))
            .collect();
        for (node, relay) in relays.iter().enumerate() {
            let port = relay.address().port().to_string();
            order(
                &cluster,
                node,
                &["CONFIG", "SET", "cluster-announce-port", &port],
            );
        }
        let passed = relays.iter().map(|relay| relay.address().port());
        let said: Vec<_> = passed.map(|port| ("127.0.0.1", port)).collect();
        wait_until_said(&cluster, &said);
        let places: Vec<_> = said
            .iter()
            .map(|(host, port)| format!("{host}:{port}"))
            .collect();
        is_reached_there(&cluster, &places[2], &places);
        assert!(relays.iter().all(|relay| relay.accepted() > 0));
    });
}

#[test]
fn nodes_at_ipv6_addresses_are_reached_there() {
    if let Err(error) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) {
        eprintln!("skipped: this machine has no IPv6: {error}");
        return;
    }
    for binary in installed() {
        let cluster = cluster(&binary, &["--bind", "127.0.0.1", "::1"]);
        for node in 0..3 {
            order(
                &cluster,
                node,
                &["CONFIG", "SET", "cluster-announce-ip", "::1"],
            );
        }
        let ports = ports(&cluster);
        let said: Vec<_> = ports.iter().map(|port| ("::1", *port)).collect();
        wait_until_said(&cluster, &said);
        let places: Vec<_> = ports.iter().map(|port| format!("[::1]:{port}")).collect();
        is_reached_there(&cluster, &places[0], &places);
    }
}
