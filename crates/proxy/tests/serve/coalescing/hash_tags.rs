//! Hash tags before a Cluster: neighbouring requests for one slot leave together.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use respool_protocol::slot::hash_slot;
use respool_testkit::client::{Reply, RespClient, counter, pipelined};
use respool_testkit::random::{Random, seed};
use respool_testkit::time::wait_until;

use crate::topology::cluster::{
    SOON, Served, calm_primaries, move_slots, primaries, some_server, with_every_server,
};
use crate::topology::replicas::all_calls;

/// As often as the nodes together have executed a command.
fn calls(served: &Served, command: &str) -> u64 {
    all_calls(&served.cluster.addresses(), command)
}

fn all(requests: impl Iterator<Item = String>) -> String {
    requests.collect::<Vec<_>>().join(";")
}

/// The first requests of a burst go alone, until they have shown that the user may send the fused
/// form.
fn shown(client: &mut RespClient, tag: &str) {
    for (command, value, counted) in [("SET", " first", "fused_sets"), ("GET", "", "fused_gets")] {
        let before = counter(client, counted);
        let requests = all((0..4).map(|number| format!("{command} {tag}:{number}{value}")));
        wait_until("the counter shows the joined batch", SOON, || {
            let replies = pipelined(client, &requests);
            assert!(
                replies.iter().all(|reply| reply.error().is_none()),
                "{replies:?}"
            );
            counter(client, counted) > before
        });
    }
}

/// Neighbouring requests for one slot are fused.
#[test]
fn neighbours_of_one_slot_are_fused() {
    with_every_server(|binary| {
        let served = Served::start(binary, primaries(), &["--threads=1"]);
        let mut client = served.client();
        shown(&mut client, "{a}");
        assert_eq!(client.call("RPUSH {a}:list 1"), Reply::Integer(1));
        let before = ["get", "set", "mget", "mset"].map(|name| calls(&served, name));
        let sets = all((0..50).map(|number| format!("SET {{a}}:{number} v{number}")));
        assert!(
            pipelined(&mut client, &sets)
                .iter()
                .all(|reply| *reply == Reply::ok())
        );
        let gets =
            all((0..50).map(|number| format!("GET {{a}}:{number}"))) + ";GET {a}:none;GET {a}:list";
        let replies = pipelined(&mut client, &gets);
        for (number, reply) in replies[..50].iter().enumerate() {
            assert_eq!(*reply, Reply::bulk(format!("v{number}")));
        }
        assert_eq!(replies[50], Reply::Null);
        let wrong = replies[51].error().unwrap_or_default();
        assert!(wrong.starts_with("WRONGTYPE "), "{:?}", replies[51]);
        let after = ["get", "set", "mget", "mset"].map(|name| calls(&served, name));
        let [get, set, mget, mset] = [0, 1, 2, 3].map(|of| after[of] - before[of]);
        // A pipeline may come in two pieces.
        assert!(get <= 10 && set <= 10, "{get} GETs, {set} SETs");
        assert!(
            (1..5).contains(&mget) && (1..5).contains(&mset),
            "{mget}, {mset}"
        );
        assert!(counter(&mut client, "fused_gets") >= 40);
        assert!(counter(&mut client, "fused_sets") >= 40);
        assert_eq!(counter(&mut client, "slot_fusing_stops"), 0);
    });
}

/// Requests that rarely share a slot are not fused.
#[test]
fn rarely_shared_slots_are_not_fused() {
    let served = Served::start(&some_server(), primaries(), &["--threads=1"]);
    let mut client = served.client();
    for node in 0..3 {
        // Each node's own GET and SET.
        let key =
            crate::topology::cluster::key_in(|slot| served.cluster.share(node).contains(&slot), 0);
        shown(&mut client, &format!("{{{key}}}"));
    }
    let before = [calls(&served, "mget"), calls(&served, "mset")];
    for round in 0..60 {
        let sets = all((0..100).map(|number| format!("SET {round}:{number} {number}")));
        assert!(
            pipelined(&mut client, &sets)
                .iter()
                .all(|reply| *reply == Reply::ok())
        );
        let gets = all((0..100).map(|number| format!("GET {round}:{number}")));
        for (number, reply) in pipelined(&mut client, &gets).iter().enumerate() {
            assert_eq!(*reply, Reply::bulk(number.to_string()));
        }
    }
    assert!(counter(&mut client, "slot_fusing_stops") >= 1);
    let after = [calls(&served, "mget"), calls(&served, "mset")];
    let joined = after[0] + after[1] - before[0] - before[1];
    assert!(joined < 120, "{joined} MGETs and MSETs of 12,000 requests");
}

/// A client's requests for several slots of one node get their replies in order, and each GET sees
/// the client's earlier SET.
#[test]
fn one_clients_requests_for_several_slots_keep_order() {
    let served = Served::start(&some_server(), primaries(), &["--threads=1"]);
    let in_first = |slot| served.cluster.share(0).contains(&slot);
    let tags = [0, 1, 2]
        .map(|number| format!("{{{}}}", crate::topology::cluster::key_in(in_first, number)));
    let mut client = served.client();
    shown(&mut client, &tags[0]);
    let mut random = Random::new(seed());
    for round in 0..300 {
        let turns: Vec<u64> = (0..1 + random.below(12)).map(|_| random.below(3)).collect();
        let ask = |command: &str, value: &str| {
            let keys = turns.iter().enumerate();
            let ask = |(number, tag): (usize, &u64)| {
                format!("{command} {}{number}{value}", tags[*tag as usize])
            };
            all(keys.map(ask))
        };
        let requests = [ask("SET", &format!(" {round}")), ask("GET", "")].join(";");
        let replies = pipelined(&mut client, &requests);
        let (set, got) = replies.split_at(turns.len());
        assert!(
            set.iter().all(|reply| *reply == Reply::ok()),
            "{requests}: {set:?}"
        );
        let value = Reply::bulk(round.to_string());
        assert!(
            got.iter().all(|reply| *reply == value),
            "{requests}: {got:?}"
        );
    }
    let log = served.proxy.log();
    assert!(!log.contains("panicked at"), "{log}");
}

/// While slots move, every reply to a fused request fits the order of its session.
#[test]
fn fused_requests_survive_a_moving_slot() {
    const TAGS: u64 = 3;
    with_every_server(|binary| {
        let served = Served::start(binary, calm_primaries(), &["--threads=2"]);
        let over = AtomicBool::new(false);
        let rounds = AtomicU64::new(0);
        for tag in 0..TAGS {
            let list = served.client().call(&format!("RPUSH {{t{tag}}}:list 1"));
            assert_eq!(list, Reply::Integer(1));
        }
        thread::scope(|scope| {
            for session in 0..8_u64 {
                let (served, over, rounds) = (&served, &over, &rounds);
                scope.spawn(move || {
                    let mut client = served.client();
                    let mut random = Random::new(seed() ^ session);
                    for round in 0.. {
                        if over.load(Ordering::SeqCst) {
                            break;
                        }
                        let tag = format!("{{t{}}}", random.below(TAGS));
                        let count = 1 + random.below(12);
                        let key = |number| format!("{tag}:{session}:{number}");
                        let sets = (0..count).map(|number| format!("SET {} {round}", key(number)));
                        let gets = (0..count).map(|number| format!("GET {}", key(number)));
                        let requests = all(sets.chain(gets));
                        let replies = pipelined(&mut client, &requests);
                        let (set, got) = replies.split_at(count as usize);
                        let said = |reply: &Reply| *reply == Reply::bulk(round.to_string());
                        assert!(set.iter().all(|reply| *reply == Reply::ok()), "{set:?}");
                        assert!(got.iter().all(said), "{round}: {got:?}");
                        // Rarely, or fusing would be given up: retries, and in one pipeline a write
                        // and a read of one key by turns, of which none may overtake another.
                        if random.below(20) == 0 {
                            let gets = format!("GET {tag}:none;GET {};GET {tag}:list", key(0));
                            let [none, got, list] = &pipelined(&mut client, &gets)[..] else {
                                panic!("three replies");
                            };
                            assert_eq!((none, said(got)), (&Reply::Null, true), "{got:?}");
                            let wrong = list.error().unwrap_or_default();
                            assert!(wrong.starts_with("WRONGTYPE "), "{list:?}");
                            let key = key(0);
                            let turns = format!("SET {key} a;GET {key};APPEND {key} b;GET {key}");
                            let expected = [
                                Reply::ok(),
                                Reply::bulk("a"),
                                Reply::Integer(2),
                                Reply::bulk("ab"),
                            ];
                            assert_eq!(pipelined(&mut client, &turns), expected);
                        }
                        rounds.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            let mut random = Random::new(seed());
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for _ in 0..4 {
                    let slots = (0..TAGS).map(|tag| hash_slot(format!("t{tag}").as_bytes()));
                    move_slots(&served.cluster, slots.collect(), &[0, 1, 2], &mut random);
                }
            }));
            over.store(true, Ordering::SeqCst);
            if let Err(panic) = result {
                std::panic::resume_unwind(panic);
            }
        });
        assert!(rounds.load(Ordering::SeqCst) > 100, "{rounds:?}");
        wait_until("a joined request met a moving slot", SOON, || {
            let mut client = served.client();
            [
                "redirected_ask",
                "redirected_moved",
                "fused_gets",
                "fused_sets",
            ]
            .iter()
            .all(|name| counter(&mut client, name) > 0)
        });
    });
}
