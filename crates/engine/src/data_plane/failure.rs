//! Requests that fail: their clients get an error in place of a reply.

use respool_protocol::encode;

use crate::base::error::{self, Cause, Fate};
use crate::base::error_text::NOAUTH;
use crate::base::handle::{LinkId, SessionId};
use crate::base::settings::ServerDownError;
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::wants_password;
use crate::data_plane::ledger::Entry;
use crate::data_plane::session::{Flags, Session};
use crate::data_plane::session_state::Holds;
use crate::data_plane::takeover::is_busy;

/// The reply to a request that was not sent because its link is not up.
enum UnsentReply {
    /// The server's own error, or one in its place.
    Words(Vec<u8>),
    /// An error of respool, with this code if the server is away.
    Failure(ServerDownError),
}

impl DataPlane {
    /// Delivers a reply to the session of the entry, if the session wants replies. If the entry is
    /// a share of a scattered request, the share fails.
    pub(crate) fn answer_or_fail(&mut self, entry: Entry, reply: &[u8]) {
        if entry.has_completion() && self.fail_share(entry, reply) {
            return;
        }
        self.deliver_to(entry, reply);
    }

    /// Delivers a server's reply that was held back to the session of the entry: the request counts
    /// now.
    pub(crate) fn deliver_held_back(&mut self, entry: Entry, reply: &[u8]) {
        self.note_whole(entry.session, entry.command, entry.read_at);
        self.answer_or_fail(entry, reply);
    }

    /// Takes the request in front off its link, and gives its session this reply.
    pub(crate) fn answer_front(&mut self, id: LinkId, front: Entry, reply: &[u8]) {
        self.note_front(id, &front);
        if let Some(link) = self.links.get_mut(id) {
            link.ledger.pop_completed(front);
        }
        self.counters.link_replies += 1;
        self.answer_or_fail(front, reply);
    }

    /// Fails a request.
    pub(crate) fn fail(&mut self, entry: Entry, fate: Fate, cause: Cause<'_>) {
        let away = self.server_down_error_of(entry);
        self.fail_as(entry, fate, away, cause);
    }

    /// Fails a request. `away`: the error code if the server is away.
    fn fail_as(&mut self, entry: Entry, fate: Fate, away: ServerDownError, cause: Cause<'_>) {
        if let Some(reply) = self.begin_failure(entry, fate, away, cause) {
            self.answer_or_fail(entry, &reply);
            self.scratch = reply;
        }
    }

    /// Fails a request that is past its deadline.
    pub(crate) fn give_up(&mut self, link: LinkId, entry: Entry, fate: Fate) {
        self.count_timed_out(link, &entry, fate == Fate::Unknown);
        // The time at which it left is unknown. A request that was sent counts as waiting for the
        // server.
        let left = match fate {
            Fate::NotSent => self.now_stamp,
            Fate::Unknown => entry.read_at,
        };
        self.watch_whole(link, (entry.session, entry.command), entry.read_at, left);
        let server = self.label(link).to_owned();
        let limit_ms = self.settings.timeouts.request_ms;
        let server = &server;
        self.fail(entry, fate, Cause::Deadline { server, limit_ms });
    }

    /// Fails the requests that wait at a link that is not up.
    pub(crate) fn fail_waiting(&mut self, id: LinkId) {
        let failed = self.take_waiting(id);
        let (server, reason) = self.last_loss(id);
        for entry in failed {
            let cause = Cause::NoLink {
                server: &server,
                reason: &reason,
            };
            self.fail_unsent(id, entry, cause);
        }
    }

    /// The server of a link, and why the link was lost or did not connect.
    pub(crate) fn last_loss(&self, id: LinkId) -> (String, String) {
        let reason = self.links.get(id).map(|link| link.reason.clone());
        (self.label(id).to_owned(), reason.unwrap_or_default())
    }

    /// Fails a request that was not sent because its link is not up.
    pub(crate) fn fail_unsent(&mut self, link: LinkId, entry: Entry, cause: Cause<'_>) {
        let away = self.server_down_error_of(entry);
        match self.reply_to_unsent(link, away) {
            UnsentReply::Words(reply) => self.answer_or_fail(entry, &reply),
            UnsentReply::Failure(away) => self.fail_as(entry, entry.fate_unsent(), away, cause),
        }
    }

    /// Fails a large request after its link was lost before all of it was sent. The request was not
    /// executed. The rest of its bytes is read and dropped.
    pub(crate) fn fail_large(&mut self, session_id: SessionId, link: LinkId, cause: Cause<'_>) {
        let Some(session) = self.sessions.get_mut(session_id) else {
            return;
        };
        let seq = session.next_seq.wrapping_sub(1);
        let Some(large) = session.rare.as_mut().and_then(|rare| rare.large.as_mut()) else {
            return;
        };
        let silent = large.silent;
        if large.link == Some(link) {
            large.link = None;
            session.state.swallow();
            let entry = Entry::of(session_id, seq, self.now_stamp)
                .of_command(session.last_command)
                .silenced(silent);
            self.fail(entry, Fate::NotSent, cause);
            self.release(session_id, Holds::LINK);
        }
    }

    /// Counts a request that fails, and makes its error reply in the scratch buffer, which the
    /// caller gives back. `None`: its session is gone.
    fn begin_failure(
        &mut self,
        entry: Entry,
        fate: Fate,
        away: ServerDownError,
        cause: Cause<'_>,
    ) -> Option<Vec<u8>> {
        self.sessions.get(entry.session)?;
        match fate {
            Fate::NotSent => self.counters.failed_not_sent += 1,
            Fate::Unknown => self.counters.failed_unknown += 1,
        }
        let mut reply = std::mem::take(&mut self.scratch);
        reply.clear();
        error::append_reply_as(&mut reply, fate, away, cause);
        Some(reply)
    }

    /// Takes the requests that wait at a link that is not up. The link takes no more.
    fn take_waiting(&mut self, id: LinkId) -> Vec<Entry> {
        let Some(link) = self.links.get_mut(id) else {
            return Vec::new();
        };
        link.admit(false, false);
        link.take_unsent(|_| true)
    }

    /// The reply to a request that was not sent because its link is not up. `away`: its error code
    /// if the server is away.
    fn reply_to_unsent(&self, link_id: LinkId, away: ServerDownError) -> UnsentReply {
        let link = self.links.get(link_id);
        let mut reply = Vec::new();
        if link.is_some_and(wants_password) {
            encode::error(&mut reply, NOAUTH);
            return UnsentReply::Words(reply);
        }
        let error = link.and_then(|link| link.handshake_error.as_deref());
        // The server would give the same error to the client.
        if let Some(words) = error.filter(|words| is_busy(words)) {
            encode::error(&mut reply, words);
            return UnsentReply::Words(reply);
        }
        UnsentReply::Failure(error::server_down_error_at(error, away))
    }
}

/// The code of the error while a server is away.
impl DataPlane {
    /// The code for a request that is being dispatched, if its server is away.
    pub(crate) fn server_down_error(&self, session: SessionId) -> ServerDownError {
        self.server_down_error_if(session, |session| session.burst.is_alone(session.next_seq))
    }

    /// The code for a request that was dispatched, if its server is away.
    pub(crate) fn server_down_error_of(&self, entry: Entry) -> ServerDownError {
        if self.scattered(entry).is_some() {
            // The other shares may have been executed.
            return ServerDownError::NotSent;
        }
        self.server_down_error_if(entry.session, |session| {
            let waiting = session.held.len();
            session
                .burst
                .was_alone(entry.seq, session.next_seq, waiting)
        })
    }

    fn server_down_error_if(
        &self,
        session: SessionId,
        is_alone: impl Fn(&Session) -> bool,
    ) -> ServerDownError {
        // A request in a transaction cannot be sent again by itself. A client with untaken replies
        // may have sent both requests in one pipeline.
        let may = |session: &Session| {
            !session.state.any(Flags::IN_MULTI) && session.out.is_empty() && is_alone(session)
        };
        match self.sessions.get(session).is_some_and(may) {
            true => self.settings.server_down_error,
            false => ServerDownError::NotSent,
        }
    }
}
