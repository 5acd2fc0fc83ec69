//! Flows of transactions: passes the decisions of `transaction` on to the other components.

use respool_protocol::commands::id;

use crate::access::auth::ExecLogin;
use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::data_plane::completion::transaction::Exec;
use crate::data_plane::ingress::{Blocked, Dispatched, Request};
use crate::data_plane::ledger::Entry;
use crate::engine::Engine;
use crate::transaction::exec::{ExecReply, OthersResult, agrees};
use crate::transaction::queue::Queued;

/// Requests around a transaction.
impl Engine {
    /// Answers MULTI, WATCH, UNWATCH, DISCARD and EXEC.
    pub(crate) fn answer_transaction(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        let (plane, bytes) = (&mut self.plane, request.bytes);
        let in_multi = plane.is_in_multi(id);
        match request.id {
            id::MULTI if !in_multi => match self.local.admit_opening(plane, id, bytes) {
                Ok(()) => self.transactions.begin_transaction(plane, id, bytes),
                Err(Blocked::Wait) => Dispatched::Wait,
                Err(Blocked::Refused(reply)) => plane.answer_reply(id, &reply),
            },
            id::EXEC if in_multi => self.transactions.exec(
                plane,
                id,
                bytes,
                |plane, redirects, needs_none| {
                    let pinned = &self.pinned;
                    pinned.refusal_of_redirects(plane, id, redirects, needs_none)
                },
                |plane, scripts| self.local.load_scripts(plane, id, scripts).map(|_| ()),
            ),
            _ => self.transactions.answer(plane, id, request),
        }
    }
}

/// Requests inside a transaction.
impl Engine {
    /// Queues a request of a session in MULTI.
    pub(crate) fn queue(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        let plane = &mut self.plane;
        match self.transactions.queue(plane, id, request) {
            Queued::Done(dispatched) => dispatched,
            Queued::Login(queued) => match self.access.admit_in_multi(plane, id, &queued.login) {
                Ok(claim) => self.transactions.queue_login(plane, id, queued, claim),
                Err(dispatched) => dispatched,
            },
            Queued::Redirect { at, to } => self.track_for(id, request, at, to),
        }
    }
}

/// The result of EXEC.
impl Engine {
    /// Completes the result of a block with the results that respool makes or changes.
    pub(crate) fn settle_exec(&mut self, link: LinkId, entry: Entry, exec: Exec, result: &[u8]) {
        let id = self.plane.owner_of(link, entry);
        let session = self.plane.sessions.get(id);
        let state = session.map_or((0, CONFIGURED), |session| (session.db, session.user));
        let mut exec_reply = match ExecReply::begin(exec, result, state) {
            Ok(exec_reply) => exec_reply,
            Err(exec) => {
                for switch in exec.switches() {
                    self.pinned
                        .settle_switch(&mut self.plane, id, switch, None, b"");
                }
                return self.plane.answer_or_fail(entry, result);
            }
        };
        while let Some((own, element)) = exec_reply.next_result() {
            if !self.settle_result((id, link), &mut exec_reply, own, element) {
                break;
            }
        }
        exec_reply.finish(&mut self.plane, (id, link), entry);
    }

    /// Adds a result that another component makes or changes to the reply of an EXEC. `false`: the
    /// session was closed.
    fn settle_result(
        &mut self,
        (id, link): (SessionId, LinkId),
        exec_reply: &mut ExecReply<'_>,
        own: OthersResult,
        element: &[u8],
    ) -> bool {
        let plane = &mut self.plane;
        match own {
            OthersResult::Switch(switch, redirect) => {
                self.pinned
                    .settle_switch(plane, id, switch, redirect, element);
                exec_reply.say(element);
            }
            OthersResult::Named(names) => {
                exec_reply.say(&self.plane.named_by(link, names, None, element));
            }
            OthersResult::RedirectName => {
                exec_reply.say(&self.pinned.name_told(plane, id, element));
            }
            OthersResult::Counted(command, name) => {
                let recounted = self
                    .pubsub
                    .recount_in_exec(plane, id, (command, &name), element);
                exec_reply.say(&recounted);
            }
            OthersResult::Login {
                login,
                hello,
                claim,
            } => {
                let agreed = agrees(hello.is_some(), element);
                let (login, state) = ((login, claim), (agreed, exec_reply.within.db));
                let (plane, in_hubs) = (&mut self.plane, self.pubsub.users());
                let (outcome, effect) =
                    self.access
                        .settle_exec_login(plane, (id, link), login, state, &in_hubs);
                self.local.note_logins(plane, &effect.freed, effect.renewed);
                match outcome {
                    ExecLogin::Refused => exec_reply.say(element),
                    ExecLogin::Accepted { user } => exec_reply.log_in(user, hello, element),
                    ExecLogin::NoPlace => return false,
                }
            }
        }
        true
    }
}
