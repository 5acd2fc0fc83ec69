//! Clients need more kinds of links than `links-max` allows: idle links make room, and requests
//! wait.

use respool_engine::{Event, LinkId, SessionId};

use crate::world::{World, requests, settings};

/// Shorter than the answer to whether a session may SELECT counts.
const REQUEST_MS: u32 = 500;

/// A worker with this bound of links, and a session that may SELECT.
fn world(links_max: u32) -> World {
    let mut settings = settings();
    settings.timeouts.request_ms = REQUEST_MS;
    settings.limits.links_max = links_max;
    settings.limits.streaming_links_max = 1;
    let mut world = World::new(settings);
    let session = world.accept();
    world.may_ask(session, &["SELECT none"]);
    world
}

/// A session with this database, and the link that was connected for it.
fn session_of(world: &mut World, db: u32) -> (SessionId, LinkId) {
    let session = world.accept();
    world.asks(session, &[&format!("SELECT {db}")]);
    let link = world.connect();
    assert_eq!(world.got(session), "+OK\r\n");
    (session, link)
}

fn served(world: &mut World, session: SessionId, link: LinkId) {
    world.asks(session, &["GET k"]);
    assert_eq!(world.sent(link).as_bytes(), requests(&["GET k"]));
    world.says(link, "$1\r\nv\r\n");
    assert_eq!(world.got(session), "$1\r\nv\r\n");
}

fn bounds_told(world: &World) -> Vec<&'static str> {
    let told = |event: &Event| match event {
        Event::BoundReached { name, .. } => Some(*name),
        _ => None,
    };
    world.events.iter().filter_map(told).collect()
}

/// The least recently used link is closed, and its session gets a link again when it needs one.
#[test]
fn idle_link_makes_room() {
    let mut world = world(3);
    let (first, of_first) = session_of(&mut world, 1);
    let (second, of_second) = session_of(&mut world, 2);
    served(&mut world, first, of_first);
    let (third, of_third) = session_of(&mut world, 3);
    assert_eq!(world.closed_links(), [of_second]);
    served(&mut world, third, of_third);
    served(&mut world, first, of_first);
    world.asks(second, &["GET k"]);
    let link = world.connect();
    assert_eq!(world.closed_links(), [of_second, of_third]);
    assert_eq!(world.sent(link).as_bytes(), requests(&["GET k"]));
    world.says(link, "$1\r\nv\r\n");
    assert_eq!(world.got(second), "$1\r\nv\r\n");
    let counters = world.engine.counters();
    assert_eq!(
        (counters.links_full, counters.links_closed_for_room),
        (2, 2)
    );
    assert_eq!(counters.links, 3);
    assert_eq!(bounds_told(&world), ["links-max"]);
}

/// A link without attached sessions is closed before one with some.
#[test]
fn link_without_sessions_makes_room_first() {
    let mut world = world(3);
    let (_stays, _) = session_of(&mut world, 1);
    let (gone, unused) = session_of(&mut world, 2);
    world.turn(|engine| engine.handle_session_lost(gone));
    session_of(&mut world, 3);
    assert_eq!(world.closed_links(), [unused]);
}

/// A link with an unanswered request is not closed. The session that needs another link waits for
/// it.
#[test]
fn session_waits_until_a_link_is_idle() {
    let mut world = world(2);
    let (busy, link) = session_of(&mut world, 1);
    world.asks(busy, &["GET slow"]);
    let [next, last] = [world.accept(), world.accept()];
    world.asks(next, &["SELECT 2", "GET k"]);
    world.asks(last, &["SELECT 3"]);
    world.wait_ms(200);
    assert!(world.connecting().is_empty());
    world.says(link, "$1\r\nv\r\n");
    assert_eq!(world.got(busy), "$1\r\nv\r\n");
    world.wait_ms(100);
    assert_eq!(world.closed_links(), [link]);
    let link = world.connect();
    assert_eq!(world.got(next), "+OK\r\n");
    assert_eq!(world.sent(link).as_bytes(), requests(&["GET k"]));
    assert_eq!(
        world.got(last),
        "",
        "the last session came later, and the link is in use"
    );
    world.says(link, "$1\r\nv\r\n");
    world.wait_ms(100);
    world.connect();
    assert_eq!(world.got(last), "+OK\r\n");
    assert_eq!(bounds_told(&world), ["links-max"]);
}

/// The session gets an error at the deadline of any request, and goes on with its former link.
#[test]
fn request_that_finds_no_shared_link_fails_at_its_deadline() {
    let mut world = world(2);
    let (busy, link) = session_of(&mut world, 1);
    let waiting = world.accept();
    world.asks(busy, &["GET slow"]);
    world.asks(waiting, &["SELECT 2"]);
    for _ in 0..REQUEST_MS / 100 {
        assert_eq!(world.got(waiting), "");
        // The link is never idle for long enough.
        world.says(link, "$1\r\nv\r\n");
        world.asks(busy, &["GET slow"]);
        world.wait_ms(100);
    }
    world.wait_ms(100);
    let got = world.got(waiting);
    assert!(
        got.starts_with("-NOTSENT ") && got.contains("links-max"),
        "{got}"
    );
    assert_eq!(bounds_told(&world), ["links-max"]);
    let shared = world.shared;
    world.sent(shared);
    served(&mut world, waiting, shared);
}

/// Each of many clients has a database of its own: all are served, whether or not they stay.
#[test]
fn many_databases_share_few_links() {
    for stays in [true, false] {
        let mut world = world(20);
        let mut sessions = Vec::new();
        for db in 1..=400 {
            if db % 100 == 0 {
                let session = world.accept();
                world.wait_ms(1_100);
                world.may_ask(session, &["SELECT none"]);
            }
            let (session, link) = session_of(&mut world, db);
            served(&mut world, session, link);
            match stays {
                true => sessions.push(session),
                false => world.turn(|engine| engine.handle_session_lost(session)),
            }
            assert!(world.engine.counters().links <= 20);
        }
        for session in sessions.into_iter().take(40) {
            world.asks(session, &["GET k"]);
            let link = world.connect();
            assert_eq!(world.sent(link).as_bytes(), requests(&["GET k"]));
            world.says(link, "$1\r\nv\r\n");
            assert_eq!(world.got(session), "$1\r\nv\r\n");
        }
    }
}
