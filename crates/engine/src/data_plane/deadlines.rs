//! The times when waiting requests were read. The deadline of a request counts from then, however
//! many stations it passes before it is sent.
//!
//! ```text
//!   read ──► may it be sent? ──► a link is connected ──► handshake ──► sent ──► its reply
//!     └────────────────────────────────── request_ms ───────────────────────────────────┘
//! ```
//!
//! A waiting session holds the bytes of its requests. They are scanned anew when the wait ends, and
//! wait at the next station. So this module keeps the time of the wait, for the bytes that were
//! read when it began. Requests that are dispatched without a wait never reach it.
//!
//! A wait counts if the server or a link is the reason. A wait for the client, or in CLIENT PAUSE,
//! does not count. A wait for the replies in front counts if one of these was given up. Otherwise a
//! long pipeline that makes progress would run into its deadline.

use std::collections::{BTreeSet, HashMap};

use respool_protocol::commands::{self, CommandId, id};
use respool_protocol::request::{Found, RequestScanner, split_inline};

use crate::base::error::{self, Cause, Fate};
use crate::base::handle::{LinkId, SessionId};
use crate::base::time::{STAMP_TICK_US, Stamp, Time};
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::Blocked;
use crate::data_plane::ledger::Entry;
use crate::data_plane::link::Link;
use crate::data_plane::link::Tunnel;
use crate::data_plane::session::{Flags, Session};
use crate::data_plane::session_state::Holds;

/// Bytes of a session that wait to be dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldBytes {
    /// The time when they were read.
    read_at: Stamp,
    /// Their number. They are the first bytes that the session holds.
    len: usize,
    /// Whether the wait counts.
    counts: bool,
}

/// The deadlines of one session's requests.
#[derive(Debug, Default)]
pub(crate) struct SessionDeadlines {
    /// The place and deadline of a request that waits for a link.
    pub(crate) next: Option<(u32, Time)>,
    /// Links on which writes of the session were given up at their deadlines.
    pub(crate) given_up_on: Vec<LinkId>,
}

/// The sessions with requests that wait.
#[derive(Debug, Default)]
pub(crate) struct WaitingSince {
    /// Bytes that wait, by session. A map keeps its memory: with pipelines, sessions come and go in
    /// each turn.
    held: HashMap<SessionId, HeldBytes>,
    /// Sessions that wait with a step of a reply, see [`crate::data_plane::composite`].
    steps: BTreeSet<SessionId>,
}

impl WaitingSince {
    /// Notes that a session waits with so many bytes. Bytes that wait already keep their time.
    fn note(&mut self, session: SessionId, new: HeldBytes) {
        let bytes = self.held.entry(session).or_insert(new);
        bytes.counts |= new.counts;
    }

    /// Forgets a session that waits for its client, or for the end of a pause.
    pub(crate) fn forget(&mut self, session: SessionId) {
        self.held.remove(&session);
    }

    /// Counts a session's wait: a request in front was given up.
    pub(crate) fn count(&mut self, session: SessionId) {
        if let Some(bytes) = self.held.get_mut(&session) {
            bytes.counts = true;
        }
    }

    /// Notes that a session waits with a step.
    pub(crate) fn wait_with_step(&mut self, session: SessionId) {
        self.steps.insert(session);
    }

    /// Notes that a session takes its steps. Returns whether one of them has waited.
    pub(crate) fn take_step(&mut self, session: SessionId) -> bool {
        self.steps.remove(&session)
    }
}

/// The next request of bytes that have waited until their deadline.
pub(crate) enum ExpiredRequest {
    /// No request: this many bytes are skipped.
    Nothing { len: usize },
    /// Its session takes it as if it had not waited: respool answers it, or EXEC reports the
    /// deadline for it.
    Taken { len: usize },
    /// The request fails: its client gets an error.
    Fails { len: usize, id: Option<CommandId> },
}

impl DataPlane {
    /// Begins to answer requests that have waited until their deadline: the session's own scanner
    /// may be in the middle of the first one.
    pub(crate) fn begin_expiry(&mut self, id: SessionId) {
        let partial = self
            .sessions
            .get_mut(id)
            .and_then(|session| session.partial.take());
        if let Some(partial) = partial {
            self.held_bytes -= partial.held_bytes();
        }
    }

    /// Finds the next request of a session in bytes that have waited until their deadline. `None`:
    /// the usual path takes the rest.
    pub(crate) fn next_expired(
        &mut self,
        session_id: SessionId,
        scanner: &mut RequestScanner,
        rest: &[u8],
    ) -> Option<ExpiredRequest> {
        let is_untrusted = |session: &Session| session.state.any(Flags::UNAUTHENTICATED);
        let trusted = !self.sessions.get(session_id).is_some_and(is_untrusted);
        let (len, id) = match scanner.scan(rest, trusted) {
            Ok(Found::Request { len }) => {
                let spans = scanner.spans();
                (len, commands::resolve(spans.len(), |at| spans[at].of(rest)))
            }
            Ok(Found::Inline { len }) => match split_inline(rest.get(..len).unwrap_or(rest)) {
                Ok(words) if words.is_empty() => return Some(ExpiredRequest::Nothing { len }),
                Ok(words) => (len, commands::resolve(words.len(), |at| &words[at])),
                // The line breaks the protocol, and the usual path answers it.
                Err(_) => return None,
            },
            Ok(Found::Nothing { len }) => return Some(ExpiredRequest::Nothing { len }),
            _ => return None,
        };
        let session = self.sessions.get_mut(session_id)?;
        let state = session.state;
        if state.is_closing() || state.is_mid_request() || state.is_held() {
            return None;
        }
        // Queued requests go out with EXEC, and EXEC reports the deadline.
        let is_queued = session.state.any(Flags::IN_MULTI) && id != Some(id::EXEC);
        if is_queued || id.is_some_and(needs_no_server) {
            return Some(ExpiredRequest::Taken { len });
        }
        session.last_command = id;
        Some(ExpiredRequest::Fails { len, id })
    }

    /// Answers a request of a session that is past its deadline and was not sent. An EXEC is not
    /// answered: it ends its transaction, and gets the reply that is returned.
    pub(crate) fn expire_request(
        &mut self,
        session_id: SessionId,
        id: Option<CommandId>,
        read_at: Stamp,
    ) -> Option<Vec<u8>> {
        let session = self.sessions.get_mut(session_id)?;
        match id {
            Some(id::HELLO) => {
                self.close_at_hello(session_id);
            }
            Some(id::EXEC) if session.state.any(Flags::IN_MULTI) => {
                let link = session.link;
                return Some(self.expired_exec_reply(link));
            }
            _ => {
                let entry = Entry::of(session_id, session.take_seq(), read_at)
                    .of_command(id)
                    .silenced(session.state.is_silent());
                let link = session.link;
                self.give_up(link, entry, Fate::NotSent);
                if id.is_some_and(is_relied_on) {
                    self.close_when_answered(session_id);
                }
            }
        }
        None
    }

    /// The error for an EXEC that is past its deadline and was not sent.
    fn expired_exec_reply(&mut self, link: LinkId) -> Vec<u8> {
        self.counters.requests_timed_out += 1;
        let cause = Cause::Deadline {
            server: self.label(link),
            limit_ms: self.settings.timeouts.request_ms,
        };
        let mut reply = Vec::new();
        error::append_reply(&mut reply, Fate::NotSent, cause);
        reply
    }

    /// The time and number of the bytes of a session that have waited, if the wait counts.
    pub(crate) fn take_held_bytes(&mut self, id: SessionId) -> Option<(Stamp, usize)> {
        let bytes = self.deadlines.held.remove(&id)?;
        bytes.counts.then_some((bytes.read_at, bytes.len))
    }
}

/// Whether later requests rely on this command. Without it, they would be executed with another
/// database, user or state.
fn is_relied_on(id: CommandId) -> bool {
    matches!(
        id,
        id::SELECT | id::AUTH | id::WATCH | id::READONLY | id::READWRITE | id::CLIENT_TRACKING
    )
}

/// Whether respool answers the command without a server. After an error to MULTI, the requests of
/// the transaction would run one by one.
fn needs_no_server(id: CommandId) -> bool {
    matches!(
        id,
        id::MULTI | id::DISCARD | id::CLIENT_REPLY | id::RESET | id::QUIT
    )
}

impl DataPlane {
    /// Whether a request that was read at `read_at` is past its deadline.
    pub(crate) fn is_expired(&self, read_at: Stamp) -> bool {
        let limit_ms = self.settings.timeouts.request_ms;
        limit_ms > 0 && self.now_stamp.ms_since(read_at) >= limit_ms
    }

    /// Whether the request on a link that serves one request is past its deadline. The bytes of
    /// such a link are not kept apart by request, so only the loss of the whole link ends it.
    pub(crate) fn is_link_expired(&self, link: &Link) -> bool {
        let front = link.ledger.front().filter(|_| link.serves_one_request());
        let read_at = match link.tunnel {
            Some(Tunnel::Requested { read_at, .. }) => Some(read_at),
            _ => front.map(|entry| entry.read_at),
        };
        read_at.is_some_and(|read_at| self.is_expired(read_at))
    }

    /// The time when the request that is being dispatched was read.
    pub(crate) fn request_read_at(&self) -> Time {
        let waited = u64::from(self.now_stamp.ticks_since(self.read_at));
        Time(self.now.0.saturating_sub(waited * STAMP_TICK_US))
    }

    /// A tick: continues each session if its next request is past its deadline. The request gets an
    /// error.
    pub(crate) fn tick_held_bytes(&mut self) {
        let mut over = Vec::new();
        let sessions = &self.sessions;
        self.deadlines
            .held
            .retain(|id, _| sessions.get(*id).is_some());
        self.deadlines
            .steps
            .retain(|id| sessions.get(*id).is_some());
        for (id, bytes) in &self.deadlines.held {
            if bytes.counts && self.is_expired(bytes.read_at) && self.deadline_of(*id).is_none() {
                over.push(*id);
            }
        }
        for id in &self.deadlines.steps {
            let rare = self
                .sessions
                .get(*id)
                .and_then(|session| session.rare.as_deref());
            if rare.is_some_and(|rare| self.is_expired(rare.composite.read_at)) {
                over.push(*id);
            }
        }
        over.sort_unstable();
        for id in over {
            self.release(id, Holds::LINK | Holds::ROOM);
        }
    }

    pub(crate) fn wake_waiters(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        for waiter in std::mem::take(&mut link.waiters) {
            self.release(waiter, Holds::LINK);
        }
    }

    /// Sets the deadline of a session's next request, which waits for links that other sessions
    /// hold. A request that waits already keeps its deadline.
    pub(crate) fn begin_to_wait(&mut self, id: SessionId) {
        self.begin_to_wait_until(id, None);
    }

    pub(crate) fn begin_to_wait_until(&mut self, id: SessionId, own: Option<Time>) {
        let request_ms = self.settings.timeouts.request_ms;
        let deadline = (request_ms > 0).then(|| self.request_read_at().plus_ms(request_ms));
        let at = [own, deadline].into_iter().flatten().min();
        if at.is_some() && self.deadline_of(id).is_none() {
            self.set_deadline(id, at);
        }
    }

    /// Whether a session's next request has waited until its deadline.
    pub(crate) fn is_past_deadline(&self, id: SessionId) -> bool {
        self.deadline_of(id).is_some_and(|at| self.now >= at)
    }

    /// The deadline of a session's next request, if it waits.
    pub(crate) fn deadline_of(&self, id: SessionId) -> Option<Time> {
        self.sessions.get(id)?.deadline()
    }

    pub(crate) fn set_deadline(&mut self, id: SessionId, at: Option<Time>) {
        if let Some(session) = self.sessions.get_mut(id)
            && (at.is_some() || session.rare.is_some())
        {
            let seq = session.next_seq;
            session.rare().deadlines.next = at.map(|at| (seq, at));
        }
    }

    /// Makes a session wait until a link that owes as many replies as it may has room, at most
    /// until its deadline.
    pub(crate) fn wait_at_full(&mut self, session: SessionId, link: LinkId) -> Blocked {
        if self.is_past_deadline(session) {
            self.set_deadline(session, None);
            let mut reply = Vec::new();
            let cause = Cause::Deadline {
                server: self.label(link),
                limit_ms: self.settings.timeouts.request_ms,
            };
            error::append_reply(&mut reply, Fate::NotSent, cause);
            return Blocked::Refused(reply);
        }
        self.begin_to_wait(session);
        self.wait_at(session, link);
        Blocked::Wait
    }
}

impl DataPlane {
    /// Notes that a session holds bytes that cannot be dispatched now. The first `len` of these
    /// were read at `read_at`.
    pub(crate) fn note_held_bytes(&mut self, id: SessionId, read_at: Stamp, len: usize) {
        let Some(state) = self.sessions.get(id).map(|session| session.state) else {
            return;
        };
        let waits_for_links = state.holds().any(Holds::LINK | Holds::ROOM);
        let waits_for_replies = state.holds().any(Holds::CATCH_UP | Holds::DEPTH);
        let counts = match () {
            () if state.holds().any(Holds::BY_CLIENT) || state.is_mid_request() => return,
            () if waits_for_replies && self.may_wait_long(id) => return,
            () if waits_for_links => true,
            () if waits_for_replies => false,
            () => return,
        };
        self.deadlines.note(
            id,
            HeldBytes {
                read_at,
                len,
                counts,
            },
        );
    }

    /// Notes that a session is to read requests again. The first of them was read at `read_at`.
    /// They are the first `len` bytes that it holds. Bytes behind them that have waited get the
    /// same time, which is earlier than theirs.
    pub(crate) fn note_read_again(&mut self, id: SessionId, read_at: Stamp, len: usize) {
        let waits_for_client = |session: &Session| session.state.holds().any(Holds::BY_CLIENT);
        if self.sessions.get(id).is_some_and(waits_for_client) {
            return;
        }
        let behind = self.deadlines.held.get(&id).filter(|held| held.counts);
        let bytes = HeldBytes {
            read_at,
            len: len + behind.map_or(0, |held| held.len),
            counts: true,
        };
        self.deadlines.held.insert(id, bytes);
    }

    /// Whether an unanswered request of a session may wait for longer than its deadline.
    fn may_wait_long(&self, id: SessionId) -> bool {
        self.waits_at_server(id)
            || self.polling.holds(id)
            || self.sessions.get(id).is_some_and(Session::defers_wait)
    }
}

#[cfg(test)]
mod tests {
    use crate::base::time::Time;
    use crate::data_plane::session_state::Holds;
    use crate::data_plane::test_plane::{plane_with_link, session_of};

    /// Bytes that wait keep a deadline when their session gets earlier requests back in front of
    /// them: it is that of the first request.
    #[test]
    fn held_bytes_keep_a_deadline_behind_requests_read_again() {
        let (mut plane, _) = plane_with_link();
        let id = session_of(&mut plane);
        let early = plane.now_stamp;
        plane.now = Time(1_000_000);
        plane.hold(id, Holds::LINK);
        plane.note_held_bytes(id, plane.now.stamp(), 5);
        plane.note_read_again(id, early, 7);
        assert_eq!(plane.take_held_bytes(id), Some((early, 12)));
    }
}
