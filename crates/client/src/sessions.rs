//! The sessions of a client: each call has one for itself while it lasts.

use std::sync::Mutex;

use respool_driver::{CallerSession, CallerSessions};

use crate::lock;

/// Opens sessions, and keeps those that no call uses. There are as many as calls at the same time,
/// at most `sessions-max`.
pub(crate) struct Sessions {
    callers: CallerSessions,
    unused: Mutex<Vec<CallerSession>>,
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

    /// A session for one call, and whether it had another call before. The session that was used
    /// last comes first: its memory is warm.
    pub(crate) fn take_for_call(&self) -> (CallerSession, bool) {
        // In the child of a fork the lock may never be free.
        if self.callers.are_forked() {
            return (self.open(), false);
        }
        loop {
            let unused = lock(&self.unused).pop();
            match unused {
                Some(session) if session.take_up() => return (session, true),
                // A rule has ended it meanwhile, such as that for idle sessions.
                Some(_) => {}
                None => return (self.open(), false),
            }
        }
    }

    /// The request that each new session of calls begins with; empty: none.
    pub(crate) fn greeting(&self) -> &'static [u8] {
        self.greeting
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

    /// Whether the worker is in another process.
    pub(crate) fn are_forked(&self) -> bool {
        self.callers.are_forked()
    }

    /// Keeps a session for the next call, unless it has ended or another one wants its place. All
    /// its replies have been read, and it is as it was when it was taken.
    pub(crate) fn give_back(&self, session: CallerSession) {
        if session.lay_down() {
            lock(&self.unused).push(session);
        }
    }

    /// Drops all sessions that no call uses.
    pub(crate) fn clear(&self) {
        let unused = std::mem::take(&mut *lock(&self.unused));
        drop(unused);
    }
}
