//! Levels 3 and 4 of coalescing: the GETs of a batch leave as one MGET, its SETs without options as one MSET,
//! and of reads that are the same, one is sent.
//!
//! ```text
//!   gathered:   GET a   SET b 1   INCR c   LLEN l   GET d   SET e 2   LLEN l   GET a      of eight sessions
//!   sent:       INCR c   MSET b 1 e 2   LLEN l   MGET a d
//!   ledger:     INCR c | Sets(2), b, e | LLEN l, the same | Gets(2), a, the same, d
//! ```
//!
//! Each part has an entry of its own, with its session and its place there. No client can tell, because of
//! seven rules:
//! - Requests of different sessions that were gathered at one moment may run in any order: none of them was
//!   answered. Those of one session keep theirs: what is moved runs behind all others of the batch, first SETs, then
//!   reads, then GETs; so it is moved only if its session has asked for nothing behind it that would run before.
//! - A read takes the answer of an equal one that is in the same batch. Among what is moved nothing writes behind a read,
//!   so no write comes in between. What a session reads of one key it reads in its order: so whoever reads in more than one
//!   way (GET and STRLEN) takes an answer only if nothing that it asked before runs later. Whoever only GETs may be
//!   answered for one key as of a moment before that of the key it asked for first: both lie within the batch. That order is
//!   kept where it costs nothing, within an MGET.
//! - A session that has parts, or takes another's answer, is not asked for more until all of it is answered. So
//!   whatever has to be asked again can be asked again as if it had never been sent.
//! - MGET says nil where GET may say WRONGTYPE. So a nil is asked again, as a GET for all who want it, and so is what
//!   their sessions have read of that key behind it; where reads are not joined, or a session reads in more than one way,
//!   everything that they have asked behind it. What is asked again is fused no more, so its answer is one. An answer that
//!   is too much to be copied is given to the first, and the others ask again.
//! - An error to an MGET or MSET is of the whole: every part is asked again by itself, and has its own answer; of an MSET
//!   only if the error says that nothing was executed. What one session sets is in one MSET: none of it is executed before
//!   something of it that is refused.
//! - A node of a Cluster takes keys of one slot together, and no others. So there what is in an MGET or MSET stood side by
//!   side and is of one slot; where that is rare, nothing is joined.
//! - Whoever may MGET need not have the right to GET, nor the server a GET. So GETs are fused only where one that stood
//!   for itself was not refused a short while ago; and so with SETs.
//!
//! Who looks at the server itself can tell: MONITOR, SLOWLOG and INFO show what was sent.

use respool_protocol::number;
use respool_protocol::slot::hash_slot;

use crate::control::Levels;
use crate::engine::Engine;
use crate::entry::{Before, Class, Entry, GET, SET};
use crate::limits::{FUSED_BYTES_MAX, RIGHT_SEEN_MS};
use crate::link::Link;
use crate::replies::Delivery;
use crate::session::{Flags, Session};
use crate::slots::{Key, Slots};
use crate::time::Time;
use crate::twins::{Twins, hash};

/// Where a batch is put into its new order; kept for the next one.
#[derive(Default)]
pub(crate) struct Coalescing {
    /// The batch as it was gathered.
    entries: Vec<Entry>,
    /// Its requests by what becomes of them ([`Move`]), from its end on.
    parts: [Vec<Part>; 4],
    /// Of those that are looked at: which are the same, and how they are sent.
    twins: Twins,
    blocks: Blocks,
    order: Order,
}

/// The new order of a batch.
#[derive(Default)]
struct Order {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

/// A request of the batch: its place there, and that of its bytes.
#[derive(Clone, Copy, Debug)]
struct Part {
    index: u32,
    at: u32,
}

/// The batch as it was gathered.
#[derive(Clone, Copy)]
struct Gathered<'a> {
    entries: &'a [Entry],
    bytes: &'a [u8],
}

impl<'a> Gathered<'a> {
    #[inline]
    fn entry(&self, part: Part) -> &'a Entry {
        &self.entries[part.index as usize]
    }

    /// The bytes of a request, but for so many at their beginning.
    #[inline]
    fn bytes(&self, part: Part, from: usize) -> &'a [u8] {
        let at = part.at as usize;
        &self.bytes[at + from..at + self.entry(part).len as usize]
    }
}

/// Where a request is moved to in its batch: what is more runs earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Move {
    /// Into an MGET.
    #[default]
    Get,
    /// To the reads in front of that.
    Read,
    /// Into an MSET, in front of those.
    Set,
    /// It stays where it is.
    Not,
}

/// How what is moved is sent.
#[derive(Clone, Copy)]
struct Section {
    /// As parts of such a request; `None`: each for itself.
    whole: Option<(Class, &'static [u8])>,
    part: Class,
    /// Arguments of each part.
    args: usize,
    /// Whether parts that are the same are sent once.
    collapses: bool,
    /// What a part is that has no other to leave with. A read is still one that was moved: its answer may have to wait for
    /// what its session asked before.
    alone: Class,
}

/// By [`Move`].
const SECTIONS: [Section; 3] = [
    Section {
        whole: Some((Class::Gets, b"\r\n$4\r\nMGET\r\n")),
        part: Class::OfGets,
        args: 1,
        collapses: true,
        alone: Class::Moved,
    },
    Section {
        whole: None,
        part: Class::Moved,
        args: 0,
        collapses: true,
        alone: Class::Moved,
    },
    Section {
        whole: Some((Class::Sets, b"\r\n$4\r\nMSET\r\n")),
        part: Class::OfSets,
        args: 2,
        collapses: false,
        alone: Class::Set,
    },
];

impl Section {
    /// How so many parts are sent.
    fn of(self, count: usize) -> Section {
        if count > 1 {
            return self;
        }
        Section {
            whole: None,
            part: self.alone,
            collapses: false,
            ..self
        }
    }
}

impl Engine {
    /// A batch is about to leave: what can leave together does.
    pub(crate) fn coalesce(&mut self, key: Key) {
        let Some(link) = self.links.get(key) else {
            return;
        };
        // Asked once for all of them: whoever has no Cluster has no use for the answer.
        match self.pool_of(link.key.server).cluster() {
            Some(_) => self.coalesce_as::<true>(key),
            None => self.coalesce_as::<false>(key),
        }
    }

    /// `BY_SLOT`: the parts of one request have to be of one slot.
    #[inline(never)]
    fn coalesce_as<const BY_SLOT: bool>(&mut self, key: Key) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let pool = self.servers[usize::from(link.key.server.0)].pool;
        let rule = &self.pools[usize::from(pool)].flush;
        let count = link.gathered() as u32;
        let fuse = rule.fuse && (!BY_SLOT || link.by_slot.pays(count));
        let gets = fuse && link.gets.pays(count);
        let sets = fuse && link.sets.pays(count);
        let collapse = rule.collapse && link.collapsing.pays(count);
        let now = self.now;
        let seen = |at: Option<Time>, ms| at.is_some_and(|at| now.since_ms(at) < ms);
        let fuse_gets = gets && seen(link.may_get, RIGHT_SEEN_MS);
        let fuse_sets = sets && seen(link.may_set, RIGHT_SEEN_MS);
        // In good time, so that it need not end.
        let mut try_get = gets && !seen(link.may_get, RIGHT_SEEN_MS / 2);
        let mut try_set = sets && !seen(link.may_set, RIGHT_SEEN_MS / 2);
        let mut tries = [None; 2];
        if !gets && !sets && !collapse {
            return;
        }
        self.batch = self.batch.wrapping_add(1);
        let batch = self.batch;
        let mut work = std::mem::take(&mut self.coalescing);
        work.parts.iter_mut().for_each(Vec::clear);
        let keys_max = rule.fused_keys_max as usize;
        work.blocks.keys_max = keys_max;
        link.copy_gathered(&mut work.entries);
        let bytes = link.gathered_bytes();
        let mut at = bytes.len();
        // Most come one behind the other: a session is looked up once for all that it has asked in one piece.
        let mut of = Key::NOBODY;
        let mut session: Option<&mut Session> = None;
        let mut levels = Levels::ALL;
        // Whose the last SET is that was moved.
        let mut set_of = Key::NOBODY;
        // From the end on: what a session asks later is known when it is decided what becomes of what it asks.
        for (index, entry) in work.entries.iter().enumerate().rev() {
            let behind = at;
            at -= entry.len as usize;
            let part = Part {
                index: index as u32,
                at: at as u32,
            };
            if entry.session != of {
                of = entry.session;
                session = self.sessions.get_mut(of);
                if let Some(session) = &mut session {
                    levels = Levels::of(&self.levels, session.listener);
                    if session.batch != batch {
                        session.batch = batch;
                        session.behind = Move::Get;
                        session.block = 0;
                        session.sets = Run::default();
                    }
                }
            }
            let Some(session) = &mut session else {
                work.parts[Move::Not as usize].push(part);
                continue;
            };
            let request = &bytes[at..behind];
            let may = |to: Move| session.behind <= to && !entry.duty;
            let to = match entry.class {
                Class::Get if try_get && !entry.duty => {
                    try_get = false;
                    tries[0] = Some(index);
                    Move::Not
                }
                Class::Set if try_set && !entry.duty => {
                    try_set = false;
                    tries[1] = Some(index);
                    Move::Not
                }
                Class::Get
                    if fuse_gets && levels.fuse && may(Move::Get) && is_plain(request, GET) =>
                {
                    Move::Get
                }
                Class::Get | Class::Pure if collapse && levels.collapse && may(Move::Read) => {
                    session.reads_in_order |= !request.starts_with(GET);
                    Move::Read
                }
                Class::Set
                    if fuse_sets
                        && levels.fuse
                        && may(Move::Set)
                        && is_plain(request, SET)
                        && (session.sets.is_empty() || set_of == of)
                        && session.sets.takes::<BY_SLOT>(request, keys_max) =>
                {
                    set_of = of;
                    Move::Set
                }
                _ => Move::Not,
            };
            session.behind = to;
            work.parts[to as usize].push(part);
        }
        for index in tries.into_iter().flatten() {
            work.entries[index] = link.try_right(index);
        }
        let moved = &work.parts[..Move::Not as usize];
        if moved.iter().any(|parts| parts.len() > 1) {
            self.rearrange::<BY_SLOT>(key, &mut work, collapse);
        }
        self.coalescing = work;
    }

    /// Puts the batch into its new order.
    // Not inlined, nor is what it calls: registers are few.
    #[inline(never)]
    fn rearrange<const BY_SLOT: bool>(&mut self, key: Key, work: &mut Coalescing, collapse: bool) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let Coalescing {
            entries,
            parts: [moved @ .., stay],
            twins,
            blocks,
            order,
        } = work;
        let bytes = link.gathered_bytes();
        let batch = Gathered { entries, bytes };
        order.begin(stay, batch);
        blocks.last = 0;
        let (mut candidates, mut same, mut saved) = (0, 0, 0);
        let (mut fusable, mut lone) = (0, 0);
        for (section, parts) in SECTIONS.iter().zip(moved).rev() {
            parts.reverse();
            let mut section = section.of(parts.len());
            section.collapses &= collapse;
            let sessions = &mut self.sessions;
            choose::<BY_SLOT>(
                &section,
                parts,
                batch,
                twins,
                blocks,
                &self.levels,
                sessions,
            );
            let fused = order.write(&section, parts, batch, twins, blocks);
            if section.collapses {
                candidates += parts.len();
                same += parts.len() - twins.leaders().len();
            }
            if BY_SLOT && section.whole.is_some() {
                fusable += blocks.of_section.iter().sum::<usize>();
                lone += blocks
                    .of_section
                    .iter()
                    .filter(|count| **count == 1)
                    .count();
            }
            saved += parts.len() - blocks.of_section.len();
            let counters = &mut self.counters;
            counters.fused_batches += fused.wholes;
            match section.part {
                Class::OfGets => counters.fused_gets += fused.requests,
                Class::OfSets => counters.fused_sets += fused.requests,
                // Other reads are moved, and not fused.
                _ => {}
            }
        }
        let counters = &mut self.counters;
        counters.collapsed += same as u64;
        counters.commands_saved += saved as u64;
        if collapse {
            counters.reads_left_alone += u64::from(link.collapsing.note(candidates as u32));
            link.collapsing.waste((candidates - same) as u32);
        }
        if BY_SLOT {
            counters.slots_left_alone += u64::from(link.by_slot.note(fusable as u32));
            link.by_slot.waste(lone as u32);
        }
        link.rearrange(&order.bytes, &order.entries);
    }
}

/// What is executed at once: one request that is sent. They are numbered through a batch.
#[derive(Default)]
struct Blocks {
    last: u32,
    /// The most parts in one.
    keys_max: usize,
    /// Of all parts of the last one, where slots count.
    slot: u16,
    /// Of each of a section: how many parts are sent with it.
    of_section: Vec<usize>,
    /// Bytes in the last one.
    bytes: usize,
}

/// The SETs of one session in a batch that leave together: in one MSET, or the later ones might be executed and the earlier
/// ones be refused.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    parts: u16,
    bytes: u16,
    /// Of all of them, where slots count.
    slot: u16,
}

const _: () = assert!(FUSED_BYTES_MAX <= u16::MAX as usize);

impl Run {
    fn is_empty(self) -> bool {
        self.parts == 0
    }

    /// Takes one more in, if all of it may be in one MSET.
    #[inline]
    fn takes<const BY_SLOT: bool>(&mut self, set: &[u8], keys_max: usize) -> bool {
        let has_room = usize::from(self.parts) < keys_max
            && usize::from(self.bytes) + set.len() <= FUSED_BYTES_MAX;
        let slot = match BY_SLOT && has_room {
            true => slot_of(&set[SET.len()..]),
            false => self.slot,
        };
        let fits = has_room && (!BY_SLOT || self.is_empty() || slot == self.slot);
        if fits {
            self.parts += 1;
            self.bytes += set.len() as u16;
            self.slot = slot;
        }
        fits
    }
}

impl Blocks {
    /// All of a run belongs into one block: into the last one, if it fits.
    fn begin_run<const BY_SLOT: bool>(&mut self, run: Run) {
        let is_other = BY_SLOT && run.slot != self.slot;
        if is_other || !self.has_room_for(run.parts.into(), run.bytes.into()) {
            self.begin(run.slot);
        }
    }

    fn begin(&mut self, slot: u16) {
        self.of_section.push(0);
        self.bytes = 0;
        self.slot = slot;
        self.last += 1;
    }

    /// Whether the last one does.
    #[inline]
    fn has_room_for(&self, parts: usize, bytes: usize) -> bool {
        let last = self.of_section.last();
        last.is_some_and(|count| count + parts <= self.keys_max)
            && self.bytes + bytes <= FUSED_BYTES_MAX
    }

    /// The block of the next part that is sent, with so many bytes.
    #[inline]
    fn take(&mut self, section: &Section, bytes: usize, slot: impl Fn() -> u16) -> u32 {
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

/// The slot of the first of arguments as they are on the wire.
fn slot_of(args: &[u8]) -> u16 {
    let first = || {
        let line = args.iter().position(|byte| *byte == b'\r')?;
        let len = usize::try_from(number::parse(args.get(1..line)?)?).ok()?;
        args.get(line + 2..)?.get(..len)
    };
    hash_slot(first().unwrap_or_default())
}

/// Decides which parts of a section are sent, and in which blocks; to the others the answer to an earlier one is theirs,
/// too.
#[inline(never)]
fn choose<const BY_SLOT: bool>(
    section: &Section,
    parts: &[Part],
    batch: Gathered<'_>,
    twins: &mut Twins,
    blocks: &mut Blocks,
    levels: &[Levels],
    sessions: &mut Slots<Session>,
) {
    blocks.of_section.clear();
    twins.clear(if section.collapses { parts.len() } else { 0 });
    let from = section.part.beginning().len();
    let mut of = Key::NOBODY;
    let mut session: Option<&mut Session> = None;
    let mut collapses = false;
    for (index, part) in parts.iter().enumerate() {
        let entry = batch.entry(*part);
        if entry.session != of {
            of = entry.session;
            session = sessions.get_mut(of);
            if let Some(session) = &mut session {
                collapses = section.collapses && Levels::of(levels, session.listener).collapse;
                if section.whole.is_some() {
                    session.flags |= Flags::FUSED;
                }
                if section.part == Class::OfSets {
                    blocks.begin_run::<BY_SLOT>(session.sets);
                }
            }
        }
        let Some(session) = &mut session else {
            unreachable!("what is moved was found to have a session");
        };
        let place = collapses.then(|| {
            let own = batch.bytes(*part, from);
            twins.find(own, |other| batch.bytes(parts[other as usize], from) == own)
        });
        if let Some(leader) = place.and_then(|place| place.leader) {
            let block = twins.leaders()[leader].block;
            if block >= session.block || !session.reads_in_order {
                session.block = session.block.max(block);
                session.flags |= Flags::FUSED;
                twins.follow(leader, index as u32);
                continue;
            }
        }
        session.block = blocks.take(section, entry.len as usize, || match BY_SLOT {
            true => slot_of(batch.bytes(*part, from)),
            false => 0,
        });
        if section.collapses {
            twins.lead(place, index as u32, session.block);
        }
    }
}

/// What of a section leaves in MGETs or MSETs.
#[derive(Default)]
struct Fused {
    wholes: u64,
    /// How many requests they answer.
    requests: u64,
}

impl Order {
    /// With what stays where it is.
    fn begin(&mut self, stay: &[Part], batch: Gathered<'_>) {
        self.bytes.clear();
        self.entries.clear();
        for part in stay.iter().rev() {
            self.bytes.extend_from_slice(batch.bytes(*part, 0));
            self.entries.push(*batch.entry(*part));
        }
    }

    /// What is sent of a section, and the entries of all of it.
    #[inline(never)]
    fn write(
        &mut self,
        section: &Section,
        parts: &[Part],
        batch: Gathered<'_>,
        twins: &Twins,
        blocks: &Blocks,
    ) -> Fused {
        let (mut parts_left, mut leaders_left) = (parts, twins.leaders());
        let collapses = section.collapses;
        let mut fused = Fused::default();
        for count in &blocks.of_section {
            let section = section.of(*count);
            let from = section.part.beginning().len();
            let sent = |part: Part| {
                let mut entry = *batch.entry(part);
                entry.class = section.part;
                entry.len -= from as u32;
                entry
            };
            let entries_before = self.entries.len();
            if collapses {
                let (block, rest) = leaders_left.split_at(*count);
                leaders_left = rest;
                let first = batch.entry(parts[block[0].string as usize]);
                self.begin_block(&section, *count, first);
                for leader in block {
                    let part = parts[leader.string as usize];
                    self.bytes.extend_from_slice(batch.bytes(part, from));
                    self.entries.push(sent(part));
                    self.entries
                        .extend(twins.followers(leader).map(|follower| Entry {
                            class: Class::Same,
                            len: 0,
                            ..*batch.entry(parts[follower as usize])
                        }));
                }
            } else {
                let (block, rest) = parts_left.split_at(*count);
                parts_left = rest;
                self.begin_block(&section, *count, batch.entry(block[0]));
                for part in block {
                    self.bytes.extend_from_slice(batch.bytes(*part, from));
                }
                self.entries.extend(block.iter().map(|part| sent(*part)));
            }
            if section.whole.is_some() {
                fused.wholes += 1;
                fused.requests += (self.entries.len() - entries_before - 1) as u64;
            }
        }
        fused
    }

    /// The head of so many parts, if they have one; as old as the first.
    fn begin_block(&mut self, section: &Section, count: usize, first: &Entry) {
        let Some((class, name)) = section.whole else {
            return;
        };
        let start = self.bytes.len();
        self.bytes.push(b'*');
        number::append(&mut self.bytes, (1 + count * section.args) as i64);
        self.bytes.extend_from_slice(name);
        self.entries.push(Entry {
            class,
            len: (self.bytes.len() - start) as u32,
            ..Entry::of(Key::NOBODY, count as u32, first.at_ms)
        });
    }
}

/// Whether a request is a GET or SET and no more, in the one way to write that.
fn is_plain(request: &[u8], beginning: &[u8]) -> bool {
    // The name may be in any case.
    const NAME_AT: usize = 8;
    request.len() > beginning.len() && request[..NAME_AT] == beginning[..NAME_AT]
}

/// What a session asks a link again.
pub(crate) struct Asking {
    link: Key,
    /// Everything that it asked behind that is asked again, too. Else only what is the same: what a session reads of one
    /// key it reads in its order.
    all: bool,
    /// Which requests, by their hashes. That of another at worst has one asked again in vain.
    requests: Vec<u64>,
}

impl Asking {
    fn on(link: Key) -> Asking {
        Asking {
            link,
            all: false,
            requests: Vec::new(),
        }
    }

    fn has_before(&self, request: &[u8]) -> bool {
        self.all || self.requests.contains(&hash(request))
    }
}

/// Replies to what leaves together.
impl Engine {
    /// A reply to an MGET begins; or it is an error. Returns how many bytes of it are done with: its elements
    /// are replies like others. `None`: the rest has to come first.
    pub(crate) fn open_gets(&mut self, key: Key, bytes: &[u8]) -> Result<Option<usize>, String> {
        const WRONG: &str = "its reply to MGET is no array of that length";
        let Some(link) = self.links.get_mut(key) else {
            return Ok(None);
        };
        let Some(head) = link.first_in_flight() else {
            return Ok(None);
        };
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            if bytes.len() > HEAD_BYTES_MAX {
                return Err(WRONG.to_owned());
            }
            link.partial = bytes.to_vec();
            return Ok(None);
        };
        let line = &bytes[..=end];
        match line
            .strip_suffix(b"\r\n")
            .and_then(|line| line.split_first())
        {
            Some((b'-', error)) => self.part(key, head, error),
            Some((b'*', count)) if number::parse(count) == Some(head.seq.into()) => {
                link.pop_head(head);
                // Of those before, it is known by now which are asked again.
                self.counters.gets_left_alone += u64::from(link.gets.note(head.seq));
            }
            _ => return Err(WRONG.to_owned()),
        }
        Ok(Some(line.len()))
    }

    /// A reply to something that was moved. `cut`: its beginning has been passed on, to the first whose it is.
    pub(crate) fn settle_moved(&mut self, key: Key, entry: Entry, reply: &[u8], cut: bool) {
        match entry.class {
            Class::TriesGet | Class::TriesSet => self.settle_try(key, entry, reply, cut),
            Class::Sets => match reply.strip_prefix(b"-") {
                Some(error) if executed_nothing(error) => self.part(key, entry, error),
                _ => self.settle_sets(key, entry, reply),
            },
            _ => self.settle_read(key, entry, reply, cut),
        }
        let next = self.links.get(key).and_then(Link::first_in_flight);
        if next.is_none_or(|next| next.class != Class::OfGets) {
            self.ask_again(key);
        }
    }

    /// Whoever may GET is answered by more than that it may not. So is who finds something else wrong: rights are what
    /// a server looks at first.
    fn settle_try(&mut self, key: Key, entry: Entry, reply: &[u8], cut: bool) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let refused = |error: &[u8]| refuses_command(error) || error.starts_with(b"ERR");
        let may = cut || !reply.strip_prefix(b"-").is_some_and(refused);
        let seen = may.then_some(self.now);
        match entry.class {
            Class::TriesGet => link.may_get = seen,
            _ => link.may_set = seen,
        }
        link.pop_answered(entry);
        self.counters.link_replies += 1;
        self.deliver(entry.session, entry.seq, 1, reply);
    }

    /// The reply to an MSET is that of every part; also an error that does not say that nothing was executed.
    fn settle_sets(&mut self, key: Key, head: Entry, reply: &[u8]) {
        self.counters.link_replies += 1;
        if let Some(link) = self.links.get_mut(key).filter(|_| reply.starts_with(b"-")) {
            self.counters.sets_left_alone += u64::from(link.sets.give_up());
        }
        let (mut delivery, mut replies) = (Delivery::NONE, self.spare.take());
        for part in 0..=head.seq {
            let Some(link) = self.links.get_mut(key) else {
                break;
            };
            let Some(entry) = link.first_in_flight() else {
                break;
            };
            link.pop_answered(entry);
            if part > 0 {
                self.go_on_delivering(&mut delivery, entry, &replies);
                replies.extend_from_slice(reply);
            }
        }
        self.end_delivery(&mut delivery, &replies);
        self.spare.give(replies);
    }

    /// Nothing of it was executed: the parts go their own ways. For a user who may not do it, or a server that cannot,
    /// it is not tried again on this connection: an ACL LOG would fill with it, and keys that come together are rarely of one
    /// slot. That one of the keys is not the user's says nothing of other keys.
    fn part(&mut self, key: Key, head: Entry, error: &[u8]) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        self.counters.link_replies += 1;
        let (trial, left_alone) = match head.class {
            Class::Gets => (&mut link.gets, &mut self.counters.gets_left_alone),
            _ => (&mut link.sets, &mut self.counters.sets_left_alone),
        };
        *left_alone += u64::from(trial.give_up());
        if refuses_command(error) || error.starts_with(b"CROSSSLOT") {
            trial.stay_off();
        }
        link.pop_head(head);
        for _ in 0..head.seq {
            let Some(link) = self.links.get_mut(key) else {
                return;
            };
            let (alone, request) = link.take_alone();
            for entry in alone {
                self.will_ask_again(key, entry, &request);
            }
        }
        self.ask_again(key);
    }

    /// Whose reply may hide an error, or who has asked behind one that may, asks again; the others have it.
    fn settle_read(&mut self, key: Key, front: Entry, reply: &[u8], cut: bool) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        self.counters.link_replies += 1;
        let nil = front.class == Class::OfGets && !cut && is_nil(reply);
        let mut wasted = false;
        let mut request = self.spare.take();
        request.extend_from_slice(front.class.beginning());
        request.extend_from_slice(link.first_bytes());
        let mut is_first = true;
        while let Some(link) = self.links.get_mut(key)
            && let Some(entry) = link.first_in_flight()
            && (is_first || entry.class == Class::Same)
        {
            link.pop_answered(entry);
            let is_early = self.brings_early(key, &entry)
                && (cut
                    || self.asks_same_again(key, entry.session, &request)
                    || !self.has_room_for_copy(entry.session, reply));
            let too_much = !is_first && (cut || !self.has_room_for_copy(entry.session, reply));
            if let Some(link) = self.links.get_mut(key).filter(|_| too_much) {
                self.counters.reads_left_alone += u64::from(link.collapsing.give_up());
            }
            if nil || too_much || is_early {
                wasted |= front.class == Class::OfGets;
                let entry = Entry {
                    len: request.len() as u32,
                    class: match too_much {
                        true => Class::Read,
                        false => entry.class.asked_again(),
                    },
                    before: Before::Answered,
                    ..entry
                };
                self.will_ask_again(key, entry, &request);
            } else {
                self.deliver_read(entry.session, entry.seq, reply, (key, &request));
            }
            is_first = false;
        }
        if let Some(link) = self.links.get_mut(key) {
            link.gets.waste(u32::from(wasted));
        }
        self.spare.give(request);
    }

    /// Whether the answer to a read may come too early: something that its session asked in front of it here is asked again.
    /// What other links bring has nothing to do with that.
    pub(crate) fn brings_early(&self, link: Key, read: &Entry) -> bool {
        let asks_again = |session: &Session| session.flags.any(Flags::ASKS_AGAIN);
        !self.askers.is_empty()
            && read.before != Before::Answered
            && self.sessions.get(read.session).is_some_and(asks_again)
            && self.asking(read.session, link).is_some()
    }

    fn asking(&self, session: Key, link: Key) -> Option<&Asking> {
        let its = self.askers.get(&session)?;
        its.iter().find(|asking| asking.link == link)
    }

    /// Whether such a request has to be behind what its session asks a link again.
    fn asks_same_again(&self, link: Key, session: Key, request: &[u8]) -> bool {
        let asking = self.asking(session, link);
        asking.is_some_and(|asking| asking.has_before(request))
    }

    /// What a server sends comes no faster than it is taken; copies would. So who has more than it takes, and everybody
    /// when the worker holds much, asks for itself. Who is gone takes none.
    fn has_room_for_copy(&self, key: Key, reply: &[u8]) -> bool {
        let limits = &self.settings.limits;
        let most = limits.worker_memory_bytes_max as usize / 2;
        let has_room = |session: &Session| {
            let owed = session.out.len() + session.parked_bytes();
            owed + reply.len() <= limits.session_output_soft_bytes as usize
        };
        self.held_bytes + reply.len() <= most && self.sessions.get(key).is_none_or(has_room)
    }

    fn will_ask_again(&mut self, key: Key, entry: Entry, request: &[u8]) {
        let Some(session) = self.sessions.get_mut(entry.session) else {
            self.counters.late_replies += 1;
            return;
        };
        session.flags |= Flags::ASKS_AGAIN;
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        link.asks_again = true;
        link.again.push((entry, request.to_vec()));
        let pool = self.servers[usize::from(link.key.server.0)].pool;
        let collapses = self.pools[usize::from(pool)].flush.collapse
            && Levels::of(&self.levels, session.listener).collapse;
        let its = self.askers.entry(entry.session).or_default();
        let index = its.iter().position(|asking| asking.link == key);
        let index = index.unwrap_or_else(|| {
            its.push(Asking::on(key));
            its.len() - 1
        });
        its[index].all |= !entry.class.reads() || session.reads_in_order || !collapses;
        its[index].requests.push(hash(request));
    }

    /// A link is lost: what it owed is asked again in the order in which it was asked, or not at all.
    pub(crate) fn forget_asking(&mut self, link: Key) {
        self.askers.retain(|_, its| {
            its.retain(|asking| asking.link != link);
            !its.is_empty()
        });
    }

    /// Puts what has to be asked again on its link, each session's requests in the order in which it asked them. To
    /// be called between what is executed at once: until then, an answer may have come to what was asked later.
    pub(crate) fn ask_again(&mut self, key: Key) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        if link.again.is_empty() {
            return;
        }
        let mut again = std::mem::take(&mut link.again);
        again.sort_by(|(one, _), (other, _)| one.asked_before(other));
        let (mut first, mut parked) = (None, 0);
        for index in 0..again.len() {
            let entry = again[index].0;
            if first.replace(entry.session) == Some(entry.session) {
                continue;
            }
            let its = self.askers.get(&entry.session).into_iter().flatten();
            let asking = its.into_iter().find(|asking| asking.link == key);
            let (Some(session), Some(asking)) = (self.sessions.get_mut(entry.session), asking)
            else {
                continue;
            };
            let is_early = |request: &[u8]| asking.has_before(request);
            for early in session.take_parked_behind(entry.seq, key, is_early) {
                self.held_bytes -= early.freed;
                let entry = Entry {
                    seq: early.seq,
                    len: early.request.len() as u32,
                    ..entry
                };
                again.push((entry, early.request));
                parked += 1;
            }
        }
        again.sort_by(|(one, _), (other, _)| one.asked_before(other));
        self.counters.asked_again += again.len() as u64;
        if let Some(link) = self.links.get_mut(key) {
            link.gets.waste(parked);
            for (entry, request) in &again {
                link.push(*entry, request);
            }
        }
        self.list_link(key);
    }
}

/// Whether an error says that this user may not give such a command, or that there is none; not that a key is not its.
fn refuses_command(error: &[u8]) -> bool {
    const ACCESS: &[u8] = b"permissions to access";
    let of_a_key = || error.windows(ACCESS.len()).any(|words| words == ACCESS);
    let of_user = error.starts_with(b"NOPERM") && !of_a_key();
    of_user || error.starts_with(b"NOAUTH") || error.starts_with(b"ERR unknown command")
}

/// Whether an error says that nothing of a command was executed. What a server itself refuses it has not executed; but
/// behind it may be others, and somebody in between may have lost the answer.
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

/// No error that a server says is longer.
const HEAD_BYTES_MAX: usize = 4 << 10;

/// What MGET says where there is nothing, or nothing that GET would show.
#[inline]
pub(crate) fn is_nil(element: &[u8]) -> bool {
    matches!(element, b"$-1\r\n" | b"_\r\n")
}

#[cfg(test)]
mod tests {
    use super::{executed_nothing, refuses_command};

    #[test]
    fn what_is_refused_is_a_command_or_a_key() {
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

    /// What is missing here would be asked again though it may have been executed, or failed for all though nobody did it.
    #[test]
    fn nothing_was_executed_where_a_server_says_so_in_words_that_are_its_own() {
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
        for doubtful in [
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
            assert!(!executed_nothing(doubtful.as_bytes()), "{doubtful}");
        }
    }
}
