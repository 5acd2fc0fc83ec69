//! Replies that prove a refusal.

use crate::base::handle::SessionId;

/// The completion of a question about a refusal.
#[derive(Debug)]
pub(crate) enum RedirectCompletion {
    /// Own: asks the server whether it really refused the request of this session with this number.
    Proof {
        session: SessionId,
        seq: u32,
        proof: ProofKind,
    },
}

/// The kind of request that proves a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProofKind {
    /// The server refuses a twin: a request with the same keys and no effect.
    Twin,
    /// The server replies that it does not have the script.
    NoScript,
}
