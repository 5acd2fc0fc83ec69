//! A plain server that takes no writes any more is connected anew: another one may stand there by now.

mod world;

use respool_engine::LinkId;
use world::{World, settings};

const READONLY: &str = "-READONLY You can't write against a read only replica.\r\n";

/// The server refuses a write on this link.
fn refuses(world: &mut World, link: LinkId) {
    let writer = world.accept();
    world.asks(writer, &["SET k v"]);
    assert!(world.sent(link).contains("SET"), "it is asked there");
    world.says(link, READONLY);
    assert_eq!(world.got(writer), READONLY, "that is its answer");
}

#[test]
fn what_comes_is_asked_on_a_new_connection_and_the_old_one_answers_what_it_owes() {
    let mut settings = settings();
    settings.flush.hold = false;
    settings.flush.fuse = false;
    let mut world = World::new(settings);
    let old = world.shared;
    let [writer, reader, idle] = [(); 3].map(|()| world.accept());
    world.asks(writer, &["SET k v"]);
    world.asks(reader, &["GET a", "GET b"]);
    world.says(old, READONLY);
    assert_eq!(world.got(writer), READONLY);
    world.sent(old);
    // Until the new one is there, all go on with the old one.
    world.asks(idle, &["GET e"]);
    assert!(world.sent(old).contains("\r\ne\r\n"));
    let new = world.connect();
    // Of the old one's replies none has come: what its session asks now does not overtake them.
    world.asks(reader, &["GET c"]);
    world.asks(writer, &["GET d"]);
    let asked = world.sent(new);
    assert!(asked.contains("\r\nd\r\n") && !asked.contains("\r\nc\r\n"));
    assert_eq!(world.sent(old), "");
    world.says(old, "$1\r\na\r\n$1\r\nb\r\n");
    assert!(world.closed_links().is_empty(), "it owes one more");
    world.says(old, "$1\r\ne\r\n");
    assert_eq!(world.closed_links(), [old]);
    assert_eq!(world.got(reader), "$1\r\na\r\n$1\r\nb\r\n");
    assert_eq!(world.got(idle), "$1\r\ne\r\n");
    world.says(new, "$1\r\nd\r\n");
    assert!(world.sent(new).contains("\r\nc\r\n"));
    world.says(new, "$1\r\nc\r\n");
    assert_eq!(world.got(reader), "$1\r\nc\r\n");
    assert_eq!(world.got(writer), "$1\r\nd\r\n");
}

#[test]
fn where_no_new_connection_can_be_had_all_go_on_with_the_old_one() {
    let mut world = World::new(settings());
    let old = world.shared;
    let reader = world.accept();
    refuses(&mut world, old);
    for _ in 0..3 {
        let tried = world.connecting();
        assert_eq!(tried.len(), 1);
        world.lose(tried[0]);
        assert!(world.connecting().is_empty(), "it is not tried again yet");
        world.asks(reader, &["GET k"]);
        assert!(world.sent(old).contains("GET"));
        world.says(old, "$1\r\nv\r\n");
        assert_eq!(world.got(reader), "$1\r\nv\r\n");
        world.wait_ms(5_000);
        refuses(&mut world, old);
    }
}

/// Who publishes and who subscribes meet at the one that is meant now.
#[test]
fn who_subscribes_does_so_on_a_new_connection() {
    let mut world = World::new(settings());
    let old = world.shared;
    let subscriber = world.accept();
    world.asks(subscriber, &["SUBSCRIBE c"]);
    let hub = world.connect();
    assert!(world.sent(hub).contains("SUBSCRIBE"));
    world.says(hub, ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
    world.wait_ms(1_500);
    refuses(&mut world, old);
    let tried = world.connecting();
    assert_eq!(tried.len(), 1, "{tried:?} {:?}", world.closed_links());
    let new = tried[0];
    world.up(new);
    assert!(world.closed_links().contains(&old) && world.closed_links().contains(&hub));
    let again = world.connecting();
    assert_eq!(again.len(), 1, "subscriptions have a connection again");
    world.up(again[0]);
    world.turn(|_| {});
    assert!(world.sent(again[0]).contains("SUBSCRIBE"));
    assert!(new != again[0]);
}

#[test]
fn one_that_never_takes_writes_is_connected_anew_more_and_more_seldom() {
    let mut world = World::new(settings());
    let mut link = world.shared;
    let mut renewals = Vec::new();
    for at in 0..200 {
        refuses(&mut world, link);
        if let [new] = world.connecting()[..] {
            world.up(new);
            link = new;
            renewals.push(at);
        }
        world.wait_ms(1_000);
    }
    // At once, and then after 1, 2, 4, ... 32 seconds and every 60; a second may be a look late.
    assert!((7..=10).contains(&renewals.len()), "{renewals:?}");
    assert_eq!(renewals[0], 0);
    let pauses: Vec<i32> = renewals.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses.is_sorted(), "{pauses:?}");
    assert!(pauses.last().is_some_and(|last| *last >= 60), "{pauses:?}");
}

#[test]
fn one_that_was_well_for_long_is_connected_anew_at_once() {
    let mut world = World::new(settings());
    let mut link = world.shared;
    for _ in 0..2 {
        refuses(&mut world, link);
        link = world.connect();
        // Soon after, it is not.
        refuses(&mut world, link);
        assert!(world.connecting().is_empty());
        world.wait_ms(70_000);
    }
}

/// What is kept for transactions to come would lead to the old one for ever.
#[test]
fn a_connection_that_was_kept_for_the_next_transaction_is_not_used_any_more() {
    let mut world = World::new(settings());
    let old = world.shared;
    let session = world.accept();
    world.asks(session, &["WATCH k"]);
    let own = world.connect();
    world.says(own, "+OK\r\n");
    world.asks(session, &["UNWATCH"]);
    world.says(own, "+OK\r\n");
    world.turn(|_| {});
    refuses(&mut world, old);
    assert_eq!(world.closed_links(), [own]);
    world.connect();
    assert_eq!(world.closed_links(), [own, old]);
}
