//! Written by `respool-lab commands` from `data/`: do not edit.

use super::*;

/// One row: name, arity, flags, servers, key specs, key scan, only key; answer; retry; fan-out; coalescing; where its
/// reply names keys; whether a replica may answer it, whether it is dangerous;
/// ids of the subcommands.
macro_rules! row {
    ($name:literal $arity:literal [$($flag:ident)*] [$($server:ident)*] [$($key:expr),*] $scan:ident $only_key:literal
     | $answer:expr; $retry:ident; $spread:ident $merge:ident; $coalesce:ident; $names:ident; $replica:literal $danger:literal; $from:literal $behind:literal) => {
        Command {
            name: $name,
            arity: $arity,
            flags: Flags::NONE$(.or(Flags::$flag))*,
            keys: &[$($key),*],
            key_scan: KeyScan::$scan,
            only_key: $only_key,
            answer: $answer,
            retry: Retry::$retry,
            fan_out: FanOut { spread: Spread::$spread, merge: Merge::$merge },
            coalesce: Coalesce::$coalesce,
            names: Names::$names,
            replica: $replica,
            dangerous: $danger,
            servers: Servers::NONE$(.or(Servers::$server))*,
            subcommands: ($from, $behind),
        }
    };
}

/// A key spec.
macro_rules! key {
    ([$($flag:ident)*] $begin:expr, $find:expr) => {
        KeySpec { begin: $begin, find: $find, flags: KeyFlags::NONE$(.or(KeyFlags::$flag))* }
    };
}

use Answer::{Alone, Conditional, Pinned, Refused, Server, Session};
use Begin::{Index, Keyword};
use Find::{Count, Range};

/// Gives every name a slot of its own, see [`FoldedName::slot`].
pub(super) const MULTIPLIER: u64 = 0x0fa65f69a2dbf9b3;

pub(super) static COMMANDS: [Command; 413] = [
    row!("acl" -2 [] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Any One; None; None; false false; 1 14),
    row!("acl|cat" -2 [NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("acl|deluser" -3 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; All AllSucceeded; None; None; false false; 0 0),
    row!("acl|dryrun" -4 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("acl|genpass" -2 [NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("acl|getuser" 3 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("acl|help" 2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("acl|list" 2 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("acl|load" 2 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; All AllSucceeded; None; None; false false; 0 0),
    row!("acl|log" -2 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("acl|save" 2 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; All AllSucceeded; None; None; false false; 0 0),
    row!("acl|setuser" -3 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; All AllSucceeded; None; None; false false; 0 0),
    row!("acl|users" 2 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("acl|whoami" 2 [NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("append" 3 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW INSERT] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("asking" 1 [FAST] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Node One; None; None; false false; 0 0),
    row!("auth" -2 [NOSCRIPT LOADING STALE NO_AUTH FAST ALLOW_BUSY] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0),
    row!("bgrewriteaof" 1 [ADMIN NOSCRIPT NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("bgsave" -1 [ADMIN NOSCRIPT NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("bitcount" -2 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("bitfield" -2 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS UPDATE VARIABLE_FLAGS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("bitfield_ro" -2 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("bitop" -4 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([OW UPDATE] Index(2), Range { last: 0, step: 1, limit: 0 }), key!([RO ACCESS] Index(3), Range { last: -1, step: 1, limit: 0 })] Specs 0 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("bitpos" -3 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("blmove" 6 [WRITE DENYOOM BLOCKING] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([RW INSERT] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 0 | Alone; Write; Owner One; None; None; false false; 0 0),
    row!("blmpop" -5 [WRITE BLOCKING MOVABLEKEYS] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(2), Count { number: 0, first: 1, step: 1 })] Specs 0 | Alone; Write; Owner One; None; First; false false; 0 0),
    row!("blpop" -3 [WRITE BLOCKING] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(1), Range { last: -2, step: 1, limit: 0 })] Specs 0 | Alone; Write; Owner One; None; First; false false; 0 0),
    row!("brpop" -3 [WRITE BLOCKING] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(1), Range { last: -2, step: 1, limit: 0 })] Specs 0 | Alone; Write; Owner One; None; First; false false; 0 0),
    row!("brpoplpush" 4 [WRITE DENYOOM BLOCKING] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([RW INSERT] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 0 | Alone; Write; Owner One; None; None; false false; 0 0),
    row!("bzmpop" -5 [WRITE BLOCKING MOVABLEKEYS] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(2), Count { number: 0, first: 1, step: 1 })] Specs 0 | Alone; Write; Owner One; None; First; false false; 0 0),
    row!("bzpopmax" -3 [WRITE BLOCKING FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(1), Range { last: -2, step: 1, limit: 0 })] Specs 0 | Alone; Write; Owner One; None; First; false false; 0 0),
    row!("bzpopmin" -3 [WRITE BLOCKING FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(1), Range { last: -2, step: 1, limit: 0 })] Specs 0 | Alone; Write; Owner One; None; First; false false; 0 0),
    row!("client" -2 [] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 33 53),
    row!("client|caching" 3 [NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Any One; None; None; false false; 0 0), // flags: redis-8.2 [], valkey-9.1 [allow_busy]
    row!("client|capa" -3 [NOSCRIPT LOADING STALE ALLOW_BUSY] [VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0),
    row!("client|getname" 2 [NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0), // flags: redis-8.2 [], valkey-9.1 [allow_busy]
    row!("client|getredir" 2 [NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0), // flags: redis-8.2 [], valkey-9.1 [allow_busy]
    row!("client|help" 2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("client|id" 2 [NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0), // flags: redis-8.2 [], valkey-9.1 [allow_busy]
    row!("client|import-source" 3 [NOSCRIPT LOADING STALE] [VALKEY_9_1] [] Specs 0 | Pinned; Write; Off AllSucceeded; None; None; false false; 0 0),
    row!("client|info" 2 [NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0),
    row!("client|kill" -3 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0),
    row!("client|list" -2 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0),
    row!("client|no-evict" 3 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0), // flags: redis-8.2 [], valkey-9.1 [allow_busy]
    row!("client|no-touch" 3 [NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Pinned; Write; Off AllSucceeded; None; None; false false; 0 0), // flags: redis-8.2 [], valkey-9.1 [allow_busy]
    row!("client|pause" -3 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0),
    row!("client|reply" 3 [NOSCRIPT LOADING STALE NO_MULTI] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0), // flags: redis-8.2 [], valkey-9.1 [allow_busy no_multi]
    row!("client|setinfo" 4 [NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0), // flags: redis-8.2 [], valkey-9.1 [allow_busy]
    row!("client|setname" 3 [NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0), // flags: redis-8.2 [], valkey-9.1 [allow_busy]
    row!("client|tracking" -3 [NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Pinned; Write; Off AllSucceeded; None; None; false false; 0 0),
    row!("client|trackinginfo" 2 [NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0),
    row!("client|unblock" -3 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0),
    row!("client|unpause" 2 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0),
    row!("cluster" -2 [] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 54 88),
    row!("cluster|addslots" -3 [ADMIN STALE NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("cluster|addslotsrange" -4 [ADMIN STALE NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("cluster|bumpepoch" 2 [ADMIN STALE NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("cluster|cancelslotmigrations" 2 [ADMIN STALE NO_ASYNC_LOADING] [VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("cluster|count-failure-reports" 3 [ADMIN STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Refused One; None; None; false false; 0 0),
    row!("cluster|countkeysinslot" 3 [STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Node One; None; None; false false; 0 0),
    row!("cluster|delslots" -3 [ADMIN STALE NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("cluster|delslotsrange" -4 [ADMIN STALE NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("cluster|failover" -2 [ADMIN STALE NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false true; 0 0),
    row!("cluster|flushslot" -3 [WRITE ADMIN NO_ASYNC_LOADING] [VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("cluster|flushslots" 2 [ADMIN STALE NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("cluster|forget" 3 [ADMIN STALE NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("cluster|getkeysinslot" 4 [STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Node One; None; Each; false false; 0 0),
    row!("cluster|getslotmigrations" 2 [ADMIN STALE NO_ASYNC_LOADING] [VALKEY_9_1] [] Specs 0 | Server; Read; Refused One; None; None; false false; 0 0),
    row!("cluster|help" 2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("cluster|info" 2 [STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Node One; None; None; false false; 0 0), // flags: redis-8.2 [], valkey-9.1 [loading]
    row!("cluster|keyslot" 3 [STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Node One; None; None; false false; 0 0),
    row!("cluster|links" 2 [STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Node One; None; None; false false; 0 0),
    row!("cluster|meet" -4 [ADMIN STALE NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("cluster|migrateslots" -4 [ADMIN STALE NO_ASYNC_LOADING] [VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("cluster|myid" 2 [STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Node One; None; None; false false; 0 0), // flags: redis-8.2 [], valkey-9.1 [loading]
    row!("cluster|myshardid" 2 [STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Node One; None; None; false false; 0 0), // flags: redis-8.2 [], valkey-9.1 [loading]
    row!("cluster|nodes" 2 [STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Node One; None; None; false false; 0 0), // flags: redis-8.2 [], valkey-9.1 [loading]
    row!("cluster|replicas" 3 [ADMIN STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Node One; None; None; false false; 0 0),
    row!("cluster|replicate" -3 [ADMIN STALE NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0), // arity: redis-8.2 3, valkey-9.1 -3
    row!("cluster|reset" -2 [ADMIN NOSCRIPT STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false true; 0 0),
    row!("cluster|saveconfig" 2 [ADMIN STALE NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("cluster|set-config-epoch" 3 [ADMIN STALE NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("cluster|setslot" -4 [ADMIN STALE NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("cluster|shards" 2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Node One; None; None; false false; 0 0),
    row!("cluster|slaves" 3 [ADMIN STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Node One; None; None; false false; 0 0),
    row!("cluster|slot-stats" -4 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; All Concat; None; None; false false; 0 0),
    row!("cluster|slots" 2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Node One; None; None; false false; 0 0),
    row!("cluster|syncslots" -3 [ADMIN STALE NO_ASYNC_LOADING] [VALKEY_9_1] [] Specs 0 | Refused(Refusal::Replication); Write; Refused One; None; None; false false; 0 0),
    row!("clusterscan" -2 [READONLY] [VALKEY_9_1] [key!([NOT_KEY] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 0 | Server; Read; Owner One; None; Second; false false; 0 0),
    row!("command" -1 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 90 97),
    row!("command|count" 2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("command|docs" -2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("command|getkeys" -3 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("command|getkeysandflags" -3 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("command|help" 2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("command|info" -2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("command|list" -2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("commandlog" -2 [] [VALKEY_9_1] [] Specs 0 | Server; Write; Any One; None; None; false false; 98 102),
    row!("commandlog|get" 4 [ADMIN LOADING STALE] [VALKEY_9_1] [] Specs 0 | Server; Read; All Concat; None; None; false false; 0 0),
    row!("commandlog|help" 2 [LOADING STALE] [VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("commandlog|len" 3 [ADMIN LOADING STALE] [VALKEY_9_1] [] Specs 0 | Server; Read; All Sum; None; None; false false; 0 0),
    row!("commandlog|reset" 3 [ADMIN LOADING STALE] [VALKEY_9_1] [] Specs 0 | Server; Write; All AllSucceeded; None; None; false false; 0 0),
    row!("config" -2 [] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Any One; None; None; false false; 103 108),
    row!("config|get" -3 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("config|help" 2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("config|resetstat" 2 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; All AllSucceeded; None; None; false false; 0 0),
    row!("config|rewrite" 2 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; All AllSucceeded; None; None; false false; 0 0),
    row!("config|set" -4 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; All AllSucceeded; None; None; false false; 0 0),
    row!("copy" -3 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([OW UPDATE] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 0 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("dbsize" 1 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; All Sum; None; None; false false; 0 0),
    row!("debug" -2 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] DebugObject 0 | Conditional(Condition::DebugProtocol); Write; Refused One; None; None; false true; 0 0),
    row!("decr" 2 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("decrby" 3 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("del" -2 [WRITE] [REDIS_8_2 VALKEY_9_1] [key!([RM DELETE] Index(1), Range { last: -1, step: 1, limit: 0 })] Specs 0 | Server; Write; Owners Sum; None; None; false false; 0 0),
    row!("delifeq" 3 [WRITE FAST] [VALKEY_9_1] [key!([RM DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("discard" 1 [NOSCRIPT LOADING STALE FAST ALLOW_BUSY] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0),
    row!("dump" 2 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; None; None; false false; 0 0),
    row!("echo" 2 [LOADING STALE FAST] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("eval" -3 [NOSCRIPT STALE MOVABLEKEYS NO_MANDATORY_KEYS SKIP_MONITOR] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS UPDATE] Index(2), Count { number: 0, first: 1, step: 1 })] Specs 0 | Conditional(Condition::Script); Write; Owner One; None; None; false false; 0 0),
    row!("eval_ro" -3 [READONLY NOSCRIPT STALE MOVABLEKEYS NO_MANDATORY_KEYS SKIP_MONITOR] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(2), Count { number: 0, first: 1, step: 1 })] Specs 0 | Conditional(Condition::Script); Read; Owner One; None; None; false false; 0 0),
    row!("evalsha" -3 [NOSCRIPT STALE MOVABLEKEYS NO_MANDATORY_KEYS SKIP_MONITOR] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS UPDATE] Index(2), Count { number: 0, first: 1, step: 1 })] Specs 0 | Conditional(Condition::Script); Write; Owner One; None; None; false false; 0 0),
    row!("evalsha_ro" -3 [READONLY NOSCRIPT STALE MOVABLEKEYS NO_MANDATORY_KEYS SKIP_MONITOR] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(2), Count { number: 0, first: 1, step: 1 })] Specs 0 | Conditional(Condition::Script); Read; Owner One; None; None; false false; 0 0),
    row!("exec" 1 [NOSCRIPT LOADING STALE SKIP_SLOWLOG SKIP_COMMANDLOG] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0), // flags: redis-8.2 [skip_slowlog], valkey-9.1 [skip_commandlog]
    row!("exists" -2 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO] Index(1), Range { last: -1, step: 1, limit: 0 })] Specs 0 | Server; Read; Owners Sum; None; None; true false; 0 0),
    row!("expire" -3 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("expireat" -3 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("expiretime" 2 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("failover" -1 [ADMIN NOSCRIPT STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false true; 0 0),
    row!("fcall" -3 [NOSCRIPT STALE MOVABLEKEYS NO_MANDATORY_KEYS SKIP_MONITOR] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS UPDATE] Index(2), Count { number: 0, first: 1, step: 1 })] Specs 0 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("fcall_ro" -3 [READONLY NOSCRIPT STALE MOVABLEKEYS NO_MANDATORY_KEYS SKIP_MONITOR] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(2), Count { number: 0, first: 1, step: 1 })] Specs 0 | Server; Read; Owner One; None; None; false false; 0 0),
    row!("flushall" -1 [WRITE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; All AllSucceeded; None; None; false false; 0 0),
    row!("flushdb" -1 [WRITE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; All AllSucceeded; None; None; false false; 0 0),
    row!("function" -2 [] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Any One; None; None; false false; 133 142),
    row!("function|delete" 3 [WRITE NOSCRIPT] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; All AllSucceeded; None; None; false false; 0 0),
    row!("function|dump" 2 [NOSCRIPT] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("function|flush" -2 [WRITE NOSCRIPT] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; All AllSucceeded; None; None; false false; 0 0),
    row!("function|help" 2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("function|kill" 2 [NOSCRIPT ALLOW_BUSY] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Alone; Write; All OneSucceeded; None; None; false false; 0 0),
    row!("function|list" -2 [NOSCRIPT] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("function|load" -3 [WRITE DENYOOM NOSCRIPT] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; All AllSucceeded; None; None; false false; 0 0),
    row!("function|restore" -3 [WRITE DENYOOM NOSCRIPT] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; All AllSucceeded; None; None; false false; 0 0),
    row!("function|stats" 2 [NOSCRIPT ALLOW_BUSY] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Alone; Read; All Special; None; None; false false; 0 0),
    row!("geoadd" -5 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("geodist" -4 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("geohash" -2 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("geopos" -2 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("georadius" -6 [WRITE DENYOOM MOVABLEKEYS] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([OW UPDATE VARIABLE_FLAGS] Keyword { word: b"store", from: 6 }, Range { last: 0, step: 1, limit: 0 }), key!([OW UPDATE VARIABLE_FLAGS] Keyword { word: b"storedist", from: 6 }, Range { last: 0, step: 1, limit: 0 })] GeoRadius 0 | Server; Write; Owner One; None; None; false false; 0 0), // key flags: redis-8.2 [], valkey-9.1 [1:variable_flags 2:variable_flags]
    row!("georadius_ro" -6 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("georadiusbymember" -5 [WRITE DENYOOM MOVABLEKEYS] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([OW UPDATE VARIABLE_FLAGS] Keyword { word: b"store", from: 5 }, Range { last: 0, step: 1, limit: 0 }), key!([OW UPDATE VARIABLE_FLAGS] Keyword { word: b"storedist", from: 5 }, Range { last: 0, step: 1, limit: 0 })] GeoRadius 0 | Server; Write; Owner One; None; None; false false; 0 0), // key flags: redis-8.2 [], valkey-9.1 [1:variable_flags 2:variable_flags]
    row!("georadiusbymember_ro" -5 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("geosearch" -7 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("geosearchstore" -8 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([OW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([RO ACCESS] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 0 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("get" 2 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Get; None; true false; 0 0),
    row!("getbit" 3 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("getdel" 2 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("getex" -2 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("getrange" 4 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("getset" 3 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("hdel" -3 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("hello" -1 [NOSCRIPT LOADING STALE NO_AUTH FAST ALLOW_BUSY] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0),
    row!("hexists" 3 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("hexpire" -6 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("hexpireat" -6 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("hexpiretime" -5 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("hget" 3 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("hgetall" 2 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("hgetdel" -5 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("hgetex" -5 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("hincrby" 4 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("hincrbyfloat" 4 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("hkeys" 2 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("hlen" 2 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("hmget" -3 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("hmset" -4 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("hpersist" -5 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("hpexpire" -6 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("hpexpireat" -6 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("hpexpiretime" -5 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("hpttl" -5 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; None; None; true false; 0 0), // tips: redis-8.2 [nondeterministic_output], valkey-9.1 []
    row!("hrandfield" -2 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; None; None; true false; 0 0),
    row!("hscan" -3 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; None; None; false false; 0 0),
    row!("hset" -4 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("hsetex" -6 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE INSERT] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0), // key flags: redis-8.2 [0:update], valkey-9.1 [0:insert]
    row!("hsetnx" 4 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW INSERT] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("hstrlen" 3 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("httl" -5 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; None; None; true false; 0 0), // tips: redis-8.2 [nondeterministic_output], valkey-9.1 []
    row!("hvals" 2 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("incr" 2 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("incrby" 3 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("incrbyfloat" 3 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("info" -1 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Read; All Special; None; None; false false; 0 0),
    row!("keys" 2 [READONLY] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; All Concat; None; Each; false false; 0 0),
    row!("lastsave" 1 [LOADING STALE FAST] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Refused One; None; None; false false; 0 0),
    row!("latency" -2 [] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Any One; None; None; false false; 194 201),
    row!("latency|doctor" 2 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; All Special; None; None; false false; 0 0),
    row!("latency|graph" 3 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; All Special; None; None; false false; 0 0),
    row!("latency|help" 2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("latency|histogram" -2 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; All Special; None; None; false false; 0 0),
    row!("latency|history" 3 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; All Special; None; None; false false; 0 0),
    row!("latency|latest" 2 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; All Special; None; None; false false; 0 0),
    row!("latency|reset" -2 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; All Sum; None; None; false false; 0 0),
    row!("lcs" -3 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 1, step: 1, limit: 0 })] Specs 0 | Server; Read; Owner One; None; None; true false; 0 0),
    row!("lindex" 3 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("linsert" 5 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([RW INSERT] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("llen" 2 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("lmove" 5 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([RW INSERT] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 0 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("lmpop" -4 [WRITE MOVABLEKEYS] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(1), Count { number: 0, first: 1, step: 1 })] Specs 0 | Server; Write; Owner One; None; First; false false; 0 0),
    row!("lolwut" -1 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("lpop" -2 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("lpos" -3 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("lpush" -3 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW INSERT] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("lpushx" -3 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW INSERT] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("lrange" 4 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("lrem" 4 [WRITE] [REDIS_8_2 VALKEY_9_1] [key!([RW DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("lset" 4 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("ltrim" 4 [WRITE] [REDIS_8_2 VALKEY_9_1] [key!([RW DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("memory" -2 [] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Any One; None; None; false false; 217 223),
    row!("memory|doctor" 2 [] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; All Special; None; None; false false; 0 0),
    row!("memory|help" 2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("memory|malloc-stats" 2 [] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; All Special; None; None; false false; 0 0), // flags: redis-8.2 [], valkey-9.1 [loading]
    row!("memory|purge" 2 [] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; All AllSucceeded; None; None; false false; 0 0), // flags: redis-8.2 [], valkey-9.1 [loading]
    row!("memory|stats" 2 [] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; All Special; None; None; false false; 0 0),
    row!("memory|usage" -3 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 2 | Server; Read; Owner One; None; None; false false; 0 0),
    row!("mget" -2 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: -1, step: 1, limit: 0 })] Specs 0 | Server; Read; Owners KeyOrder; None; None; true false; 0 0),
    row!("migrate" -6 [WRITE MOVABLEKEYS] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(3), Range { last: 0, step: 1, limit: 0 }), key!([RW ACCESS DELETE INCOMPLETE] Keyword { word: b"keys", from: -2 }, Range { last: -1, step: 1, limit: 0 })] Migrate 0 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("module" -2 [] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Any One; None; None; false false; 226 231),
    row!("module|help" 2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("module|list" 2 [ADMIN NOSCRIPT] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("module|load" -3 [ADMIN NOSCRIPT NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("module|loadex" -3 [ADMIN NOSCRIPT NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("module|unload" 3 [ADMIN NOSCRIPT NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("monitor" 1 [ADMIN NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Pinned; Write; Refused One; None; None; false false; 0 0),
    row!("move" 3 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("mset" -3 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([OW UPDATE] Index(1), Range { last: -1, step: 2, limit: 0 })] Specs 0 | Server; Write; Owners AllSucceeded; None; None; false false; 0 0),
    row!("msetex" -4 [WRITE DENYOOM MOVABLEKEYS] [VALKEY_9_1] [key!([OW UPDATE] Index(1), Count { number: 0, first: 1, step: 2 })] Specs 0 | Server; Write; Owners AllSucceeded; None; None; false false; 0 0),
    row!("msetnx" -3 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([OW INSERT] Index(1), Range { last: -1, step: 2, limit: 0 })] Specs 0 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("multi" 1 [NOSCRIPT LOADING STALE NO_MULTI FAST ALLOW_BUSY] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0), // flags: redis-8.2 [], valkey-9.1 [no_multi]
    row!("object" -2 [] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Any One; None; None; false false; 238 243),
    row!("object|encoding" 3 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 2 | Server; Read; Owner One; None; None; false false; 0 0),
    row!("object|freq" 3 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 2 | Server; Read; Owner One; None; None; false false; 0 0),
    row!("object|help" 2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("object|idletime" 3 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 2 | Server; Read; Owner One; None; None; false false; 0 0),
    row!("object|refcount" 3 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 2 | Server; Read; Owner One; None; None; false false; 0 0),
    row!("persist" 2 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("pexpire" -3 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("pexpireat" -3 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("pexpiretime" 2 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("pfadd" -2 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW INSERT] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("pfcount" -2 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS] Index(1), Range { last: -1, step: 1, limit: 0 })] Specs 0 | Server; Read; Owner One; None; None; true false; 0 0),
    row!("pfdebug" 3 [WRITE DENYOOM ADMIN] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 2 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("pfmerge" -2 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS INSERT] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([RO ACCESS] Index(2), Range { last: -1, step: 1, limit: 0 })] Specs 0 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("pfselftest" 1 [ADMIN] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("ping" -1 [FAST] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("psetex" 4 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([OW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("psubscribe" -2 [PUBSUB NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0),
    row!("psync" -3 [ADMIN NOSCRIPT NO_MULTI NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Refused(Refusal::Replication); Write; Refused One; None; None; false false; 0 0),
    row!("pttl" 2 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; None; None; true false; 0 0),
    row!("publish" 3 [PUBSUB LOADING STALE FAST] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Conditional(Condition::Count); Write; Home One; None; None; false false; 0 0),
    row!("pubsub" -2 [] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Any One; None; None; false false; 259 265),
    row!("pubsub|channels" -2 [PUBSUB LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Home One; None; None; false false; 0 0),
    row!("pubsub|help" 2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("pubsub|numpat" 2 [PUBSUB LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Home One; None; None; false false; 0 0),
    row!("pubsub|numsub" -2 [PUBSUB LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Conditional(Condition::Count); Read; Home One; None; None; false false; 0 0),
    row!("pubsub|shardchannels" -2 [PUBSUB LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Channels Concat; None; None; false false; 0 0),
    row!("pubsub|shardnumsub" -2 [PUBSUB LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Conditional(Condition::Count); Read; Channels Special; None; None; false false; 0 0),
    row!("punsubscribe" -1 [PUBSUB NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0),
    row!("quit" -1 [NOSCRIPT LOADING STALE NO_AUTH FAST ALLOW_BUSY] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0),
    row!("randomkey" 1 [READONLY] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; All Special; None; Whole; false false; 0 0),
    row!("readonly" 1 [LOADING STALE FAST] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Node One; None; None; false false; 0 0),
    row!("readwrite" 1 [LOADING STALE FAST] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Node One; None; None; false false; 0 0),
    row!("rename" 3 [WRITE] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([OW UPDATE] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 0 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("renamenx" 3 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([OW INSERT] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 0 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("replconf" -1 [ADMIN NOSCRIPT LOADING STALE ALLOW_BUSY] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Refused(Refusal::Replication); Write; Refused One; None; None; false false; 0 0),
    row!("replicaof" 3 [ADMIN NOSCRIPT STALE NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false true; 0 0),
    row!("reset" 1 [NOSCRIPT LOADING STALE NO_AUTH FAST ALLOW_BUSY] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0),
    row!("restore" -4 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([OW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("restore-asking" -4 [WRITE DENYOOM ASKING] [REDIS_8_2 VALKEY_9_1] [key!([OW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("role" 1 [NOSCRIPT LOADING STALE FAST] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Refused One; None; None; false false; 0 0),
    row!("rpop" -2 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("rpoplpush" 3 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([RW INSERT] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 0 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("rpush" -3 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW INSERT] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("rpushx" -3 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW INSERT] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("sadd" -3 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW INSERT] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("save" 1 [ADMIN NOSCRIPT NO_MULTI NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false false; 0 0),
    row!("scan" -2 [READONLY] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Turns One; None; Second; false false; 0 0),
    row!("scard" 2 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("script" -2 [] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 287 294),
    row!("script|debug" -3 [NOSCRIPT] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Refused(Refusal::ConnectionState); Write; Refused One; None; None; false false; 0 0), // arity: redis-8.2 3, valkey-9.1 -3
    row!("script|exists" -3 [NOSCRIPT] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; All And; None; None; false false; 0 0), // flags: redis-8.2 [], valkey-9.1 [stale]
    row!("script|flush" -2 [NOSCRIPT] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Conditional(Condition::Script); Write; All AllSucceeded; None; None; false false; 0 0), // flags: redis-8.2 [], valkey-9.1 [stale]
    row!("script|help" 2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("script|kill" 2 [NOSCRIPT ALLOW_BUSY] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Alone; Write; All OneSucceeded; None; None; false false; 0 0),
    row!("script|load" 3 [NOSCRIPT STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Conditional(Condition::Script); Write; All AllSucceeded; None; None; false false; 0 0),
    row!("script|show" 3 [NOSCRIPT STALE] [VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("sdiff" -2 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: -1, step: 1, limit: 0 })] Specs 0 | Server; Read; Owner One; None; None; true false; 0 0),
    row!("sdiffstore" -3 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([OW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([RO ACCESS] Index(2), Range { last: -1, step: 1, limit: 0 })] Specs 0 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("select" 2 [LOADING STALE FAST] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0), // flags: redis-8.2 [], valkey-9.1 [allow_busy]
    row!("set" -3 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS UPDATE VARIABLE_FLAGS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; Set; None; false false; 0 0),
    row!("setbit" 4 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("setex" 4 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([OW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("setnx" 3 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([OW INSERT] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("setrange" 4 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("shutdown" -1 [ADMIN NOSCRIPT LOADING STALE NO_MULTI ALLOW_BUSY] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Alone; Write; Refused One; None; None; false true; 0 0),
    row!("sinter" -2 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: -1, step: 1, limit: 0 })] Specs 0 | Server; Read; Owner One; None; None; true false; 0 0),
    row!("sintercard" -3 [READONLY MOVABLEKEYS] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Count { number: 0, first: 1, step: 1 })] Specs 0 | Server; Read; Owner One; None; None; true false; 0 0),
    row!("sinterstore" -3 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([OW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([RO ACCESS] Index(2), Range { last: -1, step: 1, limit: 0 })] Specs 0 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("sismember" 3 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("slaveof" 3 [ADMIN NOSCRIPT STALE NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Refused One; None; None; false true; 0 0),
    row!("slowlog" -2 [] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Any One; None; None; false false; 309 313),
    row!("slowlog|get" -2 [ADMIN LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; All Concat; None; None; false false; 0 0),
    row!("slowlog|help" 2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("slowlog|len" 2 [ADMIN LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; All Sum; None; None; false false; 0 0),
    row!("slowlog|reset" 2 [ADMIN LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; All AllSucceeded; None; None; false false; 0 0),
    row!("smembers" 2 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("smismember" -3 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("smove" 4 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([RW INSERT] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 0 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("sort" -2 [WRITE DENYOOM MOVABLEKEYS] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([RO ACCESS] Begin::Unknown, Find::Unknown), key!([OW UPDATE] Begin::Unknown, Find::Unknown)] Sort 0 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("sort_ro" -2 [READONLY MOVABLEKEYS] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([RO ACCESS] Begin::Unknown, Find::Unknown)] Sort 0 | Server; Read; Owner One; None; None; true false; 0 0),
    row!("spop" -2 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("spublish" 3 [PUBSUB LOADING STALE FAST] [REDIS_8_2 VALKEY_9_1] [key!([NOT_KEY] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 0 | Conditional(Condition::Count); Write; Home One; None; None; false false; 0 0),
    row!("srandmember" -2 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; None; None; true false; 0 0),
    row!("srem" -3 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("sscan" -3 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; None; None; false false; 0 0),
    row!("ssubscribe" -2 [PUBSUB NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [key!([NOT_KEY] Index(1), Range { last: -1, step: 1, limit: 0 })] Specs 0 | Session; Write; Here One; None; None; false false; 0 0),
    row!("strlen" 2 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("subscribe" -2 [PUBSUB NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0),
    row!("substr" 4 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("sunion" -2 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: -1, step: 1, limit: 0 })] Specs 0 | Server; Read; Owner One; None; None; true false; 0 0),
    row!("sunionstore" -3 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([OW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([RO ACCESS] Index(2), Range { last: -1, step: 1, limit: 0 })] Specs 0 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("sunsubscribe" -1 [PUBSUB NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [key!([NOT_KEY] Index(1), Range { last: -1, step: 1, limit: 0 })] Specs 0 | Session; Write; Here One; None; None; false false; 0 0),
    row!("swapdb" 3 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; All AllSucceeded; None; None; false false; 0 0),
    row!("sync" 1 [ADMIN NOSCRIPT NO_MULTI NO_ASYNC_LOADING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Refused(Refusal::Replication); Write; Refused One; None; None; false false; 0 0),
    row!("time" 1 [LOADING STALE FAST] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("touch" -2 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO] Index(1), Range { last: -1, step: 1, limit: 0 })] Specs 0 | Server; Read; Owners Sum; None; None; false false; 0 0),
    row!("ttl" 2 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; None; None; true false; 0 0),
    row!("type" 2 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("unlink" -2 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RM DELETE] Index(1), Range { last: -1, step: 1, limit: 0 })] Specs 0 | Server; Write; Owners Sum; None; None; false false; 0 0),
    row!("unsubscribe" -1 [PUBSUB NOSCRIPT LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0),
    row!("unwatch" 1 [NOSCRIPT LOADING STALE FAST ALLOW_BUSY] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Session; Write; Here One; None; None; false false; 0 0),
    row!("vadd" -1 [WRITE DENYOOM MODULE] [REDIS_8_2] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("vcard" -1 [READONLY FAST MODULE] [REDIS_8_2] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("vdim" -1 [READONLY FAST MODULE] [REDIS_8_2] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("vemb" -1 [READONLY FAST MODULE] [REDIS_8_2] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("vgetattr" -1 [READONLY FAST MODULE] [REDIS_8_2] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("vinfo" -1 [READONLY FAST MODULE] [REDIS_8_2] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("vismember" -1 [READONLY MODULE] [REDIS_8_2] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("vlinks" -1 [READONLY FAST MODULE] [REDIS_8_2] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("vrandmember" -1 [READONLY MODULE] [REDIS_8_2] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; None; None; true false; 0 0),
    row!("vrem" -1 [WRITE MODULE] [REDIS_8_2] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("vsetattr" -1 [WRITE FAST MODULE] [REDIS_8_2] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("vsim" -1 [READONLY MODULE] [REDIS_8_2] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("wait" 3 [BLOCKING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Alone; Write; All Min; None; None; false false; 0 0),
    row!("waitaof" 4 [BLOCKING] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Alone; Write; All Min; None; None; false false; 0 0),
    row!("watch" -2 [NOSCRIPT LOADING STALE NO_MULTI FAST ALLOW_BUSY] [REDIS_8_2 VALKEY_9_1] [key!([RO] Index(1), Range { last: -1, step: 1, limit: 0 })] Specs 0 | Session; Write; Owner One; None; None; false false; 0 0), // flags: redis-8.2 [], valkey-9.1 [no_multi]
    row!("xack" -4 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("xackdel" -6 [WRITE FAST] [REDIS_8_2] [key!([RW UPDATE DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("xadd" -5 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("xautoclaim" -6 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("xclaim" -6 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("xdel" -3 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("xdelex" -5 [WRITE FAST] [REDIS_8_2] [key!([RW DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("xgroup" -2 [] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Any One; None; None; false false; 362 368),
    row!("xgroup|create" -5 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([RW INSERT] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 2 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("xgroup|createconsumer" 5 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([RW INSERT] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 2 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("xgroup|delconsumer" 5 [WRITE] [REDIS_8_2 VALKEY_9_1] [key!([RW DELETE] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 2 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("xgroup|destroy" 4 [WRITE] [REDIS_8_2 VALKEY_9_1] [key!([RW DELETE] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 2 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("xgroup|help" 2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("xgroup|setid" -5 [WRITE] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 2 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("xinfo" -2 [] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Write; Any One; None; None; false false; 369 373),
    row!("xinfo|consumers" 4 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 2 | Server; Read; Owner One; None; None; false false; 0 0),
    row!("xinfo|groups" 3 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 2 | Server; Read; Owner One; None; None; true false; 0 0),
    row!("xinfo|help" 2 [LOADING STALE] [REDIS_8_2 VALKEY_9_1] [] Specs 0 | Server; Read; Any One; None; None; false false; 0 0),
    row!("xinfo|stream" -3 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 2 | Server; Read; Owner One; None; None; true false; 0 0),
    row!("xlen" 2 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("xpending" -3 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; None; None; false false; 0 0),
    row!("xrange" -4 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("xread" -4 [READONLY BLOCKING MOVABLEKEYS] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Keyword { word: b"streams", from: 1 }, Range { last: -1, step: 1, limit: 2 })] Specs 0 | Conditional(Condition::Block); Read; Owner One; None; Streams; false false; 0 0),
    row!("xreadgroup" -7 [WRITE BLOCKING MOVABLEKEYS] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Keyword { word: b"streams", from: 4 }, Range { last: -1, step: 1, limit: 2 })] Specs 0 | Conditional(Condition::Block); Write; Owner One; None; Streams; false false; 0 0),
    row!("xrevrange" -4 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("xsetid" -3 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("xtrim" -4 [WRITE] [REDIS_8_2 VALKEY_9_1] [key!([RW DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("zadd" -4 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("zcard" 2 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("zcount" 4 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("zdiff" -3 [READONLY MOVABLEKEYS] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Count { number: 0, first: 1, step: 1 })] Specs 0 | Server; Read; Owner One; None; None; true false; 0 0),
    row!("zdiffstore" -4 [WRITE DENYOOM MOVABLEKEYS] [REDIS_8_2 VALKEY_9_1] [key!([OW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([RO ACCESS] Index(2), Count { number: 0, first: 1, step: 1 })] Specs 0 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("zincrby" 4 [WRITE DENYOOM FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("zinter" -3 [READONLY MOVABLEKEYS] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Count { number: 0, first: 1, step: 1 })] Specs 0 | Server; Read; Owner One; None; None; true false; 0 0),
    row!("zintercard" -3 [READONLY MOVABLEKEYS] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Count { number: 0, first: 1, step: 1 })] Specs 0 | Server; Read; Owner One; None; None; true false; 0 0),
    row!("zinterstore" -4 [WRITE DENYOOM MOVABLEKEYS] [REDIS_8_2 VALKEY_9_1] [key!([OW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([RO ACCESS] Index(2), Count { number: 0, first: 1, step: 1 })] Specs 0 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("zlexcount" 4 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("zmpop" -4 [WRITE MOVABLEKEYS] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(1), Count { number: 0, first: 1, step: 1 })] Specs 0 | Server; Write; Owner One; None; First; false false; 0 0),
    row!("zmscore" -3 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("zpopmax" -2 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("zpopmin" -2 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW ACCESS DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("zrandmember" -2 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; None; None; true false; 0 0),
    row!("zrange" -4 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("zrangebylex" -4 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("zrangebyscore" -4 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("zrangestore" -5 [WRITE DENYOOM] [REDIS_8_2 VALKEY_9_1] [key!([OW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([RO ACCESS] Index(2), Range { last: 0, step: 1, limit: 0 })] Specs 0 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("zrank" -3 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("zrem" -3 [WRITE FAST] [REDIS_8_2 VALKEY_9_1] [key!([RW DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("zremrangebylex" 4 [WRITE] [REDIS_8_2 VALKEY_9_1] [key!([RW DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("zremrangebyrank" 4 [WRITE] [REDIS_8_2 VALKEY_9_1] [key!([RW DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("zremrangebyscore" 4 [WRITE] [REDIS_8_2 VALKEY_9_1] [key!([RW DELETE] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Write; Owner One; None; None; false false; 0 0),
    row!("zrevrange" -4 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("zrevrangebylex" -4 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("zrevrangebyscore" -4 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("zrevrank" -3 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("zscan" -3 [READONLY] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; None; None; false false; 0 0),
    row!("zscore" 3 [READONLY FAST] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Range { last: 0, step: 1, limit: 0 })] Specs 1 | Server; Read; Owner One; Collapse; None; true false; 0 0),
    row!("zunion" -3 [READONLY MOVABLEKEYS] [REDIS_8_2 VALKEY_9_1] [key!([RO ACCESS] Index(1), Count { number: 0, first: 1, step: 1 })] Specs 0 | Server; Read; Owner One; None; None; true false; 0 0),
    row!("zunionstore" -4 [WRITE DENYOOM MOVABLEKEYS] [REDIS_8_2 VALKEY_9_1] [key!([OW UPDATE] Index(1), Range { last: 0, step: 1, limit: 0 }), key!([RO ACCESS] Index(2), Count { number: 0, first: 1, step: 1 })] Specs 0 | Server; Write; Owner One; None; None; false false; 0 0),
];

/// An id for every command and subcommand.
#[expect(missing_docs, reason = "each is named as its command is")]
pub mod id {
    use super::super::CommandId;

    pub const ACL: CommandId = CommandId(0);
    pub const ACL_CAT: CommandId = CommandId(1);
    pub const ACL_DELUSER: CommandId = CommandId(2);
    pub const ACL_DRYRUN: CommandId = CommandId(3);
    pub const ACL_GENPASS: CommandId = CommandId(4);
    pub const ACL_GETUSER: CommandId = CommandId(5);
    pub const ACL_HELP: CommandId = CommandId(6);
    pub const ACL_LIST: CommandId = CommandId(7);
    pub const ACL_LOAD: CommandId = CommandId(8);
    pub const ACL_LOG: CommandId = CommandId(9);
    pub const ACL_SAVE: CommandId = CommandId(10);
    pub const ACL_SETUSER: CommandId = CommandId(11);
    pub const ACL_USERS: CommandId = CommandId(12);
    pub const ACL_WHOAMI: CommandId = CommandId(13);
    pub const APPEND: CommandId = CommandId(14);
    pub const ASKING: CommandId = CommandId(15);
    pub const AUTH: CommandId = CommandId(16);
    pub const BGREWRITEAOF: CommandId = CommandId(17);
    pub const BGSAVE: CommandId = CommandId(18);
    pub const BITCOUNT: CommandId = CommandId(19);
    pub const BITFIELD: CommandId = CommandId(20);
    pub const BITFIELD_RO: CommandId = CommandId(21);
    pub const BITOP: CommandId = CommandId(22);
    pub const BITPOS: CommandId = CommandId(23);
    pub const BLMOVE: CommandId = CommandId(24);
    pub const BLMPOP: CommandId = CommandId(25);
    pub const BLPOP: CommandId = CommandId(26);
    pub const BRPOP: CommandId = CommandId(27);
    pub const BRPOPLPUSH: CommandId = CommandId(28);
    pub const BZMPOP: CommandId = CommandId(29);
    pub const BZPOPMAX: CommandId = CommandId(30);
    pub const BZPOPMIN: CommandId = CommandId(31);
    pub const CLIENT: CommandId = CommandId(32);
    pub const CLIENT_CACHING: CommandId = CommandId(33);
    pub const CLIENT_CAPA: CommandId = CommandId(34);
    pub const CLIENT_GETNAME: CommandId = CommandId(35);
    pub const CLIENT_GETREDIR: CommandId = CommandId(36);
    pub const CLIENT_HELP: CommandId = CommandId(37);
    pub const CLIENT_ID: CommandId = CommandId(38);
    pub const CLIENT_IMPORT_SOURCE: CommandId = CommandId(39);
    pub const CLIENT_INFO: CommandId = CommandId(40);
    pub const CLIENT_KILL: CommandId = CommandId(41);
    pub const CLIENT_LIST: CommandId = CommandId(42);
    pub const CLIENT_NO_EVICT: CommandId = CommandId(43);
    pub const CLIENT_NO_TOUCH: CommandId = CommandId(44);
    pub const CLIENT_PAUSE: CommandId = CommandId(45);
    pub const CLIENT_REPLY: CommandId = CommandId(46);
    pub const CLIENT_SETINFO: CommandId = CommandId(47);
    pub const CLIENT_SETNAME: CommandId = CommandId(48);
    pub const CLIENT_TRACKING: CommandId = CommandId(49);
    pub const CLIENT_TRACKINGINFO: CommandId = CommandId(50);
    pub const CLIENT_UNBLOCK: CommandId = CommandId(51);
    pub const CLIENT_UNPAUSE: CommandId = CommandId(52);
    pub const CLUSTER: CommandId = CommandId(53);
    pub const CLUSTER_ADDSLOTS: CommandId = CommandId(54);
    pub const CLUSTER_ADDSLOTSRANGE: CommandId = CommandId(55);
    pub const CLUSTER_BUMPEPOCH: CommandId = CommandId(56);
    pub const CLUSTER_CANCELSLOTMIGRATIONS: CommandId = CommandId(57);
    pub const CLUSTER_COUNT_FAILURE_REPORTS: CommandId = CommandId(58);
    pub const CLUSTER_COUNTKEYSINSLOT: CommandId = CommandId(59);
    pub const CLUSTER_DELSLOTS: CommandId = CommandId(60);
    pub const CLUSTER_DELSLOTSRANGE: CommandId = CommandId(61);
    pub const CLUSTER_FAILOVER: CommandId = CommandId(62);
    pub const CLUSTER_FLUSHSLOT: CommandId = CommandId(63);
    pub const CLUSTER_FLUSHSLOTS: CommandId = CommandId(64);
    pub const CLUSTER_FORGET: CommandId = CommandId(65);
    pub const CLUSTER_GETKEYSINSLOT: CommandId = CommandId(66);
    pub const CLUSTER_GETSLOTMIGRATIONS: CommandId = CommandId(67);
    pub const CLUSTER_HELP: CommandId = CommandId(68);
    pub const CLUSTER_INFO: CommandId = CommandId(69);
    pub const CLUSTER_KEYSLOT: CommandId = CommandId(70);
    pub const CLUSTER_LINKS: CommandId = CommandId(71);
    pub const CLUSTER_MEET: CommandId = CommandId(72);
    pub const CLUSTER_MIGRATESLOTS: CommandId = CommandId(73);
    pub const CLUSTER_MYID: CommandId = CommandId(74);
    pub const CLUSTER_MYSHARDID: CommandId = CommandId(75);
    pub const CLUSTER_NODES: CommandId = CommandId(76);
    pub const CLUSTER_REPLICAS: CommandId = CommandId(77);
    pub const CLUSTER_REPLICATE: CommandId = CommandId(78);
    pub const CLUSTER_RESET: CommandId = CommandId(79);
    pub const CLUSTER_SAVECONFIG: CommandId = CommandId(80);
    pub const CLUSTER_SET_CONFIG_EPOCH: CommandId = CommandId(81);
    pub const CLUSTER_SETSLOT: CommandId = CommandId(82);
    pub const CLUSTER_SHARDS: CommandId = CommandId(83);
    pub const CLUSTER_SLAVES: CommandId = CommandId(84);
    pub const CLUSTER_SLOT_STATS: CommandId = CommandId(85);
    pub const CLUSTER_SLOTS: CommandId = CommandId(86);
    pub const CLUSTER_SYNCSLOTS: CommandId = CommandId(87);
    pub const CLUSTERSCAN: CommandId = CommandId(88);
    pub const COMMAND: CommandId = CommandId(89);
    pub const COMMAND_COUNT: CommandId = CommandId(90);
    pub const COMMAND_DOCS: CommandId = CommandId(91);
    pub const COMMAND_GETKEYS: CommandId = CommandId(92);
    pub const COMMAND_GETKEYSANDFLAGS: CommandId = CommandId(93);
    pub const COMMAND_HELP: CommandId = CommandId(94);
    pub const COMMAND_INFO: CommandId = CommandId(95);
    pub const COMMAND_LIST: CommandId = CommandId(96);
    pub const COMMANDLOG: CommandId = CommandId(97);
    pub const COMMANDLOG_GET: CommandId = CommandId(98);
    pub const COMMANDLOG_HELP: CommandId = CommandId(99);
    pub const COMMANDLOG_LEN: CommandId = CommandId(100);
    pub const COMMANDLOG_RESET: CommandId = CommandId(101);
    pub const CONFIG: CommandId = CommandId(102);
    pub const CONFIG_GET: CommandId = CommandId(103);
    pub const CONFIG_HELP: CommandId = CommandId(104);
    pub const CONFIG_RESETSTAT: CommandId = CommandId(105);
    pub const CONFIG_REWRITE: CommandId = CommandId(106);
    pub const CONFIG_SET: CommandId = CommandId(107);
    pub const COPY: CommandId = CommandId(108);
    pub const DBSIZE: CommandId = CommandId(109);
    pub const DEBUG: CommandId = CommandId(110);
    pub const DECR: CommandId = CommandId(111);
    pub const DECRBY: CommandId = CommandId(112);
    pub const DEL: CommandId = CommandId(113);
    pub const DELIFEQ: CommandId = CommandId(114);
    pub const DISCARD: CommandId = CommandId(115);
    pub const DUMP: CommandId = CommandId(116);
    pub const ECHO: CommandId = CommandId(117);
    pub const EVAL: CommandId = CommandId(118);
    pub const EVAL_RO: CommandId = CommandId(119);
    pub const EVALSHA: CommandId = CommandId(120);
    pub const EVALSHA_RO: CommandId = CommandId(121);
    pub const EXEC: CommandId = CommandId(122);
    pub const EXISTS: CommandId = CommandId(123);
    pub const EXPIRE: CommandId = CommandId(124);
    pub const EXPIREAT: CommandId = CommandId(125);
    pub const EXPIRETIME: CommandId = CommandId(126);
    pub const FAILOVER: CommandId = CommandId(127);
    pub const FCALL: CommandId = CommandId(128);
    pub const FCALL_RO: CommandId = CommandId(129);
    pub const FLUSHALL: CommandId = CommandId(130);
    pub const FLUSHDB: CommandId = CommandId(131);
    pub const FUNCTION: CommandId = CommandId(132);
    pub const FUNCTION_DELETE: CommandId = CommandId(133);
    pub const FUNCTION_DUMP: CommandId = CommandId(134);
    pub const FUNCTION_FLUSH: CommandId = CommandId(135);
    pub const FUNCTION_HELP: CommandId = CommandId(136);
    pub const FUNCTION_KILL: CommandId = CommandId(137);
    pub const FUNCTION_LIST: CommandId = CommandId(138);
    pub const FUNCTION_LOAD: CommandId = CommandId(139);
    pub const FUNCTION_RESTORE: CommandId = CommandId(140);
    pub const FUNCTION_STATS: CommandId = CommandId(141);
    pub const GEOADD: CommandId = CommandId(142);
    pub const GEODIST: CommandId = CommandId(143);
    pub const GEOHASH: CommandId = CommandId(144);
    pub const GEOPOS: CommandId = CommandId(145);
    pub const GEORADIUS: CommandId = CommandId(146);
    pub const GEORADIUS_RO: CommandId = CommandId(147);
    pub const GEORADIUSBYMEMBER: CommandId = CommandId(148);
    pub const GEORADIUSBYMEMBER_RO: CommandId = CommandId(149);
    pub const GEOSEARCH: CommandId = CommandId(150);
    pub const GEOSEARCHSTORE: CommandId = CommandId(151);
    pub const GET: CommandId = CommandId(152);
    pub const GETBIT: CommandId = CommandId(153);
    pub const GETDEL: CommandId = CommandId(154);
    pub const GETEX: CommandId = CommandId(155);
    pub const GETRANGE: CommandId = CommandId(156);
    pub const GETSET: CommandId = CommandId(157);
    pub const HDEL: CommandId = CommandId(158);
    pub const HELLO: CommandId = CommandId(159);
    pub const HEXISTS: CommandId = CommandId(160);
    pub const HEXPIRE: CommandId = CommandId(161);
    pub const HEXPIREAT: CommandId = CommandId(162);
    pub const HEXPIRETIME: CommandId = CommandId(163);
    pub const HGET: CommandId = CommandId(164);
    pub const HGETALL: CommandId = CommandId(165);
    pub const HGETDEL: CommandId = CommandId(166);
    pub const HGETEX: CommandId = CommandId(167);
    pub const HINCRBY: CommandId = CommandId(168);
    pub const HINCRBYFLOAT: CommandId = CommandId(169);
    pub const HKEYS: CommandId = CommandId(170);
    pub const HLEN: CommandId = CommandId(171);
    pub const HMGET: CommandId = CommandId(172);
    pub const HMSET: CommandId = CommandId(173);
    pub const HPERSIST: CommandId = CommandId(174);
    pub const HPEXPIRE: CommandId = CommandId(175);
    pub const HPEXPIREAT: CommandId = CommandId(176);
    pub const HPEXPIRETIME: CommandId = CommandId(177);
    pub const HPTTL: CommandId = CommandId(178);
    pub const HRANDFIELD: CommandId = CommandId(179);
    pub const HSCAN: CommandId = CommandId(180);
    pub const HSET: CommandId = CommandId(181);
    pub const HSETEX: CommandId = CommandId(182);
    pub const HSETNX: CommandId = CommandId(183);
    pub const HSTRLEN: CommandId = CommandId(184);
    pub const HTTL: CommandId = CommandId(185);
    pub const HVALS: CommandId = CommandId(186);
    pub const INCR: CommandId = CommandId(187);
    pub const INCRBY: CommandId = CommandId(188);
    pub const INCRBYFLOAT: CommandId = CommandId(189);
    pub const INFO: CommandId = CommandId(190);
    pub const KEYS: CommandId = CommandId(191);
    pub const LASTSAVE: CommandId = CommandId(192);
    pub const LATENCY: CommandId = CommandId(193);
    pub const LATENCY_DOCTOR: CommandId = CommandId(194);
    pub const LATENCY_GRAPH: CommandId = CommandId(195);
    pub const LATENCY_HELP: CommandId = CommandId(196);
    pub const LATENCY_HISTOGRAM: CommandId = CommandId(197);
    pub const LATENCY_HISTORY: CommandId = CommandId(198);
    pub const LATENCY_LATEST: CommandId = CommandId(199);
    pub const LATENCY_RESET: CommandId = CommandId(200);
    pub const LCS: CommandId = CommandId(201);
    pub const LINDEX: CommandId = CommandId(202);
    pub const LINSERT: CommandId = CommandId(203);
    pub const LLEN: CommandId = CommandId(204);
    pub const LMOVE: CommandId = CommandId(205);
    pub const LMPOP: CommandId = CommandId(206);
    pub const LOLWUT: CommandId = CommandId(207);
    pub const LPOP: CommandId = CommandId(208);
    pub const LPOS: CommandId = CommandId(209);
    pub const LPUSH: CommandId = CommandId(210);
    pub const LPUSHX: CommandId = CommandId(211);
    pub const LRANGE: CommandId = CommandId(212);
    pub const LREM: CommandId = CommandId(213);
    pub const LSET: CommandId = CommandId(214);
    pub const LTRIM: CommandId = CommandId(215);
    pub const MEMORY: CommandId = CommandId(216);
    pub const MEMORY_DOCTOR: CommandId = CommandId(217);
    pub const MEMORY_HELP: CommandId = CommandId(218);
    pub const MEMORY_MALLOC_STATS: CommandId = CommandId(219);
    pub const MEMORY_PURGE: CommandId = CommandId(220);
    pub const MEMORY_STATS: CommandId = CommandId(221);
    pub const MEMORY_USAGE: CommandId = CommandId(222);
    pub const MGET: CommandId = CommandId(223);
    pub const MIGRATE: CommandId = CommandId(224);
    pub const MODULE: CommandId = CommandId(225);
    pub const MODULE_HELP: CommandId = CommandId(226);
    pub const MODULE_LIST: CommandId = CommandId(227);
    pub const MODULE_LOAD: CommandId = CommandId(228);
    pub const MODULE_LOADEX: CommandId = CommandId(229);
    pub const MODULE_UNLOAD: CommandId = CommandId(230);
    pub const MONITOR: CommandId = CommandId(231);
    pub const MOVE: CommandId = CommandId(232);
    pub const MSET: CommandId = CommandId(233);
    pub const MSETEX: CommandId = CommandId(234);
    pub const MSETNX: CommandId = CommandId(235);
    pub const MULTI: CommandId = CommandId(236);
    pub const OBJECT: CommandId = CommandId(237);
    pub const OBJECT_ENCODING: CommandId = CommandId(238);
    pub const OBJECT_FREQ: CommandId = CommandId(239);
    pub const OBJECT_HELP: CommandId = CommandId(240);
    pub const OBJECT_IDLETIME: CommandId = CommandId(241);
    pub const OBJECT_REFCOUNT: CommandId = CommandId(242);
    pub const PERSIST: CommandId = CommandId(243);
    pub const PEXPIRE: CommandId = CommandId(244);
    pub const PEXPIREAT: CommandId = CommandId(245);
    pub const PEXPIRETIME: CommandId = CommandId(246);
    pub const PFADD: CommandId = CommandId(247);
    pub const PFCOUNT: CommandId = CommandId(248);
    pub const PFDEBUG: CommandId = CommandId(249);
    pub const PFMERGE: CommandId = CommandId(250);
    pub const PFSELFTEST: CommandId = CommandId(251);
    pub const PING: CommandId = CommandId(252);
    pub const PSETEX: CommandId = CommandId(253);
    pub const PSUBSCRIBE: CommandId = CommandId(254);
    pub const PSYNC: CommandId = CommandId(255);
    pub const PTTL: CommandId = CommandId(256);
    pub const PUBLISH: CommandId = CommandId(257);
    pub const PUBSUB: CommandId = CommandId(258);
    pub const PUBSUB_CHANNELS: CommandId = CommandId(259);
    pub const PUBSUB_HELP: CommandId = CommandId(260);
    pub const PUBSUB_NUMPAT: CommandId = CommandId(261);
    pub const PUBSUB_NUMSUB: CommandId = CommandId(262);
    pub const PUBSUB_SHARDCHANNELS: CommandId = CommandId(263);
    pub const PUBSUB_SHARDNUMSUB: CommandId = CommandId(264);
    pub const PUNSUBSCRIBE: CommandId = CommandId(265);
    pub const QUIT: CommandId = CommandId(266);
    pub const RANDOMKEY: CommandId = CommandId(267);
    pub const READONLY: CommandId = CommandId(268);
    pub const READWRITE: CommandId = CommandId(269);
    pub const RENAME: CommandId = CommandId(270);
    pub const RENAMENX: CommandId = CommandId(271);
    pub const REPLCONF: CommandId = CommandId(272);
    pub const REPLICAOF: CommandId = CommandId(273);
    pub const RESET: CommandId = CommandId(274);
    pub const RESTORE: CommandId = CommandId(275);
    pub const RESTORE_ASKING: CommandId = CommandId(276);
    pub const ROLE: CommandId = CommandId(277);
    pub const RPOP: CommandId = CommandId(278);
    pub const RPOPLPUSH: CommandId = CommandId(279);
    pub const RPUSH: CommandId = CommandId(280);
    pub const RPUSHX: CommandId = CommandId(281);
    pub const SADD: CommandId = CommandId(282);
    pub const SAVE: CommandId = CommandId(283);
    pub const SCAN: CommandId = CommandId(284);
    pub const SCARD: CommandId = CommandId(285);
    pub const SCRIPT: CommandId = CommandId(286);
    pub const SCRIPT_DEBUG: CommandId = CommandId(287);
    pub const SCRIPT_EXISTS: CommandId = CommandId(288);
    pub const SCRIPT_FLUSH: CommandId = CommandId(289);
    pub const SCRIPT_HELP: CommandId = CommandId(290);
    pub const SCRIPT_KILL: CommandId = CommandId(291);
    pub const SCRIPT_LOAD: CommandId = CommandId(292);
    pub const SCRIPT_SHOW: CommandId = CommandId(293);
    pub const SDIFF: CommandId = CommandId(294);
    pub const SDIFFSTORE: CommandId = CommandId(295);
    pub const SELECT: CommandId = CommandId(296);
    pub const SET: CommandId = CommandId(297);
    pub const SETBIT: CommandId = CommandId(298);
    pub const SETEX: CommandId = CommandId(299);
    pub const SETNX: CommandId = CommandId(300);
    pub const SETRANGE: CommandId = CommandId(301);
    pub const SHUTDOWN: CommandId = CommandId(302);
    pub const SINTER: CommandId = CommandId(303);
    pub const SINTERCARD: CommandId = CommandId(304);
    pub const SINTERSTORE: CommandId = CommandId(305);
    pub const SISMEMBER: CommandId = CommandId(306);
    pub const SLAVEOF: CommandId = CommandId(307);
    pub const SLOWLOG: CommandId = CommandId(308);
    pub const SLOWLOG_GET: CommandId = CommandId(309);
    pub const SLOWLOG_HELP: CommandId = CommandId(310);
    pub const SLOWLOG_LEN: CommandId = CommandId(311);
    pub const SLOWLOG_RESET: CommandId = CommandId(312);
    pub const SMEMBERS: CommandId = CommandId(313);
    pub const SMISMEMBER: CommandId = CommandId(314);
    pub const SMOVE: CommandId = CommandId(315);
    pub const SORT: CommandId = CommandId(316);
    pub const SORT_RO: CommandId = CommandId(317);
    pub const SPOP: CommandId = CommandId(318);
    pub const SPUBLISH: CommandId = CommandId(319);
    pub const SRANDMEMBER: CommandId = CommandId(320);
    pub const SREM: CommandId = CommandId(321);
    pub const SSCAN: CommandId = CommandId(322);
    pub const SSUBSCRIBE: CommandId = CommandId(323);
    pub const STRLEN: CommandId = CommandId(324);
    pub const SUBSCRIBE: CommandId = CommandId(325);
    pub const SUBSTR: CommandId = CommandId(326);
    pub const SUNION: CommandId = CommandId(327);
    pub const SUNIONSTORE: CommandId = CommandId(328);
    pub const SUNSUBSCRIBE: CommandId = CommandId(329);
    pub const SWAPDB: CommandId = CommandId(330);
    pub const SYNC: CommandId = CommandId(331);
    pub const TIME: CommandId = CommandId(332);
    pub const TOUCH: CommandId = CommandId(333);
    pub const TTL: CommandId = CommandId(334);
    pub const TYPE: CommandId = CommandId(335);
    pub const UNLINK: CommandId = CommandId(336);
    pub const UNSUBSCRIBE: CommandId = CommandId(337);
    pub const UNWATCH: CommandId = CommandId(338);
    pub const VADD: CommandId = CommandId(339);
    pub const VCARD: CommandId = CommandId(340);
    pub const VDIM: CommandId = CommandId(341);
    pub const VEMB: CommandId = CommandId(342);
    pub const VGETATTR: CommandId = CommandId(343);
    pub const VINFO: CommandId = CommandId(344);
    pub const VISMEMBER: CommandId = CommandId(345);
    pub const VLINKS: CommandId = CommandId(346);
    pub const VRANDMEMBER: CommandId = CommandId(347);
    pub const VREM: CommandId = CommandId(348);
    pub const VSETATTR: CommandId = CommandId(349);
    pub const VSIM: CommandId = CommandId(350);
    pub const WAIT: CommandId = CommandId(351);
    pub const WAITAOF: CommandId = CommandId(352);
    pub const WATCH: CommandId = CommandId(353);
    pub const XACK: CommandId = CommandId(354);
    pub const XACKDEL: CommandId = CommandId(355);
    pub const XADD: CommandId = CommandId(356);
    pub const XAUTOCLAIM: CommandId = CommandId(357);
    pub const XCLAIM: CommandId = CommandId(358);
    pub const XDEL: CommandId = CommandId(359);
    pub const XDELEX: CommandId = CommandId(360);
    pub const XGROUP: CommandId = CommandId(361);
    pub const XGROUP_CREATE: CommandId = CommandId(362);
    pub const XGROUP_CREATECONSUMER: CommandId = CommandId(363);
    pub const XGROUP_DELCONSUMER: CommandId = CommandId(364);
    pub const XGROUP_DESTROY: CommandId = CommandId(365);
    pub const XGROUP_HELP: CommandId = CommandId(366);
    pub const XGROUP_SETID: CommandId = CommandId(367);
    pub const XINFO: CommandId = CommandId(368);
    pub const XINFO_CONSUMERS: CommandId = CommandId(369);
    pub const XINFO_GROUPS: CommandId = CommandId(370);
    pub const XINFO_HELP: CommandId = CommandId(371);
    pub const XINFO_STREAM: CommandId = CommandId(372);
    pub const XLEN: CommandId = CommandId(373);
    pub const XPENDING: CommandId = CommandId(374);
    pub const XRANGE: CommandId = CommandId(375);
    pub const XREAD: CommandId = CommandId(376);
    pub const XREADGROUP: CommandId = CommandId(377);
    pub const XREVRANGE: CommandId = CommandId(378);
    pub const XSETID: CommandId = CommandId(379);
    pub const XTRIM: CommandId = CommandId(380);
    pub const ZADD: CommandId = CommandId(381);
    pub const ZCARD: CommandId = CommandId(382);
    pub const ZCOUNT: CommandId = CommandId(383);
    pub const ZDIFF: CommandId = CommandId(384);
    pub const ZDIFFSTORE: CommandId = CommandId(385);
    pub const ZINCRBY: CommandId = CommandId(386);
    pub const ZINTER: CommandId = CommandId(387);
    pub const ZINTERCARD: CommandId = CommandId(388);
    pub const ZINTERSTORE: CommandId = CommandId(389);
    pub const ZLEXCOUNT: CommandId = CommandId(390);
    pub const ZMPOP: CommandId = CommandId(391);
    pub const ZMSCORE: CommandId = CommandId(392);
    pub const ZPOPMAX: CommandId = CommandId(393);
    pub const ZPOPMIN: CommandId = CommandId(394);
    pub const ZRANDMEMBER: CommandId = CommandId(395);
    pub const ZRANGE: CommandId = CommandId(396);
    pub const ZRANGEBYLEX: CommandId = CommandId(397);
    pub const ZRANGEBYSCORE: CommandId = CommandId(398);
    pub const ZRANGESTORE: CommandId = CommandId(399);
    pub const ZRANK: CommandId = CommandId(400);
    pub const ZREM: CommandId = CommandId(401);
    pub const ZREMRANGEBYLEX: CommandId = CommandId(402);
    pub const ZREMRANGEBYRANK: CommandId = CommandId(403);
    pub const ZREMRANGEBYSCORE: CommandId = CommandId(404);
    pub const ZREVRANGE: CommandId = CommandId(405);
    pub const ZREVRANGEBYLEX: CommandId = CommandId(406);
    pub const ZREVRANGEBYSCORE: CommandId = CommandId(407);
    pub const ZREVRANK: CommandId = CommandId(408);
    pub const ZSCAN: CommandId = CommandId(409);
    pub const ZSCORE: CommandId = CommandId(410);
    pub const ZUNION: CommandId = CommandId(411);
    pub const ZUNIONSTORE: CommandId = CommandId(412);
}
