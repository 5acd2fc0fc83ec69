//! The deadline of a request counts from its arrival, so it includes each wait before it is sent.

use crate::world::{HELLO, World, requests, settings};
use respool_engine::{Event, SessionId, Time};

const REQUEST_MS: u32 = 500;
const NOT_SENT: &str =
    "-NOTSENT respool: the command was not executed; no reply from server:1 within 500 ms\r\n";
const UNKNOWN: &str = "-UNKNOWN respool: the command was sent and may have been executed; no reply from server:1 within 500 ms\r\n";

/// A server that executes nothing from now on. Its kernel still accepts connections.
fn frozen() -> (World, SessionId) {
    let mut settings = settings();
    settings.timeouts.request_ms = REQUEST_MS;
    let mut world = World::new(settings);
    let session = world.accept();
    (world, session)
}

/// All output of a client until the deadline. The last of it comes at the deadline.
fn got_at_deadline(world: &mut World, session: SessionId) -> String {
    world.wait_ms(REQUEST_MS - 100);
    let before = world.got(session);
    world.wait_ms(150);
    let at_deadline = world.got(session);
    assert!(!at_deadline.is_empty(), "before: {before:?}");
    before + &at_deadline
}

/// If the server does not answer the handshake of a link to another database, SELECT fails at its
/// deadline.
#[test]
fn select_fails_at_its_deadline_during_a_handshake() {
    let (mut world, session) = frozen();
    world.may_ask(session, &["SELECT respool"]);
    world.asks(session, &["SELECT 5", "SET k v"]);
    let [link] = world.connecting()[..] else {
        panic!("a link to the database is to be connected");
    };
    world.turn(|engine| engine.handle_link_up(link));
    // No later request is executed, since it would run in another database than the client
    // believes.
    assert_eq!(got_at_deadline(&mut world, session), NOT_SENT);
    assert_eq!(world.closed_sessions(), [session]);
    world.sent(link);
    world.says(link, [HELLO, "+OK\r\n"].concat());
    assert_eq!(world.sent(link) + &world.sent(world.shared), "");
}

/// A request's deadline includes the wait for the question about its command.
#[test]
fn question_in_front_of_a_command_takes_of_its_time() {
    let (mut world, session) = frozen();
    world.asks(session, &["SELECT 5"]);
    assert_eq!(world.asked(world.shared)[0][0], "SELECT");
    assert_eq!(got_at_deadline(&mut world, session), NOT_SENT);
    let mut settings = settings();
    settings.timeouts.request_ms = 1_500;
    let mut world = World::new(settings);
    let session = world.accept();
    world.asks(session, &["FOO k"]);
    // The session waits a second for the answer to the question. Then the command waits on a pinned
    // link for the rest of its time.
    world.wait_ms(1_350);
    assert_eq!(world.got(session), "");
    world.wait_ms(250);
    assert!(world.got(session).starts_with("-NOTSENT "));
}

/// Requests that were read together fail together: the second waits for the first.
#[test]
fn request_behind_one_that_was_given_up_has_no_time_of_its_own() {
    for (first, expected) in [("GET a", UNKNOWN), ("SUBSCRIBE c", "-NOTSENT ")] {
        let (mut world, session) = frozen();
        world.may_ask(session, &["SELECT respool"]);
        world.asks(session, &[first, "SELECT 5"]);
        let got = got_at_deadline(&mut world, session);
        assert!(got.starts_with(expected), "{got:?}");
        assert!(got.ends_with(NOT_SENT), "{got:?}");
    }
}

/// The server answers all requests on the shared link.
fn answer(world: &mut World) {
    for args in world.asked(world.shared) {
        let reply = match args[0].as_str() {
            "GET" => "$1\r\nv\r\n",
            _ => "+OK\r\n",
        };
        world.says(world.shared, reply);
    }
}

/// A client whose HELLO fails is closed, as by a server that cannot be reached.
#[test]
fn hello_ends_with_its_connection_at_its_deadline() {
    let (mut world, session) = frozen();
    world.asks(session, &["HELLO 3"]);
    let link = world.connecting()[0];
    world.turn(|engine| engine.handle_link_up(link));
    world.wait_ms(REQUEST_MS - 100);
    assert!(world.closed_sessions().is_empty());
    world.wait_ms(150);
    assert_eq!(world.closed_sessions(), [session]);
}

/// An outage that outlasts the deadline does not extend the wait of these requests.
#[test]
fn request_on_a_pinned_link_fails_at_its_deadline() {
    let mut settings = settings();
    settings.timeouts.request_ms = REQUEST_MS;
    settings.timeouts.outage_hold_ms = 4 * REQUEST_MS;
    settings.limits.request_held_bytes_max = 1_000;
    let large = format!("SET k {}", "v".repeat(5_000));
    for request in ["MONITOR", "WATCH k", large.as_str()] {
        let mut world = World::new(settings.clone());
        let session = world.accept();
        // A large request does not come whole.
        let bytes = requests(&[request]);
        let (first, rest) = bytes.split_at(bytes.len() * 3 / 4);
        world.sends(session, first);
        world.sends(session, rest);
        let [link] = world.connecting()[..] else {
            panic!("a link of its own is to be connected");
        };
        world.turn(|engine| engine.handle_link_up(link));
        let got = got_at_deadline(&mut world, session);
        assert!(got.starts_with("-NOTSENT "), "{got:?}");
        assert!(!world.sent(link).contains(request), "{request}");
        // The link gets no further.
        world.wait_ms(REQUEST_MS);
        assert!(!world.connecting().contains(&link), "{request}");
    }
}

/// MULTI gets no error. Otherwise the requests after it would be executed one by one.
#[test]
fn transaction_fails_whole_at_its_deadline() {
    for later in [&["SET a 1", "EXEC"][..], &[]] {
        let (mut world, session) = frozen();
        let first = [&["MULTI"][..], &["SET a 1", "EXEC"][later.len()..]].concat();
        world.asks(session, &first);
        world.sent(world.shared);
        world.wait_ms(REQUEST_MS - 100);
        if !later.is_empty() {
            world.asks(session, later);
        }
        world.wait_ms(150);
        let got = world.got(session);
        assert!(got.starts_with("+OK\r\n"), "{got:?}");
        world.wait_ms(REQUEST_MS);
        let got = got + &world.got(session);
        let sent = world.sent(world.shared);
        assert!(got.contains("+QUEUED\r\n"), "{got:?}");
        // The error to EXEC tells the fate of the whole transaction.
        let said = match sent.contains("SET") {
            true => UNKNOWN,
            false => NOT_SENT,
        };
        assert!(got.ends_with(said), "{got:?}");
        assert!(!later.is_empty() || said == NOT_SENT, "{sent:?}");
    }
}

/// Inline requests with empty lines between them have a deadline as all others have.
#[test]
fn typed_requests_fail_at_their_deadline() {
    let (mut world, session) = frozen();
    world.sends(
        session,
        b"MULTI\r\n\r\nSET a 1\r\nexec\r\n*0\r\nSET b 1\r\n",
    );
    world.sent(world.shared);
    world.wait_ms(REQUEST_MS + 50);
    let expected = "+OK\r\n+QUEUED\r\n".to_owned() + &NOT_SENT.repeat(2);
    assert_eq!(world.got(session), expected);
    world.wait_ms(REQUEST_MS);
    assert_eq!(world.got(session), "");
    assert!(!world.sent(world.shared).contains("SET"));
}

/// The deadline of a request after BLPOP begins when BLPOP is answered.
#[test]
fn request_behind_a_blocking_one_waits_without_a_deadline() {
    let (mut world, session) = frozen();
    world.asks(session, &["BLPOP q 0", "GET k"]);
    let own = world.connect();
    assert_eq!(world.asked(own).len(), 1);
    world.wait_ms(10 * REQUEST_MS);
    assert_eq!(world.got(session), "");
    world.says(own, "*2\r\n$1\r\nq\r\n$1\r\nv\r\n");
    world.got(session);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["GET k"]));
    world.wait_ms(REQUEST_MS - 100);
    world.says(world.shared, "$1\r\nv\r\n");
    assert_eq!(world.got(session), "$1\r\nv\r\n");
}

/// A pipeline that is executed step by step takes longer than the deadline of a request.
#[test]
fn pipeline_that_makes_progress_has_no_deadline_as_a_whole() {
    let (mut world, session) = frozen();
    let all = ["GET k", "SELECT 0"].repeat(4);
    world.asks(session, &all);
    for _ in 0..8 {
        world.wait_ms(REQUEST_MS * 2 / 5);
        answer(&mut world);
    }
    assert_eq!(world.got(session), "$1\r\nv\r\n+OK\r\n".repeat(4));
}

/// A client that takes no replies keeps its own requests waiting.
#[test]
fn wait_for_the_client_does_not_count() {
    let mut settings = settings();
    settings.timeouts.request_ms = REQUEST_MS;
    settings.limits.session_output_soft_bytes = 1_000;
    let mut world = World::new(settings);
    let session = world.accept();
    world.slow.insert(session);
    world.asks(session, &["GET large", "SELECT 0", "GET k"]);
    world.sent(world.shared);
    let large = format!("$5000\r\n{}\r\n", "x".repeat(5_000));
    world.says(world.shared, &large);
    world.wait_ms(4 * REQUEST_MS);
    world.takes(session);
    world.wait_ms(100);
    assert_eq!(world.sent(world.shared).as_bytes(), requests(&["GET k"]));
    world.wait_ms(REQUEST_MS - 200);
    let got = world.got(session);
    assert!(got.ends_with("x\r\n+OK\r\n"), "{got:?}");
}

/// The operator is told once a minute that a server does not answer in time.
#[test]
fn server_that_misses_deadlines_is_named_once_a_minute() {
    let mut settings = settings();
    settings.timeouts.request_ms = 1_000;
    settings.timeouts.link_stall_ms = 600_000;
    let mut world = World::new(settings);
    let session = world.accept();
    let told = |world: &World| {
        let of_timeouts = |event: &&Event| {
            matches!(event, Event::BoundReached { name, effect }
                if *name == "request-timeout-ms" && effect.starts_with("server:1 has not answered"))
        };
        world.events.iter().filter(of_timeouts).count()
    };
    for (nth, expected) in [(0, 1), (1, 1), (40, 1), (70, 2)] {
        while world.now.since_ms(Time(0)) < nth * 1_000 {
            world.wait_ms(500);
        }
        world.asks(session, &["SET k v"]);
        world.wait_ms(1_200);
        assert!(world.got(session).starts_with("-UNKNOWN"));
        assert_eq!(told(&world), expected, "after {nth} s");
    }
}
