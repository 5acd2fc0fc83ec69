//! The proxy.
fn main() {}
