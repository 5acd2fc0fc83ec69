//! The servers in INFO: their state, role and slots.

use std::fmt::Write as _;

use crate::base::handle::CONFIGURED;
use crate::base::settings::PoolKind;
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::wants_password;
use crate::data_plane::link::{LinkRole, LinkState};
use crate::data_plane::server::Server;
use crate::data_plane::worker_report::{ServerEntry, ServerReport, Unready, WorkerReport};
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
        let seen = standings(plane);
        let slots = self.slots_of_servers(plane);
        let ids = (0..plane.servers.len() as u16).map(ServerId);
        let with_seen = ids.zip(&seen);
        let mut shown: Vec<(ServerId, &LinkStanding)> = with_seen
            .filter(|(id, seen)| is_shown(*id) && self.is_known(plane, *id, seen))
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
        let state = seen.state_of(server);
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

    /// Writes the state of all pools and servers into `report`.
    pub(crate) fn report(&self, plane: &DataPlane, report: &mut WorkerReport) {
        report.begin();
        let ids = (0..plane.servers.len() as u16).map(ServerId);
        let withdrawn: Vec<ServerId> = ids
            .filter(|server| plane.refuses_newcomers(*server))
            .collect();
        for pool in 0..plane.settings.pools.len() {
            // A predecessor serves until the pool answers.
            let serving = plane.server_until_ready(pool as u16);
            let serving = serving.map_or(pool, usize::from);
            let mut reasons = without_server(plane, serving);
            let of_pool =
                |server: &&ServerId| usize::from(plane.pool_of(**server).parent) == serving;
            reasons.extend(withdrawn.iter().filter(of_pool).map(|server| {
                let server = plane.server(*server).label.clone();
                Unready::LoginWithdrawn { server }
            }));
            report.pools.push(reasons);
        }
        let seen = standings(plane);
        let slots = self.slots_of_servers(plane);
        let mut index = 0;
        for (id, seen) in (0..plane.servers.len() as u16).map(ServerId).zip(&seen) {
            if !self.is_known(plane, id, seen) {
                continue;
            }
            let slots = slots.get(usize::from(id.0)).copied().flatten();
            if let Some(place) = report.next_server(index) {
                self.report_server(plane, id, (seen, slots), place);
                index += 1;
            }
        }
        report.servers.truncate(index);
    }

    fn report_server(
        &self,
        plane: &DataPlane,
        id: ServerId,
        (seen, slots): (&LinkStanding, Option<u32>),
        place: &mut ServerReport,
    ) {
        let server = plane.server(id);
        place.pool = usize::from(plane.pool_of(id).parent);
        place.entry = ServerEntry {
            index: id.0,
            reuses: server.reuses,
        };
        place.address.clone_from(&server.label);
        place.role = self.role_of(plane, id, seen);
        place.state = seen.state_of(server);
        place.links = u64::from(seen.links);
        place.in_flight = seen.in_flight;
        place.failures_total = server.health.failures_total;
        place.lost_total = server.health.lost_total;
        place.login_withdrawn = plane.refuses_newcomers(id);
        place.slots = slots;
        place.wait_us = plane.pool_of(id).flush.wait_us(server.load.wait_us());
        place.cpu = server.load.cpu();
        place.latency_us = self.latency_us_of(plane, id);
    }

    /// Whether INFO and the metrics show a server.
    fn is_known(&self, plane: &DataPlane, id: ServerId, seen: &LinkStanding) -> bool {
        seen.links > 0 || !plane.server(id).gone && !self.is_shown_as_read(plane, id)
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

/// The subpools of a pool with keys for which no server answers.
fn without_server(plane: &DataPlane, pool: usize) -> Vec<Unready> {
    let answers = |subpool: u16| {
        let mut servers = plane.pools[usize::from(subpool)].servers().iter();
        servers.any(|server| plane.is_alive(*server))
    };
    let prefix = |index: usize| match &plane.settings.pools.get(pool)?.kind {
        // The first subpool is for all other keys.
        PoolKind::ByPrefix { .. } if index == 0 => Some(Vec::new()),
        PoolKind::ByPrefix { subpools } => Some(subpools.get(index)?.prefix.clone()),
        _ => None,
    };
    let subpools = plane.pools.subpools_of(pool).iter().enumerate();
    let silent = subpools.filter(|(_, subpool)| !answers(**subpool));
    let reasons = silent.map(|(index, subpool)| Unready::NoServer {
        prefix: prefix(index),
        cause: cause_of_silence(plane, *subpool),
    });
    reasons.collect()
}

/// The first server of a subpool that the last attempt did not reach, with the failure; else empty.
fn cause_of_silence(plane: &DataPlane, subpool: u16) -> String {
    let mut servers = plane.pools[usize::from(subpool)].servers().iter();
    let cause = servers.find_map(|server| {
        // A refused handshake is known to the link alone.
        let mut refused = plane.links_shared_to(*server).filter_map(|(_, link)| {
            let is_ours = link.kind.user == CONFIGURED && link.handshake_error.is_some();
            is_ours.then_some(link.reason.as_str())
        });
        let state = plane.server(*server);
        let reason = refused.next().unwrap_or(&state.health.reason);
        (!reason.is_empty()).then(|| format!("{}: {reason}", state.label))
    });
    cause.unwrap_or_default()
}

/// The state of each server as its links show it.
fn standings(plane: &DataPlane) -> Vec<LinkStanding> {
    let mut seen = vec![LinkStanding::default(); plane.servers.len()];
    for (_, link) in plane.links.iter() {
        if link.role == LinkRole::Probe {
            continue;
        }
        let seen = &mut seen[usize::from(link.kind.server.0)];
        seen.links += 1;
        seen.in_flight += link.ledger.in_flight() as u64;
        seen.sentinel |= link.role == LinkRole::Sentinel;
        match link.state {
            LinkState::Up => seen.up = true,
            LinkState::Connecting { .. } | LinkState::Handshaking { .. } => seen.tries = true,
            LinkState::Backoff { .. } | LinkState::Retrying { .. } => seen.rests = true,
            LinkState::Down | LinkState::Lost => {}
        }
        seen.needs_login |= wants_password(link);
    }
    for (index, seen) in seen.iter_mut().enumerate() {
        // The error of a handshake stays while attempts fail for another reason.
        seen.needs_login &= plane.is_alive(ServerId(index as u16));
    }
    seen
}

/// The state of a server as its links show it.
#[derive(Clone, Copy, Default)]
struct LinkStanding {
    links: u32,
    /// Requests that are sent and not answered.
    in_flight: u64,
    up: bool,
    tries: bool,
    rests: bool,
    sentinel: bool,
    /// The server answers and asks respool for a password: clients log in themselves.
    needs_login: bool,
}

impl LinkStanding {
    /// The word for the state in INFO.
    fn state_of(&self, server: &Server) -> &'static str {
        match server {
            Server { gone: true, .. } => "gone",
            Server { unknown: true, .. } => "unknown",
            _ if self.up => "up",
            _ if self.needs_login => "needs-login",
            _ if self.tries => "connecting",
            _ if self.rests => "backoff",
            _ => "down",
        }
    }
}
