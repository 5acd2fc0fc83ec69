//! Replies with a completion. Each goes to the component that put its request on the link.

use respool_protocol::commands::Names;

use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::completion::access::AccessCompletion;
use crate::data_plane::completion::admin::AdminCompletion;
use crate::data_plane::completion::local::{LocalCompletion, ScriptEffect};
use crate::data_plane::completion::pinned::PinnedCompletion;
use crate::data_plane::completion::pubsub::PubsubCompletion;
use crate::data_plane::completion::redirect::RedirectCompletion;
use crate::data_plane::completion::scatter::ScatterCompletion;
use crate::data_plane::completion::transaction::{Exec, TransactionCompletion};
use crate::data_plane::completion::{Completed, Completion, LastReply};
use crate::data_plane::ledger::Entry;
use crate::engine::Engine;
use crate::local::info::shown_info;
use crate::local::settle::LocalOutcome;

/// The reply to a block whose MULTI the server refused.
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
                self.local.doubt_rights(&mut self.plane, id);
                self.plane.pass_on(entry, NOT_OPENED);
            }
            Completed::Last(last) => self.settle(id, last, reply, cut),
        }
    }

    fn settle(&mut self, id: LinkId, last: LastReply, reply: &[u8], cut: bool) {
        let LastReply {
            entry,
            completion,
            request,
        } = last;
        match completion {
            Completion::Pass | Completion::Shutdown => self.plane.pass_on(entry, reply),
            Completion::Block { exec, code, .. } => {
                self.settle_block(id, entry, exec, code.then_some(&request), reply);
            }
            Completion::Asking { .. } => {
                unreachable!("the completion after ASKING has taken its place")
            }
            Completion::Instead(answer) => self.plane.deliver_to(entry, &answer),
            Completion::Limits => self.plane.take_limit_answer(id, reply),
            Completion::Cpu => self.plane.take_cpu(id, reply),
            Completion::Access(asked) => self.settle_access(id, entry, asked, reply),
            Completion::Admin(asked) => self.settle_admin(entry, asked, reply),
            Completion::Discovery(asked) => self.settle_discovery(id, asked, reply),
            Completion::Local(asked) => {
                self.settle_local((id, entry), asked, &request, (reply, cut))
            }
            Completion::Pinned(asked) => self.settle_pinned(id, entry, asked, reply),
            Completion::Pubsub(asked) => self.settle_pubsub(id, entry, asked, reply),
            Completion::Redirect(RedirectCompletion::Proof {
                session,
                seq,
                proof,
            }) => self.settle_proof(id, (session, seq), proof, reply),
            Completion::Scatter(asked) => self.settle_scatter(id, entry, asked, &request, reply),
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
        let is_lost = code.is_some_and(|request| {
            self.local
                .settle_code(&mut self.plane, id, entry.session, request, reply)
        });
        if exec.as_deref().is_some_and(Exec::flushes_scripts) {
            self.local.settle_flush(&mut self.plane, id, reply);
        }
        match exec {
            Some(exec) => self.settle_exec(id, entry, *exec, reply),
            None => self.plane.pass_on(entry, reply),
        }
        if is_lost {
            self.local
                .close_for_lost_scripts(&mut self.plane, id, entry.session);
        }
    }

    fn settle_access(&mut self, id: LinkId, entry: Entry, asked: AccessCompletion, reply: &[u8]) {
        match asked {
            AccessCompletion::Check(check) => {
                self.access.settle_check(&mut self.plane, id, *check, reply);
            }
            AccessCompletion::Login(login) => {
                self.settle_login(id, entry, *login);
                self.access.pump_logins(&mut self.plane, id);
            }
        }
    }

    fn settle_admin(&mut self, entry: Entry, asked: AdminCompletion, reply: &[u8]) {
        let own = self.admin.settle(&mut self.plane, entry, asked, reply);
        if let Some(own) = own {
            self.handle_own(own);
        }
    }

    fn settle_local(
        &mut self,
        (id, entry): (LinkId, Entry),
        asked: LocalCompletion,
        request: &[u8],
        (reply, cut): (&[u8], bool),
    ) {
        let plane = &mut self.plane;
        let outcome = self
            .local
            .settle(plane, (id, entry), asked, request, (reply, cut));
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
                    plane.pass_on(entry, reply);
                }
            }
        }
    }

    fn settle_pinned(&mut self, id: LinkId, entry: Entry, asked: PinnedCompletion, reply: &[u8]) {
        match asked {
            PinnedCompletion::Dismissal { of } => {
                self.pinned.dismissed(&mut self.plane, of, reply);
            }
            PinnedCompletion::Poll(before) => {
                let plane = &mut self.plane;
                if let Some(server) = self.pinned.settle_poll(plane, entry, before, reply) {
                    self.discovery.request_refresh(plane, server);
                }
            }
            PinnedCompletion::Wait(waiting) => self.settle_wait(id, entry, *waiting, reply),
            PinnedCompletion::Switch {
                switch,
                had,
                redirect,
            } => {
                let owner = self.plane.owner_of(id, entry);
                self.plane.deliver_to(entry, reply);
                self.pinned
                    .settle_switch(&mut self.plane, owner, (switch, had), redirect, reply);
            }
            PinnedCompletion::NameTold => {
                let owner = self.plane.owner_of(id, entry);
                let reply = self.pinned.name_told(&self.plane, owner, reply);
                self.plane.deliver_to(entry, &reply);
            }
            PinnedCompletion::Track => self.pinned.settle_track(&mut self.plane, id, reply),
        }
    }

    fn settle_pubsub(&mut self, id: LinkId, entry: Entry, asked: PubsubCompletion, reply: &[u8]) {
        match asked {
            PubsubCompletion::Ask => self.settle_ask(id, reply),
            PubsubCompletion::Leave { .. } => self.pubsub.settle_left(&mut self.plane, id),
            PubsubCompletion::Receivers(_) | PubsubCompletion::Subscribers(_) => {
                let server = self.plane.links.get(id).map(|link| link.kind.server);
                let reply = match server.map(|server| self.plane.pool_of(server).whole) {
                    Some(pool) => self.pubsub.recount(pool, &asked, reply),
                    None => reply.to_vec(),
                };
                self.plane.deliver_to(entry, &reply);
            }
        }
    }

    fn settle_scatter(
        &mut self,
        id: LinkId,
        entry: Entry,
        asked: ScatterCompletion,
        request: &[u8],
        reply: &[u8],
    ) {
        match asked {
            ScatterCompletion::Scan {
                number,
                next,
                sifted_by,
            } => {
                let sifted_by = sifted_by.as_deref();
                let names = Names::Second;
                let reply = self.plane.named_by(id, names, sifted_by, reply);
                let reply = self
                    .scatter
                    .scanned(&self.plane, id, (number, next), &reply);
                self.plane.deliver_to(entry, &reply);
            }
            ScatterCompletion::Named(names) => {
                let reply = self.plane.named_by(id, names, None, reply);
                self.plane.deliver_to(entry, &reply);
            }
            ScatterCompletion::Part { index, effect } => {
                match effect {
                    ScriptEffect::None => {}
                    ScriptEffect::Load => {
                        self.local
                            .settle_script(&mut self.plane, id, entry.session, request, reply)
                    }
                    ScriptEffect::Flush => self.local.settle_flush(&mut self.plane, id, reply),
                }
                self.take_share_of(entry, index, reply);
            }
        }
    }

    /// The server's reply to INFO, with respool's section if `ours`.
    pub(crate) fn with_our_section(&self, session: SessionId, ours: bool, reply: &[u8]) -> Vec<u8> {
        let own = ours.then(|| self.our_section(session));
        shown_info(&self.plane, session, own.as_deref(), reply)
    }
}
