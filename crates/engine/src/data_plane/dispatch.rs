//! Requests that go to their session's link on the slow path.

use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::local::LocalCompletion;
use crate::data_plane::ingress::{Blocked, Dispatched, Request};
use crate::data_plane::ledger::{Class, Entry};
use crate::data_plane::link::LinkRole;
use crate::data_plane::quick_code::may_hold_up;
use crate::data_plane::session::{Flags, Pins, SessionState};
use crate::data_plane::slow_readers::CODE_LANE;
use crate::routing::pool::ServerId;
use crate::routing::replica_table::NoReader;

impl DataPlane {
    /// Begins a request of `len` bytes on the slow path. Returns the states of its session. `None`:
    /// the session waits.
    pub(crate) fn begin_slow(&mut self, id: SessionId, len: usize) -> Option<SessionState> {
        // The hot path has counted the request. It counts again when it is dispatched.
        self.counters.requests -= 1;
        let Some(session) = self.sessions.get_mut(id) else {
            return Some(SessionState::default());
        };
        session.burst.place(session.next_seq, len);
        let state = session.state;
        if self.leaves_before_request(id) {
            self.hold_to_leave_pool(id);
            return None;
        }
        if state.any(Flags::FUSED) && self.hold_until_caught_up(id) {
            return None;
        }
        if state.any(Flags::ROUTED)
            && let Some(session) = self.sessions.get_mut(id)
        {
            session.state |= Flags::REPLY_TIME_UNKNOWN;
        }
        Some(state)
    }

    /// Puts a request on the session's link on the slow path: the link is not up, not accepting or
    /// no longer the session's, or the reply has a completion.
    pub(crate) fn dispatch_on_link(
        &mut self,
        id: SessionId,
        bytes: &[u8],
        reads: bool,
        completion: Option<Completion>,
    ) -> Dispatched {
        let simple = completion.is_none();
        match self.dispatch_entry(
            id,
            bytes,
            reads,
            completion.unwrap_or(Completion::Pass),
            simple,
        ) {
            Ok(dispatched) => dispatched,
            Err(_) => Dispatched::Wait,
        }
    }

    /// Sends a read to the first server that answers, or to the present one if the session `stays`.
    pub(crate) fn ask_any(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        stays: bool,
        completion: LocalCompletion,
    ) -> Dispatched {
        if !stays {
            self.switch_to_first_up(id);
        }
        let completion = Completion::Local(completion);
        self.dispatch_on_link(id, request.bytes, true, Some(completion))
    }

    /// Puts a request with a completion on the session's link. If the request has to wait, the
    /// completion is given back.
    pub(crate) fn dispatch_with(
        &mut self,
        id: SessionId,
        bytes: &[u8],
        reads: bool,
        completion: Completion,
    ) -> Result<Dispatched, Completion> {
        self.dispatch_entry(id, bytes, reads, completion, false)
    }

    fn dispatch_entry(
        &mut self,
        id: SessionId,
        bytes: &[u8],
        reads: bool,
        completion: Completion,
        simple: bool,
    ) -> Result<Dispatched, Completion> {
        let link_id = match self.usable_link_for(id, bytes, reads) {
            Ok(link_id) => link_id,
            Err(Blocked::Wait) => return Err(completion),
            Err(blocked) => return Ok(self.blocked(id, blocked)),
        };
        if self.tracks_several(id) {
            self.put_caching(id, link_id);
        }
        let (Some(session), Some(link)) = (self.sessions.get_mut(id), self.links.get_mut(link_id))
        else {
            return Ok(Dispatched::Done);
        };
        let seq = session.take_seq();
        let silent = session.state.is_silent();
        let entry = Entry {
            len: bytes.len() as u32,
            class: Class::of(reads),
            command: session.last_command.into(),
            ..Entry::of(id, seq, self.read_at)
                // Each reply on the code lane shows that the server has finished the code.
                .with_completion(silent || !simple || link.kind.lane == CODE_LANE)
                .silenced(silent)
        };
        if entry.has_completion() {
            link.ledger.push_with(entry, bytes, completion);
        } else {
            link.ledger.push(entry, bytes);
        }
        self.counters.link_requests += 1;
        self.list_link(link_id);
        Ok(Dispatched::Done)
    }

    /// Puts a request of respool's own on a session's link. No session gets its reply.
    pub(crate) fn ask_for_ourselves(
        &mut self,
        id: SessionId,
        bytes: &[u8],
        completion: Completion,
    ) -> Result<LinkId, Blocked> {
        let link = self.usable_link(id)?;
        self.put_ours(link, bytes, completion);
        Ok(link)
    }

    /// The link for a session's next request, ready to take it.
    pub(crate) fn usable_link(&mut self, id: SessionId) -> Result<LinkId, Blocked> {
        let Some(session) = self.sessions.get(id) else {
            return Err(Blocked::Wait);
        };
        if self.tracks_several(id) {
            let link = self.attach_tracking(id)?;
            return self.ready_link(id, link);
        }
        let link = session.link;
        let kind = self.kind_with_lane(session);
        let usable = self.links.get(link).is_some_and(|link| {
            link.role == LinkRole::Shared || link.role == LinkRole::Pinned { by: id }
        });
        if !usable {
            // A slow session drains the link, or the session never had one. It gets another link
            // when its requests in flight are answered.
            if self.hold_until_caught_up(id) {
                return Err(Blocked::Wait);
            }
            let fresh = self.shared_link_for(id, kind)?;
            self.attach(id, fresh);
            return self.usable_link(id);
        }
        self.ready_link(id, link)
    }

    /// The link for these requests, ready to take them. They wait if the server would hold them.
    fn usable_link_for(
        &mut self,
        id: SessionId,
        requests: &[u8],
        reads: bool,
    ) -> Result<LinkId, Blocked> {
        let link = self.usable_link(id)?;
        match self.await_writes(id, link, requests, reads) {
            Some(blocked) => Err(blocked),
            None => Ok(link),
        }
    }

    /// The link to a server, ready for a request of this session: the shared link, or the link on
    /// which the session tracks keys.
    pub(crate) fn link_to(
        &mut self,
        session_id: SessionId,
        server: ServerId,
        request: &Request<'_>,
    ) -> Result<LinkId, Blocked> {
        if self.tracks_several(session_id) {
            let link = self.tracking_link(session_id, server)?;
            return self.ready_link(session_id, link);
        }
        let Some(session) = self.sessions.get(session_id) else {
            return Err(Blocked::Wait);
        };
        let mut kind = self.kind_at(session, server);
        if may_hold_up(request.id) {
            kind = self.kind_for_flush(session_id, kind);
        }
        let link = match self.current_link(kind) {
            Some(link) => link,
            None => self.shared_link_for(session_id, kind)?,
        };
        let link = self.ready_link(session_id, link)?;
        match self.await_writes(session_id, link, request.bytes, request.reads()) {
            Some(blocked) => Err(blocked),
            None => Ok(link),
        }
    }

    /// The server for a request with these keys' owner: the owner, or the server that is read in
    /// its place.
    pub(crate) fn owner_in_reach(
        &mut self,
        id: SessionId,
        owner: ServerId,
        request: &Request<'_>,
    ) -> Result<ServerId, NoReader> {
        let Some(session) = self.sessions.get(id) else {
            return Ok(owner);
        };
        let kind = self.kind_of(session);
        self.server_in_reach(id, owner, request.command, kind)
    }

    /// Sends one request on a pinned link, because it may wait at the server (`waits`) or must not
    /// wait behind others. It leaves no state behind but that of `pins`.
    pub(crate) fn dispatch_alone(
        &mut self,
        id: SessionId,
        bytes: &[u8],
        (reads, completion): (bool, Option<Completion>),
        pins: Pins,
        waits: bool,
    ) -> Dispatched {
        if let Err(blocked) = self.pin(id, pins) {
            return self.blocked(id, blocked);
        }
        let dispatched = self.dispatch_on_link(id, bytes, reads, completion);
        if dispatched == Dispatched::Done {
            self.unpin_behind(id, pins, waits);
        }
        dispatched
    }
}
