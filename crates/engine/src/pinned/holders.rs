//! Sessions that hold a link for which others wait: each must use the link, or lose it.
//!
//! ```text
//!   streaming link   64 KiB in each second,               its client gets NOTSENT and is closed
//!                    and 4 MiB a second over 5 s
//!   link by WATCH    3 s, then the next moment            its EXEC answers nil
//!                    without a request
//! ```
//!
//! Nothing is measured while no session waits: an upload alone may be as slow as it likes. A wait
//! in BLPOP is use of a link, so it is never ended here.

use std::collections::HashMap;

use crate::base::error::{Cause, Fate};
use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::{
    UPLOAD_BYTES_PER_S_FAIR, UPLOAD_BYTES_PER_S_MIN, UPLOAD_HELD_MS, UPLOAD_WINDOW_MS,
    WATCH_HELD_MS,
};
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::actions::Event;
use crate::data_plane::bounds_met::Bound;
use crate::data_plane::ledger::Entry;
use crate::data_plane::link::{Link, LinkRole};
use crate::data_plane::session::{Flags, Pins, Session};
use crate::data_plane::session_state::Holds;
use crate::pinned::Pinned;

/// Sessions that hold links for which others wait, by link. Report all holders in every tick with
/// [`Holders::slowest`] and [`Holders::longest`]. Time never runs back.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    uploads: HashMap<LinkId, Pace>,
    /// The session that watches, and when it was first reported.
    watches: HashMap<LinkId, (SessionId, Time)>,
}

/// The pace of a session on its streaming link while others wait.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// The start of the present window.
    window: BytesAt,
    /// The start of the wait of others.
    whole: BytesAt,
}

/// A time, and the bytes that a session had moved by then.
#[derive(Clone, Copy, Debug)]
struct BytesAt {
    since: Time,
    bytes: u64,
}

impl BytesAt {
    /// Bytes a second since this time. `None`: less than `least_ms` have passed.
    fn rate(self, now: BytesAt, least_ms: u64) -> Option<u64> {
        let ms = now.since.since_ms(self.since);
        let is_long = ms >= least_ms.max(1);
        is_long.then(|| now.bytes.saturating_sub(self.bytes) * 1_000 / ms)
    }
}

impl Pace {
    /// The rate and the least rate, if the session is below it.
    fn too_slow(self, now: BytesAt, held_ms: u64) -> Option<(u64, u64)> {
        let below = |rate: Option<u64>, least| rate.filter(|rate| *rate < least);
        let in_window = below(
            self.window.rate(now, UPLOAD_WINDOW_MS),
            UPLOAD_BYTES_PER_S_MIN,
        );
        let in_all = below(self.whole.rate(now, held_ms), UPLOAD_BYTES_PER_S_FAIR);
        in_window
            .map(|rate| (rate, UPLOAD_BYTES_PER_S_MIN))
            .or(in_all.map(|rate| (rate, UPLOAD_BYTES_PER_S_FAIR)))
    }
}

impl Holders {
    /// The link of the slowest session of all below their least rate, and that rate in bytes a
    /// second. `all`: each link with the bytes that its session has moved, or without if the server
    /// has to move next.
    fn slowest(
        &mut self,
        now: Time,
        held_ms: u32,
        all: impl Iterator<Item = (LinkId, Option<u64>)>,
    ) -> Option<(LinkId, u64)> {
        let mut seen = HashMap::new();
        let mut slowest: Option<(u64, LinkId, u64)> = None;
        for (link, bytes) in all {
            let Some(bytes) = bytes else {
                continue;
            };
            let moved = BytesAt { since: now, bytes };
            let fresh = Pace {
                window: moved,
                whole: moved,
            };
            let mut pace = self.uploads.get(&link).copied().unwrap_or(fresh);
            if let Some((rate, least)) = pace.too_slow(moved, u64::from(held_ms)) {
                if slowest.is_none_or(|(other, ..)| rate < other) {
                    slowest = Some((rate, link, least));
                }
            } else if pace.window.rate(moved, UPLOAD_WINDOW_MS).is_some() {
                pace.window = moved;
            }
            seen.insert(link, pace);
        }
        self.uploads = seen;
        slowest.map(|(_, link, least)| (link, least))
    }

    /// The idle link that a session has held longest by WATCH, for at least `held_ms`. `all`: each
    /// link of a session that watches, that session, and whether the link is idle now.
    fn longest(
        &mut self,
        now: Time,
        held_ms: u32,
        all: impl Iterator<Item = (LinkId, SessionId, bool)>,
    ) -> Option<LinkId> {
        let mut seen = HashMap::new();
        let mut longest: Option<(Time, LinkId)> = None;
        for (link, session, is_idle) in all {
            let known = self.watches.get(&link).copied();
            let same = known.filter(|(before, _)| *before == session);
            let (_, since) = *seen.entry(link).or_insert(same.unwrap_or((session, now)));
            if is_idle && now.since_ms(since) >= u64::from(held_ms) {
                let candidate = (since, link);
                longest = Some(longest.map_or(candidate, |other| other.min(candidate)));
            }
        }
        self.watches = seen;
        longest.map(|(_, link)| link)
    }
}

impl Pinned {
    /// Takes at most one link of each kind from its session when others wait.
    pub(crate) fn tick_holders(&mut self, plane: &mut DataPlane) {
        if plane
            .link_waiters
            .streaming
            .lack_room(plane.free_streaming_links())
        {
            self.end_slowest(plane);
        } else {
            self.holders.uploads.clear();
        }
        if plane.link_waiters.pinned.lack_room(plane.free_own_links()) {
            self.end_longest_watch(plane);
        } else {
            self.holders.watches.clear();
        }
    }

    fn end_slowest(&mut self, plane: &mut DataPlane) {
        let (now, sessions) = (plane.now, &plane.sessions);
        let used = |(id, link): (LinkId, &Link)| match link.role {
            LinkRole::Streaming { by } => {
                let moved = sessions.get(by).and_then(bytes_moved);
                Some((id, moved))
            }
            _ => None,
        };
        let all = plane.links.iter().filter_map(used);
        let held_ms = at_most_half(UPLOAD_HELD_MS, plane.settings.timeouts.request_ms);
        let Some((link, least)) = self.holders.slowest(now, held_ms, all) else {
            return;
        };
        let by = plane
            .links
            .get(link)
            .map_or(SessionId::NONE, |link| link.role.session());
        let uploads = |session: &Session| session.state.is_streaming();
        plane.counters.slow_uploads_ended += 1;
        let name = Bound::StreamingLinks.name();
        let reason = format!(
            "{name}: its client sent or took less than {least} bytes a second while others waited"
        );
        if !plane.sessions.get(by).is_some_and(uploads) {
            return plane.close_for(by, reason);
        }
        self.fail_slow_upload(plane, by, link, least);
        if let Some(session) = plane.sessions.get(by) {
            let peer = session.peer.to_string();
            plane.counters.sessions_closed_by_us += 1;
            plane.emit(Event::SessionClosed { peer, reason });
        }
        plane.close_when_answered(by);
    }

    /// Fails a large request. The server gets no more of it, and so does not execute it.
    fn fail_slow_upload(
        &mut self,
        plane: &mut DataPlane,
        session_id: SessionId,
        link: LinkId,
        least: u64,
    ) {
        let Some(session) = plane.sessions.get_mut(session_id) else {
            return;
        };
        let seq = session.next_seq.wrapping_sub(1);
        let large = session.rare().large.take();
        session.state.end_large();
        let command = session.last_command;
        self.abandon(plane, link);
        let silent = large.is_some_and(|large| large.silent);
        let entry = Entry::of(session_id, seq, plane.now_stamp)
            .of_command(command)
            .silenced(silent);
        let cause = Cause::Slow {
            name: Bound::StreamingLinks.name(),
            least,
        };
        plane.fail(entry, Fate::NotSent, cause);
    }

    fn end_longest_watch(&mut self, plane: &mut DataPlane) {
        let held_ms = at_most_half(WATCH_HELD_MS, plane.settings.timeouts.request_ms);
        let (now, sessions) = (plane.now, &plane.sessions);
        let watches = |(id, link): (LinkId, &Link)| {
            let LinkRole::Pinned { by } = link.role else {
                return None;
            };
            let session = sessions.get(by)?;
            let watches = session.link == id && session.pins.any(Pins::WATCH);
            let is_idle = session.pins == Pins::WATCH
                && session.is_caught_up()
                && link.ledger.is_empty()
                && !session.state.is_streaming()
                && !session.state.any(Flags::UNPINNING);
            watches.then_some((id, by, is_idle))
        };
        let all = plane.links.iter().filter_map(watches);
        let Some(link) = self.holders.longest(now, held_ms, all) else {
            return;
        };
        let by = plane
            .links
            .get(link)
            .map_or(SessionId::NONE, |link| link.role.session());
        plane.counters.watches_ended += 1;
        let unsent = self.lose_pins(plane, by, link, (true, true));
        debug_assert!(unsent.is_none(), "the link counts as up");
        plane.close_link(link);
    }
}

/// `ms`, but at most half of the request timeout, so that waiting sessions get the link before
/// their deadline. 0: no timeout.
fn at_most_half(ms: u32, request_ms: u32) -> u32 {
    match request_ms {
        0 => ms,
        _ => ms.min(request_ms / 2),
    }
}

/// Bytes that a session has moved of its large request or reply. `None`: the server has to move
/// next. A client that takes no output is not read, which counts as slowness of the client.
fn bytes_moved(session: &Session) -> Option<u64> {
    let state = session.state;
    match state.is_streaming() {
        true => (!state.holds().any(Holds::BY_SERVER)).then_some(session.bytes_in),
        false => state
            .holds()
            .any(Holds::OUTPUT)
            .then_some(session.bytes_out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::handle::session;

    fn link(index: u32) -> LinkId {
        LinkId {
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
                (link(1), Some(factor * least)),
                (link(2), Some(factor * least / 4)),
                (link(3), Some(factor * least / 2)),
                (link(4), None),
            ]
            .into_iter()
        };
        let mut slowest =
            |ms, all: &mut dyn Iterator<Item = _>| holders.slowest(at(ms), 5_000, all);
        assert_eq!(slowest(0, &mut all(0)), None);
        assert_eq!(slowest(999, &mut all(1)), None);
        assert_eq!(slowest(1_000, &mut all(1)), Some((link(2), least)));
        let mut left = all(1).filter(|(its, _)| *its != link(2));
        assert_eq!(slowest(1_050, &mut left), Some((link(3), least)));
        let left = all(1).filter(|(its, _)| *its == link(1));
        assert_eq!(slowest(1_900, &mut left.clone()), None);
        assert_eq!(slowest(2_100, &mut left.clone()), Some((link(1), least)));
    }

    /// While others wait, only a fast upload keeps its link for longer than the time for all.
    #[test]
    fn upload_of_moderate_rate_is_ended_after_its_time() {
        let mut holders = Holders::default();
        let fair = UPLOAD_BYTES_PER_S_FAIR;
        for ms in (0..60_000).step_by(50) {
            let now = Time(0).plus_ms(ms);
            let at = |rate: u64| rate * u64::from(ms) / 1_000;
            let fast = (link(1), Some(at(2 * fair)));
            let moderate = (link(2), Some(at(fair / 2)));
            let all = [Some(fast), (ms <= 5_000).then_some(moderate)];
            let ended = holders.slowest(now, 5_000, all.into_iter().flatten());
            let expected = (ms == 5_000).then_some((link(2), fair));
            assert_eq!(ended, expected, "after {ms} ms");
        }
    }

    /// The server's own slowness does not count against a client.
    #[test]
    fn upload_that_waits_for_its_server_begins_anew() {
        let mut holders = Holders::default();
        let at = |ms: u32| Time(0).plus_ms(ms);
        let least = UPLOAD_BYTES_PER_S_MIN;
        let mut report = |ms, bytes| holders.slowest(at(ms), 5_000, [(link(1), bytes)].into_iter());
        assert_eq!(report(0, Some(0)), None);
        assert_eq!(report(900, None), None);
        assert_eq!(report(1_200, Some(0)), None);
        assert_eq!(report(2_100, Some(0)), None);
        assert_eq!(report(2_200, Some(0)), Some((link(1), least)));
    }

    #[test]
    fn watch_held_longest_is_ended_first() {
        let mut holders = Holders::default();
        let at = |ms: u32| Time(0).plus_ms(ms);
        let [one, other] = [(link(1), session(11), true), (link(2), session(12), true)];
        assert_eq!(holders.longest(at(0), 100, [one].into_iter()), None);
        assert_eq!(holders.longest(at(50), 100, [other, one].into_iter()), None);
        let both = [other, one].into_iter();
        assert_eq!(holders.longest(at(160), 100, both), Some(link(1)));
        // Another session has the link now.
        let next = (link(1), session(13), true);
        let both = [next, other].into_iter();
        assert_eq!(holders.longest(at(170), 100, both), Some(link(2)));
        assert_eq!(holders.longest(at(180), 100, [next].into_iter()), None);
        // A session that is busy keeps its link, and its time goes on.
        let busy = (link(1), session(13), false);
        assert_eq!(holders.longest(at(280), 100, [busy].into_iter()), None);
        assert_eq!(
            holders.longest(at(290), 100, [next].into_iter()),
            Some(link(1))
        );
    }
}
