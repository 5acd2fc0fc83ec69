//! A client's connection: what it may do, what it is owed, and what is still to be read of it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::{BitAnd, BitOr, BitOrAssign, Not};
use std::sync::Arc;

use respool_protocol::commands::CommandId;
use respool_protocol::encode::Version;
use respool_protocol::request::{Scanner, Tail};

use crate::buffer::{Outgoing, Spare};
use crate::burst::Burst;
use crate::coalesce::{Move, Run};
use crate::duty::Duty;
use crate::elsewhere::Delayed;
use crate::gather::Gather;
use crate::guess_delay::Attempts;
use crate::keeping::Keeping;
use crate::limits::{FUSED_WAITING_BYTES_MAX, Limits, UNAUTHENTICATED_HELD_BYTES_MAX};
use crate::memory::{Held, Weight};
use crate::parking::{AskedEarly, Parking};
use crate::pool::{Group, ServerId};
use crate::readers::Reading;
use crate::redirect::{Found, Redirect};
use crate::returns::Expected;
use crate::slots::Key;
use crate::slow_readers::Lane;
use crate::steps::{Step, Within};
use crate::subscriptions::Subscriber;
use crate::time::Time;
use crate::tracking::Tracker;
use crate::transaction::Transaction;
use crate::untaken::is_stuck;

/// Where a client connects from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// An address and port.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Peer::Tcp(address) => address.fmt(f),
            Peer::Unix => f.write_str("unix"),
        }
    }
}

/// Which of our own addresses a client reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Local {
    /// Nobody said.
    #[default]
    Unknown,
    /// An address and port.
    Tcp(SocketAddr),
    /// The path of a socket in the file system.
    Unix(Arc<str>),
}

impl std::fmt::Display for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Local::Unknown => Ok(()),
            Local::Tcp(address) => write!(f, "{address}"),
            Local::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

/// What the driver knows of a connection when it accepts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The client's end.
    pub peer: Peer,
    /// Our end.
    pub local: Local,
    /// The number of our socket, -1 if it has none.
    pub fd: i32,
    /// The number of the listener by which it came, the same in every worker.
    pub listener: u16,
}

impl From<Peer> for Origin {
    fn from(peer: Peer) -> Origin {
        Origin {
            peer,
            local: Local::Unknown,
            fd: -1,
            listener: 0,
        }
    }
}

/// A set of things that keep a session off the fast path. None of them: whole requests go straight
/// to its link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(u32);

impl Flags {
    /// Nothing but AUTH and HELLO is allowed yet.
    pub(crate) const UNAUTHENTICATED: Flags = Flags(1);
    /// It owes us reading: its output is above the soft bound.
    pub(crate) const HOLD_OUTPUT: Flags = Flags(1 << 1);
    /// Too many of its requests are unanswered.
    pub(crate) const HOLD_DEPTH: Flags = Flags(1 << 2);
    /// What comes next must not overtake what is in flight: it goes another way.
    pub(crate) const HOLD_DRAIN: Flags = Flags(1 << 3);
    /// The link it needs has no room, or is not up yet.
    pub(crate) const HOLD_LINK: Flags = Flags(1 << 4);
    /// The worker is out of memory, and this session owes most.
    pub(crate) const HOLD_MEMORY: Flags = Flags(1 << 5);
    /// It gets what it is owed, and is closed; what it sends is ignored.
    pub(crate) const CLOSING: Flags = Flags(1 << 6);
    /// The client sends no more; it gets what it is owed, and is closed.
    pub(crate) const ENDED: Flags = Flags(1 << 7);
    /// It is in the middle of a request that is cut through.
    pub(crate) const STREAMING: Flags = Flags(1 << 8);
    /// It is in the middle of a large request that was refused.
    pub(crate) const SWALLOWING: Flags = Flags(1 << 9);
    /// It has replies that came before their turn.
    pub(crate) const PARKED: Flags = Flags(1 << 10);
    /// It is on the engine's list of sessions with something to write.
    pub(crate) const LISTED: Flags = Flags(1 << 11);
    /// It is on the engine's list of sessions to continue.
    pub(crate) const RESUMING: Flags = Flags(1 << 12);
    /// The driver was told not to read it.
    pub(crate) const UNREAD: Flags = Flags(1 << 13);
    /// It queues a transaction: MULTI was there, EXEC was not.
    pub(crate) const IN_MULTI: Flags = Flags(1 << 14);
    /// It wants no replies (CLIENT REPLY OFF) ...
    pub(crate) const SILENT: Flags = Flags(1 << 15);
    /// ... or none to its next request (CLIENT REPLY SKIP).
    pub(crate) const SILENT_ONCE: Flags = Flags(1 << 16);
    /// What it sends goes to its own link as it is, and comes back as it is (MONITOR).
    pub(crate) const TUNNEL: Flags = Flags(1 << 17);
    /// It gives its own link back once everything it asked is answered.
    pub(crate) const UNPINNING: Flags = Flags(1 << 18);
    /// It is in the middle of a reply that comes in parts: no message may come in between.
    pub(crate) const MID_REPLY: Flags = Flags(1 << 19);
    /// CLIENT REPLY SKIP is being answered: what comes next gets no reply.
    pub(crate) const SILENT_NEXT: Flags = Flags(1 << 20);
    /// A subscriber in RESP2: it may ask for little else.
    pub(crate) const RESTRICTED: Flags = Flags(1 << 21);
    /// CLIENT PAUSE is on, and what comes next is what it pauses.
    pub(crate) const HOLD_PAUSE: Flags = Flags(1 << 22);
    /// Something is left of its last request that comes before the next one.
    pub(crate) const STEPS: Flags = Flags(1 << 23);
    /// It needs a link that serves one session, and there is no room for another.
    pub(crate) const HOLD_ROOM: Flags = Flags(1 << 24);
    /// Something of it may have to be asked again: it is not asked for more.
    pub(crate) const FUSED: Flags = Flags(1 << 25);
    /// Something of that is, and so is all behind it.
    pub(crate) const ASKS_AGAIN: Flags = Flags(1 << 26);
    /// It has queued or watched before.
    pub(crate) const HAS_QUEUED: Flags = Flags(1 << 27);
    /// Its pool has several servers: each request is looked at to know whose it is.
    pub(crate) const ROUTED: Flags = Flags(1 << 28);
    /// Something that it asked of several servers did not go the short way: when the rest of the
    /// answers comes, nobody knows.
    pub(crate) const UNFORESEEN: Flags = Flags(1 << 29);
    /// A server of its pool sees keys without their prefix: what it asks is not what is sent.
    pub(crate) const STRIPS: Flags = Flags(1 << 31);
    /// It has said how it wants to read, or its pool says that it reads its own writes: see
    /// `Rare::reading`.
    pub(crate) const READS_OTHERWISE: Flags = Flags(1 << 30);

    /// Any reason to leave its bytes alone for now.
    pub(crate) const HOLD: Flags = Flags::HOLD_OUTPUT
        .with(Flags::HOLD_DEPTH)
        .with(Flags::HOLD_DRAIN)
        .with(Flags::HOLD_LINK)
        .with(Flags::HOLD_MEMORY)
        .with(Flags::HOLD_PAUSE)
        .with(Flags::HOLD_ROOM);
    /// Those of them that end by a server's doing or by ours. The others end by its client's doing,
    /// or when memory is there again.
    pub(crate) const HOLD_BY_SERVER: Flags = Flags::HOLD_DEPTH
        .with(Flags::HOLD_DRAIN)
        .with(Flags::HOLD_LINK)
        .with(Flags::HOLD_PAUSE)
        .with(Flags::HOLD_ROOM);
    /// Those that end by its client's doing, by memory that is there again, or by CLIENT UNPAUSE.
    pub(crate) const HOLD_BY_CLIENT: Flags = Flags::HOLD_OUTPUT
        .with(Flags::HOLD_MEMORY)
        .with(Flags::HOLD_PAUSE);
    /// Why the bytes that it holds do not begin with a request to be placed.
    pub(crate) const MID_REQUEST: Flags = Flags::STREAMING
        .with(Flags::SWALLOWING)
        .with(Flags::STEPS)
        .with(Flags::TUNNEL);
    /// Why its bytes are not scanned for requests.
    pub(crate) const NOT_SCANNED: Flags = Flags::HOLD
        .with(Flags::CLOSING)
        .with(Flags::STEPS)
        .with(Flags::STREAMING)
        .with(Flags::SWALLOWING);
    /// Why its requests do not go the short way: the one question that the hot path asks a session.
    pub(crate) const OFF_PATH: Flags = Flags::UNAUTHENTICATED
        .with(Flags::IN_MULTI)
        .with(Flags::SILENT)
        .with(Flags::SILENT_ONCE)
        .with(Flags::TUNNEL)
        .with(Flags::FUSED)
        .with(Flags::RESTRICTED)
        .with(Flags::ROUTED)
        .with(Flags::STRIPS);
    /// Why answers do not wait for the rest of them.
    pub(crate) const WRITES_AT_ONCE: Flags = Flags::NOT_SCANNED
        .with(Flags::ENDED)
        .with(Flags::UNFORESEEN);
    /// What the last reply that it was owed sets going.
    pub(crate) const AWAITS_LAST: Flags = Flags::HOLD_DEPTH
        .with(Flags::HOLD_DRAIN)
        .with(Flags::UNPINNING);

    const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    #[inline]
    pub(crate) fn any(self, of: Flags) -> bool {
        self.0 & of.0 != 0
    }

    pub(crate) fn remove(&mut self, flags: Flags) {
        self.0 &= !flags.0;
    }
}

/// Why a session holds a link of its own: what the server's side of that connection knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pins(u16);

impl Pins {
    /// One request that may have to wait there, or must not wait behind others. Nothing of it
    /// stays.
    pub(crate) const ONCE: Pins = Pins(1);
    /// Keys that it watches.
    pub(crate) const WATCH: Pins = Pins(1 << 1);
    /// The server tells it what changed of what it has read.
    pub(crate) const TRACKING: Pins = Pins(1 << 2);
    /// Its reads do not count as use of a key.
    pub(crate) const NO_TOUCH: Pins = Pins(1 << 3);
    /// The server sends it everything that it executes.
    pub(crate) const MONITOR: Pins = Pins(1 << 4);
    /// Something that we do not know to leave no trace: the link is closed, not given to another.
    pub(crate) const UNKNOWN: Pins = Pins(1 << 5);

    /// Its writes are those of an import.
    pub(crate) const IMPORT: Pins = Pins(1 << 6);
    /// With [`Pins::TRACKING`]: it is told not only of what it has read (BCAST).
    pub(crate) const BROADCAST: Pins = Pins(1 << 7);

    /// It has such a link to each server that it asks, see [`crate::tracking`].
    pub(crate) const SPREAD: Pins = Pins(1 << 8);

    /// The options beside tracking that a session can have on, at one server or at several.
    pub(crate) const SWITCHED: Pins = Pins(Pins::NO_TOUCH.0 | Pins::IMPORT.0);

    /// The pins that end with CLIENT TRACKING OFF.
    pub(crate) const ALL_TRACKING: Pins =
        Pins(Pins::TRACKING.0 | Pins::BROADCAST.0 | Pins::SPREAD.0);

    /// What leaves a trace on the connection. The link is closed after it, and if it is lost, only
    /// a new connection of the client can bring back what it was.
    pub(crate) const STATE: Pins = Pins(
        Pins::TRACKING.0 | Pins::NO_TOUCH.0 | Pins::MONITOR.0 | Pins::IMPORT.0 | Pins::UNKNOWN.0,
    );

    pub(crate) const fn with(self, other: Pins) -> Pins {
        Pins(self.0 | other.0)
    }

    pub(crate) fn any(self, of: Pins) -> bool {
        self.0 & of.0 != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the session stays at one server.
    pub(crate) fn bind(self) -> bool {
        match self.any(Pins::SPREAD) {
            true => self.of_all_servers() != self,
            false => !self.is_empty(),
        }
    }

    /// Those that a session with [`Pins::SPREAD`] has at each of its servers.
    pub(crate) fn of_all_servers(self) -> Pins {
        Pins(self.0 & Pins::ALL_TRACKING.with(Pins::SWITCHED).0)
    }

    pub(crate) fn add(&mut self, pins: Pins) {
        *self = self.with(pins);
    }

    pub(crate) fn remove(&mut self, pins: Pins) {
        *self = self.without(pins);
    }

    pub(crate) fn without(self, pins: Pins) -> Pins {
        Pins(self.0 & !pins.0)
    }
}

impl BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}
impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Flags) {
        self.0 |= other.0;
    }
}
impl BitAnd for Flags {
    type Output = Flags;
    fn bitand(self, other: Flags) -> Flags {
        Flags(self.0 & other.0)
    }
}
impl Not for Flags {
    type Output = Flags;
    fn not(self) -> Flags {
        Flags(!self.0)
    }
}

pub(crate) struct Session {
    pub(crate) flags: Flags,
    pub(crate) version: Version,
    /// Why the link below is its own; empty: it is shared.
    pub(crate) pins: Pins,
    /// The link its requests ride on, by its index: `riders` there counts us, so it stays.
    pub(crate) link: Key,
    /// The place of the next request in the order of replies, and of the first that is unanswered.
    pub(crate) next_seq: u32,
    pub(crate) head_seq: u32,
    pub(crate) burst: Burst,
    pub(crate) out: Outgoing,
    /// The beginning of a request that has not come whole, or what must wait.
    pub(crate) held: Vec<u8>,
    /// Where the scan of `held` stands, while it is worth keeping.
    pub(crate) partial: Option<Box<Scanner>>,
    /// When everything it had asked was answered; how long it took to ask again last time,
    /// microseconds; and when its link expects it back.
    pub(crate) answered_at: Time,
    pub(crate) gap_us: u32,
    pub(crate) expected: Expected,
    /// Whether answers wait for the rest, where a pool has several servers.
    pub(crate) keeping: Keeping,

    /// The last batch in which something of it was; where what it asked next is moved to there, and
    /// what it asked last.
    pub(crate) batch: u32,
    pub(crate) behind: Move,
    pub(crate) block: u32,
    /// Its SETs in that batch that leave in an MSET.
    pub(crate) sets: Run,
    /// Since it was owed nothing it has read otherwise than by plain GETs: by their bytes nobody
    /// sees which of its reads are of one key. Not of that batch alone: what is asked again is of
    /// any that is not answered.
    pub(crate) reads_in_order: bool,

    pub(crate) db: u32,
    pub(crate) pool: u16,
    /// The one of the pool's servers that its link goes to.
    pub(crate) server: ServerId,
    pub(crate) listener: u16,
    /// Index of its user in the settings.
    pub(crate) user: u16,
    /// Which of the links of its kind it rides on: see [`crate::slow_readers`].
    pub(crate) lane: Lane,
    pub(crate) id: u64,
    pub(crate) peer: Peer,
    pub(crate) local: Local,
    pub(crate) fd: i32,
    /// What it asked last; for CLIENT LIST, as are the bytes that it sent and took.
    pub(crate) asked: Option<CommandId>,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) accepted_at: Time,
    /// When it last sent or took anything.
    pub(crate) active_at: Time,
    /// When it last took output, or last had none.
    pub(crate) took_at: Time,
    /// What few sessions have.
    pub(crate) rare: Option<Box<Rare>>,
}

/// What few sessions have, kept apart so that the many stay small.
#[derive(Default)]
pub(crate) struct Rare {
    pub(crate) name: Vec<u8>,
    pub(crate) lib_name: Vec<u8>,
    pub(crate) lib_ver: Vec<u8>,
    /// CLIENT NO-EVICT: it is not closed to make room for others.
    pub(crate) no_evict: bool,
    /// It has asked for the debugger of scripts, and was refused.
    pub(crate) debugs_scripts: bool,
    /// Links on which writes of it were given up at their deadlines.
    pub(crate) gave_up: Vec<Key>,
    /// Replies before their turn.
    pub(crate) parking: Parking,
    /// The rest of a large request, and the link it is cut through to.
    pub(crate) large: Option<Large>,
    /// What it has queued since MULTI.
    pub(crate) transaction: Option<Transaction>,
    /// What it subscribes to.
    pub(crate) subscriber: Option<Box<Subscriber>>,
    /// The link on which it watched keys was lost: whether they changed will never be known.
    pub(crate) watch_lost: bool,
    /// Out-of-band bytes that wait for the end of a large reply.
    pub(crate) pushes: Vec<u8>,
    /// It tracks, and this one is told; and what was found out of one that is to be.
    pub(crate) redirect: Option<Redirect>,
    pub(crate) redirect_found: Option<Found>,
    /// Its tracking at several servers.
    pub(crate) tracker: Option<Box<Tracker>>,
    /// When it asked the server who it is, if it waits for a link to ask on.
    pub(crate) login_asked_at: Option<Time>,
    pub(crate) attempts: Attempts,
    /// What is left of its last request, and whether that gets no reply.
    pub(crate) steps: VecDeque<Step>,
    pub(crate) steps_silent: bool,
    /// When that request was read, [`Time::stamp_ms`].
    pub(crate) steps_asked_ms: u32,
    /// It waits for a link to wait on, until then.
    pub(crate) gives_up_at: Option<(u32, Time)>,
    /// Requests of which several servers have a part.
    pub(crate) gathers: VecDeque<Gather>,
    /// What the keys belong to that it watches, where it does.
    pub(crate) watched: Vec<Group>,
    /// Requests that a node did not execute, and that are asked again.
    pub(crate) delayed: Delayed,
    /// How it wants to read, where replicas are read.
    pub(crate) reading: Reading,
    /// What their parts have brought.
    pub(crate) gathered_bytes: usize,
    /// Within an EXEC: what the session is there.
    pub(crate) within: Option<Within>,
}

/// A request too large to be held, on its way.
pub(crate) struct Large {
    pub(crate) tail: Tail,
    /// `None`: it was refused, and is read to its end for nothing.
    pub(crate) link: Option<Key>,
    /// What becomes of its reply, if that is not simply passed on.
    pub(crate) duty: Option<Duty>,
    /// The session wants no reply to it.
    pub(crate) silent: bool,
}

impl Session {
    /// When the next request gives up, if it waits.
    pub(crate) fn gives_up_at(&self) -> Option<Time> {
        let (seq, at) = self.rare.as_ref()?.gives_up_at?;
        // Not that of a request before this one.
        (seq == self.next_seq).then_some(at)
    }

    /// Requests that are not answered.
    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        self.next_seq.wrapping_sub(self.head_seq)
    }

    /// Requests, and parts of requests, that are not answered and not put off.
    pub(crate) fn in_flight(&self) -> usize {
        let depth = self.depth() as usize;
        self.rare.as_deref().map_or(depth, |rare| {
            let parts: usize = rare.gathers.iter().map(Gather::waiting).sum();
            (depth + parts)
                .saturating_sub(rare.parking.places() + rare.gathers.len() + rare.delayed.len())
        })
    }

    /// Whether everything it asked was answered. Something may still be in flight on its link: what
    /// was given up keeps its place there, see `Engine::wait_for_own_link`.
    #[inline]
    pub(crate) fn is_caught_up(&self) -> bool {
        self.next_seq == self.head_seq
    }

    pub(crate) fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// How many channels, patterns and shard channels it subscribes to.
    pub(crate) fn subscriptions(&self) -> [usize; 3] {
        let subscriber = self.rare.as_ref().and_then(|rare| rare.subscriber.as_ref());
        subscriber.map_or([0; 3], |subscriber| subscriber.counts())
    }

    /// Whether it subscribes to anything.
    pub(crate) fn listens(&self) -> bool {
        self.subscriptions() != [0; 3]
    }

    /// The next place in the order of replies.
    #[inline]
    pub(crate) fn take_seq(&mut self) -> u32 {
        let seq = self.next_seq;
        self.next_seq = seq.wrapping_add(1);
        seq
    }

    /// Bytes of replies, and of parts of them, that came before their turn.
    pub(crate) fn parked_bytes(&self) -> usize {
        let rare = self.rare.as_deref();
        rare.map_or(0, |rare| rare.parking.held_bytes() + rare.gathered_bytes)
    }

    /// The place behind the last reply, or part of one, that has come and waits for its turn.
    pub(crate) fn end_of_early_replies(&self) -> Option<u32> {
        let rare = self.rare.as_deref()?;
        let parts = rare.gathers.iter().filter(|gather| gather.has_answers());
        let ends = parts.map(|gather| gather.seq().wrapping_add(1));
        let ahead = |place: &u32| place.wrapping_sub(self.head_seq);
        ends.chain(rare.parking.end()).max_by_key(ahead)
    }

    /// Whether the request whose reply is next is to be asked again.
    pub(crate) fn head_is_put_off(&self) -> bool {
        let rare = self.rare.as_deref();
        rare.is_some_and(|rare| rare.delayed.holds(self.head_seq))
    }

    /// What is parked and has its turn goes to its output. Returns how many bytes are not parked
    /// any more that are not there.
    pub(crate) fn unpark(&mut self, spare: &mut Spare) -> usize {
        let Some(rare) = &mut self.rare else {
            return 0;
        };
        let (head, requests_len) = rare.parking.unpark(self.head_seq, self.out.tail(spare));
        self.head_seq = head;
        rare.parking.tidy(spare);
        if rare.parking.is_empty() {
            self.flags.remove(Flags::PARKED);
        }
        requests_len
    }

    /// The replies behind `seq` that came on this link and may have to be asked again leave.
    pub(crate) fn take_parked_behind(
        &mut self,
        seq: u32,
        link: Key,
        is_early: impl Fn(&[u8]) -> bool,
    ) -> Vec<AskedEarly> {
        let Some(rare) = self.rare.as_mut().filter(|_| self.flags.any(Flags::PARKED)) else {
            return Vec::new();
        };
        let taken = rare.parking.take_behind(seq, link, is_early);
        if rare.parking.is_empty() {
            self.flags.remove(Flags::PARKED);
        }
        taken
    }

    /// Whether the session is done: nothing more comes, nothing is owed, nothing is left to write.
    pub(crate) fn is_finished(&self) -> bool {
        let ending = self.flags.any(Flags::CLOSING)
            || self.flags.any(Flags::ENDED) && !self.flags.any(Flags::HOLD | Flags::RESUMING);
        ending && self.is_caught_up() && self.out.is_empty()
    }

    /// Whether its socket is to be read. Who waits for something that may take long is read on,
    /// within a bound: when it leaves, what it asked must not be executed any more, and its end
    /// stands behind what it sent.
    pub(crate) fn wants_reading(&self, limits: &Limits, now: Time) -> bool {
        let waiting_bytes_max = limits.request_held_bytes_max as usize;
        if self.flags.any(Flags::CLOSING | Flags::ENDED) {
            return false;
        }
        let mut patient = Flags::HOLD_PAUSE | Flags::HOLD_DRAIN | Flags::HOLD_ROOM;
        if !self.pins.is_empty() {
            patient |= Flags::HOLD_DEPTH | Flags::HOLD_LINK;
        }
        let is_stuck = is_stuck(self, now) && !self.flags.any(Flags::UNAUTHENTICATED);
        if is_stuck {
            patient |= Flags::HOLD_OUTPUT | Flags::HOLD_DEPTH | Flags::HOLD_LINK;
        }
        let most = match () {
            () if is_stuck => limits.session_input_bytes_max as usize,
            () if self.flags.any(Flags::UNAUTHENTICATED) => {
                UNAUTHENTICATED_HELD_BYTES_MAX.min(waiting_bytes_max)
            }
            () if self.flags.any(Flags::FUSED) => FUSED_WAITING_BYTES_MAX.min(waiting_bytes_max),
            () => waiting_bytes_max,
        };
        let holds = self.flags & Flags::HOLD;
        !holds.any(!patient) && (holds == Flags::default() || self.held.len() < most)
    }

    /// What it holds in memory, by account.
    pub(crate) fn weigh(&self) -> Weight {
        let scanned = self.partial.as_ref().map_or(0, |scan| scan.memory_bytes());
        let unasked = self.held.capacity() + scanned;
        let mut held = Held {
            output: self.out.memory_bytes(),
            ..Held::default()
        };
        match self.flags.any(Flags::HOLD | Flags::STEPS) {
            true => held.queued = unasked,
            false => held.incomplete = unasked,
        }
        let (mut named, mut spared) = (0, false);
        if let Some(rare) = self.rare.as_deref() {
            let transaction = rare.transaction.as_ref();
            held.queued += transaction.map_or(0, Transaction::memory_bytes);
            held.queued += rare.steps.iter().map(Step::memory_bytes).sum::<usize>();
            held.queued += rare.delayed.memory_bytes();
            held.output += rare.pushes.capacity();
            let tracker = rare.tracker.as_deref();
            held.output += tracker.map_or(0, Tracker::memory_bytes);
            held.answers += rare.parking.memory_bytes() + rare.gathered_bytes;
            held.answers += rare.gathers.iter().map(Gather::memory_bytes).sum::<usize>();
            if let Some(subscriber) = &rare.subscriber {
                held.subscriptions = subscriber.held_bytes() + subscriber.slack_bytes();
                named = subscriber.named_bytes();
            }
            let names = [&rare.name, &rare.lib_name, &rare.lib_ver];
            held.state =
                size_of::<Rare>() + names.map(|name| name.capacity()).iter().sum::<usize>();
            held.state += rare.watched.capacity() * size_of::<Group>();
            spared = rare.no_evict;
        }
        Weight {
            held,
            counted: self.held_bytes(),
            named,
            stranger: self.flags.any(Flags::UNAUTHENTICATED),
            spared,
        }
    }

    /// Bytes it makes us hold.
    pub(crate) fn held_bytes(&self) -> usize {
        let scanned = self
            .partial
            .as_ref()
            .map_or(0, |scanner| scanner.held_bytes());
        let rare = self.rare.as_deref().map_or(0, |rare| {
            let queued = rare.transaction.as_ref().map_or(0, Transaction::held_bytes);
            let subscribed = rare.subscriber.as_ref().map_or(0, |own| own.held_bytes());
            let left: usize = rare.steps.iter().map(Step::held_bytes).sum();
            let untold = rare.tracker.as_ref().map_or(0, |own| own.held_bytes());
            rare.pushes.len() + queued + subscribed + left + untold + rare.delayed.held_bytes()
        });
        self.out.len() + self.held.len() + scanned + self.parked_bytes() + rare
    }
}

// Four thousand idle sessions are to cost less than a kilobyte each, all told.
const _: () = assert!(size_of::<Session>() <= 320);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_is_one_bit_and_every_hold_keeps_a_session_from_being_scanned() {
        use Flags as F;
        let mut seen = F::default();
        let mut note = |flag: Flags| {
            assert_eq!(flag.0.count_ones(), 1);
            assert!(!seen.any(flag), "{flag:?} is another one's, too");
            seen |= flag;
        };
        for hold in [
            F::HOLD_OUTPUT,
            F::HOLD_DEPTH,
            F::HOLD_DRAIN,
            F::HOLD_LINK,
            F::HOLD_MEMORY,
            F::HOLD_PAUSE,
            F::HOLD_ROOM,
        ] {
            note(hold);
            assert!(hold.any(F::HOLD) && hold.any(F::NOT_SCANNED));
        }
        for other in [F::CLOSING, F::STEPS, F::STREAMING, F::SWALLOWING] {
            note(other);
            assert!(!other.any(F::HOLD) && other.any(F::NOT_SCANNED));
        }
        for other in [
            F::UNAUTHENTICATED,
            F::ENDED,
            F::PARKED,
            F::LISTED,
            F::RESUMING,
            F::UNREAD,
            F::IN_MULTI,
            F::SILENT,
            F::SILENT_ONCE,
            F::TUNNEL,
            F::UNPINNING,
            F::MID_REPLY,
            F::RESTRICTED,
            F::SILENT_NEXT,
            F::FUSED,
            F::ASKS_AGAIN,
            F::ROUTED,
            F::HAS_QUEUED,
            F::UNFORESEEN,
            F::READS_OTHERWISE,
            F::STRIPS,
        ] {
            note(other);
            assert!(!other.any(F::HOLD) && !other.any(F::NOT_SCANNED));
        }
    }
}
