//! Pauses (CLIENT PAUSE) that hold requests back.

use respool_protocol::commands::{self, Command, CommandId, id};

use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::{Dispatched, Request};
use crate::data_plane::session_state::Holds;
use crate::routing::pool::ServerId;
use crate::{LinkId, SessionId};

/// A pause of the sessions of a pool.
#[derive(Debug)]
pub(crate) struct Pause {
    /// The index of the pool.
    pub(crate) pool: u16,
    /// The end of the pause.
    pub(crate) until: Time,
    /// It holds back all requests. Otherwise it holds back requests that may write.
    pub(crate) all: bool,
}

impl DataPlane {
    /// The link that a write to a server waits for, because the server holds all writes.
    #[inline]
    pub(crate) fn link_that_holds_writes(&self, server: ServerId) -> Option<LinkId> {
        self.server(server).takeover.holding.map(|(link, _)| link)
    }

    /// Whether a pause holds a large request that has come in part. Its command is known.
    pub(crate) fn is_paused_large(
        &self,
        session_id: SessionId,
        args: &[&[u8]],
        argc: usize,
    ) -> bool {
        self.pauses(session_id, || {
            let arg = |index: usize| args.get(index).copied().unwrap_or_default();
            let id = commands::resolve(argc, arg);
            // A script that has not come whole may write.
            id.is_some_and(|id| may_write(id.get(), id, || args.get(1).copied()))
        })
    }

    /// Whether a pause is on for the pool of a link, or the server of the link holds writes.
    pub(crate) fn is_link_paused(&self, link: LinkId) -> bool {
        let link = self.links.get(link);
        link.is_some_and(|link| self.is_server_paused(link.kind.server))
    }

    /// Whether a pause is on for the pool of a server, or the server holds writes.
    pub(crate) fn is_server_paused(&self, server: ServerId) -> bool {
        let pool = self.known_pool(self.pool_of(server).parent);
        let is_on = |pause: &Pause| pause.pool == pool;
        self.pauses.iter().any(is_on) || self.link_that_holds_writes(server).is_some()
    }

    /// The index of a session's pool; 0 if the session is gone.
    pub(crate) fn pool_of_session(&self, id: SessionId) -> u16 {
        self.sessions.get(id).map_or(0, |session| session.pool)
    }

    /// Whether a pause holds a request of this session. `writes`: whether the request may write.
    #[inline]
    pub(crate) fn pauses(&self, id: SessionId, writes: impl FnOnce() -> bool) -> bool {
        if self.pauses.is_empty() {
            return false;
        }
        let pool = self.known_pool(self.pool_of_session(id));
        let pause = self.pauses.iter().find(|pause| pause.pool == pool);
        pause.is_some_and(|pause| pause.all || writes())
    }

    /// Whether a request has to wait for the end of a pause. As in Redis, errors in its name or
    /// number of arguments are answered before. A request that MULTI would only queue waits, too.
    #[inline]
    pub(crate) fn is_paused(&self, session_id: SessionId, request: &Request<'_>) -> bool {
        self.pauses(session_id, || {
            if request.id == id::EXEC {
                let session = self.sessions.get(session_id);
                let transaction = session
                    .and_then(|session| session.rare.as_ref())
                    .and_then(|rare| rare.transaction.open.as_ref());
                return transaction.is_some_and(|transaction| transaction.writes);
            }
            request_may_write(request)
        })
    }

    /// The session waits until the pause ends.
    #[cold]
    pub(crate) fn hold_for_pause(&mut self, id: SessionId) -> Dispatched {
        self.hold(id, Holds::PAUSE);
        if self.paused.len() > 2 * self.sessions.len() {
            // Forget sessions that were closed during a long pause.
            let sessions = &self.sessions;
            self.paused
                .retain(|session_id| sessions.get(*session_id).is_some());
        }
        self.paused.push(id);
        Dispatched::Wait
    }

    /// A pause began or ended: requests take the slow path, or the hot path again.
    pub(crate) fn admit_links(&mut self) {
        for id in self.links.ids() {
            let paused = self.is_link_paused(id);
            if let Some(link) = self.links.get_mut(id) {
                link.admit(link.takes(), paused);
            }
        }
    }
}

/// Whether CLIENT PAUSE WRITE holds a request.
pub(crate) fn request_may_write(request: &Request<'_>) -> bool {
    let first = || request.spans.get(1).map(|span| span.of(request.bytes));
    may_write(request.command, request.id, first)
}

/// Whether CLIENT PAUSE WRITE holds a command: it changes data, or sends something to replicas
/// without a change (the flag MAY_REPLICATE, which servers do not show). A script is judged by its
/// first line.
pub(crate) fn may_write<'a>(
    command: &Command,
    id: CommandId,
    first: impl Fn() -> Option<&'a [u8]>,
) -> bool {
    match id {
        id::EVAL => !first().is_some_and(says_no_writes),
        id::EVALSHA | id::FCALL | id::PUBLISH | id::SPUBLISH | id::PFCOUNT => true,
        _ => command.flags.has(commands::CommandFlags::WRITE),
    }
}

/// Whether a script begins with `#!... flags=...,no-writes,...`.
fn says_no_writes(script: &[u8]) -> bool {
    let line = script
        .split(|&byte| byte == b'\n')
        .next()
        .unwrap_or_default();
    line.starts_with(b"#!")
        && line
            .split(|byte| byte.is_ascii_whitespace())
            .filter_map(|word| word.strip_prefix(b"flags="))
            .any(|flags| {
                flags
                    .split(|&byte| byte == b',')
                    .any(|flag| flag == b"no-writes")
            })
}

#[cfg(test)]
mod tests {
    use super::says_no_writes;

    /// A pause of writes holds every script but those with the flag `no-writes` in the first line.
    #[test]
    fn script_with_no_writes_passes_a_pause_of_writes() {
        for reads in [
            "#!lua flags=no-writes\nreturn 1",
            "#!lua flags=allow-stale,no-writes\nreturn 1",
            "#!lua name=x flags=no-writes",
        ] {
            assert!(says_no_writes(reads.as_bytes()), "{reads}");
        }
        for unknown in [
            "return 1",
            "#!lua\nreturn 1",
            "#!lua\n#!lua flags=no-writes",
            "#!lua flags=no-writesx\n",
            "-- #!lua flags=no-writes",
            "",
        ] {
            assert!(!says_no_writes(unknown.as_bytes()), "{unknown}");
        }
    }
}
