//! The other side of a connection is the program `openssl`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::Duration;

use respool_testkit::certificates::CertificateFiles;
use respool_testkit::children;
use respool_testkit::client::{Reply, RespClient};
use respool_testkit::servers::{ReservedPort, ServerProcess, any_server, find_program};
use respool_testkit::time::wait_until;
use respool_testkit::topologies::TestTls;

use super::served::{HERE, TlsServed, ca, proxy, sign};
use super::servers::{SecureServer, before, server_with_tls, wait_until_served};

/// How soon a new link must be up.
const SOON: Duration = Duration::from_secs(10);

/// openssl reads one command at a time, if the next line comes this much later.
const MOMENT: Duration = Duration::from_millis(300);
/// More than one record of TLS, and less than a request that gets a link of its own: `s_server` has
/// one connection at a time.
const VALUE_BYTES: usize = 40_000;

/// A child that ends with the test.
struct Openssl(Child);

impl Openssl {
    /// Starts a command of openssl with its input and output as pipes.
    fn start(arrange: impl FnOnce(&mut Command)) -> Openssl {
        let program = find_program("openssl").unwrap_or_else(|reason| panic!("{reason}"));
        let mut command = Command::new(program);
        arrange(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::null());
        Openssl(children::spawn(command).unwrap_or_else(|error| panic!("openssl: {error}")))
    }
}

impl Drop for Openssl {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `s_client` gets its replies with TLS 1.2 and 1.3, and behind a change of keys within the
/// connection.
#[test]
fn s_client_gets_replies_behind_a_change_of_keys() {
    let served = TlsServed::start(|_| Vec::new());
    for version in ["-tls1_2", "-tls1_3"] {
        let mut openssl = Openssl::start(|command| {
            command.args(["s_client", version, "-verify_return_error", "-connect"]);
            command.arg(served.tls_address().to_string());
            command.arg("-CAfile").arg(&served.ca.file);
        });
        let mut input = openssl.0.stdin.take().unwrap();
        let mut output = BufReader::new(openssl.0.stdout.take().unwrap()).lines();
        let mut said = |line: &str, input: &mut ChildStdin| {
            writeln!(input, "{line}").unwrap();
            output.find_map(|line| {
                let line = line.unwrap();
                line.starts_with(['+', '$', ':']).then_some(line)
            })
        };
        assert_eq!(
            said("SET key value", &mut input).as_deref(),
            Some("+OK"),
            "{version}"
        );
        assert_eq!(
            said("STRLEN key", &mut input).as_deref(),
            Some(":5"),
            "{version}"
        );
        if version == "-tls1_3" {
            // A read that begins with `K` changes the keys of the client's direction and asks for
            // new ones of respool's direction. The rest of the read is dropped.
            writeln!(input, "K").unwrap();
            thread::sleep(MOMENT);
            assert_eq!(said("GET key", &mut input).as_deref(), Some("$5"));
        }
    }
}

/// Runs openssl to its end.
fn run_openssl(args: &[&str]) {
    let program = find_program("openssl").unwrap_or_else(|reason| panic!("{reason}"));
    let ran = Command::new(program).args(args).output().expect("it runs");
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{args:?}: {errors}");
}

/// Certificates that are signed without extensions are of X.509 v1. respool has one as a client of
/// a server and at its listener. It takes one of a server if it checks none, and else names the
/// version.
#[test]
fn certificates_of_v1_connect_where_none_is_checked() {
    let Some(binary) = server_with_tls() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a directory");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let new_key = ["-newkey", "rsa:2048", "-nodes", "-subj"];
    let (ca, ca_key) = (path("ca.crt"), path("ca.key"));
    let own = ["req", "-x509", "-keyout", &ca_key, "-out", &ca];
    run_openssl(&[&own[..], &new_key, &["/CN=CA"]].concat());
    let (cert, key, csr) = (path("tls.crt"), path("tls.key"), path("tls.csr"));
    let asked = ["req", "-keyout", &key, "-out", &csr];
    run_openssl(&[&asked[..], &new_key, &["/CN=localhost"]].concat());
    let signed = ["x509", "-req", "-in", &csr, "-CA", &ca, "-CAkey", &ca_key];
    run_openssl(&[&signed[..], &["-CAcreateserial", "-out", &cert]].concat());
    let server = SecureServer::start(
        &binary,
        &TestTls {
            identity: CertificateFiles {
                cert: cert.clone().into(),
                key: key.clone().into(),
            },
            ca: ca.clone().into(),
            asks_clients: true,
        },
    );
    let url = format!("rediss://{}", server.tls_address());
    let as_client = [
        format!("--server-tls-cert={cert}"),
        format!("--server-tls-key={key}"),
    ];
    let with = |more: &[String]| before(&url, &[&as_client[..], more].concat());
    let port = ReservedPort::new().unwrap_or_else(|error| panic!("{error}"));
    let unchecked = with(&[
        "--server-tls-verify=no".to_owned(),
        format!("--tls-listen=127.0.0.1:{}", port.port),
        format!("--tls-cert={cert}"),
        format!("--tls-key={key}"),
    ]);
    wait_until_served(&unchecked);
    let mut openssl = Openssl::start(|command| {
        command.args(["s_client", "-quiet", "-verify_return_error", "-connect"]);
        command.arg(format!("127.0.0.1:{}", port.port));
        command.args(["-CAfile", &ca]);
    });
    let mut input = openssl.0.stdin.take().unwrap();
    writeln!(input, "PING").unwrap();
    let mut line = String::new();
    let output = openssl.0.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    assert_eq!(line.trim_end(), "+PONG");
    let checked = with(&[format!("--server-tls-ca={ca}")]);
    let mut client = RespClient::connect(checked.address());
    wait_until("the error names the version", SOON, || {
        let reply = client.call("GET key");
        let text = reply.error().unwrap_or_default();
        text.contains("X.509 v1; sign it with extensions")
    });
}

/// Passes bytes on until one side ends. `io::copy` would splice, and lock the pipe while it waits
/// for bytes of the socket.
fn pass_on(from: &mut impl Read, to: &mut impl Write) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

/// A link to `s_server` carries requests and replies. Behind it is a real server.
#[test]
fn link_to_s_server_carries_requests() {
    let folder = tempfile::tempdir().expect("a directory");
    let ca = ca(folder.path(), "servers");
    let identity = sign(&ca, "server", &HERE);
    let server = ServerProcess::start(&any_server(), &[] as &[&str]);
    let server = server.unwrap_or_else(|error| panic!("{error}"));
    let port = ReservedPort::new().unwrap_or_else(|error| panic!("{error}"));
    let mut openssl = Openssl::start(|command| {
        command.args(["s_server", "-quiet", "-tls1_3", "-accept"]);
        command.arg(port.port.to_string());
        command.arg("-cert").arg(&identity.cert);
        command.arg("-key").arg(&identity.key);
    });
    let mut input = openssl.0.stdin.take().unwrap();
    let mut output = openssl.0.stdout.take().unwrap();
    let plain = TcpStream::connect(server.address()).unwrap();
    let (mut to_server, mut from_server) = (plain.try_clone().unwrap(), plain.try_clone().unwrap());
    // They end when the test ends openssl or the connection.
    let up = thread::spawn(move || pass_on(&mut output, &mut to_server));
    let down = thread::spawn(move || pass_on(&mut from_server, &mut input));
    let proxy = proxy(&[
        "--threads=1".to_owned(),
        "--outage-hold-ms=10000".to_owned(),
        format!("--backend=rediss://127.0.0.1:{}", port.port),
        format!("--server-tls-ca={}", ca.file.display()),
    ]);
    let mut client = RespClient::connect(proxy.address());
    wait_until("the link is up", SOON, || {
        client.call("SET key value") == Reply::ok()
    });
    assert_eq!(client.call("GET key"), Reply::bulk("value"));
    let large = "x".repeat(VALUE_BYTES);
    let stored = client.call_args(&["SET", "large", &large]);
    assert_eq!(stored, Reply::ok());
    assert!(client.call("GET large") == Reply::bulk(&large));
    drop(openssl);
    plain.shutdown(Shutdown::Both).unwrap();
    let _ = (up.join(), down.join());
}
