//! All kinds of pools, with limits and timeouts from the least that an option allows up to the
//! default.

use respool_engine::limits::{JOINED_BATCH_BYTES_MAX, Limits};
use respool_engine::settings::{
    Address, Aim, Credentials, PoolKind, PoolSettings, PrefixPool, ReadPolicy, Reads,
    ServerSettings, Settings, Shows, User, WhenFull,
};
use respool_protocol::hashing::{Placement, PredixyHash};

use super::choices::Choices;

/// A kind of pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Sharded,
    Cluster,
    Sentinel,
    /// A Cluster, or a primary with Sentinels, with reads from replicas.
    Replicas,
    /// Any other kind, with one more server that sees keys without their prefix.
    Prefixes,
}

impl Kind {
    pub(crate) const ALL: [Kind; 6] = [
        Kind::Plain,
        Kind::Sharded,
        Kind::Cluster,
        Kind::Sentinel,
        Kind::Replicas,
        Kind::Prefixes,
    ];

    pub(crate) fn named(name: &str) -> Option<Kind> {
        let mut all = Kind::ALL.into_iter();
        all.find(|kind| format!("{kind:?}").eq_ignore_ascii_case(name))
    }
}

/// The Sentinel's port. Primaries have 1 and 2, their replicas 4 and 5.
pub(crate) const SENTINEL: u16 = 3;
/// The port of the server that sees keys without [`PREFIX`].
pub(crate) const STRIPPED: u16 = 9;
pub(crate) const PREFIX: &str = "p:";

/// Settings of an engine with one pool of this kind.
pub(crate) fn settings(choices: &mut Choices<'_>, kind: Kind) -> Settings {
    let credentials = choices.one_in(4).then(|| Credentials {
        user: choices.one_in(2).then(|| "we".to_owned()),
        password: "secret".to_owned(),
        source: None,
    });
    let server = |port| ServerSettings {
        address: address(port),
        credentials: credentials.clone(),
        db: 0,
    };
    let (kind, reads) = match kind {
        Kind::Prefixes => {
            let first = choices.of(&Kind::ALL[..5]);
            let (first, reads) = without_parts(choices, first, &server);
            let subpool = |prefix: &str, strip, kind, reads| PrefixPool {
                prefix: prefix.into(),
                strip,
                kind,
                reads,
            };
            let stripped = PoolKind::Single(server(STRIPPED));
            let subpools = vec![
                subpool("", false, first, reads),
                subpool(PREFIX, true, stripped, Reads::default()),
            ];
            (PoolKind::ByPrefix { subpools }, Reads::default())
        }
        kind => without_parts(choices, kind, &server),
    };
    let pool = PoolSettings {
        name: "default".to_owned(),
        kind,
        reads,
        flush: None,
        announce: None,
        shows: Shows::default(),
        address_map: Default::default(),
        tls: false,
    };
    let mut settings = Settings {
        pools: vec![pool],
        limits: limits(choices),
        ..Settings::default()
    };
    if choices.one_in(6) {
        settings.users = vec![User {
            name: "default".to_owned(),
            password: "right".to_owned(),
            source: None,
        }];
    }
    if choices.one_in(2) {
        settings.pinned_links_full = WhenFull::Refuse;
    }
    let timeouts = &mut settings.timeouts;
    timeouts.request_ms = choices.of(&[timeouts.request_ms, 0, 60, 1]);
    timeouts.connect_ms = choices.of(&[timeouts.connect_ms, 1]);
    timeouts.link_stall_ms = choices.of(&[timeouts.link_stall_ms, 100, 1]);
    timeouts.reconnect_min_ms = choices.of(&[timeouts.reconnect_min_ms, 1]);
    timeouts.session_idle_ms = choices.of(&[0, 0, 100, 1]);
    timeouts.login_check_ms = choices.of(&[timeouts.login_check_ms, 0, 50]);
    let flush = &mut settings.flush;
    flush.aim = choices.of(&[Aim::Latency, Aim::ServerCpu, Aim::ServerCpu, Aim::Balanced]);
    flush.fuse = !choices.one_in(4);
    flush.collapse = !choices.one_in(4);
    flush.fused_keys_max = choices.of(&[flush.fused_keys_max, 2]);
    settings
}

fn address(port: u16) -> Address {
    Address::Tcp {
        host: "server".to_owned(),
        port,
    }
}

fn without_parts(
    choices: &mut Choices<'_>,
    kind: Kind,
    server: &impl Fn(u16) -> ServerSettings,
) -> (PoolKind, Reads) {
    let placement = || Placement::predixy(PredixyHash::Crc16, None, 2).expect("two servers");
    let cluster = || PoolKind::Cluster {
        seeds: vec![server(1), server(2)],
    };
    let watched = |names: &[&str]| PoolKind::Watched {
        sentinels: vec![server(SENTINEL)],
        primaries: names.iter().map(|name| (*name).to_owned()).collect(),
        template: server(1),
        placement: (names.len() > 1).then(placement),
    };
    let names: &[&str] = &["one", "two"][..1 + choices.below(2)];
    match kind {
        Kind::Plain | Kind::Prefixes => (PoolKind::Single(server(1)), Reads::default()),
        Kind::Sharded => {
            let shards = vec![server(1), server(2)];
            let placement = placement();
            (PoolKind::Sharded { shards, placement }, Reads::default())
        }
        Kind::Cluster => (cluster(), Reads::default()),
        Kind::Sentinel => (watched(names), Reads::default()),
        Kind::Replicas => {
            let reads = Reads {
                policy: choices.of(&[
                    ReadPolicy::PreferReplica,
                    ReadPolicy::Replica,
                    ReadPolicy::Nearest,
                    ReadPolicy::PreferPrimary,
                ]),
                own_writes_ms: choices.of(&[1_000, 0]),
                all_own_writes: choices.one_in(3),
                ..Reads::default()
            };
            match choices.one_in(2) {
                true => (watched(names), reads),
                false => (cluster(), reads),
            }
        }
    }
}

/// Each limit: the default, the least that its option allows, or a little more than that.
fn limits(choices: &mut Choices<'_>) -> Limits {
    let mut limits = Limits::default();
    let mut draw = |least: u32, limit: &mut u32| {
        *limit = match choices.below(3) {
            0 => *limit,
            1 => (least * 4).min(*limit),
            _ => least,
        };
    };
    draw(1, &mut limits.session_pipeline_max);
    draw(16 << 10, &mut limits.session_output_soft_bytes);
    draw(64 << 10, &mut limits.session_output_hard_bytes);
    draw(1, &mut limits.session_stall_ms);
    draw(1, &mut limits.head_of_line_stall_ms);
    draw(64 << 10, &mut limits.request_held_bytes_max);
    draw(1, &mut limits.streaming_links_max);
    draw(2, &mut limits.links_max);
    draw(1, &mut limits.pinned_links_max);
    draw(1 << 10, &mut limits.transaction_bytes_max);
    draw(1, &mut limits.session_subscriptions_max);
    draw(1, &mut limits.worker_subscriptions_max);
    draw(1, &mut limits.link_unanswered_requests_max);
    let joined = JOINED_BATCH_BYTES_MAX as u32;
    draw(joined, &mut limits.link_unanswered_bytes_max);
    if choices.one_in(3) {
        limits.worker_memory_bytes_max = 1 << 20;
        let hard = &mut limits.session_output_hard_bytes;
        *hard = (*hard).min(1 << 20);
    }
    // Settings that the program refuses at its start do not occur.
    let hard = &mut limits.session_output_hard_bytes;
    *hard = (*hard).max(limits.session_output_soft_bytes + 1);
    let unanswered = &mut limits.link_unanswered_bytes_max;
    *unanswered = (*unanswered).max(limits.request_held_bytes_max);
    limits.streaming_links_max = limits.streaming_links_max.min(limits.links_max - 1);
    limits.head_of_line_stall_ms = limits.head_of_line_stall_ms.min(limits.session_stall_ms);
    limits
}
