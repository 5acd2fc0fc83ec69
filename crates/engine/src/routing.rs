//! Which server owns a key, and which replica reads it: lookups alone.

pub(crate) mod next_server;
pub(crate) mod pool;
pub(crate) mod replica_table;
pub(crate) mod slot_table;
