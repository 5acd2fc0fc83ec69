//! Links that come up, go down, stall and come back; requests past their deadline.

use crate::base::handle::LinkId;
use crate::data_plane::handshake::HandshakeReply;
use crate::data_plane::link_deadlines::LinkCheck;
use crate::data_plane::link_loss::LostLink;
use crate::engine::Engine;

impl Engine {
    /// A link's socket failed, or could not be connected.
    pub fn handle_link_lost(&mut self, link: LinkId, reason: &str) {
        // The link was closed in this turn: its next connection is not the lost one.
        if !self.plane.is_to_close(link) {
            let reason = self.plane.why_lost(link, reason);
            self.plane.note_link_lost(link, &reason, None);
            self.settle_losses();
        }
    }

    /// Handles the losses of links that the data plane has noted. It is called
    /// - after the bytes of a link, before the rest of the turn looks at that link;
    /// - in a tick after each link and after the Clusters;
    /// - at the beginning of the end of a turn;
    /// - at once, where later code relies on the consequences of the loss.
    #[inline(always)]
    pub(crate) fn settle_losses(&mut self) {
        if !self.plane.turn.lost_links.is_empty() {
            self.settle_noted_losses();
        }
    }

    #[cold]
    #[inline(never)]
    fn settle_noted_losses(&mut self) {
        while let Some(lost) = self.plane.turn.lost_links.pop_front() {
            self.link_down(lost);
        }
    }

    /// Fails the links that were to be connected while their server was known to be away.
    pub(crate) fn fail_untried(&mut self) {
        if self.plane.turn.untried.is_empty() {
            return;
        }
        for id in std::mem::take(&mut self.plane.turn.untried) {
            self.plane.lose_untried(id);
            // The loss of one link may connect another one.
            self.settle_losses();
        }
    }

    /// Handles the server's replies to the handshake so far.
    pub(crate) fn handshake_replied(&mut self, id: LinkId, reply: HandshakeReply) {
        match reply {
            // The handshake may have more to write.
            HandshakeReply::Waiting => self.plane.write_link(id),
            HandshakeReply::Done if self.discovery.is_disproved(&self.plane, id) => {
                let Some(server) = self.plane.links.get(id).map(|link| link.kind.server) else {
                    return;
                };
                if !self.leave_new_primary(server) {
                    let reason = "it is a replica, and the Sentinels call it the primary";
                    self.plane.lose_link(id, reason);
                    // The loss asks for a refresh sooner than the survey does.
                    self.settle_losses();
                }
                self.discovery.request_survey(&mut self.plane, server);
            }
            HandshakeReply::Done => {
                self.plane.take_limits(id);
                self.access
                    .configured_login_answered(&mut self.plane, id, None);
                if !self.pubsub.hold_for_branches(&mut self.plane, id)
                    && !self.local.waits_for_scripts(&mut self.plane, id)
                {
                    self.link_is_up(id);
                }
            }
            HandshakeReply::Broken(reason) => self.plane.lose_link(id, &reason),
            HandshakeReply::Refused(text) => {
                match self.access.opens_probe(&mut self.plane, id, &text) {
                    true => self.link_is_up(id),
                    false => self.plane.lose_refused_link(id, text),
                }
            }
        }
    }

    /// A link has finished its handshake, and is in use from now on.
    pub(crate) fn link_is_up(&mut self, id: LinkId) {
        self.plane.wake_deferred();
        let Some(up) = self.plane.mark_up(id) else {
            return;
        };
        self.discovery.link_up(&mut self.plane, &up);
        self.pubsub.hub_up(&mut self.plane, id);
        self.access.pump_logins(&mut self.plane, id);
        self.plane.note_handshake(up.server, up.handshake_since);
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
        // In front of `take_down`, which asks whether the link has answered a session. Sessions
        // that this step closes for their polled commands must not count.
        self.pinned.lose_polls(&mut self.plane, &lost);
        if !lost.was_up
            && let Some((common, left)) = self.plane.take_code_requests(lost.link)
        {
            // In front of `take_down`, which sorts the ledger out. These requests leave it here,
            // and need not wait for the next attempt.
            self.local.put_moved(&mut self.plane, common, left);
        }
        // In front of `take_down`, which keeps the requests of a link that awaits a password.
        let awaits_password =
            self.access
                .awaits_password(&self.plane, lost.link, lost.handshake_error.as_deref());
        // It sorts the ledger out, and gathers the facts for all steps that follow.
        let Some(down) = self.plane.take_down(lost, awaits_password) else {
            return;
        };
        // In front of all errors: sessions that move to another pool get none.
        self.plane.leave_after_loss(&down);
        // Behind the sessions that move: hubs follow them.
        self.pubsub.follow_pool_ends(&mut self.plane);
        // Behind `take_down`, and behind sessions that move and take their requests along: it puts
        // scripts in front of the requests that stay. In front of the steps that take requests off
        // the link, because it reads their bytes.
        self.local.link_down(&mut self.plane, &down);
        // The routes change first: requests that move follow them.
        self.discovery.link_down(&mut self.plane, &down);
        if down.may_be_replaced || down.reads_move {
            self.redirects.move_remaining(&mut self.plane, down.link);
        }
        // Requests that have moved are neither stranded nor counted as sent again.
        let stranded = self.plane.take_stranded(&down);
        // Behind the routes, which ask whether the owner is lost: they do not count this failure.
        // `link_stays_down` asks again with it.
        let is_logged = self.plane.note_down(&down);
        // It asks whether the link has been refused, which `note_down` notes.
        self.access.link_down(&mut self.plane, &down);
        // In front of the sessions that are closed: the log names the loss first.
        if is_logged {
            self.plane.report_down(&down);
        }
        // In front of the errors: a session that is closed here gets none. A session that is closed
        // when it is answered gets none because `take_down` has silenced its entries.
        self.pinned.link_down(&mut self.plane, &down);
        self.plane.fail_lost(&down, &stranded);
        // In front of the next attempt: the hub forgets its requests before the link takes others.
        self.pubsub.link_down(&mut self.plane, &down);
        // Last, because connecting may send the requests that are left in the ledger.
        if self.plane.try_next(&down) {
            // Both look at the link in its new state. Their order is free.
            self.discovery.link_stays_down(&mut self.plane, &down);
            self.pinned.link_stays_down(&mut self.plane, &down);
            // They look at the new state, and ask again or fail.
            self.plane.wake_waiters(down.link);
        } else {
            // In front of `end_lost`: it finds sessions by their link.
            self.pinned.link_ends(&mut self.plane, &down);
            self.plane.end_lost(&down);
            // Behind `end_lost`, which removes the link: waiting logins look for another one.
            self.access.link_ends(&mut self.plane, &down);
        }
    }

    /// Checks every deadline. The order of the steps is free but where a comment names a reason.
    pub(crate) fn tick(&mut self) {
        // The list is reused: ticks are too frequent for an allocation each.
        let mut links = std::mem::take(&mut self.plane.turn.ticking);
        links.extend(self.plane.links.iter().map(|(id, _)| id));
        for id in links.drain(..) {
            self.tick_link(id);
            self.settle_losses();
        }
        self.plane.turn.ticking = links;
        self.plane.tick_takeovers();
        self.pinned.tick_polls(&mut self.plane);
        self.tick_clusters();
        self.settle_losses();
        self.pinned.tick_trackers(&mut self.plane);
        self.tick_sentinels();
        self.tick_pool_ends();
        self.lose_silent();
        self.discovery.tick_readers(&mut self.plane);
        self.admin.tick_questions(&mut self.plane);
        self.local.tick_command_info(&mut self.plane);
        self.plane.tick_waiters();
        self.plane.tick_held_bytes();
        self.plane.tick_limits();
        self.plane.tick_flush_rule();
        self.pinned.tick_holders(&mut self.plane);
        self.plane.tick_slow_readers();
        self.pubsub.tick_hubs(&mut self.plane);
        self.access.tick_login_checks(&mut self.plane);
        self.access.tick_login_renewals(&mut self.plane);
        let shared = self.components_memory();
        self.plane.tick_memory(shared);
        self.plane.tick_untaken();
        self.access.tick_login_queue(&mut self.plane);
        self.access.tick_guesses(&mut self.plane);
        self.plane.tick_idle_sessions();
    }

    /// Closes the links to replicas that owe replies and send none. The reads on these links are
    /// sent elsewhere. Reads at silent owners are sent to replicas, if these may answer them.
    fn lose_silent(&mut self) {
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
        match self.discovery.check_link(&mut self.plane, id) {
            LinkCheck::GoesOn => {}
            LinkCheck::Retries => {
                self.plane.tick_retry(id);
                self.settle_losses();
                self.plane.tick_at_link(id);
                return self.plane.answer_timed_out(id);
            }
            LinkCheck::Ends => return,
        }
        self.discovery.tick_silent_owner(&mut self.plane, id);
        self.pinned.tick_link(&mut self.plane, id);
        self.plane.tick_reply_room(id);
        self.plane.tick_stuck(id);
        self.plane.tick_silent(id);
        self.plane.tick_late_attempt(id);
        self.plane.answer_timed_out(id);
        // The link may have a new state for the checks that follow.
        self.settle_losses();
        self.plane.tick_unread(id);
        self.plane.tick_upload(id);
        self.pinned.end_left_wait(&mut self.plane, id);
        self.plane.close_if_unused(id);
    }

    /// An idle link that no session uses takes the place of the link for which it was connected.
    fn succeed(&mut self, id: LinkId) {
        let Some(succession) = self.plane.succession_of(id) else {
            return;
        };
        if !succession.is_takeover {
            // Another server may be there now, so facts learned about the old one may be wrong.
            let server = succession.kind.server;
            self.local.invalidate_server(&mut self.plane, server);
        }
        let moved = self.plane.take_place(&succession);
        self.local.put_moved(&mut self.plane, id, moved);
        self.plane.end_succession(&succession);
        // In the log, the loss of the old links stands before the new one.
        self.settle_losses();
    }
}
