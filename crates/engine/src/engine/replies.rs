//! Replies with a completion. Each goes to the component that put its request on the link.

use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::completion::access::AccessCompletion;
use crate::data_plane::completion::local::LocalCompletion;
use crate::data_plane::completion::pinned::PinnedCompletion;
use crate::data_plane::completion::redirect::RedirectCompletion;
use crate::data_plane::completion::transaction::{Exec, TransactionCompletion};
use crate::data_plane::completion::{Completed, Completion, LastReply};
use crate::data_plane::ledger::Entry;
use crate::engine::Engine;
use crate::local::info::shown_info;
use crate::local::settle::LocalOutcome;
use crate::pinned::PinnedOutcome;

/// The reply to a block after the server refused its MULTI.
const NOT_OPENED: &[u8] =
    b"-UNKNOWN respool: the commands were sent and may have been executed, but not as a \
    transaction: the server refused its MULTI\r\n";

impl Engine {
    /// Completes the front entry with its reply. `cut`: the beginning of the reply was delivered
    /// before, and this is the rest.
    pub(crate) fn complete(&mut self, id: LinkId, reply: &[u8], cut: bool) {
        match self.plane.take_completed(id, reply, cut) {
            Completed::Not => {}
            Completed::NotOpened(entry) => {
                self.local.invalidate_rights(&mut self.plane, id);
                self.plane.answer_or_fail(entry, NOT_OPENED);
            }
            Completed::Last(last) => {
                self.settle(id, last, reply, cut);
                self.plane.end_completing();
            }
        }
    }

    fn settle(&mut self, id: LinkId, last: LastReply, reply: &[u8], cut: bool) {
        let LastReply {
            entry,
            completion,
            request,
        } = last;
        match completion {
            Completion::Pass | Completion::Shutdown => self.plane.answer_or_fail(entry, reply),
            Completion::Block { exec, code, .. } => {
                self.settle_block(id, entry, exec, code.then_some(&request), reply);
            }
            Completion::Asking { .. } => {
                unreachable!("the completion after ASKING has taken its place")
            }
            Completion::Instead(answer) => self.plane.deliver_to(entry, &answer),
            Completion::Limits => self.plane.take_limit_answer(id, reply),
            Completion::Cpu => self.plane.take_cpu(id, reply),
            Completion::Access(completion) => self.settle_access(id, entry, completion, reply),
            Completion::Admin(completion) => {
                if let Some(own) = self.admin.settle(&mut self.plane, entry, completion, reply) {
                    self.handle_own(own);
                }
            }
            Completion::Discovery(completion) => self.settle_discovery(id, completion, reply),
            Completion::Local(completion) => {
                self.settle_local((id, entry), completion, &request, (reply, cut))
            }
            Completion::Pinned(completion) => self.settle_pinned((id, entry), completion, reply),
            Completion::Pubsub(completion) => {
                let plane = &mut self.plane;
                if let Some(refused) = self.pubsub.settle(plane, (id, entry), completion, reply) {
                    self.follow_hub_refusal(id, refused, reply);
                }
            }
            Completion::Redirect(RedirectCompletion::Proof {
                session,
                seq,
                proof,
            }) => self.settle_proof(id, (session, seq), proof, reply),
            Completion::Scatter(completion) => {
                let plane = &mut self.plane;
                let (effect, session) = (completion.effect(), entry.session);
                self.local
                    .settle_effect(plane, (id, session), effect, &request, reply);
                if let Some(finished) = self.scatter.settle(plane, (id, entry), completion, reply) {
                    self.finish_scatter(finished);
                }
            }
            Completion::Transaction(TransactionCompletion::Unwatch { instead }) => {
                self.transactions
                    .settle_unwatch(&mut self.plane, id, entry, instead, reply);
            }
        }
    }

    /// The last reply to several requests. `code`: the requests, if one of them runs code.
    fn settle_block(
        &mut self,
        id: LinkId,
        entry: Entry,
        exec: Option<Box<Exec>>,
        code: Option<&Vec<u8>>,
        reply: &[u8],
    ) {
        let flushes = exec.as_deref().is_some_and(Exec::flushes_scripts);
        let place = (id, entry.session);
        let is_lost = self
            .local
            .settle_block(&mut self.plane, place, (code, flushes), reply);
        match exec {
            Some(exec) => self.settle_exec(id, entry, *exec, reply),
            None => self.plane.answer_or_fail(entry, reply),
        }
        if is_lost {
            self.local
                .close_for_lost_scripts(&mut self.plane, id, entry.session);
        }
    }

    fn settle_access(&mut self, id: LinkId, entry: Entry, login: AccessCompletion, reply: &[u8]) {
        let (plane, in_hubs) = (&mut self.plane, self.pubsub.users());
        let effect = self
            .access
            .settle(plane, (id, entry), login, reply, &in_hubs);
        self.local.note_logins(plane, &effect.freed, effect.renewed);
    }

    fn settle_pinned(
        &mut self,
        (id, entry): (LinkId, Entry),
        completion: PinnedCompletion,
        reply: &[u8],
    ) {
        let plane = &mut self.plane;
        match self.pinned.settle(plane, (id, entry), completion, reply) {
            PinnedOutcome::Done => {}
            PinnedOutcome::PollRedirected(server) => self.discovery.request_refresh(plane, server),
            PinnedOutcome::WaitsAtNext(rest, refused) => {
                self.wait_at_next(id, entry, rest, refused);
            }
        }
    }

    fn settle_local(
        &mut self,
        (id, entry): (LinkId, Entry),
        completion: LocalCompletion,
        request: &[u8],
        (reply, cut): (&[u8], bool),
    ) {
        let plane = &mut self.plane;
        let outcome = self
            .local
            .settle(plane, (id, entry), completion, request, (reply, cut));
        match outcome {
            LocalOutcome::Done => {}
            LocalOutcome::Opening(answer) => {
                if answer.is_stuck {
                    self.settle_losses();
                }
                self.local.note_opening(&mut self.plane, answer);
            }
            LocalOutcome::AddSection => {
                let reply = self.with_our_section(entry.session, true, reply);
                self.plane.deliver_to(entry, &reply);
            }
            LocalOutcome::ScriptMissing => {
                let redirects = &mut self.redirects;
                if !redirects.await_proof_of_noscript(plane, id, entry, request, reply) {
                    plane.answer_or_fail(entry, reply);
                }
            }
        }
    }

    /// The server's reply to INFO, with respool's section if `ours`.
    pub(crate) fn with_our_section(&self, session: SessionId, ours: bool, reply: &[u8]) -> Vec<u8> {
        let own = ours.then(|| self.our_section(session));
        shown_info(&self.plane, session, own.as_deref(), reply)
    }
}
