//! What clients that speak to a Cluster are told where a Cluster is behind us: that there is one node, and that it owns all
//! slots that anybody owns. It is us, at the address where they have reached us, or at the one that is announced.

#[cfg(doc)]
use respool_protocol::commands::Spread;
use respool_protocol::commands::id;
use respool_protocol::encode::{self, Version};
use respool_protocol::number;
use respool_protocol::slot::{SLOTS, hash_slot};
use respool_protocol::value::Value;
use sha1::{Digest, Sha1};

use crate::cluster::Cluster;
use crate::engine::Engine;
use crate::here::OK;
use crate::pool::Group;
use crate::requests::{Placed, Request};
use crate::session::{Local, Session};
use crate::slots::Key;
use crate::words::wrong_arity;

/// Where clients reach the node that we are to them, and what it is called.
struct Node {
    host: String,
    port: u16,
    id: String,
    version: Version,
}

impl Engine {
    /// Answers what only a Cluster's node is asked ([`Spread::Node`]); `None`: it is for the servers.
    pub(crate) fn answer_as_node(&mut self, key: Key, request: &Request<'_>) -> Option<Placed> {
        if !request.command.arity_ok(request.spans.len()) {
            return Some(self.answer_error(key, &wrong_arity(request.command)));
        }
        if let Some(placed) = self.refused_by_right(key, request) {
            return Some(placed);
        }
        let node = self.node_seen_by(self.sessions.get(key)?);
        let pool = usize::from(self.sessions.get(key)?.pool);
        let mut out = Vec::new();
        match request.id {
            id::READONLY | id::READWRITE | id::ASKING => out.extend_from_slice(OK),
            id::CLUSTER_SLOTS => node.append_slots(&self.ranges_served(pool), &mut out),
            id::CLUSTER_SHARDS => node.append_shards(&self.ranges_served(pool), &mut out),
            id::CLUSTER_NODES => {
                let line = format!("{}\n", node.line(&self.ranges_served(pool)));
                encode::verbatim(&mut out, node.version, &line);
            }
            id::CLUSTER_INFO => {
                let (assigned, reached) = (self.slots_assigned(pool), self.slots_reached(pool));
                let all = match self.pools[pool].cluster() {
                    // With what nobody owns they are in order, or not, as they are set to be.
                    Some(cluster) if cluster.is_ok() => assigned,
                    _ => SLOTS.into(),
                };
                let text = info(reached == all && assigned > 0, assigned, reached);
                encode::verbatim(&mut out, node.version, &text);
            }
            id::CLUSTER_MYID | id::CLUSTER_MYSHARDID => encode::bulk(&mut out, node.id.as_bytes()),
            id::CLUSTER_KEYSLOT => encode::integer(&mut out, hash_slot(request.arg(2)).into()),
            id::CLUSTER_LINKS => encode::array(&mut out, 0),
            id::CLUSTER_REPLICAS | id::CLUSTER_SLAVES => match request.arg(2) {
                asked if asked == node.id.as_bytes() => encode::array(&mut out, 0),
                asked => encode::error(&mut out, &[b"ERR Unknown node ", asked].concat()),
            },
            // The owner counts.
            id::CLUSTER_COUNTKEYSINSLOT | id::CLUSTER_GETKEYSINSLOT => {
                match slot_of(request.arg(2)) {
                    Some(slot) => {
                        let group = Group {
                            pool: pool as u16,
                            number: slot,
                        };
                        let server = self.pools.server_of(group);
                        if !self.sessions.get(key)?.pins.bind() {
                            self.turn(key, server);
                        }
                        return None;
                    }
                    None => encode::error(&mut out, b"ERR Invalid slot"),
                }
            }
            _ => return None,
        }
        Some(self.answer_reply(key, &out))
    }

    /// How many slots have an owner, as far as it is known.
    fn slots_assigned(&self, pool: usize) -> u32 {
        let cluster = self.pools[pool].cluster();
        let known = cluster.filter(|cluster| cluster.is_known());
        let assigned = |cluster: &Cluster| u32::from(SLOTS) - cluster.unserved().len() as u32;
        known.map_or(0, assigned)
    }

    /// All slots but those that nobody owns, as the first and the last of each range.
    fn ranges_served(&self, pool: usize) -> Vec<(u16, u16)> {
        let cluster = self.pools[pool].cluster();
        let unserved = cluster.map_or(&[][..], |cluster| cluster.unserved());
        let (mut ranges, mut first) = (Vec::new(), 0);
        for behind in unserved.iter().copied().chain([SLOTS]) {
            if first < behind {
                ranges.push((first, behind - 1));
            }
            first = behind + 1;
        }
        ranges
    }

    /// How many of them have one that is not away.
    fn slots_reached(&self, pool: usize) -> u32 {
        let cluster = self.pools[pool].cluster();
        let counts = cluster.filter(|cluster| cluster.is_known());
        let counts = counts.map(|cluster| cluster.slot_counts());
        let reached = counts.into_iter().flatten();
        let reached = reached.filter(|(server, _)| self.away_until(*server).is_none());
        reached.map(|(_, slots)| slots).sum()
    }

    fn node_seen_by(&self, session: &Session) -> Node {
        let (mut host, mut port) = match session.local {
            Local::Tcp(at) => (at.ip().to_string(), at.port()),
            // Who came by a file knows the way. The port may be another pool's, where there are several.
            Local::Unix(_) | Local::Unknown if self.settings.pools.len() > 1 => (String::new(), 0),
            Local::Unix(_) | Local::Unknown => (String::new(), self.worker.tcp_port),
        };
        let pool = &self.settings.pools[usize::from(session.pool)];
        if let Some(announced) = &pool.announce {
            port = announced.port.unwrap_or(port);
            // A host without a port leads nowhere: better the word of who came by a file.
            if port != 0 {
                host.clone_from(&announced.host);
            }
        }
        // The same for all that stand in front of the same pool, and after a restart.
        let digest = Sha1::digest(format!("respool:{}", pool.name));
        Node {
            host,
            port,
            id: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            version: session.version,
        }
    }
}

impl Node {
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

    /// CLUSTER SHARDS.
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
        encode::map(out, self.version, 7);
        let texts = [
            ("id", &self.id[..]),
            ("ip", &self.host),
            ("endpoint", &self.host),
            ("role", "master"),
            ("health", "online"),
        ];
        for (field, text) in texts {
            encode::bulk(out, field.as_bytes());
            encode::bulk(out, text.as_bytes());
        }
        for (field, number) in [("port", self.port.into()), ("replication-offset", 0)] {
            encode::bulk(out, field.as_bytes());
            encode::integer(out, number);
        }
    }

    /// Of CLUSTER NODES. There is no bus, and so no port of one.
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

/// CLUSTER INFO. The state is that of all slots: some of them may be served.
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

/// The reply to CONFIG GET of a Cluster's node as a client is to see it that sees a plain server.
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

/// The reply to ROLE of one node as that of the single node that the client sees: a primary without
/// replicas, at the offset that INFO shows.
pub(crate) fn role_of_single_node(reply: &[u8]) -> Vec<u8> {
    let Some(Value::List(parts)) = Value::read(reply) else {
        return reply.to_vec();
    };
    // A replica says its offset last.
    let offset = parts.iter().rev().find_map(|part| match part {
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

/// INFO of a Cluster's node as who sees one server is to see it.
pub(crate) fn as_standalone(info: &str) -> String {
    [
        ("redis_mode:cluster", "redis_mode:standalone"),
        ("server_mode:cluster", "server_mode:standalone"),
        ("cluster_enabled:1", "cluster_enabled:0"),
    ]
    .iter()
    .fold(info.to_owned(), |info, (from, to)| info.replace(from, to))
}
