//! `respool serve`, the binary itself, before real servers of every version at hand.
//!
//! Each module is a topic, the name of each test its claim. A body runs against every installed server, and where
//! that means something first with no respool in between: a test that fails there is itself wrong.

mod client;
mod counting;
mod divided;
mod fake;
mod relay;
mod target;

mod announced;
mod astray;
mod busy;
mod channels;
mod clients;
mod cluster;
mod coalescing;
mod control;
mod crosstalk;
mod differ;
mod drain;
mod events;
mod failures;
mod golden;
mod hearsay;
mod heirs;
mod known;
mod large;
mod limits;
mod linear;
mod logins;
mod mapped;
mod migrated;
mod node;
mod partition;
mod parts;
mod pinned;
mod pipelines;
mod pools;
mod pubsub;
mod redirect;
mod redis_rs;
mod refused;
mod replicas;
mod rights;
mod rotated;
mod script_words;
mod sentinel;
mod sessions;
mod sharded;
mod splits;
mod strangers;
mod stripped;
mod tagged;
mod tracking;
mod transactions;
mod unserved;
mod waits;
