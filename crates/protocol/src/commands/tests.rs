//! The table against the snapshots it was made from, and against bytes that are no commands.

use super::*;


/// The names of a snapshot, read as text: nothing of the generator is trusted here.
fn names(snapshot: &str) -> Vec<&str> {
    let names = snapshot
        .lines()
        .filter_map(|line| line.strip_prefix("{\"name\":\"")?.split('"').next());
    names.collect()
}

const SNAPSHOTS: [(&str, Servers); 2] = [
    (
        include_str!("../../data/commands-redis-8.2.json"),
        Servers::REDIS_8_2,
    ),
    (
        include_str!("../../data/commands-valkey-9.1.json"),
        Servers::VALKEY_9_1,
    ),
];

/// A command of a snapshot that is missing, misspelt or mixed up with another cannot pass.
#[test]
fn every_command_of_both_snapshots_is_found_in_any_case() {
    for (snapshot, server) in SNAPSHOTS {
        let names = names(snapshot);
        assert!(names.len() > 350, "the snapshot has {} names", names.len());
        for name in names {
            let mixed: String = name
                .chars()
                .enumerate()
                .map(|(at, c)| {
                    if at % 2 == 0 {
                        c.to_ascii_uppercase()
                    } else {
                        c
                    }
                })
                .collect();
            for spelling in [name.to_owned(), name.to_uppercase(), mixed] {
                let parts: Vec<&[u8]> = spelling.split('|').map(str::as_bytes).collect();
                let id = resolve(parts.len(), |at| parts[at]).expect(name);
                assert_eq!(id.get().name, name);
                assert!(
                    id.get().servers.has(server),
                    "{name} is known to {server:?}"
                );
            }
        }
    }
}
