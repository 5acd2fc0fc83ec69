//! Replies on links that serve one session.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use respool_protocol::commands::{CommandId, id};
use respool_protocol::number;

use crate::base::handle::LinkId;
use crate::base::time::{Stamp, Time};
use crate::data_plane::ingress::Request;
use crate::data_plane::session::Pins;
use crate::routing::pool::ServerId;

/// The completion of a request that changes or needs a link of one session.
#[derive(Debug)]
pub(crate) enum PinnedCompletion {
    /// Switches a connection state. The session keeps a link of its own while it is on. `had`:
    /// whether the session had such a link before.
    Switch {
        switch: ConnectionSwitch,
        had: bool,
        /// The session that gets the messages, if it is another one.
        redirect: Option<TrackingRedirect>,
    },
    /// CLIENT GETREDIR, CLIENT TRACKINGINFO: the server names respool's link, and the client
    /// expects the session that it named.
    NameTold,
    /// Own: CLIENT TRACKING or CLIENT CACHING for a session that tracks at several servers.
    Track,
    /// WAIT and WAITAOF.
    Wait(Box<WaitCommand>),
    /// Own: CLIENT UNBLOCK of this link, because respool ends.
    Dismissal { of: LinkId },
    /// A blocking command that must not wait, see [`crate::pinned::polling`].
    Poll(ExecPreamble),
}

impl PinnedCompletion {
    /// Takes a reply that is not the last one. Returns whether the reply was such a one.
    pub(crate) fn take_early(&mut self, reply: &[u8]) -> bool {
        match self {
            PinnedCompletion::Poll(before) => before.takes(reply),
            PinnedCompletion::Wait(waiting) if waiting.is_in_front() => {
                waiting.take_in_front(reply);
                true
            }
            _ => false,
        }
    }
}

/// Whether a command sets an option of its connection. The session keeps a link of its own while
/// the option is on, and with several servers each of them must agree.
pub(crate) fn is_connection_switch(command: CommandId) -> bool {
    matches!(
        command,
        id::CLIENT_TRACKING | id::CLIENT_NO_TOUCH | id::CLIENT_IMPORT_SOURCE
    )
}

/// The option that such a command sets, see [`is_connection_switch`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionSwitch {
    pub(crate) pins: Pins,
    pub(crate) on: bool,
}

impl ConnectionSwitch {
    pub(crate) fn of(request: &Request<'_>) -> ConnectionSwitch {
        let has = |word: &[u8]| request.args().any(|arg| arg.eq_ignore_ascii_case(word));
        let on = request.arg(2).eq_ignore_ascii_case(b"ON");
        let pins = match request.id {
            id::CLIENT_NO_TOUCH => Pins::NO_TOUCH,
            id::CLIENT_IMPORT_SOURCE => Pins::IMPORT,
            _ if has(b"BCAST") || !on => Pins::TRACKING.with(Pins::BROADCAST),
            _ => Pins::TRACKING,
        };
        ConnectionSwitch { pins, on }
    }
}

/// The argument of a CLIENT TRACKING that names the target, and its id. `None`: there is none, or
/// it is wrong and the server refuses it.
pub(crate) fn redirect_asked(request: &Request<'_>) -> Option<(usize, u64)> {
    let argc = request.spans.len();
    let mut at = 3;
    while at + 1 < argc {
        if request.arg(at).eq_ignore_ascii_case(b"REDIRECT") {
            let id = number::parse(request.arg(at + 1))?;
            // Ids below 1 are never given.
            return Some((at + 1, u64::try_from(id).unwrap_or(0)));
        }
        at += if request.arg(at).eq_ignore_ascii_case(b"PREFIX") {
            2
        } else {
            1
        };
    }
    None
}

/// The target of the invalidations of a session that tracks.
#[derive(Clone, Debug)]
pub(crate) struct TrackingRedirect {
    /// The id of the target session.
    pub(crate) to: u64,
    /// The stand-in of the target at the server. It stays while a tracking session, or a request
    /// that is queued or in flight, holds `stand_in`.
    pub(crate) link: LinkId,
    pub(crate) stand_in: Arc<RedirectStandIn>,
}

/// The state of a stand-in, shared with all sessions and requests that need it.
#[derive(Debug, Default)]
pub(crate) struct RedirectStandIn {
    /// The target has left, and the stand-in was closed with it: the server will notice. Without
    /// this flag, a link that is gone was lost.
    pub(crate) has_left: AtomicBool,
}

/// Replies to the requests in front of EXEC.
#[derive(Debug, Default)]
pub(crate) struct ExecPreamble {
    pub(crate) came: u8,
    /// The first error. With it the server executed nothing.
    pub(crate) refusal: Option<Vec<u8>>,
}

impl ExecPreamble {
    /// Whether a reply answers MULTI or the command, and not EXEC.
    pub(crate) fn takes(&mut self, reply: &[u8]) -> bool {
        let is_before = self.came < 2;
        if is_before {
            self.came += 1;
            if reply.starts_with(b"-") {
                self.refusal.get_or_insert_with(|| reply.to_vec());
            }
        }
        is_before
    }
}

/// A WAIT or WAITAOF that no server has answered yet.
#[derive(Debug, Default)]
pub(crate) struct WaitCommand {
    /// Number of replies to the writes in front of it that are still to come.
    pub(crate) before: u32,
    /// The server's error to one of these writes.
    pub(crate) refused: Option<Vec<u8>>,
    /// Number of all these replies, for a request that is sent again as a whole.
    pub(crate) in_front: u32,
    /// The other servers of the pool, if there are several.
    pub(crate) rest: Option<Box<OtherServers>>,
    /// Keeps a link of the session's user open while the session waits on another user's. The
    /// server closes that link when it deletes the user, see `Pinned::close_waits_of`.
    pub(crate) of_user: Option<Arc<RedirectStandIn>>,
}

/// The servers of a pool that are asked one after the other.
#[derive(Debug)]
pub(crate) struct OtherServers {
    pub(crate) answered: Vec<ServerId>,
    /// The least numbers in their replies.
    pub(crate) least: Vec<i64>,
    /// The request without its timeout.
    pub(crate) args: Vec<Vec<u8>>,
    /// The time when the request was read.
    pub(crate) read_at: Stamp,
    /// The end of the timeout. `None`: there is none.
    pub(crate) until: Option<Time>,
    /// Since when nodes have refused the write in front of it.
    pub(crate) refused_since: Option<Time>,
}

impl WaitCommand {
    /// Whether the next reply is to a write in front of the request.
    pub(crate) fn is_in_front(&self) -> bool {
        self.before > 0
    }

    pub(crate) fn take_in_front(&mut self, reply: &[u8]) {
        self.before -= 1;
        // Errors after the first one follow from it.
        if reply.starts_with(b"-") {
            self.refused.get_or_insert_with(|| reply.to_vec());
        }
    }

    pub(crate) fn begin_again(&mut self) {
        self.before = self.in_front;
        self.refused = None;
    }
}
