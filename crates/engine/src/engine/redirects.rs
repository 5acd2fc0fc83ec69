//! Flows of refused requests: discovery says where they go, and redirects send them again.

use respool_protocol::cluster::Refusal;

use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::DataPlane;
use crate::data_plane::completion::redirect::ProofStep;
use crate::discovery::readonly::may_be_readonly;
use crate::discovery::servers::ServersInUse;
use crate::engine::Engine;
use crate::redirect::deferred::{Deferred, Judgement, ProofOutcome, RetryScan, RetryStep};
use crate::redirect::retry::NewPrimaryAnswer;
use crate::routing::next_server::NextServer;
use crate::routing::pool::ServerId;

/// Refusals.
impl Engine {
    /// The next reply of a link is an error. Returns whether respool acts on it, and does not pass
    /// it on.
    #[cold]
    pub(crate) fn try_handle_refusal(&mut self, id: LinkId, reply: &[u8]) -> bool {
        if self
            .plane
            .links
            .get(id)
            .is_some_and(|link| link.handles_redirects)
        {
            return self.handle_refusal(id, reply);
        }
        if may_be_readonly(reply) {
            self.discovery.note_readonly(&mut self.plane, id, reply);
        }
        false
    }

    /// Handles the error reply in front of a link whose server may redirect. Returns whether the
    /// request has left the link: it was deferred or answered.
    #[cold]
    pub(crate) fn handle_refusal(&mut self, id: LinkId, reply: &[u8]) -> bool {
        let plane = &mut self.plane;
        let refused = match self.redirects.judge(plane, id, reply) {
            Judgement::Answer => return false,
            Judgement::AskRole(server) => {
                self.discovery.ask_role(plane, server);
                return false;
            }
            Judgement::AwaitsProof => return true,
            Judgement::Refused(refused) => refused,
        };
        let (server, slot, said) = (refused.server, refused.slot, refused.said());
        if self.discovery.confirm_unowned(plane, server, said, slot) {
            if refused.is_block {
                // The client gets this refusal. The error of EXEC says less.
                plane.answer_front(id, refused.front, &refused.reply);
            }
            return refused.is_block;
        }
        let next = self.follow_refusal((server, slot), said, refused.refusal);
        self.redirects.take_off(&mut self.plane, &refused, next);
        true
    }

    /// Updates the topology from a refusal, and returns the server that gets the request next. See
    /// [`crate::discovery::Discovery::follow_refusal`].
    pub(crate) fn follow_refusal(
        &mut self,
        at: (ServerId, Option<u16>),
        said: &[u8],
        refusal: Refusal,
    ) -> NextServer {
        // Only a redirect may name a new node, which takes the place of a server that is not used.
        let in_use = match refusal {
            Refusal::Moved | Refusal::Ask => self.servers_in_use(),
            _ => ServersInUse::default(),
        };
        let plane = &mut self.plane;
        let next = self
            .discovery
            .follow_refusal(plane, at, said, refusal, &in_use);
        self.forget_reused();
        next
    }

    /// Decides about an unproven request after the server's answer to the second question.
    pub(crate) fn settle_proof(
        &mut self,
        id: LinkId,
        place: (SessionId, u32),
        proof: ProofStep,
        reply: &[u8],
    ) {
        let plane = &mut self.plane;
        let (item, twin) = match self.redirects.settle_proof(plane, id, place, proof, reply) {
            ProofOutcome::Gone => return,
            ProofOutcome::SendScript {
                entry,
                request,
                refusal,
            } => {
                if !self.local.send_script_along(plane, id, entry, &request) {
                    plane.pass_on(entry, &refusal);
                }
                return;
            }
            ProofOutcome::Answer(entry, reply) => return plane.pass_on(entry, &reply),
            ProofOutcome::Refused(item, twin) => (item, twin),
        };
        let (server, slot) = (item.asked().server, item.slot());
        let said = reply.strip_prefix(b"-").unwrap_or_default();
        if self.discovery.confirm_unowned(plane, server, said, slot) {
            return plane.pass_on(item.entry(), reply);
        }
        let next = self.follow_refusal((server, slot), said, twin);
        self.redirects.keep_proven(&mut self.plane, item, next);
    }
}

/// Deferred requests that are sent again.
impl Engine {
    /// Sends deferred requests again if they may be sent.
    pub(crate) fn retry_deferred(&mut self) {
        for id in self.redirects.poll_new_sessions() {
            self.retry_deferred_of(id);
        }
        for id in self.redirects.poll_sessions(&self.plane) {
            self.retry_deferred_of(id);
        }
        self.redirects.end_scan_of_sessions(&self.plane);
    }

    /// Sends the deferred requests of a session again, or ends them, as far as that is due.
    fn retry_deferred_of(&mut self, id: SessionId) {
        if let Some(mut scan) = self.redirects.begin_scan(&mut self.plane, id) {
            while let Some(step) = scan.next(&self.plane) {
                match step {
                    RetryStep::GiveUp(item) => self.redirects.give_up(&mut self.plane, item),
                    RetryStep::Send(item) => self.retry(&mut scan, item),
                }
            }
            self.redirects.end_scan(&mut self.plane, scan);
        }
        self.redirects.list_again(&self.plane, id);
    }

    /// Sends one deferred request again, if there is a link for it.
    fn retry(&mut self, scan: &mut RetryScan, item: Deferred) {
        let (plane, discovery) = (&mut self.plane, &self.discovery);
        let (server, may_move) = (item.asked().server, item.may_go_to_new_primary());
        let new_primary_of = |plane: &DataPlane, server| match may_move {
            true => discovery.new_primary_of(plane, server),
            false => None,
        };
        let new_primary = new_primary_of(plane, server);
        let item = match self
            .redirects
            .settle_by_new_primary(plane, item, new_primary)
        {
            NewPrimaryAnswer::Missing(item) => item,
            NewPrimaryAnswer::Counts(entry, index, answer) => {
                return self.finish_share(entry, index, &answer);
            }
            NewPrimaryAnswer::Refused => return,
        };
        let new_primary = new_primary_of(plane, plane.owner_behind(server));
        let Some((link, item)) = self.redirects.choose_link(plane, scan, item, new_primary) else {
            return;
        };
        if item.names_scripts() {
            let session = item.entry().session;
            self.local.load_named(plane, link, session, item.request());
        }
        self.redirects.send(plane, link, item);
    }
}
