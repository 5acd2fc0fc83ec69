//! When a part of the answers to a pipeline waits for the rest, where a pool has several servers.
//!
//! What a client asked at once comes back in as many parts as there are servers, each in a turn of its own. To write each of them is a
//! system call for us and one for the client, which mostly waits for the last answer anyway. So a part waits:
//!
//! ```text
//!   asked           a1 b1 a2 c1 b2 c2
//!   comes from a    a1 .. a2 .. .. ..     a1 is kept, a2 is parked
//!   comes from c    a1 .. a2 c1 .. c2
//!   comes from b    a1 b1 a2 c1 b2 c2     everything is written
//! ```
//!
//! It waits for nothing but simple requests that are on their way, and no longer than a batch may; and a session whose rest did not
//! come in that time is not made to wait the next 1, 3, 7, ... times.

use crate::control::Levels;
use crate::engine::Engine;
use crate::limits::KEPT_BYTES_MAX;
use crate::session::Flags;
use crate::slots::Key;
use crate::time::Time;

/// Most parts that are written at once, after waits in vain.
const DOUBT_MAX: u16 = 1023;

/// Of one session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keeping {
    /// Until when its output waits at the most; 0 if it does not.
    until: Time,
    /// Parts that are to be written at once.
    skip: u16,
    doubt: u16,
}

impl Keeping {
    pub(crate) const NONE: Keeping = Keeping {
        until: Time(0),
        skip: 0,
        doubt: 0,
    };

    fn is_on(&self) -> bool {
        self.until > Time(0)
    }

    /// What waited is written: all that was asked is answered, or it took too long.
    pub(crate) fn end(&mut self, is_whole: bool) {
        if self.is_on() {
            self.until = Time(0);
            match is_whole {
                true => self.doubt = 0,
                false => {
                    self.doubt = (self.doubt * 2 + 1).min(DOUBT_MAX);
                    self.skip = self.doubt;
                }
            }
        }
    }
}

impl Engine {
    /// A session has got a part of the answers that it is owed.
    pub(crate) fn keep_for_rest(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        if session.flags.any(Flags::LISTED) {
            return;
        }
        if session.keeping.is_on() {
            if session.out.len() >= KEPT_BYTES_MAX {
                Engine::mark_dirty(&mut self.dirty, key, session);
            }
            return;
        }
        let rule = &self.pools[usize::from(session.pool)].flush;
        let keeps = !session.flags.any(Flags::WRITES_AT_ONCE)
            && session.out.len() < KEPT_BYTES_MAX
            && rule.hold
            && Levels::of(&self.levels, session.listener).hold;
        if !keeps || session.keeping.skip > 0 {
            session.keeping.skip = session.keeping.skip.saturating_sub(1);
            return Engine::mark_dirty(&mut self.dirty, key, session);
        }
        let until = self.now + rule.max_delay_us;
        session.keeping.until = until;
        // Mostly the last one: pools may have different bounds.
        let behind = self.kept.partition_point(|(other, _)| *other <= until);
        self.kept.insert(behind, (until, key));
    }

    /// What has waited long enough is written.
    pub(crate) fn end_keeping(&mut self) {
        while let Some((until, key)) = self.kept.front().copied() {
            let session = self.sessions.get_mut(key);
            if let Some(session) = session.filter(|session| session.keeping.until == until) {
                if until > self.now {
                    break;
                }
                session.keeping.end(false);
                Engine::mark_dirty(&mut self.dirty, key, session);
            }
            self.kept.pop_front();
        }
    }
}
