//! Passwords change in their files, and commands print new ones, while everything runs.

use std::path::Path;
use std::time::Duration;

use respool_testkit::client::{Reply, RespClient, one_of_each_worker, text};
use respool_testkit::counting::{AllowedFailures, counted};
use respool_testkit::servers::{Proxy, ServerProcess, installed};
use respool_testkit::time::wait_until;
use respool_testkit::topologies::{ClusterSettings, Sentinels, SentinelsSettings, TestCluster};

use crate::target::respool;
use crate::topology::cluster::{primaries, some_server};
use crate::topology::sentinel;

/// How soon a change must be seen.
const SOON: Duration = Duration::from_secs(5);

fn write(file: &Path, text: &str) {
    std::fs::write(file, text).unwrap_or_else(|error| panic!("{error}"));
}

/// Puts a symbolic link to a new file in the place of the old one, as Kubernetes does.
fn replace(file: &Path, text: &str) {
    let beside = |name: &str| file.with_file_name(format!("{name}-{text}"));
    let (target, link) = (beside("target"), beside("link"));
    write(&target, text);
    std::os::unix::fs::symlink(&target, &link).unwrap_or_else(|error| panic!("{error}"));
    std::fs::rename(&link, file).unwrap_or_else(|error| panic!("{error}"));
}

fn start(args: &[String]) -> Proxy {
    Proxy::start(&respool(), args).unwrap_or_else(|error| panic!("{error}"))
}

/// A connection to a server of its own, with its password.
fn admin(server: std::net::SocketAddr, password: &str) -> RespClient {
    let mut admin = RespClient::connect(server);
    assert_eq!(admin.call(&format!("AUTH {password}")), Reply::ok());
    admin
}

/// Every client connection but this one is closed.
fn close_others(admin: &mut RespClient) {
    for kind in ["normal", "pubsub"] {
        let closed = admin.call(&format!("CLIENT KILL TYPE {kind} SKIPME yes"));
        assert!(matches!(closed, Reply::Integer(_)), "{closed:?}");
    }
}

/// The file has the new password before connections are lost: then no request fails. The password
/// may become the first one again.
#[test]
fn no_request_fails_when_the_file_has_the_new_password() {
    for binary in installed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        write(&file, "one\n");
        let server = ServerProcess::start(&binary, &["--requirepass", "one"]);
        let server = server.unwrap_or_else(|error| panic!("{error}"));
        let proxy = start(&[
            format!("--backend=redis://{}", server.address()),
            format!("--backend-password-file={}", file.display()),
            "--threads=2".into(),
        ]);
        let mut clients = one_of_each_worker(proxy.address());
        assert_eq!(clients[0].call("SET key value"), Reply::ok());
        let mut admin = admin(server.address(), "one");
        for password in ["two", "one", "three"] {
            let set = format!("CONFIG SET requirepass {password}");
            assert_eq!(admin.call(&set), Reply::ok());
            match password {
                "three" => write(&file, "three\r\n"),
                _ => replace(&file, password),
            }
            for client in &mut clients {
                assert_eq!(client.call("GET key"), Reply::bulk("value"), "{password}");
            }
            // A link that was up for less than a second is not connected again at once.
            std::thread::sleep(Duration::from_millis(1_100));
            close_others(&mut admin);
            for client in &mut clients {
                assert_eq!(client.call("GET key"), Reply::bulk("value"), "{password}");
            }
            let mut newcomer = RespClient::connect(proxy.address());
            assert_eq!(newcomer.call("GET key"), Reply::bulk("value"), "{password}");
        }
        let log = proxy.log();
        let said = log.matches("the password file has a new password").count();
        assert_eq!(said, 3, "{log}");
        assert!(!log.contains("three"), "{log}");
    }
}

/// The file changes later than the server, as files of a cluster of machines do: respool finds it
/// by itself.
#[test]
fn file_that_changes_later_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    write(&file, "one");
    let server = ServerProcess::start(&some_server(), &["--requirepass", "one"]);
    let server = server.unwrap_or_else(|error| panic!("{error}"));
    let proxy = start(&[format!(
        "--backend=redis://{}?password-file={}",
        server.address(),
        file.display()
    )]);
    let mut client = RespClient::connect(proxy.address());
    assert_eq!(client.call("SET key value"), Reply::ok());
    let mut admin = admin(server.address(), "one");
    assert_eq!(admin.call("CONFIG SET requirepass two"), Reply::ok());
    write(&file, "");
    close_others(&mut admin);
    wait_until("the empty file was read", SOON, || {
        proxy.log().contains("the password from before stays")
    });
    wait_until("requests fail, since there is no password", SOON, || {
        let mut client = RespClient::connect(proxy.address());
        client.call("GET key").error().is_some()
    });
    write(&file, "two");
    wait_until("requests are answered again", SOON, || {
        client.call("GET key") == Reply::bulk("value")
    });
    let log = proxy.log();
    let said = log.matches("the password from before stays").count();
    assert_eq!(said, 1, "{log}");
}

/// At SIGHUP respool reads all password files: those of servers, of Sentinels and of its own users.
/// The log has a line for each file that has changed. An unreadable one leaves all passwords as
/// they were.
#[test]
fn sighup_reads_every_password_file_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["own", "a", "b"] {
        write(&path(name), "one");
    }
    let binary = some_server();
    let servers: Vec<ServerProcess> = ["a", "b"]
        .iter()
        .map(|_| ServerProcess::start(&binary, &["--requirepass", "one"]))
        .map(|server| server.unwrap_or_else(|error| panic!("{error}")))
        .collect();
    let config = path("respool.toml");
    let proxy = Proxy::start_with(&respool(), |port| {
        let pool = |name: &str, listen: &str, server: &ServerProcess| {
            let (at, file) = (server.address(), path(name));
            let file = file.display();
            format!(
                "[pool.{name}]\nlisten = '{listen}'\nbackend = 'redis://{at}?password-file={file}'\n"
            )
        };
        let text = format!(
            "threads = 2\npassword-file = '{}'\n{}{}",
            path("own").display(),
            pool("a", &format!("127.0.0.1:{port}"), &servers[0]),
            pool("b", "127.0.0.1:0", &servers[1]),
        );
        write(&config, &text);
        vec!["--config".into(), config.display().to_string()]
    });
    let proxy = proxy.unwrap_or_else(|error| panic!("{error}"));
    let mut client = RespClient::connect(proxy.address());
    assert_eq!(client.call("AUTH one"), Reply::ok());
    assert_eq!(client.call("SET key value"), Reply::ok());
    for server in &servers {
        let mut admin = admin(server.address(), "one");
        assert_eq!(admin.call("CONFIG SET requirepass two"), Reply::ok());
    }
    proxy.hang_up();
    wait_until("the log says that nothing has changed", SOON, || {
        proxy.log().contains("nothing has changed")
    });
    for name in ["own", "a"] {
        write(&path(name), "two");
    }
    std::fs::remove_file(path("b")).unwrap();
    proxy.hang_up();
    wait_until("the log has the problem", SOON, || {
        proxy.log().contains("nothing was reloaded")
    });
    let mut newcomer = RespClient::connect(proxy.address());
    assert!(newcomer.call("AUTH two").error().is_some());
    write(&path("b"), "one");
    proxy.hang_up();
    wait_until("the log has a line for each file", SOON, || {
        let log = proxy.log();
        // The thread that looks at the files may find a new password just before the reload does.
        let said = |name: &str| {
            let path = path(name).display().to_string();
            let found = |line: &str| line.contains(&path) && line.contains("has a new password");
            log.contains(&format!("{path}`: a new password")) || log.lines().any(found)
        };
        said("own") && said("a") && !said("b")
    });
    assert_eq!(client.call("GET key"), Reply::bulk("value"));
    let mut newcomer = RespClient::connect(proxy.address());
    assert!(newcomer.call("AUTH one").error().is_some());
    assert_eq!(newcomer.call("AUTH two"), Reply::ok());
    assert_eq!(newcomer.call("GET key"), Reply::bulk("value"));
    close_others(&mut admin(servers[0].address(), "two"));
    wait_until("requests are answered again", SOON, || {
        newcomer.call("GET key") == Reply::bulk("value")
    });
}

/// Every node of a Cluster takes the new password, and nodes that are met later do.
#[test]
fn nodes_of_a_cluster_take_the_new_password() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    write(&file, "one");
    let settings = ClusterSettings {
        password: Some("one".into()),
        ..primaries()
    };
    let cluster = TestCluster::start(&some_server(), settings);
    let cluster = cluster.unwrap_or_else(|error| panic!("{error}"));
    let addresses = cluster.addresses();
    let proxy = start(&[
        format!("--backend=redis-cluster://{}", addresses[0]),
        format!("--backend-password-file={}", file.display()),
    ]);
    let mut client = RespClient::connect(proxy.address());
    let mut write_all =
        || (0..30).all(|key| client.call(&format!("SET key:{key} 1")) == Reply::ok());
    wait_until("the Cluster is known", SOON, &mut write_all);
    for address in &addresses {
        let mut admin = admin(*address, "one");
        assert_eq!(admin.call("CONFIG SET requirepass two"), Reply::ok());
    }
    replace(&file, "two");
    for address in &addresses {
        close_others(&mut admin(*address, "two"));
    }
    wait_until("all nodes answer", SOON, write_all);
}

/// The number of calls of a command since the server's start, and of those that failed.
fn calls(admin: &mut RespClient, command: &str) -> (u64, u64) {
    let stats = text(&admin.call("INFO commandstats"));
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
    let field = |name: &str| {
        let mut fields = line.unwrap_or_default().split(',');
        let value = fields.find_map(|field| field.strip_prefix(&format!("{name}=")));
        value.map_or(0, |value| value.parse().expect("a number"))
    };
    (field("calls"), field("failed_calls"))
}

/// A server with the password `one`, and the folder of a file `token` with this text, which a
/// password command prints.
fn server_with_token(binary: &Path, text: &str) -> (ServerProcess, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    write(&folder.path().join("token"), text);
    let server = ServerProcess::start(binary, &["--requirepass", "one"]);
    (server.unwrap_or_else(|error| panic!("{error}")), folder)
}

/// Workers of the test with tokens.
const WORKERS: u64 = 2;

/// A token has a lifetime. Before it ends, respool gets the next token, and links that are up
/// authenticate with it. No request fails, and the server may forget the old token.
#[test]
fn no_request_fails_while_tokens_expire() {
    for binary in installed() {
        let (server, folder) = server_with_token(&binary, "one\n2\n");
        let file = folder.path().join("token");
        let proxy = start(&[
            format!("--backend=redis://{}", server.address()),
            format!("--backend-password-command=/bin/cat {}", file.display()),
            // A check of the login would be an AUTH, too.
            "--login-check-ms=0".into(),
            format!("--threads={WORKERS}"),
        ]);
        let mut admin = admin(server.address(), "one");
        let failures = AllowedFailures::Nothing;
        counted(proxy.address(), &mut admin, failures, |admin| {
            for (old, new) in [("one", "two"), ("two", "three")] {
                let both = format!("ACL SETUSER default >{new}");
                assert_eq!(admin.call(&both), Reply::ok());
                let (before, _) = calls(admin, "auth");
                let named = file.with_file_name(new);
                write(&named, &format!("{new}\n2\n"));
                std::fs::rename(&named, &file).unwrap_or_else(|error| panic!("{error}"));
                wait_until("the link of each worker authenticates anew", SOON, || {
                    calls(admin, "auth").0 >= before + WORKERS
                });
                let forget = format!("ACL SETUSER default <{old}");
                assert_eq!(admin.call(&forget), Reply::ok());
            }
        });
        assert_eq!(
            calls(&mut admin, "auth").1,
            0,
            "the server refused no token"
        );
        // New links use the newest token. A link that was up for less than a second is not
        // connected again at once.
        std::thread::sleep(Duration::from_millis(1_100));
        close_others(&mut admin);
        let mut newcomer = RespClient::connect(proxy.address());
        assert_eq!(newcomer.call("SET key value"), Reply::ok());
        let log = proxy.log();
        let said = log.matches("the password command has printed a new password");
        assert_eq!(said.count(), 2, "{log}");
        assert!(!log.contains("three"), "{log}");
    }
}

/// A reload runs the command, and links that are up authenticate with the new password. A command
/// that fails refuses the whole reload.
#[test]
fn reload_runs_the_command() {
    let (server, folder) = server_with_token(&some_server(), "one");
    let file = folder.path().join("token");
    let proxy = start(&[
        format!("--backend=redis://{}", server.address()),
        format!("--backend-password-command=/bin/cat {}", file.display()),
        // A check of the login would be an AUTH, too.
        "--login-check-ms=0".into(),
        "--threads=1".into(),
    ]);
    let mut client = RespClient::connect(proxy.address());
    assert_eq!(client.call("SET key value"), Reply::ok());
    let mut admin = admin(server.address(), "one");
    assert_eq!(admin.call("ACL SETUSER default >two"), Reply::ok());
    let (before, _) = calls(&mut admin, "auth");
    // A command runs once a second at the most.
    std::thread::sleep(Duration::from_millis(1_100));
    replace(&file, "two");
    proxy.hang_up();
    wait_until("the link authenticates anew", SOON, || {
        calls(&mut admin, "auth").0 > before
    });
    wait_until("the log says that the password is new", SOON, || {
        proxy.log().contains("`/bin/cat`: a new password")
    });
    assert_eq!(admin.call("ACL SETUSER default <one"), Reply::ok());
    std::fs::remove_file(&file).unwrap_or_else(|error| panic!("{error}"));
    std::thread::sleep(Duration::from_millis(1_100));
    proxy.hang_up();
    wait_until("the reload is refused", SOON, || {
        proxy.log().contains("nothing was reloaded")
    });
    close_others(&mut admin);
    wait_until("new links use the new password", SOON, || {
        client.call("GET key") == Reply::bulk("value")
    });
}

/// A command that fails leaves the password as it was, and requests go on. A server that refuses
/// the password has the command run again, at once.
#[test]
fn failed_command_leaves_the_password() {
    let (server, folder) = server_with_token(&some_server(), "one\n1");
    let file = folder.path().join("token");
    let proxy = start(&[format!(
        "--backend=redis://{}?password-command=/bin/cat%20{}",
        server.address(),
        file.display()
    )]);
    let mut client = RespClient::connect(proxy.address());
    assert_eq!(client.call("SET key value"), Reply::ok());
    std::fs::remove_file(&file).unwrap_or_else(|error| panic!("{error}"));
    wait_until("the log has the failure of the command", SOON, || {
        proxy.log().contains("the password from before stays")
    });
    let log = proxy.log();
    assert!(
        log.contains("failed with exit status: 1: it wrote: "),
        "{log}"
    );
    assert_eq!(client.call("GET key"), Reply::bulk("value"));
    let mut admin = admin(server.address(), "one");
    assert_eq!(admin.call("CONFIG SET requirepass two"), Reply::ok());
    write(&file, "two");
    close_others(&mut admin);
    wait_until("requests are answered again", SOON, || {
        client.call("GET key") == Reply::bulk("value")
    });
    // The command runs on, and the server goes on to refuse its passwords.
    assert_eq!(admin.call("CONFIG SET requirepass three"), Reply::ok());
    close_others(&mut admin);
    wait_until("the log names the refused command", SOON, || {
        let log = proxy.log();
        log.contains("a server refuses the password that `/bin/cat` prints")
    });
}

/// The Sentinels' password has a file of its own.
#[test]
fn sentinels_take_the_new_password() {
    sentinels_take_a_password(["password-file=", "sentinel-password-file="]);
}

/// The Sentinels' password comes from a command of its own.
#[test]
fn sentinels_take_the_password_of_a_command() {
    let cat = ["password-command=", "sentinel-password-command="];
    sentinels_take_a_password(cat.map(|name| format!("{name}/bin/cat%20")));
}

/// The Sentinels' password changes. `parameters`: those of the URL for the passwords of servers and
/// Sentinels, which end with the path of a file.
fn sentinels_take_a_password(parameters: [impl std::fmt::Display; 2]) {
    let folder = tempfile::tempdir().expect("a folder");
    let [servers, sentinels] = ["servers", "sentinels"].map(|name| folder.path().join(name));
    write(&servers, "of-servers");
    write(&sentinels, "one");
    let settings = SentinelsSettings {
        sentinels: 1,
        quorum: 1,
        watched: 1,
        password: Some("of-servers".into()),
        sentinel_password: Some("one".into()),
        ..SentinelsSettings::default()
    };
    let served = Sentinels::start(&sentinel::some_server(3), &settings);
    let served = served.unwrap_or_else(|error| panic!("{error}"));
    let at = served.addresses()[0];
    let proxy = start(&[format!(
        "--backend=redis-sentinel://{at}/{}?{}{}&{}{}",
        served.watched(0).name(),
        parameters[0],
        servers.display(),
        parameters[1],
        sentinels.display()
    )]);
    let mut client = RespClient::connect(proxy.address());
    wait_until("the primary is known", SOON, || {
        client.call("SET key value") == Reply::ok()
    });
    let mut admin = admin(at, "one");
    let set = admin.call("ACL SETUSER default resetpass >two");
    assert_eq!(set, Reply::ok());
    replace(&sentinels, "two");
    // A link that comes up from here on has shown the new password. The two lines come in either
    // order: a worker may use the password before its thread has written to the log.
    let seen = proxy.log().len();
    close_others(&mut admin);
    wait_until("the Sentinel is listened to again", SOON, || {
        let log = proxy.log();
        let link_up = format!("link up worker=0 server={at}");
        log[seen..].contains(&link_up) && log[seen..].contains("a new password")
    });
    assert_eq!(client.call("GET key"), Reply::bulk("value"));
}
