//! Reads from replicas: they go to the servers of the pool's setting, and clients do not notice
//! failures of these servers.
//!
//! The servers themselves tell which requests they got (INFO commandstats). Where replicas change,
//! a fake Sentinel names them, and they are real servers or fakes. Where a replica takes over, real
//! Clusters and Sentinels decide.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use respool_protocol::slot::hash_slot;
use respool_testkit::client::{Reply, RespClient, counter, pipelined, request, text, words};
use respool_testkit::fake::{FakeAnswer, Fakes, NodeRequest, bulk, info};
use respool_testkit::fault_proxy::{FaultMode, FaultProxy};
use respool_testkit::servers::{Flavour, Proxy, ServerProcess, any_server, find, leave_out};
use respool_testkit::time::wait_until;
use respool_testkit::topologies::{
    ClusterSettings, Node, Sentinels, SentinelsSettings, TestCluster,
};

use crate::target::respool;

/// The time in which an expected event comes, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// Nothing is put together on its way, so each read is counted.
const ONE_BY_ONE: [&str; 3] = ["--threads=1", "--collapse=false", "--fuse=false"];

/// A respool whose log is shown if a test fails.
struct Front(Proxy);

impl Drop for Front {
    fn drop(&mut self) {
        let log = self.0.log();
        if thread::panicking() {
            eprintln!("its log:\n{log}");
        } else {
            assert!(!log.contains("panicked at"), "{log}");
        }
    }
}

impl Deref for Front {
    type Target = Proxy;
    fn deref(&self) -> &Proxy {
        &self.0
    }
}

fn start(backend: &str, args: &[&str]) -> Front {
    let mut all = vec![format!("--backend={backend}")];
    all.extend(args.iter().map(|&arg| arg.to_owned()));
    Front(Proxy::start(&respool(), &all).unwrap_or_else(|error| panic!("{error}")))
}

fn listed(addresses: &[SocketAddr]) -> String {
    let all: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    all.join(",")
}

/// How often a server has executed a command since that was reset.
pub(crate) fn calls(server: SocketAddr, command: &str) -> u64 {
    let said = text(&RespClient::connect(server).call("INFO commandstats"));
    let name = format!("cmdstat_{command}:calls=");
    let line = said.lines().find_map(|line| line.strip_prefix(&name));
    let calls = line.and_then(|line| line.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

pub(crate) fn all_calls(servers: &[SocketAddr], command: &str) -> u64 {
    servers.iter().map(|server| calls(*server, command)).sum()
}

pub(crate) fn reset(servers: &[SocketAddr]) {
    for server in servers {
        assert_eq!(
            RespClient::connect(*server).call("CONFIG RESETSTAT"),
            Reply::ok()
        );
    }
}

/// The lines of INFO about servers that are read or may be, as fields.
fn readers(client: &mut RespClient) -> Vec<BTreeMap<String, String>> {
    let said = text(&client.call("INFO respool"));
    let fields = |line: &str| -> BTreeMap<String, String> {
        let pairs = line.split(',').filter_map(|pair| pair.split_once('='));
        pairs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    };
    let lines = said.lines().filter(|line| line.contains(",read_shares="));
    lines
        .filter_map(|line| Some(fields(line.split_once(':')?.1)))
        .collect()
}

/// Waits until so many replicas have said how they are, to each worker.
#[track_caller]
pub(crate) fn wait_for_replicas(proxy: &Proxy, count: usize) {
    let mut clients: Vec<RespClient> = (0..8)
        .map(|_| RespClient::connect(proxy.address()))
        .collect();
    wait_until("the replicas have answered INFO", SOON, || {
        clients.iter_mut().all(|client| {
            let known =
                |one: &&BTreeMap<_, _>| one["role"] == "replica" && one["latency_us"] != "-1";
            readers(client).iter().filter(known).count() == count
        })
    });
}

/// A primary and its replicas, with a Sentinel that names the servers that a test wants.
struct SentinelScene {
    /// The primary in front.
    servers: Vec<ServerProcess>,
    sentinel: Fakes,
    names: Arc<Mutex<NamedServers>>,
    proxies: Vec<Front>,
}

#[derive(Clone)]
struct NamedServers {
    primary: SocketAddr,
    /// Hosts and ports.
    replicas: Vec<(String, u16)>,
}

impl SentinelScene {
    fn new(replicas: usize) -> SentinelScene {
        let args: Vec<Vec<&str>> = vec![Vec::new(); replicas + 1];
        SentinelScene::of(&any_server(), &args)
    }

    /// Each server gets its arguments, the primary first.
    fn of(binary: &Path, args: &[Vec<&str>]) -> SentinelScene {
        let mut servers: Vec<ServerProcess> = Vec::new();
        for own in args {
            let mut own: Vec<String> = own.iter().map(|&arg| arg.to_owned()).collect();
            own.extend(["--repl-diskless-sync-delay".into(), "0".into()]);
            own.extend(FORGETS.map(str::to_owned));
            if let Some(primary) = servers.first() {
                let port = primary.port().to_string();
                own.extend(["--replicaof".into(), "127.0.0.1".into(), port]);
            }
            let server = ServerProcess::start(binary, &own);
            servers.push(server.unwrap_or_else(|error| panic!("{error}")));
        }
        let place = |server: &ServerProcess| ("127.0.0.1".to_owned(), server.port());
        let names = Arc::new(Mutex::new(NamedServers {
            primary: servers[0].address(),
            replicas: servers[1..].iter().map(place).collect(),
        }));
        let shared = Arc::clone(&names);
        let sentinel = Fakes::start(1, move |asked| {
            let names = shared.lock().expect("no holder panics").clone();
            sentinel_says(asked, &names)
        });
        let scene = SentinelScene {
            servers,
            sentinel,
            names,
            proxies: Vec::new(),
        };
        for replica in 1..scene.servers.len() {
            scene.wait_until_linked(replica);
        }
        scene
    }

    fn wait_until_linked(&self, replica: usize) {
        let at = self.address(replica);
        wait_until("the replica has the data of its primary", SOON, || {
            let said = RespClient::connect(at).call("INFO replication");
            text(&said).contains("master_link_status:up")
        });
    }

    fn address(&self, server: usize) -> SocketAddr {
        self.servers[server].address()
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|one| one.address()).collect()
    }

    /// Puts another respool in front.
    fn serve(&mut self, reads: &str, args: &[&str]) -> SocketAddr {
        let sentinel = self.sentinel.addresses()[0];
        let proxy = start(&format!("redis-sentinel://{sentinel}/m?{reads}"), args);
        self.proxies.push(proxy);
        self.proxies[self.proxies.len() - 1].address()
    }

    /// The same, and waits for all replicas.
    fn serve_all(&mut self, reads: &str, args: &[&str]) -> SocketAddr {
        let address = self.serve(reads, args);
        self.wait_for(self.servers.len() - 1);
        address
    }

    #[track_caller]
    fn wait_for(&self, replicas: usize) {
        let last = self.proxies.last().expect("a respool is started");
        wait_for_replicas(last, replicas);
    }

    /// Changes its answers from now on, and publishes an event about it.
    fn will_name(&self, change: impl FnOnce(&mut NamedServers)) {
        change(&mut self.names.lock().expect("no holder panics"));
        let (channel, news) = (bulk("+set"), bulk("master m 127.0.0.1 1 quorum 1"));
        self.sentinel
            .tell(&format!(">3\r\n{}{channel}{news}", bulk("message")));
    }

    /// Waits until replicas have the primary's data.
    fn settle(&self) {
        let running = self.servers[1..].iter().filter(|one| one.is_running());
        let running = running.filter(|one| !one.is_frozen());
        let mut primary = RespClient::connect(self.address(0));
        for replica in running {
            wait_until("the replica has all writes", SOON, || {
                assert!(primary.call("SET settled 1").error().is_none());
                let mut replica = RespClient::connect(replica.address());
                let mut both = [&mut primary, &mut replica];
                let [one, other] = both.each_mut().map(|one| one.call("DBSIZE"));
                one == other && replica.call("GET settled") == Reply::bulk("1")
            });
        }
    }

    fn gets(&self) -> Vec<u64> {
        let all = self.addresses();
        all.iter().map(|server| calls(*server, "get")).collect()
    }
}

fn map(fields: &[(&str, &str)]) -> String {
    let all = fields.iter().map(|(name, value)| bulk(name) + &bulk(value));
    format!("*{}\r\n{}", 2 * fields.len(), all.collect::<String>())
}

fn sentinel_says(asked: &NodeRequest<'_>, names: &NamedServers) -> FakeAnswer {
    let (ip, port) = (
        names.primary.ip().to_string(),
        names.primary.port().to_string(),
    );
    if asked.name() == "SUBSCRIBE" {
        return Some(String::new());
    }
    if asked.is("SENTINEL MYID") {
        return Some(bulk(&"1".repeat(40)));
    }
    let name = asked.words.get(1).map(|word| word.to_ascii_uppercase());
    match name.as_deref() {
        Some("MASTER") => Some(map(&[
            ("name", "m"),
            ("ip", &ip),
            ("port", &port),
            ("flags", "master"),
            ("config-epoch", "1"),
            ("quorum", "1"),
            ("num-slaves", "1"),
            ("num-other-sentinels", "0"),
        ])),
        Some("GET-MASTER-ADDR-BY-NAME") => Some(format!("*2\r\n{}{}", bulk(&ip), bulk(&port))),
        Some("REPLICAS" | "SLAVES") => {
            let one = |(host, at): &(String, u16)| {
                map(&[
                    ("name", &format!("{host}:{at}")),
                    ("ip", host),
                    ("port", &at.to_string()),
                    ("flags", "slave"),
                    ("role-reported", "slave"),
                    ("master-link-status", "ok"),
                    ("master-host", &ip),
                    ("master-port", &port),
                    ("slave-priority", "100"),
                    ("slave-repl-offset", "1"),
                ])
            };
            let all: String = names.replicas.iter().map(one).collect();
            Some(format!("*{}\r\n{all}", names.replicas.len()))
        }
        Some(_) => Some("*0\r\n".to_owned()),
        None => None,
    }
}

/// A replica keeps no file from its primary, and is empty when it starts again.
const FORGETS: [&str; 2] = ["--rdb-del-sync-files", "yes"];

const KEYS: usize = 40;
const CLIENTS: usize = 12;
/// For each client of [`ask_everything`]: reads that a replica may serve, and others.
const GETS: u64 = KEYS as u64 + 3;
const GETS_OF_OWNERS: u64 = 3;

fn fill(address: SocketAddr) {
    write_all(&mut RespClient::connect(address));
}

/// The same, until so many replicas of each primary have all keys: a replica may be up and get no
/// data for another second.
fn fill_all(address: SocketAddr, replicas: i64) {
    let mut client = RespClient::connect(address);
    write_all(&mut client);
    let wait = format!("WAIT {replicas} {}", SOON.as_millis());
    assert_eq!(client.call(&wait), Reply::Integer(replicas));
}

fn write_all(client: &mut RespClient) {
    for key in 0..KEYS {
        let replies = pipelined(client, &format!("SET k{key} {key};HSET h{key} f {key}"));
        assert!(
            replies.iter().all(|reply| reply.error().is_none()),
            "{replies:?}"
        );
    }
}

/// Many clients read in every way there is, and each gets the written values.
fn ask_everything(address: SocketAddr) {
    let value = |key: usize| Reply::bulk(key.to_string());
    let hash = |key: usize| Reply::Array(vec![Reply::bulk("f"), value(key)]);
    for number in 0..CLIENTS {
        let mut client = RespClient::connect(address);
        let all: Vec<String> = (0..KEYS).map(|key| format!("GET k{key}")).collect();
        let expected: Vec<Reply> = (0..KEYS).map(value).collect();
        assert_eq!(pipelined(&mut client, &all.join(";")), expected);
        assert_eq!(client.call("GET k7"), value(7));
        let names: Vec<String> = (0..KEYS).map(|key| format!("k{key}")).collect();
        let names = names.join(" ");
        assert_eq!(
            client.call(&format!("MGET {names}")),
            Reply::Array(expected)
        );
        let count = Reply::Integer(KEYS as i64);
        assert_eq!(client.call(&format!("EXISTS {names}")), count);
        assert_eq!(client.call("HGETALL h3"), hash(3));
        let mixed =
            format!("SET own{number} 1;GET k1;INCR own{number};GET k2;DEL own{number};HGET h1 f");
        let expected = [
            Reply::ok(),
            value(1),
            Reply::Integer(2),
            value(2),
            Reply::Integer(1),
            value(1),
        ];
        assert_eq!(pipelined(&mut client, &mixed), expected);
        // Commands that replicas must not serve.
        assert!(matches!(client.call("SCAN 0"), Reply::Array(_)));
        let part = client.call("HSCAN h5 0");
        assert_eq!(part, Reply::Array(vec![Reply::bulk("0"), hash(5)]));
        let script = ["EVAL", "return redis.call('GET', KEYS[1])", "1", "k3"];
        assert_eq!(client.call_args(&script), value(3));
        let block = pipelined(&mut client, "MULTI;GET k4;EXEC");
        assert_eq!(block[2], Reply::Array(vec![value(4)]));
        let watched = pipelined(&mut client, "WATCH k5;GET k5;UNWATCH");
        assert_eq!(watched, [Reply::ok(), value(5), Reply::ok()]);
    }
}

/// Whether the servers got the requests that the policy gives them.
fn asked_as_said(
    policy: &str,
    address: SocketAddr,
    owners: &[SocketAddr],
    replicas: &[SocketAddr],
) {
    let all = [owners, replicas].concat();
    let once = || {
        reset(&all);
        ask_everything(address);
        for never in ["scan", "hscan", "eval", "evalsha", "multi", "exec", "watch"] {
            assert_eq!(all_calls(replicas, never), 0, "{policy}: {never}");
        }
        let gets = [all_calls(owners, "get"), all_calls(replicas, "get")];
        let clients = CLIENTS as u64;
        assert_eq!(gets[0] + gets[1], clients * (GETS + GETS_OF_OWNERS));
        gets
    };
    if policy == "nearest" {
        // All servers are about equally near, most of the time.
        let claim = "owners and replicas are read";
        return wait_until(claim, SOON, || {
            let [owners, replicas] = once();
            owners > CLIENTS as u64 * GETS_OF_OWNERS && replicas > 0
        });
    }
    let [of_owners, of_replicas] = once();
    let reads = |servers: &[SocketAddr]| {
        let all = ["mget", "exists", "hgetall", "hget"];
        all.map(|command| all_calls(servers, command))
            .iter()
            .sum::<u64>()
    };
    match policy {
        "primary" | "prefer-primary" => {
            assert_eq!((of_replicas, reads(replicas)), (0, 0), "{policy}");
        }
        _ => {
            assert_eq!(of_owners, CLIENTS as u64 * GETS_OF_OWNERS, "{policy}");
            assert_eq!(reads(owners), 0, "{policy}");
            for replica in replicas {
                assert!(
                    calls(*replica, "get") > 0,
                    "{policy}: each replica gets reads"
                );
            }
        }
    }
}

const POLICIES: [&str; 5] = [
    "primary",
    "prefer-primary",
    "replica",
    "prefer-replica",
    "nearest",
];

/// Clients of a node that have said READONLY, and others that have read.
fn read_only(node: &Node) -> (usize, usize) {
    let said = text(&RespClient::connect(node.address()).call("CLIENT LIST"));
    let has = |line: &str, name: &str, is: &dyn Fn(&str) -> bool| {
        let mut fields = line.split(' ').filter_map(|field| field.split_once('='));
        fields.any(|(its, value)| its == name && is(value))
    };
    let of_replicas = |line: &&str| has(line, "flags", &|flags| flags.contains('r'));
    let reads = |line: &&str| {
        !of_replicas(line) && has(line, "cmd", &|cmd| ["get", "mget", "exists"].contains(&cmd))
    };
    let lines = || said.lines();
    (
        lines().filter(of_replicas).count(),
        lines().filter(reads).count(),
    )
}

#[test]
fn each_policy_reads_where_it_says_in_front_of_a_cluster() {
    let settings = ClusterSettings::default();
    let cluster =
        TestCluster::start(&any_server(), settings).unwrap_or_else(|error| panic!("{error}"));
    let all = cluster.addresses();
    let (owners, replicas) = all.split_at(3);
    let seeds = listed(&all);
    for policy in POLICIES {
        let proxy = start(
            &format!("redis-cluster://{seeds}?reads={policy}"),
            &ONE_BY_ONE,
        );
        fill(proxy.address());
        if policy != "primary" {
            wait_for_replicas(&proxy, 3);
        }
        wait_until("the replicas have all writes", SOON, || {
            let size = |at: &SocketAddr| match RespClient::connect(*at).call("DBSIZE") {
                Reply::Integer(keys) => keys,
                other => panic!("{other:?}"),
            };
            let [one, other] = [owners, replicas].map(|all| all.iter().map(size).sum::<i64>());
            one == other
        });
        asked_as_said(policy, proxy.address(), owners, replicas);
        for node in 0..6 {
            let (said, not) = read_only(cluster.node(node));
            match (node, policy) {
                (0..3, _) | (_, "primary") => assert_eq!(said, 0, "{policy}: {node} is an owner"),
                _ => assert!(
                    said > 0 && not == 0,
                    "{policy}: {node} is a replica: {said} {not}"
                ),
            }
        }
    }
}

#[test]
fn each_policy_reads_where_it_says_in_front_of_sentinels() {
    let mut scene = SentinelScene::new(2);
    let all = scene.addresses();
    fill(all[0]);
    scene.settle();
    for policy in POLICIES {
        let address = match policy {
            "primary" => scene.serve(&format!("reads={policy}"), &ONE_BY_ONE),
            _ => scene.serve_all(&format!("reads={policy}"), &ONE_BY_ONE),
        };
        asked_as_said(policy, address, &all[..1], &all[1..]);
    }
    assert_eq!(
        all_calls(&all, "readonly"),
        0,
        "READONLY goes to Cluster nodes alone"
    );
}

/// Several workers, other databases and RESP3 read from replicas, too.
#[test]
fn replica_reads_work_for_workers_databases_and_resp3() {
    let mut scene = SentinelScene::new(2);
    let mut primary = RespClient::connect(scene.address(0));
    for db in 0..3 {
        let set = pipelined(
            &mut primary,
            &format!("SELECT {db};SET k {db};HSET h f {db}"),
        );
        assert!(set.iter().all(|reply| reply.error().is_none()));
    }
    scene.settle();
    let args = ["--threads=3", "--collapse=false", "--fuse=false"];
    let address = scene.serve_all("reads=replica", &args);
    reset(&scene.addresses());
    for number in 0..18 {
        let mut client = RespClient::connect(address);
        if number % 2 == 1 {
            assert!(client.call("HELLO 3").error().is_none());
        }
        for db in [number % 3, 0, 2] {
            assert_eq!(client.call(&format!("SELECT {db}")), Reply::ok());
            assert_eq!(client.call("GET k"), Reply::bulk(db.to_string()));
            let pair = vec![Reply::bulk("f"), Reply::bulk(db.to_string())];
            let hash = client.call("HGETALL h");
            assert!(
                hash == Reply::Array(pair.clone()) || hash == Reply::Map(pair),
                "{hash:?}"
            );
        }
    }
    let gets = scene.gets();
    assert_eq!((gets[0], gets[1] + gets[2]), (0, 54), "{gets:?}");
}

/// A session that has said READWRITE reads its own writes.
#[test]
fn readwrite_session_reads_its_own_writes() {
    let mut scene = SentinelScene::new(1);
    fill(scene.address(0));
    scene.settle();
    let address = scene.serve_all("reads=prefer-replica&own-writes-ms=0", &ONE_BY_ONE);
    let all = scene.addresses();
    // The server of the client's next reads: the primary, or the replica.
    let at_primary = |client: &mut RespClient| {
        reset(&all);
        for _ in 0..2 {
            let replies = pipelined(client, "GET k1;GET k1;GET k2");
            assert!(
                replies.iter().all(|reply| reply.error().is_none()),
                "{replies:?}"
            );
        }
        let gets = all.iter().map(|at| calls(*at, "get")).collect::<Vec<_>>();
        assert!(
            gets == [6, 0] || gets == [0, 6],
            "all reads go to one server: {gets:?}"
        );
        gets[0] == 6
    };
    let mut client = RespClient::connect(address);
    assert!(!at_primary(&mut client));
    for (asked, is_at_primary) in [
        ("READWRITE", true),
        ("READONLY", false),
        ("READWRITE", true),
        ("RESET", false),
    ] {
        assert!(client.call(asked).error().is_none(), "{asked}");
        assert_eq!(at_primary(&mut client), is_at_primary, "{asked}");
        assert!(
            !at_primary(&mut RespClient::connect(address)),
            "another session reads at replicas"
        );
    }

    let address = scene.serve_all("reads=replica&own-writes=all&own-writes-ms=0", &ONE_BY_ONE);
    let mut client = RespClient::connect(address);
    assert!(at_primary(&mut client));
    for (asked, is_at_primary) in [("READONLY", false), ("RESET", true), ("READWRITE", true)] {
        assert!(client.call(asked).error().is_none(), "{asked}");
        assert_eq!(at_primary(&mut client), is_at_primary, "{asked}");
    }

    // For a while after each write, by any command.
    const WHILE: Duration = Duration::from_millis(400);
    let address = scene.serve_all(
        "reads=replica&own-writes=all&own-writes-ms=400",
        &ONE_BY_ONE,
    );
    let mut client = RespClient::connect(address);
    assert!(!at_primary(&mut client), "the session has written nothing");
    let large = request(&["SET", "large", &"x".repeat(1 << 20)]);
    for (wrote, replies) in [
        (words("SET own 1"), 1),
        (words("HSET h1 f 1"), 1),
        (words("EVAL return(redis.call('incr',KEYS[1])) 1 own"), 1),
        (
            ["MULTI", "INCR own", "EXEC"]
                .iter()
                .flat_map(|one| words(one))
                .collect(),
            3,
        ),
        (words("BLPOP none 0.01"), 1),
        (large, 1),
    ] {
        let name = String::from_utf8_lossy(&wrote[..wrote.len().min(40)]).into_owned();
        let replies = client.exchange(wrote, replies);
        assert!(
            replies.iter().all(|reply| reply.error().is_none()),
            "{replies:?}"
        );
        assert!(at_primary(&mut client), "{name:?}");
        thread::sleep(WHILE);
        assert!(!at_primary(&mut client), "the while is over: {name:?}");
    }
}

/// Readers that go on until they are told to end. Their values never change.
struct SteadyReaders<'a> {
    over: &'a AtomicBool,
    answered: &'a AtomicU64,
}

impl SteadyReaders<'_> {
    /// Reads without end, and panics at a value other than the written one. `Err`: the error that
    /// came instead.
    fn read(&self, address: SocketAddr, number: usize) {
        let mut client = RespClient::connect(address);
        let mut round = number;
        while !self.over.load(Ordering::SeqCst) {
            round += 1;
            let key = |more: usize| (round * 7 + more) % KEYS;
            let some: Vec<String> = (0..5).map(|more| format!("GET k{}", key(more))).collect();
            let expected: Vec<Reply> = (0..5)
                .map(|more| Reply::bulk(key(more).to_string()))
                .collect();
            let began = Instant::now();
            let got = match round % 3 {
                0 => pipelined(&mut client, &some.join(";")),
                1 => {
                    let names = some.join(" ").replace("GET ", "");
                    match client.call(&format!("MGET {names}")) {
                        Reply::Array(values) => values,
                        other => vec![other],
                    }
                }
                _ => some.iter().map(|one| client.call(one)).collect(),
            };
            assert_eq!(got, expected, "{:?} later", began.elapsed());
            self.answered.fetch_add(1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Many clients read of each of these while `trouble` happens: no read fails, and none is wrong.
fn read_all_the_time(addresses: &[SocketAddr], trouble: impl FnOnce()) {
    let (over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let load = SteadyReaders {
        over: &over,
        answered: &answered,
    };
    thread::scope(|scope| {
        for address in addresses {
            for number in 0..4 {
                let load = &load;
                scope.spawn(move || {
                    let read = || load.read(*address, number);
                    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
                    if let Err(panic) = result {
                        load.over.store(true, Ordering::SeqCst);
                        std::panic::resume_unwind(panic);
                    }
                });
            }
        }
        let troubled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(trouble));
        thread::sleep(Duration::from_millis(300));
        over.store(true, Ordering::SeqCst);
        if let Err(panic) = troubled {
            std::panic::resume_unwind(panic);
        }
    });
    assert!(answered.load(Ordering::SeqCst) > 100, "the load was a load");
}

/// Replicas come, freeze and go, and no reader notices.
#[test]
fn changing_replicas_are_hidden_from_readers() {
    let mut scene = SentinelScene::new(2);
    fill(scene.address(0));
    scene.settle();
    let policies = ["replica", "prefer-replica", "nearest"];
    let addresses =
        policies.map(|policy| scene.serve_all(&format!("reads={policy}"), &["--threads=1"]));
    let said = |scene: &SentinelScene, text: &str| {
        let all = scene.proxies.iter();
        all.map(|proxy| proxy.log().matches(text).count())
            .min()
            .unwrap_or(0)
    };
    let label = |scene: &SentinelScene, server: usize| scene.address(server).to_string();
    let scene = Mutex::new(scene);
    read_all_the_time(&addresses, || {
        let mut scene = scene.lock().expect("no holder panics");
        let one = format!("the replica {} is read", label(&scene, 1));
        let other = format!("the replica {} is read", label(&scene, 2));
        // The first replica is killed. It is back without its keys before it has synchronised.
        scene.servers[1].kill9();
        thread::sleep(Duration::from_millis(300));
        let restarted = scene.servers[1].restart();
        restarted.unwrap_or_else(|error| panic!("{error}"));
        wait_until("reads go to the first replica again", SOON, || {
            said(&scene, &one) == 2
        });
        // The second replica freezes and wakes.
        scene.servers[2].stop();
        thread::sleep(Duration::from_millis(1_500));
        scene.servers[2].cont();
        wait_until("reads go to the second replica again", SOON, || {
            said(&scene, &other) == 2
        });
        // The Sentinel drops the first replica, and names it again.
        let left = (String::from("127.0.0.1"), scene.servers[1].port());
        scene.will_name(|names| names.replicas.retain(|one| *one != left));
        let mut client = RespClient::connect(addresses[1]);
        wait_until("respool has forgotten the replica", SOON, || {
            let listed = readers(&mut client);
            listed.iter().filter(|one| one["role"] == "replica").count() == 1
        });
        scene.servers[1].kill9();
        let restarted = scene.servers[1].restart();
        restarted.unwrap_or_else(|error| panic!("{error}"));
        scene.will_name(|names| names.replicas.push(left));
        wait_until("reads go to the first replica a third time", SOON, || {
            said(&scene, &one) == 3
        });
    });
}

/// A replica that is back without its keys is not read.
#[test]
fn restarted_empty_replica_is_not_read() {
    let mut scene = SentinelScene::new(0);
    fill(scene.address(0));
    // Only REPLICAOF makes the server a replica: after a restart it is a primary without data.
    let server =
        ServerProcess::start(&any_server(), &FORGETS).unwrap_or_else(|error| panic!("{error}"));
    let follow = format!("REPLICAOF 127.0.0.1 {}", scene.servers[0].port());
    assert_eq!(
        RespClient::connect(server.address()).call(&follow),
        Reply::ok()
    );
    let place = ("127.0.0.1".to_owned(), server.port());
    scene.servers.push(server);
    scene.will_name(|names| names.replicas.push(place));
    scene.settle();
    let address = scene.serve_all("reads=prefer-replica", &ONE_BY_ONE);
    let mut client = RespClient::connect(address);
    let is_read = |client: &mut RespClient| {
        let lines = readers(client);
        lines.iter().any(|one| one["read_shares"] == "64")
    };
    wait_until("reads go to the replica", SOON, || is_read(&mut client));
    // While the primary is away, respool reads at replicas that have lost it.
    scene.servers[0].stop();
    let restarted = scene.servers[1].restart();
    restarted.unwrap_or_else(|error| panic!("{error}"));
    let mut all = Vec::new();
    for _ in 0..250 {
        let mut one = RespClient::connect(address);
        one.send(&words("GET k7"));
        all.push(one);
        thread::sleep(Duration::from_millis(10));
    }
    scene.servers[0].cont();
    for one in &mut all {
        assert_eq!(one.reply(), Reply::bulk("7"));
    }
    let follows = RespClient::connect(scene.address(1)).call(&follow);
    assert_eq!(follows, Reply::ok());
    wait_until("reads go to the replica again", SOON, || {
        is_read(&mut client)
    });
    assert_eq!(client.call("GET k7"), Reply::bulk("7"));
}

/// A read that was lost with a replica twice is answered by the primary.
#[test]
fn read_lost_twice_goes_to_the_primary() {
    let mut scene = SentinelScene::new(1);
    fill(scene.address(0));
    scene.settle();
    let address = scene.serve_all("reads=prefer-replica", &ONE_BY_ONE);
    let read = format!("the replica {} is read", scene.address(1));
    let read_again = |times: usize| scene.proxies[0].log().matches(&read).count() == times;
    let [primary, replica] = [0, 1].map(|server| &scene.servers[server]);
    primary.stop();
    replica.stop();
    let mut client = RespClient::connect(address);
    client.send(&["INCR count", "GET k7"].map(words).concat());
    // The read goes to another server once the write before it is answered.
    wait_until("the replica is given up", SOON, || {
        scene.proxies[0].log().contains("its reads go elsewhere")
    });
    replica.cont();
    wait_until("the replica is read again", SOON, || read_again(2));
    replica.stop();
    primary.cont();
    assert_eq!(client.replies(2), [Reply::Integer(1), Reply::bulk("7")]);
    replica.cont();
}

/// A read that was sent to a primary that freezes is answered by its replica.
#[test]
fn read_at_a_frozen_primary_moves_to_the_replica() {
    let mut scene = SentinelScene::new(1);
    fill(scene.address(0));
    scene.settle();
    let addresses = ["prefer-primary", "nearest"]
        .map(|policy| scene.serve_all(&format!("reads={policy}"), &["--threads=1"]));
    for address in addresses {
        let mut clients: Vec<RespClient> = (0..20).map(|_| RespClient::connect(address)).collect();
        for client in &mut clients {
            assert_eq!(client.call("GET k1"), Reply::bulk("1"));
        }
        let before = calls(scene.address(1), "get") + calls(scene.address(1), "mget");
        scene.servers[0].stop();
        for (number, client) in clients.iter_mut().enumerate() {
            let both = [format!("GET k{number}"), "STRLEN k7".to_owned()];
            client.send(&both.map(|one| words(&one)).concat());
        }
        let mut writer = RespClient::connect(address);
        writer.send(&words("INCR count"));
        for (number, client) in clients.iter_mut().enumerate() {
            let both = [Reply::bulk(number.to_string()), Reply::Integer(1)];
            assert_eq!(client.replies(2), both);
        }
        scene.servers[0].cont();
        assert!(matches!(writer.reply(), Reply::Integer(1..=2)));
        // Late replies of the primary are dropped.
        for (number, client) in clients.iter_mut().enumerate() {
            let next = Reply::bulk((number + 1).to_string());
            assert_eq!(client.call(&format!("GET k{}", number + 1)), next);
        }
        let after = calls(scene.address(1), "get") + calls(scene.address(1), "mget");
        assert!(after > before, "the replica was not read");
    }
}

/// A read over several primaries of which one freezes is answered by that one's replica. No replica
/// takes over.
#[test]
fn scattered_read_survives_one_frozen_primary() {
    let settings = ClusterSettings {
        node_timeout: Duration::from_secs(60),
        ..ClusterSettings::default()
    };
    let cluster =
        TestCluster::start(&any_server(), settings).unwrap_or_else(|error| panic!("{error}"));
    let url = format!(
        "redis-cluster://{}?reads=prefer-primary",
        listed(&cluster.addresses())
    );
    let proxy = start(&url, &["--threads=1"]);
    fill_all(proxy.address(), 1);
    wait_for_replicas(&proxy, 3);
    let mut clients: Vec<RespClient> = (0..5)
        .map(|_| RespClient::connect(proxy.address()))
        .collect();
    let keys = |from: usize| (from..from + 20).map(|key| format!("k{key}"));
    for client in &mut clients {
        assert_eq!(client.call("EXISTS k1 k2 k3"), Reply::Integer(3));
    }
    cluster.node(0).stop();
    for (from, client) in clients.iter_mut().enumerate() {
        let keys = keys(from).collect::<Vec<_>>().join(" ");
        client.send(
            &[format!("MGET {keys}"), format!("EXISTS {keys}")]
                .map(|one| words(&one))
                .concat(),
        );
    }
    for (from, client) in clients.iter_mut().enumerate() {
        let values = (from..from + 20).map(|key| Reply::bulk(key.to_string()));
        let both = [Reply::Array(values.collect()), Reply::Integer(20)];
        assert_eq!(client.replies(2), both);
    }
    cluster.node(0).cont();
    // Late replies of the node are dropped.
    for client in &mut clients {
        for key in 0..KEYS {
            let value = Reply::Array(vec![Reply::bulk(key.to_string()), Reply::bulk("0")]);
            assert_eq!(client.call(&format!("MGET k{key} k0")), value);
        }
    }
}

/// A slow replica is waited for while its primary is gone.
#[test]
fn slow_replica_is_waited_for_without_its_primary() {
    let mut scene = SentinelScene::new(1);
    fill(scene.address(0));
    scene.settle();
    let addresses = ["prefer-primary", "prefer-replica", "nearest"]
        .map(|policy| scene.serve_all(&format!("reads={policy}"), &["--threads=1"]));
    let mut clients = addresses.map(RespClient::connect);
    scene.servers[0].kill9();
    for client in &mut clients {
        for key in 0..KEYS {
            let value = Reply::bulk(key.to_string());
            assert_eq!(client.call(&format!("GET k{key}")), value);
        }
    }
    read_while_slow(&mut clients, &scene.servers[1]);
}

/// With `reads=replica`, the only replica is waited for.
#[test]
fn only_replica_is_waited_for_with_reads_replica() {
    let mut scene = SentinelScene::new(1);
    fill(scene.address(0));
    scene.settle();
    let address = scene.serve_all("reads=replica", &["--threads=1"]);
    read_while_slow(&mut [RespClient::connect(address)], &scene.servers[1]);
}

fn read_while_slow(clients: &mut [RespClient], replica: &ServerProcess) {
    replica.stop();
    let ends = Instant::now() + Duration::from_millis(700);
    let mut asked = 0;
    while Instant::now() < ends {
        for client in &mut *clients {
            client.send(&words(&format!("GET k{}", asked % KEYS)));
        }
        asked += 1;
        thread::sleep(Duration::from_millis(20));
    }
    replica.cont();
    for client in clients {
        for key in 0..asked {
            assert_eq!(client.reply(), Reply::bulk((key % KEYS).to_string()));
        }
    }
}

/// A slow client's reads at a replica that goes away are answered by another server.
#[test]
fn slow_clients_read_moves_to_another_server() {
    let mut scene = SentinelScene::new(1);
    let value = "x".repeat(5_000);
    let set = RespClient::connect(scene.address(0)).call(&format!("SET large {value}"));
    assert_eq!(set, Reply::ok());
    scene.settle();
    let bounds = [
        "--session-output-soft-bytes=65536",
        "--session-output-hard-bytes=262144",
    ];
    let address = scene.serve_all("reads=prefer-replica", &[&ONE_BY_ONE[..], &bounds].concat());
    let mut client = RespClient::connect(address);
    let other = RespClient::connect(address);
    const COUNT: usize = 6_000;
    let sent = client.send_aside(words("GET large").repeat(COUNT));
    let mut asking = other;
    wait_until("the slow client has a link of its own", SOON, || {
        counter(&mut asking, "links_drained") > 0
    });
    scene.servers[1].kill9();
    for _ in 0..COUNT {
        let reply = client.reply();
        assert!(reply == Reply::bulk(&value), "{reply:?}");
    }
    assert!(sent.join().is_ok());
}

/// Where a replica takes no more connections, the primary answers its reads.
#[test]
fn full_replica_leaves_its_reads_to_the_primary() {
    let mut scene = SentinelScene::new(1);
    fill(scene.address(0));
    scene.settle();
    for policy in ["prefer-replica", "nearest"] {
        let address = scene.serve_all(&format!("reads={policy}"), &ONE_BY_ONE);
        let mut replica = RespClient::connect(scene.address(1));
        let max = |replica: &mut RespClient, max: u32| {
            let set = replica.call(&format!("CONFIG SET maxclients {max}"));
            assert_eq!(set, Reply::ok());
        };
        max(&mut replica, 1);
        let mut clients: Vec<RespClient> = (0..6).map(|_| RespClient::connect(address)).collect();
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(1_200) {
            for client in &mut clients {
                // Each client needs a link of a kind that does not exist yet.
                let replies = pipelined(
                    client,
                    "HELLO 3;GET k1;GET k2;GET k2;MGET k3 k4;SELECT 1;GET k1",
                );
                let error = replies.iter().find_map(Reply::error);
                assert_eq!(error, None, "{policy}");
                assert_eq!(replies[6], Reply::Null);
                assert_eq!(client.call("SELECT 0"), Reply::ok());
            }
        }
        max(&mut replica, 1_000);
    }
}

/// A user that exists only at the primary reads there.
#[test]
fn user_unknown_to_a_replica_reads_at_the_primary() {
    let mut scene = SentinelScene::new(1);
    fill(scene.address(0));
    scene.settle();
    let address = scene.serve_all("reads=prefer-replica", &ONE_BY_ONE);
    let set = "ACL SETUSER theirs on >secret ~* +@all";
    assert_eq!(RespClient::connect(scene.address(0)).call(set), Reply::ok());
    for before in ["PING", "GET k1"] {
        let mut client = RespClient::connect(address);
        assert!(client.call(before).error().is_none());
        assert_eq!(
            client.call("AUTH theirs secret"),
            Reply::ok(),
            "after {before}"
        );
        for _ in 0..3 {
            assert_eq!(client.call("GET k1"), Reply::bulk("1"));
            let replies = pipelined(&mut client, "GET k1;SET own 1;GET k2;MGET k3 k4");
            assert!(
                replies.iter().all(|reply| reply.error().is_none()),
                "{replies:?}"
            );
        }
    }
}

/// Reads wait while respool connects to the last replica again.
#[test]
fn reads_wait_for_the_last_replica_to_reconnect() {
    let mut scene = SentinelScene::new(1);
    fill(scene.address(0));
    scene.settle();
    let policies = ["prefer-primary", "prefer-replica", "nearest"];
    let addresses =
        policies.map(|policy| scene.serve_all(&format!("reads={policy}"), &["--threads=1"]));
    thread::sleep(Duration::from_millis(1_100));
    read_all_the_time(&addresses, || {
        scene.servers[0].kill9();
        thread::sleep(Duration::from_millis(300));
        // As a Sentinel does that promotes it.
        let mut replica = RespClient::connect(scene.address(1));
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(1_100));
            assert!(matches!(
                replica.call("CLIENT KILL TYPE normal SKIPME yes"),
                Reply::Integer(1..)
            ));
        }
    });
}

/// Reads go on while a Cluster changes its primaries.
#[test]
fn cluster_failover_does_not_stop_reads() {
    let settings = ClusterSettings::default();
    let cluster =
        TestCluster::start(&any_server(), settings).unwrap_or_else(|error| panic!("{error}"));
    let seeds = listed(&cluster.addresses());
    let policies = ["prefer-primary", "prefer-replica", "nearest"];
    let proxies = policies.map(|policy| {
        start(
            &format!("redis-cluster://{seeds}?reads={policy}"),
            &["--threads=1"],
        )
    });
    fill_all(proxies[0].address(), 1);
    for proxy in &proxies {
        wait_for_replicas(proxy, 3);
    }
    let addresses = proxies.each_ref().map(|proxy| proxy.address());
    let key_of = |primary: usize| {
        let mut keys = (0..KEYS).map(|key| format!("k{key}"));
        let own = |key: &String| cluster.share(primary).contains(&hash_slot(key.as_bytes()));
        keys.find(own).expect("each primary owns keys")
    };
    read_all_the_time(&addresses, || {
        let other_owner = |primary: usize, by: usize| {
            let slot = hash_slot(key_of(primary).as_bytes());
            wait_until("the replica has taken over", SOON, || {
                cluster.owner(slot).is_ok_and(|owner| owner == by)
            });
        };
        cluster
            .begin_failover(3)
            .unwrap_or_else(|error| panic!("{error}"));
        other_owner(0, 3);
        thread::sleep(Duration::from_millis(500));
        cluster.node(1).kill9();
        other_owner(1, 4);
        thread::sleep(Duration::from_millis(500));
        cluster.node(5).kill9();
        thread::sleep(Duration::from_millis(500));
    });
}

/// Reads go on while the primary that Sentinels watch is replaced.
#[test]
fn sentinel_failover_does_not_stop_reads() {
    let settings = SentinelsSettings {
        watched: 1,
        replicas: 2,
        ..SentinelsSettings::default()
    };
    let sentinels =
        Sentinels::start(&any_server(), &settings).unwrap_or_else(|error| panic!("{error}"));
    let seeds = listed(&sentinels.addresses());
    let name = sentinels.watched(0).name().to_owned();
    let policies = ["prefer-primary", "prefer-replica", "nearest"];
    let proxies = policies.map(|policy| {
        start(
            &format!("redis-sentinel://{seeds}/{name}?reads={policy}"),
            &["--threads=1"],
        )
    });
    fill_all(proxies[0].address(), 2);
    for proxy in &proxies {
        wait_for_replicas(proxy, 2);
    }
    let addresses = proxies.each_ref().map(|proxy| proxy.address());
    read_all_the_time(&addresses, || {
        sentinels.watched(0).server(0).kill9();
        let other = sentinels.wait_for_other_primary(0, 0, SOON);
        let other = other.unwrap_or_else(|error| panic!("{error}"));
        let third = sentinels.watched(0).server(3 - other).address();
        wait_until(
            "the remaining replica follows the new primary",
            SOON,
            || {
                proxies.iter().all(|proxy| {
                    let lines = readers(&mut RespClient::connect(proxy.address()));
                    lines
                        .iter()
                        .any(|one| one["address"] == third.to_string() && one["latency_us"] != "-1")
                })
            },
        );
        thread::sleep(Duration::from_millis(1_100));
        // The Sentinels must first know the state of the replica.
        wait_until("Sentinels know a replica to promote", SOON, || {
            sentinels.begin_failover(0, 0).is_ok()
        });
        let again = sentinels.wait_for_other_primary(0, other, SOON);
        again.unwrap_or_else(|error| panic!("{error}"));
        thread::sleep(Duration::from_millis(500));
    });
}

/// How many of the 64 read shares a server has, by where respool reaches it.
fn read_shares_of(client: &mut RespClient, server: SocketAddr) -> u32 {
    let lines = readers(client);
    let line = lines
        .iter()
        .find(|one| one["address"] == server.to_string());
    let fields = line.unwrap_or_else(|| panic!("{server} in {lines:?}"));
    fields["read_shares"].parse().expect("a number")
}

/// Of reads by many sessions, how many of a hundred this server has answered and not the other.
fn share_of(scene: &SentinelScene, address: SocketAddr, server: usize, other: usize) -> u64 {
    reset(&scene.addresses());
    let mut clients: Vec<RespClient> = (0..150).map(|_| RespClient::connect(address)).collect();
    for client in &mut clients {
        for _ in 0..4 {
            assert_eq!(client.call("GET k3"), Reply::bulk("3"));
        }
    }
    let gets = scene.gets();
    assert_eq!(gets.iter().sum::<u64>(), 600, "{gets:?}");
    assert_eq!(gets[server] + gets[other], 600, "{gets:?}");
    gets[server] / 6
}

#[test]
fn reads_are_dealt_by_the_weights_of_replicas() {
    let mut scene = SentinelScene::new(2);
    fill(scene.address(0));
    scene.settle();
    let [one, other] = [1, 2].map(|server| scene.address(server));
    // A busy moment makes one of them look slower for a while, which counts, too.
    for (weights, read_shares, hundredths) in [
        (format!("{one}:2,{other}:1"), 37..=49, 55..=79),
        (format!("{one}:2"), 37..=49, 55..=79),
        (format!("{one}:1,{other}:7"), 4..=16, 4..=27),
        (format!("{one}:5,{other}:5"), 26..=38, 38..=62),
    ] {
        let reads = format!("reads=replica&weights={weights}");
        let address = scene.serve_all(&reads, &ONE_BY_ONE);
        let mut client = RespClient::connect(address);
        let mut before = String::new();
        wait_until("read shares and reads are as the weights say", SOON, || {
            let its = read_shares_of(&mut client, one);
            let of_a_hundred = share_of(&scene, address, 1, 2);
            let said = format!("{weights}: {its} read shares, {of_a_hundred} of a hundred reads");
            if said != before {
                eprintln!("{said}");
                before = said;
            }
            read_shares.contains(&its) && hundredths.contains(&of_a_hundred)
        });
    }
}

/// A slow replica is read less until it is as quick as the other one.
#[test]
fn slow_replica_is_read_less_until_it_recovers() {
    let mut scene = SentinelScene::new(2);
    fill(scene.address(0));
    scene.settle();
    let fault_proxy =
        FaultProxy::start(scene.address(2), FaultMode::Late(Duration::from_millis(20)));
    let slow = fault_proxy.address();
    scene.will_name(|names| names.replicas[1].1 = slow.port());
    let address = scene.serve_all("reads=replica", &ONE_BY_ONE);
    let mut client = RespClient::connect(address);
    wait_until("the slow replica has fewer read shares", SOON, || {
        (1..=20).contains(&read_shares_of(&mut client, slow))
    });
    // A busy machine may make the other one as slow for a moment.
    let mut share = 0;
    wait_until("the slow replica gets fewer reads", 2 * SOON, || {
        share = share_of(&scene, address, 2, 1);
        (4..=40).contains(&share)
    });
    fault_proxy.set(FaultMode::Pass);
    // How long it takes is smoothed: it has to answer quickly a few times.
    wait_until("the replica has its read shares again", 2 * SOON, || {
        read_shares_of(&mut client, slow) >= 24
    });
    wait_until("the replica gets more reads", 2 * SOON, || {
        share_of(&scene, address, 2, 1) > share
    });
}

/// Replicas of respool's own zone are read. Those with weight 0 are not.
#[test]
fn own_zone_is_read_and_zero_weight_is_not() {
    // Zones by the beginning of host names.
    let mut scene = SentinelScene::new(2);
    fill(scene.address(0));
    scene.settle();
    scene.will_name(|names| names.replicas[1].0 = String::from("localhost"));
    let all = scene.addresses();
    let shares = |scene: &mut SentinelScene, reads: &str| -> Vec<bool> {
        let address = scene.serve_all(reads, &ONE_BY_ONE);
        reset(&all);
        let mut clients: Vec<RespClient> = (0..8).map(|_| RespClient::connect(address)).collect();
        for client in &mut clients {
            assert_eq!(client.call("GET k3"), Reply::bulk("3"));
        }
        scene.gets().iter().map(|gets| *gets > 0).collect()
    };
    let [one, other] = [1, 2].map(|server| scene.servers[server].port());
    for (reads, expected) in [
        ("prefer-replica", [false, true, true]),
        ("replica&zone=a&zones=127.:a,local:b", [false, true, false]),
        ("replica&zone=b&zones=127.:a,local:b", [false, false, true]),
        ("replica&zone=b&zones=l:a,local:b", [false, false, true]),
        // No server is in this zone.
        ("replica&zone=c&zones=127.:a,local:b", [false, true, true]),
        (
            &format!("replica&weights=127.0.0.1:{one}:0"),
            [false, false, true],
        ),
        (
            &format!("replica&weights=localhost:{other}:0"),
            [false, true, false],
        ),
        (
            &format!("prefer-replica&weights=localhost:{other}:0,127.0.0.1:{one}:0"),
            [true, false, false],
        ),
    ] {
        assert_eq!(
            shares(&mut scene, &format!("reads={reads}")),
            expected,
            "{reads}"
        );
    }

    // Zones by the servers' own answer.
    let valkey = match find(Flavour::Valkey91) {
        Ok(valkey) => valkey,
        Err(reason) => return leave_out("servers", reason),
    };
    let args = ["here", "here", "there"].map(|zone| vec!["--availability-zone", zone]);
    let mut scene = SentinelScene::of(&valkey, &args);
    fill(scene.address(0));
    scene.settle();
    let all = scene.addresses();
    for (zone, expected) in [
        ("here", [false, true, false]),
        ("there", [false, false, true]),
    ] {
        let address = scene.serve_all(&format!("reads=replica&zone={zone}"), &ONE_BY_ONE);
        reset(&all);
        let mut clients: Vec<RespClient> = (0..8).map(|_| RespClient::connect(address)).collect();
        for client in &mut clients {
            assert_eq!(client.call("GET k3"), Reply::bulk("3"));
        }
        let asked: Vec<bool> = scene.gets().iter().map(|gets| *gets > 0).collect();
        assert_eq!(asked, expected, "{zone}");
        let listed = readers(&mut clients[0]);
        let mut zones: Vec<(&str, &str)> = listed
            .iter()
            .map(|one| (one["zone"].as_str(), one["read_shares"].as_str()))
            .collect();
        zones.sort_unstable();
        let shares = |its: &str| if its == zone { "64" } else { "0" };
        assert_eq!(
            zones,
            [("here", shares("here")), ("there", shares("there"))]
        );
    }
    // The replica moves to another zone.
    let address = scene.proxies[1].address();
    let moved = RespClient::connect(all[1]).call("CONFIG SET availability-zone there");
    assert_eq!(moved, Reply::ok());
    let mut client = RespClient::connect(address);
    wait_until("both replicas are in the new zone", SOON, || {
        readers(&mut client)
            .iter()
            .all(|one| one["zone"] == "there" && one["read_shares"] != "0")
    });
}

/// A primary and its replica, which answer as a test wants. A third node tells which is which.
struct FakePrimary {
    fakes: Fakes,
    proxy: Front,
    replica: Arc<Mutex<Behaviour>>,
}

/// The replica's answers.
#[derive(Clone)]
struct Behaviour {
    /// Of replication; `None`: nothing at all.
    info: Option<String>,
    /// To GET; `None`: the value.
    get: Option<String>,
}

/// The primary's answers.
const GIVES: &str = "role:master\r\nmaster_repl_offset:100\r\n";
/// A replica without contact for long, which lacks data.
const CUT_OFF: &str = "role:slave\r\nmaster_link_status:up\r\nmaster_last_io_seconds_ago:16\r\nmaster_sync_in_progress:0\r\n\
    slave_repl_offset:99\r\n";
/// A replica without news for long, which lacks no data.
const IDLE: &str = "role:slave\r\nmaster_link_status:up\r\nmaster_last_io_seconds_ago:59\r\nmaster_sync_in_progress:0\r\n\
    slave_repl_offset:100\r\n";
/// A replica that lacks much data, and receives some all the time.
const LATE: &str = "role:slave\r\nmaster_link_status:up\r\nmaster_last_io_seconds_ago:11\r\nmaster_sync_in_progress:0\r\n\
    slave_repl_offset:1\r\n";
const FOLLOWS: &str = "role:slave\r\nmaster_link_status:up\r\nmaster_sync_in_progress:0\r\n";
const LOST: &str = "role:slave\r\nmaster_link_status:down\r\nmaster_sync_in_progress:0\r\nmaster_link_down_since_seconds:3\r\n";
const SYNCS: &str = "role:slave\r\nmaster_link_status:down\r\nmaster_sync_in_progress:1\r\nmaster_link_down_since_seconds:3\r\n";
const NEW: &str = "role:slave\r\nmaster_link_status:down\r\nmaster_sync_in_progress:0\r\nmaster_link_down_since_seconds:-1\r\n";

impl FakePrimary {
    /// Node 0 is the primary, 1 its replica. In a Cluster node 2 is a primary without slots;
    /// otherwise it is their Sentinel.
    fn start(of_cluster: bool, reads: &str, info: &str) -> FakePrimary {
        let replica = Arc::new(Mutex::new(Behaviour {
            info: Some(bulk(info)),
            get: None,
        }));
        let shared = Arc::clone(&replica);
        let fakes = Fakes::start(3, move |asked| {
            let behaviour = shared.lock().expect("no holder panics").clone();
            said_by(asked, &behaviour, of_cluster)
        });
        let all = fakes.addresses();
        let backend = match of_cluster {
            true => format!("redis-cluster://{}", all[0]),
            false => format!("redis-sentinel://{}/m", all[2]),
        };
        let proxy = start(&format!("{backend}?reads={reads}"), &ONE_BY_ONE);
        FakePrimary {
            fakes,
            proxy,
            replica,
        }
    }

    fn will_say(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.replica.lock().expect("no holder panics"));
    }

    fn client(&self) -> RespClient {
        RespClient::connect(self.proxy.address())
    }

    /// So often a node was asked GET.
    fn gets(&self, node: usize) -> usize {
        let asked = self.fakes.asked_of(node);
        asked
            .iter()
            .filter(|asked| asked.starts_with("GET "))
            .count()
    }

    #[track_caller]
    fn is_read(&self) {
        let before = self.gets(1);
        let mut client = self.client();
        wait_until("the replica is read", SOON, || {
            assert_eq!(client.call("GET key").error(), None);
            self.gets(1) > before
        });
    }

    /// For longer than from one INFO to the next.
    #[track_caller]
    fn is_not_read(&self, why: &str) {
        let mut client = self.client();
        wait_until(why, SOON, || {
            let before = self.gets(1);
            assert!(client.call("GET key").error().is_none());
            self.gets(1) == before
        });
        let before = self.gets(1);
        let until = Instant::now() + Duration::from_millis(1_300);
        while Instant::now() < until {
            assert_eq!(client.call("GET key"), Reply::bulk("of 0"), "{why}");
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(self.gets(1), before, "{why}");
    }
}

fn said_by(asked: &NodeRequest<'_>, replica: &Behaviour, of_cluster: bool) -> FakeAnswer {
    let place = |node: usize| {
        let at = asked.all[node];
        let id = bulk(&format!("{:040}", at.port()));
        format!("*3\r\n{}:{}\r\n{id}", bulk(&at.ip().to_string()), at.port())
    };
    match (asked.name(), asked.node) {
        ("HELLO" | "CLIENT", _) => None,
        ("CLUSTER", _) if asked.is("CLUSTER SLOTS") => Some(format!(
            "*1\r\n*4\r\n:0\r\n:16383\r\n{}{}",
            place(0),
            place(1)
        )),
        // CLUSTER NODES names the node without slots, too.
        ("CLUSTER", _) if asked.is("CLUSTER NODES") => {
            let line = |at: &SocketAddr| {
                let id = at.port();
                format!("{id:040} {at}@1 master - 0 0 1 connected\n")
            };
            Some(bulk(&asked.all.iter().map(line).collect::<String>()))
        }
        ("CLUSTER", _) => Some(info(3, 1)),
        (_, 2) if !of_cluster => {
            let names = NamedServers {
                primary: asked.all[0],
                replicas: vec![(asked.all[1].ip().to_string(), asked.all[1].port())],
            };
            sentinel_says(asked, &names)
        }
        ("INFO", _) if asked.is("INFO server") => match (asked.node, &replica.info) {
            (1, None) => Some(String::new()),
            _ => Some(bulk("# Server\r\n")),
        },
        ("INFO", 1) => Some(replica.info.clone().unwrap_or_default()),
        ("INFO", _) => Some(bulk(GIVES)),
        // The next reply would be taken for this one.
        ("GET", 1) if replica.info.is_none() => Some(String::new()),
        ("GET", 1) if replica.get.is_some() => replica.get.clone(),
        ("GET", node) => Some(bulk(&format!("of {node}"))),
        ("COMMAND", _) if asked.words.len() == 3 => Some(newer(&asked.words[2])),
        ("INCR", _) => {
            thread::sleep(Duration::from_millis(1_500));
            Some(":1\r\n".to_owned())
        }
        _ => None,
    }
}

/// COMMAND INFO of a command that no table has.
fn newer(name: &str) -> String {
    let flags = match name {
        "newer.set" => "*2\r\n+write\r\n+denyoom\r\n",
        "newer.get" => "*2\r\n+readonly\r\n+fast\r\n",
        "newer.wait" => "*2\r\n+write\r\n+blocking\r\n",
        _ => return "*1\r\n*-1\r\n".to_owned(),
    };
    let name = bulk(name);
    format!("*1\r\n*6\r\n{name}:-2\r\n{flags}:1\r\n:1\r\n:1\r\n")
}

/// A READWRITE session reads its own writes by commands of modules or of newer servers.
#[test]
fn readwrite_covers_unknown_write_commands() {
    const WHILE: Duration = Duration::from_millis(600);
    for of_cluster in [true, false] {
        let said = FakePrimary::start(of_cluster, "prefer-replica&own-writes-ms=600", FOLLOWS);
        said.is_read();
        let mut client = said.client();
        assert_eq!(client.call("READWRITE"), Reply::ok());
        let large = request(&["NEWER.SET", "key", &"x".repeat(1 << 20)]);
        let large_read = request(&["NEWER.GET", "key", &"x".repeat(1 << 20)]);
        for (asked, may_write) in [
            (words("NEWER.SET key 1"), true),
            (words("NEWER.GET key"), false),
            (words("NEWER.WAIT key"), true),
            (large, true),
            (large_read, false),
            // The table has its container command.
            (words("XGROUP NEWER key"), true),
            (words("XGROUP HELP"), false),
            // The server may have the command by now.
            (words("NEWER.STILL key"), true),
        ] {
            let name = String::from_utf8_lossy(&asked[..asked.len().min(40)]).into_owned();
            thread::sleep(WHILE);
            wait_until("reads go to the replica again", SOON, || {
                client.call("GET key") == Reply::bulk("of 1")
            });
            assert_eq!(client.exchange(asked, 1), [Reply::ok()], "{name:?}");
            let at = Reply::bulk(if may_write { "of 0" } else { "of 1" });
            assert_eq!(client.call("GET key"), at, "{name:?}");
        }
    }
}

/// A replica that refuses reads is left for a while, and its reads are answered elsewhere.
#[test]
fn refusing_replica_is_left_for_a_while() {
    for of_cluster in [true, false] {
        let said = FakePrimary::start(of_cluster, "prefer-replica", FOLLOWS);
        for refusal in [
            "-LOADING Redis is loading the dataset in memory\r\n",
            "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
        ] {
            said.is_read();
            said.will_say(|its| its.get = Some(refusal.to_owned()));
            let before = said.gets(1);
            let began = Instant::now();
            let mut client = said.client();
            while began.elapsed() < Duration::from_millis(700) {
                let requests: Vec<u8> = (0..10).flat_map(|_| words("GET key")).collect();
                let replies = client.exchange(requests, 10);
                assert_eq!(replies, vec![Reply::bulk("of 0"); 10], "{refusal}");
            }
            let refused = said.gets(1) - before;
            assert!(
                (1..=10).contains(&refused),
                "{refused} were refused: {refusal}"
            );
            said.will_say(|its| its.get = None);
        }
        said.is_read();
    }
}

/// A read that a replica has refused is not sent to it again.
#[test]
fn refused_read_is_not_sent_to_its_replica_again() {
    let said = FakePrimary::start(true, "prefer-replica", FOLLOWS);
    said.is_read();
    said.will_say(|its| its.get = Some("-LOADING not yet\r\n".to_owned()));
    let before = said.gets(1);
    let mut client = said.client();
    // When that is answered, the replica would be tried again.
    let replies = pipelined(&mut client, "INCR slowly;GET key");
    assert_eq!(replies[1], Reply::bulk("of 0"));
    assert_eq!(said.gets(1) - before, 1);
}

/// MOVED from a replica leads to the node that it names.
#[test]
fn moved_from_a_replica_is_followed() {
    let said = FakePrimary::start(true, "prefer-replica", FOLLOWS);
    said.is_read();
    let slot = hash_slot(b"key");
    for named in [0, 2] {
        let at = said.fakes.addresses()[named];
        said.will_say(|its| its.get = Some(format!("-MOVED {slot} {at}\r\n")));
        let mut client = said.client();
        let before = said.gets(1);
        wait_until("the replica is asked", SOON, || {
            let reply = client.call("GET key");
            let of = ["of 0", "of 2"].map(Reply::bulk);
            assert!(of.contains(&reply), "{reply:?}");
            said.gets(1) > before
        });
        let requests: Vec<u8> = (0..10).flat_map(|_| words("GET key")).collect();
        let replies = client.exchange(requests, 10);
        assert!(
            replies.iter().all(|reply| reply.error().is_none()),
            "{replies:?}"
        );
        assert!(said.gets(named) > 0);
    }
}

/// A replica that does not have its primary's data is not read.
#[test]
fn unsynchronised_replica_is_not_read() {
    for of_cluster in [true, false] {
        let said = FakePrimary::start(of_cluster, "prefer-replica", FOLLOWS);
        said.is_read();
        for (says, why) in [
            (Some(bulk(LOST)), "it has lost its primary, which is there"),
            (Some(bulk(SYNCS)), "it is given all anew"),
            (Some(bulk(CUT_OFF)), "it is cut off"),
            (Some(bulk(NEW)), "it never had a primary"),
            (Some(bulk("role:master\r\n")), "it is a primary"),
            (Some("-NOPERM no\r\n".to_owned()), "it may not be asked"),
            (Some(":1\r\n".to_owned()), "that says nothing"),
            (Some("*0\r\n".to_owned()), "that says nothing, too"),
            (None, "it does not say how it is"),
        ] {
            said.will_say(|its| its.info = says);
            said.is_not_read(why);
            said.will_say(|its| its.info = Some(bulk(FOLLOWS)));
            said.is_read();
        }
        for says in [IDLE, LATE] {
            said.will_say(|its| its.info = Some(bulk(CUT_OFF)));
            said.is_not_read("it is cut off");
            said.will_say(|its| its.info = Some(bulk(says)));
            said.is_read();
        }
    }
}

/// A replica that is silently cut off from its primary is not read. The test drops all bytes
/// between both, as a partition of the network between them would.
#[test]
fn silently_cut_off_replica_is_not_read() {
    let mut scene = SentinelScene::new(1);
    fill(scene.address(0));
    let between = FaultProxy::start(scene.address(0), FaultMode::Pass);
    let (port, replica) = (between.address().port(), scene.address(1));
    let follow = format!("REPLICAOF 127.0.0.1 {port}");
    assert_eq!(RespClient::connect(replica).call(&follow), Reply::ok());
    let says = |expected: &str| {
        let said = RespClient::connect(replica).call("INFO replication");
        text(&said).contains(expected)
    };
    wait_until("the replica follows through the fault proxy", SOON, || {
        says(&format!("master_port:{port}\r\n")) && says("master_link_status:up")
    });
    scene.settle();
    let address = scene.serve_all("reads=prefer-replica", &ONE_BY_ONE);
    let mut client = RespClient::connect(address);
    let is_read =
        |client: &mut RespClient| readers(client).iter().any(|one| one["read_shares"] == "64");
    wait_until("reads go to the replica", SOON, || is_read(&mut client));
    between.set(FaultMode::Silent);
    assert_eq!(client.call("SET k7 new"), Reply::ok());
    assert_eq!(
        client.call("GET k7"),
        Reply::bulk("7"),
        "the replica has the old value"
    );
    wait_until("reads no longer go to the replica", 2 * SOON, || {
        client.call("GET k7") == Reply::bulk("new")
    });
    assert!(
        says("master_link_status:up"),
        "the replica does not see the loss"
    );
    assert!(!is_read(&mut client));
    between.set(FaultMode::Pass);
    between.reset_all();
    wait_until("reads go to the replica again", SOON, || {
        is_read(&mut client)
    });
    assert_eq!(client.call("GET k7"), Reply::bulk("new"));
}

/// With `reads=replica` and no readable replica, a read gets an error.
#[test]
fn reads_replica_without_replica_is_an_error() {
    for of_cluster in [true, false] {
        let said = FakePrimary::start(of_cluster, "replica", NEW);
        let mut client = said.client();
        wait_until("the primary is known", SOON, || {
            client.call("SET key 1") == Reply::ok()
        });
        for asked in [
            "GET key",
            "MGET a b c",
            "EXISTS a b",
            "GET key;GET key;SET key 1;GET key",
        ] {
            for reply in pipelined(&mut client, asked) {
                let error = reply.error().unwrap_or_default();
                let is_told = error.starts_with("NOTSENT respool: no replica can be read");
                assert!(is_told || reply == Reply::ok(), "{asked}: {reply:?}");
            }
        }
        assert_eq!(said.gets(0) + said.gets(1), 0);
        let block = pipelined(&mut client, "MULTI;GET key;EXEC");
        assert_eq!(block[0], Reply::ok(), "{block:?}");
        said.will_say(|its| its.info = Some(bulk(FOLLOWS)));
        wait_until("the replica is read", SOON, || {
            client.call("GET key") == Reply::bulk("of 1")
        });
    }
}

/// Requests that do not only read go to the primary.
#[test]
fn writes_go_to_the_primary() {
    let mut scene = SentinelScene::new(2);
    fill(scene.address(0));
    scene.settle();
    let address = scene.serve_all("reads=replica", &["--threads=2"]);
    let all = scene.addresses();
    reset(&all);
    let mut client = RespClient::connect(address);
    // All come from a session on a link to a replica.
    assert_eq!(client.call("GET k1"), Reply::bulk("1"));
    assert_eq!(client.call("SET k1 1"), Reply::ok());
    assert_eq!(client.call("GET k1"), Reply::bulk("1"));
    assert_eq!(client.call("WAIT 2 5000"), Reply::Integer(2));

    assert_eq!(client.call("GET k1"), Reply::bulk("1"));
    let mut listening = RespClient::connect(address);
    assert_eq!(listening.call("GET k1"), Reply::bulk("1"));
    assert!(matches!(listening.call("SUBSCRIBE news"), Reply::Array(_)));
    wait_until("the client is subscribed", SOON, || {
        client.call("PUBLISH news now") == Reply::Integer(1)
    });
    let news = ["message", "news", "now"].map(Reply::bulk);
    assert_eq!(listening.reply(), Reply::Array(news.to_vec()));

    let mut waiting = RespClient::connect(address);
    assert_eq!(waiting.call("GET k1"), Reply::bulk("1"));
    waiting.send(&words("BLPOP list 0"));
    assert!(waiting.is_quiet(Duration::from_millis(50)));
    assert_eq!(client.call("RPUSH list x"), Reply::Integer(1));
    let element = Reply::Array(vec![Reply::bulk("list"), Reply::bulk("x")]);
    assert_eq!(waiting.reply(), element);
    assert_eq!(waiting.call("GET k1"), Reply::bulk("1"));

    let mut tracking = RespClient::connect(address);
    assert_eq!(tracking.call("GET k1"), Reply::bulk("1"));
    assert!(tracking.call("HELLO 3").error().is_none());
    assert_eq!(tracking.call("GET k1"), Reply::bulk("1"));
    assert_eq!(tracking.call("CLIENT TRACKING ON"), Reply::ok());
    assert_eq!(tracking.call("GET k2"), Reply::bulk("2"));
    assert_eq!(client.call("SET k2 2"), Reply::ok());
    assert!(
        matches!(tracking.reply(), Reply::Push(_)),
        "the client hears that k2 has changed"
    );
    assert_eq!(tracking.call("CLIENT TRACKING OFF"), Reply::ok());
    assert_eq!(tracking.call("GET k2"), Reply::bulk("2"));

    let mut monitoring = RespClient::connect(address);
    assert_eq!(monitoring.call("GET k1"), Reply::bulk("1"));
    assert_eq!(monitoring.call("MONITOR"), Reply::ok());
    assert_eq!(client.call("SET seen 1"), Reply::ok());
    let mut seen = String::new();
    while !seen.contains("\"SET\" \"seen\"") {
        let Reply::Simple(line) = monitoring.reply() else {
            panic!("MONITOR tells lines")
        };
        seen = line;
    }

    let listed = client.call("CLIENT LIST");
    assert!(text(&listed).lines().count() >= 4, "{listed:?}");
    assert!(text(&client.call("INFO")).contains("role:master"));
    for command in ["subscribe", "blpop", "monitor", "wait", "client|tracking"] {
        assert_eq!(all_calls(&all[1..], command), 0, "{command}");
    }
    let mut lines = readers(&mut client);
    lines.sort_unstable_by_key(|one| one["address"].clone());
    let mut expected = all[1..].to_vec();
    expected.sort_unstable_by_key(|at| at.to_string());
    assert_eq!(lines.len(), 2, "{lines:?}");
    for (line, at) in lines.iter().zip(expected) {
        assert_eq!(line["address"], at.to_string());
        assert_eq!(
            (line["role"].as_str(), line["state"].as_str()),
            ("replica", "up")
        );
        assert_eq!(line["zone"], "");
        assert!(
            line["latency_us"].parse::<u64>().is_ok_and(|us| us > 0),
            "{line:?}"
        );
    }
    let shares = lines.iter().map(|line| line["read_shares"].parse::<u64>());
    assert_eq!(
        shares.map(|shares| shares.expect("a number")).sum::<u64>(),
        64
    );
}
