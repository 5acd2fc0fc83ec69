//! RESP scanning and encoding, the command table, hash slots, the topology of a Cluster, what
//! Sentinels say of theirs, and the hashing of sharded pools.
//!
//! No dependency, no I/O, no clock: every function is one of bytes.

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
