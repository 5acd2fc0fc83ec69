//! Dedicated links: passes their requests on to discovery, scatter, scripts and the other workers.

use respool_protocol::commands::{self, Names};
use respool_protocol::request::{RequestScanner, Span};

use crate::base::error_text::unknown_command;
use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::REDIRECTS_QUEUED_MAX;
use crate::data_plane::bounds_met::Bound;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::local::LocalCompletion;
use crate::data_plane::completion::pinned::{
    ConnectionSwitch, ExecPreamble, OtherServers, TrackingRedirect, WaitCommand, redirect_asked,
};
use crate::data_plane::ingress::{Blocked, Dispatched, Request, bound_reply};
use crate::data_plane::ledger::Entry;
use crate::data_plane::owners::Opening;
use crate::data_plane::scripts::{awaits_body, body_shown};
use crate::data_plane::sent_request::runs_code;
use crate::data_plane::session::{Pins, Session, TargetNews};
use crate::data_plane::session_state::Holds;
use crate::data_plane::tracking::{INVALIDATE, TrackingSwitch, asks_for};
use crate::data_plane::worker_query::{ReplyForm, TargetQuery, WorkerQuery};
use crate::engine::Engine;
use crate::pinned::polling::OPENING;
use crate::pinned::streaming::LargeStart;
use crate::pinned::wait_command::{NextWait, WaitStep};
use crate::routing::pool::ServerId;

/// Requests that get a link of their own.
impl Engine {
    /// Sends one request on a pinned link, because it may wait at the server (`waits`) or must not
    /// wait behind others. It leaves no state behind but that of `pins`.
    pub(crate) fn dispatch_alone(
        &mut self,
        id: SessionId,
        bytes: &[u8],
        (reads, completion): (bool, Option<Completion>),
        pins: Pins,
        waits: bool,
    ) -> Dispatched {
        if let Err(blocked) = self.plane.pin(id, pins) {
            return self.plane.blocked(id, blocked);
        }
        let placed = self.plane.dispatch_on_link(id, bytes, reads, completion);
        if placed == Dispatched::Done {
            self.plane.unpin_behind(id, pins, waits);
        }
        placed
    }

    /// Places a command that stops the scripts of other sessions, or the server: SCRIPT KILL and
    /// its like.
    pub(crate) fn dispatch_urgent(
        &mut self,
        id: SessionId,
        bytes: &[u8],
        (reads, completion): (bool, Option<Completion>),
    ) -> Dispatched {
        match self.pinned.link_for_urgent(&mut self.plane, id) {
            Ok(None) => self.dispatch_alone(id, bytes, (reads, completion), Pins::ONCE, false),
            Ok(Some(link)) => {
                self.pinned
                    .put_urgent(&mut self.plane, (id, link), bytes, completion)
            }
            Err(blocked) => self.plane.blocked(id, blocked),
        }
    }

    /// Sends a request that may wait at the server on a pinned link, or polls for it.
    pub(crate) fn dispatch_blocking(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        completion: (bool, Option<Completion>),
    ) -> Dispatched {
        if let Some(placed) = self.dispatch_poll(id, request) {
            return placed;
        }
        let was_waiting = self.plane.deadline_of(id).is_some();
        let placed = self.dispatch_alone(id, request.bytes, completion, Pins::ONCE, true);
        self.pinned
            .note_wait(&mut self.plane, id, request, (was_waiting, placed));
        placed
    }

    /// Polls for a blocking command if no pinned link is free. `None`: the command is not polled,
    /// and waits for a link.
    fn dispatch_poll(&mut self, id: SessionId, request: &Request<'_>) -> Option<Dispatched> {
        if !self.pinned.may_poll(&self.plane, id, request) {
            return None;
        }
        if self.plane.hold_until_caught_up(id) {
            return Some(Dispatched::Wait);
        }
        self.plane.note_bound(Bound::PinnedLinks);
        if !self.local.know_opening(&mut self.plane, id, OPENING) {
            self.plane.begin_to_wait(id);
            return Some(Dispatched::Wait);
        }
        if self.local.refusal_to_open(&self.plane, id).is_some() {
            return None;
        }
        self.pinned.begin_to_poll(&mut self.plane, id, request);
        Some(Dispatched::Done)
    }

    /// Handles the reply to a poll.
    pub(crate) fn settle_poll(&mut self, entry: Entry, before: ExecPreamble, reply: &[u8]) {
        let redirecting = self
            .pinned
            .settle_poll(&mut self.plane, entry, before, reply);
        if let Some(server) = redirecting {
            self.discovery.request_refresh(&mut self.plane, server);
        }
    }
}

/// WAIT and WAITAOF.
impl Engine {
    /// Sends WAIT or WAITAOF to one server, or to all servers of a pool (`rest`) one after the
    /// other.
    pub(crate) fn dispatch_wait(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        rest: Option<Box<OtherServers>>,
    ) -> Dispatched {
        let was_waiting = self.plane.deadline_of(id).is_some();
        let placed = self.place_wait(id, request, rest);
        self.pinned
            .note_wait(&mut self.plane, id, request, (was_waiting, placed));
        placed
    }

    /// Sends WAIT or WAITAOF to all servers of the pool.
    pub(crate) fn dispatch_wait_at_all(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        let Some(session) = self.plane.sessions.get(id) else {
            return Dispatched::Done;
        };
        let first = self.plane.pools[usize::from(session.pool)].servers()[0];
        let rest = OtherServers::of(request, self.plane.now);
        self.plane.switch_server(id, first);
        self.dispatch_wait(id, request, rest)
    }

    fn place_wait(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        rest: Option<Box<OtherServers>>,
    ) -> Dispatched {
        let Some(session) = self.plane.sessions.get(id) else {
            return Dispatched::Done;
        };
        let (kind, is_others) = self.pinned.kind_to_wait(&self.plane, session);
        // A user without the right to WAIT is refused on another user's link, too.
        if is_others && let Some(placed) = self.local.refused_by_right(&mut self.plane, id, request)
        {
            return placed;
        }
        let begun = self
            .pinned
            .begin_wait(&mut self.plane, id, kind, (request, rest));
        match begun {
            Ok((bytes, completion)) => {
                self.dispatch_alone(id, &bytes, (false, Some(completion)), Pins::ONCE, true)
            }
            Err(blocked) => self.plane.blocked(id, blocked),
        }
    }

    /// Handles the reply of a server to WAIT or WAITAOF.
    pub(crate) fn settle_wait(
        &mut self,
        link: LinkId,
        entry: Entry,
        waiting: WaitCommand,
        reply: &[u8],
    ) {
        let (rest, refused) = match self.pinned.settle_wait(&self.plane, link, waiting, reply) {
            WaitStep::Reply(reply) => return self.plane.pass_on(entry, &reply),
            WaitStep::Nothing => return,
            WaitStep::Next { rest, refused } => (rest, refused),
        };
        let server = self.plane.links.get(link).map(|link| link.kind.server);
        if let (Some(server), Some((why, redirect))) = (server, &refused) {
            match *redirect {
                Some(refusal) => {
                    self.follow_redirect(server, None, why, refusal);
                }
                None => self
                    .discovery
                    .request_refresh_after_loss(&mut self.plane, server),
            }
        }
        let refused = refused.as_ref().map(|(why, _)| why.as_slice());
        let next = self
            .pinned
            .wait_at_next(&mut self.plane, entry.session, rest, refused);
        match next {
            Some(NextWait::Reply(reply)) => self.plane.pass_on(entry, &reply),
            Some(NextWait::Ask(request, to)) => self.go_on_alone(link, entry, request, to),
            None => {}
        }
    }
}

/// Large requests, and tunnels.
impl Engine {
    /// A request that begins with `rest` is too large to hold: checks it, and begins to stream or
    /// to swallow it. Returns how many bytes of `rest` are used, or `None` if the request waits.
    pub(crate) fn begin_large(
        &mut self,
        session_id: SessionId,
        scanner: &RequestScanner,
        rest: &[u8],
    ) -> Option<usize> {
        let args: Vec<&[u8]> = scanner.spans().iter().map(|span| span.of(rest)).collect();
        let arg = |index: usize| args.get(index).copied().unwrap_or_default();
        let (id, argc) = (commands::resolve(scanner.argc(), arg), scanner.argc());
        if awaits_body(id, &args, scanner.len_at_least())
            || self.plane.hold_until_caught_up(session_id)
        {
            return None;
        }
        let identified = self
            .local
            .identify(&mut self.plane, session_id, &args, argc);
        let opening = match identified {
            Ok(opening) => opening,
            Err(Dispatched::Wait) => return None,
            Err(Dispatched::Done) => {
                self.pinned.swallow(&mut self.plane, session_id, scanner);
                return Some(scanner.scanned());
            }
        };
        let head = &rest[..scanner.scanned()];
        let checked = self.check_large(session_id, opening, (argc, scanner.spans()), head);
        if checked.is_ok() && self.plane.is_paused_large(session_id, &args, argc) {
            self.plane.hold_for_pause(session_id);
            return None;
        }
        let (link, stripped) = match checked {
            Ok(stripped) => (self.place_large(session_id)?, stripped),
            Err(text) => {
                self.plane.counters.requests += 1;
                self.plane.refuse_queued(session_id, &text);
                (None, None)
            }
        };
        let completion = match runs_code(id) {
            true => Some(Completion::Local(LocalCompletion::Code {
                shown: id.and_then(|id| body_shown(id, &args)),
            })),
            false => id.and_then(|id| {
                let counted = self.pubsub.count_duty(&self.plane, session_id, id, arg(1));
                let counted = counted.map(Completion::Pubsub);
                counted.or_else(|| self.plane.naming_duty(session_id, id.get()))
            }),
        };
        let large = LargeStart {
            link,
            sent: stripped.as_deref().unwrap_or(head),
            completion,
            taints: matches!(opening, Opening::Learned { alone: true, .. }),
        };
        self.pinned
            .begin_large(&mut self.plane, session_id, scanner, large);
        Some(scanner.scanned())
    }

    /// Checks a large request by the arguments that have come, and switches to its server. Returns
    /// the bytes without prefixes, if respool removes them, or the error.
    fn check_large(
        &mut self,
        id: SessionId,
        opening: Opening,
        (argc, spans): (usize, &[Span]),
        head: &[u8],
    ) -> Result<Option<Vec<u8>>, Vec<u8>> {
        let args: Vec<&[u8]> = spans.iter().map(|span| span.of(head)).collect();
        let row = match opening {
            Opening::Row(row) => Some(row),
            Opening::Learned { .. } => None,
            Opening::Nothing => {
                return Err(unknown_command(&args, self.plane.is_before_7(id)));
            }
        };
        self.pinned
            .check_large(&mut self.plane, id, &args, argc, row)?;
        let queued = self.plane.queued_group(id);
        let switched = self.plane.switch_large(id, opening, &args, argc, queued);
        switched.map_err(<[u8]>::to_vec)?;
        self.plane.strip_large(id, opening, (argc, spans), head)
    }

    /// The link for a large request. `Some(None)`: it was refused. `None`: it waits.
    fn place_large(&mut self, id: SessionId) -> Option<Option<LinkId>> {
        let link = match self.streaming_link(id) {
            Ok(link) => {
                self.plane.counters.streamed_requests += 1;
                Some(link)
            }
            Err(Blocked::Wait) => return None,
            Err(Blocked::Refused(reply)) => {
                self.plane.counters.failed_not_sent += 1;
                self.plane.answer_reply(id, &reply);
                None
            }
        };
        self.plane.counters.requests += 1;
        Some(link)
    }

    /// The link for one large request of this session.
    fn streaming_link(&mut self, id: SessionId) -> Result<LinkId, Blocked> {
        if self.plane.tracks_several(id) {
            self.plane.attach_tracking(id)?;
            self.plane.lack_caching(id);
        }
        let is_pinned = |session: &Session| !session.pins.is_empty();
        if self.plane.sessions.get(id).is_some_and(is_pinned) {
            if self.plane.wait_for_own_link(id) {
                return Err(Blocked::Wait);
            }
            // A pinned session uses its pinned link, which holds its state at the server.
            return self.plane.usable_link(id);
        }
        self.pinned.streaming_link(&mut self.plane, id)
    }

    /// Handles the server's bytes in a tunnel.
    pub(crate) fn take_tunnel_bytes(&mut self, link: LinkId, bytes: &[u8]) {
        let reset = self.pinned.take_tunnel_bytes(&mut self.plane, link, bytes);
        if let Some(session) = reset {
            self.reset(session);
        }
    }
}

/// CLIENT TRACKING and its like.
impl Engine {
    /// CLIENT TRACKING, NO-TOUCH, IMPORT-SOURCE. While one is on, the session keeps a pinned link.
    pub(crate) fn switch(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        // The replies to earlier requests tell whether it is on.
        if self.plane.hold_until_caught_up(id) {
            return Dispatched::Wait;
        }
        self.dispatch_switch(id, ConnectionSwitch::of(request), None, request.bytes)
    }

    /// Sends such a request. `bytes`: the request as the server gets it.
    fn dispatch_switch(
        &mut self,
        id: SessionId,
        switch: ConnectionSwitch,
        redirect: Option<TrackingRedirect>,
        bytes: &[u8],
    ) -> Dispatched {
        let begun = self
            .pinned
            .begin_switch(&mut self.plane, id, switch, redirect);
        match begun {
            Ok(completion) => self
                .plane
                .dispatch_on_link(id, bytes, false, Some(completion)),
            Err(blocked) => self.plane.blocked(id, blocked),
        }
    }

    pub(crate) fn client_tracking(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        match redirect_asked(request) {
            Some((at, to)) => self.track_for(id, request, at, to),
            None => self.switch(id, request),
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
        if self.plane.hold_until_caught_up(id) {
            return Dispatched::Wait;
        }
        let Some(found) = self.pinned.target_found(&self.plane, id, to) else {
            // All workers are asked for the session. The request goes on with their answer.
            self.plane.hold(id, Holds::DRAIN);
            let request = request.keep();
            let form = ReplyForm::Target { to, request };
            let pool = self.plane.pool_of_session(id);
            return self.ask(
                id,
                WorkerQuery::Target(TargetQuery::Find { to, pool }),
                form,
            );
        };
        let placed = self.dispatch_redirected(id, request, at, found);
        if placed == Dispatched::Done {
            self.pinned.end_redirected_request(&mut self.plane, id);
        }
        placed
    }

    fn dispatch_redirected(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        at: usize,
        found: TargetNews,
    ) -> Dispatched {
        let in_multi = self.plane.is_in_multi(id);
        if found.is_here
            && in_multi
            && self.transactions.redirects_queued(id, found.to) >= REDIRECTS_QUEUED_MAX
        {
            let refused = Blocked::Refused(bound_reply("REDIRECTS_QUEUED_MAX"));
            return self.plane.blocked(id, refused);
        }
        let redirected =
            self.pinned
                .redirected_request(&mut self.plane, id, (request, at), found, in_multi);
        let redirected = match redirected {
            Ok(Some(redirected)) => redirected,
            Ok(None) => {
                let text = b"ERR The client ID you want redirect to does not exist";
                return self.plane.answer_error(id, text);
            }
            Err(blocked) => return self.plane.blocked(id, blocked),
        };
        let switch = ConnectionSwitch::of(request);
        let (redirect, bytes) = (redirected.redirect, &redirected.bytes);
        match in_multi {
            true => {
                let plane = &mut self.plane;
                self.transactions
                    .queue_switch(plane, id, switch, redirect, bytes)
            }
            false => self.dispatch_switch(id, switch, redirect, bytes),
        }
    }

    /// Handles a push on a stand-in.
    pub(crate) fn redirected(&mut self, to: u64, push: &[u8]) {
        if self.pinned.targets.contains_key(&to) {
            self.pinned.tell_target(&mut self.plane, to, push);
        } else if self.plane.worker.count > 1 {
            let push = push.to_vec();
            self.tell_all(WorkerQuery::Target(TargetQuery::Tell { to, push }));
        }
    }

    /// Handles a push on a pinned link.
    pub(crate) fn take_own_push(&mut self, link: LinkId, by: SessionId, push: &[u8]) {
        let keys = self.pinned.keys_invalidated(&self.plane, link, by, push);
        let named = keys.map(|keys| {
            let names = Names::Each;
            let named = self.plane.named_by(link, names, None, keys);
            [INVALIDATE, &named].concat()
        });
        let push = named.as_deref().unwrap_or(push);
        let end_of_parts = self.plane.end_of_parts(by);
        self.pinned
            .take_own_push(&mut self.plane, link, (by, end_of_parts), push);
    }
}

/// CLIENT TRACKING in a pool of several servers.
impl Engine {
    /// CLIENT TRACKING ON in a pool of several known servers.
    pub(crate) fn track_at_several(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        if let Some(placed) = self.pinned.ask_to_track(&mut self.plane, id, request) {
            return placed;
        }
        let asked = TrackingSwitch::Tracking(request.bytes.to_vec());
        let broadcasts = asks_for(request.args(), b"BCAST");
        self.ask_to_agree(id, request, broadcasts, asked)
    }

    /// CLIENT NO-TOUCH ON or CLIENT IMPORT-SOURCE ON in a pool of several servers. From then on the
    /// session has a pinned link to each server that it asks, as a session that tracks.
    pub(crate) fn switch_at_several(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        if self.plane.hold_until_caught_up(id) {
            return Dispatched::Wait;
        }
        self.pinned.begin_to_spread(&mut self.plane, id);
        let asked = TrackingSwitch::Switch(ConnectionSwitch::of(request).pins);
        self.ask_to_agree(id, request, false, asked)
    }

    /// Asks servers whether they agree, each on the session's link to it.
    fn ask_to_agree(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        broadcasts: bool,
        asked: TrackingSwitch,
    ) -> Dispatched {
        let deciding = self.server_that_decides(id);
        let servers = self
            .pinned
            .servers_to_track(&self.plane, id, broadcasts, deciding);
        for server in &servers {
            match self.plane.tracking_link(id, *server) {
                Ok(_) => {}
                Err(Blocked::Wait) => return Dispatched::Wait,
                Err(Blocked::Refused(reply)) => {
                    self.pinned.settle_tracking(&mut self.plane, id, &reply);
                    return self.plane.answer_reply(id, &reply);
                }
            }
        }
        self.pinned.note_asked(&mut self.plane, id, asked);
        let placed = self
            .scatter
            .ask_these(&mut self.plane, id, request, &servers);
        if placed == Dispatched::Done && !self.plane.hold_until_caught_up(id) {
            // respool refused the request itself.
            self.pinned.settle_tracking(&mut self.plane, id, b"");
        }
        placed
    }

    /// The server that decides on the rights of a session that has no link of its own: its server,
    /// or another one if that cannot be reached.
    fn server_that_decides(&self, id: SessionId) -> ServerId {
        match self.plane.sessions.get(id) {
            Some(session) if self.plane.is_reachable(session.server) => session.server,
            Some(session) => self.plane.first_up(usize::from(session.pool)),
            None => ServerId(0),
        }
    }
}
