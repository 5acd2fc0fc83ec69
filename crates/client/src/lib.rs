//! A Redis client for many callers.
//!
//! Threads and tasks ask at the same time, few connections carry their requests in large batches,
//! and each caller is woken with its own reply. The engine of respool runs in a thread of this
//! process.
//!
//! ```text
//!   thread ─┐                                      ┌─ server
//!   thread ─┼─ sessions ── engine ── few links ────┤
//!   task   ─┘                                      └─ server
//! ```
//!
//! ```no_run
//! let client = respool_client::Client::open("redis://127.0.0.1:6379")?;
//! client.call(&["SET", "key", "value"])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`Client::open`] takes a URL, and [`Client::options`] options of respool.
//! - [`Client::call`] blocks until the reply is there.
//! - [`Client::ask`] is a future for any executor.
//! - [`Client::session`] is for requests that stay in order without waiting for each other,
//!   for transactions that watch keys, blocking commands and subscriptions.
//! - [`Client::within`] limits the time of calls. A call that is out of time is taken back if
//!   it has not left, and so is the request of a future that is dropped.
//! - With the feature `tokio`, `Client::on_tokio` runs in a task of the runtime in place of a
//!   thread.
//! - [`Client::completions`] and [`Client::stream`] are for event loops and other languages.
//! - With the feature `redis`, `Client::redis_connection` and `Client::async_redis_connection` are
//!   connections for the crate `redis`.
//! - [`CallError`] says whether a failed request may have been executed.
//!
//! Order holds between calls of which one has ended before the other began.
//!
//! A client is of its process: in the child of a fork each call fails, and the child opens a client
//! of its own.
//!
//! Commands that change their connection (SELECT, MULTI, SUBSCRIBE) are refused in calls: the next
//! caller might get that connection. They are for an [`OrderedSession`], which belongs to one
//! caller.

mod call;
mod completions;
mod error;
#[cfg(feature = "tokio")]
mod on_tokio;
mod open;
mod ready;
#[cfg(feature = "redis")]
mod redis_rs;
mod session;
mod sessions;
mod stream;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use respool_config::passwords::Rereader;
use respool_driver::tls::ServerTls;
use respool_driver::{Notify, Running, Setup, StartError};
use respool_engine::settings::Settings;

pub use call::PendingCall;
pub use completions::Completions;
pub use error::CallError;
pub use open::{ClientOptions, OpenError};
pub use ready::ReadyList;
#[cfg(feature = "redis")]
pub use redis_rs::{AsyncRedisConnection, RedisConnection, call_error};
pub use session::OrderedSession;
pub use stream::SessionStream;

use crate::call::Call;
use crate::sessions::Sessions;

/// How long the end of the last client waits for replies.
const END_WAIT: Duration = Duration::from_secs(1);

/// A client. Its clones and sessions share connections. The last of them ends them when it is
/// dropped, which takes up to a second while requests wait for their servers.
#[derive(Clone)]
pub struct Client(Arc<Core>);

/// The part that all clones share.
pub(crate) struct Core {
    sessions: Sessions,
    /// The database in which a session starts.
    #[cfg(feature = "redis")]
    database: u32,
    /// `None` while it ends.
    running: Option<Running>,
    /// The end of the task that is the worker; `None`: the worker has a thread.
    #[cfg(feature = "tokio")]
    task: Option<on_tokio::TaskEnd>,
    /// The thread that reads passwords and certificates again.
    rereader: Rereader,
}

/// The parts of a client before its start.
pub(crate) struct Parts {
    pub(crate) settings: Arc<Settings>,
    /// TLS of the servers of each pool; no item: plain.
    pub(crate) pool_tls: Vec<Option<ServerTls>>,
    /// Whether the replies to calls are in RESP3.
    pub(crate) resp3: bool,
    pub(crate) notify: Notify,
    /// Its thread has not started.
    pub(crate) rereader: Rereader,
}

impl Core {
    /// Starts the worker in a thread.
    fn start(parts: Parts) -> Result<Core, StartError> {
        let setup = setup(&parts);
        // Nothing listens, so there is no address with an error of its own.
        let running = respool_driver::start(setup, parts.notify.clone());
        let running = running.map_err(|mut errors| errors.swap_remove(0))?;
        Ok(Core::new(parts, running))
    }

    /// Starts the worker as a task of the current runtime.
    #[cfg(feature = "tokio")]
    fn start_on_tokio(parts: Parts) -> Result<Core, OpenError> {
        let (running, worker) = respool_driver::start_hosted(setup(&parts), parts.notify.clone())?;
        let end = on_tokio::TaskEnd::default();
        on_tokio::spawn(worker, end.clone()).map_err(OpenError::Runtime)?;
        let mut core = Core::new(parts, running);
        core.task = Some(end);
        Ok(core)
    }

    fn new(parts: Parts, running: Running) -> Core {
        let callers = running.callers().expect("the set-up serves callers");
        Core {
            sessions: Sessions::new(callers, parts.resp3),
            #[cfg(feature = "redis")]
            database: parts
                .settings
                .pools
                .first()
                .map_or(0, |pool| pool.kind.database()),
            running: Some(running),
            #[cfg(feature = "tokio")]
            task: None,
            rereader: parts.rereader,
        }
    }

    /// Starts the thread that reads passwords and certificates again, if there are any in files.
    fn read_again(&self) -> io::Result<()> {
        match &self.running {
            Some(running) => self.rereader.start(running.passwords(), running.tls()),
            None => Ok(()),
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.sessions.are_forked() {
            // The threads do not exist in this process, and their locks may never be free.
            std::mem::forget(self.running.take());
            std::mem::forget(std::mem::take(&mut self.rereader));
            return;
        }
        self.rereader.stop();
        if let Some(running) = self.running.take() {
            self.sessions.clear();
            running.drain();
            #[cfg(feature = "tokio")]
            if let Some(task) = &self.task {
                // The task ends by itself: a wait for it here could hold up its runtime.
                return task.set(Instant::now() + END_WAIT);
            }
            running.join(END_WAIT);
        }
    }
}

/// A set-up with one worker, because a second one would halve the batches.
fn setup(parts: &Parts) -> Setup {
    Setup {
        listeners: Vec::new(),
        pool_tls: parts.pool_tls.clone(),
        socket_access: Default::default(),
        workers: 1,
        settings: parts.settings.clone(),
        reports_servers: false,
        serves_callers: true,
    }
}

impl Client {
    /// Opens a client of the servers that a URL names. Calls may begin before its connections are
    /// up.
    ///
    /// | URL | servers |
    /// |---|---|
    /// | `redis://[USER:PASSWORD@]HOST[:PORT][/DB]` | one |
    /// | `unix://[USER:PASSWORD@]/path[?db=N]` | one, by its socket |
    /// | `redis-sharded://HOST:PORT,HOST:PORT/DB?PARAMETERS` | several, which divide the keys |
    /// | `redis-cluster://HOST:PORT,HOST:PORT` | a Cluster, by some of its nodes |
    /// | `redis-sentinel://HOST:PORT,HOST:PORT/NAME/DB` | the primary that Sentinels name |
    ///
    /// `rediss` in place of `redis` means TLS. The option `backend` of respool has the details.
    ///
    /// Files with passwords and certificates are read first. A command that prints a password may
    /// take 10 seconds.
    ///
    /// # Errors
    /// See [`OpenError`]. Servers that cannot be reached are no error: calls fail until they can.
    pub fn open(url: &str) -> Result<Client, OpenError> {
        Client::options().open(url)
    }

    /// As [`Client::open`], with the worker as a task of the current runtime in place of a thread.
    /// Tasks of that runtime then reach it without a switch between threads.
    ///
    /// The client ends with the runtime. A blocking call on a thread of a runtime that has no other
    /// waits for ever, as any wait for a task there does.
    ///
    /// # Errors
    /// See [`OpenError`].
    ///
    /// # Panics
    /// The runtime has no I/O driver: see `tokio::runtime::Builder::enable_io`.
    #[cfg(feature = "tokio")]
    pub fn on_tokio(url: &str) -> Result<Client, OpenError> {
        Client::options().on_tokio(url)
    }

    /// Options of a client, by their names in the configuration of respool.
    ///
    /// ```no_run
    /// let client = respool_client::Client::options()
    ///     .set("request-timeout-ms", "2s")
    ///     .set("server-tls-ca", "/etc/ssl/own.crt")
    ///     .open("rediss-cluster://10.0.0.1,10.0.0.2")?;
    /// # Ok::<(), respool_client::OpenError>(())
    /// ```
    ///
    /// Options about listeners, clients of respool, and its process are refused.
    pub fn options() -> ClientOptions {
        ClientOptions::default()
    }

    /// Starts a client with settings that the caller has made. Calls may begin before its
    /// connections are up.
    ///
    /// `pool_tls`: TLS of the servers of each pool of the settings; no item: plain. `notify` gets
    /// events for the operator, on the client's thread or on that of a caller. It must not call the
    /// client.
    ///
    /// # Errors
    /// The system refuses a thread or a descriptor.
    pub fn start(
        settings: Arc<Settings>,
        pool_tls: Vec<Option<ServerTls>>,
        notify: Notify,
    ) -> Result<Client, StartError> {
        let core = Core::start(Parts {
            settings,
            pool_tls,
            resp3: false,
            notify,
            rereader: Rereader::default(),
        })?;
        Ok(Client(Arc::new(core)))
    }

    /// Sends a request and blocks until its reply has come. The reply is in the protocol of Redis:
    /// see [`ClientOptions::resp3`]. A call beyond `sessions-max` waits for another one to end.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call<A: AsRef<[u8]>>(&self, args: &[A]) -> Result<Vec<u8>, CallError> {
        Call::begin(self.sessions(), args)?.wait(self.sessions(), None)
    }

    /// As [`Client::call`], for a request that the caller has encoded: one array of bulk strings.
    /// `limit`: see [`Client::within`].
    ///
    /// # Errors
    /// See [`CallError`]. Other bytes are [`CallError::Invalid`].
    pub fn call_encoded(
        &self,
        request: Vec<u8>,
        limit: Option<Duration>,
    ) -> Result<Vec<u8>, CallError> {
        let call = Call::begin_encoded(self.sessions(), request)?;
        call.wait(self.sessions(), limit.and_then(deadline_in))
    }

    /// As [`Client::call_encoded`], for a language that interrupts its threads. While the call
    /// waits, `goes_on` is asked every 50 ms. If it says no, the request is taken back if it has
    /// not left, and the error tells its fate.
    ///
    /// # Errors
    /// See [`Client::call_encoded`].
    pub fn call_encoded_while(
        &self,
        request: Vec<u8>,
        limit: Option<Duration>,
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Vec<u8>, CallError> {
        let call = Call::begin_encoded(self.sessions(), request)?;
        let deadline = limit.and_then(deadline_in);
        call.wait_while(self.sessions(), deadline, Some(&mut goes_on))
    }

    /// Many calls at the same time, whose outcomes one thread takes in batches: for event loops and
    /// for other languages.
    ///
    /// # Errors
    /// The system refuses an eventfd.
    pub fn completions(&self) -> io::Result<Completions> {
        Completions::new(self.clone())
    }

    /// Opens a session as a stream of bytes, for a client library that brings the protocol: it
    /// takes the place of a socket. The session begins with its first byte.
    pub fn stream(&self) -> SessionStream {
        SessionStream::new(self.sessions().open(), self.0.clone())
    }

    /// This client with a limit on the time of each call. There is no other limit than
    /// `request-timeout-ms` of the settings without it.
    pub fn within(&self, limit: Duration) -> LimitedClient {
        LimitedClient {
            client: self.clone(),
            limit,
        }
    }

    /// Sends a request. The future ends with its reply. Dropping the future takes the request back
    /// if it has not left.
    pub fn ask<A: AsRef<[u8]>>(&self, args: &[A]) -> PendingCall {
        PendingCall::new(Call::begin(self.sessions(), args), self.clone())
    }

    /// Opens a session, which counts against `sessions-max` from its first request on. If there are
    /// as many, that request waits until another session has ended or a call has no use for its
    /// own.
    pub fn session(&self) -> OrderedSession {
        OrderedSession::new(self.sessions().take(), self.0.clone())
    }

    /// A blocking connection for the crate `redis`: its commands, pipelines, transactions and
    /// scripts run through this client.
    #[cfg(feature = "redis")]
    pub fn redis_connection(&self) -> RedisConnection {
        RedisConnection::new(self.clone())
    }

    /// As [`Client::redis_connection`], for tasks.
    #[cfg(feature = "redis")]
    pub fn async_redis_connection(&self) -> AsyncRedisConnection {
        AsyncRedisConnection::new(self.clone())
    }

    fn sessions(&self) -> &Sessions {
        &self.0.sessions
    }
}

/// A client with a limit on the time of each call.
#[derive(Clone)]
pub struct LimitedClient {
    client: Client,
    limit: Duration,
}

impl LimitedClient {
    /// As [`Client::call`]. At the limit the request is taken back if it has not left.
    ///
    /// # Errors
    /// See [`CallError`]. At the limit it is [`CallError::NotSent`] or [`CallError::Unknown`].
    pub fn call<A: AsRef<[u8]>>(&self, args: &[A]) -> Result<Vec<u8>, CallError> {
        let sessions = self.client.sessions();
        Call::begin(sessions, args)?.wait(sessions, deadline_in(self.limit))
    }
}

/// Locks a mutex. A thread that panicked while it held the lock is no reason to end another one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end of a limit from now on. A limit beyond the range of the clock is none.
fn deadline_in(limit: Duration) -> Option<Instant> {
    Instant::now().checked_add(limit)
}
