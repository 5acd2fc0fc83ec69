//! Tests and measurements share this crate: real servers, topologies, faults, one random source.
//!
//! - [`servers`] starts one server or one respool on a reserved port.
//! - [`topologies`] starts Clusters, Sentinels with their primaries, and plain shards.
//! - [`certificates`] makes a CA and certificates.
//! - [`scene`] lets a server of a topology fail and waits until another one has taken over.
//! - [`fault_proxy`] stands before a server and delays, cuts or garbles its replies.
//! - [`fake`] has nodes that answer by a script.
//! - [`client`] is a blocking client, [`tls_client`] one over TLS. [`reply`] finds the end of a
//!   reply, and [`frame`] reads it as a tree. They share no code with the program under test.
//! - [`words`] shows bytes as a person types them.
//! - [`counting`] has sessions that know the value of each of their keys.
//! - [`random`], [`time`] and [`children`]: seeds, waiting, and processes that end with their
//!   parent.

use std::io::Write;

pub mod certificates;
pub mod children;
pub mod client;
pub mod counting;
pub mod fake;
pub mod fault_proxy;
pub mod frame;
pub mod random;
pub mod reply;
pub mod scene;
pub mod servers;
pub mod tasks;
pub mod time;
pub mod tls_client;
pub mod topologies;
pub mod words;

/// Writes a line to the terminal, also from a test that passes.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
