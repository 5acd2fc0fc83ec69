//! Options for deadlines, pauses and outages.

use respool_engine::settings::{LostSubscriptions, ServerDownError};

use super::number::{DAY_MS, Unit, number, number_or_zero};
use super::{AtReload, OPTION, Opt, OptionKind, Topic};

/// The longest deadline of a request: 8 hours. The engine's times of requests wrap after 9.5 hours.
const REQUEST_MS_MAX: u64 = 8 * 60 * 60 * 1_000;

pub(super) const REQUEST_TIMEOUT_MS: Opt = Opt {
    name: "request-timeout-ms",
    topic: Topic::Deadlines,
    kind: number_or_zero(
        Unit::Milliseconds,
        (1, REQUEST_MS_MAX),
        "no deadline",
        |values| &mut values.timeouts.request_ms,
    ),
    value: "TIME",
    brief: "The longest time from reading a request to its reply",
    more: "After this time, the client gets an error that says whether the request was sent to \
           the server. A later reply is dropped; the link that it comes on lives on. All waits \
           before the request is sent count: for a link, for the handshake of the link, for an \
           answer about rights.",
    example: "2s",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const CONNECT_TIMEOUT_MS: Opt = Opt {
    name: "connect-timeout-ms",
    topic: Topic::Deadlines,
    kind: number(Unit::Milliseconds, 1, DAY_MS, |values| {
        &mut values.timeouts.connect_ms
    }),
    value: "TIME",
    brief: "The longest time to connect to a server, with the handshake",
    more: "After this time, the attempt fails. The next one follows after a pause: see \
           `reconnect-min-ms`.",
    example: "500",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const LINK_STALL_MS: Opt = Opt {
    name: "link-stall-ms",
    topic: Topic::Deadlines,
    kind: number(Unit::Milliseconds, 1, DAY_MS, |values| {
        &mut values.timeouts.link_stall_ms
    }),
    value: "TIME",
    brief: "How long a link with unanswered requests may receive nothing",
    more: "After this time, respool closes the link and opens a new one. Clients that wait for \
           replies on it get an error: the outcome of their requests is unknown. A link that a \
           script or a pause of the server holds up stays while the server answers on another \
           link, up to ten times as long. Keep the value above the duration of the longest other \
           command that the server runs.",
    example: "60s",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const RECONNECT_MIN_MS: Opt = Opt {
    name: "reconnect-min-ms",
    topic: Topic::Deadlines,
    kind: number(Unit::Milliseconds, 1, DAY_MS, |values| {
        &mut values.timeouts.reconnect_min_ms
    }),
    value: "TIME",
    brief: "The first pause between two attempts to connect",
    more: "It doubles from attempt to attempt, with jitter, and starts anew after a connection \
           that lasted a second. A connection that is lost sooner counts as a failed attempt.",
    example: "10",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const RECONNECT_MAX_MS: Opt = Opt {
    name: "reconnect-max-ms",
    topic: Topic::Deadlines,
    kind: number(Unit::Milliseconds, 1, DAY_MS, |values| {
        &mut values.timeouts.reconnect_max_ms
    }),
    value: "TIME",
    brief: "The longest pause between two attempts to connect",
    more: "After `outage-hold-ms` requests for a server that stays away fail at once. It is tried \
           again after this time at the latest.",
    example: "1s",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const OUTAGE_HOLD_MS: Opt = Opt {
    name: "outage-hold-ms",
    topic: Topic::Deadlines,
    kind: number_or_zero(Unit::Milliseconds, (1, DAY_MS), "not at all", |values| {
        &mut values.timeouts.outage_hold_ms
    }),
    value: "TIME",
    brief: "How long requests wait for a server, counted from its loss",
    more: "A restart of the server then costs time instead of errors. Only requests that were not \
           sent wait, and reads that may be sent again. When the time is over, the waiting \
           requests fail, and until the server is back, requests fail at once. A request waits no \
           longer than `request-timeout-ms`. A failover of a Cluster or by Sentinels costs no \
           errors either if it takes less: a Cluster needs its `cluster-node-timeout` and some two \
           seconds, Sentinels need `down-after-milliseconds` and about one.",
    example: "500",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const SERVER_DOWN_ERROR: Opt = Opt {
    name: "server-down-error",
    topic: Topic::Deadlines,
    kind: OptionKind::Text {
        set: |values, text| {
            values.server_down_error = match text {
                "loading" => ServerDownError::Loading,
                "tryagain" => ServerDownError::TryAgain,
                "notsent" => ServerDownError::NotSent,
                _ => return Err("must be `loading`, `tryagain` or `notsent`".into()),
            };
            Ok(())
        },
        get: |values| {
            Some(match values.server_down_error {
                ServerDownError::Loading => "loading".into(),
                ServerDownError::TryAgain => "tryagain".into(),
                ServerDownError::NotSent => "notsent".into(),
            })
        },
        or_number: false,
    },
    value: "loading|tryagain|notsent",
    brief: "The code of errors for requests whose server is unreachable",
    more: "Such a request was not executed. Plain clients of redis-py, go-redis and Redisson try \
           again after LOADING, clients of a Cluster after TRYAGAIN: see retries.md. A request in \
           a pipeline gets NOTSENT in any case, because libraries repeat the whole pipeline for \
           the others.",
    example: "tryagain",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const LOST_SUBSCRIPTIONS: Opt = Opt {
    name: "lost-subscriptions",
    topic: Topic::Deadlines,
    kind: OptionKind::Text {
        set: |values, text| {
            values.lost_subscriptions = match text {
                "close" => LostSubscriptions::Close,
                "keep" => LostSubscriptions::Keep,
                _ => return Err("must be `close` or `keep`".into()),
            };
            Ok(())
        },
        get: |values| {
            Some(match values.lost_subscriptions {
                LostSubscriptions::Close => "close".into(),
                LostSubscriptions::Keep => "keep".into(),
            })
        },
        or_number: false,
    },
    value: "close|keep",
    brief: "The fate of subscribers when their link to a server is lost",
    more: "With `close`, respool closes their connections, as the server would close them: a \
           client learns that it may have missed messages, and subscribes again. With `keep`, \
           respool subscribes again, and the client does not learn of it. The same holds if a \
           reload gives the pool other servers.",
    example: "keep",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const LOGIN_CHECK_MS: Opt = Opt {
    name: "login-check-ms",
    topic: Topic::Deadlines,
    kind: number_or_zero(Unit::Milliseconds, (50, DAY_MS), "never", |values| {
        &mut values.timeouts.login_check_ms
    }),
    value: "TIME",
    brief: "How often respool checks that servers still accept its login",
    more: "A server keeps the connections that it has accepted, even if it requires a password \
           from then on, has a new one, or has disabled the user. Once respool finds out, new \
           sessions must authenticate. Older sessions keep their links, as they would keep their \
           connections. Each worker checks on a connection of its own, while it has sessions or \
           knows that the login is refused, and not if `password` or `user` is set.",
    example: "200",
    at_reload: AtReload::Applies,
    ..OPTION
};

pub(super) const SESSION_IDLE_MS: Opt = Opt {
    name: "session-idle-ms",
    topic: Topic::Deadlines,
    kind: number_or_zero(Unit::Milliseconds, (1, 30 * DAY_MS), "for ever", |values| {
        &mut values.timeouts.session_idle_ms
    }),
    value: "TIME",
    brief: "How long a session may send no request before it is closed",
    more: "A session with an incomplete request is closed, too, once it sends nothing for as long.",
    example: "1h",
    at_reload: AtReload::Applies,
    of_program: true,
    ..OPTION
};

pub(super) const AUTHENTICATE_TIMEOUT_MS: Opt = Opt {
    name: "authenticate-timeout-ms",
    topic: Topic::Deadlines,
    kind: number_or_zero(Unit::Milliseconds, (1, DAY_MS), "for ever", |values| {
        &mut values.timeouts.authenticate_ms
    }),
    value: "TIME",
    brief: "How long a client that must authenticate may take to do so",
    more: "Then respool closes it. A client must authenticate if there are users, or if the server \
           requires a password. respool looks at the time at least once a second.",
    example: "10s",
    at_reload: AtReload::Applies,
    of_program: true,
    ..OPTION
};

pub(super) const DRAIN_TIMEOUT_MS: Opt = Opt {
    name: "drain-timeout-ms",
    topic: Topic::Deadlines,
    kind: number_or_zero(Unit::Milliseconds, (1, DAY_MS), "cut at once", |values| {
        &mut values.drain_timeout_ms
    }),
    value: "TIME",
    brief: "How long a stop waits for the replies to requests that arrived",
    more: "After SIGTERM or SIGINT, respool still answers the requests that have arrived. At the \
           timeout, it closes the sessions that are left, and the exit code is 1. A supervisor \
           must wait longer than this before it kills respool. If a reload ends a pool, sessions \
           with state at its servers are closed after this time, too.",
    example: "30s",
    at_reload: AtReload::Applies,
    of_program: true,
    ..OPTION
};
