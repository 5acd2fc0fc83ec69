//! A caller in the same process no longer waits for its requests.
//!
//! ```text
//!   ledger of a link     [ a1  b1  |  a2  c1 ]      session a ends
//!                          sent       not sent
//!                          a1 keeps a nameless place   a2 is taken out
//! ```
//!
//! A request that is taken out is surely not executed. A request that has left may be executed. Its
//! place in the ledger recognizes its late reply. So the caller learns the truth about its
//! requests.

use crate::base::error::Fate;
use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::ledger::HeldRequest;
use crate::data_plane::link::Link;
use crate::data_plane::session::Flags;

/// Takes the requests of a session out of the links, as far as they have not left. Returns the fate
/// of the session's unanswered requests; `None`: it has none, so its output holds all replies.
/// `NotSent` says that no server executes any of the requests. The session must be closed next.
pub(crate) fn withdraw(plane: &mut DataPlane, id: SessionId) -> Option<Fate> {
    // A session that was closed in this turn may have had requests in flight.
    let Some(session) = plane.sessions.get(id) else {
        return Some(Fate::Unknown);
    };
    // A reply of several parts has begun, such as that of an EXEC. Its other parts are missing.
    if session.state.any(Flags::STEPS) {
        return Some(Fate::Unknown);
    }
    let unanswered = session.depth() as usize;
    if unanswered == 0 {
        // The engine has read no request from these bytes.
        return (!session.held.is_empty()).then_some(Fate::NotSent);
    }
    let links = plane.links.iter();
    let links = links.filter(|(link_id, link)| has_only_known(plane, *link_id, link));
    let links: Vec<LinkId> = links.map(|(link_id, _)| link_id).collect();
    let mut taken = 0;
    for link_id in links {
        let Some(link) = plane.links.get_mut(link_id) else {
            continue;
        };
        let from_here = match link.is_up() {
            true => link
                .ledger
                .take_back_open(id, |request| may_go(id, request)),
            false => take_waiting(link, id),
        };
        if from_here > 0 {
            // A full link has room again.
            plane.reopen(link_id);
        }
        taken += from_here;
    }
    Some(match taken == unanswered {
        true => Fate::NotSent,
        false => Fate::Unknown,
    })
}

/// Whether the ledger tells which of its requests have left. While a loss is not handled yet, it
/// does not tell.
fn has_only_known(plane: &DataPlane, id: LinkId, link: &Link) -> bool {
    !plane.is_link_lost(id) && (link.is_up() || link.ledger.sent() == 0)
}

/// Whether a request of this session may be taken out of its batch. One that belongs to a larger
/// request stays: the other parts may have left.
fn may_go(id: SessionId, request: &HeldRequest<'_>) -> bool {
    let entry = request.entry;
    entry.session == id
        && entry.fate_unsent() == Fate::NotSent
        && request.completion.is_none_or(Completion::is_of_one_request)
}

/// Takes the requests of a session out of a link that is not connected. Returns their number.
fn take_waiting(link: &mut Link, id: SessionId) -> usize {
    let requests = link.ledger.requests();
    let going: Vec<u32> = requests
        .filter(|request| may_go(id, request))
        .map(|request| request.entry.seq)
        .collect();
    if going.is_empty() {
        return 0;
    }
    let taken = link.take_unsent(|entry| entry.session == id && going.contains(&entry.seq));
    taken.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_plane::ledger::Entry;
    use crate::data_plane::test_plane::{plane_with_link, session_of};

    /// The ledger of a loss that is not handled yet may have requests that were sent.
    #[test]
    fn request_on_a_lost_link_is_not_taken_out() {
        let (mut plane, link) = plane_with_link();
        let id = session_of(&mut plane);
        let entry = Entry {
            len: 4,
            ..Entry::of(id, 0, plane.now_stamp)
        };
        plane.sessions.get_mut(id).expect("it is open").next_seq = 1;
        let state = plane.links.get_mut(link).expect("it is open");
        state.ledger.push(entry, b"SET1");
        plane.lose_link(link, "the test loses it");
        assert_eq!(withdraw(&mut plane, id), Some(Fate::Unknown));
    }
}
