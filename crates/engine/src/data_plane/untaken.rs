//! Clients that take no replies. Many libraries write a whole pipeline before they read the first
//! reply: if respool stopped reading such a client, both would wait for ever.
//!
//! ```text
//!   output above the soft bound        its requests are not read
//!   nothing taken for STUCK_MS         they are read and held, up to session_input_bytes_max
//!   that bound reached, and nothing    the session is closed
//!   taken for session_stall_ms
//! ```
//!
//! A server without a proxy holds the replies instead, without a bound.

use crate::base::handle::SessionId;
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::session::Session;
use crate::data_plane::session_state::Holds;

/// How long a client takes no reply before respool reads on, because it may write all its requests
/// first, milliseconds.
const STUCK_MS: u64 = 100;

/// Sessions that were unread since their output passed the soft bound.
#[derive(Debug, Default)]
pub(crate) struct UnreadOutput {
    sessions: Vec<SessionId>,
}

impl UnreadOutput {
    /// A session's output passed the bound. The list does not have it yet.
    pub(crate) fn note(&mut self, id: SessionId) {
        self.sessions.push(id);
    }
}

/// Whether a session is unread because of its output, and its client takes nothing of that.
pub(crate) fn is_stuck(session: &Session, now: Time) -> bool {
    session.state.holds().any(Holds::OUTPUT) && now.since_ms(session.took_at) >= STUCK_MS
}

impl DataPlane {
    /// Reads on, or closes, the sessions of clients that take no output.
    pub(crate) fn tick_untaken(&mut self) {
        let limits = &self.settings.limits;
        let (most, stall_ms) = (limits.session_input_bytes_max, limits.session_stall_ms);
        let idle_ms = self.settings.timeouts.session_idle_ms;
        let now = self.now;
        let mut sessions = std::mem::take(&mut self.unread_output.sessions);
        sessions.retain(|id| {
            let Some(session) = self.sessions.get(*id) else {
                return false;
            };
            if !session.state.holds().any(Holds::OUTPUT) {
                return false;
            }
            let is_over = |limit_ms: u32| now.since_ms(session.took_at) >= u64::from(limit_ms);
            if session.held.len() >= most as usize && is_over(stall_ms) {
                let reason = format!(
                    "session-input-bytes-max: it took no reply for {stall_ms} ms, and {most} bytes of \
                     its requests wait"
                );
                self.close_for(*id, reason);
                return false;
            }
            if idle_ms > 0 && is_over(idle_ms) {
                self.close_for(*id, format!("session-idle-ms: it took no reply for {idle_ms} ms"));
                return false;
            }
            if is_stuck(session, now) {
                self.reading_changed(*id);
            }
            true
        });
        self.unread_output.sessions = sessions;
    }
}
