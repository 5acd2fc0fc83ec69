//! Flows of scattered requests: passes the decisions of `scatter` on to the other components.

use crate::base::handle::SessionId;
use crate::data_plane::ingress::{Dispatched, Request, scanned};
use crate::data_plane::key_prefix::Stripped;
use crate::data_plane::ledger::Entry;
use crate::engine::Engine;
use crate::scatter::{DividedOutcome, Finished, ReplyWork};

/// Requests for several servers.
impl Engine {
    /// Divides a request with keys of several servers: each owner gets the share with its
    /// keys.
    pub(crate) fn divide(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        match self.scatter.dispatch_divided(&mut self.plane, id, request) {
            DividedOutcome::Placed(dispatched) => dispatched,
            DividedOutcome::AtOwner => self.dispatch_stripped(id, request, false),
        }
    }

    /// Removes the prefix from a routed request, and dispatches it as its server shall see it.
    pub(crate) fn dispatch_stripped(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        server_refuses: bool,
    ) -> Dispatched {
        let is_in_multi = self.plane.is_in_multi(id);
        match self.plane.strip(id, request, is_in_multi) {
            Stripped::Same => self.dispatch_at_server(id, request, server_refuses),
            Stripped::Shorter(bytes) => scanned(&bytes, |spans| {
                let bytes = &bytes;
                let request = Request {
                    bytes,
                    spans,
                    ..*request
                };
                self.dispatch_at_server(id, &request, server_refuses)
            }),
            Stripped::Bare(bytes) => self.plane.dispatch_on_link(id, &bytes, false, None),
            Stripped::Refused(text) => self.plane.refuse_stripped(id, text),
        }
    }
}

/// Answers to shares.
impl Engine {
    /// Keeps a server's answer to its share, and delivers the whole reply after the last one.
    pub(crate) fn finish_share(&mut self, entry: Entry, index: u16, reply: &[u8]) {
        let scatter = &mut self.scatter;
        if let Some(finished) = scatter.handle_share_reply(&mut self.plane, entry, index, reply) {
            self.finish_scatter(finished);
        }
    }

    /// Completes the reply to a scattered request with facts of other components, and delivers it.
    pub(crate) fn finish_scatter(&mut self, mut finished: Finished) {
        let (plane, session) = (&mut self.plane, finished.entry.session);
        match finished.work {
            ReplyWork::None => {}
            ReplyWork::ShowInfo { adds_section } => {
                finished.reply = self.with_our_section(session, adds_section, &finished.reply);
            }
            ReplyWork::RecountShards => {
                finished.reply = self.pubsub.recount_shards(plane, session, &finished.reply);
            }
            ReplyWork::SettleSwitch => {
                self.pinned.settle_tracking(plane, session, &finished.reply);
            }
        }
        self.scatter.deliver(&mut self.plane, finished);
    }
}
