//! What a worker says of nodes of another Cluster, of which not all are asked at each refresh.

mod world;

use respool_engine::Event;
use world::World;

const NODES: u16 = 9;
/// Its place, and how its ids differ from those of the others.
const STRANGE: usize = 4;

/// So many refreshes: whether the strange node was asked in each of them. It says what the others do, or, if it `is_strange`, that
/// it is of another Cluster.
fn refreshes(world: &mut World, count: usize, is_strange: bool) -> Vec<bool> {
    let mut asked = Vec::new();
    while asked.len() < count {
        world.wait_ms(50);
        let mut was_asked = None;
        for link in world.all_shared.clone() {
            let is_it = world.server_of(link) == STRANGE;
            for args in world.asked(link) {
                was_asked = Some(was_asked == Some(true) || is_it);
                let said = world.owners.said(&args).expect("who owns what");
                let said = match is_it && is_strange {
                    true => said.replace(&"0".repeat(30), &"f".repeat(30)),
                    false => said,
                };
                world.says(link, said);
            }
        }
        asked.extend(was_asked);
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
    let asked = |world: &mut World, is_strange| {
        let times = refreshes(world, 60, is_strange);
        let ways = times.chunk_by(|one, next| one == next).count();
        assert!(ways > 3, "sometimes, and not always: {times:?}");
    };
    asked(&mut world, true);
    assert_eq!(told(&world), 1);
    asked(&mut world, false);
    assert_eq!(told(&world), 1);
    asked(&mut world, true);
    assert_eq!(told(&world), 2, "it had become one of ours");
}
