//! The counters of an engine: plain numbers of one worker. The driver adds up all workers.

use std::fmt;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ident,)+) => {
        /// Totals since the start, and gauges of this moment. One worker's, or the sum over
        /// several.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: $kind,)+
        }

        impl Counters {
            /// Adds the counters of another worker.
            pub fn add(&mut self, other: &Counters) {
                $(self.$name += other.$name;)+
            }

            /// Every counter with its name, in the order of their declaration.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, Counted)> {
                [$((stringify!($name), Counted::from(self.$name)),)+].into_iter()
            }

            /// The name and the text of each counter, in the same order.
            pub const TEXTS: &[(&str, &str)] = &[$((stringify!($name), concat!($($doc,)+)),)+];
        }
    };
}

/// The value of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// A number.
    Number(u64),
    /// A histogram of sizes.
    Sizes(Sizes),
}

impl From<u64> for Counted {
    fn from(number: u64) -> Counted {
        Counted::Number(number)
    }
}

impl From<Sizes> for Counted {
    fn from(sizes: Sizes) -> Counted {
        Counted::Sizes(sizes)
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Counted::Number(number) => number.fmt(f),
            Counted::Sizes(sizes) => sizes.fmt(f),
        }
    }
}

/// A histogram of sizes: 1, 2, up to 4, up to 8, and so on up to 1024; and larger ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    buckets: [u64; Sizes::BUCKETS],
    sum: u64,
}

impl Sizes {
    const BUCKETS: usize = 12;

    /// Counts a size.
    pub(crate) fn note(&mut self, size: usize) {
        let bucket = size.max(1).next_power_of_two().trailing_zeros() as usize;
        self.buckets[bucket.min(Sizes::BUCKETS - 1)] += 1;
        self.sum += size as u64;
    }

    /// The largest size of each bucket, and its count. The last bucket is for all larger sizes.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let last = Sizes::BUCKETS - 1;
        let largest = move |bucket: usize| (bucket < last).then_some(1 << bucket);
        let counts = self.buckets.into_iter().enumerate();
        counts.map(move |(bucket, count)| (largest(bucket), count))
    }

    /// The sum of all sizes. Divided by their number it is their mean.
    pub fn sum(&self) -> u64 {
        self.sum
    }
}

impl std::ops::AddAssign for Sizes {
    fn add_assign(&mut self, other: Sizes) {
        for (count, more) in self.buckets.iter_mut().zip(other.buckets) {
            *count += more;
        }
        self.sum += other.sum;
    }
}

/// `1=5,2=0,4=1,...,1024=0,more=0,sum=9`
impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (largest, count) in self.buckets() {
            match largest {
                Some(largest) => write!(f, "{largest}={count},")?,
                None => write!(f, "more={count},")?,
            }
        }
        write!(f, "sum={}", self.sum)
    }
}

counters! {
    /// Sessions ever accepted.
    sessions_total: u64,
    /// Sessions now.
    sessions: u64,
    /// Clients that were refused because `sessions-max` sessions were open.
    clients_refused_full: u64,
    /// Clients that were refused because no file descriptor was left.
    clients_refused_descriptors: u64,
    /// Sessions that respool closed because they broke a rule or passed a limit.
    sessions_closed_by_us: u64,
    /// Sessions that respool closed before they authenticated: too late, or because memory was
    /// short. `respool_sessions_closed_by_us` counts them, too.
    sessions_closed_unauthenticated: u64,
    /// Sessions with TLS, now.
    tls_sessions: u64,
    /// TLS handshakes with clients that have begun and not ended.
    tls_handshaking: u64,
    /// Completed TLS handshakes with clients.
    tls_handshakes: u64,
    /// Failed TLS handshakes with clients.
    tls_handshakes_failed: u64,
    /// Clients refused in the TLS handshake because they showed no certificate.
    tls_certificates_missing: u64,
    /// Clients refused in the TLS handshake because no CA of `tls-ca` has signed their certificate.
    tls_certificates_of_unknown_ca: u64,
    /// Clients refused in the TLS handshake because their certificate has expired.
    tls_certificates_expired: u64,
    /// Clients refused in the TLS handshake because their certificate is not valid yet.
    tls_certificates_not_yet_valid: u64,
    /// Clients refused in the TLS handshake because their certificate is not for clients.
    tls_certificates_of_other_usage: u64,
    /// Clients refused in the TLS handshake for another defect of their certificate.
    tls_certificates_refused_otherwise: u64,
    /// Requests read from clients.
    requests: u64,
    /// Requests that respool answered without a server.
    requests_answered_locally: u64,
    /// Bytes read from clients.
    session_bytes_in: u64,
    /// Bytes written to clients.
    session_bytes_out: u64,
    /// Links now, in any state.
    links: u64,
    /// Links that were connected: the server answered the handshake.
    links_connected: u64,
    /// Links that were lost, or could not be established.
    links_lost: u64,
    /// Servers that cannot be reached, now. Each worker counts the servers to which it has no link.
    servers_down: u64,
    /// Requests put on links.
    link_requests: u64,
    /// Batches: writes that carried requests to a server.
    batches: u64,
    /// The sizes of batches to servers, in requests as clients sent them: one, two, up to 4, 8, ...
    /// 1024, and more; and the sum of the sizes.
    batch_requests: Sizes,
    /// Batches that left because the link was idle and no session was expected, or because the
    /// flush rule holds no batch there.
    flushed_idle: u64,
    /// Batches that left because they were full.
    flushed_full: u64,
    /// Batches that left because their oldest request had waited as long as it may: at most
    /// `max-delay-us`.
    flushed_late: u64,
    /// MGETs and MSETs that were made of several requests.
    fused_batches: u64,
    /// GETs that left in an MGET of several requests, equal ones included.
    fused_gets: u64,
    /// SETs that left in an MSET of several requests.
    fused_sets: u64,
    /// Reads that took the reply of an equal read.
    reads_collapsed: u64,
    /// Commands that servers did not get, because requests left joined.
    commands_saved: u64,
    /// Requests that left joined and had to be sent again alone, so that no command was saved.
    joined_requests_resent: u64,
    /// How often a link stopped joining GETs, for a while or for good: too many found nothing, or
    /// the server refused the MGET.
    get_fusing_stops: u64,
    /// How often a link stopped joining SETs because the server refused the MSET.
    set_fusing_stops: u64,
    /// How often a link to a node of a Cluster stopped joining GETs and SETs: too few neighbours
    /// had the same slot.
    slot_fusing_stops: u64,
    /// How often a link stopped looking for equal reads: too few were equal, or copies were too
    /// large.
    collapsing_stops: u64,
    /// Replies from servers. A reply to a joined MGET counts once for each value.
    link_replies: u64,
    /// Bytes read from servers.
    link_bytes_in: u64,
    /// Bytes written to servers.
    link_bytes_out: u64,
    /// Replies that came after their request had been given up, and were dropped.
    late_replies: u64,
    /// Requests that failed because their deadline passed.
    requests_timed_out: u64,
    /// Requests that failed and surely were not executed.
    failed_not_sent: u64,
    /// Requests that failed after they were sent.
    failed_unknown: u64,
    /// Requests that were sent again after a link was lost, drained or taken over: reads, and
    /// others that may run twice.
    reads_sent_again: u64,
    /// Requests that a node of a Cluster redirected to the new owner of their slot (MOVED).
    redirected_moved: u64,
    /// Requests that a node redirected while their slot was moving (ASK).
    redirected_ask: u64,
    /// Requests that a server refused for a moment, sent again a little later.
    requests_deferred: u64,
    /// Refreshes of the topology: how often nodes of Clusters were asked for the owners of slots.
    topology_refreshes: u64,
    /// Commands that respool refused: it does not support them, in this pool or with these
    /// arguments; the option `refuse-commands` names them; or their keys cannot lose the pool's
    /// prefix.
    commands_refused: u64,
    /// Logins of clients that were refused, by a server or by respool.
    logins_refused: u64,
    /// Requests too large to hold, streamed on a link of their own.
    streamed_requests: u64,
    /// Links that were given to one session for its own use.
    dedicated_links_given: u64,
    /// How often a request needed a link of its own, and `pinned-links-max` was reached.
    pinned_links_full: u64,
    /// How often a large request needed a streaming link, and `streaming-links-max` was reached.
    streaming_links_full: u64,
    /// How often a request needed another shared link, and `links-max` was reached.
    links_full: u64,
    /// How often a request waited because its reply might have passed a limit of the server:
    /// `client-output-buffer-limit` or `maxmemory-clients`.
    output_limit_waits: u64,
    /// Idle links that were closed to make room for others within `links-max`.
    links_closed_for_room: u64,
    /// Sessions that lost a streaming link because they were too slow while other sessions waited
    /// for one.
    slow_uploads_ended: u64,
    /// Sessions that lost the link on which they watched keys because other sessions waited for
    /// one.
    watches_ended: u64,
    /// Transactions sent.
    transactions: u64,
    /// Scripts loaded again because their server had forgotten them.
    scripts_reloaded: u64,
    /// Links drained because a slow session held them up.
    links_drained: u64,
    /// Links drained because their server did not answer there, but answered on another link.
    silent_links_replaced: u64,
    /// Blocking commands sent in a form that does not wait, because no pinned link was free.
    blocking_polls: u64,
    /// Channels and patterns that sessions subscribe to, each for itself, now.
    subscriptions: u64,
    /// Messages from servers.
    messages_in: u64,
    /// Messages put into the outputs of sessions.
    messages_out: u64,
    /// Bytes held for sessions, now, by the lengths of buffers.
    held_bytes: u64,
    /// Memory that is compared with `worker-memory-bytes-max`, now: the accounts below without
    /// `respool_memory_spared_bytes`. The accounts are measured in turn, so they may be a second
    /// old.
    memory_bytes: u64,
    /// Memory in the accounts `link`, `tls` and `other` that is not compared with
    /// `worker-memory-bytes-max`, because closing sessions would not free it: the first 2 MiB of a
    /// worker, and all above a quarter of its limit.
    memory_spared_bytes: u64,
    /// Account: replies and messages that clients have not taken.
    memory_output_bytes: u64,
    /// Account: requests that have not come whole.
    memory_incomplete_bytes: u64,
    /// Account: requests that wait behind another one, for EXEC, or to be sent again.
    memory_queued_bytes: u64,
    /// Account: channels and patterns, with their names.
    memory_subscription_bytes: u64,
    /// Account: replies before their place, parts of replies, and answers of other workers.
    memory_answer_bytes: u64,
    /// Account: names of clients, and state that few sessions have.
    memory_state_bytes: u64,
    /// Account: unanswered requests of links, and replies that have not come whole.
    memory_link_bytes: u64,
    /// Account: keys and records of connections with TLS.
    memory_tls_bytes: u64,
    /// Account: tables of sessions, spare buffers, scripts, the slow log and hot keys.
    memory_other_bytes: u64,
    /// Memory of sessions that have not authenticated. It is in the accounts already.
    memory_unauthenticated_bytes: u64,
}

/// The counts of clients that the driver keeps: those with TLS, and those without a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverCounts {
    /// Sessions with TLS, now.
    pub sessions: u64,
    /// Handshakes that go on, now.
    pub handshaking: u64,
    /// Handshakes that are done.
    pub handshakes: u64,
    /// Handshakes that failed.
    pub handshakes_failed: u64,
    /// Clients refused because they showed no certificate.
    pub certificates_missing: u64,
    /// Clients refused because no CA that is trusted has signed their certificate.
    pub certificates_of_unknown_ca: u64,
    /// Clients refused because their certificate has expired.
    pub certificates_expired: u64,
    /// Clients refused because their certificate is not valid yet.
    pub certificates_not_yet_valid: u64,
    /// Clients refused because their certificate is not for clients.
    pub certificates_of_other_usage: u64,
    /// Clients refused for another defect of their certificate.
    pub certificates_refused_otherwise: u64,
    /// Bytes of memory that TLS takes, now: of clients and of servers.
    pub memory_bytes: u64,
    /// Clients that were refused because `sessions-max` sessions were open.
    pub refused_full: u64,
    /// Clients that were refused because no file descriptor was left.
    pub refused_descriptors: u64,
}

impl DriverCounts {
    /// Puts them into the counters, except the memory, which has an account.
    pub(crate) fn count(&self, counters: &mut Counters) {
        counters.clients_refused_full = self.refused_full;
        counters.clients_refused_descriptors = self.refused_descriptors;
        counters.tls_sessions = self.sessions;
        counters.tls_handshaking = self.handshaking;
        counters.tls_handshakes = self.handshakes;
        counters.tls_handshakes_failed = self.handshakes_failed;
        counters.tls_certificates_missing = self.certificates_missing;
        counters.tls_certificates_of_unknown_ca = self.certificates_of_unknown_ca;
        counters.tls_certificates_expired = self.certificates_expired;
        counters.tls_certificates_not_yet_valid = self.certificates_not_yet_valid;
        counters.tls_certificates_of_other_usage = self.certificates_of_other_usage;
        counters.tls_certificates_refused_otherwise = self.certificates_refused_otherwise;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_counts_in_the_smallest_bucket_that_holds_it() {
        let mut sizes = Sizes::default();
        [1, 2, 3, 4, 5, 8, 9, 1_024, 1_025, 70_000]
            .into_iter()
            .for_each(|size| sizes.note(size));
        let text = "1=1,2=1,4=2,8=2,16=1,32=0,64=0,128=0,256=0,512=0,1024=1,more=2,sum=72081";
        assert_eq!(sizes.to_string(), text);
        sizes += sizes;
        assert_eq!(sizes.sum(), 2 * 72_081);
        assert_eq!(sizes.buckets().map(|(_, count)| count).sum::<u64>(), 20);
    }

    #[test]
    fn every_counter_has_a_text() {
        let named = Counters::default();
        let names: Vec<_> = named.each().map(|(name, _)| name).collect();
        let texts: Vec<_> = Counters::TEXTS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, texts);
        assert!(Counters::TEXTS.iter().all(|(_, text)| text.ends_with('.')));
    }
}
