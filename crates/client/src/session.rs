//! A session of one caller: requests in order, and everything that a connection may do.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use respool_driver::CallerSession;
use respool_protocol::encode;
use respool_protocol::reply::{ReplyScanner, Scanned};

use crate::Core;
use crate::error::CallError;

/// A session of its own: it is to its caller what a connection to a server is.
///
/// Requests run in the order in which they were sent, and each reply is received in that order.
/// The session may watch keys, wait for a list, subscribe to channels and choose RESP3. Its
/// requests leave in the same batches as those of other callers, except while they block or belong
/// to a transaction that watches keys.
///
/// Messages of channels are received between replies, as on a connection.
///
/// Dropping the session ends it. Requests that were sent are executed nevertheless, as those of a
/// closed connection. [`OrderedSession::withdraw`] takes them back.
pub struct OrderedSession {
    session: CallerSession,
    /// Bytes of replies. Those before `at` were received.
    input: Vec<u8>,
    at: usize,
    scanner: ReplyScanner,
    /// Bytes that the scanner has seen, from `at` on.
    scanned: usize,
    /// Bytes of a request.
    request: Vec<u8>,
    /// The engine runs as long as the session.
    _core: Arc<Core>,
}

impl OrderedSession {
    pub(crate) fn new(session: CallerSession, core: Arc<Core>) -> OrderedSession {
        OrderedSession {
            session,
            input: Vec::new(),
            at: 0,
            scanner: ReplyScanner::default(),
            scanned: 0,
            request: Vec::new(),
            _core: core,
        }
    }

    /// Sends a request without waiting for its reply. It blocks while the session holds as many
    /// bytes as it may. Replies that come meanwhile are kept for [`OrderedSession::receive`].
    ///
    /// # Errors
    /// [`CallError::Invalid`]: the request has no argument. [`CallError::NotSent`] or
    /// [`CallError::Unknown`]: the session has ended.
    pub fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<(), CallError> {
        if args.is_empty() {
            return Err(CallError::without_arguments());
        }
        self.request.clear();
        encode::request(&mut self.request, args);
        let mut written = 0;
        loop {
            // The end is asked for first: a session that ends later has taken the bytes.
            let end = self.session.end();
            written += self.session.write(&self.request[written..]);
            if written == self.request.len() {
                return Ok(());
            }
            if let Some(end) = end {
                return Err(CallError::of_session_end(end));
            }
            // The engine takes no request of a session that does not read its replies.
            self.session.read(&mut self.input);
            self.session.wait(None);
        }
    }

    /// Blocks until the next reply or message is there. Without an unanswered request and without a
    /// subscription there may never be one.
    ///
    /// # Errors
    /// [`CallError::Server`]: the reply is this error; the session goes on. [`CallError::NotSent`]
    /// or [`CallError::Unknown`]: the request has failed for that reason, or the session has ended,
    /// and no request without a reply will get one.
    pub fn receive(&mut self) -> Result<Vec<u8>, CallError> {
        loop {
            if let Some(outcome) = self.next() {
                return outcome;
            }
            self.session.wait(None);
        }
    }

    /// As [`OrderedSession::receive`], for a limited time. `None`: nothing has come within the
    /// limit. The request is not taken back, and its reply is the next to be received.
    ///
    /// # Errors
    /// See [`OrderedSession::receive`].
    pub fn receive_within(&mut self, limit: Duration) -> Result<Option<Vec<u8>>, CallError> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(outcome) = self.next() {
                return outcome.map(Some);
            }
            if !self.session.wait(Some(deadline)) {
                return Ok(None);
            }
        }
    }

    /// As [`OrderedSession::receive`], for a task: it is woken when it is to poll again.
    ///
    /// # Errors
    /// See [`OrderedSession::receive`].
    pub fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<Vec<u8>, CallError>> {
        loop {
            if let Some(outcome) = self.next() {
                return Poll::Ready(outcome);
            }
            if self.session.poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Sends a request and blocks until the next reply is there: that of the request, if all
    /// earlier ones have been received.
    ///
    /// # Errors
    /// See [`OrderedSession::send`] and [`OrderedSession::receive`].
    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<Vec<u8>, CallError> {
        self.send(args)?;
        self.receive()
    }

    /// Ends the session. Requests that have not left are taken back.
    ///
    /// # Errors
    /// Requests without a reply: [`CallError::NotSent`] if surely none of them was executed,
    /// otherwise [`CallError::Unknown`].
    pub fn withdraw(self) -> Result<(), CallError> {
        self.session.withdraw();
        loop {
            if let Some(end) = self.session.end() {
                return match end.fate {
                    Some(_) => Err(CallError::of_session_end(end)),
                    None => Ok(()),
                };
            }
            self.session.wait(None);
        }
    }

    /// The next reply or message, if it is whole, or the end of the session.
    fn next(&mut self) -> Option<Result<Vec<u8>, CallError>> {
        // The end comes behind the last bytes, so it is asked for first.
        let end = self.session.end();
        loop {
            let unseen = &self.input[self.at + self.scanned..];
            match self.scanner.scan(unseen) {
                Ok(Scanned::Whole(len)) => return Some(self.take(self.scanned + len)),
                Ok(Scanned::Fragment) => self.scanned += unseen.len(),
                Err(error) => {
                    self.session.withdraw();
                    let text = format!("the reply is not RESP: {error}");
                    return Some(Err(CallError::Unknown(text)));
                }
            }
            self.input.drain(..std::mem::take(&mut self.at));
            if !self.session.read(&mut self.input) {
                return end.map(|end| Err(CallError::of_session_end(end)));
            }
        }
    }

    /// Takes the reply of this length.
    fn take(&mut self, len: usize) -> Result<Vec<u8>, CallError> {
        self.scanned = 0;
        let reply = match (self.at, self.input.len()) {
            // The usual one: nothing is behind it.
            (0, all) if all == len => std::mem::take(&mut self.input),
            (at, _) => {
                self.at += len;
                self.input[at..at + len].to_vec()
            }
        };
        match reply.first() {
            Some(b'-') => Err(CallError::of_reply(&reply)),
            _ => Ok(reply),
        }
    }
}
