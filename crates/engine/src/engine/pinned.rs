//! Flows of requests with dedicated links: discovery, rights, scripts and the other workers take
//! part.

use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::completion::pinned::OtherServers;
use crate::data_plane::ingress::{Dispatched, Request};
use crate::data_plane::ledger::Entry;
use crate::engine::Engine;
use crate::pinned::tracking_redirect::{RedirectOutcome, RedirectedRequest};
use crate::pinned::wait_command::{RefusedWait, WaitAtAll};

/// Requests that may wait at the server.
impl Engine {
    /// Sends WAIT or WAITAOF to one server, or to all servers of a pool (`rest`) one after the
    /// other.
    pub(crate) fn dispatch_wait(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        rest: Option<Box<OtherServers>>,
    ) -> Dispatched {
        let (plane, local) = (&mut self.plane, &mut self.local);
        let refused_by_right = |plane: &mut _| local.refused_by_right(plane, id, request);
        self.pinned
            .dispatch_wait(plane, id, request, rest, refused_by_right)
    }

    /// A WAIT or WAITAOF goes on at the next server.
    pub(crate) fn wait_at_next(
        &mut self,
        link: LinkId,
        entry: Entry,
        rest: WaitAtAll,
        refused: Option<RefusedWait>,
    ) {
        let server = self.plane.links.get(link).map(|link| link.kind.server);
        if let (Some(server), Some(refused)) = (server, &refused) {
            match refused.redirects {
                Some(refusal) => {
                    self.follow_refusal((server, None), &refused.why, refusal);
                }
                None => self
                    .discovery
                    .request_refresh_after_loss(&mut self.plane, server),
            }
        }
        let plane = &mut self.plane;
        if let Some(next) = self.pinned.wait_at_next(plane, entry, rest, refused) {
            self.redirects
                .go_on_elsewhere(plane, link, entry, next.request, next.at);
        }
    }
}

/// CLIENT TRACKING and its like.
impl Engine {
    /// CLIENT TRACKING with REDIRECT to session `to`, which the argument at `at` names.
    pub(crate) fn track_for(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        at: usize,
        to: u64,
    ) -> Dispatched {
        let plane = &mut self.plane;
        let queued = self.transactions.redirects_queued(id, to);
        let queue = |plane: &mut _, switch, redirected: RedirectedRequest| {
            let (redirect, bytes) = (redirected.redirect, &redirected.bytes);
            self.transactions
                .queue_switch(plane, id, switch, redirect, bytes)
        };
        let target = (at, to);
        match self
            .pinned
            .track_for(plane, id, request, target, queued, queue)
        {
            RedirectOutcome::Dispatched(dispatched) => dispatched,
            RedirectOutcome::AsksWorkers(query, form) => {
                let own = self.admin.ask(plane, id, query, form, None);
                self.dispatch_own(own)
            }
        }
    }
}
