//! Coalescing: each law in a history of its own.

use std::collections::BTreeSet;

use crate::world::{World, request, requests, take_requests};
use respool_engine::limits::FUSED_BYTES_MAX;
use respool_engine::settings::Settings;
use respool_engine::{LinkId, Origin, SessionId};
use respool_protocol::commands::{self, Coalesce, Command};

/// A world in which no server has shown that sessions may GET and SET.
fn removed_prefix() -> World {
    let mut settings = crate::world::settings();
    settings.flush.fuse = true;
    World::new(settings)
}

fn fusing() -> World {
    let mut world = removed_prefix();
    world.see_rights();
    world
}

fn collapsing() -> World {
    let mut settings = crate::world::settings();
    settings.flush.collapse = true;
    World::new(settings)
}

pub(crate) fn all_levels() -> World {
    let mut settings = crate::world::settings();
    settings.flush.fuse = true;
    settings.flush.collapse = true;
    let mut world = World::new(settings);
    world.see_rights();
    world
}

/// Two servers whose batches wait for replies in flight, for ten turns at most.
fn all_levels_of_two() -> World {
    let mut settings = crate::world::sharded(2);
    settings.flush.fuse = true;
    settings.flush.collapse = true;
    settings.flush.max_delay_us = 10_000;
    let mut world = World::new(settings);
    world.see_rights();
    world
}

/// Several sessions send requests in one turn.
pub(crate) fn ask_at_once(world: &mut World, all: &[(SessionId, &[&str])]) {
    world.turn(|engine| {
        for (session, asked) in all {
            engine.handle_session_bytes(*session, &requests(asked));
        }
    });
}

/// GETs of a batch leave as one MGET, and each session gets its own values.
#[test]
fn gets_of_a_batch_leave_as_one_mget() {
    let mut world = fusing();
    let [a, b, c] = [world.accept(), world.accept(), world.accept()];
    ask_at_once(
        &mut world,
        &[(a, &["GET a"]), (b, &["INCR n", "GET b"]), (c, &["GET c"])],
    );
    let fused = requests(&["INCR n", "MGET a b c"]);
    assert_eq!(world.sent(world.shared).as_bytes(), fused);
    world.says(
        world.shared,
        ":1\r\n*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n",
    );
    assert_eq!(world.got(a), "$1\r\n1\r\n");
    assert_eq!(world.got(b), ":1\r\n$1\r\n2\r\n");
    assert_eq!(world.got(c), "$1\r\n3\r\n");
}

/// SETs without options leave as one MSET, and each session gets its own OK.
#[test]
fn sets_without_options_leave_as_one_mset() {
    let mut world = fusing();
    let [a, b, c] = [world.accept(), world.accept(), world.accept()];
    ask_at_once(
        &mut world,
        &[
            (a, &["SET a 1", "GET a"]),
            (b, &["SET b 2 EX 5"]),
            (c, &["SET c 3", "GET d"]),
        ],
    );
    let fused = requests(&["SET b 2 EX 5", "MSET a 1 c 3", "MGET a d"]);
    assert_eq!(world.sent(world.shared).as_bytes(), fused);
    world.says(world.shared, "+OK\r\n+OK\r\n*2\r\n$1\r\n1\r\n$1\r\n4\r\n");
    assert_eq!(world.got(a), "+OK\r\n$1\r\n1\r\n");
    assert_eq!(world.got(b), "+OK\r\n");
    assert_eq!(world.got(c), "+OK\r\n$1\r\n4\r\n");
}

/// Requests of a session are executed in the order asked: fusion moves none before an earlier one.
#[test]
fn fusion_keeps_the_order_of_a_session() {
    let mut world = fusing();
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(
        &mut world,
        &[
            (a, &["GET k", "DEL k", "GET k"]),
            (b, &["GET x", "SET x 1", "GET x"]),
        ],
    );
    let fused = requests(&["GET k", "DEL k", "GET x", "SET x 1", "MGET k x"]);
    assert_eq!(world.sent(world.shared).as_bytes(), fused);
}

/// If a SET moves into an MSET, a later GET of its session moves after it.
#[test]
fn get_after_a_fused_set_stays_after_it() {
    let mut world = fusing();
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(&mut world, &[(a, &["SET k 1", "GET k"]), (b, &["SET x 1"])]);
    let fused = requests(&["MSET k 1 x 1", "GET k"]);
    assert_eq!(world.sent(world.shared).as_bytes(), fused);
}

/// A nil of an MGET may hide a WRONGTYPE. The GET and later GETs of its session are sent again.
/// GETs of other sessions are not.
#[test]
fn nil_is_asked_again_with_later_gets_of_its_session() {
    let mut world = fusing();
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(
        &mut world,
        &[(a, &["GET list", "GET x"]), (b, &["GET y", "GET z"])],
    );
    world.sent(world.shared);
    world.says(
        world.shared,
        "*4\r\n$-1\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n",
    );
    assert_eq!(world.got(b), "$1\r\n2\r\n$1\r\n3\r\n");
    assert_eq!(world.got(a), "");
    let again = requests(&["GET list", "GET x"]);
    assert_eq!(world.sent(world.shared).as_bytes(), again);
    world.says(world.shared, "-WRONGTYPE no\r\n$1\r\n7\r\n");
    assert_eq!(world.got(a), "-WRONGTYPE no\r\n$1\r\n7\r\n");
}

/// A session with a GET in an MGET is not read until the reply. Otherwise a later write would run
/// before a GET that is asked again.
#[test]
fn session_with_a_fused_get_is_not_read() {
    let mut world = fusing();
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(&mut world, &[(a, &["GET k"]), (b, &["GET y"])]);
    world.sent(world.shared);
    world.asks(a, &["SET k 1"]);
    world.asks(b, &["SET y 1"]);
    assert_eq!(world.sent(world.shared), "");
    world.says(world.shared, "*2\r\n$-1\r\n$1\r\n2\r\n");
    let sent = world.sent(world.shared);
    assert_eq!(sent.as_bytes(), requests(&["GET k", "SET y 1"]));
    world.says(world.shared, "$-1\r\n+OK\r\n");
    assert_eq!(world.got(a), "$-1\r\n");
    world.wait_ms(1);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["SET k 1"]));
    assert_eq!(world.got(b), "$1\r\n2\r\n+OK\r\n");
}

/// An error to an MGET or MSET reaches no client: each request is sent again by itself.
#[test]
fn error_to_a_fused_request_reaches_no_client() {
    let mut world = fusing();
    let [a, b] = [world.accept(), world.accept()];
    let asked: [&[&str]; 2] = [&["SET a 1", "GET a"], &["SET b 2", "GET b"]];
    ask_at_once(&mut world, &[(a, asked[0]), (b, asked[1])]);
    world.sent(world.shared);
    world.says(world.shared, "-NOPERM mset\r\n*2\r\n$1\r\n0\r\n$1\r\n0\r\n");
    let again = requests(&["SET a 1", "SET b 2", "GET a", "GET b"]);
    assert_eq!(world.sent(world.shared).as_bytes(), again);
    world.says(
        world.shared,
        "+OK\r\n-NOPERM set\r\n$1\r\n1\r\n-NOPERM get\r\n",
    );
    assert_eq!(world.got(a), "+OK\r\n$1\r\n1\r\n");
    assert_eq!(world.got(b), "-NOPERM set\r\n-NOPERM get\r\n");
}

/// A user without the right to MGET or MSET is tried with each once. Otherwise its ACL LOG would
/// fill with commands that no client has sent.
#[test]
fn fusion_stops_for_a_user_without_the_right() {
    let mut world = fusing();
    let [a, b] = [world.accept(), world.accept()];
    for round in 0..1_000 {
        ask_at_once(&mut world, &[(a, &["GET a"]), (b, &["GET b"])]);
        let fused = world.sent(world.shared).contains("MGET");
        assert_eq!(fused, round == 0);
        if fused {
            world.says(world.shared, "-NOPERM mget\r\n");
            world.sent(world.shared);
        }
        world.says(world.shared, "$1\r\n1\r\n$1\r\n2\r\n");
        assert_eq!(world.got(a), "$1\r\n1\r\n");
    }
}

/// Fusion is tried again on the next connection: the server or the rights may be others.
#[test]
fn next_connection_tries_fusion_again() {
    let mut world = fusing();
    let [a, b] = [world.accept(), world.accept()];
    let refused = "-NOPERM no\r\n";
    for asked in [["GET a", "GET b"], ["SET a 1", "SET b 1"]] {
        ask_at_once(&mut world, &[(a, &asked[..1]), (b, &asked[1..])]);
        world.says(world.shared, refused);
        world.says(world.shared, refused.repeat(2));
    }
    world.wait_ms(1_100);
    world.lose(world.shared);
    world.connect();
    world.see_rights();
    for (asked, fused) in [
        (["GET a", "GET b"], "MGET a b"),
        (["SET a 1", "SET b 1"], "MSET a 1 b 1"),
    ] {
        world.sent(world.shared);
        ask_at_once(&mut world, &[(a, &asked[..1]), (b, &asked[1..])]);
        world.wait_ms(1);
        assert_eq!(world.sent(world.shared).as_bytes(), requests(&[fused]));
        world.says(
            world.shared,
            answer(&take_requests(&mut requests(&[fused])), ""),
        );
    }
}

/// A denied key stops fusion for a while only, since the next keys may be others.
#[test]
fn fusion_pauses_after_a_denied_key() {
    let mut world = fusing();
    let [a, b] = [world.accept(), world.accept()];
    let mut fused = 0;
    for _ in 0..40_000 {
        ask_at_once(&mut world, &[(a, &["GET a"]), (b, &["GET b"])]);
        if world.sent(world.shared).contains("MGET") {
            fused += 1;
            world.says(world.shared, "-NOPERM No permissions to access a key\r\n");
            world.sent(world.shared);
        }
        world.says(
            world.shared,
            "$1\r\n1\r\n-NOPERM No permissions to access a key\r\n",
        );
        assert_eq!(world.got(a), "$1\r\n1\r\n");
    }
    assert!((2..10).contains(&fused), "{fused}");
}

/// A user with the right to MGET and MSET, but not to GET and SET, gets nothing by fusion.
#[test]
fn fusion_gives_no_right_to_get_or_set() {
    let mut world = removed_prefix();
    let [a, b] = [world.accept(), world.accept()];
    for refusal in ["-NOPERM no\r\n", "-ERR unknown command\r\n"] {
        for asked in [["GET a", "GET b"], ["SET a 1", "SET b 2"]] {
            for _ in 0..20 {
                ask_at_once(&mut world, &[(a, &asked[..1]), (b, &asked[1..])]);
                assert_eq!(world.sent(world.shared).as_bytes(), requests(&asked));
                world.says(world.shared, refusal.repeat(2));
                assert_eq!(world.got(a), refusal);
                assert_eq!(world.got(b), refusal);
            }
        }
    }
}

/// One GET of many is sent by itself, since a server does not tell when rights change.
#[test]
fn right_to_get_is_checked_again_and_again() {
    let mut world = fusing();
    let [a, b, c] = [world.accept(), world.accept(), world.accept()];
    let asked: [(_, &[&str]); 3] = [(a, &["GET a"]), (b, &["GET b"]), (c, &["GET c"])];
    let mut tried = 0;
    for _ in 0..1_000 {
        ask_at_once(&mut world, &asked);
        let sent = world.sent(world.shared);
        assert!(
            sent.contains("MGET"),
            "GETs are fused while the user has the right"
        );
        if sent.as_bytes() == requests(&["MGET a b c"]) {
            world.says(world.shared, "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n");
        } else {
            assert_eq!(sent.as_bytes(), requests(&["GET c", "MGET a b"]));
            tried += 1;
            world.says(world.shared, "$1\r\n3\r\n*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
        }
        assert_eq!(world.got(c), "$1\r\n3\r\n");
    }
    assert_eq!(tried, 3, "once in each half second, over two seconds");
    // From now on the user has no right to GET.
    for round in 0..1_000 {
        ask_at_once(&mut world, &asked);
        let sent = world.sent(world.shared);
        let refused = "-NOPERM no\r\n";
        if sent.as_bytes() == requests(&["MGET a b c"]) {
            assert!(round < 500);
            world.says(world.shared, "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n");
        } else if sent.contains("MGET") {
            world.says(
                world.shared,
                [refused, "*2\r\n$1\r\n1\r\n$1\r\n2\r\n"].concat(),
            );
            tried += 1;
        } else {
            world.says(world.shared, refused.repeat(3));
            assert_eq!(world.got(a), refused);
        }
        world.got(a);
    }
    assert_eq!(tried, 4, "fusion ends with the first refusal");
}

/// Servers check rights first, so any error but NOPERM shows that the user has the right.
#[test]
fn other_errors_show_the_right_to_set() {
    let mut world = removed_prefix();
    let [a, b] = [world.accept(), world.accept()];
    let both: [(_, &[&str]); 2] = [(a, &["SET a 1"]), (b, &["SET b 1"])];
    ask_at_once(&mut world, &both);
    assert!(!world.sent(world.shared).contains("MSET"));
    world.says(world.shared, "-OOM no\r\n".repeat(2));
    ask_at_once(&mut world, &both);
    assert!(world.sent(world.shared).contains("MSET"));
}

/// When a link is lost, each SET of an MSET is UNKNOWN, and each GET of an MGET is sent again by
/// itself.
#[test]
fn fused_requests_fail_apart_when_their_link_is_lost() {
    let mut world = fusing();
    let [a, b, c] = [world.accept(), world.accept(), world.accept()];
    world.wait_ms(1_100);
    world.see_rights();
    ask_at_once(
        &mut world,
        &[
            (a, &["SET a 1"]),
            (b, &["SET b 1"]),
            (c, &["GET c", "GET d"]),
        ],
    );
    assert!(world.sent(world.shared).contains("MSET"));
    world.lose(world.shared);
    for session in [a, b] {
        assert!(
            world.got(session).starts_with("-UNKNOWN"),
            "the SET was sent"
        );
    }
    assert_eq!(world.connect(), world.shared);
    world.wait_ms(1);
    let sent = world.sent(world.shared);
    let alone = String::from_utf8(requests(&["GET c", "GET d"])).expect("requests are text");
    assert!(sent.ends_with(&alone), "{sent}");
    world.says(world.shared, "$1\r\n1\r\n$1\r\n2\r\n");
    assert_eq!(world.got(c), "$1\r\n1\r\n$1\r\n2\r\n");
}

/// A fused GET is sent on two connections at most. Otherwise it could end one server after the
/// other.
#[test]
fn fused_get_is_sent_on_two_connections_at_most() {
    let mut world = fusing();
    world.wait_ms(1_100);
    world.see_rights();
    let both = [world.accept(), world.accept()];
    ask_at_once(&mut world, &[(both[0], &["GET a"]), (both[1], &["GET b"])]);
    for _ in 0..2 {
        assert_ne!(world.sent(world.shared), "");
        world.lose(world.shared);
        assert_eq!(world.connect(), world.shared);
        world.wait_ms(1_100);
    }
    assert_eq!(world.sent(world.shared), "");
    for client in both {
        assert!(world.got(client).starts_with("-UNKNOWN "));
    }
}

/// No part of a fused request is executed before its last byte is sent.
#[test]
fn fused_request_counts_as_sent_with_its_last_byte() {
    let fused = requests(&["MSET a 1 b 2"]);
    for room in 0..=fused.len() {
        let mut world = fusing();
        world.wait_ms(1_100);
        world.see_rights();
        let both = [world.accept(), world.accept()];
        world.room.insert(world.shared, room);
        ask_at_once(
            &mut world,
            &[(both[0], &["SET a 1"]), (both[1], &["SET b 2"])],
        );
        assert_eq!(world.sent(world.shared).as_bytes(), &fused[..room]);
        world.lose(world.shared);
        let link = world.connect();
        let asked = world.asked(link).len();
        world.says(link, "+OK\r\n".repeat(asked));
        for client in both {
            let got = world.got(client);
            if room < fused.len() {
                assert_eq!(got, "+OK\r\n", "{room} bytes were written");
            } else {
                assert!(got.starts_with("-UNKNOWN "), "{got}");
            }
        }
    }
}

/// A GET that is asked again survives the loss of its link, as any read does.
#[test]
fn repeated_get_survives_the_loss_of_its_link() {
    let mut world = fusing();
    world.wait_ms(1_100);
    world.see_rights();
    let [one, two] = [world.accept(), world.accept()];
    ask_at_once(&mut world, &[(one, &["GET a"]), (two, &["GET b"])]);
    world.sent(world.shared);
    world.says(world.shared, "*2\r\n$-1\r\n$1\r\nv\r\n");
    let again = requests(&["GET a"]);
    assert_eq!(world.sent(world.shared).as_bytes(), again);
    world.lose(world.shared);
    let link = world.connect();
    assert_eq!(world.sent(link).as_bytes(), again);
    world.says(link, "$-1\r\n");
    assert_eq!(world.got(one), "$-1\r\n");
}

/// A request that would be sent again, but finds no link, fails with an error that tells whether it
/// was executed.
#[test]
fn retry_without_a_link_fails_with_its_fate() {
    for (asked, reply, fate) in [
        (["GET a", "GET b"], "*2\r\n$-1\r\n$1\r\nv\r\n", "-UNKNOWN "),
        (["SET a 1", "SET b 1"], "-OOM no\r\n", "-NOTSENT "),
    ] {
        let mut world = fusing();
        let [one, two] = [world.accept(), world.accept()];
        ask_at_once(&mut world, &[(one, &asked[..1]), (two, &asked[1..])]);
        world.sent(world.shared);
        world.room.insert(world.shared, 0);
        world.says(world.shared, reply);
        assert_eq!(world.got(one), "");
        // A link that has answered a session connects again at once. That fails here.
        world.lose(world.shared);
        for link in world.connecting() {
            assert_eq!(world.got(one), "");
            world.lose(link);
        }
        let got = world.got(one);
        assert!(got.starts_with(fate), "{got}");
    }
}

/// A request that was given up at its deadline is not sent on the next connection. It would run
/// after later requests of its client.
#[test]
fn request_given_up_is_not_sent_on_the_next_connection() {
    let mut settings = crate::world::settings();
    settings.flush.collapse = true;
    settings.timeouts.request_ms = 400;
    let mut world = World::new(settings);
    world.wait_ms(1_100);
    let [writer, one, two] = [world.accept(), world.accept(), world.accept()];
    world.room.insert(world.shared, 0);
    world.asks(writer, &["SET k 1"]);
    world.wait_ms(400);
    assert!(world.got(writer).starts_with("-UNKNOWN "));
    world.wait_ms(50);
    ask_at_once(
        &mut world,
        &[(writer, &["SET k 2"]), (one, &["GET x"]), (two, &["GET x"])],
    );
    world.turn(|_| {});
    assert_eq!(
        world.engine.counters().reads_collapsed,
        1,
        "the batch is closed"
    );
    world.lose(world.shared);
    let link = world.connect();
    let sent = requests(&["SET k 2", "GET x"]);
    assert_eq!(world.sent(link).as_bytes(), sent);
    world.says(link, "+OK\r\n$1\r\n1\r\n");
    assert_eq!(world.got(writer), "+OK\r\n");
    assert_eq!(world.got(two), "$1\r\n1\r\n");
}

/// A transaction or a part that was given up at its deadline is not sent on the next connection.
#[test]
fn block_or_part_given_up_is_not_sent_again() {
    let mut settings = crate::world::sharded(2);
    settings.timeouts.request_ms = 400;
    let mut world = World::new(settings);
    world.wait_ms(1_100);
    let [first, second] = [0, 1].map(|at| world.all_shared[at]);
    let [k, l] = [0, 1].map(|at| world.key_at(at, "k"));
    let session = world.accept();
    world.asks(session, &["MULTI", &format!("SET {k} 1")]);
    world.says(first, "-ERR no\r\n");
    world.says(first, "+OK\r\n*0\r\n");
    world.got(session);
    for link in [first, second] {
        world.sent(link);
        world.room.insert(link, 0);
    }
    world.asks(session, &["EXEC", &format!("DEL {k} {l}")]);
    world.wait_ms(450);
    assert_eq!(world.got(session).matches("-UNKNOWN ").count(), 2);
    for link in [first, second] {
        world.lose(link);
        world.connect();
        assert_eq!(world.sent(link), "");
    }
}

/// A reply to an MGET may be cut anywhere.
#[test]
fn fused_replies_may_come_in_any_pieces() {
    let reply = b"*3\r\n$1\r\n1\r\n$-1\r\n$3\r\nabc\r\n";
    for cut in 1..reply.len() {
        let mut world = fusing();
        let [a, b] = [world.accept(), world.accept()];
        ask_at_once(&mut world, &[(a, &["GET a"]), (b, &["GET b", "GET c"])]);
        world.sent(world.shared);
        world.says(world.shared, &reply[..cut]);
        world.says(world.shared, &reply[cut..]);
        assert_eq!(world.got(a), "$1\r\n1\r\n", "cut at {cut}");
        let again = requests(&["GET b", "GET c"]);
        assert_eq!(world.sent(world.shared).as_bytes(), again, "cut at {cut}");
        world.says(world.shared, "$-1\r\n$1\r\n3\r\n");
        assert_eq!(world.got(b), "$-1\r\n$1\r\n3\r\n", "cut at {cut}");
    }
}

/// Each value of an MGET is passed on as soon as it comes, a large one piece by piece. No session
/// waits longer than it would without the MGET.
#[test]
fn mget_value_is_passed_on_as_soon_as_it_comes() {
    let large = format!("$200000\r\n{}\r\n", "x".repeat(200_000));
    let (beginning, rest) = large.split_at(100_000);
    let mut world = fusing();
    let [a, b, c] = [world.accept(), world.accept(), world.accept()];
    ask_at_once(
        &mut world,
        &[(a, &["GET a"]), (b, &["GET b"]), (c, &["GET c"])],
    );
    assert_eq!(world.asked(world.shared).len(), 1);
    world.says(world.shared, ["*3\r\n$1\r\n1\r\n", beginning].concat());
    assert_eq!(world.got(a), "$1\r\n1\r\n");
    assert_eq!(world.got(b), beginning);
    world.says(world.shared, [rest, "$1\r\n3\r\n"].concat());
    assert_eq!(world.got(b), rest);
    assert_eq!(world.got(c), "$1\r\n3\r\n");
}

/// An MGET reply with the wrong number of values ends the link.
#[test]
fn mget_reply_of_another_length_ends_the_link() {
    for reply in ["*1\r\n$1\r\n1\r\n", "+OK\r\n", "$1\r\n1\r\n"] {
        let mut world = fusing();
        let [a, b] = [world.accept(), world.accept()];
        ask_at_once(&mut world, &[(a, &["GET a"]), (b, &["GET b"])]);
        world.says(world.shared, reply);
        assert_eq!(world.closed_links(), [world.shared]);
        assert!(world.got(a).starts_with("-UNKNOWN"));
    }
}

/// Five clients whose link is old enough to reconnect at once. Their requests have left as one MSET
/// and one MGET.
fn all_in_flight(mut settings: Settings) -> (World, [SessionId; 5]) {
    settings.flush.fuse = true;
    settings.flush.collapse = true;
    let mut world = World::new(settings);
    world.wait_ms(1_100);
    world.see_rights();
    let all = [(); 5].map(|()| world.accept());
    let asked: [(_, &[&str]); 5] = [
        (all[0], &["SET a 1"]),
        (all[1], &["SET b 2"]),
        (all[2], &["GET x"]),
        (all[3], &["GET y"]),
        (all[4], &["GET x"]),
    ];
    ask_at_once(&mut world, &asked);
    let sent = requests(&["MSET a 1 b 2", "MGET x y"]);
    assert_eq!(world.sent(world.shared).as_bytes(), sent);
    (world, all)
}

/// The link of [`all_in_flight`] ended after the bytes `said`, and the next link answers. Of the
/// requests without a whole reply, SETs may have been executed and GETs are sent again.
#[track_caller]
fn assert_outcome_of_each(world: &mut World, all: [SessionId; 5], said: &str) {
    let has_come = |reply: &str| said.starts_with(reply);
    let got = all.map(|client| world.got(client));
    let link = world.connect();
    world.turn(|_| {});
    let [was_set, x, y] = ["+OK\r\n", "+OK\r\n*2\r\n$2\r\nx1\r\n", WHOLE].map(has_come);
    let mut again = Vec::new();
    for (client, got) in got.iter().enumerate() {
        let (has_come, old, key) = match client {
            0 | 1 => (was_set, "+OK\r\n", None),
            3 => (y, "$2\r\ny1\r\n", Some("y")),
            _ => (x, "$2\r\nx1\r\n", Some("x")),
        };
        match (has_come, key) {
            (true, _) => assert_eq!(got, old, "client {client} after {said:?}"),
            (false, None) => assert!(got.starts_with("-UNKNOWN "), "{got} after {said:?}"),
            (false, Some(key)) => {
                assert_eq!(got, "", "client {client} after {said:?}");
                again.push((all[client], key));
            }
        }
    }
    // The GETs are joined again, except one GET that shows the right.
    let asked = world.asked(link);
    assert!(asked.iter().all(|args| args[0] == "GET"), "{asked:?}");
    let gets: BTreeSet<&str> = asked.iter().map(|args| args[1].as_str()).collect();
    assert_eq!(
        gets,
        again.iter().map(|(_, key)| *key).collect(),
        "after {said:?}"
    );
    let reply = |args: &Vec<String>| format!("$2\r\n{}2\r\n", args[1]);
    world.says(link, asked.iter().map(reply).collect::<String>());
    for (client, key) in again {
        assert_eq!(world.got(client), format!("$2\r\n{key}2\r\n"));
    }
    assert_eq!(world.sent(link), "", "once");
    assert_eq!(world.engine.counters().held_bytes, 0);
}

/// All replies to the requests of [`all_in_flight`].
const WHOLE: &str = "+OK\r\n*2\r\n$2\r\nx1\r\n$2\r\ny1\r\n";

/// Wherever a connection breaks, no client has half a reply, and reads are sent again.
#[test]
fn link_lost_in_a_fused_reply_leaves_no_half_reply() {
    for cut in 0..WHOLE.len() {
        let (mut world, all) = all_in_flight(crate::world::settings());
        world.says(world.shared, &WHOLE[..cut]);
        world.lose(world.shared);
        assert_outcome_of_each(&mut world, all, &WHOLE[..cut]);
    }
}

/// An MGET reply of another type or length ends the link where it goes wrong. No client gets
/// anything of it or of the bytes after it.
#[test]
fn malformed_mget_reply_ends_the_link() {
    let cut_at = |end: &str| WHOLE.find(end).expect("WHOLE has these bytes") + end.len();
    let [head, first, second] = ["+OK\r\n", "*2\r\n", "x1\r\n"].map(cut_at);
    for (right, wrong) in [
        (0, "\x01\r\n"),
        (head, "\x01\r\n"),
        (head, "*1\r\n$2\r\nx1\r\n"),
        (head, "*3\r\n$2\r\nx1\r\n$2\r\ny1\r\n$2\r\nz1\r\n"),
        (head, "*0\r\n"),
        (head, "*-1\r\n"),
        (head, "*2 \r\n"),
        (head, "~2\r\n$2\r\nx1\r\n$2\r\ny1\r\n"),
        (head, "$2\r\nx1\r\n"),
        (first, "\x01\r\n"),
        (first, "$-2\r\n$2\r\ny1\r\n"),
        (second, "\x01\r\n"),
        (second, "$two\r\ny1\r\n"),
        (WHOLE.len(), "$2\r\nz1\r\n"),
        (WHOLE.len(), "\x01\r\n"),
    ] {
        let right = &WHOLE[..right];
        for is_cut in [false, true] {
            let (mut world, all) = all_in_flight(crate::world::settings());
            if is_cut {
                world.says(world.shared, right);
                world.says(world.shared, wrong);
            } else {
                world.says(world.shared, [right, wrong].concat());
            }
            assert_eq!(world.closed_links(), [world.shared], "{wrong:?}");
            assert_outcome_of_each(&mut world, all, right);
        }
    }
}

/// A proxy in front of several servers may put an error in the place of a value. Only the session
/// of that GET gets it.
#[test]
fn error_in_place_of_a_value_goes_to_its_session() {
    let (mut world, all) = all_in_flight(crate::world::settings());
    world.says(world.shared, "+OK\r\n*2\r\n-ERR no\r\n$2\r\ny1\r\n");
    let expected = [
        "+OK\r\n",
        "+OK\r\n",
        "-ERR no\r\n",
        "$2\r\ny1\r\n",
        "-ERR no\r\n",
    ];
    assert_eq!(all.map(|client| world.got(client)), expected);
    assert_eq!(world.sent(world.shared), "");
    assert_eq!(world.engine.counters().links_lost, 0);
}

/// A reply after the deadlines of all fused requests is dropped, even an error that would have them
/// sent again.
#[test]
fn late_reply_to_a_fused_request_is_dropped() {
    for late in [
        WHOLE,
        "+OK\r\n*2\r\n$-1\r\n$-1\r\n",
        "-OOM no\r\n-NOPERM no\r\n",
        "-UNKNOWN no\r\n-ERR no\r\n",
    ] {
        let mut settings = crate::world::settings();
        settings.timeouts.request_ms = 400;
        let (mut world, all) = all_in_flight(settings);
        world.wait_ms(450);
        for client in all {
            let got = world.got(client);
            assert!(got.starts_with("-UNKNOWN "), "{got}");
        }
        // A session that has its value sends the same GET again, and two others send another one.
        let others = [world.accept(), world.accept()];
        let asked: [(_, &[&str]); 4] = [
            (all[2], &["GET x"]),
            (all[0], &["SET a 3"]),
            (others[0], &["GET z"]),
            (others[1], &["SET c 4"]),
        ];
        ask_at_once(&mut world, &asked);
        world.says(world.shared, late);
        world.turn(|_| {});
        let next = world.asked(world.shared);
        for (client, _) in asked {
            assert_eq!(world.got(client), "", "after {late:?}");
        }
        let of = |name: &str| {
            let own = next.iter().filter(|args| args[0].ends_with(name));
            let words = own.flat_map(|args| args[1..].to_vec());
            words.collect::<Vec<_>>().join(" ")
        };
        let set_and_got = (of("SET"), of("GET"));
        let expected = ("a 3 c 4".to_owned(), "x z".to_owned());
        assert_eq!(set_and_got, expected, "after {late:?}: no request twice");
        let reply = |args: &Vec<String>| match args[0].as_str() {
            "SET" | "MSET" => "+OK\r\n".to_owned(),
            _ => answer(std::slice::from_ref(args), ""),
        };
        world.says(world.shared, next.iter().map(reply).collect::<String>());
        for (client, asked) in asked {
            let expected = match asked[0].starts_with("SET") {
                true => "+OK\r\n",
                false => "$1\r\nv\r\n",
            };
            assert_eq!(world.got(client), expected, "after {late:?}");
        }
        for client in [all[1], all[3], all[4]] {
            assert_eq!(world.got(client), "", "after {late:?}");
        }
        assert_eq!(world.engine.counters().links_lost, 0, "the link lives on");
    }
}

/// The deadline of each fused request counts from its own arrival. A reply that is late for some is
/// passed on to the others.
#[test]
fn fused_requests_keep_their_own_deadlines() {
    let mut settings = crate::world::settings();
    settings.flush.fuse = true;
    settings.flush.collapse = true;
    settings.flush.max_delay_us = 1_000_000;
    settings.timeouts.request_ms = 400;
    let mut world = World::new(settings);
    world.see_rights();
    let [busy, one, two, three, four, five] = [(); 6].map(|()| world.accept());
    world.asks(busy, &["INCR n"]);
    ask_at_once(&mut world, &[(one, &["GET x"]), (two, &["SET a 1"])]);
    world.wait_ms(200);
    let asked: [(_, &[&str]); 3] = [
        (three, &["GET x"]),
        (four, &["SET b 2"]),
        (five, &["GET y"]),
    ];
    ask_at_once(&mut world, &asked);
    world.says(world.shared, ":1\r\n");
    world.turn(|_| {});
    let sent = requests(&["INCR n", "MSET a 1 b 2", "MGET x y"]);
    assert_eq!(world.sent(world.shared).as_bytes(), sent);
    world.wait_ms(250);
    for client in [one, two] {
        assert!(world.got(client).starts_with("-UNKNOWN "));
    }
    world.says(world.shared, WHOLE);
    assert_eq!(world.got(three), "$2\r\nx1\r\n");
    assert_eq!(world.got(four), "+OK\r\n");
    assert_eq!(world.got(five), "$2\r\ny1\r\n");
    assert_eq!([one, two].map(|client| world.got(client)), ["", ""]);
    assert_eq!(world.engine.counters().late_replies, 2);
}

/// An MGET has at most `fused_keys_max` keys, and its bytes have a bound.
#[test]
fn mget_is_bounded_in_keys_and_bytes() {
    let mut settings = crate::world::settings();
    settings.flush.fuse = true;
    settings.flush.fused_keys_max = 2;
    let mut world = World::new(settings);
    world.see_rights();
    let [one, two] = [world.accept(), world.accept()];
    ask_at_once(&mut world, &[(one, &["GET a", "GET b"]), (two, &["GET c"])]);
    let sent = requests(&["MGET a b", "GET c"]);
    assert_eq!(world.sent(world.shared).as_bytes(), sent);
    world.says(world.shared, "*2\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n");
    assert_eq!(world.got(one), "$1\r\n1\r\n$1\r\n2\r\n");
    assert_eq!(world.got(two), "$1\r\n3\r\n");
    let large = "x".repeat(FUSED_BYTES_MAX * 2 / 3);
    let sets = ["a", "b"].map(|key| format!("SET {key} {large}"));
    let gets = ["a", "b"].map(|end| format!("GET {large}{end}"));
    for [first, second] in [sets, gets] {
        ask_at_once(&mut world, &[(one, &[&first]), (two, &[&second])]);
        let sent = requests(&[&first, &second]);
        assert!(world.sent(world.shared).as_bytes() == sent);
        world.says(world.shared, "+OK\r\n+OK\r\n");
    }
}

/// All SETs of a session in a batch are in one MSET. If the first of two MSETs were refused, the
/// second would run before the SETs that are sent again.
#[test]
fn sets_of_a_session_are_in_one_mset() {
    let mut settings = crate::world::settings();
    settings.flush.fuse = true;
    settings.flush.fused_keys_max = 3;
    let mut world = World::new(settings);
    world.see_rights();
    let [a, b, c] = [world.accept(), world.accept(), world.accept()];
    ask_at_once(
        &mut world,
        &[
            (a, &["SET a 1", "SET a 2"]),
            (b, &["SET b 1", "SET b 2"]),
            (c, &["SET c 1", "SET c 2", "SET c 3", "SET c 4"]),
        ],
    );
    let sent = [
        "SET c 1",
        "MSET a 1 a 2",
        "MSET b 1 b 2",
        "MSET c 2 c 3 c 4",
    ];
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&sent));
    world.says(world.shared, "+OK\r\n-OOM no\r\n+OK\r\n+OK\r\n");
    assert_eq!(world.got(a), "");
    assert_eq!(world.got(b), "+OK\r\n".repeat(2));
    assert_eq!(world.got(c), "+OK\r\n".repeat(4));
    let sent = requests(&["SET a 1", "SET a 2"]);
    assert_eq!(world.sent(world.shared).as_bytes(), sent);
}

/// A SET leaves by itself if the bound would divide its session's SETs over two MSETs.
#[test]
fn set_that_does_not_fit_into_one_mset_leaves_alone() {
    let mut settings = crate::world::settings();
    settings.flush.fuse = true;
    settings.flush.fused_keys_max = 2;
    let mut world = World::new(settings);
    world.see_rights();
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(
        &mut world,
        &[(a, &["SET a 1"]), (b, &["SET b 1"]), (a, &["SET a 2"])],
    );
    let sent = requests(&["SET a 1", "MSET b 1 a 2"]);
    assert_eq!(world.sent(world.shared).as_bytes(), sent);
}

/// An MSET may have run although the reply is an error: the server may be a proxy that has lost the
/// reply. It is not sent again.
#[test]
fn mset_of_unknown_fate_is_not_sent_again() {
    let mut world = fusing();
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(&mut world, &[(a, &["SET a 1"]), (b, &["SET b 2"])]);
    assert!(world.sent(world.shared).contains("MSET"));
    let unknown = "-UNKNOWN it was sent, and may have been executed\r\n";
    world.says(world.shared, unknown);
    assert_eq!([a, b].map(|session| world.got(session)), [unknown; 2]);
    assert_eq!(world.sent(world.shared), "");
}

/// A session that reads slowly keeps no value of an MGET from other sessions.
#[test]
fn slow_reader_delays_no_fused_reply_of_others() {
    let mut settings = crate::world::settings();
    settings.flush.fuse = true;
    settings.flush.collapse = true;
    settings.limits.session_output_soft_bytes = 100;
    settings.limits.session_output_hard_bytes = 110;
    let mut world = World::new(settings);
    world.see_rights();
    let [slow, other, third] = [world.accept(), world.accept(), world.accept()];
    world.slow.insert(slow);
    world.asks(slow, &["GET x"]);
    let long = format!("$90\r\n{}\r\n", "x".repeat(90));
    world.says(world.shared, &long);
    world.sent(world.shared);
    ask_at_once(
        &mut world,
        &[(slow, &["GET a", "GET b"]), (other, &["GET a", "GET c"])],
    );
    let sent = requests(&["MGET a b c"]);
    assert_eq!(world.sent(world.shared).as_bytes(), sent);
    // The slow session now holds too much and is owed more: its link is not read, and all other
    // sessions leave it.
    world.says(
        world.shared,
        "*3\r\n$9\r\nvalue of a\r\n".replace("$9", "$10"),
    );
    assert_eq!(world.got(other), "$10\r\nvalue of a\r\n");
    let [next, own] = world.replacing();
    world.up(next);
    world.up(own);
    world.asks(third, &["GET z"]);
    world.turn(|_| {});
    assert_eq!(world.sent(own).as_bytes(), requests(&["GET c"]));
    assert_eq!(world.sent(next).as_bytes(), requests(&["GET z"]));
    world.says(own, "$1\r\nc\r\n");
    assert_eq!(world.closed_links(), [own], "the link has no reply left");
    world.says(next, "$1\r\nz\r\n");
    assert_eq!(world.got(other), "$1\r\nc\r\n");
    assert_eq!(world.got(third), "$1\r\nz\r\n");
}

/// The link of a slow session is not read, and another session with a GET in flight moves to a link
/// of its own.
fn draining() -> (World, SessionId, LinkId) {
    let mut settings = crate::world::settings();
    settings.flush.fuse = true;
    settings.limits.session_output_soft_bytes = 100;
    settings.limits.session_output_hard_bytes = 110;
    let mut world = World::new(settings);
    world.see_rights();
    let [slow, other] = [world.accept(), world.accept()];
    world.slow.insert(slow);
    ask_at_once(
        &mut world,
        &[
            (other, &["GET nil"]),
            (slow, &["GET x"]),
            (other, &["GET y"]),
            (slow, &["GET z"]),
        ],
    );
    let sent = requests(&["MGET nil x y z"]);
    assert_eq!(world.sent(world.shared).as_bytes(), sent);
    let long = format!("$120\r\n{}\r\n", "x".repeat(120));
    world.says(world.shared, format!("*4\r\n$-1\r\n{long}"));
    let [_, own] = world.replacing();
    (world, other, own)
}

/// Requests that leave the link of a slow session are sent in their order. Otherwise a session
/// could see a newer value of a key first.
#[test]
fn requests_leave_a_draining_link_in_order() {
    let (mut world, other, own) = draining();
    world.up(own);
    world.turn(|_| {});
    let sent = requests(&["GET nil", "GET y"]);
    assert_eq!(world.sent(own).as_bytes(), sent);
    world.says(own, "$-1\r\n".repeat(2));
    assert_eq!(world.got(other), "$-1\r\n".repeat(2));
}

/// Requests on the link of a slow session may have run: writes are not sent again.
#[test]
fn requests_on_a_draining_link_may_have_run() {
    let (mut world, other, own) = draining();
    world.lose(own);
    let got = world.got(other);
    assert_eq!(got.matches("-UNKNOWN ").count(), 2, "{got}");
}

/// A large reply on a new link arrives whole, also when its session had a GET to be asked again.
#[test]
fn large_reply_after_a_retry_and_a_new_link_is_whole() {
    let mut world = fusing();
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(
        &mut world,
        &[(b, &["GET c"]), (a, &["GET a", "GET d", "GET b"])],
    );
    world.sent(world.shared);
    world.wait_ms(1_100);
    // The rest of the MGET reply may still hold nils.
    world.says(world.shared, "*4\r\n$1\r\n3\r\n$-1\r\n");
    world.lose(world.shared);
    world.connect();
    world.turn(|_| {});
    let sent = requests(&["GET a", "GET d", "GET b"]);
    assert_eq!(world.sent(world.shared).as_bytes(), sent);
    let small = "$1\r\n1\r\n$1\r\n2\r\n";
    let large = format!("$100000\r\n{}\r\n", "y".repeat(100_000));
    world.says(world.shared, format!("{small}{}", &large[..80_000]));
    world.says(world.shared, &large[80_000..]);
    let got = world.got(a);
    assert!(got == format!("{small}{large}"), "{} bytes", got.len());
}

/// The deadline of a GET that is asked again counts from its first arrival.
#[test]
fn repeated_get_keeps_its_deadline() {
    let mut settings = crate::world::settings();
    settings.flush.fuse = true;
    settings.timeouts.request_ms = 400;
    let mut world = World::new(settings);
    world.see_rights();
    let [a, b, c] = [world.accept(), world.accept(), world.accept()];
    ask_at_once(&mut world, &[(a, &["GET a"]), (b, &["GET b"])]);
    world.wait_ms(200);
    world.asks(c, &["INCR n"]);
    world.turn(|_| {});
    world.says(world.shared, "*2\r\n$-1\r\n$1\r\n2\r\n");
    world.turn(|_| {});
    assert!(world.sent(world.shared).ends_with("GET\r\n$1\r\na\r\n"));
    world.wait_ms(250);
    assert!(
        world.got(a).starts_with("-UNKNOWN "),
        "the deadline of a has passed"
    );
    assert_eq!(world.got(c), "", "c asked later, and still has time");
}

/// A GET that is to be asked again fails at its deadline, even if the rest of its MGET reply is
/// late. It is not sent before that rest has come.
#[test]
fn repeated_get_fails_at_its_deadline_before_the_rest() {
    let mut settings = crate::world::settings();
    settings.flush.fuse = true;
    settings.timeouts.request_ms = 400;
    let mut world = World::new(settings);
    world.see_rights();
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(&mut world, &[(a, &["GET a"]), (b, &["GET b"])]);
    assert!(world.sent(world.shared).contains("MGET"));
    world.says(world.shared, "*2\r\n$-1\r\n");
    world.wait_ms(500);
    for client in [a, b] {
        let told = world.got(client);
        assert!(told.starts_with("-UNKNOWN "), "{told}");
    }
    world.says(world.shared, "$1\r\n2\r\n");
    world.turn(|_| {});
    assert_eq!(
        world.sent(world.shared),
        "",
        "no session waits for it any more"
    );
    // Their sessions go on.
    world.asks(a, &["GET c"]);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["GET c"]));
    world.says(world.shared, "$1\r\n3\r\n");
    assert_eq!(world.got(a), "$1\r\n3\r\n");
    assert_eq!(world.engine.counters().held_bytes, 0);
}

/// Many nils stop the fusion of GETs, and not that of SETs.
#[test]
fn sets_stay_fused_where_gets_find_nothing() {
    let mut world = fusing();
    let clients: Vec<_> = (0..64).map(|_| world.accept()).collect();
    for _ in 0..20 {
        world.turn(|engine| {
            for client in &clients {
                engine.handle_session_bytes(*client, &requests(&["GET nothing"]));
            }
        });
        let mut asked = world.asked(world.shared);
        while !asked.is_empty() {
            world.says(world.shared, answer(&asked, "nothing"));
            asked = world.asked(world.shared);
        }
    }
    ask_at_once(
        &mut world,
        &[
            (clients[0], &["GET a"]),
            (clients[1], &["GET b"]),
            (clients[2], &["SET c 1"]),
            (clients[3], &["SET d 1"]),
        ],
    );
    // The link expects requests of the other clients, too.
    world.turn(|_| {});
    let sent = requests(&["GET a", "GET b", "MSET c 1 d 1"]);
    assert_eq!(world.sent(world.shared).as_bytes(), sent);
}

/// A request in an unusual form is sent as it is.
#[test]
fn only_the_plain_form_is_fused() {
    let mut world = fusing();
    let [a, b, c] = [world.accept(), world.accept(), world.accept()];
    world.turn(|engine| {
        engine.handle_session_bytes(a, b"*2\r\n$3\r\nget\r\n$1\r\na\r\n");
        engine.handle_session_bytes(b, b"GET b\r\n");
        engine.handle_session_bytes(c, &request(&["GET", ""]));
    });
    let sent = world.sent(world.shared);
    assert_eq!(sent.as_bytes(), request(&["MGET", "a", "b", ""]));
}

/// Of equal reads in a batch one is sent, and all sessions get its reply.
#[test]
fn equal_reads_are_sent_once() {
    let mut world = collapsing();
    let [a, b, c] = [world.accept(), world.accept(), world.accept()];
    ask_at_once(
        &mut world,
        &[
            (a, &["LLEN l", "GET k"]),
            (b, &["INCR n", "LLEN l"]),
            (c, &["GET k", "GET k", "LLEN m"]),
        ],
    );
    let sent = requests(&["INCR n", "LLEN l", "GET k", "LLEN m"]);
    assert_eq!(world.sent(world.shared).as_bytes(), sent);
    world.says(world.shared, ":1\r\n:2\r\n$1\r\n3\r\n:4\r\n");
    assert_eq!(world.got(a), ":2\r\n$1\r\n3\r\n");
    assert_eq!(world.got(b), ":1\r\n:2\r\n");
    assert_eq!(world.got(c), "$1\r\n3\r\n$1\r\n3\r\n:4\r\n");
    assert_eq!(world.engine.counters().reads_collapsed, 3);
}

/// A request of this row, with this key and the least number of arguments.
fn about(row: &Command, key: &str) -> String {
    let mut words: Vec<&str> = row.name.split('|').collect();
    words.push(key);
    while !row.arity_ok(words.len()) {
        words.push("1");
    }
    words.join(" ")
}

/// A command is collapsed if its row of the table allows it.
#[test]
fn only_rows_that_collapse_are_sent_once() {
    let mut collapses = 0;
    for row in commands::all().map(commands::command) {
        let same = match row.coalesce {
            Coalesce::Get | Coalesce::Collapse => true,
            Coalesce::Set | Coalesce::None => false,
        };
        // Other rows are not executed in order, or only with some arguments.
        if row.only_key == 0 || !row.goes_straight() {
            assert!(!same, "{}", row.name);
            continue;
        }
        let [read, another] = ["k", "other"].map(|key| about(row, key));
        let mut world = collapsing();
        let [a, b, c, d] = [(); 4].map(|()| world.accept());
        ask_at_once(
            &mut world,
            &[(a, &[&read]), (b, &[&read]), (c, &[&another])],
        );
        let count = if same { 2 } else { 3 };
        let mut sent = world.sent(world.shared).into_bytes();
        assert_eq!(take_requests(&mut sent).len(), count, "{read}");
        if !same {
            continue;
        }
        collapses += 1;
        world.says(world.shared, "$1\r\n1\r\n$1\r\n2\r\n");
        assert_eq!(
            [a, b].map(|client| world.got(client)),
            ["$1\r\n1\r\n"; 2],
            "{read}"
        );
        assert_eq!(world.got(c), "$1\r\n2\r\n", "{read}");
        // A read joins no read before a write, and none in flight.
        ask_at_once(&mut world, &[(a, &[&read, "INCR k", &read]), (b, &[&read])]);
        world.asks(d, &[&read]);
        let three = requests(&[&read, "INCR k", &read]);
        assert_eq!(world.sent(world.shared).as_bytes(), three, "{read}");
        world.says(world.shared, ":1\r\n:2\r\n:3\r\n");
        assert_eq!(world.sent(world.shared).as_bytes(), requests(&[&read]));
        world.says(world.shared, ":4\r\n");
        assert_eq!(world.got(a), ":1\r\n:2\r\n:3\r\n", "{read}");
        assert_eq!(world.got(b), ":3\r\n", "{read}");
        assert_eq!(world.got(d), ":4\r\n", "{read}");
    }
    assert!(collapses > 50, "{collapses} rows");
}

/// A session that leaves before it gets its copy of a reply changes nothing for others.
#[test]
fn leaving_before_the_copy_changes_nothing_for_others() {
    let mut world = collapsing();
    let [one, two, three] = [world.accept(), world.accept(), world.accept()];
    let same: [&str; 1] = ["LLEN k"];
    ask_at_once(&mut world, &[(one, &same), (two, &same), (three, &same)]);
    world.turn(|engine| engine.handle_session_lost(two));
    for _ in 0..3 {
        assert_eq!(world.sent(world.shared).as_bytes(), requests(&same));
        world.says(world.shared, ":1\r\n");
        for client in [one, three] {
            assert_eq!(world.got(client), ":1\r\n");
        }
        ask_at_once(&mut world, &[(one, &same), (three, &same)]);
    }
}

/// A read is not joined to an equal one that runs before an earlier request of the same session.
#[test]
fn read_takes_no_reply_from_before_an_earlier_request() {
    let mut world = collapsing();
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(
        &mut world,
        &[(a, &["LLEN l", "LLEN m"]), (b, &["LLEN m", "LLEN l"])],
    );
    let sent = requests(&["LLEN l", "LLEN m", "LLEN l"]);
    assert_eq!(world.sent(world.shared).as_bytes(), sent);
}

/// An MGET has each key once, for any order of the requests: all its keys are read at one moment.
#[test]
fn equal_keys_of_an_mget_are_sent_once() {
    let mut world = all_levels();
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(
        &mut world,
        &[(a, &["GET k", "GET x", "GET y"]), (b, &["GET y", "GET k"])],
    );
    let sent = requests(&["MGET k x y"]);
    assert_eq!(world.sent(world.shared).as_bytes(), sent);
    world.says(world.shared, "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n");
    assert_eq!(world.got(a), "$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n");
    assert_eq!(world.got(b), "$1\r\n3\r\n$1\r\n1\r\n");
}

/// All GETs of a session after a nil are asked again with it, since their values are older than the
/// new reply.
#[test]
fn nil_is_asked_again_with_all_gets_after_it() {
    let mut world = fusing();
    let a = world.accept();
    ask_at_once(&mut world, &[(a, &["GET k", "GET nil", "GET y", "GET k"])]);
    let sent = requests(&["MGET k nil y k"]);
    assert_eq!(world.sent(world.shared).as_bytes(), sent);
    world.says(
        world.shared,
        "*4\r\n$1\r\n1\r\n$-1\r\n$1\r\n3\r\n$1\r\n1\r\n",
    );
    assert_eq!(world.got(a), "$1\r\n1\r\n");
    let again = requests(&["GET nil", "GET y", "GET k"]);
    assert_eq!(world.sent(world.shared).as_bytes(), again);
    world.says(world.shared, "$-1\r\n$1\r\n4\r\n$1\r\n5\r\n");
    assert_eq!(world.got(a), "$-1\r\n$1\r\n4\r\n$1\r\n5\r\n");
    assert_eq!(world.engine.counters().held_bytes, 0);
}

/// Where reads are collapsed, a session sees each key in order, and different keys in any. So a
/// miss repeats only later reads of its key.
#[test]
fn collapsed_gets_repeat_only_those_of_the_missed_key() {
    let mut world = all_levels();
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(
        &mut world,
        &[
            (a, &["GET k", "GET nil"]),
            (b, &["GET nil", "GET y", "GET nil", "GET k"]),
        ],
    );
    assert_eq!(
        world.sent(world.shared).as_bytes(),
        requests(&["MGET k nil y"])
    );
    world.says(world.shared, "*3\r\n$1\r\n1\r\n$-1\r\n$1\r\n3\r\n");
    assert_eq!(world.got(a), "$1\r\n1\r\n");
    assert_eq!(world.got(b), "");
    let again = requests(&["GET nil"]);
    assert_eq!(world.sent(world.shared).as_bytes(), again);
    world.says(world.shared, "$1\r\n2\r\n");
    assert_eq!(world.got(a), "$1\r\n2\r\n");
    assert_eq!(world.got(b), "$1\r\n2\r\n$1\r\n3\r\n$1\r\n2\r\n$1\r\n1\r\n");
    assert_eq!(world.engine.counters().held_bytes, 0);
}

/// A later read of the missed key is asked again even if it was sent by itself because collapsing
/// had paused.
#[test]
fn single_read_of_a_missed_key_is_asked_again() {
    let mut world = all_levels();
    let a = world.accept();
    let others: Vec<String> = (0..100).map(|key| format!("GET {key}")).collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    for _ in 0..12 {
        ask_at_once(&mut world, &[(a, &others)]);
        while !world.sent(world.shared).is_empty() {
            world.says(
                world.shared,
                format!("*100\r\n{}", "$1\r\n1\r\n".repeat(100)),
            );
        }
        world.got(a);
    }
    assert_eq!(world.engine.counters().collapsing_stops, 1);
    ask_at_once(&mut world, &[(a, &["GET nil", "GET y", "GET nil"])]);
    let sent = requests(&["MGET nil y nil"]);
    assert_eq!(world.sent(world.shared).as_bytes(), sent);
    world.says(world.shared, "*3\r\n$-1\r\n$1\r\n3\r\n$1\r\n4\r\n");
    let again = requests(&["GET nil", "GET nil"]);
    assert_eq!(world.sent(world.shared).as_bytes(), again);
    world.says(world.shared, "$1\r\n5\r\n$1\r\n6\r\n");
    assert_eq!(world.got(a), "$1\r\n5\r\n$1\r\n3\r\n$1\r\n6\r\n");
    assert_eq!(world.engine.counters().held_bytes, 0);
}

/// A session that reads by several commands repeats all reads after a miss: the bytes do not show
/// which are of the same key.
#[test]
fn miss_repeats_all_later_reads_of_mixed_commands() {
    let mut world = all_levels();
    let a = world.accept();
    ask_at_once(&mut world, &[(a, &["STRLEN k", "GET nil", "GET y"])]);
    let sent = requests(&["STRLEN k", "MGET nil y"]);
    assert_eq!(world.sent(world.shared).as_bytes(), sent);
    world.says(world.shared, ":1\r\n*2\r\n$-1\r\n$1\r\n3\r\n");
    assert_eq!(world.got(a), ":1\r\n");
    let again = requests(&["GET nil", "GET y"]);
    assert_eq!(world.sent(world.shared).as_bytes(), again);
    world.says(world.shared, "$-1\r\n$1\r\n4\r\n");
    assert_eq!(world.got(a), "$-1\r\n$1\r\n4\r\n");
    assert_eq!(world.engine.counters().held_bytes, 0);
}

/// A copy of a reply that has no room is asked again, with all later reads of its key by the
/// session, and none of other requests in that turn.
#[test]
fn copy_without_room_repeats_all_later_mixed_reads() {
    for reads_elsewhere in [false, true] {
        let mut world = all_levels_of_two();
        let [link, other] = [world.all_shared[0], world.all_shared[1]];
        let list = world.key_at(0, "l");
        let far = ["x", "y"].map(|key| format!("GET {}", world.key_at(1, key)));
        let [t, s] = [world.accept(), world.accept()];
        let [range, len] = [format!("LRANGE {list} 0 -1"), format!("LLEN {list}")];
        let mut asked = vec![range.as_str(), len.as_str()];
        if reads_elsewhere {
            asked.extend(far.iter().map(String::as_str));
        }
        ask_at_once(&mut world, &[(t, &[&range]), (s, &asked)]);
        let sent = requests(&[&range, &len]);
        assert_eq!(world.sent(link).as_bytes(), sent);
        let soft = crate::world::settings().limits.session_output_soft_bytes as usize;
        let value = format!("${soft}\r\n{}\r\n", "v".repeat(soft));
        world.says(link, format!("*1\r\n{value}:1\r\n"));
        assert_eq!(world.sent(link).as_bytes(), sent, "the length is not older");
        let mut due = "*0\r\n:0\r\n".to_owned();
        if reads_elsewhere {
            let asked = world.asked(other);
            assert_eq!(asked[0][0], "MGET");
            world.says(other, "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
            due.push_str("$1\r\n1\r\n$1\r\n2\r\n");
        }
        world.says(link, "*0\r\n:0\r\n");
        assert_eq!(world.got(s), due);
        assert_eq!(world.got(t), format!("*1\r\n{value}"));
    }
}

/// Replies that wait behind a miss are bounded by the session's output bound. The rest is asked
/// again.
#[test]
fn replies_behind_a_miss_are_bounded() {
    let mut world = all_levels();
    let a = world.accept();
    let keys: Vec<String> = (0..40).map(|key| format!("GET {key}")).collect();
    let asked: Vec<&str> = keys.iter().map(String::as_str).collect();
    ask_at_once(&mut world, &[(a, &asked)]);
    assert!(world.sent(world.shared).contains("MGET"));
    let value = format!("$50000\r\n{}\r\n", "v".repeat(50_000));
    world.says(world.shared, format!("*40\r\n$-1\r\n{}", value.repeat(39)));
    let soft = crate::world::settings().limits.session_output_soft_bytes as usize;
    assert!(world.engine.counters().held_bytes < soft as u64 + 100_000);
    let again = world.asked(world.shared);
    let kept = (soft / value.len()).min(39);
    assert!(
        again.len() > 1 && again.len() + kept >= 39,
        "{}",
        again.len()
    );
    world.says(world.shared, "$-1\r\n");
    world.says(world.shared, value.repeat(again.len() - 1));
    assert_eq!(world.got(a), format!("$-1\r\n{}", value.repeat(39)));
    assert_eq!(world.engine.counters().held_bytes, 0);
}

/// A read joins no equal read that has left already, and none before a write.
#[test]
fn read_joins_no_sent_read_and_none_before_a_write() {
    let mut world = collapsing();
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(&mut world, &[(a, &["LLEN l"])]);
    ask_at_once(&mut world, &[(b, &["LLEN l", "LPUSH l 1", "LLEN l"])]);
    world.says(world.shared, ":0\r\n");
    world.wait_ms(1);
    let sent = requests(&["LLEN l", "LLEN l", "LPUSH l 1", "LLEN l"]);
    assert_eq!(world.sent(world.shared).as_bytes(), sent);
}

/// A large reply is passed to the first session only, since no copy is held. The other reads are
/// sent by themselves.
#[test]
fn large_reply_is_not_copied_to_others() {
    let large = format!("$200000\r\n{}\r\n", "x".repeat(200_000));
    let (beginning, rest) = large.split_at(100_000);
    for mut world in [collapsing(), all_levels()] {
        let [a, b] = [world.accept(), world.accept()];
        ask_at_once(&mut world, &[(a, &["GET k"]), (b, &["GET k", "GET x"])]);
        let fused = world.sent(world.shared).contains("MGET");
        world.says(world.shared, if fused { "*2\r\n" } else { "" });
        world.says(world.shared, beginning);
        world.says(world.shared, rest);
        assert_eq!(world.got(a), large);
        world.says(world.shared, "$1\r\n1\r\n");
        assert_eq!(world.got(b), "");
        assert_eq!(world.sent(world.shared).as_bytes(), requests(&["GET k"]));
        world.says(world.shared, beginning);
        world.says(world.shared, rest);
        assert_eq!(world.got(b), [&large, "$1\r\n1\r\n"].concat());
        assert_eq!(world.engine.counters().held_bytes, 0);
    }
}

/// A session that waits for a copy of a reply is not read. Otherwise its write would run before a
/// read that is asked again.
#[test]
fn session_that_waits_for_a_copy_is_not_read() {
    let large = format!("$200000\r\n{}\r\n", "x".repeat(200_000));
    let (beginning, rest) = large.split_at(100_000);
    let mut world = collapsing();
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(&mut world, &[(a, &["GET k"]), (b, &["GET k"])]);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["GET k"]));
    world.asks(b, &["SET k 1"]);
    world.wait_ms(1);
    assert_eq!(world.sent(world.shared), "");
    world.says(world.shared, beginning);
    world.says(world.shared, rest);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["GET k"]));
    world.says(world.shared, "$1\r\n0\r\n");
    world.wait_ms(1);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["SET k 1"]));
    assert_eq!(world.got(b), "$1\r\n0\r\n");
}

/// A session that takes its output slowly gets no copies. Replies of its own come no faster than it
/// takes them, but copies would.
#[test]
fn slow_reader_gets_no_copy() {
    let mut settings = crate::world::settings();
    settings.flush.collapse = true;
    settings.limits.session_output_soft_bytes = 100;
    let mut world = World::new(settings);
    let [slow, other] = [world.accept(), world.accept()];
    world.slow.insert(slow);
    world.asks(slow, &["GET x"]);
    let long = format!("$90\r\n{}\r\n", "x".repeat(90));
    world.says(world.shared, &long);
    world.sent(world.shared);
    let same = requests(&["GET a"]);
    ask_at_once(&mut world, &[(other, &["GET a"]), (slow, &["GET a"])]);
    assert_eq!(world.sent(world.shared).as_bytes(), same);
    world.says(world.shared, "$5\r\nvalue\r\n");
    assert_eq!(world.got(other), "$5\r\nvalue\r\n");
    assert_eq!(world.sent(world.shared).as_bytes(), same);
    world.says(world.shared, "$5\r\nother\r\n");
    world.takes(slow);
    assert_eq!(world.got(slow), [&long, "$5\r\nother\r\n"].concat());
}

/// A large value after a nil is asked again, and arrives whole.
#[test]
fn large_reply_behind_a_nil_is_whole_when_repeated() {
    let large = format!("$200000\r\n{}\r\n", "x".repeat(200_000));
    let (beginning, rest) = large.split_at(100_000);
    let mut settings = crate::world::settings();
    settings.flush.fuse = true;
    // A reply to a repeated request is passed on at once, so it may be larger than the bound for
    // held replies.
    settings.limits.session_output_hard_bytes = 90_000;
    let mut world = World::new(settings);
    world.see_rights();
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(&mut world, &[(a, &["GET nil", "GET k"]), (b, &["GET x"])]);
    world.sent(world.shared);
    world.says(world.shared, ["*3\r\n$-1\r\n", beginning].concat());
    world.says(world.shared, [rest, "$1\r\n1\r\n"].concat());
    assert_eq!(world.got(b), "$1\r\n1\r\n");
    assert_eq!(world.got(a), "");
    assert_eq!(
        world.sent(world.shared).as_bytes(),
        requests(&["GET nil", "GET k"])
    );
    world.says(world.shared, ["$-1\r\n", beginning].concat());
    world.says(world.shared, rest);
    assert_eq!(world.got(a), ["$-1\r\n", &large].concat());
}

/// The last bytes of a large value that look like a nil are no nil.
#[test]
fn end_of_a_large_value_is_no_nil() {
    let large = format!("$200000\r\n{}_\r\n", "x".repeat(199_999));
    let (beginning, rest) = large.split_at(large.len() - 3);
    let mut world = fusing();
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(&mut world, &[(a, &["GET k"]), (b, &["GET x"])]);
    world.sent(world.shared);
    world.says(world.shared, ["*2\r\n", beginning].concat());
    world.says(world.shared, [rest, "$1\r\n1\r\n"].concat());
    assert_eq!(world.got(a), large);
    assert_eq!(world.got(b), "$1\r\n1\r\n");
    assert_eq!(world.sent(world.shared), "");
}

/// Replies of a server that lacks these keys and has all others.
fn answer(asked: &[Vec<String>], missing: &str) -> String {
    let mut replies = String::new();
    for args in asked {
        if args[0] == "MGET" {
            replies += &format!("*{}\r\n", args.len() - 1);
        }
        for key in &args[1..] {
            replies += if missing.contains(key) {
                "$-1\r\n"
            } else {
                "$1\r\nv\r\n"
            };
        }
    }
    replies
}

/// If many GETs find nothing, GETs are not fused for two seconds.
#[test]
fn many_nils_pause_the_fusion_of_gets() {
    for missing in ["", "a", "abcd", "abcdefghijklmnop"] {
        let mut world = fusing();
        let clients = ('a'..='p').map(|key| (world.accept(), format!("GET {key}")));
        let clients: Vec<_> = clients.collect();
        let mut is_fused = Vec::new();
        for _ in 0..2_200 {
            world.turn(|engine| {
                for (client, get) in &clients {
                    engine.handle_session_bytes(*client, &requests(&[get]));
                }
            });
            let mut asked = world.asked(world.shared);
            is_fused.push(asked.iter().any(|args| args[0] == "MGET"));
            while !asked.is_empty() {
                world.says(world.shared, answer(&asked, missing));
                asked = world.asked(world.shared);
            }
            for (client, get) in &clients {
                let expected = answer(&take_requests(&mut requests(&[get])), missing);
                assert_eq!(world.got(*client), expected);
            }
        }
        let alone = is_fused.iter().filter(|is_fused| !**is_fused).count();
        if missing.len() <= 1 {
            assert_eq!(alone, 0, "one nil in sixteen costs too little");
        } else {
            let first = is_fused.iter().position(|is_fused| !is_fused);
            let first = first.expect("GETs are sent alone");
            assert!(first >= 8, "the nils have to be counted first");
            let left_alone = is_fused[first..].iter().position(|is_fused| *is_fused);
            let left_alone = left_alone.expect("fusion is tried again");
            assert!(
                (2_000..2_100).contains(&left_alone),
                "{left_alone} for {missing:?}"
            );
        }
    }
}

/// A listener may switch fusing or collapsing off for its own sessions.
#[test]
fn listener_without_fusion_sends_requests_alone() {
    let mut world = all_levels();
    let mut from = |listener| {
        let origin = Origin {
            listener,
            ..Origin::from(crate::world::peer(1))
        };
        world.engine.handle_accept(origin, 0)
    };
    let [a, b, c, d] = [0, 0, 1, 1].map(&mut from);
    let all: [(_, &[&str]); 4] = [
        (a, &["GET k"]),
        (b, &["GET x"]),
        (c, &["GET k"]),
        (d, &["GET k"]),
    ];
    for (switched, sent) in [
        ("fuse no", &["GET k", "MGET k x"][..]),
        ("collapse no", &["GET k", "GET k", "MGET k x"]),
        ("fuse yes", &["MGET k x k k"]),
    ] {
        world.asks(c, &[&format!("CONFIG SET respool.listener.{switched}")]);
        world.says(world.shared, "-ERR Unknown option\r\n");
        assert_eq!(world.got(c), "+OK\r\n");
        world.sent(world.shared);
        ask_at_once(&mut world, &all);
        let asked = world.asked(world.shared);
        assert_eq!(asked, take_requests(&mut requests(sent)));
        world.says(world.shared, answer(&asked, ""));
        for (session, _) in all {
            assert_eq!(world.got(session), "$1\r\nv\r\n");
        }
    }
}

/// A GET that is asked again at one server does not repeat reads at another one, even if reads are
/// asked again there, too.
#[test]
fn miss_at_one_server_repeats_no_read_at_another() {
    let mut world = all_levels_of_two();
    let [here, there] = [0, 1].map(|at| world.all_shared[at]);
    let [n, m, busy] = ["n", "m", "busy"].map(|name| world.key_at(0, name));
    let [k, l, x, y, busy_there] = ["k", "l", "x", "y", "z"].map(|name| world.key_at(1, name));
    let [a, b, c, d] = [(); 4].map(|()| world.accept());
    let ask = |world: &mut World, all: &[(SessionId, &str, &str)]| {
        world.turn(|engine| {
            for (session, command, key) in all {
                let words = format!("{command} {key}");
                engine.handle_session_bytes(*session, &requests(&[&words]));
            }
        });
    };
    // At the other server a GET is asked again while requests are in flight.
    ask(&mut world, &[(c, "GET", &x), (d, "GET", &y)]);
    ask(&mut world, &[(a, "INCR", &busy_there)]);
    world.wait_ms(50);
    assert_eq!(world.asked(there).len(), 2);
    world.says(there, "*2\r\n$-1\r\n$1\r\ny\r\n");
    ask(&mut world, &[(a, "STRLEN", &k), (b, "STRLEN", &l)]);
    world.wait_ms(50);
    assert_eq!(
        world.asked(there).len(),
        3,
        "x is asked again, with both commands"
    );
    // At this server a request is fused.
    ask(&mut world, &[(b, "INCR", &busy)]);
    let longer = format!("{k} longer");
    ask(
        &mut world,
        &[(a, "GET", &n), (d, "GET", &m), (a, "SET", &longer)],
    );
    world.sent(here);
    world.says(here, ":1\r\n");
    let fused = requests(&[&format!("MGET {n} {m}")]);
    assert_eq!(world.sent(here).as_bytes(), fused);
    world.says(here, "*2\r\n$-1\r\n$1\r\nm\r\n");
    assert_eq!(world.asked(here).len(), 1, "the nil is asked again");
    world.says(there, ":1\r\n$-1\r\n:1\r\n:2\r\n");
    let set = requests(&[&format!("SET {longer}")]);
    assert_eq!(world.sent(there).as_bytes(), set, "no later read is sent");
    world.says(there, "+OK\r\n");
    world.says(here, "$-1\r\n");
    assert_eq!(world.got(a), ":1\r\n:1\r\n$-1\r\n+OK\r\n");
    assert_eq!(world.got(b), ":2\r\n:1\r\n");
}

/// A reply that has begun arrives whole while other requests are sent again to another server.
#[test]
fn reply_that_has_begun_is_whole_beside_a_retry() {
    let mut world = all_levels_of_two();
    let [here, there] = [0, 1].map(|at| world.all_shared[at]);
    let [n, m] = ["n", "m"].map(|name| world.key_at(0, name));
    let [k, l] = ["k", "l"].map(|name| world.key_at(1, name));
    let [a, b] = [world.accept(), world.accept()];
    let asked_of_a = [format!("LRANGE {k} 0 9"), format!("GET {n}")];
    let asked_of_b = [format!("LRANGE {l} 0 9"), format!("GET {m}")];
    let [of_a, of_b] = [&asked_of_a, &asked_of_b].map(|two| two.each_ref().map(String::as_str));
    ask_at_once(&mut world, &[(a, &of_a), (b, &of_b)]);
    let large = format!("*1\r\n$100000\r\n{}\r\n", "x".repeat(100_000));
    let (beginning, rest) = large.split_at(80_000);
    world.says(there, beginning);
    assert_eq!(world.got(a), beginning);
    world.says(here, "*2\r\n$-1\r\n$1\r\nm\r\n");
    world.says(there, [rest, "*0\r\n"].concat());
    assert_eq!(world.got(a), rest);
    world.says(here, "$-1\r\n");
    assert_eq!(world.got(a), "$-1\r\n");
    assert_eq!(world.got(b), "*0\r\n$1\r\nm\r\n");
}

/// An option that is set for a pool applies to each of its subpools.
#[test]
fn option_of_a_pool_applies_to_all_its_subpools() {
    let mut world = World::new(crate::world::parted(1));
    let links = world.all_shared.clone();
    let [a, b, admin] = [(); 3].map(|()| world.accept());
    for (set, sent) in [("yes", 1), ("no", 2), ("yes", 1)] {
        world.asks(admin, &[&format!("CONFIG SET respool.collapse {set}")]);
        world.wait_ms(1);
        world.says(links[0], "-ERR Unknown option\r\n");
        assert_eq!(world.got(admin), "+OK\r\n");
        world.sent(links[0]);
        for (at, link) in links.iter().enumerate() {
            let get = format!("GET {}", world.key_at(at, "k"));
            ask_at_once(&mut world, &[(a, &[&get]), (b, &[&get])]);
            world.wait_ms(1);
            assert_eq!(world.asked(*link).len(), sent, "{set} at {at}");
            world.says(*link, "$1\r\nv\r\n".repeat(sent));
            for session in [a, b] {
                assert_eq!(world.got(session), "$1\r\nv\r\n");
            }
        }
    }
}
