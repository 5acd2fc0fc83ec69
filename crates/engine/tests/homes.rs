//! The home of a Cluster in virtual time: the node for everything that is published. Workers agree on one, and their
//! subscribers stay with it.

mod world;

use std::sync::Arc;

use respool_engine::settings::{LostSubscriptions, Settings};
use respool_engine::{Directory, SessionId};
use world::{World, cluster, worker};

/// A worker of two, with no link up.
fn begin(directory: &Arc<Directory>, index: usize) -> World {
    let settings = Settings {
        lost_subscriptions: LostSubscriptions::Close,
        ..cluster(3)
    };
    World::beside(directory.clone(), worker(index, 2), settings)
}

/// The link to a node comes up, and the node names the owners of all slots.
fn learn_from(world: &mut World, node: usize) {
    let link = world.all_shared[node];
    world.up(link);
    for args in world.asked(link) {
        if let Some(said) = world.owners.said(&args) {
            world.says(link, said);
        }
    }
}

fn subscribe(world: &mut World) -> SessionId {
    let session = world.accept();
    world.asks(session, &["SUBSCRIBE news"]);
    session
}

/// The node at which a worker subscribes. It confirms.
fn confirm(world: &mut World, session: SessionId) -> usize {
    let said = ">3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n";
    for link in world.connecting() {
        if world.all_shared.contains(&link) {
            continue;
        }
        world.up(link);
        if world.sent(link).contains("SUBSCRIBE") {
            world.says(link, said);
            assert_eq!(world.got(session), said.replace('>', "*"));
            return world.server_of(link);
        }
    }
    panic!("it subscribes nowhere");
}

/// A worker takes the home of another one though its own link there is not up yet.
#[test]
fn worker_that_begins_takes_the_home_of_the_others() {
    let directory = Arc::default();
    let mut first = begin(&directory, 0);
    learn_from(&mut first, 0);
    let subscriber = subscribe(&mut first);
    assert_eq!(confirm(&mut first, subscriber), 0);
    let mut second = begin(&directory, 1);
    learn_from(&mut second, 2);
    let other = subscribe(&mut second);
    assert_eq!(confirm(&mut second, other), 0);
    for world in [&mut first, &mut second] {
        world.wait_ms(500);
        assert_eq!(world.closed_sessions(), []);
    }
}

/// A worker that cannot reach the home chooses another one, and the others follow.
#[test]
fn workers_leave_a_home_that_one_cannot_reach() {
    let directory = Arc::default();
    let mut first = begin(&directory, 0);
    learn_from(&mut first, 0);
    let subscriber = subscribe(&mut first);
    assert_eq!(confirm(&mut first, subscriber), 0);
    let mut second = begin(&directory, 1);
    let lost = second.all_shared[0];
    second.lose(lost);
    learn_from(&mut second, 2);
    let other = subscribe(&mut second);
    assert_eq!(confirm(&mut second, other), 2);
    first.wait_ms(500);
    assert_eq!(first.closed_sessions(), [subscriber]);
    let again = subscribe(&mut first);
    assert_eq!(confirm(&mut first, again), 2);
}

/// A session subscribes once the nodes are known, at the home that the first answer leads to.
#[test]
fn session_subscribes_once_the_nodes_are_known() {
    let directory = Arc::default();
    let mut first = begin(&directory, 0);
    learn_from(&mut first, 2);
    let mut second = begin(&directory, 1);
    let early = subscribe(&mut second);
    let link = second.all_shared[0];
    second.up(link);
    assert_eq!(second.connecting(), [], "the owners are not known");
    for args in second.asked(link) {
        if let Some(said) = second.owners.said(&args) {
            second.says(link, said);
        }
    }
    assert_eq!(confirm(&mut second, early), 2);
    second.wait_ms(500);
    assert_eq!(second.closed_sessions(), []);
}
