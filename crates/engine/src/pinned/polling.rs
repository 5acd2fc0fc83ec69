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
//! bring it. If the link is lost after a poll has left, the session is closed, as sessions on
//! pinned links are.
//!
//! Sessions take turns: a worker sends at most [`POLLS_PER_TICK`] polls in a tick. XREAD after the
//! last entry (`$`) is not polled, since each poll would begin at a later entry; it waits for a
//! pinned link.

use respool_protocol::cluster::Refusal;
use respool_protocol::commands::id;
use respool_protocol::slot::hash_slot;

use crate::base::error::{Cause, Fate};
use crate::base::handle::SessionId;
use crate::base::limits::POLLS_PER_TICK;
use crate::base::settings::WhenFull;
use crate::data_plane::DataPlane;
use crate::data_plane::bounds_met::Bound;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::pinned::{ExecPreamble, PinnedCompletion};
use crate::data_plane::ingress::{Blocked, Dispatched, Request};
use crate::data_plane::ledger::Entry;
use crate::data_plane::link::LinkState;
use crate::data_plane::link_loss::{LostLink, of_waiter};
use crate::data_plane::polled::PolledCommand;
use crate::data_plane::session::Pins;
use crate::pinned::Pinned;
use crate::pinned::checkout::block_timeout_ms;
use crate::routing::pool::ServerId;

pub(crate) const OPENING: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const CLOSING: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";
/// The beginning of the reply to EXEC of one command.
const ONE_RESULT: &[u8] = b"*1\r\n";
const UNBLOCKED: &[u8] = b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n";

/// The use of the reply to a poll.
#[derive(Debug, PartialEq, Eq)]
enum PollOutcome<'a> {
    /// There is no result yet.
    Nil(&'a [u8]),
    /// Another server owns the keys, or will soon.
    Redirected,
    /// The session gets this reply.
    Reply(&'a [u8]),
}

impl<'a> PollOutcome<'a> {
    fn of(before: &'a ExecPreamble, reply: &'a [u8]) -> PollOutcome<'a> {
        let error = before.refusal.as_deref().unwrap_or(reply);
        match reply.strip_prefix(ONE_RESULT) {
            Some(result) if is_nil(result) => PollOutcome::Nil(result),
            Some(result) => PollOutcome::Reply(result),
            None if error.strip_prefix(b"-").and_then(Refusal::of).is_some() => {
                PollOutcome::Redirected
            }
            None => PollOutcome::Reply(error),
        }
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

impl Pinned {
    /// Sends a request that may wait at the server on a pinned link, or polls for it.
    /// `admit_opening`: whether its user may open transactions with the given MULTI. `Err`: the
    /// session waits for the answer, or the server has refused.
    pub(crate) fn dispatch_blocking(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        completion: (bool, Option<Completion>),
        admit_opening: impl FnOnce(&mut DataPlane, &[u8]) -> Result<(), Blocked>,
    ) -> Dispatched {
        if self.may_poll(plane, id, request) {
            if plane.hold_until_caught_up(id) {
                return Dispatched::Wait;
            }
            plane.note_bound(Bound::PinnedLinks);
            match admit_opening(plane, OPENING) {
                Err(Blocked::Wait) => {
                    plane.begin_to_wait(id);
                    return Dispatched::Wait;
                }
                Err(Blocked::Refused(_)) => {}
                Ok(()) => {
                    self.begin_to_poll(plane, id, request);
                    return Dispatched::Done;
                }
            }
        }
        let was_waiting = plane.deadline_of(id).is_some();
        let dispatched = plane.dispatch_alone(id, request.bytes, completion, Pins::ONCE, true);
        self.note_wait(plane, id, request, (was_waiting, dispatched));
        dispatched
    }

    /// Whether a blocking command is polled: no pinned link is free. Otherwise it gets a link, or
    /// waits for one.
    fn may_poll(&self, plane: &DataPlane, id: SessionId, request: &Request<'_>) -> bool {
        let Some(session) = plane.sessions.get(id) else {
            return false;
        };
        let is_free = !session.pins.is_empty() || plane.may_have_own_link(id);
        let is_silent = session.state.is_silent() || session.state.input_has_ended();
        let refuses = plane.settings.pinned_links_full == WhenFull::Refuse;
        let is_late = plane.is_past_deadline(id);
        !is_free && !is_silent && !refuses && !is_late && is_repeatable(request)
    }

    /// Begins to poll for a blocking command of a session that is caught up. The session's later
    /// requests wait for the reply.
    fn begin_to_poll(&mut self, plane: &mut DataPlane, id: SessionId, request: &Request<'_>) {
        plane.link_waiters.pinned.leave(id);
        plane.set_deadline(id, None);
        let now = plane.now;
        let Some(session) = plane.sessions.get(id) else {
            return;
        };
        let kind = plane.kind_of(session);
        let Some(session) = plane.sessions.get_mut(id) else {
            return;
        };
        let one = PolledCommand {
            session: id,
            seq: session.take_seq(),
            command: request.id.into(),
            read_at: plane.read_at,
            request: request.bytes.to_vec(),
            kind,
            slot: slot_of_first_key(request),
            until: block_timeout_ms(request).map(|ms| now.plus_ms(ms)),
            due: now,
            link: None,
            nil: Vec::new(),
        };
        plane.held_bytes += one.request.len();
        self.poll_now(plane, one);
        plane.hold_until_caught_up(id);
    }

    /// Handles the reply to a poll of [`Pinned::poll_now`]. Returns the server if it redirects the
    /// command: the owners of its slots have changed.
    pub(crate) fn settle_poll(
        &mut self,
        plane: &mut DataPlane,
        entry: Entry,
        before: ExecPreamble,
        reply: &[u8],
    ) -> Option<ServerId> {
        // Each poll is a request, and the command is one. It is counted at its end.
        plane.note_repeated();
        let mut one = plane.polling.take(entry.session)?;
        let server = one.kind.server;
        let outcome = PollOutcome::of(&before, reply);
        match outcome {
            PollOutcome::Nil(nil) => one.nil = nil.to_vec(),
            PollOutcome::Redirected => {}
            PollOutcome::Reply(reply) => {
                plane.held_bytes -= one.request.len();
                plane.note_whole(one.session, one.command, one.read_at);
                plane.deliver_to(entry, reply);
                return None;
            }
        }
        plane.polling.postpone(one, plane.now);
        (outcome == PollOutcome::Redirected).then_some(server)
    }

    /// Sends the commands that are due, and answers commands at the end of their time.
    pub(crate) fn tick_polls(&mut self, plane: &mut DataPlane) {
        // The session is gone, or has got an error because its server did not answer in time.
        let (sessions, held_bytes) = (&plane.sessions, &mut plane.held_bytes);
        plane.polling.waiting.retain(|one| {
            let waits = sessions
                .get(one.session)
                .is_some_and(|session| !session.is_caught_up());
            if !waits {
                *held_bytes -= one.request.len();
            }
            waits
        });
        for _ in 0..POLLS_PER_TICK {
            let Some(mut one) = plane.polling.next_due(plane.now) else {
                break;
            };
            match one.until {
                Some(until) if until <= plane.now && !one.nil.is_empty() => {
                    let nil = std::mem::take(&mut one.nil);
                    self.end_poll(plane, one, &nil);
                }
                _ => self.poll_now(plane, one),
            }
        }
    }

    fn end_poll(&mut self, plane: &mut DataPlane, one: PolledCommand, reply: &[u8]) {
        plane.held_bytes -= one.request.len();
        plane.note_whole(one.session, one.command, one.read_at);
        let entry = Entry::of(one.session, one.seq, plane.now_stamp).of_command(one.command);
        plane.deliver_to(entry, reply);
    }

    /// CLIENT UNBLOCK of a session that is polled for. Returns whether it waited.
    pub(crate) fn unblock_poll(
        &mut self,
        plane: &mut DataPlane,
        session: SessionId,
        with_error: bool,
    ) -> bool {
        let waits = |one: &PolledCommand| one.session == session && one.link.is_none();
        let Some(at) = plane.polling.waiting.iter().position(waits) else {
            return false;
        };
        let Some(mut one) = plane.polling.waiting.remove(at) else {
            return false;
        };
        let nil = std::mem::take(&mut one.nil);
        match with_error || nil.is_empty() {
            true => self.end_poll(plane, one, UNBLOCKED),
            false => self.end_poll(plane, one, &nil),
        }
        true
    }

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
            (Some(link), Some(LinkState::Backoff { .. })) => {
                plane.held_bytes -= one.request.len();
                let (server, reason) = plane.last_loss(link);
                let (server, reason) = (&server, &reason);
                return plane.close_at_loss(id, Fate::NotSent, Cause::NoLink { server, reason });
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
            ..Entry::of(id, one.seq, plane.now_stamp)
                .of_command(one.command)
                .with_completion(true)
        };
        one.link = link;
        plane.polling.waiting.push_back(one);
        if let Some(link) = link
            && let Some(state) = plane.links.get_mut(link)
        {
            state.ledger.push_with(
                entry,
                &block,
                Completion::Pinned(PinnedCompletion::Poll(ExecPreamble::default())),
            );
            plane.counters.link_requests += 1;
            plane.counters.blocking_polls += 1;
            plane.list_link(link);
        }
    }

    /// A link is lost. Its server may have executed a poll that has left, and removed an element:
    /// the session is closed, as sessions on pinned links are. Other polls are sent later.
    pub(crate) fn lose_polls(&mut self, plane: &mut DataPlane, lost: &LostLink) {
        let server = plane.label(lost.link).to_owned();
        let (fate, cause) = of_waiter(true, &server, &lost.reason);
        for session in plane.polling.on(lost.link) {
            let ledger = plane.links.get_mut(lost.link).map(|link| &mut link.ledger);
            let has_left = ledger.is_some_and(|ledger| ledger.give_up_block(session));
            if lost.was_up && has_left {
                plane.close_at_loss(session, fate, cause);
            } else if let Some(one) = plane.polling.take(session) {
                plane.polling.postpone(one, plane.now);
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the replies to MULTI, the command and EXEC, the session gets the command's result or the
    /// first error. A poll with a nil or a redirect is sent again.
    #[test]
    fn reply_to_a_poll_is_a_result_an_error_or_nothing_yet() {
        const OK: &[u8] = b"+OK\r\n";
        const QUEUED: &[u8] = b"+QUEUED\r\n";
        let abort: &[u8] = b"-EXECABORT Transaction discarded\r\n";
        let moved: &[u8] = b"-MOVED 1 127.0.0.1:7001\r\n";
        let denied: &[u8] = b"-NOPERM no\r\n";
        for (in_front, reply, expected) in [
            (
                [OK, QUEUED],
                b"*1\r\n*-1\r\n".as_slice(),
                PollOutcome::Nil(b"*-1\r\n"),
            ),
            ([OK, QUEUED], b"*1\r\n_\r\n", PollOutcome::Nil(b"_\r\n")),
            ([OK, QUEUED], b"*1\r\n:1\r\n", PollOutcome::Reply(b":1\r\n")),
            (
                [OK, QUEUED],
                b"*1\r\n-WRONGTYPE\r\n",
                PollOutcome::Reply(b"-WRONGTYPE\r\n"),
            ),
            ([OK, moved], abort, PollOutcome::Redirected),
            ([OK, denied], abort, PollOutcome::Reply(denied)),
            ([denied, moved], abort, PollOutcome::Reply(denied)),
            ([OK, QUEUED], moved, PollOutcome::Redirected),
            ([OK, QUEUED], denied, PollOutcome::Reply(denied)),
        ] {
            let mut before = ExecPreamble::default();
            assert!(in_front.iter().all(|reply| before.takes(reply)));
            assert!(!before.takes(reply), "this is the reply to EXEC");
            assert_eq!(PollOutcome::of(&before, reply), expected, "{reply:?}");
        }
    }
}
