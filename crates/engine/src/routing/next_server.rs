//! The server that gets a refused request next.

use crate::routing::pool::ServerId;

/// The server that gets a refused request next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextServer {
    /// The owner of its slot at the time of the attempt.
    Owner,
    /// This server, with ASKING in front.
    Importer(ServerId),
    /// This server. A replica named it as the owner of a slot. Or a node named it in a refusal of a
    /// request whose keys respool cannot see.
    Named(ServerId),
}
