//! The tables of INFO's fields, from which the reference page is generated.

use crate::world::{World, settings};
use respool_engine::info_fields::{FieldText, LINK, PROCESS, RENAMED, SERVER};
use respool_engine::{Counters, SessionId, TICK_MS, WorkerReport};

fn has(table: &[FieldText], name: &str) -> bool {
    table.iter().any(|field| field.name == name)
}

/// The section of a worker with one session.
fn own_section() -> String {
    let mut world = World::new(settings());
    let session = world.accept();
    info_of(&mut world, session)
}

fn info_of(world: &mut World, session: SessionId) -> String {
    world.asks(session, &["INFO respool"]);
    if !world.sent(world.shared).is_empty() {
        world.says(world.shared, "+OK\r\n");
    }
    world.got(session)
}

/// A field without a meaning cannot be added, and a meaning does not outlive its field.
#[test]
fn info_has_the_fields_of_the_tables() {
    let info = own_section();
    let lines = info.lines().filter_map(|line| line.split_once(':'));
    let lines: Vec<(&str, &str)> = lines
        .filter(|(name, _)| name.starts_with("respool_"))
        .collect();
    let counters: Vec<String> = Counters::TEXTS
        .iter()
        .map(|(name, _)| format!("respool_{name}"))
        .collect();
    let is_old = |name: &str| RENAMED.iter().any(|(old, _)| *old == name);
    let is_single = |name: &str| {
        has(PROCESS, name) || counters.iter().any(|known| known == name) || is_old(name)
    };
    let mut in_lines = 0;
    for (name, value) in lines.iter().filter(|(name, _)| !is_single(name)) {
        let table = match name.trim_end_matches(|c: char| c.is_ascii_digit()) {
            "respool_server_" => SERVER,
            "respool_link_" => LINK,
            _ => panic!("{name} has no meaning"),
        };
        for (field, _) in value.split(',').filter_map(|part| part.split_once('=')) {
            assert!(
                has(table, field) || is_old(field),
                "{field} of {name} has no meaning"
            );
            in_lines += 1;
        }
    }
    assert!(in_lines >= 18, "a server and a link are shown: {info}");
    let is_shown = |wanted: &str| lines.iter().any(|(name, _)| *name == wanted);
    for name in PROCESS
        .iter()
        .map(|field| field.name)
        .chain(counters.iter().map(String::as_str))
    {
        assert!(is_shown(name), "{name} is not in INFO");
    }
}

/// An old name of a field shows the value of the new one, and INFO names the new one.
#[test]
fn old_names_of_fields_show_the_new_values() {
    let info = own_section();
    let value_of = |name: &str| {
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.unwrap_or_else(|| panic!("{name} is not in {info}"))
    };
    let renamed = value_of("respool_renamed_fields");
    for (old, new) in RENAMED {
        assert!(renamed.contains(&format!("{old}={new}")), "{renamed}");
        if old.starts_with("respool_") {
            assert_eq!(value_of(old), value_of(new), "{old}");
        }
    }
    assert!(info.contains("sessions=1,riders=1"), "{info}");
}

/// The report for metrics names the servers of INFO with the same role and state.
#[test]
fn worker_report_agrees_with_info() {
    let mut world = World::new(settings());
    let session = world.accept();
    let info = info_of(&mut world, session);
    let report = report_of(&world);
    let [server] = &report.servers[..] else {
        panic!("{report:?}");
    };
    let line = format!(
        "address={},pool=default,role={},state={},links={},",
        server.address, server.role, server.state, server.links
    );
    assert!(info.contains(&line), "{line} is not in {info}");
    assert_eq!((server.state, server.pool), ("up", 0));
    assert_eq!(report.is_ready(0), Some(true));
    assert_eq!(report.servers_left_out, 0);
}

fn report_of(world: &World) -> WorkerReport {
    let mut report = WorkerReport::default();
    world.engine.report(&mut report);
    report
}

/// A link that was up for `up_ms` is lost.
fn lost_link(up_ms: u32) -> World {
    let mut world = World::new(settings());
    world.connecting();
    world.wait_ms(up_ms);
    world.lose(world.shared);
    world
}

/// While a link that lasted connects again, the pool is ready, because requests wait. When the
/// attempt fails, the pool is unready until a link is up.
#[test]
fn pool_is_unready_when_the_next_attempt_fails() {
    let mut world = lost_link(1_000);
    let report = report_of(&world);
    assert_eq!(report.servers[0].lost_total, 1);
    assert_eq!(report.servers[0].state, "connecting");
    assert_eq!(report.is_ready(0), Some(true));
    let [link] = world.connecting()[..] else {
        panic!("the link connects again");
    };
    world.lose(link);
    assert_eq!(report_of(&world).servers[0].failures_total, 1);
    while world.connecting().is_empty() {
        assert_eq!(report_of(&world).is_ready(0), Some(false));
        world.wait_ms(TICK_MS);
    }
    world.up(link);
    assert_eq!(report_of(&world).is_ready(0), Some(true));
}

/// An attempt that takes long makes the pool unready before it fails.
#[test]
fn pool_is_unready_while_an_attempt_takes_long() {
    let mut world = lost_link(1_000);
    world.wait_ms(200);
    let report = report_of(&world);
    assert_eq!(report.servers[0].state, "connecting");
    assert_eq!(report.is_ready(0), Some(false));
    world.connect();
    assert_eq!(report_of(&world).is_ready(0), Some(true));
}

/// A server that closes each new connection is not ready in the back-off between them.
#[test]
fn pool_is_unready_while_a_young_link_rests() {
    let world = lost_link(0);
    let report = report_of(&world);
    assert_eq!(report.servers[0].state, "backoff");
    assert_eq!(report.is_ready(0), Some(false));
}

/// A server that asks respool for a password waits for the logins of clients: it is not away. When
/// it is, its state says so.
#[test]
fn server_that_asks_for_a_password_needs_a_login() {
    let mut world = lost_link(1_000);
    let [link] = world.connecting()[..] else {
        panic!("the link connects again");
    };
    world.turn(|engine| engine.handle_link_up(link));
    world.says(
        link,
        "-NOAUTH HELLO must be called with the client already authenticated\r\n",
    );
    let report = report_of(&world);
    assert_eq!(report.servers[0].state, "needs-login");
    assert_eq!(report.is_ready(0), Some(true));
    let failed = report.servers[0].failures_total;
    let mut waited_ms = 0;
    while world.connecting().is_empty() {
        world.wait_ms(TICK_MS);
        waited_ms += TICK_MS;
    }
    // It is asked seldom whether it still waits for logins.
    assert!(waited_ms >= 2_000, "{waited_ms}");
    world.turn(|engine| engine.handle_link_up(link));
    world.says(link, "-NOAUTH Authentication required.\r\n");
    let report = report_of(&world);
    assert_eq!(report.servers[0].state, "needs-login");
    // The server answers, so no attempt has failed.
    assert_eq!(report.servers[0].failures_total, failed);
    while world.connecting().is_empty() {
        world.wait_ms(TICK_MS);
    }
    assert_eq!(report_of(&world).servers[0].state, "needs-login");
    world.lose(link);
    let report = report_of(&world);
    assert_eq!(report.servers[0].state, "backoff");
    assert_eq!(report.is_ready(0), Some(false));
}
