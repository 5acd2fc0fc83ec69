//! Passwords that change while respool runs.

use crate::world::{HELLO, World, requests, settings};
use respool_engine::settings::{Credentials, PasswordSource, PoolKind, Settings, User};
use respool_engine::{Event, LinkId};

const SOURCE: PasswordSource = PasswordSource(3);
const WRONGPASS: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";

/// One server with a password from a source; requests wait for the server during an outage.
fn with_source(source: Option<PasswordSource>) -> Settings {
    let mut settings = settings();
    settings.timeouts.outage_hold_ms = 1_000;
    if let PoolKind::Single(server) = &mut settings.pools[0].kind {
        server.credentials = Some(Credentials {
            user: Some("app".to_owned()),
            password: "one".to_owned(),
            source,
        });
    }
    settings
}

/// The sources that have to be read again.
fn sought(world: &mut World) -> Vec<PasswordSource> {
    let events = std::mem::take(&mut world.events);
    let sources = events.into_iter().filter_map(|event| match event {
        Event::PasswordRefused { source } => Some(source),
        _ => None,
    });
    sources.collect()
}

/// The first bytes on a link.
fn handshake(world: &mut World, link: LinkId) -> String {
    world.turn(|engine| engine.handle_link_up(link));
    let asked = world.asked(link);
    asked[0].join(" ")
}

/// The link is lost, and the server refuses the next one.
fn refused(world: &mut World) -> LinkId {
    world.wait_ms(1_500);
    world.lose(world.shared);
    let link = world.connecting().pop().expect("the link connects at once");
    let said = handshake(world, link);
    assert_eq!(said, "HELLO 2 AUTH app one SETNAME respool");
    world.says(link, WRONGPASS);
    link
}

/// The event names the source, and the request waits for its password.
#[test]
fn request_waits_for_the_new_password() {
    let mut world = World::new(with_source(Some(SOURCE)));
    let session = world.accept();
    refused(&mut world);
    assert_eq!(sought(&mut world), [SOURCE]);
    world.asks(session, &["SET k v"]);
    assert_eq!(world.got(session), "");
    // Another source, and the same password, change nothing.
    world.turn(|engine| {
        engine.handle_password(PasswordSource(0), "two");
        engine.handle_password(SOURCE, "one");
    });
    assert!(world.connecting().is_empty());
    world.turn(|engine| engine.handle_password(SOURCE, "two"));
    let link = world.connecting().pop().expect("the link is tried at once");
    let said = handshake(&mut world, link);
    assert_eq!(said, "HELLO 2 AUTH app two SETNAME respool");
    world.says(link, HELLO);
    assert_eq!(world.sent(link).as_bytes(), requests(&["SET k v"]));
    world.says(link, "+OK\r\n");
    assert_eq!(world.got(session), "+OK\r\n");
    assert!(sought(&mut world).is_empty());
}

/// A password without a source cannot change, so no request waits.
#[test]
fn request_fails_at_once_without_a_source() {
    let mut world = World::new(with_source(None));
    let session = world.accept();
    refused(&mut world);
    assert!(sought(&mut world).is_empty());
    world.asks(session, &["SET k v"]);
    assert!(world.got(session).contains("WRONGPASS"));
}

/// When the hold is over, requests fail with the server's error, and each refusal still names the
/// source.
#[test]
fn request_fails_when_no_new_password_comes() {
    let mut world = World::new(with_source(Some(SOURCE)));
    let session = world.accept();
    refused(&mut world);
    world.asks(session, &["SET k v"]);
    for _ in 0..60 {
        for link in world.connecting() {
            handshake(&mut world, link);
            world.says(link, WRONGPASS);
        }
        world.wait_ms(50);
    }
    let got = world.got(session);
    assert!(
        got.starts_with("-NOTSENT ") && got.contains("WRONGPASS"),
        "{got}"
    );
    assert!(sought(&mut world).len() > 5);
    world.asks(session, &["SET k v"]);
    assert!(world.got(session).contains("WRONGPASS"));
    world.turn(|engine| engine.handle_password(SOURCE, "two"));
    let link = world.connecting().pop().expect("the link is tried at once");
    assert!(handshake(&mut world, link).contains("app two"));
}

/// Connected links stay up, and their requests stay in flight.
#[test]
fn link_that_is_up_keeps_its_connection() {
    let mut world = World::new(with_source(Some(SOURCE)));
    let (session, link) = (world.accept(), world.shared);
    world.asks(session, &["GET k"]);
    world.turn(|engine| engine.handle_password(SOURCE, "two"));
    assert!(world.connecting().is_empty() && world.closed_links().is_empty());
    world.says(link, "$1\r\nv\r\n");
    assert_eq!(world.got(session), "$1\r\nv\r\n");
}

/// A check of the login names the source, too, and is repeated as soon as there is a new password.
/// A client that comes meanwhile waits.
#[test]
fn refused_check_is_repeated_with_the_new_password() {
    let mut settings = with_source(Some(SOURCE));
    settings.timeouts.login_check_ms = 500;
    let mut world = World::new(settings);
    let link = world.shared;
    world.wait_ms(2_000);
    let session = world.accept();
    world.turn(|_| {});
    let probe = world.connect();
    assert_eq!(
        world.sent(probe).as_bytes(),
        requests(&["AUTH app one", "HELLO"])
    );
    world.says(probe, [WRONGPASS, HELLO].concat());
    assert_eq!(sought(&mut world), [SOURCE]);
    let newcomer = world.accept();
    world.asks(newcomer, &["GET k"]);
    assert_eq!(world.got(newcomer), "");
    world.turn(|engine| engine.handle_password(SOURCE, "two"));
    assert_eq!(
        world.sent(probe).as_bytes(),
        requests(&["AUTH app two", "HELLO"])
    );
    world.says(probe, ["+OK\r\n", HELLO].concat());
    world.says(link, "$1\r\nv\r\n");
    assert_eq!(world.got(newcomer), "$1\r\nv\r\n");
    let late = world.accept();
    for session in [session, late] {
        world.asks(session, &["GET k"]);
        world.says(link, "$1\r\nv\r\n");
        assert_eq!(world.got(session), "$1\r\nv\r\n");
    }
}

/// The next login of a client needs the new password. Its present session stays.
#[test]
fn own_user_takes_the_new_password() {
    let mut settings = settings();
    settings.users.push(User {
        name: "default".to_owned(),
        password: "one".to_owned(),
        source: Some(SOURCE),
    });
    let mut world = World::new(settings);
    let (old, new) = (world.accept(), world.accept());
    world.asks(old, &["AUTH one"]);
    assert_eq!(world.got(old), "+OK\r\n");
    world.turn(|engine| engine.handle_password(SOURCE, "two"));
    world.asks(new, &["AUTH one"]);
    assert!(world.got(new).starts_with("-WRONGPASS "));
    world.wait_ms(2_000);
    world.asks(new, &["AUTH two"]);
    assert_eq!(world.got(new), "+OK\r\n");
    let link = world.shared;
    world.asks(old, &["GET k"]);
    world.says(link, "$1\r\nv\r\n");
    assert_eq!(world.got(old), "$1\r\nv\r\n");
}

/// The bytes of the configured login on a link that is up.
fn renewal(password: &str) -> Vec<u8> {
    requests(&[&format!("AUTH app {password}"), "HELLO"])
}

/// Has links that are up log in with this password.
fn renew(world: &mut World, password: &str) {
    world.turn(|engine| {
        engine.handle_password(SOURCE, password);
        engine.handle_login_renewal(SOURCE);
    });
}

/// A link that is up logs in behind its requests. The session sees neither reply.
#[test]
fn link_that_is_up_logs_in_with_the_new_password() {
    let mut world = World::new(with_source(Some(SOURCE)));
    let (session, link) = (world.accept(), world.shared);
    world.asks(session, &["GET k"]);
    assert_eq!(world.sent(link).as_bytes(), requests(&["GET k"]));
    // Links of another source stay.
    world.turn(|engine| engine.handle_login_renewal(PasswordSource(0)));
    assert_eq!(world.sent(link), "");
    renew(&mut world, "two");
    world.asks(session, &["GET l"]);
    world.says(link, "$1\r\nv\r\n");
    let sent = world.sent(link).into_bytes();
    assert_eq!(sent, [renewal("two"), requests(&["GET l"])].concat());
    world.says(link, ["+OK\r\n", HELLO, "$1\r\nw\r\n"].concat());
    assert_eq!(world.got(session), "$1\r\nv\r\n$1\r\nw\r\n");
    world.wait_ms(20_000);
    assert_eq!(world.sent(link), "");
    assert!(sought(&mut world).is_empty() && world.closed_links().is_empty());
}

/// A link whose new login is refused goes on with the old one. The source is read again, and the
/// link tries again after a pause. Redis 7.2 and newer may leave out the error to AUTH.
#[test]
fn refused_renewal_keeps_the_link() {
    for said in [[WRONGPASS, HELLO].concat(), HELLO.to_owned()] {
        let mut world = World::new(with_source(Some(SOURCE)));
        let (session, link) = (world.accept(), world.shared);
        renew(&mut world, "two");
        assert_eq!(world.sent(link).as_bytes(), renewal("two"));
        world.says(link, &said);
        assert_eq!(sought(&mut world), [SOURCE]);
        world.wait_ms(9_000);
        assert_eq!(world.sent(link), "");
        world.wait_ms(2_000);
        assert_eq!(world.sent(link).as_bytes(), renewal("two"));
        world.says(link, ["+OK\r\n", HELLO].concat());
        world.asks(session, &["GET k"]);
        world.says(link, "$1\r\nv\r\n");
        assert_eq!(world.got(session), "$1\r\nv\r\n");
        assert!(sought(&mut world).is_empty() && world.closed_links().is_empty());
    }
}

/// A link logs in once its blocked request is answered.
#[test]
fn blocked_link_logs_in_behind_its_wait() {
    let mut world = World::new(with_source(Some(SOURCE)));
    let session = world.accept();
    world.asks(session, &["BLPOP q 0"]);
    let link = world.connect();
    assert_eq!(world.sent(link).as_bytes(), requests(&["BLPOP q 0"]));
    renew(&mut world, "two");
    world.wait_ms(2_000);
    assert_eq!(world.sent(link), "");
    world.says(link, "*2\r\n$1\r\nq\r\n$1\r\nv\r\n");
    world.wait_ms(2_000);
    assert_eq!(world.sent(link).as_bytes(), renewal("two"));
    world.says(link, ["+OK\r\n", HELLO].concat());
    assert_eq!(world.got(session), "*2\r\n$1\r\nq\r\n$1\r\nv\r\n");
}
