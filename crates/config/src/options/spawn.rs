//! Options for a server of respool's own.

use super::number::{NumberField, NumberKind, Unit};
use super::parse::parse_path;
use super::{OPTION, Opt, OptionKind, Topic};

pub(super) const SPAWN: Opt = Opt {
    name: "spawn",
    topic: Topic::Spawn,
    kind: OptionKind::Switch(|values| &mut values.spawn),
    brief: "Start a server of respool's own and stop it at the end",
    more: "Starts the first of redis-server and valkey-server in PATH. The server listens on a \
           socket that only this user can reach, and saves nothing: its data is lost when respool \
           ends. It ends with respool, even when respool is killed. If it ends first, its data is \
           lost, so respool says that in the log and ends too, with exit code 1. Excludes \
           --backend.",
    example: "true",
    of_program: true,
    ..OPTION
};

pub(super) const SPAWN_PROGRAM: Opt = Opt {
    name: "spawn-program",
    topic: Topic::Spawn,
    kind: OptionKind::Text {
        set: |values, text| {
            values.spawn_program = Some(parse_path(text)?);
            Ok(())
        },
        get: |values| {
            values
                .spawn_program
                .as_deref()
                .map(|path| path.display().to_string())
        },
        or_number: false,
    },
    value: "PATH",
    brief: "The server to start, if PATH has none or the wrong one",
    more: "The path of a redis-server or valkey-server, or a name to look up in PATH.",
    example: "/opt/valkey/bin/valkey-server",
    of_program: true,
    ..OPTION
};

pub(super) const SPAWN_MEMORY_BYTES: Opt = Opt {
    name: "spawn-memory-bytes",
    topic: Topic::Spawn,
    kind: OptionKind::Number(NumberKind {
        unit: Unit::Bytes,
        min: 1 << 20,
        max: 1 << 40,
        zero: Some("no limit"),
        field: NumberField::U64(|values| &mut values.spawn_memory_bytes),
    }),
    value: "SIZE",
    brief: "The most memory for the data of the spawned server",
    more: "At the limit, the server evicts the keys that were used least recently (maxmemory with \
           allkeys-lru).",
    example: "1GiB",
    of_program: true,
    ..OPTION
};
