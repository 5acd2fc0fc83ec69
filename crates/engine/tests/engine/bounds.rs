//! Bounds of the engine, and ends of sessions and links: each in a history of its own, in virtual
//! time.

use std::collections::HashSet;

use crate::world::{HELLO, World, request, requests, settings, worker};
use respool_engine::limits::LINK_UNUSED_MS;
use respool_engine::settings::{Settings, User};
use respool_engine::{Action, Event, LinkId, SessionId};

/// The beginning of a request that sets `k` to a value of this length.
fn head(len: usize) -> Vec<u8> {
    format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${len}\r\n").into_bytes()
}

/// A request that respool answers itself, with an error as long as this.
fn answered_here(len: usize) -> String {
    format!("HELLO 3 {}", "x".repeat(len))
}

/// Ten sessions leave while a large reply waits behind an earlier one that has not come.
fn ten_leave_with_a_reply_that_waits(world: &mut World) {
    for _ in 0..10 {
        let session = world.accept();
        world.asks(session, &["GET k", &answered_here(200_000)]);
        assert!(world.engine.counters().held_bytes > 200_000);
        world.turn(|engine| engine.handle_session_lost(session));
    }
}

/// respool's own reply to EXEC without a transaction.
const ANSWERED_HERE: &str = "-ERR EXEC without MULTI\r\n";

/// Replies that wait for their place in the order are freed when their session leaves.
#[test]
fn memory_of_waiting_replies_is_freed_with_their_session() {
    let mut world = World::new(settings());
    ten_leave_with_a_reply_that_waits(&mut world);
    assert_eq!(world.engine.counters().sessions, 0);
    assert_eq!(world.engine.counters().held_bytes, 0);
}

/// Memory that a closed session held does not count any more, so no other session is closed for it.
#[test]
fn memory_of_a_closed_session_closes_no_other() {
    let mut settings = settings();
    settings.limits.worker_memory_bytes_max = 1 << 20;
    let mut world = World::new(settings);
    ten_leave_with_a_reply_that_waits(&mut world);
    let innocent = world.accept();
    world.sends(innocent, b"EXEC\r\n");
    assert_eq!(world.got(innocent), ANSWERED_HERE);
}

/// While too much memory is held, one session after the other is not read until it takes output.
/// The session that is owed most may have stopped asking long ago.
#[test]
fn memory_bound_stops_reading_one_session_after_another() {
    let mut settings = settings();
    settings.limits.worker_memory_bytes_max = 115_000;
    let mut world = World::new(settings);
    let [most, more, quick] = [(); 3].map(|()| world.accept());
    world.slow.extend([most, more]);
    for (session, len) in [(most, 70_000), (more, 35_000)] {
        world.asks(session, &["GET k"]);
        let reply = format!("${len}\r\n{}\r\n", "v".repeat(len));
        world.says(world.shared, reply);
    }
    world.wait_ms(1);
    world.sent(world.shared);
    for session in [most, more, quick] {
        world.asks(session, &["GET k"]);
    }
    let one = requests(&["GET k"]);
    assert_eq!(
        world.sent(world.shared).as_bytes(),
        one,
        "only the quick session is read"
    );
    world.says(world.shared, "$1\r\nv\r\n");
    assert_eq!(world.got(quick), "$1\r\nv\r\n");
    world.takes(more);
    assert_eq!(
        world.sent(world.shared).as_bytes(),
        one,
        "a session that took output is read again"
    );
    assert_eq!(world.closed_sessions(), []);
}

/// A client that has closed its side gets all replies, even if its session was held in between.
#[test]
fn half_closed_session_gets_all_replies_after_a_hold() {
    let mut settings = settings();
    settings.limits.session_output_soft_bytes = 1_000;
    let mut world = World::new(settings);
    let session = world.accept();
    world.turn(|engine| {
        engine.handle_session_bytes(session, &requests(&["EXEC"]).repeat(50));
        engine.handle_session_end(session);
    });
    world.wait_ms(300);
    let refused = "-ERR EXEC without MULTI\r\n";
    assert_eq!(world.got(session), refused.repeat(50));
}

/// A session that leaves while it waits does not keep the next one waiting.
#[test]
fn waiter_that_left_does_not_block_the_next_one() {
    let mut settings = settings();
    settings.limits.streaming_links_max = 1;
    let mut world = World::new(settings);
    let [first, second, third] = [world.accept(), world.accept(), world.accept()];
    let len = 300_000;
    world.sends(first, &head(len));
    let link = world.connect();
    world.sends(second, &head(len));
    world.sends(third, &head(len));
    world.turn(|engine| engine.handle_session_lost(second));
    world.sends(first, &[&vec![b'v'; len][..], b"\r\n"].concat());
    world.says(link, "+OK\r\n");
    assert_eq!(world.got(first), "+OK\r\n");
    world.turn(|_| {});
    let streamed = world.engine.counters().streamed_requests;
    assert_eq!(streamed, 2, "the third goes on");
}

/// A client may end its input while the rest of its large request waits for the link. The request
/// and the one behind it have come whole, so both are executed.
#[test]
fn end_of_input_behind_a_large_request_that_waits_loses_nothing() {
    let mut world = World::new(settings());
    let session = world.accept();
    let len = 3_000_000;
    world.sends(session, &head(len));
    let link = world.connect();
    world.sent(link);
    world.room.insert(link, 0);
    let value = vec![b'v'; len];
    let rest = [&value[..], b"\r\n", &request(&["GET", "a"])].concat();
    for bytes in rest.chunks(1_500_000) {
        world.turn(|engine| engine.handle_session_bytes(session, bytes));
    }
    world.turn(|engine| engine.handle_session_end(session));
    world.room.remove(&link);
    let mut streamed = 0;
    for _ in 0..10 {
        world.turn(|_| {});
        streamed += world.sent(link).len();
    }
    assert_eq!(streamed, len + 2, "all of the value is sent");
    world.says(link, "+OK\r\n");
    assert_eq!(world.sent(world.shared).as_bytes(), request(&["GET", "a"]));
    world.says(world.shared, "$1\r\nv\r\n");
    assert_eq!(world.got(session), "+OK\r\n$1\r\nv\r\n");
}

/// At the bound of links a large request gets an error that names the bound.
#[test]
fn large_request_at_the_bound_of_links_is_refused() {
    let mut settings = settings();
    settings.limits.links_max = 2;
    let mut world = World::new(settings);
    let [large, other] = [world.accept(), world.accept()];
    world.may_ask(other, &["SELECT none"]);
    world.asks(other, &["SELECT 1"]);
    let link = world.connect();
    assert_eq!(world.got(other), "+OK\r\n");
    world.asks(other, &["GET busy"]);
    world.sends(large, &head(300_000));
    world.says(link, "$1\r\nv\r\n");
    world.turn(|engine| engine.handle_session_lost(other));
    world.wait_ms(3 * LINK_UNUSED_MS);
    let links = world.engine.counters().links;
    assert_eq!(links, 1, "the link of database 1 is closed as unused");
    assert!(world.got(large).starts_with("-NOTSENT "));
}

/// A link that was full before it was up is used again once it has room.
#[test]
fn link_that_was_full_before_it_was_up_is_used_again() {
    let mut settings = settings();
    settings.timeouts.request_ms = 500;
    settings.limits.link_unanswered_requests_max = 10;
    let mut world = World::unconnected(worker(0, 1), settings);
    let link = world.shared;
    // The server is slow to answer the handshake.
    world.turn(|engine| engine.handle_link_up(link));
    let many = world.accept();
    world.asks(many, &["GET k"; 20]);
    world.wait_ms(720);
    assert!(world.got(many).starts_with("-NOTSENT"));
    world.says(link, HELLO);
    let session = world.accept();
    world.asks(session, &["GET fresh"]);
    world.wait_ms(120_000);
    let (sent, got) = (world.sent(link), world.got(session));
    assert!(
        sent.contains("fresh"),
        "two minutes later: {sent:?} {got:?}"
    );
}

/// A large request that got NOTSENT at its deadline is never sent.
#[test]
fn large_request_given_up_is_never_sent() {
    let mut settings = settings();
    settings.timeouts.request_ms = 500;
    let mut world = World::new(settings);
    let session = world.accept();
    let large = request(&["SET", "k", &"v".repeat(300_000)]);
    let (beginning, rest) = large.split_at(100_000);
    world.sends(session, beginning);
    world.sends(session, rest);
    let link = world.connecting()[0];
    world.wait_ms(720);
    assert!(world.got(session).starts_with("-NOTSENT"));
    world.up(link);
    world.wait_ms(300);
    let sent = world.sent(link).len();
    assert!(
        sent < 1_000,
        "the request failed as NOTSENT, but {sent} bytes were sent"
    );
}

/// An upload ends if its server reads nothing.
#[test]
fn upload_to_a_server_that_reads_nothing_ends() {
    let mut world = World::new(settings());
    let session = world.accept();
    world.sends(session, &head(30_000_000));
    world.connect();
    world
        .engine
        .handle_session_bytes(session, &vec![b'x'; 2_000_000]);
    for _ in 0..4_000 {
        world.now = world.now.plus_ms(60);
        world.engine.begin_turn(world.now);
        world.engine.end_turn();
        // No bytes are written.
        while world.engine.poll_link().is_some() {}
        while world.engine.poll_action().is_some() {}
        while world.engine.poll_event().is_some() {}
    }
    let links = world.engine.counters().links;
    assert!(
        links == 1 || !world.engine.session_output(session).is_empty(),
        "four minutes later: {links} links"
    );
}

/// An inline request beyond the bound gets one reply at most, however long it is.
#[test]
fn too_long_line_gets_at_most_one_reply() {
    let mut settings = settings();
    settings.limits.request_held_bytes_max = 1_024;
    let mut world = World::new(settings);
    let session = world.accept();
    world.sends(session, &[b'x'; 2_000]);
    world.wait_ms(300);
    let got = world.got(session).len();
    assert!(got < 10_000, "{got} bytes of replies to one line");
}

/// A client that ends in the middle of a request gets the replies to the requests before it.
#[test]
fn half_request_at_the_end_spares_earlier_replies() {
    let mut world = World::new(settings());
    let session = world.accept();
    world.turn(|engine| {
        let bytes = [requests(&["EXEC"]), head(300_000), b"abc".to_vec()].concat();
        engine.handle_session_bytes(session, &bytes);
        engine.handle_session_end(session);
    });
    world.wait_ms(200);
    assert_eq!(world.got(session), ANSWERED_HERE);
}

/// A link that is down is not set aside for a slow reader.
#[test]
fn link_that_is_down_is_not_drained() {
    let mut settings = settings();
    settings.limits.session_output_soft_bytes = 1_000;
    settings.limits.link_unanswered_requests_max = 1 << 16;
    let mut world = World::new(settings);
    let (link, session) = (world.shared, world.accept());
    // Output that the client does not take, and then requests on the link.
    let engine = &mut world.engine;
    engine.handle_session_bytes(session, &requests(&[&answered_here(900)]));
    engine.handle_session_bytes(session, &requests(&["SET k v"; 10]));
    engine.end_turn();
    // Half of them is written when the link, younger than a second, is lost.
    engine.handle_link_written(link, engine.link_output(link).len() / 2);
    engine.handle_link_lost(link, "reset");
    world.turn(|_| {});
    for _ in 0..3_600 {
        for link in world.connecting() {
            world.up(link);
        }
        world.wait_ms(50);
    }
    assert_eq!(world.engine.counters().links, 1, "three minutes later");
}

/// The second slow reader of a link that already drains for the first gets its own time, and is not
/// closed at once.
#[test]
fn two_slow_readers_of_a_link_wait_one_after_the_other() {
    let mut settings = settings();
    settings.limits.session_output_soft_bytes = 1_000;
    settings.limits.session_output_hard_bytes = 100_000;
    let mut world = World::new(settings);
    let [first, second] = [world.accept(), world.accept()];
    let link = world.shared;
    world.asks(first, &["GET large", "GET k"]);
    // Since it also writes, the session stays on the link.
    world.asks(second, &["SET k v", "GET large"]);
    world.wait_ms(1);
    world.slow.extend([first, second]);
    let large = |len: usize| format!("${len}\r\n{}\r\n", "v".repeat(len));
    world.says(link, large(50_000));
    assert_eq!(world.engine.counters().links_drained, 1);
    world.says(link, ["$1\r\nv\r\n", "+OK\r\n"].concat());
    let (beginning, rest) = (&large(300_000)[..200_000], &large(300_000)[200_000..]);
    world.says(link, beginning);
    assert_eq!(world.closed_sessions(), []);
    let reads = |world: &World, on: bool| {
        let last = world.actions.iter().rev().find_map(|action| match action {
            Action::ReadLink(id, on) if *id == link => Some(*on),
            _ => None,
        });
        last == Some(on)
    };
    assert!(reads(&world, false), "the link is not read");
    world.takes(first);
    assert!(reads(&world, false), "the first session takes no output");
    world.takes(second);
    assert!(reads(&world, true), "the link is read");
    world.says(link, rest);
    assert_eq!(world.got(first).len(), large(50_000).len() + 7);
    assert_eq!(world.got(second).len(), 5 + large(300_000).len());
    assert_eq!(world.closed_links(), [link], "the link has no reply left");
    assert_eq!(world.closed_sessions(), []);
}

/// A client that stops in the middle of a large request is idle. It holds one of few links.
#[test]
fn client_that_stops_in_a_large_request_is_idle() {
    let mut settings = settings();
    settings.timeouts.session_idle_ms = 1_000;
    let mut world = World::new(settings);
    let session = world.accept();
    let large = request(&["SET", "k", &"v".repeat(1 << 20)]);
    world.sends(session, &large[..500_000]);
    let link = world.connect();
    world.wait_ms(900);
    world.sends(session, &large[500_000..600_000]);
    world.wait_ms(900);
    assert_eq!(world.closed_sessions(), [], "the client goes on sending");
    world.wait_ms(200);
    assert_eq!(world.closed_sessions(), [session]);
    assert_eq!(world.closed_links(), [link]);
}

/// A reply whose first bytes came before the deadline is not late.
#[test]
fn reply_that_has_begun_is_not_late() {
    let mut settings = settings();
    settings.timeouts.request_ms = 400;
    let mut world = World::new(settings);
    let session = world.accept();
    world.asks(session, &["GET large", "GET k"]);
    let large = format!("$100000\r\n{}\r\n", "v".repeat(100_000));
    let (beginning, rest) = large.split_at(80_000);
    world.wait_ms(300);
    world.says(world.shared, beginning);
    world.wait_ms(200);
    world.says(world.shared, rest);
    let got = world.got(session);
    let behind = got.strip_prefix(&large).expect("the reply comes whole");
    assert!(behind.starts_with("-UNKNOWN "), "{behind}");
}

/// A reply that has begun ends on its link, even if the link begins to drain.
#[test]
fn reply_that_has_begun_ends_on_a_draining_link() {
    let mut settings = settings();
    settings.limits.session_output_soft_bytes = 70_000;
    settings.limits.session_output_hard_bytes = 75_000;
    let mut world = World::new(settings);
    let [slow, other] = [world.accept(), world.accept()];
    world.slow.insert(slow);
    world.turn(|engine| {
        engine.handle_session_bytes(slow, &requests(&["GET x"]));
        engine.handle_session_bytes(other, &requests(&["GET y"]));
        engine.handle_session_bytes(slow, &requests(&["GET z"]));
    });
    let much = format!("$80000\r\n{}\r\n", "x".repeat(80_000));
    let large = format!("$69000\r\n{}\r\n", "y".repeat(69_000));
    let (beginning, rest) = large.split_at(66_000);
    // The slow session now holds too much, and is owed more: its link is not read on.
    world.says(world.shared, [&much, beginning].concat());
    let next = world.connect();
    world.says(world.shared, [rest, "$1\r\n1\r\n"].concat());
    assert!(world.got(other) == large, "whole, and once");
    assert_eq!(world.sent(next), "");
    world.takes(slow);
    assert!(world.got(slow) == [&much, "$1\r\n1\r\n"].concat());
}

/// A reply that comes before its MGET is written whole is a protocol error.
#[test]
fn early_reply_to_a_part_of_an_mget_ends_the_link() {
    let mut settings = settings();
    settings.flush.fuse = true;
    let mut world = World::new(settings);
    world.see_rights();
    let [a, b] = [world.accept(), world.accept()];
    world.engine.begin_turn(world.now);
    world.engine.handle_session_bytes(a, &requests(&["GET a"]));
    world.engine.handle_session_bytes(b, &requests(&["GET b"]));
    world.engine.end_turn();
    let link = world.engine.poll_link().expect("the link has output");
    assert!(
        world
            .engine
            .link_output(link)
            .starts_with(b"*3\r\n$4\r\nMGET")
    );
    world.engine.handle_link_written(link, 5);
    world.says(link, "*2\r\n");
    assert_eq!(world.closed_links(), [link]);
}

/// A reply that comes before its request is written whole is a protocol error.
#[test]
fn early_reply_ends_the_link() {
    let mut world = World::new(settings());
    let session = world.accept();
    world.wait_ms(1_100);
    let set = requests(&["SET key value"]);
    world.engine.begin_turn(world.now);
    world.engine.handle_session_bytes(session, &set);
    world.engine.end_turn();
    let link = world.engine.poll_link().expect("the link has output");
    // The socket has no more room.
    world.engine.handle_link_written(link, set.len() - 5);
    world.says(link, "+OK\r\n");
    assert_eq!(world.closed_links(), [link]);
    world.asks(session, &["GET key"]);
    assert_eq!(world.connect(), link);
    let sent = world.sent(link);
    assert_eq!(sent.as_bytes(), requests(&["GET key"]));
}

/// Replies that wait for their place count towards the session's output bound. The reply before
/// them may take as long as a query to all workers.
#[test]
fn waiting_replies_count_towards_the_output_bound() {
    let mut settings = settings();
    settings.limits.session_output_hard_bytes = 1 << 20;
    let mut world = World::new(settings);
    let [session, stranger] = [world.accept(), world.accept()];
    world.asks(stranger, &["HELLO 3"]);
    let other = world.connect();
    world.asks(stranger, &["GET slow"]);
    assert_eq!(world.asked(other).len(), 1);
    // The pause is confirmed when that request is answered.
    world.asks(session, &["CLIENT PAUSE 10 WRITE"]);
    world.says(
        world.shared,
        "-ERR timeout is not an integer or out of range\r\n",
    );
    world.sent(world.shared);
    world.asks(session, &["GET k"; 100]);
    let value = format!("$60000\r\n{}\r\n", "x".repeat(60_000));
    for _ in world.asked(world.shared) {
        world.says(world.shared, &value);
    }
    assert_eq!(world.got(session), "");
    assert!(world.held_most < 2 << 20, "{} held", world.held_most);
    assert_eq!(world.engine.counters().sessions_closed_by_us, 1);
}

/// Settings with which a session is slow with one [`value`], and at its bound with two.
fn two_values_at_most() -> Settings {
    let mut settings = settings();
    settings.limits.session_output_soft_bytes = 20_000;
    settings.limits.session_output_hard_bytes = 60_000;
    settings
}

fn value() -> String {
    format!("$30000\r\n{}\r\n", "x".repeat(30_000))
}

/// While the link of a slow session is read, no request on it is sent again. Otherwise each slow
/// session would have the requests of all others sent again.
#[test]
fn slow_reader_causes_no_retry_while_its_link_is_read() {
    let mut world = World::new(two_values_at_most());
    let [first, second, third, newcomer] = [(); 4].map(|()| world.accept());
    let old = world.shared;
    let value = value();
    for session in [first, second, third] {
        world.asks(session, &["GET large", "GET k"]);
    }
    world.wait_ms(1);
    world.slow.extend([first, second]);
    world.says(old, &value);
    let fresh = world.connect();
    world.asks(newcomer, &["GET k"]);
    world.wait_ms(1);
    assert_eq!(world.sent(fresh).as_bytes(), requests(&["GET k"]));
    world.says(fresh, "$1\r\nv\r\n");
    assert_eq!(world.got(newcomer), "$1\r\nv\r\n");
    let behind = ["$1\r\nv\r\n", &value].concat().repeat(2);
    world.says(old, [&behind, "$1\r\nv\r\n"].concat());
    assert_eq!(world.got(third), [&value, "$1\r\nv\r\n"].concat());
    let counters = world.engine.counters();
    assert_eq!((counters.reads_sent_again, counters.links_drained), (0, 1));
    world.takes(first);
    world.takes(second);
    for session in [first, second] {
        assert_eq!(world.got(session), [&value, "$1\r\nv\r\n"].concat());
    }
}

/// The link with too many replies for a slow session is not read. A link that the session left for
/// another slow one is read on.
#[test]
fn link_with_too_much_for_a_slow_reader_is_unread() {
    let mut world = World::new(two_values_at_most());
    let [first, second] = [world.accept(), world.accept()];
    let old = world.shared;
    let value = value();
    world.asks(first, &["GET large"; 3]);
    world.asks(second, &["GET other"; 10]);
    world.wait_ms(1);
    world.slow.extend([first, second]);
    world.says(old, value.repeat(2));
    let [_, own] = world.replacing();
    world.up(own);
    assert_eq!(
        world.asked(own).len(),
        10,
        "the session leaves the link of the first"
    );
    world.takes(first);
    world.actions.clear();
    for _ in 0..3 {
        world.says(own, &value);
    }
    let is_stop = |action: &&Action| matches!(action, Action::ReadLink(_, false));
    let stopped: Vec<_> = world.actions.iter().filter(is_stop).collect();
    assert!(
        matches!(stopped[..], [Action::ReadLink(link, false)] if *link == own),
        "{stopped:?}"
    );
}

/// At the bound of links, requests that are sent again go on the shared link, as a link of their
/// own would be one too many.
#[test]
fn retries_take_the_shared_link_at_the_bound_of_links() {
    let mut settings = two_values_at_most();
    settings.limits.links_max = 2;
    let mut world = World::new(settings);
    let [first, second] = [world.accept(), world.accept()];
    let value = value();
    world.asks(first, &["GET large"; 3]);
    world.asks(second, &["GET other"]);
    world.wait_ms(1);
    world.slow.insert(first);
    world.says(world.shared, value.repeat(2));
    let fresh = world.connect();
    assert_eq!(world.sent(fresh).as_bytes(), requests(&["GET other"]));
    world.says(fresh, "$1\r\nv\r\n");
    assert_eq!(world.got(second), "$1\r\nv\r\n");
}

/// A session that pipelines fused requests before a silent server is not closed, as a session
/// without fused requests is not.
#[test]
fn pipelining_of_fused_requests_closes_no_session() {
    let mut settings = settings();
    settings.flush.fuse = true;
    settings.limits.worker_memory_bytes_max = 8 << 20;
    let mut world = World::new(settings);
    world.see_rights();
    let clients: Vec<_> = (0..50).map(|_| world.accept()).collect();
    let chunk = requests(&["SET key:000001 value"; 1_500]);
    let mut unread = HashSet::new();
    let mut taken = 0;
    // The driver reads at most this many bytes of a socket at once.
    for _ in 0..6 {
        for client in &clients {
            if !unread.contains(client) {
                world.sends(*client, &chunk);
                taken += chunk.len();
            }
            for action in std::mem::take(&mut world.actions) {
                match action {
                    Action::ReadSession(session, false) => unread.insert(session),
                    Action::ReadSession(session, true) => unread.remove(&session),
                    _ => false,
                };
            }
        }
    }
    assert_eq!(world.engine.counters().sessions_closed_by_us, 0);
    assert_eq!(unread.len(), clients.len());
    assert!(taken <= clients.len() * 3 * chunk.len(), "{taken} taken");
}

/// Whether the driver was last told to read a link.
fn is_read(world: &World, link: LinkId) -> bool {
    let last = world.actions.iter().rev().find_map(|action| match action {
        Action::ReadLink(id, on) if *id == link => Some(*on),
        _ => None,
    });
    last.unwrap_or(true)
}

/// A link is read again once it has no more replies for the session that it waited for. The first
/// bytes of another session's reply do not count.
#[test]
fn link_is_read_once_it_owes_its_slow_reader_nothing() {
    let mut settings = crate::world::sharded(2);
    settings.limits.session_output_soft_bytes = 1_000;
    let mut world = World::new(settings);
    let [first, second] = [0, 1].map(|at| world.all_shared[at]);
    let get = |at: usize| format!("GET {}", world.key_at(at, "k"));
    let gets = [get(0), get(1)];
    let [early, other] = [world.accept(), world.accept()];
    world.asks(early, &[&gets[0], &gets[1]]);
    world.asks(other, &[&gets[1]]);
    world.wait_ms(1);
    let value = |len: usize| format!("${len}\r\n{}\r\n", "v".repeat(len));
    let large = value(5_000);
    let (beginning, rest) = large.split_at(3_000);
    world.says(second, [&value(2_000), beginning].concat());
    world.says(first, "$1\r\nv\r\n");
    assert_eq!(world.got(early).len(), 7 + value(2_000).len());
    assert!(
        is_read(&world, second),
        "or the other session waits for ever"
    );
    world.says(second, rest);
    assert_eq!(world.got(other), large);
}

/// Two links have each brought more than may wait for its place, each behind replies of the other.
/// One of them is read on.
#[test]
fn two_links_do_not_wait_for_each_other() {
    let mut settings = crate::world::sharded(2);
    settings.limits.session_output_soft_bytes = 1_000;
    let mut world = World::new(settings);
    let links = [0, 1].map(|at| world.all_shared[at]);
    let [k, l] = [0, 1].map(|at| world.key_at(at, "k"));
    let [a, b, other] = [world.accept(), world.accept(), world.accept()];
    world.asks(other, &[&format!("GET {l}")]);
    world.asks(b, &[&format!("SET {l} 1"), &format!("GET {k}")]);
    world.asks(
        a,
        &[
            &format!("SET {k} 1"),
            &format!("GET {l}"),
            &answered_here(2_000),
        ],
    );
    world.asks(b, &[&format!("GET {k}")]);
    world.wait_ms(1);
    world.says(links[1], "$1\r\nv\r\n");
    assert!(!is_read(&world, links[1]), "because of the first");
    let large = format!("$2000\r\n{}\r\n", "v".repeat(2_000));
    world.says(links[0], &large);
    assert!(is_read(&world, links[0]), "or both wait for ever");
    world.says(links[0], "+OK\r\n$1\r\n1\r\n");
    assert!(is_read(&world, links[1]));
    world.says(links[1], "+OK\r\n$1\r\n1\r\n");
    world.wait_ms(1);
    assert!(world.got(a).starts_with("+OK\r\n$1\r\n1\r\n-"));
    assert_eq!(world.got(b), ["+OK\r\n", &large, "$1\r\n1\r\n"].concat());
    assert_eq!(world.engine.counters().held_bytes, 0);
}

/// Two servers, and three requests of one session, each with a part at both. The replies have this
/// length.
fn three_in_parts(soft: u32, hard: u32, len: usize) -> (World, SessionId, String) {
    let mut settings = crate::world::sharded(2);
    settings.limits.session_output_soft_bytes = soft;
    settings.limits.session_output_hard_bytes = hard;
    let mut world = World::new(settings);
    let session = world.accept();
    let [k, l] = [0, 1].map(|at| world.key_at(at, "k"));
    let mget = format!("MGET {k} {l}");
    world.asks(session, &[&mget, &mget, &mget]);
    world.wait_ms(1);
    let part = format!("*1\r\n${len}\r\n{}\r\n", "v".repeat(len));
    (world, session, part)
}

/// Parts that wait for other parts count towards the session's output bound.
#[test]
fn waiting_parts_count_towards_the_output_bound() {
    // The bound is an eighth of the memory of a worker.
    let part = settings().limits.worker_memory_bytes_max as usize / 8 * 2 / 5;
    let (mut world, session, part) = three_in_parts(1_000, 10_000, part);
    let first = world.all_shared[0];
    world.says(first, part.repeat(3));
    assert_eq!(world.closed_sessions(), [session]);
    assert_eq!(world.engine.counters().held_bytes, 0);
    // Both servers answer all requests.
    let second = world.all_shared[1];
    world.says(second, part.repeat(3));
    assert_eq!(world.engine.counters().late_replies, 3);
    assert_eq!(world.engine.counters().held_bytes, 0);
}

/// A link that brings parts long before the other links is not read until these catch up.
#[test]
fn link_ahead_with_its_parts_is_unread_until_the_others() {
    let (mut world, session, part) = three_in_parts(1_000, 1_000_000, 4_000);
    let [first, second] = [0, 1].map(|at| world.all_shared[at]);
    world.says(first, &part);
    assert!(!is_read(&world, first));
    for _ in 0..2 {
        world.says(second, "*1\r\n$-1\r\n");
        assert!(
            is_read(&world, first),
            "the replies on the first link were waited for"
        );
        world.says(first, &part);
    }
    world.says(second, "*1\r\n$-1\r\n");
    let whole = format!("*2\r\n{}$-1\r\n", &part[4..]);
    assert_eq!(world.got(session), whole.repeat(3));
}

/// A scattered request fails as NOTSENT only if none of its parts was sent.
#[test]
fn scattered_request_is_notsent_if_no_part_was_sent() {
    for sent in [[false, false], [true, false], [false, true]] {
        let mut world = World::unconnected(worker(0, 1), crate::world::sharded(2));
        let session = world.accept();
        let [k, l] = [0, 1].map(|at| world.key_at(at, "k"));
        world.asks(
            session,
            &[&format!("DEL {k} {l}"), &format!("MGET {k} {l}")],
        );
        for (link, sent) in world.all_shared.clone().into_iter().zip(sent) {
            if sent {
                world.up(link);
                assert_eq!(world.asked(link).len(), 2);
            }
            world.lose(link);
        }
        let got = world.got(session);
        let (del, mget) = got.split_once("\r\n").expect("both requests are answered");
        match sent.contains(&true) {
            true => assert!(
                del.starts_with("-UNKNOWN respool: a part of the command "),
                "{del}"
            ),
            false => assert!(del.starts_with("-NOTSENT "), "{del}"),
        }
        // MGET changes nothing, so its error tells the fate of its first part.
        let first = if sent[0] {
            "-UNKNOWN respool: the command was sent"
        } else {
            "-NOTSENT "
        };
        assert!(mget.starts_with(first), "{mget}");
    }
}

/// A large reply that begins before its place is out is read on once its place has come.
#[test]
fn large_early_reply_is_read_on_in_its_turn() {
    let mut settings = crate::world::sharded(2);
    settings.limits.session_output_soft_bytes = 70_000;
    let mut world = World::new(settings);
    let session = world.accept();
    let [k, l] = [0, 1].map(|at| format!("GET {}", world.key_at(at, "k")));
    world.asks(session, &[&k, &l]);
    let [first, second] = [0, 1].map(|at| world.all_shared[at]);
    let large = format!("$200000\r\n{}\r\n", "v".repeat(200_000));
    let (beginning, rest) = large.split_at(80_000);
    world.says(second, beginning);
    assert!(!is_read(&world, second), "all of it would be held");
    world.says(first, "$-1\r\n");
    assert!(is_read(&world, second));
    world.says(second, rest);
    assert!(world.got(session) == ["$-1\r\n", &large].concat());
    assert_eq!(world.engine.counters().held_bytes, 0);
}

/// One server, and a configured user of respool: clients must authenticate.
fn with_user() -> Settings {
    let mut settings = settings();
    settings.users = vec![User {
        name: "default".to_owned(),
        password: "secret".to_owned(),
        source: None,
    }];
    settings
}

/// The beginning of an AUTH with a password of 16,000 bytes.
fn half_a_login() -> Vec<u8> {
    let mut bytes = b"*2\r\n$4\r\nAUTH\r\n$16000\r\n".to_vec();
    bytes.resize(bytes.len() + 15_000, b'x');
    bytes
}

/// A session that does not authenticate is closed at its time limit, even if it sends requests. The
/// log names two such sessions in one line.
#[test]
fn unauthenticated_session_is_closed_at_its_time_limit() {
    let mut settings = with_user();
    settings.timeouts.authenticate_ms = 5_000;
    let mut world = World::new(settings);
    let [silent, dribbling, client] = [(); 3].map(|()| world.accept());
    world.asks(client, &["AUTH secret"]);
    for _ in 0..4 {
        world.sends(dribbling, b"x");
        world.wait_ms(1_000);
    }
    assert_eq!(world.closed_sessions(), []);
    world.sends(dribbling, b"x");
    world.wait_ms(1_500);
    let closed: HashSet<SessionId> = world.closed_sessions().into_iter().collect();
    assert_eq!(closed, HashSet::from([silent, dribbling]));
    let told = |event: &&Event| matches!(event, Event::SessionClosed { .. });
    assert_eq!(world.events.iter().filter(told).count(), 1);
    let counters = world.engine.counters();
    assert_eq!(counters.sessions_closed_unauthenticated, 2);
    world.asks(client, &["EXEC"]);
    assert_eq!(world.got(client), ["+OK\r\n", ANSWERED_HERE].concat());
}

/// A session that has not authenticated holds no more of a request than a login may be long.
#[test]
fn unauthenticated_session_holds_at_most_a_login() {
    let mut world = World::new(with_user());
    let [stranger, client] = [world.accept(), world.accept()];
    world.asks(client, &["AUTH secret"]);
    let argument = [b"$16000\r\n".to_vec(), vec![b'x'; 16_000], b"\r\n".to_vec()].concat();
    let half = [b"*10\r\n".to_vec(), argument.repeat(3)].concat();
    world.sends(client, &half);
    world.sends(stranger, &half);
    let refused = "-ERR Protocol error: unauthenticated bulk length\r\n";
    assert_eq!(world.got(stranger), refused);
    assert_eq!(world.closed_sessions(), [stranger]);
    assert_eq!(world.got(client), "+OK\r\n");
}

/// A client that begins a handshake of TLS, be it behind a request, gets the replies in front, and
/// is closed. The log says so once.
#[test]
fn hello_of_tls_closes_the_session() {
    let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    let mut world = World::new(settings());
    let [at_once, behind, in_pieces] = [world.accept(), world.accept(), world.accept()];
    world.sends(at_once, &hello);
    world.sends(behind, &[&b"GET k\r\n"[..], &hello].concat());
    for byte in hello {
        world.sends(in_pieces, &[byte]);
    }
    let refused = "-ERR Protocol error: TLS at a listener without TLS\r\n";
    assert_eq!(world.got(at_once), refused);
    assert_eq!(world.got(in_pieces), refused);
    assert_eq!(world.got(behind), "");
    world.says(world.shared, "$1\r\nv\r\n");
    assert_eq!(world.got(behind), ["$1\r\nv\r\n", refused].concat());
    assert_eq!(world.closed_sessions().len(), 3);
    let is_about_tls = |event: &&Event| match event {
        Event::SessionClosed { reason, .. } => reason.contains("tls-listen"),
        _ => false,
    };
    assert_eq!(world.events.iter().filter(is_about_tls).count(), 3);
    assert_eq!(world.engine.counters().sessions_closed_by_us, 3);
}

/// Incomplete requests of unauthenticated sessions are dropped first, before any other session
/// loses memory.
#[test]
fn half_sent_logins_push_out_no_client() {
    let mut settings = with_user();
    settings.limits.worker_memory_bytes_max = 2 << 20;
    let mut world = World::new(settings);
    let client = world.accept();
    world.asks(client, &["AUTH secret", "GET k"]);
    world.slow.insert(client);
    let value = format!("$1500000\r\n{}\r\n", "v".repeat(1_500_000));
    world.says(world.shared, &value);
    for _ in 0..200 {
        let stranger = world.accept();
        world.sends(stranger, &half_a_login());
        assert!(world.engine.counters().memory_unauthenticated_bytes <= (2 << 20) / 16);
    }
    assert!(!world.closed_sessions().contains(&client));
    world.takes(client);
    assert!(world.got(client).ends_with(&value));
}

/// When memory is short, the session with the oldest incomplete request is closed before one that
/// is owed replies.
#[test]
fn oldest_incomplete_request_goes_before_output() {
    let mut settings = settings();
    settings.limits.worker_memory_bytes_max = 1_200_000;
    let mut world = World::new(settings);
    let [oldest, older, reader] = [(); 3].map(|()| world.accept());
    let mut half = head(200_000);
    half.resize(150_000, b'x');
    world.sends(oldest, &half);
    world.wait_ms(100);
    world.sends(older, &half);
    world.asks(reader, &["GET k"]);
    world.slow.insert(reader);
    world.wait_ms(1_100);
    let value = format!("$800000\r\n{}\r\n", "v".repeat(800_000));
    world.says(world.shared, &value);
    world.wait_ms(100);
    assert_eq!(world.closed_sessions(), [oldest]);
    world.takes(reader);
    assert!(world.got(reader) == value);
}

/// A session is charged for its buffers, unused room included.
#[test]
fn buffers_of_a_deaf_session_are_as_large_as_their_bytes() {
    let mut world = World::new(settings());
    let session = world.accept();
    world.slow.insert(session);
    for _ in 0..40 {
        world.asks(session, &["GET k"]);
        world.says(world.shared, format!("$9000\r\n{}\r\n", "v".repeat(9_000)));
    }
    world.wait_ms(100);
    let counters = world.engine.counters();
    assert!(counters.memory_output_bytes >= counters.held_bytes);
    assert!(counters.memory_output_bytes <= counters.held_bytes * 3 / 2 + 1_024);
}

/// A large request got an error because no link was free. Its rest then breaks the protocol: no
/// second error follows.
#[test]
fn swallowed_request_gets_one_error_only() {
    let mut world = World::new(settings());
    let session = world.accept();
    let len = 300_000;
    world.sends(session, &[&head(len)[..], &[b'v'; 100_000]].concat());
    let [link] = world.connecting()[..] else {
        panic!("a large request has a link of its own");
    };
    world.lose(link);
    assert!(world.got(session).starts_with("-NOTSENT "));
    world.sends(session, &[&vec![b'v'; 200_000][..], b"no end"].concat());
    assert_eq!(world.got(session), "");
    assert_eq!(world.closed_sessions(), [session]);
}

/// A worker with little memory, and a client that is not closed for that.
fn spared_in_little_memory() -> (World, SessionId) {
    let mut settings = settings();
    settings.limits.worker_memory_bytes_max = 1 << 20;
    let mut world = World::new(settings);
    let session = world.accept();
    world.asks(session, &["CLIENT NO-EVICT ON"]);
    // The server answers neither question: whether the user may send this, and which commands it
    // has.
    world.says(world.shared, "-ERR no\r\n-ERR no\r\n");
    assert_eq!(world.got(session), "+OK\r\n");
    world.sent(world.shared);
    (world, session)
}

/// A transaction that needs memory beyond the bound is refused, and its EXEC fails. The session
/// stays open.
#[test]
fn transaction_beyond_the_memory_bound_is_refused() {
    let (mut world, session) = spared_in_little_memory();
    let server = world.shared;
    world.asks(session, &["MULTI"]);
    // The server is asked for its commands, and whether the user may open a transaction.
    for _ in 0..4 {
        for words in world.asked(server) {
            world.says(
                server,
                match &words[0][..] {
                    "MULTI" => "+OK\r\n",
                    "EXEC" => "*0\r\n",
                    _ => "-ERR no\r\n",
                },
            );
        }
    }
    assert_eq!(world.got(session), "+OK\r\n");
    let value = "v".repeat(100_000);
    for _ in 0..20 {
        world.asks(session, &[&format!("SET k {value}")]);
    }
    let got = world.got(session);
    let queued = got.matches("+QUEUED\r\n").count();
    assert!(queued >= 7, "{queued}");
    let refused = "the limit worker-memory-bytes-max is reached";
    assert_eq!(got.matches(refused).count(), 1);
    assert!(world.engine.counters().memory_bytes < 1 << 18);
    world.asks(session, &["EXEC"]);
    assert!(world.got(session).starts_with("-EXECABORT"));
    assert!(world.closed_sessions().is_empty());
}

/// Channels that need memory beyond the bound are refused, and earlier ones stay.
#[test]
fn channel_beyond_the_memory_bound_is_refused() {
    let (mut world, session) = spared_in_little_memory();
    world.asks(session, &["SUBSCRIBE a"]);
    let link = world.connect();
    let confirm = |name: &str| {
        format!(
            ">3\r\n$9\r\nsubscribe\r\n${}\r\n{name}\r\n:1\r\n",
            name.len()
        )
    };
    world.says(link, confirm("a"));
    for number in 10..40 {
        let name = format!("{number}{}", "x".repeat(50_000));
        world.asks(session, &[&format!("SUBSCRIBE {name}")]);
        if world.sent(link).contains(&name) {
            world.says(link, confirm(&name));
        }
    }
    let got = world.got(session);
    let refused = "the limit worker-memory-bytes-max is reached";
    assert!(got.contains(refused));
    let bytes = world.engine.counters().memory_bytes;
    assert!(bytes <= (1 << 20) * 9 / 8, "{bytes}");
    assert!(world.closed_sessions().is_empty());
}

/// Databases that the server lacks leave few links, however fast a client selects them.
#[test]
fn refused_databases_leave_few_links() {
    let mut world = World::new(settings());
    let session = world.accept();
    world.may_ask(session, &["SELECT none"]);
    let refusal = "-ERR DB index is out of range\r\n";
    for db in 100..140 {
        world.asks(session, &[&format!("SELECT {db}")]);
        let [link] = world.connecting()[..] else {
            panic!("one link is to be connected");
        };
        world.turn(|engine| engine.handle_link_up(link));
        world.says(link, [HELLO, refusal].concat());
        assert_eq!(world.got(session), refusal);
    }
    assert!(world.engine.counters().links <= 20);
}

/// A link to a silent server holds at most a small part of the memory bound.
#[test]
fn link_holds_a_part_of_the_memory_bound() {
    let mut settings = settings();
    settings.limits.worker_memory_bytes_max = 8 << 20;
    let mut world = World::new(settings);
    let value = "v".repeat(30_000);
    for _ in 0..20 {
        let session = world.accept();
        world.asks(session, &[&format!("SET k {value}")]);
    }
    let sent = world.sent(world.shared).len();
    assert!(sent <= (128 << 10) + 31_000, "{sent}");
}
