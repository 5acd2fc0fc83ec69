//! What several servers are asked for one request: each its part, and their replies become one.
//!
//! A part is an entry of its link's ledger like any other, with the place of the whole in the order
//! of the session's replies. The session keeps what has come until all parts have; whoever fails
//! has failed the whole.

use std::collections::{HashMap, VecDeque};

use respool_protocol::commands::{Answer, CommandId, Names, Retry, Spread, id};
use respool_protocol::encode;
use respool_protocol::fan::{self, Cursor, Divided, Merged, Part, Sections, Undivided};
use respool_protocol::glob::SIFTED_BYTES_MAX;

use crate::bounds::Bound;
use crate::duty::Duty;
use crate::engine::Engine;
use crate::entry::{Class, Entry};
use crate::here::adds_our_section;
use crate::limits::{Limits, gathered_bytes_max, gathered_bytes_option};
use crate::pool::{Group, Pools, ServerId};
use crate::quick_code::may_hold_up;
use crate::readers::{NO_READER, NoReader};
use crate::requests::{Blocked, Placed, Request, bound_reply};
use crate::route::{CROSSSLOT, Standing};
use crate::scripts::Effect;
use crate::session::{Flags, Session};
use crate::slots::Key;
use crate::strip::{Scan, UNKNOWN_ARGUMENTS};
use crate::subscriptions::Kind;

/// Memory for a reply that is put together, between two of them.
const REPLY_BYTES_KEPT: usize = 64 << 10;

/// To a request whose keys are in more slots of more Clusters than have numbers.
const MANY: &[u8] =
    b"ERR respool: the keys are in too many slots of several Clusters: ask for less at once";
/// To SCAN where a Cluster has more owners of slots than it has numbers of.
const MANY_SCANNED: &[u8] =
    b"ERR respool: the pool has more servers than SCAN can tell apart: ask the servers themselves";

/// To what servers answer with more than is held.
fn too_large(limits: &Limits) -> Vec<u8> {
    let most = gathered_bytes_max(limits);
    let option = gathered_bytes_option(limits);
    let mut reply = Vec::new();
    let text = format!(
        "ERR respool: what the servers answer is together larger than {most} bytes, at which it is \
         not held ({option}): ask for less at once, or raise that option"
    );
    encode::error(&mut reply, text.as_bytes());
    reply
}

/// What the keys of a request belong to, by numbers that tell it apart.
enum Met {
    /// In a pool that has no parts: by its own.
    Whole(u16),
    /// In others: in the order in which it is met.
    Parts {
        groups: Vec<Group>,
        numbers: HashMap<Group, u16>,
    },
}

impl Met {
    fn new(pools: &Pools, pool: u16) -> Met {
        match pools.parts_of(usize::from(pool)) {
            [only] if *only == pool => Met::Whole(pool),
            _ => Met::Parts {
                groups: Vec::new(),
                numbers: HashMap::new(),
            },
        }
    }

    #[inline]
    fn number_of(&mut self, group: Group) -> u16 {
        match self {
            Met::Whole(_) => group.number,
            Met::Parts { groups, numbers } => *numbers.entry(group).or_insert_with(|| {
                groups.push(group);
                (groups.len() - 1) as u16
            }),
        }
    }

    fn group_of(&self, number: u16) -> Group {
        match self {
            Met::Whole(pool) => Group {
                pool: *pool,
                number,
            },
            Met::Parts { groups, .. } => groups[usize::from(number)],
        }
    }

    /// Whether there were more of them than there are numbers.
    fn is_over(&self) -> bool {
        matches!(self, Met::Parts { groups, .. } if groups.len() > 1 << u16::BITS)
    }
}

/// A request of which several servers have a part, until all have answered.
pub(crate) struct Gather {
    /// Its place in the order of the session's replies.
    seq: u32,
    id: CommandId,
    merge: How,
    parts: Vec<Answered>,
    /// Parts that are not answered.
    waiting: usize,
    /// Bytes of those that are.
    held_bytes: usize,
    /// What our client is told if a part failed without a reply.
    failure: Option<Vec<u8>>,
    /// A part was executed, or may have been.
    executed: bool,
    silent: bool,
    /// Of KEYS, its pattern: a server that sees keys without their prefix may be asked for more,
    /// and what it finds is then looked through.
    sifted_by: Option<Box<[u8]>>,
}

/// How the parts become one.
enum How {
    /// Of each key, which part it is in.
    ByKey(Vec<u16>),
    /// As the table says of the command.
    AsSaid,
    /// INFO: which sections were asked for, and whether our own is added.
    Info { asked: Sections, ours: bool },
}

struct Answered {
    server: ServerId,
    reply: Vec<u8>,
}

impl Gather {
    /// Parts that are not answered.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Its place in the order of the session's replies.
    pub(crate) fn seq(&self) -> u32 {
        self.seq
    }

    /// Whether some of its parts are answered.
    pub(crate) fn has_answers(&self) -> bool {
        self.waiting < self.parts.len()
    }

    /// What it takes apart from the answers.
    pub(crate) fn memory_bytes(&self) -> usize {
        let order = match &self.merge {
            How::ByKey(order) => order.capacity() * size_of::<u16>(),
            How::AsSaid | How::Info { .. } => 0,
        };
        size_of::<Gather>() + self.parts.capacity() * size_of::<Answered>() + order
    }

    /// What was answered is of no use.
    fn drop_parts(&mut self) {
        for part in &mut self.parts {
            part.reply = Vec::new();
        }
        self.held_bytes = 0;
    }

    /// Where that of a place is in a session's list, which is in the order of places, none in front
    /// of `head`.
    pub(crate) fn find(gathers: &VecDeque<Gather>, head: u32, seq: u32) -> Option<usize> {
        let ahead = |seq: u32| seq.wrapping_sub(head);
        gathers
            .binary_search_by_key(&ahead(seq), |gather| ahead(gather.seq))
            .ok()
    }

    /// Who answers a part, and which keys that names.
    pub(crate) fn part(&self, index: u16) -> Option<(ServerId, Names)> {
        let part = self.parts.get(usize::from(index))?;
        Some((part.server, self.id.get().names))
    }

    pub(crate) fn sifted_by(&self) -> Option<&[u8]> {
        self.sifted_by.as_deref()
    }
}

impl Engine {
    /// A request whose keys belong to several servers: each owner gets its own.
    pub(crate) fn divide(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let Some(session) = self.sessions.get(key) else {
            return Placed::Done;
        };
        let (pool, any) = (session.pool, session.next_seq);
        let kind = self.kind_of(session);
        let mut split = std::mem::take(&mut self.split);
        let mut met = Met::new(&self.pools, pool);
        let pools = &self.pools;
        let group_of = |name: &[u8]| met.number_of(pools.group_of(pool, name, || any));
        let divided = split.divide(request.id, request.bytes, request.spans, group_of);
        let placed = match divided {
            _ if met.is_over() => self.answer_error(key, MANY),
            Ok(Divided::Shares) => {
                let owned = split.shares();
                let owned = owned.map(|share| {
                    let group = met.group_of(share.group);
                    (self.pools.server_of(group), share.request)
                });
                let mut parts: Vec<_> = owned.collect();
                let mut parts_of = parts.iter_mut();
                let found = parts_of.try_for_each(|(server, _)| {
                    *server = self.server_in_reach(key, *server, request.command, kind)?;
                    Ok(())
                });
                let stripped = match self.strips(key) {
                    true => self.strip_parts(&parts, |engine, server, share| {
                        engine.strip_share(server, request.command, share)
                    }),
                    false => Ok(Vec::new()),
                };
                match (found, stripped) {
                    (Ok(()), Ok(stripped)) => {
                        let merge = How::ByKey(split.order().to_vec());
                        self.ask_several(key, request, &as_seen(&parts, &stripped), merge)
                    }
                    (Ok(()), Err(text)) => self.refuse_stripped(key, text),
                    (Err(NoReader), _) => self.answer_error(key, NO_READER),
                }
            }
            Ok(Divided::Whole { group }) => {
                let owner = self.pools.server_of(met.group_of(group));
                match self.server_in_reach(key, owner, request.command, kind) {
                    Ok(server) => {
                        self.turn(key, server);
                        match self.strips(key) {
                            true => self.place_stripped(key, request, false),
                            false => self.place_on_link(key, request.bytes, is_read(request), None),
                        }
                    }
                    Err(NoReader) => self.answer_error(key, NO_READER),
                }
            }
            Err(Undivided::Together) => self.answer_error(key, CROSSSLOT),
            Err(Undivided::Keys) if self.strips(key) => {
                self.refuse_stripped(key, UNKNOWN_ARGUMENTS)
            }
            // The server says in its own words what is wrong with it.
            Err(Undivided::Keys) => self.place_on_link(key, request.bytes, false, None),
        };
        split.reset();
        self.split = split;
        placed
    }

    /// Every server of the pool gets the request; what is about sharded channels, those that may
    /// have some.
    pub(crate) fn ask_all(&mut self, key: Key, request: &Request<'_>) -> Placed {
        self.ask_each(key, request, request.bytes, How::AsSaid)
    }

    /// These servers get the request.
    pub(crate) fn ask_these(
        &mut self,
        key: Key,
        request: &Request<'_>,
        servers: &[ServerId],
    ) -> Placed {
        let parts: Vec<_> = servers
            .iter()
            .map(|server| (*server, request.bytes))
            .collect();
        self.ask_several(key, request, &parts, How::AsSaid)
    }

    /// INFO of all servers: the sections that the client asked for are made of these.
    pub(crate) fn ask_info(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let sections = || request.args().skip(1);
        let asked = Sections::asked(sections());
        let mut bytes = Vec::new();
        asked.request(sections(), &mut bytes);
        let ours = adds_our_section(request);
        self.ask_each(key, request, &bytes, How::Info { asked, ours })
    }

    /// Every server of the pool gets these bytes.
    fn ask_each(&mut self, key: Key, request: &Request<'_>, bytes: &[u8], merge: How) -> Placed {
        let Some(session) = self.sessions.get(key) else {
            return Placed::Done;
        };
        let pool = usize::from(session.pool);
        let servers = match request.command.fan_out.spread {
            Spread::Channels => self.pools.first_of(pool).servers(),
            _ => self.pools[pool].servers(),
        };
        let parts: Vec<_> = servers.iter().map(|server| (*server, bytes)).collect();
        let stripped = match request.id {
            id::KEYS if self.strips(key) => self.strip_parts(&parts, |engine, server, _| {
                engine.strip_keys(server, request)
            }),
            _ => Ok(Vec::new()),
        };
        let stripped = match stripped {
            Ok(stripped) => stripped,
            Err(text) => return self.refuse_stripped(key, text),
        };
        let parts = as_seen(&parts, &stripped);
        self.ask_several(key, request, &parts, merge)
    }

    /// What each server is asked, if that is something else to it.
    fn strip_parts<'a>(
        &self,
        parts: &[(ServerId, &'a [u8])],
        strip: impl Fn(&Engine, ServerId, &'a [u8]) -> Result<Option<Vec<u8>>, &'static [u8]>,
    ) -> Result<Vec<Option<Vec<u8>>>, &'static [u8]> {
        let parts = parts.iter();
        parts
            .map(|(server, bytes)| strip(self, *server, bytes))
            .collect()
    }

    /// SCAN goes through one server after the other: which one it is at, its cursor says.
    pub(crate) fn scan(&mut self, key: Key, request: &Request<'_>) -> Placed {
        let Some(session) = self.sessions.get(key) else {
            return Placed::Done;
        };
        let cursor = request
            .spans
            .get(1)
            .and_then(|span| Cursor::parse(span.of(request.bytes)));
        let Some(cursor) = cursor else {
            return self.answer_error(key, b"ERR invalid cursor");
        };
        let pool = usize::from(session.pool);
        if !self.pools.numbers_all(pool) {
            return self.answer_error(key, MANY_SCANNED);
        }
        let Some(((number, server), next)) = self.pools.scanned_from(pool, cursor.server) else {
            // Those that were left are gone.
            return self.answer_reply(key, b"*2\r\n$1\r\n0\r\n*0\r\n");
        };
        let is_its = number == cursor.server;
        if !is_its && cursor != Cursor::default() {
            // It was another one's that is gone, or is one's that another worker knows already.
            self.doubt_owners(server);
        }
        let cursor = if is_its { cursor.cursor } else { 0 };
        self.turn(key, server);
        let Scan {
            request: stripped,
            sifted_by,
        } = match self.strips(key).then(|| self.strip_scan(key, request)) {
            Some(Err(text)) => return self.refuse_stripped(key, text),
            Some(Ok(stripped)) => stripped,
            None => Scan::default(),
        };
        let mut bytes = Vec::new();
        let at = Cursor {
            server: number,
            cursor,
        };
        // Its options alone may be others, and those stand behind the cursor.
        let asked = stripped.as_deref().unwrap_or(request.bytes);
        fan::scan_request(asked, request.spans, at, &mut bytes);
        let duty = Duty::Scan {
            number,
            next,
            sifted_by,
        };
        self.place_on_link(key, &bytes, true, Some(duty))
    }

    /// What a server has answered to that, with the cursor that the client is to see.
    pub(crate) fn scanned(
        &self,
        link: Key,
        (number, next): (u16, Option<u16>),
        reply: &[u8],
    ) -> Vec<u8> {
        let part = Part {
            server: self.label(link),
            reply,
        };
        let mut out = Vec::new();
        fan::scan_reply(part, number, next, &mut out);
        out
    }

    fn ask_several(
        &mut self,
        key: Key,
        request: &Request<'_>,
        parts: &[(ServerId, &[u8])],
        merge: How,
    ) -> Placed {
        let servers = parts.iter().map(|(server, _)| *server);
        let links = match request.command.answer {
            Answer::Alone => self.links_alone(key, servers.collect()),
            // All of them, before any is asked: nothing is to be done by halves that could be
            // known.
            _ => servers
                .map(|server| self.link_to(key, server, request))
                .collect(),
        };
        let links = match links {
            Ok(links) => links,
            Err(blocked) => return self.blocked(key, blocked),
        };
        let Some(session) = self.sessions.get_mut(key) else {
            return Placed::Done;
        };
        let seq = session.take_seq();
        let silent = session.flags.any(Flags::SILENT | Flags::SILENT_ONCE);
        let may_be_sifted = request.id == id::KEYS && session.flags.any(Flags::STRIPS);
        let pattern = request.args().nth(1).filter(|_| may_be_sifted);
        let pattern = pattern.filter(|pattern| pattern.len() <= SIFTED_BYTES_MAX);
        let sifted_by = pattern.map(Into::into);
        let gathers = &mut session.rare().gathers;
        let is_behind = |last: &Gather| seq.wrapping_sub(last.seq) as i32 > 0;
        debug_assert!(gathers.back().is_none_or(is_behind), "places are in order");
        gathers.push_back(Gather {
            seq,
            id: request.id,
            merge,
            waiting: parts.len(),
            held_bytes: 0,
            parts: parts
                .iter()
                .map(|(server, _)| Answered {
                    server: *server,
                    reply: Vec::new(),
                })
                .collect(),
            failure: None,
            executed: false,
            silent,
            sifted_by,
        });
        let reads = is_read(request);
        let tracks = self.tracks_several(key);
        for (index, ((_, bytes), link)) in parts.iter().zip(links).enumerate() {
            if tracks {
                self.put_caching(key, link);
            }
            let Some(state) = self.links.get_mut(link) else {
                continue;
            };
            let entry = Entry {
                len: bytes.len() as u32,
                class: Class::of(reads),
                duty: true,
                ..Entry::of(key, seq, self.asked_ms)
            };
            let duty = Duty::Part {
                index: index as u16,
                effect: Effect::of(request.id),
            };
            state.push_with(entry, bytes, duty);
            self.counters.link_requests += 1;
            self.list_link(link);
            self.close_if_full(link);
        }
        Placed::Done
    }

    /// The link to a server, ready to take a request of this session: the link that all share, or
    /// the one on which the session tracks.
    fn link_to(
        &mut self,
        key: Key,
        server: ServerId,
        request: &Request<'_>,
    ) -> Result<Key, Blocked> {
        if self.tracks_several(key) {
            let link = self.tracking_link(key, server)?;
            return self.ready_link(key, link);
        }
        let Some(session) = self.sessions.get(key) else {
            return Err(Blocked::Wait);
        };
        let mut kind = self.kind_at(session, server);
        if may_hold_up(request.id) {
            kind = self.kind_for_flush(key, kind);
        }
        let link = match self.current_link(kind) {
            Some(link) => link,
            None => self.shared_link_for(key, kind)?,
        };
        let link = self.ready_link(key, link)?;
        match self.await_writes(key, link, request.bytes, is_read(request)) {
            Some(blocked) => Err(blocked),
            None => Ok(link),
        }
    }

    /// A link to each server that carries nothing else, for a request that must not wait behind
    /// others there. The links serve this one request, as streaming links do, and count among them.
    /// At the bound of streaming links, each is an emergency link.
    fn links_alone(&mut self, key: Key, servers: Vec<ServerId>) -> Result<Vec<Key>, Blocked> {
        // What the session asked before is executed before.
        if self.hold_until_caught_up(key) {
            return Err(Blocked::Wait);
        }
        for server in &servers {
            let first = self.shared.get(&self.first_link(*server)).copied();
            if let Some(first) = first.filter(|_| self.standing(*server) == Standing::Away) {
                return Err(Blocked::Refused(
                    self.no_link_reply(first, self.away_error(key)),
                ));
            }
        }
        let has_room = self.may_stream(key, servers.len()) && self.has_room_for_link();
        let is_urgent = !has_room
            && servers
                .iter()
                .all(|server| self.has_room_for_emergency(*server));
        if !has_room && !is_urgent {
            return Err(self.wait_for_emergency(key, Bound::StreamingLinks));
        }
        self.set_gives_up_at(key, None);
        let mut links = Vec::with_capacity(servers.len());
        for server in servers {
            let Some(session) = self.sessions.get(key) else {
                return Err(Blocked::Wait);
            };
            let kind = self.kind_of(session).at(server);
            let link = match is_urgent {
                true => self.emergency_link(kind, key),
                false => self.link_once(kind, key),
            };
            match link {
                Some(link) => links.push(link),
                None => {
                    links.into_iter().for_each(|link| self.close_link(link));
                    self.next_streaming();
                    return Err(Blocked::Refused(bound_reply("links-max")));
                }
            }
        }
        Ok(links)
    }

    /// A part is asked of another server now.
    pub(crate) fn ask_part_of(&mut self, entry: Entry, index: u16, server: ServerId) {
        let gather = self.gather_of(entry);
        let part = gather.and_then(|gather| gather.parts.get_mut(usize::from(index)));
        if let Some(part) = part {
            part.server = server;
        }
    }

    /// What a server has answered to its part of a request, if it was asked for one and has.
    pub(crate) fn answer_of(&mut self, entry: Entry, server: ServerId) -> Option<Vec<u8>> {
        let mut parts = self.gather_of(entry)?.parts.iter();
        let part = parts.find(|part| part.server == server && !part.reply.is_empty())?;
        Some(part.reply.clone())
    }

    /// A server has answered its part.
    pub(crate) fn take_part_of(&mut self, entry: Entry, index: u16, reply: &[u8]) {
        let named = self.part_named(entry, index, reply);
        let reply = named.as_deref().unwrap_or(reply);
        let most = gathered_bytes_max(&self.settings.limits);
        let settings = self.settings.clone();
        let Some(gather) = self.gather_of(entry) else {
            self.counters.late_replies += 1;
            return;
        };
        gather.waiting -= 1;
        gather.executed |= !reply.starts_with(b"-");
        let before = gather.held_bytes;
        if gather.failure.is_some() {
            // Nobody is told what it says.
        } else if before + reply.len() > most {
            gather.failure = Some(too_large(&settings.limits));
            gather.drop_parts();
        } else if let Some(part) = gather.parts.get_mut(usize::from(index)) {
            part.reply = reply.to_vec();
            gather.held_bytes += reply.len();
        }
        let after = gather.held_bytes;
        self.held_bytes = self.held_bytes + after - before;
        if let Some(session) = self.sessions.get_mut(entry.session) {
            let gathered = &mut session.rare().gathered_bytes;
            *gathered = *gathered + after - before;
        }
        self.bound_gathered(entry.session);
        self.finish_gather(entry);
    }

    /// What parts bring is bounded as what comes before its turn.
    fn bound_gathered(&mut self, key: Key) {
        let limits = &self.settings.limits;
        let Some(session) = self.sessions.get(key) else {
            return;
        };
        let parked = session.parked_bytes();
        if parked > gathered_bytes_max(limits) {
            let reason = "worker-memory-bytes-max: replies of several servers";
            self.close_for(key, reason.to_owned());
        } else if parked > limits.session_output_soft_bytes as usize {
            self.early.push(key);
        }
    }

    /// A part gets no reply. Whether the entry was one.
    pub(crate) fn fail_part(&mut self, entry: Entry, error: &[u8]) -> bool {
        let Some(gather) = self.gather_of(entry) else {
            return false;
        };
        gather.waiting -= 1;
        gather.executed |= !error.starts_with(b"-NOTSENT");
        gather.failure.get_or_insert_with(|| error.to_vec());
        self.finish_gather(entry);
        true
    }

    /// Whether the entry is a part of a request for several servers.
    pub(crate) fn is_part(&mut self, entry: Entry) -> bool {
        self.gather_of(entry).is_some()
    }

    fn gather_of(&mut self, entry: Entry) -> Option<&mut Gather> {
        let session = self.sessions.get_mut(entry.session)?;
        let gathers = &mut session.rare.as_mut()?.gathers;
        let at = Gather::find(gathers, session.head_seq, entry.seq)?;
        gathers.get_mut(at)
    }

    /// The last part makes one reply of all.
    fn finish_gather(&mut self, entry: Entry) {
        let take = |session: &mut Session| {
            let rare = session.rare.as_mut()?;
            let at = Gather::find(&rare.gathers, session.head_seq, entry.seq)?;
            if rare.gathers[at].waiting > 0 {
                return None;
            }
            let gather = rare.gathers.remove(at)?;
            rare.gathered_bytes -= gather.held_bytes();
            Some(gather)
        };
        let Some(gather) = self.sessions.get_mut(entry.session).and_then(take) else {
            return;
        };
        self.held_bytes -= gather.held_bytes();
        let mut reply = std::mem::take(&mut self.scratch);
        reply.clear();
        let failed = match &gather.failure {
            Some(failure) => {
                reply.extend_from_slice(failure);
                true
            }
            None if is_agreement(gather.id) && gather.parts.len() == 1 => {
                // In its own words.
                reply.extend_from_slice(&gather.parts[0].reply);
                false
            }
            None => {
                let answered = gather.parts.iter();
                let parts: Vec<_> = answered
                    .map(|part| Part {
                        server: &self.servers[usize::from(part.server.0)].label,
                        reply: &part.reply,
                    })
                    .collect();
                let merger = &mut self.merger;
                let merged = match &gather.merge {
                    How::ByKey(order) => merger.merge(gather.id, order, &parts, &mut reply),
                    How::AsSaid => merger.merge(gather.id, &[], &parts, &mut reply),
                    How::Info { asked, .. } => merger.merge_info(*asked, &parts, &mut reply),
                };
                merged != Merged::Whole
            }
        };
        if let How::Info { ours, .. } = gather.merge
            && !failed
        {
            reply = self.with_our_section(entry.session, ours, &reply);
        }
        if gather.id == id::PUBSUB_SHARDNUMSUB
            && !failed
            && let Some(session) = self.sessions.get(entry.session)
        {
            reply = self.recount(session.pool, &Duty::Subscribers(Kind::Shard), &reply);
        }
        // What some servers refuse is undone at the others.
        let is_undone = is_agreement(gather.id);
        let writes = gather.id.get().retry == Retry::Write && !is_undone;
        if failed && gather.executed && writes {
            // What it says is true of its part.
            let why = reply.strip_prefix(b"-").unwrap_or(&reply).trim_ascii_end();
            let why = String::from_utf8_lossy(why);
            let text = format!(
                "UNKNOWN respool: a part of the command was executed, or may have been; {why}"
            );
            reply.clear();
            encode::error(&mut reply, text.as_bytes());
        }
        if is_undone {
            self.settle_tracking(entry.session, &reply);
        }
        let reply_to_it = if gather.silent { b"" } else { reply.as_slice() };
        self.deliver(entry.session, entry.seq, 1, reply_to_it);
        // What was large is not kept.
        reply.clear();
        reply.shrink_to(REPLY_BYTES_KEPT);
        self.scratch = reply;
    }
}

/// The parts of a request with what its servers are to see of it.
fn as_seen<'a>(
    parts: &[(ServerId, &'a [u8])],
    stripped: &'a [Option<Vec<u8>>],
) -> Vec<(ServerId, &'a [u8])> {
    let seen = |(index, (server, bytes)): (usize, &(ServerId, &'a [u8]))| {
        let other = stripped.get(index).and_then(Option::as_deref);
        (*server, other.unwrap_or(bytes))
    };
    parts.iter().enumerate().map(seen).collect()
}

/// Whether all servers of a session have to agree to a command that is about its links.
fn is_agreement(command: CommandId) -> bool {
    matches!(
        command,
        id::CLIENT_TRACKING | id::CLIENT_NO_TOUCH | id::CLIENT_IMPORT_SOURCE
    )
}

fn is_read(request: &Request<'_>) -> bool {
    request.command.retry == Retry::Read
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error of a bound names the option and its value.
    #[test]
    fn too_large_answers_name_their_option() {
        let mut limits = Limits {
            worker_memory_bytes_max: 1 << 20,
            session_output_hard_bytes: 1_000,
            ..Limits::default()
        };
        let by_memory = String::from_utf8(too_large(&limits)).expect("text");
        assert!(
            by_memory.contains("larger than 131072 bytes"),
            "{by_memory}"
        );
        let option = "(an eighth of worker-memory-bytes-max, which is 1048576)";
        assert!(by_memory.contains(option), "{by_memory}");
        limits.session_output_hard_bytes = 200_000;
        let by_output = String::from_utf8(too_large(&limits)).expect("text");
        assert!(
            by_output.contains("larger than 200000 bytes"),
            "{by_output}"
        );
        let option = "(session-output-hard-bytes, which is 200000)";
        assert!(by_output.contains(option), "{by_output}");
    }

    /// What belongs to another part has another number, though the part's own be the same; and that
    /// there are too many is noticed.
    #[test]
    fn what_is_met_is_told_apart_as_long_as_there_are_numbers() {
        let mut met = Met::Parts {
            groups: Vec::new(),
            numbers: HashMap::new(),
        };
        let all = (0..5).flat_map(|pool| (0..16_384).map(move |number| Group { pool, number }));
        for (place, group) in all.enumerate() {
            let is_over = place >= 1 << u16::BITS;
            let number = met.number_of(group);
            assert_eq!(met.is_over(), is_over, "{place}");
            if !is_over {
                assert_eq!(usize::from(number), place);
                assert_eq!(
                    (met.group_of(number), met.number_of(group)),
                    (group, number)
                );
            }
        }
        assert!(met.is_over());
    }
}
