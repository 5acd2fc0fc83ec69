//! The configuration changes while everything runs.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use respool_testkit::client::{Reply, RespClient, counter, one_of_each_worker, texts};
use respool_testkit::say;
use respool_testkit::servers::{Proxy, ServerProcess, any_server};
use respool_testkit::time::wait_until;

use crate::target::respool;

/// How soon a change must be seen.
const SOON: Duration = Duration::from_secs(10);

/// The configuration of a respool with a control socket: two workers, and these lines.
struct Reloadable {
    _server: ServerProcess,
    proxy: Proxy,
    folder: tempfile::TempDir,
    /// The lines that stay.
    fixed: String,
}

impl Drop for Reloadable {
    fn drop(&mut self) {
        if thread::panicking() {
            say(&format!("its log:\n{}", self.proxy.log()));
        }
    }
}

impl Reloadable {
    fn start(lines: &str) -> Reloadable {
        let server = ServerProcess::start::<&str>(&any_server(), &[]);
        let server = server.unwrap_or_else(|error| panic!("{error}"));
        let folder = tempfile::tempdir().expect("a directory");
        let fixed = |port: u16| {
            format!(
                "threads = 2\nbackend = 'redis://{}'\ncontrol-socket = '{}'\n\
                 listen = ['127.0.0.1:{port}'MORE]\n",
                server.address(),
                folder.path().join("control.sock").display(),
            )
        };
        let proxy = Proxy::start_with(&respool(), |port| {
            swap(folder.path(), &configuration(&fixed(port), "", lines));
            vec!["--config".into(), file(folder.path()).display().to_string()]
        });
        let proxy = proxy.unwrap_or_else(|error| panic!("{error}"));
        // A test that counts descriptors counts those of both workers' links, and of no client.
        wait_until("each worker has its link", SOON, || {
            proxy.log().matches("link up").count() >= 2
        });
        let fixed = fixed(proxy.address().port());
        Reloadable {
            _server: server,
            proxy,
            folder,
            fixed,
        }
    }

    fn client(&self) -> RespClient {
        RespClient::connect(self.proxy.address())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes another configuration, with further listeners.
    fn write_with(&self, more: &str, lines: &str) {
        swap(self.folder.path(), &configuration(&self.fixed, more, lines));
    }

    fn write(&self, lines: &str) {
        self.write_with("", lines);
    }

    /// Asks through the control socket, again while respool is not ready. Returns the status and
    /// the lines.
    fn ask(&self, request: &str) -> (String, String) {
        loop {
            let (status, lines) = self.ask_once(request);
            if !lines.contains("not ready yet") {
                return (status, lines);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn ask_once(&self, request: &str) -> (String, String) {
        let mut stream =
            UnixStream::connect(self.path("control.sock")).expect("the control socket");
        writeln!(stream, "{request}").expect("the process reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (status, lines) = answer.split_once('\n').expect("a status");
        (status.to_owned(), lines.to_owned())
    }

    /// Waits until the process has no more descriptors than it had. A connection that has just
    /// ended, such as that of the last reload, keeps its descriptor for a moment.
    fn keeps_at_most(&self, descriptors: usize) {
        wait_until("no descriptor is left over", SOON, || {
            self.proxy.fds() <= descriptors
        });
    }

    /// Reloads, which must succeed. Returns the lines.
    fn reload(&self) -> String {
        let (status, lines) = self.ask("reload");
        assert_eq!(status, "good", "{lines}");
        lines
    }

    /// Reloads, which must change nothing. Returns the lines.
    fn reload_in_vain(&self) -> String {
        let (status, lines) = self.ask("reload");
        assert_eq!(status, "failed", "{lines}");
        assert!(lines.contains("nothing was reloaded"), "{lines}");
        lines
    }
}

/// The lines that stay, further listeners, and lines in front of them.
fn configuration(fixed: &str, more: &str, lines: &str) -> String {
    format!("{lines}\n{}", fixed.replace("MORE", more))
}

fn file(folder: &Path) -> PathBuf {
    folder.join("respool.toml")
}

/// Puts a symbolic link to a new file in the place of the old one, as Kubernetes does. Removes the
/// old file.
fn swap(folder: &Path, text: &str) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let (target, link) = (folder.join(format!("data-{number}")), folder.join("link"));
    let before = std::fs::read_link(file(folder));
    std::fs::write(&target, text).expect("a new directory can be changed");
    std::os::unix::fs::symlink(&target, &link).expect("a new directory can be changed");
    std::fs::rename(&link, file(folder)).expect("a new directory can be changed");
    if let Ok(before) = before {
        std::fs::remove_file(before).expect("a new directory can be changed");
    }
}

/// The value of an option of respool, as CONFIG GET shows it.
fn value(client: &mut RespClient, option: &str) -> String {
    let reply = client.call(&format!("CONFIG GET respool.{option}"));
    texts(&reply).pop().expect("a value")
}

/// New values hold in every worker, for sessions that are connected already. An old value of the
/// file holds again.
#[test]
fn new_values_hold_in_every_worker() {
    let served = Reloadable::start("refuse-commands = ['flushall']\n");
    let mut clients = one_of_each_worker(served.proxy.address());
    for client in &mut clients {
        assert_eq!(value(client, "max-delay-us"), "200");
        assert_eq!(client.call("SET key value"), Reply::ok());
        assert_eq!(client.call("FLUSHDB"), Reply::ok());
    }
    served.write("refuse-commands = ['set', 'flushdb']\nmax-delay-us = 321\nfuse = false\n");
    let lines = served.reload();
    assert!(lines.contains("max-delay-us: 200 becomes 321"), "{lines}");
    for client in &mut clients {
        assert_eq!(value(client, "max-delay-us"), "321");
        assert_eq!(value(client, "fuse"), "no");
        assert!(client.call("SET key value").error().is_some());
        assert!(client.call("FLUSHDB").error().is_some());
        assert_eq!(counter(client, "config_epoch"), 1);
    }
    served.write("refuse-commands = ['flushall']\n");
    served.proxy.hang_up();
    for client in &mut clients {
        wait_until("the values from before hold", SOON, || {
            client.call("SET key value") == Reply::ok()
        });
        assert_eq!(value(client, "max-delay-us"), "200");
        assert_eq!(counter(client, "config_epoch"), 2);
        assert_eq!(counter(client, "config_reload_success"), 1);
        assert!(counter(client, "config_reload_at") > 1_700_000_000);
    }
    let log = served.proxy.log();
    assert!(log.contains("configuration reloaded"), "{log}");
}

/// A file with a problem changes nothing, and each problem has its place.
#[test]
fn file_with_a_problem_changes_nothing() {
    let served = Reloadable::start("");
    let mut clients = one_of_each_worker(served.proxy.address());
    let descriptors = served.proxy.fds();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    let missing = served.path("missing").display().to_string();
    let whole = configuration(&served.fixed, "", "max-delay-us = 500\nfuse = false");
    let half = &whole[..whole.len() - 10];
    let mut failures = 0;
    let mut fails = |text: &str, problem: &str, clients: &mut Vec<RespClient>| {
        swap(served.folder.path(), text);
        let lines = served.reload_in_vain();
        assert!(lines.contains(problem), "{lines}");
        failures += 1;
        for client in clients {
            wait_until("INFO has the failure", SOON, || {
                counter(client, "config_reload_failures") == failures
            });
            assert_eq!(counter(client, "config_reload_success"), 0);
            assert_eq!(counter(client, "config_epoch"), 0);
            assert_eq!(value(client, "max-delay-us"), "200");
        }
    };
    fails(half, "respool.toml:", &mut clients);
    for empty in ["", " \n\n"] {
        fails(
            empty,
            "respool.toml` is empty, and the file in effect was not",
            &mut clients,
        );
    }
    let with = |more: &str, lines: &str| configuration(&served.fixed, more, lines);
    let wrong = "max-delay-us = 500\nfuse = 3\nsessions-max = 0\n";
    fails(&with("", wrong), "respool.toml:2:", &mut clients);
    fails(&with("", wrong), "respool.toml:3:", &mut clients);
    let lines = format!("max-delay-us = 500\nbackend-password-file = '{missing}'\n");
    fails(&with("", &lines), "cannot be read", &mut clients);
    let taken = format!(", '127.0.0.1:0', '{taken}'");
    fails(
        &with(&taken, "max-delay-us = 500\n"),
        "cannot listen on",
        &mut clients,
    );
    std::fs::remove_file(file(served.folder.path())).unwrap();
    let lines = served.reload_in_vain();
    assert!(lines.contains("cannot be read"), "{lines}");
    served.write("max-delay-us = 500\n");
    served.reload();
    for client in &mut clients {
        assert_eq!(value(client, "max-delay-us"), "500");
        assert_eq!(counter(client, "config_reload_success"), 1);
    }
    served.keeps_at_most(descriptors);
}

/// A difference that only a start can apply is named, and then no other difference is applied.
#[test]
fn difference_that_needs_a_restart_is_named() {
    let served = Reloadable::start("");
    let mut client = served.client();
    for (lines, named) in [
        (
            "log-level = 'debug'",
            "log-level: \"info\" becomes \"debug\"",
        ),
        ("password = 'secret'", "user default: added"),
        ("cluster-shows = 'server'", "cluster-shows: "),
    ] {
        served.write(&format!("max-delay-us = 500\n{lines}\n"));
        let answer = served.reload_in_vain();
        let named = format!("respool.toml:2:1: {named}");
        assert!(answer.contains(&named), "{answer}");
        assert!(answer.contains("needs a restart"), "{answer}");
        assert!(!answer.contains("secret"), "{answer}");
        assert_eq!(value(&mut client, "max-delay-us"), "200");
    }
}

/// A reload and its check name every problem at its place: differences that need a restart, files
/// with certificates, names without an address, and addresses that cannot be bound.
#[test]
fn every_problem_of_a_reload_has_its_place() {
    let served = Reloadable::start("");
    // Each worker has its link.
    let mut clients = one_of_each_worker(served.proxy.address());
    for client in &mut clients {
        assert_eq!(client.call("SET key value"), Reply::ok());
    }
    let descriptors = served.proxy.fds();
    let taken = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let [first, second] = taken.each_ref().map(|taken| taken.local_addr().unwrap());
    let missing = served.path("missing").display().to_string();
    let tls = format!(
        "max-delay-us = 500\nlog-level = 'debug'\ntls-listen = '127.0.0.1:0'\ntls-cert = '{missing}'\n\
         tls-key = '{missing}'\n"
    );
    let more = format!(", '{first}', 'listener.invalid:7', '{second}'");
    served.write_with(&more, &tls);
    for request in ["check", "reload"] {
        let (status, lines) = served.ask(request);
        assert_eq!(status, "failed", "{lines}");
        let found: Vec<&str> = lines.lines().collect();
        let expected = [
            (4, format!("tls-cert: `{missing}` cannot be read")),
            (5, format!("tls-key: `{missing}` cannot be read")),
            (
                2,
                "log-level: \"info\" becomes \"debug\": needs a restart".into(),
            ),
            (
                10,
                "listen: no address of `listener.invalid` is found".into(),
            ),
            (10, format!("listen: cannot listen on {first}: ")),
            (10, format!("listen: cannot listen on {second}: ")),
        ];
        assert_eq!(found.len(), expected.len() + 1, "{lines}");
        for (line, (number, text)) in found.iter().zip(&expected) {
            let named = format!("respool.toml:{number}:1: {text}");
            assert!(line.contains(&named), "{named}: {lines}");
        }
    }
    drop(taken);
    served.write("");
    served.reload();
    assert_eq!(value(&mut clients[0], "max-delay-us"), "200");
    served.keeps_at_most(descriptors);
}

/// A reload with wrong options names the addresses that cannot be bound, too.
#[test]
fn wrong_options_and_addresses_are_told_at_once() {
    let served = Reloadable::start("");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let more = format!(", '{address}'");
    for request in ["check", "reload"] {
        served.write_with(&more, "max-delay-us = 'many'");
        let (status, lines) = served.ask(request);
        assert_eq!(status, "failed", "{lines}");
        // The address on which respool listens already is no problem. The last line ends them.
        assert_eq!(lines.lines().count(), 3, "{lines}");
        for text in [
            "respool.toml:1:16: max-delay-us: ".to_owned(),
            format!("respool.toml:5:1: listen: cannot listen on {address}: "),
        ] {
            assert!(lines.contains(&text), "{text}: {lines}");
        }
        // A file that cannot be read names no address.
        served.write_with(&more, "max-delay-us = ");
        let (status, lines) = served.ask(request);
        assert_eq!(status, "failed", "{lines}");
        assert!(!lines.contains("cannot listen"), "{lines}");
    }
    drop(taken);
    served.write("");
    served.reload();
}

/// A control socket that cannot be made is a problem beside its difference, which needs a restart.
#[test]
fn wrong_control_socket_is_a_problem_of_a_reload() {
    let mut served = Reloadable::start("");
    let socket = served.path("control.sock").display().to_string();
    let wrong = served.fixed.replace(&socket, "/nonexistent/control.sock");
    let right = std::mem::replace(&mut served.fixed, wrong);
    served.write("");
    let lines = served.reload_in_vain();
    assert!(
        lines.contains("respool.toml:4:1: control-socket: "),
        "{lines}"
    );
    assert!(lines.contains("needs a restart"), "{lines}");
    let problem = "respool.toml:4:1: control-socket: no socket can be made at \
                   `/nonexistent/control.sock`: No such file";
    assert!(lines.contains(problem), "{lines}");
    served.fixed = right;
    served.write("");
    served.reload();
}

/// Of an option that is gone, a reload names the place of the value in effect.
#[test]
fn removed_option_is_named_with_its_old_place() {
    let served = Reloadable::start("cluster-shows = 'server'");
    served.write("");
    let lines = served.reload_in_vain();
    let file = file(served.folder.path()).display().to_string();
    let named = format!("cluster-shows: \"server\" becomes \"node\" (before: {file}:1:1)");
    assert!(lines.starts_with(&named), "{named}: {lines}");
}

/// `respool reload` prints the differences and exits with 0, or prints the problems and exits with
/// 1. With `--check` nothing is applied.
#[test]
fn respool_reload_reports_its_result() {
    let served = Reloadable::start("");
    let mut client = served.client();
    let run = |args: &[&str]| {
        let config = file(served.folder.path());
        let output = Command::new(respool())
            .arg("reload")
            .args(args)
            .arg("--config")
            .arg(config)
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    // Until respool is ready.
    served.ask("check");
    let (code, out, _) = run(&[]);
    assert_eq!(code, Some(0));
    assert!(out.contains("nothing has changed"), "{out}");
    served.write("max-delay-us = 500\n");
    let named = file(served.folder.path()).display().to_string();
    let expected = |outcome: &str| {
        let out = format!("max-delay-us: 200 becomes 500\n{outcome} {named}\n");
        (Some(0), out, String::new())
    };
    let checked = "not applied: the process has only checked";
    assert_eq!(run(&["--check"]), expected(checked));
    assert_eq!(value(&mut client, "max-delay-us"), "200");
    assert_eq!(run(&[]), expected("applied: the process has read"));
    assert_eq!(value(&mut client, "max-delay-us"), "500");
    served.write("max-delay-us = 0\n");
    let (code, out, err) = run(&["--check"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.contains("respool.toml:1:"), "{err}");
    assert_eq!(counter(&mut client, "config_reload_failures"), 0);
    let (code, _, err) = run(&[]);
    assert_eq!(code, Some(1));
    assert!(err.contains("respool.toml:1:"), "{err}");
    assert!(err.contains("nothing was reloaded"), "{err}");
    let (status, lines) = served.ask("nonsense");
    assert_eq!(status, "failed", "{lines}");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(served.path("control.sock"))
            .unwrap()
            .permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
}

/// `--check` finds that an address is taken, and takes none itself.
#[test]
fn check_tries_to_bind_new_addresses() {
    let served = Reloadable::start("");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let path = served.path("new.sock");
    let more = format!(", '{address}', 'unix:{}'", path.display());
    served.write_with(&more, "");
    let descriptors = served.proxy.fds();
    let (status, lines) = served.ask("check");
    assert_eq!(status, "failed", "{lines}");
    assert!(
        lines.contains(&format!("cannot listen on {address}")),
        "{lines}"
    );
    assert!(lines.contains("stop the program"), "{lines}");
    drop(taken);
    let (status, lines) = served.ask("check");
    assert_eq!(status, "good", "{lines}");
    assert!(!path.exists());
    drop(std::net::TcpListener::bind(address).expect("the address is free again"));
    served.keeps_at_most(descriptors);
    assert_eq!(counter(&mut served.client(), "config_reload_failures"), 0);
}

/// The check and the reload warn of a listener that a new configuration exposes, once.
#[test]
fn reload_warns_of_new_exposures() {
    let served = Reloadable::start("");
    served.write_with(", '0.0.0.0:0'", "");
    for request in ["check", "reload"] {
        let (status, lines) = served.ask(request);
        assert_eq!(status, "good", "{lines}");
        let warning = "warning: every client that reaches 0.0.0.0:0 may use the server";
        assert!(lines.contains(warning), "{request}: {lines}");
    }
    let (_, again) = served.ask("reload");
    assert!(!again.contains("warning"), "{again}");
}

/// An address of respool that stands in the way of a wider one is named, and two reloads help.
#[test]
fn own_address_in_the_way_is_named() {
    let served = Reloadable::start("");
    let mut client = served.client();
    let own = served.proxy.address();
    let at = |address: &str| {
        let fixed = served.fixed.replace(&own.to_string(), address);
        swap(served.folder.path(), &configuration(&fixed, "", ""));
    };
    let wide = format!("0.0.0.0:{}", own.port());
    at(&wide);
    let (status, checked) = served.ask("check");
    assert_eq!(status, "failed", "{checked}");
    for lines in [checked, served.reload_in_vain()] {
        let named = format!("cannot listen on {wide}: respool itself listens on {own}; ");
        assert!(lines.contains(&named), "{lines}");
        assert!(lines.contains("two reloads"), "{lines}");
        assert!(!lines.contains("stop the program"), "{lines}");
    }
    at("127.0.0.1:0");
    served.reload();
    at(&wide);
    served.reload();
    assert_eq!(served.client().call("PING"), client.call("PING"));
}

/// Clients of the control socket that say nothing do not keep others waiting, or only until they
/// are closed, if they are many.
#[test]
fn silent_clients_of_the_control_socket_end() {
    let served = Reloadable::start("");
    served.reload();
    let connect = || UnixStream::connect(served.path("control.sock")).unwrap();
    let few: Vec<UnixStream> = (0..4).map(|_| connect()).collect();
    let began = Instant::now();
    assert_eq!(served.ask("check").0, "good");
    assert!(began.elapsed() < Duration::from_secs(4), "nobody waited");
    let many: Vec<UnixStream> = (0..20).map(|_| connect()).collect();
    let threads = || {
        let threads = std::fs::read_dir(format!("/proc/{}/task", served.proxy.pid()));
        threads.unwrap().count()
    };
    assert!(threads() < 20, "there is a bound on the threads");
    assert_eq!(served.ask("check").0, "good");
    let mut byte = [0];
    for mut silent in few {
        assert_eq!(silent.read(&mut byte).unwrap(), 0, "it was closed");
    }
    drop(many);
}

/// A new listener takes clients. The sessions of a removed one stay, and its socket is gone.
#[test]
fn listeners_come_and_go() {
    let served = Reloadable::start("");
    let mut old = served.client();
    let socket = served.path("respool.sock");
    let unix = format!(", 'unix:{}'", socket.display());
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at: SocketAddr = port.local_addr().unwrap();
    drop(port);
    for round in 0..3 {
        served.write_with(&format!("{unix}, '{at}'"), "");
        let lines = served.reload();
        assert!(lines.contains("listen: "), "{lines}");
        let mut tcp: Vec<RespClient> = (0..8).map(|_| RespClient::connect(at)).collect();
        let mut beside = UnixStream::connect(&socket).unwrap();
        for client in &mut tcp {
            assert_eq!(client.call("SET key value"), Reply::ok());
        }
        served.write_with("", "");
        served.reload();
        assert!(std::net::TcpStream::connect(at).is_err(), "round {round}");
        assert!(!socket.exists(), "round {round}");
        for client in &mut tcp {
            assert_eq!(client.call("GET key"), Reply::bulk("value"));
        }
        beside.write_all(b"PING\r\n").unwrap();
        let mut pong = [0; 7];
        beside.read_exact(&mut pong).unwrap();
        assert_eq!(&pong, b"+PONG\r\n");
        assert_eq!(old.call("GET key"), Reply::bulk("value"));
    }
    assert_eq!(served.client().call("GET key"), Reply::bulk("value"));
}

/// The session of a removed listener sets a value of its listener. The listener that came after
/// the removal does not get the value.
#[test]
fn removed_listener_shares_no_values_with_a_new_one() {
    let served = Reloadable::start("");
    let sockets = [served.path("first.sock"), served.path("second.sock")];
    let listen = |socket: &Path| {
        served.write_with(&format!(", 'unix:{}'", socket.display()), "");
        served.reload();
    };
    let call = |stream: &mut UnixStream, request: &str| {
        stream
            .write_all(format!("{request}\r\n").as_bytes())
            .unwrap();
        let mut reply = [0; 512];
        let count = stream.read(&mut reply).unwrap();
        String::from_utf8_lossy(&reply[..count]).into_owned()
    };
    listen(&sockets[0]);
    let mut old = UnixStream::connect(&sockets[0]).unwrap();
    assert_eq!(call(&mut old, "PING"), "+PONG\r\n");
    served.write("");
    served.reload();
    listen(&sockets[1]);
    let mut new = UnixStream::connect(&sockets[1]).unwrap();
    assert_eq!(
        call(&mut old, "CONFIG SET respool.listener.fuse no"),
        "+OK\r\n"
    );
    let get = "CONFIG GET respool.listener.fuse";
    assert!(call(&mut old, get).ends_with("no\r\n"));
    assert!(call(&mut new, get).ends_with("yes\r\n"));
}

/// A reload overwrites values that clients have set, and names each.
#[test]
fn values_of_config_set_are_overwritten() {
    let served = Reloadable::start("max-delay-us = 300\n");
    let mut clients = one_of_each_worker(served.proxy.address());
    let set = "CONFIG SET respool.max-delay-us 400 respool.listener.fuse no";
    assert_eq!(clients[0].call(set), Reply::ok());
    assert_eq!(value(&mut clients[1], "max-delay-us"), "400");
    let (_, lines) = served.ask("check");
    assert!(
        lines.contains(
            "respool.max-delay-us of pool default: 400, which CONFIG SET has set, becomes 300"
        ),
        "{lines}"
    );
    assert_eq!(served.reload(), lines);
    for client in &mut clients {
        assert_eq!(value(client, "max-delay-us"), "300");
        assert_eq!(value(client, "listener.fuse"), "yes");
    }
    let lines = served.reload();
    assert!(lines.contains("nothing has changed"), "{lines}");
    assert_eq!(clients[1].call(set), Reply::ok());
    assert_eq!(value(&mut clients[0], "max-delay-us"), "400");
}

/// Sessions of a removed user are closed. A new password, and other users, leave sessions alone. A
/// user keeps its sessions over reloads that remove and add others.
#[test]
fn sessions_of_a_removed_user_are_closed() {
    let served = Reloadable::start("user = ['ann:one', 'bob:one', 'eve:one']\n");
    let connect = |user: &str| {
        let mut client = served.client();
        assert_eq!(client.call(&format!("AUTH {user} one")), Reply::ok());
        client
    };
    let (mut ann, mut bob, mut eve) = (connect("ann"), connect("bob"), connect("eve"));
    let mut unknown = served.client();
    served.write("user = ['new:one', 'eve:one', 'bob:two']\n");
    let lines = served.reload();
    assert_eq!(
        lines,
        "user ann: removed\nuser new: added\nuser bob: a new password\n"
    );
    ann.expect_closed();
    for client in [&mut bob, &mut eve] {
        assert_eq!(client.call("SET key value"), Reply::ok());
    }
    assert!(unknown.call("AUTH ann one").error().is_some());
    assert!(unknown.call("AUTH bob one").error().is_some());
    assert_eq!(unknown.call("AUTH new one"), Reply::ok());
    served.write("user = ['new:one', 'eve:one']\n");
    assert_eq!(served.reload(), "user bob: removed\n");
    bob.expect_closed();
    for client in [&mut eve, &mut unknown] {
        assert_eq!(client.call("SET key value"), Reply::ok());
    }
}

/// A bound that is lowered or raised holds at once.
#[test]
fn new_bounds_hold_at_once() {
    let served = Reloadable::start("sessions-max = 3\npinned-links-max = 1\n");
    let mut kept = Vec::new();
    // The session of the check at the start may still be closing.
    wait_until("there are three sessions", SOON, || {
        let mut client = served.client();
        if client
            .ask(&["SET", "key", "value"])
            .is_ok_and(|reply| reply == Reply::ok())
        {
            kept.push(client);
        }
        kept.len() == 3
    });
    let refused = |served: &Reloadable| {
        let mut client = served.client();
        !matches!(client.ask(&["PING"]), Ok(reply) if reply.error().is_none())
    };
    assert!(refused(&served));
    served.write("sessions-max = 4\npinned-links-max = 100\n");
    served.reload();
    let mut fourth = served.client();
    assert_eq!(fourth.call("SET key value"), Reply::ok());
    assert!(refused(&served));
    served.write("sessions-max = 3\n");
    served.reload();
    assert_eq!(fourth.call("GET key"), Reply::bulk("value"), "it stays");
    assert!(refused(&served));
}

/// No request fails, and none waits for long, while the configuration changes all the time.
#[test]
fn no_request_fails_while_the_configuration_changes() {
    const RELOADS: usize = 100;
    let served = Reloadable::start("");
    let is_over = AtomicBool::new(false);
    let (mut took, mut longest, mut asked) = (Vec::new(), Duration::ZERO, 0);
    let load = |number: usize| {
        let mut client = RespClient::connect(served.proxy.address());
        let (mut longest, mut count) = (Duration::ZERO, 0_u64);
        while !is_over.load(Ordering::Relaxed) {
            let key = format!("key:{number}");
            let began = Instant::now();
            assert_eq!(client.call(&format!("SET {key} {count}")), Reply::ok());
            assert_eq!(
                client.call(&format!("GET {key}")),
                Reply::bulk(count.to_string())
            );
            longest = longest.max(began.elapsed());
            count += 1;
        }
        (longest, count)
    };
    thread::scope(|scope| {
        let load = &load;
        let clients: Vec<_> = (0..8)
            .map(|number| scope.spawn(move || load(number)))
            .collect();
        let socket = served.path("respool.sock");
        for round in 0..RELOADS {
            let more = match round % 2 {
                0 => format!(", 'unix:{}'", socket.display()),
                _ => String::new(),
            };
            let lines = format!(
                "max-delay-us = {}\nfuse = {}\nflush-rule = '{}'\nlink-unanswered-requests-max = {}\n",
                100 + round,
                round % 3 == 0,
                ["balanced", "latency", "server-cpu"][round % 3],
                1_000 + round,
            );
            served.write_with(&more, &lines);
            let began = Instant::now();
            served.reload();
            took.push(began.elapsed());
        }
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            let (its_longest, count) = client.join().expect("no request failed");
            longest = longest.max(its_longest);
            asked += count;
        }
    });
    took.sort_unstable();
    say(&format!(
        "{RELOADS} reloads beside {asked} pairs of requests: median {:?}, longest {:?}; the slowest \
         pair {longest:?}",
        took[RELOADS / 2],
        took[RELOADS - 1],
    ));
    let in_workers = served.proxy.log();
    let in_workers = in_workers
        .split("took_us=")
        .skip(1)
        .filter_map(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let mut in_workers: Vec<u64> = in_workers.collect();
    in_workers.sort_unstable();
    say(&format!(
        "applied in all workers within {} us (median), {} us (longest)",
        in_workers[in_workers.len() / 2],
        in_workers[in_workers.len() - 1]
    ));
    assert_eq!(in_workers.len(), RELOADS);
}

/// After a thousand reloads the process has as many descriptors as before, and hardly more memory.
#[test]
fn thousand_reloads_leave_nothing_behind() {
    const GROWTH_BYTES_MAX: u64 = 8 << 20;
    let served = Reloadable::start("user = ['a:1']\n");
    let mut client = served.client();
    assert_eq!(client.call("AUTH a 1"), Reply::ok());
    let socket = served.path("respool.sock");
    let password = served.path("password");
    let once = |round: usize| {
        std::fs::write(&password, format!("password-{round}")).unwrap();
        let more = match round % 2 {
            0 => String::new(),
            _ => format!(", 'unix:{}'", socket.display()),
        };
        let lines = format!(
            "max-delay-us = {}\nuser = ['a:1', 'user-{round}:1']\npassword-file = '{}'\n",
            100 + round,
            password.display()
        );
        served.write_with(&more, &lines);
        served.reload();
    };
    // The allocator, the log and the control socket have their memory by then.
    (0..100).for_each(once);
    let (descriptors, memory) = (served.proxy.fds(), served.proxy.rss());
    (100..1_100).for_each(once);
    served.keeps_at_most(descriptors);
    let grown = served.proxy.rss().saturating_sub(memory);
    say(&format!(
        "resident memory: {memory} bytes, {grown} more after 1,000 reloads"
    ));
    assert!(
        grown <= GROWTH_BYTES_MAX,
        "{grown} bytes more than {memory}"
    );
    assert_eq!(counter(&mut client, "config_epoch"), 1_100);
}
