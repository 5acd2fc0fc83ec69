//! The command line.

use std::ffi::{OsStr, OsString};

use lexopt::{Arg, Parser};
use respool_config::options::{
    OPTIONS, Opt, OptionKind, find_by_any_name, switch, switch_values, value_by_name,
};
use respool_config::problem::{ConfigPlace, Problem, did_you_mean, shown};
use respool_config::raw::RawConfig;

/// A command with its arguments.
#[derive(Debug)]
pub(crate) enum Invocation {
    /// Run the proxy.
    Serve(ConfigArguments),
    /// Check the configuration, and do nothing else.
    Check {
        /// The options and the file.
        given: ConfigArguments,
        /// Print every value in effect.
        print: bool,
    },
    /// Have a running process read its configuration again.
    Reload {
        /// The options and the file, of which the control socket counts.
        given: ConfigArguments,
        /// Only print the differences.
        check: bool,
    },
    /// Print help.
    Help {
        /// The subject.
        topic: HelpTopic,
        /// The whole text, or one line for each option.
        long: bool,
    },
    /// Print the version.
    Version,
}

/// The subject of help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelpTopic {
    /// The commands.
    Overview,
    /// `respool serve`.
    Serve,
    /// `respool check`.
    Check,
    /// `respool reload`.
    Reload,
}

/// The options of the command line and the name of the file.
#[derive(Debug, Default)]
pub(crate) struct ConfigArguments {
    /// The options.
    pub(crate) raw: RawConfig,
    /// The configuration file.
    pub(crate) file: Option<String>,
}

impl ConfigArguments {
    /// All layers: the file, the environment (by `get`), and the command line.
    pub(crate) fn into_raw(self, get: impl Fn(&str) -> Option<OsString>) -> RawConfig {
        let mut raw = self.raw;
        if let Some(file) = &self.file {
            raw.add_file(file);
        }
        raw.add_environment(get);
        raw
    }
}

/// The commands in the help.
const COMMANDS: [&str; 4] = ["serve", "check", "reload", "help"];

/// Flags of the command line that are not in the table of options.
const FLAGS: [&str; 5] = ["config", "print", "check", "help", "version"];

/// Parses the command line, without the program's name.
///
/// # Errors
/// Returns a problem of the command itself. [`RawConfig`] keeps problems of options.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Invocation, Problem> {
    let mut parser = Parser::from_args(arguments);
    let problem = |text: String| Problem::at(ConfigPlace::Arguments, text);
    match parser
        .next()
        .map_err(|error| problem(shown(&error.to_string())))?
    {
        None => Err(problem(
            "a command is missing: `respool serve --spawn` is a start, `respool help` explains more"
                .into(),
        )),
        Some(Arg::Short('h')) => Ok(Invocation::Help {
            topic: HelpTopic::Overview,
            long: false,
        }),
        Some(Arg::Long("help")) => Ok(Invocation::Help {
            topic: HelpTopic::Overview,
            long: true,
        }),
        Some(Arg::Short('V') | Arg::Long("version")) => version(&mut parser),
        Some(Arg::Value(command)) => match command.to_string_lossy().as_ref() {
            "serve" => Ok(configured(parser, HelpTopic::Serve)),
            "check" => Ok(configured(parser, HelpTopic::Check)),
            "reload" => Ok(configured(parser, HelpTopic::Reload)),
            "help" => help(&mut parser),
            "version" => version(&mut parser),
            other => Err(problem(unknown("command", other, COMMANDS.into_iter()))),
        },
        Some(Arg::Long(name)) if find_by_any_name(name).is_some() || name == "config" => {
            Err(problem(format!(
                "--{name} comes after a command: `respool serve --{name} ...`"
            )))
        }
        Some(other) => Err(problem(shown(&other.unexpected().to_string()))),
    }
}

/// Parses the arguments of `serve`, `check` and `reload`, which take the same options.
fn configured(mut parser: Parser, topic: HelpTopic) -> Invocation {
    let mut given = ConfigArguments::default();
    let (mut print, mut check) = (false, false);
    let mut switch_given = None;
    loop {
        let switch_before = switch_given.take();
        let what = match parser.next() {
            Ok(None) => break,
            Ok(Some(Arg::Short('h'))) => return Invocation::Help { topic, long: false },
            Ok(Some(Arg::Long("help"))) => return Invocation::Help { topic, long: true },
            Ok(Some(Arg::Long("print"))) if topic == HelpTopic::Check => {
                print = true;
                continue;
            }
            Ok(Some(Arg::Long("check"))) if topic == HelpTopic::Reload => {
                check = true;
                continue;
            }
            Ok(Some(Arg::Long("config"))) => match parser.value().map(OsString::into_string) {
                Ok(Ok(file)) => given.set_file(file),
                Ok(Err(_)) => Some("--config: is not UTF-8".into()),
                Err(_) => Some("--config: needs a value: --config FILE".into()),
            },
            Ok(Some(Arg::Long(name))) => match find_by_any_name(name) {
                Some((option, name)) => {
                    switch_given = is_switch(option, name).then_some(name);
                    given.add(option, name, &mut parser)
                }
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
            Ok(Some(Arg::Value(file))) if topic != HelpTopic::Serve => match file.into_string() {
                Ok(file) => value_of_switch(&file, switch_before).or_else(|| given.set_file(file)),
                Err(_) => Some("the name of the file is not UTF-8".into()),
            },
            Ok(Some(Arg::Value(text))) => {
                let text = text.to_string_lossy();
                let told = value_of_switch(&text, switch_before).or_else(|| unexpected_url(&text));
                Some(told.unwrap_or_else(|| {
                    let text = shown(&text);
                    format!("unexpected `{text}`: a configuration file is given by --config FILE")
                }))
            }
            Err(error) => Some(shown(&error.to_string())),
        };
        given
            .raw
            .problems
            .extend(what.map(|text| Problem::at(ConfigPlace::Arguments, text)));
    }
    match topic {
        HelpTopic::Check => Invocation::Check { given, print },
        HelpTopic::Reload => Invocation::Reload { given, check },
        _ => Invocation::Serve(given),
    }
}

impl ConfigArguments {
    /// Keeps the name of the file. Returns a mistake in it.
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

    /// Takes the value of `option`, given as `name`, from the parser. Returns a mistake in it.
    fn add(
        &mut self,
        option: &'static Opt,
        name: &'static str,
        parser: &mut Parser,
    ) -> Option<String> {
        let value = match is_switch(option, name) {
            true => match parser.optional_value() {
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
            false => parser.value(),
        };
        match value.map(OsString::into_string) {
            Ok(Ok(text)) => match value_by_name(name, text) {
                Ok(text) => {
                    self.raw.add_argument(option, name, text);
                    None
                }
                Err(wrong) => Some(format!("--{name}: {wrong}")),
            },
            Ok(Err(_)) => Some(format!("--{name}: is not UTF-8")),
            Err(_) => Some(format!(
                "--{name}: needs a value: --{name} {}",
                option.value
            )),
        }
    }
}

/// `version` has no arguments.
fn version(parser: &mut Parser) -> Result<Invocation, Problem> {
    check_end(parser)?;
    Ok(Invocation::Version)
}

/// `Err`: the command line goes on.
fn check_end(parser: &mut Parser) -> Result<(), Problem> {
    let more = match parser.next() {
        Ok(None) => return Ok(()),
        Ok(Some(more)) => more.unexpected().to_string(),
        Err(error) => error.to_string(),
    };
    Err(Problem::at(ConfigPlace::Arguments, shown(&more)))
}

/// Parses the arguments of `help`.
fn help(parser: &mut Parser) -> Result<Invocation, Problem> {
    let topic = match parser.next() {
        Ok(None) => HelpTopic::Overview,
        Ok(Some(Arg::Value(command))) => match command.to_string_lossy().as_ref() {
            "serve" => HelpTopic::Serve,
            "check" => HelpTopic::Check,
            "reload" => HelpTopic::Reload,
            "help" => HelpTopic::Overview,
            other => {
                let text = unknown("command", other, COMMANDS.into_iter());
                return Err(Problem::at(ConfigPlace::Arguments, text));
            }
        },
        Ok(Some(other)) => {
            return Err(Problem::at(
                ConfigPlace::Arguments,
                shown(&other.unexpected().to_string()),
            ));
        }
        Err(error) => {
            return Err(Problem::at(
                ConfigPlace::Arguments,
                shown(&error.to_string()),
            ));
        }
    };
    check_end(parser)?;
    Ok(Invocation::Help { topic, long: true })
}

/// The problem of a URL in place of a file. It does not repeat the URL, which may have a password.
fn unexpected_url(text: &str) -> Option<String> {
    text.contains("://").then(|| {
        let text = shown(text);
        format!("unexpected `{text}`: a server is given by --backend URL")
    })
}

/// Whether the option needs no value.
fn is_switch(option: &Opt, name: &str) -> bool {
    matches!(option.kind, OptionKind::Switch(_)) || switch_values(name).is_some()
}

/// The problem of a word right behind a switch, if it cannot be meant as the name of a file.
fn value_of_switch(text: &str, switch: Option<&str>) -> Option<String> {
    let name = switch?;
    let is_word = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_word && !std::fs::exists(text).unwrap_or(true)).then(|| {
        format!(
            "--{name}: `{text}` behind it is no file, and a value stands behind an equals sign: \
             --{name}=true or --{name}=false"
        )
    })
}

/// Takes the next argument if it is the value of a switch.
fn next_if_switch(parser: &mut Parser) -> Option<String> {
    let mut rest = parser.try_raw_args()?;
    let is_value = |next: &OsStr| next.to_str().and_then(switch).is_some();
    let next = rest.next_if(is_value)?;
    Some(next.to_string_lossy().into_owned())
}

/// Skips the value of an unknown option, so that it is not a problem of its own.
fn skip_value(parser: &mut Parser) {
    if parser.optional_value().is_none()
        && let Some(mut rest) = parser.try_raw_args()
    {
        rest.next_if(|next| !next.to_string_lossy().starts_with('-'));
    }
}

/// The problem of an unknown command or option, with the name that is most like it.
fn unknown<'a>(what: &str, word: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    let word = &shown(word);
    let dashes = if word.starts_with("--") { "--" } else { "" };
    match did_you_mean(word.trim_start_matches('-'), candidates) {
        Some(meant) => format!("unknown {what} `{word}`: did you mean `{dashes}{meant}`?"),
        None => format!("unknown {what} `{word}`: `respool serve --help` lists all"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use respool_config::config::Config;

    fn parsed(line: &str) -> Result<Invocation, String> {
        parse(line.split_whitespace().map(OsString::from)).map_err(|problem| problem.to_string())
    }

    #[test]
    fn every_command_is_parsed() {
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
        ] {
            assert_eq!(format!("{:?}", parsed(line).unwrap()), debug, "{line}");
        }
        let Ok(Invocation::Check { given, print: true }) = parsed("check a.toml --print") else {
            panic!("`check`");
        };
        assert_eq!(given.file.as_deref(), Some("a.toml"));
    }

    #[test]
    fn missing_or_unknown_command_is_an_error() {
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
            ("docs", "unknown command `docs`"),
            ("help serve check", "unexpected argument \"check\""),
            ("help help --fuse", "invalid option '--fuse'"),
            ("version now", "unexpected argument \"now\""),
            ("--version now", "unexpected argument \"now\""),
        ] {
            let told = parsed(line).expect_err(line);
            assert!(told.starts_with(problem), "{line}: {told}");
        }
    }

    /// An unknown option takes its value with it, and the options behind it are read.
    #[test]
    fn unknown_option_is_skipped_with_its_value() {
        let Ok(Invocation::Serve(given)) =
            parsed("serve --lisen :1 --tread=2 --fuse=false --spawn")
        else {
            panic!("`serve`");
        };
        assert_eq!(given.raw.problems.len(), 2);
        let given: Vec<_> = given
            .raw
            .given
            .iter()
            .map(|given| given.option.name)
            .collect();
        assert_eq!(given, ["fuse", "spawn"]);
    }

    /// A wrong argument is a problem with a remedy, beside those of values. It repeats no secret.
    #[test]
    fn wrong_argument_is_a_problem() {
        for (line, problem) in [
            ("--threads", "--threads: needs a value: --threads N|auto"),
            ("--session-depth-max", "--session-depth-max: needs a value"),
            (
                "--tread 2",
                "unknown option `--tread`: did you mean `--threads`?",
            ),
            ("-x", "unknown option `-x`"),
            (
                "--fuse no",
                "--fuse: its value stands behind an equals sign: --fuse=no",
            ),
            (
                "redis://:SECRET@h",
                "unexpected `redis://...`: a server is given by --backend URL",
            ),
            (
                "--config redis://:SECRET@h",
                "unexpected `redis://...`: a server is given by --backend URL",
            ),
            (
                ":SECRET@h:1",
                "unexpected `...@h:1`: a configuration file is given by --config",
            ),
            ("--config :SECRET@h:1", "...@h:1: cannot be read: "),
            (
                "r.toml",
                "unexpected `r.toml`: a configuration file is given by --config",
            ),
            ("--config /nonexistent", "/nonexistent: cannot be read: "),
            (
                "--hold=latency",
                "--hold: must be `true` or `false`, or `yes` or `no`",
            ),
            (
                "--hold no",
                "--hold: its value stands behind an equals sign: --hold=no",
            ),
        ] {
            let line = format!("serve --links-max x {line}");
            let Ok(Invocation::Serve(given)) = parsed(&line) else {
                panic!("{line}");
            };
            let problems = Config::resolve(given.into_raw(|_| None)).err();
            let problems = problems.expect(&line).into_iter();
            let problems: Vec<_> = problems.map(|problem| problem.to_string()).collect();
            assert_eq!(problems.len(), 2, "{line}: {problems:?}");
            assert!(problems[0].starts_with(problem), "{line}: {problems:?}");
            assert!(
                !problems[0].to_lowercase().contains("secret"),
                "{problems:?}"
            );
            assert!(problems[1].starts_with("--links-max: "), "{problems:?}");
        }
    }
}
