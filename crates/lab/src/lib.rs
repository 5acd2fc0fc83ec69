//! The lab: measures respool.
pub mod servers;
