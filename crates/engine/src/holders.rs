//! Sessions that hold a link which others wait for: each must use it, or lose it.
//!
//! ```text
//!   streaming link   brings 64 KiB a second, or the slowest session loses it    its client gets NOTSENT and is closed
//!   link by WATCH    held 3 s at the most                                       its EXEC answers nil
//! ```
//!
//! Nothing is measured while no session waits: an upload alone may be as slow as it likes. A wait in BLPOP is use of a
//! link, so it is never ended here.

use std::collections::HashMap;

use crate::bounds::Bound;
use crate::engine::{Engine, Event};
use crate::entry::Entry;
use crate::failure::{Cause, Fate};
use crate::limits::{UPLOAD_BYTES_PER_S_MIN, UPLOAD_WINDOW_MS, WATCH_HELD_MS};
use crate::link::{Link, Role};
use crate::session::{Flags, Pins, Session};
use crate::slots::Key;
use crate::time::Time;

/// What is known of sessions that hold what others wait for, by their links. Report all holders in every tick with
/// [`Holders::slowest`] and [`Holders::longest`]; time never runs back.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    uploads: HashMap<Key, Pace>,
    /// The session that watches, and since when it was seen to.
    watches: HashMap<Key, (Key, Time)>,
}

/// How fast a session uses its streaming link.
#[derive(Clone, Copy, Debug)]
struct Pace {
    since: Time,
    /// Bytes that it had moved by then.
    bytes: u64,
}

impl Pace {
    /// Bytes a second since then; `None`: the time was too short to tell.
    fn rate(self, now: Time, bytes: u64) -> Option<u64> {
        let ms = now.since_ms(self.since);
        (ms >= UPLOAD_WINDOW_MS).then(|| bytes.saturating_sub(self.bytes) * 1_000 / ms)
    }
}

impl Holders {
    /// The link whose session is slowest of all below the least rate. `all`: each link with the bytes that its session has
    /// moved, or without if the server is to move next.
    fn slowest(&mut self, now: Time, all: impl Iterator<Item = (Key, Option<u64>)>) -> Option<Key> {
        let mut seen = HashMap::new();
        let mut slowest: Option<(u64, Key)> = None;
        for (link, bytes) in all {
            let Some(bytes) = bytes else {
                continue;
            };
            let fresh = Pace { since: now, bytes };
            let pace = self.uploads.get(&link).copied().unwrap_or(fresh);
            let next = match pace.rate(now, bytes) {
                Some(rate) if rate < UPLOAD_BYTES_PER_S_MIN => {
                    if slowest.is_none_or(|(least, _)| rate < least) {
                        slowest = Some((rate, link));
                    }
                    pace
                }
                Some(_) => fresh,
                None => pace,
            };
            seen.insert(link, next);
        }
        self.uploads = seen;
        slowest.map(|(_, link)| link)
    }

    /// The link that has been held longest by WATCH alone, for `held_ms` at least. `all`: each such link with its session.
    fn longest(
        &mut self,
        now: Time,
        held_ms: u32,
        all: impl Iterator<Item = (Key, Key)>,
    ) -> Option<Key> {
        let mut seen = HashMap::new();
        for (link, session) in all {
            let known = self.watches.get(&link).copied();
            let same = known.filter(|(before, _)| *before == session);
            seen.insert(link, same.unwrap_or((session, now)));
        }
        self.watches = seen;
        let held = self
            .watches
            .iter()
            .map(|(link, (_, since))| (*since, *link));
        held.filter(|(since, _)| now.since_ms(*since) >= u64::from(held_ms))
            .min()
            .map(|(_, link)| link)
    }
}

impl Engine {
    /// Ends the use of at most one link of each kind that others wait for.
    pub(crate) fn tick_holders(&mut self) {
        if self.streaming_waiters.is_empty() || self.has_room_for_streaming() {
            self.holders.uploads.clear();
        } else {
            self.end_slowest();
        }
        if self.pinned_waiters.is_empty() || self.has_room_for_own_link() {
            self.holders.watches.clear();
        } else {
            self.end_longest_watch();
        }
    }

    fn end_slowest(&mut self) {
        let (now, sessions) = (self.now, &self.sessions);
        let used = |(key, link): (Key, &Link)| match link.role {
            Role::Streaming { by } => {
                let moved = sessions.get(by).and_then(bytes_moved);
                Some((key, moved))
            }
            _ => None,
        };
        let all = self.links.iter().filter_map(used);
        let Some(link) = self.holders.slowest(now, all) else {
            return;
        };
        let by = self
            .links
            .get(link)
            .map_or(Key::NOBODY, |link| link.role.captor());
        let uploads = |session: &Session| session.flags.any(Flags::STREAMING);
        self.counters.slow_uploads_ended += 1;
        let name = Bound::StreamingLinks.name();
        let reason = format!(
            "{name}: it moved less than {UPLOAD_BYTES_PER_S_MIN} bytes a second while others waited"
        );
        if !self.sessions.get(by).is_some_and(uploads) {
            return self.close_for(by, reason);
        }
        self.fail_slow_upload(by, link);
        if let Some(session) = self.sessions.get(by) {
            let peer = session.peer.to_string();
            self.counters.sessions_closed_by_us += 1;
            self.tell(Event::SessionClosed { peer, reason });
        }
        self.close_when_answered(by);
    }

    /// The server gets no more of a large request, and so does not execute it.
    fn fail_slow_upload(&mut self, key: Key, link: Key) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let seq = session.next_seq.wrapping_sub(1);
        let large = session.rare().large.take();
        session.flags.remove(Flags::STREAMING);
        self.abandon(link);
        let entry = Entry {
            silent: large.is_some_and(|large| large.silent),
            ..Entry::of(key, seq, self.now_ms)
        };
        let cause = Cause::Slow {
            name: Bound::StreamingLinks.name(),
            least: UPLOAD_BYTES_PER_S_MIN,
        };
        self.fail(entry, Fate::NotSent, cause);
    }

    fn end_longest_watch(&mut self) {
        let request_ms = self.settings.timeouts.request_ms;
        let held_ms = match request_ms {
            0 => WATCH_HELD_MS,
            _ => WATCH_HELD_MS.min(request_ms / 2),
        };
        let (now, sessions) = (self.now, &self.sessions);
        let watches = |(key, link): (Key, &Link)| {
            let Role::Pinned { by } = link.role else {
                return None;
            };
            let session = sessions.get(by)?;
            let only_watches = session.pins == Pins::WATCH
                && session.link == key
                && session.is_caught_up()
                && link.ledger.is_empty()
                && !session.flags.any(Flags::UNPINNING | Flags::STREAMING);
            only_watches.then_some((key, by))
        };
        let all = self.links.iter().filter_map(watches);
        let Some(link) = self.holders.longest(now, held_ms, all) else {
            return;
        };
        let by = self
            .links
            .get(link)
            .map_or(Key::NOBODY, |link| link.role.captor());
        let server = self.label(link).to_owned();
        let lost = Cause::LinkLost {
            server: &server,
            reason: "others waited for the link",
        };
        self.counters.watches_ended += 1;
        self.lose_pins(by, link, true, lost);
        self.close_link(link);
    }
}

/// Bytes that a session has moved of what its streaming link is for; `None`: the server is to move next.
fn bytes_moved(session: &Session) -> Option<u64> {
    let flags = session.flags;
    match flags.any(Flags::STREAMING) {
        true => (!flags.any(Flags::HOLD)).then_some(session.bytes_in),
        false => flags.any(Flags::HOLD_OUTPUT).then_some(session.bytes_out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(index: u32) -> Key {
        Key {
            index,
            generation: 1,
        }
    }

    /// The slowest upload is ended, after a whole window, and none that moves enough.
    #[test]
    fn upload_below_the_least_rate_is_ended_slowest_first() {
        let mut holders = Holders::default();
        let least = UPLOAD_BYTES_PER_S_MIN;
        let at = |ms: u32| Time(0).plus_ms(ms);
        let all = |factor: u64| {
            [
                (key(1), Some(factor * least)),
                (key(2), Some(factor * least / 4)),
                (key(3), Some(factor * least / 2)),
                (key(4), None),
            ]
            .into_iter()
        };
        assert_eq!(holders.slowest(at(0), all(0)), None);
        assert_eq!(holders.slowest(at(999), all(1)), None);
        assert_eq!(holders.slowest(at(1_000), all(1)), Some(key(2)));
        let left = all(1).filter(|(link, _)| *link != key(2));
        assert_eq!(holders.slowest(at(1_050), left), Some(key(3)));
        let left = all(1).filter(|(link, _)| *link == key(1));
        assert_eq!(holders.slowest(at(1_900), left.clone()), None);
        assert_eq!(holders.slowest(at(2_100), left), Some(key(1)));
    }

    /// The server's own slowness does not count against a client.
    #[test]
    fn upload_that_waits_for_its_server_begins_anew() {
        let mut holders = Holders::default();
        let at = |ms: u32| Time(0).plus_ms(ms);
        let mut report = |ms, bytes| holders.slowest(at(ms), [(key(1), bytes)].into_iter());
        assert_eq!(report(0, Some(0)), None);
        assert_eq!(report(900, None), None);
        assert_eq!(report(1_200, Some(0)), None);
        assert_eq!(report(2_100, Some(0)), None);
        assert_eq!(report(2_200, Some(0)), Some(key(1)));
    }

    #[test]
    fn watch_held_longest_is_ended_first() {
        let mut holders = Holders::default();
        let at = |ms: u32| Time(0).plus_ms(ms);
        let [one, other] = [(key(1), key(11)), (key(2), key(12))];
        assert_eq!(holders.longest(at(0), 100, [one].into_iter()), None);
        assert_eq!(holders.longest(at(50), 100, [other, one].into_iter()), None);
        let both = [other, one].into_iter();
        assert_eq!(holders.longest(at(160), 100, both), Some(key(1)));
        // Another session has the link now.
        let next = [(key(1), key(13)), other].into_iter();
        assert_eq!(holders.longest(at(170), 100, next), Some(key(2)));
        assert_eq!(
            holders.longest(at(180), 100, [(key(1), key(13))].into_iter()),
            None
        );
    }
}
