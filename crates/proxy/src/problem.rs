//! What is wrong with what we were told, and where.

use std::fmt;

use crate::plain::plain;

/// Where a value was given. The order is that of precedence: what is later wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Layer {
    /// Nowhere: it is ours.
    Default,
    /// The configuration file.
    File,
    /// The environment.
    Environment,
    /// The command line.
    Arguments,
}

/// A place that somebody can go to and change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nobody said it.
    Default,
    /// A line and column of the file, both from 1.
    File {
        /// As the user named it.
        path: String,
        /// From 1.
        line: usize,
        /// From 1, in characters.
        column: usize,
    },
    /// An environment variable.
    Environment(&'static str),
    /// The command line.
    Arguments,
}

impl Place {
    /// Which layer the place belongs to.
    pub(crate) fn layer(&self) -> Layer {
        match self {
            Place::Default => Layer::Default,
            Place::File { .. } => Layer::File,
            Place::Environment(_) => Layer::Environment,
            Place::Arguments => Layer::Arguments,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Default => f.write_str("default"),
            Place::File { path, line, column } => {
                write!(f, "{}:{line}:{column}", plain(path))
            }
            Place::Environment(variable) => f.write_str(variable),
            Place::Arguments => f.write_str("command line"),
        }
    }
}

/// One thing that is wrong: where, what, and what to do about it, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    place: Place,
    text: String,
}

impl Problem {
    /// Something about the value of the option `name`.
    pub(crate) fn of_option(name: &str, place: &Place, what: impl fmt::Display) -> Problem {
        let text = match place {
            Place::Arguments => format!("--{name}: {what}"),
            Place::File { .. } => format!("{name}: {what}"),
            // The variable's own name says enough.
            Place::Environment(_) => what.to_string(),
            Place::Default => format!("{name}: {what}"),
        };
        Problem {
            place: place.clone(),
            text,
        }
    }

    /// Something about a place as a whole.
    pub(crate) fn at(place: Place, text: impl Into<String>) -> Problem {
        Problem {
            place,
            text: text.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Arguments | Place::Default => f.write_str(&self.text),
            place => write!(f, "{place}: {}", self.text),
        }
    }
}

/// What somebody gave, as a problem may repeat it: of a URL, and of what stands in front of an `@`,
/// nothing, for that may be a password.
pub(crate) fn shown(text: &str) -> String {
    if let Some((scheme, _)) = text.split_once("://") {
        return format!("{scheme}://...");
    }
    match text.rsplit_once('@') {
        Some((who, host)) if who.contains(':') => format!("...@{host}"),
        _ => text.to_owned(),
    }
}

/// The candidate that somebody who wrote `word` most likely meant.
pub(crate) fn did_you_mean<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    let word = word.replace('_', "-").to_ascii_lowercase();
    candidates
        .map(|candidate| {
            let mut likeness = strsim::jaro_winkler(&word, candidate);
            // Half a name is a better clue than a few letters in common: `delay`, `max-delay`.
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
    fn a_slip_finds_the_name_that_was_meant_and_nonsense_finds_none() {
        let names = [
            "listen",
            "backend",
            "sessions-max",
            "session-depth-max",
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
    fn a_later_layer_is_greater() {
        let file = Place::File {
            path: "a".into(),
            line: 1,
            column: 1,
        };
        assert!(Place::Default.layer() < file.layer());
        assert!(file.layer() < Place::Environment("X").layer());
        assert!(Place::Environment("X").layer() < Place::Arguments.layer());
    }
}
