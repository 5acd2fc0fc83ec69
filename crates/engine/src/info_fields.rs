//! The fields that respool adds to INFO, for the reference page: name, unit, meaning.
//!
//! Counters are not here: [`Counters::TEXTS`](crate::Counters::TEXTS) has them. The test
//! `info_has_the_fields_of_the_tables` compares these tables with a real section.

/// A field of INFO.
#[derive(Clone, Copy, Debug)]
pub struct FieldText {
    /// As INFO writes it.
    pub name: &'static str,
    /// The unit of its value; empty for a word or a plain number.
    pub unit: &'static str,
    /// Its meaning.
    pub text: &'static str,
}

const fn field(name: &'static str, unit: &'static str, text: &'static str) -> FieldText {
    FieldText { name, unit, text }
}

/// Fields about the process and the worker that answers.
pub const PROCESS: &[FieldText] = &[
    field("respool_version", "", "The version of respool."),
    field("respool_process_id", "", "The id of the process."),
    field(
        "respool_tcp_port",
        "",
        "The port of the first listener that has one. 0: all listeners are sockets in the file \
         system. With several pools, the port that the client is connected to.",
    ),
    field(
        "respool_uptime_in_seconds",
        "s",
        "The time since the start of the process.",
    ),
    field(
        "respool_worker",
        "",
        "The index of the worker that has the client's session, from 0.",
    ),
    field("respool_workers", "", "The number of workers."),
    field(
        "respool_worker_utilization",
        "share",
        "The share of time in which the worker's thread runs, or is ready and waits for a \
         processor: 0 to 1. -1: not measured.",
    ),
    field(
        "respool_config_epoch",
        "",
        "The number of configurations that reloads have applied. 0: the one of the start is in \
         effect.",
    ),
    field(
        "respool_config_reload_success",
        "",
        "0: the last reload of the configuration failed, and changed nothing. 1: it succeeded, or \
         there was none.",
    ),
    field(
        "respool_config_reload_failures",
        "",
        "The number of reloads that failed.",
    ),
    field(
        "respool_config_reload_at",
        "s",
        "The time of the last reload, in seconds since 1970. 0: there was none.",
    ),
    field(
        "respool_servers",
        "",
        "The number of servers of the client's pool that the worker uses.",
    ),
    field(
        "respool_renamed_fields",
        "",
        "Old names of fields with their new names, as `old=new`. The old fields are shown until the \
         next version.",
    ),
];

/// Fields of a line `respool_server_N`.
pub const SERVER: &[FieldText] = &[
    field("address", "", "The address of the server."),
    field("pool", "", "The pool that the server belongs to."),
    field(
        "role",
        "",
        "`primary`, `replica` or `sentinel`. `seed`: a configured node that no Cluster has named.",
    ),
    field(
        "state",
        "",
        "`up`: a link to the server is in use. `needs-login`: the server answers and asks \
         respool for a password, so clients must log in themselves. `connecting`: an attempt is \
         under way. `backoff`: the last attempt failed, and the next one follows after the \
         back-off. `down`: no session has needed the server. `unknown`: no Sentinel has named its \
         address. `gone`: no node names the server any more.",
    ),
    field(
        "links",
        "",
        "The number of links to the server, in any state, without those that only check logins. Each \
         has a line `respool_link_N`.",
    ),
    field(
        "failures",
        "",
        "Consecutive attempts to connect or to shake hands that failed, since the server last \
         answered.",
    ),
    field("failures_total", "", "All attempts that failed."),
    field("lost_total", "", "All connections that were lost."),
    field(
        "last_failure_ms_ago",
        "ms",
        "The time since the last failed attempt or lost connection. -1: never.",
    ),
    field(
        "login",
        "",
        "Whether the server accepts the configured login. `accepted`. `withdrawn`: the server \
         accepted it before and refuses it now, so new sessions must authenticate. `unknown`: the \
         server has never accepted it.",
    ),
    field(
        "wait_us",
        "us",
        "The longest time that the next batch of a busy link to the server may wait.",
    ),
    field(
        "wait_reason",
        "",
        "The reason for `wait_us`. `server-busy`, `worker-busy`: the CPU of the server's main thread \
         or of the worker is nearly used up. `links-busy`: the server does not report its CPU, and \
         its links owe replies nearly always. `cpu-free`: server and worker have CPU to spare. \
         `few-requests`: too few requests arrive. `flush-rule`: the flush rule is not `balanced`.",
    ),
    field(
        "utilization",
        "share",
        "The share of a core that the server's main thread used between the last two replies to \
         INFO cpu. -1: respool did not ask, or the server does not report it.",
    ),
    field(
        "occupancy",
        "share",
        "The share of time in which a link to the server owes replies.",
    ),
    field(
        "slots",
        "",
        "The number of slots that the node owns. Only in a Cluster.",
    ),
    field(
        "zone",
        "",
        "The zone of the server. Only where reads go to replicas, as the next two fields.",
    ),
    field(
        "latency_us",
        "us",
        "The smoothed round trip to the server. -1: it has not answered yet.",
    ),
    field(
        "read_shares",
        "",
        "How many of the 64 shares of each owner's reads the server gets. 0: no reads go there now.",
    ),
];

/// Fields of a line `respool_link_N`.
pub const LINK: &[FieldText] = &[
    field("server", "", "The address of the server."),
    field("pool", "", "The pool that the server belongs to."),
    field("db", "", "The database."),
    field("resp", "", "The version of the protocol: 2 or 3."),
    field(
        "role",
        "",
        "`shared`: all sessions use the link. `pinned`: one session has it. `streaming`: one large \
         request travels on it. `draining`: a session takes its replies too slowly, so the link \
         accepts no new requests; or it has the requests that were queued behind that session. \
         `hub`: it has the subscriptions, and the requests of subscribers that publish. `tracking-target`: \
         it stands for a session that CLIENT TRACKING redirects to. `sentinel`: its server is a \
         Sentinel. `login-probe`: respool tries logins on it and checks the configured login. `emergency`: \
         it is for commands that must not wait for a limit, such as SCRIPT KILL. `idle`: it waits \
         for the next session or large request that needs a link of its own.",
    ),
    field(
        "state",
        "",
        "`up`: the link is in use. `connecting`: the connection is not established. `handshake`: the \
         server has not answered the handshake. `connecting-again`: the last attempt failed, the next one \
         follows soon, and requests wait. `backoff`: the last attempt failed, the next one follows \
         after the back-off, and requests fail. `down`: no session has needed the link.",
    ),
    field(
        "in_flight",
        "",
        "The number of requests that are sent and not answered.",
    ),
    field(
        "sessions",
        "",
        "The number of sessions whose next requests use the link.",
    ),
];

/// Fields of a line `serverN` in the section `Servers`, which respool makes of the replies of all
/// servers.
pub const SERVERS_SECTION: &[FieldText] = &[
    field("address", "", "The address of the server."),
    field("role", "", "`master` or `slave`, as the server says."),
    field(
        "link",
        "",
        "Always `up`: each server of the list has answered.",
    ),
    field("used_memory", "bytes", "The memory of the server."),
    field("connected_clients", "", "The connections of the server."),
    field(
        "ops_per_sec",
        "1/s",
        "The commands that the server executes.",
    ),
    field("keys", "", "The number of keys in all databases."),
];

/// Old and new names of fields. The old fields stay in INFO until the next version.
pub const RENAMED: &[(&str, &str)] = &[
    ("respool_asked_again", "respool_joined_requests_resent"),
    ("respool_captured_links", "respool_links_drained"),
    ("respool_collapsed", "respool_reads_collapsed"),
    ("respool_gets_left_alone", "respool_get_fusing_stops"),
    ("respool_link_downs", "respool_links_lost"),
    ("respool_link_ups", "respool_links_connected"),
    ("respool_pins", "respool_dedicated_links_given"),
    ("respool_polls", "respool_blocking_polls"),
    ("respool_reads_left_alone", "respool_collapsing_stops"),
    ("respool_refused", "respool_commands_refused"),
    ("respool_refused_for_now", "respool_requests_deferred"),
    ("respool_reply_room_waits", "respool_output_limit_waits"),
    (
        "respool_requests_answered_here",
        "respool_requests_answered_locally",
    ),
    ("respool_scripts_sent_along", "respool_scripts_reloaded"),
    ("respool_servers_away", "respool_servers_down"),
    ("respool_sets_left_alone", "respool_set_fusing_stops"),
    ("respool_slots_left_alone", "respool_slot_fusing_stops"),
    ("respool_takeovers", "respool_silent_links_replaced"),
    ("respool_timeouts", "respool_requests_timed_out"),
    ("riders", "sessions"),
    ("seats", "read_shares"),
    ("waits_for", "wait_reason"),
];
