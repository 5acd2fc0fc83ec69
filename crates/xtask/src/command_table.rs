//! `cargo xtask commands`: the command table, generated from snapshots of real servers.
//!
//! ```text
//!  live servers --(--snapshot)--> crates/protocol/data/commands-*.json --+
//!                                 crates/protocol/data/policy.toml ------+--> src/commands/table.rs
//!                                                            +--> docs/reference/commands.md
//! ```
//!
//! This module reads the snapshots and the policy, joins them and checks them. An unknown flag, an
//! unknown tip and a rule without effect are errors, so that a new server version cannot slip in
//! unseen.

mod policy;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use respool_protocol::commands::{CommandFlags, FoldedName, KeyFlags, Servers};

use policy::{
    AnswerColumn, CoalesceColumn, DangerColumn, FanOutColumn, KeyScanColumn, MergeEntry,
    NamesColumn, Policy, ReplicaColumn, RetryColumn, SpreadEntry, When, apply,
};
use respool_testkit::random::Random;
use respool_testkit::servers::{self, Flavour};

use crate::wrap::wrapped;
use snapshot::{BeginEntry, CommandEntry, FindEntry, KeyEntry, Snapshot};

/// The servers that the table is generated from, each with the file of its snapshot.
const SOURCES: [(Flavour, &str); 2] = [
    (Flavour::Redis82, "commands-redis-8.2.json"),
    (Flavour::Valkey91, "commands-valkey-9.1.json"),
];

/// How to generate the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Write the table and the page from the snapshots that are checked in.
    Write,
    /// Ask the live servers first and write the snapshots, too.
    Snapshot,
    /// Write nothing. Compare the files with their sources and the snapshots with live servers.
    Check,
}

/// Runs `cargo xtask commands`.
///
/// # Errors
/// When a file cannot be read or written, the snapshots and the policy do not fit together, or the
/// check finds a difference.
pub(crate) fn run(root: &Path, mode: Mode) -> Result<(), String> {
    let outcome = match mode {
        Mode::Write => write_table(root),
        Mode::Snapshot => write_snapshots(root).and_then(|()| write_table(root)),
        Mode::Check => check(root),
    };
    outcome.map_err(|reason| format!("commands: {reason}"))
}

fn data(root: &Path, name: &str) -> PathBuf {
    root.join("crates/protocol/data").join(name)
}

/// The generated files: path and text.
fn generated(root: &Path) -> Result<[(PathBuf, String); 2], String> {
    let mut snapshots = Vec::new();
    for (_, file) in SOURCES {
        let text = read(&data(root, file))?;
        let snapshot: Snapshot =
            serde_json::from_str(&text).map_err(|error| format!("{file}: {error}"))?;
        snapshots.push(snapshot);
    }
    let policy: Policy = toml::from_str(&read(&data(root, "policy.toml"))?)
        .map_err(|error| format!("policy.toml: {error}"))?;
    let table = JoinedTable::join(&snapshots, policy)?;
    Ok([
        (
            root.join("crates/protocol/src/commands/table.rs"),
            table.code()?,
        ),
        (root.join("docs/reference/commands.md"), table.page()),
    ])
}

fn write_table(root: &Path) -> Result<(), String> {
    for (path, text) in generated(root)? {
        write(&path, &text)?;
    }
    Ok(())
}

fn write_snapshots(root: &Path) -> Result<(), String> {
    for (flavour, file) in SOURCES {
        write(&data(root, file), &Snapshot::take(flavour)?.text())?;
    }
    Ok(())
}

fn check(root: &Path) -> Result<(), String> {
    for (path, text) in generated(root)? {
        if read(&path)? != text {
            let path = path.strip_prefix(root).unwrap_or(&path);
            return Err(format!(
                "{} is stale: run `cargo xtask commands`",
                path.display()
            ));
        }
    }
    for (flavour, file) in SOURCES {
        if let Err(missing) = servers::find(flavour) {
            println!("not compared with a live server: {missing}");
            continue;
        }
        let recorded = read(&data(root, file))?;
        let live = Snapshot::take(flavour)?.text();
        if let Some((old, new)) = first_difference(&recorded, &live) {
            return Err(format!("{file} has {old}, the live server says {new}"));
        }
        println!("{file} agrees with the live server");
    }
    Ok(())
}

fn first_difference<'a>(old: &'a str, new: &'a str) -> Option<(&'a str, &'a str)> {
    let (mut old, mut new) = (old.lines(), new.lines());
    loop {
        match (old.next(), new.next()) {
            (None, None) => return None,
            (a, b) if a != b => {
                return Some((a.unwrap_or("nothing more"), b.unwrap_or("nothing more")));
            }
            _ => {}
        }
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let made = path.parent().map_or(Ok(()), fs::create_dir_all);
    made.and_then(|()| fs::write(path, text))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// The joined table, sorted as it is written.
#[derive(Debug)]
struct JoinedTable {
    rows: Vec<Row>,
}

#[derive(Clone, Debug)]
struct Row {
    name: String,
    arity: i16,
    flags: BTreeSet<String>,
    tips: BTreeSet<String>,
    keys: Vec<KeyEntry>,
    servers: Vec<String>,
    /// The differences between the servers, for the reader.
    differences: Vec<String>,
    answer: AnswerColumn,
    retry: RetryColumn,
    fan_out: FanOutColumn,
    coalesce: CoalesceColumn,
    replica: ReplicaColumn,
    danger: DangerColumn,
    names: NamesColumn,
    key_scan: KeyScanColumn,
    /// Column and reason of each rule that was applied.
    reasons: Vec<(String, String)>,
}

/// Flags that allow something: a command has them only if every server that knows it says so. Of all
/// others, which restrict or warn, one server's word is enough.
const ALLOWING: [&str; 6] = [
    "readonly",
    "fast",
    "loading",
    "stale",
    "no_auth",
    "allow_busy",
];

impl JoinedTable {
    fn join(snapshots: &[Snapshot], policy: Policy) -> Result<JoinedTable, String> {
        let mut said: BTreeMap<(String, String), Vec<(&str, &CommandEntry)>> = BTreeMap::new();
        for snapshot in snapshots {
            for entry in &snapshot.commands {
                let (container, sub) = entry.name.split_once('|').unwrap_or((&entry.name, ""));
                let key = (container.to_owned(), sub.to_owned());
                said.entry(key).or_default().push((&snapshot.server, entry));
            }
        }
        let mut rows = said
            .values()
            .map(|said| Row::join(said))
            .collect::<Result<Vec<_>, _>>()?;
        // Each column is derived from those before it, with their rules applied.
        apply("answer", &policy.answer, &mut rows, |row| &mut row.answer)?;
        apply("retry", &policy.retry, &mut rows, |row| &mut row.retry)?;
        apply("names", &policy.names, &mut rows, |row| &mut row.names)?;
        apply("key_scan", &policy.key_scan, &mut rows, |row| {
            &mut row.key_scan
        })?;
        for row in &mut rows {
            row.fan_out = row.derived_fan_out()?;
            row.coalesce = row.derived_coalesce();
            row.replica = row.derived_replica();
        }
        apply("fan_out", &policy.fan_out, &mut rows, |row| {
            &mut row.fan_out
        })?;
        apply("danger", &policy.danger, &mut rows, |row| &mut row.danger)?;
        apply("coalesce", &policy.coalesce, &mut rows, |row| {
            &mut row.coalesce
        })?;
        apply("replica", &policy.replica, &mut rows, |row| {
            &mut row.replica
        })?;
        for row in rows
            .iter()
            .filter(|row| row.fan_out.spread == SpreadEntry::Owners)
        {
            if let Some(why) = row.undividable() {
                return Err(format!(
                    "fan_out of {} is `owners`, but `Split` of the protocol crate cannot divide \
                     it: {why}; add a rule with another `spread`",
                    row.name
                ));
            }
        }
        Ok(JoinedTable { rows })
    }

    fn subcommands(&self, nth: usize) -> (usize, usize) {
        let prefix = format!("{}|", self.rows[nth].name);
        let count = self.rows[nth + 1..]
            .iter()
            .take_while(|row| row.name.starts_with(&prefix))
            .count();
        if count == 0 {
            (0, 0)
        } else {
            (nth + 1, nth + 1 + count)
        }
    }

    /// `table.rs`.
    fn code(&self) -> Result<String, String> {
        let mut code = String::from(CODE_HEAD);
        let _ = writeln!(
            code,
            "pub(super) const MULTIPLIER: u64 = {:#018x};\n",
            self.multiplier()?
        );
        let _ = writeln!(
            code,
            "pub(super) static COMMANDS: [Command; {}] = [",
            self.rows.len()
        );
        for (nth, row) in self.rows.iter().enumerate() {
            let (from, behind) = self.subcommands(nth);
            if !row.differences.is_empty() {
                let differences = row.differences.join("; ");
                code.push_str(&wrapped("    // ", "    // ", &differences));
            }
            let _ = writeln!(code, "    {}", row.code(from, behind)?);
        }
        code.push_str("];\n\n/// An id for every command and subcommand.\n");
        code.push_str("#[expect(missing_docs, reason = \"each is named as its command is\")]\n");
        code.push_str("pub mod id {\n    use super::super::CommandId;\n\n");
        let mut taken = BTreeSet::new();
        for (nth, row) in self.rows.iter().enumerate() {
            let constant: String = row
                .name
                .chars()
                .map(|c| {
                    if c.is_ascii_alphanumeric() {
                        c.to_ascii_uppercase()
                    } else {
                        '_'
                    }
                })
                .collect();
            let _ = writeln!(
                code,
                "    pub const {constant}: CommandId = CommandId({nth});"
            );
            if !taken.insert(constant) {
                return Err(format!("the constant of {} is taken", row.name));
            }
        }
        code.push_str("}\n");
        Ok(code)
    }

    /// The first number of a fixed sequence that gives every command a slot of its own.
    fn multiplier(&self) -> Result<u64, String> {
        let mut names = Vec::new();
        for row in self.rows.iter().filter(|row| !row.name.contains('|')) {
            let folded = FoldedName::of(row.name.as_bytes());
            names.push(folded.ok_or_else(|| format!("{} is longer than a name can be", row.name))?);
        }
        let mut random = Random::new(0);
        // About one number in four thousand will do.
        for _ in 0..10_000_000 {
            let number = random.next_u64() | 1;
            let mut taken = [false; FoldedName::SLOTS];
            if names
                .iter()
                .all(|name| !std::mem::replace(&mut taken[name.slot(number)], true))
            {
                return Ok(number);
            }
        }
        Err(
            "no multiplier gives every command a slot of its own: FoldedName needs more slots"
                .to_owned(),
        )
    }

    /// `docs/reference/commands.md`.
    fn page(&self) -> String {
        let mut page = String::from(PAGE_HEAD);
        for row in &self.rows {
            let _ = writeln!(page, "{}", row.page_line());
        }
        page.push_str(
            "\n## Reasons\n\nEach rule of `crates/protocol/data/policy.toml`: its commands, then its \
             reason.\n",
        );
        let mut rules: Vec<(&str, &str, Vec<String>)> = Vec::new();
        for column in [
            "answer", "retry", "danger", "fan_out", "coalesce", "replica", "names", "key_scan",
        ] {
            for row in &self.rows {
                for (_, reason) in row.reasons.iter().filter(|(of, _)| of == column) {
                    let shown = shown_name(&row.name);
                    match rules
                        .iter_mut()
                        .find(|(of, why, _)| *of == column && why == reason)
                    {
                        Some((_, _, names)) => names.push(shown),
                        None => rules.push((column, reason, vec![shown])),
                    }
                }
            }
        }
        for (column, reason, names) in rules {
            let title = match column {
                "answer" => "Answered by",
                "retry" => "Retry",
                "fan_out" => "Several servers",
                "danger" => "Refused by default",
                "coalesce" => "Coalesced",
                "replica" => "Replicas",
                "names" => "Keys in the reply",
                _ => "Keys",
            };
            let names = format!("**{title}**: {}", names.join(", "));
            page.push('\n');
            page.push_str(&wrapped("- ", "  ", &names));
            page.push_str(&wrapped("  ", "  ", reason));
        }
        page.push_str("\n## Differences between the servers\n\n");
        for row in self.rows.iter().filter(|row| !row.differences.is_empty()) {
            let text = format!("{}: {}", shown_name(&row.name), row.differences.join("; "));
            page.push_str(&wrapped("- ", "  ", &text));
        }
        page
    }
}

/// `config|get` as people write it: `CONFIG GET`.
fn shown_name(name: &str) -> String {
    name.to_uppercase().replace('|', " ")
}

impl Row {
    /// The safe union of the servers' entries of one command.
    fn join(said: &[(&str, &CommandEntry)]) -> Result<Row, String> {
        let (_, first) = said[0];
        let mut row = Row {
            name: first.name.clone(),
            arity: first.arity,
            flags: first.flags.iter().cloned().collect(),
            tips: first.tips.iter().cloned().collect(),
            keys: first.keys.clone(),
            servers: said
                .iter()
                .map(|(server, _)| (*server).to_owned())
                .collect(),
            differences: Vec::new(),
            answer: AnswerColumn::Server,
            retry: RetryColumn::Write,
            fan_out: FanOutColumn {
                spread: SpreadEntry::Any,
                merge: MergeEntry::One,
            },
            coalesce: CoalesceColumn::None,
            replica: ReplicaColumn::default(),
            danger: DangerColumn::default(),
            names: NamesColumn::None,
            key_scan: KeyScanColumn::Specs,
            reasons: Vec::new(),
        };
        for (_, entry) in &said[1..] {
            if entry.arity != row.arity {
                // The wider arity: the server itself refuses other requests.
                row.arity = -row.arity.abs().min(entry.arity.abs());
            }
            let flags: BTreeSet<String> = entry.flags.iter().cloned().collect();
            let allowing = |flag: &&String| ALLOWING.contains(&flag.as_str());
            row.flags = row
                .flags
                .union(&flags)
                .filter(|flag| {
                    !allowing(flag) || (row.flags.contains(*flag) && flags.contains(*flag))
                })
                .cloned()
                .collect();
            row.tips.extend(entry.tips.iter().cloned());
            if entry.keys.len() != row.keys.len() {
                return Err(format!(
                    "the servers disagree on how many key specs {} has",
                    row.name
                ));
            }
            for (ours, theirs) in row.keys.iter_mut().zip(&entry.keys) {
                if (&ours.begin, &ours.find) != (&theirs.begin, &theirs.find) {
                    return Err(format!(
                        "the servers disagree on where the keys of {} are",
                        row.name
                    ));
                }
                let more: Vec<_> = theirs
                    .flags
                    .iter()
                    .filter(|flag| !ours.flags.contains(flag))
                    .cloned()
                    .collect();
                ours.flags.extend(more);
            }
        }
        row.differences = differences(said);
        if row.flags.contains("readonly") {
            row.retry = RetryColumn::Read;
        }
        Ok(row)
    }

    fn derived_fan_out(&self) -> Result<FanOutColumn, String> {
        let tip = |kind: &str| -> Result<Option<&str>, String> {
            let mut found = self.tips.iter().filter_map(|tip| tip.strip_prefix(kind));
            match (found.next(), found.next()) {
                (_, Some(_)) => Err(format!(
                    "the servers disagree on the {kind} of {}",
                    self.name
                )),
                (one, None) => Ok(one),
            }
        };
        let spread = match (&self.answer, tip("request_policy:")?) {
            // Of WATCH, whose keys have an owner.
            (AnswerColumn::Session, _) if self.has_keys() => SpreadEntry::Owner,
            (AnswerColumn::Session, _) => SpreadEntry::Local,
            (AnswerColumn::Refused { .. }, _) => SpreadEntry::Refused,
            (AnswerColumn::Pinned, _) => SpreadEntry::Off,
            (_, Some("all_nodes" | "all_shards")) => SpreadEntry::All,
            (_, Some("multi_shard")) => SpreadEntry::Owners,
            // A rule has to say how.
            (_, Some("special")) => SpreadEntry::Refused,
            (_, Some(other)) => {
                return Err(format!("{}: unknown request_policy {other}", self.name));
            }
            (_, None) if !self.keys.is_empty() => SpreadEntry::Owner,
            (_, None) if self.flags.contains("admin") => SpreadEntry::Refused,
            (_, None) => SpreadEntry::Any,
        };
        let of_several = match tip("response_policy:")? {
            Some("all_succeeded") => MergeEntry::AllSucceeded,
            Some("one_succeeded") => MergeEntry::OneSucceeded,
            Some("agg_logical_and") => MergeEntry::And,
            Some("agg_sum") => MergeEntry::Sum,
            Some("agg_min") => MergeEntry::Min,
            Some("special") => MergeEntry::Special,
            Some(other) => return Err(format!("{}: unknown response_policy {other}", self.name)),
            None if spread == SpreadEntry::Owners => MergeEntry::KeyOrder,
            None => MergeEntry::Concat,
        };
        let merge = match spread {
            SpreadEntry::Owners | SpreadEntry::All => of_several,
            _ => MergeEntry::One,
        };
        Ok(FanOutColumn { spread, merge })
    }

    /// The reason why `Split` of the protocol crate cannot divide the command among the owners of
    /// its keys. `None`: it can.
    fn undividable(&self) -> Option<&'static str> {
        let [KeyEntry { begin, find, .. }] = &self.keys[..] else {
            return Some("it has not exactly one key spec");
        };
        // The number of arguments of a request with one key, the name included.
        let with_one_key = match (begin, find) {
            (
                BeginEntry::Index(1),
                FindEntry::Range {
                    lastkey: -1,
                    keystep,
                    limit: 0 | 1,
                },
            ) => 1 + i16::from(*keystep).max(1),
            (
                BeginEntry::Index(1),
                FindEntry::Keynum {
                    keynumidx: 0,
                    firstkey: 1,
                    keystep,
                },
            ) => 2 + i16::from(*keystep).max(1),
            _ => return Some("its first argument is neither a key nor the number of keys"),
        };
        (-self.arity < 0 || -self.arity > with_one_key)
            .then_some("a request with one key has too few arguments")
    }

    fn has_keys(&self) -> bool {
        let is_no_key = |key: &KeyEntry| key.flags.iter().any(|flag| flag == "not_key");
        self.keys.iter().any(|key| !is_no_key(key))
    }

    fn derived_coalesce(&self) -> CoalesceColumn {
        let pure =
            self.flags.contains("readonly") && !self.tips.contains("nondeterministic_output");
        let is_asked_as_it_is = self.answer == AnswerColumn::Server && !self.name.contains('|');
        if pure && self.only_key() > 0 && is_asked_as_it_is {
            CoalesceColumn::Collapse
        } else {
            CoalesceColumn::None
        }
    }

    fn derived_replica(&self) -> ReplicaColumn {
        ReplicaColumn {
            may_answer: self.flags.contains("readonly")
                && !self.tips.contains("nondeterministic_output")
                && self.has_keys()
                && self.answer == AnswerColumn::Server,
        }
    }

    /// The argument that is the only key, for any other arguments, or 0.
    fn only_key(&self) -> u8 {
        match &self.keys[..] {
            [
                KeyEntry {
                    begin: BeginEntry::Index(index),
                    find: FindEntry::Range { lastkey: 0, .. },
                    flags,
                },
            ] if self.key_scan == KeyScanColumn::Specs
                && !flags
                    .iter()
                    .any(|flag| flag == "not_key" || flag == "incomplete") =>
            {
                *index
            }
            _ => 0,
        }
    }

    /// One line of `table.rs`.
    fn code(&self, from: usize, behind: usize) -> Result<String, String> {
        let flags = constants(&self.flags, CommandFlags::NAMES)
            .map_err(|flag| format!("{} has an unknown flag {flag}", self.name))?;
        let servers = constants(&self.servers, Servers::NAMES)
            .map_err(|server| format!("{}: unknown server {server}", self.name))?;
        let mut keys = Vec::new();
        for key in &self.keys {
            let flags = constants(&key.flags, KeyFlags::NAMES)
                .map_err(|flag| format!("{} has an unknown key flag {flag}", self.name))?;
            let begin = match &key.begin {
                BeginEntry::Index(index) => format!("Index({index})"),
                BeginEntry::Keyword { keyword, startfrom } => {
                    format!(
                        "Keyword {{ word: b{:?}, from: {startfrom} }}",
                        keyword.to_lowercase()
                    )
                }
                BeginEntry::Unknown => "Begin::Unknown".to_owned(),
            };
            let find = match key.find {
                FindEntry::Range {
                    lastkey,
                    keystep,
                    limit,
                } => {
                    format!("Range {{ last: {lastkey}, step: {keystep}, limit: {limit} }}")
                }
                FindEntry::Keynum {
                    keynumidx,
                    firstkey,
                    keystep,
                } => {
                    format!("Count {{ number: {keynumidx}, first: {firstkey}, step: {keystep} }}")
                }
                FindEntry::Unknown => "Find::Unknown".to_owned(),
            };
            keys.push(format!("key!({flags} {begin}, {find})"));
        }
        let answer = match &self.answer {
            AnswerColumn::Refused { why } => format!("Refused(CommandRefusal::{why:?})"),
            AnswerColumn::Conditional { condition } => {
                format!("Conditional(Condition::{condition:?})")
            }
            other => format!("{other:?}"),
        };
        Ok(format!(
            "row!({:?} {} {flags} {servers} [{}] {:?} {} | {answer}; {:?}; {:?} {:?}; {:?}; {:?}; {} {}; {from} {behind}),",
            self.name,
            self.arity,
            keys.join(", "),
            self.key_scan,
            self.only_key(),
            self.retry,
            self.fan_out.spread,
            self.fan_out.merge,
            self.coalesce,
            self.names,
            self.replica.may_answer,
            self.danger.refused_by_default,
        ))
    }

    /// One row of the table in `docs/reference/commands.md`.
    fn page_line(&self) -> String {
        let answer = match &self.answer {
            AnswerColumn::Server => "server".to_owned(),
            AnswerColumn::Session => "respool".to_owned(),
            AnswerColumn::Alone => "server, on a link of its own while it runs".to_owned(),
            AnswerColumn::Pinned => "server, on a link that the session keeps".to_owned(),
            AnswerColumn::Refused { why } => format!("refused: {}", why.shown()),
            AnswerColumn::Conditional {
                condition: When::Block,
            } => "server; with BLOCK on a link of its own while it runs".to_owned(),
            AnswerColumn::Conditional {
                condition: When::Script,
            } => "server; a script it has forgotten is sent along".to_owned(),
            AnswerColumn::Conditional {
                condition: When::Count,
            } => "server; clients are counted, not connections".to_owned(),
            AnswerColumn::Conditional {
                condition: When::DebugProtocol,
            } => "server; refused with PROTOCOL".to_owned(),
        };
        let answer = if self.danger.refused_by_default {
            format!("{answer}; refused by default")
        } else {
            answer
        };
        let retry = match self.retry {
            RetryColumn::Read => "yes",
            RetryColumn::Write => "no",
        };
        let coalesce = match self.coalesce {
            CoalesceColumn::None => "",
            CoalesceColumn::Get => "fused into MGET, collapsed",
            CoalesceColumn::Set => "fused into MSET",
            CoalesceColumn::Collapse => "collapsed",
        };
        let replica = match self.replica.may_answer {
            true => "yes",
            false => "",
        };
        let fan_out = match (self.fan_out.spread, self.fan_out.merge) {
            (SpreadEntry::Owner, _) => "its keys' one owner",
            (SpreadEntry::Owners, _) => "divided among its keys' owners",
            (SpreadEntry::Any, _) => "the first that is up",
            (SpreadEntry::Default, _) => "the first",
            (SpreadEntry::Channels, _) => "the first; of a Cluster all",
            (SpreadEntry::All, MergeEntry::Concat) => "all; what each has",
            (SpreadEntry::All, MergeEntry::AllSucceeded) => "all; each has to succeed",
            (SpreadEntry::All, MergeEntry::OneSucceeded) => "all; one has to succeed",
            (SpreadEntry::All, MergeEntry::Sum) => "all; the sum",
            (SpreadEntry::All, MergeEntry::Min) => "all; the smallest",
            (SpreadEntry::All, MergeEntry::And) => "all; 1 if each says so",
            (SpreadEntry::All, _) => "all; merged",
            (SpreadEntry::Sequence, _) => "one after the other",
            (SpreadEntry::Node, _) if self.answer == AnswerColumn::Session => "respool",
            (SpreadEntry::Node, _) => "the first that is up; of a Cluster respool",
            (SpreadEntry::Local, _) => "respool",
            (SpreadEntry::Off, MergeEntry::AllSucceeded) => "each that the session asks",
            (SpreadEntry::Off, _) => "refused, unless OFF",
            (SpreadEntry::Refused, _) => "refused",
        };
        let known = if self.servers.len() == SOURCES.len() {
            "both".to_owned()
        } else {
            self.servers.join(", ")
        };
        let name = shown_name(&self.name);
        format!(
            "| {name} | {} | {answer} | {retry} | {coalesce} | {replica} | {fan_out} | {known} |",
            self.arity
        )
    }
}

/// The differences between the servers in one command.
fn differences(said: &[(&str, &CommandEntry)]) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |what: &str, of: &dyn Fn(&CommandEntry) -> String| {
        let told: Vec<String> = said.iter().map(|(_, entry)| of(entry)).collect();
        if told.windows(2).any(|pair| pair[0] != pair[1]) {
            let told: Vec<String> = said
                .iter()
                .zip(told)
                .map(|((server, _), told)| format!("{server} {told}"))
                .collect();
            found.push(format!("{what}: {}", told.join(", ")));
        }
    };
    compare("arity", &|entry| entry.arity.to_string());
    // Only the words that some servers lack.
    let only = |entry: &CommandEntry, of: &dyn Fn(&CommandEntry) -> Vec<String>| {
        let own = of(entry);
        let rest = own
            .iter()
            .filter(|word| said.iter().any(|(_, other)| !of(other).contains(word)));
        format!("[{}]", rest.cloned().collect::<Vec<_>>().join(" "))
    };
    compare("flags", &|entry| only(entry, &|entry| entry.flags.clone()));
    compare("tips", &|entry| only(entry, &|entry| entry.tips.clone()));
    compare("key flags", &|entry| {
        only(entry, &|entry| {
            let flags = entry.keys.iter().enumerate();
            flags
                .flat_map(|(nth, key)| key.flags.iter().map(move |flag| format!("{nth}:{flag}")))
                .collect()
        })
    });
    found
}

/// The names of a set as the constants that they have in the code, in the code's order, not in that
/// of the server. Fails with the first name that is not `known`.
fn constants<'a>(
    names: impl IntoIterator<Item = &'a String>,
    known: &[(&str, impl Sized)],
) -> Result<String, String> {
    let mut found = BTreeSet::new();
    for name in names {
        let place = known.iter().position(|(known, _)| known == name);
        found.insert(place.ok_or_else(|| name.clone())?);
    }
    let constants = found
        .iter()
        .map(|&place| known[place].0.to_uppercase().replace(['-', '.'], "_"));
    Ok(format!("[{}]", constants.collect::<Vec<_>>().join(" ")))
}

const CODE_HEAD: &str = r#"//! Generated by `cargo xtask commands` from `data/`; do not edit.

use super::*;

/// One row: name, arity, flags, servers, key specs, key scan, only key; answer; retry; fan-out;
/// coalescing; where its reply names keys; whether a replica may answer it, whether it is dangerous;
/// ids of the subcommands.
macro_rules! row {
    ($name:literal $arity:literal [$($flag:ident)*] [$($server:ident)*] [$($key:expr),*] $scan:ident $only_key:literal
     | $answer:expr; $retry:ident; $spread:ident $merge:ident; $coalesce:ident; $names:ident; $replica:literal $danger:literal; $from:literal $behind:literal) => {
        Command {
            name: $name,
            arity: $arity,
            flags: CommandFlags::NONE$(.or(CommandFlags::$flag))*,
            keys: &[$($key),*],
            key_scan: KeyScan::$scan,
            only_key: $only_key,
            answer: $answer,
            retry: Retry::$retry,
            fan_out: FanOut { spread: Spread::$spread, merge: Merge::$merge },
            coalesce: Coalesce::$coalesce,
            names: Names::$names,
            replica: $replica,
            dangerous: $danger,
            servers: Servers::NONE$(.or(Servers::$server))*,
            subcommands: ($from, $behind),
        }
    };
}

/// A key spec.
macro_rules! key {
    ([$($flag:ident)*] $begin:expr, $find:expr) => {
        KeySpec { begin: $begin, find: $find, flags: KeyFlags::NONE$(.or(KeyFlags::$flag))* }
    };
}

use Answer::{Alone, Conditional, Pinned, Refused, Server, Session};
use Begin::{Index, Keyword};
use Find::{Count, Range};

/// Gives every name a slot of its own, see [`FoldedName::slot`].
"#;

const PAGE_HEAD: &str = "\
<!-- Generated by `cargo xtask commands`; do not edit. -->
# Commands

This table says how respool handles every command that Redis 8.2 or Valkey 9.1 has. The columns
*Command*, *Arity* and *Known to* come from these servers. The others come from
`crates/protocol/data/policy.toml`; its rules and their reasons stand below the table.

- **Arity**: the number of arguments, the name included. A negative number is a minimum.
- **Answered by**: the server or respool, where the pool has one server. A refused command would
  change the shared link for other clients. A command with subcommands has a row of its own: it is
  about subcommands that this table does not have. A command that is refused by default passes if
  the option `refuse-commands` allows it.
- **Retry**: whether respool may send the command again when the first attempt may have run.
- **Coalesced**: how the command may be joined with others in a batch.
- **Replicas**: whether a replica may answer the command, where reads go to replicas.
- **Several servers**: which servers of a pool get the command, and how their replies are merged.
  - A command that goes to the owner of its keys, and has none, goes to the first server that is up.
  - *The first* is the server where all clients publish and subscribe. Before a Cluster, SPUBLISH
    goes to the owner of its channel.
  - Within a transaction, and while a session watches keys, commands for several servers are
    refused. Within a transaction, commands that respool answers for a Cluster are refused, too.
  - If the pool has no Cluster, the first server that is up refuses all subcommands of CLUSTER.
- **Known to**: which of the two servers has the command.

| Command | Arity | Answered by | Retry | Coalesced | Replicas | Several servers | Known to |
|---|---|---|---|---|---|---|---|
";
