//! Composite replies: respool answers the requests among their steps one after the other. See
//! [`crate::data_plane::composite`].

use respool_protocol::request::RequestScanner;

use crate::base::handle::SessionId;
use crate::data_plane::composite::WithinExec;
use crate::data_plane::ingress::{Dispatched, KeptRequest};
use crate::engine::Engine;

impl Engine {
    /// Answers a session's steps until one has to wait.
    pub(crate) fn take_steps(&mut self, id: SessionId) {
        let (read_at, mut is_expired) = self.plane.begin_answering_steps(id);
        while let Some((request, within)) = self.plane.next_step(id) {
            if std::mem::take(&mut is_expired) {
                let command = Some(request.id);
                self.transactions
                    .expire(&mut self.plane, id, command, read_at);
                continue;
            }
            self.plane.read_at = read_at;
            let dispatched = self.answer_step(id, &request, within);
            self.plane.read_at = self.plane.now_stamp;
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
        within: Option<WithinExec>,
    ) -> Dispatched {
        let mut scanner = RequestScanner::default();
        let request = kept.read(&mut scanner);
        let refused = within.and_then(|within| {
            let plane = &mut self.plane;
            self.local.refuse_within(plane, id, &request, within.user)
        });
        refused.unwrap_or_else(|| self.answer_locally(id, &request))
    }
}
