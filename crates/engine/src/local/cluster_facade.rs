//! The Cluster that Cluster clients see: one node, respool, that owns all slots with an owner. Its
//! address is the one that the client has connected to, or the announced one.

use respool_protocol::commands::id;
use respool_protocol::encode::{self, Version};
use respool_protocol::number;
use respool_protocol::slot::{SLOTS, hash_slot};
use respool_protocol::value::Value;
use sha1::{Digest, Sha1};

use crate::base::error_text::wrong_arity;
use crate::base::handle::SessionId;
use crate::data_plane::DataPlane;
use crate::data_plane::actions::ListeningPort;
use crate::data_plane::ingress::{Dispatched, OK, Request};
use crate::data_plane::session::{LocalAddress, Session};
use crate::local::Local;
use crate::routing::pool::Group;

/// The address and name of the node that a client sees.
struct FacadeNode {
    host: String,
    /// The port that leads the client to respool in the way it has come. 0: none.
    port: u16,
    ports: NodePorts,
    id: String,
    version: Version,
}

/// The ports of the node by kind. At least one is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NodePorts {
    plain: Option<u16>,
    tls: Option<u16>,
}

impl Local {
    /// Answers commands for a node of a Cluster (`Spread::Node`). `None`: the request is for the
    /// servers.
    pub(crate) fn answer_as_node(
        &mut self,
        plane: &mut DataPlane,
        session_id: SessionId,
        request: &Request<'_>,
    ) -> Option<Dispatched> {
        if !request.command.arity_ok(request.spans.len()) {
            return Some(plane.answer_error(session_id, &wrong_arity(request.command)));
        }
        if let Some(dispatched) = self.refused_by_right(plane, session_id, request) {
            return Some(dispatched);
        }
        let node = self.node_seen_by(plane, plane.sessions.get(session_id)?);
        let pool = usize::from(plane.sessions.get(session_id)?.pool);
        let mut out = Vec::new();
        match request.id {
            id::READONLY | id::READWRITE | id::ASKING => out.extend_from_slice(OK),
            id::CLUSTER_SLOTS => node.append_slots(&self.ranges_served(plane, pool), &mut out),
            id::CLUSTER_SHARDS => node.append_shards(&self.ranges_served(plane, pool), &mut out),
            id::CLUSTER_NODES => {
                let line = format!("{}\n", node.line(&self.ranges_served(plane, pool)));
                encode::verbatim(&mut out, node.version, &line);
            }
            id::CLUSTER_INFO => {
                let (assigned, reached) = (
                    self.slots_assigned(plane, pool),
                    self.slots_reached(plane, pool),
                );
                let all = match plane.pools[pool].cluster() {
                    // A Cluster may be set to be in order without an owner for each slot.
                    Some(cluster) if cluster.is_ok => assigned,
                    _ => SLOTS.into(),
                };
                let text = info(reached == all && assigned > 0, assigned, reached);
                encode::verbatim(&mut out, node.version, &text);
            }
            id::CLUSTER_MYID | id::CLUSTER_MYSHARDID => encode::bulk(&mut out, node.id.as_bytes()),
            id::CLUSTER_KEYSLOT => encode::integer(&mut out, hash_slot(request.arg(2)).into()),
            id::CLUSTER_LINKS => encode::array(&mut out, 0),
            id::CLUSTER_REPLICAS | id::CLUSTER_SLAVES => match request.arg(2) {
                node_id if node_id == node.id.as_bytes() => encode::array(&mut out, 0),
                node_id => encode::error(&mut out, &[b"ERR Unknown node ", node_id].concat()),
            },
            // The owner of the slot counts its keys.
            id::CLUSTER_COUNTKEYSINSLOT | id::CLUSTER_GETKEYSINSLOT => {
                match slot_of(request.arg(2)) {
                    Some(slot) => {
                        let group = Group {
                            pool: pool as u16,
                            number: slot,
                        };
                        let server = plane.pools.server_of(group);
                        if !plane.sessions.get(session_id)?.pins.bind() {
                            plane.switch_server(session_id, server);
                        }
                        return None;
                    }
                    None => encode::error(&mut out, b"ERR Invalid slot"),
                }
            }
            _ => return None,
        }
        Some(plane.answer_reply(session_id, &out))
    }
}

impl NodePorts {
    fn of_one(port: u16, has_tls: bool) -> NodePorts {
        NodePorts {
            plain: (!has_tls).then_some(port),
            tls: has_tls.then_some(port),
        }
    }

    /// Adds the port of the other kind that a client of this listener reaches, too.
    fn with_other(mut self, listening: &[ListeningPort], listener: u16) -> NodePorts {
        let own = listening.iter().find(|port| port.listener == listener);
        let other = own.and_then(|own| {
            let mut others = listening.iter();
            others.find(|other| other.has_tls != own.has_tls && own.is_beside(other))
        });
        if let Some(other) = other {
            let port = match other.has_tls {
                true => &mut self.tls,
                false => &mut self.plain,
            };
            port.get_or_insert(other.port);
        }
        self
    }
}

impl FacadeNode {
    /// CLUSTER SLOTS.
    fn append_slots(&self, ranges: &[(u16, u16)], out: &mut Vec<u8>) {
        encode::array(out, ranges.len());
        for (first, last) in ranges {
            encode::array(out, 3);
            encode::integer(out, (*first).into());
            encode::integer(out, (*last).into());
            encode::array(out, 4);
            encode::bulk(out, self.host.as_bytes());
            encode::integer(out, self.port.into());
            encode::bulk(out, self.id.as_bytes());
            encode::array(out, 0);
        }
    }

    /// CLUSTER SHARDS, with the fields of a server in its order. It names the ports of both kinds.
    fn append_shards(&self, ranges: &[(u16, u16)], out: &mut Vec<u8>) {
        encode::array(out, 1);
        encode::map(out, self.version, 2);
        encode::bulk(out, b"slots");
        encode::array(out, 2 * ranges.len());
        for (first, last) in ranges {
            encode::integer(out, (*first).into());
            encode::integer(out, (*last).into());
        }
        encode::bulk(out, b"nodes");
        encode::array(out, 1);
        let ports = [("port", self.ports.plain), ("tls-port", self.ports.tls)];
        let ports = ports
            .iter()
            .filter_map(|(name, port)| Some((name, (*port)?)));
        encode::map(out, self.version, 6 + ports.clone().count());
        append_text("id", &self.id, out);
        for (name, port) in ports {
            append_number(name, port.into(), out);
        }
        append_text("ip", &self.host, out);
        append_text("endpoint", &self.host, out);
        append_text("role", "master", out);
        append_number("replication-offset", 0, out);
        append_text("health", "online", out);
    }

    /// The line of CLUSTER NODES. There is no cluster bus, so its port is 0.
    fn line(&self, ranges: &[(u16, u16)]) -> String {
        let (id, host, port) = (&self.id, &self.host, self.port);
        let mut line = format!("{id} {host}:{port}@0 myself,master - 0 0 1 connected");
        for (first, last) in ranges {
            line += &match first == last {
                true => format!(" {first}"),
                false => format!(" {first}-{last}"),
            };
        }
        line
    }
}

/// A field of a map with a text.
fn append_text(field: &str, text: &str, out: &mut Vec<u8>) {
    encode::bulk(out, field.as_bytes());
    encode::bulk(out, text.as_bytes());
}

/// A field of a map with a number.
fn append_number(field: &str, number: i64, out: &mut Vec<u8>) {
    encode::bulk(out, field.as_bytes());
    encode::integer(out, number);
}

/// CLUSTER INFO. The state is `ok` only if all slots are served.
fn info(is_ok: bool, assigned: u32, ok: u32) -> String {
    let state = match is_ok {
        true => "ok",
        false => "fail",
    };
    let fields = [
        ("cluster_state", state),
        ("cluster_slots_assigned", &assigned.to_string()),
        ("cluster_slots_ok", &ok.to_string()),
        ("cluster_slots_pfail", "0"),
        ("cluster_slots_fail", &(assigned - ok).to_string()),
        ("cluster_known_nodes", "1"),
        ("cluster_size", "1"),
        ("cluster_current_epoch", "1"),
        ("cluster_my_epoch", "1"),
    ];
    let lines = fields.map(|(name, value)| format!("{name}:{value}\r\n"));
    lines.concat()
}

/// The reply to CONFIG GET of a Cluster's node as a plain server would write it.
pub(crate) fn config_of_plain_server(reply: &[u8]) -> Vec<u8> {
    const OF_NODE: &[u8] = b"$15\r\ncluster-enabled\r\n$3\r\nyes\r\n";
    const OF_SERVER: &[u8] = b"$15\r\ncluster-enabled\r\n$2\r\nno\r\n";
    let at = reply
        .windows(OF_NODE.len())
        .position(|part| part == OF_NODE);
    match at {
        Some(at) => [&reply[..at], OF_SERVER, &reply[at + OF_NODE.len()..]].concat(),
        None => reply.to_vec(),
    }
}

/// The reply to ROLE of one node as the single node would write it: a primary without replicas, at
/// the offset that INFO shows.
pub(crate) fn role_of_single_node(reply: &[u8]) -> Vec<u8> {
    let Some(Value::List(elements)) = Value::read(reply) else {
        return reply.to_vec();
    };
    // In the reply of a replica the offset is the last number.
    let offset = elements.iter().rev().find_map(|element| match element {
        Value::Integer(offset) => Some(*offset),
        _ => None,
    });
    let mut out = Vec::new();
    encode::array(&mut out, 3);
    encode::bulk(&mut out, b"master");
    encode::integer(&mut out, offset.unwrap_or_default());
    encode::array(&mut out, 0);
    out
}

fn slot_of(argument: &[u8]) -> Option<u16> {
    let slot = u16::try_from(number::parse(argument)?).ok()?;
    (slot < SLOTS).then_some(slot)
}

/// INFO of a Cluster's node as a plain server would write it.
pub(crate) fn as_standalone(info: &str) -> String {
    [
        ("redis_mode:cluster", "redis_mode:standalone"),
        ("server_mode:cluster", "server_mode:standalone"),
        ("cluster_enabled:1", "cluster_enabled:0"),
    ]
    .iter()
    .fold(info.to_owned(), |info, (from, to)| info.replace(from, to))
}

impl Local {
    /// Number of slots with a known owner.
    pub(crate) fn slots_assigned(&self, plane: &DataPlane, pool: usize) -> u32 {
        let cluster = plane.pools[pool].cluster();
        let known = cluster.filter(|cluster| cluster.is_known);
        known.map_or(0, |cluster| {
            u32::from(SLOTS) - cluster.unserved.len() as u32
        })
    }

    /// Number of slots with an owner that is not away.
    fn slots_reached(&self, plane: &DataPlane, pool: usize) -> u32 {
        let cluster = plane.pools[pool].cluster();
        let counts = cluster.filter(|cluster| cluster.is_known);
        let counts = counts.map(|cluster| cluster.slot_counts());
        let reached = counts.into_iter().flatten();
        let reached = reached.filter(|(server, _)| plane.away_until(*server).is_none());
        reached.map(|(_, slots)| slots).sum()
    }

    /// The ranges of slots that have an owner, each as its first and last slot.
    fn ranges_served(&self, plane: &DataPlane, pool: usize) -> Vec<(u16, u16)> {
        let cluster = plane.pools[pool].cluster();
        let unserved = cluster.map_or(&[][..], |cluster| &cluster.unserved);
        let (mut ranges, mut first) = (Vec::new(), 0);
        for behind in unserved.iter().copied().chain([SLOTS]) {
            if first < behind {
                ranges.push((first, behind - 1));
            }
            first = behind + 1;
        }
        ranges
    }

    fn node_seen_by(&self, plane: &DataPlane, session: &Session) -> FacadeNode {
        let (mut host, mut port) = match session.local {
            LocalAddress::Tcp(at) | LocalAddress::Tls(at) => (at.ip().to_string(), at.port()),
            // A client of a Unix socket sees no host. With several pools, the port may be that of
            // another pool.
            LocalAddress::Unix(_) | LocalAddress::Unknown
                if plane.settings.pools_in_use().count() > 1 =>
            {
                (String::new(), 0)
            }
            LocalAddress::Unix(_) | LocalAddress::Unknown => {
                (String::new(), plane.worker.tcp_port())
            }
        };
        let pool = &plane.settings.pools[usize::from(session.pool)];
        let own = NodePorts::of_one(port, matches!(session.local, LocalAddress::Tls(_)));
        let mut ports = own.with_other(&plane.worker.ports, session.listener);
        if let Some(announced) = &pool.announce {
            if let Some(port) = announced.port {
                // The announced address has no second port.
                ports = NodePorts::of_one(port, own.tls.is_some());
            }
            port = announced.port.unwrap_or(port);
            // A host without a port leads nowhere, so it is not announced.
            if port != 0 {
                host.clone_from(&announced.host);
            }
        }
        // The id is the same for all processes in front of the same pool, and after a restart.
        let digest = Sha1::digest(format!("respool:{}", pool.name));
        FacadeNode {
            host,
            port,
            ports,
            id: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            version: session.version,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client is told the port of the other kind if it reaches it: in its pool, and at its host.
    #[test]
    fn port_of_the_other_kind_is_told() {
        let ports = [
            ("a", 1, 0, false),
            ("a", 2, 0, true),
            ("b", 3, 0, false),
            ("a", 4, 1, true),
            ("c", 5, 1, false),
            ("d", 6, 2, false),
            ("0.0.0.0", 7, 2, true),
            ("::", 8, 3, true),
            ("e", 9, 3, false),
        ];
        let ports = ports.map(|(host, port, pool, has_tls)| ListeningPort {
            listener: port + 10,
            host: host.to_owned(),
            port,
            pool,
            has_tls,
        });
        for (port, plain, tls) in [
            (1, Some(1), Some(2)),
            (2, Some(1), Some(2)),
            (3, Some(3), None),
            (4, None, Some(4)),
            (5, Some(5), None),
            (6, Some(6), Some(7)),
            // A client at another address of the machine does not reach `d`.
            (7, None, Some(7)),
            (8, None, Some(8)),
            (9, Some(9), Some(8)),
        ] {
            let own = NodePorts::of_one(port, ports[usize::from(port) - 1].has_tls);
            let told = own.with_other(&ports, port + 10);
            assert_eq!(told, NodePorts { plain, tls }, "{port}");
        }
        // A listener that a reload has removed.
        let own = NodePorts::of_one(1, false);
        assert_eq!(own.with_other(&ports, 1), own);
    }
}
