//! Data planes for unit tests of components, which need no engine.

use std::sync::Arc;

use crate::WorkerId;
use crate::base::handle::{LinkId, SessionId};
use crate::base::settings::{Address, PoolKind, PoolSettings, ServerSettings, Settings};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::KeptRequest;
use crate::data_plane::session::Peer;
use crate::routing::pool::ServerId;
use respool_protocol::hashing::{Placement, PredixyHash};
use respool_protocol::{commands, encode};

/// A data plane with one server, and its first link, which is up since the time 0.
pub(crate) fn plane_with_link() -> (DataPlane, LinkId) {
    let mut plane = plane_with_pool(PoolKind::Single(server_at(1)));
    let kind = plane.default_kind(ServerId(0));
    let link = plane.shared_link(kind).expect("there is room for a link");
    plane.mark_up(link).expect("the link is there");
    (plane, link)
}

/// A data plane with plain servers that share the keys. The first link of each is up since the
/// time 0.
pub(crate) fn plane_with_shards(count: u16) -> (DataPlane, Vec<LinkId>) {
    let servers = u32::from(count).try_into().expect("there are some");
    let placement = Placement::predixy(PredixyHash::Crc16, None, servers);
    let mut plane = plane_with_pool(PoolKind::Sharded {
        shards: (1..=count).map(server_at).collect(),
        placement: placement.expect("the servers are enough"),
    });
    let links = (0..count).map(|index| {
        let kind = plane.default_kind(ServerId(index));
        let link = plane.shared_link(kind).expect("there is room for a link");
        plane.mark_up(link).expect("the link is there");
        link
    });
    let links = links.collect();
    (plane, links)
}

/// A key of each server of a plane of [`plane_with_shards`].
pub(crate) fn key_at(plane: &DataPlane, server: u16) -> String {
    let is_there = |key: &String| {
        let (_, owner) = plane.pools.owner_of(0, key.as_bytes(), || 0);
        owner == ServerId(server)
    };
    let mut keys = (0..1_000).map(|number| format!("key:{number}"));
    keys.find(is_there).expect("each server owns some keys")
}

/// A data plane with one pool of this kind, at the time 0. No link is connected.
pub(crate) fn plane_with_pool(kind: PoolKind) -> DataPlane {
    plane_of(Settings {
        pools: vec![pool_of(kind)],
        ..Settings::default()
    })
}

/// The settings of a pool of this kind.
fn pool_of(kind: PoolKind) -> PoolSettings {
    PoolSettings::new("pool", kind)
}

/// The settings of a pool with the server at this port.
pub(crate) fn pool_at(port: u16) -> PoolSettings {
    pool_of(PoolKind::Single(server_at(port)))
}

/// The data plane of the only worker, at the time 0. No link is connected.
pub(crate) fn plane_of(settings: Settings) -> DataPlane {
    let worker = WorkerId {
        index: 0,
        count: 1,
        seed: 1,
        process_id: 1,
        ports: Default::default(),
        started_at: 0,
    };
    DataPlane::new(Arc::new(settings), worker, Time(0))
}

/// The settings of the server at this port of the host `server`.
pub(crate) fn server_at(port: u16) -> ServerSettings {
    let host = String::from("server");
    ServerSettings::at(Address::Tcp { host, port })
}

/// A session of the only pool.
pub(crate) fn session_of(plane: &mut DataPlane) -> SessionId {
    plane.accept(Peer::Unix.into(), 0)
}

/// A request, as words with spaces between them.
pub(crate) fn request_of(line: &str) -> KeptRequest {
    let words: Vec<&str> = line.split(' ').collect();
    let mut bytes = Vec::new();
    encode::request(&mut bytes, &words);
    let id = commands::resolve(words.len(), |at| words[at].as_bytes());
    let id = id.expect("the table has the command");
    KeptRequest { id, bytes }
}

/// The replies that a session has not taken.
pub(crate) fn replies_of(plane: &DataPlane, id: SessionId) -> String {
    let session = plane.sessions.get(id).expect("the session is there");
    String::from_utf8_lossy(session.out.pending()).into_owned()
}
