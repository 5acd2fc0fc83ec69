//! Scatter-gather: one request for several servers. Each server gets its share, and their replies
//! become one reply.
//!
//! A share is an entry in its link's ledger like any other. It has the place of the whole request
//! in the session's reply order. The session keeps the parts that have come until all have come. If
//! one part fails, the whole request fails.

pub(crate) mod key_prefix;

use std::collections::{HashMap, VecDeque};

use respool_protocol::commands::{Answer, CommandId, Names, Retry, Spread, id};
use respool_protocol::encode;
use respool_protocol::fan::{
    self, Cursor, Divided, Merged, Merger, Part, Sections, Split, Undivided,
};
use respool_protocol::glob::SIFTED_BYTES_MAX;

use crate::base::error_text::CROSSSLOT;
use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::{Limits, gathered_bytes_max, gathered_bytes_option};
use crate::data_plane::DataPlane;
use crate::data_plane::bounds_met::Bound;
use crate::data_plane::completion::Completion;
use crate::data_plane::ingress::{Blocked, Dispatched, Request, bound_reply};
use crate::data_plane::ledger::{Class, Entry};
use crate::data_plane::quick_code::may_hold_up;
use crate::data_plane::session::{Flags, Session};
use crate::discovery::replicas::{NO_READER, NoReader};
use crate::engine::Engine;
use crate::engine::router::Standing;
use crate::local::adds_our_section;
use crate::local::scripts::ScriptEffect;
use crate::pubsub::hub::ChannelKind;
use crate::routing::pool::{Group, Pools, ServerId};
use crate::scatter::key_prefix::{Scan, UNKNOWN_ARGUMENTS};

/// Buffers for requests that several servers share.
#[derive(Default)]
pub(crate) struct Scatter {
    /// Divides a request among servers.
    pub(crate) split: Split,
    /// Merges the replies of its shares.
    pub(crate) merger: Merger,
}

/// The memory that the merge buffer keeps between two replies.
const REPLY_BYTES_KEPT: usize = 64 << 10;

/// The error for a request whose keys are in more groups than fit the group numbers.
const MANY: &[u8] =
    b"ERR respool: the keys are in too many slots of several Clusters: ask for less at once";
/// The error for SCAN if the pool has more servers than fit the server numbers of a cursor.
const MANY_SCANNED: &[u8] =
    b"ERR respool: the pool has more servers than SCAN can tell apart: ask the servers themselves";

/// The error for a request whose parts are together larger than respool holds.
fn too_large(limits: &Limits) -> Vec<u8> {
    let most = gathered_bytes_max(limits);
    let option = gathered_bytes_option(limits);
    let mut reply = Vec::new();
    let text = format!(
        "ERR respool: the replies of the servers are together larger than {most} bytes \
         ({option}): ask for less at once, or raise that option"
    );
    encode::error(&mut reply, text.as_bytes());
    reply
}

/// The owners of a request's keys, each with a number.
enum KeyGroups {
    /// A pool without subpools: the owner's own number.
    Whole(u16),
    /// A pool with subpools: numbers in the order in which the owners are first met.
    Parts {
        groups: Vec<Group>,
        numbers: HashMap<Group, u16>,
    },
}

impl KeyGroups {
    fn new(pools: &Pools, pool: u16) -> KeyGroups {
        match pools.parts_of(usize::from(pool)) {
            [only] if *only == pool => KeyGroups::Whole(pool),
            _ => KeyGroups::Parts {
                groups: Vec::new(),
                numbers: HashMap::new(),
            },
        }
    }

    #[inline]
    fn number_of(&mut self, group: Group) -> u16 {
        match self {
            KeyGroups::Whole(_) => group.number,
            KeyGroups::Parts { groups, numbers } => *numbers.entry(group).or_insert_with(|| {
                groups.push(group);
                (groups.len() - 1) as u16
            }),
        }
    }

    fn group_of(&self, number: u16) -> Group {
        match self {
            KeyGroups::Whole(pool) => Group {
                pool: *pool,
                number,
            },
            KeyGroups::Parts { groups, .. } => groups[usize::from(number)],
        }
    }

    /// Whether there were more owners than numbers.
    fn is_over(&self) -> bool {
        matches!(self, KeyGroups::Parts { groups, .. } if groups.len() > 1 << u16::BITS)
    }
}

/// A request with shares at several servers, until all have answered.
pub(crate) struct ScatterRequest {
    /// Its place in the session's reply order.
    seq: u32,
    id: CommandId,
    merge: MergeRule,
    parts: Vec<Answered>,
    /// The number of shares without an answer.
    waiting: usize,
    /// Bytes of the parts that have come.
    held_bytes: usize,
    /// The error reply for the client, once a share failed without a reply.
    failure: Option<Vec<u8>>,
    /// A share was executed, or may have been.
    executed: bool,
    silent: bool,
    /// The pattern of KEYS. A server that sees keys without their prefix may be asked for a wider
    /// pattern. Its part is then filtered by this one.
    sifted_by: Option<Box<[u8]>>,
}

/// How the parts become one reply.
enum MergeRule {
    /// By key: the index of the part that has each key.
    ByKey(Vec<u16>),
    /// By the rule that the command table has for the command.
    AsSaid,
    /// INFO: the requested sections, and whether respool's own section is added.
    Info { asked: Sections, adds_section: bool },
}

struct Answered {
    server: ServerId,
    reply: Vec<u8>,
}

impl ScatterRequest {
    /// The number of shares without an answer.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Its place in the session's reply order.
    pub(crate) fn seq(&self) -> u32 {
        self.seq
    }

    /// Whether a part has come.
    pub(crate) fn has_answers(&self) -> bool {
        self.waiting < self.parts.len()
    }

    /// Its memory without the parts' bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let order = match &self.merge {
            MergeRule::ByKey(order) => order.capacity() * size_of::<u16>(),
            MergeRule::AsSaid | MergeRule::Info { .. } => 0,
        };
        size_of::<ScatterRequest>() + self.parts.capacity() * size_of::<Answered>() + order
    }

    /// Drops the parts that have come.
    fn drop_shares(&mut self) {
        for part in &mut self.parts {
            part.reply = Vec::new();
        }
        self.held_bytes = 0;
    }

    /// The index of the scattered request with the place `seq` in a session's list. The list is in
    /// the order of places, and none is before `head`.
    pub(crate) fn find(gathers: &VecDeque<ScatterRequest>, head: u32, seq: u32) -> Option<usize> {
        let ahead = |seq: u32| seq.wrapping_sub(head);
        gathers
            .binary_search_by_key(&ahead(seq), |gather| ahead(gather.seq))
            .ok()
    }

    /// The server that answers a share, and which keys its reply names.
    pub(crate) fn part(&self, index: u16) -> Option<(ServerId, Names)> {
        let part = self.parts.get(usize::from(index))?;
        Some((part.server, self.id.get().names))
    }

    pub(crate) fn sifted_by(&self) -> Option<&[u8]> {
        self.sifted_by.as_deref()
    }
}

impl Engine {
    /// Divides a request whose keys belong to several servers: each owner gets the share with its
    /// keys.
    pub(crate) fn divide(&mut self, session_id: SessionId, request: &Request<'_>) -> Dispatched {
        let Some(session) = self.plane.sessions.get(session_id) else {
            return Dispatched::Done;
        };
        let (pool, any) = (session.pool, session.next_seq);
        let kind = self.plane.kind_of(session);
        let mut split = std::mem::take(&mut self.scatter.split);
        let mut key_groups = KeyGroups::new(&self.plane.pools, pool);
        let pools = &self.plane.pools;
        let group_of = |key: &[u8]| key_groups.number_of(pools.group_of(pool, key, || any));
        let divided = split.divide(request.id, request.bytes, request.spans, group_of);
        let placed = match divided {
            _ if key_groups.is_over() => self.answer_error(session_id, MANY),
            Ok(Divided::Shares) => {
                let owned = split.shares();
                let owned = owned.map(|share| {
                    let group = key_groups.group_of(share.group);
                    (self.plane.pools.server_of(group), share.request)
                });
                let mut parts: Vec<_> = owned.collect();
                let mut parts_of = parts.iter_mut();
                let found = parts_of.try_for_each(|(server, _)| {
                    *server = self.discovery.server_in_reach(
                        &mut self.plane,
                        session_id,
                        *server,
                        request.command,
                        kind,
                    )?;
                    Ok(())
                });
                let stripped = match self.plane.removes_prefix(session_id) {
                    true => self.strip_shares(&parts, |engine, server, share| {
                        engine
                            .scatter
                            .strip_share(&engine.plane, server, request.command, share)
                    }),
                    false => Ok(Vec::new()),
                };
                match (found, stripped) {
                    (Ok(()), Ok(stripped)) => {
                        let merge = MergeRule::ByKey(split.order().to_vec());
                        self.ask_several(session_id, request, &as_seen(&parts, &stripped), merge)
                    }
                    (Ok(()), Err(text)) => self.refuse_stripped(session_id, text),
                    (Err(NoReader), _) => self.answer_error(session_id, NO_READER),
                }
            }
            Ok(Divided::Whole { group }) => {
                let owner = self.plane.pools.server_of(key_groups.group_of(group));
                match self.discovery.server_in_reach(
                    &mut self.plane,
                    session_id,
                    owner,
                    request.command,
                    kind,
                ) {
                    Ok(server) => {
                        self.switch_server(session_id, server);
                        match self.plane.removes_prefix(session_id) {
                            true => self.dispatch_stripped(session_id, request, false),
                            false => self.dispatch_on_link(
                                session_id,
                                request.bytes,
                                is_read(request),
                                None,
                            ),
                        }
                    }
                    Err(NoReader) => self.answer_error(session_id, NO_READER),
                }
            }
            Err(Undivided::Together) => self.answer_error(session_id, CROSSSLOT),
            Err(Undivided::Keys) if self.plane.removes_prefix(session_id) => {
                self.refuse_stripped(session_id, UNKNOWN_ARGUMENTS)
            }
            // The server answers with its own error.
            Err(Undivided::Keys) => self.dispatch_on_link(session_id, request.bytes, false, None),
        };
        split.reset();
        self.scatter.split = split;
        placed
    }

    /// Sends the request to every server of the pool. A request about sharded channels goes only to
    /// the servers that may have such channels.
    pub(crate) fn ask_all(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        self.ask_each(id, request, request.bytes, MergeRule::AsSaid)
    }

    /// Sends the request to these servers.
    pub(crate) fn ask_these(
        &mut self,
        id: SessionId,
        request: &Request<'_>,
        servers: &[ServerId],
    ) -> Dispatched {
        let parts: Vec<_> = servers
            .iter()
            .map(|server| (*server, request.bytes))
            .collect();
        self.ask_several(id, request, &parts, MergeRule::AsSaid)
    }

    /// Sends INFO to all servers. The sections that the client asked for are made from theirs.
    pub(crate) fn ask_info(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        let sections = || request.args().skip(1);
        let asked = Sections::asked(sections());
        let mut bytes = Vec::new();
        asked.request(sections(), &mut bytes);
        let adds_section = adds_our_section(request);
        self.ask_each(
            id,
            request,
            &bytes,
            MergeRule::Info {
                asked,
                adds_section,
            },
        )
    }

    /// Sends these bytes to every server of the pool.
    fn ask_each(
        &mut self,
        session_id: SessionId,
        request: &Request<'_>,
        bytes: &[u8],
        merge: MergeRule,
    ) -> Dispatched {
        let Some(session) = self.plane.sessions.get(session_id) else {
            return Dispatched::Done;
        };
        let pool = usize::from(session.pool);
        let servers = match request.command.fan_out.spread {
            Spread::Channels => self.plane.pools.first_of(pool).servers(),
            _ => self.plane.pools[pool].servers(),
        };
        let parts: Vec<_> = servers.iter().map(|server| (*server, bytes)).collect();
        let stripped = match request.id {
            id::KEYS if self.plane.removes_prefix(session_id) => self
                .strip_shares(&parts, |engine, server, _| {
                    engine.scatter.strip_keys(&engine.plane, server, request)
                }),
            _ => Ok(Vec::new()),
        };
        let stripped = match stripped {
            Ok(stripped) => stripped,
            Err(text) => return self.refuse_stripped(session_id, text),
        };
        let parts = as_seen(&parts, &stripped);
        self.ask_several(session_id, request, &parts, merge)
    }

    /// The share of each server without its prefix, or `None` where that changes nothing.
    fn strip_shares<'a>(
        &self,
        parts: &[(ServerId, &'a [u8])],
        strip: impl Fn(&Engine, ServerId, &'a [u8]) -> Result<Option<Vec<u8>>, &'static [u8]>,
    ) -> Result<Vec<Option<Vec<u8>>>, &'static [u8]> {
        let parts = parts.iter();
        parts
            .map(|(server, bytes)| strip(self, *server, bytes))
            .collect()
    }

    /// SCAN goes through one server after the other. The cursor says which server is next.
    pub(crate) fn scan(&mut self, id: SessionId, request: &Request<'_>) -> Dispatched {
        let Some(session) = self.plane.sessions.get(id) else {
            return Dispatched::Done;
        };
        let cursor = request
            .spans
            .get(1)
            .and_then(|span| Cursor::parse(span.of(request.bytes)));
        let Some(cursor) = cursor else {
            return self.answer_error(id, b"ERR invalid cursor");
        };
        let pool = usize::from(session.pool);
        if !self.plane.pools.numbers_all(pool) {
            return self.answer_error(id, MANY_SCANNED);
        }
        let Some(((number, server), next)) = self.plane.pools.scanned_from(pool, cursor.server)
        else {
            // The remaining servers of the scan are gone.
            return self.plane.answer_reply(id, b"*2\r\n$1\r\n0\r\n*0\r\n");
        };
        let is_same_server = number == cursor.server;
        if !is_same_server && cursor != Cursor::default() {
            // The cursor names a server that is gone, or one that only another worker knows so far.
            self.discovery.request_refresh(&mut self.plane, server);
        }
        let cursor = if is_same_server { cursor.cursor } else { 0 };
        self.switch_server(id, server);
        let Scan {
            request: stripped,
            sifted_by,
        } = match self
            .plane
            .removes_prefix(id)
            .then(|| self.scatter.strip_scan(&self.plane, id, request))
        {
            Some(Err(text)) => return self.refuse_stripped(id, text),
            Some(Ok(stripped)) => stripped,
            None => Scan::default(),
        };
        let mut bytes = Vec::new();
        let at = Cursor {
            server: number,
            cursor,
        };
        // Removing the prefix changes options alone, and these come after the cursor.
        let asked = stripped.as_deref().unwrap_or(request.bytes);
        fan::scan_request(asked, request.spans, at, &mut bytes);
        let duty = Completion::Scan {
            number,
            next,
            sifted_by,
        };
        self.dispatch_on_link(id, &bytes, true, Some(duty))
    }

    /// Sends the shares of a request to their servers, or holds the session until all links are
    /// ready.
    fn ask_several(
        &mut self,
        session_id: SessionId,
        request: &Request<'_>,
        parts: &[(ServerId, &[u8])],
        merge: MergeRule,
    ) -> Dispatched {
        let servers = parts.iter().map(|(server, _)| *server);
        let links = match request.command.answer {
            Answer::Alone => self.links_alone(session_id, servers.collect()),
            // All links must be ready before the first share leaves, so that no request is half
            // sent.
            _ => servers
                .map(|server| self.link_to(session_id, server, request))
                .collect(),
        };
        let links = match links {
            Ok(links) => links,
            Err(blocked) => return self.plane.blocked(session_id, blocked),
        };
        let Some(session) = self.plane.sessions.get_mut(session_id) else {
            return Dispatched::Done;
        };
        let seq = session.take_seq();
        let silent = session.flags.is_silent();
        let may_be_sifted = request.id == id::KEYS && session.flags.any(Flags::STRIPS);
        let pattern = request.args().nth(1).filter(|_| may_be_sifted);
        let pattern = pattern.filter(|pattern| pattern.len() <= SIFTED_BYTES_MAX);
        let sifted_by = pattern.map(Into::into);
        let gathers = &mut session.rare().scatters;
        let is_behind = |last: &ScatterRequest| seq.wrapping_sub(last.seq) as i32 > 0;
        debug_assert!(gathers.back().is_none_or(is_behind), "places are in order");
        gathers.push_back(ScatterRequest {
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
        let tracks = self.plane.tracks_several(session_id);
        for (index, ((_, bytes), link)) in parts.iter().zip(links).enumerate() {
            if tracks {
                self.plane.put_caching(session_id, link);
            }
            let Some(state) = self.plane.links.get_mut(link) else {
                continue;
            };
            let entry = Entry {
                len: bytes.len() as u32,
                class: Class::of(reads),
                duty: true,
                ..Entry::of(session_id, seq, self.plane.asked_ms)
            };
            let duty = Completion::Part {
                index: index as u16,
                effect: ScriptEffect::of(request.id),
            };
            state.push_with(entry, bytes, duty);
            self.plane.counters.link_requests += 1;
            self.plane.list_link(link);
            self.plane.close_if_full(link);
        }
        Dispatched::Done
    }

    /// The link to a server, ready for a request of this session: the shared link, or the link on
    /// which the session tracks keys.
    fn link_to(
        &mut self,
        session_id: SessionId,
        server: ServerId,
        request: &Request<'_>,
    ) -> Result<LinkId, Blocked> {
        if self.plane.tracks_several(session_id) {
            let link = self.tracking_link(session_id, server)?;
            return self.plane.ready_link(session_id, link);
        }
        let Some(session) = self.plane.sessions.get(session_id) else {
            return Err(Blocked::Wait);
        };
        let mut kind = self.kind_at(session, server);
        if may_hold_up(request.id) {
            kind = self.plane.kind_for_flush(session_id, kind);
        }
        let link = match self.current_link(kind) {
            Some(link) => link,
            None => self.plane.shared_link_for(session_id, kind)?,
        };
        let link = self.plane.ready_link(session_id, link)?;
        match self
            .plane
            .await_writes(session_id, link, request.bytes, is_read(request))
        {
            Some(blocked) => Err(blocked),
            None => Ok(link),
        }
    }

    /// A link to each server that carries nothing else, for a request that must not wait behind
    /// others there. The links serve this one request, as streaming links do, and count among them.
    /// At the bound of streaming links, each is an emergency link.
    fn links_alone(
        &mut self,
        id: SessionId,
        servers: Vec<ServerId>,
    ) -> Result<Vec<LinkId>, Blocked> {
        // The session's earlier requests are executed first.
        if self.plane.hold_until_caught_up(id) {
            return Err(Blocked::Wait);
        }
        for server in &servers {
            let first = self
                .plane
                .shared
                .get(&self.plane.first_link(*server))
                .copied();
            if let Some(first) = first.filter(|_| self.standing(*server) == Standing::Away) {
                return Err(Blocked::Refused(
                    self.plane.no_link_reply(first, self.plane.away_error(id)),
                ));
            }
        }
        let has_room = self.pinned.may_stream(&self.plane, id, servers.len())
            && self.plane.has_room_for_link();
        let is_urgent = !has_room
            && servers
                .iter()
                .all(|server| self.pinned.has_room_for_urgent_link(&self.plane, *server));
        if !has_room && !is_urgent {
            return Err(self.pinned.wait_for_urgent_link(
                &mut self.plane,
                id,
                Bound::StreamingLinks,
            ));
        }
        self.plane.set_gives_up_at(id, None);
        let mut links = Vec::with_capacity(servers.len());
        for server in servers {
            let Some(session) = self.plane.sessions.get(id) else {
                return Err(Blocked::Wait);
            };
            let kind = self.plane.kind_of(session).at(server);
            let link = match is_urgent {
                true => self.pinned.urgent_link(&mut self.plane, kind, id),
                false => self.pinned.link_once(&mut self.plane, kind, id),
            };
            match link {
                Some(link) => links.push(link),
                None => {
                    links
                        .into_iter()
                        .for_each(|link| self.plane.close_link(link));
                    self.plane.next_streaming();
                    return Err(Blocked::Refused(bound_reply("links-max")));
                }
            }
        }
        Ok(links)
    }

    /// Keeps a server's answer to its share, and merges the parts if it is the last one.
    pub(crate) fn take_share_of(&mut self, entry: Entry, index: u16, reply: &[u8]) {
        let named = self.scatter.part_named(&self.plane, entry, index, reply);
        let reply = named.as_deref().unwrap_or(reply);
        let most = gathered_bytes_max(&self.plane.settings.limits);
        let settings = self.plane.settings.clone();
        let Some(gather) = self.plane.scatter_of(entry) else {
            self.plane.counters.late_replies += 1;
            return;
        };
        gather.waiting -= 1;
        gather.executed |= !reply.starts_with(b"-");
        let before = gather.held_bytes;
        if gather.failure.is_some() {
            // The request has failed already: this part is not used.
        } else if before + reply.len() > most {
            gather.failure = Some(too_large(&settings.limits));
            gather.drop_shares();
        } else if let Some(part) = gather.parts.get_mut(usize::from(index)) {
            part.reply = reply.to_vec();
            gather.held_bytes += reply.len();
        }
        let after = gather.held_bytes;
        self.plane.held_bytes = self.plane.held_bytes + after - before;
        if let Some(session) = self.plane.sessions.get_mut(entry.session) {
            let gathered = &mut session.rare().scattered_bytes;
            *gathered = *gathered + after - before;
        }
        self.scatter.bound_scattered(&mut self.plane, entry.session);
        self.finish_scatter(entry);
    }

    /// Notes that a share gets no reply. Returns whether the entry was a share.
    pub(crate) fn fail_share(&mut self, entry: Entry, error: &[u8]) -> bool {
        let Some(gather) = self.plane.scatter_of(entry) else {
            return false;
        };
        gather.waiting -= 1;
        gather.executed |= !error.starts_with(b"-NOTSENT");
        gather.failure.get_or_insert_with(|| error.to_vec());
        self.finish_scatter(entry);
        true
    }

    /// After the last part, merges all parts and delivers the reply.
    fn finish_scatter(&mut self, entry: Entry) {
        let take = |session: &mut Session| {
            let rare = session.rare.as_mut()?;
            let at = ScatterRequest::find(&rare.scatters, session.head_seq, entry.seq)?;
            if rare.scatters[at].waiting > 0 {
                return None;
            }
            let gather = rare.scatters.remove(at)?;
            rare.scattered_bytes -= gather.held_bytes();
            Some(gather)
        };
        let Some(gather) = self.plane.sessions.get_mut(entry.session).and_then(take) else {
            return;
        };
        self.plane.held_bytes -= gather.held_bytes();
        let mut reply = std::mem::take(&mut self.plane.scratch);
        reply.clear();
        let failed = match &gather.failure {
            Some(failure) => {
                reply.extend_from_slice(failure);
                true
            }
            None if is_agreement(gather.id) && gather.parts.len() == 1 => {
                // A single server: its own words.
                reply.extend_from_slice(&gather.parts[0].reply);
                false
            }
            None => {
                let answered = gather.parts.iter();
                let parts: Vec<_> = answered
                    .map(|part| Part {
                        server: &self.plane.servers[usize::from(part.server.0)].label,
                        reply: &part.reply,
                    })
                    .collect();
                let merger = &mut self.scatter.merger;
                let merged = match &gather.merge {
                    MergeRule::ByKey(order) => merger.merge(gather.id, order, &parts, &mut reply),
                    MergeRule::AsSaid => merger.merge(gather.id, &[], &parts, &mut reply),
                    MergeRule::Info { asked, .. } => merger.merge_info(*asked, &parts, &mut reply),
                };
                merged != Merged::Whole
            }
        };
        if let MergeRule::Info { adds_section, .. } = gather.merge
            && !failed
        {
            reply = self.with_our_section(entry.session, adds_section, &reply);
        }
        if gather.id == id::PUBSUB_SHARDNUMSUB
            && !failed
            && let Some(session) = self.plane.sessions.get(entry.session)
        {
            reply = self.pubsub.recount(
                session.pool,
                &Completion::Subscribers(ChannelKind::Shard),
                &reply,
            );
        }
        // If some servers refuse, the change is undone at the others.
        let is_undone = is_agreement(gather.id);
        let writes = gather.id.get().retry == Retry::Write && !is_undone;
        if failed && gather.executed && writes {
            // The error holds for its share alone.
            let why = reply.strip_prefix(b"-").unwrap_or(&reply).trim_ascii_end();
            let why = String::from_utf8_lossy(why);
            let text = format!(
                "UNKNOWN respool: a part of the command was executed, or may have been; {why}"
            );
            reply.clear();
            encode::error(&mut reply, text.as_bytes());
        }
        if is_undone {
            self.pinned
                .settle_tracking(&mut self.plane, entry.session, &reply);
        }
        let client_reply = if gather.silent { b"" } else { reply.as_slice() };
        self.plane
            .deliver(entry.session, entry.seq, 1, client_reply);
        // A large buffer is not kept.
        reply.clear();
        reply.shrink_to(REPLY_BYTES_KEPT);
        self.plane.scratch = reply;
    }
}

/// The shares of a request as their servers shall see them.
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

/// Whether a command about the session's links must succeed at all its servers.
fn is_agreement(command: CommandId) -> bool {
    matches!(
        command,
        id::CLIENT_TRACKING | id::CLIENT_NO_TOUCH | id::CLIENT_IMPORT_SOURCE
    )
}

fn is_read(request: &Request<'_>) -> bool {
    request.command.retry == Retry::Read
}

impl Scatter {
    /// A server's reply to SCAN, with the cursor for the client.
    pub(crate) fn scanned(
        &self,
        plane: &DataPlane,
        link: LinkId,
        (number, next): (u16, Option<u16>),
        reply: &[u8],
    ) -> Vec<u8> {
        let part = Part {
            server: plane.label(link),
            reply,
        };
        let mut out = Vec::new();
        fan::scan_reply(part, number, next, &mut out);
        out
    }

    /// Notes that a share goes to another server now.
    pub(crate) fn ask_share_of(
        &mut self,
        plane: &mut DataPlane,
        entry: Entry,
        index: u16,
        server: ServerId,
    ) {
        let gather = plane.scatter_of(entry);
        let part = gather.and_then(|gather| gather.parts.get_mut(usize::from(index)));
        if let Some(part) = part {
            part.server = server;
        }
    }

    /// The answer of a server to its share of a request, if it has a share and has answered.
    pub(crate) fn answer_of(
        &mut self,
        plane: &mut DataPlane,
        entry: Entry,
        server: ServerId,
    ) -> Option<Vec<u8>> {
        let mut parts = plane.scatter_of(entry)?.parts.iter();
        let part = parts.find(|part| part.server == server && !part.reply.is_empty())?;
        Some(part.reply.clone())
    }

    /// Holds the parts of a session to the bounds of early replies.
    fn bound_scattered(&mut self, plane: &mut DataPlane, id: SessionId) {
        let limits = &plane.settings.limits;
        let Some(session) = plane.sessions.get(id) else {
            return;
        };
        let parked = session.parked_bytes();
        if parked > gathered_bytes_max(limits) {
            let reason = "worker-memory-bytes-max: replies of several servers";
            plane.close_for(id, reason.to_owned());
        } else if parked > limits.session_output_soft_bytes as usize {
            plane.early.push(id);
        }
    }
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

    /// Groups of two subpools get two numbers, even if their own numbers are equal. Too many groups
    /// are noticed.
    #[test]
    fn key_groups_have_distinct_numbers_up_to_the_bound() {
        let mut key_groups = KeyGroups::Parts {
            groups: Vec::new(),
            numbers: HashMap::new(),
        };
        let all = (0..5).flat_map(|pool| (0..16_384).map(move |number| Group { pool, number }));
        for (place, group) in all.enumerate() {
            let is_over = place >= 1 << u16::BITS;
            let number = key_groups.number_of(group);
            assert_eq!(key_groups.is_over(), is_over, "{place}");
            if !is_over {
                assert_eq!(usize::from(number), place);
                assert_eq!(
                    (key_groups.group_of(number), key_groups.number_of(group)),
                    (group, number)
                );
            }
        }
        assert!(key_groups.is_over());
    }
}
