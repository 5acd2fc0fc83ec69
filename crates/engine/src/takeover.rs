//! A server does not answer on a link: another link takes its place for sessions with nothing in
//! flight on it.
//!
//! ```text
//!   no byte for 50 ms, and another session asks ──► a successor is connected; that session waits
//!        the link brings a byte ──────────────────► the successor is closed, all go on as before
//!        the successor is up ─────────────────────► it is the shared link; the old one answers
//!                                                   the requests it has, and is closed
//! ```
//!
//! A script that loops past `busy-reply-threshold` stops one connection and not the server: each
//! other connection is answered with BUSY, and SCRIPT KILL works. A frozen server answers no
//! handshake, so nothing changes for it. A session never leaves a link that owes it a reply, so its
//! requests keep their order and none is sent twice. Only a link whose request in front runs code,
//! also in a transaction, is taken over: other slow requests end by themselves.

use respool_protocol::encode;

use crate::engine::Engine;
use crate::entry::{Class, Entry};
use crate::link::{Link, Role};
use crate::pool::ServerId;
use crate::requests::Blocked;
use crate::slots::Key;
use crate::time::Time;

/// How long a link that owes replies may bring no byte before another one may take its place,
/// milliseconds.
const STUCK_MS: u64 = 50;
/// The same in round trips, if that is longer.
const STUCK_ROUND_TRIPS: u64 = 5;
/// Links to one server that were left and still owe replies. At it, no further one is left.
const LEFT_MAX: usize = 2;
/// The pause after a successor that was not needed, milliseconds; it doubles ...
const PAUSE_MIN_MS: u32 = 1_000;
/// ... up to this.
const PAUSE_MAX_MS: u32 = 60_000;
/// How long a server that has refused a handshake with BUSY is taken to be busy, milliseconds.
const BUSY_MS: u64 = 1_000;
/// How many times `link-stall-ms` a link that was taken over may bring no byte while its server
/// answers on other links.
const STALLS_MAX: u32 = 10;

/// Which links to one server are to be taken over. Ask [`Takeover::may_begin`] before a successor
/// is connected, and report what became of it. Time never runs back.
#[derive(Debug, Default)]
pub(crate) struct Takeover {
    /// The shortest handshake, milliseconds.
    round_trip_ms: Option<u64>,
    /// Links that are stuck, each with the link that is being connected to take its place.
    successors: Vec<(Key, Key)>,
    /// Links that were taken over and still owe replies.
    left: Vec<Key>,
    /// No further one before.
    due: Time,
    pause_ms: u32,
    /// The server's words when it refused a handshake because it is busy.
    busy: Option<(Time, Vec<u8>)>,
}

impl Takeover {
    /// A handshake took so long.
    fn note_handshake(&mut self, ms: u64) {
        self.round_trip_ms = Some(self.round_trip_ms.map_or(ms, |least| least.min(ms)));
    }

    /// How long a link may bring no byte before it is stuck, milliseconds.
    fn stuck_ms(&self) -> u64 {
        STUCK_MS.max(STUCK_ROUND_TRIPS * self.round_trip_ms.unwrap_or_default())
    }

    fn successor_of(&self, old: Key) -> Option<Key> {
        let mut all = self.successors.iter();
        all.find(|(its, _)| *its == old).map(|(_, link)| *link)
    }

    fn old_of(&self, successor: Key) -> Option<Key> {
        let mut all = self.successors.iter();
        all.find(|(_, link)| *link == successor)
            .map(|(old, _)| *old)
    }

    /// Whether a successor may be connected now.
    fn may_begin(&self, now: Time) -> bool {
        now >= self.due && self.left.len() + self.successors.len() < LEFT_MAX
    }

    /// The link has got a successor, which is not up yet.
    fn begin(&mut self, old: Key, successor: Key) {
        self.successors.push((old, successor));
    }

    /// A successor has taken over.
    fn succeed(&mut self, successor: Key) {
        self.left.extend(self.old_of(successor));
        self.successors.retain(|(_, link)| *link != successor);
        self.pause_ms = 0;
    }

    /// A successor was not needed, or could not be had.
    fn fail(&mut self, successor: Key, now: Time) {
        self.successors.retain(|(_, link)| *link != successor);
        self.pause_ms = (self.pause_ms * 2).clamp(PAUSE_MIN_MS, PAUSE_MAX_MS);
        self.due = now.plus_ms(self.pause_ms);
    }

    /// The server's words, if it has said a moment ago that it is busy.
    fn busy_words(&self, now: Time) -> Option<&[u8]> {
        let (at, words) = self.busy.as_ref()?;
        (now.since_ms(*at) < BUSY_MS).then_some(words)
    }
}

/// Whether a server refuses because it runs a script.
pub(crate) fn is_busy(refusal: &[u8]) -> bool {
    refusal.starts_with(b"BUSY ")
}

impl Engine {
    fn takeover(&mut self, server: ServerId) -> &mut Takeover {
        &mut self.servers[usize::from(server.0)].takeover
    }

    /// A handshake with a server took so long.
    pub(crate) fn note_handshake(&mut self, server: ServerId, since: Time) {
        let ms = self.now.since_ms(since);
        self.takeover(server).note_handshake(ms);
    }

    /// Whether a shared link owes replies and has brought nothing for longer than is usual.
    fn is_stuck(&self, link: &Link) -> bool {
        let takeover = &self.server(link.key.server).takeover;
        link.role == Role::Shared
            && link.is_up()
            && link.in_flight() > 0
            && self.now.since_ms(link.progress) >= takeover.stuck_ms()
            // A part of a fused request has no name of its own to tell.
            && link
                .first_in_flight()
                .is_some_and(|front| matches!(front.class, Class::Write | Class::Read))
            && (self.may_be_a_clients(link) || link.is_front_a_block_of_code())
            // The ledger does not name the session of a request that was given up. That session
            // must not overtake the request.
            && !link.ledger.iter().any(|entry| entry.session == Key::NOBODY && !entry.duty)
    }

    /// Whether a link is being connected to take the place of a stuck one.
    pub(crate) fn is_successor(&self, key: Key, link: &Link) -> bool {
        self.server(link.key.server).takeover.old_of(key).is_some()
    }

    fn may_take_over(&self, server: ServerId) -> bool {
        self.server(server).takeover.may_begin(self.now)
    }

    /// Whether a link was taken over, and still owes replies.
    pub(crate) fn was_left(&self, key: Key, server: ServerId) -> bool {
        self.server(server).takeover.left.contains(&key)
    }

    /// A request of a session is for a stuck link. The request waits for the successor, if there is
    /// or may be one.
    pub(crate) fn await_successor(&mut self, key: Key, link: Key) -> Option<Blocked> {
        let state = self.links.get(link).filter(|link| self.is_stuck(link))?;
        let session = self.sessions.get(key)?;
        if !session.is_caught_up() && state.owes(key) {
            return None;
        }
        let kind = state.key;
        if self.is_past_deadline(key) {
            return Some(self.wait_at_full(key, link));
        }
        let takeover = &self.server(kind.server).takeover;
        if let Some(words) = takeover.busy_words(self.now) {
            let mut reply = Vec::new();
            encode::error(&mut reply, words);
            return Some(Blocked::Refused(reply));
        }
        let successor = match takeover.successor_of(link) {
            Some(successor) => successor,
            None => self.begin_takeover(link)?,
        };
        self.begin_to_wait(key);
        self.wait_at(key, successor);
        Some(Blocked::Wait)
    }

    /// Connects a successor of a stuck link, if there may be one.
    fn begin_takeover(&mut self, old: Key) -> Option<Key> {
        let kind = self.links.get(old)?.key;
        if !self.may_take_over(kind.server) {
            return None;
        }
        let successor = self.add_link(kind, Role::Spare)?;
        self.takeover(kind.server).begin(old, successor);
        self.connect(successor);
        Some(successor)
    }

    /// Takes the requests that are sent again on the successor: reads behind the script, of other
    /// sessions that have nothing but reads there.
    pub(crate) fn take_reads_behind(&mut self, old: Key) -> Vec<(Entry, Vec<u8>)> {
        let Some(old) = self.links.get_mut(old) else {
            return Vec::new();
        };
        let by = old
            .first_in_flight()
            .map_or(Key::NOBODY, |front| front.session);
        let reads = old.take_reads_of_others(by);
        self.counters.reads_sent_again += reads.len() as u64;
        reads
    }

    /// A successor is up. Returns whether it takes the place of the old link, which may have
    /// brought a reply meanwhile.
    pub(crate) fn takes_over(&mut self, successor: Key) -> bool {
        let Some(link) = self.links.get(successor) else {
            return false;
        };
        let kind = link.key;
        let takeover = &self.server(kind.server).takeover;
        let Some(old) = takeover.old_of(successor) else {
            // It was connected for another reason.
            return true;
        };
        let is_shared = self.shared.get(&kind) == Some(&old);
        let takes = is_shared && self.links.get(old).is_some_and(|old| self.is_stuck(old));
        let now = self.now;
        match takes {
            true => {
                self.takeover(kind.server).succeed(successor);
                self.counters.takeovers += 1;
            }
            false => self.takeover(kind.server).fail(successor, now),
        }
        takes
    }

    /// A link that was to take over could not be had.
    pub(crate) fn lose_successor(&mut self, successor: Key, refusal: Option<&[u8]>) {
        let Some(link) = self.links.get(successor) else {
            return;
        };
        let (now, server) = (self.now, link.key.server);
        let takeover = self.takeover(server);
        if takeover.old_of(successor).is_some() {
            takeover.fail(successor, now);
            if let Some(words) = refusal.filter(|words| is_busy(words)) {
                takeover.busy = Some((now, words.to_vec()));
                takeover.due = now;
            }
        }
    }

    /// A stuck link has brought something, or is gone: it needs no successor.
    pub(crate) fn drop_successor(&mut self, old: Key, server: ServerId) {
        let now = self.now;
        let takeover = self.takeover(server);
        if let Some(successor) = takeover.successor_of(old) {
            takeover.fail(successor, now);
            self.close_link(successor);
        }
    }

    /// Keeps other sessions off a link that is stuck, as long as a successor is possible.
    pub(crate) fn tick_stuck(&mut self, key: Key) {
        let Some(link) = self.links.get(key).filter(|link| link.role == Role::Shared) else {
            return;
        };
        let server = link.key.server;
        let takeover = &self.server(server).takeover;
        let is_stuck = self.is_stuck(link);
        let has_way = takeover.successor_of(key).is_some()
            || takeover.busy_words(self.now).is_some()
            || self.may_take_over(server);
        let paused = self.is_server_paused(server) || is_stuck && has_way;
        // Sessions whose requests stand behind the script wait, too.
        let begins = is_stuck && takeover.successor_of(key).is_none() && link.owes_others();
        if let Some(link) = self.links.get_mut(key)
            && link.takes
        {
            link.admit(true, paused);
        }
        if begins {
            self.begin_takeover(key);
        }
    }

    /// Ends what is pointless.
    pub(crate) fn tick_takeovers(&mut self) {
        for index in 0..self.servers.len() {
            let server = ServerId(index as u16);
            let links = &self.links;
            let left = &mut self.servers[index].takeover.left;
            left.retain(|key| links.get(*key).is_some());
            for (old, _) in self.servers[index].takeover.successors.clone() {
                if !self.links.get(old).is_some_and(|link| self.is_stuck(link)) {
                    self.drop_successor(old, server);
                }
            }
        }
    }

    /// Whether a link that was taken over stays although it brings no byte: its server answers on
    /// another link.
    pub(crate) fn is_left_by_a_living_server(&self, key: Key, link: &Link) -> bool {
        let stall_ms = self.settings.timeouts.link_stall_ms;
        let answers = |(_, other): (Key, &Link)| {
            let recent = self.now.since_ms(other.progress) < u64::from(stall_ms);
            other.key.server == link.key.server
                && other.role == Role::Shared
                && other.is_up()
                && (recent || other.in_flight() == 0)
        };
        let most = u64::from(stall_ms) * u64::from(STALLS_MAX);
        let is_wanted = || {
            let mut entries = link.ledger.iter();
            entries.any(|entry| self.sessions.get(entry.session).is_some())
        };
        self.was_left(key, link.key.server)
            && self.now.since_ms(link.progress) < most
            && is_wanted()
            && self.links.iter().any(answers)
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

    #[test]
    fn distant_server_has_five_round_trips_to_answer() {
        let mut takeover = Takeover::default();
        assert_eq!(takeover.stuck_ms(), STUCK_MS);
        takeover.note_handshake(100);
        assert_eq!(takeover.stuck_ms(), 500);
        takeover.note_handshake(2_000);
        assert_eq!(takeover.stuck_ms(), 500);
        takeover.note_handshake(1);
        assert_eq!(takeover.stuck_ms(), STUCK_MS);
    }

    #[test]
    fn successors_are_bounded_and_those_not_needed_double_the_pause() {
        let mut takeover = Takeover::default();
        let at = |ms| Time(0).plus_ms(ms);
        assert!(takeover.may_begin(at(0)));
        takeover.begin(key(1), key(2));
        assert_eq!(takeover.successor_of(key(1)), Some(key(2)));
        assert_eq!(takeover.old_of(key(2)), Some(key(1)));
        takeover.fail(key(2), at(0));
        assert_eq!(takeover.successor_of(key(1)), None);
        assert!(!takeover.may_begin(at(999)) && takeover.may_begin(at(1_000)));
        takeover.begin(key(1), key(3));
        takeover.fail(key(3), at(1_000));
        assert!(!takeover.may_begin(at(2_999)) && takeover.may_begin(at(3_000)));
        takeover.begin(key(1), key(4));
        takeover.succeed(key(4));
        assert!(takeover.may_begin(at(3_000)));
        takeover.begin(key(4), key(5));
        assert!(
            !takeover.may_begin(at(3_000)),
            "one is left, and another may be"
        );
    }
}
