//! The sessions of a client: each call has one for itself while it lasts.

use std::sync::{Mutex, PoisonError};

use respool_driver::{CallerSession, CallerSessions};

/// Opens sessions, and keeps those that no call uses. There are as many as calls at the same time,
/// at most `sessions-max`.
pub(crate) struct Sessions {
    callers: CallerSessions,
    unused: Mutex<Vec<CallerSession>>,
    /// The request that a new session of calls begins with; empty: none.
    greeting: &'static [u8],
}

impl Sessions {
    /// `resp3`: the replies to calls are in RESP3.
    pub(crate) fn new(callers: CallerSessions, resp3: bool) -> Sessions {
        Sessions {
            callers,
            unused: Mutex::default(),
            greeting: match resp3 {
                true => b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n",
                false => b"",
            },
        }
    }

    /// A session for one call, and the request that the call has to put in front of its own. The
    /// session that was used last comes first: its memory is warm.
    pub(crate) fn take_for_call(&self) -> (CallerSession, &'static [u8]) {
        loop {
            let unused = self.lock().pop();
            match unused {
                // A rule has ended it meanwhile, such as that for idle sessions.
                Some(session) if session.end().is_some() => {}
                Some(session) => return (session, b""),
                None => return (self.open(), self.greeting),
            }
        }
    }

    /// A session in RESP2 for one caller.
    pub(crate) fn take(&self) -> CallerSession {
        match self.greeting {
            b"" => self.take_for_call().0,
            _ => self.open(),
        }
    }

    /// A new session.
    pub(crate) fn open(&self) -> CallerSession {
        self.callers.open(0)
    }

    /// Keeps a session for the next call, unless it has ended. All its replies have been read, and
    /// it is as it was when it was taken.
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
