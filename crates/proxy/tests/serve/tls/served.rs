//! A respool with a listener with TLS, before a plain server.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use respool_testkit::certificates::{CertificateFiles, TestCa};
use respool_testkit::servers::{Proxy, ReservedPort, ServerProcess, any_server};
use respool_testkit::tls_client::TlsPeer;

use crate::target::respool;

/// The names of a server in these tests.
pub(super) const HERE: [&str; 2] = ["localhost", "127.0.0.1"];

/// A respool with a plain listener and one with TLS, and its server.
pub(super) struct TlsServed {
    pub(super) proxy: Proxy,
    _server: ServerProcess,
    pub(super) ca: TestCa,
    /// The certificate of the listener.
    pub(super) identity: CertificateFiles,
    port: ReservedPort,
    folder: tempfile::TempDir,
}

impl TlsServed {
    /// Starts both. `args` makes further arguments of respool; it may sign certificates.
    pub(super) fn start(args: impl FnOnce(&TestCa) -> Vec<String>) -> TlsServed {
        TlsServed::start_with(|ca, _| sign(ca, "listener", &HERE), args)
    }

    /// The same. `identity` makes the certificate of the listener, in a directory of its choice.
    pub(super) fn start_with(
        identity: impl FnOnce(&TestCa, &Path) -> CertificateFiles,
        args: impl FnOnce(&TestCa) -> Vec<String>,
    ) -> TlsServed {
        let folder = tempfile::tempdir().expect("a directory");
        let ca = ca(folder.path(), "clients-trust-this");
        let identity = identity(&ca, folder.path());
        let server = ServerProcess::start(&any_server(), &[] as &[&str]);
        let server = server.unwrap_or_else(|error| panic!("{error}"));
        let port = ReservedPort::new().unwrap_or_else(|error| panic!("{error}"));
        let mut all = vec![
            "--threads=2".to_owned(),
            format!("--backend=redis://{}", server.address()),
            format!("--tls-listen=127.0.0.1:{}", port.port),
            format!("--tls-cert={}", identity.cert.display()),
            format!("--tls-key={}", identity.key.display()),
        ];
        all.extend(args(&ca));
        TlsServed {
            proxy: proxy(&all),
            _server: server,
            ca,
            identity,
            port,
            folder,
        }
    }

    /// Where clients with TLS connect.
    pub(super) fn tls_address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port.port))
    }

    /// A client that trusts the listener.
    pub(super) fn peer(&self) -> TlsPeer {
        TlsPeer::trusting(&self.ca.file)
    }

    /// A path in the directory of the test.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for TlsServed {
    fn drop(&mut self) {
        let log = self.proxy.log();
        if std::thread::panicking() {
            eprintln!("the log of respool:\n{log}");
        } else {
            assert!(!log.contains("panicked at"), "{log}");
        }
    }
}

/// A respool with these arguments.
pub(super) fn proxy(args: &[String]) -> Proxy {
    Proxy::start(&respool(), args).unwrap_or_else(|error| panic!("{error}"))
}

/// A CA in this directory.
pub(super) fn ca(dir: &Path, name: &str) -> TestCa {
    TestCa::new(dir, name).unwrap_or_else(|error| panic!("{error}"))
}

/// A certificate for these hosts.
pub(super) fn sign(ca: &TestCa, name: &str, hosts: &[&str]) -> CertificateFiles {
    ca.sign(name, hosts)
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}
