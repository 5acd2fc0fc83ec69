//! Servers that respool reaches over TLS: one, several, a Cluster, Sentinels. Wrong certificates.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use respool_protocol::slot::hash_slot;
use respool_testkit::certificates::{TestCa, Validity};
use respool_testkit::client::{Reply, RespClient, counter, text};
use respool_testkit::say;
use respool_testkit::servers::{
    Process, Proxy, Ready, ReservedPort, ServerProcess, any_server, leave_out,
};
use respool_testkit::time::wait_until;
use respool_testkit::topologies::{ClusterSettings, TestCluster, TestTls};

use super::served::{HERE, ca, proxy, sign};
use crate::admin::metrics::{get, pages_of};
use crate::topology::cluster::primaries;

/// How soon a change must be seen.
const SOON: Duration = Duration::from_secs(10);

/// A server with TLS, and its port with TLS.
pub(super) struct SecureServer {
    server: ServerProcess,
    port: ReservedPort,
}

impl SecureServer {
    pub(super) fn start(binary: &Path, tls: &TestTls) -> SecureServer {
        let (port, args) = tls.listen().unwrap_or_else(|error| panic!("{error}"));
        let server = ServerProcess::start(binary, &args);
        let server = server.unwrap_or_else(|error| panic!("{error}"));
        SecureServer { server, port }
    }

    pub(super) fn tls_address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port.port))
    }
}

/// The server of this system, if it has TLS.
pub(super) fn server_with_tls() -> Option<PathBuf> {
    let binary = any_server();
    // The names of its options are in the program only if TLS is.
    let program = std::fs::read(&binary).unwrap_or_else(|error| panic!("{error}"));
    let option = b"tls-cert-file";
    let has_tls = program.windows(option.len()).any(|bytes| bytes == option);
    if !has_tls {
        leave_out("tls", format!("{} has no TLS", binary.display()));
    }
    has_tls.then_some(binary)
}

/// The TLS of servers with a certificate of this CA.
pub(super) fn tls_of(ca: &TestCa, hosts: &[&str], asks_clients: bool) -> TestTls {
    TestTls {
        identity: sign(ca, "server", hosts),
        ca: ca.file.clone(),
        asks_clients,
    }
}

/// A respool before one server, at which requests fail at once while the server is away.
pub(super) fn before(url: &str, args: &[String]) -> Proxy {
    let mut all = vec![
        "--threads=1".to_owned(),
        "--outage-hold-ms=0".to_owned(),
        format!("--backend={url}"),
    ];
    all.extend_from_slice(args);
    proxy(&all)
}

fn with_ca(ca: &TestCa) -> String {
    format!("--server-tls-ca={}", ca.file.display())
}

/// Waits until a request is answered.
pub(super) fn wait_until_served(proxy: &Proxy) -> RespClient {
    let mut client = RespClient::connect(proxy.address());
    wait_until("a request is answered", SOON, || {
        client.call("SET key value") == Reply::ok()
    });
    client
}

/// Requests of all sizes pass, with a certificate of respool where the server asks for one.
#[test]
fn server_with_tls_is_reached() {
    let Some(binary) = server_with_tls() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let ca = ca(folder.path(), "own");
    for asks_clients in [false, true] {
        let server = SecureServer::start(&binary, &tls_of(&ca, &HERE, asks_clients));
        let mut args = vec![with_ca(&ca)];
        if asks_clients {
            let own = sign(&ca, "respool", &["respool"]);
            args.push(format!("--server-tls-cert={}", own.cert.display()));
            args.push(format!("--server-tls-key={}", own.key.display()));
        }
        let proxy = before(&format!("rediss://{}", server.tls_address()), &args);
        let mut client = wait_until_served(&proxy);
        for size in [1, 16_384, 16_385, 1_000_000, 9_000_000] {
            let value = vec![b'v'; size];
            let set = client.call_args(&[&b"SET"[..], b"large", &value]);
            assert_eq!(set, Reply::ok(), "{size}");
            assert!(client.call("GET large") == Reply::Bulk(value), "{size}");
        }
        let mut direct = RespClient::connect(server.server.address());
        assert_eq!(direct.call("GET key"), Reply::bulk("value"));
    }
}

/// The error of a request, the log and `/ready` say why a server is not reached. Each case has its
/// own words.
#[test]
fn wrong_certificate_is_named_in_the_error() {
    let Some(binary) = server_with_tls() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let own = ca(folder.path(), "own");
    let other = ca(folder.path(), "other");
    let good = SecureServer::start(&binary, &tls_of(&own, &HERE, false));
    let strict = SecureServer::start(&binary, &tls_of(&own, &HERE, true));
    let elsewhere = SecureServer::start(&binary, &tls_of(&own, &["redis.example"], false));
    let expired = TestTls {
        identity: own.sign_for("expired", &HERE, Validity::Past).unwrap(),
        ..tls_of(&own, &HERE, false)
    };
    let expired = SecureServer::start(&binary, &expired);
    let secure = |address: SocketAddr| format!("rediss://{address}");
    for (url, args, words) in [
        (
            secure(good.tls_address()),
            vec![with_ca(&other)],
            "no trusted CA",
        ),
        (secure(elsewhere.tls_address()), vec![with_ca(&own)], "name"),
        (
            secure(good.tls_address()),
            vec![with_ca(&own), "--server-tls-name=redis.example".into()],
            "name",
        ),
        (
            secure(expired.tls_address()),
            vec![with_ca(&own)],
            "expired",
        ),
        (
            secure(strict.tls_address()),
            vec![with_ca(&own)],
            "certificate",
        ),
        // A server without TLS waits for the rest of a request.
        (
            secure(good.server.address()),
            vec![with_ca(&own)],
            "does it speak TLS at this port?",
        ),
    ] {
        let args = [args, vec!["--metrics-listen=127.0.0.1:0".to_owned()]].concat();
        let proxy = before(&url, &args);
        let mut client = RespClient::connect(proxy.address());
        wait_until(words, SOON, || {
            let reply = client.call("GET key");
            reply.error().is_some_and(|text| text.contains(words))
        });
        wait_until("the log says it, too", SOON, || proxy.log().contains(words));
        wait_until("so does /ready", SOON, || {
            let page = get(pages_of(&proxy), "/ready");
            page.status == 503 && page.body.contains(words)
        });
    }
}

/// Certificates are not checked only if an option says so, and the log warns of it. A configured
/// name takes the place of the host.
#[test]
fn checks_are_changed_by_options_alone() {
    let Some(binary) = server_with_tls() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let own = ca(folder.path(), "own");
    let server = SecureServer::start(&binary, &tls_of(&own, &["redis.example"], false));
    let url = format!("rediss://{}", server.tls_address());
    let named = [with_ca(&own), "--server-tls-name=redis.example".into()];
    wait_until_served(&before(&url, &named));
    let unchecked = before(&url, &["--server-tls-verify=no".into()]);
    wait_until_served(&unchecked);
    let log = unchecked.log();
    let warnings = log.matches("are not checked (--server-tls-verify)").count();
    assert_eq!(warnings, 1, "{log}");
}

/// A server whose port has TLS is not reached without it, and the error names the other scheme.
#[test]
fn plain_url_of_a_port_with_tls_fails() {
    let Some(binary) = server_with_tls() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let server = SecureServer::start(&binary, &tls_of(&ca(folder.path(), "own"), &HERE, false));
    let proxy = before(&format!("redis://{}", server.tls_address()), &[]);
    let mut client = RespClient::connect(proxy.address());
    let mut last = None;
    wait_until("the error names rediss", SOON, || {
        last = client.call("GET key").error().map(str::to_owned);
        last.as_ref().is_some_and(|text| text.contains("rediss"))
    });
    say(&format!("without TLS at a port with TLS: {last:?}"));
}

/// Keys are divided among servers with TLS as among others.
#[test]
fn shards_are_reached_with_tls() {
    let Some(binary) = server_with_tls() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let ca = ca(folder.path(), "own");
    let tls = tls_of(&ca, &HERE, false);
    let servers = [(); 3].map(|()| SecureServer::start(&binary, &tls));
    let hosts = servers.each_ref().map(|one| one.tls_address().to_string());
    let url = format!("rediss-sharded://{}", hosts.join(","));
    let proxy = before(&url, &[with_ca(&ca)]);
    let mut client = wait_until_served(&proxy);
    for key in 0..60 {
        wait_until("each server is reached", SOON, || {
            client.call(&format!("SET key:{key} {key}")) == Reply::ok()
        });
    }
    for server in &servers {
        let size = RespClient::connect(server.server.address()).call("DBSIZE");
        assert!(matches!(size, Reply::Integer(1..)), "{size:?}");
    }
}

/// A Cluster of nodes with TLS, and respool before it.
fn cluster_with_tls(binary: &Path, ca: &TestCa) -> (TestCluster, Proxy) {
    let settings = ClusterSettings {
        // The nodes are clients of each other on the bus, and show the same certificate.
        tls: Some(tls_of(ca, &HERE, false)),
        ..primaries()
    };
    let cluster = TestCluster::start(binary, settings);
    let cluster = cluster.unwrap_or_else(|error| panic!("{error}"));
    let seed = cluster.node(0).tls_address().expect("nodes with TLS");
    let proxy = before(&format!("rediss-cluster://{seed}"), &[with_ca(ca)]);
    (cluster, proxy)
}

/// The nodes of a Cluster name their ports with TLS, and each of them is reached there.
#[test]
fn nodes_of_a_cluster_are_reached_with_tls() {
    let Some(binary) = server_with_tls() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let ca = ca(folder.path(), "own");
    let (_cluster, proxy) = cluster_with_tls(&binary, &ca);
    let mut client = wait_until_served(&proxy);
    for key in 0..60 {
        wait_until("each node is reached", SOON, || {
            client.call(&format!("SET key:{key} {key}")) == Reply::ok()
        });
    }
}

/// MOVED and ASK of a node name ports with TLS to respool, which follows them.
#[test]
fn redirects_of_a_cluster_lead_to_ports_with_tls() {
    let Some(binary) = server_with_tls() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let ca = ca(folder.path(), "own");
    let (cluster, proxy) = cluster_with_tls(&binary, &ca);
    let mut client = wait_until_served(&proxy);
    wait_until("the owner of the key is reached", SOON, || {
        client.call("SET key:1 1") == Reply::ok()
    });
    let slot = hash_slot(b"key:1");
    let from = cluster.owner(slot).unwrap();
    let to = (from + 1) % 3;
    // In the middle of the move, the owner of before answers ASK for a key that has gone.
    cluster.begin_move(slot, from, to).unwrap();
    cluster.move_keys(slot, from, to, usize::MAX).unwrap();
    assert_eq!(client.call("GET key:1"), Reply::bulk("1"));
    let asked = counter(&mut client, "redirected_ask");
    assert!(asked > 0, "no ASK came");
    cluster.end_move(slot, from, to).unwrap();
    assert_eq!(client.call("GET key:1"), Reply::bulk("1"));
    assert_eq!(client.call("SET key:1 moved"), Reply::ok());
    assert!(
        counter(&mut client, "redirected_moved") > 0,
        "no MOVED came"
    );
}

/// A Sentinel with TLS that watches a primary, and its port with TLS.
fn sentinel_with_tls(
    binary: &Path,
    tls: &TestTls,
    primary: &SecureServer,
) -> (Process, ReservedPort) {
    let (port, args) = tls.listen().unwrap_or_else(|error| panic!("{error}"));
    let sentinel = Process::start(Ready::Sentinel, &mut |plain, dir| {
        let file = dir.join("sentinel.conf");
        let options = args.chunks(2).map(|pair| {
            let name = pair[0].trim_start_matches('-');
            format!("{name} {}\n", pair[1])
        });
        let text = format!(
            "port {plain}\nbind 127.0.0.1\ntls-replication yes\n{}\
             sentinel monitor m0 127.0.0.1 {} 1\n",
            options.collect::<String>(),
            primary.tls_address().port(),
        );
        std::fs::write(&file, text).expect("the directory is writable");
        let mut command = Command::new(binary);
        command.arg(file).arg("--sentinel").arg("--dir").arg(dir);
        command
    });
    (sentinel.unwrap_or_else(|error| panic!("{error}")), port)
}

/// A Sentinel and the primary that it names are both reached over TLS. After a failover, so is the
/// other primary.
#[test]
fn sentinel_and_its_primaries_are_reached_with_tls() {
    let Some(binary) = server_with_tls() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let ca = ca(folder.path(), "own");
    let tls = tls_of(&ca, &HERE, false);
    let primary = SecureServer::start(&binary, &tls);
    let replica = SecureServer::start(&binary, &tls);
    for server in [&primary, &replica] {
        let mut client = RespClient::connect(server.server.address());
        let said = client.call("CONFIG SET tls-replication yes");
        assert_eq!(said, Reply::ok());
    }
    let port = primary.tls_address().port();
    // The Sentinel changes the role of a server and closes the connections of its clients.
    let at_other = |call: &str| RespClient::connect(replica.server.address()).call(call);
    let said = at_other(&format!("REPLICAOF 127.0.0.1 {port}"));
    assert_eq!(said, Reply::ok());
    let (sentinel, port) = sentinel_with_tls(&binary, &tls, &primary);
    let url = format!("rediss-sentinel://127.0.0.1:{}/m0", port.port);
    let proxy = before(&url, &[with_ca(&ca)]);
    let mut client = wait_until_served(&proxy);
    assert_eq!(client.call("GET key"), Reply::bulk("value"));
    let mut asked = RespClient::connect(sentinel.address());
    // The Sentinel learns of replicas by an INFO every ten seconds.
    wait_until("the Sentinel begins a failover", 3 * SOON, || {
        asked.call("SENTINEL FAILOVER m0") == Reply::ok()
    });
    wait_until("the other server is the primary", 3 * SOON, || {
        text(&at_other("INFO replication")).contains("role:master")
    });
    wait_until("the other primary has a write", SOON, || {
        let written = client.call("SET key new") == Reply::ok();
        written && at_other("GET key") == Reply::bulk("new")
    });
}
