//! The command table: properties of each command, and how respool handles it.
//!
//! `cargo xtask commands` generates the rows from COMMAND of real servers (`data/commands-*.json`)
//! and from our own columns (`data/policy.toml`, each rule with its reason).
//! `docs/reference/commands.md` has the same table to read. The table has every command of each of
//! these servers. If the servers differ, the row is a safe union. A request is refused if one
//! server needs that. It is passed on if one server may understand it.
//!
//! [`lookup`] finds a row by the first argument of a request. For a container (`CONFIG`, `XGROUP`,
//! ...) [`lookup_sub`] finds the row of the subcommand by the second argument. [`resolve`] does
//! both.

mod keys;
#[rustfmt::skip]
mod table;

pub use keys::{Begin, Find, KeyError, KeyFlags, KeyScan, KeySpec, is_word};
pub use table::id;

use table::{COMMANDS, MULTIPLIER};

/// One row of the table.
#[derive(Debug)]
pub struct Command {
    /// Name in lower case. The name of a subcommand begins with its container: `config|get`.
    pub name: &'static str,
    /// Number of arguments with the name (and the subcommand); negative: the least number.
    pub arity: i16,
    /// The servers' flags.
    pub flags: CommandFlags,
    /// The servers' key specs.
    pub keys: &'static [KeySpec],
    /// The rule to find the keys.
    pub key_scan: KeyScan,
    /// Index of its only key, if this does not depend on other arguments. 0: no key, several keys,
    /// or keys at varying positions.
    pub only_key: u8,
    /// The party that answers it. In a container: the party that answers an unknown subcommand;
    /// there [`Answer::Session`] means the server's own `unknown subcommand` error.
    pub answer: Answer,
    /// Whether it may be sent again if it may have run.
    pub retry: Retry,
    /// Handling in a pool of several servers.
    pub fan_out: FanOut,
    /// The kind of coalescing with neighbours.
    pub coalesce: Coalesce,
    /// Whether a replica may answer it. The replica may not have the last writes yet.
    pub replica: bool,
    /// The places of keys in its reply.
    pub names: Names,
    /// Whether one client can harm all others with it. It is refused unless the configuration
    /// allows it.
    pub dangerous: bool,
    /// The servers that have it.
    pub servers: Servers,
    /// Ids of its subcommands: the first one, and the one behind the last.
    subcommands: (u16, u16),
}

/// Identifies a row. The constants of [`id`] can be used in `match`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommandId(u16);

/// The party that answers a command.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    /// The server that owns its keys; without keys the pool's only server.
    Server,
    /// The session itself: the command concerns the client's connection, not data.
    Session,
    /// An error of ours: a server would apply the command to our shared link.
    Refused(CommandRefusal),
    /// The server, on a pinned link for this request. It may block, or must not wait behind others.
    Alone,
    /// The server, on a link that stays pinned to the session: the command changes the connection.
    Pinned,
    /// The server, unless the arguments need something else, see [`Condition`].
    Conditional(Condition),
}

impl Answer {
    /// Whether a server gets the request itself and answers it.
    #[inline]
    pub fn is_by_server(self) -> bool {
        match self {
            Answer::Server | Answer::Alone | Answer::Conditional(_) => true,
            Answer::Session | Answer::Pinned | Answer::Refused(_) => false,
        }
    }

    /// Whether the request never goes to a shared link: respool answers it, or it gets a link of
    /// its own.
    #[inline]
    pub fn avoids_shared_link(self) -> bool {
        matches!(self, Answer::Session | Answer::Pinned | Answer::Alone)
    }
}

/// The reason why a command is refused.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum CommandRefusal {
    /// Only servers send it to each other.
    Replication,
    /// It reads or changes state of the server's connection, which is our shared link.
    ConnectionState,
}

/// The property of the arguments that decides how a command is handled.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Condition {
    /// `XREAD` and `XREADGROUP`: with BLOCK they may wait, and are handled as [`Answer::Alone`].
    Block,
    /// Scripts: a known script is loaded again after a NOSCRIPT.
    Script,
    /// The server's reply counts our links, but must count clients.
    Count,
    /// `DEBUG PROTOCOL` is refused: it makes the server break the protocol, for example send a push
    /// in place of a reply.
    DebugProtocol,
}

/// Whether a command may be sent again.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Retry {
    /// It changes nothing, so it may be sent twice.
    Read,
    /// It is never sent again once it may have run.
    Write,
}

/// The handling of a command in a pool of several servers.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct FanOut {
    /// The servers that get it.
    pub spread: Spread,
    /// The rule that merges their replies.
    pub merge: Merge,
}

/// The servers that get a request, in a pool of several servers.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Spread {
    /// The owner of its keys, which must all have one owner. Without keys the first server that is
    /// up.
    Owner,
    /// Each owner of some of its keys, with these keys.
    Owners,
    /// The first server that is up.
    Any,
    /// The pool's default server, which has all publishers and subscribers. SPUBLISH in a Cluster:
    /// the owner of the slot of its channel.
    Default,
    /// For sharded channels: the pool's first server. In a Cluster all servers, each with the
    /// channels of its slots.
    Channels,
    /// Every server, with one merged reply.
    All,
    /// One server after the other, as the cursor says.
    Sequence,
    /// In front of a Cluster no server: clients see respool as the only node. Otherwise as
    /// [`Spread::Any`].
    Node,
    /// No server: respool answers.
    Local,
    /// Every server that the session uses: the command concerns a connection, and the session has
    /// one to each server.
    Off,
    /// No server: the request is refused.
    Refused,
}

/// The rule that merges the replies of several servers.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Merge {
    /// There is only one reply.
    One,
    /// The elements, in the order of the request's keys.
    KeyOrder,
    /// The elements of all replies, in any order.
    Concat,
    /// The first error, or else any reply.
    AllSucceeded,
    /// Any reply that is not an error.
    OneSucceeded,
    /// The sum.
    Sum,
    /// The smallest number.
    Min,
    /// Element by element: 1 if all are 1, or else 0.
    And,
    /// A rule for this command, see [`Merger`](crate::fan::Merger).
    Special,
}

/// The kind of coalescing of a request with others of its batch. Commands other than `None` have
/// exactly one key, at a fixed position.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Coalesce {
    /// Not at all.
    None,
    /// `GET`: neighbours may become one MGET, and equal ones may become one.
    Get,
    /// `SET`: neighbours without options may become one MSET.
    Set,
    /// A read whose reply depends on the data alone: equal ones may become one.
    Collapse,
}

/// The places of keys in a reply. A nil reply and an error have none.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Names {
    /// Nowhere.
    None,
    /// The reply is a key.
    Whole,
    /// Each element is a key.
    Each,
    /// The first element is a key.
    First,
    /// Each element of the second element is a key.
    Second,
    /// The first element of each element is a key; in RESP3 each key of a map.
    Streams,
}

/// A set of the servers' flags of a command.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default)]
pub struct CommandFlags(u32);

/// A set of the servers from which the table is generated.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct Servers(u8);

/// All rows, sorted by name. Subcommands follow their container.
pub fn all() -> impl ExactSizeIterator<Item = CommandId> {
    (0..COMMANDS.len() as u16).map(CommandId)
}

/// The row with this id.
#[inline]
pub fn command(id: CommandId) -> &'static Command {
    id.get()
}

/// Finds a command by its name in any case. [`lookup_sub`] finds subcommands.
///
/// This runs for each request. The name is folded into three numbers. One multiplication gives the
/// only possible row, and one comparison decides.
#[inline]
pub fn lookup(name: &[u8]) -> Option<CommandId> {
    if name.len() > 8 {
        return lookup_long(name);
    }
    // Nearly every request takes this path. It is that of a long name without the words that are 0.
    let word = lower_case(short_word(name));
    let row = ROW_OF_SLOT[slot_of(word, MULTIPLIER)];
    let found = &FOLDED[usize::from(row)];
    // An empty slot has row 0, whose name differs.
    (found.words[0] == word && found.len == name.len() as u64).then_some(CommandId(row))
}

#[inline(never)]
fn lookup_long(name: &[u8]) -> Option<CommandId> {
    let folded = FoldedName::of(name)?;
    let row = ROW_OF_SLOT[folded.slot(MULTIPLIER)];
    (FOLDED[usize::from(row)] == folded).then_some(CommandId(row))
}

/// Finds a subcommand of a container by its name in any case.
pub fn lookup_sub(container: CommandId, name: &[u8]) -> Option<CommandId> {
    let container = container.get();
    let (from, behind) = container.subcommands;
    let prefix = container.name.len() + 1;
    (from..behind)
        .map(CommandId)
        .find(|sub| sub.get().name.as_bytes()[prefix..].eq_ignore_ascii_case(name))
}

/// Finds the row of a request: the row of its subcommand, or else of its command. For an unknown
/// subcommand this is the row of the container. `argc` is at least 1.
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

    /// The index of the row, less than [`CommandId::COUNT`], for arrays with an element per
    /// command.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Number of rows.
    pub const COUNT: usize = COMMANDS.len();
}

impl Command {
    /// Whether `argc` arguments, with the name, are the right number.
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

    /// Whether every request with the right number of arguments goes to a server.
    #[inline]
    pub fn goes_straight(&self) -> bool {
        matches!(self.answer, Answer::Server) && !self.is_container()
    }

    /// The reason why a request with these arguments is refused; `None` if it is passed on.
    #[inline]
    pub fn refusal<'a>(
        &self,
        argc: usize,
        arg: impl Fn(usize) -> &'a [u8],
    ) -> Option<CommandRefusal> {
        match self.answer {
            Answer::Server | Answer::Session | Answer::Alone | Answer::Pinned => None,
            Answer::Refused(reason) => Some(reason),
            Answer::Conditional(Condition::Block | Condition::Script | Condition::Count) => None,
            Answer::Conditional(Condition::DebugProtocol) => (argc > 1
                && is_word(arg(1), b"protocol"))
            .then_some(CommandRefusal::ConnectionState),
        }
    }
}

/// Whether XREAD or XREADGROUP has BLOCK where the server's parser expects it: among the options in
/// front of STREAMS. COUNT and CLAIM have one argument, GROUP two.
pub fn asks_to_block<'a>(argc: usize, arg: impl Fn(usize) -> &'a [u8]) -> bool {
    let mut at = 1;
    while at < argc {
        let word = arg(at);
        at += if is_word(word, b"block") {
            // Without a number behind it, the server refuses the request.
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
            // The option is unknown. An old server refuses it. For a newer server its number of
            // arguments is unknown, so any BLOCK behind it may be the option.
            return (at + 1..argc).any(|at| is_word(arg(at), b"block"));
        };
    }
    false
}

/// Makes the constants, names and methods of a set from one list.
macro_rules! names_of_set {
    ($set:ident: $repr:ty; $($(#[$doc:meta])* $constant:ident $name:literal $bit:literal;)*) => {
        impl $set {
            $($(#[$doc])* pub const $constant: $set = $set(1 << $bit);)*
            /// The empty set.
            pub const NONE: $set = $set(0);
            /// Every member with its name on the servers.
            pub const NAMES: &'static [(&'static str, $set)] = &[$(($name, $set(1 << $bit))),*];

            /// Whether the set has all of `members`.
            #[inline]
            pub const fn has(self, members: $set) -> bool {
                self.0 & members.0 == members.0
            }

            /// The union of both sets.
            #[must_use]
            pub const fn or(self, other: $set) -> $set {
                $set(self.0 | other.0)
            }

            /// The names of the members.
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

names_of_set! { CommandFlags: u32;
    /// May change data.
    WRITE "write" 0;
    /// Changes no data.
    READONLY "readonly" 1;
    /// Refused when memory is full.
    DENYOOM "denyoom" 2;
    /// For administrators.
    ADMIN "admin" 3;
    /// Belongs to publish and subscribe.
    PUBSUB "pubsub" 4;
    /// May block its connection.
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
    /// Takes constant or logarithmic time.
    FAST "fast" 11;
    /// Some of its keys have no fixed position.
    MOVABLEKEYS "movablekeys" 12;
    /// May have no key although it has key specs.
    NO_MANDATORY_KEYS "no_mandatory_keys" 13;
    /// Allowed while a script runs for too long.
    ALLOW_BUSY "allow_busy" 14;
    /// Not allowed while a replica loads in the background.
    NO_ASYNC_LOADING "no_async_loading" 15;
    /// Acts as if ASKING preceded it.
    ASKING "asking" 16;
    /// Not shown by MONITOR.
    SKIP_MONITOR "skip_monitor" 17;
    /// Not in the slow log (Redis).
    SKIP_SLOWLOG "skip_slowlog" 18;
    /// Not in the command log (Valkey).
    SKIP_COMMANDLOG "skip_commandlog" 19;
    /// Belongs to a module that is part of the server.
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

/// A name of at most 24 bytes in lower case, as three numbers.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct FoldedName {
    words: [u64; 3],
    /// Length of the name. It distinguishes names that differ only in zero bytes at the end.
    len: u64,
}

impl FoldedName {
    /// Longest name that can be folded.
    pub const BYTES_MAX: usize = 24;
    /// Number of slots of the perfect hash table.
    pub const SLOTS: usize = 1 << Self::SLOT_BITS;
    const SLOT_BITS: u32 = 12;

    /// Folds a name; `None` if it is longer than [`FoldedName::BYTES_MAX`].
    #[inline]
    pub const fn of(name: &[u8]) -> Option<FoldedName> {
        let len = name.len();
        // A partial word is read from the end of the name and shifted. Overlapping reads of whole
        // words need no loop over bytes.
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

    /// The slot of the name. With the table's multiplier every command has its own slot.
    #[inline]
    pub const fn slot(&self, multiplier: u64) -> usize {
        let [a, b, c] = self.words;
        slot_of(a ^ b.rotate_left(23) ^ c.rotate_left(47), multiplier)
    }
}

/// The top bits of the product, which depend on every bit of the word.
#[inline]
const fn slot_of(word: u64, multiplier: u64) -> usize {
    (word.wrapping_mul(multiplier) >> (64 - FoldedName::SLOT_BITS)) as usize
}

/// A name of at most 8 bytes as a number, the first byte lowest.
const fn short_word(name: &[u8]) -> u64 {
    let len = name.len();
    if let (Some(first), Some(last)) = (name.first_chunk::<4>(), name.last_chunk::<4>()) {
        // Both reads agree on bytes that both cover.
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

/// The first 8 bytes of a name; 0 if it has fewer.
const fn first_word(name: &[u8]) -> u64 {
    match name.first_chunk::<8>() {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => 0,
    }
}

/// The last 8 bytes of a name; 0 if it has fewer.
const fn last_word(name: &[u8]) -> u64 {
    match name.last_chunk::<8>() {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => 0,
    }
}

/// Changes `A` to `Z` into lower case in eight bytes at once. The top bit of each byte holds the
/// carry of its comparison. Bytes whose top bit is set are not letters and stay.
const fn lower_case(word: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let low_bits = word & (0x7f * EACH);
    let from_a = low_bits + (0x80 - b'A' as u64) * EACH;
    let behind_z = low_bits + (0x7f - b'Z' as u64) * EACH;
    let letter = (from_a ^ behind_z) & !word & (0x80 * EACH);
    // 0x80 >> 2 is 0x20, the difference between the cases.
    word | (letter >> 2)
}

/// The folded name of each row. A subcommand has a value that no name folds to.
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

/// The row of each slot; 0 for an empty slot.
static ROW_OF_SLOT: [u16; FoldedName::SLOTS] = {
    let mut rows = [u16::MAX; FoldedName::SLOTS];
    let mut row = 0;
    while row < COMMANDS.len() {
        if let Some(name) = top_level(row) {
            let slot = name.slot(MULTIPLIER);
            assert!(
                rows[slot] == u16::MAX,
                "two commands share a slot: generate the table again"
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

/// The folded name of a row; `None` for a subcommand.
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
        "a command's name is too long to be folded"
    );
    folded
}

#[cfg(test)]
mod tests;
