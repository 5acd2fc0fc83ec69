//! Flows of transactions: passes the decisions of `transaction` on to the other components.

use respool_protocol::commands::id;
use respool_protocol::encode;

use crate::access::auth::ExecLogin;
use crate::access::login_probe::LoginGate;
use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::transaction::{Exec, TransactionCompletion};
use crate::data_plane::ingress::{Blocked, Dispatched, Request};
use crate::data_plane::ledger::Entry;
use crate::data_plane::quick_code::CodeLane;
use crate::data_plane::session::{Flags, Pins};
use crate::engine::Engine;
use crate::transaction::exec::{ExecPlan, ExecReply, OthersResult, agrees};
use crate::transaction::queue::{Queued, QueuedLogin};

/// Requests around a transaction.
impl Engine {
    /// Answers MULTI, WATCH, UNWATCH, DISCARD and EXEC.
    pub(crate) fn answer_transaction(
        &mut self,
        session_id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        let in_multi = self.plane.is_in_multi(session_id);
        match request.id {
            id::MULTI if in_multi => self.transactions.refuse_nested(
                &mut self.plane,
                session_id,
                request,
                "MULTI calls can not be nested",
            ),
            id::MULTI => {
                if !self
                    .local
                    .know_opening(&mut self.plane, session_id, request.bytes)
                {
                    return Dispatched::Wait;
                }
                if let Some(refusal) = self.local.refusal_to_open(&self.plane, session_id) {
                    return self.plane.answer_reply(session_id, &refusal);
                }
                self.transactions
                    .begin_transaction(&mut self.plane, session_id, request.bytes);
                self.plane.answer_reply(session_id, b"+OK\r\n")
            }
            id::WATCH if in_multi => self.transactions.refuse_nested(
                &mut self.plane,
                session_id,
                request,
                "WATCH inside MULTI is not allowed",
            ),
            id::WATCH => match self.plane.pin(session_id, Pins::WATCH) {
                Ok(()) => {
                    if let Some(session) = self.plane.sessions.get_mut(session_id) {
                        session.flags |= Flags::HAS_QUEUED;
                    }
                    self.plane
                        .dispatch_on_link(session_id, request.bytes, false, None)
                }
                Err(blocked) => self.plane.blocked(session_id, blocked),
            },
            id::UNWATCH => {
                self.plane.forget_lost_watch(session_id);
                match self.plane.watches(session_id) {
                    true => self.unwatch(session_id, request.bytes, None),
                    false => self
                        .plane
                        .dispatch_on_link(session_id, request.bytes, false, None),
                }
            }
            id::DISCARD if !in_multi => self
                .plane
                .answer_error(session_id, b"ERR DISCARD without MULTI"),
            id::DISCARD => self.leave_transaction(session_id, b"+OK\r\n"),
            _ if !in_multi => self
                .plane
                .answer_error(session_id, b"ERR EXEC without MULTI"),
            _ => self.exec(session_id, request.bytes),
        }
    }

    /// Ends the watch that a session has at the server. The client gets `instead`, or the server's
    /// reply.
    fn unwatch(&mut self, id: SessionId, request: &[u8], instead: Option<&[u8]>) -> Dispatched {
        let instead = instead.map(<[u8]>::to_vec);
        let placed = self.plane.dispatch_on_link(
            id,
            request,
            false,
            Some(Completion::Transaction(TransactionCompletion::Unwatch {
                instead,
            })),
        );
        if placed == Dispatched::Done {
            self.plane.unpin(id, Pins::WATCH);
        }
        placed
    }

    /// Ends a transaction that was not sent. The client gets this reply.
    pub(crate) fn leave_transaction(&mut self, id: SessionId, reply: &[u8]) -> Dispatched {
        let mut unwatch = Vec::new();
        encode::request(&mut unwatch, &["UNWATCH"]);
        let placed = match self.plane.watches(id) {
            true => self.unwatch(id, &unwatch, Some(reply)),
            false => self.plane.answer_reply(id, reply),
        };
        if placed == Dispatched::Done {
            self.plane.forget_lost_watch(id);
            self.transactions.end_transaction(&mut self.plane, id);
        }
        placed
    }

    /// Refuses a malformed EXEC, which ends its transaction.
    pub(crate) fn refuse_exec(&mut self, id: SessionId, text: &[u8]) -> Dispatched {
        let why = text.strip_prefix(b"ERR ").unwrap_or(text);
        let mut reply = Vec::new();
        encode::error(
            &mut reply,
            &[b"EXECABORT Transaction discarded because of: ", why].concat(),
        );
        self.leave_transaction(id, &reply)
    }
}

/// Requests inside a transaction.
impl Engine {
    /// Queues a request of a session in MULTI.
    pub(crate) fn queue(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        let names = self.plane.names_at(id, request.command);
        let queued = self.transactions.queue(&mut self.plane, id, request, names);
        match queued {
            Queued::Done(placed) => placed,
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

/// EXEC.
impl Engine {
    /// Handles EXEC: pins the session if the block needs it, and sends the block.
    fn exec(&mut self, id: SessionId, closing: &[u8]) -> Dispatched {
        let ExecPlan {
            about_session,
            taints,
            pins,
        } = match self.transactions.plan(&mut self.plane, id) {
            Ok(plan) => plan,
            Err(reply) => return self.leave_transaction(id, &reply),
        };
        if about_session && self.plane.hold_until_caught_up(id) {
            return Dispatched::Wait;
        }
        let redirects = self.transactions.queued_redirects(id);
        let refusal =
            self.pinned
                .refusal_of_redirects(&self.plane, id, &redirects, pins.is_empty());
        if let Some(reply) = refusal {
            return self.leave_transaction(id, &reply);
        }
        if let Some(group) = self.plane.queued_group(id) {
            self.plane.switch_to_group(id, group);
        }
        for pins in pins {
            match self.plane.pin(id, pins) {
                Ok(()) => {}
                Err(Blocked::Wait) => return Dispatched::Wait,
                Err(Blocked::Refused(reply)) => return self.leave_transaction(id, &reply),
            }
        }
        if taints {
            self.plane.taint_own_link(id);
        }
        let code = self.transactions.queued_code(id);
        let lane = code.map_or(CodeLane::Common, |code| {
            self.plane.enter_code_lane_with(id, &code)
        });
        if lane == CodeLane::Waits {
            return Dispatched::Wait;
        }
        let placed = self.send_block(id, closing, about_session);
        self.plane.leave_code_lane(id, lane);
        placed
    }

    /// Sends the block of an EXEC to the server.
    fn send_block(&mut self, id: SessionId, closing: &[u8], about_session: bool) -> Dispatched {
        let scripts = self.transactions.queued_scripts(id);
        match self.local.load_scripts(&mut self.plane, id, &scripts) {
            Ok(_) => {}
            Err(Blocked::Wait) => return Dispatched::Wait,
            Err(Blocked::Refused(reply)) => return self.leave_transaction(id, &reply),
        }
        let (block, duty) = self.transactions.block_of(&self.plane, id, closing);
        match self.plane.dispatch_with(id, &block, false, duty) {
            Ok(placed) => {
                self.transactions.end_transaction(&mut self.plane, id);
                self.plane.counters.transactions += 1;
                self.plane.unpin(id, Pins::WATCH.with(Pins::ONCE));
                if about_session {
                    // The result decides about the session's state, so later requests wait for it.
                    self.plane.hold_until_caught_up(id);
                }
                placed
            }
            Err(Completion::Block { exec, .. }) => {
                if let Some(exec) = exec {
                    self.transactions.take_back(id, *exec);
                }
                Dispatched::Wait
            }
            Err(_) => unreachable!("the completion that comes back is the block's"),
        }
    }

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
                match self.log_in_within_exec((id, link), login, state) {
                    ExecLogin::Refused => exec_reply.say(element),
                    ExecLogin::Accepted { user } => exec_reply.log_in(user, hello, element),
                    ExecLogin::NoPlace => return false,
                }
            }
        }
        true
    }
}
