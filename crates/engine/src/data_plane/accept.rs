//! Clients that connect or send no more, and the bytes that their sockets take.

use respool_protocol::encode::Version;

use crate::base::arrivals::ArrivalSlot;
use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::burst::Burst;
use crate::data_plane::coalesce::{BatchMove, SetRun};
use crate::data_plane::cork::Cork;
use crate::data_plane::resume::ListMark;
use crate::data_plane::session::{Flags, Origin, Pins, Session, SessionState};
use crate::data_plane::session_state::Holds;
use crate::data_plane::slow_readers::DEFAULT_LANE;

/// The state of a session after its client has ended its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputEnd {
    /// It is closed.
    Closed,
    /// The server makes it wait. The wait ends.
    EndsWait,
    /// It goes on until its requests are answered.
    Goes,
}

impl DataPlane {
    /// Makes the session of a client that has connected to the pool of this index.
    pub(crate) fn accept(&mut self, from: Origin, pool: usize) -> SessionId {
        let server = self.first_up(pool);
        let kind = self.default_kind(server);
        let link = self.shared_link(kind).unwrap_or(LinkId::NONE);
        let mut state = SessionState::default();
        if self.must_authenticate(pool) {
            state |= Flags::UNAUTHENTICATED;
        }
        if self.pools[pool].is_routed() {
            state |= Flags::ROUTED;
        }
        if self.pools.removes_prefix(pool) {
            state |= Flags::REWRITES_KEYS;
        }
        let session = Session {
            state,
            version: Version::Resp2,
            pins: Pins::default(),
            batch: 0,
            behind: BatchMove::default(),
            block: 0,
            sets: SetRun::default(),
            reads_in_order: false,
            burst: Burst::default(),
            link: LinkId::NONE,
            next_seq: 0,
            head_seq: 0,
            out: Default::default(),
            held: Vec::new(),
            partial: None,
            answered_at: Time(0),
            gap_us: u32::MAX,
            expected: ArrivalSlot::NOT,
            listed: ListMark::default(),
            resuming: ListMark::default(),
            cork: Cork::NONE,
            db: kind.db,
            pool: pool as u16,
            server,
            listener: from.listener,
            user: CONFIGURED,
            lane: DEFAULT_LANE,
            id: self.next_session,
            peer: from.peer,
            local: from.local,
            fd: from.fd,
            is_unread: false,
            has_queued: false,
            last_command: None,
            bytes_in: 0,
            bytes_out: 0,
            accepted_at: self.now,
            active_at: self.now,
            took_at: self.now,
            rare: None,
        };
        self.next_session += self.worker.count as u64;
        self.counters.sessions_total += 1;
        let session = self.sessions.insert(session);
        self.reset_reading(session);
        self.attach(session, link);
        session
    }

    /// A client sends no more bytes.
    pub(crate) fn end_input(&mut self, id: SessionId) -> InputEnd {
        let Some(session) = self.sessions.get_mut(id) else {
            return InputEnd::Closed;
        };
        session.state.end_input();
        self.input_end(id, self.is_to_wait(id))
    }

    /// A client has ended its input while its socket is not read. Unread bytes count as input.
    pub(crate) fn end_unread_input(&mut self, id: SessionId) -> InputEnd {
        let is_finished = self.sessions.get(id).is_some_and(Session::is_finished);
        self.input_end(id, self.is_to_wait(id) || is_finished)
    }

    fn input_end(&mut self, id: SessionId, closes: bool) -> InputEnd {
        if closes {
            self.close(id);
            return InputEnd::Closed;
        }
        if self.waits_at_server(id) {
            return InputEnd::EndsWait;
        }
        let is_paused = |session: &Session| session.state.holds().any(Holds::PAUSE);
        if self.sessions.get(id).is_some_and(is_paused) {
            // As in Redis, its held request is not executed. Its bytes are dropped: a large request
            // may be cut by that.
            self.close_when_answered(id);
        }
        InputEnd::Goes
    }

    /// A session's socket took `count` bytes of its output.
    #[inline]
    pub(crate) fn session_written(&mut self, id: SessionId, count: usize) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.out.take(count, &mut self.spare_buffers);
        session.took_at = self.now;
        session.active_at = self.now;
        session.bytes_out += count as u64;
        self.held_bytes -= count;
        self.counters.session_bytes_out += count as u64;
        if session.state.holds().any(Holds::OUTPUT)
            && session.out.len() <= self.settings.limits.session_output_soft_bytes as usize / 2
            && self.read_links_again(id)
        {
            self.release(id, Holds::OUTPUT);
        }
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if session.out.is_empty() {
            if session.state.holds().any(Holds::MEMORY) {
                self.release(id, Holds::MEMORY);
            }
            self.finish_if_done(id);
        }
    }

    /// Drops the entries of a closed session in tables beside that of the sessions.
    pub(crate) fn forget_session(&mut self, id: SessionId) {
        self.scattered.remove(id);
        self.held_bytes -= self.polling.forget(id);
    }

    /// The next session with something to write.
    #[inline]
    pub(crate) fn poll_session(&mut self) -> Option<SessionId> {
        while let Some(id) = self.turn.dirty.pop() {
            if let Some(session) = self.sessions.get_mut(id) {
                session.listed.leave();
                return Some(id);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_plane::test_plane::{plane_with_link, session_of};

    /// A session goes on after its client has ended its input. In a pause it takes no more
    /// requests.
    #[test]
    fn end_of_input_depends_on_the_wait_of_the_session() {
        let (mut plane, _) = plane_with_link();
        let session = session_of(&mut plane);
        assert_eq!(plane.end_unread_input(session), InputEnd::Goes);
        assert_eq!(plane.end_input(session), InputEnd::Goes);
        let paused = session_of(&mut plane);
        plane.hold(paused, Holds::PAUSE);
        assert_eq!(plane.end_input(paused), InputEnd::Goes);
        let closes = |plane: &DataPlane, id| {
            let session = plane.sessions.get(id);
            session.is_none_or(|session| session.state.is_closing())
        };
        assert!(closes(&plane, paused) && !closes(&plane, session));
        plane.close(session);
        assert_eq!(plane.end_input(session), InputEnd::Closed);
    }
}
