//! A data plane for unit tests of components: one server, whose first link is up. No engine is
//! needed.

use std::sync::Arc;

use crate::WorkerId;
use crate::base::handle::{LinkId, SessionId};
use crate::base::settings::{Address, PoolKind, PoolSettings, ServerSettings, Settings};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::ingress::KeptRequest;
use crate::data_plane::session::Peer;
use crate::routing::pool::ServerId;
use respool_protocol::{commands, encode};

/// A data plane with one server, and its first link, which is up since the time 0.
pub(crate) fn plane_with_link() -> (DataPlane, LinkId) {
    let pool = PoolSettings {
        name: String::from("pool"),
        kind: PoolKind::Single(ServerSettings {
            address: Address::Tcp {
                host: String::from("server"),
                port: 1,
            },
            credentials: None,
            db: 0,
        }),
        reads: Default::default(),
        flush: None,
        announce: None,
        shows: Default::default(),
        address_map: Default::default(),
    };
    let settings = Settings {
        pools: vec![pool],
        ..Settings::default()
    };
    let worker = WorkerId {
        index: 0,
        count: 1,
        seed: 1,
        process_id: 1,
        tcp_port: 0,
        started_at: 0,
    };
    let mut plane = DataPlane::new(Arc::new(settings), worker, Time(0));
    let kind = plane.first_link(ServerId(0));
    let link = plane.shared_link(kind).expect("there is room for a link");
    plane.set_up(link).expect("the link is there");
    (plane, link)
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
