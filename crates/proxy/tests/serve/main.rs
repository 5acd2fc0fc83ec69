//! `respool serve`, the binary itself, before real servers of every installed version.
//!
//! Each module is a subject, and the claim of a test is the doc line above it. A body runs against
//! every installed server. Where it can, it runs first without respool: a test that fails there is
//! itself wrong.

mod target;

/// The pools behind respool: Clusters, Sentinels, shards, replicas, prefixes.
mod topology {
    mod address_map;
    mod announced_addresses;
    pub(crate) mod cluster;
    pub(crate) mod cluster_facade;
    pub(crate) mod divided;
    mod foreign_nodes;
    mod key_prefix;
    mod pools;
    mod prefix_routing;
    pub(crate) mod replicas;
    pub(crate) mod sentinel;
    mod sharded;
    mod uncovered_slots;
}

/// Each client gets its own replies, in order.
mod ordering {
    mod crosstalk;
    mod fragmentation;
    mod linearizability;
    mod pipelines;
    mod session_state;
    mod transactions;
}

/// Requests that leave as one.
mod coalescing {
    mod batches;
    mod hash_tags;
}

/// Messages and notifications.
mod pubsub {
    mod keyspace_events;
    pub(crate) mod sharded_channels;
    mod subscriptions;
}

/// Sessions that need a link of their own, and commands that are refused instead.
mod pinned {
    mod dedicated_links;
    mod refused_commands;
    mod tracking;
    mod tracking_redirect;
    mod wait_command;
}

/// Servers, nodes, Sentinels and networks that fail or answer wrongly.
mod faults {
    mod busy_scripts;
    mod counting;
    mod failover_all_nodes;
    mod hanging_names;
    mod partition;
    mod redirect_faults;
    mod script_errors;
    mod sentinel_faults;
    pub(crate) mod server_failures;
}

/// TLS of clients and of servers.
mod tls {
    mod clients;
    mod openssl;
    mod reload;
    mod rotation;
    mod served;
    mod servers;
}

/// Behaviour at each limit, and large values.
mod bounds {
    mod large_values;
    mod limits;
}

/// Other clients, the servers' replies byte by byte, other proxies.
mod compat {
    mod command_catalog;
    mod differ;
    mod golden;
    mod redis_rs;
    mod twemproxy_compat;
}

/// Users, settings, client commands, metrics, and the end of the process.
mod admin {
    mod acl;
    mod client_commands;
    mod drain;
    mod hostile_pages;
    mod info_metrics;
    mod logins;
    mod metric_counters;
    pub(crate) mod metrics;
    mod packaged_queries;
    mod password_rotation;
    mod pool_changes;
    mod prometheus;
    mod reload;
    mod reports;
    mod request_errors;
    pub(crate) mod runtime_config;
}
