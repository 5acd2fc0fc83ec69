//! Options for limits.

use respool_engine::limits::WORKER_MEMORY_BYTES_MIN;
use respool_engine::settings::WhenFull;

use super::number::{DAY_MS, NumberField, NumberKind, Unit, number};
use super::{AtReload, OPTION, Opt, OptionKind, Topic};

pub(super) const SESSIONS_MAX: Opt = Opt {
    name: "sessions-max",
    topic: Topic::Limits,
    kind: number(Unit::Count, 1, 10_000_000, |values| {
        &mut values.limits.sessions_max
    }),
    value: "COUNT",
    brief: "Sessions of the whole process",
    more: "At the limit, respool answers a new client with an error and closes it, as Redis does. \
           At its start, respool raises its limit of open files as far as this needs. If it may \
           not, it warns and lowers the number of sessions to the limit. A reload with a lower \
           number closes no session: new clients are refused until fewer are left.",
    example: "50000",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const SESSION_PIPELINE_MAX: Opt = Opt {
    name: "session-pipeline-max",
    topic: Topic::Limits,
    kind: number(Unit::Count, 1, 1_000_000, |values| {
        &mut values.limits.session_pipeline_max
    }),
    value: "COUNT",
    brief: "Requests of one session without a reply yet",
    more: "At the limit, respool does not read the session until replies have come.",
    example: "1000",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const SESSION_OUTPUT_SOFT_BYTES: Opt = Opt {
    name: "session-output-soft-bytes",
    topic: Topic::Limits,
    kind: number(Unit::Bytes, 16 << 10, u32::MAX as u64, |values| {
        &mut values.limits.session_output_soft_bytes
    }),
    value: "SIZE",
    brief: "Unread reply bytes at which a session's requests wait",
    more: "At the limit, respool does not read the session, and a link that is bringing it more \
           replies is no longer shared with other sessions.",
    example: "4MiB",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const SESSION_OUTPUT_HARD_BYTES: Opt = Opt {
    name: "session-output-hard-bytes",
    topic: Topic::Limits,
    kind: number(Unit::Bytes, 64 << 10, u32::MAX as u64, |values| {
        &mut values.limits.session_output_hard_bytes
    }),
    value: "SIZE",
    brief: "Unread reply bytes at which a session's replies wait",
    more: "At the limit, respool does not read the link that brings more replies either, for as \
           long as --session-stall-ms and --head-of-line-stall-ms allow. Then it closes the \
           session. Replies that come before their turn have the same limit, and count apart. A \
           reply that is merged from several servers' replies may have an eighth of \
           --worker-memory-bytes-max. Where a pool has several servers, sessions may wait for \
           each other's replies on shared links. Such a session cannot be paused, and is closed \
           at the limit at once. A client that asks for many large values in one pipeline there \
           needs a larger limit.",
    example: "64MiB",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const SESSION_INPUT_BYTES_MAX: Opt = Opt {
    name: "session-input-bytes-max",
    topic: Topic::Limits,
    kind: number(Unit::Bytes, 64 << 10, u32::MAX as u64, |values| {
        &mut values.limits.session_input_bytes_max
    }),
    value: "SIZE",
    brief: "Bytes of requests held for a client that reads no replies",
    more: "Many libraries write a whole pipeline before they read. At the limit, a client that \
           reads nothing for `session-stall-ms` is closed.",
    example: "128MiB",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const SESSION_STALL_MS: Opt = Opt {
    name: "session-stall-ms",
    topic: Topic::Limits,
    kind: number(Unit::Milliseconds, 1, DAY_MS, |values| {
        &mut values.limits.session_stall_ms
    }),
    value: "TIME",
    brief: "How long a client at the hard output limit may read nothing",
    more: "The hard output limit is `session-output-hard-bytes`. After this time, respool closes \
           the session.",
    example: "30s",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const HEAD_OF_LINE_STALL_MS: Opt = Opt {
    name: "head-of-line-stall-ms",
    topic: Topic::Limits,
    kind: number(Unit::Milliseconds, 1, DAY_MS, |values| {
        &mut values.limits.head_of_line_stall_ms
    }),
    value: "TIME",
    brief: "How long clients at the hard output limit may delay others",
    more: "The hard output limit is `session-output-hard-bytes`. The time counts while requests \
           of other sessions wait behind a session at its hard limit. It is summed over all such \
           sessions and all links of one kind (server, database, protocol, user). When the sum \
           reaches this time, respool closes the session that holds a link up. A fiftieth of the \
           time that passes is taken off the sum. A session that held a link up shares links only \
           with others like it for a minute.",
    example: "200",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const REQUEST_HELD_BYTES_MAX: Opt = Opt {
    name: "request-held-bytes-max",
    topic: Topic::Limits,
    // Redis itself buffers up to 64 KiB of a line before it refuses it.
    kind: number(Unit::Bytes, 64 << 10, 512 << 20, |values| {
        &mut values.limits.request_held_bytes_max
    }),
    value: "SIZE",
    brief: "Bytes of an incomplete request that respool holds",
    more: "A larger request is not held whole: it is streamed to the server, on a link of its own. \
           These are held whole, within `worker-memory-bytes-max`: a request for several servers, \
           which is divided; one whose server is not known before its last key; WATCH, SUBSCRIBE \
           and BLPOP with thousands of names. respool reads as much ahead of a client that waits \
           (in BLPOP, in CLIENT PAUSE), to notice that it leaves.",
    example: "1MiB",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const STREAMING_LINKS_MAX: Opt = Opt {
    name: "streaming-links-max",
    topic: Topic::Limits,
    kind: number(Unit::Count, 1, 10_000, |values| {
        &mut values.limits.streaming_links_max
    }),
    value: "COUNT",
    brief: "Links that carry one large request each",
    more: "At the limit, the next large request waits, until `request-timeout-ms` at the most, \
           and then fails with NOTSENT. While one waits, respool closes the slowest client that \
           sends its large request, or reads the reply to it, at less than 64 KiB a second. After \
           5 s (half of `request-timeout-ms`, if that is less), it also closes the slowest at \
           less than 4 MiB a second. Where a pool has several servers, SCRIPT KILL, FUNCTION KILL \
           and FUNCTION STATS need one to each of them, and at the limit have two links more to \
           each server.",
    example: "4",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const LINKS_MAX: Opt = Opt {
    name: "links-max",
    topic: Topic::Limits,
    kind: number(Unit::Count, 2, 100_000, |values| {
        &mut values.limits.links_max
    }),
    value: "COUNT",
    brief: "Links of one worker to all servers, except pinned ones",
    more: "At the limit, the link that was idle longest is closed for a new one, and its sessions \
           get another with their next request. If no link is idle, a request that needs one more \
           waits, and fails with NOTSENT after `request-timeout-ms`. `INFO respool` counts both. \
           Each server has one for each version of the protocol, each database and each user that \
           clients log in as: twenty users in both versions before three servers need 120. In \
           front of a Cluster with many nodes, the limit is at least four for each node. One link \
           more to each server carries scripts that may be slow, and two more may replace links \
           that wait for a script.",
    example: "512",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const PINNED_LINKS_MAX: Opt = Opt {
    name: "pinned-links-max",
    topic: Topic::Limits,
    kind: number(Unit::Count, 1, 100_000, |values| {
        &mut values.limits.pinned_links_max
    }),
    value: "COUNT",
    brief: "Links of one worker that serve one session each",
    more: "A session has such a link while it waits in a blocking command, from WATCH to EXEC, for \
           a transaction with SELECT, HELLO or AUTH in it, and while CLIENT TRACKING, CLIENT \
           NO-TOUCH or MONITOR is on. One more stands for each client that a REDIRECT names. Where \
           a pool has several servers, a session that tracks has one to each server that it sends \
           requests to. At the limit, blocking commands are executed without waiting, ten times a \
           second, until one has a result or its time is over. XREAD BLOCK behind `$` and all \
           other requests wait for a link.",
    example: "4096",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const PINNED_LINKS_FULL: Opt = Opt {
    name: "pinned-links-full",
    topic: Topic::Limits,
    kind: OptionKind::Text {
        set: |values, text| {
            values.pinned_links_full = match text {
                "wait" => WhenFull::Wait,
                "refuse" => WhenFull::Refuse,
                _ => return Err("must be `wait` or `refuse`".into()),
            };
            Ok(())
        },
        get: |values| {
            Some(match values.pinned_links_full {
                WhenFull::Wait => "wait".into(),
                WhenFull::Refuse => "refuse".into(),
            })
        },
        or_number: false,
    },
    value: "wait|refuse",
    brief: "The fate of a request that needs a pinned link at the limit",
    more: "With `wait`, the request waits until another session gives its link back, until its own \
           time is over or until `request-timeout-ms`. Then it fails with NOTSENT: it was not sent \
           to a server. While a request waits, a session that has held a link for 3 s by WATCH \
           alone loses it, and its EXEC answers nil. SCRIPT KILL, FUNCTION KILL and FUNCTION STATS \
           have two links more to each server. With `refuse`, the request fails at once.",
    example: "refuse",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const TRANSACTION_BYTES_MAX: Opt = Opt {
    name: "transaction-bytes-max",
    topic: Topic::Limits,
    kind: number(Unit::Bytes, 1 << 10, 1 << 30, |values| {
        &mut values.limits.transaction_bytes_max
    }),
    value: "BYTES",
    brief: "Bytes that a session may queue between MULTI and EXEC",
    more: "At the limit, respool refuses the request and the EXEC behind it.",
    example: "256MiB",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const SESSION_SUBSCRIPTIONS_MAX: Opt = Opt {
    name: "session-subscriptions-max",
    topic: Topic::Limits,
    kind: number(Unit::Count, 1, 16 << 20, |values| {
        &mut values.limits.session_subscriptions_max
    }),
    value: "COUNT",
    brief: "Channels and patterns that one client may subscribe to",
    more: "respool refuses a subscription beyond the limit.",
    example: "1000",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const WORKER_SUBSCRIPTIONS_MAX: Opt = Opt {
    name: "worker-subscriptions-max",
    topic: Topic::Limits,
    kind: number(Unit::Count, 1, 256 << 20, |values| {
        &mut values.limits.worker_subscriptions_max
    }),
    value: "COUNT",
    brief: "Channels and patterns that a worker's clients may subscribe to",
    more: "The subscriptions of each client count, although respool subscribes to a channel once \
           for all of them. respool refuses a subscription beyond the limit.",
    example: "100000",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const LINK_UNANSWERED_REQUESTS_MAX: Opt = Opt {
    name: "link-unanswered-requests-max",
    topic: Topic::Limits,
    kind: number(Unit::Count, 1, 16 << 20, |values| {
        &mut values.limits.link_unanswered_requests_max
    }),
    value: "COUNT",
    brief: "Requests on one link without a reply yet",
    more: "At the limit, the sessions that would add more wait.",
    example: "10000",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const LINK_UNANSWERED_BYTES_MAX: Opt = Opt {
    name: "link-unanswered-bytes-max",
    topic: Topic::Limits,
    kind: number(
        Unit::Bytes,
        respool_engine::limits::JOINED_BATCH_BYTES_MAX as u64,
        u32::MAX as u64,
        |values| &mut values.limits.link_unanswered_bytes_max,
    ),
    value: "SIZE",
    brief: "Bytes of requests on one link without a reply yet",
    more: "respool keeps them until the reply comes. At the limit, the sessions that would add \
           more wait. The limit is at most a 64th of --worker-memory-bytes-max.",
    example: "16MiB",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const SERVER_OUTPUT_LIMITS: Opt = Opt {
    name: "server-output-limits",
    topic: Topic::Limits,
    kind: OptionKind::Switch(|values| &mut values.asks_output_limits),
    brief: "Respect the limits of a server on the output of its clients",
    more: "A server closes a connection that it owes more than its client-output-buffer-limit and \
           maxmemory-clients allow, and all clients of a link would lose their requests with it. \
           So a request waits if the replies on its link might exceed half of the limit. respool \
           reads the limits with CONFIG GET and its own login when a link connects. A server that \
           refuses CONFIG GET notes that in its ACL LOG, and is not asked again for a minute. The \
           log says so once for each server. The same holds for a server that closes the \
           connection instead of answering. With --server-output-limits=false, respool does not \
           ask, and requests do not wait.",
    example: "false",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const WORKER_MEMORY_BYTES_MAX: Opt = Opt {
    name: "worker-memory-bytes-max",
    topic: Topic::Limits,
    kind: OptionKind::Number(NumberKind {
        unit: Unit::Bytes,
        min: WORKER_MEMORY_BYTES_MIN,
        max: 1 << 40,
        zero: None,
        field: NumberField::U64(|values| &mut values.limits.worker_memory_bytes_max),
    }),
    value: "SIZE",
    brief: "Bytes of memory that one worker holds for its sessions",
    more: "At seven eighths of the limit, respool closes clients that have not authenticated, \
           then those whose requests have been incomplete for long; it does not read the session \
           with the most unread replies. At the limit, it closes that session.",
    example: "512MiB",
    at_reload: AtReload::Applies,
    ..OPTION
};
