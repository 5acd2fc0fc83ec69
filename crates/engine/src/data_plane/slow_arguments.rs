//! The arguments of a slow request as the slow log shows them: cut as Redis cuts them, and without
//! passwords.

use respool_protocol::commands::{CommandFlags, CommandId, id};
use respool_protocol::request::{Found, RequestScanner};

use crate::base::limits::{SLOW_ARGUMENT_BYTES_MAX, SLOW_ARGUMENTS_MAX};
use crate::data_plane::ledger::CommandMark;

/// Whether a request with this command is logged. One that may wait at the server is not slow when
/// it does.
pub(crate) fn is_logged(command: CommandMark) -> bool {
    match command.id() {
        Some(id) => !id.get().flags.has(CommandFlags::BLOCKING),
        None => command == CommandMark::OTHER,
    }
}

/// Whether the arguments of a command may hold a password.
fn has_secrets(id: CommandId) -> bool {
    matches!(
        id,
        id::AUTH | id::HELLO | id::MIGRATE | id::ACL | id::ACL_SETUSER
    ) || matches!(id, id::CONFIG | id::CONFIG_SET)
        || id.get().name.starts_with("module")
}

/// The words of a command's name.
fn words(id: CommandId) -> impl Iterator<Item = &'static [u8]> {
    id.get().name.split('|').map(str::as_bytes)
}

/// The name of a command in place of the arguments of its request; empty if the table lacks it.
pub(crate) fn shown_name(command: CommandMark) -> Vec<Vec<u8>> {
    let id = command.id();
    id.map_or_else(Vec::new, |id| words(id).map(<[u8]>::to_vec).collect())
}

/// The arguments of a request as the slow log shows them. Arguments of a command that the table
/// lacks may be passwords. If the bytes begin with another request of respool's own, or the server
/// has the command by another name, the name alone is shown.
pub(crate) fn shown_args(command: CommandMark, bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut scanner = RequestScanner::default();
    let found = scanner.scan(bytes, true);
    let spans = match found {
        Ok(Found::Request { .. }) => scanner.spans(),
        _ => &[],
    };
    let args = || spans.iter().map(|span| span.of(bytes));
    let Some(id) = command.id() else {
        return args().take(1).map(cut).collect();
    };
    let named = words(id).count();
    let is_its_own = args()
        .zip(words(id))
        .all(|(arg, name)| arg.eq_ignore_ascii_case(name));
    if spans.len() < named || !is_its_own {
        return shown_name(command);
    }
    if has_secrets(id) && spans.len() > named {
        let shown = args().take(named).map(cut);
        return shown.chain([b"(redacted)".to_vec()]).collect();
    }
    if spans.len() <= SLOW_ARGUMENTS_MAX {
        return args().map(cut).collect();
    }
    let shown = SLOW_ARGUMENTS_MAX - 1;
    let more = format!("... ({} more arguments)", spans.len() - shown);
    args()
        .take(shown)
        .map(cut)
        .chain([more.into_bytes()])
        .collect()
}

/// An argument, cut as Redis cuts it (`slowlogCreateEntry`).
fn cut(arg: &[u8]) -> Vec<u8> {
    match arg.get(..SLOW_ARGUMENT_BYTES_MAX) {
        Some(shown) if shown.len() < arg.len() => {
            let more = format!("... ({} more bytes)", arg.len() - shown.len());
            [shown, more.as_bytes()].concat()
        }
        _ => arg.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use respool_protocol::{commands, encode};

    use super::*;

    fn shown(line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let mut bytes = Vec::new();
        encode::request(&mut bytes, &words);
        let id = commands::resolve(words.len(), |at| words[at].as_bytes());
        text(&shown_args(id.into(), &bytes))
    }

    fn text(args: &[Vec<u8>]) -> String {
        String::from_utf8_lossy(&args.join(&b' ')).into_owned()
    }

    /// Arguments that may be passwords are left out.
    #[test]
    fn passwords_are_left_out() {
        for (line, expected) in [
            ("GET key", "GET key"),
            ("AUTH secret", "AUTH (redacted)"),
            ("hello 3 AUTH user secret", "hello (redacted)"),
            ("ACL SETUSER u >secret", "ACL SETUSER (redacted)"),
            ("CONFIG SET requirepass secret", "CONFIG SET (redacted)"),
            ("CONFIG GET maxmemory", "CONFIG GET maxmemory"),
            ("MIGRATE h 1 k 0 9 AUTH secret", "MIGRATE (redacted)"),
            ("SENTINEL SET m auth-pass s", "SENTINEL"),
            ("UNKNOWN secret", "UNKNOWN"),
        ] {
            assert_eq!(shown(line), expected, "{line}");
        }
    }

    /// Long arguments and many arguments are cut as Redis cuts them.
    #[test]
    fn long_requests_are_cut() {
        let long = "x".repeat(SLOW_ARGUMENT_BYTES_MAX + 3);
        let cut = "x".repeat(SLOW_ARGUMENT_BYTES_MAX);
        assert_eq!(
            shown(&format!("SET k {long}")),
            format!("SET k {cut}... (3 more bytes)")
        );
        let args = |count: usize| vec!["k"; count].join(" ");
        let whole = format!("MGET {}", args(SLOW_ARGUMENTS_MAX - 1));
        assert_eq!(shown(&whole), whole);
        assert_eq!(
            shown(&format!("MGET {}", args(SLOW_ARGUMENTS_MAX))),
            format!(
                "MGET {} ... (2 more arguments)",
                args(SLOW_ARGUMENTS_MAX - 2)
            )
        );
    }

    /// Where the bytes begin with another request, the name of the command is shown alone.
    #[test]
    fn bytes_of_another_request_are_not_shown() {
        let mut bytes = Vec::new();
        encode::request(&mut bytes, &["MULTI"]);
        assert_eq!(text(&shown_args(id::EXEC.into(), &bytes)), "exec");
        assert_eq!(text(&shown_args(id::CONFIG_GET.into(), b"")), "config get");
        assert_eq!(text(&shown_args(CommandMark::OTHER, b"")), "");
    }

    /// Requests that wait at the server, and those of respool's own, are not logged.
    #[test]
    fn blocking_and_own_requests_are_not_logged() {
        for (command, expected) in [
            (id::GET.into(), true),
            (CommandMark::OTHER, true),
            (id::BLPOP.into(), false),
            (id::WAIT.into(), false),
            (CommandMark::UNMEASURED, false),
            (CommandMark::NONE, false),
        ] {
            assert_eq!(is_logged(command), expected, "{command:?}");
        }
    }
}
