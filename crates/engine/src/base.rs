//! Types that every other folder uses: handles, buffers, time, limits, settings and errors.

pub mod address_map;
pub(crate) mod arrivals;
pub(crate) mod buffer;
pub(crate) mod coarse_times;
pub(crate) mod counters;
pub(crate) mod error;
pub(crate) mod error_text;
pub(crate) mod glob;
pub(crate) mod handle;
pub(crate) mod latency;
pub mod limits;
pub(crate) mod pool_places;
pub(crate) mod reload_report;
pub(crate) mod session_map;
pub mod settings;
pub(crate) mod slab;
pub(crate) mod space_saving;
pub(crate) mod time;
