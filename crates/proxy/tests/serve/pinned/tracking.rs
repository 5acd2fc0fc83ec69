//! CLIENT TRACKING before several servers: a client that caches its reads is told of each change,
//! at any server of the key, and caches no value for ever.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use respool_testkit::client::{Reply, RespClient, request, words};
use respool_testkit::random::{Random, seed};
use respool_testkit::servers::{Proxy, ServerProcess, any_server, installed};
use respool_testkit::time::wait_until;
use respool_testkit::topologies::{Shards, TestCluster, cluster_url, sharded_url};
use tempfile::TempDir;

use crate::target::{Options, proxied, respool};
use crate::topology::cluster::{SOON, Served, primaries, with_every_server};

/// For so long nothing must come.
const MOMENT: Duration = Duration::from_millis(100);

/// How many keys the tests use. Each owner has some of them.
const KEYS: usize = 24;

/// The keys that a client was told of.
fn told(client: &mut RespClient, count: usize) -> Vec<String> {
    let mut keys = Vec::new();
    while keys.len() < count {
        keys.extend(invalidated(&client.reply()).expect("keys are named"));
    }
    assert_eq!(keys.len(), count, "{keys:?}");
    keys.sort();
    keys
}

/// The keys that a push names; `None`: all.
fn invalidated(push: &Reply) -> Option<Vec<String>> {
    let Reply::Push(items) = push else {
        panic!("no push: {push:?}");
    };
    assert_eq!(items[0], Reply::bulk("invalidate"));
    let Reply::Array(keys) = &items[1] else {
        assert_eq!(items[1], Reply::Null);
        return None;
    };
    let text = |key: &Reply| match key {
        Reply::Bulk(key) => String::from_utf8_lossy(key).into_owned(),
        other => panic!("no key: {other:?}"),
    };
    Some(keys.iter().map(text).collect())
}

fn resp3(address: SocketAddr) -> RespClient {
    let mut client = RespClient::connect(address);
    assert!(client.call("HELLO 3").error().is_none());
    client
}

/// Before any kind of pool, a tracking client gets the invalidations of one server.
fn tracks_like_one_server(address: SocketAddr, keys: &[String]) {
    let (mut client, mut other) = (resp3(address), RespClient::connect(address));
    let mut change = |keys: &[String]| {
        for key in keys {
            assert_eq!(other.call(&format!("SET {key} 2")), Reply::ok());
        }
    };
    let sorted = |keys: &[String]| {
        let mut keys = keys.to_vec();
        keys.sort();
        keys
    };
    let read_all = |client: &mut RespClient| {
        for key in keys {
            assert!(client.call(&format!("GET {key}")).error().is_none());
        }
    };
    assert_eq!(client.call("CLIENT TRACKING ON"), Reply::ok());
    read_all(&mut client);
    change(keys);
    assert_eq!(told(&mut client, keys.len()), sorted(keys));
    // One invalidation for each time that it has read the key.
    change(keys);
    assert!(client.is_quiet(MOMENT));
    let all = format!("MGET {}", keys.join(" "));
    assert!(client.call(&all).error().is_none());
    change(keys);
    assert_eq!(told(&mut client, keys.len()), sorted(keys));
    assert_eq!(client.call("CLIENT TRACKING OFF"), Reply::ok());
    read_all(&mut client);
    change(keys);
    assert!(client.is_quiet(MOMENT));

    // The client gets the changes of others, and not its own.
    let broadcasts = "CLIENT TRACKING ON BCAST NOLOOP";
    assert_eq!(client.call(broadcasts), Reply::ok());
    let info = client.call("CLIENT TRACKINGINFO");
    let flags = format!("{info:?}");
    assert!(flags.contains("bcast"), "{flags}");
    for key in keys {
        assert_eq!(client.call(&format!("SET {key} 1")), Reply::ok());
    }
    assert!(client.is_quiet(MOMENT));
    change(keys);
    assert_eq!(told(&mut client, keys.len()), sorted(keys));
    assert_eq!(client.call("CLIENT TRACKING OFF"), Reply::ok());

    assert_eq!(client.call("CLIENT TRACKING ON OPTIN"), Reply::ok());
    read_all(&mut client);
    change(keys);
    assert!(client.is_quiet(MOMENT));
    for key in keys {
        let read = words(&format!("GET {key}"));
        client.send(&[words("CLIENT CACHING YES"), read].concat());
        let replies = client.replies(2);
        assert_eq!(replies, [Reply::ok(), Reply::bulk("2")]);
    }
    change(keys);
    assert_eq!(told(&mut client, keys.len()), sorted(keys));
    // As caching libraries ask: with the time to live, in a transaction.
    for key in keys {
        let block = [
            "MULTI",
            &format!("PTTL {key}"),
            &format!("GET {key}"),
            "EXEC",
        ];
        let block: Vec<u8> = block.iter().flat_map(|request| words(request)).collect();
        client.send(&[words("CLIENT CACHING YES"), block].concat());
        let result = client.replies(5).pop();
        let both = Reply::Array(vec![Reply::Integer(-1), Reply::bulk("2")]);
        assert_eq!(result, Some(both));
    }
    change(keys);
    assert_eq!(told(&mut client, keys.len()), sorted(keys));

    let refused = client.call("CLIENT TRACKING ON OPTOUT");
    let said = "You can't switch OPTIN/OPTOUT mode";
    assert!(
        refused.error().is_some_and(|text| text.contains(said)),
        "{refused:?}"
    );
    let refused = client.call("CLIENT TRACKING ON REDIRECT 1");
    let said = "ERR respool: CLIENT TRACKING with REDIRECT is refused";
    assert!(
        refused.error().is_some_and(|text| text.starts_with(said)),
        "{refused:?}"
    );
    assert_eq!(
        client.call("CLIENT CACHING NO").error().map(|_| ()),
        Some(())
    );
    // Without RESP3 there is nothing to tell it with.
    assert_eq!(other.call("CLIENT TRACKING ON"), Reply::ok());
    assert_eq!(other.call(&format!("GET {}", keys[0])), Reply::bulk("2"));
    assert_eq!(client.call(&format!("SET {} 3", keys[0])), Reply::ok());
    assert!(other.is_quiet(MOMENT));
}

fn keys(prefix: &str) -> Vec<String> {
    (0..KEYS)
        .map(|number| format!("{prefix}{number}"))
        .collect()
}

#[test]
fn client_is_told_by_all_nodes_of_a_cluster() {
    with_every_server(|binary| {
        let served = Served::start(binary, primaries(), &["--threads=2"]);
        tracks_like_one_server(served.proxy.address(), &keys("key:"));
    });
}

#[test]
fn client_is_told_by_all_shards() {
    for binary in installed() {
        let shards = Shards::start(&binary, 3, &[""; 0]).unwrap_or_else(|error| panic!("{error}"));
        let backend = format!("--backend={}", sharded_url(&shards.addresses()));
        let proxy = Proxy::start(&respool(), &[backend]).unwrap_or_else(|error| panic!("{error}"));
        tracks_like_one_server(proxy.address(), &keys("key:"));
    }
}

/// A pool with keys at one server, in a Cluster, and at a server that sees them without their
/// prefix.
struct TrackedPools {
    single: ServerProcess,
    short: ServerProcess,
    cluster: TestCluster,
    proxy: Proxy,
    _folder: TempDir,
}

impl TrackedPools {
    fn start() -> TrackedPools {
        let binary = any_server();
        let start =
            || ServerProcess::start(&binary, &[""; 0]).unwrap_or_else(|error| panic!("{error}"));
        let (single, short) = (start(), start());
        let cluster = TestCluster::start(&binary, primaries());
        let cluster = cluster.unwrap_or_else(|error| panic!("{error}"));
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let file = folder.path().join("respool.toml");
        let proxy = Proxy::start_with(&respool(), |port| {
            let text = format!(
                "[pool.all]\nlisten = '127.0.0.1:{port}'\nbackend = 'redis://{}'\n\
                 [pool.all.prefixes]\n\
                 'c:' = '{}'\n\
                 's:' = {{ backend = 'redis://{}', strip = true }}\n",
                single.address(),
                cluster_url(&cluster.addresses()),
                short.address(),
            );
            std::fs::write(&file, text).unwrap_or_else(|error| panic!("{error}"));
            vec!["--config".to_owned(), file.display().to_string()]
        });
        TrackedPools {
            single,
            short,
            cluster,
            proxy: proxy.unwrap_or_else(|error| panic!("{error}")),
            _folder: folder,
        }
    }
}

/// An invalidation has the client's name of the key, even if the key has no prefix at its server.
#[test]
fn client_is_told_by_all_parts_of_a_pool() {
    let parts = TrackedPools::start();
    let each = [keys("x"), keys("c:"), keys("s:")];
    let some: Vec<String> = each.iter().flat_map(|keys| keys[..8].to_vec()).collect();
    tracks_like_one_server(parts.proxy.address(), &some);
    let servers = [parts.single.address(), parts.short.address()];
    let of_cluster = parts.cluster.addresses();
    for server in servers.iter().chain(&of_cluster) {
        let size = RespClient::connect(*server).call("DBSIZE");
        assert_ne!(size, Reply::Integer(0), "keys are on every server");
    }
    let mut client = resp3(parts.proxy.address());
    let refused = client.call("CLIENT TRACKING ON BCAST PREFIX s:");
    let said = "ERR respool: PREFIX of CLIENT TRACKING is refused";
    assert!(
        refused.error().is_some_and(|text| text.starts_with(said)),
        "{refused:?}"
    );
}

/// Reads of a session with CLIENT NO-TOUCH do not count as uses of a key, at any server.
#[test]
fn no_touch_holds_before_all_parts_of_a_pool() {
    let parts = TrackedPools::start();
    let mut client = RespClient::connect(parts.proxy.address());
    if client.call("CLIENT NO-TOUCH ON").error().is_some() {
        // Servers before Redis 7.2 do not know it.
        return;
    }
    let each = [keys("x"), keys("c:"), keys("s:")];
    let some: Vec<&str> = each
        .iter()
        .flat_map(|keys| keys[..8].iter().map(String::as_str))
        .collect();
    let mut other = RespClient::connect(parts.proxy.address());
    for key in &some {
        assert_eq!(other.call(&format!("SET {key} 1")), Reply::ok());
    }
    // The server counts in whole seconds.
    thread::sleep(Duration::from_millis(2_100));
    let idle =
        |other: &mut RespClient, key: &str| match other.call(&format!("OBJECT IDLETIME {key}")) {
            Reply::Integer(seconds) => seconds,
            reply => panic!("{key}: {reply:?}"),
        };
    for key in &some {
        assert_eq!(client.call(&format!("GET {key}")), Reply::bulk("1"));
    }
    assert!(
        client
            .call(&format!("MGET {}", some.join(" ")))
            .error()
            .is_none()
    );
    for key in &some {
        assert!(idle(&mut other, key) >= 1, "{key} was touched");
    }
    assert_eq!(client.call("CLIENT NO-TOUCH OFF"), Reply::ok());
    for key in &some {
        assert_eq!(client.call(&format!("GET {key}")), Reply::bulk("1"));
        assert_eq!(idle(&mut other, key), 0, "{key}");
    }
}

/// A tracking client is closed when one node is lost: invalidations of its keys are lost, too.
#[test]
fn client_is_closed_when_a_node_is_lost() {
    let served = Served::start(&any_server(), primaries(), &["--threads=1"]);
    let mut client = resp3(served.proxy.address());
    assert_eq!(client.call("CLIENT TRACKING ON"), Reply::ok());
    for key in keys("key:") {
        client.call(&format!("GET {key}"));
    }
    served.cluster.node(1).kill9();
    client.expect_closed();
    // Another client can track keys of the servers that are left.
    let mut client = resp3(served.proxy.address());
    assert_eq!(client.call("CLIENT TRACKING ON"), Reply::ok());
}

/// A client whose tracking cannot begin is closed. Libraries take an error as final, but connect
/// again after a close.
#[test]
fn client_that_cannot_begin_to_track_is_closed() {
    let target = proxied(&Options::with(&["--threads=1", "--outage-hold-ms=0"]));
    let mut client = target.client();
    assert!(client.call("HELLO 3").error().is_none());
    target.server.kill9();
    wait_until("respool has seen the loss of the server", SOON, || {
        target.client().call("GET k").error().is_some()
    });
    client.send(&words("CLIENT TRACKING ON"));
    client.expect_closed();
}

/// A client that caches values until their invalidation.
struct Cacher {
    client: RespClient,
    cache: HashMap<String, Reply>,
    /// For each reply that is to come, the keys of its values.
    asked: VecDeque<Vec<String>>,
    forgotten: usize,
}

impl Cacher {
    fn start(address: SocketAddr, options: &str) -> Cacher {
        let mut client = resp3(address);
        let tracking = format!("CLIENT TRACKING ON{options}");
        assert_eq!(client.call(&tracking), Reply::ok());
        Cacher {
            client,
            cache: HashMap::new(),
            asked: VecDeque::new(),
            forgotten: 0,
        }
    }

    /// Takes one reply or push.
    fn take(&mut self) {
        let value = self.client.reply();
        if let Reply::Push(_) = value {
            match invalidated(&value) {
                Some(keys) => keys.iter().for_each(|key| _ = self.cache.remove(key)),
                None => {
                    self.cache.clear();
                    self.forgotten += 1;
                }
            }
            return;
        }
        let asked = self.asked.pop_front().expect("a reply was asked for");
        let values = match value {
            Reply::Array(values) if asked.len() > 1 => values,
            // A transaction: the time to live stands in front of the value.
            Reply::Array(mut values) => {
                vec![values.pop().expect("the transaction has two replies")]
            }
            value => vec![value],
        };
        for (key, value) in asked.into_iter().zip(values) {
            assert_eq!(value.error(), None, "{key}");
            self.cache.insert(key, value);
        }
    }

    /// Reads in pipelines until it is over.
    fn read(&mut self, keys: &[String], opts_in: bool, random: &mut Random, is_over: &AtomicBool) {
        let mut draw = |bound| random.below(bound) as usize;
        while !is_over.load(Ordering::Relaxed) {
            let mut bytes = Vec::new();
            for _ in 0..=draw(12) {
                let key = keys[draw(keys.len() as u64)].clone();
                if opts_in {
                    bytes.extend(words("CLIENT CACHING YES"));
                    self.asked.push_back(Vec::new());
                }
                match draw(4) {
                    0 => {
                        let mut all: Vec<String> = (0..4)
                            .map(|_| keys[draw(keys.len() as u64)].clone())
                            .chain([key])
                            .collect();
                        all.sort();
                        all.dedup();
                        // One key alone would be answered as GET is not.
                        let asked = ["MGET"].into_iter().chain(all.iter().map(String::as_str));
                        bytes.extend(request(&asked.collect::<Vec<_>>()));
                        self.asked.push_back(all);
                    }
                    1 => {
                        let block = ["MULTI", &format!("PTTL {key}"), &format!("GET {key}")];
                        for each in block {
                            bytes.extend(words(each));
                            self.asked.push_back(Vec::new());
                        }
                        bytes.extend(words("EXEC"));
                        self.asked.push_back(vec![key]);
                    }
                    _ => {
                        bytes.extend(words(&format!("GET {key}")));
                        self.asked.push_back(vec![key]);
                    }
                }
            }
            self.client.send(&bytes);
            while self.asked.len() > 16 {
                self.take();
            }
        }
        while !self.asked.is_empty() {
            self.take();
        }
    }

    /// Takes all replies and pushes that still come.
    fn settle(&mut self) {
        while !self.client.is_quiet(Duration::from_millis(500)) {
            self.take();
        }
    }
}

/// Slots move to and fro while clients cache and others write. In the end every cached value is the
/// server's.
#[test]
fn cached_values_are_true_while_slots_move() {
    let seed = seed();
    let say = format!("seed {seed}");
    let served = Served::start(&any_server(), primaries(), &["--threads=2"]);
    let address = served.proxy.address();
    let keys = keys("key:");
    let is_over = AtomicBool::new(false);
    let modes = [
        ("", false),
        (" BCAST", false),
        (" OPTIN", true),
        ("", false),
    ];
    let mut cachers: Vec<Cacher> = modes
        .iter()
        .map(|(options, _)| Cacher::start(address, options))
        .collect();
    thread::scope(|scope| {
        let (keys, is_over) = (&keys, &is_over);
        for (number, (cacher, (_, opts_in))) in cachers.iter_mut().zip(modes).enumerate() {
            let mut random = Random::new(seed + number as u64);
            scope.spawn(move || cacher.read(keys, opts_in, &mut random, is_over));
        }
        for number in 0..2 {
            let mut random = Random::new(seed + 100 + number);
            scope.spawn(move || {
                let mut client = RespClient::connect(address);
                for count in 0.. {
                    let key = &keys[random.below(KEYS as u64) as usize];
                    let changed = match random.below(4) {
                        0 => client.call(&format!("DEL {key}")),
                        _ => client.call(&format!("SET {key} {number}-{count}")),
                    };
                    assert_eq!(changed.error(), None);
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    thread::sleep(Duration::from_micros(random.below(2_000)));
                }
            });
        }
        let mut random = Random::new(seed + 200);
        for _ in 0..40 {
            let key = &keys[random.below(KEYS as u64) as usize];
            let to = (served.owner(key) + 1 + random.below(2) as usize) % 3;
            served.move_key(key, to);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let mut other = RespClient::connect(address);
    let mut truth: BTreeMap<&str, Reply> = BTreeMap::new();
    for key in &keys {
        truth.insert(key, other.call(&format!("GET {key}")));
    }
    for cacher in &mut cachers {
        cacher.settle();
        assert!(cacher.forgotten > 0, "{say}");
        for (key, value) in &cacher.cache {
            assert_eq!(Some(value), truth.get(key.as_str()), "{key}, {say}");
        }
    }
}

/// The password of the servers is known to the clients alone. A session that brings it tracks at
/// several servers as at one.
#[test]
fn session_that_brings_its_password_tracks() {
    let (binary, args) = (any_server(), ["--requirepass", "secret"]);
    let start = || ServerProcess::start(&binary, &args).expect("a server starts");
    let servers = [start(), start()];
    let addresses = servers.iter().map(|server| server.address().to_string());
    let backend = format!(
        "--backend=redis-sharded://{}",
        addresses.collect::<Vec<_>>().join(",")
    );
    let proxy = Proxy::start(&respool(), &[backend]).expect("respool starts");
    let mut client = RespClient::connect(proxy.address());
    assert_eq!(client.call("AUTH secret"), Reply::ok());
    assert!(client.call("HELLO 3").error().is_none());
    assert_eq!(client.call("CLIENT TRACKING ON"), Reply::ok());
    let mut other = RespClient::connect(proxy.address());
    assert_eq!(other.call("AUTH secret"), Reply::ok());
    for key in ["a", "b", "c", "d"] {
        assert_eq!(client.call(&format!("GET {key}")), Reply::Null);
        assert_eq!(other.call(&format!("SET {key} 1")), Reply::ok());
        assert_eq!(invalidated(&client.reply()), Some(vec![key.to_owned()]));
    }
}
