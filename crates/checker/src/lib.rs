//! Checks the replies that clients get through respool.
//!
//! - [`differ`] sends the same random requests to a server directly and through respool. Every
//!   reply must be equal.
//! - [`histories`] lets concurrent clients read and write. One server must have been able to give
//!   the replies they got (linearizability).

pub mod differ;
pub mod histories;
