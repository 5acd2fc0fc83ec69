//! The home of a Cluster in virtual time: the node for all messages. Workers agree on one home, and
//! their subscribers stay with it.

use std::sync::Arc;

use crate::world::{World, cluster, worker};
use respool_engine::settings::{LostSubscriptions, Settings};
use respool_engine::{SessionId, SubscriberCounts};

/// A worker of two, without a link that is up.
fn begin(directory: &Arc<SubscriberCounts>, index: usize) -> World {
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

/// The node at which a worker subscribes. It confirms the subscription.
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
    panic!("the worker subscribes at no node");
}

/// A worker takes the home of another worker even if its own link there is not up yet.
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

/// A worker that cannot reach the home chooses another one. The other workers follow, and their
/// subscribers stay.
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
    let mut moved = first.connecting();
    moved.retain(|link| !first.all_shared.contains(link));
    let [moved] = moved[..] else {
        panic!("{moved:?}");
    };
    assert_eq!(first.server_of(moved), 2);
    first.up(moved);
    assert!(first.sent(moved).contains("SUBSCRIBE"));
    first.says(moved, ">3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
    assert_eq!(
        first.got(subscriber),
        "",
        "the subscription was confirmed before"
    );
    assert_eq!(first.closed_sessions(), []);
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

/// The nodes answer questions about the topology. `replaced`: a fourth node has the slots of the
/// first.
fn answer_nodes(world: &mut World, replaced: bool) {
    world.wait_ms(50);
    for link in world.all_shared.clone() {
        for args in world.asked(link) {
            let Some(said) = world.owners.said(&args) else {
                continue;
            };
            world.says(
                link,
                match replaced {
                    true => said.replace("server\r\n:1\r\n", "server\r\n:4\r\n"),
                    false => said,
                },
            );
        }
    }
}

/// Subscribers of a home that is replaced by CLUSTER FAILOVER stay. Its messages still arrive until
/// the new home has confirmed.
#[test]
fn subscriber_stays_when_the_home_is_replaced() {
    let mut world = World::new(Settings {
        lost_subscriptions: LostSubscriptions::Close,
        ..cluster(3)
    });
    answer_nodes(&mut world, false);
    let session = subscribe(&mut world);
    let old = world.connect();
    assert_eq!(world.server_of(old), 0);
    let said = ">3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n";
    let message = |number| format!(">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1\r\n{number}\r\n");
    world.says(old, said);
    world.got(session);
    world.sent(old);
    let end = world.now.plus_ms(60_000);
    let new = loop {
        assert!(world.now < end, "no link has to connect");
        answer_nodes(&mut world, true);
        let links = world.connecting();
        if let Some(link) = links.into_iter().find(|link| world.server_of(*link) != 3) {
            break link;
        }
    };
    world.says(old, message(1));
    assert_eq!(world.got(session), message(1).replace('>', "*"));
    world.up(new);
    world.says(old, message(2));
    assert_eq!(world.got(session), message(2).replace('>', "*"));
    world.says(new, said);
    assert_eq!(world.got(session), "");
    world.says(old, message(3));
    assert_eq!(
        world.got(session),
        "",
        "the message comes from the new home, too"
    );
    assert!(world.sent(old).contains("\r\nUNSUBSCRIBE\r\n"));
    let left = said
        .replace("$9\r\nsub", "$11\r\nunsub")
        .replace(":1", ":0");
    world.says(old, left);
    world.says(new, message(4));
    assert_eq!(world.got(session), message(4).replace('>', "*"));
    assert_eq!(world.closed_sessions(), []);
}
