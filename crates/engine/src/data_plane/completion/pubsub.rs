//! Replies of servers to requests about channels.

use respool_protocol::cluster::Refusal;

/// The completion of a request about channels.
#[derive(Debug)]
pub(crate) enum PubsubCompletion {
    /// Own: a request of a hub.
    HubRequest,
    /// Own: a hub leaves a channel, and a PING follows. `has_left`: the server has replied to
    /// the first request.
    Leave { has_left: bool },
    /// PUBLISH, SPUBLISH: the server's count lacks this many receivers.
    Receivers(i64),
    /// PUBSUB NUMSUB, SHARDNUMSUB: the server's count of each channel lacks subscribers of respool.
    Subscribers(ChannelKind),
}

impl PubsubCompletion {
    /// Takes a reply that is not the last one. Returns whether the reply was such a one.
    pub(crate) fn take_early(&mut self, reply: &[u8]) -> bool {
        match self {
            PubsubCompletion::Leave { has_left } if answers_leaving(*has_left, reply) => {
                *has_left = true;
                true
            }
            _ => false,
        }
    }
}

/// Whether an error answers a request to leave a sharded channel, and not the PING after it.
fn answers_leaving(has_left: bool, reply: &[u8]) -> bool {
    let refusal = reply.strip_prefix(b"-").map(Refusal::of);
    matches!(refusal, Some(Some(Refusal::Moved | Refusal::ClusterDown)))
        || refusal.is_some() && !has_left
}

/// The kinds of subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ChannelKind {
    /// A channel, by its name.
    Channel,
    /// All channels with names that match a pattern.
    Pattern,
    /// A sharded channel, by its name: SPUBLISH reaches it, PUBLISH does not.
    Shard,
}

impl ChannelKind {
    pub(crate) const ALL: [ChannelKind; 3] = [
        ChannelKind::Channel,
        ChannelKind::Pattern,
        ChannelKind::Shard,
    ];

    /// The word in requests and confirmations.
    pub(crate) fn verb(self, on: bool) -> &'static str {
        match (self, on) {
            (ChannelKind::Channel, true) => "subscribe",
            (ChannelKind::Channel, false) => "unsubscribe",
            (ChannelKind::Pattern, true) => "psubscribe",
            (ChannelKind::Pattern, false) => "punsubscribe",
            (ChannelKind::Shard, true) => "ssubscribe",
            (ChannelKind::Shard, false) => "sunsubscribe",
        }
    }
}
