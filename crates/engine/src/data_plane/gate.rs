//! Joining requests is given up for a while where it does not pay.

/// Whether something that is done to batches pays; if not, they are left alone for a while.
pub(crate) struct Trial {
    /// To so many requests it was done, and for so many it cost more than it saved: since it was judged last.
    seen: u32,
    wasted: u32,
    /// The part of them that may be wasted at the most, of 32.
    wasted_max: u32,
    /// So many requests are left alone.
    off: u32,
}

impl Trial {
    /// Requests after which it is judged; sooner where already more of them are wasted than may be of so many.
    const JUDGED: u32 = 1_024;
    /// Requests that are left alone when it does not pay: many, so that to try it again costs next to nothing.
    const OFF: u32 = 32_768;
    const FOR_GOOD: u32 = u32::MAX;

    const fn new(wasted_max: u32) -> Trial {
        Trial {
            seen: 0,
            wasted: 0,
            wasted_max,
            off: 0,
        }
    }

    /// Whether to do it to the next batch, which has so many requests.
    pub(crate) fn pays(&mut self, count: u32) -> bool {
        match self.off {
            0 => return true,
            Trial::FOR_GOOD => {}
            _ => {
                self.off = self.off.saturating_sub(count);
                // What comes of what was done before is not counted again.
                self.seen = 0;
                self.wasted = 0;
            }
        }
        false
    }

    /// For so many requests it cost more than it saved.
    pub(crate) fn waste(&mut self, count: u32) {
        self.wasted = self.wasted.saturating_add(count);
    }

    /// It is done to so many requests, and what it cost for those before is known. Returns whether it is given up.
    pub(crate) fn note(&mut self, count: u32) -> bool {
        let of = u64::from(self.seen.max(Trial::JUDGED));
        if u64::from(self.wasted) * 32 > of * u64::from(self.wasted_max) {
            return self.give_up();
        }
        if self.seen >= Trial::JUDGED {
            self.seen = 0;
            self.wasted = 0;
        }
        self.seen = self.seen.saturating_add(count);
        false
    }

    /// Returns whether it was done until now.
    pub(crate) fn give_up(&mut self) -> bool {
        let was_on = self.off == 0;
        if was_on {
            self.off = Trial::OFF;
        }
        was_on
    }

    /// Not only for a while.
    pub(crate) fn stay_off(&mut self) {
        self.off = Trial::FOR_GOOD;
    }
}

/// A GET that has to be asked again costs two requests instead of one: it pays up to one in eight.
pub(crate) const FUSING: Trial = Trial::new(4);
/// To find no company costs little, but a session may have to wait: it pays from one in four on.
pub(crate) const BY_SLOT: Trial = Trial::new(24);
/// To look for what is the same costs little: it pays from one read in 32 on.
pub(crate) const COLLAPSING: Trial = Trial::new(31);

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many batches of `size` it is done to, where of each so many are wasted, and are known to be when so
    /// many batches more have left.
    fn done(batches: usize, size: u32, wasted: u32, late: usize) -> usize {
        let (mut trial, mut on) = (FUSING, Vec::new());
        for nth in 0..batches {
            if late <= nth && on[nth - late] {
                trial.note(size);
                trial.waste(wasted);
            }
            let pays = trial.pays(size);
            on.push(pays);
        }
        on.iter().filter(|on| **on).count()
    }

    #[test]
    fn it_is_given_up_where_more_than_one_in_eight_is_wasted_however_late_that_is_known() {
        for late in [1, 10] {
            assert_eq!(done(1_000, 100, 12, late), 1_000);
            assert_eq!(done(1_000, 1, 0, late), 1_000);
            let tried = done(10_000, 100, 13, late);
            assert!(tried < 1_000, "{tried} batches of 10,000");
        }
    }

    #[test]
    fn to_try_it_again_costs_next_to_nothing_where_batches_are_small() {
        let tried = done(200_000, 2, 2, 1);
        assert!(tried < 1_000, "{tried} batches of 200,000");
    }
}
