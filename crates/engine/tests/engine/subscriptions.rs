//! A hub's link in virtual time: silence, too large messages, bursts, and unexpected replies.

use crate::world::{World, request, settings};
use respool_engine::limits::{LINK_UNUSED_MS, SUBSCRIBING_BYTES_MAX};
use respool_engine::{LinkId, SessionId};

const PING: &str = "*1\r\n$4\r\nPING\r\n";

/// A session that subscribes to a channel, and the hub's link, which has confirmed it.
fn subscriber(world: &mut World, channel: &str) -> (SessionId, LinkId) {
    let session = world.accept();
    world.asks(session, &[&format!("SUBSCRIBE {channel}")]);
    let link = world.connect();
    world.says(link, confirmed(channel));
    assert_eq!(world.got(session), in_resp2(&confirmed(channel)));
    (session, link)
}

fn confirmed(channel: &str) -> String {
    let len = channel.len();
    format!(">3\r\n$9\r\nsubscribe\r\n${len}\r\n{channel}\r\n:1\r\n")
}

fn message(channel: &str, text: &str) -> String {
    let (len, text_len) = (channel.len(), text.len());
    format!(">3\r\n$7\r\nmessage\r\n${len}\r\n{channel}\r\n${text_len}\r\n{text}\r\n")
}

/// Pushes as sessions in RESP2 get them.
fn in_resp2(pushes: &str) -> String {
    pushes.replace(">3\r\n", "*3\r\n")
}

/// A link that carries only subscriptions is checked by PING.
#[test]
fn subscription_link_is_checked_by_ping() {
    let mut settings = settings();
    settings.timeouts.link_stall_ms = 2_000;
    let mut world = World::new(settings);
    let (session, link) = subscriber(&mut world, "a");
    world.sent(link);
    world.wait_ms(1_200);
    assert_eq!(world.sent(link), PING);
    world.says(link, "+PONG\r\n");
    world.wait_ms(1_200);
    assert_eq!(world.sent(link), PING);
    // Without an answer the link is given up, and the next one subscribes to the same channel.
    world.wait_ms(2_200);
    assert!(world.closed_links().contains(&link));
    let again = world.connect();
    world.turn(|_| {});
    assert_eq!(world.sent(again), "*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\na\r\n");
    world.says(again, [confirmed("a"), message("a", "m")].concat());
    assert_eq!(world.got(session), in_resp2(&message("a", "m")));
    assert!(world.closed_sessions().is_empty());
}

/// A message that is larger than any output closes its subscribers, and no other session.
#[test]
fn too_large_message_ends_its_subscribers_alone() {
    let mut settings = settings();
    settings.limits.session_output_hard_bytes = 64 << 10;
    let mut world = World::new(settings);
    let (large, link) = subscriber(&mut world, "large");
    let other = world.accept();
    world.asks(other, &["SUBSCRIBE other"]);
    world.turn(|_| {});
    world.says(link, confirmed("other"));
    world.got(other);
    let bytes = [
        message("large", &"x".repeat(200 << 10)),
        message("other", "m"),
    ]
    .concat();
    for part in bytes.as_bytes().chunks(16 << 10) {
        world.says(link, part);
    }
    assert_eq!(world.closed_sessions(), [large]);
    assert_eq!(world.got(other), in_resp2(&message("other", "m")));
    assert!(world.closed_links().is_empty(), "the link is not to blame");
}

/// A burst to many subscribers is delivered over several turns, and arrives whole.
#[test]
fn burst_to_many_is_delivered_in_parts_and_whole() {
    let mut world = World::new(settings());
    let (first, link) = subscriber(&mut world, "a");
    let mut all = vec![first];
    for _ in 0..1_000 {
        let session = world.accept();
        world.asks(session, &["SUBSCRIBE a"]);
        all.push(session);
    }
    world.turn(|_| {});
    // Each PONG came in a turn of its own.
    world.says(link, "+PONG\r\n".repeat(1_000));
    all.iter().for_each(|session| drop(world.got(*session)));
    let burst: String = (0..2_000)
        .map(|number| message("a", &format!("{number:0100}")))
        .collect();
    assert!(burst.len() < 512 << 10);
    world.held_most = 0;
    // The burst comes in several reads. A message that is delivered later keeps its place between
    // earlier and later ones.
    world.turn(|engine| {
        for read in burst.as_bytes().chunks(64 << 10) {
            engine.handle_link_bytes(link, read);
        }
    });
    while world.engine.deadline() == Some(world.now) {
        world.turn(|_| {});
    }
    let expected = in_resp2(&burst);
    for session in all {
        assert_eq!(world.got(session), expected);
    }
    let much = burst.len() as u64 * 1_001;
    assert!(world.held_most < 20 << 20, "{} of {much}", world.held_most);
}

/// Requests to subscribe wait for the answers to those before, so a link holds few of them.
#[test]
fn subscriptions_leave_as_the_server_answers() {
    let mut world = World::new(settings());
    let (_, link) = subscriber(&mut world, "a");
    world.sent(link);
    let name = |number: usize| format!("{number:02}{}", "x".repeat(30_000));
    let subscribe = |number| {
        let session = world.accept();
        world.asks(session, &[&format!("SUBSCRIBE {}", name(number))]);
        session
    };
    let sessions: Vec<_> = (0..20).map(subscribe).collect();
    let (mut unanswered, mut most) = (0, 0);
    for (number, session) in sessions.into_iter().enumerate() {
        unanswered += world.sent(link).len();
        most = most.max(unanswered);
        let confirmation = confirmed(&name(number));
        world.says(link, &confirmation);
        assert_eq!(world.got(session), in_resp2(&confirmation));
        unanswered -= request(&["SUBSCRIBE", &name(number)]).len();
    }
    assert!(most <= SUBSCRIBING_BYTES_MAX + 31_000, "{most}");
    assert_eq!(unanswered, 0);
}

/// An unexpected reply ends a hub's link, and the next link subscribes to all channels again.
#[test]
fn unexpected_reply_ends_a_hub_and_it_subscribes_again() {
    for unasked in [
        confirmed("b"),
        confirmed("a"),
        "+PONG\r\n".to_owned(),
        ":1\r\n".to_owned(),
    ] {
        let mut world = World::new(settings());
        let (session, link) = subscriber(&mut world, "a");
        world.wait_ms(2_000);
        // The bytes after the unexpected reply are dropped.
        world.says(link, [unasked, message("a", "m")].concat());
        assert!(world.closed_links().contains(&link));
        assert_eq!(world.got(session), "");
        let again = world.connect();
        world.turn(|_| {});
        world.says(again, [confirmed("a"), message("a", "m")].concat());
        assert!(world.got(session).ends_with("$1\r\nm\r\n"));
    }
}

/// A hub's link without subscriptions is closed, and opened again for the next one.
#[test]
fn unused_hub_link_is_closed_and_opened_again() {
    let mut world = World::new(settings());
    let (session, link) = subscriber(&mut world, "a");
    world.sent(link);
    world.asks(session, &["UNSUBSCRIBE"]);
    world.turn(|_| {});
    assert_eq!(world.sent(link), "*2\r\n$11\r\nUNSUBSCRIBE\r\n$1\r\na\r\n");
    assert_eq!(world.got(session), "", "the server has not confirmed it");
    world.says(link, ">3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:0\r\n");
    assert_eq!(
        world.got(session),
        "*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:0\r\n"
    );
    world.wait_ms(LINK_UNUSED_MS - 1_000);
    assert!(world.closed_links().is_empty());
    world.wait_ms(2_000);
    assert_eq!(world.closed_links(), [link]);
    let (_, other) = subscriber(&mut world, "b");
    assert_ne!(other, link);
}

/// A session that leaves before its subscription is confirmed leaves no subscription.
#[test]
fn session_gone_before_its_confirmation_leaves_no_trace() {
    let mut world = World::new(settings());
    let (_, link) = subscriber(&mut world, "a");
    let session = world.accept();
    world.asks(session, &["SUBSCRIBE b a"]);
    world.turn(|engine| engine.handle_session_lost(session));
    world.sent(link);
    world.says(link, confirmed("b"));
    world.turn(|_| {});
    assert_eq!(world.engine.counters().subscriptions, 1);
    world.says(link, ">3\r\n$11\r\nunsubscribe\r\n$1\r\nb\r\n:1\r\n");
    world.says(link, message("b", "m"));
    assert!(world.closed_links().is_empty());
    assert_eq!(world.engine.counters().messages_out, 0);
}

/// A session gets no message after its QUIT.
#[test]
fn session_after_quit_gets_no_messages() {
    let mut world = World::new(settings());
    let (session, link) = subscriber(&mut world, "a");
    world.turn(|engine| {
        engine.handle_link_bytes(link, message("a", "1").as_bytes());
        engine.handle_session_bytes(session, b"QUIT\r\n");
        engine.handle_link_bytes(link, message("a", "2").as_bytes());
    });
    assert_eq!(
        world.got(session),
        "*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\n1\r\n+OK\r\n"
    );
    assert_eq!(world.closed_sessions(), [session]);
}

/// A subscriber that takes no output is closed in the middle of a burst, and no other is.
#[test]
fn deaf_subscriber_is_closed_inside_a_burst_alone() {
    let mut settings = settings();
    settings.limits.session_output_hard_bytes = 64 << 10;
    let mut world = World::new(settings);
    let (slow, link) = subscriber(&mut world, "a");
    let mut others = Vec::new();
    for _ in 0..3 {
        let session = world.accept();
        world.asks(session, &["SUBSCRIBE a"]);
        world.says(link, "+PONG\r\n");
        world.got(session);
        others.push(session);
    }
    let message_to_all = message("a", &"x".repeat(1_000));
    for _ in 0..200 {
        // All sessions but one take their output.
        world.engine.begin_turn(world.now);
        world
            .engine
            .handle_link_bytes(link, message_to_all.as_bytes());
        world.engine.end_turn();
        while let Some(session) = world.engine.poll_session() {
            let len = world.engine.session_output(session).len();
            if session != slow {
                world.engine.handle_session_written(session, len);
            }
        }
    }
    world.turn(|_| {});
    assert_eq!(world.closed_sessions(), [slow]);
    assert_eq!(world.engine.counters().subscriptions, 3);
    world.says(link, message("a", "last"));
    for session in others {
        assert!(world.got(session).ends_with("\r\nlast\r\n"));
    }
}
