//! Holds the first replies to a pipeline until the others come, in a pool of several servers.
//!
//! The replies to a pipeline come back in as many pieces as there are servers, each in a turn of
//! its own. To write each piece costs a system call of respool and one of the client, which mostly
//! waits for the last reply anyway. So a piece waits:
//!
//! ```text
//!   requests        a1 b1 a2 c1 b2 c2
//!   server a sends  a1 .. a2 .. .. ..     a1 is corked, a2 is in the reorder buffer
//!   server c sends  a1 .. a2 c1 .. c2
//!   server b sends  a1 b1 a2 c1 b2 c2     everything is written
//! ```
//!
//! A piece waits only for simple requests that are in flight, and no longer than a batch to one of
//! the servers may wait. If the other replies did not come in that time, the session does not wait
//! the next 1, 3, 7, ... times.

use crate::base::handle::SessionId;
use crate::base::limits::KEPT_BYTES_MAX;
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::own_options::CoalescingSwitches;

/// The most pieces that are written at once, after waits in vain.
const SKIP_MAX: u16 = 1023;

/// The cork of one session's output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cork {
    /// The latest end of the wait; 0 while the output does not wait.
    until: Time,
    /// Pieces that are written at once, from now on.
    skip: u16,
    /// How many pieces the last wait in vain made skip; 0 after a wait that paid.
    last_skip: u16,
}

impl Cork {
    pub(crate) const NONE: Cork = Cork {
        until: Time(0),
        skip: 0,
        last_skip: 0,
    };

    fn is_on(&self) -> bool {
        self.until > Time(0)
    }

    /// Ends the wait. `is_whole`: all requests are answered. Otherwise the wait took too long.
    pub(crate) fn end(&mut self, is_whole: bool) {
        if self.is_on() {
            self.until = Time(0);
            match is_whole {
                true => self.last_skip = 0,
                false => {
                    self.last_skip = (self.last_skip * 2 + 1).min(SKIP_MAX);
                    self.skip = self.last_skip;
                }
            }
        }
    }
}

impl DataPlane {
    /// Corks the output of a session that has got some of the replies it is owed, or marks the
    /// session to be written.
    pub(crate) fn cork_output(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if session.listed.is_set() {
            return;
        }
        if session.cork.is_on() {
            if session.out.len() >= KEPT_BYTES_MAX {
                DataPlane::mark_dirty(&mut self.turn.dirty, id, session);
            }
            return;
        }
        let rule = &self.pools[usize::from(session.pool)].flush;
        let aim = CoalescingSwitches::of(&self.coalescing_switches, session.listener).aim;
        // The other replies come from some of the pool's servers.
        let balanced_us = self.pools[usize::from(session.pool)].longest_wait_us;
        let wait_us = rule.wait_us_for(aim, balanced_us);
        let waits =
            !session.state.writes_at_once() && session.out.len() < KEPT_BYTES_MAX && wait_us > 0;
        if !waits || session.cork.skip > 0 {
            session.cork.skip = session.cork.skip.saturating_sub(1);
            return DataPlane::mark_dirty(&mut self.turn.dirty, id, session);
        }
        let until = self.now + wait_us;
        session.cork.until = until;
        // The new wait is mostly the last to end. Pools with different bounds make exceptions.
        let index = self
            .turn
            .corked
            .partition_point(|(other, _)| *other <= until);
        self.turn.corked.insert(index, (until, id));
    }

    /// Marks the sessions for writing if their outputs have waited long enough.
    pub(crate) fn uncork(&mut self) {
        while let Some((until, id)) = self.turn.corked.front().copied() {
            let session = self.sessions.get_mut(id);
            if let Some(session) = session.filter(|session| session.cork.until == until) {
                if until > self.now {
                    break;
                }
                session.cork.end(false);
                DataPlane::mark_dirty(&mut self.turn.dirty, id, session);
            }
            self.turn.corked.pop_front();
        }
    }
}
