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

use crate::base::handle::SessionId;
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::KeptRequest;
use crate::data_plane::session::Flags;
use crate::data_plane::session_state::Holds;

/// One piece of a reply.
#[derive(Debug)]
pub(crate) enum ReplyStep {
    /// Bytes that are known.
    Reply(Vec<u8>),
    /// The reply that respool gives to this request. `within`: the state of the session inside an
    /// EXEC, as the earlier requests of it have left it.
    Request {
        request: KeptRequest,
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
    pub(crate) fn request(request: KeptRequest) -> ReplyStep {
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

impl DataPlane {
    /// Puts steps in front of a session's other steps. They are answered as soon as its requests in
    /// flight are; the session must be waiting for that. `silent`: the client wants no replies.
    /// `asked_ms`: when the request was read, [`crate::base::time::Time::stamp_ms`].
    pub(crate) fn begin_steps(
        &mut self,
        id: SessionId,
        steps: VecDeque<ReplyStep>,
        (silent, asked_ms): (bool, u32),
    ) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        debug_assert!(session.state.holds().any(Holds::CATCH_UP));
        session.state |= Flags::STEPS | Flags::MID_REPLY;
        self.held_bytes += steps.iter().map(ReplyStep::held_bytes).sum::<usize>();
        let rare = session.rare();
        rare.steps_silent = silent;
        rare.steps_asked_ms = asked_ms;
        for step in steps.into_iter().rev() {
            rare.reply_steps.push_front(step);
        }
    }

    /// Begins to answer a session's steps. Returns when the request behind them was read, and
    /// whether their first request has waited until its deadline.
    pub(crate) fn begin_answering_steps(&mut self, id: SessionId) -> (u32, bool) {
        let session = self.sessions.get_mut(id);
        let asked_ms = session.map_or(self.now_ms, |session| session.rare().steps_asked_ms);
        let has_waited = self.deadlines.take_step(id);
        (asked_ms, has_waited && self.is_expired(asked_ms))
    }

    /// Answers a session's steps up to the next request, and takes that one. `None`: the session
    /// has to wait, or the composite reply has ended.
    pub(crate) fn next_step(
        &mut self,
        id: SessionId,
    ) -> Option<(KeptRequest, Option<CompositeReply>)> {
        loop {
            let session = self.sessions.get_mut(id)?;
            if session.state.is_closing() || session.state.is_held() {
                return None;
            }
            if session.rare().steps_silent {
                session.state.silence_request();
            }
            let Some(step) = session.rare().reply_steps.pop_front() else {
                break;
            };
            self.held_bytes -= step.held_bytes();
            match step {
                ReplyStep::Reply(bytes) => {
                    self.answer_reply(id, &bytes);
                }
                ReplyStep::Request { request, within } => {
                    session.rare().composite = within;
                    return Some((request, within));
                }
            }
        }
        if !self.hold_until_caught_up(id) {
            self.end_steps(id);
        }
        None
    }

    /// Puts a request back in front of a session's steps: it has to wait.
    pub(crate) fn put_step_back(
        &mut self,
        id: SessionId,
        request: KeptRequest,
        within: Option<CompositeReply>,
    ) {
        if let Some(session) = self.sessions.get_mut(id) {
            self.held_bytes += request.bytes.len();
            let step = ReplyStep::Request { request, within };
            session.rare().reply_steps.push_front(step);
            self.deadlines.wait_with_step(id);
        }
    }

    /// Ends the composite reply of a session.
    fn end_steps(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.state.remove(Flags::STEPS);
            session.rare().steps_silent = false;
            session.rare().composite = None;
        }
        self.count_down_silence(id);
        self.end_mid_reply(id);
    }
}
