//! The handles of sessions and links.

use crate::base::slab::handle;

handle! {
    /// A session, as driver and engine name it.
    pub struct SessionId
}

/// The first session at this index, for tests without an engine.
#[cfg(test)]
pub(crate) fn session(index: u32) -> SessionId {
    SessionId {
        index,
        generation: 1,
    }
}

handle! {
    /// A link, as driver and engine name it. A link that connects again keeps its handle.
    pub struct LinkId
}

/// The number of the user that the configuration names for a server. Other numbers are those of
/// logins that clients have sent.
pub(crate) const CONFIGURED: u16 = 0;

impl SessionId {
    /// The handle of no session.
    pub(crate) const NONE: SessionId = SessionId {
        index: u32::MAX,
        generation: 0,
    };

    /// A small number for tables, reused once the session is gone.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

impl LinkId {
    /// The handle of no link.
    pub(crate) const NONE: LinkId = LinkId {
        index: u32::MAX,
        generation: 0,
    };

    /// A small number for tables, reused once the link is gone.
    pub fn index(self) -> usize {
        self.index as usize
    }
}
