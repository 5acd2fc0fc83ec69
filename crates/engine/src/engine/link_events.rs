//! Links that come up, go down, stall and come back; requests past their deadline.

use std::sync::Arc;

use respool_protocol::encode;

use crate::access::login_state::refuses_login;
use crate::base::error::{self, Cause, Fate};
use crate::base::error_text::NOAUTH;
use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::base::limits::{LINK_UNUSED_MS, REFUSED_LINKS_MAX};
use crate::base::settings::AwayError;
use crate::base::time::Time;
use crate::data_plane::actions::{Action, Event};
use crate::data_plane::completion::Completion;
use crate::data_plane::handshake::HandshakeReply;
use crate::data_plane::ingress::wants_password;
use crate::data_plane::ledger::{EarlierAttempt, Entry};
use crate::data_plane::link::{Link, LinkState, Role, Sends, Streaming};
use crate::data_plane::link_loss::LostLink;
use crate::data_plane::session::{Flags, Session};
use crate::data_plane::session_state::Holds;
use crate::data_plane::standing::SILENT_MS;
use crate::data_plane::takeover::is_busy;
use crate::engine::Engine;
use crate::pinned::monitor::Tunnel;
use crate::pinned::tracking::AWAY;
use crate::pinned::urgent;

/// A connection that lasted this long was a good one. After its loss, the link connects at once.
const STABLE_MS: u64 = 1_000;

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
        self.note_reached(server_id);
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

    #[cold]
    #[inline(never)]
    fn link_down(&mut self, lost: LostLink) {
        let LostLink {
            link: id,
            was_up,
            reason,
            refusal,
        } = lost;
        let reason = reason.as_str();
        self.pinned.lose_polls(&mut self.plane, id);
        self.plane.ask_again(id);
        self.plane.lose_successor(id, refusal.as_deref());
        if !was_up {
            self.leave_code_lane(id);
        }
        let Some(link) = self.plane.links.get_mut(id) else {
            return;
        };
        link.state = LinkState::Down;
        let begins_to_track = link.is_asked_to_track();
        let mut stable = was_up && self.plane.now.since_ms(link.up_since) >= STABLE_MS;
        if was_up && !stable {
            stable = self.plane.reconnects_at_once(id);
        }
        let Some(link) = self.plane.links.get_mut(id) else {
            return;
        };
        let cut_off = if link.cutting && link.scanner.kind() != b'>' {
            link.first_in_flight().map(|entry| entry.session)
        } else {
            None
        };
        // A failed attempt says nothing about the server's replies.
        match was_up {
            true => self.local.catalog.lose_questions(id, self.plane.now),
            false => self.local.catalog.leave_questions(id),
        }
        // Reads need not wait for this link: other servers may execute them.
        let pool = self.plane.servers[usize::from(link.kind.server.0)].pool;
        let is_read_elsewhere = self.plane.pools[usize::from(pool)].readers.is_some();
        let role = link.role;
        if was_up {
            link.lost_at = Some(self.plane.now);
        }
        let server_id = link.kind.server;
        if was_up && role == Role::Shared {
            self.local
                .catalog
                .doubt_server(&mut self.plane.learned_commands, server_id);
            self.local.note_scripts_lost(&mut self.plane, server_id);
        }
        // A password that comes from a file may be replaced there at any moment.
        let awaits_password = self
            .access
            .awaits_password(&self.plane, id, refusal.as_deref());
        let may_retry = refusal.is_none() || awaits_password;
        if may_retry {
            self.plane.begin_outage(server_id, was_up);
        }
        let retries = may_retry && self.plane.retries(id, was_up);
        let Some(link) = self.plane.links.get_mut(id) else {
            return;
        };
        let shared = role.is_multiplexed();
        // A server that refuses the link is alive: its error goes to the client.
        let is_away = was_up || !retries && refusal.is_none();
        let shut_down_by = link.is_shut_down_by().filter(|_| was_up);
        if link.sends == Sends::Nothing
            || is_away && link.holds_a_waiter()
            || shut_down_by.is_some()
        {
            // The client has left, or its connection is closed in place of an error.
            link.ledger.iter_mut().for_each(|entry| entry.silent = true);
        }
        let moves = is_read_elsewhere && shared;
        // The link has the first part of a waiting large request, which is no whole request yet.
        let keeps_part = retries && !was_up && link.streaming != Streaming::No;
        let gone = match keeps_part {
            true => Vec::new(),
            false => link.disconnect(moves || stable && role == Role::Shared),
        };
        if !keeps_part {
            self.load_again(id);
        }
        let Some(link) = self.plane.links.get_mut(id) else {
            return;
        };
        link.is_late = false;
        let (tried, began) = (!std::mem::take(&mut link.untried), link.attempted_at);
        let has_left = link.sends == Sends::Nothing;
        let heeds = link.heeds && role == Role::Shared;
        self.plane.forget_asking(id);
        if heeds {
            if self.plane.server(server_id).replica_of.is_none() {
                self.discovery.request_survey(&mut self.plane, server_id);
                // A server that refuses a handshake is alive, and refuses every attempt.
                let is_lost = was_up || refusal.is_none();
                if is_lost || !self.plane.knows_all(usize::from(pool)) {
                    self.request_refresh_after_loss(server_id);
                }
            } else if was_up {
                self.discovery.request_refresh(&mut self.plane, server_id);
            }
            self.discovery.forget_look(&mut self.plane, id);
            let pool = usize::from(self.plane.server(server_id).pool);
            self.discovery.rebalance_replicas(&mut self.plane, pool);
        }
        if heeds || moves {
            self.redirects.move_left(&mut self.plane, id);
        }
        let Some(link) = self.plane.links.get_mut(id) else {
            return;
        };
        // If the link retries, its remaining requests wait for the next connection.
        let stranded: Vec<Entry> = match role {
            Role::Shared | Role::Probe => Vec::new(),
            _ if retries && !matches!(role, Role::Hub(_)) => Vec::new(),
            _ => link.take_unsent(|_| true),
        };
        if stable {
            let lost = |entry: &&Entry| entry.before == EarlierAttempt::Lost;
            self.plane.counters.reads_sent_again += link.ledger.iter().filter(lost).count() as u64;
        }
        link.failures = if stable {
            0
        } else {
            link.failures.saturating_add(1)
        };
        link.reason = reason.to_owned();
        // No session uses the link: a client asked for it, and the refusal concerns that client
        // alone.
        let concerns_client = refusal.is_some() && link.attached == 0 && !link.waiters.is_empty();
        // The loss of a session's own link tells no more than that of the shared link.
        let is_logged = tried
            && !concerns_client
            && matches!(role, Role::Shared | Role::Hub(_) | Role::Sentinel);
        let refused = refusal.is_some();
        let refused_with = refusal.clone();
        // A server that wanted a password still wants it, until a link is up without one.
        if refusal.is_some() || !wants_password(link) {
            link.refusal = refusal;
        }
        let (wanted, kind) = (wants_password(link), link.kind);
        let server = self.plane.label(id).to_owned();
        if tried {
            self.plane.counters.link_downs += 1;
            match refused {
                _ if was_up && has_left => {}
                _ if was_up => self.plane.note_lost(kind.server),
                true if concerns_client || kind.user != CONFIGURED => {}
                true if awaits_password => {
                    self.plane
                        .note_unreachable(kind.server, (began, retries), reason);
                }
                true => self.plane.note_refused(kind.server),
                false => self
                    .plane
                    .note_unreachable(kind.server, (began, retries), reason),
            }
        }
        if refused && role != Role::Probe {
            self.access
                .greeted_as_configured(&mut self.plane, id, refused_with.as_deref());
        }
        // Clients cannot give the password of a Sentinel.
        let is_clients = !matches!(role, Role::Sentinel | Role::Probe);
        if wanted && kind.user == CONFIGURED && is_clients {
            self.access.flag_unauthenticated(&mut self.plane, id);
        }
        if is_logged {
            self.plane.emit(Event::LinkDown {
                server: server.clone(),
                pool: self.plane.pool_name(kind.server).to_owned(),
                reason: reason.to_owned(),
            });
        }
        let lost = Cause::LinkLost {
            server: &server,
            reason,
        };
        if let Role::Pinned { by } = role
            && !retries
        {
            self.lose_pins(by, id, (was_up, is_away), lost);
            if begins_to_track {
                self.plane.close_for(by, String::from(AWAY));
            }
        }
        if let Some(session) = cut_off {
            // The client has a part of a reply: it would take the next bytes for the rest of it.
            self.plane.close_for(
                session,
                format!("connection to {server} lost in the middle of its reply"),
            );
        }
        for entry in gone {
            self.fail(entry, Fate::Unknown, lost);
        }
        if let Some(session) = shut_down_by {
            // The server closes that client's connection after SHUTDOWN, and so does respool.
            self.plane.close_when_answered(session);
        }
        for entry in stranded {
            self.fail_unsent(id, entry, lost);
        }
        if was_up && stable && role == Role::Shared && !heeds {
            self.plane.ask_pipelines_apart(id, cut_off);
        }
        match role {
            // The remaining requests leave when the link is back.
            Role::Shared | Role::Sentinel if stable => self.plane.connect(id),
            Role::Hub(hub) => {
                if was_up {
                    self.pubsub
                        .lose_subscriptions(&mut self.plane, hub, &server);
                }
                self.pubsub.hub_down(&mut self.plane, hub);
                if stable {
                    self.plane.connect(id);
                } else if retries {
                    self.plane.retry_later(id);
                } else {
                    self.rest(id);
                }
            }
            _ if retries => self.plane.retry_later(id),
            Role::Shared | Role::Sentinel => self.rest(id),
            Role::Streaming { by } => {
                self.fail_large(by, id, lost);
                self.plane.remove_link(id);
                self.plane.next_streaming();
                return;
            }
            Role::Pinned { by } => {
                self.fail_large(by, id, lost);
                return self.plane.remove_link(id);
            }
            Role::Emergency { .. } => return self.plane.remove_link(id),
            Role::Redirect { .. } if was_up => {
                self.pinned.lose_redirect(&mut self.plane, id);
                return self.plane.remove_link(id);
            }
            Role::Redirect { .. } => self.rest(id),
            Role::Probe => {
                self.fail_waiting(id);
                self.plane.remove_link(id);
                if !was_up {
                    self.probe_failed(server_id, reason, refused);
                }
                return self.access.probe_lost(&mut self.plane, server_id, id);
            }
            Role::Draining { .. } | Role::Idle => return self.plane.remove_link(id),
        }
        if heeds {
            let pool = usize::from(self.plane.server(server_id).pool);
            self.discovery.rebalance_replicas(&mut self.plane, pool);
        }
        self.close_disowned(id);
        self.plane.wake_waiters(id);
    }

    /// Closes the sessions of a link if the server refuses the link's user: it does not know the
    /// user any more, or has another password. The server has closed that user's connections, too.
    fn close_disowned(&mut self, id: LinkId) {
        let refusal_is = |link: &Link, code: &str| {
            let refusal = link.refusal.as_deref().unwrap_or_default();
            refusal.starts_with(code.as_bytes())
        };
        let is_disowned = |link: &Link| {
            link.kind.user != CONFIGURED
                // Users are not replicated: the primary may know the user.
                && self.plane.server(link.kind.server).replica_of.is_none()
                && ["WRONGPASS", "NOAUTH", "NOPERM"]
                    .iter()
                    .any(|code| refusal_is(link, code))
        };
        let Some(link) = self.plane.links.get(id).filter(|link| is_disowned(link)) else {
            return;
        };
        let (user, server) = (link.kind.user, link.kind.server);
        // NOPERM refuses a command of the handshake, and not the user.
        let is_deleted = !refusal_is(link, "NOPERM");
        let sessions = self
            .plane
            .sessions
            .iter()
            .filter(|(_, session)| session.link == id);
        for session_id in sessions
            .map(|(session_id, _)| session_id)
            .collect::<Vec<_>>()
        {
            self.plane.close_when_answered(session_id);
        }
        if is_deleted {
            self.pinned.close_waits_of(&mut self.plane, user, server);
        }
    }

    /// Ends the attempts of a link: requests that wait for it fail, and it goes into back-off.
    fn rest(&mut self, id: LinkId) {
        let Some((server, failures)) = self
            .plane
            .links
            .get(id)
            .map(|link| (link.kind.server, link.failures))
        else {
            return;
        };
        let until = match self.plane.away_until(server) {
            Some(until) => until,
            None => self.plane.now.plus_ms(self.plane.back_off_ms(failures)),
        };
        if let Some(link) = self.plane.links.get_mut(id) {
            link.state = LinkState::Backoff { until };
        }
        self.fail_waiting(id);
        self.bound_refused(id);
    }

    /// Bounds the refused links of a server, for example to a database that it does not have. If
    /// there are too many, the oldest one is removed. The next tick removes all refused links that
    /// no session uses. Until then, a client could fill `links-max` with them.
    fn bound_refused(&mut self, newest: LinkId) {
        let links = self.plane.links.iter();
        let refused = links.filter_map(|(id, link)| match link.state {
            LinkState::Backoff { until } if id != newest && self.is_refused_to_all(link) => {
                Some((until, id))
            }
            _ => None,
        });
        let refused: Vec<(Time, LinkId)> = refused.collect();
        if refused.len() >= REFUSED_LINKS_MAX
            && let Some((_, oldest)) = refused.into_iter().min()
        {
            self.plane.remove_link(oldest);
        }
    }

    /// Whether the server has refused a shared link, and no session uses it or waits for it.
    fn is_refused_to_all(&self, link: &Link) -> bool {
        link.refusal.is_some()
            && link.attached == 0
            && link.waiters.is_empty()
            && link.role == Role::Shared
            && link.kind.user == CONFIGURED
            && link.kind != self.plane.first_link(link.kind.server)
            && !self.is_routed_to(link.kind.server)
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
        self.tick_memory();
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
                    && (!self.is_routed_to(link.kind.server)
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
                self.tick_retry(id);
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
        self.tick_probe(id);
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
        let is_idle = link.role == urgent::IDLE;
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
