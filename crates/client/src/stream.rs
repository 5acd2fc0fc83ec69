//! A session as a stream of bytes.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use respool_driver::CallerSession;

use crate::error::CallError;
use crate::{Core, lock};

/// The most bytes of replies that a writer without room keeps for the reader.
const KEPT_BYTES_MAX: usize = 512 << 20;
/// The longest time for which a writer without room keeps a reader out.
const ROOM_WAIT: Duration = Duration::from_millis(5);
/// Room that a stream keeps while nothing is to be read, bytes.
const IDLE_BYTES_MAX: usize = 16 << 10;

/// A session as a stream of bytes in the protocol of Redis: see
/// [`Client::stream`](crate::Client::stream).
///
/// It takes the place of a client library's socket. The library chooses the protocol by HELLO,
/// sends requests, and reads replies and messages. The session is in the database of the URL, and
/// its server has authenticated the client.
///
/// One thread may write while another reads. A second reader waits for the first.
///
/// Dropping it closes it: requests that were written are executed, as those of a closed connection
/// are.
pub struct SessionStream {
    session: CallerSession,
    /// Bytes that have come. A reader that waits has the lock.
    input: Mutex<Input>,
    is_closed: AtomicBool,
    /// The engine runs as long as the session.
    _core: Arc<Core>,
}

#[derive(Default)]
struct Input {
    bytes: Vec<u8>,
    /// The number of bytes that were read.
    at: usize,
}

impl SessionStream {
    pub(crate) fn new(session: CallerSession, core: Arc<Core>) -> SessionStream {
        SessionStream {
            session,
            input: Mutex::default(),
            is_closed: AtomicBool::new(false),
            _core: core,
        }
    }

    /// Writes all bytes. It blocks while the session has no room. Replies that come meanwhile are
    /// kept for the reader, because a session whose replies are not read takes no requests.
    ///
    /// # Errors
    /// `BrokenPipe`: the session has ended, see [`SessionStream::outcome`]. `TimedOut`: there was
    /// no room within the deadline. `QuotaExceeded`: over 512 MiB of replies wait to be read. After
    /// an error a part of the bytes may have been written: close the stream.
    pub fn write_all(&self, bytes: &[u8], deadline: Option<Instant>) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            written += self.write(&bytes[written..], deadline)?;
        }
        Ok(())
    }

    /// As [`SessionStream::write_all`], for a caller that looks at something else from time to
    /// time: it writes the bytes that find room, at least one. Returns the number of bytes.
    ///
    /// # Errors
    /// See [`SessionStream::write_all`]. At `TimedOut` nothing was written.
    pub fn write(&self, bytes: &[u8], deadline: Option<Instant>) -> io::Result<usize> {
        loop {
            let written = self.try_write(bytes)?;
            if written > 0 || bytes.is_empty() {
                return Ok(written);
            }
            if deadline.is_some_and(|at| Instant::now() >= at) {
                return Err(ErrorKind::TimedOut.into());
            }
            self.wait_for_room()?;
        }
    }

    fn wait_for_room(&self) -> io::Result<()> {
        let mut input = match self.input.try_lock() {
            Ok(input) => input,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            // Another thread reads, which makes room.
            Err(TryLockError::WouldBlock) => {
                thread::sleep(ROOM_WAIT);
                return Ok(());
            }
        };
        if input.unread().len() > KEPT_BYTES_MAX {
            let text = "over 512 MiB of replies wait to be read: read them before the next request";
            return Err(io::Error::new(ErrorKind::QuotaExceeded, text));
        }
        if !self.session.read(&mut input.bytes) {
            self.session.wait(Some(Instant::now() + ROOM_WAIT));
        }
        Ok(())
    }

    /// Writes bytes as far as there is room. Returns their number, which may be zero.
    ///
    /// # Errors
    /// `BrokenPipe`: the session has ended.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_closed() || self.session.end().is_some() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        Ok(self.session.write(bytes))
    }

    /// Reads bytes of replies. It blocks until there are some, or until the deadline. Returns their
    /// number; zero: the stream was closed.
    ///
    /// # Errors
    /// `TimedOut`: nothing has come within the deadline.
    pub fn read(&self, buffer: &mut [u8], deadline: Option<Instant>) -> io::Result<usize> {
        let mut input = lock(&self.input);
        loop {
            if let Some(count) = self.take(&mut input, buffer) {
                return Ok(count);
            }
            self.forget_room();
            if !self.session.wait(deadline) {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }

    /// As [`SessionStream::read`], for a task: it is woken when it is to poll again. A task and a
    /// thread must not wait at the same time.
    pub fn poll_read(&self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<usize> {
        let mut input = lock(&self.input);
        loop {
            if let Some(count) = self.take(&mut input, buffer) {
                return Poll::Ready(count);
            }
            self.forget_room();
            if self.session.poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Makes the next wait end only when bytes come. After a write that found too little room, each
    /// wait would end at once while there is room. A writer does not wait while a reader waits.
    fn forget_room(&self) {
        self.session.write_before_wait(&[]);
    }

    /// Whether a read would not block. While a thread reads, it is `false`.
    pub fn is_readable(&self) -> bool {
        let Ok(mut input) = self.input.try_lock() else {
            return false;
        };
        if input.unread().is_empty() {
            self.session.read(&mut input.bytes);
        }
        !input.unread().is_empty() || self.is_closed() || self.session.end().is_some()
    }

    /// Closes the stream: see [`SessionStream`]. A reader that waits returns.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.session.leave();
    }

    /// Takes back the requests that have not left, and ends the session. A reader that waits gets
    /// the replies that have come, and then the end.
    pub fn withdraw(&self) {
        self.session.withdraw();
    }

    /// The outcome of requests whose replies were not read, once the session has ended: `NotSent`
    /// if none of them was executed, and `Unknown` otherwise.
    pub fn outcome(&self) -> Option<CallError> {
        let end = self.session.end()?;
        if let Ok(mut input) = self.input.try_lock() {
            let has_come = self.session.read(&mut input.bytes);
            if has_come || !input.unread().is_empty() {
                return Some(CallError::Unknown(
                    "replies have come that were not read".into(),
                ));
            }
        }
        Some(CallError::of_session_end(&self.session, end))
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Takes bytes that have come. `None`: there are none, and the stream is open.
    fn take(&self, input: &mut Input, buffer: &mut [u8]) -> Option<usize> {
        if input.unread().is_empty() {
            input.bytes.clear();
            input.at = 0;
            // The end comes behind the last bytes, so it is asked for first.
            let has_ended = self.is_closed() || self.session.end().is_some();
            if !self.session.read(&mut input.bytes) || self.is_closed() {
                return has_ended.then_some(0);
            }
        }
        let count = input.unread().len().min(buffer.len());
        buffer[..count].copy_from_slice(&input.unread()[..count]);
        input.at += count;
        if input.unread().is_empty() && input.bytes.capacity() > IDLE_BYTES_MAX {
            *input = Input::default();
        }
        Some(count)
    }
}

impl Input {
    fn unread(&self) -> &[u8] {
        &self.bytes[self.at..]
    }
}
