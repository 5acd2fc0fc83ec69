//! Writing what is asked of Sentinels, and of the servers that they name.

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

/// Appends SENTINEL GET-MASTER-ADDR-BY-NAME: [where clients should go](super::read_address).
pub fn ask_address(out: &mut Vec<u8>, name: &str) {
    encode::request(out, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name]);
}

/// Appends SENTINEL SENTINELS: the [other Sentinels](super::Peer) of this name.
pub fn ask_sentinels(out: &mut Vec<u8>, name: &str) {
    encode::request(out, &["SENTINEL", "SENTINELS", name]);
}

/// Appends SENTINEL REPLICAS: the [`Replica`](super::Replica)s of this name.
pub fn ask_replicas(out: &mut Vec<u8>, name: &str) {
    encode::request(out, &["SENTINEL", "REPLICAS", name]);
}

/// Appends SENTINEL MYID: [who it is](super::read_id).
pub fn ask_id(out: &mut Vec<u8>) {
    encode::request(out, &["SENTINEL", "MYID"]);
}

/// Appends the requests of a [`Survey`](super::Survey): as many as it has answers.
///
/// The epoch is asked for before the address. Should a failover come in between, an old epoch with
/// the new address is only believed too little; the old address with the new epoch would be
/// believed too much.
pub fn ask_survey(out: &mut Vec<u8>, name: &str) {
    ask_primary(out, name);
    ask_address(out, name);
    ask_sentinels(out, name);
    ask_replicas(out, name);
    ask_id(out);
}

/// Appends SUBSCRIBE to all [`CHANNELS`]. They are named one by one, for what else a Sentinel
/// publishes would only be thrown away.
pub fn ask_events(out: &mut Vec<u8>) {
    let args: Vec<&str> = ["SUBSCRIBE"].into_iter().chain(CHANNELS).collect();
    encode::request(out, &args);
}

/// Appends PING, which may be asked of a subscription, too: its answer is
/// [`Message::Pong`](super::Message::Pong).
pub fn ask_ping(out: &mut Vec<u8>) {
    encode::request(out, &["PING"]);
}

/// Appends ROLE: the server's own [`Role`](super::Role).
pub fn ask_role(out: &mut Vec<u8>) {
    encode::request(out, &["ROLE"]);
}
