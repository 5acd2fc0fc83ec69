//! Command lines. One table of flags makes both the parser and the help.

use std::ffi::OsString;
use std::str::FromStr;

use lexopt::Arg;

/// One option of a command: how it is written, what it means, what it does to `T`.
pub struct Flag<T> {
    /// Without the dashes.
    pub name: &'static str,
    /// What the value is called in the help; `None` for a switch.
    pub value: Option<&'static str>,
    /// Help, wrapped where it is shown.
    pub help: &'static str,
    /// Puts it into effect. A switch gets an empty value.
    pub set: fn(&mut T, &str) -> Result<(), String>,
}

/// What a command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// To run.
    Run,
    /// To be told how.
    Help,
}

/// Reads a command line into `into`. Nothing but options is expected.
///
/// # Errors
/// With one line that names the option and what is wrong with it.
pub fn parse<T>(
    args: impl IntoIterator<Item = OsString>,
    flags: &[&Flag<T>],
    into: &mut T,
) -> Result<Asked, String> {
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next().map_err(|error| error.to_string())? {
        let name = match arg {
            Arg::Short('h') | Arg::Long("help") => return Ok(Asked::Help),
            Arg::Long(name) => name.to_owned(),
            other => return Err(format!("{}; see --help", other.unexpected())),
        };
        let Some(flag) = flags.iter().find(|flag| flag.name == name) else {
            return Err(format!("there is no option --{name}; see --help"));
        };
        let value = match flag.value {
            Some(_) => parser.value().map_err(|error| error.to_string())?,
            None => OsString::new(),
        };
        let value = value
            .to_str()
            .ok_or_else(|| format!("--{name}: not valid UTF-8"))?;
        (flag.set)(into, value).map_err(|problem| format!("--{name} {value}: {problem}"))?;
    }
    Ok(Asked::Run)
}

/// Columns of a help text.
pub const WIDTH: usize = 100;

/// The help text of all flags, aligned and wrapped.
pub fn help<T>(flags: &[&Flag<T>]) -> String {
    let left = |flag: &Flag<T>| match flag.value {
        Some(value) => format!("--{} {value}", flag.name),
        None => format!("--{}", flag.name),
    };
    let width = flags.iter().map(|flag| left(flag).len()).max().unwrap_or(0);
    let mut text = String::new();
    let mut write = |left: &str, help: &str| {
        for (row, line) in wrap(help, WIDTH - width - 4).iter().enumerate() {
            let left = if row == 0 { left } else { "" };
            text.push_str(&format!("  {left:<width$}  {line}\n"));
        }
    };
    for flag in flags {
        write(&left(flag), flag.help);
    }
    write("--help", "This text.");
    text
}

/// The words of a text in lines of so many columns at most.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A number of at least one.
///
/// # Errors
/// When it is not.
pub fn positive<N: FromStr + PartialOrd + From<u8>>(value: &str) -> Result<N, String> {
    match value.replace('_', "").parse::<N>() {
        Ok(number) if number >= N::from(1) => Ok(number),
        _ => Err("a whole number of 1 or more is expected".to_owned()),
    }
}

/// The largest value that a server takes by default (`proto-max-bulk-len`).
pub const VALUE_BYTES_MAX: usize = 512 << 20;

/// The size of a value.
///
/// # Errors
/// When no server would take it.
pub fn value_bytes(value: &str) -> Result<usize, String> {
    // Wide enough for whatever is typed to be told what is wrong with it.
    match positive::<u128>(value)? {
        bytes if bytes <= VALUE_BYTES_MAX as u128 => Ok(bytes as usize),
        _ => Err(format!(
            "servers take values of {VALUE_BYTES_MAX} bytes at most"
        )),
    }
}

/// A number of seconds above zero, fractions allowed.
///
/// # Errors
/// When it is not.
pub fn seconds(value: &str) -> Result<f64, String> {
    match value.trim_end_matches('s').parse::<f64>() {
        Ok(number) if number > 0.0 && number <= 86_400.0 => Ok(number),
        _ => Err("a number of seconds above 0 is expected".to_owned()),
    }
}

/// Numbers of at least one, separated by commas, each once.
///
/// # Errors
/// When they are not.
pub fn list<N: FromStr + PartialOrd + From<u8> + Copy>(value: &str) -> Result<Vec<N>, String> {
    let mut numbers: Vec<N> = Vec::new();
    for word in value.split(',') {
        let number = positive(word.trim())?;
        if !numbers.contains(&number) {
            numbers.push(number);
        }
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Settings {
        rounds: u32,
        is_quick: bool,
    }

    const ROUNDS: Flag<Settings> = Flag {
        name: "rounds",
        value: Some("N"),
        help: "How often. Of two runs of the same length, the one that has more and shorter rounds tells \
               more of how far its figures can be trusted.",
        set: |settings, value| positive(value).map(|rounds| settings.rounds = rounds),
    };
    const QUICK: Flag<Settings> = Flag {
        name: "quick",
        value: None,
        help: "In a minute.",
        set: |settings, _| {
            settings.is_quick = true;
            Ok(())
        },
    };

    fn read(words: &[&str]) -> (Result<Asked, String>, Settings) {
        let mut settings = Settings::default();
        let words = words.iter().map(OsString::from);
        (parse(words, &[&ROUNDS, &QUICK], &mut settings), settings)
    }

    #[test]
    fn options_take_effect_in_both_spellings() {
        for words in [
            &["--quick", "--rounds", "3"][..],
            &["--rounds=3", "--quick"],
        ] {
            let (asked, settings) = read(words);
            assert_eq!(asked, Ok(Asked::Run));
            assert!(settings.is_quick && settings.rounds == 3);
        }
    }

    #[test]
    fn a_mistake_is_named_with_its_option() {
        for (words, part) in [
            (&["--rounds", "0"][..], "--rounds 0: a whole number"),
            (&["--round", "1"], "no option --round"),
            (&["--rounds"], "rounds"),
            (&["--quick=1"], "quick"),
            (&["eight"], "eight"),
        ] {
            let problem = read(words).0.unwrap_err();
            assert!(problem.contains(part), "{words:?}: {problem}");
        }
    }

    #[test]
    fn the_help_has_every_option() {
        let text = help(&[&ROUNDS, &QUICK]);
        assert!(
            text.starts_with("  --rounds N  How often. Of two"),
            "{text}"
        );
        assert_eq!(text.matches("\n              ").count(), 1, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH));
        assert!(text.contains("--quick ") && text.contains("--help "));
    }

    #[test]
    fn lists_keep_their_order_and_drop_repeats() {
        assert_eq!(list::<usize>("20, 1,20"), Ok(vec![20, 1]));
        assert!(list::<usize>("1,,2").is_err());
        assert!(list::<usize>("").is_err());
    }
}
