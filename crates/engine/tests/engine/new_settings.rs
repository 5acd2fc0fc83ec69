//! New settings while everything runs.

use std::sync::Arc;

use crate::world::{World, settings, worker};
use respool_engine::settings::{Settings, User};
use respool_engine::{Action, AdminQuery, NewSettings, SessionId, Time, WorkerQuery};

/// The worker gets these settings, which were made at this time.
fn takes_at(world: &mut World, at: Time, settings: &Settings) {
    let new = NewSettings {
        settings: Arc::new(settings.clone()),
        at,
        ports: Default::default(),
        drain_ms: 5_000,
    };
    world.turn(|engine| engine.handle_settings(new));
}

fn takes(world: &mut World, settings: &Settings) {
    takes_at(world, world.now, settings);
}

fn users(texts: &[&str]) -> Vec<User> {
    let user = |text: &&str| {
        let (name, password) = text.split_once(':').expect("a name and a password");
        User {
            name: name.to_owned(),
            password: password.to_owned(),
            source: None,
        }
    };
    texts.iter().map(user).collect()
}

/// A session that waits for a link of its own gets one when the bound is raised.
#[test]
fn raised_bound_wakes_waiting_sessions() {
    let mut settings = settings();
    settings.limits.pinned_links_max = 1;
    let mut world = World::new(settings.clone());
    let (first, second) = (world.accept(), world.accept());
    world.asks(first, &["BLPOP a 0"]);
    let link = world.connecting().pop().expect("a link for the first");
    world.up(link);
    world.asks(second, &["BLPOP b 0"]);
    assert!(world.connecting().is_empty(), "the bound is reached");
    settings.limits.pinned_links_max = 2;
    takes(&mut world, &settings);
    assert_eq!(world.connecting().len(), 1, "the second session goes on");
}

/// A command that is refused from now on is refused, also in the shape that the hot path knows.
#[test]
fn refused_command_is_refused_at_once() {
    let mut settings = settings();
    let mut world = World::new(settings.clone());
    let session = world.accept();
    for _ in 0..3 {
        world.asks(session, &["INCR k"]);
        assert!(!world.sent(world.shared).is_empty());
        world.says(world.shared, ":1\r\n");
        assert_eq!(world.got(session), ":1\r\n");
    }
    settings
        .refused
        .insert(respool_protocol::commands::id::INCR);
    takes(&mut world, &settings);
    world.asks(session, &["INCR k"]);
    assert!(world.got(session).starts_with('-'));
    assert!(world.sent(world.shared).is_empty());
    settings.refused.clear();
    takes(&mut world, &settings);
    world.asks(session, &["INCR k"]);
    assert!(!world.sent(world.shared).is_empty());
}

/// A session keeps its user when the order of users changes. The sessions of a removed user are
/// closed, but not those that have not authenticated.
#[test]
fn session_keeps_its_user() {
    let mut settings = settings();
    settings.users = users(&["ann:1", "bob:2"]);
    let mut world = World::new(settings.clone());
    let log_in = |world: &mut World, name: &str, password: &str| -> SessionId {
        let session = world.accept();
        world.asks(session, &[&format!("AUTH {name} {password}")]);
        assert_eq!(world.got(session), "+OK\r\n");
        session
    };
    let (ann, bob) = (
        log_in(&mut world, "ann", "1"),
        log_in(&mut world, "bob", "2"),
    );
    let stranger = world.accept();
    settings.users = users(&["eve:3", "bob:4"]);
    takes(&mut world, &settings);
    assert_eq!(world.closed_sessions(), [ann]);
    world.asks(bob, &["GET k"]);
    assert!(!world.sent(world.shared).is_empty());
    world.says(world.shared, "$1\r\nv\r\n");
    assert_eq!(world.got(bob), "$1\r\nv\r\n");
    world.asks(stranger, &["AUTH ann 1"]);
    assert!(world.got(stranger).starts_with("-WRONGPASS"));
    let eve = log_in(&mut world, "eve", "3");
    settings.users = users(&["bob:4"]);
    takes(&mut world, &settings);
    assert_eq!(world.closed_sessions(), [ann, eve]);
    // A removed user leaves no way in.
    world.wait_ms(5_000);
    let newcomer = world.accept();
    world.sends(newcomer, b"*3\r\n$4\r\nAUTH\r\n$0\r\n\r\n$0\r\n\r\n");
    assert!(world.got(newcomer).starts_with("-WRONGPASS"));
}

/// An option that a client sets before the settings were made is overwritten. A later one stays.
/// The order in which a worker gets the two does not matter.
#[test]
fn later_change_wins_in_every_worker() {
    let mut settings = settings();
    let (made, later) = (Time(20_000), Time(30_000));
    let set = |at: Time| {
        WorkerQuery::Admin(AdminQuery::Set {
            at: (at, 1),
            pool: 0,
            listener: 0,
            values: vec![(1, 777)],
        })
    };
    settings.flush.max_delay_us = 300;
    for (at, settings_first, expected) in [
        (Time(10_000), true, 300),
        (Time(10_000), false, 300),
        (later, true, 777),
        (later, false, 777),
    ] {
        let mut world = World::new_among(worker(0, 2), crate::world::settings());
        let takes_set = |world: &mut World| {
            world.turn(|engine| engine.handle_question(1, 7, set(at)));
        };
        if settings_first {
            takes_at(&mut world, made, &settings);
            takes_set(&mut world);
        } else {
            takes_set(&mut world);
            takes_at(&mut world, made, &settings);
        }
        let is_answer = |action: &Action| matches!(action, Action::Answer { ticket: 7, .. });
        assert!(world.actions.iter().any(is_answer));
        let session = world.accept();
        world.asks(session, &["CONFIG GET respool.max-delay-us"]);
        world.says(world.shared, "*0\r\n");
        let got = world.got(session);
        assert!(got.contains(&format!("\r\n{expected}\r\n")), "{got}");
    }
}
