//! The commands that respool answers itself, and the component that answers each.

use respool_protocol::commands::{CommandId, id};

use crate::data_plane::completion::pinned::is_connection_switch;
use crate::data_plane::completion::pubsub::ChannelKind;

/// A command that respool answers itself, by the component that answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnCommand {
    /// PING: in a subscription it has another reply.
    Ping,
    /// A command about the session itself.
    Session(SessionCommand),
    /// AUTH.
    Auth,
    /// HELLO, which may contain a login.
    Hello,
    /// RESET.
    Reset,
    /// INFO, to which respool adds a section.
    Info,
    /// A command about all clients.
    Clients,
    /// A command around a transaction.
    Transaction,
    /// A subscription to names of this kind. `adds`: it begins.
    Subscription { kind: ChannelKind, adds: bool },
    /// MONITOR.
    Monitor,
    /// A command with a reply that names the target of a tracking session.
    TargetName,
    /// CLIENT TRACKING, which may name a target.
    Tracking,
    /// Another option of the connection.
    Switch,
}

/// A command about the session itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionCommand {
    Quit,
    Select,
    ClientId,
    ClientGetname,
    ClientSetname,
    ClientSetinfo,
    ClientReply,
    ClientCapa,
    /// READONLY, READWRITE, ASKING.
    ReadingMode,
    /// CLIENT with a subcommand that the table lacks.
    UnknownSubcommand,
}

impl OwnCommand {
    /// `None`: respool does not answer the command.
    pub(crate) fn of(command: CommandId) -> Option<OwnCommand> {
        let subscription = |kind, adds| OwnCommand::Subscription { kind, adds };
        Some(match command {
            id::PING => OwnCommand::Ping,
            id::AUTH => OwnCommand::Auth,
            id::HELLO => OwnCommand::Hello,
            id::RESET => OwnCommand::Reset,
            id::INFO => OwnCommand::Info,
            id::MULTI | id::EXEC | id::DISCARD | id::WATCH | id::UNWATCH => OwnCommand::Transaction,
            id::SUBSCRIBE => subscription(ChannelKind::Channel, true),
            id::UNSUBSCRIBE => subscription(ChannelKind::Channel, false),
            id::PSUBSCRIBE => subscription(ChannelKind::Pattern, true),
            id::PUNSUBSCRIBE => subscription(ChannelKind::Pattern, false),
            id::SSUBSCRIBE => subscription(ChannelKind::Shard, true),
            id::SUNSUBSCRIBE => subscription(ChannelKind::Shard, false),
            id::MONITOR => OwnCommand::Monitor,
            id::CLIENT_GETREDIR | id::CLIENT_TRACKINGINFO => OwnCommand::TargetName,
            id::CLIENT_TRACKING => OwnCommand::Tracking,
            command if is_connection_switch(command) => OwnCommand::Switch,
            id::CLIENT_INFO | id::CLIENT_LIST | id::CLIENT_KILL => OwnCommand::Clients,
            id::CLIENT_PAUSE | id::CLIENT_UNPAUSE => OwnCommand::Clients,
            id::CLIENT_UNBLOCK | id::CLIENT_NO_EVICT => OwnCommand::Clients,
            command => OwnCommand::Session(SessionCommand::of(command)?),
        })
    }
}

impl SessionCommand {
    fn of(command: CommandId) -> Option<SessionCommand> {
        Some(match command {
            id::QUIT => SessionCommand::Quit,
            id::SELECT => SessionCommand::Select,
            id::CLIENT_ID => SessionCommand::ClientId,
            id::CLIENT_GETNAME => SessionCommand::ClientGetname,
            id::CLIENT_SETNAME => SessionCommand::ClientSetname,
            id::CLIENT_SETINFO => SessionCommand::ClientSetinfo,
            id::CLIENT_REPLY => SessionCommand::ClientReply,
            id::CLIENT_CAPA => SessionCommand::ClientCapa,
            id::READONLY | id::READWRITE | id::ASKING => SessionCommand::ReadingMode,
            id::CLIENT => SessionCommand::UnknownSubcommand,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use respool_protocol::commands::{self, Answer};

    use super::*;

    /// Each row of the table that respool answers has a component that answers it. Containers have
    /// none: without a known subcommand they are refused before, or go to the server.
    #[test]
    fn each_row_that_respool_answers_has_an_answer() {
        for command in commands::all() {
            let row = command.get();
            let is_ours = matches!(row.answer, Answer::Session | Answer::Pinned);
            if !is_ours || matches!(command, id::CLUSTER | id::SCRIPT) {
                continue;
            }
            assert!(OwnCommand::of(command).is_some(), "{}", row.name);
        }
    }

    /// respool answers no other row, except PING to subscribers.
    #[test]
    fn no_row_of_the_server_has_an_answer() {
        for command in commands::all() {
            let row = command.get();
            let is_ours = matches!(row.answer, Answer::Session | Answer::Pinned);
            if !is_ours && command != id::PING {
                assert_eq!(OwnCommand::of(command), None, "{}", row.name);
            }
        }
    }
}
