//! Servers' answers about commands that the table lacks: of modules, of newer servers, or renamed.

use std::collections::HashMap;

use respool_protocol::commands::CommandId;
use respool_protocol::request::{Found, RequestScanner};

use crate::base::limits::LEARNED_COMMANDS_MAX;
use crate::base::time::Time;
use crate::routing::pool::ServerId;

/// A server and the user that asks it: rights belong to a user.
pub(crate) type ServerUser = (ServerId, u16);

/// The commands that the table lacks, as each server described them to each user.
#[derive(Default)]
pub(crate) struct LearnedCommands {
    commands: HashMap<(ServerUser, Vec<u8>), CommandInfo>,
}

impl LearnedCommands {
    /// A server's answer to a user about a command, by its name in lower case.
    pub(crate) fn get(&self, command: &(ServerUser, Vec<u8>)) -> Option<&CommandInfo> {
        self.commands.get(command)
    }

    /// Notes the answer of a server. At the bound, all answers are forgotten.
    pub(crate) fn learn(&mut self, command: (ServerUser, Vec<u8>), info: CommandInfo) {
        if self.commands.len() >= LEARNED_COMMANDS_MAX {
            self.commands.clear();
        }
        self.commands.insert(command, info);
    }

    pub(crate) fn forget_user(&mut self, user: u16) {
        self.commands.retain(|((_, of), _), _| *of != user);
    }

    pub(crate) fn forget_server(&mut self, server: ServerId) {
        self.commands.retain(|((of, _), _), _| *of != server);
    }

    /// The key arguments of a command that the table lacks, as any server gave them.
    pub(crate) fn keys_of(&self, name: &[u8]) -> LearnedKeySpec {
        let reported = |((_, of), lesson): (&(ServerUser, Vec<u8>), &CommandInfo)| match lesson {
            CommandInfo::Shared { keys, .. } | CommandInfo::Alone { keys }
                if of.eq_ignore_ascii_case(name) =>
            {
                Some(*keys)
            }
            _ => None,
        };
        let spec = self.commands.iter().find_map(reported);
        spec.unwrap_or(LearnedKeySpec::Unreported)
    }

    /// The places of keys in a request, if a server gave those of its command.
    pub(crate) fn keys_in(&self, request: &[u8]) -> impl Iterator<Item = usize> + use<> {
        let mut scanner = RequestScanner::default();
        let (keys, argc) = match scanner.scan(request, true) {
            Ok(Found::Request { .. }) => {
                let spans = scanner.spans();
                let name = spans.first().map_or(&b""[..], |name| name.of(request));
                (self.keys_of(name), spans.len())
            }
            _ => (LearnedKeySpec::None, 0),
        };
        keys.places(argc)
    }
}

/// The server's answer about a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandInfo {
    /// A command of the table by another name.
    Renamed(CommandId),
    /// It works on data and never waits.
    Shared { reads: bool, keys: LearnedKeySpec },
    /// It may change the state of its connection.
    Alone { keys: LearnedKeySpec },
    /// The server refused to answer at this time: the command may do anything.
    Unreported { at: Time },
    /// The server had no such command at this time.
    Nothing { at: Time },
}

/// The key arguments of a command, as its server gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LearnedKeySpec {
    /// From the first to the last, `step` apart. A negative `last` counts from the end.
    At {
        first: usize,
        last: i64,
        step: usize,
    },
    /// The command has no keys.
    None,
    /// The keys depend on the arguments, or are not known.
    Unreported,
}

impl LearnedKeySpec {
    /// The places of the keys among this many arguments.
    pub(crate) fn places(self, argc: usize) -> impl Iterator<Item = usize> {
        let (first, last, step) = match self {
            LearnedKeySpec::At { first, last, step } => (first, last, step),
            LearnedKeySpec::None | LearnedKeySpec::Unreported => (1, 0, 1),
        };
        let end = argc as i64;
        let last = if last < 0 { end + last } else { last };
        let behind = usize::try_from(last.min(end - 1) + 1).unwrap_or_default();
        (first..behind).step_by(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ServerUser = (ServerId(0), 1);
    const OTHER: ServerUser = (ServerId(1), 2);

    fn learned() -> LearnedCommands {
        let (first, last, step) = (1, 1, 1);
        let keys = LearnedKeySpec::At { first, last, step };
        let mut learned = LearnedCommands::default();
        for server_user in [ONE, OTHER] {
            let info = CommandInfo::Shared { reads: true, keys };
            learned.learn((server_user, b"tool.get".to_vec()), info);
        }
        learned.learn(
            (ONE, b"flip".to_vec()),
            CommandInfo::Nothing { at: Time(1) },
        );
        learned
    }

    /// The keys of a command are known while any server has described it, in any case of letters.
    #[test]
    fn keys_are_known_until_the_last_answer_is_forgotten() {
        let mut learned = learned();
        let request = b"*3\r\n$8\r\nTOOL.Get\r\n$1\r\na\r\n$1\r\nb\r\n";
        let places = |learned: &LearnedCommands| learned.keys_in(request).collect::<Vec<_>>();
        assert_eq!(places(&learned), [1]);
        learned.forget_user(ONE.1);
        assert_eq!(places(&learned), [1]);
        assert!(learned.get(&(ONE, b"tool.get".to_vec())).is_none());
        learned.forget_server(OTHER.0);
        assert_eq!(places(&learned), []);
        assert_eq!(learned.keys_of(b"tool.get"), LearnedKeySpec::Unreported);
        assert_eq!(learned.keys_of(b"flip"), LearnedKeySpec::Unreported);
    }

    /// The table has a bound.
    #[test]
    fn answers_are_forgotten_at_the_bound() {
        let mut learned = LearnedCommands::default();
        for number in 0..=LEARNED_COMMANDS_MAX {
            let name = number.to_string().into_bytes();
            learned.learn((ONE, name), CommandInfo::Unreported { at: Time(1) });
        }
        assert!(learned.commands.len() <= LEARNED_COMMANDS_MAX);
    }
}
