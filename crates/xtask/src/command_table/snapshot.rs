//! A server's description of its commands, as it is checked in.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;

use respool_testkit::client::{Reply, RespClient};
use serde::{Deserialize, Serialize};

use respool_testkit::servers::{self, Flavour};

/// One server's description of its commands.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Snapshot {
    pub(super) server: String,
    pub(super) commands: Vec<CommandEntry>,
}

/// One command or subcommand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct CommandEntry {
    /// As the server writes it, in lower case: `config|get`.
    pub(super) name: String,
    pub(super) arity: i16,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) flags: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) acl: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) tips: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) keys: Vec<KeyEntry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) deprecated_since: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct KeyEntry {
    pub(super) begin: BeginEntry,
    pub(super) find: FindEntry,
    pub(super) flags: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum BeginEntry {
    Index(u8),
    Keyword { keyword: String, startfrom: i8 },
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FindEntry {
    Range {
        lastkey: i8,
        keystep: u8,
        limit: u8,
    },
    Keynum {
        keynumidx: u8,
        firstkey: u8,
        keystep: u8,
    },
    Unknown,
}

impl Snapshot {
    /// Asks a server of this kind, started for it.
    pub(super) fn take(flavour: Flavour) -> Result<Snapshot, String> {
        let binary = servers::find(flavour)?;
        let failed = |error: io::Error| format!("{}: {error}", flavour.name());
        let server = servers::ServerProcess::start::<&str>(&binary, &[]).map_err(failed)?;
        let commands = ask(&server, &["COMMAND"]).map_err(failed)?;
        let docs = ask(&server, &["COMMAND", "DOCS"]).map_err(failed)?;
        let mut entries = BTreeMap::new();
        for command in list(&commands) {
            CommandEntry::read(command, &docs, &mut entries)
                .ok_or_else(|| format!("{}: cannot read {command:?}", flavour.name()))?;
        }
        Ok(Snapshot {
            server: flavour.name().to_owned(),
            commands: entries.into_values().collect(),
        })
    }

    /// As JSON with one line per command, so that a change shows as the lines it changes.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{{\"server\": {:?}, \"commands\": [\n", self.server);
        for (nth, entry) in self.commands.iter().enumerate() {
            let comma = if nth + 1 < self.commands.len() {
                ","
            } else {
                ""
            };
            let line = serde_json::to_string(entry).expect("an entry is plain data");
            let _ = writeln!(text, "{line}{comma}");
        }
        text + "]}\n"
    }
}

impl CommandEntry {
    /// Reads an element of COMMAND's reply and those of its subcommands:
    /// name, arity, flags, first key, last key, step, ACL categories, tips, key specs, subcommands.
    fn read(
        command: &Reply,
        docs: &Reply,
        entries: &mut BTreeMap<(String, String), CommandEntry>,
    ) -> Option<()> {
        let fields = list(command);
        let name = text(fields.first()?)?.to_lowercase();
        let doc = docs.get(&text(fields.first()?)?);
        let mut acl = words(fields.get(6)?);
        acl.sort();
        let mut flags = words(fields.get(2)?);
        flags.sort();
        let mut tips = words(fields.get(7)?);
        tips.sort();
        let told = |key| doc.and_then(|doc| doc.get(key)).and_then(text);
        let entry = CommandEntry {
            arity: integer(fields.get(1)?)?,
            flags,
            acl,
            tips,
            keys: list(fields.get(8)?)
                .iter()
                .map(KeyEntry::read)
                .collect::<Option<_>>()?,
            since: told("since"),
            deprecated_since: told("deprecated_since"),
            name: name.clone(),
        };
        let (container, sub) = name.split_once('|').unwrap_or((&name, ""));
        entries.insert((container.to_owned(), sub.to_owned()), entry);
        let no_docs = Reply::Null;
        let sub_docs = doc
            .and_then(|doc| doc.get("subcommands"))
            .unwrap_or(&no_docs);
        list(fields.get(9)?)
            .iter()
            .try_for_each(|sub| CommandEntry::read(sub, sub_docs, entries))
    }
}

impl KeyEntry {
    fn read(spec: &Reply) -> Option<KeyEntry> {
        let (begin, find) = (spec.get("begin_search")?, spec.get("find_keys")?);
        let (begin_spec, find_spec) = (begin.get("spec")?, find.get("spec")?);
        Some(KeyEntry {
            begin: match text(begin.get("type")?)?.as_str() {
                "index" => BeginEntry::Index(integer(begin_spec.get("index")?)?),
                "keyword" => BeginEntry::Keyword {
                    keyword: text(begin_spec.get("keyword")?)?,
                    startfrom: integer(begin_spec.get("startfrom")?)?,
                },
                "unknown" => BeginEntry::Unknown,
                _ => return None,
            },
            find: match text(find.get("type")?)?.as_str() {
                "range" => FindEntry::Range {
                    lastkey: integer(find_spec.get("lastkey")?)?,
                    keystep: integer(find_spec.get("keystep")?)?,
                    limit: integer(find_spec.get("limit")?)?,
                },
                "keynum" => FindEntry::Keynum {
                    keynumidx: integer(find_spec.get("keynumidx")?)?,
                    firstkey: integer(find_spec.get("firstkey")?)?,
                    keystep: integer(find_spec.get("keystep")?)?,
                },
                "unknown" => FindEntry::Unknown,
                _ => return None,
            },
            flags: words(spec.get("flags")?),
        })
    }
}

/// Asks one question on a connection of its own. Old servers have no COMMAND DOCS: an error is a
/// reply, too.
fn ask(server: &servers::ServerProcess, words: &[&str]) -> io::Result<Reply> {
    RespClient::try_connect(server.address())?.ask(words)
}

fn list(value: &Reply) -> &[Reply] {
    match value {
        Reply::Array(values) => values,
        _ => &[],
    }
}

fn text(value: &Reply) -> Option<String> {
    value
        .text()
        .map(|text| String::from_utf8_lossy(text).into_owned())
}

fn words(value: &Reply) -> Vec<String> {
    list(value).iter().filter_map(text).collect()
}

fn integer<T: TryFrom<i64>>(value: &Reply) -> Option<T> {
    match value {
        Reply::Integer(number) => T::try_from(*number).ok(),
        _ => None,
    }
}
