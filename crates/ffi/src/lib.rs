//! The client of respool for other languages.
//!
//! - [`client`], [`completions`] and [`stream`] are a C ABI. `cargo xtask header` writes its
//!   header, `include/respool.h`, from their comments.
//! - [`jni`] has the functions of the Java class `io.respool.Native`.
//!
//! No panic leaves this crate: see [`fence`].

#![allow(unsafe_code)]

mod bytes;
mod client;
mod completions;
mod fence;
mod jni;
#[cfg(test)]
mod nulls;
mod ready;
mod stream;
