//! Behaviour at each limit: a client at its limit harms no other client.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use respool_testkit::client::{Reply, RespClient, counter, request, words};
use respool_testkit::time::wait_until;

use crate::target::{Options, Target, before_every_server, on_every_target, proxied};

const MIB: u64 = 1 << 20;

/// A client that has shut down its sending side gets every reply.
#[test]
fn half_closed_client_gets_every_reply() {
    on_every_target(&Options::default(), |target| {
        for depth in [1, 100, 3_000] {
            let mut client = target.client();
            let mut bytes = Vec::new();
            for at in 0..depth {
                bytes.extend(words(&format!("SET half:{at} {at}")));
                bytes.extend(words(&format!("GET half:{at}")));
            }
            client.send(&bytes);
            client.close_sending();
            // Redis itself may close before it has answered; respool answers the requests that have
            // arrived.
            if target.proxy.is_none() {
                continue;
            }
            for at in 0..depth {
                assert_eq!(client.reply(), Reply::ok(), "request {at} of {depth}");
                assert_eq!(client.reply(), Reply::bulk(at.to_string()));
            }
            client.expect_closed();
        }
    });
}

/// With each bound at its smallest value, every request is answered.
#[test]
fn smallest_bounds_still_answer_every_request() {
    let least = [
        "--session-pipeline-max=1",
        "--request-held-bytes-max=64KiB",
        "--streaming-links-max=1",
        "--link-unanswered-requests-max=1",
        "--link-unanswered-bytes-max=256KiB",
    ];
    for bound in least
        .iter()
        .map(|bound| vec![*bound])
        .chain([least.to_vec()])
    {
        let target = proxied(&Options::with(&bound));
        let mut client = target.client();
        for size in [10, 60_000, 70_000, 300_000] {
            let value = vec![b'v'; size];
            let mut bytes = Vec::new();
            for _ in 0..3 {
                bytes.extend(request(&[b"SET".as_slice(), b"least", &value]));
                bytes.extend(words("GET least"));
                bytes.extend(words("STRLEN least"));
            }
            for replies in client.exchange(bytes, 9).chunks(3) {
                assert_eq!(replies[0], Reply::ok(), "{bound:?}, {size} bytes");
                assert_eq!(replies[1], Reply::bulk(&value), "{bound:?}");
                assert_eq!(replies[2], Reply::Integer(size as i64), "{bound:?}");
            }
        }
    }
}

#[test]
fn clients_that_vanish_at_any_moment_leave_nothing_behind() {
    let target = proxied(&Options::default());
    let mut steady = target.client();
    steady.call("SET steady value");
    let fds = |target: &Target| target.proxy().fds();
    let before = fds(&target);
    for round in 0..200_usize {
        let mut client = target.client();
        let mut bytes = words("SET vanish value").repeat(round % 7);
        bytes.extend(request(&[
            b"SET",
            b"vanish".as_slice(),
            &vec![b'v'; round * 211],
        ]));
        bytes.extend(words("GET vanish").repeat(round % 5));
        client.send(&bytes[..1 + (round * 7919) % bytes.len()]);
        match round % 3 {
            0 => client.reset(),
            1 => drop(client),
            _ => client.close_sending(),
        }
        assert_eq!(steady.call("GET steady"), Reply::bulk("value"));
    }
    wait_until(
        "descriptors of closed sessions are free",
        Duration::from_secs(5),
        || fds(&target) <= before + 2,
    );
}

/// A client above the limit gets Redis's own error text.
#[test]
fn client_above_the_limit_gets_redis_error() {
    let options = Options::with(&["--sessions-max=10", "--threads=3"]);
    let target = proxied(&options);
    let mut clients: Vec<RespClient> = (0..10).map(|_| target.client()).collect();
    for client in &mut clients {
        assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
    }
    for _ in 0..5 {
        let mut refused = target.client();
        assert_eq!(
            refused.reply(),
            Reply::Error("ERR max number of clients reached".into())
        );
        refused.expect_closed();
    }
    let soon = Duration::from_secs(5);
    wait_until("INFO counts the refused clients", soon, || {
        counter(&mut clients[0], "clients_refused_full") == 5
    });
    for client in &mut clients {
        assert_eq!(
            client.call("SET key value"),
            Reply::ok(),
            "connected clients are not disturbed"
        );
    }
    clients.truncate(5);
    wait_until(
        "closed sessions free their places",
        Duration::from_secs(5),
        || {
            let mut client = target.client();
            client.try_send(&words("PING")).is_ok()
                && client
                    .try_reply()
                    .is_ok_and(|reply| reply == Reply::Simple("PONG".into()))
        },
    );
}

#[test]
fn headers_that_announce_gigabytes_take_no_memory() {
    let target = proxied(&Options::default());
    let mut steady = target.client();
    steady.call("SET steady value");
    let before = target.proxy().rss();
    let headers: [&[u8]; 5] = [
        b"*1048576\r\n",
        b"*1048576\r\n$536870912\r\n",
        b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$536870912\r\n",
        b"*2\r\n$536870912\r\n",
        b"*1048576\r\n$4\r\nMGET\r\n$536870912\r\n",
    ];
    let mut clients = Vec::new();
    for number in 0..500 {
        let mut client = target.client();
        client.send(headers[number % headers.len()]);
        clients.push(client);
    }
    thread::sleep(Duration::from_millis(200));
    assert_eq!(steady.call("GET steady"), Reply::bulk("value"));
    let grown = target.proxy().rss().saturating_sub(before);
    assert!(grown < 32 * MIB, "500 headers took {} MiB", grown / MIB);
    drop(clients);
    assert_eq!(steady.call("GET steady"), Reply::bulk("value"));
}

/// A client that sends without end and reads nothing is bounded. It gets its replies once it reads.
#[test]
fn client_that_does_not_read_is_bounded() {
    let options = [
        "--session-stall-ms=60000",
        "--session-input-bytes-max=256KiB",
    ];
    let target = proxied(&Options::with(&options));
    let mut steady = target.client();
    steady.call_args(&["SET", "value", &"v".repeat(10_000)]);
    steady.call("SET steady value");
    let mut greedy = target.client();
    let one = words("GET value");
    greedy
        .stream()
        .set_write_timeout(Some(Duration::from_millis(500)))
        .expect("a timeout above zero");
    // Until nothing more fits on the way: then respool does not read any more.
    let mut sent = 0_usize;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(20) {
        match std::io::Write::write(&mut greedy.stream(), &one.repeat(100)[sent % one.len()..]) {
            Ok(count) => sent += count,
            Err(_) => break,
        }
    }
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "respool takes requests without end"
    );
    let peak = target.proxy().rss_peak();
    assert!(peak < 128 * MIB, "respool held {} MiB", peak / MIB);
    for _ in 0..100 {
        assert_eq!(steady.call("GET steady"), Reply::bulk("value"));
    }
    // Every request is answered once its reply is read; the cut request gets its rest.
    let rest = (one.len() - sent % one.len()) % one.len();
    greedy
        .stream()
        .set_write_timeout(None)
        .expect("no timeout is fine");
    let writer = greedy.send_aside(one[one.len() - rest..].to_vec());
    for number in 0..sent.div_ceil(one.len()) {
        let reply = greedy.reply();
        assert!(
            matches!(&reply, Reply::Bulk(value) if value.len() == 10_000),
            "reply {number}: {reply:?}"
        );
    }
    writer.join().expect("no panic").expect("the rest is sent");
    assert_eq!(greedy.call("PING"), Reply::Simple("PONG".into()));
}

/// A client that reads nothing for too long is closed. Its link goes on.
#[test]
fn stalled_reader_is_closed_and_its_link_stays() {
    let options = [
        "--session-stall-ms=500",
        "--head-of-line-stall-ms=300",
        "--session-output-hard-bytes=2MiB",
    ];
    let target = proxied(&Options::with(&options));
    let mut steady = target.client();
    steady.call_args(&[b"SET", b"value".as_slice(), &vec![b'v'; 64 << 20]]);
    steady.call("SET steady value");
    let mut dead = target.client();
    dead.send(&words("GET value"));
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(3) {
        assert_eq!(steady.call("GET steady"), Reply::bulk("value"));
        thread::sleep(Duration::from_millis(5));
    }
    dead.set_read_timeout(Duration::from_secs(5));
    let mut received = 0;
    loop {
        match dead.some_bytes() {
            Ok(bytes) if bytes.is_empty() => break,
            Ok(bytes) => received += bytes.len(),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("the session that reads nothing is not closed: {error}"),
        }
    }
    assert!(received < 64 << 20, "closed before the reply was whole");
    assert_eq!(steady.call("GET steady"), Reply::bulk("value"));
}

/// Two hundred clients that read nothing stay within one bound together.
#[test]
fn many_stalled_readers_are_bounded_together() {
    let options = [
        "--worker-memory-bytes-max=64MiB",
        "--session-stall-ms=60000",
    ];
    let target = proxied(&Options::with(&options));
    let mut steady = target.client();
    steady.call_args(&[b"SET", b"value".as_slice(), &vec![b'v'; 100_000]]);
    steady.call("SET steady value");
    // Twenty times the worker's bound. The kernel takes some of it. A receive buffer must hold one
    // segment of loopback, 64 KiB: below that the kernel backs off for longer than the client
    // waits.
    let mut silent: Vec<RespClient> = (0..200).map(|_| target.client()).collect();
    for client in &mut silent {
        rustix::net::sockopt::set_socket_recv_buffer_size(client.stream(), 256 << 10)
            .expect("a receive buffer can be small");
        client.send(&words("GET value").repeat(64));
    }
    // Replies come until the bound is met, and then for a while. Where the machine is busy, they
    // take longer to come.
    let started = Instant::now();
    let mut counted = 0;
    while started.elapsed() < Duration::from_secs(3) || counted < 48 {
        assert_eq!(steady.call("GET steady"), Reply::bulk("value"));
        counted = counted.max(counter(&mut steady, "memory_bytes") / MIB);
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "the bound was not met: {counted} MiB"
        );
        thread::sleep(Duration::from_millis(5));
    }
    // A quarter above the bound, and the memory of a respool without sessions.
    let most = 64 * MIB * 5 / 4 + 8 * MIB;
    let peak = target.proxy().rss_peak();
    assert!(peak < most, "respool held {} MiB", peak / MIB);
    // Each of them is closed, or gets exactly its replies once it reads.
    let expected = [b"$100000\r\n".as_slice(), &vec![b'v'; 100_000], b"\r\n"].concat();
    let mut whole = 0;
    for client in &mut silent {
        for _ in 0..64 {
            match client.try_reply_bytes() {
                Ok(bytes) => {
                    assert!(
                        bytes == expected || bytes.starts_with(b"-"),
                        "{} bytes",
                        bytes.len()
                    );
                    whole += 1;
                }
                Err(error) => {
                    let timed_out = [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::TimedOut];
                    assert!(
                        !timed_out.contains(&error.kind()),
                        "the session is open and has no reply"
                    );
                    break;
                }
            }
        }
    }
    assert!(whole > 0, "at least one client got a reply");
}

#[test]
fn without_file_descriptors_respool_waits_and_then_goes_on() {
    let target = proxied(&Options::default());
    let proxy = target.proxy();
    let mut steady = RespClient::connect(proxy.address());
    assert_eq!(steady.call("SET steady value"), Reply::ok());
    // The limit is lowered while respool runs. At its start respool would allow fewer sessions.
    let limit = format!("--nofile={}:", proxy.fds() + 20);
    let lowered = Command::new("prlimit")
        .args(["--pid", &proxy.pid().to_string(), &limit])
        .status();
    assert!(lowered.expect("prlimit of util-linux").success());
    let crowd: Vec<RespClient> = (0..200)
        .map(|_| RespClient::connect(proxy.address()))
        .collect();
    thread::sleep(Duration::from_millis(300));
    let used = proxy.cpu();
    for _ in 0..100 {
        assert_eq!(
            steady.call("GET steady"),
            Reply::bulk("value"),
            "connected clients are served"
        );
        thread::sleep(Duration::from_millis(10));
    }
    let used = proxy.cpu().user + proxy.cpu().system - used.user - used.system;
    assert!(
        used < Duration::from_millis(600),
        "{used:?} of CPU in one second without descriptors"
    );
    drop(crowd);
    wait_until(
        "new clients are served again",
        Duration::from_secs(10),
        || {
            let mut client = RespClient::connect(proxy.address());
            client.set_read_timeout(Duration::from_millis(500));
            client.try_send(&words("GET steady")).is_ok()
                && client
                    .try_reply()
                    .is_ok_and(|reply| reply == Reply::bulk("value"))
        },
    );
    assert_eq!(steady.call("GET steady"), Reply::bulk("value"));
}

/// A client that breaks the protocol harms no other client of its link.
#[test]
fn protocol_error_harms_no_other_client() {
    // Behind each of these the server would close the connection on which it came.
    let poison: [&[u8]; 8] = [
        b"*1\r\n:1\r\n",
        b"*2\r\n$3\r\nGET\r\n$-1\r\n",
        b"*2\r\n$3\r\nGETxx$6\r\nsteadyyy",
        b"*2\rx$3\rxGET\r\n$6\r\nsteady\r\n",
        b"*2\r\n$3\r\nGET\r\n$536870913\r\n",
        b"*2147483648\r\n",
        b"GET \"steady\r\n",
        b"*1048577\r\n$4\r\nMGET\r\n",
    ];
    on_every_target(&Options::with(&["--threads=1"]), |target| {
        let mut steady = target.client();
        assert_eq!(steady.call("SET steady value"), Reply::ok());
        for poison in poison {
            let mut client = target.client();
            client.send(&words("GET steady"));
            client.send(poison);
            for _ in 0..20 {
                let reply = steady.call("GET steady");
                assert_eq!(
                    reply,
                    Reply::bulk("value"),
                    "beside {:?}",
                    poison.escape_ascii().to_string()
                );
            }
            assert_eq!(client.reply(), Reply::bulk("value"));
        }
    });
}

/// Clients that need more links than respool may have are all served. Each stays in its database.
#[test]
fn more_databases_than_links_are_served() {
    let bounds = [
        "--threads=1",
        "--links-max=20",
        "--request-timeout-ms=60000",
    ];
    let mut options = Options::with(&bounds);
    options.server = ["--databases", "200"].map(str::to_owned).into();
    before_every_server(&options, |target| {
        let mut clients: Vec<RespClient> = (0..200).map(|_| target.client()).collect();
        for (db, client) in clients.iter_mut().enumerate() {
            let greeting = words(&format!("HELLO {}", 2 + db % 2));
            let select = words(&format!("SELECT {db}"));
            let set = words(&format!("SET own {db}"));
            client.send(&[greeting, select, set].concat());
        }
        for (db, client) in clients.iter_mut().enumerate() {
            let _greeting = client.reply();
            assert_eq!(client.reply(), Reply::ok(), "SELECT {db}");
            assert_eq!(client.reply(), Reply::ok(), "SET {db}");
        }
        for (db, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.call("GET own"), Reply::bulk(db.to_string()));
        }
        // Beside these are two links at the most that check logins.
        assert!(counter(&mut clients[0], "links") <= 22);
        assert!(counter(&mut clients[0], "links_full") >= 180);
        assert!(counter(&mut clients[0], "links_closed_for_room") >= 180);
        let log = target.proxy().log();
        let told = log.lines().filter(|line| line.contains("limit reached"));
        assert_eq!(told.clone().count(), 1, "{log}");
        assert!(told.clone().all(|line| line.contains("links-max")), "{log}");
    });
}

/// A client that waits for a reply, or for a link, is not closed as idle.
#[test]
fn blocked_client_is_not_idle() {
    let idle = Duration::from_millis(300);
    let target = proxied(&Options::with(&[
        "--session-idle-ms=300",
        "--pinned-links-max=1",
    ]));
    let mut first = target.client();
    first.send(&words("BLPOP first 0"));
    let mut blocked = false;
    wait_until(
        "the first client is blocked",
        Duration::from_secs(5),
        || {
            let clients = target.direct_client().call("INFO clients");
            if let Reply::Bulk(text) = clients {
                blocked = String::from_utf8_lossy(&text).contains("blocked_clients:1");
            }
            blocked
        },
    );
    // No link is free for the second client yet.
    let mut second = target.client();
    second.send(&words("BLPOP second 0"));
    thread::sleep(4 * idle);
    let mut direct = target.direct_client();
    assert_eq!(direct.call("RPUSH first 1"), Reply::Integer(1));
    let taken = |key: &str| Reply::Array(vec![Reply::bulk(key), Reply::bulk("1")]);
    assert_eq!(first.reply(), taken("first"));
    assert_eq!(direct.call("RPUSH second 1"), Reply::Integer(1));
    assert_eq!(second.reply(), taken("second"));

    let mut paused = target.client();
    assert_eq!(target.client().call("CLIENT PAUSE 1200 ALL"), Reply::ok());
    let begun = Instant::now();
    assert_eq!(paused.call("SET key value"), Reply::ok());
    assert!(begun.elapsed() > 2 * idle, "the SET waited for the pause");
    // A client without a request and without a wait is idle.
    paused.expect_closed();
}

/// The memory that an attack adds to a respool whose workers may hold 32 MiB each. Its clients read
/// nothing.
fn memory_added(threads: u64, clients: usize, attack: impl Fn(usize) -> Vec<u8>) -> u64 {
    let threads = format!("--threads={threads}");
    let options = [
        "--worker-memory-bytes-max=32MiB",
        "--session-stall-ms=60000",
        &threads,
    ];
    let target = proxied(&Options::with(&options));
    let mut held: Vec<RespClient> = (0..clients).map(|_| target.client()).collect();
    for client in &mut held {
        rustix::net::sockopt::set_socket_recv_buffer_size(client.stream(), 64 << 10)
            .expect("a receive buffer can be small");
        client.call("PING");
    }
    let before = target.proxy().rss_peak();
    // Clients that were closed to make room cannot send the rest.
    for (number, client) in held.iter().enumerate() {
        client.send_aside(attack(number));
    }
    thread::sleep(Duration::from_secs(2));
    assert_eq!(target.client().call("ECHO steady"), Reply::bulk("steady"));
    target.proxy().rss_peak() - before
}

/// A quarter above the bound, and the overhead of the allocator and of the kernel's pages.
fn memory_max(threads: u64) -> u64 {
    threads * 32 * MIB * 5 / 4 + 4 * MIB
}

/// Subscribers that take no messages stay within the bound.
#[test]
fn deaf_subscribers_are_bounded_in_memory() {
    let added = memory_added(1, 80, |client| match client {
        79 => request(&["PUBLISH", "news", &"m".repeat(60_000)]).repeat(150),
        _ => request(&["SUBSCRIBE", "news"]),
    });
    assert!(added < memory_max(1), "{} MiB", added / MIB);
}

/// Unread client lists, put together from three workers, stay within the bound.
#[test]
fn lists_of_clients_are_bounded_in_memory() {
    for threads in [1, 3] {
        let added = memory_added(threads, 400, |_| words("CLIENT LIST").repeat(200));
        assert!(added < memory_max(threads), "{} MiB", added / MIB);
    }
}

/// Channels with names of 16 KB, each client's own, stay within the bound.
#[test]
fn long_channel_names_are_bounded_in_memory() {
    let added = memory_added(1, 60, |client| {
        let subscribe = |channel: usize| {
            let name = format!("{client}.{channel}.{}", "x".repeat(16_000));
            request(&["SUBSCRIBE", &name])
        };
        (0..100).flat_map(subscribe).collect()
    });
    assert!(added < memory_max(1), "{} MiB", added / MIB);
}

/// Transactions that are queued and not executed stay within the bound.
#[test]
fn queued_transactions_are_bounded_in_memory() {
    let queued = request(&["SET", "k", &"v".repeat(10_000)]).repeat(100);
    let added = memory_added(1, 200, |_| [words("MULTI"), queued.clone()].concat());
    assert!(added < memory_max(1), "{} MiB", added / MIB);
}

/// Half-sent requests of very many arguments stay within the bound: the table of their arguments
/// counts.
#[test]
fn half_sent_arguments_are_bounded_in_memory() {
    let half = [b"*1000000\r\n".to_vec(), b"$1\r\na\r\n".repeat(30_000)].concat();
    let added = memory_added(1, 200, |_| half.clone());
    assert!(added < memory_max(1), "{} MiB", added / MIB);
}

/// MONITOR of clients that take nothing stays within the bound.
#[test]
fn deaf_monitors_are_bounded_in_memory() {
    let added = memory_added(1, 80, |client| match client {
        79 => request(&["ECHO", &"m".repeat(60_000)]).repeat(150),
        _ => words("MONITOR"),
    });
    assert!(added < memory_max(1), "{} MiB", added / MIB);
}

/// CLIENT NO-EVICT lifts no bound.
#[test]
fn spared_clients_are_bounded_in_memory() {
    let mut half = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$250000\r\n".to_vec();
    half.resize(240_000, b'x');
    let attack = [words("CLIENT NO-EVICT on"), half].concat();
    let added = memory_added(1, 300, |_| attack.clone());
    assert!(added < memory_max(1), "{} MiB", added / MIB);
}
