//! Conflicts between the requests of a session: whether the order of two requests matters.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hasher};

use respool_protocol::commands::{self, CommandFlags, CommandId, Spread};
use respool_protocol::request::{Found, RequestScanner};
use respool_protocol::slot::hash_slot;

use crate::data_plane::learned_commands::LearnedCommands;
use crate::data_plane::sent_request::runs_code;

/// The keys that a request touches, and how.
#[derive(Default)]
pub(crate) struct RequestKeys {
    /// The slot of its first key.
    pub(crate) slot: Option<u16>,
    /// The hashes of its keys. A collision does no harm: two requests only seem to conflict.
    keys: Vec<u64>,
    /// It touches all keys (FLUSHALL, DBSIZE).
    all_keys: bool,
    pub(crate) reads: bool,
    /// Its client may write its error texts, see [`runs_code`].
    pub(crate) runs_code: bool,
}

impl RequestKeys {
    /// The keys of a request, or of all requests of a block, as a server of this pool or subpool
    /// sees them.
    pub(crate) fn of(
        learned: &LearnedCommands,
        requests: &[u8],
        pool: u16,
        reads: bool,
    ) -> RequestKeys {
        let mut about = RequestKeys {
            reads,
            ..RequestKeys::default()
        };
        let mut at = 0;
        let mut scanner = RequestScanner::default();
        while let Ok(Found::Request { len }) = scanner.scan(&requests[at..], true) {
            let request = &requests[at..at + len];
            let spans = scanner.spans();
            let arg = |index: usize| spans[index].of(request);
            let mut note = |index: usize| {
                let key = arg(index);
                about.slot.get_or_insert_with(|| hash_slot(key));
                let mut hasher = DefaultHasher::new();
                // Two subpools may use one name for two different keys.
                hasher.write_u16(pool);
                hasher.write(key);
                about.keys.push(hasher.finish());
            };
            match commands::resolve(spans.len(), arg) {
                Some(id) => {
                    // If the places of the keys cannot be found, the server refuses the request.
                    let _ = id.get().keys(spans.len(), arg, |index, _| note(index));
                    about.runs_code |= runs_code(Some(id));
                    about.all_keys |= is_about_all_keys(id);
                }
                None => {
                    let keys = learned.keys_of(arg(0));
                    keys.places(spans.len()).for_each(note);
                    about.runs_code = true;
                }
            }
            at += len;
        }
        about
    }

    pub(crate) fn has_same_keys(&self, other: &RequestKeys) -> bool {
        self.keys == other.keys
    }

    /// Whether it is a write that names no keys, and so may change any key.
    fn may_change_all(&self) -> bool {
        self.keys.is_empty() && !self.reads
    }
}

/// Whether a command reads or changes all keys. Where a pool has several servers, it goes to all.
fn is_about_all_keys(id: CommandId) -> bool {
    let command = id.get();
    matches!(command.fan_out.spread, Spread::All | Spread::Sequence)
        && (command.flags.has(CommandFlags::WRITE) || command.flags.has(CommandFlags::READONLY))
}

/// The keys that a set of requests touches.
#[derive(Default)]
pub(crate) struct TouchedKeys {
    any: HashSet<u64>,
    written: HashSet<u64>,
    /// A request of the set may change any key.
    all: bool,
    /// A request of the set touches all keys.
    all_read: bool,
}

impl TouchedKeys {
    pub(crate) fn add(&mut self, about: &RequestKeys) {
        self.all |= about.may_change_all();
        self.all_read |= about.all_keys;
        self.any.extend(&about.keys);
        if !about.reads {
            self.written.extend(&about.keys);
        }
    }

    /// Whether the order of the set and this request matters.
    pub(crate) fn conflicts_with(&self, about: &RequestKeys) -> bool {
        let all = match about.all_keys {
            true => !self.written.is_empty(),
            false => self.all_read && !about.reads && !about.keys.is_empty(),
        };
        if self.all || all || about.may_change_all() && !self.any.is_empty() {
            return true;
        }
        let keys = match about.reads {
            true => &self.written,
            false => &self.any,
        };
        about.keys.iter().any(|key| keys.contains(key))
    }
}

/// The executed requests of a session that were in flight beside its deferred ones.
#[derive(Default)]
pub(crate) struct AllExecuted {
    keys: HashMap<u64, Executed>,
    /// Requests that touched any key at all.
    each: Executed,
    /// Requests that touched all keys.
    all: Executed,
}

impl AllExecuted {
    /// Adds an executed request.
    pub(crate) fn note(&mut self, seq: u32, about: &RequestKeys) {
        for key in &about.keys {
            let of_key = self.keys.entry(*key).or_default();
            of_key.note(seq, about.reads);
        }
        if about.all_keys {
            self.all.note(seq, about.reads);
        }
        if about.all_keys || !about.keys.is_empty() {
            self.each.note(seq, about.reads);
        }
    }

    /// Whether a request with a place behind `seq` was executed, and the order of it and of this
    /// request matters.
    pub(crate) fn overtake(&self, seq: u32, about: &RequestKeys) -> bool {
        let is_behind =
            |place: Option<u32>| place.is_some_and(|place| place.wrapping_sub(seq) as i32 > 0);
        let by = |last: &Executed| match about.reads {
            true => is_behind(last.write),
            false => is_behind(last.any),
        };
        let mut keys = about.keys.iter();
        keys.any(|key| self.keys.get(key).is_some_and(by))
            || !about.keys.is_empty() && by(&self.all)
            || about.all_keys && by(&self.each)
    }
}

/// The places of the last executed request and of the last executed write.
#[derive(Default)]
struct Executed {
    any: Option<u32>,
    write: Option<u32>,
}

impl Executed {
    fn note(&mut self, seq: u32, reads: bool) {
        // The requests of one link come in order, those of several links do not.
        let is_later =
            |last: &Option<u32>| last.is_none_or(|last| seq.wrapping_sub(last) as i32 > 0);
        if is_later(&self.any) {
            self.any = Some(seq);
        }
        if !reads && is_later(&self.write) {
            self.write = Some(seq);
        }
    }
}

#[cfg(test)]
mod tests {
    use respool_protocol::encode;

    use super::*;

    /// A request with words that are separated by spaces. It reads if the table says so.
    fn about(request: &str) -> RequestKeys {
        let words: Vec<&str> = request.split(' ').collect();
        let mut bytes = Vec::new();
        encode::request(&mut bytes, &words);
        let id = commands::resolve(words.len(), |index| words[index].as_bytes());
        let reads = id.is_some_and(|id| id.get().flags.has(CommandFlags::READONLY));
        RequestKeys::of(&LearnedCommands::default(), &bytes, 0, reads)
    }

    /// Two reads have no order. A write has one with each request for its keys, and a request for
    /// all keys has one with each request that changes a key.
    #[test]
    fn order_matters_where_one_writes_a_key_of_the_other() {
        for (first, second, matters) in [
            ("GET a", "GET a", false),
            ("GET a", "SET a 1", true),
            ("SET a 1", "GET a", true),
            ("SET a 1", "SET b 1", false),
            ("MSET a 1 b 1", "GET b", true),
            ("SET a 1", "FLUSHALL", true),
            ("GET a", "DBSIZE", false),
            ("SET a 1", "DBSIZE", true),
            ("DBSIZE", "SET a 1", true),
            // A command that the table lacks may change any key.
            ("GET a", "TOOL.RUN", true),
            ("TOOL.RUN", "GET a", true),
        ] {
            let mut touched = TouchedKeys::default();
            touched.add(&about(first));
            let conflicts = touched.conflicts_with(&about(second));
            assert_eq!(conflicts, matters, "{first}; {second}");
        }
    }

    /// Two subpools may use one name for two different keys.
    #[test]
    fn keys_of_two_subpools_do_not_conflict() {
        let request = b"*2\r\n$3\r\nDEL\r\n$1\r\na\r\n";
        let of = |pool| RequestKeys::of(&LearnedCommands::default(), request, pool, false);
        let mut touched = TouchedKeys::default();
        touched.add(&of(0));
        assert!(touched.conflicts_with(&of(0)));
        assert!(!touched.conflicts_with(&of(1)));
    }

    /// A request is overtaken by an executed request behind it, not by one before it. Places wrap
    /// around.
    #[test]
    fn request_is_overtaken_by_later_requests_alone() {
        let mut executed = AllExecuted::default();
        executed.note(1, &about("SET a 1"));
        executed.note(u32::MAX, &about("GET b"));
        for (seq, request, overtaken) in [
            (0, "GET a", true),
            (u32::MAX, "GET a", true),
            (2, "GET a", false),
            (0, "SET b 1", false),
            (u32::MAX - 1, "SET b 1", true),
            (u32::MAX - 1, "GET b", false),
            (0, "FLUSHALL", true),
            (2, "FLUSHALL", false),
        ] {
            let is_overtaken = executed.overtake(seq, &about(request));
            assert_eq!(is_overtaken, overtaken, "{seq}: {request}");
        }
    }
}
