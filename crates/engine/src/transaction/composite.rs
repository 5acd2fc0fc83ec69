//! Composite replies: the steps that are left of a request whose reply respool puts together.
//! Examples are the rest of an EXEC in which some requests were about the session, and the HELLO
//! around an AUTH.
//!
//! A session's reply is a sequence of bytes. So an array may leave in pieces, each with its own
//! place in the reply order. A piece may be the reply to a request like any other, and that request
//! may have to wait.
//!
//! ```text
//!   the server's EXEC:        *2  +OK              $1 v
//!   places of the session:   [*3  +OK] [CLIENT ID] [$1 v]
//! ```
//!
//! Until the last step is answered, the session is not read. Messages wait as they do during a
//! large reply.

use std::collections::VecDeque;

use respool_protocol::request::{Found, Scanner};

use crate::base::handle::SessionId;
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::{DeferredCheck, Dispatched, Request};
use crate::data_plane::session::Flags;
use crate::engine::Engine;
use crate::transaction::Transactions;

/// One piece of a reply.
#[derive(Debug)]
pub(crate) enum ReplyStep {
    /// Bytes that are known.
    Reply(Vec<u8>),
    /// The reply that respool gives to this request. `within`: the state of the session inside an
    /// EXEC, as the earlier requests of it have left it.
    Request {
        request: DeferredCheck,
        within: Option<CompositeReply>,
    },
}

/// The state of a session in the middle of its EXEC. The server has executed its whole block before
/// respool answers the first step. So each step shows the state that the requests before it have
/// left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompositeReply {
    /// The number of requests in the transaction.
    pub(crate) count: u32,
    pub(crate) db: u32,
    pub(crate) user: u16,
}

impl ReplyStep {
    /// A request outside an EXEC.
    pub(crate) fn request(request: DeferredCheck) -> ReplyStep {
        let within = None;
        ReplyStep::Request { request, within }
    }

    /// The memory of the step: the held bytes and the step itself.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<ReplyStep>() + self.held_bytes()
    }

    /// The bytes that it holds.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            ReplyStep::Reply(bytes) => bytes.len(),
            ReplyStep::Request { request, .. } => request.bytes.len(),
        }
    }
}

impl Engine {
    /// Answers a session's steps until one has to wait.
    pub(crate) fn take_steps(&mut self, session_id: SessionId) {
        let asked_ms = self
            .plane
            .sessions
            .get_mut(session_id)
            .map(|session| session.rare().steps_asked_ms);
        let asked_ms = asked_ms.unwrap_or(self.plane.now_ms);
        let mut is_late =
            self.plane.deadlines.take_step(session_id) && self.plane.is_expired(asked_ms);
        loop {
            let Some(session) = self.plane.sessions.get_mut(session_id) else {
                return;
            };
            if session.flags.any(Flags::HOLD | Flags::CLOSING) {
                return;
            }
            if session.rare().steps_silent {
                session.flags.silence_request();
            }
            let Some(step) = session.rare().reply_steps.pop_front() else {
                break;
            };
            self.plane.held_bytes -= step.held_bytes();
            match step {
                ReplyStep::Reply(bytes) => {
                    self.plane.answer_reply(session_id, &bytes);
                }
                ReplyStep::Request { request, within } => {
                    session.rare().composite = within;
                    if std::mem::take(&mut is_late) {
                        self.expire_one(session_id, Some(request.id), asked_ms);
                        continue;
                    }
                    self.plane.asked_ms = asked_ms;
                    let placed = self.answer_step(session_id, &request, within);
                    self.plane.asked_ms = self.plane.now_ms;
                    if placed == Dispatched::Wait
                        && let Some(session) = self.plane.sessions.get_mut(session_id)
                    {
                        self.plane.held_bytes += request.bytes.len();
                        let step = ReplyStep::Request { request, within };
                        session.rare().reply_steps.push_front(step);
                        self.plane.deadlines.wait_with_step(session_id);
                    }
                }
            }
        }
        if !self.plane.hold_until_caught_up(session_id) {
            self.transactions.end_steps(&mut self.plane, session_id);
        }
    }

    /// Answers a request as its server would when it executes EXEC. Checks that hold only when a
    /// request is queued were made then.
    fn answer_step(
        &mut self,
        session_id: SessionId,
        kept: &DeferredCheck,
        within: Option<CompositeReply>,
    ) -> Dispatched {
        let mut scanner = Scanner::default();
        let Ok(Found::Request { .. }) = scanner.scan(&kept.bytes, true) else {
            unreachable!("a step's request was scanned before");
        };
        let request = Request {
            bytes: &kept.bytes,
            spans: scanner.spans(),
            id: kept.id,
            command: kept.id.get(),
        };
        if let Some(within) = within {
            match self.refusal_within(session_id, &request, within.user) {
                None => return Dispatched::Wait,
                Some(Some(refusal)) => return self.answer_error(session_id, &refusal),
                Some(None) => {}
            }
        }
        self.answer_locally(session_id, &request)
    }
}

impl Transactions {
    /// Puts steps in front of a session's other steps. They are answered as soon as its requests in
    /// flight are; the session must be waiting for that. `silent`: the client wants no replies.
    /// `asked_ms`: when the request was read, [`crate::base::time::Time::stamp_ms`].
    pub(crate) fn begin_steps(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        steps: VecDeque<ReplyStep>,
        (silent, asked_ms): (bool, u32),
    ) {
        let Some(session) = plane.sessions.get_mut(id) else {
            return;
        };
        debug_assert!(session.flags.any(Flags::HOLD_DRAIN));
        session.flags |= Flags::STEPS | Flags::MID_REPLY;
        plane.held_bytes += steps.iter().map(ReplyStep::held_bytes).sum::<usize>();
        let rare = session.rare();
        rare.steps_silent = silent;
        rare.steps_asked_ms = asked_ms;
        for step in steps.into_iter().rev() {
            rare.reply_steps.push_front(step);
        }
    }

    /// Ends the composite reply of a session.
    fn end_steps(&mut self, plane: &mut DataPlane, id: SessionId) {
        if let Some(session) = plane.sessions.get_mut(id) {
            session.flags.remove(Flags::STEPS);
            session.rare().steps_silent = false;
            session.rare().composite = None;
        }
        plane.count_down_silence(id);
        plane.end_mid_reply(id);
    }
}
