//! Who subscribes to what: one subscription of ours for each channel of a server, however many of
//! this worker's sessions listen to it.
//!
//! ```text
//!   session ──┐                                        one link, RESP3
//!   session ──┼──► channel "news"  ─ wanted, confirmed ─┐
//!   session ──┘                                         ├──► SUBSCRIBE news   ──► server
//!   session ──────► pattern "n*"   ─ wanted ────────────┘    PSUBSCRIBE n*
//! ```
//!
//! A [`Hub`] is all that a worker knows about the subscriptions on one server (as one of its users). It is pure: the engine
//! (`pubsub`) tells it what sessions ask ([`Hub::subscribe`], [`Hub::unsubscribe`], [`Hub::forget`])
//! and what the server says (`handle_*`), takes from it what the server is to be asked
//! ([`Hub::poll_ask`]), and whose request is done ([`Hub::poll_done`]).
//!
//! **Claims.** A session claims a channel from the moment it asks for it until it leaves. With the first
//! claim the server is asked for the channel, without one it is told to send no more of it. A *member* is a
//! session that gets the channel's messages. It claims first and becomes a member when its request
//! is done; it gives up its claim when it asks to leave, and stays a member until that request is done.
//!
//! **Order.** The server works through what the hub's link asks in that order, and its confirmations
//! and messages come in one stream. So *where* in the stream something is done says everything: a request
//! is done when the server has answered the last thing asked on its behalf, and one that needs nothing of
//! the server (others have the channel already) asks it for a sign of life (`PING`). Then what was
//! published before, and answered, before the client asked to subscribe, is never delivered to it, and
//! what was published before it asked to leave always is, in front of the confirmation; as from the server
//! itself. What several sessions ask in one turn shares one such sign.
//!
//! **A lost link.** Nothing is confirmed any more. When there is a connection again, everything that is
//! claimed is asked for again; members are not told. Who waits to subscribe waits on, who waits to leave
//! is done. What was published meanwhile is lost, as it would be to a client that connects again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use respool_protocol::encode::{self, Version};
use respool_protocol::number;

use crate::directory::Directory;
use crate::pool::ServerId;
use crate::slots::{Key, Slots};
use crate::time::Time;

/// What can be subscribed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// By its name.
    Channel,
    /// All channels whose names match.
    Pattern,
    /// By its name, and apart from the others: SPUBLISH reaches it, PUBLISH does not.
    Shard,
}

impl Kind {
    pub(crate) const ALL: [Kind; 3] = [Kind::Channel, Kind::Pattern, Kind::Shard];

    /// As requests and confirmations call it.
    fn verb(self, on: bool) -> &'static str {
        match (self, on) {
            (Kind::Channel, true) => "subscribe",
            (Kind::Channel, false) => "unsubscribe",
            (Kind::Pattern, true) => "psubscribe",
            (Kind::Pattern, false) => "punsubscribe",
            (Kind::Shard, true) => "ssubscribe",
            (Kind::Shard, false) => "sunsubscribe",
        }
    }
}

/// A hub's place among those of its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HubId(pub(crate) u16);

/// What one session subscribes to, all in one hub: the names of its channels there.
#[derive(Debug)]
pub(crate) struct Subscriber {
    pub(crate) hub: HubId,
    of: [HashSet<Key>; 3],
    /// What its claims make us hold.
    bytes: usize,
    /// A request of it is not done.
    waits: bool,
}

impl Subscriber {
    pub(crate) fn new(hub: HubId) -> Self {
        Subscriber {
            hub,
            of: Default::default(),
            bytes: 0,
            waits: false,
        }
    }

    /// How many channels, patterns and shard channels.
    pub(crate) fn counts(&self) -> [usize; 3] {
        [self.of[0].len(), self.of[1].len(), self.of[2].len()]
    }

    /// Whether it subscribes to anything.
    pub(crate) fn listens(&self) -> bool {
        self.of.iter().any(|of| !of.is_empty())
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes
    }

    /// The count in a confirmation: channels and patterns are counted together.
    fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::Channel | Kind::Pattern => self.of[0].len() + self.of[1].len(),
            Kind::Shard => self.of[2].len(),
        }
    }
}

struct Channel {
    kind: Kind,
    name: Box<[u8]>,
    /// Who gets its messages.
    members: Vec<Key>,
    /// Members that have not asked to leave, and sessions that wait to be members.
    claims: u32,
    /// The last that the server was asked: to send it.
    wanted: bool,
    /// The last that the server confirmed: it sends it.
    confirmed: bool,
    /// What the server was asked about it and has not answered.
    in_flight: u32,
    /// What the server said instead of a confirmation.
    refused: Option<Box<[u8]>>,
    /// The excess that the directory knows of.
    told: i64,
}

/// What the server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// To send this channel, or not to.
    Subscribe { channel: Key, on: bool },
    /// For a sign of life.
    Ping,
}

/// A request of a session that is not done.
struct Wait {
    session: Key,
    /// Its place in the order of the session's replies.
    seq: u32,
    since: Time,
    /// How many answers of the server there must have been.
    until: u64,
    what: What,
}

enum What {
    /// To become a member of these, one for each argument of the request.
    Join(Vec<Key>),
    /// To be a member no longer, and the reply.
    Leave(Vec<Key>, Vec<u8>),
}

/// More answers than there will be: nothing was asked, for there is no connection.
const NEVER: u64 = u64::MAX;

/// A request that is done.
pub(crate) struct Done {
    pub(crate) session: Key,
    pub(crate) seq: u32,
    what: What,
}

/// What became of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// This is its reply: nothing had to wait.
    Reply(Vec<u8>),
    /// [`Hub::poll_done`] will tell.
    Waits,
}

/// The server answered what was not asked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unasked;

/// What this worker's sessions subscribe to on one server, as one of its users: what one may listen to,
/// another may not.
pub(crate) struct Hub {
    pub(crate) pool: u16,
    pub(crate) server: ServerId,
    pub(crate) user: u16,
    directory: Arc<Directory>,
    /// Its link; nobody's name while there is none.
    pub(crate) link: Key,
    /// Since when nobody subscribes to anything.
    pub(crate) unused_since: Time,
    /// Bytes of the server that wait for the next turn.
    pub(crate) put_off: Vec<u8>,
    connected: bool,
    names: [HashMap<Box<[u8]>, Key>; 3],
    channels: Slots<Channel>,
    claims: usize,
    /// What is to be asked, what was asked and is not answered, and how much was asked and answered in all.
    to_ask: VecDeque<Ask>,
    in_flight: VecDeque<Ask>,
    asked: u64,
    answered: u64,
    /// In the order of `until`.
    waits: VecDeque<Wait>,
}

/// Getters.
impl Hub {
    /// Claims of all its sessions.
    pub(crate) fn claims(&self) -> usize {
        self.claims
    }

    /// Whether nobody needs its link.
    pub(crate) fn is_unused(&self) -> bool {
        self.channels.len() == 0 && self.waits.is_empty()
    }

    /// Whether anything is to be asked.
    pub(crate) fn has_asks(&self) -> bool {
        !self.to_ask.is_empty()
    }

    /// A channel that somebody claims, or that the server is still asked about.
    pub(crate) fn channel(&self, kind: Kind, name: &[u8]) -> Option<Key> {
        self.names[kind as usize].get(name).copied()
    }

    /// Who gets the messages of a channel.
    pub(crate) fn members(&self, channel: Key) -> &[Key] {
        self.channels
            .get(channel)
            .map_or(&[], |channel| &channel.members)
    }

    /// How many of these a session would newly claim.
    pub(crate) fn news(
        &self,
        subscriber: &Subscriber,
        kind: Kind,
        names: impl Iterator<Item = impl AsRef<[u8]>>,
    ) -> usize {
        let known = |name: &[u8]| {
            let channel = self.channel(kind, name);
            channel.is_some_and(|channel| subscriber.of[kind as usize].contains(&channel))
        };
        names.filter(|name| !known(name.as_ref())).count()
    }

    /// Appends what the server is asked.
    pub(crate) fn write_ask(&self, ask: Ask, out: &mut Vec<u8>) {
        match ask {
            Ask::Ping => encode::request(out, &["PING"]),
            Ask::Subscribe { channel, on } => {
                let Some(channel) = self.channels.get(channel) else {
                    unreachable!("a channel stays as long as anything is asked about it");
                };
                let verb = channel.kind.verb(on).to_ascii_uppercase();
                encode::request(out, &[verb.as_bytes(), &channel.name]);
            }
        }
    }
}

/// What sessions ask.
impl Hub {
    pub(crate) fn new(
        (pool, server): (u16, ServerId),
        user: u16,
        directory: Arc<Directory>,
        now: Time,
    ) -> Self {
        Hub {
            pool,
            server,
            user,
            directory,
            link: Key::NOBODY,
            unused_since: now,
            put_off: Vec::new(),
            connected: false,
            names: Default::default(),
            channels: Slots::new(),
            claims: 0,
            to_ask: VecDeque::new(),
            in_flight: VecDeque::new(),
            asked: 0,
            answered: 0,
            waits: VecDeque::new(),
        }
    }

    /// A session that waits for nothing asks for channels.
    pub(crate) fn subscribe<'a>(
        &mut self,
        (session, seq): (Key, u32),
        subscriber: &mut Subscriber,
        kind: Kind,
        names: impl Iterator<Item = &'a [u8]>,
        version: Version,
        now: Time,
    ) -> Outcome {
        let mut channels = Vec::new();
        for name in names {
            let channel = self.claim(kind, name);
            subscriber.bytes += claim_bytes(name);
            channels.push(channel);
        }
        let news = |channel| !subscriber.of[kind as usize].contains(channel);
        if !channels.iter().any(news) {
            // It has them all: there is nothing to wait for.
            return Outcome::Reply(self.join(session, subscriber, &channels, version));
        }
        self.wait(session, seq, now, What::Join(channels));
        subscriber.waits = true;
        Outcome::Waits
    }

    /// A session that waits for nothing leaves channels: the named ones, or if none is named all of this kind.
    pub(crate) fn unsubscribe<'a>(
        &mut self,
        (session, seq): (Key, u32),
        subscriber: &mut Subscriber,
        kind: Kind,
        names: impl Iterator<Item = &'a [u8]>,
        version: Version,
        now: Time,
    ) -> Outcome {
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
            let mut all: Vec<Key> = subscriber.of[kind as usize].drain().collect();
            // In no order that means anything, but always the same.
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
            return Outcome::Reply(reply);
        }
        for channel in &left {
            self.unclaim(*channel, subscriber);
        }
        if !self.connected {
            self.leave(session, &left);
            return Outcome::Reply(reply);
        }
        self.wait(session, seq, now, What::Leave(left, reply));
        subscriber.waits = true;
        Outcome::Waits
    }

    /// A session leaves everything, and waits for nothing any more.
    pub(crate) fn forget(&mut self, session: Key, subscriber: &mut Subscriber) {
        if std::mem::take(&mut subscriber.waits)
            && let Some(at) = self.waits.iter().position(|wait| wait.session == session)
            && let Some(wait) = self.waits.remove(at)
        {
            match wait.what {
                What::Join(channels) => {
                    for channel in channels {
                        self.unclaim(channel, subscriber);
                    }
                }
                What::Leave(channels, _) => self.leave(session, &channels),
            }
        }
        for kind in Kind::ALL {
            let of = std::mem::take(&mut subscriber.of[kind as usize]);
            let channels: Vec<Key> = of.into_iter().collect();
            for channel in &channels {
                self.unclaim(*channel, subscriber);
            }
            self.leave(session, &channels);
        }
        debug_assert_eq!(subscriber.bytes, 0, "every claim is given up once");
    }
}

/// What the server says.
impl Hub {
    /// There is a connection: everything is asked for.
    pub(crate) fn handle_up(&mut self) {
        self.connected = true;
        for channel in self.channels.keys() {
            self.ask(channel);
        }
        let until = self.asked + self.to_ask.len() as u64;
        for wait in &mut self.waits {
            if wait.until == NEVER {
                wait.until = until;
            }
        }
    }

    /// There is no connection any more, or none could be had.
    pub(crate) fn handle_down(&mut self) {
        self.connected = false;
        self.put_off = Vec::new();
        self.to_ask.clear();
        self.in_flight.clear();
        self.answered = self.asked;
        for key in self.channels.keys() {
            if let Some(channel) = self.channels.get_mut(key) {
                channel.wanted = false;
                channel.confirmed = false;
                channel.in_flight = 0;
            }
            self.tell(key);
            self.drop_unused(key);
        }
        let (leaving, joining): (Vec<Wait>, Vec<Wait>) = self
            .waits
            .drain(..)
            .partition(|wait| matches!(wait.what, What::Leave(..)));
        let until = self.answered;
        self.waits
            .extend(leaving.into_iter().map(|wait| Wait { until, ..wait }));
        let until = NEVER;
        self.waits
            .extend(joining.into_iter().map(|wait| Wait { until, ..wait }));
    }

    /// It sent bytes: whether others of it are put off already. Then these go behind them.
    pub(crate) fn goes_behind(&mut self, bytes: &[u8]) -> bool {
        let waits = !self.put_off.is_empty();
        if waits {
            self.put_off.extend_from_slice(bytes);
        }
        waits
    }

    /// The server confirms that it sends a channel from here on, or no more.
    pub(crate) fn handle_confirmed(
        &mut self,
        kind: Kind,
        on: bool,
        name: &[u8],
    ) -> Result<(), Unasked> {
        let key = self.channel(kind, name).ok_or(Unasked)?;
        let asked = Ask::Subscribe { channel: key, on };
        if self.in_flight.front() != Some(&asked) {
            return Err(Unasked);
        }
        self.answer();
        if let Some(channel) = self.channels.get_mut(key) {
            channel.in_flight -= 1;
            channel.confirmed = on;
            channel.refused = None;
        }
        self.tell(key);
        self.drop_unused(key);
        Ok(())
    }

    /// The server answers with an error. Gives back the members of a channel that it does not send: it did
    /// so before the connection was lost, and does so no more.
    pub(crate) fn handle_refused(&mut self, error: &[u8]) -> Result<Vec<Key>, Unasked> {
        let ask = self.in_flight.front().copied().ok_or(Unasked)?;
        self.answer();
        let Ask::Subscribe { channel: key, on } = ask else {
            return Ok(Vec::new());
        };
        let Some(channel) = self.channels.get_mut(key) else {
            return Ok(Vec::new());
        };
        channel.in_flight -= 1;
        if !on {
            // It goes on sending: we drop what nobody wants.
            channel.confirmed = false;
            self.tell(key);
            self.drop_unused(key);
            return Ok(Vec::new());
        }
        channel.refused = Some(error.into());
        if channel.in_flight == 0 {
            channel.wanted = false;
        }
        let left_behind = channel.members.clone();
        self.drop_unused(key);
        Ok(left_behind)
    }

    /// The server gives the sign of life that it was asked for.
    pub(crate) fn handle_pong(&mut self) -> Result<(), Unasked> {
        if self.in_flight.front() != Some(&Ask::Ping) {
            return Err(Unasked);
        }
        self.answer();
        Ok(())
    }

    /// Nothing was heard of the server for a while: it is asked.
    pub(crate) fn ask_for_life(&mut self) {
        if self.connected && self.to_ask.is_empty() {
            self.to_ask.push_back(Ask::Ping);
        }
    }

    /// The next thing that the server is to be asked.
    pub(crate) fn poll_ask(&mut self) -> Option<Ask> {
        let ask = self.to_ask.pop_front()?;
        self.in_flight.push_back(ask);
        self.asked += 1;
        Some(ask)
    }

    /// The next request that is done.
    pub(crate) fn poll_done(&mut self) -> Option<Done> {
        if self.waits.front()?.until > self.answered {
            return None;
        }
        self.waits.pop_front().map(Done::from)
    }

    /// The next request that has waited too long to become a subscriber.
    pub(crate) fn poll_late(&mut self, now: Time, limit_ms: u32) -> Option<Done> {
        let late = |wait: &Wait| now.since_ms(wait.since) >= u64::from(limit_ms);
        let at = self.waits.iter().position(late)?;
        self.waits.remove(at).map(Done::from)
    }

    /// Settles a request that is done: its reply.
    pub(crate) fn settle(
        &mut self,
        done: Done,
        subscriber: &mut Subscriber,
        version: Version,
    ) -> Vec<u8> {
        subscriber.waits = false;
        match done.what {
            What::Leave(channels, reply) => {
                self.leave(done.session, &channels);
                reply
            }
            What::Join(channels) => {
                let refused = channels
                    .iter()
                    .find_map(|key| self.channels.get(*key)?.refused.as_deref());
                match refused {
                    Some(error) => {
                        let reply = error.to_vec();
                        self.give_up(&channels, subscriber);
                        reply
                    }
                    None => self.join(done.session, subscriber, &channels, version),
                }
            }
        }
    }

    /// Settles a request that took too long: `error` is its reply, unless it was to leave.
    pub(crate) fn fail(
        &mut self,
        done: Done,
        subscriber: &mut Subscriber,
        error: impl FnOnce() -> Vec<u8>,
    ) -> Vec<u8> {
        subscriber.waits = false;
        match done.what {
            What::Leave(channels, reply) => {
                self.leave(done.session, &channels);
                reply
            }
            What::Join(channels) => {
                self.give_up(&channels, subscriber);
                error()
            }
        }
    }
}

/// Claims and members.
impl Hub {
    fn claim(&mut self, kind: Kind, name: &[u8]) -> Key {
        let key = match self.channel(kind, name) {
            Some(key) => key,
            None => {
                let key = self.channels.insert(Channel {
                    kind,
                    name: name.into(),
                    members: Vec::new(),
                    claims: 0,
                    wanted: false,
                    confirmed: false,
                    in_flight: 0,
                    refused: None,
                    told: 0,
                });
                self.names[kind as usize].insert(name.into(), key);
                key
            }
        };
        if let Some(channel) = self.channels.get_mut(key) {
            channel.claims += 1;
            self.claims += 1;
        }
        self.ask(key);
        key
    }

    fn unclaim(&mut self, key: Key, subscriber: &mut Subscriber) {
        let Some(channel) = self.channels.get_mut(key) else {
            return;
        };
        channel.claims -= 1;
        self.claims -= 1;
        subscriber.bytes -= claim_bytes(&channel.name);
        if channel.claims == 0 {
            self.ask(key);
            self.drop_unused(key);
        }
    }

    /// Asks the server for what is claimed, and to stop what is not, if it was asked otherwise before.
    fn ask(&mut self, key: Key) {
        if let Some(channel) = self.channels.get_mut(key)
            && self.connected
            && channel.wanted != (channel.claims > 0)
        {
            channel.wanted = !channel.wanted;
            channel.in_flight += 1;
            self.to_ask.push_back(Ask::Subscribe {
                channel: key,
                on: channel.wanted,
            });
        }
    }

    /// The session's request is done when the server has answered everything that is to be asked by now:
    /// at least one thing that it has not been asked yet.
    fn wait(&mut self, session: Key, seq: u32, since: Time, what: What) {
        if self.connected && self.to_ask.is_empty() {
            self.to_ask.push_back(Ask::Ping);
        }
        let until = if self.connected {
            self.asked + self.to_ask.len() as u64
        } else {
            NEVER
        };
        self.waits.push_back(Wait {
            session,
            seq,
            since,
            until,
            what,
        });
    }

    /// The session becomes a member of what it has claimed; returns the confirmations.
    fn join(
        &mut self,
        session: Key,
        subscriber: &mut Subscriber,
        channels: &[Key],
        version: Version,
    ) -> Vec<u8> {
        let mut reply = Vec::new();
        for &key in channels {
            let Some(channel) = self.channels.get_mut(key) else {
                unreachable!("a channel stays as long as it is claimed");
            };
            let kind = channel.kind;
            let new = subscriber.of[kind as usize].insert(key);
            if new {
                channel.members.push(session);
            }
            let count = subscriber.count(kind);
            confirm(&mut reply, version, kind, true, Some(&channel.name), count);
            if new {
                self.tell(key);
            } else {
                // It had claimed it before.
                self.unclaim(key, subscriber);
            }
        }
        reply
    }

    /// The session does not become a member of what it has claimed.
    fn give_up(&mut self, channels: &[Key], subscriber: &mut Subscriber) {
        for channel in channels {
            self.unclaim(*channel, subscriber);
        }
    }

    /// The session is a member no longer; its claims are given up already.
    fn leave(&mut self, session: Key, channels: &[Key]) {
        for &key in channels {
            if let Some(channel) = self.channels.get_mut(key)
                && let Some(at) = channel.members.iter().position(|member| *member == session)
            {
                channel.members.swap_remove(at);
                self.tell(key);
                self.drop_unused(key);
            }
        }
    }

    fn drop_unused(&mut self, key: Key) {
        let unused = |channel: &Channel| {
            channel.claims == 0
                && channel.members.is_empty()
                && channel.in_flight == 0
                && !channel.wanted
        };
        if self.channels.get(key).is_some_and(unused)
            && let Some(channel) = self.channels.remove(key)
        {
            debug_assert_eq!(channel.told, 0, "without members there is no excess");
            self.names[channel.kind as usize].remove(&channel.name);
        }
    }

    /// Tells the directory how many more there are than the server knows.
    fn tell(&mut self, key: Key) {
        let Some(channel) = self.channels.get_mut(key) else {
            return;
        };
        let excess = if channel.confirmed {
            channel.members.len() as i64 - 1
        } else {
            0
        };
        let change = excess - std::mem::replace(&mut channel.told, excess);
        self.directory
            .add(self.pool, channel.kind, &channel.name, change);
    }

    /// The server has answered what it was asked first.
    fn answer(&mut self) {
        self.in_flight.pop_front();
        self.answered += 1;
    }
}

impl From<Wait> for Done {
    fn from(wait: Wait) -> Done {
        Done {
            session: wait.session,
            seq: wait.seq,
            what: wait.what,
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.handle_down();
    }
}

/// A claim with its name, in the hub's tables, the channel's list and the session's set.
fn claim_bytes(name: &[u8]) -> usize {
    name.len() + CLAIM_BYTES
}

const CLAIM_BYTES: usize = 64;

/// Appends what a client is told of one channel.
fn confirm(
    out: &mut Vec<u8>,
    version: Version,
    kind: Kind,
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

/// Appends the header of something that answers no request.
fn push(out: &mut Vec<u8>, version: Version, len: usize) {
    let start = out.len();
    encode::array(out, len);
    if version == Version::Resp3 {
        out[start] = b'>';
    }
}

/// What a server's push says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Push<'a> {
    /// It is for the members of this channel.
    Message { kind: Kind, name: &'a [u8] },
    /// It confirms.
    Confirmed {
        kind: Kind,
        on: bool,
        name: &'a [u8],
    },
    /// Anything else.
    Other,
}

impl<'a> Push<'a> {
    /// Reads as much of a push as says for whom it is; `None` if that has not come whole.
    pub(crate) fn read(frame: &'a [u8]) -> Option<Push<'a>> {
        let mut rest = line(frame)?.1;
        let Some(word) = bulk(&mut rest)? else {
            return Some(Push::Other);
        };
        let what = match word {
            b"message" => (Kind::Channel, None),
            b"pmessage" => (Kind::Pattern, None),
            b"smessage" => (Kind::Shard, None),
            _ => {
                let confirms = |kind: &Kind| {
                    let mut on = [true, false].into_iter();
                    on.find(|on| kind.verb(*on).as_bytes() == word)
                };
                let found = Kind::ALL
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
        Some(match what {
            (kind, None) => Push::Message { kind, name },
            (kind, Some(on)) => Push::Confirmed { kind, on, name },
        })
    }
}

/// A line without its end, and what is behind it.
fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|&byte| byte == b'\n')?;
    Some((bytes[..end].strip_suffix(b"\r")?, &bytes[end + 1..]))
}

/// The bulk string in front; `Some(None)` if something else stands there.
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
