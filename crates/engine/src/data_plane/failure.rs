//! The replies to requests that fail.

use respool_protocol::encode;

use crate::base::error::{self, Cause, Fate};
use crate::base::error_text::NOAUTH;
use crate::base::handle::{LinkId, SessionId};
use crate::base::settings::AwayError;
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::wants_password;
use crate::data_plane::ledger::Entry;
use crate::data_plane::session::{Flags, Session};
use crate::data_plane::takeover::is_busy;

/// The reply to a request that was not sent because its link is not up.
pub(crate) enum UnsentReply {
    /// The server's own error, or one in its place.
    Words(Vec<u8>),
    /// An error of respool, with this code if the server is away.
    Failure(AwayError),
}

impl DataPlane {
    /// Counts a request that fails, and makes its error reply in the scratch buffer, which the
    /// caller gives back. `None`: its session is gone.
    pub(crate) fn begin_failure(
        &mut self,
        entry: Entry,
        fate: Fate,
        away: AwayError,
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
    pub(crate) fn take_waiting(&mut self, id: LinkId) -> Vec<Entry> {
        let Some(link) = self.links.get_mut(id) else {
            return Vec::new();
        };
        link.admit(false, false);
        link.take_unsent(|_| true)
    }

    /// The reply to a request that was not sent because its link is not up. `away`: its error code
    /// if the server is away.
    pub(crate) fn reply_to_unsent(&self, link: LinkId, away: AwayError) -> UnsentReply {
        let state = self.links.get(link);
        let mut reply = Vec::new();
        if state.is_some_and(wants_password) {
            encode::error(&mut reply, NOAUTH);
            return UnsentReply::Words(reply);
        }
        let refusal = state.and_then(|link| link.refusal.as_deref());
        // The server would give the same error to the client.
        if let Some(words) = refusal.filter(|words| is_busy(words)) {
            encode::error(&mut reply, words);
            return UnsentReply::Words(reply);
        }
        UnsentReply::Failure(error::away_error_at(refusal, away))
    }
}

/// The code of the error while a server is away.
impl DataPlane {
    /// The code for a request that is being dispatched, if its server is away.
    pub(crate) fn away_error(&self, session: SessionId) -> AwayError {
        self.away_error_if(session, |session| session.burst.is_alone(session.next_seq))
    }

    /// The code for a request that was dispatched, if its server is away. `is_share`: it is the
    /// share of one server of a scattered request.
    pub(crate) fn away_error_of(&self, entry: Entry, is_share: bool) -> AwayError {
        if is_share {
            // The other shares may have been executed.
            return AwayError::NotSent;
        }
        self.away_error_if(entry.session, |session| {
            let waiting = session.held.len();
            session
                .burst
                .was_alone(entry.seq, session.next_seq, waiting)
        })
    }

    fn away_error_if(&self, session: SessionId, is_alone: impl Fn(&Session) -> bool) -> AwayError {
        // A request in a transaction cannot be sent again by itself. A client with untaken replies
        // may have sent both requests in one pipeline.
        let may = |session: &Session| {
            !session.flags.any(Flags::IN_MULTI) && session.out.is_empty() && is_alone(session)
        };
        match self.sessions.get(session).is_some_and(may) {
            true => self.settings.away_error,
            false => AwayError::NotSent,
        }
    }
}
