//! Problems of the command line and the configuration, with their places.

use std::fmt;

use crate::plain::plain;

/// A source of values. A later layer overrules an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Layer {
    /// The defaults.
    Default,
    /// The configuration file.
    File,
    /// The environment.
    Environment,
    /// The command line, or the code of a program.
    Arguments,
}

/// The place where a value is given, for the operator to change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigPlace {
    /// No layer gives the value.
    Default,
    /// A position in the file.
    File {
        /// The path as the operator gives it.
        path: String,
        /// The line, from 1.
        line: usize,
        /// The column in characters, from 1.
        column: usize,
    },
    /// An environment variable.
    Environment(&'static str),
    /// The command line.
    Arguments,
    /// A call in the code of a program with an embedded client.
    Code,
}

impl ConfigPlace {
    /// The layer of the place.
    pub(crate) fn layer(&self) -> Layer {
        match self {
            ConfigPlace::Default => Layer::Default,
            ConfigPlace::File { .. } => Layer::File,
            ConfigPlace::Environment(_) => Layer::Environment,
            ConfigPlace::Arguments | ConfigPlace::Code => Layer::Arguments,
        }
    }
}

impl fmt::Display for ConfigPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigPlace::Default => f.write_str("default"),
            ConfigPlace::File { path, line, column } => {
                write!(f, "{}:{line}:{column}", plain(path))
            }
            ConfigPlace::Environment(variable) => f.write_str(variable),
            ConfigPlace::Arguments => f.write_str("command line"),
            ConfigPlace::Code => f.write_str("code"),
        }
    }
}

/// One mistake in one line: the place, the mistake, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    place: ConfigPlace,
    /// The option, as the place names it; `None`: the problem is about no single option.
    option: Option<String>,
    text: String,
    /// Whether the problem may pass without a change of the configuration.
    may_pass: bool,
}

impl Problem {
    /// A problem of the option `name`.
    pub fn of_option(name: &str, place: &ConfigPlace, what: impl fmt::Display) -> Problem {
        let text = match place {
            ConfigPlace::Arguments => format!("--{name}: {what}"),
            ConfigPlace::File { .. } => format!("{name}: {what}"),
            // The place shows the name of the variable, which says enough.
            ConfigPlace::Environment(_) => what.to_string(),
            ConfigPlace::Default | ConfigPlace::Code => format!("{name}: {what}"),
        };
        Problem {
            place: place.clone(),
            option: Some(name.to_owned()),
            text,
            may_pass: false,
        }
    }

    /// A problem of a place.
    pub fn at(place: ConfigPlace, text: impl Into<String>) -> Problem {
        Problem {
            place,
            option: None,
            text: text.into(),
            may_pass: false,
        }
    }

    /// The same problem as one that may pass without a change of the configuration: a file that
    /// another program writes, or a command that asks another machine.
    pub(crate) fn of_moment(self) -> Problem {
        Problem {
            may_pass: true,
            ..self
        }
    }

    /// Whether another start with the same configuration may succeed.
    pub fn may_pass(&self) -> bool {
        self.may_pass
    }

    /// Whether this is a problem of the option `name`, whose value then is not known.
    pub(crate) fn is_of(&self, name: &str) -> bool {
        self.option.as_deref() == Some(name)
    }

    /// The same, or of that option of any pool.
    pub(crate) fn is_of_any_pool(&self, name: &str) -> bool {
        let option = self.option.as_deref().unwrap_or_default();
        let of_pool = option
            .strip_prefix("pool.")
            .and_then(|rest| rest.split_once('.'));
        option == name || of_pool.is_some_and(|(_, own)| own == name)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            ConfigPlace::Arguments | ConfigPlace::Code | ConfigPlace::Default => {
                f.write_str(&self.text)
            }
            place => write!(f, "{place}: {}", self.text),
        }
    }
}

/// A text of the operator as a problem may repeat it. It loses everything that may be a password:
/// all of a URL but its scheme, and all in front of an `@`.
pub fn shown(text: &str) -> String {
    if let Some((scheme, _)) = text.split_once("://") {
        return format!("{scheme}://...");
    }
    match text.rsplit_once('@') {
        Some((user, host)) if user.contains(':') => format!("...@{host}"),
        _ => text.to_owned(),
    }
}

/// The candidate that is most like `word`, if one is like it.
pub fn did_you_mean<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.replace('_', "-").to_ascii_lowercase();
    candidates
        .map(|candidate| {
            let mut likeness = strsim::jaro_winkler(&word, candidate);
            // A part of a name is a better clue than common letters: `delay`, `max-delay`.
            if word.len() >= 4 && candidate.contains(word.as_str()) {
                likeness = likeness.max(0.95);
            }
            (likeness, candidate)
        })
        .filter(|(likeness, _)| *likeness > 0.84)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn did_you_mean_finds_the_name_for_a_slip() {
        let names = [
            "listen",
            "backend",
            "sessions-max",
            "session-pipeline-max",
            "max-delay-us",
        ];
        let meant = |word| did_you_mean(word, names.iter().copied());
        for (word, name) in [
            ("lisen", "listen"),
            ("max_delay_us", "max-delay-us"),
            ("max-delay", "max-delay-us"),
            ("sesions-max", "sessions-max"),
            ("Backend", "backend"),
        ] {
            assert_eq!(meant(word), Some(name), "{word}");
        }
        assert_eq!(meant("tls-cert"), None);
        assert_eq!(meant(""), None);
    }

    #[test]
    fn later_layer_is_greater() {
        let file = ConfigPlace::File {
            path: "a".into(),
            line: 1,
            column: 1,
        };
        assert!(ConfigPlace::Default.layer() < file.layer());
        assert!(file.layer() < ConfigPlace::Environment("X").layer());
        assert!(ConfigPlace::Environment("X").layer() < ConfigPlace::Arguments.layer());
    }
}
