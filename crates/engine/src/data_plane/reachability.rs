//! The state of a server, as its links show it, and the server of a pool that answers best.

use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::wants_password;
use crate::data_plane::link::{Link, LinkState};
use crate::routing::pool::ServerId;

/// A node that owes replies and sends nothing for this long may have been replaced, milliseconds.
pub(crate) const SILENT_MS: u64 = 200;
/// How long respool looks for the node that took over from a lost one before requests fail,
/// milliseconds.
pub(crate) const TAKEN_OVER_MS: u64 = 300;

/// The state of a server, from worse to better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reachability {
    /// It cannot be reached.
    Away,
    /// It is being tried.
    Tried,
    /// It owes replies, and sends nothing.
    Silent,
    /// It refuses every login, so it is alive. If clients bring the password, no server is better
    /// before the first client.
    Refuses,
    Answers,
}

impl DataPlane {
    /// The first server of a pool that answers. If none does, the best of the others, by
    /// [`Reachability`]. If all are away, the default server of the pool.
    pub(crate) fn first_up(&self, pool: usize) -> ServerId {
        let mut best = (Reachability::Away, self.pools.default_server_of(pool));
        for server in self.pools[pool].servers() {
            let standing = self.reachability(*server);
            if standing > best.0 {
                best = (standing, *server);
            }
            if standing == Reachability::Answers {
                break;
            }
        }
        best.1
    }

    /// The state of a server, as its shared links show it.
    pub(crate) fn reachability(&self, server: ServerId) -> Reachability {
        let answers = |link: &Link| link.is_up() && !owes_for(link, self.now, SILENT_MS);
        if self.first_link_is(server, answers) {
            return Reachability::Answers;
        }
        let (mut up, mut silent) = (false, false);
        for (_, link) in self.links_shared_to(server) {
            up |= link.is_up();
            silent |= owes_for(link, self.now, SILENT_MS);
        }
        match up {
            true if silent => Reachability::Silent,
            true => Reachability::Answers,
            false if self.answers_by_refusals(server) => Reachability::Refuses,
            false if self.first_link_is(server, rests) => Reachability::Away,
            false => Reachability::Tried,
        }
    }

    /// Whether requests of clients can succeed at a server, as far as known. A server that owes
    /// replies may run a long command. A server that asks for a password waits for a client that
    /// has it. A server whose links are lost counts as alive while the first attempt to connect
    /// again is young, because requests wait for it.
    pub(crate) fn is_alive(&self, server: ServerId) -> bool {
        match self.reachability(server) {
            Reachability::Answers | Reachability::Silent => true,
            Reachability::Refuses => self.links_shared_to(server).any(|(_, link)| {
                wants_password(link) || link.handshake_error.is_none() && !rests(link)
            }),
            Reachability::Tried | Reachability::Away => false,
        }
    }

    /// Whether a shared link to a server is up.
    pub(crate) fn is_reachable(&self, server: ServerId) -> bool {
        self.links_shared_to(server).any(|(_, link)| link.is_up())
    }

    /// Whether the last attempt of a shared link to a server has failed. The next one may be under
    /// way.
    pub(crate) fn is_in_back_off(&self, server: ServerId) -> bool {
        let waits = |link: &Link| rests(link) || matches!(link.state, LinkState::Retrying { .. });
        self.links_shared_to(server).any(|(_, link)| waits(link))
    }

    /// Whether a link's server may have been replaced: it owes replies, and has sent nothing for so
    /// long.
    pub(crate) fn is_silent(&self, link: &Link, ms: u64) -> bool {
        link.handles_redirects && owes_for(link, self.now, ms)
    }
}

/// Whether a link makes no attempt to connect, because the last one has failed.
fn rests(link: &Link) -> bool {
    matches!(link.state, LinkState::Backoff { .. })
}

/// Whether a link owes replies and has brought nothing for so long.
pub(crate) fn owes_for(link: &Link, now: Time, ms: u64) -> bool {
    link.is_up() && link.ledger.in_flight() > 0 && !link.waits && now.since_ms(link.progress) >= ms
}
