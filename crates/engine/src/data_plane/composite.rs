//! Composite replies: the steps left of a reply that respool puts together.
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
use crate::base::time::Stamp;
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
        within: Option<WithinExec>,
    },
}

/// The state of a session in the middle of its EXEC. The server has executed its whole block before
/// respool answers the first step. So each step shows the state that the requests before it have
/// left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WithinExec {
    /// The number of requests in the transaction.
    pub(crate) count: u32,
    /// Its database.
    pub(crate) db: u32,
    /// The index of its user in the settings.
    pub(crate) user: u16,
}

/// The composite reply of a session: the rest of the last reply, if respool puts that together.
#[derive(Debug, Default)]
pub(crate) struct CompositeReply {
    /// The steps that are left.
    steps: VecDeque<ReplyStep>,
    /// Whether the request of these steps gets no reply.
    silent: bool,
    /// When the request of these steps was read.
    pub(crate) read_at: Stamp,
    /// The session's state within an EXEC.
    pub(crate) within: Option<WithinExec>,
}

impl CompositeReply {
    /// Puts steps in front of the others.
    fn begin(&mut self, steps: VecDeque<ReplyStep>, (silent, read_at): (bool, Stamp)) {
        self.silent = silent;
        self.read_at = read_at;
        for step in steps.into_iter().rev() {
            self.steps.push_front(step);
        }
    }

    /// The last step is answered.
    fn end(&mut self) {
        self.silent = false;
        self.within = None;
    }

    /// The memory of the steps.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.steps.iter().map(ReplyStep::memory_bytes).sum()
    }

    /// The bytes that the steps hold.
    pub(crate) fn held_bytes(&self) -> usize {
        self.steps.iter().map(ReplyStep::held_bytes).sum()
    }
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
    /// flight are; the session must be waiting for that. `request`: whether the client wants no
    /// replies to it, and when it was read.
    pub(crate) fn begin_steps(
        &mut self,
        id: SessionId,
        steps: VecDeque<ReplyStep>,
        request: (bool, Stamp),
    ) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        debug_assert!(session.state.holds().any(Holds::CATCH_UP));
        session.state |= Flags::STEPS | Flags::MID_REPLY;
        self.held_bytes += steps.iter().map(ReplyStep::held_bytes).sum::<usize>();
        session.rare().composite.begin(steps, request);
    }

    /// Begins to answer a session's steps. Returns when the request behind them was read, and
    /// whether their first request has waited until its deadline.
    pub(crate) fn begin_answering_steps(&mut self, id: SessionId) -> (Stamp, bool) {
        let session = self.sessions.get_mut(id);
        let read_at = session.map_or(self.now_stamp, |session| session.rare().composite.read_at);
        let has_waited = self.deadlines.take_step(id);
        (read_at, has_waited && self.is_expired(read_at))
    }

    /// Answers a session's steps up to the next request, and takes that one. `None`: the session
    /// has to wait, or the composite reply has ended.
    pub(crate) fn next_step(&mut self, id: SessionId) -> Option<(KeptRequest, Option<WithinExec>)> {
        loop {
            let session = self.sessions.get_mut(id)?;
            if session.state.is_closing() || session.state.is_held() {
                return None;
            }
            if session.rare().composite.silent {
                session.state.silence_request();
            }
            let Some(step) = session.rare().composite.steps.pop_front() else {
                break;
            };
            self.held_bytes -= step.held_bytes();
            match step {
                ReplyStep::Reply(bytes) => {
                    self.answer_reply(id, &bytes);
                }
                ReplyStep::Request { request, within } => {
                    session.rare().composite.within = within;
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
        within: Option<WithinExec>,
    ) {
        if let Some(session) = self.sessions.get_mut(id) {
            self.held_bytes += request.bytes.len();
            let step = ReplyStep::Request { request, within };
            session.rare().composite.steps.push_front(step);
            self.deadlines.wait_with_step(id);
        }
    }

    /// Ends the composite reply of a session.
    fn end_steps(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.state.remove(Flags::STEPS);
            session.rare().composite.end();
        }
        self.count_down_silence(id);
        self.end_mid_reply(id);
        self.hold_to_leave_pool(id);
    }
}
