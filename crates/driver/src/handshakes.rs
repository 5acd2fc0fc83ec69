//! The handshakes of clients that have connected to a listener with TLS and are no sessions yet.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use respool_engine::Origin;

use crate::sockets::Socket;

/// Most handshakes of a worker at a time. Beyond it clients wait in the kernel's queue.
const HANDSHAKES_MAX: usize = 1024;

/// Longest time from the connection of a client to the end of its handshake.
pub(crate) const WAIT: Duration = Duration::from_secs(10);

/// A handshake that goes on.
#[derive(Debug)]
pub(crate) struct ClientHandshake {
    pub(crate) socket: Socket,
    /// The client and its listener.
    pub(crate) origin: Origin,
    /// Index of the pool of its session.
    pub(crate) pool: usize,
    /// Whether the client has sent a part of the handshake.
    pub(crate) is_begun: bool,
    /// Time at which the handshake has to be done.
    end: Instant,
}

/// The handshakes of a worker.
///
/// Call [`Handshakes::note_ready`] for each event of a socket, [`Handshakes::next_ready`] for the
/// handshakes to continue, and [`Handshakes::end_turn`] when no more of them fit the turn.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    /// Handshakes by the index that their sockets have in epoll.
    slots: Vec<Option<ClientHandshake>>,
    /// Indexes of empty slots.
    free: Vec<usize>,
    /// Indexes of handshakes with sockets that are ready in this turn, in the order of the events.
    ready: VecDeque<usize>,
}

impl Handshakes {
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether no other handshake may begin.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= HANDSHAKES_MAX
    }

    /// The index of the handshake that begins next.
    pub(crate) fn free_index(&self) -> usize {
        self.free.last().copied().unwrap_or(self.slots.len())
    }

    /// Adds a handshake at [`Handshakes::free_index`].
    pub(crate) fn begin(&mut self, socket: Socket, origin: Origin, pool: usize, now: Instant) {
        let handshake = Some(ClientHandshake {
            socket,
            origin,
            pool,
            is_begun: false,
            end: now + WAIT,
        });
        match self.free.pop() {
            Some(index) => self.slots[index] = handshake,
            None => self.slots.push(handshake),
        }
    }

    pub(crate) fn get(&mut self, index: usize) -> Option<&mut ClientHandshake> {
        self.slots.get_mut(index)?.as_mut()
    }

    pub(crate) fn remove(&mut self, index: usize) -> Option<ClientHandshake> {
        let removed = self.slots.get_mut(index)?.take();
        if removed.is_some() {
            self.free.push(index);
        }
        removed
    }

    /// Notes that the socket of a handshake is ready.
    pub(crate) fn note_ready(&mut self, index: usize) {
        self.ready.push_back(index);
    }

    /// The next handshake with a ready socket.
    pub(crate) fn next_ready(&mut self) -> Option<usize> {
        self.ready.pop_front()
    }

    /// Forgets the ready sockets that did not fit the turn. The kernel reports them again.
    pub(crate) fn end_turn(&mut self) {
        self.ready.clear();
    }

    /// The handshakes that have taken too long.
    pub(crate) fn late(&self, now: Instant) -> Vec<usize> {
        let is_late =
            |slot: &Option<ClientHandshake>| slot.as_ref().is_some_and(|one| now >= one.end);
        let slots = self.slots.iter().enumerate();
        slots
            .filter(|(_, slot)| is_late(slot))
            .map(|(index, _)| index)
            .collect()
    }
}
