//! Queries of a session to all workers: each component answers its own part.

use crate::admin::clients;
use crate::admin::workers::OwnQuestion;
use crate::base::handle::SessionId;
use crate::data_plane::ingress::{Dispatched, Request};
use crate::data_plane::worker_query::{ReplyForm, Unblock, WorkerQuery, WorkerReply};
use crate::engine::Engine;

impl Engine {
    /// A session of another worker asks. The answer is a [`crate::Action::Answer`], in this turn or
    /// a later one.
    pub fn handle_question(&mut self, from: usize, ticket: u64, question: WorkerQuery) {
        let asked_by = (from, ticket);
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
                self.unblock((id, pool), how, asked_by).and_then(count)
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

    /// Asks all workers for a session. The reply takes the next place in its order.
    pub(crate) fn ask(
        &mut self,
        id: SessionId,
        question: WorkerQuery,
        form: ReplyForm,
    ) -> Dispatched {
        let asked = self.admin.ask(&mut self.plane, id, question, form, None);
        self.asked(asked)
    }

    /// Sends a query to all workers, this one too. No session waits for the answers.
    pub(crate) fn tell_all(&mut self, question: WorkerQuery) {
        let own = self.admin.tell_all(&mut self.plane, question);
        self.handle_own(own);
    }

    fn asked(&mut self, asked: Result<OwnQuestion, Dispatched>) -> Dispatched {
        match asked {
            Ok(own) => {
                self.handle_own(own);
                Dispatched::Done
            }
            Err(dispatched) => dispatched,
        }
    }

    /// Answers a command about clients.
    pub(crate) fn answer_clients(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        let asked = self.admin.answer_clients(&mut self.plane, id, request);
        self.asked(asked)
    }

    /// Ends the wait of a session of this worker in a blocking command. Returns whether it waited.
    /// `None`: the server's reply becomes the answer to the query `asked_by`, a worker and its
    /// ticket.
    fn unblock(
        &mut self,
        client: (u64, u16),
        how: Unblock,
        asked_by: (usize, u64),
    ) -> Option<bool> {
        let Some(session) = clients::session_of(&self.plane, client) else {
            return Some(false);
        };
        if self.plane.polling.holds(session)
            && self
                .pinned
                .unblock_poll(&mut self.plane, session, how == Unblock::Error)
        {
            return Some(true);
        }
        let asks = self.admin.unblock(&mut self.plane, session, how, asked_by);
        (!asks).then_some(false)
    }

    /// Answers the pauses whose earlier requests are all answered.
    pub(crate) fn settle_pauses(&mut self) {
        let mut index = 0;
        while let Some(pool) = self.admin.settling_pool(index) {
            let deferred = self.redirects.oldest_deferred(&self.plane, pool);
            match self.admin.settle_pause(&self.plane, index, deferred) {
                Some(asked_by) => {
                    let answer = WorkerReply::Count(0);
                    self.admin.answer(&mut self.plane, asked_by, answer);
                }
                None => index += 1,
            }
        }
    }
}
