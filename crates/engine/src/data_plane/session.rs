//! A session: our state for one client's connection.

use std::net::SocketAddr;
use std::sync::Arc;

use respool_protocol::commands::CommandId;
use respool_protocol::encode::Version;
use respool_protocol::request::RequestScanner;

use crate::base::arrivals::ArrivalSlot;
use crate::base::buffer::{Outgoing, SpareBuffers};
use crate::base::handle::LinkId;
use crate::base::limits::{FUSED_WAITING_BYTES_MAX, Limits, UNAUTHENTICATED_HELD_BYTES_MAX};
use crate::base::time::Time;
use crate::data_plane::actions::CloseReason;
use crate::data_plane::burst::Burst;
use crate::data_plane::charges::{ChargeKind, Charges};
use crate::data_plane::client_settings::ClientSettings;
use crate::data_plane::coalesce::{BatchMove, SetRun};
use crate::data_plane::composite::CompositeReply;
use crate::data_plane::cork::Cork;
use crate::data_plane::deadlines::SessionDeadlines;
use crate::data_plane::memory::{Held, Weight};
use crate::data_plane::open_transaction::TransactionFacts;
use crate::data_plane::reorder::{ReorderBuffer, RepeatedRequest};
use crate::data_plane::replica_reads::OwnWriteReads;
use crate::data_plane::resume::ListMark;
pub(crate) use crate::data_plane::session_state::{Flags, Holds, SessionState};
use crate::data_plane::slow_readers::LinkLane;
use crate::data_plane::tracking::{Tracking, TrackingTarget};
use crate::data_plane::unfinished::LargeRequest;
use crate::data_plane::untaken::is_stuck;
use crate::routing::pool::ServerId;

/// The address of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// An address and port.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix,
    /// A caller in the same process.
    Caller,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Peer::Tcp(address) => address.fmt(f),
            Peer::Unix => f.write_str("unix"),
            Peer::Caller => f.write_str("caller"),
        }
    }
}

/// The address of ours that a client reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LocalAddress {
    /// The driver does not know it.
    #[default]
    Unknown,
    /// An address and port.
    Tcp(SocketAddr),
    /// An address and port of a listener with TLS.
    Tls(SocketAddr),
    /// The path of a socket in the file system.
    Unix(Arc<str>),
}

impl std::fmt::Display for LocalAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LocalAddress::Unknown => Ok(()),
            LocalAddress::Tcp(address) | LocalAddress::Tls(address) => write!(f, "{address}"),
            LocalAddress::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

/// The driver's knowledge of a connection when it accepts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The client's end.
    pub peer: Peer,
    /// Our end.
    pub local: LocalAddress,
    /// The number of our socket, -1 if it has none.
    pub fd: i32,
    /// The number of the listener that accepted it, the same in every worker.
    pub listener: u16,
}

impl From<Peer> for Origin {
    fn from(peer: Peer) -> Origin {
        Origin {
            peer,
            local: LocalAddress::Unknown,
            fd: -1,
            listener: 0,
        }
    }
}

/// The reasons for a session's pinned link: the state that the server keeps for that connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pins(u16);

impl Pins {
    /// One request that may wait at the server, or must not wait behind others. It leaves no state.
    pub(crate) const ONCE: Pins = Pins(1);
    /// The session watches keys (WATCH).
    pub(crate) const WATCH: Pins = Pins(1 << 1);
    /// The server reports changes of keys that the session has read (CLIENT TRACKING).
    pub(crate) const TRACKING: Pins = Pins(1 << 2);
    /// Reads of the session do not count as use of a key (CLIENT NO-TOUCH).
    pub(crate) const NO_TOUCH: Pins = Pins(1 << 3);
    /// The server sends all that it executes (MONITOR).
    pub(crate) const MONITOR: Pins = Pins(1 << 4);
    /// A command of unknown effect was sent. The link is closed, and no other session gets it.
    pub(crate) const UNKNOWN: Pins = Pins(1 << 5);

    /// Writes of the session are those of an import (CLIENT IMPORT-SOURCE).
    pub(crate) const IMPORT: Pins = Pins(1 << 6);
    /// With [`Pins::TRACKING`]: the server also reports keys that the session has not read (BCAST).
    pub(crate) const BROADCAST: Pins = Pins(1 << 7);

    /// The session has such a link to each server that it uses, see [`crate::pinned::tracking`].
    pub(crate) const SPREAD: Pins = Pins(1 << 8);

    /// The options beside tracking that a session can switch on at one server or at several.
    pub(crate) const SWITCHED: Pins = Pins(Pins::NO_TOUCH.0 | Pins::IMPORT.0);

    /// The pins that end with CLIENT TRACKING OFF.
    pub(crate) const ALL_TRACKING: Pins =
        Pins(Pins::TRACKING.0 | Pins::BROADCAST.0 | Pins::SPREAD.0);

    /// The pins that leave state on the connection. The link is closed after them. If it is lost,
    /// only a new connection of the client can restore that state.
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

    /// The pins that a session with [`Pins::SPREAD`] has at each of its servers.
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

pub(crate) struct Session {
    /// Marks, reasons to wait, and how far the session is from its end.
    pub(crate) state: SessionState,
    pub(crate) version: Version,
    /// The reasons for the session's pinned link. Empty: it uses a shared link.
    pub(crate) pins: Pins,
    /// The link to which the session is attached. `Link::attached` counts the session, so the link
    /// is not removed.
    pub(crate) link: LinkId,
    /// The place of the next request in the order of replies.
    pub(crate) next_seq: u32,
    /// The place of the first unanswered request.
    pub(crate) head_seq: u32,
    /// The requests since all earlier ones were answered.
    pub(crate) burst: Burst,
    pub(crate) out: Outgoing,
    /// The beginning of a request that has not come whole, or bytes that wait.
    pub(crate) held: Vec<u8>,
    /// The state of the scan of `held`, while it is worth keeping.
    pub(crate) partial: Option<Box<RequestScanner>>,
    /// When the last outstanding reply was delivered.
    pub(crate) answered_at: Time,
    /// How long the session last took from then to its next request, microseconds.
    pub(crate) gap_us: u32,
    /// When its link expects its next request.
    pub(crate) expected: ArrivalSlot,
    /// In the list of sessions with output to write.
    pub(crate) listed: ListMark,
    /// In the list of sessions to continue.
    pub(crate) resuming: ListMark,
    /// Whether first replies wait for the others, in a pool of several servers.
    pub(crate) cork: Cork,

    /// The last batch with a request of this session.
    pub(crate) batch: u32,
    /// Used while that batch is walked from its end on: the section of the session's request that
    /// was walked last. Earlier requests may only be moved to this section or a greater one.
    pub(crate) behind: BatchMove,
    /// The block of the last request that was dispatched in that batch.
    pub(crate) block: u32,
    /// The session's SETs in that batch that leave in one MSET.
    pub(crate) sets: SetRun,
    /// Since the session was last owed nothing, it has sent a read other than a plain GET. Bytes of
    /// such reads do not show which of them have the same key. The mark covers all batches, because
    /// requests of any unanswered batch may be sent again.
    pub(crate) reads_in_order: bool,

    pub(crate) db: u32,
    pub(crate) pool: u16,
    /// The server of the pool to which the session's link goes.
    pub(crate) server: ServerId,
    pub(crate) listener: u16,
    /// The index of the session's user in the settings.
    pub(crate) user: u16,
    /// Which of the links of its kind the session uses: see [`crate::data_plane::slow_readers`].
    pub(crate) lane: LinkLane,
    pub(crate) id: u64,
    pub(crate) peer: Peer,
    pub(crate) local: LocalAddress,
    pub(crate) fd: i32,
    /// The driver was told not to read the session's socket.
    pub(crate) is_unread: bool,
    /// The session has queued a transaction or watched keys before, for CLIENT LIST.
    pub(crate) has_queued: bool,
    /// The last command. CLIENT LIST shows it, and `DataPlane::is_to_wait` decides by it.
    pub(crate) last_command: Option<CommandId>,
    /// Bytes that the client sent, for CLIENT LIST.
    pub(crate) bytes_in: u64,
    /// Bytes that the client took, for CLIENT LIST.
    pub(crate) bytes_out: u64,
    pub(crate) accepted_at: Time,
    /// When the client last sent or took bytes.
    pub(crate) active_at: Time,
    /// When the client last took output, or when there last was none.
    pub(crate) took_at: Time,
    /// State that few sessions have.
    pub(crate) rare: Option<Box<Rare>>,
}

/// State that few sessions have, kept apart so that other sessions stay small. Each field is
/// declared by the file of its subject.
#[derive(Default)]
pub(crate) struct Rare {
    /// The client's name, library and options.
    pub(crate) client: ClientSettings,
    /// The deadline of a request that waits, and writes that were given up at theirs.
    pub(crate) deadlines: SessionDeadlines,
    /// Replies that came before their place.
    pub(crate) reorder: ReorderBuffer,
    /// The rest of a large request, and the link that gets it.
    pub(crate) large: Option<LargeRequest>,
    /// Out-of-band bytes that wait for the end of a large reply.
    pub(crate) pushes: Vec<u8>,
    /// The transaction since MULTI, and the watched keys.
    pub(crate) transaction: TransactionFacts,
    /// The session's tracking at several servers.
    pub(crate) tracking: Tracking,
    /// The session that gets this one's tracking messages.
    pub(crate) target: TrackingTarget,
    /// The rest of a reply that respool puts together.
    pub(crate) composite: CompositeReply,
    /// Requests that a server refused unexecuted, and that are sent again.
    pub(crate) deferred: DeferredRequests,
    /// The reads of a session that reads its own writes.
    pub(crate) reading: OwnWriteReads,
    /// Requests at the front of the held bytes that were counted when they were first read.
    pub(crate) read_again: u64,
    /// The channels and patterns that the session subscribes to.
    pub(crate) subscribed: Subscribed,
    /// The memory that components hold for the session.
    pub(crate) charges: Charges,
    /// The loss for which the session closes in place of an error reply.
    pub(crate) close_reason: Option<CloseReason>,
}

impl Rare {
    /// Bytes of the parts that have come for scattered requests.
    fn parts_bytes(&self) -> usize {
        self.charges.of(ChargeKind::Parts).counted
    }
}

/// The facts about a session's subscriptions.
#[derive(Debug, Default)]
pub(crate) struct Subscribed {
    /// The numbers of channels, patterns and sharded channels.
    pub(crate) counts: [usize; 3],
    /// Bytes of their names. Other sessions may subscribe to the same ones.
    pub(crate) named: usize,
}

/// The facts about a session's deferred requests. The requests are elsewhere.
#[derive(Debug, Default)]
pub(crate) struct DeferredRequests {
    /// The place of the first one.
    pub(crate) first: Option<u32>,
    pub(crate) count: usize,
    /// One of them may block at its server.
    pub(crate) wait: bool,
    /// The session's later requests have passed their bound: nothing is retried.
    pub(crate) is_over_bound: bool,
}

impl Session {
    /// The deadline of the next request, if it waits for a link.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let (seq, at) = self.rare.as_ref()?.deadlines.next?;
        // The deadline of an earlier request does not count.
        (seq == self.next_seq).then_some(at)
    }

    /// The number of unanswered requests.
    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        self.next_seq.wrapping_sub(self.head_seq)
    }

    /// Requests, and shares of requests, that are neither answered nor deferred. `scattered`: the
    /// requests whose shares go to several servers, and their shares without an answer.
    pub(crate) fn in_flight(&self, (scattered, parts): (usize, usize)) -> usize {
        let depth = self.depth() as usize;
        self.rare.as_deref().map_or(depth, |rare| {
            (depth + parts).saturating_sub(rare.reorder.places() + scattered + rare.deferred.count)
        })
    }

    /// Whether all requests are answered. A request that was given up may still be in flight: it
    /// keeps its place on the link, see `DataPlane::wait_for_own_link`.
    #[inline]
    pub(crate) fn is_caught_up(&self) -> bool {
        self.next_seq == self.head_seq
    }

    pub(crate) fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// How many channels, patterns and sharded channels the session subscribes to.
    pub(crate) fn subscriptions(&self) -> [usize; 3] {
        let rare = self.rare.as_deref();
        rare.map_or([0; 3], |rare| rare.subscribed.counts)
    }

    /// Whether the session subscribes to anything.
    pub(crate) fn listens(&self) -> bool {
        self.subscriptions() != [0; 3]
    }

    /// Takes the next place in the order of replies.
    #[inline]
    pub(crate) fn take_seq(&mut self) -> u32 {
        let seq = self.next_seq;
        self.next_seq = seq.wrapping_add(1);
        seq
    }

    /// Bytes of replies, and of parts of replies, that came before their place.
    pub(crate) fn reordered_bytes(&self) -> usize {
        let rare = self.rare.as_deref();
        rare.map_or(0, |rare| rare.reorder.held_bytes() + rare.parts_bytes())
    }

    /// The place behind the last reply, or part of one, that came before its place.
    /// `end_of_shares`: the place behind the last request of which a part has come.
    pub(crate) fn end_of_early_replies(&self, end_of_shares: Option<u32>) -> Option<u32> {
        let rare = self.rare.as_deref()?;
        let ahead = |place: &u32| place.wrapping_sub(self.head_seq);
        let ends = end_of_shares.into_iter().chain(rare.reorder.end());
        ends.max_by_key(ahead)
    }

    /// Whether the request of the next reply is deferred.
    pub(crate) fn head_is_deferred(&self) -> bool {
        let rare = self.rare.as_deref();
        rare.is_some_and(|rare| rare.deferred.first == Some(self.head_seq))
    }

    /// Whether a deferred request may block at its server.
    pub(crate) fn defers_wait(&self) -> bool {
        let rare = self.rare.as_deref();
        rare.is_some_and(|rare| rare.deferred.wait)
    }

    /// Moves replies from the reorder buffer to the output, as far as their places have come.
    /// Returns the bytes of requests that leave the buffer with them.
    pub(crate) fn take_next(&mut self, spare: &mut SpareBuffers) -> usize {
        let Some(rare) = &mut self.rare else {
            return 0;
        };
        let (head, requests_len) = rare.reorder.take_next(self.head_seq, self.out.tail(spare));
        self.head_seq = head;
        rare.reorder.tidy(spare);
        if rare.reorder.is_empty() {
            self.state.remove(Flags::REORDERED);
        }
        requests_len
    }

    /// Takes out the requests behind `seq` with replies that came early on this link, see
    /// [`ReorderBuffer::take_behind`].
    pub(crate) fn take_reordered_behind(
        &mut self,
        seq: u32,
        link: LinkId,
        is_early: impl Fn(&[u8]) -> bool,
    ) -> Vec<RepeatedRequest> {
        let Some(rare) = self
            .rare
            .as_mut()
            .filter(|_| self.state.any(Flags::REORDERED))
        else {
            return Vec::new();
        };
        let taken = rare.reorder.take_behind(seq, link, is_early);
        if rare.reorder.is_empty() {
            self.state.remove(Flags::REORDERED);
        }
        taken
    }

    /// Whether the session is done: no request comes, no reply is owed, and no output is left.
    pub(crate) fn is_finished(&self) -> bool {
        let ending = self.state.is_closing()
            || self.state.input_has_ended() && !self.state.is_held() && !self.resuming.is_set();
        ending && self.is_caught_up() && self.out.is_empty()
    }

    /// Whether the socket is to be read. A session that may wait for long is still read, within a
    /// bound. So its end is seen behind its last request, and requests of a client that has left
    /// are not executed.
    pub(crate) fn wants_reading(&self, limits: &Limits, now: Time) -> bool {
        let waiting_bytes_max = limits.request_held_bytes_max as usize;
        if self.state.is_ending() {
            return false;
        }
        let mut patient = Holds::PAUSE | Holds::CATCH_UP | Holds::ROOM;
        if !self.pins.is_empty() {
            patient = patient | Holds::DEPTH | Holds::LINK;
        }
        let is_stuck = is_stuck(self, now) && !self.state.any(Flags::UNAUTHENTICATED);
        if is_stuck {
            patient = patient | Holds::OUTPUT | Holds::DEPTH | Holds::LINK;
        }
        let most = match () {
            () if is_stuck => limits.session_input_bytes_max as usize,
            () if self.state.any(Flags::UNAUTHENTICATED) => {
                UNAUTHENTICATED_HELD_BYTES_MAX.min(waiting_bytes_max)
            }
            () if self.state.any(Flags::FUSED) => FUSED_WAITING_BYTES_MAX.min(waiting_bytes_max),
            () => waiting_bytes_max,
        };
        let holds = self.state.holds();
        holds.without(patient).is_empty() && (holds.is_empty() || self.held.len() < most)
    }

    /// The memory that the session holds, by account.
    pub(crate) fn weigh(&self) -> Weight {
        let scanned = self.partial.as_ref().map_or(0, |scan| scan.memory_bytes());
        let unasked = self.held.capacity() + scanned;
        let mut held = Held {
            output: self.out.memory_bytes(),
            ..Held::default()
        };
        match self.state.is_held() || self.state.any(Flags::STEPS) {
            true => held.queued = unasked,
            false => held.incomplete = unasked,
        }
        let (mut named, mut spared) = (0, false);
        if let Some(rare) = self.rare.as_deref() {
            rare.charges.add_to(&mut held);
            held.queued += rare.composite.memory_bytes();
            held.output += rare.pushes.capacity();
            held.output += rare.tracking.memory_bytes();
            held.answers += rare.reorder.memory_bytes();
            named = rare.subscribed.named;
            held.state = size_of::<Rare>() + rare.client.memory_bytes();
            held.state += rare.transaction.memory_bytes();
            spared = rare.client.no_evict;
        }
        Weight {
            held,
            counted: self.held_bytes(),
            named,
            unauthenticated: self.state.any(Flags::UNAUTHENTICATED),
            spared,
        }
    }

    /// The bytes that the session makes the worker hold.
    pub(crate) fn held_bytes(&self) -> usize {
        let scanned = self
            .partial
            .as_ref()
            .map_or(0, |scanner| scanner.held_bytes());
        let rare = self.rare.as_deref().map_or(0, |rare| {
            // Parts are among the parked bytes.
            let charged = rare.charges.counted() - rare.parts_bytes();
            rare.pushes.len() + charged + rare.composite.held_bytes()
        });
        self.out.len() + self.held.len() + scanned + self.reordered_bytes() + rare
    }
}

// Four thousand idle sessions must cost less than a kilobyte each, everything included.
const _: () = assert!(size_of::<Session>() <= 320);
