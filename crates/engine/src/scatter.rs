//! Scatter-gather: one request for several servers. Each server gets its share, and their replies
//! become one reply.
//!
//! A share is an entry in its link's ledger like any other. It has the place of the whole request
//! in the session's reply order. The session keeps the parts that have come until all have come. If
//! one part fails, the whole request fails.

pub(crate) mod key_prefix;

use std::collections::{HashMap, VecDeque};

use respool_protocol::commands::{Command, CommandId, Names, Retry, Spread, id};
use respool_protocol::encode;
use respool_protocol::fan::{
    self, Cursor, Divided, Merged, Merger, Part, Sections, Split, Undivided,
};
use respool_protocol::glob::SIFTED_BYTES_MAX;

use crate::base::error_text::CROSSSLOT;
use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::{Limits, gathered_bytes_max, gathered_bytes_option};
use crate::base::session_map::SessionMap;
use crate::data_plane::DataPlane;
use crate::data_plane::charges::{Charge, ChargeKind};
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::local::ScriptEffect;
use crate::data_plane::completion::scatter::ScatterCompletion;
use crate::data_plane::ingress::Request;
use crate::data_plane::ledger::{Class, Entry};
use crate::data_plane::session::Flags;
use crate::routing::pool::{Group, Pools, ServerId};
use crate::scatter::key_prefix::Scan;

/// Buffers for requests that several servers share.
#[derive(Default)]
pub(crate) struct Scatter {
    /// Divides a request among servers.
    pub(crate) split: Split,
    /// Merges the replies of its shares.
    pub(crate) merger: Merger,
    /// Requests that have not all their parts yet.
    scattered: SessionMap<ScatteredRequests>,
}

/// The scattered requests of a session.
#[derive(Default)]
struct ScatteredRequests {
    /// In the order of their places.
    requests: VecDeque<ScatterRequest>,
    /// The number of shares without an answer.
    waiting: usize,
    /// The requests, and the parts that have come.
    charge: Charge,
}

impl ScatteredRequests {
    /// The index of the request with the place `seq`. No request is before `head`.
    fn find(&self, head: u32, seq: u32) -> Option<usize> {
        let ahead = |seq: u32| seq.wrapping_sub(head);
        self.requests
            .binary_search_by_key(&ahead(seq), |gather| ahead(gather.seq))
            .ok()
    }
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
pub(crate) enum MergeRule {
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
    /// Whether a part has come.
    fn has_answers(&self) -> bool {
        self.waiting < self.parts.len()
    }

    /// Its memory without the parts' bytes.
    fn memory_bytes(&self) -> usize {
        let order = match &self.merge {
            MergeRule::ByKey(order) => order.capacity() * size_of::<u16>(),
            MergeRule::AsSaid | MergeRule::Info { .. } => 0,
        };
        size_of::<ScatterRequest>() + self.parts.capacity() * size_of::<Answered>() + order
    }

    /// Drops the parts that have come.
    fn drop_parts(&mut self) {
        for part in &mut self.parts {
            part.reply = Vec::new();
        }
        self.held_bytes = 0;
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

/// The servers that get a request with several keys.
pub(crate) enum Division<'a> {
    /// Each of these servers owns some of the keys, and gets its share. The owners are known, not
    /// the servers that are read in their place.
    Shares(Vec<(ServerId, &'a [u8])>, MergeRule),
    /// This server owns all keys.
    Whole(ServerId),
    /// No server gets the request. Its client gets this error.
    Refused(&'static [u8]),
    /// The keys cannot be found: any server refuses the request.
    NoKeys,
}

/// The next step of a SCAN.
pub(crate) enum ScanStep {
    /// The client gets this error.
    Refused(&'static [u8]),
    /// The remaining servers of the scan are gone.
    Over,
    /// This server is asked.
    Ask {
        server: ServerId,
        at: Cursor,
        /// The number of the server behind it.
        next: Option<u16>,
        /// The cursor names a server that is gone, or one that only another worker knows so far.
        is_lost: bool,
    },
}

/// A scattered request whose parts have all come, with the reply that was made of them.
pub(crate) struct Finished {
    /// The session and the place of the request.
    pub(crate) entry: Entry,
    pub(crate) reply: Vec<u8>,
    id: CommandId,
    failed: bool,
    silent: bool,
    /// INFO: whether respool's own section is added.
    adds_section: Option<bool>,
}

impl Finished {
    /// Whether respool's own section is added to this reply to INFO. `None`: the reply is no INFO.
    pub(crate) fn adds_section(&self) -> Option<bool> {
        self.adds_section.filter(|_| !self.failed)
    }

    /// Whether the reply counts the subscribers of sharded channels.
    pub(crate) fn counts_shard_subscribers(&self) -> bool {
        self.id == id::PUBSUB_SHARDNUMSUB && !self.failed
    }

    /// Whether the command is about the session's links: see [`is_agreement`].
    pub(crate) fn is_agreement(&self) -> bool {
        is_agreement(self.id)
    }
}

/// The effect of an answer to a share on its request.
pub(crate) enum ShareOutcome {
    /// The entry is no share, or its request has ended.
    NoShare,
    /// Other shares have no answer yet.
    Waits,
    /// It was the last one.
    Finished(Finished),
}

impl Scatter {
    /// The buffers that divide requests. They come back with [`Scatter::keep_split`].
    pub(crate) fn take_split(&mut self) -> Split {
        std::mem::take(&mut self.split)
    }

    /// Keeps the buffers for the next request.
    pub(crate) fn keep_split(&mut self, mut split: Split) {
        split.reset();
        self.split = split;
    }

    /// Divides a request whose keys belong to several servers: each owner gets the share with its
    /// keys.
    pub(crate) fn divide<'a>(
        &self,
        plane: &DataPlane,
        session: SessionId,
        request: &Request<'_>,
        split: &'a mut Split,
    ) -> Division<'a> {
        let Some(session) = plane.sessions.get(session) else {
            return Division::NoKeys;
        };
        let (pool, any) = (session.pool, session.next_seq);
        let pools = &plane.pools;
        let mut key_groups = KeyGroups::new(pools, pool);
        let group_of = |key: &[u8]| key_groups.number_of(pools.group_of(pool, key, || any));
        match split.divide(request.id, request.bytes, request.spans, group_of) {
            _ if key_groups.is_over() => Division::Refused(MANY),
            Ok(Divided::Shares) => {
                let owned = split.shares().map(|share| {
                    let group = key_groups.group_of(share.group);
                    (pools.server_of(group), share.request)
                });
                let order = split.order().to_vec();
                Division::Shares(owned.collect(), MergeRule::ByKey(order))
            }
            Ok(Divided::Whole { group }) => {
                Division::Whole(pools.server_of(key_groups.group_of(group)))
            }
            Err(Undivided::Together) => Division::Refused(CROSSSLOT),
            Err(Undivided::Keys) => Division::NoKeys,
        }
    }

    /// The servers that get a request for all servers of a session's pool. A request about sharded
    /// channels goes only to the servers that may have such channels.
    pub(crate) fn servers_for_all(
        &self,
        plane: &DataPlane,
        session: SessionId,
        spread: Spread,
    ) -> Vec<ServerId> {
        let Some(session) = plane.sessions.get(session) else {
            return Vec::new();
        };
        let pool = usize::from(session.pool);
        match spread {
            Spread::Channels => plane.pools.first_of(pool).servers().to_vec(),
            _ => plane.pools[pool].servers().to_vec(),
        }
    }

    /// The shares of a divided request without the prefixes of their servers. A share is `None` if
    /// it is the same.
    pub(crate) fn strip_shares(
        &self,
        plane: &DataPlane,
        session: SessionId,
        command: &Command,
        parts: &[(ServerId, &[u8])],
    ) -> Result<Vec<Option<Vec<u8>>>, &'static [u8]> {
        if !plane.removes_prefix(session) {
            return Ok(Vec::new());
        }
        let strip =
            |(server, share): &(ServerId, &[u8])| self.strip_share(plane, *server, command, share);
        parts.iter().map(strip).collect()
    }

    /// KEYS for servers that see keys without their prefixes. A request is `None` if it is the
    /// same.
    pub(crate) fn strip_keys_of_all(
        &self,
        plane: &DataPlane,
        session: SessionId,
        request: &Request<'_>,
        servers: &[ServerId],
    ) -> Result<Vec<Option<Vec<u8>>>, &'static [u8]> {
        if request.id != id::KEYS || !plane.removes_prefix(session) {
            return Ok(Vec::new());
        }
        let strip = |server: &ServerId| self.strip_keys(plane, *server, request);
        servers.iter().map(strip).collect()
    }

    /// SCAN goes through one server after the other. The cursor says which server is next.
    pub(crate) fn scan_step(
        &self,
        plane: &DataPlane,
        session: SessionId,
        request: &Request<'_>,
    ) -> ScanStep {
        let cursor = request
            .spans
            .get(1)
            .and_then(|span| Cursor::parse(span.of(request.bytes)));
        let Some(cursor) = cursor else {
            return ScanStep::Refused(b"ERR invalid cursor");
        };
        let Some(session) = plane.sessions.get(session) else {
            return ScanStep::Over;
        };
        let pool = usize::from(session.pool);
        if !plane.pools.numbers_all(pool) {
            return ScanStep::Refused(MANY_SCANNED);
        }
        let Some(((number, server), next)) = plane.pools.scanned_from(pool, cursor.server) else {
            return ScanStep::Over;
        };
        let is_same_server = number == cursor.server;
        ScanStep::Ask {
            server,
            at: Cursor {
                server: number,
                cursor: if is_same_server { cursor.cursor } else { 0 },
            },
            next,
            is_lost: !is_same_server && cursor != Cursor::default(),
        }
    }

    /// The SCAN for a server to which its session has switched, and the completion of its reply.
    pub(crate) fn scan_request(
        &self,
        plane: &DataPlane,
        session: SessionId,
        request: &Request<'_>,
        (at, next): (Cursor, Option<u16>),
    ) -> Result<(Vec<u8>, Completion), &'static [u8]> {
        let Scan {
            request: stripped,
            sifted_by,
        } = match plane.removes_prefix(session) {
            true => self.strip_scan(plane, session, request)?,
            false => Scan::default(),
        };
        let mut bytes = Vec::new();
        // Removing the prefix changes options alone, and these come after the cursor.
        let asked = stripped.as_deref().unwrap_or(request.bytes);
        let number = at.server;
        fan::scan_request(asked, request.spans, at, &mut bytes);
        let duty = Completion::Scatter(ScatterCompletion::Scan {
            number,
            next,
            sifted_by,
        });
        Ok((bytes, duty))
    }

    /// Sends the shares of a request, each on its link. All links are ready, so that no request is
    /// half sent.
    pub(crate) fn start(
        &mut self,
        plane: &mut DataPlane,
        session_id: SessionId,
        request: &Request<'_>,
        parts: &[(ServerId, &[u8])],
        links: Vec<LinkId>,
        merge: MergeRule,
    ) {
        let Some(session) = plane.sessions.get_mut(session_id) else {
            return;
        };
        let seq = session.take_seq();
        let silent = session.flags.is_silent();
        let may_be_sifted = request.id == id::KEYS && session.flags.any(Flags::STRIPS);
        let pattern = request.args().nth(1).filter(|_| may_be_sifted);
        let pattern = pattern.filter(|pattern| pattern.len() <= SIFTED_BYTES_MAX);
        let sifted_by = pattern.map(Into::into);
        let scattered = ScatterRequest {
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
        };
        self.add(plane, session_id, scattered);
        let reads = is_read(request);
        let tracks = plane.tracks_several(session_id);
        for (index, ((_, bytes), link)) in parts.iter().zip(links).enumerate() {
            if tracks {
                plane.put_caching(session_id, link);
            }
            let Some(state) = plane.links.get_mut(link) else {
                continue;
            };
            let entry = Entry {
                len: bytes.len() as u32,
                class: Class::of(reads),
                duty: true,
                ..Entry::of(session_id, seq, plane.asked_ms)
            };
            let duty = Completion::Scatter(ScatterCompletion::Part {
                index: index as u16,
                effect: ScriptEffect::of(request.id),
            });
            state.push_with(entry, bytes, duty);
            plane.counters.link_requests += 1;
            plane.list_link(link);
            plane.close_if_full(link);
        }
    }

    /// Keeps a server's answer to its share, and merges the parts if it is the last one.
    pub(crate) fn handle_part(
        &mut self,
        plane: &mut DataPlane,
        entry: Entry,
        index: u16,
        reply: &[u8],
    ) -> ShareOutcome {
        let named = self.part_named(plane, entry, index, reply);
        let reply = named.as_deref().unwrap_or(reply);
        if !self.take_part(plane, entry, index, reply) {
            plane.counters.late_replies += 1;
            return ShareOutcome::NoShare;
        }
        self.bound_scattered(plane, entry.session);
        self.finish(plane, entry)
    }

    /// Notes that a share gets no reply, but this error.
    pub(crate) fn fail_share(
        &mut self,
        plane: &mut DataPlane,
        entry: Entry,
        error: &[u8],
    ) -> ShareOutcome {
        if !self.fail_part(plane, entry, error) {
            return ShareOutcome::NoShare;
        }
        self.finish(plane, entry)
    }

    /// After the last part, makes the reply of all parts.
    fn finish(&mut self, plane: &mut DataPlane, entry: Entry) -> ShareOutcome {
        let Some(gather) = self.take_finished(plane, entry) else {
            return ShareOutcome::Waits;
        };
        let mut reply = std::mem::take(&mut plane.scratch);
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
                        server: &plane.servers[usize::from(part.server.0)].label,
                        reply: &part.reply,
                    })
                    .collect();
                let merger = &mut self.merger;
                let merged = match &gather.merge {
                    MergeRule::ByKey(order) => merger.merge(gather.id, order, &parts, &mut reply),
                    MergeRule::AsSaid => merger.merge(gather.id, &[], &parts, &mut reply),
                    MergeRule::Info { asked, .. } => merger.merge_info(*asked, &parts, &mut reply),
                };
                merged != Merged::Whole
            }
        };
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
        let adds_section = match gather.merge {
            MergeRule::Info { adds_section, .. } => Some(adds_section),
            MergeRule::ByKey(_) | MergeRule::AsSaid => None,
        };
        ShareOutcome::Finished(Finished {
            entry,
            reply,
            id: gather.id,
            failed,
            silent: gather.silent,
            adds_section,
        })
    }

    /// Delivers the reply to a scattered request to its session.
    pub(crate) fn deliver(&mut self, plane: &mut DataPlane, finished: Finished) {
        let Finished {
            entry,
            mut reply,
            silent,
            ..
        } = finished;
        let client_reply = if silent { b"" } else { reply.as_slice() };
        plane.deliver(entry.session, entry.seq, 1, client_reply);
        // A large buffer is not kept.
        reply.clear();
        reply.shrink_to(REPLY_BYTES_KEPT);
        plane.scratch = reply;
    }
}

/// The shares of a request as their servers shall see them.
pub(crate) fn as_seen<'a>(
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

pub(crate) fn is_read(request: &Request<'_>) -> bool {
    request.command.retry == Retry::Read
}

impl Scatter {
    /// Drops the requests of a session that is closed.
    pub(crate) fn forget_session(&mut self, id: SessionId) {
        self.scattered.remove(id);
    }

    /// Memory of the table by session, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.scattered.table_bytes()
    }

    /// Adds a request whose shares leave now.
    fn add(&mut self, plane: &mut DataPlane, id: SessionId, request: ScatterRequest) {
        let of = self.scattered.get_or_default(id);
        let is_behind = |last: &ScatterRequest| request.seq.wrapping_sub(last.seq) as i32 > 0;
        debug_assert!(
            of.requests.back().is_none_or(is_behind),
            "places are in order"
        );
        of.waiting += request.waiting;
        of.charge.memory += request.memory_bytes();
        of.requests.push_back(request);
        plane.charge(id, ChargeKind::Parts, of.charge);
    }

    /// The requests of the entry's session, and the index of the entry's own request among them.
    fn locate(&self, plane: &DataPlane, entry: Entry) -> Option<(&ScatteredRequests, usize)> {
        let head = plane.sessions.get(entry.session)?.head_seq;
        let of = self.scattered.get(entry.session)?;
        Some((of, of.find(head, entry.seq)?))
    }

    fn locate_mut(
        &mut self,
        plane: &DataPlane,
        entry: Entry,
    ) -> Option<(&mut ScatteredRequests, usize)> {
        let head = plane.sessions.get(entry.session)?.head_seq;
        let of = self.scattered.get_mut(entry.session)?;
        let at = of.find(head, entry.seq)?;
        Some((of, at))
    }

    /// Whether the entry is the share of one server of a scattered request.
    pub(crate) fn is_share(&self, plane: &DataPlane, entry: Entry) -> bool {
        self.locate(plane, entry).is_some()
    }

    /// Requests of a session that have not all their parts, and the parts that they wait for.
    pub(crate) fn waiting_of(&self, id: SessionId) -> (usize, usize) {
        let of = self.scattered.get(id);
        of.map_or((0, 0), |of| (of.requests.len(), of.waiting))
    }

    /// The place behind the last request of which a part has come.
    pub(crate) fn end_of_parts(&self, id: SessionId) -> Option<u32> {
        let mut answered = self.scattered.get(id)?.requests.iter().rev();
        let last = answered.find(|gather| gather.has_answers())?;
        Some(last.seq.wrapping_add(1))
    }

    /// Keeps a server's answer to its share. Returns whether the request is still there.
    fn take_part(&mut self, plane: &mut DataPlane, entry: Entry, index: u16, reply: &[u8]) -> bool {
        let Some((of, at)) = self.locate_mut(plane, entry) else {
            return false;
        };
        let limits = &plane.settings.limits;
        let gather = &mut of.requests[at];
        gather.waiting -= 1;
        gather.executed |= !reply.starts_with(b"-");
        let before = gather.held_bytes;
        if gather.failure.is_some() {
            // The request has failed already: this part is not used.
        } else if before + reply.len() > gathered_bytes_max(limits) {
            gather.failure = Some(too_large(limits));
            gather.drop_parts();
        } else if let Some(part) = gather.parts.get_mut(usize::from(index)) {
            part.reply = reply.to_vec();
            gather.held_bytes += reply.len();
        }
        let after = gather.held_bytes;
        of.waiting -= 1;
        of.charge.counted = of.charge.counted + after - before;
        of.charge.memory = of.charge.memory + after - before;
        plane.charge(entry.session, ChargeKind::Parts, of.charge);
        true
    }

    /// Notes that a share gets no reply. Returns whether the entry was a share.
    fn fail_part(&mut self, plane: &DataPlane, entry: Entry, error: &[u8]) -> bool {
        let Some((of, at)) = self.locate_mut(plane, entry) else {
            return false;
        };
        of.waiting -= 1;
        let gather = &mut of.requests[at];
        gather.waiting -= 1;
        gather.executed |= !error.starts_with(b"-NOTSENT");
        gather.failure.get_or_insert_with(|| error.to_vec());
        true
    }

    /// Takes out the entry's request, if it waits for no more parts.
    fn take_finished(&mut self, plane: &mut DataPlane, entry: Entry) -> Option<ScatterRequest> {
        let (of, at) = self.locate_mut(plane, entry)?;
        if of.requests[at].waiting > 0 {
            return None;
        }
        let gather = of.requests.remove(at)?;
        of.charge.counted -= gather.held_bytes;
        of.charge.memory -= gather.held_bytes + gather.memory_bytes();
        let charge = of.charge;
        if of.requests.is_empty() {
            self.scattered.remove(entry.session);
        }
        plane.charge(entry.session, ChargeKind::Parts, charge);
        Some(gather)
    }

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
        plane: &DataPlane,
        entry: Entry,
        index: u16,
        server: ServerId,
    ) {
        let Some((of, at)) = self.locate_mut(plane, entry) else {
            return;
        };
        if let Some(part) = of.requests[at].parts.get_mut(usize::from(index)) {
            part.server = server;
        }
    }

    /// The answer of a server to its share of a request, if it has a share and has answered.
    pub(crate) fn answer_of(
        &self,
        plane: &DataPlane,
        entry: Entry,
        server: ServerId,
    ) -> Option<Vec<u8>> {
        let (of, at) = self.locate(plane, entry)?;
        let mut parts = of.requests[at].parts.iter();
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
