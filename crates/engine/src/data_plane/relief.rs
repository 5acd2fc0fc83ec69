//! The memory of a whole worker: its measurement, and the relief when it is short.

use std::collections::HashSet;

use crate::base::buffer::shrink;
use crate::base::counters::Counters;
use crate::base::handle::SessionId;
use crate::base::limits::UNAUTHENTICATED_HELD_BYTES_MAX;
use crate::data_plane::DataPlane;
use crate::data_plane::actions::Event;
use crate::data_plane::link::{Link, LinkRole};
use crate::data_plane::memory::{Audited, SharedMemory, ShedReason};
use crate::data_plane::session::{Flags, Session};
use crate::data_plane::session_state::Holds;
use crate::routing::pool::ServerId;

impl DataPlane {
    /// The bytes that the driver may read from links before they are measured again.
    pub(crate) fn links_bytes_read_max(&self) -> usize {
        let max = self.settings.limits.worker_memory_bytes_max;
        usize::try_from(max / RECOUNT_DIVISOR).unwrap_or(usize::MAX)
    }

    /// Measures the worker's memory beside the sessions' own. `shared`: the memory of the
    /// components.
    pub(crate) fn measure_shared(&mut self, mut shared: SharedMemory) {
        let is_tight = self.memory.is_filling(self.held_bytes);
        let mut on_links = Vec::new();
        let mut keys = std::mem::take(&mut self.turn.ticking);
        keys.extend(self.links.iter().map(|(id, _)| id));
        for id in keys.drain(..) {
            let Some(link) = self.links.get_mut(id) else {
                continue;
            };
            if is_tight && link.role != LinkRole::Shared {
                link.ledger.settle();
            }
            let bytes = link.memory_bytes();
            match link.role {
                LinkRole::Pinned { by } | LinkRole::Streaming { by } => on_links.push((by, bytes)),
                _ => shared.links += bytes,
            }
        }
        self.turn.ticking = keys;
        let scanners = self.scanners.iter().map(|scanner| scanner.memory_bytes());
        shared.rest += self.sessions.table_bytes()
            + self.sessions.slots() * SOCKET_BYTES
            + self.memory.table_bytes()
            + self.spare_buffers.memory_bytes()
            + scanners.sum::<usize>();
        self.memory.note_shared(shared, on_links);
    }

    /// Weighs some of the sessions, and closes sessions that take too long to authenticate.
    /// `shared`: the memory of the components.
    pub(crate) fn tick_memory(&mut self, shared: SharedMemory) {
        #[cfg(debug_assertions)]
        self.check_held();
        self.measure_shared(shared);
        self.memory.handle_tick(self.held_bytes, self.now);
        let audited = self.audit(self.memory.is_filling(self.held_bytes));
        for id in audited.wasteful {
            if let Some(session) = self.sessions.get_mut(id) {
                shrink(&mut session.held);
            }
            self.weigh(id);
        }
        for id in audited.late {
            let limit_ms = self.settings.timeouts.authenticate_ms;
            let reason = format!("authenticate-timeout-ms: not authenticated within {limit_ms} ms");
            self.close_unauthenticated(id, reason);
        }
    }

    /// Frees memory of sessions: see [`crate::data_plane::memory`]. `shared`: the memory of the
    /// components.
    #[cold]
    #[inline(never)]
    pub(crate) fn shed(&mut self, shared: SharedMemory) {
        self.measure_shared(shared);
        self.audit(true);
        for (id, reason) in self.memory.shed(self.held_bytes, self.now) {
            let text = format!("worker-memory-bytes-max: {}", reason.text());
            match reason {
                ShedReason::Unauthenticated => self.close_unauthenticated(id, text),
                ShedReason::Incomplete | ShedReason::OwedMost | ShedReason::KeptMost => {
                    self.close_for(id, text);
                }
            }
        }
        let total = self.memory.total(self.held_bytes);
        if self.memory.is_short(self.held_bytes) {
            self.hold_owed_most(total / 2);
        }
        self.memory.has_shed(self.held_bytes, self.now);
    }
}

impl DataPlane {
    /// The counters of this worker, except those that components count.
    pub(crate) fn counters_now(&self) -> Counters {
        let mut counters = Counters {
            sessions: self.sessions.len() as u64,
            links: self.links.len() as u64,
            servers_down: self.servers_down(),
            ..self.counters
        };
        self.driver.count(&mut counters);
        self.memory.count(self.held_bytes, &mut counters);
        counters
    }

    /// The number of servers that cannot be reached and to which no link is up. A node that owns
    /// slots and is also read as a replica counts once.
    fn servers_down(&self) -> u64 {
        let ids = (0..self.servers.len() as u16).map(ServerId);
        let is_out = |id| self.server(id).health.outage.is_on() && !self.has_link_up(id);
        let is_away = |id| self.away_until(id).is_some() || is_out(id);
        let away = ids.filter(|id| !self.server(*id).gone && is_away(*id));
        let keys = away.map(|id| (self.server(id).pool, &self.server(id).label));
        keys.collect::<HashSet<_>>().len() as u64
    }

    /// Counts anew the memory that a session holds. Call it where a session may have grown without
    /// output.
    pub(crate) fn weigh(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get(id) {
            self.memory.note(id, session.weigh(), self.now);
        }
    }

    /// Makes the output buffer of a session that waits for its client as small as it can be.
    pub(crate) fn settle_output(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.out.settle();
        let is_unauthenticated = session.state.any(Flags::UNAUTHENTICATED);
        let much = session.out.len() > UNAUTHENTICATED_HELD_BYTES_MAX;
        if is_unauthenticated && much && !session.state.holds().any(Holds::OUTPUT) {
            self.hold(id, Holds::OUTPUT);
        }
        self.weigh(id);
    }

    pub(crate) fn audit(&mut self, all: bool) -> Audited {
        let time = (self.now, self.settings.timeouts.authenticate_ms);
        self.memory.audit(&self.sessions, Session::weigh, all, time)
    }

    /// Holds the sessions with the most unwritten replies until their clients have taken all. It
    /// holds as many sessions as have `bytes` together. Sessions that are held already do not
    /// count, so the next ones are held, too.
    fn hold_owed_most(&mut self, bytes: usize) {
        let mut sum = 0;
        for (id, owed) in self.memory.owed_most() {
            let may_help = |session: &Session| {
                !session.out.is_empty() && !session.state.holds().any(Holds::MEMORY)
            };
            if self.sessions.get(id).is_some_and(may_help) {
                self.hold(id, Holds::MEMORY);
                sum += owed;
            }
            if sum >= bytes {
                break;
            }
        }
    }

    /// Closes a session that has not authenticated. Any client can cause that, so the log reports
    /// it at most once a minute.
    fn close_unauthenticated(&mut self, id: SessionId, reason: String) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let peer = session.peer.to_string();
        self.counters.sessions_closed_by_us += 1;
        self.counters.sessions_closed_unauthenticated += 1;
        if let Some(unlogged) = self.memory.may_log_unauthenticated(self.now) {
            let reason = match unlogged {
                0 => reason,
                more => format!("{reason}; {more} more since the last such line"),
            };
            self.emit(Event::SessionClosed { peer, reason });
        }
        self.close(id);
    }

    /// Asserts that `held_bytes` is the sum of the bytes that all sessions hold, polled commands
    /// included.
    #[cfg(debug_assertions)]
    pub(crate) fn check_held(&self) {
        let sessions = self.sessions.iter();
        let held: usize = sessions.map(|(_, session)| session.held_bytes()).sum();
        assert_eq!(
            self.held_bytes,
            held + self.polling.held_bytes(),
            "held_bytes differs from what the sessions hold"
        );
    }
}

impl Link {
    /// Bytes of memory that the link takes.
    fn memory_bytes(&self) -> usize {
        size_of::<Link>()
            + self.ledger.memory_bytes()
            + self.partial.capacity()
            + self.unscanned.capacity()
    }
}

/// The bound divided by this is read before links are measured again.
const RECOUNT_DIVISOR: u64 = 64;

/// Bytes that the driver keeps for a session.
const SOCKET_BYTES: usize = 64;
