//! Requests that have waited: they are taken again, or answered if their deadline is over.

use respool_protocol::request::RequestScanner;

use crate::base::handle::SessionId;
use crate::base::time::Stamp;
use crate::data_plane::deadlines::ExpiredRequest;
use crate::data_plane::ingress::Dispatched;
use crate::data_plane::session::Session;
use crate::engine::Engine;

impl Engine {
    /// Takes requests from the bytes that a session holds. Returns the number of bytes taken.
    pub(crate) fn take_waiting(&mut self, id: SessionId, held: &[u8]) -> usize {
        let holds = |session: &Session| session.state.is_held();
        if self.plane.sessions.get(id).is_none_or(holds) {
            return 0;
        }
        let Some((read_at, len)) = self.plane.take_held_bytes(id) else {
            return self.take_requests(id, held);
        };
        let old = held.get(..len).unwrap_or(held);
        // A session that waits at a bound has its own deadline, with an error that names the bound.
        let is_over = self.plane.is_expired(read_at) && self.plane.deadline_of(id).is_none();
        let used = match is_over {
            true => self.expire(id, old, read_at),
            false => self.take_read_at(id, old, read_at),
        };
        let is_held = self.plane.sessions.get(id).is_some_and(holds);
        if is_held && used < old.len() {
            self.plane.note_held_bytes(id, read_at, old.len() - used);
        }
        if is_held || used == held.len() {
            return used;
        }
        let rest = held.get(used..).unwrap_or_default();
        used + self.take_requests(id, rest)
    }

    /// Takes requests that were read at `read_at`.
    fn take_read_at(&mut self, id: SessionId, bytes: &[u8], read_at: Stamp) -> usize {
        self.plane.read_at = read_at;
        let used = self.take_requests(id, bytes);
        self.plane.read_at = self.plane.now_stamp;
        used
    }

    /// Answers requests that have waited until their deadline. Returns the number of their bytes.
    fn expire(&mut self, session: SessionId, old: &[u8], read_at: Stamp) -> usize {
        self.plane.begin_expiry(session);
        let mut scanner = RequestScanner::default();
        let mut used = 0;
        while let Some(rest) = old.get(used..).filter(|rest| !rest.is_empty())
            && let Some(next) = self.plane.next_expired(session, &mut scanner, rest)
        {
            match next {
                ExpiredRequest::Nothing { len } => used += len,
                ExpiredRequest::Taken { len } => {
                    let bytes = rest.get(..len).unwrap_or(rest);
                    let taken = self.take_read_at(session, bytes, read_at);
                    used += taken;
                    if taken < len {
                        break;
                    }
                }
                ExpiredRequest::Fails { len, id } => {
                    self.access.forget_login_wait(session);
                    self.plane.read_at = read_at;
                    let (plane, transactions) = (&mut self.plane, &mut self.transactions);
                    let dispatched = transactions.expire(plane, session, id, read_at);
                    self.plane.read_at = self.plane.now_stamp;
                    if dispatched == Dispatched::Wait {
                        break;
                    }
                    self.plane.counters.requests += 1;
                    self.plane.count_down_silence(session);
                    used += len;
                }
            }
        }
        used
    }
}
