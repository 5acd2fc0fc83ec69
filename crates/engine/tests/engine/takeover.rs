//! A silent link gets a successor if the server answers on another connection. The old link keeps
//! its unanswered requests.

use crate::world::{World, requests, settings, sharded, without_lanes};
use respool_engine::{LinkId, SessionId};

const BUSY: &str = "-BUSY Redis is busy running a script.\r\n";

/// A session without requests on the stuck link is answered on another one. The session that waits
/// there gets its reply, and its later requests follow on that link.
#[test]
fn busy_server_answers_others_on_a_link_of_their_own() {
    for settings in [settings(), sharded(2)] {
        let mut world = World::new(without_lanes(settings));
        let key = world.key_at(0, "k");
        let (runs, other) = (world.accept(), world.accept());
        let script = format!("EVAL x 1 {key}");
        let get = format!("GET {key}");
        world.asks(runs, &[&script]);
        world.wait_ms(100);
        world.asks(runs, &[&get]);
        world.asks(other, &[&get]);
        let old = world.shared;
        assert_eq!(world.sent(old).as_bytes(), requests(&[&script, &get]));
        let successor = world.connect();
        assert_eq!(world.sent(successor).as_bytes(), requests(&[&get]));
        world.says(successor, BUSY);
        assert_eq!(world.got(other), BUSY);
        let third = world.accept();
        world.asks(third, &[&get]);
        assert_eq!(world.sent(successor).as_bytes(), requests(&[&get]));
        world.says(successor, BUSY);
        assert_eq!(world.got(third), BUSY);
        assert!(world.connecting().is_empty());
        // The server answers on other links, so the link is not given up.
        world.asks(runs, &[&get]);
        assert_eq!(world.sent(successor), "");
        world.says(old, "-ERR killed\r\n$1\r\nv\r\n");
        assert_eq!(world.got(runs), "-ERR killed\r\n$1\r\nv\r\n");
        assert_eq!(world.closed_links(), [old]);
        assert_eq!(world.sent(successor).as_bytes(), requests(&[&get]));
        world.says(successor, "$1\r\nv\r\n");
        assert_eq!(world.got(runs), "$1\r\nv\r\n");
        assert_eq!(world.engine.counters().silent_links_replaced, 1);
    }
}

/// At `links_max` other sessions still get the server's BUSY.
#[test]
fn stuck_link_has_a_successor_though_links_are_at_their_bound() {
    let mut settings = settings();
    settings.limits.links_max = 1;
    let mut world = World::new(without_lanes(settings));
    let (runs, other) = (world.accept(), world.accept());
    world.asks(runs, &["EVAL x 0"]);
    world.wait_ms(100);
    world.asks(other, &["GET k"]);
    let successor = world.connect();
    world.says(successor, BUSY);
    assert_eq!(world.got(other), BUSY);
    world.says(world.shared, "-ERR killed\r\n");
    assert_eq!(world.got(runs), "-ERR killed\r\n");
    assert_eq!(world.engine.counters().links, 1);
}

/// Reads behind the script are sent again on the successor. A write there waits for the script.
#[test]
fn reads_behind_a_script_are_asked_again_on_the_successor() {
    let mut world = World::new(without_lanes(settings()));
    let [runs, reads, writes] = [0; 3].map(|_| world.accept());
    world.asks(runs, &["EVAL x 0"]);
    world.asks(reads, &["TTL k", "TTL l"]);
    world.asks(writes, &["TTL m", "SET w 1"]);
    for _ in 0..3 {
        world.wait_ms(50);
    }
    // No session has sent a request since.
    let successor = world.connect();
    assert_eq!(
        world.sent(successor).as_bytes(),
        requests(&["TTL k", "TTL l"])
    );
    world.says(successor, [BUSY, BUSY].concat());
    assert_eq!(world.got(reads), [BUSY, BUSY].concat());
    assert_eq!(world.got(writes), "");
    world.says(world.shared, "-ERR killed\r\n:1\r\n:2\r\n:1\r\n+OK\r\n");
    assert_eq!(world.got(runs), "-ERR killed\r\n");
    assert_eq!(world.got(reads), "");
    assert_eq!(world.got(writes), ":1\r\n+OK\r\n");
    world.asks(reads, &["TTL k"]);
    world.says(successor, ":1\r\n");
    assert_eq!(world.got(reads), ":1\r\n");
}

/// A script that loops in a transaction stops its link as any script does.
#[test]
fn script_in_a_transaction_stops_no_other_session() {
    let mut world = World::new(without_lanes(settings()));
    let (runs, other) = (world.accept(), world.accept());
    world.opens_transactions(runs);
    world.asks(runs, &["MULTI", "EVAL x 0", "EXEC"]);
    assert!(world.sent(world.shared).contains("EVAL"));
    world.wait_ms(100);
    world.asks(other, &["GET k"]);
    let successor = world.connect();
    assert_eq!(world.sent(successor).as_bytes(), requests(&["GET k"]));
    world.says(successor, BUSY);
    assert_eq!(world.got(other), BUSY);
}

/// A slow script that ends before the successor is up costs one connection. The next one costs none
/// for a second.
#[test]
fn slow_script_that_ends_leaves_its_link_as_it_was() {
    let mut world = World::new(without_lanes(settings()));
    let (slow, other) = (world.accept(), world.accept());
    for round in 0..2 {
        world.asks(slow, &["EVAL x 0"]);
        world.wait_ms(100);
        world.asks(other, &["SET k v"]);
        world.turn(|_| {});
        let successors = world.connecting();
        assert_eq!(successors.len(), 1 - round, "round {round}");
        assert_eq!(world.sent(world.shared).contains("SET"), round == 1);
        world.says(world.shared, "*0\r\n");
        assert_eq!(world.got(slow), "*0\r\n");
        if round == 0 {
            assert_eq!(world.closed_links(), successors);
            assert_eq!(world.sent(world.shared).as_bytes(), requests(&["SET k v"]));
        }
        world.says(world.shared, "+OK\r\n");
        assert_eq!(world.got(other), "+OK\r\n");
    }
    assert_eq!(world.engine.counters().silent_links_replaced, 0);
}

/// A frozen server finishes no handshake of a successor. A request that waits for one was not sent,
/// and its client gets that error.
#[test]
fn frozen_server_gets_one_more_connection_and_no_request_twice() {
    let mut settings = settings();
    settings.timeouts.request_ms = 1_000;
    let mut world = World::new(without_lanes(settings));
    let first = world.accept();
    world.asks(first, &["EVAL x 0"]);
    world.wait_ms(100);
    let others: Vec<_> = (0..3).map(|_| world.accept()).collect();
    for other in &others {
        world.asks(*other, &["SET b 1"]);
    }
    let [successor] = world.connecting()[..] else {
        panic!("one successor is connected");
    };
    world.turn(|engine| engine.handle_link_up(successor));
    world.wait_ms(1_100);
    assert!(world.got(first).starts_with("-UNKNOWN"));
    for other in &others {
        assert!(world.got(*other).starts_with("-NOTSENT"));
    }
    assert!(world.connecting().is_empty() && world.closed_links().is_empty());
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["EVAL x 0"]));
    world.says(world.shared, "+OK\r\n");
    assert_eq!(world.closed_links(), [successor]);
    world.asks(others[0], &["GET a"]);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["GET a"]));
}

/// A busy server refuses SELECT in a handshake. The waiting clients get its error.
#[test]
fn busy_words_of_a_handshake_go_to_the_clients_that_wait() {
    let mut world = World::new(without_lanes(settings()));
    let (runs, other) = (world.accept(), world.accept());
    world.asks(runs, &["EVAL x 0"]);
    world.wait_ms(100);
    world.asks(other, &["GET k"]);
    let [successor] = world.connecting()[..] else {
        panic!("one successor is connected");
    };
    world.turn(|engine| engine.handle_link_up(successor));
    world.says(successor, BUSY);
    assert_eq!(world.got(other), BUSY);
    world.asks(other, &["GET k"]);
    assert_eq!(world.got(other), BUSY);
}

/// An old link lasts as long as its server answers on another one.
#[test]
fn left_link_outlasts_the_stall_of_its_reply() {
    let mut settings = settings();
    settings.timeouts.request_ms = 0;
    settings.timeouts.link_stall_ms = 1_000;
    let mut world = World::new(without_lanes(settings));
    let (runs, other) = (world.accept(), world.accept());
    world.asks(runs, &["EVAL x 0"]);
    world.wait_ms(100);
    world.asks(other, &["GET k"]);
    let successor = world.connect();
    world.says(successor, BUSY);
    for _ in 0..4 {
        world.wait_ms(1_000);
        world.asks(other, &["GET k"]);
        world.says(successor, BUSY);
    }
    assert!(world.closed_links().is_empty());
    world.says(world.shared, "+done\r\n");
    assert_eq!(world.got(runs), "+done\r\n");
}

/// A slow command that runs no code ends by itself, so no connection is opened for it.
#[test]
fn slow_command_without_code_keeps_its_link() {
    let mut world = World::new(without_lanes(settings()));
    let (slow, other) = (world.accept(), world.accept());
    world.asks(slow, &["KEYS *"]);
    world.wait_ms(300);
    world.asks(other, &["SET k v"]);
    world.turn(|_| {});
    assert!(world.connecting().is_empty());
    assert!(world.sent(world.shared).contains("SET"));
}

/// A write that was given up on an old link may still be executed there. Its session is closed, so
/// that no later request overtakes the write.
#[test]
fn session_given_up_on_a_left_link_asks_nothing_more() {
    let mut settings = settings();
    settings.timeouts.request_ms = 1_000;
    let mut world = World::new(without_lanes(settings));
    let (runs, other) = (world.accept(), world.accept());
    world.asks(runs, &["EVAL x 0", "SET k 1"]);
    world.wait_ms(100);
    world.asks(other, &["GET k"]);
    let successor = world.connect();
    world.says(successor, BUSY);
    world.wait_ms(1_000);
    assert_eq!(world.got(runs).matches("-UNKNOWN").count(), 2);
    assert_eq!(world.closed_sessions(), [runs]);
}

/// A server that pauses writes holds the connection of each write, and answers reads on all others.
#[test]
fn reads_go_on_while_the_server_holds_a_write() {
    for settings in [settings(), sharded(2)] {
        let mut world = World::new(without_lanes(settings));
        let key = world.key_at(0, "k");
        let [writes, reads, later] = [0; 3].map(|_| world.accept());
        let (set, get) = (format!("SET {key} v"), format!("GET {key}"));
        world.asks(writes, &[&set]);
        world.asks(reads, &[&get]);
        let old = world.shared;
        world.wait_ms(100);
        let successor = world.connect();
        assert_eq!(world.sent(successor).as_bytes(), requests(&[&get]));
        world.says(successor, "$1\r\no\r\n");
        assert_eq!(world.got(reads), "$1\r\no\r\n");
        world.asks(later, &[&get]);
        assert_eq!(world.sent(successor).as_bytes(), requests(&[&get]));
        world.says(successor, "$1\r\no\r\n");
        assert_eq!(world.got(later), "$1\r\no\r\n");
        // Further writes would stop the successor.
        for session in [later, reads] {
            world.asks(session, &[&set, &get]);
        }
        assert_eq!(world.sent(successor), "");
        world.says(old, "+OK\r\n$1\r\nv\r\n");
        assert_eq!(world.got(writes), "+OK\r\n");
        assert_eq!(world.got(reads), "", "the first read was answered before");
        world.turn(|_| {});
        let sent = world.sent(successor);
        let each = String::from_utf8(requests(&[&set, &get])).unwrap();
        assert_eq!(sent.matches(&each).count(), 2, "{sent}");
    }
}

/// A write waits for the end of a long pause until its deadline, and no write is sent after that.
#[test]
fn write_that_waits_for_the_end_of_a_pause_keeps_its_deadline() {
    let mut settings = settings();
    settings.timeouts.request_ms = 1_000;
    let mut world = World::new(without_lanes(settings));
    let [writes, reads, later] = [0; 3].map(|_| world.accept());
    world.asks(writes, &["SET k v"]);
    world.asks(reads, &["GET k"]);
    world.wait_ms(100);
    let successor = world.connect();
    world.says(successor, "$-1\r\n");
    world.asks(later, &["INCR n"]);
    world.wait_ms(1_100);
    assert!(world.got(writes).starts_with("-UNKNOWN"));
    assert!(world.got(later).starts_with("-NOTSENT"));
    world.asks(reads, &["GET k"]);
    world.says(successor, "$-1\r\n");
    assert_eq!(world.got(reads), "$-1\r\n$-1\r\n");
    world.sent(successor);
    world.says(world.shared, "+OK\r\n$-1\r\n");
    world.asks(later, &["INCR n"]);
    assert_eq!(world.sent(successor).as_bytes(), requests(&["INCR n"]));
}

/// FLUSHALL may hold its own connection alone: other sessions' writes are executed meanwhile.
#[test]
fn flush_of_the_server_holds_no_write_of_others() {
    let mut world = World::new(without_lanes(settings()));
    let [flushes, other] = [0; 2].map(|_| world.accept());
    world.asks(flushes, &["FLUSHALL"]);
    world.wait_ms(100);
    world.asks(other, &["SET k v"]);
    let successor = world.connect();
    assert_eq!(world.sent(successor).as_bytes(), requests(&["SET k v"]));
}

/// PFCOUNT may write a cached number. A server that pauses writes holds it, though it is a read.
#[test]
fn pfcount_is_held_while_the_server_pauses_writes() {
    for first in ["PFCOUNT h", "PUBLISH c m"] {
        let mut world = World::new(without_lanes(settings()));
        let [counts, reads] = [0; 2].map(|_| world.accept());
        world.asks(counts, &[first]);
        world.wait_ms(100);
        world.asks(reads, &["GET k"]);
        let successor = world.connect();
        assert_eq!(world.sent(successor).as_bytes(), requests(&["GET k"]));
        world.says(successor, "$-1\r\n");
        assert_eq!(world.got(reads), "$-1\r\n");
        for held in ["PFCOUNT i", "SET k v", "PUBLISH c m", "EVAL x 0"] {
            let session = world.accept();
            world.asks(session, &[held]);
            assert_eq!(world.sent(successor), "", "{held} would be held");
        }
    }
}

/// A pipeline of reads moves whole, however long it is, as does a transaction of reads. A session
/// that also writes waits.
#[test]
fn whole_sessions_of_reads_move_to_the_successor() {
    for front in ["SET w 1", "EVAL x 0"] {
        let mut world = World::new(without_lanes(settings()));
        let [stops, many, block, script, writes] = [0; 5].map(|_| world.accept());
        world.asks(block, &["MULTI"]);
        world.allows_transactions(world.shared);
        world.asks(block, &["GET a", "TTL a"]);
        world.got(block);
        world.sent(world.shared);
        world.asks(stops, &[front]);
        let gets: Vec<String> = (0..50).map(|number| format!("TTL k{number}")).collect();
        let gets: Vec<&str> = gets.iter().map(String::as_str).collect();
        world.asks(many, &gets);
        world.asks(block, &["EXEC"]);
        world.asks(script, &["EVAL_RO x 0", "SCRIPT LOAD x"]);
        world.asks(writes, &["TTL m", "PFCOUNT h"]);
        for _ in 0..3 {
            world.wait_ms(50);
        }
        let successor = world.connect();
        let moved = [
            requests(&gets),
            requests(&["MULTI", "GET a", "TTL a", "EXEC"]),
            requests(&["EVAL_RO x 0", "SCRIPT LOAD x"]),
        ];
        assert_eq!(world.sent(successor).as_bytes(), moved.concat(), "{front}");
        world.says(successor, ":1\r\n".repeat(50));
        assert_eq!(world.got(many), ":1\r\n".repeat(50));
        world.says(
            successor,
            "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$-1\r\n:1\r\n",
        );
        assert_eq!(world.got(block), "*2\r\n$-1\r\n:1\r\n");
        world.says(successor, "$-1\r\n$1\r\nx\r\n");
        assert_eq!(world.got(script), "$-1\r\n$1\r\nx\r\n");
        assert_eq!(world.got(writes), "");
        // The same replies on the old link are dropped.
        world.says(world.shared, "+OK\r\n");
        world.says(world.shared, ":2\r\n".repeat(50));
        world.says(
            world.shared,
            "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$-1\r\n:2\r\n",
        );
        world.says(world.shared, "$-1\r\n$1\r\nx\r\n:1\r\n:3\r\n");
        assert_eq!(world.got(stops), "+OK\r\n");
        assert_eq!(
            [many, block, script].map(|key| world.got(key)),
            ["", "", ""]
        );
        assert_eq!(world.got(writes), ":1\r\n:3\r\n");
    }
}

/// The bytes of moved requests are bounded. A session without room waits for the old link.
#[test]
fn bytes_that_move_to_the_successor_are_bounded() {
    let mut world = World::new(without_lanes(settings()));
    let [stops, small, large] = [0; 3].map(|_| world.accept());
    world.asks(stops, &["EVAL x 0"]);
    world.asks(small, &["TTL k"]);
    let key = "k".repeat(60_000);
    for _ in 0..18 {
        world.asks(large, &[&format!("TTL {key}")]);
    }
    for _ in 0..3 {
        world.wait_ms(50);
    }
    let successor = world.connect();
    assert_eq!(world.sent(successor).as_bytes(), requests(&["TTL k"]));
}

/// While the server pauses writes, requests that it does not hold take the successor.
#[test]
fn requests_that_a_pause_does_not_hold_take_the_successor() {
    let mut world = World::new(without_lanes(settings()));
    let [writes, reads, block] = [0; 3].map(|_| world.accept());
    world.asks(block, &["MULTI"]);
    world.allows_transactions(world.shared);
    world.asks(block, &["GET a"]);
    world.got(block);
    world.sent(world.shared);
    world.asks(writes, &["SET k v"]);
    world.wait_ms(100);
    world.asks(reads, &["GET k"]);
    let successor = world.connect();
    world.says(successor, "$-1\r\n");
    world.sent(successor);
    world.asks(block, &["EXEC"]);
    let exec = requests(&["MULTI", "GET a", "EXEC"]);
    assert_eq!(world.sent(successor).as_bytes(), exec);
    world.says(successor, "+OK\r\n+QUEUED\r\n*1\r\n$-1\r\n");
    for passes in ["CONFIG SET maxmemory 0", "SCRIPT LOAD x", "FCALL_RO f 0"] {
        world.asks(reads, &[passes]);
        assert_eq!(world.sent(successor).as_bytes(), requests(&[passes]));
        world.says(successor, "+OK\r\n");
    }
}

/// A session runs a script on a pinned link. A link may be silent for a second.
fn script_behind_watch(request_ms: u32) -> (World, SessionId, LinkId) {
    let mut settings = settings();
    settings.timeouts.request_ms = request_ms;
    settings.timeouts.link_stall_ms = 1_000;
    let mut world = World::new(without_lanes(settings));
    let session = world.accept();
    world.asks(session, &["WATCH k"]);
    let own = world.connect();
    world.says(own, "+OK\r\n");
    world.asks(session, &["EVAL x 0"]);
    (world, session, own)
}

/// A script or a pause of the server holds a pinned link, too. That link is given up if the server
/// answers no PING on a shared link, and not before.
#[test]
fn pinned_link_outlasts_the_stall_of_a_live_server() {
    let (mut world, session, own) = script_behind_watch(0);
    let mut pings = 0;
    for _ in 0..60 {
        world.wait_ms(50);
        let asked = world.asked(world.shared);
        for args in asked {
            assert_eq!(args, ["PING"]);
            world.says(world.shared, BUSY);
            pings += 1;
        }
    }
    assert!((8..=14).contains(&pings), "{pings}");
    assert_eq!(world.closed_links(), []);
    world.says(own, "$4\r\ndone\r\n");
    assert_eq!(world.got(session), "+OK\r\n$4\r\ndone\r\n");
    // Now the server is frozen.
    world.asks(session, &["EVAL x 0"]);
    world.wait_ms(950);
    assert_eq!(world.closed_links(), []);
    world.wait_ms(150);
    assert_eq!(world.closed_links(), [own]);
}

/// A request that is given up at its deadline does not keep a link beyond its stall: the connection
/// itself may be broken.
#[test]
fn link_without_a_waiting_session_is_given_up_at_its_stall() {
    let (mut world, session, own) = script_behind_watch(500);
    for _ in 0..22 {
        world.wait_ms(50);
        if !world.sent(world.shared).is_empty() {
            world.says(world.shared, "+PONG\r\n");
        }
    }
    assert!(world.got(session).contains("-UNKNOWN"));
    assert_eq!(world.closed_links(), [own]);
}

/// A session whose question to the server stands behind a held write does not wait for that write:
/// the question is asked again on a successor.
#[test]
fn question_behind_a_held_write_is_asked_on_the_successor() {
    let mut world = World::new(without_lanes(settings()));
    let [writes, queues] = [0; 2].map(|_| world.accept());
    world.asks(writes, &["SET k v"]);
    world.asks(queues, &["MULTI"]);
    for _ in 0..3 {
        world.wait_ms(50);
    }
    assert!(world.sent(world.shared).contains("COMMAND"));
    let successor = world.connect();
    world.allows_transactions(successor);
    assert_eq!(world.got(queues), "+OK\r\n");
}
