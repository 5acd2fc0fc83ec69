//! How many clients stand behind the subscriptions of all workers: what the count in a reply to
//! PUBLISH needs to be corrected by.
//!
//! A server counts connections. One of ours stands for all subscribers of a worker, so what the
//! server says of a channel is too little by the number of those subscribers, less one: the
//! *excess* of that worker. Workers add theirs up here. A channel with one subscriber per worker
//! has no excess and no entry.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::guess_delay::GuessDelay;
use crate::subscriptions::Kind;

/// By pool and kind, then by name. All of a pool's subscribers are at one server, which every
/// worker may know by another number.
type Excess = HashMap<(u16, Kind), HashMap<Arc<[u8]>, i64>>;

/// What all workers share: the excess of every channel and pattern, and the addresses of wrong
/// passwords.
#[derive(Debug, Default)]
pub struct Directory {
    /// Entries in `excess`: most requests need to know no more than that there are none.
    len: AtomicUsize,
    excess: Mutex<Excess>,
    /// Of each Cluster, the node where it is published and listened: what servers count is of their
    /// own connections.
    homes: Mutex<HashMap<u16, String>>,
    guesses: Mutex<GuessDelay>,
}

impl Directory {
    /// Whether what servers count is right everywhere.
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 0
    }

    /// What one worker's subscribers change.
    pub(crate) fn add(&self, pool: u16, kind: Kind, name: &Arc<[u8]>, change: i64) {
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

    /// By how much the server's count of a channel's subscribers is too little.
    pub(crate) fn subscribers(&self, pool: u16, kind: Kind, name: &[u8]) -> i64 {
        let servers = self.lock();
        let names = servers.get(&(pool, kind));
        names
            .and_then(|names| names.get(name))
            .copied()
            .unwrap_or(0)
    }

    /// By how much the server's count of the receivers of a message is too little.
    pub(crate) fn receivers(&self, pool: u16, kind: Kind, name: &[u8]) -> i64 {
        let servers = self.lock();
        let excess = |kind| servers.get(&(pool, kind));
        let exact = excess(kind).and_then(|names| names.get(name)).copied();
        let mut receivers = exact.unwrap_or(0);
        if kind == Kind::Channel
            && let Some(patterns) = excess(Kind::Pattern)
        {
            let of = patterns
                .iter()
                .filter(|(pattern, _)| matches(pattern, name));
            receivers += of.map(|(_, excess)| excess).sum::<i64>();
        }
        receivers
    }

    /// Of each Cluster, the node for everything that is published, once a worker has chosen one.
    pub(crate) fn homes(&self) -> MutexGuard<'_, HashMap<u16, String>> {
        self.homes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The delay of logins after wrong passwords. Only logins ask for it.
    pub(crate) fn guesses(&self) -> MutexGuard<'_, GuessDelay> {
        self.guesses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Excess> {
        // Every change is a single step: a worker that panicked has not left half of one.
        self.excess.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a channel's name is of a pattern, as Redis has it (`stringmatchlen`): `*`, `?`, `[a-c]`,
/// `[^a]`, and `\` in front of what is meant as it is.
pub(crate) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut of) = (0, 0);
    // Where to go on if it does not match behind the last `*`: with one more byte for that one. To
    // look at the last one only is enough: an earlier one can take nothing that this one cannot.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if at < pattern.len() && pattern[at] == b'*' {
            at += 1;
            retry = Some((at, of));
            continue;
        }
        if of == name.len() && at == pattern.len() {
            return true;
        }
        if of < name.len()
            && at < pattern.len()
            && let Some(behind) = matches_one(pattern, at, name[of])
        {
            at = behind;
            of += 1;
            continue;
        }
        match retry {
            Some((star, from)) if from < name.len() => {
                retry = Some((star, from + 1));
                at = star;
                of = from + 1;
            }
            _ => return false,
        }
    }
}

/// Where the pattern goes on if what stands at `at` matches this byte.
fn matches_one(pattern: &[u8], at: usize, byte: u8) -> Option<usize> {
    match pattern[at] {
        b'?' => Some(at + 1),
        b'[' => {
            let mut at = at + 1;
            let not = pattern.get(at) == Some(&b'^');
            at += usize::from(not);
            let mut found = false;
            loop {
                match &pattern[at.min(pattern.len())..] {
                    // A class that does not end is one up to the end.
                    [] => break,
                    [b'\\', escaped, ..] => {
                        found |= *escaped == byte;
                        at += 2;
                    }
                    [b']', ..] => {
                        at += 1;
                        break;
                    }
                    [from, b'-', to, ..] => {
                        found |= (*from.min(to)..=*from.max(to)).contains(&byte);
                        at += 3;
                    }
                    [one, ..] => {
                        found |= *one == byte;
                        at += 1;
                    }
                }
            }
            (found != not).then_some(at)
        }
        b'\\' if at + 1 < pattern.len() => (pattern[at + 1] == byte).then_some(at + 2),
        one => (one == byte).then_some(at + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(bytes: &[u8]) -> Arc<[u8]> {
        bytes.into()
    }

    #[test]
    fn a_pattern_matches_what_redis_says_it_matches() {
        let cases: &[(&str, &str, bool)] = &[
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("**", "abc", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abcdef", false),
            ("*bc", "abcbc", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h[a-c]llo", "hdllo", false),
            // The end of this range is the bracket: the class goes on to the end.
            ("h[a-]llo", "hl", true),
            ("[\\]]x", "]x", true),
            ("[a", "a", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("a\\", "a\\", true),
            ("news.*", "news.", true),
            ("news.*", "new", false),
            ("__key*@[0-9]*__:*", "__keyspace@12__:k", true),
        ];
        for &(pattern, name, expected) in cases {
            assert_eq!(
                matches(pattern.as_bytes(), name.as_bytes()),
                expected,
                "{pattern} on {name}"
            );
        }
        // Takes for ever where every star is tried again.
        assert!(!matches(
            "a*".repeat(40).as_bytes(),
            "a".repeat(39).as_bytes()
        ));
    }

    #[test]
    fn the_excess_of_a_message_is_that_of_its_channel_and_of_every_pattern_that_it_matches() {
        let directory = Directory::default();
        let (here, there) = (0, 1);
        assert!(directory.is_empty());
        directory.add(here, Kind::Channel, &name(b"news"), 4);
        directory.add(here, Kind::Pattern, &name(b"n*"), 2);
        directory.add(here, Kind::Pattern, &name(b"*"), -1);
        directory.add(here, Kind::Pattern, &name(b"x*"), 100);
        directory.add(here, Kind::Shard, &name(b"news"), 1000);
        directory.add(there, Kind::Channel, &name(b"news"), 50);
        assert_eq!(directory.receivers(here, Kind::Channel, b"news"), 5);
        assert_eq!(directory.receivers(here, Kind::Shard, b"news"), 1000);
        assert_eq!(directory.subscribers(here, Kind::Channel, b"news"), 4);
        assert_eq!(directory.receivers(there, Kind::Channel, b"news"), 50);
        assert_eq!(directory.receivers(there, Kind::Channel, b"old"), 0);
    }

    #[test]
    fn what_comes_to_nothing_leaves_nothing() {
        let directory = Directory::default();
        directory.add(0, Kind::Channel, &name(b"a"), 2);
        directory.add(0, Kind::Channel, &name(b"a"), 0);
        directory.add(0, Kind::Channel, &name(b"a"), -3);
        directory.add(0, Kind::Channel, &name(b"a"), 1);
        assert!(directory.is_empty());
        assert_eq!(directory.subscribers(0, Kind::Channel, b"a"), 0);
    }
}
