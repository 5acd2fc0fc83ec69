//! The table of metrics: it drives `/metrics`, the reference page, and the test that no field of
//! INFO is without a metric or a reason.
//!
//! A counter of the engine is a row with [`MetricSource::Counter`], or a label's value in one with
//! [`MetricSource::Counters`]. Its help is the counter's own text.

use respool_config::passwords::RenewalFailures;
use respool_engine::{CommandTimes, Counters, LatencyHistogram, ReloadReport};

use super::process::ProcessFigures;
use super::snapshot::{ServerTotals, WorkerFigures};

/// Reads one of the counts of [`RenewalFailures`].
type FailureCount = fn(&RenewalFailures) -> u64;

/// A family of metrics.
pub(crate) struct MetricFamily {
    /// The name without unit and without `_total` or `_info`.
    pub(crate) name: &'static str,
    /// The type.
    pub(crate) kind: MetricKind,
    /// The base unit, which is part of the name; empty: none.
    pub(crate) unit: &'static str,
    /// The help; empty: that of the counter.
    pub(crate) help: &'static str,
    /// The fields of INFO with the same fact; those of counters are not repeated here.
    pub(crate) info: &'static [&'static str],
    /// The origin of the values.
    pub(crate) source: MetricSource,
}

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    /// It only grows.
    Counter,
    /// It may fall.
    Gauge,
    /// Counts by size.
    Histogram,
    /// Facts as labels, with the value 1.
    Info,
}

impl MetricKind {
    /// The word for it in the text formats.
    pub(crate) fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
            MetricKind::Info => "info",
        }
    }
}

/// The origin of a family's values.
pub(crate) enum MetricSource {
    /// One counter of the engine, summed over all workers.
    Counter(&'static str),
    /// Several counters, each under a value of the label.
    Counters {
        /// The label's name.
        label: &'static str,
        /// The label's values with their counters.
        of: &'static [(&'static str, &'static str)],
    },
    /// The version, as a label.
    Build,
    /// A figure of the process.
    Process(fn(&ProcessFigures) -> Option<f64>),
    /// A figure of the reloads of the configuration.
    Reload(fn(&ReloadReport) -> Option<f64>),
    /// The expiry of each certificate.
    Certificates,
    /// Failures to renew passwords or certificates, each kind under a value of the label.
    RenewalFailures {
        /// The label's name.
        label: &'static str,
        /// The label's values with their counts.
        of: &'static [(&'static str, FailureCount)],
    },
    /// The number of workers.
    Workers,
    /// A figure of each worker.
    Worker(fn(&WorkerFigures) -> Option<f64>),
    /// Times of the requests of each command.
    Command(fn(&CommandTimes) -> LatencyHistogram),
    /// The error replies, by pool, command and outcome.
    Errors,
    /// Whether each pool is ready.
    PoolReady,
    /// The servers of each pool that are down, by role.
    PoolServersDown,
    /// A figure of each server, over all workers.
    Server(fn(&ServerTotals) -> Option<f64>),
    /// The role and the state of each server, as labels.
    ServerState,
    /// The CPU time of each server, by mode.
    ServerCpu,
}

impl MetricSource {
    /// The labels, in their order.
    pub(crate) fn labels(&self) -> Vec<&'static str> {
        match self {
            MetricSource::Counter(_)
            | MetricSource::Process(_)
            | MetricSource::Reload(_)
            | MetricSource::Workers => vec![],
            MetricSource::Counters { label, .. } | MetricSource::RenewalFailures { label, .. } => {
                vec![*label]
            }
            MetricSource::Build => vec!["version"],
            MetricSource::Certificates => vec!["option", "file"],
            MetricSource::Worker(_) => vec!["worker"],
            MetricSource::Command(_) => vec!["command"],
            MetricSource::Errors => vec!["pool", "command", "outcome"],
            MetricSource::PoolReady => vec!["pool"],
            MetricSource::PoolServersDown => vec!["pool", "role"],
            MetricSource::Server(_) => vec!["pool", "server"],
            MetricSource::ServerState => vec!["pool", "server", "role", "state"],
            MetricSource::ServerCpu => vec!["pool", "server", "mode"],
        }
    }

    /// The counters of the engine that it shows, each with its label if there is one.
    pub(crate) fn labelled_counters(
        &self,
    ) -> Vec<(Option<(&'static str, &'static str)>, &'static str)> {
        match self {
            MetricSource::Counter(name) => vec![(None, *name)],
            MetricSource::Counters { label, of } => of
                .iter()
                .map(|(value, name)| (Some((*label, *value)), *name))
                .collect(),
            _ => vec![],
        }
    }
}

impl MetricFamily {
    /// The name as a query writes it. Histograms have it with `_bucket`, `_sum` and `_count`.
    pub(crate) fn full_name(&self) -> String {
        let mut name = self.name.to_owned();
        if !self.unit.is_empty() {
            name.push('_');
            name.push_str(self.unit);
        }
        match self.kind {
            MetricKind::Counter => name.push_str("_total"),
            MetricKind::Info => name.push_str("_info"),
            MetricKind::Gauge | MetricKind::Histogram => {}
        }
        name
    }

    /// The help: the family's own, or that of its counter.
    pub(crate) fn text(&self) -> &'static str {
        let counter = match self.source {
            MetricSource::Counter(name) if self.help.is_empty() => name,
            _ => return self.help,
        };
        let texts = Counters::TEXTS.iter();
        let text = texts.filter(|(name, _)| *name == counter);
        text.map(|(_, text)| text.trim()).next().unwrap_or_default()
    }
}

/// A counter of the engine that is a family of its own.
const fn counter(name: &'static str, of: &'static str) -> MetricFamily {
    MetricFamily {
        name,
        kind: MetricKind::Counter,
        unit: "",
        help: "",
        info: &[],
        source: MetricSource::Counter(of),
    }
}

/// A counter of bytes.
const fn bytes(name: &'static str, of: &'static str) -> MetricFamily {
    MetricFamily {
        unit: "bytes",
        ..counter(name, of)
    }
}

/// A counter of the engine that is a gauge.
const fn gauge(name: &'static str, of: &'static str) -> MetricFamily {
    MetricFamily {
        kind: MetricKind::Gauge,
        ..counter(name, of)
    }
}

/// Several counters of the engine under one name.
const fn by(
    name: &'static str,
    help: &'static str,
    label: &'static str,
    of: &'static [(&'static str, &'static str)],
) -> MetricFamily {
    MetricFamily {
        help,
        source: MetricSource::Counters { label, of },
        ..counter(name, "")
    }
}

/// A figure of the process.
const fn process(
    name: &'static str,
    (kind, unit): (MetricKind, &'static str),
    help: &'static str,
    figure: fn(&ProcessFigures) -> Option<f64>,
) -> MetricFamily {
    MetricFamily {
        kind,
        unit,
        help,
        source: MetricSource::Process(figure),
        ..counter(name, "")
    }
}

/// A figure of the reloads of the configuration.
const fn reload(
    name: &'static str,
    (kind, unit): (MetricKind, &'static str),
    help: &'static str,
    info: &'static [&'static str],
    figure: fn(&ReloadReport) -> Option<f64>,
) -> MetricFamily {
    MetricFamily {
        kind,
        unit,
        help,
        info,
        source: MetricSource::Reload(figure),
        ..counter(name, "")
    }
}

/// A figure of each worker.
const fn worker(
    name: &'static str,
    (kind, unit): (MetricKind, &'static str),
    help: &'static str,
    info: &'static [&'static str],
    figure: fn(&WorkerFigures) -> Option<f64>,
) -> MetricFamily {
    MetricFamily {
        kind,
        unit,
        help,
        info,
        source: MetricSource::Worker(figure),
        ..counter(name, "")
    }
}

/// Times of the requests of each command.
const fn times(
    name: &'static str,
    help: &'static str,
    of: fn(&CommandTimes) -> LatencyHistogram,
) -> MetricFamily {
    MetricFamily {
        kind: MetricKind::Histogram,
        unit: "seconds",
        help,
        source: MetricSource::Command(of),
        ..counter(name, "")
    }
}

/// A figure of each server.
const fn server(
    name: &'static str,
    (kind, unit): (MetricKind, &'static str),
    help: &'static str,
    info: &'static [&'static str],
    figure: fn(&ServerTotals) -> Option<f64>,
) -> MetricFamily {
    MetricFamily {
        kind,
        unit,
        help,
        info,
        source: MetricSource::Server(figure),
        ..counter(name, "")
    }
}

/// Every family, in the order of the page.
pub(crate) static FAMILIES: &[MetricFamily] = &[
    MetricFamily {
        kind: MetricKind::Info,
        help: "The version of respool.",
        info: &["respool_version"],
        source: MetricSource::Build,
        ..counter("respool_build", "")
    },
    // The process. Names of the Prometheus client libraries, so that common boards work.
    process(
        "process_cpu",
        (MetricKind::Counter, "seconds"),
        "CPU time of the process in user mode and in the kernel.",
        |process| Some(process.user_s? + process.system_s?),
    ),
    process(
        "respool_process_cpu_user",
        (MetricKind::Counter, "seconds"),
        "CPU time of the process in user mode.",
        |process| process.user_s,
    ),
    process(
        "respool_process_cpu_system",
        (MetricKind::Counter, "seconds"),
        "CPU time of the process in the kernel.",
        |process| process.system_s,
    ),
    process(
        "process_open_fds",
        (MetricKind::Gauge, ""),
        "Open file descriptors.",
        |process| process.open_fds,
    ),
    process(
        "process_max_fds",
        (MetricKind::Gauge, ""),
        "The limit of open file descriptors.",
        |process| process.max_fds,
    ),
    process(
        "process_resident_memory",
        (MetricKind::Gauge, "bytes"),
        "Memory of the process in RAM.",
        |process| process.resident_bytes,
    ),
    process(
        "process_virtual_memory",
        (MetricKind::Gauge, "bytes"),
        "Address space of the process.",
        |process| process.virtual_bytes,
    ),
    MetricFamily {
        info: &["respool_uptime_in_seconds"],
        ..process(
            "process_start_time",
            (MetricKind::Gauge, "seconds"),
            "The start of the process, in seconds since 1970.",
            |process| process.started_s,
        )
    },
    process(
        "respool_log_lines_lost",
        (MetricKind::Counter, ""),
        "Log lines that were lost: standard error refused them (a full disk), or was read too \
         slowly.",
        |process| process.log_lines_lost,
    ),
    // Reloads of the configuration.
    reload(
        "respool_config_reloads_applied",
        (MetricKind::Counter, ""),
        "Configurations that reloads have applied.",
        &["respool_config_epoch"],
        |reloads| Some(reloads.epoch as f64),
    ),
    reload(
        "respool_config_reloads_failed",
        (MetricKind::Counter, ""),
        "Reloads that failed. A failed reload changes nothing.",
        &["respool_config_reload_failures"],
        |reloads| Some(reloads.failures as f64),
    ),
    reload(
        "respool_config_reload_success",
        (MetricKind::Gauge, ""),
        "0: the last reload of the configuration failed. 1: it succeeded, or there was none.",
        &["respool_config_reload_success"],
        |reloads| Some(if reloads.last_failed { 0.0 } else { 1.0 }),
    ),
    reload(
        "respool_config_reload_time",
        (MetricKind::Gauge, "seconds"),
        "The time of the last reload, in seconds since 1970; absent before the first.",
        &["respool_config_reload_at"],
        |reloads| (reloads.last_at > 0).then_some(reloads.last_at as f64),
    ),
    MetricFamily {
        kind: MetricKind::Gauge,
        unit: "seconds",
        help: "The earliest expiry of a certificate in a file of respool or of CAs that it trusts, \
               in seconds since 1970.",
        source: MetricSource::Certificates,
        ..counter("respool_tls_certificate_expiry_time", "")
    },
    MetricFamily {
        help: "Certificates with their keys, and files of CAs, that changed while respool ran, and \
               that it refused: the earlier ones stay in use. `of`: their use.",
        source: MetricSource::RenewalFailures {
            label: "of",
            of: &[
                ("listeners", |failures| failures.certificates.listeners),
                ("servers", |failures| failures.certificates.servers),
            ],
        },
        ..counter("respool_tls_certificates_refused", "")
    },
    MetricFamily {
        help: "Passwords that could not be read again while respool ran: a command or a file of \
               the configuration gave none. The earlier password stays in use.",
        source: MetricSource::RenewalFailures {
            label: "origin",
            of: &[
                ("command", |failures| failures.commands),
                ("file", |failures| failures.files),
            ],
        },
        ..counter("respool_password_reads_failed", "")
    },
    // Workers.
    MetricFamily {
        kind: MetricKind::Gauge,
        help: "The number of workers.",
        info: &["respool_workers"],
        source: MetricSource::Workers,
        ..counter("respool_workers", "")
    },
    worker(
        "respool_worker_sessions",
        (MetricKind::Gauge, ""),
        "Sessions of the worker now.",
        &[],
        |worker| Some(worker.counters.sessions as f64),
    ),
    worker(
        "respool_worker_requests",
        (MetricKind::Counter, ""),
        "Requests that the worker read from clients.",
        &[],
        |worker| Some(worker.counters.requests as f64),
    ),
    worker(
        "respool_worker_cpu",
        (MetricKind::Counter, "seconds"),
        "CPU time of the thread of the worker.",
        &["respool_worker_utilization"],
        |worker| Some(worker.usage?.ran_us as f64 / 1e6),
    ),
    worker(
        "respool_worker_run_queue",
        (MetricKind::Counter, "seconds"),
        "Time in which the thread of the worker was ready to run and had no processor.",
        &["respool_worker_utilization"],
        |worker| Some(worker.usage?.waited_us as f64 / 1e6),
    ),
    worker(
        "respool_worker_servers_left_out",
        (MetricKind::Gauge, ""),
        "Servers of the worker without a series, because the report of the worker is full.",
        &[],
        |worker| Some(worker.servers_left_out as f64),
    ),
    // Pools and servers.
    MetricFamily {
        kind: MetricKind::Gauge,
        help: "1 if a server of the pool answers and no server has withdrawn the configured login; \
               else 0. In a pool with prefixes, a server must answer for each prefix.",
        source: MetricSource::PoolReady,
        ..counter("respool_pool_ready", "")
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        help: "Servers of the pool that workers try to reach and none reaches, by role. Those \
               without a series of their own count, too.",
        source: MetricSource::PoolServersDown,
        ..counter("respool_pool_servers_down", "")
    },
    server(
        "respool_server_up",
        (MetricKind::Gauge, ""),
        "1 if a worker has a link to the server in use, or the server answers and waits for the \
         logins of clients; else 0. For `other`: the number of such servers.",
        &["state", "respool_servers"],
        |server| Some(server.up as f64),
    ),
    server(
        "respool_server_login_withdrawn",
        (MetricKind::Gauge, ""),
        "1 if the server accepted the configured login before and refuses it now, so that new \
         sessions must authenticate; else 0. For `other`: the number of such servers.",
        &["login"],
        |server| Some(server.login_withdrawn as f64),
    ),
    MetricFamily {
        kind: MetricKind::Info,
        help: "The role and the state of the server, as INFO respool shows them.",
        info: &["address", "pool", "role", "state"],
        source: MetricSource::ServerState,
        ..counter("respool_server", "")
    },
    server(
        "respool_server_links",
        (MetricKind::Gauge, ""),
        "Links to the server now, in any state, without those that only check logins.",
        &["links"],
        |server| Some(server.links as f64),
    ),
    server(
        "respool_server_requests_in_flight",
        (MetricKind::Gauge, ""),
        "Requests that are sent to the server and not answered.",
        &[],
        |server| Some(server.in_flight as f64),
    ),
    server(
        "respool_server_connect_failures",
        (MetricKind::Counter, ""),
        "Attempts to connect to the server that failed.",
        &["failures_total"],
        |server| Some(server.failures_total as f64),
    ),
    server(
        "respool_server_connections_lost",
        (MetricKind::Counter, ""),
        "Connections to the server that were lost.",
        &["lost_total"],
        |server| Some(server.lost_total as f64),
    ),
    server(
        "respool_server_slots",
        (MetricKind::Gauge, ""),
        "Slots that the server owns. Only in a Cluster.",
        &["slots"],
        |server| server.slots.map(f64::from),
    ),
    server(
        "respool_server_batch_wait",
        (MetricKind::Gauge, "seconds"),
        "The longest time that the next batch of a busy link to the server may wait.",
        &["wait_us"],
        |server| Some(f64::from(server.wait_us) / 1e6),
    ),
    server(
        "respool_server_round_trip",
        (MetricKind::Gauge, "seconds"),
        "The smoothed round trip to the server. Only where reads go to replicas.",
        &["latency_us"],
        |server| Some(server.latency_us? as f64 / 1e6),
    ),
    MetricFamily {
        unit: "seconds",
        help: "CPU time of the main thread of the server, by its answers to INFO cpu; before \
               Redis 7.0 that of its process. It goes on when the server starts anew. Only of \
               servers that allow INFO.",
        info: &["utilization"],
        source: MetricSource::ServerCpu,
        ..counter("respool_server_cpu", "")
    },
    // Sessions and requests.
    counter("respool_sessions_accepted", "sessions_total"),
    gauge("respool_sessions", "sessions"),
    by(
        "respool_clients_refused",
        "Clients that got no session: `sessions-max` sessions were open, or no file `descriptors` \
         were left.",
        "reason",
        &[
            ("sessions-max", "clients_refused_full"),
            ("descriptors", "clients_refused_descriptors"),
        ],
    ),
    counter("respool_sessions_closed", "sessions_closed_by_us"),
    MetricFamily {
        help: "Sessions that respool closed before they authenticated: too late, or because memory \
               was short. `respool_sessions_closed_total` counts them, too.",
        ..counter(
            "respool_sessions_closed_unauthenticated",
            "sessions_closed_unauthenticated",
        )
    },
    gauge("respool_tls_sessions", "tls_sessions"),
    gauge("respool_tls_handshaking", "tls_handshaking"),
    counter("respool_tls_handshakes", "tls_handshakes"),
    counter("respool_tls_handshakes_failed", "tls_handshakes_failed"),
    by(
        "respool_tls_client_certificates_refused",
        "Clients refused in the TLS handshake for their certificate, by reason. \
         `respool_tls_handshakes_failed_total` counts them, too.",
        "reason",
        &[
            ("missing", "tls_certificates_missing"),
            ("unknown_ca", "tls_certificates_of_unknown_ca"),
            ("expired", "tls_certificates_expired"),
            ("not_yet_valid", "tls_certificates_not_yet_valid"),
            ("usage", "tls_certificates_of_other_usage"),
            ("other", "tls_certificates_refused_otherwise"),
        ],
    ),
    counter("respool_requests", "requests"),
    counter(
        "respool_requests_answered_locally",
        "requests_answered_locally",
    ),
    bytes("respool_session_received", "session_bytes_in"),
    bytes("respool_session_sent", "session_bytes_out"),
    by(
        "respool_requests_failed",
        "Requests that failed. `not_sent`: the request was surely not executed. `unknown`: it may \
         have been executed.",
        "outcome",
        &[
            ("not_sent", "failed_not_sent"),
            ("unknown", "failed_unknown"),
        ],
    ),
    counter("respool_requests_timed_out", "requests_timed_out"),
    MetricFamily {
        help: "Error replies to clients. `replied`: from a server. `refused`: respool refused the \
               request. `not_sent`: the request was surely not executed. `unknown`: it may have \
               been executed.",
        source: MetricSource::Errors,
        ..counter("respool_request_errors", "")
    },
    counter("respool_commands_refused", "commands_refused"),
    counter("respool_logins_refused", "logins_refused"),
    counter("respool_requests_streamed", "streamed_requests"),
    counter("respool_transactions", "transactions"),
    // Times of requests. Commands without a measurement of their own are one series, `other`.
    times(
        "respool_request_duration",
        "Times from the reading of a request to the reading of its reply from the server.",
        CommandTimes::total,
    ),
    times(
        "respool_request_wait",
        "Times in respool: from the reading of a request to the departure of its batch.",
        CommandTimes::waiting,
    ),
    times(
        "respool_server_duration",
        "Times at the server and on the way: from the departure of a batch to the reading of the \
         reply.",
        CommandTimes::server,
    ),
    // Links and batches.
    gauge("respool_links", "links"),
    counter("respool_links_connected", "links_connected"),
    counter("respool_links_lost", "links_lost"),
    gauge("respool_servers_down", "servers_down"),
    counter("respool_link_requests", "link_requests"),
    counter("respool_link_replies", "link_replies"),
    counter("respool_late_replies", "late_replies"),
    bytes("respool_link_received", "link_bytes_in"),
    bytes("respool_link_sent", "link_bytes_out"),
    counter("respool_batches", "batches"),
    MetricFamily {
        kind: MetricKind::Histogram,
        help: "The sizes of batches to servers, in requests as clients sent them.",
        ..counter("respool_batch_requests", "batch_requests")
    },
    by(
        "respool_batches_flushed",
        "Batches by the reason for which they left. `idle`: the link owed no replies. `full`: the \
         batch was full. `late`: the batch had waited for its longest time.",
        "reason",
        &[
            ("idle", "flushed_idle"),
            ("full", "flushed_full"),
            ("late", "flushed_late"),
        ],
    ),
    // Coalescing.
    counter("respool_fused_batches", "fused_batches"),
    by(
        "respool_requests_fused",
        "GETs and SETs that left in an MGET or MSET of several requests.",
        "command",
        &[("get", "fused_gets"), ("set", "fused_sets")],
    ),
    counter("respool_reads_collapsed", "reads_collapsed"),
    counter("respool_commands_saved", "commands_saved"),
    counter("respool_joined_requests_resent", "joined_requests_resent"),
    by(
        "respool_coalescing_stops",
        "How often a link stopped to join requests, because it did not pay or the server refused.",
        "kind",
        &[
            ("get", "get_fusing_stops"),
            ("set", "set_fusing_stops"),
            ("slot", "slot_fusing_stops"),
            ("collapse", "collapsing_stops"),
        ],
    ),
    // Topology and failures.
    by(
        "respool_requests_redirected",
        "Requests that a node of a Cluster redirected.",
        "kind",
        &[("moved", "redirected_moved"), ("ask", "redirected_ask")],
    ),
    counter("respool_requests_deferred", "requests_deferred"),
    counter("respool_topology_refreshes", "topology_refreshes"),
    counter("respool_reads_sent_again", "reads_sent_again"),
    counter("respool_links_drained", "links_drained"),
    counter("respool_silent_links_replaced", "silent_links_replaced"),
    // Links of one session, and limits.
    counter("respool_dedicated_links_given", "dedicated_links_given"),
    counter("respool_blocking_polls", "blocking_polls"),
    by(
        "respool_limit_reached",
        "How often a request needed a link and this limit was reached.",
        "limit",
        &[
            ("links-max", "links_full"),
            ("pinned-links-max", "pinned_links_full"),
            ("streaming-links-max", "streaming_links_full"),
        ],
    ),
    counter("respool_output_limit_waits", "output_limit_waits"),
    counter("respool_links_closed_for_room", "links_closed_for_room"),
    counter("respool_slow_uploads_ended", "slow_uploads_ended"),
    counter("respool_watches_ended", "watches_ended"),
    counter("respool_scripts_reloaded", "scripts_reloaded"),
    // Subscriptions.
    gauge("respool_subscriptions", "subscriptions"),
    counter("respool_messages_received", "messages_in"),
    counter("respool_messages_delivered", "messages_out"),
    // Memory.
    MetricFamily {
        unit: "bytes",
        ..gauge("respool_held", "held_bytes")
    },
    MetricFamily {
        unit: "bytes",
        ..gauge("respool_memory", "memory_bytes")
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        unit: "bytes",
        ..by(
            "respool_memory_account",
            "Memory by account. The sum is respool_memory_bytes and \
             respool_memory_spared_bytes together. INFO respool explains each.",
            "account",
            &[
                ("output", "memory_output_bytes"),
                ("incomplete", "memory_incomplete_bytes"),
                ("queued", "memory_queued_bytes"),
                ("subscription", "memory_subscription_bytes"),
                ("answer", "memory_answer_bytes"),
                ("state", "memory_state_bytes"),
                ("link", "memory_link_bytes"),
                ("tls", "memory_tls_bytes"),
                ("other", "memory_other_bytes"),
            ],
        )
    },
    MetricFamily {
        unit: "bytes",
        ..gauge("respool_memory_spared", "memory_spared_bytes")
    },
    MetricFamily {
        unit: "bytes",
        ..gauge(
            "respool_memory_unauthenticated",
            "memory_unauthenticated_bytes",
        )
    },
];

/// Fields of INFO that no metric shows, each with the reason.
pub(crate) static LEFT_OUT: &[(&str, &str)] = &[
    (
        "respool_process_id",
        "It names the process: the scrape target does that.",
    ),
    (
        "respool_tcp_port",
        "It is configuration: the scrape target names the process.",
    ),
    (
        "respool_worker",
        "It is about the connection that asks, and a scrape has no worker.",
    ),
    ("respool_renamed_fields", "Metrics have no old names."),
    (
        "failures",
        "It goes back to 0 at each answer. The rate of respool_server_connect_failures_total tells \
         the same over time.",
    ),
    (
        "last_failure_ms_ago",
        "It is a time since an event. An increase of respool_server_connect_failures_total or \
         respool_server_connections_lost_total shows when the event was.",
    ),
    (
        "wait_reason",
        "It may change five times a second, and each of its values would be a series.",
    ),
    (
        "occupancy",
        "It is a smoothed figure of one worker. Compare requests in flight instead.",
    ),
    ("zone", "It is configuration, or a fact of the server."),
    (
        "read_shares",
        "It is a figure of one worker, and no sum or mean of several is meaningful.",
    ),
    (
        "respool_link_N",
        "A line for each link would be a series for each session that has a link of its own.",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use respool_engine::info_fields;

    use super::*;

    /// A new counter, or a new field of INFO, needs a row in the table or a reason in `LEFT_OUT`.
    #[test]
    fn every_info_field_has_a_metric_or_a_reason() {
        let counters: BTreeSet<&str> = FAMILIES
            .iter()
            .flat_map(|f| f.source.labelled_counters())
            .map(|(_, counter)| counter)
            .collect();
        let is_left_out = |name: &str| LEFT_OUT.iter().any(|(left, _)| *left == name);
        for (name, _) in Counters::TEXTS {
            let is_shown = counters.contains(name);
            assert!(
                is_shown || is_left_out(name),
                "the counter {name} needs a row in metrics/table.rs, or a reason in LEFT_OUT"
            );
        }
        let fields: BTreeSet<&str> = FAMILIES.iter().flat_map(|f| f.info).copied().collect();
        for field in info_fields::PROCESS.iter().chain(info_fields::SERVER) {
            let name = field.name;
            assert!(
                fields.contains(name) || is_left_out(name),
                "the field {name} of INFO needs a row in metrics/table.rs, or a reason in LEFT_OUT"
            );
        }
    }

    /// No row and no reason outlives its counter or field.
    #[test]
    fn every_row_names_facts_that_exist() {
        let counters: Vec<&str> = Counters::TEXTS.iter().map(|(name, _)| *name).collect();
        let fields = info_fields::PROCESS.iter().chain(info_fields::SERVER);
        let fields: Vec<&str> = fields.map(|field| field.name).collect();
        let mut shown = BTreeSet::new();
        for family in FAMILIES {
            for (_, counter) in family.source.labelled_counters() {
                assert!(counters.contains(&counter), "{counter}");
                assert!(shown.insert(counter), "{counter} is shown twice");
            }
            for field in family.info {
                assert!(fields.contains(field), "{field}");
            }
        }
        for (name, reason) in LEFT_OUT {
            let exists = counters.contains(name) || fields.contains(name);
            assert!(exists || *name == "respool_link_N", "{name}");
            assert!(reason.ends_with('.'), "{reason}");
        }
    }

    /// Names follow the rules of Prometheus: base units, `_total` for counters only, and help in
    /// one line.
    #[test]
    fn names_and_help_follow_the_rules() {
        let mut names = BTreeSet::new();
        for family in FAMILIES {
            let name = family.full_name();
            let legal = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
            assert!(name.bytes().all(legal), "{name}");
            assert!(!family.name.ends_with("_total"), "{name}");
            assert!(["", "bytes", "seconds"].contains(&family.unit), "{name}");
            assert!(
                name.starts_with("respool_") || name.starts_with("process_"),
                "{name}"
            );
            assert!(names.insert(name.clone()), "{name} is there twice");
            let help = family.text();
            assert!(help.ends_with('.'), "{name}: {help}");
            assert!(!help.contains(['\n', '"', '\\']), "{name}: {help}");
        }
    }

    /// A help text names other facts as metrics. Fields of INFO may have other names.
    #[test]
    fn help_names_metrics_that_exist() {
        let names: BTreeSet<String> = FAMILIES.iter().map(MetricFamily::full_name).collect();
        for family in FAMILIES {
            let text = family.text();
            let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for word in words.filter(|word| word.starts_with("respool_")) {
                assert!(names.contains(word), "{}: {word}", family.full_name());
            }
        }
    }
}
