//! The command table: what every command is, and what we do with it.
//!
//! The rows are generated from what real servers say of themselves (`data/commands-*.json`) and from
//! our own columns (`data/policy.toml`, each rule with its reason) by `respool-lab commands`; see
//! `COMMANDS.md` for the same table to read. A command known to one of the servers is known here.
//! Where the servers differ, the row is the safe union: it refuses what either needs refused, and lets
//! pass what either may understand.
//!
//! A request finds its row in two steps: [`lookup`] by its first argument, and for a container
//! (`CONFIG`, `XGROUP`, ...) [`lookup_sub`] by its second; [`resolve`] does both.

mod keys;
#[rustfmt::skip]
mod table;

pub use keys::{Begin, Find, KeyError, KeyFlags, KeyScan, KeySpec, is_word};
pub use table::id;

use table::{COMMANDS, MULTIPLIER};

/// One row of the table.
#[derive(Debug)]
pub struct Command {
    /// In lower case; a subcommand carries its container in front: `config|get`.
    pub name: &'static str,
    /// The number of arguments, with the name (and the subcommand); negative: at least that many.
    pub arity: i16,
    /// What the servers say of it.
    pub flags: Flags,
    /// Where its keys are.
    pub keys: &'static [KeySpec],
    /// How `keys` are to be read.
    pub key_scan: KeyScan,
    /// The argument that is its only key, whatever the other arguments are; 0: it has none, or
    /// several, or they move.
    pub only_key: u8,
    /// Who answers. Of a container: who answers when no subcommand of the table is named, where
    /// [`Answer::Session`] means the server's own `unknown subcommand` error.
    pub answer: Answer,
    /// Whether it may be sent again when its first fate is unknown.
    pub retry: Retry,
    /// What to do with it on a pool of several servers.
    pub fan_out: FanOut,
    /// How it may travel together with its neighbours.
    pub coalesce: Coalesce,
    /// Whether a replica may answer it in its primary's place, but for what has not come there yet.
    pub replica: bool,
    /// Which keys its reply names.
    pub names: Names,
    /// Whether one client could do harm to all others by it: refused unless the configuration says otherwise.
    pub dangerous: bool,
    /// Which of the servers asked know it.
    pub servers: Servers,
    /// The ids of its subcommands: from, and behind.
    subcommands: (u16, u16),
}

/// Names a row. The constants of [`id`] are made for `match`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommandId(u16);

/// Who answers a command.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    /// The server that owns its keys; the pool's one server, if it has no key.
    Server,
    /// The session itself: the command is about the client's connection, not about data.
    Session,
    /// Nobody: passed on, it would do to our shared link what was meant for the client's connection.
    Refused(Refusal),
    /// The server, on a link of its own for this one request: it may wait there, or must not wait behind
    /// others.
    Alone,
    /// The server, on a link that the session then keeps: the connection itself is what it changes.
    Pinned,
    /// The server, unless the arguments ask for something else: see [`Condition`].
    Conditional(Condition),
}

/// Why a command is not passed on.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// It is spoken between servers.
    Replication,
    /// It reads or changes something else of the server's connection, which is ours and shared.
    ConnectionState,
}

/// What the arguments are asked for.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Condition {
    /// `XREAD` and `XREADGROUP` may wait if they carry BLOCK, and then are as [`Answer::Alone`].
    Block,
    /// Scripts: a body that was seen heals a NOSCRIPT.
    Script,
    /// Its reply counts connections, where clients are to be counted.
    Count,
    /// `DEBUG PROTOCOL` makes the server send replies that break the rules of its protocol, a push in
    /// place of a reply for one: that is refused.
    DebugProtocol,
}

/// Whether a command may be sent again.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Retry {
    /// It changes nothing: sent twice, it does no harm.
    Read,
    /// Once it may have run, it is never sent again.
    Write,
}

/// What becomes of one request on a pool of several servers. Who answers it there, this alone says.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct FanOut {
    /// Who gets it.
    pub spread: Spread,
    /// What becomes of the replies.
    pub merge: Merge,
}

/// Who gets a request on a pool of several servers.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Spread {
    /// The server that owns its keys, which must all have one owner; the first that is up, if it has none.
    Owner,
    /// Each server that owns some of its keys, with those.
    Owners,
    /// The first server that is up.
    Any,
    /// The pool's first server, where everybody publishes and listens. In front of a Cluster, whose channels have
    /// places as keys have: who owns the channel.
    Home,
    /// What is about sharded channels: the pool's first server, and every server of a Cluster, where each has those of its slots.
    Channels,
    /// Every server, and the replies become one.
    All,
    /// One server after the other: the cursor says which.
    Turns,
    /// In front of a Cluster nobody: clients see one node, and that is us. Elsewhere as [`Spread::Any`].
    Node,
    /// Nobody: we answer.
    Here,
    /// It is about one connection, and the session has one to each server: each server that the session asks.
    Off,
    /// Nobody: refused.
    Refused,
}

/// How the replies of several servers become one.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Merge {
    /// There is only one.
    One,
    /// The elements, in the order of the keys asked for.
    KeyOrder,
    /// The elements of all, in any order.
    Concat,
    /// The first error, or else any.
    AllSucceeded,
    /// Any that is no error.
    OneSucceeded,
    /// The sum.
    Sum,
    /// The smallest.
    Min,
    /// Element by element, 1 only if all are 1.
    And,
    /// Particular to the command.
    Special,
}

/// How a request may travel together with others of its batch. Everything but `None` is a command
/// with exactly one key, in a fixed place.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Coalesce {
    /// Alone.
    None,
    /// `GET`: neighbours may become one MGET, and identical ones may become one.
    Get,
    /// `SET`: neighbours without options may become one MSET.
    Set,
    /// A read whose answer follows from the data alone: identical ones may become one.
    Collapse,
}

/// Where a reply names keys. What is nil, or an error, names none.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Names {
    /// Nowhere.
    None,
    /// The reply is one.
    Whole,
    /// Each element is one.
    Each,
    /// The first element is one.
    First,
    /// Each element of the second element is one.
    Second,
    /// The first element of each element is one; in RESP3 each key of a map.
    Streams,
}

/// A set of the flags that the servers give a command.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default)]
pub struct Flags(u32);

/// A set of the servers that the table was made from.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct Servers(u8);

/// Every row, sorted by name; subcommands follow their container.
pub fn all() -> impl ExactSizeIterator<Item = CommandId> {
    (0..COMMANDS.len() as u16).map(CommandId)
}

/// The row of an id.
#[inline]
pub fn command(id: CommandId) -> &'static Command {
    id.get()
}

/// Finds a command by its name, in any case. Subcommands are found by [`lookup_sub`] only.
///
/// This runs once per request: the name becomes three numbers, one multiplication says which row it
/// can be, one comparison whether it is.
#[inline]
pub fn lookup(name: &[u8]) -> Option<CommandId> {
    if name.len() > 8 {
        return lookup_long(name);
    }
    // The same as for a long name, without the words that are 0 and only cost time: nearly every
    // request comes this way.
    let word = lower_case(short_word(name));
    let row = ROW_OF_SLOT[slot_of(word, MULTIPLIER)];
    let found = &FOLDED[usize::from(row)];
    // An empty slot leads to row 0, whose name then differs.
    (found.words[0] == word && found.len == name.len() as u64).then_some(CommandId(row))
}

#[inline(never)]
fn lookup_long(name: &[u8]) -> Option<CommandId> {
    let folded = FoldedName::of(name)?;
    let row = ROW_OF_SLOT[folded.slot(MULTIPLIER)];
    (FOLDED[usize::from(row)] == folded).then_some(CommandId(row))
}

/// Finds a subcommand of a container by its name, in any case.
pub fn lookup_sub(container: CommandId, name: &[u8]) -> Option<CommandId> {
    let container = container.get();
    let (from, behind) = container.subcommands;
    let prefix = container.name.len() + 1;
    (from..behind)
        .map(CommandId)
        .find(|sub| sub.get().name.as_bytes()[prefix..].eq_ignore_ascii_case(name))
}

/// Finds the row of a request: of its subcommand, if it names one, or else of its command. A request
/// whose container has no such subcommand gets the container's row. `argc` is at least 1.
#[inline]
pub fn resolve<'a>(argc: usize, arg: impl Fn(usize) -> &'a [u8]) -> Option<CommandId> {
    let id = lookup(arg(0))?;
    if !id.get().is_container() || argc < 2 {
        return Some(id);
    }
    Some(lookup_sub(id, arg(1)).unwrap_or(id))
}

impl CommandId {
    /// The row.
    #[inline]
    pub fn get(self) -> &'static Command {
        &COMMANDS[usize::from(self.0)]
    }

    /// Its place in the table, for arrays with one element per command: less than [`CommandId::COUNT`].
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The number of rows.
    pub const COUNT: usize = COMMANDS.len();
}

impl Command {
    /// Whether a request with `argc` arguments, the name among them, has the right number.
    #[inline]
    pub fn arity_ok(&self, argc: usize) -> bool {
        let least = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 {
            argc >= least
        } else {
            argc == least
        }
    }

    /// Whether its second argument may name a subcommand.
    #[inline]
    pub fn is_container(&self) -> bool {
        self.subcommands.0 != self.subcommands.1
    }

    /// Its subcommands.
    pub fn subcommands(&self) -> impl Iterator<Item = CommandId> {
        (self.subcommands.0..self.subcommands.1).map(CommandId)
    }

    /// Whether any request with the right number of arguments goes to a server, whatever they are.
    #[inline]
    pub fn goes_straight(&self) -> bool {
        matches!(self.answer, Answer::Server) && !self.is_container()
    }

    /// Why a request with these arguments is not passed on, if it is not.
    #[inline]
    pub fn refusal<'a>(&self, argc: usize, arg: impl Fn(usize) -> &'a [u8]) -> Option<Refusal> {
        match self.answer {
            Answer::Server | Answer::Session | Answer::Alone | Answer::Pinned => None,
            Answer::Refused(why) => Some(why),
            Answer::Conditional(Condition::Block | Condition::Script | Condition::Count) => None,
            Answer::Conditional(Condition::DebugProtocol) => {
                (argc > 1 && is_word(arg(1), b"protocol")).then_some(Refusal::ConnectionState)
            }
        }
    }
}

/// Whether XREAD or XREADGROUP carries BLOCK where the server's own parser looks for it: among the
/// options in front of STREAMS, where COUNT and CLAIM take one argument and GROUP two.
pub fn asks_to_block<'a>(argc: usize, arg: impl Fn(usize) -> &'a [u8]) -> bool {
    let mut at = 1;
    while at < argc {
        let word = arg(at);
        at += if is_word(word, b"block") {
            // Without a number behind it, the server will refuse it.
            return at + 1 < argc;
        } else if is_word(word, b"streams") {
            return false;
        } else if is_word(word, b"count") || is_word(word, b"claim") {
            2
        } else if is_word(word, b"group") {
            3
        } else if is_word(word, b"noack") {
            1
        } else {
            // Either the server refuses this, or it is newer than we are and the option may have
            // arguments of its own: then any BLOCK may be the one.
            return (at + 1..argc).any(|at| is_word(arg(at), b"block"));
        };
    }
    false
}

/// Makes the constants of a set, the list of their names and what a set can do from one list.
macro_rules! names_of_set {
    ($set:ident: $repr:ty; $($(#[$doc:meta])* $constant:ident $name:literal $bit:literal;)*) => {
        impl $set {
            $($(#[$doc])* pub const $constant: $set = $set(1 << $bit);)*
            /// The empty set.
            pub const NONE: $set = $set(0);
            /// Every member with the name that the servers give it.
            pub const NAMES: &'static [(&'static str, $set)] = &[$(($name, $set(1 << $bit))),*];

            /// Whether all of `members` are in it.
            #[inline]
            pub const fn has(self, members: $set) -> bool {
                self.0 & members.0 == members.0
            }

            /// The members of both.
            #[must_use]
            pub const fn or(self, other: $set) -> $set {
                $set(self.0 | other.0)
            }

            /// The names of its members.
            pub fn names(self) -> impl Iterator<Item = &'static str> {
                Self::NAMES.iter().filter(move |(_, member)| self.0 & member.0 != 0).map(|(name, _)| *name)
            }
        }
        impl std::fmt::Debug for $set {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_set().entries(self.names()).finish()
            }
        }
    };
}
use names_of_set;

names_of_set! { Flags: u32;
    /// May change data.
    WRITE "write" 0;
    /// Changes no data.
    READONLY "readonly" 1;
    /// Refused when memory is full.
    DENYOOM "denyoom" 2;
    /// For administrators.
    ADMIN "admin" 3;
    /// Of publish and subscribe.
    PUBSUB "pubsub" 4;
    /// May make its connection wait.
    BLOCKING "blocking" 5;
    /// Not allowed in scripts.
    NOSCRIPT "noscript" 6;
    /// Allowed while the server loads its data.
    LOADING "loading" 7;
    /// Allowed on a replica with old data.
    STALE "stale" 8;
    /// Allowed before authentication.
    NO_AUTH "no_auth" 9;
    /// Not allowed in a transaction.
    NO_MULTI "no_multi" 10;
    /// Does little, whatever the data.
    FAST "fast" 11;
    /// Its keys are not all in a fixed place.
    MOVABLEKEYS "movablekeys" 12;
    /// May have no key at all although it has key specs.
    NO_MANDATORY_KEYS "no_mandatory_keys" 13;
    /// Allowed while a script runs too long.
    ALLOW_BUSY "allow_busy" 14;
    /// Not allowed while a replica loads in the background.
    NO_ASYNC_LOADING "no_async_loading" 15;
    /// Acts as if ASKING stood in front of it.
    ASKING "asking" 16;
    /// Not shown by MONITOR.
    SKIP_MONITOR "skip_monitor" 17;
    /// Not in the slow log (Redis).
    SKIP_SLOWLOG "skip_slowlog" 18;
    /// Not in the command log (Valkey).
    SKIP_COMMANDLOG "skip_commandlog" 19;
    /// Comes with a module that is part of the server.
    MODULE "module" 20;
}

names_of_set! { Servers: u8;
    /// Redis 8.2.
    REDIS_8_2 "redis-8.2" 0;
    /// Valkey 9.1.
    VALKEY_9_1 "valkey-9.1" 1;
}

impl std::fmt::Debug for CommandId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.get().name)
    }
}

/// A name of at most 24 bytes as three numbers, its letters in lower case.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct FoldedName {
    words: [u64; 3],
    /// Tells apart names that differ in zero bytes at their end.
    len: u64,
}

impl FoldedName {
    /// The longest name that can be folded.
    pub const BYTES_MAX: usize = 24;
    /// How many slots there are.
    pub const SLOTS: usize = 1 << Self::SLOT_BITS;
    const SLOT_BITS: u32 = 12;

    /// Folds a name; `None` if it is longer than [`FoldedName::BYTES_MAX`].
    #[inline]
    pub const fn of(name: &[u8]) -> Option<FoldedName> {
        let len = name.len();
        // Where a word is only partly covered, it is read from the end of the name and shifted into
        // place: overlapping reads of whole words need no loop over bytes.
        let words = if len <= 8 {
            [short_word(name), 0, 0]
        } else if len <= 16 {
            [first_word(name), last_word(name) >> ((16 - len) * 8), 0]
        } else if len <= Self::BYTES_MAX {
            let (_, behind) = name.split_at(8);
            [
                first_word(name),
                first_word(behind),
                last_word(name) >> ((24 - len) * 8),
            ]
        } else {
            return None;
        };
        let words = [
            lower_case(words[0]),
            lower_case(words[1]),
            lower_case(words[2]),
        ];
        Some(FoldedName {
            words,
            len: len as u64,
        })
    }

    /// The slot it belongs to. With the table's own multiplier no two commands share one.
    #[inline]
    pub const fn slot(&self, multiplier: u64) -> usize {
        let [a, b, c] = self.words;
        slot_of(a ^ b.rotate_left(23) ^ c.rotate_left(47), multiplier)
    }
}

/// The top bits of the product: every bit of the word has a part in them.
#[inline]
const fn slot_of(word: u64, multiplier: u64) -> usize {
    (word.wrapping_mul(multiplier) >> (64 - FoldedName::SLOT_BITS)) as usize
}

/// The up to 8 bytes of a name, the first one lowest.
const fn short_word(name: &[u8]) -> u64 {
    let len = name.len();
    if let (Some(first), Some(last)) = (name.first_chunk::<4>(), name.last_chunk::<4>()) {
        // Where both cover a byte they agree.
        u32::from_le_bytes(*first) as u64 | (u32::from_le_bytes(*last) as u64) << ((len - 4) * 8)
    } else if len > 0 {
        let half = len / 2;
        name[0] as u64
            | (name[half] as u64) << (half * 8)
            | (name[len - 1] as u64) << ((len - 1) * 8)
    } else {
        0
    }
}

/// The first 8 bytes of a name, or 0 if it has fewer.
const fn first_word(name: &[u8]) -> u64 {
    match name.first_chunk::<8>() {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => 0,
    }
}

/// The last 8 bytes of a name, or 0 if it has fewer.
const fn last_word(name: &[u8]) -> u64 {
    match name.last_chunk::<8>() {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => 0,
    }
}

/// Eight bytes with `A` to `Z` made `a` to `z`, all at once. The top bit of each byte serves as the
/// carry of its own comparison; bytes that have it set are no letters and stay as they are.
const fn lower_case(word: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let low_bits = word & (0x7f * EACH);
    let from_a = low_bits + (0x80 - b'A' as u64) * EACH;
    let behind_z = low_bits + (0x7f - b'Z' as u64) * EACH;
    let letter = (from_a ^ behind_z) & !word & (0x80 * EACH);
    // 0x80 >> 2 is 0x20, what tells the cases apart.
    word | (letter >> 2)
}

/// The folded name of every row; of a subcommand one that no name folds to.
static FOLDED: [FoldedName; COMMANDS.len()] = {
    let mut folded = [FoldedName {
        words: [0; 3],
        len: u64::MAX,
    }; COMMANDS.len()];
    let mut row = 0;
    while row < COMMANDS.len() {
        if let Some(name) = top_level(row) {
            folded[row] = name;
        }
        row += 1;
    }
    folded
};

/// The row of each slot; 0 where there is none.
static ROW_OF_SLOT: [u16; FoldedName::SLOTS] = {
    let mut rows = [u16::MAX; FoldedName::SLOTS];
    let mut row = 0;
    while row < COMMANDS.len() {
        if let Some(name) = top_level(row) {
            let slot = name.slot(MULTIPLIER);
            assert!(
                rows[slot] == u16::MAX,
                "two commands share a slot: generate the table anew"
            );
            rows[slot] = row as u16;
        }
        row += 1;
    }
    let mut slot = 0;
    while slot < rows.len() {
        if rows[slot] == u16::MAX {
            rows[slot] = 0;
        }
        slot += 1;
    }
    rows
};

/// The folded name of a row that is no subcommand.
const fn top_level(row: usize) -> Option<FoldedName> {
    let name = COMMANDS[row].name.as_bytes();
    let mut at = 0;
    while at < name.len() {
        if name[at] == b'|' {
            return None;
        }
        at += 1;
    }
    let folded = FoldedName::of(name);
    assert!(
        folded.is_some(),
        "a command's name is longer than can be folded"
    );
    folded
}

#[cfg(test)]
mod tests;
