//! Blocking commands at the bound of pinned links: each is executed without waiting, ten times a second.
//!
//! ```text
//!   BLPOP q 5, no pinned link is free ──► MULTI, BLPOP q 5, EXEC on the shared link
//!        an element ──────────────────► the client's reply
//!        nil ─────────────────────────► again after POLL_AGAIN_MS, until the 5 s are over;
//!                                       then the server's nil is the client's reply
//! ```
//!
//! In a transaction a server answers a blocking command at once. So the reply is always the
//! server's, and a consumer beyond the bound gets its element, if later than a pinned link would
//! bring it. The session is closed where its link is lost, as sessions on pinned links are.
//!
//! Sessions take turns: a worker sends [`POLLS_PER_TICK`] in a tick at the most. XREAD behind the
//! last entry (`$`) is not polled, since each poll would begin at a later entry; it waits for a
//! pinned link.

use std::collections::VecDeque;

use respool_protocol::cluster::Refusal;
use respool_protocol::commands::id;

use crate::bounds::Bound;
use crate::duty::Duty;
use crate::engine::Engine;
use crate::entry::Entry;
use crate::limits::{POLL_AGAIN_MS, POLLS_PER_TICK};
use crate::link::{LinkKey, State};
use crate::queue::patience_ms;
use crate::requests::{Placed, Request};
use crate::session::Flags;
use crate::settings::WhenFull;
use crate::slots::Key;
use crate::time::Time;

const OPENING: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const CLOSING: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";
/// The beginning of the reply to EXEC of one command.
const ONE_RESULT: &[u8] = b"*1\r\n";
const UNBLOCKED: &[u8] = b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n";

/// A blocking command that is polled.
#[derive(Debug)]
struct Poll {
    session: Key,
    /// The place of its reply.
    seq: u32,
    request: Vec<u8>,
    kind: LinkKey,
    slot: Option<u16>,
    /// The end of the time that its client gives it; `None`: it waits for ever.
    until: Option<Time>,
    due: Time,
    /// The link that it is on its way on.
    link: Option<Key>,
    /// The server's last reply.
    nil: Vec<u8>,
}

/// The blocking commands that are polled, the one that was sent longest ago first. Each session has
/// one at the most.
#[derive(Debug, Default)]
pub(crate) struct Polling {
    waiting: VecDeque<Poll>,
}

impl Polling {
    /// Whether a command of this session is polled.
    pub(crate) fn holds(&self, session: Key) -> bool {
        self.waiting.iter().any(|one| one.session == session)
    }

    /// A session is gone. Returns the bytes of its command.
    pub(crate) fn forget(&mut self, session: Key) -> usize {
        self.take(session).map_or(0, |one| one.request.len())
    }

    /// Bytes of the requests.
    #[cfg(debug_assertions)]
    pub(crate) fn held_bytes(&self) -> usize {
        self.waiting.iter().map(|one| one.request.len()).sum()
    }

    fn take(&mut self, session: Key) -> Option<Poll> {
        let at = self.waiting.iter().position(|one| one.session == session)?;
        self.waiting.remove(at)
    }

    /// The session that waits longest for its turn.
    fn next_due(&mut self, now: Time) -> Option<Poll> {
        let is_due = |one: &Poll| one.link.is_none() && one.due <= now;
        let at = self.waiting.iter().position(is_due)?;
        self.waiting.remove(at)
    }

    /// A command is sent again, after the commands of all other sessions.
    fn postpone(&mut self, mut one: Poll, now: Time) {
        one.link = None;
        one.due = now.plus_ms(POLL_AGAIN_MS);
        self.waiting.push_back(one);
    }

    /// The sessions that poll on a link.
    fn on(&self, link: Key) -> Vec<Key> {
        let its = |one: &&Poll| one.link == Some(link);
        self.waiting
            .iter()
            .filter(its)
            .map(|one| one.session)
            .collect()
    }
}

/// Replies to the requests in front of EXEC.
#[derive(Debug, Default)]
pub(crate) struct Before {
    came: u8,
    /// The error that the server queued nothing for.
    refusal: Option<Vec<u8>>,
}

impl Before {
    /// Whether a reply answers MULTI or the command, and not EXEC.
    pub(crate) fn takes(&mut self, reply: &[u8]) -> bool {
        let is_before = self.came < 2;
        if is_before {
            self.came += 1;
            if reply.starts_with(b"-") {
                self.refusal.get_or_insert_with(|| reply.to_vec());
            }
        }
        is_before
    }
}

/// Whether a command may be executed again and again until it has a result.
fn is_repeatable(request: &Request<'_>) -> bool {
    let is_last = |arg: &[u8]| arg == b"$";
    request.id != id::XREAD || !request.args().any(is_last)
}

fn is_nil(result: &[u8]) -> bool {
    matches!(result, b"*-1\r\n" | b"$-1\r\n" | b"_\r\n")
}

impl Engine {
    /// Polls for a blocking command of a session if no pinned link is free. `None`: it goes its usual
    /// way, and waits for a link.
    pub(crate) fn place_poll(&mut self, key: Key, request: &Request<'_>) -> Option<Placed> {
        let session = self.sessions.get(key)?;
        let is_free = !session.pins.is_empty() || self.may_have_own_link(key);
        let is_silent = session
            .flags
            .any(Flags::SILENT | Flags::SILENT_ONCE | Flags::ENDED);
        let refuses = self.settings.pinned_links_full == WhenFull::Refuse;
        let is_late = self.is_past_deadline(key);
        if is_free || is_silent || refuses || is_late || !is_repeatable(request) {
            return None;
        }
        if self.hold_until_caught_up(key) {
            return Some(Placed::Wait);
        }
        self.note_bound(Bound::PinnedLinks);
        if !self.know_opening(key, OPENING) {
            self.begin_to_wait(key);
            return Some(Placed::Wait);
        }
        if self.refusal_to_open(key).is_some() {
            return None;
        }
        self.pinned_waiters.leave(key);
        self.set_gives_up_at(key, None);
        let now = self.now;
        let session = self.sessions.get(key)?;
        let (kind, pool) = (self.kind_of(session), session.pool);
        let slot = self.slot_named_in(request.bytes, pool);
        let seq = self.sessions.get_mut(key)?.take_seq();
        let one = Poll {
            session: key,
            seq,
            request: request.bytes.to_vec(),
            kind,
            slot,
            until: patience_ms(request).map(|ms| now.plus_ms(ms)),
            due: now,
            link: None,
            nil: Vec::new(),
        };
        self.held_bytes += one.request.len();
        self.poll_now(one);
        self.hold_until_caught_up(key);
        Some(Placed::Done)
    }

    /// Sends a blocking command in a transaction of its own.
    fn poll_now(&mut self, mut one: Poll) {
        let pool = usize::from(self.server(one.kind.server).pool);
        if let Some((slot, cluster)) = one.slot.zip(self.pools[pool].cluster()) {
            one.kind.server = cluster.owner_of_slot(slot);
        }
        let key = one.session;
        let link = self.shared_link(one.kind);
        let state = link
            .and_then(|link| self.links.get(link))
            .map(|link| &link.state);
        match (link, state) {
            (Some(_), Some(State::Resting { .. } | State::Retrying { .. })) => {
                self.held_bytes -= one.request.len();
                return self.close(key, false);
            }
            (Some(link), Some(State::Down)) => self.connect(link),
            (Some(_), Some(_)) => {}
            _ => {
                // There will be room.
                return self.polling.postpone(one, self.now);
            }
        }
        let block = [OPENING, &one.request, CLOSING].concat();
        let entry = Entry {
            len: block.len() as u32,
            duty: true,
            ..Entry::of(key, one.seq, self.now.stamp_ms())
        };
        one.link = link;
        self.polling.waiting.push_back(one);
        if let Some(link) = link
            && let Some(state) = self.links.get_mut(link)
        {
            state.push_with(entry, &block, Duty::Poll(Before::default()));
            self.counters.link_requests += 1;
            self.counters.polls += 1;
            self.list_link(link);
        }
    }

    /// The server has executed a transaction of [`Engine::poll_now`].
    pub(crate) fn settle_poll(&mut self, entry: Entry, before: Before, reply: &[u8]) {
        let Some(mut one) = self.polling.take(entry.session) else {
            return;
        };
        let result = reply.strip_prefix(ONE_RESULT);
        let error = before.refusal.as_deref().unwrap_or(reply);
        let is_elsewhere = || {
            let said = error.strip_prefix(b"-").unwrap_or_default();
            Refusal::of(said).is_some()
        };
        match result {
            Some(result) if is_nil(result) => one.nil = result.to_vec(),
            None if is_elsewhere() => self.doubt_owners(one.kind.server),
            _ => {
                self.held_bytes -= one.request.len();
                return self.pass_on(entry, result.unwrap_or(error));
            }
        }
        self.polling.postpone(one, self.now);
    }

    /// Sends the commands that are due, and answers commands at the end of their time.
    pub(crate) fn tick_polls(&mut self) {
        // A session is gone, or was told that its server gave no answer in time.
        let (sessions, held_bytes) = (&self.sessions, &mut self.held_bytes);
        self.polling.waiting.retain(|one| {
            let waits = sessions
                .get(one.session)
                .is_some_and(|session| !session.is_caught_up());
            if !waits {
                *held_bytes -= one.request.len();
            }
            waits
        });
        for _ in 0..POLLS_PER_TICK {
            let Some(mut one) = self.polling.next_due(self.now) else {
                break;
            };
            match one.until {
                Some(until) if until <= self.now && !one.nil.is_empty() => {
                    let nil = std::mem::take(&mut one.nil);
                    self.end_poll(one, &nil);
                }
                _ => self.poll_now(one),
            }
        }
    }

    fn end_poll(&mut self, one: Poll, reply: &[u8]) {
        self.held_bytes -= one.request.len();
        let entry = Entry::of(one.session, one.seq, self.now.stamp_ms());
        self.pass_on(entry, reply);
    }

    /// CLIENT UNBLOCK of a session that polls. Returns whether the session waits now.
    pub(crate) fn unblock_poll(&mut self, session: Key, with_error: bool) -> bool {
        let waits = |one: &Poll| one.session == session && one.link.is_none();
        let Some(at) = self.polling.waiting.iter().position(waits) else {
            return false;
        };
        let Some(mut one) = self.polling.waiting.remove(at) else {
            return false;
        };
        let nil = std::mem::take(&mut one.nil);
        match with_error || nil.is_empty() {
            true => self.end_poll(one, UNBLOCKED),
            false => self.end_poll(one, &nil),
        }
        true
    }

    /// A link is lost. Its server may have executed a command that is polled there, and taken an
    /// element: the sessions are closed, as sessions on pinned links are.
    pub(crate) fn lose_polls(&mut self, link: Key) {
        for session in self.polling.on(link) {
            self.close(session, false);
        }
    }
}
