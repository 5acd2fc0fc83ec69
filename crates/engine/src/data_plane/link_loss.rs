//! Links that are lost: noted at once, and handled soon after.
//!
//! ```text
//!   any code: lose_link ──► state `Lost`, queued ──► link_down (engine/link_events.rs)
//! ```
//!
//! A link may be lost in the middle of other work, for example while its replies are read. The
//! plane closes its connection at once, and no component uses the link from then on. The
//! consequences concern all components, so the engine handles them, between two events at the
//! latest.

use crate::base::error::{Cause, Fate};
use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::base::limits::{NEEDS_LOGIN_MS, REFUSED_LINKS_MAX};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::actions::{Action, Event};
use crate::data_plane::ingress::wants_password;
use crate::data_plane::ledger::{EarlierAttempt, Entry};
use crate::data_plane::link::{
    ConnectAttempt, Link, LinkKind, LinkRole, LinkState, Sends, Streaming,
};
use crate::routing::pool::ServerId;

/// A connection that lasted this long was a good one. After its loss, the link connects at once.
const STABLE_MS: u64 = 1_000;

/// A lost link, before its loss is handled.
#[derive(Debug)]
pub(crate) struct LostLink {
    pub(crate) link: LinkId,
    pub(crate) was_up: bool,
    /// The cause, for the log and for error replies.
    pub(crate) reason: String,
    /// The server's error reply to the handshake, if that is the cause.
    pub(crate) handshake_error: Option<Vec<u8>>,
}

/// The facts about the loss of a link on which the steps of its handling rely.
#[derive(Debug)]
pub(crate) struct LinkDown {
    pub(crate) link: LinkId,
    pub(crate) server: ServerId,
    pub(crate) kind: LinkKind,
    pub(crate) role: LinkRole,
    /// The name of the server.
    pub(crate) label: String,
    /// The cause, for the log and for error replies.
    pub(crate) reason: String,
    /// The server's error reply to the handshake, if that is the cause.
    pub(crate) handshake_error: Option<Vec<u8>>,
    pub(crate) was_up: bool,
    /// The connection lasted, or its server is well. A shared link, a hub line and a link to a
    /// Sentinel connect again at once. Reads that were in flight on a shared link are sent again.
    pub(crate) connects_at_once: bool,
    /// The server refuses a configured password that may be replaced at any moment.
    pub(crate) awaits_password: bool,
    /// Requests wait for the next attempt.
    pub(crate) retries: bool,
    /// The server is away, or has ended the connection.
    pub(crate) is_away: bool,
    /// It is a shared link, and discovery may find another server for its requests.
    pub(crate) may_be_replaced: bool,
    /// Other servers may answer the link's reads.
    pub(crate) reads_move: bool,
    /// The link has the first fragment of a waiting large request, which is no whole request yet.
    pub(crate) keeps_fragment: bool,
    /// Nothing more was to be sent on the link: respool has shut down its half of the connection.
    pub(crate) has_left: bool,
    /// An attempt to connect was made.
    pub(crate) tried: bool,
    /// When the last attempt began.
    pub(crate) began: Time,
    /// The link's session waits for the answer to its CLIENT TRACKING ON.
    pub(crate) begins_to_track: bool,
    /// The session that has got a fragment of a reply.
    pub(crate) cut_off: Option<SessionId>,
    /// The session that has sent the server SHUTDOWN.
    pub(crate) shut_down_by: Option<SessionId>,
    /// Requests that have left the ledger and are not sent again: they may have been executed, or
    /// no session waits for them.
    pub(crate) gone: Vec<Entry>,
}

/// The next attempt of a lost link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextAttempt {
    /// Now. Requests stay on the link.
    Now,
    /// After a short pause, in which requests wait.
    Soon,
    /// After a back-off, in which requests fail.
    AfterBackoff,
    /// The link is removed.
    Never,
}

impl LinkDown {
    /// The outcome and the cause of a request that waited at the server, or for the link.
    pub(crate) fn of_waiter(&self) -> (Fate, Cause<'_>) {
        of_waiter(self.was_up, &self.label, &self.reason)
    }

    /// The cause that error replies name.
    pub(crate) fn cause(&self) -> Cause<'_> {
        Cause::LinkLost {
            server: &self.label,
            reason: &self.reason,
        }
    }

    fn next_attempt(&self) -> NextAttempt {
        match self.role {
            LinkRole::Shared | LinkRole::Sentinel | LinkRole::HubLine(_)
                if self.connects_at_once =>
            {
                NextAttempt::Now
            }
            _ if self.retries => NextAttempt::Soon,
            LinkRole::Shared | LinkRole::Sentinel | LinkRole::HubLine(_) => {
                NextAttempt::AfterBackoff
            }
            // A stand-in that never was up has lost nothing.
            LinkRole::Redirect { .. } if !self.was_up => NextAttempt::AfterBackoff,
            LinkRole::Redirect { .. }
            | LinkRole::Streaming { .. }
            | LinkRole::Pinned { .. }
            | LinkRole::Emergency { .. }
            | LinkRole::Probe
            | LinkRole::Draining { .. }
            | LinkRole::Idle => NextAttempt::Never,
        }
    }
}

/// The outcome and the cause of a request that waited at a server or for its link, and whose link
/// is lost. A link that was not up has sent nothing.
pub(crate) fn of_waiter<'a>(was_up: bool, server: &'a str, reason: &'a str) -> (Fate, Cause<'a>) {
    match was_up {
        true => (Fate::Unknown, Cause::LinkLost { server, reason }),
        false => (Fate::NotSent, Cause::NoLink { server, reason }),
    }
}

/// Losing a link.
impl DataPlane {
    /// Gives a link up: closes its connection.
    #[cold]
    #[inline(never)]
    pub(crate) fn lose_link(&mut self, id: LinkId, reason: &str) {
        if !self.is_link_lost(id) {
            self.push_action(Action::CloseLink(id));
            self.note_link_lost(id, reason, None);
        }
    }

    /// Closes a link after its server has answered the handshake with the error `text`.
    pub(crate) fn lose_refused_link(&mut self, id: LinkId, text: Vec<u8>) {
        if !self.is_link_lost(id) {
            self.push_action(Action::CloseLink(id));
            let reason = format!("the server refused: {}", String::from_utf8_lossy(&text));
            self.note_link_lost(id, &reason, Some(text));
        }
    }

    /// A server has got another address: an attempt to connect a link of that server begins anew.
    /// Returns whether the link was up, and is lost.
    pub(crate) fn leave_old_address(&mut self, id: LinkId, server: ServerId) -> bool {
        let link = self.links.get(id);
        let Some(link) = link.filter(|link| link.kind.server == server) else {
            return false;
        };
        match link.state {
            LinkState::Up => {
                self.lose_link(id, "the Sentinels have another primary now");
                return true;
            }
            // Requests that wait for this link were not sent, so they wait on.
            LinkState::Connecting { .. } | LinkState::Handshaking { .. } => {
                self.push_action(Action::CloseLink(id));
                self.connect(id);
            }
            LinkState::Down
            | LinkState::Lost
            | LinkState::Backoff { .. }
            | LinkState::Retrying { .. } => {}
        }
        false
    }

    /// Notes the loss of a link that has no connection any more.
    pub(crate) fn note_link_lost(
        &mut self,
        id: LinkId,
        reason: &str,
        handshake_error: Option<Vec<u8>>,
    ) {
        // The state is about to change, and with it the handshake goes.
        self.note_lost_questions(id);
        let mut was_up = false;
        if let Some(link) = self.links.get_mut(id) {
            was_up = link.is_up();
            link.state = LinkState::Lost;
            link.admit(false, false);
        }
        self.turn.lost_links.push_back(LostLink {
            link: id,
            was_up,
            reason: reason.to_owned(),
            handshake_error,
        });
    }

    /// Whether a link is lost, and its loss is not handled yet.
    pub(crate) fn is_link_lost(&self, id: LinkId) -> bool {
        let link = self.links.get(id);
        link.is_some_and(|link| matches!(link.state, LinkState::Lost))
    }
}

/// Steps of the handling of a loss.
impl DataPlane {
    /// Takes a lost link down: sorts out its ledger, and gathers the facts for the other steps.
    pub(crate) fn take_down(&mut self, lost: LostLink, awaits_password: bool) -> Option<LinkDown> {
        let LostLink {
            link: id,
            was_up,
            reason,
            handshake_error,
        } = lost;
        // Requests to repeat go back to the ledger before it is sorted out.
        self.ask_again(id);
        self.lose_successor(id, handshake_error.as_deref());
        let now = self.now;
        let link = self.links.get_mut(id)?;
        link.state = LinkState::Down;
        let (kind, role) = (link.kind, link.role);
        let lasted = was_up && now.since_ms(link.up_since) >= STABLE_MS;
        if was_up {
            link.lost_at = Some(now);
        }
        let connects_at_once =
            !self.is_left(kind.server) && (lasted || was_up && self.reconnects_at_once(id));
        // A password that comes from a file may be replaced there at any moment.
        let may_retry = handshake_error.is_none() || awaits_password;
        if may_retry {
            self.begin_outage(kind.server, was_up);
        }
        let retries = may_retry && self.retries(id, was_up);
        // Reads need not wait for this link: other servers may execute them.
        let reads_move = role.is_multiplexed() && self.pool_of(kind.server).readers.is_some();
        let label = self.label(id).to_owned();
        let link = self.links.get_mut(id)?;
        let begins_to_track = link.ledger.has_tracking_request();
        let cut_off = match link.cutting && link.scanner.kind() != b'>' {
            true => link.ledger.first_in_flight().map(|entry| entry.session),
            false => None,
        };
        // A server that refuses the link is alive: its error goes to the client.
        let is_away = was_up || !retries && handshake_error.is_none();
        let shut_down_by = link.ledger.is_shut_down_by().filter(|_| was_up);
        let has_left = link.sends == Sends::Nothing;
        if has_left || is_away && link.holds_a_waiter() || shut_down_by.is_some() {
            // The client has left, or its connection is closed in place of an error.
            link.ledger
                .iter_mut()
                .for_each(|entry| *entry = entry.silenced(true));
        }
        let keeps_fragment = retries && !was_up && link.streaming != Streaming::No;
        let again = reads_move || connects_at_once && role == LinkRole::Shared;
        let gone = match keeps_fragment {
            true => Vec::new(),
            false => link.disconnect(again),
        };
        let tried = !link.is_untried();
        link.attempt = ConnectAttempt::Fair;
        let (began, may_be_replaced) = (
            link.attempted_at,
            link.handles_redirects && role == LinkRole::Shared,
        );
        self.forget_asking(id);
        Some(LinkDown {
            link: id,
            server: kind.server,
            kind,
            role,
            label,
            reason,
            handshake_error,
            was_up,
            connects_at_once,
            awaits_password,
            retries,
            is_away,
            may_be_replaced,
            reads_move,
            keeps_fragment,
            has_left,
            tried,
            began,
            begins_to_track,
            cut_off,
            shut_down_by,
            gone,
        })
    }

    /// Takes the requests that do not wait for the link's next connection.
    pub(crate) fn take_stranded(&mut self, down: &LinkDown) -> Vec<Entry> {
        let Some(link) = self.links.get_mut(down.link) else {
            return Vec::new();
        };
        match down.role {
            LinkRole::Shared | LinkRole::Probe => Vec::new(),
            // A hub makes its requests anew. The messages that subscribers publish on the line
            // fail.
            LinkRole::HubLine(_) => link.take_unsent(|_| true),
            _ if down.retries => Vec::new(),
            _ => link.take_unsent(|_| true),
        }
    }

    /// Notes the loss at the link and in the health of its server. Returns whether the log reports
    /// it.
    pub(crate) fn note_down(&mut self, down: &LinkDown) -> bool {
        let Some(link) = self.links.get_mut(down.link) else {
            return false;
        };
        if down.connects_at_once {
            let lost = |entry: &&Entry| entry.earlier_attempt() == EarlierAttempt::Lost;
            self.counters.reads_sent_again += link.ledger.iter().filter(lost).count() as u64;
        }
        link.failures = match down.connects_at_once {
            true => 0,
            false => link.failures.saturating_add(1),
        };
        down.reason.clone_into(&mut link.reason);
        let is_refused = down.handshake_error.is_some();
        // If no session uses the link, the error concerns only the client that wanted it.
        let concerns_client = is_refused && link.attached == 0 && !link.waiters.is_empty();
        // A server that wanted a password still wants it, until a link is up without one.
        if is_refused || !wants_password(link) {
            link.handshake_error.clone_from(&down.handshake_error);
        }
        let wants_login = is_refused && wants_password(link);
        if !down.tried {
            return false;
        }
        self.counters.links_lost += 1;
        let (now, attempt) = (self.now, (down.began, down.retries));
        match is_refused {
            _ if down.was_up && down.has_left => {}
            _ if down.was_up => self.health(down.server).handle_loss(now),
            true if concerns_client || down.kind.user != CONFIGURED => {}
            true if !down.awaits_password => {
                self.health(down.server).handle_refusal(now, wants_login)
            }
            _ => self.note_unreachable(down.server, attempt, &down.reason),
        }
        // The loss of a session's own link tells no more than that of the shared link.
        !concerns_client
            && matches!(
                down.role,
                LinkRole::Shared | LinkRole::HubLine(_) | LinkRole::Sentinel
            )
    }

    /// Reports a loss in the log.
    pub(crate) fn report_down(&mut self, down: &LinkDown) {
        self.emit(Event::LinkDown {
            server: down.label.clone(),
            pool: self.pool_name(down.server).to_owned(),
            reason: down.reason.clone(),
        });
    }

    /// Puts a link into back-off.
    fn back_off(&mut self, id: LinkId) {
        let Some(link) = self.links.get(id) else {
            return;
        };
        let waits_for_logins = wants_password(link) && link.role == LinkRole::Shared;
        let (server, failures) = (link.kind.server, link.failures);
        let until = match self.away_until(server) {
            Some(until) => until,
            None if waits_for_logins => self.now.plus_ms(NEEDS_LOGIN_MS),
            None => self.now.plus_ms(self.back_off_ms(failures)),
        };
        if let Some(link) = self.links.get_mut(id) {
            link.state = LinkState::Backoff { until };
        }
    }

    /// Fails the requests that a lost link does not send again, and closes sessions that cannot go
    /// on without it.
    pub(crate) fn fail_lost(&mut self, down: &LinkDown, stranded: &[Entry]) {
        let lost = down.cause();
        if let Some(session) = down.cut_off {
            // The client has a fragment of a reply: it would take an error for the rest of it.
            let server = &down.label;
            self.close_for(
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
            self.close_when_answered(session);
        }
        for entry in stranded {
            self.fail_unsent(down.link, *entry, lost);
        }
        if down.was_up
            && down.connects_at_once
            && down.role == LinkRole::Shared
            && !down.may_be_replaced
        {
            // The session that was cut off is closed by now. Its requests leave the ledger here.
            self.ask_pipelines_apart(down.link, down.cut_off);
        }
    }

    /// Begins the next attempt of a lost link. Returns whether there is one.
    pub(crate) fn try_next(&mut self, down: &LinkDown) -> bool {
        match down.next_attempt() {
            NextAttempt::Now => self.connect(down.link),
            NextAttempt::Soon => self.retry_later(down.link),
            NextAttempt::AfterBackoff => {
                self.back_off(down.link);
                self.fail_waiting(down.link);
                self.bound_refused(down.link);
            }
            NextAttempt::Never => return false,
        }
        true
    }

    /// Removes a link that is lost for good.
    pub(crate) fn end_lost(&mut self, down: &LinkDown) {
        match down.role {
            LinkRole::Streaming { by } | LinkRole::Pinned { by } => {
                self.fail_large(by, down.link, down.cause());
            }
            LinkRole::Probe => self.fail_waiting(down.link),
            LinkRole::Redirect { .. }
            | LinkRole::Shared
            | LinkRole::Draining { .. }
            | LinkRole::Emergency { .. }
            | LinkRole::HubLine(_)
            | LinkRole::Sentinel
            | LinkRole::Idle => {}
        }
        self.remove_link(down.link);
    }

    /// Bounds the refused links of a server, for example to a database that it does not have. If
    /// there are too many, the oldest one is removed. The next tick removes all refused links that
    /// no session uses. Until then, a client could fill `links-max` with them.
    fn bound_refused(&mut self, newest: LinkId) {
        let links = self.links.iter();
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
            self.remove_link(oldest);
        }
    }

    /// Whether the server has refused a shared link, and no session uses it or waits for it.
    fn is_refused_to_all(&self, link: &Link) -> bool {
        link.handshake_error.is_some()
            && link.attached == 0
            && link.waiters.is_empty()
            && link.role == LinkRole::Shared
            && link.kind.user == CONFIGURED
            && link.kind != self.default_kind(link.kind.server)
            && !self.is_routed_to(link.kind.server)
    }

    /// Closes the sessions of a link if the server refuses the link's user: it does not know the
    /// user any more, or has another password. The server has closed that user's connections, too.
    /// Returns the user if it is deleted.
    pub(crate) fn close_disowned(&mut self, id: LinkId) -> Option<u16> {
        let link = self.links.get(id)?;
        let handshake_error = link.handshake_error.as_deref().unwrap_or_default();
        let is_disowned = link.kind.user != CONFIGURED
            // Users are not replicated: the primary may know the user.
            && self.server(link.kind.server).replica_of.is_none()
            && [&b"WRONGPASS"[..], b"NOAUTH", b"NOPERM"]
                .iter()
                .any(|code| handshake_error.starts_with(code));
        if !is_disowned {
            return None;
        }
        let user = link.kind.user;
        // NOPERM refuses a command of the handshake, and not the user.
        let is_deleted = !handshake_error.starts_with(b"NOPERM");
        let sessions = self.sessions.iter();
        let sessions = sessions.filter(|(_, session)| session.link == id);
        for session in sessions.map(|(id, _)| id).collect::<Vec<_>>() {
            self.close_when_answered(session);
        }
        is_deleted.then_some(user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_plane::link::{HubId, LineId};
    use crate::data_plane::test_plane::plane_with_link;
    use crate::routing::pool::ServerId;
    use respool_protocol::encode::Version;

    fn down(role: LinkRole, was_up: bool, connects_at_once: bool, retries: bool) -> LinkDown {
        let server = ServerId(0);
        LinkDown {
            link: LinkId::NONE,
            server,
            kind: LinkKind {
                server,
                version: Version::Resp2,
                db: 0,
                user: CONFIGURED,
                lane: 0,
            },
            role,
            label: String::new(),
            reason: String::new(),
            handshake_error: None,
            was_up,
            connects_at_once,
            awaits_password: false,
            retries,
            is_away: true,
            may_be_replaced: false,
            reads_move: false,
            keeps_fragment: false,
            has_left: false,
            tried: true,
            began: Time(0),
            begins_to_track: false,
            cut_off: None,
            shut_down_by: None,
            gone: Vec::new(),
        }
    }

    /// Links for all sessions always try again. Other links try again only while their session has
    /// lost nothing.
    #[test]
    fn next_attempt_follows_from_role_and_loss() {
        use NextAttempt::{AfterBackoff, Never, Now, Soon};
        let by = SessionId::NONE;
        let hub = LinkRole::HubLine(LineId {
            hub: HubId(0),
            line: 0,
        });
        // After a lasting connection, during an outage, after a failed attempt, after a young
        // connection.
        let cases = [
            (LinkRole::Shared, [Now, Soon, AfterBackoff, AfterBackoff]),
            (hub, [Now, Soon, AfterBackoff, AfterBackoff]),
            (LinkRole::Sentinel, [Now, Soon, AfterBackoff, AfterBackoff]),
            (
                LinkRole::Redirect { to: 1 },
                [Never, Soon, AfterBackoff, Never],
            ),
            (LinkRole::Pinned { by }, [Never, Soon, Never, Never]),
            (LinkRole::Streaming { by }, [Never, Soon, Never, Never]),
            (LinkRole::Draining { by }, [Never, Soon, Never, Never]),
            (LinkRole::Emergency { by }, [Never, Soon, Never, Never]),
            (LinkRole::Probe, [Never, Soon, Never, Never]),
            (LinkRole::Idle, [Never, Soon, Never, Never]),
        ];
        for (role, expected) in cases {
            let losses = [
                down(role, true, true, false),
                down(role, false, false, true),
                down(role, false, false, false),
                down(role, true, false, false),
            ];
            assert_eq!(losses.map(|down| down.next_attempt()), expected, "{role:?}");
        }
    }

    /// A link that is lost twice before the loss is handled is closed once, for the first reason.
    /// No request uses it meanwhile.
    #[test]
    fn lost_link_is_queued_once_and_takes_no_requests() {
        let (mut plane, link_id) = plane_with_link();
        plane.lose_link(link_id, "first");
        plane.lose_link(link_id, "second");
        let link = plane.links.get(link_id).expect("the link is there");
        assert!(!link.is_up() && !link.takes() && !link.accepting() && !link.tries());
        assert!(!plane.has_link_up(ServerId(0)));
        assert_eq!(Vec::from(plane.turn.actions), [Action::CloseLink(link_id)]);
        let lost: Vec<LostLink> = plane.turn.lost_links.into();
        assert!(matches!(&lost[..], [lost] if lost.was_up && lost.reason == "first"));
    }

    /// A lasting link connects again at once, and its server counts one loss.
    #[test]
    fn lasting_link_connects_again_at_once() {
        let (mut plane, link_id) = plane_with_link();
        plane.now = Time(0).plus_ms(STABLE_MS as u32);
        plane.lose_link(link_id, "gone");
        let lost = plane.turn.lost_links.pop_front().expect("the link is lost");
        let down = plane.take_down(lost, false).expect("the link is there");
        assert!(down.was_up && down.connects_at_once && down.tried);
        assert!(down.gone.is_empty() && plane.take_stranded(&down).is_empty());
        assert!(plane.note_down(&down), "the log reports the loss");
        assert_eq!(down.next_attempt(), NextAttempt::Now);
        assert_eq!(plane.server(ServerId(0)).health.lost_total, 1);
        let link = plane.links.get(link_id).expect("the link is there");
        assert_eq!((link.failures, link.reason.as_str()), (0, "gone"));
    }
}
