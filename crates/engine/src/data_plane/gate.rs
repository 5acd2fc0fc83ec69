//! The payoff gates of a link: each stops one kind of coalescing for a while, where that does not
//! pay.

use crate::base::time::Time;

/// Decides whether one kind of coalescing pays on a link. If not, batches leave unchanged for a
/// while.
pub(crate) struct PayoffGate {
    /// Requests that were coalesced since the gate was last judged.
    seen: u32,
    /// Requests among them that cost more than coalescing saved.
    wasted: u32,
    /// The most of 32 requests that may be wasted.
    wasted_max: u32,
    /// Requests that are still to leave unchanged; [`PayoffGate::FOR_GOOD`]: all.
    off: u32,
}

impl PayoffGate {
    /// Requests after which the gate is judged. It is judged sooner if more are wasted than may be
    /// of so many.
    const JUDGED: u32 = 1_024;
    /// Requests that leave unchanged where coalescing does not pay. There are many, so another try
    /// costs next to nothing.
    const OFF: u32 = 32_768;
    const FOR_GOOD: u32 = u32::MAX;

    const fn new(wasted_max: u32) -> PayoffGate {
        PayoffGate {
            seen: 0,
            wasted: 0,
            wasted_max,
            off: 0,
        }
    }

    /// Whether to coalesce the next batch, which has `count` requests.
    pub(crate) fn pays(&mut self, count: u32) -> bool {
        match self.off {
            0 => return true,
            PayoffGate::FOR_GOOD => {}
            _ => {
                self.off = self.off.saturating_sub(count);
                // Late results of earlier batches do not count again.
                self.seen = 0;
                self.wasted = 0;
            }
        }
        false
    }

    /// Notes requests that cost more than coalescing saved.
    pub(crate) fn waste(&mut self, count: u32) {
        self.wasted = self.wasted.saturating_add(count);
    }

    /// Notes `count` requests that are coalesced; `waste` has counted those before. Returns whether
    /// the gate closes.
    pub(crate) fn note(&mut self, count: u32) -> bool {
        let judged = u64::from(self.seen.max(PayoffGate::JUDGED));
        if u64::from(self.wasted) * 32 > judged * u64::from(self.wasted_max) {
            return self.close();
        }
        if self.seen >= PayoffGate::JUDGED {
            self.seen = 0;
            self.wasted = 0;
        }
        self.seen = self.seen.saturating_add(count);
        false
    }

    /// Closes the gate for a while. Returns whether it was open.
    pub(crate) fn close(&mut self) -> bool {
        let was_on = self.off == 0;
        if was_on {
            self.off = PayoffGate::OFF;
        }
        was_on
    }

    /// Closes the gate for the life of the connection.
    pub(crate) fn stay_off(&mut self) {
        self.off = PayoffGate::FOR_GOOD;
    }
}

/// For fusing. A GET that is sent again costs two requests instead of one: up to one in eight may
/// be.
const FUSING: PayoffGate = PayoffGate::new(4);
/// For fusing by slot. A request that finds no other of its slot costs little, but a session may
/// have to wait: one in four has to find one.
const BY_SLOT: PayoffGate = PayoffGate::new(24);
/// For collapsing. To look for equal reads costs little: one read in 32 has to find one.
const COLLAPSING: PayoffGate = PayoffGate::new(31);

/// The gates of one link, and the rights of its user that fusing needs.
pub(crate) struct CoalescingGates {
    /// Whether fusing GETs pays. It does not if many keys are missing: each such key costs two
    /// requests.
    pub(crate) gets: PayoffGate,
    /// Whether fusing SETs pays.
    pub(crate) sets: PayoffGate,
    /// Whether neighbouring requests are of one slot often enough, on a Cluster.
    pub(crate) by_slot: PayoffGate,
    /// Whether the search for equal reads pays.
    pub(crate) collapsing: PayoffGate,
    /// When a reply last showed that this user may GET. A user that may MGET need not have the
    /// right to GET.
    pub(crate) may_get: Option<Time>,
    /// When a reply last showed that this user may SET.
    pub(crate) may_set: Option<Time>,
}

impl CoalescingGates {
    /// The gates of a new connection. Its server may be another one than before, or the user may
    /// have other rights.
    pub(crate) const fn new() -> CoalescingGates {
        CoalescingGates {
            gets: FUSING,
            sets: FUSING,
            by_slot: BY_SLOT,
            collapsing: COLLAPSING,
            may_get: None,
            may_set: None,
        }
    }

    /// Opens all gates: each kind of coalescing is tried again.
    pub(crate) fn open_all(&mut self) {
        *self = CoalescingGates {
            may_get: self.may_get,
            may_set: self.may_set,
            ..CoalescingGates::new()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of batches of `size` that are coalesced. Each wastes `wasted` requests, which is
    /// known once `late` more batches have left.
    fn coalesced(batches: usize, size: u32, wasted: u32, late: usize) -> usize {
        let (mut gate, mut on) = (FUSING, Vec::new());
        for nth in 0..batches {
            if late <= nth && on[nth - late] {
                gate.note(size);
                gate.waste(wasted);
            }
            let pays = gate.pays(size);
            on.push(pays);
        }
        on.iter().filter(|on| **on).count()
    }

    /// The gate closes where more than one GET in eight is wasted, however late that is known.
    #[test]
    fn gate_closes_if_more_than_one_in_eight_is_wasted() {
        for late in [1, 10] {
            assert_eq!(coalesced(1_000, 100, 12, late), 1_000);
            assert_eq!(coalesced(1_000, 1, 0, late), 1_000);
            let tried = coalesced(10_000, 100, 13, late);
            assert!(tried < 1_000, "{tried} batches of 10,000");
        }
    }

    /// Open gates try each kind of coalescing again. The rights of the user stay known.
    #[test]
    fn opened_gates_keep_the_rights_of_the_user() {
        let mut gates = CoalescingGates::new();
        gates.may_get = Some(Time(7));
        gates.gets.stay_off();
        gates.by_slot.close();
        assert!(!gates.gets.pays(1) && !gates.by_slot.pays(1));
        gates.open_all();
        assert!(gates.gets.pays(1) && gates.by_slot.pays(1));
        assert_eq!(gates.may_get, Some(Time(7)));
    }

    /// Where batches are small, another try wastes few of them.
    #[test]
    fn another_try_costs_little_with_small_batches() {
        let tried = coalesced(200_000, 2, 2, 1);
        assert!(tried < 1_000, "{tried} batches of 200,000");
    }
}
