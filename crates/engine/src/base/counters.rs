//! What an engine counts: plain numbers of one worker, added up by who collects them.

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
            /// Adds another worker's.
            pub fn add(&mut self, other: &Counters) {
                $(self.$name += other.$name;)+
            }

            /// Every counter with its name, in the order of their declaration.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, Counted)> {
                [$((stringify!($name), Counted::from(self.$name)),)+].into_iter()
            }

            /// What each of them counts, in the same order.
            pub const TEXTS: &[(&str, &str)] = &[$((stringify!($name), concat!($($doc,)+)),)+];
        }
    };
}

/// What a counter holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// A number.
    Number(u64),
    /// How often which size was met.
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

/// How often which size was met: 1, 2, up to 4, up to 8, and so on up to 1024; and more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    buckets: [u64; Sizes::BUCKETS],
    sum: u64,
}

impl Sizes {
    const BUCKETS: usize = 12;

    /// A size was met.
    pub(crate) fn note(&mut self, size: usize) {
        let bucket = size.max(1).next_power_of_two().trailing_zeros() as usize;
        self.buckets[bucket.min(Sizes::BUCKETS - 1)] += 1;
        self.sum += size as u64;
    }

    /// The buckets: the largest size that each is for, and how often it was met. The last one is
    /// for all that is larger.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let last = Sizes::BUCKETS - 1;
        let largest = move |bucket: usize| (bucket < last).then_some(1 << bucket);
        let counts = self.buckets.into_iter().enumerate();
        counts.map(move |(bucket, count)| (largest(bucket), count))
    }

    /// All sizes together: divided by how many there were, their mean.
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
    /// Sessions we closed for breaking a rule or a bound.
    sessions_closed_by_us: u64,
    /// Of these, sessions closed before they authenticated: too late, or because memory was short.
    sessions_closed_unauthenticated: u64,
    /// Requests read from clients.
    requests: u64,
    /// Requests answered here, without a server.
    requests_answered_here: u64,
    /// Bytes read from clients.
    session_bytes_in: u64,
    /// Bytes written to clients.
    session_bytes_out: u64,
    /// Links now, in any state.
    links: u64,
    /// Links that came up.
    link_ups: u64,
    /// Links that were lost, or could not be established.
    link_downs: u64,
    /// Servers that cannot be reached, now: each worker counts for itself those to which it has no
    /// link.
    servers_away: u64,
    /// Requests put on links.
    link_requests: u64,
    /// Batches: writes that carried requests to a server.
    batches: u64,
    /// Of these, how many had so many requests as clients asked them: one, two, up to 4, 8, ...
    /// 1024, and more; and all their requests together.
    batch_requests: Sizes,
    /// Batches that left because nothing was in flight and nobody else was expected, or since
    /// nothing is held there.
    flushed_idle: u64,
    /// Batches that left because they were full.
    flushed_full: u64,
    /// Batches that left because their oldest request had waited `max_delay`.
    flushed_late: u64,
    /// MGETs and MSETs that were made of several requests.
    fused_batches: u64,
    /// GETs in them, with those that are the same.
    fused_gets: u64,
    /// SETs in them.
    fused_sets: u64,
    /// Reads that took the answer to an equal one.
    collapsed: u64,
    /// Commands that servers did not get, because what was asked left as one with others.
    commands_saved: u64,
    /// Requests that had to be asked again, each by itself: commands that were not saved in the
    /// end.
    asked_again: u64,
    /// How often a link stopped fusing GETs, for a while or for as long as it lasts: too many found
    /// nothing, or the server refused it ...
    gets_left_alone: u64,
    /// ... or SETs: the server refused it ...
    sets_left_alone: u64,
    /// ... or both, to a node of a Cluster: too few came side by side with another of their slot
    /// ...
    slots_left_alone: u64,
    /// ... or looking for equal reads: too few were, or copies were too large.
    reads_left_alone: u64,
    /// Replies from servers. What came in one for an MGET that was made of GETs counts by values.
    link_replies: u64,
    /// Bytes read from servers.
    link_bytes_in: u64,
    /// Bytes written to servers.
    link_bytes_out: u64,
    /// Replies that came after their request had been given up, and were dropped.
    late_replies: u64,
    /// Requests that ran into their deadline.
    timeouts: u64,
    /// Requests that failed and surely were not executed.
    failed_not_sent: u64,
    /// Requests that failed after they were sent.
    failed_unknown: u64,
    /// Requests that were sent again, after a link was lost, captured or taken over: reads, and others
    /// that may run twice.
    reads_sent_again: u64,
    /// Requests that a node of a Cluster sent to another one, whose their slot had become ...
    redirected_moved: u64,
    /// ... or to which it was on its way ...
    redirected_ask: u64,
    /// ... or that a node did not execute just then: asked again a little later.
    refused_for_now: u64,
    /// How often nodes of Clusters were asked which of them owns what.
    topology_refreshes: u64,
    /// Requests refused because we do not pass such on.
    refused: u64,
    /// Logins of clients that were refused, by a server or by respool.
    logins_refused: u64,
    /// Requests too large to hold, cut through on a link of their own.
    streamed_requests: u64,
    /// Sessions that were given a link of their own.
    pins: u64,
    /// How often a request needed a link of its own, and `pinned-links-max` was reached.
    pinned_links_full: u64,
    /// How often a large request needed a streaming link, and `streaming-links-max` was reached.
    streaming_links_full: u64,
    /// How often a request needed another link that sessions share, and `links-max` was reached.
    links_full: u64,
    /// How often a request waited because its reply might have made a link owe more than its server
    /// allows: `client-output-buffer-limit` or `maxmemory-clients`.
    reply_room_waits: u64,
    /// Idle links that were closed to make room for others within `links-max`.
    links_closed_for_room: u64,
    /// Sessions that lost a streaming link because they were too slow while others waited for one.
    slow_uploads_ended: u64,
    /// Sessions that lost the link on which they watched keys because others waited for one.
    watches_ended: u64,
    /// Transactions sent.
    transactions: u64,
    /// Scripts sent along because their server had forgotten them.
    scripts_sent_along: u64,
    /// Links taken out of sharing because a slow session held them up.
    captured_links: u64,
    /// Links left to what they owed because their server gave no answer there and answered on
    /// another link.
    takeovers: u64,
    /// Blocking commands sent so that they do not wait, where no pinned link was free.
    polls: u64,
    /// Channels and patterns that sessions subscribe to, each for itself, now.
    subscriptions: u64,
    /// Messages from servers.
    messages_in: u64,
    /// Messages put into the outputs of sessions.
    messages_out: u64,
    /// Bytes held for sessions, now, by their length.
    held_bytes: u64,
    /// Memory that is compared with `worker-memory-bytes-max`, now: these bytes with the room
    /// behind them, and what the accounts below have beside them. The accounts are measured in
    /// turn, so they may be a second old.
    memory_bytes: u64,
    /// Of it, replies and messages that clients have not taken.
    memory_output_bytes: u64,
    /// Of it, requests that have not come whole.
    memory_incomplete_bytes: u64,
    /// Of it, requests that wait: behind another one, for EXEC, to be asked again.
    memory_queued_bytes: u64,
    /// Of it, channels and patterns, with their names.
    memory_subscription_bytes: u64,
    /// Of it, replies before their turn, parts of replies, and answers of other workers.
    memory_answer_bytes: u64,
    /// Of it, names of clients and the state that few sessions have.
    memory_state_bytes: u64,
    /// Of it, links: requests that are not answered, and replies that have not come whole.
    memory_link_bytes: u64,
    /// Of it, what sessions hold that have not authenticated.
    memory_unauthenticated_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_counted_where_it_is_the_largest_power_of_two_or_less() {
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
    fn every_counter_says_what_it_counts() {
        let named = Counters::default();
        let names: Vec<_> = named.each().map(|(name, _)| name).collect();
        let texts: Vec<_> = Counters::TEXTS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, texts);
        assert!(Counters::TEXTS.iter().all(|(_, text)| text.ends_with('.')));
    }
}
