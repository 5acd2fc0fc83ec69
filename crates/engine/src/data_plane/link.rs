//! One connection of ours to a server: what waits to be written, what is owed in return, and when
//! the open batch leaves.
//!
//! ```text
//!            written, unanswered            flushed      open batch
//! ledger   [ e0 e1 e2 e3 e4 e5          |  e6 e7      |  e8 e9   ]   requests, first in first out
//! out      [ e0 e1 e2 e3 e4 half of e5 . half, e6 e7  |  e8 e9   ]   bytes
//!                                      ^ next to write           ^ `allowed` ends before the open batch
//! ```
//!
//! The ledger has an entry for every request whose reply has not come, whoever still wants it: a
//! reply belongs to the entry in front and to nothing else. An entry leaves only when its reply
//! ends or the connection does. Its bytes are kept as long: a read that was lost can be sent again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use respool_protocol::encode::Version;
use respool_protocol::reply;

use crate::buffer::Unanswered;
use crate::duty::Duty;
use crate::entry::{Before, Class, Entry};
use crate::greeting::{Greeting, Identity};
use crate::limits::{BATCH_BYTES_MAX, JOINED_BATCH_BYTES_MAX, Limits};
use crate::monitor::Tunnel;
use crate::pinned::Switch;
use crate::pool::ServerId;
use crate::redirect::Stand;
use crate::reply_room::ReplyRoom;
use crate::returns::Returns;
use crate::scripts::Loaded;
use crate::session::Pins;
use crate::settings::FlushRule;
use crate::slots::Key;
use crate::slow_readers::Lane;
use crate::subscriptions::LineId;
use crate::time::Time;
use crate::trial::{BY_SLOT, COLLAPSING, FUSING, Trial};

/// Why a link is given up that brought a reply to nothing: nobody could be told whose the next one
/// is.
pub(crate) const UNASKED: &str = "it sent a reply that nobody asked for";

/// What makes links interchangeable: sessions with the same key share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LinkKey {
    pub(crate) server: ServerId,
    pub(crate) version: Version,
    pub(crate) db: u32,
    /// Who we are to the server: see [`crate::auth`].
    pub(crate) user: u16,
    /// Which sessions share it: see [`crate::slow_readers`].
    pub(crate) lane: Lane,
}

impl LinkKey {
    /// The same kind at another server.
    #[inline]
    pub(crate) fn at(self, server: ServerId) -> LinkKey {
        LinkKey { server, ..self }
    }
}

/// Whose requests travel on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Everybody's.
    Shared,
    /// Nobody's any more: `by` takes its replies too slowly, and the link serves what it owes. Or
    /// it is for what others had asked behind such a session, of whom `by` may be the next. Or its
    /// server is not the one any more that is meant, and `by` nobody.
    Captured { by: Key },
    /// One large request of `by`.
    Streaming { by: Key },
    /// One request of `by` that must not wait for a bound (SCRIPT KILL).
    Emergency { by: Key },
    /// All requests of `by`: the server's side of the connection knows something about it.
    Pinned { by: Key },
    /// Subscriptions on this server, and what subscribers publish.
    Hub(LineId),
    /// Nobody's: its server is a Sentinel.
    Sentinel,
    /// Nothing is asked on it: it stands for the session of this id, to be told what others track.
    Redirect { to: u64 },
    /// Logins of clients, each tried once, and checks of the configured login. It is never
    /// authenticated for requests.
    Probe,
    /// Nobody's: it was streaming or pinned, carries no trace of that, and waits for the next one.
    Spare,
}

impl Role {
    /// The session whose slowness stops the link.
    pub(crate) fn captor(self) -> Key {
        match self {
            Role::Captured { by }
            | Role::Streaming { by }
            | Role::Emergency { by }
            | Role::Pinned { by } => by,
            Role::Shared
            | Role::Hub(_)
            | Role::Sentinel
            | Role::Redirect { .. }
            | Role::Probe
            | Role::Spare => Key::NOBODY,
        }
    }

    /// Whether it serves one session alone for as long as that likes: of these there are many,
    /// within a bound of their own.
    pub(crate) fn is_one_sessions(self) -> bool {
        matches!(self, Role::Pinned { .. } | Role::Redirect { .. })
    }

    /// Whether it counts against `links-max`.
    pub(crate) fn is_bounded_by_links_max(self) -> bool {
        !self.is_one_sessions() && !matches!(self, Role::Emergency { .. } | Role::Probe)
    }

    /// Whether it serves one request of one session.
    pub(crate) fn is_one_requests(self) -> bool {
        matches!(self, Role::Streaming { .. } | Role::Emergency { .. })
    }

    /// Whether requests of many sessions may stand on it.
    pub(crate) fn is_manys(self) -> bool {
        matches!(self, Role::Shared | Role::Captured { .. })
    }

    /// Whether requests are appended to its open batch.
    pub(crate) fn takes_requests(self) -> bool {
        matches!(self, Role::Shared | Role::Pinned { .. })
    }
}

/// Whether bytes are cut through a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Streaming {
    No,
    /// More of them come.
    Open,
    /// The last ones are to be written.
    Ending,
}

/// Whether more is sent on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sends {
    More,
    /// Its session has left: what it asked before, and then nothing.
    Rest,
    /// The server is told that nothing more comes.
    Nothing,
}

/// How far a server is with ending a wait.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dismissal {
    /// Since when there is no answer.
    pub(crate) at: Option<Time>,
    /// How often it said that it did not.
    pub(crate) denied: u8,
}

/// How far the connection is.
#[derive(Debug)]
pub(crate) enum State {
    /// Not connected, and nobody waits for it.
    Down,
    /// Until the kernel or the deadline says otherwise.
    Connecting { since: Time },
    /// Connected; the server has to answer our greeting first.
    Greeting {
        since: Time,
        greeting: Box<Greeting>,
    },
    /// In use.
    Up,
    /// Not connected; the next attempt is at `until`, and requests fail until then.
    Resting { until: Time },
    /// Not connected; the next attempt is at `at`, and requests wait: see [`crate::outage`].
    Retrying { at: Time },
}

/// What the flush rule says of an open batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Flush(Why),
    HoldUntil(Time),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Idle,
    Full,
    Late,
}

pub(crate) struct Link {
    /// Whether a request may be appended without further questions: the one question of the hot
    /// path. Set by [`Link::admit`] alone.
    pub(crate) accepting: bool,
    /// Whether it takes requests, if need be with questions: it is shared or pinned, and has room.
    pub(crate) takes: bool,
    /// Whether the engine has it on its list of links with an open batch.
    pub(crate) listed: bool,
    pub(crate) out: Unanswered,
    /// Unwritten bytes that may be written.
    allowed: usize,
    pub(crate) ledger: VecDeque<Entry>,
    /// What becomes of the replies to the entries that have a duty, in their order.
    pub(crate) duties: VecDeque<Duty>,
    /// Entries of the open batch, at the back of the ledger.
    open: u32,
    /// The turn in which the open batch got its first request.
    open_since: Time,
    /// Sessions that got their last reply on this link and are expected back.
    pub(crate) returns: Returns,

    pub(crate) scanner: reply::Scanner,
    /// The reply that is coming, as far as it has not been passed on.
    pub(crate) partial: Vec<u8>,
    /// Whether a part of it has been passed on.
    pub(crate) cutting: bool,
    /// When the server last sent anything, or last had nothing to send.
    pub(crate) progress: Time,
    /// Not read, because its captor takes nothing; since when.
    pub(crate) paused: Option<Time>,
    /// Whether what is written is of no request in the ledger.
    pub(crate) streaming: Streaming,
    pub(crate) sends: Sends,
    /// Respool ends, and so is to end the wait of its session.
    pub(crate) dismissal: Dismissal,
    /// Requests of the open batch that may leave together.
    pub(crate) movable: u32,
    /// MGETs of ours in the ledger.
    pub(crate) heads: u32,
    /// What left together comes apart: some of it is asked again.
    pub(crate) asks_again: bool,
    /// That, until it is put on the link.
    pub(crate) again: Vec<(Entry, Vec<u8>)>,
    /// When it was last seen that this user may GET, and SET. Whoever may MGET need not have the
    /// right to GET.
    pub(crate) may_get: Option<Time>,
    pub(crate) may_set: Option<Time>,
    /// Whether it pays to fuse GETs: not where many find nothing, for each of those costs two
    /// requests ...
    pub(crate) gets: Trial,
    /// ... and SETs.
    pub(crate) sets: Trial,
    /// Whether what comes side by side is of one slot often enough, where that counts.
    pub(crate) by_slot: Trial,
    /// Whether it pays to look for what is the same.
    pub(crate) collapsing: Trial,
    /// Its server may say that another one is to be asked, or that one should ask later.
    pub(crate) heeds: bool,
    /// What is in flight may rightly take for ever: the server waits for something.
    pub(crate) waits: bool,
    /// Its bytes are the session's as they come (MONITOR).
    pub(crate) tunnel: Option<Tunnel>,
    /// It may carry a trace of what was done on it, and is closed after use.
    pub(crate) tainted: bool,
    /// How many replies it may be owed.
    pub(crate) reply_room: ReplyRoom,
    /// Scripts that its server has got on this connection.
    pub(crate) loaded: Loaded,

    pub(crate) state: State,
    pub(crate) role: Role,
    pub(crate) key: LinkKey,
    /// Sessions that ride on it.
    pub(crate) riders: u32,
    /// Held by all who need it though they do not ride on it.
    pub(crate) held: Arc<Stand>,
    /// Sessions that wait until it can be used, or refused.
    pub(crate) waiters: Vec<Key>,
    /// When it was lost, if it ever was up.
    pub(crate) lost_at: Option<Time>,
    /// Attempts to connect since the last success.
    pub(crate) failures: u32,
    /// What the last attempt came to. For a person; for a client if `refusal`.
    pub(crate) reason: String,
    /// The server's own error reply to our greeting, if that was it.
    pub(crate) refusal: Option<Vec<u8>>,
    /// What the server said of itself.
    pub(crate) identity: Option<Identity>,
    /// What the server calls this connection.
    pub(crate) client_id: i64,
    /// When the last attempt to connect began.
    pub(crate) attempted_at: Time,
    /// That was none: its server is known to be away.
    pub(crate) untried: bool,
    /// It takes its time, and the server was away before: nobody waits for it.
    pub(crate) is_late: bool,
    /// Since when it has been up.
    pub(crate) up_since: Time,
    /// When a session has left it, or has taken it for a request off the short way.
    pub(crate) unused_since: Time,
}

impl Link {
    pub(crate) fn new(key: LinkKey, role: Role, max_delay_us: u32, now: Time) -> Self {
        Link {
            accepting: false,
            takes: false,
            listed: false,
            out: Unanswered::default(),
            allowed: 0,
            ledger: VecDeque::new(),
            duties: VecDeque::new(),
            open: 0,
            open_since: now,
            returns: Returns::new(max_delay_us),
            scanner: reply::Scanner::default(),
            partial: Vec::new(),
            cutting: false,
            progress: now,
            paused: None,
            streaming: Streaming::No,
            sends: Sends::More,
            dismissal: Dismissal::default(),
            movable: 0,
            heads: 0,
            asks_again: false,
            again: Vec::new(),
            may_get: None,
            may_set: None,
            gets: FUSING,
            sets: FUSING,
            by_slot: BY_SLOT,
            collapsing: COLLAPSING,
            heeds: false,
            waits: false,
            tunnel: None,
            tainted: false,
            reply_room: ReplyRoom::new(key.lane, now),
            loaded: Loaded::default(),
            state: State::Down,
            role,
            key,
            riders: 0,
            held: Arc::default(),
            waiters: Vec::new(),
            lost_at: None,
            failures: 0,
            reason: String::from("not connected yet"),
            refusal: None,
            identity: None,
            client_id: 0,
            attempted_at: Time(0),
            untried: false,
            is_late: false,
            up_since: now,
            unused_since: now,
        }
    }

    /// Opens or closes the link to requests. While CLIENT PAUSE is on, every request is asked
    /// whether it has to wait, so none goes the short way. The same holds for a careful link.
    pub(crate) fn admit(&mut self, takes: bool, paused: bool) {
        self.takes = takes;
        self.accepting = takes && !paused && !self.reply_room.is_careful();
    }

    /// Whether a session waits at the server for a command that blocks, or is to when the link is up.
    pub(crate) fn holds_a_waiter(&self) -> bool {
        self.waits && matches!(self.role, Role::Pinned { .. })
    }

    /// The session whose SHUTDOWN the server has, and has not answered.
    pub(crate) fn is_shut_down_by(&self) -> Option<Key> {
        let mut with_duty = self.ledger.iter().filter(|entry| entry.duty);
        let at = self
            .duties
            .iter()
            .position(|duty| matches!(duty, Duty::Shutdown))?;
        with_duty.nth(at).map(|entry| entry.session)
    }

    /// Whether a session waits here for the answer to its CLIENT TRACKING ON.
    pub(crate) fn is_asked_to_track(&self) -> bool {
        let mut duties = self.duties.iter();
        let is_own = matches!(self.role, Role::Pinned { .. });
        is_own
            && self.ledger.iter().any(|entry| {
                let duty = if entry.duty { duties.next() } else { None };
                let begins = |switch: &Switch| switch.on && switch.pins.any(Pins::TRACKING);
                entry.session != Key::NOBODY
                    && matches!(duty, Some(Duty::Switch { switch, .. }) if begins(switch))
            })
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, State::Up)
    }

    /// Bytes of requests that are not answered.
    pub(crate) fn unanswered_bytes(&self) -> usize {
        self.out.bytes().len()
    }

    /// Whether it is not up and tries to reach its server, or will do so in a moment.
    pub(crate) fn tries(&self) -> bool {
        !matches!(self.state, State::Down | State::Up | State::Resting { .. })
    }

    /// Whether it owes as much as it may.
    #[inline]
    pub(crate) fn is_full(&self, limits: &Limits) -> bool {
        self.ledger.len() >= self.reply_room.replies_max()
            || self.unanswered_bytes() >= limits.link_unanswered_bytes_max as usize
    }

    /// Whether no request and no reply is on its way, nor a part of one.
    pub(crate) fn is_idle(&self) -> bool {
        self.streaming == Streaming::No
            && self.ledger.is_empty()
            && self.out.bytes().is_empty()
            && !self.scanner.is_inside()
    }

    /// Whether nothing is asked on it, and nothing has come for so long: nobody would notice that
    /// its server is gone.
    pub(crate) fn is_quiet(&self, now: Time, ms: u32) -> bool {
        self.is_up() && self.in_flight() == 0 && now.since_ms(self.progress) >= u64::from(ms)
    }

    /// The request in front and those that are the same, each as it would stand for itself.
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

    /// Whether the reply that comes next is that of several requests.
    #[inline]
    pub(crate) fn shares_next(&self) -> bool {
        let second = self.ledger.get(1);
        second.is_some_and(|entry| entry.class == Class::Same)
    }

    /// Requests of the open batch.
    pub(crate) fn gathered(&self) -> usize {
        self.open as usize
    }

    /// Requests that have left and are not answered.
    pub(crate) fn in_flight(&self) -> usize {
        self.ledger.len() - self.open as usize
    }

    /// Whether the next reply is that to an MGET of ours.
    #[inline]
    pub(crate) fn gets_are_next(&self) -> bool {
        self.heads > 0
            && self
                .first_in_flight()
                .is_some_and(|entry| entry.class == Class::Gets)
    }

    /// The request that the next reply answers.
    #[inline]
    pub(crate) fn first_in_flight(&self) -> Option<Entry> {
        if self.in_flight() > 0 {
            self.ledger.front().copied()
        } else {
            None
        }
    }

    /// Whether the next reply answers a transaction that runs code.
    pub(crate) fn is_front_a_block_of_code(&self) -> bool {
        let front = self.first_in_flight();
        front.is_some_and(|front| front.duty)
            && matches!(self.duties.front(), Some(Duty::Block { code: true, .. }))
    }

    /// The request in front, which is in flight, is answered.
    #[inline]
    pub(crate) fn pop_answered(&mut self, entry: Entry) {
        debug_assert!(self.in_flight() > 0, "what is answered is in flight");
        self.ledger.pop_front();
        self.out.answer(entry.len as usize);
    }

    /// The first bytes of the request in front were a request of their own, and that is answered.
    pub(crate) fn shorten_front(&mut self, bytes: usize) {
        if let Some(front) = self.ledger.front_mut() {
            front.len -= bytes as u32;
            self.out.answer(bytes);
        }
    }

    /// Whether the server has answered something that it was not asked to its end.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.out.is_overtaken()
    }

    /// That is the head of an MGET or MSET: its parts are next.
    pub(crate) fn pop_head(&mut self, head: Entry) {
        self.heads -= u32::from(head.class == Class::Gets);
        self.pop_answered(head);
    }

    /// The bytes of the request in front.
    pub(crate) fn first_bytes(&self) -> &[u8] {
        let len = self.ledger.front().map_or(0, |entry| entry.len as usize);
        &self.out.bytes()[..len]
    }

    /// Whether a reply for this session is still to come.
    pub(crate) fn owes(&self, session: Key) -> bool {
        self.ledger.iter().any(|entry| entry.session == session)
    }

    /// Whether the reply of this place comes on this link; it may have to be asked for again first,
    /// when what is read now ends.
    pub(crate) fn brings(&self, session: Key, seq: u32) -> bool {
        let again = self.again.iter().map(|(entry, _)| entry);
        let mut all = self.ledger.iter().chain(again);
        all.any(|entry| entry.session == session && entry.seq == seq)
    }

    /// Whether the open batch has requests.
    pub(crate) fn has_open_batch(&self) -> bool {
        self.open > 0
    }

    /// Appends a whole request to the open batch.
    #[inline]
    pub(crate) fn push(&mut self, entry: Entry, request: &[u8]) {
        debug_assert_eq!(entry.len as usize, request.len());
        self.out.append(request);
        self.ledger.push_back(entry);
        self.open += 1;
        self.movable += u32::from(entry.class.may_move());
    }

    /// The same for several that one session asked one behind the other, and that are all as long.
    #[inline]
    pub(crate) fn push_alike(&mut self, first: Entry, count: u32, requests: &[u8]) {
        debug_assert_eq!((first.len * count) as usize, requests.len());
        self.out.append(requests);
        self.ledger.extend((0..count).map(|index| Entry {
            seq: first.seq.wrapping_add(index),
            ..first
        }));
        self.open += count;
        self.movable += count * u32::from(first.class.may_move());
    }

    /// Appends a request that has left another link.
    pub(crate) fn push_left(&mut self, left: Left) {
        match left.duty {
            Some(duty) => self.push_with(left.entry, &left.request, duty),
            None => self.push(left.entry, &left.request),
        }
    }

    /// The same for a request whose reply has a duty.
    pub(crate) fn push_with(&mut self, entry: Entry, request: &[u8], duty: Duty) {
        debug_assert!(entry.duty, "an entry with a duty says so");
        self.duties.push_back(duty);
        self.push(entry, request);
    }

    /// The open batch got its first request in the turn at `now`.
    pub(crate) fn begin_batch(&mut self, now: Time) {
        self.open_since = now;
    }

    /// Whether the open batch leaves. Level 2: an idle link flushes at once; a busy one when the
    /// batch in flight has come back, when the batch is full, or when its oldest request has waited
    /// long enough. Replies announce requests: who was answered and is about to ask again is waited
    /// for, within the same bound, so the requests of one crowd stay one batch.
    ///
    /// `soon`: how many are about to come, where that is not in the link's own calendar.
    pub(crate) fn decide(&mut self, rule: &FlushRule, now: Time, soon: Option<u32>) -> Decision {
        // On a link of its own, a session waits for nobody.
        if !rule.hold || self.role != Role::Shared {
            return Decision::Flush(Why::Idle);
        }
        if self.open_bytes() >= self.batch_bytes_max(rule) {
            return Decision::Flush(Why::Full);
        }
        if self.in_flight() == 0 {
            let waits = match soon {
                None => self.returns.worth_waiting(now, self.open),
                Some(soon) => self.returns.worth_waiting_for(soon, self.open),
            };
            if !waits {
                return Decision::Flush(Why::Idle);
            }
        }
        let due = self.open_since + rule.max_delay_us;
        if now >= due {
            self.returns.waited(self.open);
            Decision::Flush(Why::Late)
        } else {
            Decision::HoldUntil(due)
        }
    }

    /// Bytes of the open batch at which it leaves although the link is busy.
    fn batch_bytes_max(&self, rule: &FlushRule) -> usize {
        let joins = rule.fuse || rule.collapse;
        if joins && self.movable * 2 > self.open {
            JOINED_BATCH_BYTES_MAX
        } else {
            BATCH_BYTES_MAX
        }
    }

    /// Closes the open batch: its bytes may be written.
    pub(crate) fn flush(&mut self, now: Time) {
        if self.in_flight() == 0 {
            self.progress = now;
            self.asks_again = false;
        }
        self.open = 0;
        self.movable = 0;
        self.allowed = self.out.unwritten().len();
        self.returns.end_wait();
    }

    /// Puts the open batch into another order: these bytes, and entries to go with them.
    pub(crate) fn rearrange(&mut self, bytes: &[u8], entries: &[Entry]) {
        let first = self.in_flight();
        self.out.take_back(self.open_bytes());
        self.out.append(bytes);
        self.ledger.truncate(first);
        self.ledger.extend(entries);
        let heads = entries.iter().filter(|entry| entry.class == Class::Gets);
        self.heads += heads.count() as u32;
        self.open = entries.len() as u32;
    }

    /// The requests of the open batch.
    pub(crate) fn open_entries(&self) -> impl Iterator<Item = &Entry> {
        self.ledger.range(self.in_flight()..)
    }

    /// The same, in one piece.
    pub(crate) fn copy_gathered(&self, entries: &mut Vec<Entry>) {
        let (front, back) = self.ledger.as_slices();
        let first = self.in_flight();
        entries.clear();
        entries.extend_from_slice(front.get(first..).unwrap_or_default());
        entries.extend_from_slice(&back[first.saturating_sub(front.len())..]);
        let len = entries.iter().map(|entry| entry.len as usize).sum();
        debug_assert_eq!(self.open_bytes(), len);
    }

    /// Their bytes, one behind the other.
    pub(crate) fn gathered_bytes(&self) -> &[u8] {
        &self.out.unwritten()[self.allowed..]
    }

    /// Bytes of the open batch.
    fn open_bytes(&self) -> usize {
        self.out.unwritten().len() - self.allowed
    }

    /// The reply to this request of the open batch tells whether its user may do such.
    pub(crate) fn try_right(&mut self, index: usize) -> Entry {
        let first = self.in_flight();
        let entry = &mut self.ledger[first + index];
        entry.class = match entry.class {
            Class::Get => Class::TriesGet,
            Class::Set => Class::TriesSet,
            other => other,
        };
        *entry
    }

    /// From now on bytes are cut through. No request may be put on the link until they are all
    /// written: which bytes are whose could not be told.
    pub(crate) fn begin_streaming(&mut self) {
        debug_assert!(self.ledger.is_empty() && self.out.bytes().is_empty());
        self.streaming = Streaming::Open;
        self.admit(false, false);
    }

    /// No more bytes come that are to be cut through.
    pub(crate) fn end_streaming(&mut self) {
        self.streaming = Streaming::Ending;
        self.end_streaming_if_written();
    }

    fn end_streaming_if_written(&mut self) {
        if self.streaming == Streaming::Ending && self.out.bytes().is_empty() {
            self.streaming = Streaming::No;
        }
    }

    /// Whether its bytes belong to one request and cannot be told from others.
    pub(crate) fn is_one_requests(&self) -> bool {
        self.role.is_one_requests() || self.streaming != Streaming::No
    }

    /// Whether requests may be put on it, as far as it is up to the link.
    pub(crate) fn may_take(&self) -> bool {
        self.role.takes_requests()
            && self.streaming == Streaming::No
            && self.sends == Sends::More
            && !self.is_late
    }

    /// Appends a part of a request that is cut through; it may be written at once. The kernel's
    /// time to take it begins now, unless it has not taken the part before.
    pub(crate) fn stream(&mut self, bytes: &[u8], now: Time) {
        if self.pending().is_empty() && self.in_flight() == 0 {
            self.progress = now;
        }
        self.out.append(bytes);
        self.allowed = self.out.unwritten().len();
    }

    /// What may be written now.
    pub(crate) fn pending(&self) -> &[u8] {
        match &self.state {
            State::Greeting { greeting, .. } => &greeting.unsent,
            State::Up => &self.out.unwritten()[..self.allowed],
            _ => &[],
        }
    }

    /// The kernel took `count` of the pending bytes.
    pub(crate) fn written(&mut self, count: usize) {
        match &mut self.state {
            State::Greeting { greeting, .. } => {
                greeting.unsent.drain(..count);
            }
            _ => {
                self.allowed -= count;
                self.out.write(count);
                if self.streaming != Streaming::No {
                    // A large request is not held, and so cannot be sent again.
                    self.out.answer(count);
                    self.end_streaming_if_written();
                }
            }
        }
    }

    /// The connection stands: greet.
    pub(crate) fn greet(&mut self, greeting: Greeting, now: Time) {
        self.state = State::Greeting {
            since: now,
            greeting: Box::new(greeting),
        };
    }

    /// How many requests, from the front, were written whole.
    fn sent(&self) -> usize {
        let mut unwritten = self.out.unwritten().len();
        let mut sent = self.ledger.len();
        while sent > 0 && unwritten > 0 {
            unwritten = unwritten.saturating_sub(self.ledger[sent - 1].len as usize);
            sent -= 1;
        }
        // What was fused was sent when its last part was.
        while sent > 0 && sent < self.ledger.len() && self.ledger[sent].class.is_part() {
            sent -= 1;
        }
        sent
    }

    /// The connection is gone. Gives back the requests that may have been executed, and whatever
    /// nobody waits for. Those that were not written whole stay, for the next connection; so do, if
    /// there is to be one at once (`again`), reads that were sent once, unless their session asked
    /// for a change behind them: they would see it.
    pub(crate) fn disconnect(&mut self, again: bool) -> Vec<Entry> {
        let sent = self.sent();
        let mixed = self.is_mixed();
        let mut changed = HashSet::new();
        // What nobody waits for any more is not begun again: its client may have asked for
        // something else meanwhile.
        let is_wanted = |entry: &Entry| entry.session != Key::NOBODY || entry.duty;
        let mut stays: Vec<bool> = self.ledger.iter().map(is_wanted).collect();
        let mut of_entry = self.duties.iter();
        let is_simple =
            |entry: &Entry| !entry.duty || of_entry.next().and_then(Duty::read_again).is_some();
        let simple: Vec<bool> = self.ledger.iter().map(is_simple).collect();
        for (index, entry) in self.ledger.iter().enumerate().take(sent).rev() {
            let simple = entry.silent || simple[index];
            let harmless = entry.class.reads() && simple && !changed.contains(&entry.session);
            let is_first_loss = entry.before != Before::Lost;
            stays[index] = again && harmless && is_first_loss && entry.session != Key::NOBODY;
            if !entry.class.reads() {
                changed.insert(entry.session);
            }
        }
        let mut gone = Vec::new();
        let mut kept = Vec::new();
        let mut duties = std::mem::take(&mut self.duties).into_iter();
        let mut at = 0;
        let (mut beginning, mut sent_at): (&[u8], _) = (b"", 0..0);
        for (index, mut entry) in std::mem::take(&mut self.ledger).into_iter().enumerate() {
            let behind = at + entry.len as usize;
            let mut duty = if entry.duty { duties.next() } else { None };
            let nobodys = entry.session == Key::NOBODY;
            if entry.class != Class::Same {
                (beginning, sent_at) = (entry.class.beginning(), at..behind);
            }
            if entry.class.is_whole() {
                // Its parts stand for themselves again.
            } else if stays[index] && duty.as_mut().is_none_or(|duty| duty.begin_again(nobodys)) {
                self.duties.extend(duty);
                kept.extend_from_slice(beginning);
                kept.extend_from_slice(&self.out.bytes()[sent_at.clone()]);
                entry.len = (beginning.len() + sent_at.len()) as u32;
                entry.class = entry.class.alone();
                if index < sent {
                    entry.before = Before::Lost;
                }
                self.ledger.push_back(entry);
            } else {
                gone.push(entry);
            }
            at = behind;
        }
        self.out.replace(kept);
        self.count_open();
        self.heads = 0;
        self.asks_again = false;
        if mixed {
            self.put_into_asked_order();
        }
        self.allowed = 0;
        // It may be another server, or other rights.
        self.try_again();
        self.may_get = None;
        self.may_set = None;
        self.returns.end_wait();
        self.scanner = reply::Scanner::default();
        self.reply_room.forget_part();
        self.partial = Vec::new();
        self.cutting = false;
        self.streaming = Streaming::No;
        self.paused = None;
        gone
    }

    /// What was left alone is tried again.
    pub(crate) fn try_again(&mut self) {
        self.gets = FUSING;
        self.sets = FUSING;
        self.by_slot = BY_SLOT;
        self.collapsing = COLLAPSING;
    }

    /// Whether requests of one session may not be in the order in which it asked them.
    fn is_mixed(&self) -> bool {
        self.asks_again || self.ledger.iter().any(|entry| entry.class == Class::Same)
    }

    /// What is asked again stands behind what was asked behind it: each session's requests come
    /// into the order again in which it asked them. Nothing is in flight.
    fn put_into_asked_order(&mut self) {
        let mut duties = std::mem::take(&mut self.duties).into_iter();
        let mut at = 0;
        let mut asked: Vec<(Entry, usize, Option<Duty>)> = Vec::new();
        for entry in std::mem::take(&mut self.ledger) {
            let duty = if entry.duty { duties.next() } else { None };
            asked.push((entry, at, duty));
            at += entry.len as usize;
        }
        asked.sort_by(|(one, ..), (other, ..)| one.asked_before(other));
        let mut bytes = Vec::with_capacity(at);
        for (entry, at, duty) in asked {
            bytes.extend_from_slice(&self.out.bytes()[at..at + entry.len as usize]);
            self.ledger.push_back(entry);
            self.duties.extend(duty);
        }
        self.out.replace(bytes);
    }

    /// Whether it owes replies to other sessions than the one in front.
    pub(crate) fn owes_others(&self) -> bool {
        let front = self.first_in_flight().map(|front| front.session);
        let mut entries = self.ledger.iter();
        entries.any(|entry| entry.session != Key::NOBODY && Some(entry.session) != front)
    }

    /// Takes the requests that can go another way: those of sessions, other than `captor`, whose
    /// requests here may all be asked twice. Their replies will be dropped. A session with any
    /// other request must wait, or its order is lost. `again`: how a request is asked a second
    /// time, if it may be.
    pub(crate) fn take_requests_of_others(
        &mut self,
        captor: Key,
        again: impl Fn(&Entry, &[u8], Option<&Duty>) -> Again,
        bounds: AgainBounds,
    ) -> Vec<Left> {
        let mixed = self.is_mixed();
        let mut duties = self.duties.iter();
        let (mut all, mut at) = (Vec::with_capacity(self.ledger.len()), 0);
        // Of each session: whether all may go, how many they are, and their bytes.
        let mut asked: HashMap<Key, (bool, usize, usize)> = HashMap::new();
        // Entries with the same read as the one in front have no bytes of their own.
        let mut sent_bytes = 0;
        for entry in &self.ledger {
            let behind = at + entry.len as usize;
            let duty = if entry.duty { duties.next() } else { None };
            let again = again(entry, &self.out.bytes()[at..behind], duty);
            let of_session = asked.entry(entry.session).or_insert((true, 0, 0));
            of_session.0 &= !matches!(again, Again::No);
            of_session.1 += 1;
            if entry.class != Class::Same {
                sent_bytes = entry.class.beginning().len() + entry.len as usize;
            }
            of_session.2 += sent_bytes;
            all.push(again);
            at = behind;
        }
        asked.remove(&captor);
        asked.remove(&Key::NOBODY);
        if self.cutting
            && let Some(front) = self.ledger.front()
        {
            // Half of the reply in front is with its client.
            asked.remove(&front.session);
        }
        let (mut going, mut bytes) = (HashSet::new(), 0);
        for entry in &self.ledger {
            if let Some((true, count, its)) = asked.remove(&entry.session)
                && count <= bounds.requests_of_session
                && bytes + its <= bounds.bytes
            {
                bytes += its;
                going.insert(entry.session);
            }
        }
        let (mut taken, mut at) = (Vec::new(), 0);
        let (mut beginning, mut sent_at): (&[u8], _) = (b"", 0..0);
        for (entry, again) in self.ledger.iter_mut().zip(all) {
            let behind = at + entry.len as usize;
            if entry.class != Class::Same {
                (beginning, sent_at) = (entry.class.beginning(), at..behind);
            }
            if going.contains(&entry.session) {
                let request = [beginning, &self.out.bytes()[sent_at.clone()]].concat();
                taken.push(Left {
                    entry: Entry {
                        before: Before::Lost,
                        len: request.len() as u32,
                        class: entry.class.alone(),
                        ..*entry
                    },
                    request,
                    duty: match again {
                        Again::With(duty) => Some(duty),
                        Again::Plainly | Again::No => None,
                    },
                });
                entry.session = Key::NOBODY;
            }
            at = behind;
        }
        if mixed {
            taken.sort_by(|one, other| one.entry.asked_before(&other.entry));
        }
        taken
    }

    /// The same for sessions with a few reads that are simply passed on. A session that asks for
    /// much would make the server do much twice.
    pub(crate) fn take_few_reads_of_others(&mut self, captor: Key) -> Vec<Left> {
        let again = |entry: &Entry, _: &[u8], _: Option<&Duty>| match entry.class.reads() {
            true if !entry.duty => Again::Plainly,
            _ => Again::No,
        };
        let bounds = AgainBounds {
            requests_of_session: ASKED_AGAIN_MAX,
            bytes: usize::MAX,
        };
        self.take_requests_of_others(captor, again, bounds)
    }

    /// Unsent requests leave the open batch of a link that is not connected.
    pub(crate) fn take_unsent(&mut self, leaves: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        if !self.ledger.iter().any(&leaves) {
            return Vec::new();
        }
        let taken = self.take_left(|entry, _| leaves(entry));
        taken.into_iter().map(|left| left.entry).collect()
    }

    /// The same, with all that they are.
    pub(crate) fn take_left(&mut self, leaves: impl Fn(&Entry, &[u8]) -> bool) -> Vec<Left> {
        debug_assert!(!self.is_up());
        let mut taken = Vec::new();
        let mut kept = Vec::new();
        let mut duties = std::mem::take(&mut self.duties).into_iter();
        let mut at = 0;
        for entry in std::mem::take(&mut self.ledger) {
            let duty = if entry.duty { duties.next() } else { None };
            let behind = at + entry.len as usize;
            let request = &self.out.bytes()[at..behind];
            if leaves(&entry, request) {
                let request = request.to_vec();
                taken.push(Left {
                    entry,
                    request,
                    duty,
                });
            } else {
                kept.extend_from_slice(request);
                self.ledger.push_back(entry);
                self.duties.extend(duty);
            }
            at = behind;
        }
        self.out.replace(kept);
        // Nothing is sent before the link is up.
        self.allowed = 0;
        self.count_open();
        taken
    }

    /// Everything in the ledger is unsent.
    fn count_open(&mut self) {
        self.open = self.ledger.len() as u32;
        let movable = |entry: &&Entry| entry.class.may_move();
        self.movable = self.ledger.iter().filter(movable).count() as u32;
    }
}

/// How a request that was sent on a link is asked a second time on another one.
#[derive(Debug)]
pub(crate) enum Again {
    /// Not at all.
    No,
    /// Its reply is passed on.
    Plainly,
    /// Its reply has this duty.
    With(Duty),
}

/// How many of the requests that were sent on a link are asked a second time.
pub(crate) struct AgainBounds {
    /// Requests of one session. A session with more of them waits.
    pub(crate) requests_of_session: usize,
    /// Bytes of all requests. A session whose requests have no room waits.
    pub(crate) bytes: usize,
}

/// A request that has left its link.
pub(crate) struct Left {
    pub(crate) entry: Entry,
    pub(crate) request: Vec<u8>,
    pub(crate) duty: Option<Duty>,
}

/// Reads of one session that are asked again elsewhere when its link is not read any more. Where
/// two hundred sessions are slow, one after the other, each of them has what the others wait for
/// asked again: with 128 a server had nothing else to do.
const ASKED_AGAIN_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slow_readers::EVERYBODYS;

    const RULE: FlushRule = FlushRule {
        hold: true,
        max_delay_us: 200,
        fuse: false,
        fused_keys_max: 2,
        collapse: false,
    };

    fn link() -> Link {
        let key = LinkKey {
            server: ServerId(0),
            version: Version::Resp2,
            db: 0,
            user: 0,
            lane: EVERYBODYS,
        };
        let mut link = Link::new(key, Role::Shared, RULE.max_delay_us, Time(0));
        link.state = State::Up;
        link
    }

    fn push(link: &mut Link, seq: u32, len: usize) {
        let entry = Entry {
            session: Key {
                index: 1,
                generation: 1,
            },
            seq,
            len: len as u32,
            class: Class::of(seq % 2 == 1),
            ..Entry::of(Key::NOBODY, 0, 0)
        };
        link.push(entry, &vec![b'x'; len]);
    }

    #[test]
    fn a_full_batch_takes_its_wait_with_it() {
        let mut link = link();
        for _ in 0..10 {
            link.returns.expect(Time(300), 0);
        }
        for seq in 0..5 {
            push(&mut link, seq, 10);
        }
        link.begin_batch(Time(300));
        assert_eq!(
            link.decide(&RULE, Time(300), None),
            Decision::HoldUntil(Time(500))
        );
        push(&mut link, 5, BATCH_BYTES_MAX);
        assert_eq!(
            link.decide(&RULE, Time(310), None),
            Decision::Flush(Why::Full)
        );
        link.flush(Time(310));
        push(&mut link, 6, 10);
        link.begin_batch(Time(320));
        // Fewer requests than the batch before it had when its wait began.
        assert_eq!(
            link.decide(&RULE, Time(520), None),
            Decision::Flush(Why::Late)
        );
    }

    #[test]
    fn a_lone_request_never_waits_and_nobody_waits_longer_than_max_delay() {
        let mut link = link();
        push(&mut link, 0, 10);
        assert_eq!(
            link.decide(&RULE, Time(0), None),
            Decision::Flush(Why::Idle)
        );
        link.flush(Time(0));
        link.written(10);
        link.begin_batch(Time(50));
        push(&mut link, 1, 10);
        assert_eq!(
            link.decide(&RULE, Time(60), None),
            Decision::HoldUntil(Time(250))
        );
        assert_eq!(
            link.decide(&RULE, Time(250), None),
            Decision::Flush(Why::Late)
        );
        link.ledger.pop_front();
        assert_eq!(
            link.decide(&RULE, Time(250), None),
            Decision::Flush(Why::Idle)
        );
        link.begin_batch(Time(300));
        link.returns.expect(Time(300), 0);
        assert_eq!(
            link.decide(&RULE, Time(310), None),
            Decision::HoldUntil(Time(500))
        );
        assert_eq!(
            link.decide(&RULE, Time(500), None),
            Decision::Flush(Why::Late)
        );
    }

    #[test]
    fn a_full_batch_leaves_though_the_link_is_busy() {
        let mut link = link();
        push(&mut link, 0, 10);
        link.flush(Time(0));
        push(&mut link, 1, BATCH_BYTES_MAX - 1);
        assert!(matches!(
            link.decide(&RULE, Time(0), None),
            Decision::HoldUntil(_)
        ));
        push(&mut link, 2, 1);
        assert_eq!(
            link.decide(&RULE, Time(0), None),
            Decision::Flush(Why::Full)
        );
    }

    #[test]
    fn what_was_written_whole_is_gone_and_what_was_not_stays_whole() {
        for written in 0..=40 {
            let mut link = link();
            for seq in 0..4 {
                push(&mut link, seq, 10);
            }
            link.flush(Time(0));
            link.written(written);
            let gone = link.disconnect(false);
            let seqs: Vec<u32> = gone.iter().map(|entry| entry.seq).collect();
            let whole = written / 10;
            assert_eq!(
                seqs,
                (0..whole as u32).collect::<Vec<_>>(),
                "{written} bytes written"
            );
            assert_eq!(link.ledger.len(), 4 - whole);
            assert_eq!(link.out.unwritten().len(), (4 - whole) * 10);
            assert!(
                link.ledger
                    .iter()
                    .all(|entry| entry.before == Before::Unsent)
            );
        }
    }

    #[test]
    fn a_read_goes_again_once_unless_a_change_was_sent_behind_it() {
        let mut link = link();
        // Odd ones read: 1 has the change 2 behind it, 3 and 5 have 4 behind them, which was not
        // sent.
        for seq in 0..6 {
            push(&mut link, seq, 10);
        }
        link.flush(Time(0));
        link.written(45);
        let seqs = |entries: &mut dyn Iterator<Item = &Entry>| {
            entries
                .map(|entry| (entry.seq, entry.before == Before::Lost))
                .collect::<Vec<_>>()
        };
        let gone = link.disconnect(true);
        assert_eq!(seqs(&mut gone.iter()), [(0, false), (1, false), (2, false)]);
        assert_eq!(
            seqs(&mut link.ledger.iter()),
            [(3, true), (4, false), (5, false)]
        );
        link.flush(Time(0));
        link.written(30);
        let gone = link.disconnect(true);
        assert_eq!(seqs(&mut gone.iter()), [(3, true), (4, false)]);
        assert_eq!(seqs(&mut link.ledger.iter()), [(5, true)]);
    }

    #[test]
    fn who_reads_a_little_leaves_a_captured_link_and_who_writes_or_reads_much_does_not() {
        let mut link = link();
        let session = |index| Key {
            index,
            generation: 1,
        };
        let [captor, reader, writer, greedy] = [1, 2, 3, 4].map(session);
        let mut put = |session, seq, reads| {
            let entry = Entry {
                session,
                seq,
                len: 4,
                class: Class::of(reads),
                ..Entry::of(Key::NOBODY, 0, 0)
            };
            link.push(entry, format!("{}{seq:03}", session.index).as_bytes());
        };
        put(captor, 0, true);
        put(reader, 0, true);
        put(writer, 0, true);
        put(writer, 1, false);
        put(reader, 1, true);
        (0..=ASKED_AGAIN_MAX as u32).for_each(|seq| put(greedy, seq, true));
        let taken = link.take_few_reads_of_others(captor);
        let taken: Vec<_> = taken
            .iter()
            .map(|left| (left.entry.session, &left.request[..]))
            .collect();
        assert_eq!(taken, [(reader, &b"2000"[..]), (reader, b"2001")]);
        let left: HashSet<Key> = link.ledger.iter().map(|entry| entry.session).collect();
        assert_eq!(left, HashSet::from([captor, writer, greedy, Key::NOBODY]));
    }
}
