//! The tables of INFO's fields, from which the reference page is generated.

use crate::world::{World, settings};
use respool_engine::Counters;
use respool_engine::info_fields::{FieldText, LINK, PROCESS, RENAMED, SERVER};

fn has(table: &[FieldText], name: &str) -> bool {
    table.iter().any(|field| field.name == name)
}

/// The section of a worker with one session.
fn own_section() -> String {
    let mut world = World::new(settings());
    let session = world.accept();
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
