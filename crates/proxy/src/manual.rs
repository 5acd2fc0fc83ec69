//! The pages that are made from the tables: options and counters in docs/operating.md, and docs/respool.1.

use std::path::Path;

use respool_engine::Counters;

use crate::help;
use crate::options::{Kind, OPTIONS, Opt, Topic};

/// Hand-written, but for what stands between two marks each.
const PAGE: &str = "docs/operating.md";

/// Generated as a whole.
const MANUAL: &str = "docs/respool.1";

/// Where something that is made begins and ends.
struct Marks {
    begin: &'static str,
    end: &'static str,
}

const OPTION_MARKS: Marks = Marks {
    begin: "<!-- options: made by `respool docs`; do not edit -->\n",
    end: "<!-- options end -->\n",
};
const COUNTER_MARKS: Marks = Marks {
    begin: "<!-- counters: made by `respool docs`; do not edit -->\n",
    end: "<!-- counters end -->\n",
};

/// Writes both pages, below the current directory; or, if `check`, only compares them.
///
/// # Errors
/// When a page cannot be read or written, has no marks, or is stale.
pub(crate) fn update(check: bool) -> Result<(), String> {
    let page = std::fs::read_to_string(PAGE).map_err(|error| {
        format!("{PAGE} cannot be read: {error}: run this at the root of the sources")
    })?;
    let page = with(&page, &COUNTER_MARKS, &counters())?;
    let page = with(&page, &OPTION_MARKS, &options())?;
    write(PAGE, &page, check)?;
    write(MANUAL, &manual(), check)
}

fn write(path: &str, text: &str, check: bool) -> Result<(), String> {
    if std::fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    if check {
        return Err(format!("{path} is stale: run `respool docs`"));
    }
    std::fs::write(Path::new(path), text)
        .map_err(|error| format!("{path} cannot be written: {error}"))
}

/// The page with what stands between these marks made anew.
fn with(page: &str, marks: &Marks, made: &str) -> Result<String, String> {
    let Marks { begin, end } = marks;
    let missing = || {
        format!(
            "{PAGE} must have the lines `{}` and `{}`",
            begin.trim(),
            end.trim()
        )
    };
    let (before, rest) = page.split_once(begin).ok_or_else(missing)?;
    let (_, after) = rest.split_once(end).ok_or_else(missing)?;
    Ok(format!("{before}{begin}\n{made}{end}{after}"))
}

fn counters() -> String {
    let mut text = String::from("| field | counts |\n|---|---|\n");
    for (name, what) in Counters::TEXTS {
        text.push_str(&format!("| `respool_{name}` | {} |\n", prose(what.trim())));
    }
    text.push('\n');
    text
}

fn options() -> String {
    let mut text = format!("{}\n\n", prose(help::LAYERS));
    text.push_str(&format!(
        "`--{} FILE` names the file. {}.\n\n",
        help::CONFIG.0,
        prose(help::CONFIG.1)
    ));
    for topic in Topic::ALL {
        text.push_str(&format!("### {}\n\n", topic.title()));
        if !topic.intro().is_empty() {
            text.push_str(&format!("{}\n\n", prose(topic.intro())));
        }
        for option in OPTIONS.iter().filter(|option| option.topic == topic) {
            text.push_str(&entry(option));
        }
    }
    text
}

fn entry(option: &Opt) -> String {
    let mut text = format!("#### {}\n\n{}.\n\n", option.name, prose(option.brief));
    for paragraph in option
        .more
        .split("\n\n")
        .filter(|paragraph| !paragraph.is_empty())
    {
        text.push_str(&format!("{}\n\n", prose(paragraph)));
    }
    let mut fact = |name: &str, value: &str| text.push_str(&format!("- {name}: {value}\n"));
    if let Some(default) = option.default() {
        fact("default", &code(&default));
    }
    if let Kind::Number(number) = &option.kind {
        fact("takes", &number.range());
    }
    if let Some(variable) = option.variable {
        fact("environment", &code(variable));
    }
    fact("command line", &code(&help::example(option)));
    let in_file = code(&format!("{} = {}", option.name, option.example_in_file()));
    match option.per_pool {
        true => fact("file", &format!("{in_file}, {}", help::PER_POOL)),
        false => fact("file", &in_file),
    }
    text.push('\n');
    text
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

/// Words that belong to a command line or a file, as code: what starts with `--`, and what has
/// characters that Markdown would take for its own.
fn prose(text: &str) -> String {
    let mut in_code = false;
    let words: Vec<String> = text
        .split(' ')
        .map(|word| {
            let plain = in_code || word.contains('`');
            if word.matches('`').count() % 2 == 1 {
                in_code = !in_code;
            }
            let core = word
                .trim_end_matches(['.', ',', ';', ':', ')'])
                .trim_start_matches('(');
            let is_code = core.starts_with("--")
                || core.contains(['[', '<', '*', '_'])
                || core.contains("://");
            if plain || !is_code {
                return word.into();
            }
            word.replacen(core, &code(core), 1)
        })
        .collect();
    words.join(" ")
}

/// The manual page, in the man macros.
fn manual() -> String {
    let mut text = format!(
        ".\\\" Made by `respool docs`; do not edit.\n.TH RESPOOL 1 \"\" \"respool {}\"\n",
        env!("CARGO_PKG_VERSION")
    );
    let mut section = |title: &str, body: &str| {
        text.push_str(&format!(".SH {title}\n{body}"));
    };
    section(
        "NAME",
        "respool \\- gather the requests of many clients for few Redis or Valkey servers\n",
    );
    section(
        "SYNOPSIS",
        ".B respool serve\n[\\fB\\-\\-config\\fR \\fIFILE\\fR] [\\fIOPTIONS\\fR]\n.br\n\
         .B respool check\n[\\fIFILE\\fR] [\\fB\\-\\-print\\fR] [\\fIOPTIONS\\fR]\n",
    );
    let description = "respool stands between many clients and a Redis or Valkey server. It \
                       gathers what the clients ask at the same moment, sends it as one, and hands \
                       every client its own answer, in order. `respool check` says everything that \
                       is wrong with a configuration, and does nothing else. SIGTERM or SIGINT \
                       ends respool: it stops accepting, answers what has arrived, and exits; a \
                       second signal ends it at once.";
    section(
        "DESCRIPTION",
        &format!("{}\n.PP\n{}\n", roff(description), roff(help::LAYERS)),
    );
    let mut options = format!(
        ".TP\n\\fB\\-\\-{}\\fR \\fIFILE\\fR\n{}.\n",
        help::CONFIG.0,
        roff(help::CONFIG.1)
    );
    for topic in Topic::ALL {
        options.push_str(&format!(".SS {}\n", roff(topic.title())));
        if !topic.intro().is_empty() {
            options.push_str(&format!("{}\n", roff(topic.intro())));
        }
        for option in OPTIONS.iter().filter(|option| option.topic == topic) {
            options.push_str(&manual_entry(option));
        }
    }
    section("OPTIONS", &options);
    section(
        "EXIT STATUS",
        ".TP\n.B 0\nA clean end.\n.TP\n.B 1\nSomething failed at the start or while running, or \
         sessions were cut at the end.\n.TP\n.B 2\nThe command line or the configuration is wrong; \
         trying again would not help.\n",
    );
    text
}

fn manual_entry(option: &Opt) -> String {
    let mut text = format!(
        ".TP\n\\fB{}\\fR\n{}.\n",
        roff(&help::synopsis(option)),
        roff(option.brief)
    );
    for paragraph in option
        .more
        .split("\n\n")
        .filter(|paragraph| !paragraph.is_empty())
    {
        text.push_str(&format!(".IP\n{}\n", roff(paragraph)));
    }
    let facts: Vec<String> = help::facts(option).iter().map(|fact| roff(fact)).collect();
    text.push_str(&format!(".IP\n{}\n", facts.join("\n.br\n")));
    text
}

/// Text that roff prints as it is.
fn roff(text: &str) -> String {
    let text = text
        .replace('\\', "\\e")
        .replace('-', "\\-")
        .replace('`', "\\(ga");
    match text.as_bytes().first() {
        // At the start of a line these would be commands.
        Some(b'.' | b'\'') => format!("\\&{text}"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_marks_is_made_anew() {
        let Marks { begin, end } = OPTION_MARKS;
        let page = format!("before\n{begin}stale\n{end}after\n");
        let made = with(&page, &OPTION_MARKS, "made\n").unwrap();
        assert!(
            made.starts_with("before\n") && made.ends_with("after\n") && !made.contains("stale")
        );
        assert_eq!(with(&made, &OPTION_MARKS, "made\n").unwrap(), made);
        assert!(with("no marks", &OPTION_MARKS, "").is_err());
    }

    #[test]
    fn both_pages_name_every_option() {
        let (page, manual) = (options(), manual());
        for option in OPTIONS {
            assert!(
                page.contains(&format!("#### {}\n", option.name)),
                "{}",
                option.name
            );
            assert!(
                manual.contains(&roff(&help::synopsis(option))),
                "{}",
                option.name
            );
        }
        assert!(!manual.lines().any(|line| line.starts_with('\'')));
    }

    #[test]
    fn what_markdown_would_take_for_its_own_is_code() {
        assert_eq!(
            prose("see --hold=false, or `a b` and [::1]:1."),
            "see `--hold=false`, or `a b` and `[::1]:1`."
        );
    }
}
