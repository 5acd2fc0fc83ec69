//! Requests that no link has sent, and that their sessions read again: the sessions leave a pool
//! that has ended.
//!
//! ```text
//!   ledger of a link that is not up        bytes that session a holds
//!   [ a1  b1  a2  a3 ]                     [ a4 ]
//!             └───┴── not sent ──────────► [ a2 a3 a4 ]
//! ```
//!
//! Request a1 may have been sent before the link was lost: it stays, and a2 waits for its answer. A
//! session gets its *last* requests back, and only those that were surely not sent. So each request
//! is executed behind the earlier ones of its session. Requests that respool has changed, or that
//! belong to something larger, stay: a transaction, a share of a scattered request.
//!
//! Rejected: to put the requests on a link of the other pool as they are. That pool may have more
//! servers, or other prefixes, so a request may have to be divided.

use std::collections::{BTreeMap, HashMap};

use crate::base::error::Fate;
use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::ledger::departed::Departed;
use crate::data_plane::ledger::{Entry, HeldRequest};
use crate::data_plane::link::{Link, LinkRole};
use crate::data_plane::session::Session;
use crate::data_plane::session_state::Holds;

impl DataPlane {
    /// Gives the sessions of a pool their last requests back, as far as no link has sent them. The
    /// sessions hold them, in front of the bytes that they hold already. `may_leave`: whether a
    /// session may leave the pool with its requests.
    pub(crate) fn take_back_unsent(
        &mut self,
        pool: u16,
        may_leave: impl Fn(&DataPlane, SessionId) -> bool,
    ) {
        let links = self.links_with_unsent(pool);
        let mut places: HashMap<SessionId, Vec<u32>> = HashMap::new();
        for link in links.iter().filter_map(|id| self.links.get(*id)) {
            for request in link.ledger.requests().filter(may_be_read_again) {
                let entry = request.entry;
                places.entry(entry.session).or_default().push(entry.seq);
            }
        }
        let first_of = |(id, places)| {
            let session = self.sessions.get(id).filter(|_| may_leave(self, id))?;
            Some((id, first_of_last(session, places)?))
        };
        let firsts: HashMap<SessionId, u32> = places.into_iter().filter_map(first_of).collect();
        if firsts.is_empty() {
            return;
        }
        let leaves = |entry: &Entry, _: &[u8]| {
            let is_behind = |first: &u32| entry.seq.wrapping_sub(*first) as i32 >= 0;
            let leaves = firsts.get(&entry.session).is_some_and(is_behind);
            // Requests are joined as they are sent. A joined one has not its own bytes.
            debug_assert!(!leaves || !entry.class.is_joined(), "{:?}", entry.class);
            leaves
        };
        let mut taken: BTreeMap<SessionId, Vec<Departed>> = BTreeMap::new();
        for id in links {
            if let Some(link) = self.links.get_mut(id) {
                for departed in link.take_departing(leaves) {
                    let session = departed.entry.session;
                    taken.entry(session).or_default().push(departed);
                }
            }
        }
        for (id, mut requests) in taken {
            requests.sort_by(|one, other| one.entry.cmp_in_session(&other.entry));
            self.read_again(id, &requests);
        }
    }

    /// The shared links to a pool that are not connected, and whose ledgers have unsent requests
    /// only. The ledger of a loss that is not handled yet is not sorted out: it may have requests
    /// that were sent, or that have left joined.
    fn links_with_unsent(&self, pool: u16) -> Vec<LinkId> {
        let has_unsent = |id: LinkId, link: &Link| {
            link.role == LinkRole::Shared
                && !link.is_up()
                && !self.is_link_lost(id)
                && !link.ledger.is_empty()
                && self.pool_of(link.kind.server).parent == pool
                && link.ledger.sent() == 0
        };
        let links = self.links.iter().filter(|(id, link)| has_unsent(*id, link));
        links.map(|(id, _)| id).collect()
    }

    /// Gives a session these requests back, which are its last ones, in their order. It reads them
    /// again when its earlier requests are answered.
    fn read_again(&mut self, id: SessionId, requests: &[Departed]) {
        let (Some(session), Some(first)) = (self.sessions.get_mut(id), requests.first()) else {
            return;
        };
        let bytes: Vec<&[u8]> = requests.iter().map(|each| &each.request[..]).collect();
        let bytes = bytes.concat();
        session.next_seq = first.entry.seq;
        session.rare().read_again += requests.len() as u64;
        if requests.len() > 1 || !session.held.is_empty() {
            // The client may have sent them in one pipeline.
            session.burst.count_as_many();
        }
        // It has scanned bytes that now stand behind others.
        if let Some(partial) = session.partial.take() {
            self.held_bytes -= partial.held_bytes();
        }
        let held = [&bytes[..], &session.held].concat();
        self.spare_buffers
            .give(std::mem::replace(&mut session.held, held));
        self.held_bytes += bytes.len();
        let is_caught_up = session.is_caught_up();
        self.hold(id, Holds::CATCH_UP);
        self.note_read_again(id, first.entry.read_at, bytes.len());
        self.weigh(id);
        if is_caught_up {
            self.note_caught_up(id);
        }
    }
}

/// The count of requests: a request that is read again counts once.
impl DataPlane {
    /// Corrects the count after a session has taken held bytes: the requests that it has read again
    /// were counted before. The total never falls, because a scrape would take that for a restart.
    #[inline]
    pub(crate) fn uncount_read_again(&mut self, id: SessionId, counted_before: u64) {
        let has_none = |session: &Session| {
            let rare = session.rare.as_deref();
            rare.is_none_or(|rare| rare.read_again == 0)
        };
        if !self.sessions.get(id).is_some_and(has_none) {
            self.correct_count(id, counted_before);
        }
    }

    #[cold]
    #[inline(never)]
    fn correct_count(&mut self, id: SessionId, counted_before: u64) {
        let counted = self.counters.requests - counted_before;
        // Its last request may have closed the session.
        let session = self.session_or_closed(id);
        if let Some(rare) = session.and_then(|session| session.rare.as_deref_mut()) {
            let again = rare.read_again.min(counted);
            rare.read_again -= again;
            self.counters.requests -= again;
        }
    }
}

/// The bytes that a session has held, while requests are taken from them.
pub(crate) struct TakenBytes {
    pub(crate) bytes: Vec<u8>,
    /// The count of requests before.
    pub(crate) counted_before: u64,
}

/// Whether its session may read a request again: it was surely not sent, its bytes are those of the
/// client, and its session wants the reply.
fn may_be_read_again(request: &HeldRequest<'_>) -> bool {
    let entry = request.entry;
    entry.session != SessionId::NONE
        && entry.fate_unsent() == Fate::NotSent
        && !entry.is_silent()
        && request.completion.is_none_or(Completion::is_of_one_request)
}

/// The place of the first of a session's last requests, if all of these are at the given places.
fn first_of_last(session: &Session, mut places: Vec<u32>) -> Option<u32> {
    places.sort_unstable_by_key(|place| session.next_seq.wrapping_sub(*place));
    let mut first = session.next_seq;
    for place in places {
        if place != first.wrapping_sub(1) {
            break;
        }
        first = place;
    }
    (first != session.next_seq).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_plane::test_plane::{plane_with_link, session_of};

    /// A lost link gives no requests back before its loss is handled.
    #[test]
    fn lost_link_has_no_unsent_requests_before_its_loss_is_handled() {
        let (mut plane, link) = plane_with_link();
        let id = session_of(&mut plane);
        let stamp = plane.now_stamp;
        let entry = Entry {
            len: 4,
            ..Entry::of(id, 0, stamp)
        };
        let state = plane.links.get_mut(link).expect("the link is open");
        state.ledger.push(entry, b"SET1");
        plane.lose_link(link, "the test loses it");
        assert_eq!(plane.links_with_unsent(0), []);
        let lost = plane.turn.lost_links.pop_front().expect("it is noted");
        plane.take_down(lost, false);
        assert_eq!(plane.links_with_unsent(0), [link]);
    }

    /// A session gets its last requests back up to the first one that stays, also where the
    /// numbers of the places wrap.
    #[test]
    fn last_requests_end_at_the_first_gap() {
        let (mut plane, _) = plane_with_link();
        let id = session_of(&mut plane);
        let session = plane.sessions.get_mut(id).expect("the session is open");
        session.next_seq = 1;
        let last = u32::MAX;
        assert_eq!(first_of_last(session, vec![0, last]), Some(last));
        assert_eq!(first_of_last(session, vec![last - 1, 0]), Some(0));
        assert_eq!(first_of_last(session, vec![last]), None);
        assert_eq!(first_of_last(session, Vec::new()), None);
    }
}
