//! Memory of the whole worker: what is measured of it, and what happens when it is short.

use crate::buffer::shrink;
use crate::counters::Counters;
use crate::engine::{Engine, Event};
use crate::limits::UNAUTHENTICATED_HELD_BYTES_MAX;
use crate::link::{Link, Role};
use crate::memory::{Audited, Reason, Shared};
use crate::session::{Flags, Session};
use crate::slots::Key;

impl Engine {
    /// The driver has read [`Engine::links_bytes_read_max`] since this was called last: what links
    /// hold is measured anew.
    pub fn measure_links(&mut self) {
        self.measure_shared();
    }

    /// See [`Engine::measure_links`].
    pub fn links_bytes_read_max(&self) -> usize {
        let max = self.settings.limits.worker_memory_bytes_max;
        usize::try_from(max / RECOUNT_SHARE).unwrap_or(usize::MAX)
    }

    /// Whether memory has grown so much in this turn that sockets that are still ready wait for the
    /// next turn. Replies take memory until they are written, at the end of the turn.
    pub fn turn_is_full(&self) -> bool {
        self.memory.turn_is_full(self.held_bytes)
    }

    /// Memory of all workers' sessions, as the engine counts it; the part of other workers is a
    /// moment old.
    pub fn memory_bytes_of_all(&self) -> u64 {
        self.memory.total(self.held_bytes) as u64 + self.fleet.memory_bytes
    }

    /// Adds what is held, by account.
    pub(crate) fn count_held(&self, counters: &mut Counters) {
        let (held, shared) = self.memory.accounts();
        counters.held_bytes = self.held_bytes as u64;
        counters.memory_bytes = self.memory.total(self.held_bytes) as u64;
        counters.memory_output_bytes = held.output as u64;
        counters.memory_incomplete_bytes = held.incomplete as u64;
        counters.memory_queued_bytes = held.queued as u64;
        counters.memory_subscription_bytes = (held.subscriptions + shared.channels) as u64;
        counters.memory_answer_bytes = (held.answers + shared.answers) as u64;
        counters.memory_state_bytes = held.state as u64;
        counters.memory_link_bytes = (held.links + shared.links) as u64;
        counters.memory_unauthenticated_bytes = self.memory.strangers() as u64;
    }

    /// Counts anew what a session holds. To be called where a session may have grown without
    /// output.
    pub(crate) fn weigh(&mut self, key: Key) {
        if let Some(session) = self.sessions.get(key) {
            self.memory.note(key, session.weigh(), self.now);
        }
    }

    /// The output of a session waits for its client: its buffer is made as small as it can be.
    pub(crate) fn settle_output(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        session.out.settle();
        let is_stranger = session.flags.any(Flags::UNAUTHENTICATED);
        let much = session.out.len() > UNAUTHENTICATED_HELD_BYTES_MAX;
        if is_stranger && much && !session.flags.any(Flags::HOLD_OUTPUT) {
            self.hold(key, Flags::HOLD_OUTPUT);
        }
        self.weigh(key);
    }

    /// What the worker has beside its sessions' own memory.
    fn measure_shared(&mut self) {
        let is_tight = self.memory.is_filling(self.held_bytes);
        let mut shared = Shared::default();
        let mut on_links = Vec::new();
        let mut keys = std::mem::take(&mut self.ticking);
        keys.extend(self.links.iter().map(|(key, _)| key));
        for key in keys.drain(..) {
            let Some(link) = self.links.get_mut(key) else {
                continue;
            };
            if is_tight && link.role != Role::Shared {
                link.out.settle();
            }
            let bytes = link.memory_bytes();
            match link.role {
                Role::Pinned { by } | Role::Streaming { by } => on_links.push((by, bytes)),
                _ => shared.links += bytes,
            }
        }
        self.ticking = keys;
        shared.channels = self.hubs.iter().map(|hub| hub.held_bytes()).sum();
        shared.answers = self.answers_bytes();
        let scanners = self.scanners.iter().map(|scanner| scanner.memory_bytes());
        shared.rest = self.sessions.table_bytes()
            + self.sessions.places() * SOCKET_BYTES
            + self.memory.table_bytes()
            + self.spare.memory_bytes()
            + self.scripts.memory_bytes()
            + self.login_probes.memory_bytes()
            + scanners.sum::<usize>();
        self.memory.note_shared(shared, on_links);
    }

    fn audit(&mut self, all: bool) -> Audited {
        let time = (self.now, self.settings.timeouts.authenticate_ms);
        self.memory.audit(&self.sessions, Session::weigh, all, time)
    }

    /// Weighs sessions in turn, and closes those that take too long to authenticate.
    pub(crate) fn tick_memory(&mut self) {
        #[cfg(debug_assertions)]
        self.check_held();
        self.measure_shared();
        self.memory.handle_tick(self.held_bytes, self.now);
        let audited = self.audit(self.memory.is_filling(self.held_bytes));
        for key in audited.wasteful {
            if let Some(session) = self.sessions.get_mut(key) {
                shrink(&mut session.held);
            }
            self.weigh(key);
        }
        for key in audited.late {
            let limit_ms = self.settings.timeouts.authenticate_ms;
            let reason = format!("authenticate-timeout-ms: not authenticated within {limit_ms} ms");
            self.close_stranger(key, reason);
        }
    }

    /// The count of bytes that come and go is the sum that all sessions hold, with their commands
    /// that are polled.
    #[cfg(debug_assertions)]
    fn check_held(&self) {
        let sessions = self.sessions.iter();
        let held: usize = sessions.map(|(_, session)| session.held_bytes()).sum();
        assert_eq!(
            self.held_bytes,
            held + self.polling.held_bytes(),
            "bytes are taken out as they were put in"
        );
    }

    /// When memory is short, sessions give up some: see [`crate::memory`].
    pub(crate) fn relieve_memory(&mut self) {
        if self.memory.is_short(self.held_bytes) {
            self.shed();
        }
    }

    #[cold]
    #[inline(never)]
    fn shed(&mut self) {
        if self.memory.has_just_shed(self.held_bytes, self.now) {
            return;
        }
        self.measure_shared();
        self.audit(true);
        for (key, reason) in self.memory.shed(self.held_bytes, self.now) {
            let text = format!("worker-memory-bytes-max: {}", reason.text());
            match reason {
                Reason::Stranger => self.close_stranger(key, text),
                Reason::Incomplete | Reason::OwedMost | Reason::KeptMost => {
                    self.close_for(key, text);
                }
            }
        }
        let total = self.memory.total(self.held_bytes);
        if self.memory.is_short(self.held_bytes) {
            self.hold_owed_most(total / 2);
        }
        self.memory.has_shed(self.held_bytes, self.now);
    }

    /// Holds the sessions that are owed most until their clients have taken all: as many sessions
    /// as are owed `bytes` together. Sessions that are held already do not count, so the next ones
    /// are held, too.
    fn hold_owed_most(&mut self, bytes: usize) {
        let mut sum = 0;
        for (key, owed) in self.memory.owed_most() {
            let may_help = |session: &Session| {
                !session.out.is_empty() && !session.flags.any(Flags::HOLD_MEMORY)
            };
            if self.sessions.get(key).is_some_and(may_help) {
                self.hold(key, Flags::HOLD_MEMORY);
                sum += owed;
            }
            if sum >= bytes {
                break;
            }
        }
    }

    /// Closes a session that has not authenticated. Any client can cause that, so the log tells it
    /// once a minute.
    fn close_stranger(&mut self, key: Key, reason: String) {
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        let peer = session.peer.to_string();
        self.counters.sessions_closed_by_us += 1;
        self.counters.sessions_closed_unauthenticated += 1;
        if let Some(untold) = self.memory.tells_of_stranger(self.now) {
            let reason = match untold {
                0 => reason,
                more => format!("{reason}; {more} more since the last such line"),
            };
            self.tell(Event::SessionClosed { peer, reason });
        }
        self.close(key, false);
    }
}

impl Link {
    /// Bytes of memory.
    fn memory_bytes(&self) -> usize {
        let again = self.again.iter().map(|(_, request)| request.capacity());
        size_of::<Link>()
            + self.out.memory_bytes()
            + self.partial.capacity()
            + self.ledger.capacity() * size_of::<crate::entry::Entry>()
            + self.duties.capacity() * size_of::<crate::duty::Duty>()
            + again.sum::<usize>()
    }
}

/// The part of the bound that is read before links are measured again.
const RECOUNT_SHARE: u64 = 64;

/// What the driver keeps of a session.
const SOCKET_BYTES: usize = 64;
