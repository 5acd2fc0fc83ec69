//! The lab: measures respool.
