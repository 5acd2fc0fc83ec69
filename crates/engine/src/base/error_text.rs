//! Errors for requests that respool refuses: in Redis's own words where the server would refuse
//! them, too.

use respool_protocol::commands::{Command, CommandRefusal};

/// The refusal of a request between WATCH or MULTI and EXEC: one server has to execute all of
/// these.
pub(crate) const FOREIGN_OWNER: &[u8] =
    b"CROSSSLOT respool: this command's keys are on another server than the keys watched or queued \
    before";

/// The refusal of a SORT that reads keys made from a pattern.
pub(crate) const PATTERN_KEYS: &[u8] =
    b"ERR respool: BY and GET of SORT are refused where a pool has several servers: \
    the keys that they name may be anywhere";

/// The refusal of a SWAPDB that only some of the servers could execute: nodes of a Cluster refuse
/// it.
pub(crate) const ONE_DATABASE: &[u8] =
    b"ERR respool: SWAPDB is refused where some keys of a pool are in a Cluster, \
    which has one database";

/// The refusal of a command that the table does not have.
pub(crate) const UNKNOWN_KEYS: &[u8] =
    b"ERR respool: the keys of this command are unknown, and the pool has several servers";

pub(crate) const NO_KEYS: &[u8] =
    b"ERR respool: this command names no keys, so its server in the pool is unknown";

/// The error if no replica can be read.
pub(crate) const NO_READER: &[u8] =
    b"NOTSENT respool: no replica can be read at the moment, and the pool says reads=replica: \
    try again, or ask for prefer-replica";

/// Redis's text for a session that has to authenticate.
pub(crate) const NOAUTH: &[u8] = b"NOAUTH Authentication required.";

/// Redis's text (`getNodeByQuery`).
pub(crate) const CROSSSLOT: &[u8] = b"CROSSSLOT Keys in request don't hash to the same slot";

/// Redis's text (`commandCheckExistence`, 7.0): at most 128 bytes of the name, and then of the
/// arguments. Before 7.0 it has other quotes, and commas.
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

/// Redis's text (`commandCheckExistence`, 7.0). `container`: the command as the client names it,
/// which the server may have renamed.
pub(crate) fn unknown_subcommand(container: &[u8], sub: &[u8]) -> Vec<u8> {
    wrong_subcommand(b"ERR unknown subcommand '", container, sub, 128)
}

/// Redis's text (`addReplySubcommandSyntaxError`, 7.0).
pub(crate) fn malformed_subcommand(container: &[u8], sub: &[u8]) -> Vec<u8> {
    let text = b"ERR unknown subcommand or wrong number of arguments for '";
    wrong_subcommand(text, container, sub, 128)
}

/// Redis's text before 7.0, also for an unknown subcommand.
pub(crate) fn unknown_subcommand_before_7(container: &[u8], sub: &[u8]) -> Vec<u8> {
    let text = b"ERR Unknown subcommand or wrong number of arguments for '";
    wrong_subcommand(text, container, sub, usize::MAX)
}

fn wrong_subcommand(text: &[u8], container: &[u8], sub: &[u8], shown: usize) -> Vec<u8> {
    let sub = &c_string(sub)[..c_string(sub).len().min(shown)];
    let container = c_string(container).to_ascii_uppercase();
    [text, sub, b"'. Try ", &container, b" HELP."].concat()
}

/// The part of an argument that Redis's error texts show: they end it at the first zero byte.
pub(crate) fn c_string(arg: &[u8]) -> &[u8] {
    arg.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Redis's text (`commandCheckArity`, 7.0).
pub(crate) fn wrong_arity(command: &Command) -> Vec<u8> {
    let name = command.name;
    format!("ERR wrong number of arguments for '{name}' command").into_bytes()
}

/// Redis's text (`processCommand`, 7.0). Versions before 7.0 had no sharded channels.
pub(crate) fn not_in_subscription(name: &[u8], before_7: bool) -> Vec<u8> {
    let kinds = if before_7 { "(P)" } else { "(P|S)" };
    let why = format!(
        "': only {kinds}SUBSCRIBE / {kinds}UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
    );
    [b"ERR Can't execute '", name, why.as_bytes()].concat()
}

/// The error for SELECT where the server has renamed it.
pub(crate) const RENAMED_SELECT: &[u8] =
    b"ERR respool: the server has renamed SELECT (rename-command), and respool needs it to change \
    the database of a link: undo the renaming, or use only the database of --backend";

/// The error for a command that respool does not support.
pub(crate) fn refusal(command: &Command, why: CommandRefusal) -> Vec<u8> {
    let why = match why {
        CommandRefusal::Replication => "it belongs to replication, which is between servers",
        CommandRefusal::ConnectionState => {
            "it changes the connection to the server, which sessions share"
        }
    };
    format!(
        "ERR respool: '{}' is not supported: {why}",
        command.name.replace('|', " ")
    )
    .into_bytes()
}
