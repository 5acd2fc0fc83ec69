//! Which user a session is, what that user may do, and whether servers accept our logins.

pub(crate) mod acl;
pub(crate) mod auth;
pub(crate) mod guess_delay;
pub(crate) mod login_check;
pub(crate) mod login_probe;
pub(crate) mod login_state;
pub(crate) mod passwords;

use guess_delay::Attempts;
use login_probe::LoginProbes;

use crate::base::handle::SessionId;
use crate::base::session_map::SessionMap;

/// Logins that are being tried, and checks of the configured one.
#[derive(Default)]
pub(crate) struct Access {
    pub(crate) login_probes: LoginProbes,
    /// Logins that had to wait or were wrong.
    attempts: SessionMap<Attempts>,
}

impl Access {
    /// Forgets when a session's login began to wait for a link: another request is next.
    pub(crate) fn forget_login_wait(&mut self, id: SessionId) {
        if let Some(attempts) = self.attempts.get_mut(id) {
            attempts.asked_at = None;
        }
    }

    /// A session's login waits no longer.
    fn end_login_wait(&mut self, id: SessionId) {
        let Some(attempts) = self.attempts.get_mut(id) else {
            return;
        };
        match attempts.has_failed {
            true => (attempts.asked_at, attempts.turn) = (None, None),
            false => self.forget_session(id),
        }
    }

    /// Drops the state of a session that is closed.
    pub(crate) fn forget_session(&mut self, id: SessionId) {
        self.attempts.remove(id);
    }

    /// Memory of logins that wait, and of the tables by session, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.login_probes.memory_bytes() + self.attempts.table_bytes()
    }
}
