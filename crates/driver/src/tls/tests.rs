//! Streams against rustls' own buffered connections, over a socket pair.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::SystemTime;

use proptest::prelude::*;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConnection, Connection, ServerConnection};

use super::failure::CertificateRefusal;
use super::*;

/// A CA of a test. Each has a name of its own.
struct TestCa {
    pem: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

static NAMES: AtomicUsize = AtomicUsize::new(0);

impl TestCa {
    fn new() -> TestCa {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = format!("CA {}", NAMES.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key).unwrap().pem().into_bytes();
        let issuer = Issuer::new(params, key);
        TestCa { pem, issuer }
    }

    fn issue(&self, name: &str) -> TlsIdentity {
        self.issue_with(name, |_| {})
    }

    fn issue_with(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> TlsIdentity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        TlsIdentity {
            certificate_pem: certificate.pem().into_bytes(),
            key_pem: key.serialize_pem().into_bytes(),
        }
    }

    fn listener(&self, identities: Vec<TlsIdentity>) -> ListenerTlsSettings {
        ListenerTlsSettings {
            identities,
            ..ListenerTlsSettings::default()
        }
    }

    fn server(&self) -> ServerTlsSettings {
        ServerTlsSettings {
            roots: Roots::Pem(self.pem.clone()),
            identity: None,
            server_name: Some("localhost".to_owned()),
            verify: true,
            min_version: MinVersion::Tls12,
        }
    }
}

fn server_address() -> Address {
    Address::Tcp {
        host: "127.0.0.1".to_owned(),
        port: 1,
    }
}

/// One of our streams, and a peer with a connection of rustls. The bytes between them are cut at
/// the sizes that a test gives.
struct TestPair {
    fd: OwnedFd,
    stream: TlsStream,
    buffers: TlsBuffers,
    plain: Vec<u8>,
    /// Plaintext that the stream has read.
    received: Vec<u8>,
    /// Output of which the stream has not reported all bytes as written.
    output: Vec<u8>,
    written: usize,
    has_ended: bool,
    peer: Connection,
    socket: UnixStream,
    /// Ciphertext of the peer that its socket has not sent.
    to_send: Vec<u8>,
    /// Plaintext that the peer has read.
    peer_received: Vec<u8>,
    peer_has_ended: bool,
    memory: TlsMemory,
}

impl TestPair {
    fn new(ours: impl FnOnce(&TlsMemory) -> TlsStream, peer: impl Into<Connection>) -> TestPair {
        let (ours_socket, socket) = UnixStream::pair().unwrap();
        for one in [&ours_socket, &socket] {
            one.set_nonblocking(true).unwrap();
        }
        let memory = TlsMemory::default();
        let mut stream = ours(&memory);
        let fd = OwnedFd::from(ours_socket);
        // The kernel takes few bytes at a time.
        rustix::net::sockopt::set_socket_send_buffer_size(&fd, 4096).unwrap();
        if matches!(stream.side, TlsSide::Client(_)) {
            stream.begin(&fd).unwrap();
        }
        TestPair {
            fd,
            stream,
            buffers: TlsBuffers::default(),
            plain: vec![0; 64 << 10],
            received: Vec::new(),
            output: Vec::new(),
            written: 0,
            has_ended: false,
            peer: peer.into(),
            socket,
            to_send: Vec::new(),
            peer_received: Vec::new(),
            peer_has_ended: false,
            memory,
        }
    }

    /// Our stream is that of a listener, the peer is a client.
    fn of_listener(listener: &ListenerTlsSettings, client: &ServerTlsSettings) -> TestPair {
        let listener = ListenerTls::new(listener).unwrap();
        let client = ServerTls::new(client).unwrap();
        let name = client.name_of(&server_address()).unwrap();
        let peer = ClientConnection::new(client.config.clone(), name).unwrap();
        TestPair::new(
            |memory| TlsStream::to_client(&listener, memory).unwrap(),
            peer,
        )
    }

    /// Our stream is that of a link, the peer is a server.
    fn of_link(listener: &ListenerTlsSettings, client: &ServerTlsSettings) -> TestPair {
        let listener = ListenerTls::new(listener).unwrap();
        TestPair::of_link_to(listener.config.clone(), client)
    }

    fn of_link_to(server: Arc<rustls::ServerConfig>, client: &ServerTlsSettings) -> TestPair {
        let client = ServerTls::new(client).unwrap();
        let peer = ServerConnection::new(server).unwrap();
        TestPair::new(
            |memory| TlsStream::to_server(&client, &server_address(), memory).unwrap(),
            peer,
        )
    }

    /// The peer sends up to `count` bytes of ciphertext.
    fn peer_sends(&mut self, count: usize) {
        while self.peer.wants_write() {
            self.peer.write_tls(&mut self.to_send).unwrap();
        }
        let count = count.min(self.to_send.len());
        let sent = match self.socket.write(&self.to_send[..count]) {
            Ok(sent) => sent,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => 0,
            Err(error) => panic!("{error}"),
        };
        self.to_send.drain(..sent);
    }

    /// The peer reads all ciphertext, and checks the reports of our stream about it.
    fn peer_reads(&mut self) -> Result<(), Error> {
        let mut bytes = vec![0; 1 << 20];
        let count = match self.socket.read(&mut bytes) {
            Ok(0) => {
                self.peer_has_ended = true;
                0
            }
            Ok(count) => count,
            Err(_) => 0,
        };
        let mut bytes = &bytes[..count];
        while !bytes.is_empty() {
            self.peer.read_tls(&mut bytes).unwrap();
            self.peer.process_new_packets()?;
            let mut plain = vec![0; 1 << 20];
            if let Ok(count) = self.peer.reader().read(&mut plain) {
                self.peer_received.extend_from_slice(&plain[..count]);
            }
        }
        Ok(())
    }

    /// Our stream reads once.
    fn reads(&mut self) -> Result<ReadOutcome, StreamError> {
        let outcome = self
            .stream
            .read(&self.fd, &mut self.plain, &mut self.buffers)?;
        match outcome {
            ReadOutcome::Bytes(count) | ReadOutcome::Last(count) => {
                assert!(count > 0);
                self.received.extend_from_slice(&self.plain[..count]);
            }
            ReadOutcome::Nothing | ReadOutcome::End => {}
        }
        self.has_ended |= matches!(outcome, ReadOutcome::Last(_) | ReadOutcome::End);
        Ok(outcome)
    }

    /// Our stream writes once, from its first byte on that is not written.
    fn writes(&mut self) {
        let rest = &self.output[self.written..];
        let count = self.stream.write(&self.fd, rest, &mut self.buffers);
        self.written += count.unwrap();
        let max = SEALED_RECORDS_MAX * (RECORD_BYTES + RECORD_EXTRA_BYTES);
        assert!(self.stream.outgoing.len() <= max, "ciphertext is bounded");
    }

    /// Both sides go on until nothing moves.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..1_000 {
            let before = (self.received.len(), self.written, self.peer_received.len());
            self.peer_sends(usize::MAX);
            if !self.has_ended {
                self.reads().map_err(|error| error.of_server())?;
            }
            if !self.stream.is_handshaking() {
                self.writes();
            }
            self.stream
                .flush(&self.fd)
                .map_err(|error| error.of_server())?;
            self.peer_reads().map_err(|error| error.to_string())?;
            let after = (self.received.len(), self.written, self.peer_received.len());
            let is_idle = !self.peer.wants_write()
                && self.to_send.is_empty()
                && self.stream.outgoing.is_empty()
                && !self.stream.is_handshaking();
            if before == after && is_idle {
                return Ok(());
            }
        }
        Err("the handshake does not end".to_owned())
    }
}

/// A step of [`any_cut_keeps_the_bytes`].
#[derive(Clone, Debug)]
enum PairStep {
    /// The peer writes so many bytes.
    PeerWrites(usize),
    /// The peer's socket sends so many bytes of ciphertext.
    PeerSends(usize),
    /// The peer reads.
    PeerReads,
    /// The peer changes its keys, and asks us to.
    PeerChangesKeys,
    /// Our side has so many bytes more to write.
    Output(usize),
    /// Our side writes.
    Writes,
    /// Our side reads.
    Reads,
}

fn step() -> impl Strategy<Value = PairStep> {
    prop_oneof![
        (1..40_000usize).prop_map(PairStep::PeerWrites),
        (1..100usize).prop_map(PairStep::PeerWrites),
        (1..8usize).prop_map(PairStep::PeerSends),
        (1..40_000usize).prop_map(PairStep::PeerSends),
        Just(PairStep::PeerReads),
        Just(PairStep::PeerChangesKeys),
        (1..300_000usize).prop_map(PairStep::Output),
        (1..100usize).prop_map(PairStep::Output),
        Just(PairStep::Writes),
        Just(PairStep::Reads),
    ]
}

fn pattern(start: usize, count: usize) -> Vec<u8> {
    (start..start + count).map(|at| (at % 251) as u8).collect()
}

fn run_steps(mut pair: TestPair, steps: &[PairStep], is_tls13: bool) {
    pair.settle().unwrap();
    let mut peer_sent = 0;
    for step in steps {
        match *step {
            PairStep::PeerWrites(count) => {
                let bytes = pattern(peer_sent, count);
                let taken = pair.peer.writer().write(&bytes).unwrap();
                peer_sent += taken;
            }
            PairStep::PeerSends(count) => pair.peer_sends(count),
            PairStep::PeerReads => {
                pair.peer_reads().unwrap();
                // The peer can open exactly the records that have left.
                assert_eq!(pair.peer_received.len(), pair.written);
            }
            PairStep::PeerChangesKeys if is_tls13 => {
                // rustls sends nothing more before the peer has read all that came.
                pair.peer_sends(usize::MAX);
                pair.peer.refresh_traffic_keys().unwrap();
            }
            PairStep::PeerChangesKeys => {}
            PairStep::Output(count) => {
                let bytes = pattern(pair.output.len(), count);
                pair.output.extend_from_slice(&bytes);
            }
            PairStep::Writes => pair.writes(),
            PairStep::Reads => {
                pair.reads().unwrap();
            }
        }
    }
    pair.settle().unwrap();
    assert!(pair.received == pattern(0, peer_sent), "what the peer sent");
    assert_eq!(pair.written, pair.output.len());
    assert!(pair.peer_received == pair.output, "what we sent");
    assert_eq!(pair.stream.sealed, 0);
    assert!(pair.stream.records.is_empty());
    assert_eq!(
        pair.memory.bytes(),
        IDLE_BYTES,
        "an idle stream has no buffer"
    );
    drop(pair.stream);
    assert_eq!(pair.memory.bytes(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// No byte is lost, doubled or changed, wherever records are cut, on both sides and in both
    /// versions. Bytes count as written exactly when the peer can open them.
    #[test]
    fn any_cut_keeps_the_bytes(
        steps in proptest::collection::vec(step(), 1..60),
        is_link in any::<bool>(),
        is_tls13 in any::<bool>(),
    ) {
        let ca = TestCa::new();
        let listener = ca.listener(vec![ca.issue("localhost")]);
        let pair = match (is_tls13, is_link) {
            (true, true) => TestPair::of_link(&listener, &ca.server()),
            (true, false) => TestPair::of_listener(&listener, &ca.server()),
            (false, _) => old_pair(&ca, is_link),
        };
        run_steps(pair, &steps, is_tls13);
    }
}

/// A pair with a peer that knows TLS 1.2 alone.
fn old_pair(ca: &TestCa, is_link: bool) -> TestPair {
    let listener = ListenerTls::new(&ca.listener(vec![ca.issue("localhost")])).unwrap();
    let link = ServerTls::new(&ca.server()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    if is_link {
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS12])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(listener.config.cert_resolver.clone());
        let peer = ServerConnection::new(Arc::new(config)).unwrap();
        let ours =
            |memory: &TlsMemory| TlsStream::to_server(&link, &server_address(), memory).unwrap();
        TestPair::new(ours, peer)
    } else {
        TestPair::new(
            |memory| TlsStream::to_client(&listener, memory).unwrap(),
            old_client(ca),
        )
    }
}

/// A client that knows TLS 1.2 alone.
fn old_client(ca: &TestCa) -> ClientConnection {
    let mut roots = rustls::RootCertStore::empty();
    let pem = rustls::pki_types::pem::PemObject::from_pem_slice(&ca.pem);
    roots.add(pem.unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    ClientConnection::new(Arc::new(config), name).unwrap()
}

/// A handshake and a request that come byte by byte are read like others.
#[test]
fn handshake_byte_by_byte_succeeds() {
    let ca = TestCa::new();
    let listener = ca.listener(vec![ca.issue("localhost")]);
    for is_link in [false, true] {
        let mut pair = match is_link {
            true => TestPair::of_link(&listener, &ca.server()),
            false => TestPair::of_listener(&listener, &ca.server()),
        };
        pair.peer.writer().write_all(b"PING\r\n").unwrap();
        for _ in 0..20_000 {
            pair.peer_sends(1);
            pair.reads().unwrap();
            pair.peer_reads().unwrap();
        }
        assert!(!pair.stream.is_handshaking());
        assert_eq!(pair.received, b"PING\r\n");
    }
}

/// A handshake message that comes in two records is no whole message after the first. A write or
/// a close in between does no harm.
#[test]
fn fragmented_hello_survives_a_close_in_between() {
    let ca = TestCa::new();
    let listener = ca.listener(vec![ca.issue("localhost")]);
    for closes in [false, true] {
        let mut pair = TestPair::of_listener(&listener, &ca.server());
        let mut hello = Vec::new();
        pair.peer.write_tls(&mut hello).unwrap();
        let (header, body) = hello.split_at(5);
        let record = |part: &[u8]| {
            let length = (part.len() as u16).to_be_bytes();
            [&header[..3], &length, part].concat()
        };
        let (first, second) = body.split_at(100);
        pair.socket.write_all(&record(first)).unwrap();
        assert_eq!(pair.reads().unwrap(), ReadOutcome::Nothing);
        if closes {
            pair.stream.shutdown_write(&pair.fd).unwrap();
            continue;
        }
        let written = pair.stream.write(&pair.fd, b"early", &mut pair.buffers);
        assert!(written.is_err(), "no key is known yet");
        pair.socket.write_all(&record(second)).unwrap();
        pair.reads().unwrap();
        pair.settle().unwrap();
    }
}

/// After an error in the middle of a fragmented message rustls is not called again: it marked
/// places in bytes that are gone.
#[test]
fn failed_stream_can_be_closed_and_written() {
    let ca = TestCa::new();
    let listener = ca.listener(vec![ca.issue("localhost")]);
    let mut pair = TestPair::of_listener(&listener, &ca.server());
    let mut hello = Vec::new();
    pair.peer.write_tls(&mut hello).unwrap();
    let (header, body) = hello.split_at(5);
    let length = 100_u16.to_be_bytes();
    let first = [&header[..3], &length, &body[..100]].concat();
    pair.socket.write_all(&first).unwrap();
    assert_eq!(pair.reads().unwrap(), ReadOutcome::Nothing);
    let alert = [21, 3, 3, 0, 2, 1, 0];
    pair.socket.write_all(&alert).unwrap();
    assert!(pair.reads().is_err());
    assert!(
        pair.stream
            .write(&pair.fd, b"late", &mut pair.buffers)
            .is_err()
    );
    pair.stream.shutdown_write(&pair.fd).unwrap();
    assert_eq!(pair.reads().unwrap(), ReadOutcome::End);
}

/// The peer ends its direction: its last bytes and the end come in one read. Our direction goes
/// on, and ends with a record and the end of the stream.
#[test]
fn each_direction_ends_by_itself() {
    let ca = TestCa::new();
    let listener = ca.listener(vec![ca.issue("localhost")]);
    let mut pair = TestPair::of_listener(&listener, &ca.server());
    pair.settle().unwrap();
    pair.peer.writer().write_all(b"PING\r\n").unwrap();
    pair.peer.send_close_notify();
    pair.peer_sends(usize::MAX);
    assert_eq!(pair.reads().unwrap(), ReadOutcome::Last(6));
    assert_eq!(pair.reads().unwrap(), ReadOutcome::End);

    pair.output = pattern(0, 300_000);
    for _ in 0..1_000 {
        pair.writes();
        pair.peer_reads().unwrap();
    }
    assert_eq!(pair.written, pair.output.len());
    assert!(!pair.peer_has_ended);
    pair.stream.shutdown_write(&pair.fd).unwrap();
    pair.peer_reads().unwrap();
    let state = pair.peer.process_new_packets().unwrap();
    assert!(state.peer_has_closed(), "close_notify has come");
    pair.peer_reads().unwrap();
    assert!(pair.peer_has_ended, "the socket's direction is shut");
    assert!(pair.peer_received == pair.output);
}

/// A close with a full socket ends our direction behind the records that wait, not in front.
#[test]
fn close_waits_for_records_in_front() {
    let ca = TestCa::new();
    let listener = ca.listener(vec![ca.issue("localhost")]);
    let mut pair = TestPair::of_listener(&listener, &ca.server());
    pair.settle().unwrap();
    pair.output = pattern(0, 50_000);
    pair.writes();
    assert!(pair.stream.wants_write(), "the socket is full");
    pair.stream.shutdown_write(&pair.fd).unwrap();
    for _ in 0..1_000 {
        pair.peer_reads().unwrap();
        pair.written += pair.stream.flush(&pair.fd).unwrap();
    }
    assert!(pair.peer_has_ended);
    assert!(pair.peer_received == pair.output);
    assert_eq!(pair.written, pair.output.len());
}

/// A connection that is cut without close_notify is at its end.
#[test]
fn cut_connection_is_at_its_end() {
    let ca = TestCa::new();
    let listener = ca.listener(vec![ca.issue("localhost")]);
    let mut pair = TestPair::of_listener(&listener, &ca.server());
    pair.settle().unwrap();
    pair.peer.writer().write_all(b"PING\r\n").unwrap();
    pair.peer_sends(12);
    let nothing = UnixStream::pair().unwrap().0;
    drop(std::mem::replace(&mut pair.socket, nothing));
    assert_eq!(pair.reads().unwrap(), ReadOutcome::Nothing);
    assert_eq!(pair.reads().unwrap(), ReadOutcome::End);
}

/// If a client resets its connection after its handshake has ended, the handshake does not count as
/// failed, and the client's first request is read.
#[test]
fn reset_behind_the_handshake_is_no_failed_handshake() {
    let ca = TestCa::new();
    let listener = ca.listener(vec![ca.issue("localhost")]);
    let mut pair = TestPair::of_listener(&listener, &ca.server());
    while pair.peer.is_handshaking() {
        pair.peer_sends(usize::MAX);
        pair.reads().unwrap();
        pair.peer_reads().unwrap();
    }
    // The end of the handshake of TLS 1.3 is still to be read.
    assert!(pair.stream.is_handshaking());
    pair.peer.writer().write_all(b"PING\r\n").unwrap();
    pair.peer_sends(usize::MAX);
    let nothing = UnixStream::pair().unwrap().0;
    drop(std::mem::replace(&mut pair.socket, nothing));
    // The tickets do not leave any more.
    assert_eq!(pair.reads().unwrap(), ReadOutcome::Bytes(6));
    assert!(!pair.stream.is_handshaking());
    assert_eq!(pair.reads().unwrap(), ReadOutcome::End);
}

/// Each client gets the certificate for the name that it asks for, and else the first one.
#[test]
fn certificate_is_chosen_by_name() {
    let ca = TestCa::new();
    let names = ["first.example", "second.example"];
    let identities: Vec<_> = names.iter().map(|name| ca.issue(name)).collect();
    let listener = ca.listener(identities.clone());
    for (name, expected) in [
        ("first.example", 0),
        ("second.example", 1),
        ("third.example", 0),
    ] {
        let mut client = ca.server();
        client.server_name = Some(name.to_owned());
        client.verify = false;
        let mut pair = TestPair::of_listener(&listener, &client);
        pair.settle().unwrap();
        let shown = pair.peer.peer_certificates().unwrap()[0].clone();
        let pem = &identities[expected].certificate_pem;
        let wanted = rustls::pki_types::pem::PemObject::from_pem_slice(pem).unwrap();
        assert_eq!(shown, wanted, "{name}");
    }
}

/// A listener with a certificate that is valid in one year alone. A start would refuse it.
fn of_year(ca: &TestCa, year: i32) -> Arc<rustls::ServerConfig> {
    let identity = ca.issue_with("localhost", |params| {
        params.not_before = date_time_ymd(year, 1, 1);
        params.not_after = date_time_ymd(year + 1, 1, 1);
    });
    server_config(&identity)
}

/// A server with this certificate, which is not checked.
fn server_config(identity: &TlsIdentity) -> Arc<rustls::ServerConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let certificate = rustls::pki_types::pem::PemObject::from_pem_slice(&identity.certificate_pem);
    let key = rustls::pki_types::pem::PemObject::from_pem_slice(&identity.key_pem);
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.unwrap()], key.unwrap());
    Arc::new(config.unwrap())
}

/// The error names a CA certificate that a server shows. A leaf certificate that is signed by
/// itself is good, if it is trusted.
#[test]
fn ca_is_no_certificate_of_a_server() {
    for (is_ca, words) in [
        (
            true,
            Some("the server's certificate is a CA certificate (CA:TRUE), as"),
        ),
        (false, None),
    ] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.is_ca = match is_ca {
            true => IsCa::Ca(BasicConstraints::Unconstrained),
            false => IsCa::ExplicitNoCa,
        };
        let pem = params.self_signed(&key).unwrap().pem().into_bytes();
        let identity = TlsIdentity {
            certificate_pem: pem.clone(),
            key_pem: key.serialize_pem().into_bytes(),
        };
        let settings = ServerTlsSettings {
            roots: Roots::Pem(pem),
            ..TestCa::new().server()
        };
        let result = TestPair::of_link_to(server_config(&identity), &settings).settle();
        match (words, result) {
            (None, result) => result.unwrap(),
            (Some(words), result) => {
                let text = result.unwrap_err();
                assert!(text.starts_with(words), "{text}");
            }
        }
    }
}

/// `openssl x509 -req` made it without extensions: X.509 v1, until the year 2126. Its signature is
/// wrong.
fn v1_identity() -> TlsIdentity {
    let certificate = "\
-----BEGIN CERTIFICATE-----\n\
MIIBHjCBxAIUIjKMUgKCoQ2VNmwkYmMDLgA4utQwCgYIKoZIzj0EAwIwDTELMAkG\n\
A1UEAwwCQ0EwIBcNMjAwMTAxMDAwMDAwWhgPMjEyNjExMDUwMjMwNDJaMBQxEjAQ\n\
BgNVBAMMCWxvY2FsaG9zdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABPpGuQb8\n\
dpuZWh2vTKVL12VAhSgtAu1ukW2d7ofuXI2qgpvK9MtcndwxtcYwUADCdW9GhQoi\n\
j2bWGFC9E/ADPxMwCgYIKoZIzj0EAwIDSQAwRgIhAKpiX/wp+oktuncL7vX+sFxz\n\
O/KXwFCB+oFXVFsQ1U20AiEAx232sJZe1deMLTSIzp1bC2D9bJFKhtoWwr/1zDT8\n\
hpg=\n\
-----END CERTIFICATE-----\n\
";
    let key = "\
-----BEGIN PRIVATE KEY-----\n\
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg4wYEjksAUjiO5XGM\n\
5gSTsk9rF/B/sRM+iSJNhin2qr2hRANCAAT6RrkG/HabmVodr0ylS9dlQIUoLQLt\n\
bpFtne6H7lyNqoKbyvTLXJ3cMbXGMFAAwnVvRoUKIo9m1hhQvRPwAz8T\n\
-----END PRIVATE KEY-----\n\
";
    TlsIdentity {
        certificate_pem: certificate.into(),
        key_pem: key.into(),
    }
}

/// A server with a certificate of X.509 v1 is reached if certificates are not checked, in both
/// versions of TLS. Without the key of the certificate it is not. Else the error says the version.
#[test]
fn v1_certificate_serves_where_none_is_checked() {
    let ca = TestCa::new();
    let unchecked = ServerTlsSettings {
        verify: false,
        ..ca.server()
    };
    let of_version = |version, identity: &TlsIdentity| {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let certificate = PemObject::from_pem_slice(&identity.certificate_pem);
        let key = PemObject::from_pem_slice(&identity.key_pem);
        let key = provider.key_provider.load_private_key(key.unwrap());
        // It does not look at the certificate.
        let key = CertifiedKey::new(vec![certificate.unwrap()], key.unwrap());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        Arc::new(config)
    };
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let server = of_version(version, &v1_identity());
        TestPair::of_link_to(server.clone(), &unchecked)
            .settle()
            .unwrap();
        let text = TestPair::of_link_to(server, &ca.server())
            .settle()
            .unwrap_err();
        let words = "the server's certificate is of X.509 v1; sign it with extensions";
        assert!(text.starts_with(words), "{text}");
        let stolen = TlsIdentity {
            key_pem: ca.issue("localhost").key_pem,
            ..v1_identity()
        };
        let server = of_version(version, &stolen);
        let text = TestPair::of_link_to(server, &unchecked)
            .settle()
            .unwrap_err();
        assert!(text.contains("BadSignature"), "{text}");
    }
}

/// A certificate of respool may be of X.509 v1. Its key and its expiry count as those of others.
#[test]
fn own_certificate_may_be_of_v1() {
    let ca = TestCa::new();
    let tls = ListenerTls::new(&ca.listener(vec![v1_identity()])).unwrap();
    let years = |time: SystemTime| {
        let since_1970 = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        1970 + since_1970.as_secs() / (365 * 86_400 + 86_400 / 4)
    };
    let facts = &tls.certificates()[0];
    assert_eq!(facts.chain_expiry.map(years), Some(2126));
    assert_eq!(facts.names, [""; 0]);
    let mixed = TlsIdentity {
        key_pem: ca.issue("localhost").key_pem,
        ..v1_identity()
    };
    let found = ListenerTls::new(&ca.listener(vec![mixed])).unwrap_err();
    assert_eq!(found[0].fault, TlsFault::KeyMismatch);
    assert_eq!(found[0].input, TlsInput::Key(0));
    // A client that checks certificates says the version in its alert alone; the log names it for
    // certificates of clients.
    let mut listener = ca.listener(vec![ca.issue("localhost")]);
    listener.client_auth = ClientAuth::Required;
    listener.client_ca_pem = Some(ca.pem.clone());
    let client = ServerTlsSettings {
        identity: Some(v1_identity()),
        ..ca.server()
    };
    let mut pair = TestPair::of_listener(&listener, &client);
    let error = loop {
        pair.peer_sends(usize::MAX);
        if let Err(error) = pair.reads() {
            break error;
        }
        pair.peer_reads().unwrap();
    };
    let words = "the client's certificate is of X.509 v1; sign it with extensions";
    assert!(error.of_client().starts_with(words), "{error:?}");
}

/// The error of each failed handshake with a server has plain words and the reason of rustls. It
/// names the option that changes the result.
#[test]
fn error_of_server_says_its_reason() {
    let (ca, other) = (TestCa::new(), TestCa::new());
    let good = || ca.listener(vec![ca.issue("localhost")]);
    let failed = |listener: ListenerTlsSettings, client: ServerTlsSettings| {
        let mut pair = TestPair::of_link(&listener, &client);
        pair.settle().unwrap_err()
    };
    let text = failed(good(), other.server());
    let words = "no trusted CA has signed the server's certificate; server-tls-ca must";
    assert!(
        text.starts_with(words) && text.contains("UnknownIssuer"),
        "{text}"
    );
    for (year, words) in [
        (
            2000,
            "the server's certificate has expired; renew it at the server, or is the clock wrong?",
        ),
        (
            3000,
            "the server's certificate is not valid yet; is the clock",
        ),
    ] {
        let mut pair = TestPair::of_link_to(of_year(&ca, year), &ca.server());
        let text = pair.settle().unwrap_err();
        assert!(text.starts_with(words), "{text}");
        let has_time = text.contains(|letter: char| letter.is_ascii_digit());
        assert!(!has_time, "{text} is another one at the next attempt");
    }

    let mut client = ca.server();
    client.server_name = Some("other.example".to_owned());
    let text = failed(good(), client.clone());
    assert!(
        text.starts_with("the server's certificate is for another name; server-tls-name must"),
        "{text}"
    );
    assert!(text.contains("localhost"), "{text}");
    client.verify = false;
    TestPair::of_link(&good(), &client).settle().unwrap();

    let mut pair = TestPair::of_link(&good(), &ca.server());
    pair.socket.write_all(b"-ERR unknown command\r\n").unwrap();
    let text = pair.reads().unwrap_err().of_server();
    assert!(text.starts_with("the server does not speak TLS"), "{text}");

    let mut listener = good();
    listener.client_auth = ClientAuth::Required;
    listener.client_ca_pem = Some(ca.pem.clone());
    let mut pair = TestPair::of_link(&listener, &ca.server());
    for _ in 0..10 {
        pair.peer_sends(usize::MAX);
        let read = pair.reads();
        let _ = pair.peer_reads();
        if let Err(error) = read {
            let text = error.of_server();
            assert!(
                text.starts_with("the server wants a certificate of respool; set server-tls-cert"),
                "{text}"
            );
            return;
        }
    }
    panic!("the server asks for a certificate");
}

/// The refusal of a client. Its text calls the peer a client.
fn refusal_of(error: &StreamError) -> failure::HandshakeRefusal {
    let text = error.of_client();
    // The reason of rustls stands behind it, and names the uses of a certificate.
    let words = text.split(" (").next().unwrap_or_default();
    assert!(
        words.contains("client") && !words.contains("server"),
        "{text}"
    );
    error.refusal()
}

/// The refusal of a client with these settings; `None`: its handshake succeeds.
fn refusal(
    listener: &ListenerTlsSettings,
    client: &ServerTlsSettings,
) -> Option<failure::HandshakeRefusal> {
    let mut pair = TestPair::of_listener(listener, client);
    for _ in 0..10 {
        pair.peer_sends(usize::MAX);
        if let Err(error) = pair.reads() {
            return Some(refusal_of(&error));
        }
        let _ = pair.peer_reads();
    }
    assert!(!pair.stream.is_handshaking());
    None
}

/// A hello of a client that knows TLS 1.1 at most.
const HELLO_OF_TLS11: [u8; 50] = {
    let mut hello = [0; 50];
    // A record of 45 bytes with a handshake message of 41 bytes: version, random, no session.
    let head = [0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 2];
    let mut at = 0;
    while at < head.len() {
        hello[at] = head[at];
        at += 1;
    }
    // TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, and no compression.
    (hello[45], hello[46], hello[47]) = (2, 0xc0, 0x13);
    (hello[48], hello[49]) = (1, 0);
    hello
};

/// A refused client is counted under the reason of its refusal, and the text is about a client.
#[test]
fn refused_client_has_a_reason() {
    let (ca, other) = (TestCa::new(), TestCa::new());
    let mut listener = ca.listener(vec![ca.issue("localhost")]);
    assert_eq!(refusal(&listener, &ca.server()), None);
    assert_eq!(
        refusal(&listener, &other.server()),
        Some(failure::HandshakeRefusal::OurCertificate)
    );

    listener.min_version = MinVersion::Tls13;
    let tls = ListenerTls::new(&listener).unwrap();
    let ours = |memory: &TlsMemory| TlsStream::to_client(&tls, memory).unwrap();
    let mut pair = TestPair::new(ours, old_client(&ca));
    pair.peer_sends(usize::MAX);
    assert_eq!(
        refusal_of(&pair.reads().unwrap_err()),
        failure::HandshakeRefusal::Version
    );

    for (bytes, expected, words) in [
        (
            &HELLO_OF_TLS11[..],
            failure::HandshakeRefusal::Version,
            "have no version of TLS in common",
        ),
        (
            b"*1\r\n$4\r\nPING\r\n",
            failure::HandshakeRefusal::NoTls,
            "the client does not speak TLS at this listener",
        ),
    ] {
        let mut pair = TestPair::of_listener(&listener, &ca.server());
        pair.socket.write_all(bytes).unwrap();
        let error = pair.reads().unwrap_err();
        assert_eq!(refusal_of(&error), expected);
        assert!(error.of_client().contains(words), "{}", error.of_client());
    }
}

/// Each reason for which the certificate of a client is refused is told apart.
#[test]
fn refused_certificate_of_a_client_has_a_reason() {
    let (ca, other) = (TestCa::new(), TestCa::new());
    let mut listener = ca.listener(vec![ca.issue("localhost")]);
    let of_certificate = |refusal| Some(failure::HandshakeRefusal::ClientCertificate(refusal));
    let of_years = |from: i32, to: i32| {
        ca.issue_with("client", |params| {
            params.not_before = date_time_ymd(from, 1, 1);
            params.not_after = date_time_ymd(to, 1, 1);
        })
    };
    let for_servers = ca.issue_with("client", |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    listener.client_ca_pem = Some(ca.pem.clone());
    let mut client = ca.server();
    for (auth, identity, expected) in [
        (ClientAuth::Optional, None, None),
        (
            ClientAuth::Required,
            None,
            of_certificate(CertificateRefusal::Missing),
        ),
        (ClientAuth::Required, Some(ca.issue("client")), None),
        (
            ClientAuth::Required,
            Some(other.issue("client")),
            of_certificate(CertificateRefusal::UnknownCa),
        ),
        (
            ClientAuth::Optional,
            Some(other.issue("client")),
            of_certificate(CertificateRefusal::UnknownCa),
        ),
        (
            ClientAuth::Required,
            Some(of_years(2000, 2001)),
            of_certificate(CertificateRefusal::Expired),
        ),
        (
            ClientAuth::Required,
            Some(of_years(3000, 3001)),
            of_certificate(CertificateRefusal::NotYetValid),
        ),
        (
            ClientAuth::Required,
            Some(for_servers),
            of_certificate(CertificateRefusal::Usage),
        ),
        (
            ClientAuth::Required,
            Some(v1_identity()),
            of_certificate(CertificateRefusal::Other),
        ),
    ] {
        listener.client_auth = auth;
        client.identity = identity;
        assert_eq!(refusal(&listener, &client), expected, "{auth:?}");
    }
}

/// The earliest expiry in a chain counts, also if it is that of an intermediate.
#[test]
fn earliest_expiry_in_a_chain_counts() {
    let (ca, other) = (TestCa::new(), TestCa::new());
    let until = |year: i32| {
        let leaf = ca.issue_with("localhost", |params| {
            params.not_after = date_time_ymd(year, 1, 1);
        });
        let intermediate = other.issue_with("CA", |params| {
            params.not_after = date_time_ymd(2150, 1, 1);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        });
        let certificate_pem = [leaf.certificate_pem, intermediate.certificate_pem].concat();
        let chain = TlsIdentity {
            certificate_pem,
            ..leaf
        };
        let tls = ListenerTls::new(&ca.listener(vec![chain])).unwrap();
        tls.certificates()[0].chain_expiry.unwrap()
    };
    let (leaf_first, ca_first) = (until(2100), until(2200));
    assert!(leaf_first < ca_first);
    assert_eq!(ca_first, until(2300));
}

fn only(problems: Vec<TlsProblem>) -> TlsProblem {
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems[0].clone()
}

/// All inputs that cannot be used are found at once. A wrong certificate hides no wrong key.
#[test]
fn every_wrong_input_is_found() {
    let ca = TestCa::new();
    // That it has expired is no problem.
    let expired = ca.issue_with("localhost", |params| {
        params.not_after = date_time_ymd(2001, 1, 1);
    });
    let with_key = |certificate_pem: &[u8], key_pem: &[u8]| TlsIdentity {
        certificate_pem: certificate_pem.to_vec(),
        key_pem: key_pem.to_vec(),
    };
    let inputs = |problems: Vec<TlsProblem>| -> Vec<TlsInput> {
        problems.iter().map(|problem| problem.input).collect()
    };
    let other = ca.issue("localhost").key_pem;
    let mut listener = ca.listener(vec![
        with_key(b"nothing", b"nothing"),
        with_key(&expired.certificate_pem, &other),
        expired.clone(),
    ]);
    listener.client_auth = ClientAuth::Required;
    listener.client_ca_pem = Some(b"nothing".to_vec());
    assert_eq!(
        inputs(ListenerTls::new(&listener).unwrap_err()),
        [
            TlsInput::Certificate(0),
            TlsInput::Key(0),
            TlsInput::Key(1),
            TlsInput::ClientCa,
        ]
    );
    let mut server = ca.server();
    server.roots = Roots::Pem(b"nothing".to_vec());
    server.server_name = Some("not a name".to_owned());
    server.identity = Some(with_key(&expired.certificate_pem, &other));
    assert_eq!(
        inputs(ServerTls::new(&server).unwrap_err()),
        [TlsInput::Roots, TlsInput::Key(0), TlsInput::ServerName,]
    );
    // The bytes of a certificate that is none say nothing about its key.
    let garbage = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let garbage = TlsIdentity {
        certificate_pem: garbage.to_vec(),
        key_pem: other,
    };
    assert_eq!(
        inputs(ListenerTls::new(&ca.listener(vec![garbage])).unwrap_err()),
        [TlsInput::Certificate(0)]
    );
}

/// Each defect of the settings has an error that names the input.
#[test]
fn problem_names_input_and_defect() {
    let ca = TestCa::new();
    let (good, other) = (ca.issue("localhost"), ca.issue("localhost"));
    let with = |change: &dyn Fn(&mut TlsIdentity)| {
        let mut identity = good.clone();
        change(&mut identity);
        let found = ListenerTls::new(&ca.listener(vec![good.clone(), identity]));
        let found = only(found.unwrap_err());
        (found.input, found.fault)
    };
    let (certificate, key) = (TlsInput::Certificate(1), TlsInput::Key(1));
    let missing = only(ListenerTls::new(&ca.listener(Vec::new())).unwrap_err());
    assert_eq!(missing.fault, TlsFault::Missing);
    let found = with(&|identity| identity.certificate_pem.clear());
    assert_eq!(found, (certificate, TlsFault::NoCertificate));
    let found = with(&|identity| identity.key_pem.clear());
    assert_eq!(found, (key, TlsFault::NoKey));
    let found = with(&|identity| identity.key_pem = other.key_pem.clone());
    assert_eq!(found, (key, TlsFault::KeyMismatch));
    let found = with(&|identity| {
        let of_key = identity.certificate_pem.clone();
        identity.certificate_pem = [&ca.pem[..], &other.certificate_pem, &of_key].concat();
    });
    assert_eq!(found, (certificate, TlsFault::NotFirst(3)));
    // An X25519 key signs nothing.
    let unsupported = b"-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VuBCIEIAAAAAAAAAAAAAAAAAAAAAAAAAAA\nAAAAAAAAAAAAAAAA\n\
        -----END PRIVATE KEY-----\n";
    let found = with(&|identity| identity.key_pem = unsupported.to_vec());
    assert_eq!(found, (key, TlsFault::UnsupportedKey));
    let half = |pem: &mut Vec<u8>| pem.truncate(pem.len() / 2);
    let found = with(&|identity| half(&mut identity.certificate_pem));
    let no_end = |label: &str| {
        let reason = format!("its line '-----END {label}-----' is missing; is it half-written?");
        TlsFault::NotPem(reason)
    };
    assert_eq!(found, (certificate, no_end("CERTIFICATE")));
    let found = with(&|identity| half(&mut identity.key_pem));
    assert_eq!(found, (key, no_end("PRIVATE KEY")));
    // The text of a key in one line has no byte of the key.
    for (pem, words) in [
        (
            "-----BEGIN PRIVATE KEY-----c2VjcmV0\n-----END PRIVATE KEY-----\n",
            "a line begins with '-----BEGIN' and does not end with '-----'; is it half-written?",
        ),
        (
            "-----BEGIN PRIVATE KEY-----c2VjcmV0-----END PRIVATE KEY-----\n",
            "the line of its end is missing; is it half-written?",
        ),
        (
            "-----BEGIN PRIVATE KEY-----\nc2VjcmV0!\n-----END PRIVATE KEY-----\n",
            "the lines between BEGIN and END are not base64; is it half-written?",
        ),
    ] {
        let found = with(&|identity| identity.key_pem = pem.into());
        assert_eq!(found, (key, TlsFault::NotPem(words.to_owned())));
    }
    let encrypted =
        b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let found = with(&|identity| identity.key_pem = encrypted.to_vec());
    assert_eq!(found, (key, TlsFault::EncryptedKey));

    let mut listener = ca.listener(vec![good.clone()]);
    listener.client_auth = ClientAuth::Required;
    let found = only(ListenerTls::new(&listener).unwrap_err());
    assert_eq!(
        (found.input, found.fault),
        (TlsInput::ClientCa, TlsFault::Missing)
    );
    let mut server = ca.server();
    server.server_name = Some("not a name".to_owned());
    assert_eq!(
        only(ServerTls::new(&server).unwrap_err()).input,
        TlsInput::ServerName
    );
    server.server_name = None;
    server.roots = Roots::Pem(b"nothing".to_vec());
    let found = only(ServerTls::new(&server).unwrap_err());
    assert_eq!(
        (found.input, found.fault),
        (TlsInput::Roots, TlsFault::NoCertificate)
    );
}

/// A certificate that has expired or is not valid yet is shown all the same, and its peer says so.
#[test]
fn certificate_out_of_its_time_is_shown() {
    let ca = TestCa::new();
    for (from, to, words) in [
        (2000, 2001, "the server's certificate has expired"),
        (3000, 3001, "the server's certificate is not valid yet"),
    ] {
        let out_of_time = ca.issue_with("localhost", |params| {
            params.not_before = date_time_ymd(from, 1, 1);
            params.not_after = date_time_ymd(to, 1, 1);
        });
        let listener = ca.listener(vec![out_of_time]);
        let facts = ListenerTls::new(&listener).unwrap().certificates()[0].clone();
        let now = SystemTime::now();
        assert!(!facts.is_valid_at(now));
        assert_eq!(facts.has_expired_at(now), from == 2000);
        assert!(facts.is_valid_at(facts.not_before) && facts.is_valid_at(facts.not_after));
        let mut pair = TestPair::of_link(&listener, &ca.server());
        let text = pair.settle().unwrap_err();
        assert!(text.starts_with(words), "{text}");
    }
}

/// The names of a certificate and its use are read from its extensions.
#[test]
fn names_and_use_of_a_certificate_are_read() {
    let ca = TestCa::new();
    let facts = |names: &[&str], uses: &[ExtendedKeyUsagePurpose]| {
        let identity = ca.issue_with("", |params| {
            let names = names.iter().map(|name| (*name).to_owned());
            let of_names = CertificateParams::new(names.collect::<Vec<_>>()).unwrap();
            params.subject_alt_names = of_names.subject_alt_names;
            params.extended_key_usages = uses.to_vec();
        });
        let tls = ListenerTls::new(&ca.listener(vec![identity])).unwrap();
        let facts = tls.certificates()[0].clone();
        (facts.names, facts.is_for_servers)
    };
    let names = ["localhost", "127.0.0.1", "::1", "*.example"];
    assert_eq!(
        facts(&names, &[]),
        (names.map(str::to_owned).to_vec(), true)
    );
    let (client, server) = (
        ExtendedKeyUsagePurpose::ClientAuth,
        ExtendedKeyUsagePurpose::ServerAuth,
    );
    assert_eq!(
        facts(&[], std::slice::from_ref(&client)),
        (Vec::new(), false)
    );
    assert!(facts(&[], &[client, server]).1);
}

/// Without a CA in the system the problem names the package and the option, with the error of the
/// reading and without.
#[test]
fn system_without_ca_is_a_problem_with_a_remedy() {
    for error in [None, Some("failed to read PEM from file")] {
        let problem = ServerTls::new(&ServerTlsSettings {
            roots: Roots::System(SystemCas::none(error)),
            ..TestCa::new().server()
        });
        let text = only(problem.unwrap_err()).to_string();
        for words in ["ca-certificates", "server-tls-ca", error.unwrap_or("CA")] {
            assert!(text.contains(words), "{text}");
        }
    }
}

/// A server with a path as its address has no name, so its certificate needs a configured one.
#[test]
fn unix_socket_needs_a_configured_name() {
    let ca = TestCa::new();
    let path = Address::Unix("/run/redis.sock".into());
    let mut server = ca.server();
    server.server_name = None;
    let tls = ServerTls::new(&server).unwrap();
    let error = TlsStream::to_server(&tls, &path, &TlsMemory::default());
    assert!(error.unwrap_err().contains("server-tls-name"));
    server.verify = false;
    let tls = ServerTls::new(&server).unwrap();
    assert!(TlsStream::to_server(&tls, &path, &TlsMemory::default()).is_ok());
}

/// Settings show no key in logs.
#[test]
fn debug_text_has_no_key() {
    let ca = TestCa::new();
    let settings = ca.listener(vec![ca.issue("localhost")]);
    let text = format!("{settings:?}");
    assert!(
        !text.contains("PRIVATE") && !text.contains("45, 45, 45"),
        "{text}"
    );
}
