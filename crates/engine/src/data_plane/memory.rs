//! The memory of one worker's sessions, by account, and the order in which sessions give it up.
//!
//! The data plane counts the bytes that it holds as they come and go (`DataPlane::held_bytes`).
//! Memory is more than these bytes: buffers have room, tables have empty places, clients have
//! names. [`Memory`] keeps a *note* of each session: all its memory, by account. A note is taken
//! where a session may have grown ([`Memory::note`]), and again in each round over all sessions
//! ([`Memory::audit`]). So a growth that no caller reported is seen within a second.
//!
//! ```text
//!   held_bytes          counted at once, by length        sum over all notes of `counted`
//! + slack               room behind it, names, tables     sum over all notes of `held - counted`
//! + shared              channels, links, spare buffers    measured once per tick
//! = the total, which is compared with worker-memory-bytes-max
//! ```
//!
//! From seven eighths of the bound on, sessions are closed in this order ([`Memory::shed`]):
//! sessions that have not authenticated; the session with the oldest incomplete request; the
//! session that is owed most.

use crate::base::counters::Counters;
use crate::base::handle::SessionId;
use crate::base::limits::{INCOMPLETE_OLD_MS, UNAUTHENTICATED_DIVISOR};
use crate::base::slab::Slab;
use crate::base::time::Time;

/// The memory that one session holds, in bytes, by account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Replies and messages that the client has not taken.
    pub(crate) output: usize,
    /// The beginning of a request that has not come whole.
    pub(crate) incomplete: usize,
    /// Requests that wait: for a hold to end, for EXEC, to be sent again.
    pub(crate) queued: usize,
    /// Channels and patterns that the session subscribes to.
    pub(crate) subscriptions: usize,
    /// Replies before their place, and parts of replies.
    pub(crate) answers: usize,
    /// Names that the client gave, and the state that few sessions have.
    pub(crate) state: usize,
    /// Requests and replies on links that serve this session alone.
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

/// The memory of a session at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weight {
    pub(crate) held: Held,
    /// The part of `held` that the engine has counted already.
    pub(crate) counted: usize,
    /// Bytes of the channels that the session subscribes to, counted for the order of closing.
    /// Other sessions may share them.
    pub(crate) named: usize,
    /// The session has not authenticated, and must.
    pub(crate) unauthenticated: bool,
    /// CLIENT NO-EVICT: at the bound the session is closed after all others, and never if it is the
    /// last one.
    pub(crate) spared: bool,
}

/// The findings of an audit.
#[derive(Debug, Default)]
pub(crate) struct Audited {
    /// Sessions that have taken too long to authenticate.
    pub(crate) late: Vec<SessionId>,
    /// Sessions with an incomplete request in a buffer that is much too large.
    pub(crate) wasteful: Vec<SessionId>,
}

impl Weight {
    fn is_wasteful(&self) -> bool {
        self.held.incomplete > 2 * self.counted + WASTE_BYTES
    }

    /// Bytes that the session keeps until its client acts: transactions, channels, names.
    fn kept(&self) -> usize {
        self.held.queued + self.held.subscriptions + self.held.state + self.named
    }

    /// Bytes that count for the bound of sessions that have not authenticated.
    fn unauthenticated_bytes(&self) -> usize {
        match self.unauthenticated {
            true => self.held.total() - self.held.state,
            false => 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct MemoryNote {
    session: SessionId,
    weight: Weight,
    /// When the session's incomplete request began, or the one before it came whole.
    incomplete_since: Option<Time>,
    /// Since when the session is known to need authentication.
    unauthenticated_since: Option<Time>,
}

impl MemoryNote {
    const EMPTY: MemoryNote = MemoryNote {
        session: SessionId::NONE,
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
            unauthenticated: false,
            spared: false,
        },
        incomplete_since: None,
        unauthenticated_since: None,
    };
}

/// The worker's memory beside the sessions' own.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SharedMemory {
    /// Channels with their names. Only sessions that leave make them less.
    pub(crate) channels: usize,
    /// Answers of other workers to a question to all workers.
    pub(crate) answers: usize,
    /// Links that many sessions share.
    pub(crate) links: usize,
    /// Keys and records of connections with TLS.
    pub(crate) tls: usize,
    /// Tables of sessions, spare buffers, scripts.
    pub(crate) rest: usize,
}

impl SharedMemory {
    /// Bytes that closing sessions does not free. Each part has its own bound.
    fn unowned(&self) -> usize {
        self.links + self.tls + self.rest
    }
}

/// Up to this size, memory that sessions cannot give back does not count against them.
const FIXED_FREE_BYTES: usize = 2 << 20;

/// The reason why a session is closed to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShedReason {
    /// The session has not authenticated.
    Unauthenticated,
    /// The session has the oldest incomplete request.
    Incomplete,
    /// The session is owed most.
    OwedMost,
    /// The session keeps most for itself, for seconds.
    KeptMost,
}

impl ShedReason {
    pub(crate) fn text(self) -> &'static str {
        match self {
            ShedReason::Unauthenticated => "the session had not authenticated",
            ShedReason::Incomplete => "its request was incomplete for the longest time",
            ShedReason::OwedMost => "the session held the most memory",
            ShedReason::KeptMost => "the session kept the most memory while memory was short",
        }
    }
}

/// The notes of all sessions, their sums, and the bounds. The module's text explains them.
pub(crate) struct Memory {
    /// The notes, by the index of the session.
    notes: Vec<MemoryNote>,
    /// The sum of `held` over all notes.
    sum: Held,
    /// The sum of `counted` over all notes.
    counted: usize,
    /// Bytes of sessions that have not authenticated.
    unauthenticated: usize,
    shared: SharedMemory,
    /// Sessions with bytes on links in their notes.
    on_links: Vec<SessionId>,
    /// The next index that [`Memory::audit`] looks at.
    cursor: usize,
    /// Since when memory has been short.
    short_since: Option<Time>,
    /// The bound, `worker-memory-bytes-max`. At it, sessions are closed.
    bound: usize,
    /// The total from which on memory is short.
    max: usize,
    /// `held_bytes` from which on memory is short. 0: other memory fills the bound.
    room: usize,
    /// `held_bytes` above which a turn takes nothing more.
    turn_room: usize,
    /// When [`Memory::shed`] last found nothing more to close.
    shed_at: Time,
    /// The total at that time.
    shed_above: usize,
    /// When the log last named a session closed before it authenticated.
    logged_at: Option<Time>,
    /// Such closings that the log has not named since.
    unlogged: u64,
}

impl Memory {
    pub(crate) fn new(max: u64) -> Memory {
        let (bound, max) = Memory::bounds(max);
        Memory {
            notes: Vec::new(),
            sum: Held::default(),
            counted: 0,
            unauthenticated: 0,
            shared: SharedMemory::default(),
            on_links: Vec::new(),
            cursor: 0,
            bound,
            max,
            room: max + 1,
            turn_room: max,
            shed_at: Time(0),
            shed_above: 0,
            logged_at: None,
            unlogged: 0,
            short_since: None,
        }
    }

    /// The bound, and the level at which output is relieved.
    fn bounds(worker_memory_bytes_max: u64) -> (usize, usize) {
        let bound = usize::try_from(worker_memory_bytes_max).unwrap_or(usize::MAX);
        (bound, bound - bound / CLOSING_DIVISOR)
    }

    /// Takes another bound. The end of the turn makes room if more is held.
    pub(crate) fn set_bound(&mut self, max: u64) {
        (self.bound, self.max) = Memory::bounds(max);
        self.make_room();
    }

    /// Begins a turn, which may add a small part of the bound.
    #[inline]
    pub(crate) fn begin_turn(&mut self, held_bytes: usize) {
        self.turn_room = held_bytes + (self.max / TURN_DIVISOR).max(TURN_BYTES_MIN);
    }

    /// Whether this turn has added as much as it may.
    #[inline]
    pub(crate) fn turn_is_full(&self, held_bytes: usize) -> bool {
        held_bytes > self.turn_room
    }

    /// Whether memory is short, by the engine's own count.
    #[inline]
    pub(crate) fn is_short(&self, held_bytes: usize) -> bool {
        held_bytes >= self.room
    }

    /// Whether memory is above the bound.
    pub(crate) fn is_above_bound(&self, held_bytes: usize) -> bool {
        self.total(held_bytes) > self.bound
    }

    /// Puts the memory into the counters, by account. The sum of all accounts is the total and the
    /// spared bytes together.
    pub(crate) fn count(&self, held_bytes: usize, counters: &mut Counters) {
        let (held, shared) = (&self.sum, &self.shared);
        // Polled commands, and growth that no note has yet.
        let unnoted = held_bytes.saturating_sub(self.counted);
        counters.held_bytes = held_bytes as u64;
        counters.memory_bytes = self.total(held_bytes) as u64;
        counters.memory_spared_bytes = (shared.unowned() - self.fixed()) as u64;
        counters.memory_output_bytes = held.output as u64;
        counters.memory_incomplete_bytes = held.incomplete as u64;
        counters.memory_queued_bytes = (held.queued + unnoted) as u64;
        counters.memory_subscription_bytes = (held.subscriptions + shared.channels) as u64;
        counters.memory_answer_bytes = (held.answers + shared.answers) as u64;
        counters.memory_state_bytes = held.state as u64;
        counters.memory_link_bytes = (held.links + shared.links) as u64;
        counters.memory_tls_bytes = shared.tls as u64;
        counters.memory_other_bytes = shared.rest as u64;
        counters.memory_unauthenticated_bytes = self.unauthenticated as u64;
    }

    /// Whether at least an eighth of the bound is used.
    pub(crate) fn is_filling(&self, held_bytes: usize) -> bool {
        self.total(held_bytes) >= self.max / 8
    }

    /// Bytes that the notes take.
    pub(crate) fn table_bytes(&self) -> usize {
        self.notes.capacity() * size_of::<MemoryNote>()
    }

    /// Notes that a session is closed before it authenticated. If the log may name it, returns how
    /// many such closings it has not named since the last line.
    pub(crate) fn may_log_unauthenticated(&mut self, now: Time) -> Option<u64> {
        let is_over = |logged: Time| now.since_ms(logged) >= UNAUTHENTICATED_LOGGED_MS;
        if self.logged_at.is_none_or(is_over) {
            self.logged_at = Some(now);
            return Some(std::mem::take(&mut self.unlogged));
        }
        self.unlogged += 1;
        None
    }

    fn unauthenticated_max(&self) -> usize {
        self.max / UNAUTHENTICATED_DIVISOR
    }

    fn slack(&self) -> usize {
        self.sum.total().saturating_sub(self.counted)
    }

    fn beyond(&self) -> usize {
        self.slack() + self.shared.channels + self.shared.answers + self.fixed()
    }

    /// The part of the memory of no session that counts for the bound.
    fn fixed(&self) -> usize {
        let counted = self.shared.unowned().saturating_sub(FIXED_FREE_BYTES);
        counted.min(self.max / 4)
    }

    /// The total, which is compared with the bound.
    pub(crate) fn total(&self, held_bytes: usize) -> usize {
        held_bytes + self.beyond()
    }

    fn make_room(&mut self) {
        self.room = match self.unauthenticated > self.unauthenticated_max() {
            true => 0,
            false => (self.max + 1).saturating_sub(self.beyond()),
        };
    }

    /// Notes the memory of a session.
    pub(crate) fn note(&mut self, id: SessionId, weight: Weight, now: Time) {
        let index = id.index as usize;
        if self.notes.len() <= index {
            self.notes.resize(index + 1, MemoryNote::EMPTY);
        }
        if self.notes[index].session != id {
            self.forget(self.notes[index].session);
            self.notes[index].session = id;
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
            "a session counts more bytes than it holds"
        );
        let old = std::mem::replace(&mut note.weight, weight);
        note.incomplete_since = match weight.held.incomplete {
            0 => None,
            _ => Some(note.incomplete_since.unwrap_or(now)),
        };
        note.unauthenticated_since = match weight.unauthenticated {
            false => None,
            true => Some(note.unauthenticated_since.unwrap_or(now)),
        };
        self.replace(&old, &weight);
    }

    /// Restarts the age of the session's incomplete request, because the one before came whole.
    pub(crate) fn restart(&mut self, id: SessionId) {
        if let Some(note) = self.note_of(id) {
            note.incomplete_since = None;
        }
    }

    /// Forgets a session that is closed.
    pub(crate) fn forget(&mut self, id: SessionId) {
        if let Some(note) = self.note_of(id) {
            let old = std::mem::replace(note, MemoryNote::EMPTY).weight;
            self.replace(&old, &Weight::default());
        }
    }

    fn replace(&mut self, old: &Weight, new: &Weight) {
        self.sum.take(&old.held);
        self.sum.add(&new.held);
        self.counted = self.counted + new.counted - old.counted;
        self.unauthenticated =
            self.unauthenticated + new.unauthenticated_bytes() - old.unauthenticated_bytes();
        self.make_room();
    }

    fn note_of(&mut self, id: SessionId) -> Option<&mut MemoryNote> {
        let note = self.notes.get_mut(id.index as usize);
        note.filter(|note| note.session == id && id != SessionId::NONE)
    }

    /// Notes the worker's memory beside the sessions' own. `on_links`: links that serve one session
    /// alone.
    pub(crate) fn note_shared(&mut self, shared: SharedMemory, on_links: Vec<(SessionId, usize)>) {
        self.shared = shared;
        for id in std::mem::take(&mut self.on_links) {
            self.note_on_links(id, |_| 0);
        }
        for (id, bytes) in on_links {
            self.note_on_links(id, |had| had + bytes);
            self.on_links.push(id);
        }
        self.make_room();
    }

    fn note_on_links(&mut self, id: SessionId, change: impl Fn(usize) -> usize) {
        if let Some(note) = self.note_of(id) {
            let old = note.weight;
            let mut new = old;
            new.held.links = change(old.held.links);
            note.weight = new;
            self.replace(&old, &new);
        }
    }

    /// Weighs the next sessions of the round, or all of them. A session that has needed
    /// authentication for longer than `auth_ms` is late.
    pub(crate) fn audit<T>(
        &mut self,
        sessions: &Slab<SessionId, T>,
        weigh: impl Fn(&T) -> Weight,
        all: bool,
        (now, auth_ms): (Time, u32),
    ) -> Audited {
        let mut audited = Audited::default();
        let places = sessions.slots();
        let count = match all {
            true => places,
            false => (places / AUDIT_TICKS).max(AUDITED_MIN).min(places),
        };
        for _ in 0..count {
            if self.cursor >= places {
                self.cursor = 0;
            }
            if let Some((id, session)) = sessions.at(self.cursor) {
                self.note(id, weigh(session), now);
                let since = self.notes[self.cursor].unauthenticated_since;
                let is_late = |since: Time| now.since_ms(since) >= u64::from(auth_ms);
                if auth_ms > 0 && since.is_some_and(is_late) {
                    audited.late.push(id);
                }
                let note = &self.notes[self.cursor];
                let waits = |since: Time| now.since_ms(since) >= WASTE_MS;
                if note.weight.is_wasteful() && note.incomplete_since.is_some_and(waits) {
                    audited.wasteful.push(id);
                }
            }
            self.cursor += 1;
        }
        audited
    }

    /// Whether [`Memory::shed`] ran a moment ago, and little memory was added since.
    pub(crate) fn has_just_shed(&self, held_bytes: usize, now: Time) -> bool {
        let crowded = self.unauthenticated > self.unauthenticated_max();
        let settled = self.total(held_bytes) <= self.shed_above + self.max / 64;
        !crowded && settled && now.since_ms(self.shed_at) < SHED_PAUSE_MS
    }

    /// Notes when a shortage of memory begins and ends. It ends once a sixteenth of `max` is free.
    /// Memory of closed sessions that had not authenticated is filled again at once.
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

    /// The sessions to close now, in this order. All notes are fresh. Above the bound, the sessions
    /// that are owed most are closed until fifteen sixteenths of it are used. If a shortage lasts,
    /// sessions that keep much for themselves are closed, with long transactions for example. Only
    /// that frees their memory. Otherwise other sessions would be closed again and again.
    pub(crate) fn shed(&self, held_bytes: usize, now: Time) -> Vec<(SessionId, ShedReason)> {
        let mut over = Shedding {
            total: self.total(held_bytes),
            unauthenticated: self.unauthenticated,
            incomplete: self.sum.incomplete,
            closed: Vec::new(),
        };
        let notes = || {
            self.notes
                .iter()
                .filter(|note| note.session != SessionId::NONE)
        };
        if over.total > self.max || over.unauthenticated > self.unauthenticated_max() {
            let mut unauthenticated: Vec<&MemoryNote> = notes()
                .filter(|note| note.weight.unauthenticated_bytes() > 0)
                .collect();
            unauthenticated.sort_unstable_by_key(|note| {
                std::cmp::Reverse(note.weight.unauthenticated_bytes())
            });
            for note in unauthenticated {
                let is_crowd = over.unauthenticated > self.unauthenticated_max() / 2;
                let frees_little =
                    note.weight.unauthenticated_bytes() < UNAUTHENTICATED_LEAST_BYTES;
                if !is_crowd && (over.total <= self.max || frees_little) {
                    break;
                }
                over.close(note, ShedReason::Unauthenticated);
            }
        }
        if over.total > self.max {
            let is_authenticated = |note: &&MemoryNote| !note.weight.unauthenticated;
            let mut incomplete: Vec<(Time, &MemoryNote)> = notes()
                .filter(is_authenticated)
                .filter_map(|note| Some((note.incomplete_since?, note)))
                .collect();
            incomplete.sort_unstable_by_key(|(since, note)| (*since, note.session.index));
            for (since, note) in &incomplete {
                let is_old = now.since_ms(*since) >= u64::from(INCOMPLETE_OLD_MS);
                // Young requests are in flight. They stay unless such requests fill the memory.
                let is_flood = over.total > self.bound && over.incomplete > self.max / 8;
                if over.total <= self.max || !is_old && !is_flood {
                    break;
                }
                over.close(note, ShedReason::Incomplete);
            }
        }
        let lasts = |since: Time| now.since_ms(since) >= SHORTAGE_MS;
        if over.total > self.max && self.short_since.is_some_and(lasts) {
            let kept = |note: &MemoryNote| note.weight.kept();
            // CLIENT NO-EVICT does not protect a client that fills the memory.
            let is_spared =
                |note: &MemoryNote| note.weight.spared && kept(note) < self.max / SPARED_DIVISOR;
            let mut keepers: Vec<&MemoryNote> = notes()
                .filter(|note| kept(note) >= KEPT_LEAST_BYTES && !is_spared(note))
                .filter(|note| over.closed.iter().all(|(id, _)| *id != note.session))
                .collect();
            keepers.sort_unstable_by_key(|note| std::cmp::Reverse(kept(note)));
            for note in keepers {
                if over.total <= self.relieved() {
                    break;
                }
                over.close(note, ShedReason::KeptMost);
                if note.weight.named > note.weight.held.total() {
                    // The freed bytes are known when the names are measured again.
                    break;
                }
            }
        }
        if over.total > self.bound {
            let mut most: Vec<&MemoryNote> = notes()
                .filter(|note| !note.weight.unauthenticated)
                .filter(|note| over.closed.iter().all(|(id, _)| *id != note.session))
                .collect();
            let owed = |note: &&MemoryNote| note.weight.held.total() + note.weight.named;
            most.sort_unstable_by_key(|note| (note.weight.spared, std::cmp::Reverse(owed(note))));
            let mut holding = most.iter().filter(|note| owed(note) > 0).count();
            for note in most {
                // The last session stays: the replies to it do not exceed the bound.
                let is_last = note.weight.spared && holding <= 1;
                if over.total <= self.bound - self.bound / 16 || is_last {
                    break;
                }
                holding = holding.saturating_sub(1);
                over.close(note, ShedReason::OwedMost);
            }
        }
        over.closed
    }

    /// Notes that `shed` has closed all that it could.
    pub(crate) fn has_shed(&mut self, held_bytes: usize, now: Time) {
        self.shed_at = now;
        self.shed_above = self.total(held_bytes);
    }

    /// Sessions with output. The session that is owed most comes first.
    pub(crate) fn owed_most(&self) -> Vec<(SessionId, usize)> {
        let notes = self.notes.iter();
        let with_output = notes.filter(|note| note.weight.held.output > 0);
        let mut owed: Vec<(SessionId, usize)> = with_output
            .map(|note| (note.session, note.weight.held.total()))
            .collect();
        owed.sort_unstable_by_key(|(id, bytes)| (std::cmp::Reverse(*bytes), id.index));
        owed
    }

    /// Asserts that the sums are those of the notes.
    #[cfg(test)]
    fn check(&self) {
        let mut sum = Held::default();
        let (mut counted, mut unauthenticated) = (0, 0);
        for note in &self.notes {
            sum.add(&note.weight.held);
            counted += note.weight.counted;
            unauthenticated += note.weight.unauthenticated_bytes();
        }
        assert_eq!(sum, self.sum);
        assert_eq!(
            (counted, unauthenticated),
            (self.counted, self.unauthenticated)
        );
    }
}

struct Shedding {
    total: usize,
    unauthenticated: usize,
    incomplete: usize,
    closed: Vec<(SessionId, ShedReason)>,
}

impl Shedding {
    fn close(&mut self, note: &MemoryNote, reason: ShedReason) {
        let held = note.weight.held;
        self.total = self.total.saturating_sub(held.total());
        self.incomplete = self.incomplete.saturating_sub(held.incomplete);
        let unauthenticated = note.weight.unauthenticated_bytes();
        self.unauthenticated = self.unauthenticated.saturating_sub(unauthenticated);
        self.closed.push((note.session, reason));
    }
}

/// Ticks in which each session is weighed once while memory is not short.
const AUDIT_TICKS: usize = 20;
/// The least number of sessions that a tick weighs.
const AUDITED_MIN: usize = 64;
/// The time between two log lines about sessions closed before they authenticated, milliseconds.
const UNAUTHENTICATED_LOGGED_MS: u64 = 60_000;
/// Room up to this size is no waste.
const WASTE_BYTES: usize = 512;
/// A request that is incomplete for less time wastes no room, milliseconds.
const WASTE_MS: u64 = 100;
/// How long memory may be short before sessions that keep most are closed, milliseconds.
const SHORTAGE_MS: u64 = 2_000;
/// The least bytes that such a session keeps. Thousands of sessions below that fill no bound of a
/// usual size.
const KEPT_LEAST_BYTES: usize = 16 << 10;
/// A session that has not authenticated and holds less is not closed for memory, unless all of them
/// hold much. That would free little, and would close each client that connects during a shortage.
const UNAUTHENTICATED_LEAST_BYTES: usize = 4 << 10;
/// CLIENT NO-EVICT spares no session that keeps more than `max` divided by this.
const SPARED_DIVISOR: usize = 64;
/// The pause between two searches for sessions to close if little memory was added, milliseconds.
const SHED_PAUSE_MS: u64 = 5;

/// Memory is short when the bound divided by this is left.
const CLOSING_DIVISOR: usize = 8;

/// A turn may add `max` divided by this, or at least `TURN_BYTES_MIN`.
const TURN_DIVISOR: usize = 64;
/// The least bytes that a turn may add.
const TURN_BYTES_MIN: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::counters::Counted;
    use crate::base::handle::session;

    /// Memory is short from `max` on.
    fn bounded(max: u64) -> Memory {
        let memory = Memory::new(max * 8 / 7);
        assert_eq!(memory.max, max as usize);
        memory
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

    fn unauthenticated(bytes: usize) -> Weight {
        Weight {
            unauthenticated: true,
            ..incomplete(bytes)
        }
    }

    fn closed(memory: &Memory, held_bytes: usize, now: Time) -> Vec<(u32, ShedReason)> {
        let closed = memory.shed(held_bytes, now);
        closed.iter().map(|(id, why)| (id.index, *why)).collect()
    }

    /// A client that is about to authenticate holds little. Sessions with more are closed first.
    /// Where many such clients hold more than all may, the largest are closed, until the others
    /// hold half of that.
    #[test]
    fn small_unauthenticated_session_stays_unless_many() {
        let mut memory = bounded(1_600_000);
        let small = UNAUTHENTICATED_LEAST_BYTES - 1;
        memory.note(session(0), unauthenticated(small), Time(0));
        memory.note(
            session(1),
            unauthenticated(UNAUTHENTICATED_LEAST_BYTES),
            Time(0),
        );
        memory.note(session(2), output(2_000_000), Time(0));
        let all = [(1, ShedReason::Unauthenticated), (2, ShedReason::OwedMost)];
        assert_eq!(closed(&memory, 2_010_000, Time(0)), all);
        for index in 3..40 {
            memory.note(session(index), unauthenticated(small), Time(0));
        }
        // Of 38 small ones and one more, 12 have room in 50,000 bytes.
        assert_eq!(memory.unauthenticated_max(), 100_000);
        assert_eq!(50_000 / small, 12);
        let closed = closed(&memory, 2_010_000, Time(0));
        let (unauthenticated, others) = closed.split_at(38 + 1 - 12);
        assert_eq!(unauthenticated[0], (1, ShedReason::Unauthenticated));
        assert!(
            unauthenticated
                .iter()
                .all(|(_, why)| *why == ShedReason::Unauthenticated)
        );
        assert_eq!(others, [(2, ShedReason::OwedMost)]);
    }

    /// Bytes on links, which only a measurement finds, are enough to make memory short.
    #[test]
    fn links_alone_make_memory_short() {
        let mut memory = bounded(1_600_000);
        memory.note(session(0), Weight::default(), Time(0));
        memory.note_shared(SharedMemory::default(), vec![(session(0), 1_600_000)]);
        assert!(!memory.is_short(0));
        for more in [1, 1_600_000] {
            memory.note_shared(
                SharedMemory::default(),
                vec![(session(0), 1_600_000 + more)],
            );
            assert!(memory.is_short(0), "{more}");
        }
    }

    /// Sessions without authentication go first, then the oldest incomplete request, then the
    /// session that is owed most.
    #[test]
    fn sessions_are_closed_in_order() {
        let mut memory = bounded(1_600_000);
        memory.note(session(0), output(1_400_000), at(0));
        memory.note(session(1), incomplete(200_000), at(10));
        memory.note(session(2), incomplete(100_000), at(0));
        memory.note(session(3), unauthenticated(50_000), at(0));
        let now = at(INCOMPLETE_OLD_MS + 10);
        assert!(memory.is_short(1_750_000));
        let expected = [
            (3, ShedReason::Unauthenticated),
            (2, ShedReason::Incomplete),
        ];
        assert_eq!(closed(&memory, 1_750_000, now), expected);
        memory.forget(session(3));
        memory.forget(session(2));
        assert_eq!(closed(&memory, 1_600_000, now), []);
        memory.note(session(0), output(2_000_000), now);
        let expected = [(1, ShedReason::Incomplete), (0, ShedReason::OwedMost)];
        assert_eq!(closed(&memory, 2_200_000, now), expected);
        memory.check();
    }

    /// A young request is not dropped for output. It is dropped if such requests fill the memory.
    #[test]
    fn young_request_is_dropped_in_a_flood() {
        let mut memory = bounded(1_000_000);
        memory.note(session(0), output(1_100_000), at(0));
        memory.note(session(1), incomplete(100_000), at(0));
        assert_eq!(
            closed(&memory, 1_200_000, at(1)),
            [(0, ShedReason::OwedMost)]
        );
        let mut memory = bounded(1_000_000);
        memory.note(session(0), output(600_000), at(0));
        for index in 1..9 {
            memory.note(session(index), incomplete(100_000), at(index));
        }
        let closed = closed(&memory, 1_400_000, at(20));
        let expected: Vec<_> = (1..4)
            .map(|index| (index, ShedReason::Incomplete))
            .collect();
        assert_eq!(closed, expected);
    }

    /// The age of an incomplete request begins with this request, not with the session's first one.
    #[test]
    fn whole_request_restarts_the_age() {
        let mut memory = bounded(1_000_000);
        memory.note(session(0), incomplete(500_000), at(0));
        memory.note(session(1), incomplete(501_000), at(100));
        memory.restart(session(0));
        memory.note(session(0), incomplete(500_000), at(200));
        let now = at(INCOMPLETE_OLD_MS + 200);
        assert_eq!(
            closed(&memory, 1_001_000, now),
            [(1, ShedReason::Incomplete)]
        );
    }

    /// All sessions without authentication together have a small part of the bound, even if memory
    /// is not short.
    #[test]
    fn unauthenticated_sessions_hold_little_together() {
        let mut memory = bounded(1_600_000);
        for index in 0..100 {
            memory.note(session(index), unauthenticated(1_000), at(0));
        }
        assert!(!memory.is_short(100_000));
        memory.note(session(100), unauthenticated(10_000), at(0));
        assert!(memory.is_short(110_000));
        let closed = closed(&memory, 110_000, at(1));
        assert_eq!(
            closed[0],
            (100, ShedReason::Unauthenticated),
            "the largest one first"
        );
        assert_eq!(closed.len(), 51, "the others hold half of what all may");
    }

    /// A few sessions that keep much do not cause others to be closed for ever.
    #[test]
    fn sessions_that_keep_much_end_a_long_shortage() {
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
                session(index),
                transaction(90_000 + 1_000 * index as usize),
                at(0),
            );
        }
        memory.note(session(10), output(110_000), at(0));
        let held_bytes = 1_055_000;
        memory.handle_tick(held_bytes, at(0));
        assert_eq!(closed(&memory, held_bytes, at(1_999)), []);
        // A moment of relief does not end the shortage.
        memory.handle_tick(memory.max, at(1_500));
        let expected = [(9, ShedReason::KeptMost), (8, ShedReason::KeptMost)];
        assert_eq!(closed(&memory, held_bytes, at(2_000)), expected);
        // The shortage was over meanwhile.
        memory.handle_tick(memory.relieved(), at(2_100));
        memory.handle_tick(held_bytes, at(2_200));
        assert_eq!(closed(&memory, held_bytes, at(3_000)), []);
    }

    /// Sessions with CLIENT NO-EVICT that keep much are closed as others are.
    #[test]
    fn spared_sessions_that_keep_much_end_a_long_shortage() {
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
            memory.note(session(index), weight, at(0));
        }
        let subscriber = Weight {
            held: Held {
                subscriptions: 20_000,
                ..Held::default()
            },
            ..Weight::default()
        };
        memory.note(session(10), subscriber, at(0));
        memory.handle_tick(1_050_000, at(0));
        let closed = closed(&memory, 1_050_000, at(2_000));
        assert_eq!(closed.len(), 2);
        assert!(
            closed
                .iter()
                .all(|(index, reason)| *index < 10 && *reason == ShedReason::KeptMost)
        );
    }

    /// Many sessions that each keep little end a shortage, too.
    #[test]
    fn many_sessions_that_keep_little_end_a_long_shortage() {
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
            memory.note(session(index), weight, at(0));
        }
        memory.handle_tick(4_200_000, at(0));
        let closed = closed(&memory, 4_200_000, at(2_000));
        let kept = |(_, reason): &(u32, ShedReason)| *reason == ShedReason::KeptMost;
        let bytes = 20_000 * closed.iter().filter(|closed| kept(closed)).count();
        let left = memory.total(4_200_000) - bytes;
        assert!(left <= memory.relieved(), "{left}");
        assert!(closed.len() < 100, "no more than it takes");
    }

    /// A session with CLIENT NO-EVICT goes after all others, and stays if it is the last one.
    #[test]
    fn spared_session_goes_last() {
        let mut memory = bounded(1_000_000);
        let spared = Weight {
            spared: true,
            ..output(1_200_000)
        };
        memory.note(session(0), spared, at(0));
        memory.note(session(1), output(10_000), at(0));
        assert_eq!(
            closed(&memory, 1_210_000, at(1)),
            [(1, ShedReason::OwedMost)]
        );
        memory.note(session(2), spared, at(0));
        let closed = closed(&memory, 2_410_000, at(1));
        let expected = [(1, ShedReason::OwedMost), (0, ShedReason::OwedMost)];
        assert_eq!(closed, expected);
    }

    /// Room in buffers, channels and links count. Memory that sessions cannot give back takes a
    /// quarter of the bound at most.
    #[test]
    fn slack_channels_and_links_reduce_the_room() {
        let mut memory = bounded(100 << 20);
        let with_room = Weight {
            counted: 1 << 20,
            ..output(3 << 20)
        };
        memory.note(session(0), with_room, at(0));
        let shared = SharedMemory {
            channels: 5 << 20,
            links: FIXED_FREE_BYTES + (400 << 20),
            ..SharedMemory::default()
        };
        memory.note_shared(shared, vec![(session(0), 1 << 20)]);
        assert_eq!(memory.total(1 << 20), (1 + 2 + 5 + 25 + 1) << 20);
        assert!(!memory.is_short(67 << 20) && memory.is_short((67 << 20) + 1));
        memory.note_shared(SharedMemory::default(), Vec::new());
        assert_eq!(memory.total(1 << 20), 3 << 20);
        memory.check();
    }

    /// The accounts are the total and the spared bytes together: below the first 2 MiB of memory of
    /// no session, above it, and above a quarter of the bound.
    #[test]
    fn accounts_add_up_to_the_total() {
        for of_links in [1 << 20, 7 << 20, 400 << 20] {
            let mut memory = bounded(100 << 20);
            let with_room = Weight {
                counted: 1 << 20,
                ..output(3 << 20)
            };
            memory.note(session(0), with_room, at(0));
            let shared = SharedMemory {
                channels: 5,
                answers: 6,
                links: of_links,
                tls: 300_000,
                rest: 400_000,
            };
            memory.note_shared(shared, vec![(session(0), 7)]);
            let mut counters = Counters::default();
            memory.count((1 << 20) + 8, &mut counters);
            let is_account = |name: &str| {
                let apart = [
                    "memory_bytes",
                    "memory_spared_bytes",
                    "memory_unauthenticated_bytes",
                ];
                name.starts_with("memory_") && !apart.contains(&name)
            };
            let accounts = counters.each().filter(|(name, _)| is_account(name));
            let bytes = accounts.map(|(_, value)| match value {
                Counted::Number(bytes) => bytes,
                Counted::Sizes(_) => 0,
            });
            let both = counters.memory_bytes + counters.memory_spared_bytes;
            assert_eq!(bytes.sum::<u64>(), both, "{counters:?}");
            assert!(counters.memory_spared_bytes > 1 << 20);
        }
    }

    /// After any order of notes and removals, the sums are those of the notes.
    #[test]
    fn sums_match_the_notes() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = |bound: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 11) % bound
        };
        let mut memory = bounded(1 << 20);
        for step in 0..5_000 {
            let id = SessionId {
                index: below(20) as u32,
                generation: below(3) as u32,
            };
            let bytes = below(100_000) as usize;
            match below(5) {
                0 => memory.forget(id),
                1 => memory.note_shared(SharedMemory::default(), vec![(id, bytes), (id, 1)]),
                2 => memory.note(id, unauthenticated(bytes), at(step)),
                3 => memory.note(id, incomplete(bytes), at(step)),
                _ => memory.note(id, output(bytes), at(step)),
            }
            memory.check();
        }
        for index in 0..20 {
            (0..3).for_each(|generation| memory.forget(SessionId { index, generation }));
        }
        memory.check();
        assert_eq!((memory.sum, memory.unauthenticated), (Held::default(), 0));
    }
}
