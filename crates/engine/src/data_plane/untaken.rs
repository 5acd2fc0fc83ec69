//! Clients that take no replies. Many libraries write a whole pipeline before they read the first
//! reply: a client that is not read meanwhile would never come to read.
//!
//! ```text
//!   output above the soft bound      its requests are not read
//!   nothing taken for STUCK_MS       they are read on, and held, up to session_input_bytes_max
//!   that is reached, and nothing     the session is closed
//!   taken for session_stall_ms
//! ```
//!
//! A server without a proxy holds the replies instead, without a bound.

use crate::engine::Engine;
use crate::session::{Flags, Session};
use crate::slots::Key;
use crate::time::Time;

/// How long a client may take nothing before it is thought to write all of its requests first,
/// milliseconds.
const STUCK_MS: u64 = 100;

/// Sessions that were not read since their output is above the soft bound.
#[derive(Debug, Default)]
pub(crate) struct Untaken {
    sessions: Vec<Key>,
}

impl Untaken {
    /// A session's output is above the bound. It is not in the list yet.
    pub(crate) fn note(&mut self, key: Key) {
        self.sessions.push(key);
    }
}

/// Whether a client takes nothing of the output for which it is not read.
pub(crate) fn is_stuck(session: &Session, now: Time) -> bool {
    session.flags.any(Flags::HOLD_OUTPUT) && now.since_ms(session.took_at) >= STUCK_MS
}

impl Engine {
    /// Looks at the sessions that are not read for their output.
    pub(crate) fn tick_untaken(&mut self) {
        let limits = &self.settings.limits;
        let (most, stall_ms) = (limits.session_input_bytes_max, limits.session_stall_ms);
        let idle_ms = self.settings.timeouts.session_idle_ms;
        let now = self.now;
        let mut sessions = std::mem::take(&mut self.untaken.sessions);
        sessions.retain(|key| {
            let Some(session) = self.sessions.get(*key) else {
                return false;
            };
            if !session.flags.any(Flags::HOLD_OUTPUT) {
                return false;
            }
            let is_over = |limit_ms: u32| now.since_ms(session.took_at) >= u64::from(limit_ms);
            if session.held.len() >= most as usize && is_over(stall_ms) {
                let reason = format!(
                    "session-input-bytes-max: it took no reply for {stall_ms} ms, and {most} bytes of its requests wait"
                );
                self.close_for(*key, reason);
                return false;
            }
            if idle_ms > 0 && is_over(idle_ms) {
                self.close_for(*key, format!("session-idle-ms: it took no reply for {idle_ms} ms"));
                return false;
            }
            if is_stuck(session, now) {
                self.reading_changed(*key);
            }
            true
        });
        self.untaken.sessions = sessions;
    }
}
