//! RESET: the state of a session becomes that of a new one.

use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::Dispatched;
use crate::data_plane::link::{LinkKind, LinkRole};
use crate::data_plane::session::{Flags, Pins};

impl DataPlane {
    /// Makes a session as a new one at its server. Its subscriptions, its redirect and its
    /// transaction have ended.
    pub(crate) fn reset(&mut self, id: SessionId) -> Dispatched {
        let Some(server) = self.sessions.get(id).map(|session| session.server) else {
            return Dispatched::Done;
        };
        let first = self.default_kind(server);
        let link = self.shared_link(first).unwrap_or(LinkId::NONE);
        let own = self.reset_modes(id);
        self.drop_tracker(id);
        self.attach(id, link);
        if let Some(own) = own {
            if let Some(link) = self.links.get_mut(own) {
                link.tainted = true;
            }
            self.give_back(own);
        }
        self.reset_identity(id, first);
        let dispatched = self.answer_reply(id, b"+RESET\r\n");
        self.hold_to_leave_pool(id);
        dispatched
    }

    /// Ends the modes of a session that bind it to a link, and its mode of replies. Returns the
    /// session's own link, if it has one.
    fn reset_modes(&mut self, id: SessionId) -> Option<LinkId> {
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
    fn reset_identity(&mut self, id: SessionId, first: LinkKind) {
        let pool = self.pool_of_session(id);
        let protected = self.must_authenticate(pool.into());
        if let Some(session) = self.sessions.get_mut(id) {
            session.version = first.version;
            session.db = first.db;
            session.user = CONFIGURED;
            if let Some(rare) = &mut session.rare {
                rare.client.reset();
                rare.transaction.watch_lost = false;
                rare.target.found = None;
            }
            if protected {
                session.state |= Flags::UNAUTHENTICATED;
            }
        }
        self.reset_reading(id);
    }
}
