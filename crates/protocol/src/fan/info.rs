//! Several servers' texts as one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// What one server told.
pub(super) struct Text<'a> {
    pub(super) server: &'a str,
    pub(super) text: &'a [u8],
}

/// A field of a section as one or more servers have it.
struct Field<'a> {
    name: &'a [u8],
    /// Per server that has it.
    values: Vec<(usize, &'a [u8])>,
}

/// A section: its heading, and its fields in the order in which they occur first.
struct Section<'a> {
    heading: &'a [u8],
    fields: Vec<Field<'a>>,
}

/// What a server is, not what it has or has done: where all say the same, it is so for the whole.
const OF_THE_WHOLE: [&[u8]; 22] = [
    b"arch_bits",
    b"async_loading",
    b"atomicvar_api",
    b"cluster_enabled",
    b"configured_hz",
    b"gcc_version",
    b"loading",
    b"maxmemory_policy",
    b"mem_allocator",
    b"module",
    b"multiplexing_api",
    b"os",
    b"redis_build_id",
    b"redis_git_dirty",
    b"redis_git_sha1",
    b"redis_mode",
    b"redis_version",
    b"role",
    b"server_mode",
    b"server_name",
    b"valkey_release_stage",
    b"valkey_version",
];

/// INFO of several servers: what they are once, if all are the same, and anything else once per server.
///
/// ```text
///   # Respool_servers
///   server0:127.0.0.1:6380
///   server1:127.0.0.1:6381
///
///   # Memory
///   server0_used_memory:1048576
///   server1_used_memory:2097152
///   maxmemory_policy:noeviction
/// ```
///
/// A number stands once per server even where all have the same at this moment: `db0:keys=2` would be read as all the
/// keys there are, and a name that comes and goes is none to look for. The names have no colon, though addresses have:
/// programs cut a line at its first one.
pub(super) fn merge(texts: &[Text<'_>]) -> Vec<u8> {
    let mut sections: Vec<Section<'_>> = Vec::new();
    // A name may occur several times, like `module`: the nth of one server is that of the others.
    let mut places = HashMap::new();
    let mut known = HashMap::new();
    for (server, Text { text, .. }) in texts.iter().enumerate() {
        let mut section = None;
        let mut heading: &[u8] = b"";
        let mut seen = HashMap::new();
        for line in text.split(|&byte| byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            if line.starts_with(b"#") {
                (heading, section) = (line, None);
                continue;
            }
            let section = *section.get_or_insert_with(|| {
                *known.entry(heading).or_insert_with(|| {
                    sections.push(Section {
                        heading,
                        fields: Vec::new(),
                    });
                    sections.len() - 1
                })
            });
            let colon = line.iter().position(|&byte| byte == b':');
            let (name, value) = line.split_at(colon.unwrap_or(line.len()));
            let nth: &mut u32 = seen.entry((section, name)).or_default();
            let fields = &mut sections[section].fields;
            let place = match places.entry((section, name, *nth)) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => {
                    fields.push(Field {
                        name,
                        values: Vec::new(),
                    });
                    *new.insert(fields.len() - 1)
                }
            };
            fields[place].values.push((server, value));
            *nth += 1;
        }
    }

    let mut out = b"# Respool_servers\r\n".to_vec();
    for (at, Text { server, .. }) in texts.iter().enumerate() {
        out.extend_from_slice(format!("server{at}:{server}\r\n").as_bytes());
    }
    for section in sections {
        out.extend_from_slice(b"\r\n");
        if !section.heading.is_empty() {
            out.extend_from_slice(section.heading);
            out.extend_from_slice(b"\r\n");
        }
        for Field { name, values } in section.fields {
            let (_, first) = values[0];
            let is_same =
                values.len() == texts.len() && values.iter().all(|&(_, value)| value == first);
            if is_same && OF_THE_WHOLE.contains(&name) {
                out.extend_from_slice(name);
                out.extend_from_slice(first);
                out.extend_from_slice(b"\r\n");
                continue;
            }
            for (server, value) in values {
                out.extend_from_slice(format!("server{server}_").as_bytes());
                out.extend_from_slice(name);
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
            }
        }
    }
    out
}

/// Each server's text under its name.
pub(super) fn headed(texts: &[Text<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    for Text { server, text } in texts {
        if !out.is_empty() {
            out.push(b'\n');
        }
        out.extend_from_slice(format!("# {server}\n").as_bytes());
        out.extend_from_slice(text);
        if !text.ends_with(b"\n") {
            out.push(b'\n');
        }
    }
    out
}
