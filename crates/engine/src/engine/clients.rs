//! Queries of a session to all workers: each component answers its own part.

use crate::admin::workers::OwnQuestion;
use crate::data_plane::ingress::Dispatched;
use crate::data_plane::worker_query::{Unblock, WorkerQuery, WorkerReply};
use crate::engine::Engine;

impl Engine {
    /// A session of another worker asks. The answer is a [`crate::Action::Answer`], in this turn or
    /// a later one.
    pub fn handle_question(&mut self, from: usize, ticket: u64, mut question: WorkerQuery) {
        let asked_by = (from, ticket);
        // The other worker may not have taken the last reload yet.
        if let Some(pool) = question.pool_mut() {
            *pool = self.plane.known_pool(*pool);
        }
        let plane = &mut self.plane;
        let count = |count: bool| Some(WorkerReply::Count(count.into()));
        let answer = match question {
            WorkerQuery::Admin(query) => self.admin.handle_query(plane, asked_by, query),
            WorkerQuery::Target(query) => count(self.pinned.handle_query(plane, query)),
            WorkerQuery::Script(query) => {
                self.local.handle_script_query(query);
                count(false)
            }
            WorkerQuery::Unblock { id, pool, how } => {
                let ends_poll = |plane: &mut _, session| {
                    let with_error = how == Unblock::Error;
                    self.pinned.unblock_poll(plane, session, with_error)
                };
                let admin = &mut self.admin;
                admin.unblock_client(plane, (id, pool), how, asked_by, ends_poll)
            }
        };
        if let Some(answer) = answer {
            self.admin.answer(&mut self.plane, asked_by, answer);
        }
    }

    /// The answer of one worker to a query of this worker.
    pub fn handle_answer(&mut self, ticket: u64, answer: WorkerReply) {
        self.admin.handle_answer(&mut self.plane, ticket, answer);
    }

    /// This worker answers its own query, like all others.
    pub(crate) fn handle_own(&mut self, own: OwnQuestion) {
        self.handle_question(self.plane.worker.index, own.ticket, own.question);
    }

    /// Sends a query to all workers, this one too. No session waits for the answers.
    pub(crate) fn send_to_all_workers(&mut self, question: WorkerQuery) {
        let own = self.admin.send_to_all_workers(&mut self.plane, question);
        self.handle_own(own);
    }

    /// This worker answers a query of its own session. `Err`: the session waits, or is refused.
    pub(crate) fn dispatch_own(&mut self, own: Result<OwnQuestion, Dispatched>) -> Dispatched {
        match own {
            Ok(own) => {
                self.handle_own(own);
                Dispatched::Done
            }
            Err(dispatched) => dispatched,
        }
    }
}
