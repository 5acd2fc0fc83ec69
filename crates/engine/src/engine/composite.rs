//! The steps of a composite reply are answered, see [`crate::data_plane::composite`].

use respool_protocol::request::{Found, RequestScanner};

use crate::base::handle::SessionId;
use crate::data_plane::composite::{CompositeReply, ReplyStep};
use crate::data_plane::ingress::{Dispatched, KeptRequest, Request};
use crate::engine::Engine;

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
            if session.flags.is_closing() || session.flags.is_held() {
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
            self.plane.end_steps(session_id);
        }
    }

    /// Answers a request as its server would when it executes EXEC. Checks that hold only when a
    /// request is queued were made then.
    fn answer_step(
        &mut self,
        session_id: SessionId,
        kept: &KeptRequest,
        within: Option<CompositeReply>,
    ) -> Dispatched {
        let mut scanner = RequestScanner::default();
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
            match self
                .local
                .refusal_within(&mut self.plane, session_id, &request, within.user)
            {
                None => return Dispatched::Wait,
                Some(Some(refusal)) => return self.plane.answer_error(session_id, &refusal),
                Some(None) => {}
            }
        }
        self.answer_locally(session_id, &request)
    }
}
