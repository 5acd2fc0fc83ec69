//! A link's ledger: its requests without a reply, their bytes, and their completions.

pub(crate) mod departed;
pub(crate) mod departures;
mod loss;

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Range;

use respool_protocol::commands::{self, CommandId};

use crate::base::buffer::Unanswered;
use crate::base::error::Fate;
use crate::base::handle::SessionId;
use crate::base::time::Stamp;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::pinned::{ConnectionSwitch, PinnedCompletion};
use crate::data_plane::ledger::departures::{Departure, Departures};
use crate::data_plane::session::Pins;

/// The requests of a link that have no reply, first in first out.
///
/// ```text
///            written, unanswered            flushed      open batch
/// entries  [ e0 e1 e2 e3 e4 e5          |  e6 e7      |  e8 e9   ]
/// bytes    [ e0 e1 e2 e3 e4 half of e5 . half, e6 e7  |  e8 e9   ]
///                                      ^ next to write
///                                                     ^ the end of `allowed`
/// ```
///
/// The ledger has an entry for every request until its reply has come, even if no session waits for
/// it. A reply belongs to the front entry alone. An entry leaves only when its reply ends or the
/// connection does. The ledger keeps the request's bytes as long: a lost read can be sent again.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    entries: VecDeque<Entry>,
    /// The completions of the entries that have one, in the order of the entries.
    completions: VecDeque<Completion>,
    /// The bytes of all entries, and of a large request that passes through.
    bytes: Unanswered,
    /// Unwritten bytes that may be written.
    allowed: usize,
    /// Entries of the open batch, at the back.
    open: u32,
    /// Requests of the open batch that may be joined with others.
    movable: u32,
    /// Fused MGETs.
    heads: u32,
    /// Whether some requests of a joined batch are sent again. Set until the ledger is flushed with
    /// no request in flight.
    is_repeating: bool,
    /// The requests to send again, with their bytes, until they are put in the ledger.
    repeats: Vec<(Entry, Vec<u8>)>,
    /// The times when the batches in flight left.
    departures: Departures,
}

/// A request of the ledger, as a walk over the ledger shows it.
pub(crate) struct HeldRequest<'a> {
    /// Its session, place and class.
    pub(crate) entry: &'a Entry,
    /// The bytes in front of `sent`. A member of a fused request was sent without them.
    beginning: &'static [u8],
    /// The place of the bytes that were sent for it. A collapsed read shares those of the read in
    /// front.
    sent: Range<usize>,
    /// The bytes of all requests.
    all: &'a [u8],
    /// The use of its reply, if that is not simply passed on.
    pub(crate) completion: Option<&'a Completion>,
}

impl HeldRequest<'_> {
    /// The length of the whole request, bytes.
    fn len(&self) -> usize {
        self.beginning.len() + self.sent.len()
    }

    /// The bytes that were sent for it.
    fn sent(&self) -> &[u8] {
        &self.all[self.sent.clone()]
    }

    /// The bytes of the whole request.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        [self.beginning, self.sent()].concat()
    }
}

/// The place of a request's bytes in the ledger. A walk keeps the place of the last request.
#[derive(Clone, Default)]
struct Extent {
    /// The bytes that the entry counts in [`Entry::len`].
    own: Range<usize>,
    /// See [`HeldRequest::beginning`].
    beginning: &'static [u8],
    /// See [`HeldRequest::sent`].
    sent: Range<usize>,
}

impl Extent {
    /// The place of the request behind this one.
    fn next(&self, entry: &Entry) -> Extent {
        let own = self.own.end..self.own.end + entry.len as usize;
        match entry.class {
            Class::Same => Extent {
                own,
                ..self.clone()
            },
            class => Extent {
                beginning: class.beginning(),
                sent: own.clone(),
                own,
            },
        }
    }
}

/// The entries.
impl Ledger {
    /// The number of requests without a reply.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn front(&self) -> Option<&Entry> {
        self.entries.front()
    }

    pub(crate) fn back(&self) -> Option<&Entry> {
        self.entries.back()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.iter_mut()
    }

    /// All requests with their bytes and completions.
    pub(crate) fn requests(&self) -> impl Iterator<Item = HeldRequest<'_>> {
        let mut completions = self.completions.iter();
        let mut extent = Extent::default();
        self.entries.iter().map(move |entry| {
            extent = extent.next(entry);
            HeldRequest {
                entry,
                beginning: extent.beginning,
                sent: extent.sent.clone(),
                all: self.bytes.bytes(),
                completion: match entry.has_completion() {
                    true => completions.next(),
                    false => None,
                },
            }
        })
    }

    /// Takes all requests out. Their bytes stay until they are replaced.
    fn take_all(&mut self) -> impl Iterator<Item = (Entry, Extent, Option<Completion>)> + use<> {
        let mut completions = std::mem::take(&mut self.completions).into_iter();
        let mut extent = Extent::default();
        std::mem::take(&mut self.entries)
            .into_iter()
            .map(move |entry| {
                extent = extent.next(&entry);
                let completion = match entry.has_completion() {
                    true => completions.next(),
                    false => None,
                };
                (entry, extent.clone(), completion)
            })
    }

    /// Gives up the request at this place: see [`Entry::give_up`].
    pub(crate) fn give_up(&mut self, index: usize) {
        self.entries[index].give_up();
    }

    /// Gives up the request with a completion of a session, which no connection sends again then.
    /// Returns whether it has left.
    pub(crate) fn give_up_block(&mut self, session: SessionId) -> bool {
        let is_it = |entry: &Entry| entry.session == session && entry.has_completion();
        let index = self.entries.iter().position(is_it);
        if let Some(index) = index {
            self.give_up(index);
        }
        index.is_some_and(|index| index < self.in_flight())
    }

    /// Whether a reply to this session is still to come.
    pub(crate) fn owes(&self, session: SessionId) -> bool {
        self.entries.iter().any(|entry| entry.session == session)
    }

    /// Whether replies to other sessions than that of the front request are still to come.
    pub(crate) fn owes_others(&self) -> bool {
        let front = self.first_in_flight().map(|front| front.session);
        let mut entries = self.entries.iter();
        entries.any(|entry| entry.session != SessionId::NONE && Some(entry.session) != front)
    }

    /// Whether this ledger brings the reply of this place. The request may have to be sent again
    /// first, when the bytes that are being read end.
    pub(crate) fn brings(&self, session: SessionId, seq: u32) -> bool {
        let repeats = self.repeats.iter().map(|(entry, _)| entry);
        let mut all = self.entries.iter().chain(repeats);
        all.any(|entry| entry.session == session && entry.seq == seq)
    }

    /// Bytes of memory behind the ledger.
    pub(crate) fn memory_bytes(&self) -> usize {
        let repeats = self.repeats.iter().map(|(_, request)| request.capacity());
        self.bytes.memory_bytes()
            + self.entries.capacity() * size_of::<Entry>()
            + self.completions.capacity() * size_of::<Completion>()
            + repeats.sum::<usize>()
            + self.departures.memory_bytes()
    }

    /// Frees the memory of a ledger without bytes.
    pub(crate) fn settle(&mut self) {
        self.bytes.settle();
    }
}

/// The front: the request that the next reply answers.
impl Ledger {
    /// The number of requests that have left and are not answered.
    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.entries.len() - self.open as usize
    }

    /// The request that the next reply answers.
    #[inline]
    pub(crate) fn first_in_flight(&self) -> Option<Entry> {
        if self.in_flight() > 0 {
            self.entries.front().copied()
        } else {
            None
        }
    }

    /// The request that the next reply answers, in its place.
    #[inline]
    pub(crate) fn front_in_flight(&self) -> Option<&Entry> {
        if self.in_flight() > 0 {
            self.entries.front()
        } else {
            None
        }
    }

    /// The bytes of the front request.
    pub(crate) fn first_bytes(&self) -> &[u8] {
        let len = self.entries.front().map_or(0, |entry| entry.len as usize);
        &self.bytes.bytes()[..len]
    }

    /// The completion of the front request.
    #[inline]
    pub(crate) fn front_completion(&self) -> Option<&Completion> {
        let front = self.entries.front()?;
        self.completions.front().filter(|_| front.has_completion())
    }

    /// The completion of the front request, to be changed.
    pub(crate) fn front_completion_mut(&mut self) -> Option<&mut Completion> {
        let front = self.entries.front()?;
        self.completions
            .front_mut()
            .filter(|_| front.has_completion())
    }

    /// Whether the next reply answers a fused MGET.
    #[inline]
    pub(crate) fn gets_are_next(&self) -> bool {
        self.heads > 0
            && self
                .first_in_flight()
                .is_some_and(|entry| entry.class == Class::Gets)
    }

    /// Whether the next reply answers several collapsed requests.
    #[inline]
    pub(crate) fn next_is_collapsed(&self) -> bool {
        let second = self.entries.get(1);
        second.is_some_and(|entry| entry.class == Class::Same)
    }

    /// Whether the next reply answers a transaction that runs code.
    pub(crate) fn is_front_a_block_of_code(&self) -> bool {
        self.in_flight() > 0
            && matches!(
                self.front_completion(),
                Some(Completion::Block { code: true, .. })
            )
    }

    /// The departure of the front request, which is in flight.
    #[inline]
    pub(crate) fn front_departure(&mut self) -> Departure {
        self.departures.front(self.in_flight())
    }

    /// The departure of the request that was `back` places before the front one until the server
    /// answered both.
    pub(crate) fn departure_before(&mut self, back: u32) -> Departure {
        self.departures.front(self.in_flight() + back as usize)
    }

    /// Removes `entry`, the front request, which is in flight and answered. It has no completion.
    #[inline]
    pub(crate) fn pop_answered(&mut self, entry: Entry) {
        debug_assert!(!entry.has_completion(), "no completion stays behind");
        self.pop_front(entry.len);
    }

    /// Removes the front request, which is in flight and answered, and has no completion. `len`:
    /// its own bytes, [`Entry::len`].
    #[inline]
    pub(crate) fn pop_simple(&mut self, len: u32) {
        debug_assert!(self.front().is_some_and(|front| !front.has_completion()));
        self.pop_front(len);
    }

    /// Removes the front request with its bytes, and leaves its completion.
    #[inline]
    fn pop_front(&mut self, len: u32) {
        debug_assert!(self.in_flight() > 0, "an answered request is in flight");
        self.entries.pop_front();
        self.bytes.answer(len as usize);
    }

    /// Removes the front request, which is in flight and answered. Returns its completion, if it
    /// has one.
    pub(crate) fn pop_completed(&mut self, entry: Entry) -> Option<Completion> {
        self.pop_front(entry.len);
        match entry.has_completion() {
            true => self.completions.pop_front(),
            false => None,
        }
    }

    /// Removes the head of a fused MGET or MSET. Its members are next.
    pub(crate) fn pop_head(&mut self, head: Entry) {
        self.heads -= u32::from(head.class == Class::Gets);
        self.pop_answered(head);
    }

    /// Takes the front request and its collapsed copies, each as a request of its own that is sent
    /// again.
    pub(crate) fn take_alone(&mut self) -> (Vec<Entry>, Vec<u8>) {
        let mut alone = Vec::new();
        let mut request = Vec::new();
        while let Some(entry) = self.first_in_flight()
            && (alone.is_empty() || entry.class == Class::Same)
        {
            if alone.is_empty() {
                request = [entry.class.beginning(), self.first_bytes()].concat();
            }
            self.pop_answered(entry);
            alone.push(Entry {
                len: request.len() as u32,
                class: Class::of(entry.class.reads()),
                ..entry
            });
        }
        (alone, request)
    }

    /// Removes the first bytes of the front request: they were a request of their own, and its
    /// reply came.
    pub(crate) fn shorten_front(&mut self, bytes: usize) {
        if let Some(front) = self.entries.front_mut() {
            front.len -= bytes as u32;
            self.bytes.answer(bytes);
        }
    }

    /// Whether the server has answered a request that was not written whole.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.bytes.is_overtaken()
    }
}

/// The completions.
impl Ledger {
    /// Whether a request has a completion for which `is` is true.
    pub(crate) fn any_completion(&self, is: impl FnMut(&Completion) -> bool) -> bool {
        self.completions.iter().any(is)
    }

    /// The session of an unanswered SHUTDOWN that the server has got.
    pub(crate) fn is_shut_down_by(&self) -> Option<SessionId> {
        let is_shutdown =
            |request: &HeldRequest<'_>| matches!(request.completion, Some(Completion::Shutdown));
        let request = self.requests().find(is_shutdown);
        request.map(|request| request.entry.session)
    }

    /// Whether a session waits for the answer to its CLIENT TRACKING ON.
    pub(crate) fn has_tracking_request(&self) -> bool {
        let begins = |switch: &ConnectionSwitch| switch.on && switch.pins.any(Pins::TRACKING);
        self.requests().any(|request| {
            request.entry.session != SessionId::NONE
                && matches!(
                    request.completion,
                    Some(Completion::Pinned(PinnedCompletion::Switch { switch, .. }))
                        if begins(switch)
                )
        })
    }
}

/// The open batch.
impl Ledger {
    /// Appends a whole request to the open batch.
    #[inline]
    pub(crate) fn push(&mut self, entry: Entry, request: &[u8]) {
        debug_assert_eq!(entry.len as usize, request.len());
        self.bytes.append(request);
        self.entries.push_back(entry);
        self.open += 1;
        self.movable += u32::from(entry.class.may_move());
    }

    /// Appends several requests that one session sent one after the other. All have the same
    /// length.
    #[inline]
    pub(crate) fn push_same_shape(&mut self, first: Entry, count: u32, requests: &[u8]) {
        debug_assert_eq!((first.len * count) as usize, requests.len());
        self.bytes.append(requests);
        self.entries.extend((0..count).map(|index| Entry {
            seq: first.seq.wrapping_add(index),
            ..first
        }));
        self.open += count;
        self.movable += count * u32::from(first.class.may_move());
    }

    /// Appends a request with a completion for its reply.
    pub(crate) fn push_with(&mut self, entry: Entry, request: &[u8], completion: Completion) {
        debug_assert!(entry.has_completion(), "an entry with a completion says so");
        self.completions.push_back(completion);
        self.push(entry, request);
    }

    /// The number of requests in the open batch.
    #[inline]
    pub(crate) fn batched(&self) -> usize {
        self.open as usize
    }

    /// Whether the open batch has requests.
    #[inline]
    pub(crate) fn has_open_batch(&self) -> bool {
        self.open > 0
    }

    /// The number of requests in the open batch that may be joined with others.
    #[inline]
    pub(crate) fn movable(&self) -> u32 {
        self.movable
    }

    /// The requests of the open batch.
    pub(crate) fn open_entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.range(self.in_flight()..)
    }

    /// Copies the entries of the open batch to one vector.
    pub(crate) fn copy_open_entries(&self, entries: &mut Vec<Entry>) {
        let (front, back) = self.entries.as_slices();
        let first = self.in_flight();
        entries.clear();
        entries.extend_from_slice(front.get(first..).unwrap_or_default());
        entries.extend_from_slice(&back[first.saturating_sub(front.len())..]);
        let len = entries.iter().map(|entry| entry.len as usize).sum();
        debug_assert_eq!(self.open_bytes(), len);
    }

    /// The bytes of the open batch.
    pub(crate) fn open_batch_bytes(&self) -> &[u8] {
        &self.bytes.unwritten()[self.allowed..]
    }

    /// Bytes of the open batch.
    pub(crate) fn open_bytes(&self) -> usize {
        self.bytes.unwritten().len() - self.allowed
    }

    /// Puts the open batch into another order: replaces its bytes and its entries.
    pub(crate) fn rearrange(&mut self, bytes: &[u8], entries: &[Entry]) {
        let first = self.in_flight();
        self.bytes.take_back(self.open_bytes());
        self.bytes.append(bytes);
        self.entries.truncate(first);
        self.entries.extend(entries);
        let heads = entries.iter().filter(|entry| entry.class == Class::Gets);
        self.heads += heads.count() as u32;
        self.open = entries.len() as u32;
    }

    /// Takes requests of a session out of the open batch. Returns their number.
    pub(crate) fn take_back_open(
        &mut self,
        session: SessionId,
        leaves: impl Fn(&HeldRequest<'_>) -> bool,
    ) -> usize {
        let is_of_session = |entry: &Entry| entry.session == session;
        if !self.open_entries().any(is_of_session) {
            return 0;
        }
        let first = self.in_flight();
        let open = self.requests().skip(first);
        let going: Vec<bool> = open.map(|request| leaves(&request)).collect();
        let len = |entry: &Entry| entry.len as usize;
        let open_bytes = self.open_bytes();
        // The beginning of a large request may stand behind the others. Its end has not come yet.
        if !going.contains(&true) || self.open_entries().map(len).sum::<usize>() != open_bytes {
            return 0;
        }
        let mut kept = Vec::new();
        for (at, (entry, extent, completion)) in self.take_all().enumerate() {
            if at >= first {
                if going[at - first] {
                    continue;
                }
                kept.extend_from_slice(&self.bytes.bytes()[extent.own]);
            }
            self.entries.push_back(entry);
            self.completions.extend(completion);
        }
        self.bytes.take_back(open_bytes);
        self.bytes.append(&kept);
        self.open = (self.entries.len() - first) as u32;
        let movable = self.open_entries().filter(|entry| entry.class.may_move());
        self.movable = movable.count() as u32;
        going.iter().filter(|goes| **goes).count()
    }

    /// Marks a request of the open batch: its reply shows whether the user has the right to GET or
    /// SET.
    pub(crate) fn try_right(&mut self, index: usize) -> Entry {
        let first = self.in_flight();
        let entry = &mut self.entries[first + index];
        entry.class = match entry.class {
            Class::Get => Class::TriesGet,
            Class::Set => Class::TriesSet,
            other => other,
        };
        *entry
    }

    /// Closes the open batch in the turn of `now`: its bytes may be written. Returns whether no
    /// request was in flight.
    pub(crate) fn flush(&mut self, now: Stamp) -> bool {
        let was_idle = self.in_flight() == 0;
        if was_idle {
            self.departures.leave_alone(now);
            self.is_repeating = false;
        } else {
            self.leave_behind(self.open, now);
        }
        self.open = 0;
        self.movable = 0;
        self.allowed = self.bytes.unwritten().len();
        was_idle
    }

    /// Notes that `count` requests leave behind those in flight.
    #[inline(never)]
    fn leave_behind(&mut self, count: u32, now: Stamp) {
        let in_flight = self.in_flight();
        self.departures.leave_behind(in_flight, count, now);
    }

    /// Counts the open batch anew: no request in the ledger has been sent on this connection.
    fn count_open(&mut self) {
        self.open = self.entries.len() as u32;
        let movable = |entry: &&Entry| entry.class.may_move();
        self.movable = self.entries.iter().filter(movable).count() as u32;
    }
}

/// Bytes on their way out.
impl Ledger {
    /// Bytes of requests that are not answered.
    #[inline]
    pub(crate) fn unanswered_bytes(&self) -> usize {
        self.bytes.bytes().len()
    }

    /// The flushed bytes that the kernel has not taken.
    #[inline]
    pub(crate) fn pending(&self) -> &[u8] {
        &self.bytes.unwritten()[..self.allowed]
    }

    /// Whether the kernel has taken all bytes, those of the open batch too.
    pub(crate) fn is_written(&self) -> bool {
        self.bytes.unwritten().is_empty()
    }

    /// The kernel took `count` of the pending bytes.
    #[inline]
    pub(crate) fn write(&mut self, count: usize) {
        self.allowed -= count;
        self.bytes.write(count);
    }

    /// Appends a fragment of a large request, which may be written at once.
    pub(crate) fn stream(&mut self, bytes: &[u8]) {
        self.bytes.append(bytes);
        self.allowed = self.bytes.unwritten().len();
    }

    /// Forgets `count` written bytes of a large request: it cannot be sent again.
    pub(crate) fn forget_streamed(&mut self, count: usize) {
        self.bytes.answer(count);
    }

    /// Appends the entry of a large request. Its last bytes pass through in the turn of `now`.
    pub(crate) fn push_streamed(
        &mut self,
        entry: Entry,
        completion: Option<Completion>,
        now: Stamp,
    ) {
        debug_assert_eq!(entry.has_completion(), completion.is_some());
        match self.in_flight() {
            0 => self.departures.leave_alone(now),
            _ => self.leave_behind(1, now),
        }
        self.entries.push_back(entry);
        self.completions.extend(completion);
    }
}

/// Requests of a joined batch that are sent again.
impl Ledger {
    /// Notes a request that is sent again when the bytes that are being read end.
    pub(crate) fn repeat_later(&mut self, entry: Entry, request: &[u8]) {
        self.is_repeating = true;
        self.repeats.push((entry, request.to_vec()));
    }

    /// Whether some requests of a joined batch are sent again, or were lately.
    #[inline]
    pub(crate) fn is_repeating(&self) -> bool {
        self.is_repeating
    }

    /// Whether requests wait to be put in the ledger again.
    pub(crate) fn has_repeats(&self) -> bool {
        !self.repeats.is_empty()
    }

    /// Takes the requests to send again.
    pub(crate) fn take_repeats(&mut self) -> Vec<(Entry, Vec<u8>)> {
        std::mem::take(&mut self.repeats)
    }

    /// Drops the requests to send again for which `stays` is false.
    pub(crate) fn retain_repeats(&mut self, mut stays: impl FnMut(&Entry) -> bool) {
        self.repeats.retain(|(entry, _)| stays(entry));
    }

    /// Whether requests of one session may not be in the order in which it sent them.
    fn is_mixed(&self) -> bool {
        self.is_repeating || self.entries.iter().any(|entry| entry.class == Class::Same)
    }
}

/// A request on a link, from the time it is put there until its reply comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The session of the request. It is [`SessionId::NONE`] for a request that was answered
    /// otherwise (its deadline has passed, or it was moved to another link), for a request of
    /// respool's own, and for the head of a fused request. The entries of a closed session keep
    /// its id, which finds no session.
    pub(crate) session: SessionId,
    /// The place of the request in the order of the session's replies. In a head it is the number
    /// of members: see [`Entry::member_count`].
    pub(crate) seq: u32,
    /// Bytes that the link holds for it. A request that was streamed, and a collapsed read
    /// ([`Class::Same`]), have none of their own.
    pub(crate) len: u32,
    /// The time when the request was read.
    pub(crate) read_at: Stamp,
    /// The command, for the measurement of its time.
    pub(crate) command: CommandMark,
    pub(crate) class: Class,
    pub(crate) marks: EntryMarks,
}

/// Facts about a request that few requests have, in one byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EntryMarks(u8);

impl EntryMarks {
    /// The bits of the [`EarlierAttempt`].
    const EARLIER: u8 = 0b11;
    /// Its reply has a completion.
    const COMPLETION: u8 = 0b100;
    /// Its session wants no reply to it.
    const SILENT: u8 = 0b1000;
    /// It has left in an earlier batch.
    const LEFT: u8 = 0b1_0000;

    fn with(self, mark: u8, on: bool) -> EntryMarks {
        EntryMarks(match on {
            true => self.0 | mark,
            false => self.0 & !mark,
        })
    }
}

/// The command of a request, as an entry holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandMark(u16);

impl CommandMark {
    /// A request that is not measured: one of respool's own, a share, or one that was given up.
    pub(crate) const UNMEASURED: CommandMark = CommandMark(u16::MAX);
    /// No command: no entry has it.
    pub(crate) const NONE: CommandMark = CommandMark(u16::MAX - 1);
    /// A command that the table lacks.
    pub(crate) const OTHER: CommandMark = CommandMark(CommandId::COUNT as u16);

    /// The index of the command among those of the table, with [`CommandMark::OTHER`] behind them:
    /// less than [`CommandMark::COUNT`]. The index of [`CommandMark::UNMEASURED`] and of
    /// [`CommandMark::NONE`] is greater.
    #[inline]
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The command, if the table has it.
    pub(crate) fn id(self) -> Option<CommandId> {
        commands::all().nth(self.index())
    }

    /// Number of commands of the table, and one for [`CommandMark::OTHER`].
    pub(crate) const COUNT: usize = CommandId::COUNT + 1;
}

const _: () = assert!(CommandMark::COUNT < CommandMark::NONE.0 as usize);

impl From<CommandId> for CommandMark {
    #[inline]
    fn from(id: CommandId) -> CommandMark {
        CommandMark(id.index() as u16)
    }
}

impl From<Option<CommandId>> for CommandMark {
    fn from(id: Option<CommandId>) -> CommandMark {
        id.map_or(CommandMark::OTHER, CommandMark::from)
    }
}

// A busy link has a hundred thousand entries.
const _: () = assert!(size_of::<Entry>() == 24);

impl Entry {
    /// Orders entries by session, and each session's by the order in which it sent them.
    pub(crate) fn cmp_in_session(&self, other: &Entry) -> Ordering {
        let distance = self.seq.wrapping_sub(other.seq) as i32;
        self.session.cmp(&other.session).then(distance.cmp(&0))
    }

    /// An entry for a request that may change data and is not measured, unless the caller sets
    /// its class and command.
    pub(crate) fn of(session: SessionId, seq: u32, read_at: Stamp) -> Entry {
        Entry {
            session,
            seq,
            len: 0,
            read_at,
            command: CommandMark::UNMEASURED,
            class: Class::Write,
            marks: EntryMarks::default(),
        }
    }

    /// Whether the times of both are counted together.
    #[inline]
    pub(crate) fn is_of_run(&self, command: CommandMark, read_at: Stamp) -> bool {
        self.read_at == read_at && self.command == command
    }

    /// Whether its reply has a completion, which is in the queue of the ledger. Other replies are
    /// simply passed on.
    #[inline]
    pub(crate) fn has_completion(&self) -> bool {
        self.marks.0 & EntryMarks::COMPLETION != 0
    }

    /// Whether its session wants no reply to it.
    pub(crate) fn is_silent(&self) -> bool {
        self.marks.0 & EntryMarks::SILENT != 0
    }

    /// The outcome of an earlier attempt to send it.
    pub(crate) fn earlier_attempt(&self) -> EarlierAttempt {
        match self.marks.0 & EntryMarks::EARLIER {
            0 => EarlierAttempt::Unsent,
            1 => EarlierAttempt::Answered,
            2 => EarlierAttempt::Refused,
            _ => EarlierAttempt::Lost,
        }
    }

    /// The entry with or without a completion.
    pub(crate) fn with_completion(mut self, has: bool) -> Entry {
        self.marks = self.marks.with(EntryMarks::COMPLETION, has);
        self
    }

    /// The entry of a session that wants no reply (`silent`), or wants one.
    pub(crate) fn silenced(mut self, silent: bool) -> Entry {
        self.marks = self.marks.with(EntryMarks::SILENT, silent);
        self
    }

    /// The entry after an attempt to send it.
    pub(crate) fn after(mut self, before: EarlierAttempt) -> Entry {
        self.marks.0 = self.marks.0 & !EntryMarks::EARLIER | before as u8;
        self
    }

    /// The entry of a request that has left in a batch, and that leaves again.
    pub(crate) fn leaving_again(mut self) -> Entry {
        self.marks = self.marks.with(EntryMarks::LEFT, true);
        self
    }

    /// Whether the request has left in an earlier batch, on this link or on another one.
    pub(crate) fn has_left_before(&self) -> bool {
        self.marks.0 & EntryMarks::LEFT != 0 || self.earlier_attempt() != EarlierAttempt::Unsent
    }

    /// The head of a fused request: `members` requests follow it. `first`: the entry of the first
    /// member, which gives the head its age. `len`: the head's own bytes.
    pub(crate) fn head(class: Class, members: u32, len: u32, first: &Entry) -> Entry {
        debug_assert!(class.is_whole());
        Entry {
            class,
            len,
            ..Entry::of(SessionId::NONE, members, first.read_at)
        }
    }

    /// The number of members that were sent with this head.
    pub(crate) fn member_count(&self) -> u32 {
        debug_assert!(self.class.is_whole());
        self.seq
    }

    /// Removes its session: the reply will be dropped, and its time does not count.
    pub(crate) fn give_up(&mut self) {
        (self.session, self.command) = (SessionId::NONE, CommandMark::UNMEASURED);
    }

    /// The entry of a request that was counted already.
    pub(crate) fn uncounted(mut self) -> Entry {
        self.command = CommandMark::UNMEASURED;
        self
    }

    /// The entry as that of a request of this command.
    pub(crate) fn of_command(mut self, command: impl Into<CommandMark>) -> Entry {
        self.command = command.into();
        self
    }

    /// Whether no session waits for it any more.
    pub(crate) fn is_given_up(&self) -> bool {
        self.session == SessionId::NONE && !self.has_completion() && !self.class.is_whole()
    }

    /// The fate of the request if it was not written whole to the present connection.
    pub(crate) fn fate_unsent(&self) -> Fate {
        match self.earlier_attempt() {
            EarlierAttempt::Unsent | EarlierAttempt::Refused => Fate::NotSent,
            EarlierAttempt::Answered | EarlierAttempt::Lost => Fate::Unknown,
        }
    }
}

/// The outcome of an earlier attempt to send a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EarlierAttempt {
    /// There was none.
    Unsent = 0,
    /// The request was answered, but the reply was not one for its session.
    Answered,
    /// The reply said that the request was not executed.
    Refused,
    /// The connection was lost, or held up by a slow session. A request is sent again after that
    /// once.
    Lost,
}

/// The role of a request in its batch, which says how it may be sent a second time. The classes
/// that the hot path asks about stand side by side, so that each of its questions is one
/// comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A request that may change data.
    Write,
    /// A read: it may be executed twice without harm.
    Read,
    /// A read equal to the one before it. It was not sent, and gets the same reply.
    Same,
    /// A read with a reply that depends on the data alone.
    Pure,
    /// A GET that may be fused.
    Get,
    /// A SET that may be fused if it has no options.
    Set,
    /// A read that was moved to the end of its batch, and is sent as its client sent it. Requests
    /// of its session that the client sent later may run before it. A lone GET of its section is
    /// one.
    Reordered,
    /// A member of an MGET: a GET of which only the key was sent.
    OfGets,
    /// A member of an MSET: a SET of which only key and value were sent.
    OfSets,
    /// The head of a fused MGET: see [`Entry::head`].
    Gets,
    /// The head of a fused MSET: see [`Entry::head`].
    Sets,
    /// A GET that was sent alone, to see whether the user has the right to GET.
    TriesGet,
    /// A SET that was sent alone, to see whether the user has the right to SET.
    TriesSet,
}

impl Class {
    pub(crate) fn of(reads: bool) -> Class {
        if reads { Class::Read } else { Class::Write }
    }

    pub(crate) fn reads(self) -> bool {
        !matches!(
            self,
            Class::Write | Class::Set | Class::Sets | Class::OfSets | Class::TriesSet
        )
    }

    /// Whether it may be joined with other requests of its batch.
    #[inline]
    pub(crate) fn may_move(self) -> bool {
        matches!(self, Class::Pure | Class::Get | Class::Set)
    }

    /// Whether it was moved, fused, or sent to try a right: its reply may have to be more than
    /// passed on.
    #[inline]
    pub(crate) fn is_coalesced(self) -> bool {
        matches!(self, Class::Reordered | Class::OfGets | Class::OfSets)
            || self.is_whole()
            || self.tries()
    }

    /// Whether respool reads its reply, besides passing it on: it shows a right or a failure.
    #[inline]
    pub(crate) fn is_read_by_respool(self) -> bool {
        self == Class::Sets || self.tries()
    }

    /// Whether it is a read that may have to be sent again.
    pub(crate) fn is_moved_read(self) -> bool {
        matches!(self, Class::Reordered | Class::OfGets | Class::Same)
    }

    /// Whether it was sent alone to see whether its user has the right to the command.
    #[inline]
    pub(crate) fn tries(self) -> bool {
        matches!(self, Class::TriesGet | Class::TriesSet)
    }

    /// Whether it is the head of a fused request.
    pub(crate) fn is_whole(self) -> bool {
        matches!(self, Class::Gets | Class::Sets)
    }

    /// Whether it was sent together with the entry before it.
    pub(crate) fn is_joined(self) -> bool {
        matches!(self, Class::OfGets | Class::OfSets | Class::Same)
    }

    /// The bytes in front of the arguments, which a fused request was sent without.
    pub(crate) fn beginning(self) -> &'static [u8] {
        match self {
            Class::OfGets => GET,
            Class::OfSets => SET,
            _ => b"",
        }
    }

    /// The class of the request when it is sent again. It is not fused, which could fail in the
    /// same way. Of equal reads one may be sent.
    pub(crate) fn when_repeated(self) -> Class {
        match self {
            read if read.is_moved_read() => Class::Pure,
            other => Class::of(other.reads()),
        }
    }

    /// The class of the request when it stands alone again.
    pub(crate) fn alone(self) -> Class {
        match self {
            Class::OfGets | Class::TriesGet => Class::Get,
            Class::OfSets | Class::TriesSet => Class::Set,
            Class::Reordered | Class::Same => Class::Pure,
            other => other,
        }
    }
}

/// The beginning of a GET.
pub(crate) const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n";
/// The beginning of a SET without options.
pub(crate) const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n";

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::base::handle::session;
    use crate::data_plane::ledger::departed::ASKED_AGAIN_MAX;

    fn entry(seq: u32, class: Class, bytes: &[u8]) -> Entry {
        Entry {
            len: bytes.len() as u32,
            class,
            ..Entry::of(session(1), seq, Stamp(0))
        }
    }

    /// Odd requests are reads.
    fn push(ledger: &mut Ledger, seq: u32, len: usize) {
        let bytes = vec![b'x'; len];
        ledger.push(entry(seq, Class::of(seq % 2 == 1), &bytes), &bytes);
    }

    /// A ledger with a fused MGET of two keys, the first read by two sessions, and a request with a
    /// completion behind.
    fn joined() -> Ledger {
        let mut ledger = Ledger::default();
        let first = entry(0, Class::OfGets, b"$1\r\na\r\n");
        let entries = [
            Entry::head(Class::Gets, 2, 4, &first),
            first,
            entry(1, Class::Same, b""),
            entry(2, Class::OfGets, b"$1\r\nb\r\n"),
        ];
        ledger.rearrange(b"head$1\r\na\r\n$1\r\nb\r\n", &entries);
        let read = entry(3, Class::Read, b"read").with_completion(true);
        ledger.push_with(read, b"read", Completion::Instead(b"+OK".to_vec()));
        ledger
    }

    /// Replies take requests off in order, each with its bytes and its completion.
    #[test]
    fn requests_leave_in_order_with_their_completions() {
        let mut ledger = Ledger::default();
        push(&mut ledger, 0, 10);
        let read = entry(1, Class::Read, b"read").with_completion(true);
        ledger.push_with(read, b"read", Completion::Shutdown);
        assert!(ledger.first_in_flight().is_none(), "nothing has left");
        assert_eq!((ledger.batched(), ledger.in_flight()), (2, 0));
        assert!(ledger.flush(Stamp(0)), "no request was in flight");
        assert_eq!((ledger.batched(), ledger.in_flight()), (0, 2));
        assert_eq!(ledger.pending().len(), 14);
        ledger.write(14);
        assert_eq!(ledger.is_shut_down_by(), Some(session(1)));
        assert!(ledger.front_completion().is_none());
        let front = ledger.first_in_flight().expect("a request is in flight");
        assert!(ledger.pop_completed(front).is_none());
        assert_eq!(ledger.first_bytes(), b"read");
        let front = ledger.first_in_flight().expect("a request is in flight");
        let completion = ledger.pop_completed(front);
        assert!(matches!(completion, Some(Completion::Shutdown)));
        assert!(ledger.is_empty() && ledger.unanswered_bytes() == 0);
    }

    /// A walk shows members of a fused request whole, and a collapsed read with the bytes that it
    /// shares.
    #[test]
    fn walk_shows_whole_requests_and_their_completions() {
        let ledger = joined();
        let shown: Vec<_> = ledger
            .requests()
            .map(|held| (held.bytes(), held.completion.is_some()))
            .collect();
        let get = |key: &str| format!("*2\r\n$3\r\nGET\r\n$1\r\n{key}\r\n").into_bytes();
        let expected = [
            (b"head".to_vec(), false),
            (get("a"), false),
            (get("a"), false),
            (get("b"), false),
            (b"read".to_vec(), true),
        ];
        assert_eq!(shown, expected);
        assert!(
            ledger
                .requests()
                .all(|held| held.len() == held.bytes().len())
        );
    }

    /// When a connection ends, the head of a fused request is dropped. Its members stand alone.
    #[test]
    fn fused_requests_stand_alone_after_a_loss() {
        let mut ledger = joined();
        let gone = ledger.lose_connection(true);
        assert!(gone.is_empty(), "no request was written");
        let classes: Vec<Class> = ledger.iter().map(|entry| entry.class).collect();
        assert_eq!(classes, [Class::Get, Class::Pure, Class::Get, Class::Read]);
        let all = ledger
            .requests()
            .map(|held| held.bytes())
            .collect::<Vec<_>>();
        assert_eq!(all.concat(), ledger.open_batch_bytes());
        assert!(ledger.any_completion(|each| matches!(each, Completion::Instead(_))));
        assert_eq!((ledger.batched(), ledger.movable()), (4, 3));
    }

    /// A request that is sent again stands behind later ones. After a loss all are in the order of
    /// their session, each with its bytes and its completion.
    #[test]
    fn repeated_request_returns_to_its_place_after_a_loss() {
        let mut ledger = Ledger::default();
        ledger.repeat_later(entry(0, Class::Read, b"early"), b"early");
        assert!(ledger.brings(session(1), 0) && !ledger.owes(session(1)));
        let late = entry(1, Class::Read, b"late").with_completion(true);
        ledger.push_with(late, b"late", Completion::Shutdown);
        for (entry, request) in ledger.take_repeats() {
            ledger.push(entry, &request);
        }
        assert_eq!(ledger.open_batch_bytes(), b"lateearly");
        let gone = ledger.lose_connection(false);
        assert!(gone.is_empty(), "no request was written");
        let shown: Vec<_> = ledger
            .requests()
            .map(|held| (held.bytes(), held.completion.is_some()))
            .collect();
        assert_eq!(
            shown,
            [(b"early".to_vec(), false), (b"late".to_vec(), true)]
        );
    }

    /// When a connection ends, requests that were written whole are gone. All others stay, whole.
    #[test]
    fn lost_link_keeps_whole_requests_that_were_not_written() {
        for written in 0..=40 {
            let mut ledger = Ledger::default();
            for seq in 0..4 {
                push(&mut ledger, seq, 10);
            }
            ledger.flush(Stamp(0));
            ledger.write(written);
            let gone = ledger.lose_connection(false);
            let seqs: Vec<u32> = gone.iter().map(|entry| entry.seq).collect();
            let whole = written / 10;
            assert_eq!(
                seqs,
                (0..whole as u32).collect::<Vec<_>>(),
                "{written} bytes written"
            );
            assert_eq!(ledger.len(), 4 - whole);
            assert_eq!(ledger.open_bytes(), (4 - whole) * 10);
            assert!(
                ledger
                    .iter()
                    .all(|entry| entry.earlier_attempt() == EarlierAttempt::Unsent)
            );
        }
    }

    /// A lost read is sent again once, unless its session had sent a change after it.
    #[test]
    fn lost_read_is_sent_again_once_if_no_change_followed() {
        let mut ledger = Ledger::default();
        // Odd requests are reads. The change 2 was sent after read 1. The change 4, after read 3,
        // was not sent.
        for seq in 0..6 {
            push(&mut ledger, seq, 10);
        }
        ledger.flush(Stamp(0));
        ledger.write(45);
        let seqs = |entries: &mut dyn Iterator<Item = &Entry>| {
            entries
                .map(|entry| (entry.seq, entry.earlier_attempt() == EarlierAttempt::Lost))
                .collect::<Vec<_>>()
        };
        let gone = ledger.lose_connection(true);
        assert_eq!(seqs(&mut gone.iter()), [(0, false), (1, false), (2, false)]);
        assert_eq!(
            seqs(&mut ledger.iter()),
            [(3, true), (4, false), (5, false)]
        );
        ledger.flush(Stamp(0));
        ledger.write(30);
        let gone = ledger.lose_connection(true);
        assert_eq!(seqs(&mut gone.iter()), [(3, true), (4, false)]);
        assert_eq!(seqs(&mut ledger.iter()), [(5, true)]);
    }

    /// A large request leaves when its last bytes do, even if it was read before.
    #[test]
    fn large_request_leaves_with_its_last_bytes() {
        let mut ledger = Ledger::default();
        for (seq, now) in [(0, 5), (1, 9)] {
            let entry = Entry::of(session(1), seq, Stamp(1));
            ledger.push_streamed(entry, None, Stamp(now));
        }
        for left in [5, 9] {
            assert_eq!(ledger.front_departure().left, Stamp(left));
            ledger.pop_simple(0);
        }
    }

    /// Sessions with a few reads leave a draining link. Sessions that write or read much stay.
    #[test]
    fn sessions_with_few_reads_leave_draining_link() {
        let mut ledger = Ledger::default();
        let [slow_session, reader, writer, greedy] = [1, 2, 3, 4].map(session);
        let mut put = |session, seq, reads| {
            let entry = Entry {
                session,
                seq,
                len: 4,
                class: Class::of(reads),
                ..Entry::of(SessionId::NONE, 0, Stamp(0))
            };
            ledger.push(entry, format!("{}{seq:03}", session.index).as_bytes());
        };
        put(slow_session, 0, true);
        put(reader, 0, true);
        put(writer, 0, true);
        put(writer, 1, false);
        put(reader, 1, true);
        (0..=ASKED_AGAIN_MAX as u32).for_each(|seq| put(greedy, seq, true));
        let taken = ledger.take_few_reads_of_others([slow_session, SessionId::NONE]);
        let taken: Vec<_> = taken
            .iter()
            .map(|left| (left.entry.session, &left.request[..]))
            .collect();
        assert_eq!(taken, [(reader, &b"2000"[..]), (reader, b"2001")]);
        let left: HashSet<SessionId> = ledger.iter().map(|entry| entry.session).collect();
        assert_eq!(
            left,
            HashSet::from([slow_session, writer, greedy, SessionId::NONE])
        );
    }
}
