//! Logins: whether servers still accept the configured one, and how clients authenticate.

use std::net::SocketAddr;

use crate::world::{HELLO, World, requests, settings};
use respool_engine::settings::{Credentials, User};
use respool_engine::{Event, LinkId, Peer, SessionId};

const NOAUTH: &str = "-NOAUTH Authentication required.\r\n";
/// Redis's error to a HELLO without a login.
const HELLO_REFUSED: &str =
    "-NOAUTH HELLO must be called with the client already authenticated\r\n";

/// A GET of this session is answered by the server.
fn is_served(world: &mut World, session: SessionId, link: LinkId) {
    world.asks(session, &["GET k"]);
    assert_eq!(world.sent(link).as_bytes(), requests(&["GET k"]));
    world.says(link, "$1\r\nv\r\n");
    assert_eq!(world.got(session), "$1\r\nv\r\n");
}

/// A GET of this session is refused, and reaches no server.
fn must_log_in(world: &mut World, session: SessionId, link: LinkId) {
    world.asks(session, &["GET k"]);
    assert_eq!(world.got(session), NOAUTH);
    assert_eq!(world.sent(link), "");
}

/// Lines of the log about logins.
fn told(world: &mut World) -> Vec<String> {
    let events = std::mem::take(&mut world.events);
    let texts = events.into_iter().filter_map(|event| match event {
        Event::LoginWithdrawn { reason, .. } => Some(format!("withdrawn: {reason}")),
        Event::LoginAccepted { .. } => Some("accepted".to_owned()),
        _ => None,
    });
    texts.collect()
}

/// A link to another database is refused: the old link gets no new sessions. Its sessions keep it.
#[test]
fn refused_handshake_of_any_link_stops_newcomers_alone() {
    let mut world = World::new(settings());
    let link = world.shared;
    let (old, other) = (world.accept(), world.accept());
    is_served(&mut world, old, link);
    world.may_ask(other, &["SELECT respool"]);
    world.asks(other, &["SELECT 5"]);
    let [refused] = world.connecting()[..] else {
        panic!("a link of the database is to be connected");
    };
    world.turn(|engine| engine.handle_link_up(refused));
    world.says(refused, HELLO_REFUSED);
    assert!(world.got(other).starts_with("-NOAUTH "));
    let newcomer = world.accept();
    must_log_in(&mut world, newcomer, link);
    is_served(&mut world, old, link);
    is_served(&mut world, other, link);
    let said = told(&mut world);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("withdrawn: NOAUTH "), "{said:?}");
    // A repeated refusal is not reported.
    world.asks(other, &["SELECT 6"]);
    let refused = world
        .connecting()
        .pop()
        .expect("a link to this database is tried");
    world.turn(|engine| engine.handle_link_up(refused));
    world.says(refused, HELLO_REFUSED);
    assert!(told(&mut world).is_empty());
    world.got(other);
    // A handshake is accepted again.
    world.asks(other, &["SELECT 7"]);
    let accepted = world
        .connecting()
        .pop()
        .expect("a link to this database is tried");
    world.up(accepted);
    assert_eq!(world.got(other), "+OK\r\n");
    is_served(&mut world, newcomer, link);
    let late = world.accept();
    is_served(&mut world, late, link);
    assert_eq!(told(&mut world), ["accepted"]);
}

/// A world whose probing link is up, and that link.
fn checked(credentials: Option<&str>) -> (World, LinkId, SessionId) {
    let mut settings = settings();
    settings.timeouts.login_check_ms = 500;
    if let respool_engine::settings::PoolKind::Single(server) = &mut settings.pools[0].kind {
        server.credentials = credentials.map(|password| Credentials {
            user: Some("app".to_owned()),
            password: password.to_owned(),
            source: None,
        });
    }
    let mut world = World::new(settings);
    world.wait_ms(2_000);
    assert!(
        world.connecting().is_empty(),
        "without sessions there is no check"
    );
    let session = world.accept();
    world.turn(|_| {});
    let probe = world.connect();
    (world, probe, session)
}

/// Without sessions there were no checks. The first session waits until the server has answered, or
/// is too slow.
#[test]
fn first_session_after_a_while_waits_for_a_check() {
    for answers in [true, false] {
        let (mut world, probe, first) = checked(None);
        let link = world.shared;
        let second = world.accept();
        for session in [first, second] {
            world.asks(session, &["GET k"]);
            assert_eq!(world.got(session), "");
        }
        assert_eq!(world.sent(link), "");
        match answers {
            true => {
                let refused = ["+RESET\r\n", HELLO_REFUSED].concat();
                world.says(probe, refused.clone());
                assert_eq!(world.got(first), NOAUTH);
                // This one came after the check was asked.
                world.says(probe, refused);
                assert_eq!(world.got(second), NOAUTH);
                assert_eq!(world.sent(link), "");
            }
            false => {
                world.wait_ms(550);
                assert_eq!(world.asked(link).len(), 2);
            }
        }
    }
}

/// No request is needed for that: a probing link does its handshake anew twice a second.
#[test]
fn check_finds_a_password_that_was_set_later() {
    let (mut world, probe, old) = checked(None);
    let link = world.shared;
    let check = requests(&["RESET", "HELLO"]);
    assert_eq!(world.sent(probe).as_bytes(), check);
    world.says(probe, ["+RESET\r\n", HELLO].concat());
    for _ in 0..3 {
        world.wait_ms(550);
        assert_eq!(world.sent(probe).as_bytes(), check);
        world.says(probe, ["+RESET\r\n", HELLO].concat());
    }
    let newcomer = world.accept();
    is_served(&mut world, newcomer, link);
    world.wait_ms(550);
    assert_eq!(world.sent(probe).as_bytes(), check);
    world.says(probe, ["+RESET\r\n", HELLO_REFUSED].concat());
    let late = world.accept();
    world.turn(|_| {});
    assert_eq!(world.sent(probe).as_bytes(), check);
    world.says(probe, ["+RESET\r\n", HELLO_REFUSED].concat());
    must_log_in(&mut world, late, link);
    is_served(&mut world, old, link);
    // The session came after the last accepted answer was asked for.
    must_log_in(&mut world, newcomer, link);
    assert_eq!(told(&mut world).len(), 1);
    world.wait_ms(550);
    world.says(probe, ["+RESET\r\n", HELLO].concat());
    is_served(&mut world, late, link);
    // A silent server is not asked again. It still has other links.
    world.wait_ms(550);
    world.sent(probe);
    world.wait_ms(2_000);
    assert_eq!(world.sent(probe), "");
    world.lose(probe);
    world.wait_ms(550);
    world.connect();
    is_served(&mut world, late, link);
}

/// The operator may give the login back at any moment. So a new session is not refused by an answer
/// that was asked for before it came.
#[test]
fn newcomer_waits_for_a_check_that_is_asked_after_it_came() {
    let (mut world, probe, _) = checked(None);
    let link = world.shared;
    let check = requests(&["RESET", "HELLO"]);
    let [refused, accepted] = [HELLO_REFUSED, HELLO].map(|hello| ["+RESET\r\n", hello].concat());
    world.sent(probe);
    world.says(probe, accepted.clone());
    world.wait_ms(550);
    assert_eq!(world.sent(probe).as_bytes(), check);
    world.says(probe, refused.clone());
    // The login is withdrawn. Each of these comes later than the check that is asked for the one
    // before it.
    let early = world.accept();
    world.asks(early, &["GET k"]);
    assert_eq!(world.sent(probe).as_bytes(), check);
    world.wait_ms(1);
    let late = world.accept();
    world.asks(late, &["GET k"]);
    assert_eq!(world.sent(probe), "", "one check at a time");
    world.says(probe, refused);
    assert_eq!(world.got(early), NOAUTH);
    assert_eq!(world.got(late), "");
    assert_eq!(world.sent(probe).as_bytes(), check);
    world.says(probe, accepted);
    assert_eq!(world.sent(link).as_bytes(), requests(&["GET k"]));
    world.says(link, "$1\r\nv\r\n");
    assert_eq!(world.got(late), "$1\r\nv\r\n");
    is_served(&mut world, early, link);
}

/// A client sets a password and removes it again on the same connection. A request that may change
/// logins waits for a check, so the client counts as one that came before the login was withdrawn.
#[test]
fn client_that_sets_a_password_may_remove_it() {
    for change in [
        "CONFIG SET requirepass p",
        "ACL SETUSER default >p",
        "ACL DELUSER u",
        "ACL LOAD",
    ] {
        let (mut world, probe, _) = checked(None);
        let link = world.shared;
        let check = requests(&["RESET", "HELLO"]);
        let answer = |hello: &str| ["+RESET\r\n", hello].concat();
        world.sent(probe);
        world.says(probe, answer(HELLO));
        world.wait_ms(1);
        let client = world.accept();
        world.asks(client, &["GET k", change, "GET l"]);
        assert_eq!(world.sent(link).as_bytes(), requests(&["GET k"]));
        assert_eq!(world.sent(probe).as_bytes(), check);
        world.says(probe, answer(HELLO));
        // The last batch is not answered yet, so the link sends when it is.
        world.says(link, "$1\r\nv\r\n");
        assert_eq!(world.sent(link).as_bytes(), requests(&[change, "GET l"]));
        world.says(link, "+OK\r\n$1\r\nw\r\n");
        assert_eq!(world.got(client), "$1\r\nv\r\n+OK\r\n$1\r\nw\r\n");
        world.wait_ms(550);
        world.sent(probe);
        world.says(probe, answer(HELLO_REFUSED));
        let undo = "CONFIG SET requirepass q";
        world.asks(client, &[undo]);
        assert_eq!(world.sent(link).as_bytes(), requests(&[undo]), "{change}");
        assert_eq!(world.sent(probe), "", "an answer has vouched for it");
    }
}

/// Another client has set a password. A client that came after that changes none, although no check
/// has told so yet.
#[test]
fn client_that_comes_under_a_password_cannot_change_it() {
    let (mut world, probe, _) = checked(None);
    world.sent(probe);
    world.says(probe, ["+RESET\r\n", HELLO].concat());
    world.wait_ms(1);
    let client = world.accept();
    world.asks(client, &["CONFIG SET requirepass p"]);
    world.says(probe, ["+RESET\r\n", HELLO_REFUSED].concat());
    assert_eq!(world.got(client), NOAUTH);
    assert_eq!(world.sent(world.shared), "");
}

/// A check that is not answered, or fails, delays a change of logins for a moment, and is not asked
/// again.
#[test]
fn change_of_logins_does_not_wait_for_a_failed_check() {
    let change = "CONFIG SET requirepass p";
    for fails in [false, true] {
        let (mut world, probe, _) = checked(None);
        let link = world.shared;
        world.sent(probe);
        world.says(probe, ["+RESET\r\n", HELLO].concat());
        world.wait_ms(1);
        let client = world.accept();
        world.asks(client, &[change]);
        assert_eq!(world.sent(link), "");
        match fails {
            false => {
                world.wait_ms(400);
                assert_eq!(world.sent(link), "");
                world.wait_ms(200);
            }
            true => world.lose(probe),
        }
        assert_eq!(world.sent(link).as_bytes(), requests(&[change]));
        assert!(world.connecting().is_empty());
    }
}

/// A check that fails is not asked again for the sessions that wait for it. Their server is as it
/// was: accepted long ago, or withdrawn.
#[test]
fn failed_check_is_not_repeated_for_the_sessions_that_wait() {
    for withdrawn in [false, true] {
        let (mut world, probe, first) = checked(None);
        if withdrawn {
            world.says(probe, ["+RESET\r\n", HELLO].concat());
            world.wait_ms(550);
            world.says(probe, ["+RESET\r\n", HELLO_REFUSED].concat());
        }
        let waiting = match withdrawn {
            true => world.accept(),
            false => first,
        };
        world.asks(waiting, &["GET k"]);
        assert_eq!(world.got(waiting), "");
        world.lose(probe);
        let mut attempts = 0;
        for _ in 0..20 {
            for link in world.connecting() {
                attempts += 1;
                world.lose(link);
            }
            world.turn(|_| {});
        }
        assert!(
            attempts <= 1,
            "{attempts} connections, withdrawn: {withdrawn}"
        );
    }
}

/// A server that does not answer holds no new session up for long.
#[test]
fn newcomer_is_refused_if_no_check_is_answered() {
    let (mut world, probe, _) = checked(None);
    world.says(probe, ["+RESET\r\n", HELLO].concat());
    world.wait_ms(550);
    world.says(probe, ["+RESET\r\n", HELLO_REFUSED].concat());
    let newcomer = world.accept();
    world.asks(newcomer, &["GET k"]);
    world.wait_ms(400);
    assert_eq!(world.got(newcomer), "");
    world.wait_ms(150);
    assert_eq!(world.got(newcomer), NOAUTH);
}

/// The check of the login finds that the configured user has another password, is off or deleted.
#[test]
fn check_finds_that_the_configured_credentials_changed() {
    for refusal in ["-WRONGPASS no\r\n", ""] {
        let (mut world, probe, old) = checked(Some("secret"));
        let link = world.shared;
        let check = requests(&["AUTH app secret", "HELLO"]);
        assert_eq!(world.sent(probe).as_bytes(), check);
        world.says(probe, ["+OK\r\n", HELLO].concat());
        world.wait_ms(550);
        world.says(probe, [refusal, HELLO].concat());
        let newcomer = world.accept();
        world.turn(|_| {});
        world.says(probe, [refusal, HELLO].concat());
        must_log_in(&mut world, newcomer, link);
        is_served(&mut world, old, link);
    }
}

/// Redis before 6.2 does not know RESET: each check is a new connection.
#[test]
fn check_without_reset_connects_anew() {
    let (mut world, probe, _) = checked(None);
    let link = world.shared;
    world.says(probe, ["-ERR unknown command 'RESET'\r\n", HELLO].concat());
    assert_eq!(world.closed_links(), [probe]);
    world.wait_ms(550);
    let [probe] = world.connecting()[..] else {
        panic!("a probing link is to be connected");
    };
    world.turn(|engine| engine.handle_link_up(probe));
    world.says(probe, HELLO_REFUSED);
    let newcomer = world.accept();
    world.asks(newcomer, &["GET k"]);
    // The check that is asked already, and one that is asked after the session came.
    let unknown = "-ERR unknown command 'RESET'\r\n";
    for said in ["", NOAUTH] {
        assert!(world.sent(probe).ends_with("HELLO\r\n"), "a check is asked");
        world.says(probe, [unknown, HELLO_REFUSED].concat());
        assert_eq!(world.got(newcomer), said);
    }
    must_log_in(&mut world, newcomer, link);
}

/// A server with users of its own that wants a password.
fn locked() -> World {
    let mut settings = settings();
    // Guesses of one session may take longer.
    settings.timeouts.authenticate_ms = 0;
    let mut world = World::unconnected(crate::world::worker(0, 1), settings);
    let link = world.shared;
    world.turn(|engine| engine.handle_link_up(link));
    world.says(link, HELLO_REFUSED);
    world
}

/// A wrong password is sent once, on a connection that stays. No other connection is made for it,
/// and it is not kept.
#[test]
fn wrong_passwords_are_tried_once_on_one_connection() {
    let mut world = locked();
    world.connecting();
    let session = world.accept();
    world.asks(session, &["AUTH one wrong"]);
    let probe = world.connecting();
    let [probe] = probe[..] else {
        panic!("a probing link is to be connected")
    };
    world.turn(|engine| engine.handle_link_up(probe));
    world.says(probe, HELLO_REFUSED);
    assert!(world.sent(probe).contains("AUTH"));
    world.says(probe, ["-WRONGPASS no\r\n", HELLO_REFUSED].concat());
    assert_eq!(world.got(session), "-WRONGPASS no\r\n");
    for number in 0..500 {
        let asked = format!("AUTH user{number} wrong");
        world.asks(session, &[&asked]);
        // Wrong passwords of its address make it wait.
        let mut sent = world.sent(probe);
        let mut waited_ms = 0;
        while sent.is_empty() && waited_ms < 2_000 {
            world.wait_ms(50);
            waited_ms += 50;
            sent = world.sent(probe);
        }
        assert_eq!(waited_ms > 0, number >= 7, "{waited_ms} ms for {number}");
        assert!(waited_ms <= 1_050, "{waited_ms} ms for {number}");
        let expected = requests(&[&asked, "HELLO"]);
        assert_eq!(sent.as_bytes(), expected, "no other bytes are sent");
        // Some releases do not answer an AUTH that fails.
        let silent = number % 2 == 0;
        let said = if silent { "" } else { "-WRONGPASS no\r\n" };
        world.says(probe, [said, HELLO_REFUSED].concat());
        assert!(world.got(session).starts_with("-WRONGPASS "));
    }
    assert!(world.connecting().iter().all(|link| *link == world.shared));
    assert_eq!(world.engine.counters().logins_refused, 501);
    world.asks(session, &["AUTH right secret"]);
    world.wait_ms(1_050);
    world.says(probe, ["+OK\r\n", HELLO].concat());
    assert_eq!(world.got(session), "+OK\r\n");
    let own: Vec<_> = world.connecting();
    let own = *own.last().expect("the user has a link of its own");
    world.asks(session, &["GET k"]);
    world.turn(|engine| engine.handle_link_up(own));
    assert!(world.sent(own).contains("secret"));
    world.says(own, HELLO);
    assert_eq!(world.sent(own).as_bytes(), requests(&["GET k"]));
}

/// A user without a password accepts every password. Its sessions share a few links all the same.
#[test]
fn user_that_accepts_every_password_has_few_links() {
    let mut world = locked();
    world.connecting();
    let sessions: Vec<_> = (0..20).map(|_| world.accept()).collect();
    let mut links = Vec::new();
    let mut probe = None;
    for (number, session) in sessions.iter().enumerate() {
        world.asks(*session, &[&format!("AUTH nopass any{number}")]);
        let connecting = world.connecting();
        let probe = *probe.get_or_insert_with(|| {
            world.turn(|engine| engine.handle_link_up(connecting[0]));
            world.says(connecting[0], HELLO_REFUSED);
            connecting[0]
        });
        world.says(probe, ["+OK\r\n", HELLO].concat());
        assert_eq!(world.got(*session), "+OK\r\n");
        for link in world.connecting() {
            if link != world.shared {
                world.up(link);
                links.push(link);
            }
        }
        // A password that was accepted before costs nothing more.
        world.asks(*session, &["GET k"]);
    }
    assert_eq!(links.len(), 4);
    // The server may accept no other password any more.
    world.lose(links[3]);
    world.wait_ms(1_000);
    let fresh = world.connecting()[0];
    world.turn(|engine| engine.handle_link_up(fresh));
    assert!(world.sent(fresh).contains("any19"));
}

/// A client gives the password of a user for the first time, and the server accepts it on the
/// probing link. Returns the link of that user.
fn log_in(world: &mut World, session: SessionId, probe: LinkId, asked: &str) -> LinkId {
    world.asks(session, &[asked]);
    assert_eq!(world.sent(probe).as_bytes(), requests(&[asked, "HELLO"]));
    world.says(probe, ["+OK\r\n", HELLO].concat());
    assert_eq!(world.got(session), "+OK\r\n");
    let links = world.connecting();
    *links.last().expect("the user has a link of its own")
}

/// Only clients know the password of the user with the right to SELECT. Users that log in after it
/// keep its database, even after the server was lost.
#[test]
fn former_login_selects_the_database_of_later_ones() {
    const NOPERM: &str = "-NOPERM no 'select'\r\n";
    let mut world = locked();
    world.connecting();
    let session = world.accept();
    world.asks(session, &["AUTH root secret"]);
    let probe = world.connecting()[0];
    world.turn(|engine| engine.handle_link_up(probe));
    world.says(probe, HELLO_REFUSED);
    world.says(probe, ["+OK\r\n", HELLO].concat());
    world.got(session);
    world.sent(probe);
    let roots = *world.connecting().last().expect("a link of root");
    world.up(roots);
    world.asks(session, &["SELECT 9"]);
    world.says(roots, "+OK\r\n");
    let selected = *world.connecting().last().expect("a link of database 9");
    world.up(selected);
    assert_eq!(world.got(session), "+OK\r\n");
    let detour = |world: &mut World, link: LinkId, own: &str| {
        world.turn(|engine| engine.handle_link_up(link));
        world.sent(link);
        world.says(link, [HELLO, NOPERM].concat());
        assert_eq!(world.sent(link).as_bytes(), requests(&["AUTH root secret"]));
        world.says(link, "+OK\r\n");
        assert_eq!(world.sent(link).as_bytes(), requests(&["SELECT 9", own]));
        world.says(link, "+OK\r\n+OK\r\n");
    };
    for own in ["AUTH bob pw", "AUTH carol pw"] {
        let link = log_in(&mut world, session, probe, own);
        detour(&mut world, link, own);
        is_served(&mut world, session, link);
        world.lose(link);
        let [again] = world.connecting()[..] else {
            panic!("the link is to be connected again");
        };
        detour(&mut world, again, own);
        is_served(&mut world, session, again);
    }
    // Carol's login is known already: her link finishes its handshake before the AUTH is sent.
    let other = world.accept();
    world.asks(other, &["AUTH root secret"]);
    world.says(roots, ["+OK\r\n", HELLO].concat());
    world.asks(other, &["SELECT 7"]);
    world.says(roots, "+OK\r\n");
    let selected = *world.connecting().last().expect("a link of database 7");
    world.up(selected);
    world.got(other);
    world.asks(other, &["AUTH carol pw"]);
    let [link] = world.connecting()[..] else {
        panic!("a link of carol to database 7 is to be connected");
    };
    world.turn(|engine| engine.handle_link_up(link));
    world.sent(link);
    world.says(link, [HELLO, NOPERM].concat());
    assert_eq!(world.sent(link).as_bytes(), requests(&["AUTH root secret"]));
}

/// Thousands of guesses wait for two links, within the bound of the queue.
#[test]
fn guesses_share_two_links_and_a_bounded_queue() {
    let mut world = locked();
    world.connecting();
    let sessions: Vec<_> = (0..1_100).map(|_| world.accept()).collect();
    world.turn(|engine| {
        for session in &sessions {
            engine.handle_session_bytes(*session, &requests(&["AUTH one wrong"]));
        }
    });
    let mut probes = world.connecting();
    probes.retain(|link| *link != world.shared);
    assert_eq!(probes.len(), 2);
    let refused = sessions.iter().filter(|session| {
        world
            .got(**session)
            .contains("too many logins wait in this worker")
    });
    assert_eq!(refused.count(), 1_100 - 1_024);
    for probe in &probes {
        world.turn(|engine| engine.handle_link_up(*probe));
        world.says(*probe, HELLO_REFUSED);
    }
    let mut tried = 0;
    while tried < 1_024 {
        for probe in &probes {
            let asked = world.asked(*probe).len() / 2;
            assert!(asked <= 16);
            tried += asked;
            let replies = ["-WRONGPASS no\r\n", HELLO_REFUSED].concat();
            world.says(*probe, replies.repeat(asked));
        }
    }
    assert_eq!(tried, 1_024);
}

/// A server at its `maxclients` accepts no second probing link. Logins are tried on the first one.
#[test]
fn refused_probing_link_fails_no_login() {
    let mut world = locked();
    world.connecting();
    let (first, second) = (world.accept(), world.accept());
    world.asks(first, &["AUTH one right"]);
    let [probe] = world.connecting()[..] else {
        panic!("a probing link is to be connected")
    };
    world.turn(|engine| engine.handle_link_up(probe));
    world.says(probe, HELLO_REFUSED);
    world.asks(second, &["AUTH two right"]);
    for _ in 0..3 {
        let shared = world.shared;
        let mut others = world.connecting();
        others.retain(|link| *link != shared);
        for other in others {
            world.turn(|engine| engine.handle_link_up(other));
            world.says(other, "-ERR max number of clients reached\r\n");
        }
        world.wait_ms(50);
    }
    let tried = world.asked(probe).len() / 2;
    assert_eq!(tried, 2);
    assert_eq!(world.got(second), "");
    world.says(probe, ["+OK\r\n", HELLO].concat().repeat(2));
    for session in [first, second] {
        assert_eq!(world.got(session), "+OK\r\n");
    }
}

/// A world with a user of respool.
fn own_user() -> World {
    let mut settings = settings();
    settings.users.push(User {
        name: String::from("alice"),
        password: String::from("right"),
        source: None,
    });
    World::new(settings)
}

/// A session from this address.
fn accept_from(world: &mut World, address: &str) -> SessionId {
    let address: SocketAddr = address.parse().expect("an address");
    world.engine.handle_accept(Peer::Tcp(address), 0)
}

/// A thousand connections of one address, with a guess each, are answered at its rate, within the
/// bound.
#[test]
fn parallel_guesses_wait_for_one_another() {
    let mut world = own_user();
    let guessers: Vec<_> = (0..1_000).map(|_| world.accept()).collect();
    let guess = requests(&["AUTH alice wrong"]);
    world.turn(|engine| {
        for guesser in &guessers {
            engine.handle_session_bytes(*guesser, &guess);
        }
    });
    let said = |world: &mut World| -> Vec<String> {
        let said = guessers.iter().map(|guesser| world.got(*guesser));
        said.filter(|said| !said.is_empty()).collect()
    };
    assert_eq!(said(&mut world).len(), 8);
    let other = accept_from(&mut world, "10.1.1.1:1");
    world.asks(other, &["AUTH alice right"]);
    assert_eq!(world.got(other), "+OK\r\n");
    world.wait_ms(2_050);
    let said = said(&mut world);
    assert_eq!(said.len(), 1_000 - 8);
    let tried = said.iter().filter(|said| said.starts_with("-WRONGPASS "));
    assert!(tried.count() <= 400);
    assert!(said.iter().any(|said| said.starts_with("-NOTSENT ")));
    // Another client of their address is accepted a second later.
    let polite = world.accept();
    world.asks(polite, &["AUTH alice right"]);
    assert_eq!(world.got(polite), "");
    world.wait_ms(2_050);
    assert_eq!(world.got(polite), "+OK\r\n");
    // A repeated AUTH as the present user costs nothing.
    world.asks(polite, &["AUTH alice right"]);
    assert_eq!(world.got(polite), "+OK\r\n");
}

/// Guesses in one pipeline wait one behind the other: as AUTH, as HELLO, and without replies.
#[test]
fn pipelined_guesses_wait_one_behind_the_other() {
    for words in ["AUTH alice wrong", "HELLO 3 AUTH alice wrong"] {
        for silent in [false, true] {
            let mut world = own_user();
            let session = world.accept();
            let right = world.accept();
            world.asks(right, &["AUTH alice right"]);
            world.got(right);
            let mut bytes = match silent {
                true => requests(&["AUTH alice right", "CLIENT REPLY OFF"]),
                false => Vec::new(),
            };
            bytes.extend(requests(&[words]).repeat(500));
            world.sends(session, &bytes);
            world.wait_ms(10_000);
            let refused = world.engine.counters().logins_refused;
            // A second for each guess after the free ones.
            assert!((14..=25).contains(&refused), "{refused} for {words}");
            assert_eq!(world.got(session).contains("WRONGPASS"), !silent);
        }
    }
}

/// Guessers that leave before the answer are counted, and do not make an address wait less.
#[test]
fn guessers_that_leave_count() {
    let mut world = locked();
    world.connecting();
    let guesser = world.accept();
    world.asks(guesser, &["AUTH user wrong"]);
    let probe = world.connecting()[0];
    world.turn(|engine| engine.handle_link_up(probe));
    world.says(probe, HELLO_REFUSED);
    world.says(probe, ["-WRONGPASS no\r\n", HELLO_REFUSED].concat());
    world.sent(probe);
    for number in 0..20 {
        let session = world.accept();
        world.asks(session, &[&format!("AUTH user{number} wrong")]);
        world.turn(|engine| engine.handle_session_lost(session));
    }
    let mut probes = world.connecting();
    probes.retain(|link| *link != world.shared);
    for probe in &probes {
        world.turn(|engine| engine.handle_link_up(*probe));
        world.says(*probe, HELLO_REFUSED);
    }
    probes.push(probe);
    let session = world.accept();
    let asked = "AUTH right secret";
    world.asks(session, &[asked]);
    let is_asked = |world: &mut World| {
        let sent: String = probes.iter().map(|probe| world.sent(*probe)).collect();
        sent.contains("secret")
    };
    assert!(!is_asked(&mut world));
    world.wait_ms(1_100);
    assert!(is_asked(&mut world));
}

/// AUTH in a transaction counts, and does not wait: after the free guesses it is refused without a
/// try.
#[test]
fn guesses_in_a_transaction_count() {
    let guesses: Vec<_> = (0..100).map(|at| format!("AUTH user{at} wrong")).collect();
    let mut asked = vec!["MULTI"];
    asked.extend(guesses.iter().map(String::as_str));
    asked.push("EXEC");
    // For users of the server: when AUTH is queued.
    let mut world = World::new(settings());
    let session = world.accept();
    world.asks(session, &asked);
    world.allows_transactions(world.shared);
    let said = world.got(session);
    assert_eq!(said.matches("+QUEUED").count(), 8);
    assert_eq!(said.matches("-NOTSENT ").count(), 92);
    assert!(said.contains("-EXECABORT "));
    // For users of respool: when AUTH is executed.
    let mut world = own_user();
    let session = world.accept();
    world.asks(session, &["AUTH alice right"]);
    world.asks(session, &asked);
    world.allows_transactions(world.shared);
    let said = world.got(session);
    assert_eq!(said.matches("-WRONGPASS ").count(), 8, "{said}");
    assert_eq!(said.matches("-NOTSENT ").count(), 92);
}

/// The log names the address and the number of guesses once a minute.
#[test]
fn log_tells_refused_logins_of_an_address() {
    let mut world = own_user();
    let session = accept_from(&mut world, "10.1.1.1:1");
    world.asks(session, &["AUTH alice wrong"; 5]);
    world.wait_ms(3_000);
    let refused = |event: &Event| matches!(event, Event::LoginsRefused { .. });
    let told: Vec<_> = world.events.iter().filter(|event| refused(event)).collect();
    let expected = Event::LoginsRefused {
        from: String::from("10.1.1.1"),
        count: 5,
    };
    assert_eq!(told, [&expected]);
    assert_eq!(world.engine.counters().logins_refused, 5);
}

/// The link of a user has been lost so often that it is in back-off. Then the server accepts the
/// user within a transaction: later requests are served, as after a plain AUTH.
#[test]
fn login_within_exec_ends_the_rest_of_a_users_link() {
    let mut world = World::new(settings());
    let bob = world.accept();
    world.asks(bob, &["AUTH bob secret"]);
    let probe = world.connect();
    world.says(probe, ["+OK\r\n", HELLO].concat());
    world.asks(bob, &["GET k"]);
    let mut links = world.connecting();
    links.iter().for_each(|link| world.up(*link));
    links.retain(|link| world.sent(*link).contains("GET"));
    let [link] = links[..] else {
        panic!("the user has a link");
    };
    world.says(link, "$-1\r\n");
    world.got(bob);
    loop {
        world.lose(link);
        if world.connecting() != [link] {
            break;
        }
        world.up(link);
    }
    world.asks(bob, &["GET k"]);
    assert!(world.got(bob).starts_with("-NOTSENT "));
    let session = world.accept();
    world.asks(session, &["MULTI", "AUTH bob secret", "EXEC"]);
    world.allows_transactions(world.shared);
    let own = world.connect();
    assert!(world.sent(own).contains("AUTH"));
    world.says(own, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    assert_eq!(world.got(session), "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    world.asks(session, &["GET k"]);
    let got = world.got(session);
    assert_eq!(got, "");
    assert_eq!(world.connecting(), [link]);
    world.up(link);
    assert_eq!(world.sent(link).as_bytes(), requests(&["GET k"]));
}
