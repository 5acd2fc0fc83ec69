//! One connection of ours to a server: its state and use, its [`Ledger`], and the time when the
//! open batch leaves.

use std::sync::Arc;

use respool_protocol::encode::Version;
use respool_protocol::reply;

use crate::base::arrivals::ArrivalForecast;
use crate::base::handle::SessionId;
use crate::base::limits::{BATCH_BYTES_MAX, JOINED_BATCH_BYTES_MAX, Limits};
use crate::base::settings::FlushRule;
use crate::base::time::{Stamp, Time};
use crate::data_plane::completion::pinned::RedirectStandIn;
use crate::data_plane::gate::CoalescingGates;
use crate::data_plane::handshake::{Handshake, Identity};
use crate::data_plane::ledger::departed::Departed;
use crate::data_plane::ledger::{Entry, Ledger};
use crate::data_plane::reply_limit::ReplyBudget;
use crate::data_plane::scripts::LoadedScripts;
use crate::data_plane::slow_readers::LinkLane;
use crate::routing::pool::ServerId;

/// The reason to close a link after a reply that answers no request. The owner of the next reply
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
    /// No new requests: the link serves its unanswered requests. The causes:
    /// - `by` takes its replies too slowly;
    /// - the link has reads that stood behind a slow session, and `by` may be the next slow one;
    /// - the link has reads that were lost together with another link, those of `by` among them;
    /// - another link took its place (a new server, or a stuck link), and `by` is no session.
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
    /// No requests. It was streaming or pinned, has no trace of that, and waits for the next
    /// session. Or it is being connected to take the place of a shared link.
    Idle,
}

/// The state of a tunnel: a link with bytes that go through unread (MONITOR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tunnel {
    /// MONITOR was put on the link. `silent`: its client wants no reply. `read_at`: when the
    /// request was read.
    Requested { silent: bool, read_at: Stamp },
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
    /// Whether a link of this role is closed when it has not been used for a while.
    pub(crate) fn ends_when_unused(self) -> bool {
        match self {
            LinkRole::Emergency { by } => by == SessionId::NONE,
            role => matches!(
                role,
                LinkRole::Shared | LinkRole::Idle | LinkRole::Probe | LinkRole::Redirect { .. }
            ),
        }
    }

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
    pub(crate) fn serves_one_request(self) -> bool {
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
    /// Not connected, and no attempt is under way. While the loss of the link is handled, it may
    /// hold requests that wait for the next attempt.
    Down,
    /// A connection attempt is under way. `since`: its start.
    Connecting { since: Time },
    /// Connected; the server has not answered the whole handshake.
    Handshaking {
        since: Time,
        handshake: Box<Handshake>,
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
    Slow,
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
    /// No request is in flight and no session is expected to send soon, or the flush rule holds no
    /// batch here.
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
    pub(crate) ledger: Ledger,
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
    /// Whether a fragment of this reply has been passed on.
    pub(crate) cutting: bool,
    /// The time when the server last sent bytes, or last had no reply to send.
    pub(crate) progress: Time,
    /// Since when the link is not read, because its session does not take its output.
    pub(crate) unread_since: Option<Time>,
    /// Whether a large request passes through. Its written bytes belong to no ledger entry.
    pub(crate) streaming: Streaming,
    pub(crate) sends: Sends,
    /// The attempt to end the wait of the link's session when its client has left or respool ends.
    pub(crate) unblocking: Unblocking,
    /// Which kinds of coalescing are used on this connection.
    pub(crate) gates: CoalescingGates,
    /// Whether the server's errors may be redirects or refusals that respool handles (MOVED,
    /// TRYAGAIN).
    pub(crate) handles_redirects: bool,
    /// Whether a request in flight may wait at the server without a limit.
    pub(crate) waits: bool,
    /// The state of a link with bytes that go to its session unread (MONITOR).
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
    /// Shared with all sessions that need the link but do not send on it: sessions that track by
    /// REDIRECT, and sessions in WAIT, which sends on another link.
    pub(crate) stand_in: Arc<RedirectStandIn>,
    /// Sessions that wait until the link takes requests, or until its requests are refused.
    pub(crate) waiters: Vec<SessionId>,
    /// When the link was last lost after it had been up.
    pub(crate) lost_at: Option<Time>,
    /// Attempts to connect since the last success.
    pub(crate) failures: u32,
    /// The cause of the last loss or failed attempt, for the log and for error replies.
    pub(crate) reason: String,
    /// The server's error reply to the handshake, if that ended the last attempt.
    pub(crate) handshake_error: Option<Vec<u8>>,
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
            ledger: Ledger::default(),
            open_since: now,
            wait_us: 0,
            requests: 0,
            forecast: ArrivalForecast::new(max_delay_us),
            scanner: reply::ReplyScanner::default(),
            partial: Vec::new(),
            unscanned: Vec::new(),
            cutting: false,
            progress: now,
            unread_since: None,
            streaming: Streaming::No,
            sends: Sends::More,
            unblocking: Unblocking::default(),
            gates: CoalescingGates::new(),
            handles_redirects: false,
            waits: false,
            tunnel: None,
            tainted: false,
            reply_room: ReplyBudget::new(kind.lane, now),
            loaded: LoadedScripts::default(),
            state: LinkState::Down,
            role,
            kind,
            attached: 0,
            stand_in: Arc::default(),
            waiters: Vec::new(),
            lost_at: None,
            failures: 0,
            reason: String::from("not connected yet"),
            handshake_error: None,
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

    /// Whether no attempt to connect was made, because the server is known to be away.
    pub(crate) fn is_untried(&self) -> bool {
        self.attempt == ConnectAttempt::Skipped
    }

    /// Whether the attempt to connect takes so long that requests do not wait for it.
    pub(crate) fn connects_slowly(&self) -> bool {
        self.attempt == ConnectAttempt::Slow
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, LinkState::Up)
    }

    /// Whether no session uses the link or waits for it, and it owes nothing.
    pub(crate) fn is_unused(&self) -> bool {
        self.attached == 0
            && Arc::strong_count(&self.stand_in) == 1
            && self.ledger.is_empty()
            && self.ledger.unanswered_bytes() == 0
            && self.waiters.is_empty()
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
            || self.ledger.unanswered_bytes() >= limits.link_unanswered_bytes_max as usize
    }

    /// Whether no request and no reply, and no fragment of one, is on its way.
    pub(crate) fn owes_nothing(&self) -> bool {
        self.streaming == Streaming::No
            && self.ledger.is_empty()
            && self.ledger.unanswered_bytes() == 0
            && !self.scanner.is_inside()
    }

    /// Whether no request is in flight, and no bytes have come for so long. The loss of its server
    /// would not be noticed. A link in the middle of a large request is not quiet: another request
    /// would become a part of that one.
    pub(crate) fn is_quiet(&self, now: Time, ms: u32) -> bool {
        self.is_up()
            && self.ledger.in_flight() == 0
            && self.streaming == Streaming::No
            && now.since_ms(self.progress) >= u64::from(ms)
    }

    /// Notes that the open batch got its first request in the turn at `now`.
    pub(crate) fn begin_batch(&mut self, now: Time) {
        self.open_since = now;
    }

    /// Decides whether the open batch leaves. The batch of a link that owes no replies leaves at
    /// once, unless sessions are expected to send soon. The batch of a busy link leaves in three
    /// cases: the batch in flight has come back, the open batch is full, or its oldest request has
    /// waited long enough. Replies announce requests. So the batch waits, within the same bound,
    /// for sessions that were answered and will soon send again. Then the requests of many sessions
    /// stay one batch.
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
        if self.ledger.open_bytes() >= self.batch_bytes_max(rule) {
            return Decision::Flush(FlushReason::Full);
        }
        let open = self.ledger.batched() as u32;
        if in_flight == 0 {
            let are_expected = match soon {
                None => self.forecast.worth_waiting(now, open),
                Some(soon) => self.forecast.worth_waiting_for(soon, open),
            };
            // The arrival wheel is too coarse for a wait that is so much shorter.
            if !are_expected || wait_us * 2 < rule.max_delay_us {
                return Decision::Flush(FlushReason::Idle);
            }
        }
        let due = self.open_since + wait_us;
        if now >= due {
            self.forecast.waited(open);
            Decision::Flush(FlushReason::Late)
        } else {
            Decision::HoldUntil(due)
        }
    }

    /// Bytes of the open batch at which it leaves although the link is busy.
    fn batch_bytes_max(&self, rule: &FlushRule) -> usize {
        let joins = rule.fuse || rule.collapse;
        if joins && self.ledger.movable() * 2 > self.ledger.batched() as u32 {
            JOINED_BATCH_BYTES_MAX
        } else {
            BATCH_BYTES_MAX
        }
    }

    /// Closes the open batch: its bytes may be written.
    pub(crate) fn flush(&mut self, now: Time) {
        if self.ledger.flush(now.stamp()) {
            self.progress = now;
        }
        self.forecast.end_wait();
    }

    /// Begins to pass a large request through. No other request may be put on the link until all
    /// its bytes are written: the two could not be told apart.
    pub(crate) fn begin_streaming(&mut self) {
        debug_assert!(self.ledger.is_empty() && self.ledger.unanswered_bytes() == 0);
        self.streaming = Streaming::Open;
        self.admit(false, false);
    }

    /// Ends a large request: no more of its bytes come.
    pub(crate) fn end_streaming(&mut self) {
        self.streaming = Streaming::Ending;
        self.end_streaming_if_written();
    }

    fn end_streaming_if_written(&mut self) {
        if self.streaming == Streaming::Ending && self.ledger.unanswered_bytes() == 0 {
            self.streaming = Streaming::No;
        }
    }

    /// Whether its bytes belong to one request and cannot be told from others.
    pub(crate) fn serves_one_request(&self) -> bool {
        self.role.serves_one_request() || self.streaming != Streaming::No
    }

    /// Whether role and state of the link allow new requests.
    pub(crate) fn may_take(&self) -> bool {
        self.role.takes_requests()
            && self.streaming == Streaming::No
            && self.sends == Sends::More
            && !self.connects_slowly()
    }

    /// Appends a fragment of a large request, which may be written at once. If all earlier bytes
    /// are written, the time that the kernel has to take this fragment begins now.
    pub(crate) fn stream(&mut self, bytes: &[u8], now: Time) {
        if self.pending().is_empty() && self.ledger.in_flight() == 0 {
            self.progress = now;
        }
        self.ledger.stream(bytes);
    }

    /// The bytes that may be written now.
    pub(crate) fn pending(&self) -> &[u8] {
        match &self.state {
            LinkState::Handshaking { handshake, .. } => &handshake.unsent,
            LinkState::Up => self.ledger.pending(),
            _ => &[],
        }
    }

    /// The kernel took `count` of the pending bytes.
    pub(crate) fn written(&mut self, count: usize) {
        match &mut self.state {
            LinkState::Handshaking { handshake, .. } => {
                handshake.unsent.drain(..count);
            }
            _ => {
                self.ledger.write(count);
                if self.streaming != Streaming::No {
                    // The bytes of a large request are not kept, so it cannot be sent again.
                    self.ledger.forget_streamed(count);
                    self.end_streaming_if_written();
                }
            }
        }
    }

    /// Begins the handshake on a new connection.
    pub(crate) fn send_handshake(&mut self, handshake: Handshake, now: Time) {
        self.state = LinkState::Handshaking {
            since: now,
            handshake: Box::new(handshake),
        };
    }

    /// Ends the connection. Returns the requests that leave the ledger: see
    /// [`Ledger::lose_connection`].
    pub(crate) fn disconnect(&mut self, again: bool) -> Vec<Entry> {
        let gone = self.ledger.lose_connection(again);
        self.reset_connection();
        gone
    }

    /// Forgets the state of a connection that has ended.
    fn reset_connection(&mut self) {
        self.gates = CoalescingGates::new();
        self.forecast.end_wait();
        self.scanner = reply::ReplyScanner::default();
        self.reply_room.forget_fragment();
        self.partial = Vec::new();
        self.unscanned = Vec::new();
        self.cutting = false;
        self.streaming = Streaming::No;
        self.unread_since = None;
    }

    /// The sessions whose requests cannot go to another link: the slow one, and the one that has a
    /// fragment of the front reply already.
    pub(crate) fn bound_sessions(&self, slow_session: SessionId) -> [SessionId; 2] {
        let front = self.ledger.front().filter(|_| self.cutting);
        [
            slow_session,
            front.map_or(SessionId::NONE, |front| front.session),
        ]
    }

    /// Takes the unsent requests for which `leaves` is true from a link that is not connected.
    /// Returns their entries.
    pub(crate) fn take_unsent(&mut self, leaves: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        let taken = self.ledger.take_unsent(leaves);
        debug_assert!(taken.is_empty() || !self.is_up());
        taken
    }

    /// Takes such requests, with their bytes and completions.
    pub(crate) fn take_departing(
        &mut self,
        leaves: impl Fn(&Entry, &[u8]) -> bool,
    ) -> Vec<Departed> {
        debug_assert!(!self.is_up());
        self.ledger.take_departing(leaves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::settings::Aim;
    use crate::data_plane::ledger::Class;
    use crate::data_plane::slow_readers::DEFAULT_LANE;

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
            lane: DEFAULT_LANE,
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
            ..Entry::of(SessionId::NONE, 0, Stamp(0))
        };
        link.ledger.push(entry, &vec![b'x'; len]);
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
            link.decide(
                &RULE,
                RULE.max_delay_us,
                link.ledger.in_flight(),
                Time(300),
                None
            ),
            Decision::HoldUntil(Time(500))
        );
        push(&mut link, 5, BATCH_BYTES_MAX);
        assert_eq!(
            link.decide(
                &RULE,
                RULE.max_delay_us,
                link.ledger.in_flight(),
                Time(310),
                None
            ),
            Decision::Flush(FlushReason::Full)
        );
        link.flush(Time(310));
        push(&mut link, 6, 10);
        link.begin_batch(Time(320));
        // This batch has fewer requests than the one before had when its wait began.
        assert_eq!(
            link.decide(
                &RULE,
                RULE.max_delay_us,
                link.ledger.in_flight(),
                Time(520),
                None
            ),
            Decision::Flush(FlushReason::Late)
        );
    }

    /// A lone request never waits, and no request waits longer than `wait_us`.
    #[test]
    fn lone_request_never_waits_and_wait_ends_at_max_delay() {
        let mut link = link();
        push(&mut link, 0, 10);
        assert_eq!(
            link.decide(
                &RULE,
                RULE.max_delay_us,
                link.ledger.in_flight(),
                Time(0),
                None
            ),
            Decision::Flush(FlushReason::Idle)
        );
        link.flush(Time(0));
        link.written(10);
        link.begin_batch(Time(50));
        push(&mut link, 1, 10);
        assert_eq!(
            link.decide(
                &RULE,
                RULE.max_delay_us,
                link.ledger.in_flight(),
                Time(60),
                None
            ),
            Decision::HoldUntil(Time(250))
        );
        assert_eq!(
            link.decide(
                &RULE,
                RULE.max_delay_us,
                link.ledger.in_flight(),
                Time(250),
                None
            ),
            Decision::Flush(FlushReason::Late)
        );
        let front = link
            .ledger
            .first_in_flight()
            .expect("a request is in flight");
        link.ledger.pop_answered(front);
        assert_eq!(
            link.decide(
                &RULE,
                RULE.max_delay_us,
                link.ledger.in_flight(),
                Time(250),
                None
            ),
            Decision::Flush(FlushReason::Idle)
        );
        link.begin_batch(Time(300));
        link.forecast.expect(Time(300), 0);
        assert_eq!(
            link.decide(
                &RULE,
                RULE.max_delay_us,
                link.ledger.in_flight(),
                Time(310),
                None
            ),
            Decision::HoldUntil(Time(500))
        );
        assert_eq!(
            link.decide(
                &RULE,
                RULE.max_delay_us,
                link.ledger.in_flight(),
                Time(500),
                None
            ),
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
            link.decide(
                &RULE,
                RULE.max_delay_us,
                link.ledger.in_flight(),
                Time(0),
                None
            ),
            Decision::HoldUntil(_)
        ));
        push(&mut link, 2, 1);
        assert_eq!(
            link.decide(
                &RULE,
                RULE.max_delay_us,
                link.ledger.in_flight(),
                Time(0),
                None
            ),
            Decision::Flush(FlushReason::Full)
        );
    }
}
