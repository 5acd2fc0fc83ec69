//! The lab: measures respool beside the direct server, beside other proxies and beside what the kernel alone costs.
//!
//! ```text
//! experiment   which cases ────────┐
//! targets      starts all of them  ├─> measure ── one case, one round ──> report ── json, csv, table, html
//! load         asks, in a process  │      │
//!              of its own          ┘      └─ cpu: what each process used meanwhile
//! ```
//!
//! The words: a [`case::Workload`] (verb, pipeline, connections) against a [`case::Target`] is a [`case::Case`]; measured
//! once it gives a [`report::Round`] with its [`report::Sample`]s; all rounds of all cases make a
//! [`report::Report`]. A new experiment is a new [`experiment::Experiment`]; a new kind of load is a new
//! [`tape::Recipe`]; a new peer is a new [`case::Target`] and how it is started in [`targets`].
//!
//! What has a moment instead of a window stands beside these: [`failover`].
//!
//! Tests start their servers here, too: one by one from [`servers`], as Clusters and under Sentinels from [`topologies`].

pub mod against;
pub mod case;
pub mod chart;
mod children;
pub mod cluster;
pub mod command_table;
pub mod commands;
pub mod cores;
pub mod counters;
pub mod cpu;
pub mod decay;
pub mod differ;
pub mod experiment;
pub mod failover;
pub mod figure;
pub mod flags;
pub mod floor;
pub mod histories;
pub mod html;
pub mod load;
pub mod machine;
pub mod measure;
pub mod progress;
pub mod reply;
pub mod report;
pub mod schedule;
pub mod servers;
pub mod table;
pub mod tape;
pub mod targets;
pub mod topologies;
pub mod window;
pub mod zipf;
