//! The sessions of a client: each call has one for itself while it lasts.

use std::sync::{Mutex, PoisonError};

use respool_driver::{CallerSession, CallerSessions};

/// Opens sessions, and keeps those that no call uses. There are as many as calls at the same time,
/// at most `sessions-max`.
pub(crate) struct Sessions {
    callers: CallerSessions,
    unused: Mutex<Vec<CallerSession>>,
}

impl Sessions {
    pub(crate) fn new(callers: CallerSessions) -> Sessions {
        Sessions {
            callers,
            unused: Mutex::default(),
        }
    }

    /// A session that no other call uses. The one that was used last comes first: its memory is
    /// warm.
    pub(crate) fn take(&self) -> CallerSession {
        loop {
            let unused = self.lock().pop();
            match unused {
                // A rule has ended it meanwhile, such as that for idle sessions.
                Some(session) if session.end().is_some() => {}
                Some(session) => return session,
                None => return self.callers.open(0),
            }
        }
    }

    /// Keeps a session for the next call, unless it has ended. All its replies have been read.
    pub(crate) fn give_back(&self, session: CallerSession) {
        if session.end().is_none() {
            self.lock().push(session);
        }
    }

    /// Drops all sessions that no call uses.
    pub(crate) fn clear(&self) {
        let unused = std::mem::take(&mut *self.lock());
        drop(unused);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<CallerSession>> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
