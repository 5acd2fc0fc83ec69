//! Requests that need the nodes of a Cluster before any node has named them. Their sessions wait a
//! moment, and then get an error.

use respool_protocol::encode;

use crate::base::handle::SessionId;
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::handshake::NO_NODE;
use crate::data_plane::ingress::{Blocked, Dispatched};
use crate::data_plane::session::Flags;
use crate::data_plane::session_state::Holds;
use crate::routing::pool::ServerId;

/// How long sessions wait, in all, for the first answer about the topology, milliseconds. A node
/// that runs answers at once.
pub(crate) const NODES_MS: u64 = 1_000;

/// The error for requests to all nodes while none has named the nodes.
const NOT_KNOWN_YET: &str =
    "CLUSTERDOWN respool: no node of the Cluster has said yet which nodes there are";

/// The wait for the first topology of one Cluster.
#[derive(Debug, Default)]
pub(crate) struct AwaitedNodes {
    /// Sessions that wait.
    sessions: Vec<SessionId>,
    /// When the first session began to wait.
    since: Option<Time>,
    /// The reason why the last refresh gave no topology, if it did not.
    pub(crate) wrong: Option<String>,
}

impl AwaitedNodes {
    /// Whether sessions have waited long enough.
    fn is_over(&self, now: Time) -> bool {
        let is_over = |since| now.since_ms(since) >= NODES_MS;
        self.since.is_some_and(is_over)
    }
}

impl DataPlane {
    /// Whether a session waits for the first topology.
    pub(crate) fn wait_for_nodes(&mut self, id: SessionId, pool: usize) -> bool {
        if self.pools[pool].cluster().is_none() {
            return false;
        }
        let awaited = self.awaited_nodes.entry(pool).or_default();
        awaited.since.get_or_insert(self.now);
        let waits = !awaited.is_over(self.now);
        if waits {
            awaited.sessions.push(id);
            self.hold(id, Holds::LINK);
        }
        waits
    }

    /// Waits for the first topology answer of the server's Cluster. Without it most reads would be
    /// redirected, and each redirect would look like a slot that moves while the session tracks.
    pub(crate) fn await_nodes(&mut self, id: SessionId, server: ServerId) -> Result<(), Blocked> {
        let subpool = usize::from(self.server(server).pool);
        match self.pools[subpool].cluster() {
            Some(slots) if !slots.is_known => {}
            _ => return Ok(()),
        }
        if self.wait_for_nodes(id, subpool) {
            return Err(Blocked::Wait);
        }
        let mut reply = Vec::new();
        encode::error(&mut reply, self.no_nodes(subpool).as_bytes());
        Err(Blocked::Refused(reply))
    }

    /// Makes a session wait until the nodes of a Cluster in its pool are known. If they do not
    /// become known, its request is refused.
    pub(crate) fn find_owners(&mut self, id: SessionId) -> Option<Dispatched> {
        let session = self.sessions.get(id)?;
        let is_queued = session.state.any(Flags::IN_MULTI);
        let subpool = self.unknown_subpool(usize::from(session.pool))?;
        let text = match self.unusable_node(subpool) {
            Some(text) => text,
            None if !is_queued && self.wait_for_nodes(id, subpool) => {
                return Some(Dispatched::Wait);
            }
            None => self.no_nodes(subpool),
        };
        Some(self.refuse_queued(id, text.as_bytes()))
    }

    /// The error while a Cluster is unknown because a configured server is no node of a Cluster.
    fn unusable_node(&self, subpool: usize) -> Option<String> {
        let mut servers = self.pools[subpool].servers().iter();
        let server = servers.find(|server| self.is_away_for(**server, NO_NODE))?;
        let label = &self.server(*server).label;
        Some(format!(
            "CLUSTERDOWN respool: no node of the Cluster is known; {label}: {NO_NODE}"
        ))
    }

    /// The error for a session that has waited for the topology in vain, with the reason if one is
    /// known.
    pub(crate) fn no_nodes(&self, pool: usize) -> String {
        let awaited = self.awaited_nodes.get(&pool);
        let fault = awaited.and_then(|awaited| awaited.wrong.clone());
        let unreached = || {
            let server = self.pools.default_server_of(pool);
            let link = self.links.get(self.first_link_to(server)?)?;
            let why = || {
                format!(
                    "no connection to {}: {}",
                    self.server(server).label,
                    link.reason
                )
            };
            (!link.is_up() && link.failures > 0).then(why)
        };
        match fault.or_else(unreached) {
            Some(why) => format!("{NOT_KNOWN_YET} ({why}): try again"),
            None => format!("{NOT_KNOWN_YET}: try again"),
        }
    }

    /// Wakes sessions that wait for the first topology, if it is known or has been waited for long
    /// enough.
    pub(crate) fn wake_awaiting_nodes(&mut self, pool: usize) {
        let cluster = self.pools[pool].cluster();
        let is_known = cluster.is_some_and(|slots| slots.is_known);
        let Some(awaited) = self.awaited_nodes.get_mut(&pool) else {
            return;
        };
        if is_known || awaited.is_over(self.now) {
            for session in std::mem::take(&mut awaited.sessions) {
                self.release(session, Holds::LINK);
            }
        }
    }
}
