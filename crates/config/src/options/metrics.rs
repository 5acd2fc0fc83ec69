//! Options for the pages about the process: metrics and readiness.

use respool_engine::settings::Address;

use super::{OPTION, Opt, OptionKind};
use crate::address::{TLS_PREFIX, parse_listener};

pub(super) const METRICS_LISTEN: Opt = Opt {
    name: "metrics-listen",
    kind: OptionKind::Text {
        set: |values, text| {
            if text.starts_with(TLS_PREFIX) {
                let what = "the pages have no TLS: write the address without `tls:`, and put a \
                            proxy with TLS in front of it";
                return Err(what.into());
            }
            values.metrics_listen = Some(parse_listener(text)?);
            Ok(())
        },
        get: |values| values.metrics_listen.as_ref().map(Address::to_string),
        or_number: false,
    },
    value: "ADDRESS",
    brief: "An address for /metrics, /live and /ready over HTTP",
    more: "The forms are those of --listen, and it must be another address. /metrics is for \
           Prometheus. /live answers 200 while the process runs. /ready answers 200 while a server \
           of each pool answers, and else 503 with the pools that have none. The pages change \
           nothing and show no keys and no addresses of clients, but they need no password and \
           name the servers: listen where only the monitoring can connect. A socket in the file \
           system has the mode and the owner of the other listeners. With this option, each worker \
           asks each server for INFO cpu every 5 seconds.",
    example: "127.0.0.1:9380",
    of_program: true,
    ..OPTION
};

pub(super) const READY_REQUIRES_SERVER: Opt = Opt {
    name: "ready-requires-server",
    kind: OptionKind::Switch(|values| &mut values.ready_requires_server),
    brief: "Whether /ready fails while no server of the pool answers",
    more: "It fails as well while a server refuses the configured login, which it accepted \
           before. Switch it off for a pool that clients can do without. Then the other pools \
           stay in service meanwhile. A pool with prefixes needs a server for each of them.",
    example: "false",
    per_pool: true,
    of_program: true,
    ..OPTION
};
