//! Links that come up, go down, stall and come back; requests past their deadline.

use crate::base::error::Fate;
use crate::base::handle::LinkId;
use crate::data_plane::handshake::HandshakeReply;
use crate::data_plane::ledger::Entry;
use crate::data_plane::link::LinkRole;
use crate::data_plane::link_deadlines::LinkCheck;
use crate::data_plane::link_loss::{LinkDown, LostLink, NextAttempt};
use crate::data_plane::standing::SILENT_MS;
use crate::engine::Engine;
use crate::pinned::tracking::AWAY;

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
    #[inline(always)]
    pub(crate) fn settle_losses(&mut self) {
        if !self.plane.lost_links.is_empty() {
            self.settle_noted_losses();
        }
    }

    #[cold]
    #[inline(never)]
    fn settle_noted_losses(&mut self) {
        while let Some(lost) = self.plane.lost_links.pop_front() {
            self.link_down(lost);
        }
    }

    /// Fails the links that were to be connected while their server was known to be away.
    pub(crate) fn fail_untried(&mut self) {
        if self.plane.untried.is_empty() {
            return;
        }
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
                    && !self.local.waits_for_scripts(&mut self.plane, id)
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

    /// A link has finished its handshake, and is in use from now on.
    pub(crate) fn link_is_up(&mut self, id: LinkId) {
        self.plane.wake_deferred();
        let Some(up) = self.plane.set_up(id) else {
            return;
        };
        self.discovery.link_up(&mut self.plane, &up);
        self.pubsub.hub_up(&mut self.plane, id);
        self.access.pump_logins(&mut self.plane, id);
        self.plane.note_handshake(up.server, up.greeted_since);
        self.plane.wake_waiters(id);
        // Behind the waiters of this link: the other links of the server begin to connect.
        if self.plane.note_reached(up.server) {
            self.access.pump(&mut self.plane, up.server);
        }
        // An idle link takes the place of a shared one now, and is reported as shared.
        self.succeed(id);
        self.plane.report_up(id);
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
            self.local.load_again(&mut self.plane, down.link);
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
        if down.was_up && down.connects_at_once && down.role == LinkRole::Shared && !down.heeds {
            // The sessions that are closed have left their requests.
            self.plane.ask_pipelines_apart(down.link, down.cut_off);
        }
        // Last, because connecting may send the requests that are left in the ledger.
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
                self.discovery
                    .request_refresh_after_loss(&mut self.plane, down.server);
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
        if let LinkRole::Pinned { by } = down.role
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
            self.plane.fail(*entry, Fate::Unknown, lost);
        }
        if let Some(session) = down.shut_down_by {
            // The server closes that client's connection after SHUTDOWN, and so does respool. The
            // session has its earlier replies by now.
            self.plane.close_when_answered(session);
        }
        for entry in stranded {
            self.plane.fail_unsent(down.link, *entry, lost);
        }
    }

    /// Begins the next attempt of a lost link, or removes the link. Returns whether it stays.
    fn try_next(&mut self, down: &LinkDown) -> bool {
        if let LinkRole::Hub(hub) = down.role {
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
            LinkRole::Streaming { by } | LinkRole::Pinned { by } => {
                self.plane.fail_large(by, id, down.cause())
            }
            LinkRole::Redirect { .. } => self.pinned.lose_redirect(&mut self.plane, id),
            LinkRole::Probe => self.plane.fail_waiting(id),
            LinkRole::Shared
            | LinkRole::Draining { .. }
            | LinkRole::Emergency { .. }
            | LinkRole::Hub(_)
            | LinkRole::Sentinel
            | LinkRole::Idle => {}
        }
        self.plane.remove_link(id);
        if down.role == LinkRole::Probe {
            // Logins wait for any probing link, so this one is gone when they look for another.
            if !down.was_up {
                self.access.probe_failed(
                    &mut self.plane,
                    down.server,
                    &down.reason,
                    down.refusal.is_some(),
                );
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
        self.plane.fail_waiting(id);
        self.plane.bound_refused(id);
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
        self.pinned.tick_polls(&mut self.plane);
        self.tick_clusters();
        self.settle_losses();
        self.pinned.tick_trackers(&mut self.plane);
        self.tick_sentinels();
        self.give_up_silent();
        self.discovery.tick_readers(&mut self.plane);
        self.admin.tick_questions(&mut self.plane);
        self.local.tick_lessons(&mut self.plane);
        self.pinned.tick_waiters(&mut self.plane);
        self.plane.tick_arrivals();
        self.plane.tick_limits();
        self.plane.tick_patience();
        self.pinned.tick_holders(&mut self.plane);
        self.plane.tick_slow_readers();
        self.pubsub.tick_hubs(&mut self.plane);
        self.access.tick_login_checks(&mut self.plane);
        let shared = self.components_memory();
        self.plane.tick_memory(shared);
        self.plane.tick_untaken();
        self.access.tick_login_queue(&mut self.plane);
        self.access.tick_guesses(&mut self.plane);
        self.plane.tick_idle_sessions();
    }

    /// Gives up replicas that owe replies and send none; their reads are sent elsewhere. Reads at
    /// silent owners are sent to replicas, if these may answer them.
    fn give_up_silent(&mut self) {
        if self.plane.pools.iter().all(|pool| pool.readers.is_none()) {
            return;
        }
        for id in self.discovery.silent_replicas(&self.plane) {
            self.plane
                .lose_link(id, "it sent nothing for long, and its reads go elsewhere");
            // The next one asks whether other links of the server are up.
            self.settle_losses();
        }
        // Reads of the lost links move first.
        self.settle_losses();
        for id in self.discovery.silent_readers(&self.plane) {
            self.redirects.move_reads(&mut self.plane, id);
        }
    }

    fn tick_link(&mut self, id: LinkId) {
        let Some(server) = self.plane.links.get(id).map(|link| link.kind.server) else {
            return;
        };
        if self.plane.is_connecting(id)
            && let Some(reason) = self.discovery.why_refused(&self.plane, server)
        {
            return self.plane.lose_link(id, &reason);
        }
        match self.plane.check_link(id) {
            LinkCheck::GoesOn => {}
            LinkCheck::NoAnswer => {
                let limit_ms = self.plane.settings.timeouts.connect_ms;
                let late = || self.plane.why_no_answer(server, limit_ms);
                let reason = self
                    .discovery
                    .why_unknown(&self.plane, server)
                    .unwrap_or_else(late);
                return self.plane.lose_link(id, &reason);
            }
            LinkCheck::Retries => {
                self.plane.tick_retry(id);
                self.settle_losses();
                self.pinned.tick_at_link(&mut self.plane, id);
                return self.tick_requests(id);
            }
            LinkCheck::Ends => return,
        }
        let Some(link) = self.plane.links.get(id) else {
            return;
        };
        let of_owner = self.plane.server(server).replica_of.is_none();
        let is_stand_in = matches!(link.role, LinkRole::Redirect { .. });
        if of_owner && self.plane.is_silent(link, SILENT_MS) {
            self.discovery
                .request_refresh_after_loss(&mut self.plane, server);
        }
        if is_stand_in {
            self.pinned.tick_redirect(&mut self.plane, id);
        }
        self.pinned.tick_at_link(&mut self.plane, id);
        self.plane.tick_reply_room(id);
        self.plane.tick_stuck(id);
        self.plane.tick_silent(id);
        if self.plane.note_late(id) {
            self.plane.fail_waiting(id);
            self.plane.wake_waiters(id);
        }
        self.tick_requests(id);
        self.plane.tick_paused(id);
        self.plane.tick_upload(id);
        if let Some(session) = self.plane.waiter_that_has_left(id) {
            self.pinned
                .end_wait(&mut self.plane, session, self.draining);
        }
        self.plane.close_if_unused(id);
    }

    /// Answers requests of a link that are past their deadline.
    fn tick_requests(&mut self, id: LinkId) {
        let late = self.plane.take_late_requests(id);
        for entry in late.unsent {
            self.plane.give_up(id, entry, entry.fate_unsent());
        }
        for entry in late.sent {
            self.plane.give_up(id, entry, Fate::Unknown);
            if late.ends_writers && !entry.class.reads() {
                self.plane.close_when_answered(entry.session);
            }
        }
        // A request that was given up may have ended the link.
        if let Some(reason) = late.loses_link
            && self.plane.links.get(id).is_some()
        {
            self.plane.lose_link(id, reason);
        }
        // The link may have a new state for the checks that follow.
        self.settle_losses();
    }
}
