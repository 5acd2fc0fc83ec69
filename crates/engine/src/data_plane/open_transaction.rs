//! Open transactions: the facts about them that the whole engine reads.
//!
//! `transaction` holds their requests.

use crate::base::handle::SessionId;
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::Dispatched;
use crate::data_plane::session::{Flags, Pins};
use crate::routing::pool::Group;

/// The facts about a transaction that is queued.
#[derive(Debug, Default)]
pub(crate) struct OpenTransaction {
    /// The number of its requests.
    pub(crate) count: u32,
    /// One of them may write.
    pub(crate) writes: bool,
    /// One of them was refused, so EXEC will be refused, too.
    pub(crate) aborted: bool,
    /// The owner of their keys.
    pub(crate) group: Option<Group>,
}

/// The facts about a session's transaction and its watched keys.
#[derive(Debug, Default)]
pub(crate) struct TransactionFacts {
    /// The transaction that is queued since MULTI.
    pub(crate) open: Option<OpenTransaction>,
    /// The key groups of the watched keys, where keys are divided.
    pub(crate) watched: Vec<Group>,
    /// The link on which the session watched keys was lost, so changes of these keys are unknown.
    pub(crate) watch_lost: bool,
}

impl TransactionFacts {
    /// The memory of the key groups.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.watched.capacity() * size_of::<Group>()
    }
}

impl DataPlane {
    /// Whether a session has sent MULTI, and not yet EXEC or DISCARD.
    pub(crate) fn is_in_multi(&self, id: SessionId) -> bool {
        let session = self.sessions.get(id);
        session.is_some_and(|session| session.state.any(Flags::IN_MULTI))
    }

    /// Whether a session watches keys at its server.
    pub(crate) fn watches(&self, id: SessionId) -> bool {
        let session = self.sessions.get(id);
        session.is_some_and(|session| session.pins.any(Pins::WATCH))
    }

    /// Whether a session's watch is lost: EXEC answers nil.
    pub(crate) fn has_lost_watch(&self, id: SessionId) -> bool {
        let session = self.sessions.get(id);
        let rare = session.and_then(|session| session.rare.as_ref());
        rare.is_some_and(|rare| rare.transaction.watch_lost)
    }

    /// The session's client has heard that its watch is lost, or does not ask any more.
    pub(crate) fn forget_lost_watch(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id)
            && let Some(rare) = &mut session.rare
        {
            rare.transaction.watch_lost = false;
        }
    }

    /// The facts about the transaction of a session in MULTI.
    pub(crate) fn transaction_of(&mut self, id: SessionId) -> Option<&mut OpenTransaction> {
        let rare = self.sessions.get_mut(id)?.rare.as_mut()?;
        rare.transaction.open.as_mut()
    }

    /// The owner of the keys that a session has queued since MULTI, if it has queued any.
    pub(crate) fn queued_group(&self, id: SessionId) -> Option<Group> {
        let rare = self.sessions.get(id)?.rare.as_ref()?;
        rare.transaction.open.as_ref()?.group
    }

    /// Notes the owner of a transaction's keys.
    pub(crate) fn bind_transaction(&mut self, id: SessionId, group: Group) {
        if let Some(transaction) = self.transaction_of(id) {
            transaction.group = Some(group);
        }
    }

    /// Notes that a queued request may write.
    pub(crate) fn note_queued_write(&mut self, id: SessionId) {
        if let Some(transaction) = self.transaction_of(id) {
            transaction.writes = true;
        }
    }

    /// A request of a session was refused. If the session is in MULTI, its EXEC will fail.
    pub(crate) fn abort_transaction(&mut self, id: SessionId) {
        if let Some(transaction) = self.transaction_of(id) {
            transaction.aborted = true;
        }
    }

    /// Refuses a request. If the session is in MULTI, its EXEC will fail.
    pub(crate) fn refuse_queued(&mut self, id: SessionId, text: &[u8]) -> Dispatched {
        self.abort_transaction(id);
        self.answer_error(id, text)
    }
}
