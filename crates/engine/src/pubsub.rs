//! Subscribing and publishing: between sessions, the [`Hub`] of their server, and its link.
//!
//! A request to subscribe or to leave waits until everything before it is answered, then for the
//! server, by way of the hub; its reply is the confirmations of all its channels. What the server
//! sends on the hub's link is taken as on any link: a message goes to every member of its channel,
//! as the server's own bytes (the versions of the protocol differ in the first one alone); a
//! confirmation settles what was asked.
//!
//! In front of a Cluster a sharded channel is on the line to the owner of its slot, and follows
//! that: what a node says that is not the owner, or not now, is no session's.
//!
//! What may bring keyspace notifications is subscribed to at every owner of keys of the pool
//! (`subscriptions/branches.rs`, `events.rs`).

use respool_protocol::cluster::Refusal;
use respool_protocol::commands::{CommandId, id};
use respool_protocol::encode::{self, Version};
use respool_protocol::slot::hash_slot;
use respool_protocol::value::Value;

use crate::auth::CONFIGURED;
use crate::duty::Duty;
use crate::engine::{Action, Engine, LinkId};
use crate::entry::Entry;
use crate::events::brings_events;
use crate::failure::{self, Cause, Fate};
use crate::limits::{LINK_UNUSED_MS, SUBSCRIBING_BYTES_MAX};
use crate::link::{Link, LinkKey, Role, State, UNASKED};
use crate::pool::{Group, Pool, ServerId};
use crate::requests::{Placed, Request, bound_reply};
use crate::route::CROSSSLOT;
use crate::session::{Flags, Session};
use crate::settings::LostSubscriptions;
use crate::slots::Key;
use crate::slow_readers::EVERYBODYS;
use crate::subscriptions::{Done, HOME, Hub, HubId, Kind, Line, LineId, Outcome, Push, Subscriber};
use crate::words::wrong_arity;

/// What sessions ask.
impl Engine {
    /// SUBSCRIBE, PSUBSCRIBE, SSUBSCRIBE (`on`) and their opposites.
    pub(crate) fn change_subscriptions(
        &mut self,
        key: Key,
        request: &Request<'_>,
        kind: Kind,
        on: bool,
    ) -> Placed {
        if self.hold_until_caught_up(key) {
            return Placed::Wait;
        }
        if on && kind != Kind::Shard && self.waits_for_home(key) {
            return Placed::Wait;
        }
        if on && brings_events(kind, request) {
            if self.waits_for_event_servers(key) {
                return Placed::Wait;
            }
            let pool = self.sessions.get(key).map(|session| session.pool);
            let unknown = pool.and_then(|pool| self.unknown_part(usize::from(pool)));
            if let Some(part) = unknown {
                let text = self.no_nodes(part);
                return self.answer_error(key, text.as_bytes());
            }
        }
        let Some(session) = self.sessions.get_mut(key) else {
            return Placed::Done;
        };
        let version = session.version;
        let own = session.rare().subscriber.take();
        let subscriber = self.subscriber(key, own);
        match self.ask_hub(key, request, (kind, on), version, subscriber) {
            Some(reply) => self.confirm_to(key, None, &reply),
            // What comes next waits for the confirmation.
            None => self.hold(key, Flags::HOLD_DRAIN),
        }
        Placed::Done
    }

    /// Whether a session waits for the first topology answer of a Cluster. The answer may move
    /// everything that is published to another node, and the session would miss messages.
    fn waits_for_home(&mut self, key: Key) -> bool {
        let Some(session) = self.sessions.get(key) else {
            return false;
        };
        let part = usize::from(self.pools.parts_of(usize::from(session.pool))[0]);
        let cluster = self.pools[part].cluster();
        let is_unknown = cluster.is_some_and(|cluster| !cluster.is_known());
        is_unknown && self.waits_for_nodes(key, part)
    }

    /// What a session subscribes to, in the hub of its server and user. Who listens already may
    /// have become somebody else meanwhile: it keeps what it has.
    fn subscriber(&mut self, key: Key, own: Option<Box<Subscriber>>) -> Box<Subscriber> {
        if let Some(own) = own
            && own.listens()
        {
            return own;
        }
        // Wherever the session has turned: who publishes does so at the pool's first server.
        let whose = |session: &Session| {
            (
                session.pool,
                self.home_of(session),
                self.kind_of(session).user,
            )
        };
        let session = self.sessions.get(key);
        let (pool, server, user) = session.map_or((0, ServerId(0), CONFIGURED), whose);
        let found = self
            .hubs
            .iter()
            .position(|hub| (hub.pool, hub.user) == (pool, user));
        let index = found.unwrap_or_else(|| {
            let fresh = Hub::new((pool, server), user, self.directory.clone(), self.now);
            // Users come and go: the place of a hub that is nobody's is as good.
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
        Box::new(Subscriber::new(HubId(index as u16)))
    }

    /// Returns the reply, if nothing has to wait for it.
    fn ask_hub(
        &mut self,
        key: Key,
        request: &Request<'_>,
        (kind, on): (Kind, bool),
        version: Version,
        mut subscriber: Box<Subscriber>,
    ) -> Option<Vec<u8>> {
        let names = || request.args().skip(1);
        let line = self.line_for(key, subscriber.hub, kind, request);
        let (line, refused) = match line {
            Ok(line) if on => {
                let of = (kind, line);
                let refused = self.refuse_subscription(key, &subscriber, of, request);
                (line, refused)
            }
            Ok(line) => (line, None),
            Err(crossing) => (HOME, Some(crossing)),
        };
        let had = subscriber.held_bytes();
        let outcome = match refused {
            Some(reply) => Outcome::Reply(reply),
            None => {
                let now = self.asked_at();
                let seq = self.sessions.get_mut(key)?.next_seq;
                let hub = self.hub(subscriber.hub);
                let who = (key, seq);
                if on {
                    let of = (kind, line);
                    hub.subscribe(who, &mut subscriber, of, names(), version, now)
                } else {
                    hub.unsubscribe(who, &mut subscriber, kind, names(), version, now)
                }
            }
        };
        self.held_bytes = self.held_bytes + subscriber.held_bytes() - had;
        let session = self.sessions.get_mut(key)?;
        let waits = outcome == Outcome::Waits;
        if waits || subscriber.listens() {
            session.rare().subscriber = Some(subscriber);
        }
        if waits {
            session.take_seq();
        }
        self.weigh(key);
        match outcome {
            Outcome::Reply(reply) => Some(reply),
            Outcome::Waits => None,
        }
    }

    /// The line for what a request names. Else what the session is told: sharded channels that are
    /// named together must be of one slot.
    fn line_for(
        &mut self,
        key: Key,
        hub: HubId,
        kind: Kind,
        request: &Request<'_>,
    ) -> Result<u16, Vec<u8>> {
        let mut slots = request.args().skip(1).map(hash_slot);
        let (Kind::Shard, true, Some(slot)) = (kind, self.channels_have_places(key), slots.next())
        else {
            return Ok(HOME);
        };
        if !slots.all(|other| other == slot) {
            let mut crossing = Vec::new();
            encode::error(&mut crossing, CROSSSLOT);
            return Err(crossing);
        }
        let now = self.now;
        let pool = usize::from(self.hub(hub).pool);
        let pool = self.pools.parts_of(pool)[0];
        let owner = self.pools.server_of(Group { pool, number: slot });
        Ok(self.hub(hub).line_to(owner, now))
    }

    /// What a session is told that may not subscribe, if so. Otherwise its line has a link.
    fn refuse_subscription(
        &mut self,
        key: Key,
        subscriber: &Subscriber,
        (kind, line): (Kind, u16),
        request: &Request<'_>,
    ) -> Option<Vec<u8>> {
        let limits = &self.settings.limits;
        let (of_session, of_worker) = (
            limits.session_subscriptions_max as usize,
            limits.worker_subscriptions_max as usize,
        );
        let hub = self.hub(subscriber.hub);
        let user = hub.user;
        let news = hub.news(subscriber, kind, request.args().skip(1));
        let have: usize = subscriber.counts().iter().sum();
        if have + news > of_session {
            return Some(bound_reply("session-subscriptions-max"));
        }
        if self.subscriptions() + news > of_worker {
            return Some(bound_reply("worker-subscriptions-max"));
        }
        if self
            .memory
            .is_above_bound(self.held_bytes + request.bytes.len())
        {
            return Some(bound_reply("worker-memory-bytes-max"));
        }
        if self.kind_of(self.sessions.get(key)?).user != user {
            let text = b"ERR respool: to subscribe as another user, leave all channels first";
            let mut reply = Vec::new();
            encode::error(&mut reply, text);
            return Some(reply);
        }
        let line = LineId {
            hub: subscriber.hub,
            line,
        };
        let has_room = self.link_line(line)
            && (!brings_events(kind, request) || self.follow_event_servers(subscriber.hub));
        (!has_room).then(|| bound_reply("links-max"))
    }

    /// Sees to it that a line has a link. False: there is no room for one.
    pub(crate) fn link_line(&mut self, id: LineId) -> bool {
        let user = self.hub(id.hub).user;
        let line = self.line(id);
        let (server, link) = (line.server, line.link);
        if self.links.get(link).is_some() {
            return true;
        }
        let kind = LinkKey {
            server,
            version: Version::Resp3,
            db: 0,
            user,
            lane: EVERYBODYS,
        };
        let Some(link) = self.add_link(kind, Role::Hub(id)) else {
            return false;
        };
        self.line(id).link = link;
        self.connect(link);
        true
    }

    /// A confirmation takes its place in the session's order, and what it says is so from now on.
    /// It goes out though replies are switched off, as messages do.
    fn confirm_to(&mut self, key: Key, seq: Option<u32>, reply: &[u8]) {
        self.restrict(key);
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let seq = seq.unwrap_or_else(|| session.take_seq());
        self.counters.requests_answered_here += 1;
        self.deliver(key, seq, 1, reply);
    }

    /// In RESP2, a subscriber may ask for little else: nothing tells replies from messages.
    pub(crate) fn restrict(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        if session.version == Version::Resp2 && session.listens() {
            session.flags |= Flags::RESTRICTED;
        } else {
            session.flags.remove(Flags::RESTRICTED);
        }
    }

    pub(crate) fn is_restricted(&self, key: Key) -> bool {
        let restricted = |session: &Session| session.flags.any(Flags::RESTRICTED);
        self.sessions.get(key).is_some_and(restricted)
    }

    /// The session leaves everything: it is gone, or starts anew.
    pub(crate) fn leave_all(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        let subscriber = session
            .rare
            .as_mut()
            .and_then(|rare| rare.subscriber.take());
        if let Some(subscriber) = subscriber {
            self.held_bytes -= subscriber.held_bytes();
            self.forget_subscriber(key, subscriber);
        }
        self.restrict(key);
    }

    /// The same for a session that is forgotten already, and what it held with it.
    pub(crate) fn forget_subscriber(&mut self, key: Key, mut gone: Box<Subscriber>) {
        self.hub(gone.hub).forget(key, &mut gone);
    }

    /// PING of a subscriber in RESP2: told from a reply by its shape.
    pub(crate) fn pong_in_subscription(&mut self, key: Key, request: &Request<'_>) -> Placed {
        if request.spans.len() > 2 {
            return self.answer_error(key, &wrong_arity(request.command));
        }
        let argument = request.args().nth(1).unwrap_or_default();
        let mut reply = Vec::new();
        encode::array(&mut reply, 2);
        encode::bulk(&mut reply, b"pong");
        encode::bulk(&mut reply, argument);
        self.answer_reply(key, &reply)
    }

    /// PUBLISH, SPUBLISH and PUBSUB NUMSUB: the server answers them, and counts connections.
    pub(crate) fn place_counted(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let duty = self.count_duty(key, request.id, request.arg(1));
        let reads = matches!(request.id, id::PUBSUB_NUMSUB | id::PUBSUB_SHARDNUMSUB);
        // A sharded channel of a Cluster is not where the hub is.
        let is_elsewhere = request.id == id::SPUBLISH && self.channels_have_places(key);
        let rides_hub = |session: &Session| session.listens() && !session.pins.bind();
        match self.sessions.get(key).is_some_and(rides_hub) && !reads && !is_elsewhere {
            true => self.publish_in_order(key, request.bytes, duty),
            false => self.place_on_link(key, request.bytes, reads, duty),
        }
    }

    /// What becomes of the count in the reply to such a request, whose first argument is this.
    /// Nothing, if all subscribers are connections of their own to the server.
    pub(crate) fn count_duty(&self, key: Key, id: CommandId, channel: &[u8]) -> Option<Duty> {
        if self.directory.is_empty() {
            return None;
        }
        let pool = self.sessions.get(key)?.pool;
        let receivers = |kind| match self.directory.receivers(pool, kind, channel) {
            0 => None,
            excess => Some(Duty::Receivers(excess)),
        };
        match id {
            id::PUBLISH => receivers(Kind::Channel),
            id::SPUBLISH => receivers(Kind::Shard),
            id::PUBSUB_NUMSUB => Some(Duty::Subscribers(Kind::Channel)),
            id::PUBSUB_SHARDNUMSUB => Some(Duty::Subscribers(Kind::Shard)),
            _ => None,
        }
    }

    /// PUBLISH by a subscriber goes over the hub's link: so its own message and the reply reach it
    /// in the server's order, which is the message first up to Redis 7.0 and the reply first since.
    fn publish_in_order(&mut self, key: Key, bytes: &[u8], duty: Option<Duty>) -> Placed {
        let Some(session) = self.sessions.get(key) else {
            return Placed::Done;
        };
        let caught_up = session.is_caught_up();
        let subscriber = session
            .rare
            .as_ref()
            .and_then(|rare| rare.subscriber.as_ref());
        let hub = subscriber.map(|own| &self.hubs[usize::from(own.hub.0)]);
        let own_user = self.kind_of(session).user;
        // What it may publish is decided by who it is now.
        let link = match hub {
            Some(hub) if hub.user == own_user => hub.lines[usize::from(HOME)].link,
            _ => Key::NOBODY,
        };
        if !self.links.get(link).is_some_and(Link::is_up) {
            return self.place_on_link(key, bytes, false, duty);
        }
        if caught_up {
            self.put_on(link, key, bytes, duty.unwrap_or(Duty::Pass));
        }
        // It waits for those in front, and those behind it wait for it: they go another way.
        self.hold(key, Flags::HOLD_DRAIN);
        if caught_up {
            Placed::Done
        } else {
            Placed::Wait
        }
    }
}

/// What servers say.
impl Engine {
    /// A push on a hub's link.
    pub(crate) fn take_hub_push(&mut self, key: Key, LineId { hub, line }: LineId, push: &[u8]) {
        match Push::read(push) {
            Some(Push::Message { kind, name }) if self.hub(hub).strips(line) => {
                let whole = self.hub(hub).with_prefix(line, (kind, name), push);
                if let Some((name, push)) = whole {
                    self.fan_out(LineId { hub, line }, kind, &name, &push);
                }
            }
            Some(Push::Message { kind, name }) => {
                self.fan_out(LineId { hub, line }, kind, name, push)
            }
            Some(Push::Confirmed {
                kind: Kind::Shard,
                on: false,
                name,
            }) if line != HOME => {
                if let Some(link) = self.links.get_mut(key)
                    && let Some(Duty::Leave { said }) = link.duties.front_mut()
                {
                    *said = true;
                }
                self.hub(hub).handle_dropped(line, name);
            }
            Some(Push::Confirmed { kind, on, name }) => {
                let is_asked = self.take_ask(key);
                let confirmed = self.hub(hub).handle_confirmed(line, (kind, on), name);
                if !is_asked || confirmed.is_err() {
                    return self.lose_link(key, "it confirmed what nobody asked for");
                }
                self.settle_subscriptions(LineId { hub, line });
            }
            Some(Push::Other) | None => {}
        }
    }

    /// A reply to something that a hub asked: a sign of life, or an error. Its entry has left the
    /// ledger.
    pub(crate) fn settle_ask(&mut self, key: Key, reply: &[u8]) {
        let Some(Role::Hub(id)) = self.links.get(key).map(|link| link.role) else {
            return;
        };
        let LineId { hub, line } = id;
        let said = reply.strip_prefix(b"-");
        let refusal = said.and_then(Refusal::of).filter(|_| line != HOME);
        let settled = match (said, refusal) {
            (Some(said), Some(refusal)) => {
                let server = self.line(id).server;
                let slot = self.hub(hub).asked_slot(line);
                let is_nobodys = self.is_nobodys(server, said, slot);
                if !is_nobodys {
                    self.follow(server, slot, said, refusal);
                }
                let told = is_nobodys.then_some(reply);
                let put_off = self.hub(hub).handle_put_off(line, told);
                put_off.map(|()| Vec::new())
            }
            (Some(_), None) => self.hub(hub).handle_refused(line, reply),
            (None, _) => self.hub(hub).handle_pong(line).map(|()| Vec::new()),
        };
        let Ok(left_behind) = settled else {
            return self.lose_link(key, UNASKED);
        };
        for member in left_behind {
            let why = String::from_utf8_lossy(reply).trim_end().to_owned();
            self.close_for(member, format!("its subscription is refused now: {why}"));
        }
        self.settle_subscriptions(id);
    }

    /// What the server said to the PING behind a request to send something no more: its answer to
    /// that.
    pub(crate) fn settle_left(&mut self, key: Key) {
        let Some(Role::Hub(id)) = self.links.get(key).map(|link| link.role) else {
            return;
        };
        if self.hub(id.hub).handle_pong(id.line).is_err() {
            return self.lose_link(key, UNASKED);
        }
        self.settle_subscriptions(id);
    }

    /// A confirmation is not a reply, but what was asked is answered by it.
    fn take_ask(&mut self, key: Key) -> bool {
        let Some(link) = self.links.get_mut(key) else {
            return false;
        };
        let Some(entry) = link.first_in_flight() else {
            return false;
        };
        if !matches!(link.duties.front(), Some(Duty::Ask)) || !entry.duty {
            return false;
        }
        link.pop_answered(entry);
        link.duties.pop_front();
        self.counters.link_replies += 1;
        true
    }

    /// A message goes to every member of its channel.
    fn fan_out(&mut self, LineId { hub, line }: LineId, kind: Kind, name: &[u8], message: &[u8]) {
        self.counters.messages_in += 1;
        // The list changes while we go through it: who takes too little is closed by what it gets.
        let mut members = std::mem::take(&mut self.members);
        members.clear();
        let is_event = || Push::is_event(message).unwrap_or(false);
        let receivers = self.hub(hub).receivers(line, (kind, name), is_event);
        members.extend_from_slice(receivers);
        // Copied once for those of the other version, not once for each.
        let mut in_resp2 = std::mem::take(&mut self.message);
        in_resp2.clear();
        for &member in &members {
            let Some(session) = self.sessions.get(member) else {
                continue;
            };
            if session.flags.any(Flags::CLOSING | Flags::ENDED) {
                // It gets what it is owed, and no more: or messages would keep it for ever.
                continue;
            }
            let bytes = match session.version {
                Version::Resp3 => message,
                Version::Resp2 => {
                    if in_resp2.is_empty() {
                        in_resp2.extend_from_slice(message);
                        in_resp2[0] = b'*';
                    }
                    &in_resp2
                }
            };
            self.counters.messages_out += 1;
            self.fanned_out += bytes.len();
            self.push_to(member, bytes);
            if self.memory.is_above_bound(self.held_bytes) {
                self.relieve_memory();
            }
        }
        in_resp2.shrink_to(MESSAGE_BYTES_KEPT);
        self.message = in_resp2;
        self.members = members;
    }

    fn fan_out_bytes_max(&self) -> usize {
        FAN_OUT_BYTES_MAX.min(self.links_bytes_read_max().max(MESSAGE_BYTES_KEPT))
    }

    /// Whether enough was handed out in this turn: then what is left of a hub's bytes waits, and
    /// the outputs of sessions are written first. So a burst of messages takes no more memory than
    /// those who take them slowly account for.
    pub(crate) fn puts_off(&mut self, key: Key, rest: &[u8]) -> bool {
        if self.fanned_out < self.fan_out_bytes_max() || rest.is_empty() {
            return false;
        }
        let Some(Role::Hub(line)) = self.links.get(key).map(|link| link.role) else {
            return false;
        };
        self.line(line).put_off = rest.to_vec();
        self.act(Action::ReadLink(LinkId(key), false));
        true
    }

    /// A turn starts: what was put off is taken.
    pub(crate) fn take_put_off(&mut self) {
        self.fanned_out = 0;
        if !self.has_put_off() {
            return;
        }
        for id in self.lines() {
            let line = self.line(id);
            if line.put_off.is_empty() {
                continue;
            }
            let (key, bytes) = (line.link, std::mem::take(&mut line.put_off));
            if let Some(link) = self.links.get_mut(key) {
                link.progress = self.now;
                self.act(Action::ReadLink(LinkId(key), true));
                self.take_replies(key, &bytes);
            }
        }
    }

    /// Whether anything was put off.
    pub(crate) fn has_put_off(&self) -> bool {
        let mut lines = self.hubs.iter().flat_map(|hub| &hub.lines);
        lines.any(|line| !line.put_off.is_empty())
    }

    /// The beginning of a message that is larger than any session may have in its output: nobody
    /// gets it, and so nobody may go on as if there had been none.
    pub(crate) fn refuse_message(&mut self, LineId { hub, line }: LineId, beginning: &[u8]) {
        self.counters.messages_in += 1;
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
            self.close_for(member, reason.to_owned());
        }
    }

    /// Requests to subscribe or to leave that are done.
    fn settle_subscriptions(&mut self, LineId { hub, line }: LineId) {
        while let Some(done) = self.hub(hub).poll_done(line) {
            self.settle_subscription(hub, done, None);
        }
    }

    /// `error`: instead of subscribing.
    fn settle_subscription(&mut self, hub: HubId, done: Done, error: Option<Vec<u8>>) {
        let (key, seq) = (done.session, done.seq);
        let Some(session) = self.sessions.get_mut(key) else {
            unreachable!("a session that is gone waits for nothing");
        };
        let version = session.version;
        let Some(mut subscriber) = session.rare().subscriber.take() else {
            unreachable!("who waits in a hub is a subscriber of it");
        };
        let had = subscriber.held_bytes();
        let hub = self.hub(hub);
        let reply = match error {
            Some(error) => hub.fail(done, &mut subscriber, || error),
            None => hub.settle(done, &mut subscriber, version),
        };
        self.held_bytes = self.held_bytes + subscriber.held_bytes() - had;
        if (subscriber.listens() || reply.is_none())
            && let Some(session) = self.sessions.get_mut(key)
        {
            session.rare().subscriber = Some(subscriber);
        }
        self.weigh(key);
        if let Some(reply) = reply {
            self.confirm_to(key, Some(seq), &reply);
        }
    }

    /// The reply to a request that the server answers by its connections: ours carry many clients.
    pub(crate) fn recount(&self, pool: u16, duty: &Duty, reply: &[u8]) -> Vec<u8> {
        let mut recounted = Vec::new();
        let total = |count: i64, excess: i64| count.saturating_add(excess).max(0);
        match (duty, Value::read(reply)) {
            (Duty::Receivers(excess), Some(Value::Integer(count))) => {
                encode::integer(&mut recounted, total(count, *excess));
            }
            (Duty::Subscribers(kind), Some(Value::List(values))) => {
                encode::array(&mut recounted, values.len());
                let (pairs, _) = values.as_chunks();
                for [channel, count] in pairs {
                    let (Some(name), Value::Integer(count)) = (channel.text(), count) else {
                        continue;
                    };
                    let excess = self.directory.subscribers(pool, *kind, name);
                    encode::bulk(&mut recounted, name);
                    encode::integer(&mut recounted, total(*count, excess));
                }
            }
            _ => recounted.extend_from_slice(reply),
        }
        recounted
    }
}

/// Hubs and their links.
impl Engine {
    pub(crate) fn hub(&mut self, id: HubId) -> &mut Hub {
        &mut self.hubs[usize::from(id.0)]
    }

    pub(crate) fn line(&mut self, id: LineId) -> &mut Line {
        self.hub(id.hub).line(id.line)
    }

    /// The lines of all hubs.
    fn lines(&self) -> impl Iterator<Item = LineId> + use<> {
        let counts: Vec<usize> = self.hubs.iter().map(|hub| hub.lines.len()).collect();
        let of_hub = |(hub, count)| {
            let hub = HubId(hub as u16);
            (0..count as u16).map(move |line| LineId { hub, line })
        };
        counts.into_iter().enumerate().flat_map(of_hub)
    }

    /// What all sessions of this worker subscribe to, each for itself.
    pub(crate) fn subscriptions(&self) -> usize {
        self.hubs.iter().map(Hub::claims).sum()
    }

    /// A link can be used; if it is a hub's, it is.
    pub(crate) fn hub_up(&mut self, key: Key) {
        if let Some(Role::Hub(id)) = self.links.get(key).map(|link| link.role) {
            self.hub(id.hub).handle_up(id.line);
        }
    }

    /// A hub's link is lost. Its subscribers may have missed messages.
    pub(crate) fn lose_subscriptions(&mut self, id: LineId, server: &str) {
        if self.settings.lost_subscriptions == LostSubscriptions::Keep {
            return;
        }
        for session in self.hub(id.hub).listeners(id.line) {
            let reason = format!("lost-subscriptions: the connection to {server} was lost");
            self.close_for(session, reason);
        }
    }

    /// A hub's link is lost, or could not be established.
    pub(crate) fn hub_down(&mut self, id: LineId) {
        self.hub(id.hub).handle_down(id.line);
        self.settle_subscriptions(id);
    }

    /// Everything that is published goes to another server of a pool now. Hubs subscribe there, and
    /// listen to the old server until the new one has confirmed.
    pub(crate) fn move_hubs(&mut self, from: ServerId, to: ServerId) {
        let now = self.now;
        for index in 0..self.hubs.len() {
            let hub = HubId(index as u16);
            let line = self.hub(hub).line(HOME);
            if line.server != from {
                continue;
            }
            let (key, is_used) = (line.link, !line.is_unused());
            self.hub(hub).unsettle();
            match self.links.get_mut(key) {
                Some(link) if is_used && link.is_up() => {
                    let line = self.hubs[index].move_home(to, now);
                    link.role = Role::Hub(LineId { hub, line });
                    self.link_line(LineId { hub, line: HOME });
                }
                Some(link) => {
                    link.key.server = to;
                    self.hub(hub).line(HOME).server = to;
                    self.lose_link(key, "what is published is there now");
                }
                None => self.hub(hub).line(HOME).server = to,
            }
        }
    }

    /// Puts on links what hubs have to ask: once per turn, so that what sessions want in one turn
    /// is one batch.
    pub(crate) fn ask_hubs(&mut self) {
        self.open_links();
        self.follow_channels();
        for index in 0..self.hubs.len() {
            let hub = HubId(index as u16);
            for line in 0..self.hubs[index].lines.len() as u16 {
                self.ask_line(LineId { hub, line });
            }
        }
    }

    fn ask_line(&mut self, LineId { hub, line }: LineId) {
        let hub = &mut self.hubs[usize::from(hub.0)];
        if !hub.line(line).has_asks() {
            return;
        }
        let key = hub.line(line).link;
        let Some(link) = self.links.get_mut(key) else {
            unreachable!("a line that is connected has a link");
        };
        let mut bytes = std::mem::take(&mut self.scratch);
        while link.unanswered_bytes() < SUBSCRIBING_BYTES_MAX
            && let Some(ask) = hub.poll_ask(line)
        {
            bytes.clear();
            hub.write_ask(line, &ask, &mut bytes);
            let duty = match ask.ends_with_ping(line) {
                true => Duty::Leave { said: false },
                false => Duty::Ask,
            };
            let entry = Entry {
                len: bytes.len() as u32,
                duty: true,
                ..Entry::of(Key::NOBODY, 0, self.now.stamp_ms())
            };
            link.push_with(entry, &bytes, duty);
            self.counters.link_requests += 1;
        }
        self.scratch = bytes;
        self.list_link(key);
    }

    /// Deadlines of hubs.
    pub(crate) fn tick_hubs(&mut self) {
        for index in 0..self.hubs.len() {
            self.tick_waits(HubId(index as u16));
            self.hubs[index].end_delay();
        }
        let (now, stall_ms) = (self.now, self.settings.timeouts.link_stall_ms);
        for id in self.lines() {
            let hub = &mut self.hubs[usize::from(id.hub.0)];
            let line = hub.line(id.line);
            let key = line.link;
            let Some(link) = self.links.get(key) else {
                if !line.is_unused() {
                    // There was no room for one when something moved there.
                    self.link_line(id);
                }
                continue;
            };
            if !line.is_unused() {
                line.unused_since = now;
                // Nobody would notice that a server is gone that is only listened to.
                if link.is_quiet(now, stall_ms / 2) {
                    line.ask_for_life();
                }
            } else if now.since_ms(line.unused_since) >= u64::from(LINK_UNUSED_MS) {
                line.link = Key::NOBODY;
                hub.handle_down(id.line);
                self.close_link(key);
            }
        }
    }

    /// Channels go where the owners of slots are now, and what was put off is asked for again.
    fn follow_channels(&mut self) {
        let is_news = |pool: &Pool| pool.cluster().is_some_and(|cluster| cluster.has_moved);
        let has_news = self.pools.iter().any(is_news);
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
            let parts = self.pools.parts_of(usize::from(hub.pool)).iter();
            let mut moved = parts.map(|part| is_news(&self.pools[usize::from(*part)]));
            // Sharded channels are in the first part.
            let (first, others) = (moved.next() == Some(true), moved.any(|moved| moved));
            let (has_roots, is_unsettled) = (hub.has_roots(), hub.is_unsettled());
            if has_roots && (first || others || is_unsettled) {
                self.follow_event_servers(HubId(index as u16));
            } else if is_unsettled {
                self.tell_event_servers(HubId(index as u16));
            }
            if first {
                self.follow_slots(index);
            }
            if first || others || self.hubs[index].is_stalled() {
                self.hubs[index].ask_again();
            }
        }
        for pool in 0..self.pools.len() {
            if let Some(cluster) = self.pools[pool].cluster_mut() {
                cluster.has_moved = false;
            }
        }
    }

    /// Sharded channels go to the owners of their slots.
    fn follow_slots(&mut self, index: usize) {
        let hub = &self.hubs[index];
        let pool = self.pools.parts_of(usize::from(hub.pool))[0];
        let owner = |number| self.pools.server_of(Group { pool, number });
        for (channel, owner) in hub.strays(owner) {
            let line = self.hubs[index].line_to(owner, self.now);
            let hub = HubId(index as u16);
            self.link_line(LineId { hub, line });
            self.hubs[index].move_to(channel, line);
        }
    }

    /// Who has waited too long for a confirmation gets an error, and is not subscribed.
    fn tick_waits(&mut self, hub: HubId) {
        let limit_ms = self.settings.timeouts.request_ms;
        if limit_ms == 0 {
            return;
        }
        let now = self.now;
        while let Some((line, done)) = self.hub(hub).poll_late(now, limit_ms) {
            self.counters.timeouts += 1;
            self.counters.failed_not_sent += 1;
            self.arrivals.count(done.session);
            let away = self.away_error_of(Entry::of(done.session, done.seq, 0));
            let line = self.hub(hub).line(line);
            let (server, link) = (line.server, line.link);
            let server_label = &self.server(server).label;
            let cause = match self.links.get(link) {
                Some(link) if !matches!(link.state, State::Up) => Cause::NoLink {
                    server: server_label,
                    reason: &link.reason,
                },
                _ => Cause::Deadline {
                    server: server_label,
                    limit_ms,
                },
            };
            let mut error = Vec::new();
            failure::append_reply_as(&mut error, Fate::NotSent, away, cause);
            self.settle_subscription(hub, done, Some(error));
        }
    }
}

/// Bytes of messages handed out in one turn, at which the rest waits for the next one.
const FAN_OUT_BYTES_MAX: usize = 16 << 20;

/// Room for a message that is kept between messages.
const MESSAGE_BYTES_KEPT: usize = 64 << 10;
