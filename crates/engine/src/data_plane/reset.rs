//! RESET: the state of a session becomes that of a new one.

use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::data_plane::DataPlane;
use crate::data_plane::link::{LinkKind, LinkRole};
use crate::data_plane::session::{Flags, Pins};

impl DataPlane {
    /// Ends the modes of a session that bind it to a link, and its mode of replies. Returns the
    /// session's own link, if it has one.
    pub(crate) fn reset_modes(&mut self, id: SessionId) -> Option<LinkId> {
        let session = self.sessions.get_mut(id)?;
        session.state.remove(Flags::UNPINNING);
        session.state.end_tunnel();
        session.state.reset_reply_mode();
        session.pins = Pins::default();
        let own = self.links.get(session.link)?.role == LinkRole::Pinned { by: id };
        own.then_some(session.link)
    }

    /// Gives a session the user, version and database of a new one. `first`: the kind of link that
    /// a new session has.
    pub(crate) fn reset_identity(&mut self, id: SessionId, first: LinkKind) {
        let pool = self.pool_of_session(id);
        let protected = self.must_authenticate(pool.into());
        if let Some(session) = self.sessions.get_mut(id) {
            session.version = first.version;
            session.db = first.db;
            session.user = CONFIGURED;
            if let Some(rare) = &mut session.rare {
                rare.name = Vec::new();
                rare.no_evict = false;
                rare.debugs_scripts = false;
                rare.watch_lost = false;
                rare.redirect_found = None;
            }
            if protected {
                session.state |= Flags::UNAUTHENTICATED;
            }
        }
        self.reset_reading(id);
    }
}
