//! Merges the replies of several servers into one reply.

use super::info::{self, Sections};
use super::{MOVE_BYTES, figures};
use crate::commands::{CommandId, Merge, id};
use crate::reply::{ReplyScanner, Scanned};
use crate::{encode, number};

/// Longest number in a reply: `-9223372036854775808`.
const NUMBER_BYTES_MAX: usize = 20;

/// The reply of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// Name of the server, for errors and for INFO.
    pub server: &'a str,
    /// One complete reply, in the client's protocol version.
    pub reply: &'a [u8],
}

/// The kind of reply that a [`Merger`] appended. It is always one complete reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// The merged reply.
    Whole,
    /// An error, because a server answered with an error.
    Failed {
        /// Index of its part.
        part: usize,
    },
    /// An error, because a server's reply has a structure that this command does not have.
    Misshapen {
        /// Index of its part.
        part: usize,
    },
    /// An error without a faulty part: the command cannot be merged, there are no parts, or a sum
    /// is too large.
    Refused,
}

/// Merges replies. It keeps its memory, so it allocates only while this grows.
///
/// If one server fails, the request fails. The reply is that server's error, with its code in
/// front, and names the server:
///
/// ```text
///   -WRONGTYPE respool: 127.0.0.1:6381: Operation against a key holding the wrong kind of value
///   -ERR respool: 127.0.0.1:6381: value is not an integer or out of range
/// ```
///
/// MOVED and ASK move into the text behind ERR: in front they would redirect the client. Effects on
/// other servers stay.
///
/// [`Merge::Special`] means:
///
/// | command | reply |
/// |---|---|
/// | FUNCTION STATS | of the first server with a running function; engines and libraries are equal
/// |
/// | RANDOMKEY | one of the keys found, by a hash of all of them |
/// | LATENCY LATEST, HISTORY | the rows of all servers, so several rows per event |
/// | PUBSUB SHARDNUMSUB | the subscribers of each channel on all servers |
/// | INFO | one text, see below |
/// | MEMORY STATS | sums, and values that derive from sums |
/// | LATENCY HISTOGRAM | for each command the calls of all servers, and the calls up to each bound
/// |
/// | LATENCY DOCTOR, GRAPH, MEMORY DOCTOR, MALLOC-STATS | one text, each server's under its name |
///
/// INFO has sums of counts, the largest of other numbers, and the first server's identity and
/// settings. [`Sections`] has the section with a line for each server.
///
/// For SCAN see [`Cursor`](super::Cursor).
#[derive(Clone, Debug, Default)]
pub struct Merger {
    /// Position in each part, for [`Merge::KeyOrder`].
    cursors: Vec<ElementCursor>,
}

/// The position in an array.
#[derive(Clone, Copy, Debug)]
struct ElementCursor {
    /// Offset of the next element.
    at: usize,
    /// Number of elements left.
    left: usize,
}

impl Merger {
    /// Appends the merged reply. `order` is [`Split::order`](super::Split::order) of the request,
    /// and the parts are in the order of its shares. Only [`Merge::KeyOrder`] uses `order`. A
    /// single part that is not an error is appended unchanged.
    pub fn merge(
        &mut self,
        command: CommandId,
        order: &[u16],
        parts: &[Part<'_>],
        out: &mut Vec<u8>,
    ) -> Merged {
        self.merge_asked(command, order, Sections::default(), parts, out)
    }

    /// As [`Merger::merge`], for an INFO request with these sections.
    pub fn merge_info(&mut self, asked: Sections, parts: &[Part<'_>], out: &mut Vec<u8>) -> Merged {
        self.merge_asked(id::INFO, &[], asked, parts, out)
    }

    fn merge_asked(
        &mut self,
        command: CommandId,
        order: &[u16],
        asked: Sections,
        parts: &[Part<'_>],
        out: &mut Vec<u8>,
    ) -> Merged {
        let start = out.len();
        let failure = match self.append(command, order, asked, parts, out) {
            Ok(()) => return Merged::Whole,
            Err(failure) => failure,
        };
        out.truncate(start);
        match failure {
            MergeFailure::Failed(part) => failed(parts, part, out),
            MergeFailure::Misshapen(part) => misshapen(parts, part, out),
            MergeFailure::Refused(text) => {
                encode::error(out, text.as_bytes());
                Merged::Refused
            }
        }
    }

    fn append(
        &mut self,
        command: CommandId,
        order: &[u16],
        asked: Sections,
        parts: &[Part<'_>],
        out: &mut Vec<u8>,
    ) -> Result<(), MergeFailure> {
        if parts.is_empty() {
            return Err(MergeFailure::Refused(
                "ERR respool: the request reached no server",
            ));
        }
        let method = MergeMethod::of(command);
        if let (Some(MergeMethod::OneSucceeded), [_, _, ..]) = (method, parts) {
            return one_succeeded(parts, out);
        }
        if let Some(failed) = parts.iter().position(|part| is_error(part.reply)) {
            return Err(MergeFailure::Failed(failed));
        }
        match method {
            Some(MergeMethod::KeyOrder) => return self.key_order(order, parts, out),
            Some(MergeMethod::Numbers(fold))
                if parts.iter().all(|part| part.reply.starts_with(b":")) =>
            {
                return one_number(parts, fold, out);
            }
            _ => {}
        }
        // From here on every reply is known to be complete.
        if let Some(odd) = parts.iter().position(|part| !is_whole(part.reply)) {
            return Err(MergeFailure::Misshapen(odd));
        }
        if let [only] = parts
            && asked == Sections::default()
        {
            out.extend_from_slice(only.reply);
            return Ok(());
        }
        let Some(method) = method else {
            return Err(MergeFailure::Refused(
                "ERR respool: this command cannot be sent to several servers",
            ));
        };
        match method {
            MergeMethod::First => out.extend_from_slice(parts[0].reply),
            MergeMethod::Concat => concat(parts, out)?,
            MergeMethod::Numbers(fold) => numbers(parts, fold, out)?,
            MergeMethod::RandomKey => random_key(parts, out)?,
            MergeMethod::FunctionStats => function_stats(parts, out)?,
            MergeMethod::ShardNumsub => shard_numsub(parts, out)?,
            MergeMethod::Figures(merge) => merge(parts, out).map_err(MergeFailure::Misshapen)?,
            MergeMethod::Info => texts(parts, out, |texts| info::merge(texts, asked))?,
            MergeMethod::Texts => texts(parts, out, info::headed)?,
            MergeMethod::KeyOrder | MergeMethod::OneSucceeded => unreachable!("handled above"),
        }
        Ok(())
    }

    /// Puts the elements of all parts back into the order of the keys. This is for MGET and on the
    /// hot path: each element is scanned once and copied once.
    fn key_order(
        &mut self,
        order: &[u16],
        parts: &[Part<'_>],
        out: &mut Vec<u8>,
    ) -> Result<(), MergeFailure> {
        self.cursors.clear();
        let mut most = 2 + NUMBER_BYTES_MAX;
        for (at, part) in parts.iter().enumerate() {
            let list = List::of(part.reply).filter(|list| list.kind == b'*');
            let list = list.ok_or(MergeFailure::Misshapen(at))?;
            most += part.reply.len();
            self.cursors.push(ElementCursor {
                at: part.reply.len() - list.body.len(),
                left: list.values,
            });
        }
        out.reserve(most + MOVE_BYTES);
        encode::array(out, order.len());
        let mut scanner = ReplyScanner::default();
        for &share in order {
            let share = usize::from(share);
            let (Some(cursor), Some(part)) = (self.cursors.get_mut(share), parts.get(share)) else {
                return Err(MergeFailure::Refused(
                    "ERR respool: the reply of a server is missing",
                ));
            };
            let bytes = &part.reply[cursor.at..];
            match scanner.scan(bytes) {
                Ok(Scanned::Whole(len)) if cursor.left > 0 => {
                    cursor.left -= 1;
                    cursor.at += len;
                    append(out, bytes, len);
                }
                _ => return Err(MergeFailure::Misshapen(share)),
            }
        }
        let is_at_end = |(cursor, part): (&ElementCursor, &Part<'_>)| {
            cursor.left == 0 && cursor.at == part.reply.len()
        };
        let mut both = self.cursors.iter().zip(parts);
        match both.position(|both| !is_at_end(both)) {
            Some(odd) => Err(MergeFailure::Misshapen(odd)),
            None => Ok(()),
        }
    }
}

/// Appends the first `len` bytes. If they are few, a block of fixed length is copied and then cut.
/// This costs less than a copy of variable length.
#[inline]
fn append(out: &mut Vec<u8>, bytes: &[u8], len: usize) {
    match bytes.first_chunk::<MOVE_BYTES>() {
        Some(piece) if len <= MOVE_BYTES => {
            let end = out.len() + len;
            out.extend_from_slice(piece);
            out.truncate(end);
        }
        _ => out.extend_from_slice(&bytes[..len]),
    }
}

/// The method that merges parts.
#[derive(Clone, Copy)]
enum MergeMethod {
    /// The elements, in the order of the keys.
    KeyOrder,
    /// The elements of all parts, one part after the other.
    Concat,
    /// The first part.
    First,
    /// The first part that is not an error.
    OneSucceeded,
    /// Numbers folded one by one: a single number, or an array of numbers.
    Numbers(fn(i64, i64) -> Option<i64>),
    RandomKey,
    FunctionStats,
    ShardNumsub,
    /// MEMORY STATS, LATENCY HISTOGRAM.
    Figures(fn(&[Part<'_>], &mut Vec<u8>) -> Result<(), usize>),
    Info,
    /// The texts, each under the name of its server.
    Texts,
}

impl MergeMethod {
    #[inline]
    fn of(command: CommandId) -> Option<MergeMethod> {
        Some(match command.get().fan_out.merge {
            Merge::KeyOrder => MergeMethod::KeyOrder,
            Merge::Concat => MergeMethod::Concat,
            Merge::AllSucceeded => MergeMethod::First,
            Merge::OneSucceeded => MergeMethod::OneSucceeded,
            Merge::Sum => MergeMethod::Numbers(i64::checked_add),
            Merge::Min => MergeMethod::Numbers(|one, other| Some(one.min(other))),
            Merge::And => {
                MergeMethod::Numbers(|one, other| Some(i64::from(one != 0 && other != 0)))
            }
            Merge::One => return None,
            Merge::Special => match command {
                id::RANDOMKEY => MergeMethod::RandomKey,
                id::FUNCTION_STATS => MergeMethod::FunctionStats,
                id::LATENCY_LATEST | id::LATENCY_HISTORY => MergeMethod::Concat,
                id::PUBSUB_SHARDNUMSUB => MergeMethod::ShardNumsub,
                id::INFO => MergeMethod::Info,
                id::MEMORY_STATS => MergeMethod::Figures(figures::memory_stats),
                id::LATENCY_HISTOGRAM => MergeMethod::Figures(figures::latency_histogram),
                id::LATENCY_DOCTOR
                | id::LATENCY_GRAPH
                | id::MEMORY_DOCTOR
                | id::MEMORY_MALLOC_STATS => MergeMethod::Texts,
                _ => return None,
            },
        })
    }
}

/// The reason why parts cannot be merged.
enum MergeFailure {
    /// The part with this index is an error.
    Failed(usize),
    /// The part with this index has a wrong structure.
    Misshapen(usize),
    /// No part is faulty: the text of the error.
    Refused(&'static str),
}

const TOO_LARGE: MergeFailure =
    MergeFailure::Refused("ERR respool: the sum of all servers exceeds 64 bits");

// --- methods ---

/// The first part that is not an error. If all are errors: the first that is not NOTBUSY, which
/// only says that nothing ran there.
fn one_succeeded(parts: &[Part<'_>], out: &mut Vec<u8>) -> Result<(), MergeFailure> {
    let good = parts.iter().position(|part| !is_error(part.reply));
    match good {
        Some(good) if is_whole(parts[good].reply) => {
            out.extend_from_slice(parts[good].reply);
            Ok(())
        }
        Some(odd) => Err(MergeFailure::Misshapen(odd)),
        None => {
            let was_busy = |part: &Part<'_>| !error_text(part.reply).starts_with(b"NOTBUSY");
            Err(MergeFailure::Failed(
                parts.iter().position(was_busy).unwrap_or(0),
            ))
        }
    }
}

/// Folds one number of each part, without allocating.
fn one_number(
    parts: &[Part<'_>],
    fold: fn(i64, i64) -> Option<i64>,
    out: &mut Vec<u8>,
) -> Result<(), MergeFailure> {
    let mut all = None;
    for (at, part) in parts.iter().enumerate() {
        let one = integer(part.reply).ok_or(MergeFailure::Misshapen(at))?;
        all = Some(match all {
            None => one,
            Some(before) => fold(before, one).ok_or(TOO_LARGE)?,
        });
    }
    encode::integer(out, all.unwrap_or(0));
    Ok(())
}

fn numbers(
    parts: &[Part<'_>],
    fold: fn(i64, i64) -> Option<i64>,
    out: &mut Vec<u8>,
) -> Result<(), MergeFailure> {
    let mut all: Vec<i64> = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let list = array(part.reply).ok_or(MergeFailure::Misshapen(at))?;
        let numbers: Option<Vec<i64>> = list.elements().map(integer).collect();
        let numbers = numbers.ok_or(MergeFailure::Misshapen(at))?;
        if at == 0 {
            all = numbers;
        } else if numbers.len() != all.len() {
            return Err(MergeFailure::Misshapen(at));
        } else {
            for (all, one) in all.iter_mut().zip(numbers) {
                *all = fold(*all, one).ok_or(TOO_LARGE)?;
            }
        }
    }
    encode::array(out, all.len());
    all.iter().for_each(|&number| encode::integer(out, number));
    Ok(())
}

/// Adds the subscribers of each channel. All parts have the same channels in the same order.
fn shard_numsub(parts: &[Part<'_>], out: &mut Vec<u8>) -> Result<(), MergeFailure> {
    let mut all: Vec<(&[u8], i64)> = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let list = array(part.reply).ok_or(MergeFailure::Misshapen(at))?;
        let elements: Vec<&[u8]> = list.elements().collect();
        let (pairs, rest) = elements.as_chunks();
        let counted = pairs
            .iter()
            .map(|[name, count]| Some((*name, integer(count)?)));
        let counted: Option<Vec<(&[u8], i64)>> = counted.collect();
        let counted = counted.filter(|_| rest.is_empty());
        let counted = counted.ok_or(MergeFailure::Misshapen(at))?;
        if at == 0 {
            all = counted;
            continue;
        }
        if counted.len() != all.len() {
            return Err(MergeFailure::Misshapen(at));
        }
        for ((name, sum), (other, count)) in all.iter_mut().zip(counted) {
            if *name != other {
                return Err(MergeFailure::Misshapen(at));
            }
            *sum = sum.checked_add(count).ok_or(TOO_LARGE)?;
        }
    }
    encode::array(out, all.len() * 2);
    for (name, sum) in all {
        out.extend_from_slice(name);
        encode::integer(out, sum);
    }
    Ok(())
}

/// Concatenates aggregates: arrays, or in RESP3 sets or maps.
fn concat(parts: &[Part<'_>], out: &mut Vec<u8>) -> Result<(), MergeFailure> {
    let kind = parts[0].reply[0];
    let mut count = 0usize;
    let mut bytes = 2 + NUMBER_BYTES_MAX;
    for (at, part) in parts.iter().enumerate() {
        let list = List::of(part.reply).filter(|list| list.kind == kind);
        let list = list.ok_or(MergeFailure::Misshapen(at))?;
        // This cannot overflow: each element has at least one byte, and all are there.
        count += list.count;
        bytes += list.body.len();
    }
    out.reserve(bytes);
    out.push(kind);
    number::append(out, count as i64);
    out.extend_from_slice(b"\r\n");
    for part in parts {
        if let Some(list) = List::of(part.reply) {
            out.extend_from_slice(list.body);
        }
    }
    Ok(())
}

/// One of the keys that the servers found. Their choice was random, so a hash of all keys is a
/// random number. The first key would always be of the first server.
fn random_key(parts: &[Part<'_>], out: &mut Vec<u8>) -> Result<(), MergeFailure> {
    let is_null = |part: &Part<'_>| matches!(part.reply, b"$-1\r\n" | b"_\r\n");
    if let Some(odd) = parts
        .iter()
        .position(|part| !matches!(part.reply[0], b'$' | b'_'))
    {
        return Err(MergeFailure::Misshapen(odd));
    }
    let found = parts.iter().filter(|part| !is_null(part));
    let count = found.clone().count() as u64;
    if count == 0 {
        out.extend_from_slice(parts[0].reply);
        return Ok(());
    }
    // The upper half of FNV-1a, because the lower bits of a product are less random.
    let bytes = found.clone().flat_map(|part| part.reply);
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let one = ((hash >> 32) * count) >> 32;
    if let Some(part) = found.clone().nth(one as usize) {
        out.extend_from_slice(part.reply);
    }
    Ok(())
}

/// The first map with a running function, or the first map.
fn function_stats(parts: &[Part<'_>], out: &mut Vec<u8>) -> Result<(), MergeFailure> {
    let kind = parts[0].reply[0];
    let mut shown = 0;
    for (at, part) in parts.iter().enumerate().rev() {
        let list = List::of(part.reply).filter(|list| list.kind == kind);
        let mut elements = list.ok_or(MergeFailure::Misshapen(at))?.elements();
        let name = elements.find(|element| bulk(element, b'$') == Some(b"running_script"));
        let function = name.and_then(|_| elements.next());
        let function = function.ok_or(MergeFailure::Misshapen(at))?;
        if !matches!(function, b"$-1\r\n" | b"*-1\r\n" | b"_\r\n") {
            shown = at;
        }
    }
    out.extend_from_slice(parts[shown].reply);
    Ok(())
}

/// Merges texts: bulk strings, or in RESP3 verbatim strings.
fn texts(
    parts: &[Part<'_>],
    out: &mut Vec<u8>,
    merge: impl Fn(&[info::Text<'_>]) -> Vec<u8>,
) -> Result<(), MergeFailure> {
    let kind = parts[0].reply[0];
    let mut of_servers = Vec::with_capacity(parts.len());
    for (at, part) in parts.iter().enumerate() {
        let text = text(part.reply).filter(|_| part.reply[0] == kind);
        of_servers.push(info::Text {
            server: part.server,
            text: text.ok_or(MergeFailure::Misshapen(at))?,
        });
    }
    let merged = merge(&of_servers);
    let format: &[u8] = if kind == b'=' { b"txt:" } else { b"" };
    out.push(kind);
    number::append(out, (format.len() + merged.len()) as i64);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(format);
    out.extend_from_slice(&merged);
    out.extend_from_slice(b"\r\n");
    Ok(())
}

// --- errors ---

/// Appends the error for a part that is an error.
pub(super) fn failed(parts: &[Part<'_>], part: usize, out: &mut Vec<u8>) -> Merged {
    let Part { server, reply } = parts[part];
    append_error(server, error_text(reply), out);
    Merged::Failed { part }
}

/// Appends the error for a part with a wrong structure.
pub(super) fn misshapen(parts: &[Part<'_>], part: usize, out: &mut Vec<u8>) -> Merged {
    append_error(
        parts[part].server,
        b"its reply does not fit the command",
        out,
    );
    Merged::Misshapen { part }
}

/// Appends an error: the code of `text` (ERR if it has none), the server, and the rest of `text`.
pub(super) fn append_error(server: &str, text: &[u8], out: &mut Vec<u8>) {
    let word_end = text
        .iter()
        .position(|&byte| byte == b' ')
        .unwrap_or(text.len());
    let (word, rest) = text.split_at(word_end);
    let is_code = word.first().is_some_and(u8::is_ascii_uppercase)
        && word
            .iter()
            .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_');
    let (code, rest) = match word {
        // As codes they would redirect the client, and the server's name would stand in their
        // fields.
        b"MOVED" | b"ASK" => (&b"ERR"[..], text),
        _ if is_code => (word, rest.strip_prefix(b" ").unwrap_or(rest)),
        _ => (&b"ERR"[..], text),
    };
    let whole = [code, b" respool: ", server.as_bytes(), b": ", rest].concat();
    encode::error(out, &whole);
}

pub(super) fn is_error(reply: &[u8]) -> bool {
    matches!(reply.first(), Some(b'-' | b'!'))
}

/// The text of an error, with its code.
fn error_text(reply: &[u8]) -> &[u8] {
    let text = match reply.split_first() {
        Some((b'-', line)) => line,
        _ => bulk(reply, b'!').unwrap_or(reply),
    };
    text.strip_suffix(b"\r\n").unwrap_or(text)
}

// --- reading ---

/// Whether the bytes are exactly one complete reply.
fn is_whole(reply: &[u8]) -> bool {
    ReplyScanner::default().scan(reply) == Ok(Scanned::Whole(reply.len())) && !reply.is_empty()
}

/// An aggregate.
pub(super) struct List<'a> {
    pub(super) kind: u8,
    /// The count in its header: elements, or pairs of a map.
    count: usize,
    /// The number of values that follow: twice the pairs of a map.
    pub(super) values: usize,
    body: &'a [u8],
}

impl<'a> List<'a> {
    #[inline]
    pub(super) fn of(reply: &'a [u8]) -> Option<List<'a>> {
        let (&kind, rest) = reply.split_first()?;
        if !matches!(kind, b'*' | b'~' | b'%') {
            return None;
        }
        let (count, body) = length(rest)?;
        let values = if kind == b'%' {
            count.checked_mul(2)?
        } else {
            count
        };
        Some(List {
            kind,
            count,
            values,
            body,
        })
    }

    /// The elements of a complete reply.
    pub(super) fn elements(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut scanner = ReplyScanner::default();
        let mut rest = self.body;
        std::iter::from_fn(move || match scanner.scan(rest) {
            Ok(Scanned::Whole(len)) => {
                let (element, behind) = rest.split_at(len);
                rest = behind;
                Some(element)
            }
            _ => None,
        })
    }
}

fn array(reply: &[u8]) -> Option<List<'_>> {
    List::of(reply).filter(|list| list.kind == b'*')
}

/// Reads a length. Returns it with the bytes behind its line.
#[inline]
fn length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let line = bytes
        .iter()
        .take(NUMBER_BYTES_MAX)
        .position(|&byte| byte == b'\r')?;
    let len = usize::try_from(number::parse(&bytes[..line])?).ok()?;
    Some((len, bytes[line..].strip_prefix(b"\r\n")?))
}

pub(super) fn integer(reply: &[u8]) -> Option<i64> {
    number::parse(reply.strip_prefix(b":")?.strip_suffix(b"\r\n")?)
}

pub(super) fn bulk(reply: &[u8], kind: u8) -> Option<&[u8]> {
    let (len, rest) = length(reply.strip_prefix(&[kind])?)?;
    rest.get(..len)
}

fn text(reply: &[u8]) -> Option<&[u8]> {
    // The format `txt:` precedes the text.
    bulk(reply, b'$').or_else(|| bulk(reply, b'=')?.get(4..))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::commands::{Command, Spread, all, resolve};
    use crate::encode::Version;
    use crate::fan::{Divided, Split};
    use crate::request;

    const SERVERS: [&str; 3] = ["127.0.0.1:6380", "127.0.0.1:6381", "127.0.0.1:6382"];

    fn command(words: &str) -> CommandId {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        resolve(words.len(), |at| words[at]).unwrap()
    }

    fn merge_bytes(words: &str, order: &[u16], replies: &[&[u8]]) -> (Merged, Vec<u8>) {
        let parts = SERVERS.iter().zip(replies);
        let parts: Vec<_> = parts
            .map(|(server, reply)| Part { server, reply })
            .collect();
        let mut out = b"before".to_vec();
        let merged = Merger::default().merge(command(words), order, &parts, &mut out);
        (merged, out.strip_prefix(b"before").unwrap().to_vec())
    }

    /// The result of a merge; `|` stands for the end of a line.
    fn merged(words: &str, order: &[u16], replies: &[&str]) -> (Merged, String) {
        let replies: Vec<String> = replies
            .iter()
            .map(|reply| reply.replace('|', "\r\n"))
            .collect();
        let replies: Vec<&[u8]> = replies.iter().map(String::as_bytes).collect();
        let (merged, out) = merge_bytes(words, order, &replies);
        (merged, String::from_utf8(out).unwrap().replace("\r\n", "|"))
    }

    fn whole(words: &str, replies: &[&str]) -> String {
        let (merged, reply) = merged(words, &[], replies);
        assert_eq!(merged, Merged::Whole, "{reply}");
        reply
    }

    /// The elements of MGET come back in the order of the keys.
    #[test]
    fn mget_elements_are_in_key_order() {
        let mget = |order: &[u16], replies: &[&str]| {
            let (merged, reply) = merged("MGET", order, replies);
            assert_eq!(merged, Merged::Whole);
            reply
        };
        assert_eq!(
            mget(
                &[0, 1, 0, 2, 1],
                &["*2|$1|a|$-1|", "*2|$2|bb|$-1|", "*1|_|"]
            ),
            "*5|$1|a|$2|bb|$-1|_|$-1|"
        );
        assert_eq!(mget(&[0, 0], &["*2|$1|a|$1|b|"]), "*2|$1|a|$1|b|");
        // An element of any kind stays complete.
        assert_eq!(
            mget(
                &[1, 0, 1],
                &["*1|*2|:1|%1|+a|:2|", "*2|=5|txt:x|$15|*1|%2|~3|a||"]
            ),
            "*3|=5|txt:x|*2|:1|%1|+a|:2|$15|*1|%2|~3|a||"
        );
    }

    /// A part whose elements do not fit the keys is an error that names its server.
    #[test]
    fn misshapen_part_error_names_its_server() {
        for (order, replies, odd) in [
            (&[0, 1, 1][..], ["*1|:1|", "*1|:1|"], 1),
            (&[0, 1], ["*1|:1|", "*2|:1|:2|"], 1),
            (&[0, 1], ["*1|:1|:2|", "*1|:1|"], 0),
            (&[0, 0, 1], ["*1|:1|:2|", "*1|:1|"], 0),
            (&[0, 0, 1], ["*2|:1|", "*1|:1|"], 0),
            (&[0, 1], ["*1|:1|", "~1|:1|"], 1),
            (&[0, 1], ["*1|:1|", "*-1|"], 1),
            (&[0, 1], ["*1|:1|", "+OK|"], 1),
            (&[0, 1], ["*1|:1|", "*9223372036854775807|:1|"], 1),
            (&[0, 1], ["*1|:1|", ""], 1),
        ] {
            let (merged, reply) = merged("MGET", order, &replies);
            assert_eq!(merged, Merged::Misshapen { part: odd }, "{replies:?}");
            let server = SERVERS[odd];
            assert_eq!(
                reply,
                format!("-ERR respool: {server}: its reply does not fit the command|")
            );
        }
        let (merged, reply) = merged("MGET", &[0, 2], &["*1|:1|", "*1|:1|"]);
        assert_eq!(merged, Merged::Refused, "{reply}");
    }

    /// A server's error keeps its code and names the server.
    #[test]
    fn error_keeps_its_code_and_names_its_server() {
        for (error, expected) in [
            ("-ERR no|", "-ERR respool: 127.0.0.1:6381: no|"),
            (
                "-WRONGTYPE Operation|",
                "-WRONGTYPE respool: 127.0.0.1:6381: Operation|",
            ),
            ("!10|OOM a|b c|", "-OOM respool: 127.0.0.1:6381: a  b c|"),
            ("-Bad thing|", "-ERR respool: 127.0.0.1:6381: Bad thing|"),
            (
                "-my script failed|",
                "-ERR respool: 127.0.0.1:6381: my script failed|",
            ),
            (
                "-MOVED 1 :6380|",
                "-ERR respool: 127.0.0.1:6381: MOVED 1 :6380|",
            ),
            ("-BUSY|", "-BUSY respool: 127.0.0.1:6381: |"),
            ("-|", "-ERR respool: 127.0.0.1:6381: |"),
        ] {
            for words in [
                "MGET",
                "MSET",
                "DEL",
                "KEYS",
                "INFO",
                "WAIT",
                "SCRIPT EXISTS",
            ] {
                let (merged, reply) = merged(words, &[0, 1], &["*1|:1|", error, "-ERR later|"]);
                assert_eq!((merged, &reply[..]), (Merged::Failed { part: 1 }, expected));
            }
        }
    }

    /// Numbers are added, or the smallest is taken, as the table says.
    #[test]
    fn numbers_are_folded() {
        assert_eq!(whole("DEL", &[":1|", ":0|", ":41|"]), ":42|");
        assert_eq!(whole("DBSIZE", &[":1|"]), ":1|");
        assert_eq!(whole("WAIT", &[":2|", ":1|", ":3|"]), ":1|");
        assert_eq!(whole("WAITAOF", &["*2|:1|:2|", "*2|:0|:5|"]), "*2|:0|:2|");
        assert_eq!(
            whole("SCRIPT EXISTS", &["*3|:1|:1|:0|", "*3|:1|:0|:0|"]),
            "*3|:1|:0|:0|"
        );
        for odd in [":9223372036854775808|", ":1|:1|", ":|", "+OK|", "*1|:1|"] {
            let (merged, _) = merged("DEL", &[], &[":1|", odd]);
            assert!(matches!(merged, Merged::Misshapen { .. }), "{odd}");
        }
        for odd in ["*1|:1|", "*3|:1|:1|:1|", "*2|:1|+a|", ":1|"] {
            let (merged, _) = merged("WAITAOF", &[], &["*2|:1|:1|", odd]);
            assert_eq!(merged, Merged::Misshapen { part: 1 }, "{odd}");
        }
    }

    /// SHARDNUMSUB adds the subscribers of each channel.
    #[test]
    fn shardnumsub_adds_subscribers_per_channel() {
        let parts = ["*4|$1|a|:2|$1|b|:0|", "*4|$1|a|:1|$1|b|:5|"];
        assert_eq!(whole("PUBSUB SHARDNUMSUB", &parts), "*4|$1|a|:3|$1|b|:5|");
        assert_eq!(whole("PUBSUB SHARDNUMSUB", &["*0|", "*0|"]), "*0|");
        for odd in [
            "*2|$1|a|:1|",
            "*4|$1|a|:1|$1|c|:1|",
            "*3|$1|a|:1|:1|",
            "*4|$1|a|:1|$1|b|+x|",
        ] {
            let (merged, _) = merged("PUBSUB SHARDNUMSUB", &[], &["*4|$1|a|:1|$1|b|:1|", odd]);
            assert_eq!(merged, Merged::Misshapen { part: 1 }, "{odd}");
        }
    }

    /// A sum beyond 64 bits is an error.
    #[test]
    fn overflowing_sum_is_an_error() {
        for most in [i64::MAX, i64::MIN] {
            let (merged, reply) = merged(
                "DBSIZE",
                &[],
                &[&format!(":{most}|"), &format!(":{}|", most.signum())],
            );
            assert_eq!(merged, Merged::Refused);
            assert_eq!(
                reply,
                "-ERR respool: the sum of all servers exceeds 64 bits|"
            );
        }
    }

    /// Elements of all servers become one aggregate.
    #[test]
    fn elements_are_concatenated() {
        assert_eq!(
            whole("KEYS", &["*1|$1|a|", "*0|", "*2|$1|b|$1|a|"]),
            "*3|$1|a|$1|b|$1|a|"
        );
        assert_eq!(whole("KEYS", &["~1|$1|a|", "~1|$1|b|"]), "~2|$1|a|$1|b|");
        assert_eq!(
            whole("SLOWLOG GET", &["%1|+a|:1|", "%1|+b|:2|"]),
            "%2|+a|:1|+b|:2|"
        );
        for odd in ["~1|$1|a|", "*1|", "*1|:1|:1|", "*-1|"] {
            let (merged, _) = merged("KEYS", &[], &["*0|", odd]);
            assert_eq!(merged, Merged::Misshapen { part: 1 }, "{odd}");
        }
    }

    /// SCRIPT KILL succeeds if one server stopped a script.
    #[test]
    fn script_kill_succeeds_if_one_server_succeeds() {
        let none = "-NOTBUSY No scripts in execution right now.|";
        assert_eq!(whole("SCRIPT KILL", &[none, "+OK|", none]), "+OK|");
        let (merged_as, reply) = merged("SCRIPT KILL", &[], &[none, "-UNKILLABLE Sorry|", none]);
        assert_eq!(merged_as, Merged::Failed { part: 1 });
        assert_eq!(reply, "-UNKILLABLE respool: 127.0.0.1:6381: Sorry|");
        let (merged, reply) = merged("SCRIPT KILL", &[], &[none, none]);
        assert_eq!(merged, Merged::Failed { part: 0 });
        assert!(
            reply.starts_with("-NOTBUSY respool: 127.0.0.1:6380: No"),
            "{reply}"
        );
        assert_eq!(whole("FLUSHALL", &["+OK|", "+OK|"]), "+OK|");
    }

    /// MEMORY STATS has sums, and values that derive from sums.
    #[test]
    fn memory_stats_are_added_and_ratios_derived() {
        let stats = |total: u32, keys: u32, percentage: &str| {
            format!(
                "*14|$15|total.allocated|:{total}|$17|startup.allocated|:10|$10|keys.count|:{keys}|\
                $18|keys.bytes-per-key|:{}|$13|dataset.bytes|:{total}|$18|dataset.percentage|{percentage}|\
                $4|db.0|*2|$4|main|:7|",
                (total - 10) / keys
            )
        };
        let all = whole(
            "MEMORY STATS",
            &[&stats(30, 2, "$3|150"), &stats(90, 2, "$5|112.5")],
        );
        let expected = stats(120, 4, "$3|120")
            .replace(":10|", ":20|")
            .replace(":7|", ":14|");
        assert_eq!(all, expected.replace(":27|", ":25|"));
        // In RESP3: a database that only one server has, and an unknown ratio.
        assert_eq!(
            whole(
                "MEMORY STATS",
                &[
                    "%2|$4|db.0|%1|$1|a|:1|$3|new|,1.5|",
                    "%2|$4|db.1|%1|$1|a|:1|$3|new|,2.5|"
                ]
            ),
            "%3|$4|db.0|%1|$1|a|:1|$3|new|,1.5|$4|db.1|%1|$1|a|:1|"
        );
        for odd in ["*0|", "%1|$4|db.0|:1|", "%1|$4|db.0|*0|", "+OK|"] {
            let (merged, _) = merged("MEMORY STATS", &[], &["%1|$4|db.0|%0|", odd]);
            assert_eq!(merged, Merged::Misshapen { part: 1 }, "{odd}");
        }
    }

    /// LATENCY HISTOGRAM adds the calls up to each bound.
    #[test]
    fn histograms_are_added_bound_by_bound() {
        let get = |calls: u32, buckets: &str| {
            let count = buckets.matches(':').count();
            format!("*2|$3|get|*4|$5|calls|:{calls}|$14|histogram_usec|*{count}|{buckets}")
        };
        assert_eq!(
            whole(
                "LATENCY HISTOGRAM",
                &[&get(3, ":1|:1|:4|:3|"), &get(7, ":2|:5|:8|:7|"), "*0|"]
            ),
            get(10, ":1|:1|:2|:6|:4|:8|:8|:10|")
        );
        let set = "%1|$3|set|%2|$5|calls|:1|$14|histogram_usec|%1|:2|:1|";
        assert_eq!(whole("LATENCY HISTOGRAM", &["%0|", set]), set);
        for odd in [
            "*0|",
            "%1|$3|set|%0|",
            "%1|$3|set|:1|",
            &set.replace(":2|:1", "+a|:1"),
        ] {
            let (merged, _) = merged("LATENCY HISTOGRAM", &[], &[set, odd]);
            assert_eq!(merged, Merged::Misshapen { part: 1 }, "{odd}");
        }
    }

    /// FUNCTION STATS shows a running function of any server.
    #[test]
    fn function_stats_shows_a_running_function() {
        let idle = "*4|$14|running_script|$-1|$7|engines|*0|";
        let busy = "*4|$14|running_script|*2|$4|name|$1|f|$7|engines|*0|";
        assert_eq!(whole("FUNCTION STATS", &[idle, busy, idle]), busy);
        assert_eq!(whole("FUNCTION STATS", &[idle, idle]), idle);
        for odd in [
            "*0|",
            "%2|$14|running_script|_|$7|engines|*0|",
            "*1|$14|running_script|",
        ] {
            let (merged, _) = merged("FUNCTION STATS", &[], &[idle, odd]);
            assert_eq!(merged, Merged::Misshapen { part: 1 }, "{odd}");
        }
    }

    /// RANDOMKEY returns keys of every server that has keys.
    #[test]
    fn random_key_is_of_any_server_with_keys() {
        assert_eq!(whole("RANDOMKEY", &["$-1|", "$1|a|", "$-1|"]), "$1|a|");
        assert_eq!(whole("RANDOMKEY", &["_|", "_|"]), "_|");
        let mut of_server = [0; 3];
        for number in 100..400 {
            let replies = [0, 1, 2]
                .map(|server| format!("$5|{server}-{}|", number * (server + 1) % 900 + 100));
            let reply = whole("RANDOMKEY", &replies.each_ref().map(String::as_str));
            let server = replies.iter().position(|one| *one == reply).unwrap();
            of_server[server] += 1;
        }
        assert!(of_server.iter().all(|&times| times > 60), "{of_server:?}");
    }

    /// Reports of all servers become one text, each under its server's name.
    #[test]
    fn reports_are_headed_by_their_server() {
        assert_eq!(
            whole("LATENCY DOCTOR", &["$4|fine|", "$5|worse|"]),
            "$46|# 127.0.0.1:6380\nfine\n\n# 127.0.0.1:6381\nworse\n|"
        );
        let (merged, _) = merged("LATENCY DOCTOR", &[], &["$4|fine|", "=8|txt:fine|"]);
        assert_eq!(merged, Merged::Misshapen { part: 1 });
    }

    /// Every command that the table sends to several servers can be merged.
    #[test]
    fn every_command_for_several_servers_is_merged() {
        for id in all() {
            let Command { name, fan_out, .. } = id.get();
            let has_several = matches!(fan_out.spread, Spread::Owners | Spread::All);
            if has_several || fan_out.merge != Merge::One {
                assert!(MergeMethod::of(id).is_some(), "{name}");
            }
        }
        let (merged_as, reply) = merged("GET", &[], &["$1|a|", "$1|a|"]);
        assert_eq!(merged_as, Merged::Refused);
        assert!(reply.starts_with("-ERR respool: "), "{reply}");
        assert_eq!(whole("GET", &["$1|a|"]), "$1|a|");
        assert_eq!(merged("KEYS", &[], &[]).0, Merged::Refused);
    }

    // --- split and merge together ---

    type Store = HashMap<Vec<u8>, Vec<u8>>;

    /// The commands that are divided among the owners of their keys.
    fn divided_commands() -> Vec<CommandId> {
        let is_divided = |id: &CommandId| id.get().fan_out.spread == Spread::Owners;
        all().filter(is_divided).collect()
    }

    /// A model server: executes the request on `store` and returns its reply.
    fn answer(store: &mut Store, request: &[u8], version: Version) -> Vec<u8> {
        let mut scanner = request::RequestScanner::default();
        let len = request.len();
        assert_eq!(
            scanner.scan(request, true),
            Ok(request::Found::Request { len })
        );
        let words: Vec<&[u8]> = scanner
            .spans()
            .iter()
            .map(|span| span.of(request))
            .collect();
        let (name, keys) = (words[0].to_ascii_uppercase(), &words[1..]);
        let mut out = Vec::new();
        match &name[..] {
            b"MGET" => {
                encode::array(&mut out, keys.len());
                for key in keys {
                    match store.get(*key) {
                        Some(value) => encode::bulk(&mut out, value),
                        None => encode::null(&mut out, version),
                    }
                }
            }
            b"MSET" | b"MSETEX" => {
                let (keys, reply): (_, &[u8]) = match &name[..] {
                    b"MSET" => (keys, b"+OK\r\n"),
                    _ => {
                        let count = number::parse(keys[0]).unwrap() as usize;
                        assert_eq!(keys[1 + 2 * count..], [b"KEEPTTL"]);
                        (&keys[1..1 + 2 * count], b":1\r\n")
                    }
                };
                for pair in keys.chunks(2) {
                    store.insert(pair[0].to_vec(), pair[1].to_vec());
                }
                out.extend_from_slice(reply);
            }
            b"DEL" | b"UNLINK" => {
                let removed = keys.iter().filter(|key| store.remove(**key).is_some());
                let removed = removed.count();
                encode::integer(&mut out, removed as i64);
            }
            b"EXISTS" | b"TOUCH" => {
                let there = keys.iter().filter(|key| store.contains_key(**key)).count();
                encode::integer(&mut out, there as i64);
            }
            other => panic!("the model server lacks {}", other.escape_ascii()),
        }
        out
    }

    proptest! {
        /// Several servers with divided requests and merged replies answer as one server.
        #[test]
        fn several_servers_answer_as_one_would(
            requests in prop::collection::vec(
                (prop::sample::select(divided_commands()), prop::collection::vec((0..40u8, prop::collection::vec(any::<u8>(), 0..20)), 1..30)), 1..12),
            servers in prop::collection::vec(0..9u16, 40),
            resp3 in any::<bool>(),
        ) {
            const NAMED: [&str; 9] = ["0", "1", "2", "3", "4", "5", "6", "7", "8"];
            let version = if resp3 { Version::Resp3 } else { Version::Resp2 };
            let (mut one, mut several) = (Store::new(), vec![Store::new(); NAMED.len()]);
            let (mut split, mut merger) = (Split::default(), Merger::default());
            for (id, keys) in requests {
                let name = id.get().name;
                let mut words = vec![name.as_bytes().to_vec()];
                if name == "msetex" {
                    words.push(keys.len().to_string().into_bytes());
                }
                for (key, value) in &keys {
                    words.push([&[*key], "longer".repeat(usize::from(key % 5)).as_bytes()].concat());
                    if name.starts_with("mset") {
                        words.push(value.clone());
                    }
                }
                if name == "msetex" {
                    words.push(b"KEEPTTL".to_vec());
                }
                let mut bytes = Vec::new();
                encode::request(&mut bytes, &words);
                let mut scanner = request::RequestScanner::default();
                let _ = scanner.scan(&bytes, true);

                let group_of = |key: &[u8]| servers[usize::from(key[0])];
                let merged = match split.divide(id, &bytes, scanner.spans(), group_of) {
                    Ok(Divided::Whole { group }) => answer(&mut several[usize::from(group)], &bytes, version),
                    Ok(Divided::Shares) => {
                        let replies: Vec<(u16, Vec<u8>)> = split
                            .shares()
                            .map(|share| {
                                let store = &mut several[usize::from(share.group)];
                                (share.group, answer(store, share.request, version))
                            })
                            .collect();
                        let parts: Vec<Part<'_>> = replies
                            .iter()
                            .map(|(group, reply)| Part { server: NAMED[usize::from(*group)], reply })
                            .collect();
                        let mut out = Vec::new();
                        prop_assert_eq!(merger.merge(id, split.order(), &parts, &mut out), Merged::Whole);
                        out
                    }
                    Err(why) => panic!("{why:?}"),
                };
                let expected = answer(&mut one, &bytes, version);
                prop_assert_eq!(merged.escape_ascii().to_string(), expected.escape_ascii().to_string());
                let together: Store = several.iter().flat_map(Store::clone).collect();
                prop_assert_eq!(&together, &one);
            }
        }

        /// Any bytes of servers give one complete reply, behind the bytes that were in `out`
        /// before.
        #[test]
        fn any_bytes_give_one_reply(
            replies in prop::collection::vec((
                prop::sample::select(vec!["", "*2\r\n", "%1\r\n", "$9\r\n", "=9\r\ntxt:", "-", "!5\r\n", ":"]),
                prop::collection::vec(
                    prop_oneof![any::<u8>(), prop::sample::select(b"*$:+-%~=!_|\r\n\r\n0129#".to_vec())],
                    0..40,
                ),
                any::<bool>(),
            ), 0..3),
            order in prop::collection::vec(0..4u16, 0..6),
        ) {
            let replies: Vec<Vec<u8>> = replies
                .into_iter()
                .map(|(start, rest, ends)| {
                    [start.as_bytes(), &rest, if ends { b"\r\n" } else { b"" }].concat()
                })
                .collect();
            let replies: Vec<&[u8]> = replies.iter().map(Vec::as_slice).collect();
            for id in all() {
                let (merged, out) = merge_bytes(&id.get().name.replace('|', " "), &order, &replies);
                let end = ReplyScanner::default().scan(&out);
                let name = id.get().name;
                prop_assert_eq!(end, Ok(Scanned::Whole(out.len())), "{}: {:?} {}", name, merged, out.escape_ascii());
            }
        }

        /// Any complete replies give one complete reply. This reaches the code behind the check for
        /// completeness.
        #[test]
        fn any_complete_replies_give_one_reply(
            replies in prop::collection::vec(
                prop::collection::vec(
                    prop::sample::select(vec![
                        ":1\r\n", ":9223372036854775807\r\n", ":-1\r\n", "$1\r\na\r\n", "$-1\r\n", "_\r\n", "+OK\r\n",
                        "=5\r\ntxt:x\r\n", "=3\r\nabc\r\n", "*0\r\n", "*-1\r\n", "%1\r\n:1\r\n:2\r\n",
                        "|1\r\n+a\r\n:1\r\n:5\r\n", "#t\r\n", "$8\r\n# A\r\na:b\r\n", "(1\r\n",
                    ]),
                    0..6,
                ),
                1..4,
            ),
            kind in prop::sample::select(vec!["", "*", "~", "%", ">"]),
            order in prop::collection::vec(0..3u16, 0..6),
        ) {
            let replies: Vec<Vec<u8>> = replies
                .into_iter()
                .map(|mut elements| match kind {
                    "" => elements.first().unwrap_or(&"+OK\r\n").as_bytes().to_vec(),
                    "%" => {
                        elements.truncate(elements.len() / 2 * 2);
                        format!("%{}\r\n{}", elements.len() / 2, elements.concat()).into_bytes()
                    }
                    _ => format!("{kind}{}\r\n{}", elements.len(), elements.concat()).into_bytes(),
                })
                .collect();
            let replies: Vec<&[u8]> = replies.iter().map(Vec::as_slice).collect();
            for id in all() {
                let (merged, out) = merge_bytes(&id.get().name.replace('|', " "), &order, &replies);
                let end = ReplyScanner::default().scan(&out);
                let name = id.get().name;
                prop_assert_eq!(end, Ok(Scanned::Whole(out.len())), "{}: {:?} {}", name, merged, out.escape_ascii());
            }
        }
    }
}
