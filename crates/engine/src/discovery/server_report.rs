//! The servers in INFO: their state, role and slots.

use std::fmt::Write as _;

use crate::data_plane::DataPlane;
use crate::data_plane::link::{LinkRole, LinkState};
use crate::data_plane::server::Server;
use crate::discovery::Discovery;
use crate::limits::SERVERS_SHOWN_MAX;
use crate::routing::pool::ServerId;

impl Discovery {
    /// The number of servers of this worker that `is_shown` accepts, and a line for each. Above
    /// [`SERVERS_SHOWN_MAX`] lines, servers that are up are left out first.
    pub(crate) fn server_lines(
        &self,
        plane: &DataPlane,
        is_shown: impl Fn(ServerId) -> bool,
    ) -> (usize, Vec<String>) {
        let mut seen = vec![LinkStanding::default(); plane.servers.len()];
        for (_, link) in plane.links.iter() {
            if link.role == LinkRole::Probe {
                continue;
            }
            let seen = &mut seen[usize::from(link.kind.server.0)];
            seen.links += 1;
            seen.sentinel |= link.role == LinkRole::Sentinel;
            match link.state {
                LinkState::Up => seen.up = true,
                LinkState::Connecting { .. } | LinkState::Greeting { .. } => seen.tries = true,
                LinkState::Backoff { .. } | LinkState::Retrying { .. } => seen.rests = true,
                LinkState::Down | LinkState::Lost => {}
            }
        }
        let slots = self.slots_of_servers(plane);
        let ids = (0..plane.servers.len() as u16).map(ServerId);
        let with_seen = ids.zip(&seen);
        let mut shown: Vec<(ServerId, &LinkStanding)> = with_seen
            .filter(|(id, _)| is_shown(*id))
            .filter(|(id, seen)| !plane.server(*id).gone || seen.links > 0)
            .filter(|(id, seen)| seen.links > 0 || !self.is_shown_as_read(plane, *id))
            .collect();
        let count = shown.len();
        if count > SERVERS_SHOWN_MAX {
            shown.sort_by_key(|(_, seen)| seen.up);
            shown.truncate(SERVERS_SHOWN_MAX);
        }
        let lines = shown.into_iter().map(|(id, seen)| {
            let slots = slots.get(usize::from(id.0)).copied().flatten();
            self.server_line(plane, id, seen, slots)
        });
        (count, lines.collect())
    }

    fn server_line(
        &self,
        plane: &DataPlane,
        id: ServerId,
        seen: &LinkStanding,
        slots: Option<u32>,
    ) -> String {
        let server = plane.server(id);
        let state = match server {
            Server { gone: true, .. } => "gone",
            Server { unknown: true, .. } => "unknown",
            _ if seen.up => "up",
            _ if seen.tries => "connecting",
            _ if seen.rests => "backoff",
            _ => "down",
        };
        let health = &server.health;
        let ago = health.failed_at.map(|at| plane.now.since_ms(at));
        let mut line = format!(
            "address={},pool={},role={},state={state},links={},failures={},failures_total={},\
             lost_total={}",
            server.label,
            plane.pool_name(id),
            self.role_of(plane, id, seen),
            seen.links,
            health.failures,
            health.failures_total,
            health.lost_total,
        );
        let _ = match ago {
            Some(ms) => write!(line, ",last_failure_ms_ago={ms}"),
            None => write!(line, ",last_failure_ms_ago=-1"),
        };
        let _ = write!(line, ",login={}", server.trust.word());
        if let Some(slots) = slots {
            let _ = write!(line, ",slots={slots}");
        }
        if !seen.sentinel {
            let rule = &plane.pool_of(id).flush;
            let _ = write!(line, ",{}", server.load.shown(rule));
        }
        if let Some(read) = self.shown_reader(plane, id) {
            let _ = write!(line, ",{read}");
        }
        line
    }

    /// Whether a node owns no slot and already has a line as a replica that is read.
    fn is_shown_as_read(&self, plane: &DataPlane, id: ServerId) -> bool {
        let server = plane.server(id);
        plane.pool_of(id).readers.is_some() && server.replica_of.is_none() && plane.owns_nothing(id)
    }

    /// A server's role: in a Cluster as the topology has it, else as the server says.
    fn role_of(&self, plane: &DataPlane, id: ServerId, seen: &LinkStanding) -> &'static str {
        if seen.sentinel {
            return "sentinel";
        }
        if plane.server(id).replica_of.is_some() {
            return "replica";
        }
        let pool = usize::from(plane.server(id).pool);
        match (&self.clusters[pool], plane.pools[pool].cluster()) {
            (Some(belief), Some(slots)) => belief.role_of(slots, id),
            _ => match plane.identity(id).map(|identity| identity.role.as_str()) {
                Some("slave" | "replica") => "replica",
                Some("sentinel") => "sentinel",
                _ => "primary",
            },
        }
    }

    /// The number of slots that each server owns; `None` for servers outside of Clusters.
    fn slots_of_servers(&self, plane: &DataPlane) -> Vec<Option<u32>> {
        let mut slots = vec![None; plane.servers.len()];
        for cluster in plane.pools.iter().filter_map(|pool| pool.cluster()) {
            for (server, count) in cluster.slot_counts() {
                slots[usize::from(server.0)] = Some(count);
            }
        }
        slots
    }
}

/// The state of a server as its links show it.
#[derive(Clone, Copy, Default)]
struct LinkStanding {
    links: u32,
    up: bool,
    tries: bool,
    rests: bool,
    sentinel: bool,
}
