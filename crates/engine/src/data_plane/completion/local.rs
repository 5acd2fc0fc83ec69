//! Replies that tell the facts by which respool answers requests itself.

use respool_protocol::commands::{CommandId, id};

/// The completion of a request about which respool knows more than the server, or learns from it.
#[derive(Debug)]
pub(crate) enum LocalCompletion {
    /// Sent by respool: MULTI and EXEC, to see whether the server accepts them. The value is the
    /// reply to MULTI.
    Probe(Option<Vec<u8>>),
    /// INFO. `ours`: whether respool's own section is added.
    Info { ours: bool },
    /// CONFIG GET of a Cluster's node, for a client that sees a plain server.
    AsPlainServer,
    /// ROLE of one node, for a client that sees a single node.
    RoleOfNode,
    /// SELECT of a session with a link of its own.
    Select(u32),
    /// EVAL, SCRIPT LOAD: the request contains a script.
    Script,
    /// Sent by respool: SCRIPT LOAD in front of a request that names the script of this number.
    Load(u32),
    /// EVALSHA of a script that respool knows.
    Evalsha,
    /// SCRIPT FLUSH: if the server accepts it, scripts are not sent along any more.
    FlushScripts,
    /// A large request that runs code. Its reply is always passed on. `shown`: the body of the
    /// script that it contains, at most [`crate::base::limits::SCRIPT_BYTES_MAX`].
    Code { shown: Option<Box<[u8]>> },
    /// Sent by respool: COMMAND, or COMMAND INFO about a command that respool does not know.
    Learn(Subject),
}

impl LocalCompletion {
    /// Takes a reply, if another one follows. Returns `false` for the last one.
    pub(crate) fn take_early(&mut self, reply: &[u8]) -> bool {
        match self {
            LocalCompletion::Probe(first) if first.is_none() => {
                *first = Some(reply.to_vec());
                true
            }
            _ => false,
        }
    }
}

/// The subject of a request that respool itself sends to a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    /// A command that the table does not have.
    Command(Vec<u8>),
    /// All commands of the server.
    Commands,
    /// Whether a transaction may be opened.
    Opening,
    /// Whether the user may send this probe, by its bytes.
    Right(Vec<u8>),
    /// The script of this number, which the server gets.
    Script { number: u32 },
}

/// The effect on scripts of a request that goes to several servers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ScriptEffect {
    None,
    /// SCRIPT LOAD.
    Load,
    /// SCRIPT FLUSH.
    Flush,
}

impl ScriptEffect {
    pub(crate) fn of(id: CommandId) -> Self {
        match id {
            id::SCRIPT_LOAD => ScriptEffect::Load,
            id::SCRIPT_FLUSH => ScriptEffect::Flush,
            _ => ScriptEffect::None,
        }
    }
}
