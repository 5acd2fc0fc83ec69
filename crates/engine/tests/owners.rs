//! What a Cluster's nodes are asked, of which not all are asked at each refresh, and what is made of what they say.

mod world;

use std::ops::Range;

use respool_engine::Event;
use respool_protocol::slot::hash_slot;
use world::World;

const NODES: u16 = 9;
/// The last one's slots are its heir's, from the epoch 7 on.
const HEIR: usize = 7;
const LAST: usize = 8;
/// The place of one of another Cluster. Its ids differ from those of the others.
const STRANGE: usize = 4;

/// What the nodes are asked in the next refresh: of whom, and by which command. They answer with that, or else with who owns what.
fn refresh(
    world: &mut World,
    answer: impl Fn(usize, String) -> Option<String>,
) -> Vec<(usize, String)> {
    refresh_by(world, |node, by, said| {
        let answer = (by != "INFO").then(|| answer(node, said.clone()));
        Some(answer.flatten().unwrap_or(said))
    })
}

/// The same. They answer with that, by what they are asked and what they would say in order, or not at all.
fn refresh_by(
    world: &mut World,
    answer: impl Fn(usize, &str, String) -> Option<String>,
) -> Vec<(usize, String)> {
    let mut asked = Vec::new();
    let end = world.now.plus_ms(60_000);
    while asked.is_empty() {
        assert!(world.now < end, "nobody is asked");
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

#[test]
fn a_node_of_another_cluster_is_told_of_once_though_it_is_not_asked_each_time() {
    let mut world = World::new(world::cluster(NODES));
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
        assert!(ways > 3, "sometimes, and not always: {times:?}");
    };
    sixty(&mut world, true);
    assert_eq!(told(&world), 1);
    sixty(&mut world, false);
    assert_eq!(told(&world), 1);
    sixty(&mut world, true);
    assert_eq!(told(&world), 2, "it had become one of ours");
}

fn refusal() -> Option<String> {
    Some("-NOPERM no\r\n".to_owned())
}

#[test]
fn nodes_that_refuse_one_list_of_owners_are_asked_for_the_other_and_so_on_until_one_answers() {
    let mut world = World::new(world::cluster(2));
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

/// What a node says at an epoch: from the seventh on, that the heir has what was the last one's.
fn said_at(epoch: u64, by: &str, said: String) -> String {
    match by {
        "INFO" => {
            let text = format!("current_epoch:{epoch}");
            said.replace("current_epoch:1", &text)
        }
        _ if epoch < 7 => said,
        _ => {
            let [heir, last] =
                [HEIR, LAST].map(|node| format!(":{}\r\n$40\r\n{node:040}\r\n", node + 1));
            said.replace(&last, &heir)
        }
    }
}

/// Which node is asked for a key of the last one's slots.
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
    let mut settings = world::cluster(NODES);
    // Who is silent is not lost.
    settings.timeouts.link_stall_ms = 1_000_000;
    let mut world = World::new(settings);
    for epoch in [6, 7, 7] {
        refresh_by(&mut world, |_, by, said| Some(said_at(epoch, by, said)));
    }
    assert_eq!(owner_of_the_last(&mut world), HEIR);
    world
}

/// For so long some nodes say nothing, and the others that they are at the epoch 6, and in which state.
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

/// More than are asked at once know the last epoch, or all but one, and are not reached; those that are have not heard of it.
#[test]
fn slots_do_not_go_back_where_all_who_answer_have_not_heard_of_the_last_epoch() {
    for silent in [4..9, 1..9] {
        let mut world = at_seven();
        let before = moves(&world);
        at_six_ms(&mut world, 50_000, &silent, "state:ok");
        // They see by then that they are the fewer.
        at_six_ms(&mut world, 60_000, &silent, "state:fail");
        assert_eq!(moves(&world), before, "{silent:?}: {:?}", world.events);
        refresh_by(&mut world, |_, by, said| Some(said_at(7, by, said)));
        at_six_ms(&mut world, 50_000, &silent, "state:ok");
        assert_eq!(moves(&world), before, "{silent:?}: {:?}", world.events);
    }
}

/// Its nodes have the files of an earlier time.
#[test]
fn a_cluster_whose_epoch_has_gone_back_is_followed_when_most_of_its_owners_have_said_so() {
    let mut world = at_seven();
    // They are asked when there is a reason to, or after ten seconds.
    at_six_ms(&mut world, 15_000, &(0..0), "state:ok");
    assert_eq!(owner_of_the_last(&mut world), LAST);
    assert_eq!(moves(&world), 2, "{:?}", world.events);
}

#[test]
fn those_that_know_the_last_epoch_are_given_up_when_the_others_are_in_order_without_them() {
    let mut world = at_seven();
    at_six_ms(&mut world, 50_000, &(4..8), "state:ok");
    assert_eq!(moves(&world), 1, "{:?}", world.events);
    at_six_ms(&mut world, 25_000, &(4..8), "state:ok");
    assert_eq!(moves(&world), 2, "{:?}", world.events);
    assert_eq!(owner_of_the_last(&mut world), LAST);
}

/// Its first slots, so many, are the second node's now.
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

/// Whoever reads the log sees how far it is, and who owns what in the end.
#[test]
fn slots_that_move_one_by_one_are_told_of_each_time_also_those_that_a_client_has_met() {
    const TEXT: &str = "1 slots moved from server:1 to server:2";
    let mut world = World::new(world::cluster(NODES));
    let listed = |world: &mut World, moved| {
        refresh_by(world, |_, by, said| Some(said_with(moved, by, said)));
    };
    for moved in 0..4 {
        listed(&mut world, moved);
        assert_eq!(moves_told(&world), vec![TEXT; moved.into()]);
    }
    // Nothing moves.
    listed(&mut world, 3);
    // The next one is asked for before the nodes are asked who owns what.
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
    // Several are one line, and so are those that go another way.
    listed(&mut world, 6);
    listed(&mut world, 0);
    let more = [
        "2 slots moved from server:1 to server:2",
        "6 slots moved from server:2 to server:1",
    ];
    assert_eq!(moves_told(&world)[4..], more);
}

#[test]
fn who_waits_for_a_seed_is_told_soon_that_no_other_one_can_be_reached() {
    let mut world = World::unconnected(world::worker(0, 1), world::cluster(2));
    let [first, second] = world.all_shared[..] else {
        panic!("there are two seeds");
    };
    // The second one is asked, for it was tried last.
    world.lose(first);
    world.lose(second);
    let (mut tried, end) = (0, world.now.plus_ms(10_000));
    while tried < 2 {
        assert!(world.now < end, "both are tried again");
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
    let mut world = World::new(world::cluster(3));
    let first = |said: &str| {
        let old = "*3\r\n$6\r\nserver\r\n:1\r\n$40\r\n0000000000000000000000000000000000000000\r\n";
        assert!(said.contains(old), "{said}");
        let heir =
            "*3\r\n$6\r\nserver\r\n:4\r\n$40\r\n0000000000000000000000000000000000000003\r\n";
        (old, heir)
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
                            let (old, heir) = first(&said);
                            match replaced {
                                true => said.replace(old, heir),
                                false => said
                                    .replacen("*3\r\n:0", "*4\r\n:0", 1)
                                    .replace(old, &format!("{old}{heir}")),
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
