//! Actions for the driver, and events for the operator's log. Every component emits them.

use std::sync::Arc;

use crate::base::error::{Cause, Fate};
use crate::base::handle::{LinkId, SessionId};
use crate::base::settings::{Address, PasswordSource};
use crate::data_plane::worker_query::{WorkerQuery, WorkerReply};

/// Why the engine closes a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// It broke this rule, or reached this bound.
    Rule(Box<str>),
    /// Its request waited at a server that was lost or that cannot be reached. The connection is
    /// closed in place of an error reply.
    ServerLost {
        /// The cause.
        text: Box<str>,
        /// The outcome of the requests without a reply.
        fate: Fate,
    },
}

impl CloseReason {
    pub(crate) fn server_lost(fate: Fate, cause: Cause<'_>) -> CloseReason {
        let text = cause.text().into();
        CloseReason::ServerLost { text, fate }
    }
}

/// A task for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect, then call [`crate::Engine::handle_link_up`] or [`crate::Engine::handle_link_lost`].
    Connect {
        /// The link to connect.
        link: LinkId,
        /// The server's address.
        to: Address,
    },
    /// Close the link's socket, connected or not. The engine has already forgotten the connection.
    CloseLink(LinkId),
    /// Shut down the sending half of the link's socket, and go on reading.
    EndLink(LinkId),
    /// Read the link's socket (true), or do not read it until the next such action (false).
    ReadLink(LinkId, bool),
    /// Close the session's socket. The engine has forgotten it already.
    CloseSession {
        /// The session.
        session: SessionId,
        /// Whether the driver first writes the remaining output. Otherwise it cuts the client off.
        after_output: bool,
        /// `None`: its client or its last reply ends it.
        reason: Option<CloseReason>,
    },
    /// Read the session's socket (true), or do not read it until the next such action (false).
    ReadSession(SessionId, bool),
    /// Free the TLS of this pool, by its index in [`crate::settings::Settings::pools`]. A reload
    /// has ended the pool, and its last link is closed.
    ForgetPool(u16),
    /// Send this question to every other worker. Each calls [`crate::Engine::handle_question`].
    Ask {
        /// This worker's number for the question. It comes back with the answers.
        ticket: u64,
        /// The question or the command.
        question: WorkerQuery,
    },
    /// Give this answer to the worker that sent the question. It calls
    /// [`crate::Engine::handle_answer`].
    Answer {
        /// The worker that sent the question: [`WorkerId::index`].
        to: usize,
        /// That worker's number for the question.
        ticket: u64,
        /// The answer of this worker.
        answer: WorkerReply,
    },
}

/// A message for the operator's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A link is in use.
    LinkUp {
        /// The server's address.
        server: String,
        /// Its pool's name.
        pool: String,
        /// The kind of server, with its version.
        identity: String,
    },
    /// A link was lost, or an attempt to connect failed.
    LinkDown {
        /// The server's address.
        server: String,
        /// Its pool's name.
        pool: String,
        /// The cause.
        reason: String,
    },
    /// We closed a session because it broke a rule or a bound.
    SessionClosed {
        /// Its client's address.
        peer: String,
        /// The rule or the bound.
        reason: String,
    },
    /// The owners of slots that a pool's servers report have changed, or no server reports them.
    Topology {
        /// The pool's name.
        pool: String,
        /// The change, or the problem.
        text: String,
    },
    /// A server refuses the configured login, which it accepted before. New sessions must
    /// authenticate.
    LoginWithdrawn {
        /// The server's address.
        server: String,
        /// Its pool's name.
        pool: String,
        /// The server's error.
        reason: String,
    },
    /// A server accepts the configured login again.
    LoginAccepted {
        /// The server's address.
        server: String,
        /// Its pool's name.
        pool: String,
    },
    /// Requests wait, or are refused, because a bound is reached. For a bound of ours the event
    /// comes at most once a minute. For a bound of a server it comes with each report of the
    /// server.
    BoundReached {
        /// The option that sets the bound, of respool or of the server.
        name: &'static str,
        /// The effect on these requests.
        effect: String,
    },
    /// Logins of clients were refused. For each address the event comes once a minute.
    LoginsRefused {
        /// The address, or the network of an IPv6 address.
        from: String,
        /// The number of refusals since the last event for the address.
        count: u64,
    },
    /// A server refuses a password that has a source. The source may have a newer password by now.
    /// The event comes with each refusal.
    PasswordRefused {
        /// The source of the password.
        source: PasswordSource,
    },
    /// A client has set options of respool.
    OptionsSet {
        /// The client's address.
        peer: String,
        /// The name of the pool of the options.
        pool: String,
        /// The client's listener. Options of a listener are set for this one.
        listener: String,
        /// The options with their values.
        options: String,
        /// The old names that the client used, each with its new name. Empty if there are none.
        old_names: String,
    },
}

/// The identity of this engine's worker.
#[derive(Clone, Debug)]
pub struct WorkerId {
    /// The index of the worker, from 0.
    pub index: usize,
    /// The number of workers.
    pub count: usize,
    /// The seed of the random numbers. Workers have different seeds, so their jitter differs; a
    /// test gives a fixed seed, so that it can be repeated.
    pub seed: u64,
    /// The process id, for INFO.
    pub process_id: u32,
    /// The TCP ports for clients, in the order of the configuration.
    pub ports: Arc<[ListeningPort]>,
    /// The time in seconds since 1970 at the engine's time 0, for INFO.
    pub started_at: u64,
}

impl WorkerId {
    /// The TCP port for clients, for INFO. It is 0 if all listening sockets are in the file system.
    pub(crate) fn tcp_port(&self) -> u16 {
        self.ports.first().map_or(0, |first| first.port)
    }
}

/// A TCP port on which respool listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListeningPort {
    /// The index of the listener.
    pub listener: u16,
    /// The host of the listener, as the configuration has it.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The pool of its new sessions.
    pub pool: u16,
    /// Whether clients reach it with TLS.
    pub has_tls: bool,
}

impl ListeningPort {
    /// Whether clients of this listener reach the other one, too: it is of the same pool and at the
    /// same host, or at all hosts.
    pub(crate) fn is_beside(&self, other: &ListeningPort) -> bool {
        let is_any = matches!(&*other.host, "0.0.0.0" | "::");
        self.pool == other.pool && (is_any || self.host == other.host)
    }
}
