//! Answers of respool itself, and HELLO while its server is away.

use respool_protocol::encode::{self, Version};

use crate::base::error::{Cause, Fate};
use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::handshake::Identity;
use crate::data_plane::ingress::{Dispatched, bound_reply};
use crate::data_plane::link::{Link, LinkState};
use crate::data_plane::session::{Flags, Pins, Session};

impl DataPlane {
    /// Answers a request with a reply of respool's own, in the session's order.
    pub(crate) fn answer_reply(&mut self, id: SessionId, reply: &[u8]) -> Dispatched {
        if let Some(session) = self.sessions.get_mut(id) {
            let seq = session.take_seq();
            let (silent, command) = (session.state.is_silent(), session.last_command);
            self.counters.requests_answered_locally += 1;
            self.note_if_own_error(id, command, reply);
            self.deliver(id, seq, 1, if silent { &[] } else { reply });
        }
        Dispatched::Done
    }

    /// Answers a request with an error.
    pub(crate) fn answer_error(&mut self, id: SessionId, text: &[u8]) -> Dispatched {
        let mut reply = Vec::new();
        encode::error(&mut reply, text);
        self.answer_reply(id, &reply)
    }

    /// Answers with the bytes that `write` appends, in the session's version of the protocol.
    pub(crate) fn answer_with(
        &mut self,
        id: SessionId,
        write: impl FnOnce(&mut Vec<u8>, &Session),
    ) -> Dispatched {
        let mut reply = std::mem::take(&mut self.scratch);
        reply.clear();
        if let Some(session) = self.sessions.get(id) {
            write(&mut reply, session);
            self.answer_reply(id, &reply);
        }
        self.scratch = reply;
        Dispatched::Done
    }

    /// Answers a request behind all bytes that the server has sent to the session before. A client
    /// that tracks keys takes any reply as a sign that it has got all invalidations until then.
    pub(crate) fn answer_in_order(
        &mut self,
        id: SessionId,
        write: impl FnOnce(&mut Vec<u8>, &Session),
    ) -> Dispatched {
        let Some(session) = self.sessions.get(id) else {
            return Dispatched::Done;
        };
        let gets_pushes = session.pins.any(Pins::TRACKING) && session.version == Version::Resp3;
        let is_up = self.links.get(session.link).is_some_and(Link::is_up);
        if !gets_pushes || !is_up || session.state.any(Flags::STEPS) {
            return self.answer_with(id, write);
        }
        let (mut answer, mut ping) = (Vec::new(), Vec::new());
        write(&mut answer, session);
        encode::request(&mut ping, &["PING"]);
        self.dispatch_on_link(id, &ping, true, Some(Completion::Instead(answer)))
    }

    /// The name and version that a session's server gave. The session's link may not be up yet.
    pub(crate) fn identity_of(&self, id: SessionId) -> Option<&Identity> {
        let session = self.sessions.get(id)?;
        self.identity(session.server)
    }

    /// No link has talked to the server yet: the session waits until its link is up or has failed.
    pub(crate) fn wait_for_identity(&mut self, id: SessionId) -> Dispatched {
        let Some(session) = self.sessions.get(id) else {
            return Dispatched::Done;
        };
        let link_id = session.link;
        let Some(link) = self.links.get_mut(link_id) else {
            return self.answer_reply(id, &bound_reply("links-max"));
        };
        match link.state {
            LinkState::Backoff { .. } if link.handshake_error.is_none() => self.close_at_hello(id),
            LinkState::Backoff { .. } | LinkState::Up => {
                let reply = self.no_link_reply(link_id, self.server_down_error(id));
                self.answer_reply(id, &reply)
            }
            LinkState::Down
            | LinkState::Lost
            | LinkState::Retrying { .. }
            | LinkState::Connecting { .. }
            | LinkState::Handshaking { .. } => match self.wait_until_up(id, link_id) {
                Ok(()) => Dispatched::Wait,
                Err(_) => self.close_at_hello(id),
            },
        }
    }

    /// A client sends HELLO while no server can be reached. Its connection is closed, as that of a
    /// dead server would be: libraries connect again then, while they take an error as final.
    pub(crate) fn close_at_hello(&mut self, id: SessionId) -> Dispatched {
        self.counters.failed_not_sent += 1;
        self.close_when_answered(id);
        let link = self.sessions.get(id).map(|session| session.link);
        let (server, reason) = self.last_loss(link.unwrap_or(LinkId::NONE));
        let limit_ms = self.settings.timeouts.request_ms;
        let cause = match self.is_past_deadline(id) {
            true => Cause::Deadline {
                server: &server,
                limit_ms,
            },
            false => Cause::NoLink {
                server: &server,
                reason: &reason,
            },
        };
        self.note_close_reason(id, Fate::NotSent, cause);
        Dispatched::Done
    }
}
