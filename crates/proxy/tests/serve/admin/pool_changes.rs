//! Pools change while everything runs: a reload adds them, ends them, or gives them other servers.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use respool_testkit::client::{Reply, RespClient, counter, one_of_each_worker, words};
use respool_testkit::say;
use respool_testkit::servers::{Proxy, ReservedPort, ServerProcess, any_server};
use respool_testkit::time::wait_until;
use respool_testkit::topologies::{
    Sentinels, SentinelsSettings, TestCluster, cluster_url, sentinel_url,
};

use super::metrics::{get, pages_of, wait_for_status};
use crate::target::respool;
use crate::topology::cluster::{primaries, some_server};

/// How soon a change must be seen.
const SOON: Duration = Duration::from_secs(10);

/// A respool with two workers, and the file that it reads again.
struct Served {
    proxy: Proxy,
    folder: tempfile::TempDir,
    /// A port for the listeners of a second pool.
    second: ReservedPort,
}

impl Drop for Served {
    fn drop(&mut self) {
        if thread::panicking() {
            say(&format!("its log:\n{}", self.proxy.log()));
        }
    }
}

fn server() -> ServerProcess {
    let server = ServerProcess::start::<&str>(&any_server(), &[]);
    server.unwrap_or_else(|error| panic!("{error}"))
}

/// The table of a pool at this port. `more`: further lines.
fn pool(name: &str, port: u16, url: &str, more: &str) -> String {
    format!("[pool.{name}]\nlisten = '127.0.0.1:{port}'\nbackend = '{url}'\n{more}\n")
}

fn url(server: &ServerProcess) -> String {
    format!("redis://{}", server.address())
}

impl Served {
    /// Starts with one pool at this URL.
    fn start(backend: &str) -> Served {
        Served::start_with("", backend)
    }

    fn start_with(lines: &str, backend: &str) -> Served {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("respool.toml");
        let proxy = Proxy::start_with(&respool(), |port| {
            let text = head(&folder, lines) + &pool("main", port, backend, "");
            std::fs::write(&path, text).expect("a new directory can be changed");
            vec!["--config".into(), path.display().to_string()]
        });
        Served {
            proxy: proxy.unwrap_or_else(|error| panic!("{error}")),
            folder,
            second: ReservedPort::new().expect("a free port"),
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("respool.toml")
    }

    fn port(&self) -> u16 {
        self.proxy.address().port()
    }

    /// Reloads with these pools. Returns the printed lines.
    fn reload_with(&self, lines: &str, pools: &str) -> Result<String, String> {
        let text = head(&self.folder, lines) + pools;
        std::fs::write(self.file(), text).expect("the file can be changed");
        let output = Command::new(respool())
            .arg("reload")
            .arg("--config")
            .arg(self.file())
            .output()
            .expect("respool runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it prints text");
        match output.status.success() {
            true => Ok(text(output.stdout)),
            false => Err(text(output.stderr)),
        }
    }

    fn reload(&self, pools: &str) -> String {
        let done = self.reload_with("", pools);
        done.unwrap_or_else(|lines| panic!("{lines}"))
    }

    fn main_at(&self, backend: &str) -> String {
        pool("main", self.port(), backend, "")
    }
}

fn head(folder: &tempfile::TempDir, lines: &str) -> String {
    let socket = folder.path().join("control.sock");
    let socket = socket.display();
    format!("threads = 2\ncontrol-socket = '{socket}'\nreconnect-max-ms = 100\n{lines}\n")
}

/// The lines of INFO about servers.
fn servers_in_info(client: &mut RespClient) -> String {
    let info = client.call("INFO respool");
    let text = String::from_utf8_lossy(info.text().expect("INFO is text")).into_owned();
    let lines = text.lines().filter(|line| line.contains("address="));
    lines.collect::<Vec<_>>().join("\n")
}

fn number(reply: &Reply) -> u64 {
    match reply {
        Reply::Integer(number) => *number as u64,
        Reply::Null => 0,
        reply => match reply.text() {
            Some(text) => String::from_utf8_lossy(text).parse().expect("a number"),
            None => panic!("{reply:?}"),
        },
    }
}

/// Waits until a client waits at this server.
fn wait_until_blocked(server: &ServerProcess) {
    wait_until("the request waits at the server", SOON, || {
        let info = RespClient::connect(server.address()).call("INFO clients");
        String::from_utf8_lossy(info.text().expect("text")).contains("blocked_clients:1")
    });
}

/// A host name without an address refuses the reload, with its place: nothing changes, and no
/// outage begins. `--check` says the same.
#[test]
fn name_without_an_address_refuses_the_reload() {
    let old = server();
    let lines = "outage-hold-ms = 100\n";
    let served = Served::start_with(lines, &url(&old));
    let mut client = RespClient::connect(served.proxy.address());
    let second = pool("other", served.second.port, "redis://nohost.invalid", "");
    for pools in [
        served.main_at("redis://nohost.invalid"),
        served.main_at(&url(&old)) + &second,
    ] {
        let problems = served.reload_with(lines, &pools).expect_err("no address");
        let checked = Command::new(respool())
            .args(["reload", "--check", "--config"])
            .arg(served.file())
            .output()
            .expect("respool runs");
        assert_eq!(checked.status.code(), Some(1));
        for text in [problems, String::from_utf8_lossy(&checked.stderr).into()] {
            assert!(text.contains("no address of `nohost.invalid`"), "{text}");
            assert!(text.contains("respool.toml:"), "{text}");
            assert!(text.contains("nothing was reloaded"), "{text}");
        }
        thread::sleep(Duration::from_millis(500));
        assert_eq!(client.call("SET key value"), Reply::ok());
    }
    assert_eq!(counter(&mut client, "config_reload_failures"), 2);
    assert_eq!(counter(&mut client, "config_epoch"), 0);
}

/// A name that was unknown at the start keeps no reload of other options out.
#[test]
fn names_of_pools_that_stay_are_not_looked_up() {
    let served = Served::start("redis://nohost.invalid");
    let pools = served.main_at("redis://nohost.invalid");
    let done = served.reload_with("max-delay-us = 300\n", &pools);
    let lines = done.unwrap_or_else(|lines| panic!("{lines}"));
    assert!(lines.contains("max-delay-us: 200 becomes 300"), "{lines}");
}

/// A new pool serves in every worker right after the reload. When it is removed, its sessions are
/// closed and its port is free; the other pool does not notice.
#[test]
fn added_pool_serves_and_ends() {
    let (one, two) = (server(), server());
    let served = Served::start(&url(&one));
    let mut kept = one_of_each_worker(served.proxy.address());
    let second = SocketAddr::new(served.proxy.address().ip(), served.second.port);
    for round in 1..=3 {
        let both = served.main_at(&url(&one)) + &pool("second", second.port(), &url(&two), "");
        let lines = served.reload(&both);
        assert!(lines.contains("pool.second: added"), "{lines}");
        let mut clients = one_of_each_worker(second);
        for client in &mut clients {
            assert_eq!(client.call(&format!("SET k {round}")), Reply::ok());
            assert!(servers_in_info(client).contains(&two.address().to_string()));
        }
        for client in &mut kept {
            assert_eq!(client.call("SET k main"), Reply::ok());
        }
        let text = round.to_string();
        assert_eq!(
            RespClient::connect(two.address()).call("GET k"),
            Reply::bulk(text)
        );
        let lines = served.reload(&served.main_at(&url(&one)));
        assert!(lines.contains("pool.second: removed"), "{lines}");
        for client in &mut clients {
            client.expect_closed();
        }
        assert!(RespClient::try_connect(second).is_err());
        for client in &mut kept {
            assert_eq!(client.call("GET k"), Reply::bulk("main"));
        }
        wait_until("respool leaves the server", SOON, || {
            let clients = RespClient::connect(two.address()).call("CLIENT LIST");
            let text = String::from_utf8_lossy(clients.text().expect("text")).into_owned();
            text.lines().count() == 1
        });
    }
}

/// The requests that a client of a removed pool has sent are answered before it is closed.
#[test]
fn removed_pool_answers_received_requests() {
    let (one, two) = (server(), server());
    let served = Served::start(&url(&one));
    let second = SocketAddr::new(served.proxy.address().ip(), served.second.port);
    let main = served.main_at(&url(&one));
    served.reload(&(main.clone() + &pool("second", second.port(), &url(&two), "")));
    let mut busy = RespClient::connect(second);
    let mut blocked = RespClient::connect(second);
    assert_eq!(blocked.call("PING"), Reply::Simple("PONG".into()));
    blocked.send(&words("BLPOP nothing 0"));
    wait_until_blocked(&two);
    two.stop();
    busy.send(&words("INCR n").repeat(1_000));
    thread::sleep(Duration::from_millis(100));
    let lines = served.reload(&main);
    assert!(lines.contains("removed"), "{lines}");
    two.cont();
    let replies: Vec<u64> = busy.replies(1_000).iter().map(number).collect();
    assert_eq!(replies, (1..=1_000).collect::<Vec<u64>>());
    busy.expect_closed();
    let ended = blocked.reply();
    assert!(ended.error().is_some(), "{ended:?}");
    blocked.expect_closed();
}

/// Writes of a client: one at a time, or several in one pipeline.
fn write_until(is_over: &AtomicBool, address: SocketAddr, key: &str, depth: usize) -> u64 {
    let mut client = RespClient::connect(address);
    let requests = words(&format!("INCR {key}")).repeat(depth);
    let (mut written, mut last) = (0, 0);
    while !is_over.load(Ordering::Relaxed) {
        for reply in client.exchange(requests.clone(), depth) {
            // An error ends the test here. At another server the count begins anew or goes on.
            let count = number(&reply);
            assert!(
                count == last + 1 || count <= written + 1,
                "{count} behind {last}"
            );
            (written, last) = (written + 1, count);
        }
    }
    written
}

/// The servers of a pool change again and again under load: no request fails, and each write is at
/// exactly one of the servers.
#[test]
fn no_write_is_lost_when_servers_change_under_load() {
    const CLIENTS: usize = 16;
    const ROUNDS: usize = 12;
    let servers = [server(), server(), server()];
    let served = Served::start(&url(&servers[0]));
    let is_over = AtomicBool::new(false);
    let address = served.proxy.address();
    let kinds = [
        url(&servers[1]),
        format!(
            "redis-sharded://{},{}",
            servers[0].address(),
            servers[2].address()
        ),
        url(&servers[2]),
        url(&servers[0]),
    ];
    thread::scope(|scope| {
        let is_over = &is_over;
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let depth = [1, 1, 7, 50][client % 4];
                let write = move || write_until(is_over, address, &format!("c{client}"), depth);
                scope.spawn(write)
            })
            .collect();
        for round in 0..ROUNDS {
            thread::sleep(Duration::from_millis(150));
            let lines = served.reload(&served.main_at(&kinds[round % kinds.len()]));
            assert!(lines.contains("pool.main.backend: "), "{lines}");
        }
        // When all sessions have moved, the last server alone gets writes.
        let former = &servers[1..];
        let count = |server: &ServerProcess, client: usize| {
            number(&RespClient::connect(server.address()).call(&format!("GET c{client}")))
        };
        let counts = || -> Vec<u64> { former.iter().map(|server| count(server, 0)).collect() };
        wait_until("the former servers get no writes", SOON, || {
            let before = counts();
            thread::sleep(Duration::from_millis(150));
            counts() == before
        });
        is_over.store(true, Ordering::Relaxed);
        let mut all = 0;
        for (client, thread) in clients.into_iter().enumerate() {
            let written = thread.join().expect("no request failed");
            let at_servers: u64 = servers.iter().map(|server| count(server, client)).sum();
            assert_eq!(written, at_servers, "of client {client}");
            all += written;
        }
        say(&format!(
            "{all} writes over {ROUNDS} changes of the servers"
        ));
    });
    let mut client = RespClient::connect(address);
    assert_eq!(counter(&mut client, "config_epoch"), ROUNDS as u64);
    assert_eq!(counter(&mut client, "sessions_closed_by_us"), 0);
}

/// A session keeps its protocol, name and database. A transaction ends where it began; then its
/// session moves, too.
#[test]
fn session_keeps_its_state_when_it_moves() {
    let (one, two) = (server(), server());
    let served = Served::start(&url(&one));
    let mut client = RespClient::connect(served.proxy.address());
    let mut other = RespClient::connect(served.proxy.address());
    client.call("HELLO 3 SETNAME me");
    assert_eq!(client.call("SELECT 3"), Reply::ok());
    assert_eq!(client.call("SET at one"), Reply::ok());
    let script = client.call_args(&["SCRIPT", "LOAD", "return 'told'"]);
    let script = String::from_utf8_lossy(script.text().expect("a name")).into_owned();
    assert_eq!(other.call("MULTI"), Reply::ok());
    assert_eq!(other.call("SET in-multi 1"), Reply::Simple("QUEUED".into()));
    let mut watcher = RespClient::connect(served.proxy.address());
    assert_eq!(watcher.call("WATCH in-multi"), Reply::ok());
    served.reload(&served.main_at(&url(&two)));
    wait_until("the session is at the other server", SOON, || {
        client.call("GET at") == Reply::Null
    });
    assert_eq!(client.call("SET at two"), Reply::ok());
    assert_eq!(client.call("CLIENT GETNAME"), Reply::bulk("me"));
    assert_eq!(
        client.call(&format!("EVALSHA {script} 0")),
        Reply::bulk("told")
    );
    let mut direct = RespClient::connect(two.address());
    direct.call("SELECT 3");
    assert_eq!(direct.call("GET at"), Reply::bulk("two"));
    assert!(matches!(other.call("EXEC"), Reply::Array(_)));
    assert_eq!(
        RespClient::connect(one.address()).call("GET in-multi"),
        Reply::bulk("1")
    );
    wait_until("the session moves behind EXEC", SOON, || {
        other.call("SET behind 1") == Reply::ok()
            && RespClient::connect(two.address()).call("GET behind") == Reply::bulk("1")
    });
    // The key has changed, so EXEC executes nothing.
    assert_eq!(watcher.call("MULTI"), Reply::ok());
    watcher.call("SET watched 1");
    assert_eq!(watcher.call("EXEC"), Reply::Null);
}

/// Keys get servers of their own while clients use them, and lose these again.
#[test]
fn prefixes_change_while_clients_use_them() {
    let (one, two) = (server(), server());
    let served = Served::start(&url(&one));
    let mut client = RespClient::connect(served.proxy.address());
    for (round, strip) in [false, true, false].into_iter().enumerate() {
        let prefixes = format!(
            "[pool.main.prefixes]\n'p:' = {{ backend = '{}', strip = {strip} }}",
            url(&two)
        );
        let lines = served.reload(&pool("main", served.port(), &url(&one), &prefixes));
        assert!(lines.contains("pool.main.prefixes: "), "{lines}");
        wait_until("the prefix has its server", SOON, || {
            assert_eq!(client.call(&format!("SET p:k{round} v")), Reply::ok());
            let key = if strip { "k" } else { "p:k" };
            let got = RespClient::connect(two.address()).call(&format!("GET {key}{round}"));
            got == Reply::bulk("v")
        });
        assert_eq!(client.call("SET other v"), Reply::ok());
        assert_eq!(
            RespClient::connect(one.address()).call("GET other"),
            Reply::bulk("v")
        );
        assert_eq!(client.call("MGET other p:none").error(), None);
        served.reload(&served.main_at(&url(&one)));
        wait_until("the prefix has no server any more", SOON, || {
            assert_eq!(client.call(&format!("SET p:{round} v")), Reply::ok());
            let got = RespClient::connect(one.address()).call(&format!("GET p:{round}"));
            got == Reply::bulk("v")
        });
    }
}

/// A server that does not answer gets no session before requests would wait too long. Until then
/// the old server serves.
#[test]
fn old_server_serves_while_the_new_one_is_away() {
    let (one, mut two) = (server(), server());
    let patient = "outage-hold-ms = 60000";
    let served = Served::start_with(patient, &url(&one));
    let mut client = RespClient::connect(served.proxy.address());
    assert_eq!(client.call("SET at one"), Reply::ok());
    two.kill9();
    let done = served.reload_with(patient, &served.main_at(&url(&two)));
    done.unwrap_or_else(|lines| panic!("{lines}"));
    for _ in 0..50 {
        assert_eq!(client.call("GET at"), Reply::bulk("one"));
        thread::sleep(Duration::from_millis(10));
    }
    two.restart().unwrap_or_else(|error| panic!("{error}"));
    wait_until("the session is at the other server", SOON, || {
        client.call("GET at") == Reply::Null
    });
}

/// Sessions with state that the new server does not have are closed: subscribers, MONITOR, CLIENT
/// TRACKING. A request that waits at the old server ends at the bound.
#[test]
fn sessions_with_state_at_the_old_server_are_closed() {
    let (one, two) = (server(), server());
    let served = Served::start_with("drain-timeout-ms = 1500", &url(&one));
    let connect = || RespClient::connect(served.proxy.address());
    let (mut subscriber, mut monitor, mut tracker, mut blocked) =
        (connect(), connect(), connect(), connect());
    let (mut open, mut queue) = (connect(), RespClient::connect(one.address()));
    assert_eq!(open.call("MULTI"), Reply::ok());
    assert_eq!(subscriber.call("SUBSCRIBE c").error(), None);
    assert_eq!(monitor.call("MONITOR"), Reply::ok());
    tracker.call("HELLO 3");
    assert_eq!(tracker.call("CLIENT TRACKING ON"), Reply::ok());
    blocked.send(&words("BLPOP nothing 0"));
    wait_until_blocked(&one);
    let pools = served.main_at(&url(&two));
    let done = served.reload_with("drain-timeout-ms = 1500", &pools);
    done.unwrap_or_else(|lines| panic!("{lines}"));
    subscriber.expect_closed();
    tracker.expect_closed();
    monitor.set_read_timeout(SOON);
    while monitor.some_bytes().is_ok_and(|bytes| !bytes.is_empty()) {}
    blocked.set_read_timeout(SOON);
    // The server ends the wait, so it gives no element to a client that is gone.
    let ended = blocked.reply();
    assert!(ended.error().is_some(), "{ended:?}");
    blocked.expect_closed();
    assert_eq!(queue.call("LPUSH nothing 1"), Reply::Integer(1));
    open.expect_closed();
    wait_until("the log has the reason", SOON, || {
        served.proxy.log().contains("drain-timeout-ms")
    });
}

/// With `lost-subscriptions = keep`, subscribers of both workers go on at the new server, and
/// notice nothing.
#[test]
fn kept_subscribers_go_on_at_the_new_server() {
    let (one, two) = (server(), server());
    let lines = "lost-subscriptions = 'keep'";
    let served = Served::start_with(lines, &url(&one));
    let mut subscribers = one_of_each_worker(served.proxy.address());
    for client in &mut subscribers {
        assert_eq!(client.call("SUBSCRIBE c").error(), None);
    }
    let done = served.reload_with(lines, &served.main_at(&url(&two)));
    done.unwrap_or_else(|lines| panic!("{lines}"));
    let mut publisher = RespClient::connect(two.address());
    wait_until("both workers listen at the new server", SOON, || {
        publisher.call("PUBSUB NUMSUB c") == Reply::Array(vec![Reply::bulk("c"), Reply::Integer(2)])
    });
    assert_eq!(publisher.call("PUBLISH c m"), Reply::Integer(2));
    let words = ["message", "c", "m"].map(Reply::bulk);
    for client in &mut subscribers {
        assert_eq!(client.reply(), Reply::Array(words.to_vec()));
    }
    let mut old = RespClient::connect(one.address());
    wait_until("no worker listens at the old server", SOON, || {
        old.call("PUBSUB NUMSUB c") == Reply::Array(vec![Reply::bulk("c"), Reply::Integer(0)])
    });
}

/// SIGTERM while sessions wait for the new server of their pool, which does not answer: all
/// sessions are drained as without a reload, and the process ends in time. `is_left`: the sessions
/// have left the old server, because they have waited for the new one long enough.
fn ends_while_the_new_server_is_silent(is_left: bool) {
    let (one, two) = (server(), server());
    let hold_ms = if is_left { 100 } else { 60_000 };
    let drain_ms = 5_000;
    let lines = format!(
        "drain-timeout-ms = {drain_ms}\noutage-hold-ms = {hold_ms}\nconnect-timeout-ms = 300"
    );
    let mut served = Served::start_with(&lines, &url(&one));
    let connect = || RespClient::connect(served.proxy.address());
    let (mut idle, mut open, mut busy) = (connect(), connect(), connect());
    assert_eq!(idle.call("SET k v"), Reply::ok());
    assert_eq!(open.call("MULTI"), Reply::ok());
    assert_eq!(busy.call("INCR n"), Reply::Integer(1));
    two.stop();
    let done = served.reload_with(&lines, &served.main_at(&url(&two)));
    done.unwrap_or_else(|lines| panic!("{lines}"));
    thread::sleep(Duration::from_millis(500));
    one.stop();
    busy.send(&words("INCR n"));
    thread::sleep(Duration::from_millis(100));
    let begun = Instant::now();
    served.proxy.ask_to_end();
    idle.expect_closed();
    open.expect_closed();
    if !is_left {
        thread::sleep(Duration::from_millis(200));
        assert!(served.proxy.is_running(), "a request is not answered");
        one.cont();
    }
    busy.set_read_timeout(SOON);
    let reply = busy.reply();
    match is_left {
        false => assert_eq!(reply, Reply::Integer(2)),
        // The request has waited for the new server, as it would without a reload.
        true => assert!(
            reply
                .error()
                .is_some_and(|text| text.starts_with("LOADING"))
        ),
    }
    busy.expect_closed();
    if is_left {
        one.cont();
    }
    let status = served.proxy.wait(SOON);
    let status = status.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(status.code(), Some(0));
    let ended = begun.elapsed();
    let late = Duration::from_millis(drain_ms) + Duration::from_secs(2);
    assert!(ended < late, "it ended after {ended:?}");
    two.cont();
}

/// SIGTERM while sessions are at the old server and the new one does not answer.
#[test]
fn process_ends_while_sessions_wait_to_move() {
    ends_while_the_new_server_is_silent(false);
}

/// SIGTERM after sessions have moved to a new server that does not answer.
#[test]
fn process_ends_while_the_new_server_is_silent() {
    ends_while_the_new_server_is_silent(true);
}

/// A pool becomes a Cluster, a primary with Sentinels, and one server again, under load: no request
/// fails, and each write is at exactly one server.
#[test]
fn pool_changes_its_kind_under_load() {
    const CLIENTS: usize = 8;
    let single = server();
    let cluster = TestCluster::start(&some_server(), primaries());
    let cluster = cluster.unwrap_or_else(|error| panic!("{error}"));
    let sentinels = Sentinels::start(&some_server(), &SentinelsSettings::default());
    let sentinels = sentinels.unwrap_or_else(|error| panic!("{error}"));
    let urls = [
        cluster_url(&cluster.addresses()),
        sentinel_url(&sentinels.addresses(), sentinels.watched(0).name()),
        url(&single),
    ];
    let served = Served::start(&url(&single));
    let is_over = AtomicBool::new(false);
    let address = served.proxy.address();
    thread::scope(|scope| {
        let is_over = &is_over;
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let depth = [1, 5][client % 2];
                let write = move || write_until(is_over, address, &format!("c{client}"), depth);
                scope.spawn(write)
            })
            .collect();
        for url in urls.iter().cycle().take(6) {
            thread::sleep(Duration::from_millis(300));
            served.reload(&served.main_at(url));
        }
        thread::sleep(Duration::from_millis(300));
        is_over.store(true, Ordering::Relaxed);
        let mut at_first_of_all = [0; 3];
        for (client, thread) in clients.into_iter().enumerate() {
            let written = thread.join().expect("no request failed");
            let get = words(&format!("GET c{client}"));
            let count = |address: SocketAddr| {
                let reply = RespClient::connect(address)
                    .exchange(get.clone(), 1)
                    .remove(0);
                // Another node of the Cluster has the key.
                let moved = reply.error().is_some_and(|text| text.starts_with("MOVED"));
                if moved { 0 } else { number(&reply) }
            };
            let counts = [
                cluster.addresses().into_iter().map(count).sum::<u64>(),
                count(sentinels.watched(0).server(0).address()),
                count(single.address()),
            ];
            assert_eq!(
                written,
                counts.iter().sum::<u64>(),
                "of client {client}: {counts:?}"
            );
            for (all, count) in at_first_of_all.iter_mut().zip(counts) {
                *all += count;
            }
        }
        say(&format!("writes at each kind: {at_first_of_all:?}"));
        assert!(at_first_of_all.iter().all(|count| *count > 0));
    });
}

/// A new password in the URL is applied as other servers are.
#[test]
fn new_password_in_the_url_is_applied() {
    let guarded = ServerProcess::start(&any_server(), &["--requirepass", "old"]);
    let guarded = guarded.unwrap_or_else(|error| panic!("{error}"));
    let with = |password: &str| format!("redis://:{password}@{}", guarded.address());
    let served = Served::start(&with("old"));
    let mut client = RespClient::connect(served.proxy.address());
    assert_eq!(client.call("SET k v"), Reply::ok());
    let mut direct = RespClient::connect(guarded.address());
    assert_eq!(direct.call("AUTH old"), Reply::ok());
    assert_eq!(direct.call("CONFIG SET requirepass new"), Reply::ok());
    let lines = served.reload(&served.main_at(&with("new")));
    assert!(
        lines.starts_with("pool.main.backend: a new password\n"),
        "{lines}"
    );
    for _ in 0..100 {
        assert_eq!(client.call("GET k"), Reply::bulk("v"));
    }
    assert_eq!(
        RespClient::connect(served.proxy.address()).call("GET k"),
        Reply::bulk("v")
    );
}

/// The metrics and readiness have the pools of the reload.
#[test]
fn metrics_follow_the_pools() {
    let (one, mut two) = (server(), server());
    let lines = "metrics-listen = '127.0.0.1:0'\nready-requires-server = true";
    let served = Served::start_with(lines, &url(&one));
    let pages = pages_of(&served.proxy);
    wait_for_status(pages, 200);
    let shown = || get(pages, "/metrics").body;
    let (one_at, two_at) = (one.address().to_string(), two.address().to_string());
    wait_until("the first server has metrics", SOON, || {
        shown().contains(&one_at)
    });
    two.kill9();
    let second = pool("second", served.second.port, &url(&two), "");
    let both = served.reload_with(lines, &(served.main_at(&url(&one)) + &second));
    both.unwrap_or_else(|lines| panic!("{lines}"));
    wait_for_status(pages, 503);
    assert!(shown().contains("pool=\"second\""));
    two.restart().unwrap_or_else(|error| panic!("{error}"));
    wait_for_status(pages, 200);
    let moved = served.reload_with(lines, &served.main_at(&url(&two)));
    moved.unwrap_or_else(|lines| panic!("{lines}"));
    wait_until("the pages show the servers of now", SOON, || {
        let shown = shown();
        !shown.contains(&one_at) && shown.contains(&two_at) && !shown.contains("pool=\"second\"")
    });
    wait_for_status(pages, 200);
}

/// An old server that serves while the new one is away has metrics.
#[test]
fn old_server_that_serves_on_has_metrics() {
    let (one, mut two) = (server(), server());
    let lines = "metrics-listen = '127.0.0.1:0'\noutage-hold-ms = 60000";
    let served = Served::start_with(lines, &url(&one));
    let pages = pages_of(&served.proxy);
    let (one_at, two_at) = (one.address().to_string(), two.address().to_string());
    two.kill9();
    let reloaded = served.reload_with(lines, &served.main_at(&url(&two)));
    reloaded.unwrap_or_else(|lines| panic!("{lines}"));
    wait_until("the new server has metrics", SOON, || {
        get(pages, "/metrics").body.contains(&two_at)
    });
    assert!(get(pages, "/metrics").body.contains(&one_at));
    two.restart().unwrap_or_else(|error| panic!("{error}"));
    wait_until("the old server has left", SOON, || {
        !get(pages, "/metrics").body.contains(&one_at)
    });
}

/// A hundred changes of the servers leave no descriptor and little memory behind.
#[test]
fn changes_of_servers_leave_nothing_behind() {
    let (one, two) = (server(), server());
    let served = Served::start(&url(&one));
    let mut clients = one_of_each_worker(served.proxy.address());
    let change = |round: usize, clients: &mut Vec<RespClient>| {
        let to = if round.is_multiple_of(2) { &two } else { &one };
        served.reload(&served.main_at(&url(to)));
        for client in clients {
            assert_eq!(client.call(&format!("SET round {round}")), Reply::ok());
        }
    };
    for round in 0..20 {
        change(round, &mut clients);
    }
    thread::sleep(Duration::from_millis(500));
    let (descriptors, rss) = (served.proxy.fds(), served.proxy.rss());
    for round in 20..120 {
        change(round, &mut clients);
    }
    wait_until("no descriptor is left over", SOON, || {
        served.proxy.fds() <= descriptors
    });
    let grown = served.proxy.rss().saturating_sub(rss);
    say(&format!("100 changes of the servers: {grown} bytes more"));
    assert!(grown < 2 << 20, "{grown} bytes after 100 changes");
    let info = servers_in_info(&mut clients[0]);
    assert_eq!(info.lines().count(), 1, "{info}");
}
