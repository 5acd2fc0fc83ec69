//! Sessions that ask for large replies or take them slowly, beside others on the same link.

use crate::world::{World, requests, settings};
use respool_engine::SessionId;
use respool_engine::limits::APART_MS;

/// A reply with a value of this length.
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

/// The time for which other sessions wait counts over all slow sessions and all links.
#[test]
fn others_wait_once_for_all_slow_sessions() {
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
        // The driver reads only the links that the engine wants to read.
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
        // The link drains: all other sessions use a fresh one.
        link = world.connect();
    }
    assert!(waited_ms <= 300 + 50, "{waited_ms} ms in all");
    assert_eq!(world.engine.counters().sessions_closed_by_us, 15);
}

/// A session with a pipeline of large replies moves to another link, in the order asked.
#[test]
fn large_reader_moves_to_a_link_apart() {
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
    assert_eq!(world.sent(shared), "", "no request overtakes");
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
    // After a minute it uses the shared link again.
    world.wait_ms(APART_MS + 100);
    world.asks(large, &["GET later"]);
    assert!(world.sent(shared).contains("later"));
}

/// A single large reply that comes in parts moves no session: the sum of the replies that it is
/// owed does.
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

/// A client writes transactions and takes no reply. Its link is not read at the hard bound, and it
/// gets all replies once it takes some. Replies to MULTI wait for their place meanwhile.
#[test]
fn slow_reader_of_transactions_is_not_closed() {
    let mut world = World::new(large_settings());
    let (session, link) = (world.accept(), world.shared);
    world.asks(session, &["MULTI", "GET k", "EXEC"]);
    world.allows_transactions(link);
    world.sent(link);
    world.got(session);
    world.slow.insert(session);
    world.asks(session, &[["MULTI", "GET large", "EXEC"]; 6].concat());
    assert_eq!(world.asked(link).len(), 3 * 6);
    let answers = format!("+OK\r\n+QUEUED\r\n*1\r\n{}", value(99_000));
    let mut replies = [answers.as_str(); 6].concat();
    // One read brings more than the hard bound.
    let rest = replies.split_off(4 * answers.len());
    world.says(link, replies);
    assert_eq!(world.closed_sessions(), []);
    assert!(!world.is_read(link));
    world.asks(session, &["MULTI"]);
    world.takes(session);
    assert!(world.is_read(link));
    world.says(link, rest);
    let got = world.got(session);
    assert_eq!(got.matches("+QUEUED\r\n*1\r\n").count(), 6);
    assert!(got.ends_with("\r\n+OK\r\n"), "the last MULTI");
}

/// A server that bounds its output closes a young link. Requests that were not sent wait for the
/// next one.
#[test]
fn requests_wait_where_a_young_link_is_lost() {
    let mut world = World::new(settings());
    let [session, other] = [world.accept(), world.accept()];
    for _ in 0..3 {
        world.asks(session, &["INCR n"]);
        world.says(world.shared, ":1\r\n");
        assert_eq!(world.got(session), ":1\r\n");
        world.asks(session, &["INCR n"]);
        world.room.insert(world.shared, 0);
        world.asks(other, &["INCR m"]);
        world.lose(world.shared);
        assert!(world.got(session).starts_with("-UNKNOWN "));
        assert_eq!(world.got(other), "", "the request was not sent");
        assert_eq!(world.connecting(), [world.shared], "at once");
        world.room.clear();
        world.up(world.shared);
        assert!(world.sent(world.shared).contains("INCR\r\n$1\r\nm"));
        world.says(world.shared, ":1\r\n");
        assert_eq!(world.got(other), ":1\r\n");
    }
}

/// A server that answers nothing and closes each link within its first second is tried with
/// back-off.
#[test]
fn server_that_closes_each_young_link_is_backed_off() {
    let mut world = World::new(settings());
    let session = world.accept();
    let mut attempts = 0;
    world.lose(world.shared);
    for _ in 0..800 {
        world.wait_ms(50);
        for link in world.connecting() {
            attempts += 1;
            world.up(link);
            world.asks(session, &["INCR n"]);
            assert!(world.sent(link).contains("INCR"));
            world.lose(link);
        }
    }
    // Forty seconds, with pauses that grow to two.
    assert!((20..60).contains(&attempts), "{attempts}");
}

/// A pipeline of reads that was lost with its link is sent again on a link apart, since the server
/// may have closed the link because of it. Later requests of the session wait.
#[test]
fn lost_pipeline_is_asked_again_apart() {
    let mut world = World::new(settings());
    let [large, polite] = [world.accept(), world.accept()];
    world.wait_ms(2_000);
    world.asks(large, &["GET large"; 20]);
    world.asks(polite, &["GET small"]);
    let shared = world.shared;
    assert_eq!(world.asked(shared).len(), 20);
    world.lose(shared);
    world.asks(large, &["SET large v"]);
    let connecting = world.connecting();
    assert_eq!(connecting.len(), 2, "{connecting:?}");
    for link in &connecting {
        world.up(*link);
    }
    let apart = *connecting.iter().find(|link| **link != shared).unwrap();
    let asked = world.sent(shared);
    assert!(
        asked.contains("small") && !asked.contains("large"),
        "{asked}"
    );
    assert!(
        world
            .sent(apart)
            .as_bytes()
            .ends_with(&requests(&["GET large"; 20]))
    );
    // After a second loss the pipeline fails, and the other session is not touched.
    world.lose(apart);
    assert!(world.got(large).starts_with("-UNKNOWN "));
    world.says(shared, "$1\r\nv\r\n");
    assert_eq!(world.got(polite), "$1\r\nv\r\n");
    assert!(world.sent(shared).contains("SET\r\n$5\r\nlarge"));
}

/// A link that serves one session because its earlier link was lost keeps the deadline: the session
/// takes all its replies.
#[test]
fn lost_pipeline_keeps_its_deadline_on_the_link_apart() {
    let mut settings = settings();
    settings.timeouts.request_ms = 1_000;
    settings.timeouts.link_stall_ms = 30_000;
    let mut world = World::new(settings);
    let session = world.accept();
    world.wait_ms(1_500);
    let gets = ["GET k"; 10];
    world.asks(session, &gets);
    world.sent(world.shared);
    world.lose(world.shared);
    for link in world.connecting() {
        world.up(link);
    }
    world.wait_ms(1_200);
    let got = world.got(session);
    assert_eq!(got.matches("-UNKNOWN").count(), gets.len(), "{got}");
}

/// No error can follow half a reply, so the connection is closed, as if the server had closed it.
#[test]
fn half_a_reply_ends_its_session_at_the_deadline() {
    let mut settings = settings();
    settings.timeouts.request_ms = 1_000;
    settings.timeouts.link_stall_ms = 30_000;
    let mut world = World::new(settings);
    let session = world.accept();
    world.asks(session, &["GET k"]);
    world.says(world.shared, format!("$1000000\r\n{}", "x".repeat(100_000)));
    world.wait_ms(900);
    assert!(world.closed_sessions().is_empty());
    assert!(world.got(session).len() > 90_000);
    world.wait_ms(300);
    assert_eq!(world.closed_sessions(), [session]);
}
