//! Clients that write all their requests before they take a reply.

use crate::world::{World, request, settings};
use respool_engine::settings::{Settings, User};
use respool_engine::{Action, SessionId};

const INPUT_MAX: usize = 4 << 20;

fn small() -> Settings {
    let mut settings = settings();
    settings.limits.session_input_bytes_max = INPUT_MAX as u32;
    settings.limits.session_stall_ms = 2_000;
    settings
}

/// A session with 2 MiB of replies that takes none of them.
fn takes_nothing(world: &mut World) -> SessionId {
    let session = world.accept();
    world.slow.insert(session);
    world.asks(session, &["GET large"]);
    let size = 2 << 20;
    world.says(world.shared, format!("${size}\r\n{}\r\n", "x".repeat(size)));
    session
}

/// Whether the driver was last told to read the session.
fn is_read(world: &World, session: SessionId) -> bool {
    let told = |action: &Action| match action {
        Action::ReadSession(of, read) if *of == session => Some(*read),
        _ => None,
    };
    world.actions.iter().rev().find_map(told).unwrap_or(true)
}

/// A client that writes all its requests before it takes a reply is read on.
#[test]
fn client_that_writes_before_it_reads_is_read_on() {
    let mut world = World::new(small());
    let session = takes_nothing(&mut world);
    assert!(!is_read(&world, session), "the output is above the bound");
    world.wait_ms(200);
    assert!(is_read(&world, session));
    let value = "y".repeat(1 << 20);
    let set = request(&["SET", "a", &value]);
    for part in set.chunks(16 << 10) {
        world.sends(session, part);
    }
    assert!(is_read(&world, session));
    world.takes(session);
    world.turn(|_| {});
    assert!(world.got(session).ends_with("x\r\n"));
    world.turn(|_| {});
    let link = world.shared;
    assert!(world.sent(link).as_bytes().ends_with(&set));
    world.says(link, "+OK\r\n");
    assert_eq!(world.got(session), "+OK\r\n");
}

/// A client that never takes a reply is closed at the output bound.
#[test]
fn client_that_never_reads_is_closed_at_the_bound() {
    let mut world = World::new(small());
    let session = takes_nothing(&mut world);
    world.wait_ms(200);
    let gets = request(&["GET", "k"]).repeat(1_000);
    let mut sent = 0;
    while sent < 2 * INPUT_MAX && is_read(&world, session) {
        world.sends(session, &gets);
        sent += gets.len();
    }
    assert!((INPUT_MAX..INPUT_MAX + (1 << 20)).contains(&sent), "{sent}");
    world.wait_ms(1_500);
    assert!(world.closed_sessions().is_empty());
    world.wait_ms(500);
    assert_eq!(world.closed_sessions(), [session]);
}

/// A client that has not authenticated is not read on, and so cannot fill the bound of others.
#[test]
fn unauthenticated_client_that_takes_nothing_is_unread() {
    let mut settings = small();
    settings.users = vec![User {
        name: "default".to_owned(),
        password: "secret".to_owned(),
        source: None,
    }];
    let mut world = World::new(settings);
    let session = world.accept();
    world.slow.insert(session);
    let gets = request(&["GET", "k"]).repeat(100);
    let mut sent = 0;
    while is_read(&world, session) {
        assert!(sent < INPUT_MAX, "the session is read on");
        world.sends(session, &gets);
        sent += gets.len();
    }
    // The driver may have read this many bytes before it has to stop.
    world.sends(session, &gets.repeat(20));
    for _ in 0..20 {
        world.wait_ms(100);
        assert!(!is_read(&world, session));
    }
    assert!(world.closed_sessions().is_empty());
    world.takes(session);
    world.turn(|_| {});
    assert!(is_read(&world, session));
    let refused = world.got(session);
    assert!(refused.starts_with("-NOAUTH "), "{refused}");
    world.sends(session, &request(&["AUTH", "secret"]));
    assert!(world.got(session).ends_with("+OK\r\n"));
}

/// A client that takes no output for long counts as idle.
#[test]
fn client_that_takes_nothing_is_idle() {
    let mut settings = small();
    settings.timeouts.session_idle_ms = 1_000;
    let mut world = World::new(settings);
    let session = takes_nothing(&mut world);
    world.wait_ms(900);
    assert!(world.closed_sessions().is_empty());
    world.wait_ms(200);
    assert_eq!(world.closed_sessions(), [session]);
}
