//! A session of one caller: requests in order, and everything that a connection may do.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use respool_driver::CallerSession;
use respool_protocol::encode;
use respool_protocol::reply::{ReplyScanner, Scanned};

use crate::error::CallError;
use crate::{Core, deadline_in};

/// The most bytes of replies that a session holds before it takes another request.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// Received bytes are dropped in pieces of at least this size.
const DROPPED_BYTES_MIN: usize = 64 << 10;

/// A session of one caller. The caller uses it as a connection to a server.
///
/// Requests run in the order in which they were sent, and each reply is received in that order.
/// The session may watch keys, wait for a list, subscribe to channels and choose RESP3. Its
/// requests leave in the same batches as those of other callers, except while they block or belong
/// to a transaction that watches keys.
///
/// Messages of channels are received between replies, as on a connection.
///
/// Dropping the session ends it. Requests that were sent are executed nevertheless, as those of a
/// closed connection. There are two exceptions: a request that waits at the server, such as BLPOP,
/// waits no longer, and requests that CLIENT PAUSE holds are not executed. If the session was the
/// last owner of the client, requests have one second, or none if the waker of a task drops it.
/// [`OrderedSession::withdraw`] takes requests back.
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
    /// The task that waits for a reply.
    task: Option<Waker>,
    /// The engine runs as long as the session.
    _core: Arc<Core>,
}

/// A request that a task sends.
struct Sending<'a> {
    session: &'a mut OrderedSession,
    request: Vec<u8>,
    written: usize,
}

impl Sending<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        let (request, written) = (&self.request, &mut self.written);
        self.session.poll_send_encoded(context, request, written)
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if 0 < self.written && self.written < self.request.len() {
            // The next request would be taken for the rest of this one.
            self.session.session.withdraw();
        }
        self.session.request = std::mem::take(&mut self.request);
    }
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
            task: None,
            _core: core,
        }
    }

    /// Sends a request without waiting for its reply. It blocks while the session holds as many
    /// bytes as it may. Replies that come meanwhile are kept for [`OrderedSession::receive`]. In a
    /// task, it blocks the thread.
    ///
    /// # Errors
    /// [`CallError::Invalid`]: the request has no argument, or over 64 MiB of replies wait to be
    /// received. [`CallError::NotSent`]: the session has ended. The fate of earlier requests is
    /// that which [`OrderedSession::receive`] tells.
    pub fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<(), CallError> {
        self.write(args, CallerSession::write)
    }

    /// As [`OrderedSession::send`], for a task: it waits for room without blocking the thread. If
    /// the future is dropped in the middle of the request, the session ends.
    ///
    /// # Errors
    /// See [`OrderedSession::send`].
    pub async fn send_async<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<(), CallError> {
        let request = self.encode(args)?;
        let mut sending = Sending {
            session: self,
            request,
            written: 0,
        };
        poll_fn(|context| sending.poll(context)).await
    }

    fn write<A: AsRef<[u8]>>(
        &mut self,
        args: &[A],
        write: impl Fn(&CallerSession, &[u8]) -> usize,
    ) -> Result<(), CallError> {
        let request = self.encode(args)?;
        let outcome = self.write_all(&request, write, &mut 0);
        self.request = request;
        outcome
    }

    /// The bytes of a request, if the session may take one.
    fn encode<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<Vec<u8>, CallError> {
        if args.is_empty() {
            return Err(CallError::without_arguments());
        }
        if self.input.len() - self.at > KEPT_BYTES_MAX {
            let text = "the session holds over 64 MiB of replies: receive them before the next \
                        request";
            return Err(CallError::Invalid(text.into()));
        }
        let mut request = std::mem::take(&mut self.request);
        request.clear();
        encode::request(&mut request, args);
        Ok(request)
    }

    fn write_all(
        &mut self,
        request: &[u8],
        write: impl Fn(&CallerSession, &[u8]) -> usize,
        written: &mut usize,
    ) -> Result<(), CallError> {
        while !self.write_some(request, written, &write)? {
            self.wait(None);
        }
        Ok(())
    }

    /// Writes as far as there is room, and keeps the replies that have come: the engine takes no
    /// request of a session that does not read its replies. Returns whether all is written.
    fn write_some(
        &mut self,
        request: &[u8],
        written: &mut usize,
        write: impl Fn(&CallerSession, &[u8]) -> usize,
    ) -> Result<bool, CallError> {
        // The end is asked for first: a session that ends later has taken the bytes.
        let end = self.session.end();
        *written += write(&self.session, &request[*written..]);
        if *written == request.len() {
            return Ok(true);
        }
        self.read();
        match end {
            Some(end) => Err(CallError::unwritten(&self.session, end)),
            None => Ok(false),
        }
    }

    /// Sends encoded requests. Their replies are received next. `written`: the bytes that were
    /// sent. At the deadline the session ends, and takes back the requests that have not left.
    #[cfg(feature = "redis")]
    pub(crate) fn send_encoded(
        &mut self,
        requests: &[u8],
        written: &mut usize,
        deadline: Option<Instant>,
    ) -> Result<(), CallError> {
        while !self.write_some(requests, written, CallerSession::write_before_wait)? {
            if !self.wait(deadline) {
                self.withdraw();
            }
        }
        Ok(())
    }

    /// Receives the next reply. At the deadline the session ends, and takes back the requests that
    /// have not left.
    #[cfg(feature = "redis")]
    pub(crate) fn receive_until(
        &mut self,
        deadline: Option<Instant>,
    ) -> Result<Vec<u8>, CallError> {
        loop {
            if let Some(outcome) = self.next() {
                return outcome;
            }
            if !self.session.wait(deadline) {
                self.withdraw();
            }
        }
    }

    /// As [`OrderedSession::send_encoded`], for a task.
    pub(crate) fn poll_send_encoded(
        &mut self,
        context: &mut Context<'_>,
        requests: &[u8],
        written: &mut usize,
    ) -> Poll<Result<(), CallError>> {
        loop {
            if self.write_some(requests, written, CallerSession::write)? {
                return Poll::Ready(Ok(()));
            }
            if self.session.poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Takes the requests back that have not left, and does not wait for their fate.
    #[cfg(feature = "redis")]
    pub(crate) fn abandon(self) {
        self.session.withdraw();
    }

    /// Whether the session has not ended.
    #[cfg(feature = "redis")]
    pub(crate) fn is_open(&self) -> bool {
        self.session.end().is_none()
    }

    /// The session of the engine, if each reply has been received.
    #[cfg(feature = "redis")]
    pub(crate) fn into_unused(self) -> Option<CallerSession> {
        (self.at == self.input.len()).then_some(self.session)
    }

    /// Blocks until there is something to read, room to write or an end. A task that waits for that
    /// has to poll again.
    /// Returns `false` at the deadline.
    fn wait(&mut self, deadline: Option<Instant>) -> bool {
        let is_in_time = self.session.wait(deadline);
        if let Some(task) = self.task.take() {
            task.wake();
        }
        is_in_time
    }

    /// Takes bytes of replies out of the session. Returns whether there were any.
    fn read(&mut self) -> bool {
        if self.at == self.input.len() || self.at >= DROPPED_BYTES_MIN.max(self.input.len() / 2) {
            self.input.drain(..std::mem::take(&mut self.at));
        }
        self.session.read(&mut self.input)
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
        let deadline = deadline_in(limit);
        loop {
            if let Some(outcome) = self.next() {
                return outcome.map(Some);
            }
            if !self.session.wait(deadline) {
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
                self.task = Some(context.waker().clone());
                return Poll::Pending;
            }
        }
    }

    /// Sends a request and blocks until the next reply or message is there. It is the reply to this
    /// request if all earlier ones have been received and the session has no subscription.
    ///
    /// # Errors
    /// See [`OrderedSession::send`] and [`OrderedSession::receive`].
    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<Vec<u8>, CallError> {
        self.write(args, CallerSession::write_before_wait)?;
        self.receive()
    }

    /// Takes back the requests that have not left, and ends the session. Replies that have come can
    /// still be received. The error behind them tells the fate of the requests without a reply:
    /// [`CallError::NotSent`] if none of them was executed, and [`CallError::Unknown`] otherwise.
    pub fn withdraw(&mut self) {
        self.session.withdraw();
        while self.session.end().is_none() {
            self.wait(None);
        }
    }

    /// The next reply or message, if it is whole, or the end of the session.
    fn next(&mut self) -> Option<Result<Vec<u8>, CallError>> {
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
            // The end comes behind the last bytes, so it is asked for first.
            let end = self.session.end();
            if !self.read() {
                return end.map(|end| Err(CallError::of_session_end(&self.session, end)));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;
    use respool_engine::settings::{Address, PoolKind, PoolSettings, ServerSettings, Settings};
    use respool_testkit::servers::{ServerProcess, any_server};

    /// A sender that is always ahead of its receiver keeps the replies in between alone.
    #[test]
    fn received_replies_are_dropped() {
        let server = ServerProcess::start::<&str>(&any_server(), &[]).expect("the server starts");
        let (host, port) = (server.address().ip().to_string(), server.address().port());
        let at = ServerSettings::at(Address::Tcp { host, port });
        let settings = Settings {
            pools: vec![PoolSettings::new("default", PoolKind::Single(at))],
            ..Settings::default()
        };
        let client = Client::start(Arc::new(settings), Vec::new(), Arc::new(|_| {}));
        let mut session = client.expect("the client starts").session();
        let value = "v".repeat(10_000);
        session.call(&["SET", "k", &value]).unwrap();
        for sent in 0..20_000 {
            session.send(&["GET", "k"]).unwrap();
            if sent >= 200 {
                session.receive().unwrap();
            }
        }
        let kept = 200 * 10_100;
        assert!(
            session.input.len() <= 3 * kept,
            "{} bytes",
            session.input.len()
        );
    }
}
