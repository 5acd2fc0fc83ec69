//! Parts of answers about a topology, for unit tests.

use proptest::prelude::*;
use respool_protocol::cluster::Endpoint;
use respool_protocol::sentinel::InstanceHealth;

pub(crate) fn endpoint(host: &str, port: u16) -> Endpoint {
    let host = host.to_owned();
    Endpoint { host, port }
}

pub(crate) fn any_health() -> impl Strategy<Value = InstanceHealth> {
    prop::sample::select(vec![
        InstanceHealth::Online,
        InstanceHealth::Disconnected,
        InstanceHealth::Suspected,
        InstanceHealth::Failed,
    ])
}
