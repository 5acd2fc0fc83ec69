//! Connections for the crate `redis`.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, RedisResult, Value};

use crate::call::{Call, PendingCall, take_request, trace_of};
use crate::{CallError, Client, OrderedSession, deadline_in};

/// A blocking connection of the crate `redis` through a [`Client`]: see
/// [`Client::redis_connection`].
///
/// It has the trait `ConnectionLike`. So commands, pipelines, transactions and scripts work
/// unchanged, and typed commands, too. Subscriptions and MONITOR are refused: they are for
/// [`Client::session`].
///
/// Commands share the links of the client. A pipeline runs in order, in a session of its own while
/// it lasts. The first command that changes the connection (WATCH, SELECT, HELLO) gives it a
/// session for good. From then on all of its commands run in order.
///
/// Errors tell the outcome. `is_connection_refusal` means that nothing was executed. Any other
/// error of the kind `Io` means that a command may have been executed. [`call_error`] has the
/// details. The limit of time is `request-timeout-ms` of the client, or that of
/// [`RedisConnection::set_limit`].
pub struct RedisConnection {
    state: ConnectionState,
    /// The time of a command or pipeline.
    limit: Option<Duration>,
}

/// As [`RedisConnection`], for tasks: see [`Client::async_redis_connection`]. It has the trait
/// `aio::ConnectionLike`, and needs no runtime. Each task has a connection of its own.
///
/// A future that is dropped takes its requests back if they have not left. If the connection has a
/// session for good, it is closed then, because the state of the session is unknown.
pub struct AsyncRedisConnection(ConnectionState);

impl RedisConnection {
    pub(crate) fn new(client: Client) -> RedisConnection {
        let state = ConnectionState::new(client);
        RedisConnection { state, limit: None }
    }

    /// Limits the time of each later command and pipeline. At the limit its requests are taken back
    /// if they have not left, and the error tells the outcome. A connection that has a session for
    /// good is closed then. A command that waits at the server, such as BLPOP, ends, too. `None`:
    /// there is no such limit.
    pub fn set_limit(&mut self, limit: Option<Duration>) {
        self.limit = limit;
    }

    fn deadline(&self) -> Option<Instant> {
        self.limit.and_then(deadline_in)
    }
}

impl AsyncRedisConnection {
    pub(crate) fn new(client: Client) -> AsyncRedisConnection {
        AsyncRedisConnection(ConnectionState::new(client))
    }

    /// Whether the connection may be used: see `ConnectionLike::is_open`.
    pub fn is_open(&self) -> bool {
        self.0.is_open()
    }
}

struct ConnectionState {
    client: Client,
    session: ConnectionSession,
}

enum ConnectionSession {
    /// Each command may take any session.
    Any,
    Own(OrderedSession),
    /// A command was dropped in the middle, or could not be sent.
    Closed,
}

/// A session with requests under way. If it is dropped, they are taken back.
struct SessionInUse(Option<OrderedSession>);

impl SessionInUse {
    fn get(&mut self) -> &mut OrderedSession {
        self.0.as_mut().expect("only `finish` takes the session")
    }

    fn finish(mut self) -> OrderedSession {
        self.0.take().expect("only `finish` takes the session")
    }
}

impl Drop for SessionInUse {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            session.abandon();
        }
    }
}

impl ConnectionState {
    fn new(client: Client) -> ConnectionState {
        ConnectionState {
            client,
            session: ConnectionSession::Any,
        }
    }

    /// The database of the client's URL.
    fn database(&self) -> i64 {
        self.client.0.database.into()
    }

    fn is_open(&self) -> bool {
        match &self.session {
            ConnectionSession::Any => true,
            ConnectionSession::Own(session) => session.is_open(),
            ConnectionSession::Closed => false,
        }
    }

    /// Whether requests need no session of their own.
    fn takes_any_session(&self, effect: Effect) -> bool {
        matches!(self.session, ConnectionSession::Any) && effect == Effect::None
    }

    /// Takes a session for requests of this effect. If the session has a state then, the connection
    /// is closed until it is put back.
    fn take_session(&mut self, effect: Effect) -> RedisResult<SessionInUse> {
        if self.takes_any_session(effect) {
            return Ok(SessionInUse(Some(self.client.session())));
        }
        let session = match std::mem::replace(&mut self.session, ConnectionSession::Closed) {
            ConnectionSession::Any => self.client.session(),
            ConnectionSession::Own(session) => session,
            ConnectionSession::Closed => {
                let text = "the connection was closed, because a command on it was dropped or \
                            failed: make another one";
                return Err(error_of(CallError::NotSent(text.into())));
            }
        };
        Ok(SessionInUse(Some(session)))
    }

    /// Puts a session back after all replies.
    fn put_back(&mut self, session: SessionInUse) {
        let session = session.finish();
        match self.session {
            ConnectionSession::Any => {
                if let Some(unused) = session.into_unused() {
                    self.client.sessions().give_back(unused);
                }
            }
            ConnectionSession::Own(_) | ConnectionSession::Closed => {
                self.session = ConnectionSession::Own(session);
            }
        }
    }

    /// Sends requests and receives the replies, without the first `skipped`.
    fn exchange(
        &mut self,
        requests: &[u8],
        skipped: usize,
        count: usize,
        deadline: Option<Instant>,
    ) -> RedisResult<Vec<Value>> {
        let form = RequestForm::of(requests)?;
        form.check(skipped + count)?;
        let mut session = self.take_session(form.effect)?;
        let mut written = 0;
        session
            .get()
            .send_encoded(requests, &mut written, deadline)
            .map_err(|error| unsent(error, written, &form))?;
        let mut replies = PipelineReplies::new(skipped, count);
        while replies.are_missing() {
            replies.take(session.get().receive_until(deadline));
        }
        self.put_back(session);
        replies.finish()
    }

    async fn exchange_async(
        &mut self,
        requests: &[u8],
        skipped: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let form = RequestForm::of(requests)?;
        form.check(skipped + count)?;
        let mut session = self.take_session(form.effect)?;
        let mut written = 0;
        poll_fn(|context| {
            session
                .get()
                .poll_send_encoded(context, requests, &mut written)
        })
        .await
        .map_err(|error| unsent(error, written, &form))?;
        let mut replies = PipelineReplies::new(skipped, count);
        while replies.are_missing() {
            replies.take(poll_fn(|context| session.get().poll_receive(context)).await);
        }
        self.put_back(session);
        replies.finish()
    }
}

impl redis::ConnectionLike for RedisConnection {
    fn req_packed_command(&mut self, cmd: &[u8]) -> RedisResult<Value> {
        self.command(cmd.to_vec(), false)
    }

    fn req_packed_commands(
        &mut self,
        cmd: &[u8],
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let deadline = self.deadline();
        self.state.exchange(cmd, offset, count, deadline)
    }

    fn req_command(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        self.command(cmd.get_packed_command(), cmd.is_no_response())
    }

    /// The database of the client's URL, also after SELECT.
    fn get_db(&self) -> i64 {
        self.state.database()
    }

    fn check_connection(&mut self) -> bool {
        redis::cmd("PING").query::<()>(self).is_ok()
    }

    fn is_open(&self) -> bool {
        self.state.is_open()
    }
}

impl RedisConnection {
    /// `is_silent`: the value of the reply, if there is one, is not wanted.
    fn command(&mut self, request: Vec<u8>, is_silent: bool) -> RedisResult<Value> {
        let form = RequestForm::of(&request)?;
        form.check(1)?;
        let deadline = self.deadline();
        if is_silent && form.silences {
            let sent = self.state.exchange(&request, 0, 0, deadline);
            return sent.map(|_| Value::Nil);
        }
        let value = if self.state.takes_any_session(form.effect) {
            let sessions = self.state.client.sessions();
            value_of(Call::of_request(sessions, request).wait(sessions, deadline))?
        } else {
            one(self.state.exchange(&request, 0, 1, deadline)?)?
        };
        Ok(if is_silent { Value::Nil } else { value })
    }
}

impl redis::aio::ConnectionLike for AsyncRedisConnection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let request = cmd.get_packed_command();
            let form = RequestForm::of(&request)?;
            form.check(1)?;
            if cmd.is_no_response() && form.silences {
                let sent = self.0.exchange_async(&request, 0, 0).await;
                return sent.map(|_| Value::Nil);
            }
            let value = if self.0.takes_any_session(form.effect) {
                let client = self.0.client.clone();
                let call = Call::of_request(client.sessions(), request);
                value_of(PendingCall::new(Ok(call), client).await)?
            } else {
                one(self.0.exchange_async(&request, 0, 1).await?)?
            };
            Ok(if cmd.is_no_response() {
                Value::Nil
            } else {
                value
            })
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let requests = pipeline.get_packed_pipeline();
            self.0.exchange_async(&requests, offset, count).await
        })
    }

    /// The database of the client's URL, also after SELECT.
    fn get_db(&self) -> i64 {
        self.0.database()
    }
}

/// The replies to requests in order.
struct PipelineReplies {
    /// The replies that are left to skip: those to MULTI and to the commands of a transaction.
    skipped: usize,
    is_transaction: bool,
    missing: usize,
    values: Vec<Value>,
    /// Whether a request may have been executed.
    may_have_run: bool,
    /// The first failure: a command that a transaction refuses, or a request without a reply.
    failure: Option<Failure>,
}

enum Failure {
    Call(CallError),
    Redis(RedisError),
}

impl PipelineReplies {
    fn new(skipped: usize, count: usize) -> PipelineReplies {
        PipelineReplies {
            skipped,
            is_transaction: skipped > 0,
            missing: skipped + count,
            values: Vec::with_capacity(count),
            may_have_run: false,
            failure: None,
        }
    }

    fn are_missing(&self) -> bool {
        self.missing > 0
    }

    fn take(&mut self, outcome: Result<Vec<u8>, CallError>) {
        let is_skipped = self.skipped > 0;
        let failure = match outcome {
            Err(error @ (CallError::NotSent(_) | CallError::Unknown(_))) => {
                // In a transaction the outcome of EXEC counts alone, and it comes last.
                self.may_have_run |= matches!(error, CallError::Unknown(_)) && !is_skipped;
                Some(Failure::Call(error))
            }
            outcome => match value_of(outcome) {
                Ok(Value::Push { .. }) => return,
                Ok(Value::ServerError(error)) if is_skipped => Some(Failure::Redis(error.into())),
                Ok(_) if is_skipped => None,
                Ok(value) => {
                    self.may_have_run = true;
                    self.values.push(value);
                    None
                }
                Err(error) => Some(Failure::Redis(error)),
            },
        };
        self.missing -= 1;
        self.skipped = self.skipped.saturating_sub(1);
        if self.failure.is_none() {
            self.failure = failure;
        }
    }

    fn finish(self) -> RedisResult<Vec<Value>> {
        // EXEC refuses a transaction for its commands.
        if self.is_transaction
            && let Some(Value::ServerError(error)) = self.values.first()
        {
            return Err(error.clone().into());
        }
        match self.failure {
            Some(Failure::Call(CallError::NotSent(text))) if self.may_have_run => {
                let text = format!("a part of the pipeline may have been executed: {text}");
                Err(error_of(CallError::Unknown(text)))
            }
            Some(Failure::Call(error)) => Err(error_of(error)),
            Some(Failure::Redis(error)) => Err(error),
            None => Ok(self.values),
        }
    }
}

/// The only value.
fn one(values: Vec<Value>) -> RedisResult<Value> {
    let value = values.into_iter().next();
    value.ok_or_else(|| (ErrorKind::Client, "a command has one reply").into())
}

fn value_of(outcome: Result<Vec<u8>, CallError>) -> RedisResult<Value> {
    match outcome {
        Ok(reply) => redis::parse_redis_value(&reply),
        Err(CallError::Server(text)) => redis::parse_redis_value(format!("-{text}\r\n").as_bytes()),
        Err(error) => Err(error_of(error)),
    }
}

/// The outcome of a request that failed without an answer of a server; `None`: another error.
pub fn call_error(error: &RedisError) -> Option<&CallError> {
    let source = error
        .source()?
        .downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    source
        .downcast_ref::<io::Error>()?
        .get_ref()?
        .downcast_ref()
}

fn error_of(error: CallError) -> RedisError {
    // The kinds by which the crate tells errors apart.
    let kind = match &error {
        CallError::NotSent(_) => io::ErrorKind::ConnectionRefused,
        CallError::Unknown(_) => io::ErrorKind::ConnectionReset,
        // A kind that nothing tries again.
        CallError::Server(_) | CallError::Invalid(_) => io::ErrorKind::Unsupported,
    };
    io::Error::new(kind, error).into()
}

/// The error of requests that could not be written whole.
fn unsent(error: CallError, written: usize, form: &RequestForm) -> RedisError {
    // Of a single request no part is executed.
    let may_have_run = written > 0 && form.count > 1;
    error_of(match error {
        CallError::NotSent(text) if may_have_run => CallError::Unknown(text),
        error => error,
    })
}

/// The state that requests leave behind in their session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// None, once each has its reply.
    None,
    /// The next request finds another state.
    Lasting,
}

/// Facts about encoded requests.
#[derive(Debug, PartialEq, Eq)]
struct RequestForm {
    count: usize,
    effect: Effect,
    /// Whether a request is CLIENT REPLY: it may have no reply.
    silences: bool,
}

impl RequestForm {
    /// # Errors
    /// The bytes are no requests, or a request cannot be run by a connection.
    fn of(requests: &[u8]) -> RedisResult<RequestForm> {
        let mut form = RequestForm {
            count: 0,
            effect: Effect::None,
            silences: false,
        };
        let mut in_transaction = false;
        let mut rest = requests;
        let mut args = Vec::new();
        while !rest.is_empty() {
            args.clear();
            rest = take_request(rest, &mut args)
                .ok_or_else(|| invalid("a request is an array of at least one bulk string"))?;
            form.count += 1;
            match trace_of(&args) {
                Some("multi") => in_transaction = true,
                Some("exec") if in_transaction => in_transaction = false,
                Some(
                    "subscribe" | "psubscribe" | "ssubscribe" | "unsubscribe" | "punsubscribe"
                    | "sunsubscribe" | "monitor",
                ) => return Err(invalid("subscribe and monitor in a session of the client")),
                Some(command) => {
                    form.silences |= command == "client|reply";
                    form.effect = Effect::Lasting;
                }
                None => {}
            }
        }
        if in_transaction {
            form.effect = Effect::Lasting;
        }
        Ok(form)
    }

    /// # Errors
    /// There is not one reply for each request.
    fn check(&self, replies: usize) -> RedisResult<()> {
        match self.count == replies || self.silences {
            true => Ok(()),
            false => Err(invalid("the number of requests is that of their replies")),
        }
    }
}

fn invalid(text: &str) -> RedisError {
    error_of(CallError::Invalid(text.into()))
}
