//! Subscribing and publishing: between sessions, the [`Hub`] of their pool and user, and its links.
//!
//! A request to subscribe or to unsubscribe waits until the session's earlier requests are
//! answered. Then the hub asks the server, and the reply is the confirmations of all its channels.
//! Pushes on a hub's link are read as on any link. A message goes to every member of its channel as
//! the server's own bytes; RESP2 and RESP3 differ in the first byte alone. A confirmation settles
//! the hub's request.
//!
//! In a Cluster, a sharded channel is on the line to the owner of its slot and follows the slot. If
//! a node refuses such a channel because it does not own the slot, or not now, no session sees the
//! refusal.
//!
//! The hub subscribes to channels and patterns with keyspace notifications at every owner of keys
//! of the pool (`hub/branches.rs`, `keyspace_events.rs`).

pub(crate) mod hub;
pub(crate) mod keyspace_events;
pub(crate) mod subscriber_counts;

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use respool_protocol::cluster::Refusal;
use respool_protocol::commands::{CommandId, id};
use respool_protocol::encode::{self, Version};
use respool_protocol::slot::hash_slot;
use respool_protocol::value::Value;

use crate::SubscriberCounts;
use crate::base::error::{self, Cause, Fate};
use crate::base::error_text::{CROSSSLOT, wrong_arity};
use crate::base::handle::{CONFIGURED, LinkId, SessionId};
use crate::base::limits::{LINK_UNUSED_MS, SUBSCRIBING_BYTES_MAX};
use crate::base::session_map::SessionMap;
use crate::base::settings::LostSubscriptions;
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::actions::Action;
use crate::data_plane::charges::{Charge, ChargeKind};
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::pubsub::ChannelKind;
use crate::data_plane::completion::pubsub::PubsubCompletion;
use crate::data_plane::ingress::{Dispatched, Request, bound_reply};
use crate::data_plane::ledger::{CommandMark, Entry};
use crate::data_plane::link::{HubId, LineId};
use crate::data_plane::link::{Link, LinkKind, LinkRole, LinkState, UNASKED};
use crate::data_plane::link_loss::LinkDown;
use crate::data_plane::session::{Flags, Session, Subscribed};
use crate::data_plane::session_state::Holds;
use crate::data_plane::slow_readers::DEFAULT_LANE;
use crate::pubsub::hub::{HOME, Hub, HubDone, HubLine, HubOutcome, Push, Subscriber};
use crate::pubsub::keyspace_events::brings_events;
use crate::routing::pool::{Group, Pool, ServerId};

/// The component between sessions that subscribe or publish, the hubs of a worker, and their links.
#[derive(Default)]
pub(crate) struct Pubsub {
    pub(crate) hubs: Vec<Hub>,
    /// Sessions that have a subscription, wait for one, or wait to leave.
    subscribers: SessionMap<Box<Subscriber>>,
    /// The subscribers of all workers beyond those that servers count.
    pub(crate) subscriber_counts: Arc<SubscriberCounts>,
    /// The buffer in which a message is put into the other version of the protocol.
    message: Vec<u8>,
    /// The members of the channel of a message, listed while it is delivered.
    members: Vec<SessionId>,
    /// The index in `members` of the member that gets the message next.
    next_member: usize,
    /// Bytes of messages that were delivered in this turn.
    pub(crate) fanned_out: usize,
}

/// The work that a push on a hub's link requires.
pub(crate) enum HubPush<'a> {
    /// A message for the listed members of its channel: see [`Pubsub::fan_out`].
    Message(Cow<'a, [u8]>),
    /// The push is handled.
    Done,
}

/// A server's refusal of a hub's request, because it does not own the slot, or not now.
pub(crate) struct HubRefusal {
    pub(crate) line: LineId,
    pub(crate) server: ServerId,
    pub(crate) slot: Option<u16>,
    pub(crate) refusal: Refusal,
}

/// Requests of sessions.
impl Pubsub {
    /// SUBSCRIBE, PSUBSCRIBE, SSUBSCRIBE (`on`) and the commands that undo them.
    /// `await_publishers`: the outcome if the session has to wait until the servers are known that
    /// publish to its channels: those of any node of a Cluster, and those of keyspace events.
    pub(crate) fn change_subscriptions(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        (kind, on): (ChannelKind, bool),
        await_publishers: impl FnOnce(&mut DataPlane, (bool, bool)) -> Option<Dispatched>,
    ) -> Dispatched {
        if plane.hold_until_caught_up(id) {
            return Dispatched::Wait;
        }
        if on {
            let brings = (kind != ChannelKind::Shard, brings_events(kind, request));
            if let Some(dispatched) = await_publishers(plane, brings) {
                return dispatched;
            }
        }
        let change = (kind, on);
        let Some(session) = plane.sessions.get_mut(id) else {
            return Dispatched::Done;
        };
        let version = session.version;
        let own = self.subscribers.remove(id);
        let subscriber = self.subscriber(plane, id, own);
        match self.give_to_hub(plane, id, request, change, version, subscriber) {
            Some(reply) => self.confirm_to(plane, id, None, &reply),
            // The session's later requests wait for the confirmation.
            None => plane.hold(id, Holds::CATCH_UP),
        }
        Dispatched::Done
    }

    /// The subscriptions of a session, in the hub of its pool and user. A session that listens
    /// keeps its hub, even if its user has changed since.
    fn subscriber(
        &mut self,
        plane: &DataPlane,
        id: SessionId,
        own: Option<Box<Subscriber>>,
    ) -> Box<Subscriber> {
        if let Some(own) = own
            && own.listens()
        {
            return own;
        }
        // The pool's default server, whichever server the session uses now: messages are published
        // there.
        let hub_of = |session: &Session| {
            let server = plane.pools.default_server_of(usize::from(session.pool));
            (session.pool, server, plane.kind_of(session).user)
        };
        let session = plane.sessions.get(id);
        let (pool, server, user) = session.map_or((0, ServerId(0), CONFIGURED), hub_of);
        Box::new(Subscriber::new(self.hub_for(pool, user, server, plane.now)))
    }

    /// The hub of a pool and user. A new one listens at `server`.
    fn hub_for(&mut self, pool: u16, user: u16, server: ServerId, now: Time) -> HubId {
        let mut hubs = self.hubs.iter();
        let found = hubs.position(|hub| (hub.pool, hub.user) == (pool, user));
        let index = found.unwrap_or_else(|| {
            let fresh = Hub::new((pool, server), user, self.subscriber_counts.clone(), now);
            // Users come and go, so the place of an unused hub is taken first.
            match self.hubs.iter().position(Hub::is_free) {
                Some(index) => {
                    self.hubs[index] = fresh;
                    index
                }
                None => {
                    self.hubs.push(fresh);
                    self.hubs.len() - 1
                }
            }
        });
        HubId(index as u16)
    }

    /// Gives the request to the hub. Returns the reply, or `None` if the server must answer first.
    fn give_to_hub(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        (kind, on): (ChannelKind, bool),
        version: Version,
        mut subscriber: Box<Subscriber>,
    ) -> Option<Vec<u8>> {
        let names = || request.args().skip(1);
        let line = self.line_for(plane, subscriber.hub, kind, request);
        let (line, refused) = match line {
            Ok(line) if on => {
                let of = (kind, line);
                let refused = self.prepare_subscription(plane, id, &subscriber, of, request);
                (line, refused)
            }
            Ok(line) => (line, None),
            Err(crossing) => (HOME, Some(crossing)),
        };
        let outcome = match refused {
            Some(reply) => HubOutcome::Reply(reply),
            None => {
                let now = plane.request_read_at();
                let seq = plane.sessions.get_mut(id)?.next_seq;
                let hub = self.hub(subscriber.hub);
                let place = (id, seq);
                if on {
                    let of = (kind, line);
                    hub.subscribe(place, &mut subscriber, of, names(), version, now)
                } else {
                    hub.unsubscribe(place, &mut subscriber, kind, names(), version, now)
                }
            }
        };
        let waits = outcome == HubOutcome::Waits;
        let stays = waits || subscriber.listens();
        report(plane, id, stays.then_some(&*subscriber));
        let session = plane.sessions.get_mut(id)?;
        if waits {
            session.take_seq();
        }
        if stays {
            self.subscribers.insert(id, subscriber);
        }
        plane.weigh(id);
        match outcome {
            HubOutcome::Reply(reply) => Some(reply),
            HubOutcome::Waits => None,
        }
    }

    /// The line for the channels of a request, or the error reply: the sharded channels of one
    /// request must be of one slot. The hub's pool decides. A session with WATCH may still be in
    /// the pool that the hub has left.
    fn line_for(
        &mut self,
        plane: &DataPlane,
        hub: HubId,
        kind: ChannelKind,
        request: &Request<'_>,
    ) -> Result<u16, Vec<u8>> {
        let pool = usize::from(self.hub(hub).pool);
        let have_places = plane.pools.first_of(pool).cluster().is_some();
        let mut slots = request.args().skip(1).map(hash_slot);
        let (ChannelKind::Shard, true, Some(slot)) = (kind, have_places, slots.next()) else {
            return Ok(HOME);
        };
        if !slots.all(|other| other == slot) {
            let mut crossing = Vec::new();
            encode::error(&mut crossing, CROSSSLOT);
            return Err(crossing);
        }
        let now = plane.now;
        let pool = plane.pools.subpools_of(pool)[0];
        let owner = plane.pools.server_of(Group { pool, number: slot });
        Ok(self.hub(hub).line_to(owner, now))
    }

    /// PING of a subscriber in RESP2. Its reply has the shape of a message, so the client can tell
    /// it from other replies.
    pub(crate) fn pong_in_subscription(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        if request.spans.len() > 2 {
            return plane.answer_error(id, &wrong_arity(request.command));
        }
        let argument = request.args().nth(1).unwrap_or_default();
        let mut reply = Vec::new();
        encode::array(&mut reply, 2);
        encode::bulk(&mut reply, b"pong");
        encode::bulk(&mut reply, argument);
        plane.answer_reply(id, &reply)
    }

    /// PUBLISH, SPUBLISH and PUBSUB NUMSUB. The server answers them by its count of connections,
    /// which respool corrects.
    pub(crate) fn dispatch_counted(
        &mut self,
        plane: &mut DataPlane,
        session_id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        let completion = self.count_completion(plane, session_id, request.id, request.arg(1));
        let completion = completion.map(Completion::Pubsub);
        let reads = matches!(request.id, id::PUBSUB_NUMSUB | id::PUBSUB_SHARDNUMSUB);
        // A sharded channel of a Cluster is not on the hub's first line.
        let is_elsewhere = request.id == id::SPUBLISH && plane.channels_have_places(session_id);
        let uses_hub_link = |session: &Session| session.listens() && !session.pins.bind();
        let session = plane.sessions.get(session_id);
        match session.is_some_and(uses_hub_link) && !reads && !is_elsewhere {
            true => self.publish_in_order(plane, session_id, request.bytes, completion),
            false => plane.dispatch_on_link(session_id, request.bytes, reads, completion),
        }
    }

    /// Sends the PUBLISH of a subscriber on the hub's link. So the subscriber gets its own message
    /// and the reply in the server's order: the message first up to Redis 7.0, the reply first
    /// since.
    fn publish_in_order(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        bytes: &[u8],
        completion: Option<Completion>,
    ) -> Dispatched {
        let Some(session) = plane.sessions.get(id) else {
            return Dispatched::Done;
        };
        let caught_up = session.is_caught_up();
        let subscriber = self.subscribers.get(id);
        let hub = subscriber.map(|own| &self.hubs[usize::from(own.hub.0)]);
        let own_user = plane.kind_of(session).user;
        // Its current user decides which channels it may publish to.
        let link = match hub {
            Some(hub) if hub.user == own_user => hub.lines[usize::from(HOME)].link,
            _ => LinkId::NONE,
        };
        if !plane.links.get(link).is_some_and(Link::is_up) {
            return plane.dispatch_on_link(id, bytes, false, completion);
        }
        if caught_up {
            plane.put_on(link, id, bytes, completion.unwrap_or(Completion::Pass));
        }
        // It waits for the earlier requests, and the later ones wait for it: they use another link.
        plane.hold(id, Holds::CATCH_UP);
        match caught_up {
            true => Dispatched::Done,
            false => Dispatched::Wait,
        }
    }
}

/// Pushes and replies of servers.
impl Pubsub {
    /// Handles a push on a hub's link.
    pub(crate) fn handle_push<'a>(
        &mut self,
        plane: &mut DataPlane,
        id: LinkId,
        LineId { hub, line }: LineId,
        push: &'a [u8],
    ) -> HubPush<'a> {
        match Push::read(push) {
            Some(Push::Message { kind, name }) if self.hub(hub).strips(line) => {
                let whole = self.hub(hub).with_prefix(line, (kind, name), push);
                let Some((name, push)) = whole else {
                    return HubPush::Done;
                };
                self.begin_fan_out(plane, LineId { hub, line }, (kind, &name), &push);
                HubPush::Message(Cow::Owned(push))
            }
            Some(Push::Message { kind, name }) => {
                self.begin_fan_out(plane, LineId { hub, line }, (kind, name), push);
                HubPush::Message(Cow::Borrowed(push))
            }
            Some(Push::Confirmed {
                kind: ChannelKind::Shard,
                on: false,
                name,
            }) if line != HOME => {
                if let Some(link) = plane.links.get_mut(id)
                    && let Some(Completion::Pubsub(PubsubCompletion::Leave { has_left })) =
                        link.ledger.front_completion_mut()
                {
                    *has_left = true;
                }
                self.hub(hub).handle_dropped(line, name);
                HubPush::Done
            }
            Some(Push::Confirmed { kind, on, name }) => {
                let is_asked = self.take_hub_request(plane, id);
                let confirmed = self.hub(hub).handle_confirmed(line, (kind, on), name);
                match is_asked && confirmed.is_ok() {
                    true => self.settle_subscriptions(plane, LineId { hub, line }),
                    false => plane.lose_link(
                        id,
                        "it confirmed a subscription that respool did not ask for",
                    ),
                }
                HubPush::Done
            }
            Some(Push::Other) | None => HubPush::Done,
        }
    }

    /// Handles the reply to a request. Returns the refusal of a slot, which the hub handles after
    /// the topology has followed it.
    pub(crate) fn settle(
        &mut self,
        plane: &mut DataPlane,
        (link, entry): (LinkId, Entry),
        completion: PubsubCompletion,
        reply: &[u8],
    ) -> Option<HubRefusal> {
        match completion {
            PubsubCompletion::HubRequest => {
                let refused = self.hub_refusal(plane, link, reply);
                if refused.is_none() {
                    self.settle_hub_request(plane, link, reply);
                }
                return refused;
            }
            PubsubCompletion::Leave { .. } => self.settle_left(plane, link),
            PubsubCompletion::Receivers(_) | PubsubCompletion::Subscribers(_) => {
                let server = plane.links.get(link).map(|link| link.kind.server);
                let reply = match server.map(|server| plane.pool_of(server).parent) {
                    Some(pool) => self.recount(pool, &completion, reply),
                    None => reply.to_vec(),
                };
                plane.deliver_to(entry, &reply);
            }
        }
        None
    }

    /// Reads the reply to a hub's request. `None`: it is no refusal of a slot.
    fn hub_refusal(&mut self, plane: &DataPlane, link: LinkId, reply: &[u8]) -> Option<HubRefusal> {
        let Some(LinkRole::HubLine(line)) = plane.links.get(link).map(|link| link.role) else {
            return None;
        };
        let refusal = reply.strip_prefix(b"-").and_then(Refusal::of);
        let refusal = refusal.filter(|_| line.line != HOME)?;
        Some(HubRefusal {
            line,
            server: self.line(line).server,
            slot: self.hub(line.hub).front_slot(line.line),
            refusal,
        })
    }

    /// Asks again for a channel after the server has refused its slot. `has_no_owner`: the request
    /// fails instead.
    pub(crate) fn defer_hub_request(
        &mut self,
        plane: &mut DataPlane,
        (link, id): (LinkId, LineId),
        has_no_owner: bool,
        reply: &[u8],
    ) {
        let error = has_no_owner.then_some(reply);
        match self.hub(id.hub).handle_deferred(id.line, error) {
            Ok(()) => self.settle_subscriptions(plane, id),
            Err(_) => plane.lose_link(link, UNASKED),
        }
    }

    /// Handles the reply to a hub's request: a PONG or an error. Its entry has left the ledger.
    fn settle_hub_request(&mut self, plane: &mut DataPlane, link: LinkId, reply: &[u8]) {
        let Some(LinkRole::HubLine(line)) = plane.links.get(link).map(|link| link.role) else {
            return;
        };
        let hub = self.hub(line.hub);
        let settled = match reply.starts_with(b"-") {
            true => hub.handle_refused(line.line, reply),
            false => hub.handle_pong(line.line).map(|()| Vec::new()),
        };
        let Ok(left_behind) = settled else {
            return plane.lose_link(link, UNASKED);
        };
        for member in left_behind {
            let why = String::from_utf8_lossy(reply).trim_end().to_owned();
            let reason = format!("the server refuses its subscription now: {why}");
            plane.close_for(member, reason);
        }
        self.settle_subscriptions(plane, line);
    }

    /// Handles the reply to the PING behind an unsubscribe request: it confirms the request.
    fn settle_left(&mut self, plane: &mut DataPlane, link: LinkId) {
        let Some(LinkRole::HubLine(line)) = plane.links.get(link).map(|link| link.role) else {
            return;
        };
        match self.hub(line.hub).handle_pong(line.line) {
            Ok(()) => self.settle_subscriptions(plane, line),
            Err(_) => plane.lose_link(link, UNASKED),
        }
    }
}

/// Messages.
impl Pubsub {
    /// Lists the members of a message's channel.
    fn begin_fan_out(
        &mut self,
        plane: &mut DataPlane,
        LineId { hub, line }: LineId,
        channel: (ChannelKind, &[u8]),
        message: &[u8],
    ) {
        plane.counters.messages_in += 1;
        let is_event = || Push::is_event(message).unwrap_or(false);
        // The channel's own list may change meanwhile: a message can push a session with slow reads
        // over its bound, which closes it.
        self.members.clear();
        self.next_member = 0;
        let hub = &self.hubs[usize::from(hub.0)];
        let receivers = hub.receivers(line, channel, is_event);
        self.members.extend_from_slice(receivers);
        self.message.clear();
    }

    /// Gives a message to the listed members, until all have it or memory is above its bound.
    /// Returns whether all have it.
    pub(crate) fn fan_out(&mut self, plane: &mut DataPlane, message: &[u8]) -> bool {
        while let Some(&member) = self.members.get(self.next_member) {
            self.next_member += 1;
            let Some(session) = plane.sessions.get(member) else {
                continue;
            };
            if session.state.is_ending() {
                // A session that closes gets its outstanding replies alone. Messages would keep it
                // for ever.
                continue;
            }
            let bytes = match session.version {
                Version::Resp3 => message,
                Version::Resp2 => {
                    // One copy serves all sessions of the other protocol version.
                    if self.message.is_empty() {
                        self.message.extend_from_slice(message);
                        self.message[0] = b'*';
                    }
                    &self.message
                }
            };
            plane.counters.messages_out += 1;
            self.fanned_out += bytes.len();
            plane.push_to(member, bytes);
            if plane.memory.is_above_bound(plane.held_bytes) {
                return false;
            }
        }
        self.message.shrink_to(MESSAGE_BYTES_KEPT);
        true
    }

    /// Postpones the rest of a hub's bytes if enough messages were delivered in this turn. Returns
    /// whether it did. The sessions' outputs are written first, so a burst of messages
    /// takes no more memory than its slow readers account for.
    pub(crate) fn postpone(&mut self, plane: &mut DataPlane, id: LinkId, rest: &[u8]) -> bool {
        let links_bytes_max = plane.links_bytes_read_max();
        let bytes_max = FAN_OUT_BYTES_MAX.min(links_bytes_max.max(MESSAGE_BYTES_KEPT));
        if self.fanned_out < bytes_max || rest.is_empty() {
            return false;
        }
        let Some(LinkRole::HubLine(line)) = plane.links.get(id).map(|link| link.role) else {
            return false;
        };
        self.line(line).postponed = rest.to_vec();
        plane.push_action(Action::ReadLink(id, false));
        true
    }

    /// Takes the bytes of a line that were postponed in the last turn, with its link.
    pub(crate) fn take_postponed(
        &mut self,
        plane: &mut DataPlane,
        id: LineId,
    ) -> Option<(LinkId, Vec<u8>)> {
        let line = self.line(id);
        if line.postponed.is_empty() {
            return None;
        }
        let (link_id, bytes) = (line.link, std::mem::take(&mut line.postponed));
        let link = plane.links.get_mut(link_id)?;
        link.progress = plane.now;
        plane.push_action(Action::ReadLink(link_id, true));
        Some((link_id, bytes))
    }
}

/// Hubs and their links.
impl Pubsub {
    pub(crate) fn hub_ids(&self) -> impl Iterator<Item = HubId> + use<> {
        (0..self.hubs.len() as u16).map(HubId)
    }

    /// Messages of a pool are published at another server now.
    pub(crate) fn move_hubs(&mut self, plane: &mut DataPlane, from: ServerId, to: ServerId) {
        for hub in self.hub_ids() {
            if self.hub(hub).line(HOME).server == from {
                self.move_hub(plane, hub, to);
            }
        }
    }

    /// Moves hubs to the pools that a reload has put in place of theirs, once sessions move there.
    /// Where the loss of a server closes subscribers, the end of its pool does so too.
    pub(crate) fn follow_pool_ends(&mut self, plane: &mut DataPlane) {
        if plane.ending.is_empty() || plane.settings.lost_subscriptions != LostSubscriptions::Keep {
            return;
        }
        for id in self.hub_ids() {
            let hub = self.hub(id);
            let (pool, home) = (hub.pool, hub.line(HOME).link);
            // A loss that is not handled yet still names the old server.
            if !plane.is_link_lost(home)
                && let Some(successor) = plane.successor_in_use(pool)
            {
                self.move_hub_to_pool(plane, id, successor);
            }
        }
    }

    fn move_hub_to_pool(&mut self, plane: &mut DataPlane, id: HubId, pool: u16) {
        self.hub(id).enter_pool(pool);
        self.close_home(plane, id);
        let first = plane.pools.subpools_of(usize::from(pool))[0];
        let home = plane.pools.default_server_of(usize::from(pool));
        // Sharded channels are at the home, unless slots have owners.
        if plane.pools[usize::from(first)].cluster().is_none() {
            self.move_hub(plane, id, home);
            for (channel, _) in self.hub(id).sharded_channels() {
                self.hub(id).move_to(channel, HOME);
            }
        } else {
            for (channel, number) in self.hub(id).sharded_channels() {
                let owner = plane.pools.server_of(Group {
                    pool: first,
                    number,
                });
                let line = self.hub(id).line_to(owner, plane.now);
                self.link_line(plane, LineId { hub: id, line });
                self.hub(id).move_to(channel, line);
            }
            self.move_hub(plane, id, home);
        }
        let home = LineId {
            hub: id,
            line: HOME,
        };
        if !self.line(home).is_unused() {
            self.link_line(plane, home);
        }
        self.hub(id).ask_again();
    }

    /// Closes the link of a hub's home, unless the hub listens there.
    fn close_home(&mut self, plane: &mut DataPlane, hub: HubId) {
        let home = LineId { hub, line: HOME };
        let line = self.line(home);
        let (link, is_used) = (line.link, !line.is_unused());
        let Some(state) = plane.links.get(link) else {
            return;
        };
        if !(is_used && state.is_up()) {
            self.line(home).link = LinkId::NONE;
            self.hub_down(plane, home);
            plane.close_link(link);
        }
    }

    /// Moves a hub to another server. If it listens at the old one, it listens there until the new
    /// one has confirmed.
    fn move_hub(&mut self, plane: &mut DataPlane, hub: HubId, to: ServerId) {
        let now = plane.now;
        let line = self.hub(hub).line(HOME);
        let (id, is_used) = (line.link, !line.is_unused());
        self.hub(hub).unsettle();
        match plane.links.get_mut(id) {
            Some(link) if is_used && link.is_up() => {
                let line = self.hub(hub).move_home(to, now);
                link.role = LinkRole::HubLine(LineId { hub, line });
                self.link_line(plane, LineId { hub, line: HOME });
            }
            Some(link) => {
                link.kind.server = to;
                self.hub(hub).line(HOME).server = to;
                plane.lose_link(id, "messages are published at another server now");
            }
            None => self.hub(hub).line(HOME).server = to,
        }
    }

    /// Puts the requests of hubs on links, once per turn: the requests of all sessions in one turn
    /// leave as one batch.
    pub(crate) fn send_hub_requests(&mut self, plane: &mut DataPlane) {
        self.follow_channels(plane);
        for hub in self.hub_ids() {
            for line in 0..self.hub(hub).lines.len() as u16 {
                self.ask_line(plane, LineId { hub, line });
            }
        }
    }
}

/// Bytes of messages delivered in one turn after which the rest waits for the next turn.
const FAN_OUT_BYTES_MAX: usize = 16 << 20;

/// Tells the data plane the facts about a subscriber. Call it after each change.
fn report(plane: &mut DataPlane, id: SessionId, subscriber: Option<&Subscriber>) {
    let Some(session) = plane.sessions.get_mut(id) else {
        return;
    };
    if session.rare.is_none() && subscriber.is_none() {
        return;
    }
    session.rare().subscribed = subscriber.map_or_else(Subscribed::default, |own| Subscribed {
        counts: own.counts(),
        named: own.named_bytes(),
    });
    let charge = subscriber.map_or_else(Charge::default, |own| Charge {
        counted: own.held_bytes(),
        memory: own.held_bytes() + own.slack_bytes(),
    });
    plane.charge(id, ChargeKind::Subscriptions, charge);
}

/// The memory that the message buffer keeps between two messages.
const MESSAGE_BYTES_KEPT: usize = 64 << 10;

/// Sessions, counts and lookups.
impl Pubsub {
    /// Limits the commands of a subscriber in RESP2, where replies and messages look alike.
    pub(crate) fn restrict(&mut self, plane: &mut DataPlane, id: SessionId) {
        let Some(session) = plane.sessions.get_mut(id) else {
            return;
        };
        if session.version == Version::Resp2 && session.listens() {
            session.state |= Flags::RESTRICTED;
        } else {
            session.state.remove(Flags::RESTRICTED);
        }
    }

    /// Ends all subscriptions of a session that closes or is reset.
    pub(crate) fn leave_all(&mut self, plane: &mut DataPlane, id: SessionId) {
        if plane.sessions.get(id).is_none() {
            return;
        }
        self.forget_session(id);
        report(plane, id, None);
        self.restrict(plane, id);
    }

    /// The servers that hubs need.
    pub(crate) fn servers_needed(&self) -> HashSet<ServerId> {
        self.hubs.iter().flat_map(Hub::servers_needed).collect()
    }

    /// Memory of the table by session, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.subscribers.table_bytes()
    }

    /// Ends all subscriptions of a session that is closed or reset.
    pub(crate) fn forget_session(&mut self, id: SessionId) {
        if let Some(mut gone) = self.subscribers.remove(id) {
            self.hub(gone.hub).forget(id, &mut gone);
        }
    }

    /// The completion that corrects the count in the reply to PUBLISH, SPUBLISH or PUBSUB NUMSUB.
    /// `channel` is the request's first argument. `None`: the server's count is right, because
    /// every subscriber has its own connection there.
    pub(crate) fn count_completion(
        &self,
        plane: &DataPlane,
        session_id: SessionId,
        id: CommandId,
        channel: &[u8],
    ) -> Option<PubsubCompletion> {
        if self.subscriber_counts.is_empty() {
            return None;
        }
        let pool = plane.sessions.get(session_id)?.pool;
        let receivers = |kind| match self.subscriber_counts.receivers(pool, kind, channel) {
            0 => None,
            excess => Some(PubsubCompletion::Receivers(excess)),
        };
        match id {
            id::PUBLISH => receivers(ChannelKind::Channel),
            id::SPUBLISH => receivers(ChannelKind::Shard),
            id::PUBSUB_NUMSUB => Some(PubsubCompletion::Subscribers(ChannelKind::Channel)),
            id::PUBSUB_SHARDNUMSUB => Some(PubsubCompletion::Subscribers(ChannelKind::Shard)),
            _ => None,
        }
    }

    /// Takes the entry of a hub's request off the ledger, because its confirmation has come as a
    /// push. Returns whether the first entry is such a request.
    fn take_hub_request(&mut self, plane: &mut DataPlane, id: LinkId) -> bool {
        let Some(link) = plane.links.get_mut(id) else {
            return false;
        };
        let Some(entry) = link.ledger.first_in_flight() else {
            return false;
        };
        if !matches!(
            link.ledger.front_completion(),
            Some(Completion::Pubsub(PubsubCompletion::HubRequest))
        ) {
            return false;
        }
        link.ledger.pop_completed(entry);
        plane.counters.link_replies += 1;
        true
    }

    /// The time at which the next turn must be taken without an event.
    pub(crate) fn deadline(&self, now: Time) -> Option<Time> {
        self.has_postponed_pushes().then_some(now)
    }

    /// Whether pushes of a line were postponed.
    pub(crate) fn has_postponed_pushes(&self) -> bool {
        let mut lines = self.hubs.iter().flat_map(|hub| &hub.lines);
        lines.any(|line| !line.postponed.is_empty())
    }

    /// Corrects the counts of a result within EXEC. It belongs to a command that names a channel.
    pub(crate) fn recount_in_exec(
        &self,
        plane: &DataPlane,
        id: SessionId,
        (command, channel): (CommandId, &[u8]),
        result: &[u8],
    ) -> Vec<u8> {
        let pool = plane.sessions.get(id).map(|session| session.pool);
        let completion = self.count_completion(plane, id, command, channel);
        match completion.zip(pool) {
            Some((completion, pool)) => self.recount(pool, &completion, result),
            None => result.to_vec(),
        }
    }

    /// Corrects the counts of the subscribers of sharded channels, in the reply of all servers.
    pub(crate) fn recount_shards(&self, plane: &DataPlane, id: SessionId, reply: &[u8]) -> Vec<u8> {
        let completion = PubsubCompletion::Subscribers(ChannelKind::Shard);
        match plane.sessions.get(id).map(|session| session.pool) {
            Some(pool) => self.recount(pool, &completion, reply),
            None => reply.to_vec(),
        }
    }

    /// Corrects the counts of a reply: the server counts connections, and one of respool's stands
    /// for many clients.
    fn recount(&self, pool: u16, completion: &PubsubCompletion, reply: &[u8]) -> Vec<u8> {
        let mut recounted = Vec::new();
        let total = |count: i64, excess: i64| count.saturating_add(excess).max(0);
        match (completion, Value::read(reply)) {
            (PubsubCompletion::Receivers(excess), Some(Value::Integer(count))) => {
                encode::integer(&mut recounted, total(count, *excess));
            }
            (PubsubCompletion::Subscribers(kind), Some(Value::List(values))) => {
                encode::array(&mut recounted, values.len());
                let (pairs, _) = values.as_chunks();
                for [channel, count] in pairs {
                    let (Some(name), Value::Integer(count)) = (channel.text(), count) else {
                        continue;
                    };
                    let excess = self.subscriber_counts.subscribers(pool, *kind, name);
                    encode::bulk(&mut recounted, name);
                    encode::integer(&mut recounted, total(*count, excess));
                }
            }
            _ => recounted.extend_from_slice(reply),
        }
        recounted
    }

    pub(crate) fn hub(&mut self, id: HubId) -> &mut Hub {
        &mut self.hubs[usize::from(id.0)]
    }

    pub(crate) fn line(&mut self, id: LineId) -> &mut HubLine {
        self.hub(id.hub).line(id.line)
    }

    /// The users of subscriptions.
    pub(crate) fn users(&self) -> Vec<u16> {
        self.hubs.iter().map(|hub| hub.user).collect()
    }

    /// The lines of all hubs.
    pub(crate) fn lines(&self) -> impl Iterator<Item = LineId> + use<> {
        let counts: Vec<usize> = self.hubs.iter().map(|hub| hub.lines.len()).collect();
        let of_hub = |(hub, count)| {
            let hub = HubId(hub as u16);
            (0..count as u16).map(move |line| LineId { hub, line })
        };
        counts.into_iter().enumerate().flat_map(of_hub)
    }

    /// The number of subscriptions of this worker's sessions. A channel counts once for each
    /// session.
    pub(crate) fn subscriptions(&self) -> usize {
        self.hubs.iter().map(Hub::claims).sum()
    }

    /// Tells the hub of a link that the link is up.
    pub(crate) fn hub_up(&mut self, plane: &mut DataPlane, link_id: LinkId) {
        if let Some(LinkRole::HubLine(line)) = plane.links.get(link_id).map(|link| link.role) {
            self.hub(line.hub).handle_up(line.line);
        }
    }

    /// Puts the requests of a line on its link, up to a bound of unanswered bytes.
    fn ask_line(&mut self, plane: &mut DataPlane, LineId { hub, line }: LineId) {
        let hub = &mut self.hubs[usize::from(hub.0)];
        if !hub.line(line).has_requests() {
            return;
        }
        let id = hub.line(line).link;
        let Some(link) = plane.links.get_mut(id) else {
            unreachable!("a line that is connected has a link");
        };
        let mut bytes = std::mem::take(&mut plane.scratch);
        while link.ledger.unanswered_bytes() < SUBSCRIBING_BYTES_MAX
            && let Some(request) = hub.poll_request(line)
        {
            bytes.clear();
            hub.write_request(line, &request, &mut bytes);
            let completion = match request.ends_with_ping(line) {
                true => Completion::Pubsub(PubsubCompletion::Leave { has_left: false }),
                false => Completion::Pubsub(PubsubCompletion::HubRequest),
            };
            let entry = Entry {
                len: bytes.len() as u32,
                ..Entry::of(SessionId::NONE, 0, plane.now_stamp).with_completion(true)
            };
            link.ledger.push_with(entry, &bytes, completion);
            plane.counters.link_requests += 1;
        }
        plane.scratch = bytes;
        plane.list_link(id);
    }
}

/// Subscriptions, links and deadlines.
impl Pubsub {
    /// The error reply to a session that may not subscribe now. `None`: it may, and its line has a
    /// link.
    fn prepare_subscription(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        subscriber: &Subscriber,
        (kind, line): (ChannelKind, u16),
        request: &Request<'_>,
    ) -> Option<Vec<u8>> {
        let limits = &plane.settings.limits;
        let (of_session, of_worker) = (
            limits.session_subscriptions_max as usize,
            limits.worker_subscriptions_max as usize,
        );
        let hub = self.hub(subscriber.hub);
        let user = hub.user;
        let added = hub.count_new(subscriber, kind, request.args().skip(1));
        let have: usize = subscriber.counts().iter().sum();
        if have + added > of_session {
            return Some(bound_reply("session-subscriptions-max"));
        }
        if self.subscriptions() + added > of_worker {
            return Some(bound_reply("worker-subscriptions-max"));
        }
        if plane
            .memory
            .is_above_bound(plane.held_bytes + request.bytes.len())
        {
            return Some(bound_reply("worker-memory-bytes-max"));
        }
        if plane.kind_of(plane.sessions.get(id)?).user != user {
            let text = b"ERR respool: to subscribe as another user, leave all channels first";
            let mut reply = Vec::new();
            encode::error(&mut reply, text);
            return Some(reply);
        }
        let line = LineId {
            hub: subscriber.hub,
            line,
        };
        let has_room = self.link_line(plane, line)
            && (!brings_events(kind, request) || self.follow_event_servers(plane, subscriber.hub));
        (!has_room).then(|| bound_reply("links-max"))
    }

    /// Gives a line a link if it has none. `false`: there is no room for one.
    pub(crate) fn link_line(&mut self, plane: &mut DataPlane, id: LineId) -> bool {
        let user = self.hub(id.hub).user;
        let line = self.line(id);
        let (server, link) = (line.server, line.link);
        if plane.links.get(link).is_some() {
            return true;
        }
        let kind = LinkKind {
            server,
            version: Version::Resp3,
            db: 0,
            user,
            lane: DEFAULT_LANE,
        };
        let Some(link) = plane.add_link(kind, LinkRole::HubLine(id)) else {
            return false;
        };
        self.line(id).link = link;
        plane.connect(link);
        true
    }

    /// Delivers a confirmation at its place in the session's reply order. Like a message, it goes
    /// out even if replies are switched off.
    fn confirm_to(&mut self, plane: &mut DataPlane, id: SessionId, seq: Option<u32>, reply: &[u8]) {
        self.restrict(plane, id);
        let Some(session) = plane.sessions.get_mut(id) else {
            return;
        };
        let seq = seq.unwrap_or_else(|| session.take_seq());
        plane.counters.requests_answered_locally += 1;
        plane.note_if_own_error(id, CommandMark::OTHER, reply);
        plane.deliver(id, seq, 1, reply);
    }

    /// Handles the beginning of a message that is larger than a session's output may be. No session
    /// gets it. Its receivers are closed, so that none goes on as if it had missed no message.
    pub(crate) fn refuse_message(
        &mut self,
        plane: &mut DataPlane,
        LineId { hub, line }: LineId,
        beginning: &[u8],
    ) {
        plane.counters.messages_in += 1;
        let Some(Push::Message { kind, name }) = Push::read(beginning) else {
            return;
        };
        let is_event = || Push::is_event(beginning).unwrap_or(true);
        let hub = self.hub(hub);
        let name = match hub.strips(line) {
            true => hub.name_with_prefix(line, (kind, name), beginning),
            false => Some(name.into()),
        };
        let Some(name) = name else {
            return;
        };
        let receivers = hub.receivers(line, (kind, &name), is_event).to_vec();
        for member in receivers {
            let reason = "session-output-hard-bytes: a message is larger";
            plane.close_for(member, reason.to_owned());
        }
    }

    /// Settles the subscribe and unsubscribe requests of a line that are done.
    fn settle_subscriptions(&mut self, plane: &mut DataPlane, LineId { hub, line }: LineId) {
        while let Some(done) = self.hub(hub).poll_done(line) {
            self.settle_subscription(plane, hub, done, None);
        }
    }

    /// Settles one request that is done. `error`: the reply if it did not subscribe.
    fn settle_subscription(
        &mut self,
        plane: &mut DataPlane,
        hub: HubId,
        done: HubDone,
        error: Option<Vec<u8>>,
    ) {
        let (id, seq) = (done.session, done.seq);
        let Some(session) = plane.session_or_closed(id) else {
            unreachable!("the hub forgets a session before the engine does");
        };
        let version = session.version;
        let Some(mut subscriber) = self.subscribers.remove(id) else {
            unreachable!("a session with a request in a hub is in the list of subscribers");
        };
        let hub = self.hub(hub);
        let reply = match error {
            Some(error) => hub.fail(done, &mut subscriber, || error),
            None => hub.settle(done, &mut subscriber, version),
        };
        let stays = subscriber.listens() || reply.is_none();
        report(plane, id, stays.then_some(&*subscriber));
        if stays {
            self.subscribers.insert(id, subscriber);
        }
        plane.weigh(id);
        if let Some(reply) = reply {
            self.confirm_to(plane, id, Some(seq), &reply);
        }
    }

    /// A hub's link is lost.
    pub(crate) fn link_down(&mut self, plane: &mut DataPlane, down: &LinkDown) {
        let LinkRole::HubLine(line) = down.role else {
            return;
        };
        // The hub forgets its questions before the link may take new ones.
        if down.was_up {
            self.lose_subscriptions(plane, line, &down.label);
        }
        self.hub_down(plane, line);
    }

    /// Closes the subscribers of a lost hub link, because they may have missed messages.
    fn lose_subscriptions(&mut self, plane: &mut DataPlane, id: LineId, server: &str) {
        if plane.settings.lost_subscriptions == LostSubscriptions::Keep {
            return;
        }
        for session in self.hub(id.hub).listeners(id.line) {
            let reason = format!("lost-subscriptions: the connection to {server} was lost");
            plane.close_for(session, reason);
        }
    }

    /// Tells a hub that its link is lost or could not be established.
    fn hub_down(&mut self, plane: &mut DataPlane, id: LineId) {
        self.hub(id.hub).handle_down(id.line);
        self.settle_subscriptions(plane, id);
    }

    /// Handles the deadlines of hubs.
    pub(crate) fn tick_hubs(&mut self, plane: &mut DataPlane) {
        for index in 0..self.hubs.len() {
            self.tick_waits(plane, HubId(index as u16));
            self.hubs[index].end_delay();
        }
        let (now, stall_ms) = (plane.now, plane.settings.timeouts.link_stall_ms);
        for id in self.lines() {
            let hub = &mut self.hubs[usize::from(id.hub.0)];
            let line = hub.line(id.line);
            let link_id = line.link;
            let Some(link) = plane.links.get(link_id) else {
                if !line.is_unused() {
                    // There was no room for a link when a channel moved to this line.
                    self.link_line(plane, id);
                }
                continue;
            };
            if !line.is_unused() {
                line.unused_since = now;
                // A line that only listens would not notice that its server is gone.
                if link.is_quiet(now, stall_ms / 2) {
                    line.ask_for_life();
                }
            } else if now.since_ms(line.unused_since) >= u64::from(LINK_UNUSED_MS) {
                line.link = LinkId::NONE;
                hub.handle_down(id.line);
                plane.close_link(link_id);
            }
        }
    }

    /// Moves channels to the present owners of their slots, and asks again for channels that were
    /// refused for now.
    fn follow_channels(&mut self, plane: &mut DataPlane) {
        let is_news = |pool: &Pool| pool.cluster().is_some_and(|cluster| cluster.has_moved);
        let has_news = plane.pools.iter().any(is_news);
        if !has_news
            && !self
                .hubs
                .iter()
                .any(|hub| hub.is_stalled() || hub.is_unsettled())
        {
            return;
        }
        for index in 0..self.hubs.len() {
            let hub = &self.hubs[index];
            let subpools = plane.pools.subpools_of(usize::from(hub.pool)).iter();
            let mut moved = subpools.map(|subpool| is_news(&plane.pools[usize::from(*subpool)]));
            // Sharded channels are in the first subpool.
            let (first, others) = (moved.next() == Some(true), moved.any(|moved| moved));
            let (has_roots, is_unsettled) = (hub.has_roots(), hub.is_unsettled());
            if has_roots && (first || others || is_unsettled) {
                self.follow_event_servers(plane, HubId(index as u16));
            } else if is_unsettled {
                self.update_event_servers(plane, HubId(index as u16));
            }
            if first {
                self.follow_slots(plane, index);
            }
            if first || others || self.hubs[index].is_stalled() {
                self.hubs[index].ask_again();
            }
        }
        for pool in 0..plane.pools.len() {
            if let Some(cluster) = plane.pools[pool].cluster_mut() {
                cluster.has_moved = false;
            }
        }
    }

    /// Moves sharded channels to the owners of their slots.
    fn follow_slots(&mut self, plane: &mut DataPlane, index: usize) {
        let hub = &self.hubs[index];
        let pool = plane.pools.subpools_of(usize::from(hub.pool))[0];
        let owner = |number| plane.pools.server_of(Group { pool, number });
        for (channel, owner) in hub.channels_on_wrong_line(owner) {
            let line = self.hubs[index].line_to(owner, plane.now);
            let hub = HubId(index as u16);
            self.link_line(plane, LineId { hub, line });
            self.hubs[index].move_to(channel, line);
        }
    }

    /// Ends the requests that have waited too long for a confirmation: they get an error, and their
    /// sessions are not subscribed.
    fn tick_waits(&mut self, plane: &mut DataPlane, hub: HubId) {
        let limit_ms = plane.settings.timeouts.request_ms;
        if limit_ms == 0 {
            return;
        }
        let now = plane.now;
        while let Some((line, done)) = self.hub(hub).poll_late(now, limit_ms) {
            plane.counters.requests_timed_out += 1;
            plane.counters.failed_not_sent += 1;
            plane.deadlines.count(done.session);
            let away =
                plane.server_down_error_of(Entry::of(done.session, done.seq, plane.now_stamp));
            let line = self.hub(hub).line(line);
            let (server, link) = (line.server, line.link);
            let server_label = &plane.server(server).label;
            let cause = match plane.links.get(link) {
                Some(link) if !matches!(link.state, LinkState::Up) => Cause::NoLink {
                    server: server_label,
                    reason: &link.reason,
                },
                _ => Cause::Deadline {
                    server: server_label,
                    limit_ms,
                },
            };
            let mut error = Vec::new();
            error::append_reply_as(&mut error, Fate::NotSent, away, cause);
            self.settle_subscription(plane, hub, done, Some(error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A count gains the subscribers that share one connection, and is never negative.
    #[test]
    fn counts_gain_the_subscribers_of_one_connection() {
        let pubsub = Pubsub::default();
        let name: Arc<[u8]> = b"news"[..].into();
        let counts = &pubsub.subscriber_counts;
        counts.add(7, ChannelKind::Channel, &name, 2);
        let receivers = |excess, reply: &[u8]| {
            let recounted = pubsub.recount(7, &PubsubCompletion::Receivers(excess), reply);
            String::from_utf8(recounted).expect("it is text")
        };
        assert_eq!(receivers(2, b":1\r\n"), ":3\r\n");
        assert_eq!(receivers(-2, b":1\r\n"), ":0\r\n");
        assert_eq!(receivers(2, b"-NOPERM no\r\n"), "-NOPERM no\r\n");
        let subscribers = PubsubCompletion::Subscribers(ChannelKind::Channel);
        let reply = b"*4\r\n$4\r\nnews\r\n:1\r\n$5\r\nother\r\n:1\r\n";
        assert_eq!(
            pubsub.recount(7, &subscribers, reply),
            b"*4\r\n$4\r\nnews\r\n:3\r\n$5\r\nother\r\n:1\r\n"
        );
        assert_eq!(pubsub.recount(6, &subscribers, reply), reply);
    }

    /// Each pool and user has one hub. A hub that is not used gives its place to the next one.
    #[test]
    fn unused_hub_gives_its_place_to_the_next_one() {
        let mut pubsub = Pubsub::default();
        let mut hub = |pool, user| pubsub.hub_for(pool, user, ServerId(0), Time(0));
        let first = hub(0, 1);
        assert_eq!(hub(0, 1), first);
        assert_eq!(hub(0, 2), first, "no session listens in it");
        assert_eq!(pubsub.hub_ids().count(), 1);
        let mut subscriber = Subscriber::new(first);
        let place = (SessionId::NONE, 0);
        let names = [b"news".as_slice()].into_iter();
        let of = (ChannelKind::Channel, HOME);
        let hub = pubsub.hub(first);
        hub.subscribe(place, &mut subscriber, of, names, Version::Resp2, Time(0));
        let other = pubsub.hub_for(0, 3, ServerId(0), Time(0));
        assert_ne!(other, first);
        assert_eq!(pubsub.hub_ids().collect::<Vec<_>>(), [first, other]);
    }
}
