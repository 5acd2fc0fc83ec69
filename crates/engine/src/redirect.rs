//! Requests that a server refused without executing them: where they go next, and when.

pub(crate) mod conflicts;
pub(crate) mod deferred;
pub(crate) mod refusals;
pub(crate) mod retry;

use crate::base::handle::SessionId;
use crate::base::session_map::SessionMap;
use crate::base::time::Time;
use crate::redirect::deferred::DeferredQueue;

/// Sessions with deferred requests: requests that a server refused without executing them.
#[derive(Default)]
pub(crate) struct Redirects {
    /// Sessions that deferred a request in this turn.
    pub(crate) new_sessions: Vec<SessionId>,
    /// Sessions with deferred requests.
    pub(crate) sessions: Vec<SessionId>,
    /// The next time when all `sessions` retry.
    pub(crate) sweep_at: Time,
    /// A sweep was skipped, since it came before `sweep_at`.
    pub(crate) sweep_missed: bool,
    /// The deferred requests of each session that has had some.
    queues: SessionMap<DeferredQueue>,
}
