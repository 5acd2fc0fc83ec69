//! What a Cluster's nodes are asked, of which not all are asked at each refresh, and what is made of what they say.

mod world;

use respool_engine::Event;
use world::World;

const NODES: u16 = 9;
/// The place of one of another Cluster. Its ids differ from those of the others.
const STRANGE: usize = 4;

/// What the nodes are asked in the next refresh: of whom, and by which command. They answer with that, or else with who owns what.
fn refresh(
    world: &mut World,
    answer: impl Fn(usize, String) -> Option<String>,
) -> Vec<(usize, String)> {
    let mut asked = Vec::new();
    let end = world.now.plus_ms(60_000);
    while asked.is_empty() {
        assert!(world.now < end, "nobody is asked");
        world.wait_ms(50);
        for link in world.all_shared.clone() {
            let node = world.server_of(link);
            for args in world.asked(link) {
                let said = world.owners.said(&args).unwrap_or_default();
                if args[1] == "INFO" {
                    world.says(link, said);
                } else {
                    world.says(link, answer(node, said.clone()).unwrap_or(said));
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
