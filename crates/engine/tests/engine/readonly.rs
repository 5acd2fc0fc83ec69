//! A plain server that has become read-only is connected anew: another server may have its address
//! by now.

use crate::world::{World, settings};
use respool_engine::LinkId;
use respool_engine::settings::Aim;

const READONLY: &str = "-READONLY You can't write against a read only replica.\r\n";

/// The server refuses a write on this link.
fn refuses(world: &mut World, link: LinkId) {
    let writer = world.accept();
    world.asks(writer, &["SET k v"]);
    assert!(
        world.sent(link).contains("SET"),
        "the request is on this link"
    );
    world.says(link, READONLY);
    assert_eq!(world.got(writer), READONLY, "the client gets the refusal");
}

/// After READONLY, new requests go on a new connection, and the old one answers those that it has.
#[test]
fn new_connection_takes_requests_and_old_one_drains() {
    let mut settings = settings();
    settings.flush.aim = Aim::Latency;
    settings.flush.fuse = false;
    let mut world = World::new(settings);
    let old = world.shared;
    let [writer, reader, idle] = [(); 3].map(|()| world.accept());
    world.asks(writer, &["SET k v"]);
    world.asks(reader, &["GET a", "GET b"]);
    world.says(old, READONLY);
    assert_eq!(world.got(writer), READONLY);
    world.sent(old);
    // Until the new connection is up, all sessions use the old one.
    world.asks(idle, &["GET e"]);
    assert!(world.sent(old).contains("\r\ne\r\n"));
    let new = world.connect();
    // No reply on the old link has come. So the next request of its session waits, and does not
    // overtake.
    world.asks(reader, &["GET c"]);
    world.asks(writer, &["GET d"]);
    let asked = world.sent(new);
    assert!(asked.contains("\r\nd\r\n") && !asked.contains("\r\nc\r\n"));
    assert_eq!(world.sent(old), "");
    world.says(old, "$1\r\na\r\n$1\r\nb\r\n");
    assert!(
        world.closed_links().is_empty(),
        "the old link owes one more reply"
    );
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

/// If no new connection can be had, all sessions stay on the old one.
#[test]
fn old_connection_serves_while_no_new_one_connects() {
    let mut world = World::new(settings());
    let old = world.shared;
    let reader = world.accept();
    refuses(&mut world, old);
    for _ in 0..3 {
        let tried = world.connecting();
        assert_eq!(tried.len(), 1);
        world.lose(tried[0]);
        assert!(world.connecting().is_empty(), "no attempt follows yet");
        world.asks(reader, &["GET k"]);
        assert!(world.sent(old).contains("GET"));
        world.says(old, "$1\r\nv\r\n");
        assert_eq!(world.got(reader), "$1\r\nv\r\n");
        world.wait_ms(5_000);
        refuses(&mut world, old);
    }
}

/// Subscribers move to a new connection, so that they meet the publishers at the server that is
/// meant now.
#[test]
fn subscriptions_move_to_a_new_connection() {
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

/// A server that never takes writes is connected anew after growing pauses.
#[test]
fn renewals_of_a_readonly_link_back_off() {
    let mut world = World::new(settings());
    let mut link = world.shared;
    let mut readonly_reconnects = Vec::new();
    for at in 0..200 {
        refuses(&mut world, link);
        if let [new] = world.connecting()[..] {
            world.up(new);
            link = new;
            readonly_reconnects.push(at);
        }
        world.wait_ms(1_000);
    }
    // At once, then after 1, 2, 4 ... 32 seconds, and then every 60. A second may be a tick late.
    assert!(
        (7..=10).contains(&readonly_reconnects.len()),
        "{readonly_reconnects:?}"
    );
    assert_eq!(readonly_reconnects[0], 0);
    let pauses: Vec<i32> = readonly_reconnects
        .windows(2)
        .map(|two| two[1] - two[0])
        .collect();
    assert!(pauses.is_sorted(), "{pauses:?}");
    assert!(pauses.last().is_some_and(|last| *last >= 60), "{pauses:?}");
}

/// A server that was writable for long is connected anew at once.
#[test]
fn renewal_is_immediate_after_a_long_good_time() {
    let mut world = World::new(settings());
    let mut link = world.shared;
    for _ in 0..2 {
        refuses(&mut world, link);
        link = world.connect();
        // Soon after that, a READONLY opens no connection.
        refuses(&mut world, link);
        assert!(world.connecting().is_empty());
        world.wait_ms(70_000);
    }
}

/// Idle pinned links to a server that has become read-only are closed, since they would lead to it
/// for ever.
#[test]
fn idle_links_of_a_readonly_server_are_closed() {
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
