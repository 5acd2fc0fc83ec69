//! The command line.

use std::ffi::{OsStr, OsString};

use lexopt::{Arg, Parser};

use crate::options::{Kind, OPTIONS, Opt, find, switch};
use crate::problem::{Place, Problem, did_you_mean, shown};
use crate::raw::RawConfig;

/// What we were asked to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Run.
    Serve(Told),
    /// Look at the configuration, and do nothing.
    Check {
        /// The configuration.
        told: Told,
        /// Show every value in effect.
        print: bool,
    },
    /// Explain.
    Help {
        /// What.
        topic: HelpTopic,
        /// Everything, or one line each.
        long: bool,
    },
    /// Say which version this is.
    Version,
    /// Write the generated pages, or see whether they are fresh.
    Docs {
        /// Only see.
        check: bool,
    },
}

/// What help is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelpTopic {
    /// All commands.
    Overview,
    /// `respool serve`.
    Serve,
    /// `respool check`.
    Check,
}

/// What the command line says about the configuration.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Its options.
    pub(crate) raw: RawConfig,
    /// The file that it names.
    pub(crate) file: Option<String>,
}

impl Told {
    /// All layers: the file, the environment, the command line.
    pub(crate) fn into_raw(self, get: impl Fn(&str) -> Option<OsString>) -> RawConfig {
        let mut raw = self.raw;
        if let Some(file) = &self.file {
            raw.add_file(file);
        }
        raw.add_environment(get);
        raw
    }
}

/// The commands that help tells of.
const COMMANDS: [&str; 3] = ["serve", "check", "help"];

/// What the command line takes beside the options of the table.
const FLAGS: [&str; 4] = ["config", "print", "help", "version"];

/// Reads the command line, without the program's name.
///
/// # Errors
/// What is wrong with it, where that is not about the configuration; that is kept in [`RawConfig`].
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, Problem> {
    let mut parser = Parser::from_args(arguments);
    let problem = |text: String| Problem::at(Place::Arguments, text);
    match parser
        .next()
        .map_err(|error| problem(shown(&error.to_string())))?
    {
        None => Err(problem(
            "a command is missing: `respool serve --spawn` is a start, `respool help` tells more"
                .into(),
        )),
        Some(Arg::Short('h')) => Ok(Command::Help {
            topic: HelpTopic::Overview,
            long: false,
        }),
        Some(Arg::Long("help")) => Ok(Command::Help {
            topic: HelpTopic::Overview,
            long: true,
        }),
        Some(Arg::Short('V') | Arg::Long("version")) => Ok(Command::Version),
        Some(Arg::Value(command)) => match command.to_string_lossy().as_ref() {
            "serve" => Ok(configured(parser, HelpTopic::Serve)),
            "check" => Ok(configured(parser, HelpTopic::Check)),
            "help" => help(&mut parser),
            "version" => Ok(Command::Version),
            "docs" => docs(&mut parser),
            other => Err(problem(unknown("command", other, COMMANDS.into_iter()))),
        },
        Some(Arg::Long(name)) if find(name).is_some() || name == "config" => Err(problem(format!(
            "--{name} comes after a command: `respool serve --{name} ...`"
        ))),
        Some(other) => Err(problem(shown(&other.unexpected().to_string()))),
    }
}

/// `serve` and `check` take the same options, so that what is checked is what would be served.
fn configured(mut parser: Parser, topic: HelpTopic) -> Command {
    let mut told = Told::default();
    let mut print = false;
    loop {
        let what = match parser.next() {
            Ok(None) => break,
            Ok(Some(Arg::Short('h'))) => return Command::Help { topic, long: false },
            Ok(Some(Arg::Long("help"))) => return Command::Help { topic, long: true },
            Ok(Some(Arg::Long("print"))) if topic == HelpTopic::Check => {
                print = true;
                continue;
            }
            Ok(Some(Arg::Long("config"))) => match parser.value().map(OsString::into_string) {
                Ok(Ok(file)) => told.set_file(file),
                Ok(Err(_)) => Some("--config: is not UTF-8".into()),
                Err(_) => Some("--config: needs a value: --config FILE".into()),
            },
            Ok(Some(Arg::Long(name))) => match find(name) {
                Some(option) => told.add(option, &mut parser),
                None => {
                    let names = OPTIONS.iter().map(|option| option.name).chain(FLAGS);
                    let text = unknown("option", &format!("--{name}"), names);
                    skip_value(&mut parser);
                    Some(text)
                }
            },
            Ok(Some(Arg::Short(letter))) => Some(format!(
                "unknown option `-{letter}`: `respool serve --help` lists them"
            )),
            Ok(Some(Arg::Value(file))) if topic == HelpTopic::Check => match file.into_string() {
                Ok(file) => told.set_file(file),
                Err(_) => Some("the name of the file is not UTF-8".into()),
            },
            Ok(Some(Arg::Value(text))) => {
                let text = text.to_string_lossy();
                Some(unexpected_url(&text).unwrap_or_else(|| {
                    let text = shown(&text);
                    format!("unexpected `{text}`: a configuration file is given by --config FILE")
                }))
            }
            Err(error) => Some(shown(&error.to_string())),
        };
        told.raw
            .problems
            .extend(what.map(|text| Problem::at(Place::Arguments, text)));
    }
    match topic {
        HelpTopic::Check => Command::Check { told, print },
        _ => Command::Serve(told),
    }
}

impl Told {
    /// Keeps the file's name; the answer is what is wrong with that.
    fn set_file(&mut self, file: String) -> Option<String> {
        let url = unexpected_url(&file);
        match self.file {
            _ if url.is_some() => url,
            None => {
                self.file = Some(file);
                None
            }
            Some(_) => Some(format!(
                "a second file, `{}`: there is one configuration file",
                shown(&file)
            )),
        }
    }

    /// Keeps the value of `option`, which stands next; the answer is what is wrong with that.
    fn add(&mut self, option: &'static Opt, parser: &mut Parser) -> Option<String> {
        let name = option.name;
        let value = match option.kind {
            Kind::Switch(_) => match parser.optional_value() {
                Some(value) => Ok(value),
                None => match next_if_switch(parser) {
                    Some(value) => {
                        return Some(format!(
                            "--{name}: its value stands behind an equals sign: --{name}={value}"
                        ));
                    }
                    None => Ok("true".into()),
                },
            },
            _ => parser.value(),
        };
        match value.map(OsString::into_string) {
            Ok(Ok(text)) => {
                self.raw.add_argument(option, text);
                None
            }
            Ok(Err(_)) => Some(format!("--{name}: is not UTF-8")),
            Err(_) => Some(format!(
                "--{name}: needs a value: --{name} {}",
                option.value
            )),
        }
    }
}

fn help(parser: &mut Parser) -> Result<Command, Problem> {
    let topic = match parser.next() {
        Ok(None) => HelpTopic::Overview,
        Ok(Some(Arg::Value(command))) => match command.to_string_lossy().as_ref() {
            "serve" => HelpTopic::Serve,
            "check" => HelpTopic::Check,
            "help" => HelpTopic::Overview,
            other => {
                let text = unknown("command", other, COMMANDS.into_iter());
                return Err(Problem::at(Place::Arguments, text));
            }
        },
        Ok(Some(other)) => {
            return Err(Problem::at(
                Place::Arguments,
                shown(&other.unexpected().to_string()),
            ));
        }
        Err(error) => return Err(Problem::at(Place::Arguments, shown(&error.to_string()))),
    };
    Ok(Command::Help { topic, long: true })
}

fn docs(parser: &mut Parser) -> Result<Command, Problem> {
    match parser.next() {
        Ok(None) => Ok(Command::Docs { check: false }),
        Ok(Some(Arg::Long("check"))) => Ok(Command::Docs { check: true }),
        Ok(Some(other)) => Err(Problem::at(
            Place::Arguments,
            shown(&other.unexpected().to_string()),
        )),
        Err(error) => Err(Problem::at(Place::Arguments, shown(&error.to_string()))),
    }
}

/// A URL is no file, and it may have a password in it, which an error that names the file would repeat.
fn unexpected_url(text: &str) -> Option<String> {
    text.contains("://").then(|| {
        let text = shown(text);
        format!("unexpected `{text}`: a server is given by --backend URL")
    })
}

/// Takes what stands next if that is the value of a switch.
fn next_if_switch(parser: &mut Parser) -> Option<String> {
    let mut rest = parser.try_raw_args()?;
    let is_value = |next: &OsStr| next.to_str().and_then(switch).is_some();
    let next = rest.next_if(is_value)?;
    Some(next.to_string_lossy().into_owned())
}

/// What an unknown option was given is not a problem of its own.
fn skip_value(parser: &mut Parser) {
    if parser.optional_value().is_none()
        && let Some(mut rest) = parser.try_raw_args()
    {
        rest.next_if(|next| !next.to_string_lossy().starts_with('-'));
    }
}

fn unknown<'a>(what: &str, word: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    let word = &shown(word);
    let dashes = if word.starts_with("--") { "--" } else { "" };
    match did_you_mean(word.trim_start_matches('-'), candidates) {
        Some(meant) => format!("unknown {what} `{word}`: did you mean `{dashes}{meant}`?"),
        None => format!("unknown {what} `{word}`: `respool serve --help` lists what there is"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(OsString::from)).map_err(|problem| problem.to_string())
    }

    #[test]
    fn every_command_is_understood() {
        for (line, debug) in [
            ("-h", "Help { topic: Overview, long: false }"),
            ("--help", "Help { topic: Overview, long: true }"),
            ("help", "Help { topic: Overview, long: true }"),
            ("help serve", "Help { topic: Serve, long: true }"),
            ("serve -h", "Help { topic: Serve, long: false }"),
            (
                "serve --threads 2 --help",
                "Help { topic: Serve, long: true }",
            ),
            ("check --help", "Help { topic: Check, long: true }"),
            ("-V", "Version"),
            ("--version", "Version"),
            ("docs --check", "Docs { check: true }"),
        ] {
            assert_eq!(format!("{:?}", parsed(line).unwrap()), debug, "{line}");
        }
        let Ok(Command::Check { told, print: true }) = parsed("check a.toml --print") else {
            panic!("`check`");
        };
        assert_eq!(told.file.as_deref(), Some("a.toml"));
    }

    #[test]
    fn a_line_without_a_command_is_told_what_is_missing() {
        for (line, problem) in [
            (
                "",
                "a command is missing: `respool serve --spawn` is a start",
            ),
            ("server", "unknown command `server`: did you mean `serve`?"),
            (
                "--threads 2",
                "--threads comes after a command: `respool serve --threads ...`",
            ),
            (
                "help chekc",
                "unknown command `chekc`: did you mean `check`?",
            ),
            ("docs x", "unexpected argument"),
        ] {
            let told = parsed(line).expect_err(line);
            assert!(told.starts_with(problem), "{line}: {told}");
        }
    }

    #[test]
    fn an_unknown_option_takes_its_value_with_it_and_what_follows_is_read() {
        let Ok(Command::Serve(told)) = parsed("serve --lisen :1 --tread=2 --hold=false --spawn")
        else {
            panic!("`serve`");
        };
        assert_eq!(told.raw.problems.len(), 2);
        let given: Vec<_> = told
            .raw
            .given
            .iter()
            .map(|given| given.option.name)
            .collect();
        assert_eq!(given, ["hold", "spawn"]);
    }
}
