//! When the requests that wait were read. The deadline of a request counts from then, however many
//! stations it passes before it is sent.
//!
//! ```text
//!   read ──► may it be asked? ──► a link is connected ──► the server greets ──► sent ──► its reply
//!     └────────────────────────── request_ms ──────────────────────────────────────────────┘
//! ```
//!
//! A session that waits keeps the bytes that it has sent. These are scanned anew when the wait ends,
//! and wait at the next station. So the time of the wait is kept here, for the bytes that were read
//! when it began. Requests that are placed without a wait ask nothing of this.
//!
//! A wait counts if the server or a link is the reason. A wait for the client, or in CLIENT PAUSE,
//! does not count. A wait for the replies in front counts if one of these was given up: otherwise a
//! long pipeline that makes progress would run into its deadline.

use std::collections::{BTreeMap, BTreeSet};

use respool_protocol::commands::{self, CommandId, id};
use respool_protocol::request::{Found, Scanner, split_inline};

use crate::engine::Engine;
use crate::entry::Entry;
use crate::failure::{self, Cause, Fate};
use crate::link::Link;
use crate::monitor::Tunnel;
use crate::requests::Placed;
use crate::session::{Flags, Session};
use crate::slots::Key;
use crate::time::Time;

/// Bytes of a session that wait to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Arrival {
    /// When they were read, [`Time::stamp_ms`].
    at_ms: u32,
    /// How many of the first bytes that the session holds.
    len: usize,
    /// Whether the wait counts.
    counts: bool,
}

/// The sessions that wait with requests.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    held: BTreeMap<Key, Arrival>,
    /// Sessions that wait with a step of a reply, see [`crate::steps`].
    steps: BTreeSet<Key>,
}

impl Arrivals {
    /// A session waits with so many bytes. Bytes that wait already keep their time.
    fn note(&mut self, session: Key, new: Arrival) {
        let arrival = self.held.entry(session).or_insert(new);
        arrival.counts |= new.counts;
    }

    /// The session waits for its client, or for the end of a pause.
    pub(crate) fn forget(&mut self, session: Key) {
        self.held.remove(&session);
    }

    /// A request in front was given up, so the wait for its reply counts.
    pub(crate) fn count(&mut self, session: Key) {
        if let Some(arrival) = self.held.get_mut(&session) {
            arrival.counts = true;
        }
    }

    /// A session waits with a step.
    pub(crate) fn wait_with_step(&mut self, session: Key) {
        self.steps.insert(session);
    }

    /// A session takes its steps. Returns whether one of them has waited.
    pub(crate) fn take_step(&mut self, session: Key) -> bool {
        self.steps.remove(&session)
    }
}

impl Engine {
    /// Whether a request that was read at `at_ms` is past its deadline.
    pub(crate) fn is_expired(&self, at_ms: u32) -> bool {
        let limit_ms = self.settings.timeouts.request_ms;
        limit_ms > 0 && self.now_ms.wrapping_sub(at_ms) >= limit_ms
    }

    /// Whether the request on a link that serves one request is past its deadline. Its bytes cannot
    /// be told from others, so it is not sent only if the link is not connected.
    pub(crate) fn is_link_expired(&self, link: &Link) -> bool {
        let front = link.ledger.front().filter(|_| link.is_one_requests());
        let at_ms = match link.tunnel {
            Some(Tunnel::Asked { at_ms, .. }) => Some(at_ms),
            _ => front.map(|entry| entry.at_ms),
        };
        at_ms.is_some_and(|at_ms| self.is_expired(at_ms))
    }

    /// When the request that is being placed was read.
    pub(crate) fn asked_at(&self) -> Time {
        let waited_ms = u64::from(self.now_ms.wrapping_sub(self.asked_ms));
        Time(self.now.0.saturating_sub(waited_ms * 1_000))
    }

    /// A session keeps bytes that it cannot place now. The first `len` of these were read at
    /// `at_ms`.
    pub(crate) fn note_arrival(&mut self, key: Key, at_ms: u32, len: usize) {
        let Some(flags) = self.sessions.get(key).map(|session| session.flags) else {
            return;
        };
        let waits_for_links = flags.any(Flags::HOLD_LINK | Flags::HOLD_ROOM);
        let waits_for_replies = flags.any(Flags::HOLD_DRAIN | Flags::HOLD_DEPTH);
        let counts = match () {
            () if flags.any(Flags::HOLD_BY_CLIENT | Flags::MID_REQUEST) => return,
            () if waits_for_replies && self.may_wait_long(key) => return,
            () if waits_for_links => true,
            () if waits_for_replies => false,
            () => return,
        };
        self.arrivals.note(key, Arrival { at_ms, len, counts });
    }

    /// Whether a request of a session that is not answered may wait for longer than its deadline.
    fn may_wait_long(&self, key: Key) -> bool {
        let delayed = |session: &Session| {
            let rare = session.rare.as_deref();
            rare.is_some_and(|rare| rare.delayed.waits())
        };
        self.waits_at_server(key)
            || self.polling.holds(key)
            || self.sessions.get(key).is_some_and(delayed)
    }

    /// Takes requests from what a session holds, now that it need not wait. Returns how many bytes
    /// are done with.
    pub(crate) fn take_waiting(&mut self, key: Key, held: &[u8]) -> usize {
        let holds = |session: &Session| session.flags.any(Flags::HOLD);
        if self.sessions.get(key).is_none_or(holds) {
            return 0;
        }
        let arrival = self.arrivals.held.remove(&key);
        let Some(arrival) = arrival.filter(|arrival| arrival.counts) else {
            return self.take_requests(key, held);
        };
        let old = held.get(..arrival.len).unwrap_or(held);
        // At a bound the session has its own way to give up, which names the bound.
        let is_over = self.is_expired(arrival.at_ms) && self.deadline_of(key).is_none();
        let used = match is_over {
            true => self.expire(key, old, arrival.at_ms),
            false => self.take_asked_at(key, old, arrival.at_ms),
        };
        let is_held = self.sessions.get(key).is_some_and(holds);
        if is_held && used < old.len() {
            self.note_arrival(key, arrival.at_ms, old.len() - used);
        }
        if is_held || used == held.len() {
            return used;
        }
        let rest = held.get(used..).unwrap_or_default();
        used + self.take_requests(key, rest)
    }

    /// Takes requests that were read at `at_ms`.
    fn take_asked_at(&mut self, key: Key, bytes: &[u8], at_ms: u32) -> usize {
        self.asked_ms = at_ms;
        let used = self.take_requests(key, bytes);
        self.asked_ms = self.now_ms;
        used
    }

    /// Answers requests that have waited until their deadline; returns how many bytes they are.
    fn expire(&mut self, key: Key, old: &[u8], at_ms: u32) -> usize {
        // The session's own scanner may stand in the middle of the first request.
        let partial = self
            .sessions
            .get_mut(key)
            .and_then(|its| its.partial.take());
        if let Some(partial) = partial {
            self.held_bytes -= partial.held_bytes();
        }
        let mut scanner = Scanner::default();
        let mut used = 0;
        while let Some(rest) = old.get(used..).filter(|rest| !rest.is_empty()) {
            let is_untrusted = |its: &Session| its.flags.any(Flags::UNAUTHENTICATED);
            let trusted = !self.sessions.get(key).is_some_and(is_untrusted);
            let (len, id) = match scanner.scan(rest, trusted) {
                Ok(Found::Request { len }) => {
                    let spans = scanner.spans();
                    (len, commands::resolve(spans.len(), |at| spans[at].of(rest)))
                }
                Ok(Found::Inline { len }) => match split_inline(rest.get(..len).unwrap_or(rest)) {
                    Ok(words) if words.is_empty() => {
                        used += len;
                        continue;
                    }
                    Ok(words) => (len, commands::resolve(words.len(), |at| &words[at])),
                    // It breaks the protocol, and is answered as ever.
                    Err(_) => break,
                },
                Ok(Found::Nothing { len }) => {
                    used += len;
                    continue;
                }
                _ => break,
            };
            let Some(session) = self.sessions.get_mut(key) else {
                break;
            };
            let other = Flags::HOLD | Flags::CLOSING | Flags::MID_REQUEST;
            if session.flags.any(other) {
                break;
            }
            // Queued requests go out with EXEC, and EXEC reports the deadline.
            let is_queued = session.flags.any(Flags::IN_MULTI) && id != Some(id::EXEC);
            if is_queued || id.is_some_and(needs_no_server) {
                let bytes = rest.get(..len).unwrap_or(rest);
                let taken = self.take_asked_at(key, bytes, at_ms);
                used += taken;
                if taken < len {
                    break;
                }
                continue;
            }
            session.asked = id;
            if let Some(rare) = &mut session.rare {
                rare.login_asked_at = None;
            }
            self.asked_ms = at_ms;
            let placed = self.expire_one(key, id, at_ms);
            self.asked_ms = self.now_ms;
            if placed == Placed::Wait {
                break;
            }
            self.counters.requests += 1;
            self.count_down_silence(key);
            used += len;
        }
        used
    }

    /// Answers a request that is past its deadline and was not sent.
    pub(crate) fn expire_one(&mut self, key: Key, id: Option<CommandId>, at_ms: u32) -> Placed {
        let Some(session) = self.sessions.get_mut(key) else {
            return Placed::Done;
        };
        match id {
            Some(id::HELLO) => self.close_greeting(key),
            Some(id::EXEC) if session.flags.any(Flags::IN_MULTI) => {
                let link = session.link;
                self.counters.timeouts += 1;
                let cause = Cause::Deadline {
                    server: self.label(link),
                    limit_ms: self.settings.timeouts.request_ms,
                };
                let mut reply = Vec::new();
                failure::append_reply(&mut reply, Fate::NotSent, cause);
                self.leave_transaction(key, &reply)
            }
            _ => {
                let entry = Entry {
                    silent: session.flags.any(Flags::SILENT | Flags::SILENT_ONCE),
                    ..Entry::of(key, session.take_seq(), at_ms)
                };
                let link = session.link;
                self.give_up(link, entry, Fate::NotSent);
                if id.is_some_and(is_about_session) {
                    self.close_when_answered(key);
                }
                Placed::Done
            }
        }
    }

    /// A tick: a session with a next request past its deadline goes on, and gets an error.
    pub(crate) fn tick_arrivals(&mut self) {
        let mut over = Vec::new();
        let sessions = &self.sessions;
        self.arrivals
            .held
            .retain(|key, _| sessions.get(*key).is_some());
        self.arrivals
            .steps
            .retain(|key| sessions.get(*key).is_some());
        for (key, arrival) in &self.arrivals.held {
            if arrival.counts && self.is_expired(arrival.at_ms) && self.deadline_of(*key).is_none()
            {
                over.push(*key);
            }
        }
        for key in &self.arrivals.steps {
            let rare = self.sessions.get(*key).and_then(|its| its.rare.as_deref());
            if rare.is_some_and(|rare| self.is_expired(rare.steps_asked_ms)) {
                over.push(*key);
            }
        }
        for key in over {
            self.release(key, Flags::HOLD_LINK | Flags::HOLD_ROOM);
        }
    }
}

/// Whether requests behind this command rely on it: executed without it, they would meet another
/// database, user or state.
fn is_about_session(id: CommandId) -> bool {
    matches!(
        id,
        id::SELECT | id::AUTH | id::WATCH | id::READONLY | id::READWRITE | id::CLIENT_TRACKING
    )
}

/// Whether respool answers the command without a server. An error to MULTI would let the requests
/// behind it run one by one.
fn needs_no_server(id: CommandId) -> bool {
    matches!(
        id,
        id::MULTI | id::DISCARD | id::CLIENT_REPLY | id::RESET | id::QUIT
    )
}
