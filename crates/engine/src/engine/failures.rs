//! Requests that fail: their clients get an error in place of a reply.

use crate::base::error::{Cause, Fate};
use crate::base::handle::{LinkId, SessionId};
use crate::base::settings::AwayError;
use crate::data_plane::failure::UnsentReply;
use crate::data_plane::ingress::Dispatched;
use crate::data_plane::ledger::Entry;
use crate::data_plane::session_state::Holds;
use crate::engine::Engine;

impl Engine {
    /// The code for a request that was dispatched, if its server is away.
    pub(crate) fn away_error_of(&self, entry: Entry) -> AwayError {
        let is_share = self.scatter.is_share(&self.plane, entry);
        self.plane.away_error_of(entry, is_share)
    }

    /// Fails a request.
    pub(crate) fn fail(&mut self, entry: Entry, fate: Fate, cause: Cause<'_>) {
        let away = self.away_error_of(entry);
        self.fail_as(entry, fate, away, cause);
    }

    /// Fails a request. `away`: the error code if the server is away.
    fn fail_as(&mut self, entry: Entry, fate: Fate, away: AwayError, cause: Cause<'_>) {
        if let Some(reply) = self.plane.begin_failure(entry, fate, away, cause) {
            self.pass_on(entry, &reply);
            self.plane.scratch = reply;
        }
    }

    /// Fails a request that is past its deadline.
    pub(crate) fn give_up(&mut self, link: LinkId, entry: Entry, fate: Fate) {
        self.plane.count_late(link, &entry, fate == Fate::Unknown);
        let server = self.plane.label(link).to_owned();
        let limit_ms = self.plane.settings.timeouts.request_ms;
        let server = &server;
        self.fail(entry, fate, Cause::Deadline { server, limit_ms });
    }

    /// Fails the requests that wait at a link that is not up.
    pub(crate) fn fail_waiting(&mut self, id: LinkId) {
        let failed = self.plane.take_waiting(id);
        let reason = self.plane.links.get(id).map(|link| link.reason.clone());
        let (server, reason) = (self.plane.label(id).to_owned(), reason.unwrap_or_default());
        for entry in failed {
            let cause = Cause::NoLink {
                server: &server,
                reason: &reason,
            };
            self.fail_unsent(id, entry, cause);
        }
    }

    /// Fails a request that was not sent because its link is not up.
    pub(super) fn fail_unsent(&mut self, link: LinkId, entry: Entry, cause: Cause<'_>) {
        let away = self.away_error_of(entry);
        match self.plane.reply_to_unsent(link, away) {
            UnsentReply::Words(reply) => self.pass_on(entry, &reply),
            UnsentReply::Failure(away) => self.fail_as(entry, entry.fate_unsent(), away, cause),
        }
    }

    /// Fails a large request whose link was lost before all of it was sent. The request was not
    /// executed. The rest of its bytes is read and dropped.
    pub(super) fn fail_large(&mut self, session: SessionId, link: LinkId, cause: Cause<'_>) {
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

    /// Answers a request with an error.
    pub(crate) fn answer_error(&mut self, id: SessionId, text: &[u8]) -> Dispatched {
        self.plane.answer_error(id, text)
    }
}
