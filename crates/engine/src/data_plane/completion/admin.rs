//! Replies to requests that configure or control respool.

/// The completion of a request that configures or controls respool.
#[derive(Debug)]
pub(crate) enum AdminCompletion {
    /// CLIENT UNBLOCK of a link: the reply answers the query of worker `to` with this ticket.
    Unblock { to: usize, ticket: u64 },
    /// CONFIG SET or GET of respool's own options.
    Control(Box<PendingControl>),
}

/// A CONFIG SET or GET that waits for the server's reply.
#[derive(Debug)]
pub(crate) enum PendingControl {
    Get { patterns: Vec<Vec<u8>> },
    Set { pairs: Vec<(Vec<u8>, Vec<u8>)> },
}
