//! The users of sessions, their rights, and the logins of respool at the servers.

pub(crate) mod auth;
pub(crate) mod login_check;
pub(crate) mod login_probe;
pub(crate) mod login_renewal;
pub(crate) mod passwords;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use login_probe::LoginProbes;
use login_renewal::LoginRenewals;

use crate::base::handle::SessionId;
use crate::base::session_map::SessionMap;
use crate::data_plane::guess_delay::{Attempts, GuessDelay};

/// Logins that are being tried, and checks of the configured one.
#[derive(Default)]
pub(crate) struct Access {
    pub(crate) login_probes: LoginProbes,
    /// Links that still have to log in with the current password.
    login_renewals: LoginRenewals,
    /// The delay of logins after wrong passwords. All workers share it.
    guesses: Arc<Mutex<GuessDelay>>,
    /// Logins that had to wait or were wrong.
    attempts: SessionMap<Attempts>,
}

impl Access {
    /// Shares the delay of logins after wrong passwords with other workers.
    pub(crate) fn share_guesses(&mut self, guesses: Arc<Mutex<GuessDelay>>) {
        self.guesses = guesses;
    }

    fn guesses(&self) -> MutexGuard<'_, GuessDelay> {
        self.guesses.lock().unwrap_or_else(PoisonError::into_inner)
    }

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
            true => (attempts.asked_at, attempts.next) = (None, None),
            false => self.forget_session(id),
        }
    }

    /// Drops the state of a session that is closed.
    pub(crate) fn forget_session(&mut self, id: SessionId) {
        self.attempts.remove(id);
    }

    /// Memory of logins that wait, and of the tables by session, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.login_probes.memory_bytes()
            + self.login_renewals.memory_bytes()
            + self.attempts.table_bytes()
    }
}
