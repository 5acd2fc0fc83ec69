//! The subscribers of all workers, by which respool corrects the counts of the servers.
//!
//! A server counts connections. One connection of respool stands for all subscribers of a worker.
//! So the server's count for a channel is too low by the number of those subscribers, less one: the
//! *excess* of that worker. This table adds up the excess of all workers. A channel with one
//! subscriber per worker has no excess and no entry.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::glob::matches;
use crate::data_plane::completion::pubsub::ChannelKind;
use crate::data_plane::guess_delay::GuessDelay;

/// The excess by pool and kind, then by name. It does not name the server: all of a pool's
/// subscribers are at one server, and each worker may number it differently.
type Excess = HashMap<(u16, ChannelKind), HashMap<Arc<[u8]>, i64>>;

/// State that all workers share: the excess of every channel and pattern, and the addresses with
/// wrong passwords.
#[derive(Debug, Default)]
pub struct SubscriberCounts {
    /// The number of entries in `excess`. Most requests only ask whether it is zero.
    len: AtomicUsize,
    excess: Mutex<Excess>,
    /// The node of each Cluster at which all workers publish and listen. A server counts its own
    /// connections alone.
    default_servers: Mutex<HashMap<u16, String>>,
    guesses: Arc<Mutex<GuessDelay>>,
}

impl SubscriberCounts {
    /// Whether the servers' counts are right for every channel.
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 0
    }

    /// Adds the change of one worker's excess.
    pub(crate) fn add(&self, pool: u16, kind: ChannelKind, name: &Arc<[u8]>, change: i64) {
        if change == 0 {
            return;
        }
        let mut servers = self.lock();
        let names = servers.entry((pool, kind)).or_default();
        match names.get_mut(&name[..]) {
            Some(excess) if *excess + change == 0 => {
                names.remove(&name[..]);
                self.len.fetch_sub(1, Ordering::Relaxed);
            }
            Some(excess) => *excess += change,
            None => {
                names.insert(name.clone(), change);
                self.len.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The number by which the server's count of a channel's subscribers is too low.
    pub(crate) fn subscribers(&self, pool: u16, kind: ChannelKind, name: &[u8]) -> i64 {
        let servers = self.lock();
        let names = servers.get(&(pool, kind));
        names
            .and_then(|names| names.get(name))
            .copied()
            .unwrap_or(0)
    }

    /// The number by which the server's count of a message's receivers is too low.
    pub(crate) fn receivers(&self, pool: u16, kind: ChannelKind, name: &[u8]) -> i64 {
        let servers = self.lock();
        let excess = |kind| servers.get(&(pool, kind));
        let exact = excess(kind).and_then(|names| names.get(name)).copied();
        let mut receivers = exact.unwrap_or(0);
        if kind == ChannelKind::Channel
            && let Some(patterns) = excess(ChannelKind::Pattern)
        {
            let of = patterns
                .iter()
                .filter(|(pattern, _)| matches(pattern, name));
            receivers += of.map(|(_, excess)| excess).sum::<i64>();
        }
        receivers
    }

    /// The node of each Cluster for all messages, once a worker has chosen one.
    pub(crate) fn default_servers(&self) -> MutexGuard<'_, HashMap<u16, String>> {
        self.default_servers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The delay of logins after wrong passwords. Only logins ask for it.
    pub(crate) fn guesses(&self) -> Arc<Mutex<GuessDelay>> {
        Arc::clone(&self.guesses)
    }

    fn lock(&self) -> MutexGuard<'_, Excess> {
        // Every change is a single step, so a worker that panicked left no half change.
        self.excess.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(bytes: &[u8]) -> Arc<[u8]> {
        bytes.into()
    }

    /// The excess of a message is that of its channel and of every pattern that it matches.
    #[test]
    fn message_excess_adds_channel_and_matching_patterns() {
        let counts = SubscriberCounts::default();
        let (pool, other_pool) = (0, 1);
        assert!(counts.is_empty());
        counts.add(pool, ChannelKind::Channel, &name(b"news"), 4);
        counts.add(pool, ChannelKind::Pattern, &name(b"n*"), 2);
        counts.add(pool, ChannelKind::Pattern, &name(b"*"), -1);
        counts.add(pool, ChannelKind::Pattern, &name(b"x*"), 100);
        counts.add(pool, ChannelKind::Shard, &name(b"news"), 1000);
        counts.add(other_pool, ChannelKind::Channel, &name(b"news"), 50);
        assert_eq!(counts.receivers(pool, ChannelKind::Channel, b"news"), 5);
        assert_eq!(counts.receivers(pool, ChannelKind::Shard, b"news"), 1000);
        assert_eq!(counts.subscribers(pool, ChannelKind::Channel, b"news"), 4);
        assert_eq!(
            counts.receivers(other_pool, ChannelKind::Channel, b"news"),
            50
        );
        assert_eq!(
            counts.receivers(other_pool, ChannelKind::Channel, b"old"),
            0
        );
    }

    /// An excess that returns to zero leaves no entry.
    #[test]
    fn zero_excess_leaves_no_entry() {
        let counts = SubscriberCounts::default();
        counts.add(0, ChannelKind::Channel, &name(b"a"), 2);
        counts.add(0, ChannelKind::Channel, &name(b"a"), 0);
        counts.add(0, ChannelKind::Channel, &name(b"a"), -3);
        counts.add(0, ChannelKind::Channel, &name(b"a"), 1);
        assert!(counts.is_empty());
        assert_eq!(counts.subscribers(0, ChannelKind::Channel, b"a"), 0);
    }
}
