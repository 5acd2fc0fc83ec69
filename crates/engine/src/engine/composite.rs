//! The steps of a composite reply are answered, see [`crate::data_plane::composite`].

use respool_protocol::request::RequestScanner;

use crate::base::handle::SessionId;
use crate::data_plane::composite::CompositeReply;
use crate::data_plane::ingress::{Dispatched, KeptRequest};
use crate::engine::Engine;

impl Engine {
    /// Answers a session's steps until one has to wait.
    pub(crate) fn take_steps(&mut self, id: SessionId) {
        let (asked_ms, mut is_late) = self.plane.begin_answering_steps(id);
        while let Some((request, within)) = self.plane.next_step(id) {
            if std::mem::take(&mut is_late) {
                self.expire_one(id, Some(request.id), asked_ms);
                continue;
            }
            self.plane.asked_ms = asked_ms;
            let dispatched = self.answer_step(id, &request, within);
            self.plane.asked_ms = self.plane.now_ms;
            if dispatched == Dispatched::Wait {
                self.plane.put_step_back(id, request, within);
            }
        }
    }

    /// Answers a request as its server would when it executes EXEC. Checks that hold only when a
    /// request is queued were made then.
    fn answer_step(
        &mut self,
        id: SessionId,
        kept: &KeptRequest,
        within: Option<CompositeReply>,
    ) -> Dispatched {
        let mut scanner = RequestScanner::default();
        let request = kept.read(&mut scanner);
        if let Some(within) = within {
            let (plane, user) = (&mut self.plane, within.user);
            match self.local.refusal_within(plane, id, &request, user) {
                None => return Dispatched::Wait,
                Some(Some(refusal)) => return self.plane.answer_error(id, &refusal),
                Some(None) => {}
            }
        }
        self.answer_locally(id, &request)
    }
}
