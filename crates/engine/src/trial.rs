//! Joining requests is given up for a while where it does not pay.

/// Whether something that is done to batches pays; if not, they are left alone for a while.
pub(crate) struct Trial {
    seen: u32,
    wasted: u32,
    /// The part of them that may be wasted at the most, of 32.
    wasted_max: u32,
    /// So many batches are left alone.
    off: u32,
}

impl Trial {
    /// Requests after which it is judged, and batches that are left alone when it does not pay.
    const JUDGED: u32 = 1_024;
    const OFF: u32 = 256;
    const FOR_GOOD: u32 = u32::MAX;

    const fn new(wasted_max: u32) -> Trial {
        Trial {
            seen: 0,
            wasted: 0,
            wasted_max,
            off: 0,
        }
    }

    /// Whether to do it to the next batch.
    pub(crate) fn pays(&mut self) -> bool {
        let on = self.off == 0;
        if !on && self.off != Trial::FOR_GOOD {
            self.off -= 1;
        }
        on
    }

    /// For so many requests it cost more than it saved.
    pub(crate) fn waste(&mut self, count: u32) {
        self.wasted += count;
    }

    /// It was done to so many requests. Returns whether it is given up.
    pub(crate) fn note(&mut self, count: u32) -> bool {
        self.seen += count;
        if self.seen < Trial::JUDGED {
            return false;
        }
        let pays = self.wasted * 32 <= self.seen * self.wasted_max;
        self.seen = 0;
        self.wasted = 0;
        !pays && self.give_up()
    }

    /// Returns whether it was done until now.
    pub(crate) fn give_up(&mut self) -> bool {
        let was_on = self.off == 0;
        self.off = self.off.max(Trial::OFF);
        was_on
    }

    /// Not only for a while.
    pub(crate) fn stay_off(&mut self) {
        self.off = Trial::FOR_GOOD;
    }
}

/// A GET that finds nothing costs two requests instead of one: it pays up to one in eight.
pub(crate) const FUSING: Trial = Trial::new(4);
/// To look for what is the same costs little: it pays from one read in 32 on.
pub(crate) const COLLAPSING: Trial = Trial::new(31);
