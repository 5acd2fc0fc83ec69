//! Sessions with a pinned link: the server keeps state for their connection (watched keys,
//! tracking), or one of their requests may wait there.
//!
//! A session changes links only while none of its requests is in flight, so its requests never
//! overtake each other. A link is given back as soon as the last reason for it has ended and every
//! request on it was answered. It is reused if it is clean: no state is left on its connection.
//! Otherwise it is closed.

pub(crate) mod checkout;
pub(crate) mod emergency;
pub(crate) mod holders;
pub(crate) mod monitor;
pub(crate) mod polling;
pub(crate) mod streaming;
pub(crate) mod tracking;
pub(crate) mod tracking_redirect;
pub(crate) mod wait_command;

use std::collections::HashMap;

use crate::base::error::Fate;
use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::DataPlane;
use crate::data_plane::accept::InputEnd;
use crate::data_plane::actions::Action;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::pinned::{ConnectionSwitch, PinnedCompletion, TrackingRedirect};
use crate::data_plane::ingress::{Blocked, Dispatched, Request};
use crate::data_plane::ledger::Entry;
use crate::data_plane::link::{Link, LinkRole, Sends, Tunnel, Unblocking};
use crate::data_plane::link_loss::LinkDown;
use crate::data_plane::session::{Flags, Pins, Session};
use crate::pinned::holders::Holders;
use crate::pinned::tracking::AWAY;
use crate::pinned::wait_command::{RefusedWait, WaitAtAll, WaitOutcome};
use crate::routing::pool::ServerId;

/// The component that gives sessions links of their own.
#[derive(Default)]
pub(crate) struct Pinned {
    /// Sessions that hold links for which other sessions wait.
    pub(crate) holders: Holders,
    /// Sessions that get the invalidations of other sessions (REDIRECT), by their ids.
    pub(crate) targets: HashMap<u64, SessionId>,
}

/// Number of refused CLIENT UNBLOCK for one wait, and the time for an answer, before respool closes
/// its side.
const DISMISSALS_MAX: u8 = 2;
const DISMISSAL_MS: u64 = 1_000;

/// A server that has not answered for this long is taken to wait. Requests that the client sent
/// after that are not executed once it has left.
const LAST_WORDS_MS: u32 = 100;

/// The work on a reply that is left to other components.
pub(crate) enum PinnedOutcome {
    /// There is none.
    Done,
    /// This server has redirected a polled command.
    PollRedirected(ServerId),
    /// A WAIT goes on at the next server.
    WaitsAtNext(WaitAtAll, Option<RefusedWait>),
}

/// The replies.
impl Pinned {
    /// Handles the reply to a request.
    pub(crate) fn settle(
        &mut self,
        plane: &mut DataPlane,
        (link, entry): (LinkId, Entry),
        completion: PinnedCompletion,
        reply: &[u8],
    ) -> PinnedOutcome {
        match completion {
            PinnedCompletion::Dismissal { of } => self.dismissed(plane, of, reply),
            PinnedCompletion::Poll(before) => {
                if let Some(server) = self.settle_poll(plane, entry, before, reply) {
                    return PinnedOutcome::PollRedirected(server);
                }
            }
            PinnedCompletion::Wait(waiting) => {
                if let Some(all) = &waiting.rest {
                    plane.note_begun_at(all.read_at);
                }
                match self.settle_wait(plane, link, *waiting, reply) {
                    WaitOutcome::Reply(reply) => plane.answer_or_fail(entry, &reply),
                    WaitOutcome::Nothing => {}
                    WaitOutcome::Next { rest, refused } => {
                        return PinnedOutcome::WaitsAtNext(rest, refused);
                    }
                }
            }
            PinnedCompletion::Switch {
                switch,
                had,
                redirect,
            } => {
                let owner = plane.owner_of(link, entry);
                plane.deliver_to(entry, reply);
                self.settle_switch(plane, owner, (switch, had), redirect, reply);
            }
            PinnedCompletion::NameTold => {
                let owner = plane.owner_of(link, entry);
                let reply = self.name_told(plane, owner, reply);
                plane.deliver_to(entry, &reply);
            }
            PinnedCompletion::Track => self.settle_track(plane, link, reply),
        }
        PinnedOutcome::Done
    }
}

/// The loss of links, and the end of waits.
impl Pinned {
    /// Handles the loss of a session's pinned link, and of the state that the server kept for it.
    /// Watched keys may have changed, so the session's transaction fails as if they had. Any other
    /// state is lost for good, so the session is closed: its client has to connect again. Returns
    /// the MONITOR that was not sent, if the link was not up.
    pub(crate) fn lose_pins(
        &mut self,
        plane: &mut DataPlane,
        by: SessionId,
        link: LinkId,
        (was_up, is_away): (bool, bool),
    ) -> Option<Entry> {
        // respool has ended its side of the connection, or a QUIT was sent.
        let quitting =
            |link: &Link| link.tunnel == Some(Tunnel::Quitting) || link.sends == Sends::Nothing;
        let quitting = plane.links.get(link).is_some_and(quitting);
        let waited = is_away && plane.links.get(link).is_some_and(Link::holds_a_waiter);
        if plane.is_tracking_link(by, link) {
            self.lose_tracking_link(plane, by, link, was_up, quitting || waited);
            return None;
        }
        if quitting || waited {
            // The server has answered and closed the connection, or it is away. Libraries take an
            // error as the reply, but take a closed connection as a restart and ask again. By then
            // another server may own the keys.
            plane.close_when_answered(by);
        }
        let session = plane.sessions.get_mut(by)?;
        if session.link != link {
            return None;
        }
        let pins = std::mem::take(&mut session.pins);
        session.link = LinkId::NONE;
        let tunnel = session.state.is_tunnel();
        session.state.remove(Flags::UNPINNING);
        session.state.end_tunnel();
        if was_up && pins.any(Pins::WATCH) {
            session.rare().transaction.watch_lost = true;
        }
        if quitting || waited {
            return None;
        }
        if tunnel && !was_up {
            let (seq, command) = (session.take_seq(), session.last_command);
            return Some(Entry::of(by, seq, plane.now_stamp).of_command(command));
        }
        if was_up && pins.any(Pins::STATE) {
            let reason = "the link that held its state at the server was lost";
            plane.close_for(by, reason.to_owned());
        }
        None
    }

    /// A client sends no more bytes. Its session closes when its requests are answered.
    pub(crate) fn end_session(&mut self, plane: &mut DataPlane, id: SessionId) {
        let end = plane.end_input(id);
        self.end_input(plane, id, end);
        if end == InputEnd::Goes {
            plane.reading_changed(id);
            plane.finish_if_done(id);
        }
    }

    /// Ends the wait of a session after its client has ended its input, and drops a request without
    /// an end.
    pub(crate) fn end_input(&mut self, plane: &mut DataPlane, id: SessionId, end: InputEnd) {
        match end {
            InputEnd::Closed => {}
            InputEnd::EndsWait => self.end_wait(plane, id),
            InputEnd::Goes => self.forget_cut_request(plane, id),
        }
    }

    /// A client has closed its side while the server seems to make it wait. respool then closes its
    /// side of the link, too: replies still come, and the server ends the wait as that of any
    /// client that has left, so it takes no element. Then the server closes the link.
    fn end_wait(&mut self, plane: &mut DataPlane, id: SessionId) {
        plane.reading_changed(id);
        let draining = plane.draining || plane.end_of_pool(id).is_some();
        let Some(session) = plane.sessions.get(id) else {
            return;
        };
        let own = session.link;
        let link = plane.links.get_mut(own);
        let Some(link) = link.filter(|link| link.tunnel.is_none()) else {
            return plane.close(id);
        };
        if draining && link.is_up() && link.sends == Sends::More {
            return self.dismiss(plane, own);
        }
        // Requests that the session sent after that can be executed on this link alone. They are,
        // if the server has answered soon enough.
        let has_more = !session.held.is_empty() && !session.pins.is_empty();
        let now = plane.now_stamp;
        let is_old = |entry: &Entry| now.ms_since(entry.read_at) >= LAST_WORDS_MS;
        if !has_more || link.ledger.back().is_none_or(is_old) {
            self.send_the_rest(plane, own);
        }
    }

    /// Ends the wait of a session because respool stops. A server drops the replies for a client
    /// that has left, so it is asked to end the wait with CLIENT UNBLOCK. It ends it with an error:
    /// some servers crash when they end a wait by timeout (Redis before 7.2, after a pause has
    /// delayed it). The server may not have read the blocking command yet, or may have ended the
    /// wait.
    fn dismiss(&mut self, plane: &mut DataPlane, own: LinkId) {
        let now = plane.now;
        let Some(link) = plane.links.get_mut(own) else {
            return;
        };
        let Unblocking { at, denied } = link.unblocking;
        let is_coming = link.scanner.is_inside() || !link.unscanned.is_empty();
        let is_late = at.is_some_and(|at| now.since_ms(at) >= DISMISSAL_MS);
        if is_coming || at.is_some() && !is_late {
            return;
        }
        link.unblocking.at = Some(now);
        let completion = Completion::Pinned(PinnedCompletion::Dismissal { of: own });
        if is_late || denied >= DISMISSALS_MAX || !plane.ask_to_unblock(own, "ERROR", completion) {
            self.send_the_rest(plane, own);
        }
    }
}

/// Links for a reason.
impl Pinned {
    /// CLIENT TRACKING, NO-TOUCH, IMPORT-SOURCE. While one is on, the session keeps a pinned link.
    pub(crate) fn switch(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        // The replies to earlier requests tell whether it is on.
        if plane.hold_until_caught_up(id) {
            return Dispatched::Wait;
        }
        self.dispatch_switch(
            plane,
            id,
            ConnectionSwitch::of(request),
            None,
            request.bytes,
        )
    }

    /// Sends such a request. `bytes`: the request as the server gets it.
    fn dispatch_switch(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        switch: ConnectionSwitch,
        redirect: Option<TrackingRedirect>,
        bytes: &[u8],
    ) -> Dispatched {
        let begun = self.begin_switch(plane, id, switch, redirect);
        match begun {
            Ok(completion) => plane.dispatch_on_link(id, bytes, false, Some(completion)),
            Err(blocked) => plane.blocked(id, blocked),
        }
    }

    /// Prepares a link for CLIENT TRACKING, NO-TOUCH or IMPORT-SOURCE. While one is on, the session
    /// keeps a pinned link. Returns the completion of the request.
    fn begin_switch(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        switch: ConnectionSwitch,
        redirect: Option<TrackingRedirect>,
    ) -> Result<Completion, Blocked> {
        let had = plane.has_pins(id, switch.pins);
        if switch.on {
            plane.pin(id, switch.pins)?;
        }
        Ok(Completion::Pinned(PinnedCompletion::Switch {
            switch,
            had,
            redirect,
        }))
    }

    /// A link is lost, and with it the state that its server kept for its session. It comes in
    /// front of error replies: a session that is closed gets none.
    pub(crate) fn link_down(&mut self, plane: &mut DataPlane, down: &LinkDown) {
        let LinkRole::Pinned { by } = down.role else {
            return;
        };
        if down.retries {
            return;
        }
        let waited = down.is_away && plane.links.get(down.link).is_some_and(Link::holds_a_waiter);
        if waited {
            let (fate, cause) = down.of_waiter();
            plane.note_close_reason(by, fate, cause);
        }
        let was = (down.was_up, down.is_away);
        if let Some(unsent) = self.lose_pins(plane, by, down.link, was) {
            plane.fail(unsent, Fate::NotSent, down.cause());
        }
        if down.begins_to_track {
            plane.close_for(by, String::from(AWAY));
        }
    }

    /// A link is lost for good.
    pub(crate) fn link_ends(&mut self, plane: &mut DataPlane, down: &LinkDown) {
        if matches!(down.role, LinkRole::Redirect { .. }) {
            self.lose_redirect(plane, down.link);
        }
    }

    /// A lost link has its new state, and stays: closes the sessions of a user that its server has
    /// deleted.
    pub(crate) fn link_stays_down(&mut self, plane: &mut DataPlane, down: &LinkDown) {
        if let Some(user) = plane.close_disowned(down.link) {
            self.close_waits_of(plane, user, down.server);
        }
    }

    /// Checks the sessions that wait at a link. If the link stands in for the target of CLIENT
    /// TRACKING REDIRECT, checks it, too.
    pub(crate) fn tick_link(&mut self, plane: &mut DataPlane, id: LinkId) {
        let is_stand_in = |link: &Link| matches!(link.role, LinkRole::Redirect { .. });
        if plane.links.get(id).is_some_and(is_stand_in) {
            self.tick_redirect(plane, id);
        }
        plane.tick_at_link(id);
    }

    /// Ends the wait of a session whose request began to wait at the server after its client had
    /// ended its input.
    pub(crate) fn end_left_wait(&mut self, plane: &mut DataPlane, link: LinkId) {
        if let Some(session) = plane.waiter_that_has_left(link) {
            self.end_wait(plane, session);
        }
    }

    /// Gives back the links of a session that has left. Returns whether others redirect to it.
    pub(crate) fn forget_session(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        gone: &mut Session,
    ) -> bool {
        let link = plane.links.get(gone.link);
        if link.is_some_and(|link| link.role == LinkRole::Pinned { by: id }) {
            plane.give_back(gone.link);
        }
        plane.trackers.remove(id);
        let links = gone.rare.as_mut().map(|rare| &mut rare.tracking.links);
        for (_, link) in links.map(std::mem::take).unwrap_or_default() {
            plane.give_back(link);
        }
        let large = gone.rare.as_mut().and_then(|rare| rare.large.take());
        if let Some(link) = large.and_then(|large| large.link) {
            // The link has half a request of the session: nothing else may follow it.
            self.abandon(plane, link);
        }
        self.targets.remove(&gone.id).is_some()
    }

    /// Writes the rest of a link's output, and then ends respool's side of the connection.
    fn send_the_rest(&mut self, plane: &mut DataPlane, own: LinkId) {
        if let Some(link) = plane.links.get_mut(own)
            && link.sends == Sends::More
        {
            link.sends = Sends::Rest;
            link.tainted = true;
            link.admit(false, false);
        }
        self.end_sending(plane, own);
    }

    /// Handles the server's reply to the CLIENT UNBLOCK of [`Pinned::dismiss`].
    fn dismissed(&mut self, plane: &mut DataPlane, own: LinkId, reply: &[u8]) {
        if let Some(link) = plane.links.get_mut(own) {
            link.unblocking.denied += match reply {
                b":1\r\n" => return,
                b":0\r\n" => 1,
                _ => DISMISSALS_MAX,
            };
            link.unblocking.at = None;
        }
    }

    /// Ends respool's side of the connection once the last bytes of a link are written.
    pub(crate) fn end_sending(&mut self, plane: &mut DataPlane, own: LinkId) {
        let now = plane.now;
        if let Some(link) = plane.links.get_mut(own)
            && link.sends == Sends::Rest
            && link.is_up()
            && link.ledger.is_written()
        {
            link.sends = Sends::Nothing;
            // From now on a server that is silent counts as stalled.
            link.progress = now;
            plane.push_action(Action::EndLink(own));
        }
    }

    /// Handles the server's reply to a request of [`Pinned::begin_switch`].
    pub(crate) fn settle_switch(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        (switch, had): (ConnectionSwitch, bool),
        redirect: Option<TrackingRedirect>,
        reply: &[u8],
    ) {
        let agreed = reply.starts_with(b"+");
        if agreed && switch.pins.any(Pins::TRACKING) {
            self.set_redirect(plane, id, redirect.filter(|_| switch.on));
        }
        match plane.sessions.get_mut(id) {
            // The option may have been switched off by an earlier request.
            Some(session) if switch.on && agreed => session.pins.add(switch.pins),
            _ if agreed || switch.on && !had => plane.unpin(id, switch.pins),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time::Time;
    use crate::data_plane::session::Pins;
    use crate::data_plane::test_plane::{plane_with_link, session_of};

    /// A client that leaves while its link has no request unanswered ends the link, at any time of
    /// the process. One whose last request was read a moment ago has its held requests executed.
    #[test]
    fn wait_without_a_request_ends_at_once() {
        for (has_request, sends) in [(false, Sends::Nothing), (true, Sends::More)] {
            let (mut plane, link) = plane_with_link();
            plane.begin_turn(Time(0).plus_ms(10));
            let (id, now) = (session_of(&mut plane), plane.now_stamp);
            let state = plane.links.get_mut(link).expect("a link");
            state.role = LinkRole::Pinned { by: id };
            if has_request {
                state.ledger.push(Entry::of(id, 0, now), b"");
                state.ledger.flush(now);
            }
            let session = plane.sessions.get_mut(id).expect("a session");
            session.link = link;
            session.pins = Pins::WATCH;
            session.held = b"GET k\r\n".to_vec();
            Pinned::default().end_wait(&mut plane, id);
            let left = plane.links.get(link).map(|link| link.sends);
            assert_eq!(left, Some(sends), "has a request: {has_request}");
        }
    }
}
