//! What respool decides, as a function of state, bytes and time.
pub mod limits;
pub mod settings;
