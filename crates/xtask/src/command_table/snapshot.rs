//! What a server says of its commands, as it is checked in.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;

use respool_protocol::encode;
use respool_protocol::value::Value;
use serde::{Deserialize, Serialize};

use respool_testkit::servers::{self, Flavour};

/// What one server says of its commands.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Snapshot {
    pub(super) server: String,
    pub(super) commands: Vec<Entry>,
}

/// One command or subcommand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
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
        let server = servers::Server::start::<&str>(&binary, &[]).map_err(failed)?;
        let commands = ask(&server, &["COMMAND"]).map_err(failed)?;
        let docs = ask(&server, &["COMMAND", "DOCS"]).map_err(failed)?;
        let mut entries = BTreeMap::new();
        for command in list(&commands) {
            Entry::read(command, &docs, &mut entries)
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

impl Entry {
    /// Reads an element of COMMAND's reply and those of its subcommands:
    /// name, arity, flags, first key, last key, step, ACL categories, tips, key specs, subcommands.
    fn read(
        command: &Value,
        docs: &Value,
        entries: &mut BTreeMap<(String, String), Entry>,
    ) -> Option<()> {
        let fields = list(command);
        let name = text(fields.first()?)?.to_lowercase();
        let doc = docs.field(&text(fields.first()?)?);
        let mut acl = words(fields.get(6)?);
        acl.sort();
        let mut flags = words(fields.get(2)?);
        flags.sort();
        let mut tips = words(fields.get(7)?);
        tips.sort();
        let told = |key| doc.and_then(|doc| doc.field(key)).and_then(text);
        let entry = Entry {
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
        let no_docs = Value::Null;
        let sub_docs = doc
            .and_then(|doc| doc.field("subcommands"))
            .unwrap_or(&no_docs);
        list(fields.get(9)?)
            .iter()
            .try_for_each(|sub| Entry::read(sub, sub_docs, entries))
    }
}

impl KeyEntry {
    fn read(spec: &Value) -> Option<KeyEntry> {
        let (begin, find) = (spec.field("begin_search")?, spec.field("find_keys")?);
        let (begin_spec, find_spec) = (begin.field("spec")?, find.field("spec")?);
        Some(KeyEntry {
            begin: match text(begin.field("type")?)?.as_str() {
                "index" => BeginEntry::Index(integer(begin_spec.field("index")?)?),
                "keyword" => BeginEntry::Keyword {
                    keyword: text(begin_spec.field("keyword")?)?,
                    startfrom: integer(begin_spec.field("startfrom")?)?,
                },
                "unknown" => BeginEntry::Unknown,
                _ => return None,
            },
            find: match text(find.field("type")?)?.as_str() {
                "range" => FindEntry::Range {
                    lastkey: integer(find_spec.field("lastkey")?)?,
                    keystep: integer(find_spec.field("keystep")?)?,
                    limit: integer(find_spec.field("limit")?)?,
                },
                "keynum" => FindEntry::Keynum {
                    keynumidx: integer(find_spec.field("keynumidx")?)?,
                    firstkey: integer(find_spec.field("firstkey")?)?,
                    keystep: integer(find_spec.field("keystep")?)?,
                },
                "unknown" => FindEntry::Unknown,
                _ => return None,
            },
            flags: words(spec.field("flags")?),
        })
    }
}

/// Asks one question on a connection of its own.
fn ask(server: &servers::Server, words: &[&str]) -> io::Result<Value> {
    let mut request = Vec::new();
    encode::request(&mut request, words);
    encode::request(&mut request, &["QUIT"]);
    let mut stream = TcpStream::connect(server.address())?;
    stream.write_all(&request)?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    let reply = reply.strip_suffix(b"+OK\r\n").unwrap_or(&reply);
    Value::read(reply).ok_or_else(|| io::Error::other(format!("no whole reply to {words:?}")))
}

fn list(value: &Value) -> &[Value] {
    match value {
        Value::List(values) => values,
        _ => &[],
    }
}

fn text(value: &Value) -> Option<String> {
    value
        .text()
        .map(|text| String::from_utf8_lossy(text).into_owned())
}

fn words(value: &Value) -> Vec<String> {
    list(value).iter().filter_map(text).collect()
}

fn integer<T: TryFrom<i64>>(value: &Value) -> Option<T> {
    match value {
        Value::Integer(number) => T::try_from(*number).ok(),
        _ => None,
    }
}
