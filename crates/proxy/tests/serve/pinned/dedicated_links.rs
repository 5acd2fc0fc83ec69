//! Requests that need the server's connection to themselves: blocking commands, WAIT, tracking,
//! MONITOR. And replies that depend on a connection's state: CLIENT REPLY, scripts, unknown
//! commands.

use std::thread;
use std::time::Duration;

use respool_testkit::client::{Reply, RespClient, counter, words};
use respool_testkit::fault_proxy::{FaultMode, FaultProxy};
use respool_testkit::servers::{any_server, installed};
use respool_testkit::time::wait_until;

use crate::target::{Options, Target, before_every_server, on_every_target, proxied};

const MOMENT: Duration = Duration::from_millis(150);
/// After this long the loss of a link is answered by connecting at once.
const STABLE: Duration = Duration::from_millis(1_200);

/// How many connections the server has from respool.
fn links(target: &Target) -> usize {
    let Reply::Bulk(list) = target.direct_client().call("CLIENT LIST") else {
        panic!("a list");
    };
    String::from_utf8_lossy(&list)
        .matches("name=respool")
        .count()
}

/// How many clients wait at the server.
fn waiting(target: &Target) -> usize {
    let Reply::Bulk(info) = target.direct_client().call("INFO clients") else {
        panic!("the clients");
    };
    let text = String::from_utf8_lossy(&info).into_owned();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("blocked_clients:"));
    line.and_then(|count| count.parse().ok())
        .expect("a count of blocked clients")
}

fn pair(key: &str, value: &str) -> Reply {
    Reply::Array([Reply::bulk(key), Reply::bulk(value)].into())
}

/// A client that blocks for an element delays no other client, and gets it.
#[test]
fn blocked_client_delays_no_client_and_is_served() {
    on_every_target(&Options::with(&["--threads", "1"]), |target| {
        let mut steady = target.client();
        let mut waiters: Vec<(RespClient, &str, Reply)> = Vec::new();
        for (request, reply) in [
            ("BLPOP l1 0", pair("l1", "e")),
            ("BRPOP l2 0", pair("l2", "e")),
            ("BRPOPLPUSH l3 other 0", Reply::bulk("e")),
            ("BLMOVE l4 other LEFT RIGHT 0", Reply::bulk("e")),
        ] {
            let mut client = target.client();
            // The requests behind it in the pipeline wait with it.
            client.send(&[words(request), words("ECHO behind")].concat());
            waiters.push((client, request, reply));
        }
        wait_until("four clients wait", Duration::from_secs(10), || {
            waiting(target) == 4
        });
        for index in 1..=4 {
            assert_eq!(steady.call(&format!("RPUSH l{index} e")), Reply::Integer(1));
        }
        for (client, request, reply) in &mut waiters {
            assert_eq!(client.reply(), *reply, "{request}");
            assert_eq!(client.reply(), Reply::bulk("behind"), "{request}");
        }
        assert_eq!(steady.call("LLEN l1"), Reply::Integer(0));
        let mut client = target.client();
        assert_eq!(client.call("BLPOP none 0.05"), Reply::Null);
        assert_eq!(client.call("BZPOPMIN none 0.05"), Reply::Null);
        assert_eq!(client.call("XREAD BLOCK 20 STREAMS none $"), Reply::Null);
        let wrong = client.call("BLPOP none soon");
        assert!(
            wrong.error().is_some_and(|text| text.contains("timeout")),
            "{wrong:?}"
        );
    });
}

/// An element that comes after a blocked client has left stays in its list.
#[test]
fn client_that_leaves_blpop_takes_no_element() {
    before_every_server(&Options::with(&["--threads", "1"]), |target| {
        let mut gone = target.client();
        let mut closing = target.client();
        let mut half = target.client();
        let mut pipelining = target.client();
        for client in [&mut gone, &mut closing, &mut half, &mut pipelining] {
            client.send(&words("BLPOP list 0"));
        }
        wait_until("four clients wait", Duration::from_secs(10), || {
            waiting(target) == 4
        });
        gone.reset();
        drop(closing);
        half.close_sending();
        // The end of the connection comes after all sent bytes.
        pipelining.send(&words("RPUSH list never").repeat(5_000));
        drop(pipelining);
        wait_until("no client is blocked", Duration::from_secs(10), || {
            waiting(target) == 0
        });
        let mut steady = target.client();
        assert_eq!(steady.call("RPUSH list kept"), Reply::Integer(1));
        thread::sleep(MOMENT);
        assert_eq!(
            steady.call("LRANGE list 0 -1"),
            Reply::Array([Reply::bulk("kept")].into())
        );
    });
}

/// A client that leaves while its BLPOP waits for a dedicated link takes no element.
#[test]
fn client_that_leaves_the_link_queue_takes_no_element() {
    let options = Options::with(&["--threads=1", "--pinned-links-max=1"]);
    before_every_server(&options, |target| {
        let mut first = target.client();
        first.send(&words("BLPOP first 0"));
        wait_until(
            "the first client is blocked",
            Duration::from_secs(10),
            || waiting(target) == 1,
        );
        for requests in [words("BLPOP list 0"), words("BLPOP list 0").repeat(2_000)] {
            let mut gone = target.client();
            gone.send(&requests);
            assert!(gone.is_quiet(MOMENT));
        }
        let mut steady = target.client();
        // The end of one connection may arrive later than bytes sent after it on another one.
        wait_until(
            "respool has closed the session",
            Duration::from_secs(10),
            || counter(&mut steady, "sessions") == 2,
        );
        steady.call("RPUSH list kept");
        steady.call("RPUSH first 1");
        first.reply();
        thread::sleep(MOMENT);
        let kept = Reply::Array([Reply::bulk("kept")].into());
        assert_eq!(steady.call("LRANGE list 0 -1"), kept);
    });
}

/// A half-closed client gets the elements that exist, and takes no later element. Its earlier
/// requests are answered if the server has a reply by then. If it is blocked, its session ends.
#[test]
fn half_closed_client_takes_no_later_element() {
    const ROUNDS: usize = 40;
    on_every_target(&Options::with(&["--threads", "1"]), |target| {
        let mut steady = target.client();
        for _ in 0..2 * ROUNDS {
            steady.call("RPUSH list e");
        }
        for round in 0..ROUNDS {
            let mut client = target.client();
            client.send(
                &["SET x 1", "BLPOP list 0", "INCR behind"]
                    .map(words)
                    .concat(),
            );
            client.close_sending();
            let behind = Reply::Integer(round as i64 + 1);
            assert_eq!(client.replies(3), [Reply::ok(), pair("list", "e"), behind]);
            client.expect_closed();
        }
        let left = Reply::Integer(ROUNDS as i64);
        assert_eq!(steady.call("LLEN list"), left);
        for _ in 0..ROUNDS {
            let mut client = target.client();
            client.send(&["BLPOP none 0", "SET never 1"].map(words).concat());
            client.close_sending();
            client.expect_closed();
        }
        assert_eq!(steady.call("RPUSH none kept"), Reply::Integer(1));
        thread::sleep(MOMENT);
        assert_eq!(steady.call("LLEN none"), Reply::Integer(1));
        assert_eq!(steady.call("EXISTS never"), Reply::Integer(0));
        // Requests with a link of their own that do not block.
        for asked in ["SCRIPT KILL", "WAIT 0 0"] {
            let mut client = target.client();
            client.send(&[asked, "INCR last"].map(words).concat());
            client.close_sending();
            let replies = client.replies(2);
            assert!(matches!(replies[1], Reply::Integer(1 | 2)), "{replies:?}");
            client.expect_closed();
        }
    });
}

/// The transaction of a half-closed client runs although it first waits for a dedicated link: such
/// links serve more than blocking commands.
#[test]
fn half_closed_client_gets_its_waiting_transaction() {
    let options = Options::with(&["--threads=1", "--pinned-links-max=1"]);
    before_every_server(&options, |target| {
        let mut first = target.client();
        first.send(&words("BLPOP first 0"));
        wait_until(
            "the first client is blocked",
            Duration::from_secs(10),
            || waiting(target) == 1,
        );
        let mut client = target.client();
        let asked = ["WATCH k", "MULTI", "SET k 1", "EXEC", "SET behind 1"];
        client.send(&asked.map(words).concat());
        assert!(client.is_quiet(MOMENT));
        client.close_sending();
        assert!(client.is_quiet(MOMENT));
        target.direct_client().call("RPUSH first 1");
        first.reply();
        let replies = client.replies(5);
        assert_eq!(replies[3], Reply::Array([Reply::ok()].into()));
        assert_eq!(replies[4], Reply::ok());
        client.expect_closed();
    });
}

/// Links of blocked clients are used again. At their bound, others wait.
#[test]
fn pinned_links_are_reused_and_bounded() {
    let target = proxied(&Options::with(&[
        "--threads",
        "1",
        "--pinned-links-max",
        "2",
    ]));
    let mut client = target.client();
    for _ in 0..20 {
        assert_eq!(client.call("BLPOP none 0.01"), Reply::Null);
    }
    assert_eq!(
        links(&target),
        2,
        "the shared one, and one that was used again"
    );
    let mut waiters: Vec<RespClient> = (0..3).map(|_| target.client()).collect();
    for waiter in &mut waiters {
        waiter.send(&words("BLPOP list 0"));
        thread::sleep(MOMENT);
    }
    assert_eq!(waiting(&target), 2, "the third waits for a link");
    for element in ["a", "b", "c"] {
        client.call(&format!("RPUSH list {element}"));
        thread::sleep(MOMENT);
    }
    for (waiter, element) in waiters.iter_mut().zip(["a", "b", "c"]) {
        assert_eq!(waiter.reply(), pair("list", element));
    }
}

/// The time in which a client waits for a link counts as time of its blocking command.
/// Its server never got the command, so null would be untrue. WAIT answers with the number of
/// replicas that are known to have the writes.
#[test]
fn time_in_the_link_queue_counts_as_blocking_time() {
    let options = Options::with(&["--threads=1", "--pinned-links-max=1"]);
    before_every_server(&options, |target| {
        let mut first = target.client();
        first.send(&words("BLPOP first 0"));
        wait_until(
            "the first client is blocked",
            Duration::from_secs(10),
            || waiting(target) == 1,
        );
        let (mut client, mut direct) = (target.client(), target.direct_client());
        for asked in [
            "BLPOP list 0.2",
            "BRPOPLPUSH list other 0.2",
            "BLMOVE list other LEFT LEFT 0.2",
            "XREAD BLOCK 200 STREAMS s 0",
        ] {
            assert_eq!(client.call(asked), direct.call(asked), "{asked}");
        }
        for asked in ["XREAD BLOCK 200 STREAMS s $", "WAIT 1 200"] {
            let through = client.call(asked);
            let text = through.error().unwrap_or_default();
            assert!(
                text.starts_with("NOTSENT") && text.contains("pinned-links-max"),
                "{through:?}"
            );
        }
        assert_eq!(
            waiting(target),
            1,
            "no other client is blocked at the server"
        );
        // The server names the mistake in a command.
        let mut wrong = target.client();
        wrong.send(&words("BLPOP list -0.0001"));
        client.send(&words("BLPOP list 30"));
        assert!(client.is_quiet(MOMENT));
        assert_eq!(direct.call("SET nobody waits"), Reply::ok());
        direct.call("RPUSH list e");
        direct.call("RPUSH list e");
        direct.call("RPUSH first e");
        assert_eq!(first.reply(), pair("first", "e"));
        assert_eq!(wrong.reply(), pair("list", "e"));
        assert_eq!(client.reply(), pair("list", "e"));
    });
}

/// At the bound of pinned links, a request is refused where the configuration says so.
#[test]
fn full_pinned_links_refuse_if_configured() {
    let args = [
        "--threads",
        "1",
        "--pinned-links-max",
        "1",
        "--pinned-links-full",
        "refuse",
    ];
    let target = proxied(&Options::with(&args));
    let mut first = target.client();
    first.send(&words("BLPOP list 0"));
    wait_until(
        "the first client is blocked",
        Duration::from_secs(10),
        || waiting(&target) == 1,
    );
    let mut second = target.client();
    let refused = second.call("BLPOP list 0");
    let text = refused.error().unwrap_or_default().to_owned();
    assert!(
        text.starts_with("NOTSENT") && text.contains("pinned-links-max"),
        "{refused:?}"
    );
    assert_eq!(second.call("RPUSH list e"), Reply::Integer(1));
    assert_eq!(first.reply(), pair("list", "e"));
}

#[test]
fn server_that_goes_away_closes_a_session_that_waits() {
    let target = proxied(&Options::with(&["--threads", "1"]));
    let mut client = target.client();
    client.send(&words("BLPOP list 0"));
    wait_until("the client is blocked", Duration::from_secs(10), || {
        waiting(&target) == 1
    });
    thread::sleep(STABLE);
    target
        .direct_client()
        .call("CLIENT KILL TYPE normal SKIPME yes");
    assert!(client.try_reply().is_err(), "the session is closed");
    let mut client = target.client();
    client.send(&[words("RPUSH list e"), words("BLPOP list 0")].concat());
    assert_eq!(client.reply(), Reply::Integer(1));
    assert_eq!(client.reply(), pair("list", "e"));
}

/// WAIT waits for the session's last write, which went out on the shared link. On a connection
/// without writes, WAIT would return at once.
#[test]
fn wait_waits_for_writes_on_the_shared_link() {
    for binary in installed() {
        let options = Options::with(&["--threads", "1"]);
        let target = Target::proxied(&binary, &options);
        let replica = Target::direct(&binary, &Options::default());
        let mut client = target.client();
        assert_eq!(client.call("WAIT 0 10"), Reply::Integer(0));
        let (host, port) = (target.server.address().ip(), target.server.address().port());
        let followed = replica.client().call(&format!("REPLICAOF {host} {port}"));
        assert_eq!(followed, Reply::ok());
        let acknowledged = || target.client().call("WAIT 1 200") == Reply::Integer(1);
        wait_until("the replica follows", Duration::from_secs(20), acknowledged);
        client.call("SET k 1");
        assert_eq!(client.call("WAIT 1 5000"), Reply::Integer(1));
        replica.server.stop();
        client.call("SET k 2");
        let waited = client.call("WAIT 1 100");
        replica.server.cont();
        assert_eq!(
            waited,
            Reply::Integer(0),
            "no replica has acknowledged the write: {}",
            binary.display()
        );
        assert_eq!(client.call("WAIT 1 5000"), Reply::Integer(1));
    }
}

/// CLIENT TRACKING sends invalidations to the session until it is switched off.
#[test]
fn tracking_invalidates_until_it_is_switched_off() {
    on_every_target(&Options::with(&["--threads", "1"]), |target| {
        let (mut client, mut other) = (target.client(), target.client());
        client.call("HELLO 3");
        assert_eq!(client.call("CLIENT TRACKING ON"), Reply::ok());
        assert_eq!(client.call("GET k"), Reply::Null);
        other.call("SET k 1");
        let pushed = client.reply_bytes();
        assert_eq!(pushed, b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n");
        assert_eq!(client.call("GET k"), Reply::bulk("1"));
        assert_eq!(client.call("CLIENT TRACKING OFF"), Reply::ok());
        other.call("SET k 2");
        assert!(client.is_quiet(MOMENT));
        assert_eq!(client.call("GET k"), Reply::bulk("2"));
        // Without RESP3 there is nothing to tell it with.
        assert_eq!(other.call("CLIENT TRACKING ON"), Reply::ok());
        assert_eq!(other.call("GET k"), Reply::bulk("2"));
        assert_eq!(client.call("SET k 3"), Reply::ok());
        assert!(other.is_quiet(MOMENT));
        assert_eq!(other.call("CLIENT TRACKING OFF"), Reply::ok());
        assert_eq!(other.call("CLIENT GETREDIR"), Reply::Integer(-1));
    });
}

/// A tracking session is closed with its link: its client must not use a cache without
/// invalidations.
#[test]
fn tracking_session_is_closed_with_its_link() {
    let target = proxied(&Options::with(&["--threads", "1"]));
    let mut client = target.client();
    client.call("HELLO 3");
    client.call("CLIENT TRACKING ON");
    target
        .direct_client()
        .call("CLIENT KILL TYPE normal SKIPME yes");
    client.expect_closed();
}

/// MONITOR shows the commands that the server executes, and ends with its client.
#[test]
fn monitor_shows_commands_and_ends_with_its_client() {
    on_every_target(&Options::with(&["--threads", "1"]), |target| {
        let (mut monitor, mut other) = (target.client(), target.client());
        assert_eq!(monitor.call("MONITOR"), Reply::ok());
        other.call("SET seen by-monitor");
        loop {
            let Reply::Simple(line) = monitor.reply() else {
                panic!("a line");
            };
            if line.contains("\"SET\" \"seen\" \"by-monitor\"") {
                break;
            }
        }
        drop(monitor);
        assert_eq!(other.call("GET seen"), Reply::bulk("by-monitor"));
    });
}

#[test]
fn client_reply_switches_replies_off_and_on_and_skips_one() {
    on_every_target(&Options::default(), |target| {
        let mut client = target.client();
        let mut bytes = Vec::new();
        for request in [
            "CLIENT REPLY OFF",
            "SET k 1",
            "PING",
            "NOSUCH",
            "CLIENT REPLY ON",
            "GET k",
            "CLIENT REPLY SKIP",
            "INCR k",
            "CLIENT REPLY SKIP",
            "ECHO x",
            "GET k",
            "CLIENT REPLY SKIP",
            "CLIENT REPLY SKIP",
            "PING",
            "ECHO y",
            "CLIENT REPLY SOON",
        ] {
            bytes.extend(words(request));
        }
        client.send(&bytes);
        assert_eq!(client.reply(), Reply::ok());
        assert_eq!(client.reply(), Reply::bulk("1"));
        assert_eq!(client.reply(), Reply::bulk("2"));
        assert_eq!(client.reply(), Reply::bulk("y"));
        assert_eq!(client.reply(), Reply::Error("ERR syntax error".into()));
    });
}

/// A script that the server forgot is loaded again. One that was flushed is not.
#[test]
fn forgotten_script_is_reloaded_flushed_one_is_not() {
    let target = proxied(&Options::with(&["--threads", "1"]));
    let mut client = target.client();
    let Reply::Bulk(sha) = client.call_args(&["SCRIPT", "LOAD", "return ARGV[1]"]) else {
        panic!("a digest");
    };
    let sha = String::from_utf8(sha).expect("hexadecimal");
    target.direct_client().call("SCRIPT FLUSH");
    assert_eq!(
        client.call(&format!("EVALSHA {sha} 0 healed")),
        Reply::bulk("healed")
    );
    // Something was asked behind it: to run the script now would be out of order.
    assert_eq!(
        client.call(&format!("EVALSHA {sha} 0 again")),
        Reply::bulk("again")
    );
    target.direct_client().call("SCRIPT FLUSH");
    client.send(&[words(&format!("EVALSHA {sha} 0 x")), words("ECHO behind")].concat());
    let replies = client.replies(2);
    assert!(
        replies[0]
            .error()
            .is_some_and(|text| text.starts_with("NOSCRIPT")),
        "{replies:?}"
    );
    assert_eq!(replies[1], Reply::bulk("behind"));
    assert_eq!(client.call("SCRIPT FLUSH"), Reply::ok());
    let gone = client.call(&format!("EVALSHA {sha} 0 x"));
    assert!(
        gone.error()
            .is_some_and(|text| text.starts_with("NOSCRIPT")),
        "{gone:?}"
    );
}

/// SCRIPT KILL takes another link than its script. On the same link it would wait behind it.
#[test]
fn a_script_that_runs_for_ever_is_killed_through_respool() {
    on_every_target(&Options::with(&["--threads", "1"]), |target| {
        target.direct_client().call("CONFIG SET lua-time-limit 50");
        let mut stuck = target.client();
        stuck.send(&respool_testkit::client::request(&[
            "EVAL",
            "while true do end",
            "0",
        ]));
        thread::sleep(MOMENT * 2);
        let mut killer = target.client();
        assert_eq!(killer.call("SCRIPT KILL"), Reply::ok());
        let killed = stuck.reply();
        assert!(
            killed.error().is_some_and(|text| text.contains("killed")),
            "{killed:?}"
        );
        assert_eq!(killer.call("PING"), Reply::Simple("PONG".into()));
        assert_eq!(stuck.call("SET k 1"), Reply::ok());
    });
}

/// respool learns a renamed command from the server. A command that the server does not know gets
/// the server's error.
#[test]
fn unknown_command_is_learned_from_the_server() {
    let options = Options {
        server: [
            "--rename-command",
            "MULTI",
            "begin",
            "--rename-command",
            "BLPOP",
            "take",
        ]
        .map(String::from)
        .into(),
        ..Options::with(&["--threads", "1"])
    };
    let target = proxied(&options);
    let mut client = target.client();
    let mut bytes = Vec::new();
    for request in ["begin", "SET k 1", "EXEC", "GET k", "nosuch x", "GET k"] {
        bytes.extend(words(request));
    }
    client.send(&bytes);
    let replies = client.replies(6);
    assert_eq!(replies[0], Reply::ok());
    assert_eq!(replies[1], Reply::Simple("QUEUED".into()));
    let unknown = replies[4].error().unwrap_or_default();
    assert!(
        unknown.starts_with("ERR unknown command 'nosuch', with args beginning with: 'x'"),
        "{unknown}"
    );
    assert_eq!(replies[5], replies[3]);
    client.send(&words("take list 0"));
    wait_until("the client is blocked", Duration::from_secs(10), || {
        waiting(&target) == 1
    });
    assert_eq!(target.client().call("RPUSH list e"), Reply::Integer(1));
    assert_eq!(client.reply(), pair("list", "e"));
}

/// A large request on a pinned link begins only after the replies to respool's own requests there.
#[test]
fn a_large_request_behind_hello_on_a_pinned_link_arrives_whole() {
    on_every_target(&Options::with(&["--threads", "1"]), |target| {
        let large = "x".repeat(1_000_000);
        let mut client = target.client();
        assert_eq!(client.call("WATCH k"), Reply::ok());
        let set = respool_testkit::client::request(&["SET", "large", &large]);
        client.send(&[words("HELLO 3"), set, words("STRLEN large")].concat());
        assert!(client.reply().error().is_none());
        assert_eq!(client.reply(), Reply::ok());
        assert_eq!(client.reply(), Reply::Integer(1_000_000));
        client.send(&[words("MONITOR"), words("RESET"), words("ECHO x")].concat());
        assert_eq!(client.reply(), Reply::ok());
        assert_eq!(client.reply(), Reply::Simple("RESET".into()));
        assert_eq!(client.reply(), Reply::bulk("x"));
    });
}

#[test]
fn reset_and_quit_end_monitor_behind_all_that_was_asked() {
    on_every_target(&Options::with(&["--threads", "1"]), |target| {
        for (last, said) in [("RESET", "RESET"), ("QUIT", "OK")] {
            let mut client = target.client();
            assert_eq!(client.call("MONITOR"), Reply::ok());
            let mut bytes = Vec::new();
            for request in [
                "PING",
                "ECHO +RESET",
                "CLIENT GETNAME",
                "CONFIG GET maxmemory-policy",
                "NOSUCH",
                last,
            ] {
                bytes.extend(words(request));
            }
            client.send(&bytes);
            // MONITOR's lines come in between.
            let mut replies = (0..).map(|_| client.reply()).filter(|reply| {
                let shown = |line: &String| line.contains(" [0 ");
                !matches!(reply, Reply::Simple(line) if shown(line))
            });
            assert_eq!(replies.next(), Some(Reply::Simple("PONG".into())));
            assert_eq!(replies.next(), Some(Reply::bulk("+RESET")));
            // respool's own replies, and their absence, wait for their turn.
            let name = replies.next();
            assert!(matches!(name, Some(Reply::Null | Reply::Error(_))));
            assert!(matches!(replies.next(), Some(Reply::Array(_))));
            assert!(matches!(replies.next(), Some(Reply::Error(_))));
            assert_eq!(replies.next(), Some(Reply::Simple(said.into())));
            drop(replies);
            if last == "RESET" {
                assert_eq!(client.call("SET k v"), Reply::ok());
            } else {
                client.expect_closed();
            }
        }
    });
}

/// The refusal of MONITOR is one reply, even if it arrives byte by byte.
#[test]
fn monitor_is_refused_as_the_server_refuses_it_byte_by_byte() {
    let options = Options::with(&["--threads", "1"]);
    let target = Target::direct(&any_server(), &options);
    let fault_proxy = FaultProxy::start(target.server.address(), FaultMode::Dribble);
    let target = target.behind(fault_proxy.address(), &options);
    let mut client = target.client();
    let rights = "ACL SETUSER nosy on >secret ~* &* +@all -monitor";
    assert_eq!(client.call(rights), Reply::ok());
    assert_eq!(client.call("AUTH nosy secret"), Reply::ok());
    client.send(&[words("MONITOR"), words("SET k v"), words("GET k")].concat());
    let refused = client.reply();
    assert!(
        refused
            .error()
            .is_some_and(|text| text.starts_with("NOPERM"))
    );
    assert_eq!(client.reply(), Reply::ok());
    assert_eq!(client.reply(), Reply::bulk("v"));
    assert_eq!(client.call("AUTH nosy secret"), Reply::ok());
    let mut allowed = target.client();
    allowed.send(&[words("MONITOR"), words("RESET"), words("GET k")].concat());
    assert_eq!(allowed.reply(), Reply::ok());
    assert_eq!(allowed.reply(), Reply::Simple("RESET".into()));
    assert_eq!(allowed.reply(), Reply::bulk("v"));
}

/// MONITOR is no way round `refuse-commands`.
#[test]
fn monitor_respects_refused_commands() {
    let target = proxied(&Options::with(&["--threads", "1"]));
    let mut client = target.client();
    assert_eq!(client.call("MONITOR"), Reply::ok());
    for (request, why) in [
        ("SHUTDOWN NOSAVE", "refuse-commands"),
        ("DEBUG JMAP", "refuse-commands"),
        ("PSYNC ? -1", "between servers"),
        ("SET k 1", "the keyspace"),
        ("MULTI", "MONITOR"),
        ("HELLO 3", "MONITOR"),
        ("NOSUCH", "MONITOR"),
    ] {
        let refused = client.call(request);
        assert!(
            refused.error().is_some_and(|text| text.contains(why)),
            "{request}: {refused:?}"
        );
    }
    assert_eq!(client.call("RESET"), Reply::Simple("RESET".into()));
    assert_eq!(client.call("GET k"), Reply::Null);
}

/// With CLIENT REPLY OFF, large values are written, and the end of the client is seen.
#[test]
fn client_reply_off_writes_large_values() {
    on_every_target(&Options::with(&["--threads", "1"]), |target| {
        let large = "x".repeat(1_000_000);
        let mut client = target.client();
        let set = respool_testkit::client::request(&["SET", "large", &large]);
        client.send(
            &[
                words("CLIENT REPLY SKIP"),
                set.clone(),
                words("STRLEN large"),
            ]
            .concat(),
        );
        assert_eq!(client.reply(), Reply::Integer(1_000_000));
        client.call("DEL large");
        client.send(&[words("CLIENT REPLY OFF"), set, words("SET small 1")].concat());
        client.close_sending();
        client.expect_closed();
        let mut other = target.client();
        wait_until(
            "the server has executed all writes",
            Duration::from_secs(10),
            || {
                other.call("STRLEN large") == Reply::Integer(1_000_000)
                    && other.call("GET small") == Reply::bulk("1")
            },
        );
    });
}

#[test]
fn tracking_that_is_switched_off_and_on_in_one_write_is_on() {
    on_every_target(&Options::with(&["--threads", "1"]), |target| {
        let mut client = target.client();
        client.call("HELLO 3");
        let requests = [
            "CLIENT TRACKING ON",
            "CLIENT TRACKING OFF",
            "CLIENT TRACKING ON",
            "CLIENT TRACKING ON x",
            "GET k",
        ];
        client.send(&requests.map(words).concat());
        let replies = client.replies(5);
        assert_eq!(replies[..3], [Reply::ok(), Reply::ok(), Reply::ok()]);
        assert!(replies[3].error().is_some());
        target.client().call("SET k 1");
        assert!(client.reply_bytes().starts_with(b">2\r\n$10\r\ninvalidate"));
    });
}
