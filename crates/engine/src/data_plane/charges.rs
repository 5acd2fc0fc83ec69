//! Memory that components hold for sessions.
//!
//! A component keeps its state of a session in a table of its own. Whenever that state grows or
//! shrinks, the component charges the session with it. So the data plane weighs and closes a
//! session without a look at any component.

use crate::base::handle::SessionId;
use crate::data_plane::DataPlane;
use crate::data_plane::memory::Held;

/// The kinds of state that a session is charged with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChargeKind {
    /// Requests queued since MULTI.
    Transaction,
    /// Parts of replies, and the requests that wait for them.
    Parts,
    /// Deferred requests, with their refusals.
    Deferred,
    /// Channels and patterns that the session subscribes to, without their names.
    Subscriptions,
    /// Invalidations that wait for replies, and the options of tracking.
    Invalidations,
}

/// The number of kinds.
const KINDS: usize = 5;

/// Memory that a component holds for one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    /// Bytes of requests and replies, part of `DataPlane::held_bytes`.
    pub(crate) counted: usize,
    /// All memory, the counted bytes included.
    pub(crate) memory: usize,
}

/// The charges of a session, by kind.
#[derive(Debug, Default)]
pub(crate) struct Charges([Charge; KINDS]);

impl Charges {
    pub(crate) fn of(&self, kind: ChargeKind) -> Charge {
        self.0[kind as usize]
    }

    /// Sets a charge. Returns the one before.
    fn set(&mut self, kind: ChargeKind, charge: Charge) -> Charge {
        debug_assert!(charge.memory >= charge.counted, "counted bytes are memory");
        std::mem::replace(&mut self.0[kind as usize], charge)
    }

    /// The counted bytes of all charges.
    pub(crate) fn counted(&self) -> usize {
        self.0.iter().map(|charge| charge.counted).sum()
    }

    /// Adds the memory of all charges to their accounts.
    pub(crate) fn add_to(&self, held: &mut Held) {
        held.queued += self.of(ChargeKind::Transaction).memory;
        held.queued += self.of(ChargeKind::Deferred).memory;
        held.answers += self.of(ChargeKind::Parts).memory;
        held.output += self.of(ChargeKind::Invalidations).memory;
        held.subscriptions += self.of(ChargeKind::Subscriptions).memory;
    }
}

impl DataPlane {
    /// Charges a session with the state that a component holds for it now. The charge replaces the
    /// earlier one of its kind. A closed session is charged with nothing.
    pub(crate) fn charge(&mut self, id: SessionId, kind: ChargeKind, charge: Charge) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if session.rare.is_none() && charge == Charge::default() {
            return;
        }
        let old = session.rare().charges.set(kind, charge);
        self.held_bytes = self.held_bytes + charge.counted - old.counted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A charge replaces the one of its kind, and counts in its account.
    #[test]
    fn charge_replaces_the_one_before() {
        let mut charges = Charges::default();
        let charge = |counted, memory| Charge { counted, memory };
        let old = charges.set(ChargeKind::Transaction, charge(3, 10));
        assert_eq!(old, Charge::default());
        let old = charges.set(ChargeKind::Transaction, charge(5, 20));
        assert_eq!(old, charge(3, 10));
        assert_eq!(charges.counted(), 5);
        let mut held = Held::default();
        charges.add_to(&mut held);
        assert_eq!((held.queued, held.total()), (20, 20));
    }
}
