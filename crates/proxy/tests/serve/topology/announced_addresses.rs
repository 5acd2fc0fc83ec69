//! Cluster nodes with other addresses than their own: host names, forwarded ports, IPv6, or no
//! endpoint at all. And the address that respool announces to its clients.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use respool_protocol::cluster::View;
use respool_protocol::encode;
use respool_protocol::slot::hash_slot;
use respool_testkit::client::{Reply, RespClient, counter};
use respool_testkit::fault_proxy::{FaultMode, FaultProxy};
use respool_testkit::servers::{self, Proxy, ReservedPort, any_server, installed};
use respool_testkit::time::wait_until;
use respool_testkit::topologies::{ClusterSettings, TestCluster};

use crate::target::respool;

const SOON: Duration = Duration::from_secs(20);

/// Three nodes with these arguments.
fn cluster(binary: &Path, args: &[&str]) -> TestCluster {
    let settings = ClusterSettings {
        replicas: 0,
        args: args.iter().map(|&arg| arg.to_owned()).collect(),
        ..ClusterSettings::default()
    };
    TestCluster::start(binary, settings).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs `body` with every server since version 7: these can announce names and other ports.
fn from_7_on(body: impl Fn(&Path)) {
    for binary in installed() {
        let said = servers::version(&binary).unwrap_or_else(|error| panic!("{error}"));
        if !said.contains(" 6.") {
            body(&binary);
        }
    }
}

fn order(cluster: &TestCluster, node: usize, words: &[&str]) {
    let ordered = cluster.node(node).ask_ok(words);
    ordered.unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

/// Waits until all nodes give the expected addresses of all nodes, as clients read them; `asked`
/// stands for a node without endpoint.
fn wait_until_said(cluster: &TestCluster, expected: &[(&str, u16)]) {
    wait_until("the nodes know each other's places", SOON, || {
        cluster.nodes().iter().all(|node| {
            let mut asked = RespClient::connect(node.address());
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

/// A respool with one seed node finds the others at these addresses, and is redirected there when a
/// slot moves.
fn is_reached_there(cluster: &TestCluster, seed: &str, places: &[String]) {
    let backend = format!("--backend=redis-cluster://{seed}");
    let args = [backend.as_str(), "--threads=1"];
    let proxy = Proxy::start(&respool(), &args).unwrap_or_else(|error| panic!("{error}"));
    let mut client = RespClient::connect(proxy.address());
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
        assert_eq!(set, Reply::ok(), "{lines:?}");
    }
    for number in 0..60 {
        let got = client.call(&format!("GET key:{number}"));
        assert_eq!(got, Reply::bulk(number.to_string()), "{lines:?}");
    }
    for node in cluster.nodes() {
        let held = RespClient::connect(node.address()).call("DBSIZE");
        assert!(matches!(held, Reply::Integer(1..)), "{held:?}");
    }
    assert_eq!(counter(&mut client, "redirected_moved"), 0);
    let slot = hash_slot(b"key:1");
    let from = cluster
        .owner(slot)
        .unwrap_or_else(|error| panic!("{error}"));
    let moved = cluster.move_slots([slot], from, (from + 1) % 3);
    moved.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(client.call("GET key:1"), Reply::bulk("1"));
    assert_eq!(counter(&mut client, "redirected_moved"), 1);
    assert_eq!(servers_of(&mut client).len(), places.len());
    let log = proxy.log();
    assert!(!log.contains("panicked at"), "{log}");
}

/// The lines of INFO about servers.
fn servers_of(client: &mut RespClient) -> Vec<String> {
    let Reply::Bulk(text) = client.call("INFO respool") else {
        panic!("INFO is a text");
    };
    let text = String::from_utf8(text).expect("INFO is ASCII");
    let lines = text
        .lines()
        .filter(|line| line.starts_with("respool_server_"));
    let said = lines.filter_map(|line| line.split_once(':'));
    said.map(|(_, said)| said.to_owned()).collect()
}

fn ports(cluster: &TestCluster) -> Vec<u16> {
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

/// A node that announces no endpoint is reached at the host that was asked.
#[test]
fn node_without_endpoint_is_at_the_asked_host() {
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
        let fault_proxies: Vec<FaultProxy> = cluster
            .addresses()
            .into_iter()
            .map(|address| FaultProxy::start(address, FaultMode::Pass))
            .collect();
        for (node, fault_proxy) in fault_proxies.iter().enumerate() {
            let port = fault_proxy.address().port().to_string();
            order(
                &cluster,
                node,
                &["CONFIG", "SET", "cluster-announce-port", &port],
            );
        }
        let passed = fault_proxies
            .iter()
            .map(|fault_proxy| fault_proxy.address().port());
        let said: Vec<_> = passed.map(|port| ("127.0.0.1", port)).collect();
        wait_until_said(&cluster, &said);
        let places: Vec<_> = said
            .iter()
            .map(|(host, port)| format!("{host}:{port}"))
            .collect();
        is_reached_there(&cluster, &places[2], &places);
        assert!(
            fault_proxies
                .iter()
                .all(|fault_proxy| fault_proxy.accepted() > 0)
        );
    });
}

#[test]
fn nodes_at_ipv6_addresses_are_reached_there() {
    if let Err(error) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) {
        servers::leave_out("ipv6", format!("this machine has no IPv6: {error}"));
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

/// A client of this connection that asks for the nodes gets one, at this host and port.
fn is_told(mut stream: impl Read + Write, host: &str, port: u16, announced: &str) {
    let asked: &[&[&str]] = &[
        &["CLUSTER", "SLOTS"],
        &["CLUSTER", "SHARDS"],
        &["CLUSTER", "NODES"],
        &["QUIT"],
    ];
    let mut requests = Vec::new();
    asked
        .iter()
        .for_each(|words| encode::request(&mut requests, words));
    let sent = stream.write_all(&requests);
    sent.unwrap_or_else(|error| panic!("{announced}: {error}"));
    let mut said = String::new();
    let read = stream.read_to_string(&mut said);
    read.unwrap_or_else(|error| panic!("{announced}: {error}"));
    let bulk = format!("${}\r\n{host}\r\n", host.len());
    for part in [
        format!(":16383\r\n*4\r\n{bulk}:{port}\r\n$40\r\n"),
        format!("ip\r\n{bulk}"),
        format!("endpoint\r\n{bulk}"),
        format!("port\r\n:{port}\r\n"),
        format!(" {host}:{port}@0 myself,master - 0 0 1 connected 0-16383\n"),
    ] {
        assert_eq!(said.matches(&part).count(), 1, "{announced}: {part}{said}");
    }
}

/// Clients that ask for nodes get the address that respool announces.
#[test]
fn clients_get_the_announced_address_of_respool() {
    let cluster = cluster(&any_server(), &[]);
    let backend = format!("redis-cluster://{}", cluster.node(0).address());
    let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let [socket, beside] = ["a.sock", "b.sock"].map(|name| folder.path().join(name));
    let second = ReservedPort::new().unwrap_or_else(|error| panic!("{error}"));
    let second = SocketAddr::from(([127, 0, 0, 2], second.port));
    let tcp = |address| TcpStream::connect(address).unwrap_or_else(|error| panic!("{error}"));
    let unix = |path: &Path| UnixStream::connect(path).unwrap_or_else(|error| panic!("{error}"));

    for (announced, hosts, port) in [
        ("", ["127.0.0.1", "127.0.0.2", ""], None),
        ("cache.example:7000", ["cache.example"; 3], Some(7000)),
        ("[2001:db8::7]:7000", ["2001:db8::7"; 3], Some(7000)),
        ("203.0.113.7", ["203.0.113.7"; 3], None),
    ] {
        let mut args = vec![
            format!("--listen={second}"),
            format!("--listen=unix:{}", socket.display()),
            format!("--backend={backend}"),
        ];
        if !announced.is_empty() {
            args.push(format!("--announce={announced}"));
        }
        let proxy = Proxy::start(&respool(), &args).unwrap_or_else(|error| panic!("{error}"));
        let first = proxy.address();
        let port_of = |listener: SocketAddr| port.unwrap_or(listener.port());
        is_told(tcp(first), hosts[0], port_of(first), announced);
        is_told(tcp(second), hosts[1], port_of(second), announced);
        is_told(unix(&socket), hosts[2], port_of(first), announced);
    }

    // A pool may have an address of its own. A client of a Unix socket gets no host without a port.
    let file = folder.path().join("respool.toml");
    let proxy = Proxy::start_with(&respool(), |port| {
        let text = format!(
            "announce = 'cache.example'\n\
             [pool.all]\nlisten = ['127.0.0.1:{port}', 'unix:{}']\nbackend = '{backend}'\n\
             [pool.own]\nlisten = ['{second}', 'unix:{}']\nbackend = '{backend}'\nannounce = 'own.example:7001'\n",
            socket.display(),
            beside.display(),
        );
        std::fs::write(&file, text).unwrap_or_else(|error| panic!("{error}"));
        vec!["--config".into(), file.display().to_string()]
    });
    let proxy = proxy.unwrap_or_else(|error| panic!("{error}"));
    let first = proxy.address();
    is_told(tcp(first), "cache.example", first.port(), "for all");
    is_told(unix(&socket), "", 0, "for all");
    is_told(tcp(second), "own.example", 7001, "its own");
    is_told(unix(&beside), "own.example", 7001, "its own");
}
