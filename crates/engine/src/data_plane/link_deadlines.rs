//! The deadlines of links: attempts to connect, silence, and requests that are past their deadline.
//!
//! A tick calls [`DataPlane::check_link`] for each link first. If the link is up, or tries, the
//! requests on it are checked next.

use std::sync::Arc;

use crate::base::error::{Fate, refuses_login};
use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::base::limits::LINK_UNUSED_MS;
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::ledger::Entry;
use crate::data_plane::link::Tunnel;
use crate::data_plane::link::{Link, LinkRole, LinkState, Sends, Streaming};
use crate::data_plane::session::{Flags, Session};
use crate::data_plane::session_state::Holds;
use crate::routing::pool::ServerId;

/// The result of a tick's first look at a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkCheck {
    /// The requests of the link are checked next.
    GoesOn,
    /// The link waits for its next attempt with its requests.
    Retries,
    /// The link rests, is lost, or is removed: nothing more to check.
    Ends,
}

/// Requests of a link that are past their deadline.
#[derive(Debug, Default)]
struct TimedOutRequests {
    /// Requests that were not sent. They have left the link.
    unsent: Vec<Entry>,
    /// Requests that were sent. The link recognises their late replies.
    sent: Vec<Entry>,
    /// On another link, the next request of a session might overtake a write that has timed out.
    /// Such sessions send none.
    ends_writers: bool,
    /// The reason to close the link.
    loses_link: Option<&'static str>,
}

impl DataPlane {
    /// Whether an attempt to connect is under way.
    pub(crate) fn is_connecting(&self, id: LinkId) -> bool {
        let link = self.links.get(id);
        link.is_some_and(|link| matches!(link.state, LinkState::Connecting { .. }))
    }

    /// Checks the connection of a link. It is connected or removed if it is time, and lost if it is
    /// silent for too long. `why_unknown`: the reason if the address of a server is unknown.
    pub(crate) fn check_link(
        &mut self,
        id: LinkId,
        why_unknown: impl FnOnce(&DataPlane, ServerId) -> Option<String>,
    ) -> LinkCheck {
        let timeouts = &self.settings.timeouts;
        let now = self.now;
        let Some(link) = self.links.get(id) else {
            return LinkCheck::Ends;
        };
        match link.state {
            // A server that executes a long request answers no handshake, though it is alive. A
            // link for one request, or a successor, waits longer than `connect_ms` for the replies.
            LinkState::Handshaking { .. }
                if (link.role.serves_one_request() && timeouts.request_ms > 0
                    || self.is_successor(id, link))
                    && self.is_reachable(link.kind.server) => {}
            LinkState::Connecting { since } | LinkState::Handshaking { since, .. }
                if is_over(now, since, timeouts.connect_ms) =>
            {
                let (server, limit_ms) = (link.kind.server, timeouts.connect_ms);
                let no_answer = || self.why_no_answer(server, limit_ms);
                let reason = why_unknown(self, server).unwrap_or_else(no_answer);
                self.lose_link(id, &reason);
                return LinkCheck::Ends;
            }
            LinkState::Backoff { .. } if self.is_refused_link_unused(link) => {
                self.remove_link(id);
                return LinkCheck::Ends;
            }
            // A password that the server has refused is tried again when a client sends it.
            LinkState::Backoff { .. }
                if link.kind.user != CONFIGURED
                    && link.handshake_error.as_deref().is_some_and(refuses_login) =>
            {
                return LinkCheck::Ends;
            }
            LinkState::Retrying { .. } => return LinkCheck::Retries,
            LinkState::Backoff { until } if now >= until => {
                if !self.must_rest(id, link.kind.server) {
                    self.connect(id);
                }
                return LinkCheck::Ends;
            }
            LinkState::Up if self.is_stalled(id, link) => {
                let reason = format!("it sent nothing for {} ms", timeouts.link_stall_ms);
                self.lose_link(id, &reason);
                return LinkCheck::Ends;
            }
            _ => {}
        }
        LinkCheck::GoesOn
    }

    /// Whether no session uses a link in back-off, which may be for a database that does not exist.
    /// The client has got its error.
    fn is_refused_link_unused(&self, link: &Link) -> bool {
        link.attached == 0
            && Arc::strong_count(&link.stand_in) == 1
            && !matches!(link.role, LinkRole::HubLine(_) | LinkRole::Sentinel)
            && (link.kind != self.default_kind(link.kind.server) || self.is_link_gone(link))
            // A session that has switched to another server comes back, and must not wait for the
            // same attempts again.
            && (!self.is_routed_to(link.kind.server)
                || is_over(self.now, link.unused_since, LINK_UNUSED_MS))
    }

    /// Whether the server owes replies and has sent nothing for `link-stall-ms`.
    fn is_stalled(&self, id: LinkId, link: &Link) -> bool {
        // The server owes no reply to requests that have not left.
        (link.ledger.in_flight() > 0 || !link.pending().is_empty())
            && link.unread_since.is_none()
            && (!link.waits || link.sends == Sends::Nothing)
            && link.tunnel.is_none()
            && is_over(
                self.now,
                link.progress,
                self.settings.timeouts.link_stall_ms,
            )
            && !self.outlasts_stall(id, link)
    }

    /// Whether no more requests will be for a link's server, as far as respool knows.
    fn is_link_gone(&self, link: &Link) -> bool {
        let server = link.kind.server;
        self.server(server).gone || link.handles_redirects && self.owns_nothing(server)
    }

    /// Closes a link that has not been used for long.
    pub(crate) fn close_if_unused(&mut self, id: LinkId) {
        let Some(link) = self.links.get(id) else {
            return;
        };
        let is_first = link.kind == self.default_kind(link.kind.server) && !self.is_link_gone(link);
        let may_go = link.role.ends_when_unused() && !(link.role == LinkRole::Shared && is_first);
        if link.is_unused()
            && may_go
            && link.is_up()
            && is_over(self.now, link.unused_since, LINK_UNUSED_MS)
        {
            self.close_link(id);
        }
    }

    /// Answers requests of a link that are past their deadline.
    pub(crate) fn answer_timed_out(&mut self, id: LinkId) {
        let timed_out = self.take_timed_out(id);
        for entry in timed_out.unsent {
            self.give_up(id, entry, entry.fate_unsent());
        }
        for entry in timed_out.sent {
            self.give_up(id, entry, Fate::Unknown);
            if timed_out.ends_writers && !entry.class.reads() {
                self.close_when_answered(entry.session);
            }
        }
        // A request that was given up may have ended the link.
        if let Some(reason) = timed_out.loses_link
            && self.links.get(id).is_some()
        {
            self.lose_link(id, reason);
        }
    }

    /// Takes the requests of a link that are past their deadline. A request that was sent keeps its
    /// entry in the ledger, so that its late reply is recognized. The link may be lost.
    fn take_timed_out(&mut self, id: LinkId) -> TimedOutRequests {
        let mut timed_out = TimedOutRequests::default();
        let request_ms = self.settings.timeouts.request_ms;
        if request_ms == 0 {
            return timed_out;
        }
        let now = self.now_stamp;
        let expired = |entry: &Entry| now.ms_since(entry.read_at) >= request_ms;
        let Some(link) = self.links.get(id) else {
            return timed_out;
        };
        if !link.is_up() && self.is_link_expired(link) {
            self.lose_link(id, &format!("not connected within {request_ms} ms"));
            return timed_out;
        }
        if matches!(link.tunnel, Some(Tunnel::Requested { .. })) && self.is_link_expired(link) {
            self.lose_link(id, &format!("no reply to MONITOR within {request_ms} ms"));
            return timed_out;
        }
        let slow_session = self.slow_owner(id, request_ms);
        let half = self.half_answered(id, request_ms);
        let Some(link) = self.links.get_mut(id) else {
            return timed_out;
        };
        if !link.is_up() {
            // Requests of respool's own stay: other requests rely on them.
            let leaves = |entry: &Entry| expired(entry) && entry.session != SessionId::NONE;
            timed_out.unsent = link.take_unsent(leaves);
            return timed_out;
        }
        if link.waits {
            return timed_out;
        }
        // The client may have a fragment of the front reply. That request is being answered.
        //
        // All entries are checked: one that was moved in its batch, or is sent again, stands behind
        // younger ones.
        let answering = usize::from(link.cutting);
        for entry in link.ledger.iter_mut().skip(answering) {
            if !expired(entry) {
                continue;
            }
            if entry.session != SessionId::NONE && entry.session != slow_session {
                timed_out.sent.push(*entry);
                entry.give_up();
            }
        }
        // Requests to be sent again have left the ledger. They return when all replies to their
        // batch have come.
        link.ledger.retain_repeats(|entry| {
            let leaves = expired(entry) && entry.session != slow_session;
            timed_out.sent.extend(leaves.then_some(*entry));
            !leaves
        });
        // Only the missing reply shows which user the link has now. And a server may lose the reply
        // to an AUTH that fails within an EXEC: every later reply would be taken for that of
        // another request.
        let is_own = matches!(link.role, LinkRole::Pinned { .. });
        let uncertain = is_own && link.ledger.any_completion(Completion::changes_identity);
        timed_out.loses_link = match link.role {
            _ if timed_out.sent.is_empty() => None,
            // Such links are few: this one makes room for another.
            LinkRole::Emergency { .. } => Some("its request was not answered in time"),
            _ if uncertain => Some("a request that may change its user was not answered in time"),
            _ => None,
        };
        let server = link.kind.server;
        timed_out.ends_writers = !timed_out.sent.is_empty() && self.was_left(id, server);
        if let Some(session) = half {
            let reason =
                format!("request-timeout-ms: the rest of a reply has not come for {request_ms} ms");
            self.close_for(session, reason);
        }
        timed_out
    }

    /// The session that takes its replies from this link slowly. Its requests do not time out.
    fn slow_owner(&self, id: LinkId, request_ms: u32) -> SessionId {
        let Some(link) = self.links.get(id) else {
            return SessionId::NONE;
        };
        let slow_session = link.role.session();
        let is_slow = match link.role {
            LinkRole::Draining { .. } => self.takes_slowly(id, slow_session, request_ms),
            _ => link.unread_since.is_some(),
        };
        if is_slow {
            slow_session
        } else {
            SessionId::NONE
        }
    }

    /// Whether a session itself delays its replies on a link: it has not taken all of them, or took
    /// the last of them a moment ago.
    fn takes_slowly(&self, link_id: LinkId, session: SessionId, request_ms: u32) -> bool {
        let (Some(link), Some(session_state)) =
            (self.links.get(link_id), self.sessions.get(session))
        else {
            return false;
        };
        let moved_at = link.progress.max(session_state.took_at);
        link.unread_since.is_some()
            || !session_state.out.is_empty()
            || self.is_early(link_id, session)
            || self.now.since_ms(moved_at) < u64::from(request_ms)
    }

    /// The session that has got a fragment of a reply, if the rest has not come in time. No error
    /// can follow that fragment.
    fn half_answered(&self, id: LinkId, request_ms: u32) -> Option<SessionId> {
        let link = self.links.get(id).filter(|link| link.cutting)?;
        let session = link.ledger.first_in_flight()?.session;
        let is_servers_fault = !self.takes_slowly(id, session, request_ms);
        (is_servers_fault && self.sessions.get(session).is_some()).then_some(session)
    }

    /// Counts a request that is past its deadline.
    pub(crate) fn count_timed_out(&mut self, link: LinkId, entry: &Entry, was_sent: bool) {
        self.counters.requests_timed_out += 1;
        self.deadlines.count(entry.session);
        if was_sent {
            self.note_given_up(link, entry);
            self.note_timeout(link);
        }
    }

    /// Reads a link again that its slow session held up: after a time, or sooner if other sessions
    /// wait.
    pub(crate) fn tick_unread(&mut self, id: LinkId) {
        let Some(link) = self.links.get(id) else {
            return;
        };
        let Some(since) = link.unread_since else {
            return;
        };
        let slow_session = link.role.session();
        let session_stall_ms = self.settings.limits.session_stall_ms;
        let stalled = self
            .sessions
            .get(slow_session)
            .is_none_or(|session| is_over(self.now, session.took_at.max(since), session_stall_ms));
        if self.head_of_line_wait(id) && self.count_head_of_line_wait(id) {
            if !self.is_early(id, slow_session) {
                return self.close_for_foreign_sessions(slow_session);
            }
            // The session waits for another server. The hard bound of its output bounds its early
            // replies.
            self.read_on(id);
        } else if stalled {
            let reason = format!("session-stall-ms: it took no reply for {session_stall_ms} ms");
            self.close_for(slow_session, reason);
        }
    }

    /// Closes a session if its client stopped in the middle of a large request. Such links are few.
    pub(crate) fn tick_upload(&mut self, id: LinkId) {
        let is_open = |link: &&Link| link.streaming == Streaming::Open;
        let Some(link) = self.links.get(id).filter(is_open) else {
            return;
        };
        let by = link.role.session();
        let Some(session) = self.sessions.get(by) else {
            return;
        };
        let stall_ms = self.settings.limits.session_stall_ms;
        let idle_ms = self.settings.timeouts.session_idle_ms;
        let (option, limit_ms) = match idle_ms > 0 && idle_ms < stall_ms {
            true => ("session-idle-ms", idle_ms),
            false => ("session-stall-ms", stall_ms),
        };
        // A client that takes no output is not read. It stops the request itself.
        let is_ours = session.state.holds().any(Holds::BY_SERVER | Holds::MEMORY);
        if session.state.is_streaming()
            && !is_ours
            && is_over(self.now, session.active_at, limit_ms)
        {
            let reason = format!("{option}: it sent nothing of its request for {limit_ms} ms");
            self.close_for(by, reason);
        }
    }

    /// The session of a link whose request began to wait at the server after its client had ended
    /// its input.
    pub(crate) fn waiter_that_has_left(&self, id: LinkId) -> Option<SessionId> {
        let link = self.links.get(id).filter(|link| link.waits)?;
        let by = link.role.session();
        let has_left = |session: &Session| session.link == id && session.state.input_has_ended();
        self.sessions.get(by).is_some_and(has_left).then_some(by)
    }

    /// Closes sessions that have been idle for too long.
    pub(crate) fn tick_idle_sessions(&mut self) {
        let idle_ms = u64::from(self.settings.timeouts.session_idle_ms);
        if idle_ms == 0 {
            return;
        }
        let idle = |(id, session): (SessionId, &Session)| {
            // A subscriber may listen for ever.
            let over = session.is_caught_up()
                && session.out.is_empty()
                && !session.listens()
                && !session.state.is_tunnel()
                // These sessions wait for respool.
                && !session.state.is_held()
                && !session.resuming.is_set()
                && !session.state.any(Flags::STEPS)
                && self.now.since_ms(session.active_at) >= idle_ms;
            over.then_some(id)
        };
        for id in self.sessions.iter().filter_map(idle).collect::<Vec<_>>() {
            self.close_told(id, true, format!("session-idle-ms: idle for {idle_ms} ms"));
        }
    }
}

fn is_over(now: Time, since: Time, limit_ms: u32) -> bool {
    now.since_ms(since) >= u64::from(limit_ms)
}
