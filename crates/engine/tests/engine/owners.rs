//! Questions to a Cluster's nodes about the topology, of which each refresh asks only some, and the
//! use of their answers.

use std::ops::Range;

use crate::world::World;
use respool_engine::Event;
use respool_protocol::slot::hash_slot;

const NODES: u16 = 9;
/// From the epoch 7 on, the new primary has the slots of the last node.
const NEW_OWNER: usize = 7;
const LAST: usize = 8;
/// The place of a node of another Cluster. Its ids differ from those of the others.
const STRANGE: usize = 4;

/// The questions of the next refresh: the asked nodes, and the command of each. Nodes answer with
/// the result of `answer`, or else with the owners of slots.
fn refresh(
    world: &mut World,
    answer: impl Fn(usize, String) -> Option<String>,
) -> Vec<(usize, String)> {
    refresh_by(world, |node, by, said| {
        let answer = (by != "INFO").then(|| answer(node, said.clone()));
        Some(answer.flatten().unwrap_or(said))
    })
}

/// The questions of the next refresh. Nodes answer with the result of `answer`, which gets the
/// command and the right answer, or not at all.
fn refresh_by(
    world: &mut World,
    answer: impl Fn(usize, &str, String) -> Option<String>,
) -> Vec<(usize, String)> {
    let mut asked = Vec::new();
    let end = world.now.plus_ms(60_000);
    while asked.is_empty() {
        assert!(world.now < end, "no node is asked");
        world.wait_ms(50);
        for link in world.connecting() {
            world.up(link);
            world.all_shared.push(link);
        }
        for link in world.all_shared.clone() {
            let node = world.server_of(link);
            for args in world.asked(link) {
                let said = world.owners.said(&args).unwrap_or_default();
                if let Some(answer) = answer(node, &args[1], said) {
                    world.says(link, answer);
                }
                if args[1] != "INFO" {
                    asked.push((node, args[1].clone()));
                }
            }
        }
    }
    asked
}

fn told(world: &World) -> usize {
    let is_it = |event: &&Event| matches!(event, Event::Topology { text, .. } if text.contains("answers for another Cluster"));
    world.events.iter().filter(is_it).count()
}

/// A node of another Cluster is reported once, even if it is not asked at each refresh.
#[test]
fn foreign_node_is_reported_once() {
    let mut world = World::new(crate::world::cluster(NODES));
    let sixty = |world: &mut World, is_strange: bool| {
        let says = |node, said: String| {
            let its = is_strange && node == STRANGE;
            its.then(|| said.replace(&"0".repeat(30), &"f".repeat(30)))
        };
        let times: Vec<bool> = (0..60)
            .map(|_| {
                refresh(world, says)
                    .iter()
                    .any(|(node, _)| *node == STRANGE)
            })
            .collect();
        let ways = times.chunk_by(|one, next| one == next).count();
        assert!(
            ways > 3,
            "the foreign node is asked in some refreshes: {times:?}"
        );
    };
    sixty(&mut world, true);
    assert_eq!(told(&world), 1);
    sixty(&mut world, false);
    assert_eq!(told(&world), 1);
    sixty(&mut world, true);
    assert_eq!(told(&world), 2, "the foreign node had joined the Cluster");
}

fn refusal() -> Option<String> {
    Some("-NOPERM no\r\n".to_owned())
}

/// Nodes that refuse one topology command are asked with the other one, in turn, until one answers.
#[test]
fn refused_topology_query_is_replaced_by_the_other() {
    let mut world = World::new(crate::world::cluster(2));
    let mut by: Vec<String> = Vec::new();
    while by.len() < 12 || !by.ends_with(&["SHARDS".to_owned(), "SHARDS".to_owned()]) {
        let asked = refresh(&mut world, |_, _| refusal());
        by.extend(asked.into_iter().map(|(_, by)| by));
    }
    by.dedup();
    assert!(by.len() > 4, "{by:?}");
    for _ in 0..6 {
        let refuses = |node, _| (node == 0).then(refusal).flatten();
        let asked = refresh(&mut world, refuses);
        assert!(asked.iter().all(|(_, by)| by == "SLOTS"), "{asked:?}");
    }
}

/// A node's answer at an epoch: from the seventh on, the new primary has the slots of the last
/// node.
fn said_at(epoch: u64, by: &str, said: String) -> String {
    match by {
        "INFO" => {
            let text = format!("current_epoch:{epoch}");
            said.replace("current_epoch:1", &text)
        }
        _ if epoch < 7 => said,
        _ => {
            let [new_primary, last] =
                [NEW_OWNER, LAST].map(|node| format!(":{}\r\n$40\r\n{node:040}\r\n", node + 1));
            said.replace(&last, &new_primary)
        }
    }
}

/// The node that gets a request for a key in the last node's slots.
fn owner_of_the_last(world: &mut World) -> usize {
    let get = format!("GET {}", world.key_at(LAST, "key:"));
    let client = world.accept();
    world.asks(client, &[&get]);
    let links = world.all_shared.clone().into_iter();
    let asked = links.filter(|link| {
        let asked = world.asked(*link);
        if !asked.is_empty() {
            world.says(*link, "$-1\r\n");
        }
        asked.iter().any(|args| args.join(" ") == get)
    });
    let asked: Vec<_> = asked.collect();
    world.turn(|engine| engine.handle_session_lost(client));
    match asked[..] {
        [link] => world.server_of(link),
        _ => panic!("{} nodes are asked", asked.len()),
    }
}

/// Nine nodes that all know the epoch 7.
fn at_seven() -> World {
    let mut settings = crate::world::cluster(NODES);
    // A silent node is not lost.
    settings.timeouts.link_stall_ms = 1_000_000;
    let mut world = World::new(settings);
    for epoch in [6, 7, 7] {
        refresh_by(&mut world, |_, by, said| Some(said_at(epoch, by, said)));
    }
    assert_eq!(owner_of_the_last(&mut world), NEW_OWNER);
    world
}

/// For this time some nodes are silent, and the others answer with the epoch 6 and this cluster
/// state.
fn at_six_ms(world: &mut World, ms: u64, silent: &Range<usize>, state: &str) {
    let began = world.now;
    while world.now.since_ms(began) < ms {
        refresh_by(world, |node, by, said| {
            let said = said.replace("state:ok", state);
            let at_six = said_at(6, by, said);
            (!silent.contains(&node)).then_some(at_six)
        });
    }
}

fn moves_told(world: &World) -> Vec<&str> {
    let events = world.events.iter();
    let texts = events.filter_map(|event| match event {
        Event::Topology { text, .. } => Some(&text[..]),
        _ => None,
    });
    texts.filter(|text| text.contains(" moved ")).collect()
}

fn moves(world: &World) -> usize {
    moves_told(world).len()
}

/// Slots do not go back while all nodes that answer lack the last epoch, and most nodes that know
/// it are not reached.
#[test]
fn slots_stay_while_answering_nodes_lack_the_epoch() {
    for silent in [4..9, 1..9] {
        let mut world = at_seven();
        let before = moves(&world);
        at_six_ms(&mut world, 50_000, &silent, "state:ok");
        // By then they see that they are the minority.
        at_six_ms(&mut world, 60_000, &silent, "state:fail");
        assert_eq!(moves(&world), before, "{silent:?}: {:?}", world.events);
        refresh_by(&mut world, |_, by, said| Some(said_at(7, by, said)));
        at_six_ms(&mut world, 50_000, &silent, "state:ok");
        assert_eq!(moves(&world), before, "{silent:?}: {:?}", world.events);
    }
}

/// A Cluster that was restored from older files has a lower epoch. It is followed once most owners
/// say so.
#[test]
fn lower_epoch_is_followed_once_most_owners_have_it() {
    let mut world = at_seven();
    // The nodes are asked when there is a reason, or after ten seconds.
    at_six_ms(&mut world, 15_000, &(0..0), "state:ok");
    assert_eq!(owner_of_the_last(&mut world), LAST);
    assert_eq!(moves(&world), 2, "{:?}", world.events);
}

/// Silent nodes that know the last epoch are given up when the others report that the Cluster is in
/// order.
#[test]
fn silent_nodes_are_given_up_when_the_others_are_ok() {
    let mut world = at_seven();
    at_six_ms(&mut world, 50_000, &(4..8), "state:ok");
    assert_eq!(moves(&world), 1, "{:?}", world.events);
    at_six_ms(&mut world, 25_000, &(4..8), "state:ok");
    assert_eq!(moves(&world), 2, "{:?}", world.events);
    assert_eq!(owner_of_the_last(&mut world), LAST);
}

/// An answer in which this many of the first slots belong to the second node.
fn said_with(moved: u16, by: &str, said: String) -> String {
    if by == "INFO" || moved == 0 {
        return said;
    }
    let (last, second) = (moved - 1, format!("{:040}", 1));
    let second = format!("*3\r\n$6\r\nserver\r\n:2\r\n$40\r\n{second}\r\n");
    said.replace(
        "*9\r\n*3\r\n:0\r\n",
        &format!("*10\r\n*3\r\n:0\r\n:{last}\r\n{second}*3\r\n:{moved}\r\n"),
    )
}

/// The log reports slots that move one by one each time, also those that a redirect has shown, and
/// the owners at the end.
#[test]
fn each_moved_slot_is_reported() {
    const TEXT: &str = "1 slots moved from server:1 to server:2";
    let mut world = World::new(crate::world::cluster(NODES));
    let listed = |world: &mut World, moved| {
        refresh_by(world, |_, by, said| Some(said_with(moved, by, said)));
    };
    for moved in 0..4 {
        listed(&mut world, moved);
        assert_eq!(moves_told(&world), vec![TEXT; moved.into()]);
    }
    // No slot moves.
    listed(&mut world, 3);
    // A request meets the next moved slot before the nodes are asked for the owners.
    let mut keys = (0..).map(|key| format!("key:{key}"));
    let key = keys.find(|key| hash_slot(key.as_bytes()) == 3);
    let client = world.accept();
    world.asks(
        client,
        &[&format!("GET {}", key.expect("every slot has keys"))],
    );
    let [first, second] = [world.all_shared[0], world.all_shared[1]];
    assert_eq!(world.asked(first).len(), 1);
    world.says(first, "-MOVED 3 server:2\r\n");
    assert_eq!(world.asked(second).len(), 1);
    world.says(second, "$-1\r\n");
    listed(&mut world, 4);
    assert_eq!(moves_told(&world), [TEXT; 4]);
    listed(&mut world, 4);
    assert_eq!(moves_told(&world), [TEXT; 4]);
    // Several slots that move the same way make one line.
    listed(&mut world, 6);
    listed(&mut world, 0);
    let more = [
        "2 slots moved from server:1 to server:2",
        "6 slots moved from server:2 to server:1",
    ];
    assert_eq!(moves_told(&world)[4..], more);
}

/// A request that waits for a seed node fails soon if the other seed cannot be reached.
#[test]
fn request_fails_soon_when_no_other_seed_is_reached() {
    let mut world = World::unconnected(crate::world::worker(0, 1), crate::world::cluster(2));
    let [first, second] = world.all_shared[..] else {
        panic!("two seeds");
    };
    // The second seed is asked next, since it was tried last.
    world.lose(first);
    world.lose(second);
    let (mut tried, end) = (0, world.now.plus_ms(10_000));
    while tried < 2 {
        assert!(world.now < end, "both seeds are tried again");
        world.wait_ms(1);
        tried += world.connecting().len();
    }
    let client = world.accept();
    world.asks(client, &["SET key 1", "GET key"]);
    assert_eq!(world.got(client), "");
    world.turn(|engine| {
        engine.handle_link_lost(second, "gone");
        engine.handle_link_lost(first, "gone, too");
    });
    world.wait_ms(100);
    let got = world.got(client);
    let failed = got.matches("no connection to server:1: gone, too").count();
    assert_eq!(failed, 2, "{got}");
}

/// A frozen node tells no session that waits in a blocking command that its replica has taken over.
/// respool closes the connection, so its client connects again and waits at the new owner.
#[test]
fn session_that_waits_at_a_replaced_node_is_closed() {
    let mut world = World::new(crate::world::cluster(3));
    let first = |said: &str| {
        let old = "*3\r\n$6\r\nserver\r\n:1\r\n$40\r\n0000000000000000000000000000000000000000\r\n";
        assert!(said.contains(old), "{said}");
        let new_primary =
            "*3\r\n$6\r\nserver\r\n:4\r\n$40\r\n0000000000000000000000000000000000000003\r\n";
        (old, new_primary)
    };
    let answer_for = |world: &mut World, ms: u64, replaced: bool| {
        let end = world.now.plus_ms(ms as u32);
        while world.now < end {
            world.wait_ms(50);
            for link in world.connecting() {
                world.up(link);
                world.all_shared.push(link);
            }
            for link in world.all_shared.clone() {
                if replaced && world.server_of(link) == 0 {
                    continue;
                }
                for args in world.asked(link) {
                    let Some(said) = world.owners.said(&args) else {
                        continue;
                    };
                    let said = match args[1].as_str() {
                        "SLOTS" => {
                            let (old, new_primary) = first(&said);
                            match replaced {
                                true => said.replace(old, new_primary),
                                false => said
                                    .replacen("*3\r\n:0", "*4\r\n:0", 1)
                                    .replace(old, &format!("{old}{new_primary}")),
                            }
                        }
                        _ => said,
                    };
                    world.says(link, said);
                }
            }
        }
    };
    answer_for(&mut world, 3_000, false);
    let key = world.key_at(0, "list");
    let session = world.accept();
    world.asks(session, &[&format!("BLPOP {key} 0")]);
    answer_for(&mut world, 3_000, false);
    assert_eq!(world.closed_sessions(), []);
    answer_for(&mut world, 30_000, true);
    assert_eq!(world.closed_sessions(), [session]);
    assert_eq!(world.got(session), "");
}
