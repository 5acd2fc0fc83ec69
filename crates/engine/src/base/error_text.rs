//! What respool refuses as the server would, in Redis's own words; and what only respool refuses.

use respool_protocol::commands::{Command, Refusal};

use crate::requests::Request;

/// Redis's text.
pub(crate) const NOAUTH: &[u8] = b"NOAUTH Authentication required.";

/// Redis's text (`commandCheckExistence`, 7.0): 128 bytes of the name, then of the arguments. Before 7.0 it
/// had other quotes, and commas.
pub(crate) fn unknown_command(args: &[&[u8]], before_7: bool) -> Vec<u8> {
    let (open, close, behind): (&[u8], &[u8], &[u8]) = if before_7 {
        (b"`", b"`", b"`, ")
    } else {
        (b"'", b"'", b"' ")
    };
    const SHOWN: usize = 128;
    let cut = |arg: &'_ [u8], len: usize| c_string(arg)[..c_string(arg).len().min(len)].to_vec();
    let mut shown = Vec::new();
    for arg in args.iter().skip(1) {
        if shown.len() >= SHOWN {
            break;
        }
        let room = SHOWN - shown.len();
        shown.extend(open);
        shown.extend(cut(arg, room));
        shown.extend(behind);
    }
    let name = cut(args.first().copied().unwrap_or_default(), SHOWN);
    [
        b"ERR unknown command ",
        open,
        name.as_slice(),
        close,
        b", with args beginning with: ",
        &shown,
    ]
    .concat()
}

/// Redis's text (`commandCheckExistence`, 7.0). `container`: as the client calls it, which the server may have renamed.
pub(crate) fn unknown_subcommand(container: &[u8], sub: &[u8]) -> Vec<u8> {
    wrong_subcommand(b"ERR unknown subcommand '", container, sub, 128)
}

/// Redis's text (`addReplySubcommandSyntaxError`, 7.0).
pub(crate) fn malformed_subcommand(request: &Request<'_>) -> Vec<u8> {
    let what = b"ERR unknown subcommand or wrong number of arguments for '";
    wrong_subcommand(what, request.arg(0), request.arg(1), 128)
}

/// The same in 6.2, of an unknown one, too.
pub(crate) fn unknown_subcommand_before_7(request: &Request<'_>) -> Vec<u8> {
    let what = b"ERR Unknown subcommand or wrong number of arguments for '";
    wrong_subcommand(what, request.arg(0), request.arg(1), usize::MAX)
}

fn wrong_subcommand(what: &[u8], container: &[u8], sub: &[u8], shown: usize) -> Vec<u8> {
    let sub = &c_string(sub)[..c_string(sub).len().min(shown)];
    let container = c_string(container).to_ascii_uppercase();
    [what, sub, b"'. Try ", &container, b" HELP."].concat()
}

/// To Redis's error texts an argument is a C string.
pub(crate) fn c_string(arg: &[u8]) -> &[u8] {
    arg.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Redis's text (`commandCheckArity`, 7.0).
pub(crate) fn wrong_arity(command: &Command) -> Vec<u8> {
    let name = command.name;
    format!("ERR wrong number of arguments for '{name}' command").into_bytes()
}

/// Redis's text (`processCommand`, 7.0). Before 7.0 there were no shard channels.
pub(crate) fn not_in_subscription(name: &[u8], before_7: bool) -> Vec<u8> {
    let kinds = if before_7 { "(P)" } else { "(P|S)" };
    let why = format!(
        "': only {kinds}SUBSCRIBE / {kinds}UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
    );
    [b"ERR Can't execute '", name, why.as_bytes()].concat()
}

/// To a SELECT by another name.
pub(crate) const RENAMED_SELECT: &[u8] = b"ERR respool: the server calls SELECT otherwise (rename-command), but it is by SELECT \
    that respool gives a link its database: give it its name back, or use only the database of --backend";

pub(crate) fn refusal(command: &Command, why: Refusal) -> Vec<u8> {
    let why = match why {
        Refusal::Replication => "it is spoken between servers",
        Refusal::ConnectionState => "it is about the server's connection, which others share",
    };
    format!(
        "ERR respool: '{}' is not supported: {why}",
        command.name.replace('|', " ")
    )
    .into_bytes()
}
