//! Scatter-gather: one request for several servers. Each server gets its share, and their replies
//! become one reply.
//!
//! A share is an entry in its link's ledger like any other. It has the place of the whole request
//! in the session's reply order. The data plane keeps the answers until all have come. If one share
//! fails, the whole request fails. A share that was refused is deferred, and has not failed.

use std::collections::HashMap;

use respool_protocol::commands::{Answer, Command, CommandId, Names, Spread, id};
use respool_protocol::fan::{
    self, Cursor, Divided, Merged, Merger, Part, Sections, Split, Undivided,
};
use respool_protocol::glob::SIFTED_BYTES_MAX;

use crate::base::error_text::{CROSSSLOT, NO_READER};
use crate::base::handle::{LinkId, SessionId};
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::local::ScriptEffect;
use crate::data_plane::completion::pinned::is_connection_switch;
use crate::data_plane::completion::scatter::ScatterCompletion;
use crate::data_plane::ingress::{Dispatched, Request};
use crate::data_plane::key_prefix::{Scan, UNKNOWN_ARGUMENTS};
use crate::data_plane::ledger::{Class, Entry};
use crate::data_plane::scattered::{MergeRule, ScatterRequest};
use crate::data_plane::session::Flags;
use crate::routing::pool::{Group, Pools, ServerId};
use crate::routing::replica_table::NoReader;

/// Buffers for requests that several servers share.
#[derive(Default)]
pub(crate) struct Scatter {
    /// Divides a request among servers.
    split: Split,
    /// Merges the replies of its shares.
    merger: Merger,
}

/// The memory that the merge buffer keeps between two replies.
const REPLY_BYTES_KEPT: usize = 64 << 10;

/// The error for a request with keys in more groups than there are group numbers.
const MANY: &[u8] =
    b"ERR respool: the keys are in too many slots of several Clusters: ask for less at once";
/// The error for SCAN if the pool has more servers than there are server numbers in a cursor.
const MANY_SCANNED: &[u8] =
    b"ERR respool: the pool has more servers than SCAN can tell apart: ask the servers themselves";

/// The groups of a request's keys, each with a number. In a Cluster a group is a slot, elsewhere a
/// server: see [`Group`].
enum KeyGroups {
    /// A pool without subpools: the group's own number.
    Whole(u16),
    /// A pool with subpools: numbers in the order in which the groups are first met.
    BySubpool {
        groups: Vec<Group>,
        numbers: HashMap<Group, u16>,
    },
}

impl KeyGroups {
    fn new(pools: &Pools, pool: u16) -> KeyGroups {
        match pools.subpools_of(usize::from(pool)) {
            [only] if *only == pool => KeyGroups::Whole(pool),
            _ => KeyGroups::BySubpool {
                groups: Vec::new(),
                numbers: HashMap::new(),
            },
        }
    }

    #[inline]
    fn number_of(&mut self, group: Group) -> u16 {
        match self {
            KeyGroups::Whole(_) => group.number,
            KeyGroups::BySubpool { groups, numbers } => {
                *numbers.entry(group).or_insert_with(|| {
                    groups.push(group);
                    (groups.len() - 1) as u16
                })
            }
        }
    }

    fn group_of(&self, number: u16) -> Group {
        match self {
            KeyGroups::Whole(pool) => Group {
                pool: *pool,
                number,
            },
            KeyGroups::BySubpool { groups, .. } => groups[usize::from(number)],
        }
    }

    /// Whether there were more groups than numbers.
    fn is_over(&self) -> bool {
        matches!(self, KeyGroups::BySubpool { groups, .. } if groups.len() > 1 << u16::BITS)
    }
}

/// The servers that get a request with several keys.
enum Division<'a> {
    /// A share for each group of keys, with the owner of the group. A server that owns several
    /// slots may have several shares. The owners are known, not the servers that are read in their
    /// place.
    Shares(Vec<(ServerId, &'a [u8])>, MergeRule),
    /// This server owns all keys.
    Whole(ServerId),
    /// No server gets the request. Its client gets this error.
    Refused(&'static [u8]),
    /// The keys cannot be found: any server refuses the request.
    NoKeys,
}

/// The outcome of the dispatch of a request that may be divided.
pub(crate) enum DividedOutcome {
    /// It has left, waits, or was refused.
    Placed(Dispatched),
    /// One server owns all keys. The session has switched to it, and sends the request there.
    AtOwner,
}

/// The place of a SCAN among the servers.
#[derive(Clone, Copy)]
pub(crate) struct ScanPlace {
    /// The server that is asked, and its cursor.
    at: Cursor,
    /// The number of the server behind it.
    next: Option<u16>,
}

/// The outcome of the dispatch of a SCAN.
enum ScanOutcome {
    /// The client has its reply.
    Placed(Dispatched),
    /// This server is asked.
    Ask {
        server: ServerId,
        at: ScanPlace,
        /// The cursor names a server that is gone, or one that only another worker knows so far.
        is_lost: bool,
    },
}

/// A scattered request with all its parts, and the reply that was made of them.
pub(crate) struct Finished {
    /// The session and the place of the request.
    pub(crate) entry: Entry,
    pub(crate) reply: Vec<u8>,
    pub(crate) work: ReplyWork,
}

/// The work of another component on the reply to a scattered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyWork {
    None,
    /// INFO is shown as the client may see it.
    ShowInfo {
        /// respool's own section is added.
        adds_section: bool,
    },
    /// The counts of subscribers of sharded channels are corrected.
    RecountShards,
    /// The servers have agreed to a change of the session's links, or have refused it.
    SettleSwitch,
}

impl ReplyWork {
    fn of(command: CommandId, merge: &MergeRule, failed: bool) -> ReplyWork {
        match *merge {
            _ if is_connection_switch(command) => ReplyWork::SettleSwitch,
            _ if failed => ReplyWork::None,
            MergeRule::Info { adds_section, .. } => ReplyWork::ShowInfo { adds_section },
            _ if command == id::PUBSUB_SHARDNUMSUB => ReplyWork::RecountShards,
            MergeRule::ByKey(_) | MergeRule::ByTable => ReplyWork::None,
        }
    }
}

impl Scatter {
    /// Divides a request with keys of several groups: each group is a share for its owner.
    fn divide<'a>(
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
    fn servers_for_all(
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
    fn strip_shares(
        &self,
        plane: &DataPlane,
        session: SessionId,
        command: &Command,
        shares: &[(ServerId, &[u8])],
    ) -> Result<Vec<Option<Vec<u8>>>, &'static [u8]> {
        if !plane.removes_prefix(session) {
            return Ok(Vec::new());
        }
        let strip =
            |(server, share): &(ServerId, &[u8])| plane.strip_share(*server, command, share);
        shares.iter().map(strip).collect()
    }

    /// KEYS for servers that see keys without their prefixes. A request is `None` if it is the
    /// same.
    fn strip_keys_of_all(
        &self,
        plane: &DataPlane,
        session: SessionId,
        request: &Request<'_>,
        servers: &[ServerId],
    ) -> Result<Vec<Option<Vec<u8>>>, &'static [u8]> {
        if request.id != id::KEYS || !plane.removes_prefix(session) {
            return Ok(Vec::new());
        }
        let strip = |server: &ServerId| plane.strip_keys(*server, request);
        servers.iter().map(strip).collect()
    }

    /// SCAN goes through one server after the other. `refresh`: asks for a refresh of the topology,
    /// since the server of the cursor is gone.
    pub(crate) fn scan(
        &self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        refresh: impl FnOnce(&mut DataPlane, ServerId),
    ) -> Dispatched {
        match self.begin_scan(plane, id, request) {
            ScanOutcome::Placed(dispatched) => dispatched,
            ScanOutcome::Ask {
                server,
                at,
                is_lost,
            } => {
                if is_lost {
                    refresh(plane, server);
                }
                self.scan_at(plane, id, request, server, at)
            }
        }
    }

    /// The server that the cursor of a SCAN names.
    fn begin_scan(
        &self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> ScanOutcome {
        let Some(session) = plane.sessions.get(id) else {
            return ScanOutcome::Placed(Dispatched::Done);
        };
        let cursor = request
            .spans
            .get(1)
            .and_then(|span| Cursor::parse(span.of(request.bytes)));
        let Some(cursor) = cursor else {
            return ScanOutcome::Placed(plane.answer_error(id, b"ERR invalid cursor"));
        };
        let pool = usize::from(session.pool);
        if !plane.pools.numbers_all(pool) {
            return ScanOutcome::Placed(plane.answer_error(id, MANY_SCANNED));
        }
        let Some(((number, server), next)) = plane.pools.scanned_from(pool, cursor.server) else {
            // The remaining servers of the scan are gone.
            return ScanOutcome::Placed(plane.answer_reply(id, b"*2\r\n$1\r\n0\r\n*0\r\n"));
        };
        let is_same_server = number == cursor.server;
        let at = Cursor {
            server: number,
            cursor: if is_same_server { cursor.cursor } else { 0 },
        };
        ScanOutcome::Ask {
            server,
            at: ScanPlace { at, next },
            is_lost: !is_same_server && cursor != Cursor::default(),
        }
    }

    /// Sends a SCAN to this server.
    fn scan_at(
        &self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        server: ServerId,
        at: ScanPlace,
    ) -> Dispatched {
        plane.switch_server(id, server);
        match self.scan_request(plane, id, request, at) {
            Ok((bytes, completion)) => plane.dispatch_on_link(id, &bytes, true, Some(completion)),
            Err(text) => plane.refuse_stripped(id, text),
        }
    }

    /// The SCAN for a server to which its session has switched, and the completion of its reply.
    fn scan_request(
        &self,
        plane: &DataPlane,
        session: SessionId,
        request: &Request<'_>,
        ScanPlace { at, next }: ScanPlace,
    ) -> Result<(Vec<u8>, Completion), &'static [u8]> {
        let Scan {
            request: stripped,
            sifted_by,
        } = match plane.removes_prefix(session) {
            true => plane.strip_scan(session, request)?,
            false => Scan::default(),
        };
        let mut bytes = Vec::new();
        // Removing the prefix changes options alone, and these come after the cursor.
        let source = stripped.as_deref().unwrap_or(request.bytes);
        let number = at.server;
        fan::scan_request(source, request.spans, at, &mut bytes);
        let completion = Completion::Scatter(ScatterCompletion::Scan {
            number,
            next,
            sifted_by,
        });
        Ok((bytes, completion))
    }

    /// Divides a request with keys of several servers, and sends the shares.
    pub(crate) fn dispatch_divided(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> DividedOutcome {
        if plane.sessions.get(id).is_none() {
            return DividedOutcome::Placed(Dispatched::Done);
        }
        let mut split = std::mem::take(&mut self.split);
        let outcome = match self.divide(plane, id, request, &mut split) {
            Division::Shares(shares, merge) => {
                DividedOutcome::Placed(self.ask_owners(plane, id, request, shares, merge))
            }
            Division::Whole(owner) => ask_one_owner(plane, id, request, owner),
            Division::Refused(text) => DividedOutcome::Placed(plane.answer_error(id, text)),
            Division::NoKeys if plane.removes_prefix(id) => {
                DividedOutcome::Placed(plane.refuse_stripped(id, UNKNOWN_ARGUMENTS))
            }
            // The server answers with its own error.
            Division::NoKeys => {
                DividedOutcome::Placed(plane.dispatch_on_link(id, request.bytes, false, None))
            }
        };
        split.reset();
        self.split = split;
        outcome
    }

    /// Sends their shares to the owners, or to the servers that are read in their place.
    fn ask_owners(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        mut shares: Vec<(ServerId, &[u8])>,
        merge: MergeRule,
    ) -> Dispatched {
        for (server, _) in &mut shares {
            match plane.owner_in_reach(id, *server, request) {
                Ok(read) => *server = read,
                Err(NoReader) => return plane.answer_error(id, NO_READER),
            }
        }
        match self.strip_shares(plane, id, request.command, &shares) {
            Ok(stripped) => {
                self.ask_several(plane, id, request, &as_seen(&shares, &stripped), merge)
            }
            Err(text) => plane.refuse_stripped(id, text),
        }
    }

    /// Sends the request to every server of the pool. A request about sharded channels goes only to
    /// the servers that may have such channels.
    pub(crate) fn ask_all(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
    ) -> Dispatched {
        self.ask_each(plane, id, request, request.bytes, MergeRule::ByTable)
    }

    /// Sends the request to these servers.
    pub(crate) fn ask_these(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        servers: &[ServerId],
    ) -> Dispatched {
        let shares: Vec<_> = servers
            .iter()
            .map(|server| (*server, request.bytes))
            .collect();
        self.ask_several(plane, id, request, &shares, MergeRule::ByTable)
    }

    /// Sends INFO to all servers. The sections that the client asked for are made from theirs.
    /// `adds_section`: respool's own section is added.
    pub(crate) fn ask_info(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        adds_section: bool,
    ) -> Dispatched {
        let sections = || request.args().skip(1);
        let wanted = Sections::asked(sections());
        let mut bytes = Vec::new();
        wanted.request(sections(), &mut bytes);
        let merge = MergeRule::Info {
            sections: wanted,
            adds_section,
        };
        self.ask_each(plane, id, request, &bytes, merge)
    }

    /// Sends these bytes to every server of the pool.
    fn ask_each(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        bytes: &[u8],
        merge: MergeRule,
    ) -> Dispatched {
        if plane.sessions.get(id).is_none() {
            return Dispatched::Done;
        }
        let servers = self.servers_for_all(plane, id, request.command.fan_out.spread);
        match self.strip_keys_of_all(plane, id, request, &servers) {
            Ok(stripped) => {
                let shares: Vec<_> = servers.iter().map(|server| (*server, bytes)).collect();
                self.ask_several(plane, id, request, &as_seen(&shares, &stripped), merge)
            }
            Err(text) => plane.refuse_stripped(id, text),
        }
    }

    /// Sends the shares of a request to their servers, or holds the session until all links are
    /// ready.
    fn ask_several(
        &mut self,
        plane: &mut DataPlane,
        id: SessionId,
        request: &Request<'_>,
        shares: &[(ServerId, &[u8])],
        merge: MergeRule,
    ) -> Dispatched {
        let servers = shares.iter().map(|(server, _)| *server);
        let links = match request.command.answer {
            Answer::Alone => plane.dedicated_links_to(id, servers.collect()),
            // All links must be ready before the first share leaves, so that no request is half
            // sent.
            _ => servers
                .map(|server| plane.link_to(id, server, request))
                .collect(),
        };
        match links {
            Ok(links) => {
                self.start(plane, id, request, shares, links, merge);
                Dispatched::Done
            }
            Err(blocked) => plane.blocked(id, blocked),
        }
    }

    /// Sends the shares of a request, each on its link. All links are ready, so that no request is
    /// half sent.
    fn start(
        &mut self,
        plane: &mut DataPlane,
        session_id: SessionId,
        request: &Request<'_>,
        shares: &[(ServerId, &[u8])],
        links: Vec<LinkId>,
        merge: MergeRule,
    ) {
        let Some(session) = plane.sessions.get_mut(session_id) else {
            return;
        };
        let seq = session.take_seq();
        let silent = session.state.is_silent();
        let may_be_sifted = request.id == id::KEYS && session.state.any(Flags::REWRITES_KEYS);
        let pattern = request.args().nth(1).filter(|_| may_be_sifted);
        let pattern = pattern.filter(|pattern| pattern.len() <= SIFTED_BYTES_MAX);
        let sifted_by = pattern.map(Into::into);
        let servers = shares.iter().map(|(server, _)| *server);
        let scattered = ScatterRequest::new((seq, silent), request.id, merge, servers, sifted_by);
        plane.add_scattered(session_id, scattered);
        let reads = request.reads();
        let tracks = plane.tracks_several(session_id);
        for (index, ((_, bytes), link)) in shares.iter().zip(links).enumerate() {
            if tracks {
                plane.put_caching(session_id, link);
            }
            let Some(state) = plane.links.get_mut(link) else {
                continue;
            };
            let entry = Entry {
                len: bytes.len() as u32,
                class: Class::of(reads),
                ..Entry::of(session_id, seq, plane.read_at).with_completion(true)
            };
            let completion = Completion::Scatter(ScatterCompletion::Share {
                index: index as u16,
                effect: ScriptEffect::of(request.id),
            });
            state.ledger.push_with(entry, bytes, completion);
            plane.counters.link_requests += 1;
            plane.list_link(link);
            plane.close_if_full(link);
        }
    }

    /// Handles the reply to a request. Returns the scattered request of which it was the last part.
    pub(crate) fn settle(
        &mut self,
        plane: &mut DataPlane,
        (link, entry): (LinkId, Entry),
        completion: ScatterCompletion,
        reply: &[u8],
    ) -> Option<Finished> {
        match completion {
            ScatterCompletion::Scan {
                number,
                next,
                sifted_by,
            } => {
                let sifted_by = sifted_by.as_deref();
                let reply = plane.named_by(link, Names::Second, sifted_by, reply);
                let reply = self.scanned(plane, link, (number, next), &reply);
                plane.deliver_to(entry, &reply);
                None
            }
            ScatterCompletion::Named(names) => {
                let reply = plane.named_by(link, names, None, reply);
                plane.deliver_to(entry, &reply);
                None
            }
            ScatterCompletion::Share { index, .. } => {
                self.handle_share_reply(plane, entry, index, reply)
            }
        }
    }

    /// Keeps a server's answer to its share. After the last one, merges the answers. `None`: other
    /// shares have no answer yet, or the request has ended.
    pub(crate) fn handle_share_reply(
        &mut self,
        plane: &mut DataPlane,
        entry: Entry,
        index: u16,
        reply: &[u8],
    ) -> Option<Finished> {
        let named = plane.part_named(entry, index, reply);
        let reply = named.as_deref().unwrap_or(reply);
        if !plane.store_share_reply(entry, index, reply) {
            plane.counters.late_replies += 1;
            return None;
        }
        let scattered = plane.take_scattered(entry)?;
        let mut reply = std::mem::take(&mut plane.scratch);
        reply.clear();
        let failed = match &scattered.failure {
            Some(failure) => {
                reply.extend_from_slice(failure);
                true
            }
            None if scattered.is_agreement() && scattered.shares.len() == 1 => {
                // A single server: its own words.
                reply.extend_from_slice(&scattered.shares[0].reply);
                false
            }
            None => {
                let answered = scattered.shares.iter();
                let parts: Vec<_> = answered
                    .map(|part| Part {
                        server: &plane.servers[usize::from(part.server.0)].label,
                        reply: &part.reply,
                    })
                    .collect();
                let merger = &mut self.merger;
                let merged = match &scattered.merge {
                    MergeRule::ByKey(order) => {
                        merger.merge(scattered.id, order, &parts, &mut reply)
                    }
                    MergeRule::ByTable => merger.merge(scattered.id, &[], &parts, &mut reply),
                    MergeRule::Info { sections, .. } => {
                        merger.merge_info(*sections, &parts, &mut reply)
                    }
                };
                merged != Merged::Whole
            }
        };
        if failed {
            scattered.qualify_failure(&mut reply);
        }
        if scattered.failure.is_none() {
            plane.note_whole(entry.session, scattered.id.into(), entry.read_at);
        }
        Some(Finished {
            entry: entry.of_command(scattered.id).silenced(scattered.silent),
            work: ReplyWork::of(scattered.id, &scattered.merge, failed),
            reply,
        })
    }

    /// Delivers the reply to a scattered request to its session.
    pub(crate) fn deliver(&mut self, plane: &mut DataPlane, finished: Finished) {
        let Finished {
            entry, mut reply, ..
        } = finished;
        plane.deliver_to(entry, &reply);
        // A large buffer is not kept.
        reply.clear();
        reply.shrink_to(REPLY_BYTES_KEPT);
        plane.scratch = reply;
    }
}

/// The shares of a request as their servers shall see them.
fn as_seen<'a>(
    shares: &[(ServerId, &'a [u8])],
    stripped: &'a [Option<Vec<u8>>],
) -> Vec<(ServerId, &'a [u8])> {
    let seen = |(index, (server, bytes)): (usize, &(ServerId, &'a [u8]))| {
        let other = stripped.get(index).and_then(Option::as_deref);
        (*server, other.unwrap_or(bytes))
    };
    shares.iter().enumerate().map(seen).collect()
}

/// Sends the whole request to the owner of its keys, or to the server that is read in its place.
fn ask_one_owner(
    plane: &mut DataPlane,
    id: SessionId,
    request: &Request<'_>,
    owner: ServerId,
) -> DividedOutcome {
    match plane.owner_in_reach(id, owner, request) {
        Ok(server) => plane.switch_server(id, server),
        Err(NoReader) => return DividedOutcome::Placed(plane.answer_error(id, NO_READER)),
    }
    match plane.removes_prefix(id) {
        true => DividedOutcome::AtOwner,
        false => {
            let reads = request.reads();
            DividedOutcome::Placed(plane.dispatch_on_link(id, request.bytes, reads, None))
        }
    }
}

impl Scatter {
    /// A server's reply to SCAN, with the cursor for the client.
    fn scanned(
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
}

#[cfg(test)]
mod tests {
    use respool_protocol::request::RequestScanner;

    use super::*;
    use crate::base::time::Stamp;
    use crate::data_plane::test_plane::{
        key_at, plane_with_shards, replies_of, request_of, session_of,
    };

    /// A failed reply needs no other component, unless the failure undoes a change of links.
    #[test]
    fn component_works_on_whole_replies_and_on_switches() {
        let info = MergeRule::Info {
            sections: Sections::asked(std::iter::empty()),
            adds_section: true,
        };
        let shown = ReplyWork::ShowInfo { adds_section: true };
        let by_table = &MergeRule::ByTable;
        let table = [
            (id::INFO, &info, shown, ReplyWork::None),
            (id::DBSIZE, by_table, ReplyWork::None, ReplyWork::None),
            (
                id::PUBSUB_SHARDNUMSUB,
                by_table,
                ReplyWork::RecountShards,
                ReplyWork::None,
            ),
            (
                id::CLIENT_TRACKING,
                by_table,
                ReplyWork::SettleSwitch,
                ReplyWork::SettleSwitch,
            ),
        ];
        for (command, merge, whole, failed) in table {
            let name = command.get().name;
            assert_eq!(ReplyWork::of(command, merge, false), whole, "{name}");
            assert_eq!(ReplyWork::of(command, merge, true), failed, "{name}");
        }
    }

    /// Groups of two subpools get two numbers, even if their own numbers are equal. Too many groups
    /// are noticed.
    #[test]
    fn key_groups_have_distinct_numbers_up_to_the_bound() {
        let mut key_groups = KeyGroups::BySubpool {
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

    /// Dispatches a request that may be divided.
    fn divided(
        scatter: &mut Scatter,
        plane: &mut DataPlane,
        id: SessionId,
        line: &str,
    ) -> DividedOutcome {
        let kept = request_of(line);
        let mut scanner = RequestScanner::default();
        let request = kept.read(&mut scanner);
        scatter.dispatch_divided(plane, id, &request)
    }

    /// The requests in the ledger of a link, as the server gets them.
    fn sent(plane: &DataPlane, link: LinkId) -> Vec<String> {
        let link = plane.links.get(link).expect("the link is there");
        let requests = link.ledger.requests();
        let text = |bytes: &[u8]| {
            let words = String::from_utf8_lossy(bytes).into_owned();
            let words: Vec<&str> = words.split("\r\n").skip(2).step_by(2).collect();
            words.join(" ")
        };
        requests.map(|held| text(&held.bytes())).collect()
    }

    /// Gives the reply to share `index` of the only request of a session.
    fn reply_to_share(
        scatter: &mut Scatter,
        plane: &mut DataPlane,
        (id, link, index): (SessionId, LinkId, u16),
        reply: &str,
    ) -> Option<Finished> {
        let entry = Entry::of(id, 0, Stamp(0)).with_completion(true);
        let effect = ScriptEffect::of(id::MGET);
        let completion = ScatterCompletion::Share { index, effect };
        scatter.settle(plane, (link, entry), completion, reply.as_bytes())
    }

    /// Each owner gets its share, and the last part makes the reply, in the order of the keys.
    #[test]
    fn parts_become_one_reply_in_the_order_of_the_keys() {
        let (mut plane, links) = plane_with_shards(2);
        let (mut scatter, session) = (Scatter::default(), session_of(&mut plane));
        let [a, b] = [0, 1].map(|server| key_at(&plane, server));
        let outcome = divided(
            &mut scatter,
            &mut plane,
            session,
            &format!("MGET {b} {a} {b}"),
        );
        assert!(matches!(outcome, DividedOutcome::Placed(Dispatched::Done)));
        assert_eq!(sent(&plane, links[0]), [format!("MGET {a}")]);
        assert_eq!(sent(&plane, links[1]), [format!("MGET {b} {b}")]);
        // The share of the first key's owner is the first one.
        let mut reply = |index, link, text| {
            reply_to_share(&mut scatter, &mut plane, (session, link, index), text)
        };
        assert!(reply(1, links[0], "*1\r\n$1\r\na\r\n").is_none());
        let finished = reply(0, links[1], "*2\r\n$1\r\nb\r\n$1\r\nb\r\n").expect("it was the last");
        assert_eq!(finished.work, ReplyWork::None);
        scatter.deliver(&mut plane, finished);
        let expected = "*3\r\n$1\r\nb\r\n$1\r\na\r\n$1\r\nb\r\n";
        assert_eq!(replies_of(&plane, session), expected);
    }

    /// A part that is an error fails the whole request, and the error names its server.
    #[test]
    fn refused_share_fails_the_whole_request() {
        let (mut plane, links) = plane_with_shards(2);
        let (mut scatter, session) = (Scatter::default(), session_of(&mut plane));
        let [a, b] = [0, 1].map(|server| key_at(&plane, server));
        let line = format!("MGET {a} {b}");
        divided(&mut scatter, &mut plane, session, &line);
        let mut reply = |index, text| {
            reply_to_share(&mut scatter, &mut plane, (session, links[0], index), text)
        };
        assert!(reply(0, "*1\r\n$-1\r\n").is_none());
        let finished = reply(1, "-NOPERM no\r\n").expect("it was the last");
        let text = String::from_utf8_lossy(&finished.reply).into_owned();
        assert!(text.starts_with("-NOPERM"), "{text}");
        assert!(text.contains("server:2"), "{text}");
        // A reply to a request that has ended is counted, and makes no second reply.
        assert!(reply(1, "*1\r\n$-1\r\n").is_none());
        assert_eq!(plane.counters.late_replies, 1);
    }

    /// A request with one owner goes there whole. A request that cannot be divided is refused.
    #[test]
    fn request_of_one_owner_is_not_divided() {
        let (mut plane, links) = plane_with_shards(2);
        let (mut scatter, session) = (Scatter::default(), session_of(&mut plane));
        let [a, b] = [0, 1].map(|server| key_at(&plane, server));
        let outcome = divided(&mut scatter, &mut plane, session, &format!("DEL {b} {b}"));
        assert!(matches!(outcome, DividedOutcome::Placed(Dispatched::Done)));
        assert_eq!(sent(&plane, links[1]), [format!("DEL {b} {b}")]);
        let server = plane.sessions.get(session).map(|session| session.server);
        assert_eq!(server, Some(ServerId(1)));
        let other = session_of(&mut plane);
        let line = format!("SINTER {a} {b}");
        divided(&mut scatter, &mut plane, other, &line);
        let expected = format!("-{}\r\n", String::from_utf8_lossy(CROSSSLOT));
        assert_eq!(replies_of(&plane, other), expected);
        assert!(sent(&plane, links[0]).is_empty());
    }

    /// The place that a SCAN with this cursor gets.
    fn scanned_at(plane: &mut DataPlane, id: SessionId, cursor: &str) -> ScanOutcome {
        let kept = request_of(&format!("SCAN {cursor}"));
        let mut scanner = RequestScanner::default();
        let request = kept.read(&mut scanner);
        Scatter::default().begin_scan(plane, id, &request)
    }

    /// SCAN goes from server to server: the cursor names the server, and the last one has no next.
    #[test]
    fn scan_visits_each_server_once() {
        let (mut plane, links) = plane_with_shards(3);
        let session = session_of(&mut plane);
        let (mut cursor, mut visited) = (String::from("0"), Vec::new());
        loop {
            let outcome = scanned_at(&mut plane, session, &cursor);
            let ScanOutcome::Ask {
                server,
                at,
                is_lost,
            } = outcome
            else {
                panic!("the cursor {cursor} names a server");
            };
            assert!(!is_lost, "{cursor}");
            visited.push(server);
            let number = at.at.server;
            let empty = b"*2\r\n$1\r\n0\r\n*0\r\n";
            let scatter = Scatter::default();
            let reply = scatter.scanned(&plane, links[0], (number, at.next), empty);
            let reply = String::from_utf8_lossy(&reply).into_owned();
            cursor = reply.split("\r\n").nth(2).expect("a cursor").to_owned();
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(visited, [ServerId(0), ServerId(1), ServerId(2)]);
        let outcome = scanned_at(&mut plane, session, "x");
        assert!(matches!(outcome, ScanOutcome::Placed(Dispatched::Done)));
        assert_eq!(replies_of(&plane, session), "-ERR invalid cursor\r\n");
    }
}
