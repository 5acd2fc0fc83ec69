//! The texts of all layers, each with its place, before they are parsed and checked.
//!
//! Reading a layer has no effect. Every problem is kept, so that one run reports them all.

mod bounded_file;
mod toml;

use std::ffi::OsString;
use std::path::Path;

use crate::options::{
    LogFormat, OPTIONS, Opt, OptionKind, Values, both_names, find, find_by_any_name,
    renamed_notice, value_by_name,
};
use crate::pools::PoolTable;
use crate::problem::{ConfigPlace, Layer, Problem, did_you_mean, shown};

pub(crate) use bounded_file::read_file;

/// The most bytes of a configuration file. A longer one is refused: a device may never end.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The most warnings about environment variables. One more warning counts the rest.
const WARNINGS_MAX: usize = 16;

/// One option as one layer gives it.
#[derive(Debug)]
pub struct Given {
    /// The option.
    pub option: &'static Opt,
    /// The name by which the layer gives it, which may be an old one.
    pub(crate) name: &'static str,
    /// The place of its name.
    pub(crate) place: ConfigPlace,
    /// Its texts with their places. A list may have any number of them, another option has one.
    pub(crate) texts: Vec<(String, ConfigPlace)>,
}

/// The options of all layers.
#[derive(Debug, Default)]
pub struct RawConfig {
    /// The options, in no order.
    pub given: Vec<Given>,
    /// The tables of pools in the file. If there are any, `given` has the option `pool`.
    pub pools: Vec<PoolTable>,
    /// Texts that cannot be read, and unknown names.
    pub problems: Vec<Problem>,
    /// Whether the file cannot be read, or is no TOML: its options are not known.
    pub(crate) is_file_unknown: bool,
    /// Whether there is a file, and it has only blanks.
    pub(crate) is_file_empty: bool,
    /// Warnings about options that work, but probably not as the operator means them.
    pub(crate) warnings: Vec<String>,
}

impl RawConfig {
    /// Whether there is a file, and it has only blanks.
    pub fn is_file_empty(&self) -> bool {
        self.is_file_empty
    }

    /// The format of log lines that the layers name, whatever else is wrong; `None`: it is not
    /// known, since a text is wrong or the file, which may name it, cannot be read.
    pub fn log_format(&self) -> Option<LogFormat> {
        let given = self.given.iter();
        let given = given.filter(|given| given.option.name == "log-format");
        let latest = given.max_by_key(|given| given.place.layer());
        let mut values = Values::default();
        match latest {
            Some(given) => {
                let (text, _) = given.texts.last()?;
                let is_last = given.place.layer() > Layer::File || !self.is_file_unknown;
                given.option.set(&mut values, text).ok()?;
                is_last.then_some(values.log_format)
            }
            None => (!self.is_file_unknown).then_some(values.log_format),
        }
    }

    /// Adds one option of the command line. Of an option with one value the last one counts, so
    /// that a user can overrule the options of a script.
    pub fn add_argument(&mut self, option: &'static Opt, name: &'static str, text: String) {
        self.add_text(option, name, text, ConfigPlace::Arguments);
    }

    /// Adds one option that the code of a program gives to its embedded client. An unknown name is
    /// a problem, and so is an option of the program respool alone.
    pub fn add_code(&mut self, name: &str, text: &str) {
        let place = ConfigPlace::Code;
        let Some((option, name)) = find_by_any_name(name) else {
            let known = OPTIONS.iter().filter(|option| !option.of_program);
            let what = match did_you_mean(name, known.map(|option| option.name)) {
                Some(meant) => {
                    format!("unknown option `{}`: did you mean `{meant}`?", shown(name))
                }
                None => format!("unknown option `{}`", shown(name)),
            };
            return self.problems.push(Problem::at(place, what));
        };
        if option.of_program {
            let what = "is an option of the program respool: a client has no use for it";
            return self.problems.push(Problem::of_option(name, &place, what));
        }
        match value_by_name(name, text.to_owned()) {
            Ok(text) => self.add_text(option, name, text, place),
            Err(wrong) => self.problems.push(Problem::of_option(name, &place, wrong)),
        }
    }

    fn add_text(
        &mut self,
        option: &'static Opt,
        name: &'static str,
        text: String,
        place: ConfigPlace,
    ) {
        self.check_name(option, name, &place);
        let mut earlier = self.given.iter_mut().filter(|given| given.place == place);
        let text = (text, place.clone());
        match earlier.find(|given| given.option.name == option.name) {
            Some(given) if matches!(option.kind, OptionKind::List { .. }) => given.texts.push(text),
            Some(given) => given.texts = vec![text],
            None => self.given.push(Given {
                option,
                name,
                place,
                texts: vec![text],
            }),
        }
    }

    /// Warns of an old name of an option. An old and a new name in one layer are a problem.
    fn check_name(&mut self, option: &'static Opt, name: &'static str, place: &ConfigPlace) {
        let layer = place.layer();
        let mut given = self.given.iter();
        let given = given.find(|given| given.option == option && given.place.layer() == layer);
        match given {
            Some(given) if given.name != name => {
                let old = if name == option.name {
                    given.name
                } else {
                    name
                };
                let problem = Problem::of_option(name, place, both_names(option, old));
                if !self.problems.contains(&problem) {
                    self.problems.push(problem);
                }
            }
            None if name != option.name => {
                let warning = Problem::of_option(name, place, renamed_notice(option, name));
                self.warnings.push(warning.to_string());
            }
            _ => {}
        }
    }

    /// Adds the options of the environment.
    pub fn add_environment(&mut self, get: impl Fn(&str) -> Option<OsString>) {
        for option in OPTIONS {
            let Some(variable) = option.variable else {
                continue;
            };
            let Some(text) = get(variable) else { continue };
            let place = ConfigPlace::Environment(variable);
            match text.into_string() {
                Ok(text) => {
                    let texts = vec![(text, place.clone())];
                    self.given.push(Given {
                        option,
                        name: option.name,
                        place,
                        texts,
                    });
                }
                Err(_) => {
                    self.problems
                        .push(Problem::of_option(option.name, &place, "is not UTF-8"));
                }
            }
        }
    }

    /// Warns of environment variables that look like respool's and are not read.
    pub fn warn_of_variables(&mut self, names: impl Iterator<Item = OsString>) {
        let names = names.filter_map(|name| name.into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort();
        let in_kubernetes = names.iter().any(|name| name == "KUBERNETES_SERVICE_HOST");
        let is_read = |name: &str| OPTIONS.iter().any(|option| option.variable == Some(name));
        let mut unread = Vec::new();
        for name in &names {
            let Some(rest) = name.strip_prefix("RESPOOL_") else {
                continue;
            };
            // Kubernetes sets these for a service with the name `respool`. RESPOOL_TEST... are
            // variables of the project's tests.
            let of_kubernetes = in_kubernetes
                && ["SERVICE_", "PORT"]
                    .iter()
                    .any(|start| rest.starts_with(start));
            if !is_read(name) && !of_kubernetes && !rest.starts_with("TEST") {
                unread.push(unread_variable(name, rest));
            }
        }
        let more = unread.len().saturating_sub(WARNINGS_MAX);
        unread.truncate(WARNINGS_MAX);
        self.warnings.extend(unread);
        if more > 0 {
            let text = format!("{more} more variables that begin with RESPOOL_ are not read");
            self.warnings.push(text);
        }
    }

    /// Adds the file at `path`.
    pub fn add_file(&mut self, path: &str) {
        match read_file(Path::new(path), FILE_BYTES_MAX).map(String::from_utf8) {
            Ok(Ok(text)) => {
                self.is_file_empty = text.trim().is_empty();
                self.add_toml(path, &text);
            }
            Ok(Err(error)) => {
                let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
                let good = String::from_utf8_lossy(good);
                let last = good.rsplit('\n').next().unwrap_or_default();
                let place = ConfigPlace::File {
                    path: path.to_owned(),
                    line: good.matches('\n').count() + 1,
                    column: last.chars().count() + 1,
                };
                let text = "is not UTF-8 here: a configuration file is TOML, which is UTF-8";
                self.problems.push(Problem::at(place, text));
                self.is_file_unknown = true;
            }
            Err(error) => {
                let text = format!("{}: cannot be read: {error}", shown(path));
                self.problems.push(Problem::at(ConfigPlace::Default, text));
                self.is_file_unknown = true;
            }
        }
    }
}

/// A warning about an environment variable that is not read, and the remedy.
fn unread_variable(name: &str, rest: &str) -> String {
    let name = name.escape_debug();
    let option_name = rest.to_lowercase().replace('_', "-");
    let renamed = find_by_any_name(&option_name).map(|(option, _)| option);
    let most_like = || did_you_mean(rest, OPTIONS.iter().map(|option| option.name));
    let meant = renamed.or_else(|| most_like().and_then(find));
    match meant.map(|option| (option.name, option.variable)) {
        Some((_, Some(variable))) => {
            format!("the environment variable {name} is not read: did you mean {variable}?")
        }
        Some((option, None)) => format!(
            "the environment variable {name} is not read: say --{option} on the command line, or \
             `{option}` in the file"
        ),
        None => {
            let read = OPTIONS.iter().filter_map(|option| option.variable);
            let read = read.collect::<Vec<_>>().join(", ");
            format!("the environment variable {name} is not read; those that are: {read}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_names_the_line_that_is_not_utf8() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (content, place) in [
            (&b"threads = 1\n# \xc3\xa4 \xe4\n"[..], "2:5"),
            (b"\xff", "1:1"),
            (b"a\n\n\xc3", "3:1"),
        ] {
            std::fs::write(file.path(), content).unwrap();
            let mut raw = RawConfig::default();
            raw.add_file(file.path().to_str().unwrap());
            let problem = raw.problems[0].to_string();
            assert!(
                problem.contains(&format!(":{place}: is not UTF-8")),
                "{problem}"
            );
            assert!(raw.is_file_unknown && raw.problems.len() == 1);
        }
    }

    #[test]
    fn problem_names_a_file_that_cannot_be_read() {
        let mut raw = RawConfig::default();
        raw.add_file("/nonexistent/respool.toml");
        let problem = raw.problems[0].to_string();
        assert!(
            problem.starts_with("/nonexistent/respool.toml: cannot be read: "),
            "{problem}"
        );
    }
}
