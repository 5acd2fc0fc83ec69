//! Memory of the components, which the data plane counts with its own.

use crate::data_plane::memory::SharedMemory;
use crate::engine::Engine;

impl Engine {
    /// Measures anew the memory that links hold. The driver calls it once it has read
    /// [`Engine::links_bytes_read_max`] bytes since the last call.
    pub fn measure_links(&mut self) {
        let shared = self.components_memory();
        self.plane.measure_shared(shared);
    }

    /// The bytes that the driver may read from links between two calls of
    /// [`Engine::measure_links`].
    pub fn links_bytes_read_max(&self) -> usize {
        self.plane.links_bytes_read_max()
    }

    /// Whether memory has grown so much in this turn that ready sockets wait for the next turn.
    /// Replies take memory until they are written, at the end of the turn.
    pub fn turn_is_full(&self) -> bool {
        self.plane.memory.turn_is_full(self.plane.held_bytes)
    }

    /// Memory of all workers' sessions, as the engine counts it. The figures of other workers are a
    /// moment old.
    pub fn memory_bytes_of_all(&self) -> u64 {
        let own = self.plane.memory.total(self.plane.held_bytes) as u64;
        own + self.admin.other_workers.memory_bytes
    }

    /// Frees memory of sessions when it is short, unless that has just been done.
    pub(crate) fn relieve_memory(&mut self) {
        let (memory, held_bytes) = (&self.plane.memory, self.plane.held_bytes);
        if memory.is_short(held_bytes) {
            if !memory.has_just_shed(held_bytes, self.plane.now) {
                let shared = self.components_memory();
                self.plane.shed(shared);
            }
            // The rest of the memory of the closed sessions is freed now, not in the next turn.
            self.process_cleanups();
        }
    }

    /// The memory of the components beside that of sessions.
    pub(super) fn components_memory(&self) -> SharedMemory {
        SharedMemory {
            channels: self.pubsub.hubs.iter().map(|hub| hub.held_bytes()).sum(),
            answers: self.admin.answers_bytes(),
            links: 0,
            tls: self.plane.driver.memory_bytes as usize,
            rest: self.local.scripts.memory_bytes()
                + self.access.memory_bytes()
                + self.redirects.memory_bytes()
                + self.plane.trackers.memory_bytes()
                + self.pubsub.memory_bytes()
                + self.plane.scattered.table_bytes()
                + self.plane.slow_log.memory_bytes()
                + self.plane.hot_keys.memory_bytes()
                + self.transactions.memory_bytes(),
        }
    }
}
