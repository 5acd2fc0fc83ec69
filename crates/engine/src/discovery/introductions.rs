//! Addresses that a redirect names before any topology answer has named them.
//!
//! ```text
//!   -MOVED or -ASK ──► a known node: followed at once
//!                 └──► an unknown address ──► that node is asked: CLUSTER SHARDS, CLUSTER NODES
//!                                                    └──► it names the address ──► known
//! ```
//!
//! CLUSTER SLOTS does not name nodes without slots, so a node that is about to get its first slot
//! is found here. Meanwhile, requests that were redirected to it are sent again, until their
//! deadline.

use respool_protocol::cluster::{Endpoint, View};

use crate::base::limits::ADDRESSES_SOUGHT_MAX;
use crate::base::time::Time;

/// The shortest time between two questions to the nodes of a Cluster, milliseconds.
const ASKED_MS: u64 = 100;
/// How long an introduction lasts, milliseconds. A node that owns slots is known by CLUSTER SLOTS,
/// and needs no introduction.
const NAMED_MS: u64 = 60_000;

/// The introductions of one Cluster.
#[derive(Debug, Default)]
pub(crate) struct Introductions {
    /// Unknown addresses that redirects named.
    sought: Vec<Endpoint>,
    /// Addresses that a node has named, and when.
    named: Vec<(Endpoint, Time)>,
    /// When a node was last asked.
    asked_at: Option<Time>,
    /// When the nodes last refused the questions: their user has no right to ask.
    refused_at: Option<Time>,
}

impl Introductions {
    /// Whether a node has named this address in the last `NAMED_MS`.
    pub(crate) fn is_named(&self, at: &Endpoint, now: Time) -> bool {
        let is_it =
            |(named, since): &(Endpoint, Time)| named == at && now.since_ms(*since) < NAMED_MS;
        self.named.iter().any(is_it)
    }

    /// Whether the nodes refused the questions in the last `NAMED_MS`.
    pub(crate) fn is_refused(&self, now: Time) -> bool {
        self.refused_at
            .is_some_and(|since| now.since_ms(since) < NAMED_MS)
    }

    /// Adds an unknown address that a redirect named. Returns whether its node shall be asked now.
    pub(crate) fn seek(&mut self, at: Endpoint, now: Time) -> bool {
        if !self.sought.contains(&at) {
            bound(&mut self.sought);
            self.sought.push(at);
        }
        let is_due = self.asked_at.is_none_or(|at| now.since_ms(at) >= ASKED_MS);
        if is_due {
            self.asked_at = Some(now);
        }
        is_due
    }

    /// A node has answered. `shards`, `nodes`: its replies; `host`: the host that was asked.
    pub(crate) fn take(&mut self, shards: &[u8], nodes: &[u8], host: &str, now: Time) {
        let views = [
            View::from_shards(shards, host),
            View::from_nodes(nodes, host),
        ];
        let views: Vec<View> = views.into_iter().flatten().collect();
        if views.is_empty() {
            if is_refusal(shards) && is_refusal(nodes) {
                self.refused_at = Some(now);
            }
            return;
        }
        self.refused_at = None;
        let is_in = |at: &Endpoint| {
            views.iter().any(|view| {
                let node = view.find_at(&at.host, at.port);
                let node = node.and_then(|index| view.nodes().get(usize::from(index)));
                node.is_some_and(|node| node.is_usable())
            })
        };
        let (named, sought) = std::mem::take(&mut self.sought)
            .into_iter()
            .partition(is_in);
        self.sought = sought;
        for at in Vec::from_iter::<Vec<Endpoint>>(named) {
            self.named.retain(|(known, _)| *known != at);
            bound(&mut self.named);
            self.named.push((at, now));
        }
    }
}

/// Whether a node refuses a question or does not know it. A node that loads its data or runs a
/// script answers later, so that is no refusal.
pub(crate) fn is_refusal(answer: &[u8]) -> bool {
    const WORDS: [&[u8]; 3] = [b"-NOPERM ", b"-ERR unknown ", b"-ERR Unknown "];
    WORDS.iter().any(|words| answer.starts_with(words))
}

fn bound<T>(addresses: &mut Vec<T>) {
    if addresses.len() >= ADDRESSES_SOUGHT_MAX {
        addresses.remove(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(port: u16) -> Endpoint {
        let host = "node".to_owned();
        Endpoint { host, port }
    }

    fn at(ms: u32) -> Time {
        Time(0).plus_ms(ms)
    }

    fn nodes(lines: &[&str]) -> Vec<u8> {
        let text = lines.concat();
        format!("${}\r\n{text}\r\n", text.len()).into_bytes()
    }

    const UNKNOWN: &[u8] = b"-ERR unknown subcommand\r\n";
    const ONE: &str = "a node:1@11 master - 0 0 1 connected 0-5\n";
    const JOINING: &str = "b node:2@12 handshake - 0 0 0 connected\n";

    /// The address has to stand in a node's own answer, as a usable member.
    #[test]
    fn address_is_known_once_a_node_names_it() {
        let mut introductions = Introductions::default();
        assert!(introductions.seek(endpoint(1), at(0)));
        assert!(introductions.seek(endpoint(2), at(100)));
        introductions.take(UNKNOWN, &nodes(&[ONE, JOINING]), "asked", at(101));
        let named = |introductions: &Introductions, ms| {
            [1, 2].map(|port| introductions.is_named(&endpoint(port), at(ms)))
        };
        assert_eq!(named(&introductions, 101), [true, false]);
        assert_eq!(named(&introductions, 60_101), [false, false]);
        // No redirect named this address.
        introductions.take(
            UNKNOWN,
            &nodes(&["c node:3@1 master - 0 0 1 connected\n"]),
            "asked",
            at(102),
        );
        assert!(!introductions.is_named(&endpoint(3), at(102)));
        assert!(!introductions.is_refused(at(102)));
    }

    /// The bound holds for any number of redirects.
    #[test]
    fn nodes_are_asked_ten_times_a_second_at_most() {
        let mut introductions = Introductions::default();
        let questions = (0..1_000).filter(|ms| introductions.seek(endpoint(1), at(*ms)));
        assert_eq!(questions.count(), 10);
    }

    /// A node that answers one of the two questions has not refused.
    #[test]
    fn nodes_refuse_if_they_answer_neither_question() {
        let mut introductions = Introductions::default();
        introductions.seek(endpoint(1), at(0));
        introductions.take(UNKNOWN, b"-NOPERM no\r\n", "asked", at(1));
        assert!(introductions.is_refused(at(1)));
        // A busy node has not refused.
        let mut other = Introductions::default();
        other.take(b"-BUSY no\r\n", b"-BUSY no\r\n", "asked", at(1));
        assert!(!other.is_refused(at(1)));
        introductions.take(UNKNOWN, &nodes(&[ONE]), "asked", at(2));
        assert!(!introductions.is_refused(at(2)));
        assert!(introductions.is_named(&endpoint(1), at(2)));
    }

    #[test]
    fn addresses_have_a_bound() {
        let mut introductions = Introductions::default();
        for port in 1..1_000 {
            introductions.seek(endpoint(port), at(0));
            assert!(introductions.sought.len() <= ADDRESSES_SOUGHT_MAX);
        }
        for port in 900..1_000 {
            introductions.seek(endpoint(port), at(0));
            let line = format!("a node:{port}@1 master - 0 0 1 connected\n");
            introductions.take(UNKNOWN, &nodes(&[&line]), "asked", at(1));
            assert!(introductions.named.len() <= ADDRESSES_SOUGHT_MAX);
        }
        assert!(introductions.is_named(&endpoint(999), at(1)));
    }
}
