//! Scatter-gather: divides a request among several servers, and merges their replies into one.
//!
//! ```text
//!   MGET a b c a         Split          MGET a a  -> server 0 -> 1 1        Merger
//!                    order: 0 1 0 0         c             3
//!                                       MGET b    -> server 1 -> 2          1 2 3 1
//! ```
//!
//! The columns [`Spread`](crate::commands::Spread) and [`Merge`](crate::commands::Merge) of the
//! command table say which servers get a request, and how their replies are merged. [`Split`]
//! divides requests by their keys. [`Cursor`] is for SCAN, which asks one server after the other.

mod cursor;
mod figures;
mod info;
mod merge;
mod split;

pub use cursor::{Cursor, scan_reply, scan_request};
pub use info::Sections;
pub use merge::{Merged, Merger, Part};
pub use split::{Divided, Share, Split, Undivided};

/// Keys and values up to this length are copied as a block of this length.
const MOVE_BYTES: usize = 32;

/// Appends a number that is not negative as a bulk string.
fn number_bulk(out: &mut Vec<u8>, number: i64) {
    let digits = number.checked_ilog10().map_or(1, |digits| digits + 1);
    out.push(b'$');
    crate::number::append(out, i64::from(digits));
    out.extend_from_slice(b"\r\n");
    crate::number::append(out, number);
    out.extend_from_slice(b"\r\n");
}
