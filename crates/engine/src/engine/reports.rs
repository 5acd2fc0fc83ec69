//! RESPOOL: all workers are asked for their figures.

use crate::base::error_text::NOAUTH;
use crate::base::handle::SessionId;
use crate::data_plane::ingress::Dispatched;
use crate::data_plane::worker_query::WorkerQuery;
use crate::engine::Engine;
use crate::local::report_command::{ReportCommand, append_help};
use crate::local::unknown::{UnknownRequest, refuse_subscriber};

impl Engine {
    /// Answers RESPOOL.
    pub(crate) fn answer_report(
        &mut self,
        id: SessionId,
        request: &UnknownRequest<'_>,
    ) -> Dispatched {
        let plane = &mut self.plane;
        if let Some(session) = plane.sessions.get_mut(id) {
            session.last_command = None;
        }
        if plane.must_log_in_first(id) {
            return plane.refuse_queued(id, NOAUTH);
        }
        if plane.is_restricted(id) {
            return refuse_subscriber(plane, id, request);
        }
        let command = match ReportCommand::read(&request.args()) {
            Ok(command) => command,
            Err(text) => return plane.refuse_queued(id, &text),
        };
        if plane.is_in_multi(id) {
            return plane.refuse_queued(id, b"ERR respool: RESPOOL is not possible in MULTI");
        }
        if let Some(dispatched) = self.local.refused_report(plane, id, &command) {
            return dispatched;
        }
        let pool = plane.known_pool(plane.pool_of_session(id));
        let Some((query, form)) = command.query(pool) else {
            return plane.answer_with(id, |out, _| append_help(out));
        };
        let query = WorkerQuery::Admin(query);
        let own = self.admin.ask(plane, id, query, form, None);
        self.dispatch_own(own)
    }
}
