//! What an engine counts: plain numbers of one worker, added up by who collects them.

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Totals since the start, and gauges of this moment. One worker's, or the sum over several.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Counters {
            /// Adds another worker's.
            pub fn add(&mut self, other: &Counters) {
                $(self.$name += other.$name;)+
            }

            /// Every counter with its name, in the order of their declaration.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }
        }
    };
}

counters! {
    /// Sessions ever accepted.
    sessions_total,
    /// Sessions now.
    sessions,
    /// Sessions we closed for breaking a rule or a bound.
    sessions_closed_by_us,
    /// Requests read from clients.
    requests,
    /// Requests answered here, without a server.
    requests_answered_here,
    /// Bytes read from clients.
    session_bytes_in,
    /// Bytes written to clients.
    session_bytes_out,
    /// Links now, in any state.
    links,
    /// Links that came up.
    link_ups,
    /// Links that were lost, or could not be established.
    link_downs,
    /// Requests put on links.
    link_requests,
    /// Batches: writes that carried requests to a server.
    batches,
    /// Batches that left because nothing was in flight and nobody else was expected.
    flushed_idle,
    /// Batches that left because they were full.
    flushed_full,
    /// Batches that left because their oldest request had waited `max_delay`.
    flushed_late,
    /// MGETs and MSETs that were made of several requests; the GETs and SETs that they were made of; and those
    /// of them that had to be asked again.
    fused_batches,
    /// GETs in them.
    fused_gets,
    /// SETs in them.
    fused_sets,
    /// Reads that took the answer to an equal one.
    collapsed,
    /// Those of all these that were asked again.
    asked_again,
    /// Replies from servers.
    link_replies,
    /// Bytes read from servers.
    link_bytes_in,
    /// Bytes written to servers.
    link_bytes_out,
    /// Replies that came after their request had been given up, and were dropped.
    late_replies,
    /// Requests that ran into their deadline.
    timeouts,
    /// Requests that failed and surely were not executed.
    failed_not_sent,
    /// Requests that failed after they were sent.
    failed_unknown,
    /// Reads that were sent again, after a link was lost or captured.
    reads_sent_again,
    /// Requests refused because we do not pass such on.
    refused,
    /// Requests too large to hold, cut through on a link of their own.
    streamed_requests,
    /// Sessions that were given a link of their own.
    pins,
    /// Transactions sent.
    transactions,
    /// Scripts sent along because their server had forgotten them.
    scripts_sent_along,
    /// Links taken out of sharing because a slow session held them up.
    captured_links,
    /// Channels and patterns that sessions subscribe to, each for itself, now.
    subscriptions,
    /// Messages from servers.
    messages_in,
    /// Messages put into the outputs of sessions.
    messages_out,
    /// Bytes held for sessions and links, now.
    held_bytes,
}
