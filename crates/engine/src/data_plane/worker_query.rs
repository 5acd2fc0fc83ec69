//! Queries of a worker to all workers, and the answers: the data that travels between workers.
//!
//! `admin` asks, answers and collects.

use std::sync::Arc;

use crate::base::coarse_times::CoarseReport;
use crate::base::time::Time;
use crate::data_plane::hot_keys::HotKeysReport;
use crate::data_plane::ingress::KeptRequest;
use crate::data_plane::scripts::ScriptSources;
use crate::data_plane::slow_log::SlowRequest;

/// A query to every worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerQuery {
    /// About clients, pauses and options.
    Admin(AdminQuery),
    /// End the wait of a session in a blocking command. The answer is 1 if it waited.
    Unblock {
        /// The id of the session.
        id: u64,
        /// The pool of the session; a session of another pool is not found.
        pool: u16,
        /// The reply to the blocking command.
        how: Unblock,
    },
    /// About the target of a redirect of CLIENT TRACKING.
    Target(TargetQuery),
    /// About scripts. No session waits for the answer.
    Script(ScriptQuery),
}

impl WorkerQuery {
    /// The pool that the query is about, if it is about one.
    pub(crate) fn pool_mut(&mut self) -> Option<&mut u16> {
        match self {
            WorkerQuery::Admin(AdminQuery::List(filter) | AdminQuery::Kill(filter)) => {
                Some(&mut filter.pool)
            }
            WorkerQuery::Admin(
                AdminQuery::Pause { pool, .. }
                | AdminQuery::Unpause { pool }
                | AdminQuery::SlowLog { pool, .. }
                | AdminQuery::SlowLogLen { pool }
                | AdminQuery::ClearSlowLog { pool }
                | AdminQuery::HotKeys { pool }
                | AdminQuery::ClearHotKeys { pool }
                | AdminQuery::Set { pool, .. },
            )
            | WorkerQuery::Unblock { pool, .. }
            | WorkerQuery::Target(TargetQuery::Find { pool, .. })
            | WorkerQuery::Script(ScriptQuery::Forget { pool } | ScriptQuery::Show { pool, .. }) => {
                Some(pool)
            }
            WorkerQuery::Admin(AdminQuery::Latency)
            | WorkerQuery::Target(TargetQuery::Push { .. } | TargetQuery::Gone { .. }) => None,
        }
    }
}

/// A query about clients, pauses and options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminQuery {
    /// The sessions that pass, each as a line of CLIENT LIST.
    List(Box<Filter>),
    /// Close the sessions that pass. The answer is their number.
    Kill(Box<Filter>),
    /// Hold the requests that CLIENT PAUSE names. Answered when no request that passed before is
    /// still in flight.
    Pause {
        /// The pool of the sessions.
        pool: u16,
        /// The end, by the clock that all workers share.
        until: Time,
        /// Whether all requests are held. Otherwise requests that may write are held.
        all: bool,
    },
    /// End the pause of a pool.
    Unpause {
        /// The pool of the sessions.
        pool: u16,
    },
    /// The times of requests by command, of all pools.
    Latency,
    /// The newest slow requests of a pool.
    SlowLog {
        /// The pool of the sessions.
        pool: u16,
        /// How many at most.
        count: usize,
    },
    /// The number of slow requests of a pool.
    SlowLogLen {
        /// The pool of the sessions.
        pool: u16,
    },
    /// Forget the slow requests of a pool.
    ClearSlowLog {
        /// The pool of the sessions.
        pool: u16,
    },
    /// The keys of a pool that are asked for most.
    HotKeys {
        /// The pool of the sessions.
        pool: u16,
    },
    /// Forget the hot keys of a pool.
    ClearHotKeys {
        /// The pool of the sessions.
        pool: u16,
    },
    /// Set options of respool, by their indices and values.
    Set {
        /// The time of the change, and the worker of the session that made it.
        at: (Time, usize),
        /// The pool of the options.
        pool: u16,
        /// The listener of the options.
        listener: u16,
        /// Pairs of option and value.
        values: Vec<(usize, u32)>,
    },
}

/// A query about the target of a redirect of CLIENT TRACKING.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetQuery {
    /// Whether this worker has the session to which another one redirects its invalidations.
    Find {
        /// The id of the session.
        to: u64,
        /// The pool of the session; a session of another pool is not found.
        pool: u16,
    },
    /// Pass an invalidation on to the target of a redirect.
    Push {
        /// The id of the target.
        to: u64,
        /// The push, in RESP3.
        push: Vec<u8>,
    },
    /// The target of redirects has left.
    Gone {
        /// The id of the target.
        to: u64,
    },
}

/// A query about scripts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptQuery {
    /// Drop the scripts of a pool.
    Forget {
        /// The pool of the scripts.
        pool: u16,
    },
    /// Remember a script.
    Show {
        /// The pool of the script.
        pool: u16,
        /// The body of the script.
        body: Arc<[u8]>,
        /// The users that have shown it.
        shown_by: ScriptSources,
    },
}

/// The answer of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerReply {
    /// Lines of sessions.
    Lines(ClientLines),
    /// A number.
    Count(u64),
    /// The times of requests by command.
    Latency(CoarseReport),
    /// Slow requests.
    SlowLog(Vec<Arc<SlowRequest>>),
    /// The sampled keys of a pool.
    HotKeys(Vec<HotKeysReport>),
}

/// The way in which the answers become a reply.
#[derive(Debug)]
pub(crate) enum ReplyForm {
    /// The lines, in the order of these ids or by age.
    Lines(Option<Vec<u64>>),
    /// The sum.
    Sum,
    /// OK if the sum is not 0, as in the old form of CLIENT KILL.
    AnyKilled,
    /// OK.
    Ok,
    /// The times of requests with these commands, or with all if there is none.
    Latency(Vec<Vec<u8>>),
    /// So many slow requests at most.
    SlowLog(usize),
    /// So many keys at most.
    HotKeys(usize),
    /// The request goes on, now that it is known whether its redirect target exists.
    Target { to: u64, request: KeptRequest },
}

/// The filter of a CLIENT LIST or KILL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The session that asks.
    pub(crate) asker: u64,
    /// The pool of the asking session. The filter passes no session of another pool, since the
    /// right to the command comes from a server of this pool.
    pub(crate) pool: u16,
    /// Whether the asking session is left out.
    pub(crate) skip_asker: bool,
    /// The syntax and texts of the server.
    pub(crate) dialect: Dialect,
    /// Least age and least idle time, seconds.
    pub(crate) age: Option<u64>,
    pub(crate) idle: Option<u64>,
    /// Traits that a session must have, and traits that it must not have (`NOT-...`).
    pub(crate) is: ClientTraits,
    pub(crate) is_not: ClientTraits,
}

/// The end of a blocked session's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unblock {
    /// As if its timeout had passed.
    Timeout,
    /// With the error UNBLOCKED.
    Error,
}

/// The server family that decides syntax and texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Redis,
    Valkey,
}

/// The traits of a session in a filter. `None`: not asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientTraits {
    pub(crate) ids: Option<Vec<u64>>,
    pub(crate) kind: Option<ClientType>,
    pub(crate) addr: Option<Vec<u8>>,
    pub(crate) laddr: Option<Vec<u8>>,
    pub(crate) ip: Option<Vec<u8>>,
    pub(crate) user: Option<Vec<u8>>,
    pub(crate) flags: Option<Vec<u8>>,
    pub(crate) name: Option<Vec<u8>>,
    pub(crate) lib_name: Option<Vec<u8>>,
    pub(crate) lib_ver: Option<Vec<u8>>,
    pub(crate) db: Option<u32>,
    pub(crate) capa: Option<Vec<u8>>,
}

/// The values of the filter TYPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientType {
    Normal,
    PubSub,
    Replica,
    Primary,
}

/// The lines of one worker's sessions, in one buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientLines {
    text: String,
    /// Each session by its id, and where its line ends.
    ends: Vec<(u64, usize)>,
}

impl ClientLines {
    /// Appends the line of a session: `write` appends it to the text.
    pub(crate) fn push(&mut self, id: u64, write: impl FnOnce(&mut String)) {
        write(&mut self.text);
        self.ends.push((id, self.text.len()));
    }

    /// No more lines come.
    pub(crate) fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Whether there is no line.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * size_of::<(u64, usize)>()
    }

    /// Each session by its id, and its line.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &str)> {
        let mut start = 0;
        self.ends.iter().map(move |&(id, end)| {
            let line = &self.text[start..end];
            start = end;
            (id, line)
        })
    }
}
