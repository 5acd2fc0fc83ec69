//! The move of a hub to the pool that a reload puts in place of its own. Members and claims stay.
//!
//! ```text
//!   channels and patterns ──► the home of the new pool; the old one is heard meanwhile (`removal`)
//!   sharded channels      ──► the owner of the slot in a Cluster, else the home
//! ```

use std::sync::Arc;

use respool_protocol::slot::hash_slot;

use super::{ChannelId, ChannelKind, Hub};

impl Hub {
    /// Counts its subscribers for another pool from now on.
    pub(crate) fn enter_pool(&mut self, pool: u16) {
        let counts = Arc::clone(&self.subscriber_counts);
        for (_, channel) in self.channels.iter_mut() {
            let excess = std::mem::take(&mut channel.counted_excess);
            counts.add(self.pool, channel.kind, &channel.name, -excess);
        }
        self.pool = pool;
        let all: Vec<ChannelId> = self.channels.iter().map(|(id, _)| id).collect();
        for id in all {
            self.update_excess(id);
        }
    }

    /// The sharded channels, with their slots.
    pub(crate) fn sharded_channels(&self) -> Vec<(ChannelId, u16)> {
        let ids = self.names[ChannelKind::Shard as usize].iter();
        let mut channels: Vec<_> = ids.map(|(name, id)| (*id, hash_slot(name))).collect();
        // The order has no meaning, but it is always the same.
        channels.sort_unstable_by_key(|(id, _)| id.index);
        channels
    }
}
