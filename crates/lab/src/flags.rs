//! Command lines: parsing, and values that several commands take.

use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, Command};
use respool_testkit::scene::TopologyKind;

use crate::commands;

/// Columns of a help text.
pub const WIDTH: usize = 100;

/// Several values in one argument. clap takes a plain `Vec` for a repeated argument.
pub type ValueList<T> = Vec<T>;

/// Parses the arguments of a command. `Ok(None)`: they asked for the help, which was shown.
///
/// # Errors
/// One line that names the option and its mistake.
pub fn parse<T: Args>(about: &str, args: &[OsString]) -> Result<Option<T>, String> {
    let command = T::augment_args(Command::new("respool-lab"))
        .no_binary_name(true)
        .args_override_self(true)
        .term_width(WIDTH)
        .about(about.trim_end().to_owned())
        .help_template("{about}\n\n{all-args}\n");
    match command.try_get_matches_from(args) {
        Ok(matches) => match T::from_arg_matches(&matches) {
            Ok(given) => Ok(Some(given)),
            Err(error) => Err(one_line(&error)),
        },
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            commands::say(&error.to_string());
            Ok(None)
        }
        Err(error) => Err(one_line(&error)),
    }
}

/// clap's error in one line. An unknown argument gets advice in place of clap's hints.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let problem = text.split("\n\n").next().unwrap_or_default();
    let lines: Vec<&str> = problem.lines().map(str::trim).collect();
    let line = lines.join(" ").trim_start_matches("error: ").to_owned();
    match error.kind() {
        ErrorKind::UnknownArgument => format!("{line}; see --help"),
        _ => line,
    }
}

/// The words of a text in lines of at most so many columns.
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

/// A number of at least 1.
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
/// When no server accepts it.
pub fn value_bytes(value: &str) -> Result<usize, String> {
    // A wide type, so that a number that is too large gets the right error.
    match positive::<u128>(value)? {
        bytes if bytes <= VALUE_BYTES_MAX as u128 => Ok(bytes as usize),
        _ => Err(format!(
            "servers take values of {VALUE_BYTES_MAX} bytes at most"
        )),
    }
}

/// A number of seconds above zero, with or without a fraction.
///
/// # Errors
/// When it is not.
pub fn seconds(value: &str) -> Result<f64, String> {
    match value.trim_end_matches('s').parse::<f64>() {
        Ok(number) if number > 0.0 && number <= 86_400.0 => Ok(number),
        _ => Err("a number of seconds above 0 is expected".to_owned()),
    }
}

/// A topology of several servers.
///
/// # Errors
/// When there is none of that name.
pub fn kind(value: &str) -> Result<TopologyKind, String> {
    let kind = TopologyKind::ALL
        .into_iter()
        .find(|kind| kind.name() == value);
    kind.ok_or_else(|| "cluster, sentinel or sharded is expected".to_owned())
}

/// Workers of respool.
///
/// # Errors
/// When it is out of range.
pub fn threads(value: &str) -> Result<u16, String> {
    let number: u32 = positive(value)?;
    u16::try_from(number).map_err(|_| "too many".to_owned())
}

/// HOST:PORT, where the host is a name or an address.
///
/// # Errors
/// When it is not, or the name is unknown.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let mut found = text
        .to_socket_addrs()
        .map_err(|error| format!("HOST:PORT: {error}"))?;
    found
        .next()
        .ok_or_else(|| "no address of that name".to_owned())
}

/// Seconds as a duration.
///
/// # Errors
/// When it is no number of seconds.
pub fn duration(value: &str) -> Result<Duration, String> {
    seconds(value).map(Duration::from_secs_f64)
}

/// Numbers of at least 1 with commas between them, each once.
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

    #[derive(Args)]
    struct Settings {
        /// How often. Of two runs of the same length, the one that has more and shorter rounds
        /// tells more of how far its figures can be trusted.
        #[arg(long, value_name = "N", value_parser = positive::<u32>, default_value_t = 1)]
        rounds: u32,
        /// In a minute.
        #[arg(long = "quick")]
        is_quick: bool,
    }

    fn read(words: &[&str]) -> Result<Option<Settings>, String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        parse("Asks something.", &words)
    }

    #[test]
    fn options_take_effect_in_both_spellings() {
        for words in [
            &["--quick", "--rounds", "3"][..],
            &["--rounds=3", "--quick"],
        ] {
            let settings = read(words).unwrap().expect("no help is asked for");
            assert!(settings.is_quick && settings.rounds == 3);
        }
    }

    #[test]
    fn a_mistake_is_named_with_its_option() {
        for (words, part) in [
            (
                &["--rounds", "0"][..],
                "'0' for '--rounds <N>': a whole number",
            ),
            (&["--round", "1"], "'--round'"),
            (&["--rounds"], "rounds"),
            (&["--quick=1"], "quick"),
            (&["eight"], "eight"),
        ] {
            let problem = read(words).err().expect("a mistake");
            assert!(problem.contains(part), "{words:?}: {problem}");
            assert_eq!(problem.lines().count(), 1, "{words:?}: {problem}");
        }
    }

    #[test]
    fn the_help_has_every_option() {
        assert!(read(&["--rounds=3", "--help"]).unwrap().is_none());
        let command = Settings::augment_args(Command::new("x")).term_width(WIDTH);
        let text = command.clone().render_help().to_string();
        assert!(text.contains("--rounds <N>  How often. Of two"), "{text}");
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
