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
//! A [`Hub`] is all that a worker knows about the subscriptions on one server (as one of its
//! users). It is pure: the engine (`pubsub`) tells it what sessions ask ([`Hub::subscribe`],
//! [`Hub::unsubscribe`], [`Hub::forget`]) and what the server says (`handle_*`), takes from it what
//! the server is to be asked ([`Hub::poll_ask`]), and whose request is done ([`Hub::poll_done`]).
//!
//! **Claims.** A session claims a channel from the moment it asks for it until it leaves. With the
//! first claim the server is asked for the channel, without one it is told to send no more of it. A
//! *member* is a session that gets the channel's messages. It claims first and becomes a member
//! when its request is done; it gives up its claim when it asks to leave, and stays a member until
//! that request is done.
//!
//! **Order.** The server works through what the hub's link asks in that order, and its
//! confirmations and messages come in one stream. So *where* in the stream something is done says
//! everything: a request is done when the server has answered the last thing asked on its behalf,
//! and one that needs nothing of the server (others have the channel already) asks it for a sign of
//! life (`PING`). Then what was published before, and answered, before the client asked to
//! subscribe, is never delivered to it, and what was published before it asked to leave always is,
//! in front of the confirmation; as from the server itself. What several sessions ask in one turn
//! shares one such sign.
//!
//! **A lost link.** Nothing is confirmed any more. When there is a connection again, everything
//! that is claimed is asked for again; members are not told. Who waits to subscribe waits on, who
//! waits to leave is done. What was published meanwhile is lost, as it would be to a client that
//! connects again.
//!
//! **Lines.** All that is at one server comes on one [`Line`], a link with its own order. Mostly a
//! hub has no other than [`HOME`]. In front of a Cluster a sharded channel is at the owner of its
//! slot, and each owner has a line:
//!
//! ```text
//!   SSUBSCRIBE x  ─► line of the slot's owner ─► -MOVED, or the server itself says sunsubscribe
//!                         ▲                           │
//!                         └── the owner as it is then ┘     members and claims stay what they are
//! ```
//!
//! When the home of a hub moves to another server, its old one is heard for a while on a line of
//! its own ([`removal`]).
//!
//! A channel is on one line at a time, and what another one brings of it is nobody's. Who waits to
//! subscribe waits until the channel is confirmed, on whichever line.
//!
//! **Branches.** A server sends its keyspace notifications to its own subscribers alone. So a
//! channel or pattern that may bring some has a branch on a line to every other owner of keys
//! ([`branches`]).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use respool_protocol::encode::{self, Version};
use respool_protocol::events;
use respool_protocol::number;
use respool_protocol::slot::hash_slot;

use crate::directory::Directory;
use crate::pool::ServerId;
use crate::slots::{Key, Slots};
pub(crate) use crate::subscriptions::branches::Owner;
use crate::subscriptions::branches::Owners;
use crate::subscriptions::removal::Former;
use crate::time::Time;

#[path = "hub/branches.rs"]
mod branches;
#[path = "hub/removal.rs"]
mod removal;
#[path = "hub/stripped.rs"]
mod stripped;

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

/// A line, by its hub and its place among the lines of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineId {
    pub(crate) hub: HubId,
    pub(crate) line: u16,
}

/// The line to the pool's first server: all channels but the sharded ones of a Cluster, and the
/// branches at other owners.
pub(crate) const HOME: u16 = 0;

/// What one session subscribes to, all in one hub: the names of its channels there.
#[derive(Debug)]
pub(crate) struct Subscriber {
    pub(crate) hub: HubId,
    of: [HashSet<Key>; 3],
    /// How many claims it has.
    claims: usize,
    /// Bytes of the names that it claims. Other sessions may claim the same ones.
    named: usize,
    /// On how many lines a request of it is not done.
    waits: usize,
    /// The reply to it, if that is to leave.
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

    /// How many channels, patterns and shard channels.
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

    /// Room for replies and in tables beyond what is counted as held.
    pub(crate) fn slack_bytes(&self) -> usize {
        self.reply.capacity()
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
    part: Part,
    /// Shared with the table of names, the directory and requests that are to be written.
    name: Arc<[u8]>,
    /// Where it is asked for.
    line: u16,
    /// Where it is received, besides, until that line has confirmed.
    former: Option<Former>,
    /// Tells what was asked about it there from what was asked elsewhere before.
    moves: u32,
    /// How often a server has sent us elsewhere, or put us off, since it was confirmed.
    refusals: u32,
    /// Who gets its messages.
    members: Vec<Key>,
    /// Members that have not asked to leave, and sessions that wait to be members.
    claims: u32,
    /// The last that the server was asked: to send it.
    wanted: bool,
    /// The last that the server confirmed: it sends it.
    confirmed: bool,
    /// Requests about it that the server has not answered, and those that are to be sent.
    in_flight: u32,
    /// The last request to send it was left out: the request that takes it back is left out, too.
    left_out: bool,
    /// What the server said instead of a confirmation.
    refused: Option<Box<[u8]>>,
    /// The excess that the directory knows of.
    told: i64,
}

/// At how many servers a channel is subscribed to.
#[derive(Debug)]
enum Part {
    /// At one.
    Whole,
    /// At the hub's first server, and by these branches at the other owners of keys.
    Root { branches: Vec<Key> },
    /// This is the branch of a root. It is leaving if its server is no longer wanted. It has a name
    /// of its own if its server sees keys without their prefix.
    Branch {
        root: Key,
        is_leaving: bool,
        has_name: bool,
    },
}

/// What the server is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// To send this channel, or not to.
    Subscribe {
        channel: Key,
        kind: Kind,
        on: bool,
        moves: u32,
    },
    /// Not to send a channel that is on another line now.
    Abandon {
        channel: Key,
        kind: Kind,
        name: Arc<[u8]>,
    },
    /// For a sign of life.
    Ping,
}

/// What was asked of which channel, before it moved so many times.
type Asked = (Key, u32);

/// A request of a session that is not done.
struct Wait {
    session: Key,
    /// Its place in the order of the session's replies.
    seq: u32,
    since: Time,
    /// How many answers of the server there must have been.
    until: u64,
    /// The lines where it waits next, each with the answers that there must have been.
    rest: Vec<(u16, u64)>,
    what: What,
}

enum What {
    /// The session becomes a member of these channels, one for each argument of the request. The
    /// session has one claim of each.
    Join(Vec<Key>),
    /// The session leaves these channels.
    Leave(Vec<Key>),
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

/// What this worker's sessions subscribe to in one pool, as one of its users: what one may listen
/// to, another may not.
pub(crate) struct Hub {
    pub(crate) pool: u16,
    pub(crate) user: u16,
    directory: Arc<Directory>,
    pub(crate) lines: Vec<Line>,
    names: [HashMap<Arc<[u8]>, Key>; 3],
    channels: Slots<Channel>,
    claims: usize,
    /// Bytes of all channels with their names.
    bytes: usize,
    /// Channels that their server does not send, though they are claimed: to be asked for again at
    /// once, or a little later.
    again: Vec<Key>,
    later: Vec<Key>,
    /// Who waits for such a channel, or for one that has moved.
    stalled: Vec<Wait>,
    /// The servers that send keyspace notifications.
    owners: Owners,
}

/// What a hub has at one server.
pub(crate) struct Line {
    pub(crate) server: ServerId,
    /// Its link; nobody's name while there is none.
    pub(crate) link: Key,
    /// Since when nobody subscribes to anything.
    pub(crate) unused_since: Time,
    /// Bytes of the server that wait for the next turn.
    pub(crate) put_off: Vec<u8>,
    connected: bool,
    /// It was the home, which is another line now.
    is_former: bool,
    /// How many are on it.
    channels: usize,
    /// What is to be asked, what was asked and is not answered, and how much was asked and answered
    /// in all.
    to_ask: VecDeque<Ask>,
    in_flight: VecDeque<Ask>,
    asked: u64,
    answered: u64,
    /// In the order of `until`.
    waits: VecDeque<Wait>,
}

impl Line {
    fn new(server: ServerId, now: Time) -> Line {
        Line {
            server,
            link: Key::NOBODY,
            unused_since: now,
            put_off: Vec::new(),
            connected: false,
            is_former: false,
            channels: 0,
            to_ask: VecDeque::new(),
            in_flight: VecDeque::new(),
            asked: 0,
            answered: 0,
            waits: VecDeque::new(),
        }
    }

    /// Whether nobody needs its link.
    pub(crate) fn is_unused(&self) -> bool {
        self.channels == 0 && self.waits.is_empty()
    }

    /// Whether it can be another server's.
    fn is_free(&self) -> bool {
        self.is_unused() && self.link == Key::NOBODY
    }

    /// Whether anything is to be asked.
    pub(crate) fn has_asks(&self) -> bool {
        !self.to_ask.is_empty()
    }

    /// It sent bytes: whether others of it are put off already. Then these go behind them.
    pub(crate) fn goes_behind(&mut self, bytes: &[u8]) -> bool {
        let waits = !self.put_off.is_empty();
        if waits {
            self.put_off.extend_from_slice(bytes);
        }
        waits
    }

    /// Nothing was heard of the server for a while: it is asked.
    pub(crate) fn ask_for_life(&mut self) {
        if self.connected && self.to_ask.is_empty() {
            self.to_ask.push_back(Ask::Ping);
        }
    }

    /// How many answers there will have been when all has been answered that is to be asked by now.
    fn until(&self) -> u64 {
        match self.connected {
            true => self.asked + self.to_ask.len() as u64,
            false => NEVER,
        }
    }

    /// A request waits here until there are so many answers.
    fn queue(&mut self, wait: Wait) {
        let at = self.waits.partition_point(|its| its.until <= wait.until);
        self.waits.insert(at, wait);
    }

    /// The server has answered what it was asked first.
    fn answer(&mut self) {
        self.in_flight.pop_front();
        self.answered += 1;
    }
}

/// Getters.
impl Hub {
    /// Claims of all its sessions.
    pub(crate) fn claims(&self) -> usize {
        self.claims
    }

    /// Bytes of its channels, each with its name, and of what its servers sent too early.
    pub(crate) fn held_bytes(&self) -> usize {
        let put_off = self.lines.iter().map(|line| line.put_off.capacity());
        self.bytes + put_off.sum::<usize>()
    }

    /// Whether nobody needs it.
    pub(crate) fn is_free(&self) -> bool {
        self.channels.len() == 0
            && self.stalled.is_empty()
            && self.owners.holds_no_links()
            && self.lines.iter().all(Line::is_free)
    }

    /// Whether it has anything at this server, or may soon.
    pub(crate) fn needs(&self, server: ServerId) -> bool {
        let mut lines = self.lines.iter().enumerate();
        lines
            .any(|(at, line)| line.server == server && (at == usize::from(HOME) || !line.is_free()))
    }

    /// Its line of that place.
    pub(crate) fn line(&mut self, line: u16) -> &mut Line {
        &mut self.lines[usize::from(line)]
    }

    /// The line for sharded channels to that server.
    pub(crate) fn line_to(&mut self, server: ServerId, now: Time) -> u16 {
        let behind = usize::from(HOME) + 1;
        let mut of_shards = self.lines.iter().enumerate().skip(behind);
        let is_it = |line: &Line| line.server == server && !line.is_former;
        let known = of_shards.find(|(_, line)| is_it(line)).map(|(at, _)| at);
        let at = known.or_else(|| self.free_line()).unwrap_or_else(|| {
            self.lines.push(Line::new(server, now));
            self.lines.len() - 1
        });
        if !is_it(&self.lines[at]) {
            self.lines[at] = Line::new(server, now);
        }
        at as u16
    }

    /// A line behind the home that can be another server's.
    fn free_line(&self) -> Option<usize> {
        let mut lines = self.lines.iter().enumerate().skip(usize::from(HOME) + 1);
        lines.find(|(_, line)| line.is_free()).map(|(at, _)| at)
    }

    /// Whether anybody waits for a channel that is not where it was asked for.
    pub(crate) fn is_stalled(&self) -> bool {
        !self.again.is_empty() || !self.stalled.is_empty()
    }

    /// A channel that somebody claims, or that the server is still asked about.
    pub(crate) fn channel(&self, kind: Kind, name: &[u8]) -> Option<Key> {
        self.names[kind as usize].get(name).copied()
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
    pub(crate) fn write_ask(&self, line: u16, ask: &Ask, out: &mut Vec<u8>) {
        match ask {
            Ask::Ping => encode::request(out, &["PING"]),
            Ask::Subscribe { channel, on, .. } => {
                let Some(channel) = self.channels.get(*channel) else {
                    unreachable!("a channel stays as long as anything is to be asked about it");
                };
                let verb = channel.kind.verb(*on).to_ascii_uppercase();
                encode::request(out, &[verb.as_bytes(), &channel.name]);
            }
            Ask::Abandon { kind, name, .. } => {
                let verb = kind.verb(false).to_ascii_uppercase();
                encode::request(out, &[verb.as_bytes(), &name[..]]);
            }
        }
        if ask.ends_with_ping(line) {
            encode::request(out, &["PING"]);
        }
    }

    /// The sessions that a push of the server is for. `is_event`: whether it is a keyspace
    /// notification.
    pub(crate) fn receivers(
        &self,
        line: u16,
        (kind, name): (Kind, &[u8]),
        is_event: impl FnOnce() -> bool,
    ) -> &[Key] {
        let channel = self.channel(kind, name);
        let channel = channel.and_then(|channel| self.channels.get(channel));
        let receives = |channel: &&Channel| match &channel.part {
            Part::Root { branches } => self.root_receives(channel, branches, line, is_event),
            _ => channel.line == line || channel.is_heard_on_former(line),
        };
        channel.filter(receives).map_or(&[], |its| &its.members)
    }
}

impl Ask {
    /// A Cluster's node says by itself that it sends a channel no more, when its slot is another
    /// one's. So what says that it has done as it was asked is the answer to a PING behind it.
    pub(crate) fn ends_with_ping(&self, line: u16) -> bool {
        match self {
            Ask::Subscribe { on, kind, .. } => !on && *kind == Kind::Shard && line != HOME,
            Ask::Abandon { kind, .. } => *kind == Kind::Shard && line != HOME,
            Ask::Ping => false,
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
            user,
            directory,
            lines: vec![Line::new(server, now)],
            names: Default::default(),
            channels: Slots::new(),
            claims: 0,
            bytes: 0,
            again: Vec::new(),
            later: Vec::new(),
            stalled: Vec::new(),
            owners: Owners::default(),
        }
    }

    /// A session that waits for nothing asks for channels, which are all on that line.
    pub(crate) fn subscribe<'a>(
        &mut self,
        (session, seq): (Key, u32),
        subscriber: &mut Subscriber,
        (kind, line): (Kind, u16),
        names: impl Iterator<Item = &'a [u8]>,
        version: Version,
        now: Time,
    ) -> Outcome {
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
            // A channel without a claim would go when it moves.
            self.move_to(channel, line);
            self.ask(channel);
            self.claim_branches(channel, now);
            channels.push(channel);
        }
        if claimed.is_empty() {
            // It has them all: there is nothing to wait for.
            return Outcome::Reply(self.join(session, subscriber, &channels, version));
        }
        self.wait(line, (session, seq), now, What::Join(channels));
        subscriber.waits = 1;
        Outcome::Waits
    }

    /// A session that waits for nothing leaves channels: the named ones, or if none is named all of
    /// this kind.
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
        for line in 0..self.lines.len() as u16 {
            let is_there = |key: &Key| self.channels.get(*key).is_some_and(|its| its.line == line);
            let (here, rest) = left.into_iter().partition(is_there);
            left = rest;
            if !self.line(line).connected {
                self.leave(session, &here);
            } else if !here.is_empty() {
                self.wait(line, (session, seq), now, What::Leave(here));
                subscriber.waits += 1;
            }
        }
        if subscriber.waits == 0 {
            return Outcome::Reply(reply);
        }
        subscriber.reply = reply;
        Outcome::Waits
    }

    /// A session leaves everything, and waits for nothing any more.
    pub(crate) fn forget(&mut self, session: Key, subscriber: &mut Subscriber) {
        if std::mem::take(&mut subscriber.waits) > 0 {
            for what in self.take_waits(session) {
                match what {
                    What::Join(channels) => self.give_up(&channels, subscriber),
                    What::Leave(channels) => self.leave(session, &channels),
                }
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
        debug_assert_eq!(
            (subscriber.claims, subscriber.named),
            (0, 0),
            "every claim is given up once"
        );
    }

    /// What a session waits for; it waits no more.
    fn take_waits(&mut self, session: Key) -> Vec<What> {
        let mut taken = Vec::new();
        for line in &mut self.lines {
            // One on each at the most.
            if let Some(at) = line.waits.iter().position(|wait| wait.session == session) {
                taken.extend(line.waits.remove(at).map(|wait| wait.what));
            }
        }
        if let Some(at) = self.stalled.iter().position(|wait| wait.session == session) {
            taken.push(self.stalled.swap_remove(at).what);
        }
        taken
    }
}

/// What the server says.
impl Hub {
    /// There is a connection: everything is asked for.
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

    /// There is no connection any more, or none could be had.
    pub(crate) fn handle_down(&mut self, at: u16) {
        let line = self.line(at);
        line.connected = false;
        line.put_off = Vec::new();
        line.to_ask.clear();
        line.in_flight.clear();
        line.answered = line.asked;
        for key in self.on_line(at) {
            if let Some(channel) = self.channels.get_mut(key) {
                channel.wanted = false;
                channel.confirmed = false;
                channel.in_flight = 0;
                channel.left_out = false;
            }
            self.tell(key);
            self.drop_unused(key);
        }
        self.lose_former(at);
        let line = self.line(at);
        let (leaving, joining): (Vec<Wait>, Vec<Wait>) = line
            .waits
            .drain(..)
            .partition(|wait| matches!(wait.what, What::Leave(..)));
        let until = line.answered;
        line.waits
            .extend(leaving.into_iter().map(|wait| Wait { until, ..wait }));
        let until = NEVER;
        line.waits
            .extend(joining.into_iter().map(|wait| Wait { until, ..wait }));
    }

    /// The server confirms that it sends a channel from here on, or no more.
    pub(crate) fn handle_confirmed(
        &mut self,
        line: u16,
        (kind, on): (Kind, bool),
        name: &[u8],
    ) -> Result<(), Unasked> {
        let (channel, moves) = match self.line(line).in_flight.front() {
            Some(Ask::Subscribe {
                channel,
                moves,
                on: its,
                ..
            }) if *its == on => (*channel, *moves),
            Some(Ask::Abandon {
                channel,
                kind: its,
                name: of,
            }) if !on && *its == kind && **of == *name => {
                let channel = *channel;
                self.line(line).answer();
                self.end_former(line, channel);
                return Ok(());
            }
            _ => return Err(Unasked),
        };
        // If there is no such channel any more, it was another line's when it went.
        let is_it = |channel: &Channel| channel.kind == kind && *channel.name == *name;
        if !self.channels.get(channel).is_none_or(is_it) {
            return Err(Unasked);
        }
        self.line(line).answer();
        self.settle_ask((channel, moves), on);
        Ok(())
    }

    /// A Cluster's node says that it sends a sharded channel no more. If nothing was asked about
    /// that, its slot is another one's now: then the channel is to be asked for again.
    pub(crate) fn handle_dropped(&mut self, line: u16, name: &[u8]) {
        let Some(key) = self.channel(Kind::Shard, name) else {
            return;
        };
        let its = self.channels.get_mut(key);
        let Some(channel) = its.filter(|channel| channel.line == line) else {
            return;
        };
        channel.confirmed = false;
        // If it was asked for that, or for anything since, what it says to that comes behind.
        if channel.in_flight == 0 {
            channel.wanted = false;
            self.again.push(key);
        }
        self.tell(key);
        self.drop_unused(key);
    }

    /// The server answers with an error. Gives back the members of a channel that it does not send:
    /// it did so before the connection was lost, and does so no more.
    pub(crate) fn handle_refused(&mut self, line: u16, error: &[u8]) -> Result<Vec<Key>, Unasked> {
        let Some(((key, moves), on)) = self.take_answered(line)? else {
            return Ok(Vec::new());
        };
        if !on {
            // It goes on sending: we drop what nobody wants.
            self.settle_ask((key, moves), false);
            return Ok(Vec::new());
        }
        let Some(channel) = self.channels.get_mut(key).filter(|its| its.moves == moves) else {
            return Ok(Vec::new());
        };
        channel.in_flight -= 1;
        channel.refused = Some(error.into());
        if channel.in_flight == 0 {
            channel.wanted = false;
        }
        let root = channel.root(key);
        let left_behind = match channel.part {
            Part::Branch {
                root, is_leaving, ..
            } => self.left_behind_by(root, is_leaving),
            _ => channel.members.clone(),
        };
        if let Some(root) = root {
            self.owners.unsettle(root);
        }
        self.leave_former(key);
        self.drop_unused(key);
        Ok(left_behind)
    }

    /// The server sends us elsewhere, or puts us off: the channel is asked for again. `told`:
    /// nobody serves it, and whoever wants to join is told that; who has joined stays, and gets
    /// what is published when somebody serves it again.
    pub(crate) fn handle_put_off(&mut self, line: u16, told: Option<&[u8]>) -> Result<(), Unasked> {
        let Some(((key, moves), _)) = self.take_answered(line)? else {
            return Ok(());
        };
        let Some(channel) = self.channels.get_mut(key).filter(|its| its.moves == moves) else {
            return Ok(());
        };
        channel.in_flight -= 1;
        channel.confirmed = false;
        channel.refused = told.map(Into::into);
        if channel.in_flight == 0 {
            channel.wanted = false;
            channel.refusals += 1;
            // Who was sent from one to the other and back is in no hurry.
            match channel.refusals {
                1 => self.again.push(key),
                _ => self.later.push(key),
            }
        }
        self.tell(key);
        self.drop_unused(key);
        Ok(())
    }

    /// The server gives the sign of life that it was asked for.
    pub(crate) fn handle_pong(&mut self, line: u16) -> Result<(), Unasked> {
        let state = self.line(line);
        match state.in_flight.front() {
            Some(Ask::Ping) => state.answer(),
            Some(ask) if ask.ends_with_ping(line) => {
                if let Some((asked, on)) = self.take_answered(line)? {
                    self.settle_ask(asked, on);
                }
            }
            _ => return Err(Unasked),
        }
        Ok(())
    }

    /// The slot of the sharded channel that the server was asked about first.
    pub(crate) fn asked_slot(&self, line: u16) -> Option<u16> {
        match self.lines[usize::from(line)].in_flight.front()? {
            Ask::Subscribe { channel, kind, .. } if *kind == Kind::Shard => {
                let channel = self.channels.get(*channel);
                channel.map(|channel| hash_slot(&channel.name))
            }
            Ask::Subscribe { .. } | Ask::Abandon { .. } | Ask::Ping => None,
        }
    }

    /// The channel of which the server has answered what it was asked first, and whether that was
    /// to send it. `None`: it was about none.
    fn take_answered(&mut self, line: u16) -> Result<Option<(Asked, bool)>, Unasked> {
        let state = self.line(line);
        let (asked, left) = match state.in_flight.front().ok_or(Unasked)? {
            Ask::Subscribe {
                channel, on, moves, ..
            } => (Some(((*channel, *moves), *on)), None),
            Ask::Abandon { channel, .. } => (None, Some(*channel)),
            Ask::Ping => (None, None),
        };
        state.answer();
        if let Some(channel) = left {
            self.end_former(line, channel);
        }
        Ok(asked)
    }

    /// The server does as it was asked.
    fn settle_ask(&mut self, (key, moves): Asked, on: bool) {
        let Some(channel) = self.channels.get_mut(key).filter(|its| its.moves == moves) else {
            return;
        };
        channel.in_flight -= 1;
        channel.confirmed = on;
        channel.refused = None;
        if on {
            channel.refusals = 0;
            self.leave_former(key);
        }
        self.tell(key);
        self.drop_unused(key);
    }

    /// The next request that is done on a line.
    pub(crate) fn poll_done(&mut self, at: u16) -> Option<Done> {
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

    /// The next request that has waited too long to become a subscriber, and the line where it did
    /// so.
    pub(crate) fn poll_late(&mut self, now: Time, limit_ms: u32) -> Option<(u16, Done)> {
        let late = |wait: &Wait| now.since_ms(wait.since) >= u64::from(limit_ms);
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

    /// Settles a request that is done: its reply, unless it is not done on another line.
    pub(crate) fn settle(
        &mut self,
        done: Done,
        subscriber: &mut Subscriber,
        version: Version,
    ) -> Option<Vec<u8>> {
        subscriber.waits -= 1;
        match done.what {
            What::Leave(channels) => self.leave_line(done.session, subscriber, &channels),
            What::Join(channels) => {
                let refused = channels.iter().find_map(|key| self.refusal_of(*key));
                Some(match refused {
                    Some(error) => {
                        let reply = error.to_vec();
                        self.give_up(&channels, subscriber);
                        reply
                    }
                    None => self.join(done.session, subscriber, &channels, version),
                })
            }
        }
    }

    /// Settles a request that took too long: `error` is its reply, unless it was to leave.
    pub(crate) fn fail(
        &mut self,
        done: Done,
        subscriber: &mut Subscriber,
        error: impl FnOnce() -> Vec<u8>,
    ) -> Option<Vec<u8>> {
        subscriber.waits -= 1;
        match done.what {
            What::Leave(channels) => self.leave_line(done.session, subscriber, &channels),
            What::Join(channels) => {
                self.give_up(&channels, subscriber);
                Some(error())
            }
        }
    }

    fn leave_line(
        &mut self,
        session: Key,
        subscriber: &mut Subscriber,
        channels: &[Key],
    ) -> Option<Vec<u8>> {
        self.leave(session, channels);
        let is_done = subscriber.waits == 0;
        is_done.then(|| std::mem::take(&mut subscriber.reply))
    }
}

/// Requests to the server.
impl Hub {
    /// The next request of a line to its server. If its sessions have left a channel before the
    /// server was asked for it, a PING takes the place of each of the two requests. So each request
    /// has its reply.
    pub(crate) fn poll_ask(&mut self, at: u16) -> Option<Ask> {
        let ask = self.line(at).to_ask.pop_front()?;
        let ask = match ask {
            Ask::Subscribe {
                channel, on, moves, ..
            } if self.leaves_out(channel, on, moves) => {
                self.drop_unused(channel);
                Ask::Ping
            }
            ask => ask,
        };
        let line = self.line(at);
        line.in_flight.push_back(ask.clone());
        line.asked += 1;
        Some(ask)
    }

    fn leaves_out(&mut self, key: Key, on: bool, moves: u32) -> bool {
        let Some(channel) = self.channels.get_mut(key).filter(|its| its.moves == moves) else {
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
    pub(crate) fn strays(&self, owner: impl Fn(u16) -> ServerId) -> Vec<(Key, ServerId)> {
        let mut strays = Vec::new();
        for key in self.names[Kind::Shard as usize].values() {
            if let Some(channel) = self.channels.get(*key)
                && channel.line != HOME
                && let owner = owner(hash_slot(&channel.name))
                && self.lines[usize::from(channel.line)].server != owner
            {
                strays.push((*key, owner));
            }
        }
        // In no order that means anything, but always the same.
        strays.sort_unstable_by_key(|(channel, _)| channel.index);
        strays
    }

    /// A channel is asked for on that line from now on.
    pub(crate) fn move_to(&mut self, key: Key, to: u16) {
        let Some(channel) = self.channels.get_mut(key).filter(|its| its.line != to) else {
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
        for ask in &mut old.to_ask {
            if matches!(ask, Ask::Subscribe { channel, .. } if *channel == key) {
                *ask = Ask::Ping;
            }
        }
        if is_sent && old.connected {
            // It may go on sending: as a replica, or for a moment.
            let channel = key;
            old.to_ask.push_back(Ask::Abandon {
                channel,
                kind,
                name,
            });
        }
        self.tell(key);
        self.ask(key);
        self.drop_unused(key);
    }

    /// Asks again for what was put off, and has those wait for it who do.
    pub(crate) fn ask_again(&mut self) {
        for key in std::mem::take(&mut self.again) {
            self.ask(key);
        }
        for line in 0..self.lines.len() as u16 {
            let waits = std::mem::take(&mut self.line(line).waits);
            let has_moved = |wait: &Wait| {
                matches!(wait.what, What::Join(_))
                    && self.line_of(wait) != line
                    && !self.has_branch_on(line, wait)
            };
            let (gone, stay) = waits.into_iter().partition::<Vec<_>, _>(has_moved);
            self.line(line).waits = stay.into();
            self.stalled.extend(gone);
        }
        for wait in std::mem::take(&mut self.stalled) {
            if self.is_put_off(&wait) {
                self.stalled.push(wait);
                continue;
            }
            let at = self.line_of(&wait);
            let line = self.line(at);
            if at == HOME {
                // All may be confirmed there: the answer to this comes next.
                line.ask_for_life();
            }
            let until = line.until();
            line.queue(Wait { until, ..wait });
        }
    }

    /// A moment has passed: what was put off until then is asked for again.
    pub(crate) fn end_delay(&mut self) {
        self.again.append(&mut self.later);
    }

    /// Whether a channel that a session wants to join is not confirmed, and will be.
    fn is_pending(&self, wait: &Wait) -> bool {
        let is_pending = |channel: &Channel| !channel.confirmed && channel.refused.is_none();
        self.joins(wait).any(is_pending)
    }

    /// Whether such a channel is not even asked for.
    fn is_put_off(&self, wait: &Wait) -> bool {
        let is_put_off = |channel: &Channel| {
            let line = &self.lines[usize::from(channel.line)];
            line.connected && !channel.wanted && channel.refused.is_none()
        };
        self.joins(wait).any(is_put_off) || self.branches_of(wait).any(is_put_off)
    }

    /// The line of the channels that a session wants to join.
    fn line_of(&self, wait: &Wait) -> u16 {
        self.joins(wait)
            .map(|channel| channel.line)
            .next()
            .unwrap_or(HOME)
    }

    fn joins<'a>(&'a self, wait: &'a Wait) -> impl Iterator<Item = &'a Channel> {
        let channels = match &wait.what {
            What::Join(channels) => &channels[..],
            What::Leave(_) => &[],
        };
        channels.iter().filter_map(|key| self.channels.get(*key))
    }

    /// The sessions that get messages by a line, each once.
    pub(crate) fn listeners(&self, line: u16) -> HashSet<Key> {
        let here = self.channels.iter();
        let here = here.filter(|(_, channel)| channel.depends_on(line));
        here.flat_map(|(_, channel)| self.members_by(channel))
            .copied()
            .collect()
    }

    fn on_line(&self, line: u16) -> Vec<Key> {
        let here = self
            .channels
            .iter()
            .filter(|(_, channel)| channel.line == line);
        here.map(|(key, _)| key).collect()
    }
}

/// Claims and members.
impl Hub {
    /// The channel of this name; a new one is on that line.
    fn channel_or_new(&mut self, kind: Kind, line: u16, name: &[u8]) -> Key {
        if let Some(key) = self.channel(kind, name) {
            return key;
        }
        self.line(line).channels += 1;
        let name: Arc<[u8]> = name.into();
        let brings_events = kind.brings_events(&name);
        self.owners.roots += usize::from(brings_events);
        let part = match brings_events {
            true => Part::Root {
                branches: Vec::new(),
            },
            false => Part::Whole,
        };
        let channel = Channel::new(kind, part, line, name.clone());
        self.bytes += channel.bytes();
        let key = self.channels.insert(channel);
        self.names[kind as usize].insert(name, key);
        key
    }

    fn claim(&mut self, key: Key) {
        if let Some(channel) = self.channels.get_mut(key) {
            channel.claims += 1;
            self.claims += 1;
        }
    }

    fn unclaim(&mut self, key: Key, subscriber: &mut Subscriber) {
        let Some(channel) = self.channels.get_mut(key) else {
            return;
        };
        channel.claims -= 1;
        self.claims -= 1;
        subscriber.claims -= 1;
        subscriber.named -= channel.name.len();
        if channel.claims == 0 {
            self.ask(key);
            self.wither(key);
            self.drop_unused(key);
        }
    }

    /// Asks the server for what is claimed, and to stop what is not, if it was asked otherwise
    /// before.
    fn ask(&mut self, key: Key) {
        if let Some(channel) = self.channels.get_mut(key)
            && let line = &mut self.lines[usize::from(channel.line)]
            && line.connected
            && channel.wanted != (channel.claims > 0)
        {
            if let Some(root) = channel.root(key) {
                self.owners.unsettle(root);
            }
            channel.wanted = !channel.wanted;
            channel.in_flight += 1;
            line.to_ask.push_back(Ask::Subscribe {
                channel: key,
                kind: channel.kind,
                on: channel.wanted,
                moves: channel.moves,
            });
        }
    }

    /// The session's request is done when the server has answered everything that is to be asked by
    /// now: at least one thing that it has not been asked yet.
    fn wait(&mut self, line: u16, (session, seq): (Key, u32), since: Time, what: What) {
        let rest = self.rest_of(line, &what);
        let line = self.line(line);
        line.ask_for_life();
        let until = line.until();
        line.queue(Wait {
            session,
            seq,
            since,
            until,
            rest,
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
            }
        }
        reply
    }

    /// The session does not become a member of what it has claimed.
    fn give_up(&mut self, channels: &[Key], subscriber: &mut Subscriber) {
        let mut given_up = HashSet::new();
        for channel in channels {
            let is_member = subscriber.of.iter().any(|of| of.contains(channel));
            if !is_member && given_up.insert(channel) {
                self.unclaim(*channel, subscriber);
            }
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
            self.line(channel.line).channels -= 1;
            self.drop_former(key, &channel);
            self.bytes -= channel.bytes();
            match channel.part {
                Part::Branch { root, .. } => self.cut(root, key),
                Part::Root { .. } | Part::Whole => {
                    if matches!(channel.part, Part::Root { .. }) {
                        self.owners.forget(key);
                    }
                    self.names[channel.kind as usize].remove(&channel.name);
                }
            }
        }
    }

    /// Tells the directory how many more there are than the server knows.
    fn tell(&mut self, key: Key) {
        let is_counted = |channel: &&mut Channel| !matches!(channel.part, Part::Branch { .. });
        let Some(channel) = self.channels.get_mut(key).filter(is_counted) else {
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
}

impl Channel {
    fn new(kind: Kind, part: Part, line: u16, name: Arc<[u8]>) -> Channel {
        Channel {
            kind,
            part,
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
            told: 0,
        }
    }

    /// The root of this channel's branches. `key`: the channel's own key.
    fn root(&self, key: Key) -> Option<Key> {
        match self.part {
            Part::Whole => None,
            Part::Root { .. } => Some(key),
            Part::Branch { root, .. } => Some(root),
        }
    }

    /// Bytes that it takes. A branch mostly shares the name of its root.
    fn bytes(&self) -> usize {
        match self.part {
            Part::Branch {
                has_name: false, ..
            } => CHANNEL_BYTES,
            _ => self.name.len() + CHANNEL_BYTES,
        }
    }
}

impl Kind {
    /// Whether this may bring keyspace notifications.
    pub(crate) fn brings_events(self, name: &[u8]) -> bool {
        match self {
            Kind::Channel => events::is_event(name),
            Kind::Pattern => events::may_match(name),
            Kind::Shard => false,
        }
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
        for line in 0..self.lines.len() as u16 {
            self.handle_down(line);
        }
    }
}

/// What a claim takes: its place in the session's set, in the channel's list of members and in the
/// request that waits. The tables may be half empty.
const CLAIM_BYTES: usize = 64;

/// Bytes of a channel, apart from its name: its places in two tables of the hub and in the
/// directory, the counts in front of the name, and the first members. The tables may be half empty.
const CHANNEL_BYTES: usize = 512;

const _: () = assert!(2 * (size_of::<Channel>() + 8 + 2 * 32) + 32 + 64 <= CHANNEL_BYTES);

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
    /// Whether a push is a keyspace notification. `None`: it has not come far enough to tell.
    pub(crate) fn is_event(frame: &[u8]) -> Option<bool> {
        let mut rest = line(frame)?.1;
        let word = bulk(&mut rest)??;
        let name = bulk(&mut rest)??;
        match word {
            b"pmessage" => Some(events::is_event(bulk(&mut rest)??)),
            _ => Some(word == b"message" && events::is_event(name)),
        }
    }

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
#[path = "hub/tests.rs"]
mod tests;
