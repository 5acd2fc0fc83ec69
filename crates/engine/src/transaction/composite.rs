//! What is left of a request whose reply we put together: the rest of an EXEC in which some
//! requests were about the session, the HELLO around an AUTH.
//!
//! Replies leave a session as bytes, one behind the other. So an array may be given in pieces, each
//! in a place of its own, and a piece may be the reply to a request like any other, with all that
//! may have to be waited for.
//!
//! ```text
//!   the server's EXEC:        *2  +OK              $1 v
//!   places of the session:   [*3  +OK] [CLIENT ID] [$1 v]
//! ```
//!
//! Until the last step is answered the session is not read on, and messages wait as they do while a
//! large reply is on its way.

use std::collections::VecDeque;

use respool_protocol::request::{Found, Scanner};

use crate::engine::Engine;
use crate::requests::{Kept, Placed, Request};
use crate::session::Flags;
use crate::slots::Key;

/// One piece of a reply.
#[derive(Debug)]
pub(crate) enum Step {
    /// It is known.
    Reply(Vec<u8>),
    /// It is what this request is answered here; `within` an EXEC, the session is what that has
    /// made of it.
    Request {
        request: Kept,
        within: Option<Within>,
    },
}

/// What a session is in the middle of its EXEC: all that is executed here is executed behind all
/// that the server executes, and shows what stood in front of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Within {
    /// Requests in the transaction.
    pub(crate) count: u32,
    pub(crate) db: u32,
    pub(crate) user: u16,
}

impl Step {
    /// A request of its own, not within an EXEC.
    pub(crate) fn request(request: Kept) -> Step {
        let within = None;
        Step::Request { request, within }
    }

    /// The same with the step itself.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Step>() + self.held_bytes()
    }

    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Step::Reply(bytes) => bytes.len(),
            Step::Request { request, .. } => request.bytes.len(),
        }
    }
}

impl Engine {
    /// Puts steps in front of those that a session has; they are taken as soon as everything that
    /// it asked is answered. It must be waiting for that. `silent`: it wants none of the replies.
    /// `asked_ms`: when their request was read, [`crate::time::Time::stamp_ms`].
    pub(crate) fn begin_steps(
        &mut self,
        key: Key,
        steps: VecDeque<Step>,
        (silent, asked_ms): (bool, u32),
    ) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        debug_assert!(session.flags.any(Flags::HOLD_DRAIN));
        session.flags |= Flags::STEPS | Flags::MID_REPLY;
        self.held_bytes += steps.iter().map(Step::held_bytes).sum::<usize>();
        let rare = session.rare();
        rare.steps_silent = silent;
        rare.steps_asked_ms = asked_ms;
        for step in steps.into_iter().rev() {
            rare.steps.push_front(step);
        }
    }

    /// Takes a session's steps until one has to wait.
    pub(crate) fn take_steps(&mut self, key: Key) {
        let asked_ms = self
            .sessions
            .get_mut(key)
            .map(|its| its.rare().steps_asked_ms);
        let asked_ms = asked_ms.unwrap_or(self.now_ms);
        let mut is_late = self.arrivals.take_step(key) && self.is_expired(asked_ms);
        loop {
            let Some(session) = self.sessions.get_mut(key) else {
                return;
            };
            if session.flags.any(Flags::HOLD | Flags::CLOSING) {
                return;
            }
            if session.rare().steps_silent {
                session.flags |= Flags::SILENT_ONCE;
            }
            let Some(step) = session.rare().steps.pop_front() else {
                break;
            };
            self.held_bytes -= step.held_bytes();
            match step {
                Step::Reply(bytes) => {
                    self.answer_reply(key, &bytes);
                }
                Step::Request { request, within } => {
                    session.rare().within = within;
                    if std::mem::take(&mut is_late) {
                        self.expire_one(key, Some(request.id), asked_ms);
                        continue;
                    }
                    self.asked_ms = asked_ms;
                    let placed = self.answer_step(key, &request, within);
                    self.asked_ms = self.now_ms;
                    if placed == Placed::Wait
                        && let Some(session) = self.sessions.get_mut(key)
                    {
                        self.held_bytes += request.bytes.len();
                        let step = Step::Request { request, within };
                        session.rare().steps.push_front(step);
                        self.arrivals.wait_with_step(key);
                    }
                }
            }
        }
        if !self.hold_until_caught_up(key) {
            self.end_steps(key);
        }
    }

    fn end_steps(&mut self, key: Key) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.flags.remove(Flags::STEPS);
            session.rare().steps_silent = false;
            session.rare().within = None;
        }
        self.count_down_silence(key);
        self.end_mid_reply(key);
    }

    /// As its server would execute it behind EXEC: what only the place in front of it forbids was
    /// looked at when it was queued.
    fn answer_step(&mut self, key: Key, kept: &Kept, within: Option<Within>) -> Placed {
        let mut scanner = Scanner::default();
        let Ok(Found::Request { .. }) = scanner.scan(&kept.bytes, true) else {
            unreachable!("it was scanned before it became a step");
        };
        let request = Request {
            bytes: &kept.bytes,
            spans: scanner.spans(),
            id: kept.id,
            command: kept.id.get(),
        };
        if let Some(within) = within {
            match self.refusal_within(key, &request, within.user) {
                None => return Placed::Wait,
                Some(Some(refusal)) => return self.answer_error(key, &refusal),
                Some(None) => {}
            }
        }
        self.answer_here(key, &request)
    }
}
