//! The command line of `respool` for clap, from the option table of the program.
//!
//! The program does not parse with clap: its own parser reports all problems at once. clap's model
//! feeds the generators of the man page and of the completions, which know every shell and roff.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command, ValueHint};
use respool_proxy::reference::{self, OptionText, ValueType};

/// The program with its commands.
pub(crate) fn program() -> Command {
    let serve = Command::new("serve").about("Run the proxy").args(options());
    let check = Command::new("check")
        .about("Check a configuration and report everything that is wrong with it")
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .help(reference::CONFIG.1)
                .value_hint(ValueHint::FilePath),
        )
        .arg(print())
        .args(options());
    let reload = Command::new("reload")
        .about("Have a running respool read its configuration again")
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .help(reference::CONFIG.1)
                .value_hint(ValueHint::FilePath),
        )
        .arg(check_only())
        .args(options());
    Command::new("respool")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Batch the requests of many clients for few Redis or Valkey servers")
        .subcommand_required(true)
        .subcommand(serve)
        .subcommand(check)
        .subcommand(reload)
}

/// `--config` and every option of the table.
fn options() -> Vec<Arg> {
    let topics = reference::topics();
    let table = topics.iter().flat_map(|topic| &topic.options).map(option);
    std::iter::once(config()).chain(table).collect()
}

/// `--config FILE`.
pub(crate) fn config() -> Arg {
    let (name, brief) = reference::CONFIG;
    Arg::new(name)
        .long(name)
        .value_name("FILE")
        .help(brief)
        .value_hint(ValueHint::FilePath)
}

/// `--print`, of `respool check` alone.
pub(crate) fn print() -> Arg {
    Arg::new("print")
        .long("print")
        .help("Show every value in effect, and where it comes from")
        .action(ArgAction::SetTrue)
}

/// `--check`, of `respool reload` alone.
pub(crate) fn check_only() -> Arg {
    Arg::new("check")
        .long("check")
        .help("Show the differences to the configuration in effect, and apply nothing")
        .action(ArgAction::SetTrue)
}

/// An option of the table.
pub(crate) fn option(option: &OptionText) -> Arg {
    let arg = Arg::new(option.name).long(option.name).help(option.brief);
    let arg = match option.takes {
        ValueType::Switch => arg
            .value_name("true|false")
            .num_args(0..=1)
            .require_equals(true),
        ValueType::List => arg.value_name(option.value).action(ArgAction::Append),
        ValueType::Number | ValueType::Text => arg.value_name(option.value),
    };
    match choices(option) {
        Some(choices) => arg
            .value_parser(PossibleValuesParser::new(choices))
            .hide_possible_values(true),
        None => arg.value_hint(match option.value {
            "FILE" | "PATH" => ValueHint::FilePath,
            "USER" => ValueHint::Username,
            _ => ValueHint::Other,
        }),
    }
}

/// The values that a shell can offer.
fn choices(option: &OptionText) -> Option<Vec<&'static str>> {
    if option.takes == ValueType::Switch {
        return Some(vec!["true", "false"]);
    }
    let is_word = |choice: &str| {
        choice
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'-')
    };
    let choices: Vec<&str> = option.value.split('|').collect();
    (choices.len() > 1 && choices.iter().all(|choice| is_word(choice))).then_some(choices)
}
