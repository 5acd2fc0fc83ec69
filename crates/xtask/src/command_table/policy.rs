//! Our own columns: `policy.toml`, and how its rules are put into effect.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::Row;

/// `policy.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Policy {
    pub(super) answer: Vec<Rule<AnswerColumn>>,
    pub(super) danger: Vec<Rule<DangerColumn>>,
    pub(super) retry: Vec<Rule<RetryColumn>>,
    pub(super) fan_out: Vec<Rule<FanOutColumn>>,
    pub(super) coalesce: Vec<Rule<CoalesceColumn>>,
    pub(super) replica: Vec<Rule<ReplicaColumn>>,
    pub(super) names: Vec<Rule<NamesColumn>>,
    pub(super) key_scan: Vec<Rule<KeyScanColumn>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Rule<T> {
    #[serde(flatten)]
    pub(super) value: T,
    pub(super) commands: Vec<String>,
    pub(super) reason: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub(super) enum AnswerColumn {
    Server,
    Session,
    Alone,
    Pinned,
    Refused { why: Why },
    Conditional { condition: When },
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Why {
    Replication,
    ConnectionState,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum When {
    Block,
    Script,
    Count,
    DebugProtocol,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub(super) struct DangerColumn {
    pub(super) refused_by_default: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub(super) struct ReplicaColumn {
    pub(super) may_answer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(tag = "class", rename_all = "snake_case")]
pub(super) enum RetryColumn {
    Read,
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(super) struct FanOutColumn {
    pub(super) spread: SpreadEntry,
    pub(super) merge: MergeEntry,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SpreadEntry {
    Owner,
    Owners,
    Any,
    Default,
    Channels,
    All,
    Sequence,
    Node,
    Local,
    Off,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum MergeEntry {
    One,
    KeyOrder,
    Concat,
    AllSucceeded,
    OneSucceeded,
    Sum,
    Min,
    And,
    Special,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(tag = "class", rename_all = "snake_case")]
pub(super) enum CoalesceColumn {
    None,
    Get,
    Set,
    Collapse,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(tag = "keys", rename_all = "snake_case")]
pub(super) enum NamesColumn {
    None,
    Whole,
    Each,
    First,
    Second,
    Streams,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(tag = "scan", rename_all = "snake_case")]
pub(super) enum KeyScanColumn {
    Specs,
    Sort,
    GeoRadius,
    Migrate,
    DebugObject,
}

/// Applies the rules of one column; `of` finds the column in a row.
pub(super) fn apply<T: PartialEq + Clone + std::fmt::Debug>(
    column: &str,
    rules: &[Rule<T>],
    rows: &mut [Row],
    of: impl Fn(&mut Row) -> &mut T,
) -> Result<(), String> {
    let mut set_already = BTreeSet::new();
    for rule in rules {
        if rule.reason.trim().is_empty() {
            return Err(format!(
                "policy: a rule for {column} gives no reason ({:?})",
                rule.commands
            ));
        }
        for pattern in &rule.commands {
            let mut matched = false;
            for row in rows.iter_mut().filter(|row| matches(pattern, &row.name)) {
                matched = true;
                let name = row.name.clone();
                let cell = of(row);
                if *cell == rule.value {
                    return Err(format!(
                        "policy: {column} of {name} is {cell:?} without this rule"
                    ));
                }
                if !set_already.insert(name.clone()) {
                    return Err(format!("policy: two rules set {column} of {name}"));
                }
                *cell = rule.value.clone();
                row.reasons
                    .push((column.to_owned(), rule.reason.trim().to_owned()));
            }
            if !matched {
                return Err(format!("policy: no command is called {pattern} ({column})"));
            }
        }
    }
    Ok(())
}

/// Whether a name fits a pattern with at most one `*`.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        Some((start, end)) => {
            name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        }
        None => pattern == name,
    }
}

impl Why {
    /// As the page shows it.
    pub(super) fn shown(self) -> &'static str {
        match self {
            Why::Replication => "replication",
            Why::ConnectionState => "connection state",
        }
    }
}
