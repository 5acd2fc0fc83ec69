//! Sharded channels before a Cluster: each is at the owner of its slot, and to a client there is
//! one server.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use respool_protocol::slot::hash_slot;
use respool_testkit::client::{Reply, RespClient, is_not_executed, words};
use respool_testkit::random::{Random, seed};
use respool_testkit::servers;
use respool_testkit::time::wait_until;
use respool_testkit::topologies::ClusterSettings;

use crate::topology::cluster::{
    SOON, Served, fail_over, key_in, primaries, some_server_of, with_every_server,
};

/// Nodes that claim a slot at the same moment may leave it without an owner.
const BETWEEN_MOVES: Duration = Duration::from_millis(300);

/// Whether a node has sharded channels at all: since Redis 7.
fn has_channels(binary: &Path, served: &Served) -> bool {
    let mut node = RespClient::connect(served.cluster.node(0).address());
    let said = node.call("PUBSUB SHARDCHANNELS");
    let has = said.error().is_none();
    if !has {
        eprintln!("no sharded channels with {}", binary.display());
    }
    has
}

/// One of the servers at hand that have sharded channels; over many runs each has its turn.
pub(crate) fn some_server_with_them() -> PathBuf {
    some_server_of(|binary| {
        let said = servers::version(binary).unwrap_or_else(|error| panic!("{error}"));
        !said.starts_with("redis 6.")
    })
}

fn message(channel: &str, text: &str) -> Vec<Reply> {
    vec![
        Reply::bulk("smessage"),
        Reply::bulk(channel),
        Reply::bulk(text),
    ]
}

fn confirmed(word: &str, channel: &str, count: i64) -> Vec<Reply> {
    vec![
        Reply::bulk(word),
        Reply::bulk(channel),
        Reply::Integer(count),
    ]
}

fn items(value: Reply) -> Vec<Reply> {
    match value {
        Reply::Array(items) | Reply::Push(items) => items,
        other => panic!("{other:?} is no message"),
    }
}

fn subscribe(client: &mut RespClient, channel: &str, count: i64) {
    let said = items(client.call(&format!("SSUBSCRIBE {channel}")));
    assert_eq!(said, confirmed("ssubscribe", channel, count));
}

/// Publishes until `receivers` clients have received the message. Returns the number of tries.
fn publish_until(client: &mut RespClient, channel: &str, text: &str, receivers: i64) -> usize {
    let mut times = 0;
    wait_until("the message reaches all subscribers", SOON, || {
        times += 1;
        let said = client.call(&format!("SPUBLISH {channel} {text}"));
        assert!(said.error().is_none(), "{said:?}");
        said == Reply::Integer(receivers)
    });
    times
}

/// Clients subscribe to the sharded channels of all owners as to those of one server.
#[test]
fn ssubscribe_reaches_the_channels_of_all_owners() {
    with_every_server(|binary| {
        let served = Served::start(binary, primaries(), &["--threads=2"]);
        if !has_channels(binary, &served) {
            let mut client = served.client();
            let mut node = RespClient::connect(served.cluster.node(0).address());
            for asked in ["SSUBSCRIBE a", "SUNSUBSCRIBE", "SPUBLISH a b"] {
                let own = node.call(asked);
                assert!(
                    own.error()
                        .is_some_and(|text| text.starts_with("ERR unknown command"))
                );
                assert_eq!(client.call(asked), own, "{asked}");
            }
            return;
        }
        let names: Vec<String> = (0..60).map(|number| format!("channel:{number}")).collect();
        let (mut two, mut three) = (served.client(), served.client());
        three.call("HELLO 3");
        let mut few = served.client();
        for (index, name) in names.iter().enumerate() {
            subscribe(&mut two, name, index as i64 + 1);
            subscribe(&mut three, name, index as i64 + 1);
        }
        subscribe(&mut few, &names[7], 1);
        // The nodes count one subscription for each worker with a subscriber.
        for name in &names {
            let owner = served.cluster.node(served.owner(name)).address();
            let counted = RespClient::connect(owner).call(&format!("PUBSUB SHARDNUMSUB {name}"));
            let Reply::Array(pair) = counted else {
                panic!("{counted:?}");
            };
            assert!(matches!(pair[1], Reply::Integer(1..=2)), "{name}: {pair:?}");
        }
        let mut other = served.client();
        for (index, name) in names.iter().enumerate() {
            let receivers = if index == 7 { 3 } else { 2 };
            assert_eq!(
                other.call(&format!("SPUBLISH {name} x")),
                Reply::Integer(receivers)
            );
            let owner = served.cluster.node(served.owner(name)).address();
            RespClient::connect(owner).call(&format!("SPUBLISH {name} y"));
            for client in [&mut two, &mut three] {
                for text in ["x", "y"] {
                    assert_eq!(items(client.reply()), message(name, text));
                }
            }
        }
        for text in ["x", "y"] {
            assert_eq!(items(few.reply()), message(&names[7], text));
        }
        let asked = format!("PUBSUB SHARDNUMSUB {} none", names.join(" "));
        let Reply::Array(counts) = other.call(&asked) else {
            panic!("SHARDNUMSUB answers with an array");
        };
        assert_eq!(counts.len(), 2 * (names.len() + 1));
        for (index, [name, count]) in counts.as_chunks().0.iter().enumerate() {
            let (its, receivers) = match index {
                7 => (names[index].as_str(), 3),
                60 => ("none", 0),
                _ => (names[index].as_str(), 2),
            };
            assert_eq!(
                (name, count),
                (&Reply::bulk(its), &Reply::Integer(receivers))
            );
        }
        let Reply::Array(channels) = other.call("PUBSUB SHARDCHANNELS channel:*") else {
            panic!("SHARDCHANNELS answers with an array");
        };
        let channels: BTreeSet<String> = channels.iter().map(|name| format!("{name:?}")).collect();
        assert_eq!(channels.len(), names.len());
        // The client leaves one channel by name, then all channels of all owners at once.
        let left = items(two.call(&format!("SUNSUBSCRIBE {}", names[0])));
        assert_eq!(left, confirmed("sunsubscribe", &names[0], 59));
        two.send(&words("SUNSUBSCRIBE"));
        let left: Vec<Vec<Reply>> = (0..59).map(|_| items(two.reply())).collect();
        for (place, left) in left.iter().enumerate() {
            assert_eq!(left[2], Reply::Integer(58 - place as i64));
        }
        assert_eq!(two.call("GET none"), Reply::Null);
        assert_eq!(three.call("RESET"), Reply::Simple("RESET".into()));
        drop(few);
        wait_until("no sharded channel is left", SOON, || {
            other.call("PUBSUB SHARDCHANNELS") == Reply::Array(vec![])
        });
        for (index, name) in names.iter().enumerate() {
            assert_eq!(
                other.call(&format!("SPUBLISH {name} z")),
                Reply::Integer(0),
                "{index}"
            );
        }
        let nothing = items(two.call("SUNSUBSCRIBE"));
        assert_eq!(nothing[1..], [Reply::Null, Reply::Integer(0)]);
        subscribe(&mut two, &names[0], 1);
    });
}

#[test]
fn sharded_channels_that_are_named_together_are_of_one_slot() {
    let served = Served::start(&some_server_with_them(), primaries(), &["--threads=1"]);
    let mut client = served.client();
    let mut node = RespClient::connect(served.cluster.node(0).address());
    for asked in ["SSUBSCRIBE a b", "SUNSUBSCRIBE a b"] {
        let own = node.call(asked);
        assert!(
            own.error()
                .is_some_and(|text| text.starts_with("CROSSSLOT")),
            "{own:?}"
        );
        assert_eq!(client.call(asked), own);
    }
    client.send(&words("SSUBSCRIBE {a}1 {a}2 {a}1"));
    for (name, count) in [("{a}1", 1), ("{a}2", 2), ("{a}1", 2)] {
        assert_eq!(items(client.reply()), confirmed("ssubscribe", name, count));
    }
    // Ordinary channels and patterns are elsewhere, and counted for themselves.
    assert_eq!(
        items(client.call("SUBSCRIBE {a}1")),
        confirmed("subscribe", "{a}1", 1)
    );
    let mut other = served.client();
    assert_eq!(other.call("SPUBLISH {a}1 s"), Reply::Integer(1));
    assert_eq!(items(client.reply()), message("{a}1", "s"));
    assert_eq!(other.call("PUBLISH {a}1 p"), Reply::Integer(1));
    assert_eq!(items(client.reply())[0], Reply::bulk("message"));
    // Watching a key of one node does not bind to it.
    let mut watching = served.client();
    let key = key_in(|slot| slot < 5_000, 0);
    assert_eq!(watching.call(&format!("WATCH {key}")), Reply::ok());
    for (index, share) in [0, 1, 2].into_iter().enumerate() {
        let name = key_in(|slot| served.cluster.share(share).contains(&slot), 1);
        watching.call("HELLO 3");
        subscribe(&mut watching, &name, index as i64 + 1);
    }
}

/// Numbers published on a channel through respool reach every subscriber in order, and none twice,
/// while its slot moves between nodes. Only messages published while the slot had no owner may be
/// missing.
#[test]
fn subscribers_stay_while_the_slots_of_their_channels_move() {
    with_every_server(|binary| {
        let served = Served::start(binary, primaries(), &["--threads=2"]);
        if !has_channels(binary, &served) {
            return;
        }
        let names: Vec<String> = (0..6).map(|number| format!("moves:{number}")).collect();
        let mut subscribers: Vec<RespClient> = (0..6).map(|_| served.client()).collect();
        for (index, client) in subscribers.iter_mut().enumerate() {
            if index % 2 == 0 {
                client.call("HELLO 3");
            }
            for (count, name) in (1..).zip(&names) {
                subscribe(client, name, count);
            }
        }
        let mut random = Random::new(seed());
        let mut other = served.client();
        let mut number = 0;
        for _ in 0..8 {
            let name = &names[random.below(6) as usize];
            let from = served.owner(name);
            let to = (from + 1 + random.below(2) as usize) % 3;
            thread::scope(|scope| {
                let moving = scope.spawn(|| served.move_key(name, to));
                while !moving.is_finished() {
                    for name in &names {
                        number += 1;
                        let said = other.call(&format!("SPUBLISH {name} {number}"));
                        assert!(matches!(said, Reply::Integer(0..=6)), "{said:?}");
                    }
                }
            });
            // The subscribers are there again without a word.
            number += publish_until(&mut other, name, &format!("last:{number}"), 6);
            thread::sleep(BETWEEN_MOVES);
        }
        for name in &names {
            publish_until(&mut other, name, "end", 6);
        }
        for client in &mut subscribers {
            let mut last = vec![0; names.len()];
            let mut ended = BTreeSet::new();
            while ended.len() < names.len() {
                let got = items(client.reply());
                assert_eq!(got[0], Reply::bulk("smessage"), "{got:?}");
                let place = names.iter().position(|name| got[1] == Reply::bulk(name));
                let place = place.expect("the message has a channel of the client");
                let Reply::Bulk(text) = &got[2] else {
                    panic!("{got:?}");
                };
                let text = String::from_utf8(text.clone()).expect("text");
                if text == "end" {
                    ended.insert(place);
                } else if let Ok(number) = text.parse::<usize>() {
                    assert!(number > last[place], "{number} behind {}", last[place]);
                    last[place] = number;
                }
            }
            assert_eq!(client.call("SUNSUBSCRIBE none"), {
                let said = confirmed("sunsubscribe", "none", 6);
                match client_is_three(client) {
                    true => Reply::Push(said),
                    false => Reply::Array(said),
                }
            });
        }
    });
}

/// Wakes all waiting threads, however the run ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn client_is_three(client: &mut RespClient) -> bool {
    // In RESP2 a subscriber's PING is answered by an array.
    matches!(client.call("PING"), Reply::Simple(_))
}

/// A client that subscribes and leaves while slots move gets no error.
#[test]
fn ssubscribe_is_not_refused_while_slots_move() {
    with_every_server(|binary| {
        let served = Served::start(binary, primaries(), &["--threads=2"]);
        if !has_channels(binary, &served) {
            return;
        }
        let names: Vec<String> = (0..4).map(|number| format!("come:{number}")).collect();
        let mut random = Random::new(seed());
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let moving = scope.spawn(|| {
                let _over = Over(&over);
                for round in 0..10 {
                    let name = &names[round % 4];
                    let from = served.owner(name);
                    served.move_key(name, (from + 1) % 3);
                    thread::sleep(BETWEEN_MOVES);
                }
            });
            let (names, over, served) = (&names, &over, &served);
            let visit = move |at: u64, mut random: Random| {
                let mut client = served.client();
                if at.is_multiple_of(2) {
                    client.call("HELLO 3");
                }
                while !over.load(Ordering::SeqCst) {
                    let name = &names[random.below(4) as usize];
                    subscribe(&mut client, name, 1);
                    let left = items(client.call("SUNSUBSCRIBE"));
                    assert_eq!(left, confirmed("sunsubscribe", name, 0));
                }
            };
            for at in 0..4 {
                let random = Random::new(random.below(1 << 40));
                scope.spawn(move || visit(at, random));
            }
            moving.join().expect("slots move");
        });
        let mut client = served.client();
        wait_until("no sharded channel is left", SOON, || {
            client.call("PUBSUB SHARDCHANNELS") == Reply::Array(vec![])
        });
        for node in served.cluster.nodes() {
            let left = RespClient::connect(node.address()).call("PUBSUB SHARDCHANNELS");
            assert_eq!(left, Reply::Array(vec![]));
        }
    });
}

#[test]
fn subscribers_stay_when_the_owner_of_their_channels_fails() {
    with_every_server(|binary| {
        let args = [
            "--threads=2",
            "--reconnect-max-ms=200",
            "--lost-subscriptions=keep",
        ];
        let mut served = Served::start(binary, ClusterSettings::default(), &args);
        if !has_channels(binary, &served) {
            return;
        }
        let names: Vec<String> = (0..3)
            .map(|share| key_in(|slot| served.cluster.share(share).contains(&slot), 0))
            .collect();
        let (mut two, mut three, mut other) = (served.client(), served.client(), served.client());
        three.call("HELLO 3");
        for (count, name) in (1..).zip(&names) {
            subscribe(&mut two, name, count);
            subscribe(&mut three, name, count);
        }
        let reaches = |other: &mut RespClient, text: &str| {
            for name in &names {
                wait_until("the message reaches both subscribers", SOON, || {
                    other.call(&format!("SPUBLISH {name} {text}")) == Reply::Integer(2)
                });
            }
        };
        fail_over(&served.cluster, 0, 3);
        reaches(&mut other, "by-command");
        served.cluster.node(1).kill9();
        let slot = *served.cluster.share(1).start();
        let new_owner = served.cluster.wait_for_other_owner(slot, 1, SOON);
        assert_eq!(new_owner.unwrap_or_else(|error| panic!("{error}")), 4);
        reaches(&mut other, "by-death");
        let restarted = served.cluster.node_mut(1).restart();
        restarted.unwrap_or_else(|error| panic!("{error}"));
        served.whole();
        reaches(&mut other, "whole");
        for client in [&mut two, &mut three] {
            let mut left: BTreeSet<&String> = names.iter().collect();
            while !left.is_empty() {
                let got = items(client.reply());
                assert_eq!(got[0], Reply::bulk("smessage"), "{got:?}");
                if got[2] == Reply::bulk("whole") {
                    left.retain(|name| got[1] != Reply::bulk(name));
                }
            }
        }
    });
}

/// A subscription to a channel without owner waits as long as a request may take.
#[test]
fn channel_without_owner_waits_for_the_request_timeout() {
    let settings = ClusterSettings {
        args: vec!["--cluster-require-full-coverage".into(), "no".into()],
        ..primaries()
    };
    let args = ["--threads=1", "--request-timeout-ms=1500"];
    let mut served = Served::start(&some_server_with_them(), settings, &args);
    let name = key_in(|slot| served.cluster.share(2).contains(&slot), 0);
    let mut client = served.client();
    served.cluster.node(2).kill9();
    let asked = Instant::now();
    let said = client.call(&format!("SSUBSCRIBE {name}"));
    let text = said.error().unwrap_or_default();
    assert!(is_not_executed(text), "{said:?}");
    assert!(asked.elapsed() < Duration::from_secs(10));
    // Channels of other slots are not affected.
    let there = key_in(|slot| served.cluster.share(0).contains(&slot), 0);
    subscribe(&mut client, &there, 1);
    let restarted = served.cluster.node_mut(2).restart();
    restarted.unwrap_or_else(|error| panic!("{error}"));
    wait_until("the slot of the channel is served again", SOON, || {
        let said = items_or_error(client.call(&format!("SSUBSCRIBE {name}")));
        said.is_some_and(|said| said == confirmed("ssubscribe", &name, 2))
    });
}

fn items_or_error(value: Reply) -> Option<Vec<Reply>> {
    value.error().is_none().then(|| items(value))
}

#[test]
fn sharded_channels_are_bounded_as_others_are() {
    let args = [
        "--threads=1",
        "--session-subscriptions-max=5",
        "--worker-subscriptions-max=8",
    ];
    let served = Served::start(&some_server_with_them(), primaries(), &args);
    let (mut one, mut two) = (served.client(), served.client());
    for count in 1..=5 {
        subscribe(&mut one, &format!("bound:{count}"), count);
    }
    let refused = one.call("SSUBSCRIBE bound:6");
    let text = refused.error().unwrap_or_default();
    assert!(text.contains("session-subscriptions-max"), "{refused:?}");
    for count in 1..=3 {
        subscribe(&mut two, &format!("bound:{}", count + 5), count);
    }
    let refused = two.call("SSUBSCRIBE bound:9");
    let text = refused.error().unwrap_or_default();
    assert!(text.contains("worker-subscriptions-max"), "{refused:?}");
    one.call("SUNSUBSCRIBE bound:1");
    subscribe(&mut two, "bound:9", 4);
    let slots: BTreeSet<u16> = (1..10)
        .map(|at| hash_slot(format!("bound:{at}").as_bytes()))
        .collect();
    assert_eq!(slots.len(), 9, "the channels belong to different slots");
}
