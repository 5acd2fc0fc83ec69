//! The options about TLS change at a reload.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

use respool_testkit::certificates::{CertificateFiles, TestCa, Validity};
use respool_testkit::client::{Reply, RespClient, counter};
use respool_testkit::say;
use respool_testkit::servers::{Proxy, ReservedPort, ServerProcess, any_server};
use respool_testkit::time::wait_until;
use respool_testkit::tls_client::TlsPeer;
use rustls::version::{TLS12, TLS13};

use crate::target::respool;

use super::served::{HERE, ca, proxy, sign};
use super::servers::{SecureServer, server_with_tls, tls_of};

/// How soon a change must be seen.
const SOON: Duration = Duration::from_secs(10);

/// Writes a configuration and has it reloaded, which must succeed.
fn reload(proxy: &Proxy, file: &std::path::Path, text: &str) {
    let mut client = RespClient::connect(proxy.address());
    let before = counter(&mut client, "config_epoch");
    fs::write(file, text).expect("a new directory can be changed");
    proxy.hang_up();
    wait_until("the configuration is in effect", SOON, || {
        counter(&mut client, "config_epoch") == before + 1
    });
}

/// Waits until requests fail because no trusted CA has signed the server's certificate.
fn wait_for_distrust(client: &mut RespClient) {
    wait_until("the server is not trusted", SOON, || {
        let reply = client.call("GET key");
        reply
            .error()
            .is_some_and(|text| text.contains("no trusted CA"))
    });
}

/// Waits until the server is reached.
fn wait_for_trust(client: &mut RespClient) {
    wait_until("the server is trusted", SOON, || {
        client.call("SET key value") == Reply::ok()
    });
}

/// A listener takes other certificates, the check of clients and the version for new clients.
/// Sessions stay. A key of another certificate refuses the whole reload.
#[test]
fn tls_of_listeners_changes_at_a_reload() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("respool.toml");
    let trusted = ca(folder.path(), "trusted");
    let [first, second] = ["first", "second"].map(|name| sign(&trusted, name, &HERE));
    let server = ServerProcess::start::<&str>(&any_server(), &[]);
    let server = server.unwrap_or_else(|error| panic!("{error}"));
    let port = ReservedPort::new().unwrap_or_else(|error| panic!("{error}"));
    let text = |identity: &CertificateFiles, more: &str| {
        format!(
            "threads = 2\nbackend = 'redis://{}'\ntls-listen = '127.0.0.1:{}'\n\
             tls-cert = '{}'\ntls-key = '{}'\n{more}\n",
            server.address(),
            port.port,
            identity.cert.display(),
            identity.key.display(),
        )
    };
    fs::write(&file, text(&first, "")).unwrap();
    let proxy = proxy(&[format!("--config={}", file.display())]);
    let address = ([127, 0, 0, 1], port.port).into();
    let is_served = |peer: TlsPeer| {
        let client = peer.connect(address);
        let reply = client.and_then(|mut client| client.try_call("PING"));
        reply.is_ok_and(|reply| reply == Reply::Simple("PONG".into()))
    };
    let peer = || TlsPeer::trusting(&trusted.file);
    let mut old = peer().connect(address).unwrap();
    assert_eq!(old.call("SET key value"), Reply::ok());
    let shown = || {
        let client = peer().connect(address).unwrap();
        client.server_certificate().map(<[u8]>::to_vec)
    };
    let of_first = shown();

    reload(&proxy, &file, &text(&second, ""));
    // Each worker has a listener, so several clients ask.
    (0..8).for_each(|_| assert_ne!(shown(), of_first));

    let checked = format!(
        "tls-client-auth = 'required'\ntls-ca = '{}'",
        trusted.file.display()
    );
    reload(&proxy, &file, &text(&second, &checked));
    let known = sign(&trusted, "client", &["client"]);
    (0..8).for_each(|_| assert!(!is_served(peer())));
    assert!(is_served(peer().with(&known)));

    reload(&proxy, &file, &text(&second, "tls-min-version = '1.3'"));
    (0..8).for_each(|_| assert!(!is_served(peer().speaking(&TLS12))));
    assert!(is_served(peer().speaking(&TLS13)));

    let mixed = CertificateFiles {
        cert: first.cert.clone(),
        key: second.key.clone(),
    };
    fs::write(&file, text(&mixed, "")).unwrap();
    proxy.hang_up();
    wait_until("the reload is refused", SOON, || {
        proxy.log().contains("nothing was reloaded")
    });
    assert!(!is_served(peer().speaking(&TLS12)));
    assert!(is_served(peer()));
    assert_eq!(old.call("GET key"), Reply::bulk("value"));
}

/// A server with TLS, and a folder with the CA of its certificate and another CA. `None`: no
/// installed server has TLS.
fn server_and_cas() -> Option<(SecureServer, tempfile::TempDir, [TestCa; 2])> {
    let binary = server_with_tls()?;
    let folder = tempfile::tempdir().expect("a directory");
    let cas = ["right", "wrong"].map(|name| ca(folder.path(), name));
    let server = SecureServer::start(&binary, &tls_of(&cas[0], &HERE, false));
    Some((server, folder, cas))
}

/// The CA of servers is named by a reload: then a server is reached that was not trusted before.
#[test]
fn tls_of_servers_changes_at_a_reload() {
    let Some((server, folder, [right, wrong])) = server_and_cas() else {
        return;
    };
    let file = folder.path().join("respool.toml");
    let text = |ca: &std::path::Path| {
        format!(
            "threads = 2\nbackend = 'rediss://{}'\nserver-tls-ca = '{}'\n\
             reconnect-min-ms = 60000\nreconnect-max-ms = 60000\n",
            server.tls_address(),
            ca.display()
        )
    };
    fs::write(&file, text(&wrong.file)).unwrap();
    let proxy = proxy(&[format!("--config={}", file.display())]);
    let mut client = RespClient::connect(proxy.address());
    wait_for_distrust(&mut client);
    reload(&proxy, &file, &text(&right.file));
    wait_for_trust(&mut client);
}

/// The CAs of the system are read again by a reload, although no option has changed. When another
/// file is found changed, they are not.
#[test]
fn cas_of_the_system_change_at_a_reload() {
    let Some((server, folder, [right, wrong])) = server_and_cas() else {
        return;
    };
    let file = folder.path().join("respool.toml");
    let own = |name: &str| folder.path().join(name);
    let renew = || {
        let (certificate, key) = right.pem(&["client"], Validity::Now).unwrap();
        fs::write(own("own.key"), key).unwrap();
        fs::write(own("own.pem"), certificate).unwrap();
    };
    renew();
    let text = format!(
        "threads = 2\nbackend = 'rediss://{}'\nserver-tls-cert = '{}'\nserver-tls-key = '{}'\n",
        server.tls_address(),
        own("own.pem").display(),
        own("own.key").display(),
    );
    fs::write(&file, &text).unwrap();
    let system = folder.path().join("system.pem");
    fs::copy(&wrong.file, &system).unwrap();
    // The variable names the file of the system's CAs.
    let script = folder.path().join("respool.sh");
    let lines = format!(
        "#!/bin/sh\nSSL_CERT_FILE='{}' exec '{}' \"$@\"\n",
        system.display(),
        respool().display()
    );
    fs::write(&script, lines).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
    let config = format!("--config={}", file.display());
    let proxy = Proxy::start(&script, &[config]).unwrap_or_else(|error| panic!("{error}"));
    let mut client = RespClient::connect(proxy.address());
    wait_for_distrust(&mut client);
    fs::copy(&right.file, &system).unwrap();
    renew();
    wait_until("the new certificate is found", 3 * SOON, || {
        proxy.log().contains("there are new certificates")
    });
    let log = proxy.log();
    let (own_pem, own_key) = (own("own.pem"), own("own.key"));
    let changed = format!("files=\"{}, {}\"", own_pem.display(), own_key.display());
    assert!(log.contains(&changed), "{log}");
    for _ in 0..15 {
        let reply = client.call("GET key");
        assert!(reply.error().is_some(), "{reply:?}");
        thread::sleep(Duration::from_millis(100));
    }
    reload(&proxy, &file, &text);
    // The certificate of respool has not changed since, so it is not named.
    wait_until("the log names the CAs", SOON, || {
        let log = proxy.log();
        log.contains("reload: the CAs of the system: there are new certificates")
    });
    wait_for_trust(&mut client);
}

/// The servers are reached over TLS after a reload, and without it after another one. Sessions
/// stay.
#[test]
fn tls_to_servers_begins_and_ends_at_a_reload() {
    let Some(binary) = server_with_tls() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("respool.toml");
    let ca = ca(folder.path(), "right");
    let secure = SecureServer::start(&binary, &tls_of(&ca, &HERE, false));
    let plain = ServerProcess::start::<&str>(&any_server(), &[]);
    let plain = plain.unwrap_or_else(|error| panic!("{error}"));
    let plainly = format!("threads = 2\nbackend = 'redis://{}'\n", plain.address());
    let securely = format!(
        "threads = 2\nbackend = 'rediss://{}'\nserver-tls-ca = '{}'\n",
        secure.tls_address(),
        ca.file.display()
    );
    fs::write(&file, &plainly).unwrap();
    let proxy = proxy(&[format!("--config={}", file.display())]);
    let mut client = RespClient::connect(proxy.address());
    assert_eq!(client.call("SET at plain"), Reply::ok());
    for _ in 0..2 {
        reload(&proxy, &file, &securely);
        wait_until("the session is at the server with TLS", SOON, || {
            client.call("GET at") != Reply::bulk("plain")
        });
        assert_eq!(client.call("SET at secure"), Reply::ok());
        reload(&proxy, &file, &plainly);
        wait_until("the session is at the plain server", SOON, || {
            client.call("GET at") == Reply::bulk("plain")
        });
    }
}

/// Servers with TLS that a reload has ended leave no memory of their TLS behind, be their CAs many.
#[test]
fn ended_servers_leave_no_tls_behind() {
    const GROWTH_BYTES_MAX: u64 = 4 << 20;
    let Some(binary) = server_with_tls() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let own = ca(folder.path(), "own");
    let server = SecureServer::start(&binary, &tls_of(&own, &HERE, false));
    let plain = ServerProcess::start::<&str>(&binary, &[]);
    let plain = plain.unwrap_or_else(|error| panic!("{error}"));
    let mut bundle = fs::read(&own.file).unwrap();
    for number in 0..140 {
        let other = ca(folder.path(), &format!("other-{number}"));
        bundle.extend(fs::read(&other.file).unwrap());
    }
    let cas = folder.path().join("bundle.crt");
    fs::write(&cas, bundle).unwrap();
    let file = folder.path().join("respool.toml");
    let text = |round: usize| {
        let backend = match round % 2 {
            0 => format!("'redis://{}'", plain.address()),
            _ => format!(
                "'rediss://{}'\nserver-tls-ca = '{}'",
                server.tls_address(),
                cas.display()
            ),
        };
        format!("threads = 1\nbackend = {backend}\n")
    };
    fs::write(&file, text(0)).unwrap();
    let proxy = proxy(&[format!("--config={}", file.display())]);
    let mut client = RespClient::connect(proxy.address());
    let mut change = |round: usize| {
        reload(&proxy, &file, &text(round));
        assert_eq!(client.call(&format!("SET round {round}")), Reply::ok());
    };
    (1..40).for_each(&mut change);
    thread::sleep(Duration::from_millis(500));
    let memory = proxy.rss();
    (40..340).for_each(&mut change);
    let grown = proxy.rss().saturating_sub(memory);
    say(&format!(
        "resident memory: {memory} bytes, {grown} more after 300 changes of the servers"
    ));
    assert!(
        grown <= GROWTH_BYTES_MAX,
        "{grown} bytes more than {memory}"
    );
}
