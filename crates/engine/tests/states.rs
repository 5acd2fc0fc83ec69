//! What sessions and links are left as when something ends in a bad moment, each in a history of its own.

mod world;

use respool_engine::limits::LINK_UNUSED_MS;
use respool_engine::settings::WhenFull;
use respool_engine::{Action, Answer, Lines, LinkId, Question, SessionId, TICK_MS};
use world::{HELLO, World, request, requests, settings, worker};

/// A server answers COMMAND, and MULTI and EXEC, which it is asked before the first transaction. It does not say
/// what it has: the table is believed.
fn probed(world: &mut World, link: LinkId) {
    world.says(link, "-ERR no\r\n");
    world.says(link, "+OK\r\n*0\r\n");
}

/// A request has a tenth of a second.
fn impatient() -> World {
    let mut settings = settings();
    settings.timeouts.request_ms = 100;
    World::new(settings)
}

const NOBODY_TO_TELL: &str = "-ERR The client ID you want redirect to does not exist\r\n";

/// A session watches a key, on a link of its own.
fn watches(world: &mut World, session: SessionId) -> LinkId {
    world.asks(session, &["WATCH k"]);
    let own = world.connect();
    world.says(own, "+OK\r\n");
    own
}

#[test]
fn a_link_offered_to_somebody_who_is_gone_is_offered_to_the_next() {
    let mut settings = settings();
    settings.limits.pinned_links_max = 1;
    let mut world = World::new(settings);
    let [first, second, third] = [world.accept(), world.accept(), world.accept()];
    world.asks(first, &["BLPOP k 0"]);
    world.connect();
    world.asks(second, &["BLPOP k 0"]);
    world.asks(third, &["BLPOP k 0"]);
    assert!(world.connecting().is_empty());
    world.turn(|engine| {
        engine.handle_session_lost(first);
        engine.handle_session_lost(second);
    });
    world.wait_ms(1_200);
    assert!(
        !world.connecting().is_empty(),
        "the third waits for ever though the link is free"
    );
}

#[test]
fn who_has_no_answer_to_its_auth_does_not_ride_as_that_user() {
    let mut world = impatient();
    let session = world.accept();
    world.asks(session, &["AUTH bob old"]);
    let bob = world.connect();
    world.turn(|_| {});
    assert!(world.sent(bob).contains("AUTH"));
    world.wait_ms(300);
    world.says(bob, "-WRONGPASS no\r\n");
    world.asks(session, &["SET secret 1"]);
    assert!(
        !world.sent(bob).contains("secret"),
        "it rides as bob though nobody agreed"
    );
}

#[test]
fn a_link_on_which_somebody_else_logged_in_is_given_to_nobody() {
    let mut world = impatient();
    let session = world.accept();
    let own = watches(&mut world, session);
    world.asks(session, &["AUTH bob pw"]);
    world.wait_ms(300);
    world.says(own, "+OK\r\n");
    world.asks(session, &["UNWATCH"]);
    world.says(own, "+OK\r\n");
    world.turn(|_| {});
    world.sent(own);
    let stranger = world.accept();
    world.asks(stranger, &["WATCH z"]);
    assert!(
        !world.sent(own).contains("WATCH"),
        "a stranger gets a link that is bob"
    );
}

#[test]
fn a_transaction_that_selects_waits_for_the_answers_before_it() {
    let mut world = World::new_among(worker(0, 2), settings());
    let link = world.shared;
    let session = world.accept();
    world.asks(session, &["MULTI"]);
    probed(&mut world, link);
    world.may_ask(session, &["CLIENT LIST x", "SELECT none"]);
    world.asks(
        session,
        &["DISCARD", "CLIENT LIST", "MULTI", "SELECT 1", "EXEC"],
    );
    assert!(!world.sent(link).contains("SELECT"), "its EXEC waits");
    let asked = world.actions.iter().find_map(|action| match action {
        Action::Ask { ticket, .. } => Some(*ticket),
        _ => None,
    });
    let ticket = asked.expect("the other worker is asked for its list");
    world.turn(|engine| engine.handle_answer(ticket, Answer::Lines(Lines::default())));
    let own = world.connect();
    assert!(
        world.sent(own).contains("SELECT"),
        "what cannot be undone for certain is not done where everybody rides"
    );
    world.says(own, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    assert_eq!(world.closed_links(), [own]);
    let got = world.got(session);
    assert!(got.ends_with("+QUEUED\r\n*1\r\n+OK\r\n"), "{got}");
}

#[test]
fn exec_after_a_lost_watch_ends_a_new_one_too() {
    let mut world = World::new(settings());
    let session = world.accept();
    let own = watches(&mut world, session);
    world.lose(own);
    let own = watches(&mut world, session);
    world.asks(session, &["MULTI"]);
    let link = world.shared;
    probed(&mut world, link);
    world.asks(session, &["EXEC"]);
    world.says(own, "+OK\r\n");
    let got = world.got(session);
    assert!(got.ends_with("*-1\r\n"), "{got}");
    world.asks(session, &["SET x 1"]);
    assert!(
        world.sent(world.shared).contains("SET"),
        "still pinned, and still watching: its next EXEC may fail for it: {}",
        world.sent(own)
    );
}

#[test]
fn a_link_that_is_not_read_is_not_given_to_another() {
    let mut settings = settings();
    settings.limits.session_output_soft_bytes = 100;
    settings.limits.session_output_hard_bytes = 1_000;
    let mut world = World::new(settings);
    let session = world.accept();
    let own = watches(&mut world, session);
    world.asks(session, &["GET x", "GET y", "UNWATCH"]);
    world.actions.clear();
    let large = format!("$2000\r\n{}\r\n", "x".repeat(2_000));
    world.says(own, format!("{large}{large}+OK\r\n"));
    let count = |counts: fn(&Action) -> bool| world.actions.iter().filter(|&a| counts(a)).count();
    let off = count(|action| matches!(action, Action::ReadLink(_, false)));
    let on = count(|action| matches!(action, Action::ReadLink(_, true) | Action::CloseLink(_)));
    assert_eq!(off, on, "given back, but not read");
}

#[test]
fn who_came_before_the_server_asked_for_a_password_has_to_give_one_too() {
    let mut world = World::unconnected(worker(0, 1), settings());
    world.lose(world.shared);
    let early = world.accept();
    world.wait_ms(2_400);
    let link = *world.connecting().last().expect("it is tried again");
    world.turn(|engine| engine.handle_link_up(link));
    world.says(link, "-NOAUTH HELLO must be called\r\n");
    let late = world.accept();
    for session in [early, late] {
        world.asks(session, &["CLIENT LIST"]);
        assert!(world.got(session).starts_with("-NOAUTH"));
    }
}

#[test]
fn a_late_reply_on_a_pinned_link_does_not_disturb_a_large_request() {
    let mut world = impatient();
    let session = world.accept();
    let own = watches(&mut world, session);
    world.asks(session, &["GET x"]);
    world.wait_ms(300);
    let large = request(&["SET", "k", &"x".repeat(400_000)]);
    let (beginning, rest) = large.split_at(300_000);
    world.sends(session, beginning);
    world.turn(|engine| {
        engine.handle_session_bytes(session, rest);
        engine.handle_link_bytes(own, b"$1\r\n1\r\n");
    });
    world.says(own, "+OK\r\n");
    assert!(world.sent(own).ends_with("xxx\r\n"));
    assert!(world.got(session).ends_with("+OK\r\n"));
}

#[test]
fn links_given_back_count_against_the_bound() {
    let mut settings = settings();
    settings.limits.pinned_links_max = 2;
    let mut world = World::new(settings);
    // Links of different databases are no use to each other.
    for db in 1..8 {
        let session = world.accept();
        if db == 1 {
            world.may_ask(session, &["SELECT none"]);
        }
        world.asks(session, &[&format!("SELECT {db}")]);
        let shared = world.connect();
        let own = watches(&mut world, session);
        world.asks(session, &["UNWATCH"]);
        world.says(own, "+OK\r\n");
        world.asks(session, &["GET k"]);
        assert!(world.sent(shared).contains("GET"), "it needs no own link");
        assert!(db - world.closed_links().len() <= 2);
    }
}

#[test]
fn a_pinned_link_lost_in_the_middle_of_a_reply_is_counted_once() {
    let mut settings = settings();
    settings.limits.pinned_links_max = 1;
    let mut world = World::new(settings);
    let session = world.accept();
    let own = watches(&mut world, session);
    world.asks(session, &["GET x"]);
    world.says(own, format!("$1000000\r\n{}", "x".repeat(200_000)));
    world.lose(own);
    let other = world.accept();
    world.asks(other, &["WATCH k"]);
    assert_ne!(world.connect(), own);
}

/// The request is answered as if it came now, not as if it had come in time.
#[test]
fn who_leaves_while_the_link_that_stands_for_it_is_on_its_way_is_not_there() {
    let mut world = World::new(settings());
    let (told, reader) = (world.accept(), world.accept());
    world.asks(reader, &["CLIENT TRACKING ON REDIRECT 1"]);
    let [own, stands_for_it] = world.connecting()[..] else {
        panic!("two links are to be connected");
    };
    world.up(own);
    world.turn(|engine| engine.handle_session_lost(told));
    assert_eq!(world.got(reader), NOBODY_TO_TELL);
    assert_eq!(world.closed_links(), [stands_for_it]);
    world.asks(reader, &["GET k"]);
    assert!(
        world.sent(world.shared).contains("GET"),
        "its own link was given back"
    );
}

#[test]
fn who_was_there_when_it_was_refused_to_redirect_to_it_may_not_be_the_next_time() {
    let mut settings = settings();
    settings.limits.pinned_links_max = 0;
    settings.pinned_links_full = WhenFull::Refuse;
    let mut world = World::new(settings);
    let (told, reader) = (world.accept(), world.accept());
    world.asks(reader, &["CLIENT TRACKING ON REDIRECT 1"]);
    assert!(world.got(reader).contains("pinned-links-max"));
    world.turn(|engine| engine.handle_session_lost(told));
    world.asks(reader, &["CLIENT TRACKING ON REDIRECT 1"]);
    assert_eq!(world.got(reader), NOBODY_TO_TELL);
}

/// A link that is told to redirect to a connection that has gone in between would tell nobody.
#[test]
fn a_link_that_stands_for_nobody_who_tracks_is_closed() {
    let mut world = World::new(settings());
    let (_told, reader) = (world.accept(), world.accept());
    world.asks(reader, &["CLIENT TRACKING ON REDIRECT 1"]);
    let [own, stands_for_it] = world.connecting()[..] else {
        panic!("two links are to be connected");
    };
    world.up(own);
    world.up(stands_for_it);
    assert!(world.sent(own).contains("REDIRECT"));
    world.says(own, "+OK\r\n");
    assert_eq!(world.got(reader), "+OK\r\n");
    world.asks(reader, &["CLIENT TRACKING OFF"]);
    assert!(world.closed_links().is_empty());
    world.says(own, "+OK\r\n");
    assert_eq!(world.closed_links(), [own]);
    // Another one may have named it meanwhile; if nobody has, it goes as all go that are not needed.
    for _ in 0..12 {
        world.wait_ms(1_000);
        if world.sent(stands_for_it).contains("PING") {
            world.says(stands_for_it, "+PONG\r\n");
        }
    }
    assert_eq!(world.closed_links(), [own, stands_for_it]);
    assert_eq!(world.engine.counters().links, 1);
}

#[test]
fn where_an_exec_left_its_own_link_is_known_though_its_answer_came_too_late() {
    let mut world = impatient();
    let session = world.accept();
    world.asks(session, &["CLIENT TRACKING ON"]);
    let own = world.connect();
    world.says(own, "+OK\r\n");
    world.may_ask(session, &["SELECT none"]);
    world.asks(session, &["MULTI"]);
    let link = world.shared;
    probed(&mut world, link);
    world.asks(session, &["SELECT 5", "EXEC"]);
    world.wait_ms(300);
    assert!(world.got(session).contains("UNKNOWN"));
    world.says(own, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    world.asks(session, &["CLIENT INFO"]);
    world.says(link, "+OK\r\n");
    let info = world.got(session);
    assert!(info.contains(" db=5 "), "{info}");
}

/// The bytes of a large request are not kept, those of the next one are: nothing but the moment tells which are which.
#[test]
fn what_comes_behind_a_large_request_that_was_given_up_keeps_its_own_bytes() {
    let mut settings = settings();
    settings.timeouts.request_ms = 100;
    settings.limits.request_held_bytes_max = 1_000;
    let mut world = World::new(settings);
    let session = world.accept();
    world.asks(session, &["CLIENT TRACKING ON"]);
    let own = world.connect();
    world.says(own, "+OK\r\n");
    world.got(session);
    let large = request(&["SET", "k", &"x".repeat(5_000)]);
    let (front, behind) = large.split_at(3_000);
    world.sends(session, front);
    world.sends(session, behind);
    world.wait_ms(300);
    assert!(world.got(session).contains("UNKNOWN"));
    world.asks(session, &["SET y 1", "GET y"]);
    world.says(own, "+OK\r\n");
    world.turn(|_| {});
    let sent = world.sent(own);
    assert!(sent.ends_with("$3\r\nGET\r\n$1\r\ny\r\n"), "{sent}");
    world.says(own, "+OK\r\n$1\r\n1\r\n");
    assert_eq!(world.got(session), "+OK\r\n$1\r\n1\r\n");
    assert_eq!(world.engine.counters().held_bytes, 0);
}

/// The server takes it and says nothing: that is no longer than anything else may last, and the link is not lost for it.
#[test]
fn a_large_request_that_was_sent_is_answered_at_its_deadline_and_its_link_lives_on() {
    let mut settings = settings();
    settings.timeouts.request_ms = 100;
    settings.limits.request_held_bytes_max = 1_000;
    let mut world = World::new(settings);
    let session = world.accept();
    let large = request(&["SET", "k", &"x".repeat(5_000)]);
    let (front, behind) = large.split_at(3_000);
    world.sends(session, front);
    let aside = world.connect();
    world.sends(session, behind);
    world.wait_ms(300);
    let reply = world.got(session);
    assert!(
        reply.starts_with("-UNKNOWN") && reply.contains("100 ms"),
        "{reply}"
    );
    world.asks(session, &["GET k"]);
    world.says(world.shared, "$1\r\n1\r\n");
    assert_eq!(world.got(session), "$1\r\n1\r\n");
    world.says(aside, "+LATE\r\n");
    assert_eq!(world.got(session), "");
    world.sends(session, front);
    world.sends(session, behind);
    assert!(
        world.connecting().is_empty(),
        "the link that is free again is taken"
    );
    world.says(aside, "+OK\r\n");
    assert_eq!(world.got(session), "+OK\r\n");
    assert_eq!(world.engine.counters().held_bytes, 0);
}

#[test]
fn what_is_queued_is_checked_by_what_was_known_at_its_multi() {
    let mut world = World::new(settings());
    let (session, other) = (world.accept(), world.accept());
    world.asks(session, &["MULTI"]);
    // This server has no other commands.
    let has = ["get", "hello", "multi"].map(|name| format!("*2\r\n+{name}\r\n:-1\r\n"));
    world.says(world.shared, format!("*3\r\n{}", has.concat()));
    world.says(world.shared, "+OK\r\n+OK\r\n");
    assert_eq!(world.got(session), "+OK\r\n");
    world.asks(other, &["HELLO 3"]);
    let another = world.connect();
    world.lose(another);
    world.asks(session, &["GET k", "LPOP l"]);
    let replies = world.got(session);
    assert!(
        replies.starts_with("+QUEUED\r\n-ERR unknown command 'LPOP'"),
        "{replies}"
    );
}

/// A server may know more than the table; what is answered here knows what the table says.
#[test]
fn a_server_that_takes_fewer_arguments_changes_nothing_of_what_is_answered_here() {
    let mut world = World::new(settings());
    let session = world.accept();
    world.asks(session, &["SELECT"]);
    let sent = world.sent(world.shared);
    assert!(sent.ends_with("$7\r\nCOMMAND\r\n"), "{sent}");
    world.says(world.shared, "-ERR invalid DB index\r\n");
    world.says(world.shared, "*1\r\n*3\r\n$6\r\nselect\r\n:-1\r\n*0\r\n");
    assert_eq!(
        world.got(session),
        "-ERR wrong number of arguments for 'select' command\r\n"
    );
}

/// It may be busy with what the one who asks wants to end.
#[test]
fn nobody_waits_for_long_to_learn_what_a_server_knows() {
    let mut world = World::new(settings());
    let [busy, session] = [world.accept(), world.accept()];
    world.asks(busy, &["EVAL long 0"]);
    world.asks(session, &["CLIENT SETINFO lib-name a", "MULTI"]);
    world.wait_ms(900);
    assert_eq!(world.got(session), "");
    world.wait_ms(200);
    assert_eq!(world.got(session), "+OK\r\n");
    world.wait_ms(1_100);
    assert_eq!(world.got(session), "+OK\r\n");
}

#[test]
fn a_link_that_stands_for_somebody_stays_as_long_as_a_transaction_names_it() {
    let mut world = World::new(settings());
    let (_told, reader) = (world.accept(), world.accept());
    world.asks(reader, &["MULTI"]);
    let shared = world.shared;
    probed(&mut world, shared);
    world.asks(reader, &["CLIENT TRACKING ON REDIRECT 1"]);
    let stands_for_it = world.connect();
    assert_eq!(world.got(reader), "+OK\r\n+QUEUED\r\n");
    let quiet = |world: &mut World| {
        for _ in 0..15 {
            world.wait_ms(1_000);
            if world.sent(stands_for_it).contains("PING") {
                world.says(stands_for_it, "+PONG\r\n");
            }
        }
    };
    quiet(&mut world);
    assert_eq!(world.closed_links(), []);
    world.asks(reader, &["DISCARD"]);
    quiet(&mut world);
    assert_eq!(world.closed_links(), [stands_for_it]);
}

/// As the server would see it of the client itself: what it has is delivered, and a wait is over.
#[test]
fn who_leaves_while_it_waits_is_seen_to_leave_by_the_server() {
    let mut world = World::new(settings());
    let ended = |world: &World| {
        let ended = |action: &&Action| matches!(action, Action::EndLink(_));
        world.actions.iter().filter(ended).count()
    };
    for reply in ["*2\r\n$1\r\nq\r\n$1\r\ne\r\n", ""] {
        world.actions.clear();
        let session = world.accept();
        world.asks(session, &["BLPOP q 0"]);
        let [own] = world.connecting()[..] else {
            panic!("it waits on a link of its own");
        };
        world.turn(|engine| engine.handle_session_end(session));
        assert_eq!(ended(&world), 0, "the request is to be sent first");
        world.up(own);
        world.wait_ms(500);
        world.turn(|engine| engine.handle_session_hangup(session));
        assert!(world.sent(own).contains("BLPOP"));
        assert_eq!(ended(&world), 1, "that nothing more comes is said once");
        let unread = Action::ReadSession(session, false);
        assert!(world.actions.contains(&unread), "its end is read once");
        if reply.is_empty() {
            world.lose(own);
        } else {
            world.says(own, reply);
            assert_eq!(world.closed_links(), [own]);
        }
        world.turn(|_| {});
        assert_eq!(world.got(session), reply, "and nothing else");
        assert_eq!(world.closed_sessions(), [session]);
    }
}

/// When it is respool that leaves, a server must not drop what it has for the client.
#[test]
fn at_the_end_a_wait_is_ended_by_the_server_or_if_it_cannot_as_if_the_client_had_left() {
    for (said, ends) in [
        (&[":1\r\n"][..], false),
        // It was not heard of yet.
        (&[":0\r\n", ":1\r\n"], false),
        (&[":0\r\n", ":0\r\n"], true),
        (&["-NOPERM no\r\n"], true),
    ] {
        let mut world = World::new(settings());
        let (shared, session) = (world.shared, world.accept());
        world.asks(session, &["BLPOP q 0"]);
        let own = world.connect();
        world.turn(|_| {});
        world.turn(|engine| engine.handle_drain());
        for reply in said {
            world.wait_ms(200);
            let asked = world.sent(shared);
            assert_eq!(asked.matches("UNBLOCK").count(), 1, "{asked}");
            assert!(!world.actions.contains(&Action::EndLink(own)));
            world.says(shared, reply);
        }
        world.wait_ms(200);
        assert_eq!(world.sent(shared), "");
        assert_eq!(
            world.actions.contains(&Action::EndLink(own)),
            ends,
            "{said:?}"
        );
        world.says(own, "-UNBLOCKED now\r\n");
        assert_eq!(world.got(session), "-UNBLOCKED now\r\n");
        assert_eq!(world.closed_sessions(), [session]);
    }
}

/// A server that says nothing to that is as good as gone.
#[test]
fn who_has_left_does_not_wait_for_a_server_that_says_nothing() {
    let settings = settings();
    let stall_ms = settings.timeouts.link_stall_ms;
    let mut world = World::new(settings);
    let session = world.accept();
    world.asks(session, &["BLPOP q 0"]);
    world.connect();
    world.wait_ms(2 * stall_ms);
    assert_eq!(world.closed_sessions(), []);
    world.turn(|engine| engine.handle_session_end(session));
    // It has waited for longer than others may, and what comes now is its own all the same.
    world.wait_ms(stall_ms / 2);
    assert_eq!(
        (world.got(session), world.closed_sessions()),
        (String::new(), vec![])
    );
    world.wait_ms(stall_ms + 1_000);
    assert_eq!(world.closed_sessions(), [session]);
}

/// It owes nothing yet: what it is asked leaves at the end of this turn.
#[test]
fn a_link_that_nobody_needed_for_long_is_not_lost_in_the_turn_that_asks_and_looks_at_the_time() {
    let mut world = World::new(settings());
    let link = world.shared;
    let session = world.accept();
    world.wait_ms(2 * settings().timeouts.link_stall_ms);
    let tick = world.now.plus_ms(TICK_MS);
    world.turn_at(tick, |engine| {
        engine.handle_session_bytes(session, &requests(&["GET k"]));
    });
    assert_eq!(world.closed_links(), []);
    assert_eq!(world.sent(link).as_bytes(), requests(&["GET k"]));
    world.says(link, "$1\r\nv\r\n");
    assert_eq!(world.got(session), "$1\r\nv\r\n");
}

/// What is larger than is held is written as it comes, before the turn has ended.
#[test]
fn nor_is_a_link_of_its_own_on_which_a_large_request_begins() {
    let mut settings = settings();
    settings.limits.request_held_bytes_max = 1_500;
    let stall_ms = settings.timeouts.link_stall_ms;
    let mut world = World::new(settings);
    let session = world.accept();
    world.asks(session, &["WATCH k"]);
    let own = world.connect();
    world.says(own, "+OK\r\n");
    world.wait_ms(2 * stall_ms);
    let set = requests(&[&format!("SET k {}", "x".repeat(10_000))]);
    let (begins, ends) = set.split_at(3_000);
    for part in [begins, ends] {
        let tick = world.now.plus_ms(2 * stall_ms).plus_ms(TICK_MS);
        world.turn_at(tick, |engine| engine.handle_session_bytes(session, part));
        assert_eq!(world.closed_links(), []);
    }
    assert!(world.sent(own).as_bytes().ends_with(&set));
}

#[test]
fn what_a_server_refuses_for_a_while_is_no_right() {
    let mut world = World::new(settings());
    let link = world.shared;
    let session = world.accept();
    world.asks(session, &["MULTI"]);
    world.says(link, "-ERR no\r\n");
    world.says(
        link,
        "+OK\r\n-EXECABORT Transaction discarded because of: BUSY wait\r\n",
    );
    assert_eq!(world.got(session), "+OK\r\n");
    assert_eq!(world.closed_links(), []);
}

#[test]
fn what_was_asked_before_a_wait_for_copies_counts_whatever_the_rules() {
    let mut world = World::new(settings());
    let session = world.accept();
    world.asks(session, &["WAIT 1 500"]);
    let own = world.connect();
    world.turn(|_| {});
    // This is a Redis before 7.2.
    let asked = requests(&["HELLO 2", "WAIT 1 500"]);
    assert!(world.sent(own).as_bytes().ends_with(&asked));
    world.says(own, [HELLO, ":1\r\n"].concat());
    assert_eq!(world.got(session), ":1\r\n");
    // It would count who has nothing of it.
    world.asks(session, &["WAIT 1 500"]);
    world.says(own, "-NOPERM no\r\n:1\r\n");
    let got = world.got(session);
    assert!(
        got.starts_with("-ERR respool:") && got.ends_with("NOPERM no\r\n"),
        "{got}"
    );
}

/// WAIT travels on a link of the configured user. Its session is closed all the same when the
/// server deletes the user, also where none of the user's other sessions is there.
#[test]
fn wait_ends_when_its_user_is_deleted() {
    let mut world = World::new(settings());
    let session = world.accept();
    let bobs = log_in(&mut world, session, "AUTH bob pw");
    world.asks(session, &["WAIT 5 0"]);
    world.says(bobs, "-ERR WAIT cannot be used with wrong arguments\r\n");
    let own = world.connect();
    world.turn(|_| {});
    assert!(world.sent(own).contains("WAIT"));
    world.wait_ms(LINK_UNUSED_MS + 1_000);
    assert!(!world.closed_links().contains(&bobs), "a session needs it");
    assert_eq!(world.closed_sessions(), []);
    world.lose(bobs);
    let again = world.connecting();
    assert_eq!(again, [bobs]);
    world.turn(|engine| engine.handle_link_up(bobs));
    world.says(bobs, "-WRONGPASS no\r\n");
    assert_eq!(world.closed_sessions(), [session]);
}

#[test]
fn a_link_that_still_watches_is_given_to_nobody() {
    for ends in [&["UNWATCH"][..], &["MULTI", "DISCARD"]] {
        let mut world = World::new(settings());
        let link = world.shared;
        let session = world.accept();
        let own = watches(&mut world, session);
        world.got(session);
        world.asks(session, ends);
        if ends.len() > 1 {
            probed(&mut world, link);
        }
        assert!(world.sent(own).contains("UNWATCH"));
        world.says(own, "-NOPERM no\r\n");
        world.turn(|_| {});
        if ends.len() > 1 {
            assert_eq!(world.got(session), "+OK\r\n+OK\r\n");
            assert_eq!(world.closed_links(), [own]);
        } else {
            assert_eq!(world.got(session), "-NOPERM no\r\n");
            world.asks(session, &["GET k"]);
            assert!(
                world.sent(own).contains("GET"),
                "it watches, as with the server"
            );
        }
    }
}

/// Redis 8.2 loses the reply to an AUTH that fails there.
#[test]
fn an_exec_with_auth_that_is_not_answered_ends_its_link() {
    let mut world = impatient();
    let session = world.accept();
    world.asks(session, &["CLIENT TRACKING ON"]);
    let own = world.connect();
    world.says(own, "+OK\r\n");
    world.asks(session, &["MULTI"]);
    let link = world.shared;
    probed(&mut world, link);
    world.asks(session, &["AUTH bob pw", "EXEC"]);
    world.says(own, "+OK\r\n+QUEUED\r\n*1\r\n");
    world.wait_ms(300);
    assert_eq!(
        world.closed_links(),
        [own],
        "its next reply would be taken for the element"
    );
    assert_eq!(world.closed_sessions(), [session], "it tracked there");
}

/// A Redis 8.2 says nothing to an AUTH that fails within an EXEC: the result is one short, and whatever comes next
/// would complete it.
#[test]
fn an_auth_that_was_not_answered_was_not_right() {
    for (asked, short) in [
        (
            &["HELLO 3", "AUTH bob old"][..],
            "+QUEUED\r\n+QUEUED\r\n*2\r\n%0\r\n",
        ),
        (
            &["AUTH bob old", "SET a 1"],
            "+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n",
        ),
    ] {
        let mut world = World::new(settings());
        let [bob, session] = [world.accept(), world.accept()];
        let bobs = log_in(&mut world, bob, "AUTH bob old");
        world.asks(session, &["MULTI"]);
        let link = world.shared;
        probed(&mut world, link);
        world.asks(session, asked);
        world.asks(session, &["EXEC"]);
        let own = world.connect();
        world.turn(|_| {});
        let sent = world.sent(own);
        assert!(
            sent.ends_with("EXEC\r\n"),
            "nothing of ours stands behind it: {sent}"
        );
        world.says(
            own,
            ["+OK\r\n", short, ">2\r\n+invalidate\r\n*0\r\n"].concat(),
        );
        world.asks(session, &["GET secret"]);
        world.turn(|_| {});
        assert!(!world.sent(bobs).contains("secret"), "it rides as bob");
    }
}

/// A session logs in, by a probing link first; the link of its user is up then.
fn log_in(world: &mut World, session: SessionId, asked: &str) -> LinkId {
    world.asks(session, &[asked]);
    let probe = world.connect();
    world.says(probe, ["+OK\r\n", HELLO].concat());
    assert_eq!(world.got(session), "+OK\r\n");
    let own = world.connect();
    world.sent(own);
    own
}

/// A Redis 7.2 and newer says nothing to an AUTH that fails behind replies that are still to be sent.
#[test]
fn an_auth_that_is_refused_without_a_word_takes_nobodys_reply() {
    for (said, told) in [
        ("", "-WRONGPASS"),
        ("-WRONGPASS no\r\n", "-WRONGPASS no\r\n"),
        ("+OK\r\n", "+OK\r\n"),
    ] {
        let mut world = World::new(settings());
        let [bob, other] = [world.accept(), world.accept()];
        let bobs = log_in(&mut world, bob, "AUTH bob pw");
        world.asks(bob, &["GET a"]);
        world.asks(other, &["AUTH bob pw"]);
        world.asks(bob, &["GET b"]);
        let replies = ["$1\r\na\r\n", said, HELLO, "$1\r\nb\r\n"].concat();
        world.says(bobs, replies);
        assert_eq!(world.got(bob), "$1\r\na\r\n$1\r\nb\r\n");
        let got = world.got(other);
        assert!(got.starts_with(told), "{got}");
        assert_eq!(world.closed_links(), []);
    }
}

#[test]
fn nobody_harms_others_before_a_server_has_said_that_it_may() {
    let mut world = World::new(settings());
    let [victim, session] = [world.accept(), world.accept()];
    world.asks(victim, &["EVAL long 0"]);
    world.asks(session, &["CLIENT KILL TYPE normal"]);
    world.wait_ms(1_200);
    let got = world.got(session);
    let told =
        "-NOTSENT respool: the command was not executed; no answer whether this user may run it";
    assert!(got.starts_with(told), "{got}");
    assert_eq!(world.closed_sessions(), []);
}

/// Nor later than a moment after it has said so.
#[test]
fn a_right_that_was_had_once_is_none_while_the_server_says_nothing() {
    let mut world = World::new(settings());
    let [victim, session] = [world.accept(), world.accept()];
    let kills = ["CLIENT KILL ID 99"];
    world.may_ask(session, &kills);
    world.asks(victim, &["EVAL long 0"]);
    world.wait_ms(2_000);
    world.asks(session, &["CLIENT KILL TYPE normal"]);
    world.wait_ms(1_200);
    let got = world.got(session);
    let told =
        "-NOTSENT respool: the command was not executed; no answer whether this user may run it";
    assert!(got.starts_with(told), "{got}");
    assert_eq!(world.closed_sessions(), []);
}

/// What stands behind a wait that is over at once is executed, on the link that it needs; then the end is seen.
#[test]
fn who_leaves_has_executed_what_it_sent_behind_a_wait_that_was_none() {
    let mut world = World::new(settings());
    let session = world.accept();
    let own = watches(&mut world, session);
    world.got(session);
    world.asks(session, &["BLPOP q 0", "ECHO behind"]);
    world.turn(|engine| engine.handle_session_end(session));
    world.says(own, "*2\r\n$1\r\nq\r\n$1\r\ne\r\n");
    assert!(world.sent(own).contains("behind"));
    world.says(own, "$6\r\nbehind\r\n");
    assert!(world.got(session).ends_with("e\r\n$6\r\nbehind\r\n"));
    assert_eq!(world.closed_sessions(), [session]);
    // The server makes the next one wait.
    world.actions.clear();
    let session = world.accept();
    let own = watches(&mut world, session);
    world.asks(session, &["BLPOP q 0", "ECHO behind"]);
    world.turn(|engine| engine.handle_session_end(session));
    world.wait_ms(1_500);
    assert!(world.actions.contains(&Action::EndLink(own)));
}

#[test]
fn what_is_discarded_was_not_asked_of_the_server_either() {
    let mut world = World::new(settings());
    let link = world.shared;
    let session = world.accept();
    world.asks(session, &["MULTI"]);
    probed(&mut world, link);
    world.sent(link);
    world.asks(session, &["CLIENT UNPAUSE", "DISCARD"]);
    let asked = request(&["CLIENT", "UNPAUSE", "respool"]);
    assert_eq!(
        world.sent(link).as_bytes(),
        asked,
        "that is wrong everywhere"
    );
    world.says(link, "-ERR wrong number of arguments\r\n");
    assert_eq!(world.got(session), "+OK\r\n+QUEUED\r\n+OK\r\n");
    assert_eq!(world.sent(link), "");
}

/// A server answers the beginning of a block while the rest of it is on its way; the connection to it is lost.
fn lost_in_a_block(opened: &str) -> (World, LinkId, SessionId) {
    let mut world = World::new(world::settings());
    let (link, session) = (world.shared, world.accept());
    world.wait_ms(1_100);
    world.asks(session, &["MULTI"]);
    probed(&mut world, link);
    let multi = requests(&["MULTI"]).len();
    world.room.insert(link, multi + 10);
    world.asks(session, &["SET a 1", "SET b 2", "EXEC"]);
    world.says(link, opened);
    world.got(session);
    world.lose(link);
    assert_eq!(world.connect(), link);
    (world, link, session)
}

#[test]
fn a_block_whose_beginning_was_answered_is_sent_and_answered_from_its_beginning() {
    let (mut world, link, session) = lost_in_a_block("+OK\r\n");
    let block = requests(&["MULTI", "SET a 1", "SET b 2", "EXEC"]);
    assert_eq!(world.sent(link).as_bytes(), block);
    let other = world.accept();
    world.asks(other, &["GET a"]);
    world.says(link, "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n");
    world.says(link, "$1\r\n1\r\n");
    assert_eq!(world.got(session), "*2\r\n+OK\r\n+OK\r\n");
    assert_eq!(world.got(other), "$1\r\n1\r\n");
}

/// Without MULTI, what was behind it has been executed.
#[test]
fn what_was_sent_as_a_block_and_was_none_is_not_sent_again() {
    let (mut world, link, session) = lost_in_a_block("-NOPERM no\r\n");
    assert_eq!(world.sent(link), "");
    world.asks(session, &["GET a"]);
    world.says(link, "$1\r\n1\r\n");
    assert_eq!(world.got(session), "$1\r\n1\r\n");
}

const PUSH: &str = ">2\r\n$10\r\ninvalidate\r\n_\r\n";

/// The beginning and the rest of a SET whose value is too large to be held.
fn upload() -> [Vec<u8>; 2] {
    let mut beginning = request(&["SET", "k", &"v".repeat(300_000)]);
    let rest = beginning.split_off(200_000);
    [beginning, rest]
}

/// A push comes while a large request is on its way: the link is busy until the reply has come.
#[test]
fn link_in_an_upload_is_not_given_to_another() {
    let mut world = World::new(settings());
    let [first, second] = [world.accept(), world.accept()];
    world.sends(first, &upload()[0]);
    let link = world.connect();
    world.says(link, PUSH);
    world.sent(link);
    world.sends(second, &upload()[0]);
    let sent = world.sent(link);
    assert!(sent.is_empty(), "another session's bytes in the value");
    assert!(!world.connecting().is_empty());
}

/// The server sends a large line of MONITOR in parts. A push for the session comes in between.
#[test]
fn push_waits_for_the_end_of_what_monitor_shows() {
    let mut world = World::new_among(worker(0, 2), settings());
    let session = world.accept();
    world.asks(session, &["HELLO 3"]);
    world.connect();
    world.got(session);
    world.asks(session, &["MONITOR"]);
    let own = world.connect();
    world.says(own, "+OK\r\n");
    assert_eq!(world.got(session), "+OK\r\n");
    let line = format!("+1 [0 a:1] \"set\" \"k\" \"{}\"\r\n", "v".repeat(200_000));
    let (beginning, rest) = line.split_at(100_000);
    world.says(own, beginning);
    world.turn(|engine| {
        let push = PUSH.as_bytes().to_vec();
        engine.handle_question(1, 1, Question::Target { to: 1, pool: 0 });
        engine.handle_question(1, 2, Question::Tell { to: 1, push });
    });
    world.says(own, rest);
    assert!(
        world.got(session) == format!("{line}{PUSH}"),
        "the push comes behind the line"
    );
}

/// A large request on a session's own link reaches its deadline before that link is up. Its bytes leave
/// with it.
#[test]
fn upload_at_its_deadline_leaves_its_own_link() {
    let mut settings = settings();
    settings.timeouts.request_ms = 500;
    settings.timeouts.connect_ms = 60_000;
    let mut world = World::new(settings);
    let session = world.accept();
    world.asks(session, &["HELLO 3"]);
    world.connect();
    world.asks(session, &["CLIENT TRACKING ON"]);
    let [own] = world.connecting()[..] else {
        panic!("a session that tracks has a link of its own");
    };
    world.turn(|engine| engine.handle_link_up(own));
    world.wait_ms(720);
    assert!(world.got(session).contains("-NOTSENT "));
    for part in upload() {
        world.sends(session, &part);
    }
    world.wait_ms(720);
    let got = world.got(session);
    assert!(got.starts_with("-NOTSENT "), "{got}");
    if !world.closed_links().contains(&own) {
        world.says(own, HELLO);
    }
    assert!(!world.sent(own).contains("vvv"));
}
