//! Streams that have become readable, for a thread that wakes their readers.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::fence::caught;
use crate::stream::{RESPOOL_STREAM_ENDED, RESPOOL_STREAM_TIMED_OUT, RespoolStream};

/// Tokens of streams to read from. Virtual threads wait for theirs in Java, and one thread waits
/// here for all of them.
#[derive(Default)]
pub(crate) struct ReadyStreams {
    list: Mutex<ReadyTokens>,
    wake: Condvar,
}

#[derive(Default)]
struct ReadyTokens {
    tokens: Vec<u64>,
    is_closed: bool,
}

struct StreamWaker {
    token: u64,
    ready: Arc<ReadyStreams>,
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        let mut list = self.ready.lock();
        list.tokens.push(self.token);
        if list.tokens.len() == 1 {
            self.ready.wake.notify_one();
        }
    }
}

impl ReadyStreams {
    /// Reads as far as there are bytes. If there are none, the token is listed once there are, or
    /// once the stream has ended, and the result is [`RESPOOL_STREAM_TIMED_OUT`].
    pub(crate) fn read(
        self: &Arc<Self>,
        stream: &RespoolStream,
        token: u64,
        buffer: &mut [u8],
    ) -> isize {
        let ready = self.clone();
        let waker = Waker::from(Arc::new(StreamWaker { token, ready }));
        let polled = caught(|| stream.0.poll_read(&mut Context::from_waker(&waker), buffer));
        match polled {
            Some(Poll::Ready(count)) => count as isize,
            Some(Poll::Pending) => RESPOOL_STREAM_TIMED_OUT,
            None => RESPOOL_STREAM_ENDED,
        }
    }

    /// Blocks until there are tokens, and takes at most `max`. Returns none once it was closed.
    pub(crate) fn take(&self, max: usize) -> Vec<u64> {
        let mut list = self.lock();
        while list.tokens.is_empty() && !list.is_closed {
            list = self.wake.wait(list).unwrap_or_else(PoisonError::into_inner);
        }
        let count = list.tokens.len().min(max);
        list.tokens.drain(..count).collect()
    }

    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.wake.notify_all();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ReadyTokens> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
