//! The lab measures respool beside the direct server, beside other proxies, and beside the cost of
//! the kernel alone.
//!
//! ```text
//! experiment   which cases ────────┐
//! targets      starts all of them  ├─> run ─> measure ── one case, one round ──> report ─> files
//! load         a process of its    │             │
//!              own that asks       ┘             └─ cpu: the use of each process meanwhile
//! ```
//!
//! The words: a [`case::Workload`] (verb, pipeline, connections) against a [`case::LoadTarget`] is
//! a [`case::Case`]. One measurement of it is a [`report::Round`] with its
//! [`report::RateSample`]s. All rounds of all cases make a [`report::Report`]. A new experiment is
//! a new [`experiment::Experiment`]; a new kind of load is a new [`tape::TapeRecipe`]; a new proxy
//! to compare with is a new [`case::LoadTarget`], started in [`targets`].
//!
//! [`failover`] stands beside these: it measures around one moment instead of in windows. So does
//! [`clients`]: it compares libraries, of which each is a process with callers of its own.
//!
//! Servers and topologies come from `respool_testkit`, the differential tester and the histories
//! from `respool_checker`.

pub mod against;
pub mod bar;
pub mod case;
pub mod chart;
pub mod clients;
pub mod cluster;
pub mod commands;
pub mod cores;
pub mod counters;
pub mod cpu;
pub mod decay;
pub mod experiment;
pub mod failover;
pub mod figure;
pub mod files;
pub mod flags;
pub mod floor;
pub mod html;
pub mod load;
mod load_stream;
pub mod machine;
pub mod measure;
pub mod options;
pub mod progress;
pub mod report;
pub mod run;
pub mod schedule;
pub mod table;
pub mod tape;
pub mod targets;
pub mod tls;
pub mod window;
