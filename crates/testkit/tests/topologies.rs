//! Topologies of real servers form, fail over, and leave nothing behind.

#![allow(clippy::unwrap_used, reason = "a test may stop at a surprise")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use respool_protocol::slot::{SLOTS, hash_slot};
use respool_testkit::client::Reply;
use respool_testkit::servers::{self, Flavour, Process};
use respool_testkit::topologies::{
    ClusterSettings, Node, Sentinels, SentinelsSettings, Shards, TestCluster,
};

/// Enough for a few seconds of work on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// The binary, or none where the environment allows it to be missing.
fn binary(flavour: Flavour) -> Option<PathBuf> {
    servers::find(flavour)
        .map_err(|reason| servers::leave_out("servers", reason))
        .ok()
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.as_bytes().to_vec())
}

fn ok() -> Reply {
    Reply::ok()
}

/// So many keys of one slot.
fn keys_of(slot: u16, count: usize) -> Vec<String> {
    let tag = (0..).map(|number| format!("{{{number}}}"));
    let tag = tag
        .into_iter()
        .find(|tag| hash_slot(tag.as_bytes()) == slot)
        .unwrap();
    (0..count).map(|number| format!("{tag}{number}")).collect()
}

/// Sets a key to `v` until a replica has it.
fn set_and_wait(primary: &Node, key: &str) {
    // WAIT is about the writes of its own connection.
    let mut connection = primary.connect().unwrap();
    assert_eq!(connection.ask(&["SET", key, "v"]).unwrap(), ok());
    let replicas = connection.ask(&["WAIT", "1", "5000"]).unwrap();
    assert_eq!(replicas, Reply::Integer(1));
}

/// The first line of the reply to this request.
fn first_line(mut stream: TcpStream, request: &[u8]) -> String {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(request).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}

/// The servers' own Cluster: all slots are assigned, each replica has its primary's keys, and a
/// node without the slot redirects.
fn a_cluster_has_all_slots_and_replicas_that_follow(cluster: &TestCluster) {
    for node in 0..6 {
        let info = cluster.node(node).ask_ok(&["CLUSTER", "INFO"]).unwrap();
        let info = String::from_utf8_lossy(info.text().unwrap()).into_owned();
        for line in [
            "cluster_state:ok",
            "cluster_slots_ok:16384",
            "cluster_known_nodes:6",
            "cluster_size:3",
        ] {
            assert!(info.lines().any(|own| own == line), "{line}: {info}");
        }
    }
    let owners: Vec<usize> = [0, 5460, 5461, 10921, 10922, SLOTS - 1]
        .iter()
        .map(|&slot| cluster.owner(slot).unwrap())
        .collect();
    assert_eq!(owners, [0, 0, 1, 1, 2, 2]);
    for primary in 0..3 {
        assert_eq!(cluster.replicas(primary).unwrap(), [primary + 3]);
        let key = &keys_of(*cluster.share(primary).start(), 1)[0];
        set_and_wait(cluster.node(primary), key);
        let mut replica = cluster.node(primary + 3).connect().unwrap();
        replica.ask_ok(&["READONLY"]).unwrap();
        assert_eq!(replica.ask(&["GET", key]).unwrap(), bulk("v"));
        let moved = format!(
            "MOVED {} {}",
            hash_slot(key.as_bytes()),
            cluster.node(primary).address()
        );
        let other = cluster.node((primary + 1) % 3);
        assert_eq!(other.ask(&["GET", key]).unwrap(), Reply::Error(moved));
    }
}

/// With keys of a slot at both nodes there is ASK. After the move there is MOVED, and the keys are
/// at its target.
fn slots_move_with_their_keys(cluster: &mut TestCluster) {
    let slot = 100;
    let keys = keys_of(slot, 250);
    for key in &keys {
        cluster.node(0).ask_ok(&["SET", key, key]).unwrap();
    }
    let empty = cluster.add_node().unwrap();
    assert_eq!(cluster.nodes().len(), empty + 1);

    cluster.begin_move(slot, 0, empty).unwrap();
    assert_eq!(cluster.move_keys(slot, 0, empty, 120).unwrap(), 120);
    let asks = keys.iter().filter(|key| {
        let reply = cluster.node(0).ask(&["GET", key]).unwrap();
        let ask = format!("ASK {slot} {}", cluster.node(empty).address());
        reply == Reply::Error(ask)
    });
    assert_eq!(asks.count(), 120);
    assert_eq!(cluster.owner(slot).unwrap(), 0);
    assert_eq!(cluster.move_keys(slot, 0, empty, usize::MAX).unwrap(), 130);
    cluster.end_move(slot, 0, empty).unwrap();

    cluster.move_slots([101, 102, 5460], 0, empty).unwrap();
    let last = &keys_of(5460, 1)[0];
    for node in 0..empty {
        let moved = format!("MOVED 5460 {}", cluster.node(empty).address());
        let reply = cluster.node(node).ask(&["GET", last]).unwrap();
        assert_eq!(reply, Reply::Error(moved), "node {node}");
    }
    for slot in [100, 101, 102, 5460] {
        assert_eq!(cluster.owner(slot).unwrap(), empty);
    }
    assert_eq!(cluster.owner(103).unwrap(), 0);
    for key in &keys {
        assert_eq!(cluster.node(empty).ask(&["GET", key]).unwrap(), bulk(key));
    }
    cluster.wait_until_whole(LIMIT).unwrap();
}

#[test]
fn a_cluster_of_redis_forms_and_its_slots_move_with_their_keys() {
    let Some(binary) = binary(Flavour::Redis70) else {
        return;
    };
    let mut cluster = TestCluster::start(&binary, ClusterSettings::default()).unwrap();
    a_cluster_has_all_slots_and_replicas_that_follow(&cluster);
    slots_move_with_their_keys(&mut cluster);
}

#[test]
fn a_cluster_of_valkey_with_a_password_does_the_same() {
    let Some(binary) = binary(Flavour::Valkey91) else {
        return;
    };
    let settings = ClusterSettings {
        password: Some("secret".to_owned()),
        ..ClusterSettings::default()
    };
    let mut cluster = TestCluster::start(&binary, settings).unwrap();
    let stranger = TcpStream::connect(cluster.node(4).address()).unwrap();
    assert!(first_line(stranger, b"GET k\r\n").starts_with("-NOAUTH"));
    a_cluster_has_all_slots_and_replicas_that_follow(&cluster);
    slots_move_with_their_keys(&mut cluster);
}

#[test]
fn redis_before_7_and_after_it_form_a_cluster_too() {
    let form = |flavour| {
        let Some(binary) = binary(flavour) else {
            return;
        };
        let settings = ClusterSettings {
            primaries: 2,
            replicas: 0,
            ..ClusterSettings::default()
        };
        let cluster = TestCluster::start(&binary, settings).unwrap();
        let key = &keys_of(3, 1)[0];
        cluster.node(0).ask_ok(&["SET", key, "v"]).unwrap();
        cluster.move_slots(0..8, 0, 1).unwrap();
        let reply = cluster.node(1).ask(&["GET", key]).unwrap();
        assert_eq!(reply, bulk("v"), "{flavour:?}");
    };
    // Most of the time is waiting.
    thread::scope(|scope| {
        for flavour in [Flavour::Redis62, Flavour::Redis82] {
            scope.spawn(move || form(flavour));
        }
    });
}

/// A replica takes the place of a killed primary, which comes back as its replica.
#[test]
fn replica_replaces_a_killed_primary() {
    let Some(binary) = binary(Flavour::Redis70) else {
        return;
    };
    let mut cluster = TestCluster::start(&binary, ClusterSettings::default()).unwrap();
    let key = &keys_of(0, 1)[0];
    set_and_wait(cluster.node(0), key);

    cluster.node(0).kill9();
    assert_eq!(cluster.wait_for_other_owner(0, 0, LIMIT).unwrap(), 3);
    assert_eq!(cluster.node(3).ask(&["GET", key]).unwrap(), bulk("v"));
    let pid = cluster.node(0).pid();
    cluster.node_mut(0).restart().unwrap();
    assert_ne!(cluster.node(0).pid(), pid);
    cluster.wait_until_whole(LIMIT).unwrap();
    assert_eq!(cluster.replicas(3).unwrap(), [0]);

    cluster.begin_failover(0).unwrap();
    assert_eq!(cluster.wait_for_other_owner(0, 3, LIMIT).unwrap(), 0);
    assert_eq!(cluster.node(0).ask(&["GET", key]).unwrap(), bulk("v"));
}

#[test]
fn a_frozen_node_is_missed_and_one_that_goes_on_is_not() {
    let Some(binary) = binary(Flavour::Redis70) else {
        return;
    };
    let settings = ClusterSettings {
        replicas: 0,
        ..ClusterSettings::default()
    };
    let cluster = TestCluster::start(&binary, settings).unwrap();
    cluster.node(1).stop();
    // At first no node has noticed.
    let deadline = Instant::now() + LIMIT;
    while cluster.wait_until_whole(Duration::ZERO).is_ok() {
        assert!(Instant::now() < deadline, "no node misses the frozen one");
        thread::sleep(Duration::from_millis(50));
    }
    cluster.node(1).cont();
    cluster.wait_until_whole(LIMIT).unwrap();
}

/// Each Sentinel knows all others, and follows when one of them begins a failover.
fn sentinels_follow_a_failover_that_one_is_told_to_do(sentinels: &Sentinels) {
    let counts = (sentinels.sentinels().len(), sentinels.all_watched().len());
    assert_eq!(counts, (3, 2));
    for sentinel in 0..3 {
        for watched in 0..2 {
            let first = sentinels.watched(watched).server(0).address();
            assert_eq!(sentinels.named_by(sentinel, watched).unwrap(), first);
        }
        let args = ["SENTINEL", "CKQUORUM", "m0"];
        let reply = sentinels.sentinel(sentinel).ask_ok(&args).unwrap();
        let is_enough = reply.text().unwrap().starts_with(b"OK 3 usable Sentinels");
        assert!(is_enough, "{reply:?}");
    }
    let server = sentinels.watched(0).server(1);
    let refused = server.ask(&["SET", "k", "v"]).unwrap();
    assert!(
        matches!(&refused, Reply::Error(error) if error.starts_with("READONLY")),
        "{refused:?}"
    );
    sentinels.begin_failover(1, 0).unwrap();
    assert_eq!(sentinels.wait_for_other_primary(0, 0, LIMIT).unwrap(), 1);
    assert_eq!(server.ask(&["SET", "k", "v"]).unwrap(), ok());
    assert_eq!(sentinels.primary(1).unwrap(), 0);
}

#[test]
fn sentinels_of_redis_follow_failovers_also_without_one_of_them() {
    let Some(binary) = binary(Flavour::Redis70) else {
        return;
    };
    let mut sentinels = Sentinels::start(&binary, &SentinelsSettings::default()).unwrap();
    sentinels_follow_a_failover_that_one_is_told_to_do(&sentinels);

    sentinels.sentinel(2).kill9();
    sentinels.watched(1).server(0).kill9();
    assert_eq!(sentinels.wait_for_other_primary(1, 0, LIMIT).unwrap(), 1);
    sentinels.restart_sentinel(2).unwrap();
    sentinels.watched_mut(1).server_mut(0).restart().unwrap();
    sentinels.wait_until_whole(LIMIT).unwrap();
    let back = sentinels.watched(1).server(0);
    assert_eq!(back.info("replication", "role").unwrap(), "slave");
}

#[test]
fn sentinels_of_valkey_with_passwords_follow_a_failover() {
    let Some(binary) = binary(Flavour::Valkey91) else {
        return;
    };
    let settings = SentinelsSettings {
        password: Some("secret".to_owned()),
        sentinel_password: Some("another".to_owned()),
        ..SentinelsSettings::default()
    };
    let sentinels = Sentinels::start(&binary, &settings).unwrap();
    sentinels_follow_a_failover_that_one_is_told_to_do(&sentinels);
    for node in [sentinels.sentinel(0), sentinels.watched(0).server(0)] {
        let stranger = TcpStream::connect(node.address()).unwrap();
        assert!(first_line(stranger, b"GET k\r\n").starts_with("-NOAUTH"));
    }
}

/// Traces that must be gone with their owner.
struct Traces {
    addresses: Vec<SocketAddr>,
    pids: Vec<u32>,
    folders: Vec<PathBuf>,
}

impl Traces {
    fn of<'a>(processes: impl IntoIterator<Item = &'a Process>) -> Traces {
        let processes: Vec<_> = processes.into_iter().collect();
        Traces {
            addresses: processes.iter().map(|process| process.address()).collect(),
            pids: processes.iter().map(|process| process.pid()).collect(),
            folders: processes
                .iter()
                .map(|process| process.dir().to_owned())
                .collect(),
        }
    }

    /// The processes that still run, and those whose title has an address of theirs.
    fn processes(&self) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let pid = entry.file_name().to_string_lossy().into_owned();
            let Ok(title) = fs::read_to_string(entry.path().join("cmdline")) else {
                continue;
            };
            let is_ours = self.pids.iter().any(|own| own.to_string() == pid);
            let port = |own: &SocketAddr| title.contains(&own.to_string());
            if is_ours || self.addresses.iter().any(port) {
                found.push(format!("{pid} {title}"));
            }
        }
        found
    }

    fn check_gone(&self) {
        assert_eq!(self.processes(), Vec::<String>::new());
        for folder in &self.folders {
            assert!(!folder.exists(), "{}", folder.display());
        }
    }
}

#[test]
fn nothing_is_left_of_a_topology_also_when_a_test_panics() {
    let Some(binary) = binary(Flavour::Redis70) else {
        return;
    };
    let mut traces = Vec::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let shards = Shards::start::<&str>(&binary, 3, &[]).unwrap();
        let settings = ClusterSettings {
            primaries: 1,
            ..ClusterSettings::default()
        };
        let cluster = TestCluster::start(&binary, settings).unwrap();
        let settings = SentinelsSettings {
            sentinels: 1,
            quorum: 1,
            watched: 1,
            ..SentinelsSettings::default()
        };
        let sentinels = Sentinels::start(&binary, &settings).unwrap();
        // A frozen and a killed server do not count.
        shards.node(0).stop();
        shards.node(1).kill9();
        cluster.node(1).stop();
        let servers = sentinels
            .all_watched()
            .iter()
            .flat_map(|watched| watched.servers());
        let nodes = shards.nodes().iter().chain(cluster.nodes());
        let nodes = nodes.chain(sentinels.sentinels()).chain(servers);
        traces.push(Traces::of(nodes.map(|node| &**node)));
        assert!(traces[0].processes().len() >= 8 - 1);
        panic!("as a test that fails");
    }));
    let panicked = *panicked.unwrap_err().downcast::<&str>().unwrap();
    assert_eq!(panicked, "as a test that fails");
    assert_eq!(traces[0].pids.len(), 3 + 2 + 1 + 2);
    traces[0].check_gone();
}

#[test]
fn shards_know_nothing_of_each_other() {
    let Some(binary) = binary(Flavour::Redis70) else {
        return;
    };
    let mut shards = Shards::start(&binary, 2, &["--maxmemory", "10mb"]).unwrap();
    shards.node(0).ask_ok(&["SET", "k", "v"]).unwrap();
    assert_eq!(shards.node(0).ask(&["GET", "k"]).unwrap(), bulk("v"));
    assert_eq!(shards.node(1).ask(&["GET", "k"]).unwrap(), Reply::Null);
    assert_eq!(
        shards.node(1).info("memory", "maxmemory").unwrap(),
        (10 << 20).to_string()
    );
    let addresses = shards.addresses();
    shards.node(0).kill9();
    shards.node_mut(0).restart().unwrap();
    assert_eq!(shards.addresses(), addresses);
    assert_eq!(shards.node(0).ask(&["GET", "k"]).unwrap(), Reply::Null);
}
