//! RESP scanning and encoding, the command table, hash slots, answers of Clusters and Sentinels
//! about their topology, scatter-gather, and the hashing of sharded pools.
//!
//! The crate has no dependency, no I/O and no clock: every function depends on its arguments alone.

#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::panic,
        reason = "bytes of a peer must not end the process"
    )
)]

pub mod cluster;
pub mod commands;
pub mod encode;
pub mod events;
pub mod fan;
pub mod glob;
pub mod hashing;
pub mod number;
pub mod prefix;
pub mod reply;
pub mod request;
pub mod sentinel;
pub mod shape;
pub mod slot;
pub mod value;
