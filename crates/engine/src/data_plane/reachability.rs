//! The state of a server, as its links show it, and the server of a pool that answers best.

use crate::base::time::Time;
use crate::data_plane::DataPlane;
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
    /// [`Reachability`]. If all are away, the home of the pool.
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
            false if self.is_resting(server) => Reachability::Away,
            false => Reachability::Tried,
        }
    }

    /// Whether a shared link to a server is up.
    pub(crate) fn is_reachable(&self, server: ServerId) -> bool {
        self.links_shared_to(server).any(|(_, link)| link.is_up())
    }

    /// Whether the first link of a server is in back-off.
    fn is_resting(&self, server: ServerId) -> bool {
        self.first_link_is(server, |link| {
            matches!(link.state, LinkState::Backoff { .. })
        })
    }

    /// Whether a link's server may have been replaced: it owes replies, and has sent nothing for so
    /// long.
    pub(crate) fn is_silent(&self, link: &Link, ms: u64) -> bool {
        link.handles_redirects && owes_for(link, self.now, ms)
    }
}

/// Whether a link owes replies and has brought nothing for so long.
pub(crate) fn owes_for(link: &Link, now: Time, ms: u64) -> bool {
    link.is_up() && link.ledger.in_flight() > 0 && !link.waits && now.since_ms(link.progress) >= ms
}
