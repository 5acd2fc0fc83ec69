//! Listeners with TLS: versions, certificates of both sides, peers without TLS.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use respool_testkit::certificates::{TestCa, Validity};
use respool_testkit::client::{Reply, RespClient, counter, request, text};
use respool_testkit::servers::{ReservedPort, any_server, find_program};
use respool_testkit::time::wait_until;
use respool_testkit::tls_client::TlsPeer;
use respool_testkit::topologies::TestCluster;
use rustls::ProtocolVersion;
use rustls::version::{TLS12, TLS13};

use super::served::{HERE, TlsServed, ca, proxy, sign};
use crate::admin::metrics::{get, pages_of};
use crate::topology::cluster::primaries;
use crate::topology::cluster_facade::items;

/// How soon a change must be seen.
const SOON: Duration = Duration::from_secs(5);
/// A handshake of a client may take so long.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(10);

/// Requests and replies of any length pass with both versions of TLS, in order.
#[test]
fn client_with_tls_gets_its_replies_in_order() {
    let served = TlsServed::start(|_| Vec::new());
    for (version, spoken) in [
        (&TLS12, ProtocolVersion::TLSv1_2),
        (&TLS13, ProtocolVersion::TLSv1_3),
    ] {
        let peer = served.peer().speaking(version);
        let mut client = peer.connect(served.tls_address()).unwrap();
        assert_eq!(client.version(), Some(spoken));
        assert_eq!(client.call("SET key value"), Reply::ok());
        assert_eq!(client.call("GET key"), Reply::bulk("value"));
        // Values of less and of more than a record, which has 16 KiB at the most.
        let value = |index: usize| vec![b'a' + (index % 26) as u8; 1 + index * index * 500];
        let mut pipeline = Vec::new();
        for index in 0..30 {
            let key = format!("large:{index}");
            pipeline.extend(request(&[b"SET", key.as_bytes(), &value(index)]));
            pipeline.extend(request(&[b"GET", key.as_bytes()]));
        }
        client.try_send(&pipeline).unwrap();
        for index in 0..30 {
            assert_eq!(client.try_reply().unwrap(), Reply::ok());
            let reply = client.try_reply().unwrap();
            assert!(reply == Reply::Bulk(value(index)), "{index}: {reply:?}");
        }
    }
}

/// The same keys are seen with and without TLS, and INFO counts the sessions with TLS.
#[test]
fn info_counts_sessions_with_tls() {
    let served = TlsServed::start(|_| Vec::new());
    let mut plain = RespClient::connect(served.proxy.address());
    let sessions = |plain: &mut RespClient| counter(plain, "tls_sessions");
    assert_eq!(sessions(&mut plain), 0);
    let mut client = served.peer().connect(served.tls_address()).unwrap();
    assert_eq!(client.call("SET key value"), Reply::ok());
    assert_eq!(plain.call("GET key"), Reply::bulk("value"));
    wait_until("the session is counted", SOON, || sessions(&mut plain) == 1);
    assert!(counter(&mut plain, "tls_handshakes") >= 1);
    drop(client);
    wait_until("the session is gone", SOON, || sessions(&mut plain) == 0);
}

/// OpenSSL's side of TLS works, too: redis-cli.
#[test]
fn redis_cli_connects_with_tls() {
    let served = TlsServed::start(|_| Vec::new());
    let cli = find_program("redis-cli").unwrap_or_else(|reason| panic!("{reason}"));
    let port = served.tls_address().port().to_string();
    let said = |args: &[&str]| {
        let mut command = Command::new(&cli);
        command.args(["--tls", "--cacert"]).arg(&served.ca.file);
        command.args(["-h", "localhost", "-p", &port]).args(args);
        let output = command.stdin(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(said(&["SET", "key", "value"]), "OK\n");
    assert_eq!(said(&["GET", "key"]), "value\n");
}

/// With TLS, a client that ends its sending side still gets the replies to all its requests.
#[test]
fn half_closed_client_gets_every_reply() {
    let served = TlsServed::start(|_| Vec::new());
    let mut client = served.peer().connect(served.tls_address()).unwrap();
    let count = 500;
    let mut pipeline = Vec::new();
    for index in 0..count {
        pipeline.extend(request(&["INCR".to_owned(), format!("half:{}", index % 7)]));
    }
    client.try_send(&pipeline).unwrap();
    client.close_sending().unwrap();
    for index in 0..count {
        let reply = client.try_reply().unwrap();
        assert_eq!(reply, Reply::Integer(index / 7 + 1));
    }
    assert!(client.try_reply().is_err(), "respool has closed");
}

/// A client that does not go on with its handshake is closed after ten seconds.
#[test]
fn silent_handshake_ends() {
    let served = TlsServed::start(|_| Vec::new());
    // The header of a record, and no more.
    let mut silent = TcpStream::connect(served.tls_address()).unwrap();
    silent.write_all(&[0x16, 3, 1, 2, 0]).unwrap();
    let began = Instant::now();
    silent.set_read_timeout(Some(3 * HANDSHAKE_WAIT)).unwrap();
    let mut said = Vec::new();
    // The end may be a reset.
    let _ = silent.read_to_end(&mut said);
    let waited = began.elapsed();
    assert!(
        waited >= HANDSHAKE_WAIT - Duration::from_secs(1),
        "{waited:?}"
    );
    assert!(waited < 3 * HANDSHAKE_WAIT, "the connection is open");
    let mut plain = RespClient::connect(served.proxy.address());
    wait_until("it is counted", SOON, || {
        counter(&mut plain, "tls_handshakes_failed") == 1
    });
}

/// `tls-min-version` refuses the older version, and the log names the reason.
#[test]
fn older_version_is_refused() {
    let served = TlsServed::start(|_| vec!["--tls-min-version=1.3".into()]);
    let old = served.peer().speaking(&TLS12).connect(served.tls_address());
    assert!(old.is_err(), "{old:?}");
    let mut client = served.peer().connect(served.tls_address()).unwrap();
    assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
    wait_until("the log says it", SOON, || {
        served.proxy.log().contains("tls: version")
    });
    let mut plain = RespClient::connect(served.proxy.address());
    wait_until("it is counted", SOON, || {
        counter(&mut plain, "tls_handshakes_failed") == 1
    });
}

/// Whether a client with TLS gets a reply.
fn is_served(peer: &TlsPeer, served: &TlsServed) -> bool {
    // A server of TLS 1.3 refuses the certificate of a client behind the handshake.
    let client = peer.connect(served.tls_address());
    let reply = client.and_then(|mut client| client.try_call("PING"));
    reply.is_ok_and(|reply| reply == Reply::Simple("PONG".into()))
}

/// `required`, `optional` and `off`, with a good certificate, none, one of a foreign CA and an old
/// one.
#[test]
fn certificates_of_clients_are_checked() {
    for (auth, without, foreign) in [
        ("required", false, false),
        ("optional", true, false),
        ("off", true, true),
    ] {
        let served = TlsServed::start(|ca| {
            let ca = format!("--tls-ca={}", ca.file.display());
            let auth_is_on = (auth != "off").then_some(ca);
            let auth = format!("--tls-client-auth={auth}");
            auth_is_on.into_iter().chain([auth]).collect()
        });
        let other = ca(&served.path(""), "foreign");
        let expired = served.ca.sign_for("expired", &["client"], Validity::Past);
        let peer = || served.peer();
        for version in [&TLS12, &TLS13] {
            let ask = |peer: TlsPeer| is_served(&peer.speaking(version), &served);
            assert!(ask(peer().with(&sign(&served.ca, "client", &["client"]))));
            assert_eq!(ask(peer()), without, "{auth}, without a certificate");
            let of_other = sign(&other, "foreign", &["client"]);
            assert_eq!(ask(peer().with(&of_other)), foreign, "{auth}, foreign");
            let expired = expired.as_ref().unwrap();
            assert_eq!(ask(peer().with(expired)), foreign, "{auth}, expired");
        }
    }
}

/// Each reason for which the certificate of a client is refused has a line of the log and a count,
/// be they in the same second.
#[test]
fn each_refused_certificate_has_its_reason() {
    let served = TlsServed::start(|ca| {
        vec![
            format!("--tls-ca={}", ca.file.display()),
            "--tls-client-auth=required".into(),
            "--metrics-listen=127.0.0.1:0".into(),
            "--threads=1".into(),
        ]
    });
    let pages = pages_of(&served.proxy);
    let other = ca(&served.path(""), "foreign");
    let of_other = sign(&other, "foreign", &["client"]);
    let of_time = |name: &str, validity| {
        let signed = served.ca.sign_for(name, &["client"], validity);
        signed.expect("a certificate")
    };
    let (past, future) = (
        of_time("past", Validity::Past),
        of_time("future", Validity::Future),
    );
    for (identity, reason, label) in [
        (None, "tls: no client certificate", "missing"),
        (
            Some(&of_other),
            "tls: client certificate: unknown CA",
            "unknown_ca",
        ),
        (Some(&past), "tls: client certificate: expired", "expired"),
        (
            Some(&future),
            "tls: client certificate: not valid yet",
            "not_yet_valid",
        ),
    ] {
        let peer = match identity {
            Some(identity) => served.peer().with(identity),
            None => served.peer(),
        };
        assert!(!is_served(&peer, &served), "{reason}");
        let line = format!("reason=\"{reason}\"");
        wait_until(&line, SOON, || served.proxy.log().contains(&line));
        let counted =
            format!("\nrespool_tls_client_certificates_refused_total{{reason=\"{label}\"}} 1\n");
        wait_until(&counted, SOON, || {
            get(pages, "/metrics").body.contains(&counted)
        });
    }
}

/// A client refuses the certificate of another CA, and one for another host.
#[test]
fn client_that_does_not_trust_the_listener_is_counted() {
    let served = TlsServed::start(|_| Vec::new());
    let other = ca(&served.path(""), "other");
    let distrustful = TlsPeer::trusting(&other.file);
    let elsewhere = served.peer().named("redis.example");
    for peer in [&distrustful, &elsewhere] {
        assert!(peer.connect(served.tls_address()).is_err());
    }
    let mut plain = RespClient::connect(served.proxy.address());
    wait_until("both are counted", SOON, || {
        counter(&mut plain, "tls_handshakes_failed") == 2
    });
    assert!(is_served(&served.peer(), &served));
}

/// A client gets the certificate for the host that it names, and else the first one.
#[test]
fn certificate_is_chosen_by_the_name_of_the_host() {
    let other = |ca: &TestCa| sign(ca, "other", &["other.example"]);
    let served = TlsServed::start(|ca| {
        let files = other(ca);
        vec![
            format!("--tls-cert={}", files.cert.display()),
            format!("--tls-key={}", files.key.display()),
        ]
    });
    let shown = |name: &str| {
        let client = served.peer().named(name).connect(served.tls_address());
        client.map(|client| client.server_certificate().map(<[u8]>::to_vec))
    };
    let (first, second) = (shown("localhost").unwrap(), shown("other.example").unwrap());
    assert!(first.is_some() && second.is_some());
    assert_ne!(first, second);
    // An address is no name of a host in SNI, and the first certificate has it.
    assert_eq!(shown("127.0.0.1").unwrap(), first);
    assert!(shown("unknown.example").is_err());
}

/// A client without TLS is refused at the listener with TLS, and one with TLS at the plain one.
/// Both are refused at once, and the log says why.
#[test]
fn listener_refuses_the_other_kind_of_client() {
    let served = TlsServed::start(|_| Vec::new());
    for text in ["PING\r\n", "*1\r\n$4\r\nPING\r\n", "GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = TcpStream::connect(served.tls_address()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let mut read = Vec::new();
        // respool may reset the connection, and may send an alert of TLS before that.
        let _ = stream.read_to_end(&mut read);
        assert!(!read.contains(&b'+'), "{read:?}");
    }
    wait_until("the log names the reason", SOON, || {
        served.proxy.log().contains("tls: no TLS")
    });
    let began = Instant::now();
    let refused = served.peer().connect(served.proxy.address()).unwrap_err();
    assert!(began.elapsed() < SOON, "{refused}");
    wait_until("the log names the listener", SOON, || {
        served
            .proxy
            .log()
            .contains("it speaks TLS, and its listener has none")
    });
    assert!(is_served(&served.peer(), &served));
}

/// Passwords of respool hold with TLS as without.
#[test]
fn password_holds_with_tls() {
    let served = TlsServed::start(|_| vec!["--password=secret".into()]);
    let mut client = served.peer().connect(served.tls_address()).unwrap();
    let refused = client.call("GET key");
    assert!(
        refused
            .error()
            .is_some_and(|text| text.starts_with("NOAUTH"))
    );
    assert_eq!(client.call("AUTH secret"), Reply::ok());
    assert_eq!(client.call("GET key"), Reply::Null);
}

/// Cluster clients with TLS are told the port of their listener, as a server with `tls-cluster yes`
/// says it. Other clients are told the plain port. CLUSTER SHARDS tells both.
#[test]
fn cluster_clients_are_told_the_port_with_tls() {
    let cluster = TestCluster::start(&any_server(), primaries());
    let cluster = cluster.unwrap_or_else(|error| panic!("{error}"));
    let folder = tempfile::tempdir().expect("a directory");
    let ca = ca(folder.path(), "own");
    let identity = sign(&ca, "listener", &HERE);
    let port = ReservedPort::new().unwrap_or_else(|error| panic!("{error}"));
    let proxy = proxy(&[
        "--threads=1".to_owned(),
        format!("--backend=redis-cluster://{}", cluster.node(0).address()),
        format!("--tls-listen=127.0.0.1:{}", port.port),
        format!("--tls-cert={}", identity.cert.display()),
        format!("--tls-key={}", identity.key.display()),
    ]);
    let mut plain = RespClient::connect(proxy.address());
    wait_until("all slots are known", SOON, || {
        let info = text(&plain.call("CLUSTER INFO"));
        info.contains("cluster_state:ok")
    });
    let with_tls = TlsPeer::trusting(&ca.file).connect(([127, 0, 0, 1], port.port).into());
    let mut with_tls = with_tls.unwrap_or_else(|error| panic!("{error}"));
    for hello in ["HELLO 2", "HELLO 3"] {
        for call in [hello, "CLUSTER SLOTS", "CLUSTER NODES", "CLUSTER SHARDS"] {
            let (plain, with_tls) = (plain.call(call), with_tls.call(call));
            match call {
                "CLUSTER SHARDS" => {
                    let both = [("port", proxy.address().port()), ("tls-port", port.port)];
                    assert_eq!(ports_of_shards(&plain), both);
                    assert_eq!(ports_of_shards(&with_tls), both);
                }
                "CLUSTER SLOTS" => {
                    let [range] = items(&with_tls) else {
                        panic!("one range: {with_tls:?}")
                    };
                    let port = Reply::Integer(port.port.into());
                    assert_eq!(items(&items(range)[2])[1], port);
                }
                "CLUSTER NODES" => {
                    let (Reply::Bulk(nodes) | Reply::Other(_, nodes)) = with_tls else {
                        panic!("{with_tls:?}")
                    };
                    let nodes = String::from_utf8_lossy(&nodes);
                    let address = format!(" 127.0.0.1:{}@", port.port);
                    assert!(nodes.contains(&address), "{nodes}");
                }
                _ => {}
            }
        }
    }
}

/// The ports of the first node in a reply to CLUSTER SHARDS, with their fields.
fn ports_of_shards(shards: &Reply) -> Vec<(&'static str, u16)> {
    let nodes = items(shards)[0].get("nodes").expect("a shard has nodes");
    let node = &items(nodes)[0];
    let ports = ["port", "tls-port"].into_iter().filter_map(|field| {
        let port = node.get(field)?;
        match port {
            Reply::Integer(port) => Some((field, u16::try_from(*port).ok()?)),
            other => panic!("{field}: {other:?}"),
        }
    });
    ports.collect()
}
