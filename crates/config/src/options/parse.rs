//! Parsers for the texts of options.

use std::path::PathBuf;

use respool_engine::settings::User;
use respool_protocol::commands::{self, CommandId};

use crate::problem::shown;

/// Parses a switch: `true` or `false`, or `yes` or `no` as CONFIG SET has it.
pub fn switch(text: &str) -> Option<bool> {
    match text {
        "true" | "yes" => Some(true),
        "false" | "no" => Some(false),
        _ => None,
    }
}

/// Checks a password. The error must never repeat it.
pub(crate) fn parse_secret(text: &str) -> Result<String, String> {
    match text {
        "" => Err("is empty: a password has at least one character".into()),
        _ => Ok(text.into()),
    }
}

pub(super) fn parse_user(text: &str) -> Result<User, String> {
    let Some((name, password)) = text.split_once(':') else {
        return Err("must be NAME:PASSWORD".into());
    };
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '\0') {
        return Err("a user's name has at least one character and no spaces".into());
    }
    Ok(User {
        name: name.into(),
        password: parse_secret(password)?,
        source: None,
    })
}

/// An entry among the refused commands that lets DEBUG OBJECT pass.
pub(super) const DEBUG_OBJECT_PASSES: &str = "!debug|object";

pub(super) fn is_debug_object_passed(name: &str) -> bool {
    name.trim().to_lowercase().replace(' ', "|") == DEBUG_OBJECT_PASSES
}

/// Parses names of commands with commas between them. A container command stands for all of its
/// subcommands, too.
pub(super) fn parse_commands(text: &str) -> Result<Vec<CommandId>, String> {
    let mut found = Vec::new();
    for name in text.split(',') {
        let name = name.trim().to_lowercase().replace(' ', "|");
        let before = found.len();
        found.extend(commands::all().filter(|id| {
            let row = id.get().name;
            row == name
                || row
                    .split_once('|')
                    .is_some_and(|(container, _)| container == name)
        }));
        if found.len() == before {
            return Err(format!("no command is called `{}`", shown(&name)));
        }
    }
    Ok(found)
}

/// Parses permission bits in octal, as chmod does.
pub(super) fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("must be a mode in octal, at most 0777".into()),
    }
}

pub(crate) fn parse_path(text: &str) -> Result<PathBuf, String> {
    match text {
        "" => Err("is empty: it must be a path".into()),
        _ => Ok(text.into()),
    }
}
