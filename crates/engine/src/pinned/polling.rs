//! Blocking commands at the bound of pinned links: each is polled, ten times a second.
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
//! bring it. If the link is lost, the session is closed, as sessions on pinned links are.
//!
//! Sessions take turns: a worker sends at most [`POLLS_PER_TICK`] polls in a tick. XREAD after the
//! last entry (`$`) is not polled, since each poll would begin at a later entry; it waits for a
//! pinned link.

use std::collections::VecDeque;

use respool_protocol::cluster::Refusal;
use respool_protocol::commands::id;
use respool_protocol::slot::hash_slot;

use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::{POLL_AGAIN_MS, POLLS_PER_TICK};
use crate::base::settings::WhenFull;
use crate::base::time::Time;
use crate::data_plane::bounds_met::Bound;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::pinned::ExecPreamble;
use crate::data_plane::completion::pinned::PinnedCompletion;
use crate::data_plane::ingress::{Dispatched, Request};
use crate::data_plane::ledger::Entry;
use crate::data_plane::link::{LinkKind, LinkState};
use crate::engine::Engine;
use crate::pinned::checkout::patience_ms;
use crate::pinned::{DataPlane, Pinned};

const OPENING: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const CLOSING: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";
/// The beginning of the reply to EXEC of one command.
const ONE_RESULT: &[u8] = b"*1\r\n";
const UNBLOCKED: &[u8] = b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n";

/// A blocking command that is polled.
#[derive(Debug)]
struct PolledCommand {
    session: SessionId,
    /// The place of its reply in the session's order.
    seq: u32,
    request: Vec<u8>,
    kind: LinkKind,
    slot: Option<u16>,
    /// The end of the client's timeout. `None`: it waits for ever.
    until: Option<Time>,
    due: Time,
    /// The link on which a poll is in flight.
    link: Option<LinkId>,
    /// The server's last nil.
    nil: Vec<u8>,
}

/// The blocking commands that are polled, the one that was sent longest ago first. Each session has
/// at most one.
#[derive(Debug, Default)]
pub(crate) struct PolledCommands {
    waiting: VecDeque<PolledCommand>,
}

impl PolledCommands {
    /// Whether a command of this session is polled.
    pub(crate) fn holds(&self, session: SessionId) -> bool {
        self.waiting.iter().any(|one| one.session == session)
    }

    /// Drops the command of a session that has gone. Returns its bytes.
    pub(crate) fn forget(&mut self, session: SessionId) -> usize {
        self.take(session).map_or(0, |one| one.request.len())
    }

    /// Bytes of the requests.
    #[cfg(debug_assertions)]
    pub(crate) fn held_bytes(&self) -> usize {
        self.waiting.iter().map(|one| one.request.len()).sum()
    }

    fn take(&mut self, session: SessionId) -> Option<PolledCommand> {
        let at = self.waiting.iter().position(|one| one.session == session)?;
        self.waiting.remove(at)
    }

    /// Takes the due command that has waited longest.
    fn next_due(&mut self, now: Time) -> Option<PolledCommand> {
        let is_due = |one: &PolledCommand| one.link.is_none() && one.due <= now;
        let at = self.waiting.iter().position(is_due)?;
        self.waiting.remove(at)
    }

    /// Puts a command behind those of all other sessions, to be sent again.
    fn postpone(&mut self, mut one: PolledCommand, now: Time) {
        one.link = None;
        one.due = now.plus_ms(POLL_AGAIN_MS);
        self.waiting.push_back(one);
    }

    /// The sessions that poll on a link.
    fn on(&self, link: LinkId) -> Vec<SessionId> {
        let is_on = |one: &&PolledCommand| one.link == Some(link);
        self.waiting
            .iter()
            .filter(is_on)
            .map(|one| one.session)
            .collect()
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
    /// Polls for a blocking command if no pinned link is free. `None`: the command is not polled,
    /// and waits for a link.
    pub(crate) fn dispatch_poll(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
    ) -> Option<Dispatched> {
        let session = self.plane.sessions.get(id)?;
        let is_free = !session.pins.is_empty() || self.pinned.may_have_own_link(&self.plane, id);
        let is_silent = session.flags.is_silent() || session.flags.input_has_ended();
        let refuses = self.plane.settings.pinned_links_full == WhenFull::Refuse;
        let is_late = self.plane.is_past_deadline(id);
        if is_free || is_silent || refuses || is_late || !is_repeatable(request) {
            return None;
        }
        if self.plane.hold_until_caught_up(id) {
            return Some(Dispatched::Wait);
        }
        self.plane.note_bound(Bound::PinnedLinks);
        if !self.know_opening(id, OPENING) {
            self.plane.begin_to_wait(id);
            return Some(Dispatched::Wait);
        }
        if self.local.refusal_to_open(&self.plane, id).is_some() {
            return None;
        }
        self.plane.pinned_waiters.leave(id);
        self.plane.set_gives_up_at(id, None);
        let now = self.plane.now;
        let session = self.plane.sessions.get(id)?;
        let kind = self.plane.kind_of(session);
        let slot = slot_of_first_key(request);
        let seq = self.plane.sessions.get_mut(id)?.take_seq();
        let one = PolledCommand {
            session: id,
            seq,
            request: request.bytes.to_vec(),
            kind,
            slot,
            until: patience_ms(request).map(|ms| now.plus_ms(ms)),
            due: now,
            link: None,
            nil: Vec::new(),
        };
        self.plane.held_bytes += one.request.len();
        self.pinned.poll_now(&mut self.plane, one);
        self.plane.hold_until_caught_up(id);
        Some(Dispatched::Done)
    }

    /// Handles the reply to a poll of [`Pinned::poll_now`].
    pub(crate) fn settle_poll(&mut self, entry: Entry, before: ExecPreamble, reply: &[u8]) {
        let Some(mut one) = self.plane.polling.take(entry.session) else {
            return;
        };
        let result = reply.strip_prefix(ONE_RESULT);
        let error = before.refusal.as_deref().unwrap_or(reply);
        let is_redirected = || {
            let said = error.strip_prefix(b"-").unwrap_or_default();
            Refusal::of(said).is_some()
        };
        match result {
            Some(result) if is_nil(result) => one.nil = result.to_vec(),
            None if is_redirected() => self
                .discovery
                .request_refresh(&mut self.plane, one.kind.server),
            _ => {
                self.plane.held_bytes -= one.request.len();
                return self.pass_on(entry, result.unwrap_or(error));
            }
        }
        self.plane.polling.postpone(one, self.plane.now);
    }

    /// Sends the commands that are due, and answers commands at the end of their time.
    pub(crate) fn tick_polls(&mut self) {
        // The session is gone, or has got an error because its server did not answer in time.
        let (sessions, held_bytes) = (&self.plane.sessions, &mut self.plane.held_bytes);
        self.plane.polling.waiting.retain(|one| {
            let waits = sessions
                .get(one.session)
                .is_some_and(|session| !session.is_caught_up());
            if !waits {
                *held_bytes -= one.request.len();
            }
            waits
        });
        for _ in 0..POLLS_PER_TICK {
            let Some(mut one) = self.plane.polling.next_due(self.plane.now) else {
                break;
            };
            match one.until {
                Some(until) if until <= self.plane.now && !one.nil.is_empty() => {
                    let nil = std::mem::take(&mut one.nil);
                    self.end_poll(one, &nil);
                }
                _ => self.pinned.poll_now(&mut self.plane, one),
            }
        }
    }

    fn end_poll(&mut self, one: PolledCommand, reply: &[u8]) {
        self.plane.held_bytes -= one.request.len();
        let entry = Entry::of(one.session, one.seq, self.plane.now.stamp_ms());
        self.pass_on(entry, reply);
    }

    /// CLIENT UNBLOCK of a session that is polled for. Returns whether it waited.
    pub(crate) fn unblock_poll(&mut self, session: SessionId, with_error: bool) -> bool {
        let waits = |one: &PolledCommand| one.session == session && one.link.is_none();
        let Some(at) = self.plane.polling.waiting.iter().position(waits) else {
            return false;
        };
        let Some(mut one) = self.plane.polling.waiting.remove(at) else {
            return false;
        };
        let nil = std::mem::take(&mut one.nil);
        match with_error || nil.is_empty() {
            true => self.end_poll(one, UNBLOCKED),
            false => self.end_poll(one, &nil),
        }
        true
    }
}

impl Pinned {
    /// Sends a poll: a blocking command in a transaction of its own.
    fn poll_now(&mut self, plane: &mut DataPlane, mut one: PolledCommand) {
        let pool = usize::from(plane.server(one.kind.server).pool);
        if let Some((slot, cluster)) = one.slot.zip(plane.pools[pool].cluster()) {
            one.kind.server = cluster.owner_of_slot(slot);
        }
        let id = one.session;
        let link = plane.shared_link(one.kind);
        let state = link
            .and_then(|link| plane.links.get(link))
            .map(|link| &link.state);
        match (link, state) {
            (Some(_), Some(LinkState::Backoff { .. } | LinkState::Retrying { .. })) => {
                plane.held_bytes -= one.request.len();
                return plane.close(id, false);
            }
            (Some(link), Some(LinkState::Down)) => plane.connect(link),
            (Some(_), Some(_)) => {}
            _ => {
                // A link will be free later.
                return plane.polling.postpone(one, plane.now);
            }
        }
        let block = [OPENING, &one.request, CLOSING].concat();
        let entry = Entry {
            len: block.len() as u32,
            duty: true,
            ..Entry::of(id, one.seq, plane.now.stamp_ms())
        };
        one.link = link;
        plane.polling.waiting.push_back(one);
        if let Some(link) = link
            && let Some(state) = plane.links.get_mut(link)
        {
            state.push_with(
                entry,
                &block,
                Completion::Pinned(PinnedCompletion::Poll(ExecPreamble::default())),
            );
            plane.counters.link_requests += 1;
            plane.counters.polls += 1;
            plane.list_link(link);
        }
    }

    /// A link is lost. Its server may have executed a poll, and removed an element: the sessions
    /// are closed, as sessions on pinned links are.
    pub(crate) fn lose_polls(&mut self, plane: &mut DataPlane, link: LinkId) {
        for session in plane.polling.on(link) {
            plane.close(session, false);
        }
    }
}

/// The slot of the first key that a request names.
fn slot_of_first_key(request: &Request<'_>) -> Option<u16> {
    let mut slot = None;
    let arg = |index: usize| request.arg(index);
    // If the places of the keys cannot be found, the server refuses the request.
    let _ = request.command.keys(request.spans.len(), arg, |at, _| {
        slot.get_or_insert_with(|| hash_slot(request.arg(at)));
    });
    slot
}
