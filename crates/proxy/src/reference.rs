//! The options and metrics as plain text, for the generators of the man page, the completions of
//! the shells and the reference pages.
//!
//! The generators are in the crate `xtask`, which never ships, so the program has no code for them.
//! The table itself stays private: its entries hold functions that read and write the program's
//! values. A generator needs texts only. A crate of its own for the table would need the parsers of
//! addresses, accounts and pools, too.

use respool_config::options::{OPTIONS, Opt, OptionKind, Topic};

use crate::help;
use crate::metrics;

/// Options with a common heading.
#[derive(Debug)]
pub struct TopicText {
    /// The heading.
    pub title: &'static str,
    /// Common facts about its options; may be empty.
    pub intro: &'static str,
    /// In the order of the table.
    pub options: Vec<OptionText>,
}

/// One option.
#[derive(Debug)]
pub struct OptionText {
    /// Its name, without dashes in front.
    pub name: &'static str,
    /// The type of its value.
    pub takes: ValueType,
    /// The placeholder of its value, or its choices with `|` between them; empty for a switch.
    pub value: &'static str,
    /// Its meaning, in one line without a full stop.
    pub brief: &'static str,
    /// More paragraphs.
    pub more: Vec<&'static str>,
    /// The default, where there is one.
    pub default: Option<String>,
    /// The range of a number, in words.
    pub range: Option<String>,
    /// The environment variable that sets it, too.
    pub variable: Option<&'static str>,
    /// Whether the table of a pool in the file may set it for that pool alone.
    pub per_pool: bool,
    /// The old name and how long it works, if there is one.
    pub old_name: Option<String>,
    /// The effect of a reload on a new value.
    pub at_reload: &'static str,
    /// An example for the command line.
    pub example: String,
    /// The same example for the file.
    pub example_in_file: String,
}

/// The type of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// `true` or `false`; the bare name means `true`.
    Switch,
    /// A whole number.
    Number,
    /// One text.
    Text,
    /// Any number of texts.
    List,
}

/// The name and the meaning of the option that names the file. It is not in the table, because a
/// file cannot name a file.
pub const CONFIG: (&str, &str) = help::CONFIG;

/// The precedence of command line, environment and file.
pub const LAYERS: &str = help::LAYERS;

/// The tables of the file that may set an option of a pool.
pub const PER_POOL: &str = help::PER_POOL;

/// A family of metrics.
#[derive(Debug)]
pub struct MetricText {
    /// The name as a query writes it.
    pub name: String,
    /// `counter`, `gauge`, `histogram` or `info`.
    pub kind: &'static str,
    /// The names of its labels.
    pub labels: Vec<&'static str>,
    /// Its meaning.
    pub text: &'static str,
    /// The fields of INFO with the same fact.
    pub info: Vec<String>,
    /// Its counters: the label of the sample if there is one, and the field of INFO.
    pub counters: Vec<(Option<(&'static str, &'static str)>, String)>,
}

/// Every family of metrics, in the order of `/metrics`.
pub fn metrics() -> Vec<MetricText> {
    let metric = |family: &metrics::MetricFamily| {
        let counters: Vec<_> = family
            .source
            .labelled_counters()
            .into_iter()
            .map(|(label, counter)| (label, format!("respool_{counter}")))
            .collect();
        MetricText {
            name: family.full_name(),
            kind: family.kind.name(),
            labels: family.source.labels(),
            text: family.text(),
            info: counters
                .iter()
                .map(|(_, field)| field.clone())
                .chain(family.info.iter().map(|field| (*field).to_owned()))
                .collect(),
            counters,
        }
    };
    metrics::FAMILIES.iter().map(metric).collect()
}

/// Fields of INFO that no metric shows, each with the reason.
pub fn fields_without_metric() -> &'static [(&'static str, &'static str)] {
    metrics::LEFT_OUT
}

/// Every option, below its heading.
pub fn topics() -> Vec<TopicText> {
    let options = |topic| OPTIONS.iter().filter(move |option| option.topic == topic);
    let topics = Topic::ALL.into_iter().map(|topic| TopicText {
        title: topic.title(),
        intro: topic.intro(),
        options: options(topic).map(text).collect(),
    });
    topics.collect()
}

fn text(option: &Opt) -> OptionText {
    OptionText {
        name: option.name,
        takes: match option.kind {
            OptionKind::Switch(_) => ValueType::Switch,
            OptionKind::Number(_) => ValueType::Number,
            OptionKind::Text { .. } => ValueType::Text,
            OptionKind::List { .. } => ValueType::List,
        },
        value: option.value,
        brief: option.brief,
        more: option
            .more
            .split("\n\n")
            .filter(|more| !more.is_empty())
            .collect(),
        default: option.default(),
        range: match &option.kind {
            OptionKind::Number(number) => Some(number.range()),
            _ => None,
        },
        variable: option.variable,
        per_pool: option.per_pool,
        old_name: help::old_name(option),
        at_reload: help::at_reload(option),
        example: help::example(option),
        example_in_file: option.example_in_file(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No option of the table is missing in the generated pages.
    #[test]
    fn every_option_is_below_one_heading() {
        let topics = topics();
        let mut names: Vec<&str> = topics
            .iter()
            .flat_map(|topic| topic.options.iter().map(|option| option.name))
            .collect();
        let mut table: Vec<&str> = OPTIONS.iter().map(|option| option.name).collect();
        names.sort_unstable();
        table.sort_unstable();
        assert_eq!(names, table);
    }
}
