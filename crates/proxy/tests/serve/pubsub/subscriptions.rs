//! Subscribers cannot tell respool from the server, and cost the server one subscription for each
//! channel and worker.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use respool_testkit::client::{PATIENCE, Reply, RespClient, is_not_executed, request, words};
use respool_testkit::fault_proxy::{FaultMode, FaultProxy};
use respool_testkit::random::{Random, seed};
use respool_testkit::servers::{any_server, installed};
use respool_testkit::time::wait_until;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::target::{Options, Target, before_every_server, on_every_target, proxied};

/// A step of one of several clients.
enum SubscriberStep {
    /// The client sends this line and reads this many replies or pushes. Their bytes are compared.
    Asks(usize, String, usize),
    /// As `Asks`, but the bytes are not compared: they contain a version or an id.
    AsksAny(usize, String, usize),
    /// The client gets this many messages without a request.
    Gets(usize, usize),
}

fn asks(client: usize, line: &str, replies: usize) -> SubscriberStep {
    SubscriberStep::Asks(client, line.to_owned(), replies)
}

/// All bytes that the clients get, step by step.
fn transcript(target: &Target, steps: &[SubscriberStep]) -> Vec<String> {
    let mut clients: HashMap<usize, RespClient> = HashMap::new();
    let mut lines = Vec::new();
    for step in steps {
        let (number, count, counts) = match step {
            SubscriberStep::Asks(number, _, count) | SubscriberStep::Gets(number, count) => {
                (*number, *count, true)
            }
            SubscriberStep::AsksAny(number, _, count) => (*number, *count, false),
        };
        let client = clients.entry(number).or_insert_with(|| target.client());
        let line = match step {
            SubscriberStep::Asks(_, line, _) | SubscriberStep::AsksAny(_, line, _) => {
                client.send(&words(line));
                line.as_str()
            }
            SubscriberStep::Gets(..) => "",
        };
        let mut got = Vec::new();
        for _ in 0..count {
            let bytes = client
                .try_reply_bytes()
                .unwrap_or_else(|error| panic!("client {number} behind {line:?}: {error}"));
            got.extend(bytes);
        }
        let got = if counts {
            got.escape_ascii().to_string()
        } else {
            String::new()
        };
        lines.push(format!("{number} {line}: {got}"));
    }
    for (number, mut client) in clients {
        assert!(
            client.is_quiet(Duration::from_millis(30)),
            "client {number} gets more on {}",
            target.name
        );
    }
    lines
}

/// Compares direct replies and pushes with those through respool, on every server of at least this
/// version.
fn same_as_direct(at_least: (u32, u32), steps: &[SubscriberStep]) {
    for binary in installed() {
        let direct = Target::direct(&binary, &Options::default());
        if direct.version < at_least {
            continue;
        }
        let expected = transcript(&direct, steps);
        for threads in ["--threads=1", "--threads=3"] {
            let proxied = Target::proxied(&binary, &Options::with(&[threads]));
            assert_eq!(transcript(&proxied, steps), expected, "{}", proxied.name);
        }
    }
}

/// Confirmations and messages are byte for byte the server's, in both protocol versions.
#[test]
fn confirmations_and_messages_equal_the_servers_bytes() {
    let mut steps = Vec::new();
    for hello in ["HELLO 2", "HELLO 3"] {
        // Clients of the other version listen beside it.
        let base = if hello == "HELLO 2" { 0 } else { 10 };
        steps.push(SubscriberStep::AsksAny(base, hello.to_owned(), 1));
        steps.extend([
            asks(base, "SUBSCRIBE a b a", 3),
            asks(base, "SUBSCRIBE a", 1),
            asks(base, "PSUBSCRIBE p* [ab]", 2),
            asks(1, "SUBSCRIBE a", 1),
            asks(2, "PUBLISH a one", 1),
            SubscriberStep::Gets(base, 2),
            SubscriberStep::Gets(1, 1),
            asks(2, "PUBLISH pq two", 1),
            SubscriberStep::Gets(base, 1),
            asks(2, "PUBLISH nobody three", 1),
            asks(2, "PUBSUB NUMSUB a b none", 1),
            asks(2, "PUBSUB NUMSUB", 1),
            asks(2, "PUBSUB NUMPAT", 1),
            asks(2, "PUBSUB CHANNELS b*", 1),
            asks(base, "PING", 1),
            asks(base, "PING hello", 1),
            asks(base, "PING too many", 1),
            asks(base, "UNSUBSCRIBE never", 1),
            asks(base, "UNSUBSCRIBE b b", 2),
            asks(base, "UNSUBSCRIBE", 1),
            asks(base, "UNSUBSCRIBE", 1),
            asks(base, "PUNSUBSCRIBE p*", 1),
            asks(2, "PUBLISH a four", 1),
            SubscriberStep::Gets(base, 1),
            SubscriberStep::Gets(1, 1),
            asks(base, "PUNSUBSCRIBE", 1),
            asks(base, "PUNSUBSCRIBE", 1),
            asks(base, "PING", 1),
            asks(base, "GET key", 1),
            asks(1, "UNSUBSCRIBE a", 1),
            asks(2, "PUBLISH a five", 1),
            asks(2, "PUBSUB CHANNELS", 1),
            asks(2, "PUBSUB NUMSUB a", 1),
            asks(2, "PUBSUB NUMPAT", 1),
            asks(base, "SUBSCRIBE", 1),
            asks(base, "SUBSCRIBE reset", 1),
            asks(base, "RESET", 1),
            asks(base, "PING", 1),
            asks(base, "SUBSCRIBE quit", 1),
            asks(base, "UNSUBSCRIBE", 1),
        ]);
    }
    same_as_direct((6, 0), &steps);
}

#[test]
fn shard_channels_are_apart_and_counted_by_themselves() {
    let mut steps = Vec::new();
    for hello in ["HELLO 2", "HELLO 3"] {
        let base = if hello == "HELLO 2" { 0 } else { 10 };
        steps.push(SubscriberStep::AsksAny(base, hello.to_owned(), 1));
        steps.extend([
            asks(base, "SUBSCRIBE a", 1),
            asks(base, "SSUBSCRIBE a s", 2),
            asks(1, "SSUBSCRIBE s", 1),
            asks(2, "SPUBLISH s one", 1),
            SubscriberStep::Gets(base, 1),
            SubscriberStep::Gets(1, 1),
            asks(2, "SPUBLISH a two", 1),
            SubscriberStep::Gets(base, 1),
            asks(2, "PUBLISH s three", 1),
            asks(2, "PUBSUB SHARDNUMSUB a s none", 1),
            asks(2, "PUBSUB SHARDCHANNELS s*", 1),
            asks(base, "SUNSUBSCRIBE s", 1),
            asks(base, "SUNSUBSCRIBE", 1),
            asks(base, "SUNSUBSCRIBE", 1),
            asks(base, "UNSUBSCRIBE", 1),
            asks(1, "SUNSUBSCRIBE", 1),
            asks(2, "PUBSUB SHARDNUMSUB s", 1),
        ]);
    }
    same_as_direct((7, 0), &steps);
}

/// A RESP2 subscriber gets Redis's own error for any other command.
#[test]
fn resp2_subscriber_gets_redis_error_for_other_commands() {
    same_as_direct(
        (7, 0),
        &[
            asks(0, "SUBSCRIBE a", 1),
            asks(0, "GET key", 1),
            asks(0, "PUBLISH a x", 1),
            asks(0, "CLIENT ID", 1),
            asks(0, "CONFIG GET port", 1),
            asks(0, "MULTI", 1),
            asks(0, "HELLO 3", 1),
            asks(0, "SELECT 1", 1),
            asks(0, "GET", 1),
            asks(0, "nonsense x", 1),
            asks(0, "PING", 1),
            asks(0, "SSUBSCRIBE s", 1),
            asks(0, "UNSUBSCRIBE", 1),
            asks(0, "GET key", 1),
            asks(0, "SUNSUBSCRIBE", 1),
            asks(0, "GET key", 1),
            // In RESP2 a subscriber may send few commands; in RESP3, all commands.
            SubscriberStep::AsksAny(0, "HELLO 3".into(), 1),
            asks(0, "SUBSCRIBE a", 1),
            asks(0, "SET key value", 1),
            SubscriberStep::AsksAny(0, "HELLO 2".into(), 1),
            asks(0, "GET key", 1),
            asks(1, "PUBLISH a m", 1),
            SubscriberStep::Gets(0, 1),
            asks(0, "UNSUBSCRIBE a", 1),
            asks(0, "GET key", 1),
        ],
    );
    on_every_target(&Options::default(), |target| {
        let mut client = target.client();
        client.call("SUBSCRIBE a");
        client.send(&words("QUIT"));
        assert_eq!(client.reply(), Reply::ok());
        client.expect_closed();
    });
}

/// A RESP3 subscriber sends other commands, too. Its own messages come where the server puts them.
#[test]
fn resp3_subscriber_sends_commands_in_order() {
    same_as_direct(
        (6, 0),
        &[
            SubscriberStep::AsksAny(0, "HELLO 3".into(), 1),
            asks(0, "SET before 1", 1),
            asks(0, "SUBSCRIBE a", 1),
            asks(0, "GET before", 1),
            // Up to 7.0 the message comes before the reply, and after it in later versions.
            asks(0, "PUBLISH a self", 2),
            asks(0, "PUBLISH other self", 1),
            asks(0, "PSUBSCRIBE a*", 1),
            asks(0, "PUBLISH a self", 3),
            asks(0, "INCR before", 1),
            asks(0, "PUBSUB NUMSUB a", 1),
            asks(0, "UNSUBSCRIBE a", 1),
            asks(0, "PUBLISH a self", 2),
            asks(0, "SELECT 1", 1),
            asks(0, "GET before", 1),
        ],
    );
}

/// A pipeline that subscribes and unsubscribes is answered in order.
#[test]
fn pipeline_of_subscriptions_keeps_its_order() {
    on_every_target(&Options::default(), |target| {
        let mut client = target.client();
        let lines = [
            "SET k v",
            "SUBSCRIBE a",
            "PING",
            "GET k",
            "UNSUBSCRIBE a",
            "GET k",
            "PSUBSCRIBE p",
            "PUNSUBSCRIBE",
            "INCR n",
        ];
        for line in lines {
            client.send(&words(line));
        }
        let replies = client.replies(lines.len());
        let confirmed = |verb: &str, name: &str, count| {
            Reply::Array(vec![
                Reply::bulk(verb),
                Reply::bulk(name),
                Reply::Integer(count),
            ])
        };
        assert_eq!(replies[0], Reply::ok());
        assert_eq!(replies[1], confirmed("subscribe", "a", 1));
        assert_eq!(
            replies[2],
            Reply::Array(vec![Reply::bulk("pong"), Reply::bulk("")])
        );
        assert!(
            replies[3]
                .error()
                .is_some_and(|text| text.starts_with("ERR Can't execute 'get'"))
        );
        assert_eq!(replies[4], confirmed("unsubscribe", "a", 0));
        assert_eq!(replies[5], Reply::bulk("v"));
        assert_eq!(replies[6], confirmed("psubscribe", "p", 1));
        assert_eq!(replies[7], confirmed("punsubscribe", "p", 0));
        assert_eq!(replies[8], Reply::Integer(1));
    });
}

/// PUBSUB NUMSUB counts the clients of all workers, and those connected to the server directly.
#[test]
fn subscriber_counts_cover_all_workers_and_direct_clients() {
    before_every_server(&Options::with(&["--threads=3"]), |target| {
        let mut all: Vec<RespClient> = (0..20).map(|_| target.client()).collect();
        for (index, client) in all.iter_mut().enumerate() {
            client.call("SUBSCRIBE news");
            if index % 2 == 0 {
                client.call("PSUBSCRIBE n*");
            }
        }
        let mut past = target.direct_client();
        past.call("SUBSCRIBE news");
        let mut publisher = target.client();
        // Twenty by name, ten by their pattern, and one that is connected directly.
        assert_eq!(publisher.call("PUBLISH news m"), Reply::Integer(31));
        assert_eq!(publisher.call("PUBLISH nothing m"), Reply::Integer(10));
        let numsub = |count| Reply::Array(vec![Reply::bulk("news"), Reply::Integer(count)]);
        assert_eq!(publisher.call("PUBSUB NUMSUB news"), numsub(21));
        for client in &mut all[..10] {
            // Messages first, then the confirmation.
            client.send(&words("UNSUBSCRIBE news"));
            while !matches!(client.reply(), Reply::Array(items) if items[0] == Reply::bulk("unsubscribe"))
            {
            }
        }
        assert_eq!(publisher.call("PUBSUB NUMSUB news"), numsub(11));
        assert_eq!(publisher.call("PUBLISH news m"), Reply::Integer(21));
        drop(all);
        // respool notices a moment later that the clients have closed their connections.
        wait_until("one subscriber of the channel is left", PATIENCE, || {
            publisher.call("PUBSUB NUMSUB news") == numsub(1)
        });
        wait_until("no pattern is left", PATIENCE, || {
            publisher.call("PUBSUB NUMPAT") == Reply::Integer(0)
        });
        // A client that leaves in the moment of a PUBLISH may be counted or not.
        wait_until("one receiver is left", PATIENCE, || {
            publisher.call("PUBLISH news m") == Reply::Integer(1)
        });
    });
}

/// Five thousand subscribers of a hundred channels are one subscription for each channel and
/// worker.
#[test]
fn many_subscribers_are_one_subscription_per_worker() {
    const SUBSCRIBERS: usize = 5_000;
    const CHANNELS: usize = 100;
    const WORKERS: i64 = 2;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < SUBSCRIBERS as u64 + 500) {
        let wanted = Rlimit {
            current: maximum,
            maximum,
        };
        setrlimit(Resource::Nofile, wanted).expect("the hard limit is allowed");
        assert!(
            maximum.is_none_or(|maximum| maximum > SUBSCRIBERS as u64 + 500),
            "this machine allows too few file descriptors: ulimit -n"
        );
    }
    let target = proxied(&Options::with(&["--threads=2"]));
    let channel = |index: usize| format!("channel:{:03}", index % CHANNELS);
    let mut subscribers: Vec<TcpStream> = (0..SUBSCRIBERS)
        .map(|index| {
            let mut stream = TcpStream::connect(target.address()).expect("connect");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            stream
                .write_all(&words(&format!("SUBSCRIBE {}", channel(index))))
                .expect("send");
            stream
        })
        .collect();
    let expect = |stream: &mut TcpStream, expected: &str| {
        let mut got = vec![0; expected.len()];
        stream.read_exact(&mut got).expect("read");
        assert_eq!(String::from_utf8_lossy(&got), expected);
    };
    for (index, stream) in subscribers.iter_mut().enumerate() {
        let name = channel(index);
        expect(
            stream,
            &format!("*3\r\n$9\r\nsubscribe\r\n$11\r\n{name}\r\n:1\r\n"),
        );
    }
    let mut direct = target.direct_client();
    let mut command = String::from("PUBSUB NUMSUB");
    for index in 0..CHANNELS {
        command.push(' ');
        command.push_str(&channel(index));
    }
    let Reply::Array(counts) = direct.call(&command) else {
        panic!("NUMSUB answers with an array");
    };
    let of_server: Vec<&Reply> = counts.iter().skip(1).step_by(2).collect();
    assert_eq!(of_server, vec![&Reply::Integer(WORKERS); CHANNELS]);
    let Reply::Bulk(list) = direct.call("CLIENT LIST") else {
        panic!("CLIENT LIST answers with a text");
    };
    let list = String::from_utf8(list).expect("CLIENT LIST is text");
    let mut subs: Vec<&str> = list
        .lines()
        .filter_map(|line| line.split(' ').find_map(|field| field.strip_prefix("sub=")))
        .filter(|sub| *sub != "0")
        .collect();
    subs.sort_unstable();
    assert_eq!(subs, ["100", "100"], "{list}");
    assert!(list.lines().count() < 20, "few connections:\n{list}");

    let mut publisher = target.client();
    for index in 0..CHANNELS {
        let each = (SUBSCRIBERS / CHANNELS) as i64;
        let reply = publisher.call(&format!("PUBLISH {} m{index:02}", channel(index)));
        assert_eq!(reply, Reply::Integer(each));
    }
    for (index, stream) in subscribers.iter_mut().enumerate() {
        let (name, number) = (channel(index), index % CHANNELS);
        expect(
            stream,
            &format!("*3\r\n$7\r\nmessage\r\n$11\r\n{name}\r\n$3\r\nm{number:02}\r\n"),
        );
    }
}

/// All subscribers of a channel get its messages in one order, none lost or doubled.
#[test]
fn messages_reach_all_subscribers_once_and_in_order() {
    let target = proxied(&Options::with(&["--threads=2"]));
    let mut subscribers: Vec<RespClient> = (0..8).map(|_| target.client()).collect();
    for (index, client) in subscribers.iter_mut().enumerate() {
        if index % 2 == 0 {
            client.call("HELLO 3");
        }
        client.call("SUBSCRIBE order");
    }
    const EACH: usize = 2_000;
    let publishers: Vec<_> = (0..4)
        .map(|name| {
            let mut client = target.client();
            thread::spawn(move || {
                let mut bytes = Vec::new();
                for number in 0..EACH {
                    bytes.extend(words(&format!("PUBLISH order {name}:{number}")));
                }
                for reply in client.exchange(bytes, EACH) {
                    assert_eq!(reply, Reply::Integer(8));
                }
            })
        })
        .collect();
    let mut seen: Vec<Vec<String>> = Vec::new();
    for client in &mut subscribers {
        let mut texts = Vec::new();
        for _ in 0..4 * EACH {
            let (Reply::Array(message) | Reply::Push(message)) = client.reply() else {
                panic!("the reply is a message");
            };
            assert_eq!(message[..2], [Reply::bulk("message"), Reply::bulk("order")]);
            let Reply::Bulk(text) = &message[2] else {
                panic!("its text is a string");
            };
            texts.push(String::from_utf8(text.clone()).expect("text"));
        }
        seen.push(texts);
    }
    for publisher in publishers {
        publisher.join().expect("a publisher gets its counts");
    }
    for (name, texts) in seen.iter().enumerate() {
        assert_eq!(texts, &seen[0], "subscriber {name} saw another order");
    }
    for name in 0..4 {
        let of = seen[0]
            .iter()
            .filter_map(|text| text.strip_prefix(&format!("{name}:")));
        let numbers: Vec<usize> = of.map(|number| number.parse().expect("a number")).collect();
        assert_eq!(numbers, (0..EACH).collect::<Vec<_>>());
    }
}

/// A subscriber gets every message between its subscription and its end, and no other one.
/// One client counts upwards on a channel while clients come and go. From its confirmation on, each
/// gets every number that is published later, without a gap, until it unsubscribes; and none after
/// that confirmation.
#[test]
fn subscriber_gets_all_messages_of_its_time() {
    on_every_target(&Options::with(&["--threads=2"]), |target| {
        let seed = seed();
        let (begun, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut publisher = target.client();
                for number in 1.. {
                    if ended.load(Ordering::SeqCst) {
                        break;
                    }
                    begun.store(number, Ordering::SeqCst);
                    publisher.call(&format!("PUBLISH count {number}"));
                }
            });
            let visitors: Vec<_> = (0..6)
                .map(|name| {
                    let begun = &begun;
                    let mut random = Random::new(seed.wrapping_add(name));
                    scope.spawn(move || {
                        let mut client = target.client();
                        for _ in 0..40 {
                            let published = begun.load(Ordering::SeqCst);
                            client.send(&words("SUBSCRIBE count"));
                            let first = client.reply();
                            assert_eq!(word(&first, 0), "subscribe");
                            let confirmed = begun.load(Ordering::SeqCst);
                            let mut next = None;
                            let many = random.below(8);
                            for _ in 0..many {
                                let number: u64 = number(&client.reply());
                                match next {
                                    // A message that was acknowledged before the subscription
                                    // does not come.
                                    None => assert!(
                                        number + 1 > published && number <= confirmed + 1,
                                        "{number} after {published}, {confirmed}, seed {seed}"
                                    ),
                                    Some(next) => assert_eq!(number, next, "seed {seed}"),
                                }
                                next = Some(number + 1);
                            }
                            let published = begun.load(Ordering::SeqCst);
                            client.send(&words("UNSUBSCRIBE"));
                            loop {
                                let reply = client.reply();
                                if word(&reply, 0) == "unsubscribe" {
                                    break;
                                }
                                let number = number(&reply);
                                next.inspect(|next| assert_eq!(number, *next, "seed {seed}"));
                                next = Some(number + 1);
                            }
                            // All messages that were acknowledged before the UNSUBSCRIBE.
                            if let Some(next) = next {
                                assert!(next >= published, "{next} of {published}, seed {seed}");
                            }
                            assert_eq!(client.call("GET none"), Reply::Null);
                        }
                    })
                })
                .collect();
            let all: Vec<_> = visitors.into_iter().map(|visitor| visitor.join()).collect();
            ended.store(true, Ordering::SeqCst);
            for result in all {
                if let Err(panic) = result {
                    std::panic::resume_unwind(panic);
                }
            }
        });
        let mut client = target.client();
        assert_eq!(client.call("PUBSUB CHANNELS"), Reply::Array(vec![]));
        assert_eq!(client.call("PUBLISH count 0"), Reply::Integer(0));
    });
}

fn word(value: &Reply, at: usize) -> &str {
    let (Reply::Array(items) | Reply::Push(items)) = value else {
        panic!("{value:?} is no message");
    };
    match &items[at] {
        Reply::Bulk(text) => std::str::from_utf8(text).expect("text"),
        other => panic!("{other:?} is no text"),
    }
}

fn number(message: &Reply) -> u64 {
    assert_eq!(word(message, 0), "message");
    word(message, 2).parse().expect("a number")
}

/// Large messages reach every subscriber whole and in order.
#[test]
fn large_messages_reach_every_subscriber_whole() {
    on_every_target(&Options::default(), |target| {
        let (mut two, mut three) = (target.client(), target.client());
        three.call("HELLO 3");
        two.call("SUBSCRIBE large");
        three.call("SUBSCRIBE large");
        let mut publisher = target.client();
        for size in [1 << 20, 3, 5 << 20, 100_000, 0] {
            let message: Vec<u8> = (0..size).map(|at| (at * 7 % 251) as u8).collect();
            let listeners = [&mut two, &mut three].map(|client| {
                let mut stream = client
                    .stream()
                    .try_clone()
                    .expect("a socket can be duplicated");
                let header = format!("*3\r\n$7\r\nmessage\r\n$5\r\nlarge\r\n${size}\r\n");
                thread::spawn(move || {
                    let mut got = vec![0; header.len() + size + 2];
                    stream.read_exact(&mut got).expect("read");
                    got
                })
            });
            let reply = publisher.call_args(&[b"PUBLISH".as_slice(), b"large", &message]);
            assert_eq!(reply, Reply::Integer(2), "{size} bytes");
            for (listener, kind) in listeners.into_iter().zip(["*", ">"]) {
                let got = listener.join().expect("a listener does not panic");
                let header = format!("{kind}3\r\n$7\r\nmessage\r\n$5\r\nlarge\r\n${size}\r\n");
                let expected = [header.as_bytes(), &message, b"\r\n"].concat();
                assert!(got == expected, "{size} bytes");
            }
        }
    });
}

#[test]
fn keyspace_notifications_reach_their_subscribers() {
    on_every_target(&Options::default(), |target| {
        target
            .direct_client()
            .call("CONFIG SET notify-keyspace-events KEA");
        let (mut keys, mut events, mut writer) =
            (target.client(), target.client(), target.client());
        keys.call("PSUBSCRIBE __keyspace@0__:user:*");
        events.call("SUBSCRIBE __keyevent@3__:set");
        writer.call("SET user:1 a");
        writer.call("SET other a");
        writer.call("DEL user:1");
        writer.call("SELECT 3");
        writer.call("SET third a");
        for event in ["set", "del"] {
            let message = keys.reply();
            assert_eq!(word(&message, 0), "pmessage");
            assert_eq!(word(&message, 2), "__keyspace@0__:user:1");
            assert_eq!(word(&message, 3), event);
        }
        assert_eq!(word(&events.reply(), 2), "third");
        assert!(keys.is_quiet(Duration::from_millis(20)));
    });
}

/// A subscriber that reads nothing is closed, and the others get every message.
#[test]
fn stalled_subscriber_is_closed_alone() {
    let target = proxied(&Options::with(&["--session-output-hard-bytes=4MiB"]));
    let mut slow = target.client();
    slow.call("SUBSCRIBE flood");
    let mut steady = target.client();
    steady.call("SUBSCRIBE flood");
    let mut publisher = target.client();
    let message = vec![b'm'; 64 << 10];
    const COUNT: usize = 1_000;
    // A subscriber with at most 16 messages in flight is not slow, however slow this machine is.
    let (took, taken) = std::sync::mpsc::sync_channel(16);
    let reader = thread::spawn(move || {
        for _ in 0..COUNT {
            taken.recv().expect("one more is published");
            assert_eq!(word(&steady.reply(), 2).len(), 64 << 10);
        }
        steady
    });
    let mut last = Reply::Null;
    for _ in 0..COUNT {
        took.send(()).expect("the reader goes on");
        last = publisher.call_args(&[b"PUBLISH".as_slice(), b"flood", &message]);
    }
    let mut steady = reader.join().expect("the steady reader gets all messages");
    assert_eq!(last, Reply::Integer(1), "the slow subscriber is closed");
    assert!(target.proxy().log().contains("session-output-hard-bytes"));
    assert!(
        target.proxy().rss_peak() < 128 << 20,
        "respool dropped the unread messages"
    );
    // Messages in flight, then the end.
    while slow.try_reply_bytes().is_ok() {}
    assert_eq!(publisher.call("PUBLISH flood last"), Reply::Integer(1));
    assert_eq!(word(&steady.reply(), 2), "last");
}

/// After a lost link respool subscribes again, and subscribers notice nothing.
#[test]
fn lost_link_is_subscribed_again_unnoticed() {
    let options = Options::with(&["--threads=2", "--lost-subscriptions=keep"]);
    before_every_server(&options, |target| {
        let mut subscribers: Vec<RespClient> = (0..6).map(|_| target.client()).collect();
        for client in &mut subscribers {
            client.call("SUBSCRIBE a b");
            client.reply();
            client.call("PSUBSCRIBE p*");
        }
        let mut publisher = target.client();
        let reaches_all = |target: &Target, publisher: &mut RespClient, round: &str| {
            // Wait until the server knows both workers again.
            let mut direct = target.direct_client();
            wait_until("all channels are subscribed to again", PATIENCE, || {
                let numsub = direct.call("PUBSUB NUMSUB a b");
                let Reply::Array(counts) = numsub else {
                    return false;
                };
                counts[1] == counts[3]
                    && counts[1] != Reply::Integer(0)
                    && publisher.call("PUBLISH probe x").error().is_none()
                    && publisher.call("PUBSUB NUMSUB a")
                        == Reply::Array(vec![Reply::bulk("a"), Reply::Integer(6)])
                    && publisher.call("PUBLISH p-probe x") == Reply::Integer(6)
            });
            assert_eq!(
                publisher.call(&format!("PUBLISH a {round}")),
                Reply::Integer(6)
            );
            assert_eq!(
                publisher.call(&format!("PUBLISH pp {round}")),
                Reply::Integer(6)
            );
        };
        let expect = |subscribers: &mut Vec<RespClient>, round: &str| {
            for client in subscribers {
                let texts = loop {
                    let message = client.reply();
                    let text = word(
                        &message,
                        if word(&message, 0) == "pmessage" {
                            3
                        } else {
                            2
                        },
                    );
                    if text != "x" {
                        break (word(&message, 1).to_owned(), text.to_owned());
                    }
                };
                assert_eq!(texts, ("a".to_owned(), round.to_owned()));
                let message = client.reply();
                assert_eq!((word(&message, 2), word(&message, 3)), ("pp", round));
            }
        };
        reaches_all(target, &mut publisher, "first");
        expect(&mut subscribers, "first");
        // The server closes the connections that are subscribed.
        let killed = target.direct_client().call("CLIENT KILL TYPE pubsub");
        assert!(matches!(killed, Reply::Integer(1..=2)), "{killed:?}");
        reaches_all(target, &mut publisher, "second");
        expect(&mut subscribers, "second");
        target.server.restart().expect("the server starts again");
        reaches_all(target, &mut publisher, "third");
        expect(&mut subscribers, "third");
        // Subscribers can still unsubscribe.
        for client in &mut subscribers {
            client.call("UNSUBSCRIBE");
            client.reply();
            client.call("PUNSUBSCRIBE");
            assert_eq!(client.call("GET none"), Reply::Null);
        }
        assert_eq!(publisher.call("PUBSUB CHANNELS"), Reply::Array(vec![]));
    });
}

/// SUBSCRIBE waits for an absent server, and gets an error at the deadline.
#[test]
fn subscribe_waits_for_an_absent_server() {
    // A pause between attempts may by then be longer than a request waits.
    let options = Options::with(&["--request-timeout-ms=1500", "--reconnect-max-ms=200"]);
    let server = Target::direct(&any_server(), &options);
    let fault_proxy = FaultProxy::start(server.server.address(), FaultMode::CloseOnAccept);
    let target = server.behind(fault_proxy.address(), &options);
    let (mut early, mut late) = (target.client(), target.client());
    let began = Instant::now();
    early.send(&words("SUBSCRIBE a"));
    let reply = early.reply();
    assert!(reply.error().is_some_and(is_not_executed), "{reply:?}");
    assert!(
        began.elapsed() >= Duration::from_millis(1400),
        "the SUBSCRIBE waited"
    );
    // Not subscribed, and so not restricted.
    late.send(&words("SUBSCRIBE a"));
    assert!(late.is_quiet(Duration::from_millis(100)));
    fault_proxy.set(FaultMode::Pass);
    assert_eq!(word(&late.reply(), 0), "subscribe");
    let mut publisher = target.client();
    wait_until("the server is back", PATIENCE, || {
        publisher.call("PUBLISH a m") == Reply::Integer(1)
    });
    assert_eq!(word(&late.reply(), 2), "m");
    assert_eq!(early.call("PING"), Reply::Simple("PONG".into()));
}

/// An error of the server reaches the client that asked, and subscribes no client.
#[test]
fn refused_subscribe_reaches_its_client_only() {
    for binary in installed() {
        let mut expected = None;
        for target in [
            Target::direct(&binary, &Options::default()),
            Target::proxied(&binary, &Options::default()),
        ] {
            let set = target
                .direct_client()
                .call("ACL SETUSER default resetchannels &ok");
            assert_eq!(set, Reply::ok());
            let mut client = target.client();
            let refused = client.call("SUBSCRIBE ok bad");
            assert!(
                refused
                    .error()
                    .is_some_and(|text| text.starts_with("NOPERM ")),
                "{refused:?}"
            );
            assert_eq!(*expected.get_or_insert(refused.clone()), refused);
            assert_eq!(
                client.call("GET none"),
                Reply::Null,
                "the session is not restricted"
            );
            assert_eq!(word(&client.call("SUBSCRIBE ok"), 0), "subscribe");
            let refused = client.call("PSUBSCRIBE o*");
            assert!(
                refused
                    .error()
                    .is_some_and(|text| text.starts_with("NOPERM "))
            );
            assert_eq!(target.client().call("PUBLISH ok m"), Reply::Integer(1));
            assert_eq!(word(&client.reply(), 2), "m");
        }
    }
}

#[test]
fn client_list_shows_subscriptions() {
    on_every_target(&Options::default(), |target| {
        let mut client = target.client();
        client.call("CLIENT SETNAME listener");
        client.send(&words("SUBSCRIBE a b"));
        client.replies(2);
        client.call("PSUBSCRIBE p*");
        let mut other = target.client();
        let listed = |other: &mut RespClient, command: &str| -> Vec<String> {
            let (Reply::Bulk(text) | Reply::Other(_, text)) = other.call(command) else {
                panic!("{command} answers with a text");
            };
            let text = String::from_utf8(text).expect("text");
            text.lines().map(|line| line.to_owned()).collect()
        };
        let all = listed(&mut other, "CLIENT LIST TYPE pubsub");
        // The list contains only clients of respool. The server itself lists its own clients.
        let lines: Vec<&String> = all
            .iter()
            .filter(|line| line.contains("listener"))
            .collect();
        assert_eq!((lines.len(), all.len()), (1, 1), "{all:?}");
        for field in [" flags=P ", " sub=2 ", " psub=1 "] {
            assert!(lines[0].contains(field), "{field} in {}", lines[0]);
        }
        client.call("RESET");
        assert!(
            listed(&mut other, "CLIENT LIST TYPE pubsub")
                .iter()
                .all(String::is_empty)
        );
    });
}

/// A channel that one user may listen to stays refused to another one.
#[test]
fn channel_rights_are_each_users_own() {
    on_every_target(&Options::default(), |target| {
        let mut direct = target.direct_client();
        for (user, channel) in [("anna", "a"), ("bert", "b")] {
            let set = format!("ACL SETUSER {user} on >secret +@all ~* resetchannels &{channel}");
            assert_eq!(direct.call(&set), Reply::ok());
        }
        let users = [("anna", "a", "b"), ("bert", "b", "a")];
        let mut listeners: Vec<RespClient> = users
            .iter()
            .map(|(user, own, others)| {
                let mut client = target.client();
                assert_eq!(client.call(&format!("AUTH {user} secret")), Reply::ok());
                let refused = client.call(&format!("SUBSCRIBE {others}"));
                assert!(
                    refused
                        .error()
                        .is_some_and(|text| text.starts_with("NOPERM ")),
                    "{refused:?}"
                );
                assert_eq!(
                    word(&client.call(&format!("SUBSCRIBE {own}")), 0),
                    "subscribe"
                );
                client
            })
            .collect();
        let mut anybody = target.client();
        assert_eq!(word(&anybody.call("PSUBSCRIBE ?"), 0), "psubscribe");
        let mut publisher = target.client();
        for (listener, (_, own, _)) in listeners.iter_mut().zip(users) {
            assert_eq!(
                publisher.call(&format!("PUBLISH {own} m")),
                Reply::Integer(2)
            );
            assert_eq!(word(&listener.reply(), 1), own);
            assert_eq!(word(&anybody.reply(), 2), own);
        }
        for listener in &mut listeners {
            assert!(listener.is_quiet(Duration::from_millis(20)));
        }
    });
}

#[test]
fn a_subscriber_is_never_idle() {
    let target = proxied(&Options::with(&["--session-idle-ms=300"]));
    let (mut subscriber, mut idle) = (target.client(), target.client());
    subscriber.call("SUBSCRIBE a");
    idle.call("PING");
    idle.expect_closed();
    thread::sleep(Duration::from_millis(500));
    assert_eq!(target.client().call("PUBLISH a m"), Reply::Integer(1));
    assert_eq!(word(&subscriber.reply(), 2), "m");
    // The session is closed once it has no subscription.
    subscriber.call("UNSUBSCRIBE");
    subscriber.expect_closed();
}

#[test]
fn subscriptions_have_a_bound_for_each_session_and_for_all() {
    let target = proxied(&Options::with(&[
        "--session-subscriptions-max=3",
        "--worker-subscriptions-max=5",
    ]));
    let (mut one, mut two) = (target.client(), target.client());
    let refused = |reply: Reply, name: &str| {
        let text = reply
            .error()
            .unwrap_or_else(|| panic!("{reply:?} is no error"))
            .to_owned();
        assert!(
            text.starts_with("NOTSENT respool: ") && text.contains(name),
            "{text}"
        );
    };
    refused(one.call("SUBSCRIBE a b c d"), "session-subscriptions-max");
    one.send(&words("SUBSCRIBE a b c"));
    assert_eq!(one.replies(3).len(), 3);
    // A channel that a session has already does not count again.
    assert_eq!(word(&one.call("SUBSCRIBE a"), 0), "subscribe");
    refused(one.call("PSUBSCRIBE d"), "session-subscriptions-max");
    refused(two.call("SUBSCRIBE a b c"), "worker-subscriptions-max");
    two.send(&words("SUBSCRIBE a b"));
    assert_eq!(two.replies(2).len(), 2);
    one.call("UNSUBSCRIBE b");
    assert_eq!(word(&two.call("SSUBSCRIBE c"), 0), "ssubscribe");
}

/// INFO counts subscriptions and messages, and subscriptions are gone with their subscriber.
#[test]
fn subscription_counts_fall_when_a_subscriber_leaves() {
    let target = proxied(&Options::default());
    let mut watcher = target.client();
    let mut subscriber = target.client();
    subscriber.send(&request(&["SUBSCRIBE", "a", "b"]));
    subscriber.replies(2);
    subscriber.call("PSUBSCRIBE *");
    watcher.call("PUBLISH a m");
    subscriber.replies(2);
    let info = |watcher: &mut RespClient, field: &str| -> u64 {
        let (Reply::Bulk(text) | Reply::Other(_, text)) = watcher.call("INFO respool") else {
            panic!("INFO answers with a text");
        };
        let text = String::from_utf8(text).expect("text");
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("respool_{field}:")));
        line.unwrap_or_else(|| panic!("{field} in {text}"))
            .parse()
            .expect("a number")
    };
    assert_eq!(info(&mut watcher, "subscriptions"), 3);
    assert_eq!(info(&mut watcher, "messages_in"), 2);
    assert_eq!(info(&mut watcher, "messages_out"), 2);
    drop(subscriber);
    wait_until("respool holds no output for the client", PATIENCE, || {
        info(&mut watcher, "subscriptions") == 0
    });
    let mut direct = target.direct_client();
    wait_until("the server has no subscription", PATIENCE, || {
        direct.call("PUBSUB CHANNELS") == Reply::Array(vec![])
    });
    wait_until("the unused pub/sub link is closed", PATIENCE, || {
        let Reply::Bulk(list) = direct.call("CLIENT LIST") else {
            return false;
        };
        !String::from_utf8_lossy(&list).contains("resp=3")
    });
}
