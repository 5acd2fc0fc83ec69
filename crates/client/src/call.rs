//! One call: a request, its session and its reply.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use respool_driver::{CallerSession, EndReason};
use respool_engine::Fate;
use respool_protocol::commands::{self, Answer};
use respool_protocol::encode;
use respool_protocol::reply::{FramingError, ReplyScanner, Scanned};

use crate::Client;
use crate::error::CallError;
use crate::sessions::Sessions;

/// The time between two looks at whether a caller still waits.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Commands of a session that change nothing for its next call.
const WITHOUT_TRACE: [&str; 12] = [
    "client",
    "client|getname",
    "client|id",
    "client|info",
    "client|kill",
    "client|list",
    "client|pause",
    "client|unblock",
    "client|unpause",
    "cluster",
    "info",
    "script",
];

/// A call that has begun. Dropping it takes the request back if it has not left.
pub(crate) struct Call {
    /// `None` once the reply is there.
    session: Option<CallerSession>,
    /// Whether the session had another call before.
    is_reused: bool,
    request: Vec<u8>,
    /// Bytes of the request that the session has taken.
    written: usize,
    reply: Vec<u8>,
    scanner: ReplyScanner,
    /// Bytes of the reply that the scanner has seen.
    scanned: usize,
    greeting: Greeting,
}

/// The HELLO that a new session begins with, if calls are in RESP3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Greeting {
    /// There is none, or it was accepted.
    None,
    /// Its reply comes in front of that of the call.
    Awaited,
    /// A server without RESP3, for example. The call goes on in RESP2.
    Refused,
}

impl Call {
    /// Gives the request a session.
    pub(crate) fn begin<A: AsRef<[u8]>>(
        sessions: &Sessions,
        args: &[A],
    ) -> Result<Call, CallError> {
        check(args)?;
        let mut request = Vec::new();
        encode::request(&mut request, args);
        Ok(Call::of_request(sessions, request))
    }

    /// As [`Call::begin`], for an encoded request.
    pub(crate) fn begin_encoded(sessions: &Sessions, request: Vec<u8>) -> Result<Call, CallError> {
        let mut args = Vec::new();
        match take_request(&request, &mut args) {
            Some([]) => check(&args)?,
            _ => {
                let text = "an encoded request is one array of at least one bulk string";
                return Err(CallError::Invalid(text.into()));
            }
        }
        Ok(Call::of_request(sessions, request))
    }

    /// As [`Call::begin`], for an encoded request that leaves no trace in its session.
    pub(crate) fn of_request(sessions: &Sessions, request: Vec<u8>) -> Call {
        let mut call = Call {
            session: None,
            is_reused: false,
            request,
            written: 0,
            reply: Vec::new(),
            scanner: ReplyScanner::default(),
            scanned: 0,
            greeting: Greeting::None,
        };
        call.take_session(sessions);
        call
    }

    fn take_session(&mut self, sessions: &Sessions) {
        let (session, is_reused) = sessions.take_for_call();
        let greeting = sessions.greeting();
        if !is_reused && !greeting.is_empty() {
            self.greeting = Greeting::Awaited;
            self.request.splice(..0, greeting.iter().copied());
        }
        self.session = Some(session);
        self.is_reused = is_reused;
    }

    /// Writes the request as far as it goes.
    fn send(&mut self) {
        if let Some(session) = &self.session {
            self.written = session.write(&self.request);
        }
    }

    /// Blocks until the reply is there. At the deadline the request is taken back if it has not
    /// left.
    pub(crate) fn wait(
        self,
        sessions: &Sessions,
        deadline: Option<Instant>,
    ) -> Result<Vec<u8>, CallError> {
        self.wait_while(sessions, deadline, None)
    }

    /// As [`Call::wait`]. `goes_on` is asked from time to time. If it says no, the request is taken
    /// back as at the deadline.
    pub(crate) fn wait_while(
        mut self,
        sessions: &Sessions,
        deadline: Option<Instant>,
        mut goes_on: Option<&mut dyn FnMut() -> bool>,
    ) -> Result<Vec<u8>, CallError> {
        let mut deadline = deadline;
        loop {
            if let Some(outcome) = self.step(sessions) {
                return outcome;
            }
            let Some(session) = &self.session else {
                continue;
            };
            let next_look = goes_on.as_ref().map(|_| Instant::now() + LOOK_INTERVAL);
            let until = match (deadline, next_look) {
                (Some(deadline), Some(look)) => Some(deadline.min(look)),
                (deadline, look) => deadline.or(look),
            };
            if session.wait(until) {
                continue;
            }
            let is_late = deadline.is_some_and(|at| Instant::now() >= at);
            if is_late || goes_on.as_mut().is_some_and(|goes_on| !goes_on()) {
                // The worker answers at once: no server holds up its turns.
                session.withdraw();
                (deadline, goes_on) = (None, None);
            }
        }
    }

    /// Writes and reads as far as it goes, before a wait. Returns the outcome of the call once it
    /// is there.
    fn step(&mut self, sessions: &Sessions) -> Option<Result<Vec<u8>, CallError>> {
        let session = self.session.as_ref()?;
        if self.written < self.request.len() {
            self.written += session.write_before_wait(&self.request[self.written..]);
        }
        // The end comes behind the last bytes, so it is asked for first.
        let end = session.end();
        if session.read(&mut self.reply) {
            match self.scan() {
                Ok(true) => {
                    let session = self.session.take()?;
                    // A session whose HELLO was refused has the wrong protocol for the next call.
                    if self.greeting != Greeting::Refused {
                        sessions.give_back(session);
                    }
                    return Some(self.complete());
                }
                Ok(false) => {}
                Err(error) => {
                    self.session = None;
                    let text = format!("the reply is not RESP: {error}");
                    return Some(Err(CallError::Unknown(text)));
                }
            }
        }
        let end = end?;
        let session = self.session.take()?;
        // A rule closes an unused session at any moment. A new one is not closed before its first
        // request, so this ends.
        if self.is_reused && end.reason == EndReason::Closed && end.fate == Some(Fate::NotSent) {
            self.written = 0;
            self.take_session(sessions);
            return self.step(sessions);
        }
        // The session is closed at its HELLO if no server can be reached. The request waits behind
        // it.
        let is_greeting = self.greeting == Greeting::Awaited && end.reason == EndReason::Closed;
        Some(Err(
            match is_greeting || self.written < self.request.len() {
                true => CallError::unwritten(&session, end),
                false => CallError::of_end(&session, end),
            },
        ))
    }

    /// Looks at the bytes that have come. Returns whether the reply is whole.
    fn scan(&mut self) -> Result<bool, FramingError> {
        loop {
            match self.scanner.scan(&self.reply[self.scanned..])? {
                Scanned::Whole(len) => self.scanned += len,
                Scanned::Fragment => {
                    self.scanned = self.reply.len();
                    return Ok(false);
                }
            }
            if self.greeting != Greeting::Awaited {
                return Ok(true);
            }
            self.greeting = match self.reply.first() {
                Some(b'-') => Greeting::Refused,
                _ => Greeting::None,
            };
            self.reply.drain(..std::mem::take(&mut self.scanned));
        }
    }

    /// The outcome that the whole reply tells.
    fn complete(&mut self) -> Result<Vec<u8>, CallError> {
        let mut reply = std::mem::take(&mut self.reply);
        reply.truncate(self.scanned);
        match reply.first() {
            Some(b'-') => Err(CallError::of_reply(&reply)),
            _ => Ok(reply),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            session.withdraw();
        }
    }
}

/// Takes one encoded request. Returns the bytes behind it.
pub(crate) fn take_request<'a>(bytes: &'a [u8], args: &mut Vec<&'a [u8]>) -> Option<&'a [u8]> {
    let (count, mut rest) = take_number(bytes.strip_prefix(b"*")?)?;
    for _ in 0..count {
        let (len, behind) = take_number(rest.strip_prefix(b"$")?)?;
        args.push(behind.get(..len)?);
        rest = behind[len..].strip_prefix(b"\r\n")?;
    }
    (count > 0).then_some(rest)
}

/// Takes a number and its line end.
fn take_number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\r')?;
    let number = str::from_utf8(&bytes[..end]).ok()?.parse().ok()?;
    Some((number, bytes[end..].strip_prefix(b"\r\n")?))
}

/// Refuses a request that would change the session for the next call.
fn check<A: AsRef<[u8]>>(args: &[A]) -> Result<(), CallError> {
    if args.is_empty() {
        return Err(CallError::without_arguments());
    }
    match trace_of(args) {
        Some(command) => Err(CallError::Invalid(format!(
            "{} changes its connection, which other callers share: send it in a session of its own",
            command.replace('|', " ").to_uppercase()
        ))),
        None => Ok(()),
    }
}

/// The name of the command, if it changes its session for the next request.
pub(crate) fn trace_of<A: AsRef<[u8]>>(args: &[A]) -> Option<&'static str> {
    let command = commands::resolve(args.len(), |at| args[at].as_ref())?.get();
    let leaves_trace = match command.answer {
        Answer::Pinned => true,
        Answer::Session => !WITHOUT_TRACE.contains(&command.name),
        _ => false,
    };
    leaves_trace.then_some(command.name)
}

/// The future of a call: see [`Client::ask`].
#[must_use = "a future that is not awaited takes its request back"]
pub struct PendingCall {
    /// `Err`: the call failed before it began. `None`: the outcome was returned.
    call: Option<Result<Call, CallError>>,
    client: Client,
}

impl PendingCall {
    pub(crate) fn new(mut call: Result<Call, CallError>, client: Client) -> PendingCall {
        if let Ok(call) = &mut call {
            call.send();
        }
        let call = Some(call);
        PendingCall { call, client }
    }
}

impl PendingCall {
    /// Has the task woken when the call can go on.
    pub(crate) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        match self.session() {
            Some(session) => session.poll(context),
            None => Poll::Ready(()),
        }
    }

    /// Takes the request back if it has not left. The outcome tells its fate.
    pub(crate) fn withdraw(&self) {
        if let Some(session) = self.session() {
            session.withdraw();
        }
    }

    fn session(&self) -> Option<&CallerSession> {
        match &self.call {
            Some(Ok(call)) => call.session.as_ref(),
            _ => None,
        }
    }
}

impl Future for PendingCall {
    type Output = Result<Vec<u8>, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ask = &mut *self;
        let outcome = loop {
            let call = match &mut ask.call {
                Some(Ok(call)) => call,
                Some(Err(error)) => break Err(error.clone()),
                None => panic!("a future is not polled after its end"),
            };
            if let Some(outcome) = call.step(ask.client.sessions()) {
                break outcome;
            }
            let session = call.session.as_ref();
            if session.is_none_or(|session| session.poll(context).is_pending()) {
                return Poll::Pending;
            }
        };
        ask.call = None;
        Poll::Ready(outcome)
    }
}
