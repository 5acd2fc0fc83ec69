//! Requests that leave as one, each law of it in a history of its own.

mod world;

use std::collections::BTreeSet;

use respool_engine::limits::FUSED_BYTES_MAX;
use respool_engine::settings::Settings;
use respool_engine::{LinkId, Origin, SessionId};
use respool_protocol::commands::{self, Coalesce, Command};
use world::{World, request, requests, take_requests};

/// It was not seen yet that anybody may GET and SET.
fn unseen() -> World {
    let mut settings = world::settings();
    settings.flush.fuse = true;
    World::new(settings)
}

fn fusing() -> World {
    let mut world = unseen();
    world.see_rights();
    world
}

fn collapsing() -> World {
    let mut settings = world::settings();
    settings.flush.collapse = true;
    World::new(settings)
}

fn all_levels() -> World {
    let mut settings = world::settings();
    settings.flush.fuse = true;
    settings.flush.collapse = true;
    let mut world = World::new(settings);
    world.see_rights();
    world
}

/// Two servers whose batches wait for what is in flight, ten turns at the most.
fn all_levels_of_two() -> World {
    let mut settings = world::sharded(2);
    settings.flush.fuse = true;
    settings.flush.collapse = true;
    settings.flush.max_delay_us = 10_000;
    let mut world = World::new(settings);
    world.see_rights();
    world
}

/// Several sessions ask in one turn.
fn ask_at_once(world: &mut World, all: &[(SessionId, &[&str])]) {
    world.turn(|engine| {
        for (session, asked) in all {
            engine.handle_session_bytes(*session, &requests(asked));
        }
    });
}

#[test]
fn gets_of_a_batch_leave_as_one_mget_and_each_gets_its_own() {
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

/// What a session asks is executed in the order in which it asked.
#[test]
fn what_stands_in_front_of_something_else_of_its_session_stays_there() {
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

/// What is moved is moved behind what it stood behind.
#[test]
fn a_get_behind_a_set_that_is_fused_is_behind_it_still() {
    let mut world = fusing();
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(&mut world, &[(a, &["SET k 1", "GET k"]), (b, &["SET x 1"])]);
    let fused = requests(&["MSET k 1 x 1", "GET k"]);
    assert_eq!(world.sent(world.shared).as_bytes(), fused);
}

/// A nil may hide a WRONGTYPE: it is asked again, and so is what its session asked behind it; nobody else.
#[test]
fn a_nil_is_asked_again_and_so_is_what_its_session_asked_behind_it() {
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

/// Or its write would run in front of what has to be asked again.
#[test]
fn a_session_of_which_something_is_fused_is_not_asked_for_more() {
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

#[test]
fn an_error_to_the_whole_is_nobodys_and_each_asks_for_itself() {
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

/// Or its ACL LOG would be full of what no client has asked.
#[test]
fn who_has_no_right_to_it_is_not_tried_with_it_twice() {
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

/// It may be another server, or other rights.
#[test]
fn on_the_next_connection_everything_is_tried_again() {
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

/// The next keys may be others.
#[test]
fn who_has_no_right_to_a_key_is_left_alone_for_a_while() {
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

/// Who may MGET may have no right to GET.
#[test]
fn who_has_no_right_to_get_or_set_gets_nothing_by_mget_and_mset() {
    let mut world = unseen();
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

/// Nobody tells us when rights change.
#[test]
fn a_right_is_seen_to_again_and_again() {
    let mut world = fusing();
    let [a, b, c] = [world.accept(), world.accept(), world.accept()];
    let asked: [(_, &[&str]); 3] = [(a, &["GET a"]), (b, &["GET b"]), (c, &["GET c"])];
    let mut tried = 0;
    for _ in 0..1_000 {
        ask_at_once(&mut world, &asked);
        let sent = world.sent(world.shared);
        assert!(sent.contains("MGET"), "as long as it may, it is fused");
        if sent.as_bytes() == requests(&["MGET a b c"]) {
            world.says(world.shared, "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n");
        } else {
            assert_eq!(sent.as_bytes(), requests(&["GET c", "MGET a b"]));
            tried += 1;
            world.says(world.shared, "$1\r\n3\r\n*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
        }
        assert_eq!(world.got(c), "$1\r\n3\r\n");
    }
    assert_eq!(
        tried, 3,
        "in two seconds, of which every half one ends with it"
    );
    // From now on it may not.
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
    assert_eq!(tried, 4, "it ends with the first that is refused");
}

/// Rights are looked at first.
#[test]
fn who_is_refused_for_another_reason_has_the_right() {
    let mut world = unseen();
    let [a, b] = [world.accept(), world.accept()];
    let both: [(_, &[&str]); 2] = [(a, &["SET a 1"]), (b, &["SET b 1"])];
    ask_at_once(&mut world, &both);
    assert!(!world.sent(world.shared).contains("MSET"));
    world.says(world.shared, "-OOM no\r\n".repeat(2));
    ask_at_once(&mut world, &both);
    assert!(world.sent(world.shared).contains("MSET"));
}

#[test]
fn what_was_fused_stands_for_itself_when_its_link_is_lost() {
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
        assert!(world.got(session).starts_with("-UNKNOWN"), "it was sent");
    }
    assert_eq!(world.connect(), world.shared);
    world.wait_ms(1);
    let sent = world.sent(world.shared);
    let alone = String::from_utf8(requests(&["GET c", "GET d"])).expect("it is text");
    assert!(sent.ends_with(&alone), "{sent}");
    world.says(world.shared, "$1\r\n1\r\n$1\r\n2\r\n");
    assert_eq!(world.got(c), "$1\r\n1\r\n$1\r\n2\r\n");
}

/// Or it would go on ending one server after the other.
#[test]
fn a_get_that_was_fused_is_sent_on_two_connections_at_the_most() {
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

/// Nothing of it was executed before.
#[test]
fn what_was_fused_was_sent_when_its_last_byte_was() {
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

#[test]
fn a_get_that_is_asked_again_survives_the_loss_of_its_link_as_any_read_does() {
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

#[test]
fn what_is_to_be_asked_again_when_no_link_can_be_had_is_told_whether_it_was_executed() {
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
        // Where its server has answered a session, the link connects again at once: that fails.
        world.lose(world.shared);
        for link in world.connecting() {
            assert_eq!(world.got(one), "");
            world.lose(link);
        }
        let got = world.got(one);
        assert!(got.starts_with(fate), "{got}");
    }
}

/// It would be executed behind what its client asked next.
#[test]
fn what_was_given_up_is_not_sent_on_the_next_connection() {
    let mut settings = world::settings();
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
    assert_eq!(world.engine.counters().collapsed, 1, "the batch is closed");
    world.lose(world.shared);
    let link = world.connect();
    let sent = requests(&["SET k 2", "GET x"]);
    assert_eq!(world.sent(link).as_bytes(), sent);
    world.says(link, "+OK\r\n$1\r\n1\r\n");
    assert_eq!(world.got(writer), "+OK\r\n");
    assert_eq!(world.got(two), "$1\r\n1\r\n");
}

#[test]
fn a_block_or_a_part_that_was_given_up_is_not_sent_on_the_next_connection() {
    let mut settings = world::sharded(2);
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

#[test]
fn replies_may_come_in_any_pieces() {
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

/// Nobody waits for more than would have come before its answer without the MGET.
#[test]
fn each_value_of_an_mget_is_its_clients_as_soon_as_it_comes_and_a_large_one_piece_by_piece() {
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

#[test]
fn a_reply_of_another_length_is_not_believed() {
    for reply in ["*1\r\n$1\r\n1\r\n", "+OK\r\n", "$1\r\n1\r\n"] {
        let mut world = fusing();
        let [a, b] = [world.accept(), world.accept()];
        ask_at_once(&mut world, &[(a, &["GET a"]), (b, &["GET b"])]);
        world.says(world.shared, reply);
        assert_eq!(world.closed_links(), [world.shared]);
        assert!(world.got(a).starts_with("-UNKNOWN"));
    }
}

/// Five clients whose link is old enough to be connected again at once; what they ask has left as one MSET and one MGET.
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

/// The link of [`all_in_flight`] has ended when this had come on it, and the next one answers: of what had not come whole, what
/// was set may have been executed, and what was got is got again.
#[track_caller]
fn each_has_what_is_its(world: &mut World, all: [SessionId; 5], said: &str) {
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
    // Joined as anything is, but for who has to show that a GET may be asked there.
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

/// All that the server of [`all_in_flight`] has to say.
const WHOLE: &str = "+OK\r\n*2\r\n$2\r\nx1\r\n$2\r\ny1\r\n";

#[test]
fn wherever_a_connection_is_lost_nobody_has_half_a_reply_and_reads_are_answered() {
    for cut in 0..WHOLE.len() {
        let (mut world, all) = all_in_flight(world::settings());
        world.says(world.shared, &WHOLE[..cut]);
        world.lose(world.shared);
        each_has_what_is_its(&mut world, all, &WHOLE[..cut]);
    }
}

/// What is no array of that length, or no reply, ends the link where it begins. What comes behind reaches nobody.
#[test]
fn what_is_wrong_in_the_answer_to_an_mget_ends_the_link_and_nobody_has_anything_of_it() {
    let cut_at = |end: &str| WHOLE.find(end).expect("it is there") + end.len();
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
            let (mut world, all) = all_in_flight(world::settings());
            if is_cut {
                world.says(world.shared, right);
                world.says(world.shared, wrong);
            } else {
                world.says(world.shared, [right, wrong].concat());
            }
            assert_eq!(world.closed_links(), [world.shared], "{wrong:?}");
            each_has_what_is_its(&mut world, all, right);
        }
    }
}

/// No server says such a thing, but a proxy in front of several may. It is no reason to fail what others have asked.
#[test]
fn an_error_in_the_place_of_a_value_is_for_who_asked_for_that() {
    let (mut world, all) = all_in_flight(world::settings());
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
    assert_eq!(world.engine.counters().link_downs, 0);
}

/// Also where it is an error, and by itself would have been asked again.
#[test]
fn a_reply_that_comes_when_the_time_of_its_parts_is_over_is_nobodys() {
    for late in [
        WHOLE,
        "+OK\r\n*2\r\n$-1\r\n$-1\r\n",
        "-OOM no\r\n-NOPERM no\r\n",
        "-UNKNOWN no\r\n-ERR no\r\n",
    ] {
        let mut settings = world::settings();
        settings.timeouts.request_ms = 400;
        let (mut world, all) = all_in_flight(settings);
        world.wait_ms(450);
        for client in all {
            let got = world.got(client);
            assert!(got.starts_with("-UNKNOWN "), "{got}");
        }
        // Who had got something asks for it again, and two others for something else.
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
        assert_eq!(set_and_got, expected, "after {late:?}: nothing twice");
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
        assert_eq!(world.engine.counters().link_downs, 0, "the link lives on");
    }
}

/// Their time is counted from when each asked.
#[test]
fn of_a_reply_that_is_late_for_some_the_others_have_their_part() {
    let mut settings = world::settings();
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

#[test]
fn no_mget_has_more_keys_or_bytes_than_it_may() {
    let mut settings = world::settings();
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

/// Should the first MSET be refused, the second would have been executed before what is asked again.
#[test]
fn what_one_session_sets_is_in_one_mset() {
    let mut settings = world::settings();
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

/// Nor may they be in two of them because another one's stands in between.
#[test]
fn a_set_in_front_of_those_of_another_session_leaves_by_itself() {
    let mut settings = world::settings();
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

/// A server may be another proxy, which has lost the answer.
#[test]
fn an_mset_of_which_it_is_not_known_whether_it_was_executed_is_not_asked_again() {
    let mut world = fusing();
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(&mut world, &[(a, &["SET a 1"]), (b, &["SET b 2"])]);
    assert!(world.sent(world.shared).contains("MSET"));
    let unknown = "-UNKNOWN it was sent, and may have been executed\r\n";
    world.says(world.shared, unknown);
    assert_eq!([a, b].map(|session| world.got(session)), [unknown; 2]);
    assert_eq!(world.sent(world.shared), "");
}

#[test]
fn who_reads_slowly_takes_no_answer_from_others() {
    let mut settings = world::settings();
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
    // With this the slow one has too much, and is still owed more: the link is not read, and everybody else leaves it.
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
    assert_eq!(world.closed_links(), [own], "it has done its duty");
    world.says(next, "$1\r\nz\r\n");
    assert_eq!(world.got(other), "$1\r\nc\r\n");
    assert_eq!(world.got(third), "$1\r\nz\r\n");
}

/// The link of a slow session is not read, and what another one reads is to go to one of its own.
fn captured() -> (World, SessionId, LinkId) {
    let mut settings = world::settings();
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

/// Or of what it reads of one key, it would see the newer first.
#[test]
fn what_leaves_the_link_of_a_slow_session_is_asked_in_its_order() {
    let (mut world, other, own) = captured();
    world.up(own);
    world.turn(|_| {});
    let sent = requests(&["GET nil", "GET y"]);
    assert_eq!(world.sent(own).as_bytes(), sent);
    world.says(own, "$-1\r\n".repeat(2));
    assert_eq!(world.got(other), "$-1\r\n".repeat(2));
}

#[test]
fn what_leaves_the_link_of_a_slow_session_may_have_been_executed() {
    let (mut world, other, own) = captured();
    world.lose(own);
    let got = world.got(other);
    assert_eq!(got.matches("-UNKNOWN ").count(), 2, "{got}");
}

#[test]
fn a_large_answer_on_a_new_link_comes_whole_though_something_was_to_be_asked_again() {
    let mut world = fusing();
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(
        &mut world,
        &[(b, &["GET c"]), (a, &["GET a", "GET d", "GET b"])],
    );
    world.sent(world.shared);
    world.wait_ms(1_100);
    // It is not known yet whether anything else of the MGET has to be asked again, too.
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

#[test]
fn what_is_asked_again_has_its_time_from_when_it_was_asked_first() {
    let mut settings = world::settings();
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
    assert!(world.got(a).starts_with("-UNKNOWN "), "its time is over");
    assert_eq!(world.got(c), "", "and that of who asked later is not");
}

/// It may be long before the rest is there, and until then it is not sent.
#[test]
fn what_is_to_be_asked_again_is_answered_at_its_deadline_though_the_rest_of_its_mget_is_late() {
    let mut settings = world::settings();
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
    assert_eq!(world.sent(world.shared), "", "nobody waits for it any more");
    // Their sessions go on.
    world.asks(a, &["GET c"]);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["GET c"]));
    world.says(world.shared, "$1\r\n3\r\n");
    assert_eq!(world.got(a), "$1\r\n3\r\n");
    assert_eq!(world.engine.counters().held_bytes, 0);
}

#[test]
fn where_gets_find_nothing_sets_still_leave_together() {
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
    // The others were expected, too.
    world.turn(|_| {});
    let sent = requests(&["GET a", "GET b", "MSET c 1 d 1"]);
    assert_eq!(world.sent(world.shared).as_bytes(), sent);
}

/// What is not written as everybody writes it goes as it is.
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

/// The others have its answer.
#[test]
fn of_reads_that_are_the_same_one_is_sent() {
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
    assert_eq!(world.engine.counters().collapsed, 3);
}

/// A request of this row, about this key, with as many arguments as it needs.
fn about(row: &Command, key: &str) -> String {
    let mut words: Vec<&str> = row.name.split('|').collect();
    words.push(key);
    while !row.arity_ok(words.len()) {
        words.push("1");
    }
    words.join(" ")
}

#[test]
fn each_row_of_the_table_that_collapses_does_so_and_no_other() {
    let mut collapses = 0;
    for row in commands::all().map(commands::command) {
        let same = match row.coalesce {
            Coalesce::Get | Coalesce::Collapse => true,
            Coalesce::Set | Coalesce::None => false,
        };
        // Others are not executed in their turn, or only with particular arguments.
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
        // Not across a write that is between them, and not with one that is on its way.
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

/// What a session asks first runs first, so what it asks next takes no answer from before.
#[test]
fn who_leaves_before_it_takes_its_copy_changes_nothing_for_others() {
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

#[test]
fn a_read_takes_no_answer_from_before_what_its_session_asked_in_front_of_it() {
    let mut world = collapsing();
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(
        &mut world,
        &[(a, &["LLEN l", "LLEN m"]), (b, &["LLEN m", "LLEN l"])],
    );
    let sent = requests(&["LLEN l", "LLEN m", "LLEN l"]);
    assert_eq!(world.sent(world.shared).as_bytes(), sent);
}

/// What is executed at once has no before.
#[test]
fn in_one_mget_the_same_keys_are_one_in_whatever_order_they_were_asked() {
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

/// An answer that has come already is from before.
#[test]
fn what_is_asked_again_is_asked_again_with_all_that_was_asked_behind_it() {
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

/// What a session reads of one key it reads in its order; between keys it has none where reads are joined.
#[test]
fn where_reads_are_joined_only_those_of_the_same_key_are_asked_again_behind_a_miss() {
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

/// Where there was nothing to join for a while, nobody looks for what is the same.
#[test]
fn a_read_of_the_same_key_is_asked_again_behind_a_miss_though_it_was_sent_by_itself() {
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
    assert_eq!(world.engine.counters().reads_left_alone, 1);
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

/// Its reads of one key are not the same: by their bytes nobody sees which are of that key.
#[test]
fn who_reads_in_more_than_one_way_is_asked_again_for_all_behind_a_miss() {
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

/// A copy that has no room is asked again, and then all that its session has read of that key behind it: whatever else left
/// in that turn, to this server or to another one.
#[test]
fn who_reads_in_more_than_one_way_is_asked_again_for_all_behind_a_copy_that_had_no_room() {
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
        let soft = world::settings().limits.session_output_soft_bytes as usize;
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

/// What comes behind a miss waits for its turn: as much as a session may be owed, and the rest is asked again.
#[test]
fn what_waits_behind_a_miss_is_bounded() {
    let mut world = all_levels();
    let a = world.accept();
    let keys: Vec<String> = (0..40).map(|key| format!("GET {key}")).collect();
    let asked: Vec<&str> = keys.iter().map(String::as_str).collect();
    ask_at_once(&mut world, &[(a, &asked)]);
    assert!(world.sent(world.shared).contains("MGET"));
    let value = format!("$50000\r\n{}\r\n", "v".repeat(50_000));
    world.says(world.shared, format!("*40\r\n$-1\r\n{}", value.repeat(39)));
    let soft = world::settings().limits.session_output_soft_bytes as usize;
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

#[test]
fn no_read_is_the_same_as_one_that_has_left_or_one_in_front_of_a_write() {
    let mut world = collapsing();
    let [a, b] = [world.accept(), world.accept()];
    ask_at_once(&mut world, &[(a, &["LLEN l"])]);
    ask_at_once(&mut world, &[(b, &["LLEN l", "LPUSH l 1", "LLEN l"])]);
    world.says(world.shared, ":0\r\n");
    world.wait_ms(1);
    let sent = requests(&["LLEN l", "LLEN l", "LPUSH l 1", "LLEN l"]);
    assert_eq!(world.sent(world.shared).as_bytes(), sent);
}

/// Nobody holds it for them.
#[test]
fn a_large_answer_is_the_first_ones_and_the_others_ask_for_themselves() {
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

/// Or its write would run in front of what it has to ask again.
#[test]
fn who_takes_the_answer_of_another_is_not_asked_for_more() {
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

/// What a server sends comes no faster than it is taken; copies would.
#[test]
fn who_has_more_than_it_takes_gets_no_copy() {
    let mut settings = world::settings();
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

#[test]
fn a_large_answer_behind_a_nil_comes_whole_when_it_is_asked_for_again() {
    let large = format!("$200000\r\n{}\r\n", "x".repeat(200_000));
    let (beginning, rest) = large.split_at(100_000);
    let mut settings = world::settings();
    settings.flush.fuse = true;
    // What is asked for again is not kept until its turn, so it may be more than is.
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

#[test]
fn the_end_of_a_large_value_is_no_nil() {
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

/// What a server says where these keys hold nothing and all others something.
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

#[test]
fn where_many_gets_find_nothing_they_are_left_alone_for_a_while() {
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
            assert_eq!(alone, 0, "one in sixteen is no loss");
        } else {
            let first = is_fused.iter().position(|is_fused| !is_fused);
            let first = first.expect("it is left alone");
            assert!(first >= 8, "it has to be seen first");
            let left_alone = is_fused[first..].iter().position(|is_fused| *is_fused);
            let left_alone = left_alone.expect("then it is tried again");
            assert!(
                (2_000..2_100).contains(&left_alone),
                "{left_alone} for {missing:?}"
            );
        }
    }
}

#[test]
fn who_comes_by_a_listener_that_is_left_out_leaves_alone() {
    let mut world = all_levels();
    let mut from = |listener| {
        let origin = Origin {
            listener,
            ..Origin::from(world::peer(1))
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

/// What is asked again of one server says nothing of what another one has answered, though something is asked again there, too.
#[test]
fn a_read_is_not_asked_again_because_of_what_another_server_answered() {
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
    // There, something is asked again while something else is in flight.
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
        "x is asked again, and both are"
    );
    // Here, something is fused.
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
    assert_eq!(world.asked(here).len(), 1, "it is asked again");
    world.says(there, ":1\r\n$-1\r\n:1\r\n:2\r\n");
    let set = requests(&[&format!("SET {longer}")]);
    assert_eq!(world.sent(there).as_bytes(), set, "and nothing behind it");
    world.says(there, "+OK\r\n");
    world.says(here, "$-1\r\n");
    assert_eq!(world.got(a), ":1\r\n:1\r\n$-1\r\n+OK\r\n");
    assert_eq!(world.got(b), ":2\r\n:1\r\n");
}

#[test]
fn a_reply_that_has_begun_comes_whole_whatever_is_asked_again_of_another_server() {
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

#[test]
fn what_is_set_in_a_pool_holds_in_each_of_its_parts() {
    let mut world = World::new(world::parted(1));
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
