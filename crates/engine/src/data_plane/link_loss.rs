//! Links that are lost: noted at once, and handled soon after.
//!
//! ```text
//!   any code: lose_link ──► state `Lost`, queued ──► link_down (engine/link_events.rs)
//! ```
//!
//! A link may be lost in the middle of other work, for example while its replies are read. The
//! plane closes its connection at once, and nobody uses the link from then on. The consequences
//! concern all components, so the engine handles them, between two events at the latest.

use crate::base::handle::LinkId;
use crate::data_plane::DataPlane;
use crate::data_plane::link::LinkState;
use crate::engine::Action;

/// A link that is lost, and whose loss is not handled yet.
#[derive(Debug)]
pub(crate) struct LostLink {
    pub(crate) link: LinkId,
    pub(crate) was_up: bool,
    /// The cause, for the log and for error replies.
    pub(crate) reason: String,
    /// The server's error reply to the handshake, if that is the cause.
    pub(crate) refusal: Option<Vec<u8>>,
}

impl DataPlane {
    /// Gives a link up: closes its connection.
    #[cold]
    #[inline(never)]
    pub(crate) fn lose_link(&mut self, id: LinkId, reason: &str) {
        if !self.is_link_lost(id) {
            self.push_action(Action::CloseLink(id));
            self.note_link_lost(id, reason, None);
        }
    }

    /// Gives a link up whose server has refused the handshake with the error `text`.
    pub(crate) fn lose_refused_link(&mut self, id: LinkId, text: Vec<u8>) {
        if !self.is_link_lost(id) {
            self.push_action(Action::CloseLink(id));
            let reason = format!("the server refused: {}", String::from_utf8_lossy(&text));
            self.note_link_lost(id, &reason, Some(text));
        }
    }

    /// Notes the loss of a link that has no connection any more.
    pub(crate) fn note_link_lost(&mut self, id: LinkId, reason: &str, refusal: Option<Vec<u8>>) {
        // The state is about to change, and with it the handshake goes.
        self.note_lost_questions(id);
        let mut was_up = false;
        if let Some(link) = self.links.get_mut(id) {
            was_up = link.is_up();
            link.state = LinkState::Lost;
            link.admit(false, false);
        }
        self.lost_links.push_back(LostLink {
            link: id,
            was_up,
            reason: reason.to_owned(),
            refusal,
        });
    }

    fn is_link_lost(&self, id: LinkId) -> bool {
        let link = self.links.get(id);
        link.is_some_and(|link| matches!(link.state, LinkState::Lost))
    }
}
