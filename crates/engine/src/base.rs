//! The ground on which every other folder stands: handles, buffers, time, limits, settings and
//! errors.

pub mod address_map;
pub(crate) mod arrivals;
pub(crate) mod buffer;
pub(crate) mod counters;
pub(crate) mod error;
pub(crate) mod error_text;
pub(crate) mod glob;
pub(crate) mod handle;
pub mod limits;
pub(crate) mod session_map;
pub mod settings;
pub(crate) mod slab;
pub(crate) mod time;
