//! Flows of requests with dedicated links: discovery, rights, scripts and the other workers take
//! part.

use respool_protocol::commands;
use respool_protocol::request::RequestScanner;

use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::pinned::{OtherServers, redirect_asked};
use crate::data_plane::ingress::{Dispatched, Request};
use crate::data_plane::ledger::Entry;
use crate::data_plane::scripts::awaits_body;
use crate::engine::Engine;
use crate::pinned::polling::{BlockingStep, OPENING};
use crate::pinned::tracking_redirect::RedirectStep;
use crate::pinned::wait_command::{RefusedWait, WaitAtAll};
use crate::routing::pool::ServerId;

/// Requests that may wait at the server.
impl Engine {
    /// Sends a request that may wait at the server on a pinned link, or polls for it.
    pub(crate) fn dispatch_blocking(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        completion: (bool, Option<Completion>),
    ) -> Dispatched {
        let plane = &mut self.plane;
        match self.pinned.blocking_step(plane, id, request) {
            BlockingStep::OwnLink => {}
            BlockingStep::Wait => return Dispatched::Wait,
            BlockingStep::Poll if !self.local.know_opening(plane, id, OPENING) => {
                plane.begin_to_wait(id);
                return Dispatched::Wait;
            }
            BlockingStep::Poll if self.local.refusal_to_open(plane, id).is_some() => {}
            BlockingStep::Poll => {
                self.pinned.begin_to_poll(plane, id, request);
                return Dispatched::Done;
            }
        }
        self.pinned
            .dispatch_blocking(plane, id, request, completion)
    }

    /// Sends WAIT or WAITAOF to one server, or to all servers of a pool (`rest`) one after the
    /// other.
    pub(crate) fn dispatch_wait(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        rest: Option<Box<OtherServers>>,
    ) -> Dispatched {
        let plane = &mut self.plane;
        let was_waiting = plane.deadline_of(id).is_some();
        // A user without the right to WAIT is refused on another user's link, too.
        let refused = match self.pinned.waits_as_another(plane, id) {
            true => self.local.refused_by_right(plane, id, request),
            false => None,
        };
        let dispatched = match refused {
            Some(dispatched) => dispatched,
            None => self.pinned.dispatch_wait(plane, id, request, rest),
        };
        self.pinned
            .note_wait(plane, id, request, (was_waiting, dispatched));
        dispatched
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

    /// A request that begins with `rest` is too large to hold: begins to stream or to swallow it.
    /// Returns how many bytes of `rest` are used, or `None` if the request waits.
    pub(crate) fn begin_large(
        &mut self,
        id: SessionId,
        scanner: &RequestScanner,
        rest: &[u8],
    ) -> Option<usize> {
        let args: Vec<&[u8]> = scanner.spans().iter().map(|span| span.of(rest)).collect();
        let arg = |index: usize| args.get(index).copied().unwrap_or_default();
        let (command, argc) = (commands::resolve(scanner.argc(), arg), scanner.argc());
        let plane = &mut self.plane;
        if awaits_body(command, &args, scanner.len_at_least()) || plane.hold_until_caught_up(id) {
            return None;
        }
        let opening = match self.local.identify(plane, id, &args, argc) {
            Ok(opening) => opening,
            Err(Dispatched::Wait) => return None,
            Err(Dispatched::Done) => {
                self.pinned.swallow(plane, id, scanner);
                return Some(scanner.scanned());
            }
        };
        let counted =
            command.and_then(|command| self.pubsub.count_completion(plane, id, command, arg(1)));
        let counted = counted.map(Completion::Pubsub);
        self.pinned
            .begin_large(plane, id, (scanner, rest), opening, counted)
    }
}

/// CLIENT TRACKING and its like.
impl Engine {
    /// CLIENT TRACKING of a session at one server.
    pub(crate) fn client_tracking(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        match redirect_asked(request) {
            Some((at, to)) => self.track_for(id, request, at, to),
            None => self.pinned.switch(&mut self.plane, id, request),
        }
    }

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
        match self.pinned.track_for(plane, id, request, (at, to), queued) {
            RedirectStep::Placed(dispatched) => dispatched,
            RedirectStep::AskWorkers(query, form) => self.ask(id, query, form),
            RedirectStep::Queue(switch, redirected) => {
                let (redirect, bytes) = (redirected.redirect, &redirected.bytes);
                let dispatched = self
                    .transactions
                    .queue_switch(plane, id, switch, redirect, bytes);
                self.pinned.redirect_dispatched(plane, id, dispatched)
            }
        }
    }

    /// Asks these servers whether they agree, each on the session's link to it. `Err`: the request
    /// was refused, or waits.
    pub(crate) fn ask_to_agree(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        servers: Result<Vec<ServerId>, Dispatched>,
    ) -> Dispatched {
        let servers = match servers {
            Ok(servers) => servers,
            Err(dispatched) => return dispatched,
        };
        let plane = &mut self.plane;
        let dispatched = self.scatter.ask_these(plane, id, request, &servers);
        self.pinned.asked_to_agree(plane, id, dispatched)
    }
}
