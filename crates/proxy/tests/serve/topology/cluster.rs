//! A Cluster behind respool: to a client it is one server, also while slots move and nodes come and
//! go.
//!
//! Counting sessions ([`counted`]) run meanwhile: each has its own keys, and knows their values.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use respool_protocol::slot::hash_slot;
use respool_testkit::client::{
    Reply, RespClient, counter, one_of_each_worker, pipelined, request, text, texts, words,
};
use respool_testkit::counting::{AllowedFailures, SESSIONS, TOGETHER, counted, number};
use respool_testkit::random::{Random, seed};
use respool_testkit::servers::{
    self, Flavour, Proxy, ReservedPort, ServerProcess, any_server, installed,
};
use respool_testkit::time::{Watch, wait_until};
use respool_testkit::topologies::{ClusterSettings, TestCluster};

use crate::faults::server_failures::{ServerOrder, restart_costs_no_error};
use crate::target::respool;
use crate::topology::divided;

/// The time in which an expected event comes, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// The time in which respool has refreshed its topology. Before that it knows the new owner only of
/// moved slots that were requested meanwhile.
const HEARD: Duration = Duration::from_millis(1_200);

/// A Cluster behind a respool.
pub(crate) struct Served {
    pub(crate) cluster: TestCluster,
    pub(crate) proxy: Proxy,
}

impl Drop for Served {
    fn drop(&mut self) {
        let log = self.proxy.log();
        if thread::panicking() {
            eprintln!("its log:\n{log}");
        } else {
            assert!(!log.contains("panicked at"), "{log}");
        }
    }
}

impl Served {
    pub(crate) fn start(binary: &Path, settings: ClusterSettings, args: &[&str]) -> Served {
        Served::start_with(binary, settings, args, "")
    }

    /// `query` is the part of the URL behind the nodes.
    pub(crate) fn start_with(
        binary: &Path,
        settings: ClusterSettings,
        args: &[&str],
        query: &str,
    ) -> Served {
        let password = settings.password.clone();
        let cluster =
            TestCluster::start(binary, settings).unwrap_or_else(|error| panic!("{error}"));
        let seeds: Vec<String> = cluster
            .addresses()
            .iter()
            .map(SocketAddr::to_string)
            .collect();
        let mut args = args.to_vec();
        let secret = password.map(|password| (format!("--password={password}"), password));
        if let Some((option, _)) = &secret {
            args.push(option);
        }
        let user = secret.as_ref().map(|(_, password)| format!(":{password}@"));
        let user = user.unwrap_or_default();
        let seeds = format!("{user}{}{query}", seeds.join(","));
        let proxy = proxy(&seeds, &args);
        Served { cluster, proxy }
    }

    pub(crate) fn client(&self) -> RespClient {
        RespClient::connect(self.proxy.address())
    }

    /// A key of a primary as the Cluster began, other than those with another number.
    fn key_of(&self, primary: usize, number: usize) -> String {
        key_in(|slot| self.cluster.share(primary).contains(&slot), number)
    }

    pub(crate) fn owner(&self, key: &str) -> usize {
        let owner = self.cluster.owner(hash_slot(key.as_bytes()));
        owner.unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn move_key(&self, key: &str, to: usize) {
        let slot = hash_slot(key.as_bytes());
        let from = self.owner(key);
        let moved = self.cluster.move_slots([slot], from, to);
        moved.unwrap_or_else(|error| panic!("{error}"));
    }

    pub(crate) fn whole(&self) {
        let whole = self.cluster.wait_until_whole(SOON);
        whole.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Runs the body with every installed server, two at once: most of the time is waiting, and more
/// would wait for each other.
pub(crate) fn with_every_server(body: impl Fn(&Path) + Sync) {
    for some in installed().chunks(2) {
        thread::scope(|scope| {
            for binary in some {
                let body = &body;
                scope.spawn(move || body(binary));
            }
        });
    }
}

fn proxy(seeds: &str, args: &[&str]) -> Proxy {
    let mut all = vec![format!("--backend=redis-cluster://{seeds}")];
    all.extend(args.iter().map(|&arg| arg.to_owned()));
    Proxy::start(&respool(), &all).unwrap_or_else(|error| panic!("{error}"))
}

/// The key with this number among those whose slot fits.
pub(crate) fn key_in(is_such: impl Fn(u16) -> bool, number: usize) -> String {
    let mut keys = (0..).map(|key| format!("key:{key}"));
    let such = |key: &String| is_such(hash_slot(key.as_bytes()));
    keys.by_ref()
        .filter(such)
        .nth(number)
        .expect("every slot has keys")
}

/// Primaries alone, which start soon.
pub(crate) fn primaries() -> ClusterSettings {
    ClusterSettings {
        replicas: 0,
        ..ClusterSettings::default()
    }
}

/// Nodes without replicas that never take each other for failed, however busy the machine is: for
/// tests that move slots and stop no node.
pub(crate) fn calm_primaries() -> ClusterSettings {
    ClusterSettings {
        node_timeout: Duration::from_secs(10),
        ..primaries()
    }
}

/// One of the servers at hand; over many runs each has its turn.
pub(crate) fn some_server() -> PathBuf {
    some_server_of(|_| true)
}

/// One of the installed servers that meet the condition.
pub(crate) fn some_server_of(is_such: impl Fn(&Path) -> bool) -> PathBuf {
    let mut all = installed();
    all.retain(|binary| is_such(binary));
    let place = seed() % all.len() as u64;
    let binary = all.swap_remove(place as usize);
    // A test that fails is known by its server, too.
    eprintln!("with {}", binary.display());
    binary
}

/// The slots that the first sessions of [`counted`] count in.
fn counted_slots(count: usize, random: &mut Random) -> Vec<u16> {
    let some = |_| {
        let session = random.below(SESSIONS);
        let key = match random.below(3) {
            0 => format!("{{t{session}}}:0"),
            1 => format!("d{session}:{}", random.below(8)),
            _ => format!("c{session}:{}", TOGETHER as u64 + random.below(12)),
        };
        hash_slot(key.as_bytes())
    };
    (0..count).map(some).collect()
}

/// Moves slots with keys, some of the keys at a time, from any node to another one of these.
pub(crate) fn move_some(cluster: &TestCluster, count: usize, nodes: &[usize], random: &mut Random) {
    let slots = counted_slots(count, random);
    move_slots(cluster, slots, nodes, random);
}

pub(crate) fn move_slots(
    cluster: &TestCluster,
    slots: Vec<u16>,
    nodes: &[usize],
    random: &mut Random,
) {
    for slot in slots {
        let mut moved = || -> std::io::Result<()> {
            let from = cluster.owner(slot)?;
            let others: Vec<usize> = nodes.iter().copied().filter(|node| *node != from).collect();
            let to = others[random.below(others.len() as u64) as usize];
            cluster.begin_move(slot, from, to)?;
            thread::sleep(Duration::from_millis(random.below(20)));
            loop {
                let keys = cluster.move_keys(slot, from, to, 2)?;
                thread::sleep(Duration::from_millis(random.below(20)));
                if keys == 0 {
                    break;
                }
            }
            cluster.end_move(slot, from, to)
        };
        moved().unwrap_or_else(|error| panic!("{error}"));
    }
}

/// One client gets the replies of one server, in order.
#[test]
fn cluster_answers_one_client_as_one_server() {
    with_every_server(|binary| {
        let served = Served::start(binary, primaries(), &["--threads=1"]);
        let seeds = served.cluster.node(0).address().to_string();
        let other = proxy(&seeds, &["--threads=3", "--collapse=false"]);
        for address in [served.proxy.address(), other.address()] {
            let mut client = RespClient::connect(address);
            assert_eq!(client.call("FLUSHALL"), Reply::ok());
            let keys = divided::answers_like_one_server(binary, address);
            assert_eq!(client.call("DBSIZE"), keys);
            divided::many_clients_get_their_own_answers(address);
        }
        for node in served.cluster.nodes() {
            let held = RespClient::connect(node.address()).call("DBSIZE");
            assert!(matches!(held, Reply::Integer(1..)), "{held:?}");
        }
    });
}

/// Functions run where their keys are, or are refused.
#[test]
fn cluster_calls_functions_where_their_keys_are() {
    with_every_server(|binary| {
        let served = Served::start(binary, primaries(), &["--threads=1"]);
        let keys: Vec<String> = (0..3).map(|primary| served.key_of(primary, 0)).collect();
        let at = |server: usize| served.cluster.node(server).address();
        divided::functions_are_called_where_their_keys_are(served.proxy.address(), &keys, at);
        // One node has both, and would refuse them.
        let mut client = served.client();
        if client.call("FUNCTION LIST").error().is_none() {
            let apart = format!("FCALL put 2 {} {} x", keys[0], served.key_of(0, 1));
            assert_eq!(client.call(&apart).error(), Some(divided::CROSSED));
        }
    });
}

/// Slots that move under load are noticed by no client.
#[test]
fn moving_slots_under_load_are_unnoticed() {
    with_every_server(|binary| {
        let threads = ["--threads=1", "--threads=3"][(seed() % 2) as usize];
        let mut served = Served::start(binary, calm_primaries(), &[threads]);
        counted(
            served.proxy.address(),
            &mut served,
            AllowedFailures::Nothing,
            |served| {
                let mut random = Random::new(seed());
                move_some(&served.cluster, 20, &[0, 1, 2], &mut random);
            },
        );
        wait_until("a request met a moving slot", SOON, || {
            let mut client = served.client();
            let mut met = |name| counter(&mut client, name) > 0;
            met("redirected_ask") && met("redirected_moved")
        });
    });
}

/// CLUSTER MIGRATESLOTS hands slots over at once. The giver keeps its clients waiting until the
/// end, and no client is told ASK.
#[test]
fn atomic_slot_migration_is_unnoticed() {
    let Ok(binary) = servers::find(Flavour::Valkey91) else {
        // Which servers are missing is said where they are looked for.
        installed();
        return;
    };
    for threads in ["--threads=1", "--threads=3"] {
        let mut served = Served::start(&binary, calm_primaries(), &[threads]);
        let address = served.proxy.address();
        counted(address, &mut served, AllowedFailures::Nothing, |served| {
            let mut random = Random::new(seed());
            for slot in counted_slots(12, &mut random) {
                let cluster = &served.cluster;
                let handed_over = cluster.owner(slot).and_then(|from| {
                    let to = (from + 1 + random.below(2) as usize) % 3;
                    cluster.hand_over(slot..=slot, from, to)
                });
                assert!(handed_over.unwrap_or_else(|error| panic!("{error}")));
            }
        });
        wait_until("a request met a moving slot", SOON, || {
            counter(&mut served.client(), "redirected_moved") > 0
        });
    }
}

/// A transaction that watches a key of a moving slot runs whole or not at all.
#[test]
fn watched_key_in_a_moving_slot_is_all_or_nothing() {
    let served = Served::start(&some_server(), calm_primaries(), &["--threads=2"]);
    let over = AtomicBool::new(false);
    assert_eq!(served.client().call("MSET {w}a 0 {w}b 0"), Reply::ok());
    let try_often = || {
        let mut client = served.client();
        let (mut executed, mut tried) = (0, 0);
        while !over.load(Ordering::SeqCst) {
            tried += 1;
            let watched = client.call("WATCH {w}a");
            if let Some(text) = watched.error() {
                // Half of the slot is here and half there.
                assert!(text.starts_with("TRYAGAIN "), "{text}");
                thread::sleep(Duration::from_millis(2));
                continue;
            }
            let next = number(&client.call("GET {w}a")) + 1;
            let block = format!("MULTI;SET {{w}}a {next};INCR {{w}}b;EXEC");
            let replies = pipelined(&mut client, &block);
            match &replies[3] {
                // The number differs if a request came in between, or if half of the block was
                // executed.
                Reply::Array(values) => {
                    assert_eq!(values[..], [Reply::ok(), Reply::Integer(next)]);
                    executed += 1;
                }
                Reply::Null => {}
                // The error names two keys of the slot that moves.
                reply => {
                    let text = reply.error().unwrap_or_default();
                    let codes = ["EXECABORT ", "TRYAGAIN ", "NOTSENT ", "LOADING respool: "];
                    let is_not = codes.iter().any(|code| text.starts_with(code));
                    assert!(is_not, "{replies:?}");
                }
            }
        }
        (executed, tried)
    };
    let (executed, tried) = thread::scope(|scope| {
        let all: Vec<_> = (0..6).map(|_| scope.spawn(try_often)).collect();
        for round in 0..10 {
            let (slot, to) = (hash_slot(b"w"), round % 3);
            let from = served.owner("w");
            thread::sleep(Duration::from_millis(50));
            if from == to {
                continue;
            }
            let moved = || -> std::io::Result<()> {
                served.cluster.begin_move(slot, from, to)?;
                thread::sleep(Duration::from_millis(10));
                while served.cluster.move_keys(slot, from, to, 1)? > 0 {
                    thread::sleep(Duration::from_millis(10));
                }
                served.cluster.end_move(slot, from, to)
            };
            let moved = std::panic::catch_unwind(moved);
            if !matches!(moved, Ok(Ok(()))) {
                over.store(true, Ordering::SeqCst);
                panic!("{moved:?}");
            }
        }
        over.store(true, Ordering::SeqCst);
        let all = all
            .into_iter()
            .map(|one| one.join().expect("no contradiction"));
        all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    });
    let values = served.client().call("MGET {w}a {w}b");
    let value = Reply::bulk(executed.to_string());
    assert_eq!(values, Reply::Array(vec![value.clone(), value]));
    assert!(executed > 20 && executed < tried, "{executed} of {tried}");
}

/// A blocked client gets its element from the new owner of its slot.
#[test]
fn blocked_client_follows_its_moving_slot() {
    with_every_server(|binary| {
        let served = Served::start(binary, primaries(), &["--threads=2"]);
        let mut other = served.client();
        assert_eq!(other.call("SET {wait} here"), Reply::ok());
        for behind in ["", ";GET {wait}", ";GET {wait};INCR {wait}n"] {
            let from = served.owner("wait");
            let mut waiting = served.client();
            let asked = format!("BLPOP {{wait}}list 0{behind}");
            waiting.send(&asked.split(';').flat_map(words).collect::<Vec<u8>>());
            wait_until("the client is blocked", SOON, || {
                let blocked = served.cluster.node(from).info("clients", "blocked_clients");
                blocked.is_ok_and(|blocked| blocked != "0")
            });
            served.move_key("wait", (from + 1) % 3);
            assert_eq!(
                other.call("RPUSH {wait}list x"),
                Reply::Integer(1),
                "{behind}"
            );
            let element = Reply::Array(vec![Reply::bulk("{wait}list"), Reply::bulk("x")]);
            assert_eq!(waiting.reply(), element, "{behind}");
            for asked in behind.split(';').skip(1) {
                let reply = waiting.reply();
                assert!(reply.error().is_none(), "{asked}: {reply:?}");
            }
            assert_eq!(waiting.call("GET {wait}"), Reply::bulk("here"));
        }
    });
}

#[test]
fn values_of_any_size_arrive_whole_while_their_slots_move() {
    let served = Served::start(&some_server(), calm_primaries(), &["--threads=2"]);
    let over = AtomicBool::new(false);
    // respool holds the first size until its reply. The other sizes may fail with an error.
    let sizes = [200_000, 600_000, 2_000_000];
    let write_often = |size: usize| {
        let mut client = served.client();
        let (mut held, mut written, mut failed) = (Reply::Null, 0, 0);
        let mut turn = 0_u32;
        while !over.load(Ordering::SeqCst) {
            turn += 1;
            let value = turn.to_string().repeat(size / turn.to_string().len());
            let key = format!("large:{size}");
            let mut requests = request(&["SET", &key, &value]);
            requests.extend(words(&format!("GET {key}")));
            let replies = client.exchange(requests, 2);
            match replies[0].error() {
                None => {
                    assert_eq!(replies[0], Reply::ok());
                    held = Reply::bulk(&value);
                    written += 1;
                }
                Some(text) => {
                    let is_ours = text.starts_with("NOTSENT respool: ");
                    assert!(is_ours && size > 256 << 10, "{size} bytes: {text}");
                    failed += 1;
                }
            }
            assert!(replies[1] == held, "{size} bytes, turn {turn}: {replies:?}");
        }
        assert!(written > 5, "{size} bytes: {written} written, {failed} not");
    };
    thread::scope(|scope| {
        let write_often = &write_often;
        let all: Vec<_> = sizes
            .iter()
            .map(|size| scope.spawn(move || write_often(*size)))
            .collect();
        let moved = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..15 {
                let key = format!("large:{}", sizes[round % 3]);
                served.move_key(&key, (served.owner(&key) + 1) % 3);
                thread::sleep(Duration::from_millis(50));
            }
        }));
        over.store(true, Ordering::SeqCst);
        for one in all {
            one.join().expect("whole values");
        }
        moved.expect("slots move");
    });
}

/// A request that wants no reply runs once while its slot moves.
#[test]
fn request_without_reply_runs_once_while_its_slot_moves() {
    let served = Served::start(&some_server(), calm_primaries(), &["--threads=2"]);
    let mut client = served.client();
    client.send(&words("CLIENT REPLY OFF"));
    let mut sent = 0;
    for round in 0..8 {
        let key = format!("quiet:{}", round % 4);
        let to = (served.owner(&key) + 1) % 3;
        thread::scope(|scope| {
            let moving = scope.spawn(|| served.move_key(&key, to));
            loop {
                let is_over = moving.is_finished();
                let all = (0..4).map(|key| words(&format!("INCR quiet:{key}")));
                client.send(&all.collect::<Vec<_>>().concat().repeat(20));
                sent += 20;
                if is_over {
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
    }
    assert_eq!(client.call("CLIENT REPLY ON"), Reply::ok());
    for key in 0..4 {
        let skipped = format!("CLIENT REPLY SKIP;INCR quiet:{key};GET quiet:{key}");
        client.send(&skipped.split(';').flat_map(words).collect::<Vec<u8>>());
        assert_eq!(number(&client.reply()), sent + 1, "quiet:{key}");
    }
}

/// CLUSTER FAILOVER is noticed by no client.
#[test]
fn cluster_failover_by_command_is_unnoticed() {
    with_every_server(|binary| {
        let threads = ["--threads=1", "--threads=3"][(seed() % 2) as usize];
        let mut served = Served::start(binary, ClusterSettings::default(), &[threads]);
        let errors = counted(
            served.proxy.address(),
            &mut served,
            AllowedFailures::Nothing,
            |served| {
                for primary in 0..2 {
                    fail_over(&served.cluster, primary, primary + 3);
                }
            },
        );
        assert!(errors.is_empty(), "{errors:?}");
    });
}

/// A replica takes the place of its primary, which runs.
pub(crate) fn fail_over(cluster: &TestCluster, primary: usize, replica: usize) {
    let slot = *cluster.share(primary % 3).start();
    let done = cluster
        .begin_failover(replica)
        .and_then(|()| cluster.wait_for_other_owner(slot, primary, SOON));
    let owner = done.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(owner, replica);
}

/// All nodes restart in turn, and no client notices.
#[test]
fn rolling_restart_of_a_cluster_is_unnoticed() {
    let args = ["--threads=2"];
    let mut served = Served::start(&some_server(), ClusterSettings::default(), &args);
    let errors = counted(
        served.proxy.address(),
        &mut served,
        AllowedFailures::Nothing,
        |served| {
            let restart = |served: &mut Served, node| {
                let restarted = served.cluster.node_mut(node).restart();
                restarted.unwrap_or_else(|error| panic!("{error}"));
                served.whole();
            };
            for primary in 0..3 {
                restart(served, primary + 3);
                fail_over(&served.cluster, primary, primary + 3);
                thread::sleep(HEARD);
                restart(served, primary);
            }
        },
    );
    assert!(errors.is_empty(), "{errors:?}");
}

/// When connections are lost, no increment runs twice and no acknowledged one is lost.
#[test]
fn lost_connections_double_and_lose_no_increment() {
    let mut served = Served::start(&some_server(), primaries(), &["--threads=2"]);
    let address = served.proxy.address();
    let errors = counted(address, &mut served, AllowedFailures::Cuts, |served| {
        for turn in 0..9 {
            let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
            let killed = served.cluster.node(turn % 3).ask_ok(&kill);
            killed.unwrap_or_else(|error| panic!("{error}"));
            // A connection that is lost in its first second is not replaced at once.
            thread::sleep(Duration::from_millis(400));
        }
    });
    assert!(!errors.is_empty(), "no request was lost");
}

/// When a primary is killed, no increment runs twice and every session goes on.
#[test]
fn killed_cluster_primary_doubles_no_increment() {
    with_every_server(|binary| {
        let args = ["--threads=3", "--reconnect-max-ms=200"];
        let mut served = Served::start(binary, ClusterSettings::default(), &args);
        counted(
            served.proxy.address(),
            &mut served,
            AllowedFailures::Loss,
            |served| {
                served.cluster.node(0).kill9();
                let other = served.cluster.wait_for_other_owner(0, 0, SOON);
                assert_eq!(other.unwrap_or_else(|error| panic!("{error}")), 3);
                let restarted = served.cluster.node_mut(0).restart();
                restarted.unwrap_or_else(|error| panic!("{error}"));
                served.whole();
            },
        );
    });
}

#[test]
fn restart_of_a_node_costs_time_and_no_error() {
    let binary = some_server();
    let mut served = Served::start(&binary, primaries(), &["--threads=2"]);
    served.whole();
    let (count, list) = (served.key_of(1, 0), served.key_of(1, 1));
    restart_costs_no_error(
        served.proxy.address(),
        [&count, &list],
        |order| match order {
            ServerOrder::Kill => served.cluster.node(1).kill9(),
            ServerOrder::Restart => {
                let restarted = served.cluster.node_mut(1).restart();
                restarted.unwrap_or_else(|error| panic!("{error}"));
            }
        },
    );
}

/// When a primary freezes, every session goes on with its replica.
#[test]
fn frozen_cluster_primary_is_replaced() {
    with_every_server(|binary| {
        // A deadline would help no client.
        let args = [
            "--threads=3",
            "--request-timeout-ms=0",
            "--link-stall-ms=60s",
        ];
        let mut served = Served::start(binary, ClusterSettings::default(), &args);
        counted(
            served.proxy.address(),
            &mut served,
            AllowedFailures::Loss,
            |served| {
                let key = served.key_of(1, 0);
                let mut waiting = served.client();
                assert_eq!(waiting.call(&format!("INCR {key}")), Reply::Integer(1));
                served.cluster.node(1).stop();
                waiting.send(&words(&format!("INCR {key}")));
                let slot = *served.cluster.share(1).start();
                let other = served.cluster.wait_for_other_owner(slot, 1, SOON);
                // Clients with requests at the frozen node are answered before the node goes on.
                let reply = waiting.reply();
                let text = reply.error().unwrap_or_default();
                assert!(text.starts_with("UNKNOWN respool: "), "{reply:?}");
                for client in [&mut waiting, &mut served.client()] {
                    wait_until("the new primary answers", SOON, || {
                        client.call(&format!("INCR {key}")).error().is_none()
                    });
                }
                served.cluster.node(1).cont();
                assert_eq!(other.unwrap_or_else(|error| panic!("{error}")), 4);
                served.whole();
            },
        );
    });
}

/// A node that joins and gets slots is used. One that leaves is forgotten.
#[test]
fn joining_node_is_used_and_leaving_node_forgotten() {
    let mut served = Served::start(&some_server(), primaries(), &["--threads=1"]);
    counted(
        served.proxy.address(),
        &mut served,
        AllowedFailures::Nothing,
        |served| {
            let joined = served
                .cluster
                .add_node()
                .unwrap_or_else(|error| panic!("{error}"));
            let slots = counted_slots(10, &mut Random::new(seed()));
            let moved = |slot: u16, from: usize, to: usize| {
                let moved = served.cluster.move_slots([slot], from, to);
                moved.unwrap_or_else(|error| panic!("{error}"));
            };
            let owner = |slot| {
                served
                    .cluster
                    .owner(slot)
                    .unwrap_or_else(|error| panic!("{error}"))
            };
            let mut taken = Vec::new();
            for slot in slots {
                let from = owner(slot);
                if from != joined {
                    moved(slot, from, joined);
                    taken.push(slot);
                }
            }
            thread::sleep(Duration::from_millis(300));
            for slot in taken {
                moved(slot, joined, 0);
            }
            thread::sleep(HEARD);
            for node in 0..3 {
                let forget = ["CLUSTER", "FORGET", served.cluster.id(joined)];
                let forgotten = served.cluster.node(node).ask_ok(&forget);
                forgotten.unwrap_or_else(|error| panic!("{error}"));
            }
            let name = served.cluster.node(joined).address();
            served.cluster.node(joined).kill9();
            wait_until("respool has forgotten the node", SOON, || {
                let told = format!("no node speaks of {name} any more");
                served.proxy.log().contains(&told)
            });
        },
    );
}

/// Any seed leads to all nodes: a primary, a replica, or a host name.
#[test]
fn any_seed_node_leads_to_the_whole_cluster() {
    let settings = ClusterSettings {
        password: Some("secret".to_owned()),
        ..ClusterSettings::default()
    };
    let served = Served::start(&some_server(), settings, &["--threads=2"]);
    let node = |node: usize| served.cluster.node(node).address();
    let dead = ReservedPort::new().expect("a free port");
    let seeds = [
        format!("127.0.0.1:{},{}", dead.port, node(1)),
        // A replica, and a host name.
        node(3).to_string(),
        format!("localhost:{}", node(0).port()),
    ];
    let start = |seeds: &String| {
        let args = ["--threads=2", "--password=secret"];
        let proxy = proxy(&format!(":secret@{seeds}"), &args);
        let mut client = RespClient::connect(proxy.address());
        let refused = client.call("GET key:0");
        assert!(
            refused
                .error()
                .is_some_and(|error| error.starts_with("NOAUTH "))
        );
        assert_eq!(client.call("AUTH secret"), Reply::ok());
        (seeds.clone(), proxy, client)
    };
    let all_keys = |(seeds, proxy, client): &mut (String, Proxy, RespClient)| {
        for key in 0..60 {
            let set = client.call(&format!("SET key:{key} {key}"));
            assert_eq!(set, Reply::ok(), "{seeds}: {}", proxy.log());
        }
    };
    let mut started: Vec<_> = seeds.iter().map(start).collect();
    started.iter_mut().for_each(all_keys);
    // The seed was needed for the start alone.
    served.cluster.node(3).kill9();
    thread::sleep(Duration::from_millis(300));
    started.iter_mut().for_each(all_keys);
}

/// A node that is gone fails its own keys alone, and at once.
#[test]
fn gone_node_fails_its_own_keys_alone() {
    with_every_server(|binary| {
        let settings = ClusterSettings {
            args: vec!["--cluster-require-full-coverage".into(), "no".into()],
            ..primaries()
        };
        let args = ["--threads=1", "--reconnect-max-ms=100"];
        let mut served = Served::start(binary, settings, &args);
        let keys: Vec<String> = (0..3).map(|primary| served.key_of(primary, 0)).collect();
        let [a, b, gone] = &keys[..] else {
            panic!("three primaries")
        };
        let name = served.cluster.node(2).address().to_string();
        let mut client = served.client();
        for key in &keys {
            assert_eq!(client.call(&format!("SET {key} {key}")), Reply::ok());
        }
        let says = |client: &mut RespClient, state: &str, slots: usize| {
            let info = text(&client.call("CLUSTER INFO"));
            info.contains(&format!("cluster_state:{state}\r\n"))
                && info.contains(&format!("cluster_slots_ok:{slots}\r\n"))
        };
        assert!(says(&mut client, "ok", 16_384));
        served.cluster.node(2).kill9();
        let fails = |reply: &Reply| {
            let text = reply.error().unwrap_or_default();
            text.contains(&name) && !text.starts_with("MOVED")
        };
        wait_until("keys of the lost node fail", SOON, || {
            fails(&client.call(&format!("GET {gone}")))
        });
        let left = 16_384 - served.cluster.share(2).len();
        wait_until("CLUSTER INFO shows the lost slots", SOON, || {
            says(&mut client, "fail", left)
        });
        // Long enough that the others have noticed.
        let end = Instant::now() + Duration::from_secs(3);
        let (mut turns, watch) = (0, Watch::start());
        while Instant::now() < end {
            let requests = format!(
                "GET {a};GET {gone};MGET {a} {b};MGET {a} {gone};SET {b} {b};MSET {a} {a} {gone} x;INCR {gone}"
            );
            let replies = pipelined(&mut client, &requests);
            assert_eq!(replies[0], Reply::bulk(a));
            let both = Reply::Array(vec![Reply::bulk(a), Reply::bulk(b)]);
            assert_eq!(replies[2], both);
            assert_eq!(replies[4], Reply::ok());
            for failed in [1, 3, 5, 6] {
                assert!(fails(&replies[failed]), "{failed}: {:?}", replies[failed]);
            }
            turns += 1;
        }
        let took = watch.elapsed();
        assert!(
            turns * Duration::from_millis(100) > took,
            "{turns} turns in {took:?}: a failed client delays the others"
        );
        let restarted = served.cluster.node_mut(2).restart();
        restarted.unwrap_or_else(|error| panic!("{error}"));
        wait_until("keys of the restarted node are served", SOON, || {
            client.call(&format!("SET {gone} again")) == Reply::ok()
        });
        assert!(says(&mut client, "ok", 16_384));
        let healed = Reply::Array(vec![Reply::bulk(a), Reply::bulk("again")]);
        assert_eq!(client.call(&format!("MGET {a} {gone}")), healed);
    });
}

/// A silent owner without a replica fails its own keys alone.
#[test]
fn silent_owner_without_replica_fails_its_own_keys() {
    let settings = ClusterSettings {
        args: vec!["--cluster-require-full-coverage".into(), "no".into()],
        ..primaries()
    };
    let served = Served::start(&some_server(), settings, &divided::GIVES_UP_SOON);
    let keys: Vec<String> = (0..3).map(|primary| served.key_of(primary, 0)).collect();
    let mut client = served.client();
    for key in &keys {
        assert_eq!(client.call(&format!("SET {key} {key}")), Reply::ok());
    }
    let silent = served.cluster.node(2);
    divided::a_silent_server_fails_its_own_keys_alone(&served.proxy, &keys, silent);
}

/// A user without the right to CLUSTER SLOTS gets an error for requests to all nodes. Its requests
/// with keys follow MOVED.
#[test]
fn user_without_cluster_slots_is_refused_all_nodes() {
    with_every_server(|binary| {
        let cluster = TestCluster::start(binary, primaries());
        let cluster = cluster.unwrap_or_else(|error| panic!("{error}"));
        let order = |rules: &str| {
            for node in cluster.addresses() {
                let set = RespClient::connect(node).call(&format!("ACL SETUSER app {rules}"));
                assert_eq!(set, Reply::ok());
            }
        };
        order("on >secret ~* &* +@all -cluster");
        let seed = format!("app:secret@{}", cluster.addresses()[0]);
        let proxy = proxy(&seed, &["--threads=1"]);
        let mut client = RespClient::connect(proxy.address());
        for key in 0..10 {
            assert_eq!(client.call(&format!("SET key:{key} 1")), Reply::ok());
        }
        for asked in ["DBSIZE", "SCAN 0", "KEYS *"] {
            let reply = client.call(asked);
            let error = reply.error().unwrap_or_default();
            let tells = error.starts_with("CLUSTERDOWN respool: ") && error.contains("NOPERM");
            assert!(tells, "{reply:?}");
        }
        let mut node = RespClient::connect(cluster.addresses()[0]);
        if node.call("CLUSTER SHARDS").error().is_none() {
            order("+cluster|shards +cluster|info");
            wait_until("CLUSTER SHARDS has named all nodes", SOON, || {
                client.call("DBSIZE") == Reply::Integer(10)
            });
            order("-cluster");
        }
        order("+cluster|slots +cluster|info");
        let anew = self::proxy(&seed, &["--threads=1"]);
        let mut client = RespClient::connect(anew.address());
        wait_until("CLUSTER SLOTS has named all nodes", SOON, || {
            client.call("DBSIZE") == Reply::Integer(10)
        });
    });
}

/// The result of a SCAN whose calls use these clients by turns, with `between` after each, which
/// gets their number so far.
fn scanned(clients: &mut [RespClient], mut between: impl FnMut(usize)) -> HashSet<String> {
    let mut found = HashSet::new();
    let mut cursor = "0".to_owned();
    let end = Instant::now() + SOON;
    let mut call = 0;
    loop {
        assert!(Instant::now() < end, "the SCAN did not end");
        let place = call % clients.len();
        let Reply::Array(reply) = clients[place].call(&format!("SCAN {cursor} COUNT 20")) else {
            panic!("SCAN answers an array")
        };
        found.extend(texts(&reply[1]));
        cursor = text(&reply[0]);
        if cursor == "0" {
            return found;
        }
        between(call);
        call += 1;
    }
}

/// One worker sees a node lose its slots and get them back, another sees only the result, and so
/// does one that starts later. SCAN finds every key at each.
#[test]
fn scan_finds_every_key_at_any_worker() {
    with_every_server(|binary| {
        let served = Served::start(binary, ClusterSettings::default(), &["--threads=2"]);
        let mut clients = Vec::new();
        for worker in [0, 1] {
            wait_until("a session belongs to that worker", SOON, || {
                let mut client = served.client();
                let is_its = counter(&mut client, "worker") == worker;
                clients.extend(is_its.then_some(client));
                is_its
            });
        }
        let every: HashSet<String> = (0..1_000).map(|key| format!("key:{key}")).collect();
        for key in &every {
            assert_eq!(clients[0].call(&format!("SET {key} 1")), Reply::ok());
        }
        let key = served.key_of(0, 0);
        for (primary, replica) in [(0, 3), (3, 0)] {
            fail_over(&served.cluster, primary, replica);
            let took_over = format!("to {}", served.cluster.node(replica).address());
            wait_until("one worker has seen the failover", SOON, || {
                assert_eq!(clients[0].call(&format!("GET {key}")), Reply::bulk("1"));
                let log = served.proxy.log();
                let last = log
                    .lines()
                    .rfind(|line| line.contains(" slots moved from "));
                last.is_some_and(|line| line.contains(&took_over))
            });
        }
        assert_eq!(scanned(&mut clients, |_| {}), every);
        let seed = served.cluster.node(1).address().to_string();
        let restarted = proxy(&seed, &["--threads=1"]);
        clients.push(RespClient::connect(restarted.address()));
        assert_eq!(scanned(&mut clients, |_| {}), every);
        // The SCAN is in the middle of the nodes.
        let failed_over = scanned(&mut clients, |call| {
            if call == 20 {
                fail_over(&served.cluster, 1, 4);
            }
        });
        assert_eq!(failed_over, every);
        served.whole();
    });
}

/// SCAN finds every key that stays while slots with keys move between owners.
/// Some of its calls come to a node while half of a slot's keys are there.
#[test]
fn scan_finds_every_key_while_slots_move() {
    const TAGS: usize = 100;
    const EACH: usize = 100;
    const MOVED: usize = 40;
    with_every_server(|binary| {
        let served = Served::start(binary, primaries(), &["--threads=2"]);
        let mut clients = one_of_each_worker(served.proxy.address());
        let keys_of = |tag: usize| (0..EACH).map(move |key| format!("{{tag:{tag}}}:{key}"));
        for tag in 0..TAGS {
            let pairs: Vec<String> = keys_of(tag).map(|key| format!("{key} 1")).collect();
            let set = clients[0].call(&format!("MSET {}", pairs.join(" ")));
            assert_eq!(set, Reply::ok());
        }
        let every: HashSet<String> = (MOVED..TAGS).flat_map(keys_of).collect();
        let cluster = &served.cluster;
        let mut random = Random::new(seed());
        // The slot in migration, with both ends.
        let mut moving = None;
        let mut tags = 0..MOVED;
        let mut other = served.client();
        let found = scanned(&mut clients, |call| {
            let mut step = || -> std::io::Result<()> {
                match (call % 9, moving) {
                    (0, None) => {
                        let Some(tag) = tags.next() else {
                            return Ok(());
                        };
                        let slot = hash_slot(format!("tag:{tag}").as_bytes());
                        let from = cluster.owner(slot)?;
                        let to = (from + 1 + random.below(2) as usize) % 3;
                        moving = Some((slot, from, to));
                        cluster.begin_move(slot, from, to)
                    }
                    (3, Some((slot, from, to))) => {
                        cluster.move_keys(slot, from, to, EACH / 2).map(drop)
                    }
                    (6, Some((slot, from, to))) => {
                        cluster.move_keys(slot, from, to, usize::MAX)?;
                        moving = None;
                        cluster.end_move(slot, from, to)?;
                        // This request makes respool learn of the move.
                        let key = format!("GET {{tag:{}}}:0", tags.start - 1);
                        assert_eq!(other.call(&key), Reply::bulk("1"));
                        Ok(())
                    }
                    _ => Ok(()),
                }
            };
            step().unwrap_or_else(|error| panic!("{error}"));
        });
        assert!(
            tags.start > MOVED / 2,
            "too few have moved to show anything"
        );
        let missing: Vec<_> = every.difference(&found).collect();
        assert!(missing.is_empty(), "{} {missing:?}", binary.display());
    });
}

/// Two pools may stand before one Cluster. The log names the slot owners once for each pool.
#[test]
fn log_names_the_owners_once_per_pool() {
    let cluster = TestCluster::start(&some_server(), primaries());
    let cluster = cluster.unwrap_or_else(|error| panic!("{error}"));
    let seed = cluster.node(0).address();
    let args = |listen| {
        let pool =
            |name: &str, port| format!("--pool={name}=127.0.0.1:{port}=redis-cluster://{seed}");
        let [one, other] = [pool("one", listen), pool("other", 0)];
        vec![one, other, "--threads=1".to_owned()]
    };
    let proxy = Proxy::start_with(&respool(), args).unwrap_or_else(|error| panic!("{error}"));
    let said = |pool: &str| {
        let log = proxy.log();
        let lines = log
            .lines()
            .filter(|line| line.contains("3 nodes own its slots"));
        lines
            .filter(|line| line.contains(&format!("pool=\"{pool}\"")))
            .count()
    };
    wait_until("the log has a line of both pools", SOON, || {
        said("one") > 0 && said("other") > 0
    });
    thread::sleep(HEARD);
    assert_eq!((said("one"), said("other")), (1, 1), "{}", proxy.log());
}

/// Where clients bring the password, no subscriber misses a message, and nodes are not asked
/// without end.
/// Links that nodes refuse before a client has brought the password stay in place.
#[test]
fn clients_with_own_password_keep_their_messages() {
    let settings = ClusterSettings {
        password: Some("secret".to_owned()),
        ..primaries()
    };
    let cluster = TestCluster::start(&some_server(), settings);
    let cluster = cluster.unwrap_or_else(|error| panic!("{error}"));
    let seeds: Vec<String> = cluster
        .addresses()
        .iter()
        .map(SocketAddr::to_string)
        .collect();
    let proxy = proxy(&seeds.join(","), &["--threads=2"]);
    let clients = [(); 6].map(|()| {
        let mut client = RespClient::connect(proxy.address());
        assert_eq!(client.call("AUTH secret"), Reply::ok());
        client
    });
    let [mut publishing, mut other, mut listening @ ..] = clients;
    for number in 0..64 {
        assert_eq!(publishing.call(&format!("SET key:{number} 1")), Reply::ok());
    }
    for client in &mut listening {
        client.call("SUBSCRIBE news");
    }
    let asked = counter(&mut other, "topology_refreshes");
    // Longer than the rest of a refused link before its next try.
    let begun = Instant::now();
    let mut published = 0;
    while begun.elapsed() < Duration::from_secs(5) {
        let reached = publishing.call(&format!("PUBLISH news {published}"));
        assert_eq!(reached, Reply::Integer(4), "message {published}");
        published += 1;
        thread::sleep(Duration::from_millis(2));
    }
    for client in &mut listening {
        for number in 0..published {
            let message = client.reply();
            let texts = ["message".to_owned(), "news".to_owned(), number.to_string()];
            assert_eq!(message, Reply::Array(texts.map(Reply::bulk).to_vec()));
        }
    }
    let asked = counter(&mut other, "topology_refreshes") - asked;
    assert!(asked < 8, "the nodes were asked {asked} times");
    // A worker also knows the nodes that no client has sent it to.
    for _ in 0..8 {
        let mut client = RespClient::connect(proxy.address());
        assert_eq!(client.call("AUTH secret"), Reply::ok());
        wait_until("all slots are served", SOON, || {
            text(&client.call("CLUSTER INFO")).contains("cluster_state:ok\r\n")
        });
    }
}

/// Messages are published at one node until it is gone. The nodes pass them on, so a client that
/// listens at another node misses nothing.
#[test]
fn publish_uses_one_node_until_it_is_gone() {
    let settings = ClusterSettings {
        args: ["--cluster-replica-validity-factor", "0"]
            .map(str::to_owned)
            .to_vec(),
        ..ClusterSettings::default()
    };
    let args = ["--threads=2", "--lost-subscriptions=keep"];
    let served = Served::start(&some_server(), settings, &args);
    served.whole();
    let mut listening = [(); 4].map(|()| served.client());
    for client in &mut listening {
        client.call("SUBSCRIBE news");
    }
    let homes = |gone: Option<usize>| -> Vec<usize> {
        let nodes = served.cluster.nodes().iter().enumerate();
        let nodes = nodes.filter(|(at, _)| Some(*at) != gone);
        let listened = nodes.filter(|(_, node)| {
            let counted = RespClient::connect(node.address()).call("PUBSUB NUMSUB news");
            let none = [Reply::bulk("news"), Reply::Integer(0)];
            counted != Reply::Array(none.to_vec())
        });
        listened.map(|(at, _)| at).collect()
    };
    let mut old = Vec::new();
    wait_until("all workers listen to one node", SOON, || {
        old = homes(None);
        old.len() == 1
    });
    let slot = *served.cluster.share(old[0]).start();
    served.cluster.node(old[0]).kill9();
    let mut new = Vec::new();
    wait_until("all workers listen to another node", SOON, || {
        new = homes(Some(old[0]));
        new.len() == 1
    });
    let replaced = served.cluster.wait_for_other_owner(slot, old[0], SOON);
    replaced.unwrap_or_else(|error| panic!("{error}"));
    let key = key_in(|its| its == slot, 0);
    let mut client = served.client();
    wait_until("the new owner is known", SOON, || {
        client.call(&format!("SET {key} 1")) == Reply::ok()
    });
    let begun = Instant::now();
    while begun.elapsed() < HEARD {
        assert_eq!(
            homes(Some(old[0])),
            new,
            "the workers stay with the new node"
        );
        assert_eq!(client.call("PUBLISH news 1"), Reply::Integer(4));
        thread::sleep(Duration::from_millis(20));
    }
}

/// A Cluster node behind a plain URL is used as a server, and the log says how to follow its
/// Cluster.
#[test]
fn cluster_node_behind_a_plain_url_is_used_as_a_server() {
    let served = Served::start(&any_server(), primaries(), &["--threads=1"]);
    let node = served.cluster.node(0).address();
    let advice = "redis-cluster:// would follow them";
    let backend = format!("--backend=redis://{node}");
    let alone = Proxy::start(&respool(), &[backend.as_str(), "--threads=1"]);
    let alone = alone.unwrap_or_else(|error| panic!("{error}"));
    let mut client = RespClient::connect(alone.address());
    let said: Vec<Reply> = (0..20)
        .map(|number| client.call(&format!("GET key:{number}")))
        .collect();
    let moved = |said: &&Reply| said.error().is_some_and(|text| text.starts_with("MOVED "));
    assert!((1..20).contains(&said.iter().filter(moved).count()));
    wait_until("the log has the advice", SOON, || {
        alone.log().contains(advice)
    });
    assert!(!served.proxy.log().contains(advice));
}

/// respool does not use plain servers behind a Cluster URL, and the error names the remedy. Each of
/// them would execute every request, without knowledge of the others.
#[test]
fn plain_servers_behind_a_cluster_url_are_refused() {
    let binary = any_server();
    let start =
        |_| ServerProcess::start(&binary, &[""; 0]).unwrap_or_else(|error| panic!("{error}"));
    let plain: [ServerProcess; 2] = [0, 1].map(start);
    let seeds = plain.each_ref().map(|server| server.address().to_string());
    let all = proxy(&seeds.join(","), &["--threads=1"]);
    let advice = "use redis:// or redis-sharded:// for it";
    for end in [false, true] {
        let begun = Instant::now();
        while begun.elapsed() < HEARD {
            let mut client = RespClient::connect(all.address());
            for asked in [
                "SET key 1",
                "GET key",
                "MSET a 1 b 2",
                "PING",
                "DBSIZE",
                "PUBLISH a b",
            ] {
                let said = client.call(asked);
                let text = said.error().unwrap_or_default();
                assert!(end || text.contains(advice), "{asked}: {said:?}");
                assert!(!text.is_empty(), "{asked}: {said:?}");
            }
        }
        let keys = RespClient::connect(plain[1].address()).call("DBSIZE");
        assert_eq!(keys, Reply::Integer(0));
        plain[0].kill9();
    }
    let log = all.log();
    for seed in &seeds {
        let warned = log.lines().filter(|line| {
            line.contains("WARN") && line.contains(advice) && line.contains(seed.as_str())
        });
        assert_eq!(warned.count(), 1, "{log}");
    }

    let cluster = TestCluster::start(&some_server(), primaries());
    let cluster = cluster.unwrap_or_else(|error| panic!("{error}"));
    let mixed = [&seeds[1..], &[cluster.node(1).address().to_string()]].concat();
    // One line of each worker: the second worker logs at debug.
    let mixed = proxy(&mixed.join(","), &["--threads=2", "--log-level=debug"]);
    wait_until("the nodes are known", SOON, || {
        mixed.log().matches("own its slots").count() == 2
    });
    for _ in 0..8 {
        let mut client = RespClient::connect(mixed.address());
        for key in 0..64 {
            assert_eq!(client.call(&format!("SET key:{key} 1")), Reply::ok());
        }
        assert_eq!(client.call("DBSIZE"), Reply::Integer(64));
    }
    let keys = RespClient::connect(plain[1].address()).call("DBSIZE");
    assert_eq!(keys, Reply::Integer(0));
}
