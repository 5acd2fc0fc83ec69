//! A worker without a thread of its own: its *host*, an event loop of the program, takes its turns.
//!
//! Tasks of the event loop call, and the worker's turn comes when all tasks have run. So their
//! requests are in one batch without a switch between threads.

use std::os::fd::BorrowedFd;
use std::task::Waker;

use crate::worker::WorkerLoop;

/// A worker whose turns its host takes: see [`crate::start_hosted`].
///
/// Sockets and timers make its descriptor readable, and callers wake its waker. If it is dropped,
/// its sessions end.
pub struct HostedWorker {
    /// `None`: it has ended.
    worker: Option<Box<WorkerLoop>>,
}

/// The state of a hosted worker after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostedTurn {
    /// There may be more to do: take another turn.
    Busy,
    /// As `Busy`, and the turn has woken several tasks: let them run first, so that their next
    /// requests are in one batch.
    Crowd,
    /// There was no event. Call [`HostedWorker::rest`] before a wait.
    Idle,
    /// The worker has ended.
    Ended,
}

impl HostedWorker {
    pub(crate) fn new(worker: WorkerLoop) -> HostedWorker {
        HostedWorker {
            worker: Some(Box::new(worker)),
        }
    }

    /// Takes a turn. It does not block.
    pub fn take_turn(&mut self) -> HostedTurn {
        let Some(worker) = &mut self.worker else {
            return HostedTurn::Ended;
        };
        match worker.take_hosted_turn() {
            Some(0) => HostedTurn::Idle,
            Some(_) if worker.woken_tasks() > 1 => HostedTurn::Crowd,
            Some(_) => HostedTurn::Busy,
            None => {
                self.end();
                HostedTurn::Ended
            }
        }
    }

    /// Prepares a wait: the next caller wakes `waker`. Returns `false` if the worker has something
    /// to do already.
    pub fn rest(&mut self, waker: &Waker) -> bool {
        let Some(worker) = &mut self.worker else {
            return true;
        };
        if let Some(queue) = worker.caller_queue() {
            queue.set_host(waker);
        }
        worker.may_rest()
    }

    /// Readable when a socket or a timer has something for the worker. `None`: it has ended.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.worker.as_ref().map(|worker| worker.epoll())
    }

    fn end(&mut self) {
        if let Some(worker) = self.worker.take() {
            worker.end();
        }
    }
}

impl Drop for HostedWorker {
    fn drop(&mut self) {
        self.end();
    }
}
