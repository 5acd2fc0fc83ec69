//! Flows of transactions: passes the decisions of `transaction` on to the other components.

use respool_protocol::commands::id;

use crate::access::auth::ExecLogin;
use crate::access::login_probe::LoginGate;
use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::data_plane::completion::transaction::Exec;
use crate::data_plane::ingress::{Dispatched, Request};
use crate::data_plane::ledger::Entry;
use crate::engine::Engine;
use crate::transaction::exec::{ExecReply, OthersResult, agrees};
use crate::transaction::queue::{Queued, QueuedLogin};

/// Requests around a transaction.
impl Engine {
    /// Answers MULTI, WATCH, UNWATCH, DISCARD and EXEC.
    pub(crate) fn answer_transaction(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        let in_multi = self.plane.is_in_multi(id);
        match request.id {
            id::MULTI if !in_multi => self.begin_transaction(id, request.bytes),
            id::EXEC if in_multi => self.exec(id, request.bytes),
            _ => self.transactions.answer(&mut self.plane, id, request),
        }
    }

    /// Opens a transaction, if the server admits transactions of the session's user.
    fn begin_transaction(&mut self, id: SessionId, opening: &[u8]) -> Dispatched {
        let plane = &mut self.plane;
        if !self.local.know_opening(plane, id, opening) {
            return Dispatched::Wait;
        }
        match self.local.refusal_to_open(plane, id) {
            Some(refusal) => plane.answer_reply(id, &refusal),
            None => self.transactions.begin_transaction(plane, id, opening),
        }
    }

    /// Handles EXEC: gives the session the link that the block needs, and sends the block.
    fn exec(&mut self, id: SessionId, closing: &[u8]) -> Dispatched {
        let (transactions, plane) = (&mut self.transactions, &mut self.plane);
        let plan = match transactions.plan(plane, id) {
            Ok(plan) => plan,
            Err(blocked) => return transactions.leave_blocked(plane, id, blocked),
        };
        let (redirects, needs_none) = (&plan.redirects, plan.pins.is_empty());
        let refusal = self
            .pinned
            .refusal_of_redirects(plane, id, redirects, needs_none);
        if let Some(reply) = refusal {
            return transactions.leave_transaction(plane, id, &reply);
        }
        let lane = match transactions.take_link(plane, id, &plan) {
            Ok(lane) => lane,
            Err(blocked) => return transactions.leave_blocked(plane, id, blocked),
        };
        let scripts = transactions.queued_scripts(id);
        let dispatched = match self.local.load_scripts(plane, id, &scripts) {
            Ok(_) => transactions.send_block(plane, id, closing, plan.about_session),
            Err(blocked) => transactions.leave_blocked(plane, id, blocked),
        };
        plane.leave_code_lane(id, lane);
        dispatched
    }
}

/// Requests inside a transaction.
impl Engine {
    /// Queues a request of a session in MULTI.
    pub(crate) fn queue(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        match self.transactions.queue(&mut self.plane, id, request) {
            Queued::Done(dispatched) => dispatched,
            Queued::Login(login) => self.queue_login(id, login),
            Queued::Redirect { at, to } => self.track_for(id, request, at, to),
        }
    }

    /// Queues a login, if its session may try it.
    fn queue_login(&mut self, id: SessionId, queued: QueuedLogin) -> Dispatched {
        let plane = &mut self.plane;
        match self.access.server_login_gate(plane, id, &queued.login) {
            LoginGate::Open(claim) => {
                self.access.end_login_turn(id);
                self.transactions.queue_login(plane, id, queued, claim)
            }
            LoginGate::Wait => Dispatched::Wait,
            LoginGate::Shut => {
                plane.abort_transaction(id);
                self.access.refuse_untried(plane, id)
            }
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
                return self.plane.pass_on(entry, result);
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
                self.note_login(effect);
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
