//! Code that has not been quick yet is sent on a link apart, so that no write waits for it.

use crate::world::{World, requests, settings, sharded, without_lanes};
use respool_engine::LinkId;

const LOOPS: &str = "EVAL loops 0";

/// A world in which a session has run `LOOPS` for the first time, and the link apart.
fn ran_once() -> (World, LinkId) {
    let mut world = World::new(settings());
    let session = world.accept();
    world.asks(session, &[LOOPS]);
    let apart = world.connect();
    assert_eq!(world.sent(apart).as_bytes(), requests(&[LOOPS]));
    world.says(apart, ":1\r\n");
    assert_eq!(world.got(session), ":1\r\n");
    (world, apart)
}

/// A write of another session is not sent behind code that has not run before.
#[test]
fn write_is_not_sent_behind_new_code() {
    for settings in [settings(), sharded(2)] {
        let mut world = World::new(settings);
        let key = world.key_at(0, "k");
        let (runs, writes) = (world.accept(), world.accept());
        let (eval, set) = (format!("EVAL x 1 {key}"), format!("SET {key} v"));
        world.asks(runs, &[&eval]);
        let apart = world.connect();
        world.asks(writes, &[&set]);
        assert_eq!(world.sent(world.shared).as_bytes(), requests(&[&set]));
        assert_eq!(world.sent(apart).as_bytes(), requests(&[&eval]));
        world.says(world.shared, "-BUSY Redis is busy running a script.\r\n");
        assert_eq!(
            world.got(writes),
            "-BUSY Redis is busy running a script.\r\n"
        );
        assert_eq!(world.got(runs), "");
    }
}

/// Code that was quick once is sent on the shared link.
#[test]
fn quick_code_is_sent_on_the_shared_link() {
    let (mut world, apart) = ran_once();
    let session = world.accept();
    let all = ["SET k v", LOOPS, "SET l v"];
    world.asks(session, &all);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&all));
    assert_eq!(world.sent(apart), "");
}

/// A session's requests are executed in order, though they are on two links.
#[test]
fn requests_around_new_code_keep_their_order() {
    let mut world = World::new(settings());
    let session = world.accept();
    world.asks(session, &["SET k v", LOOPS, "SET l v"]);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["SET k v"]));
    assert!(world.connecting().is_empty());
    world.says(world.shared, "+OK\r\n");
    let apart = world.connect();
    assert_eq!(world.sent(apart).as_bytes(), requests(&[LOOPS]));
    assert_eq!(world.sent(world.shared), "");
    world.says(apart, ":1\r\n");
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["SET l v"]));
    world.says(world.shared, "+OK\r\n");
    assert_eq!(world.got(session), "+OK\r\n:1\r\n+OK\r\n");
}

/// Code that was slow once is sent on the link apart for a while.
#[test]
fn slow_code_goes_on_the_link_apart_for_a_while() {
    let (mut world, apart) = ran_once();
    let session = world.accept();
    world.asks(session, &[LOOPS]);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&[LOOPS]));
    world.wait_ms(100);
    let other = world.accept();
    world.asks(other, &["GET k"]);
    let old = world.shared;
    world.connect();
    world.says(old, ":1\r\n");
    for _ in 0..2 {
        world.asks(session, &[LOOPS]);
        assert_eq!(world.sent(apart).as_bytes(), requests(&[LOOPS]));
        world.says(apart, ":1\r\n");
    }
    assert_eq!(world.got(session), ":1\r\n:1\r\n:1\r\n");
}

/// A refused script is not learned as quick.
#[test]
fn refused_code_is_not_quick() {
    let mut world = World::new(settings());
    let session = world.accept();
    let evalsha = "EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0";
    world.asks(session, &[evalsha]);
    let apart = world.connect();
    for reply in ["-NOSCRIPT No matching script.\r\n", ":1\r\n"] {
        assert_eq!(world.sent(apart).as_bytes(), requests(&[evalsha]));
        world.says(apart, reply);
        assert_eq!(world.got(session), reply);
        world.asks(session, &[evalsha]);
    }
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&[evalsha]));
}

/// A transaction with code that has not run before is sent on the link apart.
#[test]
fn transaction_with_new_code_goes_on_the_link_apart() {
    let mut world = World::new(settings());
    let session = world.accept();
    world.opens_transactions(session);
    let block = ["MULTI", LOOPS, "EXEC"];
    world.asks(session, &block);
    let apart = world.connect();
    assert_eq!(world.sent(apart).as_bytes(), requests(&block));
    world.says(apart, "+OK\r\n+QUEUED\r\n*1\r\n:1\r\n");
    assert!(world.got(session).ends_with("*1\r\n:1\r\n"));
    world.asks(session, &block);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&block));
}

/// A server may free memory in the background while the client waits, each time.
#[test]
fn flush_always_goes_on_the_link_apart() {
    let mut world = World::new(settings());
    let session = world.accept();
    let mut apart = None;
    for flush in ["FLUSHALL", "FLUSHDB SYNC"] {
        world.asks(session, &["SET k v", flush, "SET k v"]);
        assert_eq!(world.sent(world.shared).as_bytes(), requests(&["SET k v"]));
        world.says(world.shared, "+OK\r\n");
        let link = *apart.get_or_insert_with(|| world.connect());
        assert_eq!(world.sent(link).as_bytes(), requests(&[flush]));
        assert_eq!(world.sent(world.shared), "");
        world.says(link, "+OK\r\n");
        assert_eq!(world.sent(world.shared).as_bytes(), requests(&["SET k v"]));
        world.says(world.shared, "+OK\r\n");
        assert_eq!(world.got(session), "+OK\r\n+OK\r\n+OK\r\n");
    }
}

/// In a pool of several servers each of them gets the request on a link apart.
#[test]
fn flush_of_several_servers_keeps_its_place() {
    let mut world = World::new(sharded(2));
    let session = world.accept();
    let key = world.key_at(0, "k");
    let set = format!("SET {key} v");
    world.asks(session, &[&set, "FLUSHALL", &set]);
    let shared = world.shared;
    assert_eq!(world.sent(shared).as_bytes(), requests(&[&set]));
    assert!(world.connecting().is_empty());
    world.says(shared, "+OK\r\n");
    let links = world.connecting();
    assert_eq!(links.len(), 2);
    for link in links {
        world.up(link);
        assert_eq!(world.sent(link).as_bytes(), requests(&["FLUSHALL"]));
        assert_eq!(world.sent(shared), "");
        world.says(link, "+OK\r\n");
    }
    assert_eq!(world.sent(shared).as_bytes(), requests(&[&set]));
}

/// Without room for a link apart, code is sent on the shared link.
#[test]
fn code_without_room_for_a_link_apart_is_shared() {
    let mut world = World::new(without_lanes(settings()));
    let session = world.accept();
    let all = ["SET k v", LOOPS, "FLUSHALL", "SET l v"];
    world.asks(session, &all);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&all));
}

/// Other sessions' requests in flight, and respool's own, keep no code on the shared link.
#[test]
fn new_code_leaves_a_shared_link_with_replies_in_flight() {
    let mut world = World::new(settings());
    let (other, runs) = (world.accept(), world.accept());
    // respool asks the server about the command first.
    world.asks(other, &["tool.add k x"]);
    assert!(world.sent(world.shared).contains("COMMAND"));
    world.asks(runs, &[LOOPS]);
    let apart = world.connect();
    assert_eq!(world.sent(apart).as_bytes(), requests(&[LOOPS]));
    world.says(apart, ":1\r\n");
    world.asks(runs, &["SET d 1"]);
    world.wait_ms(1);
    assert_eq!(world.sent(apart), "");
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["SET d 1"]));
}

/// A server that refuses one more connection gets code on its present link.
#[test]
fn code_travels_with_all_requests_if_the_link_apart_is_refused() {
    let mut world = World::new(settings());
    let session = world.accept();
    world.asks(session, &[LOOPS]);
    let [apart] = world.connecting()[..] else {
        panic!("the link apart is to be connected");
    };
    world.turn(|engine| engine.handle_link_up(apart));
    world.says(apart, "-ERR max number of clients reached\r\n");
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&[LOOPS]));
    world.says(world.shared, ":1\r\n");
    assert_eq!(world.got(session), ":1\r\n");
    let other = "EVAL other 0";
    world.asks(session, &[other]);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&[other]));
}

/// A session whose code was given up sends nothing on another link before the server has executed
/// the code.
#[test]
fn session_does_not_overtake_its_code_that_was_given_up() {
    let mut settings = settings();
    settings.timeouts.request_ms = 1_000;
    settings.timeouts.link_stall_ms = 30_000;
    let mut world = World::new(settings);
    let (runs, other) = (world.accept(), world.accept());
    world.asks(runs, &[LOOPS]);
    let apart = world.connect();
    world.wait_ms(1_100);
    assert!(world.got(runs).starts_with("-UNKNOWN "));
    world.sent(apart);
    world.asks(runs, &["SET k v"]);
    assert_eq!(world.sent(world.shared), "");
    // Other sessions go on, with new code, too.
    world.asks(other, &["SET l v"]);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["SET l v"]));
    world.says(apart, ":1\r\n");
    assert_eq!(world.sent(apart).as_bytes(), requests(&["SET k v"]));
    world.says(apart, "+OK\r\n");
    assert_eq!(world.got(runs), "+OK\r\n");
    world.wait_ms(100);
    world.says(world.shared, "+OK\r\n");
    world.asks(runs, &["SET m v"]);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["SET m v"]));
}

/// A link apart that is lost with code, or with a later request, gives all its sessions back.
#[test]
fn lost_link_apart_returns_its_sessions_to_the_shared() {
    let (mut world, apart) = ran_once();
    let (session, other) = (world.accept(), "EVAL other 0");
    world.asks(session, &[other, "SET k v"]);
    assert_eq!(world.sent(apart).as_bytes(), requests(&[other]));
    world.lose(apart);
    assert!(world.got(session).starts_with("-UNKNOWN "));
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["SET k v"]));
}

/// FCALL and commands that the table lacks are code, too.
#[test]
fn functions_and_unknown_commands_are_code() {
    let mut world = World::new(settings());
    let session = world.accept();
    world.asks(session, &["FCALL f 0"]);
    let apart = world.connect();
    assert_eq!(world.sent(apart).as_bytes(), requests(&["FCALL f 0"]));
    world.says(apart, ":1\r\n");
    world.asks(session, &["FCALL f 0"]);
    assert_eq!(
        world.sent(world.shared).as_bytes(),
        requests(&["FCALL f 0"])
    );
    world.says(world.shared, ":1\r\n");
    world.asks(session, &["tool.add k x"]);
    assert!(world.sent(world.shared).contains("COMMAND"));
    let facts = "*1\r\n*6\r\n$8\r\ntool.add\r\n:3\r\n*1\r\n+write\r\n:1\r\n:1\r\n:1\r\n";
    world.says(world.shared, facts);
    assert_eq!(world.sent(apart).as_bytes(), requests(&["tool.add k x"]));
}

/// Another connection takes over from a link apart as from any other.
#[test]
fn new_code_of_others_is_answered_while_code_loops() {
    let (mut world, apart) = ran_once();
    let (runs, other) = (world.accept(), world.accept());
    let (loops, new) = ("EVAL endless 0", "EVAL new 0");
    world.asks(runs, &[loops]);
    world.sent(apart);
    world.wait_ms(100);
    world.asks(other, &[new]);
    let successor = world.connect();
    assert_eq!(world.sent(successor).as_bytes(), requests(&[new]));
    world.says(successor, "-BUSY Redis is busy running a script.\r\n");
    assert!(world.got(other).starts_with("-BUSY "));
    world.says(apart, "-ERR killed\r\n");
    assert_eq!(world.got(runs), "-ERR killed\r\n");
}
