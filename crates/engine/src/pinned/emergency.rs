//! Links for commands that must not wait for a bound: SCRIPT KILL, SHUTDOWN and their like.
//!
//! These emergency links are outside all other bounds, so each server has few:
//! [`EMERGENCY_LINKS_PER_SERVER`]. A link stays for the next such command once its command is done.
//! It closes if it is unused for [`LINK_UNUSED_MS`](crate::base::limits::LINK_UNUSED_MS).

use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::DataPlane;
use crate::data_plane::bounds_met::Bound;
use crate::data_plane::completion::Completion;
use crate::data_plane::ingress::{Blocked, Dispatched};
use crate::data_plane::link::LinkKind;
use crate::data_plane::session::Pins;
use crate::pinned::Pinned;

impl Pinned {
    /// The link for a command that stops the scripts of other sessions, or the server. It must not
    /// wait for a link that these sessions hold. If all pinned links are taken, it gets an
    /// emergency link, which is returned. `None`: the session is pinned to a link of its own.
    fn link_for_emergency(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
    ) -> Result<Option<LinkId>, Blocked> {
        let Some(session) = plane.sessions.get(id) else {
            return Err(Blocked::Wait);
        };
        // A server that runs a script may refuse SELECT, and these commands concern no database.
        let kind = LinkKind {
            db: 0,
            ..plane.kind_of(session)
        };
        let has_own = !session.pins.is_empty();
        if has_own || plane.may_have_own_link(id) {
            plane.pin_to(kind, id, Pins::ONCE)?;
            return Ok(None);
        }
        if plane.hold_until_caught_up(id) {
            return Err(Blocked::Wait);
        }
        match plane.emergency_link(kind, id) {
            Some(link) => Ok(Some(link)),
            None => Err(plane.wait_for_emergency_link(id, Bound::PinnedLinks)),
        }
    }

    /// Sends a command on an emergency link.
    fn put_emergency(
        &mut self,
        plane: &mut DataPlane,
        (id, link): (SessionId, LinkId),
        bytes: &[u8],
        completion: Option<Completion>,
    ) -> Dispatched {
        plane.set_deadline(id, None);
        plane.put_on(link, id, bytes, completion.unwrap_or(Completion::Pass));
        // The session's next request goes to another link, so it waits for this reply.
        plane.hold_until_caught_up(id);
        Dispatched::Done
    }

    /// Places a command that stops the scripts of other sessions, or the server: SCRIPT KILL and
    /// its like.
    pub(crate) fn dispatch_emergency(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        bytes: &[u8],
        (reads, completion): (bool, Option<Completion>),
    ) -> Dispatched {
        match self.link_for_emergency(plane, id) {
            Ok(None) => plane.dispatch_alone(id, bytes, (reads, completion), Pins::ONCE, false),
            Ok(Some(link)) => self.put_emergency(plane, (id, link), bytes, completion),
            Err(blocked) => plane.blocked(id, blocked),
        }
    }
}
