//! The server dies, freezes and comes back: every request is answered or fails, no write is
//! doubled, no acknowledged write is lost, no late reply reaches another client, and no client has
//! to reconnect.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use respool_testkit::client::{Reply, RespClient, counter, is_not_executed, request, words};
use respool_testkit::fake::{Fakes, bulk};
use respool_testkit::fault_proxy::{FaultMode, FaultProxy};
use respool_testkit::random::{Random, seed};
use respool_testkit::servers::{Proxy, any_server};
use respool_testkit::time::{Watch, wait_until};

use crate::target::{Options, Target, before_every_server, respool};
use crate::topology::cluster::SOON;

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestFate {
    /// The server answered.
    Replied,
    /// Surely not executed: respool says so, or the server does.
    NotExecuted,
    /// Perhaps executed.
    Unknown,
}

#[track_caller]
pub(crate) fn fate(reply: &Reply) -> RequestFate {
    match reply.error() {
        None => RequestFate::Replied,
        Some(text) if is_not_executed(text) => RequestFate::NotExecuted,
        Some(text) if text.starts_with("LOADING ") => RequestFate::NotExecuted,
        Some(text) if text.starts_with("UNKNOWN respool: ") => RequestFate::Unknown,
        Some(text) => panic!("the error does not name the fate of the request: {text}"),
    }
}

/// A server that keeps its acknowledged writes over a crash.
fn durable(mut options: Options) -> Options {
    options.server.extend([
        "--appendonly".into(),
        "yes".into(),
        "--appendfsync".into(),
        "no".into(),
    ]);
    options
}

/// The counts of one client.
#[derive(Default)]
struct WriteCount {
    sent: i64,
    acknowledged: i64,
    unknown: i64,
    failed: i64,
    /// The last value that the server said.
    last: i64,
}

/// Increments a key of its own in pipelines on one connection, until it is told to end.
fn count_up(address: SocketAddr, key: &str, ended: &AtomicBool, mut random: Random) -> WriteCount {
    let mut client = RespClient::connect(address);
    let mut count = WriteCount::default();
    while !ended.load(Ordering::SeqCst) {
        let depth = 1 + random.below(20) as i64;
        client.send(&words(&format!("INCR {key}")).repeat(depth as usize));
        count.sent += depth;
        for _ in 0..depth {
            let reply = client.reply();
            match fate(&reply) {
                RequestFate::Replied => {
                    let Reply::Integer(value) = reply else {
                        panic!("{key}: INCR answers {reply:?}")
                    };
                    count.acknowledged += 1;
                    // Between two acknowledged values only unknown ones may have been executed.
                    let most = count.acknowledged + count.unknown;
                    assert!(
                        value > count.last && value >= count.acknowledged && value <= most,
                        "{key}: the server says {value} after {}, {} acknowledged and {} unknown",
                        count.last,
                        count.acknowledged,
                        count.unknown
                    );
                    count.last = value;
                }
                RequestFate::Unknown => count.unknown += 1,
                RequestFate::NotExecuted => count.failed += 1,
            }
        }
        if count.failed > 0 && count.last == 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }
    count
}

/// Runs counters of many clients during `trouble`, then compares them with the server's values.
fn counters_stay_true(target: &mut Target, clients: usize, trouble: impl FnOnce(&mut Target)) {
    let ended = AtomicBool::new(false);
    let seed = seed();
    let address = target.address();
    // The target is lent to `trouble`, which may restart its server; clients need its address
    // alone.
    let counts = thread::scope(|scope| {
        let workers: Vec<_> = (0..clients)
            .map(|number| {
                let ended = &ended;
                let random = Random::new(seed.wrapping_add(number as u64));
                scope.spawn(move || count_up(address, &format!("count:{number}"), ended, random))
            })
            .collect();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| trouble(target)));
        ended.store(true, Ordering::SeqCst);
        let counts: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
        counts
    });
    let mut direct = target.direct_client();
    let mut acknowledged = 0;
    for (number, count) in counts.into_iter().enumerate() {
        let count =
            count.unwrap_or_else(|_| panic!("client {number} failed, RESPOOL_TEST_SEED={seed}"));
        let held = match direct.call(&format!("GET count:{number}")) {
            Reply::Null => 0,
            Reply::Bulk(text) => String::from_utf8_lossy(&text)
                .parse()
                .expect("a counter is a number"),
            other => panic!("{other:?}"),
        };
        assert!(
            count.acknowledged <= held && held <= count.acknowledged + count.unknown,
            "count:{number} is {held}: {} sent, {} acknowledged, {} unknown, {} not executed",
            count.sent,
            count.acknowledged,
            count.unknown,
            count.failed
        );
        assert_eq!(
            count.sent,
            count.acknowledged + count.unknown + count.failed
        );
        acknowledged += count.acknowledged;
    }
    assert!(acknowledged > clients as i64, "the load was a load");
}

/// Libraries do not repeat HELLO after an error, but they connect again after a close.
#[test]
fn client_that_greets_while_the_server_is_away_is_closed() {
    let options = Options::with(&["--threads=1", "--outage-hold-ms=0"]);
    let mut target = Target::proxied(&any_server(), &options);
    target.server.kill9();
    wait_until("respool has seen the loss of the server", SOON, || {
        target.client().call("GET k").error().is_some()
    });
    for greeting in [
        "HELLO 3",
        "HELLO 3 AUTH default any",
        "HELLO 3 AUTH u p SETNAME n",
    ] {
        let mut client = target.client();
        client.send(&words(greeting));
        client.expect_closed();
    }
    let told = target.client().call("PING");
    assert_eq!(fate(&told), RequestFate::NotExecuted, "{told:?}");
    target.server.restart().expect("the server starts again");
    wait_until("a client is greeted", SOON, || {
        let mut client = target.client();
        client.send(&words("HELLO 3"));
        client
            .try_reply()
            .is_ok_and(|reply| reply.error().is_none())
    });
}

/// When the server is killed, no write runs twice and no acknowledged write is lost.
#[test]
fn killed_server_doubles_and_loses_no_write() {
    for threads in ["--threads=1", "--threads=3"] {
        before_every_server(&durable(Options::with(&[threads])), |target| {
            counters_stay_true(target, 24, |target| {
                for _ in 0..2 {
                    thread::sleep(Duration::from_millis(300));
                    target.server.kill9();
                    thread::sleep(Duration::from_millis(100));
                    target.server.restart().expect("the server starts again");
                }
                thread::sleep(Duration::from_millis(600));
            });
        });
    }
}

/// The number of keys that every client reads and no client writes, so that equal reads collapse.
const COMMON: u64 = 4;

/// The knowledge of one client that sets and gets: of its own key, the last acknowledged value, and
/// later ones that may have been written.
#[derive(Debug, Default)]
struct OwnValue {
    acknowledged: u64,
    maybe: HashSet<u64>,
    /// Failed requests that may have been executed.
    unknown: u64,
    /// Failed requests that were surely not executed.
    unsent: u64,
}

impl OwnValue {
    fn may_hold(&self, held: &Reply) -> bool {
        let held = match held {
            Reply::Null => Some(0),
            Reply::Bulk(text) => String::from_utf8_lossy(text).parse().ok(),
            _ => None,
        };
        held.is_some_and(|held| held == self.acknowledged || self.maybe.contains(&held))
    }
}

/// Gets keys, and sets a key of its own if it `writes`, a few at a time on one connection, until it
/// is told to end.
fn set_and_get(
    address: SocketAddr,
    number: usize,
    writes: bool,
    ended: &AtomicBool,
    mut random: Random,
) -> OwnValue {
    let mut client = RespClient::connect(address);
    let (mut own, mut last) = (OwnValue::default(), 0);
    while !ended.load(Ordering::SeqCst) {
        let asked: Vec<String> = (0..=random.below(4))
            .map(|_| match random.below(4) {
                0 | 1 if writes => {
                    last += 1;
                    format!("SET own:{number} {last}")
                }
                2 if writes => format!("GET own:{number}"),
                _ => format!("GET common:{}", random.below(COMMON)),
            })
            .collect();
        client.send(
            &asked
                .iter()
                .flat_map(|asked| words(asked))
                .collect::<Vec<_>>(),
        );
        let mut fails = false;
        for asked in &asked {
            let reply = client.reply();
            let fate = fate(&reply);
            own.unknown += u64::from(fate == RequestFate::Unknown);
            own.unsent += u64::from(fate == RequestFate::NotExecuted);
            fails |= fate == RequestFate::NotExecuted;
            let asked: Vec<&str> = asked.split(' ').collect();
            match (&asked[..], fate) {
                (["SET", _, value], _) => {
                    let value = value.parse().expect("the value is a number");
                    if fate == RequestFate::Replied {
                        assert_eq!(reply, Reply::ok(), "{asked:?}");
                        own.acknowledged = value;
                        own.maybe.clear();
                    } else if fate == RequestFate::Unknown {
                        own.maybe.insert(value);
                    }
                }
                (["GET", key], RequestFate::Replied) if key.starts_with("common:") => {
                    assert_eq!(reply, Reply::bulk(key), "client {number}");
                }
                (_, RequestFate::Replied) => {
                    assert!(own.may_hold(&reply), "{asked:?} got {reply:?}, of {own:?}");
                }
                _ => {}
            }
        }
        if fails {
            thread::sleep(Duration::from_millis(1));
        }
    }
    own
}

/// The server stands still twice, each time for longer than the deadline of a request.
fn stands_still_twice(target: &Target) {
    for _ in 0..2 {
        thread::sleep(Duration::from_millis(300));
        target.server.stop();
        thread::sleep(Duration::from_millis(700));
        target.server.cont();
    }
    thread::sleep(Duration::from_millis(500));
}

/// Batches of busy links wait, so much is joined.
fn joined_often() -> Options {
    Options::with(&["--flush-rule=server-cpu"])
}

/// During `trouble`, many clients set and get in fused batches. Then the server's values are
/// compared. Returns the knowledge of writers and of readers.
fn joined_requests_stay_true(
    target: &mut Target,
    trouble: impl FnOnce(&mut Target, &mut Random),
) -> [Vec<OwnValue>; 2] {
    const CLIENTS: usize = 24;
    for key in 0..COMMON {
        let set = format!("SET common:{key} common:{key}");
        assert_eq!(target.direct_client().call(&set), Reply::ok());
    }
    let ended = AtomicBool::new(false);
    let (seed, address) = (seed(), target.address());
    let all = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (ended, random) = (&ended, Random::new(seed.wrapping_add(number as u64)));
                scope.spawn(move || set_and_get(address, number, number % 2 == 0, ended, random))
            })
            .collect();
        let mut random = Random::new(seed.wrapping_sub(1));
        let trouble = || trouble(target, &mut random);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(trouble));
        ended.store(true, Ordering::SeqCst);
        let all: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
        all
    });
    let mut direct = target.direct_client();
    let mut known = [Vec::new(), Vec::new()];
    for (number, own) in all.into_iter().enumerate() {
        let own = own.unwrap_or_else(|_| panic!("client {number}, RESPOOL_TEST_SEED={seed}"));
        let held = direct.call(&format!("GET own:{number}"));
        assert!(own.may_hold(&held), "own:{number} is {held:?}, not {own:?}");
        known[number % 2].push(own);
    }
    let mut client = target.client();
    for joined in ["fused_gets", "fused_sets", "reads_collapsed"] {
        assert!(counter(&mut client, joined) > 100, "{joined}");
    }
    known
}

/// When the server is killed, clients of fused GETs and SETs learn the true fate of each request.
#[test]
fn killed_server_reports_fused_requests_truly() {
    before_every_server(&durable(joined_often()), |target| {
        let [writers, _] = joined_requests_stay_true(target, |target, _| {
            for is_stopped in [false, true] {
                thread::sleep(Duration::from_millis(300));
                if is_stopped {
                    // No server will execute requests that are sent now.
                    target.server.stop();
                    thread::sleep(Duration::from_millis(50));
                }
                target.server.kill9();
                thread::sleep(Duration::from_millis(100));
                target.server.restart().expect("the server starts again");
            }
            thread::sleep(Duration::from_millis(600));
        });
        assert!(writers.iter().any(|own| own.unknown > 0), "{writers:?}");
    });
}

/// The action of the caller of [`restart_costs_no_error`] on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerOrder {
    Kill,
    Restart,
}

/// The server of these keys is away for half a second. Requests wait for it; a client in a blocking
/// command sees a closed connection, as it would without respool.
pub(crate) fn restart_costs_no_error(
    address: SocketAddr,
    [count, list]: [&str; 2],
    mut order: impl FnMut(ServerOrder),
) {
    let mut clients: Vec<RespClient> = (0..6).map(|_| RespClient::connect(address)).collect();
    let mut waiting = RespClient::connect(address);
    for client in &mut clients {
        assert_eq!(client.call(&format!("SET {count} 0")), Reply::ok());
    }
    waiting.send(&words(&format!("BLPOP {list} 0")));
    thread::sleep(Duration::from_millis(1_200));
    order(ServerOrder::Kill);
    assert!(waiting.try_reply().is_err(), "the blocked client is closed");
    // A dying process closes its sockets one by one, and a request on the last one may have been
    // executed.
    thread::sleep(Duration::from_millis(100));
    for client in &mut clients {
        client.send(&words(&format!("INCR {count}")));
    }
    let mut waiting = RespClient::connect(address);
    waiting.send(&words(&format!("BLPOP {list} 0")));
    thread::sleep(Duration::from_millis(400));
    order(ServerOrder::Restart);
    let mut counts: Vec<Reply> = clients.iter_mut().map(RespClient::reply).collect();
    counts.sort_by_key(|count| format!("{count:?}"));
    let expected: Vec<Reply> = (1..=6).map(Reply::Integer).collect();
    assert_eq!(counts, expected);
    let pushed = clients[0].call(&format!("RPUSH {list} x"));
    assert_eq!(pushed, Reply::Integer(1));
    let element = [list, "x"].map(Reply::bulk);
    assert_eq!(waiting.reply(), Reply::Array(element.to_vec()));
}

#[test]
fn restart_of_a_server_costs_time_and_no_error() {
    before_every_server(&Options::with(&["--threads=2"]), |target| {
        restart_costs_no_error(target.address(), ["count", "list"], |order| match order {
            ServerOrder::Kill => target.server.kill9(),
            ServerOrder::Restart => target.server.restart().expect("the server starts again"),
        });
    });
}

/// A library that writes its whole pipeline before it reads gets all of its replies.
#[test]
fn pipeline_that_is_written_before_it_is_read_is_answered() {
    before_every_server(&joined_often(), |target| {
        let mut client = target.client();
        let size = 6 << 20;
        let value = "v".repeat(size);
        assert_eq!(client.call_args(&["SET", "page:1", &value]), Reply::ok());
        let pipeline = [
            request(&["GET", "page:1"]),
            request(&["SET", "page:2", &value]),
        ];
        std::io::Write::write_all(&mut client.stream(), &pipeline.concat())
            .expect("respool reads the pipeline");
        assert_eq!(client.reply(), Reply::bulk(&value));
        assert_eq!(client.reply(), Reply::ok());
    });
}

/// A client that only reads does not notice a reset, behind any byte: in the reply
/// to an MSET, in the head of an MGET's, or in a value.
#[test]
fn reset_connection_is_hidden_from_fused_reads() {
    let target = Target::direct(&any_server(), &joined_often());
    let fault_proxy = FaultProxy::start(target.server.address(), FaultMode::Pass);
    let mut target = target.behind(fault_proxy.address(), &joined_often());
    let [writers, readers] = joined_requests_stay_true(&mut target, |target, random| {
        let mut client = target.client();
        for losses in 1..=6 {
            // A connection that is younger than a second when it is lost is not replaced at once.
            thread::sleep(Duration::from_millis(1_200));
            fault_proxy.set(FaultMode::ResetAfter(1 + random.below(2_000)));
            wait_until("the link is lost and connected again", SOON, || {
                let [downs, ups] =
                    ["links_lost", "links_connected"].map(|name| counter(&mut client, name));
                downs == losses && ups > losses
            });
        }
        assert!(counter(&mut client, "reads_sent_again") > 0);
    });
    assert!(writers.iter().any(|own| own.unknown > 0), "{writers:?}");
    let fails = |own: &OwnValue| own.unknown + own.unsent > 0;
    assert!(!readers.iter().any(fails), "{readers:?}");
}

/// A reply to fused requests that comes after their deadline reaches no client.
#[test]
fn late_reply_to_fused_requests_is_dropped() {
    before_every_server(
        &Options::with(&["--flush-rule=server-cpu", "--request-timeout-ms=200"]),
        |target| {
            let all = joined_requests_stay_true(target, |target, _| {
                stands_still_twice(target);
                let mut client = target.client();
                assert!(counter(&mut client, "late_replies") > 0);
                assert_eq!(counter(&mut client, "links_lost"), 0, "the link lives on");
            });
            let mut all = all.iter().flatten();
            assert!(all.all(|own| own.unknown > 0), "the deadline passed");
        },
    );
}

/// A wrong reply to an MGET. Its values begin as the right ones would.
fn answers_wrongly(keys: &[String], how: &str) -> String {
    let mut values: Vec<String> = keys.iter().map(|key| bulk(key)).collect();
    let count = match how {
        "too few" => keys.len() - 1,
        "too many" => keys.len() + 1,
        _ => keys.len(),
    };
    match how {
        "no reply inside" => values[1] = "\x01\r\n".to_owned(),
        "one unasked behind" => values.push(bulk("unasked")),
        _ => {}
    }
    format!("*{count}\r\n{}", values.concat())
}

/// A wrong reply to fused requests ends the link, and no client gets the value of another one.
#[test]
fn wrong_reply_to_fused_requests_ends_the_link() {
    for how in [
        "too few",
        "too many",
        "no reply inside",
        "one unasked behind",
    ] {
        let fakes = Fakes::start(1, move |asked| match asked.name() {
            // Requests of this time gather in the next batch.
            "TTL" => {
                thread::sleep(Duration::from_millis(800));
                Some(":1\r\n".to_owned())
            }
            "MGET" => Some(answers_wrongly(&asked.words[1..], how)),
            _ => None,
        });
        let backend = format!("--backend=redis://{}", fakes.addresses()[0]);
        let held = ["--flush-rule=server-cpu", "--max-delay-us=1s"];
        let args = [backend.as_str(), "--threads=1", held[0], held[1]];
        let proxy = Proxy::start(&respool(), &args).unwrap_or_else(|error| panic!("{error}"));
        let connect = || RespClient::connect(proxy.address());
        // Requests of a connection younger than a second are not retried.
        thread::sleep(Duration::from_millis(1_100));
        connect().exchange(words("GET tried").repeat(2), 2);
        let mut busy = connect();
        busy.send(&words("TTL busy"));
        thread::sleep(Duration::from_millis(50));
        let mut clients: Vec<RespClient> = (0..5).map(|_| connect()).collect();
        for (key, client) in clients.iter_mut().enumerate() {
            client.send(&words(&format!("GET key:{key}")));
        }
        assert_eq!(busy.reply(), Reply::Integer(1));
        for (key, client) in clients.iter_mut().enumerate() {
            let own = Reply::bulk(format!("key:{key}"));
            assert_eq!(client.reply(), own, "{how}");
        }
        assert_eq!(fakes.count("MGET"), 1, "{how}");
        assert_eq!(counter(&mut connect(), "links_lost"), 1, "{how}");
        for client in &mut clients {
            assert_eq!(client.call("GET next"), Reply::bulk("next"), "{how}");
        }
    }
}

/// After a restart of the server, every session of every worker goes on without a new connection.
#[test]
fn restarted_server_serves_every_session_again() {
    before_every_server(&Options::with(&["--threads=3"]), |target| {
        // Enough that each worker has some, in both protocols and more than one database.
        let mut clients: Vec<RespClient> = (0..30).map(|_| target.client()).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            if number % 2 == 0 {
                client.call("HELLO 3");
            }
            assert_eq!(client.call(&format!("SELECT {}", number % 3)), Reply::ok());
            assert_eq!(
                client.call(&format!("SET key:{number} before")),
                Reply::ok()
            );
        }
        for _ in 0..2 {
            target.server.kill9();
            for client in &mut clients {
                let reply = client.call("GET key");
                assert_ne!(fate(&reply), RequestFate::Replied, "{reply:?}");
            }
            target.server.restart().expect("the server starts again");
            let deadline = Instant::now() + Duration::from_secs(10);
            for (number, client) in clients.iter_mut().enumerate() {
                let set = format!("SET key:{number} after");
                while fate(&client.call(&set)) != RequestFate::Replied {
                    assert!(Instant::now() < deadline, "client {number} does not heal");
                    thread::sleep(Duration::from_millis(20));
                }
                assert_eq!(
                    client.call(&format!("GET key:{number}")),
                    Reply::bulk("after")
                );
            }
            // Each is still in its database: the new link was told.
            for db in 0..3 {
                let mut direct = target.direct_client();
                direct.call(&format!("SELECT {db}"));
                assert_eq!(direct.call("DBSIZE"), Reply::Integer(10), "database {db}");
            }
        }
    });
}

/// respool may start before its server, and works once that is there.
#[test]
fn respool_may_start_before_its_server() {
    let binary = any_server();
    let options = Options::default();
    let target = Target::direct(&binary, &options);
    target.server.kill9();
    let address = target.server.address();
    let mut target = target.behind(address, &options);
    let mut client = target.client();
    assert_eq!(fate(&client.call("GET key")), RequestFate::NotExecuted);
    assert_eq!(
        fate(&client.call("PING")),
        RequestFate::NotExecuted,
        "no server is alive"
    );
    assert_eq!(
        client.call("CLIENT GETNAME"),
        Reply::Null,
        "respool still answers its own commands"
    );
    target.server.restart().expect("the server starts");
    wait_until("requests are answered", Duration::from_secs(10), || {
        fate(&client.call("SET key value")) == RequestFate::Replied
    });
    assert_eq!(client.call("GET key"), Reply::bulk("value"));
}

/// A reply that comes after the deadline reaches no client.
#[test]
fn late_reply_is_dropped() {
    before_every_server(
        &Options::with(&[
            "--request-timeout-ms=200",
            "--threads=2",
            // The check of logins and the link for slow scripts would each be a connection more.
            "--login-check-ms=0",
            "--links-max=3",
            "--streaming-links-max=1",
        ]),
        |target| {
            let target = &*target;
            let connections = |target: &Target| {
                let Reply::Bulk(text) = target.direct_client().call("INFO stats") else {
                    panic!("a text")
                };
                let text = String::from_utf8_lossy(&text).into_owned();
                let line = text
                    .lines()
                    .find_map(|line| line.strip_prefix("total_connections_received:"));
                line.and_then(|number| number.trim().parse::<i64>().ok())
                    .expect("the server counts")
            };
            let seed = seed();
            let ended = AtomicBool::new(false);
            let timed_out = thread::scope(|scope| {
                let clients: Vec<_> = (0..40)
                    .map(|number| {
                        let (target, ended) = (target, &ended);
                        scope.spawn(move || {
                            let mut random = Random::new(seed.wrapping_add(number));
                            let mut client = target.client();
                            let (mut step, mut timed_out) = (0, 0);
                            while !ended.load(Ordering::SeqCst) {
                                let depth = 1 + random.below(8);
                                let mut bytes = Vec::new();
                                let first = step;
                                for _ in 0..depth {
                                    step += 1;
                                    let token = format!("{number}/{step}");
                                    bytes.extend(request(&["EVAL", "return ARGV[1]", "0", &token]));
                                }
                                client.send(&bytes);
                                for at in first + 1..=step {
                                    let reply = client.reply();
                                    match fate(&reply) {
                                        RequestFate::Replied => {
                                            assert_eq!(reply, Reply::bulk(format!("{number}/{at}")))
                                        }
                                        _ => timed_out += 1,
                                    }
                                }
                            }
                            timed_out
                        })
                    })
                    .collect();
                // Each worker has its link by then.
                thread::sleep(Duration::from_millis(300));
                let before = connections(target);
                let direct = 1;
                stands_still_twice(target);
                let after = connections(target);
                ended.store(true, Ordering::SeqCst);
                let timed_out: i64 = clients
                    .into_iter()
                    .map(|c| c.join().expect("only its own replies"))
                    .sum();
                // The links live on: one slow server is no reason to fail the requests of others.
                // During each of the two stops, each of the two workers may try once whether the
                // server answers on another connection.
                assert_eq!(counter(&mut target.client(), "links_lost"), 0);
                assert!(
                    after <= before + direct + 2 * 2,
                    "respool connected again: {before} and then {after}, RESPOOL_TEST_SEED={seed}"
                );
                timed_out
            });
            assert!(timed_out > 40, "the deadline passed for many: {timed_out}");
        },
    );
}

/// A write that missed its deadline runs once at most.
#[test]
fn write_past_its_deadline_runs_once_at_most() {
    before_every_server(&Options::with(&["--request-timeout-ms=150"]), |target| {
        counters_stay_true(target, 10, |target| {
            for _ in 0..3 {
                thread::sleep(Duration::from_millis(200));
                target.server.stop();
                thread::sleep(Duration::from_millis(500));
                target.server.cont();
            }
            thread::sleep(Duration::from_millis(300));
        });
    });
}

/// A request without a reply fails at its deadline, and the error says that it was sent.
#[test]
fn unanswered_request_is_unknown_at_its_deadline() {
    before_every_server(&Options::with(&["--request-timeout-ms=1500"]), |target| {
        let mut client = target.client();
        assert_eq!(client.call("SET key 1"), Reply::ok());
        target.server.stop();
        let reply = client.call("INCR key");
        let text = reply.error().expect("no server answers");
        assert_eq!(fate(&reply), RequestFate::Unknown, "{text}");
        assert!(text.contains("1500 ms"), "{text}");
        // The request keeps its place in the order: the next reply is the next request's. The
        // question whether the user has the right takes a second.
        assert_eq!(client.call("CLIENT SETNAME still-here"), Reply::ok());
        assert_eq!(client.call("CLIENT GETNAME"), Reply::bulk("still-here"));
        target.server.cont();
        wait_until("the link works again", Duration::from_secs(5), || {
            fate(&client.call("EXISTS key")) == RequestFate::Replied
        });
        assert_eq!(
            client.call("GET key"),
            Reply::bulk("2"),
            "executed once, its late reply dropped"
        );
    });
}

/// A reset in the middle of a reply gives no client half a reply.
#[test]
fn reset_in_mid_reply_gives_no_half_reply() {
    let binary = any_server();
    let options = Options::default();
    let target = Target::direct(&binary, &options);
    let fault_proxy = FaultProxy::start(target.server.address(), FaultMode::Pass);
    let target = target.behind(fault_proxy.address(), &options);
    let mut client = target.client();
    let (mut acknowledged, mut unknown) = (0, 0);
    let filler = "f".repeat(100);
    assert_eq!(client.call(&format!("SET filler {filler}")), Reply::ok());
    for after in (1..700).step_by(23) {
        fault_proxy.set(FaultMode::ResetAfter(after));
        let mut bytes = Vec::new();
        for _ in 0..10 {
            bytes.extend(words("INCR count"));
            bytes.extend(words("GET filler"));
        }
        client.send(&bytes);
        let mut lost = false;
        for at in 0..20 {
            let reply = client.reply();
            match fate(&reply) {
                RequestFate::Replied => match reply {
                    Reply::Integer(value) => {
                        acknowledged += 1;
                        assert!(
                            value >= acknowledged && value <= acknowledged + unknown,
                            "after {after}: {value}"
                        );
                    }
                    other => assert_eq!(
                        other,
                        Reply::bulk(&filler),
                        "reply {at} after {after} bytes"
                    ),
                },
                RequestFate::Unknown => {
                    lost = true;
                    unknown += i64::from(at % 2 == 0);
                }
                RequestFate::NotExecuted => lost = true,
            }
        }
        assert!(lost, "the reset after {after} bytes was met");
        wait_until("the session works again", Duration::from_secs(10), || {
            fate(&client.call("GET filler")) == RequestFate::Replied
        });
    }
    let Reply::Bulk(held) = target.direct_client().call("GET count") else {
        panic!("a counter")
    };
    let held: i64 = String::from_utf8_lossy(&held)
        .parse()
        .expect("a counter is a number");
    assert!(
        (acknowledged..=acknowledged + unknown).contains(&held),
        "{held}, {acknowledged} + {unknown}"
    );
}

/// Bytes that are no reply end the link and reach no client.
#[test]
fn invalid_reply_bytes_end_the_link() {
    let binary = any_server();
    // Between two replies: inside a reply to fused requests, garbage may be a part of a value.
    let options = Options::with(&["--fuse=false", "--collapse=false"]);
    let target = Target::direct(&binary, &options);
    let fault_proxy = FaultProxy::start(target.server.address(), FaultMode::Pass);
    let target = target.behind(fault_proxy.address(), &options);
    let mut client = target.client();
    let filler = "f".repeat(100);
    assert_eq!(client.call(&format!("SET filler {filler}")), Reply::ok());
    let reply_len = format!("$100\r\n{filler}\r\n").len() as u64;
    for replies in [1, 2, 7, 19, 20] {
        // Between two replies: inside a reply, wrong bytes cannot be told from right ones.
        let before = fault_proxy.accepted();
        fault_proxy.set(FaultMode::GarbageAfter(replies * reply_len));
        client.send(&words("GET filler").repeat(20));
        for at in 0..20 {
            let reply = client.reply();
            match fate(&reply) {
                RequestFate::Replied => assert_eq!(reply, Reply::bulk(&filler), "reply {at}"),
                _ => assert!(
                    at >= replies,
                    "reply {at} came before the garbage: {reply:?}"
                ),
            }
        }
        wait_until("the link is replaced", Duration::from_secs(10), || {
            fate(&client.call("GET filler")) == RequestFate::Replied
                && fault_proxy.accepted() > before
        });
    }
}

/// An unexpected reply ends the link and reaches no client.
#[test]
fn unexpected_reply_ends_the_link() {
    let binary = any_server();
    let options = Options::default();
    let target = Target::direct(&binary, &options);
    let fault_proxy = FaultProxy::start(target.server.address(), FaultMode::Pass);
    let target = target.behind(fault_proxy.address(), &options);
    let mut client = target.client();
    assert_eq!(client.call("SET key value"), Reply::ok());
    for surprise in [
        "+SURPRISE\r\n",
        "$8\r\nSURPRISE\r\n",
        ":1\r\n",
        "-ERR SURPRISE\r\n",
        "*0\r\n",
        "$8\r\nSUR",
    ] {
        let before = fault_proxy.accepted();
        fault_proxy.inject(surprise.as_bytes());
        thread::sleep(Duration::from_millis(50));
        wait_until("requests are answered", Duration::from_secs(10), || {
            let reply = client.call("GET key");
            assert!(
                fate(&reply) != RequestFate::Replied || reply == Reply::bulk("value"),
                "{reply:?}"
            );
            fate(&reply) == RequestFate::Replied
        });
        assert!(
            fault_proxy.accepted() > before,
            "the link that brought {surprise:?} is still in use"
        );
    }
}

/// A server that accepts and is of no use, then a good one: requests fail as not sent, then work.
fn heals_from(mode: FaultMode) {
    let binary = any_server();
    let options = Options::with(&["--connect-timeout-ms=300", "--request-timeout-ms=2000"]);
    let target = Target::direct(&binary, &options);
    let fault_proxy = FaultProxy::start(target.server.address(), mode);
    let target = target.behind(fault_proxy.address(), &options);
    let mut clients: Vec<RespClient> = (0..5).map(|_| target.client()).collect();
    for client in &mut clients {
        client.send(&words("INCR count").repeat(3));
    }
    for client in &mut clients {
        for reply in client.replies(3) {
            assert_eq!(fate(&reply), RequestFate::NotExecuted, "{reply:?}");
        }
    }
    assert_eq!(
        target.direct_client().call("EXISTS count"),
        Reply::Integer(0)
    );
    fault_proxy.set(FaultMode::Pass);
    fault_proxy.reset_all();
    for client in &mut clients {
        wait_until("requests are answered", Duration::from_secs(10), || {
            fate(&client.call("GET key")) == RequestFate::Replied
        });
    }
}

/// While a server closes accepted connections, requests fail as not sent. Then it heals.
#[test]
fn server_that_closes_connections_means_not_sent() {
    heals_from(FaultMode::CloseOnAccept);
}

/// While a server does not answer the handshake, requests fail as not sent, until it heals.
#[test]
fn silent_handshake_means_not_sent() {
    heals_from(FaultMode::Silent);
}

/// A field of INFO about the only server.
fn of_server(client: &mut RespClient, name: &str) -> String {
    let Reply::Bulk(text) = client.call("INFO respool") else {
        panic!("INFO is a text");
    };
    let text = String::from_utf8(text).expect("INFO is ASCII");
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("respool_server_0:"));
    let mut fields = line.unwrap_or_default().split(',');
    let value = fields.find_map(|field| field.strip_prefix(&format!("{name}=")));
    value
        .unwrap_or_else(|| panic!("{name} in {text}"))
        .to_owned()
}

/// One connection at a time tries a server that is away, for requests of any kind.
#[test]
fn one_connection_at_a_time_probes_a_dead_server() {
    let target = Target::direct(&any_server(), &Options::default());
    let fault_proxy = FaultProxy::start(target.server.address(), FaultMode::Pass);
    // The check would be a connection more.
    let options = Options::with(&[
        "--login-check-ms=0",
        "--outage-hold-ms=0",
        "--reconnect-max-ms=2s",
    ]);
    let target = target.behind(fault_proxy.address(), &options);
    // The clients need several links: four databases, and RESP3 for half of the clients.
    let mut clients: Vec<RespClient> = (0..8).map(|_| target.client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.call(&format!("SELECT {}", number % 4)), Reply::ok());
        if number >= 4 {
            let hello = client.call("HELLO 3");
            assert!(hello.error().is_none(), "{hello:?}");
        }
        assert_eq!(client.call("SET key value"), Reply::ok());
    }
    assert_eq!(fault_proxy.accepted(), 8);
    // Long enough that these links are good ones.
    thread::sleep(Duration::from_millis(1_100));
    fault_proxy.set(FaultMode::CloseOnAccept);
    fault_proxy.reset_all();
    let (begun, watch) = (Instant::now(), Watch::start());
    let mut refused = 0;
    while begun.elapsed() < Duration::from_secs(4) {
        let mut waiting = target.client();
        waiting.send(&words("BLPOP list 0"));
        waiting.expect_closed();
        let mut newcomer = target.client();
        for asked in ["SELECT 9", "GET k"] {
            let reply = newcomer.call(asked);
            refused += usize::from(fate(&reply) == RequestFate::NotExecuted);
        }
        newcomer.send(&words("HELLO 3"));
        newcomer.expect_closed();
        for client in &mut clients {
            let asked = watch.elapsed();
            let reply = client.call("SET key value");
            refused += usize::from(fate(&reply) == RequestFate::NotExecuted);
            let took = watch.elapsed().saturating_sub(asked);
            assert!(took < Duration::from_secs(1), "{took:?}: {reply:?}");
        }
        thread::sleep(Duration::from_millis(20));
    }
    // Each link at once, and then one of them after 20, 40, ... 2,000 ms or half of it.
    let tried = fault_proxy.accepted() - 8;
    assert!(refused > 100, "{refused}");
    // The last turn may have been a long one.
    let behind = begun.elapsed().as_secs().saturating_sub(4);
    assert!((8 + 4..8 + 16 + behind).contains(&tried), "{tried}");
    fault_proxy.set(FaultMode::Pass);
    for client in &mut clients {
        wait_until("requests are answered", Duration::from_secs(10), || {
            fate(&client.call("GET key")) == RequestFate::Replied
        });
    }
    let mut client = target.client();
    let mut number = |name| {
        of_server(&mut client, name)
            .parse::<u64>()
            .expect("a number")
    };
    assert_eq!(number("failures"), 0);
    assert_eq!(number("failures_total"), fault_proxy.accepted() - 8 - 8);
    assert_eq!(number("lost_total"), 8);
    assert_eq!(of_server(&mut client, "state"), "up");
    let log = target.proxy().log();
    let said = log
        .lines()
        .filter(|line| line.contains("link down"))
        .count();
    assert!((1..=4).contains(&said), "once for each reason:\n{log}");
}

/// Where the server refuses respool's password, requests fail as not sent.
#[test]
fn refused_password_means_not_sent() {
    let binary = any_server();
    let locked = Target::direct(&binary, &Options::default().password("secret"));
    let address = locked.server.address();
    let wrong = Options::with(&["--backend-password", "guessed"]);
    let target = locked.behind(address, &wrong);
    let mut client = target.client();
    let reply = client.call("SET key value");
    assert_eq!(fate(&reply), RequestFate::NotExecuted, "{reply:?}");
    let text = reply.error().expect("an error");
    assert!(!text.contains("guessed"), "{text}");
    assert_eq!(fate(&client.call("PING")), RequestFate::NotExecuted);
}

/// Without a password of respool's own, each client gives one to the server.
#[test]
fn clients_give_the_password_that_respool_lacks() {
    let binary = any_server();
    let locked = Target::direct(&binary, &Options::default().password("secret"));
    let address = locked.server.address();
    let target = locked.behind(address, &Options::default());
    let mut client = target.client();
    let noauth = Reply::Error("NOAUTH Authentication required.".into());
    assert_eq!(client.call("SET key value"), noauth);
    let wrong = client.call("AUTH guessed");
    assert!(
        wrong
            .error()
            .is_some_and(|text| text.starts_with("WRONGPASS")),
        "{wrong:?}"
    );
    assert_eq!(client.call("GET key"), noauth);
    assert_eq!(client.call("AUTH secret"), Reply::ok());
    assert_eq!(client.call("SET key value"), Reply::ok());
    assert_eq!(
        target.client().call("GET key"),
        noauth,
        "each session logs in by itself"
    );
    let mut other = target.client();
    assert!(other.call("HELLO 3 AUTH default secret").error().is_none());
    assert_eq!(other.call("GET key"), Reply::bulk("value"));
    // A password that was right is not believed for ever.
    assert_eq!(client.call("CONFIG SET requirepass changed"), Reply::ok());
    let old = other.call("AUTH secret");
    assert!(
        old.error()
            .is_some_and(|text| text.starts_with("WRONGPASS")),
        "{old:?}"
    );
    assert_eq!(other.call("AUTH changed"), Reply::ok());
    assert_eq!(other.call("GET key"), Reply::bulk("value"));
}
