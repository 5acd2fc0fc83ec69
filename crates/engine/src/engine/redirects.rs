//! Flows of refused requests: discovery says where they go, and redirects send them again.

use respool_protocol::cluster::Refusal;

use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::completion::redirect::ProofKind;
use crate::engine::Engine;
use crate::redirect::deferred::{Judgement, RetryOutcome};
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
        self.discovery.note_readonly(&mut self.plane, id, reply);
        false
    }

    /// Handles the error reply in front of a link to a server that may redirect. Returns whether
    /// the request has left the link: it was deferred or answered.
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
        let at = (refused.server, refused.slot);
        match self.follow_refusal(at, refused.error(), refused.refusal) {
            Some(next) => self.redirects.take_off(&mut self.plane, &refused, next),
            None if refused.is_block => {
                // The client gets this refusal. The error of EXEC says less.
                self.plane.answer_front(id, refused.front, &refused.reply);
            }
            None => return false,
        }
        true
    }

    /// Updates the topology from a refusal, and returns the server that gets the request next. See
    /// [`crate::discovery::Discovery::follow_refusal`].
    pub(crate) fn follow_refusal(
        &mut self,
        at: (ServerId, Option<u16>),
        error: &[u8],
        refusal: Refusal,
    ) -> Option<NextServer> {
        // Of all refusals, only a redirect may name a new node.
        self.with_servers_in_use(|discovery, plane, in_use| {
            discovery.follow_refusal(plane, at, error, refusal, in_use)
        })
    }

    /// Decides about an unproven request after the server's answer to the second question.
    pub(crate) fn settle_proof(
        &mut self,
        id: LinkId,
        place: (SessionId, u32),
        proof: ProofKind,
        reply: &[u8],
    ) {
        let plane = &mut self.plane;
        let send_script = |plane: &mut _, entry, request: &_| {
            self.local.send_script_along(plane, id, entry, request)
        };
        let refused = self
            .redirects
            .settle_proof(plane, (id, place), proof, reply, send_script);
        let Some((item, twin)) = refused else {
            return;
        };
        let at = (item.sent_on().server, item.slot());
        let error = reply.strip_prefix(b"-").unwrap_or_default();
        match self.follow_refusal(at, error, twin) {
            Some(next) => self.redirects.keep_proven(&mut self.plane, item, next),
            None => self.plane.deliver_held_back(item.entry(), reply),
        }
    }
}

/// Deferred requests that are sent again.
impl Engine {
    /// Sends deferred requests again if they may be sent.
    pub(crate) fn retry_deferred(&mut self) {
        for id in self.redirects.poll_new_sessions() {
            self.retry_deferred_of(id);
        }
        for id in self.redirects.begin_sweep(&self.plane) {
            self.retry_deferred_of(id);
        }
        self.redirects.end_sweep(&self.plane);
    }

    /// Sends the deferred requests of a session again, or ends them, as far as that is due.
    fn retry_deferred_of(&mut self, id: SessionId) {
        if let Some(mut scan) = self.redirects.begin_scan(&mut self.plane, id) {
            while let Some(next) = scan.next(&self.plane) {
                match next {
                    RetryOutcome::End(item) => self.redirects.end_retries(&mut self.plane, item),
                    RetryOutcome::Send(item) => {
                        let (plane, discovery) = (&mut self.plane, &self.discovery);
                        let share = self.redirects.retry(
                            plane,
                            &mut scan,
                            item,
                            |plane, server| discovery.new_primary_of(plane, server),
                            |plane, link, item| {
                                let session = item.entry().session;
                                self.local.load_named(plane, link, session, item.request());
                            },
                        );
                        if let Some((entry, index, answer)) = share {
                            self.finish_share(entry, index, &answer);
                        }
                    }
                }
            }
            self.redirects.end_scan(&mut self.plane, scan);
        }
        self.redirects.list_again(&self.plane, id);
    }
}
