//! Links that come up, go down, stall and come back; requests past their deadline.

use std::sync::Arc;

use respool_protocol::encode;

use crate::access::login_state::refuses_login;
use crate::base::error::{self, Cause, Fate};
use crate::base::error_text::NOAUTH;
use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::base::limits::LINK_UNUSED_MS;
use crate::base::settings::AwayError;
use crate::base::time::Time;
use crate::data_plane::actions::{Action, Event};
use crate::data_plane::completion::Completion;
use crate::data_plane::handshake::HandshakeReply;
use crate::data_plane::ingress::wants_password;
use crate::data_plane::ledger::Entry;
use crate::data_plane::link::{IDLE_EMERGENCY, Link, LinkState, Role, Sends, Streaming};
use crate::data_plane::link_loss::{LinkDown, LostLink, NextAttempt};
use crate::data_plane::session::{Flags, Session};
use crate::data_plane::session_state::Holds;
use crate::data_plane::standing::SILENT_MS;
use crate::data_plane::takeover::is_busy;
use crate::engine::Engine;
use crate::pinned::monitor::Tunnel;
use crate::pinned::tracking::AWAY;
use crate::pinned::urgent;

impl Engine {
    /// A link's socket failed, or could not be connected.
    pub fn handle_link_lost(&mut self, link: LinkId, reason: &str) {
        // The link was given up in this turn: its next connection is not the lost one.
        if !self.plane.is_to_close(link) {
            let reason = self.plane.why_lost(link, reason);
            self.plane.note_link_lost(link, &reason, None);
            self.settle_losses();
        }
    }

    /// Handles the losses of links that the data plane has noted. It is called
    /// - after the bytes of a link, before the rest of the turn looks at that link;
    /// - after each step of a tick, and at the beginning of the end of a turn;
    /// - at once, where the code behind a loss relies on its consequences.
    #[inline]
    pub(crate) fn settle_losses(&mut self) {
        while let Some(lost) = self.plane.lost_links.pop_front() {
            self.link_down(lost);
        }
    }

    /// Fails the links that were to be connected while their server was known to be away.
    pub(crate) fn fail_untried(&mut self) {
        for id in std::mem::take(&mut self.plane.untried) {
            self.plane.lose_untried(id);
            // The loss of one link may connect another one.
            self.settle_losses();
        }
    }

    /// Handles the server's replies to the handshake so far.
    pub(crate) fn handshake_replied(&mut self, id: LinkId, greeted: HandshakeReply) {
        match greeted {
            // The handshake may have more to write.
            HandshakeReply::Waiting => self.plane.write_link(id),
            HandshakeReply::Done if self.discovery.is_disproved(&self.plane, id) => {
                let Some(server) = self.plane.links.get(id).map(|link| link.kind.server) else {
                    return;
                };
                if !self.leave_heir(server) {
                    let reason = "it is a replica, and the Sentinels call it the primary";
                    self.plane.lose_link(id, reason);
                    // The loss asks for a refresh sooner than the survey does.
                    self.settle_losses();
                }
                self.discovery.request_survey(&mut self.plane, server);
            }
            HandshakeReply::Done => {
                self.plane.take_limits(id);
                self.access.greeted_as_configured(&mut self.plane, id, None);
                if !self.pubsub.waits_for_branches(&mut self.plane, id)
                    && !self.waits_for_scripts(id)
                {
                    self.link_is_up(id);
                }
            }
            // A probing link may be unauthenticated: clients' logins are tried on it.
            HandshakeReply::Refused(text)
                if self.access.is_probe(&self.plane, id) && text.starts_with(b"NOAUTH") =>
            {
                self.access
                    .greeted_as_configured(&mut self.plane, id, Some(&text));
                self.link_is_up(id);
            }
            HandshakeReply::Broken(reason) => self.plane.lose_link(id, &reason),
            HandshakeReply::Refused(text) => self.plane.lose_refused_link(id, text),
        }
    }

    pub(crate) fn link_is_up(&mut self, id: LinkId) {
        self.plane.wake_deferred();
        let Some(link) = self.plane.links.get_mut(id) else {
            return;
        };
        let greeted_since = match link.state {
            LinkState::Greeting { since, .. } => since,
            _ => self.plane.now,
        };
        link.state = LinkState::Up;
        link.is_late = false;
        link.up_since = self.plane.now;
        link.progress = self.plane.now;
        link.refusal = None;
        let server_to_refresh = link.heeds.then_some(link.kind.server);
        let (role, server_id) = (link.role, link.kind.server);
        if link.has_open_batch() {
            self.plane.list_link(id);
        } else {
            self.plane.write_link(id);
        }
        self.plane.counters.link_ups += 1;
        self.plane.reopen(id);
        if let Some(server) = server_to_refresh {
            self.discovery.request_refresh(&mut self.plane, server);
            self.discovery.look_at(&mut self.plane, server);
        }
        if role == Role::Sentinel {
            self.discovery.sentinel_up(&mut self.plane, id);
        }
        self.pubsub.hub_up(&mut self.plane, id);
        self.access.pump_logins(&mut self.plane, id);
        self.plane.note_handshake(server_id, greeted_since);
        self.plane.wake_waiters(id);
        if self.plane.note_reached(server_id) {
            self.access.pump(&mut self.plane, server_id);
        }
        self.succeed(id);
        let Some(link) = self.plane.links.get(id) else {
            return;
        };
        let is_node = self.plane.pool_of(server_id).cluster().is_some();
        let identity = link
            .identity
            .as_ref()
            .map_or(String::new(), |identity| identity.description(is_node));
        if matches!(link.role, Role::Shared | Role::Hub(_) | Role::Sentinel) {
            let server = self.plane.label(id).to_owned();
            let pool = self.plane.pool_name(link.kind.server).to_owned();
            self.plane.emit(Event::LinkUp {
                server,
                pool,
                identity,
            });
        }
    }

    /// Handles the loss of a link. The order of the steps matters: each says why it has its place.
    #[cold]
    #[inline(never)]
    fn link_down(&mut self, lost: LostLink) {
        // The plane asks which sessions the link has answered: sessions that are closed for their
        // polled commands do not count.
        self.pinned.lose_polls(&mut self.plane, lost.link);
        if !lost.was_up
            && let Some((common, left)) = self.plane.take_code_requests(lost.link)
        {
            // Before the ledger is sorted out: these requests need not wait for the next attempt.
            self.local.put_moved(&mut self.plane, common, left);
        }
        // A link that awaits a password tries again, and its requests stay.
        let awaits_password =
            self.access
                .awaits_password(&self.plane, lost.link, lost.refusal.as_deref());
        let Some(down) = self.plane.take_down(lost, awaits_password) else {
            return;
        };
        self.local.link_down(&mut self.plane, &down);
        if !down.keeps_part {
            // Behind `take_down`, which decides the requests that stay; in front of all steps that
            // take requests away with their bytes.
            self.load_again(down.link);
        }
        // The routes change first: requests that move follow them.
        self.leave_server(&down);
        if down.heeds || down.reads_move {
            self.redirects.move_left(&mut self.plane, down.link);
        }
        // Requests that have moved are neither stranded nor counted as sent again.
        let stranded = self.plane.take_stranded(&down);
        // Behind the routes: a first attempt that fails does not make an owner lost for them.
        let is_logged = self.plane.note_down(&down);
        // It asks whether the link has been refused, which `note_down` notes.
        self.access.link_down(&mut self.plane, &down);
        if is_logged {
            self.plane.report_down(&down);
        }
        self.fail_lost(&down, &stranded);
        if down.was_up && down.connects_at_once && down.role == Role::Shared && !down.heeds {
            // The sessions that are closed have left their requests.
            self.plane.ask_pipelines_apart(down.link, down.cut_off);
        }
        // Last, because connecting may send what is left in the ledger.
        if self.try_next(&down) {
            self.stay_down(&down);
        }
    }

    /// Discovery looks for another owner or other readers, since a link is lost.
    fn leave_server(&mut self, down: &LinkDown) {
        if !down.heeds {
            return;
        }
        let state = self.plane.server(down.server);
        let (pool, is_owner) = (usize::from(state.pool), state.replica_of.is_none());
        if is_owner {
            self.discovery.request_survey(&mut self.plane, down.server);
            // A server that refuses a handshake is alive, and refuses every attempt.
            let is_lost = down.was_up || down.refusal.is_none();
            if is_lost || !self.plane.knows_all(pool) {
                self.request_refresh_after_loss(down.server);
            }
        } else if down.was_up {
            self.discovery.request_refresh(&mut self.plane, down.server);
        }
        self.discovery.forget_look(&mut self.plane, down.link);
        self.discovery.rebalance_replicas(&mut self.plane, pool);
    }

    /// Fails the requests that a lost link does not send again, and closes sessions that cannot go
    /// on without it.
    fn fail_lost(&mut self, down: &LinkDown, stranded: &[Entry]) {
        let lost = down.cause();
        if let Role::Pinned { by } = down.role
            && !down.retries
        {
            // In front of the errors: a session that is closed gets none.
            self.lose_pins(by, down.link, (down.was_up, down.is_away), lost);
            if down.begins_to_track {
                self.plane.close_for(by, String::from(AWAY));
            }
        }
        if let Some(session) = down.cut_off {
            // The client has a part of a reply: it would take an error for the rest of it.
            let server = &down.label;
            self.plane.close_for(
                session,
                format!("connection to {server} lost in the middle of its reply"),
            );
        }
        for entry in &down.gone {
            self.fail(*entry, Fate::Unknown, lost);
        }
        if let Some(session) = down.shut_down_by {
            // The server closes that client's connection after SHUTDOWN, and so does respool. The
            // session has its earlier replies by now.
            self.plane.close_when_answered(session);
        }
        for entry in stranded {
            self.fail_unsent(down.link, *entry, lost);
        }
    }

    /// Begins the next attempt of a lost link, or removes the link. Returns whether it stays.
    fn try_next(&mut self, down: &LinkDown) -> bool {
        if let Role::Hub(hub) = down.role {
            // The hub forgets its questions before the link may take new ones.
            if down.was_up {
                self.pubsub
                    .lose_subscriptions(&mut self.plane, hub, &down.label);
            }
            self.pubsub.hub_down(&mut self.plane, hub);
        }
        match down.next_attempt() {
            NextAttempt::Now => self.plane.connect(down.link),
            NextAttempt::Soon => self.plane.retry_later(down.link),
            NextAttempt::AfterBackoff => self.rest(down.link),
            NextAttempt::Never => {
                self.end_lost(down);
                return false;
            }
        }
        true
    }

    /// Removes a link that is lost for good.
    fn end_lost(&mut self, down: &LinkDown) {
        let id = down.link;
        match down.role {
            Role::Streaming { by } | Role::Pinned { by } => self.fail_large(by, id, down.cause()),
            Role::Redirect { .. } => self.pinned.lose_redirect(&mut self.plane, id),
            Role::Probe => self.fail_waiting(id),
            Role::Shared
            | Role::Draining { .. }
            | Role::Emergency { .. }
            | Role::Hub(_)
            | Role::Sentinel
            | Role::Idle => {}
        }
        self.plane.remove_link(id);
        if down.role == Role::Probe {
            // Logins wait for any probing link, so this one is gone when they look for another.
            if !down.was_up {
                self.probe_failed(down.server, &down.reason, down.refusal.is_some());
            }
            self.access.probe_lost(&mut self.plane, down.server, id);
        }
    }

    /// Ends the handling of a loss: the link has its new state.
    fn stay_down(&mut self, down: &LinkDown) {
        if down.heeds {
            // Once more: now the count of failures tells whether an owner is lost.
            let pool = usize::from(self.plane.server(down.server).pool);
            self.discovery.rebalance_replicas(&mut self.plane, pool);
        }
        if let Some(user) = self.plane.close_disowned(down.link) {
            self.pinned
                .close_waits_of(&mut self.plane, user, down.server);
        }
        // They look at the new state, and ask again or fail.
        self.plane.wake_waiters(down.link);
    }

    /// Ends the attempts of a link: requests that wait for it fail, and it goes into back-off.
    fn rest(&mut self, id: LinkId) {
        self.plane.back_off(id);
        self.fail_waiting(id);
        self.plane.bound_refused(id);
    }

    /// Fails the requests that wait at a link that is not up.
    pub(crate) fn fail_waiting(&mut self, id: LinkId) {
        let Some(link) = self.plane.links.get_mut(id) else {
            return;
        };
        link.admit(false, false);
        let failed = link.take_unsent(|_| true);
        let reason = link.reason.clone();
        let server = self.plane.label(id).to_owned();
        for entry in failed {
            let cause = Cause::NoLink {
                server: &server,
                reason: &reason,
            };
            self.fail_unsent(id, entry, cause);
        }
    }

    /// Fails a request that was not sent because its link is not up.
    fn fail_unsent(&mut self, link: LinkId, entry: Entry, cause: Cause<'_>) {
        if self.plane.links.get(link).is_some_and(wants_password) {
            let mut reply = Vec::new();
            encode::error(&mut reply, NOAUTH);
            self.pass_on(entry, &reply);
            return;
        }
        let refusal = self
            .plane
            .links
            .get(link)
            .and_then(|link| link.refusal.clone());
        // The server would give the same error to the client.
        if let Some(words) = refusal.as_deref().filter(|words| is_busy(words)) {
            let mut reply = Vec::new();
            encode::error(&mut reply, words);
            self.pass_on(entry, &reply);
        } else {
            let away = error::away_error_at(refusal.as_deref(), self.away_error_of(entry));
            self.fail_as(entry, entry.fate_unsent(), away, cause);
        }
    }

    /// Fails a large request whose link was lost before all of it was sent. The request was not
    /// executed. The rest of its bytes is read and dropped.
    fn fail_large(&mut self, session: SessionId, link: LinkId, cause: Cause<'_>) {
        let Some(state) = self.plane.sessions.get_mut(session) else {
            return;
        };
        let seq = state.next_seq.wrapping_sub(1);
        let Some(large) = state.rare.as_mut().and_then(|rare| rare.large.as_mut()) else {
            return;
        };
        let silent = large.silent;
        if large.link == Some(link) {
            large.link = None;
            state.flags.swallow();
            let entry = Entry {
                silent,
                ..Entry::of(session, seq, 0)
            };
            self.fail(entry, Fate::NotSent, cause);
            self.plane.release(session, Holds::LINK);
        }
    }

    /// Closes the link of a closed session that sent a large request in part. No other request may
    /// follow the part.
    pub(crate) fn abandon(&mut self, link: LinkId) {
        self.plane.push_action(Action::CloseLink(link));
        if let Some(Role::Pinned { by }) = self.plane.links.get(link).map(|link| link.role) {
            let server = self.plane.label(link).to_owned();
            let reason = "its client left in the middle of a request";
            let lost = Cause::LinkLost {
                server: &server,
                reason,
            };
            self.lose_pins(by, link, (true, true), lost);
        }
        self.plane.remove_link(link);
        self.plane.next_streaming();
    }

    /// The code for a request that was dispatched, if its server is away.
    pub(crate) fn away_error_of(&self, entry: Entry) -> AwayError {
        let is_share = self.scatter.is_share(&self.plane, entry);
        self.plane.away_error_of(entry, is_share)
    }

    /// Fails a request: its client gets an error in place of a reply.
    pub(crate) fn fail(&mut self, entry: Entry, fate: Fate, cause: Cause<'_>) {
        let away = self.away_error_of(entry);
        self.fail_as(entry, fate, away, cause);
    }

    /// Fails a request. `away`: the error code if the server is away.
    fn fail_as(&mut self, entry: Entry, fate: Fate, away: AwayError, cause: Cause<'_>) {
        if self.plane.sessions.get(entry.session).is_none() {
            return;
        }
        match fate {
            Fate::NotSent => self.plane.counters.failed_not_sent += 1,
            Fate::Unknown => self.plane.counters.failed_unknown += 1,
        }
        let mut reply = std::mem::take(&mut self.plane.scratch);
        reply.clear();
        error::append_reply_as(&mut reply, fate, away, cause);
        self.pass_on(entry, &reply);
        self.plane.scratch = reply;
    }

    /// Checks every deadline.
    pub(crate) fn tick(&mut self) {
        // The list is reused: ticks are too frequent for an allocation each.
        let mut links = std::mem::take(&mut self.plane.ticking);
        links.extend(self.plane.links.iter().map(|(id, _)| id));
        for id in links.drain(..) {
            self.tick_link(id);
            self.settle_losses();
        }
        self.plane.ticking = links;
        self.plane.tick_takeovers();
        self.tick_polls();
        self.tick_clusters();
        self.settle_losses();
        self.tick_trackers();
        self.tick_sentinels();
        self.tick_readers();
        self.admin.tick_questions(&mut self.plane);
        self.local.tick_lessons(&mut self.plane);
        self.pinned.tick_waiters(&mut self.plane);
        self.plane.tick_arrivals();
        self.plane.tick_limits();
        self.plane.tick_patience();
        self.tick_holders();
        self.plane.tick_slow_readers();
        self.pubsub.tick_hubs(&mut self.plane);
        self.access.tick_login_checks(&mut self.plane);
        let shared = self.components_memory();
        self.plane.tick_memory(shared);
        self.plane.tick_untaken();
        self.tick_login_queue();
        self.tick_guesses();
        let idle_ms = u64::from(self.plane.settings.timeouts.session_idle_ms);
        if idle_ms > 0 {
            let idle = |(id, session): (SessionId, &crate::data_plane::session::Session)| {
                // A subscriber may listen for ever.
                let over = session.is_caught_up()
                    && session.out.is_empty()
                    && !session.listens()
                    && !session.flags.is_tunnel()
                    // These sessions wait for respool.
                    && !session.flags.is_held()
                    && !session.flags.any(Flags::STEPS | Flags::RESUMING)
                    && self.plane.now.since_ms(session.active_at) >= idle_ms;
                over.then_some(id)
            };
            for id in self
                .plane
                .sessions
                .iter()
                .filter_map(idle)
                .collect::<Vec<_>>()
            {
                self.plane
                    .close_for(id, format!("session-idle-ms: idle for {idle_ms} ms"));
            }
        }
    }

    /// Whether no more requests will be for a link's server, as far as respool knows.
    fn is_gone(&self, link: &Link) -> bool {
        let server = link.kind.server;
        self.plane.server(server).gone || link.heeds && self.plane.owns_nothing(server)
    }

    fn tick_link(&mut self, id: LinkId) {
        let timeouts = self.plane.settings.timeouts.clone();
        let now = self.plane.now;
        let Some(link) = self.plane.links.get(id) else {
            return;
        };
        let is_connecting = matches!(link.state, LinkState::Connecting { .. });
        if is_connecting
            && let Some(reason) = self.discovery.why_refused(&self.plane, link.kind.server)
        {
            return self.plane.lose_link(id, &reason);
        }
        match link.state {
            // A server that executes a long request answers no handshake, though it is alive. A
            // link for one request, or a successor, waits longer than `connect_ms` for the replies.
            LinkState::Greeting { .. }
                if (link.role.is_one_requests() && timeouts.request_ms > 0
                    || self.plane.is_successor(id, link))
                    && self.plane.is_reachable(link.kind.server) => {}
            LinkState::Connecting { since } | LinkState::Greeting { since, .. }
                if over(now, since, timeouts.connect_ms) =>
            {
                let server = link.kind.server;
                let late = || self.plane.why_no_answer(server, timeouts.connect_ms);
                let reason = self.discovery.why_unknown(&self.plane, server).unwrap_or_else(late);
                return self.plane.lose_link(id, &reason);
            }
            // No session uses this link, which may be for a database that does not exist. The
            // client has got its error.
            LinkState::Backoff { .. }
                if link.attached == 0
                    && Arc::strong_count(&link.held) == 1
                    && !matches!(link.role, Role::Hub(_) | Role::Sentinel)
                    && (link.kind != self.plane.first_link(link.kind.server) || self.is_gone(link))
                    // A session that has switched to another server comes back, and must not wait
                    // for the same attempts again.
                    && (!self.plane.is_routed_to(link.kind.server)
                        || over(now, link.unused_since, LINK_UNUSED_MS)) =>
            {
                return self.plane.remove_link(id);
            }
            // A password that the server has refused is tried again when a client sends it.
            LinkState::Backoff { .. }
                if link.kind.user != CONFIGURED
                    && link.refusal.as_deref().is_some_and(refuses_login) =>
            {
                return;
            }
            LinkState::Retrying { .. } => {
                self.plane.tick_retry(id);
                self.settle_losses();
                self.pinned.tick_at_link(&mut self.plane, id);
                return self.tick_requests(id, timeouts.request_ms);
            }
            LinkState::Backoff { until } if now >= until => {
                if !self.plane.must_rest(id, link.kind.server) {
                    self.plane.connect(id);
                }
                return;
            }
            LinkState::Up
                // The server owes no reply to requests that have not left.
                if (link.in_flight() > 0 || !link.pending().is_empty())
                    && link.paused.is_none()
                    && (!link.waits || link.sends == Sends::Nothing)
                    && link.tunnel.is_none()
                    && over(now, link.progress, timeouts.link_stall_ms)
                    && !self.plane.outlasts_stall(id, link) =>
            {
                return self.plane.lose_link(
                    id,
                    &format!("it sent nothing for {} ms", timeouts.link_stall_ms),
                );
            }
            _ => {}
        }
        let of_owner = self.plane.server(link.kind.server).replica_of.is_none();
        if of_owner && self.plane.is_silent(link, SILENT_MS) {
            let server = link.kind.server;
            self.request_refresh_after_loss(server);
        }
        if self
            .plane
            .links
            .get(id)
            .is_some_and(|link| matches!(link.role, Role::Redirect { .. }))
        {
            self.pinned.tick_redirect(&mut self.plane, id);
        }
        self.pinned.tick_at_link(&mut self.plane, id);
        self.plane.tick_reply_room(id);
        self.plane.tick_stuck(id);
        self.plane.tick_silent(id);
        if self.plane.note_late(id) {
            self.fail_waiting(id);
            self.plane.wake_waiters(id);
        }
        self.tick_requests(id, timeouts.request_ms);
        self.settle_losses();
        self.tick_paused(id);
        self.tick_upload(id);
        self.tick_waiting(id);
        let Some(link) = self.plane.links.get(id) else {
            return;
        };
        let unused = link.attached == 0
            && Arc::strong_count(&link.held) == 1
            && link.ledger.is_empty()
            && link.out.bytes().is_empty()
            && link.waiters.is_empty();
        let is_first = link.kind == self.plane.first_link(link.kind.server) && !self.is_gone(link);
        let is_idle = link.role == IDLE_EMERGENCY;
        let may_go = is_idle
            || matches!(link.role, Role::Idle | Role::Probe | Role::Redirect { .. })
            || link.role == Role::Shared && !is_first;
        if unused && may_go && link.is_up() && over(now, link.unused_since, LINK_UNUSED_MS) {
            self.plane.close_link(id);
        }
    }

    /// Answers requests that are past their deadline. A request that was sent keeps its entry in
    /// the ledger, so that its late reply is recognized.
    fn tick_requests(&mut self, id: LinkId, request_ms: u32) {
        if request_ms == 0 {
            return;
        }
        let now = self.plane.now.stamp_ms();
        let expired = |entry: &Entry| now.wrapping_sub(entry.at_ms) >= request_ms;
        let Some(link) = self.plane.links.get(id) else {
            return;
        };
        if !link.is_up() && self.plane.is_link_expired(link) {
            return self
                .plane
                .lose_link(id, &format!("not connected within {request_ms} ms"));
        }
        if matches!(link.tunnel, Some(Tunnel::Asked { .. })) && self.plane.is_link_expired(link) {
            return self
                .plane
                .lose_link(id, &format!("no reply to MONITOR within {request_ms} ms"));
        }
        if let Some(link) = self.plane.links.get_mut(id).filter(|link| !link.is_up()) {
            // Requests of respool's own stay: other requests rely on them.
            let leaves = |entry: &Entry| expired(entry) && entry.session != SessionId::NONE;
            for entry in link.take_unsent(leaves) {
                self.give_up(id, entry, entry.fate_unsent());
            }
        }
        let slow_session = self.slow_owner(id, request_ms);
        let half = self.half_answered(id, request_ms);
        let Some(link) = self.plane.links.get_mut(id) else {
            return;
        };
        if !link.is_up() || link.waits {
            return;
        }
        // The client may have a part of the front reply. That request is being answered.
        let mut late = Vec::new();
        // All entries are checked: one that was moved in its batch, or is sent again, stands behind
        // younger ones.
        let answering = usize::from(link.cutting);
        for entry in link.ledger.iter_mut().skip(answering) {
            if !expired(entry) {
                continue;
            }
            if entry.session != SessionId::NONE && entry.session != slow_session {
                late.push(*entry);
                entry.session = SessionId::NONE;
            }
        }
        // Requests to be sent again have left the ledger. They return when all replies to their
        // batch have come.
        link.again.retain(|(entry, _)| {
            let is_late = expired(entry) && entry.session != slow_session;
            late.extend(is_late.then_some(*entry));
            !is_late
        });
        // Only the missing reply shows which user the link has now. And a server may lose the reply
        // to an AUTH that fails within an EXEC: every later reply would be taken for that of
        // another request.
        let is_own = matches!(link.role, Role::Pinned { .. });
        let uncertain =
            is_own && !late.is_empty() && link.duties.iter().any(Completion::changes_identity);
        let is_late = !late.is_empty();
        let server = link.kind.server;
        if let Some(session) = half {
            let reason =
                format!("request-timeout-ms: the rest of a reply has not come for {request_ms} ms");
            self.plane.close_for(session, reason);
        }
        let was_left = is_late && self.plane.was_left(id, server);
        for entry in late {
            self.give_up(id, entry, Fate::Unknown);
            if was_left && !entry.class.reads() {
                // On another link, the session's next request might overtake this one.
                self.plane.close_when_answered(entry.session);
            }
        }
        if is_late && self.plane.links.get(id).is_some_and(urgent::is_urgent) {
            // Such links are few: this one makes room for another.
            self.plane
                .lose_link(id, "its request was not answered in time");
        }
        if uncertain && self.plane.links.get(id).is_some() {
            self.plane.lose_link(
                id,
                "a request that may change its user was not answered in time",
            );
        }
    }

    /// The session that takes its replies from this link slowly. Its requests are not late.
    fn slow_owner(&self, id: LinkId, request_ms: u32) -> SessionId {
        let Some(link) = self.plane.links.get(id) else {
            return SessionId::NONE;
        };
        let slow_session = link.role.session();
        let is_slow = match link.role {
            Role::Draining { .. } => self.takes_slowly(id, slow_session, request_ms),
            _ => link.paused.is_some(),
        };
        if is_slow {
            slow_session
        } else {
            SessionId::NONE
        }
    }

    /// Whether a session itself is the reason that its replies on a link are late: it has not taken
    /// all of them, or took the last of them a moment ago.
    fn takes_slowly(&self, link_id: LinkId, session: SessionId, request_ms: u32) -> bool {
        let (Some(link), Some(session_state)) = (
            self.plane.links.get(link_id),
            self.plane.sessions.get(session),
        ) else {
            return false;
        };
        let moved_at = link.progress.max(session_state.took_at);
        link.paused.is_some()
            || !session_state.out.is_empty()
            || self.plane.is_early(link_id, session)
            || self.plane.now.since_ms(moved_at) < u64::from(request_ms)
    }

    /// The session that has got a part of a reply, if the rest has not come in time. No error can
    /// follow that part.
    fn half_answered(&self, id: LinkId, request_ms: u32) -> Option<SessionId> {
        let link = self.plane.links.get(id).filter(|link| link.cutting)?;
        let session = link.first_in_flight()?.session;
        let is_late = !self.takes_slowly(id, session, request_ms);
        (is_late && self.plane.sessions.get(session).is_some()).then_some(session)
    }

    /// Fails a request that is past its deadline.
    pub(crate) fn give_up(&mut self, link: LinkId, entry: Entry, fate: Fate) {
        self.plane.counters.timeouts += 1;
        self.plane.deadlines.count(entry.session);
        if fate == Fate::Unknown {
            self.plane.note_given_up(link, &entry);
        }
        let server = self.plane.label(link).to_owned();
        let limit_ms = self.plane.settings.timeouts.request_ms;
        let server = &server;
        self.fail(entry, fate, Cause::Deadline { server, limit_ms });
    }

    /// Ends a link's pause for its slow session: after a time, and sooner if other sessions wait.
    fn tick_paused(&mut self, id: LinkId) {
        let Some(link) = self.plane.links.get(id) else {
            return;
        };
        let Some(since) = link.paused else { return };
        let slow_session = link.role.session();
        let limits = &self.plane.settings.limits;
        let stalled = self.plane.sessions.get(slow_session).is_none_or(|session| {
            over(
                self.plane.now,
                session.took_at.max(since),
                limits.session_stall_ms,
            )
        });
        let session_stall_ms = limits.session_stall_ms;
        if self.plane.strangers_wait(id) && self.plane.count_strangers_wait(id) {
            if !self.plane.is_early(id, slow_session) {
                return self.plane.close_for_foreign_sessions(slow_session);
            }
            // The session waits for another server. The hard bound of its output bounds its early
            // replies.
            self.plane.read_on(id);
        } else if stalled {
            let reason = format!("session-stall-ms: it took no reply for {session_stall_ms} ms");
            self.plane.close_for(slow_session, reason);
        }
    }

    /// Ends the wait of a request that began to wait after its client had ended its input.
    fn tick_waiting(&mut self, id: LinkId) {
        let Some(link) = self.plane.links.get(id) else {
            return;
        };
        let by = link.role.session();
        let has_left = |session: &Session| session.link == id && session.flags.input_has_ended();
        if link.waits && self.plane.sessions.get(by).is_some_and(has_left) {
            self.end_wait(by);
        }
    }

    /// Closes a session whose client stopped in the middle of a large request. Such links are few.
    fn tick_upload(&mut self, id: LinkId) {
        let Some(link) = self
            .plane
            .links
            .get(id)
            .filter(|link| link.streaming == Streaming::Open)
        else {
            return;
        };
        let by = link.role.session();
        let Some(session) = self.plane.sessions.get(by) else {
            return;
        };
        let stall_ms = self.plane.settings.limits.session_stall_ms;
        let idle_ms = self.plane.settings.timeouts.session_idle_ms;
        let (option, limit_ms) = match idle_ms > 0 && idle_ms < stall_ms {
            true => ("session-idle-ms", idle_ms),
            false => ("session-stall-ms", stall_ms),
        };
        // A client that takes no output is not read. It stops the request itself.
        let is_ours = session.flags.holds().any(Holds::BY_SERVER | Holds::MEMORY);
        if session.flags.is_streaming()
            && !is_ours
            && over(self.plane.now, session.active_at, limit_ms)
        {
            let reason = format!("{option}: it sent nothing of its request for {limit_ms} ms");
            self.plane.close_for(by, reason);
        }
    }
}

fn over(now: Time, since: Time, limit_ms: u32) -> bool {
    now.since_ms(since) >= u64::from(limit_ms)
}

/// Replies of respool's own.
impl Engine {
    /// Answers a request with an error.
    pub(crate) fn answer_error(
        &mut self,
        id: SessionId,
        text: &[u8],
    ) -> crate::data_plane::ingress::Dispatched {
        self.plane.answer_error(id, text)
    }
}
