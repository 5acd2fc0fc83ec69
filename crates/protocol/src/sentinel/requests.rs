//! Writes the requests to Sentinels, and to the servers that they name.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, reason = "it reads bytes of a server")
)]

use super::CHANNELS;
use crate::encode;

/// Appends SENTINEL MASTERS: every [`Primary`](super::Primary) that the Sentinel watches.
pub fn ask_primaries(out: &mut Vec<u8>) {
    encode::request(out, &["SENTINEL", "MASTERS"]);
}

/// Appends SENTINEL MASTER: the [`Primary`](super::Primary) of this name.
pub fn ask_primary(out: &mut Vec<u8>, name: &str) {
    encode::request(out, &["SENTINEL", "MASTER", name]);
}

/// Appends SENTINEL GET-MASTER-ADDR-BY-NAME: [the address for clients](super::read_address).
pub fn ask_address(out: &mut Vec<u8>, name: &str) {
    encode::request(out, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name]);
}

/// Appends SENTINEL SENTINELS: the [other Sentinels](super::SentinelPeer) of this name.
pub fn ask_sentinels(out: &mut Vec<u8>, name: &str) {
    encode::request(out, &["SENTINEL", "SENTINELS", name]);
}

/// Appends SENTINEL REPLICAS: the [`Replica`](super::Replica)s of this name.
pub fn ask_replicas(out: &mut Vec<u8>, name: &str) {
    encode::request(out, &["SENTINEL", "REPLICAS", name]);
}

/// Appends SENTINEL MYID: [the id of the Sentinel](super::read_id).
pub fn ask_id(out: &mut Vec<u8>) {
    encode::request(out, &["SENTINEL", "MYID"]);
}

/// Appends the requests of a [`Survey`](super::Survey), one for each answer.
///
/// The epoch is asked before the address. If a failover comes in between, the new address has the
/// old epoch, and loses too often. In the other order the old address would have the new epoch, and
/// win wrongly.
pub fn ask_survey(out: &mut Vec<u8>, name: &str) {
    ask_primary(out, name);
    ask_address(out, name);
    ask_sentinels(out, name);
    ask_replicas(out, name);
    ask_id(out);
}

/// Appends SUBSCRIBE to all [`CHANNELS`]. A pattern would bring messages that are only discarded.
pub fn ask_events(out: &mut Vec<u8>) {
    let args: Vec<&str> = ["SUBSCRIBE"].into_iter().chain(CHANNELS).collect();
    encode::request(out, &args);
}

/// Appends PING, which a subscribed connection may send, too. Its answer is
/// [`Message::Pong`](super::Message::Pong).
pub fn ask_ping(out: &mut Vec<u8>) {
    encode::request(out, &["PING"]);
}

/// Appends ROLE: the server's own [`ReportedRole`](super::ReportedRole).
pub fn ask_role(out: &mut Vec<u8>) {
    encode::request(out, &["ROLE"]);
}
