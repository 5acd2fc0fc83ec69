//! Coalescing: the GETs of a batch leave as one MGET, its SETs without options as one MSET, and
//! equal reads are sent once.
//!
//! ```text
//!   batch:    GET a  SET b 1  INCR c  LLEN l  GET d  SET e 2  LLEN l  GET a   (of eight sessions)
//!   sent:     INCR c   MSET b 1 e 2   LLEN l   MGET a d
//!   ledger:   INCR c | Sets(2), b, e | LLEN l, its equal | Gets(2), a, its equal, d
//! ```
//!
//! Each member has an entry of its own in the ledger, with its session and place. No client can
//! tell, because of seven rules:
//! - Requests of different sessions in one batch may run in any order, because none of them was
//!   answered. Requests of one session keep their order. Moved requests run behind all others of
//!   the batch: first SETs, then reads, then GETs. So a request is moved only if its session has no
//!   later request that would run before it.
//! - A read takes the reply of an equal one in the same batch. Among moved requests no write runs
//!   behind a read, so no write comes in between. The reads of one key by one session run in their
//!   order. So a session that reads in more than one way (GET and STRLEN) takes a reply only if
//!   none of its earlier requests runs later. A session that only sends GETs may get the value of
//!   one key as of a moment before that of a key that it read first: both moments lie within the
//!   batch. That order is kept where it costs nothing, within an MGET.
//! - A session with a member, or with the reply of an equal read, sends no further request until
//!   all of its requests are answered. So each of its requests can be sent again as if it had never
//!   been sent.
//! - MGET says nil where GET may say WRONGTYPE. So a key with a nil is read again, by one GET for
//!   all sessions that want it. Later reads of that key by their sessions are sent again, too.
//!   Where reads are not collapsed, or a session reads in more than one way, all of its later
//!   requests are sent again. Repeated requests are not fused any more, so their replies are final.
//!   A reply too large to be copied goes to the first session, and the others ask again.
//! - An error reply to an MGET or MSET is for the whole. Every member is sent again by itself and
//!   gets its own reply; those of an MSET only if the error says that nothing was executed. The
//!   SETs of one session are in one MSET: no later one is executed before an earlier one that is
//!   refused.
//! - A node of a Cluster takes keys of one slot together, and no others. So the members of an MGET
//!   or MSET are neighbours of one slot there. Where such neighbours are rare, nothing is joined.
//! - A user with the right to MGET need not have the right to GET, and the server need not have
//!   GET. So GETs are fused only if the server has answered a GET that was sent alone on this link,
//!   at most [`RIGHT_SEEN_MS`] ago. The last GET of a batch leaves alone to renew that proof. The
//!   same holds for SETs.
//!
//! The server itself shows the difference: MONITOR, SLOWLOG and INFO name the commands that were
//! sent.

use respool_protocol::number;
use respool_protocol::slot::hash_slot;

use crate::base::handle::{LinkId, SessionId};
use crate::base::limits::{FUSED_BYTES_MAX, RIGHT_SEEN_MS};
use crate::base::slab::Slab;
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::dedup::{Dedup, hash};
use crate::data_plane::egress::Delivery;
use crate::data_plane::latency::AnsweredRun;
use crate::data_plane::ledger::CommandMark;
use crate::data_plane::ledger::{Class, EarlierAttempt, Entry, GET, Ledger, SET};
use crate::data_plane::own_options::CoalescingSwitches;
use crate::data_plane::session::{Flags, Session};

/// The work space in which a batch is rearranged; kept for the next batch.
#[derive(Default)]
pub(crate) struct Coalescing {
    /// The entries of the batch, in their old order.
    entries: Vec<Entry>,
    /// All requests by their sections ([`BatchMove`]), from the end of the batch on. The last list
    /// has the requests that stay where they are.
    members: [Vec<BatchMember>; 4],
    /// Equal requests of one section.
    dedup: Dedup,
    /// The blocks of the section that is being written.
    blocks: SectionOrder,
    order: BatchOrder,
}

/// The new order of a batch.
#[derive(Default)]
struct BatchOrder {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

/// A request of the batch: its index there, and the start of its bytes.
#[derive(Clone, Copy, Debug)]
struct BatchMember {
    index: u32,
    at: u32,
}

/// The batch in its old order.
#[derive(Clone, Copy)]
struct OpenBatch<'a> {
    entries: &'a [Entry],
    bytes: &'a [u8],
}

impl<'a> OpenBatch<'a> {
    #[inline]
    fn entry(&self, member: BatchMember) -> &'a Entry {
        &self.entries[member.index as usize]
    }

    /// The bytes of a request, without the first `from`.
    #[inline]
    fn bytes(&self, member: BatchMember, from: usize) -> &'a [u8] {
        let at = member.at as usize;
        &self.bytes[at + from..at + self.entry(member).len as usize]
    }
}

/// The section of the batch to which a request is moved. A greater section runs earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BatchMove {
    /// The GETs, which leave as MGETs at the end.
    #[default]
    Get,
    /// Other reads, in front of the GETs.
    Read,
    /// The SETs, which leave as MSETs in front of the reads.
    Set,
    /// All other requests, which stay in their order.
    Not,
}

/// The form in which the requests of a section are sent.
#[derive(Clone, Copy)]
struct BatchSection {
    /// The head of the request that joins them. `None`: each is sent by itself.
    whole: Option<(Class, &'static [u8])>,
    /// The class of each member.
    member: Class,
    /// The number of arguments of each member.
    args: usize,
    /// Whether equal members are sent once.
    collapses: bool,
    /// The class of a lone member. A lone read counts as moved: its reply may have to wait for
    /// earlier requests of its session.
    alone: Class,
}

/// The sections, by [`BatchMove`].
const SECTIONS: [BatchSection; 3] = [
    BatchSection {
        whole: Some((Class::Gets, b"\r\n$4\r\nMGET\r\n")),
        member: Class::OfGets,
        args: 1,
        collapses: true,
        alone: Class::Reordered,
    },
    BatchSection {
        whole: None,
        member: Class::Reordered,
        args: 0,
        collapses: true,
        alone: Class::Reordered,
    },
    BatchSection {
        whole: Some((Class::Sets, b"\r\n$4\r\nMSET\r\n")),
        member: Class::OfSets,
        args: 2,
        collapses: false,
        alone: Class::Set,
    },
];

impl BatchSection {
    /// The form in which `count` members are sent.
    fn of(self, count: usize) -> BatchSection {
        if count > 1 {
            return self;
        }
        BatchSection {
            whole: None,
            member: self.alone,
            collapses: false,
            ..self
        }
    }
}

/// The blocks of one section. A block is one request that is sent, alone or joined, and the server
/// executes it at once. Blocks are numbered over all sections of the batch, in the order in which
/// they are sent.
#[derive(Default)]
struct SectionOrder {
    /// The number of the last block.
    last: u32,
    /// The most members of a block.
    keys_max: usize,
    /// The slot of all members of the last block, where slots count.
    slot: u16,
    /// The number of members in each block of a section.
    of_section: Vec<usize>,
    /// The bytes in the last block.
    bytes: usize,
}

/// The SETs of one session in a batch that leave in one MSET. In two, a later one might be executed
/// although an earlier one is refused.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SetRun {
    members: u16,
    bytes: u16,
    /// The slot of all of them, where slots count.
    slot: u16,
}

const _: () = assert!(FUSED_BYTES_MAX <= u16::MAX as usize);

impl SetRun {
    fn is_empty(self) -> bool {
        self.members == 0
    }

    /// Adds a SET if one MSET may have all of the run. Returns whether it did.
    #[inline]
    fn takes<const BY_SLOT: bool>(&mut self, set: &[u8], keys_max: usize) -> bool {
        let has_room = usize::from(self.members) < keys_max
            && usize::from(self.bytes) + set.len() <= FUSED_BYTES_MAX;
        let slot = match BY_SLOT && has_room {
            true => slot_of(&set[SET.len()..]),
            false => self.slot,
        };
        let fits = has_room && (!BY_SLOT || self.is_empty() || slot == self.slot);
        if fits {
            self.members += 1;
            self.bytes += set.len() as u16;
            self.slot = slot;
        }
        fits
    }
}

impl SectionOrder {
    /// Makes sure that the last block has room for all of a run.
    fn begin_run<const BY_SLOT: bool>(&mut self, run: SetRun) {
        let is_other = BY_SLOT && run.slot != self.slot;
        if is_other || !self.has_room_for(run.members.into(), run.bytes.into()) {
            self.begin(run.slot);
        }
    }

    fn begin(&mut self, slot: u16) {
        self.of_section.push(0);
        self.bytes = 0;
        self.slot = slot;
        self.last += 1;
    }

    /// Whether the last block has room for so many more members and bytes.
    #[inline]
    fn has_room_for(&self, members: usize, bytes: usize) -> bool {
        let last = self.of_section.last();
        last.is_some_and(|count| count + members <= self.keys_max)
            && self.bytes + bytes <= FUSED_BYTES_MAX
    }

    /// The block of the next member that is sent, with so many bytes.
    #[inline]
    fn take(&mut self, section: &BatchSection, bytes: usize, slot: impl Fn() -> u16) -> u32 {
        match section.whole {
            None => self.begin(0),
            Some(_) => {
                let slot = slot();
                if slot != self.slot || !self.has_room_for(1, bytes) {
                    self.begin(slot);
                }
            }
        }
        if let Some(count) = self.of_section.last_mut() {
            *count += 1;
        }
        self.bytes += bytes;
        self.last
    }
}

/// The slot of the first argument of `args`, which are in wire format.
fn slot_of(args: &[u8]) -> u16 {
    let first = || {
        let line = args.iter().position(|byte| *byte == b'\r')?;
        let len = usize::try_from(number::parse(args.get(1..line)?)?).ok()?;
        args.get(line + 2..)?.get(..len)
    };
    hash_slot(first().unwrap_or_default())
}

/// Decides which members of a section are sent, and in which blocks. Each other member takes the
/// reply of an equal earlier one.
#[inline(never)]
fn choose<const BY_SLOT: bool>(
    section: &BatchSection,
    members: &[BatchMember],
    batch: OpenBatch<'_>,
    dedup: &mut Dedup,
    blocks: &mut SectionOrder,
    switches: &[CoalescingSwitches],
    sessions: &mut Slab<SessionId, Session>,
) {
    blocks.of_section.clear();
    dedup.clear(if section.collapses { members.len() } else { 0 });
    let from = section.member.beginning().len();
    let mut current = SessionId::NONE;
    let mut session: Option<&mut Session> = None;
    let mut collapses = false;
    for (index, member) in members.iter().enumerate() {
        let entry = batch.entry(*member);
        if entry.session != current {
            current = entry.session;
            session = sessions.get_mut(current);
            if let Some(session) = &mut session {
                collapses = section.collapses
                    && CoalescingSwitches::of(switches, session.listener).collapse;
                if section.whole.is_some() {
                    session.state |= Flags::FUSED;
                }
                if section.member == Class::OfSets {
                    blocks.begin_run::<BY_SLOT>(session.sets);
                }
            }
        }
        let Some(session) = &mut session else {
            unreachable!("only requests of open sessions are moved");
        };
        let place = collapses.then(|| {
            let own = batch.bytes(*member, from);
            dedup.find(own, |other| {
                batch.bytes(members[other as usize], from) == own
            })
        });
        if let Some(leader) = place.and_then(|place| place.leader) {
            let block = dedup.leaders()[leader].block;
            if block >= session.block || !session.reads_in_order {
                session.block = session.block.max(block);
                session.state |= Flags::FUSED;
                dedup.follow(leader, index as u32);
                continue;
            }
        }
        session.block = blocks.take(section, entry.len as usize, || match BY_SLOT {
            true => slot_of(batch.bytes(*member, from)),
            false => 0,
        });
        if section.collapses {
            dedup.lead(place, index as u32, session.block);
        }
    }
}

/// The requests of a section that leave in MGETs or MSETs.
#[derive(Default)]
struct Fused {
    wholes: u64,
    /// The requests that these answer.
    requests: u64,
}

impl BatchOrder {
    /// Begins the new order with the requests that stay.
    fn begin(&mut self, stay: &[BatchMember], batch: OpenBatch<'_>) {
        self.bytes.clear();
        self.entries.clear();
        for member in stay.iter().rev() {
            self.bytes.extend_from_slice(batch.bytes(*member, 0));
            self.entries.push(*batch.entry(*member));
        }
    }

    /// Appends the requests of a section that are sent, and the entries of all of its requests.
    #[inline(never)]
    fn write(
        &mut self,
        section: &BatchSection,
        members: &[BatchMember],
        batch: OpenBatch<'_>,
        dedup: &Dedup,
        blocks: &SectionOrder,
    ) -> Fused {
        let (mut members_left, mut leaders_left) = (members, dedup.leaders());
        let collapses = section.collapses;
        let mut fused = Fused::default();
        for count in &blocks.of_section {
            let section = section.of(*count);
            let from = section.member.beginning().len();
            // Field by field. A copy that is changed afterwards goes through the stack, in pieces
            // that the processor cannot forward. That took most of the loop's time.
            let sent = |member: BatchMember| {
                let entry = batch.entry(member);
                Entry {
                    class: section.member,
                    len: entry.len - from as u32,
                    ..*entry
                }
            };
            let entries_before = self.entries.len();
            if collapses {
                let (block, rest) = leaders_left.split_at(*count);
                leaders_left = rest;
                let first = batch.entry(members[block[0].string as usize]);
                self.begin_block(&section, *count, first);
                for leader in block {
                    let member = members[leader.string as usize];
                    self.bytes.extend_from_slice(batch.bytes(member, from));
                    self.entries.push(sent(member));
                    self.entries
                        .extend(dedup.followers(leader).map(|follower| Entry {
                            class: Class::Same,
                            len: 0,
                            ..*batch.entry(members[follower as usize])
                        }));
                }
            } else {
                let (block, rest) = members_left.split_at(*count);
                members_left = rest;
                self.begin_block(&section, *count, batch.entry(block[0]));
                for member in block {
                    self.bytes.extend_from_slice(batch.bytes(*member, from));
                }
                self.entries
                    .extend(block.iter().map(|member| sent(*member)));
            }
            if section.whole.is_some() {
                fused.wholes += 1;
                fused.requests += (self.entries.len() - entries_before - 1) as u64;
            }
        }
        fused
    }

    /// Appends the head of `count` members, if the section has one. Its entry is as old as the
    /// first member.
    fn begin_block(&mut self, section: &BatchSection, count: usize, first: &Entry) {
        let Some((class, name)) = section.whole else {
            return;
        };
        let start = self.bytes.len();
        self.bytes.push(b'*');
        number::append(&mut self.bytes, (1 + count * section.args) as i64);
        self.bytes.extend_from_slice(name);
        let len = (self.bytes.len() - start) as u32;
        self.entries
            .push(Entry::head(class, count as u32, len, first));
    }
}

/// Whether a request is a GET or SET without options, in the usual encoding.
fn is_plain(request: &[u8], beginning: &[u8]) -> bool {
    // The command name behind this may be in upper or lower case.
    const NAME_AT: usize = 8;
    request.len() > beginning.len() && request[..NAME_AT] == beginning[..NAME_AT]
}

/// The requests that a session sends again on one link.
pub(crate) struct RepeatedRequests {
    link: LinkId,
    /// Whether all later requests of the session are sent again, too. Otherwise only equal ones
    /// are: the reads of one key by a session run in their order.
    all: bool,
    /// The hashes of the requests. If two requests share a hash, one is sent again in vain.
    requests: Vec<u64>,
}

impl RepeatedRequests {
    fn on(link: LinkId) -> RepeatedRequests {
        RepeatedRequests {
            link,
            all: false,
            requests: Vec::new(),
        }
    }

    fn has_before(&self, request: &[u8]) -> bool {
        self.all || self.requests.contains(&hash(request))
    }
}

/// Whether an error says that the user may not send such a command, or that the server has none. A
/// refusal because of a key does not count.
fn refuses_command(error: &[u8]) -> bool {
    const ACCESS: &[u8] = b"permissions to access";
    let of_a_key = || error.windows(ACCESS.len()).any(|words| words == ACCESS);
    let of_user = error.starts_with(b"NOPERM") && !of_a_key();
    of_user || error.starts_with(b"NOAUTH") || error.starts_with(b"ERR unknown command")
}

/// Whether an error says that the command was not executed. A server does not execute a command
/// that it refuses. But the server may be a proxy, which may have lost a reply of another server.
fn executed_nothing(error: &[u8]) -> bool {
    const WORDS: [&[u8]; 15] = [
        b"NOPERM ",
        b"NOAUTH ",
        b"OOM ",
        b"READONLY ",
        b"MISCONF ",
        b"NOREPLICAS ",
        b"CROSSSLOT ",
        b"MOVED ",
        b"ASK ",
        b"TRYAGAIN ",
        b"CLUSTERDOWN ",
        b"LOADING ",
        b"BUSY ",
        b"MASTERDOWN ",
        b"NOTSENT ",
    ];
    WORDS.iter().any(|word| error.starts_with(word))
        || error.starts_with(b"ERR unknown command")
        || error.starts_with(b"ERR unsupported command")
}

/// The most bytes in which the first line of the reply to an MGET ends: the length of the array, or
/// an error. No server sends a longer error.
const HEAD_BYTES_MAX: usize = 4 << 10;

/// Whether an element of an MGET is nil. GET might reply nil, or an error.
#[inline]
pub(crate) fn is_nil(element: &[u8]) -> bool {
    matches!(element, b"$-1\r\n" | b"_\r\n")
}

impl DataPlane {
    /// Joins the requests of a batch that is about to leave.
    pub(crate) fn coalesce(&mut self, id: LinkId) {
        let Some(link) = self.links.get(id) else {
            return;
        };
        // Asked once for the whole batch: outside a Cluster, slots do not matter.
        match self.pool_of(link.kind.server).cluster() {
            Some(_) => self.coalesce_as::<true>(id),
            None => self.coalesce_as::<false>(id),
        }
    }

    /// Joins the requests of a batch. `BY_SLOT`: all keys of one request must be of one slot.
    #[inline(never)]
    fn coalesce_as<const BY_SLOT: bool>(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        let pool = self.servers[usize::from(link.kind.server.0)].pool;
        let rule = &self.pools[usize::from(pool)].flush;
        let count = link.ledger.batched() as u32;
        let fuse = rule.fuse && (!BY_SLOT || link.gates.by_slot.pays(count));
        let gets = fuse && link.gates.gets.pays(count);
        let sets = fuse && link.gates.sets.pays(count);
        let collapse = rule.collapse && link.gates.collapsing.pays(count);
        let now = self.now;
        let seen = |at: Option<Time>, ms| at.is_some_and(|at| now.since_ms(at) < ms);
        let fuse_gets = gets && seen(link.gates.may_get, RIGHT_SEEN_MS);
        let fuse_sets = sets && seen(link.gates.may_set, RIGHT_SEEN_MS);
        // The next try comes early, so the right need not run out.
        let mut try_get = gets && !seen(link.gates.may_get, RIGHT_SEEN_MS / 2);
        let mut try_set = sets && !seen(link.gates.may_set, RIGHT_SEEN_MS / 2);
        let mut tries = [None; 2];
        if !gets && !sets && !collapse {
            return;
        }
        self.batch = self.batch.wrapping_add(1);
        let batch = self.batch;
        let mut work = std::mem::take(&mut self.coalescing);
        work.members.iter_mut().for_each(Vec::clear);
        let keys_max = rule.fused_keys_max as usize;
        work.blocks.keys_max = keys_max;
        link.ledger.copy_open_entries(&mut work.entries);
        let bytes = link.ledger.open_batch_bytes();
        let mut at = bytes.len();
        // Requests of a session mostly stand together. It is looked up once for each such run.
        let mut current = SessionId::NONE;
        let mut session: Option<&mut Session> = None;
        let mut switches = CoalescingSwitches::ALL;
        // The session of the last SET that was moved.
        let mut set_session = SessionId::NONE;
        // From the end on: a request's section depends on the later requests of its session.
        for (index, entry) in work.entries.iter().enumerate().rev() {
            let behind = at;
            at -= entry.len as usize;
            let member = BatchMember {
                index: index as u32,
                at: at as u32,
            };
            if entry.session != current {
                current = entry.session;
                session = self.sessions.get_mut(current);
                if let Some(session) = &mut session {
                    switches = CoalescingSwitches::of(&self.coalescing_switches, session.listener);
                    if session.batch != batch {
                        session.batch = batch;
                        session.behind = BatchMove::Get;
                        session.block = 0;
                        session.sets = SetRun::default();
                    }
                }
            }
            let Some(session) = &mut session else {
                work.members[BatchMove::Not as usize].push(member);
                continue;
            };
            let request = &bytes[at..behind];
            let may = |to: BatchMove| session.behind <= to && !entry.has_completion();
            let to = match entry.class {
                Class::Get if try_get && !entry.has_completion() => {
                    try_get = false;
                    tries[0] = Some(index);
                    BatchMove::Not
                }
                Class::Set if try_set && !entry.has_completion() => {
                    try_set = false;
                    tries[1] = Some(index);
                    BatchMove::Not
                }
                Class::Get
                    if fuse_gets
                        && switches.fuse
                        && may(BatchMove::Get)
                        && is_plain(request, GET) =>
                {
                    BatchMove::Get
                }
                Class::Get | Class::Pure
                    if collapse && switches.collapse && may(BatchMove::Read) =>
                {
                    session.reads_in_order |= !request.starts_with(GET);
                    BatchMove::Read
                }
                Class::Set
                    if fuse_sets
                        && switches.fuse
                        && may(BatchMove::Set)
                        && is_plain(request, SET)
                        && (session.sets.is_empty() || set_session == current)
                        && session.sets.takes::<BY_SLOT>(request, keys_max) =>
                {
                    set_session = current;
                    BatchMove::Set
                }
                _ => BatchMove::Not,
            };
            session.behind = to;
            work.members[to as usize].push(member);
        }
        for index in tries.into_iter().flatten() {
            work.entries[index] = link.ledger.try_right(index);
        }
        let moved = &work.members[..BatchMove::Not as usize];
        if moved.iter().any(|members| members.len() > 1) {
            self.rearrange::<BY_SLOT>(id, &mut work, collapse);
        }
        self.coalescing = work;
    }

    /// Puts the batch into its new order.
    // Not inlined, and its callees are not either, because registers are few.
    #[inline(never)]
    pub(crate) fn rearrange<const BY_SLOT: bool>(
        &mut self,
        id: LinkId,
        work: &mut Coalescing,
        collapse: bool,
    ) {
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        let Coalescing {
            entries,
            members: [moved @ .., stay],
            dedup,
            blocks,
            order,
        } = work;
        let bytes = link.ledger.open_batch_bytes();
        let batch = OpenBatch { entries, bytes };
        order.begin(stay, batch);
        blocks.last = 0;
        let (mut candidates, mut same, mut saved) = (0, 0, 0);
        let (mut fusable, mut lone) = (0, 0);
        for (section, members) in SECTIONS.iter().zip(moved).rev() {
            members.reverse();
            let mut section = section.of(members.len());
            section.collapses &= collapse;
            let sessions = &mut self.sessions;
            choose::<BY_SLOT>(
                &section,
                members,
                batch,
                dedup,
                blocks,
                &self.coalescing_switches,
                sessions,
            );
            let fused = order.write(&section, members, batch, dedup, blocks);
            if section.collapses {
                candidates += members.len();
                same += members.len() - dedup.leaders().len();
            }
            if BY_SLOT && section.whole.is_some() {
                fusable += blocks.of_section.iter().sum::<usize>();
                lone += blocks
                    .of_section
                    .iter()
                    .filter(|count| **count == 1)
                    .count();
            }
            saved += members.len() - blocks.of_section.len();
            let counters = &mut self.counters;
            counters.fused_batches += fused.wholes;
            match section.member {
                Class::OfGets => counters.fused_gets += fused.requests,
                Class::OfSets => counters.fused_sets += fused.requests,
                // Other reads are moved, and not fused.
                _ => {}
            }
        }
        let counters = &mut self.counters;
        counters.reads_collapsed += same as u64;
        counters.commands_saved += saved as u64;
        if collapse {
            counters.collapsing_stops += u64::from(link.gates.collapsing.note(candidates as u32));
            link.gates.collapsing.waste((candidates - same) as u32);
        }
        if BY_SLOT {
            counters.slot_fusing_stops += u64::from(link.gates.by_slot.note(fusable as u32));
            link.gates.by_slot.waste(lone as u32);
        }
        link.ledger.rearrange(&order.bytes, &order.entries);
    }

    /// Takes the beginning of a reply to an MGET, or an error. Returns how many bytes it has used:
    /// the elements behind them are replies like others. `None`: more bytes have to come first.
    pub(crate) fn open_gets(&mut self, id: LinkId, bytes: &[u8]) -> Result<Option<usize>, String> {
        const WRONG: &str = "its reply to MGET is no array of the right length";
        let Some(link) = self.links.get_mut(id) else {
            return Ok(None);
        };
        let Some(head) = link.ledger.first_in_flight() else {
            return Ok(None);
        };
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            if bytes.len() > HEAD_BYTES_MAX {
                return Err(WRONG.to_owned());
            }
            link.unscanned = bytes.to_vec();
            return Ok(None);
        };
        let line = &bytes[..=end];
        match line
            .strip_suffix(b"\r\n")
            .and_then(|line| line.split_first())
        {
            Some((b'-', error)) => self.split_refused_join(id, head, error),
            Some((b'*', count)) if number::parse(count) == Some(head.member_count().into()) => {
                link.ledger.pop_head(head);
                // By now it is known which earlier GETs are sent again.
                self.counters.get_fusing_stops +=
                    u64::from(link.gates.gets.note(head.member_count()));
            }
            _ => return Err(WRONG.to_owned()),
        }
        Ok(Some(line.len()))
    }

    /// Sends each member of a joined request again by itself, because the server executed none of
    /// them. If the user may not send the joined command, or the server has none, it is not tried
    /// again on this connection. Otherwise ACL LOG would fill with it. The same holds for
    /// CROSSSLOT, because keys are rarely of one slot by chance. If one key is forbidden to the
    /// user, that says nothing of other keys.
    pub(crate) fn split_refused_join(&mut self, id: LinkId, head: Entry, error: &[u8]) {
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        self.counters.link_replies += 1;
        let (gate, left_alone) = match head.class {
            Class::Gets => (&mut link.gates.gets, &mut self.counters.get_fusing_stops),
            _ => (&mut link.gates.sets, &mut self.counters.set_fusing_stops),
        };
        *left_alone += u64::from(gate.close());
        if refuses_command(error) || error.starts_with(b"CROSSSLOT") {
            gate.stay_off();
        }
        link.ledger.pop_head(head);
        for _ in 0..head.member_count() {
            let Some(link) = self.links.get_mut(id) else {
                return;
            };
            let (alone, request) = link.ledger.take_alone();
            for entry in alone {
                self.will_ask_again(id, entry, &request);
            }
        }
        self.ask_again(id);
    }

    /// Whether the reply to a read may come too early, because an earlier request of its session is
    /// sent again on this link. Other links do not matter.
    pub(crate) fn brings_early(&self, link: LinkId, read: &Entry) -> bool {
        let asks_again = |session: &Session| session.state.any(Flags::ASKS_AGAIN);
        !self.repeated_requests.is_empty()
            && read.earlier_attempt() != EarlierAttempt::Answered
            && self.sessions.get(read.session).is_some_and(asks_again)
            && self.asking(read.session, link).is_some()
    }

    pub(crate) fn asking(&self, session: SessionId, link: LinkId) -> Option<&RepeatedRequests> {
        let repeated = self.repeated_requests.get(&session)?;
        repeated.iter().find(|asking| asking.link == link)
    }

    /// Whether such a request has to stay behind requests that its session sends again on a link.
    fn asks_same_again(&self, link: LinkId, session: SessionId, request: &[u8]) -> bool {
        let asking = self.asking(session, link);
        asking.is_some_and(|asking| asking.has_before(request))
    }

    /// Whether a session has room for a copy of a reply. The server's own replies come no faster
    /// than they are read, and copies would. A session with too much output asks for itself, and so
    /// does every session while the worker holds much. A closed session needs no room.
    fn has_room_for_copy(&self, id: SessionId, reply: &[u8]) -> bool {
        let limits = &self.settings.limits;
        let most = limits.worker_memory_bytes_max as usize / 2;
        let has_room = |session: &Session| {
            let owed = session.out.len() + session.reordered_bytes();
            owed + reply.len() <= limits.session_output_soft_bytes as usize
        };
        self.held_bytes + reply.len() <= most && self.sessions.get(id).is_none_or(has_room)
    }

    fn will_ask_again(&mut self, id: LinkId, entry: Entry, request: &[u8]) {
        let Some(session) = self.sessions.get_mut(entry.session) else {
            self.counters.late_replies += 1;
            return;
        };
        session.state |= Flags::ASKS_AGAIN;
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        link.ledger.repeat_later(entry, request);
        let pool = self.servers[usize::from(link.kind.server.0)].pool;
        let collapses = self.pools[usize::from(pool)].flush.collapse
            && CoalescingSwitches::of(&self.coalescing_switches, session.listener).collapse;
        let repeated = self.repeated_requests.entry(entry.session).or_default();
        let index = repeated.iter().position(|asking| asking.link == id);
        let index = index.unwrap_or_else(|| {
            repeated.push(RepeatedRequests::on(id));
            repeated.len() - 1
        });
        repeated[index].all |= !entry.class.reads() || session.reads_in_order || !collapses;
        repeated[index].requests.push(hash(request));
    }

    /// Forgets the repeated requests of a lost link. Its unanswered requests are sent again in
    /// their old order, or not at all.
    pub(crate) fn forget_asking(&mut self, link: LinkId) {
        self.repeated_requests.retain(|_, repeated| {
            repeated.retain(|asking| asking.link != link);
            !repeated.is_empty()
        });
    }

    /// Puts repeated requests on their link, each session's in the order in which it sent them. To
    /// be called between blocks: until then, replies to later requests may have come.
    pub(crate) fn ask_again(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        if !link.ledger.has_repeats() {
            return;
        }
        let mut again = link.ledger.take_repeats();
        again.sort_by(|(one, _), (other, _)| one.cmp_in_session(other));
        let (mut first, mut parked) = (None, 0);
        for index in 0..again.len() {
            let entry = again[index].0;
            if first.replace(entry.session) == Some(entry.session) {
                continue;
            }
            let repeated = self
                .repeated_requests
                .get(&entry.session)
                .into_iter()
                .flatten();
            let asking = repeated.into_iter().find(|asking| asking.link == id);
            let (Some(session), Some(asking)) = (self.sessions.get_mut(entry.session), asking)
            else {
                continue;
            };
            let is_early = |request: &[u8]| asking.has_before(request);
            for early in session.take_reordered_behind(entry.seq, id, is_early) {
                self.held_bytes -= early.freed;
                // It counted when its early reply came.
                let entry = Entry {
                    seq: early.seq,
                    len: early.request.len() as u32,
                    command: CommandMark::UNMEASURED,
                    ..entry
                };
                again.push((entry, early.request));
                parked += 1;
            }
        }
        again.sort_by(|(one, _), (other, _)| one.cmp_in_session(other));
        self.counters.joined_requests_resent += again.len() as u64;
        if let Some(link) = self.links.get_mut(id) {
            link.gates.gets.waste(parked);
            for (entry, request) in &again {
                link.ledger.push(entry.leaving_again(), request);
            }
        }
        self.list_link(id);
    }

    /// Takes a reply to a moved request. `cut`: its beginning has been passed on to the first
    /// session.
    pub(crate) fn settle_joined(&mut self, id: LinkId, entry: Entry, reply: &[u8], cut: bool) {
        match entry.class {
            Class::TriesGet | Class::TriesSet => self.settle_try(id, entry, reply, cut),
            Class::Sets => match reply.strip_prefix(b"-") {
                Some(error) if executed_nothing(error) => self.split_refused_join(id, entry, error),
                _ => self.settle_sets(id, entry, reply),
            },
            _ => self.settle_read(id, entry, reply, cut),
        }
        let next = self
            .links
            .get(id)
            .and_then(|link| link.ledger.first_in_flight());
        if next.is_none_or(|next| next.class != Class::OfGets) {
            self.ask_again(id);
        }
    }

    /// Takes the reply to a GET or SET that tests the user's right. A server checks rights first,
    /// so any value and most errors prove the right. A refusal proves nothing. An
    /// error that begins with ERR may be a refusal in other words.
    fn settle_try(&mut self, id: LinkId, entry: Entry, reply: &[u8], cut: bool) {
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        let refused = |error: &[u8]| refuses_command(error) || error.starts_with(b"ERR");
        let may = cut || !reply.strip_prefix(b"-").is_some_and(refused);
        let seen = may.then_some(self.now);
        match entry.class {
            Class::TriesGet => link.gates.may_get = seen,
            _ => link.gates.may_set = seen,
        }
        self.note_front(id, &entry);
        if !cut {
            self.note_if_error(&entry, reply);
        }
        if let Some(link) = self.links.get_mut(id) {
            link.ledger.pop_answered(entry);
        }
        self.counters.link_replies += 1;
        self.deliver(entry.session, entry.seq, 1, reply);
    }

    /// Takes the reply to an MSET, which every member gets. After some errors the MSET may have
    /// been executed.
    fn settle_sets(&mut self, id: LinkId, head: Entry, reply: &[u8]) {
        self.counters.link_replies += 1;
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        let departure = link.ledger.front_departure();
        if reply.starts_with(b"-") {
            self.counters.set_fusing_stops += u64::from(link.gates.sets.close());
            self.note_refused_sets(id, head, reply);
        }
        let (mut delivery, mut replies) = (Delivery::NONE, self.spare_buffers.take());
        let mut run = AnsweredRun::NONE;
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        link.ledger.pop_answered(head);
        if let Some(first) = link.ledger.first_in_flight() {
            self.watch_front(id, &first);
        }
        for _ in 0..head.member_count() {
            let Some(link) = self.links.get_mut(id) else {
                break;
            };
            let Some(entry) = link.ledger.first_in_flight() else {
                break;
            };
            self.latency
                .note_next(&mut run, &entry, departure, self.now_stamp);
            link.ledger.pop_answered(entry);
            self.go_on_delivering(&mut delivery, entry, &replies);
            replies.extend_from_slice(reply);
        }
        self.latency.note(run, self.now_stamp);
        self.end_delivery(&mut delivery, &replies);
        self.spare_buffers.give(replies);
    }

    /// Counts the error reply to an MSET for each of its members.
    #[cold]
    #[inline(never)]
    fn note_refused_sets(&mut self, id: LinkId, head: Entry, error: &[u8]) {
        let ledger = self.links.get(id).map(|link| &link.ledger);
        let entries = ledger.into_iter().flat_map(Ledger::iter).skip(1);
        let members: Vec<Entry> = entries
            .take(head.member_count() as usize)
            .copied()
            .collect();
        for entry in members {
            self.note_error(&entry, error);
        }
    }

    /// Takes the reply to a read and its equals. A session asks again if the reply may hide an
    /// error, or if the reply came too early. The other sessions get it.
    fn settle_read(&mut self, id: LinkId, front: Entry, reply: &[u8], cut: bool) {
        let Some(link) = self.links.get_mut(id) else {
            return;
        };
        self.counters.link_replies += 1;
        let departure = link.ledger.front_departure();
        let nil = front.class == Class::OfGets && !cut && is_nil(reply);
        let is_error = !cut && reply.starts_with(b"-");
        let mut wasted = false;
        let mut request = self.spare_buffers.take();
        request.extend_from_slice(front.class.beginning());
        request.extend_from_slice(link.ledger.first_bytes());
        let (mut is_first, mut run) = (true, AnsweredRun::NONE);
        while let Some(link) = self.links.get_mut(id)
            && let Some(entry) = link.ledger.first_in_flight()
            && (is_first || entry.class == Class::Same)
        {
            link.ledger.pop_answered(entry);
            let is_early = self.brings_early(id, &entry)
                && (cut
                    || self.asks_same_again(id, entry.session, &request)
                    || !self.has_room_for_copy(entry.session, reply));
            let too_much = !is_first && (cut || !self.has_room_for_copy(entry.session, reply));
            if let Some(link) = self.links.get_mut(id).filter(|_| too_much) {
                self.counters.collapsing_stops += u64::from(link.gates.collapsing.close());
            }
            if nil || too_much || is_early {
                wasted |= front.class == Class::OfGets;
                let entry = Entry {
                    len: request.len() as u32,
                    class: match too_much {
                        true => Class::Read,
                        false => entry.class.when_repeated(),
                    },
                    ..entry.after(EarlierAttempt::Answered)
                };
                self.will_ask_again(id, entry, &request);
            } else {
                if run == AnsweredRun::NONE {
                    self.watch_read(id, &entry, departure.left, &request);
                }
                self.latency
                    .note_next(&mut run, &entry, departure, self.now_stamp);
                if is_error {
                    self.note_error(&entry, reply);
                }
                self.deliver_read(entry.session, entry.seq, reply, (id, &request));
            }
            is_first = false;
        }
        self.latency.note(run, self.now_stamp);
        if let Some(link) = self.links.get_mut(id) {
            link.gates.gets.waste(u32::from(wasted));
        }
        self.spare_buffers.give(request);
    }
}

#[cfg(test)]
mod tests {
    use super::{executed_nothing, refuses_command};

    /// NOPERM for a command stops joining; NOPERM for a key does not.
    #[test]
    fn refusal_of_a_command_differs_from_that_of_a_key() {
        for command in [
            "NOPERM User keymaster has no permissions to run the 'mget' command",
            "NOPERM this user has no permissions to run the 'mget' command or its subcommand",
            "ERR unknown command 'MGET', with args beginning with: 'a'",
        ] {
            assert!(refuses_command(command.as_bytes()), "{command}");
        }
        for other in [
            "NOPERM this user has no permissions to access one of the keys used as arguments",
            "NOPERM No permissions to access a key",
            "OOM command not allowed when used memory > 'maxmemory'.",
        ] {
            assert!(!refuses_command(other.as_bytes()), "{other}");
        }
    }

    /// If a word were missing, SETs that did not run would fail together. If there were one too
    /// many, SETs that ran would be repeated.
    #[test]
    fn only_known_errors_prove_that_nothing_ran() {
        for refused in [
            "NOPERM this user has no permissions to run the 'mset' command",
            "NOAUTH Authentication required.",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "READONLY You can't write against a read only replica.",
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
            "NOREPLICAS Not enough good replicas to write.",
            "CROSSSLOT Keys in request don't hash to the same slot",
            "MOVED 3999 127.0.0.1:6381",
            "ASK 3999 127.0.0.1:6381",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "CLUSTERDOWN Hash slot not served",
            "LOADING Redis is loading the dataset in memory",
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "NOTSENT respool: server:1: the connection was lost before the command was sent",
            "ERR unknown command 'MSET', with args beginning with: 'a' '1'",
            "ERR unsupported command 'MSET'",
        ] {
            assert!(executed_nothing(refused.as_bytes()), "{refused}");
            let (word, _) = refused.split_once(' ').expect("more than a word");
            for other in [word, &format!("{word}S no"), &format!("ERR {refused}")] {
                let as_word = executed_nothing(other.as_bytes());
                assert!(!as_word, "{other}");
            }
            let later = format!("UNKNOWN a part of it may have been; {refused}");
            assert!(!executed_nothing(later.as_bytes()), "{later}");
        }
        for uncertain in [
            "",
            "ERR",
            "ERR syntax error",
            "ERR wrong number of arguments for 'mset' command",
            "ERR unknown",
            "UNKNOWN respool: the command was sent and may have been executed",
            "UNKNOWN respool: server:1: nobody knows",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "EXECABORT Transaction discarded because of previous errors.",
            "UNBLOCKED force unblock from blocking operation",
        ] {
            assert!(!executed_nothing(uncertain.as_bytes()), "{uncertain}");
        }
    }
}
