//! A client whose worker is a task of tokio.
//!
//! The runtime polls the worker when callers have asked and when its descriptors are ready. The
//! worker takes one turn and lets other tasks run. So a turn takes the requests of all tasks that
//! the replies of the last turn have woken.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Instant;

use respool_driver::{HostedTurn, HostedWorker};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use crate::lock;

/// The time at which the task ends, once the last client is gone.
#[derive(Clone, Default)]
pub(crate) struct TaskEnd(Arc<Mutex<Option<Instant>>>);

impl TaskEnd {
    pub(crate) fn set(&self, at: Instant) {
        *lock(&self.0) = Some(at);
    }

    fn has_come(&self) -> bool {
        let at = *lock(&self.0);
        at.is_some_and(|at| Instant::now() >= at)
    }
}

/// Spawns the task of a worker on the current runtime.
///
/// # Errors
/// There is no runtime, or the system refuses a descriptor.
pub(crate) fn spawn(worker: HostedWorker, end: TaskEnd) -> io::Result<()> {
    let runtime = Handle::try_current().map_err(io::Error::other)?;
    let epoll = worker.descriptor().expect("a new worker has not ended");
    let epoll = epoll.try_clone_to_owned()?;
    // Its successor is unsafe, because some types change their descriptor. This one does not.
    #[allow(deprecated)]
    let epoll = AsyncFd::with_interest(epoll, Interest::READABLE)?;
    let mut task = WorkerTask { worker, epoll, end };
    runtime.spawn(poll_fn(move |context| task.poll(context)));
    Ok(())
}

struct WorkerTask {
    worker: HostedWorker,
    /// Readable when a socket or a timer has something for the worker.
    epoll: AsyncFd<OwnedFd>,
    end: TaskEnd,
}

impl WorkerTask {
    /// Takes a turn.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.end.has_come() {
            return Poll::Ready(());
        }
        // The runtime is asked before the turn: an event behind it is not cleared.
        let ready = self.epoll.poll_read_ready(context);
        let mut turn = self.worker.take_turn();
        if turn == HostedTurn::Busy {
            // A task that wakes itself moves to another thread, and a lone caller waits for that.
            turn = self.worker.take_turn();
        }
        let is_idle = turn == HostedTurn::Idle;
        match ready {
            _ if turn == HostedTurn::Ended => return Poll::Ready(()),
            // The runtime ends.
            Poll::Ready(Err(_)) => return Poll::Ready(()),
            Poll::Ready(Ok(mut ready)) if is_idle => ready.clear_ready(),
            Poll::Ready(Ok(_)) | Poll::Pending => {}
        }
        let waker = context.waker();
        let rests =
            is_idle && self.worker.rest(waker) && self.epoll.poll_read_ready(context).is_pending();
        if !rests {
            waker.wake_by_ref();
        }
        Poll::Pending
    }
}
