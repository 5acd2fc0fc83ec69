//! The result of a transaction, and the parts of it that respool makes.

use respool_protocol::commands::{CommandId, Names};

use crate::base::settings::Credentials;
use crate::data_plane::completion::access::LoginClaim;
use crate::data_plane::completion::pinned::{ConnectionSwitch, TrackingRedirect};
use crate::data_plane::ingress::KeptRequest;
use crate::data_plane::session::Pins;

/// The completion of a request around a transaction.
#[derive(Debug)]
pub(crate) enum TransactionCompletion {
    /// UNWATCH, on the session's own link. The session gets `instead` in place of any reply.
    Unwatch { instead: Option<Vec<u8>> },
}

/// The requests of a block for which respool makes the results.
#[derive(Debug)]
pub(crate) struct Exec {
    /// The number of requests that the client queued.
    pub(crate) count: u32,
    pub(crate) local_results: Vec<(u32, LocalResult)>,
}

impl Exec {
    /// See [`crate::data_plane::completion::Completion::changes_identity`].
    pub(crate) fn changes_identity(&self) -> bool {
        self.local_results
            .iter()
            .any(|(_, result)| result.changes_identity())
    }

    /// The switches of the transaction, each with whether the session had a link for it before.
    pub(crate) fn switches(&self) -> impl Iterator<Item = (ConnectionSwitch, bool)> {
        let mut results = self.local_results.iter().map(|(_, result)| result);
        std::iter::from_fn(move || {
            results.find_map(|result| match result {
                LocalResult::Switch { switch, had, .. } => Some((*switch, *had)),
                _ => None,
            })
        })
    }

    /// Whether the block flushes the scripts of its server.
    pub(crate) fn flushes_scripts(&self) -> bool {
        let mut local_results = self.local_results.iter();
        local_results.any(|(_, result)| matches!(result, LocalResult::FlushScripts))
    }
}

/// A request in a transaction with a result that respool makes or changes.
#[derive(Debug)]
pub(crate) enum LocalResult {
    /// SELECT: the database to which the session changes.
    Select(u32),
    /// A request about the session. It is not in the block; respool answers it after the server has
    /// executed the block.
    Local(KeptRequest),
    /// HELLO. respool answers it after the block, but it is in the block as well: the server's
    /// later results come in its version.
    Hello(KeptRequest),
    /// AUTH, alone or in a HELLO. The server executes the later requests as that user, on a link of
    /// the session's own, which is closed afterwards. respool answers the rest of the HELLO.
    Login {
        login: Credentials,
        hello: Option<KeptRequest>,
        claim: LoginClaim,
    },
    /// A switch such as CLIENT TRACKING. The session keeps its own link as long as the switch is
    /// on. `had`: the session had a link for it before.
    Switch {
        switch: ConnectionSwitch,
        had: bool,
        redirect: Option<TrackingRedirect>,
    },
    /// The result names a connection. The server names respool's stand-in; the client gets the
    /// session that it asked for.
    RedirectName,
    /// The result counts connections. The command, and the first name in its arguments.
    Counted(CommandId, Vec<u8>),
    /// The result names keys, see `ScatterCompletion::Named`.
    Named(Names),
    /// SCRIPT FLUSH, see `LocalCompletion::FlushScripts`.
    FlushScripts,
    /// A constant reply. The request is not in the block.
    Constant(&'static [u8]),
}

impl LocalResult {
    /// Whether the server executes it, too.
    pub(crate) fn in_block(&self) -> bool {
        !matches!(self, LocalResult::Local(_) | LocalResult::Constant(_))
    }

    /// The pins that the session needs so that the server can execute this.
    pub(crate) fn pins(&self) -> Option<Pins> {
        match self {
            LocalResult::Switch { switch, .. } if switch.on => Some(switch.pins),
            _ => None,
        }
    }

    /// The target to which it redirects tracking messages.
    pub(crate) fn redirect(&self) -> Option<&TrackingRedirect> {
        match self {
            LocalResult::Switch { redirect, .. } => redirect.as_ref(),
            _ => None,
        }
    }

    /// Whether it changes its connection in a way that cannot be undone for certain: after EXEC a
    /// server may refuse the request that would undo it. So the session needs its own link, which
    /// nothing uses afterwards.
    pub(crate) fn leaves_trace(&self) -> bool {
        self.changes_identity() || matches!(self, LocalResult::Select(_))
    }

    /// See [`crate::data_plane::completion::Completion::changes_identity`].
    pub(crate) fn changes_identity(&self) -> bool {
        matches!(self, LocalResult::Hello(_) | LocalResult::Login { .. })
    }

    /// Whether it changes or shows the session. Then the session's earlier requests are executed
    /// before the transaction, and its later ones after it.
    pub(crate) fn is_about_session(&self) -> bool {
        !matches!(
            self,
            LocalResult::Counted(..)
                | LocalResult::Constant(_)
                | LocalResult::Named(_)
                | LocalResult::FlushScripts
        )
    }

    pub(crate) fn held_bytes(&self) -> usize {
        let own = match self {
            LocalResult::Local(request) | LocalResult::Hello(request) => request.bytes.len(),
            LocalResult::Login { login, hello, .. } => {
                let name = login.user.as_ref().map_or(0, String::len);
                let rest = hello.as_ref().map_or(0, |rest| rest.bytes.len());
                name + login.password.len() + rest
            }
            LocalResult::Counted(_, name) => name.len(),
            LocalResult::Select(_)
            | LocalResult::Switch { .. }
            | LocalResult::RedirectName
            | LocalResult::Named(_)
            | LocalResult::FlushScripts
            | LocalResult::Constant(_) => 0,
        };
        size_of::<(u32, LocalResult)>() + own
    }
}
