//! Workers with TLS on real sockets, towards clients and towards a server.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use respool_driver::tls::{
    ClientAuth, ListenerTls, ListenerTlsSettings, MinVersion, Roots, ServerTls, ServerTlsSettings,
    TlsIdentity,
};
use respool_driver::{ListenAddress, Notice, Running, Setup, start};
use respool_engine::settings::{
    Address, PoolKind, PoolSettings, Reads, ServerSettings, Settings, Shows,
};
use respool_protocol::request::{Found, RequestScanner};
use rustls::crypto::aws_lc_rs::kx_group;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, NamedGroup, RootCertStore, ServerConnection, StreamOwned,
};

/// Counts the bytes that workers hold: threads that the test did not mark as its own.
struct WorkerAllocator;

static WORKER_BYTES: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    static IS_OF_TEST: Cell<bool> = const { Cell::new(false) };
}

fn note(bytes: isize) {
    if !IS_OF_TEST.with(Cell::get) {
        WORKER_BYTES.fetch_add(bytes, Ordering::Relaxed);
    }
}

// SAFETY: every call goes unchanged to the system's allocator. The counter allocates nothing.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for WorkerAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        note(-(layout.size() as isize));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: WorkerAllocator = WorkerAllocator;

/// Held by the test that runs: the bytes of workers are counted for the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const PATIENCE: Duration = Duration::from_secs(30);

/// Certificates of a test.
struct DriverCa {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// The key exchange of the last link to a server of a test.
static LINK_GROUP: Mutex<Option<NamedGroup>> = Mutex::new(None);

static NAMES: AtomicUsize = AtomicUsize::new(0);

impl DriverCa {
    fn new() -> DriverCa {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = format!("CA {}", NAMES.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        let issuer = Issuer::new(params, key);
        DriverCa { pem, issuer }
    }

    fn issue(&self) -> TlsIdentity {
        let key = KeyPair::generate().expect("a key");
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let params = CertificateParams::new(names).expect("good names");
        let certificate = params.signed_by(&key, &self.issuer);
        TlsIdentity {
            certificate_pem: certificate.expect("a certificate").pem().into_bytes(),
            key_pem: key.serialize_pem().into_bytes(),
        }
    }

    fn listener(&self) -> ListenerTls {
        let settings = ListenerTlsSettings {
            identities: vec![self.issue()],
            ..ListenerTlsSettings::default()
        };
        ListenerTls::new(&settings).expect("good settings")
    }

    fn server(&self) -> ServerTls {
        let settings = ServerTlsSettings {
            roots: Roots::Pem(self.pem.clone().into_bytes()),
            identity: None,
            server_name: None,
            verify: true,
            min_version: MinVersion::Tls12,
        };
        ServerTls::new(&settings).expect("good settings")
    }

    fn client_config(&self) -> Arc<ClientConfig> {
        self.client_config_with(aws_lc_rs::default_provider())
    }

    fn client_config_with(&self, provider: CryptoProvider) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        let pem = CertificateDer::from_pem_slice(self.pem.as_bytes()).expect("a certificate");
        roots.add(pem).expect("a CA");
        let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .expect("two versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.resumption = rustls::client::Resumption::disabled();
        Arc::new(config)
    }

    /// Starts a server with TLS that answers GET with a value. Returns its port.
    fn serve(&self, value_bytes: usize) -> u16 {
        self.serve_with(aws_lc_rs::default_provider(), value_bytes)
    }

    fn serve_with(&self, provider: CryptoProvider, value_bytes: usize) -> u16 {
        let identity = self.issue();
        let chain = CertificateDer::from_pem_slice(&identity.certificate_pem);
        let key = PrivateKeyDer::from_pem_slice(&identity.key_pem).expect("a key");
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .expect("two versions")
            .with_no_client_auth()
            .with_single_cert(vec![chain.expect("a certificate")], key)
            .expect("a pair");
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        std::thread::spawn(move || {
            IS_OF_TEST.with(|is| is.set(true));
            for link in listener.incoming() {
                let (config, link) = (config.clone(), link.expect("a link"));
                link.set_nodelay(true).expect("a socket option");
                std::thread::spawn(move || {
                    IS_OF_TEST.with(|is| is.set(true));
                    let connection = ServerConnection::new(config).expect("a connection");
                    let mut link = StreamOwned::new(connection, link);
                    if link.conn.complete_io(&mut link.sock).is_err() {
                        return;
                    }
                    let group = link.conn.negotiated_key_exchange_group();
                    *LINK_GROUP.lock().expect("no panic") = group.map(|group| group.name());
                    answer(link, value_bytes);
                });
            }
        });
        port
    }
}

/// Answers each request until the connection fails.
fn answer(mut link: impl Read + Write, value_bytes: usize) {
    let value = format!("${value_bytes}\r\n{}\r\n", "x".repeat(value_bytes));
    let (mut scanner, mut bytes, mut room) = (RequestScanner::default(), Vec::new(), [0; 65536]);
    while let Ok(count @ 1..) = link.read(&mut room) {
        bytes.extend_from_slice(&room[..count]);
        let mut at = 0;
        while let Ok(Found::Request { len }) = scanner.scan(&bytes[at..], true) {
            let reply = match scanner.spans()[0].of(&bytes[at..]) {
                b"HELLO" => "*2\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n",
                b"GET" => &value,
                b"PING" => "+PONG\r\n",
                b"INFO" => "$0\r\n\r\n",
                other => panic!("unexpected command {}", other.escape_ascii()),
            };
            if link.write_all(reply.as_bytes()).is_err() {
                return;
            }
            at += len;
        }
        // The scanner keeps its position in the incomplete request.
        bytes.drain(..at);
    }
}

fn local(port: u16) -> Address {
    Address::Tcp {
        host: "127.0.0.1".to_owned(),
        port,
    }
}

/// Starts a worker for the server at this port, with a listener with TLS and a plain one. The
/// notices of lost links and refused clients are kept.
fn start_worker(
    server: u16,
    listener: &ListenerTls,
    pool: Option<ServerTls>,
) -> (Running, Arc<Mutex<Vec<String>>>) {
    let mut settings = Settings {
        pools: vec![PoolSettings {
            name: "default".to_owned(),
            kind: PoolKind::Single(ServerSettings::at(local(server))),
            reads: Reads::default(),
            flush: None,
            announce: None,
            shows: Shows::default(),
            address_map: Default::default(),
            tls: true,
        }],
        ..Settings::default()
    };
    // The server knows few commands, and none of the periodic checks.
    settings.timeouts.login_check_ms = 0;
    settings.flush.fuse = false;
    settings.flush.collapse = false;
    let listen = |tls| ListenAddress {
        address: local(0),
        pool: 0,
        tls,
    };
    let setup = Setup {
        listeners: vec![listen(Some(listener.clone())), listen(None)],
        pool_tls: vec![pool],
        socket_access: Default::default(),
        workers: 1,
        settings: Arc::new(settings),
        reports_servers: false,
        serves_callers: false,
    };
    let notices = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&notices);
    let notify = move |notice| match notice {
        Notice::LinkDown { reason, .. } => kept.lock().expect("no panic").push(reason),
        Notice::AcceptFailed { reason, .. } => {
            kept.lock().expect("no panic").push(reason.to_owned());
        }
        _ => {}
    };
    (
        start(setup, Arc::new(notify)).expect("a worker starts"),
        notices,
    )
}

fn port(running: &Running, listener: usize) -> u16 {
    match running.addresses()[listener] {
        Address::Tcp { port, .. } => port,
        Address::Unix(_) => unreachable!("the listener is on TCP"),
    }
}

fn connect(port: u16) -> TcpStream {
    let client = TcpStream::connect(("127.0.0.1", port)).expect("the listener accepts");
    client.set_read_timeout(Some(PATIENCE)).expect("a limit");
    client.set_nodelay(true).expect("a socket option");
    client
}

fn connect_tls(port: u16, config: &Arc<ClientConfig>) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(config.clone(), name).expect("a connection");
    StreamOwned::new(connection, connect(port))
}

/// Sends so many GETs at once, and expects so many values.
fn get(mut client: impl Read + Write, count: usize, value_bytes: usize) {
    let request = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n".repeat(count);
    client
        .write_all(request.as_bytes())
        .expect("requests leave");
    client.flush().expect("requests leave");
    let value = format!("${value_bytes}\r\n{}\r\n", "x".repeat(value_bytes)).repeat(count);
    let mut reply = vec![0; value.len()];
    client.read_exact(&mut reply).expect("replies come");
    let start = String::from_utf8_lossy(&reply[..reply.len().min(100)]);
    assert!(reply == value.as_bytes(), "each value is whole: {start}");
}

fn wait_for(what: &str, mut is_done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Requests and large replies pass a worker with TLS on both sides, and a plain client beside.
#[test]
fn large_replies_pass_tls_on_both_sides() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let ca = DriverCa::new();
    let size = 300_000;
    let server = ca.serve(size);
    let (running, _) = start_worker(server, &ca.listener(), Some(ca.server()));
    let config = ca.client_config();
    for count in [1, 20] {
        get(connect_tls(port(&running, 0), &config), count, size);
        get(connect(port(&running, 1)), count, size);
    }
    wait_for("the counters show the handshakes", || {
        let counters = running.counters()[0];
        counters.tls_handshakes == 2 && counters.tls_handshakes_failed == 0
    });
    running.drain();
    assert_eq!(running.join(PATIENCE), 0);
}

/// Links and sessions use the hybrid key exchange, with peers that have another one, too.
#[test]
fn key_exchange_is_hybrid_with_peers_that_know_it() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let with = |kx_groups| CryptoProvider {
        kx_groups,
        ..aws_lc_rs::default_provider()
    };
    let (hybrid, plain) = (kx_group::X25519MLKEM768, kx_group::X25519);
    let ca = DriverCa::new();
    let server = ca.serve_with(with(vec![hybrid, plain]), 3);
    let (running, _) = start_worker(server, &ca.listener(), Some(ca.server()));
    let config = ca.client_config_with(with(vec![hybrid, plain]));
    let mut client = connect_tls(port(&running, 0), &config);
    get(&mut client, 1, 3);
    let chosen = client.conn.negotiated_key_exchange_group();
    assert_eq!(chosen.map(|group| group.name()), Some(hybrid.name()));
    let of_link = *LINK_GROUP.lock().expect("no panic");
    assert_eq!(of_link, Some(hybrid.name()));
    running.drain();
    assert_eq!(running.join(PATIENCE), 0);
}

/// New settings of a listener reach the next client. A session goes on with the old ones.
#[test]
fn replaced_certificate_reaches_new_clients() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (old, new) = (DriverCa::new(), DriverCa::new());
    let server = old.serve(3);
    let (running, notices) = start_worker(server, &old.listener(), Some(old.server()));
    let port = port(&running, 0);
    let mut client = connect_tls(port, &old.client_config());
    get(&mut client, 1, 3);
    running.tls().replace_listeners(&new.listener());
    let config = new.client_config();
    wait_for("a new client trusts the new certificate", || {
        let mut client = connect_tls(port, &config);
        client.write_all(b"PING\r\n").is_ok() && matches!(client.read(&mut [0; 7]), Ok(1..))
    });
    get(&mut client, 1, 3);
    // A client that trusts the old CA alone refuses the new certificate.
    let mut late = connect_tls(port, &old.client_config());
    assert!(late.write_all(b"PING\r\n").is_err());
    drop(late);
    wait_for("the refusal has its reason", || {
        let notices = notices.lock().expect("no panic");
        notices
            .iter()
            .any(|notice| notice == "tls: our certificate")
    });
}

/// Requests fail with the reason of a failed handshake. New settings of the pool end the failure.
#[test]
fn untrusted_server_is_named_in_the_error() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (ca, other) = (DriverCa::new(), DriverCa::new());
    let server = ca.serve(3);
    let (running, notices) = start_worker(server, &ca.listener(), Some(other.server()));
    let mut client = connect_tls(port(&running, 0), &ca.client_config());
    client.write_all(b"GET k\r\n").expect("a request");
    let mut reply = [0; 1024];
    let count = client.read(&mut reply).expect("a reply");
    let reply = String::from_utf8_lossy(&reply[..count]).into_owned();
    let reason = "no trusted CA has signed the server's certificate";
    assert!(reply.starts_with('-') && reply.contains(reason), "{reply}");
    let notice = notices.lock().expect("no panic")[0].clone();
    assert!(notice.starts_with("TLS handshake failed: "), "{notice}");

    running.tls().replace_pool(0, &ca.server());
    wait_for("the link is up", || {
        running.counters()[0].links_connected > 0
    });
    get(&mut client, 1, 3);
}

/// Clients that are slow in their handshakes, or speak no TLS, do not disturb sessions.
#[test]
fn idle_handshakes_do_not_disturb_sessions() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let ca = DriverCa::new();
    let server = ca.serve(3);
    let (running, notices) = start_worker(server, &ca.listener(), Some(ca.server()));
    let port = port(&running, 0);
    let config = ca.client_config();
    let mut client = connect_tls(port, &config);
    get(&mut client, 1, 3);
    let mut idle: Vec<TcpStream> = (0..50).map(|_| connect(port)).collect();
    wait_for("the handshakes are counted", || {
        running.counters()[0].tls_handshaking == 50
    });
    get(&mut client, 20, 3);
    get(connect_tls(port, &config), 1, 3);
    idle[0].write_all(b"PING\r\n").expect("bytes leave");
    let mut alert = Vec::new();
    let _ = idle[0].read_to_end(&mut alert);
    assert!(alert.len() < 16, "no text, at most an alert");
    wait_for("the client without TLS is refused", || {
        let notices = notices.lock().expect("no panic");
        notices.iter().any(|notice| notice == "tls: no TLS")
    });
    drop(idle);
    wait_for("no handshake is left", || {
        let counters = running.counters()[0];
        counters.tls_handshaking == 0 && counters.tls_sessions == 1
    });
    // Clients that close before they send a byte are no failures.
    assert_eq!(running.counters()[0].tls_handshakes_failed, 1);
    drop(client);
    wait_for("no session is left", || {
        running.counters()[0].tls_sessions == 0
    });
}

/// Beyond the bound of handshakes clients wait, and sessions go on. When handshakes end, the
/// clients that waited are served.
#[test]
fn clients_wait_at_the_bound_of_handshakes() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    assert!(limit.current.is_none_or(|files| files > 3_000), "ulimit -n");
    let ca = DriverCa::new();
    let server = ca.serve(3);
    let (running, _) = start_worker(server, &ca.listener(), Some(ca.server()));
    let port = port(&running, 0);
    let config = ca.client_config();
    let mut client = connect_tls(port, &config);
    get(&mut client, 1, 3);
    let idle: Vec<TcpStream> = (0..1_100).map(|_| connect(port)).collect();
    wait_for("the bound is reached", || {
        running.counters()[0].tls_handshaking == 1_024
    });
    get(&mut client, 20, 3);
    let late = std::thread::spawn(move || get(connect_tls(port, &config), 1, 3));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(running.counters()[0].tls_handshakes, 1);
    drop(idle);
    late.join().expect("the late client is served");
    get(&mut client, 1, 3);
}

/// A client that shows no certificate reads an alert, although it has sent requests already.
#[test]
fn client_without_certificate_reads_an_alert() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let ca = DriverCa::new();
    let settings = ListenerTlsSettings {
        identities: vec![ca.issue()],
        client_auth: ClientAuth::Required,
        client_ca_pem: Some(ca.pem.clone().into_bytes()),
        ..ListenerTlsSettings::default()
    };
    let listener = ListenerTls::new(&settings).expect("good settings");
    let (running, _) = start_worker(ca.serve(3), &listener, Some(ca.server()));
    for _ in 0..20 {
        let mut client = connect_tls(port(&running, 0), &ca.client_config());
        let sent = client.write_all(&b"PING\r\n".repeat(1_000));
        let error = sent.and_then(|()| client.read(&mut [0; 7])).map(|_| ());
        let text = error.expect_err("the client is refused").to_string();
        assert!(text.contains("CertificateRequired"), "{text}");
    }
}

/// An idle session with TLS holds at most 8 KiB more than a plain one, and no less than a half of
/// the bytes that the memory bound counts for it.
#[test]
fn idle_session_with_tls_holds_little_memory() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    IS_OF_TEST.with(|is| is.set(true));
    let ca = DriverCa::new();
    let server = ca.serve(3);
    let (running, _) = start_worker(server, &ca.listener(), Some(ca.server()));
    let config = ca.client_config();
    let mut clients = Vec::new();
    let mut plain_clients = Vec::new();
    const CLIENTS: usize = 150;
    let mut grow = |with_tls: bool| {
        let before = WORKER_BYTES.load(Ordering::Relaxed);
        for _ in 0..CLIENTS {
            if with_tls {
                let mut client = connect_tls(port(&running, 0), &config);
                get(&mut client, 2, 3);
                clients.push(client);
            } else {
                let mut client = connect(port(&running, 1));
                get(&mut client, 2, 3);
                plain_clients.push(client);
            }
        }
        (WORKER_BYTES.load(Ordering::Relaxed) - before) / CLIENTS as isize
    };
    // The first clients make tables and shared buffers grow.
    grow(false);
    grow(true);
    let (plain, with_tls) = (grow(false), grow(true));
    let more = with_tls - plain;
    println!("plain {plain}, with TLS {with_tls}: {more} bytes more");
    assert!(more <= 8 << 10, "{more} bytes");
    wait_for("the counters are reported", || {
        let counters = running.counters()[0];
        counters.tls_sessions as usize == 2 * CLIENTS
    });
    let counted = running.counters()[0].memory_tls_bytes as isize / (2 * CLIENTS as isize);
    assert!(
        counted >= more / 2 && counted <= 2 * more,
        "counted {counted}, measured {more}"
    );
}
