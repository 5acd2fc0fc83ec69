//! One connection of ours to a server: unwritten bytes, unanswered requests, and the time when the
//! open batch leaves.
//!
//! ```text
//!            written, unanswered            flushed      open batch
//! ledger   [ e0 e1 e2 e3 e4 e5          |  e6 e7      |  e8 e9   ]   requests, first in first out
//! out      [ e0 e1 e2 e3 e4 half of e5 . half, e6 e7  |  e8 e9   ]   bytes
//!                                      ^ next to write           ^ the end of `allowed`
//! ```
//!
//! The ledger has an entry for every request whose reply has not come, even if no session waits for
//! it. A reply belongs to the front entry alone. An entry leaves only when its reply ends or the
//! connection does. The link keeps the request's bytes as long: a lost read can be sent again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use respool_protocol::encode::Version;
use respool_protocol::reply;

use crate::base::arrivals::ArrivalForecast;
use crate::base::buffer::Unanswered;
use crate::base::handle::SessionId;
use crate::base::limits::{BATCH_BYTES_MAX, JOINED_BATCH_BYTES_MAX, Limits};
use crate::base::settings::FlushRule;
use crate::base::time::Time;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::pinned::ConnectionSwitch;
use crate::data_plane::completion::pinned::PinnedCompletion;
use crate::data_plane::completion::pinned::RedirectStandIn;
use crate::data_plane::gate::{BY_SLOT, COLLAPSING, FUSING, PayoffGate};
use crate::data_plane::handshake::{Handshake, Identity};
use crate::data_plane::ledger::{Class, EarlierAttempt, Entry};
use crate::data_plane::reply_limit::ReplyBudget;
use crate::data_plane::scripts::LoadedScripts;
use crate::data_plane::session::Pins;
use crate::data_plane::slow_readers::LinkLane;
use crate::routing::pool::ServerId;

/// The reason to give up a link after a reply that answers no request. The owner of the next reply
/// would be unknown.
pub(crate) const UNASKED: &str = "unexpected reply: protocol error";

/// The properties that make links interchangeable: sessions of the same kind share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LinkKind {
    pub(crate) server: ServerId,
    pub(crate) version: Version,
    pub(crate) db: u32,
    /// The user of the link at the server: see [`crate::data_plane::logins`].
    pub(crate) user: u16,
    /// The group of sessions that share it: see [`crate::data_plane::slow_readers`].
    pub(crate) lane: LinkLane,
}

impl LinkKind {
    /// The same kind at another server.
    #[inline]
    pub(crate) fn at(self, server: ServerId) -> LinkKind {
        LinkKind { server, ..self }
    }
}

/// A hub's place among those of its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HubId(pub(crate) u16);

/// A line, by its hub and its index among the hub's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineId {
    pub(crate) hub: HubId,
    pub(crate) line: u16,
}

/// The use of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkRole {
    /// Requests of all sessions of its kind.
    Shared,
    /// No new requests: the link serves those that it has. There are three causes:
    /// - `by` takes its replies too slowly;
    /// - the link has reads that stood behind a slow session, and `by` may be the next slow one;
    /// - the link's server was replaced, and `by` is no session.
    Draining { by: SessionId },
    /// One large request of `by`.
    Streaming { by: SessionId },
    /// One request of `by` that must not wait for a bound (SCRIPT KILL).
    Emergency { by: SessionId },
    /// All requests of `by`: the server's side of the connection has state of this session.
    Pinned { by: SessionId },
    /// Subscriptions on this server, and the messages that subscribers publish.
    HubLine(LineId),
    /// Requests of respool to a Sentinel.
    Sentinel,
    /// No requests: at the server it stands for the session of this id (CLIENT TRACKING REDIRECT).
    /// It receives the invalidations of keys that other sessions track.
    Redirect { to: u64 },
    /// Logins of clients, each tried once, and checks of the configured login. It is never
    /// authenticated for requests.
    Probe,
    /// No requests: it was streaming or pinned, has no trace of that, and waits for the next
    /// session.
    Idle,
}

/// The state of a tunnel: a link whose bytes go through unread (MONITOR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tunnel {
    /// MONITOR was put on the link. `silent`: its client wants no reply. `at_ms`: when the request
    /// was read, [`crate::base::time::Time::stamp_ms`].
    Asked { silent: bool, at_ms: u32 },
    /// The server has agreed, and owes this many replies.
    Open { owed: u32 },
    /// QUIT was sent.
    Quitting,
    /// RESET was sent.
    Resetting,
}

/// The role of an emergency link that no session needs.
pub(crate) const IDLE_EMERGENCY: LinkRole = LinkRole::Emergency {
    by: SessionId::NONE,
};

impl LinkRole {
    /// The session that stops the link if it does not take its replies.
    pub(crate) fn session(self) -> SessionId {
        match self {
            LinkRole::Draining { by }
            | LinkRole::Streaming { by }
            | LinkRole::Emergency { by }
            | LinkRole::Pinned { by } => by,
            LinkRole::Shared
            | LinkRole::HubLine(_)
            | LinkRole::Sentinel
            | LinkRole::Redirect { .. }
            | LinkRole::Probe
            | LinkRole::Idle => SessionId::NONE,
        }
    }

    /// Whether it serves one session alone, for as long as the session needs it. Such links are
    /// many, and have a bound of their own.
    pub(crate) fn is_dedicated(self) -> bool {
        matches!(self, LinkRole::Pinned { .. } | LinkRole::Redirect { .. })
    }

    /// Whether it counts against `links-max`.
    pub(crate) fn is_bounded_by_links_max(self) -> bool {
        !self.is_dedicated() && !matches!(self, LinkRole::Emergency { .. } | LinkRole::Probe)
    }

    /// Whether it serves one request of one session.
    pub(crate) fn is_one_requests(self) -> bool {
        matches!(
            self,
            LinkRole::Streaming { .. } | LinkRole::Emergency { .. }
        )
    }

    /// Whether the ledger may have requests of many sessions.
    pub(crate) fn is_multiplexed(self) -> bool {
        matches!(self, LinkRole::Shared | LinkRole::Draining { .. })
    }

    /// Whether requests are appended to its open batch.
    fn takes_requests(self) -> bool {
        matches!(self, LinkRole::Shared | LinkRole::Pinned { .. })
    }
}

/// Whether a large request passes through a link without being held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Streaming {
    No,
    /// More bytes of the request come.
    Open,
    /// The last bytes are still to be written.
    Ending,
}

/// The requests that may still be sent on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sends {
    More,
    /// The session has ended: its earlier requests, and then nothing.
    Rest,
    /// Nothing: the sending half of the connection is shut down.
    Nothing,
}

/// The attempt to end a session's wait at the server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unblocking {
    /// When the server was asked to end the wait, while its answer has not come.
    pub(crate) at: Option<Time>,
    /// How often the server answered that it did not end the wait.
    pub(crate) denied: u8,
}

/// The state of the connection.
#[derive(Debug)]
pub(crate) enum LinkState {
    /// Not connected, and no request waits for it.
    Down,
    /// A connection attempt is under way since then.
    Connecting { since: Time },
    /// Connected; the server has not answered the whole handshake.
    Greeting {
        since: Time,
        greeting: Box<Handshake>,
    },
    /// In use.
    Up,
    /// Not connected any more. The engine has not handled the loss yet: see
    /// [`crate::data_plane::link_loss`].
    Lost,
    /// Not connected; the next attempt is at `until`, and requests fail until then.
    Backoff { until: Time },
    /// Not connected; the next attempt is at `at`, and requests wait: see
    /// [`crate::data_plane::outage`].
    Retrying { at: Time },
}

/// The requests that a link takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    Nothing,
    /// Requests that have passed the checks of the slow path.
    Checked,
    /// Requests of the hot path, too.
    Everything,
}

/// Whether requests wait for an attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectAttempt {
    /// They wait.
    Fair,
    /// No attempt was made, because the server is known to be away.
    Skipped,
    /// The attempt takes long, and the server was away before. Requests do not wait for it.
    Late,
}

/// The decision of the flush rule on an open batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Flush(FlushReason),
    HoldUntil(Time),
}

/// The reason to flush an open batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushReason {
    /// No request is in flight, and no session is expected to send soon.
    Idle,
    /// The batch has as many bytes as it may.
    Full,
    /// Its oldest request has waited as long as it may.
    Late,
}

pub(crate) struct Link {
    /// Which requests the link takes. Only [`Link::admit`] sets it.
    admission: Admission,
    /// Whether the link is on the engine's list of links with an open batch.
    pub(crate) listed: bool,
    pub(crate) out: Unanswered,
    /// Unwritten bytes that may be written.
    allowed: usize,
    pub(crate) ledger: VecDeque<Entry>,
    /// The completions of the entries that have one, in the order of the ledger.
    pub(crate) completions: VecDeque<Completion>,
    /// Entries of the open batch, at the back of the ledger.
    open: u32,
    /// The time of the turn in which the open batch got its first request.
    open_since: Time,
    /// How long a batch may wait by the pool's flush rule, microseconds.
    pub(crate) wait_us: u32,
    /// Requests that have left since the last tick. Those of a lost link are not counted.
    pub(crate) requests: u64,
    /// The times at which sessions that got their last reply on this link are expected to send
    /// again.
    pub(crate) forecast: ArrivalForecast,

    pub(crate) scanner: reply::ReplyScanner,
    /// The beginning of the reply that the scanner is inside of, unless it was passed on.
    pub(crate) partial: Vec<u8>,
    /// Bytes that are scanned again in front of the next ones: the cut first line of a fused
    /// MGET's reply, or the cut frame of a tunnel.
    pub(crate) unscanned: Vec<u8>,
    /// Whether a part of this reply has been passed on.
    pub(crate) cutting: bool,
    /// The time when the server last sent bytes, or last had no reply to send.
    pub(crate) progress: Time,
    /// Since when the link is not read, because its session does not take its output.
    pub(crate) paused: Option<Time>,
    /// Whether a large request passes through. Its written bytes belong to no ledger entry.
    pub(crate) streaming: Streaming,
    pub(crate) sends: Sends,
    /// The attempt to end the wait of the link's session when its client has left or respool ends.
    pub(crate) unblocking: Unblocking,
    /// Requests of the open batch that may be joined with others.
    pub(crate) movable: u32,
    /// Fused MGETs in the ledger.
    pub(crate) heads: u32,
    /// Whether some requests of a joined batch are sent again.
    pub(crate) asks_again: bool,
    /// The requests to send again, with their bytes, until they are put on the link.
    pub(crate) again: Vec<(Entry, Vec<u8>)>,
    /// When a reply last showed that this user may GET. A user that may MGET need not have the
    /// right to GET.
    pub(crate) may_get: Option<Time>,
    /// When a reply last showed that this user may SET.
    pub(crate) may_set: Option<Time>,
    /// Whether fusing GETs pays. It does not if many keys are missing: each such key costs two
    /// requests.
    pub(crate) gets: PayoffGate,
    /// Whether fusing SETs pays.
    pub(crate) sets: PayoffGate,
    /// Whether neighbouring requests are of one slot often enough, on a Cluster.
    pub(crate) by_slot: PayoffGate,
    /// Whether the search for equal reads pays.
    pub(crate) collapsing: PayoffGate,
    /// Whether the server's errors may be redirects or refusals that respool handles (MOVED,
    /// TRYAGAIN).
    pub(crate) heeds: bool,
    /// Whether a request in flight may wait at the server without a limit.
    pub(crate) waits: bool,
    /// The state of a link whose bytes go to its session unread (MONITOR).
    pub(crate) tunnel: Option<Tunnel>,
    /// Whether the server's side may have state of a session. Such a link is closed after use.
    pub(crate) tainted: bool,
    /// The bound on the replies that the link may owe.
    pub(crate) reply_room: ReplyBudget,
    /// Scripts that were sent to the server on this connection.
    pub(crate) loaded: LoadedScripts,

    pub(crate) state: LinkState,
    pub(crate) role: LinkRole,
    pub(crate) kind: LinkKind,
    /// The number of sessions that use the link.
    pub(crate) attached: u32,
    /// Shared with all sessions that need the link but do not send on it.
    pub(crate) held: Arc<RedirectStandIn>,
    /// Sessions that wait until the link takes requests, or until its requests are refused.
    pub(crate) waiters: Vec<SessionId>,
    /// When the link was last lost after it had been up.
    pub(crate) lost_at: Option<Time>,
    /// Attempts to connect since the last success.
    pub(crate) failures: u32,
    /// The cause of the last loss or failed attempt, for the log and for error replies.
    pub(crate) reason: String,
    /// The server's error reply to the handshake, if that ended the last attempt.
    pub(crate) refusal: Option<Vec<u8>>,
    /// The kind and version of the server, from the handshake.
    pub(crate) identity: Option<Identity>,
    /// The id of this connection at the server (CLIENT ID).
    pub(crate) client_id: i64,
    /// When the last attempt to connect began.
    pub(crate) attempted_at: Time,
    /// The attempt to connect, while the link is not up.
    pub(crate) attempt: ConnectAttempt,
    /// The time since which the link has been up.
    pub(crate) up_since: Time,
    /// When a session last left the link, or used it on the slow path.
    pub(crate) unused_since: Time,
}

impl Link {
    pub(crate) fn new(kind: LinkKind, role: LinkRole, max_delay_us: u32, now: Time) -> Self {
        Link {
            admission: Admission::Nothing,
            listed: false,
            out: Unanswered::default(),
            allowed: 0,
            ledger: VecDeque::new(),
            completions: VecDeque::new(),
            open: 0,
            open_since: now,
            wait_us: 0,
            requests: 0,
            forecast: ArrivalForecast::new(max_delay_us),
            scanner: reply::ReplyScanner::default(),
            partial: Vec::new(),
            unscanned: Vec::new(),
            cutting: false,
            progress: now,
            paused: None,
            streaming: Streaming::No,
            sends: Sends::More,
            unblocking: Unblocking::default(),
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
            reply_room: ReplyBudget::new(kind.lane, now),
            loaded: LoadedScripts::default(),
            state: LinkState::Down,
            role,
            kind,
            attached: 0,
            held: Arc::default(),
            waiters: Vec::new(),
            lost_at: None,
            failures: 0,
            reason: String::from("not connected yet"),
            refusal: None,
            identity: None,
            client_id: 0,
            attempted_at: Time(0),
            attempt: ConnectAttempt::Fair,
            up_since: now,
            unused_since: now,
        }
    }

    /// Opens or closes the link to requests. While CLIENT PAUSE is on, every request is checked on
    /// the slow path. The same holds while the bound on replies makes each request ask for room.
    pub(crate) fn admit(&mut self, takes: bool, paused: bool) {
        self.admission = match takes {
            false => Admission::Nothing,
            true if paused || self.reply_room.is_careful() => Admission::Checked,
            true => Admission::Everything,
        };
    }

    /// Whether the hot path may append a request. This is its only question.
    #[inline]
    pub(crate) fn accepting(&self) -> bool {
        self.admission == Admission::Everything
    }

    /// Whether the link takes requests, perhaps after further checks: it is shared or pinned, and
    /// has room.
    #[inline]
    pub(crate) fn takes(&self) -> bool {
        self.admission != Admission::Nothing
    }

    /// Whether a session waits at the server for a command that blocks, or will wait when the link
    /// is up.
    pub(crate) fn holds_a_waiter(&self) -> bool {
        self.waits && matches!(self.role, LinkRole::Pinned { .. })
    }

    /// The session whose SHUTDOWN is with the server and has no answer.
    pub(crate) fn is_shut_down_by(&self) -> Option<SessionId> {
        let mut marked = self.ledger.iter().filter(|entry| entry.has_completion);
        let at = self
            .completions
            .iter()
            .position(|completion| matches!(completion, Completion::Shutdown))?;
        marked.nth(at).map(|entry| entry.session)
    }

    /// Whether a session waits on this link for the answer to its CLIENT TRACKING ON.
    pub(crate) fn is_asked_to_track(&self) -> bool {
        let mut completions = self.completions.iter();
        let is_own = matches!(self.role, LinkRole::Pinned { .. });
        is_own
            && self.ledger.iter().any(|entry| {
                let completion = if entry.has_completion { completions.next() } else { None };
                let begins =
                    |switch: &ConnectionSwitch| switch.on && switch.pins.any(Pins::TRACKING);
                entry.session != SessionId::NONE
                    && matches!(completion, Some(Completion::Pinned(PinnedCompletion::Switch { switch, .. })) if begins(switch))
            })
    }

    /// Whether no attempt to connect was made, because the server is known to be away.
    pub(crate) fn is_untried(&self) -> bool {
        self.attempt == ConnectAttempt::Skipped
    }

    /// Whether the attempt to connect takes so long that requests do not wait for it.
    pub(crate) fn is_late(&self) -> bool {
        self.attempt == ConnectAttempt::Late
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, LinkState::Up)
    }

    /// Bytes of requests that are not answered.
    pub(crate) fn unanswered_bytes(&self) -> usize {
        self.out.bytes().len()
    }

    /// Whether the link is not up and tries to reach its server, or will try soon.
    pub(crate) fn tries(&self) -> bool {
        !matches!(
            self.state,
            LinkState::Down | LinkState::Up | LinkState::Lost | LinkState::Backoff { .. }
        )
    }

    /// Whether the link owes as many replies, or holds as many bytes, as it may.
    #[inline]
    pub(crate) fn is_full(&self, limits: &Limits) -> bool {
        self.ledger.len() >= self.reply_room.replies_max()
            || self.unanswered_bytes() >= limits.link_unanswered_bytes_max as usize
    }

    /// Whether no request and no reply, nor a part of one, is on its way.
    pub(crate) fn is_idle(&self) -> bool {
        self.streaming == Streaming::No
            && self.ledger.is_empty()
            && self.out.bytes().is_empty()
            && !self.scanner.is_inside()
    }

    /// Whether no request is in flight, and no bytes have come for so long. The loss of its server
    /// would not be noticed.
    pub(crate) fn is_quiet(&self, now: Time, ms: u32) -> bool {
        self.is_up() && self.in_flight() == 0 && now.since_ms(self.progress) >= u64::from(ms)
    }

    /// Takes the front request and its collapsed copies, each as a request of its own.
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

    /// Whether the next reply answers several collapsed requests.
    #[inline]
    pub(crate) fn shares_next(&self) -> bool {
        let second = self.ledger.get(1);
        second.is_some_and(|entry| entry.class == Class::Same)
    }

    /// The number of requests in the open batch.
    pub(crate) fn batched(&self) -> usize {
        self.open as usize
    }

    /// The number of requests that have left and are not answered.
    pub(crate) fn in_flight(&self) -> usize {
        self.ledger.len() - self.open as usize
    }

    /// Whether the next reply answers a fused MGET.
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
        front.is_some_and(|front| front.has_completion)
            && matches!(
                self.completions.front(),
                Some(Completion::Block { code: true, .. })
            )
    }

    /// Removes the front request, which is in flight, because it is answered.
    #[inline]
    pub(crate) fn pop_answered(&mut self, entry: Entry) {
        debug_assert!(self.in_flight() > 0, "an answered request is in flight");
        self.ledger.pop_front();
        self.out.answer(entry.len as usize);
    }

    /// Removes the first bytes of the front request: they were a request of their own, and its
    /// reply came.
    pub(crate) fn shorten_front(&mut self, bytes: usize) {
        if let Some(front) = self.ledger.front_mut() {
            front.len -= bytes as u32;
            self.out.answer(bytes);
        }
    }

    /// Whether the server has answered a request that was not written whole.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.out.is_overtaken()
    }

    /// Removes the head of a fused MGET or MSET. Its parts are next.
    pub(crate) fn pop_head(&mut self, head: Entry) {
        self.heads -= u32::from(head.class == Class::Gets);
        self.pop_answered(head);
    }

    /// The bytes of the front request.
    pub(crate) fn first_bytes(&self) -> &[u8] {
        let len = self.ledger.front().map_or(0, |entry| entry.len as usize);
        &self.out.bytes()[..len]
    }

    /// Whether a reply to this session is still to come on this link.
    pub(crate) fn owes(&self, session: SessionId) -> bool {
        self.ledger.iter().any(|entry| entry.session == session)
    }

    /// Whether this link brings the reply of this place. The request may have to be sent again
    /// first, when the bytes that are being read end.
    pub(crate) fn brings(&self, session: SessionId, seq: u32) -> bool {
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

    /// Appends several requests that one session sent one after the other. All have the same
    /// length.
    #[inline]
    pub(crate) fn push_same_shape(&mut self, first: Entry, count: u32, requests: &[u8]) {
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
    pub(crate) fn push_left(&mut self, left: Departed) {
        match left.completion {
            Some(completion) => self.push_with(left.entry, &left.request, completion),
            None => self.push(left.entry, &left.request),
        }
    }

    /// Appends a request whose reply has a completion.
    pub(crate) fn push_with(&mut self, entry: Entry, request: &[u8], completion: Completion) {
        debug_assert!(entry.has_completion, "an entry with a completion says so");
        self.completions.push_back(completion);
        self.push(entry, request);
    }

    /// Notes that the open batch got its first request in the turn at `now`.
    pub(crate) fn begin_batch(&mut self, now: Time) {
        self.open_since = now;
    }

    /// Decides whether the open batch leaves. Level 2: the batch of an idle link leaves at once.
    /// The batch of a busy link leaves in three cases: the batch in flight has come back, the open
    /// batch is full, or its oldest request has waited long enough. Replies announce requests. So
    /// the batch waits, within the same bound, for sessions that were answered and will soon send
    /// again. Then the requests of many sessions stay one batch.
    ///
    /// `wait_us`: how long the oldest request may wait. `in_flight`: unanswered requests of
    /// sessions. `soon`: the number of sessions that will soon send again, if the link's own
    /// forecast does not have it.
    pub(crate) fn decide(
        &mut self,
        rule: &FlushRule,
        wait_us: u32,
        in_flight: usize,
        now: Time,
        soon: Option<u32>,
    ) -> Decision {
        debug_assert!(wait_us > 0, "this is asked only of a batch that may wait");
        // A link of one session has no other session to wait for.
        if self.role != LinkRole::Shared {
            return Decision::Flush(FlushReason::Idle);
        }
        if self.open_bytes() >= self.batch_bytes_max(rule) {
            return Decision::Flush(FlushReason::Full);
        }
        if in_flight == 0 {
            let are_expected = match soon {
                None => self.forecast.worth_waiting(now, self.open),
                Some(soon) => self.forecast.worth_waiting_for(soon, self.open),
            };
            // The arrival wheel is too coarse for a wait that is so much shorter.
            if !are_expected || wait_us * 2 < rule.max_delay_us {
                return Decision::Flush(FlushReason::Idle);
            }
        }
        let due = self.open_since + wait_us;
        if now >= due {
            self.forecast.waited(self.open);
            Decision::Flush(FlushReason::Late)
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
        self.forecast.end_wait();
    }

    /// Puts the open batch into another order: replaces its bytes and its entries.
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

    /// Copies the entries of the open batch to one vector.
    pub(crate) fn copy_gathered(&self, entries: &mut Vec<Entry>) {
        let (front, back) = self.ledger.as_slices();
        let first = self.in_flight();
        entries.clear();
        entries.extend_from_slice(front.get(first..).unwrap_or_default());
        entries.extend_from_slice(&back[first.saturating_sub(front.len())..]);
        let len = entries.iter().map(|entry| entry.len as usize).sum();
        debug_assert_eq!(self.open_bytes(), len);
    }

    /// The bytes of the open batch.
    pub(crate) fn gathered_bytes(&self) -> &[u8] {
        &self.out.unwritten()[self.allowed..]
    }

    /// Bytes of the open batch.
    fn open_bytes(&self) -> usize {
        self.out.unwritten().len() - self.allowed
    }

    /// Marks a request of the open batch: its reply shows whether the user has the right to GET or
    /// SET.
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

    /// Begins to pass a large request through. No other request may be put on the link until all
    /// its bytes are written: the two could not be told apart.
    pub(crate) fn begin_streaming(&mut self) {
        debug_assert!(self.ledger.is_empty() && self.out.bytes().is_empty());
        self.streaming = Streaming::Open;
        self.admit(false, false);
    }

    /// Ends a large request: no more of its bytes come.
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

    /// Whether role and state of the link allow new requests.
    pub(crate) fn may_take(&self) -> bool {
        self.role.takes_requests()
            && self.streaming == Streaming::No
            && self.sends == Sends::More
            && !self.is_late()
    }

    /// Appends a part of a large request, which may be written at once. If all earlier bytes are
    /// written, the time that the kernel has to take this part begins now.
    pub(crate) fn stream(&mut self, bytes: &[u8], now: Time) {
        if self.pending().is_empty() && self.in_flight() == 0 {
            self.progress = now;
        }
        self.out.append(bytes);
        self.allowed = self.out.unwritten().len();
    }

    /// The bytes that may be written now.
    pub(crate) fn pending(&self) -> &[u8] {
        match &self.state {
            LinkState::Greeting { greeting, .. } => &greeting.unsent,
            LinkState::Up => &self.out.unwritten()[..self.allowed],
            _ => &[],
        }
    }

    /// The kernel took `count` of the pending bytes.
    pub(crate) fn written(&mut self, count: usize) {
        match &mut self.state {
            LinkState::Greeting { greeting, .. } => {
                greeting.unsent.drain(..count);
            }
            _ => {
                self.allowed -= count;
                self.out.write(count);
                if self.streaming != Streaming::No {
                    // The bytes of a large request are not kept, so it cannot be sent again.
                    self.out.answer(count);
                    self.end_streaming_if_written();
                }
            }
        }
    }

    /// Begins the handshake on a new connection.
    pub(crate) fn send_handshake(&mut self, greeting: Handshake, now: Time) {
        self.state = LinkState::Greeting {
            since: now,
            greeting: Box::new(greeting),
        };
    }

    /// The number of requests, from the front, that were written whole.
    fn sent(&self) -> usize {
        let mut unwritten = self.out.unwritten().len();
        let mut sent = self.ledger.len();
        while sent > 0 && unwritten > 0 {
            unwritten = unwritten.saturating_sub(self.ledger[sent - 1].len as usize);
            sent -= 1;
        }
        // A fused request was sent when its last part was.
        while sent > 0 && sent < self.ledger.len() && self.ledger[sent].class.is_part() {
            sent -= 1;
        }
        sent
    }

    /// Ends the connection. Returns the requests that may have been executed, and those that no
    /// session waits for. Requests that were not written whole stay for the next connection. If
    /// that follows at once (`again`), reads that were sent once also stay. A read does not stay if
    /// its session sent a change after it: the second run would see that change.
    pub(crate) fn disconnect(&mut self, again: bool) -> Vec<Entry> {
        let sent = self.sent();
        let mixed = self.is_mixed();
        let mut changed = HashSet::new();
        // A request that no session waits for is not sent again: its client may have sent another
        // request since.
        let is_wanted = |entry: &Entry| entry.session != SessionId::NONE || entry.has_completion;
        let mut stays: Vec<bool> = self.ledger.iter().map(is_wanted).collect();
        let mut of_entry = self.completions.iter();
        let is_simple = |entry: &Entry| {
            !entry.has_completion || of_entry.next().and_then(Completion::read_again).is_some()
        };
        let simple: Vec<bool> = self.ledger.iter().map(is_simple).collect();
        for (index, entry) in self.ledger.iter().enumerate().take(sent).rev() {
            let simple = entry.silent || simple[index];
            let harmless = entry.class.reads() && simple && !changed.contains(&entry.session);
            let is_first_loss = entry.before != EarlierAttempt::Lost;
            stays[index] = again && harmless && is_first_loss && entry.session != SessionId::NONE;
            if !entry.class.reads() {
                changed.insert(entry.session);
            }
        }
        let mut gone = Vec::new();
        let mut kept = Vec::new();
        let mut completions = std::mem::take(&mut self.completions).into_iter();
        let mut at = 0;
        let (mut beginning, mut sent_at): (&[u8], _) = (b"", 0..0);
        for (index, mut entry) in std::mem::take(&mut self.ledger).into_iter().enumerate() {
            let behind = at + entry.len as usize;
            let mut completion = if entry.has_completion {
                completions.next()
            } else {
                None
            };
            let has_no_session = entry.session == SessionId::NONE;
            if entry.class != Class::Same {
                (beginning, sent_at) = (entry.class.beginning(), at..behind);
            }
            if entry.class.is_whole() {
                // The parts of a fused request stand for themselves again.
            } else if stays[index]
                && completion
                    .as_mut()
                    .is_none_or(|completion| completion.begin_again(has_no_session))
            {
                self.completions.extend(completion);
                kept.extend_from_slice(beginning);
                kept.extend_from_slice(&self.out.bytes()[sent_at.clone()]);
                entry.len = (beginning.len() + sent_at.len()) as u32;
                entry.class = entry.class.alone();
                if index < sent {
                    entry.before = EarlierAttempt::Lost;
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
        // The next connection may be to another server, or the user may have other rights.
        self.try_again();
        self.may_get = None;
        self.may_set = None;
        self.forecast.end_wait();
        self.scanner = reply::ReplyScanner::default();
        self.reply_room.forget_part();
        self.partial = Vec::new();
        self.unscanned = Vec::new();
        self.cutting = false;
        self.streaming = Streaming::No;
        self.paused = None;
        gone
    }

    /// Tries again all ways of coalescing that were switched off on this link.
    pub(crate) fn try_again(&mut self) {
        self.gets = FUSING;
        self.sets = FUSING;
        self.by_slot = BY_SLOT;
        self.collapsing = COLLAPSING;
    }

    /// Whether requests of one session may not be in the order in which it sent them.
    fn is_mixed(&self) -> bool {
        self.asks_again || self.ledger.iter().any(|entry| entry.class == Class::Same)
    }

    /// Puts each session's requests into the order in which the session sent them. A request that
    /// is sent again may stand behind later ones. Nothing is in flight.
    fn put_into_asked_order(&mut self) {
        let mut completions = std::mem::take(&mut self.completions).into_iter();
        let mut at = 0;
        let mut asked: Vec<(Entry, usize, Option<Completion>)> = Vec::new();
        for entry in std::mem::take(&mut self.ledger) {
            let completion = if entry.has_completion {
                completions.next()
            } else {
                None
            };
            asked.push((entry, at, completion));
            at += entry.len as usize;
        }
        asked.sort_by(|(one, ..), (other, ..)| one.asked_before(other));
        let mut bytes = Vec::with_capacity(at);
        for (entry, at, completion) in asked {
            bytes.extend_from_slice(&self.out.bytes()[at..at + entry.len as usize]);
            self.ledger.push_back(entry);
            self.completions.extend(completion);
        }
        self.out.replace(bytes);
    }

    /// Whether the link owes replies to other sessions than that of the front request.
    pub(crate) fn owes_others(&self) -> bool {
        let front = self.first_in_flight().map(|front| front.session);
        let mut entries = self.ledger.iter();
        entries.any(|entry| entry.session != SessionId::NONE && Some(entry.session) != front)
    }

    /// Takes the requests that can go to another link: those of sessions, other than
    /// `slow_session`, whose requests on this link may all be sent twice. The first replies will be
    /// dropped. A session with any other request must wait, or its order is lost. `again`: how a
    /// request is sent a second time, if it may be.
    pub(crate) fn take_requests_of_others(
        &mut self,
        slow_session: SessionId,
        again: impl Fn(&Entry, &[u8], Option<&Completion>) -> RepeatRule,
        bounds: RepeatBounds,
    ) -> Vec<Departed> {
        let mixed = self.is_mixed();
        let mut completions = self.completions.iter();
        let (mut all, mut at) = (Vec::with_capacity(self.ledger.len()), 0);
        // For each session: whether all its requests may go, their number, and their bytes.
        let mut asked: HashMap<SessionId, (bool, usize, usize)> = HashMap::new();
        // A collapsed read has no bytes of its own: it shares those of the request before it.
        let mut sent_bytes = 0;
        for entry in &self.ledger {
            let behind = at + entry.len as usize;
            let completion = if entry.has_completion {
                completions.next()
            } else {
                None
            };
            let again = again(entry, &self.out.bytes()[at..behind], completion);
            let of_session = asked.entry(entry.session).or_insert((true, 0, 0));
            of_session.0 &= !matches!(again, RepeatRule::No);
            of_session.1 += 1;
            if entry.class != Class::Same {
                sent_bytes = entry.class.beginning().len() + entry.len as usize;
            }
            of_session.2 += sent_bytes;
            all.push(again);
            at = behind;
        }
        asked.remove(&slow_session);
        asked.remove(&SessionId::NONE);
        if self.cutting
            && let Some(front) = self.ledger.front()
        {
            // A part of the front reply is already with its client.
            asked.remove(&front.session);
        }
        let (mut going, mut bytes) = (HashSet::new(), 0);
        for entry in &self.ledger {
            if let Some((true, count, session_bytes)) = asked.remove(&entry.session)
                && count <= bounds.requests_of_session
                && bytes + session_bytes <= bounds.bytes
            {
                bytes += session_bytes;
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
                taken.push(Departed {
                    entry: Entry {
                        before: EarlierAttempt::Lost,
                        len: request.len() as u32,
                        class: entry.class.alone(),
                        ..*entry
                    },
                    request,
                    completion: match again {
                        RepeatRule::With(completion) => Some(completion),
                        RepeatRule::Plainly | RepeatRule::No => None,
                    },
                });
                entry.session = SessionId::NONE;
            }
            at = behind;
        }
        if mixed {
            taken.sort_by(|one, other| one.entry.asked_before(&other.entry));
        }
        taken
    }

    /// Takes the plain reads of sessions that have only a few, as [`Link::take_requests_of_others`]
    /// does. A session with many requests would make the server do much work twice.
    pub(crate) fn take_few_reads_of_others(&mut self, slow_session: SessionId) -> Vec<Departed> {
        let again = |entry: &Entry, _: &[u8], _: Option<&Completion>| match entry.class.reads() {
            true if !entry.has_completion => RepeatRule::Plainly,
            _ => RepeatRule::No,
        };
        let bounds = RepeatBounds {
            requests_of_session: ASKED_AGAIN_MAX,
            bytes: usize::MAX,
        };
        self.take_requests_of_others(slow_session, again, bounds)
    }

    /// Takes the unsent requests for which `leaves` is true from a link that is not connected.
    /// Returns their entries.
    pub(crate) fn take_unsent(&mut self, leaves: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        if !self.ledger.iter().any(&leaves) {
            return Vec::new();
        }
        let taken = self.take_left(|entry, _| leaves(entry));
        taken.into_iter().map(|left| left.entry).collect()
    }

    /// Takes such requests, with their bytes and completions.
    pub(crate) fn take_left(&mut self, leaves: impl Fn(&Entry, &[u8]) -> bool) -> Vec<Departed> {
        debug_assert!(!self.is_up());
        let mut taken = Vec::new();
        let mut kept = Vec::new();
        let mut completions = std::mem::take(&mut self.completions).into_iter();
        let mut at = 0;
        for entry in std::mem::take(&mut self.ledger) {
            let completion = if entry.has_completion {
                completions.next()
            } else {
                None
            };
            let behind = at + entry.len as usize;
            let request = &self.out.bytes()[at..behind];
            if leaves(&entry, request) {
                let request = request.to_vec();
                taken.push(Departed {
                    entry,
                    request,
                    completion,
                });
            } else {
                kept.extend_from_slice(request);
                self.ledger.push_back(entry);
                self.completions.extend(completion);
            }
            at = behind;
        }
        self.out.replace(kept);
        // Nothing is sent before the link is up.
        self.allowed = 0;
        self.count_open();
        taken
    }

    /// Counts the open batch anew: no request in the ledger has been sent on this connection.
    fn count_open(&mut self) {
        self.open = self.ledger.len() as u32;
        let movable = |entry: &&Entry| entry.class.may_move();
        self.movable = self.ledger.iter().filter(movable).count() as u32;
    }
}

/// How a request that was sent on one link is sent a second time, on another link.
#[derive(Debug)]
pub(crate) enum RepeatRule {
    /// It is not sent again.
    No,
    /// It is sent again, and its reply is passed on.
    Plainly,
    /// It is sent again, and its reply has this completion.
    With(Completion),
}

/// Bounds on the requests of one link that are sent a second time.
pub(crate) struct RepeatBounds {
    /// Requests of one session. A session with more of them waits.
    pub(crate) requests_of_session: usize,
    /// Bytes of all requests. A session whose requests have no room waits.
    pub(crate) bytes: usize,
}

/// A request that was taken off its link.
pub(crate) struct Departed {
    pub(crate) entry: Entry,
    pub(crate) request: Vec<u8>,
    pub(crate) completion: Option<Completion>,
}

/// Reads of one session that are sent again on another link when its link is not read any more. If
/// two hundred sessions are slow, one after the other, each of them makes the server repeat the
/// reads of the others. With 128 a server had time for nothing else.
const ASKED_AGAIN_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::settings::Aim;
    use crate::data_plane::slow_readers::EVERYBODYS;

    const RULE: FlushRule = FlushRule {
        aim: Aim::ServerCpu,
        max_delay_us: 200,
        fuse: false,
        fused_keys_max: 2,
        collapse: false,
    };

    fn link() -> Link {
        let kind = LinkKind {
            server: ServerId(0),
            version: Version::Resp2,
            db: 0,
            user: 0,
            lane: EVERYBODYS,
        };
        let mut link = Link::new(kind, LinkRole::Shared, RULE.max_delay_us, Time(0));
        link.state = LinkState::Up;
        link
    }

    fn push(link: &mut Link, seq: u32, len: usize) {
        let entry = Entry {
            session: SessionId {
                index: 1,
                generation: 1,
            },
            seq,
            len: len as u32,
            class: Class::of(seq % 2 == 1),
            ..Entry::of(SessionId::NONE, 0, 0)
        };
        link.push(entry, &vec![b'x'; len]);
    }

    /// In a pause a link takes requests only after the checks of the slow path.
    #[test]
    fn paused_link_takes_checked_requests() {
        // Takes and paused; whether it takes requests, and those of the hot path.
        let table = [
            ((false, false), (false, false)),
            ((false, true), (false, false)),
            ((true, true), (true, false)),
            ((true, false), (true, true)),
        ];
        let mut link = link();
        for ((takes, paused), admitted) in table {
            link.admit(takes, paused);
            assert_eq!((link.takes(), link.accepting()), admitted);
        }
    }

    /// A full batch that leaves ends its wait: the next batch begins a wait of its own.
    #[test]
    fn full_batch_ends_its_wait() {
        let mut link = link();
        for _ in 0..10 {
            link.forecast.expect(Time(300), 0);
        }
        for seq in 0..5 {
            push(&mut link, seq, 10);
        }
        link.begin_batch(Time(300));
        assert_eq!(
            link.decide(&RULE, RULE.max_delay_us, link.in_flight(), Time(300), None),
            Decision::HoldUntil(Time(500))
        );
        push(&mut link, 5, BATCH_BYTES_MAX);
        assert_eq!(
            link.decide(&RULE, RULE.max_delay_us, link.in_flight(), Time(310), None),
            Decision::Flush(FlushReason::Full)
        );
        link.flush(Time(310));
        push(&mut link, 6, 10);
        link.begin_batch(Time(320));
        // This batch has fewer requests than the one before had when its wait began.
        assert_eq!(
            link.decide(&RULE, RULE.max_delay_us, link.in_flight(), Time(520), None),
            Decision::Flush(FlushReason::Late)
        );
    }

    /// A lone request never waits, and no request waits longer than `max_delay`.
    #[test]
    fn lone_request_never_waits_and_wait_ends_at_max_delay() {
        let mut link = link();
        push(&mut link, 0, 10);
        assert_eq!(
            link.decide(&RULE, RULE.max_delay_us, link.in_flight(), Time(0), None),
            Decision::Flush(FlushReason::Idle)
        );
        link.flush(Time(0));
        link.written(10);
        link.begin_batch(Time(50));
        push(&mut link, 1, 10);
        assert_eq!(
            link.decide(&RULE, RULE.max_delay_us, link.in_flight(), Time(60), None),
            Decision::HoldUntil(Time(250))
        );
        assert_eq!(
            link.decide(&RULE, RULE.max_delay_us, link.in_flight(), Time(250), None),
            Decision::Flush(FlushReason::Late)
        );
        link.ledger.pop_front();
        assert_eq!(
            link.decide(&RULE, RULE.max_delay_us, link.in_flight(), Time(250), None),
            Decision::Flush(FlushReason::Idle)
        );
        link.begin_batch(Time(300));
        link.forecast.expect(Time(300), 0);
        assert_eq!(
            link.decide(&RULE, RULE.max_delay_us, link.in_flight(), Time(310), None),
            Decision::HoldUntil(Time(500))
        );
        assert_eq!(
            link.decide(&RULE, RULE.max_delay_us, link.in_flight(), Time(500), None),
            Decision::Flush(FlushReason::Late)
        );
    }

    /// A full batch leaves although the link is busy.
    #[test]
    fn full_batch_leaves_busy_link() {
        let mut link = link();
        push(&mut link, 0, 10);
        link.flush(Time(0));
        push(&mut link, 1, BATCH_BYTES_MAX - 1);
        assert!(matches!(
            link.decide(&RULE, RULE.max_delay_us, link.in_flight(), Time(0), None),
            Decision::HoldUntil(_)
        ));
        push(&mut link, 2, 1);
        assert_eq!(
            link.decide(&RULE, RULE.max_delay_us, link.in_flight(), Time(0), None),
            Decision::Flush(FlushReason::Full)
        );
    }

    /// When a connection ends, requests that were written whole are gone. All others stay, whole.
    #[test]
    fn lost_link_keeps_whole_requests_that_were_not_written() {
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
                    .all(|entry| entry.before == EarlierAttempt::Unsent)
            );
        }
    }

    /// A lost read is sent again once, unless its session had sent a change after it.
    #[test]
    fn lost_read_is_sent_again_once_if_no_change_followed() {
        let mut link = link();
        // Odd requests are reads. The change 2 was sent after read 1. The change 4, after read 3,
        // was not sent.
        for seq in 0..6 {
            push(&mut link, seq, 10);
        }
        link.flush(Time(0));
        link.written(45);
        let seqs = |entries: &mut dyn Iterator<Item = &Entry>| {
            entries
                .map(|entry| (entry.seq, entry.before == EarlierAttempt::Lost))
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

    /// Sessions with a few reads leave a draining link. Sessions that write or read much stay.
    #[test]
    fn sessions_with_few_reads_leave_draining_link() {
        let mut link = link();
        let session = |index| SessionId {
            index,
            generation: 1,
        };
        let [slow_session, reader, writer, greedy] = [1, 2, 3, 4].map(session);
        let mut put = |session, seq, reads| {
            let entry = Entry {
                session,
                seq,
                len: 4,
                class: Class::of(reads),
                ..Entry::of(SessionId::NONE, 0, 0)
            };
            link.push(entry, format!("{}{seq:03}", session.index).as_bytes());
        };
        put(slow_session, 0, true);
        put(reader, 0, true);
        put(writer, 0, true);
        put(writer, 1, false);
        put(reader, 1, true);
        (0..=ASKED_AGAIN_MAX as u32).for_each(|seq| put(greedy, seq, true));
        let taken = link.take_few_reads_of_others(slow_session);
        let taken: Vec<_> = taken
            .iter()
            .map(|left| (left.entry.session, &left.request[..]))
            .collect();
        assert_eq!(taken, [(reader, &b"2000"[..]), (reader, b"2001")]);
        let left: HashSet<SessionId> = link.ledger.iter().map(|entry| entry.session).collect();
        assert_eq!(
            left,
            HashSet::from([slow_session, writer, greedy, SessionId::NONE])
        );
    }
}
