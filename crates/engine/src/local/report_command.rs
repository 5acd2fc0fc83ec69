//! RESPOOL: the command for figures that respool alone has. No server has it, so it is in no table,
//! and the right to it is the right to a command of the server.

use respool_protocol::commands::{self, CommandId, id};
use respool_protocol::encode;
use respool_protocol::request::RequestScanner;

use crate::base::error_text::malformed_subcommand;
use crate::base::handle::SessionId;
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::{Dispatched, KeptRequest};
use crate::data_plane::latency::OTHER;
use crate::data_plane::worker_query::{AdminQuery, ReplyForm};
use crate::local::Local;
use crate::local::acl::RightRefusal;

/// The name of the command.
pub(crate) const RESPOOL: &[u8] = b"respool";

/// Requests that RESPOOL SLOWLOG GET shows without a count, as those of Redis.
const SLOW_SHOWN: usize = 10;

/// Keys that RESPOOL HOTKEYS GET shows without a count.
const KEYS_SHOWN: usize = 10;

/// A request with the command RESPOOL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReportCommand {
    /// RESPOOL HELP.
    Help,
    /// RESPOOL HOTKEYS GET, with this count.
    HotkeysGet(usize),
    /// RESPOOL HOTKEYS RESET.
    HotkeysReset,
    /// RESPOOL LATENCY HISTOGRAM, with these names of commands.
    LatencyHistogram(Vec<Vec<u8>>),
    /// RESPOOL SLOWLOG GET, with this count.
    SlowlogGet(usize),
    /// RESPOOL SLOWLOG LEN.
    SlowlogLen,
    /// RESPOOL SLOWLOG RESET.
    SlowlogReset,
}

impl ReportCommand {
    /// The query to all workers about this pool, and the form of the reply. `None`: HELP needs no
    /// worker.
    pub(crate) fn query(self, pool: u16) -> Option<(AdminQuery, ReplyForm)> {
        Some(match self {
            ReportCommand::Help => return None,
            ReportCommand::LatencyHistogram(names) => {
                (AdminQuery::Latency, ReplyForm::Latency(names))
            }
            ReportCommand::SlowlogGet(count) => (
                AdminQuery::SlowLog { pool, count },
                ReplyForm::SlowLog(count),
            ),
            ReportCommand::SlowlogLen => (AdminQuery::SlowLogLen { pool }, ReplyForm::Sum),
            ReportCommand::SlowlogReset => (AdminQuery::ClearSlowLog { pool }, ReplyForm::Ok),
            ReportCommand::HotkeysGet(count) => {
                (AdminQuery::HotKeys { pool }, ReplyForm::HotKeys(count))
            }
            ReportCommand::HotkeysReset => (AdminQuery::ClearHotKeys { pool }, ReplyForm::Ok),
        })
    }

    /// Reads the arguments behind the name. `Err`: the text of the error.
    pub(crate) fn read(args: &[&[u8]]) -> Result<ReportCommand, Vec<u8>> {
        let is = |at: usize, word: &str| {
            let arg = args.get(at);
            arg.is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()))
        };
        if is(0, "latency") && is(1, "histogram") {
            return Ok(ReportCommand::LatencyHistogram(commands_of(&args[2..])));
        }
        match args.len() {
            2 if is(0, "slowlog") && is(1, "get") => Ok(ReportCommand::SlowlogGet(SLOW_SHOWN)),
            3 if is(0, "slowlog") && is(1, "get") => {
                count_of(args[2]).map(ReportCommand::SlowlogGet)
            }
            2 if is(0, "slowlog") && is(1, "len") => Ok(ReportCommand::SlowlogLen),
            2 if is(0, "slowlog") && is(1, "reset") => Ok(ReportCommand::SlowlogReset),
            2 if is(0, "hotkeys") && is(1, "get") => Ok(ReportCommand::HotkeysGet(KEYS_SHOWN)),
            4 if is(0, "hotkeys") && is(1, "get") && is(2, "count") => {
                match count_of(args[3]) {
                    // An empty reply would read as no hot key.
                    Ok(0) => Err(b"ERR count should be -1 or greater than 0".to_vec()),
                    count => count.map(ReportCommand::HotkeysGet),
                }
            }
            2 if is(0, "hotkeys") && is(1, "reset") => Ok(ReportCommand::HotkeysReset),
            1 if is(0, "help") => Ok(ReportCommand::Help),
            0 => Err(b"ERR wrong number of arguments for 'respool' command".to_vec()),
            _ => Err(malformed_subcommand(RESPOOL, args[0])),
        }
    }

    /// The command of the server that its user must have the right to.
    fn right(&self) -> CommandId {
        match self {
            ReportCommand::SlowlogReset | ReportCommand::HotkeysReset => id::LATENCY_RESET,
            _ => id::SLOWLOG_LEN,
        }
    }
}

/// The lines of RESPOOL HELP.
const HELP: [&str; 15] = [
    "RESPOOL <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "HOTKEYS GET [COUNT <count>]",
    "    The keys that are asked for most, from a sample, 10 without a count, all with -1.",
    "HOTKEYS RESET",
    "    Forget the sampled keys.",
    "LATENCY HISTOGRAM [<command> ...]",
    "    Times of requests by command: in all, in respool, and at the server.",
    "SLOWLOG GET [<count>]",
    "    The last slow requests, 10 without a count, all with -1.",
    "SLOWLOG LEN",
    "    Number of requests in the slow log.",
    "SLOWLOG RESET",
    "    Forget the requests in the slow log.",
    "HELP",
    "    Print this help.",
];

/// Appends the reply to RESPOOL HELP.
pub(crate) fn append_help(out: &mut Vec<u8>) {
    encode::array(out, HELP.len());
    for line in HELP {
        encode::status(out, line);
    }
}

/// The commands that LATENCY HISTOGRAM names, each once. If it names none, it is about all. A name
/// that no command has stands for none.
fn commands_of(names: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut known: Vec<Vec<u8>> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
    known.sort_unstable();
    known.dedup();
    known.retain(|name| is_measured(name));
    if known.is_empty() && !names.is_empty() {
        known.push(Vec::new());
    }
    known
}

/// Whether a histogram may have this name: that of a command, in lower case.
fn is_measured(name: &[u8]) -> bool {
    let container = name.split(|byte| *byte == b'|').next();
    name == OTHER.as_bytes() || container.and_then(commands::lookup).is_some()
}

/// The count of SLOWLOG GET or HOTKEYS GET; -1 for all. The error is Redis's (`slowlogCommand`).
fn count_of(arg: &[u8]) -> Result<usize, Vec<u8>> {
    let count = std::str::from_utf8(arg).ok();
    match count.and_then(|count| count.parse::<i64>().ok()) {
        Some(-1) => Ok(usize::MAX),
        Some(count) if count >= 0 => Ok(count as usize),
        _ => Err(b"ERR count should be greater than or equal to -1".to_vec()),
    }
}

impl Local {
    /// Refuses RESPOOL to a user without the right to it, or has the session wait for the server's
    /// answer about the right. `None`: the user may send it.
    pub(crate) fn refused_report(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        command: &ReportCommand,
    ) -> Option<Dispatched> {
        let right = command.right();
        let words: Vec<&str> = right.get().name.split('|').collect();
        let mut bytes = Vec::new();
        encode::request(&mut bytes, &words);
        let request = KeptRequest { id: right, bytes };
        let mut scanner = RequestScanner::default();
        let refusal = self.refusal_of_right(plane, id, &request.read(&mut scanner), false);
        let error = match refusal {
            None => return Some(Dispatched::Wait),
            Some(None) => return None,
            Some(Some(RightRefusal::Denied(error))) => error,
            Some(Some(RightRefusal::Unanswered)) => {
                self.unanswered_error(plane, id, plane.server_down_error(id))
            }
            Some(Some(RightRefusal::Unknown)) => format!(
                "NOPERM respool: RESPOOL needs the right to '{}', a command that the server lacks",
                words.join(" ")
            )
            .into_bytes(),
        };
        Some(plane.answer_error(id, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<ReportCommand, String> {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        ReportCommand::read(&args[1..])
            .map_err(|error| String::from_utf8_lossy(&error).into_owned())
    }

    /// Names are read in any case, and counts as Redis reads them.
    #[test]
    fn each_form_is_read() {
        let names = vec![b"get".to_vec(), b"set".to_vec()];
        let none = vec![Vec::new()];
        for (line, expected) in [
            (
                "RESPOOL LATENCY HISTOGRAM set get no-command Get",
                ReportCommand::LatencyHistogram(names.clone()),
            ),
            (
                "RESPOOL LATENCY HISTOGRAM no-command",
                ReportCommand::LatencyHistogram(none),
            ),
            (
                "RESPOOL latency HISTOGRAM get SET",
                ReportCommand::LatencyHistogram(names),
            ),
            (
                "RESPOOL LATENCY HISTOGRAM",
                ReportCommand::LatencyHistogram(Vec::new()),
            ),
            ("RESPOOL SLOWLOG GET", ReportCommand::SlowlogGet(SLOW_SHOWN)),
            ("RESPOOL SLOWLOG GET 3", ReportCommand::SlowlogGet(3)),
            (
                "RESPOOL SLOWLOG GET -1",
                ReportCommand::SlowlogGet(usize::MAX),
            ),
            ("RESPOOL SLOWLOG LEN", ReportCommand::SlowlogLen),
            ("RESPOOL slowlog reset", ReportCommand::SlowlogReset),
            ("RESPOOL help", ReportCommand::Help),
            ("RESPOOL hotkeys get", ReportCommand::HotkeysGet(KEYS_SHOWN)),
            ("RESPOOL HOTKEYS GET count 3", ReportCommand::HotkeysGet(3)),
            ("RESPOOL HOTKEYS RESET", ReportCommand::HotkeysReset),
        ] {
            assert_eq!(read(line), Ok(expected), "{line}");
        }
    }

    /// Other forms are errors that say so.
    #[test]
    fn other_forms_are_errors() {
        for (line, expected) in [
            ("RESPOOL", "wrong number of arguments"),
            ("RESPOOL LATENCY", "unknown subcommand"),
            ("RESPOOL SLOWLOG GET x", "greater than or equal to -1"),
            ("RESPOOL SLOWLOG GET -2", "greater than or equal to -1"),
            ("RESPOOL SLOWLOG LEN x", "unknown subcommand"),
            ("RESPOOL HELP x", "unknown subcommand"),
            ("RESPOOL HOTKEYS GET 3", "unknown subcommand"),
            ("RESPOOL HOTKEYS GET COUNT x", "greater than or equal to -1"),
        ] {
            let error = read(line).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
