//! Options for batches: when they leave, and which requests they fuse.

use respool_engine::settings::{Aim, FlushRule};

use super::number::{Unit, number};
use super::{AtReload, OPTION, Opt, OptionKind, Topic};

pub(super) const FLUSH_RULE: Opt = Opt {
    name: "flush-rule",
    topic: Topic::Batching,
    kind: OptionKind::Text {
        set: |values, text| {
            let aim = Aim::ALL.into_iter().find(|aim| aim.name() == text);
            let wrong = "must be `balanced`, `latency` or `server-cpu`";
            values.flush.aim = aim.ok_or(wrong)?;
            Ok(())
        },
        get: |values| Some(values.flush.aim.name().into()),
        or_number: false,
    },
    value: "balanced|latency|server-cpu",
    brief: "When a link that awaits replies holds its next batch back",
    more: "A link that holds its open batch until its replies have come sends larger batches, and \
           the server spends less on system calls. Each request takes longer.\n\nWith `balanced`, \
           respool measures how busy the server and its own workers are. While they have room, \
           every batch leaves at once. Otherwise a batch waits as long as is needed to keep the \
           main thread of the server below 60 % of a core and the worker's thread below 95 %. It \
           waits --max-delay-us at most, and 50 ms at most. Each worker asks the server for INFO \
           cpu five times a second, if it sends the server so many requests that waiting may \
           pay.\n\nWith `latency`, every batch leaves at once. With `server-cpu`, every batch of a \
           busy link waits for the replies, at most --max-delay-us, so the server has the least \
           work at any load.",
    example: "latency",
    per_pool: true,
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const MAX_DELAY_US: Opt = Opt {
    name: "max-delay-us",
    topic: Topic::Batching,
    kind: number(
        Unit::Microseconds,
        FlushRule::MAX_DELAY_US_MIN as u64,
        FlushRule::MAX_DELAY_US_MAX as u64,
        |values| &mut values.flush.max_delay_us,
    ),
    value: "TIME",
    brief: "The longest that a request waits in an open batch",
    more: "This is a limit, not a pause. A waiting batch leaves when the replies to the batch \
           before it have come and the clients that got them have sent new requests. A larger \
           value makes larger batches where replies or clients are slow. Where a pool has several \
           servers, the replies to one part of a pipeline wait as long for the rest. Whether \
           batches wait at all is up to --flush-rule.",
    example: "500",
    per_pool: true,
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const FUSE: Opt = Opt {
    name: "fuse",
    topic: Topic::Batching,
    kind: OptionKind::Switch(|values| &mut values.flush.fuse),
    brief: "Send the GETs of a batch as one MGET, and its SETs as one MSET",
    more: "Each client gets the reply that its own command would have got. Only GET and SET \
           without options are fused, and only where their order does not matter. The difference \
           is visible at the server itself: in MONITOR, SLOWLOG and INFO commandstats. In front of \
           a Cluster, neighbours in a batch are fused if their keys are in one slot (by a common \
           hash tag); where that is rare, respool stops trying for a while. Of one client's \
           requests in a batch, only the last are fused: GETs with nothing behind them, and SETs \
           with only GETs and other reads of single keys behind them, as many as fit one \
           MSET.",
    example: "false",
    per_pool: true,
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const FUSED_KEYS_MAX: Opt = Opt {
    name: "fused-keys-max",
    topic: Topic::Batching,
    kind: number(
        Unit::Count,
        FlushRule::FUSED_KEYS_MAX_MIN as u64,
        FlushRule::FUSED_KEYS_MAX_MAX as u64,
        |values| &mut values.flush.fused_keys_max,
    ),
    value: "COUNT",
    brief: "The most keys in an MGET or MSET that respool makes of requests",
    more: "More keys make each hardly cheaper, and the server answers no other client meanwhile. \
           Such an MGET or MSET has at most 8 KiB, too.",
    example: "64",
    per_pool: true,
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const COLLAPSE: Opt = Opt {
    name: "collapse",
    topic: Topic::Batching,
    kind: OptionKind::Switch(|values| &mut values.flush.collapse),
    brief: "Send identical reads of a batch once",
    more: "Each client gets the reply. It holds for reads of one key whose reply depends on the \
           data alone, and only if no write stands between them. Switch it off if clients read \
           different keys in one pipeline and need them read in that order while others write.",
    example: "false",
    per_pool: true,
    at_reload: AtReload::Applies,
    ..OPTION
};
