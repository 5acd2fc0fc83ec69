//! The subscriptions of a worker in one pool, as one user: one subscription for each channel of a
//! server, however many of the worker's sessions listen to it.
//!
//! ```text
//!   session ──┐                                        one link, RESP3
//!   session ──┼──► channel "news"  ─ wanted, confirmed ─┐
//!   session ──┘                                         ├──► SUBSCRIBE news   ──► server
//!   session ──────► pattern "n*"   ─ wanted ────────────┘    PSUBSCRIBE n*
//! ```
//!
//! A [`Hub`] has all subscriptions of a worker in one pool, as one of the pool's users. It does no
//! I/O. The component [`crate::pubsub::Pubsub`] gives it the requests of sessions
//! ([`Hub::subscribe`], [`Hub::unsubscribe`], [`Hub::forget`]) and the pushes and replies of
//! servers (`handle_*`). `Pubsub` takes the requests to servers from [`Hub::poll_request`], and the
//! requests of sessions that are done from [`Hub::poll_done`].
//!
//! **Claims.** A session claims a channel from the moment it asks for the channel until it asks to
//! leave.
//! The first claim makes the hub subscribe, and after the last one it unsubscribes. A *member* is a
//! session that gets the channel's messages. A session claims first, and becomes a member when its
//! request is done. Its claim ends when it asks to leave, and it stays a member until that request
//! is done.
//!
//! **Order.** The server executes the requests of a hub's link in their order, and its
//! confirmations and messages come in one stream. So the place in the stream decides. A request of
//! a session is done when the server has answered the last request that the hub sent for it. If the
//! server need not do anything, because other sessions have the channel already, the hub sends a
//! `PING`. So a session gets no message that was published and answered before it asked to
//! subscribe. It gets each message that was published before it asked to leave, in front of the
//! confirmation. That is as from the server itself. The requests of several sessions in one turn
//! share one `PING`.
//!
//! **A lost link.** By default its members are closed, because they may have missed messages. With
//! `lost-subscriptions=keep` they stay, and messages that were published meanwhile are lost. No
//! channel is confirmed any more. With the next connection the hub subscribes to every claimed
//! channel again. A session that waits to subscribe waits on. A request to leave is done.
//!
//! **Lines.** All subscriptions at one server share one [`HubLine`], a link with its own order.
//! Mostly a hub has [`HOME`] alone. In a Cluster, a sharded channel is at the owner of its slot,
//! and each owner has a line:
//!
//! ```text
//!   SSUBSCRIBE x  ─► line of the slot's owner ─► -MOVED, or a sunsubscribe from the server itself
//!                         ▲                           │
//!                         └──── the present owner ────┘     members and claims stay
//! ```
//!
//! When the home of a hub moves to another server, a line of its own listens to the old server for
//! a while ([`removal`]).
//!
//! A channel is on one line at a time, and its messages on other lines are dropped. A session that
//! waits to subscribe waits until the channel is confirmed, on whichever line.
//!
//! **Branches.** A server sends its keyspace notifications to its own subscribers alone. So a
//! channel or pattern that may bring notifications has a branch on a line to every other owner of
//! keys ([`branches`]).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use respool_protocol::encode::{self, Version};
use respool_protocol::slot::hash_slot;
use respool_protocol::{events, number};

use crate::base::handle::{LinkId, SessionId};
use crate::base::slab::{Slab, handle};
use crate::base::time::Time;
use crate::data_plane::completion::pubsub::ChannelKind;
use crate::data_plane::link::HubId;
pub(crate) use crate::pubsub::hub::branches::KeyOwner;
use crate::pubsub::hub::branches::Owners;
use crate::pubsub::hub::removal::FormerLine;
use crate::pubsub::subscriber_counts::SubscriberCounts;
use crate::routing::pool::ServerId;

mod branches;
mod new_pool;
mod removal;
mod stripped;

/// The home: the line to the pool's default server. It carries all channels. Exceptions are the
/// sharded channels of a Cluster, and the branches at other owners.
pub(crate) const HOME: u16 = 0;

/// The subscriptions of one session, all in one hub.
#[derive(Debug)]
pub(crate) struct Subscriber {
    pub(crate) hub: HubId,
    /// The channels of each kind of which it is a member and that it has not asked to leave.
    of: [HashSet<ChannelId>; 3],
    /// The number of its claims.
    claims: usize,
    /// Bytes of the names that it claims. Other sessions may claim the same ones.
    named: usize,
    /// The number of lines on which its request is not done.
    waits: usize,
    /// The reply to its request to leave, until it is done.
    reply: Vec<u8>,
}

impl Subscriber {
    pub(crate) fn new(hub: HubId) -> Self {
        Subscriber {
            hub,
            of: Default::default(),
            claims: 0,
            named: 0,
            waits: 0,
            reply: Vec::new(),
        }
    }

    /// The numbers of channels, patterns and sharded channels.
    pub(crate) fn counts(&self) -> [usize; 3] {
        [self.of[0].len(), self.of[1].len(), self.of[2].len()]
    }

    /// Whether it subscribes to anything.
    pub(crate) fn listens(&self) -> bool {
        self.of.iter().any(|of| !of.is_empty())
    }

    /// Bytes of its claims, without the names: the hub stores each name once.
    pub(crate) fn held_bytes(&self) -> usize {
        self.claims * CLAIM_BYTES
    }

    /// Bytes of the names that it claims.
    pub(crate) fn named_bytes(&self) -> usize {
        self.named
    }

    /// Memory beyond the held bytes: the buffer of the reply.
    pub(crate) fn slack_bytes(&self) -> usize {
        self.reply.capacity()
    }

    /// The count in a confirmation: channels and patterns are counted together.
    fn count(&self, kind: ChannelKind) -> usize {
        match kind {
            ChannelKind::Channel | ChannelKind::Pattern => self.of[0].len() + self.of[1].len(),
            ChannelKind::Shard => self.of[2].len(),
        }
    }
}

handle! {
    /// A channel, pattern or sharded channel of a hub.
    pub(crate) struct ChannelId
}

struct Channel {
    kind: ChannelKind,
    role: ChannelRole,
    /// Shared with the table of names, the subscriber counts and requests that are not sent yet.
    name: Arc<[u8]>,
    /// The line on which the hub subscribes to it.
    line: u16,
    /// The line that also brings its messages, until its own line has confirmed.
    former: Option<FormerLine>,
    /// The number of its moves between lines. It tells requests on the present line from earlier
    /// ones.
    moves: u32,
    /// The number of redirects and refusals since it was confirmed.
    refusals: u32,
    /// The sessions that get its messages.
    members: Vec<SessionId>,
    /// The number of members that have not asked to leave, and of sessions that wait to be members.
    claims: u32,
    /// The last request to the server was to subscribe.
    wanted: bool,
    /// The last confirmation of the server was of a subscription.
    confirmed: bool,
    /// The number of requests about it that are not answered or not sent.
    in_flight: u32,
    /// The last request to subscribe was left out. The request that takes it back is left out, too.
    left_out: bool,
    /// The server's error in place of a confirmation.
    refused: Option<Box<[u8]>>,
    /// The excess that the subscriber counts have of it.
    counted_excess: i64,
}

/// Whether a channel is subscribed at one server or at several.
#[derive(Debug)]
enum ChannelRole {
    /// At one server.
    Whole,
    /// At the hub's first server, and by these branches at the other owners of keys.
    Root { branches: Vec<ChannelId> },
    /// This is the branch of a root. It is leaving if its server is no longer wanted. It has a name
    /// of its own if its server sees keys without their prefix.
    Branch {
        root: ChannelId,
        is_leaving: bool,
        has_name: bool,
    },
}

/// A request to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HubRequest {
    /// Subscribe to this channel, or unsubscribe from it.
    Subscribe {
        channel: ChannelId,
        kind: ChannelKind,
        on: bool,
        moves: u32,
    },
    /// Unsubscribe from a channel that is on another line now.
    Abandon {
        channel: ChannelId,
        kind: ChannelKind,
        name: Arc<[u8]>,
    },
    /// PING: a place in the server's stream, or a sign of life.
    Ping,
}

/// The channel of a request, and the number of its moves at that time.
type AskedChannel = (ChannelId, u32);

/// A request of a session that is not done.
struct HubWait {
    session: SessionId,
    /// Its place in the order of the session's replies.
    seq: u32,
    since: Time,
    /// The total of answers on the line after which it is done there.
    until: u64,
    /// The lines where it waits next, each with such a total.
    rest: Vec<(u16, u64)>,
    effect: WaitEffect,
}

enum WaitEffect {
    /// The session becomes a member of these channels, one for each argument of the request. The
    /// session has one claim of each.
    Join(Vec<ChannelId>),
    /// The session leaves these channels.
    Leave(Vec<ChannelId>),
}

/// A total that is never reached: there is no connection, so nothing was asked.
const NEVER: u64 = u64::MAX;

/// A request that is done.
pub(crate) struct HubDone {
    pub(crate) session: SessionId,
    pub(crate) seq: u32,
    effect: WaitEffect,
}

/// The outcome of a session's request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HubOutcome {
    /// The reply: the request did not have to wait.
    Reply(Vec<u8>),
    /// The request waits. [`Hub::poll_done`] returns it when it is done.
    Waits,
}

/// The server sent a reply or confirmation without a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnaskedReply;

/// The subscriptions of this worker's sessions in one pool, as one of its users. Users may differ
/// in the channels that they may listen to.
pub(crate) struct Hub {
    pub(crate) pool: u16,
    pub(crate) user: u16,
    subscriber_counts: Arc<SubscriberCounts>,
    pub(crate) lines: Vec<HubLine>,
    names: [HashMap<Arc<[u8]>, ChannelId>; 3],
    channels: Slab<ChannelId, Channel>,
    claims: usize,
    /// Bytes of all channels with their names.
    bytes: usize,
    /// Claimed channels that their server does not send: the hub asks for them again at once.
    again: Vec<ChannelId>,
    /// Claimed channels that were refused for now: the hub asks for them again after a delay.
    later: Vec<ChannelId>,
    /// Requests that wait for such a channel, or for one that has moved.
    stalled: Vec<HubWait>,
    /// The servers that send keyspace notifications.
    owners: Owners,
}

/// The subscriptions of a hub at one server.
pub(crate) struct HubLine {
    pub(crate) server: ServerId,
    /// Its link, or [`LinkId::NONE`].
    pub(crate) link: LinkId,
    /// Since when it has no channel.
    pub(crate) unused_since: Time,
    /// Bytes of the server that wait for the next turn.
    pub(crate) postponed: Vec<u8>,
    connected: bool,
    /// It was the home, before another line became the home.
    is_former: bool,
    /// The number of channels on it.
    channels: usize,
    /// Requests that are not sent yet.
    requests: VecDeque<HubRequest>,
    /// Requests that are sent and not answered.
    in_flight: VecDeque<HubRequest>,
    /// The total of requests sent.
    sent: u64,
    /// The total of requests answered.
    answered: u64,
    /// Requests of sessions that wait here, in the order of `until`.
    waits: VecDeque<HubWait>,
}

impl HubLine {
    fn new(server: ServerId, now: Time) -> HubLine {
        HubLine {
            server,
            link: LinkId::NONE,
            unused_since: now,
            postponed: Vec::new(),
            connected: false,
            is_former: false,
            channels: 0,
            requests: VecDeque::new(),
            in_flight: VecDeque::new(),
            sent: 0,
            answered: 0,
            waits: VecDeque::new(),
        }
    }

    /// Whether its link is not needed.
    pub(crate) fn is_unused(&self) -> bool {
        self.channels == 0 && self.waits.is_empty()
    }

    /// Whether it can be used for another server.
    fn is_free(&self) -> bool {
        self.is_unused() && self.link == LinkId::NONE
    }

    /// Whether it has requests to send.
    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Keeps bytes of the server if earlier ones are postponed: they go behind these. Returns
    /// whether it kept them.
    pub(crate) fn keep_behind(&mut self, bytes: &[u8]) -> bool {
        let waits = !self.postponed.is_empty();
        if waits {
            self.postponed.extend_from_slice(bytes);
        }
        waits
    }

    /// Sends a PING if no other request is waiting to be sent.
    pub(crate) fn ask_for_life(&mut self) {
        if self.connected && self.requests.is_empty() {
            self.requests.push_back(HubRequest::Ping);
        }
    }

    /// The total of answers once all requests so far are answered.
    fn until(&self) -> u64 {
        match self.connected {
            true => self.sent + self.requests.len() as u64,
            false => NEVER,
        }
    }

    /// Adds a request that waits here until the total of answers is `wait.until`.
    fn queue(&mut self, wait: HubWait) {
        let at = self.waits.partition_point(|one| one.until <= wait.until);
        self.waits.insert(at, wait);
    }

    /// Notes that the server has answered its first request.
    fn answer(&mut self) {
        self.in_flight.pop_front();
        self.answered += 1;
    }
}

/// Getters.
impl Hub {
    /// The number of claims of all its sessions.
    pub(crate) fn claims(&self) -> usize {
        self.claims
    }

    /// Bytes of its channels, each with its name, and of postponed pushes.
    pub(crate) fn held_bytes(&self) -> usize {
        let postponed = self.lines.iter().map(|line| line.postponed.capacity());
        self.bytes + postponed.sum::<usize>()
    }

    /// Whether it is not needed any more.
    pub(crate) fn is_free(&self) -> bool {
        self.channels.len() == 0
            && self.stalled.is_empty()
            && self.owners.holds_no_links()
            && self.lines.iter().all(HubLine::is_free)
    }

    /// The servers to which it has a line, or that it may soon use.
    pub(crate) fn servers_needed(&self) -> impl Iterator<Item = ServerId> {
        let lines = self.lines.iter().enumerate();
        let is_needed =
            |(at, line): &(usize, &HubLine)| *at == usize::from(HOME) || !line.is_free();
        lines.filter(is_needed).map(|(_, line)| line.server)
    }

    /// Its line with this index.
    pub(crate) fn line(&mut self, line: u16) -> &mut HubLine {
        &mut self.lines[usize::from(line)]
    }

    /// The line to a server, other than the home. A new one if there is none.
    pub(crate) fn line_to(&mut self, server: ServerId, now: Time) -> u16 {
        let behind = usize::from(HOME) + 1;
        let mut of_shards = self.lines.iter().enumerate().skip(behind);
        let is_to_server = |line: &HubLine| line.server == server && !line.is_former;
        let known = of_shards
            .find(|(_, line)| is_to_server(line))
            .map(|(at, _)| at);
        let at = known.or_else(|| self.free_line()).unwrap_or_else(|| {
            self.lines.push(HubLine::new(server, now));
            self.lines.len() - 1
        });
        if !is_to_server(&self.lines[at]) {
            self.lines[at] = HubLine::new(server, now);
        }
        at as u16
    }

    /// The index of a line other than the home that can be used for another server.
    fn free_line(&self) -> Option<usize> {
        let mut lines = self.lines.iter().enumerate().skip(usize::from(HOME) + 1);
        lines.find(|(_, line)| line.is_free()).map(|(at, _)| at)
    }

    /// Whether a channel must be asked for again at once, or a session waits for such a channel.
    pub(crate) fn is_stalled(&self) -> bool {
        !self.again.is_empty() || !self.stalled.is_empty()
    }

    /// The channel of this name, if a session claims it or a request about it is in flight.
    pub(crate) fn channel(&self, kind: ChannelKind, name: &[u8]) -> Option<ChannelId> {
        self.names[kind as usize].get(name).copied()
    }

    /// The number of these names that the session does not have yet. A name that stands twice
    /// counts twice.
    pub(crate) fn count_new(
        &self,
        subscriber: &Subscriber,
        kind: ChannelKind,
        names: impl Iterator<Item = impl AsRef<[u8]>>,
    ) -> usize {
        let known = |name: &[u8]| {
            let channel = self.channel(kind, name);
            channel.is_some_and(|channel| subscriber.of[kind as usize].contains(&channel))
        };
        names.filter(|name| !known(name.as_ref())).count()
    }

    /// Appends the bytes of a request to the server.
    pub(crate) fn write_request(&self, line: u16, request: &HubRequest, out: &mut Vec<u8>) {
        match request {
            HubRequest::Ping => encode::request(out, &["PING"]),
            HubRequest::Subscribe { channel, on, .. } => {
                let Some(channel) = self.channels.get(*channel) else {
                    unreachable!("a channel stays as long as a request about it is to be sent");
                };
                let verb = channel.kind.verb(*on).to_ascii_uppercase();
                encode::request(out, &[verb.as_bytes(), &channel.name]);
            }
            HubRequest::Abandon { kind, name, .. } => {
                let verb = kind.verb(false).to_ascii_uppercase();
                encode::request(out, &[verb.as_bytes(), &name[..]]);
            }
        }
        if request.ends_with_ping(line) {
            encode::request(out, &["PING"]);
        }
    }

    /// The sessions that a push of the server is for. `is_event`: whether it is a keyspace
    /// notification.
    pub(crate) fn receivers(
        &self,
        line: u16,
        (kind, name): (ChannelKind, &[u8]),
        is_event: impl FnOnce() -> bool,
    ) -> &[SessionId] {
        let channel = self.channel(kind, name);
        let channel = channel.and_then(|channel| self.channels.get(channel));
        let receives = |channel: &&Channel| match &channel.role {
            ChannelRole::Root { branches } => self.root_receives(channel, branches, line, is_event),
            _ => channel.line == line || channel.is_heard_on_former(line),
        };
        channel.filter(receives).map_or(&[], |one| &one.members)
    }
}

impl HubRequest {
    /// Whether a PING follows the request, whose reply is its confirmation. A node of a Cluster
    /// sends `sunsubscribe` by itself when the slot moves, so that push does not prove that the
    /// request was executed.
    pub(crate) fn ends_with_ping(&self, line: u16) -> bool {
        match self {
            HubRequest::Subscribe { on, kind, .. } => {
                !on && *kind == ChannelKind::Shard && line != HOME
            }
            HubRequest::Abandon { kind, .. } => *kind == ChannelKind::Shard && line != HOME,
            HubRequest::Ping => false,
        }
    }
}

/// Requests of sessions.
impl Hub {
    pub(crate) fn new(
        (pool, server): (u16, ServerId),
        user: u16,
        subscriber_counts: Arc<SubscriberCounts>,
        now: Time,
    ) -> Self {
        Hub {
            pool,
            user,
            subscriber_counts,
            lines: vec![HubLine::new(server, now)],
            names: Default::default(),
            channels: Slab::new(),
            claims: 0,
            bytes: 0,
            again: Vec::new(),
            later: Vec::new(),
            stalled: Vec::new(),
            owners: Owners::default(),
        }
    }

    /// Subscribes a session that waits for nothing. All its channels are on that line.
    pub(crate) fn subscribe<'a>(
        &mut self,
        (session, seq): (SessionId, u32),
        subscriber: &mut Subscriber,
        (kind, line): (ChannelKind, u16),
        names: impl Iterator<Item = &'a [u8]>,
        version: Version,
        now: Time,
    ) -> HubOutcome {
        let mut channels = Vec::new();
        let mut claimed = HashSet::new();
        for name in names {
            let channel = self.channel_or_new(kind, line, name);
            // A member has its claim already.
            if !subscriber.of[kind as usize].contains(&channel) && claimed.insert(channel) {
                self.claim(channel);
                subscriber.claims += 1;
                subscriber.named += name.len();
            }
            // A channel without a claim would be dropped by the move, so the claim comes first.
            self.move_to(channel, line);
            self.ask(channel);
            self.claim_branches(channel, now);
            channels.push(channel);
        }
        if claimed.is_empty() {
            // The session has all channels already: the reply needs no server.
            return HubOutcome::Reply(self.join(session, subscriber, &channels, version));
        }
        self.wait(line, (session, seq), now, WaitEffect::Join(channels));
        subscriber.waits = 1;
        HubOutcome::Waits
    }

    /// Unsubscribes a session that waits for nothing from the named channels, or from all of this
    /// kind if none is named.
    pub(crate) fn unsubscribe<'a>(
        &mut self,
        (session, seq): (SessionId, u32),
        subscriber: &mut Subscriber,
        kind: ChannelKind,
        names: impl Iterator<Item = &'a [u8]>,
        version: Version,
        now: Time,
    ) -> HubOutcome {
        let mut left = Vec::new();
        let mut reply = Vec::new();
        let mut named = false;
        for name in names {
            named = true;
            if let Some(channel) = self.channel(kind, name)
                && subscriber.of[kind as usize].remove(&channel)
            {
                left.push(channel);
            }
            confirm(
                &mut reply,
                version,
                kind,
                false,
                Some(name),
                subscriber.count(kind),
            );
        }
        if !named {
            let mut all: Vec<ChannelId> = subscriber.of[kind as usize].drain().collect();
            // The order has no meaning, but it is always the same.
            all.sort_unstable_by_key(|channel| channel.index);
            let rest = subscriber.count(kind);
            for (at, channel) in all.iter().enumerate() {
                let name = self.channels.get(*channel).map(|channel| &channel.name[..]);
                let count = rest + all.len() - 1 - at;
                confirm(&mut reply, version, kind, false, name, count);
            }
            if all.is_empty() {
                confirm(&mut reply, version, kind, false, None, rest);
            }
            left = all;
        }
        if left.is_empty() {
            return HubOutcome::Reply(reply);
        }
        for channel in &left {
            self.unclaim(*channel, subscriber);
        }
        for line in 0..self.lines.len() as u16 {
            let is_there =
                |id: &ChannelId| self.channels.get(*id).is_some_and(|one| one.line == line);
            let (on_line, rest) = left.into_iter().partition(is_there);
            left = rest;
            if !self.line(line).connected {
                self.leave(session, &on_line);
            } else if !on_line.is_empty() {
                self.wait(line, (session, seq), now, WaitEffect::Leave(on_line));
                subscriber.waits += 1;
            }
        }
        if subscriber.waits == 0 {
            return HubOutcome::Reply(reply);
        }
        subscriber.reply = reply;
        HubOutcome::Waits
    }

    /// Ends all subscriptions and requests of a session.
    pub(crate) fn forget(&mut self, session: SessionId, subscriber: &mut Subscriber) {
        if std::mem::take(&mut subscriber.waits) > 0 {
            for effect in self.take_waits(session) {
                match effect {
                    WaitEffect::Join(channels) => self.unclaim_all(&channels, subscriber),
                    WaitEffect::Leave(channels) => self.leave(session, &channels),
                }
            }
        }
        for kind in ChannelKind::ALL {
            let of = std::mem::take(&mut subscriber.of[kind as usize]);
            let channels: Vec<ChannelId> = of.into_iter().collect();
            for channel in &channels {
                self.unclaim(*channel, subscriber);
            }
            self.leave(session, &channels);
        }
        debug_assert_eq!(
            (subscriber.claims, subscriber.named),
            (0, 0),
            "every claim ends once"
        );
    }

    /// Takes the requests of a session from the lines on which they wait.
    fn take_waits(&mut self, session: SessionId) -> Vec<WaitEffect> {
        let mut taken = Vec::new();
        for line in &mut self.lines {
            // A session has at most one request on each line.
            if let Some(at) = line.waits.iter().position(|wait| wait.session == session) {
                taken.extend(line.waits.remove(at).map(|wait| wait.effect));
            }
        }
        if let Some(at) = self.stalled.iter().position(|wait| wait.session == session) {
            taken.push(self.stalled.swap_remove(at).effect);
        }
        taken
    }
}

/// Pushes and replies of servers.
impl Hub {
    /// Handles a new connection: subscribes to all claimed channels of the line.
    pub(crate) fn handle_up(&mut self, line: u16) {
        self.line(line).connected = true;
        for channel in self.on_line(line) {
            self.ask(channel);
        }
        let line = self.line(line);
        let until = line.until();
        for wait in &mut line.waits {
            if wait.until == NEVER {
                wait.until = until;
            }
        }
    }

    /// Handles a lost connection, or one that could not be established.
    pub(crate) fn handle_down(&mut self, at: u16) {
        let line = self.line(at);
        line.connected = false;
        line.postponed = Vec::new();
        line.requests.clear();
        line.in_flight.clear();
        line.answered = line.sent;
        for id in self.on_line(at) {
            if let Some(channel) = self.channels.get_mut(id) {
                channel.wanted = false;
                channel.confirmed = false;
                channel.in_flight = 0;
                channel.left_out = false;
            }
            self.update_excess(id);
            self.drop_unused(id);
        }
        self.lose_former(at);
        let line = self.line(at);
        let (leaving, joining): (Vec<HubWait>, Vec<HubWait>) = line
            .waits
            .drain(..)
            .partition(|wait| matches!(wait.effect, WaitEffect::Leave(..)));
        let until = line.answered;
        line.waits
            .extend(leaving.into_iter().map(|wait| HubWait { until, ..wait }));
        let until = NEVER;
        line.waits
            .extend(joining.into_iter().map(|wait| HubWait { until, ..wait }));
    }

    /// Handles a confirmation: from here on the server sends the channel (`on`), or no more.
    pub(crate) fn handle_confirmed(
        &mut self,
        line: u16,
        (kind, on): (ChannelKind, bool),
        name: &[u8],
    ) -> Result<(), UnaskedReply> {
        let (channel, moves) = match self.line(line).in_flight.front() {
            Some(HubRequest::Subscribe {
                channel,
                moves,
                on: asked_on,
                ..
            }) if *asked_on == on => (*channel, *moves),
            Some(HubRequest::Abandon {
                channel,
                kind: asked_kind,
                name: asked_name,
            }) if !on && *asked_kind == kind && **asked_name == *name => {
                let channel = *channel;
                self.line(line).answer();
                self.end_former(line, channel);
                return Ok(());
            }
            _ => return Err(UnaskedReply),
        };
        // A channel that is gone was on another line when it was dropped.
        let is_confirmed = |channel: &Channel| channel.kind == kind && *channel.name == *name;
        if !self.channels.get(channel).is_none_or(is_confirmed) {
            return Err(UnaskedReply);
        }
        self.line(line).answer();
        self.settle_change((channel, moves), on);
        Ok(())
    }

    /// Handles a `sunsubscribe` that a Cluster's node sends. If the hub did not ask for it, the
    /// slot has moved, and the hub asks for the channel again.
    pub(crate) fn handle_dropped(&mut self, line: u16, name: &[u8]) {
        let Some(id) = self.channel(ChannelKind::Shard, name) else {
            return;
        };
        let found = self.channels.get_mut(id);
        let Some(channel) = found.filter(|channel| channel.line == line) else {
            return;
        };
        channel.confirmed = false;
        // If a request about it is in flight, its answer is still to come.
        if channel.in_flight == 0 {
            channel.wanted = false;
            self.again.push(id);
        }
        self.update_excess(id);
        self.drop_unused(id);
    }

    /// Handles an error. Returns the members of a channel that the server sent before a lost
    /// connection and now refuses.
    pub(crate) fn handle_refused(
        &mut self,
        line: u16,
        error: &[u8],
    ) -> Result<Vec<SessionId>, UnaskedReply> {
        let Some(((id, moves), on)) = self.take_answered(line)? else {
            return Ok(Vec::new());
        };
        if !on {
            // The server goes on sending the channel. Its messages are dropped.
            self.settle_change((id, moves), false);
            return Ok(Vec::new());
        }
        let Some(channel) = self.channels.get_mut(id).filter(|one| one.moves == moves) else {
            return Ok(Vec::new());
        };
        channel.in_flight -= 1;
        channel.refused = Some(error.into());
        if channel.in_flight == 0 {
            channel.wanted = false;
        }
        let root = channel.root(id);
        let left_behind = match channel.role {
            ChannelRole::Branch {
                root, is_leaving, ..
            } => self.left_behind_by(root, is_leaving),
            _ => channel.members.clone(),
        };
        if let Some(root) = root {
            self.owners.unsettle(root);
        }
        self.leave_former(id);
        self.drop_unused(id);
        Ok(left_behind)
    }

    /// Handles a redirect, or a refusal for now: the hub asks for the channel again. `error`: the
    /// slot has no owner, and sessions that wait to join get this error. Members stay, and get
    /// messages when the slot has an owner again.
    pub(crate) fn handle_deferred(
        &mut self,
        line: u16,
        error: Option<&[u8]>,
    ) -> Result<(), UnaskedReply> {
        let Some(((id, moves), _)) = self.take_answered(line)? else {
            return Ok(());
        };
        let Some(channel) = self.channels.get_mut(id).filter(|one| one.moves == moves) else {
            return Ok(());
        };
        channel.in_flight -= 1;
        channel.confirmed = false;
        channel.refused = error.map(Into::into);
        if channel.in_flight == 0 {
            channel.wanted = false;
            channel.refusals += 1;
            // After a second redirect the channel waits, so the hub does not circle between two
            // nodes.
            match channel.refusals {
                1 => self.again.push(id),
                _ => self.later.push(id),
            }
        }
        self.update_excess(id);
        self.drop_unused(id);
        Ok(())
    }

    /// Handles a PONG.
    pub(crate) fn handle_pong(&mut self, line: u16) -> Result<(), UnaskedReply> {
        let state = self.line(line);
        match state.in_flight.front() {
            Some(HubRequest::Ping) => state.answer(),
            Some(request) if request.ends_with_ping(line) => {
                if let Some((request, on)) = self.take_answered(line)? {
                    self.settle_change(request, on);
                }
            }
            _ => return Err(UnaskedReply),
        }
        Ok(())
    }

    /// The slot of the sharded channel of the first unanswered request.
    pub(crate) fn front_slot(&self, line: u16) -> Option<u16> {
        match self.lines[usize::from(line)].in_flight.front()? {
            HubRequest::Subscribe { channel, kind, .. } if *kind == ChannelKind::Shard => {
                let channel = self.channels.get(*channel);
                channel.map(|channel| hash_slot(&channel.name))
            }
            HubRequest::Subscribe { .. } | HubRequest::Abandon { .. } | HubRequest::Ping => None,
        }
    }

    /// Takes the first unanswered request. Returns its channel, and whether it was to subscribe.
    /// `None`: it was not about a channel of this line.
    fn take_answered(&mut self, line: u16) -> Result<Option<(AskedChannel, bool)>, UnaskedReply> {
        let state = self.line(line);
        let (request, left) = match state.in_flight.front().ok_or(UnaskedReply)? {
            HubRequest::Subscribe {
                channel, on, moves, ..
            } => (Some(((*channel, *moves), *on)), None),
            HubRequest::Abandon { channel, .. } => (None, Some(*channel)),
            HubRequest::Ping => (None, None),
        };
        state.answer();
        if let Some(channel) = left {
            self.end_former(line, channel);
        }
        Ok(request)
    }

    /// Notes that the server has done a request.
    fn settle_change(&mut self, (id, moves): AskedChannel, on: bool) {
        let Some(channel) = self.channels.get_mut(id).filter(|one| one.moves == moves) else {
            return;
        };
        channel.in_flight -= 1;
        channel.confirmed = on;
        channel.refused = None;
        if on {
            channel.refusals = 0;
            self.leave_former(id);
        }
        self.update_excess(id);
        self.drop_unused(id);
    }

    /// The next request of a session that is done on a line.
    pub(crate) fn poll_done(&mut self, at: u16) -> Option<HubDone> {
        loop {
            let line = self.line(at);
            if line.waits.front()?.until > line.answered {
                return None;
            }
            let wait = line.waits.pop_front()?;
            if at != HOME && self.is_pending(&wait) {
                self.stalled.push(wait);
                continue;
            }
            if let Some(wait) = self.wait_on(wait) {
                return Some(wait.into());
            }
        }
    }

    /// The next request of a session that has waited too long, and its line.
    pub(crate) fn poll_late(&mut self, now: Time, limit_ms: u32) -> Option<(u16, HubDone)> {
        let late = |wait: &HubWait| now.since_ms(wait.since) >= u64::from(limit_ms);
        for (at, line) in self.lines.iter_mut().enumerate() {
            if let Some(place) = line.waits.iter().position(late) {
                let wait = line.waits.remove(place)?;
                return Some((at as u16, wait.into()));
            }
        }
        let place = self.stalled.iter().position(late)?;
        let wait = self.stalled.swap_remove(place);
        Some((self.line_of(&wait), wait.into()))
    }

    /// Settles a request that is done on a line. Returns the reply, unless the request still waits
    /// on another line.
    pub(crate) fn settle(
        &mut self,
        done: HubDone,
        subscriber: &mut Subscriber,
        version: Version,
    ) -> Option<Vec<u8>> {
        subscriber.waits -= 1;
        match done.effect {
            WaitEffect::Leave(channels) => self.leave_line(done.session, subscriber, &channels),
            WaitEffect::Join(channels) => {
                let refused = channels.iter().find_map(|id| self.refusal_of(*id));
                Some(match refused {
                    Some(error) => {
                        let reply = error.to_vec();
                        self.unclaim_all(&channels, subscriber);
                        reply
                    }
                    None => self.join(done.session, subscriber, &channels, version),
                })
            }
        }
    }

    /// Settles a request that took too long. Its reply is `error`, unless it was to leave.
    pub(crate) fn fail(
        &mut self,
        done: HubDone,
        subscriber: &mut Subscriber,
        error: impl FnOnce() -> Vec<u8>,
    ) -> Option<Vec<u8>> {
        subscriber.waits -= 1;
        match done.effect {
            WaitEffect::Leave(channels) => self.leave_line(done.session, subscriber, &channels),
            WaitEffect::Join(channels) => {
                self.unclaim_all(&channels, subscriber);
                Some(error())
            }
        }
    }

    /// Settles a request to leave on one line. Returns its reply if it waits on no other line.
    fn leave_line(
        &mut self,
        session: SessionId,
        subscriber: &mut Subscriber,
        channels: &[ChannelId],
    ) -> Option<Vec<u8>> {
        self.leave(session, channels);
        let is_done = subscriber.waits == 0;
        is_done.then(|| std::mem::take(&mut subscriber.reply))
    }
}

/// Requests to servers.
impl Hub {
    /// The next request of a line to its server. If its sessions have left a channel before the
    /// server was asked for it, a PING takes the place of each of the two requests. So each request
    /// has its reply.
    pub(crate) fn poll_request(&mut self, at: u16) -> Option<HubRequest> {
        let request = self.line(at).requests.pop_front()?;
        let request = match request {
            HubRequest::Subscribe {
                channel, on, moves, ..
            } if self.leaves_out(channel, on, moves) => {
                self.drop_unused(channel);
                HubRequest::Ping
            }
            request => request,
        };
        let line = self.line(at);
        line.in_flight.push_back(request.clone());
        line.sent += 1;
        Some(request)
    }

    /// Whether a request about a channel is left out, because the channel has no claim any more.
    fn leaves_out(&mut self, id: ChannelId, on: bool, moves: u32) -> bool {
        let Some(channel) = self.channels.get_mut(id).filter(|one| one.moves == moves) else {
            return false;
        };
        let leaves_out = match on {
            true => channel.claims == 0,
            false => channel.left_out,
        };
        channel.left_out = on && leaves_out;
        channel.in_flight -= u32::from(leaves_out);
        leaves_out
    }
}

/// Sharded channels follow their slots.
impl Hub {
    /// The sharded channels of a Cluster that are not at the owner of their slot.
    pub(crate) fn channels_on_wrong_line(
        &self,
        owner: impl Fn(u16) -> ServerId,
    ) -> Vec<(ChannelId, ServerId)> {
        let mut channels_on_wrong_line = Vec::new();
        for id in self.names[ChannelKind::Shard as usize].values() {
            if let Some(channel) = self.channels.get(*id)
                && channel.line != HOME
                && let owner = owner(hash_slot(&channel.name))
                && self.lines[usize::from(channel.line)].server != owner
            {
                channels_on_wrong_line.push((*id, owner));
            }
        }
        // The order has no meaning, but it is always the same.
        channels_on_wrong_line.sort_unstable_by_key(|(channel, _)| channel.index);
        channels_on_wrong_line
    }

    /// Moves a channel to this line.
    pub(crate) fn move_to(&mut self, id: ChannelId, to: u16) {
        let Some(channel) = self.channels.get_mut(id).filter(|one| one.line != to) else {
            return;
        };
        let from = std::mem::replace(&mut channel.line, to);
        let is_sent = channel.wanted || channel.in_flight > 0;
        channel.moves = channel.moves.wrapping_add(1);
        channel.wanted = false;
        channel.confirmed = false;
        channel.in_flight = 0;
        channel.left_out = false;
        let (kind, name) = (channel.kind, channel.name.clone());
        self.line(to).channels += 1;
        let old = self.line(from);
        old.channels -= 1;
        for request in &mut old.requests {
            if matches!(request, HubRequest::Subscribe { channel, .. } if *channel == id) {
                *request = HubRequest::Ping;
            }
        }
        if is_sent && old.connected {
            // The old server may go on sending, as a replica, or for a moment.
            let channel = id;
            old.requests.push_back(HubRequest::Abandon {
                channel,
                kind,
                name,
            });
        }
        self.update_excess(id);
        self.ask(id);
        self.drop_unused(id);
    }

    /// Asks again for refused channels, and gives each stalled request a line to wait on.
    pub(crate) fn ask_again(&mut self) {
        for id in std::mem::take(&mut self.again) {
            self.ask(id);
        }
        for line in 0..self.lines.len() as u16 {
            let waits = std::mem::take(&mut self.line(line).waits);
            let has_moved = |wait: &HubWait| {
                matches!(wait.effect, WaitEffect::Join(_))
                    && self.line_of(wait) != line
                    && !self.has_branch_on(line, wait)
            };
            let (gone, stay) = waits.into_iter().partition::<Vec<_>, _>(has_moved);
            self.line(line).waits = stay.into();
            self.stalled.extend(gone);
        }
        for wait in std::mem::take(&mut self.stalled) {
            if self.must_ask_again(&wait) {
                self.stalled.push(wait);
                continue;
            }
            let at = self.line_of(&wait);
            let line = self.line(at);
            if at == HOME {
                // All channels may be confirmed already, so a PING brings the next answer.
                line.ask_for_life();
            }
            let until = line.until();
            line.queue(HubWait { until, ..wait });
        }
    }

    /// Handles the end of a delay: the delayed channels are asked for again.
    pub(crate) fn end_delay(&mut self) {
        self.again.append(&mut self.later);
    }

    /// Whether a channel that a session wants to join is not confirmed yet.
    fn is_pending(&self, wait: &HubWait) -> bool {
        let is_pending = |channel: &Channel| !channel.confirmed && channel.refused.is_none();
        self.joins(wait).any(is_pending)
    }

    /// Whether a channel that a session wants to join, or a branch of it, waits to be asked for
    /// again.
    fn must_ask_again(&self, wait: &HubWait) -> bool {
        let must_ask_again = |channel: &Channel| {
            let line = &self.lines[usize::from(channel.line)];
            line.connected && !channel.wanted && channel.refused.is_none()
        };
        self.joins(wait).any(must_ask_again) || self.branches_of(wait).any(must_ask_again)
    }

    /// The line of the channels that a session wants to join.
    fn line_of(&self, wait: &HubWait) -> u16 {
        self.joins(wait)
            .map(|channel| channel.line)
            .next()
            .unwrap_or(HOME)
    }

    /// The channels that a session wants to join.
    fn joins<'a>(&'a self, wait: &'a HubWait) -> impl Iterator<Item = &'a Channel> {
        let channels = match &wait.effect {
            WaitEffect::Join(channels) => &channels[..],
            WaitEffect::Leave(_) => &[],
        };
        channels.iter().filter_map(|id| self.channels.get(*id))
    }

    /// The sessions that get messages from a line, each once.
    pub(crate) fn listeners(&self, line: u16) -> HashSet<SessionId> {
        let channels = self.channels.iter();
        let channels = channels.filter(|(_, channel)| channel.depends_on(line));
        channels
            .flat_map(|(_, channel)| self.members_by(channel))
            .copied()
            .collect()
    }

    /// The channels of a line.
    fn on_line(&self, line: u16) -> Vec<ChannelId> {
        let channels = self
            .channels
            .iter()
            .filter(|(_, channel)| channel.line == line);
        channels.map(|(id, _)| id).collect()
    }
}

/// Claims and members.
impl Hub {
    /// The channel of this name. A new one is on this line.
    fn channel_or_new(&mut self, kind: ChannelKind, line: u16, name: &[u8]) -> ChannelId {
        if let Some(id) = self.channel(kind, name) {
            return id;
        }
        self.line(line).channels += 1;
        let name: Arc<[u8]> = name.into();
        let brings_events = kind.brings_events(&name);
        self.owners.roots += usize::from(brings_events);
        let role = match brings_events {
            true => ChannelRole::Root {
                branches: Vec::new(),
            },
            false => ChannelRole::Whole,
        };
        let channel = Channel::new(kind, role, line, name.clone());
        self.bytes += channel.bytes();
        let id = self.channels.insert(channel);
        self.names[kind as usize].insert(name, id);
        id
    }

    /// Adds a claim to a channel.
    fn claim(&mut self, id: ChannelId) {
        if let Some(channel) = self.channels.get_mut(id) {
            channel.claims += 1;
            self.claims += 1;
        }
    }

    /// Gives up a session's claim on a channel.
    fn unclaim(&mut self, id: ChannelId, subscriber: &mut Subscriber) {
        let Some(channel) = self.channels.get_mut(id) else {
            return;
        };
        channel.claims -= 1;
        self.claims -= 1;
        subscriber.claims -= 1;
        subscriber.named -= channel.name.len();
        if channel.claims == 0 {
            self.ask(id);
            self.remove_branches(id);
            self.drop_unused(id);
        }
    }

    /// Queues a request to subscribe to a channel that is claimed, or to unsubscribe from one that
    /// is not, if its line is connected and the last request about it was the opposite.
    fn ask(&mut self, id: ChannelId) {
        if let Some(channel) = self.channels.get_mut(id)
            && let line = &mut self.lines[usize::from(channel.line)]
            && line.connected
            && channel.wanted != (channel.claims > 0)
        {
            if let Some(root) = channel.root(id) {
                self.owners.unsettle(root);
            }
            channel.wanted = !channel.wanted;
            channel.in_flight += 1;
            line.requests.push_back(HubRequest::Subscribe {
                channel: id,
                kind: channel.kind,
                on: channel.wanted,
                moves: channel.moves,
            });
        }
    }

    /// Has a session's request wait until the server has answered all requests so far, at least one
    /// that is not sent yet.
    fn wait(
        &mut self,
        line: u16,
        (session, seq): (SessionId, u32),
        since: Time,
        effect: WaitEffect,
    ) {
        let rest = self.rest_of(line, &effect);
        let line = self.line(line);
        line.ask_for_life();
        let until = line.until();
        line.queue(HubWait {
            session,
            seq,
            since,
            until,
            rest,
            effect,
        });
    }

    /// Makes a session a member of its claimed channels. Returns the confirmations.
    fn join(
        &mut self,
        session: SessionId,
        subscriber: &mut Subscriber,
        channels: &[ChannelId],
        version: Version,
    ) -> Vec<u8> {
        let mut reply = Vec::new();
        for &id in channels {
            let Some(channel) = self.channels.get_mut(id) else {
                unreachable!("a channel stays as long as it is claimed");
            };
            let kind = channel.kind;
            let new = subscriber.of[kind as usize].insert(id);
            if new {
                channel.members.push(session);
            }
            let count = subscriber.count(kind);
            confirm(&mut reply, version, kind, true, Some(&channel.name), count);
            if new {
                self.update_excess(id);
            }
        }
        reply
    }

    /// Ends a session's claims on channels of which it is no member.
    fn unclaim_all(&mut self, channels: &[ChannelId], subscriber: &mut Subscriber) {
        let mut unclaimed = HashSet::new();
        for channel in channels {
            let is_member = subscriber.of.iter().any(|of| of.contains(channel));
            if !is_member && unclaimed.insert(channel) {
                self.unclaim(*channel, subscriber);
            }
        }
    }

    /// Ends a session's memberships. Its claims have ended already.
    fn leave(&mut self, session: SessionId, channels: &[ChannelId]) {
        for &id in channels {
            if let Some(channel) = self.channels.get_mut(id)
                && let Some(at) = channel.members.iter().position(|member| *member == session)
            {
                channel.members.swap_remove(at);
                self.update_excess(id);
                self.drop_unused(id);
            }
        }
    }

    /// Drops a channel without claims, members and requests.
    fn drop_unused(&mut self, id: ChannelId) {
        let unused = |channel: &Channel| {
            channel.claims == 0
                && channel.members.is_empty()
                && channel.in_flight == 0
                && !channel.wanted
        };
        if self.channels.get(id).is_some_and(unused)
            && let Some(channel) = self.channels.remove(id)
        {
            debug_assert_eq!(
                channel.counted_excess, 0,
                "without members there is no excess"
            );
            self.line(channel.line).channels -= 1;
            self.drop_former(id, &channel);
            self.bytes -= channel.bytes();
            match channel.role {
                ChannelRole::Branch { root, .. } => self.cut(root, id),
                ChannelRole::Root { .. } | ChannelRole::Whole => {
                    if matches!(channel.role, ChannelRole::Root { .. }) {
                        self.owners.forget(id);
                    }
                    self.names[channel.kind as usize].remove(&channel.name);
                }
            }
        }
    }

    /// Updates the channel's excess in the subscriber counts.
    fn update_excess(&mut self, id: ChannelId) {
        let is_counted =
            |channel: &&mut Channel| !matches!(channel.role, ChannelRole::Branch { .. });
        let Some(channel) = self.channels.get_mut(id).filter(is_counted) else {
            return;
        };
        let excess = if channel.confirmed {
            channel.members.len() as i64 - 1
        } else {
            0
        };
        let change = excess - std::mem::replace(&mut channel.counted_excess, excess);
        self.subscriber_counts
            .add(self.pool, channel.kind, &channel.name, change);
    }
}

impl Channel {
    fn new(kind: ChannelKind, role: ChannelRole, line: u16, name: Arc<[u8]>) -> Channel {
        Channel {
            kind,
            role,
            name,
            line,
            former: None,
            moves: 0,
            refusals: 0,
            members: Vec::new(),
            claims: 0,
            wanted: false,
            confirmed: false,
            in_flight: 0,
            left_out: false,
            refused: None,
            counted_excess: 0,
        }
    }

    /// The root of this channel's branches. `id`: the channel's own handle.
    fn root(&self, id: ChannelId) -> Option<ChannelId> {
        match self.role {
            ChannelRole::Whole => None,
            ChannelRole::Root { .. } => Some(id),
            ChannelRole::Branch { root, .. } => Some(root),
        }
    }

    /// Its memory in bytes. A branch mostly shares the name of its root.
    fn bytes(&self) -> usize {
        match self.role {
            ChannelRole::Branch {
                has_name: false, ..
            } => CHANNEL_BYTES,
            _ => self.name.len() + CHANNEL_BYTES,
        }
    }
}

impl ChannelKind {
    /// Whether a subscription of this name may bring keyspace notifications.
    pub(crate) fn brings_events(self, name: &[u8]) -> bool {
        match self {
            ChannelKind::Channel => events::is_event(name),
            ChannelKind::Pattern => events::may_match(name),
            ChannelKind::Shard => false,
        }
    }
}

impl From<HubWait> for HubDone {
    fn from(wait: HubWait) -> HubDone {
        HubDone {
            session: wait.session,
            seq: wait.seq,
            effect: wait.effect,
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        for line in 0..self.lines.len() as u16 {
            self.handle_down(line);
        }
    }
}

/// Memory of a claim: its places in the session's set, in the channel's list of members and in the
/// request that waits. The tables may be half empty.
const CLAIM_BYTES: usize = 64;

/// Memory of a channel without its name: its places in two tables of the hub and in the subscriber
/// counts, the counts in front of the name, and the first members. The tables may be half empty.
const CHANNEL_BYTES: usize = 512;

const _: () = assert!(2 * (size_of::<Channel>() + 8 + 2 * 32) + 32 + 64 <= CHANNEL_BYTES);

/// Appends the confirmation of one channel.
fn confirm(
    out: &mut Vec<u8>,
    version: Version,
    kind: ChannelKind,
    on: bool,
    name: Option<&[u8]>,
    count: usize,
) {
    push(out, version, 3);
    encode::bulk(out, kind.verb(on).as_bytes());
    match name {
        Some(name) => encode::bulk(out, name),
        None => encode::null(out, version),
    }
    encode::integer(out, count as i64);
}

/// Appends the header of a push.
fn push(out: &mut Vec<u8>, version: Version, len: usize) {
    let start = out.len();
    encode::array(out, len);
    if version == Version::Resp3 {
        out[start] = b'>';
    }
}

/// The content of a server's push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Push<'a> {
    /// A message for the members of this channel.
    Message { kind: ChannelKind, name: &'a [u8] },
    /// A confirmation.
    Confirmed {
        kind: ChannelKind,
        on: bool,
        name: &'a [u8],
    },
    /// Any other push.
    Other,
}

impl<'a> Push<'a> {
    /// Whether a push is a keyspace notification. `None`: too little of it has come.
    pub(crate) fn is_event(frame: &[u8]) -> Option<bool> {
        let mut rest = line(frame)?.1;
        let word = bulk(&mut rest)??;
        let name = bulk(&mut rest)??;
        match word {
            b"pmessage" => Some(events::is_event(bulk(&mut rest)??)),
            _ => Some(word == b"message" && events::is_event(name)),
        }
    }

    /// Reads the kind and the channel of a push. `None`: these have not come whole.
    pub(crate) fn read(frame: &'a [u8]) -> Option<Push<'a>> {
        let mut rest = line(frame)?.1;
        let Some(word) = bulk(&mut rest)? else {
            return Some(Push::Other);
        };
        let content = match word {
            b"message" => (ChannelKind::Channel, None),
            b"pmessage" => (ChannelKind::Pattern, None),
            b"smessage" => (ChannelKind::Shard, None),
            _ => {
                let confirms = |kind: &ChannelKind| {
                    let mut on = [true, false].into_iter();
                    on.find(|on| kind.verb(*on).as_bytes() == word)
                };
                let found = ChannelKind::ALL
                    .iter()
                    .find_map(|kind| confirms(kind).map(|on| (*kind, Some(on))));
                match found {
                    Some(found) => found,
                    None => return Some(Push::Other),
                }
            }
        };
        let Some(name) = bulk(&mut rest)? else {
            return Some(Push::Other);
        };
        Some(match content {
            (kind, None) => Push::Message { kind, name },
            (kind, Some(on)) => Push::Confirmed { kind, on, name },
        })
    }
}

/// A line without its end, and the bytes behind it.
fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|&byte| byte == b'\n')?;
    Some((bytes[..end].strip_suffix(b"\r")?, &bytes[end + 1..]))
}

/// The bulk string in front. `Some(None)`: something else stands there.
fn bulk<'a>(rest: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let (header, behind) = line(rest)?;
    let Some(len) = header.strip_prefix(b"$").and_then(number::parse) else {
        return Some(None);
    };
    let Ok(len) = usize::try_from(len) else {
        return Some(None);
    };
    let text = behind.get(..len)?;
    *rest = behind.get(len + 2..)?;
    Some(Some(text))
}

#[cfg(test)]
mod tests;
