//! The system's resolver hangs: a name server takes the questions and never answers.
//!
//! The network is a namespace of its own, as in [`super::partition`]. The name server is at the
//! other end of a cable that loses all frames.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use respool_testkit::client::{Reply, RespClient, counter, words};
use respool_testkit::servers::{Proxy, ReservedPort, ServerProcess, any_server};

use super::partition::{cable_without_end, in_a_network, run};
use crate::target::respool;

/// The name that the resolver does not answer.
const HANGS: &str = "hangs.example";
/// The time in which respool ends, and clients are answered. The resolver hangs for minutes.
const AT_ONCE: Duration = Duration::from_secs(3);
/// The bound of a reload's look-ups, and some time for the rest of the reload.
const RELOADED: Duration = Duration::from_secs(5 + 3);

/// SIGTERM while a connection attempt or a reload looks up a name: respool ends in its usual time.
#[test]
fn stop_does_not_wait_for_a_hanging_name() {
    in_a_network("hanging_names::respool_ends_beside_a_hanging_name");
}

/// A reload with names that hang is refused after its bound, and the old configuration serves on.
#[test]
fn hanging_name_refuses_the_reload() {
    in_a_network("hanging_names::reload_ends_beside_a_hanging_name");
}

#[test]
#[ignore = "another test starts this one, in a network of its own"]
fn respool_ends_beside_a_hanging_name() {
    let _files = let_names_hang();
    let mut served = Served::start();
    // The attempt to connect of this pool hangs.
    let mut waits = RespClient::connect(([127, 0, 0, 1], served.away.port).into());
    waits.send(&words("GET key"));
    let begun = Instant::now();
    served.proxy.ask_to_end();
    served.ends_by(begun + AT_ONCE);

    let mut served = Served::start();
    served.write(&served.main(HANGS));
    served.proxy.hang_up();
    // The reload is in its look-up.
    thread::sleep(Duration::from_secs(1));
    assert!(!served.proxy.log().contains("nothing was reloaded"));
    let begun = Instant::now();
    served.proxy.ask_to_end();
    served.ends_by(begun + AT_ONCE);
}

#[test]
#[ignore = "another test starts this one, in a network of its own"]
fn reload_ends_beside_a_hanging_name() {
    let _files = let_names_hang();
    let mut served = Served::start();
    let mut client = RespClient::connect(served.proxy.address());
    let server = served.server.address().to_string();
    let listens = |text: String| text + &format!("listen = '{HANGS}:7'\n");
    let second = listens(format!("[pool.second]\nbackend = 'redis://{server}'\n"));
    for (pools, place) in [
        (served.main(HANGS), "pool.main.backend"),
        (served.main(&server) + &second, "pool.second.listen"),
    ] {
        served.write(&pools);
        for check in [&["--check"][..], &[]] {
            let begun = Instant::now();
            let mut reload = Command::new(respool())
                .args(["reload", "--config"])
                .arg(served.file())
                .args(check)
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .expect("respool runs");
            while reload.try_wait().expect("a child").is_none() {
                assert!(begun.elapsed() < RELOADED, "{place} {check:?}");
                let asked = Instant::now();
                assert_eq!(client.call("SET key value"), Reply::ok());
                assert!(asked.elapsed() < AT_ONCE);
                thread::sleep(Duration::from_millis(50));
            }
            let output = reload.wait_with_output().expect("it has ended");
            assert_eq!(output.status.code(), Some(1));
            let said = String::from_utf8_lossy(&output.stderr);
            let problem = format!("{place}: no address of `{HANGS}` is found now: no answer");
            assert!(said.contains(&problem), "{said}");
            assert!(said.contains("or give an IP address"), "{said}");
        }
    }
    assert_eq!(counter(&mut client, "config_reload_failures"), 2);
    assert_eq!(counter(&mut client, "config_epoch"), 0);
    drop(client);
    let begun = Instant::now();
    served.proxy.ask_to_end();
    served.ends_by(begun + AT_ONCE);
}

/// A respool with a resolver that hangs, before a server with an IP address.
struct Served {
    proxy: Proxy,
    server: ServerProcess,
    /// The port of a pool with a server that has a name that hangs.
    away: ReservedPort,
    folder: tempfile::TempDir,
}

impl Served {
    fn start() -> Served {
        let folder = tempfile::tempdir().expect("a directory");
        let server = ServerProcess::start::<&str>(&any_server(), &[]);
        let server = server.unwrap_or_else(|error| panic!("{error}"));
        let away = ReservedPort::new().unwrap_or_else(|error| panic!("{error}"));
        let path = folder.path().join("respool.toml");
        let proxy = Proxy::start_with(&respool(), |port| {
            let main = pool("main", port, &server.address().to_string());
            let text = head(&folder) + &main + &pool("away", away.port, HANGS);
            fs::write(&path, text).expect("a new directory can be changed");
            vec!["--config".into(), path.display().to_string()]
        });
        Served {
            proxy: proxy.unwrap_or_else(|error| panic!("{error}")),
            server,
            away,
            folder,
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("respool.toml")
    }

    /// The first pool, with its server at this host.
    fn main(&self, host: &str) -> String {
        pool("main", self.proxy.port(), host)
    }

    /// Gives the file the pool `away` and these pools.
    fn write(&self, pools: &str) {
        let text = head(&self.folder) + pools + &pool("away", self.away.port, HANGS);
        fs::write(self.file(), text).expect("the file can be changed");
    }

    fn ends_by(&mut self, end: Instant) {
        let limit = end.saturating_duration_since(Instant::now());
        let status = self.proxy.wait(limit);
        let status = status.unwrap_or_else(|error| panic!("{error}:\n{}", self.proxy.log()));
        assert_eq!(status.code(), Some(0), "{}", self.proxy.log());
    }
}

fn head(folder: &tempfile::TempDir) -> String {
    let socket = folder.path().join("control");
    let socket = socket.display();
    format!(
        "threads = 2\nconnect-timeout-ms = 200\noutage-hold-ms = 100\n\
         control-socket = '{socket}'\n"
    )
}

fn pool(name: &str, port: u16, host: &str) -> String {
    format!("[pool.{name}]\nlisten = '127.0.0.1:{port}'\nbackend = 'redis://{host}'\n")
}

/// Has the name server of this test's network never answer. Returns the folder of the files that
/// the system's resolver reads in place of its own.
fn let_names_hang() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a directory");
    let name_server = cable_without_end();
    let resolver = format!("nameserver {name_server}\noptions timeout:30 attempts:5\n");
    for (file, text) in [
        ("resolv.conf", &*resolver),
        ("nsswitch.conf", "hosts: files dns\n"),
    ] {
        let (own, of_system) = (folder.path().join(file), Path::new("/etc").join(file));
        // Without this file the resolver asks name servers.
        if of_system.exists() || file == "resolv.conf" {
            fs::write(&own, text).expect("a new directory can be changed");
            let both = format!("--bind {} {}", own.display(), of_system.display());
            run("mount", &both);
        }
    }
    folder
}
