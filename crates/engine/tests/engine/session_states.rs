//! The states of sessions and links when they end at a bad moment, each in a history of its own.

use crate::world::{HELLO, World, request, requests, settings, worker};
use respool_engine::limits::LINK_UNUSED_MS;
use respool_engine::settings::WhenFull;
use respool_engine::{
    Action, ClientLines, LinkId, SessionId, TICK_MS, TargetQuery, WorkerQuery, WorkerReply,
};

/// A server answers the questions before the first transaction: COMMAND, and MULTI with EXEC. It
/// gives no list of commands, so the table counts.
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

const NO_REDIRECT_TARGET: &str = "-ERR The client ID you want redirect to does not exist\r\n";

/// A session watches a key, on a pinned link.
fn watches(world: &mut World, session: SessionId) -> LinkId {
    world.asks(session, &["WATCH k"]);
    let own = world.connect();
    world.says(own, "+OK\r\n");
    own
}

/// If the session that gets a freed link has left, the next waiting session gets the link.
#[test]
fn freed_link_goes_past_a_waiter_that_left() {
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
        "the third session waits for ever though the link is free"
    );
}

/// A session whose AUTH has no answer is not attached to links of that user.
#[test]
fn session_without_an_answer_to_auth_is_not_that_user() {
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
        "the session is bob though no server agreed"
    );
}

/// A pinned link on which a session has logged in as another user is not reused.
#[test]
fn link_with_another_login_is_not_reused() {
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
        "another session gets a link that is bob"
    );
}

/// A transaction with SELECT waits for earlier replies. On a shared link a SELECT cannot be undone
/// for sure.
#[test]
fn transaction_with_select_waits_for_earlier_replies() {
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
    assert!(!world.sent(link).contains("SELECT"), "the EXEC waits");
    let asked = world.actions.iter().find_map(|action| match action {
        Action::Ask { ticket, .. } => Some(*ticket),
        _ => None,
    });
    let ticket = asked.expect("the other worker is asked for its list");
    world.turn(|engine| engine.handle_answer(ticket, WorkerReply::Lines(ClientLines::default())));
    let own = world.connect();
    assert!(
        world.sent(own).contains("SELECT"),
        "a SELECT on the shared link could not be undone for sure"
    );
    world.says(own, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    assert_eq!(world.closed_links(), [own]);
    let got = world.got(session);
    assert!(got.ends_with("+QUEUED\r\n*1\r\n+OK\r\n"), "{got}");
}

/// EXEC that fails for a lost WATCH ends a newer WATCH, too.
#[test]
fn exec_after_a_lost_watch_ends_a_new_watch() {
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
        "the session is still pinned and watches, so its next EXEC may fail: {}",
        world.sent(own)
    );
}

/// A link that is given back is read again or closed.
#[test]
fn unread_link_is_not_given_back_unread() {
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
    assert_eq!(off, on, "the link was given back unread");
}

/// A session that came before the server asked for a password must authenticate, too.
#[test]
fn early_session_must_authenticate_too() {
    let mut world = World::unconnected(worker(0, 1), settings());
    world.lose(world.shared);
    let early = world.accept();
    world.wait_ms(2_400);
    let link = *world.connecting().last().expect("the link is tried again");
    world.turn(|engine| engine.handle_link_up(link));
    world.says(link, "-NOAUTH HELLO must be called\r\n");
    let late = world.accept();
    for session in [early, late] {
        world.asks(session, &["CLIENT LIST"]);
        assert!(world.got(session).starts_with("-NOAUTH"));
    }
}

/// A late reply on a pinned link does not disturb a large request on it.
#[test]
fn late_reply_on_a_pinned_link_spares_a_large_request() {
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

/// Links that were given back count towards the bound of pinned links.
#[test]
fn idle_links_count_towards_the_bound() {
    let mut settings = settings();
    settings.limits.pinned_links_max = 2;
    let mut world = World::new(settings);
    // A link to one database serves no other.
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
        assert!(
            world.sent(shared).contains("GET"),
            "the session needs no pinned link"
        );
        assert!(db - world.closed_links().len() <= 2);
    }
}

/// A pinned link that is lost in the middle of a reply is counted once.
#[test]
fn pinned_link_lost_inside_a_reply_is_counted_once() {
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

/// A redirect whose target leaves while the stand-in connects is refused, as if it came now.
#[test]
fn target_that_leaves_before_its_stand_in_is_up_is_gone() {
    let mut world = World::new(settings());
    let (told, reader) = (world.accept(), world.accept());
    world.asks(reader, &["CLIENT TRACKING ON REDIRECT 1"]);
    let [own, stands_for_it] = world.connecting()[..] else {
        panic!("two links are to be connected");
    };
    world.up(own);
    world.turn(|engine| engine.handle_session_lost(told));
    assert_eq!(world.got(reader), NO_REDIRECT_TARGET);
    assert_eq!(world.closed_links(), [stands_for_it]);
    world.asks(reader, &["GET k"]);
    assert!(
        world.sent(world.shared).contains("GET"),
        "the pinned link was given back"
    );
}

/// A redirect that was refused at a bound looks its target up again the next time.
#[test]
fn target_is_looked_up_again_after_a_refusal() {
    let mut settings = settings();
    settings.limits.pinned_links_max = 0;
    settings.pinned_links_full = WhenFull::Refuse;
    let mut world = World::new(settings);
    let (told, reader) = (world.accept(), world.accept());
    world.asks(reader, &["CLIENT TRACKING ON REDIRECT 1"]);
    assert!(world.got(reader).contains("pinned-links-max"));
    world.turn(|engine| engine.handle_session_lost(told));
    world.asks(reader, &["CLIENT TRACKING ON REDIRECT 1"]);
    assert_eq!(world.got(reader), NO_REDIRECT_TARGET);
}

/// A stand-in that no session redirects to is closed. A redirect to its lost connection would have
/// no effect.
#[test]
fn stand_in_without_a_tracking_session_is_closed() {
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
    // Another session may have named the target meanwhile. Without one, the stand-in closes as an
    // unused link does.
    for _ in 0..12 {
        world.wait_ms(1_000);
        if world.sent(stands_for_it).contains("PING") {
            world.says(stands_for_it, "+PONG\r\n");
        }
    }
    assert_eq!(world.closed_links(), [own, stands_for_it]);
    assert_eq!(world.engine.counters().links, 1);
}

/// The database in which an EXEC left its pinned link is known even if its reply came too late.
#[test]
fn database_of_a_late_exec_is_known() {
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

/// The bytes of a large request are not kept for a retry, those of the next request are. Both may
/// be in one buffer.
#[test]
fn request_after_an_abandoned_upload_keeps_its_bytes() {
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

/// A large request without a reply fails at its deadline. That is no longer than any request may
/// last, so its link lives on.
#[test]
fn sent_large_request_fails_at_its_deadline_alone() {
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
    assert!(world.connecting().is_empty(), "the free link is taken");
    world.says(aside, "+OK\r\n");
    assert_eq!(world.got(session), "+OK\r\n");
    assert_eq!(world.engine.counters().held_bytes, 0);
}

/// A queued request is checked by the list of commands that counted at its MULTI.
#[test]
fn queued_request_is_checked_by_the_list_at_its_multi() {
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

/// A server may accept fewer arguments than the table. Commands that respool answers need those of
/// the table.
#[test]
fn local_commands_need_the_arguments_of_the_table() {
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

/// Sessions wait a short time only for the list of commands. The server may be busy with the
/// command that the request is meant to end.
#[test]
fn questions_about_commands_hold_sessions_briefly() {
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

/// A stand-in stays while a queued request names it.
#[test]
fn stand_in_stays_while_a_transaction_names_it() {
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

/// The server sees the end of a client that waits, as without respool: its replies are delivered,
/// and the wait ends.
#[test]
fn server_sees_that_a_waiting_client_has_left() {
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
            panic!("the session waits on a pinned link");
        };
        world.turn(|engine| engine.handle_session_end(session));
        assert_eq!(ended(&world), 0, "the request is to be sent first");
        world.up(own);
        world.wait_ms(500);
        world.turn(|engine| engine.handle_session_hangup(session));
        assert!(world.sent(own).contains("BLPOP"));
        assert_eq!(ended(&world), 1, "the end is sent once");
        let unread = Action::ReadSession(session, false);
        assert!(
            world.actions.contains(&unread),
            "the client's end is read once"
        );
        if reply.is_empty() {
            world.lose(own);
        } else {
            world.says(own, reply);
            assert_eq!(world.closed_links(), [own]);
        }
        world.turn(|_| {});
        assert_eq!(world.got(session), reply, "no other reply comes");
        assert_eq!(world.closed_sessions(), [session]);
    }
}

/// When respool stops, the server ends a wait by CLIENT UNBLOCK, so that it drops no element. If it
/// cannot, respool ends its side of the link.
#[test]
fn stopping_respool_ends_a_wait_by_unblock_or_its_end() {
    for (said, ends) in [
        (&[":1\r\n"][..], false),
        // The server had not read the BLPOP yet.
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

/// A client has left and its server stays silent: the session ends.
#[test]
fn session_that_left_ends_at_a_silent_server() {
    let settings = settings();
    let stall_ms = settings.timeouts.link_stall_ms;
    let mut world = World::new(settings);
    let session = world.accept();
    world.asks(session, &["BLPOP q 0"]);
    world.connect();
    world.wait_ms(2 * stall_ms);
    assert_eq!(world.closed_sessions(), []);
    world.turn(|engine| engine.handle_session_end(session));
    // The session has waited for longer than other requests may, and the reply is still its own.
    world.wait_ms(stall_ms / 2);
    assert_eq!(
        (world.got(session), world.closed_sessions()),
        (String::new(), vec![])
    );
    world.wait_ms(stall_ms + 1_000);
    assert_eq!(world.closed_sessions(), [session]);
}

/// A link that was idle for long is not stalled in the turn that puts a request on it: the request
/// leaves at the end of the turn.
#[test]
fn idle_link_is_not_stalled_in_the_turn_of_a_request() {
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

/// A large request is written as it comes, before the end of the turn. An idle pinned link is not
/// stalled in that turn, either.
#[test]
fn idle_pinned_link_is_not_stalled_by_a_large_request() {
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

/// A temporary error to the probe of MULTI and EXEC does not mean that the user may not open
/// transactions.
#[test]
fn temporary_error_denies_no_transaction() {
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

/// WAIT follows a write on its link. If the server refuses that write, the number would count for
/// nothing, so the client gets an error.
#[test]
fn wait_needs_its_write_in_front() {
    let mut world = World::new(settings());
    let session = world.accept();
    world.asks(session, &["WAIT 1 500"]);
    let own = world.connect();
    world.turn(|_| {});
    // The server is a Redis before 7.2.
    let asked = requests(&["HELLO 2", "WAIT 1 500"]);
    assert!(world.sent(own).as_bytes().ends_with(&asked));
    world.says(own, [HELLO, ":1\r\n"].concat());
    assert_eq!(world.got(session), ":1\r\n");
    // WAIT would also count replicas without the session's writes.
    world.asks(session, &["WAIT 1 500"]);
    world.says(own, "-NOPERM no\r\n:1\r\n");
    let got = world.got(session);
    assert!(
        got.starts_with("-ERR respool:") && got.ends_with("NOPERM no\r\n"),
        "{got}"
    );
}

/// WAIT goes on a link of the configured user. Its session is closed all the same when the server
/// deletes the user, even if the user has no other session.
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
    assert!(
        !world.closed_links().contains(&bobs),
        "a session is attached to it"
    );
    assert_eq!(world.closed_sessions(), []);
    world.lose(bobs);
    let again = world.connecting();
    assert_eq!(again, [bobs]);
    world.turn(|engine| engine.handle_link_up(bobs));
    world.says(bobs, "-WRONGPASS no\r\n");
    assert_eq!(world.closed_sessions(), [session]);
}

/// A link whose UNWATCH was refused still watches: it is kept or closed, and not reused.
#[test]
fn link_that_still_watches_is_not_reused() {
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
                "the session watches, as at the server"
            );
        }
    }
}

/// Redis 8.2 loses the reply to an AUTH that fails within EXEC, so the link is closed.
#[test]
fn exec_with_an_unanswered_auth_ends_its_link() {
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
        "the next reply would be taken for the element"
    );
    assert_eq!(
        world.closed_sessions(),
        [session],
        "the session tracked on this link"
    );
}

/// Redis 8.2 does not answer an AUTH that fails within EXEC. The result is one element short, and
/// the next reply would complete it.
#[test]
fn unanswered_auth_in_exec_was_wrong() {
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
            "respool sends no request after it: {sent}"
        );
        world.says(
            own,
            ["+OK\r\n", short, ">2\r\n+invalidate\r\n*0\r\n"].concat(),
        );
        world.asks(session, &["GET secret"]);
        world.turn(|_| {});
        assert!(
            !world.sent(bobs).contains("secret"),
            "the session is attached to the link of bob"
        );
    }
}

/// A session logs in over a probing link. The link of its user is up then.
fn log_in(world: &mut World, session: SessionId, asked: &str) -> LinkId {
    world.asks(session, &[asked]);
    let probe = world.connect();
    world.says(probe, ["+OK\r\n", HELLO].concat());
    assert_eq!(world.got(session), "+OK\r\n");
    let own = world.connect();
    world.sent(own);
    own
}

/// Redis 7.2 and newer does not answer an AUTH that fails while earlier replies wait for output. No
/// other reply is taken for it.
#[test]
fn unanswered_auth_takes_no_reply_of_others() {
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

/// The session's command fails because its right is unknown, and closes no session.
fn assert_right_is_unknown(world: &mut World, session: SessionId) {
    let got = world.got(session);
    assert!(
        got.starts_with("-NOTSENT respool: the command was not executed; "),
        "{got}"
    );
    let told = "did not say whether this user may run the command";
    assert!(got.contains(told), "{got}");
    assert_eq!(world.closed_sessions(), []);
}

/// CLIENT KILL and its like fail until the server has said that the user may send them.
#[test]
fn harmful_command_needs_the_servers_consent() {
    let mut world = World::new(settings());
    let [victim, session] = [world.accept(), world.accept()];
    world.asks(victim, &["EVAL long 0"]);
    world.asks(session, &["CLIENT KILL TYPE normal"]);
    world.wait_ms(1_200);
    assert_right_is_unknown(&mut world, session);
}

/// An old right to a harmful command does not count while the server is silent.
#[test]
fn old_right_to_a_harmful_command_does_not_count() {
    let mut world = World::new(settings());
    let [victim, session] = [world.accept(), world.accept()];
    let kills = ["CLIENT KILL ID 99"];
    world.may_ask(session, &kills);
    world.asks(victim, &["EVAL long 0"]);
    world.wait_ms(2_000);
    world.asks(session, &["CLIENT KILL TYPE normal"]);
    world.wait_ms(1_200);
    assert_right_is_unknown(&mut world, session);
}

/// A client leaves. Requests that it sent after a blocking command that did not wait are executed
/// on its link, and then the link ends.
#[test]
fn requests_after_an_ended_wait_run_before_the_end() {
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
    // The server makes the next blocking command wait.
    world.actions.clear();
    let session = world.accept();
    let own = watches(&mut world, session);
    world.asks(session, &["BLPOP q 0", "ECHO behind"]);
    world.turn(|engine| engine.handle_session_end(session));
    world.wait_ms(1_500);
    assert!(world.actions.contains(&Action::EndLink(own)));
}

/// The probe of a queued CLIENT UNPAUSE has no effect, so a DISCARD leaves none.
#[test]
fn discarded_command_is_not_executed_by_its_probe() {
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
        "a server refuses the probe"
    );
    world.says(link, "-ERR wrong number of arguments\r\n");
    assert_eq!(world.got(session), "+OK\r\n+QUEUED\r\n+OK\r\n");
    assert_eq!(world.sent(link), "");
}

/// A server answers the first commands of a block while the rest is in flight, and then the link is
/// lost.
fn lost_in_a_block(opened: &str) -> (World, LinkId, SessionId) {
    let mut world = World::new(crate::world::settings());
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

/// A block whose first replies came before its link was lost is sent again whole, and answered
/// whole.
#[test]
fn half_answered_block_is_sent_again_whole() {
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

/// If the server refused the MULTI of a block, the commands after it have run. The block is not
/// sent again.
#[test]
fn block_without_its_multi_is_not_sent_again() {
    let (mut world, link, session) = lost_in_a_block("-NOPERM no\r\n");
    assert_eq!(world.sent(link), "");
    world.asks(session, &["GET a"]);
    world.says(link, "$1\r\n1\r\n");
    assert_eq!(world.got(session), "$1\r\n1\r\n");
}

const PUSH: &str = ">2\r\n$10\r\ninvalidate\r\n_\r\n";

/// The beginning and the rest of a SET whose value is too large to hold.
fn upload() -> [Vec<u8>; 2] {
    let mut beginning = request(&["SET", "k", &"v".repeat(300_000)]);
    let rest = beginning.split_off(200_000);
    [beginning, rest]
}

/// A push comes while a large request is in flight: the link is busy until the reply has come.
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

/// The server sends a long line of MONITOR in parts. A push for the session waits for the end of
/// the line.
#[test]
fn push_waits_for_the_end_of_a_monitor_line() {
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
        engine.handle_question(
            1,
            1,
            WorkerQuery::Target(TargetQuery::Find { to: 1, pool: 0 }),
        );
        engine.handle_question(1, 2, WorkerQuery::Target(TargetQuery::Push { to: 1, push }));
    });
    world.says(own, rest);
    assert!(
        world.got(session) == format!("{line}{PUSH}"),
        "the push comes after the line"
    );
}

/// A large request on a pinned link reaches its deadline before that link is up. Its bytes are
/// dropped.
#[test]
fn upload_at_its_deadline_leaves_its_pinned_link() {
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
