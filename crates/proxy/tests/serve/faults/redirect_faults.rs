//! Redirects and refusals that lead nowhere, or not yet: they end in time and cause no flood of
//! queries.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use respool_protocol::slot::{SLOTS, hash_slot};
use respool_testkit::client::{
    Reply, RespClient, counter, is_not_executed, one_of_each_worker, pipelined, words,
};
use respool_testkit::fake::{
    FakeAnswer, Fakes, NodeRequest, bulk, followed, in_order, info, range, shares,
};
use respool_testkit::servers::{Proxy, ReservedPort};
use respool_testkit::time::{Watch, wait_until};

use crate::target::respool;

const SOON: Duration = Duration::from_secs(10);

/// Fake nodes behind a respool with one worker.
struct FakeCluster {
    fakes: Fakes,
    proxy: Proxy,
}

impl Drop for FakeCluster {
    fn drop(&mut self) {
        let log = self.proxy.log();
        if thread::panicking() {
            eprintln!("its log:\n{log}");
        } else {
            assert!(!log.contains("panicked at"), "{log}");
        }
    }
}

impl FakeCluster {
    fn start(
        nodes: usize,
        args: &[&str],
        script: impl Fn(&NodeRequest<'_>) -> FakeAnswer + Send + Sync + 'static,
    ) -> FakeCluster {
        let fakes = Fakes::start(nodes, script);
        let seeds: Vec<String> = fakes
            .addresses()
            .iter()
            .map(SocketAddr::to_string)
            .collect();
        let seeds = format!("--backend=redis-cluster://{}", seeds.join(","));
        let args = [&[&seeds, "--threads=1"], args].concat();
        let proxy = Proxy::start(&respool(), &args).unwrap_or_else(|error| panic!("{error}"));
        let cluster = FakeCluster { fakes, proxy };
        // The tests begin once respool knows the nodes.
        wait_until("the nodes have answered", SOON, || {
            let log = cluster.proxy.log();
            log.contains("own its slots") || log.contains("no node has named")
        });
        cluster
    }

    fn client(&self) -> RespClient {
        RespClient::connect(self.proxy.address())
    }
}

/// A node points to another one.
fn redirect(word: &str, key: &str, place: impl std::fmt::Display) -> String {
    format!("-{word} {} {place}\r\n", hash_slot(key.as_bytes()))
}

/// A key of the node's share, of so many nodes.
fn key_of(node: usize, nodes: usize) -> String {
    let share = |key: &str| usize::from(hash_slot(key.as_bytes())) * nodes / usize::from(SLOTS);
    let mut keys = (0..).map(|key| format!("key:{key}"));
    keys.find(|key| share(key) == node)
        .expect("every share has keys")
}

/// A burst of MOVED causes two topology refreshes at most.
/// Each worker knows its nodes by itself, and so asks them by itself.
#[test]
fn moved_burst_causes_two_refreshes_at_most() {
    for workers in [1, 3] {
        let (moved, asked) = (Times::default(), Times::default());
        let (at_moved, at_asked) = (moved.clone(), asked.clone());
        // The first node redirects every request to the second one, and both name the first one as
        // the owner of all slots.
        let threads = format!("--threads={workers}");
        let served = FakeCluster::start(2, &[&threads], move |asked| match asked.name() {
            "CLUSTER" if asked.is("CLUSTER SLOTS") => {
                if asked.node == 0 {
                    at_asked.note();
                }
                Some(shares(&asked.all[..1]))
            }
            "GET" if asked.node == 0 => {
                at_moved.note();
                Some(redirect("MOVED", &asked.words[1], asked.all[1]))
            }
            _ => None,
        });
        let mut clients = one_of_each_worker(served.proxy.address());
        assert_eq!(clients.len(), workers);
        wait_until("the log shows one node with all slots", SOON, || {
            served.proxy.log().contains("1 nodes own")
        });
        let before = asked.all().len();
        // Refreshes run while more MOVED come, and each heals the topology for the next burst. On a
        // busy machine a burst may take longer than a second; some must be bursts.
        let burst = 1_000 * workers;
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3)
            || moved.most_in_a_second() < burst && began.elapsed() < SOON
        {
            thread::scope(|scope| {
                for client in &mut clients {
                    scope.spawn(|| ask_for_every_slot(client));
                }
            });
        }
        let most = moved.most_in_a_second();
        assert!(most >= burst, "{most} MOVED in a second are no burst");
        let often = asked.most_in_a_second();
        assert!(
            often <= 2 * workers,
            "{most} MOVED in a second had the nodes asked {often} times by {workers} workers"
        );
        wait_until("each worker has asked a node for the slots", SOON, || {
            asked.all().len() >= before + workers
        });
    }
}

/// Requests some thousand keys, five hundred at a time, and gets their replies.
fn ask_for_every_slot(client: &mut RespClient) {
    let keys: Vec<String> = (0..4_000).map(|key| format!("key:{key}")).collect();
    for keys in keys.chunks(500) {
        let requests = keys.iter().flat_map(|key| words(&format!("GET {key}")));
        let replies = client.exchange(requests.collect(), keys.len());
        let expected: Vec<Reply> = keys.iter().map(Reply::bulk).collect();
        assert_eq!(replies, expected);
    }
}

/// When something happened at a node, each time.
#[derive(Clone, Default)]
struct Times(Arc<Mutex<Vec<Instant>>>);

impl Times {
    fn note(&self) {
        let mut times = self.0.lock().expect("no holder panics");
        times.push(Instant::now());
    }

    fn all(&self) -> Vec<Instant> {
        self.0.lock().expect("no holder panics").clone()
    }

    /// The highest number of events within a second.
    fn most_in_a_second(&self) -> usize {
        let all = self.all();
        let in_its_second = |first: usize| {
            let behind = all[first] + Duration::from_secs(1);
            all[first..].partition_point(|time| *time < behind)
        };
        (0..all.len()).map(in_its_second).max().unwrap_or(0)
    }
}

/// A node that loses all its slots while it owes thousands of replies is handled once. A search
/// through all sessions for each reply would take most of a minute.
#[test]
fn node_without_slots_is_handled_once() {
    const SESSIONS: usize = 40;
    const EACH: usize = 400;
    let waiting: Mutex<Vec<String>> = Mutex::default();
    let args = [
        "--link-unanswered-bytes-max=64MiB",
        "--request-timeout-ms=60000",
    ];
    let served = FakeCluster::start(2, &args, move |asked| {
        let mut waiting = waiting.lock().expect("no holder panics");
        let (owner, replica) = match waiting.len() == SESSIONS * EACH {
            true => (asked.all[1], asked.all[0]),
            false => (asked.all[0], asked.all[1]),
        };
        match asked.name() {
            "CLUSTER" if asked.is("CLUSTER SLOTS") => Some(followed(&[owner], &[replica])),
            "INCR" if asked.node == 0 => {
                waiting.push(asked.words[1].clone());
                let is_last = waiting.len() == SESSIONS * EACH;
                let moved = |key: &String| redirect("MOVED", key, asked.all[1]);
                let moved = || waiting.iter().map(moved).collect();
                Some(is_last.then(moved).unwrap_or_default())
            }
            "INCR" => Some(bulk(&asked.words[1])),
            _ => None,
        }
    });
    wait_until("the log shows one node with all slots", SOON, || {
        served.proxy.log().contains("1 nodes own")
    });
    let mut clients: Vec<RespClient> = (0..SESSIONS).map(|_| served.client()).collect();
    for (session, client) in clients.iter_mut().enumerate() {
        let keys = (0..EACH).map(|key| format!("INCR {session}:{key}"));
        client.send(&keys.flat_map(|incr| words(&incr)).collect::<Vec<u8>>());
    }
    let began = Instant::now();
    for (session, client) in clients.iter_mut().enumerate() {
        let expected = (0..EACH).map(|key| Reply::bulk(format!("{session}:{key}")));
        assert_eq!(client.replies(EACH), expected.collect::<Vec<_>>());
    }
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

/// MOVED in a circle ends at the request's deadline and keeps no worker busy.
#[test]
fn moved_circle_ends_at_the_deadline() {
    let lost = key_of(0, 2);
    let circling = lost.clone();
    let served = FakeCluster::start(2, &["--request-timeout-ms=600"], move |asked| {
        let is_lost = asked.name() == "GET" && asked.words[1] == circling;
        is_lost.then(|| redirect("MOVED", &circling, asked.all[1 - asked.node]))
    });
    let mut client = served.client();
    let began = Instant::now();
    client.send(&words(&format!("GET {lost}")));
    // Other sessions of the link do not wait.
    let mut other = served.client();
    let key = key_of(1, 2);
    assert_eq!(other.call(&format!("GET {key}")), Reply::bulk(&key));
    let reply = client.reply();
    let time = began.elapsed();
    let text = reply.error().unwrap_or_default();
    assert!(is_not_executed(text), "{reply:?}");
    assert!(time < SOON, "{time:?}");
    let asked = served.fakes.count(&format!("GET {lost}"));
    assert!((2..60).contains(&asked), "asked {asked} times in {time:?}");
    assert_eq!(client.call(&format!("GET {key}")), Reply::bulk(&key));
}

/// The nodes' description of these commands: their arguments and key positions.
const NEW: [(&str, &str); 3] = [
    ("new.get", ":2\r\n*1\r\n+readonly\r\n:1\r\n:1\r\n:1\r\n"),
    ("new.mset", ":-3\r\n*1\r\n+write\r\n:1\r\n:-1\r\n:2\r\n"),
    (
        "new.eval",
        ":-3\r\n*2\r\n+write\r\n+movablekeys\r\n:1\r\n:1\r\n:1\r\n",
    ),
];

/// A command that the table does not have goes to the owner of its keys, and follows MOVED as any
/// other does.
#[test]
fn unknown_commands_follow_redirects() {
    let moved = key_of(0, 2);
    let lost = moved.clone();
    let served = FakeCluster::start(2, &[], move |asked| match asked.name() {
        "COMMAND" => {
            let name = asked.words[2].to_ascii_lowercase();
            let facts = NEW.iter().find(|(new, _)| *new == name)?;
            Some(format!("*1\r\n*6\r\n{}{}", bulk(&name), facts.1))
        }
        // The node redirects every request for the slot, so respool can prove that the redirect is
        // the node's own.
        "NEW.GET" | "EXISTS" if asked.node == 0 && asked.words[1] == lost => {
            Some(redirect("MOVED", &lost, asked.all[1]))
        }
        "NEW.GET" => Some(bulk(&format!("{} of {}", asked.words[1], asked.node))),
        "NEW.MSET" => Some(bulk(&format!("set at {}", asked.node))),
        _ => None,
    });
    let mut client = served.client();
    let other = key_of(1, 2);
    for _ in 0..2 {
        let got = pipelined(&mut client, &format!("NEW.GET {moved};NEW.GET {other}"));
        let expected = [format!("{moved} of 1"), format!("{other} of 1")];
        assert_eq!(got, expected.map(Reply::bulk));
    }
    let set = client.call("NEW.MSET {user}a 1 {user}b 2");
    let at = usize::from(hash_slot(b"user")) * 2 / usize::from(SLOTS);
    assert_eq!(set, Reply::bulk(format!("set at {at}")));
    let apart = client.call(&format!("NEW.MSET {moved} 1 {other} 2"));
    let crossed = "CROSSSLOT Keys in request don't hash to the same slot";
    assert_eq!(apart.error(), Some(crossed));
    let movable = client.call(&format!("NEW.EVAL 1 {moved}"));
    let refused = movable.error().unwrap_or_default();
    assert!(refused.contains("are unknown"), "{movable:?}");
    assert_eq!(served.fakes.count("NEW.EVAL"), 0);
}

/// MOVED without a host means the host of the node that sent it.
#[test]
fn moved_without_host_means_the_sender() {
    for host in ["", "?"] {
        let served = FakeCluster::start(2, &[], move |asked| {
            let place = format!("{host}:{}", asked.all[1].port());
            let is_moved = asked.name() == "GET" && asked.node == 0;
            is_moved.then(|| redirect("MOVED", &asked.words[1], place))
        });
        let key = key_of(0, 2);
        assert_eq!(
            served.client().call(&format!("GET {key}")),
            Reply::bulk(&key)
        );
    }
}

/// A redirect to an unreachable node ends with an error at the deadline.
#[test]
fn redirect_to_an_unreachable_node_ends_at_the_deadline() {
    let dead = ReservedPort::new().expect("a free port");
    let dead = format!("127.0.0.1:{}", dead.port);
    let long = format!("{}:1", "h".repeat(5_000));
    let nowhere = [
        "MOVED",
        "MOVED 5",
        "MOVED 5 nowhere",
        "MOVED x 127.0.0.1:1",
        "MOVED 16384 127.0.0.1:1",
        "MOVED -1 127.0.0.1:1",
        "MOVED 5 127.0.0.1:0",
        "MOVED 5 127.0.0.1:70000",
        "MOVED 5 [::1:1",
        &format!("MOVED 5 {long}"),
        "ASK",
        "ASK 5 :0",
        &format!("ASK 5 {dead}"),
        "ASK 5 no-such-host.invalid:1",
    ];
    let all: Vec<String> = nowhere.iter().map(|text| format!("-{text}\r\n")).collect();
    let served = FakeCluster::start(2, &["--request-timeout-ms=400"], move |asked| {
        let number = asked.words.get(1)?.strip_prefix("{nowhere}")?;
        all.get(number.parse::<usize>().ok()?).cloned()
    });
    // All at once, each in a session of its own, with an unrelated request behind it.
    let began = Instant::now();
    let mut clients: Vec<RespClient> = nowhere.iter().map(|_| served.client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(&words(&format!("GET {{nowhere}}{number}")));
        client.send(&words("GET other"));
    }
    for (text, client) in nowhere.iter().zip(&mut clients) {
        let reply = client.reply();
        let told = reply.error().unwrap_or_default();
        assert!(is_not_executed(told), "{text}: {reply:?}");
        assert_eq!(client.reply(), Reply::bulk("other"), "{text}");
    }
    let time = began.elapsed();
    assert!(time < SOON, "{time:?}");
    let asked = served.fakes.count("GET {nowhere}");
    assert!(
        asked < nowhere.len() * 40,
        "asked {asked} times in {time:?}"
    );
}

/// A temporary refusal is retried, and the client sees the reply alone.
#[test]
fn temporary_refusal_is_retried_unseen() {
    let refusals = [
        "CLUSTERDOWN The cluster is down",
        "CLUSTERDOWN Hash slot not served",
        "LOADING Redis is loading the dataset in memory",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "READONLY You can't write against a read only replica.",
    ];
    for refusal in refusals {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let served = FakeCluster::start(2, &[], move |asked| {
            let is_it = asked.words.get(1).is_some_and(|key| key == "refused");
            let times = || counted.fetch_add(1, Ordering::SeqCst);
            // Both are refused first, and then the first one alone: the other waits for it.
            (is_it && times() < 6).then(|| format!("-{refusal}\r\n"))
        });
        let mut client = served.client();
        let requests = "GET first;SET refused x;GET refused;GET other";
        let replies = pipelined(&mut client, requests);
        assert_eq!(replies[0], Reply::bulk("first"), "{refusal}");
        assert_eq!(replies[1], Reply::ok(), "{refusal}");
        assert_eq!(replies[2], Reply::bulk("refused"), "{refusal}");
        assert_eq!(replies[3], Reply::bulk("other"), "{refusal}");
        let asked = asked.load(Ordering::SeqCst);
        assert!((8..40).contains(&asked), "{refusal}: asked {asked} times");
    }
}

/// A refusal that lasts reaches the client at the deadline, in the server's words.
#[test]
fn lasting_refusal_reaches_the_client_at_the_deadline() {
    let refusal = "CLUSTERDOWN The cluster is down";
    let served = FakeCluster::start(2, &["--request-timeout-ms=500"], move |asked| {
        let is_it = asked.words.get(1).is_some_and(|key| key == "refused");
        is_it.then(|| format!("-{refusal}\r\n"))
    });
    let mut client = served.client();
    let began = Instant::now();
    let replies = pipelined(&mut client, "GET first;SET refused x;GET other");
    let time = began.elapsed();
    assert_eq!(replies[0], Reply::bulk("first"));
    assert_eq!(replies[1].error(), Some(refusal));
    assert_eq!(replies[2], Reply::bulk("other"));
    assert!(
        time >= Duration::from_millis(450) && time < SOON,
        "{time:?}"
    );
    let asked = served.fakes.count("SET refused");
    assert!((2..40).contains(&asked), "asked {asked} times in {time:?}");
    assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
}

/// While nodes answer with rubbish, the last good topology stays. A valid one replaces it.
#[test]
fn invalid_topology_keeps_the_last_good_one() {
    let rubbish = |all: &[SocketAddr]| {
        let good = shares(all);
        [
            "+OK\r\n".to_owned(),
            ":5\r\n".to_owned(),
            "*0\r\n".to_owned(),
            "$-1\r\n".to_owned(),
            "-ERR unknown command 'CLUSTER'\r\n".to_owned(),
            "*1\r\n:5\r\n".to_owned(),
            "*1\r\n*2\r\n:0\r\n:16383\r\n".to_owned(),
            range(5, 16_384, all[0]).replacen("*3", "*1\r\n*3", 1),
            range(500, 5, all[0]).replacen("*3", "*1\r\n*3", 1),
            range(0, 99_999_999_999, all[0]).replacen("*3", "*1\r\n*3", 1),
            good.replace("127.0.0.1", "127.0.0.\0"),
            // Each slot twice.
            format!("*4\r\n{}{}", &good[4..], &good[4..]),
        ]
    };
    // First a respool that knows its nodes, then one that never knew them.
    for knows in [true, false] {
        let said = Arc::new(AtomicUsize::new(if knows { usize::MAX } else { 0 }));
        let says = Arc::clone(&said);
        let served = FakeCluster::start(2, &["--request-timeout-ms=2s"], move |asked| {
            let all = rubbish(asked.all);
            match asked.name() {
                "CLUSTER" if asked.is("CLUSTER SLOTS") => {
                    all.get(says.load(Ordering::SeqCst)).cloned()
                }
                // This gives a reason to refresh the topology.
                "GET" if asked.words[1].starts_with("moved") => {
                    let is_new = asked.node == 0;
                    is_new.then(|| redirect("MOVED", &asked.words[1], asked.all[1]))
                }
                _ => None,
            }
        });
        let mut client = served.client();
        let [one, other] = [key_of(0, 2), key_of(1, 2)];
        let asked = |client: &mut RespClient| counter(client, "topology_refreshes");
        let mut more = 0;
        for rubbish in 0..12 {
            said.store(rubbish, Ordering::SeqCst);
            // Each refresh may be a second after the one before; a third of them here is enough.
            let before = asked(&mut client);
            let moved = format!("GET moved:{rubbish};GET {one};GET {other}");
            let replies = pipelined(&mut client, &moved);
            let expected = [format!("moved:{rubbish}"), one.clone(), other.clone()];
            assert_eq!(replies, expected.map(Reply::bulk), "{rubbish}");
            if rubbish % 4 == 0 {
                wait_until("the nodes are asked again", SOON, || {
                    more += 1;
                    client.call(&format!("GET moved:more:{more}"));
                    asked(&mut client) > before
                });
            }
        }
        said.store(usize::MAX, Ordering::SeqCst);
        wait_until("respool accepts the topology of the nodes", SOON, || {
            more += 1;
            client.call(&format!("GET moved:more:{more}"));
            served.proxy.log().contains("2 nodes own its slots")
        });
        let replies = pipelined(&mut client, &format!("GET {one};GET {other}"));
        assert_eq!(replies, [one, other].map(Reply::bulk));
    }
}

/// The node with the latest epoch is believed, not the majority.
#[test]
fn latest_epoch_wins_over_the_majority() {
    // Two nodes give all slots to the first node. The third node claims them by a higher epoch.
    let served = FakeCluster::start(3, &[], |asked| match asked.name() {
        "CLUSTER" if asked.is("CLUSTER INFO") => Some(info(3, if asked.node == 2 { 7 } else { 6 })),
        "CLUSTER" => {
            let [first, second, third] = [asked.all[0], asked.all[1], asked.all[2]];
            Some(match asked.node {
                2 => followed(&[third], &[first, second]),
                _ => followed(&[first], &[second, third]),
            })
        }
        "GET" => Some(bulk(&asked.node.to_string())),
        _ => Some(in_order(asked)),
    });
    let mut client = served.client();
    wait_until("the third node answers the GET", SOON, || {
        client.call("GET key") == Reply::bulk("2")
    });
    // The owner does not change to and fro with later refreshes, either.
    for _ in 0..40 {
        let replies = pipelined(&mut client, "GET key;GET other;GET {third}");
        assert_eq!(replies, vec![Reply::bulk("2"); 3]);
        thread::sleep(Duration::from_millis(50));
    }
}

/// Nodes that contradict each other for ever are not asked without end.
#[test]
fn contradicting_nodes_are_not_asked_without_end() {
    // Each node claims all slots at the same epoch. Requests at the second node belong to the first
    // one.
    let served = FakeCluster::start(2, &[], |asked| match asked.name() {
        "CLUSTER" if asked.is("CLUSTER SLOTS") => {
            let [own, other] = [asked.node, 1 - asked.node].map(|node| asked.all[node]);
            Some(followed(&[own], &[other]))
        }
        "GET" if asked.node == 1 => Some(redirect("MOVED", &asked.words[1], asked.all[0])),
        _ => None,
    });
    let mut client = served.client();
    let before = counter(&mut client, "topology_refreshes");
    let began = Instant::now();
    let mut turn = 0;
    while began.elapsed() < Duration::from_secs(3) {
        turn += 1;
        let replies = pipelined(&mut client, &format!("GET one:{turn};GET other:{turn}"));
        let expected = [format!("one:{turn}"), format!("other:{turn}")];
        assert_eq!(replies, expected.map(Reply::bulk));
    }
    let time = began.elapsed();
    let asked = counter(&mut client, "topology_refreshes") - before;
    assert!(asked <= 2 + time.as_secs(), "{asked} times in {time:?}");
}

/// A session with a request at the slot's old owner asks the new owner after its reply.
#[test]
fn request_behind_an_open_redirect_waits_for_it() {
    // The reply of the first node comes so late that all others know the new owner by then.
    let may_answer = Arc::new(AtomicBool::new(false));
    let (waits_for, triggered) = (Arc::clone(&may_answer), AtomicUsize::new(0));
    let (own, other) = (key_of(0, 2), key_of(1, 2));
    let moving = usize::from(hash_slot(own.as_bytes()));
    let (key, trigger) = (own.clone(), other.clone());
    let served = FakeCluster::start(2, &[], move |asked| {
        let has_moved = || triggered.load(Ordering::SeqCst) > 0;
        match asked.name() {
            "SET" if asked.node == 0 => {
                wait_until("the test lets the node answer the SET", SOON, || {
                    waits_for.load(Ordering::SeqCst)
                });
                Some(redirect("MOVED", &key, asked.all[1]))
            }
            "GET" if asked.words[1] == trigger => {
                let is_first = triggered.fetch_add(1, Ordering::SeqCst) == 0;
                is_first.then(|| "-CLUSTERDOWN for a moment\r\n".to_owned())
            }
            "CLUSTER" if has_moved() && asked.is("CLUSTER SLOTS") => {
                let [one, other] = [asked.all[0], asked.all[1]];
                let ranges = [
                    range(0, moving - 1, one),
                    range(moving, moving, other),
                    range(moving + 1, 8_191, one),
                    range(8_192, 16_383, other),
                ];
                Some(format!("*4\r\n{}", ranges.concat()))
            }
            "CLUSTER" if has_moved() && asked.is("CLUSTER INFO") => Some(info(2, 2)),
            _ => None,
        }
    });
    let mut client = served.client();
    client.send(&words(&format!("SET {own} x")));
    wait_until("the node gets the SET", SOON, || {
        served.fakes.count("SET") == 1
    });
    let reply = served.client().call(&format!("GET {other}"));
    assert_eq!(reply, Reply::bulk(&other));
    wait_until("the log shows the moved slot", SOON, || {
        served.proxy.log().contains("1 slots moved")
    });
    client.send(&words(&format!("GET {own}")));
    // Time in which the GET would reach the new owner if it did not wait.
    thread::sleep(Duration::from_millis(200));
    may_answer.store(true, Ordering::SeqCst);
    assert_eq!(client.replies(2), [Reply::ok(), Reply::bulk(&own)]);
    let asked = served.fakes.asked_of(1);
    let place = |words: &str| asked.iter().position(|asked| asked == words);
    let (set, get) = (place(&format!("SET {own} x")), place(&format!("GET {own}")));
    assert!(set.is_some() && set < get, "{asked:?}");
}

/// During a failover by command, a client that waits for the old primary gets its reply. The old
/// primary blocks its clients until its replica has all data. The other nodes learn first of the
/// new primary, so for a moment no node names the old one.
#[test]
fn client_of_a_demoted_primary_is_answered() {
    let may_answer = Arc::new(AtomicBool::new(false));
    let (waits_for, asked_at) = (Arc::clone(&may_answer), Mutex::new(None::<Instant>));
    let key = key_of(0, 2);
    let moved = key.clone();
    let served = FakeCluster::start(3, &[], move |asked| {
        // The node answers later than a node in order would.
        let has_moved = || {
            let at = *asked_at.lock().expect("no holder panics");
            at.is_some_and(|at: Instant| at.elapsed() > Duration::from_millis(300))
        };
        let [first, replica, other] = [asked.all[0], asked.all[1], asked.all[2]];
        match asked.name() {
            "SET" if asked.node == 0 => {
                *asked_at.lock().expect("no holder panics") = Some(Instant::now());
                wait_until("the test lets the node answer the SET", SOON, || {
                    waits_for.load(Ordering::SeqCst)
                });
                Some(redirect("MOVED", &moved, replica))
            }
            "CLUSTER" if asked.is("CLUSTER SLOTS") => Some(match has_moved() {
                false => followed(&[first, other], &[replica]),
                true => shares(&[replica, other]),
            }),
            "CLUSTER" if asked.is("CLUSTER INFO") => Some(info(3, 1 + u64::from(has_moved()))),
            _ => None,
        }
    });
    let mut client = served.client();
    client.send(&words(&format!("SET {key} x")));
    wait_until("the log shows the takeover by the replica", SOON, || {
        served.proxy.log().contains("8192 slots moved")
    });
    may_answer.store(true, Ordering::SeqCst);
    assert_eq!(client.reply(), Reply::ok());
    let asked = served.fakes.asked_of(1);
    assert!(asked.contains(&format!("SET {key} x")), "{asked:?}");
}

/// A request for all nodes waits for the first topology, but not for ever.
#[test]
fn all_node_request_waits_for_the_first_topology() {
    for becomes_known in [true, false] {
        let is_known = Arc::new(AtomicBool::new(false));
        let knows = Arc::clone(&is_known);
        let count = AtomicUsize::new(0);
        let served = FakeCluster::start(2, &[], move |asked| match asked.name() {
            "CLUSTER" if !knows.load(Ordering::SeqCst) => {
                let number = count.fetch_add(1, Ordering::SeqCst);
                Some(format!("-LOADING its data, part {number}\r\n"))
            }
            "DBSIZE" => Some(":1\r\n".to_owned()),
            _ => None,
        });
        let mut client = served.client();
        client.send(&words("DBSIZE"));
        client.send(&words("DBSIZE"));
        assert!(client.is_quiet(Duration::from_millis(200)));
        if becomes_known {
            is_known.store(true, Ordering::SeqCst);
            assert_eq!(client.replies(2), [Reply::Integer(2), Reply::Integer(2)]);
            continue;
        }
        for reply in client.replies(2) {
            let told = reply.error().unwrap_or_default();
            assert!(told.starts_with("CLUSTERDOWN respool: "), "{reply:?}");
        }
        let watch = Watch::start();
        let reply = served.client().call("DBSIZE");
        assert!(reply.error().is_some(), "{reply:?}");
        assert!(watch.elapsed() < Duration::from_millis(900));
        let log = served.proxy.log();
        let said = log
            .lines()
            .filter(|line| line.contains("no node has named"));
        assert_eq!(said.count(), 1, "{log}");
    }
}

/// Requests for all nodes, with each node's reply.
const FOR_ALL: [(&str, &str); 7] = [
    ("FLUSHALL", "+OK\r\n"),
    ("FUNCTION FLUSH", "+OK\r\n"),
    ("SCRIPT FLUSH", "+OK\r\n"),
    ("DBSIZE", ":1\r\n"),
    ("KEYS *", "*0\r\n"),
    ("RANDOMKEY", "$-1\r\n"),
    ("SCAN 0", "*2\r\n$1\r\n0\r\n*0\r\n"),
];

const TRY_AGAIN: &str = "-TRYAGAIN Multiple keys request during rehashing of slot\r\n";

/// Where the last request that begins like this stands among those of a node, and where the first.
fn places(fakes: &Fakes, node: usize, words: &str) -> Option<(usize, usize)> {
    let asked = fakes.asked_of(node);
    let is_it = |asked: &String| asked.starts_with(words);
    let first = asked.iter().position(is_it)?;
    asked.iter().rposition(is_it).map(|last| (first, last))
}

/// A request for all nodes does not overtake an earlier request that is retried.
#[test]
fn all_node_request_does_not_overtake_a_retry() {
    for (asked_of_all, answer) in FOR_ALL {
        for sent_on in [false, true] {
            let key = key_of(0, 2);
            let (refused, refusals) = (key.clone(), AtomicUsize::new(0));
            let name = asked_of_all.split(' ').next().unwrap_or_default();
            let served = FakeCluster::start(2, &[], move |asked| match asked.name() {
                "SET" if asked.node == 0 => match refusals.fetch_add(1, Ordering::SeqCst) {
                    _ if sent_on => Some(redirect("ASK", &refused, asked.all[1])),
                    0..4 => Some(TRY_AGAIN.to_owned()),
                    _ => None,
                },
                asked if asked == name => Some(answer.to_owned()),
                _ => None,
            });
            let mut client = served.client();
            let asked = format!("SET {key} x;{asked_of_all}");
            let replies = pipelined(&mut client, &asked);
            assert_eq!(replies[0], Reply::ok(), "{asked}");
            assert!(replies[1].error().is_none(), "{asked}: {replies:?}");
            let executed_at = usize::from(sent_on);
            let set = places(&served.fakes, executed_at, "SET ").expect("the node gets the SET");
            if let Some(all) = places(&served.fakes, executed_at, name) {
                assert!(
                    set.1 < all.0,
                    "{asked}: {:?}",
                    served.fakes.asked_of(executed_at)
                );
            }
        }
    }
}

/// Later requests do not overtake the part of an all-node request that its node refuses for a
/// while.
#[test]
fn refused_part_of_all_nodes_is_not_overtaken() {
    // A refused SCAN is not asked again: its cursor is one node's.
    let parts = FOR_ALL.iter().filter(|(asked, _)| *asked != "SCAN 0");
    for &(asked_of_all, answer) in parts {
        let [own, other] = [key_of(0, 2), key_of(1, 2)];
        let name = asked_of_all.split(' ').next().unwrap_or_default();
        let refusals = AtomicUsize::new(0);
        let served = FakeCluster::start(2, &[], move |asked| {
            let is_refused = || asked.node == 0 && refusals.fetch_add(1, Ordering::SeqCst) < 4;
            match asked.name() {
                asked if asked != name => None,
                _ if is_refused() => Some(TRY_AGAIN.to_owned()),
                _ => Some(answer.to_owned()),
            }
        });
        let mut client = served.client();
        let asked = format!("{asked_of_all};SET {own} x;SET {other} x;GET {own}");
        let replies = pipelined(&mut client, &asked);
        assert!(replies[0].error().is_none(), "{asked}: {replies:?}");
        assert_eq!(replies[1..3], [Reply::ok(), Reply::ok()], "{asked}");
        assert_eq!(replies[3], Reply::bulk(&own), "{asked}");
        for node in [0, 1] {
            let set = places(&served.fakes, node, "SET ").expect("the node gets the SET");
            if let Some(all) = places(&served.fakes, node, name) {
                let asked_of = served.fakes.asked_of(node);
                assert!(all.1 < set.0, "{asked}: {asked_of:?}");
            }
        }
    }
}
