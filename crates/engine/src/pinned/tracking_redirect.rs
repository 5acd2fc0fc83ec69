//! CLIENT TRACKING with REDIRECT: the invalidations of one session go to another one.
//!
//! The server redirects to a connection, and the target session has none of its own. So respool
//! opens a link as its stand-in, on which it sends no requests. Pushes on this link go to the
//! target, which may be a session of another worker:
//!
//! ```text
//!   tracking session ── own link: CLIENT TRACKING ON REDIRECT 7 ──▶ server
//!                                                                     │ something has changed
//!   target session ◀── its worker ◀── stand-in, client 7 at the server ◀─┘
//! ```
//!
//! All sessions of a worker that redirect to the same target share its stand-in.

use std::sync::atomic::Ordering;

use respool_protocol::encode::{self, Version};

use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::REDIRECTS_QUEUED_MAX;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::pinned::{ConnectionSwitch, TrackingRedirect};
use crate::data_plane::ingress::{Blocked, Dispatched, Request, bound_reply, excess_reply};
use crate::data_plane::link::{Link, LinkKind, LinkRole, LinkState};
use crate::data_plane::session::{Pins, Session};
use crate::data_plane::session_state::Holds;
use crate::data_plane::tracking::TargetNews;
use crate::data_plane::worker_query::{ReplyForm, TargetQuery, WorkerQuery};
use crate::pinned::Pinned;

/// A CLIENT TRACKING with an argument that names the stand-in in place of the target.
pub(crate) struct RedirectedRequest {
    pub(crate) bytes: Vec<u8>,
    /// The target with its stand-in, if a worker has the target.
    pub(crate) redirect: Option<TrackingRedirect>,
}

/// The outcome of a CLIENT TRACKING with REDIRECT.
pub(crate) enum RedirectOutcome {
    Dispatched(Dispatched),
    /// All workers are to be asked for the target. The request goes on with their answer.
    AsksWorkers(WorkerQuery, ReplyForm),
}

impl Pinned {
    /// The answer of the workers to the search for a target, if it is not used yet.
    fn target_found(&self, plane: &DataPlane, id: SessionId, to: u64) -> Option<TargetNews> {
        let found = plane.sessions.get(id)?.rare.as_ref()?.target.found?;
        (found.to == to).then_some(found)
    }

    /// CLIENT TRACKING with REDIRECT to session `to`, which the argument at `at` names. `queued`:
    /// the redirects to it that the session's transaction has already. `queue`: queues the request
    /// of a session in MULTI.
    pub(crate) fn track_for(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        (at, to): (usize, u64),
        queued: usize,
        queue: impl FnOnce(&mut DataPlane, ConnectionSwitch, RedirectedRequest) -> Dispatched,
    ) -> RedirectOutcome {
        if plane.hold_until_caught_up(id) {
            return RedirectOutcome::Dispatched(Dispatched::Wait);
        }
        let Some(found) = self.target_found(plane, id, to) else {
            plane.hold(id, Holds::CATCH_UP);
            let request = request.keep();
            let form = ReplyForm::Target { to, request };
            let pool = plane.pool_of_session(id);
            let query = WorkerQuery::Target(TargetQuery::Find { to, pool });
            return RedirectOutcome::AsksWorkers(query, form);
        };
        let in_multi = plane.is_in_multi(id);
        if found.is_here && in_multi && queued >= REDIRECTS_QUEUED_MAX {
            let refused =
                Blocked::Refused(excess_reply("too many REDIRECT options in one transaction"));
            let dispatched = plane.blocked(id, refused);
            let dispatched = self.redirect_dispatched(plane, id, dispatched);
            return RedirectOutcome::Dispatched(dispatched);
        }
        let dispatched = match self.redirected_request(plane, id, (request, at), found, in_multi) {
            Ok(Some(redirected)) if in_multi => {
                queue(plane, ConnectionSwitch::of(request), redirected)
            }
            Ok(Some(redirected)) => {
                let switch = ConnectionSwitch::of(request);
                let (redirect, bytes) = (redirected.redirect, &redirected.bytes);
                self.dispatch_switch(plane, id, switch, redirect, bytes)
            }
            Ok(None) => {
                let text = b"ERR The client ID you want redirect to does not exist";
                plane.answer_error(id, text)
            }
            Err(blocked) => plane.blocked(id, blocked),
        };
        RedirectOutcome::Dispatched(self.redirect_dispatched(plane, id, dispatched))
    }

    /// Prepares a CLIENT TRACKING with REDIRECT, once the target is known. The argument at `at`
    /// names the target. `None`: there is no such target. In MULTI a request for no target is sent
    /// all the same, and the server refuses it.
    fn redirected_request(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        (request, at): (&Request<'_>, usize),
        found: TargetNews,
        in_multi: bool,
    ) -> Result<Option<RedirectedRequest>, Blocked> {
        if !found.is_here && !in_multi {
            return Ok(None);
        }
        if !in_multi {
            // The pinned link first. Both links count towards one bound: a session with one of them
            // does not wait for the other, since two sessions could wait for each other.
            plane.pin(id, Pins::ONCE)?;
        }
        let link = match found.is_here {
            true => Some(self.redirect_link(plane, id, found.to)?),
            false => None,
        };
        let stands_for_it = link.and_then(|link| plane.links.get(link));
        let client_id = stands_for_it.map_or(NO_CLIENT, |link| link.client_id);
        let redirect = stands_for_it
            .zip(link)
            .map(|(state, link)| TrackingRedirect {
                to: found.to,
                link,
                stand_in: state.stand_in.clone(),
            });
        let client_id = client_id.to_string();
        let mut args: Vec<&[u8]> = request.args().collect();
        args[at] = client_id.as_bytes();
        let mut bytes = Vec::new();
        encode::request(&mut bytes, &args);
        Ok(Some(RedirectedRequest { bytes, redirect }))
    }

    /// A CLIENT TRACKING with REDIRECT is dispatched. The target may have left before the next
    /// request names it.
    fn redirect_dispatched(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        dispatched: Dispatched,
    ) -> Dispatched {
        if dispatched == Dispatched::Done
            && let Some(session) = plane.sessions.get_mut(id)
        {
            session.rare().target.found = None;
            plane.unpin(id, Pins::ONCE);
        }
        dispatched
    }

    /// Handles a push on a stand-in. Returns the query to all workers if the target of the redirect
    /// is not at this one.
    pub(crate) fn take_redirected_push(
        &mut self,
        plane: &mut DataPlane,
        to: u64,
        push: &[u8],
    ) -> Option<WorkerQuery> {
        if self.targets.contains_key(&to) {
            self.push_to_target(plane, to, push);
            return None;
        }
        let push = push.to_vec();
        (plane.worker.count > 1).then_some(WorkerQuery::Target(TargetQuery::Push { to, push }))
    }

    /// The push that the redirect of a session is broken, with the id of the target. `None`: this
    /// is another push.
    pub(crate) fn broken_redirect(
        &self,
        plane: &DataPlane,
        by: SessionId,
        push: &[u8],
    ) -> Option<Vec<u8>> {
        let redirect = self.redirect_of(plane, by)?;
        push.starts_with(BROKEN).then(|| {
            let mut named = BROKEN.to_vec();
            encode::integer(&mut named, redirect.to as i64);
            named
        })
    }
}

/// The stand-in for the client that CLIENT TRACKING REDIRECT names was lost.
const LOST_REDIRECT: &[u8] = b"-NOTSENT respool: the command was not executed; \
    the connection that stood for the client to redirect to was lost\r\n";
/// No connection of a server has this id.
const NO_CLIENT: i64 = 0;
/// A stand-in without a byte for this long is checked with a PING.
const QUIET_MS: u32 = 1_000;
const INVALIDATE: &[u8] = b">2\r\n$10\r\ninvalidate\r\n";
const BROKEN: &[u8] = b">2\r\n$21\r\ntracking-redir-broken\r\n";
const LOST: &str = "the link for its invalidations was lost";

impl Pinned {
    /// The refusal of an EXEC with CLIENT TRACKING REDIRECT in it, if it cannot be executed now.
    /// `needs_none`: it needs no link of the session's own.
    pub(crate) fn refusal_of_redirects(
        &self,
        plane: &DataPlane,
        id: SessionId,
        redirects: &[TrackingRedirect],
        needs_none: bool,
    ) -> Option<Vec<u8>> {
        let session = plane.sessions.get(id)?;
        redirects.first()?;
        if redirects
            .iter()
            .any(|redirect| self.has_lost(plane, redirect))
        {
            return Some(LOST_REDIRECT.to_vec());
        }
        // A session that holds one of the bounded links must not wait for a second one: another
        // session may do the same, and both would wait.
        let full = !plane.may_have_own_link(id);
        (full && !needs_none && session.pins.is_empty()).then(|| bound_reply("pinned-links-max"))
    }

    fn redirect_of<'a>(&self, plane: &'a DataPlane, id: SessionId) -> Option<&'a TrackingRedirect> {
        plane
            .sessions
            .get(id)?
            .rare
            .as_ref()?
            .target
            .redirect
            .as_ref()
    }

    /// Whether the stand-in of a redirect was lost. Its client id may be another client's now.
    fn has_lost(&self, plane: &DataPlane, redirect: &TrackingRedirect) -> bool {
        !redirect.stand_in.has_left.load(Ordering::Relaxed)
            && plane.links.get(redirect.link).is_none()
    }

    /// The reply to CLIENT GETREDIR or TRACKINGINFO, with the id of the target in place of that of
    /// the stand-in.
    pub(crate) fn name_told(&self, plane: &DataPlane, id: SessionId, reply: &[u8]) -> Vec<u8> {
        const FIELD: &[u8] = b"$8\r\nredirect\r\n:";
        let field = || reply.windows(FIELD.len()).position(|field| field == FIELD);
        let at = match reply {
            [b':', ..] => Some(1),
            _ => field().map(|at| at + FIELD.len()),
        };
        let (Some(redirect), Some(at)) = (self.redirect_of(plane, id), at) else {
            return reply.to_vec();
        };
        let (front, behind) = reply.split_at(at);
        let digits = behind.iter().position(|byte| *byte == b'\r');
        let behind = &behind[digits.unwrap_or_default()..];
        [front, redirect.to.to_string().as_bytes(), behind].concat()
    }

    /// The stand-in of a target, once it is up.
    fn redirect_link(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        to: u64,
    ) -> Result<LinkId, Blocked> {
        let Some(session) = plane.sessions.get(id) else {
            return Err(Blocked::Wait);
        };
        let kind = LinkKind {
            version: Version::Resp3,
            db: 0,
            ..plane.kind_of(session)
        };
        let stands_for_it =
            |role, link_kind| role == LinkRole::Redirect { to } && link_kind == kind;
        let found = plane
            .links
            .iter()
            .find(|(_, link)| stands_for_it(link.role, link.kind))
            .map(|(link, _)| link);
        let link = match found {
            Some(link) => link,
            None => {
                let has_one = plane
                    .sessions
                    .get(id)
                    .is_some_and(|own| !own.pins.is_empty());
                if has_one && !plane.may_have_own_link(id) {
                    return Err(Blocked::Refused(bound_reply("pinned-links-max")));
                }
                plane.wait_for_room(id)?;
                let fresh = plane.add_link(kind, LinkRole::Redirect { to });
                let link = fresh.ok_or_else(|| Blocked::Refused(bound_reply("links-max")))?;
                plane.connect(link);
                link
            }
        };
        match plane.links.get(link).map(|link| &link.state) {
            Some(LinkState::Up) => Ok(link),
            Some(LinkState::Backoff { .. }) => {
                let away = plane.server_down_error(id);
                Err(Blocked::Refused(plane.no_link_reply(link, away)))
            }
            _ => {
                plane.wait_until_up(id, link).map_err(Blocked::Refused)?;
                Err(Blocked::Wait)
            }
        }
    }

    /// The server has agreed to a redirect, or to the end of it.
    pub(crate) fn set_redirect(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        redirect: Option<TrackingRedirect>,
    ) {
        let Some(session) = plane.sessions.get_mut(id) else {
            return;
        };
        if redirect.is_none() && session.rare.is_none() {
            return;
        }
        session.rare().target.redirect = redirect;
        let lost = |redirect: &TrackingRedirect| self.has_lost(plane, redirect);
        if self.redirect_of(plane, id).is_some_and(lost) {
            plane.close_for(id, String::from(LOST));
        }
    }

    /// Answers a query about a target. Returns whether this worker has the session that was asked
    /// for.
    pub(crate) fn handle_query(&mut self, plane: &mut DataPlane, query: TargetQuery) -> bool {
        match query {
            TargetQuery::Find { to, pool } => return self.become_target(plane, to, pool),
            TargetQuery::Push { to, push } => self.push_to_target(plane, to, &push),
            TargetQuery::Gone { to } => self.target_gone(plane, to),
        }
        false
    }

    /// Whether this worker has a session in this pool. If so, it is noted as a target.
    fn become_target(&mut self, plane: &mut DataPlane, to: u64, pool: u16) -> bool {
        let mut sessions = plane.sessions.iter();
        let found = sessions
            .find(|(_, session)| session.id == to && plane.known_pool(session.pool) == pool);
        let session_id = found.map(|(session_id, _)| session_id);
        self.targets
            .extend(session_id.map(|session_id| (to, session_id)));
        session_id.is_some()
    }

    /// Passes an invalidation on to the target, as Redis does (`sendTrackingMessage`): a push in
    /// RESP3, a message to a subscriber in RESP2, else nothing.
    fn push_to_target(&mut self, plane: &mut DataPlane, to: u64, push: &[u8]) {
        let Some(&id) = self.targets.get(&to) else {
            return;
        };
        let Some(session) = plane.sessions.get(id) else {
            return;
        };
        if session.version == Version::Resp3 {
            return plane.push_to(id, push);
        }
        let Some(what) = push.strip_prefix(INVALIDATE).filter(|_| session.listens()) else {
            return;
        };
        let mut message = Vec::new();
        encode::array(&mut message, 3);
        encode::bulk(&mut message, b"message");
        encode::bulk(&mut message, b"__redis__:invalidate");
        match what {
            b"_\r\n" => encode::null_array(&mut message, Version::Resp2),
            keys => message.extend_from_slice(keys),
        }
        plane.push_to(id, &message);
    }

    fn target_gone(&mut self, plane: &mut DataPlane, to: u64) {
        let links = plane.links.iter();
        let stand_for_it = links.filter(|(_, link)| link.role == LinkRole::Redirect { to });
        for id in stand_for_it.map(|(id, _)| id).collect::<Vec<_>>() {
            if let Some(link) = plane.links.get(id) {
                link.stand_in.has_left.store(true, Ordering::Relaxed);
            }
            plane.close_link(id);
        }
        for id in plane.sessions.ids() {
            let rare = plane
                .sessions
                .get_mut(id)
                .and_then(|session| session.rare.as_mut());
            if let Some(rare) = rare {
                rare.target.found.take_if(|found| found.to == to);
            }
        }
    }

    /// Sends PING on a quiet stand-in. It carries no requests, so the loss of its server would go
    /// unnoticed, and a server that closes idle clients would close it.
    pub(super) fn tick_redirect(&mut self, plane: &mut DataPlane, id: LinkId) {
        let patience_ms = (plane.settings.timeouts.link_stall_ms / 2).min(QUIET_MS);
        let quiet = |link: &Link| link.is_quiet(plane.now, patience_ms);
        if plane.links.get(id).is_some_and(quiet) {
            let mut request = Vec::new();
            encode::request(&mut request, &["PING"]);
            plane.put_ours(id, &request, Completion::Pass);
        }
    }

    /// A stand-in is lost, and invalidations may be lost with it: closes the sessions that redirect
    /// to it.
    pub(super) fn lose_redirect(&mut self, plane: &mut DataPlane, link: LinkId) {
        let redirects = |session: &Session| {
            let redirect = session
                .rare
                .as_ref()
                .and_then(|rare| rare.target.redirect.as_ref());
            redirect.is_some_and(|redirect| redirect.link == link)
        };
        let sessions = plane
            .sessions
            .iter()
            .filter(|(_, session)| redirects(session));
        for id in sessions.map(|(id, _)| id).collect::<Vec<_>>() {
            plane.close_for(id, String::from(LOST));
        }
    }
}
