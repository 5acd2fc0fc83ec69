//! Certificates that change while respool runs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use respool_testkit::certificates::{CertificateFiles, TestCa, Validity};
use respool_testkit::client::{Reply, RespClient};
use respool_testkit::servers::{ReservedPort, ServerProcess, any_server};
use respool_testkit::time::wait_until;
use respool_testkit::tls_client::{TlsClient, TlsPeer};

use crate::admin::metrics::{get, pages_of};

use super::served::{HERE, TlsServed, ca, proxy};
use super::servers::{SecureServer, before, server_with_tls, tls_of};

/// Files are looked at every 5 s, and changed ones again a second later.
const SOON: Duration = Duration::from_secs(20);

/// The certificate that the listener shows.
fn shown(served: &TlsServed) -> Vec<u8> {
    let client = served.peer().connect(served.tls_address());
    let client = client.expect("a handshake");
    let shown = client.server_certificate();
    shown.expect("a server shows one").to_vec()
}

/// Writes both files in place, one after the other.
fn overwrite(files: &CertificateFiles, ca: &TestCa) {
    overwrite_for(files, ca, Validity::Now);
}

fn overwrite_for(files: &CertificateFiles, ca: &TestCa, validity: Validity) {
    let (certificate, key) = ca.pem(&HERE, validity).expect("a certificate");
    fs::write(&files.cert, certificate).expect("a new directory can be changed");
    fs::write(&files.key, key).expect("a new directory can be changed");
}

/// Puts both files into a new directory, and a symbolic link `..data` to it in the place of the old
/// one, as Kubernetes does.
fn swap(dir: &Path, version: &str, ca: &TestCa) {
    let (certificate, key) = ca.pem(&HERE, Validity::Now).expect("a certificate");
    let new = dir.join(format!("..{version}"));
    fs::create_dir(&new).expect("a new directory can be changed");
    fs::write(new.join("tls.crt"), certificate).expect("a new directory can be changed");
    fs::write(new.join("tls.key"), key).expect("a new directory can be changed");
    let link = dir.join("..data_tmp");
    symlink(&new, &link).expect("a new directory can be changed");
    fs::rename(&link, dir.join("..data")).expect("a new directory can be changed");
}

/// While clients connect all the time, no handshake fails, and each certificate is in use in the
/// end. Sessions from before stay.
#[test]
fn no_handshake_fails_while_certificates_change() {
    let served = TlsServed::start(|_| Vec::new());
    let mut old = served.peer().connect(served.tls_address()).unwrap();
    assert_eq!(old.call("SET key value"), Reply::ok());
    let (is_over, handshakes) = (AtomicBool::new(false), AtomicU64::new(0));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let config = served.peer().config().unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    let client = TlsClient::open(served.tls_address(), "localhost", config.clone());
                    let mut client = client.unwrap_or_else(|error| panic!("a handshake: {error}"));
                    assert_eq!(client.call("GET key"), Reply::bulk("value"));
                    handshakes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut seen = vec![shown(&served)];
        for _ in 0..2 {
            overwrite(&served.identity, &served.ca);
            let before = seen.clone();
            wait_until("the new certificate is shown", SOON, || {
                !before.contains(&shown(&served))
            });
            seen.push(shown(&served));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let rate = handshakes.into_inner() as f64 / began.elapsed().as_secs_f64();
    eprintln!("{rate:.0} handshakes a second");
    assert_eq!(old.call("GET key"), Reply::bulk("value"));
    let log = served.proxy.log();
    assert_eq!(
        log.matches("there are new certificates").count(),
        2,
        "{log}"
    );
}

/// A key that does not fit, a half-written certificate and a missing file change nothing. The log
/// says each once, and a metric counts them.
#[test]
fn wrong_pair_is_kept_out() {
    let served = TlsServed::start(|_| vec!["--metrics-listen=127.0.0.1:0".into()]);
    let pages = pages_of(&served.proxy);
    let first = shown(&served);
    let good = fs::read(&served.identity.cert).unwrap();
    let log_has = |text: &str, count: usize| {
        let log = || served.proxy.log().matches(text).count();
        wait_until(text, SOON, || log() >= count);
        assert_eq!(log(), count, "{}", served.proxy.log());
    };
    let stays = "the certificates from before stay";
    let (other, _) = served.ca.pem(&HERE, Validity::Now).unwrap();
    fs::write(&served.identity.cert, other).unwrap();
    log_has("does not match", 1);
    log_has(stays, 1);
    assert_eq!(shown(&served), first);
    fs::write(&served.identity.cert, &good[..good.len() / 2]).unwrap();
    log_has(stays, 2);
    assert_eq!(shown(&served), first);
    fs::remove_file(&served.identity.cert).unwrap();
    log_has("cannot be read", 1);
    log_has(stays, 3);
    assert_eq!(shown(&served), first);
    // The log repeats nothing while the files stay as they are.
    std::thread::sleep(Duration::from_secs(7));
    log_has(stays, 3);
    let counted = "\nrespool_tls_certificates_refused_total{of=\"listeners\"} 3\n";
    let page = get(pages, "/metrics").body;
    assert!(page.contains(counted), "{page}");
    overwrite(&served.identity, &served.ca);
    wait_until("the new certificate is shown", SOON, || {
        shown(&served) != first
    });
}

/// A listener's pair that has expired stops no start, no reload, and no other pair from being
/// replaced. The log warns of it at the start, and names the new certificates.
#[test]
fn expired_pair_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let ca = ca(folder.path(), "clients-trust-this");
    let good = ca.sign("good", &HERE).unwrap();
    let expired = ca
        .sign_for("expired", &["old.example"], Validity::Past)
        .unwrap();
    let server = ServerProcess::start::<&str>(&any_server(), &[]);
    let server = server.unwrap_or_else(|error| panic!("{error}"));
    let port = ReservedPort::new().unwrap_or_else(|error| panic!("{error}"));
    let file = folder.path().join("respool.toml");
    let text = |more: &str| {
        let [good, expired] = [&good, &expired]
            .map(|pair| [&pair.cert, &pair.key].map(|path| path.display().to_string()));
        format!(
            "threads = 2\nbackend = 'redis://{}'\ntls-listen = '127.0.0.1:{}'\n\
             tls-cert = ['{}', '{}']\ntls-key = ['{}', '{}']\n{more}",
            server.address(),
            port.port,
            good[0],
            expired[0],
            good[1],
            expired[1],
        )
    };
    fs::write(&file, text("")).unwrap();
    let proxy = proxy(&[format!("--config={}", file.display())]);
    let says = |words: &str| wait_until(words, SOON, || proxy.log().contains(words));
    says("(old.example) has expired at 2001-01-01T00:00:00Z: replace it, as clients refuse it");
    let address = ([127, 0, 0, 1], port.port).into();
    let shown = || {
        let client = TlsPeer::trusting(&ca.file).connect(address);
        let client = client.unwrap_or_else(|error| panic!("a handshake: {error}"));
        client.server_certificate().map(<[u8]>::to_vec)
    };
    let first = shown();
    overwrite_for(&good, &ca, Validity::UntilYear(2090));
    wait_until("the new certificate is shown", SOON, || shown() != first);
    says("certificates=\"localhost, 127.0.0.1, until 2090-01-01T00:00:00Z\"");
    fs::write(&file, text("sessions-max = 77\n")).unwrap();
    proxy.hang_up();
    says("configuration reloaded");
    assert_ne!(shown(), first);
}

/// A directory of Kubernetes, in which a symbolic link changes, is noticed. SIGHUP has respool look
/// at once.
#[test]
fn swapped_link_of_a_directory_is_noticed() {
    let linked = |ca: &TestCa, dir: &Path| {
        swap(dir, "1", ca);
        let file = |name: &str| {
            let link = dir.join(name);
            symlink(Path::new("..data").join(name), &link).unwrap();
            link
        };
        CertificateFiles {
            cert: file("tls.crt"),
            key: file("tls.key"),
        }
    };
    let served = TlsServed::start_with(linked, |_| Vec::new());
    let first = shown(&served);
    swap(&served.path(""), "2", &served.ca);
    served.proxy.hang_up();
    wait_until("the new certificate is shown", SOON, || {
        shown(&served) != first
    });
    let told = "there are new certificates";
    wait_until("the log tells of it", SOON, || {
        served.proxy.log().contains(told)
    });
    let log = served.proxy.log();
    assert_eq!(log.matches(told).count(), 1, "{log}");
}

/// Metrics show when the certificate in use expires.
#[test]
fn expiry_of_the_certificate_in_use_is_shown() {
    let sign = |ca: &TestCa, _: &Path| {
        let files = ca.sign_for("listener", &HERE, Validity::UntilYear(2090));
        files.expect("a certificate")
    };
    let served = TlsServed::start_with(sign, |_| vec!["--metrics-listen=127.0.0.1:0".into()]);
    let pages = pages_of(&served.proxy);
    let is_shown = |seconds: u64| {
        let file = served.identity.cert.display();
        let line = format!(
            "\nrespool_tls_certificate_expiry_time_seconds\
             {{option=\"tls-cert\",file=\"{file}\"}} {seconds}"
        );
        get(pages, "/metrics").body.contains(&line)
    };
    // 1 January 2090 and 2091.
    assert!(is_shown(3_786_912_000));
    overwrite_for(&served.identity, &served.ca, Validity::UntilYear(2091));
    wait_until("the new certificate is in use", SOON, || {
        is_shown(3_818_448_000)
    });
}

/// The CA of servers changes in its file: then a server is reached that was not trusted before.
#[test]
fn new_ca_of_servers_is_used_for_new_connections() {
    let Some(binary) = server_with_tls() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (right, wrong) = (ca(folder.path(), "right"), ca(folder.path(), "wrong"));
    let file = folder.path().join("trusted.crt");
    fs::copy(&wrong.file, &file).unwrap();
    let server = SecureServer::start(&binary, &tls_of(&right, &HERE, false));
    let url = format!("rediss://{}", server.tls_address());
    let trusted = format!("--server-tls-ca={}", file.display());
    // The back-off of before does not count.
    let pauses = ["--reconnect-min-ms=60000", "--reconnect-max-ms=60000"];
    let proxy = before(&url, &[trusted, pauses[0].into(), pauses[1].into()]);
    let mut client = RespClient::connect(proxy.address());
    wait_until("the server is not trusted", SOON, || {
        let reply = client.call("GET key");
        reply
            .error()
            .is_some_and(|text| text.contains("no trusted CA"))
    });
    fs::copy(&right.file, &file).unwrap();
    wait_until("the server is trusted", SOON, || {
        client.call("SET key value") == Reply::ok()
    });
    let log = proxy.log();
    assert_eq!(
        log.matches("there are new certificates").count(),
        1,
        "{log}"
    );
}
