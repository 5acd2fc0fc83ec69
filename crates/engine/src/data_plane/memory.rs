//! What the sessions of one worker hold in memory, by accounts, and which of them gives up first.
//!
//! The engine counts the bytes that it holds as they come and go (`Engine::held_bytes`). Memory is
//! more than these bytes: buffers have room, tables have empty places, clients have names.
//! [`Memory`] keeps a *note* of each session: its bytes with all that, by account. A note is taken
//! where a session may have grown ([`Memory::note`]), and again when the session's turn comes
//! ([`Memory::audit`]), so a growth that no caller reported is seen within a second.
//!
//! ```text
//!   held_bytes          counted at once, by length        sum over all notes of `counted`
//! + slack               room behind it, names, tables     sum over all notes of `held - counted`
//! + shared              channels, links, spare buffers    measured once per tick
//! = what is compared with worker-memory-bytes-max
//! ```
//!
//! From seven eighths of the bound on, sessions give up in this order ([`Memory::shed`]): sessions
//! that have not authenticated; the oldest incomplete request; the session that is owed most.

use crate::limits::{INCOMPLETE_OLD_MS, UNAUTHENTICATED_SHARE};
use crate::slots::{Key, Slots};
use crate::time::Time;

/// What one session holds, in bytes of memory, by account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Replies and messages that its client has not taken.
    pub(crate) output: usize,
    /// The beginning of a request that has not come whole.
    pub(crate) incomplete: usize,
    /// Requests that wait: for a reason to hold, for EXEC, to be asked again.
    pub(crate) queued: usize,
    /// Channels and patterns that it claims.
    pub(crate) subscriptions: usize,
    /// Replies before their turn, and parts of replies.
    pub(crate) answers: usize,
    /// Names that its client gave it, and the state that few sessions have.
    pub(crate) state: usize,
    /// Requests and replies on links that serve it alone.
    pub(crate) links: usize,
}

impl Held {
    pub(crate) fn total(&self) -> usize {
        self.output
            + self.incomplete
            + self.queued
            + self.subscriptions
            + self.answers
            + self.state
            + self.links
    }

    fn add(&mut self, other: &Held) {
        self.each(other, |own, other| *own += other);
    }

    fn take(&mut self, other: &Held) {
        self.each(other, |own, other| *own -= other);
    }

    fn each(&mut self, other: &Held, change: impl Fn(&mut usize, usize)) {
        change(&mut self.output, other.output);
        change(&mut self.incomplete, other.incomplete);
        change(&mut self.queued, other.queued);
        change(&mut self.subscriptions, other.subscriptions);
        change(&mut self.answers, other.answers);
        change(&mut self.state, other.state);
        change(&mut self.links, other.links);
    }
}

/// What a session is when a note of it is taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weight {
    pub(crate) held: Held,
    /// How much of it the engine has counted already.
    pub(crate) counted: usize,
    /// Bytes of the channels that the session claims. Other sessions may claim them, too. They
    /// count for the order of closing.
    pub(crate) named: usize,
    /// It has not authenticated, and must.
    pub(crate) stranger: bool,
    /// CLIENT NO-EVICT: at the bound it is closed after all others, and never if it is the last
    /// one.
    pub(crate) spared: bool,
}

/// What an audit found.
#[derive(Debug, Default)]
pub(crate) struct Audited {
    /// Sessions that have taken too long to authenticate.
    pub(crate) late: Vec<Key>,
    /// Sessions whose incomplete request lies in a buffer that is much too large.
    pub(crate) wasteful: Vec<Key>,
}

impl Weight {
    fn is_wasteful(&self) -> bool {
        self.held.incomplete > 2 * self.counted + WASTE_BYTES
    }

    /// What it keeps until its client does something: transactions, channels, names.
    fn kept(&self) -> usize {
        self.held.queued + self.held.subscriptions + self.held.state + self.named
    }

    /// Bytes that it holds as one that has not authenticated.
    fn as_stranger(&self) -> usize {
        match self.stranger {
            true => self.held.total() - self.held.state,
            false => 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Note {
    key: Key,
    weight: Weight,
    /// When its incomplete request began, or last made room for the next one.
    incomplete_since: Option<Time>,
    /// Since when it is known that it must authenticate.
    stranger_since: Option<Time>,
}

impl Note {
    const EMPTY: Note = Note {
        key: Key::NOBODY,
        weight: Weight {
            held: Held {
                output: 0,
                incomplete: 0,
                queued: 0,
                subscriptions: 0,
                answers: 0,
                state: 0,
                links: 0,
            },
            counted: 0,
            named: 0,
            stranger: false,
            spared: false,
        },
        incomplete_since: None,
        stranger_since: None,
    };
}

/// What a worker has beside its sessions' own memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shared {
    /// Channels with their names: only sessions that leave can make them less.
    pub(crate) channels: usize,
    /// Answers of other workers that have come for a question.
    pub(crate) answers: usize,
    /// Links that many sessions share.
    pub(crate) links: usize,
    /// Tables of sessions, spare buffers, scripts.
    pub(crate) rest: usize,
}

impl Shared {
    /// Bytes that closing sessions makes no less: each of these has a bound of its own.
    fn fixed(&self) -> usize {
        (self.links + self.rest).saturating_sub(FIXED_FREE_BYTES)
    }
}

/// Up to here, what sessions cannot give back does not count against them.
const FIXED_FREE_BYTES: usize = 2 << 20;

/// Why a session is closed to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It has not authenticated.
    Stranger,
    /// Its request is the oldest incomplete one.
    Incomplete,
    /// It is owed most.
    OwedMost,
    /// It keeps most for itself, for seconds.
    KeptMost,
}

impl Reason {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Reason::Stranger => "it had not authenticated",
            Reason::Incomplete => "its request was incomplete for longest",
            Reason::OwedMost => "its session held most",
            Reason::KeptMost => "its session kept most while memory was short",
        }
    }
}

/// See the module's text.
pub(crate) struct Memory {
    /// By the index of the session.
    notes: Vec<Note>,
    /// Sums over all notes.
    sum: Held,
    counted: usize,
    strangers: usize,
    shared: Shared,
    /// Sessions whose notes have bytes on links.
    on_links: Vec<Key>,
    /// The next index that [`Memory::audit`] looks at.
    cursor: usize,
    /// Since when memory is short.
    short_since: Option<Time>,
    /// The bound: sessions are closed at it.
    bound: usize,
    /// Where sessions begin to give up.
    max: usize,
    /// The engine's own count from which on sessions must give up. 0: the rest fills the bound.
    room: usize,
    /// The engine's own count above which a turn takes nothing more.
    turn_room: usize,
    /// When and at which count [`Memory::shed`] last found nothing more to close.
    shed_at: Time,
    shed_above: usize,
    /// When an operator was last told of a session closed before it authenticated, and how many
    /// there have been since.
    told_at: Option<Time>,
    untold: u64,
}

impl Memory {
    pub(crate) fn new(max: u64) -> Memory {
        let bound = usize::try_from(max).unwrap_or(usize::MAX);
        let max = bound - bound / CLOSING_SHARE;
        Memory {
            notes: Vec::new(),
            sum: Held::default(),
            counted: 0,
            strangers: 0,
            shared: Shared::default(),
            on_links: Vec::new(),
            cursor: 0,
            bound,
            max,
            room: max + 1,
            turn_room: max,
            shed_at: Time(0),
            shed_above: 0,
            told_at: None,
            untold: 0,
            short_since: None,
        }
    }

    /// A turn begins: it may add a small part of the bound.
    #[inline]
    pub(crate) fn begin_turn(&mut self, held_bytes: usize) {
        self.turn_room = held_bytes + (self.max / TURN_SHARE).max(TURN_BYTES_MIN);
    }

    /// Whether that has come.
    #[inline]
    pub(crate) fn turn_is_full(&self, held_bytes: usize) -> bool {
        held_bytes > self.turn_room
    }

    /// Whether sessions must give up, by the engine's own count.
    #[inline]
    pub(crate) fn is_short(&self, held_bytes: usize) -> bool {
        held_bytes >= self.room
    }

    /// Whether memory is above the bound.
    pub(crate) fn is_above_bound(&self, held_bytes: usize) -> bool {
        self.total(held_bytes) > self.bound
    }

    /// The sum of all notes by account, and what the worker has beside them.
    pub(crate) fn accounts(&self) -> (Held, Shared) {
        (self.sum, self.shared)
    }

    /// Bytes of sessions that have not authenticated.
    pub(crate) fn strangers(&self) -> usize {
        self.strangers
    }

    /// Whether at least an eighth of the bound is used.
    pub(crate) fn is_filling(&self, held_bytes: usize) -> bool {
        self.total(held_bytes) >= self.max / 8
    }

    /// Bytes of the notes.
    pub(crate) fn table_bytes(&self) -> usize {
        self.notes.capacity() * size_of::<Note>()
    }

    /// A session that has not authenticated is closed. Returns how many such closings were not
    /// logged since the last line, if this one may be logged.
    pub(crate) fn tells_of_stranger(&mut self, now: Time) -> Option<u64> {
        let is_over = |told: Time| now.since_ms(told) >= STRANGERS_TOLD_MS;
        if self.told_at.is_none_or(is_over) {
            self.told_at = Some(now);
            return Some(std::mem::take(&mut self.untold));
        }
        self.untold += 1;
        None
    }

    fn strangers_max(&self) -> usize {
        self.max / UNAUTHENTICATED_SHARE
    }

    fn slack(&self) -> usize {
        self.sum.total().saturating_sub(self.counted)
    }

    fn beyond(&self) -> usize {
        let fixed = self.shared.fixed().min(self.max / 4);
        self.slack() + self.shared.channels + self.shared.answers + fixed
    }

    /// What is compared with the bound.
    pub(crate) fn total(&self, held_bytes: usize) -> usize {
        held_bytes + self.beyond()
    }

    fn make_room(&mut self) {
        self.room = match self.strangers > self.strangers_max() {
            true => 0,
            false => (self.max + 1).saturating_sub(self.beyond()),
        };
    }

    /// A session was weighed.
    pub(crate) fn note(&mut self, key: Key, weight: Weight, now: Time) {
        let index = key.index as usize;
        if self.notes.len() <= index {
            self.notes.resize(index + 1, Note::EMPTY);
        }
        if self.notes[index].key != key {
            self.forget(self.notes[index].key);
            self.notes[index].key = key;
        }
        let note = &mut self.notes[index];
        let links = note.weight.held.links;
        let weight = Weight {
            held: Held {
                links,
                ..weight.held
            },
            ..weight
        };
        debug_assert!(
            weight.held.total() >= weight.counted,
            "what is counted is held"
        );
        let old = std::mem::replace(&mut note.weight, weight);
        note.incomplete_since = match weight.held.incomplete {
            0 => None,
            _ => Some(note.incomplete_since.unwrap_or(now)),
        };
        note.stranger_since = match weight.stranger {
            false => None,
            true => Some(note.stranger_since.unwrap_or(now)),
        };
        self.replace(&old, &weight);
    }

    /// The session's incomplete request came whole: what is incomplete now is another one.
    pub(crate) fn restart(&mut self, key: Key) {
        if let Some(note) = self.note_of(key) {
            note.incomplete_since = None;
        }
    }

    /// The session is gone.
    pub(crate) fn forget(&mut self, key: Key) {
        if let Some(note) = self.note_of(key) {
            let old = std::mem::replace(note, Note::EMPTY).weight;
            self.replace(&old, &Weight::default());
        }
    }

    fn replace(&mut self, old: &Weight, new: &Weight) {
        self.sum.take(&old.held);
        self.sum.add(&new.held);
        self.counted = self.counted + new.counted - old.counted;
        self.strangers = self.strangers + new.as_stranger() - old.as_stranger();
        self.make_room();
    }

    fn note_of(&mut self, key: Key) -> Option<&mut Note> {
        let note = self.notes.get_mut(key.index as usize);
        note.filter(|note| note.key == key && key != Key::NOBODY)
    }

    /// The memory of the worker beside its sessions was measured. `on_links`: the part of links
    /// that serve one session alone.
    pub(crate) fn note_shared(&mut self, shared: Shared, on_links: Vec<(Key, usize)>) {
        self.shared = shared;
        for key in std::mem::take(&mut self.on_links) {
            self.note_on_links(key, |_| 0);
        }
        for (key, bytes) in on_links {
            self.note_on_links(key, |had| had + bytes);
            self.on_links.push(key);
        }
        self.make_room();
    }

    fn note_on_links(&mut self, key: Key, change: impl Fn(usize) -> usize) {
        if let Some(note) = self.note_of(key) {
            let old = note.weight;
            let mut new = old;
            new.held.links = change(old.held.links);
            note.weight = new;
            self.replace(&old, &new);
        }
    }

    /// Weighs the next sessions in turn, or all of them. Those that have had to authenticate for
    /// longer than `auth_ms` are late.
    pub(crate) fn audit<T>(
        &mut self,
        sessions: &Slots<T>,
        weigh: impl Fn(&T) -> Weight,
        all: bool,
        (now, auth_ms): (Time, u32),
    ) -> Audited {
        let mut audited = Audited::default();
        let places = sessions.places();
        let count = match all {
            true => places,
            false => (places / AUDIT_TICKS).max(AUDITED_MIN).min(places),
        };
        for _ in 0..count {
            if self.cursor >= places {
                self.cursor = 0;
            }
            if let Some((key, session)) = sessions.at(self.cursor) {
                self.note(key, weigh(session), now);
                let since = self.notes[self.cursor].stranger_since;
                let is_late = |since: Time| now.since_ms(since) >= u64::from(auth_ms);
                if auth_ms > 0 && since.is_some_and(is_late) {
                    audited.late.push(key);
                }
                let note = &self.notes[self.cursor];
                let waits = |since: Time| now.since_ms(since) >= WASTE_MS;
                if note.weight.is_wasteful() && note.incomplete_since.is_some_and(waits) {
                    audited.wasteful.push(key);
                }
            }
            self.cursor += 1;
        }
        audited
    }

    /// Whether [`Memory::shed`] has just looked, and little has come since.
    pub(crate) fn has_just_shed(&self, held_bytes: usize, now: Time) -> bool {
        let crowded = self.strangers > self.strangers_max();
        let settled = self.total(held_bytes) <= self.shed_above + self.max / 64;
        !crowded && settled && now.since_ms(self.shed_at) < SHED_PAUSE_MS
    }

    /// Notes whether memory is short, so that it is known for how long. A shortage is over once a
    /// good part is free: what closing strangers frees is filled again at once.
    pub(crate) fn handle_tick(&mut self, held_bytes: usize, now: Time) {
        let total = self.total(held_bytes);
        if total > self.max {
            self.short_since.get_or_insert(now);
        } else if total <= self.relieved() {
            self.short_since = None;
        }
    }

    fn relieved(&self) -> usize {
        self.max - self.max / 16
    }

    /// Which sessions are closed now, the first one first. All notes are fresh. At the bound the
    /// sessions that are owed most are closed, until fifteen sixteenths of it. If a shortage lasts,
    /// sessions that keep much for themselves are closed, such as long transactions. Nothing else
    /// makes them give memory back, and other sessions would be closed again and again.
    pub(crate) fn shed(&self, held_bytes: usize, now: Time) -> Vec<(Key, Reason)> {
        let mut over = Shedding {
            total: self.total(held_bytes),
            strangers: self.strangers,
            incomplete: self.sum.incomplete,
            closed: Vec::new(),
        };
        let notes = || self.notes.iter().filter(|note| note.key != Key::NOBODY);
        if over.total > self.max || over.strangers > self.strangers_max() {
            let mut strangers: Vec<&Note> = notes()
                .filter(|note| note.weight.as_stranger() > 0)
                .collect();
            strangers.sort_unstable_by_key(|note| std::cmp::Reverse(note.weight.as_stranger()));
            for note in strangers {
                let is_crowd = over.strangers > self.strangers_max() / 2;
                let frees_little = note.weight.as_stranger() < STRANGER_LEAST_BYTES;
                if !is_crowd && (over.total <= self.max || frees_little) {
                    break;
                }
                over.close(note, Reason::Stranger);
            }
        }
        if over.total > self.max {
            let others = |note: &&Note| !note.weight.stranger;
            let mut incomplete: Vec<(Time, &Note)> = notes()
                .filter(others)
                .filter_map(|note| Some((note.incomplete_since?, note)))
                .collect();
            incomplete.sort_unstable_by_key(|(since, note)| (*since, note.key.index));
            for (since, note) in &incomplete {
                let is_old = now.since_ms(*since) >= u64::from(INCOMPLETE_OLD_MS);
                // Young ones are requests on their way, unless they are what fills the memory.
                let is_flood = over.total > self.bound && over.incomplete > self.max / 8;
                if over.total <= self.max || !is_old && !is_flood {
                    break;
                }
                over.close(note, Reason::Incomplete);
            }
        }
        let lasts = |since: Time| now.since_ms(since) >= SHORTAGE_MS;
        if over.total > self.max && self.short_since.is_some_and(lasts) {
            let kept = |note: &Note| note.weight.kept();
            // A client that asked not to be evicted does not fill the memory by that.
            let is_spared =
                |note: &Note| note.weight.spared && kept(note) < self.max / SPARED_SHARE;
            let mut keepers: Vec<&Note> = notes()
                .filter(|note| kept(note) >= KEPT_LEAST_BYTES && !is_spared(note))
                .filter(|note| over.closed.iter().all(|(key, _)| *key != note.key))
                .collect();
            keepers.sort_unstable_by_key(|note| std::cmp::Reverse(kept(note)));
            for note in keepers {
                if over.total <= self.relieved() {
                    break;
                }
                over.close(note, Reason::KeptMost);
                if note.weight.named > note.weight.held.total() {
                    // How much that frees is known when the names are measured again.
                    break;
                }
            }
        }
        if over.total > self.bound {
            let mut most: Vec<&Note> = notes()
                .filter(|note| !note.weight.stranger)
                .filter(|note| over.closed.iter().all(|(key, _)| *key != note.key))
                .collect();
            let owed = |note: &&Note| note.weight.held.total() + note.weight.named;
            most.sort_unstable_by_key(|note| (note.weight.spared, std::cmp::Reverse(owed(note))));
            let mut holding = most.iter().filter(|note| owed(note) > 0).count();
            for note in most {
                // One session fits: what it may be owed is no more than the bound.
                let is_last = note.weight.spared && holding <= 1;
                if over.total <= self.bound - self.bound / 16 || is_last {
                    break;
                }
                holding = holding.saturating_sub(1);
                over.close(note, Reason::OwedMost);
            }
        }
        over.closed
    }

    /// What could be closed was.
    pub(crate) fn has_shed(&mut self, held_bytes: usize, now: Time) {
        self.shed_at = now;
        self.shed_above = self.total(held_bytes);
    }

    /// Sessions that have output, the one that is owed most first.
    pub(crate) fn owed_most(&self) -> Vec<(Key, usize)> {
        let notes = self.notes.iter();
        let with_output = notes.filter(|note| note.weight.held.output > 0);
        let mut owed: Vec<(Key, usize)> = with_output
            .map(|note| (note.key, note.weight.held.total()))
            .collect();
        owed.sort_unstable_by_key(|(key, bytes)| (std::cmp::Reverse(*bytes), key.index));
        owed
    }

    /// The sums over all notes, counted anew, are the sums that are kept.
    #[cfg(test)]
    fn check(&self) {
        let mut sum = Held::default();
        let (mut counted, mut strangers) = (0, 0);
        for note in &self.notes {
            sum.add(&note.weight.held);
            counted += note.weight.counted;
            strangers += note.weight.as_stranger();
        }
        assert_eq!(sum, self.sum);
        assert_eq!((counted, strangers), (self.counted, self.strangers));
    }
}

struct Shedding {
    total: usize,
    strangers: usize,
    incomplete: usize,
    closed: Vec<(Key, Reason)>,
}

impl Shedding {
    fn close(&mut self, note: &Note, reason: Reason) {
        let held = note.weight.held;
        self.total = self.total.saturating_sub(held.total());
        self.incomplete = self.incomplete.saturating_sub(held.incomplete);
        let strangers = note.weight.as_stranger();
        self.strangers = self.strangers.saturating_sub(strangers);
        self.closed.push((note.key, reason));
    }
}

/// Ticks in which every session is weighed once, when memory is not short.
const AUDIT_TICKS: usize = 20;
/// Sessions that a tick weighs at least, as far as there are so many.
const AUDITED_MIN: usize = 64;
/// How long no second line is written of sessions closed before they authenticated, milliseconds.
const STRANGERS_TOLD_MS: u64 = 60_000;
/// So much room is no waste, and so little time, milliseconds.
const WASTE_BYTES: usize = 512;
const WASTE_MS: u64 = 100;
/// How long memory may be short before sessions that keep most are closed, milliseconds.
const SHORTAGE_MS: u64 = 2_000;
/// Such a session keeps at least so many bytes. Thousands of sessions below that fill no bound of
/// a usual size.
const KEPT_LEAST_BYTES: usize = 16 << 10;
/// A session that has not authenticated and holds less is not closed for memory, unless all of them
/// hold much. That would free little, and keep out each client that connects during a shortage.
const STRANGER_LEAST_BYTES: usize = 4 << 10;
/// Above one part of so many of what sessions may have, CLIENT NO-EVICT spares none of them.
const SPARED_SHARE: usize = 64;
/// How long a search for sessions to close is not repeated if little has come since, milliseconds.
const SHED_PAUSE_MS: u64 = 5;

/// Sessions begin to give up when one part of so many of the bound is left.
const CLOSING_SHARE: usize = 8;

/// A turn may add one part of so many of the bound, or this many bytes.
const TURN_SHARE: usize = 64;
const TURN_BYTES_MIN: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// Sessions begin to give up at `max`.
    fn bounded(max: u64) -> Memory {
        let memory = Memory::new(max * 8 / 7);
        assert_eq!(memory.max, max as usize);
        memory
    }

    fn key(index: u32) -> Key {
        Key {
            index,
            generation: 1,
        }
    }

    fn at(ms: u32) -> Time {
        Time(0).plus_ms(ms)
    }

    fn output(bytes: usize) -> Weight {
        let held = Held {
            output: bytes,
            ..Held::default()
        };
        Weight {
            held,
            counted: bytes,
            ..Weight::default()
        }
    }

    fn incomplete(bytes: usize) -> Weight {
        let held = Held {
            incomplete: bytes,
            ..Held::default()
        };
        Weight {
            held,
            counted: bytes,
            ..Weight::default()
        }
    }

    fn stranger(bytes: usize) -> Weight {
        Weight {
            stranger: true,
            ..incomplete(bytes)
        }
    }

    fn closed(memory: &Memory, held_bytes: usize, now: Time) -> Vec<(u32, Reason)> {
        let closed = memory.shed(held_bytes, now);
        closed.iter().map(|(key, why)| (key.index, *why)).collect()
    }

    /// A client that is about to authenticate holds little, and other sessions give up for it. Where
    /// many of them hold more than all may, the largest ones are closed first, until the rest holds
    /// half of that.
    #[test]
    fn small_stranger_stays_unless_there_are_many() {
        let mut memory = bounded(1_600_000);
        let small = STRANGER_LEAST_BYTES - 1;
        memory.note(key(0), stranger(small), Time(0));
        memory.note(key(1), stranger(STRANGER_LEAST_BYTES), Time(0));
        memory.note(key(2), output(2_000_000), Time(0));
        let all = [(1, Reason::Stranger), (2, Reason::OwedMost)];
        assert_eq!(closed(&memory, 2_010_000, Time(0)), all);
        for index in 3..40 {
            memory.note(key(index), stranger(small), Time(0));
        }
        // Of 38 small ones and one more, 12 have room in 50,000 bytes.
        assert_eq!(memory.strangers_max(), 100_000);
        assert_eq!(50_000 / small, 12);
        let closed = closed(&memory, 2_010_000, Time(0));
        let (strangers, others) = closed.split_at(38 + 1 - 12);
        assert_eq!(strangers[0], (1, Reason::Stranger));
        assert!(strangers.iter().all(|(_, why)| *why == Reason::Stranger));
        assert_eq!(others, [(2, Reason::OwedMost)]);
    }

    /// The bytes on links, which only the worker counts, are enough to make memory short.
    #[test]
    fn links_alone_make_memory_short() {
        let mut memory = bounded(1_600_000);
        memory.note(key(0), Weight::default(), Time(0));
        memory.note_shared(Shared::default(), vec![(key(0), 1_600_000)]);
        assert!(!memory.is_short(0));
        for more in [1, 1_600_000] {
            memory.note_shared(Shared::default(), vec![(key(0), 1_600_000 + more)]);
            assert!(memory.is_short(0), "{more}");
        }
    }

    /// Strangers go first, then the oldest incomplete request, then the session that is owed most.
    #[test]
    fn sessions_give_up_in_order() {
        let mut memory = bounded(1_600_000);
        memory.note(key(0), output(1_400_000), at(0));
        memory.note(key(1), incomplete(200_000), at(10));
        memory.note(key(2), incomplete(100_000), at(0));
        memory.note(key(3), stranger(50_000), at(0));
        let now = at(INCOMPLETE_OLD_MS + 10);
        assert!(memory.is_short(1_750_000));
        let expected = [(3, Reason::Stranger), (2, Reason::Incomplete)];
        assert_eq!(closed(&memory, 1_750_000, now), expected);
        memory.forget(key(3));
        memory.forget(key(2));
        assert_eq!(closed(&memory, 1_600_000, now), []);
        memory.note(key(0), output(2_000_000), now);
        let expected = [(1, Reason::Incomplete), (0, Reason::OwedMost)];
        assert_eq!(closed(&memory, 2_200_000, now), expected);
        memory.check();
    }

    /// A request on its way is not given up for output, and is where such requests fill the memory.
    #[test]
    fn young_request_is_given_up_in_a_flood() {
        let mut memory = bounded(1_000_000);
        memory.note(key(0), output(1_100_000), at(0));
        memory.note(key(1), incomplete(100_000), at(0));
        assert_eq!(closed(&memory, 1_200_000, at(1)), [(0, Reason::OwedMost)]);
        let mut memory = bounded(1_000_000);
        memory.note(key(0), output(600_000), at(0));
        for index in 1..9 {
            memory.note(key(index), incomplete(100_000), at(index));
        }
        let closed = closed(&memory, 1_400_000, at(20));
        let expected: Vec<_> = (1..4).map(|index| (index, Reason::Incomplete)).collect();
        assert_eq!(closed, expected);
    }

    /// An incomplete request is as old as its own beginning, not as the first one of its session.
    #[test]
    fn whole_request_restarts_the_age() {
        let mut memory = bounded(1_000_000);
        memory.note(key(0), incomplete(500_000), at(0));
        memory.note(key(1), incomplete(501_000), at(100));
        memory.restart(key(0));
        memory.note(key(0), incomplete(500_000), at(200));
        let now = at(INCOMPLETE_OLD_MS + 200);
        assert_eq!(closed(&memory, 1_001_000, now), [(1, Reason::Incomplete)]);
    }

    /// All strangers together hold a small part of the bound, though memory is not short.
    #[test]
    fn strangers_hold_little_together() {
        let mut memory = bounded(1_600_000);
        for index in 0..100 {
            memory.note(key(index), stranger(1_000), at(0));
        }
        assert!(!memory.is_short(100_000));
        memory.note(key(100), stranger(10_000), at(0));
        assert!(memory.is_short(110_000));
        let closed = closed(&memory, 110_000, at(1));
        assert_eq!(closed[0], (100, Reason::Stranger), "the largest one first");
        assert_eq!(closed.len(), 51, "until they hold half of that");
    }

    /// A few sessions that keep much cannot have others closed for ever.
    #[test]
    fn sessions_that_keep_much_end_a_shortage_that_lasts() {
        let mut memory = bounded(1_000_000);
        let transaction = |bytes| Weight {
            held: Held {
                queued: bytes,
                ..Held::default()
            },
            counted: bytes,
            ..Weight::default()
        };
        for index in 0..10 {
            memory.note(
                key(index),
                transaction(90_000 + 1_000 * index as usize),
                at(0),
            );
        }
        memory.note(key(10), output(110_000), at(0));
        let held_bytes = 1_055_000;
        memory.handle_tick(held_bytes, at(0));
        assert_eq!(closed(&memory, held_bytes, at(1_999)), []);
        // A moment of relief does not end it.
        memory.handle_tick(memory.max, at(1_500));
        let expected = [(9, Reason::KeptMost), (8, Reason::KeptMost)];
        assert_eq!(closed(&memory, held_bytes, at(2_000)), expected);
        // It was over meanwhile.
        memory.handle_tick(memory.relieved(), at(2_100));
        memory.handle_tick(held_bytes, at(2_200));
        assert_eq!(closed(&memory, held_bytes, at(3_000)), []);
    }

    /// Clients that asked not to be evicted fill the memory no more than others.
    #[test]
    fn spared_sessions_that_keep_much_end_a_shortage_that_lasts() {
        let mut memory = bounded(1_000_000);
        for index in 0..10 {
            let weight = Weight {
                held: Held {
                    queued: 105_000,
                    ..Held::default()
                },
                counted: 105_000,
                spared: true,
                ..Weight::default()
            };
            memory.note(key(index), weight, at(0));
        }
        let subscriber = Weight {
            held: Held {
                subscriptions: 20_000,
                ..Held::default()
            },
            ..Weight::default()
        };
        memory.note(key(10), subscriber, at(0));
        memory.handle_tick(1_050_000, at(0));
        let closed = closed(&memory, 1_050_000, at(2_000));
        assert_eq!(closed.len(), 2);
        assert!(
            closed
                .iter()
                .all(|(index, reason)| *index < 10 && *reason == Reason::KeptMost)
        );
    }

    /// So many sessions that none keeps much of all.
    #[test]
    fn many_sessions_that_keep_little_end_a_shortage_that_lasts() {
        let mut memory = bounded(4_000_000);
        for index in 0..210 {
            let weight = Weight {
                held: Held {
                    queued: 20_000,
                    ..Held::default()
                },
                counted: 20_000,
                ..Weight::default()
            };
            memory.note(key(index), weight, at(0));
        }
        memory.handle_tick(4_200_000, at(0));
        let closed = closed(&memory, 4_200_000, at(2_000));
        let kept = |(_, reason): &(u32, Reason)| *reason == Reason::KeptMost;
        let bytes = 20_000 * closed.iter().filter(|closed| kept(closed)).count();
        let left = memory.total(4_200_000) - bytes;
        assert!(left <= memory.relieved(), "{left}");
        assert!(closed.len() < 100, "no more than it takes");
    }

    /// A session that asked not to be evicted goes after all others, and not if it is the last one.
    #[test]
    fn spared_session_goes_last() {
        let mut memory = bounded(1_000_000);
        let spared = Weight {
            spared: true,
            ..output(1_200_000)
        };
        memory.note(key(0), spared, at(0));
        memory.note(key(1), output(10_000), at(0));
        assert_eq!(closed(&memory, 1_210_000, at(1)), [(1, Reason::OwedMost)]);
        memory.note(key(2), spared, at(0));
        let closed = closed(&memory, 2_410_000, at(1));
        let expected = [(1, Reason::OwedMost), (0, Reason::OwedMost)];
        assert_eq!(closed, expected);
    }

    /// Room behind the bytes, channels and links count; what sessions cannot give back takes a
    /// quarter at most.
    #[test]
    fn room_is_less_by_what_is_not_counted() {
        let mut memory = bounded(100 << 20);
        let with_room = Weight {
            counted: 1 << 20,
            ..output(3 << 20)
        };
        memory.note(key(0), with_room, at(0));
        let shared = Shared {
            channels: 5 << 20,
            links: FIXED_FREE_BYTES + (400 << 20),
            ..Shared::default()
        };
        memory.note_shared(shared, vec![(key(0), 1 << 20)]);
        assert_eq!(memory.total(1 << 20), (1 + 2 + 5 + 25 + 1) << 20);
        assert!(!memory.is_short(67 << 20) && memory.is_short((67 << 20) + 1));
        memory.note_shared(Shared::default(), Vec::new());
        assert_eq!(memory.total(1 << 20), 3 << 20);
        memory.check();
    }

    /// Whatever is noted and forgotten in whatever order, the sums are those of the notes.
    #[test]
    fn sums_are_those_of_the_notes() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = |bound: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 11) % bound
        };
        let mut memory = bounded(1 << 20);
        for step in 0..5_000 {
            let key = Key {
                index: below(20) as u32,
                generation: below(3) as u32,
            };
            let bytes = below(100_000) as usize;
            match below(5) {
                0 => memory.forget(key),
                1 => memory.note_shared(Shared::default(), vec![(key, bytes), (key, 1)]),
                2 => memory.note(key, stranger(bytes), at(step)),
                3 => memory.note(key, incomplete(bytes), at(step)),
                _ => memory.note(key, output(bytes), at(step)),
            }
            memory.check();
        }
        for index in 0..20 {
            (0..3).for_each(|generation| memory.forget(Key { index, generation }));
        }
        memory.check();
        assert_eq!((memory.sum, memory.strangers), (Held::default(), 0));
    }
}
