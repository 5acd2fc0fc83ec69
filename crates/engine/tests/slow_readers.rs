//! Sessions that ask for large replies or take them slowly, beside others on the same link.

mod world;

use respool_engine::SessionId;
use respool_engine::limits::APART_MS;
use world::{World, requests, settings};

/// A reply so long.
fn value(len: usize) -> String {
    format!("${len}\r\n{}\r\n", "v".repeat(len))
}

/// Replies of 100 KB, each in two reads.
fn says_in_parts(world: &mut World, link: respool_engine::LinkId, count: usize) {
    let reply = value(100_000);
    let (beginning, rest) = reply.split_at(40_000);
    for _ in 0..count {
        world.says(link, beginning);
        world.says(link, rest);
    }
}

fn large_settings() -> respool_engine::settings::Settings {
    let mut settings = settings();
    settings.limits.session_output_soft_bytes = 100_000;
    settings.limits.session_output_hard_bytes = 300_000;
    settings
}

/// The time that strangers wait counts over all sessions that hold them up, and over all links.
#[test]
fn strangers_wait_once_for_all_slow_sessions() {
    let mut world = World::new(large_settings());
    let polite = world.accept();
    let mut waited_ms = 0;
    let mut link = world.shared;
    for round in 0..5 {
        let slow: Vec<SessionId> = (0..3).map(|_| world.accept()).collect();
        world.slow.extend(slow.iter().copied());
        for session in &slow {
            world.asks(*session, &["GET large", "INCR n"]);
        }
        world.asks(polite, &["INCR polite"]);
        let mut replies = Vec::new();
        for _ in &slow {
            replies.push(value(400_000)[..350_000].to_owned());
            replies.push(format!("{}:1\r\n", &value(400_000)[350_000..]));
        }
        replies.push(":1\r\n".to_owned());
        // The driver reads only what it was told to.
        let mut replies = replies.into_iter().peekable();
        for _ in 0..200 {
            let is_read = world.is_read(link);
            if is_read && let Some(reply) = replies.next() {
                world.says(link, reply);
            } else if !is_read {
                world.wait_ms(50);
                waited_ms += 50;
            }
        }
        assert_eq!(world.got(polite), ":1\r\n", "round {round}");
        // The link was captured: all others ride on a fresh one.
        link = world.connect();
    }
    assert!(waited_ms <= 300 + 50, "{waited_ms} ms in all");
    assert_eq!(world.engine.counters().sessions_closed_by_us, 15);
}

/// A session with a pipeline of large replies goes on with another link, in the order asked.
#[test]
fn large_reader_rides_apart() {
    let mut world = World::new(settings());
    let [large, polite] = [world.accept(), world.accept()];
    let shared = world.shared;
    world.asks(large, &["GET large"; 20]);
    assert_eq!(world.asked(shared).len(), 20);
    world.asks(polite, &["INCR n"]);
    says_in_parts(&mut world, shared, 19);
    world.asks(large, &["GET behind"]);
    assert_eq!(world.sent(shared), "*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n");
    says_in_parts(&mut world, shared, 1);
    world.says(shared, ":1\r\n");
    assert_eq!(world.got(polite), ":1\r\n");
    let apart = world.connect();
    assert_eq!(world.sent(shared), "", "nothing overtakes");
    assert!(
        world
            .sent(apart)
            .as_bytes()
            .ends_with(&requests(&["GET behind"]))
    );
    world.says(apart, "$1\r\nb\r\n");
    let got = world.got(large);
    assert_eq!(got.len(), 20 * value(100_000).len() + 7);
    assert!(got.ends_with("$1\r\nb\r\n"));
    world.asks(polite, &["INCR n"]);
    assert!(world.sent(shared).ends_with("INCR\r\n$1\r\nn\r\n"));
    world.says(shared, ":2\r\n");
    // After a minute it rides with all others again.
    world.wait_ms(APART_MS + 100);
    world.asks(large, &["GET later"]);
    assert!(world.sent(shared).contains("later"));
}

/// Replies of which one has come in parts are no reason: what a session is owed at a time is.
#[test]
fn reader_of_one_large_reply_at_a_time_stays() {
    let mut world = World::new(settings());
    let (session, shared) = (world.accept(), world.shared);
    for _ in 0..50 {
        world.asks(session, &["GET large"]);
        assert_eq!(world.asked(world.shared).len(), 1);
        says_in_parts(&mut world, shared, 1);
    }
    assert_eq!(world.engine.counters().links, 1);
}

/// Links of lanes are at most a quarter of all: at the bound sessions stay together.
#[test]
fn large_reader_stays_where_links_are_few() {
    let mut settings = settings();
    settings.limits.links_max = 3;
    settings.limits.streaming_links_max = 1;
    let mut world = World::new(settings);
    let (large, shared) = (world.accept(), world.shared);
    world.asks(large, &["GET large"; 20]);
    says_in_parts(&mut world, shared, 20);
    world.sent(world.shared);
    world.asks(large, &["GET behind"]);
    assert!(world.sent(world.shared).contains("behind"));
}
