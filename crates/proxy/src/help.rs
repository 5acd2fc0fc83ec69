//! The texts of `-h` and `--help`, made from the table of options.

use respool_config::options::{AtReload, OPTIONS, Opt, OptionKind, Topic};

use crate::arguments::HelpTopic;

/// Columns of a help text, which every terminal has.
const WIDTH: usize = 80;

/// The indent of lines about an option.
const INDENT: &str = "      ";

/// The option for the file. It is not in the table, since a file cannot name a file.
pub(crate) const CONFIG: (&str, &str) = ("config", "A TOML file with the same options");

/// The text about layers above each list of options.
pub(crate) const LAYERS: &str = "An option has one name everywhere: `--max-delay-us 200` on the \
                                 command line is `max-delay-us = 200` in the file. The file \
                                 overrules the defaults, the environment overrules the file, and \
                                 the command line overrules them all. A list that is given again \
                                 replaces the earlier one. On the command line, `--fuse=no` says \
                                 the same as `--fuse=false`.";

/// The note at options that a pool may have for itself.
pub(crate) const PER_POOL: &str = "also below `[pool.NAME]`, for that pool alone";

/// The help about `topic`.
pub(crate) fn text(topic: HelpTopic, long: bool) -> String {
    match topic {
        HelpTopic::Overview => overview(long),
        HelpTopic::Serve => serve(long),
        HelpTopic::Check => check(long),
        HelpTopic::Reload => reload(),
    }
}

fn overview(long: bool) -> String {
    let mut text = String::from(
        "respool gathers the requests of many clients for few Redis or Valkey servers.\n\n\
         Usage: respool COMMAND [OPTIONS]\n\n\
         Commands:\n  \
         serve   Run the proxy\n  \
         check   Check a configuration and report every problem\n  \
         reload  Have a running respool read its configuration again\n  \
         help    Explain a command: `respool help serve`\n\n\
         Options:\n  \
         -h, --help      Print help, briefly or fully\n  \
         -V, --version   Print the version\n",
    );
    if long {
        text.push_str(
            "\nExamples:\n  \
             A working cache, with nothing else set up:\n    \
             respool serve --spawn\n  \
             In front of a server, with one worker:\n    \
             respool serve --listen 127.0.0.1:6380 --backend redis://127.0.0.1:6379 --threads 1\n  \
             With a file, checked first:\n    \
             respool check respool.toml && respool serve --config respool.toml\n\n\
             Exit codes: 0 after a clean end, 1 when something failed while starting or running, 2\n\
             when the command line or the configuration is wrong, so that another try would not\n\
             help. A password command that fails, and a file with a password or certificate that\n\
             cannot be used, may pass by themselves: 1.\n",
        );
    }
    text.push_str("\n`respool serve --help` explains every option.\n");
    text
}

fn serve(long: bool) -> String {
    let mut text = String::from(
        "Run the proxy.\n\nUsage: respool serve [--config FILE] [OPTIONS]\n       respool serve \
         --spawn\n\n",
    );
    if long {
        let lead = "By default, it listens on 127.0.0.1:6380 and stands before the server at \
                    127.0.0.1:6379. SIGTERM or SIGINT ends it: it accepts no more clients, answers \
                    the requests that have arrived, and exits with 0. A second signal ends it at \
                    once. If the start fails, it exits with 2 if the command line or the file is \
                    wrong, so that another try would not help, and else with 1.";
        wrap(&mut text, "", lead);
        text.push('\n');
        wrap(&mut text, "", LAYERS);
        text.push('\n');
    }
    options(&mut text, long);
    if !long {
        text.push_str(
            "\n`respool serve --help` explains each, with defaults, ranges and examples.\n",
        );
    }
    text
}

fn check(long: bool) -> String {
    let mut text = String::from(
        "Check a configuration and report every problem.\n\n\
         Usage: respool check [FILE] [--print] [OPTIONS]\n\n  \
         --print   Print every value in effect, with its place\n\n",
    );
    let lead = "Takes every option of `respool serve`. It reads what the start reads: the \
                configuration file, the files with passwords, certificates and keys. It runs the \
                password commands, finds out whether sockets in the file system can be made, and \
                opens no connection. Exits with 0 if there is no problem, \
                and with 2 if there is one.";
    wrap(&mut text, "", lead);
    if long {
        text.push('\n');
        wrap(&mut text, "", LAYERS);
    }
    text
}

fn reload() -> String {
    let mut text = String::from(
        "Have a running respool read its configuration again.\n\n\
         Usage: respool reload [--check] [FILE] [OPTIONS]\n\n  \
         --check                 Print the differences, and apply nothing\n  \
         --control-socket PATH   The control socket of the process\n  \
         --config FILE           The file of the process, which names the control socket\n\n",
    );
    let lead = "The process reads its own files again, all of them. Its environment and its command \
                line are those of its start. It reads no other file: `respool check FILE` checks a \
                candidate. If there is any problem, or a difference that needs a restart, nothing changes. \
                Takes every option of `respool serve`, and uses --control-socket alone. Exits with \
                0 if the configuration is in effect (with --check: if names are found, addresses \
                can be bound and it could be applied), with 1 if \
                there is a problem or no answer in time, and with 2 if no control socket is named, or FILE is not the file of the process. SIGHUP asks \
                for the same.";
    wrap(&mut text, "", lead);
    text
}

fn options(text: &mut String, long: bool) {
    let config = format!("--{} FILE", CONFIG.0);
    entry(text, long, &config, CONFIG.1);
    for topic in Topic::ALL {
        text.push_str(&format!("\n{}:\n", topic.title()));
        if long && !topic.intro().is_empty() {
            wrap(text, "  ", topic.intro());
            text.push('\n');
        }
        for (index, option) in OPTIONS
            .iter()
            .filter(|option| option.topic == topic)
            .enumerate()
        {
            if long && index > 0 {
                text.push('\n');
            }
            entry(text, long, &synopsis(option), option.brief);
            if long {
                details(text, option);
            }
        }
    }
}

fn entry(text: &mut String, long: bool, synopsis: &str, brief: &str) {
    if long {
        text.push_str(&format!("  {synopsis}\n"));
        wrap(text, INDENT, &format!("{brief}."));
    } else {
        text.push_str(&format!("  {synopsis:<35}  {brief}\n"));
    }
}

fn details(text: &mut String, option: &Opt) {
    for paragraph in option
        .more
        .split("\n\n")
        .filter(|paragraph| !paragraph.is_empty())
    {
        text.push('\n');
        wrap(text, INDENT, paragraph);
    }
    text.push('\n');
    for fact in facts(option) {
        wrap(text, INDENT, &fact);
    }
}

/// `--name VALUE`, as the command line takes it.
pub(crate) fn synopsis(option: &Opt) -> String {
    match option.kind {
        OptionKind::Switch(_) => format!("--{}[=true|false]", option.name),
        _ => format!("--{} {}", option.name, option.value),
    }
}

/// The facts about an option, a line each: default, range, variable, example.
pub(crate) fn facts(option: &Opt) -> Vec<String> {
    let mut facts = Vec::new();
    if let Some(default) = option.default() {
        facts.push(format!("Default: {default}"));
    }
    if let OptionKind::Number(number) = &option.kind {
        facts.push(format!("Takes: {}", number.range()));
    }
    if let Some(variable) = option.variable {
        facts.push(format!("Environment: {variable}"));
    }
    facts.push(format!("Example: {}", example(option)));
    if option.per_pool {
        facts.push(format!("In the file {PER_POOL}"));
    }
    facts.push(format!("At a reload: {}", at_reload(option)));
    if let Some(old) = old_name(option) {
        facts.push(format!("Old name: {old}"));
    }
    facts
}

/// The old name of the option and how long it works, if it has one.
pub(crate) fn old_name(option: &Opt) -> Option<String> {
    let renamed = option.old_name()?;
    let values = match renamed.switch_values {
        Some([for_false, for_true]) => {
            format!(", with `true` for `{for_true}` and `false` for `{for_false}`")
        }
        None => String::new(),
    };
    Some(format!("`{}`{values}, until the next version", renamed.old))
}

/// The effect of a reload on the option.
pub(crate) fn at_reload(option: &Opt) -> &'static str {
    match option.at_reload {
        AtReload::Applies => "a new value is applied",
        AtReload::Restart => "a new value needs a restart",
    }
}

/// The example as the command line takes it.
pub(crate) fn example(option: &Opt) -> String {
    match option.kind {
        OptionKind::Switch(_) if option.example == "true" => format!("--{}", option.name),
        OptionKind::Switch(_) => format!("--{}={}", option.name, option.example),
        _ => format!("--{} {}", option.name, option.example),
    }
}

/// Appends `paragraph` in lines of at most [`WIDTH`] columns, each behind `indent`.
fn wrap(text: &mut String, indent: &str, paragraph: &str) {
    let mut column = 0;
    for word in paragraph.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > WIDTH {
            text.push('\n');
            column = 0;
        }
        if column == 0 {
            text.push_str(indent);
            column = indent.len();
        } else {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_help_has_every_option_and_fits_a_terminal() {
        let help = text(HelpTopic::Serve, true);
        for option in OPTIONS {
            assert!(help.contains(&synopsis(option)), "{}", option.name);
            assert!(
                help.contains(&format!("Example: {}", example(option)))
                    || help.contains("Example:")
            );
        }
        for line in help.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }

    #[test]
    fn short_help_has_one_line_for_each_option() {
        let help = text(HelpTopic::Serve, false);
        for option in OPTIONS {
            let lines = help
                .lines()
                .filter(|line| line.trim_start().starts_with(&synopsis(option)));
            assert_eq!(lines.count(), 1, "{}", option.name);
        }
        assert!(help.lines().all(|line| line.chars().count() <= 110));
    }
}
